//! What is changed on a Kubernetes Node, and the record of which labels and taints are ours.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use mainstay_spec::Taint;

/// Labels and taints in a record are separated by blanks, which neither may contain.
const LABELS: &str = "labels";
const TAINTS: &str = "taints";

/// A taint of a Node. Key and effect name it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct TaintOnNode {
    pub key: String,
    pub effect: String,
    /// May be empty.
    pub value: String,
}

impl TaintOnNode {
    pub(crate) fn of(taint: &Taint) -> Self {
        Self {
            key: taint.key.clone(),
            effect: taint.effect.as_str().to_owned(),
            value: taint.value.clone(),
        }
    }

    pub(crate) fn name(&self) -> String {
        format!("{}:{}", self.key, self.effect)
    }
}

impl fmt::Display for TaintOnNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let equals = if self.value.is_empty() { "" } else { "=" };
        write!(f, "{}{equals}{}:{}", self.key, self.value, self.effect)
    }
}

/// Names of the labels and taints that mainstay set on a Node: `labels a b taints key:Effect`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRecord {
    pub labels: BTreeSet<String>,
    /// `key:Effect`.
    pub taints: BTreeSet<String>,
}

impl NodeRecord {
    /// Words before the first heading count for nothing: a later mainstay may write more headings.
    pub fn parse(text: &str) -> Self {
        let mut record = Self::default();
        let mut heading = "";
        for word in text.split_whitespace() {
            match (heading, word) {
                (_, LABELS | TAINTS) => heading = word,
                (LABELS, label) => drop(record.labels.insert(label.to_owned())),
                (TAINTS, taint) => drop(record.taints.insert(taint.to_owned())),
                _ => {}
            }
        }
        record
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.taints.is_empty()
    }
}

impl fmt::Display for NodeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |heading: &str, names: &BTreeSet<String>| {
            let names: String = names.iter().map(|name| format!(" {name}")).collect();
            format!("{heading}{names}")
        };
        write!(f, "{} {}", list(LABELS, &self.labels), list(TAINTS, &self.taints))
    }
}

/// A change of labels and taints, in one request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeChange {
    pub set_labels: BTreeMap<String, String>,
    pub remove_labels: BTreeSet<String>,
    pub set_taints: BTreeSet<TaintOnNode>,
    pub remove_taints: BTreeSet<TaintOnNode>,
    /// What mainstay set, after the change.
    pub record: NodeRecord,
}

impl NodeChange {
    /// The record as it is written; nothing once nothing is ours.
    pub fn record_text(&self) -> Option<String> {
        (!self.record.is_empty()).then(|| self.record.to_string())
    }

    /// In words, without what only the record tells.
    pub(crate) fn text(&self) -> String {
        let labels = self.set_labels.iter().map(|(key, value)| format!("label {key}={value}"));
        let taints = self.set_taints.iter().map(|taint| format!("taint {taint}"));
        let no_labels = self.remove_labels.iter().map(|key| format!("no label {key}"));
        let no_taints = self.remove_taints.iter().map(|taint| format!("no taint {}", taint.name()));
        let parts: Vec<String> = labels.chain(taints).chain(no_labels).chain(no_taints).collect();
        if parts.is_empty() {
            "records its labels and taints".to_owned()
        } else {
            parts.join(", ")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::NodeRecord;

    #[test]
    fn a_record_is_read_as_it_was_written() {
        let record = NodeRecord {
            labels: ["labels.example/x".to_owned(), "tier".to_owned()].into(),
            taints: ["gpu:NoSchedule".to_owned()].into(),
        };
        assert_eq!(record.to_string(), "labels labels.example/x tier taints gpu:NoSchedule");
        assert_eq!(NodeRecord::parse(&record.to_string()), record);
        assert_eq!(NodeRecord::parse("labels taints"), NodeRecord::default());
        assert_eq!(NodeRecord::parse(""), NodeRecord::default());
    }
}
