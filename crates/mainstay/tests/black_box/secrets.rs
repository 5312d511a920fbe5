//! The secrets file: made or taken over once, and never written over.

use crate::stage::{AGE_KEY, Stage, TOKEN, cluster, mode, talosctl_secrets};

/// Opens another file than ours.
const OTHER_KEY: &str = "AGE-SECRET-KEY-1NGZMK3FW8K3WEJS9KNGPMHMPJY5U2Q5JEQ5JZV2LF9ZJLLZ6D3TQ6LR4RN";
const FILE: &str = "cluster.secrets.yaml";

fn with_secrets() -> Stage {
    Stage::new()
        .file("cluster.yaml", cluster())
        .with("PROXMOX_VE_API_TOKEN", TOKEN)
        .with_secrets()
}

#[test]
fn secrets_that_are_not_there_cannot_be_used() {
    let stage = Stage::new().file("cluster.yaml", cluster());
    stage.run(&["secrets", "show"]).golden("secrets-none");
    stage.run(&["kubeconfig"]).golden("kubeconfig-without-secrets");
    stage.run(&["talosconfig"]).golden("talosconfig-without-secrets");
    stage.run(&["config"]).golden("config-without-secrets");
}

#[test]
fn the_secrets_of_talosctl_are_taken_over_encrypted() {
    let stage = with_secrets();
    assert_eq!(mode(&stage.path(FILE)), "600");
    let text = stage.read(FILE);
    assert!(text.contains("ENC[AES256_GCM") && !text.contains("PRIVATE KEY"), "{text}");
    stage.run(&["secrets", "show"]).golden("secrets-show");
    stage.run(&["secrets", "show", "--json"]).golden("secrets-show-json");
}

#[test]
fn an_encrypted_file_is_taken_over_as_well() {
    let from = with_secrets();
    let stage = Stage::new()
        .file("cluster.yaml", cluster())
        .file("old.yaml", from.read(FILE))
        .with("SOPS_AGE_KEY", AGE_KEY);
    stage
        .run(&["secrets", "import", "old.yaml"])
        .golden("secrets-import-encrypted");
    let shown = |stage: &Stage| stage.run(&["secrets", "show"]).stdout;
    assert_eq!(shown(&stage), shown(&from));
}

#[test]
fn what_is_no_set_of_secrets_is_not_taken_over() {
    let stage = Stage::new().file("cluster.yaml", cluster()).with("SOPS_AGE_KEY", AGE_KEY);
    stage
        .run(&["secrets", "import", "nowhere.yaml"])
        .golden("secrets-import-missing");
    let stage = stage
        .file("empty.yaml", "")
        .file("other.yaml", "apiVersion: v1\nkind: ConfigMap\n");
    stage.run(&["secrets", "import", "empty.yaml"]).golden("secrets-import-empty");
    stage.run(&["secrets", "import", "other.yaml"]).golden("secrets-import-other");
    let damaged = talosctl_secrets().replace("key: LS0tLS1CRUdJTi", "key: ");
    let stage = stage.file("damaged.yaml", damaged);
    let said = stage.run(&["secrets", "import", "damaged.yaml"]);
    assert!(!said.stderr.contains("5p0jb6scwg2xu02o"), "a secret was told");
    said.golden("secrets-import-damaged");
    assert!(!stage.path(FILE).exists());
}

#[test]
fn without_a_key_nothing_is_taken_over() {
    let stage = Stage::new()
        .file("cluster.yaml", cluster())
        .file("from-talosctl.yaml", talosctl_secrets());
    stage
        .run(&["secrets", "import", "from-talosctl.yaml"])
        .golden("secrets-import-no-key");
    assert!(!stage.path(FILE).exists());
}

#[test]
fn a_bootstrap_token_that_no_kubelet_could_use_is_refused() {
    let stage = Stage::new()
        .with("SOPS_AGE_KEY", AGE_KEY)
        .file("cluster.yaml", cluster())
        .file(
            "from-talosctl.yaml",
            talosctl_secrets().replace("wcn99e.5p0jb6scwg2xu02o", "wcn99e-5p0jb6"),
        );
    stage
        .run(&["secrets", "import", "from-talosctl.yaml"])
        .golden("secrets-import-bad-token");
    assert!(!stage.path(FILE).exists());
}

#[test]
fn secrets_that_are_there_are_not_written_over_by_an_import() {
    let stage = with_secrets();
    let before = stage.read(FILE);
    stage
        .run(&["secrets", "import", "from-talosctl.yaml"])
        .golden("secrets-import-twice");
    assert_eq!(stage.read(FILE), before);
}

#[test]
fn a_secrets_file_that_was_changed_is_refused_and_kept() {
    let stage = with_secrets();
    // Another value of the same form: only the file's own checks can tell.
    stage.change(FILE, |text| {
        let values: Vec<&str> = text.lines().filter(|line| line.contains("ENC[")).collect();
        let value = |line: &str| {
            line.split_once("ENC[")
                .map(|(_, value)| format!("ENC[{value}"))
                .expect("a value")
        };
        text.replacen(&value(values[0]), &value(values[1]), 1)
    });
    refused_and_kept(&stage, "secrets-tampered");
}

#[test]
fn a_secrets_file_that_was_cut_off_is_refused_and_kept() {
    let stage = with_secrets();
    stage.change(FILE, |text| text[..text.len() / 3].to_owned());
    refused_and_kept(&stage, "secrets-truncated");
    stage.change(FILE, |_| String::new());
    refused_and_kept(&stage, "secrets-emptied");
}

#[test]
fn a_secrets_file_for_another_key_is_refused_and_kept() {
    let stage = with_secrets().with("SOPS_AGE_KEY", OTHER_KEY);
    refused_and_kept(&stage, "secrets-wrong-key");
    let stage = stage.without("SOPS_AGE_KEY");
    refused_and_kept(&stage, "secrets-no-key");
    let stage = stage.with("SOPS_AGE_KEY", "AGE-SECRET-KEY-1OOPS");
    refused_and_kept(&stage, "secrets-bad-key");
}

#[test]
fn secrets_in_clear_are_refused_and_kept() {
    let stage = with_secrets();
    stage.change(FILE, |_| talosctl_secrets());
    refused_and_kept(&stage, "secrets-in-clear");
}

/// `up` must stop before the first request, and neither make nor write anything.
fn refused_and_kept(stage: &Stage, golden: &str) {
    let before = stage.read(FILE);
    let said = stage.run(&["up", "--yes"]);
    said.golden(golden);
    assert_ne!(said.code, Some(0));
    assert_eq!(stage.read(FILE), before, "the file was written");
    assert!(!stage.path("home/.config/sops/age/keys.txt").exists(), "a key was made");
}
