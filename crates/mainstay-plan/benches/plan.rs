//! What planning costs, and that it grows with the number of machines and no faster.

#[path = "../tests/plan/world.rs"]
#[expect(dead_code, reason = "a benchmark needs less of the world than the tests do")]
mod world;

use mainstay_plan::{Desired, Guest, Mark, NodeStatus, Observed, RunningGuest, Seen, Vm, lint, plan, shape_digest};
use world::{ID, empty, gib, host, settled};

fn main() {
    divan::main();
}

fn yaml(machines: usize) -> String {
    format!(
        "
name: prod
datacenter: {{ endpoint: https://pve.lan:8006 }}
network: {{ cidr: 10.10.0.0/16, gateway: 10.10.0.1, vip: 10.10.0.20, dns: [1.1.1.1], pods: 10.128.0.0/14 }}
pools:
  control-plane: {{ count: 3, addresses: 10.10.0.30+, vmids: 2001+, names: 'prod-cp-{{n}}' }}
  worker: {{ count: {}, memory: 4GiB, addresses: 10.10.1.1+, vmids: 3001+, names: 'prod-w-{{n}}' }}
",
        machines - 3
    )
}

/// A new cluster on twenty hosts that have room for it.
fn new(machines: usize) -> (Desired, Observed) {
    let mut world = empty(&yaml(machines));
    world.observed.hosts = (1..=20).map(|n| (format!("pve{n:02}"), host())).collect();
    for host in world.observed.hosts.values_mut() {
        host.memory.free = gib(4096);
        if let Seen::Yes(storages) = &mut host.storages {
            storages.values_mut().for_each(|storage| storage.free = gib(4096));
        }
    }
    (world.desired(), world.look())
}

const SIZES: [usize; 3] = [5, 50, 1000];

#[divan::bench(args = SIZES)]
fn a_new_cluster(bencher: divan::Bencher<'_, '_>, machines: usize) {
    let (desired, observed) = new(machines);
    assert_eq!(plan(&desired, &observed).summary().machines_to_create, machines);
    bencher.bench(|| plan(&desired, &observed));
}

#[divan::bench(args = SIZES)]
fn a_settled_cluster(bencher: divan::Bencher<'_, '_>, machines: usize) {
    let (desired, observed) = grown(machines);
    assert!(plan(&desired, &observed).is_settled());
    bencher.bench(|| plan(&desired, &observed));
}

#[divan::bench(args = SIZES)]
fn a_lint(bencher: divan::Bencher<'_, '_>, machines: usize) {
    let (desired, observed) = new(machines);
    let plan = plan(&desired, &observed);
    bencher.bench(|| lint(&plan, &desired, &observed));
}

/// A settled cluster of any size: a small one whose workers were copied, since the test world is not made for thousands.
fn grown(machines: usize) -> (Desired, Observed) {
    let small = settled(&yaml(5));
    let mut world = small.clone();
    world.yaml = yaml(machines);
    let desired = world.desired();
    let mut observed = small.look();
    multiply(&mut observed, &desired);
    (desired, observed)
}

/// Gives every machine of a file that has no VM a copy of a worker's, with its own marks and identity.
fn multiply(observed: &mut Observed, desired: &Desired) {
    let cluster = desired.cluster_goal().unwrap();
    let (Seen::Yes(vms), Seen::Yes(kubernetes)) = (&mut observed.vms, &mut observed.kubernetes) else {
        panic!("not settled")
    };
    let model = vms[&3001].clone();
    for wanted in &cluster.machines {
        if vms.contains_key(&wanted.machine.vmid) {
            continue;
        }
        let name = wanted.name().to_owned();
        let mut vm = Vm {
            vmid: wanted.machine.vmid,
            name: Some(name.clone()),
            ..model.clone()
        };
        if let Seen::Yes(config) = &mut vm.config {
            let uuid = mainstay_spec::smbios_uuid(ID, &name);
            let mark = Mark {
                tag_follows: false,
                machine: name.clone(),
                vmid: vm.vmid,
                shape: Some(shape_digest(cluster, wanted)),
                ..Mark::parse(&config.description).unwrap()
            };
            config.description = mark.write_into("");
            (config.name, config.uuid, config.address) = (Some(name.clone()), Some(uuid), Some(cluster.interface(wanted)));
            config.nic.as_mut().unwrap().mac = wanted.machine.mac;
        }
        vms.insert(vm.vmid, vm);
        kubernetes.nodes.insert(
            name.clone(),
            NodeStatus {
                ready: true,
                why: String::new(),
                stale: false,
                ..NodeStatus::default()
            },
        );
        let Some(Guest::Running(node)) = observed.guests.get("prod-w-1") else {
            panic!("prod-w-1 does not run")
        };
        let uuid = mainstay_spec::smbios_uuid(ID, &name);
        let node = RunningGuest {
            holds_vip: false,
            uuid,
            config: Seen::Yes(wanted.config.clone()),
            ..(**node).clone()
        };
        observed.guests.insert(name, Guest::Running(Box::new(node)));
    }
}
