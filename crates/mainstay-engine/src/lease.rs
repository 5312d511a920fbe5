//! Who works on the cluster: a line in the mark of its first machine, for people to see. Correctness never rests on it, since a lease
//! cannot be written exactly when things break.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_plan::{Action, Lease, Mark, Observed, Ownership, Plan, VmRef, ownership, with_lease};
use pve_api::{Description, qemu};
use uuid::Uuid;

use crate::failure::Failure;
use crate::limits::Limits;
use crate::site::Site;

/// A lease that is not renewed ends after this.
const LASTS: Duration = Duration::from_secs(120);
const RENEWED: Duration = Duration::from_secs(45);
/// The machine that is to carry it may be a moment from being made.
const TRIED_AGAIN: Duration = Duration::from_secs(2);

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
    cluster_id: Uuid,
    holder: Holder,
    /// The lease of somebody else is no reason to stop.
    takes_over: bool,
}

impl Carrier {
    /// The machine with the lowest VMID that is ours beyond doubt and stays; in a new cluster, the first that will be.
    pub fn of(plan: &Plan, observed: &Observed, cluster_id: Uuid, holder: &Holder, takes_over: bool) -> Option<Self> {
        let vms = observed.vms.yes()?.values();
        let mut ours = vms.filter(|vm| matches!(ownership(vm, cluster_id, None), Ownership::Ours(_)));
        let there = ours.next().map(|vm| VmRef {
            host: vm.host.clone(),
            vmid: vm.vmid,
        });
        let goes = |vm: &VmRef| {
            plan.removals()
                .any(|step| step.action.vm().is_some_and(|gone| gone.vmid == vm.vmid))
        };
        let vm = match there {
            Some(vm) if goes(&vm) => return None,
            Some(vm) => vm,
            None => first_claimed(plan)?,
        };
        Some(Self {
            vm,
            cluster_id,
            holder: holder.clone(),
            takes_over,
        })
    }

    /// Whether this mark is of our cluster, and its lease ours to write. Of two who began at once the first to write goes on; the
    /// other is told so in its next round.
    fn may_write(&self, mark: &Mark, now: Timestamp) -> bool {
        let taken = mark
            .lease
            .as_ref()
            .is_some_and(|lease| lease.holds(now) && lease.who != self.holder.0);
        mark.cluster_id == self.cluster_id && (self.takes_over || !taken)
    }
}

fn first_claimed(plan: &Plan) -> Option<VmRef> {
    let claims = plan
        .steps
        .iter()
        .filter(|step| matches!(step.action, Action::MachineClaim(_)));
    claims.filter_map(|step| step.action.vm().cloned()).min_by_key(|vm| vm.vmid)
}

/// Renews the lease as long as it is polled. Never ends by itself; what goes wrong is nobody's reason to stop.
pub async fn keep(site: &Site, limits: &Limits, carrier: &Carrier) {
    let since = site.env.wall.now();
    loop {
        let until = site.env.wall.now() + LASTS;
        let lease = Lease {
            who: carrier.holder.0.clone(),
            since,
            until,
        };
        let written = write(site, limits, carrier, Some(lease)).await;
        tokio::time::sleep(if written.is_ok() { RENEWED } else { TRIED_AGAIN }).await;
    }
}

/// Takes the lease off.
pub async fn release(site: &Site, limits: &Limits, carrier: &Carrier) {
    let _ = write(site, limits, carrier, None).await;
}

/// Compare-and-set on what was just read: an edit by somebody else in between wins.
async fn write(site: &Site, limits: &Limits, carrier: &Carrier, lease: Option<Lease>) -> Result<(), Failure> {
    let vm = &carrier.vm;
    let _slot = limits.vm(vm.vmid).await;
    let (host, vmid) = (crate::act::named(&vm.host)?, crate::act::named(vm.vmid)?);
    let config = site.pve.call(qemu::config(&host, vmid)).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let after = with_lease(before, lease);
    let now = site.env.wall.now();
    let ours = Mark::parse(before).is_some_and(|mark| carrier.may_write(&mark, now));
    if after == before || !ours {
        return Ok(());
    }
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    change.set.description = Some(crate::act::named(&after)?);
    site.pve.call(qemu::set(&host, vmid, &change)).await?;
    Ok(())
}
