//! Which texts are names, of what, and how to say what is wrong with one.

use crate::diagnostic::{ValueError, quote};
use crate::value::Read;

/// Which texts are names of a kind of thing, and how to say what is wrong otherwise.
pub(crate) struct Naming {
    pub what: &'static str,
    /// For JSON Schema, anchored; what `fits` decides.
    pub pattern: &'static str,
    pub fits: fn(&str) -> bool,
    /// What was probably meant.
    pub mend: fn(&str) -> String,
    pub rule: &'static str,
    pub example: &'static str,
}

impl Naming {
    pub(crate) fn read(&self, text: &str) -> Read<String> {
        if (self.fits)(text) {
            return Ok(text.to_owned());
        }
        let mended = (self.mend)(text);
        let help = match ((self.fits)(&mended), self.example) {
            (true, _) => format!("write {mended}."),
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
    mend: dashed,
    rule: "machine names, which are DNS names, begin with it: lower-case letters, digits and dashes, a letter first, at most 32 characters",
    example: "homelab",
};

pub(crate) static POOL_NAME: Naming = Naming {
    what: "a pool name",
    pattern: "^[a-z]([a-z0-9-]{0,30}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 32),
    mend: dashed,
    rule: "machine names, which are DNS names, hold it: lower-case letters, digits and dashes, a letter first, at most 32 characters",
    example: "worker",
};

pub(crate) static MACHINE_NAME: Naming = Naming {
    what: "a machine name",
    pattern: "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 63),
    mend: dashed,
    rule: "PVE and Kubernetes both take DNS labels: lower-case letters, digits and dashes, a letter first, at most 63 characters",
    example: "homelab-worker-1",
};

pub(crate) static KUBERNETES_NAME: Naming = Naming {
    what: "a Kubernetes name",
    pattern: "^[a-z]([a-z0-9-]{0,61}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 63),
    mend: dashed,
    rule: "Kubernetes takes DNS labels: lower-case letters, digits and dashes, a letter first, at most 63 characters",
    example: "monitoring",
};

pub(crate) static HOST_NAME: Naming = Naming {
    what: "a host name",
    pattern: "^[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?$",
    fits: is_label,
    mend: first_label,
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
    mend: dashed,
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
    mend: dashed,
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
    mend: dashed,
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
    mend: dashed,
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
    mend: dashed,
    rule: "extensions are named as in the Image Factory, with or without `siderolabs/`, and carry no version",
    example: "qemu-guest-agent",
};

pub(crate) static DISK_NAME: Naming = Naming {
    what: "a disk name",
    pattern: "^[a-z]([a-z0-9-]{0,18}[a-z0-9])?$",
    fits: |text| is_lower_label(text, 20),
    mend: dashed,
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
    mend: dashed,
    rule: "CPU types are named as in PVE, without flags",
    example: "x86-64-v2-AES",
};

pub(crate) static PATH: Naming = Naming {
    what: "a file",
    pattern: "^[^\\u0000-\\u001f]+$",
    fits: |text| !text.trim().is_empty() && !text.chars().any(char::is_control),
    mend: dashed,
    rule: "a path is relative to the directory of cluster.yaml",
    example: "patches/common.yaml",
};

pub(crate) static TEXT: Naming = Naming {
    what: "a line of text",
    pattern: "^[^\\u0000-\\u001f]+$",
    fits: |text| !text.trim().is_empty() && !text.chars().any(char::is_control),
    mend: dashed,
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
