//! `cluster.ClusterService`: the health check that `talosctl health` asks a control plane for.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use talos_proto::cluster;
use tokio::sync::mpsc;
use tonic::{Request, Status};

use super::machine::control_plane_only;
use super::{Answer, Api, Stream};
use crate::kube::kinds;
use crate::talos::boot;
use crate::talos::kubelet;
use crate::talos::node::Node;
use crate::talos::resources::{self, Stage};

type Progress = mpsc::UnboundedSender<Result<cluster::HealthCheckProgress, Status>>;

enum Verdict {
    Ok,
    Skip,
    Wait(String),
}

struct Scope {
    node: Arc<Node>,
    control_planes: Vec<IpAddr>,
    workers: Vec<IpAddr>,
}

type Check = fn(&Scope) -> Verdict;

const CHECKS: [(&str, Check); 13] = [
    ("etcd to be healthy", |scope| scope.service("etcd")),
    ("etcd members to be consistent across nodes", |_| Verdict::Ok),
    ("etcd members to be control plane nodes", Scope::members),
    ("apid to be ready", Scope::apid),
    ("all nodes memory sizes", |_| Verdict::Ok),
    ("all nodes disk sizes", |_| Verdict::Ok),
    ("no diagnostics", Scope::diagnostics),
    ("kubelet to be healthy", |scope| scope.service("kubelet")),
    ("all nodes to finish boot sequence", Scope::booted),
    ("all k8s nodes to report", Scope::nodes_report),
    ("all control plane static pods to be running", Scope::static_pods),
    ("all control plane components to be ready", Scope::static_pods),
    ("all k8s nodes to report ready", Scope::nodes_ready),
];

#[tonic::async_trait]
impl cluster::cluster_service_server::ClusterService for Api {
    async fn health_check(&self, request: Request<cluster::HealthCheckRequest>) -> Answer<Stream<cluster::HealthCheckProgress>> {
        control_plane_only(&self.0, "cluster health check")?;
        let request = request.into_inner();
        let wait = request
            .wait_timeout
            .and_then(|wait| Duration::try_from(wait).ok())
            .unwrap_or(Duration::from_secs(1200));
        let scope = Scope::of(&self.0, request.cluster_info.unwrap_or_default());
        let (send, receive) = mpsc::unbounded_channel();
        self.0.spawn(async move {
            if tokio::time::timeout(wait, run(&scope, &send)).await.is_err() {
                let _ = send.send(Err(Status::deadline_exceeded("context deadline exceeded")));
            }
        });
        Ok(tonic::Response::new(Box::pin(
            tokio_stream::wrappers::UnboundedReceiverStream::new(receive).map(|item| item),
        )))
    }
}

fn say(progress: &Progress, message: String) {
    let _ = progress.send(Ok(cluster::HealthCheckProgress { metadata: None, message }));
}

async fn run(scope: &Scope, progress: &Progress) {
    let quoted: Vec<String> = scope.all().map(|address| format!("\"{address}\"")).collect();
    say(progress, format!("discovered nodes: [{}]", quoted.join(" ")));
    let more: [(&str, Check); 3] = [
        ("kube-proxy to report ready", |scope| scope.skip_without_network()),
        ("coredns to report ready", |scope| scope.skip_without_network()),
        ("all k8s nodes to report schedulable", |_| Verdict::Ok),
    ];
    for (name, check) in CHECKS.into_iter().chain(more) {
        say(progress, format!("waiting for {name}: ..."));
        let mut last = String::new();
        loop {
            match check(scope) {
                Verdict::Ok => break say(progress, format!("waiting for {name}: OK")),
                Verdict::Skip => break say(progress, format!("waiting for {name}: SKIP")),
                Verdict::Wait(why) if why != last => {
                    say(progress, format!("waiting for {name}: {why}"));
                    last = why;
                }
                Verdict::Wait(_) => {}
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

impl Scope {
    fn of(node: &Arc<Node>, info: cluster::ClusterInfo) -> Self {
        let parse = |names: Vec<String>| names.iter().filter_map(|name| name.parse().ok()).collect::<Vec<IpAddr>>();
        let (mut control_planes, mut workers) = (parse(info.control_plane_nodes), parse(info.worker_nodes));
        if control_planes.is_empty() && workers.is_empty() {
            boot::show_members(node);
            for member in node.resources.list(&resources::MEMBER) {
                let value = member.spec.value();
                let address = value["addresses"][0].as_str().and_then(|text| text.parse::<IpAddr>().ok());
                let list = if value["machineType"] == "controlplane" {
                    &mut control_planes
                } else {
                    &mut workers
                };
                list.extend(address);
            }
        }
        Self {
            node: Arc::clone(node),
            control_planes,
            workers,
        }
    }

    fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.control_planes.iter().chain(&self.workers).copied()
    }

    fn node_at(&self, address: IpAddr) -> Option<Arc<Node>> {
        let from = self.node.address()?;
        self.node
            .site
            .node_at(address)
            .filter(|_| self.node.site.reaches(from, address))
    }

    fn service(&self, id: &str) -> Verdict {
        for address in &self.control_planes {
            let node = self.node_at(*address);
            if !node.as_ref().is_some_and(|node| node.is_up(id)) {
                let (state, message) = node.map(|node| node.services.last(id)).unwrap_or_default();
                return Verdict::Wait(format!(
                    "1 error occurred:\n\t* {address}: service \"{id}\" not in expected state \"Running\": current state [{state}] {message}"
                ));
            }
        }
        Verdict::Ok
    }

    fn members(&self) -> Verdict {
        let Some((cluster, _)) = self.node.etcd() else {
            return Verdict::Wait("etcd is not running".to_owned());
        };
        let members: Vec<IpAddr> = cluster.members().iter().map(|member| member.address).collect();
        let known: Vec<IpAddr> = self.control_planes.iter().copied().chain(self.node.addresses()).collect();
        if members.iter().all(|address| known.contains(address)) {
            return Verdict::Ok;
        }
        let quote = |list: &[IpAddr]| {
            list.iter()
                .map(|address| format!("\"{address}\""))
                .collect::<Vec<_>>()
                .join(" ")
        };
        Verdict::Wait(format!(
            "etcd member ips [{}] are not subset of control plane node ips [{}]",
            quote(&members),
            quote(&known)
        ))
    }

    fn apid(&self) -> Verdict {
        let missing: Vec<String> = self
            .all()
            .filter(|address| !self.node_at(*address).is_some_and(|node| node.api.is_serving()))
            .map(|address| address.to_string())
            .collect();
        if missing.is_empty() {
            Verdict::Ok
        } else {
            Verdict::Wait(format!("apid is not ready on {}", missing.join(", ")))
        }
    }

    fn diagnostics(&self) -> Verdict {
        for address in self.all() {
            let found = self.node_at(address).map(|node| node.resources.list(&resources::DIAGNOSTIC));
            if let Some(first) = found.unwrap_or_default().first() {
                let message = first.spec.value()["message"].as_str().unwrap_or_default();
                return Verdict::Wait(format!(
                    "active diagnostics: {address}: {message} (https://talos.dev/diagnostic/{})",
                    first.id
                ));
            }
        }
        Verdict::Ok
    }

    fn booted(&self) -> Verdict {
        let booting: Vec<String> = self
            .all()
            .filter(|address| !self.node_at(*address).is_some_and(|node| node.stage() == Stage::Running))
            .map(|address| address.to_string())
            .collect();
        if booting.is_empty() {
            Verdict::Ok
        } else {
            Verdict::Wait(format!("nodes \"{}\" are in unexpected stage: booting", booting.join(", ")))
        }
    }

    fn nodes(&self) -> Vec<Arc<serde_json::Value>> {
        self.node
            .etcd()
            .map(|(cluster, _)| cluster.store.list(&kinds::NODES, None).1)
            .unwrap_or_default()
    }

    fn nodes_report(&self) -> Verdict {
        let (found, expected) = (self.nodes().len(), self.all().count());
        if found == expected {
            Verdict::Ok
        } else {
            Verdict::Wait(format!("expected {expected} nodes but got {found} nodes"))
        }
    }

    fn static_pods(&self) -> Verdict {
        for address in &self.control_planes {
            let Some(node) = self.node_at(*address) else {
                return Verdict::Wait(format!("can't find node {address}"));
            };
            let statuses = node.resources.list(&resources::STATIC_POD_STATUS);
            let ready = statuses
                .iter()
                .filter(|status| kubelet::is_ready(status.spec.value()))
                .count();
            if ready < 3 {
                return Verdict::Wait(format!("missing static pods on node {address}"));
            }
        }
        Verdict::Ok
    }

    fn without_network(&self) -> bool {
        self.node.config().is_some_and(|config| config.cni() == "none") && self.node.minor() >= 13
    }

    fn skip_without_network(&self) -> Verdict {
        if self.without_network() { Verdict::Skip } else { Verdict::Ok }
    }

    fn nodes_ready(&self) -> Verdict {
        if self.without_network() {
            return Verdict::Skip;
        }
        let sick: Vec<String> = self
            .nodes()
            .iter()
            .filter(|node| !kubelet::is_ready(&node["status"]))
            .filter_map(|node| Some(node["metadata"]["name"].as_str()?.to_owned()))
            .collect();
        if sick.is_empty() {
            Verdict::Ok
        } else {
            Verdict::Wait(format!("some nodes are not ready: [{}]", sick.join(" ")))
        }
    }
}
