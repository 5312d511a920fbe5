//! Run logs: the event stream of every run, kept under the state directory, for `mainstay logs` and for bug reports.
//!
//! `runs/<cluster id>/<time>.jsonl`, readable by the owner only. Events never contain a secret, and neither do these files.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use uuid::Uuid;

use crate::output::Output;
use crate::view::EventReader;
use crate::wire::{EventLine, RunHeader, WireEvent};

/// How many run logs of a cluster are kept.
const KEPT: usize = 20;

/// Writes one run log.
pub struct RunLog {
    folder: PathBuf,
    name: String,
    output: Output,
    state: LogState,
}

enum LogState {
    /// The cluster does not exist yet. Nothing is written before its first plan is approved.
    Waiting(Vec<String>),
    Open(File),
    /// The file cannot be written. A full disk must not stop the run.
    Failed,
}

impl RunLog {
    /// `new_cluster`: the secrets are not written yet, so a run that is declined leaves no file behind.
    pub fn new(runs: &Path, cluster: Uuid, name: String, new_cluster: bool, output: Output) -> Self {
        let mut log = Self {
            folder: runs.join(cluster.to_string()),
            name,
            output,
            state: LogState::Waiting(Vec::new()),
        };
        if !new_cluster {
            log.open();
        }
        log
    }

    fn open(&mut self) {
        let LogState::Waiting(lines) = &mut self.state else { return };
        let text = std::mem::take(lines).concat();
        let opened = create(&self.folder, &self.name).and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            prune(&self.folder)?;
            Ok(file)
        });
        self.state = match opened {
            Ok(file) => LogState::Open(file),
            Err(error) => self.failed(&error),
        };
    }

    fn failed(&self, error: &io::Error) -> LogState {
        if !self.output.json {
            let folder = self.folder.display();
            self.output.status(format!(
                "note: cannot write the run log in {folder} ({error}); continuing without it"
            ));
        }
        LogState::Failed
    }
}

impl EventReader for RunLog {
    fn line(&mut self, line: &EventLine) {
        if matches!(line.event, WireEvent::Answer { approved: true }) {
            self.open();
        }
        let text = line.to_json() + "\n";
        match &mut self.state {
            LogState::Waiting(lines) => lines.push(text),
            LogState::Open(file) => {
                if let Err(error) = file.write_all(text.as_bytes()) {
                    self.state = self.failed(&error);
                }
            }
            LogState::Failed => {}
        }
    }
}

/// A new file, never one that exists: two runs may begin in the same millisecond.
fn create(folder: &Path, name: &str) -> io::Result<File> {
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for number in 1.. {
        let suffix = if number == 1 { String::new() } else { format!("-{number}") };
        let path = folder.join(format!("{name}{suffix}.jsonl"));
        match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened,
        }
    }
    unreachable!("the loop ends by returning")
}

/// Removes the oldest logs. Names sort by time.
fn prune(folder: &Path) -> io::Result<()> {
    let files = files(folder)?;
    let surplus = files.len().saturating_sub(KEPT);
    files[..surplus].iter().try_for_each(std::fs::remove_file)
}

/// The logs of one cluster, oldest first.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "jsonl") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

/// A log that was kept.
pub struct KeptRun {
    pub header: RunHeader,
    path: PathBuf,
}

impl KeptRun {
    /// Every line that can be read. A line that a crash cut short is skipped.
    pub fn lines(&self) -> io::Result<Vec<EventLine>> {
        let text = std::fs::read_to_string(&self.path)?;
        Ok(text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect())
    }
}

/// The runs of a cluster, newest first. The cluster is found by its name and datacenter, because its id is in the encrypted secrets file,
/// which may be gone after `down --forget`.
pub fn kept_runs(runs: &Path, cluster: &str, datacenter: &str) -> io::Result<Vec<KeptRun>> {
    let mut found = Vec::new();
    let folders = match std::fs::read_dir(runs) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(found),
        folders => folders?,
    };
    for folder in folders {
        for path in files(&folder?.path())? {
            let header = header(&path)?;
            let header = header.filter(|header| header.cluster == cluster && header.datacenter == datacenter);
            found.extend(header.map(|header| KeptRun { header, path }));
        }
    }
    found.sort_by(|one, other| other.path.file_name().cmp(&one.path.file_name()));
    Ok(found)
}

fn header(path: &Path) -> io::Result<Option<RunHeader>> {
    let mut first = String::new();
    BufReader::new(File::open(path)?).read_line(&mut first)?;
    Ok(match serde_json::from_str::<EventLine>(&first).map(|line| line.event) {
        Ok(WireEvent::Run(header)) => Some(header),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_newest_logs_are_kept() {
        let folder = tempfile::tempdir().expect("a folder");
        for number in 0..KEPT + 3 {
            create(folder.path(), &format!("2026{number:04}")).expect("a file");
        }
        prune(folder.path()).expect("prunes");
        let names = files(folder.path()).expect("a list");
        assert_eq!(names.len(), KEPT);
        assert!(names[0].ends_with("20260003.jsonl"), "{names:?}");
    }

    #[test]
    fn two_runs_of_one_moment_have_two_files() {
        let folder = tempfile::tempdir().expect("a folder");
        create(folder.path(), "now").expect("a file");
        create(folder.path(), "now").expect("another file");
        assert_eq!(files(folder.path()).expect("a list").len(), 2);
    }
}
