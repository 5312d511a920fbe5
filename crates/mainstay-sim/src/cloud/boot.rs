//! The boot of a cloud guest, from the kernel to the login prompt.

use std::sync::Arc;

use super::cloudinit;
use super::fs::Credentials;
use super::host::{Host, Stage};
use super::systemd;
use super::{netdev, sshd};

/// Lives until the guest ends; the caller drops this future then.
pub(crate) async fn run(host: &Arc<Host>) {
    let timing = host.timing().clone();
    prepare(host);
    host.pass(timing.detect).await;
    let found = cloudinit::detect(host);
    match &found {
        Some(found) => cloudinit::local_stage(host, found),
        None => host.lock().cloud_init = Stage::Disabled,
    }
    host.pass(timing.local_stage).await;
    cloudinit::bring_up_network(host);
    netdev::describe(host);
    // With socket activation the port is open before anything answers on it.
    let listener = sshd::listen(host).await;
    host.pass(timing.network_stage).await;
    if let Some(found) = &found {
        cloudinit::network_stage(host, found);
    }
    let name = host.fs.text("/etc/hostname").unwrap_or_default().trim().to_owned();
    host.lock().hostname = name;
    if let Some(listener) = listener {
        host.spawn(sshd::serve(Arc::clone(host), listener));
    }
    let logins = async {
        host.pass(timing.logins).await;
        host.lock().booting = false;
        let _ = host.fs.remove(Credentials::ROOT, "/run/nologin");
    };
    let units = systemd::boot(host);
    let rest = async {
        if let Some(found) = &found {
            host.pass(timing.final_stage).await;
            cloudinit::final_stage(host, found).await;
        }
    };
    tokio::join!(logins, units, rest);
    std::future::pending::<()>().await;
}

/// What kernel and early systemd bring.
fn prepare(host: &Arc<Host>) {
    let now = host.now();
    let root = Credentials::ROOT;
    for top in [
        "/run",
        "/proc",
        "/sys",
        "/dev",
        "/run/systemd",
        "/run/systemd/system",
        "/run/lock",
        "/run/cloud-init",
        "/dev/disk",
    ] {
        let _ = host.fs.make_directory(root, top, 0o755, now);
    }
    let _ = host.fs.make_directory(root, "/dev/shm", 0o1777, now);
    host.fs.install(
        "/run/nologin",
        "System is booting up. Unprivileged users are not permitted to log in yet.\n",
        0o644,
        now,
    );
    host.fs
        .install("/proc/sys/kernel/random/boot_id", format!("{}\n", host.boot_id), 0o444, now);
    host.fs
        .install("/proc/sys/kernel/osrelease", format!("{}\n", host.image.kernel()), 0o444, now);
    host.fs.install("/proc/uptime", "10.00 20.00\n", 0o444, now);
    host.fs
        .install("/proc/swaps", "Filename\tType\tSize\tUsed\tPriority\n", 0o444, now);
    let memory = host.hardware.memory / 1024;
    host.fs.install(
        "/proc/meminfo",
        format!("MemTotal: {memory} kB\nMemAvailable: {} kB\n", memory * 9 / 10),
        0o444,
        now,
    );
    // Only root reads what identifies the machine.
    let dmi = "/sys/class/dmi/id";
    host.fs.install(
        &format!("{dmi}/product_uuid"),
        format!("{}\n", host.hardware.uuid),
        0o400,
        now,
    );
    host.fs.install(
        &format!("{dmi}/product_serial"),
        format!("{}\n", host.hardware.serial),
        0o400,
        now,
    );
    host.fs.install(
        &format!("{dmi}/product_name"),
        "Standard PC (i440FX + PIIX, 1996)\n",
        0o444,
        now,
    );
    host.fs.install(&format!("{dmi}/sys_vendor"), "QEMU\n", 0o444, now);
    if host.fs.text("/etc/machine-id").is_none_or(|id| id.trim().is_empty()) {
        // On KVM the machine id is made from the SMBIOS UUID.
        host.fs.install(
            "/etc/machine-id",
            format!("{}\n", host.hardware.uuid.replace('-', "")),
            0o444,
            now,
        );
    }
    for (index, disk) in host.hardware.disks.iter().enumerate() {
        let device = format!("/dev/sd{}", char::from(b'a' + u8::try_from(index.min(25)).unwrap_or(25)));
        host.fs.install(&device, "", 0o660, now);
        if let Some(serial) = &disk.serial {
            let link = format!("/dev/disk/by-id/scsi-0QEMU_QEMU_HARDDISK_{serial}");
            host.fs.install(&format!("{link}.tmp"), "", 0o644, now);
            let _ = host.fs.remove(root, &format!("{link}.tmp"));
            let _ = host.fs.link(root, &device, &link, now);
        }
    }
    load_sysctl(host);
}

/// systemd-sysctl: the files in order of their names.
pub(crate) fn load_sysctl(host: &Host) {
    let names = host.fs.list(Credentials::ROOT, "/etc/sysctl.d").unwrap_or_default();
    for name in names.iter().filter(|name| name.ends_with(".conf")) {
        let text = host.fs.text(&format!("/etc/sysctl.d/{name}")).unwrap_or_default();
        apply_sysctl(host, &text);
    }
}

pub(crate) fn apply_sysctl(host: &Host, text: &str) {
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        if let Some((key, value)) = line.split_once('=') {
            let key = key.trim().trim_start_matches('-').replace('/', ".");
            host.lock().sysctl.insert(key, value.trim().to_owned());
        }
    }
}
