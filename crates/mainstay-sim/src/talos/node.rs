//! One boot of a Talos machine: its state, and the small changes that everything else is made of.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use mainstay_net::Entropy;
use pve_sim::guest::Hardware;
use rand::Rng;
use talos_proto::machine as proto;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::config::{Config, LinkAddress, Nic};
use super::cosi::Resources;
use super::disk::{self, Booted, ImageStore, Installed, SystemDisk};
use super::etcd::EtcdCluster;
use super::events::Events;
use super::nocloud::Platform;
use super::resources::{self, Stage};
use super::services::{ServiceState, Services};
use super::site::{NodeFaults, Room, Site};
use crate::factory::TalosImage;

pub(crate) struct Node {
    pub site: Arc<Site>,
    pub hardware: Hardware,
    pub image: TalosImage,
    pub disk: SystemDisk,
    /// Not so while a boot medium runs from memory.
    pub from_disk: bool,
    pub boot_id: String,
    pub booted_at: jiff::Timestamp,
    pub node_id: String,
    pub nics: Vec<Nic>,
    pub platform: Platform,
    pub entropy: Entropy,
    pub resources: Resources,
    pub events: Events,
    pub services: Services,
    pub api: super::apid::Apid,
    pub apiserver: super::kubelet::ApiSlot,
    state: Mutex<State>,
    pulse: watch::Sender<u64>,
    tasks: Mutex<JoinSet<()>>,
    /// Cancelled when the machine is gone.
    pub alive: CancellationToken,
    ending: watch::Sender<Option<Ending>>,
}

/// How a boot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// kexec: no firmware pass.
    Reboot,
    PowerCycle,
    Off,
}

pub(crate) struct State {
    pub stage: Stage,
    pub config: Option<Arc<Config>>,
    pub hostname: String,
    pub addresses: Vec<LinkAddress>,
    pub vips: BTreeMap<IpAddr, String>,
    /// Every address since boot: what the API certificate names.
    pub ever_held: BTreeSet<IpAddr>,
    pub time_synced: Option<bool>,
    pub etcd: EtcdState,
    pub bootstrap: Option<BootstrapRequest>,
    pub apiserver: bool,
    /// Where this boot's kubelet has registered its Node.
    pub registered_in: Option<Weak<EtcdCluster>>,
    pub room: Option<Arc<Room>>,
    /// A reboot, reset or shutdown is under way.
    pub sequence: Option<Sequence>,
    pub applying: bool,
    /// A config was applied that takes a reboot, and the reboot has begun.
    pub reboot_by_apply: bool,
    /// Counts TRY applies, so that a later apply cancels the timer of an earlier one.
    pub tries: u64,
    /// The config that a TRY reverts to.
    pub tried_over: Option<Arc<Config>>,
    unmet: Option<(Stage, Vec<(&'static str, String)>)>,
    /// Images in containerd's memory; the others are on the disk.
    pub images: BTreeSet<String>,
    /// An installer runs.
    pub installing: bool,
    /// On its way down: nothing below /var can be seen any more.
    pub unmounted: bool,
}

#[derive(Clone)]
pub(crate) enum EtcdState {
    /// No process: not a control plane, or still waiting to join or to be bootstrapped.
    Idle,
    Running {
        cluster: Arc<EtcdCluster>,
        member: u64,
    },
    /// Left the cluster; it joins again after the next reboot.
    Left,
    /// Its member was removed while it ran.
    Removed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BootstrapRequest {
    pub recover: bool,
    pub skip_hash_check: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sequence {
    Reboot,
    Reset,
    Shutdown,
    Upgrade,
    StageUpgrade,
}

impl Sequence {
    pub fn word(self) -> &'static str {
        match self {
            Self::Reboot => "reboot",
            Self::Reset => "reset",
            Self::Shutdown => "shutdown",
            Self::Upgrade => "upgrade",
            Self::StageUpgrade => "stageUpgrade",
        }
    }

    pub fn stage(self) -> Stage {
        match self {
            Self::Reboot => Stage::Rebooting,
            Self::Reset => Stage::Resetting,
            Self::Shutdown => Stage::ShuttingDown,
            Self::Upgrade | Self::StageUpgrade => Stage::Upgrading,
        }
    }
}

impl Node {
    /// Loads the system that was found; `None` if it does not go on from there.
    pub fn boot(site: &Arc<Site>, hardware: &Hardware, kexec: bool) -> Option<Arc<Self>> {
        let Booted {
            disk,
            installed,
            from_disk,
        } = disk::boot(hardware, kexec)?;
        let entropy = site.entropy.fork(&format!("boot {} {}", hardware.uuid, site.next_serial()));
        let node_id = node_id(&disk, &installed, &entropy);
        let nics = hardware.nics.iter().enumerate().filter(|(_, nic)| !nic.link_down);
        let nics: Vec<Nic> = nics
            .map(|(index, nic)| Nic {
                name: format!("eth{index}"),
                mac: nic.mac.to_ascii_lowercase(),
            })
            .collect();
        // A drive that cannot be read is like none: the node comes up without an address.
        let platform = Platform::read(hardware.cloud_init.as_ref(), &nics).unwrap_or_default();
        let mut epoch = [0; 8];
        entropy.fork("bookmarks").rng().fill_bytes(&mut epoch);
        let state = State::new(&platform);
        Some(Arc::new(Self {
            boot_id: uuid_of(&entropy.fork("boot id")),
            booted_at: site.wall.now(),
            node_id,
            resources: Resources::new(site.wall, epoch),
            events: Events::new(site.wall, &entropy.fork("events")),
            services: Services::default(),
            api: super::apid::Apid::default(),
            apiserver: super::kubelet::ApiSlot::default(),
            state: Mutex::new(state),
            pulse: watch::Sender::new(0),
            tasks: Mutex::default(),
            alive: CancellationToken::new(),
            ending: watch::Sender::new(None),
            site: Arc::clone(site),
            hardware: hardware.clone(),
            image: installed.image,
            disk,
            from_disk,
            nics,
            platform,
            entropy,
        }))
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no task panics while it holds the node")
    }

    pub fn minor(&self) -> u64 {
        self.image.version.minor
    }

    pub fn faults(&self) -> NodeFaults {
        self.site.faults(&self.hardware.name)
    }

    pub async fn pass(&self, duration: Duration) {
        self.site.pace.pass(duration).await;
    }

    /// Runs a part of the node's life; it dies with the node.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.lock().expect("plain data").spawn(task);
    }

    /// Wakes every task that waits for a change of this node.
    pub fn beat(&self) {
        self.pulse.send_modify(|count| *count += 1);
    }

    /// Wakes those too who wait for this node from elsewhere in the cluster.
    pub fn announce(&self) {
        self.beat();
        if let Some(room) = self.room() {
            room.beat();
        }
    }

    /// Waits until a fact about the node holds.
    pub async fn until(&self, holds: impl Fn(&Self) -> bool) {
        let mut pulse = self.pulse.subscribe();
        while !holds(self) {
            if pulse.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    pub fn end(&self, ending: Ending) {
        self.ending.send_replace(Some(ending));
    }

    pub async fn ended(&self) -> Ending {
        let mut ending = self.ending.subscribe();
        loop {
            if let Some(ending) = *ending.borrow_and_update() {
                return ending;
            }
            if ending.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// The plug is pulled: everything stops where it is.
    pub fn die(&self) {
        self.alive.cancel();
        self.tasks.lock().expect("plain data").abort_all();
        let (etcd, room) = {
            let mut state = self.lock();
            state.apiserver = false;
            (std::mem::replace(&mut state.etcd, EtcdState::Idle), state.room.take())
        };
        super::kubelet::fell_silent(self);
        if let EtcdState::Running { cluster, member } = etcd {
            cluster.stop(member);
        }
        if let Some(room) = room {
            room.leave(self);
        }
        self.site.forget(self);
    }

    // --- facts ---

    pub fn config(&self) -> Option<Arc<Config>> {
        self.lock().config.clone()
    }

    // Each fact is read by a function of its own: a guard that lives on in a longer expression would wait for itself.

    pub fn stage(&self) -> Stage {
        self.lock().stage
    }

    pub fn room(&self) -> Option<Arc<Room>> {
        self.lock().room.clone()
    }

    pub fn time_is_synced(&self) -> bool {
        self.lock().time_synced == Some(true)
    }

    /// Whether a reboot, reset or shutdown is under way.
    pub fn is_ending(&self) -> bool {
        self.lock().sequence.is_some()
    }

    pub fn bootstrap_request(&self) -> Option<BootstrapRequest> {
        self.lock().bootstrap
    }

    /// Whether an API server runs here.
    pub fn serves_kubernetes(&self) -> bool {
        self.lock().apiserver
    }

    /// Whether this boot's kubelet has registered its Node.
    pub fn is_registered(&self) -> bool {
        self.lock().registered_in.is_some()
    }

    pub fn etcd_state(&self) -> EtcdState {
        self.lock().etcd.clone()
    }

    pub fn is_control_plane(&self) -> bool {
        self.lock().config.as_ref().is_some_and(|config| config.is_control_plane())
    }

    pub fn hostname(&self) -> String {
        self.lock().hostname.clone()
    }

    /// The address others know the node by.
    pub fn address(&self) -> Option<IpAddr> {
        self.lock().addresses.first().map(|address| address.address.addr())
    }

    pub fn addresses(&self) -> Vec<IpAddr> {
        let state = self.lock();
        state
            .addresses
            .iter()
            .map(|address| address.address.addr())
            .chain(state.vips.keys().copied())
            .collect()
    }

    /// The running etcd of this node.
    pub fn etcd(&self) -> Option<(Arc<EtcdCluster>, u64)> {
        match &self.lock().etcd {
            EtcdState::Running { cluster, member } => Some((Arc::clone(cluster), *member)),
            _ => None,
        }
    }

    pub fn has_etcd_data(&self) -> bool {
        self.disk.read().is_some_and(|installed| installed.ephemeral.etcd.is_some())
    }

    pub fn is_up(&self, service: &str) -> bool {
        self.services.is_up(service)
    }

    pub fn extensions(&self) -> Vec<String> {
        self.image
            .extensions
            .iter()
            .map(|name| name.trim_start_matches("siderolabs/").to_owned())
            .collect()
    }

    /// Extension services that the image brings.
    pub fn extension_services(&self) -> Vec<String> {
        let known = ["qemu-guest-agent", "tailscale", "iscsid", "cloudflared"];
        let names = self
            .extensions()
            .into_iter()
            .map(|name| if name == "iscsi-tools" { "iscsid".to_owned() } else { name });
        names
            .filter(|name| known.contains(&name.as_str()))
            .map(|name| format!("ext-{name}"))
            .collect()
    }

    // --- changes ---

    pub fn set_service(&self, id: &str, state: ServiceState, message: &str) {
        let checked = !matches!(id, "auditd" | "syslogd" | "udevd" | "dashboard") && !id.starts_with("ext-");
        let service = self.services.set(id, state, message, checked, self.site.wall.now());
        self.publish_service(id, &service, message);
        if state == ServiceState::Running {
            self.resources
                .write(&resources::SERVICE, id, resources::service(true, false, true));
        } else {
            self.resources.remove(&resources::SERVICE, id);
        }
        self.refresh();
        self.beat();
    }

    /// The outcome of a health check.
    pub fn check_service(&self, id: &str, failure: Option<&str>) {
        let Some(service) = self.services.check(id, failure, self.site.wall.now()) else {
            return;
        };
        let message = self.services.last_message(id);
        self.publish_service(id, &service, &message);
        self.resources
            .put(&resources::SERVICE, id, resources::service(true, failure.is_none(), false));
        self.refresh();
        self.beat();
    }

    fn publish_service(&self, id: &str, service: &super::services::Service, message: &str) {
        let event = proto::ServiceStateEvent {
            service: id.to_owned(),
            action: service.state.action().into(),
            message: message.to_owned(),
            health: Some(service.health.to_proto()),
        };
        self.events.publish("ServiceStateEvent", &event);
    }

    /// An image that a service pulled.
    pub fn keep_image(&self, name: impl FnOnce(&Config) -> String) {
        if let Some(image) = self.config().as_deref().map(name) {
            self.add_image(ImageStore::System, &image);
        }
    }

    pub fn add_image(&self, store: ImageStore, name: &str) {
        if store == ImageStore::Memory {
            self.lock().images.insert(name.to_owned());
            return;
        }
        let image = (store, name.to_owned());
        if !self.has_image(store, name) {
            self.disk.change(|installed| {
                installed.ephemeral.images.insert(image);
            });
        }
    }

    pub fn has_image(&self, store: ImageStore, name: &str) -> bool {
        self.images(store).contains(name)
    }

    pub fn images(&self, store: ImageStore) -> BTreeSet<String> {
        if store == ImageStore::Memory {
            return self.lock().images.clone();
        }
        let images = self
            .disk
            .read()
            .map(|installed| installed.ephemeral.images)
            .unwrap_or_default();
        let own = images.into_iter().filter(|(of, _)| *of == store);
        own.map(|(_, name)| name).collect()
    }

    pub fn set_stage(&self, stage: Stage) {
        self.lock().stage = stage;
        self.refresh();
        self.beat();
    }

    pub fn sequence_event(&self, sequence: &str, start: bool, actor: &str) {
        use proto::sequence_event::Action;
        let action = if start { Action::Start } else { Action::Stop };
        let event = proto::SequenceEvent {
            sequence: sequence.to_owned(),
            action: action.into(),
            error: None,
        };
        self.events.publish_for("SequenceEvent", &event, actor);
    }

    /// A phase with its tasks, in order, which takes no time.
    pub fn phase(&self, phase: &str, tasks: &[&str], actor: &str) {
        self.phase_event(phase, true, actor);
        for task in tasks {
            self.task_event(task, true, actor);
            self.task_event(task, false, actor);
        }
        self.phase_event(phase, false, actor);
    }

    pub fn phase_event(&self, phase: &str, start: bool, actor: &str) {
        let event = proto::PhaseEvent {
            phase: phase.to_owned(),
            action: i32::from(!start),
        };
        self.events.publish_for("PhaseEvent", &event, actor);
    }

    pub fn task_event(&self, task: &str, start: bool, actor: &str) {
        let event = proto::TaskEvent {
            task: task.to_owned(),
            action: i32::from(!start),
        };
        self.events.publish_for("TaskEvent", &event, actor);
    }

    /// Derives the machine status anew and tells if it has changed.
    pub fn refresh(&self) {
        let unmet = self.unmet_conditions();
        let mut state = self.lock();
        let now = (state.stage, unmet);
        if state.unmet.as_ref() == Some(&now) {
            return;
        }
        let (stage, unmet) = now.clone();
        state.unmet = Some(now);
        drop(state);
        self.resources.write(
            &resources::MACHINE_STATUS,
            "machine",
            resources::machine_status(stage, &unmet),
        );
        let conditions = unmet
            .iter()
            .map(|(name, reason)| proto::machine_status_event::machine_status::UnmetCondition {
                name: (*name).to_owned(),
                reason: reason.clone(),
            });
        let status = proto::machine_status_event::MachineStatus {
            ready: unmet.is_empty(),
            unmet_conditions: conditions.collect(),
        };
        self.events.publish(
            "MachineStatusEvent",
            &proto::MachineStatusEvent {
                stage: stage.number(),
                status: Some(status),
            },
        );
    }

    /// Checks apply while booting and running only; every other stage is ready.
    fn unmet_conditions(&self) -> Vec<(&'static str, String)> {
        let mut unmet = Vec::new();
        let (stage, configured, control_plane, time, hostname) = {
            let state = self.lock();
            let control_plane = state.config.as_ref().is_some_and(|config| config.is_control_plane());
            (
                state.stage,
                state.config.is_some(),
                control_plane,
                state.time_synced,
                state.hostname.clone(),
            )
        };
        if !matches!(stage, Stage::Booting | Stage::Running) {
            return unmet;
        }
        match time {
            None => unmet.push((
                "time",
                "resource TimeStatuses.v1alpha1.talos.dev(runtime/node@undefined) doesn't exist".to_owned(),
            )),
            Some(false) => unmet.push(("time", "time is not synced".to_owned())),
            Some(true) => {}
        }
        if self.address().is_none() {
            unmet.push(("network", "waiting on: address, connectivity".to_owned()));
        }
        let services = self.service_conditions(control_plane);
        if !services.is_empty() {
            unmet.push(("services", services.join(", ")));
        }
        let pods: Vec<String> = self
            .resources
            .list(&resources::STATIC_POD_STATUS)
            .into_iter()
            .filter(|pod| !super::kubelet::is_ready(pod.spec.value()))
            .map(|pod| format!("{} not ready", pod.id))
            .collect();
        if !pods.is_empty() {
            unmet.push(("staticPods", pods.join(", ")));
        }
        if configured {
            match self.resources.spec(&resources::NODE_STATUS, &hostname) {
                None => unmet.push(("nodeReady", format!("node \"{hostname}\" status is not available yet"))),
                Some(status) if status.value()["nodeReady"] == false => {
                    unmet.push(("nodeReady", format!("node \"{hostname}\" is not ready")));
                }
                Some(_) => {}
            }
        }
        unmet
    }

    fn service_conditions(&self, control_plane: bool) -> Vec<String> {
        let own = self.extension_services();
        let mut required = vec!["apid", "machined", "kubelet"];
        if control_plane {
            required.extend(["etcd", "trustd"]);
        }
        self.services.with(|services| {
            let sick = services.iter().filter(|(_, service)| service.is_sick());
            let mut out: Vec<String> = sick.map(|(id, _)| format!("{id} not healthy")).collect();
            if services.contains_key("cri") {
                required.extend(own.iter().map(String::as_str));
            }
            let down = required
                .into_iter()
                .filter(|id| services.get(*id).is_none_or(|service| service.state != ServiceState::Running));
            out.extend(down.map(|id| format!("{id} not running")));
            out
        })
    }
}

impl State {
    fn new(platform: &Platform) -> Self {
        let ever_held = platform.addresses.iter().map(|address| address.address.addr()).collect();
        Self {
            stage: Stage::Unknown,
            config: None,
            hostname: platform.hostname.clone(),
            addresses: platform.addresses.clone(),
            vips: BTreeMap::new(),
            ever_held,
            time_synced: None,
            etcd: EtcdState::Idle,
            bootstrap: None,
            apiserver: false,
            registered_in: None,
            room: None,
            sequence: None,
            applying: false,
            reboot_by_apply: false,
            tries: 0,
            tried_over: None,
            unmet: None,
            images: BTreeSet::new(),
            installing: false,
            unmounted: false,
        }
    }
}

/// The identity in STATE, made at the first boot.
fn node_id(system: &SystemDisk, installed: &Installed, entropy: &Entropy) -> String {
    if let Some(state) = &installed.state {
        return state.node_id.clone();
    }
    let mut bytes = [0; 32];
    entropy.fork("node id").rng().fill_bytes(&mut bytes);
    let id = base62(&bytes);
    system.change(|installed| {
        installed.state = Some(disk::StatePartition {
            config: None,
            node_id: id.clone(),
        });
    });
    id
}

fn base62(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let letters: String = bytes
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(*byte) % 62]))
        .collect();
    format!("{letters}{letters}").chars().take(43).collect()
}

pub(crate) fn uuid_of(entropy: &Entropy) -> String {
    let mut bytes = [0; 16];
    entropy.rng().fill_bytes(&mut bytes);
    uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
}
