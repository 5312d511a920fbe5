//! How etcd, supervisor and kube-vip behave on bad days.

use std::time::Duration;

use serde_json::json;

use crate::cloud::clusters::{first_config, first_server, join_config, join_server, prepare, version, wait_ready};
use crate::cloud::lab::{AGENT_PASSWORD, PASSWORD, condition, in_world, ip, is_ready, until};

const FIRST: &str = "https://10.10.0.11:6443";
const SECOND: &str = "https://10.10.0.12:6443";

async fn seconds(count: u64) {
    tokio::time::sleep(Duration::from_secs(count)).await;
}

#[test]
fn a_dead_learner_is_promoted_and_takes_the_first_server_down_until_it_returns() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let (second, ssh) = lab.ready_vm("cp-2", "10.10.0.12").await;
        prepare(
            &lab,
            &ssh,
            "k3s",
            "server",
            version("k3s"),
            &join_config(&lab, "cp-2", "10.10.0.12", 6443),
        )
        .await;
        ssh.ok("sudo -n systemctl enable --now --no-block k3s").await;
        let client = lab.client("k3s");
        until(|| async { client.members(FIRST).await.iter().any(|member| member.ends_with("|learner")) }).await;
        seconds(2).await;
        second.off();
        until(|| async { client.status(&format!("{FIRST}/v1-k3s/readyz")).await != Some(200) }).await;
        let journal = lab.world.guest_journal(ip("10.10.0.11")).join("\n");
        assert!(journal.contains("leaderelection lost"), "{journal}");
        seconds(40).await;
        assert_ne!(
            client.status(&format!("{FIRST}/v1-k3s/readyz")).await,
            Some(200),
            "it stays activating"
        );
        second.on();
        wait_ready(&lab, "k3s", "10.10.0.11").await;
        wait_ready(&lab, "k3s", "10.10.0.12").await;
        assert_eq!(
            client
                .members(FIRST)
                .await
                .iter()
                .filter(|member| member.ends_with("|voter"))
                .count(),
            2
        );
    });
}

#[test]
fn a_first_server_killed_in_its_first_seconds_never_starts_until_its_database_is_deleted() {
    for (killed_after, heals_by_itself, text) in [
        (900, true, ""),
        (2000, false, "failed to read consistent index"),
        (3500, false, "no bootstrap data found in datastore"),
        (4900, true, ""),
    ] {
        in_world(move |lab| async move {
            let (vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
            prepare(
                &lab,
                &ssh,
                "k3s",
                "server",
                version("k3s"),
                &first_config(&lab, "cp-1", "10.10.0.11"),
            )
            .await;
            ssh.ok("sudo -n systemctl enable --now --no-block k3s").await;
            tokio::time::sleep(Duration::from_millis(killed_after)).await;
            vm.off();
            vm.on();
            let client = lab.client("k3s");
            seconds(90).await;
            let ready = client.status(&format!("{FIRST}/v1-k3s/readyz")).await == Some(200);
            assert_eq!(ready, heals_by_itself, "killed after {killed_after} ms");
            if !heals_by_itself {
                let ssh = lab.ssh("10.10.0.11").await;
                let log = ssh.ok("sudo -n journalctl -u k3s -o cat").await;
                assert!(log.contains(text), "{log}");
                let restarts: u32 = ssh
                    .ok("systemctl show -p NRestarts --value k3s")
                    .await
                    .trim()
                    .parse()
                    .unwrap();
                assert!(restarts > 3, "a crash loop");
                ssh.ok("sudo -n systemctl stop k3s; sudo -n rm -rf /var/lib/rancher/k3s/server/db; sudo -n systemctl start k3s")
                    .await;
                wait_ready(&lab, "k3s", "10.10.0.11").await;
            }
        });
    }
}

#[test]
fn a_removed_server_leaves_a_tombstone_and_rejoins_under_a_new_name_by_itself() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let (_second, ssh) = join_server(&lab, "k3s", "cp-2", "10.10.0.12").await;
        let (_third, _) = join_server(&lab, "k3s", "cp-3", "10.10.0.13").await;
        let client = lab.client("k3s");
        let annotation = "etcd.k3s.cattle.io/node-name";
        until(|| async { client.node(FIRST, "cp-2").await["metadata"]["annotations"][annotation].is_string() }).await;
        let old = client.node(FIRST, "cp-2").await["metadata"]["annotations"][annotation]
            .as_str()
            .unwrap()
            .to_owned();
        client.annotate(FIRST, "cp-2", "etcd.k3s.cattle.io/remove", "true").await;
        seconds(1).await;
        let node = client.node(FIRST, "cp-2").await;
        assert_eq!(
            node["metadata"]["annotations"]["etcd.k3s.cattle.io/removed-node-name"],
            old.as_str()
        );
        assert!(!client.members(FIRST).await.iter().any(|member| member.starts_with("cp-2-")));
        until(|| async {
            client
                .members(FIRST)
                .await
                .iter()
                .any(|member| member.starts_with("cp-2-") && member.ends_with("|voter"))
        })
        .await;
        assert!(!client.members(FIRST).await.contains(&format!("{old}|voter")), "a new name");
        assert!(
            ssh.ok("sudo -n journalctl -u k3s -o cat")
                .await
                .contains("tombstone file has been detected")
        );
        // The annotation of its earlier life eats the next request.
        client.annotate(FIRST, "cp-2", "etcd.k3s.cattle.io/remove", "true").await;
        seconds(1).await;
        let annotations = client.node(FIRST, "cp-2").await["metadata"]["annotations"].clone();
        assert!(
            annotations["etcd.k3s.cattle.io/remove"].is_null() && annotations["etcd.k3s.cattle.io/removed-node-name"].is_null()
        );
        assert!(
            client.members(FIRST).await.iter().any(|member| member.starts_with("cp-2-")),
            "nothing was removed"
        );
    });
}

#[test]
fn a_server_removed_while_off_hangs_when_it_returns() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let (second, _) = join_server(&lab, "k3s", "cp-2", "10.10.0.12").await;
        let (_third, _) = join_server(&lab, "k3s", "cp-3", "10.10.0.13").await;
        let client = lab.client("k3s");
        until(|| async { condition(&client.node(FIRST, "cp-2").await, "EtcdIsVoter").as_deref() == Some("True") }).await;
        second.off();
        seconds(20).await;
        assert_eq!(
            condition(&client.node(FIRST, "cp-2").await, "EtcdIsVoter").as_deref(),
            Some("True"),
            "it does not say alive"
        );
        client.send("DELETE", &format!("{FIRST}/api/v1/nodes/cp-2"), &[], "").await;
        until(|| async { client.members(FIRST).await.len() == 2 }).await;
        second.on();
        seconds(120).await;
        assert_eq!(client.status(&format!("{SECOND}/v1-k3s/readyz")).await, Some(503));
        let (status, body) = client.get(&format!("{SECOND}/db/info")).await.unwrap();
        assert!(status == 500 && body.contains("context deadline exceeded"), "{body}");
        let journal = lab.world.guest_journal(ip("10.10.0.12")).join("\n");
        assert!(
            journal.contains("the member has been permanently removed from the cluster"),
            "{journal}"
        );
    });
}

#[test]
fn the_last_voter_is_not_removed_and_its_node_waits_for_its_finalizer() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let client = lab.client("k3s");
        until(|| async { is_ready(&client.node(FIRST, "cp-1").await) }).await;
        seconds(3).await;
        client.annotate(FIRST, "cp-1", "etcd.k3s.cattle.io/remove", "true").await;
        seconds(2).await;
        let annotations = client.node(FIRST, "cp-1").await["metadata"]["annotations"].clone();
        assert!(
            annotations["etcd.k3s.cattle.io/remove"].is_null() && annotations["etcd.k3s.cattle.io/removed-node-name"].is_null()
        );
        assert!(annotations["etcd.k3s.cattle.io/node-name"].is_string() && client.members(FIRST).await.len() == 1);
        client.send("DELETE", &format!("{FIRST}/api/v1/nodes/cp-1"), &[], "").await;
        seconds(30).await;
        assert!(client.node(FIRST, "cp-1").await["metadata"]["deletionTimestamp"].is_string());
    });
}

#[test]
fn roles_of_the_supervisor_are_exact_and_basic_authentication_is_slow() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let paths = [
            "v1-k3s/readyz",
            "v1-k3s/config",
            "v1-k3s/apiservers",
            "v1-k3s/server-bootstrap",
            "db/info",
            "readyz",
            "api/v1/nodes",
        ];
        for (group, wanted) in [
            ("system:masters", [403, 403, 403, 403, 403, 200, 200]),
            ("system:nodes", [200, 200, 200, 403, 403, 200, 403]),
            ("k3s:agent", [200, 200, 200, 403, 403, 200, 403]),
            ("k3s:server", [403, 403, 403, 200, 200, 200, 403]),
        ] {
            let client = lab.client_as(Some(lab.identity("probe", &[group])));
            for (path, wanted) in paths.iter().zip(wanted) {
                assert_eq!(
                    client.status(&format!("{FIRST}/{path}")).await,
                    Some(wanted),
                    "{group} {path}"
                );
            }
        }
        let anonymous = lab.client_as(None);
        assert_eq!(anonymous.status(&format!("{FIRST}/v1-k3s/readyz")).await, Some(403));
        assert_eq!(anonymous.status(&format!("{FIRST}/readyz")).await, Some(401));
        let began = tokio::time::Instant::now();
        let server = format!("server:{PASSWORD}");
        assert_eq!(anonymous.basic(&format!("{FIRST}/db/info"), &server).await.unwrap().0, 200);
        assert!(began.elapsed() >= Duration::from_millis(110));
        assert_eq!(
            anonymous.basic(&format!("{FIRST}/v1-k3s/readyz"), &server).await.unwrap().0,
            403
        );
        assert_eq!(
            anonymous
                .basic(&format!("{FIRST}/v1-k3s/readyz"), &format!("node:{AGENT_PASSWORD}"))
                .await
                .unwrap()
                .0,
            200
        );
        assert_eq!(
            anonymous
                .basic(&format!("{FIRST}/v1-k3s/readyz"), &format!("node:{PASSWORD}"))
                .await
                .unwrap()
                .0,
            401
        );
    });
}

#[test]
fn in_the_first_half_second_everything_is_starting_and_the_database_is_unauthorized() {
    in_world(|lab| async move {
        let (_vm, ssh) = lab.ready_vm("cp-1", "10.10.0.11").await;
        prepare(
            &lab,
            &ssh,
            "k3s",
            "server",
            version("k3s"),
            &first_config(&lab, "cp-1", "10.10.0.11"),
        )
        .await;
        ssh.ok("sudo -n systemctl enable --now --no-block k3s").await;
        let client = lab.client("k3s");
        let mut seen = Vec::new();
        let began = tokio::time::Instant::now();
        while began.elapsed() < Duration::from_secs(16) {
            for path in ["cacerts", "db/info", "v1-k3s/readyz", "readyz"] {
                let Some((status, body)) = client.get(&format!("{FIRST}/{path}")).await else {
                    continue;
                };
                let message = serde_json::from_str::<serde_json::Value>(&body).ok();
                let message = message
                    .and_then(|body| body["message"].as_str().map(str::to_owned))
                    .unwrap_or_default();
                let line = format!("{path} {status} {message}");
                if !seen.contains(&line) {
                    seen.push(line);
                }
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let order = |line: &str| {
            seen.iter()
                .position(|known| known == line)
                .unwrap_or_else(|| panic!("{line} in {seen:?}"))
        };
        assert!(order("cacerts 503 starting") < order("cacerts 200 "));
        assert!(
            order("db/info 401 not authorized")
                < order("db/info 500 Internal error occurred: failed to get etcd MemberList: etcd not started")
        );
        assert!(order("v1-k3s/readyz 503 runtime core not ready") < order("v1-k3s/readyz 200 "));
        assert!(order("readyz 503 apiserver not ready") < order("readyz 500 ") && order("readyz 500 ") < order("readyz 200 "));
        assert!(
            order("readyz 200 ") < order("v1-k3s/readyz 200 "),
            "the API is ready before the supervisor says so"
        );
    });
}

#[test]
fn wrong_joins_are_refused_with_their_reasons() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let (_vm, ssh) = lab.ready_vm("cp-2", "10.10.0.12").await;
        let good = join_config(&lab, "cp-2", "10.10.0.12", 6443);
        let cases = [
            (
                good.replace(PASSWORD, "wrong"),
                "failed to bootstrap cluster data: not authorized",
            ),
            (good.replace("K10", "K10ab"), "invalid token CA hash length"),
            (good.replace("10.10.0.11:6443", "10.10.0.77:6443"), "failed to get CA certs"),
            (
                good.replace("node-name: cp-2", "node-name: cp-1"),
                "duplicate node name found",
            ),
            (
                format!("{good}cluster-cidr: 10.99.0.0/16\n"),
                "critical configuration mismatched: cluster-cidr",
            ),
        ];
        for (config, text) in cases {
            prepare(&lab, &ssh, "k3s", "server", version("k3s"), &config).await;
            ssh.ok("sudo -n systemctl restart --no-block k3s").await;
            seconds(20).await;
            let log = ssh.ok("sudo -n journalctl -u k3s -o cat -n 40").await;
            assert!(log.contains(text), "{text}: {log}");
            ssh.ok("sudo -n systemctl stop k3s; sudo -n rm -rf /var/lib/rancher/k3s/server")
                .await;
        }
    });
}

#[test]
fn another_machine_under_the_name_of_a_node_has_its_password_rejected() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let client = lab.client("k3s");
        let config = |address: &str| {
            format!(
                "server: {FIRST}\ntoken: {}\nnode-name: w-1\nnode-ip: {address}\n",
                lab.token("node", AGENT_PASSWORD)
            )
        };
        let (worker, ssh) = lab.ready_vm("w-1", "10.10.0.21").await;
        prepare(&lab, &ssh, "k3s", "agent", version("k3s"), &config("10.10.0.21")).await;
        ssh.ok("sudo -n systemctl enable --now k3s-agent").await;
        until(|| async { is_ready(&client.node(FIRST, "w-1").await) }).await;
        worker.off();
        let (_other, ssh) = lab.ready_vm("w-1", "10.10.0.22").await;
        prepare(&lab, &ssh, "k3s", "agent", version("k3s"), &config("10.10.0.22")).await;
        ssh.ok("sudo -n systemctl enable --now --no-block k3s-agent").await;
        seconds(30).await;
        assert!(
            ssh.ok("sudo -n journalctl -u k3s-agent -o cat")
                .await
                .contains("Node password rejected")
        );
        assert_eq!(
            ssh.run("systemctl is-active k3s-agent", b"").await.stdout,
            "activating\n",
            "an agent never exits"
        );
        client.send("DELETE", &format!("{FIRST}/api/v1/nodes/w-1"), &[], "").await;
        until(|| async { is_ready(&client.node(FIRST, "w-1").await) }).await;
    });
}

#[test]
fn stopping_rke2s_unit_leaves_etcd_and_api_server_running() {
    in_world(|lab| async move {
        let (_first, ssh) = first_server(&lab, "rke2").await;
        let client = lab.client("rke2");
        ssh.ok("sudo -n systemctl stop rke2-server").await;
        assert_eq!(client.status("https://10.10.0.11:9345/ping").await, None);
        assert_eq!(client.status("https://10.10.0.11:6443/readyz").await, Some(200));
        assert_eq!(ssh.run("pgrep -x etcd", b"").await.status, 0);
        ssh.ok("sudo -n /usr/local/bin/rke2-killall.sh").await;
        assert_eq!(ssh.run("pgrep -x etcd", b"").await.status, 1);
        assert_eq!(client.status("https://10.10.0.11:6443/readyz").await, None);
        ssh.ok("sudo -n systemctl start rke2-server").await;
        wait_ready(&lab, "rke2", "10.10.0.11").await;
    });
}

#[test]
fn two_first_servers_are_two_clusters_with_one_authority() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let (_vm, ssh) = lab.ready_vm("cp-2", "10.10.0.12").await;
        prepare(
            &lab,
            &ssh,
            "k3s",
            "server",
            version("k3s"),
            &first_config(&lab, "cp-2", "10.10.0.12"),
        )
        .await;
        ssh.ok("sudo -n systemctl start k3s").await;
        let client = lab.client("k3s");
        wait_ready(&lab, "k3s", "10.10.0.12").await;
        assert_eq!(
            client.get(&format!("{FIRST}/cacerts")).await,
            client.get(&format!("{SECOND}/cacerts")).await
        );
        assert_ne!(client.members(FIRST).await, client.members(SECOND).await);
        let path = "api/v1/namespaces/kube-system";
        let uid = |body: serde_json::Value| body["metadata"]["uid"].clone();
        assert_ne!(
            uid(client.json(&format!("{FIRST}/{path}")).await.unwrap()),
            uid(client.json(&format!("{SECOND}/{path}")).await.unwrap())
        );
        assert_eq!(lab.world.etcd_foundings(), 2);
    });
}

#[test]
fn a_snapshot_is_saved_over_the_supervisor() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let client = lab.client("k3s");
        let body = json!({"operation": "save", "name": ["pre"]}).to_string();
        let (status, answer) = client
            .send("POST", &format!("{FIRST}/db/snapshot"), &[], &body)
            .await
            .unwrap();
        assert!(status == 200 && answer.contains("\"pre-cp-1-"), "{answer}");
        let list = client
            .json(&format!("{FIRST}/apis/k3s.cattle.io/v1/etcdsnapshotfiles"))
            .await
            .unwrap();
        assert_eq!(list["items"][0]["status"]["readyToUse"], true);
        assert!(
            client.status(&format!("{FIRST}/db/snapshot")).await.is_none(),
            "GET breaks the stream"
        );
    });
}

fn kube_vip() -> String {
    let env: Vec<_> = [
        ("vip_arp", "true"),
        ("cp_enable", "true"),
        ("address", "10.10.0.100"),
        ("port", "6443"),
    ]
    .iter()
    .map(|(name, value)| json!({"name": name, "value": value}))
    .collect();
    let terms = json!([{"matchExpressions": [
        {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists"}, {"key": "lab/vip", "operator": "NotIn", "values": ["off"]}
    ]}]);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "kube-vip-ds", "namespace": "kube-system"},
        "spec": {"selector": {"matchLabels": {"app": "kube-vip"}}, "template": {"metadata": {"labels": {"app": "kube-vip"}}, "spec": {
            "hostNetwork": true, "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}},
            "containers": [{"name": "kube-vip", "image": "ghcr.io/kube-vip/kube-vip:v1.2.3", "args": ["manager"], "env": env}],
        }}},
    })
    .to_string()
}

#[test]
fn the_virtual_address_follows_its_lease_at_once_when_freed_and_late_when_the_power_goes() {
    in_world(|lab| async move {
        let (_first, _) = first_server(&lab, "k3s").await;
        let (second, _) = join_server(&lab, "k3s", "cp-2", "10.10.0.12").await;
        let (_third, _) = join_server(&lab, "k3s", "cp-3", "10.10.0.13").await;
        let client = lab.client("k3s");
        let headers = [("content-type", "application/json")];
        let made = client
            .send(
                "POST",
                &format!("{FIRST}/apis/apps/v1/namespaces/kube-system/daemonsets"),
                &headers,
                &kube_vip(),
            )
            .await;
        assert_eq!(made.unwrap().0, 201);
        let answers = || async { client.status("https://10.10.0.100:6443/readyz").await == Some(200) };
        let holder = || async {
            let lease = client
                .json("https://10.10.0.13:6443/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/plndr-cp-lock")
                .await;
            lease
                .and_then(|lease| lease["spec"]["holderIdentity"].as_str().map(str::to_owned))
                .unwrap_or_default()
        };
        until(answers).await;
        let first = holder().await;
        assert_eq!(first, "cp-1");
        // The DaemonSet leaves the node: its pod ends cleanly and frees the lease.
        let patch = json!({"metadata": {"labels": {"lab/vip": "off"}}}).to_string();
        client
            .send(
                "PATCH",
                &format!("{FIRST}/api/v1/nodes/cp-1"),
                &[("content-type", "application/merge-patch+json")],
                &patch,
            )
            .await;
        let began = tokio::time::Instant::now();
        until(|| async { holder().await == "cp-2" && answers().await }).await;
        assert!(began.elapsed() <= Duration::from_secs(8), "{:?}", began.elapsed());
        second.off();
        let began = tokio::time::Instant::now();
        until(|| async { holder().await == "cp-3" && answers().await }).await;
        let outage = began.elapsed();
        assert!(
            outage >= Duration::from_secs(13) && outage <= Duration::from_secs(30),
            "{outage:?}"
        );
    });
}
