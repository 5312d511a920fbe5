//! Who works on the cluster: a line in the mark of its first machine. It is taken before anything is done to a cluster that is there,
//! and whoever would take something down or away does not begin without it: two who each spare one control plane spare none, and what
//! one frees the other may just have made under the same name. What makes things does without, since a lease cannot be written exactly
//! when things break.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_plan::{Action, Lease, Mark, Observed, Ownership, Plan, Vm, VmRef, ownership, with_lease};
use pve_api::{Description, qemu};
use uuid::Uuid;

use crate::act::Place;
use crate::converge::Run;
use crate::derive;
use crate::failure::Failure;
use crate::limits::Limits;
use crate::site::Site;

/// A lease that is not renewed ends after this.
const LASTS: Duration = Duration::from_secs(120);
const RENEWED: Duration = Duration::from_secs(45);
/// The machine that is to carry it may be a moment from being made.
const TRIED_AGAIN: Duration = Duration::from_secs(2);
/// How often it is tried to take it: each time somebody else may have edited the machine in between.
const ATTEMPTS: u32 = 5;

/// Who asks: `user@machine`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder(String);

impl Holder {
    pub fn new(user: &str, machine: &str) -> Self {
        let clean = |part: &str| part.chars().filter(char::is_ascii_graphic).collect::<String>();
        Self(format!("{}@{}", clean(user), clean(machine)))
    }
}

/// The lease of somebody else that still holds.
pub fn held_by_another(observed: &Observed, cluster_id: Uuid, holder: &Holder, now: Timestamp) -> Option<Lease> {
    observed.held_by(cluster_id, now).filter(|lease| lease.who != holder.0)
}

/// The machine that carries the lease of a cluster.
pub struct Carrier {
    vm: VmRef,
    /// Else it is yet to be made.
    is_there: bool,
    cluster_id: Uuid,
    holder: Holder,
    /// The lease of somebody else is no reason to stop.
    takes_over: bool,
    since: Timestamp,
}

impl Carrier {
    /// The machine with the lowest VMID that is ours beyond doubt and can be written on, better one that stays; in a new cluster, the
    /// first that will be.
    pub fn of(plan: &Plan, run: &Run<'_>, observed: &Observed) -> Option<Self> {
        let cluster_id = derive::cluster_id(run.secrets?);
        let vms = observed.vms.yes()?.values();
        let is_free = |vm: &&Vm| vm.config.yes().is_some_and(|config| config.lock.is_none());
        let ours = vms.filter(|vm| matches!(ownership(vm, cluster_id, None), Ownership::Ours(_)));
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
            cluster_id,
            holder: run.holder.clone(),
            takes_over: run.despite_lease,
            since: run.site.env.wall.now(),
        })
    }

    /// The lease of somebody else that this mark carries, if we may not write over it.
    fn taken(&self, mark: &Mark, now: Timestamp) -> Option<Lease> {
        let another = |lease: &&Lease| lease.holds(now) && lease.who != self.holder.0;
        mark.lease.as_ref().filter(another).filter(|_| !self.takes_over).cloned()
    }

    fn lease(&self, now: Timestamp) -> Lease {
        Lease {
            who: self.holder.0.clone(),
            since: self.since,
            until: now + LASTS,
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

/// Takes the lease, before anything is done. `Some`: somebody else was faster. Nothing to take where no machine is yet.
pub async fn take(site: &Site, limits: &Limits, carrier: &Carrier) -> Result<Option<Lease>, Failure> {
    if !carrier.is_there {
        return Ok(None);
    }
    for _ in 1..ATTEMPTS {
        if let Ok(taken) = renew(site, limits, carrier).await {
            return Ok(taken);
        }
        tokio::time::sleep(site.jitter(TRIED_AGAIN)).await;
    }
    renew(site, limits, carrier).await
}

/// Renews the lease as long as it is polled. Ends when somebody else has it.
pub async fn keep(site: &Site, limits: &Limits, carrier: &Carrier) -> Lease {
    if carrier.is_there {
        tokio::time::sleep(RENEWED).await;
    }
    loop {
        let pause = match renew(site, limits, carrier).await {
            Ok(Some(taken)) => return taken,
            Ok(None) => RENEWED,
            // It may be one that goes.
            Err(_) if carrier.is_there => RENEWED / 4,
            Err(_) => TRIED_AGAIN,
        };
        tokio::time::sleep(pause).await;
    }
}

async fn renew(site: &Site, limits: &Limits, carrier: &Carrier) -> Result<Option<Lease>, Failure> {
    write(site, limits, carrier, Some(carrier.lease(site.env.wall.now()))).await
}

/// Takes the lease off.
pub async fn release(site: &Site, limits: &Limits, carrier: &Carrier) {
    let _ = write(site, limits, carrier, None).await;
}

/// Compare-and-set on what was just read: an edit by somebody else in between wins. `Some`: the lease is somebody else's.
async fn write(site: &Site, limits: &Limits, carrier: &Carrier, lease: Option<Lease>) -> Result<Option<Lease>, Failure> {
    let vm = &carrier.vm;
    let _slot = limits.vm(vm.vmid).await;
    let (place, config) = Place::config(site, vm).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let Some(mark) = Mark::parse(before).filter(|mark| mark.cluster_id == carrier.cluster_id) else {
        return Err(Failure::changed(format!("{vm} lost its mark")));
    };
    if let Some(taken) = carrier.taken(&mark, site.env.wall.now()) {
        return Ok(Some(taken));
    }
    let after = with_lease(before, lease);
    if after == before {
        return Ok(None);
    }
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    change.set.description = Some(crate::act::named(&after)?);
    site.pve.call(qemu::set(&place.host, place.vmid, &change)).await?;
    Ok(None)
}
