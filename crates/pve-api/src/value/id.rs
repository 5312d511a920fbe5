//! Names and numbers that PVE knows things by.

use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose::deserialize_from_text;

/// The number of a guest, unique in a PVE cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Vmid(u32);

impl Vmid {
    pub const MIN: Self = Self(100);
    pub const MAX: Self = Self(999_999_999);

    pub fn new(number: u32) -> Result<Self, ValueError> {
        let vmid = Self(number);
        if (Self::MIN..=Self::MAX).contains(&vmid) {
            Ok(vmid)
        } else {
            Err(Self::error(&number.to_string()))
        }
    }

    pub fn get(self) -> u32 {
        self.0
    }

    fn error(text: &str) -> ValueError {
        ValueError::new("a VM id (100 to 999999999)", text)
    }
}

impl fmt::Display for Vmid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for Vmid {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let digits = text.bytes().all(|b| b.is_ascii_digit()) && !text.starts_with('0');
        let number = if digits { text.parse().ok() } else { None };
        Self::new(number.ok_or_else(|| Self::error(text))?)
    }
}

/// The SHA-1 of a configuration file as it was read. Sent back with a change, it makes PVE refuse when the file changed meanwhile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Digest([u8; 20]);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(self.0))
    }
}

impl FromStr for Digest {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut bytes = [0; 20];
        hex::decode_to_slice(text, &mut bytes).map_err(|_| ValueError::new("a configuration digest", text))?;
        Ok(Self(bytes))
    }
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $expected:literal, $valid:path) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
        pub struct $name(String);

        impl $name {
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = ValueError;

            fn from_str(text: &str) -> Result<Self, ValueError> {
                if $valid(text) { Ok(Self(text.to_owned())) } else { Err(ValueError::new($expected, text)) }
            }
        }

        impl AsRef<str> for $name {
            fn as_ref(&self) -> &str {
                &self.0
            }
        }
    };
}

name! {
    /// The name of a PVE server. PVE calls it a node.
    Host, "a host name", host
}

name! {
    /// The name of a storage.
    StorageId, "a storage name", storage
}

name! {
    /// The name of a resource pool: up to three levels, as in `a/b/c`.
    PoolId, "a pool name", pool
}

deserialize_from_text!(Vmid, Digest, Host, StorageId, PoolId);

fn host(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b == b'-';
    text.bytes().all(inner) && !text.is_empty() && !text.starts_with('-') && !text.ends_with('-')
}

fn storage(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() >= 2
        && text.bytes().all(inner)
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn pool(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    let level = |level: &str| !level.is_empty() && level.bytes().all(inner);
    text.split('/').count() <= 3 && text.split('/').all(level)
}

#[cfg(test)]
mod tests {
    use super::{Digest, Host, PoolId, StorageId, Vmid};

    #[test]
    fn a_vmid_has_three_to_nine_digits() {
        assert_eq!("100".parse::<Vmid>().unwrap().get(), 100);
        assert_eq!("999999999".parse::<Vmid>().unwrap(), Vmid::MAX);
        for text in ["", "99", "1000000000", "0100", "+100", "1 00", "abc", "99999999999999999999"] {
            assert!(text.parse::<Vmid>().is_err(), "{text}");
        }
    }

    #[test]
    fn names_follow_the_rules_of_pve() {
        assert!("pve-1".parse::<Host>().is_ok());
        for text in ["", "-a", "a-", "a.b", "a_b", "a/b"] {
            assert!(text.parse::<Host>().is_err(), "{text}");
        }
        assert!("local-lvm".parse::<StorageId>().is_ok());
        for text in ["", "l", "1a", "a-", "a:b", "a/b"] {
            assert!(text.parse::<StorageId>().is_err(), "{text}");
        }
        assert!("a/b/c".parse::<PoolId>().is_ok());
        for text in ["", "a/", "/a", "a/b/c/d", "a b"] {
            assert!(text.parse::<PoolId>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_digest_is_forty_hex_digits() {
        let text = "e1c801337117c174491290aa5ff946f7be618ba0";
        assert_eq!(text.parse::<Digest>().unwrap().to_string(), text);
        assert!("e1c8".parse::<Digest>().is_err());
    }
}
