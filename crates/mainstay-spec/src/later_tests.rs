//! What keys mean that this version still refuses by name. Without that refusal the file is read, checked and resolved as any other.

use crate::addons::{Addon, ChartSource, GitAuth, ManifestSource};
use crate::diagnostic::Severity;
use crate::provisioning::{Addressing, FirstBoot, NicAddress, VmOptions};
use crate::spec::{ArtifactDelivery, CloudImage, Cni, Distro, ImageSource, Provision, RancherSpec, Role, Spec, VersionWish};
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

#[test]
fn add_ons_are_resolved_with_their_values() {
    let read = spec(
        "cni: cilium\naddons:\n  cilium: { version: 1.18, values: { hubble: { enabled: true } } }\n  metrics-server: {}\n  \
         flux: { url: git@git.example:infra.git, path: clusters/homelab }\n",
    );
    let names: Vec<&str> = read.addons.releases.keys().map(|addon| addon.as_str()).collect();
    assert_eq!(names, ["cilium", "metrics-server"]);
    let cilium = &read.addons.releases[&Addon::Cilium];
    assert_eq!(cilium.version, VersionWish::Minor(1, 18));
    assert_eq!(cilium.values["hubble"]["enabled"], true);
    let flux = read.addons.flux.expect("Flux");
    assert_eq!(
        (flux.url.as_str(), flux.auth),
        ("ssh://git@git.example/infra.git", GitAuth::DeployKey)
    );
    assert_eq!(
        (flux.branch.as_str(), flux.path.as_str(), flux.age_key),
        ("main", "clusters/homelab", false)
    );
    assert_eq!(read.addons.argocd, None);
}

#[test]
fn every_add_on_is_known_by_its_key() {
    for (addon, key) in &crate::keys::addons::CATALOGUE {
        assert_eq!(addon.as_str(), key.name());
    }
}

#[test]
fn charts_and_manifests_keep_their_order() {
    let digest = "cd".repeat(32);
    let read = spec(&format!(
        "charts:\n  - {{ name: podinfo, chart: \"oci://ghcr.io/charts/podinfo\", version: 6.7.1 }}\n  - {{ name: vault, chart: vault, \
         repo: \"https://charts.example\", namespace: vault }}\nmanifests: [crds/, {{ url: \"https://x.example/a.yaml\", checksum: {digest} }}]\n"
    ));
    let sources: Vec<ChartSource> = read.addons.charts.iter().map(|chart| chart.source.clone()).collect();
    let repository = ChartSource::Repository {
        url: "https://charts.example".parse().unwrap(),
        chart: "vault".to_owned(),
    };
    assert_eq!(sources, [ChartSource::Oci("ghcr.io/charts/podinfo".to_owned()), repository]);
    assert_eq!(read.addons.charts[0].namespace, "default");
    let [ManifestSource::Path(path), ManifestSource::Url { checksum, .. }] = read.addons.manifests.as_slice() else {
        panic!("{:?}", read.addons.manifests)
    };
    assert_eq!((path.as_str(), checksum.hex()), ("crds/", digest.as_str()));
}

#[test]
fn registries_have_mirrors_and_logins_without_a_password() {
    let read = spec(
        "registries:\n  mirrors: { docker.io: { endpoints: [\"https://mirror.lan/v2\"] }, \"*\": { endpoints: [\"http://cache.lan:5000\"] } }\n  \
         credentials: { mirror.lan: { username: ops } }\n",
    );
    let registries = read.addons.registries;
    assert_eq!(registries.mirrors["docker.io"][0].as_str(), "https://mirror.lan/v2");
    assert_eq!(registries.mirrors["*"][0].as_str(), "http://cache.lan:5000/");
    assert_eq!(registries.logins["mirror.lan"], "ops");
}

#[test]
fn provisioning_has_its_defaults_and_what_the_file_says() {
    let plain = spec("");
    assert_eq!(plain.provisioning.addressing, Addressing::Static);
    assert_eq!(
        (plain.provisioning.first_boot, plain.provision),
        (FirstBoot::CloudInit, Provision::Import)
    );
    assert_eq!(plain.provisioning.template_vmids, (9000, None));
    assert_eq!(
        (plain.tailscale, plain.machines[0].options.clone()),
        (None, VmOptions::default())
    );
    assert_eq!(plain.pools[0].max_unavailable, 1);
    let read = spec(
        "provision: clone\ntemplate-vmids: 8000-8099\ntalos: { first-boot: meta }\nkubespan: true\nimage: { upload: true }\n\
         tailscale: { login-server: \"https://headscale.example\", tags: [\"tag:k8s\"], routes: [10.0.0.0/16], accept-dns: true }\n\
         verify: { image: mirror.lan/busybox }\n",
    );
    assert_eq!(
        (read.provision, read.provisioning.first_boot),
        (Provision::Clone, FirstBoot::Meta)
    );
    assert_eq!(read.provisioning.template_vmids, (8000, Some(8099)));
    assert!(read.provisioning.kubespan && read.provisioning.upload);
    let tailscale = read.tailscale.expect("Tailscale");
    assert_eq!(
        (tailscale.tags[0].as_str(), tailscale.routes.len(), tailscale.accept_dns),
        ("tag:k8s", 1, true)
    );
    assert_eq!(read.verify_image.as_deref(), Some("mirror.lan/busybox"));
}

#[test]
fn dhcp_has_a_range_inside_the_network() {
    let network = |more: &str| read(&BASE.replace("gateway: 10.0.0.1", &format!("gateway: 10.0.0.1, {more}")));
    let (spec, errors) = network("addressing: dhcp, hostnames: dhcp, dhcp-range: 10.0.1.0-10.0.1.99, search: [lan]");
    assert_eq!(errors, [""; 0]);
    let spec = spec.unwrap();
    assert_eq!(
        (spec.provisioning.addressing, spec.provisioning.hostnames),
        (Addressing::Dhcp, Addressing::Dhcp)
    );
    assert_eq!(spec.provisioning.dhcp_range.unwrap().last.to_string(), "10.0.1.99");
    assert_eq!(spec.network.search, ["lan"]);
    assert_eq!(network("dhcp-range: 10.0.1.0-99").1, ["dhcp-range"]);
    assert_eq!(
        network("addressing: dhcp, dhcp-range: 10.0.0.0-10.0.255.255").1,
        ["dhcp-range"]
    );
}

#[test]
fn options_and_cards_of_a_machine_come_from_its_pool_or_itself() {
    let pool = "10.0.0.21+, numa: true, machine-type: q35-9.2, cpu-flags: [+aes], hostpci: [gpu], mtu: 9000, extra: { vga: std }, \
                max-unavailable: 2, nics: [{ bridge: vmbr1, vlan: 30, cidr: 10.1.0.0/24, addresses: 10.1.0.11+, \
                routes: [{ to: 10.9.0.0/16, via: 10.1.0.1 }] }, { bridge: vmbr2, dhcp: true }] }";
    let text = BASE
        .replace("10.0.0.21+ }", pool)
        .replace("worker: { count: 1", "worker: { count: 2");
    let text = format!(
        "{text}machines: {{ homelab-worker-2: {{ mtu: 1500, nics: [{{ bridge: vmbr3, mac: \"BC:24:11:00:00:17\" }}] }} }}\n"
    );
    let (spec, errors) = read(&text);
    assert_eq!(errors, [""; 0]);
    let spec = spec.unwrap();
    let one = &spec.machine("homelab-worker-1").unwrap().options;
    assert_eq!(
        (one.numa, one.mtu, one.machine_type.as_deref()),
        (true, Some(9000), Some("q35-9.2"))
    );
    assert_eq!(
        (one.cpu_flags[0].as_str(), one.hostpci[0].as_str(), &one.extra["vga"]),
        ("+aes", "gpu", &"std".into())
    );
    assert_eq!(
        (one.nics[0].vlan, one.nics[0].routes[0].via.to_string()),
        (Some(30), "10.1.0.1".to_owned())
    );
    let address = NicAddress::Static {
        address: "10.1.0.11".parse().unwrap(),
        prefix: 24,
    };
    assert_eq!((one.nics[0].address, one.nics[1].address), (address, NicAddress::Dhcp));
    assert_ne!(one.nics[0].mac, one.nics[1].mac);
    let two = &spec.machine("homelab-worker-2").unwrap().options;
    assert_eq!((two.mtu, two.numa, two.nics.len()), (Some(1500), true, 1));
    assert_eq!(
        (two.nics[0].address, two.nics[0].mac.to_string().as_str()),
        (NicAddress::None, "BC:24:11:00:00:17")
    );
    assert_eq!(spec.pool("worker").unwrap().max_unavailable, 2);
}

#[test]
fn addresses_of_services_are_free_addresses_of_the_network() {
    let span = spec("cni: cilium\nloadbalancer: { pool: 10.0.0.240-250 }\n")
        .addons
        .loadbalancer
        .unwrap();
    assert_eq!(
        (span.first.to_string(), span.last.to_string()),
        ("10.0.0.240".to_owned(), "10.0.0.250".to_owned())
    );
    spec("addons: { kube-vip: {} }\nloadbalancer: { pool: 10.0.0.240-250 }\n");
    assert_eq!(errors("loadbalancer: { pool: 10.0.0.240-250 }\n"), ["loadbalancer"]);
    assert_eq!(errors("cni: cilium\nloadbalancer: { pool: 10.0.0.5-20 }\n"), ["loadbalancer"]);
    assert_eq!(errors("cni: cilium\nloadbalancer: { pool: 10.9.0.5-20 }\n"), ["loadbalancer"]);
}
