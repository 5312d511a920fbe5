//! From the file and the secrets to everything that the plan must be told: versions, images, one config per machine.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use mainstay_spec::Spec;
use rand::CryptoRng;
use uuid::Uuid;

use crate::addon;
use crate::course;
use crate::derive_error::DeriveError;
use crate::desired::{Desired, DesiredInputs, Image, running};
use crate::guest::{self, Pins};
use crate::observed::{GuestConfig, Observed};
use crate::secrets::ClusterSecrets;
use crate::versions::{Course, Versions};

/// What the cluster is to run: the versions of the file, else what runs, else the newest that this binary knows.
pub fn versions(spec: &Spec, observed: Option<&Observed>, secrets: Option<&ClusterSecrets>) -> Result<Versions, DeriveError> {
    let there = observed
        .zip(secrets)
        .and_then(|(observed, secrets)| running(observed, secrets.id()));
    guest::resolve_versions(spec, there.as_ref())
}

/// The same where what runs is known.
pub fn resolve(spec: &Spec, running: Option<&Versions>) -> Result<Versions, DeriveError> {
    guest::resolve_versions(spec, running)
}

/// What the machines run, and their way to `target`.
pub fn course(spec: &Spec, observed: &Observed, cluster_id: Option<Uuid>, target: &Versions) -> Course {
    course::chart(spec, observed, cluster_id, target)
}

/// The config of every machine, by name.
pub fn configs(
    spec: &Spec,
    secrets: &ClusterSecrets,
    versions: &Versions,
    pins: &Pins,
) -> Result<BTreeMap<String, GuestConfig>, DeriveError> {
    guest::configs(spec, secrets, versions, pins)
}

/// What is wrong with the configs of a cluster that has no secrets yet. They are made with secrets that are forgotten at once.
pub fn check_configs(spec: &Spec, versions: &Versions, now: Timestamp, rng: &mut impl CryptoRng) -> Result<(), DeriveError> {
    guest::check_configs(spec, versions, now, rng)
}

/// The disk image of machines of these versions.
pub fn image(spec: &Spec, versions: &Versions, pins: &Pins) -> Result<Image, DeriveError> {
    guest::image(spec, versions, pins)
}

/// The cluster of the file.
pub fn desired(spec: &Spec, secrets: Option<&ClusterSecrets>, observed: &Observed, pins: &Pins) -> Result<Desired, DeriveError> {
    let versions = versions(spec, Some(observed), secrets)?;
    let course = course::chart(spec, observed, secrets.map(ClusterSecrets::id), &versions);
    let configs = secrets
        .map(|secrets| guest::configs_for(spec, secrets, &course, &versions, pins))
        .transpose()?
        .unwrap_or_default();
    let facts = DesiredInputs {
        cluster_id: secrets.map(ClusterSecrets::id),
        image: guest::image(spec, &course.joins, pins)?,
        system: guest::system(spec, &course.hop(&versions)),
        course,
        first_user: secrets.and_then(guest::first_user),
        versions,
        configs,
        addons: addon::wanted::desired(spec, secrets.map(ClusterSecrets::content_key).as_ref(), &observed.addons),
    };
    Ok(Desired::cluster(spec, facts))
}

/// The image files of a cluster that is to be removed: that of what runs, and that of what the file asks for, which may differ.
pub fn image_files(
    spec: &Spec,
    secrets: Option<&ClusterSecrets>,
    observed: &Observed,
    pins: &Pins,
) -> Result<BTreeSet<String>, DeriveError> {
    let there = secrets.and_then(|secrets| running(observed, secrets.id()));
    let wanted = guest::resolve_versions(spec, there.as_ref())?;
    let files = there
        .iter()
        .chain([&wanted])
        .map(|versions| Ok(guest::image(spec, versions, pins)?.file));
    files.collect()
}
