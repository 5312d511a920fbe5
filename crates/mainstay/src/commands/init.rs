//! `init`: reads Proxmox VE through the API token and writes a commented cluster.yaml with what it found.

use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{Entropy, Env, Fingerprint, Target, Tcp, Trust, Wall, presented_fingerprint};
use pve_api::cluster::HostState;
use pve_api::{Client, ClientOptions, Content, Endpoint, cluster, host, storage};

use crate::args::InitArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::process_env::ProcessEnv;
use crate::session;

const LOOK: Duration = Duration::from_secs(10);
/// The number of the first address in its network: routers seldom hand out the upper ones.
const FIRST_ADDRESS: u8 = 211;

/// What the file needs to know about the datacenter.
pub(super) struct DatacenterScan {
    endpoint: String,
    fingerprint: Fingerprint,
    hosts: Vec<String>,
    images: Option<String>,
    /// A storage that lacks only the content type `import`, which one command adds.
    almost: Option<(String, String)>,
    disks: Option<String>,
    bridges: Vec<(String, Option<String>)>,
}

pub async fn run(file: &Path, args: InitArgs, process_env: ProcessEnv, output: Output) -> Result<(), CommandError> {
    if file.exists() && !args.force {
        return Err(CommandError::usage(format!("{} already exists", file.display()))
            .help("pass --force to overwrite it, or -f to use another file"));
    }
    let found = look(&process_env).await?;
    let text = write(&args.name, &found, None, FIRST_ADDRESS);
    std::fs::write(file, text).map_err(|error| CommandError::new(format!("cannot write {}", file.display())).caused_by(error))?;
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
    scan(&pve, url.to_string().trim_end_matches('/').to_owned(), fingerprint).await
}

/// Looks at hosts, storages and bridges.
pub(super) async fn scan(pve: &Client, endpoint: String, fingerprint: Fingerprint) -> Result<DatacenterScan, CommandError> {
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
    })
}

impl DatacenterScan {
    /// The first bridge with an address, else the first one.
    fn bridge(&self) -> (String, Option<String>) {
        let addressed = self.bridges.iter().find(|(_, cidr)| cidr.is_some());
        let chosen = addressed.or(self.bridges.first()).cloned();
        chosen.unwrap_or_else(|| ("vmbr0".into(), None))
    }

    /// The network of that bridge.
    pub(super) fn network(&self) -> Option<ipnet::Ipv4Net> {
        self.bridge().1.and_then(|cidr| cidr.parse().ok())
    }
}

/// The file. What was found is filled in; a guess is marked by a comment. `first`: the number of the first address.
pub(super) fn write(name: &str, found: &DatacenterScan, token_file: Option<&str>, first: u8) -> String {
    let mut text = String::new();
    let (bridge, _) = found.bridge();
    let network = found.network();
    let address = |last: u8| network.map_or_else(|| format!("10.0.0.{last}"), |network| nth(network, last));
    let _ = writeln!(
        text,
        "# Written by `mainstay {}` from what it found. Change it as you like.",
        if token_file.is_some() { "setup" } else { "init" }
    );
    let _ = writeln!(text, "name: {name}\n\ndatacenter:\n  endpoint: {}", found.endpoint);
    let _ = writeln!(
        text,
        "  fingerprint: \"{}\"   # compare: pvenode cert info",
        found.fingerprint
    );
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
    let cidr = network.map_or_else(|| "10.0.0.0/24".to_owned(), |network| network.trunc().to_string());
    let gateway = network.map_or_else(|| "10.0.0.1".to_owned(), |network| nth(network, 1));
    let _ = writeln!(
        text,
        "\nnetwork:\n  cidr: {cidr}\n  gateway: {gateway}   # the router of this network (a guess)"
    );
    let _ = writeln!(text, "  bridge: {bridge}\n  dns: [1.1.1.1, 8.8.8.8]");
    let _ = writeln!(
        text,
        "  # vip: {}   # an unused address; needed with three control planes",
        address(20)
    );
    let _ = writeln!(text, "\npools:\n  # addresses must be unused and outside of the DHCP range");
    let _ = writeln!(
        text,
        "  control-plane: {{ count: 1, cpu: 4, memory: 8GiB, disk: 40GiB, addresses: {}+ }}",
        address(first)
    );
    let _ = writeln!(
        text,
        "  worker: {{ count: 1, cpu: 4, memory: 8GiB, disk: 60GiB, addresses: {}+ }}",
        address(first.saturating_add(10))
    );
    text
}

/// The n-th host address of a network, or its last one if it has fewer.
fn nth(network: ipnet::Ipv4Net, n: u8) -> String {
    let hosts = network.hosts();
    let picked = hosts.clone().nth(usize::from(n) - 1).or_else(|| hosts.last());
    picked.map_or_else(String::new, |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_becomes_a_file_that_can_be_read() {
        let found = DatacenterScan {
            endpoint: "https://pve.lan:8006".into(),
            fingerprint: Fingerprint::from_bytes([7; 32]),
            hosts: vec!["pve1".into(), "pve2".into()],
            images: None,
            almost: Some(("local".into(), "iso,vztmpl".into())),
            disks: Some("local-lvm".into()),
            bridges: vec![("vmbr1".into(), None), ("vmbr0".into(), Some("192.168.7.2/24".into()))],
        };
        let text = write("homelab", &found, None, FIRST_ADDRESS);
        let checked = mainstay_spec::load(&text, "cluster.yaml", &mainstay_spec::Environment::default(), &|_| None)
            .unwrap_or_else(|faults| panic!("{faults:?}\n{text}"));
        assert_eq!(checked.spec.network.bridge.as_str(), "vmbr0");
        assert_eq!(checked.spec.machines[0].address.to_string(), "192.168.7.211");
        assert_eq!(
            checked.spec.datacenter.storage.images.as_ref().map(AsRef::as_ref),
            Some("local")
        );
    }
}
