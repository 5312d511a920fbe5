//! Add-ons as they are: releases, Jobs that install them, their workloads and owners; and the charts that the file needs.

use std::collections::{BTreeMap, BTreeSet};

use futures::future::join_all;
use jiff::Timestamp;
use mainstay_kube::{
    Cluster, Error, ListScope, ObjectOwner, Pod, Readiness, ReleaseRevision, newest_revisions, owners, readiness,
};
use mainstay_plan::addon::job::{JobBinding, JobNode, LiveJobs};
use mainstay_plan::addon::objects::{
    CLUSTER_LABEL, CREATOR_ANNOTATION, HASH_ANNOTATION, JOB_NAMESPACE, NAMESPACE_ANNOTATION, RELEASE_LABEL,
};
use mainstay_plan::addon::ready::{WorkloadKey, WorkloadStatus};
use mainstay_plan::addon::release::{
    GitOpsTool, HelmStatus, JobFailure, JobFailureKind, JobPhase, ObservedRelease, ReleaseJob, Revision,
};
use mainstay_plan::addon::seen::{AddonCluster, ObservedAddons, ReleaseKey};
use mainstay_plan::addon::wanted::{ChartWish, chart_wishes};
use mainstay_plan::{Kubernetes, Seen};
use mainstay_spec::Spec;
use serde_json::Value;
use uuid::Uuid;

use crate::addresses::AddressBook;
use crate::clients::Clients;
use crate::failure::Failure;

/// A pod network that Talos and k3s bring themselves.
const OTHER_NETWORK: &str = "kube-flannel";

/// Looks at the add-ons of a file. A file without any costs nothing.
pub async fn look(
    clients: &Clients,
    spec: &Spec,
    cluster_id: Option<Uuid>,
    addresses: &AddressBook,
    kubernetes: &Seen<Kubernetes>,
) -> Result<ObservedAddons, Failure> {
    let wishes = chart_wishes(spec);
    // The lock file remembers add-ons that left the file.
    if wishes.is_empty() && clients.charts.read_lock()?.charts.is_empty() {
        return Ok(ObservedAddons::default());
    }
    let control_planes: Vec<String> = spec.control_planes().map(|machine| machine.name.to_string()).collect();
    let cluster = match (kubernetes, cluster_id) {
        (Seen::Unknown(why), _) => Seen::Unknown(why.clone()),
        (Seen::No, _) | (_, None) => Seen::No,
        (Seen::Yes(_), Some(id)) => match clients.kube.answering(&control_planes, addresses).await {
            Ok(api) => read(&api, &wishes, id, clients.env.wall.now())
                .await
                .map_or_else(|error| Seen::Unknown(error.to_string()), Seen::Yes),
            Err(why) => Seen::Unknown(why),
        },
    };
    let installed = |wish: &ChartWish| {
        let release = cluster.yes()?.releases.get(&wish.key)?;
        release.newest.as_ref().map(|revision| revision.version.clone())
    };
    let asked = wishes.iter().map(|wish| {
        let installed = installed(wish);
        async move {
            clients
                .charts
                .fact(wish, installed.as_deref())
                .await
                .map(|fact| (wish.name.clone(), fact))
        }
    });
    let charts = join_all(asked).await.into_iter().collect::<Result<_, _>>()?;
    Ok(ObservedAddons { charts, cluster })
}

/// Everything of one kind of question at once.
async fn read(api: &Cluster, wishes: &[ChartWish], cluster_id: Uuid, now: Timestamp) -> Result<AddonCluster, Error> {
    let ours = format!("{CLUSTER_LABEL}={cluster_id}");
    let all = ListScope::default();
    let of_jobs = ListScope::labels(&ours).in_namespace(JOB_NAMESPACE);
    let by_label = ListScope::labels(&ours);
    let (revisions, jobs, pods, bindings, objects, gitops, nodes) = tokio::join!(
        api.release_revisions(None),
        api.list("batch/v1", "Job", &of_jobs),
        api.pods(Some(JOB_NAMESPACE), &ours),
        api.list("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", &by_label),
        workload_objects(api),
        gitops_objects(api, &all),
        job_nodes(api, now),
    );
    let (objects, pods, jobs) = (objects?, pods?, jobs?);
    let releases = newest_revisions(revisions?);
    let seen = ClusterObjects {
        revisions: &releases,
        jobs: &jobs,
        pods: &pods,
        objects: &objects,
        gitops: &gitops,
        now,
    };
    Ok(AddonCluster {
        releases: seen.releases(wishes),
        nodes: nodes?,
        bindings: bindings?.iter().map(binding).collect(),
        live: live_jobs(&jobs, &pods),
        has_other_network: objects
            .iter()
            .any(|object| object["kind"] == "DaemonSet" && object["metadata"]["name"] == OTHER_NETWORK),
        workloads: objects.iter().filter_map(workload).collect(),
    })
}

/// Lists from which releases are read.
struct ClusterObjects<'a> {
    revisions: &'a [ReleaseRevision],
    jobs: &'a [Value],
    pods: &'a [Pod],
    objects: &'a [Value],
    gitops: &'a Result<Vec<Value>, Error>,
    now: Timestamp,
}

impl ClusterObjects<'_> {
    /// The releases of the file, and those of ours that are not in it.
    fn releases(&self, wishes: &[ChartWish]) -> BTreeMap<ReleaseKey, ObservedRelease> {
        let ours = self.revisions.iter().filter(|record| {
            revision(record, self.now)
                .is_ok_and(|revision| revision.is_described_as_ours() && revision.status == HelmStatus::Deployed)
        });
        let key = |record: &ReleaseRevision| ReleaseKey {
            namespace: record.namespace.clone(),
            name: record.release.clone(),
        };
        let mut releases: BTreeMap<_, _> = ours.map(key).map(|key| (key.clone(), self.release(&key, None))).collect();
        releases.extend(
            wishes
                .iter()
                .map(|wish| (wish.key.clone(), self.release(&wish.key, Some(wish)))),
        );
        releases
    }

    fn release(&self, key: &ReleaseKey, wish: Option<&ChartWish>) -> ObservedRelease {
        let record = self
            .revisions
            .iter()
            .find(|record| record.namespace == key.namespace && record.release == key.name);
        let newest = record.map(|record| revision(record, self.now));
        let changed = record.and_then(changed_at);
        let headline: Vec<&Value> = wish.into_iter().flat_map(|wish| self.headline(wish)).collect();
        let (helm_release, application, unread) = match self.gitops {
            Ok(objects) => (named(objects, "HelmRelease", key), named(objects, "Application", key), None),
            Err(error) => (None, None, Some(error.to_string())),
        };
        let jobs = self.jobs.iter().filter(|job| is_for(job, key));
        ObservedRelease {
            unread: unread.or_else(|| match &newest {
                Some(Err(why)) => Some(why.clone()),
                _ => None,
            }),
            helm_release,
            application,
            mark: headline.iter().find_map(|object| mark(object)),
            has_objects: !headline.is_empty(),
            jobs: jobs.map(|job| self.job(job, changed, newest.as_ref())).collect(),
            newest: newest.and_then(Result::ok),
        }
    }

    /// The main objects of an add-on.
    fn headline(&self, wish: &ChartWish) -> impl Iterator<Item = &Value> {
        let is_of = |object: &&Value| {
            object["metadata"]["namespace"] == wish.key.namespace
                && wish
                    .workloads
                    .iter()
                    .any(|workload| object["kind"] == workload.kind.as_str() && object["metadata"]["name"] == workload.name)
        };
        self.objects.iter().filter(is_of)
    }

    fn job(&self, job: &Value, changed: Option<i64>, newest: Option<&Result<Revision, String>>) -> ReleaseJob {
        let text = |pointer: &str| job.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
        let annotation = |key: &str| job["metadata"]["annotations"][key].as_str().unwrap_or_default().to_owned();
        let name = text("/metadata/name");
        let started = job.pointer("/status/startTime").and_then(Value::as_str);
        let started = started
            .and_then(|time| time.parse::<Timestamp>().ok())
            .map(Timestamp::as_second);
        let pods: Vec<&Pod> = self.pods.iter().filter(|pod| is_of_job(pod, &name)).collect();
        // Helm's own words are in the release where the entry script hides its exit code.
        let recorded = newest
            .and_then(|newest| newest.as_ref().ok())
            .filter(|revision| revision.status == HelmStatus::Failed)
            .map(|revision| revision.description.as_str());
        ReleaseJob {
            attempt: name.rsplit('-').next().and_then(|suffix| suffix.parse().ok()).unwrap_or(1),
            uid: text("/metadata/uid"),
            hash: annotation(HASH_ANNOTATION),
            creator: annotation(CREATOR_ANNOTATION),
            phase: phase(job, &pods, recorded),
            wrote_newest: started.zip(changed).is_some_and(|(started, changed)| changed >= started),
            name,
        }
    }
}

fn is_for(job: &Value, key: &ReleaseKey) -> bool {
    let label = job["metadata"]["labels"][RELEASE_LABEL].as_str().unwrap_or_default();
    let namespace = &job["metadata"]["annotations"][NAMESPACE_ANNOTATION];
    !label.is_empty() && key.name.starts_with(label) && *namespace == key.namespace.as_str()
}

fn is_of_job(pod: &Pod, job: &str) -> bool {
    pod.controller
        .as_ref()
        .is_some_and(|(kind, name)| kind == "Job" && name == job)
}

fn has_condition(object: &Value, kind: &str) -> bool {
    let conditions = object["status"]["conditions"].as_array();
    conditions
        .into_iter()
        .flatten()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}

/// How far a Job is, from the Job and its pods.
pub fn phase(job: &Value, pods: &[&Pod], recorded: Option<&str>) -> JobPhase {
    let problem = || pods.iter().find_map(|pod| pod.problem.as_ref());
    let failure = || {
        let told = problem()
            .map(|problem| problem.message.clone())
            .filter(|text| !text.trim().is_empty());
        let text = told.or_else(|| recorded.map(str::to_owned)).unwrap_or_default();
        JobFailure {
            kind: JobFailureKind::classify(&text),
            text,
        }
    };
    if has_condition(job, "Complete") {
        return JobPhase::Complete(failure());
    }
    if has_condition(job, "Failed") {
        return JobPhase::Failed(failure());
    }
    if job.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        return JobPhase::Suspended;
    }
    JobPhase::Active {
        problem: problem().map(|problem| format!("{}: {}", problem.reason, problem.message)),
        has_live_pod: pods.iter().any(|pod| !pod.is_finished()),
    }
}

/// When Helm last wrote a revision, in seconds since 1970.
fn changed_at(record: &ReleaseRevision) -> Option<i64> {
    record
        .labels
        .get("modifiedAt")
        .or_else(|| record.labels.get("createdAt"))?
        .parse()
        .ok()
}

/// A revision as Helm recorded it.
pub fn revision(record: &ReleaseRevision, now: Timestamp) -> Result<Revision, String> {
    let release = helm_charts::Release::decode(record.payload().expose())
        .map_err(|error| format!("revision {} of {} cannot be read: {error}", record.revision, record.release))?;
    let age = changed_at(record).map_or(0, |changed| now.as_second().saturating_sub(changed));
    Ok(Revision {
        number: release.revision,
        status: HelmStatus::parse(release.status.as_str()),
        chart: release.chart,
        version: release.chart_version,
        config: release.config,
        description: release.description,
        age: u64::try_from(age).unwrap_or_default(),
    })
}

fn mark(object: &Value) -> Option<GitOpsTool> {
    owners(object).into_iter().find_map(|owner| match owner {
        ObjectOwner::FluxHelmRelease { .. } | ObjectOwner::FluxKustomization { .. } => Some(GitOpsTool::Flux),
        ObjectOwner::ArgoCd { .. } => Some(GitOpsTool::ArgoCd),
        ObjectOwner::Helm { .. } => None,
    })
}

/// The GitOps object that names this release in this namespace, as `namespace/name`.
fn named(objects: &[Value], kind: &str, key: &ReleaseKey) -> Option<String> {
    let names = |object: &&Value| {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let (namespace, name) = (
            text("/metadata/namespace").unwrap_or_default(),
            text("/metadata/name").unwrap_or_default(),
        );
        let (release, target) = if kind == "HelmRelease" {
            let target = text("/spec/targetNamespace");
            let default = target.map_or_else(|| name.to_owned(), |target| format!("{target}-{name}"));
            let release = text("/spec/releaseName").map_or(default, str::to_owned);
            (release, target.unwrap_or(namespace))
        } else {
            let release = text("/spec/source/helm/releaseName").unwrap_or(name).to_owned();
            (release, text("/spec/destination/namespace").unwrap_or_default())
        };
        object["kind"] == kind && release == key.name && target == key.namespace
    };
    let found = objects.iter().find(names)?;
    let text = |pointer: &str| found.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    Some(format!("{}/{}", text("/metadata/namespace"), text("/metadata/name")))
}

async fn gitops_objects(api: &Cluster, all: &ListScope) -> Result<Vec<Value>, Error> {
    let (flux, argo) = tokio::join!(
        api.list("helm.toolkit.fluxcd.io/v2", "HelmRelease", all),
        api.list("argoproj.io/v1alpha1", "Application", all)
    );
    Ok([flux?, argo?].concat())
}

async fn workload_objects(api: &Cluster) -> Result<Vec<Value>, Error> {
    let all = ListScope::default();
    let (deployments, daemon_sets, stateful_sets) = tokio::join!(
        api.list("apps/v1", "Deployment", &all),
        api.list("apps/v1", "DaemonSet", &all),
        api.list("apps/v1", "StatefulSet", &all)
    );
    Ok([deployments?, daemon_sets?, stateful_sets?].concat())
}

/// Every workload of the cluster.
pub async fn workloads(api: &Cluster) -> Result<BTreeMap<WorkloadKey, WorkloadStatus>, Error> {
    Ok(workload_objects(api).await?.iter().filter_map(workload).collect())
}

fn workload(object: &Value) -> Option<(WorkloadKey, WorkloadStatus)> {
    let (kind, counter) = match object["kind"].as_str()? {
        "Deployment" => ("Deployment", "availableReplicas"),
        "DaemonSet" => ("DaemonSet", "numberAvailable"),
        "StatefulSet" => ("StatefulSet", "readyReplicas"),
        _ => return None,
    };
    let key = WorkloadKey {
        kind,
        namespace: object["metadata"]["namespace"].as_str()?.to_owned(),
        name: object["metadata"]["name"].as_str()?.to_owned(),
    };
    let missing = match readiness(object) {
        Readiness::Ready => None,
        Readiness::Waiting(why) | Readiness::Failed(why) => Some(why),
    };
    let available = object["status"][counter].as_u64().unwrap_or_default();
    Some((key, WorkloadStatus { missing, available }))
}

fn binding(object: &Value) -> JobBinding {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    JobBinding { job: name.clone(), name }
}

/// Jobs that still need their rights.
pub fn live_jobs(jobs: &[Value], pods: &[Pod]) -> LiveJobs {
    let is_finished = |job: &&Value| has_condition(job, "Complete") || has_condition(job, "Failed");
    let name = |job: &Value| job["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    let with_running_pod: BTreeSet<String> = pods
        .iter()
        .filter(|pod| !pod.is_finished())
        .filter_map(|pod| pod.controller.as_ref().map(|(_, name)| name.clone()))
        .collect();
    LiveJobs {
        unfinished: jobs.iter().filter(|job| !is_finished(job)).map(name).collect(),
        with_running_pod,
    }
}

/// Control-plane nodes, as far as Kubernetes tells. Whether their guest answers is known elsewhere.
pub async fn job_nodes(api: &Cluster, now: Timestamp) -> Result<Vec<JobNode>, Error> {
    let leases = ListScope::default().in_namespace("kube-node-lease");
    let all = ListScope::default();
    let (nodes, leases) = tokio::join!(
        api.list("v1", "Node", &all),
        api.list("coordination.k8s.io/v1", "Lease", &leases)
    );
    let leases = leases?;
    let age = |name: &str| {
        let lease = leases.iter().find(|lease| lease["metadata"]["name"] == name)?;
        let renewed: Timestamp = lease.pointer("/spec/renewTime")?.as_str()?.parse().ok()?;
        u64::try_from(now.as_second().saturating_sub(renewed.as_second()))
            .ok()
            .or(Some(0))
    };
    let node = |node: &Value| {
        let name = node["metadata"]["name"].as_str()?.to_owned();
        // The value of the label differs between distributions.
        let has_label = !node["metadata"]["labels"]["node-role.kubernetes.io/control-plane"].is_null();
        has_label.then(|| JobNode {
            lease_age_seconds: age(&name),
            guest_answers: false,
            is_cordoned: node.pointer("/spec/unschedulable") == Some(&Value::Bool(true)),
            in_turn: false,
            has_control_plane_label: true,
            name,
        })
    };
    Ok(nodes?.iter().filter_map(node).collect())
}
