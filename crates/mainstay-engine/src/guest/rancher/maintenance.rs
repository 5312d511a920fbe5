//! Changes of a running machine: config, version, membership, snapshots.

use std::net::IpAddr;
use std::time::Duration;

use mainstay_kube::{Cluster, Node, ObjectRef};
use mainstay_plan::ApplyMode;
use rancher_config::guest::{self as guest_config, GuestFile, Work};
use rancher_config::{ReleaseVersion, Role};
use serde_json::json;

use super::access::RancherAccess;
use super::lifecycle::unit_reason;
use super::prepare::{activate, outdated, run_work, unit_report, unknown_files};
use super::push::{self, ArtifactFiles};
use super::session::OpenGuest;
use super::supervisor::{SupervisorError, SupervisorMember};
use super::wait::{Poll, WaitReporter, until};
use crate::failure::Failure;

/// A restart of a server waits for etcd and its API server.
const RESTART_LIMIT: Duration = Duration::from_secs(1200);
/// A removal takes effect within a second. More means that the request was lost or refused.
const REMOVAL_LIMIT: Duration = Duration::from_secs(120);

/// What the files of a running machine should be.
#[derive(Clone, Copy)]
pub struct ChangedFiles<'a> {
    pub role: Role,
    /// Every file of the machine.
    pub files: &'a [GuestFile],
    /// `server:` of configs that need no change.
    pub servers: &'a [String],
    pub mode: ApplyMode,
}

/// Writes changed files, and restarts the unit if they ask for it and the mode allows it. Returns whether it restarted.
pub async fn reconfigure(guest: &OpenGuest, change: &ChangedFiles<'_>, progress: &dyn WaitReporter) -> Result<bool, Failure> {
    let probe = super::prepare::probe(guest, change.role, change.files).await?;
    let changes = probe
        .changes(change.files, change.servers)
        .ok_or_else(|| unknown_files(guest))?;
    let restarts = probe.restart_pending || !changes.restart.is_empty();
    if restarts && change.mode == ApplyMode::Live {
        let what = format!("more of {} changed than was planned", guest.name());
        return Err(Failure::stale_plan(what).why("its unit would have to restart"));
    }
    if restarts {
        // Recorded before the first file changes, so that a run that is killed in between loses no restart.
        guest.execute(&guest_config::note_pending_restart(), progress).await?;
    }
    let changed: Vec<&GuestFile> = changes.live.into_iter().chain(changes.restart).collect();
    for file in &changed {
        guest.write(file).await?;
    }
    let prepares = Work::Prepare.input_path();
    if changed.iter().any(|file| file.path == prepares) {
        run_work(guest, Work::Prepare, change.files, progress).await?;
    }
    if !restarts || change.mode == ApplyMode::Staged {
        return Ok(false);
    }
    restart(guest, change.role, progress).await?;
    Ok(true)
}

/// Restarts the unit and waits until the new process is ready.
async fn restart(guest: &OpenGuest, role: Role, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let distro = guest.access.distro;
    let unit = distro.unit(role);
    let before = unit_report(guest, unit, None).await?.unit.pid;
    guest.execute(&guest_config::restart_unit(distro, role), progress).await?;
    let what = format!("{unit} did not become ready again on {}", guest.name());
    let supervisor = guest.access.supervisor(guest.machine().address)?;
    until(&guest.access, progress, &what, RESTART_LIMIT, async || {
        let report = unit_report(guest, unit, None).await?;
        // The old process answers until it is stopped.
        if report.unit.active != "active" || report.unit.pid == before {
            return Ok(Poll::NotYet(unit_reason(&report)));
        }
        if role == Role::Agent {
            return Ok(Poll::Done(()));
        }
        Ok(match supervisor.readyz().await {
            Ok(()) => Poll::Done(()),
            Err(error) => Poll::NotYet(error.to_string()),
        })
    })
    .await
}

/// A new version for a running machine.
#[derive(Clone, Copy)]
pub struct Upgrade<'a> {
    pub role: Role,
    /// Every file of the machine for the new version.
    pub files: &'a [GuestFile],
    pub version: ReleaseVersion,
    pub artifacts: &'a [guest_config::PinnedArtifact],
    pub pushed: Option<&'a dyn ArtifactFiles>,
}

/// Fetches the new release while the old one runs, installs it, restarts the unit, and waits until the new version is ready.
pub async fn upgrade(guest: &OpenGuest, upgrade: &Upgrade<'_>, progress: &dyn WaitReporter) -> Result<(), Failure> {
    let probe = super::prepare::probe(guest, upgrade.role, upgrade.files).await?;
    let changed = outdated(guest, &probe, upgrade.files)?;
    if changed.is_empty() && !probe.restart_pending && probe.version == Some(upgrade.version) {
        return Ok(());
    }
    // The fetch reads its input from a file that does not concern the running server. Everything else changes after the download.
    let input = Work::Fetch.input_path();
    let (fetch, rest): (Vec<_>, Vec<_>) = changed.into_iter().partition(|file| file.path == input);
    for file in fetch {
        guest.write(file).await?;
    }
    push::push(guest, upgrade.artifacts, upgrade.pushed, progress).await?;
    run_work(guest, Work::Fetch, upgrade.files, progress).await?;
    guest.execute(&guest_config::note_pending_restart(), progress).await?;
    for file in rest {
        guest.write(file).await?;
    }
    activate(guest, upgrade.role, upgrade.version, progress).await?;
    restart(guest, upgrade.role, progress).await
}

/// A server whose etcd member goes.
#[derive(Clone, Copy)]
pub struct ServerRemoval<'a> {
    pub node: &'a str,
    /// The member that was seen. One that the server got since then, because it joined again, is another one and stays.
    pub is_it: &'a (dyn Fn(&SupervisorMember) -> bool + Sync),
    /// The other servers. Their etcd and API decide; the machine itself is not asked.
    pub others: &'a [IpAddr],
}

/// Removes the etcd member of a server through the annotation of its Node.
///
/// Success is only what the other servers say about their members: the request may be eaten, and the annotations alone do not tell.
pub async fn remove_member(
    access: &RancherAccess,
    removal: &ServerRemoval<'_>,
    progress: &dyn WaitReporter,
) -> Result<(), Failure> {
    let what = format!("the etcd member of {} was not removed", removal.node);
    let mut asked: Option<String> = None;
    until(access, progress, &what, REMOVAL_LIMIT, async || {
        let members = match agreed_members(access, removal.others).await {
            Ok(members) => members,
            Err(why) => return Ok(Poll::NotYet(why)),
        };
        let Some(member) = members.iter().find(|member| (removal.is_it)(member)) else {
            return Ok(Poll::Done(()));
        };
        let other_voters = members
            .iter()
            .filter(|other| !other.learner && other.name != member.name)
            .count();
        if other_voters == 0 {
            return Err(Failure::refused(&what).why("it is the only voter, and etcd refuses to lose it"));
        }
        let (cluster, node) = match node_of(access, removal).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                let help = format!("remove the member {} by hand: etcdctl member remove", member.name);
                return Err(Failure::refused(&what)
                    .why("its Node is gone, through which members are removed")
                    .help(help));
            }
            Err(why) => return Ok(Poll::NotYet(why)),
        };
        let distro = access.distro;
        let annotation = |key: String| node.annotations.get(&key).cloned();
        // Another name in the annotation is that of an earlier life of the machine.
        if annotation(distro.removed_annotation()).as_deref() == Some(member.name.as_str()) {
            return Ok(Poll::NotYet("the member is being removed".into()));
        }
        if annotation(distro.remove_annotation()).is_some() {
            return Ok(Poll::NotYet("the removal is requested".into()));
        }
        let reason = match &asked {
            Some(earlier) if *earlier == member.name => "the request was cleared without effect, and is repeated",
            _ => "requests the removal",
        };
        let patch = json!({ "metadata": { "annotations": { distro.remove_annotation(): "true" } } });
        let node = ObjectRef::new("v1", "Node", None, removal.node);
        if let Err(error) = cluster.merge(&node, &patch).await {
            return Ok(Poll::NotYet(error.to_string()));
        }
        asked = Some(member.name.clone());
        Ok(Poll::NotYet(reason.into()))
    })
    .await
}

/// The members, if those of these servers that answer name the same. An answer needs a majority, so one is enough; another answer would
/// be that of a second cluster.
async fn agreed_members(access: &RancherAccess, servers: &[IpAddr]) -> Result<Vec<SupervisorMember>, String> {
    let mut agreed: Option<Vec<SupervisorMember>> = None;
    let mut why = "no other server is left to ask".to_owned();
    for address in servers {
        let supervisor = access.supervisor(*address).map_err(|failure| failure.what)?;
        let mut members = match supervisor.members().await {
            Ok(members) => members,
            Err(error) => {
                why = format!("{address}: {error}");
                continue;
            }
        };
        members.sort_by(|a, b| a.name.cmp(&b.name));
        if agreed.as_ref().is_some_and(|agreed| *agreed != members) {
            return Err("the servers name different etcd members".into());
        }
        agreed = Some(members);
    }
    agreed.ok_or(why)
}

/// The Node, as the first server tells that answers, and the API to change it by.
async fn node_of(access: &RancherAccess, removal: &ServerRemoval<'_>) -> Result<Option<(Cluster, Node)>, String> {
    let mut why = "no other server is left to ask".to_owned();
    for address in removal.others {
        let cluster = access.kubernetes(*address).map_err(|failure| failure.what)?;
        match cluster.node(removal.node).await {
            Ok(node) => return Ok(node.map(|node| (cluster, node))),
            Err(error) => why = error.to_string(),
        }
    }
    Err(why)
}

/// Saves an etcd snapshot on a server's disk under a name of its own, and returns the file's name. The same name again finds the first.
pub async fn snapshot(
    access: &RancherAccess,
    server: IpAddr,
    name: &str,
    progress: &dyn WaitReporter,
) -> Result<String, Failure> {
    let supervisor = access.supervisor(server)?;
    let what = format!("the server at {server} saved no etcd snapshot");
    until(access, progress, &what, REMOVAL_LIMIT, async || {
        let known = match supervisor.snapshots().await {
            Ok(known) => known,
            Err(error @ SupervisorError::Foreign(_)) => return Err(error.into_failure(&what)),
            Err(error) => return Ok(Poll::NotYet(error.to_string())),
        };
        // `<name>-<node>-<unix time>`: a save whose answer was lost is found here.
        if let Some(file) = known
            .iter()
            .find(|file| file.strip_prefix(name).is_some_and(|rest| rest.starts_with('-')))
        {
            return Ok(Poll::Done(file.clone()));
        }
        Ok(match supervisor.save_snapshot(name).await {
            Ok(file) => Poll::Done(file),
            Err(error) => Poll::NotYet(error.to_string()),
        })
    })
    .await
}
