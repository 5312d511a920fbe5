//! Replays recorded scenarios of the real PVE against the simulator and compares the answers.
//!
//! A folder holds `world.json`, `scenarios/*.json` and `www/`. Everything runs in one process on virtual time.

mod normal;
mod player;
mod web;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use serde_json::Value;

pub use normal::{Normal, difference};

/// A folder of scenarios, read into memory.
#[derive(Clone)]
pub struct Folder {
    pub world: Value,
    pub scenarios: Vec<Value>,
    pub files: Arc<BTreeMap<String, Bytes>>,
}

#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{path} cannot be read")]
    Read { path: String, source: std::io::Error },
    #[error("{path} is not JSON")]
    Json { path: String, source: serde_json::Error },
}

impl Folder {
    pub fn read(dir: &Path) -> Result<Self, FolderError> {
        let mut scenarios = Vec::new();
        for path in listed(&dir.join("scenarios"))? {
            scenarios.push(read_json(&path)?);
        }
        let mut files = BTreeMap::new();
        for path in listed(&dir.join("www"))? {
            let name = path.rsplit('/').next().unwrap_or_default().to_string();
            let bytes = std::fs::read(&path).map_err(|source| FolderError::Read { path, source })?;
            files.insert(name, Bytes::from(bytes));
        }
        let world = read_json(&dir.join("world.json").to_string_lossy())?;
        Ok(Self {
            world,
            scenarios,
            files: Arc::new(files),
        })
    }
}

fn listed(dir: &Path) -> Result<Vec<String>, FolderError> {
    let fault = |source| FolderError::Read {
        path: dir.to_string_lossy().into_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(fault)? {
        paths.push(entry.map_err(fault)?.path().to_string_lossy().into_owned());
    }
    paths.sort();
    Ok(paths)
}

fn read_json(path: &str) -> Result<Value, FolderError> {
    let text = std::fs::read(path).map_err(|source| FolderError::Read {
        path: path.into(),
        source,
    })?;
    serde_json::from_slice(&text).map_err(|source| FolderError::Json {
        path: path.into(),
        source,
    })
}

/// What a scenario gave.
#[derive(Clone, Debug)]
pub struct Outcome {
    pub name: String,
    pub stable: usize,
    pub different: Vec<Different>,
}

#[derive(Clone, Debug)]
pub struct Different {
    pub step: u64,
    pub call: String,
    pub why: Vec<String>,
}

/// Plays one scenario in a world of its own.
pub fn play(folder: &Folder, scenario: &Value) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build();
    runtime
        .expect("a runtime can be built")
        .block_on(player::play(folder, scenario))
}

/// Plays all scenarios of a folder.
pub fn play_all(folder: &Folder) -> Vec<Outcome> {
    folder.scenarios.iter().map(|scenario| play(folder, scenario)).collect()
}
