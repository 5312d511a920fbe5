//! Shows that every banned call and type is in fact refused: a rule that nothing has ever tripped over may be misspelt.

use std::collections::BTreeSet;
use std::fs;

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// One offence per ban: the lint that must answer, and the line that offends. The list of bans itself is `clippy.toml` and `[workspace.lints]`.
const OFFENCES: &[(&str, &str)] = &[
    (
        "clippy::disallowed_methods",
        "pub fn f() { let _ = std::time::Instant::now(); }",
    ),
    (
        "clippy::disallowed_methods",
        "pub fn f() { let _ = std::time::SystemTime::now(); }",
    ),
    (
        "clippy::disallowed_methods",
        "pub fn f() { std::thread::sleep(std::time::Duration::ZERO); }",
    ),
    (
        "clippy::disallowed_methods",
        "pub async fn f() { let _ = tokio::net::TcpStream::connect(\"localhost:1\").await; }",
    ),
    (
        "clippy::disallowed_methods",
        "pub fn f() { let _ = std::net::TcpStream::connect(\"localhost:1\"); }",
    ),
    (
        "clippy::disallowed_methods",
        "pub async fn f() { let _ = tokio::net::lookup_host(\"localhost:1\").await; }",
    ),
    (
        "clippy::disallowed_methods",
        "pub fn f() { let _ = std::process::Command::new(\"true\"); }",
    ),
    (
        "clippy::disallowed_methods",
        "pub fn f() { let _ = std::env::var(\"HOME\"); }",
    ),
    (
        "clippy::disallowed_methods",
        "pub fn f() { let _ = std::env::var_os(\"HOME\"); }",
    ),
    ("clippy::disallowed_methods", "pub fn f() { let _ = rand::rng(); }"),
    ("clippy::disallowed_types", "pub fn f(_: std::time::Instant) {}"),
    (
        "clippy::disallowed_types",
        "pub fn f(_: std::collections::HashMap<u8, u8>) {}",
    ),
    ("clippy::disallowed_types", "pub fn f(_: std::collections::HashSet<u8>) {}"),
    ("clippy::print_stdout", "pub fn f() { println!(); }"),
    ("clippy::print_stderr", "pub fn f() { eprintln!(); }"),
    ("clippy::exit", "pub fn f() { std::process::exit(0); }"),
    ("clippy::dbg_macro", "pub fn f() { dbg!(1); }"),
    ("clippy::todo", "pub fn f() { todo!() }"),
    ("clippy::unimplemented", "pub fn f() { unimplemented!() }"),
    ("unsafe_code", "pub fn f() { unsafe {} }"),
];

pub fn run() -> Result<()> {
    let told = clippy_on_the_offences()?;
    let mut silent = Vec::new();
    for (number, (lint, offence)) in OFFENCES.iter().enumerate() {
        if !told.contains(&(number, (*lint).to_owned())) {
            silent.push(format!("{lint} says nothing about: {offence}"));
        }
    }
    silent.extend(bans_without_offence()?);
    for fault in &silent {
        eprintln!("bans: {fault}");
    }
    if !silent.is_empty() {
        bail!("{} ban(s) are decoration", silent.len());
    }
    println!("bans: {} offences, each refused", OFFENCES.len());
    Ok(())
}

/// A crate that offends against every ban, checked with the workspace's own lints, `clippy.toml` and `Cargo.lock`.
fn clippy_on_the_offences() -> Result<BTreeSet<(usize, String)>> {
    let root = crate::root();
    let place = root.join("target/bans");
    fs::create_dir_all(place.join("src"))?;
    let manifest = fs::read_to_string(root.join("Cargo.toml"))?;
    fs::write(place.join("Cargo.toml"), offender_manifest(&manifest)?)?;
    fs::copy(root.join("Cargo.lock"), place.join("Cargo.lock"))?;
    let modules: Vec<String> = OFFENCES
        .iter()
        .enumerate()
        .map(|(number, (_, line))| format!("pub mod offence_{number} {{ {line} }}\n"))
        .collect();
    fs::write(place.join("src/lib.rs"), modules.concat())?;
    let output = crate::cargo()
        .args(["clippy", "--quiet", "--message-format=json", "--manifest-path"])
        .arg(place.join("Cargo.toml"))
        .args(["--", "--cap-lints=warn"])
        .env("CLIPPY_CONF_DIR", &root)
        .env("CARGO_TARGET_DIR", place.join("target"))
        .output()
        .context("cargo clippy")?;
    let messages = String::from_utf8(output.stdout)?;
    let mut told = BTreeSet::new();
    for line in messages.lines() {
        let message: Value = serde_json::from_str(line)?;
        let (Some(lint), Some(at)) = (
            message["message"]["code"]["code"].as_str(),
            message["message"]["spans"][0]["line_start"].as_u64(),
        ) else {
            continue;
        };
        told.insert((usize::try_from(at)? - 1, lint.to_owned()));
    }
    if told.is_empty() {
        bail!("clippy said nothing at all: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(told)
}

fn offender_manifest(workspace: &str) -> Result<String> {
    let lints = workspace
        .split("\n[")
        .filter(|section| section.starts_with("workspace.lints."))
        .map(|section| {
            // `forbid` cannot be capped, and one hard error would hide the warnings that follow it.
            format!(
                "[{}\n",
                section
                    .replace("workspace.lints.", "lints.")
                    .replace("\"forbid\"", "\"warn\"")
            )
        });
    let lints: String = lints.collect();
    if lints.is_empty() {
        bail!("the workspace has no lints");
    }
    let dependency = |name: &str| {
        let line = workspace
            .lines()
            .find(|line| line.starts_with(&format!("{name} = ")))
            .context("dependency of the workspace");
        line.map(|line| format!("{line}\n"))
    };
    Ok(format!(
        "[package]\nname = \"bans\"\nversion = \"0.0.0\"\nedition = \"2024\"\n\n[workspace]\n\n{lints}\n[dependencies]\n{}{}",
        dependency("tokio")?,
        dependency("rand")?,
    ))
}

/// Every path in `clippy.toml` has an offence here, so that a new ban comes with its proof. (uuid is built without `new_v4`: that ban stands guard over the feature.)
fn bans_without_offence() -> Result<Vec<String>> {
    let config = fs::read_to_string(crate::root().join("clippy.toml"))?;
    let paths = config.split("path = \"").skip(1).filter_map(|rest| rest.split('"').next());
    let unproven = paths.filter(|path| *path != "uuid::Uuid::new_v4" && !OFFENCES.iter().any(|(_, line)| line.contains(path)));
    Ok(unproven
        .map(|path| format!("{path} is banned, but no offence here shows it"))
        .collect())
}
