//! How far a task is, by the last line of its log.

use std::time::Duration;

use futures::FutureExt as _;

use super::{Client, TaskDone};
use crate::calls::task;
use crate::error::Error;
use crate::value::Upid;

/// What a task said last.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub line: String,
    /// Of the copy or download the line is about.
    pub percent: Option<f32>,
}

impl Progress {
    fn of(line: &str) -> Self {
        Self {
            line: line.trim().to_owned(),
            percent: percent(line),
        }
    }
}

/// `transferred 2.6 MiB of 37.4 MiB (6.88%)` of a disk copy, `  5120K ........ 42%  907M 0s` of a download.
fn percent(line: &str) -> Option<f32> {
    let number = |word: &str| word.trim_matches(['(', ')']).strip_suffix('%')?.parse::<f32>().ok();
    line.split_ascii_whitespace()
        .rev()
        .find_map(number)
        .filter(|percent| (0.0..=100.0).contains(percent))
}

impl Client {
    /// Asks once how far a task is. `None` while it has said nothing.
    pub async fn progress(&self, upid: &Upid) -> Result<Option<Progress>, Error> {
        let lines = self.log_tail(upid, 1).await?;
        Ok(lines.last().map(|line| Progress::of(line)))
    }

    /// Waits for a task and tells how far it is each time `every` has passed. That costs one more call each time.
    pub async fn wait_reporting(
        &self,
        upid: &Upid,
        every: Duration,
        mut report: impl FnMut(Progress),
    ) -> Result<TaskDone, Error> {
        let mut end = std::pin::pin!(self.wait(upid).fuse());
        let mut seen = 0;
        loop {
            tokio::select! {
                biased;
                end = &mut end => return end,
                () = tokio::time::sleep(every) => {
                    // Progress is a courtesy: a log that cannot be read now is no reason to stop waiting.
                    if let Ok(page) = self.call(task::log(upid, seen, LINES)).await {
                        seen = page.items.last().map_or(seen, |line| line.n);
                        if let Some(line) = page.items.last() {
                            report(Progress::of(&line.t));
                        }
                    }
                }
            }
        }
    }

    /// The last lines of a task's log.
    pub async fn log_tail(&self, upid: &Upid, lines: u64) -> Result<Vec<String>, Error> {
        let mut page = self.call(task::log(upid, 0, lines)).await?;
        if page.total > lines {
            page = self.call(task::log(upid, page.total - lines, lines)).await?;
        }
        Ok(page.items.into_iter().map(|line| line.t).collect())
    }
}

/// More than any copy says in the interval of a report.
const LINES: u64 = 500;

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn copies_and_downloads_tell_how_far_they_are() {
        assert_eq!(percent("transferred 2.6 MiB of 37.4 MiB (6.88%)"), Some(6.88));
        assert_eq!(
            percent("     0K                                    100%  907M=0s"),
            Some(100.0)
        );
        assert_eq!(percent("generating cloud-init ISO"), None);
        assert_eq!(percent("999% of nothing"), None);
    }
}
