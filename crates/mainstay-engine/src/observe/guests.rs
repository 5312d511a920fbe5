//! What runs in the machines: Talos, etcd and Kubernetes, asked all at once with short deadlines.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use futures::future::join_all;
use mainstay_net::Target;
use mainstay_plan::{Config, EtcdState, Kubernetes, Member, Running, Seen, Talos};
use semver::Version;
use talos_api::resource::SystemInformation;
use talos_api::{Access, Error, Presence, ServiceState, presence};
use uuid::Uuid;

use super::Scope;
use crate::site::{EARLIER_BOOT, Site, TALOS_PORT};

/// How long one machine may take to tell all about itself.
const ASKING: Duration = Duration::from_secs(10);

pub struct Guests {
    pub talos: BTreeMap<String, Talos>,
    pub etcd: Seen<Vec<Member>>,
    pub kubernetes: Seen<Kubernetes>,
}

pub async fn look(site: &Site, scope: &Scope<'_>, running: &BTreeMap<String, Ipv4Addr>) -> Guests {
    let Some(keys) = &site.keys else {
        return Guests {
            talos: BTreeMap::new(),
            etcd: Seen::No,
            kubernetes: Seen::No,
        };
    };
    let asked = running.iter().map(|(name, address)| async move {
        let told = tokio::time::timeout(ASKING, ask(site, &keys.talos, *address)).await;
        let told = told.unwrap_or_else(|_| Talos::Silent(format!("no answer within {} s", ASKING.as_secs())).into());
        (name.clone(), told)
    });
    let told: BTreeMap<String, Told> = join_all(asked).await.into_iter().collect();
    let etcd = etcd(site, scope, running, &told).await;
    let kubernetes = kubernetes(site, running, scope, &etcd, &told).await;
    Guests {
        talos: told.into_iter().map(|(name, told)| (name, told.talos)).collect(),
        etcd,
        kubernetes,
    }
}

/// One machine's answer, with what it knows of etcd's members, and its boot where it tells.
struct Told {
    talos: Talos,
    members: Option<Vec<talos_api::EtcdMember>>,
    boot: Option<String>,
}

impl From<Talos> for Told {
    fn from(talos: Talos) -> Self {
        Self {
            talos,
            members: None,
            boot: None,
        }
    }
}

async fn ask(site: &Site, access: &Access, address: Ipv4Addr) -> Told {
    let at = Target {
        host: address.to_string(),
        port: TALOS_PORT,
    };
    match presence(&site.env, access, &at).await {
        Ok(Presence::Configured { node, release }) => configured(&node, release.version().clone()).await,
        Ok(Presence::Unconfigured(met)) => {
            let uuid = match met.get::<SystemInformation>(SystemInformation::ID).await {
                Ok(Some(found)) => found
                    .spec
                    .uuid
                    .parse()
                    .map_or_else(|_| Seen::Unknown(format!("`{}` is no UUID", found.spec.uuid)), Seen::Yes),
                Ok(None) => Seen::Unknown("it does not know its hardware yet".into()),
                Err(error) => Seen::Unknown(error.to_string()),
            };
            let version = met.release().await.ok().flatten().map(|release| release.version().clone());
            Talos::Maintenance { uuid, version }.into()
        }
        Ok(Presence::Foreign) => Talos::Foreign("its certificate is not signed by this cluster's authority".into()).into(),
        Ok(Presence::Absent(error) | Presence::Odd(error)) | Err(error) => Talos::Silent(told_shortly(&error)).into(),
    }
}

async fn configured(node: &talos_api::Node, version: Version) -> Told {
    let (information, status, config, services, boot) = tokio::join!(
        node.get::<SystemInformation>(SystemInformation::ID),
        node.status(),
        node.config(),
        node.services(),
        node.boot_id(),
    );
    let uuid = information
        .ok()
        .flatten()
        .and_then(|found| found.spec.uuid.parse::<Uuid>().ok());
    let (Some(uuid), Ok(status)) = (uuid, status) else {
        return Talos::Silent("it answers, but does not tell what it is".into()).into();
    };
    let status = status.unwrap_or_default();
    let config = match config {
        Ok(Some((_, text))) => Seen::Yes(Config::new(text.expose().as_str())),
        Ok(None) => Seen::No,
        Err(error) => Seen::Unknown(error.to_string()),
    };
    let (etcd, members) = etcd_of(node, services).await;
    let kubernetes = config.yes().and_then(|config| kubelet_version(config.expose()));
    let unmet = status
        .status
        .unmet_conditions
        .into_iter()
        .map(|unmet| format!("{}: {}", unmet.name, unmet.reason))
        .collect();
    let running = Running {
        uuid,
        version,
        kubernetes,
        stage: status.stage.to_string(),
        unmet,
        config,
        etcd,
    };
    Told {
        talos: Talos::Running(Box::new(running)),
        members,
        boot: boot.ok(),
    }
}

/// Asking for members hangs on a machine whose etcd never ran, so its service is asked first, and its disk where the service says nothing.
async fn etcd_of(
    node: &talos_api::Node,
    services: Result<Vec<talos_api::Service>, Error>,
) -> (Seen<EtcdState>, Option<Vec<talos_api::EtcdMember>>) {
    let services = match services {
        Ok(services) => services,
        Err(error) => return (Seen::Unknown(error.to_string()), None),
    };
    let Some(etcd) = services.iter().find(|service| service.id == "etcd") else {
        return (Seen::No, None);
    };
    if etcd.state == ServiceState::Running {
        let members = node.etcd_members().await.ok();
        let state = if etcd.is_healthy() && members.is_some() {
            EtcdState::Healthy
        } else {
            EtcdState::Unwell
        };
        return (Seen::Yes(state), members);
    }
    match node.has_etcd_data().await {
        Ok(true) => (Seen::Yes(EtcdState::Unwell), None),
        Ok(false) if etcd.is_over() => (Seen::Yes(EtcdState::Left), None),
        Ok(false) => (Seen::No, None),
        Err(error) => (Seen::Unknown(error.to_string()), None),
    }
}

/// The members as a healthy machine lists them. Without one, whether there is an etcd at all.
async fn etcd(
    site: &Site,
    scope: &Scope<'_>,
    running: &BTreeMap<String, Ipv4Addr>,
    told: &BTreeMap<String, Told>,
) -> Seen<Vec<Member>> {
    let healthy = |name: &str| matches!(told.get(name).map(|told| &told.talos), Some(Talos::Running(node)) if node.etcd == Seen::Yes(EtcdState::Healthy));
    let lists = told.iter().filter_map(|(name, told)| Some((name, told.members.as_ref()?)));
    if let Some((lister, list)) = lists.max_by_key(|(name, _)| healthy(name)) {
        let members = |list: &[talos_api::EtcdMember]| -> Vec<Member> {
            let member = |member: &talos_api::EtcdMember| {
                let name = name_of(member, scope, running);
                Member {
                    id: member.id,
                    healthy: healthy(&name),
                    name,
                    learner: member.learner,
                }
            };
            list.iter().map(member).collect()
        };
        let seen = members(list);
        // Who has data and is not listed was added after that list, or removed: a list made now tells which.
        let is_unlisted = |(name, told): (&String, &Told)| matches!(&told.talos, Talos::Running(node) if node.has_etcd_data() && !seen.iter().any(|member| member.name == *name));
        if !told.iter().any(is_unlisted) {
            return Seen::Yes(seen);
        }
        return match list_again(site, running.get(lister)).await {
            Some(again) => Seen::Yes(members(&again)),
            None => Seen::Unknown(format!("{lister} did not list the members of etcd a second time")),
        };
    }
    for (name, told) in told {
        match &told.talos {
            Talos::Running(node) => match &node.etcd {
                Seen::Yes(EtcdState::Left) => {}
                Seen::Yes(_) => return Seen::Unknown(format!("{name} has etcd data, but no machine lists its members")),
                Seen::Unknown(why) => return Seen::Unknown(format!("{name}: {why}")),
                Seen::No => {}
            },
            // Waits for its first config: it has no data.
            Talos::Maintenance { .. } => {}
            Talos::Silent(why) | Talos::Foreign(why) if scope.control_planes.contains(name) => {
                return Seen::Unknown(format!("{name}: {why}"));
            }
            Talos::Silent(_) | Talos::Foreign(_) => {}
        }
    }
    Seen::No
}

async fn list_again(site: &Site, address: Option<&Ipv4Addr>) -> Option<Vec<talos_api::EtcdMember>> {
    site.node(*address?).ok()?.etcd_members().await.ok()
}

/// A member has no name before it has started for the first time: whose it is, its address tells.
fn name_of(member: &talos_api::EtcdMember, scope: &Scope<'_>, running: &BTreeMap<String, Ipv4Addr>) -> String {
    if !member.name.is_empty() {
        return member.name.clone();
    }
    let Some(at) = member.addresses().next() else {
        return String::new();
    };
    let machine = scope.addresses.iter().chain(running).find(|(_, address)| at == **address);
    machine.map_or_else(|| at.to_string(), |(name, _)| name.clone())
}

/// The first control plane whose API server answers tells about all nodes.
async fn kubernetes(
    site: &Site,
    running: &BTreeMap<String, Ipv4Addr>,
    scope: &Scope<'_>,
    etcd: &Seen<Vec<Member>>,
    told: &BTreeMap<String, Told>,
) -> Seen<Kubernetes> {
    let Some(keys) = &site.keys else { return Seen::No };
    if *etcd == Seen::No {
        return Seen::No;
    }
    let mut why = "no control plane runs".to_owned();
    for (_, address) in running.iter().filter(|(name, _)| scope.control_planes.contains(*name)) {
        match nodes(keys, *address, told).await {
            Ok(kubernetes) => return Seen::Yes(kubernetes),
            Err(error) => why = format!("{address}:6443: {error}"),
        }
    }
    Seen::Unknown(why)
}

async fn nodes(
    keys: &crate::site::Keys,
    address: Ipv4Addr,
    told: &BTreeMap<String, Told>,
) -> Result<Kubernetes, mainstay_kube::Error> {
    let cluster = keys.kubernetes_at(address)?;
    let (version, nodes) = tokio::join!(cluster.version(), keys.nodes_at(address));
    let boot = |name: &str| told.get(name).and_then(|told| told.boot.as_deref());
    Ok(Kubernetes {
        version: version?,
        nodes: nodes?
            .into_iter()
            .map(|(name, node)| (name.clone(), seen(&node, boot(&name))))
            .collect(),
    })
}

/// A Node, as far as it speaks of the machine that runs now.
fn seen(node: &mainstay_kube::Node, boot: Option<&str>) -> mainstay_plan::Node {
    let stale = boot.is_some_and(|boot| !node.is_of_boot(boot));
    mainstay_plan::Node {
        ready: node.is_ready() && !stale,
        why: if stale { EARLIER_BOOT.into() } else { node.why_not_ready() },
        stale,
    }
}

/// `ghcr.io/siderolabs/kubelet:v1.35.2`: the version that the machine is to run.
fn kubelet_version(config: &str) -> Option<Version> {
    let image = config.lines().find_map(|line| {
        line.trim()
            .strip_prefix("image: ")
            .filter(|image| image.contains("/kubelet:"))
    })?;
    let tag = image.rsplit_once(":v")?.1;
    tag.split(['@', '-', '"']).next()?.parse().ok()
}

fn told_shortly(error: &Error) -> String {
    use std::error::Error as _;
    error
        .source()
        .map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
