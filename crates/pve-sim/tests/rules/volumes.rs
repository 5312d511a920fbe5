//! Volumes: their names, how they are allocated, and what a create or a change makes of them.

use super::{AUDIT, Client, OPS, as_token, data};

const VM: &str = "/nodes/pve1/qemu";
const CONFIG: &str = "/nodes/pve1/qemu/101/config";

#[tokio::test(start_paused = true)]
async fn names_of_volumes_are_parsed_as_their_storage_does() {
    let content = "/nodes/pve1/storage/local/content";
    let parse = |name: &str| format!("500 unable to parse directory volume name '{name}'");
    for (name, expected) in [
        ("local:iso/notes.txt", parse("iso/notes.txt")),
        ("local:import/x.iso", parse("import/x.iso")),
        ("local:import/a%25b.qcow2", parse("import/a%b.qcow2")),
        ("local:vztmpl/x.zip", parse("vztmpl/x.zip")),
        ("local:backup/x.raw", parse("backup/x.raw")),
        ("local:nothing", parse("nothing")),
        ("local:101/disk", "500 unable to parse volume filename 'disk'".to_string()),
        (
            "local:101/snap-x-vm-101-disk-0.qcow2",
            "500 'snap-x-vm-101-disk-0.qcow2' is a snapshot filename, not a volume!".to_string(),
        ),
        (
            "1:x",
            "400 Parameter verification failed. volume: unable to parse volume ID '1:x'\n".to_string(),
        ),
    ] {
        let root = Client::root();
        assert_eq!(
            root.outcome("GET", &format!("{content}/{name}"), "").await,
            expected,
            "{name}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_allocation_needs_a_size_and_a_name_that_tells_its_format() {
    let content = "/nodes/pve1/storage/vmstore/content";
    Client::root()
        .expect(&[
            (
                "POST",
                content,
                "vmid=101&filename=vm-101-a.raw&size=99999999999999999999",
                "400 Parameter verification failed. size: unable to parse size '99999999999999999999'",
            ),
            (
                "POST",
                content,
                "vmid=101&filename=vm-101-a.raw&size=4M&format=qcow2",
                "400 Parameter verification failed. format: different storage formats (qcow2 != raw)",
            ),
            (
                "POST",
                content,
                "vmid=101&filename=vm-101-a&size=4M",
                "500 unable to parse volume filename 'vm-101-a'",
            ),
            (
                "POST",
                content,
                "vmid=101&filename=vm-101-a.subvol&size=4M&format=raw",
                "500 illegal name 'vm-101-a.subvol' - wrong extension for format ('subvol != 'raw')",
            ),
            ("POST", content, "vmid=101&filename=vm-101-a.raw&size=4M", "200 OK"),
        ])
        .await;
}

#[tokio::test(start_paused = true)]
async fn a_volume_is_read_and_deleted_whether_its_storage_is_enabled_or_not() {
    Client::root()
        .expect(&[
            (
                "GET",
                "/nodes/pve1/storage/off/content/off:iso/a.iso",
                "",
                "500 volume_size_info on 'off:iso/a.iso' failed - no format",
            ),
            (
                "DELETE",
                "/nodes/pve1/storage/off/content/off:iso/a.iso",
                "",
                "task: storage 'off' is disabled",
            ),
        ])
        .await;
    let audit = as_token(&Client::root(), AUDIT);
    let backup = "/nodes/pve1/storage/local/content/local:backup/vzdump-qemu-7-2026_01_01-00_00_00.vma.zst";
    audit
        .expect(&[(
            "DELETE",
            backup,
            "",
            "403 Permission check failed (/storage/local, Datastore.AllocateSpace)",
        )])
        .await;
}

#[tokio::test(start_paused = true)]
async fn an_import_fails_in_the_words_of_what_it_came_to() {
    let create = |disk: &str| format!("vmid=101&{disk}");
    let from = |text: &str| format!("task: unable to create VM 101 - cannot import from {text}");
    let root = Client::root();
    root.expect(&[
        (
            "POST",
            VM,
            "vmid=100&scsi0=vmstore:1&ide2=vmstore:cloudinit&bios=ovmf&efidisk0=vmstore:1%2Cefitype%3D4m",
            "task: OK",
        ),
        ("POST", "/nodes/pve2/qemu", "vmid=102&scsi0=shr:1", "task: OK"),
    ])
    .await;
    for (disk, expected) in [
        // Files are looked at before the target is, whether their storage is there or not.
        (
            "scsi0=vmstore:0%2Cimport-from%3Donly2:import/x.raw",
            "task: unable to create VM 101 - failed to stat '/var/lib/only2/import/x.raw'".to_string(),
        ),
        (
            "scsi0=only2:0%2Cimport-from%3Dlocal:import/small.raw",
            from("'local:import/small.raw' - storage 'only2' is not available on node 'pve1'"),
        ),
        (
            "scsi0=vmstore:0%2Cimport-from%3Dvmstore:100/vm-100-disk-9.raw",
            from("'vmstore:100/vm-100-disk-9.raw' - could not get size of vmstore:100/vm-100-disk-9.raw"),
        ),
        (
            "scsi0=vmstore:0%2Cimport-from%3Dvmstore:100/vm-100-cloudinit.qcow2",
            from("'vmstore:100/vm-100-cloudinit.qcow2' - cannot import from cloudinit disk"),
        ),
        (
            "scsi0=vmstore:0%2Cimport-from%3Dvmstore:100/vm-100-disk-0.raw",
            from("'vmstore:100/vm-100-disk-0.raw' - cloning from/to EFI disk requires EFI disk"),
        ),
        (
            "scsi0=vmstore:0%2Cimport-from%3Dshr:102/vm-102-disk-0.raw",
            from("'shr:102/vm-102-disk-0.raw' - owner VM 102 not on local node"),
        ),
    ] {
        assert_eq!(root.outcome("POST", VM, &create(disk)).await, expected, "{disk}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_there_keeps_its_own_size_and_format() {
    let root = Client::root();
    root.expect(&[
        ("POST", VM, "vmid=101&scsi0=vmstore:1", "task: OK"),
        ("PUT", CONFIG, "scsi0=vmstore:101/vm-101-disk-0.raw%2Csize%3D7G", "200 OK"),
        (
            "PUT",
            CONFIG,
            "scsi0=vmstore:101/vm-101-disk-0.raw%2Cformat%3Dqcow2",
            "500 drive 'scsi0' - volume 'vmstore:101/vm-101-disk-0.raw' - 'format=qcow2' option different from storage format 'raw'",
        ),
        (
            "PUT",
            CONFIG,
            "scsi1=vmstore:1%2Cformat%3Dqcow",
            "500 unable to parse volume filename 'vm-101-disk-1.qcow'",
        ),
        (
            "PUT",
            CONFIG,
            "unused5=local:iso/boot.iso",
            "500 unable to use volume local:iso/boot.iso - content type needs to be 'images'",
        ),
    ])
    .await;
    let config = data(&root, "GET", CONFIG, "").await;
    assert_eq!(config["scsi0"], "vmstore:101/vm-101-disk-0.raw,size=1G");
}

#[tokio::test(start_paused = true)]
async fn a_disk_inside_an_appliance_needs_a_storage_to_be_unpacked_on() {
    let ops = as_token(&Client::root(), OPS);
    ops.expect(&[
        (
            "POST",
            VM,
            "vmid=101&scsi0=vmstore:0%2Cimport-from%3Dlocal:import/a.ova/d.vmdk",
            "400 Parameter verification failed. scsi0: import working storage 'local' does not support 'images' content type or is not file based.",
        ),
        (
            "POST",
            VM,
            "vmid=101&import-working-storage=tiny&scsi0=vmstore:0%2Cimport-from%3Dlocal:import/a.ova/d.vmdk",
            "403 Permission check failed (/storage/tiny, Datastore.AllocateSpace)",
        ),
    ])
    .await;
}
