//! Raw requests in, channel and text out: what PVE refuses, and where.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::client::{Client, datacenter};
use pve_sim::World;

#[tokio::test(start_paused = true)]
async fn hosts_that_do_not_exist_or_cannot_be_reached() {
    let client = Client::root();
    let unknown =
        "500 hostname lookup 'nope' failed - failed to get address info for: nope: Temporary failure in name resolution";
    client
        .expect(&[
            ("GET", "/nodes/nope/status", "", unknown),
            ("POST", "/nodes/nope/qemu", "vmid=101", unknown),
        ])
        .await;
    client.dc.lab().set_online("pve2", false);
    client
        .expect(&[("GET", "/nodes/pve2/status", "", "595 No route to host")])
        .await;
}

#[tokio::test(start_paused = true)]
async fn without_quorum_each_call_fails_in_its_own_way_and_a_delete_takes_the_disks() {
    let client = Client::root();
    client
        .expect(&[("POST", "/nodes/pve1/qemu", "vmid=211&scsi0=vmstore:1", "task: OK")])
        .await;
    client.dc.lab().cut_links();
    client
        .expect(&[
            ("POST", "/nodes/pve1/qemu", "vmid=411", "500 cluster not ready - no quorum?"),
            (
                "POST",
                "/nodes/pve1/qemu/211/clone",
                "newid=411",
                "500 cluster not ready - no quorum?",
            ),
            (
                "POST",
                "/nodes/pve1/qemu/211/status/start",
                "",
                "500 cluster not ready - no quorum?",
            ),
            (
                "POST",
                "/cluster/ha/resources",
                "sid=vm:211",
                "500 cluster not ready - no quorum?",
            ),
            (
                "POST",
                "/pools",
                "poolid=nq",
                "500 create pool failed: cfs-lock 'file-user_cfg' error: no quorum!",
            ),
            (
                "PUT",
                "/storage/local",
                "content=iso",
                "500 update storage failed: cfs-lock 'file-storage_cfg' error: no quorum!",
            ),
            (
                "POST",
                "/access/users/ops@pve/token/nq",
                "",
                "500 generating token failed: cfs-lock 'file-user_cfg' error: no quorum!",
            ),
            ("POST", "/nodes/pve1/qemu/211/status/stop", "", "task: OK"),
        ])
        .await;
    let put = client.outcome("PUT", "/nodes/pve1/qemu/211/config", "cores=2").await;
    assert!(
        put.starts_with("500 unable to open file '/etc/pve/nodes/pve1/qemu-server/211.conf.tmp."),
        "{put}"
    );
    let deleted = client.outcome("DELETE", "/nodes/pve1/qemu/211", "").await;
    assert!(
        deleted.starts_with("task: unable to open file") && deleted.ends_with("Permission denied"),
        "{deleted}"
    );
    let left = client.dc.inspect();
    assert!(left.vms.contains_key(&211) && !left.volumes.iter().any(|v| v.vmid == Some(211)));
}

#[tokio::test(start_paused = true)]
async fn what_create_accepts_only_a_change_or_a_start_refuses() {
    let client = Client::root();
    client
        .expect(&[
            (
                "POST",
                "/nodes/pve1/qemu",
                "vmid=101&boot=order%3Dscsi5&memory=512&balloon=1024&net0=virtio%2Cbridge%3Dvmbr9",
                "task: OK",
            ),
            (
                "PUT",
                "/nodes/pve1/qemu/101/config",
                "boot=order%3Dscsi9",
                "500 invalid bootorder: device 'scsi9' does not exist'",
            ),
            (
                "PUT",
                "/nodes/pve1/qemu/101/config",
                "memory=512&balloon=1024",
                "500 balloon value too large (must be smaller than assigned memory)",
            ),
            (
                "POST",
                "/nodes/pve1/qemu/101/status/start",
                "",
                "task: bridge 'vmbr9' does not exist",
            ),
            (
                "PUT",
                "/nodes/pve1/qemu/101/config",
                "args=-S",
                "500 only root can set 'args' config",
            ),
            (
                "PUT",
                "/nodes/pve1/qemu/101/config",
                "delete=args",
                "500 only root can set 'args' config",
            ),
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn missing_sources_and_full_storages_are_task_errors() {
    let client = Client::root();
    let full = "task: unable to create VM 310 - cannot import from 'local:import/guest.qcow2' - copy failed: command '/usr/bin/qemu-img \
                convert -p -n -f qcow2 -O qcow2 /var/lib/vz/import/guest.qcow2 zeroinit:/var/lib/tiny/images/310/vm-310-disk-0.qcow2' \
                failed: exit code 1";
    client.dc.lab().take_space("tiny", 40 << 20);
    client
        .expect(&[
            (
                "POST",
                "/nodes/pve1/qemu",
                "vmid=101&scsi0=vmstore:0%2Cimport-from%3Dlocal:import/zzz.qcow2",
                "task: unable to create VM 101 - failed to stat '/var/lib/vz/import/zzz.qcow2'",
            ),
            (
                "POST",
                "/nodes/pve1/qemu",
                "vmid=101&ide2=local:iso/none.iso%2Cmedia%3Dcdrom",
                "task: unable to create VM 101 - volume 'local:iso/none.iso' does not exist",
            ),
            (
                "POST",
                "/nodes/pve1/qemu",
                "vmid=310&scsi0=tiny:0%2Cimport-from%3Dlocal:import/guest.qcow2",
                full,
            ),
            ("POST", "/nodes/pve1/qemu", "vmid=310", "task: OK"),
        ])
        .await;
    assert!(!client.dc.inspect().volumes.iter().any(|v| v.vmid == Some(310)));
}

#[tokio::test(start_paused = true)]
async fn locked_machines_refuse_in_the_request_or_in_the_task() {
    let client = Client::root();
    client
        .expect(&[("POST", "/nodes/pve1/qemu", "vmid=101&scsi0=vmstore:1", "task: OK")])
        .await;
    client.dc.lab().set_lock(101, Some("backup"));
    let task = "task: VM is locked (backup)";
    client
        .expect(&[
            (
                "POST",
                "/nodes/pve1/qemu/101/clone",
                "newid=150&full=1",
                "500 VM is locked (backup)",
            ),
            ("POST", "/nodes/pve1/qemu/101/config", "cores=3", "500 VM is locked (backup)"),
            ("PUT", "/nodes/pve1/qemu/101/config", "cores=3", "500 VM is locked (backup)"),
            ("POST", "/nodes/pve1/qemu/101/template", "", "500 VM is locked (backup)"),
            (
                "POST",
                "/nodes/pve1/qemu/101/migrate",
                "target=pve2",
                "500 VM is locked (backup)",
            ),
            ("POST", "/nodes/pve1/qemu/101/status/start", "", task),
            ("PUT", "/nodes/pve1/qemu/101/resize", "disk=scsi0&size=%2B1G", task),
            ("POST", "/nodes/pve1/qemu/101/snapshot", "snapname=s1", task),
            ("DELETE", "/nodes/pve1/qemu/101", "", task),
            ("POST", "/nodes/pve1/qemu/101/status/stop", "", "task: OK"),
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_busy_cluster_lock_is_tried_for_ten_seconds() {
    let client = Client::root();
    client
        .expect(&[(
            "POST",
            "/nodes/pve1/qemu",
            "vmid=450&scsi0=shr:1&ide2=shr:cloudinit",
            "task: OK",
        )])
        .await;
    client
        .dc
        .lab()
        .hold_storage_lock("pve1", "shr", Duration::from_secs(60))
        .await;
    client
        .expect(&[(
            "POST",
            "/nodes/pve1/qemu/450/clone",
            "newid=460",
            "task: clone failed: cfs-lock 'storage-shr' error: got lock request timeout",
        )])
        .await;
    let tasks = client.dc.inspect().tasks;
    let tried = tasks[0]
        .log
        .iter()
        .filter(|l| *l == "trying to acquire cfs lock 'storage-shr' ...")
        .count();
    assert_eq!(tried, 9);
    assert!(!client.dc.inspect().vms.contains_key(&460));
}

#[tokio::test(start_paused = true)]
async fn unknown_tasks() {
    let client = Client::root();
    let unknown = "/nodes/pve1/tasks/UPID:pve1:00000001:00000001:6AFA0000:qmstart:1:root@pam:";
    let verify = "400 Parameter verification failed.";
    client
        .expect(&[
            (
                "GET",
                "/nodes/pve1/tasks/garbage/status",
                "",
                &format!("{verify} upid: unable to parse worker upid"),
            ),
            (
                "GET",
                &format!("{unknown}/status"),
                "",
                &format!("{verify} upid: no such task"),
            ),
            ("DELETE", unknown, "", &format!("{verify} upid: no such task")),
        ])
        .await;
    let (status, _, body) = client.send("GET", &format!("{unknown}/log"), "").await;
    assert_eq!(
        (status, body["data"][0]["t"].as_str()),
        (200, Some("unable to open file - No such file or directory"))
    );
}

#[tokio::test(start_paused = true)]
async fn version_8_knows_other_privileges_and_says_less() {
    let mut world = World::default();
    world.pve.version = "8.3.5".into();
    world.pve.release = "8.3".into();
    let client = Client {
        dc: datacenter(world),
        token: "root@pam!mainstay=00000000-0000-4000-8000-000000000001",
    };
    client
        .expect(&[
            ("POST", "/access/roles", "roleid=Old&privs=VM.Monitor", "200 OK"),
            (
                "POST",
                "/access/roles",
                "roleid=New&privs=VM.GuestAgent.Audit",
                "400 Parameter verification failed. privs: invalid format - invalid privilege 'VM.GuestAgent.Audit'\n",
            ),
        ])
        .await;
    let (status, reason, body) = client.send("GET", "/nodes/pve1/qemu/100/config", "").await;
    assert_eq!(
        (status, reason.as_str()),
        (500, "Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist")
    );
    assert_eq!(
        body.as_object().map(serde_json::Map::len),
        Some(1),
        "before 8.4 there is no message in the body"
    );
    let download = "content=import&filename=x.qcow2&url=http://127.0.0.1:9000/x";
    let expected = "400 Parameter verification failed. filename: invalid filename or wrong extension";
    client
        .expect(&[("POST", "/nodes/pve1/storage/local/download-url", download, expected)])
        .await;
}

#[tokio::test(start_paused = true)]
async fn the_tag_policy_of_the_datacenter_is_kept() {
    let client = Client {
        token: "ops@pve!ms=a0000000-0000-4000-8000-000000000003",
        ..Client::root()
    };
    let root = Client {
        dc: client.dc.clone(),
        token: "root@pam!full=a0000000-0000-4000-8000-000000000001",
    };
    client
        .expect(&[("POST", "/nodes/pve1/qemu", "vmid=101&tags=a", "task: OK")])
        .await;
    root.expect(&[("PUT", "/cluster/options", "user-tag-access=user-allow%3Dnone", "200 OK")])
        .await;
    let refused = "Permission check failed (/, Sys.Modify for modifying tag 'b')";
    client
        .expect(&[
            ("PUT", "/nodes/pve1/qemu/101/config", "tags=a%3Bb", &format!("403 {refused}")),
            (
                "POST",
                "/nodes/pve1/qemu",
                "vmid=102&tags=b",
                &format!("task: unable to create VM 102 - 403 {refused}"),
            ),
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn calls_that_are_not_simulated_say_so() {
    let client = Client::root();
    let (status, reason, _) = client.send("GET", "/nodes/pve1/disks/list", "").await;
    assert_eq!(
        (status, reason.as_str()),
        (501, "'GET /nodes/{node}/disks/list' is not simulated")
    );
}

#[tokio::test(start_paused = true)]
async fn a_stop_followed_by_a_quick_start_makes_the_next_stop_wait_in_vain() {
    let client = Client::root();
    client
        .expect(&[
            ("POST", "/nodes/pve1/qemu", "vmid=101&memory=64", "task: OK"),
            ("POST", "/nodes/pve1/qemu/101/status/start", "", "task: OK"),
            ("POST", "/nodes/pve1/qemu/101/status/stop", "", "task: OK"),
            ("POST", "/nodes/pve1/qemu/101/status/start", "", "task: OK"),
        ])
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let busy = "task: can't lock file '/var/lock/qemu-server/lock-101.conf' - got timeout";
    client.expect(&[("POST", "/nodes/pve1/qemu/101/status/stop", "", busy)]).await;
}

#[tokio::test(start_paused = true)]
async fn the_same_fill_twice_leaves_pending_volumes_and_fails_at_the_cloud_init_drive() {
    let client = Client::root();
    let fill =
        "scsi0=vmstore:0%2Cimport-from%3Dlocal:import/small.qcow2&efidisk0=vmstore:1%2Cefitype%3D4m&ide2=vmstore:cloudinit";
    let again = "task: disk image '/var/lib/vmstore/images/2001/vm-2001-cloudinit.qcow2' already exists";
    client
        .expect(&[
            ("POST", "/nodes/pve1/qemu", "vmid=2001&name=m", "task: OK"),
            ("POST", "/nodes/pve1/qemu/2001/config", fill, "task: OK"),
            ("POST", "/nodes/pve1/qemu/2001/config", fill, again),
        ])
        .await;
    let seen = client.dc.inspect();
    let pending: BTreeMap<_, _> = seen.vms[&2001].pending.clone();
    assert!(pending.contains_key("efidisk0"), "{pending:?}");
    client.expect(&[("DELETE", "/nodes/pve1/qemu/2001", "", "task: OK")]).await;
    assert!(!client.dc.inspect().volumes.iter().any(|v| v.vmid == Some(2001)));
}
