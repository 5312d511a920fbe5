//! A simulated datacenter that suits a file: the default one, with everything that the file names.

use std::collections::BTreeSet;

use mainstay_sim::WorldSpec;
use mainstay_spec::{Hosts, Spec};

const MIB: u64 = 1 << 20;
const TIB: u64 = 1 << 40;

/// The default three hosts, with the hosts, bridge, storages and pool of this file, and capacity for all machines.
pub fn world_for(spec: &Spec) -> WorldSpec {
    let mut world = WorldSpec::default();
    let named: BTreeSet<&str> = spec.machines.iter().flat_map(|machine| names(&machine.hosts)).collect();
    named.into_iter().for_each(|name| add_host(&mut world, name));
    give_room(&mut world, spec);
    add_bridge(&mut world, spec.network.bridge.as_str());
    let storage = &spec.datacenter.storage;
    for (wanted, like) in [
        (&storage.images, "nfs"),
        (&storage.disks, "local-lvm"),
        (&storage.seeds, "nfs"),
    ] {
        if let Some(name) = wanted {
            add_storage(&mut world, name.as_str(), like);
        }
    }
    if let Some(pool) = &spec.datacenter.pool {
        world.datacenter.pools.entry(pool.to_string()).or_default();
    }
    world
}

fn names(hosts: &Hosts) -> Vec<&str> {
    match hosts {
        Hosts::Any => Vec::new(),
        Hosts::OneOf(hosts) => hosts.iter().map(AsRef::as_ref).collect(),
        Hosts::Pinned(host) => vec![host.as_ref()],
    }
}

/// One more host like the first.
fn add_host(world: &mut WorldSpec, name: &str) {
    let nodes = &mut world.datacenter.nodes;
    let Some(mut host) = nodes.values().next().filter(|_| !nodes.contains_key(name)).cloned() else {
        return;
    };
    host.nodeid = u32::try_from(nodes.len() + 1).unwrap_or(u32::MAX);
    host.ip = format!("127.0.0.{}", host.nodeid);
    nodes.insert(name.to_owned(), host);
}

/// A demo should show the cluster, not fail because the simulated hosts are too small.
fn give_room(world: &mut WorldSpec, spec: &Spec) {
    let memory: u64 = spec.machines.iter().map(|machine| machine.shape.memory.0 * MIB).sum();
    for host in world.datacenter.nodes.values_mut() {
        host.maxmem = host.maxmem.max(memory * 2);
    }
    for storage in world.datacenter.storages.values_mut() {
        storage.capacity = storage.capacity.max(TIB * (1 + spec.machines.len() as u64));
    }
}

fn add_bridge(world: &mut WorldSpec, name: &str) {
    for host in world.datacenter.nodes.values_mut() {
        let Some(mut bridge) = host.bridges.values().next().cloned() else {
            continue;
        };
        bridge.cidr = None;
        host.bridges.entry(name.to_owned()).or_insert(bridge);
    }
}

fn add_storage(world: &mut WorldSpec, name: &str, like: &str) {
    let storages = &mut world.datacenter.storages;
    if let Some(storage) = storages.get(like).cloned() {
        storages.entry(name.to_owned()).or_insert(storage);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_finds_what_it_names() {
        let text = include_str!("../../../../../examples/multi-host.yaml").replace("pve2", "other");
        let spec = mainstay_spec::load(&text, "x.yaml", &mainstay_spec::Environment::default(), &|_| None)
            .expect("a good file")
            .spec;
        let world = world_for(&spec).datacenter;
        assert_eq!(world.nodes.keys().collect::<Vec<_>>(), ["pve1", "pve2", "pve3", "other"]);
        assert!(world.storages.contains_key("nfs-images") && world.storages.contains_key("ceph-vm"));
        assert!(world.pools.contains_key("k8s"));
    }
}
