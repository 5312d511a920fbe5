//! Requests that start a task on Proxmox VE: send one at most once, follow its task, and find the task of a request whose answer was lost.

use std::fmt::Write;
use std::time::Duration;

use pve_api::{Call, Error, Progress, StorageId, Upid, task};
use tokio::time::Instant;

use super::location::VmLocation;
use crate::clients::Clients;
use crate::event::{StepProgress, Transfer};
use crate::failure::Failure;
use crate::in_flight;
use crate::journal::JournalEntry;

/// Interval between two reads of the progress of a copy or download.
pub(super) const PROGRESS_EVERY: Duration = Duration::from_secs(5);

/// A host drops a forwarded request after 30 seconds. A request without a visible task after this time was never executed.
const LOST_REQUEST_WINDOW: Duration = Duration::from_secs(35);

/// Shown as the longest expected duration of a copy. The wait does not end then: giving up a running copy would start it twice.
const COPY_EXPECTED: Duration = Duration::from_secs(4 * 3600);

pub(super) fn journal_begin(site: &Clients, step: &str, subject: &str) {
    site.journal.write(&JournalEntry::Begin {
        step: step.into(),
        subject: subject.into(),
    });
}

/// Records the task in the journal and waits for its end.
pub(super) async fn follow_task(site: &Clients, step: &str, subject: &str, upid: &Upid) -> Result<(), Failure> {
    journal_task(site, step, subject, upid);
    in_flight::follow(upid, site.pve.wait(upid)).await?;
    Ok(())
}

pub(super) fn journal_task(site: &Clients, step: &str, subject: &str, upid: &Upid) {
    site.journal.write(&JournalEntry::Task {
        step: step.into(),
        subject: subject.into(),
        upid: upid.to_string(),
    });
}

/// Waits for the end of a copy and reports its progress. Returns the last time at which the log showed the copy running, else the time of
/// the first log read. A slow last answer says nothing about when the disk was complete, so the time of the answer is not used.
pub(super) async fn follow_copy(
    site: &Clients,
    voice: &StepProgress,
    upid: &Upid,
    storage: Option<&StorageId>,
) -> Result<Option<Instant>, Error> {
    let mut copying = None;
    let told = |progress: Progress| {
        if copying.is_none() || progress.line.starts_with("transferred") {
            copying = Some(Instant::now());
        }
        tell_progress(voice, "copied", &progress, COPY_EXPECTED);
    };
    in_flight::follow(upid, site.pve.wait_copy(upid, storage, PROGRESS_EVERY, told)).await?;
    Ok(copying)
}

/// Tells how far a copy or download is. Most lines of a task's log say nothing about that: they are left out.
pub(super) fn tell_progress(voice: &StepProgress, verb: &str, progress: &Progress, limit: Duration) {
    if let Some(text) = progress_text(verb, progress) {
        voice.transfer(text, Transfer::of(progress), limit);
    }
}

/// `downloaded 120 of 310 MB, 25 MB/s`, or `copied 39%`.
fn progress_text(verb: &str, progress: &Progress) -> Option<String> {
    let megabytes = |bytes: u64| bytes.div_ceil(1_000_000);
    let (Some(done), Some(total)) = (progress.done, progress.total) else {
        return progress.percent.map(|percent| format!("{verb} {percent:.0}%"));
    };
    let mut text = format!("{verb} {} of {} MB", megabytes(done), megabytes(total));
    if let Some(rate) = progress.rate.filter(|rate| *rate > 0) {
        let _ = write!(text, ", {} MB/s", megabytes(rate));
    }
    Some(text)
}

/// Running tasks of this VM that the token may see, started by this run or by an earlier one.
pub(super) async fn running_tasks(site: &Clients, location: &VmLocation) -> Result<Vec<Upid>, Failure> {
    let page = site.pve.call(task::active(&location.host)).await?;
    Ok(page
        .items
        .into_iter()
        .filter(|entry| entry.end().is_none() && entry.upid.vmid() == Some(location.vmid))
        .map(|entry| entry.upid)
        .collect())
}

/// Waits until no task works on the VM.
pub(super) async fn await_running_tasks(site: &Clients, voice: &StepProgress, location: &VmLocation) -> Result<(), Failure> {
    for upid in running_tasks(site, location).await? {
        voice.wait(
            format!("waiting for task {} of VM {}", upid.kind(), location.vmid),
            COPY_EXPECTED,
        );
        // Only the end of the task matters here. The caller reads the VM to see what the task did.
        if let Err(error @ (Error::NotSent { .. } | Error::Unknown { .. })) = follow_copy(site, voice, &upid, None).await {
            return Err(error.into());
        }
    }
    Ok(())
}

/// Sends a request that must not be executed twice: a late duplicate could hit another VM or volume that has the same id by then.
pub(super) async fn send_once<T>(site: &Clients, voice: &StepProgress, location: &VmLocation, call: Call<T>) -> Result<T, Error> {
    let sent = site.send(call).await;
    if sent.as_ref().is_err_and(Error::is_unknown) {
        await_lost_task(site, voice, location).await;
    }
    sent
}

/// Waits until a request whose answer was lost shows up as a task and ends, or can no longer be executed. Only then may it be repeated.
async fn await_lost_task(site: &Clients, voice: &StepProgress, location: &VmLocation) {
    let began = Instant::now();
    while began.elapsed() < LOST_REQUEST_WINDOW {
        if !running_tasks(site, location).await.unwrap_or_default().is_empty() {
            // If this fails, the next attempt of the action reads the state of the VM anyway.
            let _ = await_running_tasks(site, voice, location).await;
            return;
        }
        voice.wait(
            "the answer was lost; checking whether the request was executed",
            LOST_REQUEST_WINDOW,
        );
        tokio::time::sleep(site.jitter.pause(Duration::from_secs(2))).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_says_how_much_of_how_much_and_how_fast_and_else_the_percentage() {
        let mut progress = Progress {
            line: "39% 1.2e8".into(),
            percent: Some(39.0),
            done: Some(119_600_000),
            total: Some(310_000_000),
            rate: Some(25_000_000),
        };
        let text = |verb, progress: &Progress| progress_text(verb, progress).unwrap_or_default();
        assert_eq!(text("downloaded", &progress), "downloaded 120 of 310 MB, 25 MB/s");
        progress.rate = None;
        assert_eq!(text("copied", &progress), "copied 120 of 310 MB");
        progress.total = None;
        assert_eq!(text("copied", &progress), "copied 39%");
        progress.percent = None;
        assert_eq!(progress_text("copied", &progress), None);
    }
}
