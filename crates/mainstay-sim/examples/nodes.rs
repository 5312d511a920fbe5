//! What simulated nodes cost: time and memory of clusters of 100, 250 and 500 nodes, from power-on to Ready, on virtual time.
//!
//! The cost of one node must not grow with their number. `cargo run -p mainstay-sim --example nodes [counts…]`
#![expect(clippy::print_stdout, reason = "this is what an example is for")]

#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/lab/mod.rs"]
mod lab;

use std::sync::Arc;
use std::time::Duration;

use lab::{Lab, Vm, control_plane, until, worker};
use mainstay_net::Entropy;
use mainstay_sim::WorldSpec;

/// A VM whose config comes with its drive, so that no client takes part.
fn configured(lab: &Lab, name: &str, address: &str, config: String) -> Vm {
    let mut vm = lab.vm(name, address);
    if let Some(files) = vm.hardware.cloud_init.as_mut() {
        files.user_data = config;
    }
    vm.on();
    vm
}

async fn cluster(lab: &Arc<Lab>, count: usize) -> Vec<Vm> {
    let mut vms = vec![configured(lab, "cp-1", "10.10.0.11", control_plane("cp-1"))];
    for index in 1..count {
        let (high, low) = (index / 200 + 1, index % 200 + 20);
        let name = format!("w-{index}");
        vms.push(configured(lab, &name, &format!("10.10.{high}.{low}"), worker(&name)));
    }
    until(|| async { lab.admin("10.10.0.11").bootstrap().await.is_ok() }).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    let last = vms.last().expect("at least one").address.to_string();
    for address in ["10.10.0.11", last.as_str()] {
        let status = lab.admin(address).machine_status().await;
        assert!(
            status.contains("stage: running\nstatus:\n    ready: true"),
            "{address}: {status}"
        );
    }
    vms
}

/// Resident memory in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn main() {
    let asked: Vec<usize> = std::env::args().skip(1).filter_map(|count| count.parse().ok()).collect();
    let counts = if asked.is_empty() { vec![100, 250, 500] } else { asked };
    let empty = resident();
    let mut first = None;
    println!(
        "{:>6} {:>10} {:>12} {:>12} {:>8}",
        "nodes", "seconds", "ms per node", "KiB per node", "ratio"
    );
    for count in counts {
        #[expect(
            clippy::disallowed_methods,
            clippy::disallowed_types,
            reason = "the real time of a simulated world is what is measured"
        )]
        let began = std::time::Instant::now();
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build();
        let memory = runtime.expect("a runtime").block_on(async {
            let lab = Lab::start(WorldSpec::default(), Entropy::from_seed(7)).await;
            let vms = cluster(&lab, count).await;
            let memory = resident().saturating_sub(empty);
            drop(vms);
            memory
        });
        let seconds = began.elapsed().as_secs_f64();
        let each = seconds * 1000.0 / count as f64;
        let ratio = each / *first.get_or_insert(each);
        println!(
            "{count:>6} {seconds:>10.2} {each:>12.2} {:>12} {ratio:>8.2}",
            memory / count as u64
        );
    }
}
