//! Which Talos answers, and what follows from it.

use std::fmt;

use semver::Version;

/// The release a machine runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Release(Version);

impl Release {
    /// From `v1.13.9`.
    pub fn of_tag(tag: &str) -> Option<Self> {
        Version::parse(tag.strip_prefix('v').unwrap_or(tag)).ok().map(Self)
    }

    pub fn version(&self) -> &Version {
        &self.0
    }

    /// Pre-releases count as the release they lead to: `v1.13.0-beta.1` behaves as 1.13 does.
    pub fn is_at_least(&self, major: u64, minor: u64) -> bool {
        (self.0.major, self.0.minor) >= (major, minor)
    }

    /// From 1.13 on apid itself serves maintenance mode, to everybody with the role of a reader.
    pub fn reads_in_maintenance(&self) -> bool {
        self.is_at_least(1, 13)
    }

    /// From 1.14 on no apply reboots by itself; a change that needs one is followed by an explicit reboot.
    pub fn apply_never_reboots(&self) -> bool {
        self.is_at_least(1, 14)
    }

    /// From 1.13 on installing and upgrading is a service of its own.
    pub fn has_lifecycle(&self) -> bool {
        self.is_at_least(1, 13)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_follow_the_minor_release() {
        let old = Release::of_tag("v1.12.11").unwrap();
        let new = Release::of_tag("v1.13.9").unwrap();
        let next = Release::of_tag("v1.14.0-rc.1").unwrap();
        assert_eq!([&old, &new, &next].map(Release::reads_in_maintenance), [false, true, true]);
        assert_eq!([&old, &new, &next].map(Release::has_lifecycle), [false, true, true]);
        assert_eq!([&old, &new, &next].map(Release::apply_never_reboots), [false, false, true]);
        assert_eq!(new.to_string(), "1.13.9");
        assert_eq!(Release::of_tag("undefined"), None);
    }
}
