//! Artifacts that the operator pushes to guests without internet.

use std::io;
use std::time::Duration;

use futures::future::BoxFuture;
use rancher_config::guest::{self as guest_config, ArtifactOrigin, PinnedArtifact};
use tokio::io::AsyncRead;

use super::session::{OpenGuest, last_line};
use super::wait::{Poll, WaitReporter, until};
use crate::failure::{Failure, FailureKind};

const PUSH_LIMIT: Duration = Duration::from_secs(3 * 3600);

/// A local artifact, readable from any position: a push that broke off goes on where it stopped.
pub struct ArtifactFile {
    pub length: u64,
    pub content: Box<dyn AsyncRead + Send + Unpin>,
}

/// Where artifacts to push are found, by file name.
pub trait ArtifactFiles: Send + Sync {
    /// Opens an artifact and skips its first `offset` bytes.
    fn open<'a>(&'a self, file: &'a str, offset: u64) -> BoxFuture<'a, io::Result<ArtifactFile>>;
}

/// Pushes every artifact that is not downloaded by the guest itself. At most a few machines at once: the operator's uplink is the limit.
pub(super) async fn push(
    guest: &OpenGuest,
    artifacts: &[PinnedArtifact],
    files: Option<&dyn ArtifactFiles>,
    progress: &dyn WaitReporter,
) -> Result<(), Failure> {
    for artifact in artifacts.iter().filter(|artifact| artifact.origin == ArtifactOrigin::Pushed) {
        let files = files.ok_or_else(|| {
            Failure::new(
                FailureKind::Bug,
                format!(
                    "{} must be pushed to the machines, but no source for it is configured",
                    artifact.file
                ),
            )
        })?;
        let what = format!("{} was not pushed to {}", artifact.file, guest.name());
        until(&guest.access, progress, &what, PUSH_LIMIT, async || {
            push_once(guest, artifact, files, progress).await
        })
        .await?;
    }
    Ok(())
}

async fn push_once(
    guest: &OpenGuest,
    artifact: &PinnedArtifact,
    files: &dyn ArtifactFiles,
    progress: &dyn WaitReporter,
) -> Result<Poll<()>, Failure> {
    let output = guest.run(&guest_config::pushed_state(artifact)).await?;
    let text = output.stdout_text();
    let offset = match text.trim().split_once(' ') {
        None if text.trim() == "verified" => return Ok(Poll::Done(())),
        Some(("part", bytes)) => bytes.parse().ok(),
        _ => None,
    };
    let unreadable = || {
        Failure::new(
            FailureKind::Failed,
            format!("the artifacts of {} cannot be read", guest.name()),
        )
    };
    let offset: u64 = offset.ok_or_else(unreadable)?;
    progress.wait("waiting for other machines to receive their artifacts", PUSH_LIMIT);
    let _turn = guest.access.pushes.acquire().await;
    progress.wait(&format!("receives {}", artifact.file), PUSH_LIMIT);
    let local =
        |error: io::Error| Failure::new(FailureKind::Failed, format!("{} cannot be read", artifact.file)).caused_by(error);
    let file = files.open(&artifact.file, offset).await.map_err(local)?;
    let command = guest_config::receive_artifact(artifact, offset, file.length);
    let output = match guest.run_with(&command, file.content).await {
        Ok(output) => output,
        // The connection broke: what arrived stays, and the next attempt continues behind it.
        Err(failure) if failure.kind == FailureKind::Unsettled => return Ok(Poll::NotYet(failure.what)),
        Err(failure) => return Err(failure),
    };
    let said = last_line(&output.stderr_text());
    match output.exit {
        mainstay_net::SshExit::Code(0) => Ok(Poll::Done(())),
        // An incomplete part, or one that another attempt has grown meanwhile.
        mainstay_net::SshExit::Code(74 | 75) => Ok(Poll::NotYet(said)),
        mainstay_net::SshExit::Code(65) => {
            Err(Failure::refused(format!("{} differs from its pinned checksum", artifact.file)).why(said))
        }
        exit => Err(Failure::new(
            FailureKind::Failed,
            format!("{} was not received by {} ({exit})", artifact.file, guest.name()),
        )
        .why(said)),
    }
}
