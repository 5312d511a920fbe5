//! kube-vip in ARP mode: one of its pods holds a Lease, and with it the virtual address.

use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cluster::Cluster;
use crate::cloud::host::Host;
use crate::kube::kinds;
use crate::kube::store::Key;
use crate::talos::{Site, objects};

/// Where the election of a cluster stands, beyond what its Lease says.
#[derive(Default)]
pub(crate) struct Election {
    /// The machine that carries the address, and when the first announcement of it is due.
    carrier: Option<(std::sync::Weak<Host>, IpAddr)>,
    announced: Option<Instant>,
    /// Since when the holder cannot renew.
    failing: Option<Instant>,
    tried: Option<Instant>,
}

struct Settings {
    address: IpAddr,
    lease: Key,
    duration: i64,
    deadline: i64,
    retry: i64,
    daemon: Key,
}

/// Settings of a DaemonSet that runs kube-vip for the control plane.
fn settings(cluster: &Cluster) -> Option<Settings> {
    cluster.store().list(&kinds::DAEMON_SETS, None).1.iter().find_map(|set| {
        let container = set["spec"]["template"]["spec"]["containers"]
            .as_array()?
            .iter()
            .find(|container| container["image"].as_str().is_some_and(|image| image.contains("kube-vip")))?;
        let env = |name: &str| {
            container["env"].as_array()?.iter().find(|entry| entry["name"] == name)?["value"]
                .as_str()
                .map(str::to_owned)
        };
        let number = |name: &str, default: i64| env(name).and_then(|text| text.parse().ok()).unwrap_or(default);
        (env("vip_arp").as_deref() == Some("true") && env("cp_enable").as_deref() == Some("true")).then_some(())?;
        let namespace = env("cp_namespace").unwrap_or_else(|| "kube-system".to_owned());
        Some(Settings {
            address: env("address")?.parse().ok()?,
            lease: Key::new(
                &kinds::LEASES,
                &namespace,
                &env("vip_leasename").unwrap_or_else(|| "plndr-cp-lock".to_owned()),
            ),
            duration: number("vip_leaseduration", 15),
            deadline: number("vip_renewdeadline", 10),
            retry: number("vip_retryperiod", 2),
            daemon: Key::new(
                &kinds::PODS,
                set["metadata"]["namespace"].as_str()?,
                set["metadata"]["name"].as_str()?,
            ),
        })
    })
}

/// A machine with a pod of kube-vip, by its node name.
fn contenders(site: &Site, cluster: &Arc<Cluster>, settings: &Settings) -> Vec<(String, Arc<Host>)> {
    let mut found: Vec<(String, Arc<Host>)> = Vec::new();
    for host in site.cloud.all() {
        let own = cluster
            .lock()
            .kubelets
            .iter()
            .find_map(|(name, kubelet)| std::ptr::eq(kubelet.host.as_ptr(), &raw const *host).then(|| name.clone()));
        let Some(node) = own else { continue };
        let pod = Key::new(
            &kinds::PODS,
            &settings.daemon.namespace,
            &format!("{}-{node}", settings.daemon.name),
        );
        if cluster.store().get(&pod).is_some() && !found.iter().any(|(name, _)| *name == node) {
            found.push((node, host));
        }
    }
    found
}

/// Whether the API server beside a pod answers it.
fn reaches_api(cluster: &Arc<Cluster>, host: &Host) -> bool {
    let data = host.runtime.etcd().filter(|data| Arc::ptr_eq(&data.cluster, cluster));
    host.runtime.serves_api() && data.is_some_and(|data| cluster.etcd.leader_of(data.member).is_some())
}

pub(super) async fn round(site: &Arc<Site>, cluster: &Arc<Cluster>) {
    let Some(settings) = settings(cluster) else {
        return give_up(cluster);
    };
    let all = contenders(site, cluster, &settings);
    let carrier = cluster.lock().vip.carrier.as_ref().and_then(|(host, _)| host.upgrade());
    match carrier {
        Some(host) => hold(site, cluster, &settings, &all, &host).await,
        None => acquire(site, cluster, &settings, &all),
    }
}

/// The pods are gone: SIGTERM takes the address from the card and frees the lease.
fn give_up(cluster: &Cluster) {
    let carrier = cluster.lock().vip.carrier.take();
    if let Some((Some(host), address)) = carrier.map(|(host, address)| (host.upgrade(), address)) {
        host.runtime.close_address(address);
        host.drop_extra(address);
    }
}

async fn hold(site: &Arc<Site>, cluster: &Arc<Cluster>, settings: &Settings, all: &[(String, Arc<Host>)], host: &Arc<Host>) {
    if !site.cloud.all().iter().any(|other| Arc::ptr_eq(other, host)) {
        // The power went: the lease has to run out.
        cluster.lock().vip.carrier = None;
        return;
    }
    let Some((node, _)) = all.iter().find(|(_, other)| Arc::ptr_eq(other, host)) else {
        // Its pod was deleted: a clean end.
        free(site, cluster, settings);
        return give_up(cluster);
    };
    let due = cluster.lock().vip.announced;
    if due.is_some_and(|due| due <= Instant::now()) {
        cluster.lock().vip.announced = None;
        if host.lock().extra.insert(settings.address) {
            host.add_address(settings.address);
        }
        host.runtime.listen_on(host, settings.address).await;
    }
    if reaches_api(cluster, host) {
        cluster.lock().vip.failing = None;
        write(site, cluster, settings, node);
        host.runtime.listen_on(host, settings.address).await;
        return;
    }
    let since = *cluster.lock().vip.failing.get_or_insert_with(Instant::now);
    // Nothing answers on the port meanwhile; after the deadline the pod ends, and its address goes.
    if i64::try_from(since.elapsed().as_secs()).unwrap_or(0) >= settings.deadline {
        give_up(cluster);
    }
}

fn acquire(site: &Arc<Site>, cluster: &Arc<Cluster>, settings: &Settings, all: &[(String, Arc<Host>)]) {
    let now = site.wall.now();
    let lease = cluster.store().get(&settings.lease);
    let free = lease.as_ref().is_none_or(|lease| {
        let holder = lease["spec"]["holderIdentity"].as_str().unwrap_or_default();
        let renewed: Option<Timestamp> = lease["spec"]["renewTime"].as_str().and_then(|text| text.parse().ok());
        let duration = lease["spec"]["leaseDurationSeconds"].as_i64().unwrap_or(settings.duration);
        holder.is_empty() || renewed.is_none_or(|renewed| now.as_second() - renewed.as_second() >= duration)
    });
    let due = {
        let mut state = cluster.lock();
        let due = state
            .vip
            .tried
            .is_none_or(|tried| i64::try_from(tried.elapsed().as_secs()).unwrap_or(0) >= settings.retry);
        if due {
            state.vip.tried = Some(Instant::now());
        }
        due
    };
    if !free || !due {
        return;
    }
    let Some((node, host)) = all.iter().find(|(_, host)| reaches_api(cluster, host)) else {
        return;
    };
    write(site, cluster, settings, node);
    let mut state = cluster.lock();
    state.vip.carrier = Some((Arc::downgrade(host), settings.address));
    // Announcements leave every three seconds.
    state.vip.announced = Some(Instant::now() + site.pace.scale(std::time::Duration::from_secs(2)));
    state.vip.failing = None;
}

fn micro(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%S.%6fZ").to_string()
}

fn write(site: &Site, cluster: &Cluster, settings: &Settings, holder: &str) {
    let now = micro(site.wall.now());
    let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": settings.duration, "renewTime": now});
    let written = cluster.store().update(&settings.lease, |lease| {
        let renewed: Option<Timestamp> = lease["spec"]["renewTime"].as_str().and_then(|text| text.parse().ok());
        let recent = renewed.is_some_and(|renewed| site.wall.now().as_second() - renewed.as_second() < settings.retry);
        if lease["spec"]["holderIdentity"] != holder {
            lease["spec"] = spec.clone();
            let transitions = lease["spec"]["leaseTransitions"].as_i64().unwrap_or(0);
            lease["spec"]["leaseTransitions"] = json!(transitions + 1);
        } else if !recent {
            lease["spec"]["renewTime"] = json!(now);
        }
        Ok(())
    });
    if written.is_err() {
        objects::create(
            cluster.store(),
            &settings.lease,
            json!({"spec": spec}),
            &objects::now(site.wall),
        );
    }
}

/// What a clean end leaves: no holder, and a lease of one second.
fn free(site: &Site, cluster: &Cluster, settings: &Settings) {
    let _ = cluster.store().update(&settings.lease, |lease| {
        lease["spec"]["holderIdentity"] = Value::from("");
        lease["spec"]["leaseDurationSeconds"] = Value::from(1);
        lease["spec"]["renewTime"] = Value::from(micro(site.wall.now()));
        Ok(())
    });
}
