//! The VM pass: brings the VM of every machine of the file from whatever state it is in to running.

mod steps;

use std::collections::{BTreeMap, BTreeSet};

use crate::builder::PlanBuilder;
use crate::context::{Context, StepByMachine};
use crate::desired::DesiredMachine;
use crate::images::ImageTable;
use crate::observed::{Guest, PowerState, Seen, StorageAt};
use crate::ownership::{OwnedVm, SYSTEM_SLOT, UNFINISHED_CLAIM, VmLookup};
use crate::placement::{self, Placement, StorageChoice};
use crate::plan::HoldReason;
use crate::step::{StepId, VmRef};
use crate::vm_diff::{self, DiskGrowth, SettingChange, VmDiff};
use crate::volumes;

pub(crate) use steps::{VmSteps, record_bootstrap, record_founded};

/// No file may ask for a smaller system disk, in GiB: what has less was never grown since it was made of the image.
const SMALLEST_DISK: u64 = 10;

/// A VM after the steps that were planned for it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum VmOutcome {
    /// Nothing is done about it in this plan.
    Held,
    /// It runs after this step, or already. `new_disk`: it was never configured, so it holds no data.
    Running { after: Option<StepId>, new_disk: bool },
}

/// What later passes must know about the VMs.
pub(crate) struct VmPass<'a> {
    pub outcomes: BTreeMap<&'a str, VmOutcome>,
    /// The last step on each VM that runs and stays up: its marks, its disks, the settings it takes live.
    pub live_steps: StepByMachine<'a>,
    /// Running machines whose settings need a restart. They wait for their turn.
    pub restarts: BTreeMap<&'a str, VmDiff>,
    /// Leftover volumes that this pass deletes.
    pub freed: BTreeSet<String>,
}

pub(crate) fn plan<'a>(
    ctx: Context<'a>,
    placement: &Placement,
    images: &mut ImageTable<'a>,
    plan: &mut PlanBuilder,
) -> VmPass<'a> {
    let mut pass = VmPass {
        outcomes: BTreeMap::new(),
        live_steps: BTreeMap::new(),
        restarts: BTreeMap::new(),
        freed: BTreeSet::new(),
    };
    for machine in &ctx.cluster.machines {
        let mut planner = VmPlanner {
            steps: VmSteps { ctx, machine, plan },
            placement,
            images,
            freed: &mut pass.freed,
        };
        let result = planner.plan_machine();
        pass.outcomes.insert(machine.name(), result.outcome);
        pass.live_steps.extend(result.live_step.map(|step| (machine.name(), step)));
        pass.restarts.extend(result.restart.map(|diff| (machine.name(), diff)));
    }
    pass
}

/// What was planned for one VM.
struct MachineResult {
    outcome: VmOutcome,
    live_step: Option<StepId>,
    restart: Option<VmDiff>,
}

impl From<VmOutcome> for MachineResult {
    fn from(outcome: VmOutcome) -> Self {
        Self {
            outcome,
            live_step: None,
            restart: None,
        }
    }
}

/// Plans one VM.
struct VmPlanner<'p, 'a> {
    steps: VmSteps<'p, 'a>,
    placement: &'p Placement,
    images: &'p mut ImageTable<'a>,
    freed: &'p mut BTreeSet<String>,
}

impl<'a> VmPlanner<'_, 'a> {
    fn machine(&self) -> &'a DesiredMachine {
        self.steps.machine
    }

    fn ctx(&self) -> Context<'a> {
        self.steps.ctx
    }

    fn hold(&mut self, what: &'static str, reason: impl Into<HoldReason>) -> VmOutcome {
        self.steps.plan.hold(self.steps.machine.subject(), what, reason);
        VmOutcome::Held
    }

    fn plan_machine(&mut self) -> MachineResult {
        if let Some(reason) = self.copy() {
            return self.hold("machine", reason).into();
        }
        match self.ctx().lookup(self.machine()) {
            VmLookup::Absent => self.create().into(),
            VmLookup::Unknown(why) => {
                let reason = format!("VM {}: {why}", self.machine().machine.vmid);
                self.hold("machine", HoldReason::transient(reason)).into()
            }
            // What is left of it is removed first; the next plan makes it anew.
            VmLookup::Found(vm) if vm.is_partially_deleted(self.ctx().observed) => VmOutcome::Held.into(),
            VmLookup::Found(vm) => self.resume(vm),
        }
    }

    /// Another VM that passes for this machine.
    fn copy(&self) -> Option<HoldReason> {
        let (ctx, machine) = (self.ctx(), self.machine());
        let uuid = ctx.uuid(machine.name());
        match ctx.lookup(machine) {
            VmLookup::Found(vm) => {
                let mac = vm.config.nic.as_ref().map_or(machine.machine.mac, |nic| nic.mac);
                ctx.owned.copy(vm.vm.vmid, uuid, mac)
            }
            VmLookup::Absent => ctx.owned.copy(machine.machine.vmid, uuid, machine.machine.mac),
            VmLookup::Unknown(_) => None,
        }
    }

    fn create(&mut self) -> VmOutcome {
        let vmid = self.machine().machine.vmid;
        // A machine without a host was refused or held when hosts were chosen.
        let Some(host) = self.placement.hosts.get(self.machine().name()).cloned() else {
            return VmOutcome::Held;
        };
        if let Seen::Unknown(why) = &self.ctx().observed.leftovers {
            let reason = format!("cannot list storages, so leftover volumes of VM {vmid} cannot be ruled out: {why}");
            return self.hold("create", HoldReason::transient(reason));
        }
        let Ok(storages) = self.storages(&host) else {
            return VmOutcome::Held;
        };
        let image = match self.image(&host, &storages) {
            Ok(image) => image,
            Err(reason) => return self.hold("create", reason),
        };
        let vm = VmRef {
            host,
            vmid,
            uuid: self.ctx().uuid(self.machine().name()),
        };
        let fill = steps::new_fill(self.ctx(), self.machine(), &vm, &storages);
        let claimed = self.steps.claim(&vm, &fill);
        let filled = self.steps.fill(fill, [claimed].into_iter().chain(image));
        VmOutcome::Running {
            after: Some(self.steps.grow_and_start(&vm, filled)),
            new_disk: true,
        }
    }

    fn storages(&self, host: &str) -> Result<StorageChoice, String> {
        match self.placement.storages.get(host) {
            Some(found) => found.clone().map_err(|missing| missing.what),
            None => Err(format!("host {host} is unknown")),
        }
    }

    /// The step that must end before the VM can be filled on `host`.
    fn image(&mut self, host: &str, storages: &StorageChoice) -> Result<Option<StepId>, HoldReason> {
        let at = StorageAt {
            host: host.to_owned(),
            storage: storages.images.clone(),
        };
        let image = self.machine().image.as_ref();
        self.images.on(&at, image, self.steps.plan)
    }

    /// Continues from the state in which the VM was found.
    fn resume(&mut self, vm: &OwnedVm<'a>) -> MachineResult {
        let ctx = self.ctx();
        let storages = self.storages(&vm.vm.host);
        let disks_on = storages.as_ref().ok().map(|storages| storages.disks.as_str());
        let diff = vm_diff::compare(ctx.cluster, self.machine(), vm, disks_on);
        for kept in &diff.kept {
            self.hold("change", HoldReason::accepted(kept.clone()));
        }
        if let Some(outcome) = self.blocked(vm, &diff) {
            return outcome.into();
        }
        if let Some(refusal) = placement::growth(ctx, self.machine(), vm, &diff) {
            self.steps.plan.refuse(refusal);
        }
        self.report_drift(vm, &diff);
        let marked = self.repair_marks(vm);
        let mut last = self.cancel_deletion(vm, marked);
        if !vm.is_filled() {
            return self.resume_without_disk(vm, &diff, storages, last).into();
        }
        let too_early = self.started_before_setup(vm, &diff);
        if too_early {
            last = Some(self.steps.stop(
                vm,
                "the VM was started before its disks were complete; it is stopped to finish the setup",
                last,
            ));
        }
        last = self.steps.grow(vm, &diff, last);
        last = self.steps.move_pool(vm, &diff, last);
        if vm.runs() && !too_early {
            return self.change_running(vm, diff, last);
        }
        last = self.steps.complete(vm, storages.as_ref().ok(), last);
        last = self.steps.change(vm, &diff, last);
        let why = if too_early {
            "it was never configured"
        } else if vm.config.pending.is_empty() {
            "it is stopped"
        } else {
            "it is stopped with changes"
        };
        let started = self.steps.start(vm.vm_ref(), why, last);
        if vm.is_deleting() {
            let mark = steps::desired_mark(ctx, self.machine(), vm);
            self.steps.cancel_deletion(vm, mark, Some(started));
        }
        let outcome = VmOutcome::Running {
            after: Some(started),
            new_disk: too_early,
        };
        outcome.into()
    }

    /// The outcome of a VM on which nothing may be done now.
    fn blocked(&mut self, vm: &OwnedVm<'a>, diff: &VmDiff) -> Option<VmOutcome> {
        if let Some(reason) = vm.blocked(self.ctx().observed) {
            // The lock of a backup on a machine that is as it should be holds nothing up.
            let is_settled = vm.is_filled() && vm.runs() && diff.is_empty() && vm.missing.is_empty() && !vm.is_deleting();
            return Some(if is_settled {
                VmOutcome::Running {
                    after: None,
                    new_disk: false,
                }
            } else {
                self.hold("change", reason.would(&diff.summary()))
            });
        }
        if let PowerState::Other(state) = &vm.vm.power {
            let vmid = vm.vm.vmid;
            let reason = format!("the VM is in state {state}; check its console, then: qm resume {vmid} or qm stop {vmid}");
            return Some(self.hold("start", reason));
        }
        None
    }

    /// The VM was started before its disk was grown, and perhaps before it had one, so that it never looks for it. Only one that was
    /// never configured counts: a config comes after the growth.
    fn started_before_setup(&self, vm: &OwnedVm<'_>, diff: &VmDiff) -> bool {
        let (ctx, name) = (self.ctx(), self.machine().name());
        let is_image = |growth: &DiskGrowth| growth.slot == SYSTEM_SLOT && (1..SMALLEST_DISK).contains(&growth.from.0);
        let is_founder = vm.mark.as_ref().is_some_and(|mark| mark.bootstrap);
        let is_recorded = steps::matches_recorded_shape(ctx, self.machine(), vm);
        let ungrown = diff.growth.iter().any(is_image) && is_recorded && !is_founder;
        let answers = !matches!(ctx.guest(name), Some(Guest::Silent(_)) | None);
        let is_member = ctx.members().iter().any(|member| member.name == name);
        vm.runs() && ungrown && !answers && !is_member && !ctx.is_ready(name)
    }

    /// The file is as it was when the shape was applied, so a difference was made outside mainstay. A disk that was never grown is our
    /// own unfinished work, so growth is not reported.
    fn report_drift(&mut self, vm: &OwnedVm<'_>, diff: &VmDiff) {
        if steps::matches_recorded_shape(self.ctx(), self.machine(), vm) {
            for change in &diff.changes {
                self.steps.plan.drift(self.steps.machine.subject(), drift(change));
            }
            let recorded = vm.mark.as_ref().and_then(|mark| mark.pool.as_ref());
            if let Some(Some(pool)) = diff.pool.as_ref().filter(|pool| pool.as_ref() == recorded) {
                let is = vm.vm.pool.as_deref().unwrap_or("none");
                let what = format!("pool is {is}, was set to {pool}");
                self.steps.plan.drift(self.steps.machine.subject(), what);
            }
        }
    }

    /// Only the claim of a pool-scoped token comes here without its tag: any other VM that lacks a mark is held.
    fn repair_marks(&mut self, vm: &OwnedVm<'_>) -> Option<StepId> {
        if vm.missing.is_empty() {
            return None;
        }
        Some(self.steps.mark(vm).because(UNFINISHED_CLAIM).add())
    }

    /// A VM whose deletion was started, and that runs or never had a disk, has lost nothing. A stopped one keeps the word until it has
    /// started, which is the proof.
    fn cancel_deletion(&mut self, vm: &OwnedVm<'_>, after: Option<StepId>) -> Option<StepId> {
        let is_whole = vm.missing.is_empty() && (vm.runs() || !vm.is_filled());
        match vm.mark.clone().filter(|mark| mark.going && is_whole) {
            Some(mark) => Some(self.steps.cancel_deletion(vm, mark, after)),
            None => after,
        }
    }

    fn resume_without_disk(
        &mut self,
        vm: &OwnedVm<'a>,
        diff: &VmDiff,
        storages: Result<StorageChoice, String>,
        after: Option<StepId>,
    ) -> VmOutcome {
        let storages = match storages {
            Ok(storages) => storages,
            Err(reason) => return self.hold("fill", format!("{}: {reason}", vm.vm.host)),
        };
        if let Seen::Unknown(why) = &self.ctx().observed.leftovers {
            let reason = format!("its volumes could not be listed: {why}");
            return self.hold("fill", HoldReason::transient(reason));
        }
        let image = match self.image(&vm.vm.host, &storages) {
            Ok(image) => image,
            Err(reason) => return self.hold("fill", reason),
        };
        let stopped = vm.runs().then(|| self.steps.stop(vm, "it runs without a disk", after));
        let changed = self.steps.change(vm, diff, stopped.or(after));
        let mut needs: Vec<StepId> = changed.into_iter().chain(stopped).chain(image).collect();
        let inputs = self.ctx().inputs;
        let freed = volumes::free_leftovers(inputs, vm.vm.vmid, volumes::BROKEN_FILL, after, self.steps.plan);
        for (volume, step) in freed {
            needs.push(step);
            self.freed.insert(volume);
        }
        let mut fill = steps::new_fill(self.ctx(), self.machine(), &vm.vm_ref(), &storages);
        steps::without_existing(&mut fill, vm);
        needs.extend(self.steps.announce(vm, &fill, changed.or(stopped).or(after)));
        let filled = self.steps.fill(fill, needs);
        VmOutcome::Running {
            after: Some(self.steps.grow_and_start(&vm.vm_ref(), filled)),
            new_disk: true,
        }
    }

    /// What a running VM takes live is changed at once. What needs a restart waits for the machine's turn.
    fn change_running(&mut self, vm: &OwnedVm<'a>, diff: VmDiff, after: Option<StepId>) -> MachineResult {
        let outcome = VmOutcome::Running {
            after: None,
            new_disk: false,
        };
        if diff.restarts() {
            MachineResult {
                outcome,
                live_step: after,
                restart: Some(diff),
            }
        } else {
            MachineResult {
                outcome,
                live_step: self.steps.change(vm, &diff, after),
                restart: None,
            }
        }
    }
}

fn drift(change: &SettingChange) -> String {
    match &change.is {
        Some(is) => format!("{} is {is}, was set to {}", change.what, change.want),
        None => format!("{} {} is gone", change.what, change.want),
    }
}
