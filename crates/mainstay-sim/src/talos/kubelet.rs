//! Kubernetes as a node lives it: the static pods of a control plane, and the kubelet's own Node.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use mainstay_net::{Peer, ServeOptions};
use serde_json::{Value, json};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::config::Config;
use super::disk::ImageStore;
use super::etcd::EtcdCluster;
use super::heartbeat;
use super::node::{EtcdState, Node};
use super::objects::{self, Health};
use super::resources;
use super::services::ServiceState;
use super::site::Room;
use super::tls;
use crate::kube::control;
use crate::kube::kinds;
use crate::kube::server::{ApiServer, Leases, User};
use crate::kube::store::{Key, PodPolicy, Store};
use crate::pki::{self, Request};

const PORT: u16 = 6443;
/// How late those who watch leases may see one renewed.
const GLANCE: Duration = Duration::from_secs(1);
const KUBELET_VOLUMES: &str = "Waiting for volumes /var/lib, /var/lib/kubelet, /var/log, /var/log/audit, /var/log/containers, /var/log/pods, /var/lib/kubelet/seccomp, /var/lib/kubelet/seccomp/profiles, /var/log/audit/kube, /var/mnt to be mounted, service \"cri\" to be \"up\", time sync, network";

/// The static pods: they follow the node's etcd.
pub(crate) async fn control_plane(node: Arc<Node>) {
    loop {
        node.until(|node| node.is_up("etcd")).await;
        let rejoined = !node.resources.list(&resources::STATIC_POD).is_empty();
        for pod in &objects::COMPONENTS {
            node.resources.put(
                &resources::STATIC_POD,
                pod.name,
                resources::plain(
                    &json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": pod.name, "namespace": "kube-system"}}),
                ),
            );
        }
        let serving = async {
            if !rejoined {
                node.pass(node.site.timing.apiserver).await;
            }
            serve(&node).await;
        };
        tokio::select! {
            biased;
            () = node.until(|node| matches!(node.etcd_state(), EtcdState::Left | EtcdState::Removed)) => {}
            () = serving => {}
        }
        node.lock().apiserver = false;
        node.announce();
        if matches!(node.etcd_state(), EtcdState::Left) {
            node.resources.remove_all(&resources::STATIC_POD);
            node.resources.remove_all(&resources::STATIC_POD_STATUS);
            node.refresh();
        }
        std::future::pending::<()>().await;
    }
}

async fn serve(node: &Arc<Node>) {
    let (Some(config), Some((cluster, _))) = (node.config(), node.etcd()) else {
        return;
    };
    objects::found_cluster(&cluster.store, &objects::now(node.site.wall));
    let serving = open(node).await;
    if let Some(room) = node.room() {
        heartbeat::watch_over(&node.site, &cluster, &room);
        start_controllers(node, &cluster, &room);
    }
    let manifests = apply_manifests(node, &config, &cluster);
    let rolling = roll_apiserver(node, serving);
    tokio::join!(manifests, report_static_pods(node), balance(node, &cluster), rolling);
    std::future::pending::<()>().await;
}

/// Listens on every address, until the guard is dropped.
async fn open(node: &Arc<Node>) -> DropGuard {
    let closing = CancellationToken::new();
    let guard = closing.clone().drop_guard();
    *node.apiserver.lock().expect("plain data") = Some(ApiSockets { closing });
    node.lock().apiserver = true;
    for address in node.addresses() {
        serve_address(node, address).await;
    }
    node.announce();
    guard
}

/// Another config of the API server means another process: connections are refused until it serves again.
async fn roll_apiserver(node: &Arc<Node>, mut serving: DropGuard) {
    let [apiserver, ..] = &objects::COMPONENTS;
    loop {
        let version = config_version(node, apiserver);
        node.until(|node| config_version(node, apiserver) != version).await;
        drop(serving);
        node.lock().apiserver = false;
        node.announce();
        node.pass(node.site.timing.static_pod_roll).await;
        serving = open(node).await;
    }
}

/// What the config says about each component, as the resource whose version its pod carries.
pub(crate) fn show_components(node: &Node, config: &Config) {
    for pod in &objects::COMPONENTS {
        let section = &config.cluster()[pod.section];
        let mut spec = json!({"image": config.component_image(pod.section, pod.name)});
        for (shown, written) in [
            ("extraArgs", "extraArgs"),
            ("extraVolumes", "extraVolumes"),
            ("environmentVariables", "env"),
            ("resources", "resources"),
        ] {
            if !section[written].is_null() {
                spec[shown] = section[written].clone();
            }
        }
        node.resources.put(pod.config, pod.name, resources::plain(&spec));
    }
}

fn config_version(node: &Node, pod: &objects::Component) -> u64 {
    node.resources.version(pod.config, pod.name)
}

/// Controllers, scheduler and the pods of all kubelets; once per cluster.
fn start_controllers(node: &Arc<Node>, cluster: &Arc<EtcdCluster>, room: &Arc<Room>) {
    // Talos' own admission configuration.
    cluster.store.set_policy(PodPolicy {
        enforce: Some("baseline"),
        exempt: &["kube-system"],
    });
    let (weak, around, of_nodes) = (Arc::downgrade(cluster), Arc::downgrade(room), Arc::downgrade(room));
    let hooks = control::Hooks {
        is_served: Box::new(move || {
            let (cluster, room) = (weak.upgrade()?, around.upgrade()?);
            Some(heartbeat::is_served(&cluster, &room))
        }),
        is_alive: Box::new(move |name| {
            let Some(room) = of_nodes.upgrade() else { return false };
            let nodes = room.nodes();
            nodes
                .iter()
                .any(|node| node.hostname() == name && node.is_registered() && node.is_up("kubelet"))
        }),
        is_rancher: false,
    };
    control::start(
        &cluster.store,
        hooks,
        Arc::clone(&node.site.charts),
        node.site.pace,
        node.site.wall,
    );
}

/// What stops the API server's listeners.
pub(crate) struct ApiSockets {
    closing: CancellationToken,
}

/// The API server on one more address of this node.
pub(crate) async fn serve_address(node: &Arc<Node>, address: IpAddr) {
    if !node.serves_kubernetes() {
        return;
    }
    let Some(closing) = node
        .apiserver
        .lock()
        .expect("plain data")
        .as_ref()
        .map(|sockets| sockets.closing.clone())
    else {
        return;
    };
    let (Some(config), Ok(listener)) = (node.config(), node.site.network.bind(SocketAddr::new(address, PORT)).await) else {
        return;
    };
    let Some(options) = certificate(node, &config, address) else {
        return;
    };
    let app = router(node, &config);
    let own = Arc::clone(node);
    node.spawn(async move {
        tokio::select! {
            biased;
            () = closing.cancelled() => {}
            () = own.until(move |node| !node.addresses().contains(&address)) => {}
            _ = mainstay_net::serve(listener, app, options) => {}
        }
    });
}

/// Closing happens where the address is dropped: its server watches the node's addresses.
pub(crate) fn forget_address(node: &Node, _address: IpAddr) {
    node.beat();
}

fn certificate(node: &Node, config: &Config, address: IpAddr) -> Option<ServeOptions> {
    let wall = node.site.wall;
    let hostname = node.hostname();
    let mut request = Request::server("kube-apiserver", &wall);
    request.life = Duration::from_secs(365 * 24 * 3600);
    let endpoint = config.endpoint_host().unwrap_or_default();
    let own = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ]
    .map(str::to_owned)
    .to_vec();
    let sans = [own, vec![hostname, endpoint], config.apiserver_cert_sans()].concat();
    request.names = tls::dns_names(&sans);
    let further = sans.iter().filter_map(|name| name.parse().ok());
    let vips = config.vips(&node.nics).into_iter().map(|(vip, _)| vip);
    request.addresses = node
        .addresses()
        .into_iter()
        .chain([address, IpAddr::from([127, 0, 0, 1]), IpAddr::from([10, 96, 0, 1])])
        .chain(further)
        .chain(vips)
        .collect();
    let pair = config
        .kubernetes_authority()
        .ok()?
        .issue(&request, &node.entropy.fork(&format!("kube-apiserver {address}")))
        .ok()?;
    let tls = tls::optional(&pair, &config.kubernetes_ca()?, wall).ok()?;
    Some(ServeOptions::tls(tls))
}

fn router(node: &Arc<Node>, config: &Config) -> Router {
    let weak = Arc::downgrade(node);
    let store = move || -> Option<Arc<Store>> {
        let (cluster, member) = weak.upgrade()?.etcd()?;
        cluster.leader_of(member).map(|_| Arc::clone(&cluster.store))
    };
    let weak = Arc::downgrade(node);
    let write = move || {
        if let Some(node) = weak.upgrade()
            && let (Some((cluster, _)), Some(room)) = (node.etcd(), node.room())
        {
            heartbeat::write_leases(&node.site, &cluster, &room);
        }
    };
    let leases = Leases {
        write: Box::new(write),
        glance: node.site.pace.scale(GLANCE),
    };
    let address = node
        .address()
        .map(|address| SocketAddr::new(address, PORT).to_string())
        .unwrap_or_default();
    let server = Arc::new(ApiServer {
        store: Box::new(store),
        leases: Arc::new(leases),
        version: config.apiserver_tag(),
        address,
        wall: node.site.wall,
    });
    Router::new().fallback(move |request: axum::extract::Request| {
        let server = Arc::clone(&server);
        let user = request.extensions().get::<Peer>().and_then(user);
        async move { server.handle(user, request).await }
    })
}

fn user(peer: &Peer) -> Option<User> {
    let subject = pki::subject(peer.certificates.first()?)?;
    Some(User {
        name: subject.common_name,
        groups: subject.organizations,
    })
}

async fn apply_manifests(node: &Arc<Node>, config: &Config, cluster: &Arc<EtcdCluster>) {
    let now = || objects::now(node.site.wall);
    if !objects::has_manifests(&cluster.store) {
        node.pass(node.site.timing.manifests).await;
        objects::apply_manifests(&cluster.store, config, &now());
    }
    for manifest in objects::manifests(config) {
        // Listed by name; what is in them is in the cluster.
        node.resources
            .put(&resources::MANIFEST, manifest, resources::plain(&json!([])));
    }
    node.resources.put(
        &resources::MANIFEST_STATUS,
        "manifests",
        resources::manifest_status(&objects::manifests(config)),
    );
    let cni =
        json!({"cniName": config.cni(), "coreDNSEnabled": true, "proxyEnabled": config.cluster()["proxy"]["disabled"] != true});
    node.resources
        .put(&resources::BOOTSTRAP_MANIFESTS, "manifests", resources::plain(&cni));
    node.announce();
}

/// Static pods are reported on a tick. The API server is ready first; scheduler and controller manager crash until KubePrism is there.
async fn report_static_pods(node: &Arc<Node>) {
    let timing = &node.site.timing;
    node.until(Node::is_registered).await;
    for pod in &objects::COMPONENTS {
        let first = pod.name == "kube-apiserver";
        report(node, pod, if first { Health::Ready } else { Health::Starting });
    }
    node.pass(timing.static_pod_tick).await;
    let [apiserver, manager, scheduler] = &objects::COMPONENTS;
    tokio::join!(
        follow_component(node, apiserver),
        follow_component(node, manager),
        follow_component(node, scheduler)
    );
}

/// A changed component starts anew. The API server learns of it late, through the kubelet's mirror pod.
async fn follow_component(node: &Arc<Node>, pod: &objects::Component) {
    let timing = &node.site.timing;
    loop {
        let version = config_version(node, pod);
        report(node, pod, Health::Ready);
        node.until(|node| config_version(node, pod) != version).await;
        let config = node.config();
        node.pass(timing.static_pod_tick.min(timing.static_pod_roll)).await;
        show_status(node, pod, Health::Starting);
        node.pass(timing.static_pod_roll.saturating_sub(timing.static_pod_tick)).await;
        show_status(node, pod, Health::Ready);
        if let Some(config) = config {
            node.add_image(ImageStore::Pods, &config.component_image(pod.section, pod.name));
        }
        node.pass(timing.mirror_pod.saturating_sub(timing.static_pod_roll)).await;
    }
}

/// Tells the machine's own resource about a static pod; what was told.
fn show_status(node: &Node, pod: &objects::Component, health: Health) -> Option<(String, Value)> {
    let (config, address) = (node.config()?, node.address()?);
    let image = config.component_image(pod.section, pod.name);
    let container = objects::static_container(pod, &config, &image);
    let status = objects::pod_status(&container, address, health, &objects::now(node.site.wall));
    node.show_static_pod(pod.name, &status);
    Some((image, status))
}

/// Tells the machine's own resource and the API server about a static pod.
fn report(node: &Node, pod: &objects::Component, health: Health) {
    let (Some((image, status)), Some((cluster, _))) = (show_status(node, pod, health), node.etcd()) else {
        return;
    };
    let mirror = objects::Mirror {
        node: &node.hostname(),
        image: &image,
        version: config_version(node, pod),
        status: &status,
    };
    objects::write_mirror_pod(&cluster.store, pod, &mirror, &objects::now(node.site.wall));
}

/// KubePrism believes in the first API server of a cluster after several checks; later it finds one that serves already.
async fn balance(node: &Arc<Node>, cluster: &EtcdCluster) {
    if !objects::has_manifests(&cluster.store) {
        node.pass(node.site.timing.kubeprism).await;
    }
    node.resources
        .put(&resources::KUBEPRISM, "k8s-loadbalancer", resources::kubeprism(true));
}

// --- every node ---

pub(crate) async fn run(node: Arc<Node>) {
    node.set_service("kubelet", ServiceState::Starting, "Starting service");
    node.set_service("kubelet", ServiceState::Waiting, KUBELET_VOLUMES);
    node.set_service("kubelet", ServiceState::Waiting, "Waiting for service \"cri\" to be \"up\"");
    node.until(|node| node.is_up("cri") && node.time_is_synced()).await;
    node.set_service("kubelet", ServiceState::Preparing, "Running pre state");
    node.pass(node.site.timing.image_pull).await;
    node.keep_image(|config| config.kubelet_image().to_owned());
    start(&node).await;
    tokio::join!(register(&node), restart_on_change(&node), relabel_on_change(&node));
}

/// Another image in the config: the kubelet stops, its image is pulled, it starts again and tells the API server its version.
async fn restart_on_change(node: &Arc<Node>) {
    let wanted = |node: &Node| node.config().map(|config| config.kubelet_image().to_owned());
    loop {
        let image = wanted(node);
        node.until(|node| wanted(node) != image && !node.is_ending()).await;
        node.set_service(
            "kubelet",
            ServiceState::Stopping,
            "Sending SIGTERM to task kubelet (PID 351, container kubelet)",
        );
        node.set_service("kubelet", ServiceState::Finished, "Service finished successfully");
        node.set_service("kubelet", ServiceState::Starting, "Starting service");
        node.set_service("kubelet", ServiceState::Preparing, "Running pre state");
        let image = wanted(node).unwrap_or_default();
        if !node.has_image(ImageStore::System, &image) {
            // A kubelet without its image is tried again and again.
            node.pass(node.pull_time(&image)).await;
            while !node.is_published(&image) {
                node.pass(node.site.timing.static_pod_tick).await;
            }
            node.add_image(ImageStore::System, &image);
        }
        start(node).await;
        let cluster = node.lock().registered_in.as_ref().and_then(std::sync::Weak::upgrade);
        if let (Some(cluster), Some(config)) = (cluster, node.config()) {
            objects::register_node(&cluster.store, node, &config, &objects::now(node.site.wall));
            show_node(node, &cluster.store);
        }
    }
}

/// Labels and taints in a config that changed: Talos writes them to the Node.
async fn relabel_on_change(node: &Arc<Node>) {
    let wanted = |node: &Node| {
        node.config()
            .map(|config| (config.node_labels().clone(), config.node_taints().clone()))
    };
    loop {
        let seen = wanted(node);
        node.until(|node| wanted(node) != seen && !node.is_ending()).await;
        let cluster = node.lock().registered_in.as_ref().and_then(std::sync::Weak::upgrade);
        if let (Some(cluster), Some(config)) = (cluster, node.config()) {
            objects::apply_config(&cluster.store, node, &config);
        }
    }
}

pub(crate) async fn start(node: &Arc<Node>) {
    node.set_service("kubelet", ServiceState::Preparing, "Creating service runner");
    node.set_service(
        "kubelet",
        ServiceState::Running,
        "Started task kubelet (PID 351) for container kubelet",
    );
    node.pass(node.site.timing.kubelet_healthy).await;
    node.check_service("kubelet", None);
}

/// The API server that this node's kubelet would use: any that it reaches, of the cluster its endpoint leads to.
fn reachable_api(node: &Node) -> Option<Arc<EtcdCluster>> {
    let room = node.room()?;
    let own = node.address()?;
    room.control_planes().into_iter().find_map(|other| {
        let (serves, address) = (other.serves_kubernetes(), other.address()?);
        let (cluster, member) = other.etcd()?;
        let usable = serves && node.site.reaches(own, address) && cluster.leader_of(member).is_some();
        usable.then_some(cluster)
    })
}

async fn api(node: &Arc<Node>, ready: impl Fn(&Store) -> bool) -> Arc<EtcdCluster> {
    let Some(room) = node.room() else {
        return std::future::pending().await;
    };
    let mut changed = room.watch();
    loop {
        changed.mark_unchanged();
        if let Some(cluster) = reachable_api(node).filter(|cluster| ready(&cluster.store)) {
            return cluster;
        }
        Room::stirs(&mut changed, node.site.pace).await;
    }
}

/// Registers the node, reports its state, and follows what the API server says about it.
async fn register(node: &Arc<Node>) {
    let timing = node.site.timing.clone();
    let name = node.hostname();
    let key = Key::new(&kinds::NODES, "", &name);
    // A new kubelet needs its bootstrap token, which is one of the manifests; an old one has its certificate.
    let known = |store: &Store| store.get(&key).is_some();
    let cluster = api(node, |store| objects::has_manifests(store) || known(store)).await;
    let returning = known(&cluster.store);
    node.pass(if returning { timing.cri } else { timing.node_registers }).await;
    let Some(config) = node.config() else { return };
    objects::register_node(&cluster.store, node, &config, &objects::now(node.site.wall));
    node.lock().registered_in = Some(Arc::downgrade(&cluster));
    cluster.heartbeats.arrived(node);
    show_node(node, &cluster.store);
    node.announce();
    let settle = node.pass(if returning { timing.cri } else { timing.node_ready });
    settle.await;
    objects::set_ready(&cluster.store, &name, config.uses_flannel(), &objects::now(node.site.wall));
    show_node(node, &cluster.store);
    follow(node, cluster).await;
}

pub(crate) fn show_node(node: &Node, store: &Store) {
    let name = node.hostname();
    match store.get(&Key::new(&kinds::NODES, "", &name)) {
        Some(object) => node
            .resources
            .put(&resources::NODE_STATUS, &name, resources::node_status(&object)),
        None => node.resources.remove(&resources::NODE_STATUS, &name),
    }
    node.refresh();
    node.beat();
}

/// Labels, cordons, or a CNI from elsewhere: the node sees them.
async fn follow(node: &Arc<Node>, cluster: Arc<EtcdCluster>) {
    let key = Key::new(&kinds::NODES, "", &node.hostname());
    let mut moved = cluster.store.follow(&key);
    loop {
        if moved.changed().await.is_err() {
            return;
        }
        show_node(node, &cluster.store);
    }
}

/// The kubelet reports no more.
pub(crate) fn fell_silent(node: &Node) {
    let cluster = node.lock().registered_in.take();
    if let Some(cluster) = cluster.and_then(|cluster| cluster.upgrade()) {
        cluster.heartbeats.stopped(node);
    }
}

/// Where the sockets of a node's API server are kept.
pub(crate) type ApiSlot = Mutex<Option<ApiSockets>>;

/// The value of a pod status for tests and conversions.
pub(crate) fn is_ready(status: &Value) -> bool {
    status["conditions"]
        .as_array()
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}
