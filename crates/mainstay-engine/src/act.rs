//! What each action does. Every one looks first, acts, and waits for its own effect, so that beginning it anew is always safe.

mod image;
mod machine;
mod node;
mod talos;
mod wait;

pub use self::machine::Place;

use mainstay_plan::{Action, Step};

use crate::event::Voice;
use crate::failure::{Failure, Kind};
use crate::site::Site;

/// Does one step.
pub async fn act(step: &Step, site: &Site, voice: &Voice) -> Result<(), Failure> {
    let subject = step.subject.to_string();
    match &step.action {
        Action::SchematicRegister { schematic } => image::register(site, schematic).await,
        Action::ImageFetch { at, image } => image::fetch(site, voice, at, image).await,
        Action::ImageDiscard { at, file } | Action::ImageDelete { at, file } => image::delete(site, at, file).await,
        Action::MachineClaim(claim) => machine::claim(site, claim).await,
        Action::MachineMark(remark) => machine::mark(site, remark).await,
        Action::MachineFill(fill) => machine::fill(site, voice, fill).await,
        Action::MachineGrow { vm, slot, to } => machine::grow(site, voice, vm, slot, *to).await,
        Action::MachineStart { vm } => machine::start(site, voice, vm).await,
        Action::MachineChange { vm, settings, mark } => machine::change(site, vm, settings, mark).await,
        Action::MachineReboot { vm, address } => machine::reboot(site, voice, vm, *address).await,
        Action::MachineStop { vm, spare } => machine::stop(site, voice, vm, spare.as_ref()).await,
        Action::MachineDelete {
            vm,
            volumes,
            with_disks,
            purge,
            spare,
            only_going,
        } => {
            let going = machine::Going {
                machine: &subject,
                vm,
                volumes,
                with_disks,
                purge: *purge,
                only_going: *only_going,
            };
            machine::delete(site, voice, &going, spare.as_ref()).await
        }
        Action::VolumeDelete { at, volume } => machine::delete_volume(site, voice, at, volume).await,
        Action::TalosConfigure { address, uuid, config } => talos::configure(site, voice, *address, *uuid, config).await,
        Action::TalosAwait { address, uuid } => talos::await_answer(site, voice, *address, *uuid).await,
        Action::TalosReconfigure {
            address,
            uuid,
            config,
            how,
        } => talos::reconfigure(site, voice, *address, *uuid, config, *how).await,
        Action::TalosBootstrap { address, prove } => talos::bootstrap(site, voice, *address, prove).await,
        Action::EtcdJoin { address } => talos::etcd_join(site, voice, &subject, *address).await,
        Action::EtcdLeave { member, by } => talos::etcd_leave(site, voice, member, by).await,
        Action::NodeAwait { until } => node::await_ready(site, voice, &subject, *until).await,
        Action::NodeDelete => node::delete(site, &subject).await,
    }
}

/// The plan names only what PVE can name; if it does not, that is ours to mend.
pub(crate) fn named<T: std::str::FromStr>(text: impl ToString) -> Result<T, Failure>
where
    T::Err: std::error::Error + Send + Sync + 'static,
{
    let text = text.to_string();
    text.parse().map_err(|error: T::Err| {
        Failure::new(Kind::Bug, format!("the plan says `{text}`, which Proxmox VE cannot mean")).caused_by(error)
    })
}
