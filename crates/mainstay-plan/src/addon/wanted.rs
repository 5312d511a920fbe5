//! From the file to the releases that are wanted: charts, versions, merged values, content hashes.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_spec::{Addon, AddonSpec, ChartSource, ChartSpec, Cni, Role, Spec, VersionWish};
use semver::Version;
use serde_json::Value;

use super::catalogue::{self, CatalogueEntry, Delivery, EntrySource, LateInstall, Layer, RemovalPolicy, Workload};
use super::facts::{AddonFacts, PveFacts};
use super::objects::{namespace, namespace_labels};
use super::release::{DesiredRelease, ReleaseRequest};
use super::seen::{ChartFact, ObservedAddons, ReleaseKey};
use super::values::{ReleaseContent, ValueWarning, at, content_hash, merge, plain_secrets};
use crate::seen::Seen;

/// Add-ons of the file.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DesiredAddons {
    /// In the order of installation.
    pub addons: Vec<WantedAddon>,
    pub requests: AddonRequests,
}

/// What the operator asked for on the command line, by the names of add-ons.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddonRequests {
    /// Changed by hand, or marked by a GitOps tool that is gone: it becomes as the file says.
    pub take: BTreeSet<String>,
    /// Try again although the last attempt failed for a reason that stays.
    pub retry: BTreeSet<String>,
}

impl AddonRequests {
    pub fn of(&self, name: &str) -> ReleaseRequest {
        ReleaseRequest {
            take: self.take.contains(name),
            retry: self.retry.contains(name),
        }
    }
}

/// One add-on that is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedAddon {
    /// As the file calls it.
    pub name: String,
    pub layer: Layer,
    /// Its Job runs before the pod network does.
    pub is_before_network: bool,
    pub key: ReleaseKey,
    /// Why its content is not known, if it is not.
    pub content: Result<AddonContent, String>,
    /// The namespace with its labels; `None` for one that Kubernetes makes itself.
    pub namespace: Option<Value>,
    pub workloads: Vec<Workload>,
    pub late: LateInstall,
    pub removal: RemovalPolicy,
    pub warnings: Vec<ValueWarning>,
}

/// What is to be installed.
#[derive(Debug, Clone, PartialEq)]
pub struct AddonContent {
    pub chart: ChartFact,
    pub release: DesiredRelease,
}

/// A chart that the engine resolves, in the order: file, lock file, installed release, catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartWish {
    /// As the file calls the add-on.
    pub name: String,
    pub key: ReleaseKey,
    pub source: ChartAddress,
    pub version: VersionWish,
    /// Known versions, oldest first, as the publisher writes them.
    pub known: Vec<String>,
    /// Objects by which an installation is recognised that no release describes.
    pub workloads: Vec<Workload>,
}

/// Where a chart is published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChartAddress {
    /// With the scheme `oci`.
    Oci(String),
    Repository {
        url: String,
        chart: String,
    },
}

impl ChartAddress {
    /// The written form of the lock file.
    pub fn text(&self) -> String {
        match self {
            Self::Oci(address) => address.clone(),
            Self::Repository { url, chart } => format!("{url} {chart}"),
        }
    }

    pub fn chart(&self) -> &str {
        match self {
            Self::Oci(address) => address.rsplit('/').next().unwrap_or_default(),
            Self::Repository { chart, .. } => chart,
        }
    }
}

impl ChartWish {
    /// The version to install. `pinned` is that of the lock file, `installed` that of the cluster. `None`: the file asks for a minor of
    /// which no version is known.
    pub fn pick(&self, pinned: Option<&str>, installed: Option<&str>) -> Option<String> {
        let parse = |text: &str| text.trim_start_matches('v').parse::<Version>().ok();
        let running = pinned.or(installed).and_then(parse);
        let known: Vec<Version> = self.known.iter().filter_map(|text| parse(text)).collect();
        let picked = self.version.pick(running.as_ref(), &known)?;
        // Publishers who write a `v` do so in every version.
        let as_written = self.known.iter().find(|text| parse(text).as_ref() == Some(picked));
        let has_v = self.known.iter().any(|text| text.starts_with('v'));
        Some(
            as_written
                .cloned()
                .unwrap_or_else(|| format!("{}{picked}", if has_v { "v" } else { "" })),
        )
    }
}

/// The entries of the file, in the order of installation, with what the file says about each.
fn entries(spec: &Spec) -> Vec<(&'static CatalogueEntry, Option<&AddonSpec>)> {
    let wanted = wanted_names(spec);
    let mut entries: Vec<_> = catalogue::entries()
        .filter_map(|entry| {
            let given = spec.addons.releases.iter().find(|(addon, _)| addon.as_str() == entry.name);
            wanted.contains(entry.name).then(|| (entry, given.map(|(_, given)| given)))
        })
        .filter(|(entry, _)| (entry.delivery)(spec.distro.distro()) == Delivery::Job)
        .collect();
    entries.sort_by_key(|(entry, _)| entry.layer);
    entries
}

/// `cni: cilium` is the add-on, with or without settings of its own.
fn wanted_names(spec: &Spec) -> BTreeSet<&'static str> {
    let cni = (spec.cni == Cni::Cilium).then_some(Addon::Cilium.as_str());
    spec.addons.releases.keys().map(|addon| addon.as_str()).chain(cni).collect()
}

/// The charts that the file needs.
pub fn chart_wishes(spec: &Spec) -> Vec<ChartWish> {
    let wish = |(entry, given): (&'static CatalogueEntry, Option<&AddonSpec>)| {
        let source = match entry.source {
            EntrySource::Oci(address) => ChartAddress::Oci(address.to_owned()),
            EntrySource::Repository { url, chart } => ChartAddress::Repository {
                url: url.to_owned(),
                chart: chart.to_owned(),
            },
            EntrySource::Manifest(_) => return None,
        };
        Some(ChartWish {
            name: entry.name.to_owned(),
            key: key(entry, given),
            source,
            version: given.map_or(VersionWish::Any, |given| given.version.clone()),
            known: entry.versions.iter().map(|version| (*version).to_owned()).collect(),
            workloads: entry.workloads.to_vec(),
        })
    };
    let charts = spec.addons.charts.iter().map(|chart| chart_wish(spec, chart));
    entries(spec).into_iter().filter_map(wish).chain(charts).collect()
}

/// A chart of the user's own. Nothing is known about it but what the file says.
fn chart_wish(spec: &Spec, chart: &ChartSpec) -> ChartWish {
    let source = match &chart.source {
        ChartSource::Oci(path) => ChartAddress::Oci(format!("oci://{path}")),
        ChartSource::Repository { url, chart } => ChartAddress::Repository {
            url: url.to_string(),
            chart: chart.clone(),
        },
    };
    ChartWish {
        name: chart_name(spec, chart),
        key: chart_key(chart),
        source,
        version: chart.version.clone(),
        known: Vec::new(),
        workloads: Vec::new(),
    }
}

fn chart_key(chart: &ChartSpec) -> ReleaseKey {
    ReleaseKey {
        namespace: chart.namespace.clone(),
        name: chart.name.clone(),
    }
}

/// The release's name, with its namespace where that alone tells it from another one.
fn chart_name(spec: &Spec, chart: &ChartSpec) -> String {
    let same = spec.addons.charts.iter().filter(|other| other.name == chart.name).count();
    let is_taken = entries(spec)
        .iter()
        .any(|(entry, _)| entry.name == chart.name || entry.release == chart.name);
    if same > 1 || is_taken {
        format!("{}/{}", chart.namespace, chart.name)
    } else {
        chart.name.clone()
    }
}

fn key(entry: &CatalogueEntry, given: Option<&AddonSpec>) -> ReleaseKey {
    ReleaseKey {
        namespace: given
            .and_then(|given| given.namespace.clone())
            .unwrap_or_else(|| entry.namespace.to_owned()),
        name: entry.release.to_owned(),
    }
}

/// The add-ons of the file with their content, as far as it is known. `hash_key`: `None` in a plan that is only shown.
pub fn desired(spec: &Spec, hash_key: Option<&[u8; 32]>, observed: &ObservedAddons) -> DesiredAddons {
    let hash_key = hash_key.unwrap_or(&[0; 32]);
    let facts = facts(spec);
    let entries = entries(spec).into_iter();
    let entries = entries.map(|(entry, given)| catalogue_addon(&facts, entry, given, hash_key, observed));
    let charts = spec.addons.charts.iter();
    let charts = charts.map(|chart| chart_addon(chart_name(spec, chart), chart, hash_key, observed));
    DesiredAddons {
        addons: entries.chain(charts).collect(),
        requests: AddonRequests::default(),
    }
}

/// What lock file, cache and registry say about a chart.
fn chart_fact(observed: &ObservedAddons, name: &str) -> Result<ChartFact, String> {
    match observed.charts.get(name) {
        Some(Seen::Yes(chart)) => Ok(chart.clone()),
        Some(Seen::Unknown(why)) => Err(why.clone()),
        Some(Seen::No) | None => Err("its chart was not looked up".to_owned()),
    }
}

/// A release with its hash.
fn content(
    chart: ChartFact,
    key: &ReleaseKey,
    values: Value,
    labels: &BTreeMap<String, String>,
    hash_key: &[u8; 32],
) -> AddonContent {
    let content = ReleaseContent {
        release: &format!("{}/{}", key.namespace, key.name),
        archive: &chart.archive,
        values: &values,
        namespace_labels: labels,
        secrets: &BTreeMap::new(),
    };
    let release = DesiredRelease {
        name: key.name.clone(),
        namespace: key.namespace.clone(),
        chart: chart.chart.clone(),
        version: chart.version.clone(),
        hash: content_hash(hash_key, &content),
        values,
    };
    AddonContent { chart, release }
}

fn catalogue_addon(
    facts: &AddonFacts,
    entry: &'static CatalogueEntry,
    given: Option<&AddonSpec>,
    hash_key: &[u8; 32],
    observed: &ObservedAddons,
) -> WantedAddon {
    let key = key(entry, given);
    let mut warnings = Vec::new();
    let content = chart_fact(observed, entry.name).map(|chart| {
        let mut facts = facts.clone();
        facts.first_cilium_minor = first_minor(observed, &key, &chart.version);
        let ours = (entry.values)(&facts);
        let values = given.map_or_else(|| ours.clone(), |given| merge(&ours, &Value::Object(given.values.clone())));
        warnings.extend(
            given
                .iter()
                .flat_map(|given| plain_secrets(&Value::Object(given.values.clone()))),
        );
        warnings.extend((entry.judge)(&facts, &values));
        let labels = namespace_labels(entry.pod_security).unwrap_or_default();
        content(chart, &key, values, &labels, hash_key)
    });
    let values = content.as_ref().ok().map(|content| &content.release.values);
    WantedAddon {
        name: entry.name.to_owned(),
        layer: entry.layer,
        is_before_network: entry.is_before_network(),
        namespace: (!is_made_by_kubernetes(&key.namespace)).then(|| namespace(&key.namespace, entry.pod_security)),
        workloads: workloads(entry, values),
        late: entry.late,
        removal: entry.removal,
        warnings,
        content,
        key,
    }
}

/// A chart of the user's own: its Job starts when a node takes ordinary pods, and `deployed` is all that is known of it.
fn chart_addon(name: String, chart: &ChartSpec, hash_key: &[u8; 32], observed: &ObservedAddons) -> WantedAddon {
    let key = chart_key(chart);
    let values = Value::Object(chart.values.clone());
    let fact = chart_fact(observed, &name);
    WantedAddon {
        layer: Layer::GitOps,
        is_before_network: false,
        namespace: (!is_made_by_kubernetes(&key.namespace)).then(|| namespace(&key.namespace, None)),
        workloads: Vec::new(),
        late: LateInstall::Allowed,
        removal: RemovalPolicy::Free,
        warnings: plain_secrets(&values),
        content: fact.map(|fact| content(fact, &key, values, &BTreeMap::new(), hash_key)),
        name,
        key,
    }
}

fn is_made_by_kubernetes(namespace: &str) -> bool {
    matches!(namespace, "default" | "kube-system" | "kube-public")
}

/// The minor that was installed first: Cilium must be told it at every later upgrade. It is kept in the installed values.
fn first_minor(observed: &ObservedAddons, key: &ReleaseKey, version: &str) -> Option<String> {
    let installed = observed
        .cluster
        .yes()
        .and_then(|cluster| cluster.releases.get(key)?.newest.as_ref());
    let kept = installed.and_then(|revision| at(&revision.config, "upgradeCompatibility")?.as_str().map(ToOwned::to_owned));
    let version = version.trim_start_matches('v');
    kept.or_else(|| Some(version.rsplit_once('.')?.0.to_owned()))
}

/// Workloads that the values leave in the chart.
fn workloads(entry: &CatalogueEntry, values: Option<&Value>) -> Vec<Workload> {
    let is_off = |workload: &&Workload| {
        let path = workload.switched_off_by()?;
        Some(at(values?, path)? == &Value::Bool(false))
    };
    entry
        .workloads
        .iter()
        .filter(|workload| is_off(workload) != Some(true))
        .copied()
        .collect()
}

/// What the catalogue must know about the cluster, from the file alone.
fn facts(spec: &Spec) -> AddonFacts {
    let machines = |role: Role| {
        let of_role = spec.machines.iter().filter(move |machine| machine.role == role);
        of_role
            .map(|machine| (machine.name.to_string(), Some(machine.address)))
            .collect()
    };
    AddonFacts {
        cluster: spec.name.to_string(),
        distro: spec.distro.distro(),
        control_planes: machines(Role::ControlPlane),
        workers: machines(Role::Worker),
        vip: spec.network.vip,
        wanted: spec
            .addons
            .releases
            .keys()
            .copied()
            .chain((spec.cni == Cni::Cilium).then_some(Addon::Cilium))
            .collect(),
        loadbalancer: spec.addons.loadbalancer,
        forwards_dns_to_host: catalogue::forwards_dns_to_host(spec.distro.distro()),
        pve: PveFacts {
            endpoint: spec.datacenter.endpoint.to_string(),
            region: spec.name.to_string(),
            has_own_ca: !matches!(spec.datacenter.trust, mainstay_spec::PveTrust::Roots),
            storage: spec
                .datacenter
                .storage
                .disks
                .as_ref()
                .map(ToString::to_string)
                .unwrap_or_default(),
            is_shared: false,
        },
        csi_controller_vmid: None,
        has_longhorn_disk: spec
            .machines
            .iter()
            .any(|machine| machine.shape.disks.iter().any(|disk| disk.name == "longhorn")),
        first_cilium_minor: None,
    }
}
