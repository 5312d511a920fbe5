//! A world as a YAML file: the datacenter's part is pve-sim's own, this is the rest.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::charts::ChartFaults;
use crate::cloud::WebFaults;
use crate::factory::FactoryFaults;
use crate::talos::NodeFaults;
use crate::timing::Timing;

/// What a world is made of. The default is a datacenter of three hosts, and no bad days.
#[derive(Clone, Debug, Default)]
pub struct WorldSpec {
    pub datacenter: pve_sim::World,
    pub guests: GuestSpec,
    pub factory: FactoryFaults,
    pub web: WebFaults,
    pub charts: ChartFaults,
    /// The Proxmox VE API without TLS, where thousands of lives are what counts.
    pub plain: bool,
}

/// What happens inside the VMs.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GuestSpec {
    pub timing: Timing,
    /// By VM name.
    pub faults: BTreeMap<String, NodeFaults>,
}

/// The keys of a world file that are not the datacenter's.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Around {
    guests: GuestSpec,
    factory: FactoryFaults,
    web: WebFaults,
    charts: ChartFaults,
}

#[derive(Debug, thiserror::Error)]
#[error("the world file cannot be read")]
pub struct SpecError(#[source] Box<dyn std::error::Error + Send + Sync>);

impl WorldSpec {
    /// Reads a world file. What it leaves out is as in the default world.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        let datacenter = pve_sim::World::parse(text).map_err(|error| SpecError(error.into()))?;
        let around: Around = serde_saphyr::from_str(text).map_err(|error| SpecError(error.into()))?;
        Ok(Self {
            datacenter,
            guests: around.guests,
            factory: around.factory,
            web: around.web,
            charts: around.charts,
            plain: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_world_file_changes_what_it_names() {
        let spec = WorldSpec::parse(
            "guests:\n  timing: {kernel: 1.5}\n  faults:\n    cp-1: {no-time-sync: true}\nfactory: {outage: true}\n",
        )
        .expect("a world");
        assert_eq!(spec.guests.timing.kernel.as_millis(), 1500);
        assert!(spec.guests.faults["cp-1"].no_time_sync && spec.factory.outage);
        assert_eq!(spec.datacenter.nodes.len(), 3);
        assert!(WorldSpec::parse("guests: {nope: 1}\n").is_err());
    }
}
