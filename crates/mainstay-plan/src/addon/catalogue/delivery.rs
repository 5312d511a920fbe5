//! How a distribution brings charts: where a Job finds the API server before the network works, and the objects of the Helm controller
//! that RKE2 and k3s contain.

use std::collections::BTreeMap;

use mainstay_spec::Distro;
use rancher_config::manifests::{HelmChart, helm_chart_config};
use serde_json::Value;

/// Helm, with the entry script whose contract the installing Job follows.
pub const HELM_IMAGE: &str = "docker.io/rancher/klipper-helm:v0.13.3-build20260727";

/// An API server that answers on the node itself, before kube-proxy and CNI work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobEndpoint {
    pub host: &'static str,
    pub port: u16,
}

/// KubePrism on Talos, the local balancer on RKE2 and k3s. Always an address: `localhost` may resolve to IPv6.
pub fn job_endpoint(distro: Distro) -> JobEndpoint {
    let (host, port) = match distro {
        Distro::Talos => ("127.0.0.1", 7445),
        Distro::Rke2 => rancher_config::Distro::Rke2.local_api(),
        Distro::K3s => rancher_config::Distro::K3s.local_api(),
    };
    JobEndpoint { host, port }
}

/// CoreDNS asks the resolver of its node, on an address of the node alone.
pub fn forwards_dns_to_host(distro: Distro) -> bool {
    distro == Distro::Talos
}

/// A chart of ours that the distribution's Helm controller installs.
#[derive(Debug, Clone, PartialEq)]
pub struct HelmControllerChart<'a> {
    pub release: &'a str,
    pub namespace: &'a str,
    pub archive: &'a [u8],
    /// Resolved values: only the executor has them.
    pub values: &'a Value,
    /// Runs before the network does.
    pub is_before_network: bool,
    /// Labels of the inventory.
    pub labels: BTreeMap<String, String>,
}

impl HelmControllerChart<'_> {
    pub fn object(&self) -> Value {
        let chart = HelmChart {
            release: self.release,
            namespace: self.namespace,
            archive: self.archive,
            values: self.values,
            bootstrap: self.is_before_network,
        };
        with_labels(chart.object(), &self.labels)
    }
}

/// Why a packaged chart cannot be configured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigFault {
    /// No chart of that name after a minute: the existing names help to find a misspelling or a disabled chart.
    NoSuchChart { chart: String, existing: Vec<String> },
}

/// Values for a chart that the distribution packages. It fails if the distribution, a minute after its start, has no such chart.
pub fn packaged_chart_config(
    chart: &str,
    values: &Value,
    labels: &BTreeMap<String, String>,
    existing: Option<&[String]>,
) -> Result<Value, ConfigFault> {
    if let Some(existing) = existing
        && !existing.iter().any(|name| name == chart)
    {
        return Err(ConfigFault::NoSuchChart {
            chart: chart.to_owned(),
            existing: existing.to_vec(),
        });
    }
    // HelmChartConfig has no field for the back-off limit; a strict API server refuses unknown fields.
    Ok(with_labels(helm_chart_config(chart, values), labels))
}

fn with_labels(mut object: Value, labels: &BTreeMap<String, String>) -> Value {
    for (key, value) in labels {
        object["metadata"]["labels"][key] = Value::from(value.as_str());
    }
    object
}
