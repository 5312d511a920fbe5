//! What befalls a run: the network, Proxmox VE, the machines, our own disk, and an administrator who means well.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use mainstay_net::NetFaults;
use mainstay_sim::{FactoryFaults, NodeFaults};
use pve_sim::faults::{Fault, Rule};
use rand::{Rng, RngExt};
use tokio::time::{Instant, sleep};

use super::admin::{administer, clear_out, hide_kubernetes};
use super::disks::turn_up;
use super::watch::Watch;
use crate::stage::Stage;

const ENDPOINT_HOST: &str = "pve1";

/// The part of the world that weather may strike.
pub struct Field {
    pub hosts: Vec<String>,
    /// Of hosts and machines.
    pub addresses: Vec<IpAddr>,
    /// Our machines by VMID.
    pub guests: BTreeMap<u32, Guest>,
    pub vip: IpAddr,
    /// Disks of others turn up.
    pub disks: bool,
}

pub struct Guest {
    pub name: String,
    pub address: IpAddr,
    pub control_plane: bool,
}

impl Field {
    pub fn is_control_plane(&self, vmid: u32) -> bool {
        self.guests.get(&vmid).is_some_and(|guest| guest.control_plane)
    }

    /// Where Kubernetes is served.
    fn servers(&self) -> Vec<IpAddr> {
        let own = self.guests.values().filter(|guest| guest.control_plane);
        own.map(|guest| guest.address).chain([self.vip]).collect()
    }
}

/// Sets faults that last until the next change of weather.
pub fn brew(stage: &Stage, field: &Field, watch: &Watch, rng: &mut impl Rng) -> String {
    calm(stage, field, watch);
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
    if rng.random_bool(0.1) {
        told.push("the factory is away".into());
        let outage = true;
        stage.world.factory().set_faults(FactoryFaults {
            outage,
            ..FactoryFaults::default()
        });
    }
    if rng.random_bool(0.3) {
        told.push("our disk is full".into());
        stage.set_full(true);
    }
    for Guest { name: machine, .. } in field.guests.values() {
        if rng.random_bool(0.3) {
            let faults = bad_day(rng);
            told.push(format!("{machine} has {faults:?}"));
            stage.world.set_node_faults(machine, faults);
        }
    }
    told.join("; ")
}

/// Nothing is broken any more.
pub fn calm(stage: &Stage, field: &Field, watch: &Watch) {
    stage.world.net().set_faults(NetFaults::NONE);
    stage.world.net().repair();
    stage.world.factory().set_faults(FactoryFaults::default());
    clear_out(stage, watch);
    for server in field.servers() {
        hide_kubernetes(stage, server, false);
    }
    for address in &field.addresses {
        stage.world.net().end_black_hole(*address);
    }
    stage.world.datacenter().faults().clear();
    for host in &field.hosts {
        stage.world.datacenter().lab().set_proxy(host, true);
        stage.world.datacenter().lab().set_online(host, true);
    }
    stage.world.datacenter().lab().join_links();
    stage.world.datacenter().lab().take_space("local-lvm", 0);
    stage.set_full(false);
    for Guest { name: machine, .. } in field.guests.values() {
        stage.world.set_node_faults(machine, NodeFaults::default());
    }
}

fn network(rng: &mut impl Rng) -> NetFaults {
    let chance = |rng: &mut dyn Rng| {
        if rng.random_bool(0.5) {
            rng.random_range(0.0..0.08)
        } else {
            0.0
        }
    };
    NetFaults {
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
    let then = match rng.random_range(0..10) {
        0 => Fault::CutBefore,
        1 | 2 => Fault::CutAfter,
        3 => answer(596, "Connection timed out"),
        4 => refuse(595, "Connection refused"),
        5 => refuse(500, "proxy handler failed: Broken pipe"),
        6 => Fault::Delay {
            seconds: rng.random_range(0.1..45.0),
        },
        7 => refuse(403, "Permission check failed (/vms/2000, VM.Allocate)"),
        8 => refuse(401, "authentication failure"),
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

fn bad_day(rng: &mut impl Rng) -> NodeFaults {
    NodeFaults {
        lose_apply_answers: rng.random_range(0..3),
        lose_bootstrap_answers: rng.random_range(0..3),
        clock_skew: if rng.random_bool(0.2) {
            rng.random_range(-600..600)
        } else {
            0
        },
        no_time_sync: rng.random_bool(0.1),
        trustd_blocked: rng.random_bool(0.1),
        no_promotion: rng.random_bool(0.1),
        image_not_found: rng.random_bool(0.1),
        ..NodeFaults::default()
    }
}

/// Things that happen one after the other until the time is over.
pub async fn trouble(stage: &Stage, field: &Field, watch: &Watch, rng: &mut impl Rng, lasts: Duration, told: &mut Vec<String>) {
    let end = Instant::now() + lasts;
    loop {
        let pause = Duration::from_millis(rng.random_range(100..40_000));
        if Instant::now() + pause >= end {
            tokio::time::sleep_until(end).await;
            return;
        }
        sleep(pause).await;
        watch.harmed();
        let act = strike(stage, field, watch, rng).await;
        watch.harmed();
        told.push(act);
    }
}

async fn strike(stage: &Stage, field: &Field, watch: &Watch, rng: &mut impl Rng) -> String {
    let datacenter = stage.world.datacenter();
    let lab = datacenter.lab();
    let address = field.addresses[rng.random_range(0..field.addresses.len())];
    let host = field.hosts[rng.random_range(0..field.hosts.len())].clone();
    let moment = Duration::from_millis(rng.random_range(200..25_000));
    match rng.random_range(0..14) {
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
            stage.set_full(rng.random_bool(0.5));
            "our disk".into()
        }
        6 => {
            let other = field.addresses[rng.random_range(0..field.addresses.len())];
            stage.world.net().partition(address, other);
            sleep(moment).await;
            stage.world.net().repair_between(address, other);
            format!("{address} and {other} apart {moment:?}")
        }
        7 => {
            let servers = field.servers();
            servers.iter().for_each(|server| hide_kubernetes(stage, *server, true));
            sleep(moment).await;
            servers.iter().for_each(|server| hide_kubernetes(stage, *server, false));
            format!("Kubernetes away {moment:?}")
        }
        8 if field.hosts.len() > 1 => {
            lab.cut_links();
            sleep(moment).await;
            lab.join_links();
            format!("no quorum {moment:?}")
        }
        9 => {
            lab.take_space("local-lvm", 1 << 40);
            sleep(moment).await;
            lab.take_space("local-lvm", 0);
            format!("local-lvm full {moment:?}")
        }
        _ if field.disks && rng.random_bool(0.5) => turn_up(stage, field, watch, rng),
        _ => administer(stage, field, watch, rng, moment).await,
    }
}
