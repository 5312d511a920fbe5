//! The firewall file of a VM: options, rules and address sets. Kept and checked as PVE does; no packet is ever dropped.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::schema::split_list;

type Entry = Map<String, Value>;

/// `/etc/pve/firewall/<vmid>.fw`
#[derive(Clone, Debug, Default)]
pub struct Firewall {
    options: Entry,
    rules: Vec<Entry>,
    sets: BTreeMap<String, AddressSet>,
    /// By their names in lower case.
    aliases: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Default)]
struct AddressSet {
    comment: Option<String>,
    entries: Vec<Entry>,
}

/// What a rule may say, apart from its position.
const RULE: &[&str] = &[
    "type",
    "action",
    "enable",
    "macro",
    "iface",
    "source",
    "dest",
    "proto",
    "dport",
    "sport",
    "icmp-type",
    "log",
    "comment",
];
const PORTED: &[&str] = &["udp", "17", "udplite", "136", "tcp", "6", "dccp", "33", "sctp", "132"];
const ICMP: &[&str] = &["icmp", "icmpv6", "ipv6-icmp"];
const PROTOCOLS: &[&str] = &[
    "igmp", "esp", "ah", "gre", "ospf", "vrrp", "l2tp", "ipip", "pim", "ipencap", "egp", "igp", "rsvp", "eigrp",
];
const SERVICES: &[&str] = &[
    "ftp",
    "ssh",
    "telnet",
    "smtp",
    "domain",
    "bootps",
    "bootpc",
    "tftp",
    "http",
    "kerberos",
    "pop3",
    "sunrpc",
    "ntp",
    "imap2",
    "snmp",
    "bgp",
    "ldap",
    "https",
    "submission",
    "ldaps",
    "imaps",
    "pop3s",
    "mysql",
    "postgresql",
    "rsync",
    "nfs",
];
const MACROS: &str = "Amanda Auth BGP BitTorrent BitTorrent32 Ceph CVS Citrix DAAP DCC DHCPfwd DHCPv6 DNS Distcc FTP Finger GNUnet GRE Git \
    HKP HTTP HTTPS ICPV2 ICQ IMAP IMAPS IPIP IPsec IPsecah IPsecnat IRC Jetdirect L2TP LDAP LDAPS MSNP MSSQL Mail MDNS Munin MySQL NNTP NNTPS \
    NTP NeighborDiscovery OSPF OpenVPN PCA PMG POP3 POP3S PPtP Ping PostgreSQL Printer RDP RIP RNDC Razor Rdate Rsync SANE SMB SMBswat SMTP \
    SMTPS SNMP SPAMD SSH SVN SixXS SPICEproxy Squid Submission Syslog TFTP Telnet Telnets Time Trcrt VNC VNCL Web Webcache Webmin Whois";

/// Calls below `/nodes/{node}/qemu/{vmid}/firewall`.
pub(crate) async fn handle(call: Call) -> Answer {
    let (verb, template) = call.what();
    let what = template.split_once("/firewall").map(|(_, rest)| rest).unwrap_or_default();
    if verb == "GET" {
        let state = call.job.dc.state();
        let file = state.firewalls.get(&call.params.vmid()).cloned().unwrap_or_default();
        drop(state);
        return file.read(&call, what);
    }
    let lock = format!("firewall-vm-{}", call.params.vmid());
    let _held = call.job.dc.locks().take_cluster(&call.job, &call.contacted, &lock).await?;
    let mut state = call.job.dc.state();
    let mut file = state.firewalls.get(&call.params.vmid()).cloned().unwrap_or_default();
    file.write(&call, verb, what)?;
    state.firewalls.insert(call.params.vmid(), file);
    Ok(Reply::default())
}

fn digest<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut hash = Sha1::new();
    for entry in entries {
        let mut pairs: Vec<(&String, &Value)> = entry.iter().collect();
        pairs.sort_by_key(|(key, _)| *key);
        for (key, value) in pairs {
            let text = value.as_str().map_or_else(|| value.to_string(), Into::into);
            hash.update(format!("{key}:{text}\n"));
        }
    }
    hex::encode(hash.finalize())
}

fn with_digest(entries: &[Entry]) -> Vec<Entry> {
    let digest = digest(entries);
    let add = |entry: &Entry| {
        let mut entry = entry.clone();
        entry.insert("digest".into(), json!(digest));
        entry
    };
    entries.iter().map(add).collect()
}

fn unchanged<'a>(call: &Call, entries: impl IntoIterator<Item = &'a Entry>) -> Result<(), Die> {
    match call.params.get("digest") {
        Some(given) if given != digest(entries) => Err(Die::new(
            "detected modified configuration - file changed by other user? Try again.",
        )),
        _ => Ok(()),
    }
}

fn shown(list: Vec<Entry>) -> Reply {
    Value::Array(list.into_iter().map(Value::Object).collect()).into()
}

impl Firewall {
    fn read(&self, call: &Call, what: &str) -> Answer {
        match what {
            "" => Ok(json!(["rules", "aliases", "ipset", "refs", "options"].map(|name| json!({ "name": name }))).into()),
            "/options" => {
                let mut options = self.options.clone();
                options.insert("digest".into(), json!(digest([&self.options])));
                Ok(Value::Object(options).into())
            }
            "/rules" => Ok(shown(self.listed_rules())),
            "/rules/{pos}" => Ok(Value::Object(self.listed_rules().swap_remove(self.position(call)?)).into()),
            "/ipset" => Ok(shown(self.listed_sets())),
            "/ipset/{name}" => Ok(shown(with_digest(&self.set(call)?.entries))),
            "/ipset/{name}/{cidr}" => {
                let found = with_digest(&self.set(call)?.entries)
                    .into_iter()
                    .find(|e| is_address(e, call));
                found.map(|e| Value::Object(e).into()).ok_or_else(no_address)
            }
            "/aliases" => Ok(shown(with_digest(&self.listed_aliases()))),
            "/aliases/{name}" => match self.aliases.get(&alias_key(call)) {
                Some(alias) => Ok(Value::Object(alias.clone()).into()),
                None => Err(no_alias()),
            },
            "/refs" => Ok(self.references(call.params.get("type")).into()),
            _ => call.not_simulated(),
        }
    }

    fn write(&mut self, call: &Call, verb: &str, what: &str) -> Result<(), Die> {
        match (verb, what) {
            ("PUT", "/options") => self.set_options(call),
            ("POST", "/rules") => self.add_rule(call),
            ("PUT", "/rules/{pos}") => self.change_rule(call),
            ("DELETE", "/rules/{pos}") => {
                unchanged(call, &self.rules)?;
                self.rules.remove(self.position(call)?);
                Ok(())
            }
            ("POST", "/aliases") => self.add_alias(call),
            ("PUT", "/aliases/{name}") => self.change_alias(call),
            ("DELETE", "/aliases/{name}") => {
                unchanged(call, &self.listed_aliases())?;
                self.aliases.remove(&alias_key(call));
                Ok(())
            }
            ("POST", "/ipset") => self.add_set(call),
            ("DELETE", "/ipset/{name}") => self.remove_set(call),
            ("POST", "/ipset/{name}") => self.add_address(call),
            ("PUT", "/ipset/{name}/{cidr}") => self.change_address(call),
            ("DELETE", "/ipset/{name}/{cidr}") => {
                let set = self.set_mut(call)?;
                unchanged(call, &set.entries)?;
                set.entries.retain(|e| !is_address(e, call));
                Ok(())
            }
            _ => call.not_simulated().map(drop),
        }
    }

    fn set_options(&mut self, call: &Call) -> Result<(), Die> {
        unchanged(call, [&self.options])?;
        for key in split_list(call.params.text("delete")) {
            if !call.method.params.contains_key(key) || matches!(key, "node" | "vmid" | "delete" | "digest") {
                return Err(Die::parameter("delete", format!("no such option '{key}'")));
            }
            self.options.remove(key);
        }
        let given = call
            .params
            .texts()
            .filter(|(key, _)| !matches!(*key, "node" | "vmid" | "delete" | "digest"));
        for (key, value) in given {
            let value = value.unwrap_or_default();
            self.options
                .insert(key.into(), value.parse::<i64>().map_or_else(|_| json!(value), |n| json!(n)));
        }
        Ok(())
    }

    fn listed_rules(&self) -> Vec<Entry> {
        let mut list = with_digest(&self.rules);
        for (position, rule) in list.iter_mut().enumerate() {
            rule.insert("pos".into(), json!(position));
        }
        list
    }

    fn position(&self, call: &Call) -> Result<usize, Die> {
        let position = call.params.int("pos").and_then(|p| usize::try_from(p).ok()).unwrap_or(0);
        if position < self.rules.len() {
            Ok(position)
        } else {
            Err(Die::new(format!("no rule at position {position}")))
        }
    }

    fn add_rule(&mut self, call: &Call) -> Result<(), Die> {
        let mut rule = Entry::new();
        fill(&mut rule, call);
        self.verify(&mut rule)?;
        rule.entry("enable").or_insert_with(|| json!(0));
        self.rules.insert(0, rule);
        Ok(())
    }

    fn change_rule(&mut self, call: &Call) -> Result<(), Die> {
        unchanged(call, &self.rules)?;
        let position = self.position(call)?;
        let target = call.params.int("moveto").and_then(|p| usize::try_from(p).ok());
        if let Some(target) = target.filter(|t| *t != position) {
            let rule = self.rules.remove(position);
            // The place is meant as it was before the rule left its own.
            let target = if target > position { target - 1 } else { target };
            self.rules.insert(target.min(self.rules.len()), rule);
            return Ok(());
        }
        let mut rule = self.rules[position].clone();
        fill(&mut rule, call);
        for key in split_list(call.params.text("delete")) {
            if !RULE.contains(&key) {
                return Err(Die::parameter("delete", format!("no such property ('{key}')")));
            }
            if matches!(key, "type" | "action") {
                return Err(Die::parameter(
                    "delete",
                    format!("unable to delete required property '{key}'"),
                ));
            }
            rule.remove(key);
        }
        self.verify(&mut rule)?;
        self.rules[position] = rule;
        Ok(())
    }

    fn verify(&self, rule: &mut Entry) -> Result<(), Die> {
        let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        let refuse = |key: &str, why: String| Err(Die::parameter(key, why));
        let (kind, action, proto) = (text("type"), text("action"), text("proto"));
        match kind.as_str() {
            "forward" => return refuse("type", "invalid rule type 'forward' for rule_env 'vm'".into()),
            "in" | "out" if !matches!(action.as_str(), "ACCEPT" | "DROP" | "REJECT") => {
                return refuse("action", format!("unknown action '{action}'"));
            }
            _ => {}
        }
        if !text("iface").is_empty() && !is_card(&text("iface")) {
            return refuse("iface", "value does not match the regex pattern 'net\\d+'".into());
        }
        if !text("macro").is_empty() {
            let wanted = text("macro");
            match MACROS.split(' ').find(|name| name.eq_ignore_ascii_case(&wanted)) {
                Some(name) => drop(rule.insert("macro".into(), json!(name))),
                None => return refuse("macro", format!("unknown macro '{wanted}'")),
            }
        }
        let text = |key: &str| rule.get(key).and_then(Value::as_str).unwrap_or_default().to_string();
        for key in ["dport", "sport"].into_iter().filter(|key| !text(key).is_empty()) {
            if proto.is_empty() {
                return refuse("proto", format!("missing property - '{key}' requires this property"));
            }
            let by_type = key == "dport" && ICMP.contains(&proto.as_str());
            if !PORTED.contains(&proto.as_str()) && !by_type {
                return refuse(key, format!("protocol '{proto}' does not support ports"));
            }
        }
        let mut version = None;
        for key in ["source", "dest"] {
            version = self.check_peer(key, &text(key))?.or(version);
        }
        if let Some(version) = version {
            rule.insert("ipversion".into(), json!(version));
        }
        Ok(())
    }

    /// An address set must exist; no aliases do. Says which version of IP an address is of.
    fn check_peer(&self, key: &str, value: &str) -> Result<Option<u8>, Die> {
        if let Some(name) = value.strip_prefix('+') {
            let name = name.trim_start_matches("guest/").trim_start_matches("dc/");
            return match self.sets.contains_key(name) {
                true => Ok(None),
                false => Err(Die::parameter(key, format!("no such ipset '{name}'"))),
            };
        }
        if value.starts_with(|c: char| c.is_ascii_alphabetic()) && !value.contains(':') {
            let name = value.trim_start_matches("guest/").trim_start_matches("dc/").to_lowercase();
            return match self.aliases.get(&name) {
                Some(alias) => Ok(alias.get("ipversion").and_then(Value::as_u64).map(|v| v as u8)),
                None => Err(Die::parameter(key, format!("no such alias '{value}'"))),
            };
        }
        Ok((!value.is_empty()).then(|| if value.contains(':') { 6 } else { 4 }))
    }

    fn listed_aliases(&self) -> Vec<Entry> {
        self.aliases.values().cloned().collect()
    }

    /// What rules can name as their source or destination.
    fn references(&self, kind: Option<&str>) -> Value {
        let mut list = Vec::new();
        let sets = self.sets.iter().filter(|_| kind.is_none_or(|k| k == "ipset"));
        for (name, set) in sets {
            let mut entry = json!({ "type": "ipset", "name": name, "ref": format!("+{name}"), "scope": "guest" });
            if let Some(comment) = &set.comment {
                entry["comment"] = json!(comment);
            }
            list.push(entry);
        }
        let aliases = self.aliases.iter().filter(|_| kind.is_none_or(|k| k == "alias"));
        for (name, alias) in aliases {
            let mut entry = json!({ "type": "alias", "name": name, "ref": name, "scope": "guest" });
            if let Some(comment) = alias.get("comment") {
                entry["comment"] = comment.clone();
            }
            list.push(entry);
        }
        Value::Array(list)
    }

    fn add_alias(&mut self, call: &Call) -> Result<(), Die> {
        if self.aliases.contains_key(&alias_key(call)) {
            let text = format!("alias '{}' already exists", call.params.text("name"));
            return Err(Die::parameter("name", text));
        }
        self.aliases.insert(alias_key(call), alias_of(call));
        Ok(())
    }

    fn change_alias(&mut self, call: &Call) -> Result<(), Die> {
        unchanged(call, &self.listed_aliases())?;
        let key = alias_key(call);
        if !self.aliases.contains_key(&key) {
            return Err(no_alias());
        }
        let mut alias = alias_of(call);
        let new = call
            .params
            .get("rename")
            .filter(|new| !new.is_empty() && new.to_lowercase() != key);
        if let Some(new) = new {
            if self.aliases.contains_key(&new.to_lowercase()) {
                return Err(Die::parameter("name", format!("alias '{new}' already exists")));
            }
            alias.insert("name".into(), json!(new));
            self.aliases.remove(&key);
        }
        self.aliases.insert(new.map_or(key, str::to_lowercase), alias);
        Ok(())
    }

    fn listed_sets(&self) -> Vec<Entry> {
        let entry = |(name, set): (&String, &AddressSet)| {
            let mut entry = Entry::from_iter([("name".to_string(), json!(name))]);
            if let Some(comment) = &set.comment {
                entry.insert("comment".into(), json!(comment));
            }
            entry
        };
        with_digest(&self.sets.iter().map(entry).collect::<Vec<_>>())
    }

    fn set(&self, call: &Call) -> Result<&AddressSet, Die> {
        let name = call.params.text("name");
        self.sets.get(name).ok_or_else(|| Die::new(format!("no such IPSet '{name}'")))
    }

    fn set_mut(&mut self, call: &Call) -> Result<&mut AddressSet, Die> {
        let name = call.params.text("name");
        self.sets
            .get_mut(name)
            .ok_or_else(|| Die::new(format!("no such IPSet '{name}'")))
    }

    fn add_set(&mut self, call: &Call) -> Result<(), Die> {
        let (name, comment) = (call.params.text("name"), call.params.get("comment").map(Into::into));
        let refuse = |why: String| Err(Die::parameter("name", why));
        let Some(old) = call.params.get("rename") else {
            if self.sets.contains_key(name) {
                return refuse(format!("IPSet '{name}' already exists"));
            }
            self.sets.insert(
                name.into(),
                AddressSet {
                    comment,
                    ..AddressSet::default()
                },
            );
            return Ok(());
        };
        if name != old && self.sets.contains_key(name) {
            return refuse(format!("IPSet '{name}' does already exist"));
        }
        let Some(mut set) = self.sets.remove(old) else {
            return refuse(format!("IPSet '{old}' does not exist"));
        };
        set.comment = comment.or(set.comment);
        self.sets.insert(name.into(), set);
        Ok(())
    }

    fn remove_set(&mut self, call: &Call) -> Result<(), Die> {
        let name = call.params.text("name");
        if !self.set(call)?.entries.is_empty() && !call.params.flag("force") {
            return Err(Die::new(format!("IPSet '{name}' is not empty")));
        }
        self.sets.remove(name);
        Ok(())
    }

    fn add_address(&mut self, call: &Call) -> Result<(), Die> {
        let cidr = call.params.text("cidr").trim_end_matches("/32").to_string();
        let set = self.set_mut(call)?;
        if set.entries.iter().any(|e| e["cidr"] == json!(cidr)) {
            return Err(Die::parameter("cidr", format!("address '{cidr}' already exists")));
        }
        if cidr.rsplit_once('/').is_some_and(|(_, bits)| bits.bytes().all(|b| b == b'0')) {
            return Err(Die::parameter("cidr", "a zero prefix is not allowed in ipset entries"));
        }
        let mut entry = Entry::from_iter([("cidr".to_string(), json!(cidr))]);
        mark(&mut entry, call);
        set.entries.insert(0, entry);
        Ok(())
    }

    fn change_address(&mut self, call: &Call) -> Result<(), Die> {
        let set = self.set_mut(call)?;
        unchanged(call, &set.entries)?;
        let entry = set.entries.iter_mut().find(|e| is_address(e, call)).ok_or_else(no_address)?;
        entry.retain(|key, _| key == "cidr");
        mark(entry, call);
        Ok(())
    }
}

fn alias_key(call: &Call) -> String {
    call.params.text("name").to_lowercase()
}

fn no_alias() -> Die {
    Die::parameter("name", "no such alias")
}

/// An alias as the file keeps it: the address without a prefix that says nothing, and its version of IP.
fn alias_of(call: &Call) -> Entry {
    let given = call.params.text("cidr");
    let version = if given.contains(':') { 6 } else { 4 };
    let cidr = given.trim_end_matches(if version == 6 { "/128" } else { "/32" });
    let mut entry = Entry::from_iter([
        ("name".to_string(), json!(call.params.text("name"))),
        ("cidr".to_string(), json!(cidr)),
        ("ipversion".to_string(), json!(version)),
    ]);
    if let Some(comment) = call.params.get("comment").filter(|c| !c.is_empty()) {
        entry.insert("comment".into(), json!(comment));
    }
    entry
}

fn mark(entry: &mut Entry, call: &Call) {
    if call.params.flag("nomatch") {
        entry.insert("nomatch".into(), json!(1));
    }
    if let Some(comment) = call.params.get("comment").filter(|c| !c.is_empty()) {
        entry.insert("comment".into(), json!(comment));
    }
}

fn is_address(entry: &Entry, call: &Call) -> bool {
    entry["cidr"] == json!(call.params.text("cidr"))
}

fn no_address() -> Die {
    Die::parameter("cidr", "no such IP/Network")
}

fn is_card(name: &str) -> bool {
    name.strip_prefix("net")
        .is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

/// Takes a rule's properties from the call; an empty one is taken away.
fn fill(rule: &mut Entry, call: &Call) {
    for (key, value) in call.params.texts().filter(|(key, _)| RULE.contains(key)) {
        match value.unwrap_or_default() {
            "" | "-" => drop(rule.remove(key)),
            value if key == "enable" => drop(rule.insert(key.into(), json!(u8::from(value != "0")))),
            value => drop(rule.insert(key.into(), json!(value))),
        }
    }
}

/// The format of `dport` and `sport`: names, numbers and ranges.
pub(crate) fn check_ports(value: &str) -> Result<(), String> {
    let number = |text: &str| {
        text.bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| text.parse::<u32>().unwrap_or(u32::MAX))
    };
    for item in value.split(',') {
        if item.is_empty() {
            return Err("extraneous commas in list".into());
        }
        let ends: Vec<&str> = item.splitn(2, ':').collect();
        let numbers: Option<Vec<u32>> = ends.iter().map(|end| number(end)).collect();
        match numbers.as_deref() {
            None if SERVICES.contains(&item) => {}
            None => return Err(format!("invalid port '{item}'")),
            Some(ports) if ports.iter().any(|p| *p > 65535) => {
                let bad = ports.iter().position(|p| *p > 65535).map_or(item, |at| ends[at]);
                return Err(format!("invalid port '{bad}'"));
            }
            Some([first, last]) if first > last => {
                return Err(format!(
                    "backwards range '{first}:{last}' not allowed, did you mean '{last}:{first}'?"
                ));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

pub(crate) fn check_protocol(value: &str) -> Result<(), String> {
    let known = PORTED.contains(&value) || ICMP.contains(&value) || PROTOCOLS.contains(&value) || value.parse::<u8>().is_ok();
    if known {
        Ok(())
    } else {
        Err(format!("unknown protocol '{value}'"))
    }
}
