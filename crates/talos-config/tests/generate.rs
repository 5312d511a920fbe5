//! Our configs against those of the real generators.

use crate::support::{differences, documents, read, secrets};
use semver::Version;
use talos_config::generate::{ClusterInput, Install, InstallDisk, MachineInput, Role};
use talos_config::machine_config;

struct Case {
    folder: &'static str,
    cluster: ClusterInput,
    install: Install,
}

fn plain(folder: &'static str, talos: Version, installer: &str) -> Case {
    let endpoint = "https://10.10.0.10:6443".parse().unwrap();
    Case {
        folder,
        cluster: ClusterInput::new("demo", endpoint, talos, Version::new(1, 36, 3)),
        install: Install {
            disk: InstallDisk::Path("/dev/sda".to_owned()),
            image: format!("ghcr.io/siderolabs/installer:v{installer}"),
        },
    }
}

fn contracts() -> Vec<Case> {
    vec![
        plain("v1.13.9/a-plain", Version::new(1, 13, 9), "1.13.9"),
        plain("v1.13.9/a-contract-v1.11", Version::new(1, 11, 0), "1.13.9"),
        // Nothing changed in the generated config from 1.9 to 1.11.
        plain("v1.13.9/a-contract-v1.9", Version::new(1, 11, 0), "1.13.9"),
        plain("v1.13.9/a-contract-v1.12", Version::new(1, 12, 0), "1.13.9"),
        plain("v1.13.9/a-contract-v1.13", Version::new(1, 13, 0), "1.13.9"),
        plain("v1.13.9/a-contract-v1.14", Version::new(1, 14, 0), "1.13.9"),
    ]
}

fn options() -> Vec<Case> {
    let mut factory = plain("v1.13.9/b-options", Version::new(1, 13, 9), "1.13.9");
    factory.cluster.kubernetes = Version::new(1, 35, 0);
    factory.cluster.talos_sans = vec!["vip.example".to_owned(), "10.10.0.10".to_owned()];
    factory.cluster.kubernetes_sans = factory.cluster.talos_sans.clone();
    factory.install = Install {
        disk: InstallDisk::Path("/dev/vda".to_owned()),
        image: "factory.talos.dev/nocloud-installer/88d1f7a5c4f1d3aba7df787c448c1d3d008ed29cfb34af53fa0df4336a56040b:v1.13.9"
            .to_owned(),
    };
    let mut no_discovery = plain("v1.13.9/b-nodiscovery", Version::new(1, 13, 9), "1.13.9");
    no_discovery.cluster.discovery = false;
    let mut no_port = plain("v1.13.9/e-noport", Version::new(1, 13, 9), "1.13.9");
    no_port.cluster.endpoint = "https://10.10.0.10".parse().unwrap();
    let mut old = plain("v1.13.9/e-k8s-too-old", Version::new(1, 13, 9), "1.13.9");
    old.cluster.kubernetes = Version::new(1, 20, 0);
    vec![factory, no_discovery, no_port, old]
}

#[test]
fn our_configs_equal_the_real_ones_for_every_contract_and_option() {
    let secrets = secrets();
    for case in contracts().into_iter().chain(options()) {
        for (role, file) in [(Role::ControlPlane, "controlplane"), (Role::Worker, "worker")] {
            let machine = MachineInput::new(role, case.install.clone());
            let ours = machine_config(&secrets, &case.cluster, &machine).unwrap().to_yaml();
            let path = format!("{}/{file}.yaml", case.folder);
            let found = differences(&documents(&ours), &documents(&read(&path)));
            assert!(found.is_empty(), "{path}: {found:#?}");
            assert_eq!(*ours, read(&path), "{path}: same values, other bytes");
        }
    }
}

#[test]
fn other_generator_versions_agree_with_the_contract() {
    let secrets = secrets();
    let cases = [
        ("v1.12.6/a-plain", Version::new(1, 12, 6)),
        ("v1.14.1/a-contract-v1.13", Version::new(1, 13, 9)),
    ];
    for (folder, talos) in cases {
        for (role, file) in [(Role::ControlPlane, "controlplane"), (Role::Worker, "worker")] {
            let theirs = documents(&read(format!("{folder}/{file}.yaml")));
            let case = plain("", talos.clone(), "");
            let text = |pointer: &str| theirs[0].pointer(pointer).unwrap().as_str().unwrap().to_owned();
            let kubelet = text("/machine/kubelet/image");
            let mut cluster = case.cluster;
            cluster.kubernetes = kubelet.rsplit_once(":v").unwrap().1.parse().unwrap();
            let install = Install {
                disk: InstallDisk::Path(text("/machine/install/disk")),
                image: text("/machine/install/image"),
            };
            let ours = machine_config(&secrets, &cluster, &MachineInput::new(role, install))
                .unwrap()
                .to_yaml();
            let found = differences(&documents(&ours), &theirs);
            assert!(found.is_empty(), "{folder}/{file}: {found:#?}");
        }
    }
}
