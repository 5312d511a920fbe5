//! A machine's VM, from nothing to running: claim, fill, grow, start; or from where it was left.

use std::collections::BTreeMap;

use mainstay_spec::{Firmware, Role, StorageId};

use crate::cluster::{Brought, Course, Turn};
use crate::desired::Wanted;
use crate::mark::{MadeDisk, Mark};
use crate::observed::{Power, Seen, Talos};
use crate::place::{self, Storages};
use crate::plan::{Adding, Drift, Hold};
use crate::remove;
use crate::shape::{self, Change, Difference, Grow, SYSTEM_SERIAL};
use crate::step::{Action, Claim, Fill, ImageSource, Impact, Remark, Setting, StepId, Subject, VmRef};
use crate::survey::{EFI_SLOT, Machine, Owned, SYSTEM_SLOT};
use crate::volume;

/// No file may ask for a smaller system disk, in GiB: what has less was never grown since it was made of the image.
const LEAST_DISK: u64 = 10;

impl<'a> Course<'_, 'a> {
    /// Makes the VM of a machine run.
    pub fn bring(&mut self, wanted: &'a Wanted) -> Brought {
        match self.survey.machine(wanted.name(), wanted.machine.vmid) {
            Machine::Absent => self.create(wanted),
            Machine::Unknown(why) => {
                let reason = format!("VM {}: {why}", wanted.machine.vmid);
                self.hold(wanted, "machine", Hold::for_now(reason))
            }
            // What is left of it goes first, and the next plan makes it anew.
            Machine::There(owned) if owned.is_half_destroyed(self.survey.observed) => Brought::Held,
            Machine::There(owned) => {
                let owned = owned.clone();
                self.go_on(wanted, &owned)
            }
        }
    }

    pub fn hold(&mut self, wanted: &Wanted, what: &'static str, hold: impl Into<Hold>) -> Brought {
        self.draft.hold(subject(wanted), what, hold);
        Brought::Held
    }

    pub fn step(&mut self, wanted: &Wanted, action: Action) -> Adding<'_> {
        self.draft.step(subject(wanted), action).at(Some(wanted.machine.at))
    }

    fn create(&mut self, wanted: &'a Wanted) -> Brought {
        // A machine without a host was refused or held when hosts were chosen.
        let Some(host) = self.places.hosts.get(wanted.name()).cloned() else {
            return Brought::Held;
        };
        if let Seen::Unknown(why) = &self.survey.observed.leftovers {
            let reason = format!(
                "whether volumes of VM {} are left over could not be seen: {why}",
                wanted.machine.vmid
            );
            return self.hold(wanted, "create", Hold::for_now(reason));
        }
        let Ok(storages) = self.storages(&host) else {
            return Brought::Held;
        };
        let image = match self.image(&host, &storages.images) {
            Ok(image) => image,
            Err(reason) => return self.hold(wanted, "create", reason),
        };
        let vm = VmRef {
            host,
            vmid: wanted.machine.vmid,
            uuid: self.survey.desired.uuid(wanted.name()),
        };
        let fill = self.whole_fill(wanted, &vm, &storages, image.0);
        let claimed = self.claim(wanted, vm.clone(), asked(&fill));
        let filled = self.fill(wanted, fill, [Some(claimed), image.1]);
        Brought::Runs {
            after: Some(self.grow_and_start(wanted, &vm, filled)),
            fresh: true,
        }
    }

    fn claim(&mut self, wanted: &Wanted, vm: VmRef, disks: BTreeMap<String, MadeDisk>) -> StepId {
        let tags_follow = self.survey.observed.token.pool_scoped;
        let mark = Mark {
            disks: Some(disks),
            ..self.survey.desired.mark(self.wish, wanted, vm.vmid)
        };
        let tags = shape::wanted_tags(wanted);
        let claim = Claim {
            vm: vm.clone(),
            name: wanted.name().to_owned(),
            mark: mark.clone(),
            tags: tags.clone(),
            tags_follow,
            pool: self.wish.resource_pool.clone(),
            shape: wanted.machine.shape.clone(),
            nic: shape::wanted_nic(self.wish, wanted),
            agent: self.wish.agent,
        };
        let why = self.why_new(wanted);
        let claimed = self.step(wanted, Action::MachineClaim(Box::new(claim))).because(why).add();
        if !tags_follow {
            return claimed;
        }
        let remark = Remark { vm, mark, tags };
        self.step(wanted, Action::MachineMark(Box::new(remark)))
            .because("the token may tag only what exists")
            .needs([claimed])
            .add()
    }

    /// Why a machine is made, as the person who edited the file would say it.
    fn why_new(&self, wanted: &Wanted) -> String {
        if self.survey.ours.is_empty() {
            return "new cluster".to_owned();
        }
        let pool = &wanted.machine.pool;
        let all: Vec<&Wanted> = self
            .wish
            .machines
            .iter()
            .filter(|other| other.machine.pool == *pool)
            .collect();
        let there = all.iter().filter(|other| self.survey.ours.contains_key(other.name())).count();
        if there == 0 || self.is_remembered(wanted.name()) {
            return "not found in the datacenter".to_owned();
        }
        format!("pool {pool}: {there} -> {}", all.len())
    }

    /// Kubernetes or etcd still know a machine of this name, so it was there.
    fn is_remembered(&self, name: &str) -> bool {
        let observed = self.survey.observed;
        let node = observed
            .kubernetes
            .yes()
            .is_some_and(|kubernetes| kubernetes.nodes.contains_key(name));
        node || observed
            .etcd
            .yes()
            .is_some_and(|members| members.iter().any(|member| member.name == name))
    }

    fn storages(&self, host: &str) -> Result<Storages, String> {
        let storages = self.places.storages.get(host);
        storages.map_or_else(
            || Err(format!("host {host} is unknown")),
            |found| found.clone().map_err(|lack| lack.what),
        )
    }

    /// The fill of a VM that has nothing.
    fn whole_fill(&self, wanted: &Wanted, vm: &VmRef, storages: &Storages, image: ImageSource) -> Fill {
        let shape = &wanted.machine.shape;
        let on = |storage: &Option<StorageId>| storage.as_ref().map_or_else(|| storages.disks.clone(), ToString::to_string);
        let system = shape::new_disk(SYSTEM_SLOT.to_owned(), on(&shape.disk.storage), &shape.disk, SYSTEM_SERIAL);
        let extra = shape
            .disks
            .iter()
            .zip(1..)
            .map(|(extra, n)| shape::new_disk(format!("scsi{n}"), on(&extra.disk.storage), &extra.disk, &extra.name));
        Fill {
            vm: vm.clone(),
            efi: (shape.firmware == Firmware::Ovmf).then(|| system.storage.clone()),
            system: Some(system),
            image,
            seed_on: Some(storages.seeds.clone()),
            seed: shape::seed(self.wish, wanted),
            extra: extra.collect(),
            boot: vec![SYSTEM_SLOT.to_owned()],
        }
    }

    fn fill(&mut self, wanted: &Wanted, fill: Fill, needs: impl IntoIterator<Item = Option<StepId>>) -> StepId {
        let needs: Vec<StepId> = needs.into_iter().flatten().collect();
        self.step(wanted, Action::MachineFill(Box::new(fill)))
            .because("it has no disk")
            .needs(needs)
            .add()
    }

    /// An imported disk has the size of its image.
    fn grow_and_start(&mut self, wanted: &Wanted, vm: &VmRef, filled: StepId) -> StepId {
        let to = wanted.machine.shape.disk.size;
        let grow = Action::MachineGrow {
            vm: vm.clone(),
            slot: SYSTEM_SLOT.to_owned(),
            to,
        };
        let grown = self
            .step(wanted, grow)
            .because("the disk has the size of the image")
            .needs([filled])
            .add();
        self.step(wanted, Action::MachineStart { vm: vm.clone() })
            .because("it is new")
            .needs([grown])
            .add()
    }

    /// Goes on from whatever state the VM is in.
    fn go_on(&mut self, wanted: &'a Wanted, owned: &Owned<'a>) -> Brought {
        let storages = self.storages(&owned.vm.host);
        let disks_on = storages.as_ref().ok().map(|storages| storages.disks.as_str());
        let difference = shape::compare(self.wish, wanted, owned, disks_on);
        for left in &difference.left {
            self.draft.hold(subject(wanted), "change", Hold::for_good(left.clone()));
        }
        if let Some(reason) = owned.blocked(self.survey.observed) {
            // Nothing to do, nothing to hold: a backup's lock on a machine that is as it should be concerns nobody.
            let quiet =
                owned.is_filled() && owned.runs() && difference.is_empty() && owned.missing.is_empty() && !owned.is_going();
            return if quiet {
                Brought::Runs {
                    after: None,
                    fresh: false,
                }
            } else {
                self.hold(wanted, "change", reason)
            };
        }
        if let Power::Stuck(state) = &owned.vm.power {
            return self.hold(
                wanted,
                "start",
                format!("PVE says it is {state}; see its console, then resume or stop it"),
            );
        }
        if let Some(refusal) = place::growth(self.survey, wanted, owned, &difference) {
            self.draft.refuse(refusal);
        }
        self.tell_drift(wanted, owned, &difference);
        let mut last = self.repair_marks(wanted, owned);
        last = self.keep(wanted, owned, last);
        if !owned.is_filled() {
            return self.go_on_unfilled(wanted, owned, &difference, storages, last);
        }
        let too_early = self.runs_too_early(wanted, owned, &difference);
        if too_early {
            last = Some(self.stop_early(wanted, owned, last));
        }
        last = self.grow(wanted, owned, &difference, last);
        if owned.runs() && !too_early {
            self.change_running(wanted, owned, difference, last);
            return Brought::Runs {
                after: None,
                fresh: false,
            };
        }
        last = self.complete(wanted, owned, storages.ok(), last);
        last = self.change_now(wanted, owned, &difference, last);
        let why = if too_early {
            "it was never configured"
        } else if owned.config.pending.is_empty() {
            "it is stopped"
        } else {
            "it is stopped with changes"
        };
        let start = Action::MachineStart { vm: owned.at() };
        let started = self.step(wanted, start).because(why).needs(last).add();
        if owned.is_going() {
            self.take_back(wanted, owned, self.wanted_mark(wanted, owned), Some(started));
        }
        Brought::Runs {
            after: Some(started),
            fresh: too_early,
        }
    }

    /// Somebody started it while we made it, before its disk was grown and perhaps before it had one, and then it never looks for it. Only
    /// what was never configured counts: a config comes after the growth.
    fn runs_too_early(&self, wanted: &Wanted, owned: &Owned<'_>, difference: &Difference) -> bool {
        let is_image = |grow: &&Grow| grow.slot == SYSTEM_SLOT && (1..LEAST_DISK).contains(&grow.from.0);
        let begins_here = owned.mark.as_ref().is_some_and(|mark| mark.bootstrap);
        let ungrown = difference.grows.iter().any(|grow| is_image(&grow)) && self.is_as_filed(wanted, owned) && !begins_here;
        let speaks = !matches!(self.survey.talos(wanted.name()), Some(Talos::Silent(_)) | None);
        let members = self.survey.observed.etcd.yes();
        let is_member = members.is_some_and(|members| members.iter().any(|member| member.name == wanted.name()));
        owned.runs() && ungrown && !speaks && !is_member && !self.is_ready(wanted)
    }

    fn stop_early(&mut self, wanted: &Wanted, owned: &Owned<'_>, last: Option<StepId>) -> StepId {
        let stop = Action::MachineStop {
            vm: owned.at(),
            spare: None,
        };
        let why = "it was started before its disk was whole";
        self.step(wanted, stop).because(why).needs(last).add()
    }

    /// The file is as it was when the shape was applied.
    fn is_as_filed(&self, wanted: &Wanted, owned: &Owned<'_>) -> bool {
        let shape = owned.mark.as_ref().and_then(|mark| mark.shape.as_ref());
        shape == Some(&self.wish.digest(wanted))
    }

    /// The file is as it was when the shape was applied, so somebody else made the difference.
    fn tell_drift(&mut self, wanted: &Wanted, owned: &Owned<'_>, difference: &Difference) {
        if !self.is_as_filed(wanted, owned) {
            return;
        }
        let changes = difference.changes.iter().map(drifted);
        // A disk that was never grown is our own unfinished work, not somebody's.
        let drifts: Vec<Drift> = changes
            .map(|what| Drift {
                subject: subject(wanted),
                what,
            })
            .collect();
        self.draft.plan.drift.extend(drifts);
    }

    fn repair_marks(&mut self, wanted: &Wanted, owned: &Owned<'_>) -> Option<StepId> {
        if owned.missing.is_empty() {
            return None;
        }
        let missing: Vec<String> = owned.missing.iter().map(ToString::to_string).collect();
        let why = format!("ours by its UUID, but its {} is missing", missing.join(" and "));
        Some(self.mark(wanted, owned).because(why).add())
    }

    /// One whose destruction was begun, and that runs or never had a disk, has lost nothing. That it starts is the proof, so the word is
    /// not taken back before.
    fn keep(&mut self, wanted: &Wanted, owned: &Owned<'_>, last: Option<StepId>) -> Option<StepId> {
        let is_whole = owned.missing.is_empty() && (owned.runs() || !owned.is_filled());
        match owned.mark.clone().filter(|mark| mark.going && is_whole) {
            Some(mark) => Some(self.take_back(wanted, owned, mark, last)),
            None => last,
        }
    }

    fn take_back(&mut self, wanted: &Wanted, owned: &Owned<'_>, mark: Mark, after: Option<StepId>) -> StepId {
        let mark = Mark {
            going: false,
            // Whoever has it by then keeps it.
            lease: None,
            ..mark
        };
        let remark = Remark {
            vm: owned.at(),
            mark,
            tags: shape::wanted_tags(wanted),
        };
        let action = Action::MachineMark(Box::new(remark));
        let why = "its destruction was begun, and is taken back";
        self.step(wanted, action).because(why).needs(after).add()
    }

    fn mark(&mut self, wanted: &Wanted, owned: &Owned<'_>) -> Adding<'_> {
        let remark = Remark {
            vm: owned.at(),
            mark: self.wanted_mark(wanted, owned),
            tags: shape::wanted_tags(wanted),
        };
        self.step(wanted, Action::MachineMark(Box::new(remark)))
    }

    fn wanted_mark(&self, wanted: &Wanted, owned: &Owned<'_>) -> Mark {
        let bootstrap = owned.mark.as_ref().is_some_and(|mark| mark.bootstrap);
        Mark {
            bootstrap,
            going: owned.is_going() && owned.is_filled() && !owned.runs(),
            disks: Some(volume::listed(self.survey.desired, owned)),
            ..self.survey.desired.mark(self.wish, wanted, owned.vm.vmid)
        }
    }

    fn go_on_unfilled(
        &mut self,
        wanted: &'a Wanted,
        owned: &Owned<'a>,
        difference: &Difference,
        storages: Result<Storages, String>,
        last: Option<StepId>,
    ) -> Brought {
        let storages = match storages {
            Ok(storages) => storages,
            Err(reason) => return self.hold(wanted, "fill", format!("{}: {reason}", owned.vm.host)),
        };
        if let Seen::Unknown(why) = &self.survey.observed.leftovers {
            let reason = format!("its volumes could not be listed: {why}");
            return self.hold(wanted, "fill", Hold::for_now(reason));
        }
        let image = match self.image(&owned.vm.host, &storages.images) {
            Ok(image) => image,
            Err(reason) => return self.hold(wanted, "fill", reason),
        };
        let stop = Action::MachineStop {
            vm: owned.at(),
            spare: None,
        };
        let stopped = owned
            .runs()
            .then(|| self.step(wanted, stop).because("it runs without a disk").needs(last).add());
        let changed = self.change_now(wanted, owned, difference, stopped.or(last));
        let mut needs = vec![changed, stopped, image.1];
        let freed = remove::free_leftovers(self.survey, owned.vm.vmid, remove::BROKEN_FILL, last, &mut self.draft);
        needs.extend(freed.into_iter().map(Some));
        let mut fill = self.whole_fill(wanted, &owned.at(), &storages, image.0);
        missing_only(&mut fill, owned);
        needs.push(self.announce(wanted, owned, &fill, changed.or(stopped).or(last)));
        let filled = self.fill(wanted, fill, needs);
        Brought::Runs {
            after: Some(self.grow_and_start(wanted, &owned.at(), filled)),
            fresh: true,
        }
    }

    /// Lists the disks in the mark before they are asked for, where it does not list them yet: PVE may have made them when we hear of it.
    fn announce(&mut self, wanted: &Wanted, owned: &Owned<'_>, fill: &Fill, last: Option<StepId>) -> Option<StepId> {
        let asked = asked(fill);
        let listed = owned.mark.as_ref().and_then(|mark| mark.disks.as_ref());
        if listed.is_some_and(|listed| asked.iter().all(|(slot, disk)| listed.get(slot) == Some(disk))) {
            return last;
        }
        let remark = Remark {
            vm: owned.at(),
            mark: self.wanted_mark(wanted, owned).with_made(asked),
            tags: shape::wanted_tags(wanted),
        };
        let action = Action::MachineMark(Box::new(remark));
        let why = "lists the disks that it gets";
        Some(self.step(wanted, action).because(why).needs(last).add())
    }

    /// Grows disks; a system disk that was never grown is the commonest half state of all.
    fn grow(&mut self, wanted: &Wanted, owned: &Owned<'_>, difference: &Difference, last: Option<StepId>) -> Option<StepId> {
        let mut last = last;
        for grow in &difference.grows {
            let action = Action::MachineGrow {
                vm: owned.at(),
                slot: grow.slot.clone(),
                to: grow.to,
            };
            let why = format!("{} {} -> {} GiB", grow.label, grow.from.0, grow.to.0);
            let impact = if owned.runs() { Impact::Live } else { Impact::None };
            last = Some(self.step(wanted, action).because(why).impact(impact).needs(last).add());
        }
        last
    }

    /// A stopped VM that has its system disk but lost its EFI disk or seed.
    fn complete(
        &mut self,
        wanted: &Wanted,
        owned: &Owned<'_>,
        storages: Option<Storages>,
        last: Option<StepId>,
    ) -> Option<StepId> {
        let Some(storages) = storages else { return last };
        let source = ImageSource {
            storage: storages.images.clone(),
            file: self.wish.image.file.clone(),
        };
        let mut fill = self.whole_fill(wanted, &owned.at(), &storages, source);
        missing_only(&mut fill, owned);
        fill.extra.clear();
        if fill.efi.is_none() && fill.seed_on.is_none() {
            return last;
        }
        let last = self.announce(wanted, owned, &fill, last);
        let action = Action::MachineFill(Box::new(fill));
        Some(
            self.step(wanted, action)
                .because("its EFI disk or seed is missing")
                .needs(last)
                .add(),
        )
    }

    /// Changes a VM in one request, which also records the shape. Without changes the record alone is brought up to date.
    fn change_now(
        &mut self,
        wanted: &Wanted,
        owned: &Owned<'_>,
        difference: &Difference,
        last: Option<StepId>,
    ) -> Option<StepId> {
        let mark = self.wanted_mark(wanted, owned);
        if difference.changes.is_empty() {
            let there = owned.mark.as_ref();
            let same_shape = there
                .is_some_and(|there| (&there.shape, &there.versions, there.role) == (&mark.shape, &mark.versions, mark.role));
            let same_disks = there.is_some_and(|there| there.disks == mark.disks);
            let why = match (same_shape, same_disks) {
                (true, true) => return last,
                _ if !owned.missing.is_empty() => return last,
                (false, _) => "records the shape that is in force",
                (true, false) => "records the disks that mainstay made",
            };
            return Some(self.mark(wanted, owned).because(why).needs(last).add());
        }
        let mark = mark.with_made(attached(difference));
        let action = Action::MachineChange {
            vm: owned.at(),
            settings: difference.settings(),
            mark: Box::new(mark),
        };
        let impact = if owned.runs() { difference.impact() } else { Impact::None };
        Some(
            self.step(wanted, action)
                .because(difference.text())
                .impact(impact)
                .needs(last)
                .add(),
        )
    }

    /// What a running VM takes live is changed at once. What needs a restart waits for the machine's turn.
    fn change_running(&mut self, wanted: &'a Wanted, owned: &Owned<'a>, difference: Difference, last: Option<StepId>) {
        if difference.restarts() {
            self.touched.extend(last.map(|step| (wanted.name(), step)));
            self.turns.push(Turn {
                wanted,
                owned: owned.clone(),
                difference: Some(difference),
                config: None,
                left: false,
                after: last,
            });
        } else {
            let last = self.change_now(wanted, owned, &difference, last);
            self.touched.extend(last.map(|step| (wanted.name(), step)));
        }
    }

    /// The restart of a machine whose turn has come, and what must precede it.
    pub fn change_and_reboot(&mut self, turn: &Turn<'a>, staged: Option<StepId>, after: Vec<StepId>) -> StepId {
        let (wanted, owned) = (turn.wanted, &turn.owned);
        let difference = turn.difference.as_ref();
        let changed = difference
            .filter(|difference| !difference.changes.is_empty())
            .map(|difference| {
                let mark = Box::new(self.wanted_mark(wanted, owned).with_made(attached(difference)));
                let action = Action::MachineChange {
                    vm: owned.at(),
                    settings: difference.settings(),
                    mark,
                };
                let adding = self.step(wanted, action).because(difference.text()).impact(Impact::Live);
                adding.needs(after.iter().copied()).add()
            });
        let waiting = difference.map(|difference| difference.pending.iter().map(String::as_str).collect::<Vec<_>>().join(", "));
        let why = match waiting.filter(|keys| !keys.is_empty()) {
            Some(keys) => format!("{keys}: written, but not in force until a restart"),
            None if turn.left => "its etcd left the cluster, and joins again only at a restart".to_owned(),
            None => "takes effect at a restart".to_owned(),
        };
        let reboot = Action::MachineReboot {
            vm: owned.at(),
            address: wanted.address(),
        };
        let adding = self.step(wanted, reboot).because(why).impact(Impact::Reboot);
        adding.needs(after).needs(changed).needs(staged).add()
    }

    /// Writes that etcd is about to begin here.
    pub fn intend(&mut self, wanted: &Wanted, vm: VmRef, after: Option<StepId>) -> StepId {
        let mark = Mark {
            bootstrap: true,
            ..self.survey.desired.mark(self.wish, wanted, vm.vmid)
        };
        let remark = Remark {
            vm,
            mark,
            tags: shape::wanted_tags(wanted),
        };
        let action = Action::MachineMark(Box::new(remark));
        self.step(wanted, action)
            .because("records that etcd begins here")
            .needs(after)
            .add()
    }
}

fn drifted(change: &Change) -> String {
    match &change.is {
        Some(is) => format!("{} is {is}, was set to {}", change.what, change.want),
        None => format!("{} {} is gone", change.what, change.want),
    }
}

/// Takes out of a fill what is there already: a fill is not idempotent.
fn missing_only(fill: &mut Fill, owned: &Owned<'_>) {
    let config = owned.config;
    if owned.is_filled() {
        fill.system = None;
    }
    if config.disks.contains_key(EFI_SLOT) {
        fill.efi = None;
    }
    if config.seed.is_some() {
        fill.seed_on = None;
    }
    fill.extra.retain(|disk| shape::by_serial(config, &disk.serial).is_none());
    for (disk, slot) in fill.extra.iter_mut().zip(shape::free_slots(config)) {
        disk.slot = slot;
    }
}

/// The slots that a fill asks PVE to fill. The seed is not among them: PVE writes it anew at each start.
fn asked(fill: &Fill) -> BTreeMap<String, MadeDisk> {
    let efi = fill.efi.iter().map(|_| (EFI_SLOT.to_owned(), MadeDisk::default()));
    volume::asked(fill.system.iter().chain(&fill.extra)).chain(efi).collect()
}

/// The disks that a change adds.
fn attached(difference: &Difference) -> Vec<(String, MadeDisk)> {
    let disks = difference.changes.iter().filter_map(|change| match &change.setting {
        Setting::Attach(disk) => Some(disk),
        _ => None,
    });
    volume::asked(disks).collect()
}

pub(crate) fn subject(wanted: &Wanted) -> Subject {
    Subject::Machine(wanted.name().to_owned())
}

/// Whether a machine of ours is a control plane, by its mark or by the file.
pub(crate) fn is_control_plane(owned: &Owned<'_>, wanted: Option<&Wanted>) -> bool {
    owned.role() == Some(Role::ControlPlane) || wanted.is_some_and(Wanted::is_control_plane)
}
