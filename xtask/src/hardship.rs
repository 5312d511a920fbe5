//! `hardship --seeds N [--start S]`: thousands of bad days, optimised.

use anyhow::{Context, Result, bail};

pub fn run(arguments: &[String]) -> Result<()> {
    let mut command = crate::cargo();
    command.args([
        "run",
        "--quiet",
        "--profile",
        "hard",
        "--package",
        "mainstay-engine",
        "--example",
        "hardship",
        "--",
    ]);
    if !command.args(arguments).status().context("cargo run")?.success() {
        bail!("violations: the lines above replay them");
    }
    Ok(())
}
