//! Files that cluster.yaml names: they exist and can be used.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::diagnostic::{Diagnostic, quote};
use crate::draft::Draft;
use crate::keys::datacenter::CA;
use crate::source::Spanned;
use crate::spec::Distro;
use crate::tree::{self, YamlKind, YamlNode};

/// Reads every named file once.
pub(crate) fn read(
    draft: &Draft<'_>,
    files: &dyn Fn(&str) -> Option<Vec<u8>>,
    faults: &mut Vec<Diagnostic>,
) -> BTreeMap<String, Arc<str>> {
    let mut texts = BTreeMap::new();
    if let Some(ca) = draft.datacenter.spanned(&CA)
        && let Some(text) = text_of(&ca, files, faults)
    {
        if !text.contains("-----BEGIN CERTIFICATE-----") {
            faults.push(not_a_ca(&ca));
        }
        texts.insert(ca.value, text);
    }
    for patch in draft.patches() {
        // Each place that names a broken file is told so, but the file is looked at once.
        if !texts.contains_key(&patch.value)
            && let Some(text) = text_of(&patch, files, faults)
        {
            if draft.distro() == Distro::Talos {
                faults.extend(patch_fault(&patch, &text));
            }
            texts.insert(patch.value, text);
        }
    }
    texts
}

fn text_of(path: &Spanned<String>, files: &dyn Fn(&str) -> Option<Vec<u8>>, faults: &mut Vec<Diagnostic>) -> Option<Arc<str>> {
    let Some(bytes) = files(&path.value) else {
        faults.push(
            Diagnostic::error("file-missing", path.span, format!("{} cannot be read", quote(&path.value)))
                .label("no such file, or not readable")
                .why("paths are relative to the directory of this file.")
                .help("correct the path, or create the file."),
        );
        return None;
    };
    match String::from_utf8(bytes) {
        Ok(text) => Some(text.into()),
        Err(_) => {
            faults.push(
                Diagnostic::error(
                    "file-encoding",
                    path.span,
                    format!("{} is not UTF-8 text", quote(&path.value)),
                )
                .label("not text")
                .why("certificates and patches are text files.")
                .help("name another file, or save this one as UTF-8."),
            );
            None
        }
    }
}

fn not_a_ca(ca: &Spanned<String>) -> Diagnostic {
    Diagnostic::error("ca", ca.span, format!("{} holds no certificate", quote(&ca.value)))
        .label("not PEM")
        .why("a CA file has one or more blocks that begin with -----BEGIN CERTIFICATE-----.")
        .help("on a PVE host the CA is /etc/pve/pve-root-ca.pem; copy it beside this file.")
}

/// A patch that no Talos config could be merged with. What it says inside is judged when configs are made.
fn patch_fault(patch: &Spanned<String>, text: &str) -> Option<Diagnostic> {
    let path = quote(&patch.value);
    let documents = match tree::parse_all(text) {
        Ok(documents) => documents,
        Err(fault) => {
            let place = format!("{}:{}:{}", patch.value, fault.at.line, fault.at.column);
            return Some(
                Diagnostic::error(
                    "patch-syntax",
                    patch.span,
                    format!("patch {path} cannot be read: {}", fault.summary),
                )
                .label(format!("see {place}"))
                .why(fault.why)
                .help(format!("fix {place}: {}", fault.help)),
            );
        }
    };
    if documents.iter().all(|document| document.kind() == YamlKind::Nothing) {
        return Some(
            Diagnostic::warning("patch-empty", patch.span, format!("patch {path} changes nothing"))
                .label("empty")
                .why("the file holds no document.")
                .help("fill it, or take it out of the list."),
        );
    }
    documents.iter().find_map(|document| document_fault(patch, document))
}

fn document_fault(patch: &Spanned<String>, document: &YamlNode) -> Option<Diagnostic> {
    let path = quote(&patch.value);
    let line = document.span.line;
    match document.kind() {
        YamlKind::Nothing => None,
        YamlKind::List => Some(
            Diagnostic::error("patch-json", patch.span, format!("patch {path} is a JSON patch"))
                .label("a list of operations")
                .why("JSON patches work on one document, and a Talos config has several since 1.12: Talos itself refuses them.")
                .help("write it as a strategic merge: only the keys to change, nested as in the config."),
        ),
        YamlKind::Map if is_talos_document(document) => None,
        _ => Some(
            Diagnostic::error(
                "patch-shape",
                patch.span,
                format!("patch {path} is not a part of a Talos config"),
            )
            .label(format!("see {}:{line}", patch.value))
            .why("a patch has `machine` or `cluster` at its left margin, or is a document with `apiVersion` and `kind`.")
            .help("indent its keys below `machine:` or `cluster:`."),
        ),
    }
}

fn is_talos_document(document: &YamlNode) -> bool {
    let has = |key: &str| document.entry(key).is_some();
    let classic = ["machine", "cluster", "version", "debug", "persist"];
    (has("apiVersion") && has("kind"))
        || (has("machine") || has("cluster")) && document.entries().iter().all(|entry| classic.contains(&entry.key.as_str()))
}
