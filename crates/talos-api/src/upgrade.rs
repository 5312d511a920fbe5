//! Another system on the same machine: upgrade, the way back, and what runs.

use talos_proto::machine::lifecycle_service_install_progress::Response;
use talos_proto::machine::{
    InstallArtifactsSource, LifecycleServiceUpgradeRequest, RollbackRequest, UpgradeRequest, upgrade_request,
};

use crate::error::Error;
use crate::images::ImageStore;
use crate::limits::{INSTALLER, LEGACY_UPGRADE, POWER};
use crate::node::Node;
use crate::release::Release;
use crate::resource::Extension;

/// What a machine runs now. The boot id is another one after every boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Running {
    pub release: Release,
    /// `None`: the image did not come from an Image Factory.
    pub schematic: Option<String>,
    pub boot_id: String,
}

/// How the older upgrade call is to be carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LegacyUpgrade {
    /// Reboot first and install early in the next boot, where open files keep the disk busy.
    pub stage: bool,
    /// Skip the machine's own look at etcd, which refuses a cluster of two members.
    pub skip_etcd_check: bool,
    /// Reboot through the firmware.
    pub power_cycle: bool,
}

/// How an installer ended. Only [`Self::is_written`] makes another system bootable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installer {
    pub exit_code: i32,
    /// Its last lines.
    pub output: String,
}

impl Installer {
    /// The other system is on the disk, and the next boot runs it.
    pub fn is_written(&self) -> bool {
        self.exit_code == 0
    }
}

/// The most of an installer's output that is kept, from its end.
const OUTPUT: usize = 4096;

impl Node {
    /// Release, schematic and boot id, asked at once.
    pub async fn running(&self) -> Result<Running, Error> {
        let (release, schematic, boot_id) = futures::try_join!(self.release(), self.schematic(), self.boot_id())?;
        Ok(Running {
            release,
            schematic,
            boot_id,
        })
    }

    /// The Image Factory schematic of the image that runs: the factory adds an extension of this name, with the id as its version.
    pub async fn schematic(&self) -> Result<Option<String>, Error> {
        let extensions = self.list::<Extension>().await?;
        let schematic = extensions.into_iter().find(|it| it.spec.metadata.name == "schematic");
        Ok(schematic.map(|it| it.spec.metadata.version).filter(|id| !id.is_empty()))
    }

    /// Writes the system of an installer beside the running one (1.13 and newer). No check of etcd, no drain, no reboot: from here on
    /// every boot, a power cut included, runs the other system.
    ///
    /// The image must have been pulled into [`ImageStore::System`] under the same reference. After an error whose outcome is unknown
    /// the machine may be armed. `heard` gets the output as it comes.
    pub async fn write_system(&self, image: &str, mut heard: impl FnMut(&str)) -> Result<Installer, Error> {
        let pending = self.link.call("LifecycleService.Upgrade", INSTALLER);
        let request = LifecycleServiceUpgradeRequest {
            containerd: Some(ImageStore::System.instance()),
            source: Some(InstallArtifactsSource {
                image_name: image.to_owned(),
            }),
        };
        let mut stream = pending
            .answer(self.link.lifecycle().upgrade(pending.request(request)))
            .await?;
        let (mut output, mut exit_code) = (String::new(), None);
        while let Some(told) = pending.within(stream.message()).await? {
            match told.progress.and_then(|progress| progress.response) {
                Some(Response::Message(text)) => {
                    heard(&text);
                    output.push_str(&text);
                    keep_end(&mut output);
                }
                Some(Response::ExitCode(code)) => exit_code = Some(code),
                None => {}
            }
        }
        // The call itself succeeds whatever the installer did: only the exit code tells.
        let exit_code = exit_code.ok_or_else(|| pending.misread("an installer whose output ended without an exit code"))?;
        Ok(Installer { exit_code, output })
    }

    /// Upgrades as releases before 1.13 do, in one call: pull, a look at etcd, the answer, and then drain, installation and reboot. The
    /// answer names the sequence in the events that follow.
    pub async fn upgrade(&self, image: &str, how: LegacyUpgrade) -> Result<String, Error> {
        let pending = self.link.call("Upgrade", LEGACY_UPGRADE);
        let reboot = if how.power_cycle {
            upgrade_request::RebootMode::Powercycle
        } else {
            upgrade_request::RebootMode::Default
        };
        let request = UpgradeRequest {
            image: image.to_owned(),
            preserve: how.skip_etcd_check,
            stage: how.stage,
            force: false,
            reboot_mode: reboot.into(),
        };
        let answer = pending.answer(self.link.machine().upgrade(pending.request(request))).await?;
        Ok(pending.only(answer.messages)?.actor_id)
    }

    /// Makes the other system on the disk the one that boots, and reboots.
    pub async fn rollback(&self) -> Result<(), Error> {
        let pending = self.link.call("Rollback", POWER);
        pending
            .answer(self.link.machine().rollback(pending.request(RollbackRequest {})))
            .await
            .map(drop)
    }
}

fn keep_end(output: &mut String) {
    if output.len() > OUTPUT {
        let least = output.len() - OUTPUT;
        let from = (least..output.len()).find(|at| output.is_char_boundary(*at));
        output.drain(..from.unwrap_or(output.len()));
    }
}
