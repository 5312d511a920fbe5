//! Admission of pods: PodSecurity, namespaces that end, and defaults.

use serde_json::{Value, json};

use super::control::{is_deleting, text};
use super::kinds;
use super::store::{Key, Store};

const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
/// What a Secret or ConfigMap may hold.
const DATA_MAX: usize = 1_048_576;
/// Capabilities that `baseline` lets a container add.
const BASELINE_CAPABILITIES: [&str; 13] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
];

/// Why a Secret or ConfigMap is refused for its size.
pub(crate) fn too_large(key: &Key, object: &Value) -> Option<String> {
    if *key.kind != kinds::SECRETS && *key.kind != kinds::CONFIG_MAPS {
        return None;
    }
    let is_secret = *key.kind == kinds::SECRETS;
    let plain = |value: &Value| {
        if is_secret {
            text(value).len() / 4 * 3
        } else {
            text(value).len()
        }
    };
    let data: usize = object["data"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, value)| plain(value))
        .sum();
    let binary: usize = object["binaryData"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(_, value)| text(value).len() / 4 * 3)
        .sum();
    (data + binary > DATA_MAX).then(|| {
        format!(
            "{} \"{}\" is invalid: data: Too long: may not be more than {DATA_MAX} bytes",
            key.kind.kind, key.name
        )
    })
}

/// Why a new pod is refused, in the API server's words.
pub(crate) fn refuse_pod(store: &Store, namespace: &str, name: &str, spec: &Value) -> Option<String> {
    let object = store.get(&Key::new(&kinds::NAMESPACES, "", namespace))?;
    if is_deleting(&object) {
        return Some(format!(
            "pods \"{name}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated"
        ));
    }
    let policy = store.policy();
    let label = object["metadata"]["labels"][ENFORCE].as_str();
    let level = if policy.exempt.contains(&namespace) {
        None
    } else {
        label.or(policy.enforce)
    };
    let found = match level {
        Some("baseline") => baseline(spec),
        Some("restricted") => [baseline(spec), restricted(spec)].concat(),
        _ => Vec::new(),
    };
    (!found.is_empty()).then(|| {
        format!(
            "pods \"{name}\" is forbidden: violates PodSecurity \"{}:latest\": {}",
            level.unwrap_or_default(),
            found.join(", ")
        )
    })
}

fn containers(spec: &Value) -> impl Iterator<Item = &Value> {
    ["initContainers", "containers"]
        .into_iter()
        .flat_map(|list| spec[list].as_array().into_iter().flatten())
}

fn baseline(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let shared: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|field| spec[*field] == true)
        .map(|field| format!("{field}=true"))
        .collect();
    if !shared.is_empty() {
        found.push(format!("host namespaces ({})", shared.join(", ")));
    }
    for volume in spec["volumes"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|volume| !volume["hostPath"].is_null())
    {
        found.push(format!("hostPath volumes (volume \"{}\")", text(&volume["name"])));
    }
    for container in containers(spec) {
        let name = text(&container["name"]);
        let context = &container["securityContext"];
        if context["privileged"] == true {
            found.push(format!(
                "privileged (container \"{name}\" must not set securityContext.privileged=true)"
            ));
        }
        let added = context["capabilities"]["add"].as_array().into_iter().flatten();
        for capability in added.filter(|one| !BASELINE_CAPABILITIES.contains(&text(one))) {
            found.push(format!("non-default capabilities (container \"{name}\" must not include {capability} in securityContext.capabilities.add)"));
        }
        for port in container["ports"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|port| port["hostPort"].as_u64())
        {
            found.push(format!("hostPort (container \"{name}\" uses hostPort {port})"));
        }
    }
    found
}

fn restricted(spec: &Value) -> Vec<String> {
    let mut found = Vec::new();
    let pod = &spec["securityContext"];
    for container in containers(spec) {
        let name = text(&container["name"]);
        let context = &container["securityContext"];
        if context["allowPrivilegeEscalation"] != false {
            found.push(format!(
                "allowPrivilegeEscalation != false (container \"{name}\" must set securityContext.allowPrivilegeEscalation=false)"
            ));
        }
        if !context["capabilities"]["drop"]
            .as_array()
            .is_some_and(|list| list.contains(&json!("ALL")))
        {
            found.push(format!(
                "unrestricted capabilities (container \"{name}\" must set securityContext.capabilities.drop=[\"ALL\"])"
            ));
        }
        if context["runAsNonRoot"] != true && pod["runAsNonRoot"] != true {
            found.push(format!(
                "runAsNonRoot != true (pod or container \"{name}\" must set securityContext.runAsNonRoot=true)"
            ));
        }
        let profile = |context: &Value| matches!(text(&context["seccompProfile"]["type"]), "RuntimeDefault" | "Localhost");
        if !profile(context) && !profile(pod) {
            found.push(format!("seccompProfile (pod or container \"{name}\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")"));
        }
    }
    found
}

/// What admission adds to every pod: its account, and five minutes on a node that is lost.
pub(crate) fn default_pod(pod: &mut Value) {
    let spec = &mut pod["spec"];
    if spec["serviceAccountName"].is_null() {
        spec["serviceAccountName"] = json!("default");
    }
    for (field, value) in [
        ("restartPolicy", json!("Always")),
        ("terminationGracePeriodSeconds", json!(30)),
    ] {
        if spec[field].is_null() {
            spec[field] = value;
        }
    }
    if !spec["tolerations"].is_array() {
        spec["tolerations"] = json!([]);
    }
    let Some(list) = spec["tolerations"].as_array_mut() else {
        return;
    };
    for key in ["node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"] {
        let covered = |one: &Value| {
            (one["key"] == key || one["key"].is_null()) && (one["effect"].is_null() || one["effect"] == "NoExecute")
        };
        if !list.iter().any(covered) {
            list.push(json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}));
        }
    }
    if pod["status"]["phase"].is_null() {
        pod["status"] = json!({"phase": "Pending", "qosClass": "BestEffort"});
    }
}
