//! The journal of a boot.

use std::sync::Mutex;

use super::host::Host;

#[derive(Clone, Debug)]
pub(crate) struct Entry {
    pub at: jiff::Timestamp,
    pub unit: Option<String>,
    pub identifier: String,
    pub message: String,
}

#[derive(Default)]
pub(crate) struct Journal(Mutex<Vec<Entry>>);

/// Older entries are rotated away.
const KEPT: usize = 20_000;

impl Journal {
    /// One entry per line.
    pub fn write(&self, host: &Host, unit: Option<&str>, identifier: &str, text: &str) {
        let mut entries = self.0.lock().expect("plain data");
        for line in text.lines() {
            entries.push(Entry {
                at: host.timestamp(),
                unit: unit.map(str::to_owned),
                identifier: identifier.to_owned(),
                message: line.to_owned(),
            });
        }
        let extra = entries.len().saturating_sub(KEPT);
        entries.drain(..extra);
    }

    pub fn entries(&self) -> Vec<Entry> {
        self.0.lock().expect("plain data").clone()
    }
}

impl Entry {
    /// As `journalctl -o short` prints it.
    pub fn short(&self, hostname: &str) -> String {
        format!(
            "{} {hostname} {}[700]: {}",
            self.at.strftime("%b %d %H:%M:%S"),
            self.identifier,
            self.message
        )
    }
}
