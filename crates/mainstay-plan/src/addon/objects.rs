//! The Kubernetes objects of one run of Helm.
//!
//! Order: the Job, suspended; then its ServiceAccount, values and chart, owned by the Job's UID; then the role binding; then the Job is
//! released. A run that is killed on the way leaves at most a suspended Job, which the next run completes or deletes. Inputs are
//! immutable and named by content, so a running Helm never sees values change.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::catalogue::{JobEndpoint, PodSecurity};

/// Jobs and their inputs live here: the one namespace that no PodSecurity default restricts.
pub const JOB_NAMESPACE: &str = "kube-system";
/// Marks every object of ours with the cluster id. Only objects that carry it are pruned.
pub const CLUSTER_LABEL: &str = "mainstay.dev/cluster";
/// The release that a Job, account or binding belongs to.
pub const RELEASE_LABEL: &str = "mainstay.dev/release";
/// The content hash of a Job.
pub const HASH_ANNOTATION: &str = "mainstay.dev/content-hash";
/// The namespace of the release that a Job works on.
pub const NAMESPACE_ANNOTATION: &str = "mainstay.dev/release-namespace";
/// Person and machine that created a Job.
pub const CREATOR_ANNOTATION: &str = "mainstay.dev/created-by";
/// Largest archive: a ConfigMap holds 1 MiB, and base64 adds a third.
pub const ARCHIVE_LIMIT: usize = 760 * 1024;
/// Largest values file in its Secret.
pub const VALUES_LIMIT: usize = 900 * 1024;

/// Home of the image's user, below the directory of homes.
const HOME: &str = "klipper-helm";

/// What Helm does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HelmVerb {
    Install {
        skip_crds: bool,
        take_ownership: bool,
        force_conflicts: bool,
    },
    Uninstall,
}

/// One run of Helm.
#[derive(Debug, Clone, PartialEq)]
pub struct HelmRun<'a> {
    pub release: &'a str,
    /// Of the release.
    pub namespace: &'a str,
    pub hash: &'a str,
    pub attempt: u32,
    pub verb: HelmVerb,
    pub cluster_id: &'a str,
    /// Person and machine, for other operators.
    pub creator: &'a str,
    /// Through a mirror, if there is one.
    pub image: &'a str,
    /// Of [`super::job::job_nodes`].
    pub nodes: &'a [String],
    /// Host network and this API server, for releases that run before the network does.
    pub before_network: Option<JobEndpoint>,
}

/// Why a run cannot be given to the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TooLarge {
    Archive { bytes: usize, limit: usize },
    Values { bytes: usize, limit: usize },
}

/// Checked before anything is changed.
pub fn check_sizes(archive: &[u8], values: &Value) -> Result<(), TooLarge> {
    if archive.len() > ARCHIVE_LIMIT {
        return Err(TooLarge::Archive {
            bytes: archive.len(),
            limit: ARCHIVE_LIMIT,
        });
    }
    let bytes = values.to_string().len();
    if bytes > VALUES_LIMIT {
        let limit = VALUES_LIMIT;
        return Err(TooLarge::Values { bytes, limit });
    }
    Ok(())
}

/// A namespace with its PodSecurity label. Applied without force: others may add labels of their own.
pub fn namespace(name: &str, security: Option<PodSecurity>) -> Value {
    let mut object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
    if let Some(labels) = namespace_labels(security).filter(|labels| !labels.is_empty()) {
        object["metadata"]["labels"] = json!(labels);
    }
    object
}

/// Labels that are part of a release's content. Audit and warn follow enforce, so that the API server does not warn at every pod.
pub fn namespace_labels(security: Option<PodSecurity>) -> Option<BTreeMap<String, String>> {
    let level = security?.as_str();
    let label = |mode: &str| (format!("pod-security.kubernetes.io/{mode}"), level.to_owned());
    Some(["enforce", "audit", "warn"].map(label).into())
}

impl HelmRun<'_> {
    /// `mainstay-helm-<release>-<hash8>-<attempt>`, at most 63 characters: pods and labels are named after it.
    pub fn job_name(&self) -> String {
        let tail = format!("-{}-{}", shorten(self.hash, 8), self.attempt);
        let head = "mainstay-helm-";
        let room = 63 - head.len() - tail.len();
        let release = shorten(self.release, room).trim_end_matches('-');
        format!("{head}{release}{tail}")
    }

    /// Name of the values Secret and the chart ConfigMap: one name for one content.
    pub fn input_name(&self) -> String {
        let tail = format!("-{}", shorten(self.hash, 16));
        let release = shorten(self.release, 63 - tail.len()).trim_end_matches('-');
        format!("{release}{tail}")
    }

    /// The Lease that keeps a second Job away; its holder is the Job's UID.
    pub fn lease_name(&self) -> String {
        format!("mainstay-helm-{}-{}", self.namespace, self.release)
    }

    fn labels(&self) -> Value {
        json!({ CLUSTER_LABEL: self.cluster_id, RELEASE_LABEL: shorten(self.release, 63) })
    }

    fn metadata(&self, name: &str, owner_uid: Option<&str>) -> Value {
        let mut metadata = json!({ "name": name, "namespace": JOB_NAMESPACE, "labels": self.labels() });
        if let Some(uid) = owner_uid {
            metadata["ownerReferences"] = json!([{
                "apiVersion": "batch/v1", "kind": "Job", "name": self.job_name(), "uid": uid, "blockOwnerDeletion": true, "controller": false,
            }]);
        }
        metadata
    }

    /// The Job, suspended.
    pub fn job(&self) -> Value {
        let mut metadata = self.metadata(&self.job_name(), None);
        metadata["annotations"] =
            json!({ HASH_ANNOTATION: self.hash, NAMESPACE_ANNOTATION: self.namespace, CREATOR_ANNOTATION: self.creator });
        json!({
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": metadata,
            "spec": {
                "suspend": true,
                // No deadline and no TTL: a deadline kills Helm in the middle of its work, and a failed Job counts the attempts.
                "backoffLimit": 0,
                "template": { "metadata": { "labels": self.labels() }, "spec": self.pod() },
            },
        })
    }

    /// Releases the Job. Sent with the UID as a precondition.
    pub fn release_patch(uid: &str) -> Value {
        json!({ "metadata": { "uid": uid }, "spec": { "suspend": false } })
    }

    fn pod(&self) -> Value {
        let mut pod = json!({
            "serviceAccountName": self.job_name(),
            "automountServiceAccountToken": true,
            "restartPolicy": "Never",
            // Longer than Helm's own timeout, so that a stopped pod ends its work.
            "terminationGracePeriodSeconds": 330,
            "priorityClassName": "system-cluster-critical",
            "dnsPolicy": "Default",
            "tolerations": [{ "operator": "Exists" }],
            "affinity": self.affinity(),
            "securityContext": { "runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": { "type": "RuntimeDefault" } },
            "containers": [self.container()],
            "volumes": self.volumes(),
        });
        if self.before_network.is_some() {
            pod["hostNetwork"] = json!(true);
        }
        pod
    }

    /// By name: the value of the control-plane label differs between distributions, and the scheduler does not know which node is about
    /// to restart.
    fn affinity(&self) -> Value {
        // A match on fields takes exactly one name, so there is one term for each node.
        let term = |node: &String| {
            json!({
                "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" }],
                "matchFields": [{ "key": "metadata.name", "operator": "In", "values": [node] }],
            })
        };
        let terms: Vec<Value> = self.nodes.iter().map(term).collect();
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } } })
    }

    fn container(&self) -> Value {
        let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
        let mut mounts = vec![
            mount("tmp", "/tmp"),
            // Not the whole home: Helm's plugins are below `.local` of the image.
            mount("cache", &home(".cache")),
            mount("config-dir", &home(".config")),
            mount("helm-dir", &home(".helm")),
        ];
        if self.verb != HelmVerb::Uninstall {
            mounts.push(json!({ "name": "values", "mountPath": "/config", "readOnly": true }));
            mounts.push(json!({ "name": "chart", "mountPath": "/chart", "readOnly": true }));
        }
        json!({
            "name": "helm",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            "args": self.arguments(),
            "env": self.environment(),
            // The end of the log becomes the termination message: it can be read while the kubelet's serving certificate is not signed.
            "terminationMessagePolicy": "FallbackToLogsOnError",
            "securityContext": {
                "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
            },
            "volumeMounts": mounts,
        })
    }

    /// Arguments of the image's entry script. The first one is replaced by `upgrade` where a release exists.
    pub fn arguments(&self) -> Vec<String> {
        let HelmVerb::Install {
            skip_crds,
            take_ownership,
            ..
        } = self.verb
        else {
            return vec!["delete".to_owned()];
        };
        let description = format!("mainstay {}", self.hash);
        let mut arguments: Vec<String> = ["install", "--namespace", self.namespace, "--description", &description]
            .map(ToOwned::to_owned)
            .into();
        arguments.extend(skip_crds.then(|| "--skip-crds".to_owned()));
        arguments.extend(take_ownership.then(|| "--take-ownership".to_owned()));
        arguments
    }

    fn environment(&self) -> Vec<Value> {
        let is_forced = matches!(
            self.verb,
            HelmVerb::Install {
                force_conflicts: true,
                ..
            }
        );
        let mut settings = vec![
            ("NAME", self.release.to_owned()),
            ("TARGET_NAMESPACE", self.namespace.to_owned()),
            ("HELM_DRIVER", "secret".to_owned()),
            // The default uninstalls a failed release first, which removes the network if it is the CNI.
            ("FAILURE_POLICY", "retry".to_owned()),
            ("TIMEOUT", "300s".to_owned()),
        ];
        settings.extend(is_forced.then(|| ("FORCE_CONFLICTS", "true".to_owned())));
        if let Some(endpoint) = &self.before_network {
            // The Service address of the API server does not work yet.
            settings.push(("KUBERNETES_SERVICE_HOST", endpoint.host.to_owned()));
            settings.push(("KUBERNETES_SERVICE_PORT", endpoint.port.to_string()));
        }
        settings
            .into_iter()
            .map(|(name, value)| json!({ "name": name, "value": value }))
            .collect()
    }

    fn volumes(&self) -> Vec<Value> {
        let scratch = ["tmp", "cache", "config-dir", "helm-dir"].map(|name| json!({ "name": name, "emptyDir": {} }));
        let mut volumes = Vec::from(scratch);
        if self.verb != HelmVerb::Uninstall {
            volumes.push(json!({ "name": "values", "secret": { "secretName": self.input_name() } }));
            volumes.push(json!({ "name": "chart", "configMap": { "name": self.input_name() } }));
        }
        volumes
    }

    /// ServiceAccount and inputs, owned by the Job. `values` are resolved: only the executor has them.
    pub fn owned_objects(&self, job_uid: &str, archive: &[u8], values: &Value) -> Result<Vec<Value>, TooLarge> {
        let account = json!({
            "apiVersion": "v1", "kind": "ServiceAccount", "metadata": self.metadata(&self.job_name(), Some(job_uid)),
        });
        if self.verb == HelmVerb::Uninstall {
            return Ok(vec![account]);
        }
        check_sizes(archive, values)?;
        let metadata = self.metadata(&self.input_name(), Some(job_uid));
        let chart_key = format!("{}.tgz.base64", self.release);
        Ok(vec![
            account,
            json!({
                "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "immutable": true, "type": "Opaque",
                // JSON is YAML, and no writer of ours can quote it wrongly.
                "data": { "values.yaml": STANDARD.encode(values.to_string()) },
            }),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": true,
                "data": { chart_key: STANDARD.encode(archive) },
            }),
        ])
    }

    /// Rights of the Job. An object without a namespace cannot be owned by one with a namespace, so it is deleted by the planner.
    pub fn binding(&self) -> Value {
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": { "name": self.job_name(), "labels": self.labels() },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin" },
            "subjects": [{ "kind": "ServiceAccount", "name": self.job_name(), "namespace": JOB_NAMESPACE }],
        })
    }
}

/// The first `count` bytes of an ASCII name.
fn shorten(text: &str, count: usize) -> &str {
    text.get(..count).unwrap_or(text)
}

/// A directory in the home of the image's user.
fn home(directory: &str) -> String {
    ["", "home", HOME, directory].join("/")
}
