//! The gate and the workshop. `cargo xtask` lists what it can do.

mod bans;
mod capture;
mod conformance;
mod dist;
mod distros;
mod hardship;
mod modules;
mod names;
mod size;
mod source;
mod tidy;
mod words;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask tidy        the rules of the house that no compiler checks: who may depend on whom, who prints, what a text may say
cargo xtask bans        shows that every banned call and type is in fact refused by clippy
cargo xtask capture     the captures of the documentation, from runs on a simulated datacenter: [path of a mainstay binary]
cargo xtask hardship    seeded bad days: --seeds N [--start S]
cargo xtask dist        the static binary, completions, manual pages and checksums, in target/dist";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.first().map(String::as_str) {
        Some("tidy") => tidy::run(),
        Some("bans") => bans::run(),
        Some("capture") => capture::run(&arguments[1..]),
        Some("conformance") => conformance::run(&arguments[1..]),
        Some("hardship") => hardship::run(&arguments[1..]),
        Some("dist") => dist::run(),
        _ => {
            println!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// The root of the workspace, wherever xtask was called from.
fn root() -> std::path::PathBuf {
    std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies in the workspace")
        .to_path_buf()
}

/// Cargo, as the one that runs us.
#[expect(clippy::disallowed_methods, reason = "the workshop runs cargo; the product runs nothing")]
fn cargo() -> std::process::Command {
    let mut command = std::process::Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root());
    command
}
