//! Any bytes as the answer of a machine: read or refused, and what is read can be told.

#![no_main]

use libfuzzer_sys::fuzz_target;
use prost::Message;
use talos_api::{EtcdStatus, Release, Service, Snapshot, why_not_ready};
use talos_proto::{cosi::resource as cosi, machine};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(answer) = machine::VersionResponse::decode(bytes) {
        for version in answer.messages.into_iter().filter_map(|message| message.version) {
            let _ = Release::of_tag(&version.tag);
        }
    }
    if let Ok(answer) = machine::ServiceListResponse::decode(bytes) {
        let services = answer.messages.into_iter().flat_map(|message| message.services);
        let seen = Snapshot {
            services: services.map(Service::from).collect(),
            ..Snapshot::default()
        };
        assert!(why_not_ready(&seen).is_some_and(|reason| !reason.is_empty()));
    }
    if let Ok(answer) = machine::EtcdStatusResponse::decode(bytes) {
        for status in answer.messages.into_iter().filter_map(|message| message.member_status) {
            let _ = EtcdStatus::from(status).is_leader();
        }
    }
    let _ = machine::EtcdMemberListResponse::decode(bytes);
    let _ = machine::Event::decode(bytes);
    let _ = cosi::GetResponse::decode(bytes);
    let _ = cosi::WatchResponse::decode(bytes);
});
