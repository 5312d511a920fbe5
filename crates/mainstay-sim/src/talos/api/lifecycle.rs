//! Other systems on the same machine: `machine.LifecycleService`, the upgrade call before it, and the way back.

use std::sync::Arc;

use pve_sim::guest::Content;
use talos_proto::machine;
use talos_proto::machine::lifecycle_service_install_progress::Response as Progress;
use tonic::{Request, Status};

use super::images::check_instance;
use super::machine::actor;
use super::{Answer, Api, Stream, stream};
use crate::factory::TalosImage;
use crate::talos::boot;
use crate::talos::disk::Installed;
use crate::talos::node::{Ending, Sequence};
use crate::talos::sequence::{self, Order};

const INSTALLER: [&str; 3] = [
    "running Talos installer",
    "validating and installing to disk",
    "installation complete",
];

fn image_name(source: Option<machine::InstallArtifactsSource>) -> Result<String, Status> {
    let name = source.unwrap_or_default().image_name;
    if name.is_empty() {
        return Err(Status::invalid_argument("installer image name is required"));
    }
    Ok(name)
}

fn steps() -> impl Iterator<Item = machine::LifecycleServiceInstallProgress> {
    let told = INSTALLER.into_iter().map(|line| Progress::Message(format!("{line}\n")));
    told.chain([Progress::ExitCode(0)])
        .map(|response| machine::LifecycleServiceInstallProgress {
            response: Some(response),
        })
}

#[tonic::async_trait]
impl machine::lifecycle_service_server::LifecycleService for Api {
    /// Only a machine that runs from a boot medium can be installed.
    async fn install(
        &self,
        request: Request<machine::LifecycleServiceInstallRequest>,
    ) -> Answer<Stream<machine::LifecycleServiceInstallResponse>> {
        let request = request.into_inner();
        check_instance(request.containerd.as_ref())?;
        let name = image_name(request.source)?;
        let path = request.destination.unwrap_or_default().disk;
        if path.is_empty() {
            return Err(Status::invalid_argument("destination disk is required"));
        }
        if self.0.from_disk {
            return Err(Status::already_exists("machine is already installed"));
        }
        let target =
            boot::disk_at(&self.0, &path).ok_or_else(|| Status::invalid_argument(format!("invalid disk path: {path}")))?;
        let image = self.installer(&name, "installation")?;
        self.0.pass(self.0.site.timing.install).await;
        target.write(Content::Written(Arc::new(Installed::new(image))));
        let told = steps().map(|progress| machine::LifecycleServiceInstallResponse {
            progress: Some(progress),
        });
        Ok(stream(told.collect()))
    }

    /// Writes the other system beside the running one, and nothing more: no check, no drain, no reboot.
    async fn upgrade(
        &self,
        request: Request<machine::LifecycleServiceUpgradeRequest>,
    ) -> Answer<Stream<machine::LifecycleServiceUpgradeResponse>> {
        let request = request.into_inner();
        check_instance(request.containerd.as_ref())?;
        let name = image_name(request.source)?;
        if !self.0.from_disk {
            return Err(Status::failed_precondition("machine is not installed"));
        }
        let image = self.installer(&name, "upgrade")?;
        self.0.pass(self.0.site.timing.install).await;
        self.0.disk.upgrade(image);
        let told = steps().map(|progress| machine::LifecycleServiceUpgradeResponse {
            progress: Some(progress),
        });
        Ok(stream(told.collect()))
    }
}

impl Api {
    /// The system of an installer that was pulled before.
    fn installer(&self, name: &str, what: &str) -> Result<TalosImage, Status> {
        if !self.0.lock().images.contains(name) {
            return Err(Status::internal(format!(
                "{what} failed: installer image \"{name}\" not found in containerd store"
            )));
        }
        let image = self.0.image.from_installer(name);
        image.ok_or_else(|| Status::internal(format!("{what} failed: \"{name}\" is no installer")))
    }

    /// Pulls and tries the installer while the caller waits; the rest follows as a sequence.
    pub(super) async fn legacy_upgrade(&self, request: machine::UpgradeRequest) -> Answer<machine::UpgradeResponse> {
        let node = &self.0;
        if !node.from_disk {
            return Err(Status::failed_precondition("Talos is not installed"));
        }
        node.pass(node.site.timing.image_pull).await;
        let name = &request.image;
        let image = node.image.from_installer(name).filter(|_| !node.faults().image_not_found);
        let image = image.ok_or_else(|| {
            Status::unknown(format!(
                "error validating installer image \"{name}\": failed to resolve reference \"{name}\": not found"
            ))
        })?;
        if node.is_control_plane() && !request.force && !request.preserve {
            self.etcd_survives()
                .map_err(|why| Status::unknown(format!("error validating etcd for upgrade: {why}")))?;
        }
        let actor_id = actor(node);
        let order = Order {
            sequence: Sequence::Upgrade,
            graceful: true,
            upgrade: Some(image),
            ..Order::reboot(actor_id.clone(), Ending::Reboot)
        };
        sequence::begin(node, order);
        Ok(tonic::Response::new(machine::UpgradeResponse {
            messages: vec![machine::Upgrade {
                metadata: None,
                ack: "Upgrade request received".to_owned(),
                actor_id,
            }],
        }))
    }

    /// Whether etcd may lose this member for a while.
    fn etcd_survives(&self) -> Result<(), String> {
        let Some((cluster, _)) = self.0.etcd() else {
            return Err("etcd is not running".to_owned());
        };
        let members = cluster.members();
        if members.len() == 2 {
            return Err("etcd member count(2) is insufficient to maintain quorum if upgrade commences".to_owned());
        }
        match members.iter().find(|member| !member.running) {
            Some(down) => Err(format!(
                "etcd member {:016x} is not started, all members must be running to perform an upgrade",
                down.id
            )),
            None => Ok(()),
        }
    }

    /// The system before the last upgrade becomes the one that boots, and does at once.
    pub(super) fn roll_back(&self) -> Answer<machine::RollbackResponse> {
        let previous = self.0.disk.read().and_then(|installed| installed.previous);
        let previous = previous.ok_or_else(|| Status::unknown("rollback is not possible: no previous installation found"))?;
        self.0.disk.upgrade(previous);
        sequence::begin(&self.0, Order::reboot(actor(&self.0), Ending::Reboot));
        Ok(tonic::Response::new(machine::RollbackResponse {
            messages: vec![machine::Rollback { metadata: None }],
        }))
    }
}
