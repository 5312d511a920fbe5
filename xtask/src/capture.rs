//! Captures of real runs for the documentation: an animated SVG for the README, and the text of the screen in two widths.
//!
//! A capture is a run of the built program on a pseudo-terminal, against the datacenter that `mainstay sim` serves. What the program writes
//! is played on a small terminal screen, with the times at which it was written.

mod screen;
mod svg;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

use screen::Screen;

/// How many times faster than real time the simulated world is. The run is watched, and a reader has some seconds.
const SPEED: &str = "16";
/// Opens secrets that are deleted with the folder of the capture.
const AGE_KEY: &str = "AGE-SECRET-KEY-1V6ZKFZS2TL2GRNSM2PFHWPZWSLKAR3PSQGAKMR99P5GRJ3N2E2WSCSFRT4";
/// A run that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(180);
/// A longer pause between two outputs is shortened to this.
const LONGEST_PAUSE: Duration = Duration::from_millis(1500);

pub fn run(arguments: &[String]) -> Result<()> {
    let root = crate::root();
    let program = arguments
        .first()
        .map_or_else(|| root.join("target/release/mainstay"), PathBuf::from);
    let program = fs::canonicalize(&program).with_context(|| {
        format!(
            "{} is not there: cargo build --release, or name another binary",
            program.display()
        )
    })?;
    let place = root.join("docs/captures");
    for width in [80, 120] {
        let stage = Stage::new(&program)?;
        let up = stage.record(&["up"], width, &[("Apply this plan? [y/N] ", "y\n")])?;
        let shown = up.middle();
        fs::write(place.join(format!("up-{width}.txt")), shown.text())?;
        let status = stage.record(&["status"], width, &[])?;
        fs::write(place.join(format!("status-{width}.txt")), status.last().text())?;
        if width == 80 {
            fs::write(
                place.join("up.svg"),
                svg::animation(&up.frames("$ mainstay up\r\n"), "mainstay up"),
            )?;
        }
        println!("captured {width} columns");
    }
    Ok(())
}

/// A simulated datacenter, and a folder with a cluster file for it.
struct Stage {
    program: PathBuf,
    folder: PathBuf,
    sim: Child,
    variables: BTreeMap<&'static str, String>,
}

impl Stage {
    fn new(program: &Path) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("mainstay-capture-{}", std::process::id()));
        fs::create_dir_all(&folder)?;
        let mut sim = command(program)
            .args(["sim", "--listen", "127.0.0.1:0", "--speed", SPEED, "--json"])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(sim.stdout.take().context("is piped")?).read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).context("the simulated datacenter says where it is")?;
        let text = |key: &str| said[key].as_str().unwrap_or_default().to_owned();
        let cluster = format!(
            "name: homelab\ndatacenter:\n  endpoint: {}\n  fingerprint: \"{}\"\n  storage: {{ images: local, disks: local-lvm }}\n\
             network:\n  cidr: 127.220.0.0/16\n  gateway: 127.220.0.1\n  vip: 127.220.0.20\ntalos:\n  version: 1.13.9\n  factory: {}\n\
             pools:\n  control-plane: {{ count: 3, addresses: 127.220.0.11+, vmids: 2001+ }}\n  \
             worker: {{ count: 2, addresses: 127.220.0.21+, vmids: 3001+ }}\n",
            text("endpoint"),
            text("fingerprint"),
            text("factory")
        );
        fs::write(folder.join("cluster.yaml"), cluster)?;
        let variables = [
            ("HOME", folder.display().to_string()),
            ("USER", "ada".to_owned()),
            ("HOSTNAME", "desk".to_owned()),
            ("TERM", "xterm-256color".to_owned()),
            ("LANG", "C.UTF-8".to_owned()),
            ("SOPS_AGE_KEY", AGE_KEY.to_owned()),
            ("PROXMOX_VE_API_TOKEN", text("token")),
        ];
        Ok(Self {
            program: program.to_path_buf(),
            folder,
            sim,
            variables: variables.into(),
        })
    }

    /// Runs a command on a terminal, types each answer when its question is shown, and keeps what is written.
    fn record(&self, arguments: &[&str], width: u16, answers: &[(&str, &str)]) -> Result<Recording> {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
        grantpt(&master)?;
        unlockpt(&master)?;
        tcsetwinsize(
            &master,
            Winsize {
                ws_row: HEIGHT,
                ws_col: width,
                ws_xpixel: 0,
                ws_ypixel: 0,
            },
        )?;
        let name = ptsname(&master, Vec::new())?.into_string()?;
        let slave = || fs::OpenOptions::new().read(true).write(true).open(&name);
        let mut command = command(&self.program);
        let child = command
            .args(arguments)
            .env_clear()
            .envs(&self.variables)
            .current_dir(&self.folder)
            .stdin(slave()?)
            .stdout(slave()?)
            .stderr(slave()?)
            .spawn()?;
        // The terminal ends when its last other end is closed.
        drop(command);
        let mut recording = Recording::of(width);
        recording.read(fs::File::from(master), answers)?;
        let mut child = child;
        if !child.wait()?.success() {
            bail!("mainstay {} failed:\n{}", arguments.join(" "), recording.last().text());
        }
        Ok(recording)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = self.sim.kill();
        let _ = self.sim.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Rows of the terminal.
const HEIGHT: u16 = 26;

/// What a program wrote, and when.
struct Recording {
    width: u16,
    chunks: Vec<(Duration, Vec<u8>)>,
}

impl Recording {
    fn of(width: u16) -> Self {
        Self {
            width,
            chunks: Vec::new(),
        }
    }

    fn read(&mut self, mut terminal: fs::File, answers: &[(&str, &str)]) -> Result<()> {
        let clock = stopwatch();
        let mut answers = answers.iter();
        let mut next = answers.next();
        let mut shown = String::new();
        let mut buffer = [0; 65536];
        // A terminal whose other end was closed answers with an error.
        while let Ok(length @ 1..) = terminal.read(&mut buffer) {
            if clock() > PATIENCE {
                bail!("the run does not end:\n{shown}");
            }
            self.chunks.push((clock(), buffer[..length].to_vec()));
            shown.push_str(&String::from_utf8_lossy(&buffer[..length]));
            if let Some((question, answer)) = next.filter(|(question, _)| shown.contains(question)) {
                let _ = question;
                terminal.write_all(answer.as_bytes())?;
                next = answers.next();
            }
        }
        Ok(())
    }

    /// The screen after each output. Long pauses are shortened.
    fn frames(&self, before: &str) -> Vec<(Duration, Screen)> {
        let mut screen = Screen::new(usize::from(self.width), usize::from(HEIGHT));
        screen.write(before.as_bytes());
        let mut frames = vec![(Duration::ZERO, screen.clone())];
        let (mut last, mut shown_at) = (Duration::ZERO, LONGEST_PAUSE / 2);
        for (at, bytes) in &self.chunks {
            shown_at += at.saturating_sub(last).min(LONGEST_PAUSE);
            last = *at;
            screen.write(bytes);
            frames.push((shown_at, screen.clone()));
        }
        frames
    }

    fn last(&self) -> Screen {
        self.frames("").pop().map_or_else(|| Screen::new(1, 1), |(_, screen)| screen)
    }

    /// The screen in the middle of the run, when images are there and machines boot.
    fn middle(&self) -> Screen {
        let end = self.chunks.last().map_or(Duration::ZERO, |(at, _)| *at);
        let mut screen = Screen::new(usize::from(self.width), usize::from(HEIGHT));
        self.chunks
            .iter()
            .take_while(|(at, _)| *at < end.mul_f64(0.5))
            .for_each(|(_, bytes)| screen.write(bytes));
        screen
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the workshop runs the program; the product runs nothing"
)]
fn command(program: &Path) -> Command {
    Command::new(program)
}

/// The time since this was called.
#[expect(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "a capture has the times of a real run"
)]
fn stopwatch() -> impl Fn() -> Duration {
    let began = std::time::Instant::now();
    move || began.elapsed()
}
