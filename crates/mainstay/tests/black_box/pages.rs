//! What the program says about itself.

use std::io::Read;
use std::path::Path;
use std::process::Stdio;

use crate::stage::{Stage, cluster};

#[test]
fn help_and_version_are_on_stdout() {
    let stage = Stage::new();
    stage.run(&["--help"]).golden("help");
    stage.run(&["down", "--help"]).golden("help-down");
    let said = stage.run(&["--version"]);
    assert_eq!(
        (said.stdout, said.code),
        (format!("mainstay {}\n", env!("CARGO_PKG_VERSION")), Some(0))
    );
}

#[test]
fn the_schema_is_the_one_of_the_documentation() {
    let said = Stage::new().run(&["schema"]);
    assert_eq!(said.code, Some(0));
    assert_eq!(said.stdout, include_str!("../../../../docs/reference/cluster.schema.json"));
    let said = Stage::new().run(&["schema", "--events"]);
    assert_eq!(said.code, Some(0));
    assert_eq!(said.stdout, include_str!("../../../../docs/reference/events.schema.json"));
}

#[test]
fn completions_know_every_command() {
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let said = Stage::new().run(&["completions", shell]);
        assert_eq!(said.code, Some(0), "{shell}");
        for command in [
            "setup",
            "init",
            "up",
            "plan",
            "down",
            "status",
            "doctor",
            "kubeconfig",
            "demo",
            "sim",
        ] {
            assert!(said.stdout.contains(command), "{shell} does not know {command}");
        }
    }
    Stage::new().run(&["completions", "tcsh"]).golden("completions-unknown-shell");
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let stage = Stage::new();
    let said = stage.run(&["man"]);
    assert!(said.stdout.contains(".TH mainstay 1"), "{}", said.stdout);
    stage.run(&["man", "--out", "pages"]).golden("man-out");
    let mut names: Vec<String> = std::fs::read_dir(stage.path("pages"))
        .expect("a folder")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    assert!(
        names.contains(&"mainstay-up.1".to_owned()) && names.contains(&"mainstay-secrets-import.1".to_owned()),
        "{names:?}"
    );
}

#[test]
fn a_reader_that_goes_away_ends_the_program_quietly() {
    let stage = Stage::new().file("cluster.yaml", cluster());
    let mut child = stage
        .command(&["schema"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(child.stdout.take());
    let mut told = String::new();
    child
        .stderr
        .take()
        .expect("is piped")
        .read_to_string(&mut told)
        .expect("text");
    assert_eq!((child.wait().expect("ends").code(), told.as_str()), (Some(0), ""));
}

#[test]
fn the_pages_for_contributors_name_files_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let pages = std::fs::read_dir(root.join("docs/contributing")).expect("a folder");
    let mut checked = 0;
    for page in pages.map(|page| page.expect("a page").path()) {
        let text = std::fs::read_to_string(&page).expect("text");
        // Every second part is between backticks.
        let names = text.split('`').skip(1).step_by(2);
        for name in names.filter(|name| name.starts_with("crates/") || name.starts_with("docs/")) {
            assert!(
                root.join(name).exists(),
                "{} names {name}, which does not exist",
                page.display()
            );
            checked += 1;
        }
    }
    assert!(checked > 30, "only {checked} names were found");
}
