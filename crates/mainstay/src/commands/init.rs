//! `init`: reads Proxmox VE through the API token and writes a commented cluster.yaml with what it found. On a terminal it asks three
//! questions; without one, the defaults are written.

use std::fmt::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{Entropy, Env, Fingerprint, Target, Tcp, Trust, Wall, presented_fingerprint};
use mainstay_spec::Distro;
use pve_api::cluster::HostState;
use pve_api::{Client, ClientOptions, Content, Endpoint, cluster, host, storage};

use super::addresses;
use super::ask::Questions;
use crate::args::InitArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::process_env::ProcessEnv;
use crate::session::{self, Session};

const LOOK: Duration = Duration::from_secs(10);
/// The number of the first address in its network: routers seldom hand out the upper ones.
pub(super) const FIRST_ADDRESS: u8 = 211;
/// Workers begin so many addresses after the first one, which leaves room for more control planes.
const WORKERS_AT: u32 = 10;
/// The JSON Schema for editors, beside the cluster file.
const SCHEMA: &str = "cluster.schema.json";
/// Where no bridge has an address.
const EXAMPLE: ipnet::Ipv4Net = ipnet::Ipv4Net::new_assert(Ipv4Addr::new(10, 0, 0, 0), 24);

/// What the file needs to know about the datacenter.
pub(super) struct DatacenterScan {
    endpoint: String,
    fingerprint: Option<Fingerprint>,
    hosts: Vec<String>,
    images: Option<String>,
    /// A storage that lacks only the content type `import`, which one command adds.
    almost: Option<(String, String)>,
    disks: Option<String>,
    bridges: Vec<(String, Option<String>)>,
    /// Processors and free memory that a machine must fit into. `None`: the token may not see them.
    size: Option<(u64, u64)>,
}

pub async fn run(file: &Path, args: InitArgs, process_env: ProcessEnv, output: Output) -> Result<(), CommandError> {
    if file.exists() && !args.force {
        return Err(CommandError::usage(format!("{} already exists", file.display()))
            .help("pass --force to overwrite it, or -f to use another file"));
    }
    // A file that `setup` wrote knows how Proxmox VE is reached; that is kept.
    let present = if file.exists() {
        Session::open(file, process_env.clone()).ok()
    } else {
        None
    };
    let (found, token_file) = match &present {
        Some(session) => (look_again(session).await?, session.spec().datacenter.token_file.clone()),
        None => (look(&process_env).await?, None),
    };
    let mut ask = Questions::new(output);
    let choice = if ask.can_ask() {
        ClusterChoice::ask(&mut ask, &found).await?
    } else {
        ClusterChoice::usual(&found, FIRST_ADDRESS)
    };
    write_files(file, &write(&args.name, &found, token_file.as_deref(), &choice))?;
    output.status(format!(
        "wrote {}: {} found. Review it, then: mainstay plan",
        file.display(),
        crate::view::count(found.hosts.len(), "host")
    ));
    if let Some((name, content)) = found.almost.filter(|_| found.images.is_none()) {
        output.status(format!(
            "no storage allows content type `import`; on a host, once: pvesm set {name} --content {content},import"
        ));
    }
    Ok(())
}

async fn look(process_env: &ProcessEnv) -> Result<DatacenterScan, CommandError> {
    let endpoint = process_env.endpoint.clone().ok_or_else(|| {
        CommandError::usage("no Proxmox VE endpoint is configured")
            .why("PROXMOX_VE_ENDPOINT is not set")
            .help("export PROXMOX_VE_ENDPOINT=https://pve.lan:8006")
            .help("export PROXMOX_VE_API_TOKEN='user@realm!name=secret'")
    })?;
    let url =
        url::Url::parse(&endpoint).map_err(|error| CommandError::usage(format!("`{endpoint}` is not a URL")).caused_by(error))?;
    let target = Target {
        host: url.host_str().unwrap_or_default().to_owned(),
        port: url.port().unwrap_or(8006),
    };
    let env = Env {
        dialer: Arc::new(Tcp),
        wall: Wall::real(),
        entropy: Entropy::from_os(),
    };
    let fingerprint = presented_fingerprint(env.dialer.clone(), &target, env.wall, LOOK).await;
    let fingerprint =
        fingerprint.map_err(|error| CommandError::new(format!("{target} presents no certificate")).caused_by(error))?;
    let trust = Trust::Pin(fingerprint);
    let pve = Client::new(
        &env,
        vec![Endpoint {
            target,
            trust,
            host: None,
        }],
        session::login(process_env, None)?,
        ClientOptions::default(),
    );
    let pve = pve.map_err(|error| CommandError::new("the certificate is not valid").caused_by(error))?;
    scan(&pve, url.to_string().trim_end_matches('/').to_owned(), Some(fingerprint)).await
}

async fn look_again(session: &Session) -> Result<DatacenterScan, CommandError> {
    let endpoint = session.spec().datacenter.endpoint.to_string();
    let fingerprint = match session.pve_trust() {
        Trust::Pin(fingerprint) => Some(fingerprint),
        _ => None,
    };
    scan(&session.pve()?, endpoint.trim_end_matches('/').to_owned(), fingerprint).await
}

/// What the file is to ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClusterChoice {
    distro: Distro,
    control_planes: u32,
    workers: u32,
    first: Ipv4Addr,
}

impl ClusterChoice {
    /// One machine of each role. `first`: the number of the first address in the network of the bridge.
    pub(super) fn usual(found: &DatacenterScan, first: u8) -> Self {
        Self {
            distro: Distro::ALL[0],
            control_planes: 1,
            workers: 1,
            first: found.address(first),
        }
    }

    async fn ask(ask: &mut Questions, found: &DatacenterScan) -> Result<Self, CommandError> {
        let flag = "without a terminal the defaults are written";
        let question = format!("Distribution ({})", distros());
        let distro = ask.choice(&question, Distro::ALL[0].as_str(), flag, distro).await?;
        let (control_planes, workers) = ask.choice("Control planes + workers", "1+1", flag, machines).await?;
        let mut choice = Self {
            distro,
            control_planes,
            workers,
            ..Self::usual(found, FIRST_ADDRESS)
        };
        let env = Env {
            dialer: Arc::new(Tcp),
            wall: Wall::real(),
            entropy: Entropy::from_os(),
        };
        let usual = found.address(addresses::free_block(&env, found.network()).await).to_string();
        let question = format!("First of {} unused addresses outside of the DHCP range", choice.addresses());
        let size = choice.addresses();
        choice.first = ask
            .choice(&question, &usual, flag, |text| first_address(text, size, found.network()))
            .await?;
        Ok(choice)
    }

    /// How many addresses the file names, with the gap before those of the workers.
    fn addresses(&self) -> u32 {
        WORKERS_AT + self.workers
    }

    fn nth(&self, number: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(self.first).saturating_add(number))
    }
}

/// `talos, rke2, k3s`: the words that answer the question.
fn distros() -> String {
    Distro::ALL.map(Distro::as_str).join(", ")
}

fn distro(text: &str) -> Result<Distro, String> {
    Distro::parse(&text.to_ascii_lowercase()).ok_or_else(|| format!("`{text}` is not one of {}", distros()))
}

/// `3+2`.
fn machines(text: &str) -> Result<(u32, u32), String> {
    let form = || format!("`{text}` is not of the form 3+2");
    let (control_planes, workers) = text.split_once('+').ok_or_else(form)?;
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| form());
    match (number(control_planes)?, number(workers)?) {
        (1 | 3 | 5 | 7, 200..) => Err("more than 199 workers need address ranges of your own: edit the file".to_owned()),
        (control_planes @ (1 | 3 | 5 | 7), workers) => Ok((control_planes, workers)),
        _ => Err("etcd needs 1, 3, 5 or 7 control planes: an even number survives no more failures than one less".to_owned()),
    }
}

fn first_address(text: &str, size: u32, network: Option<ipnet::Ipv4Net>) -> Result<Ipv4Addr, String> {
    let first: Ipv4Addr = text.parse().map_err(|_| format!("`{text}` is not an IPv4 address"))?;
    let last = Ipv4Addr::from(u32::from(first).saturating_add(size - 1));
    match network {
        Some(network) if !network.contains(&first) || !network.contains(&last) || last == network.broadcast() => {
            Err(format!("{first} to {last} are not all in {}", network.trunc()))
        }
        _ => Ok(first),
    }
}

/// Writes the cluster file, and the schema that its first line names.
pub(super) fn write_files(file: &Path, text: &str) -> Result<(), CommandError> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).map_err(|error| CommandError::new(format!("cannot write {}", path.display())).caused_by(error))
    };
    write(&file.with_file_name(SCHEMA), &mainstay_spec::schema::schema_text())?;
    write(file, text)
}

/// Looks at hosts, storages and bridges.
pub(super) async fn scan(
    pve: &Client,
    endpoint: String,
    fingerprint: Option<Fingerprint>,
) -> Result<DatacenterScan, CommandError> {
    let hosts = pve.call(host::list()).await?;
    let online: Vec<pve_api::Host> = hosts
        .iter()
        .filter(|entry| entry.status == HostState::Online)
        .map(|entry| entry.host.clone())
        .collect();
    let first = online.first().ok_or_else(|| CommandError::new("no host is online"))?;
    let (storages, bridges, version) = tokio::join!(
        pve.call(storage::list(first)),
        pve.call(host::bridges(first)),
        pve.call(cluster::version())
    );
    let (storages, bridges) = (storages?, bridges?);
    version?;
    let usable = || storages.iter().filter(|storage| storage.enabled && storage.active);
    let images = usable().find(|storage| storage.content.contains(&Content::Import));
    let almost = usable().find(|storage| storage.kind.keeps_files());
    let disks = usable()
        .filter(|storage| storage.content.contains(&Content::Images))
        // etcd waits for every write, and files are slower than block storage. Among equals, the largest.
        .max_by_key(|storage| (!storage.kind.keeps_files(), storage.total));
    let contents =
        |storage: &storage::StorageStatus| storage.content.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    Ok(DatacenterScan {
        endpoint,
        fingerprint,
        hosts: online.iter().map(ToString::to_string).collect(),
        images: images.map(|storage| storage.storage.to_string()),
        almost: almost.map(|storage| (storage.storage.to_string(), contents(storage))),
        disks: disks.map(|storage| storage.storage.to_string()),
        bridges: bridges.into_iter().map(|bridge| (bridge.iface, bridge.cidr)).collect(),
        size: size(&hosts),
    })
}

/// The processors of the largest host that is online, and the free memory of the one that has least in GiB.
fn size(hosts: &[cluster::HostEntry]) -> Option<(u64, u64)> {
    let online = || hosts.iter().filter(|entry| entry.status == HostState::Online);
    let cpus = online().filter_map(|entry| entry.maxcpu).max().filter(|cpus| *cpus > 0)?;
    let free = online().filter_map(|entry| Some(entry.maxmem?.saturating_sub(entry.mem.unwrap_or_default()) >> 30));
    Some((cpus, free.min()?))
}

/// Networks for pods and services where the default ones overlap the machines' own.
fn inner_networks(network: ipnet::Ipv4Net) -> Option<(&'static str, &'static str)> {
    const CHOICES: [(&str, &str); 3] = [
        ("10.244.0.0/16", "10.96.0.0/12"),
        ("172.20.0.0/16", "172.24.0.0/16"),
        ("192.168.0.0/17", "192.168.192.0/18"),
    ];
    let is_apart = |text: &str| {
        let other: Option<ipnet::Ipv4Net> = text.parse().ok();
        other.is_some_and(|other| !network.contains(&other.network()) && !other.contains(&network.network()))
    };
    let found = CHOICES
        .iter()
        .position(|(pods, services)| is_apart(pods) && is_apart(services))?;
    (found > 0).then(|| CHOICES[found])
}

impl DatacenterScan {
    /// The first bridge with an address, else the first one.
    fn bridge(&self) -> (String, Option<String>) {
        let addressed = self.bridges.iter().find(|(_, cidr)| cidr.is_some());
        let chosen = addressed.or(self.bridges.first()).cloned();
        chosen.unwrap_or_else(|| ("vmbr0".into(), None))
    }

    /// Processors and GiB of memory of a machine that fits on every host, as far as hosts are known. One host gets both machines.
    fn shape(&self) -> (u64, u64) {
        let Some((cpus, free)) = self.size else { return (4, 8) };
        let machines = if self.hosts.len() == 1 { 2 } else { 1 };
        (cpus.clamp(1, 4), (free / machines).clamp(2, 8))
    }

    /// The network of that bridge.
    pub(super) fn network(&self) -> Option<ipnet::Ipv4Net> {
        self.bridge().1.and_then(|cidr| cidr.parse().ok())
    }

    /// An address of that network by its number, or of an example where the network is unknown.
    fn address(&self, number: u8) -> Ipv4Addr {
        let network = self.network().unwrap_or(EXAMPLE);
        nth(network, number)
    }
}

/// The file. What was found and chosen is filled in; a guess is marked by a comment.
pub(super) fn write(name: &str, found: &DatacenterScan, token_file: Option<&str>, choice: &ClusterChoice) -> String {
    let mut text = String::new();
    let (bridge, _) = found.bridge();
    let network = found.network().unwrap_or(EXAMPLE);
    let _ = writeln!(text, "# yaml-language-server: $schema={SCHEMA}");
    let _ = writeln!(
        text,
        "# Written by `mainstay {}` from what it found. Change it as you like.",
        if token_file.is_some() { "setup" } else { "init" }
    );
    let _ = writeln!(text, "name: {name}\n\ndatacenter:\n  endpoint: {}", found.endpoint);
    if let Some(fingerprint) = found.fingerprint {
        let _ = writeln!(text, "  fingerprint: \"{fingerprint}\"   # compare: pvenode cert info");
    }
    if let Some(file) = token_file {
        let _ = writeln!(text, "  token-file: {file}   # keep it out of git");
    }
    let _ = writeln!(text, "  # hosts found: {}", found.hosts.join(", "));
    let images = found
        .images
        .clone()
        .or_else(|| found.almost.as_ref().map(|(name, _)| name.clone()));
    match (&images, &found.disks) {
        (Some(images), Some(disks)) => drop(writeln!(
            text,
            "  storage: {{ images: {images}, disks: {disks} }}   # disks: block storage before files (etcd needs fast writes), then the largest"
        )),
        _ => drop(writeln!(
            text,
            "  # storage: {{ images: local, disks: local-lvm }}   # no suitable storage was found"
        )),
    }
    let (cidr, gateway) = (network.trunc(), nth(network, 1));
    let _ = writeln!(
        text,
        "\nnetwork:\n  cidr: {cidr}\n  gateway: {gateway}   # the router of this network (a guess)"
    );
    let _ = writeln!(text, "  bridge: {bridge}\n  dns: [1.1.1.1, 8.8.8.8]");
    if let Some((pods, services)) = inner_networks(network) {
        let _ = writeln!(
            text,
            "  pods: {pods}   # apart from the network of the machines\n  services: {services}"
        );
    }
    write_machines(&mut text, network, choice, found.shape());
    text
}

/// The virtual address, the distribution and the pools. With one control plane there is nothing to share an address.
fn write_machines(text: &mut String, network: ipnet::Ipv4Net, choice: &ClusterChoice, (cpu, memory): (u64, u64)) {
    let highly_available = choice.control_planes > 1;
    let _ = if highly_available {
        writeln!(
            text,
            "  vip: {}   # an unused address: the control planes answer here in turn",
            choice.first
        )
    } else {
        let vip = nth(network, 20);
        writeln!(text, "  # vip: {vip}   # an unused address; needed with three control planes")
    };
    let _ = choice
        .distro
        .new_section()
        .map_or(Ok(()), |section| writeln!(text, "\n{section}"));
    // Distributions on cloud images have larger disks by default.
    let (control_plane_disk, worker_disk) = match choice.distro.new_section() {
        None => ("disk: 40GiB, ", "disk: 60GiB, "),
        Some(_) => ("", ""),
    };
    let first = choice.nth(u32::from(highly_available));
    let _ = writeln!(text, "\npools:\n  # addresses must be unused and outside of the DHCP range");
    let _ = writeln!(
        text,
        "  control-plane: {{ count: {}, cpu: {cpu}, memory: {memory}GiB, {control_plane_disk}addresses: {first}+ }}",
        choice.control_planes
    );
    if choice.workers > 0 {
        let _ = writeln!(
            text,
            "  worker: {{ count: {}, cpu: {cpu}, memory: {memory}GiB, {worker_disk}addresses: {}+ }}",
            choice.workers,
            choice.nth(WORKERS_AT)
        );
    }
}

/// The n-th host address of a network, or its last one if it has fewer.
fn nth(network: ipnet::Ipv4Net, n: u8) -> Ipv4Addr {
    let hosts = network.hosts();
    let picked = hosts.clone().nth(usize::from(n) - 1).or_else(|| hosts.last());
    picked.unwrap_or(network.addr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_becomes_a_file_that_can_be_read() {
        let found = DatacenterScan {
            endpoint: "https://pve.lan:8006".into(),
            fingerprint: Some(Fingerprint::from_bytes([7; 32])),
            hosts: vec!["pve1".into(), "pve2".into()],
            images: None,
            almost: Some(("local".into(), "iso,vztmpl".into())),
            disks: Some("local-lvm".into()),
            bridges: vec![("vmbr1".into(), None), ("vmbr0".into(), Some("192.168.7.2/24".into()))],
            size: None,
        };
        let text = write("homelab", &found, None, &ClusterChoice::usual(&found, FIRST_ADDRESS));
        let checked = mainstay_spec::load(&text, "cluster.yaml", &mainstay_spec::Environment::default(), &|_| None)
            .unwrap_or_else(|faults| panic!("{faults:?}\n{text}"));
        assert_eq!(checked.spec.network.bridge.as_str(), "vmbr0");
        assert_eq!(checked.spec.machines[0].address.to_string(), "192.168.7.211");
        assert_eq!(
            checked.spec.datacenter.storage.images.as_ref().map(AsRef::as_ref),
            Some("local")
        );
        for (distro, control_planes, workers) in [(Distro::Rke2, 3, 0), (Distro::K3s, 1, 2), (Distro::Talos, 5, 30)] {
            let choice = ClusterChoice {
                distro,
                control_planes,
                workers,
                first: Ipv4Addr::new(192, 168, 7, 211),
            };
            let text = write("homelab", &found, Some("cluster.token"), &choice);
            let checked = mainstay_spec::load(&text, "cluster.yaml", &mainstay_spec::Environment::default(), &|_| None)
                .unwrap_or_else(|faults| panic!("{faults:?}\n{text}"));
            assert_eq!(checked.spec.machines.len() as u32, control_planes + workers, "{text}");
            assert_eq!(checked.spec.network.vip.is_some(), control_planes > 1, "{text}");
        }
    }

    #[test]
    fn a_small_host_and_a_network_of_services_get_a_file_that_is_valid() {
        let found = DatacenterScan {
            endpoint: "https://pve.lan:8006".into(),
            fingerprint: None,
            hosts: vec!["pve1".into()],
            images: Some("local".into()),
            almost: None,
            disks: Some("local-lvm".into()),
            bridges: vec![("vmbr0".into(), Some("10.96.0.2/16".into()))],
            size: Some((2, 9)),
        };
        let text = write("homelab", &found, None, &ClusterChoice::usual(&found, FIRST_ADDRESS));
        let checked = mainstay_spec::load(&text, "cluster.yaml", &mainstay_spec::Environment::default(), &|_| None)
            .unwrap_or_else(|faults| panic!("{faults:?}\n{text}"));
        let shape = &checked.spec.machines[0].shape;
        assert_eq!((shape.cpu, shape.memory.0), (2, 4096));
        assert_eq!(checked.spec.network.services.to_string(), "172.24.0.0/16");
    }

    #[test]
    fn an_answer_that_makes_no_cluster_is_refused_with_the_reason() {
        let network = Some("192.168.7.0/24".parse().expect("a network"));
        assert_eq!(machines("3 + 2"), Ok((3, 2)));
        assert!(machines("2+1").unwrap_err().contains("even number"));
        assert!(machines("three").unwrap_err().contains("3+2"));
        assert_eq!(distro("K3s"), Ok(Distro::K3s));
        assert!(distro("kubeadm").is_err());
        assert!(first_address("192.168.7.211", 12, network).is_ok());
        assert!(
            first_address("192.168.7.250", 12, network)
                .unwrap_err()
                .contains("not all in 192.168.7.0/24")
        );
        assert!(first_address("10.0.0.1", 12, network).is_err());
    }
}
