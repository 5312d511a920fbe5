//! The bootable disk: downloaded by the host that needs it.

use std::time::Duration;

use mainstay_plan::{Image, ImageChecksum, ImageFile, StorageAt};
use pve_api::{Class, Content, Volid, storage};

use super::tasks::{PROGRESS_EVERY, follow_task, journal_begin, journal_task, tell_progress};
use crate::clients::Clients;
use crate::event::StepProgress;
use crate::failure::{Failure, FailureKind};
use crate::guest;
use crate::in_flight;
use crate::pve_config::parse_name;

/// A download of an image. The factory builds it first, which can take minutes.
const DOWNLOAD: Duration = Duration::from_secs(1800);

/// Has the host fetch the image, unless it is there in full.
pub(super) async fn fetch(site: &Clients, voice: &StepProgress, at: &StorageAt, image: &Image) -> Result<(), Failure> {
    let (host, store): (pve_api::Host, pve_api::StorageId) = (parse_name(&at.host)?, parse_name(&at.storage)?);
    let size = match image.size {
        Some(size) => Some(size),
        None => guest::image_size(&site.guests, voice, image).await?,
    };
    let download = storage::Download {
        content: Content::Import,
        filename: image.file.clone(),
        url: image.url.clone(),
        checksum: image.checksum.as_ref().map(checksum).transpose()?,
        verify_certificates: true,
    };
    journal_begin(site, "image.fetch", &at.to_string());
    let upid = match site.send(storage::download(&host, &store, &download)).await {
        Ok(upid) => upid,
        Err(error) if error.class() == Some(&Class::Exists) => {
            return Err(
                Failure::stale_plan(format!("another process created {} on {at} meanwhile", image.file)).caused_by(error),
            );
        }
        Err(error) => return Err(error.into()),
    };
    journal_task(site, "image.fetch", &at.to_string(), &upid);
    // What was waited for before, such as the build of the image, is over.
    voice.wait("downloading", DOWNLOAD);
    let end = site.pve.wait_copy(&upid, Some(&store), PROGRESS_EVERY, |progress| {
        tell_progress(voice, "downloaded", &progress, DOWNLOAD);
    });
    let told = in_flight::follow(&upid, end).await;
    // What counts is the file: another run may have been at it, or our own answer may have been lost.
    match stored_size(site, at, &image.file).await? {
        Some(there) if size.is_none_or(|size| size == there) && (size.is_some() || told.is_ok()) => {
            let file = image.file.clone();
            let fetched = ImageFile {
                file,
                size: there,
                // It is whole, so nothing is to be deleted.
                may_delete: false,
            };
            site.facts.add_image(at, fetched);
            Ok(())
        }
        Some(there) => {
            delete(site, at, &image.file).await?;
            Err(Failure::new(
                FailureKind::Failed,
                format!(
                    "the image on {at} has {there} bytes, its publisher says {}",
                    size.unwrap_or_default()
                ),
            )
            .why("the download was cut short, or something else answered in the publisher's place"))
        }
        None => Err(told.err().map_or_else(
            || Failure::stale_plan(format!("{} is not on {at} although its download ended well", image.file)),
            Failure::from,
        )),
    }
}

async fn stored_size(site: &Clients, at: &StorageAt, file: &str) -> Result<Option<u64>, Failure> {
    let (host, store): (pve_api::Host, pve_api::StorageId) = (parse_name(&at.host)?, parse_name(&at.storage)?);
    let filter = storage::ContentFilter {
        content: Some(Content::Import),
        vmid: None,
    };
    let volumes = site.pve.call(storage::content(&host, &store, &filter)).await?;
    Ok(volumes
        .into_iter()
        .find(|volume| volume.volid.file_name() == file)
        .map(|volume| volume.size))
}

/// Removes an image file. One that is gone is gone.
pub(super) async fn delete(site: &Clients, at: &StorageAt, file: &str) -> Result<(), Failure> {
    let host: pve_api::Host = parse_name(&at.host)?;
    let volid = Volid::import(parse_name(&at.storage)?, file)
        .map_err(|error| Failure::new(FailureKind::Bug, "the image name is not valid in Proxmox VE").caused_by(error))?;
    // Kept facts would list the file, and the next round would remove it again.
    site.facts.forget();
    if stored_size(site, at, file).await?.is_none() {
        return Ok(());
    }
    match site.send(storage::delete(&host, &volid)).await {
        Ok(Some(upid)) => follow_task(site, "image.delete", &at.to_string(), &upid).await,
        Ok(None) => Ok(()),
        Err(error) if error.is_missing() => Ok(()),
        Err(error) if error.class() == Some(&Class::Denied) => Err(Failure::from(error).help(format!("pvesm free {volid}"))),
        Err(error) => Err(error.into()),
    }
}

fn checksum(of: &ImageChecksum) -> Result<storage::Checksum, Failure> {
    let algorithm = match of.algorithm {
        "sha256" => storage::ChecksumAlgorithm::Sha256,
        "sha512" => storage::ChecksumAlgorithm::Sha512,
        other => {
            let what = format!("Proxmox VE knows no checksum algorithm {other}");
            return Err(Failure::new(FailureKind::Bug, what));
        }
    };
    Ok(storage::Checksum {
        algorithm,
        hex: of.hex.clone(),
    })
}
