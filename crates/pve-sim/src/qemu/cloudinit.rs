//! The cloud-init drive: what PVE writes on it, and which values it does not have yet.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use super::conf::{self, Conf};
use super::create::drives;
use super::drive::Net;
use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::guest::CloudInitFiles;
use crate::schema::split_list;
use crate::tasks::Job;

const OPTIONS: &[&str] = &[
    "cicustom",
    "cipassword",
    "citype",
    "ciuser",
    "ciupgrade",
    "nameserver",
    "searchdomain",
    "sshkeys",
];

pub(super) fn is_option(key: &str) -> bool {
    OPTIONS.contains(&key)
}

pub(super) fn has_drive(conf: &Conf) -> bool {
    drives(&conf.now).any(|d| d.is_cloudinit())
}

/// Notes that a value differs from the one on the drive.
pub(super) fn record(conf: &mut Conf, key: &str, old: Option<&str>, new: Option<&str>) {
    // The name and the cards are on the drive, too.
    if !is_option(key) && key != "name" && !super::drive::is_net(key) {
        return;
    }
    let recorded = conf.cloudinit.get(key).cloned();
    let mut added: Vec<String> = conf
        .cloudinit
        .remove("added")
        .map(|a| split_list(&a).map(Into::into).collect())
        .unwrap_or_default();
    let is_added = added.iter().any(|a| a == key);
    match (old, new) {
        (_, Some(new)) if recorded.as_deref() == Some(new) => {
            conf.cloudinit.remove(key);
            added.retain(|a| a != key);
        }
        (Some(old), Some(_)) if recorded.is_none() && !is_added => drop(conf.cloudinit.insert(key.into(), old.into())),
        (None, Some(_)) if recorded.is_none() && !is_added => added.push(key.into()),
        (Some(_), None) if is_added => added.retain(|a| a != key),
        (Some(old), None) if recorded.is_none() => drop(conf.cloudinit.insert(key.into(), old.into())),
        _ => {}
    }
    if !added.is_empty() {
        added.sort();
        conf.cloudinit.insert("added".into(), added.join(","));
    }
}

/// The drive was written anew: it has everything now.
pub(super) fn applied(job: &Job, vmid: u32) -> Result<(), Die> {
    let mut conf = job.load(vmid)?;
    if conf.cloudinit.is_empty() {
        return Ok(());
    }
    conf.cloudinit.clear();
    job.save(vmid, conf)
}

/// `GET .../cloudinit`
pub(super) fn pending(call: &Call) -> Answer {
    let state = call.job.dc.state();
    let conf = &state.vm(&call.job.host, call.params.vmid())?.conf;
    let shown = |key: &str, value: &str| {
        if key == "cipassword" {
            json!("**********")
        } else {
            conf::typed(key, value)
        }
    };
    let added: Vec<&str> = conf
        .cloudinit
        .get("added")
        .map(|a| split_list(a).collect())
        .unwrap_or_default();
    // What Perl takes for false counts as not set.
    let set = |key: &str| conf.get(key).filter(|value| !matches!(*value, "" | "0"));
    let mut list = Vec::new();
    for key in &added {
        list.push(json!({ "key": key, "pending": conf.get(key).map(|value| shown(key, value)) }));
    }
    for key in OPTIONS.iter().filter(|key| !added.contains(key)) {
        let Some(value) = set(key) else { continue };
        list.push(match conf.cloudinit.get(*key) {
            Some(old) => json!({ "key": key, "value": shown(key, old), "pending": shown(key, value) }),
            None => json!({ "key": key, "value": shown(key, value) }),
        });
    }
    for key in conf.cloudinit.keys().filter(|key| *key != "added" && set(key).is_none()) {
        list.push(json!({ "key": key, "delete": 1 }));
    }
    Ok(Value::Array(list).into())
}

/// `PUT .../cloudinit`
pub(super) async fn regenerate(call: &Call) -> Answer {
    let vmid = call.params.vmid();
    let _held = call.job.lock_vm(vmid, 10).await?;
    let conf = call.job.load(vmid)?;
    conf.check_lock()?;
    if has_drive(&conf) {
        files(&call.job, vmid, &conf)?;
        applied(&call.job, vmid)?;
    }
    Ok(Reply::default())
}

/// `GET .../cloudinit/dump`: as generated, own snippets left aside.
pub(super) fn dump(call: &Call) -> Answer {
    let vmid = call.params.vmid();
    let conf = call.job.load(vmid)?;
    require_nocloud(&conf)?;
    let user = user_data(vmid, &conf);
    let text = match call.params.text("type") {
        "user" => user,
        "network" => network_config(&call.job, &conf)?,
        _ => meta_data(&user, &network_config(&call.job, &conf)?),
    };
    Ok(text.into())
}

fn require_nocloud(conf: &Conf) -> Result<(), Die> {
    let windows = conf.get("ostype").is_some_and(|os| os.starts_with('w'));
    match conf.get("citype").unwrap_or(if windows { "configdrive2" } else { "nocloud" }) {
        "nocloud" => Ok(()),
        other => Err(Die::bare(501, format!("cloud-init type '{other}' is not simulated"))),
    }
}

/// The files on the drive of a VM, if it has one.
pub(super) fn files(job: &Job, vmid: u32, conf: &Conf) -> Result<Option<CloudInitFiles>, Die> {
    if !has_drive(conf) {
        return Ok(None);
    }
    require_nocloud(conf)?;
    let user_data = custom(job, conf, "user")?.unwrap_or_else(|| user_data(vmid, conf));
    let network_config = match custom(job, conf, "network")? {
        Some(text) => text,
        None => network_config(job, conf)?,
    };
    let meta_data = custom(job, conf, "meta")?.unwrap_or_else(|| meta_data(&user_data, &network_config));
    let vendor_data = custom(job, conf, "vendor")?.unwrap_or_default();
    Ok(Some(CloudInitFiles {
        user_data,
        meta_data,
        network_config,
        vendor_data,
    }))
}

/// The snippet that stands for a file.
fn custom(job: &Job, conf: &Conf, file: &str) -> Result<Option<String>, Die> {
    let volid = conf
        .get("cicustom")
        .and_then(|c| c.split(',').find_map(|p| p.strip_prefix(&format!("{file}="))));
    let Some(volid) = volid else { return Ok(None) };
    match job.dc.state().volume(&job.host, volid) {
        Some(volume) => Ok(Some(String::from_utf8_lossy(&volume.bytes()).into_owned())),
        None => Err(Die::new(format!("volume '{volid}' does not exist"))),
    }
}

fn host_names(vmid: u32, conf: &Conf) -> (String, String) {
    let name = conf.get("name").map_or_else(|| format!("VM{vmid}"), Into::into);
    if let Some((host, _)) = name.split_once('.') {
        return (host.to_string(), name.clone());
    }
    match conf.get("searchdomain").map(str::trim).filter(|s| !s.is_empty()) {
        Some(domain) => (name.clone(), format!("{name}.{domain}")),
        None => (name.clone(), name),
    }
}

fn user_data(vmid: u32, conf: &Conf) -> String {
    let (hostname, fqdn) = host_names(vmid, conf);
    let mut text = format!("#cloud-config\nhostname: {hostname}\nmanage_etc_hosts: true\nfqdn: {fqdn}\n");
    let user = conf.get("ciuser");
    if let Some(user) = user {
        text.push_str(&format!("user: {user}\n"));
        if user == "root" {
            text.push_str("disable_root: False\n");
        }
    }
    if let Some(password) = conf.get("cipassword") {
        text.push_str(&format!("password: {password}\n"));
    }
    if let Some(keys) = conf.get("sshkeys") {
        text.push_str("ssh_authorized_keys:\n");
        let keys = crate::http::unescape(keys);
        keys.lines()
            .filter(|k| !k.trim().is_empty())
            .for_each(|key| text.push_str(&format!("  - {key}\n")));
    }
    text.push_str("chpasswd:\n  expire: False\n");
    if user != Some("root") {
        text.push_str("users:\n  - default\n");
    }
    if conf.get("ciupgrade") != Some("0") {
        text.push_str("package_upgrade: true\n");
    }
    text
}

fn meta_data(user: &str, network: &str) -> String {
    let id = hex::encode(Sha1::digest(format!("{user}{network}").as_bytes()));
    format!("instance-id: {id}\n")
}

fn network_config(job: &Job, conf: &Conf) -> Result<String, Die> {
    let mut text = String::from("version: 1\nconfig:\n");
    let mut cards: Vec<&String> = conf.now.keys().filter(|key| super::drive::is_net(key)).collect();
    cards.sort();
    for key in cards {
        let Some(ipconfig) = conf.get(&key.replace("net", "ipconfig")) else {
            continue;
        };
        let net = Net::parse(key, conf.get(key).unwrap_or_default())?;
        let mac = net.mac().unwrap_or_default().to_lowercase();
        text.push_str(&format!(
            "    - type: physical\n      name: eth{}\n      mac_address: '{mac}'\n      subnets:\n",
            &key[3..]
        ));
        push_subnets(&mut text, ipconfig)?;
    }
    push_resolver(&mut text, job, conf);
    Ok(text)
}

fn push_subnets(text: &mut String, ipconfig: &str) -> Result<(), Die> {
    let value = |name: &str| ipconfig.split(',').find_map(|p| p.strip_prefix(&format!("{name}=")));
    match value("ip") {
        Some("dhcp") => text.push_str("      - type: dhcp4\n"),
        Some(cidr) => {
            let (address, mask) = split_ipv4(cidr)?;
            text.push_str(&format!(
                "      - type: static\n        address: '{address}'\n        netmask: '{mask}'\n"
            ));
            if let Some(gateway) = value("gw") {
                text.push_str(&format!("        gateway: '{gateway}'\n"));
            }
        }
        None => {}
    }
    match value("ip6") {
        Some("dhcp") => text.push_str("      - type: dhcp6\n"),
        Some("auto") => text.push_str("      - type: ipv6_slaac\n"),
        Some(cidr) => {
            text.push_str(&format!("      - type: static6\n        address: '{cidr}'\n"));
            if let Some(gateway) = value("gw6") {
                text.push_str(&format!("        gateway: '{gateway}'\n"));
            }
        }
        None => {}
    }
    Ok(())
}

fn split_ipv4(cidr: &str) -> Result<(&str, Ipv4Addr), Die> {
    let not_cidr = || Die::new(format!("not a CIDR: {cidr}"));
    let (address, bits) = cidr.split_once('/').ok_or_else(not_cidr)?;
    let bits: u32 = bits.parse().map_err(|_| not_cidr())?;
    let mask = u32::MAX.checked_shl(32 - bits.min(32)).unwrap_or(0);
    Ok((address, Ipv4Addr::from(mask)))
}

/// The host's own resolver settings, unless the VM has some.
fn push_resolver(text: &mut String, job: &Job, conf: &Conf) {
    let resolv = job
        .dc
        .state()
        .nodes
        .get(&job.host)
        .map(|n| n.resolv.clone())
        .unwrap_or_default();
    let words = |given: Option<&str>, default: Vec<String>| match given {
        Some(list) => split_list(list).map(Into::into).collect(),
        None => default,
    };
    let servers: Vec<String> = words(conf.get("nameserver"), resolv.nameserver);
    let domains: Vec<String> = words(conf.get("searchdomain"), split_list(&resolv.search).map(Into::into).collect());
    if servers.is_empty() && domains.is_empty() {
        return;
    }
    text.push_str("    - type: nameserver\n");
    for (title, items) in [("address", servers), ("search", domains)] {
        if !items.is_empty() {
            text.push_str(&format!("      {title}:\n"));
            items.iter().for_each(|item| text.push_str(&format!("      - '{item}'\n")));
        }
    }
}
