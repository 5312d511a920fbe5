//! A thousand VMs: how long `/cluster/resources` takes, and how much memory they need.
//!
//! `cargo run --profile bench -p pve-sim --example thousand` says both and fails above 20 ms or 200 MB.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{Entropy, SimNet, Wall};
use pve_sim::guest::Pace;
use pve_sim::http::Request;
use pve_sim::{Datacenter, NoOs, SimEnv, Verdict, World};
use tokio::time::Instant;

const VMS: u32 = 1000;
const ROUNDS: usize = 101;
const LIMIT: Duration = Duration::from_millis(20);
const MEMORY: u64 = 200 * 1000 * 1000;

fn datacenter() -> Datacenter {
    let net = SimNet::new(Entropy::from_seed(1));
    let mut world = World::default();
    // What a request costs on a real host is no part of the measure.
    world.timing.request = Duration::ZERO;
    let env = SimEnv {
        network: Arc::new(net.clone()),
        dialer: Arc::new(net),
        wall: Wall::real(),
        entropy: Entropy::from_seed(1),
        // A round of pvestatd, after which all is told of each VM, takes 10 ms instead of 10 s.
        pace: Pace::new(1000.0),
        tls: false,
    };
    let dc = Datacenter::new(world, env, Arc::new(NoOs));
    for vmid in 100..100 + VMS {
        let config = [
            ("name", format!("w-{vmid}")),
            ("memory", "2048".into()),
            ("cores", "4".into()),
            ("tags", "mainstay;mainstay-lab".into()),
            ("description", "a line or two about whose it is".into()),
            ("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0".into()),
            ("scsi0", format!("local-lvm:vm-{vmid}-disk-0,size=40G")),
        ];
        let config: BTreeMap<String, String> = config.into_iter().map(|(k, v)| (k.to_string(), v)).collect();
        let host = ["pve1", "pve2", "pve3"][vmid as usize % 3];
        dc.lab().create_vm(vmid, host, config);
        dc.lab().start_vm(vmid);
    }
    dc
}

/// Bytes this process holds in memory, where the system tells.
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim()
        .strip_suffix(" kB")?
        .trim()
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

async fn measure() -> std::io::Result<ExitCode> {
    let dc = datacenter();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let token = "PVEAPIToken=root@pam!mainstay=00000000-0000-4000-8000-000000000001";
    let request = Request {
        verb: "GET".into(),
        target: "/api2/json/cluster/resources".into(),
        headers: vec![("Authorization".into(), token.into())],
        ..Request::default()
    };
    let (mut times, mut bytes) = (Vec::new(), 0);
    for _ in 0..ROUNDS {
        let began = Instant::now();
        if let Verdict::Answer(response) = dc.answer("pve1", &request).await {
            bytes = response.body.len();
        }
        times.push(began.elapsed());
    }
    times.sort();
    let (median, worst) = (times[ROUNDS / 2], times[ROUNDS - 1]);
    let memory = resident().unwrap_or_default();
    writeln!(
        std::io::stdout(),
        "{VMS} VMs: /cluster/resources ({bytes} bytes) in {:.2} ms, at worst {:.2} ms; {:.1} MB of memory",
        median.as_secs_f64() * 1e3,
        worst.as_secs_f64() * 1e3,
        memory as f64 / 1e6
    )?;
    Ok(if worst < LIMIT && memory < MEMORY {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn main() -> std::io::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(measure())
}
