//! What changes between two configs: whether it can be applied live, and the diff that nodes print.

use serde_json::Value;

use super::decode::Config;

/// Fields of `machine` that take effect without a reboot (`cluster`, `debug` and all separate documents do as a whole).
const LIVE: [&str; 18] = [
    "ca",
    "acceptedCAs",
    "time",
    "certSANs",
    "install",
    "network",
    "sysfs",
    "sysctls",
    "logging",
    "controlPlane",
    "kubelet",
    "kernel",
    "registries",
    "pods",
    "seccompProfiles",
    "nodeAnnotations",
    "nodeLabels",
    "nodeTaints",
];
const LIVE_FEATURES: [&str; 5] = [
    "kubernetesTalosAPIAccess",
    "kubePrism",
    "hostDNS",
    "imageCache",
    "nodeAddressSortAlgorithm",
];

/// Whether going from one config to the other needs no reboot.
pub(crate) fn live_applicable(old: &Config, new: &Config) -> bool {
    static NOTHING: Value = Value::Null;
    let strip = |config: &Config| {
        let mut value = config.v1alpha1().unwrap_or(&NOTHING).clone();
        if let Some(root) = value.as_object_mut() {
            root.shift_remove("cluster");
            root.shift_remove("debug");
        }
        if let Some(machine) = value["machine"].as_object_mut() {
            LIVE.iter().for_each(|key| {
                machine.shift_remove(*key);
            });
        }
        if let Some(features) = value["machine"]["features"].as_object_mut() {
            LIVE_FEATURES.iter().for_each(|key| {
                features.shift_remove(*key);
            });
        }
        value
    };
    strip(old) == strip(new)
}

/// A unified diff with three lines of context, in the form that nodes print; empty when nothing changes.
pub(crate) fn unified(old: &str, new: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let edits = edits(&a, &b);
    if edits.iter().all(|edit| matches!(edit, Edit::Keep(..))) {
        return String::new();
    }
    let mut out = "--- a\n+++ b\n".to_owned();
    for hunk in hunks(&edits) {
        write_hunk(&edits[hunk], &mut out);
    }
    out
}

enum Edit<'a> {
    /// Line number in the old and in the new text, 1-based.
    Keep(usize, usize, &'a str),
    Remove(usize, usize, &'a str),
    Add(usize, usize, &'a str),
}

impl Edit<'_> {
    fn at(&self) -> (usize, usize) {
        match self {
            Self::Keep(a, b, _) | Self::Remove(a, b, _) | Self::Add(a, b, _) => (*a, *b),
        }
    }
}

/// Common head and tail are kept; between them the longest common subsequence decides.
fn edits<'a>(a: &[&'a str], b: &[&'a str]) -> Vec<Edit<'a>> {
    let head = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let tail = a[head..]
        .iter()
        .rev()
        .zip(b[head..].iter().rev())
        .take_while(|(a, b)| a == b)
        .count();
    let (middle_a, middle_b) = (&a[head..a.len() - tail], &b[head..b.len() - tail]);
    let mut lengths = vec![vec![0usize; middle_b.len() + 1]; middle_a.len() + 1];
    for i in (0..middle_a.len()).rev() {
        for j in (0..middle_b.len()).rev() {
            lengths[i][j] = if middle_a[i] == middle_b[j] {
                lengths[i + 1][j + 1] + 1
            } else {
                lengths[i + 1][j].max(lengths[i][j + 1])
            };
        }
    }
    let mut out: Vec<Edit<'a>> = (0..head).map(|at| Edit::Keep(at + 1, at + 1, a[at])).collect();
    let (mut i, mut j) = (0, 0);
    while i < middle_a.len() || j < middle_b.len() {
        let (line_a, line_b) = (head + i + 1, head + j + 1);
        if i < middle_a.len() && j < middle_b.len() && middle_a[i] == middle_b[j] {
            out.push(Edit::Keep(line_a, line_b, middle_a[i]));
            (i, j) = (i + 1, j + 1);
        } else if i < middle_a.len() && (j == middle_b.len() || lengths[i + 1][j] >= lengths[i][j + 1]) {
            out.push(Edit::Remove(line_a, line_b, middle_a[i]));
            i += 1;
        } else {
            out.push(Edit::Add(line_a, line_b, middle_b[j]));
            j += 1;
        }
    }
    out.extend((0..tail).map(|at| Edit::Keep(a.len() - tail + at + 1, b.len() - tail + at + 1, a[a.len() - tail + at])));
    out
}

fn hunks(edits: &[Edit<'_>]) -> Vec<std::ops::Range<usize>> {
    let mut hunks: Vec<std::ops::Range<usize>> = Vec::new();
    for (at, _) in edits.iter().enumerate().filter(|(_, edit)| !matches!(edit, Edit::Keep(..))) {
        let (from, to) = (at.saturating_sub(3), (at + 4).min(edits.len()));
        match hunks.last_mut() {
            Some(last) if from <= last.end => last.end = to,
            _ => hunks.push(from..to),
        }
    }
    hunks
}

fn write_hunk(edits: &[Edit<'_>], out: &mut String) {
    let (old_at, new_at) = edits.first().map_or((0, 0), Edit::at);
    let old = edits.iter().filter(|edit| !matches!(edit, Edit::Add(..))).count();
    let new = edits.iter().filter(|edit| !matches!(edit, Edit::Remove(..))).count();
    let side = |at: usize, count: usize| match count {
        0 => format!("{},0", at - 1),
        1 => at.to_string(),
        _ => format!("{at},{count}"),
    };
    out.push_str(&format!("@@ -{} +{} @@\n", side(old_at, old), side(new_at, new)));
    for edit in edits {
        let (sign, text) = match edit {
            Edit::Keep(.., text) => (' ', text),
            Edit::Remove(.., text) => ('-', text),
            Edit::Add(.., text) => ('+', text),
        };
        out.push(sign);
        out.push_str(text);
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Config {
        Config::decode(text.as_bytes(), 13).expect("a config")
    }

    #[test]
    fn labels_are_live_and_environment_is_not() {
        let plain = config("version: v1alpha1\nmachine:\n    type: controlplane\n");
        assert!(live_applicable(
            &plain,
            &config("version: v1alpha1\nmachine:\n    type: controlplane\n    nodeLabels: {a: b}\n")
        ));
        assert!(live_applicable(
            &plain,
            &config("version: v1alpha1\nmachine:\n    type: controlplane\ncluster: {clusterName: x}\n")
        ));
        assert!(!live_applicable(
            &plain,
            &config("version: v1alpha1\nmachine:\n    type: controlplane\n    env: {A: b}\n")
        ));
        assert!(!live_applicable(
            &plain,
            &config("version: v1alpha1\nmachine:\n    type: worker\n")
        ));
    }

    #[test]
    fn diffs_have_three_lines_of_context() {
        let old = "a\nb\nc\nd\ne\nf\ng\nh\n";
        let new = "a\nb\nc\nd\ne\nx\nf\ng\nh\n";
        assert_eq!(
            unified(old, new),
            "--- a\n+++ b\n@@ -3,6 +3,7 @@\n c\n d\n e\n+x\n f\n g\n h\n"
        );
        assert_eq!(unified(old, old), "");
        assert_eq!(unified("", "a\nb\n"), "--- a\n+++ b\n@@ -0,0 +1,2 @@\n+a\n+b\n");
    }
}
