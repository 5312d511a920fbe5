//! How Talos changes its version: the installer's image is pulled, written beside the running system, and booted.

use std::time::Duration;

use mainstay_net::Secret;
use mainstay_plan::guest::{talos_config_with, talos_image_of};
use mainstay_plan::{GuestConfig, GuestRef, KubernetesPart};
use semver::Version;
use talos_api::resource::{Stage, SystemInformation};
use talos_api::{Class, Error, ImageStore, LegacyUpgrade, Mode, Next, Node, Outcome};
use uuid::Uuid;

use super::super::{RunningSystem, StepContext, WrittenSystem};
use super::TalosClients;
use crate::failure::{Failure, FailureKind};

/// How long an installer may take.
const INSTALLS: Duration = Duration::from_secs(600);

/// Release, schematic, boot and stage of the machine that was meant.
pub async fn running_system(ctx: StepContext<'_>, clients: &TalosClients, guest: &GuestRef) -> Result<RunningSystem, Failure> {
    let node = clients.node(ctx.addresses.address(&guest.machine)?)?;
    let (running, status, hardware) = futures::try_join!(
        node.running(),
        node.status(),
        node.get::<SystemInformation>(SystemInformation::ID)
    )?;
    let uuid = hardware.and_then(|found| found.spec.uuid.parse::<Uuid>().ok());
    if uuid.is_some_and(|uuid| uuid != guest.uuid) {
        return Err(Failure::conflict(format!(
            "another machine of this cluster answers as {}",
            guest.machine
        )));
    }
    Ok(RunningSystem {
        release: running.release.version().clone(),
        schematic: running.schematic,
        boot_id: running.boot_id,
        is_up: status.is_some_and(|status| status.stage == Stage::Running),
    })
}

/// Pulls the installer.
pub async fn pull(ctx: StepContext<'_>, clients: &TalosClients, guest: &GuestRef, image: &str) -> Result<(), Failure> {
    let node = clients.node(ctx.addresses.address(&guest.machine)?)?;
    let release = node.release().await?;
    let pulled = node.pull_image(&release, ImageStore::System, image, |_| {}).await;
    pulled.map_err(|error| missing_image(&guest.machine, image, error))
}

/// Writes the new system. From 1.13 on that is all; before, the machine restarts by itself.
pub async fn write(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    guest: &GuestRef,
    image: &str,
) -> Result<WrittenSystem, Failure> {
    let node = clients.node(ctx.addresses.address(&guest.machine)?)?;
    if !node.release().await?.has_lifecycle() {
        return write_before_1_13(&node, image).await;
    }
    let heard = |line: &str| ctx.progress.wait(line.trim().to_owned(), INSTALLS);
    let ended = node.write_system(image, heard).await?;
    if ended.is_written() {
        return Ok(WrittenSystem::Armed);
    }
    let told = ended
        .output
        .lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .to_owned();
    Err(Failure::new(
        FailureKind::Held,
        format!("the installer on {} ended with exit code {}", guest.machine, ended.exit_code),
    )
    .why(told)
    .help("nothing was changed on it; `mainstay up` tries again"))
}

/// The drain is over already, and etcd was looked at, so the machine's own checks would only repeat that.
async fn write_before_1_13(node: &Node, image: &str) -> Result<WrittenSystem, Failure> {
    match node.upgrade(image, LegacyUpgrade::default()).await {
        Ok(_) => Ok(WrittenSystem::Restarting),
        // The boot that follows tells whether it was heard.
        Err(error) if error.outcome() == Outcome::Unknown => Ok(WrittenSystem::Restarting),
        Err(error) => Err(error.into()),
    }
}

pub async fn hand_over_etcd(ctx: StepContext<'_>, clients: &TalosClients, guest: &GuestRef) {
    let Some(address) = ctx.addresses.get(&guest.machine) else {
        return;
    };
    let Ok(node) = clients.node(address) else { return };
    if node.etcd_status().await.is_ok_and(|status| status.is_leader()) {
        let _ = tokio::time::timeout(Duration::from_secs(5), node.etcd_forfeit_leadership()).await;
    }
}

/// A request whose answer is lost is judged by the boot that follows.
pub async fn restart(ctx: StepContext<'_>, clients: &TalosClients, guest: &GuestRef) -> Result<(), Failure> {
    let node = clients.node(ctx.addresses.address(&guest.machine)?)?;
    match node.reboot().await {
        Ok(_) => Ok(()),
        Err(error) if is_maybe_restarting(&error) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn is_maybe_restarting(error: &Error) -> bool {
    error.outcome() != Outcome::Refused || matches!(error.next(), Next::AwaitReboot | Next::Retry | Next::Look)
}

/// Pulls the images of these parts from where the config of the machine has them.
pub async fn pull_kubernetes(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    guest: &GuestRef,
    parts: &[KubernetesPart],
    to: &Version,
) -> Result<(), Failure> {
    let node = clients.node(ctx.addresses.address(&guest.machine)?)?;
    let (release, config) = (node.release().await?, own_config(&node).await?);
    for part in parts {
        let Some(image) = talos_image_of(&config, *part, to) else {
            continue;
        };
        let store = if *part == KubernetesPart::Kubelet {
            ImageStore::System
        } else {
            ImageStore::Pods
        };
        node.pull_image(&release, store, &image, |_| {})
            .await
            .map_err(|error| missing_image(&guest.machine, &image, error))?;
    }
    Ok(())
}

/// Reads the config, changes one image, and applies it without a restart.
pub async fn set_kubernetes(
    ctx: StepContext<'_>,
    clients: &TalosClients,
    guest: &GuestRef,
    part: KubernetesPart,
    to: &Version,
) -> Result<(), Failure> {
    running_system(ctx, clients, guest).await?;
    let node = clients.node(ctx.addresses.address(&guest.machine)?)?;
    let (release, config) = (node.release().await?, own_config(&node).await?);
    let changed = talos_config_with(&config, release.version(), part, to)
        .ok_or_else(|| Failure::stale_plan(format!("the config of {} does not name an image of {part}", guest.machine)))?;
    if talos_image_of(&config, part, to).is_some_and(|image| config.expose().contains(&image)) {
        return Ok(());
    }
    match node.apply(&Secret::new(changed.expose().to_owned()), Mode::NoReboot).await {
        Ok(_) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

async fn own_config(node: &Node) -> Result<GuestConfig, Failure> {
    let config = node.config().await?;
    let (_, text) = config.ok_or_else(|| Failure::stale_plan(format!("{} has no config", node.at())))?;
    Ok(GuestConfig::new(text.expose().as_str()))
}

/// An image that its registry does not have is a matter for the operator.
fn missing_image(machine: &str, image: &str, error: Error) -> Failure {
    if error.class() == Some(Class::NotFound) {
        return Failure::new(FailureKind::Held, format!("{machine} cannot load {image}"))
            .why("its registry does not have it")
            .help("choose a version that the registry has");
    }
    error.into()
}
