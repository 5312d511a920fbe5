//! Add-ons: runs of Helm in the cluster, from the suspended Job to its removal.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use helm_charts::Sha256Digest;
use mainstay_kube::{
    Class, Cluster, Deletion, Error, ListScope, ObjectRef, OnConflict, Propagation, ReleaseRevision, newest_revisions,
};
use mainstay_plan::addon::job::JobBinding;
use mainstay_plan::addon::job::{
    JobBlocker, JobPreconditions, LeaseVerdict, job_blocker, job_nodes, judge_lease, stale_bindings,
};
use mainstay_plan::addon::objects::{HelmRun, JOB_NAMESPACE};
use mainstay_plan::addon::ready::{self, AwaitedWorkload};
use mainstay_plan::addon::release::{DesiredRelease, HelmStatus, JobPhase, Revision, is_equal};
use mainstay_plan::addon::run::{ReleaseCleanup, ReleaseRun, ReleaseWatch};
use mainstay_plan::addon::values::differing_keys;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::clients::Clients;
use crate::failure::{Failure, FailureKind};
use crate::guest::StepContext;
use crate::observe::addons;
use crate::wait::{self, WaitStatus};

/// From the founding of etcd to an API server that takes Jobs.
const API_STARTS: Duration = Duration::from_secs(900);
/// Helm waits for hooks for five minutes.
const HELM_RUNS: Duration = Duration::from_secs(900);
/// How long the same problem of a pod is watched before the step gives up. The next look holds it, with its reason.
const PROBLEM_PATIENCE: Duration = Duration::from_secs(60);
const CLEANED: Duration = Duration::from_secs(420);
const ROLLED_OUT: Duration = Duration::from_secs(900);
/// Leases of leaders are renewed every two seconds and last for fifteen.
const LEADER_FRESH: i64 = 15;

fn failed(what: impl Into<String>, error: &Error) -> Failure {
    let kind = match error.class() {
        Class::Unavailable => FailureKind::Unreachable,
        Class::Denied => FailureKind::Denied,
        Class::NotFound | Class::Conflict | Class::Gone | Class::Other => FailureKind::Failed,
    };
    let failure = Failure::new(kind, what).why(error.to_string());
    match error.remedy() {
        Some(remedy) => failure.help(remedy),
        None => failure,
    }
}

fn job_ref(name: &str) -> ObjectRef {
    ObjectRef::new("batch/v1", "Job", Some(JOB_NAMESPACE), name)
}

fn binding_ref(name: &str) -> ObjectRef {
    ObjectRef::new("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", None, name)
}

/// Gives the run to the cluster as soon as a Job can work there.
pub async fn start(ctx: StepContext<'_>, clients: &Clients, run: &ReleaseRun) -> Result<(), Failure> {
    let release = &run.wanted.name;
    // What failed in the last round says nothing about this one.
    ctx.kube.set_network_fault(None);
    let what = format!("the cluster did not get ready for the Job that installs {release}");
    let api = wait::until(ctx.jitter, ctx.progress, &what, API_STARTS, async || {
        let api = match ctx.kube.answering(&run.ask, ctx.addresses).await {
            Ok(api) => api,
            Err(why) => return Ok(WaitStatus::Waiting(why)),
        };
        Ok(match blocker(&api, clients, run).await {
            Ok(None) => WaitStatus::Done(api),
            Ok(Some(why)) => WaitStatus::Waiting(why),
            Err(error) => WaitStatus::Waiting(error.to_string()),
        })
    })
    .await?;
    let helm = run.helm(clients.creator());
    let name = helm.job_name();
    let sent = |what: &str, error: Error| failed(format!("{what} of {release} could not be written"), &error);
    if let Some(namespace) = &run.namespace {
        let applied = api.apply(namespace, OnConflict::Report).await;
        applied.map_err(|error| sent("the namespace", error))?;
    }
    let job = match api.get(&job_ref(&name)).await.map_err(|error| sent("the Job", error))? {
        Some(job) => job,
        None => api.create(&helm.job()).await.map_err(|error| sent("the Job", error))?,
    };
    match addons::phase(&job, &[], None) {
        // It was released already: this step was done before.
        JobPhase::Active { .. } => return Ok(()),
        JobPhase::Suspended => {}
        JobPhase::Complete(_) | JobPhase::Failed(_) => {
            return Err(Failure::stale_plan(format!("{name} has ended already")));
        }
    }
    let uid = job["metadata"]["uid"].as_str().unwrap_or_default().to_owned();
    take_lease(&api, &helm, &uid).await?;
    give_inputs(&api, clients, run, &helm, &uid).await?;
    let released = api.merge(&job_ref(&name), &HelmRun::release_patch(&uid)).await;
    released.map(drop).map_err(|error| sent("the Job", error))
}

/// Why a Job could not work yet.
async fn blocker(api: &Cluster, clients: &Clients, run: &ReleaseRun) -> Result<Option<String>, Error> {
    let now = clients.env.wall.now();
    let root_ca = ObjectRef::new("v1", "ConfigMap", Some(JOB_NAMESPACE), "kube-root-ca.crt");
    let (manager, scheduler, root_ca, nodes) = tokio::join!(
        api.lease(JOB_NAMESPACE, "kube-controller-manager"),
        api.lease(JOB_NAMESPACE, "kube-scheduler"),
        api.get(&root_ca),
        addons::job_nodes(api, now),
    );
    let is_held = |lease: Option<mainstay_kube::NodeLease>| {
        let renewed = lease.and_then(|lease| lease.renewed);
        renewed.is_some_and(|renewed| now.as_second() - renewed.as_second() <= LEADER_FRESH)
    };
    let mut nodes = nodes?;
    nodes.retain(|node| run.nodes.contains(&node.name));
    // The planner has chosen them by what their guests say.
    nodes.iter_mut().for_each(|node| node.guest_answers = true);
    let seen = JobPreconditions {
        scheduler_lease_held: is_held(scheduler?),
        controller_manager_lease_held: is_held(manager?),
        root_ca_published: root_ca?.is_some(),
        nodes: job_nodes(&nodes),
    };
    let blocked = job_blocker(&seen).map(|blocker| match blocker {
        JobBlocker::Scheduler => "no scheduler works yet",
        JobBlocker::ControllerManager => "no controller manager works yet",
        JobBlocker::RootCa => "the certificate of the API server is not published yet",
        JobBlocker::NoNode => "no control plane has registered yet",
    });
    if let Some(why) = blocked {
        return Ok(Some(why.to_owned()));
    }
    if run.before_network.is_some() || has_free_node(api).await? {
        return Ok(None);
    }
    Ok(Some("no node takes ordinary pods yet".to_owned()))
}

/// A node that is ready and repels no pod.
async fn has_free_node(api: &Cluster) -> Result<bool, Error> {
    let nodes = api.nodes().await?;
    let is_free =
        |node: &mainstay_kube::Node| node.is_ready() && !node.taints.iter().any(|taint| taint.effect != "PreferNoSchedule");
    Ok(nodes.iter().any(is_free))
}

/// One Job per release: the holder is the UID of a Job, and one whose Job is gone or has ended is replaced.
async fn take_lease(api: &Cluster, helm: &HelmRun<'_>, uid: &str) -> Result<(), Failure> {
    let lost = |error: Error| failed(format!("the lease of {} could not be taken", helm.release), &error);
    let name = helm.lease_name();
    let lease = ObjectRef::new("coordination.k8s.io/v1", "Lease", Some(JOB_NAMESPACE), &name);
    let held = api.get(&lease).await.map_err(lost)?;
    let Some(held) = held else {
        let object = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": name, "namespace": JOB_NAMESPACE },
            "spec": { "holderIdentity": uid },
        });
        return api.create(&object).await.map(drop).map_err(lost);
    };
    let jobs = api
        .list("batch/v1", "Job", &ListScope::default().in_namespace(JOB_NAMESPACE))
        .await;
    let unfinished: BTreeSet<String> = jobs
        .map_err(lost)?
        .iter()
        .filter(|job| matches!(addons::phase(job, &[], None), JobPhase::Active { .. } | JobPhase::Suspended))
        .filter_map(|job| job["metadata"]["uid"].as_str().map(str::to_owned))
        .collect();
    let holder = held.pointer("/spec/holderIdentity").and_then(Value::as_str);
    if let LeaseVerdict::Held { by } = judge_lease(holder, uid, &unfinished) {
        return Err(Failure::stale_plan(format!("another Job works on {}", helm.release)).why(format!("its UID is {by}")));
    }
    // The version makes it a conflict if another run takes it at the same time.
    let version = &held["metadata"]["resourceVersion"];
    let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "holderIdentity": uid } });
    api.merge(&lease, &patch).await.map(drop).map_err(lost)
}

/// Account, values, chart and rights of the Job. What exists already is made to belong to this Job.
async fn give_inputs(api: &Cluster, clients: &Clients, run: &ReleaseRun, helm: &HelmRun<'_>, uid: &str) -> Result<(), Failure> {
    let archive = if run.removes() {
        bytes::Bytes::new()
    } else {
        clients.charts.archive(&run.archive)?
    };
    let objects = helm
        .owned_objects(uid, &archive, &run.wanted.values)
        .map_err(|_| Failure::refused(format!("the inputs of {} are too large for the cluster", run.wanted.name)))?;
    for object in objects.into_iter().chain([helm.binding()]) {
        let applied = api.apply(&object, OnConflict::Force).await.map_err(|error| {
            let kind = object["kind"].as_str().unwrap_or_default();
            failed(format!("the {kind} for {} could not be written", run.wanted.name), &error)
        })?;
        if object["kind"] == "ConfigMap" {
            check_chart(run, &applied)?;
        }
    }
    Ok(())
}

/// What the API server keeps is the chart that was planned.
fn check_chart(run: &ReleaseRun, kept: &Value) -> Result<(), Failure> {
    let key = format!("{}.tgz.base64", run.wanted.name);
    let bytes = kept["data"][&key].as_str().and_then(|text| STANDARD.decode(text).ok());
    if bytes.is_some_and(|bytes| Sha256Digest::of(&bytes).hex() == run.archive) {
        return Ok(());
    }
    Err(Failure::conflict(format!(
        "the cluster keeps another chart under the name of that of {}",
        run.wanted.name
    ))
    .help("delete that ConfigMap in kube-system and run `mainstay up` again"))
}

/// What one look at a run showed.
enum RunState {
    Done,
    Waiting { why: String, is_problem: bool },
    Ended(String),
}

/// Waits until the release is as wanted. The Job alone proves nothing: its script ends well after some failures too.
pub async fn await_release(ctx: StepContext<'_>, clients: &Clients, watch: &ReleaseWatch) -> Result<(), Failure> {
    if watch.brings_network {
        ctx.kube.set_network_fault(None);
    }
    let ended = await_content(ctx, clients, watch).await;
    if watch.brings_network {
        let why = ended.as_ref().err();
        ctx.kube
            .set_network_fault(why.map(|failure| failure.why.clone().unwrap_or_else(|| failure.what.clone())));
    }
    ended
}

async fn await_content(ctx: StepContext<'_>, clients: &Clients, watch: &ReleaseWatch) -> Result<(), Failure> {
    let release = &watch.wanted.name;
    let what = if watch.until_gone {
        format!("{release} was not removed")
    } else {
        format!("{release} was not installed")
    };
    let mut problem_since: Option<Instant> = None;
    wait::until(ctx.jitter, ctx.progress, &what, HELM_RUNS, async || {
        let api = match ctx.kube.answering(&watch.ask, ctx.addresses).await {
            Ok(api) => api,
            Err(why) => return Ok(WaitStatus::Waiting(why)),
        };
        let (why, is_problem) = match look(&api, clients, watch).await {
            Ok(RunState::Done) => return Ok(WaitStatus::Done(())),
            Ok(RunState::Ended(why)) => {
                return Err(Failure::new(FailureKind::Failed, format!("Helm could not install {release}")).why(why));
            }
            Ok(RunState::Waiting { why, is_problem }) => (why, is_problem),
            Err(error) => (error.to_string(), false),
        };
        if !is_problem {
            problem_since = None;
        } else if problem_since.get_or_insert_with(Instant::now).elapsed() >= PROBLEM_PATIENCE {
            return Err(Failure::new(FailureKind::Failed, format!("the Job of {release} cannot run")).why(why));
        }
        Ok(WaitStatus::Waiting(why))
    })
    .await
}

async fn look(api: &Cluster, clients: &Clients, watch: &ReleaseWatch) -> Result<RunState, Error> {
    // The Job is read first: a release that is written after it has ended is not written by it.
    let job = api.get(&job_ref(&watch.job)).await?;
    let record = newest(api, watch).await?;
    let is_gone = record.is_none();
    // A revision that cannot be read is there all the same.
    let newest = record.and_then(|record| addons::revision(&record, clients.env.wall.now()).ok());
    let is_as_wanted = newest.as_ref().is_some_and(|revision| is_equal(&watch.wanted, revision));
    let is_done = if watch.until_gone { is_gone } else { is_as_wanted };
    if is_done {
        return Ok(RunState::Done);
    }
    let Some(job) = job else {
        return Ok(RunState::Ended(
            "its Job is gone, and the release is not as wanted".to_owned(),
        ));
    };
    let pods = api.pods(Some(JOB_NAMESPACE), &format!("job-name={}", watch.job)).await?;
    let recorded = newest.as_ref().map(|revision| revision.description.as_str());
    Ok(match addons::phase(&job, &pods.iter().collect::<Vec<_>>(), recorded) {
        JobPhase::Complete(failure) | JobPhase::Failed(failure) => RunState::Ended(match &newest {
            Some(revision) if revision.status == HelmStatus::Deployed => not_as_wanted(&watch.wanted, revision),
            _ => failure.text.trim().to_owned(),
        }),
        JobPhase::Active {
            problem: Some(problem), ..
        } => RunState::Waiting {
            why: problem,
            is_problem: true,
        },
        JobPhase::Active { .. } => RunState::Waiting {
            why: newest.map_or_else(
                || "Helm has not begun yet".to_owned(),
                |revision| format!("the release is {}", revision.status.as_str()),
            ),
            is_problem: false,
        },
        JobPhase::Suspended => RunState::Ended("its Job was suspended".to_owned()),
    })
}

/// Helm has ended well, and the release is still another one.
fn not_as_wanted(wanted: &DesiredRelease, revision: &Revision) -> String {
    let differs = differing_keys(&wanted.values, &revision.config);
    if !differs.is_empty() {
        return format!("the installed values differ at {}", differs.join(", "));
    }
    format!(
        "{} {} is installed, and it was not installed by this Job",
        revision.chart, revision.version
    )
}

async fn newest(api: &Cluster, watch: &ReleaseWatch) -> Result<Option<ReleaseRevision>, Error> {
    let revisions = api.release_revisions(Some(&watch.wanted.namespace)).await?;
    let own = revisions.into_iter().filter(|revision| revision.release == watch.wanted.name);
    Ok(newest_revisions(own.collect()).pop())
}

/// Deletes what finished runs left. Rights go first; a Job or pod that runs keeps them.
pub async fn clean(ctx: StepContext<'_>, cleanup: &ReleaseCleanup) -> Result<(), Failure> {
    let lost = |error: Error| failed("what Helm's Jobs left could not be removed", &error);
    wait::until(
        ctx.jitter,
        ctx.progress,
        "Helm's Jobs were not removed",
        CLEANED,
        async || {
            let api = match ctx.kube.answering(&cleanup.ask, ctx.addresses).await {
                Ok(api) => api,
                Err(why) => return Ok(WaitStatus::Waiting(why)),
            };
            let scope = ListScope::default().in_namespace(JOB_NAMESPACE);
            let (jobs, pods) = tokio::join!(api.list("batch/v1", "Job", &scope), api.pods(Some(JOB_NAMESPACE), "job-name"));
            let (jobs, pods) = (jobs.map_err(lost)?, pods.map_err(lost)?);
            let live = addons::live_jobs(&jobs, &pods);
            let named = |name: &String| JobBinding {
                name: name.clone(),
                job: name.clone(),
            };
            let bindings: Vec<JobBinding> = cleanup.bindings.iter().map(named).collect();
            for binding in stale_bindings(&bindings, &live) {
                let gone = api.delete(&binding_ref(&binding.name), Propagation::Background, None).await;
                gone.map_err(lost)?;
            }
            let mut left = None;
            for name in &cleanup.jobs {
                left = remove_job(&api, &jobs, name).await.map_err(lost)?.or(left);
            }
            Ok(left.map_or(WaitStatus::Done(()), WaitStatus::Waiting))
        },
    )
    .await
}

/// Deletes a Job that has ended or never ran, with its pods and inputs. Returns what is still there.
async fn remove_job(api: &Cluster, jobs: &[Value], name: &str) -> Result<Option<String>, Error> {
    let Some(job) = jobs.iter().find(|job| job["metadata"]["name"] == name) else {
        return Ok(None);
    };
    if matches!(addons::phase(job, &[], None), JobPhase::Active { .. }) {
        return Ok(Some(format!("{name} still runs")));
    }
    let uid = job["metadata"]["uid"].as_str();
    match api.delete(&job_ref(name), Propagation::Foreground, uid).await? {
        Deletion::Absent => Ok(None),
        Deletion::Started => Ok(Some(format!("{name} is being deleted"))),
    }
}

/// Waits until the workloads of an add-on are rolled out.
pub async fn await_workloads(
    ctx: StepContext<'_>,
    name: &str,
    workloads: &[AwaitedWorkload],
    ask: &[String],
) -> Result<(), Failure> {
    let what = format!("{name} did not become ready");
    wait::until(ctx.jitter, ctx.progress, &what, ROLLED_OUT, async || {
        let api = match ctx.kube.answering(ask, ctx.addresses).await {
            Ok(api) => api,
            Err(why) => return Ok(WaitStatus::Waiting(why)),
        };
        Ok(match addons::workloads(&api).await {
            Ok(seen) => ready::missing(workloads, &seen).map_or(WaitStatus::Done(()), WaitStatus::Waiting),
            Err(error) => WaitStatus::Waiting(error.to_string()),
        })
    })
    .await
}
