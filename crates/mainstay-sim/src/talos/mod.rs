//! Simulated Talos nodes, as guests of simulated VMs.

mod api;
mod apid;
mod boot;
mod config;
mod cosi;
mod disk;
pub(crate) mod etcd;
mod etcd_service;
mod events;
mod heartbeat;
mod kinds;
mod kubelet;
mod listen;
pub(crate) mod nocloud;
mod node;
pub(crate) mod objects;
mod rbac;
mod resources;
mod router;
mod sequence;
mod services;
mod shown;
mod site;
mod snapshot;
pub(crate) mod tls;
mod vip;

use std::sync::{Arc, Mutex};

use pve_sim::guest::{Guest, Guests, Hardware};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

pub use self::site::NodeFaults;

pub(crate) use self::apid::crash as crash_apid;
pub(crate) use self::config::{LinkAddress, Nic as NamedNic};
pub(crate) use self::etcd::Alarm;
pub(crate) use self::node::Node;
pub(crate) use self::site::{Site, standing};

use crate::cloud;

use self::node::Ending;
use self::sequence::Order;

/// Boots what is on the boot disk of a VM: a cloud image, Talos, or nothing.
pub(crate) struct Machines {
    pub site: Arc<Site>,
}

impl Guests for Machines {
    fn power_on(&self, hardware: Hardware) -> Box<dyn Guest> {
        if let Some(guest) = cloud::power_on(&self.site, &hardware) {
            return guest;
        }
        let mut machine = Machine {
            site: Arc::clone(&self.site),
            hardware,
            node: Arc::default(),
            life: None,
        };
        machine.begin();
        Box::new(machine)
    }
}

/// The node of the current boot, if one runs.
type Slot = Arc<Mutex<Option<Arc<Node>>>>;

struct Machine {
    site: Arc<Site>,
    hardware: Hardware,
    node: Slot,
    life: Option<JoinHandle<()>>,
}

impl Machine {
    fn begin(&mut self) {
        self.pull_plug();
        self.life = Some(tokio::spawn(live(
            Arc::clone(&self.site),
            self.hardware.clone(),
            Arc::clone(&self.node),
        )));
    }

    fn pull_plug(&mut self) {
        if let Some(life) = self.life.take() {
            life.abort();
        }
        if let Some(node) = self.node.lock().expect("plain data").take() {
            node.die();
        }
    }

    fn node(&self) -> Option<Arc<Node>> {
        self.node.lock().expect("plain data").clone()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.pull_plug();
    }
}

impl Guest for Machine {
    /// A shutdown without cordon and drain.
    fn press_power_button(&mut self) {
        if let Some(node) = self.node() {
            sequence::begin(&node, Order::shutdown(String::new(), true));
        }
    }

    fn reset(&mut self) {
        self.begin();
    }

    /// The agent is an extension of the image, and needs its channel.
    fn agent(&mut self, command: &str, _arguments: &Value) -> Option<Result<Value, String>> {
        let node = self.node()?;
        if !self.hardware.agent_channel || !node.is_up("ext-qemu-guest-agent") {
            return None;
        }
        Some(match command {
            "ping" => Ok(json!({})),
            "shutdown" => {
                self.press_power_button();
                Ok(json!({}))
            }
            "network-get-interfaces" => Ok(interfaces(&node)),
            "get-host-name" => Ok(json!({"host-name": node.hostname()})),
            "get-osinfo" => Ok(
                json!({"id": "talos", "name": "Talos", "version-id": format!("v{}", node.image.version), "kernel-release": "6.18.22-talos", "machine": "x86_64"}),
            ),
            "info" => Ok(json!({"version": "10.2.2", "supported_commands": []})),
            other => Err(format!("The command guest-{other} has not been found")),
        })
    }
}

fn interfaces(node: &Node) -> Value {
    let one = |address: &str, prefix: u8, kind: &str| json!({"ip-address": address, "ip-address-type": kind, "prefix": prefix});
    let mut list = vec![
        json!({"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": [one("127.0.0.1", 8, "ipv4"), one("::1", 128, "ipv6")]}),
    ];
    let state = node.lock();
    for nic in &node.nics {
        let own = state
            .addresses
            .iter()
            .filter(|address| address.link == nic.name)
            .map(|address| (address.address.addr(), address.address.prefix_len()));
        let shared = state
            .vips
            .iter()
            .filter(|(_, link)| **link == nic.name)
            .map(|(vip, _)| (*vip, 32));
        let addresses: Vec<Value> = own
            .chain(shared)
            .map(|(address, prefix)| one(&address.to_string(), prefix, if address.is_ipv4() { "ipv4" } else { "ipv6" }))
            .collect();
        list.push(json!({"name": nic.name, "hardware-address": nic.mac, "ip-addresses": addresses}));
    }
    Value::Array(list)
}

/// From power-on to power-off, over any number of reboots.
async fn live(site: Arc<Site>, hardware: Hardware, slot: Slot) {
    let mut firmware = true;
    loop {
        if firmware {
            site.pace.pass(site.timing.firmware).await;
        }
        let Some(node) = Node::boot(&site, &hardware, !firmware) else {
            // "No bootable device", or a medium that halts beside an installed system: the screen shows it for ever.
            return std::future::pending().await;
        };
        *slot.lock().expect("plain data") = Some(Arc::clone(&node));
        site.pace.pass(site.timing.kernel).await;
        let ending = tokio::select! {
            biased;
            ending = node.ended() => ending,
            () = boot::run(&node) => Ending::Off,
        };
        *slot.lock().expect("plain data") = None;
        node.die();
        match ending {
            Ending::Off => return hardware.power.off(),
            Ending::Reboot | Ending::PowerCycle => hardware.power.rebooted(),
        }
        firmware = ending == Ending::PowerCycle;
    }
}
