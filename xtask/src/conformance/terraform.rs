//! Terraform with the bpg provider makes five VMs from a downloaded image, sees nothing to change, and takes them away.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Verdict;
use super::sim::Sim;
use super::tools::{Said, Tools, call, command, is_there, without};

const CONFIG: &str = include_str!("five_vms.tf");
const PROVIDER: &str = "0.112.0";
const TOFU: &str = "1.12.6";
const LIMIT: Duration = Duration::from_secs(300);

pub fn check(tools: &Tools) -> Result<Verdict> {
    let Some(program) = terraform(tools)? else {
        return without("terraform");
    };
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
    let run = |words: &[&str]| call(&mut invocation(&program, &folder, &sim, words), LIMIT, &folder);

    let version = run(&["version"])?.good("its version")?;
    println!(
        "  {} with the bpg provider {PROVIDER}",
        version.lines().next().unwrap_or_default()
    );
    run(&["init"])?.good("init")?;
    run(&["apply", "-auto-approve"])?.says("apply", &["6 added, 0 changed, 0 destroyed"])?;
    unchanged(run(&["plan", "-detailed-exitcode"])?)?;
    run(&["destroy", "-auto-approve"])?.says("destroy", &["6 destroyed"])?;
    run(&["plan", "-destroy"])?.says("plan -destroy", &["No changes"])?;
    Ok(Verdict::Passed)
}

/// Terraform or OpenTofu from the `PATH`; else OpenTofu from its module, since Terraform's own cannot be built outside its repository.
fn terraform(tools: &Tools) -> Result<Option<PathBuf>> {
    if let Some(found) = ["terraform", "tofu"].into_iter().find(|name| is_there(name)) {
        return Ok(Some(found.into()));
    }
    let program = tools.path("bin").join("tofu");
    let flags = "-s -w";
    tools.go_module(
        &program,
        &format!("github.com/opentofu/opentofu@v{TOFU}"),
        "./cmd/tofu",
        flags,
    )
}

fn invocation(program: &Path, folder: &Path, sim: &Sim, words: &[&str]) -> Command {
    let mut terraform = command(program);
    terraform.current_dir(folder).args(words);
    if words != ["version"] {
        terraform.args(["-no-color", "-input=false"]);
    }
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
        .join(PROVIDER)
        .join(platform());
    let program = place.join(format!("terraform-provider-proxmox_v{PROVIDER}"));
    let module = format!("github.com/bpg/terraform-provider-proxmox@v{PROVIDER}");
    let flags = format!("-s -w -X main.version={PROVIDER}");
    Ok(tools.go_module(&program, &module, ".", &flags)?.map(|_| mirror))
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
