//! Which texts are names, of what, and how to say what is wrong with one.

use crate::diagnostic::{ValueError, quote};
use crate::value::{Read, is_host};

/// Which texts are names of a kind of thing, and how to say what is wrong otherwise.
pub(crate) struct Naming {
    pub what: &'static str,
    /// For JSON Schema, anchored; what `fits` decides.
    pub pattern: &'static str,
    pub fits: fn(&str) -> bool,
    /// What was probably meant.
    pub suggest: fn(&str) -> String,
    pub rule: &'static str,
    pub example: &'static str,
}

impl Naming {
    pub(crate) fn read(&self, text: &str) -> Read<String> {
        if (self.fits)(text) {
            return Ok(text.to_owned());
        }
        let suggestion = (self.suggest)(text);
        let help = match ((self.fits)(&suggestion), self.example) {
            (true, _) => format!("write {suggestion}."),
            (false, "") => format!("write {}.", self.what),
            (false, example) => format!("write for example {example}."),
        };
        Err(
            ValueError::new(format!("is not {}: {}", self.what, quote(text)), format!("not {}", self.what))
                .why(format!("{}.", self.rule))
                .help(help),
        )
    }
}

/// The text with what names never hold turned into dashes.
fn dashed(text: &str) -> String {
    let dashed: String = text
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() {
                c.to_ascii_lowercase()
            } else {
                '-'
            }
        })
        .collect();
    dashed.trim_matches('-').to_owned()
}

/// `pve1.lan` is known to PVE as `pve1`.
fn first_label(text: &str) -> String {
    text.split('.').next().unwrap_or_default().to_owned()
}

fn charset(text: &str, first: fn(u8) -> bool, rest: fn(u8) -> bool, longest: usize) -> bool {
    let bytes = text.as_bytes();
    bytes.first().is_some_and(|b| first(*b)) && bytes.iter().all(|b| rest(*b)) && bytes.len() <= longest
}

fn is_lower_label(text: &str, longest: usize) -> bool {
    let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    charset(text, |b| b.is_ascii_lowercase(), rest, longest) && !text.ends_with('-')
}

pub(crate) static CLUSTER_NAME: Naming = Naming {
    what: "a cluster name",
    pattern: "^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 32),
    suggest: dashed,
    rule: "machine names, which are DNS names, begin with it: lower-case letters, digits and dashes, a letter first, at most 32 characters",
    example: "homelab",
};

pub(crate) static POOL_NAME: Naming = Naming {
    what: "a pool name",
    pattern: "^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 32),
    suggest: dashed,
    rule: "machine names, which are DNS names, hold it: lower-case letters, digits and dashes, a letter first, at most 32 characters",
    example: "worker",
};

pub(crate) static MACHINE_NAME: Naming = Naming {
    what: "a machine name",
    pattern: "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 63),
    suggest: dashed,
    rule: "PVE and Kubernetes both take DNS labels: lower-case letters, digits and dashes, a letter first, at most 63 characters",
    example: "homelab-worker-1",
};

pub(crate) static KUBERNETES_NAME: Naming = Naming {
    what: "a Kubernetes name",
    pattern: "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 63),
    suggest: dashed,
    rule: "Kubernetes takes DNS labels: lower-case letters, digits and dashes, a letter first, at most 63 characters",
    example: "monitoring",
};

pub(crate) static HOST_NAME: Naming = Naming {
    what: "a host name",
    pattern: "^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$",
    fits: is_label,
    suggest: first_label,
    rule: "a PVE host is named by one DNS label, as in the tree of its web page, not by an address or a full name",
    example: "pve1",
};

pub(crate) static STORAGE_ID: Naming = Naming {
    what: "a storage",
    pattern: "^[a-zA-Z][a-zA-Z0-9_.-]*[a-zA-Z0-9]$",
    fits: |text| {
        let rest = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
        text.len() >= 2
            && charset(text, |b| b.is_ascii_alphabetic(), rest, 100)
            && text.ends_with(|c: char| c.is_ascii_alphanumeric())
    },
    suggest: dashed,
    rule: "a PVE storage id has letters, digits, dashes, dots and underscores, a letter first, and at least two characters",
    example: "local-lvm",
};

pub(crate) static BRIDGE: Naming = Naming {
    what: "a bridge",
    pattern: "^[a-zA-Z][a-zA-Z0-9_.-]{0,14}$",
    fits: |text| {
        charset(
            text,
            |b| b.is_ascii_alphabetic(),
            |b| b.is_ascii_alphanumeric() || b"_.-".contains(&b),
            15,
        )
    },
    suggest: dashed,
    rule: "Linux interface names have at most 15 characters, a letter first",
    example: "vmbr0",
};

pub(crate) static RESOURCE_POOL: Naming = Naming {
    what: "a PVE resource pool",
    pattern: "^[a-zA-Z][a-zA-Z0-9_.-]*(/[a-zA-Z][a-zA-Z0-9_.-]*){0,2}$",
    fits: |text| {
        let rest = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
        text.split('/').count() <= 3
            && text
                .split('/')
                .all(|part| charset(part, |b| b.is_ascii_alphabetic(), rest, 100))
    },
    suggest: dashed,
    rule: "up to three levels with slashes, each of letters, digits, dashes, dots and underscores, a letter first",
    example: "k8s",
};

pub(crate) static TAG: Naming = Naming {
    what: "a PVE tag",
    pattern: "^[a-z0-9_][a-z0-9_.+-]*$",
    fits: |text| {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
        charset(
            text,
            plain,
            |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.+-".contains(&b),
            124,
        )
    },
    suggest: dashed,
    rule: "PVE keeps tags in lower case: letters, digits, underscores, dots, plus and dashes",
    example: "team-a",
};

pub(crate) static EXTENSION: Naming = Naming {
    what: "an extension name",
    pattern: "^([a-z0-9][a-z0-9-]*/)?[a-z0-9][a-z0-9-]*$",
    fits: |text| {
        text.split('/').count() <= 2
            && text
                .split('/')
                .all(|part| is_label(part) && part == part.to_ascii_lowercase())
    },
    suggest: dashed,
    rule: "extensions are named as in the Image Factory, with or without `siderolabs/`, and carry no version",
    example: "qemu-guest-agent",
};

pub(crate) static DISK_NAME: Naming = Naming {
    what: "a disk name",
    pattern: "^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 20),
    suggest: dashed,
    rule: "the name is the serial by which the guest finds the disk: lower-case letters, digits and dashes, at most 20 characters",
    example: "longhorn",
};

pub(crate) static CPU_TYPE: Naming = Naming {
    what: "a CPU type",
    pattern: "^[a-zA-Z0-9][a-zA-Z0-9_.+-]*$",
    fits: |text| {
        charset(
            text,
            |b| b.is_ascii_alphanumeric(),
            |b| b.is_ascii_alphanumeric() || b"_.+-".contains(&b),
            64,
        )
    },
    suggest: dashed,
    rule: "CPU types are named as in PVE, without flags",
    example: "x86-64-v2-AES",
};

pub(crate) static PATH: Naming = Naming {
    what: "a file",
    pattern: "^[^\\u0000-\\u001f]+$",
    fits: |text| !text.trim().is_empty() && !text.chars().any(char::is_control),
    suggest: dashed,
    rule: "a path is relative to the directory of cluster.yaml",
    example: "patches/common.yaml",
};

pub(crate) static REGISTRY: Naming = Naming {
    what: "a registry",
    pattern: "^(\\*|[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?(:[0-9]+)?)$",
    fits: |text| {
        let (host, port) = text.split_once(':').unwrap_or((text, "443"));
        text == "*" || (is_host(host) && port.parse::<u16>().is_ok_and(|port| port != 0))
    },
    suggest: |text| {
        text.split("://")
            .last()
            .unwrap_or_default()
            .split('/')
            .next()
            .unwrap_or_default()
            .to_owned()
    },
    rule: "a registry is the host in front of an image name, with a port if it has one, without https://",
    example: "docker.io",
};

pub(crate) static TAILNET_TAG: Naming = Naming {
    what: "a Tailscale tag",
    pattern: "^tag:[a-zA-Z][a-zA-Z0-9-]*$",
    fits: |text| {
        text.strip_prefix("tag:").is_some_and(|name| {
            charset(
                name,
                |b| b.is_ascii_alphabetic(),
                |b| b.is_ascii_alphanumeric() || b == b'-',
                60,
            )
        })
    },
    suggest: |text| format!("tag:{}", dashed(text)),
    rule: "Tailscale writes tags as tag:name, with letters, digits and dashes",
    example: "tag:k8s",
};

pub(crate) static DOMAIN: Naming = Naming {
    what: "a domain",
    pattern: "^[a-zA-Z0-9]([a-zA-Z0-9.-]*[a-zA-Z0-9])?$",
    fits: |text| is_host(text) && text.parse::<std::net::Ipv4Addr>().is_err(),
    suggest: |text| text.trim_matches('.').to_owned(),
    rule: "a search domain is a DNS name",
    example: "lan",
};

pub(crate) static MACHINE_TYPE: Naming = Naming {
    what: "a PVE machine type",
    pattern: "^(q35|pc)(-[a-z0-9.+-]+)?$",
    fits: |text| {
        let rest = text.strip_prefix("q35").or_else(|| text.strip_prefix("pc"));
        rest.is_some_and(|rest| {
            rest.is_empty()
                || rest.starts_with('-')
                    && charset(
                        &rest[1..],
                        |b| b.is_ascii_alphanumeric(),
                        |b| b.is_ascii_lowercase() || b.is_ascii_digit() || b".+-".contains(&b),
                        40,
                    )
        })
    },
    suggest: |_| "q35".to_owned(),
    rule: "PVE knows q35 and pc, with an optional version as in q35-9.2",
    example: "q35",
};

pub(crate) static CPU_FLAG: Naming = Naming {
    what: "a CPU flag",
    pattern: "^[+-][a-z][a-z0-9_.-]*$",
    fits: |text| {
        let rest = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"_.-".contains(&b);
        text.strip_prefix(['+', '-'])
            .is_some_and(|name| charset(name, |b| b.is_ascii_lowercase(), rest, 40))
    },
    suggest: |text| format!("+{}", text.trim_start_matches(['+', '-']).to_ascii_lowercase()),
    rule: "a flag is switched on with + and off with -, as PVE writes it",
    example: "+aes",
};

pub(crate) static MAPPING: Naming = Naming {
    what: "a PCI mapping",
    pattern: "^[a-zA-Z][a-zA-Z0-9_-]*$",
    fits: |text| {
        charset(
            text,
            |b| b.is_ascii_alphabetic(),
            |b| b.is_ascii_alphanumeric() || b"_-".contains(&b),
            64,
        )
    },
    suggest: dashed,
    rule: "a device is named by its mapping in the datacenter (Resource Mappings), because an address needs root and differs between hosts",
    example: "gpu",
};

pub(crate) static TEXT: Naming = Naming {
    what: "a line of text",
    pattern: "^[^\\u0000-\\u001f]+$",
    fits: |text| !text.trim().is_empty() && !text.chars().any(char::is_control),
    suggest: dashed,
    rule: "one line of text is expected",
    example: "",
};

/// A DNS label, any case.
pub(crate) fn is_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_fit_their_patterns() {
        for (naming, good, bad) in [
            (
                &CLUSTER_NAME,
                vec!["a", "homelab", "k8s-1"],
                vec!["", "-a", "a-", "Homelab", "1a", "a_b"],
            ),
            (&HOST_NAME, vec!["pve1", "PVE-2", "1"], vec!["", "pve.lan", "pve_1", "-x"]),
            (&STORAGE_ID, vec!["local", "local-lvm", "ceph_a.b"], vec!["", "a", "1a", "a-"]),
            (&RESOURCE_POOL, vec!["k8s", "a/b/c"], vec!["", "a/b/c/d", "/a", "1a"]),
            (&TAG, vec!["team-a", "_x", "a+b"], vec!["", "Team", "a;b", "-a"]),
            (&EXTENSION, vec!["siderolabs/zfs", "zfs"], vec!["", "a/b/c", "zfs:1", "ZFS"]),
        ] {
            for text in good {
                assert!((naming.fits)(text), "{text} is {}", naming.what);
            }
            for text in bad {
                assert!(!(naming.fits)(text), "{text} is not {}", naming.what);
            }
        }
    }
}
