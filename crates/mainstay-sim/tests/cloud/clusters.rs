//! RKE2 and k3s come up, driven over SSH.

use std::sync::Arc;
use std::time::Duration;

use crate::cloud::lab::{AGENT_PASSWORD, Lab, PASSWORD, Ssh, Vm, in_world, ip, is_ready, until};

/// What a client does before the first start: authorities, config, the artifact with its checksum, the unit.
pub async fn prepare(lab: &Lab, ssh: &Ssh, distro: &str, kind: &str, version: &str, config: &str) {
    if config.contains("cluster-init:") {
        for (name, text) in &lab.authorities {
            ssh.write(&format!("/var/lib/rancher/{distro}/server/tls/{name}"), "0600", text)
                .await;
        }
    }
    ssh.write(&format!("/etc/rancher/{distro}/config.yaml"), "0600", config).await;
    let base = match distro {
        "rke2" => "https://github.com/rancher/rke2/releases/download",
        _ => "https://github.com/k3s-io/k3s/releases/download",
    };
    let file = if distro == "rke2" { "rke2.linux-amd64.tar.gz" } else { "k3s" };
    let script = format!(
        "set -eu\ncd $(mktemp -d)\nurl={base}/{}\ncurl -fsSL --retry 3 -o {file} $url/{file}\ncurl -fsSL -o sums $url/sha256sum-amd64.txt\ngrep ' {file}$' sums | sha256sum -c -\n",
        version.replace('+', "%2B")
    );
    let install = match distro {
        "rke2" => "tar -xzf rke2.linux-amd64.tar.gz -C /usr/local\n".to_owned(),
        _ => format!(
            "install -m 0755 k3s /usr/local/bin/k3s\ncat > /etc/systemd/system/{0}.service <<'EOF'\n[Unit]\nAfter=network-online.target\n[Service]\nType=notify\nExecStart=/usr/local/bin/k3s {kind}\nRestart=always\nRestartSec=5s\nTimeoutStartSec=0\nKillMode=process\n[Install]\nWantedBy=multi-user.target\nEOF\n",
            unit(distro, kind)
        ),
    };
    let output = ssh
        .run(
            "sudo -n sh -s",
            format!("{script}{install}systemctl daemon-reload\n").as_bytes(),
        )
        .await;
    assert_eq!(output.status, 0, "{output:?}");
}

pub fn unit(distro: &str, kind: &str) -> String {
    match (distro, kind) {
        ("k3s", "server") => "k3s".to_owned(),
        _ => format!("{distro}-{kind}"),
    }
}

pub fn first_config(lab: &Lab, name: &str, address: &str) -> String {
    format!(
        "cluster-init: true\ntoken: {}\nagent-token: {}\nnode-name: {name}\nnode-ip: {address}\ntls-san: [10.10.0.100]\n",
        lab.token("server", PASSWORD),
        lab.token("node", AGENT_PASSWORD)
    )
}

pub fn join_config(lab: &Lab, name: &str, address: &str, port: u16) -> String {
    format!(
        "server: https://10.10.0.11:{port}\ntoken: {}\nagent-token: {}\nnode-name: {name}\nnode-ip: {address}\ntls-san: [10.10.0.100]\n",
        lab.token("server", PASSWORD),
        lab.token("node", AGENT_PASSWORD)
    )
}

pub fn version(distro: &str) -> &'static str {
    if distro == "rke2" { "v1.35.7+rke2r1" } else { "v1.36.3+k3s1" }
}

pub fn port(distro: &str) -> u16 {
    if distro == "rke2" { 9345 } else { 6443 }
}

/// A first server whose supervisor is ready.
pub async fn first_server(lab: &Lab, distro: &str) -> (Vm, Ssh) {
    let (vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
    prepare(
        lab,
        &ssh,
        distro,
        "server",
        version(distro),
        &first_config(lab, "cp-1", "10.10.0.11"),
    )
    .await;
    ssh.ok(&format!(
        "sudo -n systemctl enable --now --no-block {}",
        unit(distro, "server")
    ))
    .await;
    wait_ready(lab, distro, "10.10.0.11").await;
    (vm, ssh)
}

pub async fn wait_ready(lab: &Lab, distro: &str, address: &str) {
    let client = lab.client(distro);
    let url = format!("https://{address}:{}/v1-{distro}/readyz", port(distro));
    for _ in 0..400 {
        if client.status(&url).await == Some(200) {
            return;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let last = client.get(&url).await;
    panic!(
        "{address} is not ready: {last:?}\n{}",
        lab.world.guest_journal(ip(address)).join("\n")
    );
}

pub async fn join_server(lab: &Lab, distro: &str, name: &str, address: &str) -> (Vm, Ssh) {
    let (vm, ssh) = lab.ready_vm(name, address).await;
    prepare(
        lab,
        &ssh,
        distro,
        "server",
        version(distro),
        &join_config(lab, name, address, port(distro)),
    )
    .await;
    ssh.ok(&format!(
        "sudo -n systemctl enable --now --no-block {}",
        unit(distro, "server")
    ))
    .await;
    wait_ready(lab, distro, address).await;
    (vm, ssh)
}

async fn one_server_and_one_agent(lab: Arc<Lab>, distro: &str) {
    let (_server, _) = first_server(&lab, distro).await;
    let (_worker, ssh) = lab.ready_vm("w-1", "10.10.0.21").await;
    let config = format!(
        "server: https://10.10.0.11:{}\ntoken: {}\nnode-name: w-1\nnode-ip: 10.10.0.21\n",
        port(distro),
        lab.token("node", AGENT_PASSWORD)
    );
    prepare(&lab, &ssh, distro, "agent", version(distro), &config).await;
    ssh.ok(&format!("sudo -n systemctl enable --now {}", unit(distro, "agent")))
        .await;
    let client = lab.client(distro);
    for node in ["cp-1", "w-1"] {
        until(|| async { is_ready(&client.node("https://10.10.0.11:6443", node).await) }).await;
    }
    let node = client.node("https://10.10.0.11:6443", "cp-1").await;
    assert_eq!(node["status"]["nodeInfo"]["kubeletVersion"], version(distro));
    assert_eq!(
        node["status"]["nodeInfo"]["systemUUID"],
        "00000000-0000-4000-8000-000001010011"
    );
    let supervisor = format!("https://10.10.0.11:{}", port(distro));
    let members = client.members(&supervisor).await;
    assert!(
        members.len() == 1 && members[0].starts_with("cp-1-") && members[0].ends_with("|voter"),
        "{members:?}"
    );
    assert_eq!(
        client.get(&format!("{supervisor}/cacerts")).await.unwrap().1,
        lab.ca("server-ca.crt"),
        "served as the file"
    );
    assert_eq!(lab.world.etcd_foundings(), 1);
    assert!(
        lab.world
            .guest_journal(ip("10.10.0.21"))
            .iter()
            .any(|line| line.contains("Starting"))
    );
}

#[test]
fn an_rke2_server_and_agent_become_ready() {
    in_world(|lab| async move { one_server_and_one_agent(lab, "rke2").await });
}

#[test]
fn a_k3s_server_and_agent_become_ready() {
    in_world(|lab| async move { one_server_and_one_agent(lab, "k3s").await });
}

#[test]
fn two_servers_started_in_the_same_instant_both_end_as_voters() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let (second, third) = tokio::join!(
            join_server(&lab, "k3s", "cp-2", "10.10.0.12"),
            join_server(&lab, "k3s", "cp-3", "10.10.0.13")
        );
        let client = lab.client("k3s");
        for address in ["10.10.0.11", "10.10.0.12", "10.10.0.13"] {
            let members = client.members(&format!("https://{address}:6443")).await;
            assert_eq!(
                members.iter().filter(|member| member.ends_with("|voter")).count(),
                3,
                "{members:?}"
            );
        }
        drop((second, third));
        tokio::time::sleep(Duration::from_secs(1)).await;
    });
}
