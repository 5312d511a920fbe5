//! What a real 1.13.9 cluster said, read by this client.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use prost::Message;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use talos_api::resource as yaml;
use talos_proto::spec;
use tonic::Code;

use crate::world::{Authority, Reply, run, target};

#[derive(Deserialize)]
struct Refusal {
    method: String,
    code: String,
    message: String,
}

#[derive(Deserialize)]
struct Recorded {
    r#type: String,
    id: String,
    proto: String,
    yaml: String,
}

fn lines<T: DeserializeOwned>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn code(name: &str) -> Code {
    if name == "Canceled" {
        return Code::Cancelled;
    }
    (0..17)
        .map(Code::from_i32)
        .find(|code| format!("{code:?}").eq_ignore_ascii_case(name))
        .unwrap_or_else(|| panic!("{name}"))
}

/// Every refusal of the recording goes over the wire once; the sorted result is compared line by line.
#[test]
fn every_recorded_refusal_is_sorted() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.configured("10.0.0.11", &authority).await;
        let node = authority.access(&world.env).node(&target(&machine)).unwrap();
        let mut sorted = String::new();
        for refusal in lines::<Refusal>(include_str!("../data/refusals.jsonl")) {
            machine.next("Reboot", Reply::RefuseWith(code(&refusal.code), refusal.message.clone()));
            let error = node.reboot().await.unwrap_err();
            let class = error.class().map_or("-".to_owned(), |class| format!("{class:?}"));
            let method = refusal.method.rsplit('/').next().unwrap();
            let text = refusal.message.lines().next().unwrap_or_default();
            sorted += &format!(
                "{:?} {class} {:?} | {method}: {} {text}\n",
                error.outcome(),
                error.next(),
                refusal.code
            );
        }
        similar_to(&sorted, include_str!("../data/sorted.txt"));
    });
}

fn similar_to(seen: &str, expected: &str) {
    for (seen, expected) in seen.lines().zip(expected.lines()) {
        assert_eq!(seen, expected);
    }
    assert_eq!(seen.lines().count(), expected.lines().count(), "{seen}");
}

/// Both encodings of a recorded resource must say the same: the field numbers and the words.
#[test]
fn every_recorded_resource_reads_the_same_in_both_encodings() {
    let mut read = 0;
    for it in lines::<Recorded>(include_str!("../data/resources.jsonl")) {
        let bytes = BASE64_STANDARD.decode(&it.proto).unwrap();
        let agrees = match it.r#type.as_str() {
            "MachineStatuses.runtime.talos.dev" => machine_status(&it.yaml, &bytes),
            "Services.v1alpha1.talos.dev" => both(&it, &bytes, |y: yaml::RunningService, p: spec::v1alpha1::ServiceSpec| {
                (y.running, y.healthy, y.unknown) == (p.running, p.healthy, p.unknown)
            }),
            "TimeStatuses.v1alpha1.talos.dev" => both(&it, &bytes, |y: yaml::TimeStatus, p: spec::time::StatusSpec| {
                (y.synced, y.sync_disabled) == (p.synced, p.sync_disabled)
            }),
            "NetworkStatuses.net.talos.dev" => both(&it, &bytes, |y: yaml::NetworkStatus, p: spec::network::StatusSpec| {
                (y.address_ready, y.connectivity_ready, y.hostname_ready, y.etc_files_ready)
                    == (p.address_ready, p.connectivity_ready, p.hostname_ready, p.etc_files_ready)
            }),
            "HostnameStatuses.net.talos.dev" => both(
                &it,
                &bytes,
                |y: yaml::HostnameStatus, p: spec::network::HostnameStatusSpec| {
                    (y.hostname, y.domainname) == (p.hostname, p.domainname)
                },
            ),
            "LinkStatuses.net.talos.dev" => both(&it, &bytes, |y: yaml::LinkStatus, p: spec::network::LinkStatusSpec| {
                let mac = p
                    .hardware_addr
                    .iter()
                    .map(|byte| format!("{byte:02x}"))
                    .collect::<Vec<_>>()
                    .join(":");
                (y.hardware_addr, y.kind, y.link_state) == (mac, p.kind, p.link_state)
            }),
            "NodeAddresses.net.talos.dev" => both(&it, &bytes, |y: yaml::NodeAddress, p: spec::network::NodeAddressSpec| {
                let prefix = |it: &talos_proto::common::NetIpPrefix| {
                    let ip = <[u8; 4]>::try_from(it.ip.as_slice()).map(std::net::Ipv4Addr::from).unwrap();
                    format!("{ip}/{}", it.prefix_length)
                };
                y.addresses == p.addresses.iter().map(prefix).collect::<Vec<_>>()
            }),
            "NodeStatuses.kubernetes.talos.dev" => both(&it, &bytes, |y: yaml::NodeStatus, p: spec::k8s::NodeStatusSpec| {
                (y.nodename, y.node_ready, y.labels) == (p.nodename, p.node_ready, p.labels)
            }),
            "EtcdMembers.etcd.talos.dev" => both(&it, &bytes, |y: yaml::EtcdMemberId, p: spec::etcd::MemberSpec| {
                y.member_id == p.member_id
            }),
            "Members.cluster.talos.dev" => both(&it, &bytes, |y: yaml::Member, p: spec::cluster::MemberSpec| {
                let control_plane = p.machine_type() == spec::enums::MachineType::TypeControlPlane;
                (y.node_id, y.hostname, y.operating_system) == (p.node_id, p.hostname, p.operating_system)
                    && (y.machine_type == yaml::MachineType::ControlPlane) == control_plane
            }),
            "MachineTypes.config.talos.dev" => both(&it, &bytes, |y: yaml::MachineType, p: spec::config::MachineTypeSpec| {
                (y == yaml::MachineType::ControlPlane) == (p.machine_type() == spec::enums::MachineType::TypeControlPlane)
            }),
            "VolumeStatuses.block.talos.dev" => both(&it, &bytes, |y: yaml::VolumeStatus, p: spec::block::VolumeStatusSpec| {
                (y.phase == "ready") == (p.phase() == spec::enums::BlockVolumePhase::VolumePhaseReady) && y.location == p.location
            }),
            "KubePrismStatuses.kubernetes.talos.dev" => {
                let spec = spec::k8s::KubePrismStatusesSpec::decode(bytes.as_slice()).unwrap();
                it.yaml.contains(&format!("host: {}\nhealthy: {}", spec.host, spec.healthy))
            }
            _ => continue,
        };
        assert!(agrees, "{} {}: {}", it.r#type, it.id, it.yaml);
        read += 1;
    }
    assert!(read > 20, "{read}");
}

fn both<Y: DeserializeOwned, P: Message + Default>(it: &Recorded, bytes: &[u8], agree: impl Fn(Y, P) -> bool) -> bool {
    agree(serde_saphyr::from_str(&it.yaml).unwrap(), P::decode(bytes).unwrap())
}

fn machine_status(yaml: &str, bytes: &[u8]) -> bool {
    let status: yaml::MachineStatus = serde_saphyr::from_str(yaml).unwrap();
    let encoded = spec::runtime::MachineStatusSpec::decode(bytes).unwrap();
    let stage = format!("{:?}", encoded.stage()).to_lowercase();
    let inner = encoded.status.unwrap_or_default();
    let unmet: Vec<_> = inner
        .unmet_conditions
        .into_iter()
        .map(|it| yaml::Unmet {
            name: it.name,
            reason: it.reason,
        })
        .collect();
    stage.ends_with(&status.stage.to_string())
        && status.status
            == yaml::Readiness {
                ready: inner.ready,
                unmet_conditions: unmet,
            }
}
