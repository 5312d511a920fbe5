//! Talos' own validator of three releases accepts every config that we make, and talosctl reads our secrets and client files.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::Verdict;
use super::tools::{Tools, built, call, command, sources, without};

const LIMIT: Duration = Duration::from_secs(60);
const RELEASES: [&str; 3] = ["1.12.6", "1.13.9", "1.14.1"];

/// The real talosctl, whose module has replaced dependencies and so is built, not installed.
pub fn talosctl(tools: &Tools) -> Result<Option<std::path::PathBuf>> {
    let flags = ["-trimpath", "-ldflags", "-s -w", "github.com/siderolabs/talos/cmd/talosctl"];
    tools.go_build("talosctl", &[sources("talosctl")], &flags)
}

pub fn check(tools: &Tools) -> Result<Verdict> {
    let folder = tools.empty("talos-config")?;
    let emit = built(&["--package", "talos-config", "--example", "emit"])?;
    let emitted = folder.join("emitted");
    call(command(emit).arg(&emitted), LIMIT, &folder)?.good("emit")?;
    for release in RELEASES {
        let from = [sources("talos-oracle"), sources("talos-oracle").join(format!("v{release}"))];
        let Some(oracle) = tools.go_build(&format!("oracle-{release}"), &from, &["."])? else {
            return without("Talos' config validator");
        };
        let configs = judge(&oracle, release, &emitted, &folder)?;
        println!("  Talos {release} accepts {configs} configs");
    }
    let Some(talosctl) = talosctl(tools)? else {
        return without("talosctl");
    };
    read_back(&talosctl, &emitted, &folder)?;
    Ok(Verdict::Passed)
}

/// How many configs of this release were accepted: all, or an error.
fn judge(oracle: &Path, release: &str, emitted: &Path, folder: &Path) -> Result<usize> {
    let mut count = 0;
    for entry in std::fs::read_dir(emitted)? {
        let path = entry?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned())
            .unwrap_or_default();
        let minor = release.rsplit_once('.').map_or(release, |(minor, _)| minor);
        if !name.starts_with(&format!("{minor}.")) {
            continue;
        }
        let mut validate = command(oracle);
        validate.args(["validate", "metal", "strict"]).arg(&path);
        call(&mut validate, LIMIT, folder)?.good(&format!("validating {name}"))?;
        count += 1;
    }
    ensure!(count > 0, "there is no config for Talos {release}");
    Ok(count)
}

fn read_back(talosctl: &Path, emitted: &Path, folder: &Path) -> Result<()> {
    let mut generate = command(talosctl);
    generate.args(["gen", "config", "demo", "https://10.0.0.10:6443", "--force", "--with-secrets"]);
    generate
        .arg(emitted.join("secrets.yaml"))
        .arg("--output-dir")
        .arg(folder.join("theirs"));
    call(&mut generate, LIMIT, folder)?.good("talosctl gen config --with-secrets")?;
    let mut info = command(talosctl);
    info.args(["config", "info", "--talosconfig"])
        .arg(emitted.join("talosconfig"));
    call(&mut info, LIMIT, folder)?.says("talosctl config info", &["demo", "10.0.0.11", "os:admin"])?;
    Ok(())
}
