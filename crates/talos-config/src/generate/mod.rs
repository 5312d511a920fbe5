//! Machine configs, as `talosctl gen config` makes them, with what a cluster on PVE needs on top.

mod documents;
mod input;
mod legacy;

pub use input::{
    ClusterInput, Cni, ExtensionFile, ExtensionService, Hostname, Install, InstallDisk, KUBE_PRISM_PORT, Link, MachineInput,
    NetworkForm, Registry, RegistryLogin, Role, Route, Taint, UserVolume,
};

use crate::config::Config;
use crate::secrets::Secrets;
use crate::versions::{Unsupported, release};
use crate::yaml::Node;

/// The config of one machine. A function of its arguments: same inputs, same bytes.
pub fn machine_config(secrets: &Secrets, cluster: &ClusterInput, machine: &MachineInput) -> Result<Config, Unsupported> {
    release(&cluster.talos)?;
    let legacy = serde_json::to_value(legacy::Legacy::new(secrets, cluster, machine))
        .expect("strings, numbers and maps with string keys are always representable");
    let others = documents::all(cluster, machine);
    Ok(Config::from_bodies(std::iter::once(legacy).chain(others).map(Node::from)))
}

/// A URL without the slash that the URL standard adds to an empty path.
pub(crate) fn bare_url(url: &url::Url) -> String {
    let text = url.as_str();
    if url.path() == "/" {
        text.strip_suffix('/').unwrap_or(text).to_owned()
    } else {
        text.to_owned()
    }
}
