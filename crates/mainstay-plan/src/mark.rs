//! The mark: what a VM of ours says about itself, in its description, its tags and its SMBIOS UUID.
//!
//! The description is the user's too: everything outside the fenced block is theirs and is kept byte for byte.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use mainstay_spec::{Role, smbios_uuid};
use semver::Version;
use uuid::Uuid;

use crate::versions::Versions;

/// The PVE tag on every machine of every cluster. It makes our machines easy to find, and is one of the three proofs.
pub const TAG: &str = "mainstay";

const FENCE_BEGIN: &str = "```mainstay";
const FENCE_END: &str = "```";
const FORMAT: &str = "1";
/// The first words of the lines that this version writes.
const KEYS: [&str; 18] = [
    "format",
    "cluster",
    "machine",
    "tag",
    "shape",
    "runs",
    "bootstrap",
    "founded",
    "going",
    "disks",
    "disk",
    "host-key",
    "lease",
    "lease-run",
    "upgrade",
    "rolled-back",
    "pool",
    "tags",
];
/// Stands for the volume of a disk that was asked for and whose name was not read back yet.
const NOT_READ_BACK: &str = "-";

/// What the block in the description says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mark {
    pub cluster: String,
    pub cluster_id: Uuid,
    pub machine: String,
    pub role: Role,
    /// The VMID that was claimed. A restored backup keeps block and UUID but not this.
    pub vmid: u32,
    /// The claim was made by a token that may tag only what exists, and the tag was not set yet. Until then block, UUID and VMID suffice.
    pub tag_follows: bool,
    /// `None` on a mark that was put back without knowing.
    pub shape: Option<ShapeDigest>,
    /// What the machine was last configured for, so that versions are known while it is silent.
    pub versions: Option<Versions>,
    /// A bootstrap was about to be sent here. Never taken back.
    pub bootstrap: bool,
    /// The etcd that began here was ready once: its data are the cluster. Written before anything joins it, where data that never were
    /// ready may be deleted. Never taken back.
    pub founded: bool,
    /// Its destruction was about to be sent. It is ours to end, also if the machine is wanted again and cannot start any more.
    pub going: bool,
    /// The disks that mainstay made, by slot. In a mark that was read, `None` means that it was written before disks were listed; in one
    /// that is to be written, that the list stays as it is.
    pub disks: Option<BTreeMap<String, MadeDisk>>,
    pub lease: Option<Lease>,
    /// In a mark that is to be written, `None` means that the record stays as it is.
    pub upgrade: Option<UpgradeRecord>,
    /// The SSH host key of the guest, with the SMBIOS serial that it was seen with.
    pub host_key: Option<PinnedHostKey>,
    /// The user's tags that mainstay set, so that those which left the file are taken off.
    pub tags: BTreeSet<String>,
    /// The PVE resource pool that mainstay put the VM in.
    pub pool: Option<String>,
}

/// What is known of an upgrade of the system on the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpgradeRecord {
    /// Written before the call that makes another system bootable.
    Begun(BegunUpgrade),
    /// The machine started this system and came back with the one before.
    RolledBack { to: Version, schematic: String },
    /// Takes the record away. Never read.
    Over,
}

/// An upgrade whose end was not seen yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunUpgrade {
    pub from: Version,
    pub to: Version,
    /// What the new system is made of; empty where that has no name.
    pub schematic: String,
    /// The boot in which it was begun.
    pub boot_id: String,
    pub since: Timestamp,
    /// The new system is on the disk: every boot from now on runs it.
    pub is_armed: bool,
}

/// A host key that was proved once. It counts only for the VM that still has this serial.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedHostKey {
    pub serial: String,
    /// `ssh-ed25519 AAAA...`.
    pub key: String,
}

/// A disk that mainstay asked PVE to allocate.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MadeDisk {
    /// `None` from the request until the config was read back: PVE chooses the name.
    pub volume: Option<String>,
    /// The drive's serial, which it keeps when it is moved to another storage. EFI disks have none.
    pub serial: Option<String>,
}

/// Digest of the shape last applied: equal to the digest of the file means that a difference on the VM was made outside of mainstay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShapeDigest(pub(crate) String);

impl FromStr for ShapeDigest {
    type Err = std::convert::Infallible;

    /// Any text: a later mainstay may write a format that this one does not know, and it is kept as it is.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for ShapeDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who works on the cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lease {
    /// `user@machine`, without blanks.
    pub who: String,
    pub since: Timestamp,
    pub until: Timestamp,
    /// `None`: written by a version that knew runs by `who` alone.
    pub run: Option<LeaseRun>,
}

/// Which run of that user it is. It has a line of its own: earlier versions pass over it and read the lease all the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseRun {
    /// Random, without blanks.
    pub id: String,
    /// `None` where the system does not tell.
    pub process: Option<LeaseProcess>,
}

/// A process, told apart from every other one that a machine has or had. Containers of one machine share its boot, not the namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseProcess {
    /// The kernel's id of this boot.
    pub boot: String,
    /// The inode of the PID namespace.
    pub namespace: u64,
    pub pid: u32,
    /// When the process began, in ticks since the boot. A PID is given again.
    pub began: u64,
}

impl Lease {
    pub fn holds(&self, now: Timestamp) -> bool {
        now < self.until
    }

    /// The user, without the machine.
    pub fn user(&self) -> &str {
        self.who.split('@').next().unwrap_or_default()
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.who, self.since, self.until)
    }
}

impl fmt::Display for LeaseRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.id)?;
        match &self.process {
            Some(process) => write!(f, " {} {} {} {}", process.boot, process.namespace, process.pid, process.began),
            None => Ok(()),
        }
    }
}

impl LeaseRun {
    fn parse(words: &[&str]) -> Option<Self> {
        let (id, process) = match words {
            [id] => (id, None),
            [id, boot, namespace, pid, began] => {
                let process = LeaseProcess {
                    boot: (*boot).to_owned(),
                    namespace: namespace.parse().ok()?,
                    pid: pid.parse().ok()?,
                    began: began.parse().ok()?,
                };
                (id, Some(process))
            }
            _ => return None,
        };
        Some(Self {
            id: (*id).to_owned(),
            process,
        })
    }
}

impl Mark {
    /// The mark in a description. `None` for a text without a block that can be read in full: half a mark proves nothing.
    pub fn parse(description: &str) -> Option<Self> {
        let (_, block, _) = split(description);
        let mut lines = block?
            .lines()
            .map(|line| line.trim_end().split_once(' ').unwrap_or((line, "")));
        let mut fields = MarkFields::default();
        if lines.next()? != ("format", FORMAT) {
            return None;
        }
        lines.for_each(|(key, value)| fields.read(key, value));
        fields.mark()
    }

    /// The description with this mark in it. Keeps the user's text, the list of disks unless this mark has one, the lease (only
    /// [`with_lease`] removes it) and a recorded bootstrap (nothing removes it).
    pub fn write_into(&self, description: &str) -> String {
        let there = Self::parse(description);
        let mark = Self {
            bootstrap: self.bootstrap || there.as_ref().is_some_and(|mark| mark.bootstrap),
            founded: self.founded || there.as_ref().is_some_and(|mark| mark.founded),
            disks: self
                .disks
                .clone()
                .or_else(|| there.as_ref().and_then(|mark| mark.disks.clone())),
            host_key: self
                .host_key
                .clone()
                .or_else(|| there.as_ref().and_then(|mark| mark.host_key.clone())),
            upgrade: self
                .upgrade
                .clone()
                .or_else(|| there.as_ref().and_then(|mark| mark.upgrade.clone())),
            lease: self.lease.clone().or_else(|| there.and_then(|mark| mark.lease)),
            ..self.clone()
        };
        mark.replace(description)
    }

    /// The SMBIOS UUID that a machine of this name has.
    pub fn uuid(&self) -> Uuid {
        smbios_uuid(self.cluster_id, &self.machine)
    }

    /// Lines that this version does not know are kept as they are: a later one wrote them.
    fn replace(&self, description: &str) -> String {
        let (before, block, after) = split(description);
        let is_unknown = |line: &&str| !KEYS.contains(&line.trim_end().split(' ').next().unwrap_or_default());
        let unknown = block.into_iter().flat_map(str::lines).filter(is_unknown);
        let unknown: String = unknown.map(|line| format!("{line}\n")).collect();
        let mut text = user_text(before);
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        let own = self.to_string();
        text.push_str(own.strip_suffix(FENCE_END).unwrap_or(&own));
        text.push_str(&unknown);
        text.push_str(FENCE_END);
        let after = after.trim_matches('\n');
        if !after.is_empty() {
            text.push_str("\n\n");
            text.push_str(after);
        }
        text
    }
}

/// The description with another lease, or none. Unchanged where there is no mark: a lease is only written on what is ours.
pub fn with_lease(description: &str, lease: Option<Lease>) -> String {
    match Mark::parse(description) {
        Some(mark) => Mark { lease, ..mark }.replace(description),
        None => description.to_owned(),
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.sentence())?;
        writeln!(f, "\n{FENCE_BEGIN}\nformat {FORMAT}")?;
        writeln!(f, "cluster {} {}", self.cluster, self.cluster_id)?;
        writeln!(f, "machine {} {} {}", self.machine, self.role, self.vmid)?;
        if self.tag_follows {
            writeln!(f, "tag follows")?;
        }
        if let Some(shape) = &self.shape {
            writeln!(f, "shape {shape}")?;
        }
        if let Some(versions) = &self.versions {
            writeln!(f, "runs {versions}")?;
        }
        if let Some(pool) = &self.pool {
            writeln!(f, "pool {pool}")?;
        }
        if !self.tags.is_empty() {
            let tags: Vec<&str> = self.tags.iter().map(String::as_str).collect();
            writeln!(f, "tags {}", tags.join(" "))?;
        }
        if self.bootstrap {
            writeln!(f, "bootstrap here")?;
        }
        if self.founded {
            writeln!(f, "founded")?;
        }
        if self.going {
            writeln!(f, "going")?;
        }
        if let Some(disks) = &self.disks {
            writeln!(f, "disks listed")?;
            for (slot, disk) in disks {
                let volume = disk.volume.as_deref().unwrap_or(NOT_READ_BACK);
                let serial = disk.serial.iter().map(|serial| format!(" {serial}")).collect::<String>();
                writeln!(f, "disk {slot} {volume}{serial}")?;
            }
        }
        if let Some(pinned) = &self.host_key {
            writeln!(f, "host-key {} {}", pinned.serial, pinned.key)?;
        }
        match &self.upgrade {
            Some(UpgradeRecord::Begun(begun)) => writeln!(f, "upgrade {begun}")?,
            Some(UpgradeRecord::RolledBack { to, schematic }) => writeln!(f, "rolled-back {to} {}", word(schematic))?,
            Some(UpgradeRecord::Over) | None => {}
        }
        if let Some(lease) = &self.lease {
            writeln!(f, "lease {lease}")?;
            if let Some(run) = &lease.run {
                writeln!(f, "lease-run {run}")?;
            }
        }
        f.write_str(FENCE_END)
    }
}

impl fmt::Display for BegunUpgrade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let armed = if self.is_armed { " armed" } else { "" };
        let schematic = word(&self.schematic);
        write!(
            f,
            "{} {} {schematic} {} {}{armed}",
            self.from, self.to, self.boot_id, self.since
        )
    }
}

/// Something that may be empty, as a word of a line.
fn word(text: &str) -> &str {
    if text.is_empty() { NOT_READ_BACK } else { text }
}

fn text_of(word: &str) -> String {
    if word == NOT_READ_BACK {
        String::new()
    } else {
        word.to_owned()
    }
}

impl BegunUpgrade {
    fn parse(words: &[&str]) -> Option<Self> {
        let [from, to, schematic, boot_id, since, armed @ ..] = words else {
            return None;
        };
        Some(Self {
            from: from.parse().ok()?,
            to: to.parse().ok()?,
            schematic: text_of(schematic),
            boot_id: (*boot_id).to_owned(),
            since: since.parse().ok()?,
            is_armed: armed == ["armed"],
        })
    }
}

/// What the first line of every mark ends in, so that it is found again when the block is rewritten.
const SENTENCE_END: &str = "kept by mainstay. Change it in cluster.yaml, not here.";

impl Mark {
    fn sentence(&self) -> String {
        format!(
            "{}: {} of the Kubernetes cluster {}, {SENTENCE_END}",
            self.machine, self.role, self.cluster
        )
    }
}

/// Text before the block, the block's lines, text after it.
fn split(description: &str) -> (&str, Option<&str>, &str) {
    let Some(begin) = find_line(description, 0, FENCE_BEGIN) else {
        return (description, None, "");
    };
    let inside = begin + FENCE_BEGIN.len();
    let Some(end) = find_line(description, inside, FENCE_END) else {
        return (description, None, "");
    };
    let block = description[inside..end].trim_matches(['\n', '\r']);
    (&description[..begin], Some(block), &description[end + FENCE_END.len()..])
}

/// Where a line that is exactly `wanted` begins.
fn find_line(text: &str, from: usize, wanted: &str) -> Option<usize> {
    let mut at = from;
    for line in text[from..].split_inclusive('\n') {
        if line.trim_end_matches(['\n', '\r']) == wanted {
            return Some(at);
        }
        at += line.len();
    }
    None
}

/// The user's part of what stands before the block: all but our own sentence.
fn user_text(before: &str) -> String {
    let kept: Vec<&str> = before.lines().filter(|line| !line.ends_with(SENTENCE_END)).collect();
    kept.join("\n").trim_end_matches('\n').to_owned()
}

#[derive(Default)]
struct MarkFields {
    cluster: Option<(String, Uuid)>,
    machine: Option<(String, Role, u32)>,
    tag_follows: bool,
    shape: Option<ShapeDigest>,
    versions: Option<Versions>,
    bootstrap: bool,
    founded: bool,
    going: bool,
    disks: Option<BTreeMap<String, MadeDisk>>,
    lease: Option<Lease>,
    upgrade: Option<UpgradeRecord>,
    lease_run: Option<LeaseRun>,
    host_key: Option<PinnedHostKey>,
    tags: BTreeSet<String>,
    pool: Option<String>,
}

impl MarkFields {
    /// Unknown keys are passed over: a later mainstay may write more.
    fn read(&mut self, key: &str, value: &str) {
        let words: Vec<&str> = value.split(' ').collect();
        match (key, words.as_slice()) {
            ("cluster", [name, id]) => self.cluster = Uuid::from_str(id).ok().map(|id| ((*name).to_owned(), id)),
            ("machine", [name, role, vmid]) => {
                self.machine = parse_role(role)
                    .zip(vmid.parse().ok())
                    .map(|(role, vmid)| ((*name).to_owned(), role, vmid));
            }
            ("tag", ["follows"]) => self.tag_follows = true,
            ("shape", [digest]) => self.shape = Some(ShapeDigest((*digest).to_owned())),
            ("runs", words) => self.versions = Versions::parse(words),
            ("pool", [pool]) => self.pool = Some((*pool).to_owned()),
            ("tags", tags) => {
                let names = tags.iter().filter(|tag| !tag.is_empty());
                self.tags = names.map(|tag| (*tag).to_owned()).collect();
            }
            ("bootstrap", _) => self.bootstrap = true,
            ("founded", _) => self.founded = true,
            ("going", _) => self.going = true,
            ("disks", _) => drop(self.disks.get_or_insert_default()),
            ("disk", [slot, volume, serial @ ..]) => {
                let disk = MadeDisk {
                    volume: (*volume != NOT_READ_BACK).then(|| (*volume).to_owned()),
                    serial: serial.first().map(|serial| (*serial).to_owned()),
                };
                self.disks.get_or_insert_default().insert((*slot).to_owned(), disk);
            }
            ("host-key", [serial, kind, key, ..]) => {
                self.host_key = Some(PinnedHostKey {
                    serial: (*serial).to_owned(),
                    key: format!("{kind} {key}"),
                });
            }
            ("upgrade", words) => self.upgrade = BegunUpgrade::parse(words).map(UpgradeRecord::Begun),
            ("rolled-back", [to, schematic, ..]) => {
                let schematic = text_of(schematic);
                self.upgrade = to.parse().ok().map(|to| UpgradeRecord::RolledBack { to, schematic });
            }
            ("lease", [who, since, until]) => {
                let times = since.parse().ok().zip(until.parse().ok());
                self.lease = times.map(|(since, until)| Lease {
                    who: (*who).to_owned(),
                    since,
                    until,
                    run: None,
                });
            }
            ("lease-run", words) => self.lease_run = LeaseRun::parse(words),
            _ => {}
        }
    }

    fn mark(self) -> Option<Mark> {
        let (cluster, cluster_id) = self.cluster?;
        let (machine, role, vmid) = self.machine?;
        Some(Mark {
            cluster,
            cluster_id,
            machine,
            role,
            vmid,
            tag_follows: self.tag_follows,
            shape: self.shape,
            versions: self.versions,
            bootstrap: self.bootstrap,
            founded: self.founded,
            going: self.going,
            disks: self.disks,
            lease: self.lease.map(|lease| Lease {
                run: self.lease_run,
                ..lease
            }),
            upgrade: self.upgrade,
            host_key: self.host_key,
            tags: self.tags,
            pool: self.pool,
        })
    }
}

fn parse_role(text: &str) -> Option<Role> {
    [Role::ControlPlane, Role::Worker]
        .into_iter()
        .find(|role| role.as_str() == text)
}

#[cfg(test)]
mod tests {
    use expect_test::expect;

    use super::*;

    const ID: Uuid = Uuid::from_u128(0x5eed);

    fn mark() -> Mark {
        Mark {
            cluster: "prod".to_owned(),
            cluster_id: ID,
            machine: "prod-cp-1".to_owned(),
            role: Role::ControlPlane,
            vmid: 2001,
            tag_follows: true,
            shape: Some(ShapeDigest("1:0123456789abcdef".to_owned())),
            versions: Some(Versions {
                distro: mainstay_spec::Distro::Talos,
                release: Version::new(1, 13, 9),
                kubernetes: Version::new(1, 36, 2),
            }),
            bootstrap: true,
            founded: true,
            going: true,
            disks: Some(disks()),
            lease: Some(lease("ada@laptop")),
            upgrade: None,
            host_key: None,
            tags: ["blue".to_owned(), "green".to_owned()].into(),
            pool: Some("team/k8s".to_owned()),
        }
    }

    fn disks() -> BTreeMap<String, MadeDisk> {
        let disk = |volume: Option<&str>, serial: Option<&str>| MadeDisk {
            volume: volume.map(str::to_owned),
            serial: serial.map(str::to_owned),
        };
        BTreeMap::from([
            ("efidisk0".to_owned(), disk(Some("local-lvm:vm-2001-disk-1"), None)),
            ("scsi0".to_owned(), disk(Some("local-lvm:vm-2001-disk-0"), Some("system"))),
            ("scsi1".to_owned(), disk(None, Some("longhorn"))),
        ])
    }

    fn lease(who: &str) -> Lease {
        let since: Timestamp = "2026-03-01T10:00:00Z".parse().unwrap();
        Lease {
            who: who.to_owned(),
            since,
            until: "2026-03-01T10:05:00Z".parse().unwrap(),
            run: Some(LeaseRun {
                id: "5eed".into(),
                process: Some(LeaseProcess {
                    boot: "b007".into(),
                    namespace: 4_026_531_836,
                    pid: 4711,
                    began: 8_000,
                }),
            }),
        }
    }

    #[test]
    fn every_word_that_is_written_is_known_so_that_a_rewrite_writes_it_once() {
        for upgrade in [None, Some(begun(true))] {
            let mark = Mark { upgrade, ..mark() };
            let text = mark.to_string();
            assert_eq!(mark.replace(&text), text);
        }
    }

    #[test]
    fn a_mark_reads_well_and_is_read_back() {
        expect![[r#"
            prod-cp-1: control-plane of the Kubernetes cluster prod, kept by mainstay. Change it in cluster.yaml, not here.

            ```mainstay
            format 1
            cluster prod 00000000-0000-0000-0000-000000005eed
            machine prod-cp-1 control-plane 2001
            tag follows
            shape 1:0123456789abcdef
            runs talos 1.13.9 kubernetes 1.36.2
            pool team/k8s
            tags blue green
            bootstrap here
            founded
            going
            disks listed
            disk efidisk0 local-lvm:vm-2001-disk-1
            disk scsi0 local-lvm:vm-2001-disk-0 system
            disk scsi1 - longhorn
            lease ada@laptop 2026-03-01T10:00:00Z 2026-03-01T10:05:00Z
            lease-run 5eed b007 4026531836 4711 8000
            ```"#]]
        .assert_eq(&mark().to_string());
        assert_eq!(Mark::parse(&mark().to_string()), Some(mark()));
        // PVE gives descriptions back without their last newline, and browsers send carriage returns.
        assert_eq!(Mark::parse(&mark().to_string().replace('\n', "\r\n")), Some(mark()));
    }

    #[test]
    fn the_text_of_users_stays_around_the_block() {
        let ours = mark().write_into("");
        for text in ["", "Ask Ada first.", "# Title\n\n```sh\nls\n```\ntext", "mainstay is nice"] {
            let before = mark().write_into(text);
            assert!(before.starts_with(text) && before.ends_with("```"), "{before}");
            let after = format!("{before}\n\nbelow");
            assert_eq!(mark().write_into(&after), after);
            assert_eq!(Mark::parse(&after), Some(mark()));
        }
        assert_eq!(mark().write_into(&ours), ours);
    }

    #[test]
    fn a_new_mark_keeps_the_lease_and_the_bootstrap_intent() {
        let there = mark().write_into("mine");
        let plain = Mark {
            bootstrap: false,
            founded: false,
            lease: None,
            shape: None,
            ..mark()
        };
        let written = Mark::parse(&plain.write_into(&there)).unwrap();
        assert_eq!(
            (written.bootstrap, written.lease, written.shape),
            (true, Some(lease("ada@laptop")), None)
        );
    }

    #[test]
    fn a_new_mark_keeps_the_list_of_disks_unless_it_has_one() {
        let there = mark().write_into("mine");
        let plain = Mark { disks: None, ..mark() };
        assert_eq!(Mark::parse(&plain.write_into(&there)).unwrap().disks, Some(disks()));
        let none = Mark {
            disks: Some(BTreeMap::new()),
            ..mark()
        };
        assert_eq!(Mark::parse(&none.write_into(&there)).unwrap().disks, Some(BTreeMap::new()));
    }

    #[test]
    fn a_mark_from_before_disks_were_listed_is_read_and_says_so() {
        let old = Mark { disks: None, ..mark() }.to_string();
        assert!(!old.contains("disk"), "{old}");
        assert_eq!(Mark::parse(&old).unwrap().disks, None);
    }

    #[test]
    fn a_lease_is_taken_and_given_back_without_touching_the_rest() {
        let there = mark().write_into("mine");
        let taken = with_lease(&there, Some(lease("bob@ci")));
        assert_eq!(Mark::parse(&taken).unwrap().lease, Some(lease("bob@ci")));
        let given = with_lease(&taken, None);
        assert_eq!(Mark::parse(&given), Some(Mark { lease: None, ..mark() }));
        assert!(given.starts_with("mine\n"));
        assert_eq!(with_lease("no mark", Some(lease("bob@ci"))), "no mark");
    }

    #[test]
    fn half_a_mark_is_no_mark() {
        let whole = mark().to_string();
        for cut in ["cluster prod", "machine prod-cp-1", "format 1", "```mainstay"] {
            let torn: Vec<&str> = whole.lines().filter(|line| !line.starts_with(cut)).collect();
            assert_eq!(Mark::parse(&torn.join("\n")), None, "without {cut}");
        }
        assert_eq!(Mark::parse(whole.trim_end_matches("```")), None);
        for text in [
            "",
            "```mainstay\n```",
            "```mainstay\nformat 2\n```",
            "```mainstay\nformat 1\nmachine x worker y\n```",
        ] {
            assert_eq!(Mark::parse(text), None, "{text}");
        }
    }

    #[test]
    fn a_later_mainstay_may_write_more() {
        let more = mark().to_string().replace("shape ", "colour blue\nshape ");
        assert_eq!(Mark::parse(&more), Some(mark()));
    }

    #[test]
    fn lines_of_a_later_mainstay_survive_every_rewrite() {
        let later = mark()
            .to_string()
            .replace("shape ", "colour  blue \nshape ")
            .replace("lease ", "moon full\nlease ");
        let rewritten = Mark {
            shape: None,
            lease: None,
            ..mark()
        }
        .write_into(&later);
        assert!(rewritten.contains("\ncolour  blue \nmoon full\n```"), "{rewritten}");
        let released = with_lease(&rewritten, None);
        assert!(released.contains("\ncolour  blue \nmoon full\n```"), "{released}");
        assert_eq!(
            mark().write_into(&rewritten),
            mark().write_into(&mark().write_into(&rewritten))
        );
    }

    fn begun(is_armed: bool) -> UpgradeRecord {
        UpgradeRecord::Begun(BegunUpgrade {
            from: Version::new(1, 12, 11),
            to: Version::new(1, 13, 9),
            schematic: "3765".to_owned(),
            boot_id: "4f1c".to_owned(),
            since: "2026-03-01T10:00:00Z".parse().unwrap(),
            is_armed,
        })
    }

    #[test]
    fn the_record_of_an_upgrade_is_read_back_and_stays_until_it_is_over() {
        let with = |upgrade| Mark { upgrade, ..mark() };
        let lines = |mark: &Mark| {
            mark.to_string()
                .lines()
                .filter(|line| line.starts_with("upgrade") || line.starts_with("rolled"))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        let armed = with(Some(begun(true)));
        assert_eq!(lines(&armed), ["upgrade 1.12.11 1.13.9 3765 4f1c 2026-03-01T10:00:00Z armed"]);
        assert_eq!(Mark::parse(&armed.to_string()), Some(armed.clone()));
        let (to, schematic) = (Version::new(1, 13, 9), String::new());
        let back = with(Some(UpgradeRecord::RolledBack { to, schematic }));
        assert_eq!(lines(&back), ["rolled-back 1.13.9 -"]);
        assert_eq!(Mark::parse(&back.to_string()), Some(back));
        let there = armed.write_into("");
        assert_eq!(Mark::parse(&with(None).write_into(&there)), Some(armed.clone()));
        assert_eq!(Mark::parse(&with_lease(&there, None)).unwrap().upgrade, armed.upgrade);
        assert_eq!(
            Mark::parse(&with(Some(UpgradeRecord::Over)).write_into(&there))
                .unwrap()
                .upgrade,
            None
        );
    }

    #[test]
    fn a_lease_without_its_run_is_read_as_earlier_versions_wrote_it() {
        let old = mark().to_string();
        let old: Vec<&str> = old.lines().filter(|line| !line.starts_with("lease-run")).collect();
        let read = Mark::parse(&old.join("\n")).unwrap().lease;
        let run = None;
        assert_eq!(
            read,
            Some(Lease {
                run,
                ..lease("ada@laptop")
            })
        );
    }

    #[test]
    fn a_lease_ends() {
        let lease = lease("ada@laptop");
        assert!(lease.holds("2026-03-01T10:04:59Z".parse().unwrap()));
        assert!(!lease.holds("2026-03-01T10:05:00Z".parse().unwrap()));
    }
}
