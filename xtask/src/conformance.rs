//! `cargo xtask conformance`: real, unmodified programs against the simulator, and the simulator against recordings of the real PVE.

mod cluster;
mod desk;
mod first_bootstrap;
mod proxmoxer;
mod sim;
mod sops;
mod talos_config;
mod terraform;
mod tools;

use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use anyhow::{Context, Result, bail};

use tools::Tools;

const USAGE: &str = "\
usage: cargo xtask conformance [sops | talos-config | proxmoxer | cluster | terraform] [--tools DIR]
       cargo xtask conformance scenarios --dir DIR [--only NAME] [-v]";

/// How a check ended that did not fail.
pub enum Verdict {
    Passed,
    /// The program or its toolchain is not here.
    Skipped(String),
}

type Check = fn(&Tools) -> Result<Verdict>;

const CHECKS: [(&str, Check); 5] = [
    ("sops", sops::check),
    ("talos-config", talos_config::check),
    ("proxmoxer", proxmoxer::check),
    ("cluster", cluster::check),
    ("terraform", terraform::check),
];

/// Runs what the arguments name; an error means that something was not equal.
pub fn run(args: &[String]) -> Result<()> {
    match args.split_first() {
        Some((kind, rest)) if kind == "scenarios" => scenarios(rest),
        _ => programs(args),
    }
}

/// All checks, or the one that is named.
fn programs(args: &[String]) -> Result<()> {
    let mut only = None;
    let mut folder: Option<PathBuf> = None;
    let mut words = args.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "--tools" => folder = Some(words.next().context("--tools needs a directory")?.into()),
            name if only.is_none() && CHECKS.iter().any(|(check, _)| *check == name) => only = Some(name),
            _ => bail!("{USAGE}"),
        }
    }
    let tools = Tools::open(folder)?;
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for (name, check) in CHECKS.iter().filter(|(name, _)| only.is_none_or(|only| only == *name)) {
        match check(&tools) {
            Ok(Verdict::Passed) => {
                passed += 1;
                println!("{name}: passed");
            }
            Ok(Verdict::Skipped(why)) => {
                skipped += 1;
                println!("{name}: skipped: {why}");
            }
            Err(error) => {
                failed += 1;
                println!("{name}: failed: {error:#}");
            }
        }
    }
    println!("{passed} passed, {failed} failed, {skipped} skipped");
    if failed > 0 {
        bail!("not everything is as the real programs want it")
    } else {
        Ok(())
    }
}

/// The replayer lives with the simulator, so that this workshop stays quick to build.
fn scenarios(args: &[String]) -> Result<()> {
    let status = cargo(
        &["run", "--quiet", "--package", "pve-sim", "--bin", "pve-sim-replay", "--"],
        args,
    )?;
    if status.success() {
        Ok(())
    } else {
        bail!("not all stable steps are equal")
    }
}

#[expect(clippy::disallowed_methods, reason = "a workshop runs tools; the shipped program does not")]
fn cargo(words: &[&str], args: &[String]) -> Result<ExitStatus> {
    Command::new(env!("CARGO"))
        .args(words)
        .args(args)
        .status()
        .context("cargo cannot be started")
}
