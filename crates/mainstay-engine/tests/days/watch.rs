//! What must never happen, watched from the datacenter's side.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use pve_sim::{Effect, Inventory, Observer, Seen};
use tokio::time::Instant;

use crate::stage::Stage;

/// More than any run has use for: a loop without a pause shows here.
pub const REQUESTS_PER_MINUTE: u64 = 3000;
const SHORTEST_SECRET: usize = 16;

/// Watches every request and every effect, and remembers what was wrong.
pub struct Watch {
    before: Inventory,
    ours: BTreeSet<u32>,
    secrets: Vec<String>,
    began: Instant,
    seen: Mutex<Memory>,
}

#[derive(Default)]
struct Memory {
    wrong: Vec<String>,
    per_minute: BTreeMap<u64, u64>,
    /// Calls that change something, as `POST /nodes/{node}/qemu`.
    changing: BTreeSet<String>,
    may_remove: bool,
    started: BTreeSet<u32>,
    /// How many events were read already.
    heard: usize,
}

impl Watch {
    pub fn set(stage: &Stage, ours: BTreeSet<u32>) -> Arc<Self> {
        let watch = Arc::new(Self {
            before: stage.world.datacenter().inspect(),
            ours,
            secrets: secrets(stage),
            began: Instant::now(),
            seen: Mutex::default(),
        });
        stage.world.datacenter().observe(watch.clone());
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

    pub fn changing_calls(&self) -> BTreeSet<String> {
        self.lock().changing.clone()
    }

    pub fn busiest_minute(&self) -> u64 {
        self.lock().per_minute.values().copied().max().unwrap_or_default()
    }

    /// `down` begins: from now on machines of ours may go.
    pub fn may_remove(&self) {
        self.lock().may_remove = true;
    }

    fn no_secret(&self, place: &str, text: &str) {
        if self.secrets.iter().any(|secret| text.contains(secret.as_str())) {
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
        for (path, content) in stage.disk.files() {
            self.no_secret(&path.display().to_string(), &String::from_utf8_lossy(&content));
        }
        let told = stage.told.lock().expect("reads");
        let heard = std::mem::replace(&mut self.lock().heard, told.len());
        for told in told.iter().skip(heard) {
            self.no_secret("an event", &format!("{told:?}"));
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

    /// After `down`: nothing of ours, no machine and no disk.
    pub fn nothing_of_ours(&self, stage: &Stage) {
        let now = stage.world.datacenter().inspect();
        for vmid in now.vms.keys().filter(|vmid| self.ours.contains(vmid)) {
            self.wrong(format!("VM {vmid} is still there after down"));
        }
        for volume in now
            .volumes
            .iter()
            .filter(|v| v.vmid.is_some_and(|vmid| self.ours.contains(&vmid)))
        {
            self.wrong(format!("{} is still there after down", volume.volid));
        }
        if !stage.disk.files().is_empty() {
            self.wrong("a journal is left after down".to_owned());
        }
    }

    fn is_strange(&self, vmid: u32) -> bool {
        self.before.vms.contains_key(&vmid) || !self.ours.contains(&vmid)
    }

    fn judge(&self, effect: &Effect) -> Option<String> {
        let strange = |vmid: &u32| self.is_strange(*vmid).then(|| format!("{effect:?} of a stranger"));
        match effect {
            Effect::VmStarted { vmid } => {
                self.lock().started.insert(*vmid);
                strange(vmid)
            }
            Effect::VmRemoved { vmid } | Effect::VmStopped { vmid } => {
                let memory = self.lock();
                let early = !memory.may_remove && memory.started.contains(vmid);
                drop(memory);
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
            _ => Some(format!("{effect:?}, which nobody asked for")),
        }
    }

    fn was_there(&self, volid: &str, host: &str) -> bool {
        let at = |volume: &pve_sim::VolumeView| volume.host.as_deref().is_none_or(|place| place == host);
        self.before.volumes.iter().any(|volume| volume.volid == volid && at(volume))
    }
}

impl Observer for Watch {
    fn request(&self, seen: &Seen) {
        let minute = self.began.elapsed().as_secs() / 60;
        let mut memory = self.lock();
        let count = memory.per_minute.entry(minute).or_default();
        *count += 1;
        let too_many = *count == REQUESTS_PER_MINUTE;
        if let Some(template) = seen.template.filter(|_| seen.verb != "GET") {
            memory.changing.insert(format!("{} {template}", seen.verb));
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
        if by.contains('!')
            && let Some(wrong) = self.judge(effect)
        {
            self.wrong(wrong);
        }
    }
}

/// Every secret in each form in which it could show: as it is, and keys also as PEM.
fn secrets(stage: &Stage) -> Vec<String> {
    let bundle = stage.secrets.to_talosctl_yaml();
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
