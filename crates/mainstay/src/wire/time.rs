//! Times of the stream, in seconds.

use std::time::Duration;

/// Rounded to tenths: finer times differ from run to run and tell nothing.
pub fn seconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 10.0).round() / 10.0
}

/// A time of a line that was read. A negative or absurd one, which mainstay never writes, counts as zero.
pub fn duration(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or_default()
}
