//! Every file of ours in a guest.

use std::net::IpAddr;

use serde_json::Value;
use url::Url;

use super::{GuestFile, Work, paths};
use crate::checksum::Checksum;
use crate::config::{self, ClusterInput, InputError, MachineInput, resolv_conf_path};
use crate::distro::{Distro, Role};
use crate::manifests::ManifestFile;
use crate::registries::Registries;
use crate::secrets::Secrets;
use crate::version::ReleaseVersion;
use crate::yaml;

/// Everything that decides the files of one machine.
#[derive(Debug, Clone)]
pub struct GuestInput<'a> {
    pub cluster: &'a ClusterInput,
    pub machine: &'a MachineInput,
    pub secrets: &'a Secrets,
    pub vip: Option<IpAddr>,
    pub registries: &'a Registries,
    /// Files of `server/manifests`: the CNI's values. Everything else goes through the Kubernetes API.
    pub manifests: &'a [ManifestFile],
    pub version: ReleaseVersion,
    pub artifacts: &'a [PinnedArtifact],
    /// Spreads unattended upgrades over the day.
    pub ordinal: u32,
    pub disks: &'a [DataDisk],
    /// Longhorn needs iSCSI and NFS clients, and a multipath daemon that leaves its disks alone.
    pub longhorn: bool,
}

/// A file of a release with its pinned checksum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinnedArtifact {
    pub kind: ArtifactKind,
    pub file: String,
    pub sha256: Checksum,
    pub origin: ArtifactOrigin,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArtifactKind {
    /// The tarball or executable that is installed.
    Program,
    /// An image archive that is imported at every start.
    Images,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArtifactOrigin {
    Download(Url),
    /// Pushed over SSH to [`PinnedArtifact::pushed_path`].
    Pushed,
}

impl PinnedArtifact {
    /// Where a pushed artifact is written before the fetch begins.
    pub fn pushed_path(&self) -> String {
        format!("{}/artifacts/{}", paths::STATE, self.file)
    }

    fn line(&self) -> String {
        let kind = match self.kind {
            ArtifactKind::Program => "program",
            ArtifactKind::Images => "images",
        };
        let url = match &self.origin {
            ArtifactOrigin::Download(url) => url.as_str(),
            ArtifactOrigin::Pushed => "-",
        };
        format!("{kind} {} {} {url}\n", self.sha256.hex(), self.file)
    }
}

/// A disk beside the system disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataDisk {
    /// Lower-case letters, digits and dashes, at most 13: the file system's label is `ms-<name>`, which ext4 limits to 16.
    pub name: String,
    /// The serial that the VM's config gives the disk.
    pub serial: String,
    pub mount: String,
    /// Our records say that nothing was ever written to it. Only then may it be formatted.
    pub new: bool,
}

/// Every file of one machine in the order of writing. CA files are not among them: see [`authority_files`].
pub fn guest_files(input: &GuestInput<'_>) -> Result<Vec<GuestFile>, InputError> {
    let mut files = vec![cloud_init_disabled()];
    files.extend(system_files(input));
    files.extend(programs(input));
    files.extend(update_files(input.cluster.distro, input.ordinal));
    files.extend(units(input));
    files.extend(distro_files(input)?);
    Ok(files)
}

/// The CA files of the founder, and of no other machine: the other servers receive them when they join.
pub fn authority_files(secrets: &Secrets) -> Vec<GuestFile> {
    let directory = format!("{}/server/tls", secrets.distro().data_dir());
    let files = secrets.tls_files().into_iter();
    files
        .map(|file| GuestFile::secret(format!("{directory}/{}", file.name), file.content.as_str()))
        .collect()
}

/// From here on address, name and users are ours. Without the file, a changed drive would make new host keys and a new address.
fn cloud_init_disabled() -> GuestFile {
    GuestFile::public(
        "/etc/cloud/cloud-init.disabled",
        "Written by mainstay after the first boot: this machine is configured over SSH.\n",
    )
}

fn system_files(input: &GuestInput<'_>) -> Vec<GuestFile> {
    let mut modules = vec!["overlay", "br_netfilter", "vxlan", "nf_conntrack"];
    if input.longhorn {
        modules.extend(["iscsi_tcp", "dm_crypt"]);
    }
    let mut files = vec![
        GuestFile::public("/etc/modules-load.d/mainstay.conf", lines(&modules)),
        GuestFile::public("/etc/sysctl.d/90-mainstay.conf", SYSCTLS),
    ];
    if input.cluster.cni.replaces_kube_proxy() {
        // Sorts after every other file, because some distributions switch the filter on again.
        files.push(GuestFile::public("/etc/sysctl.d/99-zz-mainstay.conf", NO_REVERSE_PATH_FILTER));
    }
    if input.longhorn {
        files.push(GuestFile::public("/etc/multipath/conf.d/mainstay.conf", MULTIPATH));
    }
    if !input.cluster.dns.is_empty() {
        files.push(GuestFile::public(
            resolv_conf_path(input.cluster.distro),
            resolv_conf(&input.cluster.dns, &input.cluster.search),
        ));
    }
    files
}

const SYSCTLS: &str = "\
net.ipv4.ip_forward = 1
net.ipv6.conf.all.forwarding = 1
net.bridge.bridge-nf-call-iptables = 1
net.bridge.bridge-nf-call-ip6tables = 1
fs.inotify.max_user_instances = 8192
fs.inotify.max_user_watches = 524288
";

const NO_REVERSE_PATH_FILTER: &str = "\
# Cilium's own devices receive packets that the filter takes for forged ones.
net.ipv4.conf.all.rp_filter = 0
net.ipv4.conf.default.rp_filter = 0
";

const MULTIPATH: &str = "\
# Longhorn's volumes are plain disks: a multipath device on top of one makes it unusable.
blacklist {
    devnode \"^sd[a-z0-9]+\"
}
";

/// For pods only. Whatever else the guest learns (a router's IPv6 resolver is enough) would make pods fall back to a public resolver.
fn resolv_conf(dns: &[IpAddr], search: &[String]) -> String {
    let mut text: String = dns.iter().map(|address| format!("nameserver {address}\n")).collect();
    if !search.is_empty() {
        text.push_str(&format!("search {}\n", search.join(" ")));
    }
    text
}

fn programs(input: &GuestInput<'_>) -> Vec<GuestFile> {
    let program = |name: &str, text| GuestFile::program(format!("{}/{name}", paths::PROGRAMS), text);
    let mut files = vec![
        program("prepare", include_str!("../../guest/prepare.sh")),
        program("fetch", include_str!("../../guest/fetch.sh")),
        program("packages", include_str!("../../guest/packages.sh")),
        GuestFile::public(format!("{}/prepare.input", paths::STATE), prepare_input(input)),
        GuestFile::public(format!("{}/fetch.input", paths::STATE), fetch_input(input)),
    ];
    if input.machine.place.role() == Role::Server {
        files.push(program("may-start", include_str!("../../guest/may-start.sh")));
    }
    files
}

/// Names the system files too, so that the work runs again when one of them changes.
fn prepare_input(input: &GuestInput<'_>) -> String {
    let line = |disk: &DataDisk| {
        let age = if disk.new { "new" } else { "used" };
        format!("disk {} {} {} {age}\n", disk.name, disk.serial, disk.mount)
    };
    let files = system_files(input).into_iter();
    let files = files.map(|file| format!("file {} {}\n", file.sha256(), file.path));
    files.chain(input.disks.iter().map(line)).collect()
}

fn fetch_input(input: &GuestInput<'_>) -> String {
    let artifacts: String = input.artifacts.iter().map(PinnedArtifact::line).collect();
    let images = input.cluster.distro.images_dir();
    format!("release {}\nimport-to {images}\n{artifacts}", input.version)
}

/// Unattended upgrades stay on, but restart neither the server nor the machine, and not all machines at the same time.
fn update_files(distro: Distro, ordinal: u32) -> Vec<GuestFile> {
    const DAY: u32 = 24 * 60;
    let minute = (6 * 60 + ordinal * 20) % DAY;
    let timer = format!(
        "[Timer]\nOnCalendar=\nOnCalendar=*-*-* {:02}:{:02}\nRandomizedDelaySec=0\n",
        minute / 60,
        minute % 60
    );
    vec![
        GuestFile::public(
            "/etc/apt/apt.conf.d/99mainstay",
            "Unattended-Upgrade::Automatic-Reboot \"false\";\nDPkg::Lock::Timeout \"300\";\n",
        ),
        GuestFile::public(
            "/etc/needrestart/conf.d/mainstay.conf",
            format!(
                "# Restarting these units is a planned step, one machine at a time.\n$nrconf{{override_rc}}{{qr(^{distro})}} = 0;\n"
            ),
        ),
        GuestFile::public("/etc/systemd/system/apt-daily-upgrade.timer.d/mainstay.conf", timer),
    ]
}

fn units(input: &GuestInput<'_>) -> Vec<GuestFile> {
    let distro = input.cluster.distro;
    let role = input.machine.place.role();
    let unit = distro.unit(role);
    let mut files: Vec<GuestFile> = Work::ALL.into_iter().map(|work| work_unit(work, input)).collect();
    if distro == Distro::K3s {
        files.push(GuestFile::public(format!("/etc/systemd/system/{unit}"), k3s_unit(role)));
    }
    let guard = match role {
        Role::Server => format!(
            "ExecCondition={}/may-start {} {}/config.yaml\nExecStartPost=-/bin/rm -f {}\n",
            paths::PROGRAMS,
            distro.data_dir(),
            distro.config_dir(),
            paths::FOUND,
        ),
        Role::Agent => String::new(),
    };
    let drop_in = format!("[Unit]\nRequiresMountsFor={}\n\n[Service]\n{guard}", distro.data_dir());
    files.push(GuestFile::public(
        format!("/etc/systemd/system/{unit}.d/10-mainstay.conf"),
        drop_in,
    ));
    files
}

fn work_unit(work: Work, input: &GuestInput<'_>) -> GuestFile {
    let mut command = format!("{}/{}", paths::PROGRAMS, work.name());
    if work == Work::Packages {
        for package in packages(input) {
            command.push(' ');
            command.push_str(package);
        }
    }
    let text = format!(
        "[Unit]\nDescription=mainstay: {}\nWants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=oneshot\n\
         TimeoutStartSec=infinity\nExecStart={command}\n",
        work.name()
    );
    GuestFile::public(format!("/etc/systemd/system/{}", work.unit()), text)
}

fn packages(input: &GuestInput<'_>) -> Vec<&'static str> {
    let mut packages = vec!["qemu-guest-agent"];
    if input.cluster.cni.needs_iptables() {
        packages.push("iptables");
    }
    if input.longhorn {
        packages.extend(["open-iscsi", "nfs-common"]);
    }
    packages
}

/// k3s ships no unit beside its executable. `KillMode=process` keeps pods running while the server restarts.
fn k3s_unit(role: Role) -> String {
    let command = match role {
        Role::Server => "server",
        Role::Agent => "agent",
    };
    format!(
        "[Unit]\nDescription=k3s {command}\nWants=network-online.target\nAfter=network-online.target\n\n[Service]\nType=notify\n\
         EnvironmentFile=-/etc/default/%N\nExecStartPre=-/sbin/modprobe br_netfilter\nExecStartPre=-/sbin/modprobe overlay\n\
         ExecStart=/usr/local/bin/k3s {command}\nKillMode=process\nDelegate=yes\nLimitNOFILE=1048576\nLimitNPROC=infinity\n\
         LimitCORE=infinity\nTasksMax=infinity\nTimeoutStartSec=0\nRestart=always\nRestartSec=5s\n\n[Install]\n\
         WantedBy=multi-user.target\n"
    )
}

/// The one file that says how a machine joins.
pub fn config_file(
    cluster: &ClusterInput,
    machine: &MachineInput,
    secrets: &Secrets,
    vip: Option<IpAddr>,
) -> Result<GuestFile, InputError> {
    let config = config::config(cluster, machine, secrets, vip)?;
    let path = format!("{}/config.yaml", cluster.distro.config_dir());
    Ok(GuestFile::secret(path, yaml::document(&Value::Object(config))))
}

fn distro_files(input: &GuestInput<'_>) -> Result<Vec<GuestFile>, InputError> {
    let distro = input.cluster.distro;
    let mut files = Vec::new();
    if !input.registries.is_empty() {
        files.push(GuestFile::secret(
            format!("{}/registries.yaml", distro.config_dir()),
            yaml::document(&input.registries.to_value()),
        ));
    }
    if input.machine.place.role() == Role::Server {
        let directory = distro.manifests_dir();
        let manifests = input.manifests.iter();
        files.extend(manifests.map(|file| GuestFile::public(format!("{directory}/{}.yaml", file.name), file.content.as_str())));
    }
    files.push(config_file(input.cluster, input.machine, input.secrets, input.vip)?);
    Ok(files)
}

fn lines(words: &[&str]) -> String {
    words.iter().map(|word| format!("{word}\n")).collect()
}
