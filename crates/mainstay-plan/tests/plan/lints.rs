//! Every rule of the lint bites: a good plan is broken on purpose.

use mainstay_plan::{
    Action, ApplyMode, GuestConfig, GuestRef, Observed, Plan, PowerState, Seen, Step, StepId, Subject, VmRef, lint,
};
use mainstay_spec::Gib;

use crate::world::{ONE, THREE_AND_TWO, World, empty, settled};

/// What the lint says about a plan after it was broken.
fn broken(world: &World, spoil: impl FnOnce(&mut Plan)) -> String {
    broken_in(world, &world.look(), spoil)
}

fn broken_in(world: &World, observed: &Observed, spoil: impl FnOnce(&mut Plan)) -> String {
    let mut plan = world.plan();
    spoil(&mut plan);
    lint(&plan, &world.desired(), observed)
        .iter()
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join("; ")
}

fn find<'p>(plan: &'p mut Plan, action: &str, on: &str) -> &'p mut Step {
    let is = |step: &&mut Step| step.action.name() == action && step.subject.to_string() == on;
    plan.steps
        .iter_mut()
        .find(is)
        .unwrap_or_else(|| panic!("no {action} on {on}"))
}

fn push(plan: &mut Plan, on: &str, action: Action) {
    let id = StepId(u32::try_from(plan.steps.len()).unwrap() + 1);
    let mut step = plan
        .steps
        .first()
        .cloned()
        .unwrap_or_else(|| empty(ONE).plan().steps[0].clone());
    (step.id, step.subject, step.action, step.needs) = (id, Subject::Machine(on.to_owned()), action, Vec::new());
    plan.steps.push(step);
}

fn at(host: &str, vmid: u32) -> VmRef {
    VmRef {
        host: host.to_owned(),
        vmid,
        uuid: uuid::Uuid::nil(),
    }
}

fn guest(name: &str) -> GuestRef {
    GuestRef {
        machine: name.to_owned(),
        uuid: mainstay_spec::smbios_uuid(crate::world::ID, name),
    }
}

#[test]
fn needs_that_point_forward() {
    let said = broken(&empty(ONE), |plan| plan.steps[0].needs.push(StepId(2)));
    assert_eq!(said, "step 1: needs 2, which does not come before it");
}

#[test]
fn two_machines_on_one_vmid_mac_or_address() {
    let said = broken(&empty(THREE_AND_TWO), |plan| {
        let Action::MachineClaim(first) = find(plan, "machine.claim", "prod-w-1").action.clone() else {
            panic!()
        };
        let Action::MachineClaim(second) = &mut find(plan, "machine.claim", "prod-w-2").action else {
            panic!()
        };
        (second.nic, second.vm.vmid) = (first.nic, 3001);
    });
    assert!(said.contains("claims VMID 3001, which is taken"), "{said}");
    let said = broken(&empty(THREE_AND_TWO), |plan| {
        let Action::MachineClaim(first) = find(plan, "machine.claim", "prod-w-1").action.clone() else {
            panic!()
        };
        let Action::MachineClaim(second) = &mut find(plan, "machine.claim", "prod-w-2").action else {
            panic!()
        };
        second.nic = first.nic;
        let Action::MachineFill(first) = find(plan, "machine.fill", "prod-w-1").action.clone() else {
            panic!()
        };
        let Action::MachineFill(second) = &mut find(plan, "machine.fill", "prod-w-2").action else {
            panic!()
        };
        second.seed = first.seed;
    });
    assert!(
        said.contains("a second time") && said.contains("the address 10.10.0.21 a second time"),
        "{said}"
    );
}

#[test]
fn a_claim_of_a_vmid_that_is_taken() {
    let world = empty(ONE);
    let mut observed = world.look();
    let taken = settled(ONE).look().vms;
    observed.vms = taken;
    let said = broken_in(&world, &observed, |_| {});
    assert!(said.contains("claims VMID 2001, which is taken"), "{said}");
}

#[test]
fn a_step_on_a_foreign_vm_and_one_on_an_unclaimed_vmid() {
    let world = settled(ONE).changed(|world| world.stranger(512, "accounting"));
    let said = broken(&world, |plan| {
        push(
            plan,
            "accounting",
            Action::MachineStop {
                vm: at("pve2", 512),
                check: None,
            },
        );
    });
    assert!(said.contains("acts on vm 512 on pve2, which is not ours"), "{said}");
    let said = broken(&world, |plan| {
        push(plan, "lab-cp-1", Action::MachineStart { vm: at("pve2", 777) });
    });
    assert!(said.contains("acts on vm 777 on pve2, which no step claimed"), "{said}");
    let said = broken(&world, |plan| {
        push(plan, "other", Action::MachineStart { vm: at("pve1", 2001) });
    });
    assert!(said.contains("acts on vm 2001 on pve1, which is lab-cp-1"), "{said}");
}

#[test]
fn a_step_that_would_take_another_for_its_machine() {
    let said = broken(&empty(ONE), |plan| {
        let Action::MachineStart { vm } = &mut find(plan, "machine.start", "lab-cp-1").action else {
            panic!()
        };
        vm.uuid = mainstay_spec::smbios_uuid(crate::world::ID, "lab-cp-2");
    });
    assert!(
        said.contains("takes vm 2001 on pve1 for lab-cp-1 by a UUID that is not its"),
        "{said}"
    );
}

#[test]
fn a_step_on_a_machine_that_lost_its_marks() {
    let world = settled(ONE).changed(|world| world.vm("lab-cp-1").tags.clear());
    let said = broken(&world, |plan| {
        push(
            plan,
            "lab-cp-1",
            Action::MachineReboot {
                vm: at("pve1", 2001),
                guest: guest("lab-cp-1"),
                check: None,
            },
        );
    });
    assert!(said.contains("which lacks marks"), "{said}");
}

#[test]
fn a_deletion_before_the_stop_of_what_is_protected_without_quorum_or_wanted() {
    let world = settled(THREE_AND_TWO).edit("count: 2", "count: 1");
    let said = broken(&world, |plan| find(plan, "machine.delete", "prod-w-2").needs.clear());
    assert!(said.contains("deletes vm 3002 on pve2 before it is stopped"), "{said}");
    let mut observed = world.look();
    observed.quorate = Seen::Unknown("no idea".to_owned());
    let said = broken_in(&world, &observed, |_| {});
    assert!(said.contains("although PVE's quorum is not known"), "{said}");
    let mut observed = world.look();
    if let Seen::Yes(vms) = &mut observed.vms
        && let Seen::Yes(config) = &mut vms.get_mut(&3002).unwrap().config
    {
        config.protection = true;
    }
    let said = broken_in(&world, &observed, |_| {});
    assert!(said.contains("which PVE protects"), "{said}");
    let said = broken(&world, |plan| {
        let vm = at("pve1", 3001);
        push(
            plan,
            "prod-w-1",
            Action::MachineDelete {
                vm,
                volumes: Vec::new(),
                with_disks: Vec::new(),
                purge: false,
                check: None,
                only_going: true,
            },
        );
    });
    assert!(said.contains("deletes prod-w-1, which is wanted"), "{said}");
}

#[test]
fn a_volume_that_nothing_proves_or_that_is_in_use() {
    let world = empty(ONE).changed(|world| world.leftover(2001, true)).down();
    let mut observed = world.look();
    if let Seen::Yes(leftovers) = &mut observed.leftovers {
        leftovers[0].proved = false;
    }
    let said = broken_in(&world, &observed, |_| {});
    assert!(said.contains("nothing proves that it is ours"), "{said}");
    observed.leftovers = Seen::Yes(Vec::new());
    let said = broken_in(&world, &observed, |_| {});
    assert!(said.contains("which is no leftover"), "{said}");
}

#[test]
fn a_shrinking_disk() {
    let said = broken(&settled(ONE), |plan| {
        push(
            plan,
            "lab-cp-1",
            Action::MachineGrow {
                vm: at("pve1", 2001),
                slot: "scsi0".to_owned(),
                to: Gib(10),
            },
        );
    });
    assert!(said.contains("shrinks scsi0 of vm 2001 on pve1"), "{said}");
}

#[test]
fn a_config_that_goes_to_the_wrong_machine() {
    let said = broken(&empty(THREE_AND_TWO), |plan| {
        let Action::GuestConfigure { guest, .. } = &mut find(plan, "guest.configure", "prod-w-1").action else {
            panic!()
        };
        *guest = GuestRef {
            machine: "prod-w-2".to_owned(),
            uuid: uuid::Uuid::nil(),
        };
    });
    assert!(
        said.contains("sends the config of prod-w-1 to prod-w-2") && said.contains("would believe the UUID"),
        "{said}"
    );
}

#[test]
fn a_second_bootstrap_one_that_is_not_written_down_and_one_too_many() {
    let said = broken(&empty(THREE_AND_TWO), |plan| {
        let again = find(plan, "etcd.bootstrap", "prod-cp-1").action.clone();
        push(plan, "prod-cp-2", again);
    });
    assert!(said.contains("bootstraps a second time"), "{said}");
    let said = broken(&empty(ONE), |plan| find(plan, "etcd.bootstrap", "lab-cp-1").needs.clear());
    assert!(said.contains("bootstraps before that is written down"), "{said}");
    let said = broken(&settled(ONE), |plan| {
        push(
            plan,
            "lab-cp-1",
            Action::EtcdBootstrap {
                guest: guest("lab-cp-1"),
                config: GuestConfig::new(""),
                prove_empty: [].into(),
                again: false,
            },
        );
    });
    assert!(said.contains("bootstraps although lab-cp-1 has etcd data"), "{said}");
}

#[test]
fn two_members_down_at_once_and_a_majority_that_is_lost() {
    let world = settled(THREE_AND_TWO).edit("count: 3, cpu: 4", "count: 3, cpu: 8");
    let said = broken(&world, |plan| find(plan, "machine.reboot", "prod-cp-2").needs.clear());
    assert!(said.contains("takes prod-cp-2 down while prod-cp-1 may be down"), "{said}");
    let mut observed = world.look();
    if let Seen::Yes(members) = &mut observed.etcd {
        members[2].healthy = false;
    }
    let said = broken_in(&world, &observed, |_| {});
    assert!(
        said.contains("takes prod-cp-1 down: etcd would have 1 of 3 healthy members"),
        "{said}"
    );
    let said = broken(&settled(THREE_AND_TWO), |plan| {
        let config = GuestConfig::new("x");
        push(
            plan,
            "prod-cp-1",
            Action::GuestReconfigure {
                guest: guest("prod-cp-1"),
                config,
                mode: ApplyMode::Reboot,
                check: None,
            },
        );
        push(
            plan,
            "prod-cp-2",
            Action::MachineStop {
                vm: at("pve2", 2002),
                check: None,
            },
        );
    });
    assert!(said.contains("takes prod-cp-2 down while prod-cp-1 may be down"), "{said}");
}

#[test]
fn steps_although_something_is_refused() {
    let said = broken(&empty(ONE).changed(|world| world.stranger(2001, "accounting")), |plan| {
        push(plan, "accounting", Action::MachineStart { vm: at("pve2", 2001) });
    });
    assert!(said.contains("is planned although something is refused"), "{said}");
}

#[test]
fn a_machine_that_could_not_be_looked_at() {
    let world = settled(ONE).stopped("lab-cp-1");
    let mut observed = world.look();
    if let Seen::Yes(vms) = &mut observed.vms {
        let vm = vms.get_mut(&2001).unwrap();
        (vm.config, vm.power) = (Seen::Unknown("595".to_owned()), PowerState::Stopped);
    }
    let said = broken_in(&world, &observed, |_| {});
    assert!(said.contains("whose owner is unknown: 595"), "{said}");
}
