//! Terraform with the bpg provider makes five VMs from a downloaded image, sees nothing to change, and takes them away.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Verdict;
use super::sim::Sim;
use super::tools::{Said, Tools, call, command, is_there, without};

const CONFIG: &str = include_str!("five_vms.tf");
const VERSION: &str = "0.112.0";
const LIMIT: Duration = Duration::from_secs(300);

pub fn check(tools: &Tools) -> Result<Verdict> {
    if !is_there("terraform") {
        return Ok(Verdict::Skipped("terraform is not here".to_owned()));
    }
    let Some(mirror) = provider(tools)? else {
        return without("the bpg provider");
    };
    let folder = tools.empty("terraform")?;
    let sim = Sim::start(&folder, 10)?;
    std::fs::write(folder.join("main.tf"), CONFIG)?;
    let settings = format!(
        "provider_installation {{\n  filesystem_mirror {{ path = {:?} }}\n}}\n",
        mirror.display().to_string()
    );
    std::fs::write(folder.join("terraform.rc"), settings)?;
    let terraform = |words: &[&str]| call(&mut terraform(&folder, &sim, words), LIMIT, &folder);

    terraform(&["init"])?.good("terraform init")?;
    terraform(&["apply", "-auto-approve"])?.says("terraform apply", &["6 added, 0 changed, 0 destroyed"])?;
    unchanged(terraform(&["plan", "-detailed-exitcode"])?)?;
    terraform(&["destroy", "-auto-approve"])?.says("terraform destroy", &["6 destroyed"])?;
    terraform(&["plan", "-destroy"])?.says("terraform plan -destroy", &["No changes"])?;
    Ok(Verdict::Passed)
}

fn terraform(folder: &Path, sim: &Sim, words: &[&str]) -> Command {
    let mut terraform = command("terraform");
    terraform.current_dir(folder).args(words).args(["-no-color", "-input=false"]);
    terraform
        .env("TF_CLI_CONFIG_FILE", folder.join("terraform.rc"))
        .env("CHECKPOINT_DISABLE", "1");
    terraform
        .env("TF_VAR_endpoint", &sim.endpoint)
        .env("TF_VAR_token", &sim.token)
        .env("TF_VAR_factory", &sim.factory);
    terraform
}

/// Exit 2 means that there is something to change.
fn unchanged(plan: Said) -> Result<()> {
    ensure!(
        plan.code == Some(0),
        "a plan after apply is not empty: {}{}",
        plan.out.trim(),
        plan.err.trim()
    );
    Ok(())
}

/// The provider, built from its module into a directory that terraform takes for a mirror of its registry. `None`: there is no Go.
fn provider(tools: &Tools) -> Result<Option<PathBuf>> {
    let mirror = tools.path("terraform");
    let place = mirror
        .join("registry.terraform.io/bpg/proxmox")
        .join(VERSION)
        .join(platform());
    let program = place.join(format!("terraform-provider-proxmox_v{VERSION}"));
    if program.exists() {
        return Ok(Some(mirror));
    }
    if !is_there("go") {
        return Ok(None);
    }
    println!("  building terraform-provider-proxmox {VERSION}");
    let folder = tools.empty("bpg")?;
    let limit = Duration::from_secs(3600);
    let module = format!("github.com/bpg/terraform-provider-proxmox@v{VERSION}");
    let said = call(command("go").args(["mod", "download", "-json", &module]), limit, &folder)?.good("go mod download")?;
    let said: Value = serde_json::from_str(&said).context("go mod download speaks no JSON")?;
    let source = said["Dir"].as_str().context("go mod download names no directory")?;
    std::fs::create_dir_all(&place)?;
    // The module cache cannot be written to, and nothing has to be: a build leaves no trace in its sources.
    let mut build = command("go");
    build
        .current_dir(source)
        .env("CGO_ENABLED", "0")
        .args(["build", "-mod=readonly", "-ldflags"]);
    build
        .arg(format!("-s -w -X main.version={VERSION}"))
        .arg("-o")
        .arg(&program)
        .arg(".");
    call(&mut build, limit, &folder)?.good("go build of the provider")?;
    Ok(Some(mirror))
}

/// As terraform names it: `linux_amd64`.
fn platform() -> String {
    let arch = match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    };
    let os = if std::env::consts::OS == "macos" {
        "darwin"
    } else {
        std::env::consts::OS
    };
    format!("{os}_{arch}")
}
