//! The cluster section of the v1alpha1 document.

use std::collections::BTreeSet;

use super::Look;
use super::machine::check_subnet;
use crate::versions::Contract;
use crate::yaml::{Node, Value};

const V1_14: Contract = Contract::new(1, 14);

pub fn check(legacy: &Node, is_control_plane: bool, contract: Contract, errors: &mut Vec<String>) {
    let Some(cluster) = legacy.at_path("cluster") else {
        errors.push("cluster instructions are required".to_owned());
        return;
    };
    if !check_endpoint(cluster, contract, errors) {
        return;
    }
    let domain = cluster.text("network.dnsDomain");
    if !domain.is_empty() && !is_dns_name(domain) {
        errors.push(format!("{domain:?} is not a valid DNS name"));
    }
    check_cloud_provider(cluster, errors);
    check_etcd(cluster, is_control_plane, errors);
    if !is_control_plane && !cluster.text("ca.key").is_empty() {
        errors.push("cluster CA key is not allowed on non-controlplane nodes (.cluster.ca)".to_owned());
    }
    check_inline_manifests(cluster, errors);
    check_discovery(cluster, errors);
    check_components(cluster, errors);
}

/// Without an endpoint nothing else is looked at.
fn check_endpoint(cluster: &Node, contract: Contract, errors: &mut Vec<String>) -> bool {
    let endpoint = cluster.text("controlPlane.endpoint");
    if contract < V1_14 && endpoint.is_empty() {
        errors.push("cluster controlplane endpoint is required".to_owned());
        return false;
    }
    if contract >= V1_14 && cluster.has("controlPlane") && endpoint.is_empty() {
        errors.push(
            "cluster controlplane endpoint is required (.cluster.controlPlane.endpoint); when the endpoint is migrated to the \
             KubeClusterConfig document, the whole .cluster.controlPlane section should be removed \
             (.cluster.controlPlane.localAPIServerPort is migrated to the KubeAPIServerConfig document)"
                .to_owned(),
        );
        return false;
    }
    if !endpoint.is_empty()
        && let Err(problem) = check_uri(endpoint)
    {
        errors.push(format!("invalid controlplane endpoint: {problem}"));
    }
    if contract >= V1_14 && endpoint.is_empty() && cluster.has("serviceAccount") {
        errors.push(
            ".cluster.serviceAccount requires the cluster endpoint to be set in the same document \
             (.cluster.controlPlane.endpoint); when the cluster endpoint is migrated to the KubeClusterConfig document, \
             .cluster.serviceAccount should be migrated to the KubeServiceAccountConfig document as well"
                .to_owned(),
        );
    }
    true
}

pub fn check_uri(uri: &str) -> Result<(), &'static str> {
    let rest = uri.split_once("://").map_or("", |(_, rest)| rest);
    let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let host_port = authority.rsplit('@').next().unwrap_or_default();
    if host_port.matches(':').count() > 2 && !(host_port.contains('[') && host_port.contains(']')) {
        return Err("IPv6 addresses MUST be enclosed by square brackets");
    }
    let (host, port) = match host_port.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => (host, port),
        _ => (host_port, ""),
    };
    if host.is_empty() {
        return Err("hostname must not be blank");
    }
    match port.parse::<u32>() {
        _ if port.is_empty() => Ok(()),
        Ok(port) if (1..=65535).contains(&port) => Ok(()),
        Ok(_) => Err("port number must be between 1 and 65535"),
        Err(_) => Err("port number must be numeric"),
    }
}

fn is_dns_name(name: &str) -> bool {
    let trimmed = name.strip_suffix('.').unwrap_or(name);
    let label_fits = |label: &str| {
        let starts_well = label.starts_with(|first: char| first.is_ascii_alphanumeric() || first == '_');
        starts_well && label.len() <= 63 && label.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
    };
    name.len() - name.matches('.').count() <= 255 && trimmed.split('.').all(label_fits)
}

fn check_cloud_provider(cluster: &Node, errors: &mut Vec<String>) {
    let Some(provider) = cluster.at_path("externalCloudProvider") else {
        return;
    };
    let manifests = provider.texts("manifests");
    if provider.flag("enabled") != Some(true) && !manifests.is_empty() {
        errors.push("external cloud provider is disabled, but manifests are provided".to_owned());
        return;
    }
    for url in manifests {
        if let Err(problem) = check_uri(url) {
            errors.push(format!("invalid external cloud provider manifest url {url:?}: {problem}"));
        }
    }
}

fn check_etcd(cluster: &Node, is_control_plane: bool, errors: &mut Vec<String>) {
    let Some(etcd) = cluster.at_path("etcd") else { return };
    if !is_control_plane {
        errors.push("etcd config is only allowed on control plane machines".to_owned());
        return;
    }
    if !etcd.has("ca") {
        errors.push("key/cert combination should not be empty".to_owned());
    }
    if !etcd.text("subnet").is_empty() && !etcd.items("advertisedSubnets").is_empty() {
        errors.push("etcd subnet can't be set when advertised subnets are set".to_owned());
    }
    for subnet in etcd.texts("advertisedSubnets") {
        check_subnet(subnet, "etcd advertised subnet is not valid", errors);
    }
    for subnet in etcd.texts("listenSubnets") {
        check_subnet(subnet, "etcd listen subnet is not valid", errors);
    }
}

fn check_inline_manifests(cluster: &Node, errors: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for name in cluster.items("inlineManifests").iter().map(|manifest| manifest.text("name")) {
        if name.trim().is_empty() {
            errors.push("inline manifest name can't be empty".to_owned());
        }
        if !seen.insert(name) {
            errors.push(format!("inline manifest name {name:?} is duplicate"));
        }
    }
}

fn check_discovery(cluster: &Node, errors: &mut Vec<String>) {
    let Some(discovery) = cluster.at_path("discovery") else {
        return;
    };
    if discovery.flag("enabled") != Some(true) || discovery.flag("registries.service.disabled") == Some(true) {
        return;
    }
    let endpoint = discovery.text("registries.service.endpoint");
    if !endpoint.is_empty() {
        match endpoint.split_once("://") {
            None => {
                let problem = format!("parse {endpoint:?}: invalid URI for request");
                errors.push(format!("cluster discovery service registry endpoint is invalid: {problem}"));
            }
            Some((_, rest)) if rest.split_once('/').is_some_and(|(_, path)| !path.is_empty()) => {
                errors.push("cluster discovery service path should be empty".to_owned());
            }
            Some(_) => {}
        }
    }
    for key in ["id", "secret"] {
        if cluster.text(key).is_empty() {
            errors.push(format!("cluster discovery service requires .cluster.{key}"));
        }
    }
}

fn check_components(cluster: &Node, errors: &mut Vec<String>) {
    if let Some(server) = cluster.at_path("apiServer") {
        errors.extend(check_authorization(server));
    }
    let components = [
        ("apiServer", "apiserver"),
        ("controllerManager", "controller-manager"),
        ("scheduler", "scheduler"),
    ];
    for (section, name) in components {
        let unsupported = cluster
            .at_path(&format!("{section}.resources"))
            .and_then(unsupported_resource);
        if let Some(resource) = unsupported {
            errors.push(format!(
                "{name} resource validation failed: unsupported pod resource {resource:?}"
            ));
        }
    }
}

fn check_authorization(server: &Node) -> Option<String> {
    if server.items("authorizationConfig").is_empty() {
        return None;
    }
    let Some(Value::Map(arguments)) = server.at_path("extraArgs").map(|node| &node.value) else {
        return None;
    };
    let text = arguments.keys().find_map(|argument| match argument.as_str() {
        "authorization-mode" => Some(
            "authorization-mode cannot be used in conjunction with AuthorizationConfig, use eitherr AuthorizationConfig or \
             authorization-mode",
        ),
        argument if argument.starts_with("authorization-webhook-") => Some(
            "authorization-webhook-* flags cannot be used in conjunction with AuthorizationConfig, use either \
             AuthorizationConfig or authorization-webhook-* flags",
        ),
        _ => None,
    });
    text.map(str::to_owned)
}

fn unsupported_resource(resources: &Node) -> Option<String> {
    ["requests", "limits"].iter().find_map(|section| {
        let Some(Value::Map(entries)) = resources.at_path(section).map(|node| &node.value) else {
            return None;
        };
        entries.keys().find(|key| !matches!(key.as_str(), "memory" | "cpu")).cloned()
    })
}

/// The network plugin is checked on control planes only.
pub fn check_cni(legacy: &Node, contract: Contract, warnings: &mut Vec<String>, errors: &mut Vec<String>) {
    let cni = legacy.at_path("cluster.network.cni");
    let name = cni.map_or("", |cni| cni.text("name"));
    let name = if cni.is_none() { "flannel" } else { name };
    let urls = cni.map(|cni| cni.texts("urls")).unwrap_or_default();
    match name {
        "flannel" | "none" if !urls.is_empty() => errors.push(format!("\"urls\" field should be empty for {name:?} CNI")),
        "custom" if urls.is_empty() => warnings.push(format!("\"urls\" field should not be empty for {name:?} CNI")),
        "flannel" | "none" | "custom" => {}
        _ => errors.push(r#"cni name should be one of ["flannel", "custom", "none"]"#.to_owned()),
    }
    let Some(cni) = cni.filter(|_| matches!(name, "none" | "custom")) else {
        return;
    };
    if !cni.items("flannel.extraArgs").is_empty() {
        errors.push(format!("\"flanneldExtraArgs\" field should be empty for {name:?} CNI"));
    }
    if cni.flag("flannel.kubeNetworkPoliciesEnabled") == Some(true) && contract >= Contract::new(1, 13) {
        errors.push(format!(
            "\"flannelKubeNetworkPoliciesEnabled\" should not be enabled for {name:?} CNI"
        ));
    }
    if name == "custom" {
        errors.extend(urls.iter().filter_map(|url| check_uri(url).err()).map(str::to_owned));
    }
}
