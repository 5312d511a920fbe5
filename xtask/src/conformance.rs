//! `cargo xtask conformance scenarios --dir DIR`: the simulator against recordings of the real PVE.

use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

/// Runs what the arguments name; an error means that something was not equal.
pub fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((kind, rest)) if kind == "scenarios" => scenarios(rest),
        _ => bail!("usage: cargo xtask conformance scenarios --dir DIR [--only NAME] [-v]"),
    }
}

/// The replayer lives with the simulator, so that this workshop stays quick to build.
fn scenarios(args: &[String]) -> Result<()> {
    let status = cargo(&["run", "--quiet", "--package", "pve-sim", "--bin", "pve-sim-replay", "--"], args)?;
    if status.success() { Ok(()) } else { bail!("not all stable steps are equal") }
}

#[expect(clippy::disallowed_methods, reason = "a workshop runs tools; the shipped program does not")]
fn cargo(words: &[&str], args: &[String]) -> Result<ExitStatus> {
    Command::new(env!("CARGO")).args(words).args(args).status().context("cargo cannot be started")
}
