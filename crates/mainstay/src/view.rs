//! Readers of the event stream: a live view for terminals, plain lines for CI, JSON lines for programs.

mod board;
pub mod error;
mod json;
mod live;
mod plain;
pub mod plan_page;
mod progress;
#[cfg(test)]
mod script;
mod stage;
pub mod status;

use std::time::Duration;

use json::JsonView;
use live::LiveView;
use plain::PlainView;

pub use crate::text::count;

use crate::output::Output;
use crate::wire::{EventLine, PlanEvent};

/// One reader of the stream. Any number of them reads the same run.
pub trait EventReader {
    fn line(&mut self, line: &EventLine);

    /// Time passed without an event.
    fn tick(&mut self, _now: Duration) {}

    /// The run is over.
    fn finish(&mut self) {}
}

/// The reader that shows a run in the form that was asked for.
pub fn reader(output: Output) -> Box<dyn EventReader> {
    if output.json {
        Box::new(JsonView::new(output))
    } else if output.live {
        Box::new(LiveView::new(output))
    } else {
        Box::new(PlainView::new(output))
    }
}

/// `0:07`, `12:34`, `1:02:03`.
pub fn clock(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes, seconds) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if hours > 0 {
        format!("{hours}:{minutes:02}:{seconds:02}")
    } else {
        format!("{minutes}:{seconds:02}")
    }
}

/// `38s`, `2m`, `2m 5s`.
pub fn short(time: Duration) -> String {
    let seconds = time.as_secs();
    match (seconds / 60, seconds % 60) {
        (0, seconds) => format!("{seconds}s"),
        (minutes, 0) => format!("{minutes}m"),
        (minutes, seconds) => format!("{minutes}m {seconds}s"),
    }
}

/// `about 40 s`, `about 4 min`.
pub fn about(time: Duration) -> String {
    let seconds = time.as_secs();
    if seconds < 90 {
        format!("about {seconds} s")
    } else {
        format!("about {} min", (seconds + 30) / 60)
    }
}

/// The one-line summary of what a plan will do.
pub fn summary(plan: &PlanEvent) -> String {
    let sums = &plan.counts;
    let mut parts = Vec::new();
    let mut part = |number: usize, noun: &str, verb: &str| {
        if number > 0 {
            parts.push(format!("{} to {verb}", count(number, noun)));
        }
    };
    part(sums.images_to_create, "image", "fetch");
    part(sums.machines_to_create, "machine", "create");
    part(sums.machines_to_change, "machine", "change");
    part(sums.machines_to_remove, "machine", "remove");
    part(sums.images_to_remove, "image", "remove");
    part(sums.leftovers_to_remove, "leftover", "remove");
    if plan.held > 0 {
        parts.push(format!("{} held", plan.held));
    }
    let steps = count(plan.steps, "step");
    if parts.is_empty() {
        steps
    } else {
        format!("{steps}: {}", parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_read_as_people_say_them() {
        let seconds = Duration::from_secs;
        assert_eq!(
            [clock(seconds(7)), clock(seconds(754)), clock(seconds(3723))],
            ["0:07", "12:34", "1:02:03"]
        );
        assert_eq!(
            [short(seconds(38)), short(seconds(120)), short(seconds(125))],
            ["38s", "2m", "2m 5s"]
        );
    }
}
