//! What must hold for every file, checked with generated ones.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use mainstay_spec::{Environment, Machine, Span, Spec, default_vmids, load};
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// A pool of a made-up cluster. Pool `i` has a /24 and a block of VMIDs of its own, so that every such file is a good one.
#[derive(Debug, Clone)]
struct PoolText {
    name: String,
    count: u32,
    body: Vec<String>,
}

impl PoolText {
    fn yaml(&self) -> String {
        format!("  {}: {{ count: {}, {} }}\n", self.name, self.count, self.body.join(", "))
    }
}

fn addresses(pool: usize) -> impl Strategy<Value = String> {
    let net = pool + 1;
    prop_oneof![
        (2u8..100).prop_map(move |from| format!("addresses: 10.0.{net}.{from}+")),
        (2u8..100).prop_map(move |from| format!("addresses: 10.0.{net}.{from}-{}", from + 20)),
        (2u8..100).prop_map(move |from| format!("addresses: [10.0.{net}.{from}, 10.0.{net}.{}+]", from + 5)),
    ]
}

/// With or without VMIDs of its own; the default block comes from the name.
fn vmids(pool: usize) -> impl Strategy<Value = Option<String>> {
    let from = 2000 + pool * 1000;
    prop_oneof![
        Just(None),
        Just(Some(format!("vmids: {from}+"))),
        Just(Some(format!("vmids: {from}-{}", from + 99))),
        Just(Some(format!("vmids: [{from}, {}-{}]", from + 10, from + 90))),
    ]
}

fn extras() -> impl Strategy<Value = Vec<String>> {
    let all = [
        "cpu: 2",
        "cpu-type: host",
        "memory: 5000MiB",
        "memory: 16G",
        "disk: 33GiB",
        "disk: { size: 1TiB, storage: fast, cache: writeback, ssd: false }",
        "disks: [{ name: data, size: 10GiB }, { name: logs, size: 20G, storage: slow, discard: false }]",
        "scsi: virtio-scsi-single",
        "firmware: seabios",
        "onboot: false",
        "startup-order: 7",
        "hosts: [pve1, pve2]",
        "tags: [b, a]",
        "labels: { rack: a1, example.com/x: 'true', empty: }",
        "taints: ['a=b:NoSchedule', 'c:NoExecute']",
        "patches: [pool.yaml]",
        "names: '{cluster}-x-{pool}-{n0}'",
    ];
    proptest::sample::subsequence(all.to_vec(), 0..all.len()).prop_map(|chosen| {
        let mut by_key = BTreeMap::new();
        for text in chosen {
            by_key.insert(text.split(':').next().unwrap_or_default(), text.to_owned());
        }
        by_key.into_values().collect()
    })
}

fn pool(index: usize, name: &'static str, count: impl Strategy<Value = u32>) -> impl Strategy<Value = PoolText> {
    (count, addresses(index), vmids(index), extras()).prop_map(move |(count, addresses, vmids, extras)| PoolText {
        name: name.to_owned(),
        count,
        body: [addresses].into_iter().chain(vmids).chain(extras).collect(),
    })
}

fn pools() -> impl Strategy<Value = Vec<PoolText>> {
    let workers = ["worker", "gpu", "storage", "edge"];
    let some = workers
        .into_iter()
        .enumerate()
        .map(|(index, name)| pool(index + 1, name, 0u32..12).boxed())
        .collect::<Vec<_>>();
    (pool(0, "control-plane", select(vec![1u32, 3, 5])), some, 0..=workers.len()).prop_map(
        |(control_plane, mut workers, count)| {
            workers.truncate(count);
            [control_plane].into_iter().chain(workers).collect()
        },
    )
}

fn top() -> impl Strategy<Value = Vec<String>> {
    let all = [
        "talos: { version: 1.13, extensions: [zfs, siderolabs/btrfs], patches: [all.yaml] }",
        "kubernetes: v1.35.4",
        "cni: none",
        "protect: true",
        "control-plane-workloads: true",
        "endpoint: https://k8s.example",
        "endpoint: https://k8s.example:443",
    ];
    proptest::sample::subsequence(all.to_vec(), 0..all.len() - 1)
        .prop_map(|chosen| chosen.into_iter().map(str::to_owned).collect())
}

#[derive(Debug, Clone)]
struct File {
    name: String,
    top: Vec<String>,
    pools: Vec<PoolText>,
    machines: Vec<String>,
}

impl File {
    fn yaml(&self) -> String {
        let pools: String = self.pools.iter().map(PoolText::yaml).collect();
        let machines: String = self.machines.iter().map(|machine| format!("  {machine}\n")).collect();
        let machines = if machines.is_empty() {
            String::new()
        } else {
            format!("machines:\n{machines}")
        };
        format!(
            "name: {}\n{}\ndatacenter: {{ endpoint: https://pve.lan, tags: [t] }}\n\
             network: {{ cidr: 10.0.0.0/16, gateway: 10.0.0.1, vip: 10.0.0.2, vlan: 7 }}\npools:\n{pools}{machines}",
            self.name,
            self.top.join("\n"),
        )
    }

    fn spec(&self) -> Spec {
        read(&self.yaml())
    }

    /// A pool without VMIDs gets a block by its name, and once in some thousand pairs two get the same one. That is refused by name.
    fn shares_vmids(&self) -> bool {
        let open = self
            .pools
            .iter()
            .filter(|pool| !pool.body.iter().any(|text| text.starts_with("vmids")));
        let firsts: Vec<u32> = open.map(|pool| default_vmids(&self.name, &pool.name)).collect();
        firsts.iter().collect::<std::collections::BTreeSet<_>>().len() < firsts.len()
    }
}

fn files() -> impl Strategy<Value = File> {
    ("[a-z][a-z0-9]{0,8}", top(), pools())
        .prop_map(|(name, mut top, pools)| {
            // A file has one endpoint.
            if top.iter().filter(|line| line.starts_with("endpoint")).count() > 1 {
                top.pop();
            }
            File {
                name,
                top,
                pools,
                machines: Vec::new(),
            }
        })
        .prop_filter("two pools share a block of VMIDs by chance", |file| !file.shares_vmids())
}

fn read(text: &str) -> Spec {
    let files = |_: &str| Some(b"machine: {}".to_vec());
    match load(text, "cluster.yaml", &Environment::default(), &files) {
        Ok(checked) => checked.spec,
        Err(faults) => panic!("{text}\n{:#?}", faults.faults),
    }
}

/// A spec without the places it was read from, which a printed file has elsewhere.
fn placeless(mut spec: Spec) -> Spec {
    spec.pools.iter_mut().for_each(|pool| pool.at = Span::default());
    spec.machines.iter_mut().for_each(|machine| machine.at = Span::default());
    spec
}

/// Everything that identifies a machine, by its name.
fn identities(spec: &Spec) -> BTreeMap<String, (u32, String, Ipv4Addr)> {
    let identity = |machine: &Machine| {
        (
            machine.name.to_string(),
            (machine.vmid, machine.mac.to_string(), machine.address),
        )
    };
    spec.machines.iter().map(identity).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn a_spec_printed_and_read_again_is_the_same(file in files()) {
        let spec = file.spec();
        prop_assert_eq!(placeless(read(&spec.to_yaml())), placeless(spec));
    }

    #[test]
    fn identities_do_not_depend_on_the_order_of_pools(file in files(), order in any::<Vec<Index>>()) {
        let mut shuffled = file.clone();
        for (index, other) in order.iter().enumerate().take(shuffled.pools.len()) {
            let other = other.index(shuffled.pools.len());
            shuffled.pools.swap(index, other);
        }
        prop_assert_eq!(identities(&shuffled.spec()), identities(&file.spec()));
    }

    #[test]
    fn removing_a_pool_renumbers_nothing(file in files(), which in any::<Index>()) {
        let before = identities(&file.spec());
        let mut smaller = file.clone();
        if smaller.pools.len() > 1 {
            // The first pool has the control planes, without which there is no cluster.
            smaller.pools.remove(1 + which.index(smaller.pools.len() - 1));
        }
        for (name, identity) in identities(&smaller.spec()) {
            prop_assert_eq!(&before[&name], &identity);
        }
    }

    #[test]
    fn growing_and_shrinking_a_pool_renumbers_nothing(file in files(), which in any::<Index>(), count in 0u32..12) {
        let before = identities(&file.spec());
        let mut changed = file.clone();
        let index = which.index(changed.pools.len());
        if index > 0 {
            changed.pools[index].count = count;
        }
        for (name, identity) in identities(&changed.spec()) {
            prop_assert!(before.get(&name).is_none_or(|earlier| *earlier == identity), "{}", name);
        }
    }

    #[test]
    fn an_exception_for_one_machine_leaves_the_others_alone(file in files(), which in any::<Index>(), hosts in any::<bool>()) {
        let before = file.spec();
        let chosen = before.machines[which.index(before.machines.len())].name.to_string();
        let mut changed = file.clone();
        changed.machines.push(format!("{chosen}: {{ host: pve9, cpu: 3, vmid: 999, address: 10.0.200.9 }}"));
        if hosts {
            changed.pools.iter_mut().for_each(|pool| {
                pool.body.retain(|text| !text.starts_with("hosts"));
                pool.body.push("hosts: [pve7, pve8, pve9]".to_owned());
            });
        }
        let (before, after) = (identities(&before), identities(&changed.spec()));
        prop_assert_eq!(before.keys().collect::<Vec<_>>(), after.keys().collect::<Vec<_>>());
        for (name, identity) in &after {
            prop_assert!(*name == chosen || before[name] == *identity);
        }
        prop_assert_eq!(after[&chosen].0, 999);
    }

    #[test]
    fn no_two_machines_share_anything(file in files()) {
        let spec = file.spec();
        let unique = |values: Vec<String>| values.iter().collect::<std::collections::BTreeSet<_>>().len() == spec.machines.len();
        prop_assert!(unique(spec.machines.iter().map(|machine| machine.name.to_string()).collect()));
        prop_assert!(unique(spec.machines.iter().map(|machine| machine.mac.to_string()).collect()));
        prop_assert!(unique(spec.machines.iter().map(|machine| machine.vmid.to_string()).collect()));
        prop_assert!(unique(spec.machines.iter().map(|machine| machine.address.to_string()).collect()));
    }
}
