//! A thousand VMs: how long `/cluster/resources` takes.

use std::collections::BTreeMap;
use std::sync::Arc;

use mainstay_net::{Entropy, SimNet, Wall};
use pve_sim::guest::Pace;
use pve_sim::http::Request;
use pve_sim::{Datacenter, NoOs, SimEnv, World};

fn main() {
    divan::main();
}

fn datacenter(vms: u32) -> Datacenter {
    let net = SimNet::new(Entropy::from_seed(1));
    let env = SimEnv {
        network: Arc::new(net.clone()),
        dialer: Arc::new(net),
        wall: Wall::at("2026-01-01T00:00:00Z".parse().expect("a timestamp")),
        entropy: Entropy::from_seed(1),
        pace: Pace::new(1e6),
        tls: false,
    };
    let dc = Datacenter::new(World::default(), env, Arc::new(NoOs));
    for vmid in 100..100 + vms {
        let config = [
            ("name", format!("w-{vmid}")),
            ("memory", "2048".into()),
            ("tags", "mainstay".into()),
            ("scsi0", "local-lvm:vm-100-disk-0,size=40G".into()),
        ];
        dc.lab().create_vm(
            vmid,
            "pve1",
            config
                .into_iter()
                .map(|(k, v)| (k.to_string(), v))
                .collect::<BTreeMap<_, _>>(),
        );
    }
    dc
}

fn request() -> Request {
    let token = "PVEAPIToken=root@pam!mainstay=00000000-0000-4000-8000-000000000001";
    Request {
        verb: "GET".into(),
        target: "/api2/json/cluster/resources".into(),
        headers: vec![("Authorization".into(), token.into())],
        ..Request::default()
    }
}

#[divan::bench(args = [10, 1000])]
fn cluster_resources(bencher: divan::Bencher<'_, '_>, vms: u32) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let dc = runtime.block_on(async { datacenter(vms) });
    bencher.bench_local(|| runtime.block_on(dc.answer("pve1", &request())));
}
