//! What must never happen, watched from the datacenter's side.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use aho_corasick::AhoCorasick;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstay_engine::{Event, MemoryFiles, StepEvent};
use mainstay_plan::Held;
use mainstay_sim::{Deed, Standing, Struck, Witness, World};
use pve_sim::{Effect, Inventory, Observer, Seen};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::stage::Stage;

/// More than any run has use for: a loop without a pause shows here.
pub const REQUESTS_PER_MINUTE: u64 = 3000;
/// What others did so short a time ago cannot be known by who acts.
const LOOK_AND_ACT: Duration = Duration::from_secs(15);
const SHORTEST_SECRET: usize = 16;

/// Watches every request and every effect, and remembers what was wrong.
pub struct Watch {
    before: Inventory,
    /// Our machines, with the address and the SMBIOS UUID that each must have.
    ours: BTreeMap<u32, (IpAddr, String)>,
    world: Weak<World>,
    secrets: AhoCorasick,
    /// Where the secrets are to lie before anything is done.
    folder: Arc<MemoryFiles>,
    began: Instant,
    seen: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    wrong: Vec<String>,
    per_minute: BTreeMap<u64, u64>,
    /// As `POST /nodes/{node}/qemu`.
    calls: BTreeSet<String>,
    may_remove: bool,
    may_restart: BTreeSet<u32>,
    leaving: BTreeSet<u32>,
    /// VMIDs of ours that a foreign VM has.
    intruders: BTreeSet<u32>,
    /// When another actor last did harm.
    harmed: Option<Instant>,
    /// Locked by a backup.
    backups: BTreeSet<u32>,
    started: BTreeSet<u32>,
    /// Releases besides the first that machines may have been made with: each has an image.
    releases: usize,
    /// Removed by another actor.
    lost: BTreeSet<u32>,
    /// Disks that other people put on or beside our machines, by name and host.
    disks: BTreeSet<(String, String)>,
    /// Those of them that Proxmox VE would destroy with our machine.
    held: BTreeSet<(u32, String)>,
    /// How many events were read already.
    heard: usize,
    /// Over every request so far, with its answer's status.
    requests: Sha256,
}

/// The first half of a hash: enough to tell runs apart.
pub fn hex(hash: &Sha256) -> String {
    hash.clone()
        .finalize()
        .iter()
        .take(8)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

impl Watch {
    pub fn set(stage: &Stage, ours: BTreeMap<u32, (IpAddr, String)>) -> Arc<Self> {
        let watch = Arc::new(Self {
            before: stage.world.datacenter().inspect(),
            ours,
            world: Arc::downgrade(&stage.world),
            secrets: AhoCorasick::new(secrets(stage)).expect("some words"),
            folder: stage.folder.clone(),
            began: Instant::now(),
            seen: Mutex::default(),
        });
        stage.world.datacenter().observe(watch.clone());
        stage.world.set_witness(watch.clone());
        watch
    }

    fn lock(&self) -> MutexGuard<'_, Memory> {
        self.seen.lock().expect("plain data")
    }

    pub fn wrong(&self, what: String) {
        self.lock().wrong.push(what);
    }

    pub fn all_wrong(&self) -> Vec<String> {
        self.lock().wrong.clone()
    }

    /// Every call that was made, as `POST /nodes/{node}/qemu`.
    pub fn calls(&self) -> BTreeSet<String> {
        self.lock().calls.clone()
    }

    /// A digest of every request so far: when, by whom, where, what, and the status of its answer.
    pub fn requests(&self) -> String {
        hex(&self.lock().requests.clone())
    }

    pub fn busiest_minute(&self) -> u64 {
        self.lock().per_minute.values().copied().max().unwrap_or_default()
    }

    /// `down` begins: from now on machines of ours may go.
    pub fn may_remove(&self) {
        self.lock().may_remove = true;
    }

    /// What is wanted of it now needs a restart.
    pub fn may_restart(&self, vmid: u32) {
        self.lock().may_restart.insert(vmid);
    }

    /// The file has another version, on the way to which lies at most one more.
    pub fn is_upgraded(&self) {
        self.lock().releases += 2;
    }

    /// It left the file.
    pub fn leaves(&self, vmid: u32) {
        self.lock().leaving.insert(vmid);
    }

    /// It is in the file, whether or not it was to go. A control plane that had left etcd already comes back by a restart.
    pub fn stays(&self, vmid: u32, control_plane: bool) -> bool {
        let mut seen = self.lock();
        let was_leaving = seen.leaving.remove(&vmid);
        if was_leaving && control_plane {
            seen.may_restart.insert(vmid);
        }
        was_leaving
    }

    /// Its destruction was begun when it was to go, and what is left of it can only go.
    pub fn may_end(&self, vmid: u32) {
        self.lock().started.remove(&vmid);
    }

    /// It was removed by another actor.
    pub fn forget(&self, vmid: u32) {
        let mut seen = self.lock();
        seen.started.remove(&vmid);
        seen.lost.insert(vmid);
    }

    pub fn lost(&self) -> BTreeSet<u32> {
        self.lock().lost.clone()
    }

    pub fn intrudes(&self, vmid: u32) {
        self.lock().intruders.insert(vmid);
    }

    pub fn intruders_gone(&self) -> BTreeSet<u32> {
        std::mem::take(&mut self.lock().intruders)
    }

    /// A disk of others. `holds`: the machine of ours that it goes with.
    pub fn turns_up(&self, volid: &str, host: &str, holds: Option<u32>) {
        let mut seen = self.lock();
        seen.disks.insert((volid.to_owned(), host.to_owned()));
        seen.held.extend(holds.map(|vmid| (vmid, volid.to_owned())));
    }

    /// An administrator destroyed something: those that went with it are not missed.
    pub fn count_disks(&self, stage: &Stage) {
        let now = stage.world.datacenter().inspect();
        let mut seen = self.lock();
        seen.disks.retain(|disk| is_there(&now, disk));
        let left: BTreeSet<String> = seen.disks.iter().map(|(volid, _)| volid.clone()).collect();
        seen.held
            .retain(|(vmid, volid)| left.contains(volid) && now.vms.contains_key(vmid));
    }

    /// Disks of others have its number, or hang on it.
    pub fn is_beside_others(&self, vmid: u32) -> bool {
        let seen = self.lock();
        let is_its = |(volid, _): &(String, String)| volid.contains(&format!(":vm-{vmid}-")) || volid.contains("-pvc-");
        seen.disks.iter().any(is_its)
    }

    pub fn holds(&self, vmid: u32, volid: &str) -> bool {
        self.lock().held.contains(&(vmid, volid.to_owned()))
    }

    pub fn holds_any(&self) -> bool {
        !self.lock().held.is_empty()
    }

    pub fn hold_nothing(&self) {
        self.lock().held.clear();
    }

    /// It says which disk of others keeps a machine from going.
    pub fn is_held_by_disks(&self, held: &Held) -> bool {
        let told = |(_, volid): &(u32, String)| held.reason.contains(&format!("--with-disk {volid}"));
        held.what == "remove" && self.lock().held.iter().any(told)
    }

    /// After `down`: a machine with a disk of others is still there, and the disk is named.
    pub fn holding_stays(&self, stage: &Stage, held: &[Held]) {
        let now = stage.world.datacenter().inspect();
        let holding = self.lock().held.clone();
        for (vmid, volid) in holding {
            if !now.vms.contains_key(&vmid) {
                self.wrong(format!("VM {vmid} went with {volid} of others on it"));
            }
            if !held.iter().any(|held| held.reason.contains(&format!("--with-disk {volid}"))) {
                self.wrong(format!("{volid} of others on VM {vmid} was not named: {held:?}"));
            }
        }
    }

    /// Another actor does harm.
    pub fn harmed(&self) {
        self.lock().harmed = Some(Instant::now());
    }

    pub fn is_backed_up(&self, vmid: u32) {
        self.lock().backups.insert(vmid);
    }

    pub fn backups_over(&self) -> BTreeSet<u32> {
        std::mem::take(&mut self.lock().backups)
    }

    fn no_secret(&self, place: &str, text: &str) {
        if self.secrets.is_match(text) {
            self.wrong(format!("a secret in {place}"));
        }
    }

    /// A look at everything that lasts: two machines never share what must be one's own, and nothing secret was kept.
    pub fn look(&self, stage: &Stage) {
        let now = stage.world.datacenter().inspect();
        self.no_twins(&now);
        self.strangers_as_before(&now);
        for task in &now.tasks {
            self.no_secret("a task log", &task.log.join("\n"));
        }
        for (vmid, vm) in &now.vms {
            self.no_secret(
                &format!("the config of VM {vmid}"),
                &format!("{:?} {:?}", vm.config, vm.pending),
            );
        }
        for (path, content) in stage.disk.files().into_iter().chain(stage.folder.files()) {
            self.no_secret(&path.display().to_string(), &String::from_utf8_lossy(&content));
        }
        let told = stage.told.lock().expect("reads");
        let heard = std::mem::replace(&mut self.lock().heard, told.len());
        for told in told.iter().skip(heard) {
            self.no_secret("an event", &format!("{told:?}"));
            if let Event::Step {
                now: StepEvent::Wait { what, .. },
                ..
            } = &told.event
                && what.trim().is_empty()
            {
                self.wrong("a wait that does not say why".into());
            }
        }
        drop(told);
        let foundings = stage.world.etcd_foundings();
        if foundings > 1 {
            self.wrong(format!("etcd was bootstrapped {foundings} times"));
        }
    }

    fn no_twins(&self, now: &Inventory) {
        let mut seen: BTreeMap<String, u32> = BTreeMap::new();
        for (vmid, vm) in &now.vms {
            let mac = vm.config.get("net0").and_then(|net| net.split(',').next());
            let address = vm
                .config
                .get("ipconfig0")
                .and_then(|ip| ip.split(',').find(|part| part.starts_with("ip=")));
            for own in [mac, address].into_iter().flatten() {
                if let Some(other) = seen.insert(own.to_owned(), *vmid) {
                    self.wrong(format!("VMs {other} and {vmid} share {own}"));
                }
            }
        }
    }

    fn strangers_as_before(&self, now: &Inventory) {
        let gone: Vec<_> = self
            .lock()
            .disks
            .iter()
            .filter(|disk| !is_there(now, disk))
            .cloned()
            .collect();
        for (volid, host) in gone {
            self.wrong(format!("{volid} of others on {host} is gone"));
        }
        for (vmid, before) in &self.before.vms {
            let same = now
                .vms
                .get(vmid)
                .is_some_and(|vm| vm.digest == before.digest && vm.host == before.host && vm.config == before.config);
            if !same {
                self.wrong(format!("VM {vmid} of a stranger is not as it was"));
            }
        }
        for volume in &self.before.volumes {
            let same = |other: &&pve_sim::VolumeView| {
                (&other.volid, &other.host, other.size) == (&volume.volid, &volume.host, volume.size)
            };
            if now.volumes.iter().find(same).is_none() {
                self.wrong(format!("{} of a stranger is not as it was", volume.volid));
            }
        }
    }

    /// After `down`: nothing of ours, no machine and no disk, but for those that it named because nothing proves them to be ours.
    pub fn nothing_of_ours(&self, stage: &Stage, held: &[Held]) {
        let now = stage.world.datacenter().inspect();
        for vmid in now.vms.keys().filter(|vmid| self.ours.contains_key(vmid)) {
            self.wrong(format!("VM {vmid} is still there after down"));
        }
        // By this run, or by the one that removed its machine: afterwards the file does not know the VMID any more.
        let told = stage.told.lock().expect("reads");
        let planned = told.iter().filter_map(|told| match &told.event {
            Event::Planned(plan) => Some(&plan.held),
            _ => None,
        });
        let named: String = planned
            .flatten()
            .chain(held)
            .map(|held| format!("{}\n", held.reason))
            .collect();
        drop(told);
        let is_named = |volid: &str| named.contains(&format!("pvesm free {volid}\n"));
        for volume in now
            .volumes
            .iter()
            .filter(|v| v.vmid.is_some_and(|vmid| self.ours.contains_key(&vmid)) && !is_named(&v.volid))
            .filter(|v| !self.was_there(&v.volid, v.host.as_deref().unwrap_or_default()))
        {
            self.wrong(format!("{} is still there after down", volume.volid));
        }
        self.only_images_are_new(&now);
        if !stage.disk.files().is_empty() {
            self.wrong("a journal is left after down".to_owned());
        }
    }

    /// `down` keeps images unless asked: one on each host, and nothing half downloaded.
    fn only_images_are_new(&self, now: &Inventory) {
        let mut images: BTreeMap<Option<String>, usize> = BTreeMap::new();
        for volume in &now.volumes {
            let known = self.was_there(&volume.volid, volume.host.as_deref().unwrap_or_default());
            let ours = volume.vmid.is_some_and(|vmid| self.ours.contains_key(&vmid));
            if known || ours {
                continue;
            }
            if !volume.volid.contains(":import/talos-") {
                self.wrong(format!("{} is left after down", volume.volid));
            }
            *images.entry(volume.host.clone()).or_default() += 1;
        }
        let releases = self.lock().releases + 1;
        if images.values().any(|count| *count > releases) {
            self.wrong(format!("more than one image on a host: {images:?}"));
        }
    }

    /// The SMBIOS UUID that our machine must have.
    pub fn uuid(&self, vmid: u32) -> String {
        self.ours.get(&vmid).map(|(_, uuid)| uuid.clone()).unwrap_or_default()
    }

    pub fn is_strange(&self, vmid: u32) -> bool {
        self.before.vms.contains_key(&vmid) || !self.ours.contains_key(&vmid) || self.lock().intruders.contains(&vmid)
    }

    /// A machine that etcd cannot do without is not sent away by us, unless everything goes.
    fn no_quorum_lost(&self, what: &str, vmid: u32, etcd: Option<Standing>) {
        let memory = self.lock();
        let unknowable = memory.harmed.is_some_and(|at| at.elapsed() < LOOK_AND_ACT);
        let may = memory.may_remove || unknowable;
        drop(memory);
        if etcd.is_some_and(|standing| standing.is_decisive()) && !may {
            self.wrong(format!("{what} of {vmid}, without which etcd has no majority: {etcd:?}"));
        }
    }

    fn standing(&self, vmid: u32) -> Option<Standing> {
        let (address, _) = self.ours.get(&vmid)?;
        self.world.upgrade()?.etcd_standing(*address)
    }

    fn judge(&self, effect: &Effect) -> Option<String> {
        let strange = |vmid: &u32| self.is_strange(*vmid).then(|| format!("{effect:?} of a stranger"));
        match effect {
            Effect::VmStarted { vmid } => {
                // Without a disk there is no life.
                let now = self.world.upgrade().map(|world| world.datacenter().inspect());
                let vm = now.as_ref().and_then(|now| now.vms.get(vmid));
                if vm.is_none_or(|vm| vm.config.contains_key("scsi0")) {
                    self.lock().started.insert(*vmid);
                }
                strange(vmid)
            }
            Effect::VmRemoved { vmid } | Effect::VmStopped { vmid } => {
                let memory = self.lock();
                let stop = matches!(effect, Effect::VmStopped { .. });
                let wanted = memory.leaving.contains(vmid) || stop && memory.may_restart.contains(vmid);
                let early = !memory.may_remove && memory.started.contains(vmid) && !wanted;
                drop(memory);
                self.no_quorum_lost("the stop", *vmid, self.standing(*vmid));
                strange(vmid).or_else(|| early.then(|| format!("{effect:?} during up, of a machine that has lived")))
            }
            Effect::VmCreated { vmid, .. }
            | Effect::VmConfigured { vmid, .. }
            | Effect::VmReset { vmid }
            | Effect::VmMoved { vmid, .. }
            | Effect::VmTemplated { vmid } => strange(vmid),
            Effect::VolumeCreated { volid, host } | Effect::VolumeRemoved { volid, host } => {
                self.was_there(volid, host).then(|| format!("{effect:?} of a stranger"))
            }
            Effect::VolumeResized { volid, .. } => {
                let theirs = self.before.volumes.iter().any(|volume| volume.volid == *volid);
                theirs.then(|| format!("{effect:?} of a stranger"))
            }
            _ => Some(format!("{effect:?}, which no request asked for")),
        }
    }

    fn was_there(&self, volid: &str, host: &str) -> bool {
        if self.lock().disks.contains(&(volid.to_owned(), host.to_owned())) {
            return true;
        }
        let at = |volume: &pve_sim::VolumeView| volume.host.as_deref().is_none_or(|place| place == host);
        self.before.volumes.iter().any(|volume| volume.volid == volid && at(volume))
    }
}

fn is_there(now: &Inventory, (volid, host): &(String, String)) -> bool {
    let is_it = |volume: &pve_sim::VolumeView| volume.volid == *volid && volume.host.as_deref().is_none_or(|at| at == host);
    now.volumes.iter().any(is_it)
}

impl Observer for Watch {
    fn request(&self, seen: &Seen) {
        let minute = self.began.elapsed().as_secs() / 60;
        let mut memory = self.lock();
        let line = format!(
            "{:?} {} {:?} {} {} {} {:?}\n",
            self.began.elapsed(),
            seen.host,
            seen.by,
            seen.verb,
            seen.path,
            seen.params,
            seen.status
        );
        memory.requests.update(line);
        let count = memory.per_minute.entry(minute).or_default();
        *count += 1;
        let too_many = *count == REQUESTS_PER_MINUTE;
        if let Some(template) = seen.template {
            memory.calls.insert(format!("{} {template}", seen.verb));
        }
        drop(memory);
        if too_many {
            self.wrong(format!("more than {REQUESTS_PER_MINUTE} requests in minute {minute}"));
        }
        self.no_secret(
            &format!("{} {}", seen.verb, seen.path),
            &format!("{} {} {} {}", seen.path, seen.params, seen.reason, seen.answer),
        );
    }

    fn effect(&self, by: &str, effect: &Effect) {
        // What an administrator does is his own affair.
        if !by.contains('!') {
            return;
        }
        if self.folder.files().is_empty() {
            self.wrong(format!("{effect:?} before the secrets were kept"));
        }
        if let Some(wrong) = self.judge(effect) {
            self.wrong(wrong);
        }
    }
}

impl Witness for Watch {
    fn deed(&self, machine: &Struck, deed: Deed) {
        let uuid = self.ours.get(&machine.vmid).map(|(_, uuid)| uuid);
        if self.is_strange(machine.vmid) || uuid != Some(&machine.uuid) {
            self.wrong(format!(
                "{deed:?} to a machine of a stranger: {} {}",
                machine.vmid, machine.uuid
            ));
        }
        if deed == Deed::Away {
            self.no_quorum_lost("the restart", machine.vmid, machine.etcd);
        }
    }
}

/// Every secret in each form in which it could show: as it is, and keys also as PEM.
fn secrets(stage: &Stage) -> Vec<String> {
    let bundle = stage.secrets.to_yaml();
    let secret = |line: &str| -> Option<String> {
        let (key, value) = line.trim().split_once(": ")?;
        let kept = ["secret", "bootstraptoken", "secretboxencryptionsecret", "token", "key"].contains(&key);
        kept.then(|| value.trim_matches('"').to_owned())
    };
    let values: Vec<String> = bundle.lines().filter_map(secret).collect();
    assert!(values.len() >= 9, "the bundle holds five keys and four secrets");
    let pem = |value: &String| -> Vec<String> {
        let decoded = STANDARD.decode(value).ok().and_then(|bytes| String::from_utf8(bytes).ok());
        let lines = decoded
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| !line.starts_with("-----"));
        lines.map(str::to_owned).collect()
    };
    let token = stage
        .world
        .token()
        .and_then(|token| Some(token.split_once('=')?.1.to_owned()));
    let all = values.iter().cloned().chain(values.iter().flat_map(pem)).chain(token);
    all.filter(|secret| secret.len() >= SHORTEST_SECRET).collect()
}
