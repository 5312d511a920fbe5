//! From bytes to documents.

use serde_json::Value;

use super::schema::{self, V1ALPHA1};
use super::types;
use crate::yaml::{self, Document};

/// A machine config that decoded: the text as it was sent, and its documents.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub text: String,
    pub documents: Vec<Document>,
}

/// A refusal in the node's own words.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct DecodeError(pub String);

impl Config {
    pub fn decode(data: &[u8], minor: u64) -> Result<Self, DecodeError> {
        let text = std::str::from_utf8(data).map_err(|_| DecodeError("yaml: invalid leading UTF-8 octet".to_owned()))?;
        let mut documents = Vec::new();
        for (line, part) in yaml::split(text) {
            let value = yaml::parse(&part).map_err(|error| DecodeError(yaml_error(&part, &error.to_string())))?;
            match value {
                Value::Null => {}
                Value::Object(_) => documents.push(Document { line, value }),
                _ => return Err(DecodeError(format!("expected a YAML document at line {line}"))),
            }
        }
        if documents.is_empty() {
            return Err(DecodeError("config not found".to_owned()));
        }
        let config = Self {
            text: text.to_owned(),
            documents,
        };
        config.check_kinds(minor)?;
        config.check_duplicates()?;
        Ok(config)
    }

    fn check_kinds(&self, minor: u64) -> Result<(), DecodeError> {
        let kinds = schema::kinds(minor);
        for document in &self.documents {
            let (api_version, kind, name) = names(&document.value);
            let at = format!("error decoding document {} (line {})", place(&document.value), document.line);
            let classic = is_v1alpha1(&document.value);
            if !classic && kind.is_empty() && !api_version.is_empty() {
                // Without a kind it is read as the classic document, which has none of these keys.
                let text = yaml::emit(&document.value);
                return Err(DecodeError(format!(
                    "error decoding document {api_version}/v1alpha1/ (line {}): unknown keys found during decoding:\n{text}",
                    document.line
                )));
            }
            if !classic && kind.is_empty() {
                return Err(DecodeError(format!("{at}: missing kind")));
            }
            if !classic && api_version.is_empty() {
                return Err(DecodeError(format!("{at}: missing apiVersion")));
            }
            let known = if classic { V1ALPHA1 } else { kind.as_str() };
            let Some(keys) = kinds.get(known) else {
                return Err(DecodeError(format!(
                    "error decoding document {api_version}/{kind}/{name} (line {}): \"{kind}\" \"{api_version}\": not registered",
                    document.line
                )));
            };
            if let Some(wrong) = types::first_fault(&document.value) {
                let line = self.line_of(document.line, &wrong.text);
                let into = wrong.into;
                return Err(DecodeError(format!(
                    "{at}: error decoding {kind} to *{into}: yaml: construct errors:\n  line {line}: {}",
                    wrong.why
                )));
            }
            if let Some(unknown) = keys.unknown(&document.value) {
                return Err(DecodeError(format!(
                    "{at}: unknown keys found during decoding:\n{}",
                    yaml::emit(&unknown)
                )));
            }
        }
        Ok(())
    }

    /// The first line from a document's start on that has this text.
    fn line_of(&self, from: usize, text: &str) -> usize {
        let lines = self.text.lines().enumerate().skip(from.saturating_sub(1));
        lines
            .into_iter()
            .find(|(_, line)| line.contains(text))
            .map_or(from, |(index, _)| index + 1)
    }

    fn check_duplicates(&self) -> Result<(), DecodeError> {
        let mut seen = std::collections::BTreeSet::new();
        for document in &self.documents {
            let place = place(&document.value);
            if !seen.insert(place.clone()) {
                return Err(DecodeError(format!(
                    "duplicate document {place} is not allowed (line {})",
                    document.line
                )));
            }
        }
        Ok(())
    }

    pub fn v1alpha1(&self) -> Option<&Value> {
        self.documents
            .iter()
            .map(|document| &document.value)
            .find(|value| is_v1alpha1(value))
    }

    /// Without it a config is incomplete, and the node stays in maintenance mode.
    pub fn is_complete(&self) -> bool {
        self.v1alpha1().is_some()
    }

    /// Documents of a kind, in order.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.documents
            .iter()
            .map(|document| &document.value)
            .filter(move |value| value["kind"] == kind)
    }
}

fn is_v1alpha1(value: &Value) -> bool {
    value["kind"].is_null()
        && ["machine", "cluster", "debug", "persist", "version"]
            .iter()
            .any(|key| !value[key].is_null())
}

fn names(value: &Value) -> (String, String, String) {
    let text = |key: &str| value[key].as_str().unwrap_or_default().to_owned();
    (text("apiVersion"), text("kind"), text("name"))
}

/// How errors name a document; the classic one has neither apiVersion nor name.
fn place(value: &Value) -> String {
    if is_v1alpha1(value) {
        return "/v1alpha1/".to_owned();
    }
    let (api_version, kind, name) = names(value);
    format!("{api_version}/{kind}/{name}")
}

/// The words that Go's YAML reader uses for the two mistakes people make; any other keeps the words of ours.
fn yaml_error(text: &str, ours: &str) -> String {
    let open = |a: char, b: char| text.matches(a).count() > text.matches(b).count();
    let what = if open('[', ']') && text.contains(": [") && !text.trim_end().ends_with('[') {
        "while parsing a flow sequence at <unknown position>: line 1: did not find expected ',' or ']'".to_owned()
    } else if open('[', ']') || open('{', '}') {
        "while parsing a flow node at line 1: did not find expected node content".to_owned()
    } else {
        ours.lines().next().unwrap_or_default().to_owned()
    };
    format!("decode error: yaml: {what}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str) -> String {
        Config::decode(text.as_bytes(), 13).expect_err("refused").0
    }

    /// The texts are those a real node of 1.13.9 answered.
    #[test]
    fn broken_configs_are_refused_in_the_words_of_a_node() {
        assert_eq!(refusal(""), "config not found");
        assert_eq!(refusal("garbage"), "expected a YAML document at line 1");
        assert_eq!(
            refusal("a: [b"),
            "decode error: yaml: while parsing a flow sequence at <unknown position>: line 1: did not find expected ',' or ']'"
        );
        let unknown = "version: v1alpha1\nmachine:\n    nope: 1\n";
        assert_eq!(
            refusal(unknown),
            "error decoding document /v1alpha1/ (line 1): unknown keys found during decoding:\nmachine:\n    nope: 1\n"
        );
        let kind = "version: v1alpha1\nmachine: {}\n---\napiVersion: v1alpha1\nkind: NopeConfig\n";
        assert_eq!(
            refusal(kind),
            "error decoding document v1alpha1/NopeConfig/ (line 4): \"NopeConfig\" \"v1alpha1\": not registered"
        );
        let twice =
            "apiVersion: v1alpha1\nkind: LinkConfig\nname: net0\n---\napiVersion: v1alpha1\nkind: LinkConfig\nname: net0\n";
        assert_eq!(
            refusal(twice),
            "duplicate document v1alpha1/LinkConfig/net0 is not allowed (line 5)"
        );
    }
}
