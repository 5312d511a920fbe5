//! Other systems on the same machine: `machine.LifecycleService`, the upgrade call before it, and the way back.

use std::sync::Arc;

use futures::StreamExt;
use pve_sim::guest::Content;
use talos_proto::machine;
use talos_proto::machine::lifecycle_service_install_progress::Response as Progress;
use tonic::{Request, Status};

use super::images::check_instance;
use super::machine::actor;
use super::{Answer, Api, Stream};
use crate::factory::TalosImage;
use crate::talos::boot;
use crate::talos::disk::{ImageStore, Installed};
use crate::talos::node::{Ending, Node, Sequence};
use crate::talos::sequence::{self, Order};

/// One at a time, until it ends or its caller hangs up.
struct Turn(Arc<Node>);

impl Turn {
    fn take(node: &Arc<Node>) -> Result<Self, Status> {
        let mut state = node.lock();
        if std::mem::replace(&mut state.installing, true) {
            return Err(Status::failed_precondition(
                "another installation/upgrade is already in progress",
            ));
        }
        drop(state);
        Ok(Self(Arc::clone(node)))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.lock().installing = false;
    }
}

fn image_name(source: Option<machine::InstallArtifactsSource>) -> Result<String, Status> {
    let name = source.unwrap_or_default().image_name;
    if name.is_empty() {
        return Err(Status::invalid_argument("installer image name is required"));
    }
    Ok(name)
}

fn says(response: Progress) -> Result<machine::LifecycleServiceInstallProgress, Status> {
    Ok(machine::LifecycleServiceInstallProgress {
        response: Some(response),
    })
}

fn line(text: &str) -> Result<machine::LifecycleServiceInstallProgress, Status> {
    says(Progress::Message(format!("{text}\n")))
}

/// What an installer tells, and in the end its exit code. `write` is what it does to the disk, once its checks have passed.
fn installer(
    turn: Turn,
    image: TalosImage,
    write: impl FnOnce(TalosImage) + Send + 'static,
) -> impl futures::Stream<Item = Result<machine::LifecycleServiceInstallProgress, Status>> {
    let begins = futures::stream::iter([line("running Talos installer"), line("running pre-flight checks")]);
    let ends = futures::stream::once(async move {
        let node = &turn.0;
        if let Err(why) = fits(node, &image) {
            return futures::stream::iter(vec![line(&why), says(Progress::ExitCode(1))]);
        }
        node.pass(node.site.timing.install).await;
        if node.faults().installer_fails {
            return futures::stream::iter(vec![line("failed to write the boot entry"), says(Progress::ExitCode(1))]);
        }
        write(image);
        futures::stream::iter(vec![line("installation complete"), says(Progress::ExitCode(0))])
    });
    begins.chain(ends.flatten())
}

/// The installer's own look at the machine: from how far back it upgrades, and whether it knows the Kubernetes of the config.
fn fits(node: &Node, image: &TalosImage) -> Result<(), String> {
    let (host, target) = (&node.image.version, &image.version);
    if host.minor + 2 < target.minor {
        return Err(format!("host version {host} is too old to upgrade to Talos {target}"));
    }
    if host.minor >= target.minor + 2 {
        return Err(format!("host version {host} is too new to downgrade to Talos {target}"));
    }
    let fault = node
        .config()
        .and_then(|config| crate::talos::config::kubernetes_fault(config.kubelet_image(), target));
    fault.map_or(Ok(()), |fault| Err(format!("pre-flight checks failed: {fault}")))
}

#[tonic::async_trait]
impl machine::lifecycle_service_server::LifecycleService for Api {
    /// Only a machine that runs from a boot medium can be installed.
    async fn install(
        &self,
        request: Request<machine::LifecycleServiceInstallRequest>,
    ) -> Answer<Stream<machine::LifecycleServiceInstallResponse>> {
        let request = request.into_inner();
        let turn = Turn::take(&self.0)?;
        let store = check_instance(request.containerd.as_ref())?;
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
        let image = self.installer(store, &name, "installation")?;
        let write = move |image| target.write(Content::Written(Arc::new(Installed::new(image))));
        let told = installer(turn, image, write).map(|progress| {
            Ok(machine::LifecycleServiceInstallResponse {
                progress: Some(progress?),
            })
        });
        Ok(tonic::Response::new(Box::pin(told)))
    }

    /// Writes the other system beside the running one, and nothing more: no check, no drain, no reboot.
    async fn upgrade(
        &self,
        request: Request<machine::LifecycleServiceUpgradeRequest>,
    ) -> Answer<Stream<machine::LifecycleServiceUpgradeResponse>> {
        let request = request.into_inner();
        let turn = Turn::take(&self.0)?;
        let store = check_instance(request.containerd.as_ref())?;
        let name = image_name(request.source)?;
        if !self.0.from_disk {
            return Err(Status::failed_precondition("machine is not installed"));
        }
        let image = self.installer(store, &name, "upgrade")?;
        let disk = self.0.disk.clone();
        let told = installer(turn, image, move |image| disk.upgrade(image)).map(|progress| {
            Ok(machine::LifecycleServiceUpgradeResponse {
                progress: Some(progress?),
            })
        });
        Ok(tonic::Response::new(Box::pin(told)))
    }
}

impl Api {
    /// The system of an installer that was pulled before.
    fn installer(&self, store: ImageStore, name: &str, what: &str) -> Result<TalosImage, Status> {
        if !self.0.has_image(store, name) {
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
        let name = &request.image;
        let image = node.image.from_installer(name).filter(|_| node.is_published(name));
        if image.is_some() {
            node.pass(node.pull_time(name)).await;
        }
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
        let ending = match request.reboot_mode() {
            machine::upgrade_request::RebootMode::Default => Ending::Reboot,
            machine::upgrade_request::RebootMode::Powercycle => Ending::PowerCycle,
        };
        let order = Order {
            sequence: if request.stage {
                Sequence::StageUpgrade
            } else {
                Sequence::Upgrade
            },
            // A staged upgrade only reboots: nothing is drained.
            graceful: !request.stage,
            upgrade: Some(image),
            ..Order::reboot(actor_id.clone(), ending)
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
        if !self.0.disk.revert() {
            return Err(Status::unknown("previous UKI not found"));
        }
        // It takes over whatever runs, and its events name no actor.
        let order = Order {
            force: true,
            ..Order::reboot(String::new(), Ending::Reboot)
        };
        sequence::begin(&self.0, order);
        Ok(tonic::Response::new(machine::RollbackResponse {
            messages: vec![machine::Rollback { metadata: None }],
        }))
    }
}
