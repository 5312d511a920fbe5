//! `adopt`: puts the marks back on a VM that lost some of them, if its SMBIOS UUID is that of a machine of this cluster.

use std::collections::BTreeSet;

use futures::future::join_all;
use mainstay_plan::{Mark, TAG, VmRef};
use mainstay_spec::{Spec, smbios_uuid};
use pve_api::{Description, VmConfig, cluster, qemu, task};
use uuid::Uuid;

use crate::act::VmLocation;
use crate::clients::Clients;
use crate::failure::Failure;
use crate::pve_config::{description, with_tags};

/// A VM that may be adopted, and the marks that it gets.
#[derive(Debug)]
pub struct Adoption {
    pub vm: VmRef,
    /// The name that the VM has in Proxmox VE.
    pub vm_name: Option<String>,
    pub running: bool,
    pub mark: Mark,
    /// Nothing is missing.
    pub complete: bool,
}

/// Reads the VM and every other visible VM. An error says why the VM is not adopted.
pub async fn adoption(site: &Clients, spec: &Spec, cluster_id: Uuid, vmid: u32) -> Result<Adoption, Failure> {
    let resources = site.pve.call(cluster::resources(Some(cluster::ResourceKind::Vm))).await?;
    let guests = resources.into_iter().filter_map(|resource| match resource {
        cluster::Resource::Guest(guest) if guest.kind == cluster::GuestKind::Qemu => Some(guest),
        _ => None,
    });
    let read = guests.map(|guest| async {
        let config = site.pve.call(qemu::config(&guest.host, guest.vmid)).await;
        (guest, config)
    });
    let (mut own, mut others) = (None, Vec::new());
    for (guest, config) in join_all(read).await {
        // A copy is recognised only if every VM was read.
        let config = config?;
        if guest.vmid.get() == vmid {
            own = Some((guest, config));
        } else {
            others.push((guest.vmid.get(), config));
        }
    }
    let Some((guest, config)) = own else {
        return Err(refused(vmid, "no VM with this VMID is visible to the token"));
    };
    let mark = mark(spec, cluster_id, vmid, &config)?;
    check_idle(site, &guest, &config).await?;
    check_unique(vmid, &config, &others)?;
    let tagged = config.tags.as_ref().is_some_and(|tags| tags.contains(TAG));
    let marked = own_mark(&config).is_some();
    Ok(Adoption {
        vm: VmRef {
            host: guest.host.to_string(),
            vmid,
            uuid: mark.uuid(),
        },
        vm_name: guest.name,
        running: guest.status == cluster::RunState::Running,
        mark,
        complete: tagged && marked,
    })
}

/// Writes the marks, if the VM is still the one that was shown. Compare-and-set with the config's digest.
pub async fn adopt(site: &Clients, adoption: &Adoption) -> Result<(), Failure> {
    let (location, config) = VmLocation::config(site, &adoption.vm).await?;
    let before = config.description.as_ref().map(Description::as_str).unwrap_or_default();
    let mut change = qemu::Change {
        digest: config.digest,
        ..qemu::Change::default()
    };
    change.set.description = Some(description(&adoption.mark.write_into(before))?);
    change.set.tags = Some(with_tags(config.tags.as_ref(), &BTreeSet::from([TAG.to_owned()]))?);
    site.pve.call(qemu::set(&location.host, location.vmid, &change)).await?;
    Ok(())
}

fn refused(vmid: u32, why: impl Into<String>) -> Failure {
    Failure::refused(format!("VM {vmid} is not adopted"))
        .why(why)
        .help("nothing was changed")
}

fn own_mark(config: &VmConfig) -> Option<Mark> {
    config.description.as_ref().and_then(|text| Mark::parse(text.as_str()))
}

/// The mark that the VM should carry. The block is believed where it agrees with UUID and VMID; without a block the file must name the
/// machine, because only the file says then what the VM is.
fn mark(spec: &Spec, cluster_id: Uuid, vmid: u32, config: &VmConfig) -> Result<Mark, Failure> {
    let uuid = config.smbios.as_ref().and_then(|smbios| smbios.uuid);
    if let Some(mark) = own_mark(config) {
        return match mark {
            mark if mark.cluster_id != cluster_id => Err(refused(
                vmid,
                format!(
                    "its description names another cluster {} (id {})",
                    mark.cluster, mark.cluster_id
                ),
            )),
            mark if mark.vmid != vmid => Err(refused(
                vmid,
                format!("it is a copy of {}, which was claimed as VM {}", mark.machine, mark.vmid),
            )),
            mark if uuid != Some(mark.uuid()) => Err(refused(
                vmid,
                format!("its SMBIOS UUID is not that of {}, which its description names", mark.machine),
            )),
            mark => Ok(Mark {
                tag_follows: false,
                ..mark
            }),
        };
    }
    let is_it = |name: &str| uuid == Some(smbios_uuid(cluster_id, name));
    let Some(machine) = spec.machines.iter().find(|machine| is_it(machine.name.as_str())) else {
        return Err(refused(vmid, "its SMBIOS UUID is not that of any machine in cluster.yaml")
            .help("if its machine was taken out of cluster.yaml, write it back first"));
    };
    Ok(Mark {
        cluster: spec.name.to_string(),
        cluster_id,
        machine: machine.name.to_string(),
        role: machine.role,
        vmid,
        tag_follows: false,
        shape: None,
        versions: None,
        bootstrap: false,
        founded: false,
        going: false,
        disks: None,
        lease: None,
        upgrade: None,
        host_key: None,
        tags: BTreeSet::new(),
        pool: None,
    })
}

async fn check_idle(site: &Clients, guest: &cluster::Guest, config: &VmConfig) -> Result<(), Failure> {
    let vmid = guest.vmid.get();
    if let Some(lock) = &config.lock {
        return Err(refused(vmid, format!("Proxmox VE holds the lock `{lock}` on it")));
    }
    if guest.template || config.template {
        return Err(refused(vmid, "it is a template"));
    }
    let active = site.pve.call(task::active(&guest.host)).await?;
    let about = vmid.to_string();
    let is_about = |task: &&task::TaskEntry| task.upid.subject() == about;
    match active.items.iter().find(is_about) {
        Some(task) => Err(refused(vmid, format!("its task {} still runs", task.upid))),
        None => Ok(()),
    }
}

/// A restored backup has the UUID and the MAC of its original. Which of the two is the machine cannot be told.
fn check_unique(vmid: u32, config: &VmConfig, others: &[(u32, VmConfig)]) -> Result<(), Failure> {
    let uuid = |config: &VmConfig| config.smbios.as_ref().and_then(|smbios| smbios.uuid);
    let mac = |config: &VmConfig| config.nets.get(&0).and_then(|net| net.mac);
    for (other, theirs) in others {
        let shared = match () {
            () if uuid(theirs) == uuid(config) => "SMBIOS UUID",
            () if mac(theirs).is_some() && mac(theirs) == mac(config) => "MAC address of net0",
            () => continue,
        };
        return Err(
            refused(vmid, format!("VM {other} has the same {shared}, so one of the two is a copy")).help(format!(
                "delete the copy, or give it an identity of its own, then run `mainstay adopt {vmid}` again"
            )),
        );
    }
    Ok(())
}
