//! What a world itself takes to bring a cluster up: the bound that no client can beat.

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
    /// Machines whose disks are on the busiest storage: their copies share it.
    pub sharing: u32,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            volumes: 3,
            copied: 4247 << 20,
            nics: 1,
            image_built: false,
            image_stored: false,
            sharing: 1,
        }
    }
}

/// Steps that each wait for the one before, with the time the world takes for them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CriticalPath {
    pub steps: Vec<(&'static str, Duration)>,
    /// Until the last machine of the busiest storage can be started: image, fills and resize.
    pub last_start: Duration,
}

impl CriticalPath {
    pub(crate) fn new(spec: &WorldSpec, pace: Pace, shape: &Shape) -> Self {
        let (pve, guest) = (&spec.datacenter.timing, &spec.guests.timing);
        let none = Duration::ZERO;
        let copy = Duration::from_secs(shape.copied) / u32::try_from(pve.copy_rate.max(1)).unwrap_or(u32::MAX);
        let image = [
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
        ];
        let boot = [
            ("resize", pve.worker + pve.resize),
            ("start", pve.worker + pve.start + pve.start_per_nic * shape.nics),
            ("firmware", guest.firmware),
            ("kernel", guest.kernel),
            ("initialize", guest.initialize),
            ("configured API", guest.apid_restart * 2),
            ("container runtime", guest.cri.saturating_sub(guest.apid_restart)),
        ];
        let cluster = [
            ("etcd image", guest.image_pull),
            ("bootstrap", guest.bootstrap_unguarded),
            ("etcd", guest.etcd_healthy),
            ("API server", guest.apiserver),
            ("manifests", guest.manifests),
        ];
        let node = [("node registers", guest.node_registers), ("node ready", guest.node_ready)];
        let make = pve.worker + pve.allocate * shape.volumes;
        // The first control plane, which makes the cluster, with the storage to itself.
        let first = [&image[..], &[("fill", make + copy)], &boot, &cluster, &node].concat();
        // The last machine of a storage that carries so many copies at once: its cluster is there when it comes.
        let together = pve.copies_per_storage.clamp(1, shape.sharing.max(1));
        let fills = make + copy * shape.sharing.max(1) / together;
        let last = [&image[..], &[("fills of its storage", fills)], &boot, &node].concat();
        let total = |steps: &[(&str, Duration)]| steps.iter().map(|(_, time)| *time).sum::<Duration>();
        let until_start = [&last[..=image.len()], &boot[..1]].concat();
        let last_start = pace.scale(total(&until_start));
        let steps = if total(&last) > total(&first) { last } else { first };
        Self {
            last_start,
            steps: steps.into_iter().map(|(name, time)| (name, pace.scale(time))).collect(),
        }
    }

    /// From the first API server that serves to a node that is ready with a pod network which a Job installs.
    pub(crate) fn network(spec: &WorldSpec, pace: Pace, helm_step: Duration) -> Self {
        let guest = &spec.guests.timing;
        let container = Duration::from_secs(1);
        let steps = [
            ("manifests", guest.manifests),
            ("node registers", guest.node_registers),
            ("image of the Job", guest.image_pull),
            ("its container", container),
            ("Helm reads, records and applies", helm_step * 3),
            ("image of the agent", guest.image_pull),
            ("its container", container),
        ];
        Self {
            steps: steps.into_iter().map(|(name, time)| (name, pace.scale(time))).collect(),
            last_start: Duration::ZERO,
        }
    }

    pub fn total(&self) -> Duration {
        self.steps.iter().map(|(_, time)| *time).sum()
    }
}

#[cfg(test)]
mod tests {
    use pve_sim::guest::Pace;

    use super::{CriticalPath, Shape};
    use crate::spec::WorldSpec;

    #[test]
    fn copies_that_share_a_storage_lengthen_the_path_and_never_shorten_it() {
        let spec = WorldSpec::default();
        let with = |sharing: u32| {
            let shape = Shape {
                sharing,
                ..Shape::default()
            };
            CriticalPath::new(&spec, Pace::default(), &shape).total()
        };
        assert_eq!(with(1), with(4), "four copies fit at full rate");
        assert!((1..80).all(|n| with(n + 1) >= with(n)));
        assert!(with(80) > with(1), "the last of eighty waits for the others");
    }
}
