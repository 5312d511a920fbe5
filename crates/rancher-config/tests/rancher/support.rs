//! A small cluster for tests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use rancher_config::config::join_url;
use rancher_config::{ClusterInput, Cni, Distro, MachineInput, MintTime, Place, Secrets, ServiceKey};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;

pub fn address(text: &str) -> IpAddr {
    text.parse().expect(text)
}

pub fn secrets(distro: Distro) -> Secrets {
    let mut rng = ChaCha20Rng::seed_from_u64(7);
    let service = ServiceKey::ec(&mut rng).expect("a key");
    let now = "2026-11-18T12:00:00Z".parse().expect("a time");
    let at = MintTime::new(now, now).expect("a credible clock");
    Secrets::generate(distro, &mut rng, at, service, "mainstay").expect("secrets")
}

pub fn cluster(distro: Distro, cni: Cni) -> ClusterInput {
    ClusterInput {
        distro,
        cni,
        sans: BTreeSet::from(["10.0.0.20", "10.0.0.11", "10.0.0.12"].map(str::to_owned)),
        dns: vec![address("1.1.1.1"), address("8.8.8.8")],
        search: vec!["lan".into()],
        disable: BTreeSet::new(),
        external_cloud_provider: false,
        system_registry: None,
        extra: serde_json::Map::new(),
    }
}

fn machine(name: &str, at: &str, place: Place) -> MachineInput {
    MachineInput {
        name: name.to_owned(),
        address: address(at),
        place,
        labels: BTreeMap::new(),
        taints: Vec::new(),
        interface: None,
    }
}

pub fn founder() -> MachineInput {
    machine("lab-control-plane-1", "10.0.0.11", Place::Founder)
}

pub fn joiner(distro: Distro) -> MachineInput {
    let server = join_url(distro, address("10.0.0.11"));
    machine("lab-control-plane-2", "10.0.0.12", Place::Server { server })
}

pub fn agent(distro: Distro) -> MachineInput {
    let server = join_url(distro, address("10.0.0.11"));
    let mut agent = machine("lab-worker-1", "10.0.0.21", Place::Agent { server });
    agent.labels = BTreeMap::from([("zone".to_owned(), "a".to_owned())]);
    agent.taints = vec!["gpu=yes:NoSchedule".into()];
    agent
}
