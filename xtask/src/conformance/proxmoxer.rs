//! proxmoxer leads a VM through its life.

use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};

use super::Verdict;
use super::sim::Sim;
use super::tools::{Tools, call, command, is_there, without};

const SCRIPT: &str = include_str!("vm_life.py");
const PACKAGES: [&str; 3] = ["proxmoxer==2.3.0", "requests", "requests-toolbelt"];

pub fn check(tools: &Tools) -> Result<Verdict> {
    let Some(python) = python(tools)? else {
        return without("proxmoxer");
    };
    let folder = tools.empty("proxmoxer")?;
    let sim = Sim::start(&folder, 50)?;
    let address = sim.endpoint.trim_start_matches("https://");
    let (host, port) = address.rsplit_once(':').context("the endpoint has no port")?;
    std::fs::write(folder.join("vm_life.py"), SCRIPT)?;
    let mut script = command(python);
    script.current_dir(&folder).arg("vm_life.py").args([host, port, &sim.token]);
    let facts = call(&mut script, Duration::from_secs(180), &folder)?.good("proxmoxer")?;
    println!("  proxmoxer saw {} facts", facts.lines().count());
    Ok(Verdict::Passed)
}

/// A Python that has proxmoxer, in an environment of its own.
fn python(tools: &Tools) -> Result<Option<PathBuf>> {
    let home = tools.path("python");
    let python = home.join("bin").join("python");
    // An installation that was interrupted has a Python, but not the package.
    let whole = || command(&python).args(["-c", "import proxmoxer, requests_toolbelt"]).output();
    if !whole().is_ok_and(|probe| probe.status.success()) {
        if !is_there("python3") {
            return Ok(None);
        }
        println!("  installing {}", PACKAGES.join(" "));
        let folder = tools.empty("pip")?;
        let limit = Duration::from_secs(600);
        call(command("python3").args(["-m", "venv"]).arg(&home), limit, &folder)?.good("python3 -m venv")?;
        call(
            command(&python).args(["-m", "pip", "--quiet", "install"]).args(PACKAGES),
            limit,
            &folder,
        )?
        .good("pip install")?;
    }
    Ok(Some(python))
}
