//! The named formats of the schema, with PVE's texts (each ends in a line feed, because it was died with).

use std::net::{Ipv4Addr, Ipv6Addr};

use super::Format;
use super::property::parse_properties;
use super::schema;

pub(super) fn check_format(format: &Format, value: &str, path: &str) -> Result<(), String> {
    match format {
        Format::Grammar(grammar) => parse_properties(grammar, value, path).map(drop),
        Format::Named(name) => match schema().grammar(name) {
            Some(grammar) => {
                let parsed = parse_properties(grammar, value, path)?;
                check_meaning(name, &parsed)
            }
            None => check_named(name, value),
        },
    }
}

/// Rules that look at a whole property string.
fn check_meaning(name: &str, parsed: &super::Properties) -> Result<(), String> {
    if name != "pve-vm-cpu-conf" {
        return Ok(());
    }
    match parsed.get("cputype") {
        None => Err("no cputype specified\n".into()),
        Some(model) => check_cpu_type(model).map_err(|text| text + "\n"),
    }
}

/// Splits what PVE calls a list: commas, semicolons, blanks, NUL.
pub fn split_list(value: &str) -> impl Iterator<Item = &str> {
    value
        .split(|c: char| matches!(c, ',' | ';' | '\0') || c.is_whitespace())
        .filter(|item| !item.is_empty())
}

/// Checks a value against a named format.
pub fn check_named(name: &str, value: &str) -> Result<(), String> {
    if let Some(inner) = name.strip_suffix("-list") {
        return check_list(inner, value);
    }
    let bare = name.strip_suffix("-opt");
    if bare.is_some() && value.is_empty() {
        return Ok(());
    }
    match check_single(bare.unwrap_or(name), value) {
        Ok(()) => Ok(()),
        Err(text) => Err(format!("{text}\n")),
    }
}

fn check_list(inner: &str, value: &str) -> Result<(), String> {
    match inner {
        "string" => Ok(()),
        "pve-hotplug-features" => check_named(inner, value),
        _ => split_list(value).try_for_each(|item| check_named(inner, item)),
    }
}

fn check_single(name: &str, value: &str) -> Result<(), String> {
    let require = |fits: bool, text: String| if fits { Ok(()) } else { Err(text) };
    match name {
        "pve-vmid" => require(is_vmid(value), "value does not look like a valid VM ID".into()),
        "pve-node" => require(is_node(value), "value does not look like a valid node name".into()),
        "pve-configid" => require(is_configid(value), format!("invalid configuration ID '{value}'")),
        "pve-storage-id" => require(
            is_storage_id(value),
            format!("storage ID '{value}' contains illegal characters"),
        ),
        "pve-storage-content" => require(is_content_type(value), format!("invalid content type '{value}'")),
        "pve-volume-id" => check_volid(value),
        "pve-volume-id-or-qm-path" if is_qm_path(value) => Ok(()),
        "pve-volume-id-or-qm-path" => check_volid(value),
        "pve-volume-id-or-absolute-path" if value.starts_with('/') => Ok(()),
        "pve-volume-id-or-absolute-path" => check_volid(value),
        "dns-name" => require(is_dns_name(value), "value does not look like a valid DNS name".into()),
        "pve-tag" => require(is_tag(value), "invalid characters in tag".into()),
        "urlencoded" => {
            let fits = value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-%_.!~*'()".contains(&b));
            require(fits, format!("invalid urlencoded string: {value}"))
        }
        "pve-userid" => check_userid(value),
        "pve-tokenid" => require(
            is_tokenid(value),
            format!("value '{value}' does not look like a valid token ID"),
        ),
        "pve-realm" => require(is_realm(value), "value does not look like a valid realm".into()),
        "pve-groupid" => require(is_name(value), format!("group name '{value}' contains invalid characters")),
        "pve-roleid" => require(is_name(value), format!("role name '{value}' contains invalid characters")),
        "pve-priv" => require(crate::access::is_privilege(value), format!("invalid privilege '{value}'")),
        "pve-poolid" => check_poolid(value),
        "email" => require(
            value.contains('@') && value.contains('.'),
            "value does not look like a valid email address".into(),
        ),
        "disk-size" => require(
            crate::qemu::parse_size(value).is_some(),
            "value does not look like a valid disk size".to_string() + &format!(": {value}"),
        ),
        "pve-qm-bootdev" => require(is_bootdev(value), format!("invalid boot device '{value}'")),
        "pve-hotplug-features" => check_hotplug(value),
        "pve-ha-resource-or-vm-id" | "pve-ha-resource-id" => check_ha_id(name, value),
        _ => check_network(name, value),
    }
}

fn check_hotplug(value: &str) -> Result<(), String> {
    if matches!(value, "0" | "1") {
        return Ok(());
    }
    let known = ["network", "disk", "cpu", "memory", "usb", "cloudinit"];
    match split_list(value).find(|feature| !known.contains(feature)) {
        Some(feature) => Err(format!("invalid hotplug feature '{feature}'")),
        None => Ok(()),
    }
}

/// Addresses, networks and what they are plugged into; a format that is not known takes everything.
fn check_network(name: &str, value: &str) -> Result<(), String> {
    let require = |fits: bool, text: String| if fits { Ok(()) } else { Err(text) };
    match name {
        "pve-fw-dport-spec" | "pve-fw-sport-spec" => crate::firewall::check_ports(value),
        "pve-fw-protocol-spec" => crate::firewall::check_protocol(value),
        "mac-addr" => require(
            is_unicast_mac(value),
            "value does not look like a valid unicast MAC address".into(),
        ),
        "mac-prefix" => require(is_mac_prefix(value), "value is not a valid unicast MAC address prefix".into()),
        "ipv4" => require(
            value.parse::<Ipv4Addr>().is_ok(),
            "value does not look like a valid IPv4 address".into(),
        ),
        "ipv6" => require(
            value.parse::<Ipv6Addr>().is_ok(),
            "value does not look like a valid IPv6 address".into(),
        ),
        "ip" => require(is_ip(value), "value does not look like a valid IP address".into()),
        "CIDR" => require(
            is_cidr4(value) || is_cidr6(value),
            "value does not look like a valid CIDR network".into(),
        ),
        "CIDRv4" => require(is_cidr4(value), "value does not look like a valid IPv4 network".into()),
        "CIDRv6" => require(is_cidr6(value), "value does not look like a valid IPv6 network".into()),
        "pve-ipv4-config" => {
            let fits = matches!(value, "dhcp" | "manual") || is_cidr4(value);
            require(fits, "value does not look like a valid ipv4 network configuration".into())
        }
        "pve-ipv6-config" => {
            let fits = matches!(value, "auto" | "dhcp" | "manual") || is_cidr6(value);
            require(fits, "value does not look like a valid ipv6 network configuration".into())
        }
        "pve-bridge-id" => require(is_bridge(value), format!("invalid bridge ID '{value}'")),
        "pve-iface" => require(is_iface(value), "invalid network interface name '".to_string() + value + "'"),
        _ => Ok(()),
    }
}

fn is_vmid(value: &str) -> bool {
    value.len() >= 3 && value.len() <= 9 && value.bytes().all(|b| b.is_ascii_digit()) && !value.starts_with('0')
}

fn is_node(value: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    edge(value.bytes().next()) && edge(value.bytes().last()) && value.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn is_configid(value: &str) -> bool {
    let mut bytes = value.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic())
        && value.len() > 1
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
}

pub(crate) fn is_storage_id(value: &str) -> bool {
    let bytes = value.as_bytes();
    value.len() >= 2
        && bytes[0].is_ascii_alphabetic()
        && bytes[bytes.len() - 1].is_ascii_alphanumeric()
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

fn is_content_type(value: &str) -> bool {
    matches!(
        value,
        "images" | "rootdir" | "iso" | "vztmpl" | "backup" | "snippets" | "import" | "none"
    )
}

fn check_volid(value: &str) -> Result<(), String> {
    match value.split_once(':') {
        Some((storage, name)) if is_storage_id(storage) && !name.is_empty() => Ok(()),
        _ => Err(format!("unable to parse volume ID '{value}'")),
    }
}

fn is_qm_path(value: &str) -> bool {
    matches!(value, "none" | "cdrom") || value.starts_with('/')
}

fn is_dns_name(value: &str) -> bool {
    !value.is_empty() && value.split('.').all(is_label)
}

/// Label lengths are not checked by PVE.
fn is_label(label: &str) -> bool {
    let edge = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    edge(label.bytes().next()) && edge(label.bytes().last()) && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}

fn is_tag(value: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    value.bytes().next().is_some_and(word) && value.bytes().all(|b| word(b) || b"-+.".contains(&b))
}

fn is_unicast_mac(value: &str) -> bool {
    let octets: Vec<&str> = value.split(':').collect();
    octets.len() == 6
        && octets
            .iter()
            .all(|o| o.len() == 2 && o.bytes().all(|b| b.is_ascii_hexdigit()))
        && u8::from_str_radix(octets[0], 16).is_ok_and(|first| first & 1 == 0)
}

fn is_mac_prefix(value: &str) -> bool {
    let octets: Vec<&str> = value.split(':').collect();
    (1..=5).contains(&octets.len())
        && octets
            .iter()
            .all(|o| o.len() == 2 && o.bytes().all(|b| b.is_ascii_hexdigit()))
        && u8::from_str_radix(octets[0], 16).is_ok_and(|first| first & 1 == 0)
}

fn is_ip(value: &str) -> bool {
    value.parse::<std::net::IpAddr>().is_ok()
}

fn is_cidr4(value: &str) -> bool {
    let Some((address, bits)) = value.split_once('/') else {
        return false;
    };
    address.parse::<Ipv4Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|b| (7..=32).contains(&b))
}

fn is_cidr6(value: &str) -> bool {
    let Some((address, bits)) = value.split_once('/') else {
        return false;
    };
    address.parse::<Ipv6Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|b| (7..=128).contains(&b))
}

fn check_userid(value: &str) -> Result<(), String> {
    if value.chars().count() < 3 {
        return Err(format!("user name '{value}' is too short"));
    }
    if value.chars().count() > 64 {
        return Err(format!("user name '{value}' is too long"));
    }
    match value.rsplit_once('@') {
        Some((user, realm)) if is_user(user) && is_realm(realm) => Ok(()),
        _ => Err(format!("value '{value}' does not look like a valid user name")),
    }
}

fn is_user(value: &str) -> bool {
    !value.is_empty() && !value.contains(|c: char| c.is_whitespace() || c == ':' || c == '/')
}

fn is_realm(value: &str) -> bool {
    is_word(value) && value.len() > 1
}

fn is_word(value: &str) -> bool {
    value.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && value.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
}

fn is_tokenid(value: &str) -> bool {
    value
        .split_once('!')
        .is_some_and(|(user, token)| check_userid(user).is_ok() && is_word(token) && token.len() > 1)
}

fn is_name(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b".-_".contains(&b))
}

fn check_poolid(value: &str) -> Result<(), String> {
    let levels: Vec<&str> = value.split('/').collect();
    if levels.len() > 3 {
        return Err(format!("pool name '{value}' nested too deeply (max levels = 3)"));
    }
    let fits = |level: &&str| level.bytes().next().is_some_and(|b| b.is_ascii_alphabetic()) && is_name(level);
    if levels.iter().all(fits) {
        Ok(())
    } else {
        Err(format!("pool name '{value}' contains invalid characters"))
    }
}

fn is_bridge(value: &str) -> bool {
    !value.is_empty() && value.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
}

fn is_bootdev(value: &str) -> bool {
    let prefix = value.trim_end_matches(|c: char| c.is_ascii_digit());
    prefix != value && matches!(prefix, "ide" | "scsi" | "virtio" | "sata" | "net" | "usb" | "hostpci")
}

fn check_cpu_type(value: &str) -> Result<(), String> {
    if value.starts_with("custom-") || crate::nodes::is_cpu_model(value) {
        return Ok(());
    }
    Err(format!(
        "Built-in cputype '{value}' is not defined (missing 'custom-' prefix?)"
    ))
}

fn check_ha_id(name: &str, value: &str) -> Result<(), String> {
    let typed = value
        .split_once(':')
        .is_some_and(|(kind, id)| matches!(kind, "vm" | "ct") && is_vmid(id));
    if typed || name == "pve-ha-resource-or-vm-id" && is_vmid(value) {
        return Ok(());
    }
    Err(format!("value does not look like a valid ha resource id: {value}"))
}

fn is_iface(value: &str) -> bool {
    (2..=20).contains(&value.len()) && value.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
}
