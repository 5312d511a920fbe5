//! Values as people write them: sizes, versions, ranges, addresses, names.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use rancher_config::{Checksum, MirrorError, ReleaseError, VersionError, VersionRequest};
use semver::Version;
use url::Url;

use crate::diagnostic::{ValueError, quote};
use crate::naming::is_label;
use crate::spec::{Jump, NamePattern, Taint, TaintEffect, VersionWish};

pub(crate) type Read<T> = Result<T, ValueError>;

/// Memory, in MiB: what PVE counts in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mib(pub u64);

impl fmt::Display for Mib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_multiple_of(1024) {
            write!(f, "{}GiB", self.0 / 1024)
        } else {
            write!(f, "{}MiB", self.0)
        }
    }
}

/// A disk, in GiB: what every PVE storage can allocate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Gib(pub u64);

impl fmt::Display for Gib {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}GiB", self.0)
    }
}

/// A MAC address, printed the way PVE does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02X}:{e:02X}:{g:02X}")
    }
}

/// Plain decimal, or `None`.
pub(crate) fn integer(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    // Too many digits for a number are still a number, only far out of bounds.
    plain.then(|| text.parse().unwrap_or(u64::MAX))
}

pub(crate) fn memory(text: &str) -> Read<Mib> {
    let bytes = size(text)?;
    if bytes.is_multiple_of(1 << 20) {
        Ok(Mib(bytes >> 20))
    } else {
        Err(ValueError::new("is not a whole number of MiB", "too fine")
            .why("PVE gives memory to a VM in MiB.")
            .help(format!("write {}MiB.", bytes.div_ceil(1 << 20))))
    }
}

pub(crate) fn disk_size(text: &str) -> Read<Gib> {
    let bytes = size(text)?;
    if bytes.is_multiple_of(1 << 30) {
        Ok(Gib(bytes >> 30))
    } else {
        Err(ValueError::new("is not a whole number of GiB", "too fine for a disk")
            .why("not every PVE storage can allocate a fraction of a GiB.")
            .help(format!("write {}GiB.", bytes.div_ceil(1 << 30))))
    }
}

/// Bytes. `G` and `GiB` are the same thing, as everywhere in PVE.
fn size(text: &str) -> Read<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "MiB" | "Mi" | "M" => 20,
        "GiB" | "Gi" | "G" => 30,
        "TiB" | "Ti" | "T" => 40,
        "" if !number.is_empty() => return Err(no_unit(number)),
        "KB" | "kB" | "MB" | "GB" | "TB" => return Err(decimal_unit(number, unit.trim())),
        _ => return Err(not_a_size(text)),
    };
    let number: u64 = number.parse().map_err(|_| not_a_size(text))?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0 && *bytes <= 1 << 54)
        .ok_or_else(|| {
            ValueError::new("is out of bounds", "not a size that a machine can have")
                .why("a size is more than nothing, and no storage holds that much.")
                .help("write a size between 1MiB and 16384TiB.")
        })
}

fn no_unit(number: &str) -> ValueError {
    ValueError::new("has no unit", "MiB or GiB?")
        .why("PVE takes memory in MiB and disks in GiB; a bare number would be a guess.")
        .help(format!("write {number}GiB or {number}MiB."))
}

fn decimal_unit(number: &str, unit: &str) -> ValueError {
    let binary = unit.replace('B', "iB");
    ValueError::new(format!("is given in {unit}"), "a power of ten")
        .why(format!(
            "PVE counts in powers of two: it cannot make a size of {number} {unit} exactly."
        ))
        .help(format!("write {number}{binary}."))
}

fn not_a_size(text: &str) -> ValueError {
    ValueError::new(
        format!("is not a size: {}", quote(text)),
        "expected a whole number and a unit",
    )
    .why("sizes are whole numbers of MiB, GiB or TiB; `8G` means `8GiB`.")
    .help("write it like 8GiB, 8G or 8192MiB.")
}

/// `1.13`, `1.13.9`, `v1.13.9`, `1.14.0-rc.1`.
pub(crate) fn version(text: &str) -> Read<VersionWish> {
    let plain = text.strip_prefix('v').unwrap_or(text);
    if let Some((major, minor)) = plain.split_once('.')
        && let (Some(major), Some(minor)) = (number(major), number(minor))
    {
        return Ok(VersionWish::Minor(major, minor));
    }
    match Version::parse(plain) {
        Ok(version) if version.build.is_empty() => Ok(VersionWish::Exact(version)),
        Ok(_) => Err(ValueError::new(
            format!("carries build metadata: {}", quote(text)),
            "nothing may follow a `+` here",
        )
        .why("Talos and Kubernetes releases have none; RKE2 and k3s name theirs in their own section.")
        .help(format!("write {}.", plain.split('+').next().unwrap_or(plain)))),
        Err(_) => Err(
            ValueError::new(format!("is not a version: {}", quote(text)), "expected something like 1.13.9")
                .why("a version is major.minor or major.minor.patch.")
                .help("write 1.13.9 for exactly this release, or 1.13 for the newest known patch of 1.13."),
        ),
    }
}

fn number(text: &str) -> Option<u64> {
    let canonical = text.bytes().all(|b| b.is_ascii_digit()) && (text == "0" || !text.starts_with('0'));
    if canonical { text.parse().ok() } else { None }
}

pub(crate) fn rke2_version(text: &str) -> Read<VersionRequest> {
    rancher_version(rancher_config::Distro::Rke2, text)
}

pub(crate) fn k3s_version(text: &str) -> Read<VersionRequest> {
    rancher_version(rancher_config::Distro::K3s, text)
}

/// `1.36.3+rke2r1` exactly, `1.36` for its newest known release, `stable` or `latest`.
fn rancher_version(distro: rancher_config::Distro, text: &str) -> Read<VersionRequest> {
    let newest = rancher_config::newest(distro);
    let exact = newest.to_string().trim_start_matches('v').to_owned();
    let minor = format!("1.{}", newest.minor());
    let help = format!("write {exact} for exactly this release, {minor} for the newest known release of {minor}, or stable.");
    VersionRequest::parse(distro, text).map_err(|error| match error {
        ReleaseError::UnknownMinor {
            minor, oldest, newest, ..
        } => ValueError::new(
            format!("names Kubernetes 1.{minor}, which is not supported"),
            format!("known are 1.{oldest} to 1.{newest}"),
        )
        .why(format!(
            "this version of mainstay installs {distro} 1.{oldest} to 1.{newest}."
        ))
        .help(help),
        ReleaseError::Version(VersionError::PreRelease(_)) => {
            ValueError::new(format!("is a pre-release: {}", quote(text)), "not a release")
                .why(format!("only releases of {distro} are installed."))
                .help(help)
        }
        ReleaseError::Version(VersionError::OtherDistro { seen, .. }) => ValueError::new(
            format!("is a release of {seen}: {}", quote(text)),
            format!("not one of {distro}"),
        )
        .why(format!("this section installs {distro}."))
        .help(help),
        ReleaseError::Version(VersionError::Malformed { .. }) | ReleaseError::Downgrade { .. } => ValueError::new(
            format!("is not a release: {}", quote(text)),
            format!("expected something like {exact}"),
        )
        .why(format!(
            "a release of {distro} names the Kubernetes version and, after `+`, its own revision of it."
        ))
        .help(help),
    })
}

/// Where release artifacts are fetched from instead of GitHub. Their checksums are verified, so plain HTTP is allowed.
pub(crate) fn mirror(text: &str) -> Read<Url> {
    let wrong = |label: &str| {
        ValueError::new(format!("is not the address of a mirror: {}", quote(text)), label)
            .why("files are fetched from `<mirror>/<release>/<file>`, as from the releases on GitHub.")
            .help("write it like https://mirror.lan/rke2, without user, password or query.")
    };
    let url = Url::parse(text).map_err(|_| wrong("expected https://host/path"))?;
    match rancher_config::ArtifactSource::mirror(&url) {
        Ok(_) => Ok(url),
        Err(MirrorError::Scheme(_)) => Err(wrong("neither https nor http")),
        Err(MirrorError::Credentials) => Err(wrong("a user or password in the URL")),
        Err(MirrorError::Query) => Err(wrong("a query or fragment in the URL")),
    }
}

/// A disk image that PVE downloads.
pub(crate) fn image_url(text: &str) -> Read<Url> {
    let wrong = |label: &str| {
        ValueError::new(format!("is not the address of an image: {}", quote(text)), label)
            .why("PVE downloads the file itself and verifies its checksum.")
            .help("write it like https://mirror.lan/noble-server-cloudimg-amd64.img.")
    };
    let url = Url::parse(text).map_err(|_| wrong("expected https://host/file"))?;
    if !matches!(url.scheme(), "https" | "http") {
        return Err(wrong("neither https nor http"));
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(wrong("a user or password in the URL"));
    }
    match rancher_config::refused_image(&url) {
        None => Ok(url),
        Some(refusal) => Err(ValueError::new("names an image that cannot be used", "not this image")
            .why(format!("{refusal}."))
            .help("use `image: ubuntu-24.04` or `image: debian-13`, or a file of these systems.")),
    }
}

/// `sha256:…`, `sha512:…`, or the digits alone.
pub(crate) fn checksum(text: &str) -> Read<Checksum> {
    let (algorithm, digits) = text
        .split_once(':')
        .map_or((None, text), |(name, digits)| (Some(name), digits));
    let parsed = Checksum::parse(digits).ok();
    parsed
        .filter(|checksum| algorithm.is_none_or(|name| name == checksum.algorithm()))
        .ok_or_else(|| {
            ValueError::new("is not a SHA-256 or SHA-512 checksum", "expected 64 or 128 hex digits")
                .why("PVE verifies the file against it before the image is used.")
                .help("copy it from the publisher's SHA256SUMS or SHA512SUMS, like sha256:0123….")
        })
}

/// A public key as in `authorized_keys`.
pub(crate) fn ssh_key(text: &str) -> Read<String> {
    let key = text.trim().to_owned();
    match rancher_config::authorized_keys("", std::slice::from_ref(&key)) {
        Ok(_) => Ok(key),
        Err(_) => Err(
            ValueError::new("is not an SSH public key", "expected a line like ssh-ed25519 AAAA…")
                .why("it becomes a line of authorized_keys on every machine.")
                .help("copy a .pub file, for example ~/.ssh/id_ed25519.pub; a private key never belongs here."),
        ),
    }
}

pub(crate) fn ipv4(text: &str) -> Read<Ipv4Addr> {
    text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(_) => ValueError::new("is an IPv6 address", "this version supports IPv4 only")
            .why("machines of this version have one IPv4 address each.")
            .help("give an IPv4 address."),
        Err(_) if text.contains('/') => {
            ValueError::new(format!("is not an address: {}", quote(text)), "a network, not an address")
                .why("one address is expected here; the mask comes from `network.cidr`.")
                .help(format!("write {}.", text.split('/').next().unwrap_or(text)))
        }
        Err(_) => ValueError::new(format!("is not an address: {}", quote(text)), "not an IPv4 address")
            .why("four numbers from 0 to 255, without leading zeros, are expected.")
            .help("write it like 10.0.0.11."),
    })
}

pub(crate) fn ip(text: &str) -> Read<IpAddr> {
    text.parse().map_err(|_| {
        ValueError::new(format!("is not an address: {}", quote(text)), "not an IP address")
            .why("a machine asks this server before it can resolve names, so a name cannot stand here.")
            .help("write an address like 1.1.1.1.")
    })
}

pub(crate) fn cidr(text: &str) -> Read<Ipv4Net> {
    let Ok(network) = text.parse::<Ipv4Net>() else {
        return Err(
            ValueError::new(format!("is not an IPv4 network: {}", quote(text)), "expected address/prefix")
                .why("a network is its first address and the number of bits that all its addresses share.")
                .help("write it like 10.0.0.0/16."),
        );
    };
    if network != network.trunc() {
        return Err(ValueError::new(
            format!("is an address inside a network: {}", quote(text)),
            "host bits are set",
        )
        .why("it would be unclear whether the address or the network is meant.")
        .help(format!("write {}.", network.trunc())));
    }
    Ok(network)
}

/// Addresses or VMIDs in the order of the ordinals that get them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Range {
    parts: Vec<RangePart>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RangePart {
    pub first: u32,
    /// `None`: as many as needed, only in the last part.
    pub last: Option<u32>,
}

impl Range {
    pub(crate) fn open(first: u32) -> Self {
        Self {
            parts: vec![RangePart { first, last: None }],
        }
    }

    pub(crate) fn join(ranges: impl IntoIterator<Item = Self>) -> Self {
        Self {
            parts: ranges.into_iter().flat_map(|range| range.parts).collect(),
        }
    }

    pub(crate) fn parts(&self) -> &[RangePart] {
        &self.parts
    }

    /// What the machine with this ordinal gets; ordinal 1 is the start of the range.
    pub(crate) fn nth(&self, ordinal: u32) -> Option<u32> {
        let mut left = ordinal.checked_sub(1)?;
        for part in &self.parts {
            let Some(last) = part.last else {
                return part.first.checked_add(left);
            };
            let length = last - part.first + 1;
            if left < length {
                return Some(part.first + left);
            }
            left -= length;
        }
        None
    }

    /// How many it holds, `None` for an open end.
    pub(crate) fn len(&self) -> Option<u64> {
        self.parts
            .iter()
            .map(|part| part.last.map(|last| u64::from(last - part.first) + 1))
            .sum()
    }
}

/// `10.0.0.11`, `10.0.0.11+`, `10.0.0.11-13`, `10.0.0.11-10.0.0.13`.
pub(crate) fn addresses(text: &str) -> Read<Range> {
    range(
        text,
        &Notation {
            number: |text| text.parse::<Ipv4Addr>().ok().map(u32::from),
            // The part after the dash may be the last number alone.
            short: |first, text| text.parse::<u8>().ok().map(|last| first & 0xffff_ff00 | u32::from(last)),
            show: |number| Ipv4Addr::from(number).to_string(),
            name: "an address range",
            examples: "10.0.0.11+ (as many as needed), 10.0.0.11-13 or a list",
        },
    )
}

/// `10.0.0.240-10.0.0.250` or `10.0.0.240-250`: both ends are given.
pub(crate) fn address_span(text: &str) -> Read<(Ipv4Addr, Ipv4Addr)> {
    let range = addresses(text)?;
    match range.parts() {
        [RangePart { first, last: Some(last) }] => Ok((Ipv4Addr::from(*first), Ipv4Addr::from(*last))),
        _ => Err(
            ValueError::new(format!("has no end: {}", quote(text)), "expected a first and a last address")
                .why("the range is used as a whole, so that its end must be known.")
                .help("write it like 10.0.0.240-10.0.0.250."),
        ),
    }
}

/// A Git repository by https or ssh; `git@host:path` is the same as ssh.
pub(crate) fn git_url(text: &str) -> Read<Url> {
    let short = text
        .split_once(':')
        .filter(|(host, path)| host.contains('@') && !host.contains('/') && !path.starts_with("//"))
        .map(|(host, path)| format!("ssh://{host}/{}", path.trim_start_matches('/')));
    let wrong = |label: &str| {
        ValueError::new(format!("is not a repository: {}", quote(text)), label)
            .why("Flux and Argo CD clone the repository from inside the cluster.")
            .help("write it like ssh://git@git.example/infra.git or https://git.example/infra.git.")
    };
    let url = Url::parse(short.as_deref().unwrap_or(text)).map_err(|_| wrong("expected a URL"))?;
    match url.scheme() {
        _ if url.password().is_some() => Err(wrong("a password in the URL")),
        "https" if !url.username().is_empty() => Err(wrong("a user in the URL")),
        "https" | "ssh" if url.host_str().is_some_and(|host| !host.is_empty()) => Ok(url),
        _ => Err(wrong("neither https nor ssh")),
    }
}

/// `2000`, `2000+`, `2000-2999`.
pub(crate) fn vmids(text: &str) -> Read<Range> {
    let range = range(
        text,
        &Notation {
            number: |text| text.parse().ok(),
            short: |_, _| None,
            show: |number| number.to_string(),
            name: "a VMID range",
            examples: "2000+ (as many as needed), 2000-2999 or a list",
        },
    )?;
    let outside = range
        .parts
        .iter()
        .flat_map(|part| [Some(part.first), part.last])
        .flatten()
        .find(|id| !VMIDS.contains(id));
    outside.map_or(Ok(range), |id| Err(vmid_out_of_bounds(id)))
}

pub(crate) const VMIDS: std::ops::RangeInclusive<u32> = 100..=999_999_999;

pub(crate) fn vmid_out_of_bounds(id: u32) -> ValueError {
    ValueError::new(format!("holds {id}, which PVE does not accept"), "out of PVE's range")
        .why("PVE keeps 1 to 99 for itself, and a VMID has at most nine digits.")
        .help("use VMIDs from 100 to 999999999.")
}

struct Notation {
    number: fn(&str) -> Option<u32>,
    short: fn(u32, &str) -> Option<u32>,
    show: fn(u32) -> String,
    name: &'static str,
    examples: &'static str,
}

fn range(text: &str, notation: &Notation) -> Read<Range> {
    let malformed = || {
        ValueError::new(
            format!("is not {}: {}", notation.name, quote(text)),
            "cannot be read as a range",
        )
        .why("a range is a first value and `+`, a first and a last value, or single values in a list.")
        .help(format!("write {}.", notation.examples))
    };
    let text = text.trim();
    if let Some(first) = text.strip_suffix('+') {
        return (notation.number)(first.trim()).map(Range::open).ok_or_else(malformed);
    }
    let (first, last) = match text.split_once('-') {
        None => (text, None),
        Some((first, last)) => (first.trim(), Some(last.trim())),
    };
    let first = (notation.number)(first).ok_or_else(malformed)?;
    let last = match last {
        None => first,
        Some(last) => (notation.number)(last)
            .or_else(|| (notation.short)(first, last))
            .ok_or_else(malformed)?,
    };
    if last < first {
        let (first, last) = ((notation.show)(first), (notation.show)(last));
        return Err(
            ValueError::new("ends before it begins", format!("{last} comes before {first}"))
                .why("ordinal 1 gets the start of the range, so the smaller value goes first.")
                .help(format!("write {last}-{first}.")),
        );
    }
    Ok(Range {
        parts: vec![RangePart { first, last: Some(last) }],
    })
}

pub(crate) fn mac(text: &str) -> Read<Mac> {
    let octets: Option<Vec<u8>> = text.split([':', '-']).map(octet).collect();
    let Some(Ok(octets)) = octets.map(<[u8; 6]>::try_from) else {
        return Err(ValueError::new(
            format!("is not a MAC address: {}", quote(text)),
            "expected six pairs of hex digits",
        )
        .why("PVE takes a MAC address as six pairs of hex digits with colons.")
        .help("write it like \"BC:24:11:00:00:17\"."));
    };
    if octets[0] & 1 == 1 {
        return Err(ValueError::new(
            format!("is a multicast address: {}", quote(text)),
            "the lowest bit of the first pair is set",
        )
        .why("PVE accepts unicast MAC addresses only; a network card cannot have a multicast one.")
        .help(format!(
            "write for example \"{}\".",
            Mac([octets[0] & 0xfc | 2, octets[1], octets[2], octets[3], octets[4], octets[5]])
        )));
    }
    Ok(Mac(octets))
}

fn octet(text: &str) -> Option<u8> {
    if text.len() == 2 && text.bytes().all(|b| b.is_ascii_hexdigit()) {
        u8::from_str_radix(text, 16).ok()
    } else {
        None
    }
}

/// SHA-256 of a certificate, as PVE shows it.
pub(crate) fn fingerprint(text: &str) -> Read<[u8; 32]> {
    let octets: Option<Vec<u8>> = text.split(':').map(octet).collect();
    octets.and_then(|octets| octets.try_into().ok()).ok_or_else(|| {
        let count = text.split(':').count();
        let label = if count == 20 {
            "20 pairs: that is SHA-1".to_owned()
        } else {
            "expected 32 pairs of hex digits".to_owned()
        };
        ValueError::new("is not a SHA-256 fingerprint", label)
            .why("the PVE certificate is recognised by its SHA-256 fingerprint: 32 pairs of hex digits with colons.")
            .help("`mainstay trust` asks the endpoint, shows the fingerprint and writes it here.")
    })
}

/// `user@host`, `user@host:port`.
pub(crate) fn jump(text: &str) -> Read<Jump> {
    let parsed = text
        .strip_prefix("ssh://")
        .unwrap_or(text)
        .split_once('@')
        .and_then(|(user, rest)| {
            let (host, port) = match rest.split_once(':') {
                None => (rest, 22),
                Some((host, port)) => (host, port.parse().ok().filter(|port| *port != 0)?),
            };
            (is_user(user) && is_host(host)).then(|| Jump {
                user: user.to_owned(),
                host: host.to_owned(),
                port,
            })
        });
    parsed.ok_or_else(|| {
        ValueError::new(format!("is not a jump host: {}", quote(text)), "expected user@host")
            .why("machines are dialled through SSH as this user; any user who may forward connections will do.")
            .help("write it like ops@pve.lan or ops@pve.lan:2222. Keys come from your SSH agent or files, never from here.")
    })
}

fn is_user(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}

/// An IPv4 address or a DNS name.
pub(crate) fn is_host(text: &str) -> bool {
    let numeric = text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    text.len() <= 253
        && if numeric {
            text.parse::<Ipv4Addr>().is_ok()
        } else {
            text.split('.').all(is_label)
        }
}

/// An https URL without path, query or credentials.
pub(crate) fn https(text: &str, default_port: u16) -> Read<Url> {
    let example = |host: &str| format!("write https://{host}:{default_port}.");
    // Without `//` a host and port look like a scheme and path.
    let Some(mut url) = Url::parse(text).ok().filter(|_| text.contains("://")) else {
        let host = text.split(['/', ':']).next().filter(|host| is_host(host)).unwrap_or("host");
        return Err(
            ValueError::new(format!("is not a URL: {}", quote(text)), "expected https://host:port")
                .why("the scheme and the host are needed to dial it.")
                .help(example(host)),
        );
    };
    let host = url.host_str().filter(|host| !host.is_empty()).map(str::to_owned);
    let (Some(host), "https") = (host.clone(), url.scheme()) else {
        return Err(ValueError::new(
            format!("does not begin with https://: {}", quote(text)),
            "TLS is never switched off",
        )
        .why("credentials travel over this connection.")
        .help(example(
            &host.filter(|host| is_host(host)).unwrap_or_else(|| "host".to_owned()),
        )));
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err(ValueError::new("carries credentials", "a user or password in the URL")
            .why("cluster.yaml is meant for git; a secret in it would be public to everyone who can read it.")
            .help(example(&host)));
    }
    if url.path().trim_end_matches('/') == "/api2/json" {
        url.set_path("/");
    }
    if url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
        return Err(ValueError::new(
            format!("has something after host and port: {}", quote(text)),
            "only host and port are expected",
        )
        .why("paths are added by mainstay itself.")
        .help(example(&host)));
    }
    Ok(url)
}

pub(crate) fn pve_endpoint(text: &str) -> Read<Url> {
    let mut url = https(text, 8006)?;
    // A URL drops its scheme's own port, so that `:443` is only seen in the text.
    if url.port().is_none() && !text.contains(":443") {
        url.set_port(Some(8006))
            .map_err(|()| ValueError::new("is not a URL", "expected https://host:port"))?;
    }
    Ok(url)
}

pub(crate) fn api_endpoint(text: &str) -> Read<Url> {
    let mut url = https(text, 6443)?;
    if url.port().is_none() && !text.contains(":443") {
        url.set_port(Some(6443))
            .map_err(|()| ValueError::new("is not a URL", "expected https://host:port"))?;
    }
    Ok(url)
}

/// An Image Factory. Plain HTTP is for one on this computer only, as `mainstay sim` has: nothing of it travels.
pub(crate) fn factory(text: &str) -> Read<Url> {
    let local = |url: &Url| url.scheme() == "http" && matches!(url.host(), Some(url::Host::Ipv4(ip)) if ip.is_loopback());
    match Url::parse(text) {
        Ok(url) if local(&url) => https(&text.replacen("http", "https", 1), 443).map(|_| url),
        _ => https(text, 443),
    }
}

/// `{cluster}-{pool}-{n}`.
pub(crate) fn name_pattern(text: &str) -> Read<NamePattern> {
    let stripped = ["{cluster}", "{pool}", "{n}", "{n0}"]
        .iter()
        .fold(text.to_owned(), |left, part| left.replace(part, ""));
    if let Some(open) = stripped.find(['{', '}']) {
        let unknown = stripped[open..].split_inclusive('}').next().unwrap_or_default();
        return Err(ValueError::new(
            format!("holds an unknown placeholder: {}", quote(unknown)),
            "not a placeholder",
        )
        .why("names are made from {cluster}, {pool} and {n}, which counts from 1, or {n0}, which counts from 0.")
        .help("write for example \"{cluster}-{pool}-{n}\" or \"cp-{n0}\"."));
    }
    if !text.contains("{n}") && !text.contains("{n0}") {
        return Err(
            ValueError::new("holds neither {n} nor {n0}", "every machine would have the same name")
                .why("the ordinal is what tells the machines of a pool apart.")
                .help(format!("write for example \"{}-{{n}}\".", text.trim_end_matches('-'))),
        );
    }
    Ok(NamePattern(text.to_owned()))
}

/// `key=value:Effect`, `key:Effect`.
pub(crate) fn taint(text: &str) -> Read<Taint> {
    let malformed = |label: &str| {
        ValueError::new(format!("is not a taint: {}", quote(text)), label)
            .why("a taint is `key=value:Effect` or `key:Effect`, as kubectl writes it.")
            .help("write for example dedicated=gpu:NoSchedule. Effects are NoSchedule, PreferNoSchedule and NoExecute.")
    };
    let (left, effect) = text.rsplit_once(':').ok_or_else(|| malformed("no effect after a colon"))?;
    let effect = match effect {
        "NoSchedule" => TaintEffect::NoSchedule,
        "PreferNoSchedule" => TaintEffect::PreferNoSchedule,
        "NoExecute" => TaintEffect::NoExecute,
        _ => return Err(malformed("not an effect that Kubernetes knows")),
    };
    let (key, value) = left.split_once('=').unwrap_or((left, ""));
    if !is_label_key(key) || !is_label_value(value) {
        return Err(malformed("not a key and value that Kubernetes accepts"));
    }
    Ok(Taint {
        key: key.to_owned(),
        value: value.to_owned(),
        effect,
    })
}

/// `[prefix/]name` of a Kubernetes label.
pub(crate) fn is_label_key(text: &str) -> bool {
    let (prefix, name) = text
        .split_once('/')
        .map_or((None, text), |(prefix, name)| (Some(prefix), name));
    let prefix_fits =
        |prefix: &str| prefix.len() <= 253 && prefix == prefix.to_ascii_lowercase() && prefix.split('.').all(is_label);
    !name.is_empty() && is_label_value(name) && prefix.is_none_or(prefix_fits)
}

pub(crate) fn is_label_value(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inside = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.is_empty() || (text.len() <= 63 && text.starts_with(edge) && text.ends_with(edge) && text.bytes().all(inside))
}

pub(crate) fn label_value(text: &str) -> Read<String> {
    if is_label_value(text) {
        return Ok(text.to_owned());
    }
    Err(ValueError::new(format!("is not a label value: {}", quote(text)), "Kubernetes would refuse it")
        .why("label values have at most 63 letters, digits, dashes, dots and underscores, with a letter or digit at both ends.")
        .help("shorten it, or use an annotation for free text."))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_in_every_spelling() {
        for text in ["8GiB", "8G", "8Gi", "8192MiB", "8192M", "8 GiB"] {
            assert_eq!(memory(text).unwrap(), Mib(8192), "{text}");
        }
        assert_eq!(disk_size("2TiB").unwrap(), Gib(2048));
        for text in [
            "8",
            "8GB",
            "eight",
            "-8G",
            "8.5G",
            "0G",
            "99999999999999999999G",
            "9999999999T",
            "",
        ] {
            assert!(memory(text).is_err(), "{text}");
        }
        assert!(disk_size("1500MiB").is_err());
    }

    #[test]
    fn a_minor_is_not_a_number_with_a_fraction() {
        assert_eq!(version("1.10").unwrap(), VersionWish::Minor(1, 10));
        assert_eq!(version("v1.13.9").unwrap(), VersionWish::Exact(Version::new(1, 13, 9)));
        assert!(matches!(version("1.14.0-rc.1").unwrap(), VersionWish::Exact(_)));
        for text in ["1", "latest", "1.13.x", "1.34.2+rke2r1", "1.013", ""] {
            assert!(version(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ranges_give_ordinal_one_their_start() {
        let nth = |text: &str, n| addresses(text).unwrap().nth(n).map(|a| Ipv4Addr::from(a).to_string());
        assert_eq!(nth("10.0.0.11+", 1).unwrap(), "10.0.0.11");
        assert_eq!(nth("10.0.0.250+", 10).unwrap(), "10.0.1.3");
        assert_eq!(nth("10.0.0.11-13", 3).unwrap(), "10.0.0.13");
        assert_eq!(nth("10.0.0.11-13", 4), None);
        assert_eq!(nth("10.0.0.11-10.0.1.2", 3).unwrap(), "10.0.0.13");
        assert_eq!(nth("255.255.255.255+", 2), None);
        let joined = Range::join([vmids("2000").unwrap(), vmids("3000-3001").unwrap(), vmids("4000+").unwrap()]);
        assert_eq!(
            (1..=5).map(|n| joined.nth(n).unwrap()).collect::<Vec<_>>(),
            [2000, 3000, 3001, 4000, 4001]
        );
        for text in ["", "+", "10.0.0", "10.0.0.13-11", "10.0.0.11-256", "10.0.0.11..13"] {
            assert!(addresses(text).is_err(), "{text}");
        }
        for text in ["99", "1000000000+", "200-100", "-5", "x"] {
            assert!(vmids(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_pve_endpoint_is_normalised() {
        let read = |text| pve_endpoint(text).map(|url| url.to_string()).ok();
        assert_eq!(read("https://pve.lan").unwrap(), "https://pve.lan:8006/");
        assert_eq!(read("https://pve.lan:8006/api2/json/").unwrap(), "https://pve.lan:8006/");
        assert_eq!(read("https://pve.lan:443").unwrap(), "https://pve.lan/");
        for text in [
            "pve.lan",
            "http://pve.lan",
            "https://u:p@pve.lan",
            "https://pve.lan/x",
            "https://",
            "pve.lan:8006",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }

    #[test]
    fn a_factory_without_tls_is_one_on_this_computer() {
        let read = |text| factory(text).map(|url| url.to_string()).ok();
        assert_eq!(read("http://127.0.0.1:4000").unwrap(), "http://127.0.0.1:4000/");
        assert_eq!(read("https://factory.talos.dev").unwrap(), "https://factory.talos.dev/");
        for text in [
            "http://factory.talos.dev",
            "http://10.0.0.1",
            "http://localhost",
            "http://127.0.0.1/x",
        ] {
            assert!(read(text).is_none(), "{text}");
        }
    }
}
