//! Where a VM is now, and whether it is still the VM that the plan means.

use mainstay_plan::VmRef;
use pve_api::{Call, VmConfig, Vmid, cluster, qemu};
use uuid::Uuid;

use crate::clients::Clients;
use crate::failure::Failure;
use crate::known::VmProof;
use crate::pve_config::{current_and_pending, parse_name};

/// Host and VMID of a VM: what every request about it needs.
#[derive(Debug)]
pub struct VmLocation {
    pub host: pve_api::Host,
    pub vmid: Vmid,
}

impl VmLocation {
    pub(super) fn of(proof: &VmProof) -> Self {
        Self {
            host: proof.host.clone(),
            vmid: proof.vmid,
        }
    }

    pub(super) fn planned(vm: &VmRef) -> Result<Self, Failure> {
        Ok(Self {
            host: parse_name(&vm.host)?,
            vmid: parse_name(vm.vmid)?,
        })
    }

    /// Reads the config of a VM on the host where it is now: HA or an administrator may have migrated it since the plan was made. `None` if
    /// the VM does not exist.
    pub(super) async fn read(site: &Clients, vm: &VmRef) -> Result<Option<(Self, VmConfig)>, Failure> {
        Self::read_by(site, vm, qemu::config).await
    }

    async fn read_by<T>(
        site: &Clients,
        vm: &VmRef,
        call: impl Fn(&pve_api::Host, Vmid) -> Call<T>,
    ) -> Result<Option<(Self, T)>, Failure> {
        let planned = Self::planned(vm)?;
        match site.pve.call(call(&planned.host, planned.vmid)).await {
            Ok(read) => return Ok(Some((planned, read))),
            Err(error) if error.is_missing() => {}
            Err(error) => return Err(error.into()),
        }
        let Some(location) = Self::find(site, planned.vmid).await? else {
            return Ok(None);
        };
        match site.pve.call(call(&location.host, location.vmid)).await {
            Ok(read) => Ok(Some((location, read))),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    async fn find(site: &Clients, vmid: Vmid) -> Result<Option<Self>, Failure> {
        let guests = site.pve.call(cluster::resources(Some(cluster::ResourceKind::Vm))).await?;
        let host = guests.into_iter().find_map(|resource| match resource {
            cluster::Resource::Guest(guest) if guest.vmid == vmid => Some(guest.host),
            _ => None,
        });
        Ok(host.map(|host| Self { host, vmid }))
    }

    /// Reads the config and checks the SMBIOS UUID: another VM may have taken the VMID since the plan was made. `None` if the VM does not
    /// exist.
    pub(super) async fn ours(site: &Clients, vm: &VmRef) -> Result<Option<(Self, VmConfig)>, Failure> {
        let read = Self::read(site, vm).await?;
        if let Some((_, config)) = &read {
            check_uuid(vm, config)?;
        }
        Ok(read)
    }

    /// As [`Self::ours`], for a VM that must exist.
    pub async fn config(site: &Clients, vm: &VmRef) -> Result<(Self, VmConfig), Failure> {
        Self::ours(site, vm).await?.ok_or_else(|| gone(vm))
    }

    /// Whether a VM that must exist is running.
    pub(super) async fn power(site: &Clients, vm: &VmRef) -> Result<(Self, bool), Failure> {
        let (location, _) = Self::config(site, vm).await?;
        let running = is_running(site, &location).await?;
        Ok((location, running))
    }
}

/// As [`VmLocation::ours`], with the pending values.
pub(super) async fn read_proof(site: &Clients, vm: &VmRef) -> Result<Option<VmProof>, Failure> {
    let Some((location, entries)) = VmLocation::read_by(site, vm, qemu::pending).await? else {
        return Ok(None);
    };
    let (config, pending) = current_and_pending(&entries);
    check_uuid(vm, &config)?;
    Ok(Some(VmProof {
        host: location.host,
        vmid: location.vmid,
        config,
        pending,
    }))
}

fn check_uuid(vm: &VmRef, config: &VmConfig) -> Result<(), Failure> {
    if uuid(config) == Some(vm.uuid) {
        Ok(())
    } else {
        Err(Failure::stale_plan(format!(
            "{vm} is another VM now: its SMBIOS UUID differs"
        )))
    }
}

pub(super) fn uuid(config: &VmConfig) -> Option<Uuid> {
    config.smbios.as_ref().and_then(|smbios| smbios.uuid)
}

pub(super) fn gone(vm: &VmRef) -> Failure {
    Failure::stale_plan(format!("{vm} does not exist any more"))
}

pub(super) async fn is_running(site: &Clients, location: &VmLocation) -> Result<bool, Failure> {
    Ok(site.pve.call(qemu::status(&location.host, location.vmid)).await?.status == cluster::RunState::Running)
}
