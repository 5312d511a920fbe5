//! Versions of RKE2 and k3s: `v1.36.3+rke2r1`, `v1.36.3+k3s1`.

use std::fmt;

use crate::distro::Distro;

/// A released version: the Kubernetes version and the distribution's own revision of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ReleaseVersion {
    minor: u64,
    patch: u64,
    revision: u64,
    distro: Distro,
}

/// Why a text is not a version of this distribution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VersionError {
    #[error("`{text}` is not a version of {distro}; a version looks like {example}")]
    Malformed {
        text: String,
        distro: Distro,
        example: &'static str,
    },
    #[error("`{0}` is a pre-release; only releases are installed")]
    PreRelease(String),
    #[error("`{text}` is a version of {seen}, not of {distro}")]
    OtherDistro { text: String, seen: Distro, distro: Distro },
}

impl ReleaseVersion {
    pub(crate) const fn new(distro: Distro, minor: u64, patch: u64, revision: u64) -> Self {
        Self {
            minor,
            patch,
            revision,
            distro,
        }
    }

    /// Reads `1.36.3+rke2r1`, with or without the leading `v`.
    pub fn parse(distro: Distro, text: &str) -> Result<Self, VersionError> {
        let malformed = || VersionError::Malformed {
            text: text.to_owned(),
            distro,
            example: example(distro),
        };
        let (kubernetes, build) = text.strip_prefix('v').unwrap_or(text).split_once('+').ok_or_else(malformed)?;
        if kubernetes.contains('-') || build.contains('-') {
            return Err(VersionError::PreRelease(text.to_owned()));
        }
        let (seen, revision) = revision_of(build).ok_or_else(malformed)?;
        if seen != distro {
            return Err(VersionError::OtherDistro {
                text: text.to_owned(),
                seen,
                distro,
            });
        }
        let parsed = semver::Version::parse(kubernetes).map_err(|_| malformed())?;
        if parsed.major != 1 {
            return Err(malformed());
        }
        Ok(Self::new(distro, parsed.minor, parsed.patch, revision))
    }

    pub const fn distro(&self) -> Distro {
        self.distro
    }

    /// The Kubernetes minor: 36 of 1.36.3.
    pub const fn minor(&self) -> u64 {
        self.minor
    }

    pub const fn kubernetes(&self) -> semver::Version {
        semver::Version::new(1, self.minor, self.patch)
    }

    /// The tag in a URL path: `+` is `%2B`, because some servers read `+` as a space.
    pub fn url_tag(&self) -> String {
        self.to_string().replace('+', "%2B")
    }

    /// The tag of container images and the form used in file names.
    pub fn image_tag(&self) -> String {
        self.to_string().replace('+', "-")
    }
}

impl fmt::Display for ReleaseVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = match self.distro {
            Distro::Rke2 => "rke2r",
            Distro::K3s => "k3s",
        };
        write!(f, "v1.{}.{}+{mark}{}", self.minor, self.patch, self.revision)
    }
}

fn revision_of(build: &str) -> Option<(Distro, u64)> {
    let (distro, digits) = match build.strip_prefix("rke2r") {
        Some(digits) => (Distro::Rke2, digits),
        None => (Distro::K3s, build.strip_prefix("k3s")?),
    };
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number
        .then(|| digits.parse().ok())
        .flatten()
        .map(|number| (distro, number))
}

pub(crate) const fn example(distro: Distro) -> &'static str {
    match distro {
        Distro::Rke2 => "1.36.3+rke2r1",
        Distro::K3s => "1.36.3+k3s1",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rke2(text: &str) -> ReleaseVersion {
        ReleaseVersion::parse(Distro::Rke2, text).expect(text)
    }

    #[test]
    fn a_version_is_read_with_and_without_v_and_written_in_three_forms() {
        let version = rke2("1.36.3+rke2r1");
        assert_eq!(version, rke2("v1.36.3+rke2r1"));
        assert_eq!(version.to_string(), "v1.36.3+rke2r1");
        assert_eq!(version.url_tag(), "v1.36.3%2Brke2r1");
        assert_eq!(version.image_tag(), "v1.36.3-rke2r1");
        assert_eq!(version.kubernetes(), semver::Version::new(1, 36, 3));
    }

    #[test]
    fn versions_order_by_kubernetes_version_then_by_revision() {
        let ascending = [
            "1.35.10+rke2r1",
            "1.36.2+rke2r1",
            "1.36.2+rke2r2",
            "1.36.2+rke2r10",
            "1.36.10+rke2r1",
        ];
        let mut shuffled: Vec<_> = ascending.iter().rev().map(|text| rke2(text)).collect();
        shuffled.sort();
        assert_eq!(shuffled, ascending.map(rke2));
    }

    #[test]
    fn a_pre_release_a_bare_kubernetes_version_and_the_other_distribution_are_refused() {
        let read = |text| ReleaseVersion::parse(Distro::Rke2, text).expect_err(text);
        assert!(matches!(read("1.36.4-rc1+rke2r1"), VersionError::PreRelease(_)));
        assert!(matches!(read("1.36.3"), VersionError::Malformed { .. }));
        assert!(matches!(read("1.36+rke2r1"), VersionError::Malformed { .. }));
        assert!(matches!(read("1.36.3+rke2r"), VersionError::Malformed { .. }));
        assert!(matches!(read("2.0.0+rke2r1"), VersionError::Malformed { .. }));
        assert!(matches!(
            read("1.36.3+k3s1"),
            VersionError::OtherDistro { seen: Distro::K3s, .. }
        ));
    }
}
