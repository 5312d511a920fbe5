//! What a world itself takes to bring a cluster up: the bound that nobody can beat.

use std::time::Duration;

use pve_sim::guest::Pace;

use crate::spec::WorldSpec;

/// A cluster, as far as its time depends on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Volumes that one machine gets: disk, EFI disk, cloud-init drive, ….
    pub volumes: u32,
    /// Bytes that an import copies: the virtual size of the image.
    pub copied: u64,
    pub nics: u32,
    /// Whether the factory has the image already.
    pub image_built: bool,
    /// Whether the storage has the image already.
    pub image_stored: bool,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            volumes: 3,
            copied: 4247 << 20,
            nics: 1,
            image_built: false,
            image_stored: false,
        }
    }
}

/// Steps that each wait for the one before, with the time the world takes for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriticalPath {
    pub steps: Vec<(&'static str, Duration)>,
}

impl CriticalPath {
    pub(crate) fn new(spec: &WorldSpec, pace: Pace, shape: &Shape) -> Self {
        let (pve, guest) = (&spec.datacenter.timing, &spec.guests.timing);
        let none = Duration::ZERO;
        let copy = Duration::from_secs(shape.copied) / u32::try_from(pve.copy_rate.max(1)).unwrap_or(u32::MAX);
        let steps = [
            (
                "image build",
                if shape.image_built || shape.image_stored {
                    none
                } else {
                    guest.image_build
                },
            ),
            (
                "image download",
                if shape.image_stored {
                    none
                } else {
                    pve.worker + guest.image_download
                },
            ),
            ("fill", pve.worker + pve.allocate * shape.volumes + copy),
            ("resize", pve.worker + pve.resize),
            ("start", pve.worker + pve.start + pve.start_per_nic * shape.nics),
            ("firmware", guest.firmware),
            ("kernel", guest.kernel),
            ("initialize", guest.initialize),
            ("configured API", guest.apid_restart * 2),
            ("container runtime", guest.cri.saturating_sub(guest.apid_restart)),
            ("etcd image", guest.image_pull),
            ("bootstrap", guest.bootstrap_unguarded),
            ("etcd", guest.etcd_healthy),
            ("API server", guest.apiserver),
            ("manifests", guest.manifests),
            ("node registers", guest.node_registers),
            ("node ready", guest.node_ready),
        ];
        Self {
            steps: steps.into_iter().map(|(name, time)| (name, pace.scale(time))).collect(),
        }
    }

    pub fn total(&self) -> Duration {
        self.steps.iter().map(|(_, time)| *time).sum()
    }
}
