//! Differences by path, and no secret in anything that can be printed.

use crate::support::{read, rng, secrets};
use semver::Version;
use talos_config::access::DEFAULT_LIFETIME;
use talos_config::diff::{Effect, diff, effect};
use talos_config::generate::{
    ClusterInput, ExtensionFile, ExtensionService, Hostname, Install, InstallDisk, Link, MachineInput, Registry, RegistryLogin,
    Role,
};
use talos_config::validate::{Options, validate};
use talos_config::versions::Contract;
use talos_config::{Config, Kubeconfig, Patch, Secrets, TalosRole, Talosconfig, machine_config};

const CONTRACT: Contract = Contract::new(1, 13);

fn config(text: &str) -> Config {
    Config::parse(text, CONTRACT).unwrap()
}

fn shown(before: &str, after: &str) -> Vec<String> {
    diff(&config(before), &config(after), CONTRACT)
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_change_is_shown_with_its_path_and_effect() {
    let before = "machine:\n  type: worker\n  certSANs: [a]\n  install: {disk: /dev/sda}\n  env: {A: b}\n";
    let after = "machine:\n  type: worker\n  certSANs: [a, b]\n  install: {disk: /dev/sdb}\n  systemDiskEncryption: {state: {provider: luks2}}\n";
    let expected = [
        "+ machine.certSANs[1]: b (live)",
        "~ machine.install.disk: /dev/sda -> /dev/sdb (live)",
        "+ machine.systemDiskEncryption.state.provider: luks2 (reboot)",
        "- machine.env: *** (reboot)",
    ];
    let mut found = shown(before, after);
    // The whole map vanished: its keys are told one by one.
    found
        .iter_mut()
        .for_each(|line| *line = line.replace("machine.env.A", "machine.env"));
    assert_eq!(found, expected);
}

#[test]
fn documents_that_come_and_go_are_shown() {
    let link = "---\napiVersion: v1alpha1\nkind: LinkConfig\nname: net0\nmtu: 1500\n";
    let plain = "machine: {type: worker}\n";
    let lines = shown(plain, &format!("{plain}{link}"));
    assert!(lines.contains(&"+ LinkConfig/net0 mtu: 1500 (live)".to_owned()), "{lines:?}");
    let lines = shown(&format!("{plain}{link}"), plain);
    assert!(lines.contains(&"- LinkConfig/net0 mtu: 1500 (live)".to_owned()), "{lines:?}");
}

#[test]
fn a_config_does_not_differ_from_itself() {
    let text = read("v1.13.9/c-docs/controlplane.yaml");
    assert!(diff(&config(&text), &config(&text), CONTRACT).is_empty());
    assert_eq!(effect(&[]), None);
}

#[test]
fn talos_1_14_never_reboots_for_a_config() {
    let (before, after) = (config("machine: {type: worker}"), config("machine: {type: controlplane}"));
    assert_eq!(effect(&diff(&before, &after, CONTRACT)), Some(Effect::Reboot));
    assert_eq!(effect(&diff(&before, &after, Contract::new(1, 14))), Some(Effect::NextBoot));
}

const CANARY: &str = "c4n4ryc4n4ry";

/// Inputs with a secret in every place that takes one from outside.
fn inputs() -> (ClusterInput, MachineInput) {
    let mut cluster = ClusterInput::new(
        "demo",
        "https://10.0.0.10:6443".parse().unwrap(),
        Version::new(1, 13, 9),
        Version::new(1, 36, 3),
    );
    let registry = Registry {
        endpoints: vec![format!("https://user:{CANARY}@mirror.example").parse().unwrap()],
        login: Some(RegistryLogin {
            username: "u".to_owned(),
            password: CANARY.to_owned(),
        }),
        ..Registry::default()
    };
    cluster.registries.insert("docker.io".to_owned(), registry);
    let install = Install {
        disk: InstallDisk::Path("/dev/sda".to_owned()),
        image: "i".to_owned(),
    };
    let mut machine = MachineInput::new(Role::ControlPlane, install);
    machine.extension_services.push(ExtensionService {
        name: "tailscale".to_owned(),
        environment: vec![format!("TS_AUTHKEY={CANARY}")],
        files: vec![ExtensionFile {
            mount_path: "/etc/x".to_owned(),
            content: CANARY.to_owned(),
        }],
    });
    (cluster, machine)
}

/// Every secret of the bundle, and the canary.
fn forbidden(secrets: &Secrets) -> Vec<String> {
    let bundle: serde_json::Value = serde_saphyr::from_str(&secrets.to_talosctl_yaml()).unwrap();
    let text = |pointer: &str| bundle.pointer(pointer).unwrap().as_str().unwrap().to_owned();
    let mut forbidden: Vec<String> = [
        "/cluster/secret",
        "/secrets/bootstraptoken",
        "/secrets/secretboxencryptionsecret",
        "/trustdinfo/token",
    ]
    .map(text)
    .to_vec();
    for name in ["etcd", "k8s", "k8saggregator", "k8sserviceaccount", "os"] {
        // The armour is the same for every key; what follows it is not.
        forbidden.push(text(&format!("/certs/{name}/key"))[60..120].to_owned());
    }
    forbidden.push(CANARY.to_owned());
    forbidden
}

fn assert_clean(what: &str, shown: &str, forbidden: &[String]) {
    for secret in forbidden {
        assert!(!shown.contains(secret.as_str()), "{what} shows a secret: {shown}");
    }
}

#[test]
fn no_secret_is_in_anything_that_can_be_printed() {
    let secrets = secrets();
    let forbidden = forbidden(&secrets);
    let (cluster, machine) = inputs();
    let full = machine_config(&secrets, &cluster, &machine).unwrap();
    let now = "2026-11-15T20:18:03Z".parse().unwrap();
    let roles = [TalosRole::Admin].into();
    let talosconfig = Talosconfig::mint(&secrets, "demo", &roles, &[], &[], DEFAULT_LIFETIME, now, &mut rng(1)).unwrap();
    let kubeconfig = Kubeconfig::mint(&secrets, "demo", &cluster.endpoint, DEFAULT_LIFETIME, now, &mut rng(1)).unwrap();
    let patch = Patch::parse("p", &format!("machine: {{token: {CANARY}}}"), CONTRACT).unwrap();
    for shown in [
        format!("{secrets:?} {secrets:#?}"),
        format!("{cluster:?} {machine:?}"),
        format!("{full:?} {full:#?}"),
        format!("{talosconfig:?} {kubeconfig:?} {patch:?}"),
    ] {
        assert_clean("Debug", &shown, &forbidden);
    }
    assert!(full.to_yaml().contains(CANARY), "the config itself carries it");
    let empty = config("machine: {type: worker}");
    for change in diff(&empty, &full, CONTRACT).iter().chain(&diff(&full, &empty, CONTRACT)) {
        assert_clean("a diff", &format!("{change} {change:?}"), &forbidden);
    }
    let verdict = validate(&full, &cluster.talos, Options::NODE);
    assert_clean("a verdict", &format!("{verdict} {verdict:?}"), &forbidden);
}

#[test]
fn no_secret_is_in_an_error_about_a_misplaced_one() {
    let forbidden = [CANARY.to_owned()];
    let texts = [
        format!("machine: {{tokn: {CANARY}}}"),
        format!("machine: {{ca: {CANARY}}}"),
        format!("machine: {{ca: {{key: '{CANARY}!'}}}}"),
        format!("machine: {{install: {CANARY}, token: [{CANARY}]}}"),
        format!("machine: {{install: {{wipe: {CANARY}}}}}"),
        format!("cluster: {{token: {{x: {CANARY}}}}}"),
        format!("apiVersion: v1alpha1\nkind: RegistryAuthConfig\nname: a\npasword: {CANARY}\n"),
        format!("apiVersion: v1alpha1\nkind: WireguardConfig\nname: a\nprivateKey: {CANARY}\n"),
        format!("machine: {{network: {{interfaces: [{{interface: a, wireguard: {{privateKey: {CANARY}}}}}]}}}}"),
        format!("a: [{CANARY}"),
        format!("token: {CANARY}\ntoken: {CANARY}\n"),
    ];
    for text in texts {
        let shown = match Config::parse(&text, CONTRACT) {
            Err(error) => format!("{error} {error:?}"),
            Ok(config) => validate(&config, &Version::new(1, 13, 9), Options::NODE).to_string(),
        };
        assert!(!shown.is_empty(), "{text}: expected an error");
        assert_clean(&text, &shown, &forbidden);
        if let Err(error) = Patch::parse("p", &text, CONTRACT) {
            assert_clean(&text, &format!("{error} {error:?}"), &forbidden);
        }
        if let Err(error) = Secrets::from_talosctl_yaml(&text) {
            assert_clean(&text, &format!("{error} {error:?}"), &forbidden);
        }
    }
}

#[test]
fn a_full_machine_is_valid_for_a_node_of_every_version() {
    for minor in 11..=14 {
        let (mut cluster, mut machine) = inputs();
        cluster.talos = Version::new(1, minor, if minor == 12 { 11 } else { 9 });
        cluster.kubernetes = Version::new(1, 33, 0);
        cluster.network_form = talos_config::generate::NetworkForm::newest(Contract::of(&cluster.talos));
        machine.hostname = Hostname::Static("cp-1".to_owned());
        let mut link = Link::new("net0", "BC:24:11:00:00:01");
        link.addresses.push("10.0.0.11/24".parse().unwrap());
        link.gateways.push("10.0.0.1".parse().unwrap());
        link.vip = Some("10.0.0.10".parse().unwrap());
        machine.links.push(link);
        let text = machine_config(&secrets(), &cluster, &machine).unwrap().to_yaml();
        let config = Config::parse(&text, Contract::of(&cluster.talos)).unwrap();
        let verdict = validate(&config, &cluster.talos, Options::NODE);
        assert!(
            verdict.is_valid() && verdict.warnings.is_empty(),
            "1.{minor}: {verdict} {:?}",
            verdict.warnings
        );
    }
}
