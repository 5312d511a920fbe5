//! What keys mean that this version still refuses by name. Without that refusal the file is read, checked and resolved as any other.

use crate::diagnostic::Severity;
use crate::spec::{ArtifactDelivery, CloudImage, Cni, Distro, ImageSource, RancherSpec, Role, Spec};
use crate::value::Gib;
use crate::{Environment, understand};

const BASE: &str = "\
name: homelab
datacenter: { endpoint: \"https://pve.lan\" }
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1 }
pools: { control-plane: { count: 1, addresses: 10.0.0.11+ }, worker: { count: 1, addresses: 10.0.0.21+ } }
";

/// The spec, and the codes of all errors except the refusal of keys that are not supported yet.
fn read(text: &str) -> (Option<Spec>, Vec<&'static str>) {
    let mut faults = Vec::new();
    let files = |_: &str| Some(b"machine: {}".to_vec());
    let spec = understand(text, &Environment::default(), &files, &mut faults);
    faults.retain(|fault| fault.severity == Severity::Error && fault.code != "later-version");
    (spec, faults.iter().map(|fault| fault.code).collect())
}

fn spec(more: &str) -> Spec {
    let (spec, errors) = read(&format!("{BASE}{more}"));
    assert!(errors.is_empty(), "{more}: {errors:?}");
    spec.expect(more)
}

fn errors(more: &str) -> Vec<&'static str> {
    read(&format!("{BASE}{more}")).1
}

fn rancher(more: &str) -> RancherSpec {
    spec(more).distro.rancher().expect("RKE2 or k3s").clone()
}

#[test]
fn rke2_and_k3s_have_their_own_defaults() {
    for (more, distro, cni) in [
        ("rke2: {}\n", Distro::Rke2, Cni::Canal),
        ("k3s: {}\n", Distro::K3s, Cni::Flannel),
    ] {
        let spec = spec(more);
        assert_eq!((spec.distro.distro(), spec.cni), (distro, cni));
        assert_eq!(spec.network.pods.to_string(), "10.42.0.0/16");
        assert_eq!(spec.network.services.to_string(), "10.43.0.0/16");
        let sizes: Vec<(Role, u32, Gib)> = spec
            .machines
            .iter()
            .map(|m| (m.role, m.shape.cpu, m.shape.disk.size))
            .collect();
        assert_eq!(sizes, [(Role::ControlPlane, 4, Gib(50)), (Role::Worker, 4, Gib(100))]);
        let rancher = rancher(more);
        assert_eq!(rancher.image, ImageSource::Known(CloudImage::Ubuntu2404));
        assert_eq!(
            (rancher.version, rancher.artifact, rancher.mirror),
            (None, ArtifactDelivery::Fetch, None)
        );
    }
}

#[test]
fn a_release_is_exact_or_a_channel() {
    for (more, expected) in [
        ("rke2: { version: 1.35 }\n", "1.35"),
        ("rke2: { version: stable }\n", "stable"),
        ("rke2: { version: 1.35.3+rke2r1 }\n", "v1.35.3+rke2r1"),
        ("k3s: { version: v1.36.3+k3s1 }\n", "v1.36.3+k3s1"),
    ] {
        assert_eq!(
            rancher(more).version.map(|version| version.to_string()).as_deref(),
            Some(expected)
        );
    }
    for more in [
        "rke2: { version: 1.36.3+k3s1 }\n",
        "k3s: { version: 1.36.3+rke2r1 }\n",
        "rke2: { version: 1.36.3 }\n",
        "rke2: { version: 1.36.4-rc1+rke2r1 }\n",
        "rke2: { version: 1.9 }\n",
    ] {
        assert_eq!(errors(more), ["value"], "{more}");
    }
}

#[test]
fn an_image_is_known_by_name_or_has_a_checksum() {
    let digest = "ab".repeat(32);
    let image = |text: &str| format!("rke2: {{ image: {text} }}\n");
    assert_eq!(rancher(&image("debian-13")).image, ImageSource::Known(CloudImage::Debian13));
    let file = format!("{{ url: \"https://m.lan/noble-server-cloudimg-amd64.img\", checksum: \"sha256:{digest}\" }}");
    let ImageSource::File { url, checksum } = rancher(&image(&file)).image else {
        panic!("a file")
    };
    assert_eq!(
        (url.path(), checksum.hex()),
        ("/noble-server-cloudimg-amd64.img", digest.as_str())
    );
    assert_eq!(
        errors(&image("{ url: \"https://m.lan/noble-server-cloudimg-amd64.img\" }")),
        ["missing-key"]
    );
    let other = file.replace("noble-server-cloudimg", "arch");
    assert_eq!(errors(&image(&other)), ["image-unknown"]);
    rancher(&image(&other.replace(" }", ", unchecked: true }")));
    assert_eq!(errors(&image(&file.replace("noble", "resolute"))), ["value"]);
    assert_eq!(errors(&image("ubuntu-26.04")), ["unknown-value"]);
}

#[test]
fn further_config_keys_are_passed_on_and_those_of_mainstay_refused() {
    let read = rancher("rke2: { config: { profile: cis, kubelet-arg: [max-pods=200], embedded-registry: true } }\n");
    let expected = serde_json::json!({ "profile": "cis", "kubelet-arg": ["max-pods=200"], "embedded-registry": true });
    assert_eq!(serde_json::Value::Object(read.config), expected);
    for key in [
        "server",
        "token",
        "cluster-init",
        "data-dir",
        "node-ip",
        "cluster-cidr",
        "cluster-reset",
        "no-such-key",
    ] {
        assert_eq!(
            errors(&format!("rke2: {{ config: {{ {key}: x }} }}\n")),
            ["config-key"],
            "{key}"
        );
    }
    assert_eq!(
        errors("k3s: { config: { kubelet-arg: { max-pods: 200 } } }\n"),
        ["config-key"]
    );
}

#[test]
fn a_pod_network_belongs_to_its_distribution() {
    assert_eq!(spec("rke2: {}\ncni: cilium\n").cni, Cni::Cilium);
    assert_eq!(spec("k3s: {}\ncni: none\n").cni, Cni::None);
    assert_eq!(errors("rke2: {}\ncni: flannel\n"), ["cni"]);
    assert_eq!(errors("k3s: {}\ncni: canal\n"), ["cni"]);
    assert_eq!(errors("cni: canal\n"), ["cni"]);
}

#[test]
fn what_only_talos_has_is_refused_with_rke2() {
    assert_eq!(errors("rke2: {}\nkubernetes: 1.35.3\n"), ["kubernetes-version"]);
    assert_eq!(errors("rke2: {}\ntalos: {}\n"), ["two-distros"]);
    let (_, found) = read(&format!(
        "{}rke2: {{}}\n",
        BASE.replace("10.0.0.21+ }", "10.0.0.21+, patches: [a.yaml] }")
    ));
    assert_eq!(found, ["patches"]);
}

#[test]
fn an_administrator_key_is_public() {
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIPWUlTvgbVNeV7kOF8rjxSZOJg8s8fFPYl8/7jHmSjIz ops@laptop";
    assert_eq!(rancher(&format!("rke2: {{ ssh-keys: [\"{key}\"] }}\n")).ssh_keys, [key]);
    assert_eq!(
        errors("rke2: { ssh-keys: [\"-----BEGIN OPENSSH PRIVATE KEY-----\"] }\n"),
        ["value"]
    );
}
