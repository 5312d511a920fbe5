//! RKE2 and k3s: what their binary does in a guest.

mod agent;
mod cluster;
mod config;
mod controllers;
mod deploy;
mod node;
mod runtime;
mod server;
mod supervisor;
mod tls;
mod vip;

use serde::{Deserialize, Serialize};

use super::shell::Process;

pub(crate) use self::cluster::Clusters;
pub(crate) use self::runtime::Runtime;

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Distro {
    Rke2,
    K3s,
}

impl Distro {
    pub fn name(self) -> &'static str {
        match self {
            Self::Rke2 => "rke2",
            Self::K3s => "k3s",
        }
    }

    /// Where servers register; on k3s the Kubernetes API is there too.
    pub fn supervisor_port(self) -> u16 {
        match self {
            Self::Rke2 => 9345,
            Self::K3s => 6443,
        }
    }

    pub fn data(self) -> &'static str {
        match self {
            Self::Rke2 => "/var/lib/rancher/rke2",
            Self::K3s => "/var/lib/rancher/k3s",
        }
    }

    /// `etcd.k3s.cattle.io/remove`
    pub fn annotation(self, name: &str) -> String {
        format!("etcd.{}.cattle.io/{name}", self.name())
    }
}

/// What a release's executable holds, by which the world knows it wherever it is copied to.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub(crate) struct Binary {
    pub distro: Distro,
    /// `v1.35.7+rke2r1`
    pub version: String,
}

const MAGIC: &[u8] = b"\x7fELF\x02\x01\x01\x00";

impl Binary {
    pub fn to_bytes(&self) -> Vec<u8> {
        [MAGIC, &serde_json::to_vec(self).unwrap_or_default()].concat()
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        serde_json::from_slice(bytes.strip_prefix(MAGIC)?).ok()
    }
}

pub(crate) async fn run(process: Process, binary: Binary, arguments: Vec<String>) -> i32 {
    let name = binary.distro.name();
    match arguments.first().map(String::as_str) {
        Some("--version" | "-v") => {
            process.line(format!("{name} version {} (5aed4d7b)\ngo version go1.26.8", binary.version));
            0
        }
        // What `rke2-killall.sh` does to the containers.
        Some("killall") => {
            process.host.runtime.kill_all();
            0
        }
        Some("server") => server::run(process, binary, &arguments[1..]).await,
        Some("agent") => agent::run(process, binary, &arguments[1..]).await,
        Some(other) => {
            process.complain(format!("No help topic for '{other}'"));
            3
        }
        None => {
            process.line(format!("NAME:\n   {name} - Kubernetes, but small and simple"));
            0
        }
    }
}
