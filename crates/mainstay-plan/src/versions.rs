//! Versions of one machine.

use std::collections::BTreeMap;
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

/// Where a cluster stands, and its way to the versions of the file.
#[derive(Debug, Clone, PartialEq)]
pub struct Course {
    /// What each machine of the file runs, as far as it is known.
    pub runs: BTreeMap<String, Versions>,
    /// What a machine gets that is made now: the oldest that a control plane runs.
    pub joins: Versions,
    /// The oldest of what runs. `None`: nothing runs yet.
    pub from: Option<Versions>,
    /// The versions after each hop, the last being those of the file; or why there is no way.
    pub road: Result<Vec<Versions>, String>,
}

impl Course {
    /// Nothing runs, or everything runs what the file says.
    pub fn straight(target: &Versions) -> Self {
        Self {
            runs: BTreeMap::new(),
            joins: target.clone(),
            from: None,
            road: Ok(Vec::new()),
        }
    }

    /// What the machines are to run when this plan is carried out.
    pub fn hop(&self, target: &Versions) -> Versions {
        let first = self.road.as_ref().ok().and_then(|road| road.first());
        first.unwrap_or(target).clone()
    }

    pub fn runs(&self, machine: &str) -> &Versions {
        self.runs.get(machine).unwrap_or(&self.joins)
    }
}
