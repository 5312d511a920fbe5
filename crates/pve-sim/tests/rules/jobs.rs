//! Replication and backup jobs, what a purge does to them, SDN addresses, and copies that share a storage.

use std::time::Duration;

use pve_sim::World;
use serde_json::{Value, json};

use super::{Client, OPS, ZERO, as_token, data};
use crate::client::datacenter;

/// The laboratory with a pool of ZFS on both hosts and a vnet.
fn lab() -> Client {
    let mut world = crate::recorded::scenarios().world;
    world["storages"]["tank"] = json!({ "type": "zfspool", "pool": "tank", "content": "images", "capacity": 1_u64 << 40 });
    world["vnets"] = json!({
        "vn0": { "zone": "lan", "subnet": "10.5.0.0/24", "gateway": "10.5.0.1", "dhcp_range": "10.5.0.10-10.5.0.12" },
    });
    Client {
        dc: datacenter(World::parse(&world.to_string()).expect("a world")),
        token: "root@pam!full=a0000000-0000-4000-8000-000000000001",
    }
}

#[tokio::test(start_paused = true)]
async fn a_replication_job_copies_volumes_and_stays_until_they_are_removed() {
    let root = lab();
    let create = "/cluster/replication";
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101&scsi0=tank:1", "task: OK"),
        ("POST", "/nodes/pve1/qemu", "vmid=102&scsi0=vmstore:1", "task: OK"),
        ("POST", "/nodes/pve1/qemu", "vmid=103", "task: OK"),
        (
            "POST",
            create,
            "id=999-0&type=local&target=pve2",
            "500 Guest '999' does not exist.",
        ),
        (
            "POST",
            create,
            "id=101-0&type=local&target=pve9",
            "500 Target 'pve9' does not exist.",
        ),
        (
            "POST",
            create,
            "id=101-0&type=local&target=pve1",
            "500 Source and target must not be identical",
        ),
        (
            "POST",
            create,
            "id=101-0&type=local&target=pve2&source=pve2",
            "500 Source 'pve2' does not match current node of guest '101' (pve1)",
        ),
        (
            "POST",
            create,
            "id=102-0&type=local&target=pve2",
            "500 missing replicate feature on volume 'vmstore:102/vm-102-disk-0.raw'",
        ),
        (
            "POST",
            create,
            "id=103-0&type=local&target=pve2",
            "500 No replicatable volumes found",
        ),
        ("POST", create, "id=101-0&type=local&target=pve2&schedule=*/5", "200 OK"),
        (
            "POST",
            create,
            "id=101-0&type=local&target=pve2",
            "500 replication job '101-0' already exists",
        ),
        ("GET", "/cluster/replication/777-0", "", "500 no such replication job '777-0'"),
    ])
    .await;
    let listed = data(&root, "GET", create, "").await;
    assert_eq!(
        listed,
        json!([{ "guest": 101, "id": "101-0", "jobnum": 0, "schedule": "*/5", "source": "pve1", "target": "pve2", "type": "local" }])
    );
    assert_eq!(data(&as_token(&root, ZERO), "GET", create, "").await, json!([]));
    tokio::time::sleep(Duration::from_secs(70)).await;
    let on_target = |client: &Client| {
        let volumes = client.dc.inspect().volumes;
        volumes.iter().filter(|v| v.volid == "tank:vm-101-disk-0").count()
    };
    assert_eq!(on_target(&root), 2);
    root.expect(&[
        (
            "DELETE",
            "/nodes/pve1/qemu/101",
            "",
            "500 There is a replication job '101-0' for guest '101' - Please remove that first.",
        ),
        ("DELETE", "/cluster/replication/101-0", "", "200 OK"),
    ])
    .await;
    assert_eq!(
        data(&root, "GET", "/cluster/replication/101-0", "").await["remove_job"],
        "full"
    );
    tokio::time::sleep(Duration::from_secs(70)).await;
    assert_eq!(data(&root, "GET", create, "").await, json!([]));
    assert_eq!(on_target(&root), 1);
    root.expect(&[("DELETE", "/cluster/replication/101-0", "", "500 no such job '101-0'")])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_purge_takes_a_vm_out_of_backup_jobs_and_a_removal_without_it_does_not() {
    let root = lab();
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101", "task: OK"),
        ("POST", "/nodes/pve1/qemu", "vmid=102", "task: OK"),
        ("POST", "/cluster/backup", "id=both&vmid=101,102&schedule=daily", "200 OK"),
        (
            "POST",
            "/cluster/backup",
            "id=one&vmid=102&schedule=daily&storage=local",
            "200 OK",
        ),
        (
            "POST",
            "/cluster/backup",
            "id=one&vmid=102&schedule=daily",
            "500 Job 'one' already exists",
        ),
        (
            "POST",
            "/cluster/backup",
            "vmid=102",
            "400 Parameter verification failed. schedule: neither 'starttime' nor 'schedule' were set",
        ),
        (
            "GET",
            "/cluster/backup/no",
            "",
            "400 Parameter verification failed. id: No such job 'no'",
        ),
        ("DELETE", "/nodes/pve1/qemu/101", "", "task: OK"),
    ])
    .await;
    let vmids = |jobs: Value| -> Vec<String> {
        let jobs = jobs.as_array().cloned().unwrap_or_default();
        jobs.iter()
            .map(|job| format!("{} {}", job["id"], job["vmid"]).replace('"', ""))
            .collect()
    };
    assert_eq!(
        vmids(data(&root, "GET", "/cluster/backup", "").await),
        ["both 101,102", "one 102"]
    );
    root.expect(&[("DELETE", "/nodes/pve1/qemu/102?purge=1", "", "task: OK")])
        .await;
    assert_eq!(vmids(data(&root, "GET", "/cluster/backup", "").await), ["both 101"]);
    as_token(&root, ZERO)
        .expect(&[("GET", "/cluster/backup", "", "403 Permission check failed (/, Sys.Audit)")])
        .await;
    root.expect(&[
        ("DELETE", "/cluster/backup/both", "", "200 OK"),
        (
            "DELETE",
            "/cluster/backup/both",
            "",
            "400 Parameter verification failed. id: No such job 'both'",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_card_on_a_vnet_has_a_reserved_address_until_it_goes() {
    let root = lab();
    let net = "net0=virtio%3D02:00:00:00:00:01%2Cbridge%3Dvn0";
    root.expect(&[("POST", "/nodes/pve1/qemu", &format!("vmid=101&name=a&{net}"), "task: OK")])
        .await;
    let path = "/cluster/sdn/ipams/pve/status";
    let card = json!({
        "hostname": "a", "ip": "10.5.0.10", "mac": "02:00:00:00:00:01", "subnet": "10.5.0.0/24", "vmid": 101, "vnet": "vn0", "zone": "lan",
    });
    assert_eq!(data(&root, "GET", path, "").await[1], card);
    assert_eq!(data(&root, "GET", path, "").await[0]["gateway"], 1);
    assert_eq!(data(&as_token(&root, OPS), "GET", path, "").await, json!([]));
    // The right to a vnet is held in its own zone.
    as_token(&root, OPS)
        .expect(&[(
            "POST",
            "/nodes/pve1/qemu",
            "vmid=102&net0=virtio%2Cbridge%3Dvn0",
            "403 Permission check failed (/sdn/zones/lan/vn0, SDN.Use)",
        )])
        .await;
    root.expect(&[
        ("POST", "/nodes/pve1/qemu/101/status/start", "", "task: OK"),
        ("POST", "/nodes/pve1/qemu/101/status/stop", "", "task: OK"),
        ("DELETE", "/nodes/pve1/qemu/101", "", "task: OK"),
    ])
    .await;
    assert_eq!(data(&root, "GET", path, "").await.as_array().map(Vec::len), Some(1));
    let bridges = data(&root, "GET", "/nodes/pve1/network?type=any_bridge", "").await;
    assert!(
        bridges
            .as_array()
            .expect("a list")
            .iter()
            .any(|b| b["iface"] == "vn0" && b["type"] == "vnet")
    );
}

/// Seconds until so many full clones, begun at once, have ended.
async fn clones(count: u32) -> f64 {
    let root = lab();
    root.expect(&[(
        "POST",
        "/nodes/pve1/qemu",
        "vmid=100&scsi0=vmstore:20%2Cformat%3Dqcow2",
        "task: OK",
    )])
    .await;
    root.expect(&[("POST", "/nodes/pve1/qemu/100/template", "", "task: OK")])
        .await;
    let began = tokio::time::Instant::now();
    for n in 0..count {
        let form = format!("newid={}&full=1", 200 + n);
        let (status, ..) = root.send("POST", "/nodes/pve1/qemu/100/clone", &form).await;
        assert_eq!(status, 200);
    }
    let running = || root.dc.inspect().tasks.iter().any(|t| t.exit.is_none());
    while running() {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert!(root.dc.inspect().tasks.iter().all(|t| t.exit.as_deref() == Some("OK")));
    began.elapsed().as_secs_f64()
}

#[tokio::test(start_paused = true)]
async fn copies_to_one_storage_share_it_once_there_are_more_than_it_carries() {
    let one = clones(1).await;
    let four = clones(4).await;
    let eight = clones(8).await;
    assert!(one > 50.0, "20 GiB at 400 MiB/s: {one}");
    assert!(four < one + 5.0, "four fit: {one} {four}");
    assert!(
        eight > one * 1.9 && eight < one * 2.2,
        "eight share what four fill: {one} {eight}"
    );
}
