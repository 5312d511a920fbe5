//! Every way to get cluster.yaml wrong, with the report that a person and a program get.
//!
//! `UPDATE_EXPECT=1 cargo test -p mainstay-spec invalid` writes the reports anew.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use mainstay_spec::report::{self, Paint};
use mainstay_spec::{Diagnostics, Environment, load_bytes};

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/invalid")
}

fn fixtures() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "yaml"));
    paths.sort();
    paths
}

/// A comment `# PROXMOX_VE_ENDPOINT=…` in a fixture stands for the environment.
fn refusal(path: &Path) -> Diagnostics {
    let bytes = fs::read(path).unwrap();
    let text = String::from_utf8_lossy(&bytes);
    let endpoint = text
        .lines()
        .find_map(|line| line.strip_prefix("# PROXMOX_VE_ENDPOINT="))
        .map(str::to_owned);
    let files = |name: &str| fs::read(directory().join("files").join(name)).ok();
    match load_bytes(&bytes, "cluster.yaml", &Environment { endpoint }, &files) {
        Ok(_) => panic!("{} is accepted", path.display()),
        Err(faults) => faults,
    }
}

#[test]
fn every_wrong_file_is_refused_with_its_report() {
    for path in fixtures() {
        let Diagnostics { source, faults } = refusal(&path);
        expect_file![path.with_extension("txt")].assert_eq(&report::terminal(&source, &faults, Paint::Plain));
        let lines: Vec<String> = report::json(&source, &faults).iter().map(ToString::to_string).collect();
        expect_file![path.with_extension("json")].assert_eq(&(lines.join("\n") + "\n"));
    }
}

#[test]
fn there_are_many_and_none_without_its_report() {
    let fixtures = fixtures();
    assert!(fixtures.len() >= 60, "{}", fixtures.len());
    let expected: BTreeSet<PathBuf> = fixtures
        .iter()
        .flat_map(|path| ["yaml", "txt", "json"].map(|ext| path.with_extension(ext)))
        .collect();
    let found: BTreeSet<PathBuf> = fs::read_dir(directory())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.is_file())
        .collect();
    assert_eq!(expected, found);
}

#[test]
fn every_fault_says_what_where_why_and_what_to_do() {
    for path in fixtures() {
        for fault in refusal(&path).faults {
            let whole = !fault.summary.is_empty() && !fault.label.is_empty() && !fault.why.is_empty() && !fault.help.is_empty();
            assert!(
                whole && fault.at.line > 0 && fault.at.column > 0,
                "{}: {fault:?}",
                path.display()
            );
            assert!(
                !fault.summary.ends_with('.') && fault.why.ends_with(['.', '?']) && fault.help.ends_with(['.', '?']),
                "{}: {fault:?}",
                path.display()
            );
        }
    }
}

#[test]
fn faults_come_in_the_order_of_the_file() {
    for path in fixtures() {
        let lines: Vec<u32> = refusal(&path).faults.iter().map(|fault| fault.at.line).collect();
        assert!(lines.is_sorted(), "{}: {lines:?}", path.display());
    }
}

#[test]
fn no_report_holds_a_secret() {
    for path in fixtures() {
        let Diagnostics { source, faults } = refusal(&path);
        let json: String = report::json(&source, &faults).iter().map(ToString::to_string).collect();
        let all = report::terminal(&source, &faults, Paint::Colour) + &json + &format!("{source:?}");
        for secret in ["hunter2", "11111111-2222", "tskey-auth", "555555555555"] {
            assert!(!all.contains(secret), "{} shows {secret}", path.display());
        }
    }
}

/// The codes that the source can give, by looking at it: a new validator without a fixture is found here.
#[test]
fn every_kind_of_fault_has_a_fixture() {
    let shown: BTreeSet<&str> = fixtures()
        .iter()
        .flat_map(|path| refusal(path).faults)
        .map(|fault| fault.code)
        .collect();
    let mut known = BTreeSet::new();
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    for path in fs::read_dir(&src)
        .unwrap()
        .chain(fs::read_dir(src.join("check")).unwrap())
        .map(|entry| entry.unwrap().path())
    {
        let Ok(text) = fs::read_to_string(path) else { continue };
        for marker in ["Diagnostic::error(\"", "Diagnostic::warning(\"", ".at(\""] {
            known.extend(
                text.split(marker)
                    .skip(1)
                    .filter_map(|rest| rest.split('"').next())
                    .map(str::to_owned),
            );
        }
    }
    // `test` is of a unit test; files that are no text cannot be read as fixtures of text.
    known.remove("test");
    let missing: Vec<&String> = known.iter().filter(|code| !shown.contains(code.as_str())).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
