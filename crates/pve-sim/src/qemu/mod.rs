//! Virtual machines.

mod agent;
mod check;
mod clone;
mod cloudinit;
mod conf;
mod config;
mod create;
mod delete;
mod disks;
mod drive;
mod hotplug;
mod migrate;
mod move_disk;
mod pending;
mod power;
mod resize;
mod runtime;
mod snapshot;
mod status;
mod template;

use tokio::time::Instant;

use crate::datacenter::Answer;
use crate::die::Die;
use crate::dispatch::Call;
use crate::locks::{Held, Wanted};
use crate::observe::Effect;
use crate::state::no_config;
use crate::tasks::Job;

pub use conf::{Conf, Section};
pub(crate) use drive::is_drive;
pub use runtime::Running;
pub(crate) use runtime::{kill, start_initial, start_now};
pub(crate) use status::{Broadcast, resource};

/// A VM: where it lives, its config, and its process while it runs.
pub struct Vm {
    pub vmid: u32,
    pub node: String,
    pub conf: Conf,
    pub running: Option<Running>,
    /// What `pvestatd` last told about it, and in which round that was.
    broadcast: Option<Broadcast>,
    round: u64,
    /// When its process ended; `qm cleanup` follows shortly after.
    pub stopped_at: Option<Instant>,
}

impl Vm {
    pub(crate) fn new(vmid: u32, node: &str, conf: Conf, round: u64) -> Self {
        Self {
            vmid,
            node: node.into(),
            conf,
            running: None,
            broadcast: None,
            round,
            stopped_at: None,
        }
    }

    /// One that was there before the simulation began, known to everybody.
    pub(crate) fn existing(vmid: u32, node: &str, config: Section) -> Self {
        let mut vm = Self::new(vmid, node, Conf::new(config), 0);
        vm.broadcast = Some(status::broadcast_of(&vm));
        vm
    }

    /// Brings the broadcast up to the last round; to be called before each change.
    pub(crate) fn settle(&mut self, round: u64) {
        if self.round < round {
            self.broadcast = Some(status::broadcast_of(self));
            self.round = round;
        }
    }

    /// What the cluster knows about it in this round.
    pub(crate) fn broadcast(&self, round: u64) -> Option<Broadcast> {
        if self.round < round {
            Some(status::broadcast_of(self))
        } else {
            self.broadcast.clone()
        }
    }

    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }
}

/// Bytes from `10G`, `512MiB`, `1.5T` or plain bytes.
pub fn parse_size(text: &str) -> Option<u64> {
    let text = text
        .strip_suffix("iB")
        .filter(|rest| rest.ends_with(['K', 'M', 'G', 'T']))
        .unwrap_or(text);
    let (number, unit) = match text.chars().last()? {
        'K' => (&text[..text.len() - 1], 1_u64 << 10),
        'M' => (&text[..text.len() - 1], 1 << 20),
        'G' => (&text[..text.len() - 1], 1 << 30),
        'T' => (&text[..text.len() - 1], 1 << 40),
        _ => (text, 1),
    };
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    match number.split_once('.') {
        None if digits(number) => number.parse::<u64>().ok()?.checked_mul(unit),
        Some((whole, part)) if digits(whole) && digits(part) => {
            number.parse::<f64>().ok().map(|value| (value * unit as f64) as u64)
        }
        _ => None,
    }
}

/// The largest unit that divides exactly.
pub fn format_size(bytes: u64) -> String {
    let mut value = bytes;
    for unit in ["", "K", "M", "G"] {
        if !value.is_multiple_of(1024) {
            return format!("{value}{unit}");
        }
        value /= 1024;
    }
    format!("{value}T")
}

impl Job {
    /// Takes a VM's lock file.
    pub(crate) async fn lock_vm(&self, vmid: u32, patience: u64) -> Result<Held, Die> {
        self.dc.locks().take(self, &Wanted::vm(&self.host, vmid, patience)).await
    }

    /// A copy of a VM's config.
    pub(crate) fn load(&self, vmid: u32) -> Result<Conf, Die> {
        self.dc.state().vm(&self.host, vmid).map(|vm| vm.conf.clone())
    }

    /// Writes a VM's config, which needs quorum.
    pub(crate) fn save(&self, vmid: u32, mut conf: Conf) -> Result<(), Die> {
        let round = self.dc.round();
        conf.settle()?;
        let mut state = self.dc.state();
        if !state.quorate(&self.host) {
            let file = format!(
                "/etc/pve/nodes/{}/qemu-server/{vmid}.conf.tmp.{}",
                self.host,
                state.next_pid()
            );
            return Err(Die::new(format!("unable to open file '{file}' - Permission denied")));
        }
        let vm = state.vm_mut(vmid, round).ok_or_else(|| no_config(&self.host, vmid))?;
        let keys = changed_keys(&vm.conf, &conf);
        vm.conf = conf;
        state.follow_cards();
        drop(state);
        if !keys.is_empty() {
            self.dc.tell(self, &Effect::VmConfigured { vmid, keys });
        }
        Ok(())
    }

    pub(crate) fn is_running(&self, vmid: u32) -> bool {
        self.dc
            .state()
            .vms
            .get(&vmid)
            .is_some_and(|vm| vm.node == self.host && vm.is_running())
    }

    /// Only the password session of root may skip locks and the like.
    pub(crate) fn root_only(&self, params: &crate::schema::Params, names: &[&str]) -> Result<(), Die> {
        match names.iter().find(|name| params.has(name) && params.get(name) != Some("0")) {
            Some(name) if !self.auth.is_root() => Err(Die::parameter(*name, "Only root may use this option.")),
            _ => Ok(()),
        }
    }
}

/// Hardware address and bridge of every card.
pub(crate) fn cards(conf: &Conf) -> Vec<(String, String)> {
    let cards = conf.now.iter().filter(|(key, _)| drive::is_net(key));
    let card = |(key, value): (&String, &String)| {
        let net = drive::Net::parse(key, value).ok()?;
        Some((net.get("macaddr")?.to_string(), net.get("bridge")?.to_string()))
    };
    cards.filter_map(card).collect()
}

/// The volumes that a replication job copies: local, owned, not left out, and on a storage that can.
pub(crate) fn volumes_to_replicate(state: &crate::state::State, vmid: u32) -> Result<Vec<String>, Die> {
    let mut found = Vec::new();
    let Some(vm) = state.vms.get(&vmid) else { return Ok(found) };
    for drive in check::drives_of(&vm.conf.now)? {
        let Some((id, name)) = drive.volume() else { continue };
        let storage = state.storage(id)?;
        let left_out = drive.is_cdrom() || drive.get("replicate") == Some("0");
        if left_out || storage.shared || name.owner() != Some(vmid) {
            continue;
        }
        if storage.kind != "zfspool" {
            return Err(Die::new(format!("missing replicate feature on volume '{}'", drive.file())));
        }
        found.push(drive.file().to_string());
    }
    Ok(found)
}

fn changed_keys(old: &Conf, new: &Conf) -> Vec<String> {
    let differs = |key: &&String| old.now.get(*key) != new.now.get(*key);
    let mut keys: Vec<String> = old.now.keys().chain(new.now.keys()).filter(differs).cloned().collect();
    keys.sort();
    keys.dedup();
    keys
}

/// Calls below `/nodes/{node}/qemu`.
pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    let below = template.strip_prefix("/nodes/{node}/qemu").unwrap_or_default();
    let rest = below.strip_prefix("/{vmid}").unwrap_or(below);
    if below.is_empty() {
        return match verb {
            "GET" => status::list(&call),
            _ => create::create(call).await,
        };
    }
    match (verb, rest) {
        ("DELETE", "") => delete::delete(call).await,
        ("GET", "/config") => config::get(&call),
        ("PUT", "/config") => config::put(call).await,
        ("POST", "/config") => config::post(call).await,
        ("GET", "/pending") => config::pending(&call),
        ("GET", "/cloudinit") => cloudinit::pending(&call),
        ("PUT", "/cloudinit") => cloudinit::regenerate(&call).await,
        ("GET", "/cloudinit/dump") => cloudinit::dump(&call),
        ("GET", "/status/current") => status::current(&call),
        ("POST", "/clone") => clone::clone(call).await,
        ("POST", "/template") => template::template(call).await,
        ("PUT", "/resize") => resize::resize(call).await,
        ("PUT", "/unlink") => config::unlink(call).await,
        ("GET" | "POST", "/migrate") => migrate::handle(call).await,
        ("POST", "/move_disk") => move_disk::move_disk(call).await,
        ("GET", "/feature") => snapshot::feature(&call),
        _ if rest.starts_with("/status/") => power::handle(call).await,
        ("POST", "/agent") => agent::handle(call).await,
        _ if rest.starts_with("/agent/") => agent::handle(call).await,
        _ if rest.starts_with("/firewall") => crate::firewall::handle(call).await,
        _ if rest.starts_with("/snapshot") => snapshot::handle(call).await,
        _ => call.not_simulated(),
    }
}

#[cfg(test)]
mod tests {
    use super::{format_size, parse_size};

    #[test]
    fn sizes_are_written_in_the_largest_exact_unit() {
        for (bytes, text) in [
            (540_672, "528K"),
            (1 << 30, "1G"),
            (1034 << 20, "1034M"),
            (1_572_966_401, "1572966401"),
            (0, "0T"),
            (4 << 20, "4M"),
        ] {
            assert_eq!(format_size(bytes), text);
        }
        assert_eq!(parse_size("3.5G"), Some(3_758_096_384));
        assert_eq!(parse_size("x"), None);
    }
}
