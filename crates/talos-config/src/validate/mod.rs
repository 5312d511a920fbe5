//! Validation as a node does it, with the same words, so that a plan says no before a node does.

mod cluster;
mod conflicts;
mod device;
mod documents;
mod labels;
mod machine;
mod whole;

use std::fmt;

use semver::Version;

use crate::config::Config;
use crate::versions::Contract;
use crate::yaml::Node;

/// What the config is for. Machines that boot a nocloud image are `Cloud`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Cloud,
    Metal,
    Container,
}

impl Mode {
    fn as_str(self) -> &'static str {
        match self {
            Self::Cloud => "cloud",
            Self::Metal => "metal",
            Self::Container => "container",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    pub mode: Mode,
    /// Warnings of the v1alpha1 document count as errors.
    pub strict: bool,
    /// Also check what only a node checks: that it runs the Kubernetes version of the images.
    pub as_node: bool,
}

impl Options {
    /// What `apply` on a nocloud machine will say.
    pub const NODE: Self = Self {
        mode: Mode::Cloud,
        strict: false,
        as_node: true,
    };

    /// What `talosctl validate` says.
    pub fn talosctl(mode: Mode) -> Self {
        Self {
            mode,
            strict: false,
            as_node: false,
        }
    }
}

/// What was found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdict {
    pub warnings: Vec<String>,
    /// Errors of the v1alpha1 document.
    pub legacy: Vec<String>,
    /// All other errors, each with the document it belongs to.
    pub others: Vec<String>,
}

impl Verdict {
    pub fn is_valid(&self) -> bool {
        self.legacy.is_empty() && self.others.is_empty()
    }
}

/// The error text of a node; nothing for a valid config.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let legacy = (!self.legacy.is_empty()).then(|| format!("v1alpha1.Config: {}", ErrorList(&self.legacy)));
        let all: Vec<String> = legacy.into_iter().chain(self.others.iter().cloned()).collect();
        if all.is_empty() { Ok(()) } else { ErrorList(&all).fmt(f) }
    }
}

/// `2 errors occurred:` and a bullet for each.
pub(crate) struct ErrorList<'a>(pub &'a [String]);

impl fmt::Display for ErrorList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.len() {
            1 => f.write_str("1 error occurred:")?,
            count => write!(f, "{count} errors occurred:")?,
        }
        self.0.iter().try_for_each(|error| write!(f, "\n\t* {error}"))?;
        f.write_str("\n\n")
    }
}

/// Judges a config as a node of this version would.
pub fn validate(config: &Config, talos: &Version, options: Options) -> Verdict {
    let mut verdict = Verdict::default();
    let contract = Contract::of(talos);
    if let Some(legacy) = config.legacy() {
        machine::check(legacy, talos, options, &mut verdict);
        if options.strict {
            let warnings = std::mem::take(&mut verdict.warnings);
            verdict
                .legacy
                .extend(warnings.into_iter().map(|warning| format!("warning: {warning}")));
        }
    }
    documents::check(config, talos, &mut verdict);
    if let Some(legacy) = config.legacy() {
        conflicts::check(config, legacy, contract, &mut verdict.others);
    }
    if contract >= Contract::new(1, 14) {
        whole::check(config, options.mode, &mut verdict);
    }
    verdict
}

/// Scalars and lists of a tree, absent ones as empty.
trait Look {
    fn text(&self, path: &str) -> &str;
    fn flag(&self, path: &str) -> Option<bool>;
    fn number(&self, path: &str) -> i128;
    fn items(&self, path: &str) -> &[Node];
    fn texts(&self, path: &str) -> Vec<&str>;
    fn has(&self, path: &str) -> bool;
}

impl Look for Node {
    fn text(&self, path: &str) -> &str {
        self.at_path(path).and_then(Node::as_str).unwrap_or_default()
    }

    fn flag(&self, path: &str) -> Option<bool> {
        self.at_path(path).and_then(Node::as_bool)
    }

    fn number(&self, path: &str) -> i128 {
        self.at_path(path).and_then(Node::as_int).unwrap_or_default()
    }

    fn items(&self, path: &str) -> &[Node] {
        self.at_path(path).and_then(Node::as_list).unwrap_or_default()
    }

    fn texts(&self, path: &str) -> Vec<&str> {
        self.items(path).iter().filter_map(Node::as_str).collect()
    }

    fn has(&self, path: &str) -> bool {
        self.at_path(path).is_some()
    }
}
