//! The boot of a node, from `initialize` to `running`.

use std::sync::Arc;
use std::time::Duration;

use pve_sim::guest::{Content, Platter};

use super::apid::Identity;
use super::config::{Config, Judge, MachineType, validate};
use super::node::{Ending, Node};
use super::resources::{self, Stage};
use super::services::{Service, ServiceState};
use super::site::Room;
use super::{disk, etcd_service, kubelet, vip};
use crate::factory::TalosImage;

/// Lives until the node ends; the caller drops this future then.
pub(crate) async fn run(node: &Arc<Node>) {
    initialize(node).await;
    if node.faults().unbootable.contains(&node.image.version.to_string()) {
        return fall_back(node).await;
    }
    if let Some(image) = node.disk.read().and_then(|installed| installed.staged) {
        return install_staged(node, image).await;
    }
    let config = match stored_config(node) {
        Some(config) => config,
        None => maintenance(node).await,
    };
    node.task_event("loadConfig", false, "");
    node.phase_event("config", false, "");
    node.sequence_event("initialize", false, "");
    node.sequence_event("install", true, "");
    if !node.from_disk {
        install(node, &config).await;
        return std::future::pending().await;
    }
    node.sequence_event("install", false, "");
    boot(node, config).await;
    std::future::pending::<()>().await;
}

/// A boot that fails counts down ten seconds, makes the other system on the disk the one that boots, and boots it through the firmware.
async fn fall_back(node: &Arc<Node>) {
    node.pass(Duration::from_secs(10)).await;
    node.disk.revert();
    node.end(Ending::PowerCycle);
    std::future::pending::<()>().await;
}

/// An upgrade that was staged before the reboot: install, and reboot once more.
async fn install_staged(node: &Arc<Node>, image: TalosImage) {
    node.set_stage(Stage::Upgrading);
    node.pass(node.site.timing.install).await;
    node.disk.change(|installed| installed.staged = None);
    node.disk.upgrade(image);
    node.end(Ending::Reboot);
    std::future::pending::<()>().await;
}

/// Machined, containerd and their friends; the API follows when it has a certificate.
async fn initialize(node: &Arc<Node>) {
    let timing = &node.site.timing;
    node.sequence_event("initialize", true, "");
    node.phase_event("machined", true, "");
    node.task_event("startApid", true, "");
    node.set_service("apid", ServiceState::Starting, "Starting service");
    node.set_service(
        "apid",
        ServiceState::Waiting,
        "Waiting for service \"containerd\" to be \"up\", api certificates, config to be ready",
    );
    node.task_event("startContainerd", true, "");
    node.task_event("startMachined", true, "");
    node.task_event("startApid", false, "");
    start(
        node,
        "containerd",
        "Process Process([\"/bin/containerd\" \"--address\" \"/system/run/containerd/containerd.sock\" \"--state\" \"/system/run/containerd\" \"--root\" \"/system/var/lib/containerd\"]) started with PID 139",
    );
    start(node, "machined", "Service started as goroutine");
    for (service, message) in [
        (
            "udevd",
            "Process Process([\"/sbin/systemd-udevd\" \"--resolve-names=never\"]) started with PID 120",
        ),
        ("auditd", "Service started as goroutine"),
        ("syslogd", "Service started as goroutine"),
        ("dashboard", "Process Process([\"/sbin/dashboard\"]) started with PID 160"),
    ] {
        start(node, service, message);
    }
    node.lock().stage = Stage::Unknown;
    node.refresh();
    for address in node.addresses() {
        node.site.register(node, address);
    }
    node.set_stage(Stage::Booting);
    node.show_hardware();
    node.show_volumes(false);
    node.show_network();
    sync_time(node);
    node.pass(timing.initialize).await;
    node.check_service("machined", None);
    node.task_event("startMachined", false, "");
    node.check_service("containerd", None);
    node.task_event("startContainerd", false, "");
    node.phase_event("machined", false, "");
    node.phase_event("config", true, "");
    node.task_event("loadConfig", true, "");
}

/// The usual way of a service into `Running`.
pub(crate) fn start(node: &Node, id: &str, message: &str) {
    node.set_service(id, ServiceState::Starting, "Starting service");
    node.set_service(id, ServiceState::Preparing, "Running pre state");
    node.set_service(id, ServiceState::Preparing, "Creating service runner");
    node.set_service(id, ServiceState::Running, message);
}

fn sync_time(node: &Arc<Node>) {
    let own = Arc::clone(node);
    node.spawn(async move {
        let node = own;
        node.lock().time_synced = Some(false);
        node.resources
            .put(&resources::TIME_STATUS, "node", resources::time_status(false, false));
        node.resources.put(
            &resources::TIME_SERVERS,
            "timeservers",
            resources::time_servers(&["time.cloudflare.com".to_owned()]),
        );
        node.refresh();
        node.pass(node.site.timing.time_sync).await;
        // A fault may be lifted later: NTP is asked again and again.
        loop {
            let disabled = node.config().is_some_and(|config| config.time_disabled());
            if disabled || !node.faults().no_time_sync {
                node.lock().time_synced = Some(true);
                node.resources
                    .put(&resources::TIME_STATUS, "node", resources::time_status(true, disabled));
                node.refresh();
                node.beat();
                return;
            }
            node.pass(Duration::from_secs(10)).await;
        }
    });
}

/// The config in STATE, or one in the platform's user data.
fn stored_config(node: &Arc<Node>) -> Option<Arc<Config>> {
    let stored = node
        .disk
        .read()
        .and_then(|installed| installed.state)
        .and_then(|state| state.config);
    let decode = |text: &str| Config::decode(text.as_bytes(), node.minor()).ok().filter(Config::is_complete);
    if let Some(config) = stored.and_then(|text| decode(&text)) {
        return Some(Arc::new(config));
    }
    let config = node.platform.config.as_deref().and_then(decode)?;
    judge(node, &config).ok()?;
    persist(node, &config);
    Some(Arc::new(config))
}

pub(crate) fn judge(node: &Node, config: &Config) -> Result<Vec<String>, String> {
    let devices = &node.hardware.disks;
    let disks: Vec<String> = (0..devices.len())
        .map(|index| format!("/dev/{}", disk::device_name(devices, index)))
        .collect();
    let judge = Judge {
        version: &node.image.version,
        metal: node.image.platform == "metal",
        installed: node.from_disk,
        disks: &disks,
    };
    validate(config, &judge)
}

/// Writes the config to STATE; only a config of its own is ever stored, never a partial one.
pub(crate) fn persist(node: &Node, config: &Config) {
    node.disk.change(|installed| {
        let mut state = installed.state.take().unwrap_or_default();
        state.config = Some(config.text.as_str().into());
        if state.node_id.is_empty() {
            state.node_id.clone_from(&node.node_id);
        }
        installed.state = Some(state);
    });
}

/// Waits for a client to send a complete config.
async fn maintenance(node: &Arc<Node>) -> Arc<Config> {
    node.task_event("runningMaintenance", true, "");
    node.set_service(
        "apid",
        ServiceState::Waiting,
        "Waiting for service \"containerd\" to be \"up\", config to be ready",
    );
    node.set_stage(Stage::Maintenance);
    node.set_service("apid", ServiceState::Preparing, "Running pre state");
    node.set_service("apid", ServiceState::Preparing, "Creating service runner");
    // Without an address no client can reach it; the machine then waits for ever, as a real one does.
    if node.api.serve(node, Identity::Maintenance).await.is_ok() {
        node.set_service(
            "apid",
            ServiceState::Running,
            "Started task apid (PID 182) for container apid",
        );
        check_soon(node, "apid");
    }
    node.until(|node| node.config().is_some()).await;
    node.task_event("runningMaintenance", false, "");
    let config = node.config().expect("just waited for it");
    // The old certificate answers for a moment more.
    node.pass(node.site.timing.apid_restart).await;
    node.api.close();
    config
}

/// Writes the system to the disk that the config names, and boots from there. A failure leaves nothing behind.
async fn install(node: &Arc<Node>, config: &Arc<Config>) {
    activate(node, config).await;
    node.phase_event("install", true, "");
    node.task_event("install", true, "");
    node.set_stage(Stage::Installing);
    node.pass(node.site.timing.image_pull).await;
    let reference = config.machine()["install"]["image"].as_str().unwrap_or_default();
    let image = node
        .image
        .from_installer(reference)
        .filter(|_| !node.faults().image_not_found);
    let target = install_target(node, config);
    let (Some(image), Some(target)) = (image, target) else {
        return fail_sequence(
            node,
            "install",
            &format!("sequence failed: error running phase 4 in install sequence: task 1/1: failed, error pulling installer image \"{reference}\": not found"),
        )
        .await;
    };
    node.pass(node.site.timing.install).await;
    let mut installed = disk::Installed::new(image);
    installed.state = Some(disk::StatePartition {
        config: Some(config.text.as_str().into()),
        node_id: node.node_id.clone(),
    });
    target.write(Content::Written(Arc::new(installed)));
    node.task_event("install", false, "");
    node.phase_event("install", false, "");
    node.set_stage(Stage::Rebooting);
    node.events.close();
    node.api.close();
    node.pass(node.site.timing.kexec).await;
    node.end(Ending::Reboot);
}

/// The disk of `machine.install`: by its path, or by the size and serial that its selector names.
fn install_target(node: &Node, config: &Config) -> Option<Platter> {
    let wanted = &config.machine()["install"];
    if let Some(path) = wanted["disk"].as_str() {
        return disk_at(node, path);
    }
    let serial = wanted["diskSelector"]["serial"].as_str()?;
    let found = node
        .hardware
        .disks
        .iter()
        .find(|disk| disk.serial.as_deref() == Some(serial))?;
    Some(found.content.clone())
}

/// `/dev/sda`
pub(crate) fn disk_at(node: &Node, path: &str) -> Option<Platter> {
    let devices = &node.hardware.disks;
    let mut disks = (0..devices.len()).filter(|index| !disk::is_medium(&devices[*index]));
    let index = disks.find(|index| path == format!("/dev/{}", disk::device_name(devices, *index)))?;
    Some(devices[index].content.clone())
}

async fn boot(node: &Arc<Node>, config: Arc<Config>) {
    node.sequence_event("boot", true, "");
    let phases: [(&str, &[&str]); 6] = [
        ("memorySizeCheck", &["memorySizeCheck"]),
        ("diskSizeCheck", &["diskSizeCheck"]),
        ("env", &["setUserEnvVars", "waitForCARoots"]),
        ("dbus", &["startDBus"]),
        ("sharedFilesystems", &["setupSharedFilesystems"]),
        ("ephemeral", &["mountEphemeralPartition"]),
    ];
    for (phase, tasks) in phases {
        node.phase(phase, tasks, "");
    }
    activate(node, &config).await;
    node.set_stage(Stage::Booting);
    node.show_volumes(true);
    node.phase("userSetup", &["writeUserFiles"], "");
    node.phase_event("startEverything", true, "");
    node.task_event("startAllServices", true, "");
    start_services(node, &config);
    finish_boot(node).await;
}

/// Makes a config the active one: names, addresses, and what follows from them.
pub(crate) async fn activate(node: &Arc<Node>, config: &Arc<Config>) {
    let mut added = Vec::new();
    {
        let mut state = node.lock();
        state.config = Some(Arc::clone(config));
        let name = config
            .hostname()
            .unwrap_or_else(|| stable_name(node, &node.platform.hostname));
        state.hostname = name;
        for address in config.addresses(&node.nics) {
            if !state.addresses.contains(&address) {
                added.push(address.address.addr());
                state.ever_held.insert(address.address.addr());
                state.addresses.push(address);
            }
        }
    }
    for address in added {
        node.site.register(node, address);
        node.api.serve_address(node, address).await;
    }
    enter_room(node, config);
    node.resources.write(
        &resources::MACHINE_CONFIG,
        "v1alpha1",
        resources::machine_config(&config.text),
    );
    node.resources.put(
        &resources::MACHINE_TYPE,
        "machine-type",
        resources::machine_type(config.machine_type().word()),
    );
    node.resources
        .put(&resources::NODENAME, "nodename", resources::nodename(&node.hostname()));
    node.resources.put(
        &resources::INFO,
        "current",
        resources::info(&config.cluster_id(), &config.cluster_name()),
    );
    if let Some(address) = node.address() {
        node.resources.put(
            &resources::KUBELET_SPEC,
            "kubelet",
            resources::kubelet_spec(config.kubelet_image(), &node.hostname(), address),
        );
        if config.machine_type() == MachineType::ControlPlane {
            node.resources.put(
                &resources::ETCD_SPEC,
                "etcd",
                resources::etcd_spec(&node.hostname(), address, &config.etcd_image()),
            );
            kubelet::show_components(node, config);
        }
    }
    node.show_network();
    node.show_config(config);
    // Static pods and the kubelet follow what the config says about them.
    node.beat();
}

fn stable_name(node: &Node, platform: &str) -> String {
    if !platform.is_empty() {
        return platform.to_owned();
    }
    let id = node.node_id.to_ascii_lowercase();
    format!("talos-{}-{}", &id[..3], &id[3..6])
}

fn enter_room(node: &Arc<Node>, config: &Config) {
    let (Some(authority), Some(address)) = (config.os_ca(), node.address()) else {
        return;
    };
    let room = node.site.room(&authority);
    node.lock().room = Some(Arc::clone(&room));
    room.enter(node, address, config.is_control_plane());
}

fn start_services(node: &Arc<Node>, config: &Arc<Config>) {
    let control_plane = config.is_control_plane();
    let spawn = |future: std::pin::Pin<Box<dyn Future<Output = ()> + Send>>| node.spawn(future);
    spawn(Box::pin(apid(Arc::clone(node), Arc::clone(config))));
    spawn(Box::pin(cri(Arc::clone(node))));
    if control_plane {
        spawn(Box::pin(trustd(Arc::clone(node))));
        spawn(Box::pin(etcd_service::run(Arc::clone(node))));
        spawn(Box::pin(kubelet::control_plane(Arc::clone(node))));
        for (address, link) in config.vips(&node.nics) {
            spawn(Box::pin(vip::contend(Arc::clone(node), address, link)));
        }
    }
    spawn(Box::pin(kubelet::run(Arc::clone(node))));
    for service in node.extension_services() {
        let own = Arc::clone(node);
        spawn(Box::pin(async move {
            own.set_service(&service, ServiceState::Starting, "Starting service");
            own.set_service(
                &service,
                ServiceState::Waiting,
                "Waiting for service \"containerd\" to be \"up\"",
            );
            if !own.faults().broken_extension {
                own.set_service(
                    &service,
                    ServiceState::Running,
                    &format!("Started task {service} (PID 271) for container {service}"),
                );
            }
        }));
    }
}

/// The API with the cluster's certificate. A control plane signs it itself; a worker asks a control plane's trustd for it, and has no
/// API until one answers.
async fn apid(node: Arc<Node>, config: Arc<Config>) {
    let issuer = if config.is_control_plane() {
        config
    } else {
        trusted(&node, &config).await
    };
    // Coming from maintenance it is still the same process.
    let (timing, apid) = (&node.site.timing, node.services.get("apid"));
    let reconfigured = apid.is_some_and(|own| own.state == ServiceState::Running);
    node.pass(if reconfigured {
        timing.apid_restart
    } else {
        timing.apid_start
    })
    .await;
    drain(&node).await;
    if node.api.serve(&node, Identity::Cluster { issuer }).await.is_err() {
        return;
    }
    if !reconfigured {
        node.set_service("apid", ServiceState::Waiting, "Waiting for config to be ready");
        node.set_service("apid", ServiceState::Preparing, "Running pre state");
        node.set_service("apid", ServiceState::Preparing, "Creating service runner");
        node.set_service(
            "apid",
            ServiceState::Running,
            "Started task apid (PID 236) for container apid",
        );
    }
    node.check_service("apid", None);
}

/// The first health check of a service comes a moment after its start.
fn check_soon(node: &Arc<Node>, id: &'static str) {
    let own = Arc::clone(node);
    node.spawn(async move {
        own.pass(Duration::from_millis(900)).await;
        own.check_service(id, None);
    });
}

/// Streams of the maintenance API keep the port closed until they end; a health check that falls into this time fails.
async fn drain(node: &Arc<Node>) {
    const CHECK: Duration = Duration::from_secs(5);
    if tokio::time::timeout(CHECK, node.api.drained()).await.is_err() {
        node.check_service("apid", Some("dial tcp 127.0.0.1:50000: connect: connection refused"));
        node.api.drained().await;
    }
}

/// The config of a control plane whose trustd this worker reaches, found by the cluster's endpoint or by discovery.
async fn trusted(node: &Arc<Node>, config: &Config) -> Arc<Config> {
    let Some(room) = node.room() else {
        return std::future::pending().await;
    };
    let mut changed = room.watch();
    loop {
        changed.mark_unchanged();
        if let Some(found) = find_trustd(node, config) {
            node.pass(node.site.timing.trustd_answer).await;
            return found;
        }
        Room::stirs(&mut changed, node.site.pace).await;
    }
}

fn find_trustd(node: &Node, config: &Config) -> Option<Arc<Config>> {
    let room = node.room()?;
    let own = node.address()?;
    let endpoint = config.endpoint_host();
    room.control_planes().into_iter().find_map(|other| {
        let theirs = other.config()?;
        let found = config.discovery_enabled() && theirs.discovery_enabled()
            || endpoint
                .as_ref()
                .is_some_and(|host| other.addresses().iter().any(|address| address.to_string() == *host));
        let answers = theirs.is_control_plane()
            && found
            && theirs.machine_token() == config.machine_token()
            && other.is_up("trustd")
            && !other.faults().trustd_blocked
            && node.site.reaches(own, other.address()?);
        answers.then_some(theirs)
    })
}

async fn cri(node: Arc<Node>) {
    node.set_service("cri", ServiceState::Starting, "Starting service");
    node.set_service(
        "cri",
        ServiceState::Waiting,
        "Waiting for volumes /var/lib, /var/lib/cni, /var/lib/containerd, /var/run, /var/run/lock to be mounted, network",
    );
    node.set_service("cri", ServiceState::Preparing, "Running pre state");
    node.set_service("cri", ServiceState::Preparing, "Creating service runner");
    node.set_service("cri", ServiceState::Running, "Process Process([\"/bin/containerd\" \"--address\" \"/run/containerd/containerd.sock\" \"--config\" \"/etc/cri/containerd.toml\"]) started with PID 155");
    node.pass(node.site.timing.cri).await;
    node.check_service("cri", None);
}

async fn trustd(node: Arc<Node>) {
    node.set_service("trustd", ServiceState::Starting, "Starting service");
    node.set_service(
        "trustd",
        ServiceState::Waiting,
        "Waiting for service \"containerd\" to be \"up\", time sync, network",
    );
    node.until(Node::time_is_synced).await;
    node.set_service("trustd", ServiceState::Preparing, "Running pre state");
    node.set_service("trustd", ServiceState::Preparing, "Creating service runner");
    node.set_service(
        "trustd",
        ServiceState::Running,
        "Started task trustd (PID 194) for container trustd",
    );
    node.pass(node.site.timing.trustd_answer).await;
    node.check_service("trustd", None);
    node.announce();
}

/// Shows the members that discovery knows: without a registry that is the node itself.
pub(crate) fn show_members(node: &Node) {
    let (Some(config), room) = (node.config(), node.room()) else {
        return;
    };
    let Some(room) = room else { return };
    let mut seen = Vec::new();
    for other in room.nodes() {
        let Some(theirs) = other.config() else { continue };
        let discovered = config.discovery_enabled() && theirs.discovery_enabled() && theirs.cluster_id() == config.cluster_id();
        if other.node_id != node.node_id && !discovered {
            continue;
        }
        let (hostname, addresses) = (other.hostname(), other.addresses());
        let peer = resources::Peer {
            node_id: &other.node_id,
            addresses: &addresses,
            hostname: &hostname,
            control_plane: theirs.is_control_plane(),
            version: &other.image.version,
        };
        node.resources.put(&resources::MEMBER, &hostname, resources::member(&peer));
        seen.push(hostname);
    }
    for old in node.resources.list(&resources::MEMBER) {
        if !seen.contains(&old.id) {
            node.resources.remove(&resources::MEMBER, &old.id);
        }
    }
}

/// Where this node looks for API servers: the config's endpoint, what discovery says, and what Kubernetes itself says.
pub(crate) fn show_endpoints(node: &Node) {
    let (Some(config), Some(room)) = (node.config(), node.room()) else {
        return;
    };
    let others = room.control_planes();
    let endpoint: Vec<String> = config.endpoint_host().into_iter().collect();
    let seen = |other: &Arc<Node>| other.node_id == node.node_id || config.discovery_enabled();
    let discovered: Vec<String> = others
        .iter()
        .filter(|other| seen(other))
        .flat_map(|other| other.addresses())
        .map(|address| address.to_string())
        .collect();
    let serving: Vec<String> = others
        .iter()
        .filter(|other| other.serves_kubernetes())
        .filter_map(|other| other.address())
        .map(|address| address.to_string())
        .collect();
    for (id, addresses) in [
        ("controlplane", &endpoint),
        ("discovery", &discovered),
        ("kube-apiserver", &serving),
    ] {
        let spec = resources::plain(&serde_json::json!({"addresses": addresses, "hosts": []}));
        node.resources.put(&resources::ENDPOINT, id, spec);
    }
    let local = config.is_control_plane().then(|| "localhost".to_owned());
    let all = endpoint.into_iter().chain(local).chain(discovered);
    let list: Vec<serde_json::Value> = all.map(|host| serde_json::json!({"host": host, "port": 6443})).collect();
    node.resources.put(
        &resources::KUBEPRISM_ENDPOINTS,
        "k8s-cluster",
        resources::plain(&serde_json::json!({"endpoints": list})),
    );
}

/// The boot sequence ends when every service is up; a bootstrap ends it too. It does not wait for ever.
async fn finish_boot(node: &Arc<Node>) {
    let done = node.until(|node| {
        let bootstrapped = node.bootstrap_request().is_some();
        bootstrapped
            || node.services.with(|services| services.values().all(Service::is_up)) && node.is_up("kubelet") && node.is_up("apid")
    });
    let timeout = node.site.pace.scale(node.site.timing.boot_timeout);
    if tokio::time::timeout(timeout, done).await.is_ok() {
        node.task_event("startAllServices", false, "");
        node.phase_event("startEverything", false, "");
        node.sequence_event("boot", false, "");
        node.set_stage(Stage::Running);
        return;
    }
    fail_sequence(
        node,
        "boot",
        "sequence failed: error running phase 8 in boot sequence: task 1/1: failed, context deadline exceeded",
    )
    .await;
}

/// A sequence that fails takes the node down after ten seconds.
pub(crate) async fn fail_sequence(node: &Arc<Node>, sequence: &str, message: &str) {
    use talos_proto::{common, machine};
    let error = common::Error {
        code: common::Code::Fatal.into(),
        message: message.to_owned(),
        details: Vec::new(),
    };
    let event = machine::SequenceEvent {
        sequence: sequence.to_owned(),
        action: machine::sequence_event::Action::Noop.into(),
        error: Some(error),
    };
    node.events.publish("SequenceEvent", &event);
    node.set_stage(Stage::Rebooting);
    node.pass(Duration::from_secs(10)).await;
    node.end(Ending::Reboot);
}
