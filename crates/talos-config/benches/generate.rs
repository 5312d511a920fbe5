//! Generating and checking the configs of a large cluster.

use divan::Bencher;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use semver::Version;
use talos_config::generate::{ClusterInput, Hostname, Install, InstallDisk, Link, MachineInput, Role};
use talos_config::validate::{Options, validate};
use talos_config::versions::Contract;
use talos_config::{Config, Patch, Secrets, ServiceAccountKey, machine_config};

const MACHINES: u8 = 250;

fn main() {
    divan::main();
}

fn secrets() -> Secrets {
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let key = ServiceAccountKey::rsa4096(&mut rng).unwrap();
    Secrets::generate(&mut rng, "2026-11-15T20:18:03Z".parse().unwrap(), Contract::CLASSIC, key).unwrap()
}

fn cluster() -> ClusterInput {
    let endpoint = "https://10.0.0.10:6443".parse().unwrap();
    ClusterInput::new("demo", endpoint, Version::new(1, 13, 9), Version::new(1, 36, 3))
}

/// A thousand machines, three control planes among them.
fn machines() -> Vec<MachineInput> {
    let mut machines = Vec::new();
    for pool in 0..4u8 {
        for number in 0..MACHINES {
            let role = if pool == 0 && number < 3 {
                Role::ControlPlane
            } else {
                Role::Worker
            };
            let install = Install {
                disk: InstallDisk::Path("/dev/sda".to_owned()),
                image: "installer:v1.13.9".to_owned(),
            };
            let mut machine = MachineInput::new(role, install);
            machine.hostname = Hostname::Static(format!("demo-{pool}-{number}"));
            let mut link = Link::new("net0", &format!("bc:24:11:00:{pool:02x}:{number:02x}"));
            link.addresses.push(format!("10.0.{pool}.{number}/16").parse().unwrap());
            link.gateways.push("10.0.0.1".parse().unwrap());
            machine.links.push(link);
            machines.push(machine);
        }
    }
    machines
}

#[divan::bench]
fn thousand_configs(bencher: Bencher) {
    let (secrets, cluster, machines) = (secrets(), cluster(), machines());
    bencher.bench(|| {
        let bytes: usize = machines
            .iter()
            .map(|machine| machine_config(&secrets, &cluster, machine).unwrap().to_yaml().len())
            .sum();
        bytes
    });
}

#[divan::bench]
fn thousand_configs_patched_and_validated(bencher: Bencher) {
    let (secrets, cluster, machines) = (secrets(), cluster(), machines());
    let contract = cluster.contract();
    let patch = Patch::parse(
        "p",
        "machine: {certSANs: [a.example], sysctls: {vm.nr_hugepages: 1024}}",
        contract,
    )
    .unwrap();
    bencher.bench(|| {
        for machine in &machines {
            let config = machine_config(&secrets, &cluster, machine)
                .unwrap()
                .patched([&patch], contract)
                .unwrap();
            assert!(validate(&config, &cluster.talos, Options::NODE).is_valid());
        }
    });
}

#[divan::bench]
fn read_one_config(bencher: Bencher) {
    let text = machine_config(&secrets(), &cluster(), &machines()[0]).unwrap().to_yaml();
    bencher.bench(|| Config::parse(&text, Contract::CLASSIC).unwrap());
}
