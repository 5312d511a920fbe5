//! What people made for machines that are about to go: replication, backup jobs, HA rules.

use std::collections::BTreeMap;

use mainstay_plan::{Mark, Seen, Vm, VmJobs};
use pve_api::{Client, Error, Vmid, cluster};
use semver::Version;

use super::ObserveScope;

/// The first release with HA rules.
const HA_RULES: u64 = 9;

/// Whether a machine of this cluster is about to go.
pub fn may_go(mark: &Mark, vmid: u32, scope: &ObserveScope<'_>) -> bool {
    scope.removes_all || mark.going || !scope.vmids.contains(&vmid)
}

/// Adds the jobs of each machine that is about to go. Without one nothing is asked.
pub async fn read(
    pve: &Client,
    version: &Version,
    scope: &ObserveScope<'_>,
    vms: Seen<BTreeMap<u32, Vm>>,
) -> Seen<BTreeMap<u32, Vm>> {
    let Seen::Yes(mut vms) = vms else { return vms };
    let goes = |vm: &Vm| {
        let mark = vm.config.yes().and_then(|config| Mark::parse(&config.description));
        mark.is_some_and(|mark| Some(mark.cluster_id) == scope.cluster_id && may_go(&mark, vm.vmid, scope))
    };
    let going: Vec<u32> = vms.values().filter(|vm| goes(vm)).map(|vm| vm.vmid).collect();
    if going.is_empty() {
        return Seen::Yes(vms);
    }
    let rules = async {
        if version.major < HA_RULES {
            return Ok(Vec::new());
        }
        pve.call(cluster::ha_rules()).await
    };
    let (replication, backups, rules) =
        tokio::join!(pve.call(cluster::replication_jobs()), pve.call(cluster::backup_jobs()), rules);
    for vmid in going {
        if let (Some(vm), Ok(id)) = (vms.get_mut(&vmid), vmid.to_string().parse()) {
            vm.jobs = VmJobs {
                replication: replications(&replication, vmid),
                purged: purged(&backups, &rules, id),
            };
        }
    }
    Seen::Yes(vms)
}

fn replications(jobs: &Result<Vec<cluster::ReplicationJob>, Error>, vmid: u32) -> Seen<Vec<String>> {
    let name = |job: &cluster::ReplicationJob| match &job.target {
        Some(target) => format!("{} to {target}", job.id),
        None => job.id.clone(),
    };
    match jobs {
        Ok(jobs) => {
            let of_it = jobs.iter().filter(|job| job.guest == vmid.to_string());
            Seen::Yes(of_it.map(name).collect())
        }
        Err(error) => Seen::Unknown(error.to_string()),
    }
}

fn purged(
    backups: &Result<Vec<cluster::BackupJob>, Error>,
    rules: &Result<Vec<cluster::HaRule>, Error>,
    vmid: Vmid,
) -> Seen<Vec<String>> {
    match (backups, rules) {
        (Ok(backups), Ok(rules)) => {
            let backups = backups.iter().filter(|job| job.names(vmid));
            let backups = backups.map(|job| format!("backup job {}", job.id));
            let rules = rules.iter().filter(|rule| rule.names(vmid));
            let rules = rules.map(|rule| format!("HA rule {}", rule.rule));
            Seen::Yes(backups.chain(rules).collect())
        }
        (Err(error), _) | (_, Err(error)) => Seen::Unknown(error.to_string()),
    }
}
