//! Where a simulated VM rightly answers otherwise than the recorded cluster, which ran in containers. Each line has its reason, and
//! `docs/reference/simulator-guests.md` has the same list for readers.

use serde_json::Value;

/// End of the method, part of the path, reason.
const KNOWN: &[(&str, &str, &str)] = &[
    ("Version", ".platform", "a container calls itself platform `container`"),
    ("State/List", "[eth0].resource.spec", "the link of a container is a veth pair"),
    (
        "State/List",
        "[node].resource.spec",
        "the lab had no NTP server, its time sync was off",
    ),
    (
        "State/List",
        "[platformmetadata].resource.spec",
        "a container calls itself platform `container`",
    ),
    (
        "State/List",
        "[securitystate].resource.spec",
        "a container has no firmware, no UKI and no SELinux",
    ),
    (
        "State/List",
        "[manifests].resource.spec",
        "the lab's nodes got their network by hand; here flannel is one of the manifests",
    ),
];

/// Services of a machine that a container has not.
pub const MACHINE_ONLY: &[&str] = &["auditd", "dashboard", "syslogd", "udevd"];

/// Resources that only one side has: part of the type and of the id, reason.
const ABSENT: &[(&str, &str, &str)] = &[
    ("Services.v1alpha1", "auditd", "a container has no kernel of its own to audit"),
    ("Services.v1alpha1", "dashboard", "a container has no screen"),
    ("Services.v1alpha1", "syslogd", "a container has no syslog"),
    ("Services.v1alpha1", "udevd", "a container has no devices"),
];

/// Answers of which only the code is compared.
const EXCUSED: &[(usize, &str)] = &[
    (377, "a container has no META, hence no token in it"),
    (20, "a container has no disks"),
    (29, "a container has no disks"),
    (
        77,
        "three seconds after a config either etcd or the kubelet is the first to run",
    ),
    (322, "a container's reset stops its services and nothing else"),
    (116, "the recorder cut the diff"),
];

pub fn excused(call: usize) -> bool {
    EXCUSED.iter().any(|(known, _)| *known == call)
}

pub fn is_known(method: &str, path: &str) -> bool {
    KNOWN
        .iter()
        .any(|(end, part, _)| method.ends_with(end) && !path.is_empty() && path.contains(part))
}

pub fn absent(item: &Value) -> bool {
    let metadata = &item["resource"]["metadata"];
    let text = |key: &str| metadata[key].as_str().unwrap_or_default().to_owned();
    let (kind, id) = (text("type"), text("id"));
    ABSENT.iter().any(|(part, name, _)| kind.contains(part) && id.contains(name))
}
