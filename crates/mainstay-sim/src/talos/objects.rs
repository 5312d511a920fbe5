//! The Kubernetes objects that nodes and bootstrap manifests bring.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use mainstay_net::Wall;
use serde_json::{Value, json};

use super::config::Config;
use super::node::Node;
use super::resources::{self, Kind};
use crate::kube::kinds;
use crate::kube::store::{Key, Store};

/// A static pod of the control plane.
pub(crate) struct Component {
    pub name: &'static str,
    /// Where the machine config has its image.
    pub section: &'static str,
    /// The resource whose version is the pod's config version.
    pub config: &'static Kind,
}

pub(crate) static COMPONENTS: [Component; 3] = [
    Component {
        name: "kube-apiserver",
        section: "apiServer",
        config: &resources::API_SERVER_CONFIG,
    },
    Component {
        name: "kube-controller-manager",
        section: "controllerManager",
        config: &resources::CONTROLLER_MANAGER_CONFIG,
    },
    Component {
        name: "kube-scheduler",
        section: "scheduler",
        config: &resources::SCHEDULER_CONFIG,
    },
];

const MANIFESTS: [&str; 10] = [
    "00-kubelet-bootstrapping-token",
    "01-csr-approver-role-binding",
    "01-csr-node-bootstrap",
    "01-csr-renewal-role-binding",
    "05-flannel",
    "10-kube-proxy",
    "11-core-dns",
    "11-core-dns-svc",
    "11-kube-config-in-cluster",
    "11-talos-node-rbac-template",
];

/// The manifests that a config asks for.
pub(crate) fn manifests(config: &Config) -> Vec<&'static str> {
    let wanted = |name: &&str| match *name {
        "05-flannel" => config.uses_flannel(),
        "10-kube-proxy" => config.cluster()["proxy"]["disabled"] != true,
        "11-core-dns" | "11-core-dns-svc" => config.cluster()["coreDNS"]["disabled"] != true,
        _ => true,
    };
    MANIFESTS.into_iter().filter(wanted).collect()
}

const INVENTORY: &str = "talos-bootstrap-manifests-inventory";

/// Whole seconds, as Kubernetes writes times.
pub(crate) fn now(wall: Wall) -> String {
    let now = wall.now();
    jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
}

pub(crate) fn create(store: &Store, key: &Key, mut object: Value, now: &str) {
    object["apiVersion"] = json!(key.kind.api_version());
    object["kind"] = json!(key.kind.kind);
    object["metadata"]["name"] = json!(key.name);
    if key.kind.namespaced {
        object["metadata"]["namespace"] = json!(key.namespace);
    }
    // What is there already was put there by another control plane, or by a user.
    let _ = store.create(key, object, now);
}

/// What an API server makes for itself in an empty etcd.
pub(crate) fn found_cluster(store: &Store, now: &str) {
    for name in ["default", "kube-node-lease", "kube-public", "kube-system"] {
        let object = json!({"metadata": {"labels": {"kubernetes.io/metadata.name": name}}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}});
        create(store, &Key::new(&kinds::NAMESPACES, "", name), object, now);
    }
    let service = json!({"metadata": {"labels": {"component": "apiserver", "provider": "kubernetes"}}, "spec": {"clusterIP": "10.96.0.1", "type": "ClusterIP", "ports": [{"name": "https", "port": 443, "protocol": "TCP", "targetPort": 6443}]}, "status": {"loadBalancer": {}}});
    create(store, &Key::new(&kinds::SERVICES, "default", "kubernetes"), service, now);
}

pub(crate) fn has_manifests(store: &Store) -> bool {
    store.get(&Key::new(&kinds::CONFIG_MAPS, "kube-system", INVENTORY)).is_some()
}

pub(crate) fn apply_manifests(store: &Store, config: &Config, now: &str) {
    let system = |kind, name: &str| Key::new(kind, "kube-system", name);
    if config.uses_flannel() {
        create(
            store,
            &system(&kinds::DAEMON_SETS, "kube-flannel"),
            json!({"metadata": {"labels": {"k8s-app": "flannel", "tier": "node"}}, "spec": {}, "status": {}}),
            now,
        );
    }
    if config.cluster()["proxy"]["disabled"] != true {
        create(
            store,
            &system(&kinds::DAEMON_SETS, "kube-proxy"),
            json!({"metadata": {"labels": {"k8s-app": "kube-proxy", "tier": "node"}}, "spec": {}, "status": {}}),
            now,
        );
    }
    if config.cluster()["coreDNS"]["disabled"] != true {
        create(
            store,
            &system(&kinds::DEPLOYMENTS, "coredns"),
            json!({"metadata": {"labels": {"k8s-app": "kube-dns"}}, "spec": {"replicas": 2}, "status": {"replicas": 2}}),
            now,
        );
        create(
            store,
            &system(&kinds::SERVICES, "kube-dns"),
            json!({"metadata": {"labels": {"k8s-app": "kube-dns"}}, "spec": {"clusterIP": "10.96.0.10", "ports": [{"name": "dns", "port": 53, "protocol": "UDP"}]}}),
            now,
        );
    }
    create(store, &system(&kinds::CONFIG_MAPS, INVENTORY), json!({"data": {}}), now);
}

/// `10.244.3.0/24`: the next free part of the pod network.
fn next_pod_cidr(store: &Store, config: &Config) -> Option<String> {
    let network = config
        .pod_subnets()
        .first()
        .copied()
        .unwrap_or_else(|| "10.244.0.0/16".parse().expect("a network"));
    next_pod_cidr_of(store, network)
}

pub(crate) fn next_pod_cidr_of(store: &Store, network: IpNet) -> Option<String> {
    let (_, nodes) = store.list(&kinds::NODES, None);
    let cidrs = nodes.iter().filter_map(|node| node["spec"]["podCIDR"].as_str());
    let taken: BTreeSet<IpNet> = cidrs.filter_map(|cidr| cidr.parse().ok()).collect();
    let mut parts = network.subnets(24.max(network.prefix_len())).ok()?;
    parts.find(|part| !taken.contains(part)).map(|part| part.to_string())
}

/// Creates the Node, or brings a returning one up to date.
pub(crate) fn register_node(store: &Store, node: &Node, config: &Config, now: &str) {
    let name = node.hostname();
    let key = Key::new(&kinds::NODES, "", &name);
    let facts = NodeFacts::of(node, config);
    if store.get(&key).is_none() {
        let cidr = next_pod_cidr(store, config);
        let mut object = json!({"metadata": {"labels": facts.labels, "annotations": facts.annotations}, "spec": {"podCIDR": cidr, "podCIDRs": [cidr], "taints": facts.taints}, "status": facts.status});
        object["status"]["conditions"] = conditions(Ready::Starting, now);
        write_config(&mut object, config);
        if let Some(taints) = object["spec"]["taints"].as_array_mut() {
            taints.push(json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}));
        }
        create(store, &key, object, now);
        return;
    }
    let _ = store.update(&key, |object| {
        let conditions = object["status"]["conditions"].clone();
        object["status"] = facts.status.clone();
        object["status"]["conditions"] = conditions;
        for (label, value) in facts.labels.as_object().into_iter().flatten() {
            object["metadata"]["labels"][label] = value.clone();
        }
        write_config(object, config);
        Ok(())
    });
}

/// Labels and taints of a config that changed while the node is registered.
pub(crate) fn apply_config(store: &Store, node: &Node, config: &Config) {
    let _ = store.update(&Key::new(&kinds::NODES, "", &node.hostname()), |object| {
        write_config(object, config);
        Ok(())
    });
}

/// Writes the labels and taints of the config to the Node and takes back those that it wrote before. A control plane does so as an
/// administrator. A worker does so as its kubelet, which may not change its own taints: the request is refused as a whole, labels and all.
fn write_config(object: &mut Value, config: &Config) {
    let mut labels: Vec<(String, Value)> = Vec::new();
    let mut taints: Vec<Value> = Vec::new();
    if config.is_control_plane() {
        labels.push(("node-role.kubernetes.io/control-plane".to_owned(), json!("")));
        if !config.schedules_on_control_planes() {
            taints.push(json!({"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}));
        }
    }
    let own = config.node_labels().as_object().into_iter().flatten();
    labels.extend(own.map(|(label, value)| (label.clone(), value.clone())));
    for (key, taint) in config.node_taints().as_object().into_iter().flatten() {
        let text = taint.as_str().unwrap_or_default();
        let (value, effect) = text.rsplit_once(':').unwrap_or(("", text));
        taints.push(if value.is_empty() {
            json!({"key": key, "effect": effect})
        } else {
            json!({"key": key, "value": value, "effect": effect})
        });
    }
    if !config.is_control_plane() && !taints.is_empty() {
        return;
    }
    let owned = |object: &Value, annotation: &str| -> Vec<String> {
        let text = object["metadata"]["annotations"][annotation].as_str().unwrap_or("[]");
        serde_json::from_str(text).unwrap_or_default()
    };
    let (old_labels, old_taints) = (owned(object, OWNED_LABELS), owned(object, OWNED_TAINTS));
    if let Some(there) = object["metadata"]["labels"].as_object_mut() {
        there.retain(|label, _| !old_labels.contains(label));
        there.extend(labels.iter().cloned());
    }
    let keys: Vec<Value> = taints.iter().map(|taint| taint["key"].clone()).collect();
    let mut all: Vec<Value> = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
    all.retain(|taint| !keys.contains(&taint["key"]) && !old_taints.iter().any(|old| taint["key"] == *old));
    taints.extend(all);
    object["spec"]["taints"] = Value::Array(taints);
    let names: Vec<&String> = labels.iter().map(|(label, _)| label).collect();
    annotate(object, OWNED_LABELS, &json!(names));
    annotate(object, OWNED_TAINTS, &json!(keys));
}

const OWNED_LABELS: &str = "talos.dev/owned-labels";
const OWNED_TAINTS: &str = "talos.dev/owned-taints";

/// Lists what Talos owns. An empty list is not written.
fn annotate(object: &mut Value, annotation: &str, names: &Value) {
    let Some(annotations) = object["metadata"]["annotations"].as_object_mut() else {
        return;
    };
    if names.as_array().is_some_and(Vec::is_empty) {
        annotations.remove(annotation);
    } else {
        annotations.insert(annotation.to_owned(), json!(names.to_string()));
    }
}

fn lease_key(node: &str) -> Key {
    Key::new(&kinds::LEASES, kinds::NODE_LEASES, node)
}

/// The lease by which one of several instances of a component leads. It is kept by its holder as long as that runs.
pub(crate) fn renew_leader(store: &Store, component: &str, node: &str, renewed: jiff::Timestamp, now: &str) {
    let renewed = json!(renewed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string());
    let key = Key::new(&kinds::LEASES, "kube-system", component);
    let written = store.update(&key, |lease| {
        lease["spec"]["renewTime"] = renewed.clone();
        lease["spec"]["holderIdentity"] = json!(format!("{node}_{component}"));
        Ok(())
    });
    if written.is_err() {
        let spec = json!({"holderIdentity": format!("{node}_{component}"), "leaseDurationSeconds": 15, "renewTime": renewed, "leaseTransitions": 0});
        create(store, &key, json!({"spec": spec}), now);
    }
}

/// A lease as its kubelet renewed it; made anew if it is not there.
pub(crate) fn renew_lease(store: &Store, node: &str, renewed: jiff::Timestamp, now: &str) {
    let renewed = json!(renewed.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string());
    let key = lease_key(node);
    let written = store.update(&key, |lease| {
        lease["spec"]["renewTime"] = renewed.clone();
        Ok(())
    });
    if written.is_ok() {
        return;
    }
    let mut object = json!({"spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": renewed}});
    if let Some(owner) = store.get(&Key::new(&kinds::NODES, "", node)) {
        object["metadata"]["ownerReferences"] =
            json!([{"apiVersion": "v1", "kind": "Node", "name": node, "uid": owner["metadata"]["uid"]}]);
    }
    create(store, &key, object, now);
}

/// A lease goes with its Node.
pub(crate) fn delete_lease(store: &Store, node: &str) {
    let _ = store.delete(&lease_key(node));
}

struct NodeFacts {
    labels: Value,
    annotations: Value,
    /// Those that the kubelet registers with. They count at the first registration alone.
    taints: Value,
    status: Value,
}

impl NodeFacts {
    fn of(node: &Node, config: &Config) -> Self {
        let name = node.hostname();
        let arch = &node.image.arch;
        let labels = json!({"beta.kubernetes.io/arch": arch, "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": arch, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"});
        let annotations =
            json!({"node.alpha.kubernetes.io/ttl": "0", "volumes.kubernetes.io/controller-managed-attach-detach": "true"});
        Self {
            labels,
            annotations,
            taints: Value::Array(config.registered_taints()),
            status: status(node, config),
        }
    }
}

fn status(node: &Node, config: &Config) -> Value {
    let (cores, memory) = (node.hardware.cores, node.hardware.memory / 1024);
    let capacity = json!({"cpu": cores.to_string(), "memory": format!("{memory}Ki"), "pods": "110", "ephemeral-storage": "36Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0"});
    let allocatable = json!({"cpu": format!("{}m", u64::from(cores) * 1000 - 50), "memory": format!("{}Ki", memory.saturating_sub(400_000)), "pods": "110", "ephemeral-storage": "33Gi", "hugepages-1Gi": "0", "hugepages-2Mi": "0"});
    let addresses = [
        json!({"type": "InternalIP", "address": node.address()}),
        json!({"type": "Hostname", "address": node.hostname()}),
    ];
    let version = &node.image.version;
    json!({
        "addresses": addresses, "capacity": capacity, "allocatable": allocatable, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": node.image.arch, "bootID": node.boot_id, "containerRuntimeVersion": "containerd://2.2.1", "kernelVersion": "6.18.22-talos",
            "kubeProxyVersion": "", "kubeletVersion": config.kubelet_tag(), "machineID": node.hardware.uuid.replace('-', ""), "operatingSystem": "linux",
            "osImage": format!("Talos (v{version})"), "systemUUID": node.hardware.uuid,
        },
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ready {
    Starting,
    Yes,
    NoNetwork,
    Unknown,
}

fn conditions(ready: Ready, now: &str) -> Value {
    let one = |kind: &str, status: &str, reason: &str, message: &str| json!({"type": kind, "status": status, "lastHeartbeatTime": now, "lastTransitionTime": now, "reason": reason, "message": message});
    let no_network = "container runtime network not ready: NetworkReady=false reason:NetworkPluginNotReady message:Network plugin returns error: cni plugin not initialized";
    let (status, reason, message) = match ready {
        Ready::Yes => ("True", "KubeletReady", "kubelet is posting ready status"),
        Ready::Starting | Ready::NoNetwork => ("False", "KubeletNotReady", no_network),
        Ready::Unknown => ("Unknown", "NodeStatusUnknown", "Kubelet stopped posting node status."),
    };
    if ready == Ready::Unknown {
        return json!(["MemoryPressure", "DiskPressure", "PIDPressure", "Ready"].map(|kind| one(kind, status, reason, message)));
    }
    json!([
        one(
            "MemoryPressure",
            "False",
            "KubeletHasSufficientMemory",
            "kubelet has sufficient memory available"
        ),
        one(
            "DiskPressure",
            "False",
            "KubeletHasNoDiskPressure",
            "kubelet has no disk pressure"
        ),
        one(
            "PIDPressure",
            "False",
            "KubeletHasSufficientPID",
            "kubelet has sufficient PID available"
        ),
        one("Ready", status, reason, message),
    ])
}

/// Conditions of a Node that has just registered.
pub(crate) fn starting_conditions(now: &str) -> Value {
    conditions(Ready::Starting, now)
}

fn set_taint(object: &mut Value, key: &str, effects: &[&str]) {
    let mut taints: Vec<Value> = object["spec"]["taints"].as_array().cloned().unwrap_or_default();
    taints.retain(|taint| taint["key"] != key);
    taints.extend(effects.iter().map(|effect| json!({"key": key, "effect": effect})));
    object["spec"]["taints"] = Value::Array(taints);
}

/// The kubelet reports its node; without a network it stays not ready. A CNI from elsewhere shows as a DaemonSet.
pub(crate) fn set_ready(store: &Store, name: &str, flannel: bool, now: &str) {
    if mark_ready(store, name, flannel, now) {
        settle_pods(store, name, now);
    }
}

/// The conditions alone; whether the node is ready.
pub(crate) fn mark_ready(store: &Store, name: &str, flannel: bool, now: &str) -> bool {
    // Another CNI works where its pod runs.
    let other_cni = || {
        store.list(&kinds::PODS, Some("kube-system")).1.iter().any(|pod| {
            let owner = pod["metadata"]["ownerReferences"][0]["name"].as_str().unwrap_or_default();
            let is_cni = owner.contains("cilium") || owner.contains("calico");
            is_cni && pod["spec"]["nodeName"] == name && pod["status"]["phase"] == "Running"
        })
    };
    let ready = flannel || other_cni();
    let _ = store.update(&Key::new(&kinds::NODES, "", name), |object| {
        set_conditions(object, &conditions(if ready { Ready::Yes } else { Ready::NoNetwork }, now));
        set_taint(object, "node.kubernetes.io/unreachable", &[]);
        set_taint(
            object,
            "node.kubernetes.io/not-ready",
            if ready { &[] } else { &["NoSchedule", "NoExecute"] },
        );
        Ok(())
    });
    ready
}

/// Replaces the kubelet's conditions. Those that are as they were keep their times, and those of others stay.
fn set_conditions(object: &mut Value, new: &Value) {
    let old: Vec<Value> = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let own = |kind: &Value| {
        new.as_array()
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == *kind)
    };
    let mut all: Vec<Value> = new.as_array().cloned().unwrap_or_default();
    all.extend(old.iter().filter(|condition| !own(&condition["type"])).cloned());
    object["status"]["conditions"] = Value::Array(all);
}

/// A pod of a DaemonSet on a node.
pub(crate) fn write_daemon_pod(store: &Store, set: &Value, key: &Key, node: &Value, now: &str) {
    let address = node["status"]["addresses"][0]["address"]
        .as_str()
        .and_then(|text| text.parse().ok());
    let (Some(address), Some(name)) = (address, node["metadata"]["name"].as_str()) else {
        return;
    };
    let first = &set["spec"]["template"]["spec"]["containers"][0];
    let image = first["image"].as_str().unwrap_or("rancher/pause:3.6").to_owned();
    let container = Container {
        name: first["name"].as_str().unwrap_or(&key.name),
        image: &image,
        requests: Value::Null,
        mounts: Vec::new(),
    };
    let owner = json!({"apiVersion": "apps/v1", "kind": "DaemonSet", "name": set["metadata"]["name"], "uid": set["metadata"]["uid"], "controller": true});
    let mut spec = set["spec"]["template"]["spec"].clone();
    spec["nodeName"] = json!(name);
    let object = json!({
        "metadata": {"labels": set["spec"]["template"]["metadata"]["labels"], "ownerReferences": [owner]},
        "spec": spec,
        "status": pod_status(&container, address, Health::Ready, now),
    });
    create(store, key, object, now);
}

/// What the controllers make of a node that can take pods: one of each DaemonSet there, and two of CoreDNS on the first such node.
fn settle_pods(store: &Store, name: &str, now: &str) {
    let nodes = store.list(&kinds::NODES, None).1;
    let node = nodes.iter().find(|node| node["metadata"]["name"] == name);
    let Some(address) = node.and_then(|node| node["status"]["addresses"][0]["address"].as_str()?.parse().ok()) else {
        return;
    };
    let place = Place {
        node: name,
        address,
        now,
    };
    for set in store.list(&kinds::DAEMON_SETS, Some("kube-system")).1 {
        // Those with a template are the DaemonSet controller's.
        if set["spec"]["template"].is_object() {
            continue;
        }
        let set_name = set["metadata"]["name"].as_str().unwrap_or_default();
        write_pod(store, &set, "DaemonSet", &format!("{set_name}-{name}"), &place);
        let count = nodes.len();
        let status = json!({"currentNumberScheduled": count, "desiredNumberScheduled": count, "numberAvailable": count, "numberMisscheduled": 0, "numberReady": count, "updatedNumberScheduled": count});
        set_status(store, &Key::new(&kinds::DAEMON_SETS, "kube-system", set_name), &status);
    }
    let coredns = Key::new(&kinds::DEPLOYMENTS, "kube-system", "coredns");
    let Some(deployment) = store.get(&coredns) else {
        return;
    };
    for pod in ["coredns-1", "coredns-2"] {
        write_pod(store, &deployment, "Deployment", pod, &place);
    }
    let status = json!({"availableReplicas": 2, "readyReplicas": 2, "replicas": 2, "updatedReplicas": 2});
    set_status(store, &coredns, &status);
}

/// Where and when a pod runs.
struct Place<'a> {
    node: &'a str,
    address: IpAddr,
    now: &'a str,
}

/// The status as its controller writes it, with the generation that it has seen.
fn set_status(store: &Store, key: &Key, status: &Value) {
    let _ = store.update(key, |object| {
        object["status"] = status.clone();
        object["status"]["observedGeneration"] = json!(object["metadata"]["generation"].as_u64().unwrap_or(1));
        Ok(())
    });
}

/// A running pod of a workload; nothing if it is there.
fn write_pod(store: &Store, owner: &Value, kind: &str, name: &str, place: &Place<'_>) {
    let app = owner["metadata"]["name"].as_str().unwrap_or_default();
    let image = format!("registry.k8s.io/{app}");
    let reference =
        json!({"apiVersion": "apps/v1", "kind": kind, "name": app, "uid": owner["metadata"]["uid"], "controller": true});
    let container = Container {
        name: app,
        image: &image,
        requests: Value::Null,
        mounts: Vec::new(),
    };
    let object = json!({
        "metadata": {"labels": owner["metadata"]["labels"], "ownerReferences": [reference]},
        "spec": {"nodeName": place.node, "containers": [{"name": app, "image": image}]},
        "status": pod_status(&container, place.address, Health::Ready, place.now),
    });
    create(store, &Key::new(&kinds::PODS, "kube-system", name), object, place.now);
}

/// The node controller's verdict on a silent kubelet; nothing if the machine has booted again since.
pub(crate) fn set_unknown(store: &Store, name: &str, boot: &str, now: &str) {
    let _ = store.update(&Key::new(&kinds::NODES, "", name), |object| {
        if object["status"]["nodeInfo"]["bootID"] == boot {
            set_conditions(object, &conditions(Ready::Unknown, now));
            set_taint(object, "node.kubernetes.io/unreachable", &["NoSchedule", "NoExecute"]);
        }
        Ok(())
    });
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    Starting,
    Ready,
}

/// The one container of a pod.
pub(crate) struct Container<'a> {
    pub name: &'a str,
    pub image: &'a str,
    /// `{cpu, memory}`, or nothing.
    pub requests: Value,
    pub mounts: Vec<Value>,
}

fn digest(of: &str) -> String {
    hex::encode(<sha2::Sha256 as sha2::Digest>::digest(of))
}

pub(crate) fn pod_status(container: &Container<'_>, address: IpAddr, health: Health, now: &str) -> Value {
    let ready = health == Health::Ready;
    let word = if ready { "True" } else { "False" };
    let one =
        |kind: &str, status: &str| json!({"lastProbeTime": null, "lastTransitionTime": now, "status": status, "type": kind});
    let conditions = [
        one("PodReadyToStartContainers", "True"),
        one("Initialized", "True"),
        one("Ready", word),
        one("ContainersReady", word),
        one("PodScheduled", "True"),
    ];
    let mut status = json!({
        "conditions": conditions, "containerStatuses": [container_status(container, ready, now)], "hostIP": address, "hostIPs": [{"ip": address}],
        "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "qosClass": "Burstable", "startTime": now,
    });
    if !container.requests.is_null() {
        status["allocatedResources"] = container.requests.clone();
        status["resources"] = json!({"requests": container.requests});
    }
    sorted(&status)
}

fn container_status(container: &Container<'_>, ready: bool, now: &str) -> Value {
    let (name, image) = (container.name, container.image);
    let repository = image.rsplit_once(':').map_or(image, |(repository, _)| repository);
    let state = if ready {
        json!({"running": {"startedAt": now}})
    } else {
        json!({"waiting": {"reason": "CrashLoopBackOff"}})
    };
    let mut status = json!({
        "containerID": format!("containerd://{}", digest(&format!("{name} {now}"))), "image": image, "imageID": format!("{repository}@sha256:{}", digest(image)),
        "lastState": {}, "name": name, "ready": ready, "restartCount": if ready { 0 } else { 2 }, "started": ready, "state": state,
    });
    if !container.requests.is_null() {
        status["allocatedResources"] = container.requests.clone();
        status["resources"] = json!({"requests": container.requests});
    }
    if !container.mounts.is_empty() {
        status["volumeMounts"] = json!(container.mounts);
    }
    sorted(&status)
}

/// Keys in the order of the alphabet, as the kubelet writes them.
fn sorted(object: &Value) -> Value {
    let keys: std::collections::BTreeMap<&String, &Value> = object.as_object().into_iter().flatten().collect();
    keys.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// What a static pod asks for and mounts.
pub(crate) fn static_container<'a>(component: &'a Component, config: &Config, image: &'a str) -> Container<'a> {
    let name = component.name;
    let (cpu, memory) = match name {
        "kube-apiserver" => ("200m", "512Mi"),
        "kube-controller-manager" => ("50m", "256Mi"),
        _ => ("10m", "64Mi"),
    };
    let asked = &config.cluster()[component.section]["resources"]["requests"];
    let requests = if asked.is_object() {
        asked.clone()
    } else {
        json!({"cpu": cpu, "memory": memory})
    };
    let mount = |kind: &str, volume: &str| json!({"mountPath": format!("/system/{kind}/kubernetes/{name}"), "name": volume, "readOnly": true, "recursiveReadOnly": "Disabled"});
    let mut mounts = vec![mount("secrets", "secrets")];
    if name != "kube-controller-manager" {
        mounts.push(mount("config", "config"));
    }
    if name == "kube-apiserver" {
        mounts.push(json!({"mountPath": "/var/log/audit/kube", "name": "audit"}));
    }
    Container {
        name,
        image,
        requests,
        mounts,
    }
}

/// What is told about a static pod.
pub(crate) struct Mirror<'a> {
    pub node: &'a str,
    pub image: &'a str,
    /// The version of the component's config that the pod runs with.
    pub version: u64,
    pub status: &'a Value,
}

/// The pod that the API server shows for a static pod.
pub(crate) fn write_mirror_pod(store: &Store, component: &Component, mirror: &Mirror<'_>, now: &str) {
    let (name, image) = (component.name, mirror.image);
    let key = Key::new(&kinds::PODS, "kube-system", &format!("{name}-{}", mirror.node));
    let labels = json!({"k8s-app": name, "component": name, "tier": "control-plane"});
    let version = mirror.version.to_string();
    let hash = &digest(&format!("{name} {version}"))[..32];
    let annotations = json!({"talos.dev/config-version": version, "kubernetes.io/config.source": "http",
        "kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash});
    let object = json!({
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"nodeName": mirror.node, "hostNetwork": true, "priorityClassName": "system-cluster-critical", "containers": [{"name": name, "image": image}]},
        "status": mirror.status,
    });
    create(store, &key, object, now);
    let _ = store.update(&key, |pod| {
        pod["status"] = mirror.status.clone();
        pod["metadata"]["annotations"]["talos.dev/config-version"] = json!(version);
        pod["spec"]["containers"][0]["image"] = json!(image);
        Ok(())
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ready_node_has_a_pod_of_each_daemon_set_and_the_first_has_coredns() {
        let (store, now) = (Store::new(), "2026-01-01T00:00:00Z");
        let system = |kind, name: &str| Key::new(kind, "kube-system", name);
        create(&store, &system(&kinds::DAEMON_SETS, "kube-proxy"), json!({}), now);
        create(&store, &system(&kinds::DEPLOYMENTS, "coredns"), json!({}), now);
        for (name, address) in [("one", "10.0.0.1"), ("two", "10.0.0.2")] {
            let node = json!({"status": {"addresses": [{"type": "InternalIP", "address": address}]}});
            create(&store, &Key::new(&kinds::NODES, "", name), node, now);
            set_ready(&store, name, true, now);
        }
        let node_of = |pod: &str| {
            store
                .get(&system(&kinds::PODS, pod))
                .map(|pod| pod["spec"]["nodeName"].clone())
        };
        assert_eq!(node_of("kube-proxy-two"), Some(json!("two")));
        assert_eq!(node_of("coredns-1"), Some(json!("one")));
        assert_eq!(node_of("coredns-2"), Some(json!("one")));
        let proxies = store.get(&system(&kinds::DAEMON_SETS, "kube-proxy")).expect("it was made");
        assert_eq!(proxies["status"]["numberReady"], 2);
    }
}
