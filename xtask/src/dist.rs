//! What is handed out: one static binary, completions, manual pages, checksums.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

const TARGET: &str = "x86_64-unknown-linux-musl";
const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

pub fn run() -> Result<()> {
    let root = crate::root();
    build()?;
    let place = root.join("target/dist");
    fs::create_dir_all(&place)?;
    let binary = place.join("mainstay");
    fs::copy(target_dir(&root).join(TARGET).join("dist/mainstay"), &binary).context("the binary is not where cargo puts it")?;
    for shell in SHELLS {
        let text = output_of(&binary, &["completions", shell])?;
        fs::write(place.join(format!("mainstay.{shell}")), text)?;
    }
    output_of(&binary, &["man", "--out", &place.join("man").display().to_string()])?;
    let sums = checksums(&place)?;
    fs::write(place.join("SHA256SUMS"), &sums)?;
    let size = fs::metadata(&binary)?.len();
    println!(
        "dist: {} ({:.1} MB), {} files with checksums",
        place.display(),
        size as f64 / 1e6,
        sums.lines().count()
    );
    Ok(())
}

/// musl brings its own resolver, so the binary runs wherever the kernel does. ring's C parts build with the ordinary compiler.
fn build() -> Result<()> {
    let mut command = crate::cargo();
    command.args([
        "build",
        "--profile",
        "dist",
        "--locked",
        "--package",
        "mainstay",
        "--target",
        TARGET,
    ]);
    command.env("CC_x86_64_unknown_linux_musl", "gcc");
    if !command.status().context("cargo build")?.success() {
        bail!("the build failed; if the target is missing: rustup target add {TARGET}");
    }
    Ok(())
}

#[expect(clippy::disallowed_methods, reason = "the workshop follows cargo's own variable")]
fn target_dir(root: &Path) -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), Into::into)
}

#[expect(
    clippy::disallowed_methods,
    reason = "the workshop runs what it built; the product runs nothing"
)]
fn output_of(binary: &Path, arguments: &[&str]) -> Result<Vec<u8>> {
    let output = std::process::Command::new(binary)
        .args(arguments)
        .output()
        .context("the binary does not run")?;
    if !output.status.success() {
        bail!(
            "mainstay {}: {}",
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(output.stdout)
}

/// As `sha256sum -c` reads them.
fn checksums(place: &Path) -> Result<String> {
    let mut files = Vec::new();
    collect(place, place, &mut files)?;
    files.sort();
    let line = |name: &String| -> Result<String> {
        let hash = Sha256::digest(fs::read(place.join(name))?);
        let hex: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(format!("{hex}  {name}\n"))
    };
    files.iter().filter(|name| *name != "SHA256SUMS").map(line).collect()
}

fn collect(root: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            files.push(path.strip_prefix(root)?.display().to_string());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_name_every_file_but_themselves() {
        let folder = std::env::temp_dir().join(format!("mainstay-dist-{}", std::process::id()));
        fs::create_dir_all(folder.join("man")).unwrap();
        for (name, text) in [("b", "two"), ("man/a", "one"), ("SHA256SUMS", "old")] {
            fs::write(folder.join(name), text).unwrap();
        }
        let sums = checksums(&folder).unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let names: Vec<&str> = sums.lines().map(|line| line.split("  ").nth(1).unwrap()).collect();
        assert_eq!(names, ["b", "man/a"]);
        assert!(
            sums.starts_with("3fc4ccfe745870e2c0d99f71f30ff0656c8dedd41cc1d7d3d376b0dbe685e2f3  b\n"),
            "{sums}"
        );
    }
}
