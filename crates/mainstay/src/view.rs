//! Readers of the engine's events: a live board on a terminal, plain lines for CI, JSON lines for programs.

mod board;
mod json;
mod plain;
pub mod problem;
pub mod status;

use std::time::Duration;

use mainstay_engine::Told;

use crate::output::Output;

pub use json::{plan_object, report as json_report};

/// How a run is shown.
pub enum View {
    Live(board::Live),
    Plain(plain::Plain),
    Json(json::Json),
}

impl View {
    pub fn new(output: Output) -> Self {
        if output.json {
            Self::Json(json::Json::new(output))
        } else if output.live {
            Self::Live(board::Live::new(output))
        } else {
            Self::Plain(plain::Plain::new(output))
        }
    }

    pub fn show(&mut self, told: &Told) {
        match self {
            Self::Live(live) => live.show(told),
            Self::Plain(plain) => plain.show(told),
            Self::Json(json) => json.show(told),
        }
    }

    /// Time passed without an event.
    pub fn tick(&mut self, now: Duration) {
        match self {
            Self::Live(live) => live.draw(now),
            Self::Plain(plain) => plain.tick(now),
            Self::Json(_) => {}
        }
    }

    /// The run is over: leaves what should stay on the screen.
    pub fn finish(&mut self) {
        if let Self::Live(live) = self {
            live.finish();
        }
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

/// `1 step`, `14 steps`.
pub fn count(number: usize, noun: &str) -> String {
    if number == 1 {
        format!("1 {noun}")
    } else {
        format!("{number} {noun}s")
    }
}

/// The one-line summary of what a plan will do.
pub fn summary(plan: &mainstay_plan::Plan) -> String {
    let sums = plan.summary();
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
    if sums.held > 0 {
        parts.push(format!("{} held", sums.held));
    }
    let steps = count(sums.steps, "step");
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
