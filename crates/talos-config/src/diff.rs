//! What differs between two configs, path by path, without showing a secret, and what each difference costs a running node.

use std::fmt;

use crate::config::{Config, Document, DocumentId};
use crate::secret_paths::{MASK, is_secret_key, without_login};
use crate::versions::Contract;
use crate::yaml::{Node, Value};

/// Longer values are cut: the text of a certificate or manifest helps no reader of a diff.
const MAX_SHOWN: usize = 80;

/// What a node does with a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// Takes effect at once.
    Live,
    /// Is accepted, and takes effect when the node reboots for another reason: the arguments of etcd, and all that Talos 1.14 takes, which
    /// never reboots for a config.
    NextBoot,
    /// The node reboots.
    Reboot,
}

impl fmt::Display for Effect {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live => "live",
            Self::NextBoot => "next boot",
            Self::Reboot => "reboot",
        })
    }
}

/// One difference. Values are masked where they are or may be secret.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    pub document: DocumentId,
    /// `machine.network.interfaces[0].mtu`; empty for a whole document.
    pub path: String,
    pub before: Option<String>,
    pub after: Option<String>,
    pub effect: Effect,
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = match (self.document.is_legacy(), self.path.is_empty()) {
            (true, _) => self.path.clone(),
            (false, true) => document_name(&self.document),
            (false, false) => format!("{} {}", document_name(&self.document), self.path),
        };
        match (&self.before, &self.after) {
            (None, Some(after)) => write!(f, "+ {place}: {after}"),
            (Some(before), None) => write!(f, "- {place}: {before}"),
            (Some(before), Some(after)) => write!(f, "~ {place}: {before} -> {after}"),
            (None, None) => f.write_str(&place),
        }?;
        write!(f, " ({})", self.effect)
    }
}

fn document_name(id: &DocumentId) -> String {
    if id.name.is_empty() {
        id.kind.clone()
    } else {
        format!("{}/{}", id.kind, id.name)
    }
}

/// Every difference, in the order of the later config; what vanished comes last.
pub fn diff(before: &Config, after: &Config, contract: Contract) -> Vec<Change> {
    let mut changes = Vec::new();
    let same = |left: &Document, right: &Document| left.id == right.id || (left.id.is_legacy() && right.id.is_legacy());
    for document in &after.documents {
        let earlier = before
            .documents
            .iter()
            .find(|earlier| same(earlier, document))
            .map(|earlier| &earlier.body);
        Walk {
            document: &document.id,
            contract,
            changes: &mut changes,
        }
        .compare("", false, earlier, Some(&document.body));
    }
    for document in before
        .documents
        .iter()
        .filter(|earlier| !after.documents.iter().any(|later| same(earlier, later)))
    {
        Walk {
            document: &document.id,
            contract,
            changes: &mut changes,
        }
        .compare("", false, Some(&document.body), None);
    }
    changes
}

/// The heaviest effect of all; nothing for no change.
pub fn effect(changes: &[Change]) -> Option<Effect> {
    changes.iter().map(|change| change.effect).max()
}

struct Walk<'a> {
    document: &'a DocumentId,
    contract: Contract,
    changes: &'a mut Vec<Change>,
}

impl Walk<'_> {
    fn compare(&mut self, path: &str, is_secret: bool, before: Option<&Node>, after: Option<&Node>) {
        match (before.map(|node| &node.value), after.map(|node| &node.value)) {
            (Some(left), Some(right)) if left == right => {}
            (Some(Value::Map(left)), Some(Value::Map(right))) => {
                for (key, value) in right {
                    self.compare(&join(path, key), is_secret || is_secret_key(key), left.get(key), Some(value));
                }
                for (key, value) in left.iter().filter(|(key, _)| !right.contains_key(*key)) {
                    self.compare(&join(path, key), is_secret || is_secret_key(key), Some(value), None);
                }
            }
            (Some(Value::List(left)), Some(Value::List(right))) => {
                for index in 0..left.len().max(right.len()) {
                    self.compare(&format!("{path}[{index}]"), is_secret, left.get(index), right.get(index));
                }
            }
            (None, Some(Value::Map(right))) if !right.is_empty() => {
                for (key, value) in right {
                    self.compare(&join(path, key), is_secret || is_secret_key(key), None, Some(value));
                }
            }
            (Some(Value::Map(left)), None) if !left.is_empty() => {
                for (key, value) in left {
                    self.compare(&join(path, key), is_secret || is_secret_key(key), Some(value), None);
                }
            }
            _ => self.note(path, is_secret, before, after),
        }
    }

    fn note(&mut self, path: &str, is_secret: bool, before: Option<&Node>, after: Option<&Node>) {
        let shown = |node: &Node| if is_secret { MASK.to_owned() } else { show(node) };
        self.changes.push(Change {
            document: self.document.clone(),
            path: path.to_owned(),
            before: before.map(shown),
            after: after.map(shown),
            effect: effect_of(self.document, path, self.contract),
        });
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() {
        key.to_owned()
    } else {
        format!("{path}.{key}")
    }
}

fn show(node: &Node) -> String {
    let text = match &node.value {
        Value::Scalar(scalar) => without_login(&scalar.text),
        Value::List(items) => format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(", ")),
        Value::Map(entries) => {
            let entry = |(key, value): (&String, &Node)| {
                let value = if is_secret_key(key) { MASK.to_owned() } else { show(value) };
                format!("{key}: {value}")
            };
            format!("{{{}}}", entries.iter().map(entry).collect::<Vec<_>>().join(", "))
        }
    };
    match text.char_indices().nth(MAX_SHOWN) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// What a node up to Talos 1.13 changes without a reboot. Documents of their own always are.
const LIVE: [&str; 25] = [
    "debug",
    "cluster",
    "machine.ca",
    "machine.acceptedCAs",
    "machine.time",
    "machine.certSANs",
    "machine.install",
    "machine.network",
    "machine.sysfs",
    "machine.sysctls",
    "machine.logging",
    "machine.controlPlane",
    "machine.kubelet",
    "machine.kernel",
    "machine.registries",
    "machine.pods",
    "machine.seccompProfiles",
    "machine.nodeAnnotations",
    "machine.nodeLabels",
    "machine.nodeTaints",
    "machine.features.kubernetesTalosAPIAccess",
    "machine.features.kubePrism",
    "machine.features.hostDNS",
    "machine.features.imageCache",
    "machine.features.nodeAddressSortAlgorithm",
];

/// Accepted without a reboot, but a running etcd keeps its arguments until it starts again, which only a reboot makes it do.
const OF_RUNNING_ETCD: &str = "cluster.etcd";

fn effect_of(document: &DocumentId, path: &str, contract: Contract) -> Effect {
    let is_below = |root: &&str| {
        path.strip_prefix(*root)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
    };
    let is_registry_login = path.starts_with("machine.registries.config.") && path.contains(".auth");
    if document.is_legacy() && is_below(&OF_RUNNING_ETCD) {
        return Effect::NextBoot;
    }
    let is_live = !document.is_legacy() || LIVE.iter().any(is_below) && !is_registry_login;
    if is_live {
        Effect::Live
    } else if contract >= Contract::new(1, 14) {
        Effect::NextBoot
    } else {
        Effect::Reboot
    }
}
