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
    let Some(model) = parsed.get("cputype").filter(|model| !model.is_empty() && *model != "0") else {
        return Err("CPU is missing cputype\n".into());
    };
    check_cpu_type(model).map_err(|text| text + "\n")?;
    let known = |flag: &str| flag.strip_prefix(['+', '-']).is_some_and(|name| VM_CPU_FLAGS.contains(&name));
    if parsed.get("flags").is_some_and(|flags| !flags.split(';').all(known)) {
        let list = VM_CPU_FLAGS.join(", ");
        return Err(format!("VM-specific CPU flags must be a subset of: {list}\n"));
    }
    if parsed.contains_key("reported-model") {
        return Err("Property 'reported-model' not allowed in VM-specific CPU config.\n".into());
    }
    Ok(())
}

/// Flags that may be set for a VM; others need a model of their own.
const VM_CPU_FLAGS: &[&str] = &[
    "aes",
    "amd-no-ssb",
    "amd-ssbd",
    "hv-evmcs",
    "hv-tlbflush",
    "ibpb",
    "md-clear",
    "nested-virt",
    "pcid",
    "pdpe1gb",
    "spec-ctrl",
    "ssbd",
    "virt-ssbd",
];

/// Splits what PVE calls a list: at commas, semicolons and blanks, or at NUL alone where there is one.
pub fn split_list(value: &str) -> impl Iterator<Item = &str> {
    let by_nul = value.contains('\0');
    value
        .split(move |c: char| {
            if by_nul {
                c == '\0'
            } else {
                matches!(c, ',' | ';') || c.is_whitespace()
            }
        })
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
        "pve-storage-id" => check_storage_id(value),
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
        "email" => require(is_email(value), "value does not look like a valid email address".into()),
        "email-or-username" => require(
            is_email(value) || is_mail_user(value),
            "value does not look like a valid email address or user name".into(),
        ),
        "pve-startup-order" => require(is_startup_order(value), "unable to parse startup options".into()),
        "pve-task-status-type" => require(
            matches!(value.to_ascii_lowercase().as_str(), "ok" | "error" | "warning" | "unknown"),
            format!("invalid status '{value}'"),
        ),
        "storage-pair" => check_pair(value, check_storage_id),
        "bridge-pair" => check_pair(value, check_bridge),
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
        "CIDRv4" => require(is_cidr4(value), "value does not look like a valid IPv4 CIDR network".into()),
        "CIDRv6" => require(is_cidr6(value), "value does not look like a valid IPv6 CIDR network".into()),
        "address" => require(
            is_ip(value) || is_dns_name(value),
            format!("value does not look like a valid address: {value}"),
        ),
        "pve-vlan-id-or-range" => check_vlans(value),
        "pve-ipv4-config" => {
            let fits = matches!(value, "dhcp" | "manual") || is_cidr4(value);
            require(fits, "value does not look like a valid ipv4 network configuration".into())
        }
        "pve-ipv6-config" => {
            let fits = matches!(value, "auto" | "dhcp" | "manual") || is_cidr6(value);
            require(fits, "value does not look like a valid ipv6 network configuration".into())
        }
        "pve-bridge-id" => check_bridge(value),
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

/// One to three whole octets, and perhaps one digit of the next.
fn is_mac_prefix(value: &str) -> bool {
    let octets: Vec<&str> = value.split(':').collect();
    let (last, whole) = octets.split_last().unwrap_or((&"", &[]));
    let digits = |o: &str| o.bytes().all(|b| b.is_ascii_hexdigit());
    let full = |o: &&str| o.len() == 2 && digits(o);
    let fits = match whole.len() {
        0 => full(last),
        1..=2 => last.len() <= 2 && digits(last),
        3 => last.len() <= 1 && digits(last),
        _ => false,
    };
    let unicast = octets.first().and_then(|o| u8::from_str_radix(o, 16).ok());
    fits && whole.iter().all(full) && unicast.is_some_and(|first| first & 1 == 0)
}

fn check_storage_id(value: &str) -> Result<(), String> {
    if value.chars().count() < 2 {
        return Err(format!("storage ID '{value}' cannot be shorter than 2 characters"));
    }
    if is_storage_id(value) {
        return Ok(());
    }
    Err(format!("storage ID '{value}' contains illegal characters"))
}

fn check_bridge(value: &str) -> Result<(), String> {
    if is_bridge(value) {
        return Ok(());
    }
    Err(format!("invalid bridge ID '{value}'"))
}

/// One entry of a mapping: an id, `source:target`, or 1 for everything onto itself.
fn check_pair(value: &str, check: fn(&str) -> Result<(), String>) -> Result<(), String> {
    if value == "1" {
        return Ok(());
    }
    let ids: Vec<&str> = match value.split_once(':') {
        Some((source, target)) if !source.is_empty() && !target.is_empty() && !target.contains(':') => vec![source, target],
        _ => vec![value],
    };
    let checked = ids.into_iter().try_for_each(check);
    checked.map_err(|why| format!("entry '{value}' contains invalid ID - {why}\n\n"))
}

fn is_mail_user(value: &str) -> bool {
    let part = |p: &str| !p.is_empty() && p.chars().all(|c| c.is_alphanumeric() || "_+-~".contains(c));
    value.split('.').all(part)
}

fn is_email(value: &str) -> bool {
    let label = |l: &str| !l.is_empty() && l.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    value
        .rsplit_once('@')
        .is_some_and(|(user, host)| is_mail_user(user) && host.split('.').all(label))
}

/// `[order=]N`, `up=N` and `down=N` in any order.
fn is_startup_order(value: &str) -> bool {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let part = |p: &str| {
        let rest = ["order=", "up=", "down="].iter().find_map(|key| p.strip_prefix(key));
        p.trim().is_empty() || digits(rest.unwrap_or(p))
    };
    !value.is_empty() && value != "0" && value.split(',').all(part)
}

fn check_vlans(value: &str) -> Result<(), String> {
    let (first, last) = value.split_once('-').map_or((value, None), |(a, b)| (a, Some(b)));
    let number = |text: &str| text.parse::<u32>().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    let tag = |n: u32| match (2..=4094).contains(&n) {
        true => Ok(n),
        false => Err(format!("invalid VLAN tag '{n}'")),
    };
    let malformed = || format!("invalid VLAN configuration '{value}'");
    let start = tag(number(first).ok_or_else(malformed)?)?;
    match last {
        Some(last) if start >= tag(number(last).ok_or_else(malformed)?)? => {
            Err(format!("VLAN range must go from lower to higher tag '{value}'"))
        }
        _ => Ok(()),
    }
}

fn is_ip(value: &str) -> bool {
    value.parse::<std::net::IpAddr>().is_ok()
}

fn is_cidr4(value: &str) -> bool {
    let Some((address, bits)) = value.split_once('/') else {
        return false;
    };
    address.parse::<Ipv4Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|b| (8..=32).contains(&b))
}

fn is_cidr6(value: &str) -> bool {
    let Some((address, bits)) = value.split_once('/') else {
        return false;
    };
    address.parse::<Ipv6Addr>().is_ok() && bits.parse::<u8>().is_ok_and(|b| (8..=128).contains(&b))
}

fn check_userid(value: &str) -> Result<(), String> {
    if value.chars().count() < 3 {
        return Err(format!("user name '{value}' is too short"));
    }
    if value.chars().count() > 64 {
        return Err(format!("user name '{value}' is too long ({} > 64)", value.chars().count()));
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
    // Empty parts at the end do not count, as Perl splits.
    if value.trim_end_matches('/').split('/').count() > 3 {
        return Err(format!("pool name '{value}' nested too deeply (max levels = 3)"));
    }
    let levels: Vec<&str> = value.split('/').collect();
    if levels.len() <= 3 && levels.iter().all(|level| is_name(level)) {
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
    if crate::nodes::is_cpu_model(value) {
        return Ok(());
    }
    if let Some(name) = value.strip_prefix("custom-") {
        return Err(format!("Custom cputype '{name}' not found"));
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

/// A letter, one to twenty more characters, and perhaps a number behind a colon or a dot.
fn is_iface(value: &str) -> bool {
    let (name, number) = match value.rfind([':', '.']) {
        Some(at) => (&value[..at], Some(&value[at + 1..])),
        None => (value, None),
    };
    (2..=21).contains(&name.len())
        && name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
        && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && number.is_none_or(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{check_named, split_list};

    fn refused(format: &str, value: &str) -> String {
        check_named(format, value).err().unwrap_or_default()
    }

    #[test]
    fn a_list_is_split_at_nul_alone_where_there_is_one() {
        assert_eq!(split_list("a,b;c d").collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!(split_list("a,b\0c").collect::<Vec<_>>(), ["a,b", "c"]);
        assert_eq!(split_list(" ,;").count(), 0);
    }

    #[test]
    fn named_formats_refuse_in_the_words_of_pve() {
        for (format, value, expected) in [
            ("pve-storage-id", "a", "storage ID 'a' cannot be shorter than 2 characters\n"),
            ("pve-storage-id", "a-", "storage ID 'a-' contains illegal characters\n"),
            ("CIDRv4", "10.0.0.0/7", "value does not look like a valid IPv4 CIDR network\n"),
            ("CIDRv4", "10.0.0.0/8", ""),
            ("CIDRv6", "fd00::/129", "value does not look like a valid IPv6 CIDR network\n"),
            ("address", "a_b", "value does not look like a valid address: a_b\n"),
            ("address", "foo", ""),
            ("email", "a@b", ""),
            ("email", "a b@c", "value does not look like a valid email address\n"),
            ("email-opt", "", ""),
            ("pve-startup-order", "order=1,up=5", ""),
            ("pve-startup-order", "3,down=4", ""),
            ("pve-startup-order", "first", "unable to parse startup options\n"),
            ("pve-userid", "a", "user name 'a' is too short\n"),
            ("pve-userid", "abc", "value 'abc' does not look like a valid user name\n"),
            ("pve-poolid", "1a/b", ""),
            (
                "pve-poolid",
                "a/b/c/d",
                "pool name 'a/b/c/d' nested too deeply (max levels = 3)\n",
            ),
            ("pve-poolid", "a b", "pool name 'a b' contains invalid characters\n"),
            ("pve-iface", "vmbr0.5", ""),
            ("pve-iface", "v", "invalid network interface name 'v'\n"),
            ("mac-prefix", "02:1", ""),
            ("mac-prefix", "BC:24:11", ""),
            ("mac-prefix", "BC:24:11:a", ""),
            (
                "mac-prefix",
                "BC:24:11:22",
                "value is not a valid unicast MAC address prefix\n",
            ),
            ("mac-prefix", "03", "value is not a valid unicast MAC address prefix\n"),
            (
                "pve-vlan-id-or-range",
                "10-5",
                "VLAN range must go from lower to higher tag '10-5'\n",
            ),
            ("pve-vlan-id-or-range", "1", "invalid VLAN tag '1'\n"),
            ("pve-task-status-type-list", "ok,bad", "invalid status 'bad'\n"),
            ("storage-pair-list", "local:b2,1", ""),
        ] {
            assert_eq!(refused(format, value), expected, "{format} {value:?}");
        }
    }

    #[test]
    fn every_vlan_outside_its_range_is_refused() {
        for tag in [0_u32, 1, 4095, 5000] {
            assert_eq!(
                refused("pve-vlan-id-or-range", &tag.to_string()),
                format!("invalid VLAN tag '{tag}'\n")
            );
        }
        for tag in [2_u32, 100, 4094] {
            assert_eq!(refused("pve-vlan-id-or-range", &tag.to_string()), "");
        }
    }
}
