//! Files of a guest, and what a probe's answer means.

use expect_test::expect;
use rancher_config::guest::{
    ArtifactKind, ArtifactOrigin, CloudInit, DataDisk, DataState, GuestFile, GuestInput, PinnedArtifact, Probe, ProbeError, Work,
    authority_files, guest_files, serves_our_authority,
};
use rancher_config::manifests::{ManifestFile, cni_values, helm_chart_config};
use rancher_config::{Checksum, ClusterInput, Cni, Distro, MachineInput, Registries, ReleaseVersion, Secrets, newest};

use crate::support::{agent, cluster, founder, joiner, secrets};

pub fn pinned(file: &str, sha256: &str, origin: ArtifactOrigin) -> PinnedArtifact {
    PinnedArtifact {
        kind: ArtifactKind::Program,
        file: file.to_owned(),
        sha256: Checksum::parse(sha256).expect("a digest"),
        origin,
    }
}

struct Given {
    cluster: ClusterInput,
    machine: MachineInput,
    secrets: Secrets,
    registries: Registries,
    manifests: Vec<ManifestFile>,
    artifacts: Vec<PinnedArtifact>,
    disks: Vec<DataDisk>,
    longhorn: bool,
    version: ReleaseVersion,
}

fn given(distro: Distro, cni: Cni, machine: MachineInput) -> Given {
    let url = "https://mirror.lan/x".parse().expect("a URL");
    Given {
        cluster: cluster(distro, cni),
        machine,
        secrets: secrets(distro),
        registries: Registries::default(),
        manifests: Vec::new(),
        artifacts: vec![pinned("k3s", &"a".repeat(64), ArtifactOrigin::Download(url))],
        disks: Vec::new(),
        longhorn: false,
        version: newest(distro),
    }
}

impl Given {
    fn files(&self) -> Vec<GuestFile> {
        let input = GuestInput {
            cluster: &self.cluster,
            machine: &self.machine,
            secrets: &self.secrets,
            vip: None,
            registries: &self.registries,
            manifests: &self.manifests,
            version: self.version,
            artifacts: &self.artifacts,
            ordinal: 2,
            disks: &self.disks,
            longhorn: self.longhorn,
        };
        guest_files(&input).expect("files")
    }

    fn text(&self, path: &str) -> Option<String> {
        let files = self.files();
        files
            .iter()
            .find(|file| file.path == path)
            .map(|file| file.content.to_string())
    }
}

#[test]
fn a_server_of_k3s_gets_these_files() {
    let files = given(Distro::K3s, Cni::Flannel, founder()).files();
    let list: String = files
        .iter()
        .map(|file| format!("{:04o} {}\n", file.mode, file.path))
        .collect();
    expect![[r#"
        0644 /etc/cloud/cloud-init.disabled
        0644 /etc/modules-load.d/mainstay.conf
        0644 /etc/sysctl.d/90-mainstay.conf
        0644 /etc/rancher/k3s/resolv.conf
        0755 /usr/local/lib/mainstay/prepare
        0755 /usr/local/lib/mainstay/fetch
        0755 /usr/local/lib/mainstay/packages
        0644 /var/lib/mainstay/prepare.input
        0644 /var/lib/mainstay/fetch.input
        0755 /usr/local/lib/mainstay/may-start
        0644 /etc/apt/apt.conf.d/99mainstay
        0644 /etc/needrestart/conf.d/mainstay.conf
        0644 /etc/systemd/system/apt-daily-upgrade.timer.d/mainstay.conf
        0644 /etc/systemd/system/mainstay-prepare.service
        0644 /etc/systemd/system/mainstay-fetch.service
        0644 /etc/systemd/system/mainstay-packages.service
        0644 /etc/systemd/system/k3s.service
        0644 /etc/systemd/system/k3s.service.d/10-mainstay.conf
        0600 /etc/rancher/k3s/config.yaml
    "#]]
    .assert_eq(&list);
}

#[test]
fn rke2_brings_its_own_units_and_gets_the_guard_as_a_drop_in() {
    let given = given(Distro::Rke2, Cni::Canal, joiner(Distro::Rke2));
    assert_eq!(given.text("/etc/systemd/system/rke2-server.service"), None);
    expect![[r#"
        [Unit]
        RequiresMountsFor=/var/lib/rancher/rke2

        [Service]
        ExecCondition=/usr/local/lib/mainstay/may-start /var/lib/rancher/rke2 /etc/rancher/rke2/config.yaml
        ExecStartPost=-/bin/rm -f /var/lib/mainstay/found
    "#]]
    .assert_eq(
        &given
            .text("/etc/systemd/system/rke2-server.service.d/10-mainstay.conf")
            .expect("a drop-in"),
    );
}

#[test]
fn an_agent_has_no_guard_no_manifests_and_no_server_token() {
    let mut given = given(Distro::Rke2, Cni::Cilium, agent(Distro::Rke2));
    let (chart, values) = cni_values(Distro::Rke2, Cni::Cilium, None).expect("values");
    given.manifests = vec![ManifestFile::new("rke2-cilium-config", &[helm_chart_config(chart, &values)])];
    let files = given.files();
    assert!(
        files
            .iter()
            .all(|file| !file.path.contains("may-start") && !file.path.contains("/manifests/"))
    );
    let whole: String = files.iter().map(|file| file.content.to_string()).collect();
    assert!(!whole.contains(given.secrets.server_token().expose()));
    assert!(whole.contains(given.secrets.agent_token().expose()));
    let keys = given.secrets.tls_files();
    assert!(keys.iter().all(|key| !whole.contains(key.content.as_str())), "no CA file");
}

#[test]
fn every_server_gets_the_cni_values_before_its_first_start() {
    let (chart, values) = cni_values(Distro::Rke2, Cni::Cilium, None).expect("values");
    let manifests = vec![ManifestFile::new("rke2-cilium-config", &[helm_chart_config(chart, &values)])];
    let text_for = |machine| {
        let mut given = given(Distro::Rke2, Cni::Cilium, machine);
        given.manifests = manifests.clone();
        given.text("/var/lib/rancher/rke2/server/manifests/rke2-cilium-config.yaml")
    };
    let first = text_for(founder());
    assert!(first.is_some());
    assert_eq!(first, text_for(joiner(Distro::Rke2)), "equal on all servers");
}

#[test]
fn secrets_are_in_secret_files_only_and_are_not_printed() {
    for distro in Distro::ALL {
        let given = given(distro, Cni::None, founder());
        let mut files = given.files();
        files.extend(authority_files(&given.secrets));
        let secret = [given.secrets.server_token(), given.secrets.agent_token()];
        for file in &files {
            let holds_secret =
                file.content.contains("PRIVATE KEY") || secret.iter().any(|token| file.content.contains(token.expose()));
            assert!(!holds_secret || (file.secret && file.mode == 0o600), "{}", file.path);
        }
        let shown = format!("{files:?}");
        assert!(!shown.contains("PRIVATE KEY") && !shown.contains("K10"), "{shown}");
    }
}

#[test]
fn the_eleven_ca_files_go_to_the_tls_directory() {
    let files = authority_files(&secrets(Distro::K3s));
    assert_eq!(files.len(), 11);
    assert_eq!(files[0].path, "/var/lib/rancher/k3s/server/tls/server-ca.crt");
    assert_eq!(files[0].content.as_str(), secrets(Distro::K3s).server_ca());
}

#[test]
fn pods_resolve_by_the_files_resolvers_only() {
    let mut given = given(Distro::K3s, Cni::Flannel, founder());
    assert_eq!(
        given.text("/etc/rancher/k3s/resolv.conf").as_deref(),
        Some("nameserver 1.1.1.1\nnameserver 8.8.8.8\nsearch lan\n")
    );
    given.cluster.search.clear();
    assert_eq!(
        given.text("/etc/rancher/k3s/resolv.conf").as_deref(),
        Some("nameserver 1.1.1.1\nnameserver 8.8.8.8\n")
    );
}

#[test]
fn cilium_switches_the_reverse_path_filter_off_in_the_file_that_sorts_last() {
    let files = given(Distro::Rke2, Cni::Cilium, founder()).files();
    let sysctls: Vec<&str> = files
        .iter()
        .map(|file| file.path.as_str())
        .filter(|path| path.starts_with("/etc/sysctl.d/"))
        .collect();
    assert_eq!(
        sysctls,
        ["/etc/sysctl.d/90-mainstay.conf", "/etc/sysctl.d/99-zz-mainstay.conf"]
    );
    assert!("99-zz-mainstay.conf" > "99-sysctl.conf");
    assert_eq!(
        given(Distro::Rke2, Cni::Canal, founder()).text("/etc/sysctl.d/99-zz-mainstay.conf"),
        None
    );
}

#[test]
fn updates_neither_reboot_nor_restart_servers_and_differ_in_time() {
    let given = given(Distro::Rke2, Cni::Canal, founder());
    let apt = given.text("/etc/apt/apt.conf.d/99mainstay").expect("a file");
    assert!(apt.contains("Automatic-Reboot \"false\""));
    let needrestart = given.text("/etc/needrestart/conf.d/mainstay.conf").expect("a file");
    assert!(needrestart.contains("$nrconf{override_rc}{qr(^rke2)} = 0;"), "{needrestart}");
    let timer = given
        .text("/etc/systemd/system/apt-daily-upgrade.timer.d/mainstay.conf")
        .expect("a file");
    assert!(timer.contains("OnCalendar=\nOnCalendar=*-*-* 06:40\n"), "{timer}");
}

#[test]
fn longhorn_brings_modules_packages_and_the_multipath_rule() {
    let mut given = given(Distro::K3s, Cni::Flannel, agent(Distro::K3s));
    given.longhorn = true;
    assert!(
        given
            .text("/etc/modules-load.d/mainstay.conf")
            .expect("a file")
            .contains("iscsi_tcp\ndm_crypt\n")
    );
    assert!(
        given
            .text("/etc/multipath/conf.d/mainstay.conf")
            .expect("a file")
            .contains("devnode \"^sd[a-z0-9]+\"")
    );
    let unit = given.text("/etc/systemd/system/mainstay-packages.service").expect("a unit");
    assert!(
        unit.contains("packages qemu-guest-agent iptables open-iscsi nfs-common\n"),
        "{unit}"
    );
}

#[test]
fn disks_and_artifacts_are_the_input_of_the_guests_work() {
    let mut given = given(Distro::K3s, Cni::Flannel, agent(Distro::K3s));
    given.disks = vec![DataDisk {
        name: "longhorn".into(),
        serial: "ms-longhorn".into(),
        mount: "/var/lib/longhorn".into(),
        new: true,
    }];
    let input = given.text("/var/lib/mainstay/prepare.input").expect("the input");
    assert!(
        input.ends_with("\ndisk longhorn ms-longhorn /var/lib/longhorn new\n"),
        "{input}"
    );
    // The system files are named with their hashes, so that the work runs again when one of them changes.
    assert!(input.contains(" /etc/modules-load.d/mainstay.conf\n") && input.contains(" /etc/sysctl.d/90-mainstay.conf\n"));
    let hash = "a".repeat(64);
    assert_eq!(
        given.text("/var/lib/mainstay/fetch.input"),
        Some(format!(
            "release v1.36.3+k3s1\nimport-to /var/lib/rancher/k3s/agent/images\nprogram {hash} k3s https://mirror.lan/x\n"
        ))
    );
    assert_eq!(given.artifacts[0].pushed_path(), "/var/lib/mainstay/artifacts/k3s");
}

#[test]
fn a_server_that_serves_another_authority_is_not_ours() {
    let secrets = secrets(Distro::K3s);
    assert!(serves_our_authority(&secrets, secrets.server_ca().as_bytes()));
    assert!(!serves_our_authority(&secrets, secrets.server_ca().trim_end().as_bytes()));
    assert!(!serves_our_authority(&secrets, b""));
}

const ANSWER: &str = "\
probe 1
boot 5f1c
uuid 1234-ABCD
serial c2VyaWFs
clock 1795000000
hostname lab-control-plane-1
cloud-init done
nic eth0 BC:24:11:00:00:17
address eth0 10.0.0.11/24
default-route eth0
free   123456789
version k3s version v1.36.3+k3s1 (abcdef)
binary aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
release v1.36.3+k3s1
file absent /etc/rancher/k3s/config.yaml
data absent server/db/etcd
data absent server/db/state.db
data absent server/cred
data present server/tls
mount /
unit k3s.service Result=exec-condition NRestarts=0 ActiveState=inactive SubState=dead UnitFileState=enabled
result fetch {\"input\":\"x\",\"boot\":\"5f1c\",\"rc\":0,\"text\":\"done\"}
refused 1795000000 no etcd data
end
";

fn parse(text: &str) -> Result<Probe, ProbeError> {
    Probe::parse(Distro::K3s, text)
}

#[test]
fn a_probe_is_read() {
    let probe = parse(ANSWER).expect("a probe");
    assert_eq!(probe.cloud_init, CloudInit::Done);
    assert_eq!(probe.version, Some(newest(Distro::K3s)));
    assert_eq!(probe.nics["eth0"], "bc:24:11:00:00:17");
    assert_eq!(probe.units["k3s.service"].result, "exec-condition");
    assert_eq!(probe.refused.as_deref(), Some("1795000000 no etcd data"));
    assert_eq!(probe.has_datastore(), Some(false), "CA files are no datastore");
    assert!(probe.proves("1234-abcd", "c2VyaWFs"));
    assert!(!probe.proves("1234-abcd", "other") && !probe.proves("1234-abcd", ""));
    assert_eq!(
        probe.clock_offset("2026-11-18T05:05:40Z".parse().expect("a time")).as_secs(),
        1_795_000_000 - 1_794_978_340
    );
}

#[test]
fn a_probe_that_is_cut_off_anywhere_says_nothing() {
    for length in 0..ANSWER.len() {
        assert!(parse(&ANSWER[..length]).is_err(), "{length} bytes");
    }
}

#[test]
fn a_datastore_is_absent_only_if_every_place_is_known_to_be_absent() {
    let unknown = parse(&ANSWER.replace("data absent server/db/etcd", "data unknown server/db/etcd")).expect("a probe");
    assert_eq!(unknown.has_datastore(), None);
    assert_eq!(unknown.data["server/db/etcd"], DataState::Unknown);
    let present = parse(&ANSWER.replace("data absent server/cred", "data present server/cred")).expect("a probe");
    assert_eq!(present.has_datastore(), Some(true));
    let untold = parse(&ANSWER.replace("data absent server/db/etcd\n", "")).expect("a probe");
    assert_eq!(untold.has_datastore(), None);
}

#[test]
fn a_file_is_outdated_if_absent_or_different_and_open_if_unknown() {
    let given = given(Distro::K3s, Cni::Flannel, founder());
    let config: Vec<GuestFile> = given
        .files()
        .into_iter()
        .filter(|file| file.path.ends_with("config.yaml"))
        .collect();
    let with = |state: &str| parse(&ANSWER.replace("file absent ", &format!("file {state} "))).expect("a probe");
    assert_eq!(with("absent").outdated(&config).map(|files| files.len()), Some(1));
    assert_eq!(with(&"b".repeat(64)).outdated(&config).map(|files| files.len()), Some(1));
    assert_eq!(with(&config[0].sha256()).outdated(&config).map(|files| files.len()), Some(0));
    assert_eq!(with("unknown").outdated(&config), None);
    assert_eq!(with("absent").outdated(&given.files()), None, "files that were not asked for");
}

#[test]
fn work_is_done_only_for_the_input_it_had() {
    let given = given(Distro::K3s, Cni::Flannel, founder());
    let files = given.files();
    let input = files
        .iter()
        .find(|file| file.path.ends_with("fetch.input"))
        .expect("an input");
    let with = |input: &str, rc: i64| {
        let text = ANSWER.replace("\"input\":\"x\"", &format!("\"input\":\"{input}\""));
        parse(&text.replace("\"rc\":0", &format!("\"rc\":{rc}"))).expect("a probe")
    };
    assert!(with(&input.sha256(), 0).is_done(Work::Fetch, input));
    assert!(!with(&input.sha256(), 75).is_done(Work::Fetch, input));
    assert!(!with("other", 0).is_done(Work::Fetch, input));
    assert!(!with(&input.sha256(), 0).is_done(Work::Prepare, input));
}
