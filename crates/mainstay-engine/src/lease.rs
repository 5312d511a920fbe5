//! Who works on the cluster: a line in the mark of its first machine, for people to see. Correctness never rests on it, since a lease
//! cannot be written exactly when things break.

use std::time::Duration;

use jiff::Timestamp;
use mainstay_plan::{Lease, Mark, Observed, Ownership, VmRef, ownership, with_lease};
use pve_api::{Description, qemu};
use uuid::Uuid;

use crate::failure::Failure;
use crate::limits::Limits;
use crate::site::Site;

/// A lease that is not renewed ends after this.
const LASTS: Duration = Duration::from_secs(120);
const RENEWED: Duration = Duration::from_secs(45);

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

/// The machine that carries the lease: the one with the lowest VMID that is ours beyond doubt.
pub fn carrier(observed: &Observed, cluster_id: Uuid) -> Option<VmRef> {
    let vms = observed.vms.yes()?.values();
    let mut ours = vms.filter(|vm| matches!(ownership(vm, cluster_id, None), Ownership::Ours(_)));
    ours.next().map(|vm| VmRef {
        host: vm.host.clone(),
        vmid: vm.vmid,
    })
}

/// Renews the lease as long as it is polled. Never ends by itself; what goes wrong is nobody's reason to stop.
pub async fn keep(site: &Site, limits: &Limits, carrier: &VmRef, holder: &Holder) {
    let since = site.env.wall.now();
    loop {
        let until = site.env.wall.now() + LASTS;
        let lease = Lease {
            who: holder.0.clone(),
            since,
            until,
        };
        let _ = write(site, limits, carrier, Some(lease)).await;
        tokio::time::sleep(RENEWED).await;
    }
}

/// Takes the lease off.
pub async fn release(site: &Site, limits: &Limits, carrier: &VmRef) {
    let _ = write(site, limits, carrier, None).await;
}

/// Compare-and-set on what was just read: an edit by somebody else in between wins.
async fn write(site: &Site, limits: &Limits, carrier: &VmRef, lease: Option<Lease>) -> Result<(), Failure> {
    let _slot = limits.vm(carrier.vmid).await;
    let (host, vmid) = (crate::act::named(&carrier.host)?, crate::act::named(carrier.vmid)?);
    let config = site.pve.call(qemu::config(&host, vmid)).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let after = with_lease(before, lease);
    if after == before || Mark::parse(before).is_none() {
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
