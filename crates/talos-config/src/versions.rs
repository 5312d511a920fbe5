//! Which Talos and Kubernetes versions are known, and which belong together. Data, in one place.

use std::fmt;
use std::str::FromStr;

use semver::Version;

/// How many Kubernetes minors one Talos minor runs, the default one being the newest.
const KUBERNETES_WINDOW: u64 = 6;

/// One Talos minor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Release {
    pub contract: Contract,
    /// The newest patch release known when this table was written. Later patches of a known minor are accepted too.
    pub newest: Version,
    /// The Kubernetes version this minor ships with: the newest minor it runs.
    pub kubernetes: Version,
    /// The oldest Talos minor that can be upgraded to this one directly.
    pub upgrade_from: Contract,
    /// Still receives patches.
    pub maintained: bool,
}

/// Every Talos minor that mainstay can run, oldest first.
pub static RELEASES: [Release; 4] = [
    Release {
        contract: Contract::new(1, 11),
        newest: Version::new(1, 11, 6),
        kubernetes: Version::new(1, 34, 1),
        upgrade_from: Contract::new(1, 9),
        maintained: false,
    },
    Release {
        contract: Contract::new(1, 12),
        newest: Version::new(1, 12, 11),
        kubernetes: Version::new(1, 35, 4),
        upgrade_from: Contract::new(1, 10),
        maintained: true,
    },
    Release {
        contract: Contract::new(1, 13),
        newest: Version::new(1, 13, 10),
        kubernetes: Version::new(1, 36, 3),
        upgrade_from: Contract::new(1, 11),
        maintained: true,
    },
    Release {
        contract: Contract::new(1, 14),
        newest: Version::new(1, 14, 1),
        kubernetes: Version::new(1, 37, 0),
        upgrade_from: Contract::new(1, 12),
        maintained: true,
    },
];

/// The newest known Talos minor.
pub fn newest() -> &'static Release {
    &RELEASES[RELEASES.len() - 1]
}

/// The table row of a Talos version: any patch of a known minor.
pub fn release(talos: &Version) -> Result<&'static Release, Unsupported> {
    let wanted = Contract::of(talos);
    RELEASES
        .iter()
        .find(|known| known.contract == wanted)
        .ok_or_else(|| Unsupported::Talos(talos.clone()))
}

/// Refuses a pair that a node would refuse.
pub fn check_pair(talos: &Version, kubernetes: &Version) -> Result<&'static Release, Unsupported> {
    let known = release(talos)?;
    if known.runs(kubernetes) {
        Ok(known)
    } else {
        Err(Unsupported::Kubernetes {
            talos: talos.clone(),
            kubernetes: kubernetes.clone(),
            window: known.window(),
        })
    }
}

impl Release {
    /// Oldest and newest Kubernetes minor this Talos minor runs.
    pub fn window(&self) -> KubernetesWindow {
        KubernetesWindow {
            oldest: self.kubernetes.minor + 1 - KUBERNETES_WINDOW,
            newest: self.kubernetes.minor,
        }
    }

    pub fn runs(&self, kubernetes: &Version) -> bool {
        kubernetes.major == 1 && (self.window().oldest..=self.window().newest).contains(&kubernetes.minor)
    }
}

/// An inclusive range of Kubernetes 1.x minors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KubernetesWindow {
    pub oldest: u64,
    pub newest: u64,
}

impl fmt::Display for KubernetesWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "1.{} to 1.{}", self.oldest, self.newest)
    }
}

/// A Talos minor as far as config generation cares: every default is a comparison with one of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Contract {
    pub major: u64,
    pub minor: u64,
}

impl Contract {
    /// Last minor whose generated config is one v1alpha1 document plus a few others.
    pub const CLASSIC: Self = Self::new(1, 13);

    pub const fn new(major: u64, minor: u64) -> Self {
        Self { major, minor }
    }

    pub fn of(talos: &Version) -> Self {
        Self::new(talos.major, talos.minor)
    }

    /// The contract whose config is written for a node of this one: newer nodes keep accepting the classic form.
    pub fn classic(self) -> Self {
        self.min(Self::CLASSIC)
    }

    /// The network, hostname, time and registry documents exist.
    pub fn has_network_documents(self) -> bool {
        self >= Self::new(1, 12)
    }

    /// Generated configs carry an empty `machine.network`.
    pub fn writes_empty_network(self) -> bool {
        self <= Self::new(1, 12)
    }

    /// `KubeSpanConfig` replaces `machine.network.kubespan`.
    pub fn has_kubespan_document(self) -> bool {
        self >= Self::new(1, 13)
    }

    /// The cluster id is written in the URL-safe alphabet. Nothing decodes it, so either is valid everywhere.
    pub fn cluster_id_is_url_safe(self) -> bool {
        self <= Self::new(1, 13)
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl FromStr for Contract {
    type Err = Unsupported;

    /// `1.13`, `v1.13`, `v1.13.9` and `v1.13.0-alpha.1` all name the contract 1.13.
    fn from_str(text: &str) -> Result<Self, Unsupported> {
        let malformed = || Unsupported::Malformed(text.to_owned());
        let mut parts = text.strip_prefix('v').unwrap_or(text).splitn(3, '.');
        let mut number = || parts.next().and_then(|part| part.parse().ok()).ok_or_else(malformed);
        Ok(Self::new(number()?, number()?))
    }
}

/// A version that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    #[error("{0:?} is not a version")]
    Malformed(String),
    #[error("talos {0} is not known to this version of mainstay (known: {known})", known = known_minors())]
    Talos(Version),
    #[error("talos {talos} does not run kubernetes {kubernetes} (it runs {window})")]
    Kubernetes {
        talos: Version,
        kubernetes: Version,
        window: KubernetesWindow,
    },
}

fn known_minors() -> String {
    format!("{} to {}", RELEASES[0].contract, newest().contract)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_minor_runs_the_six_kubernetes_minors_up_to_its_default() {
        let windows: Vec<String> = RELEASES
            .iter()
            .map(|known| format!("{}: {}", known.contract, known.window()))
            .collect();
        assert_eq!(
            windows,
            [
                "1.11: 1.29 to 1.34",
                "1.12: 1.30 to 1.35",
                "1.13: 1.31 to 1.36",
                "1.14: 1.32 to 1.37"
            ]
        );
    }

    #[test]
    fn a_later_patch_of_a_known_minor_is_accepted() {
        assert_eq!(release(&Version::new(1, 13, 99)).unwrap().contract, Contract::new(1, 13));
    }

    #[test]
    fn an_unknown_minor_is_refused_by_name() {
        let message = release(&Version::new(1, 10, 9)).unwrap_err().to_string();
        assert_eq!(
            message,
            "talos 1.10.9 is not known to this version of mainstay (known: 1.11 to 1.14)"
        );
    }

    #[test]
    fn kubernetes_outside_the_window_is_refused() {
        let message = check_pair(&Version::new(1, 13, 9), &Version::new(1, 37, 0))
            .unwrap_err()
            .to_string();
        assert_eq!(message, "talos 1.13.9 does not run kubernetes 1.37.0 (it runs 1.31 to 1.36)");
        assert!(check_pair(&Version::new(1, 13, 9), &Version::new(1, 31, 0)).is_ok());
    }

    #[test]
    fn a_contract_ignores_the_patch_level() {
        for text in ["1.13", "v1.13", "v1.13.9", "1.13.0-alpha.1"] {
            assert_eq!(text.parse::<Contract>().unwrap(), Contract::new(1, 13));
        }
        for text in ["", "v1", "latest", "1.x", "1.13-beta"] {
            assert!(text.parse::<Contract>().is_err(), "{text}");
        }
    }
}
