//! Talos' own validator of three releases accepts every config that we make, and talosctl reads our secrets and client files.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

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
    examples(&folder, &emitted)?;
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

/// The machine configs of every example, as `mainstay config` writes them, beside the others and named by their release.
fn examples(folder: &Path, emitted: &Path) -> Result<()> {
    let mainstay = built(&["--package", "mainstay", "--bin", "mainstay"])?;
    let (copies, home) = (folder.join("examples"), folder.join("home"));
    std::fs::create_dir_all(home.join(".ssh"))?;
    std::fs::create_dir_all(&copies)?;
    // Never used: a file with a jump host wants some key to be there.
    std::fs::write(home.join(".ssh/id_ed25519"), "no key")?;
    for entry in std::fs::read_dir(crate::root().join("examples"))? {
        let path = entry?.path();
        let name = path
            .file_stem()
            .map(|stem| stem.to_string_lossy().into_owned())
            .unwrap_or_default();
        let file = copies.join(format!("{name}.yaml"));
        std::fs::copy(&path, &file)?;
        let run = |arguments: &[&std::ffi::OsStr]| {
            let mut command = command(&mainstay);
            command.arg("-f").arg(&file).args(arguments).env("HOME", &home);
            command.env("SOPS_AGE_KEY_FILE", crate::root().join("crates/sops-file/tests/data/key.txt"));
            call(&mut command, LIMIT, folder)?
                .good(&format!("mainstay on {name}"))
                .map(drop)
        };
        run(&[
            "secrets".as_ref(),
            "import".as_ref(),
            emitted.join("secrets.yaml").as_os_str(),
        ])?;
        let out = copies.join(&name);
        run(&["config".as_ref(), "--out".as_ref(), out.as_os_str()])?;
        for config in std::fs::read_dir(&out)? {
            let config = config?.path();
            let text = std::fs::read_to_string(&config)?;
            let release = text.lines().find_map(|line| {
                line.trim()
                    .strip_prefix("image: ")?
                    .split("-installer/")
                    .nth(1)?
                    .split(":v")
                    .nth(1)
            });
            let machine = config
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            let release = release.with_context(|| format!("{machine} of {name} names no installer"))?;
            std::fs::copy(&config, emitted.join(format!("{release}-example-{name}-{machine}")))?;
        }
    }
    Ok(())
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
