//! What befalls a run: the network, Proxmox VE, the machines, our own disk, and an administrator who means well.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::Duration;

use mainstay_net::Faults;
use mainstay_sim::NodeFaults;
use pve_sim::faults::{Fault, Rule};
use rand::{Rng, RngExt};
use tokio::time::{Instant, sleep};

use crate::stage::Stage;

const ENDPOINT_HOST: &str = "pve1";

/// The part of the world that weather may strike.
pub struct Field {
    pub hosts: Vec<String>,
    pub addresses: Vec<IpAddr>,
    pub machines: Vec<String>,
    pub vmids: BTreeSet<u32>,
}

/// Sets faults that last until the next change of weather.
pub fn brew(stage: &Stage, field: &Field, rng: &mut impl Rng) -> String {
    calm(stage, field);
    let mut told = Vec::new();
    if rng.random_bool(0.5) {
        let faults = network(rng);
        told.push(format!("{faults:?}"));
        stage.world.net().set_faults(faults);
    }
    for _ in 0..rng.random_range(0..=4) {
        let rule = rule(rng);
        told.push(format!("{} {:.2} {:?}", rule.call, rule.chance, rule.then));
        stage.world.datacenter().faults().add(rule);
    }
    if rng.random_bool(0.4) {
        let rule = worker(rng);
        told.push(format!("{} {:.2} {:?}", rule.call, rule.chance, rule.then));
        stage.world.datacenter().faults().add(rule);
    }
    if rng.random_bool(0.3) {
        told.push("our disk is full".into());
        stage.disk.set_full(true);
    }
    for machine in &field.machines {
        if rng.random_bool(0.3) {
            told.push(format!("{machine} loses answers"));
            stage.world.set_node_faults(machine, lost_answers(rng));
        }
    }
    told.join("; ")
}

/// Nothing is broken any more.
pub fn calm(stage: &Stage, field: &Field) {
    stage.world.net().set_faults(Faults::NONE);
    stage.world.net().repair();
    for address in &field.addresses {
        stage.world.net().end_black_hole(*address);
    }
    stage.world.datacenter().faults().clear();
    for host in &field.hosts {
        stage.world.datacenter().lab().set_proxy(host, true);
        stage.world.datacenter().lab().set_online(host, true);
    }
    stage.disk.set_full(false);
    for machine in &field.machines {
        stage.world.set_node_faults(machine, NodeFaults::default());
    }
}

fn network(rng: &mut impl Rng) -> Faults {
    let chance = |rng: &mut dyn Rng| {
        if rng.random_bool(0.5) {
            rng.random_range(0.0..0.08)
        } else {
            0.0
        }
    };
    Faults {
        latency: Duration::from_millis(rng.random_range(0..5))..=Duration::from_millis(rng.random_range(5..400)),
        refuse: chance(rng),
        black_hole: chance(rng),
        reset: chance(rng),
        reset_after: Duration::ZERO..=Duration::from_secs(rng.random_range(1..60)),
    }
}

fn rule(rng: &mut impl Rng) -> Rule {
    let lock = "can't lock file '/var/lock/qemu-server/lock-2000.conf' - got timeout";
    let calls = [
        "POST /nodes/{node}/qemu",
        "POST /nodes/{node}/qemu/{vmid}/config",
        "PUT /nodes/{node}/qemu/{vmid}/config",
        "PUT /nodes/{node}/qemu/{vmid}/resize",
        "POST /nodes/{node}/qemu/{vmid}/status/start",
        "POST /nodes/{node}/storage/{storage}/download-url",
        "DELETE /nodes/{node}/qemu/{vmid}",
        "POST /nodes/{node}/qemu/{vmid}/status/stop",
    ];
    let answer = |status, reason: &str| Fault::ReplaceAnswer {
        status,
        reason: reason.into(),
    };
    let refuse = |status, reason: &str| Fault::Refuse {
        status,
        reason: reason.into(),
    };
    let then = match rng.random_range(0..8) {
        0 => Fault::CutBefore,
        1 | 2 => Fault::CutAfter,
        3 => answer(596, "Connection timed out"),
        4 => refuse(595, "Connection refused"),
        5 => refuse(500, "proxy handler failed: Broken pipe"),
        6 => Fault::Delay {
            seconds: rng.random_range(0.1..45.0),
        },
        _ => refuse(500, lock),
    };
    // A lock is waited for by what changes something; anything else can befall every call.
    let one = matches!(&then, Fault::Refuse { status: 500, .. }) || rng.random_bool(0.6);
    Rule {
        call: if one {
            calls[rng.random_range(0..calls.len())].into()
        } else {
            "*".into()
        },
        path: None,
        from: rng.random_range(1..4),
        times: None,
        chance: if one {
            rng.random_range(0.1..0.9)
        } else {
            rng.random_range(0.005..0.08)
        },
        then,
    }
}

/// A worker that fails. Those whose end leaves nothing half done are also killed; what a killed creation leaves only root can unlock.
fn worker(rng: &mut impl Rng) -> Rule {
    let kinds = ["qmcreate", "qmconfig", "qmstart", "download", "qmdestroy"];
    let kind = kinds[rng.random_range(0..kinds.len())];
    let seconds = rng.random_range(0.0..5.0);
    let then = if ["qmstart", "download"].contains(&kind) && rng.random_bool(0.5) {
        Fault::KillTask { seconds }
    } else {
        Fault::FailTask {
            seconds,
            error: "unable to open file - Input/output error".into(),
        }
    };
    Rule {
        call: format!("task {kind}"),
        path: None,
        from: 1,
        times: None,
        chance: rng.random_range(0.1..0.9),
        then,
    }
}

fn lost_answers(rng: &mut impl Rng) -> NodeFaults {
    NodeFaults {
        lose_apply_answers: rng.random_range(0..3),
        lose_bootstrap_answers: rng.random_range(0..3),
        clock_skew: if rng.random_bool(0.2) {
            rng.random_range(-600..600)
        } else {
            0
        },
        ..NodeFaults::default()
    }
}

/// Things that happen one after the other until the time is over.
pub async fn trouble(stage: &Stage, field: &Field, rng: &mut impl Rng, lasts: Duration) -> Vec<String> {
    let end = Instant::now() + lasts;
    let mut told = Vec::new();
    loop {
        let pause = Duration::from_millis(rng.random_range(100..40_000));
        if Instant::now() + pause >= end {
            tokio::time::sleep_until(end).await;
            return told;
        }
        sleep(pause).await;
        let act = strike(stage, field, rng).await;
        told.push(act);
    }
}

async fn strike(stage: &Stage, field: &Field, rng: &mut impl Rng) -> String {
    let datacenter = stage.world.datacenter();
    let lab = datacenter.lab();
    let address = field.addresses[rng.random_range(0..field.addresses.len())];
    let host = field.hosts[rng.random_range(0..field.hosts.len())].clone();
    let moment = Duration::from_millis(rng.random_range(200..25_000));
    match rng.random_range(0..9) {
        0 => {
            stage.world.net().reset(address);
            format!("reset {address}")
        }
        1 => {
            stage.world.net().black_hole(address);
            sleep(moment).await;
            stage.world.net().end_black_hole(address);
            format!("black hole {address} {moment:?}")
        }
        2 => {
            lab.set_proxy(&host, false);
            sleep(moment).await;
            lab.set_proxy(&host, true);
            format!("proxy of {host} down {moment:?}")
        }
        3 if host != ENDPOINT_HOST => {
            lab.set_online(&host, false);
            sleep(moment).await;
            lab.set_online(&host, true);
            format!("{host} off {moment:?}")
        }
        4 => {
            lab.hold_storage_lock(&host, "local-lvm", moment).await;
            format!("storage lock on {host} held {moment:?}")
        }
        5 => {
            stage.disk.set_full(rng.random_bool(0.5));
            "our disk".into()
        }
        _ => match idle_machine(stage, field, rng) {
            Some(vmid) => administer(stage, field, rng, vmid, moment).await,
            None => "nothing".into(),
        },
    }
}

/// One of ours on which no task works: an administrator's tools wait for those.
fn idle_machine(stage: &Stage, field: &Field, rng: &mut impl Rng) -> Option<u32> {
    let now = stage.world.datacenter().inspect();
    let busy = |vmid: &u32| {
        now.tasks
            .iter()
            .any(|task| task.exit.is_none() && task.id == vmid.to_string())
    };
    let idle: Vec<u32> = now
        .vms
        .iter()
        .filter(|(vmid, vm)| field.vmids.contains(vmid) && !busy(vmid) && !vm.config.contains_key("lock"))
        .map(|(vmid, _)| *vmid)
        .collect();
    (!idle.is_empty()).then(|| idle[rng.random_range(0..idle.len())])
}

async fn administer(stage: &Stage, field: &Field, rng: &mut impl Rng, vmid: u32, moment: Duration) -> String {
    let lab = stage.world.datacenter().lab();
    let host = &field.hosts[rng.random_range(0..field.hosts.len())];
    match rng.random_range(0..4) {
        0 => {
            lab.kill_vm(vmid);
            format!("{vmid} stopped")
        }
        1 => {
            lab.kill_vm(vmid);
            lab.move_vm(vmid, host);
            format!("{vmid} moved to {host}")
        }
        2 => {
            lab.hold_vm_lock(vmid, moment).await;
            format!("lock of {vmid} held {moment:?}")
        }
        _ => {
            lab.set_config(vmid, "name", "renamed");
            format!("{vmid} renamed")
        }
    }
}
