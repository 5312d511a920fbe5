//! Memory, processors and disks: minimums of the distribution, names and options of disks.

use std::collections::{BTreeMap, BTreeSet};

use crate::diagnostic::Diagnostic;
use crate::draft::{DiskFields, Draft, Fields, NamedFields};
use crate::keys::{distro, shape as keys};
use crate::roster::RosterEntry;
use crate::source::Span;
use crate::spec::{Distro, Role, ScsiController};
use crate::value::{Gib, Mib};

/// What a distribution asks of a machine.
struct Minimum {
    name: &'static str,
    memory: Mib,
    disk: Gib,
    why_memory: &'static str,
    why_disk: &'static str,
}

static TALOS: Minimum = Minimum {
    name: "Talos",
    memory: Mib(2048),
    disk: Gib(10),
    why_memory: "Talos unpacks into memory; with less than 2 GiB upgrades and even the first boot run out of it.",
    why_disk: "the image itself takes more than 4 GiB, and what is left must hold container images and etcd.",
};

static RKE2: Minimum = Minimum {
    name: "RKE2",
    memory: Mib(4096),
    disk: Gib(20),
    why_memory: "RKE2 asks for at least 4 GiB.",
    why_disk: "the cloud image, RKE2 and its images do not fit into less.",
};

static K3S: Minimum = Minimum {
    name: "k3s",
    memory: Mib(1024),
    disk: Gib(20),
    why_memory: "k3s and a cloud image need at least 1 GiB.",
    why_disk: "the cloud image, k3s and its images do not fit into less.",
};

/// SCSI has room for 31 devices; the system disk takes one and the first-boot drive may take another.
const EXTRA_DISKS_MAX: usize = 24;

pub(crate) fn check(draft: &Draft<'_>, roster: &[RosterEntry<'_>], faults: &mut Vec<Diagnostic>) {
    let minimum = match draft.distro() {
        Distro::Talos => &TALOS,
        Distro::Rke2 => &RKE2,
        Distro::K3s => &K3S,
    };
    let pools: BTreeMap<&str, &NamedFields<'_>> = roster.iter().map(|member| (member.name.as_str(), member.pool)).collect();
    for pool in &draft.pools {
        shape(minimum, &pool.fields, pool.role(), faults);
    }
    for machine in &draft.machines {
        let role = pools.get(machine.name).map_or(Role::Worker, |pool| pool.role());
        shape(minimum, &machine.fields, role, faults);
    }
    iothreads(draft, &pools, faults);
    longhorn(draft, faults);
}

fn shape(minimum: &Minimum, fields: &Fields<'_>, role: Role, faults: &mut Vec<Diagnostic>) {
    memory(minimum, fields, role, faults);
    if let Some(cpu) = fields.spanned(&keys::CPU)
        && cpu.value < 2
        && role == Role::ControlPlane
    {
        faults.push(
            Diagnostic::warning("cpu-small", cpu.span, "one core is little for a control plane")
                .label("etcd and the API server share it")
                .why("when either waits for the other, the cluster elects leaders instead of working.")
                .help("write 2 or more."),
        );
    }
    if let Some(disk) = DiskFields::system(fields).size.is()
        && disk.value < minimum.disk
    {
        faults.push(
            Diagnostic::error(
                "disk-small",
                disk.span,
                format!(
                    "{} needs a system disk of {} or more, not {}",
                    minimum.name, minimum.disk, disk.value
                ),
            )
            .label("too small")
            .why(minimum.why_disk)
            .help(format!(
                "write {} or more; a disk can grow later, but never shrink.",
                minimum.disk
            )),
        );
    }
    if let Some(disks) = fields.sections(&keys::DISKS).is() {
        extra_disks(disks.span, &disks.value, faults);
    }
}

fn memory(minimum: &Minimum, fields: &Fields<'_>, role: Role, faults: &mut Vec<Diagnostic>) {
    const CONTROL_PLANE: Mib = Mib(4096);
    let Some(memory) = fields.spanned(&keys::MEMORY) else { return };
    if memory.value < minimum.memory {
        faults.push(
            Diagnostic::error(
                "memory-small",
                memory.span,
                format!(
                    "{} needs {} of memory or more, not {}",
                    minimum.name, minimum.memory, memory.value
                ),
            )
            .label("too little")
            .why(minimum.why_memory)
            .help(format!(
                "write {} or more.",
                if role == Role::ControlPlane {
                    CONTROL_PLANE
                } else {
                    minimum.memory
                }
            )),
        );
    } else if role == Role::ControlPlane && memory.value < CONTROL_PLANE {
        faults.push(
            Diagnostic::warning(
                "memory-small",
                memory.span,
                format!("{} is little for a control plane", memory.value),
            )
            .label("works, without reserve")
            .why("etcd, the API server and the rest of the control plane take about 2 GiB before the first pod runs.")
            .help(format!("write {CONTROL_PLANE} or more.")),
        );
    }
}

fn extra_disks(at: Span, disks: &[Fields<'_>], faults: &mut Vec<Diagnostic>) {
    if disks.len() > EXTRA_DISKS_MAX {
        faults.push(
            Diagnostic::error("disks", at, format!("{} extra disks do not fit", disks.len()))
                .label(format!("at most {EXTRA_DISKS_MAX}"))
                .why("the disks of a machine hang on one SCSI controller.")
                .help("use fewer and larger disks."),
        );
    }
    let mut seen = BTreeSet::new();
    for name in disks.iter().filter_map(|disk| disk.spanned(&keys::NAME)) {
        if name.value == "system" {
            faults.push(
                Diagnostic::error("disks", name.span, "a disk cannot be called `system`")
                    .label("taken")
                    .why("the guest finds disks by their name, and this one is the system disk's.")
                    .help("give it a name that says what it is for, like longhorn."),
            );
        } else if !seen.insert(name.value.clone()) {
            faults.push(
                Diagnostic::error("disks", name.span, format!("two disks are called `{}`", name.value))
                    .label("again")
                    .why("the guest finds disks by their name, and would take one for the other.")
                    .help("give each disk a name of its own."),
            );
        }
    }
}

fn iothreads(draft: &Draft<'_>, pool_of: &BTreeMap<&str, &NamedFields<'_>>, faults: &mut Vec<Diagnostic>) {
    let single = |fields: &Fields<'_>, pool: Option<&Fields<'_>>| {
        let scsi = fields
            .value(&keys::SCSI)
            .or_else(|| pool.and_then(|pool| pool.value(&keys::SCSI)));
        scsi == Some(ScsiController::VirtioScsiSingle)
    };
    let pools = draft.pools.iter().map(|pool| (&pool.fields, None));
    let machines = draft.machines.iter().map(|machine| {
        let pool = pool_of.get(machine.name);
        (&machine.fields, pool.map(|pool| &pool.fields))
    });
    for (fields, pool) in pools.chain(machines) {
        let extra = fields.sections(&keys::DISKS).value().unwrap_or_default();
        let disks = std::iter::once(DiskFields::system(fields).options).chain(extra);
        for iothread in disks.filter_map(|disk| disk.spanned(&keys::IOTHREAD)) {
            if iothread.value && !single(fields, pool) {
                faults.push(
                    Diagnostic::warning(
                        "iothread",
                        iothread.span,
                        "`iothread` has no effect with this SCSI controller",
                    )
                    .label("not used")
                    .why("only `virtio-scsi-single` gives each disk a controller, and with it a thread, of its own.")
                    .help("set `scsi: virtio-scsi-single` for the pool, or take it out."),
                );
            }
        }
    }
}

/// Longhorn volumes never attach without these two, which shows only when the first pod asks for one.
fn longhorn(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    if draft.distro() != Distro::Talos {
        return;
    }
    let disk = draft
        .pools
        .iter()
        .chain(&draft.machines)
        .filter_map(|named| named.fields.sections(&keys::DISKS).value())
        .flatten()
        .filter_map(|disk| disk.spanned(&keys::NAME))
        .find(|name| name.value == "longhorn");
    let extensions = draft.talos.items(&distro::EXTENSIONS);
    let has = |wanted: &str| {
        extensions
            .iter()
            .any(|extension| extension.value.trim_start_matches("siderolabs/") == wanted)
    };
    let missing: Vec<&str> = ["iscsi-tools", "util-linux-tools"]
        .into_iter()
        .filter(|wanted| !has(wanted))
        .collect();
    if let Some(name) = disk.filter(|_| !missing.is_empty()) {
        faults.push(
            Diagnostic::warning("longhorn", name.span, format!("Longhorn needs the extension{} {}", if missing.len() == 1 { "" } else { "s" }, missing.join(" and ")))
                .label("a disk for Longhorn")
                .why("Longhorn attaches volumes with tools that Talos has only as extensions; without them the first pod waits forever.")
                .help(format!("add {} to `talos.extensions`.", missing.join(" and "))),
        );
    }
}
