//! Two guests that need no operating system of their own: one that never reacts, and one with an agent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::guest::{Guest, Guests, Hardware};

/// Firmware that found nothing to boot: no agent, deaf to the power button.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoOs;

impl Guests for NoOs {
    fn power_on(&self, _hardware: Hardware) -> Box<dyn Guest> {
        Box::new(Deaf)
    }
}

struct Deaf;

impl Guest for Deaf {
    fn reset(&mut self) {}
}

/// A small Linux with a guest agent on disks that `knows` says carry it; on all others, [`NoOs`].
pub struct AgentOs<F> {
    pub knows: F,
    /// From power-on until the agent answers.
    pub boot: Duration,
}

impl<F: Fn(&Hardware) -> bool + Send + Sync + 'static> Guests for AgentOs<F> {
    fn power_on(&self, hardware: Hardware) -> Box<dyn Guest> {
        if !(self.knows)(&hardware) {
            return NoOs.power_on(hardware);
        }
        let boot = hardware.pace.scale(self.boot);
        Box::new(Linux {
            up: Instant::now() + boot,
            boot,
            hardware,
            files: BTreeMap::new(),
            runs: BTreeMap::new(),
            next_pid: 300,
        })
    }
}

struct Linux {
    hardware: Hardware,
    boot: Duration,
    up: Instant,
    files: BTreeMap<String, String>,
    runs: BTreeMap<i64, String>,
    next_pid: i64,
}

impl Guest for Linux {
    fn press_power_button(&mut self) {
        if Instant::now() >= self.up {
            self.power_down();
        }
    }

    fn reset(&mut self) {
        self.up = Instant::now() + self.boot;
    }

    fn agent(&mut self, command: &str, arguments: &Value) -> Option<Result<Value, String>> {
        if Instant::now() < self.up || !self.hardware.agent_channel {
            return None;
        }
        Some(self.answer(command, arguments))
    }

    fn releases_devices(&self) -> bool {
        Instant::now() >= self.up
    }

    fn hardware_changed(&mut self, hardware: &Hardware) {
        self.hardware.nics.clone_from(&hardware.nics);
    }
}

impl Linux {
    fn power_down(&self) {
        let (power, pace) = (self.hardware.power.clone(), self.hardware.pace);
        tokio::spawn(async move {
            pace.pass(Duration::from_secs(2)).await;
            power.off();
        });
    }

    fn answer(&mut self, command: &str, arguments: &Value) -> Result<Value, String> {
        let text = |name: &str| arguments[name].as_str().unwrap_or_default().to_string();
        match command {
            "ping" => Ok(json!({})),
            "shutdown" => {
                self.power_down();
                Ok(json!({}))
            }
            "get-host-name" => Ok(json!({ "host-name": self.hardware.name })),
            "get-osinfo" => {
                Ok(json!({ "kernel-release": "6.12.0", "kernel-version": "#1 SMP PREEMPT_DYNAMIC", "machine": "x86_64" }))
            }
            "info" => Ok(info()),
            "get-users" => Ok(json!([])),
            "fsfreeze-status" => Ok(json!("thawed")),
            "network-get-interfaces" => Ok(self.interfaces()),
            "exec" => self.exec(arguments),
            "exec-status" => self.exec_status(arguments["pid"].as_i64().unwrap_or_default()),
            "file-write" => {
                self.files.insert(text("file"), text("content"));
                Ok(json!({}))
            }
            "file-read" => {
                let name = text("file");
                let missing = || format!("failed to open file '{name}' (mode: 'r'): No such file or directory");
                self.files.get(&name).map(|content| json!(content)).ok_or_else(missing)
            }
            other => Err(format!("The command guest-{other} has not been found")),
        }
    }

    /// Only busybox is installed, and of it only `echo`.
    fn exec(&mut self, arguments: &Value) -> Result<Value, String> {
        let words: Vec<&str> = arguments["command"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let ["/bin/busybox", "echo", rest @ ..] = words.as_slice() else {
            let program = words.first().copied().unwrap_or_default();
            return Err(format!(
                "Failed to execute child process \u{201c}{program}\u{201d} (No such file or directory)"
            ));
        };
        self.next_pid += 1;
        self.runs.insert(self.next_pid, format!("{}\n", rest.join(" ")));
        Ok(json!({ "pid": self.next_pid }))
    }

    fn exec_status(&mut self, pid: i64) -> Result<Value, String> {
        match self.runs.remove(&pid) {
            Some(output) => Ok(json!({ "exited": 1, "exitcode": 0, "out-data": output, "out-truncated": 0 })),
            None => Err("PID ld does not exist".into()),
        }
    }

    fn interfaces(&self) -> Value {
        let counters = json!({
            "rx-bytes": 0, "rx-packets": 0, "rx-errs": 0, "rx-dropped": 0, "tx-bytes": 0, "tx-packets": 0, "tx-errs": 0, "tx-dropped": 0,
        });
        let mut list = vec![json!({
            "name": "lo", "hardware-address": "00:00:00:00:00:00", "statistics": counters,
            "ip-addresses": [
                { "ip-address": "127.0.0.1", "ip-address-type": "ipv4", "prefix": 8 },
                { "ip-address": "::1", "ip-address-type": "ipv6", "prefix": 128 },
            ],
        })];
        for (index, nic) in self.hardware.nics.iter().enumerate() {
            let mut entry = json!({ "name": format!("eth{index}"), "hardware-address": nic.mac.to_lowercase() });
            if let Some((address, prefix)) = self.address_of(index) {
                entry["statistics"] = counters.clone();
                entry["ip-addresses"] = json!([
                    { "ip-address": address, "ip-address-type": "ipv4", "prefix": prefix },
                    { "ip-address": link_local(&nic.mac), "ip-address-type": "ipv6", "prefix": 64 },
                ]);
            }
            list.push(entry);
        }
        Value::Array(list)
    }

    /// The static address that the cloud-init drive gives a card.
    fn address_of(&self, index: usize) -> Option<(String, u32)> {
        let config = &self.hardware.cloud_init.as_ref()?.network_config;
        let section = config
            .split("- type: physical")
            .find(|s| s.contains(&format!("name: eth{index}\n")))?;
        let field = |name: &str| Some(section.split(&format!(" {name}: '")).nth(1)?.split('\'').next()?.to_string());
        let mask: std::net::Ipv4Addr = field("netmask")?.parse().ok()?;
        Some((field("address")?, u32::from(mask).count_ones()))
    }
}

/// What this agent can do.
fn info() -> Value {
    let silent = ["guest-shutdown"];
    let commands = [
        "guest-exec",
        "guest-exec-status",
        "guest-file-read",
        "guest-file-write",
        "guest-fsfreeze-status",
        "guest-get-host-name",
        "guest-get-osinfo",
        "guest-get-users",
        "guest-info",
        "guest-network-get-interfaces",
        "guest-ping",
        "guest-shutdown",
    ];
    let entry = |name: &&str| json!({ "name": name, "enabled": true, "success-response": !silent.contains(name) });
    json!({ "version": "10.0.13", "supported_commands": commands.iter().map(entry).collect::<Vec<_>>() })
}

/// EUI-64 from the card's address.
fn link_local(mac: &str) -> String {
    let octets: Vec<u16> = mac.split(':').filter_map(|o| u16::from_str_radix(o, 16).ok()).collect();
    let &[a, b, c, d, e, f] = octets.as_slice() else {
        return String::new();
    };
    let groups = [(a ^ 2) << 8 | b, c << 8 | 0xff, 0xfe00 | d, e << 8 | f];
    std::net::Ipv6Addr::new(0xfe80, 0, 0, 0, groups[0], groups[1], groups[2], groups[3]).to_string()
}
