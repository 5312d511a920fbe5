//! Files that outlive the binary: what an earlier mainstay wrote is read as it was meant.
//!
//! The files in `tests/golden` are never written anew: a new format gets a new file, and the old one is still read.

use std::sync::Arc;

use mainstay_engine::{EventSink, FileStore, Journal, JournalEntry, MemoryFiles, SecretsFile};
use mainstay_plan::ClusterSecrets;
use mainstay_spec::Distro;
use sops_file::Identity;
use uuid::Uuid;

const JOURNAL: &str = include_str!("golden/journal-0.jsonl");

fn journal(disk: &Arc<MemoryFiles>) -> Journal {
    Journal::open(disk.clone(), "state".as_ref(), Uuid::nil(), EventSink::discard())
}

fn entries() -> Vec<JournalEntry> {
    let (step, subject) = ("machine.fill".to_owned(), "prod-w-1".to_owned());
    let upid = "UPID:pve1:0000C530:001C9BEC:692D2E0A:qmconfig:3001:root@pam!mainstay:".to_owned();
    vec![
        JournalEntry::Begin {
            step: step.clone(),
            subject: subject.clone(),
        },
        JournalEntry::Task { step, subject, upid },
        JournalEntry::Delete {
            machine: "prod-w-1".to_owned(),
            vmid: 3001,
            volumes: vec![
                "local-lvm:vm-3001-disk-0".to_owned(),
                "local-lvm:vm-3001-cloudinit".to_owned(),
            ],
        },
    ]
}

#[test]
fn a_journal_without_a_version_is_read() {
    let disk = Arc::new(MemoryFiles::default());
    let path = format!("state/{}.journal", Uuid::nil());
    disk.write(path.as_ref(), JOURNAL.as_bytes()).expect("writes");
    assert_eq!(journal(&disk).entries(), entries());
}

/// Every entry that is written today. A variant or field that is renamed makes journals of running clusters unreadable.
#[test]
fn a_journal_is_written_in_format_1() {
    let disk = Arc::new(MemoryFiles::default());
    let made = JournalEntry::Made {
        vmid: 3001,
        volumes: vec!["local-lvm:vm-3001-disk-0".to_owned()],
        host: Some("pve1".to_owned()),
        since: Some(1_764_568_586),
    };
    let ended = JournalEntry::Ended {
        volumes: vec!["local-lvm:vm-3001-disk-1".to_owned()],
    };
    let all: Vec<JournalEntry> = entries().into_iter().chain([made, ended]).collect();
    all.iter().for_each(|entry| journal(&disk).write(entry));
    let path = format!("state/{}.journal", Uuid::nil());
    let written = disk.read(path.as_ref()).expect("reads").expect("a file");
    assert_eq!(
        String::from_utf8(written).expect("text"),
        include_str!("golden/journal-v1.jsonl")
    );
    assert_eq!(journal(&disk).entries(), all);
}

#[test]
fn a_journal_line_of_a_later_format_proves_nothing() {
    let disk = Arc::new(MemoryFiles::default());
    let path = format!("state/{}.journal", Uuid::nil());
    let later = br#"{"v":2,"entry":"made","vmid":3001,"volumes":["local-lvm:vm-3001-disk-0"],"host":"pve1"}"#;
    disk.write(path.as_ref(), later).expect("writes");
    assert!(journal(&disk).entries().is_empty());
}

#[test]
fn what_an_earlier_version_noted_at_a_deletion_proves_no_volume() {
    let disk = Arc::new(MemoryFiles::default());
    entries().iter().for_each(|entry| journal(&disk).write(entry));
    assert!(journal(&disk).made_volumes().is_empty());
}

#[test]
fn the_volumes_that_an_earlier_version_made_are_read() {
    let disk = Arc::new(MemoryFiles::default());
    let made = JournalEntry::Made {
        vmid: 3001,
        volumes: vec!["local-lvm:vm-3001-disk-0".to_owned()],
        host: Some("pve1".to_owned()),
        since: Some(1_764_568_586),
    };
    let ended = JournalEntry::Ended {
        volumes: vec!["local-lvm:vm-3001-disk-1".to_owned()],
    };
    let path = format!("state/{}.journal", Uuid::nil());
    disk.write(path.as_ref(), include_bytes!("golden/journal-2.jsonl"))
        .expect("writes");
    assert_eq!(journal(&disk).entries(), [made, ended]);
    assert!(journal(&disk).made_volumes().contains_key("local-lvm:vm-3001-disk-0"));
}

#[test]
fn an_entry_without_a_host_is_read_and_says_none() {
    let disk = Arc::new(MemoryFiles::default());
    let path = format!("state/{}.journal", Uuid::nil());
    disk.write(path.as_ref(), include_bytes!("golden/journal-1.jsonl"))
        .expect("writes");
    assert_eq!(journal(&disk).made_volumes()["local-lvm:vm-3001-disk-0"].host, None);
}

/// RKE2 and k3s: the bundle is mainstay's own, under the key `mainstay`.
#[test]
fn a_secrets_file_of_format_2_opens_and_proves_the_same_cluster() {
    let disk = Arc::new(MemoryFiles::default());
    disk.write("cluster.secrets.yaml".as_ref(), include_bytes!("golden/secrets-2.yaml"))
        .expect("writes");
    let keys = Identity::parse_file(include_str!("golden/secrets-1.key")).expect("a key");
    let file = SecretsFile::new(disk, "cluster.secrets.yaml".into(), keys);
    let secrets = file.load().expect("opens").expect("is there");
    assert_eq!(secrets.id().to_string(), include_str!("golden/secrets-2.id").trim());
    assert!(secrets.fits(Distro::Rke2) && !secrets.fits(Distro::K3s));
    let again = ClusterSecrets::from_yaml(&secrets.to_yaml()).expect("reads what it writes");
    assert_eq!((again.id(), &*again.to_yaml()), (secrets.id(), &*secrets.to_yaml()));
}

/// The file of the first version opens for good: a cluster whose secrets cannot be read is lost.
#[test]
fn a_secrets_file_of_format_1_opens_and_proves_the_same_cluster() {
    let disk = Arc::new(MemoryFiles::default());
    disk.write("cluster.secrets.yaml".as_ref(), include_bytes!("golden/secrets-1.yaml"))
        .expect("writes");
    let keys = Identity::parse_file(include_str!("golden/secrets-1.key")).expect("a key");
    let file = SecretsFile::new(disk, "cluster.secrets.yaml".into(), keys);
    let secrets = file.load().expect("opens").expect("is there");
    assert_eq!(secrets.id().to_string(), include_str!("golden/secrets-1.id").trim());
}
