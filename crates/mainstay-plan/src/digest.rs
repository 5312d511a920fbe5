//! The shape digest in a mark: what the file decided about a VM when it was last applied.
//!
//! A digest that equals the file's means that a difference on the VM was made outside mainstay. The digest is persisted, so its input is
//! written down here and never derived from Rust's types: renaming a field must not make every machine look changed.

use std::collections::BTreeMap;

use mainstay_spec::{Disk, DiskCache, DiskOptions, Firmware, ScsiController};
use sha2::{Digest, Sha256};

use crate::desired::{DesiredCluster, DesiredMachine};
use crate::mark::ShapeDigest;

/// The format of new digests.
const FORMAT: &str = "2";

/// The digest of a machine of the file, in the present format.
pub fn digest(cluster: &DesiredCluster, machine: &DesiredMachine) -> ShapeDigest {
    hashed(FORMAT, &lines(cluster, machine))
}

/// Whether a recorded digest, of any format that was ever written, is that of the file.
pub fn matches(recorded: &ShapeDigest, cluster: &DesiredCluster, machine: &DesiredMachine) -> bool {
    match recorded.0.split_once(':') {
        Some(("1", _)) => *recorded == hashed("1", &format_1(cluster, machine)),
        _ => *recorded == digest(cluster, machine),
    }
}

fn hashed(format: &str, text: &str) -> ShapeDigest {
    let hash = Sha256::digest(text.as_bytes());
    let short: String = hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    ShapeDigest(format!("{format}:{short}"))
}

/// `key value` lines, sorted by key. A setting that has its default value has no line, so that a later mainstay that knows more settings
/// computes the same digest for a file that does not use them.
fn lines(cluster: &DesiredCluster, machine: &DesiredMachine) -> String {
    let (shape, network) = (&machine.machine.shape, &cluster.network);
    let mut lines: BTreeMap<String, String> = BTreeMap::new();
    let mut add = |key: &str, value: String| drop(lines.insert(key.to_owned(), value));
    add("address", cluster.interface(machine).to_string());
    add("bridge", network.bridge.to_string());
    add("cpu", shape.cpu.to_string());
    add("cpu-type", shape.cpu_type.clone());
    add(
        "dns",
        network.dns.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    );
    add("gateway", network.gateway.to_string());
    add("mac", machine.machine.mac.to_string());
    add("memory", shape.memory.0.to_string());
    let mut add_unless = |key: &str, is_default: bool, value: String| {
        if !is_default {
            add(key, value);
        }
    };
    add_unless("agent", !cluster.agent, "on".to_owned());
    add_unless(
        "firmware",
        shape.firmware.as_str() == "ovmf",
        shape.firmware.as_str().to_owned(),
    );
    add_unless("onboot", shape.onboot, "off".to_owned());
    add_unless(
        "scsi",
        shape.scsi.as_str() == "virtio-scsi-pci",
        shape.scsi.as_str().to_owned(),
    );
    let order = shape.startup_order.map(|order| order.to_string());
    add_unless("startup-order", order.is_none(), order.unwrap_or_default());
    let vlan = network.vlan.map(|vlan| vlan.to_string());
    add_unless("vlan", vlan.is_none(), vlan.unwrap_or_default());
    let tags: Vec<String> = machine.machine.tags.iter().map(ToString::to_string).collect();
    add_unless("tags", tags.is_empty(), tags.join(" "));
    add("disk", disk(&shape.disk));
    for extra in &shape.disks {
        add(&format!("disk {}", extra.name), disk(&extra.disk));
    }
    lines.iter().map(|(key, value)| format!("{key} {value}\n")).collect()
}

/// `40 GiB`, then what is not the default.
fn disk(disk: &Disk) -> String {
    let DiskOptions {
        cache,
        discard,
        ssd,
        iothread,
    } = disk.options;
    let storage = disk.storage.as_ref().map(|storage| format!("storage={storage}"));
    let parts = [
        Some(format!("{} GiB", disk.size.0)),
        storage,
        (cache.as_str() != "none").then(|| format!("cache={}", cache.as_str())),
        (!discard).then(|| "discard=off".to_owned()),
        (!ssd).then(|| "ssd=off".to_owned()),
        iothread.then(|| "iothread=on".to_owned()),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(" ")
}

/// The input of format 1. It followed Rust's own layout of types as they once were; this copy keeps it as it was then, so that marks that
/// earlier versions wrote are still understood. Never change it.
fn format_1(cluster: &DesiredCluster, machine: &DesiredMachine) -> String {
    let (shape, network) = (&machine.machine.shape, &cluster.network);
    let scsi = match shape.scsi {
        ScsiController::VirtioScsiPci => "VirtioScsiPci",
        ScsiController::VirtioScsiSingle => "VirtioScsiSingle",
    };
    let firmware = match shape.firmware {
        Firmware::Ovmf => "Ovmf",
        Firmware::Seabios => "Seabios",
    };
    let extra = |extra: &mainstay_spec::ExtraDisk| {
        format!(
            "ExtraDisk {{ name: \"{}\", disk: {} }}",
            extra.name,
            format_1_disk(&extra.disk)
        )
    };
    let disks: Vec<String> = shape.disks.iter().map(extra).collect();
    let dns: Vec<String> = network.dns.iter().map(ToString::to_string).collect();
    let tags: Vec<String> = machine.machine.tags.iter().map(|tag| format!("\"{tag}\"")).collect();
    format!(
        "Shape {{ cpu: {}, cpu_type: \"{}\", memory: Mib({}), disk: {}, disks: [{}], scsi: {scsi}, firmware: {firmware}, \
         onboot: {}, startup_order: {} }} {} {} {} [{}] {} {} {{{}}} {}",
        shape.cpu,
        shape.cpu_type,
        shape.memory.0,
        format_1_disk(&shape.disk),
        disks.join(", "),
        shape.onboot,
        format_1_option(shape.startup_order.map(|order| order.to_string())),
        machine.machine.mac,
        cluster.interface(machine),
        network.gateway,
        dns.join(", "),
        network.bridge,
        format_1_option(network.vlan.map(|vlan| vlan.to_string())),
        tags.join(", "),
        cluster.agent
    )
}

fn format_1_disk(disk: &Disk) -> String {
    let cache = match disk.options.cache {
        DiskCache::None => "None",
        DiskCache::Writethrough => "Writethrough",
        DiskCache::Writeback => "Writeback",
        DiskCache::Directsync => "Directsync",
    };
    format!(
        "Disk {{ size: Gib({}), storage: {}, options: DiskOptions {{ cache: {cache}, discard: {}, ssd: {}, iothread: {} }} }}",
        disk.size.0,
        format_1_option(disk.storage.as_ref().map(|storage| format!("\"{storage}\""))),
        disk.options.discard,
        disk.options.ssd,
        disk.options.iothread
    )
}

fn format_1_option(value: Option<String>) -> String {
    value.map_or_else(|| "None".to_owned(), |value| format!("Some({value})"))
}
