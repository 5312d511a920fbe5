//! cloud-init: how a guest reads the NoCloud drive, and what it makes of it.

use std::sync::Arc;

use ipnet::IpNet;
use mainstay_net::sshd::ed25519_key;
use pve_sim::guest::CloudInitFiles;
use russh::keys::ssh_key::LineEnding;
use serde_json::{Value, json};

use super::fs::Credentials;
use super::host::{Host, Stage};
use crate::talos::nocloud::Platform;
use crate::talos::{LinkAddress, NamedNic};
use crate::yaml;

const DISABLED: &str = "/etc/cloud/cloud-init.disabled";
const INSTANCE: &str = "/var/lib/cloud/data/instance-id";
const NETWORK: &str = "/etc/netplan/50-cloud-init.yaml";
const HOMES: &str = "/home";
pub(crate) const HOST_KEY: &str = "/etc/ssh/ssh_host_ed25519_key";

/// What ds-identify and the local stage found.
pub(crate) struct Found {
    user: Value,
    network: Value,
    instance: String,
    /// The instance is another than the one this disk was set up for.
    pub is_new: bool,
}

/// Looks for the drive; `None` leaves cloud-init disabled for this boot.
pub(crate) fn detect(host: &Host) -> Option<Found> {
    if host.fs.exists(DISABLED) {
        return None;
    }
    let files: &CloudInitFiles = host.hardware.cloud_init.as_ref()?;
    let parse = |text: &str| yaml::parse(text).unwrap_or_default();
    let instance = parse(&files.meta_data)["instance-id"].as_str()?.to_owned();
    let is_new = host.fs.text(INSTANCE).is_none_or(|known| known.trim() != instance);
    Some(Found {
        user: parse(&files.user_data),
        network: parse(&files.network_config),
        instance,
        is_new,
    })
}

/// Renders the network of a new instance. An old one keeps what was rendered for it.
pub(crate) fn local_stage(host: &Host, found: &Found) {
    host.lock().cloud_init = Stage::Running;
    write_status(host, "local", false);
    if !found.is_new {
        return;
    }
    let now = host.now();
    host.fs.install(NETWORK, render_network(host, &found.network), 0o600, now);
    host.fs.install(INSTANCE, format!("{}\n", found.instance), 0o644, now);
    let directory = format!("/var/lib/cloud/instances/{}", found.instance);
    let _ = host.fs.make_directories(Credentials::ROOT, &directory, 0o755, now);
    let _ = host.fs.remove(Credentials::ROOT, "/var/lib/cloud/instance");
    let _ = host.fs.link(Credentials::ROOT, &directory, "/var/lib/cloud/instance", now);
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// Netplan, with the cards under the names that the drive gives them.
fn render_network(host: &Host, network: &Value) -> String {
    let files = host.hardware.cloud_init.clone().unwrap_or_default();
    let nics = named_nics(host, network);
    let platform = Platform::read(Some(&files), &nics).unwrap_or_default();
    let search: Vec<&Value> = list(&network["config"]).flat_map(|entry| list(&entry["search"])).collect();
    let mut ethernets = json!({});
    for nic in &nics {
        let own = |address: &&LinkAddress| address.link == nic.name;
        let addresses: Vec<String> = platform
            .addresses
            .iter()
            .filter(own)
            .map(|address| address.address.to_string())
            .collect();
        let mentioned = list(&network["config"]).any(|entry| entry["name"] == nic.name.as_str());
        if !mentioned {
            continue;
        }
        let mut entry = json!({"match": {"macaddress": nic.mac}, "set-name": nic.name});
        if addresses.is_empty() {
            entry["dhcp4"] = json!(true);
        } else {
            entry["addresses"] = json!(addresses);
            entry["nameservers"] = json!({"addresses": platform.resolvers, "search": search});
            if let Some(gateway) = platform.gateway {
                entry["routes"] = json!([{"to": "default", "via": gateway}]);
            }
        }
        ethernets[&nic.name] = entry;
    }
    yaml::emit(&json!({"network": {"version": 2, "ethernets": ethernets}}))
}

/// Cards by MAC; a card that the drive does not mention keeps the kernel's name.
fn named_nics(host: &Host, network: &Value) -> Vec<NamedNic> {
    let name_of = |mac: &str| {
        let entry = list(&network["config"]).find(|entry| {
            entry["mac_address"]
                .as_str()
                .is_some_and(|known| known.eq_ignore_ascii_case(mac))
        });
        entry.and_then(|entry| entry["name"].as_str()).map(str::to_owned)
    };
    let cards = host.hardware.nics.iter().enumerate();
    cards
        .map(|(index, nic)| NamedNic {
            name: name_of(&nic.mac).unwrap_or_else(|| format!("ens{}", 18 + index)),
            mac: nic.mac.to_ascii_lowercase(),
        })
        .collect()
}

/// networkd brings up what netplan says. A card whose MAC is not there stays down, and so does one without a DHCP server.
pub(crate) fn bring_up_network(host: &Arc<Host>) {
    let text = host.fs.text(NETWORK).unwrap_or_default();
    let netplan = yaml::parse(&text).unwrap_or_default();
    for (name, entry) in netplan["network"]["ethernets"].as_object().into_iter().flatten() {
        let mac = entry["match"]["macaddress"].as_str().unwrap_or_default();
        let Some(nic) = host.hardware.nics.iter().find(|nic| nic.mac.eq_ignore_ascii_case(mac)) else {
            continue;
        };
        if nic.link_down {
            continue;
        }
        for address in list(&entry["addresses"]).filter_map(|text| text.as_str()?.parse::<IpNet>().ok()) {
            host.lock().addresses.push((name.clone(), address));
            host.add_address(address.addr());
        }
        if let Some(gateway) = list(&entry["routes"]).find_map(|route| route["via"].as_str()?.parse().ok()) {
            host.lock().gateway = Some(gateway);
        }
        let servers: Vec<&str> = list(&entry["nameservers"]["addresses"]).filter_map(Value::as_str).collect();
        let mut resolv: String = servers.iter().map(|server| format!("nameserver {server}\n")).collect();
        let search: Vec<&str> = list(&entry["nameservers"]["search"]).filter_map(Value::as_str).collect();
        if !search.is_empty() {
            resolv.push_str(&format!("search {}\n", search.join(" ")));
        }
        let now = host.now();
        host.fs.install("/run/systemd/resolve/resolv.conf", resolv, 0o644, now);
        host.fs
            .install("/run/systemd/resolve/stub-resolv.conf", "nameserver 127.0.0.53\n", 0o644, now);
    }
}

/// Names, users, keys and the size of the root file system.
pub(crate) fn network_stage(host: &Arc<Host>, found: &Found) {
    let now = host.now();
    let user = &found.user;
    let text = |key: &str| user[key].as_str().map(str::to_owned);
    host.fs.disk().grow_root();
    // The name follows the drive at every boot, also for an instance that is known.
    if let Some(name) = text("hostname") {
        let fqdn = text("fqdn").unwrap_or_else(|| name.clone());
        host.fs.install("/etc/hostname", format!("{name}\n"), 0o644, now);
        host.fs.install(
            "/etc/hosts",
            format!("127.0.1.1 {fqdn} {name}\n127.0.0.1 localhost\n"),
            0o644,
            now,
        );
    }
    if !found.is_new {
        return;
    }
    make_host_key(host);
    if list(&user["users"]).any(|entry| entry == "default") || !user["users"].is_array() {
        let name = text("user").unwrap_or_else(|| host.image.default_user().to_owned());
        let keys: Vec<&str> = list(&user["ssh_authorized_keys"]).filter_map(Value::as_str).collect();
        make_user(host, &name, &keys);
    }
}

fn make_host_key(host: &Host) {
    let now = host.now();
    let key = ed25519_key(&host.entropy.fork(&format!("host key {}", host.site.next_serial())));
    let private = key
        .to_openssh(LineEnding::LF)
        .map(|text| text.to_string())
        .unwrap_or_default();
    let public = key.public_key().to_openssh().unwrap_or_default();
    host.fs.install(HOST_KEY, private, 0o600, now);
    host.fs.install(
        &format!("{HOST_KEY}.pub"),
        format!("{public} root@{}\n", host.hardware.name),
        0o644,
        now,
    );
}

/// The default user under a name: with sudo, without a password.
fn make_user(host: &Host, name: &str, keys: &[&str]) {
    let now = host.now();
    let passwd = host.fs.text("/etc/passwd").unwrap_or_default();
    if !passwd.lines().any(|line| line.starts_with(&format!("{name}:"))) {
        let line = format!("{name}:x:1000:1000::{HOMES}/{name}:/bin/bash\n");
        host.fs.install("/etc/passwd", passwd + &line, 0o644, now);
        let groups = host.fs.text("/etc/group").unwrap_or_default();
        host.fs
            .install("/etc/group", groups + &format!("{name}:x:1000:\n"), 0o644, now);
    }
    let home = if name == "root" {
        "/root".to_owned()
    } else {
        format!("{HOMES}/{name}")
    };
    let (uid, rule) = if name == "root" {
        (0, String::new())
    } else {
        (1000, format!("{name} ALL=(ALL) NOPASSWD:ALL\n"))
    };
    host.fs.install(
        "/etc/sudoers.d/90-cloud-init-users",
        format!("# User rules for {name}\n{rule}"),
        0o440,
        now,
    );
    let _ = host
        .fs
        .make_directories(Credentials::ROOT, &format!("{home}/.ssh"), 0o755, now);
    let file = format!("{home}/.ssh/authorized_keys");
    host.fs.install(
        &file,
        keys.iter().map(|key| format!("{key}\n")).collect::<String>(),
        0o600,
        now,
    );
    for (path, mode) in [(home.clone(), 0o750), (format!("{home}/.ssh"), 0o700), (file, 0o600)] {
        let _ = host.fs.alter(Credentials::ROOT, &path, |inode| {
            (inode.mode, inode.uid, inode.gid) = (mode, uid, uid);
        });
    }
}

/// Packages and the end; what a client waits for is `result.json`.
pub(crate) async fn final_stage(host: &Arc<Host>, found: &Found) {
    if found.is_new && found.user["package_upgrade"] == true {
        let guard = host.lock_of(super::DPKG_LOCK).lock_owned().await;
        host.pass(host.timing().package_upgrade).await;
        drop(guard);
    }
    let now = host.now();
    host.lock().cloud_init = Stage::Done;
    write_status(host, "", true);
    let result = json!({"v1": {"datasource": "DataSourceNoCloud [seed=/dev/sr0]", "errors": []}});
    host.fs
        .install("/run/cloud-init/result.json", format!("{result}\n"), 0o644, now);
    host.fs
        .install("/var/lib/cloud/instance/boot-finished", format!("{now}\n"), 0o644, now);
}

fn write_status(host: &Host, stage: &str, finished: bool) {
    let stage = if finished { Value::Null } else { json!(stage) };
    let status = json!({"v1": {"datasource": "DataSourceNoCloud [seed=/dev/sr0]", "stage": stage}});
    host.fs
        .install("/run/cloud-init/status.json", format!("{status}\n"), 0o644, host.now());
}

/// `cloud-init status` prints this.
pub(crate) fn status_word(host: &Host) -> &'static str {
    match host.lock().cloud_init {
        Stage::NotStarted => "not started",
        Stage::Running => "running",
        Stage::Done => "done",
        Stage::Disabled => "disabled",
    }
}
