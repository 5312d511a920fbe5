//! The first bootstrap of a cluster, by the hand of the real talosctl: on a machine of ours that was wiped, and on one that
//! nothing of ours has ever touched.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::desk::{Desk, LIMIT};
use super::tools::call;

const SOLO: &str = "127.20.0.41";
const BY_HAND: &str = "127.20.0.51";
const HOST: &str = "pve1";
/// The Image Factory's id of a schematic without any customization.
const SCHEMATIC: &str = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";

/// A cluster of one, reset to nothing, configured and bootstrapped by talosctl. `mainstay` finds it as it should be.
pub fn after_a_reset(desk: &Desk<'_>) -> Result<()> {
    let (fingerprint, factory) = (&desk.sim.fingerprint, &desk.sim.factory);
    let file = format!(
        "\
name: solo
datacenter: {{ fingerprint: \"{fingerprint}\" }}
network: {{ cidr: 127.20.0.0/16, gateway: 127.20.0.1, dns: [1.1.1.1] }}
talos: {{ version: 1.13.9, factory: \"{factory}\" }}
pools:
  control-plane: {{ count: 1, cpu: 4, memory: 8GiB, disk: 40GiB, addresses: {SOLO}+, vmids: 4001+ }}
"
    );
    std::fs::write(desk.folder.join("cluster.yaml"), file)?;
    desk.build()?;
    desk.reset(SOLO)?;
    desk.apply(SOLO, "configs/solo-control-plane-1.yaml")?;
    bootstrap(desk, SOLO, "solo-control-plane-1")?;
    desk.mainstay(&["up", "--yes", "--plain"])?
        .good("mainstay up after a bootstrap by hand")?;
    let plan = desk.mainstay(&["plan", "--check"])?;
    ensure!(
        plan.code == Some(0),
        "a plan after a bootstrap by hand is not empty: {}",
        plan.out.trim()
    );
    desk.mainstay(&["down", "--yes", "--name", "solo", "--plain"])?
        .good("mainstay down of solo")?;
    Ok(())
}

/// A VM by requests of curl, a config and credentials by talosctl: nothing of it is ours.
pub fn by_hand(desk: &Desk<'_>) -> Result<()> {
    let url = format!("{}/image/{SCHEMATIC}/v1.13.9/nocloud-amd64.qcow2", desk.sim.factory);
    let image = [("content", "import"), ("filename", "by-hand.qcow2"), ("url", url.as_str())];
    run(desk, "POST", &format!("/nodes/{HOST}/storage/local/download-url"), &image)?;
    let ip = format!("ip={BY_HAND}/16,gw=127.20.0.1");
    let machine = [
        ("vmid", "4101"),
        ("name", "by-hand"),
        ("cores", "2"),
        ("memory", "4096"),
        ("scsihw", "virtio-scsi-pci"),
        ("scsi0", "local-lvm:0,import-from=local:import/by-hand.qcow2"),
        ("ide2", "local-lvm:cloudinit"),
        ("net0", "virtio,bridge=vmbr0"),
        ("ipconfig0", &ip),
        ("nameserver", "1.1.1.1"),
        ("boot", "order=scsi0"),
        ("serial0", "socket"),
    ];
    run(desk, "POST", &format!("/nodes/{HOST}/qemu"), &machine)?;
    let grown = [("disk", "scsi0"), ("size", "20G")];
    run(desk, "PUT", &format!("/nodes/{HOST}/qemu/4101/resize"), &grown)?;
    run(desk, "POST", &format!("/nodes/{HOST}/qemu/4101/status/start"), &[])?;

    let endpoint = format!("https://{BY_HAND}:6443");
    let mut generate = desk.at_home(desk.talosctl);
    generate.args(["gen", "config", "by-hand", &endpoint, "--install-disk", "/dev/sda"]);
    call(&mut generate, LIMIT, &desk.folder)?.good("talosctl gen config")?;
    desk.talosctl(BY_HAND, &["config", "endpoint", BY_HAND])?
        .good("talosctl config endpoint")?;
    desk.apply(BY_HAND, "controlplane.yaml")?;
    bootstrap(desk, BY_HAND, "by-hand")?;
    desk.talosctl(BY_HAND, &["kubeconfig", "kubeconfig", "--force"])?
        .good("talosctl kubeconfig")?;
    desk.kubectl("kubeconfig", &["get", "nodes"])?
        .says("kubectl get nodes of a cluster made by hand", &["by-hand", " Ready "])?;

    run(desk, "POST", &format!("/nodes/{HOST}/qemu/4101/status/stop"), &[])?;
    run(desk, "DELETE", &format!("/nodes/{HOST}/qemu/4101"), &[])
}

/// From a configured machine to a healthy cluster.
fn bootstrap(desk: &Desk<'_>, node: &str, name: &str) -> Result<()> {
    desk.bootstrap(node)?;
    desk.health(node, "after the first bootstrap")?;
    let members = desk
        .talosctl(node, &["etcd", "members"])?
        .says("talosctl etcd members", &[name, node])?;
    ensure!(members.matches(":2380").count() == 1, "not one member:\n{members}");
    desk.second_bootstrap_is_refused(node)
}

/// A request that begins a task, and the end of that task.
#[expect(clippy::disallowed_methods, reason = "nothing else runs in here meanwhile")]
fn run(desk: &Desk<'_>, verb: &str, path: &str, params: &[(&str, &str)]) -> Result<()> {
    let task = ask(desk, verb, path, params)?;
    let task = task.as_str().with_context(|| format!("{verb} {path} names no task"))?;
    loop {
        let status = ask(desk, "GET", &format!("/nodes/{HOST}/tasks/{task}/status"), &[])?;
        match (status["status"].as_str(), status["exitstatus"].as_str()) {
            (Some("stopped"), Some("OK")) => return Ok(()),
            (Some("stopped"), end) => bail!("{verb} {path} ended with {end:?}"),
            _ => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

fn ask(desk: &Desk<'_>, verb: &str, path: &str, params: &[(&str, &str)]) -> Result<Value> {
    let mut curl = desk.at_home(Path::new("curl"));
    curl.args([
        "--silent",
        "--show-error",
        "--insecure",
        "--fail-with-body",
        "--request",
        verb,
    ]);
    curl.arg("--header")
        .arg(format!("Authorization: PVEAPIToken={}", desk.sim.token));
    for (name, value) in params {
        curl.arg("--data-urlencode").arg(format!("{name}={value}"));
    }
    curl.arg(format!("{}/api2/json{path}", desk.sim.endpoint));
    let said = call(&mut curl, LIMIT, &desk.folder)?.good(&format!("curl {verb} {path}"))?;
    let answer: Value = serde_json::from_str(&said).with_context(|| format!("{verb} {path} was not answered in JSON"))?;
    Ok(answer["data"].clone())
}
