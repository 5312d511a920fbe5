//! Speed as ratios, measured in one run: `cargo run --profile hard -p mainstay-engine --example speed`.
//!
//! `up` against the world's own critical path, Proxmox VE calls per machine, calls of a plan that finds nothing to do, at growing sizes.

#[path = "../tests/stage/mod.rs"]
#[expect(dead_code, reason = "a part of the stage is for tests alone")]
mod stage;

use std::io::Write;

use mainstay_sim::WorldSpec;
use stage::{on_stage, settled};

/// One line of the table.
struct Measured {
    machines: usize,
    up: f64,
    path: f64,
    calls: u64,
    polls: u64,
    looks: u64,
    seconds: f64,
}

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    writeln!(
        out,
        "machines  up / critical path         calls per machine  task polls  calls of an empty plan  real seconds"
    )?;
    for workers in [2, 7, 22] {
        let measured = measure(workers);
        let machines = measured.machines as f64;
        writeln!(
            out,
            "{:>8}  {:>6.1} s / {:>6.1} s = {:.3}  {:>17.1}  {:>10}  {:>9} ({:.1} per machine)  {:>12.2}",
            measured.machines,
            measured.up,
            measured.path,
            measured.up / measured.path,
            measured.calls as f64 / machines,
            measured.polls,
            measured.looks,
            measured.looks as f64 / machines,
            measured.seconds,
        )?;
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a benchmark measures real time"
)]
fn measure(workers: usize) -> Measured {
    let began = std::time::Instant::now();
    let file = format!(
        "name: speed\nnetwork: {{ cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }}\ntalos: {{ version: 1.13.9 }}\npools:\n  \
         control-plane: {{ count: 3, cpu: 2, memory: 4GiB, disk: 10GiB, addresses: 10.0.0.11+, vmids: 2000+ }}\n  \
         worker: {{ count: {workers}, cpu: 1, memory: 2GiB, disk: 10GiB, addresses: 10.0.1.1+, vmids: 3000+ }}\n"
    );
    let mut measured = on_stage(1, WorldSpec::default(), async move |stage| {
        let start = tokio::time::Instant::now();
        settled(stage, stage.up(&file).await);
        let up = start.elapsed().as_secs_f64();
        let after_up = stage.world.datacenter().stats().calls();
        let is_poll = |call: &str| call.contains("/tasks");
        let polls = after_up
            .iter()
            .filter(|(call, _)| is_poll(call))
            .map(|(_, count)| count)
            .sum::<u64>();
        let total = stage.world.datacenter().stats().total();
        assert_eq!(stage.plan(&file).await.render(), "nothing to do");
        let looks = stage.world.datacenter().stats().total() - total;
        let path = stage
            .world
            .critical_path(&mainstay_sim::Shape::default())
            .total()
            .as_secs_f64();
        Measured {
            machines: workers + 3,
            up,
            path,
            calls: total - polls,
            polls,
            looks,
            seconds: 0.0,
        }
    });
    measured.seconds = began.elapsed().as_secs_f64();
    measured
}
