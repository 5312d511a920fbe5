//! What was begun. It only saves time and helps to clean up: deleting it never costs correctness.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::event::EventSink;
use crate::files::FileStore;

/// The journal of one cluster: lines of JSON, gone when everything is settled.
#[derive(Clone)]
pub struct Journal {
    disk: Arc<dyn FileStore>,
    path: PathBuf,
    events: EventSink,
    /// Told once: a full disk is no reason to stop, and none to repeat oneself.
    failed: Arc<std::sync::atomic::AtomicBool>,
}

/// The format of lines that are written. Lines without a version are from before versions were written, and mean the same.
const FORMAT: u8 = 1;

#[derive(Serialize)]
struct WrittenLine<'a> {
    v: u8,
    #[serde(flatten)]
    entry: &'a JournalEntry,
}

#[derive(Deserialize)]
struct ReadLine {
    #[serde(default)]
    v: u8,
    #[serde(flatten)]
    entry: JournalEntry,
}

/// One line. Fields and variants are a persisted format: a change of a name needs a new version in [`FORMAT`] and a new golden file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "entry", rename_all = "kebab-case")]
pub enum JournalEntry {
    /// A request is about to be sent.
    Begin { step: String, subject: String },
    /// PVE works on it.
    Task { step: String, subject: String, upid: String },
    /// Earlier versions wrote this from the config of a machine that was to go. It may list volumes of others, so it proves nothing.
    Delete {
        machine: String,
        vmid: u32,
        volumes: Vec<String>,
    },
    /// Volumes that mainstay had Proxmox VE allocate for this VM, as read back after it did, or as the VM's mark lists them.
    Made {
        vmid: u32,
        volumes: Vec<String>,
        /// Where they are. Earlier versions did not write it; such an entry proves nothing.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        host: Option<String>,
        /// When the task began that made them, by the clock of its host.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        since: Option<u64>,
    },
    /// These were seen absent, or were freed, or their VMID has another VM. A volume with such a name is another one from then on.
    Ended { volumes: Vec<String> },
}

/// What the journal says of a volume that mainstay made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MadeVolume {
    pub vmid: u32,
    pub host: Option<String>,
    pub since: Option<u64>,
}

impl Journal {
    /// `folder` is the program's state directory.
    pub fn open(disk: Arc<dyn FileStore>, folder: &std::path::Path, cluster: Uuid, events: EventSink) -> Self {
        Self {
            disk,
            path: folder.join(format!("{cluster}.journal")),
            events,
            failed: Arc::default(),
        }
    }

    pub fn write(&self, entry: &JournalEntry) {
        let line = serde_json::to_string(&WrittenLine { v: FORMAT, entry }).expect("an entry is plain data");
        if let Err(error) = self.disk.append(&self.path, &line)
            && !self.failed.swap(true, std::sync::atomic::Ordering::Relaxed)
        {
            self.events.note(format!(
                "the journal {} cannot be written ({error}); going on without it",
                self.path.display()
            ));
        }
    }

    /// What earlier runs left. A line that was cut short is skipped. So is a line of a later format: its entry may mean something else,
    /// and without it a volume counts as not proved, which costs no data.
    pub fn entries(&self) -> Vec<JournalEntry> {
        let content = self.disk.read(&self.path).ok().flatten().unwrap_or_default();
        String::from_utf8_lossy(&content)
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok())
            .filter(|line: &ReadLine| line.v <= FORMAT)
            .map(|line| line.entry)
            .collect()
    }

    /// Volumes that mainstay made and that have not gone since. One that another VMID owns is never ours, whatever is written here.
    pub fn made_volumes(&self) -> BTreeMap<String, MadeVolume> {
        let mut made = BTreeMap::new();
        for entry in self.entries() {
            match entry {
                JournalEntry::Made {
                    vmid,
                    volumes,
                    host,
                    since,
                } => {
                    let own = volumes
                        .into_iter()
                        .filter(|volume| mainstay_plan::volume_owner(volume) == Some(vmid));
                    for volume in own {
                        // A later entry for the same volume may not know when it was made.
                        let known = made.get(&volume).filter(|known: &&MadeVolume| known.host == host);
                        let since = since.or(known.and_then(|known| known.since));
                        let host = host.clone();
                        made.insert(volume, MadeVolume { vmid, host, since });
                    }
                }
                JournalEntry::Ended { volumes } => made.retain(|volume, _| !volumes.contains(volume)),
                JournalEntry::Begin { .. } | JournalEntry::Task { .. } | JournalEntry::Delete { .. } => {}
            }
        }
        made
    }

    /// Tasks that were to make disks. What one of them made is in its log, also where the run that sent it was killed.
    pub fn fills(&self) -> Vec<String> {
        let fill = |entry| match entry {
            JournalEntry::Task { step, upid, .. } if step == "machine.fill" => Some(upid),
            _ => None,
        };
        self.entries().into_iter().filter_map(fill).collect()
    }

    /// Everything is settled: nothing was begun that is not finished.
    pub fn clear(&self) {
        if let Err(error) = self.disk.remove(&self.path) {
            self.events.note(format!(
                "the journal {} cannot be removed ({error}); it does no harm",
                self.path.display()
            ));
        }
    }
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Journal({})", self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::MemoryFiles;

    fn journal(disk: &Arc<MemoryFiles>) -> Journal {
        Journal::open(disk.clone(), "state".as_ref(), Uuid::nil(), EventSink::discard())
    }

    #[test]
    fn the_next_run_reads_what_this_one_wrote() {
        let disk = Arc::new(MemoryFiles::default());
        let entry = JournalEntry::Made {
            vmid: 3001,
            volumes: vec!["local-lvm:vm-3001-disk-0".into(), "ceph:vm-9999-pvc-1".into()],
            host: Some("pve1".into()),
            since: None,
        };
        journal(&disk).write(&entry);
        assert_eq!(journal(&disk).entries(), [entry]);
        let made: Vec<String> = journal(&disk).made_volumes().into_keys().collect();
        assert_eq!(made, ["local-lvm:vm-3001-disk-0"], "another VMID's volume is never ours");
        journal(&disk).write(&JournalEntry::Ended { volumes: made });
        assert!(journal(&disk).made_volumes().is_empty());
        journal(&disk).clear();
        assert!(journal(&disk).entries().is_empty());
    }

    #[test]
    fn a_later_entry_keeps_the_time_at_which_a_volume_was_made() {
        let disk = Arc::new(MemoryFiles::default());
        let since_of = |host: &str, since| {
            journal(&disk).write(&JournalEntry::Made {
                vmid: 3001,
                volumes: vec!["local-lvm:vm-3001-disk-0".into()],
                host: Some(host.into()),
                since,
            });
            let made = journal(&disk).made_volumes();
            made["local-lvm:vm-3001-disk-0"].since
        };
        assert_eq!(since_of("pve1", Some(1_790_000_000)), Some(1_790_000_000));
        assert_eq!(since_of("pve1", None), Some(1_790_000_000));
        assert_eq!(since_of("pve2", None), None);
    }

    #[test]
    fn a_line_cut_short_by_a_crash_is_passed_over() {
        let disk = Arc::new(MemoryFiles::default());
        let entry = JournalEntry::Begin {
            step: "machine.claim".into(),
            subject: "prod-w-1".into(),
        };
        journal(&disk).write(&entry);
        disk.append(
            &PathBuf::from("state").join(format!("{}.journal", Uuid::nil())),
            "{\"entry\":\"beg",
        )
        .expect("appends");
        assert_eq!(journal(&disk).entries(), [entry]);
    }

    #[test]
    fn a_full_disk_is_told_once_and_stops_nothing() {
        let disk = Arc::new(MemoryFiles::default());
        disk.set_full(true);
        let told = Arc::new(std::sync::Mutex::new(0));
        let count = told.clone();
        let events = EventSink::new(move |_| *count.lock().expect("counts") += 1);
        let journal = Journal::open(disk, "state".as_ref(), Uuid::nil(), events);
        for _ in 0..3 {
            journal.write(&JournalEntry::Begin {
                step: "machine.claim".into(),
                subject: "prod-w-1".into(),
            });
        }
        assert_eq!(*told.lock().expect("counts"), 1);
    }
}
