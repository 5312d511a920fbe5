//! Versions of one machine.

use std::fmt;

use mainstay_spec::Distro;
use semver::Version;

/// The release of the distribution on a machine, and the Kubernetes version that it runs there. The two are only ever judged together.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Versions {
    pub distro: Distro,
    /// `1.13.9` of Talos, `1.34.2+rke2r1` of RKE2.
    pub release: Version,
    pub kubernetes: Version,
}

impl fmt::Display for Versions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} kubernetes {}", self.distro, self.release, self.kubernetes)
    }
}

impl Versions {
    /// The written form of a mark: `talos 1.13.9 kubernetes 1.36.2`.
    pub(crate) fn parse(words: &[&str]) -> Option<Self> {
        let [distro, release, "kubernetes", kubernetes] = words else {
            return None;
        };
        Some(Self {
            distro: Distro::parse(distro)?,
            release: release.parse().ok()?,
            kubernetes: kubernetes.parse().ok()?,
        })
    }
}
