//! Speed as ratios, measured in one run: `cargo run --profile hard -p mainstay-engine --example speed -- 5 50 500`.
//!
//! For each size: `up` of a new cluster against the world's own critical path, the Proxmox VE calls that it took by kind, and a plan that
//! finds nothing to do. `--calls` lists the calls one by one. Time is the simulated world's, unless it is called real.

#[path = "../tests/stage/mod.rs"]
#[expect(dead_code, reason = "a part of the stage is for tests alone")]
mod stage;

use std::collections::BTreeMap;
use std::io::Write;
use std::time::Duration;

use mainstay_sim::WorldSpec;
use stage::{Stage, on_stage, settled};

const CONTROL_PLANES: usize = 3;
/// Machines that share a host: more hosts as there are more machines, as in life.
const MACHINES_PER_HOST: usize = 10;

/// What one size took.
struct Measured {
    machines: usize,
    up: Duration,
    path: Duration,
    up_calls: BTreeMap<String, u64>,
    look: Duration,
    look_calls: BTreeMap<String, u64>,
    up_real: Duration,
    look_real: Duration,
}

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut sizes: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![5, 50];
    }
    let mut out = std::io::stdout().lock();
    let mut first: Option<Measured> = None;
    for machines in sizes {
        let measured = measure(machines.max(CONTROL_PLANES));
        tell(&mut out, &measured)?;
        if arguments.iter().any(|argument| argument == "--calls") {
            list(&mut out, &measured)?;
        }
        match &first {
            None => first = Some(measured),
            Some(first) => compare(&mut out, first, &measured)?,
        }
    }
    writeln!(out, "peak memory of it all, the simulated datacenter included: {}", peak())
}

fn tell(out: &mut impl Write, measured: &Measured) -> std::io::Result<()> {
    let machines = measured.machines as f64;
    let seconds = |time: Duration| time.as_secs_f64();
    let (polls, calls) = apart(&measured.up_calls);
    let looks: u64 = measured.look_calls.values().sum();
    writeln!(out, "{} machines on {} hosts", measured.machines, hosts(measured.machines))?;
    writeln!(
        out,
        "  up             {:>7.1} s over a critical path of {:.1} s = {:.3}   ({:.1} s real)",
        seconds(measured.up),
        seconds(measured.path),
        seconds(measured.up) / seconds(measured.path),
        seconds(measured.up_real)
    )?;
    writeln!(
        out,
        "  calls of up    {calls:>7}   {:.1} per machine, task polls apart",
        calls as f64 / machines
    )?;
    writeln!(
        out,
        "  task polls     {polls:>7}   {:.2} per host and second",
        polls as f64 / hosts(measured.machines) as f64 / seconds(measured.up)
    )?;
    writeln!(
        out,
        "  nothing to do  {looks:>7}   {:.1} calls per machine, {:.2} s   ({:.0} ms real)",
        looks as f64 / machines,
        seconds(measured.look),
        seconds(measured.look_real) * 1000.0
    )
}

/// Every call with its number per machine, the most frequent first.
fn list(out: &mut impl Write, measured: &Measured) -> std::io::Result<()> {
    for (title, calls) in [("up", &measured.up_calls), ("nothing to do", &measured.look_calls)] {
        let mut calls: Vec<(&String, &u64)> = calls.iter().collect();
        calls.sort_by_key(|(call, count)| (std::cmp::Reverse(**count), *call));
        for (call, count) in calls {
            let share = *count as f64 / measured.machines as f64;
            writeln!(out, "    {title}: {count:>6}  {share:>5.2} per machine  {call}")?;
        }
    }
    Ok(())
}

/// What a machine costs among many, against what it costs among few. One is flat.
fn compare(out: &mut impl Write, few: &Measured, many: &Measured) -> std::io::Result<()> {
    let ratio = |of: &dyn Fn(&Measured) -> f64| (of(many) / many.machines as f64) / (of(few) / few.machines as f64);
    let further = |of: &dyn Fn(&Measured) -> u64| (of(many) - of(few)) as f64 / (many.machines - few.machines) as f64;
    writeln!(
        out,
        "  each machine more than {} costs {:.1} calls of up, {:.1} calls of nothing to do",
        few.machines,
        further(&|measured| apart(&measured.up_calls).1),
        further(&|measured| measured.look_calls.values().sum()),
    )?;
    writeln!(
        out,
        "  per machine, against {}: calls of up {:.2}, calls of nothing to do {:.2}, real time of up {:.2}, real time of nothing to do {:.2}",
        few.machines,
        ratio(&|measured| apart(&measured.up_calls).1 as f64),
        ratio(&|measured| measured.look_calls.values().sum::<u64>() as f64),
        ratio(&|measured| measured.up_real.as_secs_f64()),
        ratio(&|measured| measured.look_real.as_secs_f64()),
    )
}

/// Task polls, and everything else.
fn apart(calls: &BTreeMap<String, u64>) -> (u64, u64) {
    let polls = calls
        .iter()
        .filter(|(call, _)| call.contains("/tasks"))
        .map(|(_, count)| count)
        .sum();
    (polls, calls.values().sum::<u64>() - polls)
}

fn hosts(machines: usize) -> usize {
    machines.div_ceil(MACHINES_PER_HOST).max(3)
}

/// A datacenter in which nothing waits for room, nor for a storage that is busy.
fn world(machines: usize) -> WorldSpec {
    let mut world = WorldSpec::default();
    let nodes = &mut world.datacenter.nodes;
    let first = nodes.values().next().cloned().expect("the default world has hosts");
    for n in nodes.len() + 1..=hosts(machines) {
        let mut host = first.clone();
        host.nodeid = u32::try_from(n).expect("few hosts");
        host.ip = format!("127.0.{}.{}", n / 250, n % 250 + 1);
        nodes.insert(format!("pve{n}"), host);
    }
    for storage in world.datacenter.storages.values_mut() {
        storage.capacity = storage.capacity.max(1 << 50);
    }
    world
}

fn file(machines: usize) -> String {
    let workers = machines - CONTROL_PLANES;
    format!(
        "name: speed\nnetwork: {{ cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20, pods: 10.128.0.0/14 }}\ntalos: {{ version: 1.13.9 }}\n\
         datacenter: {{ storage: {{ images: local, disks: local-lvm }} }}\npools:\n  \
         control-plane: {{ count: {CONTROL_PLANES}, cpu: 2, memory: 4GiB, disk: 10GiB, addresses: 10.0.0.11+, vmids: 2000+ }}\n  \
         worker: {{ count: {workers}, cpu: 1, memory: 2GiB, disk: 10GiB, addresses: 10.0.1.1+, vmids: 3000+ }}\n"
    )
}

fn measure(machines: usize) -> Measured {
    on_stage(1, world(machines), async move |stage| {
        let file = file(machines);
        let (up, up_real) = timed(async { drop(settled(stage, stage.up(&file).await)) }).await;
        let up_calls = stage.world.datacenter().stats().calls();
        let empty = async { assert_eq!(stage.plan(&file).await.render(), "nothing to do") };
        let (look, look_real) = timed(empty).await;
        Measured {
            machines,
            up,
            path: critical_path(stage, machines),
            look,
            look_calls: since(&up_calls, &stage.world.datacenter().stats().calls()),
            up_calls,
            up_real,
            look_real,
        }
    })
}

fn critical_path(stage: &Stage, machines: usize) -> Duration {
    let shape = mainstay_sim::Shape {
        sharing: u32::try_from(machines.div_ceil(hosts(machines))).expect("few machines per host"),
        ..mainstay_sim::Shape::default()
    };
    stage.world.critical_path(&shape).total()
}

/// What was counted since.
fn since(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let new = |(call, count): (&String, &u64)| (call.clone(), count - before.get(call).copied().unwrap_or_default());
    after.iter().map(new).filter(|(_, count)| *count > 0).collect()
}

/// How long something takes, in simulated and in real time.
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark measures real time"
)]
async fn timed(work: impl Future<Output = ()>) -> (Duration, Duration) {
    let (simulated, real) = (tokio::time::Instant::now(), std::time::Instant::now());
    work.await;
    (simulated.elapsed(), real.elapsed())
}

/// `VmHWM` of this process, as Linux counts it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}
