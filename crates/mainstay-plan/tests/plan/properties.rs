//! What holds for every world that can be made up.

use mainstay_plan::{Action, Mark, Plan, PowerState, Seen, StepId};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof, proptest};
use proptest::sample::Index;
use proptest::test_runner::Config as Runs;

use crate::world::{World, empty, gib, host, spec};

/// A file: how many, and what.
#[derive(Debug, Clone)]
pub struct File {
    control_planes: usize,
    workers: usize,
    memory: usize,
    disk: usize,
    extra: bool,
    cni: bool,
}

impl File {
    pub fn yaml(&self) -> String {
        let extra = if self.extra {
            ", disks: [{ name: data, size: 10GiB }]"
        } else {
            ""
        };
        let cni = if self.cni { "" } else { "cni: none\n" };
        format!(
            "name: prod
datacenter: {{ endpoint: https://pve.lan:8006 }}
network: {{ cidr: 10.10.0.0/16, gateway: 10.10.0.1, vip: 10.10.0.20, dns: [1.1.1.1] }}
{cni}pools:
  control-plane: {{ count: {}, memory: {}GiB, addresses: 10.10.0.30+, vmids: 2001+, names: 'prod-cp-{{n}}' }}
  worker: {{ count: {}, memory: {}GiB, disk: {}GiB, addresses: 10.10.1.1+, vmids: 3001+, names: 'prod-w-{{n}}'{extra} }}
",
            self.control_planes, self.memory, self.workers, self.memory, self.disk
        )
    }
}

pub fn file() -> impl Strategy<Value = File> {
    let counts = (prop_oneof![Just(1usize), Just(3), Just(5)], 0..5usize);
    (counts, 4..8usize, 20..24usize, any::<bool>(), any::<bool>()).prop_map(
        |((control_planes, workers), memory, disk, extra, cni)| File {
            control_planes,
            workers,
            memory,
            disk,
            extra,
            cni,
        },
    )
}

/// What happens to a world.
#[derive(Debug, Clone)]
pub enum Event {
    /// `up` is killed after some of its steps.
    Killed(u64),
    /// The same, but PVE breaks off a destruction that it began.
    BrokeOff(Index),
    Settled,
    /// The file is edited. Disks only grow, and the way is taken by machines that are well.
    Edited {
        control_planes: usize,
        workers: usize,
        memory: usize,
        disk: usize,
    },
    Stopped(Index),
    /// An administrator deletes a worker.
    Deleted(Index),
    Untagged(Index),
    Renamed(Index),
    Moved(Index),
    Resized(Index),
    Silenced(Index),
    LeftOver(Index),
    /// The operator makes a control plane leave etcd.
    LeftEtcd(Index),
}

pub fn event() -> impl Strategy<Value = Event> {
    let edited = (prop_oneof![Just(1usize), Just(3), Just(5)], 0..5usize, 4..8usize, 24..28usize);
    prop_oneof![
        4 => any::<u64>().prop_map(Event::Killed),
        1 => any::<Index>().prop_map(Event::BrokeOff),
        1 => Just(Event::Settled),
        2 => edited.prop_map(|(control_planes, workers, memory, disk)| Event::Edited { control_planes, workers, memory, disk }),
        1 => any::<Index>().prop_map(Event::Stopped),
        1 => any::<Index>().prop_map(Event::Deleted),
        1 => any::<Index>().prop_map(Event::Untagged),
        1 => any::<Index>().prop_map(Event::Renamed),
        1 => any::<Index>().prop_map(Event::Moved),
        1 => any::<Index>().prop_map(Event::Resized),
        1 => any::<Index>().prop_map(Event::Silenced),
        1 => any::<Index>().prop_map(Event::LeftOver),
        1 => any::<Index>().prop_map(Event::LeftEtcd),
    ]
}

pub fn happen(world: &mut World, file: &mut File, event: &Event) {
    match event {
        Event::Killed(picks) => {
            let plan = world.plan();
            world.apply_some(&plan, |step| picks.rotate_left(step.id.0) & 7 == 0);
        }
        Event::BrokeOff(at) => {
            let plan = world.plan();
            let deletes = plan
                .steps
                .iter()
                .filter(|step| matches!(step.action, Action::MachineDelete { .. }));
            let deletes: Vec<_> = deletes.collect();
            if !deletes.is_empty() {
                let delete = at.get(&deletes);
                world.apply_some(&plan, |step| delete.needs.contains(&step.id));
                world.half_destroy(&delete.subject.to_string());
            }
        }
        Event::Settled => {
            world.settle();
        }
        Event::Edited {
            control_planes,
            workers,
            memory,
            disk,
        } => {
            // A machine that loses its tag and its place in the file at once is not found again: descriptions of untagged VMs are not read.
            for vm in world.vms().values_mut() {
                vm.tags.insert("mainstay".to_owned());
            }
            (file.control_planes, file.workers, file.memory) = (*control_planes, *workers, *memory);
            file.disk = file.disk.max(*disk);
            world.yaml = file.yaml();
        }
        Event::Stopped(at) => with(world, at, |world, vmid| {
            world.vms().get_mut(&vmid).unwrap().power = PowerState::Stopped;
        }),
        Event::Deleted(at) => with(world, at, |world, vmid| {
            if vmid > 3000 {
                world.vms().remove(&vmid);
                world.guests.remove(&vmid);
                world.forget_lost(vmid);
                // A volume whose owner cannot be proved stops the next claim, which another test covers.
                world.observed.leftovers = Seen::Yes(Vec::new());
            }
        }),
        Event::Untagged(at) => with(world, at, |world, vmid| {
            if spec(&world.yaml).machines.iter().any(|machine| machine.vmid == vmid) {
                let vm = world.vms().get_mut(&vmid).unwrap();
                // As the claim of a pool-scoped token leaves it. Any other VM without a tag is held for good, which is told elsewhere.
                if let Seen::Yes(config) = &mut vm.config
                    && let Some(mark) = Mark::parse(&config.description)
                {
                    let claimed = Mark {
                        tag_follows: true,
                        ..mark
                    };
                    config.description = claimed.write_into(&config.description);
                    vm.tags.clear();
                }
            }
        }),
        Event::Renamed(at) => with(world, at, |world, vmid| {
            if let Seen::Yes(config) = &mut world.vms().get_mut(&vmid).unwrap().config {
                config.name = Some("renamed".to_owned());
            }
        }),
        Event::Moved(at) => with(world, at, |world, vmid| {
            world.vms().get_mut(&vmid).unwrap().host = "pve2".to_owned();
        }),
        Event::Resized(at) => with(world, at, |world, vmid| {
            if let Seen::Yes(config) = &mut world.vms().get_mut(&vmid).unwrap().config {
                config.cores += 1;
            }
        }),
        Event::Silenced(at) => with(world, at, |world, vmid| {
            if let Some(guest) = world.guests.get_mut(&vmid) {
                guest.silent = true;
            }
        }),
        Event::LeftOver(at) => with(world, at, |world, vmid| world.leftover(vmid, true)),
        Event::LeftEtcd(at) => with(world, at, World::leave_etcd),
    }
}

fn with(world: &mut World, at: &Index, change: impl FnOnce(&mut World, u32)) {
    let vmids: Vec<u32> = world.vms().keys().copied().collect();
    if !vmids.is_empty() {
        change(world, *at.get(&vmids));
    }
}

/// Steps in another order that respects what they need.
fn shuffled(plan: &Plan, picks: &[Index]) -> Vec<StepId> {
    let mut open: Vec<StepId> = plan.steps.iter().map(|step| step.id).collect();
    let mut order: Vec<StepId> = Vec::new();
    for pick in picks.iter().cycle().take(open.len()) {
        let ready: Vec<StepId> = open
            .iter()
            .copied()
            .filter(|id| plan.step(*id).unwrap().needs.iter().all(|need| order.contains(need)))
            .collect();
        let next = *pick.get(&ready);
        open.retain(|id| *id != next);
        order.push(next);
    }
    order
}

proptest! {
    #![proptest_config(Runs { cases: 200, failure_persistence: None, ..Runs::default() })]

    /// Whatever happened, `up` settles, and planning again is empty. Every plan on the way is linted.
    #[test]
    fn whatever_happened_up_settles_and_down_empties_the_datacenter(file in file(), events in vec(event(), 0..12)) {
        let mut world = empty(&file.yaml());
        let mut file = file;
        events.iter().for_each(|event| happen(&mut world, &mut file, event));
        world.settle();
        assert_eq!(world.plan().steps, []);
        let plan = world.plan();
        assert_eq!(plan.unchanged.machines, file.control_planes + file.workers, "{}", plan.render());
        assert_eq!(world.members.len(), file.control_planes);
        let mut world = world.down();
        world.settle();
        assert!(world.vms().is_empty());
        assert_eq!(world.observed.leftovers, Seen::Yes(Vec::new()));
    }

    /// Only `needs` orders steps: any order that respects them ends in the same world.
    #[test]
    fn independent_steps_may_run_in_any_order(file in file(), picks in vec(any::<Index>(), 1..30)) {
        let mut one = empty(&file.yaml());
        let mut other = one.clone();
        let plan = one.plan();
        one.apply(&plan);
        for id in shuffled(&plan, &picks) {
            other.step(plan.step(id).unwrap());
        }
        other.members.sort();
        one.members.sort();
        let names = |world: &World| world.members.iter().map(|(_, name)| name.clone()).collect::<std::collections::BTreeSet<_>>();
        assert_eq!(names(&one), names(&other));
        assert_eq!(one.observed, other.observed);
        assert_eq!(one.guests, other.guests);
        assert!(other.plan().is_settled());
    }

    #[test]
    fn the_same_world_gives_the_same_plan(file in file(), events in vec(event(), 0..6)) {
        let mut world = empty(&file.yaml());
        let mut file = file;
        events.iter().for_each(|event| happen(&mut world, &mut file, event));
        assert_eq!(format!("{:?}", world.plan()), format!("{:?}", world.clone().plan()));
    }

    /// No two machines are placed on one host while another host has none, if all hosts are alike.
    #[test]
    fn control_planes_are_spread_over_hosts(count in 1usize..6) {
        let mut world = empty(&File { control_planes: 5, workers: 0, memory: 4, disk: 20, extra: false, cni: true }.yaml());
        world.observed.hosts = (1..=count).map(|n| (format!("pve{n}"), host())).collect();
        world.observed.hosts.values_mut().for_each(|host| host.memory.free = gib(64));
        let plan = world.plan();
        let mut hosts: std::collections::BTreeMap<&str, usize> = std::collections::BTreeMap::new();
        for step in &plan.steps {
            if let Action::MachineClaim(claim) = &step.action {
                *hosts.entry(&claim.vm.host).or_default() += 1;
            }
        }
        let (least, most) = (hosts.values().min().unwrap(), hosts.values().max().unwrap());
        assert!(most - least <= 1 && hosts.len() == count.min(5), "{hosts:?}");
    }
}
