//! Resource pools of Proxmox VE.

use mainstay_plan::VmRef;
use pve_api::{PoolId, pool};

use super::location::VmLocation;
use super::tasks::journal_begin;
use crate::clients::Clients;
use crate::failure::Failure;
use crate::pve_config::parse_name;

/// Moves a VM that is still the planned one. Where it is already, nothing is sent: Proxmox VE refuses to add a member twice.
pub(super) async fn move_to(site: &Clients, vm: &VmRef, from: Option<&str>, to: Option<&str>) -> Result<(), Failure> {
    let (location, _) = VmLocation::config(site, vm).await?;
    let guests = [location.vmid];
    let is_in = async |id: &PoolId| -> Result<bool, Failure> {
        let found = site.pve.call(pool::members(id)).await?;
        let mut members = found.iter().flat_map(|pool| &pool.members);
        Ok(members.any(|member| member.vmid == Some(location.vmid)))
    };
    journal_begin(site, "machine.pool", &vm.to_string());
    if let Some(to) = to {
        let id: PoolId = parse_name(to)?;
        if !is_in(&id).await? {
            site.pve.call(pool::move_guests(&id, &guests)).await?;
        }
    } else if let Some(from) = from {
        let id: PoolId = parse_name(from)?;
        if is_in(&id).await? {
            site.pve.call(pool::remove_guests(&id, &guests)).await?;
        }
    }
    Ok(())
}
