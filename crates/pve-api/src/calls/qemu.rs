//! Virtual machines.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

use super::cluster::RunState;
use crate::config::VmConfig;
use crate::request::{Call, Done, Request};
use crate::value::{Digest, DiskSize, Host, Lock, Mac, PoolId, Slot, StorageId, Tags, Upid, Vmid, loose};

/// Creates a VM. The answer to this very request decides who gets the VM id; disks are made in the task.
pub fn create(host: &Host, vmid: Vmid, config: &VmConfig, options: &CreateOptions) -> Call<Upid> {
    let request = Request::post("/nodes/{node}/qemu", &[host])
        .with("vmid", vmid)
        .with_opt("pool", options.pool.as_ref())
        .with_flag("start", options.start)
        .with_all(config.to_params());
    Call::new(request)
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// Rights of a pool-scoped token are tested there. Such a token may not set tags in the same call.
    pub pool: Option<PoolId>,
    /// In a task of its own, whose failure the create does not show.
    pub start: bool,
}

/// The configuration, pending changes included.
pub fn config(host: &Host, vmid: Vmid) -> Call<VmConfig> {
    Call::new(Request::get("/nodes/{node}/qemu/{vmid}/config", &[host, &vmid]))
}

/// The configuration that runs, without pending changes.
pub fn current_config(host: &Host, vmid: Vmid) -> Call<VmConfig> {
    Call::new(Request::get("/nodes/{node}/qemu/{vmid}/config", &[host, &vmid]).with("current", 1))
}

/// A change of the configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Change {
    pub set: VmConfig,
    /// Keys to unset; one that is not set is no error.
    pub delete: Vec<String>,
    /// Pending changes to drop.
    pub revert: Vec<String>,
    /// Refuses as [`crate::Class::Changed`] when the configuration is no longer the one with this digest.
    pub digest: Option<Digest>,
    /// Deletes the volumes of deleted drives instead of keeping them as unused.
    pub force: bool,
}

impl Change {
    fn onto(&self, request: Request) -> Request {
        request
            .with_all(self.set.to_params())
            .with_list("delete", &self.delete)
            .with_list("revert", &self.revert)
            .with_opt("digest", self.digest)
            .with_flag("force", self.force)
    }
}

/// Changes the configuration before it answers: for what touches neither disks nor devices of a running VM.
pub fn set(host: &Host, vmid: Vmid, change: &Change) -> Call<Done> {
    Call::new(change.onto(Request::put("/nodes/{node}/qemu/{vmid}/config", &[host, &vmid])))
}

/// Changes the configuration in a task: for disks, imports and devices. Not to be repeated without looking: the same new disk sent
/// twice is two disks.
pub fn change(host: &Host, vmid: Vmid, change: &Change) -> Call<Option<Upid>> {
    Call::new(change.onto(Request::post("/nodes/{node}/qemu/{vmid}/config", &[host, &vmid])))
}

/// The snapshots of a VM, and with them `current`, which is none.
pub fn snapshots(host: &Host, vmid: Vmid) -> Call<Vec<Snapshot>> {
    Call::new(Request::get("/nodes/{node}/qemu/{vmid}/snapshot", &[host, &vmid]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Snapshot {
    pub name: String,
}

impl Snapshot {
    /// The state that the VM is in, which PVE lists among its snapshots.
    pub fn is_current(&self) -> bool {
        self.name == "current"
    }
}

/// The configuration that a snapshot holds.
pub fn snapshot_config(host: &Host, vmid: Vmid, name: &str) -> Call<VmConfig> {
    Call::new(Request::get(
        "/nodes/{node}/qemu/{vmid}/snapshot/{snapname}/config",
        &[host, &vmid, &name],
    ))
}

/// What waits for a full stop and start.
pub fn pending(host: &Host, vmid: Vmid) -> Call<Vec<Pending>> {
    Call::new(Request::get("/nodes/{node}/qemu/{vmid}/pending", &[host, &vmid]))
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Pending {
    pub key: String,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub value: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub pending: Option<String>,
    #[serde(default, deserialize_with = "loose::flag")]
    pub delete: bool,
}

impl Pending {
    pub fn is_change(&self) -> bool {
        self.pending.is_some() || self.delete
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CloudInitPart {
    User,
    Network,
    Meta,
}

impl fmt::Display for CloudInitPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::User => "user",
            Self::Network => "network",
            Self::Meta => "meta",
        })
    }
}

/// What the cloud-init drive would say.
pub fn cloud_init(host: &Host, vmid: Vmid, part: CloudInitPart) -> Call<String> {
    Call::new(Request::get("/nodes/{node}/qemu/{vmid}/cloudinit/dump", &[host, &vmid]).with("type", part))
}

/// Writes the cloud-init drive anew. A start does so too.
pub fn regenerate_cloud_init(host: &Host, vmid: Vmid) -> Call<Done> {
    Call::new(Request::put("/nodes/{node}/qemu/{vmid}/cloudinit", &[host, &vmid]))
}

/// Grows a disk to a size. The size it has already is success, a smaller one fails in the task, and so does a config that has another
/// digest by then.
pub fn resize(host: &Host, vmid: Vmid, disk: Slot, size: DiskSize, digest: Option<Digest>) -> Call<Option<Upid>> {
    Call::new(
        Request::put("/nodes/{node}/qemu/{vmid}/resize", &[host, &vmid])
            .with("disk", disk)
            .with("size", size)
            .with_opt("digest", digest),
    )
}

/// Clones a VM or template. `host` is the one that has the source. All options but name and pool are copied, tags and notes included;
/// MACs and the SMBIOS UUID are new.
pub fn clone(host: &Host, source: Vmid, clone: &CloneOptions) -> Call<Upid> {
    let request = Request::post("/nodes/{node}/qemu/{vmid}/clone", &[host, &source])
        .with("newid", clone.vmid)
        .with_opt("name", clone.name.as_deref())
        .with_opt("description", clone.description.as_deref())
        .with_opt("pool", clone.pool.as_ref())
        .with_opt("target", clone.target.as_ref());
    Call::new(match &clone.copy {
        CopyMode::Linked => request.with("full", 0),
        CopyMode::Full { storage } => request.with("full", 1).with_opt("storage", storage.as_ref()),
    })
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloneOptions {
    pub vmid: Vmid,
    pub name: Option<String>,
    pub description: Option<String>,
    pub pool: Option<PoolId>,
    /// Another host, possible only when everything lies on shared storage.
    pub target: Option<Host>,
    pub copy: CopyMode,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CopyMode {
    /// Shares the template's data, on the template's storage.
    Linked,
    /// To the same storage unless one is named.
    Full { storage: Option<StorageId> },
}

/// Makes a VM a template, for ever.
pub fn make_template(host: &Host, vmid: Vmid) -> Call<Option<Upid>> {
    Call::new(Request::post("/nodes/{node}/qemu/{vmid}/template", &[host, &vmid]))
}

pub fn start(host: &Host, vmid: Vmid) -> Call<Upid> {
    Call::new(Request::post("/nodes/{node}/qemu/{vmid}/status/start", &[host, &vmid]))
}

/// Pulls the plug. A stopped VM is success. With `overrule` a shutdown that waits is given up.
pub fn stop(host: &Host, vmid: Vmid, overrule: bool) -> Call<Upid> {
    let request = Request::post("/nodes/{node}/qemu/{vmid}/status/stop", &[host, &vmid]);
    Call::new(request.with_flag("overrule-shutdown", overrule))
}

/// Asks the guest to shut down, and holds the VM's lock until it did or the time is over: no other call gets through meanwhile.
pub fn shutdown(host: &Host, vmid: Vmid, timeout: Duration, force: bool) -> Call<Upid> {
    let request = Request::post("/nodes/{node}/qemu/{vmid}/status/shutdown", &[host, &vmid]);
    Call::new(request.with("timeout", timeout.as_secs()).with_flag("forceStop", force))
}

/// A shutdown and a start, which applies pending changes. The task ends when the VM is down; it is up again some seconds later.
pub fn reboot(host: &Host, vmid: Vmid, timeout: Duration) -> Call<Upid> {
    Call::new(Request::post("/nodes/{node}/qemu/{vmid}/status/reboot", &[host, &vmid]).with("timeout", timeout.as_secs()))
}

/// The reset button.
pub fn reset(host: &Host, vmid: Vmid) -> Call<Upid> {
    Call::new(Request::post("/nodes/{node}/qemu/{vmid}/status/reset", &[host, &vmid]))
}

/// What the VM does now.
pub fn status(host: &Host, vmid: Vmid) -> Call<VmStatus> {
    Call::new(Request::get("/nodes/{node}/qemu/{vmid}/status/current", &[host, &vmid]))
}

/// The VMs of a host that the caller may see.
pub fn list(host: &Host) -> Call<Vec<VmStatus>> {
    Call::new(Request::get("/nodes/{node}/qemu", &[host]))
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct VmStatus {
    pub vmid: Vmid,
    pub status: RunState,
    /// Closer than `status`: paused, frozen by a full storage, ...
    #[serde(default)]
    pub qmpstatus: Option<RunState>,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub name: Option<String>,
    #[serde(default)]
    pub lock: Option<Lock>,
    #[serde(default)]
    pub tags: Tags,
    #[serde(default, deserialize_with = "loose::flag")]
    pub template: bool,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub uptime: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub maxmem: u64,
    #[serde(default, deserialize_with = "loose::unsigned")]
    pub maxdisk: u64,
    #[serde(default)]
    pub ha: Option<HaStatus>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct HaStatus {
    /// Then start and stop only ask, and are done some ten seconds after their task ended.
    #[serde(default, deserialize_with = "loose::flag")]
    pub managed: bool,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub state: Option<String>,
}

/// Destroys a stopped VM with its disks. Never without a look at the quorum: without one PVE destroys the disks and keeps the VM.
pub fn delete(host: &Host, vmid: Vmid, options: DeleteOptions) -> Call<Option<Upid>> {
    let request = Request::delete("/nodes/{node}/qemu/{vmid}", &[host, &vmid])
        .with_flag("purge", options.purge)
        .with_flag("destroy-unreferenced-disks", options.destroy_unreferenced_disks);
    Call::new(request)
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// Also from backup jobs, replication and HA.
    pub purge: bool,
    /// Every volume that carries this VM id in its name, on all storages, whether or not the VM's config names it.
    pub destroy_unreferenced_disks: bool,
}

/// The guest's interfaces, as its agent tells them.
pub fn agent_interfaces(host: &Host, vmid: Vmid) -> Call<AgentInterfaces> {
    Call::new(Request::get(
        "/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces",
        &[host, &vmid],
    ))
}

/// Succeeds when the agent answers. Each failure blocks one of the host's three workers for three seconds.
pub fn agent_ping(host: &Host, vmid: Vmid) -> Call<Done> {
    Call::new(Request::post("/nodes/{node}/qemu/{vmid}/agent/ping", &[host, &vmid]))
}

/// The guest may refuse the command: PVE answers 200 all the same.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct AgentInterfaces {
    result: AgentResult,
}

impl AgentInterfaces {
    pub fn interfaces(&self) -> Result<&[Interface], &str> {
        match &self.result {
            AgentResult::Interfaces(interfaces) => Ok(interfaces),
            AgentResult::Refused { error } => Err(&error.desc),
        }
    }

    /// The interface with this MAC.
    pub fn by_mac(&self, mac: Mac) -> Option<&Interface> {
        self.interfaces().ok()?.iter().find(|interface| interface.mac() == Some(mac))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
enum AgentResult {
    Interfaces(Vec<Interface>),
    Refused { error: AgentError },
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct AgentError {
    #[serde(default)]
    desc: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Interface {
    pub name: String,
    #[serde(default, rename = "hardware-address")]
    hardware_address: Option<String>,
    #[serde(default, rename = "ip-addresses")]
    ip_addresses: Vec<InterfaceAddress>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
struct InterfaceAddress {
    #[serde(rename = "ip-address")]
    ip_address: String,
}

impl Interface {
    pub fn mac(&self) -> Option<Mac> {
        self.hardware_address.as_deref()?.parse().ok()
    }

    /// The guest chooses these texts: what is no address is left out.
    pub fn addresses(&self) -> impl Iterator<Item = std::net::IpAddr> {
        // A link-local IPv6 address may carry its zone.
        self.ip_addresses
            .iter()
            .filter_map(|address| address.ip_address.split('%').next()?.parse().ok())
    }
}

#[cfg(test)]
mod tests {
    use super::{AgentInterfaces, Pending};

    #[test]
    fn a_pending_number_is_a_text_like_any_other_value() {
        let pending: Vec<Pending> = serde_json::from_str(
            r#"[{"key":"cores","value":1,"pending":2},{"key":"net1","value":"x","delete":2},{"key":"a","value":null}]"#,
        )
        .unwrap();
        assert_eq!(pending[0].pending.as_deref(), Some("2"));
        assert!(pending[1].is_change() && !pending[2].is_change());
    }

    #[test]
    fn an_agent_that_refuses_is_told_from_one_that_answers() {
        let refused: AgentInterfaces =
            serde_json::from_str(r#"{"result":{"error":{"class":"CommandNotFound","desc":"not enabled"}}}"#).unwrap();
        assert_eq!(refused.interfaces(), Err("not enabled"));
        let text = r#"{"result":[{"name":"lo"},{"name":"eth0","hardware-address":"bc:24:11:77:6e:5f",
            "ip-addresses":[{"ip-address":"10.0.0.5","prefix":24},{"ip-address":"fe80::1%eth0"},{"ip-address":"nonsense"}]}]}"#;
        let answered: AgentInterfaces = serde_json::from_str(text).unwrap();
        let eth0 = answered.by_mac("BC:24:11:77:6E:5F".parse().unwrap()).unwrap();
        assert_eq!(
            eth0.addresses().map(|a| a.to_string()).collect::<Vec<_>>(),
            ["10.0.0.5", "fe80::1"]
        );
    }
}
