//! The lease: which run works on the cluster, as a line in the mark of the cluster's first machine. It is taken before anything is done
//! to an existing cluster. Steps that stop or remove something do not begin without it: two concurrent runs could each decide that one
//! control plane can be spared, and together take two; and one run could free a volume that the other has just made under the same name.
//! Steps that create something need no lease, because a lease often cannot be written exactly when a host or storage is broken.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use mainstay_plan::{Action, Lease, LeaseProcess, LeaseRun, Mark, Observed, Ownership, Plan, Vm, VmRef, ownership, with_lease};
use pve_api::{Description, qemu};
use tokio::time::Instant;
use uuid::Uuid;

use crate::act::VmLocation;
use crate::clients::Clients;
use crate::event::EventSink;
use crate::failure::Failure;
use crate::known::FirstLease;
use crate::limits::Limits;

/// A lease that is not renewed ends after this.
const LASTS: Duration = Duration::from_secs(120);
const RENEWED: Duration = Duration::from_secs(60);
/// A lease that could not be taken may be in a moment.
const TRIED_AGAIN: Duration = Duration::from_secs(2);
/// How often it is tried to take it: another client may edit the machine between our read and our write.
const ATTEMPTS: u32 = 5;

/// Which run asks.
#[derive(Clone)]
pub struct LeaseHolder {
    /// `user@machine`, for people.
    who: String,
    run: LeaseRun,
    /// When the process with this id began, if there is one.
    began: Arc<dyn Fn(u32) -> Option<u64> + Send + Sync>,
}

impl LeaseHolder {
    /// `id` is random: two runs of one user on one machine are two.
    pub fn new(user: &str, machine: &str, id: &str) -> Self {
        let clean = |part: &str| part.chars().filter(char::is_ascii_graphic).collect::<String>();
        Self {
            who: format!("{}@{}", clean(user), clean(machine)),
            run: LeaseRun {
                id: clean(id),
                process: None,
            },
            began: Arc::new(|_| None),
        }
    }

    /// `began` tells when a process of this machine began, so that a lease whose process is gone need not end first.
    #[must_use]
    pub fn of_process(mut self, process: LeaseProcess, began: impl Fn(u32) -> Option<u64> + Send + Sync + 'static) -> Self {
        self.run.process = Some(process);
        self.began = Arc::new(began);
        self
    }

    fn lease(&self, since: Timestamp, until: Timestamp) -> Lease {
        Lease {
            who: self.who.clone(),
            since,
            until,
            run: Some(self.run.clone()),
        }
    }

    /// What another run's lease means to this one.
    fn judge(&self, lease: &Lease, now: Timestamp) -> LeaseState {
        let run = lease.run.as_ref();
        if run.is_some_and(|run| run.id == self.run.id) {
            return LeaseState::Own;
        }
        if run.is_some_and(|run| self.is_gone(lease, run)) {
            return LeaseState::Abandoned;
        }
        if lease.holds(now) {
            LeaseState::Held
        } else {
            LeaseState::Ended
        }
    }

    /// Its process ran here and does not run any more. Boot, PID namespace and user must be ours: containers of one machine may share its
    /// name, and each has PIDs of its own.
    fn is_gone(&self, lease: &Lease, run: &LeaseRun) -> bool {
        let (Some(theirs), Some(ours)) = (&run.process, &self.run.process) else {
            return false;
        };
        let user = self.who.split('@').next().unwrap_or_default();
        let is_here = (&theirs.boot, theirs.namespace, lease.user()) == (&ours.boot, ours.namespace, user);
        is_here && (self.began)(theirs.pid) != Some(theirs.began)
    }
}

impl fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.who)
    }
}

impl fmt::Debug for LeaseHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LeaseHolder({} {})", self.who, self.run)
    }
}

enum LeaseState {
    Own,
    /// Its process is gone.
    Abandoned,
    Held,
    /// Its time is over by the clock of Proxmox VE.
    Ended,
}

/// The lease of another run that still holds.
pub fn held_by_another(site: &Clients, observed: &Observed, cluster_id: Uuid, holder: &LeaseHolder) -> Option<Lease> {
    let now = site.now();
    let mut held = None;
    for lease in observed.leases(cluster_id) {
        match holder.judge(&lease, now) {
            LeaseState::Own | LeaseState::Abandoned => {}
            LeaseState::Held => held = Some(lease),
            LeaseState::Ended => drop(unchanged_for(site, &lease)),
        }
    }
    held
}

/// For how long a lease that has ended was seen unchanged. `None`: it was renewed meanwhile, by a run whose host has another clock.
fn unchanged_for(site: &Clients, lease: &Lease) -> Option<Duration> {
    let mut seen = site.ended_lease.lock().expect("plain data");
    let is_of_that_run = |other: &Lease| (&other.who, other.since, &other.run) == (&lease.who, lease.since, &lease.run);
    match &*seen {
        Some((last, since)) if last == lease => return Some(since.elapsed()),
        Some((last, _)) if is_of_that_run(last) => {
            *seen = Some((lease.clone(), Instant::now()));
            return None;
        }
        _ => {}
    }
    *seen = Some((lease.clone(), Instant::now()));
    Some(Duration::ZERO)
}

/// Which run asks for the lease of which cluster.
#[derive(Debug, Clone)]
pub struct LeaseRequest {
    pub cluster_id: Uuid,
    pub holder: LeaseHolder,
    /// A lease of another run is overwritten.
    pub takes_over: bool,
    /// By the clock of Proxmox VE.
    pub since: Timestamp,
}

/// What became of a try to write the lease.
enum Written {
    Done,
    /// Another run holds it.
    Held(Lease),
    /// That of another run has ended. It is taken if it stays unchanged for so long.
    Watched(Lease, Duration),
}

/// The machine that carries the lease of a cluster.
pub struct LeaseVm {
    vm: VmRef,
    /// Else it is yet to be made.
    is_there: bool,
    request: LeaseRequest,
}

impl LeaseVm {
    /// The machine with the lowest VMID that is ours beyond doubt and can be written on, better one that stays; in a new cluster, the
    /// first that will be.
    pub fn of(plan: &Plan, request: LeaseRequest, observed: &Observed) -> Option<Self> {
        let vms = observed.vms.yes()?.values();
        let is_free = |vm: &&Vm| vm.config.yes().is_some_and(|config| config.lock.is_none());
        let ours = vms.filter(|vm| matches!(ownership(vm, request.cluster_id, None), Ownership::Ours(_)));
        let goes = |vm: &Vm| {
            plan.removals()
                .any(|step| step.action.info().vm.is_some_and(|gone| gone.vmid == vm.vmid))
        };
        let there = ours.filter(is_free).min_by_key(|vm| (goes(vm), vm.vmid)).map(|vm| VmRef {
            host: vm.host.clone(),
            vmid: vm.vmid,
            uuid: vm.config.yes().and_then(|config| config.uuid).unwrap_or_default(),
        });
        Some(Self {
            is_there: there.is_some(),
            vm: there.or_else(|| first_claimed(plan))?,
            request,
        })
    }

    /// What stands against writing our lease over the one that is there.
    fn obstacle(&self, site: &Clients, there: Option<&Lease>, now: Timestamp) -> Option<Written> {
        let there = there.filter(|_| !self.request.takes_over)?;
        match self.request.holder.judge(there, now) {
            LeaseState::Own | LeaseState::Abandoned => None,
            LeaseState::Held => Some(Written::Held(there.clone())),
            LeaseState::Ended => match unchanged_for(site, there) {
                None => Some(Written::Held(there.clone())),
                Some(unchanged) if unchanged >= RENEWED => None,
                Some(unchanged) => Some(Written::Watched(there.clone(), RENEWED - unchanged)),
            },
        }
    }
}

fn first_claimed(plan: &Plan) -> Option<VmRef> {
    let claims = plan
        .steps
        .iter()
        .filter(|step| matches!(step.action, Action::MachineClaim(_)));
    claims
        .filter_map(|step| step.action.info().vm.cloned())
        .min_by_key(|vm| vm.vmid)
}

/// Takes the lease, before anything is done. `Some`: another run was faster. Where no machine is yet, the claim of the first one takes it.
pub async fn take(site: &Clients, limits: &Limits, carrier: &LeaseVm, events: &EventSink) -> Result<Option<Lease>, Failure> {
    let request = &carrier.request;
    let first = (!carrier.is_there).then(|| FirstLease {
        vmid: carrier.vm.vmid,
        lease: request.holder.lease(request.since, site.now() + LASTS),
        lasts: LASTS,
    });
    let is_first = first.is_some();
    *site.first_lease.lock().expect("plain data") = first;
    if is_first {
        return Ok(None);
    }
    let mut attempt = 1;
    loop {
        match renew(site, limits, carrier).await {
            Ok(Written::Done) => return Ok(None),
            Ok(Written::Held(lease)) => return Ok(Some(lease)),
            // The clocks of hosts differ: who still works renews it within this time.
            Ok(Written::Watched(lease, left)) => {
                let seconds = left.as_secs().max(1);
                events.note(format!(
                    "waiting {seconds} s: {} did not give its lease back, and may still renew it",
                    lease.who
                ));
                tokio::time::sleep(left).await;
            }
            Err(failure) if attempt >= ATTEMPTS => return Err(failure),
            Err(_) => {
                attempt += 1;
                tokio::time::sleep(site.jitter.pause(TRIED_AGAIN)).await;
            }
        }
    }
}

/// Renews the lease as long as it is polled. Ends when another run has it.
pub async fn keep(site: &Clients, limits: &Limits, carrier: &LeaseVm) -> Lease {
    let mut pause = RENEWED;
    loop {
        tokio::select! {
            biased;
            () = site.lease_doubted.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
        pause = match renew(site, limits, carrier).await {
            Ok(Written::Held(taken) | Written::Watched(taken, _)) => return taken,
            Ok(Written::Done) => RENEWED,
            // It may be one that goes, or that is not made yet.
            Err(_) => RENEWED / 4,
        };
    }
}

async fn renew(site: &Clients, limits: &Limits, carrier: &LeaseVm) -> Result<Written, Failure> {
    let request = &carrier.request;
    write(site, limits, carrier, |now| {
        Some(request.holder.lease(request.since, now + LASTS))
    })
    .await
}

/// Takes our lease off.
pub async fn release(site: &Clients, limits: &Limits, carrier: &LeaseVm) {
    let _ = write(site, limits, carrier, |_| None).await;
}

/// Compare-and-set on what was just read: an edit by another client in between wins. The time is that of the host which answered the read.
async fn write(
    site: &Clients,
    limits: &Limits,
    carrier: &LeaseVm,
    lease: impl FnOnce(Timestamp) -> Option<Lease>,
) -> Result<Written, Failure> {
    let vm = &carrier.vm;
    let (location, config) = VmLocation::config(site, vm).await?;
    let now = site.now();
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let Some(mark) = Mark::parse(before).filter(|mark| mark.cluster_id == carrier.request.cluster_id) else {
        return Err(Failure::stale_plan(format!("{vm} lost its mark")));
    };
    if let Some(obstacle) = carrier.obstacle(site, mark.lease.as_ref(), now) {
        return Ok(obstacle);
    }
    let lease = lease(now);
    let is_own = |there: &Lease| matches!(carrier.request.holder.judge(there, now), LeaseState::Own);
    if lease.is_none() && !mark.lease.as_ref().is_some_and(is_own) {
        return Ok(Written::Done);
    }
    let after = with_lease(before, lease);
    if after == before {
        return Ok(Written::Done);
    }
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    change.set.description = Some(crate::pve_config::parse_name(&after)?);
    // Steps on this machine come first. If one of them changes it meanwhile, the digest refuses this write.
    let _slot = limits.vm(vm.vmid).await;
    site.send(qemu::set(&location.host, location.vmid, &change)).await?;
    Ok(Written::Done)
}
