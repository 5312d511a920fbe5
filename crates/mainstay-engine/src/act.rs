//! Executes one step. Every action reads the current state first, acts, and waits for its own effect, so repeating it is always safe.

mod addon;
mod disks;
mod drain;
mod image;
mod kubernetes;
mod location;
mod node;
mod pool;
mod servers;
mod tasks;
mod upgrade;
mod vm;

pub use self::location::VmLocation;

use mainstay_plan::{Action, Step};

use self::servers::Servers;

use crate::addresses::AddressBook;
use crate::clients::Clients;
use crate::event::StepProgress;
use crate::failure::Failure;
use crate::guest;

/// Executes one step. This is the engine's only match on `Action`.
pub async fn act(step: &Step, clients: &Clients, addresses: &AddressBook, progress: &StepProgress) -> Result<(), Failure> {
    let subject = step.subject.to_string();
    let ctx = clients.step(addresses, progress);
    match &step.action {
        Action::SchematicRegister { schematic } => guest::register_schematic(&clients.guests, schematic).await,
        Action::ImageFetch { at, image } => image::fetch(clients, progress, at, image).await,
        Action::ImageDiscard { at, file } | Action::ImageDelete { at, file } => image::delete(clients, at, file).await,
        Action::MachineClaim(claim) => vm::claim(clients, claim).await,
        Action::MachineMark(update) => vm::mark(clients, update).await,
        Action::MachineFill(fill) => disks::fill(clients, ctx, fill).await,
        Action::MachineGrow { vm, slot, to } => disks::grow(clients, progress, vm, slot, *to).await,
        Action::MachineStart { vm } => vm::start(clients, ctx, vm).await,
        Action::MachineChange { vm, settings, mark } => vm::change(clients, vm, settings, mark).await,
        Action::MachinePool { vm, from, to } => pool::move_to(clients, vm, from.as_deref(), to.as_deref()).await,
        Action::MachineReboot { vm, guest, check } => vm::reboot(clients, ctx, vm, guest, check.as_ref()).await,
        Action::MachineStop { vm, check } => vm::stop(clients, ctx, vm, check.as_ref()).await,
        Action::MachineDelete {
            vm,
            volumes,
            with_disks,
            purge,
            check,
            only_going,
        } => {
            let deletion = vm::VmDeletion {
                machine: &subject,
                vm,
                volumes,
                with_disks,
                purge: *purge,
                only_going: *only_going,
            };
            vm::delete(clients, ctx, &deletion, check.as_ref()).await
        }
        Action::VolumeDelete { at, volume, identity } => disks::delete_volume(clients, progress, at, volume, *identity).await,
        Action::GuestProve { vm, guest } => vm::prove(clients, ctx, vm, guest).await,
        Action::GuestPrepare { guest, config } => guest::prepare(ctx, guest, config).await,
        Action::GuestConfigure { guest, config } => guest::configure(ctx, guest, config).await,
        Action::GuestAwait { guest } => guest::await_answer(ctx, guest).await,
        Action::GuestReconfigure {
            guest,
            config,
            mode,
            check,
        } => guest::reconfigure(ctx, guest, config, *mode, check.as_ref()).await,
        Action::GuestPull { guest, image } => guest::pull_system(ctx, guest, image).await,
        Action::KubernetesPull { guest, parts, to } => guest::pull_kubernetes(ctx, guest, parts, to).await,
        Action::KubernetesChange { guest, part, to, ask } => kubernetes::change(Servers { ctx, ask }, guest, *part, to).await,
        Action::GuestUpgrade(order) => upgrade::upgrade(clients, ctx, order).await,
        Action::EtcdBootstrap {
            guest,
            config,
            prove_empty,
            again,
        } => guest::bootstrap(ctx, guest, config, prove_empty, *again).await,
        Action::EtcdJoin { guest } => guest::await_voter(ctx, guest).await,
        Action::EtcdLeave { member, by, ask } => guest::remove_member(ctx, member, by, ask).await,
        Action::NodeAwait { until, ask } => node::await_ready(ctx, &subject, *until, ask).await,
        Action::NodeChange { change, ask } => node::change(Servers { ctx, ask }, &subject, change).await,
        Action::NodeDelete { ask, was_drained } => node::delete(Servers { ctx, ask }, &subject, *was_drained).await,
        Action::NodeCordon { turn, budget, ask } => {
            drain::cordon(clients, Servers { ctx, ask }, &subject, turn, budget.as_ref()).await
        }
        Action::NodeDrain { drain, ask } => drain::drain(clients, Servers { ctx, ask }, &subject, drain).await,
        Action::NodeUncordon { ask } => drain::uncordon(clients, Servers { ctx, ask }, &subject).await,
        Action::ChartFetch { chart } => clients.charts.fetch(chart).await,
        Action::ReleaseStart(run) => addon::start(ctx, clients, run).await,
        Action::ReleaseAwait(watch) => addon::await_release(ctx, clients, watch).await,
        Action::ReleaseClean(cleanup) => addon::clean(ctx, cleanup).await,
        Action::AddonAwait { workloads, ask } => addon::await_workloads(ctx, &subject, workloads, ask).await,
    }
}
