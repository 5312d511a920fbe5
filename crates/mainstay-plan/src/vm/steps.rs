//! Single steps on the VM of one machine: claim, fill, grow, start, change, mark, reboot.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_spec::{Firmware, StorageId};

use crate::action::Action;
use crate::builder::{PlanBuilder, StepBuilder};
use crate::context::Context;
use crate::desired::DesiredMachine;
use crate::mark::{MadeDisk, Mark};
use crate::ownership::{EFI_SLOT, OwnedVm, SYSTEM_SLOT};
use crate::placement::StorageChoice;
use crate::settings::Setting;
use crate::step::{Claim, Fill, Impact, MarkUpdate, StepId, StoredImage, VmRef};
use crate::vm_diff::{self, SYSTEM_SERIAL, VmDiff};
use crate::volumes;

/// Adds steps on one machine's VM.
pub(crate) struct VmSteps<'p, 'a> {
    pub ctx: Context<'a>,
    pub machine: &'a DesiredMachine,
    pub plan: &'p mut PlanBuilder,
}

impl<'a> VmSteps<'_, 'a> {
    pub fn step(&mut self, action: Action) -> StepBuilder<'_> {
        self.plan.machine_step(self.machine, action)
    }

    /// Claims the VMID. The mark lists the disks that `fill` will ask for. Returns the step after which the VM carries all its marks.
    pub fn claim(&mut self, vm: &VmRef, fill: &Fill) -> StepId {
        let tags_follow = self.ctx.observed.token.pool_scoped;
        let mark = Mark {
            disks: Some(requested(fill)),
            ..self.ctx.mark(self.machine, vm.vmid)
        };
        let tags = vm_diff::desired_tags(self.machine);
        let claim = Claim {
            vm: vm.clone(),
            name: self.machine.name().to_owned(),
            mark: Mark {
                tag_follows: tags_follow,
                ..mark.clone()
            },
            tags: tags.clone(),
            tags_follow,
            pool: self.ctx.cluster.resource_pool.clone(),
            shape: self.machine.machine.shape.clone(),
            nic: vm_diff::desired_nic(self.ctx.cluster, self.machine),
            agent: self.ctx.cluster.agent,
            has_serial: self.ctx.cluster.first_user.is_some(),
        };
        let why = self.why_new();
        let claimed = self.step(Action::MachineClaim(Box::new(claim))).because(why).add();
        if !tags_follow {
            return claimed;
        }
        self.write_mark(vm.clone(), mark, tags)
            .because("this token may set tags only after the VM exists")
            .needs([claimed])
            .add()
    }

    /// Why a machine is made, in the words of the person who edited the file.
    fn why_new(&self) -> String {
        let ours = &self.ctx.owned.ours;
        if ours.is_empty() {
            return "new cluster".to_owned();
        }
        let pool = &self.machine.machine.pool;
        let machines = self.ctx.cluster.machines.iter();
        let all: Vec<&DesiredMachine> = machines.filter(|other| other.machine.pool == *pool).collect();
        let existing = all.iter().filter(|other| ours.contains_key(other.name())).count();
        if existing == 0 || self.was_registered() {
            return "not found in the datacenter".to_owned();
        }
        format!("pool {pool}: {existing} -> {}", all.len())
    }

    /// Kubernetes or etcd still know a machine of this name, so it existed before.
    fn was_registered(&self) -> bool {
        let name = self.machine.name();
        self.ctx.node(name).is_some() || self.ctx.members().iter().any(|member| member.name == name)
    }

    pub fn fill(&mut self, fill: Fill, needs: impl IntoIterator<Item = StepId>) -> StepId {
        let action = Action::MachineFill(Box::new(fill));
        self.step(action).because("it has no disk").needs(needs).add()
    }

    /// An imported disk has the size of its image, so it is grown before the first start.
    pub fn grow_and_start(&mut self, vm: &VmRef, filled: StepId) -> StepId {
        let grow = Action::MachineGrow {
            vm: vm.clone(),
            slot: SYSTEM_SLOT.to_owned(),
            to: self.machine.machine.shape.disk.size,
        };
        let grown = self
            .step(grow)
            .because("the disk has the size of the image")
            .needs([filled])
            .add();
        self.start(vm.clone(), "it is new", Some(grown))
    }

    pub fn start(&mut self, vm: VmRef, why: &str, after: Option<StepId>) -> StepId {
        self.step(Action::MachineStart { vm }).because(why).needs(after).add()
    }

    pub fn stop(&mut self, vm: &OwnedVm<'_>, why: &str, after: Option<StepId>) -> StepId {
        let action = Action::MachineStop {
            vm: vm.vm_ref(),
            check: None,
        };
        self.step(action).because(why).needs(after).add()
    }

    /// Grows disks. A system disk that was never grown is what an interrupted run leaves most often.
    pub fn grow(&mut self, vm: &OwnedVm<'_>, diff: &VmDiff, after: Option<StepId>) -> Option<StepId> {
        let mut last = after;
        for growth in &diff.growth {
            let action = Action::MachineGrow {
                vm: vm.vm_ref(),
                slot: growth.slot.clone(),
                to: growth.to,
            };
            let why = growth.text();
            let impact = if vm.runs() { Impact::Live } else { Impact::None };
            last = Some(self.step(action).because(why).impact(impact).needs(last).add());
        }
        last
    }

    /// Moves a VM to the resource pool of the file, or out of the one that mainstay put it in.
    pub fn move_pool(&mut self, vm: &OwnedVm<'_>, diff: &VmDiff, after: Option<StepId>) -> Option<StepId> {
        let Some(to) = diff.pool.clone() else { return after };
        let why = vm_diff::pool_text(to.as_deref());
        let action = Action::MachinePool {
            vm: vm.vm_ref(),
            from: vm.vm.pool.clone(),
            to,
        };
        Some(self.step(action).because(why).needs(after).add())
    }

    /// Gives a stopped VM that has its system disk the EFI disk or seed that it lost.
    pub fn complete(&mut self, vm: &OwnedVm<'_>, storages: Option<&StorageChoice>, after: Option<StepId>) -> Option<StepId> {
        let Some(storages) = storages else { return after };
        let mut fill = new_fill(self.ctx, self.machine, &vm.vm_ref(), storages);
        without_existing(&mut fill, vm);
        fill.extra.clear();
        if fill.efi.is_none() && fill.seed_on.is_none() {
            return after;
        }
        let after = self.announce(vm, &fill, after);
        let action = Action::MachineFill(Box::new(fill));
        let step = self.step(action).because("its EFI disk or seed is missing");
        Some(step.needs(after).add())
    }

    /// Changes a VM in one request, which also records the shape. Without changes only the record is brought up to date.
    pub fn change(&mut self, vm: &OwnedVm<'_>, diff: &VmDiff, after: Option<StepId>) -> Option<StepId> {
        if diff.changes.is_empty() {
            let is_listed = vm.mark.as_ref().and_then(|mark| mark.disks.as_ref()) == Some(&volumes::listed(self.ctx.desired, vm));
            let why = match (self.is_recorded(vm), is_listed) {
                (true, true) => return after,
                _ if !vm.missing.is_empty() => return after,
                (false, _) => "updates the recorded settings in the VM description",
                (true, false) => "records in the VM description the disks that mainstay made",
            };
            return Some(self.mark(vm).because(why).needs(after).add());
        }
        let impact = if vm.runs() { diff.impact() } else { Impact::None };
        Some(self.change_settings(vm, diff).impact(impact).needs(after).add())
    }

    /// One request for all settings that differ; the mark goes with it.
    pub fn change_settings(&mut self, vm: &OwnedVm<'_>, diff: &VmDiff) -> StepBuilder<'_> {
        let action = Action::MachineChange {
            vm: vm.vm_ref(),
            settings: diff.settings(),
            mark: Box::new(desired_mark(self.ctx, self.machine, vm).with_made(attached(diff))),
        };
        self.step(action).because(diff.text())
    }

    /// The mark on the VM says what it should.
    fn is_recorded(&self, vm: &OwnedVm<'_>) -> bool {
        let mark = self.ctx.mark(self.machine, vm.vm.vmid);
        let is_shape_recorded = matches_recorded_shape(self.ctx, self.machine, vm);
        vm.mark.as_ref().is_some_and(|recorded| {
            let placed = (&recorded.tags, &recorded.pool) == (&mark.tags, &mark.pool);
            is_shape_recorded && placed && (&recorded.versions, recorded.role) == (&mark.versions, mark.role)
        })
    }

    /// Restarts through PVE, so that pending settings and a staged config take effect.
    pub fn reboot(&mut self, vm: &OwnedVm<'_>, why: &str, needs: impl IntoIterator<Item = StepId>) -> StepId {
        let action = Action::MachineReboot {
            vm: vm.vm_ref(),
            guest: self.ctx.guest_ref(self.machine.name()),
            check: self.ctx.restart_check(self.machine),
        };
        self.step(action).because(why).impact(Impact::Reboot).needs(needs).add()
    }

    /// Writes the mark that the VM should carry.
    pub fn mark(&mut self, vm: &OwnedVm<'_>) -> StepBuilder<'_> {
        let mark = desired_mark(self.ctx, self.machine, vm);
        self.write_mark(vm.vm_ref(), mark, vm_diff::desired_tags(self.machine))
    }

    pub fn write_mark(&mut self, vm: VmRef, mark: Mark, tags: BTreeSet<String>) -> StepBuilder<'_> {
        let remark = MarkUpdate { vm, mark, tags };
        self.step(Action::MachineMark(Box::new(remark)))
    }

    /// Takes the word back that the machine is being deleted.
    pub fn cancel_deletion(&mut self, vm: &OwnedVm<'_>, mark: Mark, after: Option<StepId>) -> StepId {
        let mark = Mark {
            going: false,
            // The run that holds the lease by then keeps it.
            lease: None,
            ..mark
        };
        self.write_mark(vm.vm_ref(), mark, vm_diff::desired_tags(self.machine))
            .because("cancels a deletion that was started earlier")
            .needs(after)
            .add()
    }

    /// Lists the disks in the mark before they are asked for, where it does not list them yet: a run that is interrupted may never hear
    /// that PVE made them.
    pub fn announce(&mut self, vm: &OwnedVm<'_>, fill: &Fill, after: Option<StepId>) -> Option<StepId> {
        let requested = requested(fill);
        let listed = vm.mark.as_ref().and_then(|mark| mark.disks.as_ref());
        if listed.is_some_and(|listed| requested.iter().all(|(slot, disk)| listed.get(slot) == Some(disk))) {
            return after;
        }
        let mark = desired_mark(self.ctx, self.machine, vm).with_made(requested);
        let tags = vm_diff::desired_tags(self.machine);
        let step = self.write_mark(vm.vm_ref(), mark, tags);
        Some(
            step.because("records in the VM description the disks that are requested next")
                .needs(after)
                .add(),
        )
    }
}

/// The slots that a fill asks PVE to fill. The seed is not among them: PVE writes it anew at each start.
fn requested(fill: &Fill) -> BTreeMap<String, MadeDisk> {
    let efi = fill.efi.iter().map(|_| (EFI_SLOT.to_owned(), MadeDisk::default()));
    volumes::asked(fill.system.iter().chain(&fill.extra)).chain(efi).collect()
}

/// The disks that a change adds.
fn attached(diff: &VmDiff) -> Vec<(String, MadeDisk)> {
    let disks = diff.changes.iter().filter_map(|change| match &change.setting {
        Setting::Attach(disk) => Some(disk),
        _ => None,
    });
    volumes::asked(disks).collect()
}

/// Records in the mark that etcd is about to begin on this machine.
pub(crate) fn record_bootstrap(
    ctx: Context<'_>,
    machine: &DesiredMachine,
    vm: VmRef,
    after: Option<StepId>,
    plan: &mut PlanBuilder,
) -> StepId {
    let mark = Mark {
        bootstrap: true,
        ..ctx.mark(machine, vm.vmid)
    };
    let tags = vm_diff::desired_tags(machine);
    let action = Action::MachineMark(Box::new(MarkUpdate { vm, mark, tags }));
    plan.machine_step(machine, action)
        .because("records in the VM description that etcd is bootstrapped here")
        .needs(after)
        .add()
}

/// Records in the mark that the etcd that began on this machine was ready.
pub(crate) fn record_founded(
    ctx: Context<'_>,
    machine: &DesiredMachine,
    vm: VmRef,
    after: Option<StepId>,
    plan: &mut PlanBuilder,
) -> StepId {
    let mark = Mark {
        bootstrap: true,
        founded: true,
        ..ctx.mark(machine, vm.vmid)
    };
    let tags = vm_diff::desired_tags(machine);
    let action = Action::MachineMark(Box::new(MarkUpdate { vm, mark, tags }));
    plan.machine_step(machine, action)
        .because("records that its etcd was ready")
        .needs(after)
        .add()
}

/// The mark of the file with what must never be lost from the one that is there.
pub(crate) fn desired_mark(ctx: Context<'_>, machine: &DesiredMachine, vm: &OwnedVm<'_>) -> Mark {
    Mark {
        bootstrap: vm.mark.as_ref().is_some_and(|mark| mark.bootstrap),
        founded: vm.mark.as_ref().is_some_and(|mark| mark.founded),
        going: vm.is_deleting() && vm.is_filled() && !vm.runs(),
        disks: Some(volumes::listed(ctx.desired, vm)),
        ..ctx.mark(machine, vm.vm.vmid)
    }
}

/// The file is as it was when the shape was applied.
pub(crate) fn matches_recorded_shape(ctx: Context<'_>, machine: &DesiredMachine, vm: &OwnedVm<'_>) -> bool {
    let recorded = vm.mark.as_ref().and_then(|mark| mark.shape.as_ref());
    recorded.is_some_and(|recorded| crate::digest::matches(recorded, ctx.cluster, machine))
}

/// The fill of a VM that has nothing.
pub(crate) fn new_fill(ctx: Context<'_>, machine: &DesiredMachine, vm: &VmRef, storages: &StorageChoice) -> Fill {
    let shape = &machine.machine.shape;
    let on = |storage: &Option<StorageId>| storage.as_ref().map_or_else(|| storages.disks.clone(), ToString::to_string);
    let system = vm_diff::new_disk(SYSTEM_SLOT.to_owned(), on(&shape.disk.storage), &shape.disk, SYSTEM_SERIAL);
    let extra = shape
        .disks
        .iter()
        .zip(1..)
        .map(|(extra, n)| vm_diff::new_disk(format!("scsi{n}"), on(&extra.disk.storage), &extra.disk, &extra.name));
    Fill {
        vm: vm.clone(),
        efi: (shape.firmware == Firmware::Ovmf).then(|| system.storage.clone()),
        system: Some(system),
        image: StoredImage {
            storage: storages.images.clone(),
            file: machine.image.file.clone(),
        },
        seed_on: Some(storages.seeds.clone()),
        seed: vm_diff::seed(ctx.cluster, machine),
        extra: extra.collect(),
        boot: vec![SYSTEM_SLOT.to_owned()],
    }
}

/// Takes out of a fill what the VM has already: a fill is not idempotent.
pub(crate) fn without_existing(fill: &mut Fill, vm: &OwnedVm<'_>) {
    let config = vm.config;
    if vm.is_filled() {
        fill.system = None;
    }
    if config.disks.contains_key(EFI_SLOT) {
        fill.efi = None;
    }
    if config.seed.is_some() {
        fill.seed_on = None;
    }
    fill.extra.retain(|disk| vm_diff::by_serial(config, &disk.serial).is_none());
    for (disk, slot) in fill.extra.iter_mut().zip(vm_diff::free_slots(config)) {
        disk.slot = slot;
    }
}
