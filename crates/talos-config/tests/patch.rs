//! Our patches against `talosctl machineconfig patch`.

use crate::support::{differences, documents, read};
use sha2::{Digest, Sha256};
use talos_config::versions::Contract;
use talos_config::{Config, Patch, PatchError};

const CONTRACT: Contract = Contract::new(1, 13);

fn patched(base: &str, patch: &str) -> Result<Config, PatchError> {
    patched_text(base, &read(format!("patch/{patch}.patch.yaml")))
}

fn patched_text(base: &str, patch: &str) -> Result<Config, PatchError> {
    let config = Config::parse(&read(base), CONTRACT).unwrap();
    let patch = Patch::parse("patch.yaml", patch, CONTRACT)?;
    config.patched([&patch], CONTRACT)
}

const CLASSIC: &str = "v1.13.9/c-classic/controlplane.yaml";
const PLAIN: &str = "v1.13.9/a-plain/controlplane.yaml";
const SINGLE: &str = "v1.13.9/a-contract-v1.11/controlplane.yaml";

#[test]
fn results_equal_the_real_ones() {
    let cases = [
        (CLASSIC, "del-key"),
        (CLASSIC, "del-admission"),
        (CLASSIC, "del-missing"),
        (CLASSIC, "del-doc"),
        (CLASSIC, "del-root2"),
        (CLASSIC, "list-append"),
        (SINGLE, "json6902-single"),
    ];
    for (base, name) in cases {
        let ours = patched(base, name)
            .unwrap_or_else(|error| panic!("{name}: {error}"))
            .to_yaml();
        let found = differences(&documents(&ours), &documents(&read(format!("patch/{name}.out.yaml"))));
        assert!(found.is_empty(), "{name}: {found:#?}");
    }
}

#[test]
fn failures_have_the_real_words() {
    let item = |path: &str| {
        format!("patch delete: path '{path}' in document '/v1alpha1': failed to delete path '{path}': lookup failed")
    };
    let cases = [
        (CLASSIC, "del-list-item", item("machine.network.interfaces.[0]")),
        (PLAIN, "del-missing-nonet", item("machine.network.hostname")),
        (PLAIN, "del-missing-mapkey", item("machine.nodeLabels.nope")),
        (CLASSIC, "del-root", missing("apiVersion")),
        (PLAIN, "del-root-v", missing("kind")),
        (PLAIN, "del-root-m", missing("apiVersion")),
        (
            CLASSIC,
            "two-docs-same",
            "duplicate document v1alpha1/LinkConfig/a is not allowed (line 5)".to_owned(),
        ),
        (
            CLASSIC,
            "json6902",
            "JSON6902 patches are not supported for multi-document machine configuration".to_owned(),
        ),
        (
            CLASSIC,
            "malformed",
            "error decoding document /v1alpha1/ (line 1): missing kind".to_owned(),
        ),
    ];
    for (base, name, expected) in cases {
        let error = patched(base, name).expect_err(name);
        assert_eq!(error.problem.to_string(), expected, "{name}");
    }
}

fn missing(key: &str) -> String {
    format!("error processing patch delete statements at line 1: missing {key} in document for which $patch: delete is used")
}

#[test]
fn deleting_a_document_that_is_not_there_changes_nothing() {
    for name in ["del-missing-doc", "del-root-k"] {
        let base = Config::parse(&read(PLAIN), CONTRACT).unwrap();
        let ours = patched(PLAIN, name).unwrap();
        assert_eq!(ours.to_yaml(), base.to_yaml(), "{name}");
    }
}

#[test]
fn generated_configs_with_patches_equal_the_real_ones() {
    let cases = [
        (
            "v1.13.9/b-options/controlplane.yaml",
            "p-classic-cp",
            "v1.13.9/c-classic/controlplane.yaml",
        ),
        (
            "v1.13.9/b-options/worker.yaml",
            "p-classic-worker",
            "v1.13.9/c-classic/worker.yaml",
        ),
        (
            "v1.13.9/b-options/controlplane.yaml",
            "p-docs-cp",
            "v1.13.9/c-docs/controlplane.yaml",
        ),
    ];
    for (base, patch, expected) in cases {
        let ours = patched_text(base, &read(format!("inputs/{patch}.yaml"))).unwrap().to_yaml();
        let found = differences(&documents(&ours), &documents(&read(expected)));
        assert!(found.is_empty(), "{patch}: {found:#?}");
        assert_eq!(*ours, read(expected), "{patch}: same values, other bytes");
    }
}

#[test]
fn patches_with_documents_of_talos_1_14_work_there_and_are_refused_before() {
    let contract = Contract::new(1, 14);
    let base = Config::parse(&read("v1.14.1/a-plain/controlplane.yaml"), contract).unwrap();
    let text = read("inputs/p-docs114-cp.yaml");
    let patch = Patch::parse("p", &text, contract).unwrap();
    let ours = base.patched([&patch], contract).unwrap().to_yaml();
    let theirs = documents(&read("v1.14.1/c-docs114/controlplane.yaml"));
    let ours = documents(&ours);
    let kinds = |documents: &[serde_json::Value]| documents.iter().map(|document| document["kind"].clone()).collect::<Vec<_>>();
    assert_eq!(kinds(&ours), kinds(&theirs));
    for (ours, theirs) in ours.iter().zip(&theirs).filter(|(ours, _)| !ours["kind"].is_null()) {
        // The two bases were made for different Kubernetes versions.
        if ours.get("image").is_none() && ours.get("installer").is_none() {
            assert_eq!(ours, theirs);
        }
    }
    let error = Patch::parse("p", &text, CONTRACT).unwrap_err();
    let expected = r#"error decoding document v1alpha1/KubeNodeConfig/ (line 4): "KubeNodeConfig" "v1alpha1": not registered"#;
    assert_eq!(error.problem.to_string(), expected);
}

#[test]
fn unknown_keys_are_reported_with_their_line_in_the_patch() {
    let text = "machine:\n  kubelet:\n    image: x\n    imagge: y\n";
    let error = Patch::parse("patches/common.yaml", text, CONTRACT).unwrap_err();
    assert_eq!(error.line, Some(4));
    assert!(
        error
            .to_string()
            .starts_with("patches/common.yaml:4: error decoding document /v1alpha1/ (line 1): unknown keys")
    );
}

#[test]
fn a_later_layer_wins_and_lists_grow() {
    let contract = CONTRACT;
    let base = Config::parse(&read(PLAIN), contract).unwrap();
    let layer = |text: &str| Patch::parse("p", text, contract).unwrap();
    let layers = [
        layer("machine: {install: {disk: /dev/a, wipe: true}, certSANs: [cluster]}"),
        layer("machine: {install: {disk: /dev/b}, certSANs: [pool]}"),
        layer("machine: {install: {wipe: false}, certSANs: [machine]}"),
    ];
    let document = documents(&base.patched(&layers, contract).unwrap().to_yaml()).remove(0);
    assert_eq!(document["machine"]["install"]["disk"], "/dev/b");
    assert_eq!(document["machine"]["install"]["wipe"], false);
    assert_eq!(
        document["machine"]["certSANs"],
        serde_json::json!(["cluster", "pool", "machine"])
    );
}

#[test]
fn free_form_content_of_another_type_is_a_conflict_with_a_line() {
    let base = Config::parse(&read(PLAIN), CONTRACT).unwrap();
    let first = Patch::parse("a", "machine: {kubelet: {extraConfig: {maxPods: 5}}}", CONTRACT).unwrap();
    let second = Patch::parse("b", "machine:\n  kubelet:\n    extraConfig:\n      maxPods: many\n", CONTRACT).unwrap();
    let error = base.patched([&first, &second], CONTRACT).unwrap_err();
    assert_eq!(
        error.to_string(),
        "b:4: machine.kubelet.extraConfig.maxPods: merge type mismatch left int right string"
    );
}

#[test]
fn a_patch_that_is_neither_form_is_an_error() {
    for text in ["just text", "a: 1", "", "5", "- 1\n- 2\n"] {
        assert!(Patch::parse("p", text, CONTRACT).is_err(), "{text:?}");
    }
}

/// Recorded from talosctl 1.13.9: a base, a patch, and the hash of what came out or the error.
#[test]
fn many_more_patches_give_the_bytes_of_talosctl() {
    let recording = crate::support::raw("patches.txt");
    let mut compared = 0;
    for case in recording.split("### ").skip(1) {
        let (base, rest) = case.split_once('\n').unwrap();
        let (patch, expected) = rest.split_once("\n=== ").unwrap();
        let ours = match patched_text(base, &format!("{patch}\n")) {
            Ok(config) => format!(
                "sha256 {}",
                hex::encode(Sha256::digest(format!("{}\n", config.to_yaml().trim_end())))
            ),
            Err(error) => format!("error {}", error.problem).trim_end().to_owned(),
        };
        assert_eq!(ours, expected.trim_end(), "{base}\n{patch}");
        compared += 1;
    }
    assert_eq!(compared, 102);
}
