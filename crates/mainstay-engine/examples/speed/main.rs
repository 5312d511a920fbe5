//! Speed, measured in one run: `cargo run --profile hard --workspace --example speed -- 5 50 500 1000`.
//!
//! For each size: `up` of a new cluster against the world's own critical path, a plan that finds nothing to do, and `down`, with their
//! Proxmox VE calls and their CPU time; how late the end of tasks is noticed; and at the end every bar. `--calls` lists the calls one by
//! one. Time is the simulated world's, so that it does not depend on the machine; CPU time is real.

mod bars;
mod lateness;
#[path = "../../tests/stage/mod.rs"]
#[expect(dead_code, reason = "a part of the stage is for tests alone")]
mod stage;

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use bars::{Measured, Part};
use lateness::Listener;
use mainstay_sim::WorldSpec;
use stage::{Stage, on_stage, settled};
use tokio::time::Instant;

const CONTROL_PLANES: usize = 3;
/// Machines that share a host: more hosts as there are more machines, as in life.
const MACHINES_PER_HOST: usize = 10;

fn main() -> std::io::Result<ExitCode> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut sizes: Vec<usize> = arguments.iter().filter_map(|argument| argument.parse().ok()).collect();
    if sizes.is_empty() {
        sizes = vec![5, 50, 500, 1000];
    }
    let lists_calls = arguments.iter().any(|argument| argument == "--calls");
    let mut out = std::io::stdout().lock();
    let one_host = measure(5, 1);
    tell(&mut out, &one_host, lists_calls)?;
    let mut measured: Vec<Measured> = Vec::new();
    for machines in sizes {
        let machines = machines.max(CONTROL_PLANES);
        let size = measure(machines, machines.div_ceil(MACHINES_PER_HOST).max(3));
        tell(&mut out, &size, lists_calls)?;
        if let Some(first) = measured.first() {
            compare(&mut out, first, &size)?;
        }
        measured.push(size);
    }
    writeln!(out, "peak memory of it all, the simulated datacenter included: {}", peak())?;
    let is_met = bars::tell(&mut out, &one_host, &measured)?;
    Ok(if is_met { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tell(out: &mut impl Write, measured: &Measured, lists_calls: bool) -> std::io::Result<()> {
    let seconds = |time: Duration| time.as_secs_f64();
    let Measured { up, look, down, .. } = measured;
    let each = |count: u64| measured.per_machine(count as f64);
    writeln!(out, "{} machines on {} hosts", measured.machines, measured.hosts)?;
    writeln!(
        out,
        "  up             {:>7.1} s over a critical path of {:.1} s = {:.3}",
        seconds(up.took),
        seconds(measured.path),
        measured.up_to_path()
    )?;
    writeln!(
        out,
        "  last start     {:>7.1} s over image, fills and resize of {:.1} s; {} calls until then",
        seconds(measured.last_start),
        seconds(measured.path_to_last_start),
        measured.calls_to_last_start
    )?;
    writeln!(out, "  down           {:>7.1} s", seconds(down.took))?;
    for (name, part) in [("up", up), ("nothing to do", look), ("down", down)] {
        writeln!(
            out,
            "  {name:<14} {:>7} calls, {:.1} per machine; {} task polls, {:.2} per host and second; {:.1} ms of CPU per machine",
            part.without_polls(),
            each(part.without_polls()),
            part.polls(),
            part.polls() as f64 / measured.hosts as f64 / seconds(part.took),
            measured.cpu_per_machine(part) * 1000.0,
        )?;
    }
    for (kind, late) in &measured.late {
        writeln!(
            out,
            "  {kind:<14} {:>7} tasks noticed {:.2} s late, {:.2} s at worst",
            late.tasks,
            seconds(late.mean()),
            seconds(late.worst)
        )?;
    }
    if lists_calls {
        list(out, measured)?;
    }
    Ok(())
}

/// Every call with its number per machine, the most frequent first.
fn list(out: &mut impl Write, measured: &Measured) -> std::io::Result<()> {
    for (title, part) in [
        ("up", &measured.up),
        ("nothing to do", &measured.look),
        ("down", &measured.down),
    ] {
        let mut calls: Vec<(&String, &u64)> = part.calls.iter().collect();
        calls.sort_by_key(|(call, count)| (std::cmp::Reverse(**count), *call));
        for (call, count) in calls {
            let share = measured.per_machine(*count as f64);
            writeln!(out, "    {title}: {count:>6}  {share:>5.2} per machine  {call}")?;
        }
    }
    Ok(())
}

/// What a machine costs among many, against what it costs among few. One is flat.
fn compare(out: &mut impl Write, few: &Measured, many: &Measured) -> std::io::Result<()> {
    let ratio = |of: &dyn Fn(&Measured) -> f64| of(many) / of(few);
    writeln!(
        out,
        "  per machine, against {}: calls of up {:.2}, of nothing to do {:.2}; CPU of up {:.2}, of nothing to do {:.2}, of down {:.2}",
        few.machines,
        ratio(&|size| size.per_machine(size.up.without_polls() as f64)),
        ratio(&|size| size.per_machine(size.look.total() as f64)),
        ratio(&|size| size.cpu_per_machine(&size.up)),
        ratio(&|size| size.cpu_per_machine(&size.look)),
        ratio(&|size| size.cpu_per_machine(&size.down)),
    )
}

/// A datacenter in which nothing waits for room.
fn world(hosts: usize) -> WorldSpec {
    let mut world = WorldSpec::default();
    let nodes = &mut world.datacenter.nodes;
    let first = nodes.values().next().cloned().expect("the default world has hosts");
    for n in nodes.len() + 1..=hosts {
        let mut host = first.clone();
        host.nodeid = u32::try_from(n).expect("few hosts");
        host.ip = format!("127.0.{}.{}", n / 250, n % 250 + 1);
        nodes.insert(format!("pve{n}"), host);
    }
    nodes.truncate(hosts);
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

fn measure(machines: usize, hosts: usize) -> Measured {
    on_stage(1, world(hosts), async move |stage| {
        let file = file(machines);
        let listener = Arc::new(Listener::default());
        stage.world.datacenter().observe(listener.clone());
        let began = Instant::now();
        let up = part(stage, async { drop(settled(stage, stage.up(&file).await)) }).await;
        let (last_start, calls_to_last_start) = listener.last_start().expect("machines were started");
        let empty = async { assert_eq!(stage.plan(&file).await.render(), "nothing to do") };
        let look = part(stage, empty).await;
        let down = part(stage, async { drop(settled(stage, stage.down(&file).await)) }).await;
        let shape = mainstay_sim::Shape {
            sharing: u32::try_from(machines.div_ceil(hosts)).expect("few machines per host"),
            ..mainstay_sim::Shape::default()
        };
        let path = stage.world.critical_path(&shape);
        Measured {
            machines,
            hosts,
            up,
            path: path.total(),
            last_start: last_start - began,
            path_to_last_start: path.last_start,
            calls_to_last_start,
            look,
            down,
            late: listener.late(),
        }
    })
}

/// Calls, simulated time and CPU time of one run.
async fn part(stage: &Stage, work: impl Future<Output = ()>) -> Part {
    let calls = stage.world.datacenter().stats().calls();
    let (began, cpu) = (Instant::now(), cpu_time());
    work.await;
    Part {
        took: began.elapsed(),
        cpu: cpu_time() - cpu,
        calls: since(&calls, &stage.world.datacenter().stats().calls()),
    }
}

/// What was counted since.
fn since(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let new = |(call, count): (&String, &u64)| (call.clone(), count - before.get(call).copied().unwrap_or_default());
    after.iter().map(new).filter(|(_, count)| *count > 0).collect()
}

/// CPU time of this thread, on which all of a simulated run happens, as Linux counts it.
fn cpu_time() -> Duration {
    let status = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = status.split_ascii_whitespace().next().and_then(|number| number.parse().ok());
    Duration::from_nanos(nanoseconds.unwrap_or_default())
}

/// `VmHWM` of this process, as Linux counts it.
fn peak() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.map_or_else(|| "unknown".to_owned(), |line| line.trim().to_owned())
}
