//! Config files: golden texts, and every key against the flag definitions of the newest known release.

use std::collections::BTreeSet;

use crate::support::{address, agent, cluster, founder, joiner, secrets};
use expect_test::expect;
use rancher_config::config::{check_extra, config, join_url, known_keys};
use rancher_config::{Cni, Distro, ExtraProblem, InputError, Place, Role, newest, yaml};
use serde_json::{Map, Value, json};

fn text(file: Map<String, Value>) -> String {
    let whole = yaml::document(&Value::Object(file));
    // The tokens are random; what matters is which of the two stands where.
    let secrets = secrets(Distro::Rke2);
    whole
        .replace(secrets.server_token().expose(), "<server token>")
        .replace(secrets.agent_token().expose(), "<agent token>")
}

#[test]
fn the_founder_has_no_server_and_both_tokens() {
    let cluster = cluster(Distro::Rke2, Cni::Canal);
    let file = config(&cluster, &founder(), &secrets(Distro::Rke2), None).expect("a file");
    expect![[r#"
        node-name: "lab-control-plane-1"
        node-ip: "10.0.0.11"
        resolv-conf: "/etc/rancher/rke2/resolv.conf"
        token: "<server token>"
        agent-token: "<agent token>"
        tls-san:
          - "10.0.0.11"
          - "10.0.0.12"
          - "10.0.0.20"
        cni: "canal"
    "#]]
    .assert_eq(&text(file));
}

#[test]
fn a_joining_server_has_the_same_keys_and_the_join_address() {
    let cluster = cluster(Distro::Rke2, Cni::Cilium);
    let file = config(&cluster, &joiner(Distro::Rke2), &secrets(Distro::Rke2), None).expect("a file");
    expect![[r#"
        node-name: "lab-control-plane-2"
        node-ip: "10.0.0.12"
        resolv-conf: "/etc/rancher/rke2/resolv.conf"
        server: "https://10.0.0.11:9345"
        token: "<server token>"
        agent-token: "<agent token>"
        tls-san:
          - "10.0.0.11"
          - "10.0.0.12"
          - "10.0.0.20"
        cni: "cilium"
        disable-kube-proxy: true
    "#]]
    .assert_eq(&text(file));
}

#[test]
fn an_agent_gets_the_agent_token_only() {
    let cluster = cluster(Distro::Rke2, Cni::Canal);
    let file = config(&cluster, &agent(Distro::Rke2), &secrets(Distro::Rke2), None).expect("a file");
    expect![[r#"
        node-name: "lab-worker-1"
        node-ip: "10.0.0.21"
        node-label:
          - "zone=a"
        node-taint:
          - "gpu=yes:NoSchedule"
        resolv-conf: "/etc/rancher/rke2/resolv.conf"
        server: "https://10.0.0.11:9345"
        token: "<agent token>"
    "#]]
    .assert_eq(&text(file));
}

#[test]
fn k3s_founds_etcd_and_switches_flannel_off_for_another_cni() {
    let secrets = secrets(Distro::K3s);
    let file = |cni, machine| config(&cluster(Distro::K3s, cni), &machine, &secrets, None).expect("a file");
    let first = file(Cni::Flannel, founder());
    assert_eq!(first["cluster-init"], true);
    assert!(!first.contains_key("flannel-backend") && !first.contains_key("server"));
    let cilium = file(Cni::Cilium, joiner(Distro::K3s));
    assert_eq!(cilium["flannel-backend"], "none");
    assert_eq!(cilium["disable-network-policy"], true);
    assert_eq!(cilium["disable-kube-proxy"], true);
    assert_eq!(cilium["server"], "https://10.0.0.11:6443");
    assert!(!cilium.contains_key("cluster-init"), "never both");
    let none = file(Cni::None, joiner(Distro::K3s));
    assert_eq!(none["flannel-backend"], "none");
    assert!(!none.contains_key("disable-kube-proxy"));
}

#[test]
fn no_config_has_a_server_without_a_token() {
    for distro in Distro::ALL {
        let secrets = secrets(distro);
        for machine in [founder(), joiner(distro), agent(distro)] {
            let file = config(&cluster(distro, Cni::None), &machine, &secrets, None).expect("a file");
            let token = file.get("token").and_then(Value::as_str).expect("every machine has one");
            assert!(token.starts_with("K10"), "the full form");
            assert_eq!(file.contains_key("server"), machine.place != Place::Founder);
        }
    }
}

#[test]
fn every_key_that_is_written_is_a_flag_of_the_newest_release() {
    for distro in Distro::ALL {
        let secrets = secrets(distro);
        for cni in Cni::choices(distro) {
            let mut cluster = cluster(distro, *cni);
            cluster.external_cloud_provider = true;
            cluster.disable = BTreeSet::from(["servicelb".to_owned()]);
            cluster.system_registry = Some("registry.lan:5000".into());
            for mut machine in [founder(), joiner(distro), agent(distro)] {
                machine.interface = Some("eth1".into());
                let file = config(&cluster, &machine, &secrets, None).expect("a file");
                let known = known_keys(distro, machine.place.role());
                let unknown: Vec<&String> = file.keys().filter(|key| !known.contains(key.as_str())).collect();
                assert!(unknown.is_empty(), "{distro} {:?}: {unknown:?}", machine.place);
            }
        }
    }
}

#[test]
fn the_committed_flags_are_those_of_the_newest_release() {
    for (distro, text) in [
        (Distro::Rke2, include_str!("../../data/flags-rke2.txt")),
        (Distro::K3s, include_str!("../../data/flags-k3s.txt")),
    ] {
        let head = text.lines().next().expect("a first line");
        assert!(head.contains(&newest(distro).to_string()), "{head}");
        for role in [Role::Server, Role::Agent] {
            assert!(known_keys(distro, role).contains("node-ip"));
        }
    }
    assert!(
        !known_keys(Distro::Rke2, Role::Server).contains("cluster-init"),
        "RKE2 drops it"
    );
}

#[test]
fn keys_that_are_set_or_dangerous_or_unknown_are_refused_by_name() {
    let extra = json!({
        "node-ip": "1.2.3.4", "cluster-init": true, "data-dir": "/x", "datastore-endpoint": "mysql://", "token-file": "/x",
        "cluster-reset": true, "server": "https://x", "cluster-cidr": "10.99.0.0/16", "etcd-snapshot-retentoin": 3,
        "kubelet-arg": ["max-pods=200"], "profile": {"cis": true},
    });
    let problems = check_extra(Distro::Rke2, extra.as_object().expect("a map"));
    let named: Vec<(&str, &str)> = problems
        .iter()
        .map(|problem| {
            let kind = match problem {
                ExtraProblem::Owned { .. } => "owned",
                ExtraProblem::Forbidden { .. } => "forbidden",
                ExtraProblem::Unknown { .. } => "unknown",
                ExtraProblem::Type { .. } => "type",
            };
            (problem.key(), kind)
        })
        .collect();
    assert_eq!(
        named,
        [
            ("node-ip", "owned"),
            ("cluster-init", "owned"),
            ("data-dir", "forbidden"),
            ("datastore-endpoint", "forbidden"),
            ("token-file", "forbidden"),
            ("cluster-reset", "forbidden"),
            ("server", "owned"),
            ("etcd-snapshot-retentoin", "unknown"),
            ("profile", "type"),
        ]
    );
}

#[test]
fn every_key_that_is_written_is_refused_to_the_user_or_merged() {
    for distro in Distro::ALL {
        let secrets = secrets(distro);
        for cni in Cni::choices(distro) {
            let mut cluster = cluster(distro, *cni);
            cluster.external_cloud_provider = true;
            cluster.disable = BTreeSet::from(["servicelb".to_owned()]);
            for machine in [founder(), joiner(distro), agent(distro)] {
                let file = config(&cluster, &machine, &secrets, None).expect("a file");
                for key in file
                    .keys()
                    .filter(|key| !["tls-san", "disable", "kubelet-arg"].contains(&key.as_str()))
                {
                    let tried = Map::from_iter([(key.clone(), json!("x"))]);
                    assert!(
                        matches!(check_extra(distro, &tried)[..], [ExtraProblem::Owned { .. }]),
                        "{distro}: {key} can be overwritten"
                    );
                }
            }
        }
    }
}

#[test]
fn the_users_keys_are_merged_and_agents_get_only_what_agents_know() {
    let mut cluster = cluster(Distro::Rke2, Cni::Canal);
    cluster.extra =
        json!({"tls-san": ["k8s.example", "10.0.0.20"], "etcd-expose-metrics": true, "kubelet-arg": ["max-pods=200"]})
            .as_object()
            .expect("a map")
            .clone();
    let secrets = secrets(Distro::Rke2);
    let server = config(&cluster, &founder(), &secrets, None).expect("a file");
    assert_eq!(
        server["tls-san"],
        json!(["10.0.0.11", "10.0.0.12", "10.0.0.20", "k8s.example"])
    );
    assert_eq!(server["etcd-expose-metrics"], true);
    let agent = config(&cluster, &agent(Distro::Rke2), &secrets, None).expect("a file");
    assert_eq!(agent["kubelet-arg"], json!(["max-pods=200"]));
    assert!(!agent.contains_key("etcd-expose-metrics") && !agent.contains_key("tls-san"));
}

#[test]
fn an_external_cloud_provider_reaches_the_kubelet_of_both_distributions() {
    for distro in Distro::ALL {
        let mut cluster = cluster(distro, Cni::None);
        cluster.external_cloud_provider = true;
        let file = config(&cluster, &agent(distro), &secrets(distro), None).expect("a file");
        match distro {
            Distro::Rke2 => assert_eq!(file["cloud-provider-name"], "external"),
            Distro::K3s => assert_eq!(file["kubelet-arg"], json!(["cloud-provider=external"])),
        }
    }
}

#[test]
fn a_name_or_address_that_cannot_work_is_refused() {
    let secrets = secrets(Distro::K3s);
    let cluster = cluster(Distro::K3s, Cni::Flannel);
    let with_name = |name: &str| {
        let mut machine = founder();
        machine.name = name.to_owned();
        config(&cluster, &machine, &secrets, None)
    };
    for name in ["", "A", "a.b", "-a", "a-", "a_b", &"a".repeat(64)] {
        assert!(matches!(with_name(name), Err(InputError::NodeName(_))), "{name}");
    }
    let with_address = |text: &str, vip: Option<&str>| {
        let mut machine = founder();
        machine.address = address(text);
        config(&cluster, &machine, &secrets, vip.map(address))
    };
    for text in ["169.254.1.1", "127.0.0.1", "0.0.0.0", "fe80::1"] {
        assert!(matches!(with_address(text, None), Err(InputError::Address(_))), "{text}");
    }
    assert!(matches!(
        with_address("10.0.0.20", Some("10.0.0.20")),
        Err(InputError::AddressIsVip { .. })
    ));
}

#[test]
fn a_cni_of_the_other_distribution_is_refused() {
    let refused = config(&cluster(Distro::K3s, Cni::Canal), &founder(), &secrets(Distro::K3s), None);
    assert!(matches!(refused, Err(InputError::Cni { .. })));
}

#[test]
fn the_join_address_has_the_supervisor_port() {
    assert_eq!(
        join_url(Distro::Rke2, address("10.0.0.11")).as_str(),
        "https://10.0.0.11:9345/"
    );
    assert_eq!(join_url(Distro::K3s, address("fd00::1")).as_str(), "https://[fd00::1]:6443/");
}
