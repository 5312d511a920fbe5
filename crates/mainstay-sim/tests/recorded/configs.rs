//! The configs that were sent, made again from the recorded cluster's own.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

const RECORDED: &str = include_str!("../data/recorded-controlplane.yaml");

pub fn base64(name: &str) -> String {
    STANDARD.encode(text(name))
}

/// The lab's nodes got their network by hand, under `cni: none`; here flannel brings it.
fn own() -> String {
    RECORDED.replace("name: none", "name: flannel")
}

pub fn text(name: &str) -> String {
    let own = own();
    let whole = |from: &str, to: &str| {
        assert!(own.contains(from), "{from}");
        own.replacen(from, to, 1)
    };
    let labels = "    nodeLabels:\n";
    let features = "    features:\n";
    let api_server = "registry.k8s.io/kube-apiserver:v1.36.4";
    match name {
        "controlplane" | "x-cp" => own,
        "cp-live" => whole(labels, &format!("{labels}        lab.test/a: \"1\"\n")),
        "cp-reboot" => whole(features, &format!("    env:\n        FOO: bar\n{features}")),
        "cp-udev" => whole(
            labels,
            &format!("    udev:\n        rules:\n            - SUBSYSTEM==\"drm\"\n{labels}"),
        ),
        "cp-files" => {
            let file =
                "        - content: \"y\"\n          permissions: 0o600\n          path: /var/etc/x\n          op: create\n";
            whole(features, &format!("    files:\n{file}{features}"))
        }
        "cp-broken" => whole("type: controlplane", "type: controlplanex"),
        "cp-unknown" => whole("machine:\n", "machine:\n    nope: 1\n"),
        "cp-k8snew" => whole(api_server, "registry.k8s.io/kube-apiserver:v1.37.0"),
        "cp-notag" => {
            let digest = "a".repeat(64);
            whole(api_server, &format!("registry.k8s.io/kube-apiserver@sha256:{digest}"))
        }
        "cp-typechange" => worker(),
        "mirrors" => {
            let from = own.find("apiVersion: v1alpha1\nkind: RegistryMirrorConfig").unwrap();
            let to = own.find("---\napiVersion: v1alpha1\nkind: Layer2VIPConfig").unwrap();
            own[from..to].to_owned()
        }
        other => panic!("{other}"),
    }
}

/// The same cluster's worker: no keys of authorities, and nothing of a control plane.
pub fn worker() -> String {
    let mut lines: Vec<String> = Vec::new();
    let mut skipped = false;
    for line in own().lines() {
        let indent = line.len() - line.trim_start().len();
        let own = line.trim_start();
        if indent <= 4 {
            skipped = indent == 4
                && [
                    "aggregatorCA:",
                    "serviceAccount:",
                    "apiServer:",
                    "controllerManager:",
                    "scheduler:",
                    "etcd:",
                    "secretboxEncryptionSecret:",
                    "coreDNS:",
                    "proxy:",
                ]
                .iter()
                .any(|key| own.starts_with(key));
        }
        if !skipped {
            let key = indent == 8 && own.starts_with("key:");
            lines.push(if key {
                "        key: \"\"".to_owned()
            } else {
                line.to_owned()
            });
        }
    }
    let text = lines.join("\n") + "\n";
    let vip = text.find("---\napiVersion: v1alpha1\nkind: Layer2VIPConfig").unwrap();
    text[..vip].replacen("type: controlplane", "type: worker", 1)
}
