//! What cluster.yaml says about add-ons, charts, manifests, registries and Tailscale: types, and how they are resolved.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use ipnet::Ipv4Net;
use rancher_config::Checksum;
use serde_json::{Map, Value};
use url::Url;

use crate::draft::{Draft, Fields};
use crate::key::ShortOrLong;
use crate::keys::{self, addons};
use crate::resolve::settings;
use crate::spec::{NamePattern, VersionWish};

/// What is installed on the cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AddonsSpec {
    pub releases: BTreeMap<Addon, AddonSpec>,
    pub flux: Option<GitOpsSpec>,
    pub argocd: Option<GitOpsSpec>,
    /// In the order of the file.
    pub charts: Vec<ChartSpec>,
    pub manifests: Vec<ManifestSource>,
    pub loadbalancer: Option<AddressSpan>,
    pub registries: RegistriesSpec,
}

/// An add-on of the catalogue that is one Helm release.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Addon {
    Cilium,
    ProxmoxCcm,
    ProxmoxCsi,
    TalosCcm,
    KubeVip,
    MetricsServer,
    PrometheusCrds,
    GatewayApi,
    Longhorn,
    CertManager,
    Traefik,
    TailscaleOperator,
}

impl Addon {
    /// Its key in cluster.yaml.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cilium => "cilium",
            Self::ProxmoxCcm => "proxmox-ccm",
            Self::ProxmoxCsi => "proxmox-csi",
            Self::TalosCcm => "talos-ccm",
            Self::KubeVip => "kube-vip",
            Self::MetricsServer => "metrics-server",
            Self::PrometheusCrds => "prometheus-crds",
            Self::GatewayApi => "gateway-api",
            Self::Longhorn => "longhorn",
            Self::CertManager => "cert-manager",
            Self::Traefik => "traefik",
            Self::TailscaleOperator => "tailscale-operator",
        }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct AddonSpec {
    /// `Any`: the pinned one, else the newest known.
    pub version: VersionWish,
    /// `None`: that of the catalogue.
    pub namespace: Option<String>,
    /// Merged over the values of the catalogue.
    pub values: Map<String, Value>,
}

/// A repository that Flux or Argo CD follows.
#[derive(Debug, Clone, PartialEq)]
pub struct GitOpsSpec {
    pub version: VersionWish,
    pub url: Url,
    pub branch: String,
    pub path: String,
    pub auth: GitAuth,
    /// File with SSH host keys, relative to cluster.yaml.
    pub known_hosts: Option<String>,
    /// The SOPS age key is placed in the cluster.
    pub age_key: bool,
    pub values: Map<String, Value>,
}

/// How a repository is read. Secrets are in the secrets file, never in cluster.yaml.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GitAuth {
    None,
    /// An SSH key that mainstay makes; its public half is printed.
    DeployKey,
    Token,
}

/// A Helm chart that is not in the catalogue.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartSpec {
    /// Of the release.
    pub name: String,
    pub source: ChartSource,
    pub version: VersionWish,
    pub namespace: String,
    pub values: Map<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ChartSource {
    /// `oci://registry/path`, without the scheme.
    Oci(String),
    Repository {
        url: Url,
        chart: String,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ManifestSource {
    /// A file or folder, relative to cluster.yaml.
    Path(String),
    Url {
        url: Url,
        checksum: Checksum,
    },
}

/// Addresses from the first to the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AddressSpan {
    pub first: Ipv4Addr,
    pub last: Ipv4Addr,
}

/// How machines reach container registries.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RegistriesSpec {
    /// Mirrors by the registry's name in image references.
    pub mirrors: BTreeMap<String, Vec<Url>>,
    /// User names by host; the password is in the secrets file.
    pub logins: BTreeMap<String, String>,
}

/// Tailscale or Headscale on every machine. The auth key is a secret.
#[derive(Debug, Clone, PartialEq)]
pub struct TailscaleSpec {
    pub login_server: Url,
    /// `None`: the machine's name.
    pub hostname: Option<NamePattern>,
    pub tags: Vec<String>,
    pub routes: Vec<Ipv4Net>,
    pub accept_dns: bool,
}

/// `None` only if something that was reported is missing.
pub(crate) fn resolve(draft: &Draft<'_>) -> Option<AddonsSpec> {
    let fields = draft.file.section(&keys::ADDONS);
    let named = |(addon, key): &(Addon, &'static crate::key::Key<crate::key::Inside>)| {
        let fields = fields.section(key);
        fields.at.map(|_| (*addon, release(&fields)))
    };
    let gitops = |fields: Fields<'_>| fields.at.map(|_| git_repository(&fields));
    let loadbalancer = draft.file.section(&keys::LOADBALANCER);
    Some(AddonsSpec {
        releases: addons::CATALOGUE.iter().filter_map(named).collect(),
        flux: gitops(fields.section(&addons::FLUX)).map_or(Some(None), |flux| flux.map(Some))?,
        argocd: gitops(fields.section(&addons::ARGOCD)).map_or(Some(None), |argocd| argocd.map(Some))?,
        charts: draft
            .file
            .sections(&keys::CHARTS)
            .value()
            .unwrap_or_default()
            .iter()
            .map(chart)
            .collect::<Option<_>>()?,
        manifests: manifests(draft)?,
        loadbalancer: loadbalancer
            .value(&addons::BALANCER_POOL)
            .map(|(first, last)| AddressSpan { first, last }),
        registries: registries(&draft.file.section(&keys::REGISTRIES)),
    })
}

fn release(fields: &Fields<'_>) -> AddonSpec {
    AddonSpec {
        version: fields.value(&addons::VERSION).unwrap_or(VersionWish::Any),
        namespace: fields.value(&addons::NAMESPACE),
        values: settings(fields, &addons::VALUES),
    }
}

fn git_repository(fields: &Fields<'_>) -> Option<GitOpsSpec> {
    let url = fields.value(&addons::GIT_URL)?;
    let by_scheme = if url.scheme() == "ssh" {
        GitAuth::DeployKey
    } else {
        GitAuth::None
    };
    Some(GitOpsSpec {
        version: fields.value(&addons::VERSION).unwrap_or(VersionWish::Any),
        auth: fields.value(&addons::GIT_AUTH).unwrap_or(by_scheme),
        url,
        branch: fields.or_default(&addons::GIT_BRANCH)?,
        path: fields.or_default(&addons::GIT_PATH)?,
        known_hosts: fields.value(&addons::KNOWN_HOSTS),
        age_key: fields.or_default(&addons::AGE_KEY)?,
        values: settings(fields, &addons::VALUES),
    })
}

fn chart(fields: &Fields<'_>) -> Option<ChartSpec> {
    let chart = fields.value(&addons::CHART_CHART)?;
    let source = match (chart.strip_prefix("oci://"), fields.value(&addons::CHART_REPO)) {
        (Some(path), _) => ChartSource::Oci(path.to_owned()),
        (None, url) => ChartSource::Repository { url: url?, chart },
    };
    Some(ChartSpec {
        name: fields.value(&addons::CHART_NAME)?,
        source,
        version: fields.value(&addons::VERSION).unwrap_or(VersionWish::Any),
        namespace: fields.or_default(&addons::CHART_NAMESPACE)?,
        values: settings(fields, &addons::VALUES),
    })
}

fn manifests(draft: &Draft<'_>) -> Option<Vec<ManifestSource>> {
    let source = |(manifest, fields): (ShortOrLong<String>, Fields<'_>)| match manifest {
        ShortOrLong::Short(path) => Some(ManifestSource::Path(path)),
        ShortOrLong::Long => Some(ManifestSource::Url {
            url: fields.value(&addons::MANIFEST_URL)?,
            checksum: fields.value(&addons::MANIFEST_CHECKSUM)?,
        }),
    };
    draft
        .file
        .items_or_sections(&addons::MANIFESTS)
        .into_iter()
        .map(source)
        .collect()
}

fn registries(fields: &Fields<'_>) -> RegistriesSpec {
    let mirrors = fields.named(&addons::MIRRORS).into_iter().map(|mirror| {
        let endpoints = mirror.fields.items(&addons::ENDPOINTS);
        (mirror.name.to_owned(), endpoints.into_iter().map(|url| url.value).collect())
    });
    let logins = fields.named(&addons::CREDENTIALS).into_iter();
    RegistriesSpec {
        mirrors: mirrors.collect(),
        logins: logins
            .filter_map(|login| Some((login.name.to_owned(), login.fields.value(&addons::REGISTRY_USER)?)))
            .collect(),
    }
}

pub(crate) fn tailscale(draft: &Draft<'_>) -> Option<Option<TailscaleSpec>> {
    let fields = draft.file.section(&keys::TAILSCALE);
    if fields.at.is_none() {
        return Some(None);
    }
    Some(Some(TailscaleSpec {
        login_server: fields.or_default(&addons::LOGIN_SERVER)?,
        hostname: fields.value(&addons::TAILNET_NAME),
        tags: fields.items(&addons::TAILNET_TAGS).into_iter().map(|tag| tag.value).collect(),
        routes: fields.items(&addons::ROUTES).into_iter().map(|route| route.value).collect(),
        accept_dns: fields.or_default(&addons::ACCEPT_DNS)?,
    }))
}
