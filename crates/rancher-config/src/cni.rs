//! Which network plug-in a cluster runs, as each distribution spells it.

use std::fmt;

use crate::distro::Distro;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cni {
    /// RKE2's default: flannel for traffic, Calico for policies.
    Canal,
    /// Built into k3s.
    Flannel,
    /// Replaces kube-proxy too. Packaged in RKE2, an add-on on k3s.
    Cilium,
    /// The user installs one. Nodes stay NotReady until then.
    None,
}

impl Cni {
    pub const fn default_of(distro: Distro) -> Self {
        match distro {
            Distro::Rke2 => Self::Canal,
            Distro::K3s => Self::Flannel,
        }
    }

    pub const fn choices(distro: Distro) -> &'static [Self] {
        match distro {
            Distro::Rke2 => &[Self::Canal, Self::Cilium, Self::None],
            Distro::K3s => &[Self::Flannel, Self::Cilium, Self::None],
        }
    }

    pub const fn name(self) -> &'static str {
        match self {
            Self::Canal => "canal",
            Self::Flannel => "flannel",
            Self::Cilium => "cilium",
            Self::None => "none",
        }
    }

    /// Cilium answers service addresses by itself. Two programs doing so would fight.
    pub const fn replaces_kube_proxy(self) -> bool {
        matches!(self, Self::Cilium)
    }

    /// Plug-ins that set up hostPort rules through the `iptables` program, which Debian's images lack.
    pub const fn needs_iptables(self) -> bool {
        matches!(self, Self::Canal | Self::Flannel)
    }

    pub(crate) fn rke2_image_archive(self) -> Option<&'static str> {
        (self != Self::None).then(|| self.name())
    }
}

impl fmt::Display for Cni {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
