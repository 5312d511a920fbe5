//! Properties that hold for any input.

use crate::support::{read, rng};
use proptest::prelude::*;
use semver::Version;
use talos_config::generate::{ClusterInput, Hostname, Install, InstallDisk, Link, MachineInput, Role};
use talos_config::versions::Contract;
use talos_config::{Config, Patch, Schematic, Secrets, ServiceAccountKey, machine_config};

const CONTRACT: Contract = Contract::new(1, 13);

/// One patch as text: a few settings of every merge rule, each there or not.
fn patch() -> impl Strategy<Value = String> {
    let word = "[a-z]{1,6}";
    let setting = prop_oneof![
        word.prop_map(|w| format!("machine: {{certSANs: [{w}]}}")),
        word.prop_map(|w| format!("machine: {{install: {{disk: /dev/{w}}}}}")),
        any::<bool>().prop_map(|b| format!("machine: {{install: {{wipe: {b}}}}}")),
        (word, word).prop_map(|(k, v)| format!("machine: {{sysctls: {{{k}1: {v}}}}}")),
        (word, word).prop_map(|(k, v)| format!("machine: {{nodeLabels: {{{k}: {v}}}}}")),
        (word, 0..9u8).prop_map(|(k, v)| format!("machine: {{kubelet: {{extraConfig: {{{k}: {{n: {v}}}}}}}}}")),
        (word, word).prop_map(|(k, v)| format!("cluster: {{apiServer: {{extraArgs: {{{k}: {v}}}}}}}")),
        (0..3u8, 1000..9000u16)
            .prop_map(|(n, m)| format!("machine: {{network: {{interfaces: [{{interface: eth{n}, mtu: {m}}}]}}}}")),
        (0..3u8, 1..200u8).prop_map(|(n, a)| {
            format!("machine: {{network: {{interfaces: [{{interface: eth{n}, addresses: [10.0.0.{a}/24]}}]}}}}")
        }),
        (0..200u8).prop_map(|n| format!("cluster: {{network: {{podSubnets: [10.{n}.0.0/16]}}}}")),
        (word, 0..200u8).prop_map(|(n, a)| {
            format!("apiVersion: v1alpha1\nkind: LinkConfig\nname: {n}\naddresses: [{{address: 10.0.0.{a}/24}}]")
        }),
        word.prop_map(|w| format!("apiVersion: v1alpha1\nkind: HostnameConfig\nauto: off\nhostname: {w}")),
    ];
    setting.prop_map(|text| format!("{text}\n"))
}

fn appending_patch() -> impl Strategy<Value = String> {
    patch().prop_filter("replaces a list", |text| !text.contains("podSubnets"))
}

fn apply(config: &Config, texts: &[String]) -> Config {
    let patches: Vec<Patch> = texts.iter().map(|text| Patch::parse("p", text, CONTRACT).unwrap()).collect();
    config.patched(&patches, CONTRACT).unwrap()
}

fn base() -> Config {
    Config::parse(&read("v1.13.9/a-plain/worker.yaml"), CONTRACT).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    /// Patches may be grouped as one likes: by cluster, pool and machine, or all at once.
    #[test]
    fn applying_patches_in_groups_is_the_same(texts in prop::collection::vec(patch(), 0..6), split in 0usize..6) {
        let base = base();
        let split = split.min(texts.len());
        let at_once = apply(&base, &texts);
        let in_groups = apply(&apply(&base, &texts[..split]), &texts[split..]);
        prop_assert_eq!(at_once.to_yaml(), in_groups.to_yaml());
    }

    /// Merging b into a and then c is merging (c into b) into a: the text of a patched patch is a patch. Not so for the two
    /// lists that replace, here as upstream: written out, a list that was never set is an empty list, and that replaces too.
    #[test]
    fn merging_is_associative(first in appending_patch(), second in appending_patch()) {
        let base = base();
        let in_order = apply(&base, &[first.clone(), second.clone()]);
        let left = Config::parse(&first, CONTRACT).unwrap();
        let merged = Patch::parse("p", &second, CONTRACT).unwrap();
        // Written out, an absent text becomes an empty one, which says nothing in a patch; an absent pointer becomes null.
        let combined = left.patched([&merged], CONTRACT).unwrap().to_yaml();
        let combined = Patch::parse("p", &combined, CONTRACT).unwrap();
        let grouped = base.patched([&combined], CONTRACT).unwrap();
        prop_assert_eq!(sorted(&in_order), sorted(&grouped));
    }

    /// What we write, we read back, and writing it again gives the same bytes.
    #[test]
    fn a_patched_config_survives_a_round_trip(texts in prop::collection::vec(patch(), 0..5)) {
        let config = apply(&base(), &texts);
        let text = config.to_yaml();
        let again = Config::parse(&text, CONTRACT).unwrap();
        prop_assert_eq!(again.to_yaml(), text);
    }

    #[test]
    fn generation_is_a_function_of_its_inputs(seed in any::<u64>(), name in "[a-z]{1,10}", last in 1u8..250) {
        let make = || {
            let mut rng = rng(seed);
            let key = ServiceAccountKey::ec_p256(&mut rng).unwrap();
            let now = "2026-11-15T20:18:03Z".parse().unwrap();
            let secrets = Secrets::generate(&mut rng, now, CONTRACT, key).unwrap();
            let endpoint = "https://10.0.0.10:6443".parse().unwrap();
            let cluster = ClusterInput::new("demo", endpoint, Version::new(1, 13, 9), Version::new(1, 36, 3));
            let install = Install { disk: InstallDisk::Serial(name.clone()), image: "i".to_owned() };
            let mut machine = MachineInput::new(Role::ControlPlane, install);
            machine.hostname = Hostname::Static(name.clone());
            let mut link = Link::new("net0", "bc:24:11:00:00:01");
            link.addresses.push(format!("10.0.0.{last}/24").parse().unwrap());
            machine.links.push(link);
            machine_config(&secrets, &cluster, &machine).unwrap().to_yaml()
        };
        prop_assert_eq!(make(), make());
    }

    /// Any text in any scalar comes back as it was, whatever quotes it needs.
    #[test]
    fn any_text_survives_yaml(text in "\\PC{0,12}|[ \\n\\t:#'\"\\-a0]{0,12}|(on|off|yes|no|null|true|~|1:30|<<|0x1f|1e3|\\.inf)") {
        let mut schematic = Schematic::default();
        schematic.customization.extra_kernel_args = vec![text.clone()];
        schematic.customization.embedded_machine_configuration.clone_from(&text);
        let again = Schematic::parse(&schematic.canonical()).unwrap();
        prop_assert_eq!(&again.customization.extra_kernel_args[0], &text);
        prop_assert_eq!(again, schematic);
    }

    /// Nothing makes the readers panic.
    #[test]
    fn readers_survive_any_text(text in "[ -~\\n]{0,80}|(\\$patch: delete|[a-z]{1,5}|: |\\n  |- |\\{|\\}|\\[|\\]|machine|kind|apiVersion|v1alpha1|LinkConfig| |&a|\\*a|!!str){0,30}") {
        let _ = Config::parse(&text, CONTRACT);
        let _ = Patch::parse("p", &text, CONTRACT).map(|patch| base().patched([&patch], CONTRACT));
        let _ = Secrets::from_talosctl_yaml(&text);
        let _ = Schematic::parse(&text);
    }
}

/// Documents in one order: two that are both new may swap when patches are merged first.
fn sorted(config: &Config) -> Vec<String> {
    let text = config.to_yaml();
    let mut documents: Vec<String> = text.split("---\n").map(str::to_owned).collect();
    documents.sort();
    documents
}
