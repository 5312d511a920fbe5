//! How long things take. The defaults are what a real three-control-plane cluster of Talos 1.13.9 took, plus firmware and kernel
//! of a small VM; a world scales all of them with its pace, or replaces single ones.

use std::fmt;
use std::time::Duration;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Times of a life without trouble. A world file names a profile (`timing: loaded`) or single times (`timing: { kernel: 9 }`).
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case", remote = "Self")]
pub struct Timing {
    /// An asset that was never requested before is built first.
    #[serde(deserialize_with = "seconds")]
    pub image_build: Duration,
    #[serde(deserialize_with = "seconds")]
    pub image_download: Duration,
    #[serde(deserialize_with = "seconds")]
    pub firmware: Duration,
    #[serde(deserialize_with = "seconds")]
    pub kernel: Duration,
    /// Sequence `initialize`: machined, containerd and apid come up.
    #[serde(deserialize_with = "seconds")]
    pub initialize: Duration,
    /// From an accepted config until the API answers with the cluster's certificate.
    #[serde(deserialize_with = "seconds")]
    pub apid_restart: Duration,
    /// The same on a machine that boots with its config: apid starts from nothing.
    #[serde(deserialize_with = "seconds")]
    pub apid_start: Duration,
    #[serde(deserialize_with = "seconds")]
    pub cri: Duration,
    #[serde(deserialize_with = "seconds")]
    pub image_pull: Duration,
    #[serde(deserialize_with = "seconds")]
    pub kubelet_healthy: Duration,
    /// From the Bootstrap call until etcd has data: a second call is not refused before.
    #[serde(deserialize_with = "seconds")]
    pub bootstrap_unguarded: Duration,
    #[serde(deserialize_with = "seconds")]
    pub etcd_healthy: Duration,
    #[serde(deserialize_with = "seconds")]
    pub etcd_join_retry: Duration,
    #[serde(deserialize_with = "seconds")]
    pub etcd_learner_starts: Duration,
    /// From a learner's start until the first attempt to promote it.
    #[serde(deserialize_with = "seconds")]
    pub etcd_promotion: Duration,
    /// Between two attempts to promote a learner.
    #[serde(deserialize_with = "seconds")]
    pub etcd_promotion_retry: Duration,
    /// From a learner's start until it has what the leader has; before, etcd refuses to promote it.
    #[serde(deserialize_with = "seconds")]
    pub etcd_learner_sync: Duration,
    /// At most so much is added to `etcd_learner_sync`, for each learner another part of it.
    #[serde(deserialize_with = "seconds")]
    pub etcd_learner_sync_spread: Duration,
    #[serde(deserialize_with = "seconds")]
    pub etcd_election: Duration,
    /// From healthy etcd until the API server serves.
    #[serde(deserialize_with = "seconds")]
    pub apiserver: Duration,
    /// From the first API server of a new cluster until KubePrism has seen it healthy.
    #[serde(deserialize_with = "seconds")]
    pub kubeprism: Duration,
    /// From a serving API server until the bootstrap manifests are in it.
    #[serde(deserialize_with = "seconds")]
    pub manifests: Duration,
    /// From the moment a kubelet may register until its Node exists.
    #[serde(deserialize_with = "seconds")]
    pub node_registers: Duration,
    /// From the Node until its network is there.
    #[serde(deserialize_with = "seconds")]
    pub node_ready: Duration,
    /// Static pod states are reported on a tick.
    #[serde(deserialize_with = "seconds")]
    pub static_pod_tick: Duration,
    /// From a changed component in the machine config until its static pod runs again. The API server refuses connections meanwhile.
    #[serde(deserialize_with = "seconds")]
    pub static_pod_roll: Duration,
    /// From a changed component in the machine config until the API server shows the mirror pod with the new config version.
    #[serde(deserialize_with = "seconds")]
    pub mirror_pod: Duration,
    #[serde(deserialize_with = "seconds")]
    pub time_sync: Duration,
    #[serde(deserialize_with = "seconds")]
    pub trustd_answer: Duration,
    /// Pods that must stop before a node reboots, resets or shuts down.
    #[serde(deserialize_with = "seconds")]
    pub stop_pods: Duration,
    #[serde(deserialize_with = "seconds")]
    pub wipe: Duration,
    /// The image of an installer, which is larger than those of the services.
    #[serde(deserialize_with = "seconds")]
    pub installer_pull: Duration,
    /// An installer writes a system to a disk.
    #[serde(deserialize_with = "seconds")]
    pub install: Duration,
    #[serde(deserialize_with = "seconds")]
    pub kexec: Duration,
    /// How long the VIP stays with a holder that died.
    #[serde(deserialize_with = "seconds")]
    pub vip_lease: Duration,
    #[serde(deserialize_with = "seconds")]
    pub boot_timeout: Duration,
    /// A Node whose kubelet is silent turns `Unknown` after this time.
    #[serde(deserialize_with = "seconds")]
    pub node_grace: Duration,
    /// Guests that boot from a cloud image.
    pub cloud: CloudTiming,
}

/// Times of a guest that boots from a cloud image.
#[derive(Clone, Debug, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CloudTiming {
    /// ds-identify.
    #[serde(deserialize_with = "seconds")]
    pub detect: Duration,
    #[serde(deserialize_with = "seconds")]
    pub local_stage: Duration,
    #[serde(deserialize_with = "seconds")]
    pub network_stage: Duration,
    /// From an sshd that answers until users may log in.
    #[serde(deserialize_with = "seconds")]
    pub logins: Duration,
    /// Config and final stage of cloud-init.
    #[serde(deserialize_with = "seconds")]
    pub final_stage: Duration,
    #[serde(deserialize_with = "seconds")]
    pub package_upgrade: Duration,
    /// One call of apt.
    #[serde(deserialize_with = "seconds")]
    pub apt: Duration,
    #[serde(deserialize_with = "seconds")]
    pub shutdown: Duration,
    /// A release artifact, or an image, from the public network.
    #[serde(deserialize_with = "seconds")]
    pub artifact_download: Duration,
    /// RKE2 pulls its runtime image and starts containerd and kubelet before anything listens.
    #[serde(deserialize_with = "seconds")]
    pub runtime_image: Duration,
    /// RKE2's API server is a static pod.
    #[serde(deserialize_with = "seconds")]
    pub static_pods: Duration,
    #[serde(deserialize_with = "seconds")]
    pub node_registers: Duration,
    /// From the Node until its network is there.
    #[serde(deserialize_with = "seconds")]
    pub cni: Duration,
}

impl Default for CloudTiming {
    fn default() -> Self {
        Self {
            detect: ms(1_000),
            local_stage: ms(2_000),
            network_stage: ms(3_000),
            logins: ms(2_000),
            final_stage: ms(5_000),
            package_upgrade: ms(120_000),
            apt: ms(10_000),
            shutdown: ms(5_000),
            artifact_download: ms(8_000),
            runtime_image: ms(20_000),
            static_pods: ms(10_000),
            node_registers: ms(2_000),
            cni: ms(8_000),
        }
    }
}

fn seconds<'de, D: Deserializer<'de>>(input: D) -> Result<Duration, D::Error> {
    let seconds = f64::deserialize(input)?;
    Duration::try_from_secs_f64(seconds).map_err(de::Error::custom)
}

const fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            image_build: ms(25_000),
            image_download: ms(12_000),
            firmware: ms(5_000),
            kernel: ms(9_000),
            initialize: ms(1_900),
            apid_restart: ms(300),
            apid_start: ms(1_200),
            cri: ms(1_000),
            image_pull: ms(1_300),
            kubelet_healthy: ms(1_900),
            bootstrap_unguarded: ms(400),
            etcd_healthy: ms(5_000),
            etcd_join_retry: ms(3_000),
            etcd_learner_starts: ms(500),
            etcd_promotion: ms(500),
            etcd_promotion_retry: ms(15_000),
            etcd_learner_sync: ms(0),
            etcd_learner_sync_spread: ms(0),
            etcd_election: ms(1_500),
            apiserver: ms(18_000),
            kubeprism: ms(50_000),
            manifests: ms(55_000),
            node_registers: ms(20_000),
            node_ready: ms(11_000),
            static_pod_tick: ms(15_000),
            static_pod_roll: ms(47_000),
            mirror_pod: ms(135_000),
            time_sync: ms(500),
            trustd_answer: ms(200),
            stop_pods: ms(40_000),
            wipe: ms(2_000),
            installer_pull: ms(8_000),
            install: ms(20_000),
            kexec: ms(2_000),
            vip_lease: ms(60_000),
            boot_timeout: ms(70 * 60 * 1000),
            node_grace: ms(50_000),
            cloud: CloudTiming::default(),
        }
    }
}

impl Timing {
    /// Machines under load: a learner becomes a voter 45 to 90 s after its start, on the 15 s step of the attempts, and the health of
    /// the service follows the vote by 17 s.
    pub fn loaded() -> Self {
        Self {
            etcd_learner_sync: ms(31_000),
            etcd_learner_sync_spread: ms(59_000),
            etcd_healthy: ms(17_000),
            ..Self::default()
        }
    }

    /// A profile by its name in a world file.
    pub fn profile(name: &str) -> Option<Self> {
        match name {
            "measured" => Some(Self::default()),
            "loaded" => Some(Self::loaded()),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Timing {
    fn deserialize<D: Deserializer<'de>>(input: D) -> Result<Self, D::Error> {
        input.deserialize_any(NameOrTimes)
    }
}

struct NameOrTimes;

impl<'de> Visitor<'de> for NameOrTimes {
    type Value = Timing;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`measured`, `loaded`, or single times in seconds")
    }

    fn visit_str<E: de::Error>(self, name: &str) -> Result<Timing, E> {
        Timing::profile(name).ok_or_else(|| E::invalid_value(de::Unexpected::Str(name), &self))
    }

    fn visit_map<M: MapAccess<'de>>(self, times: M) -> Result<Timing, M::Error> {
        Timing::deserialize(MapAccessDeserializer::new(times))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_file_names_a_profile_or_single_times() {
        let read = |text: &str| serde_saphyr::from_str::<Timing>(text);
        assert_eq!(read("loaded").expect("a profile").etcd_learner_sync, ms(31_000));
        assert_eq!(read("{ kernel: 1.5 }").expect("one time").kernel, ms(1_500));
        assert!(read("nope").is_err() && read("{ nope: 1 }").is_err());
    }
}
