//! What a probe says.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use serde::Deserialize;

use super::{GuestFile, Work};
use crate::version::ReleaseVersion;
use crate::{Distro, Secrets};

/// The answer of one probe. Facts that the guest did not tell are absent; nothing is concluded from an incomplete answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    pub boot_id: String,
    /// Lower case.
    pub smbios_uuid: String,
    pub smbios_serial: String,
    pub clock: Timestamp,
    pub hostname: String,
    pub cloud_init: CloudInit,
    /// Interface name and MAC, lower case.
    pub nics: BTreeMap<String, String>,
    /// Interface name and address with prefix length.
    pub addresses: Vec<(String, String)>,
    pub default_route: Option<String>,
    pub free_bytes: u64,
    /// What the installed executable says.
    pub version: Option<ReleaseVersion>,
    pub binary: FileState,
    /// Releases that are fetched and unpacked.
    pub releases: BTreeSet<String>,
    pub files: BTreeMap<String, FileState>,
    /// How the config on the disk joins. `None`: there is no config.
    pub joins: Option<JoinState>,
    /// Changed files wait for a restart of the unit.
    pub restart_pending: bool,
    /// Files in `config.yaml.d`. They win over ours and are not ours.
    pub foreign_configs: Vec<String>,
    pub data: BTreeMap<String, DataState>,
    /// The mount point under the data directory.
    pub mount: String,
    pub units: BTreeMap<String, UnitState>,
    pub results: BTreeMap<&'static str, WorkResult>,
    /// Why the guard refused the last start.
    pub refused: Option<String>,
    pub processes: BTreeSet<String>,
    pub firewalls: BTreeSet<String>,
    pub reboot_required: bool,
}

/// The one part of a server's or agent's config that differs while all else is equal: it counts at the first start only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinState {
    /// SHA-256 of the config without that part.
    pub rest: String,
    /// The server that it names, if any.
    pub server: Option<String>,
}

/// Files of a running machine that are not as they should be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes<'a> {
    /// In force after a restart of the unit.
    pub restart: Vec<&'a GuestFile>,
    /// In force as soon as they are written.
    pub live: Vec<&'a GuestFile>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudInit {
    Running,
    Done,
    Disabled,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileState {
    Sha256(String),
    Absent,
    /// The guest could not tell: an I/O error, a directory that cannot be entered.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DataState {
    Present,
    Absent,
    Unknown,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnitState {
    pub active: String,
    pub sub: String,
    pub result: String,
    pub restarts: u64,
    pub file: String,
    /// The main process; empty where it was not asked for.
    pub pid: String,
}

/// The answer of [`super::unit_status`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnitReport {
    pub boot_id: String,
    pub unit: UnitState,
    pub result: Option<WorkResult>,
    /// Why the guard refused the last start.
    pub refused: Option<String>,
    /// The last lines of the unit's journal, oldest first.
    pub log: Vec<String>,
}

impl UnitReport {
    pub fn parse(text: &str) -> Result<Self, ProbeError> {
        let mut lines = text.lines();
        if lines.next_back() != Some("end") || !text.ends_with('\n') {
            return Err(ProbeError::Incomplete);
        }
        if lines.next() != Some("status 1") {
            return Err(ProbeError::Missing("status 1"));
        }
        let (mut boot_id, mut unit) = (None, None);
        let (mut result, mut refused, mut log) = (None, None, Vec::new());
        for (number, line) in lines.enumerate() {
            let unreadable = || ProbeError::Line { line: number + 2 };
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            match key {
                "boot" => boot_id = some_text(value),
                "unit" => {
                    let (_, properties) = value.split_once(' ').unwrap_or((value, ""));
                    unit = Some(unit_state(properties).ok_or_else(unreadable)?);
                }
                "result" => result = Some(serde_json::from_str(value).map_err(|_| unreadable())?),
                "refused" => refused = some_text(value),
                "log" => log.push(value.to_owned()),
                _ => return Err(unreadable()),
            }
        }
        Ok(Self {
            boot_id: boot_id.ok_or(ProbeError::Missing("boot"))?,
            unit: unit.ok_or(ProbeError::Missing("unit"))?,
            result,
            refused,
            log,
        })
    }
}

/// How long work ended, or how far it is.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkResult {
    /// The hash of the input that it was for. Another hash means: not done for what is wanted now.
    pub input: String,
    /// The boot in which it ran. Work of another boot that has not ended was cut off.
    pub boot: String,
    /// 75 while it runs.
    pub rc: i64,
    pub text: String,
}

impl WorkResult {
    pub const RUNNING: i64 = 75;
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    #[error("the guest's answer ends early")]
    Incomplete,
    #[error("the guest's answer has no `{0}`")]
    Missing(&'static str),
    #[error("line {line} of the guest's answer cannot be read")]
    Line { line: usize },
}

impl Probe {
    /// Reads the output of [`super::probe`].
    pub fn parse(distro: Distro, text: &str) -> Result<Self, ProbeError> {
        let mut lines = text.lines();
        // A connection that breaks looks like a short answer. Only the last line proves that all facts are there.
        if lines.next_back() != Some("end") || !text.ends_with('\n') {
            return Err(ProbeError::Incomplete);
        }
        if lines.next() != Some("probe 1") {
            return Err(ProbeError::Missing("probe 1"));
        }
        let mut facts = Facts::default();
        for (number, line) in lines.enumerate() {
            let (key, value) = line.split_once(' ').unwrap_or((line, ""));
            facts
                .read(distro, key, value.trim())
                .ok_or(ProbeError::Line { line: number + 2 })?;
        }
        facts.complete()
    }

    /// Both values equal what the VM's config says: the UUID identifies, and only both together authorise sending a secret.
    pub fn proves(&self, uuid: &str, serial: &str) -> bool {
        !serial.is_empty() && self.smbios_uuid.eq_ignore_ascii_case(uuid) && self.smbios_serial == serial
    }

    /// Whether this server certainly has no etcd data and never had a datastore.
    ///
    /// `None` if the guest could not tell. Certificates alone are no datastore: the CA files are written before the first start.
    pub fn has_datastore(&self) -> Option<bool> {
        let places = ["server/db/etcd", "server/db/state.db", "server/cred"];
        let states = places.map(|place| self.data.get(place).copied().unwrap_or(DataState::Unknown));
        if states.contains(&DataState::Present) {
            return Some(true);
        }
        (!states.contains(&DataState::Unknown)).then_some(false)
    }

    /// Files that are absent or differ, in the order given. `None` if a file's state is unknown or was not asked for.
    pub fn outdated<'a>(&self, files: &'a [GuestFile]) -> Option<Vec<&'a GuestFile>> {
        let mut outdated = Vec::new();
        for file in files {
            match self.files.get(&file.path)? {
                FileState::Sha256(seen) if *seen == file.sha256() => {}
                FileState::Sha256(_) | FileState::Absent => outdated.push(file),
                FileState::Unknown => return None,
            }
        }
        Some(outdated)
    }

    /// The files of a running machine that must change. A config that joins through one of `servers`, or founded without one, is as it
    /// should be if all else in it is: a running member does not read that part. `None` as in [`Self::outdated`].
    pub fn changes<'a>(&self, files: &'a [GuestFile], servers: &[String]) -> Option<Changes<'a>> {
        let mut changes = Changes::default();
        for file in self.outdated(files)? {
            match self.joins.as_ref().filter(|joins| joins.rest == without_join(file)) {
                Some(joins) if joins.server.as_ref().is_none_or(|server| servers.contains(server)) => {}
                Some(_) => changes.live.push(file),
                None if file.needs_restart() => changes.restart.push(file),
                None => changes.live.push(file),
            }
        }
        Some(changes)
    }

    /// Whether the work is done for this input.
    pub fn is_done(&self, work: Work, input: &GuestFile) -> bool {
        let result = self.results.get(work.name());
        result.is_some_and(|result| result.rc == 0 && result.input == input.sha256())
    }

    /// How far the guest's clock is ahead of `now`.
    pub fn clock_offset(&self, now: Timestamp) -> SignedDuration {
        self.clock.duration_since(now)
    }

    /// Whether an etcd or API server of this machine still runs, also after its unit was stopped.
    pub fn control_plane_runs(&self) -> bool {
        !self.processes.is_empty()
    }
}

/// The hash that the probe makes of a config without the lines that say how it joins.
fn without_join(file: &GuestFile) -> String {
    use sha2::Digest;
    let is_join = |line: &&str| line.starts_with("server: ") || line.starts_with("cluster-init: ");
    let mut hash = sha2::Sha256::new();
    for line in file.content.lines().filter(|line| !is_join(line)) {
        hash.update(line);
        hash.update("\n");
    }
    hex::encode(hash.finalize())
}

/// A guest's clock may differ this much from the operator's before its start is held.
pub const CLOCK_LIMIT: SignedDuration = SignedDuration::from_secs(60);

/// What was read so far.
#[derive(Default)]
struct Facts {
    boot_id: Option<String>,
    uuid: Option<String>,
    serial: Option<String>,
    clock: Option<Timestamp>,
    hostname: Option<String>,
    cloud_init: Option<CloudInit>,
    nics: BTreeMap<String, String>,
    addresses: Vec<(String, String)>,
    default_route: Option<String>,
    free: Option<u64>,
    version: Option<ReleaseVersion>,
    binary: Option<FileState>,
    releases: BTreeSet<String>,
    files: BTreeMap<String, FileState>,
    joins: Option<JoinState>,
    restart_pending: bool,
    foreign_configs: Vec<String>,
    data: BTreeMap<String, DataState>,
    mount: Option<String>,
    units: BTreeMap<String, UnitState>,
    results: BTreeMap<&'static str, WorkResult>,
    refused: Option<String>,
    processes: BTreeSet<String>,
    firewalls: BTreeSet<String>,
    reboot_required: bool,
}

impl Facts {
    /// `None` if the line cannot be read. Unknown keys are errors: probe and reader are one program.
    fn read(&mut self, distro: Distro, key: &str, value: &str) -> Option<()> {
        match key {
            "boot" => self.boot_id = some_text(value),
            "uuid" => self.uuid = some_text(&value.to_ascii_lowercase()),
            "serial" => self.serial = some_text(value),
            "clock" => self.clock = Some(Timestamp::from_second(value.parse().ok()?).ok()?),
            "hostname" => self.hostname = some_text(value),
            "cloud-init" => {
                self.cloud_init = Some(match value {
                    "running" => CloudInit::Running,
                    "done" => CloudInit::Done,
                    "disabled" => CloudInit::Disabled,
                    _ => return None,
                });
            }
            "nic" => {
                let (name, mac) = value.split_once(' ')?;
                self.nics.insert(name.to_owned(), mac.to_ascii_lowercase());
            }
            "address" => {
                let (name, address) = value.split_once(' ')?;
                self.addresses.push((name.to_owned(), address.to_owned()));
            }
            "default-route" => self.default_route = self.default_route.take().or_else(|| some_text(value)),
            "free" => self.free = Some(value.parse().ok()?),
            _ => return self.read_installed(distro, key, value),
        }
        Some(())
    }

    fn read_installed(&mut self, distro: Distro, key: &str, value: &str) -> Option<()> {
        match key {
            // "rke2 version v1.36.3+rke2r1 (commit)". An executable that says nothing has no version.
            "version" => {
                let mut words = value.split_whitespace();
                self.version = words.find_map(|word| ReleaseVersion::parse(distro, word).ok());
            }
            "binary" => self.binary = Some(file_state(value)?),
            "release" => {
                self.releases.insert(value.to_owned());
            }
            "file" => {
                let (state, path) = value.split_once(' ')?;
                self.files.insert(path.to_owned(), file_state(state)?);
            }
            "joins" => {
                let (rest, server) = value.split_once(' ').unwrap_or((value, ""));
                let (rest, server) = (rest.to_owned(), some_text(server));
                self.joins = Some(JoinState { rest, server });
            }
            "foreign-config" => self.foreign_configs.push(value.to_owned()),
            "data" => {
                let (state, path) = value.split_once(' ')?;
                let state = match state {
                    "present" => DataState::Present,
                    "absent" => DataState::Absent,
                    "unknown" => DataState::Unknown,
                    _ => return None,
                };
                self.data.insert(path.to_owned(), state);
            }
            "mount" => self.mount = some_text(value),
            "unit" => {
                let (name, properties) = value.split_once(' ').unwrap_or((value, ""));
                self.units.insert(name.to_owned(), unit_state(properties)?);
            }
            "result" => {
                let (name, json) = value.split_once(' ')?;
                let work = Work::ALL.into_iter().find(|work| work.name() == name)?;
                self.results.insert(work.name(), serde_json::from_str(json).ok()?);
            }
            "refused" => self.refused = some_text(value),
            "process" => {
                self.processes.insert(value.to_owned());
            }
            "firewall" => {
                self.firewalls.insert(value.to_owned());
            }
            "restart-pending" => self.restart_pending = true,
            "reboot-required" => self.reboot_required = true,
            _ => return None,
        }
        Some(())
    }

    fn complete(self) -> Result<Probe, ProbeError> {
        fn there<T>(fact: Option<T>, name: &'static str) -> Result<T, ProbeError> {
            fact.ok_or(ProbeError::Missing(name))
        }
        Ok(Probe {
            boot_id: there(self.boot_id, "boot")?,
            smbios_uuid: there(self.uuid, "uuid")?,
            smbios_serial: there(self.serial, "serial")?,
            clock: there(self.clock, "clock")?,
            hostname: there(self.hostname, "hostname")?,
            cloud_init: there(self.cloud_init, "cloud-init")?,
            nics: self.nics,
            addresses: self.addresses,
            default_route: self.default_route,
            free_bytes: there(self.free, "free")?,
            version: self.version,
            binary: there(self.binary, "binary")?,
            releases: self.releases,
            files: self.files,
            joins: self.joins,
            restart_pending: self.restart_pending,
            foreign_configs: self.foreign_configs,
            data: self.data,
            mount: there(self.mount, "mount")?,
            units: self.units,
            results: self.results,
            refused: self.refused,
            processes: self.processes,
            firewalls: self.firewalls,
            reboot_required: self.reboot_required,
        })
    }
}

fn some_text(value: &str) -> Option<String> {
    (!value.is_empty()).then(|| value.to_owned())
}

fn file_state(text: &str) -> Option<FileState> {
    match text {
        "absent" => Some(FileState::Absent),
        "unknown" => Some(FileState::Unknown),
        hash if hash.len() == 64 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()) => Some(FileState::Sha256(hash.to_owned())),
        _ => None,
    }
}

/// `ActiveState=active SubState=running ...`, in systemd's order.
fn unit_state(properties: &str) -> Option<UnitState> {
    let mut state = UnitState::default();
    for word in properties.split_whitespace() {
        let (key, value) = word.split_once('=')?;
        match key {
            "ActiveState" => value.clone_into(&mut state.active),
            "SubState" => value.clone_into(&mut state.sub),
            "Result" => value.clone_into(&mut state.result),
            "NRestarts" => state.restarts = value.parse().ok()?,
            "UnitFileState" => value.clone_into(&mut state.file),
            "MainPID" => value.clone_into(&mut state.pid),
            _ => {}
        }
    }
    Some(state)
}

/// Whether `GET /cacerts` of a server answered with exactly our authority. Anything else must not be joined.
pub fn serves_our_authority(secrets: &Secrets, answer: &[u8]) -> bool {
    answer == secrets.server_ca().as_bytes()
}
