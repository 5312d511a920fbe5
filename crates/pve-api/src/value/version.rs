//! The version of a PVE server.

use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose::deserialize_from_text;

/// `9.2.11`: the version of the `pve-manager` package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PveVersion {
    pub major: u16,
    pub minor: u16,
    pub patch: u16,
}

impl PveVersion {
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor, patch: 0 }
    }

    /// Whether raw, qcow2 and vmdk images may be uploaded, downloaded and imported from.
    pub fn imports_disk_images(self) -> bool {
        self >= Self::new(8, 4)
    }
}

impl fmt::Display for PveVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

impl FromStr for PveVersion {
    type Err = ValueError;

    /// Reads `9.2.11`, `9.2`, `9.0~beta1`, `8.4-1` and `pve-manager/9.2.11/14a22df35955d97d`.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || ValueError::new("a PVE version", text);
        let version = text
            .strip_prefix("pve-manager/")
            .unwrap_or(text)
            .split(['/', '-', '~', '+'])
            .next()
            .unwrap_or_default();
        let mut numbers = version.split('.').map(|part| part.parse::<u16>().map_err(|_| error()));
        let major = numbers.next().ok_or_else(error)??;
        let minor = numbers.next().ok_or_else(error)??;
        let patch = numbers.next().transpose()?.unwrap_or_default();
        Ok(Self { major, minor, patch })
    }
}

deserialize_from_text!(PveVersion);

#[cfg(test)]
mod tests {
    use super::PveVersion;

    #[test]
    fn versions_are_ordered_by_number() {
        let version = |text: &str| text.parse::<PveVersion>().unwrap();
        assert!(version("9.2.11") > version("9.2.9"));
        assert_eq!(version("pve-manager/9.2.11/14a22df35955d97d"), version("9.2.11"));
        assert_eq!(version("8.4-1"), PveVersion::new(8, 4));
        assert_eq!(version("9.0.0~10"), PveVersion::new(9, 0));
        assert!(version("8.4.1").imports_disk_images() && !version("8.3.5").imports_disk_images());
    }

    #[test]
    fn what_is_no_version_is_refused() {
        for text in ["", "9", "nine.two", "9.", ".", "9.2.x"] {
            assert!(text.parse::<PveVersion>().is_err(), "{text}");
        }
    }
}
