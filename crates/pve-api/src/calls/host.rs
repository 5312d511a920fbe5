//! What is known about one host.

use serde::Deserialize;

use super::cluster::HostEntry;
use crate::request::{Call, Request};
use crate::value::{Host, PveVersion, loose};

/// The hosts, with the fingerprints of their certificates: one trusted host vouches for the others.
pub fn list() -> Call<Vec<HostEntry>> {
    Call::new(Request::get("/nodes", &[]))
}

/// Needs `Sys.Audit` on the host.
pub fn status(host: &Host) -> Call<HostStatus> {
    Call::new(Request::get("/nodes/{node}/status", &[host]))
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct HostStatus {
    pub pveversion: PveVersion,
    pub cpuinfo: CpuInfo,
    pub memory: Usage,
    pub rootfs: Usage,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub uptime: u64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct CpuInfo {
    /// Threads, over all cores and sockets.
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub cpus: u64,
    #[serde(default, deserialize_with = "loose::text")]
    pub model: String,
    /// Blank-separated, as in `/proc/cpuinfo`.
    #[serde(default, deserialize_with = "loose::text")]
    pub flags: String,
}

impl CpuInfo {
    pub fn has(&self, flag: &str) -> bool {
        self.flags.split_ascii_whitespace().any(|known| known == flag)
    }
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Usage {
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub total: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub used: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub free: u64,
    /// What can be had without swapping or touching reserves; absent in old versions.
    #[serde(default, alias = "avail", deserialize_with = "loose::opt_unsigned")]
    pub available: Option<u64>,
}

/// The version of that very host, whichever one answers.
pub fn version(host: &Host) -> Call<super::cluster::Version> {
    Call::new(Request::get("/nodes/{node}/version", &[host]))
}

/// Bridges a guest may be attached to. Those the caller has neither `SDN.Audit` nor `SDN.Use` on are left out silently.
pub fn bridges(host: &Host) -> Call<Vec<Bridge>> {
    Call::new(Request::get("/nodes/{node}/network", &[host]).with("type", "any_bridge"))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Bridge {
    pub iface: String,
    #[serde(rename = "type", deserialize_with = "loose::text")]
    pub kind: String,
    #[serde(default, deserialize_with = "loose::flag")]
    pub active: bool,
    #[serde(default, deserialize_with = "loose::flag")]
    pub bridge_vlan_aware: bool,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub bridge_vids: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub bridge_ports: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub cidr: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub mtu: Option<u64>,
}

/// What a URL leads to, asked by the host itself. Needs `Sys.AccessNetwork` on the host.
pub fn url_metadata(host: &Host, url: &str) -> Call<UrlMetadata> {
    Call::new(Request::get("/nodes/{node}/query-url-metadata", &[host]).with("url", url))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct UrlMetadata {
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub filename: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub size: Option<u64>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub mimetype: Option<String>,
}
