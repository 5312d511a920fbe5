//! Patches: what `talosctl machineconfig patch` does, on trees that know their types.

mod blame;
mod delete;
mod json6902;
mod merge;

use std::fmt;

use crate::config::{Config, DocumentId};
use crate::decode::{ConfigError, canonical, decode_all};
use crate::schema::{Schema, Type};
use crate::versions::Contract;
use crate::yaml::{self, Node};

pub use blame::{ConfigFault, faults};
use delete::Delete;
use json6902::Operation;

/// A patch that has been read. It may hold secrets: `Debug` shows its shape only.
#[derive(Clone)]
pub struct Patch {
    name: String,
    contract: Contract,
    content: Content,
}

#[derive(Clone)]
enum Content {
    /// In file order: the deletions of a document stand before the document itself.
    Strategic(Vec<Part>),
    Json(Vec<Operation>),
}

#[derive(Clone)]
enum Part {
    Delete(Delete),
    Merge(crate::config::Document),
}

/// Why a patch could not be read or applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{problem}", Place { patch, line: *line })]
pub struct PatchError {
    /// The name under which the patch was given, usually a path.
    pub patch: String,
    /// The line in the patch, where it is known.
    pub line: Option<usize>,
    #[source]
    pub problem: PatchProblem,
}

struct Place<'a> {
    patch: &'a str,
    line: Option<usize>,
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}:{line}: ", self.patch),
            None => write!(f, "{}: ", self.patch),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PatchProblem {
    #[error(transparent)]
    Config(Box<ConfigError>),
    #[error("error processing patch delete statements at line {line}: {problem}")]
    DeleteStatement { line: usize, problem: String },
    #[error("{0}")]
    Delete(String),
    #[error("{path}: merge type mismatch left {left} right {right}")]
    Merge {
        path: String,
        left: &'static str,
        right: &'static str,
    },
    #[error("JSON6902 patches are not supported for multi-document machine configuration")]
    JsonOnSeveralDocuments,
    #[error("{0}")]
    Json(String),
}

impl From<ConfigError> for PatchProblem {
    fn from(error: ConfigError) -> Self {
        Self::Config(Box::new(error))
    }
}

impl PatchProblem {
    fn line(&self) -> Option<usize> {
        match self {
            Self::Config(error) => error.line(),
            Self::DeleteStatement { line, .. } => Some(*line),
            Self::Delete(_) | Self::Merge { .. } | Self::JsonOnSeveralDocuments | Self::Json(_) => None,
        }
    }
}

impl Patch {
    /// Reads either form: documents to merge, or a list of RFC 6902 operations. `name` is for errors.
    pub fn parse(name: &str, text: &str, contract: Contract) -> Result<Self, PatchError> {
        let fail = |problem: PatchProblem| PatchError {
            patch: name.to_owned(),
            line: problem.line(),
            problem,
        };
        let documents = yaml::parse_documents(text).map_err(|error| fail(ConfigError::from(error).into()))?;
        let roots: Vec<Node> = documents.into_iter().map(|document| document.root).collect();
        let content = match roots.as_slice() {
            [only] if only.as_list().is_some() => json6902::parse(only).map(Content::Json),
            _ => strategic(roots, Schema::of(contract)).map(Content::Strategic),
        };
        Ok(Self {
            name: name.to_owned(),
            contract,
            content: content.map_err(fail)?,
        })
    }

    fn apply(&self, config: &mut Config) -> Result<(), PatchError> {
        let schema = Schema::of(self.contract);
        match &self.content {
            Content::Json(operations) => {
                json6902::apply(config, operations, self.contract).map_err(|problem| self.error(None, problem))
            }
            Content::Strategic(parts) => parts.iter().try_for_each(|part| self.apply_part(part, config, schema)),
        }
    }

    fn apply_part(&self, part: &Part, config: &mut Config, schema: Schema) -> Result<(), PatchError> {
        match part {
            Part::Delete(delete) => delete
                .apply(config, schema)
                .map_err(|problem| self.error(Some(delete.line), problem)),
            Part::Merge(document) => {
                let Some(existing) = config.documents.iter_mut().find(|left| same_document(&left.id, &document.id)) else {
                    config.documents.push(document.clone());
                    return Ok(());
                };
                merge::documents(existing, document, schema).map_err(|(line, problem)| self.error(line, problem))
            }
        }
    }

    fn error(&self, line: Option<usize>, problem: PatchProblem) -> PatchError {
        PatchError {
            patch: self.name.clone(),
            line,
            problem,
        }
    }
}

/// The old document is one and the same whether its version is spelled out or not.
fn same_document(left: &DocumentId, right: &DocumentId) -> bool {
    (left.is_legacy() && right.is_legacy()) || left == right
}

fn strategic(roots: Vec<Node>, schema: Schema) -> Result<Vec<Part>, PatchProblem> {
    let mut deletions = Vec::new();
    let mut remaining = Vec::new();
    for (index, mut root) in roots.into_iter().enumerate().filter(|(_, root)| !root.is_null()) {
        let line = root.line;
        let (found, left_over) = delete::take(&mut root).map_err(|problem| PatchProblem::DeleteStatement { line, problem })?;
        deletions.extend(found.into_iter().map(|delete| (index, delete)));
        if left_over {
            remaining.push((index, root));
        }
    }
    let indexes: Vec<usize> = remaining.iter().map(|(index, _)| *index).collect();
    let documents = decode_all(remaining.into_iter().map(|(_, root)| root), schema)?;
    let merges = indexes
        .into_iter()
        .zip(documents)
        .map(|(index, document)| (index, Part::Merge(document)));
    let mut parts: Vec<(usize, Part)> = deletions
        .into_iter()
        .map(|(index, delete)| (index, Part::Delete(delete)))
        .collect();
    parts.extend(merges);
    // Stable: the deletions of a document were put first.
    parts.sort_by_key(|(index, _)| *index);
    if parts.is_empty() {
        return Err(ConfigError::Empty.into());
    }
    Ok(parts.into_iter().map(|(_, part)| part).collect())
}

impl Config {
    /// Applies patches in the order given: the cluster's, then the pool's, then the machine's.
    pub fn patched<'a>(&self, patches: impl IntoIterator<Item = &'a Patch>, contract: Contract) -> Result<Self, PatchError> {
        let mut config = self.clone();
        let mut is_canonical = false;
        for patch in patches {
            patch.apply(&mut config)?;
            // Operations on text leave the text as it is.
            is_canonical = matches!(patch.content, Content::Json(_));
        }
        if !is_canonical {
            config.make_canonical(contract);
        }
        Ok(config)
    }

    /// As Talos writes it.
    pub(crate) fn make_canonical(&mut self, contract: Contract) {
        let schema = Schema::of(contract);
        for document in &mut self.documents {
            let name = if document.id.is_legacy() {
                Some(schema.legacy())
            } else {
                schema.kind(&document.id.kind)
            };
            if let Some(name) = name {
                document.body = canonical(&document.body, &Type::Struct(name), schema);
            }
        }
    }
}

impl fmt::Debug for Patch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (form, parts) = match &self.content {
            Content::Strategic(parts) => ("strategic", parts.len()),
            Content::Json(operations) => ("json6902", operations.len()),
        };
        f.debug_struct("Patch")
            .field("name", &self.name)
            .field("form", &form)
            .field("parts", &parts)
            .finish()
    }
}
