//! Things that may be said in the v1alpha1 document or in a document of their own, but not in both.

use super::Look;
use crate::config::{Config, Document};
use crate::versions::Contract;
use crate::yaml::Node;

/// A document kind, what must then be absent in the v1alpha1 document, and the words.
struct Rule {
    kind: &'static str,
    absent: &'static str,
    text: &'static str,
}

const fn rule(kind: &'static str, absent: &'static str, text: &'static str) -> Rule {
    Rule { kind, absent, text }
}

/// In upstream's order: of each document only the first conflict is told.
const RULES: &[Rule] = &[
    rule(
        "HostnameConfig",
        "machine.network.hostname",
        "static hostname is already set in v1alpha1 config",
    ),
    rule(
        "HostnameConfig",
        "machine.features.stableHostname",
        "stable hostname is already set in v1alpha1 config",
    ),
    rule(
        "ResolverConfig",
        "machine.network.searchDomains",
        ".machine.network.searchDomains is already set in v1alpha1 config",
    ),
    rule(
        "ResolverConfig",
        "machine.network.nameservers",
        ".machine.network.nameservers is already set in v1alpha1 config",
    ),
    rule(
        "ResolverConfig",
        "machine.network.disableSearchDomain",
        ".machine.network.disableSearchDomain is already set in v1alpha1 config",
    ),
    rule(
        "TimeSyncConfig",
        "machine.time.disabled",
        "time sync cannot be disabled in both v1alpha1 and new-style configuration",
    ),
    rule(
        "TimeSyncConfig",
        "machine.time.servers",
        "time servers cannot be specified in both v1alpha1 and new-style configuration",
    ),
    rule(
        "TimeSyncConfig",
        "machine.time.bootTimeout",
        "boot timeout cannot be specified in both v1alpha1 and new-style configuration",
    ),
    rule(
        "KubeSpanConfig",
        "machine.network.kubespan",
        "kubespan is already configured in v1alpha1 machine.network.kubespan",
    ),
    rule(
        "UnattendedInstallConfig",
        "machine.install",
        "UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)",
    ),
    rule(
        "KubeCoreDNSConfig",
        "cluster.coreDNS",
        "CoreDNS config is already set in v1alpha1 config (.cluster.coreDNS)",
    ),
    rule(
        "KubeletConfig",
        "machine.kubelet",
        "kubelet config is already set in v1alpha1 config (.machine.kubelet)",
    ),
    rule(
        "KubeCredentialProviderConfig",
        "machine.kubelet",
        "cannot use KubeCredentialProviderConfig with legacy kubelet configuration (.machine.kubelet)",
    ),
    rule(
        "KubeAuditPolicyConfig",
        "cluster.apiServer.auditPolicy",
        "audit policy config is already set in v1alpha1 config",
    ),
    rule(
        "KubeAggregatorCAConfig",
        "cluster.aggregatorCA",
        "kube-apiserver aggregator CA is already set in v1alpha1 config (.cluster.aggregatorCA), please remove it and use the \
         new KubeAggregatorCAConfig document instead",
    ),
    rule(
        "KubeEtcdEncryptionConfig",
        "cluster.secretboxEncryptionSecret",
        "etcd encryption config is already set in v1alpha1 config",
    ),
    rule(
        "KubeEtcdEncryptionConfig",
        "cluster.aescbcEncryptionSecret",
        "etcd encryption config is already set in v1alpha1 config",
    ),
    rule(
        "KubeFlannelCNIConfig",
        "cluster.network",
        "cluster network config in v1alpha1 config (.machine.cluster.network) can't be used with KubeFlannelCNIConfig \
         document, please remove it to avoid conflicts",
    ),
    rule(
        "KubeClusterConfig",
        "cluster.clusterName",
        "cluster name is already set in the v1alpha1 config (.cluster.clusterName). Please remove it and use only the new \
         KubeClusterConfig document to avoid conflicts",
    ),
    rule(
        "KubeClusterConfig",
        "cluster.controlPlane.endpoint",
        "cluster endpoint is already set in the v1alpha1 config (.cluster.controlPlane.endpoint). Please remove it and use \
         only the new KubeClusterConfig document to avoid conflicts",
    ),
    rule(
        "KubePrismConfig",
        "machine.features.kubePrism",
        "KubePrism config in v1alpha1 config (.machine.features.kubePrism) can't be used with KubePrismConfig document, \
         please remove it to avoid conflicts",
    ),
    rule(
        "KubeNetworkConfig",
        "cluster.network",
        "cluster network config is already set in the v1alpha1 config (.machine.cluster.network). Please remove it and use \
         only the new KubeNetworkConfig document to avoid conflicts",
    ),
    rule(
        "KubeControllerManagerConfig",
        "cluster.controllerManager",
        "kube-controller-manager config is already set in v1alpha1 config (.cluster.controllerManager)",
    ),
    rule(
        "KubeControllerManagerConfig",
        "machine.controlPlane.controllerManager",
        "kube-controller-manager config is already set in v1alpha1 config (.machine.controlplane.controllerManager)",
    ),
    rule(
        "KubeAPIServerCAConfig",
        "cluster.ca",
        "kube-apiserver CA is already set in v1alpha1 config (.cluster.ca)",
    ),
    rule(
        "KubeAdmissionControlConfig",
        "cluster.apiServer.admissionControl",
        "admission control plugin config is already set in v1alpha1 config",
    ),
    rule(
        "KubeServiceAccountConfig",
        "cluster.serviceAccount",
        "service account is already set in v1alpha1 config (.cluster.serviceAccount)",
    ),
    rule(
        "KubeAuthorizerConfig",
        "cluster.apiServer.admissionControl",
        "admission control plugin config is already set in v1alpha1 config",
    ),
    rule(
        "KubeAPIServerConfig",
        "cluster.apiServer",
        "kube-apiserver config is already set in v1alpha1 config (.cluster.apiServer)",
    ),
    rule(
        "KubeAPIServerConfig",
        "cluster.controlPlane.localAPIServerPort",
        "kube-apiserver API port is already set in v1alpha1 config (.cluster.controlPlane.localAPIServerPort)",
    ),
    rule(
        "KubeTalosAPIAccessConfig",
        "machine.features.kubernetesTalosAPIAccess",
        ".machine.features.kubernetesTalosAPIAccess is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "cluster.allowSchedulingOnControlPlanes",
        ".cluster.allowSchedulingOnControlPlanes is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "cluster.allowSchedulingOnMasters",
        ".cluster.allowSchedulingOnMasters is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "machine.kubelet.skipNodeRegistration",
        ".machine.kubelet.skipNodeRegistration is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "machine.kubelet.registerWithFQDN",
        ".machine.kubelet.registerWithFQDN is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "machine.kubelet.nodeIP",
        ".machine.kubelet.nodeIP is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "machine.nodeLabels",
        ".machine.nodeLabels is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "machine.nodeAnnotations",
        ".machine.nodeAnnotations is already set in v1alpha1 config",
    ),
    rule(
        "KubeNodeConfig",
        "machine.nodeTaints",
        ".machine.nodeTaints is already set in v1alpha1 config",
    ),
    rule(
        "KubeProxyConfig",
        "cluster.proxy",
        "cluster proxy config in v1alpha1 config (.machine.cluster.proxy) can't be used with KubeProxyConfig document, please \
         remove it to avoid conflicts",
    ),
    rule(
        "KubeSchedulerConfig",
        "cluster.scheduler",
        "kube-scheduler config is already set in v1alpha1 config (.cluster.scheduler)",
    ),
    rule(
        "KubeSchedulerConfig",
        "machine.controlPlane.scheduler",
        "kube-scheduler config is already set in v1alpha1 config (.machine.controlplane.scheduler)",
    ),
    rule(
        "CRIBaseRuntimeSpecConfig",
        "machine.baseRuntimeSpecOverrides",
        "base runtime spec overrides are already set in v1alpha1 config",
    ),
    rule(
        "ImageCacheConfig",
        "machine.features.imageCache",
        "image cache config is already set in v1alpha1 config",
    ),
    rule(
        "DiscoveryIdentityConfig",
        "cluster.id",
        "cluster identity is already configured in .cluster.id/.cluster.secret of the v1alpha1 config",
    ),
    rule(
        "DiscoveryIdentityConfig",
        "cluster.secret",
        "cluster identity is already configured in .cluster.id/.cluster.secret of the v1alpha1 config",
    ),
    rule(
        "DiscoveryServiceConfig",
        "cluster.discovery",
        "discovery service is already configured in .cluster.discovery of the v1alpha1 config",
    ),
];

/// Paths that conflict only when they say something; all others conflict by being there.
const MUST_SAY_SOMETHING: [&str; 14] = [
    "machine.network.hostname",
    "machine.features.stableHostname",
    "machine.network.searchDomains",
    "machine.network.nameservers",
    "machine.network.disableSearchDomain",
    "machine.time.disabled",
    "machine.time.servers",
    "machine.time.bootTimeout",
    "cluster.apiServer.auditPolicy",
    "cluster.apiServer.admissionControl",
    "cluster.clusterName",
    "cluster.controlPlane.localAPIServerPort",
    "cluster.id",
    "cluster.secret",
];

pub fn check(config: &Config, legacy: &Node, contract: Contract, errors: &mut Vec<String>) {
    for document in config.documents.iter().filter(|document| !document.id.is_legacy()) {
        errors.extend(first_conflict(document, legacy, contract));
    }
}

fn first_conflict(document: &Document, legacy: &Node, contract: Contract) -> Option<String> {
    let found = RULES.iter().filter(|rule| rule.kind == document.id.kind).find(|rule| {
        let must_say = MUST_SAY_SOMETHING.contains(&rule.absent);
        legacy.at_path(rule.absent).is_some_and(|value| !must_say || !value.is_zero())
    });
    if let Some(rule) = found {
        return Some(rule.text.to_owned());
    }
    let body = &document.body;
    match document.id.kind.as_str() {
        "ResolverConfig" if contract >= Contract::new(1, 14) => {
            let both = body.at_path("hostDNS").is_some_and(|dns| !dns.is_zero()) && legacy.has("machine.features.hostDNS");
            both.then(|| ".machine.features.hostDNS is already set in v1alpha1 config".to_owned())
        }
        "VolumeConfig" => encryption_conflict(body, legacy),
        _ => None,
    }
}

fn encryption_conflict(body: &Node, legacy: &Node) -> Option<String> {
    let name = body.text("name");
    let path = match name {
        "STATE" => "machine.systemDiskEncryption.state",
        "EPHEMERAL" => "machine.systemDiskEncryption.ephemeral",
        _ => return None,
    };
    let both = body.at_path("encryption").is_some_and(|encryption| !encryption.is_zero()) && legacy.has(path);
    both.then(|| format!("system disk encryption for {name:?} is configured in both v1alpha1.Config and VolumeConfig"))
}
