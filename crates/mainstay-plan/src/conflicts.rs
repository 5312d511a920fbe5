//! Reasons to do nothing at all: strangers in the way, what would hurt, what this version does not do.

use crate::builder::PlanBuilder;
use crate::context::{Context, Inputs};
use crate::desired::{Desired, DesiredMachine, running};
use crate::guest;
use crate::mark::Mark;
use crate::observed::{Guest, Observed, Seen};
use crate::ownership::{OwnedVm, VmLookup};
use crate::plan::{HoldReason, Refusal, RefusalKind};
use crate::step::Subject;
use crate::{vm_diff, volumes};

/// `import` of disk images, which every machine begins with.
const OLDEST_PVE: (u64, u64) = (8, 4);

/// What must hold before the VMs can be told apart.
pub(crate) fn check_preconditions(desired: &Desired, observed: &Observed, plan: &mut PlanBuilder) {
    if let Seen::Yes(false) | Seen::No = observed.quorate {
        plan.refuse(gate(
            Subject::Cluster,
            "the datacenter has no quorum",
            "PVE refuses most writes without it, and would destroy disks while it keeps their VMs.",
            "bring hosts back until `pvecm status` says Quorate: Yes.",
        ));
    }
    if let Some(why) = observed.vms.unknown() {
        plan.refuse(Refusal {
            kind: RefusalKind::Insufficient,
            ..gate(
                Subject::Cluster,
                "not every VM can be seen",
                format!("PVE hides what a token may not see, so a VM that is not listed may be there: {why}"),
                "give the token VM.Audit: mainstay grant",
            )
        });
    }
    without_secrets(desired, observed, plan);
}

/// Machines that bear our name, but no secrets to prove that they are ours.
fn without_secrets(desired: &Desired, observed: &Observed, plan: &mut PlanBuilder) {
    if desired.cluster_id.is_some() {
        return;
    }
    let configs = observed.vms.yes().into_iter().flatten().filter_map(|(_, vm)| vm.config.yes());
    let marks = configs.filter_map(|config| Mark::parse(&config.description));
    let named: Vec<Mark> = marks.filter(|mark| mark.cluster == desired.cluster).collect();
    if let Some(first) = named.first() {
        plan.refuse(gate(
            Subject::Cluster,
            format!(
                "found {} of cluster {}, but not its secrets file",
                crate::counts::count(named.len(), "machine"),
                desired.cluster
            ),
            format!("new secrets cannot access the running cluster (id {}).", first.cluster_id),
            "restore the secrets file next to cluster.yaml, or use another cluster name.",
        ));
    }
}

/// Refusals for `down`.
pub(crate) fn refuse_teardown(inputs: Inputs<'_>, plan: &mut PlanBuilder) {
    if inputs.desired.protect {
        let what = format!("cluster {} is protected", inputs.desired.cluster);
        plan.refuse(gate(
            Subject::Cluster,
            what,
            "cluster.yaml says `protect: true`.",
            "take `protect` out of cluster.yaml first.",
        ));
    }
    for (name, owned) in inputs.owned.ours.iter().filter(|(_, owned)| owned.config.protection) {
        let vmid = owned.vm.vmid;
        plan.refuse(gate(
            Subject::Machine(name.clone()),
            format!("{name} (VM {vmid}) is protected in PVE"),
            "the VM has PVE's protection flag; deleting only the others would leave a broken cluster.",
            format!("qm set {vmid} --protection 0"),
        ));
    }
}

/// Everything that stands against the cluster that is wanted.
pub(crate) fn refuse(ctx: Context<'_>, plan: &mut PlanBuilder) {
    old_pve(ctx.observed, plan);
    unknown_names(ctx, plan);
    missing_pool(ctx, plan);
    other_versions(ctx, plan);
    for machine in &ctx.cluster.machines {
        refuse_machine(ctx, machine, plan);
    }
    names(ctx, plan);
    vip(ctx, plan);
    lost_control_planes(ctx, plan);
}

/// A consent that names no machine is a slip, and what was meant would not be done.
fn unknown_names(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let policy = &ctx.desired.policy;
    let named = policy
        .skip_drain
        .iter()
        .chain(&policy.force_drain)
        .chain(&policy.despite)
        .chain(&policy.retry_upgrade);
    for name in named.filter(|name| ctx.owned.in_file(name).is_none() && !ctx.owned.ours.contains_key(*name)) {
        let machines: Vec<&str> = ctx.cluster.machines.iter().map(DesiredMachine::name).collect();
        plan.refuse(gate(
            Subject::Cluster,
            format!("there is no machine {name}"),
            "the command line names it.",
            format!("the machines are {}.", machines.join(", ")),
        ));
    }
}

/// Refused here, because on an older PVE the first import would fail after VMs were created.
fn old_pve(observed: &Observed, plan: &mut PlanBuilder) {
    if (observed.pve.major, observed.pve.minor) < OLDEST_PVE {
        let (major, minor) = OLDEST_PVE;
        plan.refuse(Refusal {
            kind: RefusalKind::Insufficient,
            ..gate(
                Subject::Cluster,
                format!("PVE {} is too old", observed.pve),
                format!("disk images are imported through the API, which PVE does since {major}.{minor}."),
                "upgrade the hosts.",
            )
        });
    }
}

/// PVE refuses a VM for a pool that it does not have with a text about permissions.
fn missing_pool(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let Some(pool) = ctx
        .cluster
        .resource_pool
        .as_ref()
        .filter(|_| ctx.observed.resource_pool == Seen::No)
    else {
        return;
    };
    let ends = pool.match_indices('/').map(|(at, _)| at).chain([pool.len()]);
    plan.refuse(Refusal {
        kind: RefusalKind::Insufficient,
        help: ends
            .map(|end| format!("pveum pool add {} --comment 'mainstay' || true", &pool[..end]))
            .collect(),
        ..gate(
            Subject::Cluster,
            format!("there is no resource pool {pool}"),
            "`datacenter.pool` names it, and PVE creates no pool with a VM.",
            "",
        )
    });
}

/// Versions that cannot be reached from what runs.
fn other_versions(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let (course, want) = (&ctx.cluster.course, &ctx.cluster.versions);
    let Some(runs) = ctx.desired.cluster_id.and_then(|id| running(ctx.observed, id)) else {
        return;
    };
    let distro = runs.distro;
    let key = format!("{distro}.version");
    let oldest = course.from.as_ref().unwrap_or(&runs);
    let pairs = [
        (key.as_str(), distro.title(), &oldest.release, &want.release),
        ("kubernetes", "Kubernetes", &oldest.kubernetes, &want.kubernetes),
    ];
    for (key, name, is, want) in pairs.into_iter().filter(|(_, _, is, want)| is != want) {
        if !guest::changes_versions(distro) {
            plan.refuse(gate(
                Subject::Cluster,
                format!("{name} cannot change from {is} to {want}"),
                format!(
                    "the cluster runs {name} {is}; this version of mainstay does no upgrades of {}.",
                    distro.title()
                ),
                format!("write `{key}: {is}`, or leave it out."),
            ));
        } else if (want.major, want.minor) < (is.major, is.minor) {
            plan.refuse(gate(
                Subject::Cluster,
                format!("{name} cannot go back from {is} to {want}"),
                "what a newer minor wrote to etcd and to its disks is not readable by an older one.",
                format!("write `{key}: {is}`, or leave it out."),
            ));
        }
    }
    if let (Err(why), false) = (&course.road, plan.is_refused()) {
        plan.refuse(gate(
            Subject::Cluster,
            format!("there is no way from {oldest} to {want}"),
            format!("{why}."),
            "choose versions that belong together: the reference of cluster.yaml lists them.",
        ));
    }
}

/// Everything that stands against one machine. All machines are checked, so that one run shows every conflict.
fn refuse_machine(ctx: Context<'_>, machine: &DesiredMachine, plan: &mut PlanBuilder) {
    match ctx.lookup(machine) {
        VmLookup::Unknown(_) => {}
        // The remains of a partly deleted VM are removed, so its settings do not matter.
        VmLookup::Found(owned) if owned.is_partially_deleted(ctx.observed) => {}
        VmLookup::Absent => absent(ctx, machine, plan),
        VmLookup::Found(owned) => {
            for unsupported in vm_diff::compare(ctx.cluster, machine, owned, None).unsupported {
                let what = format!("{}: {}", machine.name(), unsupported.what);
                plan.refuse(Refusal {
                    at: Some(machine.machine.at),
                    ..gate(machine.subject(), what, unsupported.why, unsupported.help)
                });
            }
            if owned.role().is_some_and(|role| role != machine.machine.role) {
                let what = format!("{} cannot become a {}", machine.name(), machine.machine.role);
                let why = "a control plane and a worker have different configs and disks.";
                plan.refuse(gate(machine.subject(), what, why, "give the new machine another name."));
            }
            if owned.vm.vmid != machine.machine.vmid {
                let reason = format!(
                    "it keeps VMID {}: a VM cannot change its VMID to {}",
                    owned.vm.vmid, machine.machine.vmid
                );
                plan.hold(machine.subject(), "change", HoldReason::accepted(reason));
            }
            if owned.runs() {
                foreign_guest(ctx, machine, plan);
            } else {
                foreign_address(ctx, machine, plan);
            }
        }
    }
}

/// The machine does not exist yet: its VMID, its address and the name of its cloud-init volume must be free.
fn absent(ctx: Context<'_>, machine: &DesiredMachine, plan: &mut PlanBuilder) {
    let vmid = machine.machine.vmid;
    let at = Some(machine.machine.at);
    if let Some(vm) = ctx.owned.all.get(&vmid) {
        let named = vm.name.as_deref().unwrap_or("without a name");
        let other = ctx
            .owned
            .ours
            .iter()
            .find(|(_, owned)| owned.vm.vmid == vmid)
            .map(|(name, _)| name);
        let why = match (other, ctx.owned.foreign.get(&vmid)) {
            (Some(name), _) => format!("it is {name} of this cluster, and a machine cannot be renamed."),
            (None, Some(why)) => format!("{why}."),
            (None, None) => "it does not carry our mark.".to_owned(),
        };
        let what = format!("VMID {vmid} of {} is taken by VM {named} on {}", machine.name(), vm.host);
        plan.refuse(Refusal {
            at,
            ..conflict(
                machine.subject(),
                what,
                why,
                "choose other VMIDs: `vmids` of the pool, or `vmid` of the machine.",
            )
        });
    } else if let Some(left) = leftover_seed(ctx.observed, vmid) {
        let what = format!(
            "VMID {vmid} of {} has a cloud-init volume without a VM: {left}",
            machine.name()
        );
        let why = "Proxmox VE gives the cloud-init drive of a new VM this name, so the VM could not be created.";
        plan.refuse(Refusal {
            at,
            ..conflict(
                machine.subject(),
                what,
                why,
                format!("if another Proxmox VE does not use it: pvesm free {left}"),
            )
        });
    }
    foreign_address(ctx, machine, plan);
}

/// A cloud-init volume of a VMID that no VM has, unless our journal says that it was ours: that one is freed. Every other volume has a
/// name that Proxmox VE does not give again while it exists, so it is only named.
fn leftover_seed(observed: &Observed, vmid: u32) -> Option<&str> {
    let leftovers = observed.leftovers.yes().into_iter().flatten();
    leftovers
        .filter(|left| !left.proved && volumes::is_cloud_init_volume(&left.volume))
        .find(|left| left.vmid == vmid)
        .map(|left| left.volume.as_str())
}

/// A foreign machine answers on an address of a machine of ours that does not run yet.
fn foreign_address(ctx: Context<'_>, machine: &DesiredMachine, plan: &mut PlanBuilder) {
    if let Some(Seen::Yes(answer)) = ctx.observed.answers.get(&machine.address()) {
        let what = format!("address {} of {} is already in use", machine.address(), machine.name());
        let why = format!("{}, but the machine does not run.", answer.text());
        let help = "free the address, or change the pool's `addresses`.";
        plan.refuse(Refusal {
            at: Some(machine.machine.at),
            ..conflict(machine.subject(), what, why, help)
        });
    }
}

/// Our machine runs, but another one waits for a config on its address: it gets nothing.
fn foreign_guest(ctx: Context<'_>, machine: &DesiredMachine, plan: &mut PlanBuilder) {
    let Some(Guest::AwaitingConfig {
        uuid: Seen::Yes(uuid), ..
    }) = ctx.guest(machine.name())
    else {
        return;
    };
    let ours = ctx.desired.uuid(machine.name());
    if *uuid != ours {
        let what = format!(
            "another machine in maintenance mode answers on {} of {}",
            machine.address(),
            machine.name()
        );
        let why = format!("its SMBIOS UUID is {uuid}, ours has {ours}; a config with secrets goes to ours only.");
        let help = "find the machine that has the address, and give it another.";
        plan.refuse(Refusal {
            at: Some(machine.machine.at),
            ..conflict(machine.subject(), what, why, help)
        });
    }
}

/// VMs of others that are called as a machine that does not exist yet.
fn names(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let unmade = |name: &str| ctx.owned.in_file(name).filter(|_| !ctx.owned.ours.contains_key(name));
    for vm in ctx.owned.all.values() {
        let Some(machine) = vm.name.as_deref().and_then(unmade) else {
            continue;
        };
        // One that sits on a VMID of ours is told about there, and one of ours that was renamed is renamed back.
        let ours = ctx.owned.ours.values().any(|owned| owned.vm.vmid == vm.vmid);
        if ours || ctx.desired.vmids.contains_key(&vm.vmid) {
            continue;
        }
        let what = format!("a VM called {} exists already: VM {} on {}", machine.name(), vm.vmid, vm.host);
        let why = ctx
            .owned
            .foreign
            .get(&vm.vmid)
            .map_or_else(|| "it does not carry our mark.".to_owned(), |why| format!("{why}."));
        let help = "rename it, or give the cluster another `name` or `names` pattern.";
        plan.refuse(Refusal {
            at: Some(machine.machine.at),
            ..conflict(machine.subject(), what, why, help)
        });
    }
}

/// Before a control plane of ours runs, no machine may answer on the cluster's VIP.
fn vip(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let Some(vip) = ctx.cluster.network.vip else { return };
    let runs = ctx.cluster.control_planes().any(|machine| {
        ctx.owned
            .ours
            .get(machine.name())
            .is_some_and(|owned| owned.runs() && owned.is_filled())
    });
    if let (false, Some(Seen::Yes(answer))) = (runs, ctx.observed.answers.get(&vip)) {
        let what = format!("VIP {vip} is already in use");
        let why = format!("{}, but no control plane of ours runs.", answer.text());
        plan.refuse(conflict(
            Subject::Cluster,
            what,
            why,
            "free the address, or choose another `network.vip`.",
        ));
    }
}

/// A worker's API runs on a certificate that a control plane gave it: one that runs while no control plane has a disk outlived them all.
fn lost_control_planes(ctx: Context<'_>, plan: &mut PlanBuilder) {
    let unknown = |machine: &DesiredMachine| matches!(ctx.lookup(machine), VmLookup::Unknown(_));
    let has_disk =
        |(name, owned): (&String, &OwnedVm<'_>)| owned.may_hold_data(ctx.observed) && ctx.is_control_plane(name, owned);
    let any_left = ctx.cluster.control_planes().any(unknown) || ctx.owned.ours.iter().any(has_disk);
    let orphan = ctx.cluster.machines.iter().find(|machine| {
        !machine.is_control_plane()
            && matches!(ctx.guest(machine.name()), Some(Guest::Running(node)) if node.uuid == ctx.desired.uuid(machine.name()))
    });
    if let (false, Some(worker)) = (any_left, orphan) {
        plan.refuse(gate(
            Subject::Cluster,
            "every control plane is gone",
            format!(
                "{} belongs to a cluster whose control planes are all gone; a new, empty etcd would not match it.",
                worker.name()
            ),
            "restore the control planes from a backup of their VMs; or give the cluster up: mainstay down, then mainstay up.",
        ));
    }
}

/// Something that mainstay could do and refuses, because it would do harm.
fn gate(subject: Subject, what: impl Into<String>, why: impl Into<String>, help: impl Into<String>) -> Refusal {
    Refusal {
        kind: RefusalKind::Gate,
        subject,
        what: what.into(),
        why: why.into(),
        help: vec![help.into()],
        at: None,
    }
}

/// Something of others is in the way.
fn conflict(subject: Subject, what: impl Into<String>, why: impl Into<String>, help: impl Into<String>) -> Refusal {
    Refusal {
        kind: RefusalKind::Conflict,
        ..gate(subject, what, why, help)
    }
}
