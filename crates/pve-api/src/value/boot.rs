//! The boot order.

use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose::deserialize_from_text;

/// The devices to boot from, first to last. PVE prints one blank when nothing is bootable.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Boot {
    Order(Vec<String>),
    /// The form before PVE 6.3: `c`, `cdn`.
    Legacy(String),
}

impl Boot {
    pub fn from_devices<D: fmt::Display>(devices: impl IntoIterator<Item = D>) -> Self {
        Self::Order(devices.into_iter().map(|device| device.to_string()).collect())
    }
}

impl fmt::Display for Boot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order(devices) => write!(f, "order={}", devices.join(";")),
            Self::Legacy(letters) => f.write_str(letters),
        }
    }
}

impl FromStr for Boot {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || ValueError::new("a boot order", text);
        let trimmed = text.trim();
        let Some(order) = trimmed.strip_prefix("order=") else {
            let letters = trimmed.strip_prefix("legacy=").unwrap_or(trimmed);
            let legacy = !letters.is_empty() && letters.len() <= 4 && letters.bytes().all(|b| b"acdn".contains(&b));
            return match trimmed {
                "" => Ok(Self::Order(Vec::new())),
                _ if legacy => Ok(Self::Legacy(letters.to_owned())),
                _ => Err(error()),
            };
        };
        let devices: Vec<String> = order
            .split(';')
            .filter(|device| !device.is_empty())
            .map(str::to_owned)
            .collect();
        let plain = devices.iter().all(|device| device.bytes().all(|b| b.is_ascii_alphanumeric()));
        if plain { Ok(Self::Order(devices)) } else { Err(error()) }
    }
}

deserialize_from_text!(Boot);

#[cfg(test)]
mod tests {
    use super::Boot;
    use crate::value::{Bus, Slot};

    #[test]
    fn the_order_is_kept() {
        let boot: Boot = "order=scsi0;ide2;net0".parse().unwrap();
        assert_eq!(boot.to_string(), "order=scsi0;ide2;net0");
        assert_eq!(Boot::from_devices([Slot::Disk(Bus::Scsi, 0)]).to_string(), "order=scsi0");
    }

    #[test]
    fn a_blank_is_an_empty_order() {
        assert_eq!(" ".parse::<Boot>().unwrap(), Boot::Order(Vec::new()));
        assert_eq!("order=".parse::<Boot>().unwrap(), Boot::Order(Vec::new()));
    }

    #[test]
    fn the_old_letters_are_read() {
        assert_eq!("cdn".parse::<Boot>().unwrap(), Boot::Legacy("cdn".to_owned()));
        assert_eq!("legacy=c".parse::<Boot>().unwrap().to_string(), "c");
        for text in ["xyz", "order=a b", "scsi0;net0"] {
            assert!(text.parse::<Boot>().is_err(), "{text}");
        }
    }
}
