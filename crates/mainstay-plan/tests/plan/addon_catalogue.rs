//! Catalogue: values against the charts' own key names, order, hooks, distributions.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use mainstay_plan::addon::catalogue::{
    self, CatalogueEntry, CiliumHop, ConfigFault, CrdDelivery, Delivery, EntrySource, HelmControllerChart, HookMoment,
    HopRefusal, KUBE_VIP_CLOUD_PROVIDER, LateInstall, Layer, RemovalPolicy, cilium_hop, gateway_api_for, packaged_chart_config,
    restrict_rke2_version,
};
use mainstay_plan::addon::facts::{AddonFacts, PveFacts};
use mainstay_plan::addon::values::{at, merge};
use mainstay_spec::{Addon, AddressSpan, Distro};
use serde_json::{Value, json};

pub const ALL: [Addon; 12] = [
    Addon::Cilium,
    Addon::ProxmoxCcm,
    Addon::ProxmoxCsi,
    Addon::TalosCcm,
    Addon::KubeVip,
    Addon::MetricsServer,
    Addon::PrometheusCrds,
    Addon::GatewayApi,
    Addon::Longhorn,
    Addon::CertManager,
    Addon::Traefik,
    Addon::TailscaleOperator,
];

pub fn facts(distro: Distro) -> AddonFacts {
    let machines = |pool: &str, count: u8, first: u8| -> BTreeMap<String, Option<Ipv4Addr>> {
        (0..count)
            .map(|n| (format!("prod-{pool}-{}", n + 1), Some(Ipv4Addr::new(10, 0, 0, first + n))))
            .collect()
    };
    AddonFacts {
        cluster: "prod".to_owned(),
        distro,
        control_planes: machines("cp", 3, 11),
        workers: machines("w", 2, 21),
        vip: Some(Ipv4Addr::new(10, 0, 0, 20)),
        wanted: BTreeSet::new(),
        loadbalancer: None,
        forwards_dns_to_host: distro == Distro::Talos,
        pve: PveFacts {
            endpoint: "https://10.0.0.5:8006".to_owned(),
            region: "pve".to_owned(),
            has_own_ca: true,
            storage: "local-lvm".to_owned(),
            is_shared: false,
        },
        csi_controller_vmid: Some(900_001),
        has_longhorn_disk: true,
        first_cilium_minor: Some("1.18".to_owned()),
    }
}

/// Everything switched on, so that every optional value is set.
fn everything(distro: Distro) -> AddonFacts {
    AddonFacts {
        wanted: ALL.into(),
        loadbalancer: Some(AddressSpan {
            first: Ipv4Addr::new(10, 0, 0, 240),
            last: Ipv4Addr::new(10, 0, 0, 250),
        }),
        ..facts(distro)
    }
}

fn key_file(chart: &str, version: &str) -> String {
    let path = format!("{}/tests/data/chart-keys/{chart}-{version}.txt", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|_| panic!("no key names for {chart} {version}"))
}

fn chart_name(entry: &CatalogueEntry) -> Option<&'static str> {
    match entry.source {
        EntrySource::Oci(url) => url.rsplit('/').next(),
        EntrySource::Repository { chart, .. } => Some(chart),
        EntrySource::Manifest(_) => None,
    }
}

/// Paths of `values` that are not in the list. Below `x.*` everything is allowed.
fn unknown(values: &Value, path: &str, known: &BTreeSet<&str>, found: &mut Vec<String>) {
    for (key, value) in values.as_object().expect("a map") {
        let here = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        if known.contains(format!("{here}.*").as_str()) {
            continue;
        }
        if !known.contains(here.as_str()) {
            found.push(here);
        } else if value.is_object() {
            unknown(value, &here, known, found);
        }
    }
}

#[test]
fn every_default_value_is_a_key_of_the_chart_at_every_listed_version() {
    for entry in catalogue::entries().chain([&KUBE_VIP_CLOUD_PROVIDER]) {
        let Some(chart) = chart_name(entry) else { continue };
        for version in entry.versions {
            let file = key_file(chart, version);
            let known: BTreeSet<&str> = file.lines().skip(1).collect();
            for distro in [Distro::Talos, Distro::Rke2, Distro::K3s] {
                // A packaged chart has values of its own, except for Cilium, which passes upstream's keys on.
                if matches!((entry.delivery)(distro), Delivery::Packaged { .. }) && entry.name != "cilium" {
                    continue;
                }
                let mut found = Vec::new();
                unknown(&(entry.values)(&everything(distro)), "", &known, &mut found);
                assert!(found.is_empty(), "{chart} {version} on {distro} has no {found:?}");
            }
        }
    }
}

#[test]
fn a_misspelt_default_would_be_found() {
    let file = key_file("cilium", "1.20.1");
    let known: BTreeSet<&str> = file.lines().skip(1).collect();
    let mut found = Vec::new();
    unknown(
        &json!({ "cgroup": { "automount": { "enabled": false } } }),
        "",
        &known,
        &mut found,
    );
    assert_eq!(found, ["cgroup.automount"]);
}

#[test]
fn every_key_of_addons_has_an_entry_of_its_name() {
    for addon in ALL {
        assert_eq!(catalogue::entry(addon).name, addon.as_str());
        assert!(std::ptr::eq(
            catalogue::by_name(addon.as_str()).unwrap(),
            catalogue::entry(addon)
        ));
    }
    assert_eq!(catalogue::entries().count(), 14);
    assert!(catalogue::by_name("flux").is_some() && catalogue::by_name("argocd").is_some());
    assert!(catalogue::by_name("fluxx").is_none());
}

#[test]
fn entries_are_in_the_order_of_installation() {
    let layer = |addon| catalogue::entry(addon).layer;
    assert!(layer(Addon::GatewayApi) < layer(Addon::Cilium));
    assert!(layer(Addon::Cilium) < layer(Addon::ProxmoxCcm));
    assert!(layer(Addon::ProxmoxCcm) < layer(Addon::ProxmoxCsi));
    assert!(layer(Addon::CertManager) < catalogue::by_name("flux").unwrap().layer);
    assert_eq!(layer(Addon::KubeVip), Layer::Addresses);
}

/// R1.
#[test]
fn hooks_of_network_and_cloud_charts_tolerate_every_taint() {
    let mut checked = 0;
    for entry in catalogue::entries().filter(|entry| entry.is_before_network()) {
        let values = (entry.values)(&everything(Distro::Talos));
        for hook in entry.hooks.iter().filter(|hook| hook.on == HookMoment::InstallAndUpgrade) {
            assert_eq!(
                at(&values, hook.tolerations),
                Some(&json!([{ "operator": "Exists" }])),
                "{}",
                hook.job
            );
            checked += 1;
        }
    }
    assert_eq!(checked, 1);
}

#[test]
fn helm_waits_for_the_certificate_job_of_cilium_up_to_1_18_only() {
    let cilium = catalogue::entry(Addon::Cilium);
    assert_eq!(cilium.hooks_at("1.16.19").count(), 1);
    assert_eq!(cilium.hooks_at("1.18.0").count(), 1);
    assert_eq!(cilium.hooks_at("1.19.7").count(), 0);
}

/// R1.
#[test]
fn the_operator_of_cilium_tolerates_uninitialized_nodes_only_where_a_cloud_controller_initialises_them() {
    let values = catalogue::entry(Addon::Cilium).values;
    let plain = values(&facts(Distro::Talos));
    assert_eq!(at(&plain, "operator.tolerations"), None);
    let with = values(&everything(Distro::Talos));
    assert_eq!(at(&with, "operator.tolerations"), Some(&json!([{ "operator": "Exists" }])));
}

/// R5.
#[test]
fn replicas_follow_the_wanted_nodes() {
    let values = catalogue::entry(Addon::Cilium).values;
    let mut one = facts(Distro::Talos);
    one.workers.clear();
    one.control_planes.retain(|name, _| name == "prod-cp-1");
    assert_eq!(at(&values(&one), "operator.replicas"), Some(&json!(1)));
    assert_eq!(at(&values(&facts(Distro::Talos)), "operator.replicas"), Some(&json!(2)));
}

#[test]
fn cilium_finds_an_api_server_on_the_node_itself() {
    let port = |distro| {
        let values = (catalogue::entry(Addon::Cilium).values)(&facts(distro));
        assert_eq!(values["k8sServiceHost"], "127.0.0.1");
        values["k8sServicePort"].clone()
    };
    assert_eq!(
        (port(Distro::Talos), port(Distro::Rke2), port(Distro::K3s)),
        (json!(7445), json!(6443), json!(6444))
    );
}

#[test]
fn host_restrictions_are_met_on_talos_and_left_alone_elsewhere() {
    let values = |distro| (catalogue::entry(Addon::Cilium).values)(&facts(distro));
    assert_eq!(at(&values(Distro::Talos), "cgroup.autoMount.enabled"), Some(&json!(false)));
    assert_eq!(at(&values(Distro::Talos), "bpf.hostLegacyRouting"), Some(&json!(true)));
    assert_eq!(at(&values(Distro::K3s), "cgroup"), None);
}

#[test]
fn our_own_values_give_no_warning() {
    for distro in [Distro::Talos, Distro::Rke2, Distro::K3s] {
        let facts = everything(distro);
        for entry in catalogue::entries() {
            assert_eq!(
                (entry.judge)(&facts, &(entry.values)(&facts)),
                [],
                "{} on {distro}",
                entry.name
            );
        }
    }
}

#[test]
fn values_that_break_cilium_on_talos_are_named() {
    let facts = everything(Distro::Talos);
    let entry = catalogue::entry(Addon::Cilium);
    let warned = |user: Value| -> Vec<String> {
        let merged = merge(&(entry.values)(&facts), &user);
        (entry.judge)(&facts, &merged)
            .into_iter()
            .map(|warning| warning.path)
            .collect()
    };
    assert_eq!(warned(json!({ "ipam": { "mode": "cluster-pool" } })), ["ipam.mode"]);
    assert_eq!(
        warned(json!({ "cgroup": { "automount": { "enabled": false } } })),
        ["cgroup.automount"]
    );
    assert_eq!(warned(json!({ "cgroup": { "autoMount": { "enabled": true } } })), ["cgroup"]);
    assert_eq!(warned(json!({ "kubeProxyReplacement": "true" })), Vec::<String>::new());
    assert_eq!(warned(json!({ "kubeProxyReplacement": false })), ["kubeProxyReplacement"]);
    assert_eq!(
        warned(json!({ "bpf": { "masquerade": true, "hostLegacyRouting": false } })),
        ["bpf.hostLegacyRouting"]
    );
    assert_eq!(
        warned(json!({ "securityContext": { "capabilities": { "ciliumAgent": ["SYS_MODULE"] } } })),
        ["securityContext.capabilities.ciliumAgent"]
    );
    assert_eq!(
        warned(json!({ "certgen": null, "operator": { "tolerations": [] } })),
        ["certgen.tolerations", "operator.tolerations"]
    );
    assert_eq!(
        warned(json!({ "l2announcements": { "enabled": false } })),
        ["l2announcements.enabled"]
    );
}

#[test]
fn exactly_one_cloud_controller_initialises_nodes() {
    let controllers = |wanted: &[Addon]| {
        let facts = AddonFacts {
            wanted: wanted.iter().copied().collect(),
            ..facts(Distro::Talos)
        };
        (catalogue::entry(Addon::ProxmoxCcm).values)(&facts)["enabledControllers"].clone()
    };
    assert_eq!(
        controllers(&[Addon::ProxmoxCcm]),
        json!(["cloud-node", "cloud-node-lifecycle"])
    );
    assert_eq!(
        controllers(&[Addon::ProxmoxCcm, Addon::TalosCcm]),
        json!(["cloud-node-lifecycle"])
    );
}

#[test]
fn cloud_controllers_and_cilium_are_not_added_to_a_running_cluster_and_cilium_is_never_removed() {
    for addon in [Addon::Cilium, Addon::ProxmoxCcm, Addon::TalosCcm] {
        let LateInstall::Refused { why, manual } = catalogue::entry(addon).late else {
            panic!("{} must be refused", addon.as_str())
        };
        assert!(!why.is_empty() && !manual.is_empty());
    }
    assert!(matches!(catalogue::entry(Addon::Cilium).removal, RemovalPolicy::Never(_)));
    assert_eq!(catalogue::entry(Addon::MetricsServer).late, LateInstall::Allowed);
}

#[test]
fn what_a_distribution_packages_is_configured_and_not_installed_twice() {
    let delivery = |addon: Addon, distro| (catalogue::entry(addon).delivery)(distro);
    assert_eq!(delivery(Addon::Cilium, Distro::Talos), Delivery::Job);
    let packaged = |chart, since_start| Delivery::Packaged { chart, since_start };
    assert_eq!(delivery(Addon::Cilium, Distro::Rke2), packaged("rke2-cilium", true));
    assert_eq!(
        delivery(Addon::MetricsServer, Distro::Rke2),
        packaged("rke2-metrics-server", false)
    );
    assert_eq!(delivery(Addon::Traefik, Distro::K3s), packaged("traefik", false));
    assert!(matches!(
        delivery(Addon::MetricsServer, Distro::K3s),
        Delivery::BuiltIn { .. }
    ));
    assert!(matches!(delivery(Addon::TalosCcm, Distro::Rke2), Delivery::Refused(_)));
    assert!(restrict_rke2_version(Distro::Rke2, true).is_err());
    assert!(restrict_rke2_version(Distro::Rke2, false).is_ok() && restrict_rke2_version(Distro::K3s, true).is_ok());
}

/// R10.
#[test]
fn helm_controller_objects_abort_instead_of_reinstalling() {
    let labels = BTreeMap::from([("mainstay.dev/cluster".to_owned(), "id".to_owned())]);
    let chart = HelmControllerChart {
        release: "cilium",
        namespace: "kube-system",
        archive: b"tgz",
        values: &json!({ "a": 1 }),
        is_before_network: true,
        labels: labels.clone(),
    };
    let object = chart.object();
    assert_eq!(
        (&object["spec"]["failurePolicy"], &object["spec"]["backOffLimit"]),
        (&json!("abort"), &json!(6))
    );
    assert_eq!(
        (&object["spec"]["bootstrap"], &object["spec"]["chartContent"]),
        (&json!(true), &json!("dGd6"))
    );
    assert_eq!(object["metadata"]["labels"]["mainstay.dev/cluster"], "id");
    let config = packaged_chart_config("rke2-cilium", &json!({}), &labels, None).unwrap();
    assert_eq!(config["spec"]["failurePolicy"], "abort");
    let existing = ["rke2-canal".to_owned()];
    let fault = packaged_chart_config("rke2-cilium", &json!({}), &labels, Some(&existing)).unwrap_err();
    let ConfigFault::NoSuchChart { chart, existing } = fault;
    assert_eq!(
        (chart.as_str(), existing.as_slice()),
        ("rke2-cilium", ["rke2-canal".to_owned()].as_slice())
    );
}

/// R15.
#[test]
fn cilium_goes_one_minor_at_a_time_and_never_back() {
    assert_eq!(cilium_hop("1.18.3", "1.18.3"), CiliumHop::None);
    assert_eq!(cilium_hop("1.18.3", "1.18.13"), CiliumHop::To("1.18.13".to_owned()));
    assert_eq!(cilium_hop("1.17.2", "1.20.1"), CiliumHop::To("1.18.13".to_owned()));
    assert_eq!(cilium_hop("1.19.7", "1.20.0"), CiliumHop::To("1.20.0".to_owned()));
    assert_eq!(cilium_hop("1.20.1", "1.19.7"), CiliumHop::Refused(HopRefusal::Downgrade));
    assert_eq!(
        cilium_hop("1.9.0", "1.16.19"),
        CiliumHop::Refused(HopRefusal::UnknownMinor(1, 10))
    );
}

#[test]
fn every_listed_cilium_has_a_gateway_api_that_is_listed_too() {
    let gateway = catalogue::entry(Addon::GatewayApi);
    for version in catalogue::entry(Addon::Cilium).versions {
        let needed = gateway_api_for(version).expect("a version");
        assert!(gateway.versions.contains(&needed), "{needed}");
    }
    assert_eq!(gateway_api_for("1.21.0"), None);
    let url = gateway.manifest_url("1.6.1").unwrap();
    assert!(url.ends_with("/v1.6.1/standard-install.yaml"), "{url}");
    assert_eq!(catalogue::entry(Addon::Cilium).manifest_url("1.20.1"), None);
}

#[test]
fn crds_that_are_looked_for_once_are_named_only_where_they_are_wanted() {
    let probes = catalogue::entry(Addon::Cilium).probes_crds;
    assert!(probes(&facts(Distro::Talos)).is_empty());
    assert!(probes(&everything(Distro::Talos)).contains(&"gatewayclasses.gateway.networking.k8s.io"));
    assert!(matches!(catalogue::entry(Addon::Cilium).crds, CrdDelivery::Operator(_)));
    assert_eq!(catalogue::entry(Addon::Traefik).crds, CrdDelivery::Archive);
}

#[test]
fn longhorn_uses_its_disk_and_no_more_replicas_than_nodes() {
    let values = catalogue::entry(Addon::Longhorn).values;
    let with = values(&facts(Distro::Talos));
    assert_eq!(
        at(&with, "defaultSettings.defaultDataPath"),
        Some(&json!("/var/mnt/longhorn"))
    );
    assert_eq!(at(&with, "persistence.defaultClassReplicaCount"), Some(&json!(2)));
    let mut without = facts(Distro::Talos);
    without.has_longhorn_disk = false;
    assert_eq!(
        at(&values(&without), "defaultSettings.defaultDataPath"),
        Some(&json!("/var/lib/longhorn"))
    );
    assert!(
        catalogue::entry(Addon::Longhorn)
            .machine
            .extensions
            .contains(&"siderolabs/iscsi-tools")
    );
}

#[test]
fn secrets_of_charts_that_take_an_existing_secret_are_not_values() {
    let entry = catalogue::entry(Addon::TailscaleOperator);
    assert_eq!((entry.values)(&everything(Distro::Talos)), json!({}));
    assert_eq!(entry.secret.unwrap().name, "operator-oauth");
}
