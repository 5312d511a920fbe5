//! Bad days in bulk: `hardship [--seeds N] [--start S] [--jobs J] [--tell] [--digest]`. Ends with one line: `N seeds, V violations`.
//!
//! `--digest` prints one line per seed: a hash of its events and one of its Proxmox VE requests. Where a change of the code is meant to
//! change nothing, the lines before and after are equal.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

#[path = "../tests/days/mod.rs"]
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod days;
#[path = "../tests/stage/mod.rs"]
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod stage;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{available_parallelism, scope};

/// A run of thousands of seeds shows its progress.
const TOLD_EVERY: u64 = 500;

struct Work {
    next: AtomicU64,
    end: u64,
    done: AtomicU64,
    violations: AtomicU64,
    tell: bool,
    digest: bool,
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, otherwise: u64| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
    let (seeds, start, jobs) = (number("--seeds", 100), number("--start", 0), number("--jobs", cores).max(1));
    let work = Work {
        next: AtomicU64::new(start),
        end: start + seeds,
        done: AtomicU64::new(0),
        violations: AtomicU64::new(0),
        tell: words.iter().any(|word| word == "--tell"),
        digest: words.iter().any(|word| word == "--digest"),
    };
    scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| work.run());
        }
    });
    println!("{:.0} seeds per CPU minute", seeds as f64 / cpu_seconds() * 60.0);
    let violations = work.violations.into_inner();
    println!("{seeds} seeds, {violations} violations");
    std::process::exit(i32::from(violations > 0));
}

/// CPU time of this process, as Linux counts it in hundredths of a second. Other programs on the machine do not change it.
fn cpu_seconds() -> f64 {
    let status = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may have spaces. The third field follows it; the 14th and the 15th are the times.
    let fields = status.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
    let ticks: Vec<f64> = fields.skip(11).take(2).filter_map(|field| field.parse().ok()).collect();
    ticks.iter().sum::<f64>() / 100.0
}

impl Work {
    fn run(&self) {
        loop {
            let seed = self.next.fetch_add(1, Ordering::Relaxed);
            if seed >= self.end {
                return;
            }
            if !self.is_good(seed) {
                self.violations.fetch_add(1, Ordering::Relaxed);
            }
            let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
            if done.is_multiple_of(TOLD_EVERY) {
                println!("{done} seeds so far, {} violations", self.violations.load(Ordering::Relaxed));
            }
        }
    }

    /// A run that never ends or panics is as wrong as one that does harm.
    fn is_good(&self, seed: u64) -> bool {
        let wrong = match catch_unwind(AssertUnwindSafe(|| days::live(seed))) {
            Ok(tale) => {
                if self.tell {
                    println!("{}\n{} calm runs", tale.text, tale.calm_runs);
                }
                if self.digest {
                    println!("{seed} {}", tale.digest);
                }
                tale.wrong
            }
            Err(panic) => vec![panic.downcast_ref::<String>().cloned().unwrap_or_default()],
        };
        if !wrong.is_empty() {
            let lines: String = wrong
                .iter()
                .map(|line| format!("\n  {}", line.lines().next().unwrap_or_default()))
                .collect();
            println!("seed {seed} (replay: --seeds 1 --start {seed} --tell):{lines}");
        }
        wrong.is_empty()
    }
}
