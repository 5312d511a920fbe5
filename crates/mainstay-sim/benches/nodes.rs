//! What simulated nodes cost: time and memory of a cluster of so many nodes, from power-on to Ready.
//!
//! The columns per count divided by the count are the cost of one node; they must not grow with it.

#[expect(dead_code, reason = "the tests use the rest of it")]
#[path = "../tests/lab/mod.rs"]
mod lab;

use std::sync::Arc;
use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use lab::{Lab, Vm, control_plane, until, worker};
use mainstay_net::Entropy;
use mainstay_sim::WorldSpec;

#[global_allocator]
static ALLOCATIONS: divan::AllocProfiler = divan::AllocProfiler::system();

fn main() {
    divan::main();
}

/// A VM whose config comes with its drive, so that no client takes part.
fn configured(lab: &Lab, name: &str, address: &str, config: String) -> Vm {
    let mut vm = lab.vm(name, address);
    if let Some(files) = vm.hardware.cloud_init.as_mut() {
        files.user_data = config;
    }
    vm.on();
    vm
}

async fn cluster(lab: Arc<Lab>, count: usize) {
    let mut vms = vec![configured(&lab, "cp-1", "10.10.0.11", control_plane("cp-1"))];
    for index in 1..count {
        let (high, low) = (index / 200, index % 200 + 20);
        vms.push(configured(
            &lab,
            &format!("w-{index}"),
            &format!("10.10.{}.{low}", high + 1),
            worker(&format!("w-{index}")),
        ));
    }
    until(|| async { lab.admin("10.10.0.11").bootstrap().await.is_ok() }).await;
    tokio::time::sleep(Duration::from_secs(180)).await;
    let status = lab.admin("10.10.0.11").machine_status().await;
    assert!(status.contains("ready: true"), "{status}");
    let last = vms.last().expect("at least one").address.to_string();
    let status = lab.admin(&last).machine_status().await;
    assert!(
        status.contains("stage: running\nstatus:\n    ready: true"),
        "{last}: {status}"
    );
}

#[divan::bench(args = [10, 100, 500], sample_count = 3, sample_size = 1)]
fn power_on_to_ready(bencher: Bencher, count: usize) {
    bencher.counter(ItemsCount::new(count)).bench_local(|| {
        // In this thread, so that its allocations are counted.
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let lab = Lab::start(WorldSpec::default(), Entropy::from_seed(7)).await;
            cluster(lab, count).await;
        });
    });
}
