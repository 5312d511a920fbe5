//! A machine config: YAML documents, of which one may be the old v1alpha1 document.

use std::fmt;

use zeroize::Zeroizing;

use crate::yaml::{self, Node};

/// The kind under which the document without a kind is known.
pub(crate) const LEGACY_KIND: &str = "v1alpha1";

/// One document of a machine config.
#[derive(Clone, PartialEq)]
pub struct Document {
    pub(crate) id: DocumentId,
    pub(crate) body: Node,
}

/// What tells documents of one config apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DocumentId {
    pub api_version: String,
    pub kind: String,
    pub name: String,
}

impl DocumentId {
    pub(crate) fn of(body: &Node) -> Self {
        let read = |key| body.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
        let kind = read("kind");
        Self {
            api_version: read("apiVersion"),
            kind: if kind.is_empty() { LEGACY_KIND.to_owned() } else { kind },
            name: read("name"),
        }
    }

    pub(crate) fn is_legacy(&self) -> bool {
        self.kind == LEGACY_KIND
    }
}

/// `v1alpha1/LinkConfig/net0`, and `/v1alpha1/` for the old document.
impl fmt::Display for DocumentId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.api_version, self.kind, self.name)
    }
}

/// A machine config. It holds secrets: `Debug` shows its documents' names only.
#[derive(Clone, PartialEq)]
pub struct Config {
    pub(crate) documents: Vec<Document>,
}

impl Config {
    pub(crate) fn from_bodies(bodies: impl IntoIterator<Item = Node>) -> Self {
        let documents = bodies
            .into_iter()
            .map(|body| Document {
                id: DocumentId::of(&body),
                body,
            })
            .collect();
        Self { documents }
    }

    /// The text for a node or a file: same config, same bytes.
    pub fn to_yaml(&self) -> Zeroizing<String> {
        Zeroizing::new(yaml::emit_documents(self.documents.iter().map(|document| &document.body)))
    }

    /// For people to read: every secret is `***`.
    pub fn to_masked_yaml(&self) -> String {
        let bodies: Vec<Node> = self
            .documents
            .iter()
            .map(|document| crate::secret_paths::masked(&document.body))
            .collect();
        yaml::emit_documents(bodies.iter())
    }

    pub fn ids(&self) -> impl Iterator<Item = &DocumentId> {
        self.documents.iter().map(|document| &document.id)
    }

    /// A scalar of the v1alpha1 document, such as `machine.install.image`.
    pub fn text_at(&self, path: &str) -> Option<&str> {
        self.legacy().and_then(|body| body.at_path(path)).and_then(Node::as_str)
    }

    pub(crate) fn legacy(&self) -> Option<&Node> {
        self.documents
            .iter()
            .find(|document| document.id.is_legacy())
            .map(|document| &document.body)
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ids().map(ToString::to_string)).finish()
    }
}

impl fmt::Debug for Document {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Document({})", self.id)
    }
}
