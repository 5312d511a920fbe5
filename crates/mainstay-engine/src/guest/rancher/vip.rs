//! Whether the virtual address is free, ours, or taken.
//!
//! kube-vip looks for no duplicate: it takes an address over without a word. So the address is asked for before kube-vip may use it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use mainstay_kube::{Cluster, ObjectRef};
use mainstay_net::{DialFault, Target, dial_within};
use rancher_config::manifests::{VIP_LABEL, VIP_LEASE, VIP_OFF};
use serde_json::json;

use super::access::RancherAccess;
use super::session::OpenGuest;
use super::supervisor::SupervisorError;
use super::wait::{Poll, WaitReporter, until};
use crate::failure::Failure;

/// Ports that most hosts answer on, be it with a refusal. The first one is the API's.
const PORTS: [u16; 3] = [6443, 22, 443];
const DIAL: Duration = Duration::from_secs(3);

/// What one port of the address says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VipAnswer {
    /// No answer, or no route: no host has the address.
    Silent,
    /// A host has the address and refuses the connection.
    Refused,
    /// A host has the address and accepts the connection.
    Open,
    /// The API's port, with a certificate of this cluster.
    OurApi,
    /// The address could not be asked for: the way to it is broken.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VipVerdict {
    Free,
    /// A server of ours holds it.
    Ours,
    /// A host that is none of our servers has it. kube-vip must not start.
    Taken(String),
    Unknown,
}

/// Judges the answers of the address. `holder` is the holder of kube-vip's lease, if the cluster has one.
pub fn judge_vip(answers: &[VipAnswer], holder: Option<&str>, our_nodes: &BTreeSet<String>) -> VipVerdict {
    let has = |answer| answers.contains(&answer);
    if has(VipAnswer::OurApi) {
        return VipVerdict::Ours;
    }
    // The holder announces the address also while its API server is away, so refusals are its own.
    if let Some(holder) = holder.filter(|holder| our_nodes.contains(*holder)) {
        return match has(VipAnswer::Open) && !has(VipAnswer::Refused) && answers.first() == Some(&VipAnswer::Open) {
            true => VipVerdict::Taken(format!("{holder} holds the lease, but another API answers on the address")),
            false => VipVerdict::Ours,
        };
    }
    if has(VipAnswer::Open) || has(VipAnswer::Refused) {
        return VipVerdict::Taken("a host that is not a server of this cluster answers on the address".into());
    }
    match answers.iter().all(|answer| *answer == VipAnswer::Silent) && !answers.is_empty() {
        true => VipVerdict::Free,
        false => VipVerdict::Unknown,
    }
}

/// Asks the address on a few ports. Sends nothing but a TLS handshake with our authority on the API's port.
pub async fn ask_vip(access: &RancherAccess, vip: IpAddr) -> Vec<VipAnswer> {
    let mut answers = Vec::new();
    for port in PORTS {
        let target = Target::new(vip.to_string(), port);
        let answer = match dial_within(&*access.env.dialer, &target, DIAL).await {
            Ok(_) if port == PORTS[0] => api_answer(access, vip).await,
            Ok(_) => VipAnswer::Open,
            Err(error) if error.is_of_the_jump_host() => VipAnswer::Unknown,
            Err(error) => match error.fault() {
                DialFault::Refused => VipAnswer::Refused,
                DialFault::TimedOut { .. } | DialFault::Unreachable => VipAnswer::Silent,
                _ => VipAnswer::Unknown,
            },
        };
        answers.push(answer);
    }
    answers
}

/// How long another server may take to hold the virtual address. Its first try comes within two seconds.
const HANDOVER: Duration = Duration::from_secs(60);

fn lease() -> ObjectRef {
    ObjectRef::new("coordination.k8s.io/v1", "Lease", Some("kube-system"), VIP_LEASE)
}

/// The node that holds the virtual address. `None`: there is none, or it is between two holders.
pub(super) async fn vip_holder(cluster: &Cluster) -> Result<Option<String>, mainstay_kube::Error> {
    let lease = cluster.get(&lease()).await?;
    let holder = lease.as_ref().and_then(|lease| lease["spec"]["holderIdentity"].as_str());
    Ok(holder.filter(|holder| !holder.is_empty()).map(str::to_owned))
}

/// Before the server of a machine goes down: another one takes the virtual address, so that it is away for seconds and not until a lease
/// ends. A cluster of one server has no other.
pub(super) async fn release_vip(guest: &OpenGuest, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let (access, node) = (&guest.access, guest.name());
    let cluster = access.kubernetes(guest.machine().address)?;
    let members = access
        .supervisor(guest.machine().address)?
        .members()
        .await
        .unwrap_or_default();
    let others = members.iter().filter(|member| !member.learner && !member.is_of(node)).count();
    let holds = vip_holder(&cluster).await.is_ok_and(|holder| holder.as_deref() == Some(node));
    if others == 0 || !holds {
        return Ok(());
    }
    let what = format!("no other server took the virtual address over from {node}");
    set_label(&cluster, node, Some(VIP_OFF))
        .await
        .map_err(|error| Failure::stale_plan(&what).why(error.to_string()))?;
    until(access, progress, &what, HANDOVER, async || {
        Ok(match vip_holder(&cluster).await {
            Ok(Some(holder)) if holder != node => Poll::Done(()),
            Ok(Some(_)) => Poll::NotYet("it still holds the virtual address".into()),
            Ok(None) => Poll::NotYet("the virtual address has no holder".into()),
            Err(error) => Poll::NotYet(error.to_string()),
        })
    })
    .await
}

/// Afterwards the machine may hold the virtual address again. Also removes the label that a killed run left.
pub(super) async fn return_vip(guest: &OpenGuest, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let (access, node) = (&guest.access, guest.name());
    let cluster = access.kubernetes(guest.machine().address)?;
    let what = format!("the label {VIP_LABEL} of {node} was not removed");
    until(access, progress, &what, HANDOVER, async || {
        let removed = async {
            match cluster.node(node).await? {
                Some(seen) if seen.labels.contains_key(VIP_LABEL) => set_label(&cluster, node, None).await,
                Some(_) | None => Ok(()),
            }
        };
        Ok(match removed.await {
            Ok(()) => Poll::Done(()),
            Err(error) => Poll::NotYet(error.to_string()),
        })
    })
    .await
}

async fn set_label(cluster: &Cluster, node: &str, value: Option<&str>) -> Result<(), mainstay_kube::Error> {
    let patch = json!({ "metadata": { "labels": { VIP_LABEL: value } } });
    cluster
        .merge(&ObjectRef::new("v1", "Node", None, node), &patch)
        .await
        .map(drop)
}

async fn api_answer(access: &RancherAccess, vip: IpAddr) -> VipAnswer {
    let Ok(cluster) = access.kubernetes(vip) else {
        return VipAnswer::Unknown;
    };
    match cluster.is_ready().await {
        Ok(_) => VipAnswer::OurApi,
        // An answer behind a handshake that our authority signed.
        Err(mainstay_kube::Error::Refused { .. }) => VipAnswer::OurApi,
        Err(_) => match access.supervisor(vip) {
            Ok(supervisor) => match supervisor.serves_our_authority().await {
                Ok(()) | Err(SupervisorError::NotReady(_)) => VipAnswer::OurApi,
                Err(_) => VipAnswer::Open,
            },
            Err(_) => VipAnswer::Unknown,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judge(answers: &[VipAnswer], holder: Option<&str>) -> VipVerdict {
        judge_vip(answers, holder, &BTreeSet::from(["cp-1".to_owned(), "cp-2".to_owned()]))
    }

    #[test]
    fn an_address_that_no_host_answers_on_is_free() {
        assert_eq!(judge(&[VipAnswer::Silent; 3], None), VipVerdict::Free);
    }

    #[test]
    fn a_refusal_is_a_host_too() {
        let answers = [VipAnswer::Refused, VipAnswer::Silent, VipAnswer::Silent];
        assert!(matches!(judge(&answers, None), VipVerdict::Taken(_)));
        let answers = [VipAnswer::Silent, VipAnswer::Open, VipAnswer::Silent];
        assert!(matches!(judge(&answers, None), VipVerdict::Taken(_)));
    }

    #[test]
    fn the_lease_of_a_foreign_node_does_not_make_the_address_ours() {
        let answers = [VipAnswer::Refused, VipAnswer::Open, VipAnswer::Refused];
        assert!(matches!(judge(&answers, Some("other")), VipVerdict::Taken(_)));
    }

    #[test]
    fn the_holder_of_the_lease_may_have_lost_its_api_server() {
        let answers = [VipAnswer::Refused, VipAnswer::Open, VipAnswer::Refused];
        assert_eq!(judge(&answers, Some("cp-1")), VipVerdict::Ours);
    }

    #[test]
    fn another_api_on_the_address_is_a_duplicate_address() {
        let answers = [VipAnswer::Open, VipAnswer::Open, VipAnswer::Silent];
        assert!(matches!(judge(&answers, Some("cp-1")), VipVerdict::Taken(_)));
    }

    #[test]
    fn a_broken_way_to_the_address_is_no_verdict() {
        assert_eq!(judge(&[VipAnswer::Unknown; 3], None), VipVerdict::Unknown);
        assert_eq!(judge(&[], None), VipVerdict::Unknown);
    }
}
