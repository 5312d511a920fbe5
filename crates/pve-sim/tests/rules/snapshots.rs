//! Snapshots and HA resources.

use super::{Client, data};

#[tokio::test(start_paused = true)]
async fn snapshots_are_refused_by_name_by_template_and_by_what_is_missing() {
    let root = Client::root();
    let path = "/nodes/pve1/qemu/101/snapshot";
    root.expect(&[
        (
            "POST",
            path,
            "snapname=s1",
            "500 Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist",
        ),
        (
            "POST",
            "/nodes/pve1/qemu",
            "vmid=101&scsi0=vmstore:1%2Cformat%3Dqcow2",
            "task: OK",
        ),
        (
            "POST",
            path,
            "snapname=current",
            "500 unable to use snapshot name 'current' (reserved name)",
        ),
        (
            "POST",
            path,
            "snapname=PENDING",
            "500 unable to use snapshot name 'pending' (reserved name)",
        ),
        ("POST", path, "snapname=s1", "task: OK"),
        ("POST", path, "snapname=s1", "task: snapshot name 's1' already used"),
        (
            "GET",
            "/nodes/pve1/qemu/101/snapshot/no/config",
            "",
            "500 snapshot 'no' does not exist",
        ),
        ("PUT", "/nodes/pve1/qemu/101/snapshot/no/config", "", "200 OK"),
        (
            "PUT",
            "/nodes/pve1/qemu/101/snapshot/no/config",
            "description=x",
            "500 snapshot 'no' does not exist",
        ),
        ("DELETE", "/nodes/pve1/qemu/101/snapshot/s1", "", "task: OK"),
        ("POST", "/nodes/pve1/qemu/101/template", "", "task: OK"),
        (
            "POST",
            path,
            "snapname=s2",
            "task: you can't take a snapshot if it's a template",
        ),
        (
            "DELETE",
            "/nodes/pve1/qemu/101/snapshot/s1",
            "",
            "task: snapshot 's1' does not exist",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/snapshot/s1/rollback",
            "",
            "task: you can't rollback if vm is a template",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_keeps_neither_description_nor_unused_volumes_and_a_rollback_leaves_them() {
    let root = Client::root();
    let config = "/nodes/pve1/qemu/101/config";
    root.expect(&[
        (
            "POST",
            "/nodes/pve1/qemu",
            "vmid=101&description=one&scsi0=vmstore:1%2Cformat%3Dqcow2&scsi1=vmstore:1%2Cformat%3Dqcow2",
            "task: OK",
        ),
        ("PUT", config, "delete=scsi1", "200 OK"),
        ("POST", "/nodes/pve1/qemu/101/snapshot", "snapname=s1", "task: OK"),
        ("PUT", config, "description=two&name=later", "200 OK"),
    ])
    .await;
    let kept = data(&root, "GET", "/nodes/pve1/qemu/101/snapshot/s1/config", "").await;
    for key in ["digest", "description", "unused0"] {
        assert!(kept.get(key).is_none(), "{key}: {kept}");
    }
    root.expect(&[("POST", "/nodes/pve1/qemu/101/snapshot/s1/rollback", "", "task: OK")])
        .await;
    let now = data(&root, "GET", config, "").await;
    assert_eq!(now["description"], "two");
    assert!(now["unused0"].is_string() && now.get("name").is_none(), "{now}");
}

#[tokio::test(start_paused = true)]
async fn ha_resources_have_one_digest_and_options_that_can_be_deleted() {
    let root = Client::root();
    let path = "/cluster/ha/resources/vm:101";
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101", "task: OK"),
        ("POST", "/nodes/pve1/qemu", "vmid=102", "task: OK"),
        (
            "POST",
            "/cluster/ha/resources",
            "sid=999",
            "500 unable to detect SID from VMID - VM/CT 999 does not exist",
        ),
        (
            "POST",
            "/cluster/ha/resources",
            "sid=vm:101&type=ct",
            "500 types does not match",
        ),
        ("POST", "/cluster/ha/resources", "sid=101&comment=x", "200 OK"),
        (
            "PUT",
            "/cluster/ha/resources/vm:102",
            "comment=x",
            "500 update resources config failed: no such resource 'vm:102'",
        ),
        (
            "PUT",
            path,
            "delete=nope",
            "500 update resources config failed: no such option 'nope'",
        ),
        (
            "PUT",
            path,
            "comment=y&digest=00",
            "500 update resources config failed: detected modified configuration - file changed by other user? Try again.",
        ),
        ("PUT", path, "delete=comment", "200 OK"),
    ])
    .await;
    let before = data(&root, "GET", path, "").await;
    assert!(before.get("comment").is_none(), "{before}");
    root.expect(&[("POST", "/cluster/ha/resources", "sid=vm:102", "200 OK")])
        .await;
    assert_ne!(data(&root, "GET", path, "").await["digest"], before["digest"]);
}
