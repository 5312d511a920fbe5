//! Machine configs, kubeconfig and talosconfig: made offline from the file and the secrets.

use crate::stage::{Stage, cluster, mode};

fn stage() -> Stage {
    Stage::new().file("cluster.yaml", cluster()).with_secrets()
}

#[test]
fn the_config_of_an_unknown_machine_names_those_that_are_known() {
    stage().run(&["config", "box-worker-9"]).golden("config-unknown-machine");
}

#[test]
fn configs_are_masked_unless_asked() {
    let stage = stage();
    let masked = stage.run(&["config", "box-worker-1"]);
    masked.golden("config-masked");
    assert!(
        !masked.stdout.contains("kyis1o.xj1ufwmx4358fvxj"),
        "the machine token was told"
    );
    let clear = stage.run(&["config", "box-worker-1", "--show-secrets"]);
    assert!(clear.stdout.contains("kyis1o.xj1ufwmx4358fvxj"), "{}", clear.stdout);
    let all = stage.run(&["config"]).stdout;
    for name in ["# box-control-plane-1", "# box-worker-1", "# box-worker-2"] {
        assert!(all.lines().any(|line| line == name), "{name} is missing");
    }
}

#[test]
fn configs_are_readable_by_their_owner_only() {
    let stage = stage();
    stage.run(&["config", "--out", "configs"]).golden("config-out");
    assert_eq!(mode(&stage.path("configs/box-worker-2.yaml")), "600");
    assert!(stage.read("configs/box-worker-2.yaml").contains("kyis1o.xj1ufwmx4358fvxj"));
}

#[test]
fn a_kubeconfig_is_printed_or_written_for_its_owner_only() {
    let stage = stage();
    stage.run(&["kubeconfig"]).golden("kubeconfig");
    stage.run(&["kubeconfig", "--out", "mine"]).golden("kubeconfig-out");
    assert_eq!(mode(&stage.path("mine")), "600");
    stage
        .run(&["kubeconfig", "--out", "/proc/nowhere/mine"])
        .golden("kubeconfig-out-nowhere");
}

const OTHER_KUBECONFIG: &str = "apiVersion: v1\nkind: Config\ncurrent-context: office\n\
    clusters:\n- name: office\n  cluster: {server: https://office:6443}\n\
    users:\n- name: me\n  user: {token: mine}\n\
    contexts:\n- name: office\n  context: {cluster: office, user: me}\n";

#[test]
fn merging_keeps_what_was_in_the_kubeconfig() {
    let stage = stage().file("home/.kube/config", OTHER_KUBECONFIG);
    stage.run(&["kubeconfig", "--merge"]).golden("kubeconfig-merge");
    let merged = stage.read("home/.kube/config");
    for kept in ["https://office:6443", "token: mine", "name: office", "https://10.7.0.11:6443"] {
        assert!(merged.contains(kept), "{kept} is missing:\n{merged}");
    }
    assert!(merged.contains("current-context: admin@box"), "{merged}");
    let names = |text: &str| text.matches("name: ").count();
    let before = names(&merged);
    assert_eq!(stage.run(&["kubeconfig", "--merge"]).code, Some(0));
    assert_eq!(names(&stage.read("home/.kube/config")), before, "merging twice adds nothing");
}

#[test]
fn merging_makes_the_file_that_kubeconfig_names() {
    let stage = stage();
    let place = stage.path("a/b").display().to_string();
    let stage = stage.with("KUBECONFIG", format!("{place}:/nowhere/else"));
    stage.run(&["kubeconfig", "--merge"]).golden("kubeconfig-merge-new");
    assert_eq!(mode(&stage.path("a/b")), "600");
}

#[test]
fn a_damaged_file_is_not_merged_into() {
    let damaged = "clusters: [oops\n";
    let stage = stage()
        .file("home/.kube/config", damaged)
        .file("home/.talos/config", "contexts: 7\n");
    stage.run(&["kubeconfig", "--merge"]).golden("kubeconfig-merge-damaged");
    stage.run(&["talosconfig", "--merge"]).golden("talosconfig-merge-damaged");
    assert_eq!(stage.read("home/.kube/config"), damaged);
    assert_eq!(stage.read("home/.talos/config"), "contexts: 7\n");
}

#[test]
fn a_talosconfig_is_printed_written_and_merged() {
    let stage = stage();
    stage.run(&["talosconfig"]).golden("talosconfig");
    stage.run(&["talosconfig", "--out", "mine"]).golden("talosconfig-out");
    assert_eq!(mode(&stage.path("mine")), "600");
    let stage = stage.file(
        "home/.talos/config",
        "context: office\ncontexts:\n  office:\n    endpoints: [10.1.1.1]\n",
    );
    stage.run(&["talosconfig", "--merge"]).golden("talosconfig-merge");
    let merged = stage.read("home/.talos/config");
    assert!(merged.contains("10.1.1.1") && merged.contains("context: box"), "{merged}");
}
