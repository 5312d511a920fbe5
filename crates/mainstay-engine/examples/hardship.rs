//! Bad days in bulk: `hardship [--seeds N] [--start S] [--tell]`. Ends with one line: `N seeds, V violations`.

#![expect(clippy::print_stdout, reason = "its output is what it is for")]

#[path = "../tests/days/mod.rs"]
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod days;
#[path = "../tests/stage/mod.rs"]
#[expect(dead_code, reason = "shared with tests that need other parts of it")]
mod stage;

use std::panic::{AssertUnwindSafe, catch_unwind};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |name: &str, otherwise: u64| {
        let at = words.iter().position(|word| word == name);
        at.and_then(|at| words.get(at + 1)?.parse().ok()).unwrap_or(otherwise)
    };
    let (seeds, start, tell) = (
        number("--seeds", 100),
        number("--start", 0),
        words.iter().any(|word| word == "--tell"),
    );
    let violations = (start..start + seeds).filter(|seed| !is_good(*seed, tell)).count();
    println!("{seeds} seeds, {violations} violations");
    std::process::exit(i32::from(violations > 0));
}

/// A run that never ends or panics is as wrong as one that does harm.
fn is_good(seed: u64, tell: bool) -> bool {
    let wrong = match catch_unwind(AssertUnwindSafe(|| days::live(seed))) {
        Ok(tale) => {
            if tell {
                println!("{}\n{} calm runs", tale.text, tale.calm_runs);
            }
            tale.wrong
        }
        Err(panic) => vec![panic.downcast_ref::<String>().cloned().unwrap_or_default()],
    };
    if !wrong.is_empty() {
        println!("seed {seed} (replay: --seeds 1 --start {seed} --tell):");
        for line in &wrong {
            println!("  {}", line.lines().next().unwrap_or_default());
        }
    }
    wrong.is_empty()
}
