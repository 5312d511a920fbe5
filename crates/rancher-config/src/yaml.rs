//! Writing YAML: block style, every text quoted as JSON quotes it, so that no text is ever read as another type.

use serde_json::Value;

/// One document, without a leading `---`.
pub fn document(value: &Value) -> String {
    let mut out = String::new();
    block(value, 0, &mut out);
    out
}

/// Several documents, each after `---`.
pub(crate) fn documents<'a>(values: impl IntoIterator<Item = &'a Value>) -> String {
    values.into_iter().map(|value| format!("---\n{}", document(value))).collect()
}

/// Writes `value` as lines indented by `depth`.
fn block(value: &Value, depth: usize, out: &mut String) {
    let pad = "  ".repeat(depth);
    match value {
        Value::Object(map) if !map.is_empty() => {
            for (key, item) in map {
                out.push_str(&pad);
                out.push_str(&plain_or_quoted(key));
                out.push(':');
                after_key(item, depth, out);
            }
        }
        Value::Array(list) if !list.is_empty() => {
            for item in list {
                out.push_str(&pad);
                out.push('-');
                after_dash(item, depth, out);
            }
        }
        scalar => {
            out.push_str(&pad);
            out.push_str(&inline(scalar));
            out.push('\n');
        }
    }
}

fn after_key(value: &Value, depth: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            block(value, depth + 1, out);
        }
        Value::Array(list) if !list.is_empty() => {
            out.push('\n');
            block(value, depth + 1, out);
        }
        Value::String(text) if is_literal(text) => {
            out.push_str(" |\n");
            for line in text.lines() {
                if !line.is_empty() {
                    out.push_str(&"  ".repeat(depth + 1));
                    out.push_str(line);
                }
                out.push('\n');
            }
        }
        scalar => {
            out.push(' ');
            out.push_str(&inline(scalar));
            out.push('\n');
        }
    }
}

/// The first line of a nested block continues the line of the dash.
fn after_dash(value: &Value, depth: usize, out: &mut String) {
    let mut nested = String::new();
    block(value, depth + 1, &mut nested);
    out.push(' ');
    out.push_str(nested.trim_start());
}

fn inline(value: &Value) -> String {
    match value {
        Value::Object(_) => "{}".to_owned(),
        Value::Array(_) => "[]".to_owned(),
        scalar => scalar.to_string(),
    }
}

/// Keys are quoted unless they can be nothing but a text.
fn plain_or_quoted(key: &str) -> String {
    let first_is_letter = key.starts_with(|letter: char| letter.is_ascii_alphabetic());
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
    let ambiguous = ["true", "false", "null", "yes", "no", "on", "off", "y", "n"];
    let is_plain = first_is_letter && key.chars().all(is_word) && !ambiguous.contains(&key.to_ascii_lowercase().as_str());
    if is_plain {
        key.to_owned()
    } else {
        Value::String(key.to_owned()).to_string()
    }
}

/// Texts of several lines that a block scalar keeps exactly as they are.
fn is_literal(text: &str) -> bool {
    let ends_once = text.ends_with('\n') && !text.ends_with("\n\n");
    let first_line_is_flush = text.starts_with(|letter: char| letter.is_ascii_graphic());
    let is_printable = |letter: char| letter == '\n' || (' '..='~').contains(&letter);
    ends_once && text.lines().count() > 1 && first_line_is_flush && text.chars().all(is_printable)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_that_look_like_other_types_stay_texts() {
        let value = json!({"write-kubeconfig-mode": "0600", "a": "on", "on": "1e3", "empty": {}, "list": [], "n": null, "i": 3});
        let text = document(&value);
        assert!(text.contains("write-kubeconfig-mode: \"0600\""), "{text}");
        assert!(text.contains("\"on\": \"1e3\""), "{text}");
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(read, value);
    }

    #[test]
    fn nested_lists_and_texts_of_several_lines_are_read_back() {
        let value = json!({"a": [{"b": [1, 2], "c": {"d": "x\ny\n"}}, ["p", ["q"]], "plain"], "v": "k: 1\n\n  l: 2\n"});
        let text = document(&value);
        assert!(text.contains("v: |\n  k: 1\n\n    l: 2\n"), "{text}");
        let read: Value = serde_saphyr::from_str(&text).expect("YAML");
        assert_eq!(read, value);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[ -~\n]{0,20}".prop_map(Value::from),
            "[a-z: #'\"-]{0,8}\n[a-z]{0,5}\n".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-zA-Z0-9./: -]{1,8}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn every_value_is_read_back_as_it_was(value in any_value()) {
            let text = document(&value);
            let read: Value = serde_saphyr::from_str(&text).map_err(|error| TestCaseError::fail(format!("{error}\n{text}")))?;
            prop_assert_eq!(read, value, "{}", text);
        }
    }
}
