//! The lease: which run works on the cluster, as a line in the mark of the cluster's first machine. It is taken before anything is done
//! to an existing cluster. Steps that stop or remove something do not begin without it: two concurrent runs could each decide that one
//! control plane can be spared, and together take two; and one run could free a volume that the other has just made under the same name.
//! Steps that create something need no lease, because a lease often cannot be written exactly when a host or storage is broken.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_plan::{Action, Lease, Mark, Observed, Ownership, Plan, Vm, VmRef, ownership, with_lease};
use pve_api::{Description, qemu};
use uuid::Uuid;

use crate::act::VmLocation;
use crate::clients::Clients;
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

/// Who asks: `user@machine`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseHolder(String);

impl LeaseHolder {
    pub fn new(user: &str, machine: &str) -> Self {
        let clean = |part: &str| part.chars().filter(char::is_ascii_graphic).collect::<String>();
        Self(format!("{}@{}", clean(user), clean(machine)))
    }
}

impl std::fmt::Display for LeaseHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// The lease of another run that still holds.
pub fn held_by_another(observed: &Observed, cluster_id: Uuid, holder: &LeaseHolder, now: Timestamp) -> Option<Lease> {
    observed.held_by(cluster_id, now).filter(|lease| lease.who != holder.0)
}

/// Which run asks for the lease of which cluster.
#[derive(Debug, Clone)]
pub struct LeaseRequest {
    pub cluster_id: Uuid,
    pub holder: LeaseHolder,
    /// A lease of another run is overwritten.
    pub takes_over: bool,
    pub since: Timestamp,
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

    /// The lease of another run that this mark carries, if we may not overwrite it.
    fn taken(&self, mark: &Mark, now: Timestamp) -> Option<Lease> {
        let another = |lease: &&Lease| lease.holds(now) && lease.who != self.request.holder.0;
        mark.lease
            .as_ref()
            .filter(another)
            .filter(|_| !self.request.takes_over)
            .cloned()
    }
}

impl LeaseRequest {
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

/// Takes the lease, before anything is done. `Some`: another run was faster. Where no machine is yet, the claim of the first one takes it.
pub async fn take(site: &Clients, limits: &Limits, carrier: &LeaseVm) -> Result<Option<Lease>, Failure> {
    let first = (!carrier.is_there).then(|| FirstLease {
        vmid: carrier.vm.vmid,
        lease: carrier.request.lease(site.env.wall.now()),
        lasts: LASTS,
    });
    let is_first = first.is_some();
    *site.first_lease.lock().expect("plain data") = first;
    if is_first {
        return Ok(None);
    }
    for _ in 1..ATTEMPTS {
        if let Ok(taken) = renew(site, limits, carrier).await {
            return Ok(taken);
        }
        tokio::time::sleep(site.jitter.pause(TRIED_AGAIN)).await;
    }
    renew(site, limits, carrier).await
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
            Ok(Some(taken)) => return taken,
            Ok(None) => RENEWED,
            // It may be one that goes, or that is not made yet.
            Err(_) => RENEWED / 4,
        };
    }
}

async fn renew(site: &Clients, limits: &Limits, carrier: &LeaseVm) -> Result<Option<Lease>, Failure> {
    write(site, limits, carrier, Some(carrier.request.lease(site.env.wall.now()))).await
}

/// Takes the lease off.
pub async fn release(site: &Clients, limits: &Limits, carrier: &LeaseVm) {
    let _ = write(site, limits, carrier, None).await;
}

/// Compare-and-set on what was just read: an edit by another client in between wins. `Some`: another run holds the lease.
async fn write(site: &Clients, limits: &Limits, carrier: &LeaseVm, lease: Option<Lease>) -> Result<Option<Lease>, Failure> {
    let vm = &carrier.vm;
    let (location, config) = VmLocation::config(site, vm).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let Some(mark) = Mark::parse(before).filter(|mark| mark.cluster_id == carrier.request.cluster_id) else {
        return Err(Failure::stale_plan(format!("{vm} lost its mark")));
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
    change.set.description = Some(crate::pve_config::parse_name(&after)?);
    // Steps on this machine come first. If one of them changes it meanwhile, the digest refuses this write.
    let _slot = limits.vm(vm.vmid).await;
    site.pve.call(qemu::set(&location.host, location.vmid, &change)).await?;
    Ok(None)
}
