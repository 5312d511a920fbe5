//! Tasks: what PVE does in the background.

use serde::Deserialize;

use crate::request::{Call, Done, Page, Request};
use crate::value::{Host, Upid, Vmid, loose};

/// Only the caller's own tasks, unless it has `Sys.Audit` on the host.
pub fn status(upid: &Upid) -> Call<TaskStatus> {
    Call::new(Request::get("/nodes/{node}/tasks/{upid}/status", &[upid.host(), upid]))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TaskStatus {
    pub upid: Upid,
    #[serde(deserialize_with = "loose::text")]
    status: String,
    #[serde(default, deserialize_with = "loose::opt_text")]
    exitstatus: Option<String>,
}

impl TaskStatus {
    /// `None` while it runs.
    pub fn end(&self) -> Option<TaskEnd> {
        (self.status == "stopped").then(|| TaskEnd::parse(self.exitstatus.as_deref().unwrap_or("unexpected status")))
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaskEnd {
    Ok,
    /// Success, with so many lines in the log that begin with `WARN:`.
    Warnings(u32),
    /// Its log has no last line: the process died, the host crashed, or we looked between the process's end and its last write.
    Unexpected,
    Failed(String),
}

impl TaskEnd {
    pub fn parse(exitstatus: &str) -> Self {
        match exitstatus {
            "OK" => Self::Ok,
            "unexpected status" => Self::Unexpected,
            _ => match exitstatus.strip_prefix("WARNINGS: ").map(str::parse) {
                Some(Ok(count)) => Self::Warnings(count),
                _ => Self::Failed(exitstatus.to_owned()),
            },
        }
    }

    /// What the last line of a task's log says.
    pub fn of_log_line(line: &str) -> Option<Self> {
        let end = line.strip_prefix("TASK ")?;
        Some(
            end.strip_prefix("ERROR: ")
                .map_or_else(|| Self::parse(end), |text| Self::Failed(text.to_owned())),
        )
    }
}

/// Lines of a task's log, from line `start` (counted from 0).
pub fn log(upid: &Upid, start: u64, limit: u64) -> Call<Page<LogLine>> {
    let request = Request::get("/nodes/{node}/tasks/{upid}/log", &[upid.host(), upid]);
    Call::paged(request.with("start", start).with("limit", limit))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct LogLine {
    #[serde(deserialize_with = "loose::unsigned")]
    pub n: u64,
    #[serde(deserialize_with = "loose::text")]
    pub t: String,
}

/// The running tasks of a host that the caller may see.
pub fn active(host: &Host) -> Call<Page<TaskEntry>> {
    // The default limit would hide tasks of a busy host.
    Call::paged(
        Request::get("/nodes/{node}/tasks", &[host])
            .with("source", "active")
            .with("limit", 500),
    )
}

/// Tasks of a host, running ones included, newest first.
pub fn list(host: &Host, filter: &TaskFilter) -> Call<Page<TaskEntry>> {
    let request = Request::get("/nodes/{node}/tasks", &[host])
        .with("source", "all")
        .with_opt("vmid", filter.vmid)
        .with_opt("typefilter", filter.kind.as_deref())
        .with_opt("since", filter.since)
        .with_opt("limit", filter.limit);
    Call::paged(request)
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TaskFilter {
    pub vmid: Option<Vmid>,
    /// `qmcreate`, `qmclone`, ...
    pub kind: Option<String>,
    /// Seconds since 1970.
    pub since: Option<i64>,
    pub limit: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct TaskEntry {
    pub upid: Upid,
    #[serde(default, deserialize_with = "loose::opt_text")]
    status: Option<String>,
    #[serde(default, deserialize_with = "loose::opt_unsigned")]
    pub endtime: Option<u64>,
}

impl TaskEntry {
    /// `None` while it runs.
    pub fn end(&self) -> Option<TaskEnd> {
        let status = self
            .status
            .as_deref()
            .filter(|status| *status != "RUNNING" && !status.is_empty());
        status.map(TaskEnd::parse)
    }
}

/// Ends a task: TERM, and KILL five seconds later. Answered at once; what the task leaves behind stays.
pub fn stop(upid: &Upid) -> Call<Done> {
    Call::new(Request::delete("/nodes/{node}/tasks/{upid}", &[upid.host(), upid]))
}

#[cfg(test)]
mod tests {
    use super::TaskEnd;

    #[test]
    fn warnings_are_success() {
        assert_eq!(TaskEnd::parse("WARNINGS: 2"), TaskEnd::Warnings(2));
        assert_eq!(TaskEnd::parse("WARNINGS: many"), TaskEnd::Failed("WARNINGS: many".to_owned()));
        assert_eq!(TaskEnd::parse("unexpected status"), TaskEnd::Unexpected);
    }

    #[test]
    fn the_last_line_of_a_log_tells_the_end_too() {
        assert_eq!(TaskEnd::of_log_line("TASK OK"), Some(TaskEnd::Ok));
        assert_eq!(TaskEnd::of_log_line("TASK WARNINGS: 1"), Some(TaskEnd::Warnings(1)));
        assert_eq!(TaskEnd::of_log_line("TASK ERROR: no"), Some(TaskEnd::Failed("no".to_owned())));
        assert_eq!(TaskEnd::of_log_line("generating cloud-init ISO"), None);
    }
}
