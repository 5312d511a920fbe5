//! Our verdicts against those of the real validators.

use crate::support::{data, raw, read};
use semver::Version;
use talos_config::validate::{Mode, Options, validate};
use talos_config::versions::Contract;
use talos_config::{Config, Patch};

/// What the validator prints: warnings, then the errors or `VALID`. Blank lines are dropped, as they were in the recordings.
fn judge(text: &str, talos: &Version, options: Options) -> String {
    let config = match Config::parse(text, Contract::of(talos)) {
        Ok(config) => config,
        Err(error) => return without_blank_lines(&error.to_string()),
    };
    let verdict = validate(&config, talos, options);
    let warnings: String = verdict
        .warnings
        .iter()
        .map(|warning| format!("WARNING: {warning}\n"))
        .collect();
    let errors = if verdict.is_valid() {
        "VALID".to_owned()
    } else {
        verdict.to_string()
    };
    without_blank_lines(&format!("{warnings}{errors}"))
}

fn without_blank_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines.join("\n")
}

/// The cases of a recording: name, modes, expected text.
fn recorded(text: &str) -> Vec<(String, Vec<String>, String)> {
    let mut cases: Vec<(String, Vec<String>, String)> = Vec::new();
    let mut name = String::new();
    for line in text.lines() {
        if let Some(next) = line.strip_prefix("### ") {
            next.clone_into(&mut name);
            cases.push((name.clone(), vec!["cloud".to_owned()], String::new()));
        } else if let Some((modes, rest)) = line.strip_prefix('[').and_then(|line| line.split_once(']'))
            && (rest.is_empty() || rest.starts_with(" exit"))
        {
            let modes = modes.split(", ").map(str::to_owned).collect();
            if cases.last().is_some_and(|(last, _, text)| *last == name && text.is_empty()) {
                cases.pop();
            }
            cases.push((name.clone(), modes, String::new()));
        } else if let Some((_, _, text)) = cases.last_mut() {
            text.push_str(line);
            text.push('\n');
        }
    }
    cases
}

fn options(mode: &str) -> Options {
    let (mode, strict) = match mode.split_once(" --strict") {
        Some((mode, _)) => (mode, true),
        None => (mode, false),
    };
    let mode = match mode {
        "cloud" => Mode::Cloud,
        "metal" => Mode::Metal,
        "container" => Mode::Container,
        other => panic!("unknown mode {other}"),
    };
    Options {
        strict,
        ..Options::talosctl(mode)
    }
}

fn compare(recording: &str, talos: &Version) -> (usize, Vec<String>) {
    let mut differences = Vec::new();
    let mut compared = 0;
    for (name, modes, expected) in recorded(&raw(recording)) {
        let path = format!("v1.13.9/broken/{name}.yaml");
        if !data(&path).exists() {
            continue;
        }
        for mode in &modes {
            let ours = judge(&read(&path), talos, options(mode));
            let expected = without_blank_lines(&expected);
            compared += 1;
            // The words for broken YAML are those of the library, which is not ours.
            let same = if name == "yaml-bad" {
                ours.starts_with("decode error: ")
            } else {
                ours == expected
            };
            if !same {
                differences.push(format!("{name} [{mode}]\n--- ours\n{ours}\n--- theirs\n{expected}"));
            }
        }
    }
    (compared, differences)
}

#[test]
fn our_verdicts_on_broken_configs_equal_those_of_talos_1_13() {
    let (compared, differences) = compare("v1.13.9/BROKEN.txt", &Version::new(1, 13, 9));
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    assert_eq!(compared, 59 * 4);
}

#[test]
fn our_verdicts_on_broken_configs_equal_those_of_talos_1_12() {
    let (compared, differences) = compare("v1.12.6/BROKEN.txt", &Version::new(1, 12, 6));
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    assert_eq!(compared, 59 * 2);
}

#[test]
fn our_verdicts_on_broken_configs_equal_those_of_talos_1_14() {
    let (compared, differences) = compare("v1.14.1/BROKEN.txt", &Version::new(1, 14, 1));
    assert!(differences.is_empty(), "{}", differences.join("\n\n"));
    assert_eq!(compared, 59);
}

#[test]
fn what_talosctl_generates_is_valid_in_every_mode() {
    let folders = [
        "a-plain",
        "a-contract-v1.11",
        "a-contract-v1.12",
        "b-nodiscovery",
        "b-options",
        "c-classic",
        "c-docs",
        "e-noport",
    ];
    for folder in folders {
        for role in ["controlplane", "worker"] {
            let text = read(format!("v1.13.9/{folder}/{role}.yaml"));
            for mode in [Mode::Cloud, Mode::Metal, Mode::Container] {
                let options = Options {
                    strict: true,
                    ..Options::talosctl(mode)
                };
                assert_eq!(
                    judge(&text, &Version::new(1, 13, 9), options),
                    "VALID",
                    "{folder}/{role} {mode:?}"
                );
            }
        }
    }
}

#[test]
fn hostname_mistakes_are_told_as_talosctl_tells_them() {
    let talos = Version::new(1, 13, 9);
    let verdict = |folder: &str| judge(&read(format!("v1.13.9/{folder}/worker.yaml")), &talos, Options::NODE);
    assert_eq!(
        verdict("e-hostname-classic"),
        "1 error occurred:\n\t* static hostname is already set in v1alpha1 config"
    );
    let both = "1 error occurred:\n\t* HostnameConfig: 'auto' and 'hostname' cannot be set at the same time";
    assert_eq!(verdict("e-hostname-only"), both);
    assert_eq!(verdict("e-hostname-off-only"), "VALID");
    let early = judge(
        &read("v1.13.9/e-hostname-off-only/worker.yaml"),
        &Version::new(1, 13, 2),
        Options::NODE,
    );
    assert_eq!(
        early,
        "1 error occurred:\n\t* HostnameConfig: either 'auto' or 'hostname' must be set"
    );
}

#[test]
fn a_node_refuses_a_kubernetes_that_it_does_not_run() {
    let text = read("v1.13.9/e-k8s-too-new/controlplane.yaml");
    let talos = Version::new(1, 13, 9);
    assert_eq!(judge(&text, &talos, Options::talosctl(Mode::Cloud)), "VALID");
    let verdict = judge(&text, &talos, Options::NODE);
    let expected = "kubelet image is not valid: version of Kubernetes 1.99.0 is too new to be used with Talos 1.13.9";
    assert!(verdict.contains(expected), "{verdict}");
    assert_eq!(
        verdict.matches("too new").count(),
        4,
        "kubelet, apiserver, controller-manager, scheduler; not proxy"
    );
    let verdict = judge(&read("v1.13.9/e-k8s-too-old/worker.yaml"), &talos, Options::NODE);
    assert!(
        verdict.contains("version of Kubernetes 1.20.0 is too old to be used with Talos 1.13.9"),
        "{verdict}"
    );
}

#[test]
fn documents_of_talos_1_14_are_valid_there() {
    for path in [
        "v1.14.1/a-plain/controlplane.yaml",
        "v1.14.1/a-plain/worker.yaml",
        "v1.14.1/c-docs114/controlplane.yaml",
    ] {
        let verdict = judge(&read(path), &Version::new(1, 14, 1), Options::talosctl(Mode::Cloud));
        assert_eq!(verdict, "VALID", "{path}");
    }
}

#[test]
fn documents_of_control_planes_are_refused_on_workers() {
    let control_plane = read("v1.14.1/a-plain/controlplane.yaml").replace("type: controlplane", "type: worker");
    let verdict = judge(&control_plane, &Version::new(1, 14, 1), Options::talosctl(Mode::Cloud));
    assert!(
        verdict.contains("only allowed on control plane machines: [KubeAPIServerConfig KubeAdmissionControlConfig"),
        "{verdict}"
    );
}

#[test]
fn old_and_new_hostname_together_are_refused_before_a_node_sees_them() {
    let text = format!(
        "{}---\napiVersion: v1alpha1\nkind: HostnameConfig\nauto: stable\n",
        read("v1.13.9/a-contract-v1.11/worker.yaml")
    );
    let verdict = judge(&text, &Version::new(1, 13, 9), Options::NODE);
    assert_eq!(
        verdict.lines().nth(1),
        Some("\t* stable hostname is already set in v1alpha1 config"),
        "{verdict}"
    );
}

/// Recorded from the three validators: a patch of a plain config, and what they said about the result.
#[test]
fn many_more_verdicts_equal_those_of_the_real_validators() {
    let recording = raw("verdicts.txt");
    let mut compared = 0;
    for case in recording.split("### ").skip(1) {
        let (heading, rest) = case.split_once('\n').unwrap();
        let (name, role) = heading.split_once(' ').unwrap();
        let base = read(format!("v1.13.9/a-plain/{role}.yaml"));
        let mut parts = rest.split("=== ");
        let patch = parts.next().unwrap();
        for verdict in parts {
            let (versions, expected) = verdict.split_once('\n').unwrap();
            for version in versions.split(' ') {
                let talos: Version = version.parse().unwrap();
                let contract = Contract::of(&talos);
                let patch = Patch::parse(name, patch, contract).unwrap();
                let config = Config::parse(&base, contract).unwrap().patched([&patch], contract).unwrap();
                let ours = judge(&config.to_yaml(), &talos, Options::talosctl(Mode::Cloud));
                assert_eq!(ours, without_blank_lines(expected), "{name} {version}");
                compared += 1;
            }
        }
    }
    assert!(compared > 300, "{compared}");
}
