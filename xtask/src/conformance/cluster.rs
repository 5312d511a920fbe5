//! A cluster that `mainstay up` built in the simulator, under the hands of the real talosctl and kubectl.

use anyhow::{Result, ensure};

use super::desk::{Desk, LIMIT};
use super::sim::Sim;
use super::talos_config::talosctl;
use super::tools::{Tools, call, command, is_there, without};
use super::{Verdict, first_bootstrap};

/// Fast, but a reboot still takes longer than the second that talosctl lies idle between two looks.
const SPEED: u32 = 10;
const CONTROL_PLANE: &str = "127.20.0.11";
const WORKER: &str = "127.20.0.21";
const NODES: [&str; 5] = [
    "demo-control-plane-1",
    "demo-control-plane-2",
    "demo-control-plane-3",
    "demo-worker-1",
    "demo-worker-2",
];

pub fn check(tools: &Tools) -> Result<Verdict> {
    let Some(talosctl) = talosctl(tools)? else {
        return without("talosctl");
    };
    if !is_there("kubectl") {
        return Ok(Verdict::Skipped("kubectl is not here".to_owned()));
    }
    let Some(keygen) = tools.go_install("age-keygen", "filippo.io/age/cmd/age-keygen@v1.3.2")? else {
        return without("age-keygen");
    };
    let folder = tools.empty("cluster")?;
    let key = folder.join("key.txt");
    call(command(keygen).arg("-o").arg(&key), LIMIT, &folder)?.good("age-keygen")?;
    let sim = Sim::start(&folder, SPEED)?;
    let desk = |folder| Desk {
        talosctl: &talosctl,
        sim: &sim,
        folder,
        key: &key,
    };
    std::fs::write(folder.join("cluster.yaml"), cluster_yaml(&sim))?;
    let cluster = Cluster(desk(folder.clone()));
    cluster.0.build()?;
    cluster.talos()?;
    cluster.kubernetes()?;
    cluster.reboot()?;
    cluster.reset()?;
    cluster
        .0
        .mainstay(&["down", "--yes", "--name", "demo", "--plain"])?
        .good("mainstay down")?;
    println!("  five machines: lived with talosctl and kubectl, reset, taken down");
    first_bootstrap::after_a_reset(&desk(tools.empty("cluster-solo")?))?;
    println!("  one machine that was wiped: bootstrapped by talosctl, as it should be for mainstay");
    if !is_there("curl") {
        println!("  without curl no machine is made by hand");
        return Ok(Verdict::Passed);
    }
    first_bootstrap::by_hand(&desk(tools.empty("cluster-by-hand")?))?;
    println!("  one machine by curl and talosctl alone: bootstrapped, healthy, Ready");
    Ok(Verdict::Passed)
}

fn cluster_yaml(sim: &Sim) -> String {
    let Sim {
        fingerprint, factory, ..
    } = sim;
    format!(
        "\
name: demo
datacenter: {{ fingerprint: \"{fingerprint}\" }}
network: {{ cidr: 127.20.0.0/16, gateway: 127.20.0.1, dns: [1.1.1.1], vip: 127.20.0.20 }}
talos: {{ version: 1.13.9, factory: \"{factory}\" }}
pools:
  control-plane: {{ count: 3, cpu: 4, memory: 8GiB, disk: 40GiB, addresses: {CONTROL_PLANE}+, vmids: 2001+ }}
  worker: {{ count: 2, cpu: 8, memory: 16GiB, disk: 60GiB, addresses: {WORKER}+, vmids: 3001+ }}
"
    )
}

struct Cluster<'a>(Desk<'a>);

impl Cluster<'_> {
    fn talos(&self) -> Result<()> {
        let all_members = NODES;
        let cases: [(&[&str], &[&str]); 9] = [
            (&["version"], &["Server:", "v1.13.9"]),
            (&["get", "members"], &all_members),
            (&["get", "machinestatus"], &["running", "true"]),
            (&["get", "disks"], &["sda"]),
            (&["etcd", "members"], &NODES[..3]),
            (&["etcd", "status"], &["3.6."]),
            (&["service"], &["apid", "etcd", "kubelet", "trustd"]),
            (&["logs", "kubelet"], &["kubelet"]),
            (&["read", "/proc/sys/kernel/random/boot_id"], &["-"]),
        ];
        for (words, wanted) in cases {
            self.0
                .talosctl(CONTROL_PLANE, words)?
                .says(&format!("talosctl {}", words.join(" ")), wanted)?;
        }
        self.0.health(CONTROL_PLANE, "of a new cluster")?;
        self.0
            .talosctl(CONTROL_PLANE, &["kubeconfig", "kubeconfig-of-talos", "--force"])?
            .good("talosctl kubeconfig")?;
        self.0
            .kubectl("kubeconfig-of-talos", &["get", "nodes"])?
            .says("kubectl with talosctl's kubeconfig", &NODES)?;
        Ok(())
    }

    fn kubernetes(&self) -> Result<()> {
        let get = self
            .0
            .kubectl("kubeconfig", &["get", "nodes"])?
            .says("kubectl get nodes", &NODES)?;
        ensure!(
            get.matches(" Ready ").count() == NODES.len(),
            "not all nodes are ready:\n{get}"
        );
        self.0
            .kubectl("kubeconfig", &["get", "nodes", "--watch", "--request-timeout=2s"])?
            .says("kubectl get nodes -w", &NODES)?;
        let described = self.0.kubectl("kubeconfig", &["describe", "node", NODES[3]])?;
        described.says(
            "kubectl describe node",
            &[WORKER, "KubeletReady", "v1.36.", "Talos (v1.13.9)"],
        )?;
        self.0
            .kubectl("kubeconfig", &["cordon", NODES[3]])?
            .says("kubectl cordon", &["cordoned"])?;
        self.0
            .kubectl("kubeconfig", &["get", "node", NODES[3]])?
            .says("a cordoned node", &["SchedulingDisabled"])?;
        self.0
            .kubectl("kubeconfig", &["uncordon", NODES[3]])?
            .says("kubectl uncordon", &["uncordoned"])?;
        self.0
            .kubectl("kubeconfig", &["get", "pods", "--all-namespaces"])?
            .says("kubectl get pods", &["kube-apiserver-", "Running"])?;
        self.0
            .kubectl("kubeconfig", &["get", "--raw", "/readyz"])?
            .says("/readyz", &["ok"])?;
        Ok(())
    }

    /// talosctl follows the events of the node through its reboot, and asks for the new boot id at the end.
    fn reboot(&self) -> Result<()> {
        let reboot = self.0.talosctl(WORKER, &["reboot", "--wait", "--timeout", "60s"])?;
        let told = format!("{}{}", reboot.out, reboot.err);
        reboot.good("talosctl reboot")?;
        ensure!(
            told.contains("post check passed"),
            "talosctl reboot saw no new boot: {}",
            told.trim()
        );
        Ok(())
    }

    /// A second bootstrap is refused. A worker is wiped, comes back without a config, gets it again by hand, and is a node as before.
    fn reset(&self) -> Result<()> {
        self.0.second_bootstrap_is_refused(CONTROL_PLANE)?;
        self.0.reset(WORKER)?;
        self.0.apply(WORKER, "configs/demo-worker-1.yaml")?;
        self.0.health(CONTROL_PLANE, "after a reset")
    }
}
