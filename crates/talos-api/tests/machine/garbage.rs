//! Answers that are not what they should be: whatever a machine sends, the client ends in time, without a panic, and quotes no secret.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::StreamBody;
use hyper::body::Frame;
use mainstay_net::Secret;
use prost::Message;
use talos_api::resource::{MachineStatus, NetworkStatus};
use talos_api::{Mode, Node, Since, Wipe, why_not_ready};
use talos_proto::cosi::resource as cosi;
use talos_proto::{common, machine as wire};

use crate::world::{Authority, resource, run, target};

const HOST: &str = "10.0.0.11";
const SECRET: &str = "CANARY";
const ROUNDS: usize = 60;

/// Splitmix64: the same changes on every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % n.max(1) as u64).unwrap_or(0)
    }

    /// What a broken machine, or a newer one, does to a message.
    fn mutate(&mut self, bytes: &mut Vec<u8>, other: &[u8]) {
        let at = self.below(bytes.len() + 1);
        let end = (at + self.below(12)).min(bytes.len());
        match self.below(6) {
            0 => drop(bytes.drain(at..end)),
            1 => bytes.insert(at, u8::try_from(self.below(256)).unwrap_or(0)),
            2 => bytes.truncate(at),
            3 => {
                let from = self.below(other.len() + 1);
                let to = (from + self.below(40)).min(other.len());
                drop(bytes.splice(at..end, other[from..to].iter().copied()));
            }
            4 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
            // A length or a number that is far too large.
            _ => drop(bytes.splice(at..end, [0xff; 9])),
        }
    }
}

/// Well-formed answers of every kind, to begin with.
fn seeds() -> Vec<Vec<u8>> {
    let version = wire::Version {
        version: Some(wire::VersionInfo {
            tag: "v1.13.9".into(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let service = wire::ServiceInfo {
        id: "etcd".into(),
        state: "Running".into(),
        events: Some(wire::ServiceEvents::default()),
        health: Some(wire::ServiceHealth::default()),
    };
    let member = wire::EtcdMember {
        id: 7,
        hostname: "cp-1".into(),
        peer_urls: vec!["https://10.0.0.11:2380".into()],
        ..Default::default()
    };
    let status = "stage: running\nstatus:\n    ready: false\n    unmetConditions:\n        - name: services\n          reason: etcd not running\n";
    let found = resource("MachineStatuses.runtime.talos.dev", "machine", status);
    let event = cosi::Event {
        resource: Some(found.clone()),
        ..Default::default()
    };
    let told = wire::Event {
        data: Some(prost_types::Any {
            type_url: "talos/runtime/machine.SequenceEvent".into(),
            value: wire::SequenceEvent::default().encode_to_vec(),
        }),
        id: "dbt2fcfoqlhs73e5kh0g".into(),
        ..Default::default()
    };
    vec![
        wire::VersionResponse { messages: vec![version] }.encode_to_vec(),
        wire::ServiceListResponse {
            messages: vec![wire::ServiceList {
                metadata: None,
                services: vec![service],
            }],
        }
        .encode_to_vec(),
        wire::EtcdMemberListResponse {
            messages: vec![wire::EtcdMembers {
                members: vec![member],
                ..Default::default()
            }],
        }
        .encode_to_vec(),
        cosi::GetResponse { resource: Some(found) }.encode_to_vec(),
        cosi::WatchResponse { event: vec![event] }.encode_to_vec(),
        told.encode_to_vec(),
        common::Data {
            metadata: None,
            bytes: format!("token: {SECRET}").into_bytes(),
        }
        .encode_to_vec(),
        Vec::new(),
    ]
}

/// One gRPC answer with this message in it.
fn answer(message: &[u8]) -> http::Response<Body> {
    let mut frame = BytesMut::with_capacity(message.len() + 5);
    frame.put_u8(0);
    frame.put_u32(u32::try_from(message.len()).unwrap());
    frame.put_slice(message);
    let trailers = http::HeaderMap::from_iter([(
        http::HeaderName::from_static("grpc-status"),
        http::HeaderValue::from_static("0"),
    )]);
    let frames = [
        Ok::<_, std::io::Error>(Frame::data(frame.freeze())),
        Ok(Frame::trailers(trailers)),
    ];
    let body = Body::new(StreamBody::new(futures::stream::iter(frames)));
    let mut response = http::Response::new(body);
    response
        .headers_mut()
        .insert("content-type", http::HeaderValue::from_static("application/grpc"));
    response
}

/// Every call once; whatever comes back, it must come back.
async fn ask_everything(node: &Node) -> Vec<String> {
    let config = Secret::from("machine: {}");
    let quiet = Duration::from_secs(1);
    let mut said = Vec::new();
    let mut keep =
        |error: Option<talos_api::Error>| said.extend(error.map(|error| format!("{error} {error:?} {:?}", error.next())));
    keep(node.release().await.err());
    keep(node.status().await.err());
    keep(node.list::<NetworkStatus>().await.err());
    keep(node.services().await.err());
    keep(node.files("/var/lib/etcd").await.err());
    keep(node.boot_id().await.err());
    keep(node.etcd_members().await.err());
    keep(node.etcd_status().await.err());
    keep(node.etcd_alarms().await.err());
    keep(node.etcd_forfeit_leadership().await.err());
    keep(node.apply(&config, Mode::Auto).await.err());
    keep(node.judge(&config).await.err());
    keep(node.bootstrap().await.err());
    keep(node.reboot().await.err());
    keep(node.reset(Wipe::Settings, false).await.err());
    keep(node.config().await.err());
    match node.look().await {
        Ok(seen) => drop(why_not_ready(&seen)),
        Err(error) => keep(Some(error)),
    }
    match node.watch::<MachineStatus>(Some("machine")).await {
        Ok(mut watch) => keep(watch.next(quiet).await.err()),
        Err(error) => keep(Some(error)),
    }
    match node.events(Since::Now).await {
        Ok(mut events) => keep(events.next(quiet).await.err()),
        Err(error) => keep(Some(error)),
    }
    said
}

#[test]
fn no_answer_makes_the_client_panic_hang_or_quote_a_secret() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.machine(HOST);
        let message: Arc<Mutex<Bytes>> = Arc::default();
        let current = Arc::clone(&message);
        let router = Router::new().fallback(move || {
            let bytes = current.lock().unwrap().clone();
            async move { answer(&bytes) }
        });
        let tls = authority.mutual_tls(world.env.wall, HOST, &authority);
        world.serve_router(&machine, tls, router).await;
        let node = authority.access(&world.env).node(&target(&machine)).unwrap();
        let (seeds, mut dice) = (seeds(), Dice(0x5eed));
        for (index, seed) in seeds.iter().enumerate() {
            let mut bytes = seed.clone();
            for round in 0..ROUNDS {
                *message.lock().unwrap() = Bytes::from(bytes.clone());
                for text in ask_everything(&node).await {
                    assert!(!text.contains(SECRET), "{text}");
                }
                if round % 8 == 7 {
                    bytes.clone_from(seed);
                }
                let other = &seeds[(index + round) % seeds.len()];
                dice.mutate(&mut bytes, other);
            }
        }
    });
}
