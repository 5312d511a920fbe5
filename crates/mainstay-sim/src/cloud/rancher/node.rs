//! The kubelet's part: the Node object, its heartbeat and its conditions.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use jiff::Timestamp;
use rand::Rng;
use serde_json::{Value, json};
use sha2::Digest;

use super::cluster::{Cluster, EtcdData};
use super::config::Config;
use super::{Binary, Distro};
use crate::cloud::host::Host;
use crate::kube::kinds;
use crate::kube::store::{Key, Store};
use crate::talos::{Site, objects};

const PASSWORD: &str = "/etc/rancher/node/password";
const RENEWED_EVERY: i64 = 10;

/// A kubelet as its cluster knows it.
pub(crate) struct Kubelet {
    pub host: Weak<Host>,
    pub boot: String,
    seen: Timestamp,
    lost: bool,
    has_network: bool,
}

/// The secret that a node keeps; another machine under its name does not have it.
pub(super) fn check_password(host: &Arc<Host>, distro: Distro, cluster: &Cluster, name: &str) -> Result<(), String> {
    let password = host.fs.text(PASSWORD).unwrap_or_else(|| {
        let mut random = [0; 16];
        host.entropy
            .fork(&format!("node password {}", host.site.next_serial()))
            .rng()
            .fill_bytes(&mut random);
        let text = hex::encode(random);
        host.fs.install(PASSWORD, text.clone(), 0o600, host.now());
        text
    });
    let hash = hex::encode(sha2::Sha256::digest(password.trim()));
    let key = Key::new(
        &kinds::SECRETS,
        "kube-system",
        &format!("{name}.node-password.{}", distro.name()),
    );
    match cluster.store().get(&key) {
        Some(secret) if secret["data"]["hash"] == hash.as_str() => Ok(()),
        Some(_) => Err(format!(
            "Node password rejected, duplicate hostname or contents of '{PASSWORD}' may not match server node-passwd entry, try enabling a unique node name with the --with-node-id flag"
        )),
        None => {
            objects::create(
                cluster.store(),
                &key,
                json!({"immutable": true, "type": "Opaque", "data": {"hash": hash}}),
                &objects::now(host.site.wall),
            );
            Ok(())
        }
    }
}

/// Registers the node and reports it for as long as the process lives.
pub(super) async fn run(host: &Arc<Host>, binary: &Binary, config: &Config, cluster: &Arc<Cluster>, etcd: Option<&EtcdData>) {
    let distro = binary.distro;
    let name = config.node_name(host);
    while let Err(error) = check_password(host, distro, cluster, &name) {
        host.journal.write(host, None, distro.name(), &error);
        tokio::time::sleep(Duration::from_secs(10)).await;
    }
    host.pass(host.timing().node_registers).await;
    register(host, binary, config, cluster, &name);
    host.runtime.set_kubelet(Some((Arc::clone(cluster), name.clone())));
    let kubelet = Kubelet {
        host: Arc::downgrade(host),
        boot: host.boot_id.clone(),
        seen: host.site.wall.now(),
        lost: false,
        has_network: has_network(config, distro),
    };
    cluster.lock().kubelets.insert(name.clone(), kubelet);
    host.pass(host.timing().cni).await;
    report(cluster, &name, has_network(config, distro), host.site.wall);
    host.pass(Duration::from_secs(1)).await;
    if let Some(data) = etcd {
        label_server(host, distro, cluster, data, &name);
    }
    loop {
        // A network that is installed later makes the node ready.
        tokio::time::sleep(host.site.pace.scale(Duration::from_secs(2))).await;
        report(cluster, &name, has_network(config, distro), host.site.wall);
    }
}

fn has_network(config: &Config, distro: Distro) -> bool {
    match distro {
        Distro::K3s => config.or("flannel-backend", "vxlan") != "none",
        Distro::Rke2 => !config.list("cni").iter().any(|cni| cni == "none"),
    }
}

fn report(cluster: &Cluster, name: &str, network: bool, wall: mainstay_net::Wall) {
    let key = Key::new(&kinds::NODES, "", name);
    let ready = cluster.store().get(&key).is_some_and(|node| is_ready(&node));
    if !ready && cluster.lock().kubelets.get(name).is_some_and(|kubelet| !kubelet.lost) {
        objects::mark_ready(cluster.store(), name, network, &objects::now(wall));
    }
}

fn is_ready(node: &Value) -> bool {
    let conditions = node["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

fn register(host: &Arc<Host>, binary: &Binary, config: &Config, cluster: &Cluster, name: &str) {
    let store = cluster.store();
    let key = Key::new(&kinds::NODES, "", name);
    let status = status(host, binary, config, name);
    if store.get(&key).is_some() {
        let _ = store.update(&key, |node| {
            let conditions = node["status"]["conditions"].clone();
            node["status"] = status.clone();
            node["status"]["conditions"] = conditions;
            Ok(())
        });
        return;
    }
    let mut labels = json!({
        "beta.kubernetes.io/arch": "amd64", "beta.kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64", "kubernetes.io/hostname": name,
        "kubernetes.io/os": "linux", "node.kubernetes.io/instance-type": binary.distro.name(),
    });
    for label in config.list("node-label") {
        let (label, value) = label
            .split_once('=')
            .map_or((label.clone(), String::new()), |(label, value)| {
                (label.to_owned(), value.to_owned())
            });
        labels[label] = json!(value);
    }
    let mut taints: Vec<Value> = config
        .list("node-taint")
        .iter()
        .filter_map(|taint| parse_taint(taint))
        .collect();
    taints.push(json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}));
    if config.text("cloud-provider-name").as_deref() == Some("external")
        || config
            .list("kubelet-arg")
            .iter()
            .any(|flag| flag == "cloud-provider=external")
    {
        taints.push(json!({"key": "node.cloudprovider.kubernetes.io/uninitialized", "value": "true", "effect": "NoSchedule"}));
    }
    let address = node_address(host, config);
    let cidr = next_pod_cidr(store, config);
    let mut node = json!({
        "metadata": {
            "labels": labels,
            "annotations": {
                "alpha.kubernetes.io/provided-node-ip": address, format!("{}.io/hostname", binary.distro.name()): host.hostname(),
                format!("{}.io/internal-ip", binary.distro.name()): address, "node.alpha.kubernetes.io/ttl": "0",
                "volumes.kubernetes.io/controller-managed-attach-detach": "true",
            },
            "finalizers": ["wrangler.cattle.io/managed-etcd-controller", "wrangler.cattle.io/node"],
        },
        "spec": {"podCIDR": cidr, "podCIDRs": [cidr], "providerID": format!("{}://{name}", binary.distro.name()), "taints": taints},
        "status": status,
    });
    node["status"]["conditions"] = objects::starting_conditions(&objects::now(host.site.wall));
    objects::create(store, &key, node, &objects::now(host.site.wall));
}

/// `key=value:effect`
fn parse_taint(text: &str) -> Option<Value> {
    let (left, effect) = text.rsplit_once(':')?;
    let (key, value) = left.split_once('=').unwrap_or((left, ""));
    Some(json!({"key": key, "value": value, "effect": effect}))
}

fn node_address(host: &Host, config: &Config) -> Option<IpAddr> {
    config
        .list("node-ip")
        .first()
        .and_then(|text| text.parse().ok())
        .or_else(|| host.address())
}

fn next_pod_cidr(store: &Store, config: &Config) -> Option<String> {
    let network: ipnet::IpNet = config.or("cluster-cidr", "10.42.0.0/16").split(',').next()?.parse().ok()?;
    objects::next_pod_cidr_of(store, network)
}

fn status(host: &Host, binary: &Binary, config: &Config, name: &str) -> Value {
    let (cores, memory) = (host.hardware.cores, host.hardware.memory / 1024);
    let capacity = json!({"cpu": cores.to_string(), "memory": format!("{memory}Ki"), "pods": "110", "ephemeral-storage": format!("{}Ki", host.fs.disk().root_size() / 1024)});
    json!({
        "addresses": [{"type": "InternalIP", "address": node_address(host, config)}, {"type": "Hostname", "address": name}],
        "capacity": capacity, "allocatable": capacity, "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "architecture": "amd64", "bootID": host.boot_id, "containerRuntimeVersion": "containerd://2.3.3-k3s1", "kernelVersion": host.image.kernel(),
            "kubeProxyVersion": "", "kubeletVersion": binary.version, "machineID": host.hardware.uuid.replace('-', ""), "operatingSystem": "linux",
            "osImage": host.image.pretty_name(), "systemUUID": host.hardware.uuid,
        },
    })
}

/// Roles and the etcd member follow a second after the node is ready.
fn label_server(host: &Host, distro: Distro, cluster: &Cluster, data: &EtcdData, name: &str) {
    let member = cluster.etcd.member(data.member);
    let _ = cluster.store().update(&Key::new(&kinds::NODES, "", name), |node| {
        node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"] = json!("true");
        if let Some(member) = member.filter(|_| !cluster.is_sqlite) {
            node["metadata"]["labels"]["node-role.kubernetes.io/etcd"] = json!("true");
            node["metadata"]["annotations"][distro.annotation("node-name")] = json!(member.name);
            node["metadata"]["annotations"][distro.annotation("node-address")] = json!(host.address());
        }
        Ok(())
    });
}

/// Whether the kubelet of a node runs.
pub(super) fn is_alive(cluster: &Cluster, name: &str) -> bool {
    let host = cluster.lock().kubelets.get(name).and_then(|kubelet| kubelet.host.upgrade());
    host.is_some_and(|host| !host.is_ending() && host.runtime.kubelet().is_some_and(|(_, node)| node == name))
}

/// Notes who reports, and judges who has been silent for too long.
pub(super) fn look(site: &Site, cluster: &Arc<Cluster>) {
    let servers: Vec<IpAddr> = site
        .cloud
        .all()
        .iter()
        .filter(|host| host.runtime.serves_api())
        .filter_map(|host| {
            let data = host.runtime.etcd().filter(|data| Arc::ptr_eq(&data.cluster, cluster))?;
            cluster.etcd.leader_of(data.member)?;
            host.address()
        })
        .collect();
    if servers.is_empty() {
        return;
    }
    let now = site.wall.now();
    let grace = i64::try_from(site.pace.scale(site.timing.node_grace).as_secs()).unwrap_or(50);
    let mut state = cluster.lock();
    let mut verdicts = Vec::new();
    for (name, kubelet) in &mut state.kubelets {
        let alive = kubelet.host.upgrade().is_some_and(|host| {
            let runs = host
                .runtime
                .kubelet()
                .is_some_and(|(own, node)| Arc::ptr_eq(&own, cluster) && node == *name);
            runs && !host.is_ending()
                && host
                    .address()
                    .is_some_and(|own| servers.iter().any(|server| site.reaches(own, *server)))
        });
        if alive {
            kubelet.seen = now;
            if std::mem::take(&mut kubelet.lost) {
                verdicts.push((name.clone(), kubelet.boot.clone(), true, kubelet.has_network));
            }
        } else if !kubelet.lost && now.as_second() - kubelet.seen.as_second() > grace {
            kubelet.lost = true;
            verdicts.push((name.clone(), kubelet.boot.clone(), false, kubelet.has_network));
        }
    }
    drop(state);
    for (name, boot, alive, network) in verdicts {
        if alive {
            objects::mark_ready(cluster.store(), &name, network, &objects::now(site.wall));
        } else {
            objects::set_unknown(cluster.store(), &name, &boot, &objects::now(site.wall));
        }
    }
}

/// Leases as they were renewed until now.
pub(super) fn write_leases(site: &Site, cluster: &Arc<Cluster>) {
    look(site, cluster);
    let renewed: Vec<(String, Timestamp)> = cluster
        .lock()
        .kubelets
        .iter()
        .map(|(name, kubelet)| {
            let seconds = kubelet.seen.as_second();
            (
                name.clone(),
                Timestamp::from_second(seconds - seconds % RENEWED_EVERY).unwrap_or(kubelet.seen),
            )
        })
        .collect();
    for (name, renewed) in renewed {
        if cluster.store().get(&Key::new(&kinds::NODES, "", &name)).is_some() {
            objects::renew_lease(cluster.store(), &name, renewed, &objects::now(site.wall));
        }
    }
}
