//! How far a task is, by the lines of its log.

use std::collections::VecDeque;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::Instant;

use super::watch::Report;
use super::{Client, TaskDone};
use crate::calls::task::{self, LogLine, TaskEnd};
use crate::error::Error;
use crate::value::{StorageId, Upid};

/// What a task said last.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    pub line: String,
    /// Of the copy or download the line is about.
    pub percent: Option<f32>,
    /// Bytes copied or downloaded so far, and in all. PVE prints them rounded.
    pub done: Option<u64>,
    pub total: Option<u64>,
    /// Bytes per second: between the last two reads of the log, else as the download itself says.
    pub rate: Option<u64>,
}

impl Progress {
    /// A download names its size only once, before its first percentage.
    fn of(line: &str, length: Option<u64>) -> Self {
        let percent = percent(line);
        let (done, total) = transferred(line).map_or_else(
            || {
                let share = percent.zip(length).map(|(percent, length)| share(length, percent));
                (share, share.and(length))
            },
            |(done, total)| (Some(done), Some(total)),
        );
        Self {
            line: line.trim().to_owned(),
            percent,
            done,
            total,
            rate: rate(line),
        }
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a percentage of a size is between 0 and the size, and it is shown rounded"
)]
fn share(length: u64, percent: f32) -> u64 {
    (length as f64 * f64::from(percent) / 100.0) as u64
}

/// `transferred 2.6 MiB of 37.4 MiB (6.88%)` of a disk copy, `  5120K ........ 42%  907M 0s` of a download.
fn percent(line: &str) -> Option<f32> {
    let number = |word: &str| word.trim_matches(['(', ')']).strip_suffix('%')?.parse::<f32>().ok();
    line.split_ascii_whitespace()
        .rev()
        .find_map(number)
        .filter(|percent| (0.0..=100.0).contains(percent))
}

/// Both sizes of `transferred 2.6 MiB of 37.4 MiB`, which a block job puts behind the name of its drive.
fn transferred(line: &str) -> Option<(u64, u64)> {
    let mut words = line
        .split_ascii_whitespace()
        .skip_while(|word| *word != "transferred")
        .skip(1);
    let done = bytes(words.next()?, words.next()?)?;
    let total = (words.next()? == "of").then(|| bytes(words.next()?, words.next()?))??;
    Some((done, total))
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "sizes are shown rounded, and a cast of a float saturates"
)]
fn bytes(number: &str, unit: &str) -> Option<u64> {
    let power = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"]
        .iter()
        .position(|known| *known == unit)?;
    let number = number.parse::<f64>().ok().filter(|number| *number >= 0.0)?;
    Some((number * 1024_f64.powi(i32::try_from(power).ok()?)) as u64)
}

/// The size in `Length: 36569088 (35M) [application/octet-stream]`.
fn length(line: &str) -> Option<u64> {
    line.strip_prefix("Length: ")?.split_ascii_whitespace().next()?.parse().ok()
}

/// The speed behind the percentage of a download: `42%  907M 0s`, at the end `100%  907M=0s`.
fn rate(line: &str) -> Option<u64> {
    let mut words = line.split_ascii_whitespace().skip_while(|word| !word.ends_with('%')).skip(1);
    let speed = words.next()?.split('=').next()?;
    let number = speed.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = match speed.strip_prefix(number)? {
        "" => "B",
        "K" => "KiB",
        "M" => "MiB",
        "G" => "GiB",
        _ => return None,
    };
    bytes(number, unit)
}

/// Percentages that a forecast is made from.
const POINTS: usize = 4;

/// Reads the log of one task from where it stopped.
#[derive(Default)]
pub(super) struct LogReader {
    /// Lines read so far.
    pub(super) seen: u64,
    pub(super) read_at: Option<Instant>,
    /// The size of a download.
    length: Option<u64>,
    /// The last bytes of this copy.
    bytes: Option<(Instant, u64)>,
    /// The last percentages of this copy.
    points: VecDeque<(Instant, f32)>,
    /// Whether its last line was there.
    pub(super) ended: bool,
}

impl LogReader {
    pub(super) fn shows_percentage(&self) -> bool {
        !self.points.is_empty()
    }

    /// Takes new lines; `None` if there are none.
    pub(super) fn take(&mut self, now: Instant, lines: &[LogLine]) -> Option<Progress> {
        let last = lines.last()?;
        self.seen = last.n;
        self.ended = TaskEnd::of_log_line(&last.t).is_some();
        self.length = lines.iter().rev().find_map(|line| length(&line.t)).or(self.length);
        if let Some(percent) = lines.iter().rev().find_map(|line| percent(&line.t)) {
            // A second copy of the same task begins anew.
            if self.points.back().is_some_and(|(_, before)| *before > percent) {
                let began = self.points.back().map(|(at, _)| (*at, 0.0));
                self.points = began.into_iter().collect();
                self.bytes = None;
            }
            if self.points.len() == POINTS {
                self.points.pop_front();
            }
            self.points.push_back((now, percent));
        }
        let mut progress = Progress::of(&last.t, self.length);
        if let Some(done) = progress.done {
            let measured = self
                .bytes
                .and_then(|(then, before)| per_second(now - then, done.checked_sub(before)?));
            progress.rate = measured.or(progress.rate);
            self.bytes = Some((now, done));
        }
        Some(progress)
    }

    /// How long the task takes in all, if the percentages go on as they went.
    pub(super) fn forecast(&self, begun: Instant) -> Option<Duration> {
        let (now, percent) = *self.points.back()?;
        let (then, before) = match *self.points.front()? {
            (at, _) if at == now => (begun, 0.0),
            first => first,
        };
        let per_second = f64::from(percent - before) / (now - then).as_secs_f64();
        let left = f64::from(100.0 - percent) / per_second;
        let left = Duration::try_from_secs_f64(left).ok()?;
        Some((now - begun).saturating_add(left))
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "a rate is shown rounded, and a cast of a float saturates"
)]
fn per_second(time: Duration, bytes: u64) -> Option<u64> {
    (!time.is_zero()).then(|| (bytes as f64 / time.as_secs_f64()) as u64)
}

impl Client {
    /// Asks once how far a task is. `None` while it has said nothing.
    pub async fn progress(&self, upid: &Upid) -> Result<Option<Progress>, Error> {
        let lines = self.log_tail(upid, 1).await?;
        Ok(lines.last().map(|line| Progress::of(line, None)))
    }

    /// Waits for a task and tells how far it is, at most each time `every` has passed.
    ///
    /// Until its log shows a percentage it is read each time. Then tasks of one kind take turns, one log every five seconds.
    pub async fn wait_reporting(&self, upid: &Upid, every: Duration, report: impl FnMut(Progress)) -> Result<TaskDone, Error> {
        self.wait_copy(upid, None, every, report).await
    }

    /// As [`Self::wait_reporting`], for a copy to a known storage: copies to other storages say nothing about its speed.
    pub async fn wait_copy(
        &self,
        upid: &Upid,
        storage: Option<&StorageId>,
        every: Duration,
        mut report: impl FnMut(Progress),
    ) -> Result<TaskDone, Error> {
        let (sender, mut told) = tokio::sync::mpsc::unbounded_channel();
        let asked = Report { every, sender };
        let mut end = std::pin::pin!(self.wait_as(upid, storage, Some(asked)).fuse());
        loop {
            tokio::select! {
                biased;
                end = &mut end => return end,
                Some(progress) = told.recv() => report(progress),
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

/// More than any copy says between two reads.
pub(super) const LINES: u64 = 500;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::Instant;

    use super::{LogReader, Progress, percent};
    use crate::calls::task::LogLine;

    fn lines(from: u64, texts: &[&str]) -> Vec<LogLine> {
        let line = |(n, text): (u64, &&str)| LogLine {
            n,
            t: (*text).to_owned(),
        };
        (from..).zip(texts).map(line).collect()
    }

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

    #[test]
    fn a_copy_tells_its_bytes_and_a_block_job_too() {
        let copy = Progress::of("transferred 416.0 KiB of 2.0 MiB (20.31%)", None);
        assert_eq!((copy.done, copy.total), (Some(425_984), Some(2_097_152)));
        let job = Progress::of("drive-scsi0: transferred 1.0 GiB of 32.0 GiB (3.12%) in 5s, ready", None);
        assert_eq!(
            (job.done, job.total, job.percent),
            (Some(1 << 30), Some(32 << 30), Some(3.12))
        );
        assert_eq!(job.rate, None);
        let other = Progress::of("transferred 1.0 GiB VM-state", None);
        assert_eq!((other.done, other.total), (None, None));
    }

    #[test]
    fn a_download_tells_its_bytes_by_its_length_and_its_speed() {
        let mut log = LogReader::default();
        let begun = Instant::now();
        let head = lines(
            1,
            &[
                "Length: 104857600 (100M) [application/octet-stream]",
                "Saving to: '/var/lib/vz/import/x.qcow2.tmp_dwnl.7'",
                "     0K ........ ........ ........ ........ 20% 10.5M 8s",
            ],
        );
        let first = log.take(begun + Duration::from_secs(2), &head).unwrap();
        assert_eq!((first.done, first.total), (Some(20_971_520), Some(104_857_600)));
        assert_eq!(first.rate, Some(11_010_048));
        assert_eq!(log.forecast(begun), Some(Duration::from_secs(10)));
        assert_eq!(log.seen, 3);
        // The second read measures the speed itself.
        let more = lines(4, &[" 32768K ........ ........ ........ ........ 40%  907M 0s"]);
        let second = log.take(begun + Duration::from_secs(6), &more).unwrap();
        assert_eq!((second.done, second.rate), (Some(41_943_040), Some(5_242_880)));
        assert_eq!(log.forecast(begun).unwrap().as_secs_f64().round(), 18.0);
        assert_eq!(log.take(begun + Duration::from_secs(9), &[]), None);
    }

    #[test]
    fn a_second_copy_of_the_same_task_is_forecast_by_its_own_percentage() {
        let mut log = LogReader::default();
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        log.take(at(10), &lines(1, &["transferred 9.0 GiB of 10.0 GiB (90.00%)"]));
        log.take(at(14), &lines(2, &["transferred 1.0 GiB of 2.0 GiB (50.00%)"]));
        assert_eq!(log.forecast(begun), Some(Duration::from_secs(18)));
        log.take(at(19), &lines(3, &["TASK OK"]));
        assert!(log.ended);
    }

    #[test]
    fn a_copy_that_stands_still_has_no_forecast() {
        let mut log = LogReader::default();
        let begun = Instant::now();
        log.take(
            begun + Duration::from_secs(2),
            &lines(1, &["transferred 0.0 B of 2.0 GiB (0.00%)"]),
        );
        assert_eq!(log.forecast(begun), None);
        assert!(log.shows_percentage());
    }
}
