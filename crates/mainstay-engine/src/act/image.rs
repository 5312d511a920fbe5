//! The bootable disk: known to the Image Factory, and downloaded by the host that needs it.

use std::time::Duration;

use mainstay_plan::{Image, StorageAt};
use pve_api::{Class, Content, Volid, storage};

use super::machine::{begin, follow, note};
use super::named;
use crate::event::Voice;
use crate::failure::{Failure, Kind};
use crate::site::Site;

/// A download of an image. The factory builds it first, which can take minutes.
const DOWNLOAD: Duration = Duration::from_secs(1800);
/// How often a copy or a download is asked how far it is.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// Makes the schematic known. The factory computes the id from the text, so the same text twice is the same schematic.
pub async fn register(site: &Site, id: &str) -> Result<(), Failure> {
    site.factory.register(&site.schematic, id).await?;
    Ok(())
}

/// Has the host fetch the image, unless it is there in full.
pub async fn fetch(site: &Site, voice: &Voice, at: &StorageAt, image: &Image) -> Result<(), Failure> {
    let (host, store): (pve_api::Host, pve_api::StorageId) = (named(&at.host)?, named(&at.storage)?);
    let size = match image.size {
        Some(size) => size,
        None => built(site, voice, image).await?,
    };
    match stored_size(site, at, &image.file).await? {
        Some(there) if there == size => return Ok(()),
        Some(_) => delete(site, at, &image.file).await?,
        None => {}
    }
    let download = storage::Download {
        content: Content::Import,
        filename: image.file.clone(),
        url: image.url.clone(),
        checksum: None,
        verify_certificates: true,
    };
    begin(site, "image.fetch", &at.to_string());
    let upid = match site.pve.call(storage::download(&host, &store, &download)).await {
        Ok(upid) => upid,
        Err(error) if error.class() == Some(&Class::Exists) => {
            return Err(Failure::changed(format!("{} appeared on {at} meanwhile", image.file)).caused_by(error));
        }
        Err(error) => return Err(error.into()),
    };
    note(site, "image.fetch", &at.to_string(), &upid);
    let told = site
        .pve
        .wait_reporting(&upid, PROGRESS_EVERY, |progress| voice.wait(progress.line, DOWNLOAD))
        .await;
    // What counts is the file: another run may have been at it, or our own answer may have been lost.
    match stored_size(site, at, &image.file).await? {
        Some(there) if there == size => Ok(()),
        Some(there) => {
            delete(site, at, &image.file).await?;
            Err(Failure::new(
                Kind::Failed,
                format!("the image on {at} has {there} bytes, the factory says {size}"),
            )
            .why("the download was cut short, or something else answered in the factory's place"))
        }
        None => Err(told.err().map_or_else(
            || Failure::changed(format!("{} is not on {at} although its download ended well", image.file)),
            Failure::from,
        )),
    }
}

/// Has the factory build the image, and tells its size.
async fn built(site: &Site, voice: &Voice, image: &Image) -> Result<u64, Failure> {
    let mut waiting = |_| voice.wait("the Image Factory builds the image", DOWNLOAD);
    let asset = site.factory.asset(&order(image)?, DOWNLOAD, &mut waiting).await?;
    Ok(asset.size)
}

/// The image in the words of the factory: its URL names schematic, version and file.
fn order(image: &Image) -> Result<talos_api::factory::Image, Failure> {
    let bug = || Failure::new(Kind::Bug, format!("`{}` is no address of an image", image.url));
    let mut parts = image.url.rsplit('/');
    let (file, version) = (
        parts.next().ok_or_else(bug)?,
        parts.next().and_then(|tag| tag.strip_prefix('v')).ok_or_else(bug)?,
    );
    Ok(talos_api::factory::Image {
        schematic: image.schematic.clone(),
        version: version.parse().map_err(|_| bug())?,
        file: file.to_owned(),
    })
}

async fn stored_size(site: &Site, at: &StorageAt, file: &str) -> Result<Option<u64>, Failure> {
    let (host, store): (pve_api::Host, pve_api::StorageId) = (named(&at.host)?, named(&at.storage)?);
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
pub async fn delete(site: &Site, at: &StorageAt, file: &str) -> Result<(), Failure> {
    let host: pve_api::Host = named(&at.host)?;
    let volid = Volid::import(named(&at.storage)?, file)
        .map_err(|error| Failure::new(Kind::Bug, "an image that Proxmox VE cannot name").caused_by(error))?;
    if stored_size(site, at, file).await?.is_none() {
        return Ok(());
    }
    match site.pve.call(storage::delete(&host, &volid)).await {
        Ok(Some(upid)) => follow(site, "image.delete", &at.to_string(), &upid).await,
        Ok(None) => Ok(()),
        Err(error) if error.is_missing() => Ok(()),
        Err(error) => Err(error.into()),
    }
}
