//! Writes machine configs of every supported version, role and option into a directory, with the secrets and client files they
//! belong to, for the real programs to judge: `emit DIR`. File names tell the Talos version: `1.13.9-worker-full.yaml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use semver::Version;
use talos_config::access::DEFAULT_LIFETIME;
use talos_config::generate::{
    ClusterInput, Cni, ExtensionFile, ExtensionService, Hostname, Install, InstallDisk, Link, MachineInput, NetworkForm,
    Registry, RegistryLogin, Role, Route, Taint, UserVolume,
};
use talos_config::schematic::{Arch, Assets, Platform};
use talos_config::versions::{Contract, RELEASES};
use talos_config::{Kubeconfig, Schematic, Secrets, ServiceAccountKey, TalosRole, Talosconfig, machine_config};

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let directory: PathBuf = std::env::args_os().nth(1).ok_or("usage: emit DIR")?.into();
    std::fs::create_dir_all(&directory)?;
    let now: Timestamp = "2026-11-15T20:18:03Z".parse()?;
    let mut rng = ChaCha20Rng::seed_from_u64(1);
    let key = ServiceAccountKey::rsa4096(&mut rng)?;
    let secrets = Secrets::generate(&mut rng, now, Contract::CLASSIC, key)?;
    write(&directory, "secrets.yaml", &secrets.to_talosctl_yaml())?;
    let (endpoints, roles) = (["10.0.0.11".to_owned()], [TalosRole::Admin].into());
    let talosconfig = Talosconfig::mint(&secrets, "demo", &roles, &endpoints, &[], DEFAULT_LIFETIME, now, &mut rng)?;
    write(&directory, "talosconfig", &talosconfig.to_yaml())?;
    let kubeconfig = Kubeconfig::mint(
        &secrets,
        "demo",
        &"https://10.0.0.10:6443".parse()?,
        DEFAULT_LIFETIME,
        now,
        &mut rng,
    )?;
    write(&directory, "kubeconfig", &kubeconfig.to_yaml())?;
    for release in &RELEASES {
        for (name, cluster, machine) in cases(&release.newest, &release.kubernetes)? {
            let config = machine_config(&secrets, &cluster, &machine)?;
            write(&directory, &format!("{}-{name}.yaml", release.newest), &config.to_yaml())?;
        }
    }
    Ok(())
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), Failure> {
    Ok(std::fs::write(directory.join(name), text)?)
}

type Case = (String, ClusterInput, MachineInput);

fn cases(talos: &Version, kubernetes: &Version) -> Result<Vec<Case>, Failure> {
    let plain = ClusterInput::new("demo", "https://10.0.0.10:6443".parse()?, talos.clone(), kubernetes.clone());
    let mut cases = Vec::new();
    for (role, name) in [(Role::ControlPlane, "controlplane"), (Role::Worker, "worker")] {
        let machine = MachineInput::new(role, installed(talos));
        cases.push((format!("{name}-plain"), plain.clone(), machine.clone()));
        let mut classic = full_cluster(&plain)?;
        classic.network_form = NetworkForm::Classic;
        cases.push((format!("{name}-full"), full_cluster(&plain)?, full_machine(&machine)?));
        cases.push((format!("{name}-classic-network"), classic, full_machine(&machine)?));
        let mut dhcp = machine.clone();
        dhcp.links.push(Link {
            dhcp: true,
            ..Link::new("net0", "bc:24:11:00:00:02")
        });
        cases.push((format!("{name}-dhcp"), plain.clone(), dhcp));
    }
    Ok(cases)
}

fn installed(talos: &Version) -> Install {
    let assets = Assets {
        schematic: Schematic::with_extensions(["qemu-guest-agent"]).id(),
        talos: talos.clone(),
        platform: Platform::Nocloud,
        arch: Arch::Amd64,
        secureboot: false,
    };
    Install {
        disk: InstallDisk::Path("/dev/sda".to_owned()),
        image: assets.installer("factory.talos.dev"),
    }
}

fn full_cluster(plain: &ClusterInput) -> Result<ClusterInput, Failure> {
    let registry = Registry {
        endpoints: vec!["https://mirror.example".parse()?],
        skip_fallback: true,
        login: Some(RegistryLogin {
            username: "user".to_owned(),
            password: "pass".to_owned(),
        }),
        ca: None,
    };
    Ok(ClusterInput {
        dns_domain: "k8s.example".to_owned(),
        pod_subnets: vec!["10.1.0.0/16".to_owned(), "fd00:1::/56".to_owned()],
        service_subnets: vec!["10.2.0.0/16".to_owned(), "fd00:2::/112".to_owned()],
        cni: Cni::None,
        kube_proxy: false,
        kubespan: Some(true),
        kube_prism_port: 7446,
        forward_dns_to_host: false,
        schedule_on_control_planes: true,
        external_cloud_provider: true,
        talos_sans: vec!["cp.example".to_owned(), "10.0.0.10".to_owned()],
        kubernetes_sans: vec!["api.example".to_owned()],
        nameservers: vec!["10.0.0.1".parse()?, "2001:db8::53".parse()?],
        time_servers: vec!["10.0.0.1".to_owned()],
        registries: BTreeMap::from([("docker.io".to_owned(), registry)]),
        ..plain.clone()
    })
}

fn full_machine(plain: &MachineInput) -> Result<MachineInput, Failure> {
    let link = Link {
        addresses: vec!["10.0.0.11/24".parse()?, "fd00::11/64".parse()?],
        gateways: vec!["10.0.0.1".parse()?, "fd00::1".parse()?],
        routes: vec![Route {
            destination: "10.9.0.0/16".parse()?,
            gateway: "10.0.0.2".parse()?,
        }],
        mtu: Some(1450),
        vip: Some("10.0.0.10".parse()?),
        ..Link::new("net0", "BC:24:11:00:00:01")
    };
    Ok(MachineInput {
        hostname: Hostname::Static("demo-1.example.com".to_owned()),
        links: vec![link],
        node_subnets: vec!["10.0.0.0/24".to_owned(), "!10.0.0.10/32".to_owned()],
        labels: BTreeMap::from([("topology.kubernetes.io/zone".to_owned(), "pve1".to_owned())]),
        annotations: BTreeMap::from([("example.com/note".to_owned(), "some text: with signs".to_owned())]),
        taints: vec![Taint {
            key: "dedicated".to_owned(),
            value: "storage".to_owned(),
            effect: "NoSchedule".to_owned(),
        }],
        user_volumes: vec![UserVolume {
            name: "longhorn".to_owned(),
            serial: "longhorn".to_owned(),
            min_size: "10GiB".to_owned(),
        }],
        ephemeral_max_size: Some("30GiB".to_owned()),
        extension_services: vec![ExtensionService {
            name: "tailscale".to_owned(),
            environment: vec!["TS_AUTHKEY=example".to_owned(), "TS_AUTH_ONCE=true".to_owned()],
            files: vec![ExtensionFile {
                mount_path: "/etc/x.conf".to_owned(),
                content: "one\ntwo\n".to_owned(),
            }],
        }],
        ..plain.clone()
    })
}
