//! `mainstay sim` as a process, until it is dropped.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use anyhow::{Context, Result};
use serde_json::Value;

use super::tools::{built, command};

pub struct Sim {
    process: Child,
    pub mainstay: PathBuf,
    pub endpoint: String,
    pub token: String,
    pub fingerprint: String,
    pub factory: String,
}

impl Sim {
    /// On a free port, so many times faster than life; every request is recorded in `folder`.
    pub fn start(folder: &Path, speed: u32) -> Result<Self> {
        let mainstay = built(&["--package", "mainstay"])?;
        let mut process = command(&mainstay)
            .args([
                "sim",
                "--listen",
                "127.0.0.1:0",
                "--json",
                "--speed",
                &speed.to_string(),
                "--record",
            ])
            .arg(folder.join("requests.jsonl"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("mainstay sim cannot be started")?;
        let mut line = String::new();
        if let Some(output) = process.stdout.take() {
            BufReader::new(output).read_line(&mut line)?;
        }
        let said: Value = serde_json::from_str(&line).context("mainstay sim announced nothing")?;
        let field = |name: &str| {
            said[name]
                .as_str()
                .map(str::to_owned)
                .with_context(|| format!("mainstay sim has no {name}"))
        };
        Ok(Self {
            mainstay,
            endpoint: field("endpoint")?,
            token: field("token")?,
            fingerprint: field("fingerprint")?,
            factory: field("factory")?,
            process,
        })
    }
}

impl Drop for Sim {
    fn drop(&mut self) {
        // It may be gone already, which is as good.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
