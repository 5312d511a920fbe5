//! Where the real programs are, and how they get there: built or installed once, from the registries of their languages.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::Verdict;

/// A program from source takes minutes the first time.
const BUILD: Duration = Duration::from_secs(3600);

/// The directory of the programs, with a place for what a check writes.
pub struct Tools(PathBuf);

impl Tools {
    /// Without a directory: `tools` beside cargo's output.
    pub fn open(folder: Option<PathBuf>) -> Result<Self> {
        let folder = match folder {
            Some(folder) => folder,
            None => target_directory()?.join("tools"),
        };
        std::fs::create_dir_all(folder.join("bin")).with_context(|| format!("{} cannot be made", folder.display()))?;
        Ok(Self(folder.canonicalize()?))
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// An empty directory for one check.
    pub fn empty(&self, check: &str) -> Result<PathBuf> {
        let folder = self.0.join("run").join(check);
        if folder.exists() {
            std::fs::remove_dir_all(&folder)?;
        }
        std::fs::create_dir_all(&folder)?;
        Ok(folder)
    }

    /// A Go program by its package and version, unless it is there already. `None`: there is no Go.
    pub fn go_install(&self, name: &str, package: &str) -> Result<Option<PathBuf>> {
        let program = self.0.join("bin").join(name);
        if !program.exists() {
            if !is_there("go") {
                return Ok(None);
            }
            println!("  installing {package}");
            let mut go = command("go");
            go.args(["install", package])
                .env("GOBIN", self.0.join("bin"))
                .env("CGO_ENABLED", "0");
            call(&mut go, BUILD, &self.empty("go-install")?)?.good(package)?;
        }
        Ok(Some(program))
    }

    /// A Go program from the sources of its module, unless it is there already: one that is not alone in its repository, or whose
    /// `go.mod` replaces modules, cannot be installed by its name. `None`: there is no Go.
    pub fn go_module(&self, program: &Path, module: &str, package: &str, linked: &str) -> Result<Option<PathBuf>> {
        if !program.exists() {
            if !is_there("go") {
                return Ok(None);
            }
            println!("  building {module}");
            let folder = self.empty("go-module")?;
            let said = call(command("go").args(["mod", "download", "-json", module]), BUILD, &folder)?.good("go mod download")?;
            let said: Value = serde_json::from_str(&said).context("go mod download speaks no JSON")?;
            let source = said["Dir"].as_str().context("go mod download names no directory")?;
            std::fs::create_dir_all(program.parent().context("a program lies in a directory")?)?;
            // The module cache cannot be written to, and nothing has to be: a build leaves no trace in its sources.
            let mut build = command("go");
            build.current_dir(source).env("CGO_ENABLED", "0");
            build
                .args(["build", "-mod=readonly", "-ldflags", linked, "-o"])
                .arg(program)
                .arg(package);
            call(&mut build, BUILD, &folder)?.good(module)?;
        }
        Ok(Some(program.to_owned()))
    }

    /// A Go program from sources: a copy of `folders`, built there as `package`. `None`: no Go, or no sources.
    pub fn go_build(&self, name: &str, folders: &[PathBuf], package: &[&str]) -> Result<Option<PathBuf>> {
        let program = self.0.join("bin").join(name);
        if !program.exists() {
            if !is_there("go") || !folders.iter().all(|folder| folder.exists()) {
                return Ok(None);
            }
            println!("  building {name}");
            let place = self.empty(&format!("go-build-{name}"))?;
            for folder in folders {
                copy_files(folder, &place)?;
            }
            let mut go = command("go");
            go.current_dir(&place)
                .env("CGO_ENABLED", "0")
                .args(["build", "-mod=mod", "-o"])
                .arg(&program)
                .args(package);
            call(&mut go, BUILD, &place)?.good(name)?;
        }
        Ok(Some(program))
    }
}

/// What the programs that are in no registry are built from, beside the checkout; not everybody has it.
pub fn sources(name: &str) -> PathBuf {
    crate::root().join("..").join("shared").join("tools").join(name)
}

fn copy_files(from: &Path, to: &Path) -> Result<()> {
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name()))?;
        }
    }
    Ok(())
}

fn target_directory() -> Result<PathBuf> {
    let output = crate::cargo()
        .args(["metadata", "--no-deps", "--format-version", "1"])
        .output()?;
    let metadata: Value = serde_json::from_slice(&output.stdout).context("cargo metadata is not JSON")?;
    let folder = metadata["target_directory"]
        .as_str()
        .context("cargo metadata names no target directory")?;
    Ok(folder.into())
}

/// Builds one of our own programs and says where it is.
pub fn built(args: &[&str]) -> Result<PathBuf> {
    let output = crate::cargo()
        .args(["build", "--quiet", "--message-format", "json-render-diagnostics"])
        .args(args)
        .stderr(Stdio::inherit())
        .output()?;
    ensure!(output.status.success(), "cargo build {} failed", args.join(" "));
    let lines = String::from_utf8(output.stdout)?;
    let messages = lines.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let program = messages
        .filter_map(|message| message["executable"].as_str().map(PathBuf::from))
        .next_back();
    program.with_context(|| format!("cargo build {} made no program", args.join(" ")))
}

#[expect(
    clippy::disallowed_methods,
    reason = "the workshop runs other programs; the product runs nothing"
)]
pub fn command(program: impl AsRef<std::ffi::OsStr>) -> Command {
    Command::new(program)
}

/// Whether a program can be started at all.
pub fn is_there(program: &str) -> bool {
    let mut probe = command(program);
    probe
        .arg("version")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    probe.status().is_ok()
}

pub fn without(program: &str) -> Result<Verdict> {
    Ok(Verdict::Skipped(format!("{program} is not here and cannot be built")))
}

/// What a program said, and how it ended.
pub struct Said {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Said {
    /// Its output, if it ended well.
    pub fn good(self, what: &str) -> Result<String> {
        if self.code == Some(0) {
            return Ok(self.out);
        }
        let text = format!("{}\n{}", self.out, self.err);
        let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        bail!(
            "{what} ended with {:?}: {}",
            self.code,
            lines[lines.len().saturating_sub(6)..].join(" | ")
        )
    }

    /// Its output, if it ended well and says all of this.
    pub fn says(self, what: &str, wanted: &[&str]) -> Result<String> {
        let out = self.good(what)?;
        match wanted.iter().find(|word| !out.contains(**word)) {
            None => Ok(out),
            Some(word) => bail!("{what} does not say {word:?}: {}", out.trim()),
        }
    }
}

/// Runs a program to its end, or ends it after `limit`. Output goes through files, so that no pipe can fill up.
#[expect(clippy::disallowed_methods, reason = "the workshop waits in real time")]
pub fn call(command: &mut Command, limit: Duration, folder: &Path) -> Result<Said> {
    let (out, err) = (folder.join(".stdout"), folder.join(".stderr"));
    command
        .stdin(Stdio::null())
        .stdout(File::create(&out)?)
        .stderr(File::create(&err)?);
    let name = command.get_program().display().to_string();
    let mut child = command.spawn().with_context(|| format!("{name} cannot be started"))?;
    let step = Duration::from_millis(20);
    let mut left = limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if left.is_zero() {
            child.kill()?;
            child.wait()?;
            bail!("{name} did not end in {} seconds", limit.as_secs());
        }
        std::thread::sleep(step);
        left = left.saturating_sub(step);
    };
    Ok(Said {
        code: status.code(),
        out: read(&out)?,
        err: read(&err)?,
    })
}

fn read(path: &Path) -> Result<String> {
    let mut bytes = Vec::new();
    File::open(path)?.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
