//! Which releases are known, what a channel means, and the way from one version to another. Data, in one place.

use std::fmt;

use crate::distro::Distro;
use crate::version::{ReleaseVersion, VersionError, example};

/// The releases of one Kubernetes minor, oldest first: patch and revision.
struct Minor {
    minor: u64,
    releases: &'static [(u64, u64)],
}

const RKE2: &[Minor] = &[
    Minor {
        minor: 33,
        releases: &[
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 1),
            (5, 1),
            (6, 1),
            (7, 1),
            (7, 2),
            (7, 3),
            (8, 1),
            (9, 1),
            (10, 1),
            (10, 2),
            (10, 3),
            (11, 1),
            (12, 1),
            (12, 2),
            (13, 1),
            (13, 2),
        ],
    },
    Minor {
        minor: 34,
        releases: &[
            (1, 1),
            (2, 1),
            (3, 1),
            (3, 2),
            (3, 3),
            (4, 1),
            (5, 1),
            (6, 1),
            (6, 2),
            (6, 3),
            (7, 1),
            (8, 1),
            (8, 2),
            (9, 1),
            (10, 1),
        ],
    },
    Minor {
        minor: 35,
        releases: &[
            (0, 1),
            (0, 2),
            (0, 3),
            (1, 1),
            (2, 1),
            (3, 1),
            (3, 2),
            (3, 3),
            (4, 1),
            (5, 1),
            (5, 2),
            (6, 1),
            (7, 1),
        ],
    },
    Minor {
        minor: 36,
        releases: &[(0, 1), (1, 1), (1, 2), (2, 1), (3, 1)],
    },
];

const K3S: &[Minor] = &[
    Minor {
        minor: 33,
        releases: &[
            (0, 1),
            (1, 1),
            (2, 1),
            (3, 1),
            (4, 1),
            (5, 1),
            (6, 1),
            (7, 1),
            (7, 3),
            (8, 1),
            (9, 1),
            (10, 1),
            (11, 1),
            (12, 1),
            (13, 1),
            (13, 2),
        ],
    },
    Minor {
        minor: 34,
        releases: &[
            (1, 1),
            (2, 1),
            (3, 1),
            (3, 3),
            (4, 1),
            (5, 1),
            (6, 1),
            (7, 1),
            (8, 1),
            (9, 1),
            (10, 1),
        ],
    },
    Minor {
        minor: 35,
        releases: &[(0, 1), (0, 3), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1)],
    },
    Minor {
        minor: 36,
        releases: &[(0, 1), (1, 1), (2, 1), (3, 1)],
    },
];

/// What `stable` named when this table was written.
const STABLE: [ReleaseVersion; 2] = [
    ReleaseVersion::new(Distro::Rke2, 35, 7, 1),
    ReleaseVersion::new(Distro::K3s, 36, 3, 1),
];

/// A version as a user asks for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VersionRequest {
    Exact(ReleaseVersion),
    Channel(Channel),
}

/// A name that stands for the newest release of a kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channel {
    /// What the distribution recommends. It may trail `Latest` by a minor.
    Stable,
    Latest,
    /// The newest patch of one Kubernetes minor: `1.35`.
    Minor(u64),
}

/// Why a version cannot be installed or reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    #[error(transparent)]
    Version(#[from] VersionError),
    #[error("Kubernetes 1.{minor} is not supported on {distro}: known minors are 1.{oldest} to 1.{newest}")]
    UnknownMinor {
        distro: Distro,
        minor: u64,
        oldest: u64,
        newest: u64,
    },
    #[error("{from} cannot become {to}: a version never goes back, except by restoring a snapshot of the older version")]
    Downgrade { from: ReleaseVersion, to: ReleaseVersion },
}

impl VersionRequest {
    /// Reads an exact version (`1.35.7+rke2r1`), a minor (`1.35`), `stable` or `latest`.
    pub fn parse(distro: Distro, text: &str) -> Result<Self, ReleaseError> {
        if text.contains('+') {
            let version = ReleaseVersion::parse(distro, text)?;
            known_minor(distro, version.minor())?;
            return Ok(Self::Exact(version));
        }
        let channel = match text {
            "stable" => Channel::Stable,
            "latest" => Channel::Latest,
            minor => Channel::Minor(read_minor(distro, minor)?),
        };
        Ok(Self::Channel(channel))
    }

    /// The exact version. A channel gives the newest release that this table knows, never one looked up on the network.
    pub fn resolve(self, distro: Distro) -> Result<ReleaseVersion, ReleaseError> {
        match self {
            Self::Exact(version) => Ok(version),
            Self::Channel(Channel::Stable) => Ok(stable(distro)),
            Self::Channel(Channel::Latest) => Ok(newest(distro)),
            Self::Channel(Channel::Minor(minor)) => newest_of(distro, minor),
        }
    }
}

impl fmt::Display for VersionRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(version) => version.fmt(f),
            Self::Channel(Channel::Stable) => f.write_str("stable"),
            Self::Channel(Channel::Latest) => f.write_str("latest"),
            Self::Channel(Channel::Minor(minor)) => write!(f, "1.{minor}"),
        }
    }
}

/// Every known release, oldest first.
pub fn releases(distro: Distro) -> Vec<ReleaseVersion> {
    let minors = table(distro).iter();
    minors
        .flat_map(|row| {
            let releases = row.releases.iter();
            releases.map(move |(patch, revision)| ReleaseVersion::new(distro, row.minor, *patch, *revision))
        })
        .collect()
}

pub fn newest(distro: Distro) -> ReleaseVersion {
    *releases(distro).last().expect("the table is not empty")
}

pub fn stable(distro: Distro) -> ReleaseVersion {
    match distro {
        Distro::Rke2 => STABLE[0],
        Distro::K3s => STABLE[1],
    }
}

/// The versions to install one after the other, the last one being `to`. Empty if nothing changes.
///
/// Kubernetes allows no upgrade over two minors, and neither distribution checks it. So each minor in between is visited with its newest
/// known release.
pub fn hops(from: ReleaseVersion, to: ReleaseVersion) -> Result<Vec<ReleaseVersion>, ReleaseError> {
    assert_eq!(from.distro(), to.distro(), "an upgrade stays within one distribution");
    if to < from {
        return Err(ReleaseError::Downgrade { from, to });
    }
    if to == from {
        return Ok(Vec::new());
    }
    let between = (from.minor() + 1..to.minor()).map(|minor| newest_of(from.distro(), minor));
    let mut hops = between.collect::<Result<Vec<_>, _>>()?;
    hops.push(to);
    Ok(hops)
}

fn newest_of(distro: Distro, minor: u64) -> Result<ReleaseVersion, ReleaseError> {
    let row = known_minor(distro, minor)?;
    let (patch, revision) = row.releases.last().expect("a row has releases");
    Ok(ReleaseVersion::new(distro, minor, *patch, *revision))
}

/// The row of a minor. Later patches than those in the row are accepted too: only minors change what config files mean.
fn known_minor(distro: Distro, minor: u64) -> Result<&'static Minor, ReleaseError> {
    let rows = table(distro);
    let found = rows.iter().find(|row| row.minor == minor);
    found.ok_or_else(|| ReleaseError::UnknownMinor {
        distro,
        minor,
        oldest: rows[0].minor,
        newest: rows[rows.len() - 1].minor,
    })
}

fn read_minor(distro: Distro, text: &str) -> Result<u64, ReleaseError> {
    let number = text.strip_prefix('v').unwrap_or(text).strip_prefix("1.");
    let minor = number.and_then(|digits| digits.parse().ok());
    let minor = minor.ok_or_else(|| VersionError::Malformed {
        text: text.to_owned(),
        distro,
        example: example(distro),
    })?;
    known_minor(distro, minor)?;
    Ok(minor)
}

const fn table(distro: Distro) -> &'static [Minor] {
    match distro {
        Distro::Rke2 => RKE2,
        Distro::K3s => K3S,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(text: &str) -> ReleaseVersion {
        let distro = if text.contains("rke2") { Distro::Rke2 } else { Distro::K3s };
        ReleaseVersion::parse(distro, text).expect(text)
    }

    #[test]
    fn the_tables_are_sorted_and_their_minors_follow_each_other() {
        for distro in Distro::ALL {
            let all = releases(distro);
            assert!(all.is_sorted(), "{distro}");
            let minors: Vec<u64> = table(distro).iter().map(|row| row.minor).collect();
            assert_eq!(minors, [33, 34, 35, 36]);
            assert!(all.contains(&stable(distro)));
        }
    }

    #[test]
    fn a_channel_is_the_newest_known_release_of_its_kind() {
        let resolve = |distro, text| VersionRequest::parse(distro, text).and_then(|request| request.resolve(distro));
        assert_eq!(resolve(Distro::Rke2, "1.34"), Ok(version("v1.34.10+rke2r1")));
        assert_eq!(resolve(Distro::Rke2, "v1.33"), Ok(version("v1.33.13+rke2r2")));
        assert_eq!(resolve(Distro::Rke2, "stable"), Ok(version("v1.35.7+rke2r1")));
        assert_eq!(resolve(Distro::Rke2, "latest"), Ok(version("v1.36.3+rke2r1")));
        assert_eq!(resolve(Distro::K3s, "stable"), Ok(version("v1.36.3+k3s1")));
    }

    #[test]
    fn a_later_patch_of_a_known_minor_is_accepted_and_another_minor_is_not() {
        let request = VersionRequest::parse(Distro::K3s, "1.36.99+k3s1").expect("a known minor");
        assert_eq!(request.resolve(Distro::K3s), Ok(version("v1.36.99+k3s1")));
        for text in ["1.37.0+k3s1", "1.32"] {
            let refused = VersionRequest::parse(Distro::K3s, text).expect_err(text);
            assert!(matches!(refused, ReleaseError::UnknownMinor { .. }), "{refused}");
        }
    }

    #[test]
    fn an_upgrade_visits_every_minor_on_the_way() {
        let names = |from, to| hops(version(from), version(to)).map(|hops| hops.iter().map(ToString::to_string).collect());
        let across: Result<Vec<String>, _> = names("v1.33.4+rke2r1", "v1.36.2+rke2r1");
        assert_eq!(
            across.expect("a way"),
            ["v1.34.10+rke2r1", "v1.35.7+rke2r1", "v1.36.2+rke2r1"]
        );
        assert_eq!(
            names("v1.36.1+k3s1", "v1.36.3+k3s1").expect("a way"),
            ["v1.36.3+k3s1"].map(String::from).to_vec()
        );
        assert!(names("v1.36.3+k3s1", "v1.36.3+k3s1").expect("a way").is_empty());
        assert!(matches!(
            names("v1.36.3+k3s1", "v1.36.2+k3s1"),
            Err(ReleaseError::Downgrade { .. })
        ));
    }
}
