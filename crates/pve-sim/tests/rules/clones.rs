//! Clones and templates: what can be read while they are made, and what is refused.

use std::time::Duration;

use serde_json::Value;

use super::{Client, data};

const CONFIG: &str = "/nodes/pve1/qemu/102/config";

async fn template() -> Client {
    let root = Client::root();
    let disks = "scsi0=vmstore:1%2Cformat%3Dqcow2&scsi1=vmstore:1%2Cformat%3Dqcow2&net0=virtio%2Cbridge%3Dvmbr0";
    root.expect(&[
        (
            "POST",
            "/nodes/pve1/qemu",
            &format!("vmid=101&name=base&description=about&{disks}"),
            "task: OK",
        ),
        ("POST", "/nodes/pve1/qemu/101/template", "", "task: OK"),
    ])
    .await;
    root
}

/// All states of the new config while a clone is made.
async fn watch(root: &Client, form: &str) -> Vec<Value> {
    let (_, _, body) = root.send("POST", "/nodes/pve1/qemu/101/clone", form).await;
    let upid = body["data"].as_str().expect("a task").to_string();
    let mut seen: Vec<Value> = Vec::new();
    for _ in 0..60_000 {
        let config = data(root, "GET", CONFIG, "").await;
        if !config.is_null() && seen.last() != Some(&config) {
            seen.push(config);
        }
        if root.dc.inspect().tasks.iter().any(|t| t.upid == upid && t.exit.is_some()) {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    seen.push(data(root, "GET", CONFIG, "").await);
    seen
}

#[tokio::test(start_paused = true)]
async fn a_clone_shows_a_lock_then_everything_but_its_drives_and_is_unlocked_last() {
    let root = template().await;
    let seen = watch(&root, "newid=102&name=copy&full=1&pool=team&description=mine").await;
    let first = &seen[0];
    assert_eq!(first["lock"], "clone");
    assert!(first.get("name").is_none() && first.get("scsi0").is_none(), "{first}");
    let one = seen.iter().find(|c| c.get("scsi0").is_some()).expect("after the first drive");
    assert_eq!(
        (&one["lock"], &one["name"], &one["description"]),
        (&"clone".into(), &"copy".into(), &"mine".into())
    );
    assert!(one.get("scsi1").is_none(), "{one}");
    let last = seen.last().expect("the end");
    assert!(last.get("lock").is_none() && last.get("scsi1").is_some() && last.get("template").is_none());
    let pool = data(&root, "GET", "/pools?poolid=team", "").await;
    assert_eq!(pool[0]["members"][0]["vmid"], 102);
}

#[tokio::test(start_paused = true)]
async fn a_clone_has_its_own_address_and_identity() {
    let root = template().await;
    root.expect(&[("POST", "/nodes/pve1/qemu/101/clone", "newid=102", "task: OK")])
        .await;
    let (old, new) = (
        data(&root, "GET", "/nodes/pve1/qemu/101/config", "").await,
        data(&root, "GET", CONFIG, "").await,
    );
    for key in ["net0", "smbios1", "vmgenid"] {
        assert!(old[key].is_string() && new[key].is_string() && old[key] != new[key], "{key}");
    }
    assert_eq!(
        (&new["name"], &new["description"], &new["meta"]),
        (&"Copy-of-VM-base".into(), &"about".into(), &old["meta"])
    );
    assert_eq!(
        new["scsi0"],
        "vmstore:101/base-101-disk-0.qcow2/102/vm-102-disk-0.qcow2,size=1G"
    );
}

#[tokio::test(start_paused = true)]
async fn a_base_cannot_go_while_a_clone_stands_on_it() {
    let root = template().await;
    root.expect(&[
        ("POST", "/nodes/pve1/qemu/101/clone", "newid=102", "task: OK"),
        (
            "DELETE",
            "/nodes/pve1/storage/vmstore/content/vmstore:101/base-101-disk-0.qcow2",
            "",
            "task: base volume '101/base-101-disk-0.qcow2' is still in use by linked clones",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=103&storage=vmstore&full=0",
            "500 parameter 'storage' not allowed for linked clones",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=103&format=raw&full=0",
            "500 parameter 'format' not allowed for linked clones",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=102",
            "500 unable to create VM 102: config file already exists",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=103&snapname=no",
            "500 snapshot 'no' does not exist",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=103&pool=no",
            "403 Permission check failed (pool 'no' does not exist)",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=103&target=no",
            "500 no such cluster node 'no'",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=103&full=1&storage=local",
            "400 Parameter verification failed. storage: storage 'local' does not support vm images",
        ),
        (
            "POST",
            "/nodes/pve1/qemu/102/clone",
            "newid=103&full=0",
            "500 Linked clone feature is not supported for 'vmstore:101/base-101-disk-0.qcow2/102/vm-102-disk-0.qcow2' (scsi0)",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn what_a_snapshot_can_be_copied_from_depends_on_its_storage() {
    let root = Client::root();
    root.expect(&[
        (
            "POST",
            "/nodes/pve1/qemu",
            "vmid=101&name=now&scsi0=vmstore:1%2Cformat%3Dqcow2",
            "task: OK",
        ),
        ("POST", "/nodes/pve1/qemu/101/snapshot", "snapname=s1", "task: OK"),
        ("PUT", "/nodes/pve1/qemu/101/config", "name=later", "200 OK"),
        ("POST", "/nodes/pve1/qemu/101/clone", "newid=102&snapname=s1", "task: OK"),
        (
            "POST",
            "/nodes/pve1/qemu/101/clone",
            "newid=103&snapname=s1&full=0",
            "500 Linked clone feature is not supported for a snapshot of 'vmstore:101/vm-101-disk-0.qcow2' (scsi0)",
        ),
    ])
    .await;
    assert_eq!(data(&root, "GET", CONFIG, "").await["name"], "Copy-of-VM-now");
    let kept = data(&root, "GET", "/nodes/pve1/qemu/101/snapshot/s1/config", "").await;
    assert_eq!(kept["name"], "now");
    assert!(kept["snaptime"].is_number());
}

#[tokio::test(start_paused = true)]
async fn a_single_disk_of_a_template_can_be_converted_and_a_missing_one_fails() {
    let root = template().await;
    let config = "/nodes/pve1/qemu/101/config";
    root.expect(&[
        ("PUT", config, "scsi2=vmstore:1%2Cformat%3Dqcow2", "200 OK"),
        (
            "POST",
            "/nodes/pve1/qemu/101/template",
            "",
            "500 you can't convert a template to a template",
        ),
        ("POST", "/nodes/pve1/qemu/101/template", "disk=scsi0", "task: OK"),
        ("POST", "/nodes/pve1/qemu", "vmid=103&scsi0=vmstore:1", "task: OK"),
    ])
    .await;
    let made = data(&root, "GET", config, "").await["scsi2"].clone();
    assert_eq!(
        made, "vmstore:101/base-101-disk-2.qcow2,size=1G",
        "a new disk of a template is a base"
    );
    root.dc.lab().remove_volume("pve1", "vmstore:103/vm-103-disk-0.raw");
    root.expect(&[(
        "POST",
        "/nodes/pve1/qemu/103/template",
        "",
        "task: file_size_info on '103/vm-103-disk-0.raw' failed",
    )])
    .await;
}
