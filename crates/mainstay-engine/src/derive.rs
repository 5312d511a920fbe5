//! From the file and the secrets to everything that the plan must be told: versions, image, one config per machine.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_plan::{Config, Desired, Facts, Image, Observed, SYSTEM_SERIAL, Versions, resolve, running};
use mainstay_spec::{Cni, Machine, Role, Spec};
use talos_config::generate::{Hostname, Install, InstallDisk, Link, UserVolume};
use talos_config::schematic::{Arch, Assets, Platform};
use talos_config::{ClusterInput, MachineInput, Patch, Schematic, Secrets, machine_config};
use uuid::Uuid;

use crate::failure::{Failure, Kind};

/// The id that goes into marks and SMBIOS UUIDs. It comes from the random id in the bundle, so it is minted and lost with the secrets.
pub fn cluster_id(secrets: &Secrets) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("mainstay {}", secrets.cluster_id()).as_bytes())
}

/// The schematic of the file's extensions.
pub fn schematic(spec: &Spec) -> Schematic {
    let extensions = spec.distro.talos().map(|talos| &talos.extensions);
    Schematic::with_extensions(extensions.into_iter().flatten().map(AsRef::<str>::as_ref))
}

/// What the cluster is to run: the file's word, else what runs, else the newest that this binary knows.
pub fn versions(spec: &Spec, observed: Option<&Observed>, secrets: Option<&Secrets>) -> Result<Versions, Failure> {
    let there = observed
        .zip(secrets)
        .and_then(|(observed, secrets)| running(observed, cluster_id(secrets)));
    resolve(spec, there.as_ref()).map_err(|error| Failure::new(Kind::Refused, error.to_string()))
}

/// The cluster of the file.
pub fn desired(spec: &Spec, secrets: Option<&Secrets>, observed: &Observed) -> Result<Desired, Failure> {
    let versions = versions(spec, Some(observed), secrets)?;
    let configs = secrets
        .map(|secrets| configs(spec, secrets, &versions))
        .transpose()?
        .unwrap_or_default();
    let facts = Facts {
        cluster_id: secrets.map(cluster_id),
        image: image(spec, &versions),
        versions,
        configs,
    };
    Ok(Desired::cluster(spec, facts))
}

/// The disk image of the file, by version, schematic and architecture.
pub fn image(spec: &Spec, versions: &Versions) -> Image {
    let assets = assets(spec, versions);
    let path = assets.disk_image_path();
    let url = spec
        .distro
        .talos()
        .and_then(|talos| talos.factory.join(path.trim_start_matches('/')).ok());
    let short: String = assets.schematic.chars().take(16).collect();
    Image {
        file: format!("talos-{}-{short}-{}", versions.talos, assets.disk_image()),
        url: url.map(String::from).unwrap_or_default(),
        schematic: assets.schematic,
        size: None,
    }
}

/// The image files of a cluster that is to go: that of what runs, and that of what the file asks for, which may be another.
pub fn image_files(spec: &Spec, secrets: Option<&Secrets>, observed: &Observed) -> Result<BTreeSet<String>, Failure> {
    let there = secrets.and_then(|secrets| running(observed, cluster_id(secrets)));
    let wanted = resolve(spec, there.as_ref()).map_err(|error| Failure::new(Kind::Refused, error.to_string()))?;
    Ok(there
        .iter()
        .chain([&wanted])
        .map(|versions| image(spec, versions).file)
        .collect())
}

fn assets(spec: &Spec, versions: &Versions) -> Assets {
    Assets {
        schematic: schematic(spec).id(),
        talos: versions.talos.clone(),
        platform: Platform::Nocloud,
        arch: Arch::Amd64,
        secureboot: false,
    }
}

/// Every machine's config, patches applied.
pub fn configs(spec: &Spec, secrets: &Secrets, versions: &Versions) -> Result<BTreeMap<String, Config>, Failure> {
    let cluster = cluster_input(spec, versions)?;
    let mut configs = BTreeMap::new();
    for machine in &spec.machines {
        let config = machine_config(secrets, &cluster, &machine_input(spec, versions, machine));
        let config = config.map_err(|error| Failure::new(Kind::Refused, error.to_string()))?;
        let contract = cluster.contract();
        let patches = machine
            .patches
            .iter()
            .map(|patch| Patch::parse(&patch.path, &patch.text, contract));
        let patches: Vec<Patch> = patches
            .collect::<Result<_, _>>()
            .map_err(|error| refused_patch(machine, &error))?;
        let config = config
            .patched(&patches, contract)
            .map_err(|error| refused_patch(machine, &error))?;
        configs.insert(machine.name.to_string(), Config::new(config.to_yaml().as_str()));
    }
    Ok(configs)
}

fn refused_patch(machine: &Machine, error: &talos_config::PatchError) -> Failure {
    Failure::new(Kind::Refused, format!("a patch cannot be applied to {}", machine.name)).why(error.to_string())
}

fn cluster_input(spec: &Spec, versions: &Versions) -> Result<ClusterInput, Failure> {
    let endpoint = spec
        .endpoint
        .url()
        .parse()
        .map_err(|error| Failure::new(Kind::Bug, format!("the endpoint is no URL: {error}")))?;
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
        schedule_on_control_planes: spec.control_plane_workloads,
        kubernetes_sans: sans,
        nameservers: network.dns.clone(),
        ..ClusterInput::new(
            spec.name.as_str(),
            endpoint,
            versions.talos.clone(),
            versions.kubernetes.clone(),
        )
    })
}

fn machine_input(spec: &Spec, versions: &Versions, machine: &Machine) -> MachineInput {
    let factory = spec.distro.talos().and_then(|talos| {
        let (host, port) = (talos.factory.host_str()?, talos.factory.port());
        Some(port.map_or_else(|| host.to_owned(), |port| format!("{host}:{port}")))
    });
    let factory = factory.unwrap_or_default();
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
        min_size: format!("{}GiB", disk.disk.size.0.saturating_sub(1).max(1)),
    };
    MachineInput {
        hostname: Hostname::Static(machine.name.to_string()),
        links: vec![link(spec, machine)],
        node_subnets: vec![spec.network.cidr.trunc().to_string()],
        labels: machine.labels.clone(),
        taints: machine
            .taints
            .iter()
            .map(|taint| (taint.key.clone(), taint_value(taint)))
            .collect(),
        user_volumes: machine.shape.disks.iter().map(volume).collect(),
        ..MachineInput::new(role, install)
    }
}

fn taint_value(taint: &mainstay_spec::Taint) -> String {
    if taint.value.is_empty() {
        taint.effect.as_str().to_owned()
    } else {
        format!("{}:{}", taint.value, taint.effect.as_str())
    }
}

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
