//! A cloud guest as the datacenter sees it.

use std::sync::{Arc, Mutex};

use pve_sim::guest::{Guest, Hardware};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::boot;
use super::disk::SystemDisk;
use super::host::{Ending, Host};
use crate::talos::Site;

/// The host of the current boot, if one runs.
type Slot = Arc<Mutex<Option<Arc<Host>>>>;

struct CloudGuest {
    site: Arc<Site>,
    hardware: Hardware,
    slot: Slot,
    life: Option<JoinHandle<()>>,
}

/// The guest of a VM whose boot disk holds a cloud image.
pub(crate) fn power_on(site: &Arc<Site>, hardware: &Hardware) -> Option<Box<dyn Guest>> {
    SystemDisk::find(hardware)?;
    let mut guest = CloudGuest {
        site: Arc::clone(site),
        hardware: hardware.clone(),
        slot: Slot::default(),
        life: None,
    };
    guest.begin();
    Some(Box::new(guest))
}

impl CloudGuest {
    fn begin(&mut self) {
        self.pull_plug();
        self.life = Some(tokio::spawn(live(
            Arc::clone(&self.site),
            self.hardware.clone(),
            Arc::clone(&self.slot),
        )));
    }

    fn pull_plug(&mut self) {
        if let Some(life) = self.life.take() {
            life.abort();
        }
        if let Some(host) = self.slot.lock().expect("plain data").take() {
            host.die();
        }
    }

    fn host(&self) -> Option<Arc<Host>> {
        self.slot.lock().expect("plain data").clone()
    }
}

impl Drop for CloudGuest {
    fn drop(&mut self) {
        self.pull_plug();
    }
}

impl Guest for CloudGuest {
    fn press_power_button(&mut self) {
        if let Some(host) = self.host() {
            host.end(Ending::Off);
        }
    }

    fn reset(&mut self) {
        self.begin();
    }

    /// The agent is a package that the images do not have.
    fn agent(&mut self, command: &str, _arguments: &Value) -> Option<Result<Value, String>> {
        let host = self.host()?;
        if !self.hardware.agent_channel || host.lock().booting || !super::tools::is_installed(&host, "qemu-guest-agent") {
            return None;
        }
        Some(match command {
            "ping" => Ok(json!({})),
            "shutdown" => {
                self.press_power_button();
                Ok(json!({}))
            }
            "network-get-interfaces" => Ok(interfaces(&host)),
            "get-host-name" => Ok(json!({"host-name": host.hostname()})),
            "get-osinfo" => Ok(
                json!({"id": host.image.os, "pretty-name": host.image.pretty_name(), "version-id": host.image.release, "kernel-release": host.image.kernel(), "machine": "x86_64"}),
            ),
            "info" => Ok(json!({"version": "8.2.2", "supported_commands": []})),
            other => Err(format!("The command guest-{other} has not been found")),
        })
    }

    fn releases_devices(&self) -> bool {
        self.host().is_some_and(|host| !host.lock().booting)
    }
}

fn interfaces(host: &Host) -> Value {
    let one = |address: &str, prefix: u8| json!({"ip-address": address, "ip-address-type": "ipv4", "prefix": prefix});
    let mut list = vec![json!({"name": "lo", "hardware-address": "00:00:00:00:00:00", "ip-addresses": [one("127.0.0.1", 8)]})];
    let state = host.lock();
    for (index, (name, net)) in state.addresses.iter().enumerate() {
        let own = one(&net.addr().to_string(), net.prefix_len());
        let extra = state
            .extra
            .iter()
            .filter(|_| index == 0)
            .map(|address| one(&address.to_string(), 32));
        let addresses: Vec<Value> = [own].into_iter().chain(extra).collect();
        let mac = host.hardware.nics.get(index).map(|nic| nic.mac.to_lowercase());
        list.push(json!({"name": name, "hardware-address": mac, "ip-addresses": addresses}));
    }
    Value::Array(list)
}

/// From power-on to power-off, over any number of reboots.
async fn live(site: Arc<Site>, hardware: Hardware, slot: Slot) {
    loop {
        site.pace.pass(site.timing.firmware + site.timing.kernel).await;
        let Some(host) = SystemDisk::find(&hardware).and_then(|disk| Host::new(&site, &hardware, disk)) else {
            return std::future::pending().await;
        };
        *slot.lock().expect("plain data") = Some(Arc::clone(&host));
        let ending = tokio::select! {
            biased;
            ending = host.ended() => ending,
            () = boot::run(&host) => Ending::Off,
        };
        site.pace.pass(site.timing.cloud.shutdown).await;
        *slot.lock().expect("plain data") = None;
        host.die();
        match ending {
            Ending::Off => return hardware.power.off(),
            Ending::Reboot => hardware.power.rebooted(),
        }
    }
}
