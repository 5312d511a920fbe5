//! The tables of refusals in PVE's fact sheet, row by row: a raw request in, its channel (status or task) and text out.
//!
//! Each row is named after its table and its words there. Rows that need a lock, a host that is off or a cluster without quorum stand in
//! `refusals.rs`, those about names and encodings in the recorded scenarios.

use crate::client::Client;

/// Table and row, the request, what comes back.
type Row<'a> = (&'a str, &'a str, &'a str, &'a str, &'a str);

async fn meet(client: &Client, rows: &[Row<'_>]) {
    for (row, verb, path, form, expected) in rows {
        assert_eq!(
            client.outcome(verb, path, form).await,
            *expected,
            "{row}: {verb} {path} {form}"
        );
    }
}

const POOR: &str = "var@pve!vt=a0000000-0000-4000-8000-000000000008";
const OPS: &str = "ops@pve!ms=a0000000-0000-4000-8000-000000000003";

fn other(client: &Client, token: &'static str) -> Client {
    Client {
        dc: client.dc.clone(),
        token,
    }
}

#[tokio::test(start_paused = true)]
async fn table_15_4_create() {
    let root = Client::root();
    let create = "/nodes/pve1/qemu";
    meet(
        &root,
        &[
            ("a VM", "POST", create, "vmid=101&scsi0=vmstore:1", "task: OK"),
            ("15.4 id used", "POST", create, "vmid=101", "500 unable to create VM 101 - VM 101 already exists on node 'pve1'"),
            ("15.4 pool unknown", "POST", create, "vmid=102&pool=x", "403 Permission check failed (pool 'x' does not exist)"),
            (
                "15.4 storage without images",
                "POST",
                create,
                "vmid=102&scsi0=local:1",
                "400 Parameter verification failed. storage: storage 'local' does not support vm images",
            ),
            ("15.4 storage unknown", "POST", create, "vmid=102&scsi0=nope:1", "500 storage 'nope' does not exist"),
            ("15.4 root-only key", "POST", create, "vmid=102&args=-S", "500 only root can set 'args' config"),
            (
                "18.5 an import is no disk",
                "POST",
                create,
                "vmid=102&scsi0=local:import/small.qcow2",
                "400 Parameter verification failed. scsi0: content type needs to be 'images' or 'iso'",
            ),
            (
                "6.3 iso without media",
                "POST",
                create,
                "vmid=102&scsi0=local:iso/boot.iso",
                "400 Parameter verification failed. scsi0: explicit 'media=cdrom' is required for iso images",
            ),
            (
                "6.3 import-from with a size",
                "POST",
                create,
                "vmid=102&scsi0=vmstore:1%2Cimport-from%3Dlocal:import/small.qcow2",
                "400 Parameter verification failed. scsi0: 'import-from' requires special syntax - use <storage ID>:0,import-from=<source>",
            ),
            (
                "6.3 import-from of firmware",
                "POST",
                create,
                "vmid=102&efidisk0=vmstore:0%2Cimport-from%3Dlocal:import/small.raw",
                "400 Parameter verification failed. efidisk0: need to specify 'efitype' when using 'import-from'",
            ),
            (
                "6.3 import-from iso",
                "POST",
                create,
                "vmid=102&scsi0=vmstore:0%2Cimport-from%3Dlocal:iso/boot.iso",
                "400 Parameter verification failed. scsi0: local:iso/boot.iso has wrong type 'iso' - needs to be 'images' or 'import'",
            ),
            (
                "6.3 second cloud-init drive",
                "POST",
                create,
                "vmid=102&ide0=vmstore:cloudinit&ide2=vmstore:cloudinit",
                "task: unable to create VM 102 - ide0 - cloud-init drive is already attached at 'ide2'",
            ),
        ],
    )
    .await;
    let poor = other(&root, POOR);
    meet(
        &poor,
        &[
            (
                "15.4 no VM.Allocate",
                "POST",
                create,
                "vmid=102",
                "403 Permission check failed",
            ),
            (
                "6.1 start",
                "POST",
                create,
                "vmid=102&start=1",
                "403 Permission check failed (/vms/102, VM.PowerMgmt)",
            ),
            (
                "6.1 ha-managed",
                "POST",
                create,
                "vmid=102&ha-managed=1",
                "403 Permission check failed (/, Sys.Console)",
            ),
        ],
    )
    .await;
    let refused = "403 Permission check failed (/sdn/zones/localnetwork/vmbr1, SDN.Use)";
    let tagged = "403 Permission check failed (/sdn/zones/localnetwork/vmbr1/7, SDN.Use)";
    meet(
        &other(&root, OPS),
        &[
            (
                "15.4 bridge without SDN.Use",
                "POST",
                create,
                "vmid=102&net0=virtio%2Cbridge%3Dvmbr1",
                refused,
            ),
            (
                "10.3 and with a VLAN",
                "POST",
                create,
                "vmid=102&net0=virtio%2Cbridge%3Dvmbr1%2Ctag%3D7",
                tagged,
            ),
            (
                "6.2 host devices",
                "POST",
                create,
                "vmid=102&usb0=host%3D1234:5678",
                "500 only root can set 'usb0' config for real devices",
            ),
            (
                "6.2 hwrng",
                "POST",
                create,
                "vmid=102&rng0=/dev/hwrng",
                "403 Permission check failed (/mapping/hwrng, Mapping.Use)",
            ),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn table_7_1_config() {
    let root = Client::root();
    let config = "/nodes/pve1/qemu/101/config";
    let zero = "0".repeat(40);
    let stale = format!("cores=2&digest={zero}");
    meet(
        &root,
        &[
            (
                "a VM",
                "POST",
                "/nodes/pve1/qemu",
                "vmid=101&scsi0=vmstore:1&tpmstate0=vmstore:1%2Cversion%3Dv2.0",
                "task: OK",
            ),
            ("15.4 empty", "PUT", config, "digest=x", "500 no options specified"),
            (
                "15.4 digest, PUT",
                "PUT",
                config,
                &stale,
                "500 checksum mismatch (file change by other user?)",
            ),
            (
                "15.4 digest, POST",
                "POST",
                config,
                &stale,
                "500 checksum mismatch (file change by other user?)",
            ),
            (
                "3.3 set and delete",
                "PUT",
                config,
                "cores=2&delete=cores",
                "400 Parameter verification failed. delete: you can't use '-cores' and -delete cores' at the same time",
            ),
            (
                "3.3 set and revert",
                "PUT",
                config,
                "cores=2&revert=cores",
                "400 Parameter verification failed. delete: you can't use '-cores' and -revert cores' at the same time",
            ),
            (
                "3.3 delete and revert",
                "PUT",
                config,
                "delete=cores&revert=cores",
                "400 Parameter verification failed. revert: you can't use '-delete cores' and -revert cores' at the same time",
            ),
            ("3.3 delete of what is not set", "PUT", config, "delete=cores", "200 OK"),
            (
                "6.3 the TPM's version",
                "PUT",
                config,
                "tpmstate0=vmstore:101/vm-101-disk-1.raw%2Cversion%3Dv1.2",
                "500 cannot change TPM state version after creation",
            ),
            (
                "6.2 real serial port, PUT",
                "PUT",
                config,
                "serial0=/dev/ttyS0",
                "500 only root can modify 'serial0' config for real devices",
            ),
            (
                "6.2 real serial port, POST",
                "POST",
                config,
                "serial0=/dev/ttyS0",
                "task: only root can modify 'serial0' config for real devices",
            ),
            (
                "6.4 hotplug",
                "PUT",
                config,
                "hotplug=foo",
                "400 Parameter verification failed. hotplug: invalid format - invalid hotplug feature 'foo'\n",
            ),
            (
                "7.1 background_delay of what fails",
                "POST",
                config,
                "serial0=/dev/ttyS0&background_delay=5",
                "500 failed to update VM 101: only root can modify 'serial0' config for real devices",
            ),
            ("7.1 protection", "PUT", config, "protection=1", "200 OK"),
            (
                "7.1 protected disks",
                "PUT",
                config,
                "delete=scsi0",
                "500 can't remove drive 'scsi0' - protection mode enabled",
            ),
            (
                "7.6 protected",
                "DELETE",
                "/nodes/pve1/qemu/101",
                "",
                "500 can't remove VM 101 - protection mode enabled",
            ),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn tables_7_2_to_7_4_resize_template_clone() {
    let root = Client::root();
    let (resize, clone) = ("/nodes/pve1/qemu/101/resize", "/nodes/pve1/qemu/101/clone");
    let template = "/nodes/pve1/qemu/101/template";
    meet(
        &root,
        &[
            (
                "a VM",
                "POST",
                "/nodes/pve1/qemu",
                "vmid=101&scsi0=vmstore:1%2Cformat%3Dqcow2&ide2=local:iso/boot.iso%2Cmedia%3Dcdrom",
                "task: OK",
            ),
            (
                "7.2 shrink",
                "PUT",
                resize,
                "disk=scsi0&size=512M",
                "task: shrinking disks is not supported",
            ),
            (
                "7.2 no disk",
                "PUT",
                resize,
                "disk=scsi9&size=2G",
                "task: disk 'scsi9' does not exist",
            ),
            (
                "7.2 cdrom",
                "PUT",
                resize,
                "disk=ide2&size=2G",
                "task: you can't resize a cdrom",
            ),
            ("7.2 equal size", "PUT", resize, "disk=scsi0&size=1G", "task: OK"),
            ("7.2 increment", "PUT", resize, "disk=scsi0&size=%2B1G", "task: OK"),
            (
                "7.4 id used",
                "POST",
                clone,
                "newid=101",
                "500 unable to create VM 101: config file already exists",
            ),
            (
                "7.4 linked needs a base",
                "POST",
                clone,
                "newid=102&full=0",
                "500 Linked clone feature is not supported for 'vmstore:101/vm-101-disk-0.qcow2' (scsi0)",
            ),
            (
                "7.4 storage not on the host",
                "POST",
                clone,
                "newid=102&full=1&storage=only2",
                "500 storage 'only2' is not available on node 'pve1'",
            ),
            (
                "7.4 disabled storage",
                "POST",
                clone,
                "newid=102&full=1&storage=off",
                "500 storage 'off' is disabled",
            ),
            (
                "7.4 target with local disks",
                "POST",
                clone,
                "newid=102&full=1&target=pve2",
                "500 can't clone VM to node 'pve2' (VM uses local storage)",
            ),
            (
                "7.4 target to local storage",
                "POST",
                clone,
                "newid=102&full=1&target=pve2&storage=vmstore",
                "500 can't clone to non-shared storage 'vmstore'",
            ),
            (
                "7.3 with snapshots",
                "POST",
                "/nodes/pve1/qemu/101/snapshot",
                "snapname=s1",
                "task: OK",
            ),
            (
                "7.3 with snapshots",
                "POST",
                template,
                "",
                "500 unable to create template, because VM contains snapshots",
            ),
            (
                "7.7 duplicate",
                "POST",
                "/nodes/pve1/qemu/101/snapshot",
                "snapname=s1",
                "task: snapshot name 's1' already used",
            ),
            (
                "7.7 reserved",
                "POST",
                "/nodes/pve1/qemu/101/snapshot",
                "snapname=current",
                "500 unable to use snapshot name 'current' (reserved name)",
            ),
            ("7.7 remove", "DELETE", "/nodes/pve1/qemu/101/snapshot/s1", "", "task: OK"),
            ("7.3 template", "POST", template, "", "task: OK"),
            (
                "7.3 twice",
                "POST",
                template,
                "",
                "500 you can't convert a template to a template",
            ),
            (
                "7.4 linked with storage",
                "POST",
                clone,
                "newid=102&storage=shr",
                "500 parameter 'storage' not allowed for linked clones",
            ),
            (
                "7.4 linked with format",
                "POST",
                clone,
                "newid=102&format=raw",
                "500 parameter 'format' not allowed for linked clones",
            ),
            ("7.4 linked", "POST", clone, "newid=102", "task: OK"),
            (
                "7.5 template",
                "POST",
                "/nodes/pve1/qemu/101/status/start",
                "",
                "task: you can't start a vm if it's a template",
            ),
            (
                "7.7 template",
                "POST",
                "/nodes/pve1/qemu/101/snapshot",
                "snapname=s1",
                "task: you can't take a snapshot if it's a template",
            ),
            (
                "7.6 base in use",
                "DELETE",
                "/nodes/pve1/qemu/101",
                "",
                "task: base volume 'vmstore:101/base-101-disk-0.qcow2' is still in use by linked cloned",
            ),
            (
                "9.5 base in use",
                "DELETE",
                "/nodes/pve1/storage/vmstore/content/vmstore:101/base-101-disk-0.qcow2",
                "",
                "task: base volume '101/base-101-disk-0.qcow2' is still in use by linked clones",
            ),
        ],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn tables_7_5_to_7_7_power_delete_move() {
    let root = Client::root();
    let vm = "/nodes/pve1/qemu/101";
    let path = |rest: &str| format!("{vm}{rest}");
    let (start, stop, reboot, reset) = (
        path("/status/start"),
        path("/status/stop"),
        path("/status/reboot"),
        path("/status/reset"),
    );
    let (migrate, move_disk, agent) = (path("/migrate"), path("/move_disk"), path("/agent/ping"));
    let no_agent = "500 No QEMU guest agent configured";
    meet(
        &root,
        &[
            (
                "a VM",
                "POST",
                "/nodes/pve1/qemu",
                "vmid=101&scsi0=vmstore:1&memory=64",
                "task: OK",
            ),
            ("15.4 reboot stopped", "POST", &reboot, "", "500 VM 101 not running"),
            ("15.4 reset stopped", "POST", &reset, "", "500 VM 101 not running"),
            ("15.4 stop stopped", "POST", &stop, "", "task: OK"),
            ("8 not configured", "POST", &agent, "", no_agent),
            ("8 configured", "PUT", &path("/config"), "agent=1", "200 OK"),
            ("8 stopped", "POST", &agent, "", "500 VM 101 is not running"),
            ("7.5 start", "POST", &start, "", "task: OK"),
            ("15.4 start running", "POST", &start, "", "task: VM 101 already running"),
            ("8 silent", "POST", &agent, "", "500 QEMU guest agent is not running"),
            (
                "7.3 running",
                "POST",
                &path("/template"),
                "",
                "500 you can't convert a VM to template if VM is running",
            ),
            ("7.6 running", "DELETE", vm, "", "500 VM 101 is running - destroy failed"),
            (
                "7.7 same node",
                "POST",
                &migrate,
                "target=pve1",
                "400 Parameter verification failed. target: target is local node.",
            ),
            (
                "7.7 unknown node",
                "POST",
                &migrate,
                "target=pve9",
                "500 no such cluster node 'pve9'",
            ),
            (
                "7.7 running",
                "POST",
                &migrate,
                "target=pve2",
                "500 can't migrate running VM without --online",
            ),
            (
                "7.5 guest ignores it",
                "POST",
                &path("/status/shutdown"),
                "timeout=3",
                "task: VM quit/powerdown failed - got timeout",
            ),
            (
                "7.5 forced",
                "POST",
                &path("/status/shutdown"),
                "timeout=3&forceStop=1",
                "task: OK",
            ),
            (
                "7.7 the same storage",
                "POST",
                &move_disk,
                "disk=scsi0&storage=vmstore",
                "500 you can't move to the same storage with same format",
            ),
            (
                "7.7 no images there",
                "POST",
                &move_disk,
                "disk=scsi0&storage=local",
                "400 Parameter verification failed. storage: storage 'local' does not support vm images",
            ),
            ("7.7 moved", "POST", &move_disk, "disk=scsi0&storage=shr", "task: OK"),
            (
                "7.7 to an unknown user",
                "POST",
                &move_disk,
                "disk=unused0&target-vmid=102",
                "500 could not find target VM 102",
            ),
            ("another VM", "POST", "/nodes/pve1/qemu", "vmid=102", "task: OK"),
            (
                "7.7 reassigned",
                "POST",
                &move_disk,
                "disk=unused0&target-vmid=102&target-disk=scsi0",
                "task: OK",
            ),
            (
                "7.6 HA without purge",
                "POST",
                "/cluster/ha/resources",
                "sid=vm:101",
                "200 OK",
            ),
            (
                "7.6 HA without purge",
                "DELETE",
                vm,
                "",
                "500 unable to remove VM 101 - used in HA resources and purge parameter not set.",
            ),
            ("7.6 with purge", "DELETE", &format!("{vm}?purge=1"), "", "task: OK"),
            (
                "15.4 missing VM",
                "GET",
                &path("/config"),
                "",
                "500 Configuration file 'nodes/pve1/qemu-server/101.conf' does not exist",
            ),
            (
                "5.4 missing VM, running state first",
                "POST",
                &path("/clone"),
                "newid=103",
                "500 unable to find configuration file for VM 101 on node 'pve1'",
            ),
        ],
    )
    .await;
    let volumes = root.dc.inspect().volumes;
    assert!(
        volumes.iter().any(|v| v.volid == "vmstore:102/vm-102-disk-0.raw"),
        "the disk was renamed"
    );
}

#[tokio::test(start_paused = true)]
async fn table_9_storage() {
    let root = Client::root();
    let download = "/nodes/pve1/storage/local/download-url";
    let url = "url=http://127.0.0.1:9000/x";
    let form = |rest: &str| format!("{url}&{rest}");
    let verify = "400 Parameter verification failed. ";
    let exists = "task: refusing to override existing file '/var/lib/vz/import/small.qcow2'";
    meet(
        &root,
        &[
            (
                "9.3 iso extension",
                "POST",
                download,
                &form("content=iso&filename=x.qcow2"),
                &format!("{verify}filename: wrong file extension"),
            ),
            (
                "9.3 import extension",
                "POST",
                download,
                &form("content=import&filename=x.img"),
                &format!("{verify}filename: invalid filename or wrong extension"),
            ),
            (
                "9.1 content not enabled",
                "POST",
                "/nodes/pve1/storage/vmstore/download-url",
                &form("content=iso&filename=x.iso"),
                "500 storage 'vmstore' is not configured for content-type 'iso'",
            ),
            (
                "9.4 exists",
                "POST",
                download,
                &form("content=import&filename=small.qcow2"),
                exists,
            ),
            (
                "9.4 compressed import",
                "POST",
                download,
                &form("content=import&filename=y.qcow2&compression=gz"),
                "task: decompression not supported for import",
            ),
            (
                "9.4 checksum without algorithm",
                "POST",
                download,
                &form("content=import&filename=y.qcow2&checksum=00"),
                &format!("{verify}checksum-algorithm: missing property required by 'checksum'"),
            ),
            (
                "9.3 snippets",
                "POST",
                download,
                &form("content=snippets&filename=y.yaml"),
                &format!("{verify}content: value 'snippets' does not have a value in the enumeration 'iso, vztmpl, import'"),
            ),
            (
                "9.1 unknown storage",
                "GET",
                "/nodes/pve1/storage/nope/status",
                "",
                &format!("{verify}storage: No such storage."),
            ),
            (
                "9.1 unknown storage",
                "GET",
                "/nodes/pve1/storage/nope/content",
                "",
                "500 storage 'nope' does not exist",
            ),
            (
                "9.5 what is not there",
                "DELETE",
                "/nodes/pve1/storage/local/content/local:iso/none.iso",
                "",
                "task: OK",
            ),
        ],
    )
    .await;
    let denied = "403 Permission check failed (/storage/local, Datastore.AllocateTemplate)";
    meet(
        &other(&root, POOR),
        &[(
            "9.4 permission",
            "POST",
            download,
            &form("content=iso&filename=x.iso"),
            denied,
        )],
    )
    .await;
}

#[tokio::test(start_paused = true)]
async fn table_10_4_firewall() {
    let root = Client::root();
    let vm = "/nodes/pve1/qemu/101/firewall";
    let path = |rest: &str| format!("{vm}{rest}");
    let (rules, first, sets) = (path("/rules"), path("/rules/0"), path("/ipset"));
    let verify = "400 Parameter verification failed. ";
    meet(
        &root,
        &[
            (
                "unknown action",
                "POST",
                &rules,
                "type=in&action=NOPE",
                &format!("{verify}action: unknown action 'NOPE'"),
            ),
            (
                "a port needs a protocol",
                "POST",
                &rules,
                "type=in&action=ACCEPT&dport=22",
                &format!("{verify}proto: missing property - 'dport' requires this property"),
            ),
            (
                "a protocol without ports",
                "POST",
                &rules,
                "type=in&action=ACCEPT&dport=22&proto=esp",
                &format!("{verify}dport: protocol 'esp' does not support ports"),
            ),
            (
                "a port that is none",
                "POST",
                &rules,
                "type=in&action=ACCEPT&dport=70000&proto=tcp",
                &format!("{verify}dport: invalid format - invalid port '70000'\n"),
            ),
            (
                "an unknown protocol",
                "POST",
                &rules,
                "type=in&action=ACCEPT&proto=zzz",
                &format!("{verify}proto: invalid format - unknown protocol 'zzz'\n"),
            ),
            (
                "forward is for hosts",
                "POST",
                &rules,
                "type=forward&action=ACCEPT",
                &format!("{verify}type: invalid rule type 'forward' for rule_env 'vm'"),
            ),
            (
                "an unknown set",
                "POST",
                &rules,
                "type=in&action=ACCEPT&source=%2Bnope",
                &format!("{verify}source: no such ipset 'nope'"),
            ),
            (
                "an unknown alias",
                "POST",
                &rules,
                "type=in&action=ACCEPT&source=nope",
                &format!("{verify}source: no such alias 'nope'"),
            ),
            (
                "a rule",
                "POST",
                &rules,
                "type=in&action=ACCEPT&macro=ssh&source=10.0.0.0/24",
                "200 OK",
            ),
            ("no such place", "DELETE", &path("/rules/3"), "", "500 no rule at position 3"),
            (
                "required",
                "PUT",
                &first,
                "delete=action",
                &format!("{verify}delete: unable to delete required property 'action'"),
            ),
            (
                "the digest is outdated",
                "PUT",
                &first,
                "comment=x&digest=0000",
                "500 detected modified configuration - file changed by other user? Try again.",
            ),
            ("a set", "POST", &sets, "name=ipfilter-net0", "200 OK"),
            (
                "a set twice",
                "POST",
                &sets,
                "name=ipfilter-net0",
                &format!("{verify}name: IPSet 'ipfilter-net0' already exists"),
            ),
            ("an address", "POST", &path("/ipset/ipfilter-net0"), "cidr=10.0.0.9", "200 OK"),
            (
                "an address twice",
                "POST",
                &path("/ipset/ipfilter-net0"),
                "cidr=10.0.0.9/32",
                &format!("{verify}cidr: address '10.0.0.9' already exists"),
            ),
            (
                "not empty",
                "DELETE",
                &path("/ipset/ipfilter-net0"),
                "",
                "500 IPSet 'ipfilter-net0' is not empty",
            ),
            ("no such set", "GET", &path("/ipset/nope"), "", "500 no such IPSet 'nope'"),
        ],
    )
    .await;
    let (_, _, body) = root.send("GET", &rules, "").await;
    let rule = &body["data"][0];
    assert_eq!(
        (&rule["macro"], &rule["enable"], &rule["ipversion"]),
        (&"SSH".into(), &0.into(), &4.into())
    );
}

#[tokio::test(start_paused = true)]
async fn table_4_2_tasks() {
    let root = Client::root();
    let start = "/nodes/pve1/qemu/101/status/start";
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101", "task: OK"),
        ("POST", start, "timeout=1", "task: OK"),
        ("POST", start, "", "task: VM 101 already running"),
    ])
    .await;
    let ops = other(&root, OPS);
    ops.expect(&[("POST", "/nodes/pve1/qemu", "vmid=102", "task: OK")]).await;
    for (query, count) in [
        ("", 4),
        ("?errors=1", 1),
        ("?statusfilter=ok", 3),
        ("?statusfilter=ok,error", 4),
        ("?statusfilter=ok&errors=1", 1),
        ("?vmid=102", 1),
        ("?typefilter=qmstart", 2),
        ("?userfilter=OPS@pve", 1),
        // Finished tasks are filed under the user; the token stands beside.
        ("?userfilter=ops@pve!ms", 0),
        ("?limit=2", 2),
        ("?start=3", 1),
        ("?source=active", 0),
        ("?source=all", 4),
    ] {
        let (status, _, body) = root.send("GET", &format!("/nodes/pve1/tasks{query}"), "").await;
        let found = body["data"].as_array().map(Vec::len);
        assert_eq!((status, found), (200, Some(count)), "{query}");
    }
    let upid = root.dc.inspect().tasks[0].upid.clone();
    let refused = root
        .outcome("GET", &format!("/nodes/pve1/tasks/{upid}/log?download=1&limit=1"), "")
        .await;
    assert_eq!(
        refused,
        "500 'download' cannot be used together with 'start' or 'limit' parameters"
    );
    let (_, _, body) = ops.send("GET", "/cluster/log", "").await;
    let said = body["data"].as_array().expect("a list");
    assert_eq!(said.len(), 2, "without Sys.Syslog only the own lines: {said:?}");
}
