//! A cluster that `mainstay up` built in the simulator, under the hands of the real talosctl and kubectl.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Verdict;
use super::sim::Sim;
use super::talos_config::talosctl;
use super::tools::{Said, Tools, call, command, is_there, without};

const LIMIT: Duration = Duration::from_secs(120);
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
    call(command(keygen).arg("-o").arg(folder.join("key.txt")), LIMIT, &folder)?.good("age-keygen")?;
    let sim = Sim::start(&folder, SPEED)?;
    std::fs::write(folder.join("cluster.yaml"), cluster_yaml(&sim))?;
    let desk = Desk { talosctl, folder, sim };
    desk.build()?;
    desk.talos()?;
    desk.kubernetes()?;
    desk.reboot()?;
    desk.reset()?;
    desk.mainstay(&["down", "--yes", "--name", "demo", "--plain"])?
        .good("mainstay down")?;
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

/// Who sits in front of the cluster: three programs and their files.
struct Desk {
    talosctl: PathBuf,
    folder: PathBuf,
    sim: Sim,
}

impl Desk {
    fn build(&self) -> Result<()> {
        self.mainstay(&["up", "--yes", "--plain"])?.good("mainstay up")?;
        let plan = self.mainstay(&["plan", "--check"])?;
        ensure!(plan.code == Some(0), "a plan after up is not empty: {}", plan.out.trim());
        self.mainstay(&["talosconfig", "--out", "talosconfig"])?
            .good("mainstay talosconfig")?;
        self.mainstay(&["kubeconfig", "--out", "kubeconfig"])?
            .good("mainstay kubeconfig")?;
        Ok(())
    }

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
            self.talosctl(CONTROL_PLANE, words)?
                .says(&format!("talosctl {}", words.join(" ")), wanted)?;
        }
        // The checks run in talosctl itself, with the machine API and Kubernetes, not in the node that it asks.
        let health = self.talosctl(CONTROL_PLANE, &["health", "--server=false", "--wait-timeout", "60s"])?;
        health.good("talosctl health")?;
        self.talosctl(CONTROL_PLANE, &["kubeconfig", "kubeconfig-of-talos", "--force"])?
            .good("talosctl kubeconfig")?;
        self.kubectl("kubeconfig-of-talos", &["get", "nodes"])?
            .says("kubectl with talosctl's kubeconfig", &NODES)?;
        Ok(())
    }

    fn kubernetes(&self) -> Result<()> {
        let get = self
            .kubectl("kubeconfig", &["get", "nodes"])?
            .says("kubectl get nodes", &NODES)?;
        ensure!(
            get.matches(" Ready ").count() == NODES.len(),
            "not all nodes are ready:\n{get}"
        );
        self.kubectl("kubeconfig", &["get", "nodes", "--watch", "--request-timeout=2s"])?
            .says("kubectl get nodes -w", &NODES)?;
        let described = self.kubectl("kubeconfig", &["describe", "node", NODES[3]])?;
        described.says(
            "kubectl describe node",
            &[WORKER, "KubeletReady", "v1.36.", "Talos (v1.13.9)"],
        )?;
        self.kubectl("kubeconfig", &["cordon", NODES[3]])?
            .says("kubectl cordon", &["cordoned"])?;
        self.kubectl("kubeconfig", &["get", "node", NODES[3]])?
            .says("a cordoned node", &["SchedulingDisabled"])?;
        self.kubectl("kubeconfig", &["uncordon", NODES[3]])?
            .says("kubectl uncordon", &["uncordoned"])?;
        self.kubectl("kubeconfig", &["get", "pods", "--all-namespaces"])?
            .says("kubectl get pods", &["kube-apiserver-", "Running"])?;
        self.kubectl("kubeconfig", &["get", "--raw", "/readyz"])?
            .says("/readyz", &["ok"])?;
        Ok(())
    }

    /// talosctl follows the events of the node through its reboot, and asks for the new boot id at the end.
    fn reboot(&self) -> Result<()> {
        let reboot = self.talosctl(WORKER, &["reboot", "--wait", "--timeout", "60s"])?;
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
    #[expect(clippy::disallowed_methods, reason = "nothing else runs in here meanwhile")]
    fn reset(&self) -> Result<()> {
        let again = self.talosctl(CONTROL_PLANE, &["bootstrap"])?;
        ensure!(
            again.err.contains("AlreadyExists"),
            "talosctl bootstrap: {}",
            again.err.trim()
        );
        self.mainstay(&["config", "--out", "configs"])?.good("mainstay config")?;
        let wipe = ["--system-labels-to-wipe", "STATE", "--system-labels-to-wipe", "EPHEMERAL"];
        let words = [&["reset", "--graceful=false", "--reboot", "--wait=false"][..], &wipe].concat();
        self.talosctl(WORKER, &words)?.good("talosctl reset")?;
        let apply = ["apply-config", "--insecure", "--file", "configs/demo-worker-1.yaml"];
        // Refused while the machine still runs as before, and while it boots.
        let mut last = self.talosctl(WORKER, &apply)?;
        for _ in 0..60 {
            if last.code == Some(0) {
                break;
            }
            std::thread::sleep(Duration::from_secs(1));
            last = self.talosctl(WORKER, &apply)?;
        }
        last.good("talosctl apply-config --insecure")?;
        self.talosctl(CONTROL_PLANE, &["health", "--server=false", "--wait-timeout", "90s"])?
            .good("talosctl health after a reset")?;
        Ok(())
    }

    fn mainstay(&self, words: &[&str]) -> Result<Said> {
        let mut mainstay = self.at_home(&self.sim.mainstay);
        mainstay.args(words).env("SOPS_AGE_KEY_FILE", self.folder.join("key.txt"));
        mainstay
            .env("PROXMOX_VE_ENDPOINT", &self.sim.endpoint)
            .env("PROXMOX_VE_API_TOKEN", &self.sim.token);
        call(&mut mainstay, LIMIT, &self.folder)
    }

    fn talosctl(&self, node: &str, words: &[&str]) -> Result<Said> {
        let mut talosctl = self.at_home(&self.talosctl);
        talosctl.args(["--talosconfig", "talosconfig", "--nodes", node]).args(words);
        call(&mut talosctl, LIMIT, &self.folder)
    }

    fn kubectl(&self, kubeconfig: &str, words: &[&str]) -> Result<Said> {
        let mut kubectl = self.at_home(Path::new("kubectl"));
        kubectl.args(["--kubeconfig", kubeconfig]).args(words);
        call(&mut kubectl, LIMIT, &self.folder)
    }

    /// Caches and settings of whoever runs this stay out of it.
    fn at_home(&self, program: &Path) -> Command {
        let mut command = command(program);
        command
            .current_dir(&self.folder)
            .env("HOME", &self.folder)
            .env_remove("KUBECONFIG")
            .env_remove("TALOSCONFIG");
        command
    }
}
