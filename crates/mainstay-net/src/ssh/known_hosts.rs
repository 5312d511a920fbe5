//! OpenSSH's list of host keys.
//!
//! Keys are parsed by `ssh-key` (through russh). The lines are read here, because its reader of known_hosts splits
//! a line into parts and matches no host: patterns, negation, hashed names, ports and revoked keys would all stay here.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use russh::keys::{Algorithm, HashAlg, PublicKey};

use crate::target::Target;

/// The content of one or more known_hosts files. Lines that cannot be read are passed over, as OpenSSH does.
#[derive(Clone, Debug, Default)]
pub struct KnownHosts {
    lines: Vec<KnownHostsLine>,
}

#[derive(Clone, Debug)]
struct KnownHostsLine {
    number: usize,
    revoked: bool,
    hosts: HostPatterns,
    key: PublicKey,
}

#[derive(Clone, Debug)]
enum HostPatterns {
    Patterns(Vec<String>),
    /// `HMAC-SHA1(salt, host)`: the file does not tell which hosts its owner visits.
    Hashed {
        salt: Vec<u8>,
        hash: Vec<u8>,
    },
}

/// What the list says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostKey {
    Known,
    Unknown,
    /// The list has another key for this host, or calls this one revoked.
    Changed {
        line: usize,
    },
}

impl KnownHosts {
    /// Reads the text of a known_hosts file.
    pub fn parse(text: &str) -> Self {
        let lines = text
            .lines()
            .enumerate()
            .filter_map(|(index, text)| KnownHostsLine::parse(index + 1, text))
            .collect();
        Self { lines }
    }

    pub fn check(&self, host: &Target, key: &PublicKey) -> HostKey {
        let name = name_of(host);
        let same = |line: &&KnownHostsLine| line.key.key_data() == key.key_data();
        let about: Vec<&KnownHostsLine> = self.lines.iter().filter(|line| line.hosts.contain(&name)).collect();
        if let Some(revoked) = about.iter().find(|line| line.revoked && same(line)) {
            return HostKey::Changed { line: revoked.number };
        }
        let recorded: Vec<&&KnownHostsLine> = about.iter().filter(|line| !line.revoked).collect();
        match recorded.first() {
            None => HostKey::Unknown,
            Some(_) if recorded.iter().any(|line| same(line)) => HostKey::Known,
            Some(first) => HostKey::Changed { line: first.number },
        }
    }

    /// The kinds of keys recorded for a host. They are to be asked for first: a server has several, and shows only one.
    pub(super) fn algorithms(&self, host: &Target) -> Vec<Algorithm> {
        let name = name_of(host);
        let recorded = self.lines.iter().filter(|line| !line.revoked && line.hosts.contain(&name));
        recorded.map(|line| line.key.algorithm()).collect()
    }

    /// The line that makes `key` known.
    pub(super) fn line_for(host: &Target, key: &PublicKey) -> String {
        let mut key = key.clone();
        key.set_comment("");
        format!("{} {}", name_of(host), key.to_openssh().unwrap_or_default())
            .trim_end()
            .to_owned()
    }
}

pub(super) fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}

fn name_of(host: &Target) -> String {
    let name = host.host.to_ascii_lowercase();
    if host.port == 22 {
        name
    } else {
        format!("[{name}]:{}", host.port)
    }
}

impl KnownHostsLine {
    fn parse(number: usize, text: &str) -> Option<Self> {
        let mut words = text.split_ascii_whitespace().peekable();
        let revoked = match *words.peek()? {
            "@revoked" => words.next().is_some(),
            // Certificate authorities for host keys: not supported, so such a line vouches for nothing.
            marker if marker.starts_with('@') || marker.starts_with('#') => return None,
            _ => false,
        };
        let hosts = HostPatterns::parse(words.next()?)?;
        let (kind, data) = (words.next()?, words.next()?);
        let key = PublicKey::from_openssh(&format!("{kind} {data}")).ok()?;
        Some(Self {
            number,
            revoked,
            hosts,
            key,
        })
    }
}

impl HostPatterns {
    fn parse(text: &str) -> Option<Self> {
        let Some(hashed) = text.strip_prefix("|1|") else {
            return Some(Self::Patterns(text.split(',').map(str::to_ascii_lowercase).collect()));
        };
        let (salt, hash) = hashed.split_once('|')?;
        Some(Self::Hashed {
            salt: STANDARD.decode(salt).ok()?,
            hash: STANDARD.decode(hash).ok()?,
        })
    }

    fn contain(&self, name: &str) -> bool {
        match self {
            Self::Hashed { salt, hash } => {
                let key = ring::hmac::Key::new(ring::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, salt);
                ring::hmac::verify(&key, name.as_bytes(), hash).is_ok()
            }
            Self::Patterns(patterns) => {
                let excluded = patterns.iter().filter_map(|p| p.strip_prefix('!')).any(|p| matches(p, name));
                !excluded && patterns.iter().any(|p| !p.starts_with('!') && matches(p, name))
            }
        }
    }
}

/// OpenSSH's patterns: `*` is any text, `?` any character.
fn matches(pattern: &str, name: &str) -> bool {
    let Some(first) = pattern.chars().next() else {
        return name.is_empty();
    };
    let rest = &pattern[first.len_utf8()..];
    if first == '*' {
        return name
            .char_indices()
            .map(|(at, _)| at)
            .chain([name.len()])
            .any(|at| matches(rest, &name[at..]));
    }
    let mut letters = name.chars();
    letters
        .next()
        .is_some_and(|letter| (first == '?' || first == letter) && matches(rest, letters.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = include_str!("../../tests/data/known_hosts");
    const ONE: &str = include_str!("../../tests/data/host-1.pub");
    const TWO: &str = include_str!("../../tests/data/host-2.pub");
    const ECDSA: &str = include_str!("../../tests/data/host-3.pub");

    fn check(host: &str, port: u16, key: &str) -> HostKey {
        KnownHosts::parse(FILE).check(&Target::new(host, port), &PublicKey::from_openssh(key).unwrap())
    }

    #[test]
    fn names_addresses_ports_and_case_are_matched_as_openssh_does() {
        assert_eq!(check("pve.lan", 22, ONE), HostKey::Known);
        assert_eq!(check("PVE.lan", 22, ONE), HostKey::Known);
        assert_eq!(check("10.0.0.5", 22, ONE), HostKey::Known);
        assert_eq!(check("pve.lan", 2222, TWO), HostKey::Known);
        assert_eq!(check("pve.lan", 2222, ONE), HostKey::Changed { line: 4 });
        assert_eq!(check("pve.lan", 2223, ONE), HostKey::Unknown);
        assert_eq!(check("other.lan", 22, ONE), HostKey::Unknown);
    }

    #[test]
    fn a_changed_key_names_its_line() {
        assert_eq!(check("pve.lan", 22, TWO), HostKey::Changed { line: 3 });
        // Another kind of key where one is recorded is no better.
        assert_eq!(check("pve.lan", 22, ECDSA), HostKey::Changed { line: 3 });
    }

    #[test]
    fn hashed_names_are_found() {
        assert_eq!(check("hashed.lan", 22, ONE), HostKey::Known);
        assert_eq!(check("hashed.lan", 2222, ECDSA), HostKey::Known);
        assert_eq!(check("hashed.lan", 22, TWO), HostKey::Changed { line: 9 });
    }

    #[test]
    fn patterns_and_exclusions_hold() {
        assert_eq!(check("a.lab.example", 22, ONE), HostKey::Known);
        assert_eq!(check("bad.lab.example", 22, ONE), HostKey::Unknown);
        assert_eq!(check("lab.example", 22, ONE), HostKey::Unknown);
        assert!(matches("10.0.?.*", "10.0.7.123") && !matches("10.0.?.*", "10.0.77.1") && !matches("?", ""));
    }

    #[test]
    fn revoked_keys_are_refused_and_unreadable_lines_passed_over() {
        assert_eq!(check("old.lan", 22, TWO), HostKey::Changed { line: 6 });
        assert_eq!(check("old.lan", 22, ONE), HostKey::Unknown);
        assert_eq!(check("x.ca.lan", 22, TWO), HostKey::Unknown);
        assert_eq!(check("broken.lan", 22, ONE), HostKey::Unknown);
    }

    #[test]
    fn the_offered_line_makes_the_key_known() {
        for host in [Target::new("new.lan", 22), Target::new("fd00::1", 2222)] {
            let key = PublicKey::from_openssh(ECDSA).unwrap();
            let line = KnownHosts::line_for(&host, &key);
            assert_eq!(KnownHosts::parse(&line).check(&host, &key), HostKey::Known, "{line}");
        }
    }

    #[test]
    fn recorded_kinds_of_keys_are_told() {
        let known = KnownHosts::parse(FILE);
        assert_eq!(known.algorithms(&Target::new("pve.lan", 22)), [Algorithm::Ed25519]);
        assert_eq!(known.algorithms(&Target::new("hashed.lan", 2222)).len(), 1);
        assert!(known.algorithms(&Target::new("old.lan", 22)).is_empty());
    }
}
