//! VMs: rights on devices, changes while they run, power, migration.

use super::{Client, OPS, ZERO, as_token, data};

const VM: &str = "/nodes/pve1/qemu";
const CONFIG: &str = "/nodes/pve1/qemu/101/config";

/// What `GET pending` still has to apply.
async fn waiting(client: &Client) -> Vec<String> {
    let list = data(client, "GET", "/nodes/pve1/qemu/101/pending", "").await;
    let open = list.as_array().into_iter().flatten();
    open.filter(|item| item.get("pending").is_some() || item.get("delete").is_some())
        .map(|item| item["key"].as_str().unwrap_or_default().to_string())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn devices_of_the_host_and_mapped_ones_ask_for_their_rights_in_order() {
    let root = Client::root();
    as_token(&root, OPS)
        .expect(&[
            (
                "POST",
                VM,
                "vmid=101&usb0=host%3D1234:5678",
                "500 only root can set 'usb0' config for real devices",
            ),
            (
                "POST",
                VM,
                "vmid=101&usb0=mapping%3Ddongle",
                "403 Permission check failed (/mapping/usb/dongle, Mapping.Use)",
            ),
            (
                "POST",
                VM,
                "vmid=101&hostpci0=pcie%3D1",
                "500 either 'host' or 'mapping' must be set.",
            ),
            (
                "POST",
                VM,
                "vmid=101&hostpci0=mapping%3Dgpu",
                "403 Permission check failed (/mapping/pci/gpu, Mapping.Use)",
            ),
            (
                "POST",
                VM,
                "vmid=101&virtiofs0=dirid%3Dshare",
                "403 Permission check failed (/mapping/dir/share, Mapping.Use)",
            ),
        ])
        .await;
    root.expect(&[(
        "POST",
        VM,
        "vmid=101&hostpci0=mapping%3Dgpu%2Cromfile%3Dx.bin",
        "400 Parameter verification failed. hostpci0: only root@pam can set 'romfile' option",
    )])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_processor_needs_a_known_model_and_flags_that_a_vm_may_set() {
    let refused = |why: &str| format!("400 Parameter verification failed. cpu: invalid format - {why}\n");
    let flags = "aes, amd-no-ssb, amd-ssbd, hv-evmcs, hv-tlbflush, ibpb, md-clear, nested-virt, pcid, pdpe1gb, spec-ctrl, ssbd, virt-ssbd";
    let root = Client::root();
    for (cpu, expected) in [
        ("flags%3D%2Baes", refused("CPU is missing cputype")),
        ("custom-mine", refused("Custom cputype 'mine' not found")),
        (
            "host%2Cflags%3D%2Bavx",
            refused(&format!("VM-specific CPU flags must be a subset of: {flags}")),
        ),
        (
            "host%2Creported-model%3Dkvm64",
            refused("Property 'reported-model' not allowed in VM-specific CPU config."),
        ),
        (
            "host%2Cflags%3D%2Baes;-pcid%2Clevel%3D30".replace(';', "%3B").as_str(),
            "task: OK".into(),
        ),
    ] {
        assert_eq!(
            root.outcome("POST", VM, &format!("vmid=101&cpu={cpu}")).await,
            expected,
            "{cpu}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_is_refused_in_the_request_where_the_config_alone_tells() {
    let root = Client::root();
    root.expect(&[
        ("POST", VM, "vmid=101&memory=512", "task: OK"),
        (
            "POST",
            CONFIG,
            "balloon=1024",
            "500 balloon value too large (must be smaller than assigned memory)",
        ),
        (
            "POST",
            VM,
            "vmid=102&archive=local:backup/vzdump-qemu-1-2026_01_01-00_00_00.vma.zst&scsi0=vmstore:1",
            "400 Parameter verification failed. scsi0: option conflicts with option 'archive'",
        ),
        (
            "POST",
            VM,
            "vmid=102&archive=local:iso/boot.iso",
            "500 unable to use volume local:iso/boot.iso - content type needs to be 'backup'",
        ),
        ("POST", VM, "vmid=102&archive=-", "500 pipe requires cli environment"),
        (
            "POST",
            "/nodes/pve1/qemu/999/clone",
            "newid=102&pool=nope&storage=off",
            "500 unable to find configuration file for VM 999 on node 'pve1'",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_managed_vm_is_added_in_the_state_it_was_made_in() {
    let root = Client::root();
    root.expect(&[
        ("POST", VM, "vmid=101&ha-managed=1", "task: OK"),
        (
            "POST",
            "/nodes/pve1/qemu/101/status/stop",
            "overrule-shutdown=1",
            "400 Parameter verification failed. overrule-shutdown: Not applicable for HA resources.",
        ),
    ])
    .await;
    let resource = data(&root, "GET", "/cluster/ha/resources/vm:101", "").await;
    assert_eq!(resource["state"], "stopped");
    let conditions = data(&root, "GET", "/nodes/pve1/qemu/101/migrate", "").await;
    assert_eq!(conditions["dependent-ha-resources"], serde_json::json!([]));
}

#[tokio::test(start_paused = true)]
async fn options_of_a_drive_wait_for_a_stop_and_media_do_not_change() {
    let root = Client::root();
    let disk = "vmstore:101/vm-101-disk-0.raw";
    root.expect(&[
        (
            "POST",
            VM,
            "vmid=101&memory=64&scsi0=vmstore:1&scsi1=vmstore:1&ide0=vmstore:1&ide2=none%2Cmedia%3Dcdrom&boot=order%3Dscsi1",
            "task: OK",
        ),
        ("POST", "/nodes/pve1/qemu/101/status/start", "", "task: OK"),
        ("PUT", CONFIG, "scsi0=vmstore:101/vm-101-disk-1.raw%2Ciops_rd%3D100", "200 OK"),
    ])
    .await;
    assert!(waiting(&root).await.is_empty(), "throttles are set at once");
    root.expect(&[(
        "PUT",
        CONFIG,
        "scsi0=vmstore:101/vm-101-disk-1.raw%2Cdiscard%3Don%2Cssd%3D1",
        "200 OK",
    )])
    .await;
    assert_eq!(waiting(&root).await, ["scsi0"]);
    let problem = |key: &str, why: &str| format!("400 Parameter verification failed. {key}: hotplug problem - {why}\n");
    for (form, expected) in [
        ("ide2=vmstore:1", problem("ide2", "unable to change media type")),
        ("ide0=vmstore:1", problem("ide0", "can't unplug device 'ide0'")),
        ("delete=scsi1", problem("scsi1", "can't unplug bootdisk 'scsi1'")),
    ] {
        assert_eq!(root.outcome("PUT", CONFIG, form).await, expected, "{form} {disk}");
    }
}

#[tokio::test(start_paused = true)]
async fn some_options_change_while_a_vm_runs_and_their_neighbours_do_not() {
    let root = Client::root();
    root.expect(&[
        (
            "POST",
            VM,
            "vmid=101&memory=64&balloon=0&agent=1&net0=virtio%2Cbridge%3Dvmbr0",
            "task: OK",
        ),
        ("POST", "/nodes/pve1/qemu/101/status/start", "", "task: OK"),
        ("PUT", CONFIG, "agent=1%2Cfstrim_cloned_disks%3D1", "200 OK"),
        ("PUT", CONFIG, "tablet=0&cpulimit=1", "200 OK"),
    ])
    .await;
    assert!(waiting(&root).await.is_empty());
    root.expect(&[
        ("PUT", CONFIG, "delete=balloon", "200 OK"),
        ("PUT", CONFIG, "agent=1%2Ctype%3Disa", "200 OK"),
        ("PUT", CONFIG, "hotplug=network%2Ccpu", "200 OK"),
    ])
    .await;
    assert_eq!(waiting(&root).await, ["agent", "balloon", "hotplug"]);
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_is_switched_off_is_still_configured() {
    let root = Client::root();
    root.expect(&[
        ("POST", VM, "vmid=101&agent=0", "task: OK"),
        ("POST", "/nodes/pve1/qemu/101/agent/ping", "", "500 VM 101 is not running"),
        ("PUT", CONFIG, "delete=agent", "200 OK"),
        (
            "POST",
            "/nodes/pve1/qemu/101/agent/ping",
            "",
            "500 No QEMU guest agent configured",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn locks_of_backups_and_suspensions_let_some_calls_pass() {
    let root = Client::root();
    let status = |action: &str| format!("/nodes/pve1/qemu/101/status/{action}");
    root.expect(&[
        ("POST", VM, "vmid=101&memory=64", "task: OK"),
        ("POST", &status("suspend"), "todisk=1", "500 VM 101 not running"),
        ("POST", &status("start"), "", "task: OK"),
        ("POST", &status("suspend"), "", "task: OK"),
        ("POST", &status("reboot"), "", "500 VM is paused - cannot shutdown"),
    ])
    .await;
    root.dc.lab().set_lock(101, Some("backup"));
    root.expect(&[
        ("POST", &status("start"), "", "task: OK"),
        ("POST", &status("suspend"), "", "task: OK"),
        ("POST", &status("stop"), "", "task: VM is locked (backup)"),
    ])
    .await;
    root.dc.lab().set_lock(101, None);
    root.expect(&[("POST", &status("stop"), "", "task: OK")]).await;
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    root.dc.lab().set_lock(101, Some("suspended"));
    root.expect(&[("POST", &status("resume"), "", "task: OK")]).await;
    let current = data(&root, "GET", &status("current"), "").await;
    assert_eq!((current.get("lock"), &current["status"]), (None, &"running".into()));
    as_token(&root, OPS)
        .expect(&[(
            "POST",
            &status("start"),
            "stateuri=tcp&skiplock=1",
            "400 Parameter verification failed. stateuri: Only root may use this option.",
        )])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_rollback_keeps_later_disks_as_unused_and_features_name_hosts_and_disks() {
    let root = Client::root();
    let snapshot = "/nodes/pve1/qemu/101/snapshot";
    root.expect(&[
        ("POST", VM, "vmid=101&scsi0=vmstore:1%2Cformat%3Dqcow2", "task: OK"),
        ("POST", snapshot, "snapname=s1", "task: OK"),
        ("PUT", CONFIG, "scsi1=shr:1", "200 OK"),
        ("POST", &format!("{snapshot}/s1/rollback"), "", "task: OK"),
        (
            "GET",
            "/nodes/pve1/qemu/999/feature?feature=copy",
            "",
            "500 unable to find configuration file for VM 999 on node 'pve1'",
        ),
        (
            "GET",
            "/nodes/pve1/qemu/101/feature?feature=copy&snapname=no",
            "",
            "500 snapshot 'no' does not exist",
        ),
    ])
    .await;
    let config = data(&root, "GET", CONFIG, "").await;
    assert_eq!(config["unused0"], "shr:101/vm-101-disk-0.raw");
    assert!(config.get("scsi1").is_none(), "{config}");
    let feature = data(&root, "GET", "/nodes/pve1/qemu/101/feature?feature=clone", "").await;
    assert_eq!(feature, serde_json::json!({ "hasFeature": 0, "nodes": ["pve1"] }));
    root.dc.lab().set_lock(101, Some("backup"));
    root.expect(&[
        ("DELETE", &format!("{snapshot}/no"), "", "task: snapshot 'no' does not exist"),
        ("DELETE", &format!("{snapshot}/s1"), "", "task: VM is locked (backup)"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_migration_looks_at_both_hosts_before_it_begins() {
    let root = Client::root();
    let migrate = "/nodes/pve1/qemu/101/migrate";
    root.expect(&[
        ("POST", VM, "vmid=101&scsi0=vmstore:1&scsi1=tiny:0.01", "task: OK"),
        (
            "POST",
            migrate,
            "target=pve2&force=1",
            "400 Parameter verification failed. force: Only root may use this option.",
        ),
        (
            "POST",
            migrate,
            "target=pve2",
            "500 storage 'tiny' is not available on node 'pve2'",
        ),
        (
            "POST",
            migrate,
            "target=pve2&targetstorage=local",
            "500 storage 'local' does not support vm images",
        ),
        (
            "POST",
            migrate,
            "target=pve2&targetstorage=1%2Cshr",
            "400 Parameter verification failed. targetstorage: failed to parse storage map: identity mapping cannot be combined with other mappings\n",
        ),
        ("POST", migrate, "target=pve2&targetstorage=tiny:shr%2Cvmstore:only2", "task: OK"),
    ])
    .await;
    let config = data(&root, "GET", "/nodes/pve2/qemu/101/config", "").await;
    assert_eq!(config["scsi0"], "only2:101/vm-101-disk-0.raw,size=1G");
    assert!(
        config["scsi1"]
            .as_str()
            .is_some_and(|d| d.starts_with("shr:101/vm-101-disk-0.raw")),
        "{config}"
    );
    root.dc.lab().set_lock(101, Some("backup"));
    root.expect(&[("GET", "/nodes/pve2/qemu/101/migrate", "", "500 VM is locked (backup)")])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_hook_script_is_a_snippet_that_can_be_executed() {
    let root = Client::root();
    root.expect(&[("POST", VM, "vmid=101", "task: OK")]).await;
    // The script is looked at before the right to set one is.
    as_token(&root, OPS)
        .expect(&[(
            "PUT",
            CONFIG,
            "hookscript=local:snippets/user.yaml",
            "400 Parameter verification failed. hookscript: script 'local:snippets/user.yaml' is not executable\n",
        )])
        .await;
    root.expect(&[
        (
            "PUT",
            CONFIG,
            "hookscript=local:snippets/none.sh",
            "400 Parameter verification failed. hookscript: script 'local:snippets/none.sh' does not exist\n",
        ),
        (
            "PUT",
            CONFIG,
            "hookscript=local:iso/boot.iso",
            "400 Parameter verification failed. hookscript: 'local:iso/boot.iso' is not in the snippets directory\n",
        ),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn directories_of_the_api_and_empty_lists_can_be_read() {
    let zero = as_token(&Client::root(), ZERO);
    let names = |value: serde_json::Value, key: &str| -> Vec<String> {
        let list = value.as_array().cloned().unwrap_or_default();
        list.iter().map(|e| e[key].as_str().unwrap_or_default().to_string()).collect()
    };
    assert_eq!(
        names(data(&zero, "GET", "/cluster/mapping", "").await, "name"),
        ["dir", "pci", "usb"]
    );
    let sdn = names(data(&Client::root(), "GET", "/cluster/sdn", "").await, "id");
    assert_eq!(sdn, ["controllers", "dns", "fabrics", "ipams", "vnets", "zones"]);
    let status = names(data(&Client::root(), "GET", "/cluster/ha/status", "").await, "name");
    assert_eq!(status, ["arm-ha", "current", "disarm-ha", "manager_status"]);
    let agent = data(&Client::root(), "GET", "/nodes/pve1/qemu/999/agent", "").await;
    assert!(names(agent, "name").contains(&"file-read".to_string()));
    for path in [
        "/cluster/mapping/pci",
        "/cluster/mapping/usb",
        "/cluster/mapping/dir",
        "/cluster/sdn/controllers",
    ] {
        assert_eq!(data(&zero, "GET", path, "").await, serde_json::json!([]), "{path}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_cloud_init_drive_lags_behind_names_and_cards_until_it_is_written() {
    let root = Client::root();
    let drive = "/nodes/pve1/qemu/101/cloudinit";
    root.expect(&[
        (
            "POST",
            VM,
            "vmid=101&memory=64&ide2=vmstore:cloudinit&ciupgrade=1",
            "task: OK",
        ),
        ("POST", "/nodes/pve1/qemu/101/status/start", "", "task: OK"),
        (
            "PUT",
            CONFIG,
            "name=late&net1=virtio%3D02:00:00:00:00:99%2Cbridge%3Dvmbr0&ciupgrade=0",
            "200 OK",
        ),
    ])
    .await;
    let expected = serde_json::json!([
        { "key": "name", "pending": "late" },
        { "key": "net1", "pending": "virtio=02:00:00:00:00:99,bridge=vmbr0" },
        { "key": "ciupgrade", "delete": 1 },
    ]);
    assert_eq!(data(&root, "GET", drive, "").await, expected);
    root.expect(&[
        ("POST", "/nodes/pve1/qemu/101/status/stop", "", "task: OK"),
        ("PUT", CONFIG, "cores=2", "200 OK"),
    ])
    .await;
    assert_eq!(
        data(&root, "GET", drive, "").await,
        expected,
        "a change of something else writes no drive"
    );
    root.expect(&[
        ("PUT", drive, "", "200 OK"),
        (
            "GET",
            &format!("{CONFIG}?current=1&snapshot=s1"),
            "",
            "400 Parameter verification failed. snapshot: cannot use 'snapshot' parameter with 'current' current: cannot use 'snapshot' parameter with 'current'",
        ),
    ])
    .await;
    assert_eq!(data(&root, "GET", drive, "").await, serde_json::json!([]));
}
