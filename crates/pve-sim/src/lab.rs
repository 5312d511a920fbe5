//! What happens to a datacenter out of band: an administrator's hand, a crash, a cut cable.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::access::{Auth, ROOT};
use crate::datacenter::Datacenter;
use crate::guest::Platter;
use crate::locks::Wanted;
use crate::qemu::{self, Conf, Vm};
use crate::storage::{Volume, parse_volid};
use crate::tasks::Job;

/// Acts on a datacenter without going through its API.
pub struct Lab<'a>(pub(crate) &'a Datacenter);

impl Datacenter {
    pub fn lab(&self) -> Lab<'_> {
        Lab(self)
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the laboratory knows no action `{0}`")]
pub struct UnknownAction(String);

impl Lab<'_> {
    /// An action of a recorded scenario: name and arguments.
    pub async fn act(&self, words: &[&str]) -> Result<(), UnknownAction> {
        let seconds = |text: &str| Duration::from_secs_f64(text.parse().unwrap_or(0.0));
        let vmid = |text: &str| text.parse().unwrap_or(0);
        match words {
            ["set-lock", id, lock] => self.set_lock(vmid(id), Some(lock)),
            ["clear-lock", id] => self.set_lock(vmid(id), None),
            ["hold-flock", id, time] => self.hold_vm_lock(vmid(id), seconds(time)).await,
            ["hold-storage-lock", storage, time] => self.hold_storage_lock("pve1", storage, seconds(time)).await,
            ["kill-vm", id] => self.kill_vm(vmid(id)),
            ["rm-volume", file] => self.remove_volume("pve1", &format!("vmstore:{file}")),
            ["proxy-down", node] => self.set_proxy(node, false),
            ["proxy-up", node] => self.set_proxy(node, true),
            ["freeze", node] => self.set_frozen(node, true),
            ["thaw", node] => self.set_frozen(node, false),
            ["power-off", node] => self.set_online(node, false),
            ["power-on", node] => self.set_online(node, true),
            ["take-space", storage, bytes] => self.take_space(storage, bytes.parse().unwrap_or(0)),
            ["hold-cluster-lock", name, time] => self.hold(Wanted::cluster(name), seconds(time)).await,
            ["link-down"] => self.cut_links(),
            ["link-up"] => self.join_links(),
            _ => return Err(UnknownAction(words.join(" "))),
        }
        Ok(())
    }

    fn change(&self, vmid: u32, act: impl FnOnce(&mut Vm)) {
        let round = self.0.round();
        if let Some(vm) = self.0.state().vm_mut(vmid, round) {
            act(vm);
        }
    }

    fn edit(&self, vmid: u32, act: impl FnOnce(&mut Conf)) {
        self.change(vmid, |vm| {
            act(&mut vm.conf);
            // What an administrator writes by hand is read like anything else.
            let _ = vm.conf.settle();
        });
    }

    /// Writes or removes `lock:` in a VM's config.
    pub fn set_lock(&self, vmid: u32, lock: Option<&str>) {
        self.edit(vmid, |conf| match lock {
            Some(lock) => drop(conf.now.insert("lock".into(), lock.into())),
            None => drop(conf.now.remove("lock")),
        });
    }

    /// Sets config values by hand.
    pub fn set_config(&self, vmid: u32, key: &str, value: &str) {
        self.edit(vmid, |conf| drop(conf.now.insert(key.into(), value.into())));
    }

    /// Takes a config value away by hand.
    pub fn unset_config(&self, vmid: u32, key: &str) {
        self.edit(vmid, |conf| drop(conf.now.remove(key)));
    }

    /// Sets a value that waits for a full restart, by hand.
    pub fn set_pending(&self, vmid: u32, key: &str, value: &str) {
        self.edit(vmid, |conf| drop(conf.pending.insert(key.into(), value.into())));
    }

    /// Holds a VM's lock file for a while, as another process would.
    pub async fn hold_vm_lock(&self, vmid: u32, time: Duration) {
        let host = self
            .0
            .state()
            .vms
            .get(&vmid)
            .map_or_else(|| "pve1".to_string(), |vm| vm.node.clone());
        self.hold(Wanted::vm(&host, vmid, 0), time).await;
    }

    pub async fn hold_storage_lock(&self, host: &str, storage: &str, time: Duration) {
        let shared = self.0.state().storages.get(storage).is_some_and(|s| s.shared);
        self.hold(Wanted::storage(host, storage, shared), time).await;
    }

    async fn hold(&self, wanted: Wanted, time: Duration) {
        let held = self.0.locks().hold(&wanted).await;
        tokio::spawn(async move {
            tokio::time::sleep(time).await;
            drop(held);
        });
    }

    /// SIGKILL to the QEMU process.
    pub fn kill_vm(&self, vmid: u32) {
        qemu::kill(self.0, vmid);
    }

    /// Powers a VM on as an administrator would, at once.
    pub fn start_vm(&self, vmid: u32) {
        let host = self.0.state().vms.get(&vmid).map(|vm| vm.node.clone());
        if let Some(host) = host {
            qemu::start_now(&Job::request(self.0, &host, &Auth::user(ROOT)), vmid);
        }
    }

    /// A VM that no request created.
    pub fn create_vm(&self, vmid: u32, host: &str, config: BTreeMap<String, String>) {
        let vm = Vm::new(vmid, host, Conf::new(config), self.0.round());
        self.0.state().vms.insert(vmid, vm);
    }

    /// Takes a VM's config away; its volumes stay.
    pub fn forget_vm(&self, vmid: u32) {
        self.kill_vm(vmid);
        let removed = self.0.state().vms.remove(&vmid);
        drop(removed);
    }

    /// Has HA manage a VM.
    pub fn add_to_ha(&self, vmid: u32, state: &str) {
        self.0.state().ha.add(vmid, state);
    }

    /// Destroys a VM with all its volumes.
    pub fn destroy_vm(&self, vmid: u32) {
        self.forget_vm(vmid);
        let mut state = self.0.state();
        let own =
            |(place, volume): (&str, &Volume)| (volume.vmid == Some(vmid)).then(|| (place.to_owned(), volume.volid.clone()));
        let gone: Vec<(String, String)> = state.volumes.all().filter_map(own).collect();
        for (place, volid) in gone {
            state.volumes.remove(&place, &volid);
        }
    }

    /// Moves a VM as HA would have done, with its volumes.
    pub fn move_vm(&self, vmid: u32, to: &str) {
        let from = self.0.state().vms.get(&vmid).map(|vm| vm.node.clone()).unwrap_or_default();
        self.change(vmid, |vm| vm.node = to.into());
        let mut state = self.0.state();
        let volumes: Vec<String> = state
            .volumes
            .all()
            .filter(|(place, v)| *place == from && v.vmid == Some(vmid))
            .map(|(_, v)| v.volid.clone())
            .collect();
        for volid in volumes {
            if let Some(volume) = state.volumes.remove(&from, &volid) {
                state.volumes.insert(to, volume);
            }
        }
    }

    /// A volume that is put on a storage by hand, with `pvesm alloc` or by another program.
    pub fn add_volume(&self, host: &str, volid: &str, size: u64) {
        let Ok((id, name)) = parse_volid(volid) else { return };
        let mut state = self.0.state();
        let place = state.place(id, host).to_string();
        let volume = Volume::image(
            volid,
            name.owner().unwrap_or_default(),
            "raw",
            size,
            self.0.epoch(),
            Platter::default(),
        );
        state.volumes.insert(&place, volume);
    }

    /// A file that ends early, as a download leaves it that was broken off. Says whether the file is there.
    pub fn cut_file(&self, host: &str, volid: &str, size: u64) -> bool {
        let mut state = self.0.state();
        let place = state.place(volid.split(':').next().unwrap_or_default(), host).to_string();
        let Some(volume) = state.volumes.get_mut(&place, volid) else {
            return false;
        };
        (volume.file_size, volume.used) = (size, size);
        true
    }

    pub fn remove_volume(&self, host: &str, volid: &str) {
        let mut state = self.0.state();
        let place = state.place(volid.split(':').next().unwrap_or_default(), host).to_string();
        state.volumes.remove(&place, volid);
    }

    /// Sets an option of the datacenter.
    pub fn set_option(&self, key: &str, value: &str) {
        self.0.state().options.insert(key.into(), value.into());
    }

    /// Bytes on a storage that others take, so that it fills up.
    pub fn take_space(&self, storage: &str, bytes: u64) {
        if let Some(storage) = self.0.state().storages.get_mut(storage) {
            storage.taken = bytes;
        }
    }

    pub fn set_proxy(&self, host: &str, up: bool) {
        if let Some(node) = self.0.state().nodes.get_mut(host) {
            node.proxy = up;
        }
    }

    /// A host whose API hangs: connections are made, answers never come.
    pub fn set_frozen(&self, host: &str, frozen: bool) {
        if let Some(node) = self.0.state().nodes.get_mut(host) {
            node.frozen = frozen;
        }
    }

    /// Switches a host off (its VMs die with it) or on.
    pub fn set_online(&self, host: &str, online: bool) {
        let vms: Vec<u32> = self
            .0
            .state()
            .vms
            .values()
            .filter(|vm| vm.node == host)
            .map(|vm| vm.vmid)
            .collect();
        if !online {
            vms.into_iter().for_each(|vmid| self.kill_vm(vmid));
        }
        if let Some(node) = self.0.state().nodes.get_mut(host) {
            node.online = online;
            node.gone_since = (!online).then(Instant::now);
        }
    }

    /// No host sees another: none has quorum.
    pub fn cut_links(&self) {
        for (island, node) in self.0.state().nodes.values_mut().enumerate() {
            node.island = island as u32;
            node.gone_since = Some(Instant::now());
        }
    }

    pub fn join_links(&self) {
        for node in self.0.state().nodes.values_mut() {
            node.island = 0;
            node.gone_since = None;
        }
    }

    /// Grants or takes away: replaces all ACL entries of a path for a principal.
    pub fn set_acl(&self, path: &str, kind: &str, id: &str, role: Option<&str>) {
        let mut state = self.0.state();
        let entries = state.access.acl.entry(path.into()).or_default();
        entries.retain(|e| e.id != id);
        if let Some(role) = role {
            entries.push(crate::access::Entry::new(kind, id, role, true));
        }
        state.access.acl.retain(|_, entries| !entries.is_empty());
    }
}
