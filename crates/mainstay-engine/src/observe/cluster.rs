//! Members of etcd and Nodes of Kubernetes, from what the machines said.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use mainstay_plan::{
    EtcdMember, EtcdState, Guest, GuestConfig, Kubernetes, NodeCordon, NodeRecord, NodeStatus, Seen, TaintOnNode,
};

use super::ObserveScope;
use crate::addresses::AddressBook;
use crate::clients::Clients;
use crate::event::StepProgress;
use crate::guest::{self, GuestReport, ListedMember};
use crate::kube::{EARLIER_BOOT, KUBERNETES_PORT};

/// How long one machine may take to tell all about itself.
const ASKING: Duration = Duration::from_secs(10);

/// What runs in the machines.
pub struct GuestFacts {
    pub guests: BTreeMap<String, Guest>,
    pub etcd: Seen<Vec<EtcdMember>>,
    pub kubernetes: Seen<Kubernetes>,
}

pub async fn look(
    clients: &Clients,
    scope: &ObserveScope<'_>,
    addresses: &AddressBook,
    configs: &BTreeMap<String, GuestConfig>,
    running: &BTreeMap<String, Ipv4Addr>,
) -> GuestFacts {
    if scope.cluster_id.is_none() {
        return GuestFacts {
            guests: BTreeMap::new(),
            etcd: Seen::No,
            kubernetes: Seen::No,
        };
    }
    let asked = running.iter().map(|(name, address)| async move {
        let asked = guest::AskedGuest {
            name,
            address: *address,
            config: configs.get(name),
        };
        let asking = guest::observe(&clients.env, &clients.guests, addresses, asked);
        let report = tokio::time::timeout(ASKING, asking).await;
        let report = report.unwrap_or_else(|_| Guest::Silent(format!("no answer within {} s", ASKING.as_secs())).into());
        (name.clone(), report)
    });
    let reports: BTreeMap<String, GuestReport> = join_all(asked).await.into_iter().collect();
    let etcd = etcd(clients, scope, addresses, &reports).await;
    let kubernetes = kubernetes(clients, running, scope, &etcd, &reports).await;
    GuestFacts {
        guests: reports.into_iter().map(|(name, report)| (name, report.guest)).collect(),
        etcd,
        kubernetes,
    }
}

/// The members as a healthy machine lists them. Without one, whether there is an etcd at all.
async fn etcd(
    clients: &Clients,
    scope: &ObserveScope<'_>,
    addresses: &AddressBook,
    reports: &BTreeMap<String, GuestReport>,
) -> Seen<Vec<EtcdMember>> {
    let healthy = |name: &str| {
        let guest = reports.get(name).and_then(|report| report.guest.running());
        guest.is_some_and(|guest| guest.etcd == Seen::Yes(EtcdState::Healthy))
    };
    let lists = reports
        .iter()
        .filter_map(|(name, report)| Some((name, report.members.as_ref()?)));
    let Some((lister, list)) = lists.max_by_key(|(name, _)| healthy(name)) else {
        return without_list(scope, reports);
    };
    let members = |list: &[ListedMember]| -> Vec<EtcdMember> {
        let member = |member: &ListedMember| EtcdMember {
            id: member.id,
            healthy: healthy(&member.name),
            name: member.name.clone(),
            learner: member.learner,
        };
        list.iter().map(member).collect()
    };
    let seen = members(list);
    // A machine that has data and is not listed was added after that list, or removed: a list made now tells which.
    let is_unlisted =
        |(name, report): (&String, &GuestReport)| report.guest.has_etcd_data() && !seen.iter().any(|member| member.name == *name);
    if !reports.iter().any(is_unlisted) {
        return Seen::Yes(seen);
    }
    let progress = StepProgress::discard();
    match guest::members(clients.step(addresses, &progress), lister).await {
        Ok(again) => Seen::Yes(members(&again)),
        Err(_) => Seen::Unknown(format!("{lister} did not list the members of etcd a second time")),
    }
}

/// Whether there is an etcd, where no machine lists its members.
fn without_list(scope: &ObserveScope<'_>, reports: &BTreeMap<String, GuestReport>) -> Seen<Vec<EtcdMember>> {
    for (name, report) in reports {
        match &report.guest {
            Guest::Running(node) => match &node.etcd {
                Seen::Yes(EtcdState::Left | EtcdState::Stillborn) | Seen::No => {}
                Seen::Yes(_) => return Seen::Unknown(format!("{name} has etcd data, but no machine lists its members")),
                Seen::Unknown(why) => return Seen::Unknown(format!("{name}: {why}")),
            },
            // It was never configured, so it has no data.
            Guest::AwaitingConfig { .. } => {}
            Guest::Silent(why) | Guest::Foreign(why) if scope.control_planes.contains(name) => {
                return Seen::Unknown(format!("{name}: {why}"));
            }
            Guest::Silent(_) | Guest::Foreign(_) => {}
        }
    }
    Seen::No
}

/// The first control plane whose API server answers tells about all Nodes.
async fn kubernetes(
    clients: &Clients,
    running: &BTreeMap<String, Ipv4Addr>,
    scope: &ObserveScope<'_>,
    etcd: &Seen<Vec<EtcdMember>>,
    reports: &BTreeMap<String, GuestReport>,
) -> Seen<Kubernetes> {
    if *etcd == Seen::No {
        return Seen::No;
    }
    let mut why = "no control plane runs".to_owned();
    for (_, address) in running.iter().filter(|(name, _)| scope.control_planes.contains(*name)) {
        match nodes(clients, *address, scope, reports).await {
            Ok(kubernetes) => return Seen::Yes(kubernetes),
            Err(error) => why = format!("{address}:{KUBERNETES_PORT}: {error}"),
        }
    }
    Seen::Unknown(why)
}

/// Version and Nodes of one server, so that both are from the same moment of the same API server.
async fn nodes(
    clients: &Clients,
    address: Ipv4Addr,
    scope: &ObserveScope<'_>,
    reports: &BTreeMap<String, GuestReport>,
) -> Result<Kubernetes, mainstay_kube::Error> {
    let server = clients.kube.server(address)?;
    let (version, nodes) = tokio::join!(server.version(), server.nodes());
    // What Kubernetes last heard of a machine that does not run, or does not answer, is no news of it.
    let state = |name: &str| match reports.get(name) {
        None if scope.by_name.contains_key(name) => MachineState::Off,
        None => MachineState::Unknown,
        Some(report) => match &report.guest {
            Guest::Silent(why) => MachineState::Silent(why),
            _ => report.boot_id.as_deref().map_or(MachineState::Unknown, MachineState::Boot),
        },
    };
    Ok(Kubernetes {
        version: version?,
        nodes: nodes?
            .iter()
            .map(|node| (node.name.clone(), node_status(node, &state(&node.name))))
            .collect(),
    })
}

/// What is known about the machine of a Node.
enum MachineState<'a> {
    /// It runs in this boot.
    Boot(&'a str),
    Off,
    Silent(&'a str),
    /// It is none of ours, or does not say which boot it is in.
    Unknown,
}

/// A Node, as far as its status is about the machine that runs now.
fn node_status(node: &mainstay_kube::Node, machine: &MachineState<'_>) -> NodeStatus {
    let stale = match machine {
        MachineState::Boot(boot) => !node.is_of_boot(boot),
        MachineState::Off => true,
        MachineState::Silent(_) | MachineState::Unknown => false,
    };
    let why = match machine {
        MachineState::Off => "its machine does not run".to_owned(),
        _ if stale => EARLIER_BOOT.into(),
        // A dead machine cannot say what is wrong with it: its last words are old.
        MachineState::Silent(why) if !node.is_ready() => format!("its machine does not answer: {why}"),
        _ => node.why_not_ready(),
    };
    NodeStatus {
        ready: node.is_ready() && !stale,
        why,
        stale,
        cordon: match (node.cordoned, node.cordon_record()) {
            (true, Some(_)) => NodeCordon::Ours,
            (true, None) => NodeCordon::Foreign,
            (false, Some(_)) => NodeCordon::Ended,
            (false, None) => NodeCordon::None,
        },
        accepts_pods: !node.cordoned && !node.taints.iter().any(keeps_pods_away),
        labels: node.labels.clone(),
        taints: node.taints.iter().map(taint).collect(),
        applied: node
            .annotations
            .get(mainstay_kube::APPLIED)
            .map(|text| NodeRecord::parse(text)),
    }
}

fn taint(taint: &mainstay_kube::NodeTaint) -> TaintOnNode {
    TaintOnNode {
        key: taint.key.clone(),
        effect: taint.effect.clone(),
        value: taint.value.clone(),
    }
}

/// Taints that tell of a node's condition are told by that condition already.
fn keeps_pods_away(taint: &mainstay_kube::NodeTaint) -> bool {
    taint.effect != "PreferNoSchedule" && !taint.key.starts_with("node.kubernetes.io/")
}
