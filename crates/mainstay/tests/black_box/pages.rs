//! What the program says about itself.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read;
use std::path::{Path, PathBuf};
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

/// The pages of the documentation, with their texts.
fn documentation() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the repository");
    let mut pages = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"]
        .map(|name| root.join(name))
        .to_vec();
    let mut folders = vec![root.join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "md") {
                pages.push(path);
            }
        }
    }
    pages.sort();
    let read = |path: PathBuf| {
        let text = std::fs::read_to_string(&path).expect("text");
        (path, text)
    };
    pages.into_iter().map(read).collect()
}

/// The targets of the links and pictures of a page, without its code.
fn links(text: &str) -> Vec<String> {
    let mut in_code = false;
    let outside = text.lines().filter(|line| {
        in_code ^= line.trim_start().starts_with("```");
        !in_code
    });
    let outside: String = outside.map(|line| format!("{line}\n")).collect();
    let targets = outside.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    targets.map(|(target, _)| target.to_owned()).collect()
}

/// A heading as the target of a link: `## What stays` is `what-stays`.
fn anchors(text: &str) -> Vec<String> {
    let headings = text.lines().filter(|line| line.starts_with('#'));
    let anchor = |line: &str| {
        let text = line.trim_start_matches('#').trim().to_lowercase();
        let kept = text
            .chars()
            .filter(|letter| letter.is_alphanumeric() || " -".contains(*letter));
        kept.collect::<String>().replace(' ', "-")
    };
    headings.map(anchor).collect()
}

#[test]
fn no_link_of_the_documentation_is_dead_and_every_page_is_reached_from_the_readme() {
    let pages = documentation();
    let mut reached = BTreeSet::new();
    let mut dead = Vec::new();
    for (page, text) in &pages {
        for link in links(text).iter().filter(|link| !link.contains("://")) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() {
                Ok(page.clone())
            } else {
                page.parent().expect("a folder").join(file).canonicalize()
            };
            let Ok(target) = target else {
                dead.push(format!("{}: {link}", page.display()));
                continue;
            };
            let there = pages.iter().find(|(page, _)| *page == target);
            if !anchor.is_empty() && !there.is_some_and(|(_, text)| anchors(text).contains(&anchor.to_owned())) {
                dead.push(format!("{}: {link}", page.display()));
            }
            reached.insert((page.clone(), target));
        }
    }
    assert!(dead.is_empty(), "{dead:#?}");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let mut found = BTreeSet::from([readme.canonicalize().expect("a page")]);
    loop {
        let next: Vec<PathBuf> = reached
            .iter()
            .filter(|(from, _)| found.contains(from))
            .map(|(_, to)| to.clone())
            .collect();
        let before = found.len();
        found.extend(next);
        if found.len() == before {
            break;
        }
    }
    let lost: Vec<&PathBuf> = pages
        .iter()
        .map(|(page, _)| page)
        .filter(|page| !found.contains(*page))
        .collect();
    assert!(lost.is_empty(), "the README leads to none of these: {lost:#?}");
}

/// The changelog names what was, and the page of all keys names keys that are refused by name, with their commands.
fn is_of_this_version(page: &Path) -> bool {
    !page.ends_with("CHANGELOG.md") && !page.ends_with("cluster-yaml.md")
}

#[test]
fn every_command_and_option_that_the_documentation_names_exists() {
    let help = |arguments: &[&str]| Stage::new().run(&[arguments, &["--help"]].concat());
    let mut options: BTreeMap<String, String> = BTreeMap::new();
    let mut unknown = Vec::new();
    for (page, text) in documentation().iter().filter(|(page, _)| is_of_this_version(page)) {
        // Commands stand between backticks, or in indented or fenced blocks.
        let spans = text.lines().flat_map(|line| {
            let block = line.starts_with("    ").then(|| line.trim());
            line.split('`').skip(1).step_by(2).chain(block)
        });
        for words in spans.filter_map(|span| span.strip_prefix("mainstay ")) {
            let mut words = words
                .split_whitespace()
                .take_while(|word| !word.starts_with('#') && !word.starts_with("&&"));
            let Some(command) = words
                .next()
                .filter(|word| word.chars().all(|letter| letter.is_ascii_lowercase()))
            else {
                continue;
            };
            let known = options.entry(command.to_owned()).or_insert_with(|| {
                let said = help(&[command]);
                if said.code == Some(0) { said.stdout } else { String::new() }
            });
            if known.is_empty() {
                unknown.push(format!("{}: mainstay {command}", page.display()));
            }
            for option in words.filter(|word| word.starts_with("--")) {
                let option = option.trim_end_matches([',', '.', ';', ')']);
                if !known.contains(option) {
                    unknown.push(format!("{}: mainstay {command} {option}", page.display()));
                }
            }
        }
    }
    assert!(options.len() > 12, "{:?}", options.keys());
    assert!(unknown.is_empty(), "{unknown:#?}");
}

#[test]
fn every_file_in_the_guides_is_built() {
    let mut built = 0;
    for (page, text) in documentation() {
        for file in text.split("```yaml\n").skip(1).filter_map(|rest| rest.split("```").next()) {
            // Other files are worlds of the simulator.
            if !file.starts_with("# cluster.yaml\n") {
                continue;
            }
            let stage = Stage::new().file("given.yaml", file);
            let said = stage.run(&["demo", "-f", "given.yaml", "--plain", "--speed", "5000"]);
            assert_eq!(said.code, Some(0), "{}: {}", page.display(), said.stderr);
            assert!(
                said.stderr.contains(" is settled: ") && !said.stdout.contains("failing"),
                "{}",
                said.stderr
            );
            built += 1;
        }
    }
    assert!(built >= 5, "only {built} files were found");
}

#[test]
fn the_page_of_commands_is_that_of_the_program() {
    let said = Stage::new().run(&["man", "--markdown"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    expect_test::expect_file!["../../../../docs/reference/commands.md"].assert_eq(&said.stdout);
}
