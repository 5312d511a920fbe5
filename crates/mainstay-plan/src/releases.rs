//! The steps of add-ons: charts before the first change, the pod network before nodes are awaited, everything else after.

use std::collections::BTreeMap;

use crate::action::Action;
use crate::addon::catalogue::{CiliumHop, HopRefusal, LateInstall, Layer, cilium_hop, job_endpoint};
use crate::addon::job::{JobNode, job_nodes, stale_bindings};
use crate::addon::objects::{ARCHIVE_LIMIT, HelmVerb, VALUES_LIMIT};
use crate::addon::ready::{self, AwaitedWorkload, MachineCounts};
use crate::addon::release::{ObservedRelease, ReleaseDecision, ReleaseHold, ReleaseOwner, WaitReason, decide as decide_release};
use crate::addon::run::{ChartRef, ReleaseCleanup, ReleaseRun, ReleaseWatch};
use crate::addon::seen::{AddonCluster, ReleaseKey};
use crate::addon::values::referenced_secrets;
use crate::addon::wanted::{AddonContent, WantedAddon};
use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::etcd::{EtcdFacts, EtcdPresence};
use crate::guest::{GuestStatus, Guests};
use crate::observed::{Guest, Seen};
use crate::plan::{HoldReason, Refusal, RefusalKind};
use crate::step::{StepId, Subject};

/// An add-on of the file, and what is to be done with it.
pub(crate) struct Decided<'a> {
    addon: &'a WantedAddon,
    verdict: ReleaseVerdict<'a>,
}

enum ReleaseVerdict<'a> {
    Known {
        content: &'a AddonContent,
        observed: Box<ObservedRelease>,
        decision: ReleaseDecision,
    },
    Unknown(String),
    /// Whether there is a cluster is not known; that is held elsewhere.
    NotAsked,
}

/// The last step of the fetching of each chart, by add-on.
pub(crate) type FetchedCharts<'a> = BTreeMap<&'a str, StepId>;

/// Where the pod network comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CniState {
    /// The distribution brings it, or there is none.
    NotOurs,
    Installed,
    /// This step lets it be installed.
    Comes(StepId),
    /// It cannot be installed now, so no node becomes ready.
    Held,
}

/// The add-ons of the file with what is decided about each. Its methods are the passes.
pub(crate) struct AddonPass<'a> {
    ctx: Context<'a>,
    decided: Vec<Decided<'a>>,
    fetched: FetchedCharts<'a>,
}

/// What other passes have planned before.
#[derive(Clone, Copy)]
pub(crate) struct Underway<'a, 'b> {
    pub guests: &'b Guests<'a>,
    /// The step that founds the cluster, if this plan does.
    pub bootstrap: Option<StepId>,
    /// The end of each machine's turn.
    pub turned: &'b StepByMachine<'a>,
}

/// What the steps of all releases share.
#[derive(Clone, Copy)]
struct ReleaseContext<'a, 'b> {
    ctx: Context<'a>,
    fetched: &'b FetchedCharts<'a>,
    counts: MachineCounts,
    nodes: &'b Result<Vec<String>, HoldReason>,
    is_founded: bool,
}

/// What a release waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ReleaseState {
    /// This step lets Helm work.
    Started(StepId),
    /// Nothing starts: it is installed, being installed, or another owner's.
    Settled,
    Held,
}

fn verdict<'a>(ctx: Context<'a>, addon: &'a WantedAddon, etcd: &EtcdFacts<'_>) -> ReleaseVerdict<'a> {
    let content = match &addon.content {
        Ok(content) => content,
        Err(why) => return ReleaseVerdict::Unknown(why.clone()),
    };
    let observed = match (&etcd.presence, &ctx.observed.addons.cluster) {
        // Without etcd there is no API server, and nothing can be installed.
        (EtcdPresence::NotBootstrapped, _) => ObservedRelease::default(),
        (EtcdPresence::Exists, Seen::Yes(cluster)) => cluster.releases.get(&addon.key).cloned().unwrap_or_default(),
        (EtcdPresence::Exists, Seen::Unknown(why)) => {
            return ReleaseVerdict::Unknown(format!("its release could not be read: {why}"));
        }
        (EtcdPresence::Exists, Seen::No) => return ReleaseVerdict::Unknown("its release was not looked at".to_owned()),
        (EtcdPresence::Unknown(_), _) => return ReleaseVerdict::NotAsked,
    };
    ReleaseVerdict::Known {
        content,
        decision: decide_release(&content.release, &observed, ctx.cluster.addons.requests.of(&addon.name)),
        observed: Box::new(observed),
    }
}

impl<'a> AddonPass<'a> {
    /// Decides what becomes of each add-on. Adds nothing to the plan.
    pub fn new(ctx: Context<'a>, etcd: &EtcdFacts<'_>) -> Self {
        let decided = |addon: &'a WantedAddon| Decided {
            addon,
            verdict: verdict(ctx, addon, etcd),
        };
        Self {
            ctx,
            decided: ctx.cluster.addons.addons.iter().map(decided).collect(),
            fetched: FetchedCharts::new(),
        }
    }

    /// What must not be done at all.
    pub fn refuse(&self, plan: &mut PlanBuilder) {
        for Decided { addon, verdict } in &self.decided {
            for warning in &addon.warnings {
                plan.note(format!("{}: `{}`: {}", addon.name, warning.path, warning.why));
            }
            match verdict {
                // A cluster that could not get its network would have to be made twice.
                ReleaseVerdict::Unknown(why) if self.ctx.owned.ours.is_empty() => plan.refuse(Refusal {
                    kind: RefusalKind::Insufficient,
                    subject: Subject::Addon(addon.name.clone()),
                    what: format!("the chart of {} cannot be fetched", addon.name),
                    why: why.clone(),
                    help: vec!["check the connection to the registry; nothing was changed".to_owned()],
                    at: None,
                }),
                ReleaseVerdict::Known {
                    content,
                    decision,
                    observed,
                } => {
                    if addon.layer == Layer::Network {
                        too_far(addon, content, observed, plan);
                    }
                    too_large(addon, content, plan);
                    secret_values(addon, content, plan);
                    if matches!(decision, ReleaseDecision::Install { .. }) {
                        too_late(self.ctx, addon, plan);
                    }
                }
                ReleaseVerdict::Unknown(_) | ReleaseVerdict::NotAsked => {}
            }
        }
    }

    /// Fetches the charts that are needed, and pins all of them. In a new cluster nothing begins before.
    pub fn charts(&mut self, plan: &mut PlanBuilder) {
        for Decided { addon, verdict } in &self.decided {
            let ReleaseVerdict::Known { content, decision, .. } = verdict else {
                continue;
            };
            let chart = &content.chart;
            let why = match chart.is_pinned {
                false => "not yet pinned in the lock file",
                true if !chart.is_cached && runs_helm(decision) => "not in the cache",
                true => continue,
            };
            let fetch = Action::ChartFetch {
                chart: ChartRef {
                    release: addon.name.clone(),
                    source: chart.source.clone(),
                    chart: chart.chart.clone(),
                    version: chart.version.clone(),
                    archive: chart.archive.clone(),
                },
            };
            let step = plan.step(Subject::Addon(addon.name.clone()), fetch).because(why).add();
            self.fetched.insert(&addon.name, step);
        }
        if self.ctx.owned.ours.is_empty() {
            self.fetched.values().for_each(|step| plan.begin_with(*step));
        }
    }

    /// Installs the pod network as soon as an API server answers: no node is ready before.
    pub fn network(&self, underway: Underway<'a, '_>, plan: &mut PlanBuilder) -> CniState {
        let is_network = |decided: &&Decided<'_>| decided.addon.layer == Layer::Network;
        let Some(network) = self.decided.iter().find(is_network) else {
            return CniState::NotOurs;
        };
        let nodes = job_candidates(self.ctx, underway.turned);
        match release(self.with(underway, &nodes), network, underway.before(), plan) {
            ReleaseState::Started(step) => CniState::Comes(step),
            ReleaseState::Settled => CniState::Installed,
            ReleaseState::Held => CniState::Held,
        }
    }

    /// Everything that needs a network, and what finished Jobs left.
    pub fn rest(&self, underway: Underway<'a, '_>, network: CniState, plan: &mut PlanBuilder) {
        let nodes = job_candidates(self.ctx, underway.turned);
        let network = match network {
            CniState::Comes(step) => Some(step),
            CniState::NotOurs | CniState::Installed | CniState::Held => None,
        };
        for one in self.decided.iter().filter(|decided| decided.addon.layer != Layer::Network) {
            let after = underway.before().into_iter().chain(network).collect();
            release(self.with(underway, &nodes), one, after, plan);
        }
        left_over(self.ctx, plan);
        stale_rights(self.ctx, plan);
    }

    fn with<'b>(&'b self, underway: Underway<'a, '_>, nodes: &'b Result<Vec<String>, HoldReason>) -> ReleaseContext<'a, 'b> {
        ReleaseContext {
            ctx: self.ctx,
            fetched: &self.fetched,
            counts: counts(self.ctx, underway.guests),
            nodes,
            is_founded: underway.bootstrap.is_some(),
        }
    }
}

impl Underway<'_, '_> {
    /// What must have ended before Helm may run: the founding, and turns that restart nodes.
    fn before(&self) -> Vec<StepId> {
        self.bootstrap.into_iter().chain(self.turned.values().copied()).collect()
    }
}

/// Helm is to run, so that the archive is needed.
fn runs_helm(decision: &ReleaseDecision) -> bool {
    matches!(
        decision,
        ReleaseDecision::Install { .. }
            | ReleaseDecision::Upgrade { .. }
            | ReleaseDecision::Recover { .. }
            | ReleaseDecision::Resume { .. }
    )
}

fn too_large(addon: &WantedAddon, content: &AddonContent, plan: &mut PlanBuilder) {
    let values = content.release.values.to_string().len();
    let parts = [
        ("chart archive", content.chart.size.unwrap_or(0), ARCHIVE_LIMIT),
        ("values", values, VALUES_LIMIT),
    ];
    for (part, size, limit) in parts.into_iter().filter(|(_, size, limit)| size > limit) {
        plan.refuse(Refusal {
            kind: RefusalKind::Gate,
            subject: Subject::Addon(addon.name.clone()),
            what: format!("the {part} of {} is too large for the cluster: {size} bytes", addon.name),
            why: format!("Helm gets it through an object of the cluster, which holds at most {limit} bytes."),
            help: vec!["install this chart with Flux or Argo CD instead".to_owned()],
            at: None,
        });
    }
}

/// The pod network changes by one minor at a time, and never back over one: anything else may cut off every pod.
fn too_far(addon: &WantedAddon, content: &AddonContent, observed: &ObservedRelease, plan: &mut PlanBuilder) {
    let (wanted, Some(installed)) = (
        &content.release.version,
        observed.newest.as_ref().map(|revision| &revision.version),
    ) else {
        return;
    };
    let (why, help) = match cilium_hop(installed, wanted) {
        CiliumHop::None => return,
        CiliumHop::To(next) if next == *wanted => return,
        CiliumHop::To(next) => (
            "it is upgraded one minor at a time.".to_owned(),
            format!("set `version: {next}` first, run `mainstay up`, then go on"),
        ),
        CiliumHop::Refused(HopRefusal::Downgrade) => (
            "it does not support going back over a minor.".to_owned(),
            format!("keep a version of the minor that is installed, such as {installed}"),
        ),
        CiliumHop::Refused(HopRefusal::UnknownMinor(major, minor)) => (
            format!("it is upgraded one minor at a time, and no version of {major}.{minor} is known."),
            "name an exact version of that minor first".to_owned(),
        ),
    };
    plan.refuse(Refusal {
        kind: RefusalKind::Gate,
        subject: Subject::Addon(addon.name.clone()),
        what: format!("{} cannot change from {installed} to {wanted}", addon.name),
        why,
        help: vec![help],
        at: None,
    });
}

/// A reference that nothing resolves would reach the chart as a map.
fn secret_values(addon: &WantedAddon, content: &AddonContent, plan: &mut PlanBuilder) {
    let names = referenced_secrets(&content.release.values);
    if let Some(name) = names.first() {
        plan.refuse(Refusal {
            kind: RefusalKind::Gate,
            subject: Subject::Addon(addon.name.clone()),
            what: format!("the values of {} refer to the secret `{name}`", addon.name),
            why: "values from the secrets file are not supported by this version.".to_owned(),
            help: vec!["keep it in a Secret of the cluster that the chart reads, and name that in the values".to_owned()],
            at: None,
        });
    }
}

/// Another pod network runs already: the old one stays on every node until it restarts.
fn too_late(ctx: Context<'_>, addon: &WantedAddon, plan: &mut PlanBuilder) {
    let (Some(cluster), LateInstall::Refused { why, manual }) = (ctx.observed.addons.cluster.yes(), addon.late) else {
        return;
    };
    let is_blocked = match addon.layer {
        Layer::Network => cluster.has_other_network,
        _ => !cluster.nodes.is_empty(),
    };
    if is_blocked {
        plan.refuse(Refusal {
            kind: RefusalKind::Gate,
            subject: Subject::Addon(addon.name.clone()),
            what: format!("{} cannot be added to a cluster that runs", addon.name),
            why: why.to_owned(),
            help: vec![format!("by hand: {manual}")],
            at: None,
        });
    }
}

/// A release of ours that left the file stays: removing it could remove data.
fn left_over(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let releases = ctx
        .observed
        .addons
        .cluster
        .yes()
        .into_iter()
        .flat_map(|cluster| &cluster.releases);
    let is_wanted = |key: &ReleaseKey| ctx.cluster.addons.addons.iter().any(|addon| addon.key == *key);
    for (key, _) in releases.filter(|(key, _)| !is_wanted(key)) {
        let reason = format!(
            "it is not in cluster.yaml any more; release {} stays in namespace {}",
            key.name, key.namespace
        );
        plan.hold(Subject::Addon(key.name.clone()), "remove", HoldReason::accepted(reason));
    }
}

/// Role bindings give every right to a Job that does not run any more.
fn stale_rights(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let Some(cluster) = ctx.observed.addons.cluster.yes() else {
        return;
    };
    let finished: Vec<&str> = finished_jobs(cluster).collect();
    // Those of finished Jobs go with them.
    let stale = stale_bindings(&cluster.bindings, &cluster.live).into_iter();
    let alone: Vec<String> = stale
        .filter(|binding| !finished.contains(&binding.job.as_str()))
        .map(|binding| binding.name.clone())
        .collect();
    if alone.is_empty() {
        return;
    }
    let clean = Action::ReleaseClean(ReleaseCleanup {
        jobs: Vec::new(),
        bindings: alone,
        ask: ctx.control_planes(),
    });
    plan.step(Subject::Cluster, clean)
        .because("a role binding whose Job does not run any more")
        .add();
}

fn finished_jobs(cluster: &AddonCluster) -> impl Iterator<Item = &str> {
    let jobs = cluster.releases.values().flat_map(|release| &release.jobs);
    jobs.filter(|job| !cluster.live.unfinished.contains(&job.name))
        .map(|job| job.name.as_str())
}

/// Machines that pods of an add-on can run on, now or when this plan is done.
fn counts(ctx: Context<'_>, guests: &Guests<'_>) -> MachineCounts {
    let usable = guests.iter().filter(|(_, status)| !matches!(status, GuestStatus::Held));
    let (control_planes, workers): (Vec<_>, Vec<_>) = usable.partition(|(machine, _)| machine.is_control_plane());
    MachineCounts {
        control_planes: control_planes.len() as u64,
        workers: workers.len() as u64,
        shared: ctx.cluster.control_plane_workloads,
    }
}

/// Nodes on which a Job may run: control planes that work and are not about to restart.
fn job_candidates(ctx: Context<'_>, in_turn: &StepByMachine<'_>) -> Result<Vec<String>, HoldReason> {
    let all = || ctx.cluster.control_planes().map(|machine| machine.name().to_owned());
    let Some(cluster) = ctx.observed.addons.cluster.yes() else {
        return Ok(all().collect());
    };
    let judged = cluster.nodes.iter().map(|node| JobNode {
        guest_answers: matches!(ctx.guest(&node.name), Some(Guest::Running(_))),
        in_turn: in_turn.contains_key(node.name.as_str()),
        ..node.clone()
    });
    let fit = job_nodes(&judged.collect::<Vec<_>>());
    if !fit.is_empty() {
        return Ok(fit);
    }
    // Those that have not registered yet may do so in this run; the Job is created only then.
    let coming: Vec<String> = all()
        .filter(|name| !cluster.nodes.iter().any(|node| node.name == *name) || in_turn.contains_key(name.as_str()))
        .collect();
    if coming.is_empty() {
        return Err(HoldReason::transient("no control plane is well enough to run Helm"));
    }
    Ok(coming)
}

/// The steps of one release.
fn release(with: ReleaseContext<'_, '_>, decided: &Decided<'_>, after: Vec<StepId>, plan: &mut PlanBuilder) -> ReleaseState {
    let Decided { addon, verdict } = decided;
    let subject = Subject::Addon(addon.name.clone());
    let hold = |reason: HoldReason, plan: &mut PlanBuilder| {
        plan.hold(subject.clone(), "install", reason);
        ReleaseState::Held
    };
    let (content, observed, decision) = match verdict {
        ReleaseVerdict::NotAsked => return ReleaseState::Held,
        ReleaseVerdict::Unknown(why) => return hold(HoldReason::transient(why.clone()), plan),
        ReleaseVerdict::Known {
            content,
            observed,
            decision,
        } => (content, observed, decision),
    };
    // A cluster that is not there and does not begin in this plan: what keeps it is held already.
    if with.ctx.observed.addons.cluster == Seen::No && !with.is_founded {
        return ReleaseState::Held;
    }
    if let Some(attempt) = attempt(decision, observed) {
        let nodes = match with.nodes {
            Ok(nodes) => nodes.clone(),
            Err(reason) => return hold(reason.clone(), plan),
        };
        let run = run(with, addon, content, decision, attempt, nodes);
        return ReleaseState::Started(start(
            with,
            addon,
            content,
            run,
            &why(content, observed, decision),
            after,
            plan,
        ));
    }
    match decision {
        ReleaseDecision::Done { finished } => done(with, addon, finished, plan),
        ReleaseDecision::Wait(WaitReason::Running { job }) => finish(with, addon, content, job, "its Job runs", Vec::new(), plan),
        ReleaseDecision::Wait(WaitReason::Problem { job, problem }) => {
            return hold(HoldReason::transient(format!("{job} cannot run: {problem}")), plan);
        }
        // Nothing of it has run, and the next look decides anew.
        ReleaseDecision::DeleteJob { job, .. } => {
            clean(with, addon, vec![job.clone()], Vec::new(), plan);
            return ReleaseState::Held;
        }
        ReleaseDecision::Leave(owner) => plan.hold(subject, "change", HoldReason::accepted(owner_text(owner))),
        ReleaseDecision::Hold(reason) => return hold(hold_reason(&addon.name, reason), plan),
        // All of these have an attempt.
        ReleaseDecision::Install { .. }
        | ReleaseDecision::Upgrade { .. }
        | ReleaseDecision::Recover { .. }
        | ReleaseDecision::Resume { .. }
        | ReleaseDecision::Uninstall { .. } => {}
    }
    ReleaseState::Settled
}

/// The number of the run that the decision asks for, if it asks for one.
fn attempt(decision: &ReleaseDecision, observed: &ObservedRelease) -> Option<u32> {
    match decision {
        ReleaseDecision::Install { attempt }
        | ReleaseDecision::Upgrade { attempt, .. }
        | ReleaseDecision::Recover { attempt, .. } => Some(*attempt),
        ReleaseDecision::Resume { job, .. } => observed.jobs.iter().find(|one| one.name == *job).map(|one| one.attempt),
        _ => None,
    }
}

fn run(
    with: ReleaseContext<'_, '_>,
    addon: &WantedAddon,
    content: &AddonContent,
    decision: &ReleaseDecision,
    attempt: u32,
    nodes: Vec<String>,
) -> ReleaseRun {
    let takes = matches!(decision, ReleaseDecision::Upgrade { takes: true, .. });
    let ctx = with.ctx;
    ReleaseRun {
        wanted: content.release.clone(),
        archive: content.chart.archive.clone(),
        attempt,
        verb: HelmVerb::Install {
            skip_crds: false,
            take_ownership: takes,
            force_conflicts: false,
        },
        is_new: matches!(decision, ReleaseDecision::Install { .. }),
        cluster_id: ctx.desired.id().to_string(),
        nodes,
        before_network: addon.is_before_network.then(|| job_endpoint(ctx.cluster.versions.distro)),
        namespace: addon.namespace.clone(),
        ask: ctx.control_planes(),
    }
}

fn start(
    with: ReleaseContext<'_, '_>,
    addon: &WantedAddon,
    content: &AddonContent,
    run: ReleaseRun,
    why: &str,
    after: Vec<StepId>,
    plan: &mut PlanBuilder,
) -> StepId {
    let job = run.job_name();
    let fetched = with.fetched.get(addon.name.as_str()).copied();
    let step = plan.step(Subject::Addon(addon.name.clone()), Action::ReleaseStart(Box::new(run)));
    let started = step.because(why).needs(after).needs(fetched).add();
    finish(with, addon, content, &job, why, vec![started], plan);
    started
}

/// From a Job that runs to an add-on that works.
fn finish(
    with: ReleaseContext<'_, '_>,
    addon: &WantedAddon,
    content: &AddonContent,
    job: &str,
    why: &str,
    after: Vec<StepId>,
    plan: &mut PlanBuilder,
) {
    let watch = ReleaseWatch {
        wanted: content.release.clone(),
        job: job.to_owned(),
        until_gone: false,
        brings_network: addon.layer == Layer::Network,
        ask: with.ctx.control_planes(),
    };
    let subject = Subject::Addon(addon.name.clone());
    let step = plan.step(subject, Action::ReleaseAwait(Box::new(watch)));
    let installed = step.because(why).needs(after).add();
    clean(with, addon, vec![job.to_owned()], vec![installed], plan);
    await_workloads(with, addon, why, vec![installed], plan);
}

/// Deletes Jobs with their role bindings, which have the same names.
fn clean(with: ReleaseContext<'_, '_>, addon: &WantedAddon, jobs: Vec<String>, after: Vec<StepId>, plan: &mut PlanBuilder) {
    let clean = Action::ReleaseClean(ReleaseCleanup {
        bindings: jobs.clone(),
        jobs,
        ask: with.ctx.control_planes(),
    });
    let step = plan.step(Subject::Addon(addon.name.clone()), clean);
    step.because("Helm has ended").needs(after).add();
}

fn awaited(with: ReleaseContext<'_, '_>, addon: &WantedAddon) -> Vec<AwaitedWorkload> {
    let namespace = addon.key.namespace.as_str();
    addon
        .workloads
        .iter()
        .map(|workload| AwaitedWorkload::new(workload, namespace, with.counts))
        .collect()
}

fn await_workloads(with: ReleaseContext<'_, '_>, addon: &WantedAddon, why: &str, after: Vec<StepId>, plan: &mut PlanBuilder) {
    let workloads = awaited(with, addon);
    if workloads.is_empty() {
        return;
    }
    let wait = Action::AddonAwait {
        workloads,
        ask: with.ctx.control_planes(),
    };
    plan.step(Subject::Addon(addon.name.clone()), wait)
        .because(why)
        .needs(after)
        .add();
}

/// The release is as wanted: what its Jobs left goes, and its workloads are awaited if they are not well.
fn done(with: ReleaseContext<'_, '_>, addon: &WantedAddon, finished: &[String], plan: &mut PlanBuilder) {
    if !finished.is_empty() {
        clean(with, addon, finished.to_vec(), Vec::new(), plan);
    }
    let cluster = with.ctx.observed.addons.cluster.yes();
    if let Some(missing) = cluster.and_then(|cluster| ready::missing(&awaited(with, addon), &cluster.workloads)) {
        await_workloads(with, addon, &missing, Vec::new(), plan);
    }
}

fn why(content: &AddonContent, observed: &ObservedRelease, decision: &ReleaseDecision) -> String {
    let installed = observed.newest.as_ref().map(|revision| revision.version.as_str());
    let version = &content.release.version;
    match (decision, installed) {
        (ReleaseDecision::Recover { status, .. }, _) => format!("Helm was interrupted: the release is {}", status.as_str()),
        (ReleaseDecision::Resume { .. }, _) => "its Job was not released yet".to_owned(),
        (ReleaseDecision::Upgrade { .. }, Some(installed)) if installed != version => format!("{installed} -> {version}"),
        (ReleaseDecision::Upgrade { differs, .. }, _) if !differs.is_empty() => {
            format!("values differ at {}", differs.join(", "))
        }
        (ReleaseDecision::Upgrade { .. }, _) => "its content differs".to_owned(),
        _ => "it is not installed".to_owned(),
    }
}

fn owner_text(owner: &ReleaseOwner) -> String {
    match owner {
        ReleaseOwner::Flux(object) => format!("Flux manages it with HelmRelease {object}; change it there"),
        ReleaseOwner::ArgoCd(object) => format!("Argo CD manages it with Application {object}; change it there"),
        ReleaseOwner::Absent
        | ReleaseOwner::Mainstay
        | ReleaseOwner::Orphaned(_)
        | ReleaseOwner::User(_)
        | ReleaseOwner::Unknown(_) => "another owner manages it".to_owned(),
    }
}

fn hold_reason(name: &str, hold: &ReleaseHold) -> HoldReason {
    match hold {
        ReleaseHold::OwnerUnknown(why) => HoldReason::transient(format!("who owns it is not known: {why}")),
        ReleaseHold::OtherJob { job, creator } => {
            HoldReason::transient(format!("{job}, which {creator} created, installs other content now"))
        }
        ReleaseHold::Orphaned(tool) => format!(
            "it carries marks of {}, whose object for it is gone; to take it over: mainstay up --take {name}",
            tool.title()
        )
        .into(),
        ReleaseHold::User { differs } if differs.is_empty() => {
            format!("it was installed or changed by hand; to take it over: mainstay up --take {name}").into()
        }
        ReleaseHold::User { differs } => format!(
            "it was changed by hand and differs at {}; to take it over: mainstay up --take {name}",
            differs.join(", ")
        )
        .into(),
        ReleaseHold::Interrupted { status, age } => format!(
            "a Helm that mainstay did not start left it {} {} min ago; when it does not run any more: mainstay up --take {name}",
            status.as_str(),
            age / 60
        )
        .into(),
        ReleaseHold::Failed { attempt, failure } => format!(
            "Helm failed at attempt {attempt}: {}; when the cause is gone: mainstay up --retry {name}",
            failure.text.trim()
        )
        .into(),
        ReleaseHold::StatusUnknown => "its release has a status that this version does not know".to_owned().into(),
    }
}
