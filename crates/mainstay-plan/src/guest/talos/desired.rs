//! What the file asks of Talos: versions, image, one machine config per machine.

use std::collections::BTreeMap;

use jiff::Timestamp;
use mainstay_spec::{Cni, Distro, Machine, Role, Spec, VersionWish};
use rand::CryptoRng;
use semver::Version;
use talos_config::generate::{Hostname, Install, InstallDisk, Link, Taint, UserVolume};
use talos_config::patch::{ConfigFault, faults};
use talos_config::schematic::{Arch, Assets, Platform};
use talos_config::validate::{Options, validate};
use talos_config::versions::{Contract, RELEASES, Unsupported, check_pair};
use talos_config::{ClusterInput, MachineInput, Patch, PkiError, Schematic, Secrets, ServiceAccountKey, machine_config};

use crate::derive_error::DeriveError;
use crate::desired::{Image, SchematicRef, SystemGoal};
use crate::observed::GuestConfig;
use crate::versions::Versions;
use crate::vm_diff::SYSTEM_SERIAL;

/// The versions to use: what the file says, else what runs, else the newest known.
pub(in crate::guest) fn resolve_versions(spec: &Spec, running: Option<&Versions>) -> Result<Versions, Unsupported> {
    let Some(wish) = spec.distro.talos() else {
        return Err(Unsupported::Malformed(format!("a version of {}", spec.distro.distro())));
    };
    let known = RELEASES.iter().map(|release| &release.newest);
    let release = wish.version.pick(running.map(|versions| &versions.release), known);
    let release = release
        .ok_or_else(|| Unsupported::Malformed(wish.version.to_string()))?
        .clone();
    let window = talos_config::versions::release(&release)?;
    let fitting: Vec<&Version> = RELEASES
        .iter()
        .map(|known| &known.kubernetes)
        .filter(|version| window.runs(version))
        .collect();
    let kubernetes = spec.kubernetes.pick(running.map(|versions| &versions.kubernetes), fitting);
    let kubernetes = kubernetes.cloned().or_else(|| first_of_minor(&spec.kubernetes));
    let kubernetes = kubernetes.ok_or_else(|| Unsupported::Malformed(spec.kubernetes.to_string()))?;
    check_pair(&release, &kubernetes)?;
    Ok(Versions {
        distro: Distro::Talos,
        release,
        kubernetes,
    })
}

/// A minor that is in the window of a release but whose patches are not in the table.
fn first_of_minor(wish: &VersionWish) -> Option<Version> {
    match wish {
        VersionWish::Minor(major, minor) => Some(Version::new(*major, *minor, 0)),
        VersionWish::Any | VersionWish::Exact(_) => None,
    }
}

/// The schematic of the file's extensions.
fn schematic(spec: &Spec) -> Schematic {
    let extensions = spec.distro.talos().map(|talos| &talos.extensions);
    Schematic::with_extensions(extensions.into_iter().flatten().map(AsRef::<str>::as_ref))
}

/// The disk image of the file, by version, schematic and architecture.
/// What the names of all images of a release begin with.
pub(in crate::guest) fn image_prefix(versions: &Versions) -> String {
    format!("talos-{}-", versions.release)
}

pub(in crate::guest) fn image(spec: &Spec, versions: &Versions) -> Image {
    let assets = assets(spec, versions);
    let path = assets.disk_image_path();
    let url = spec
        .distro
        .talos()
        .and_then(|talos| talos.factory.join(path.trim_start_matches('/')).ok());
    let short: String = assets.schematic.chars().take(16).collect();
    Image {
        file: format!("{}{short}-{}", image_prefix(versions), assets.disk_image()),
        url: url.map(String::from).unwrap_or_default(),
        schematic: Some(SchematicRef {
            text: schematic(spec).canonical(),
            id: assets.schematic,
        }),
        size: None,
        checksum: None,
    }
}

/// The system of these versions, with the extensions of the file.
pub(in crate::guest) fn system(spec: &Spec, versions: &Versions) -> SystemGoal {
    let assets = assets(spec, versions);
    SystemGoal {
        release: versions.release.clone(),
        image: assets.installer(&factory_host(spec)),
        schematic: Some(SchematicRef {
            text: schematic(spec).canonical(),
            id: assets.schematic,
        }),
    }
}

fn factory_host(spec: &Spec) -> String {
    let host = spec.distro.talos().and_then(|talos| {
        let (host, port) = (talos.factory.host_str()?, talos.factory.port());
        Some(port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
    });
    host.unwrap_or_default()
}

fn assets(spec: &Spec, versions: &Versions) -> Assets {
    Assets {
        schematic: schematic(spec).id(),
        talos: versions.release.clone(),
        platform: Platform::Nocloud,
        arch: Arch::Amd64,
        secureboot: false,
    }
}

/// Every machine's config, patches applied.
pub(in crate::guest) fn configs(
    spec: &Spec,
    secrets: &Secrets,
    runs: &dyn Fn(&str) -> Versions,
) -> Result<BTreeMap<String, GuestConfig>, DeriveError> {
    let mut configs = BTreeMap::new();
    let mut refused = RefusedConfigs::default();
    for machine in &spec.machines {
        let versions = &runs(machine.name.as_str());
        // A release that a person installed and that is not in the table has no config here: the machine is left as it is.
        if check_pair(&versions.release, &versions.kubernetes).is_err() {
            continue;
        }
        let cluster = cluster_input(spec, versions)?;
        let base = machine_config(secrets, &cluster, &machine_input(spec, versions, machine));
        let base = base.map_err(DeriveError::new)?;
        let contract = cluster.contract();
        let patches = machine
            .patches
            .iter()
            .map(|patch| Patch::parse(&patch.path, &patch.text, contract));
        let patches: Vec<Patch> = patches
            .collect::<Result<_, _>>()
            .map_err(|error| refused_patch(machine, &error))?;
        let config = base
            .patched(&patches, contract)
            .map_err(|error| refused_patch(machine, &error))?;
        if !validate(&config, &versions.release, Options::NODE).is_valid() {
            refused.add(machine, faults(&base, &patches, &versions.release));
        }
        configs.insert(machine.name.to_string(), GuestConfig::new(config.to_yaml().as_str()));
    }
    refused.check()?;
    Ok(configs)
}

/// The same with secrets that are thrown away.
pub(in crate::guest) fn check_configs(
    spec: &Spec,
    versions: &Versions,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<(), DeriveError> {
    let failed = |error: PkiError| DeriveError::new("the configs cannot be checked").why(error);
    let key = ServiceAccountKey::ec_p256(rng).map_err(failed)?;
    let secrets = Secrets::generate(rng, now, Contract::of(&versions.release), key).map_err(failed)?;
    configs(spec, &secrets, &|_| versions.clone()).map(drop)
}

/// Configs that a node would refuse: the same fault of several machines is told once.
#[derive(Default)]
struct RefusedConfigs {
    machines: Vec<String>,
    faults: Vec<(String, Vec<String>)>,
}

impl RefusedConfigs {
    fn add(&mut self, machine: &Machine, found: Vec<ConfigFault>) {
        self.machines.push(machine.name.to_string());
        for fault in found {
            let text = fault_text(&fault);
            match self.faults.iter_mut().find(|(there, _)| *there == text) {
                Some((_, machines)) => machines.push(machine.name.to_string()),
                None => self.faults.push((text, vec![machine.name.to_string()])),
            }
        }
    }

    fn check(&self) -> Result<(), DeriveError> {
        if self.machines.is_empty() {
            return Ok(());
        }
        let line = |(text, machines): &(String, Vec<String>)| {
            if machines.len() == self.machines.len() {
                text.clone()
            } else {
                format!("{text} ({})", list(machines))
            }
        };
        let lines: Vec<String> = self.faults.iter().map(line).collect();
        Err(DeriveError::new(format!("Talos would refuse the config of {}", list(&self.machines))).why(lines.join("\n")))
    }
}

/// `prod-w-1`, `prod-w-1 and 3 more`.
fn list(machines: &[String]) -> String {
    match machines {
        [] => String::new(),
        [only] => only.clone(),
        [first, rest @ ..] => format!("{first} and {} more", rest.len()),
    }
}

/// `patches/common.yaml:12, document HostnameConfig: ...`.
fn fault_text(fault: &ConfigFault) -> String {
    let place = match (&fault.patch, fault.line) {
        (Some(patch), Some(line)) => format!("{patch}:{line}"),
        (Some(patch), None) => patch.clone(),
        (None, _) => "the generated config (a bug of mainstay)".to_owned(),
    };
    let document = fault
        .document
        .iter()
        .map(|document| format!(", document {document}"))
        .collect::<String>();
    format!("{place}{document}: {}", one_line(&fault.error))
}

/// Talos lists what is wrong inside in lines of their own, below how many there are.
fn one_line(error: &str) -> String {
    let mut lines = error
        .lines()
        .map(|line| line.trim().trim_start_matches("* "))
        .filter(|line| !line.is_empty());
    let first = lines.next().unwrap_or_default();
    let counted = first.strip_suffix(" occurred:").and_then(|text| text.rsplit_once(' '));
    let first = counted.map_or(first, |(text, _)| {
        text.trim_end_matches(|letter: char| letter.is_ascii_digit()).trim_end()
    });
    let rest: Vec<&str> = lines.collect();
    if rest.is_empty() {
        first.to_owned()
    } else {
        format!("{first} {}", rest.join("; "))
    }
}

fn refused_patch(machine: &Machine, error: &talos_config::PatchError) -> DeriveError {
    DeriveError::new(format!("a patch cannot be applied to {}", machine.name)).why(error)
}

/// What all machines share. It changes with the file, never with what was observed, so a config is equal on every run.
fn cluster_input(spec: &Spec, versions: &Versions) -> Result<ClusterInput, DeriveError> {
    let endpoint = spec
        .endpoint
        .url()
        .parse()
        .map_err(|error| DeriveError::new("the endpoint is not a URL").why(error))?;
    let network = &spec.network;
    let mut sans: Vec<String> = network.vip.iter().map(ToString::to_string).collect();
    if spec.endpoint.host.parse() != Ok(network.vip.unwrap_or(std::net::Ipv4Addr::UNSPECIFIED)) {
        sans.push(spec.endpoint.host.clone());
    }
    Ok(ClusterInput {
        pod_subnets: vec![network.pods.to_string()],
        service_subnets: vec![network.services.to_string()],
        cni: match spec.cni {
            Cni::Flannel | Cni::Canal => talos_config::generate::Cni::Flannel,
            Cni::Cilium | Cni::None => talos_config::generate::Cni::None,
        },
        // Cilium answers service addresses itself; two programs that do would undo each other's rules.
        kube_proxy: spec.cni != Cni::Cilium,
        schedule_on_control_planes: spec.control_plane_workloads,
        kubernetes_sans: sans,
        nameservers: network.dns.clone(),
        ..ClusterInput::new(
            spec.name.as_str(),
            endpoint,
            versions.release.clone(),
            versions.kubernetes.clone(),
        )
    })
}

/// What is different on each machine. Its address and MAC are in the config too: the seed is read at the first boot only.
fn machine_input(spec: &Spec, versions: &Versions, machine: &Machine) -> MachineInput {
    let factory = factory_host(spec);
    let install = Install {
        disk: InstallDisk::Serial(SYSTEM_SERIAL.into()),
        image: assets(spec, versions).installer(&factory),
    };
    let role = match machine.role {
        Role::ControlPlane => talos_config::generate::Role::ControlPlane,
        Role::Worker => talos_config::generate::Role::Worker,
    };
    let volume = |disk: &mainstay_spec::ExtraDisk| UserVolume {
        name: disk.name.clone(),
        serial: disk.name.clone(),
        min_size: min_size(disk.disk.size.0),
    };
    MachineInput {
        hostname: Hostname::Static(machine.name.to_string()),
        links: vec![link(spec, machine)],
        node_subnets: vec![spec.network.cidr.trunc().to_string()],
        labels: machine.labels.clone(),
        taints: machine.taints.iter().map(taint).collect(),
        user_volumes: machine.shape.disks.iter().map(volume).collect(),
        ..MachineInput::new(role, install)
    }
}

/// The smallest volume that Talos may make on a disk of `gib`. The partition table takes some of the disk, so a volume as large as the disk
/// never fits.
fn min_size(gib: u64) -> String {
    match gib {
        0 | 1 => "512MiB".to_owned(),
        more => format!("{}GiB", more - 1),
    }
}

fn taint(taint: &mainstay_spec::Taint) -> Taint {
    Taint {
        key: taint.key.clone(),
        value: taint.value.clone(),
        effect: taint.effect.as_str().to_owned(),
    }
}

/// The card is found by its MAC: device names differ between machine types.
fn link(spec: &Spec, machine: &Machine) -> Link {
    let address = ipnet::Ipv4Net::new(machine.address, spec.network.cidr.prefix_len()).unwrap_or(spec.network.cidr);
    Link {
        addresses: vec![address.into()],
        gateways: vec![spec.network.gateway.into()],
        vip: spec
            .network
            .vip
            .filter(|_| machine.role == Role::ControlPlane)
            .map(Into::into),
        ..Link::new("net0", &machine.mac.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extra_disk_leaves_room_for_its_partition_table() {
        assert_eq!(min_size(1), "512MiB");
        assert_eq!(min_size(2), "1GiB");
        assert_eq!(min_size(100), "99GiB");
    }
}
