//! What Talos 1.14 checks across all documents.

use std::collections::BTreeSet;

use super::machine::MachineType;
use super::{Look, Mode, Verdict};
use crate::config::Config;
use crate::yaml::Node;

/// Documents that a worker must not have.
const CONTROL_PLANE_ONLY: [&str; 14] = [
    "KubeAPIServerConfig",
    "KubeAdmissionControlConfig",
    "KubeAggregatorCAConfig",
    "KubeAuditPolicyConfig",
    "KubeAuthenticationConfig",
    "KubeAuthorizerConfig",
    "KubeControllerManagerConfig",
    "KubeCoreDNSConfig",
    "KubeEtcdEncryptionConfig",
    "KubeFlannelCNIConfig",
    "KubeProxyConfig",
    "KubeSchedulerConfig",
    "KubeServiceAccountConfig",
    "KubeTalosAPIAccessConfig",
];

pub fn check(config: &Config, mode: Mode, verdict: &mut Verdict) {
    let whole = Whole {
        config,
        legacy: config.legacy(),
    };
    let errors = &mut verdict.others;
    if mode == Mode::Container {
        whole.host_dns(errors);
    }
    whole.discovery(errors);
    whole.kubernetes(errors);
    whole.placement(errors);
}

struct Whole<'a> {
    config: &'a Config,
    legacy: Option<&'a Node>,
}

impl Whole<'_> {
    fn document(&self, kind: &str) -> Option<&Node> {
        self.config
            .documents
            .iter()
            .find(|document| document.id.kind == kind)
            .map(|document| &document.body)
    }

    fn legacy_has(&self, path: &str) -> bool {
        self.legacy.is_some_and(|legacy| legacy.has(path))
    }

    fn legacy_text(&self, path: &str) -> &str {
        self.legacy.map_or("", |legacy| legacy.text(path))
    }

    fn host_dns(&self, errors: &mut Vec<String>) {
        let document = self
            .document("ResolverConfig")
            .and_then(|resolver| resolver.at_path("hostDNS"));
        let Some(dns) = document.or_else(|| self.legacy.and_then(|legacy| legacy.at_path("machine.features.hostDNS"))) else {
            errors.push("hostDNS config is required in container mode".to_owned());
            return;
        };
        if dns.flag("enabled") != Some(true) {
            errors.push("hostDNS must be enabled in container mode".to_owned());
        }
        if dns.flag("forwardKubeDNSToHost") != Some(true) {
            errors.push("forwardKubeDNSToHost must be enabled in container mode".to_owned());
        }
    }

    fn uses_discovery(&self) -> bool {
        let legacy = self.legacy.is_some_and(|legacy| {
            legacy.flag("cluster.discovery.enabled") == Some(true)
                && legacy.flag("cluster.discovery.registries.service.disabled") != Some(true)
        });
        legacy || self.document("DiscoveryServiceConfig").is_some()
    }

    fn discovery(&self, errors: &mut Vec<String>) {
        if self.uses_discovery() {
            let identity = self.document("DiscoveryIdentityConfig");
            for (name, key, field) in [("ID", "id", "clusterID"), ("secret", "secret", "clusterSecret")] {
                let given = identity.map_or("", |identity| identity.text(field));
                if given.is_empty() && self.legacy_text(&format!("cluster.{key}")).is_empty() {
                    errors.push(format!(
                        "cluster {name} (.cluster.{key} or DiscoveryIdentityConfig) should be set when cluster discovery \
                         (DiscoveryServiceConfig) is enabled"
                    ));
                }
            }
        }
        let by_document = self.document("KubeSpanConfig").and_then(|kubespan| kubespan.flag("enabled"));
        let by_legacy = self.legacy.and_then(|legacy| legacy.flag("machine.network.kubespan.enabled"));
        if by_document.or(by_legacy) == Some(true) && !self.uses_discovery() {
            errors.push("KubeSpan requires cluster discovery to be enabled".to_owned());
        }
    }

    fn is_control_plane(&self) -> bool {
        self.legacy
            .is_some_and(|legacy| legacy.has("machine") && MachineType::of(legacy) == MachineType::ControlPlane)
    }

    fn kubernetes(&self, errors: &mut Vec<String>) {
        let has_ca = self.legacy_has("cluster.ca") || self.document("KubeAPIServerCAConfig").is_some();
        let is_encrypted = !self.legacy_text("cluster.secretboxEncryptionSecret").is_empty()
            || !self.legacy_text("cluster.aescbcEncryptionSecret").is_empty()
            || self.document("KubeEtcdEncryptionConfig").is_some();
        if self.is_control_plane() && has_ca && !is_encrypted {
            let text = "etcd encryption config is required for control plane machines running kube-apiserver";
            errors.push(text.to_owned());
        }
        let has_endpoint = self.legacy_has("cluster.controlPlane.endpoint") || self.document("KubeClusterConfig").is_some();
        if has_ca && !has_endpoint {
            errors.push(
                "cluster name and endpoint are required when Kubernetes is configured: either \
                 .cluster.clusterName/.cluster.controlPlane.endpoint or the KubeClusterConfig document"
                    .to_owned(),
            );
        }
    }

    fn placement(&self, errors: &mut Vec<String>) {
        let kinds: BTreeSet<&str> = self.config.ids().map(|id| id.kind.as_str()).collect();
        let misplaced: Vec<&str> = kinds.into_iter().filter(|kind| CONTROL_PLANE_ONLY.contains(kind)).collect();
        if !misplaced.is_empty() && !self.is_control_plane() {
            let kinds = misplaced.join(" ");
            errors.push(format!(
                "the following document kinds are only allowed on control plane machines: [{kinds}]"
            ));
        }
    }
}
