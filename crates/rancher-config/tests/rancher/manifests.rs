//! Kubernetes objects: kube-vip and the Helm controller's.

use std::net::IpAddr;

use rancher_config::manifests::{HelmChart, KUBE_VIP_VERSION, KubeVip, ManifestFile, VIP_LABEL, cni_values, helm_chart_config};
use rancher_config::{Cni, Distro, Mirror, Registries, RegistryAccess, yaml};
use serde_json::{Value, json};

fn kube_vip(distro: Distro) -> KubeVip {
    KubeVip {
        distro,
        address: "10.0.0.20".parse::<IpAddr>().expect("an address"),
        interface: None,
        image: None,
    }
}

fn daemon_set(kube_vip: &KubeVip) -> Value {
    kube_vip.objects().pop().expect("objects")
}

fn environment(object: &Value, name: &str) -> Option<String> {
    let list = object["spec"]["template"]["spec"]["containers"][0]["env"]
        .as_array()
        .expect("a list");
    let found = list.iter().find(|entry| entry["name"] == name)?;
    found["value"].as_str().map(str::to_owned)
}

#[test]
fn kube_vip_is_a_daemon_set_on_servers_that_talks_to_the_local_api_server() {
    for (distro, kubeconfig) in [
        (Distro::Rke2, "/etc/rancher/rke2/rke2.yaml"),
        (Distro::K3s, "/etc/rancher/k3s/k3s.yaml"),
    ] {
        let object = daemon_set(&kube_vip(distro));
        assert_eq!(object["kind"], "DaemonSet");
        let pod = &object["spec"]["template"]["spec"];
        assert_eq!(pod["volumes"][0]["hostPath"], json!({"path": kubeconfig, "type": "File"}));
        assert_eq!(pod["hostNetwork"], true);
        assert_eq!(
            environment(&object, "kubernetes_addr").as_deref(),
            Some("https://127.0.0.1:6443")
        );
        assert_eq!(environment(&object, "address").as_deref(), Some("10.0.0.20"));
        assert_eq!(environment(&object, "vip_subnet").as_deref(), Some("32"));
        assert_eq!(
            environment(&object, "vip_interface"),
            None,
            "the interface of the default route"
        );
        let lease = ["vip_leaseduration", "vip_renewdeadline", "vip_retryperiod"].map(|name| environment(&object, name));
        assert_eq!(lease, ["15", "10", "2"].map(|value| Some(value.to_owned())));
    }
}

#[test]
fn kube_vip_leaves_a_node_that_is_labelled_off() {
    let object = daemon_set(&kube_vip(Distro::K3s));
    let affinity = &object["spec"]["template"]["spec"]["affinity"]["nodeAffinity"];
    let rules = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"][0]["matchExpressions"].clone();
    assert_eq!(
        rules,
        json!([
            {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"},
            {"key": VIP_LABEL, "operator": "NotIn", "values": ["off"]},
        ])
    );
}

#[test]
fn kube_vip_is_new_enough_not_to_follow_its_own_address() {
    let version = semver::Version::parse(KUBE_VIP_VERSION.trim_start_matches('v')).expect("a version");
    assert!(version >= semver::Version::new(1, 2, 3));
    let image = daemon_set(&kube_vip(Distro::K3s))["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert!(image.as_str().expect("text").ends_with(KUBE_VIP_VERSION));
}

#[test]
fn releases_of_the_helm_controller_are_never_reinstalled_by_a_failure() {
    let config = helm_chart_config("rke2-cilium", &json!({"a": {"b": "1"}}));
    assert_eq!(config["spec"]["failurePolicy"], "abort");
    assert_eq!(config["metadata"], json!({"name": "rke2-cilium", "namespace": "kube-system"}));
    assert_eq!(config["spec"]["valuesContent"], "a:\n  b: \"1\"\n");
    let chart = HelmChart {
        release: "metrics-server",
        namespace: "kube-system",
        archive: b"tgz",
        values: &json!({}),
        bootstrap: false,
    }
    .object();
    assert_eq!(chart["spec"]["failurePolicy"], "abort");
    assert_eq!(chart["spec"]["backOffLimit"], 6);
    assert_eq!(chart["spec"]["chartContent"], "dGd6");
}

#[test]
fn packaged_cilium_replaces_kube_proxy_through_the_local_api_server() {
    let (chart, values) = cni_values(Distro::Rke2, Cni::Cilium, None).expect("values");
    assert_eq!(chart, "rke2-cilium");
    assert_eq!(
        values,
        json!({"kubeProxyReplacement": true, "k8sServiceHost": "127.0.0.1", "k8sServicePort": "6443"})
    );
    let canal = cni_values(Distro::Rke2, Cni::Canal, Some("eth1"));
    assert_eq!(canal, Some(("rke2-canal", json!({"flannel": {"iface": "eth1"}}))));
    assert_eq!(cni_values(Distro::Rke2, Cni::Canal, None), None);
    assert_eq!(cni_values(Distro::K3s, Cni::Cilium, None), None, "an add-on there");
}

#[test]
fn a_manifest_file_holds_several_documents() {
    let file = ManifestFile::new("rke2-cilium-config", &[json!({"a": 1}), json!({"b": 2})]);
    assert_eq!(file.content, "---\na: 1\n---\nb: 2\n");
}

#[test]
#[should_panic(expected = "no object name")]
fn a_manifest_file_name_with_an_underscore_is_a_bug() {
    ManifestFile::new("rke2_cilium", &[]);
}

#[test]
fn registries_are_written_with_mirrors_and_credentials_and_hide_passwords() {
    let mut registries = Registries::default();
    let endpoints = vec!["https://mirror.lan:5000".parse().expect("a URL")];
    registries.mirrors.insert("docker.io".into(), Mirror { endpoints });
    let access = RegistryAccess {
        username: Some("u".into()),
        password: Some("canary".to_owned().into()),
        ca_file: Some("/etc/ssl/lan.pem".into()),
        insecure_skip_verify: false,
    };
    registries.credentials.insert("mirror.lan:5000".into(), access);
    assert_eq!(
        yaml::document(&registries.to_value()),
        "mirrors:\n  docker.io:\n    endpoint:\n      - \"https://mirror.lan:5000\"\nconfigs:\n  \"mirror.lan:5000\":\n    auth:\n      \
         username: \"u\"\n      password: \"canary\"\n    tls:\n      ca_file: \"/etc/ssl/lan.pem\"\n"
    );
    assert!(!format!("{registries:?}").contains("canary"));
}
