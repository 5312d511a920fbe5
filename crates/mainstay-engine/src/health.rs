//! Whether a cluster works for those who use it: the endpoint, DNS, and the workloads of the system. Changes nothing.

use mainstay_kube::{Cluster, ListScope, Readiness, readiness};
use mainstay_net::Target;
use mainstay_spec::Spec;
use semver::Version;

use crate::clients::Clients;
use crate::guest;

/// Where the workloads of the distribution run.
const SYSTEM: &str = "kube-system";

/// What was asked, and what was answered.
#[derive(Debug, Clone)]
pub struct ClusterHealth {
    /// The version that the endpoint of the file answers with.
    pub endpoint: Result<Version, String>,
    pub dns: Result<DnsState, String>,
    /// Deployments and DaemonSets of the system that are not ready, and why.
    pub system: Result<SystemState, String>,
}

/// Pods of the cluster's DNS.
#[derive(Debug, Clone, Copy)]
pub struct DnsState {
    pub ready: usize,
    pub wanted: usize,
}

#[derive(Debug, Clone)]
pub struct SystemState {
    pub workloads: usize,
    pub not_ready: Vec<String>,
}

/// Asks the endpoint that users use, and through it for everything else. `None` before there are secrets to ask with, and for RKE2 and k3s,
/// whose workloads are not known here.
pub async fn health(clients: &Clients, spec: &Spec, has_secrets: bool) -> Option<ClusterHealth> {
    if !has_secrets || !guest::has_known_workloads(&clients.guests) {
        return None;
    }
    let at = Target {
        host: spec.endpoint.host.clone(),
        port: spec.endpoint.port,
    };
    let server = match clients.kube.connect_to(&at) {
        Ok(server) => server,
        Err(error) => return Some(ClusterHealth::unreachable(&error.to_string())),
    };
    let (version, dns, system) = tokio::join!(server.version(), dns(&server), system(&server));
    Some(match version {
        Ok(version) => ClusterHealth {
            endpoint: Ok(version),
            dns,
            system,
        },
        Err(error) => ClusterHealth::unreachable(&error.to_string()),
    })
}

impl ClusterHealth {
    fn unreachable(why: &str) -> Self {
        let unasked = || "not asked: the endpoint does not answer".to_owned();
        Self {
            endpoint: Err(why.to_owned()),
            dns: Err(unasked()),
            system: Err(unasked()),
        }
    }
}

async fn dns(server: &Cluster) -> Result<DnsState, String> {
    let pods = server.dns_pods().await.map_err(|error| error.to_string())?;
    Ok(DnsState {
        ready: pods.ready.len(),
        wanted: pods.ready.len() + pods.not_ready.len(),
    })
}

async fn system(server: &Cluster) -> Result<SystemState, String> {
    let mut state = SystemState {
        workloads: 0,
        not_ready: Vec::new(),
    };
    let scope = ListScope::default().in_namespace(SYSTEM);
    for kind in ["Deployment", "DaemonSet"] {
        let objects = server
            .list("apps/v1", kind, &scope)
            .await
            .map_err(|error| error.to_string())?;
        state.workloads += objects.len();
        for object in &objects {
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            match readiness(object) {
                Readiness::Ready => {}
                Readiness::Waiting(why) | Readiness::Failed(why) => state.not_ready.push(format!("{kind} {name}: {why}")),
            }
        }
    }
    Ok(state)
}
