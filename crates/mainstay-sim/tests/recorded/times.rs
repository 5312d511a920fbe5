//! How long the stages of a life take, beside what was recorded.
//!
//! The recorded machines were containers: no firmware, no kernel. So are these, for the sake of comparison: both take no time here.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_sim::WorldSpec;
use talos_proto::machine;
use talos_proto::machine::apply_configuration_request::Mode;
use tokio::time::Instant;

use crate::lab::kube::{Kube, ready};
use crate::lab::{Lab, Node, VIP, Vm, until};

const CP1: &str = "10.10.0.11";
const CP2: &str = "10.10.0.12";
const CP3: &str = "10.10.0.13";
const WORKER: &str = "10.10.0.21";

/// A time may be off by this factor, or by half a second: what is short is mostly chance.
const FACTOR: f64 = 1.5;
const SLACK: f64 = 0.5;

type Recorded = (&'static str, &'static str, RangeInclusive<f64>);

/// From what, until what, and the seconds that it took in several runs.
const RECORDED: &[Recorded] = &[
    ("power-on", "maintenance API", 1.6..=2.2),
    ("apply", "API of the cluster", 0.6..=0.6),
    ("apply", "cri and trustd healthy", 1.2..=1.2),
    ("apply", "kubelet runs", 2.6..=2.6),
    ("apply", "kubelet healthy", 4.5..=4.5),
    ("bootstrap", "stage running", 0.0..=0.1),
    ("bootstrap", "etcd runs", 0.1..=0.1),
    ("bootstrap", "etcd healthy", 5.0..=5.0),
    ("bootstrap", "VIP assigned", 5.0..=5.0),
    ("bootstrap", "API server serves", 23.0..=32.0),
    ("bootstrap", "KubePrism healthy", 67.0..=87.0),
    ("bootstrap", "manifests created", 78.0..=78.0),
    ("bootstrap", "Node", 101.0..=101.0),
    ("bootstrap", "Node Ready", 112.0..=112.0),
    ("bootstrap", "machine ready", 131.0..=131.0),
    ("bootstrap to recover", "etcd runs", 0.9..=0.9),
    ("bootstrap to recover", "etcd healthy", 5.6..=5.6),
    ("join", "learner added", 2.0..=2.9),
    ("join", "learner started", 2.4..=3.7),
    ("join", "voter", 2.9..=4.2),
    ("join", "etcd healthy", 6.5..=7.5),
    ("join", "stage running", 7.0..=8.0),
    ("worker", "API of the cluster", 0.7..=0.7),
    ("worker", "kubelet healthy", 4.0..=4.0),
    ("worker's Node", "Ready", 8.0..=8.0),
    ("reboot", "stage rebooting", 0.1..=0.1),
    ("reboot", "API gone, no pods", 0.4..=0.4),
    ("reboot", "API gone, pods stopping", 42.0..=42.0),
    ("booted again", "API of the cluster", 3.1..=3.1),
    ("booted again", "etcd and kubelet run", 4.1..=4.1),
    ("booted again", "booting and ready", 5.4..=5.4),
    ("booted again", "stage running", 8.9..=8.9),
    ("booted again", "static pods not ready", 32.0..=32.0),
    ("booted again", "ready to stay", 46.0..=46.0),
    ("power cycle", "API of the cluster", 3.5..=3.5),
    ("power cycle", "running and ready", 8.8..=8.8),
    ("machine API crashed", "it answers", 5.4..=5.4),
    ("quorum lost", "etcd unhealthy", 26.0..=26.0),
    ("quorum lost", "VIP dropped", 52.0..=52.0),
    ("etcd leave", "answer", 0.25..=0.25),
    ("etcd leave", "VIP elsewhere", 60.0..=60.0),
    ("etcd forfeit", "answer", 0.14..=0.14),
    ("VIP's holder killed", "VIP elsewhere", 62.0..=62.0),
    ("VIP's holder reboots", "VIP elsewhere", 0.0..=3.0),
];

/// What else was timed, and why it stands beside nothing here.
const NOT_COMPARED: &[(&str, &str)] = &[
    (
        "after apply the old certificate answers for 0.0 to 0.3 s more",
        "asked again call by call, with the answers it gave",
    ),
    (
        "a worker's Node comes 51 s after its config",
        "the API server was still starting; the 8 s from the Node to Ready are compared",
    ),
    (
        "the machine restarts itself in 2 s",
        "the restart of a container; a machine takes `kexec`, or firmware and kernel",
    ),
];

/// What was measured, by the rows' own words.
#[derive(Default)]
struct Table(Mutex<BTreeMap<(&'static str, &'static str), f64>>);

/// Measures from one moment on.
struct Watch<'a> {
    table: &'a Table,
    from: &'static str,
    zero: Instant,
}

impl Table {
    fn since(&self, from: &'static str) -> Watch<'_> {
        Watch {
            table: self,
            from,
            zero: Instant::now(),
        }
    }

    /// The rows as text, and those that are off.
    fn compare(&self) -> (String, Vec<String>) {
        let mut measured = self.0.lock().unwrap().clone();
        let (mut text, mut wrong) = (String::new(), Vec::new());
        for (from, what, recorded) in RECORDED {
            let here = measured.remove(&(*from, *what)).unwrap_or(f64::NAN);
            let (least, most) = (*recorded.start(), *recorded.end());
            let nearest = here.clamp(least, most);
            let line = format!(
                "{from:<22} {what:<25} {least:>6.1} {most:>6.1} {here:>7.2} {:>6.2}",
                here / nearest.max(0.01)
            );
            let fits = (least / FACTOR..=most * FACTOR).contains(&here) || (here - nearest).abs() <= SLACK;
            text.push_str(&format!("{line}\n"));
            if !fits {
                wrong.push(line);
            }
        }
        wrong.extend(measured.keys().map(|row| format!("not in the table: {row:?}")));
        (text, wrong)
    }
}

impl Watch<'_> {
    fn note(&self, what: &'static str) {
        let seconds = self.zero.elapsed().as_secs_f64();
        self.table.0.lock().unwrap().insert((self.from, what), seconds);
    }

    async fn until<F: Future<Output = bool>>(&self, what: &'static str, mut holds: impl FnMut() -> F) {
        while !holds().await {
            assert!(self.zero.elapsed() < Duration::from_secs(600), "{} {what}", self.from);
            // What takes long is looked at less often: every look is a connection of its own.
            tokio::time::sleep((self.zero.elapsed() / 50).max(Duration::from_millis(50))).await;
        }
        self.note(what);
    }
}

/// A node, asked anew each time: connections do not outlive its API.
#[derive(Clone, Copy)]
struct At<'a>(&'a Lab, &'static str);

impl At<'_> {
    fn admin(self) -> Node {
        self.0.admin(self.1)
    }

    async fn answers(self) -> bool {
        self.admin().version().await.is_ok()
    }

    async fn up(self, service: &str) -> bool {
        self.admin().service_up(service).await
    }

    async fn runs(self, service: &str) -> bool {
        let services = self.admin().services().await.unwrap_or_default();
        services.iter().any(|own| own.id == service && own.state == "Running")
    }

    async fn status(self, stage: &str, ready: bool) -> bool {
        let wanted = format!("stage: {stage}\nstatus:\n    ready: {ready}");
        self.admin().machine_status().await.contains(&wanted)
    }

    async fn stage(self, stage: &str) -> bool {
        self.admin().machine_status().await.contains(&format!("stage: {stage}\n"))
    }

    async fn holds_vip(self) -> bool {
        let id = format!("eth0/{VIP}/32");
        self.admin()
            .get("network", "AddressStatuses.net.talos.dev", &id)
            .await
            .is_ok()
    }

    async fn apply(self, config: &str, mode: Mode) {
        self.admin().apply(config, mode).await.unwrap();
    }
}

async fn first_control_plane(lab: &Lab, table: &Table) -> Vm {
    let (vm, node) = (lab.vm("cp-1", CP1), At(lab, CP1));
    vm.on();
    let watch = table.since("power-on");
    watch
        .until("maintenance API", || async { lab.insecure(CP1).disks().await.is_ok() })
        .await;
    lab.insecure(CP1)
        .apply(&crate::lab::control_plane("cp-1"), Mode::Auto)
        .await
        .unwrap();
    let watch = table.since("apply");
    watch.until("API of the cluster", || node.answers()).await;
    watch
        .until("cri and trustd healthy", || async {
            node.up("cri").await && node.up("trustd").await
        })
        .await;
    watch.until("kubelet runs", || node.runs("kubelet")).await;
    watch.until("kubelet healthy", || node.up("kubelet")).await;
    vm
}

async fn bootstrap(lab: &Lab, table: &Table) {
    let (node, kube) = (At(lab, CP1), Kube::admin(lab, CP1));
    let watch = table.since("bootstrap");
    node.admin().bootstrap().await.unwrap();
    watch.until("stage running", || node.stage("running")).await;
    watch.until("etcd runs", || node.runs("etcd")).await;
    watch.until("etcd healthy", || node.up("etcd")).await;
    watch.until("VIP assigned", || node.holds_vip()).await;
    let serves = || async { kube.try_call("GET", "/version", &[], "").await.is_some() };
    watch.until("API server serves", serves).await;
    let resource = |namespace: &'static str, kind: &'static str, id: &'static str| {
        let admin = node.admin();
        async move { admin.yaml(namespace, kind, id).await.unwrap_or_default() }
    };
    let balancer = || resource("k8s", "KubePrismStatuses.kubernetes.talos.dev", "k8s-loadbalancer");
    watch
        .until("KubePrism healthy", || async { balancer().await.contains("healthy: true") })
        .await;
    let manifests = || resource("controlplane", "ManifestStatuses.kubernetes.talos.dev", "manifests");
    watch
        .until("manifests created", || async { !manifests().await.is_empty() })
        .await;
    let registered = || async { kube.get("/api/v1/nodes/cp-1").await.0 == 200 };
    watch.until("Node", registered).await;
    watch
        .until("Node Ready", || async { ready(&kube.get("/api/v1/nodes/cp-1").await.1) })
        .await;
    watch.until("machine ready", || node.status("running", true)).await;
}

/// A control plane that joins; it stays until its etcd is healthy.
async fn join(lab: &Lab, table: &Table) -> Vm {
    let (vm, node, first) = (lab.vm("cp-2", CP2), At(lab, CP2), At(lab, CP1));
    vm.on();
    lab.maintenance(CP2).await;
    lab.insecure(CP2)
        .apply(&crate::lab::control_plane("cp-2"), Mode::Auto)
        .await
        .unwrap();
    let watch = table.since("join");
    let member = |fits: fn(&machine::EtcdMember) -> bool| {
        let admin = first.admin();
        async move {
            admin
                .members()
                .await
                .is_ok_and(|members| members.len() == 2 && members.iter().any(fits))
        }
    };
    watch.until("learner added", || member(|one| one.is_learner)).await;
    watch.until("learner started", || member(|one| one.hostname == "cp-2")).await;
    watch
        .until("voter", || member(|one| one.hostname == "cp-2" && !one.is_learner))
        .await;
    watch.until("etcd healthy", || node.up("etcd")).await;
    watch.until("stage running", || node.stage("running")).await;
    vm
}

async fn worker(lab: &Lab, table: &Table) -> Vm {
    let (vm, node, kube) = (lab.vm("w-1", WORKER), At(lab, WORKER), Kube::admin(lab, CP1));
    vm.on();
    lab.maintenance(WORKER).await;
    lab.insecure(WORKER)
        .apply(&crate::lab::worker("w-1"), Mode::Auto)
        .await
        .unwrap();
    let watch = table.since("worker");
    watch.until("API of the cluster", || node.answers()).await;
    watch.until("kubelet healthy", || node.up("kubelet")).await;
    until(|| async { kube.get("/api/v1/nodes/w-1").await.0 == 200 }).await;
    table
        .since("worker's Node")
        .until("Ready", || async { ready(&kube.get("/api/v1/nodes/w-1").await.1) })
        .await;
    vm
}

async fn reboots(lab: &Lab, table: &Table, vm: &Vm) {
    let (node, config) = (At(lab, CP3), crate::lab::control_plane("cp-3"));
    node.apply(&config, Mode::Reboot).await;
    table
        .since("reboot")
        .until("API gone, no pods", || async { !node.answers().await })
        .await;
    until(|| node.status("running", true)).await;
    // Readiness is not monotonic: it has to have held.
    tokio::time::sleep(Duration::from_secs(120)).await;
    let boots = vm.events().len();
    node.apply(&config, Mode::Reboot).await;
    let watch = table.since("reboot");
    watch.until("stage rebooting", || node.stage("rebooting")).await;
    watch
        .until("API gone, pods stopping", || async { !node.answers().await })
        .await;
    until(|| async { vm.events().len() > boots }).await;
    let watch = table.since("booted again");
    watch.until("API of the cluster", || node.answers()).await;
    watch
        .until("etcd and kubelet run", || async {
            node.runs("etcd").await && node.runs("kubelet").await
        })
        .await;
    watch.until("booting and ready", || node.status("booting", true)).await;
    watch.until("stage running", || node.stage("running")).await;
    watch.until("static pods not ready", || node.status("running", false)).await;
    watch.until("ready to stay", || node.status("running", true)).await;
}

async fn power_cycle(lab: &Lab, table: &Table, vm: &Vm) {
    let node = At(lab, CP3);
    vm.off();
    vm.on();
    let watch = table.since("power cycle");
    watch.until("API of the cluster", || node.answers()).await;
    watch.until("running and ready", || node.status("running", true)).await;
    until(|| node.up("etcd")).await;
}

async fn crash(lab: &Lab, table: &Table) {
    assert!(lab.world.crash_apid(CP2.parse().unwrap()));
    let watch = table.since("machine API crashed");
    watch.until("it answers", || At(lab, CP2).answers()).await;
}

async fn holder(lab: &Lab) -> Option<&'static str> {
    for address in [CP1, CP2, CP3] {
        if At(lab, address).holds_vip().await {
            return Some(address);
        }
    }
    None
}

/// The shared address leaves its holder in three ways.
async fn vip(lab: &Lab, table: &Table, vms: &BTreeMap<&str, &Vm>) {
    let elsewhere = |from: &'static str| async move { holder(lab).await.is_some_and(|address| address != from) };
    let first = holder(lab).await.expect("a member holds it");
    let (watch, request) = (table.since("etcd forfeit"), machine::EtcdForfeitLeadershipRequest {});
    lab.admin(first).machine.etcd_forfeit_leadership(request).await.unwrap();
    watch.note("answer");
    lab.admin(first)
        .machine
        .reboot(machine::RebootRequest::default())
        .await
        .unwrap();
    until(|| async { !At(lab, first).holds_vip().await }).await;
    table
        .since("VIP's holder reboots")
        .until("VIP elsewhere", || elsewhere(first))
        .await;
    until(|| At(lab, first).up("etcd")).await;

    let second = holder(lab).await.expect("a member holds it");
    vms[second].off();
    table
        .since("VIP's holder killed")
        .until("VIP elsewhere", || elsewhere(second))
        .await;
    vms[second].on();
    until(|| At(lab, second).up("etcd")).await;

    let third = holder(lab).await.expect("a member holds it");
    let watch = table.since("etcd leave");
    lab.admin(third)
        .machine
        .etcd_leave_cluster(machine::EtcdLeaveClusterRequest {})
        .await
        .unwrap();
    watch.note("answer");
    watch.until("VIP elsewhere", || elsewhere(third)).await;
}

/// Of two voters the one without the VIP dies.
async fn quorum(lab: &Lab, table: &Table, vms: &BTreeMap<&str, &Vm>) {
    let own = holder(lab).await.expect("a member holds it");
    let members = lab.admin(own).members().await.unwrap();
    assert_eq!(members.len(), 2, "one has left");
    let name = |address: &str| format!("cp-{}", &address[address.len() - 1..]);
    for (address, vm) in vms.iter().filter(|(address, _)| **address != own) {
        if members.iter().any(|member| member.hostname == name(address)) {
            vm.off();
        }
    }
    let watch = table.since("quorum lost");
    watch
        .until("etcd unhealthy", || async { !At(lab, own).up("etcd").await })
        .await;
    watch.until("VIP dropped", || async { !At(lab, own).holds_vip().await }).await;
}

/// A snapshot is brought to a node that was never bootstrapped.
async fn recover(lab: &Lab, table: &Table) {
    let first = lab.first_control_plane("cp-1", CP1).await;
    let request = machine::EtcdSnapshotRequest {};
    let mut stream = lab.admin(CP1).machine.etcd_snapshot(request).await.unwrap().into_inner();
    let mut chunks = Vec::new();
    while let Some(data) = stream.message().await.unwrap() {
        chunks.push(data);
    }
    drop(first);
    let (vm, node) = (lab.vm("cp-2", CP2), At(lab, CP2));
    vm.on();
    lab.configure(CP2, &crate::lab::control_plane("cp-2")).await;
    until(|| node.up("kubelet")).await;
    node.admin()
        .machine
        .etcd_recover(futures::stream::iter(chunks))
        .await
        .unwrap();
    let request = machine::BootstrapRequest {
        recover_etcd: true,
        recover_skip_hash_check: false,
    };
    let watch = table.since("bootstrap to recover");
    node.admin().machine.bootstrap(request).await.unwrap();
    watch.until("etcd runs", || node.runs("etcd")).await;
    watch.until("etcd healthy", || node.up("etcd")).await;
}

async fn a_whole_life(lab: &Lab, table: &Table) {
    let first = first_control_plane(lab, table).await;
    bootstrap(lab, table).await;
    let second = join(lab, table).await;
    let _worker = worker(lab, table).await;
    let third = lab.join_control_plane("cp-3", CP3).await;
    reboots(lab, table, &third).await;
    power_cycle(lab, table, &third).await;
    crash(lab, table).await;
    let vms = BTreeMap::from([(CP1, &first), (CP2, &second), (CP3, &third)]);
    vip(lab, table, &vms).await;
    quorum(lab, table, &vms).await;
}

#[test]
fn stages_take_as_long_as_they_were_recorded_to() {
    let mut spec = WorldSpec::default();
    spec.guests.timing.firmware = Duration::ZERO;
    spec.guests.timing.kernel = Duration::ZERO;
    let table = Arc::new(Table::default());
    let (life, restored) = (Arc::clone(&table), Arc::clone(&table));
    crate::lab::in_world_of(spec.clone(), |lab| async move { a_whole_life(&lab, &life).await });
    crate::lab::in_world_of(spec, |lab| async move { recover(&lab, &restored).await });
    let (text, wrong) = table.compare();
    println!(
        "{:<22} {:<25} {:>13} {:>7} {:>6}\n{text}",
        "from", "until", "recorded, s", "here, s", "ratio"
    );
    for (what, why) in NOT_COMPARED {
        println!("not compared: {what}: {why}");
    }
    assert!(
        wrong.is_empty(),
        "off by more than a factor of {FACTOR}:\n{}",
        wrong.join("\n")
    );
}
