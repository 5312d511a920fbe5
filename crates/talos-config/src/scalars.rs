//! Scalars by type: what Talos accepts, and how it writes them back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::schema::{IntRange, Schema, Type};
use crate::secret_paths::MASK;
use crate::yaml::{Scalar, ScalarKind};

/// `Err(None)` means: not of this type at all.
pub fn decode(scalar: &Scalar, kind: &Type, schema: Schema) -> Result<Scalar, Option<String>> {
    let text = scalar.text.as_str();
    match kind {
        Type::Bool => bool_of(scalar).map(Scalar::bool).ok_or(None),
        Type::Int(range) => int_of(scalar, *range).map(Scalar::int).ok_or(None),
        Type::Float => matches!(scalar.kind, ScalarKind::Int | ScalarKind::Float)
            .then(|| canonical(scalar))
            .ok_or(None),
        Type::Duration => duration(scalar).map(Scalar::text).ok_or(None),
        Type::FileMode => file_mode(scalar),
        Type::DiskSize => disk_size(text),
        Type::Enum(name) => word(text, name, schema).map(Scalar::text).map_err(Some),
        Type::Prefix if !text.is_empty() => prefix(text).map(|()| Scalar::text(text)).map_err(Some),
        Type::Address if !text.is_empty() => address(text).map(|found| Scalar::text(found.to_string())).map_err(Some),
        Type::AddressPort if !text.is_empty() => address_port(text).map(|()| Scalar::text(text)).map_err(Some),
        Type::Url => url(text).map(|()| Scalar::text(text)).map_err(Some),
        Type::Mac => mac(text).map(Scalar::text).map_err(Some),
        Type::Base64 => base64_text(text).map_err(Some),
        Type::ByteSize => byte_size(text).map(|()| Scalar::text(text)).map_err(Some),
        Type::DiskSizeMatch => size_condition(text).map(|()| Scalar::text(text)).map_err(Some),
        Type::Size if text.contains('%') => percentage(text).map(|()| Scalar::text(text)).map_err(Some),
        Type::Size => byte_size(text.trim_start_matches('-'))
            .map(|()| Scalar::text(text))
            .map_err(Some),
        Type::PortRange => port_range(text)
            .map(|()| Scalar {
                text: text.to_owned(),
                kind: scalar.kind,
            })
            .map_err(Some),
        _ => Ok(Scalar::text(text)),
    }
}

/// Numbers in their usual spelling.
pub fn canonical(scalar: &Scalar) -> Scalar {
    match scalar.kind {
        ScalarKind::Int => scalar.as_int().map_or_else(|| scalar.clone(), Scalar::int),
        ScalarKind::Bool => scalar.as_bool().map_or_else(|| scalar.clone(), Scalar::bool),
        ScalarKind::Null => Scalar::null(),
        ScalarKind::Float => canonical_float(scalar),
        // A date alone means its midnight.
        ScalarKind::Timestamp if scalar.text.len() == 10 => Scalar {
            text: format!("{}T00:00:00Z", scalar.text),
            kind: scalar.kind,
        },
        ScalarKind::Timestamp | ScalarKind::Text => scalar.clone(),
    }
}

fn canonical_float(scalar: &Scalar) -> Scalar {
    match scalar.text.replace('_', "").parse::<f64>() {
        Ok(number) if number.is_finite() => Scalar {
            text: number.to_string(),
            kind: ScalarKind::Float,
        },
        _ => scalar.clone(),
    }
}

/// Words of YAML 1.1 count where a boolean is wanted.
fn bool_of(scalar: &Scalar) -> Option<bool> {
    match (scalar.kind, scalar.text.as_str()) {
        (ScalarKind::Bool, _) => scalar.as_bool(),
        (ScalarKind::Text, "y" | "Y" | "yes" | "on") => Some(true),
        (ScalarKind::Text, "n" | "N" | "no" | "off") => Some(false),
        _ => None,
    }
}

fn int_of(scalar: &Scalar, range: IntRange) -> Option<i128> {
    let number = match scalar.kind {
        ScalarKind::Int => scalar.as_int()?,
        ScalarKind::Float => {
            let whole = scalar.text.strip_suffix(".0")?;
            whole.parse().ok()?
        }
        _ => return None,
    };
    (range.min..=range.max).contains(&number).then_some(number)
}

fn word(text: &str, name: &str, schema: Schema) -> Result<String, String> {
    let words = schema.words(name);
    let lower = text.to_lowercase();
    let found = words
        .iter()
        .find(|word| **word == text)
        .or_else(|| words.iter().find(|word| word.to_lowercase() == lower));
    match found {
        Some(word) => Ok((*word).to_owned()),
        None if name == "RoutingTable" && text.parse::<u8>().is_ok() => Ok(text.to_owned()),
        None if name == "FailOverMAC" => Err(format!("invalid fail_over_mac value {text}")),
        None => Err(format!("{text} does not belong to {name} values")),
    }
}

/// `1h`, `90s`, `1m30.5s` and so on, written back as Go writes them: `1h0m0s`, `1m30s`, `1m30.5s`.
fn duration(scalar: &Scalar) -> Option<String> {
    (scalar.kind == ScalarKind::Text || scalar.text == "0")
        .then(|| parse_duration(&scalar.text))?
        .map(format_duration)
}

/// Nanoseconds.
pub fn parse_duration(text: &str) -> Option<i128> {
    let (negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total: i128 = 0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..digits].parse().ok()?;
        rest = &rest[digits..];
        let unit_end = rest.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(rest.len());
        let scale: i128 = match &rest[..unit_end] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        total += nanoseconds(number, scale);
        rest = &rest[unit_end..];
    }
    Some(if negative { -total } else { total })
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "durations of a config are far below 2^53"
)]
fn nanoseconds(number: f64, scale: i128) -> i128 {
    (number * scale as f64).round() as i128
}

fn format_duration(nanoseconds: i128) -> String {
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let total = nanoseconds.unsigned_abs();
    let second = 1_000_000_000;
    if total == 0 {
        return "0s".to_owned();
    }
    if total < second {
        let (divisor, unit) = match total {
            ..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            _ => (1_000_000, "ms"),
        };
        return format!("{sign}{}{unit}", with_fraction(total / divisor, total % divisor, divisor));
    }
    let (hours, minutes) = (total / second / 3600, total / second / 60 % 60);
    let seconds = with_fraction(total / second % 60, total % second, second);
    match (hours, minutes) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

fn with_fraction(whole: u128, rest: u128, scale: u128) -> String {
    if rest == 0 {
        return whole.to_string();
    }
    let width = scale.to_string().len() - 1;
    format!("{whole}.{rest:0width$}").trim_end_matches('0').to_owned()
}

/// With the words of Go's `netip`.
pub fn address(text: &str) -> Result<IpAddr, String> {
    let fail = |problem: &str| Err(format!("ParseAddr({text:?}): {problem}"));
    match text.find(['.', ':', '%']).map(|at| &text[at..=at]) {
        Some(".") => match text.parse::<Ipv4Addr>() {
            Ok(found) => Ok(IpAddr::V4(found)),
            Err(_) => fail(ipv4_problem(text)),
        },
        Some(":") => {
            let bare = text.split('%').next().unwrap_or_default();
            bare.parse::<Ipv6Addr>()
                .map(IpAddr::V6)
                .or_else(|_| fail("unable to parse IP"))
        }
        Some(_) => fail("missing IPv6 address"),
        None => fail("unable to parse IP"),
    }
}

fn ipv4_problem(text: &str) -> &'static str {
    let fields: Vec<&str> = text.split('.').collect();
    for field in &fields {
        if field.is_empty() {
            return "IPv4 field must have at least one digit";
        }
        if !field.bytes().all(|byte| byte.is_ascii_digit()) {
            return "unexpected character";
        }
        if field.len() > 1 && field.starts_with('0') {
            return "IPv4 field has octet with leading zero";
        }
        if field.parse::<u8>().is_err() {
            return "IPv4 field has value >255";
        }
    }
    if fields.len() < 4 {
        "IPv4 address too short"
    } else {
        "IPv4 address too long"
    }
}

pub fn prefix(text: &str) -> Result<(), String> {
    let fail = |problem: String| Err(format!("netip.ParsePrefix({text:?}): {problem}"));
    let Some((ip, bits)) = text.rsplit_once('/') else {
        return fail("no '/'".to_owned());
    };
    let ip = match address(ip) {
        Ok(ip) => ip,
        Err(problem) => return fail(problem),
    };
    if bits.is_empty() || !bits.bytes().all(|byte| byte.is_ascii_digit()) {
        return fail(format!("bad bits after slash: {bits:?}"));
    }
    let most = if ip.is_ipv4() { 32 } else { 128 };
    if bits.parse::<u32>().is_ok_and(|bits| bits <= most) {
        Ok(())
    } else {
        fail("prefix length out of range".to_owned())
    }
}

fn address_port(text: &str) -> Result<(), String> {
    text.parse::<std::net::SocketAddr>()
        .map(|_| ())
        .map_err(|_| "not an ip:port".to_owned())
}

/// An address and port without a scheme is no URL to Go.
fn url(text: &str) -> Result<(), String> {
    let starts_with_letter = text.starts_with(|first: char| first.is_ascii_alphabetic());
    let segment = text.split('/').next().unwrap_or_default();
    if text.starts_with(':') {
        Err(format!("parse {text:?}: missing protocol scheme"))
    } else if !starts_with_letter && segment.contains(':') {
        Err(format!("parse {text:?}: first path segment in URL cannot contain colon"))
    } else {
        Ok(())
    }
}

fn mac(text: &str) -> Result<String, String> {
    let groups: Vec<&str> = text.split([':', '-']).collect();
    let fits = groups
        .iter()
        .all(|group| group.len() == 2 && group.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if fits && groups.len() >= 6 {
        Ok(groups.join(":").to_lowercase())
    } else {
        Err(format!("address {text}: invalid MAC address"))
    }
}

/// Certificates and keys. Stars stand for a value that was redacted.
fn base64_text(text: &str) -> Result<Scalar, String> {
    if text == "******" || STANDARD.decode(text.replace(['\n', '\r'], "")).is_ok() {
        return Ok(Scalar::text(text));
    }
    let alphabet = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'\n' | b'\r');
    let at = text.bytes().position(|byte| !alphabet(byte)).unwrap_or(text.len() / 4 * 4);
    Err(format!("illegal base64 data at input byte {at}"))
}

/// A WireGuard key. Upstream quotes a wrong one; we do not.
pub fn wireguard_key(text: &str) -> Result<(), String> {
    base64_text(text)?;
    let length = STANDARD.decode(text).map(|bytes| bytes.len()).unwrap_or_default();
    let shown = if text.is_empty() { "" } else { MASK };
    if length == 32 {
        Ok(())
    } else {
        Err(format!("wrong key {shown:?} length: {length}"))
    }
}

/// Written back as the octal number that people know.
fn file_mode(scalar: &Scalar) -> Result<Scalar, Option<String>> {
    scalar
        .as_int()
        .and_then(|bits| u32::try_from(bits).ok())
        .map(mode)
        .ok_or(None)
}

/// The permissions of a file as Talos writes them.
pub fn mode(bits: u32) -> Scalar {
    Scalar {
        text: format!("0o{bits:o}"),
        kind: ScalarKind::Int,
    }
}

/// Bytes, written back as a round number of units where that loses nothing: `10GB` becomes `10 GB`.
fn disk_size(text: &str) -> Result<Scalar, Option<String>> {
    byte_size(text).map_err(Some)?;
    let bytes = bytes_of(text).unwrap_or_default();
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    let power = (0..units.len())
        .rev()
        .find(|power| bytes >= thousands(*power))
        .unwrap_or_default();
    let scale = thousands(power);
    let tenths = bytes * 10 / scale;
    let is_exact = bytes.is_multiple_of(1000) && tenths * scale == bytes * 10 && (tenths.is_multiple_of(10) || tenths < 100);
    Ok(match (is_exact, tenths) {
        (false, _) => Scalar::int(i128::try_from(bytes).unwrap_or_default()),
        (true, ..100) if power > 0 => Scalar::text(format!("{}.{} {}", tenths / 10, tenths % 10, units[power])),
        (true, _) => Scalar::text(format!("{} {}", tenths / 10, units[power])),
    })
}

fn thousands(power: usize) -> u128 {
    (0..power).fold(1, |product, _| product * 1000)
}

/// The number of bytes that a size such as `10GiB` means.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes of disks are far below 2^53"
)]
pub fn bytes_of(size: &str) -> Option<u128> {
    let split = size.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(size.len());
    let number: f64 = size[..split].parse().ok()?;
    let unit = size[split..].trim().to_ascii_lowercase();
    let power = "bkmgtpe".find(unit.chars().next().unwrap_or('b'))?;
    let base: f64 = if unit.contains('i') { 1024.0 } else { 1000.0 };
    Some((number * base.powi(i32::try_from(power).ok()?)) as u128)
}

fn byte_size(text: &str) -> Result<(), String> {
    let split = text
        .find(|c: char| !c.is_ascii_digit() && !matches!(c, '.' | ',' | '+' | '-'))
        .unwrap_or(text.len());
    let (number, unit) = (text[..split].replace(',', ""), text[split..].trim().to_lowercase());
    if !text.is_empty() && number.parse::<f64>().is_err() {
        return Err(format!("strconv.ParseFloat: parsing {number:?}: invalid syntax"));
    }
    let known = [
        "", "b", "k", "kb", "kib", "m", "mb", "mib", "g", "gb", "gib", "t", "tb", "tib", "p", "pb", "pib", "e", "eb", "eib",
    ];
    let known = known.contains(&unit.as_str()) || matches!(unit.as_str(), "ki" | "mi" | "gi" | "ti" | "pi" | "ei");
    if known {
        Ok(())
    } else {
        Err(format!("unhandled size name: {unit}"))
    }
}

/// `>= 10GB`
fn size_condition(text: &str) -> Result<(), String> {
    let size = text.trim_start_matches(['<', '>', '=']).trim();
    byte_size(size).map_err(|problem| format!("failed to parse disk size {size}: {problem}"))
}

fn percentage(text: &str) -> Result<(), String> {
    let Some(number) = text.trim_start_matches('-').strip_suffix('%') else {
        return Err("percentage must end with '%'".to_owned());
    };
    match number.parse::<f64>() {
        Ok(value) if (0.0..=100.0).contains(&value) => Ok(()),
        Ok(value) => Err(format!("percentage must be between 0 and 100, got {value}")),
        Err(_) => Err(format!(
            "invalid percentage value: strconv.ParseFloat: parsing {number:?}: invalid syntax"
        )),
    }
}

fn port_range(text: &str) -> Result<(), String> {
    let port = |text: &str| text.parse::<u16>().map_err(|_| format!("invalid port {text:?}"));
    match text.split_once('-') {
        Some((low, high)) if port(low)? > port(high)? => Err(format!("invalid port range: {text}")),
        Some(_) => Ok(()),
        None => port(text).map(|_| ()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_written_as_go_writes_them() {
        let cases = [
            ("90s", "1m30s"),
            ("1h", "1h0m0s"),
            ("1.5s", "1.5s"),
            ("250ms", "250ms"),
            ("0", "0s"),
            ("168h", "168h0m0s"),
        ];
        for (text, expected) in cases {
            assert_eq!(parse_duration(text).map(format_duration).as_deref(), Some(expected));
        }
        for text in ["", "5", "1x", "s", "-"] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn addresses_fail_with_the_words_of_go() {
        assert_eq!(address("net0").unwrap_err(), r#"ParseAddr("net0"): unable to parse IP"#);
        assert_eq!(
            address("10.0.0.300").unwrap_err(),
            r#"ParseAddr("10.0.0.300"): IPv4 field has value >255"#
        );
        assert_eq!(prefix("10.0.0.1").unwrap_err(), r#"netip.ParsePrefix("10.0.0.1"): no '/'"#);
        assert_eq!(
            prefix("10.0.0.1/33").unwrap_err(),
            r#"netip.ParsePrefix("10.0.0.1/33"): prefix length out of range"#
        );
    }
}
