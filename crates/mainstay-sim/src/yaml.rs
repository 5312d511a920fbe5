//! YAML in and out, in the shape that Talos and the Image Factory write it: four spaces, dashes indented under their key.

use serde_json::Value;

/// One document of a stream, and the line its content begins on.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub line: usize,
    pub value: Value,
}

/// Splits a stream at its `---` lines; `(first line, text)`, 1-based. Empty documents vanish.
pub(crate) fn split(text: &str) -> Vec<(usize, String)> {
    let mut documents = Vec::new();
    let mut start = 1;
    let mut lines: Vec<&str> = Vec::new();
    let mut close = |start: usize, lines: &mut Vec<&str>| {
        let blank = |line: &&str| line.trim().is_empty() || line.trim_start().starts_with('#');
        let skipped = lines.iter().take_while(|line| blank(line)).count();
        if skipped < lines.len() {
            documents.push((start + skipped, lines.join("\n") + "\n"));
        }
        lines.clear();
    };
    for (index, line) in text.lines().enumerate() {
        if line == "---" || line.starts_with("--- ") {
            close(start, &mut lines);
            start = index + 2;
        } else {
            lines.push(line);
        }
    }
    close(start, &mut lines);
    documents
}

pub(crate) fn parse(text: &str) -> Result<Value, serde_saphyr::Error> {
    serde_saphyr::from_str(text)
}

/// The value as a block document with a trailing newline.
pub(crate) fn emit(value: &Value) -> String {
    let mut out = String::new();
    match value {
        Value::Object(map) if !map.is_empty() => emit_map(map, 0, &mut out),
        Value::Array(items) if !items.is_empty() => emit_list(items, 0, &mut out),
        other => {
            out.push_str(&flow(other, 4));
            out.push('\n');
        }
    }
    out
}

fn emit_map(map: &serde_json::Map<String, Value>, indent: usize, out: &mut String) {
    for (index, (key, value)) in map.iter().enumerate() {
        if index > 0 || !out.ends_with("- ") {
            out.extend(std::iter::repeat_n(' ', indent));
        }
        out.push_str(&scalar(key));
        out.push(':');
        emit_after_key(value, indent, out);
    }
}

fn emit_after_key(value: &Value, indent: usize, out: &mut String) {
    match value {
        Value::Object(map) if !map.is_empty() => {
            out.push('\n');
            emit_map(map, deeper(indent), out);
        }
        Value::Array(items) if !items.is_empty() => {
            out.push('\n');
            emit_list(items, deeper(indent), out);
        }
        other => {
            out.push(' ');
            out.push_str(&flow(other, deeper(indent)));
            out.push('\n');
        }
    }
}

/// Columns are multiples of four, also below a mapping that begins behind a dash.
fn deeper(indent: usize) -> usize {
    indent / 4 * 4 + 4
}

fn emit_list(items: &[Value], indent: usize, out: &mut String) {
    for item in items {
        out.extend(std::iter::repeat_n(' ', indent));
        out.push_str("- ");
        match item {
            Value::Object(map) if !map.is_empty() => emit_map(map, indent + 2, out),
            other => {
                out.push_str(&flow(other, indent + 4));
                out.push('\n');
            }
        }
    }
}

fn flow(value: &Value, indent: usize) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Object(_) => "{}".to_owned(),
        Value::Array(items) if items.is_empty() => "[]".to_owned(),
        Value::Array(items) => {
            let items: Vec<String> = items.iter().map(|item| flow(item, indent)).collect();
            format!("[{}]", items.join(", "))
        }
        Value::String(text) if text.contains('\n') => literal(text, indent),
        Value::String(text) => scalar(text),
        other => other.to_string(),
    }
}

fn literal(text: &str, indent: usize) -> String {
    let chomp = match (text.ends_with("\n\n"), text.ends_with('\n')) {
        (true, _) => "+",
        (false, true) => "",
        (false, false) => "-",
    };
    let mut out = format!("|{chomp}");
    for line in text.strip_suffix('\n').unwrap_or(text).split('\n') {
        out.push('\n');
        if !line.is_empty() {
            out.extend(std::iter::repeat_n(' ', indent));
            out.push_str(line);
        }
    }
    out
}

/// A string in the plainest style that still reads back as the same string.
fn scalar(text: &str) -> String {
    if text.is_empty() || reads_as_another_type(text) || is_base_60(text) {
        return format!("{}", Value::String(text.to_owned()));
    }
    if reads_as_an_old_type(text) || needs_quotes(text) {
        return format!("'{}'", text.replace('\'', "''"));
    }
    text.to_owned()
}

fn reads_as_another_type(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let number = text.trim_start_matches(['+', '-']);
    matches!(lower.as_str(), "true" | "false" | "null" | "~" | ".inf" | ".nan")
        || (number.starts_with(|c: char| c.is_ascii_digit() || c == '.') && text.replace('_', "").parse::<f64>().is_ok())
        || number
            .strip_prefix("0x")
            .is_some_and(|hex| !hex.is_empty() && hex.chars().all(|c| c.is_ascii_hexdigit()))
        || number
            .strip_prefix("0o")
            .is_some_and(|octal| !octal.is_empty() && octal.chars().all(|c| c.is_digit(8)))
        || is_date(text)
}

fn is_date(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() >= 10
        && bytes.iter().take(10).enumerate().all(|(at, byte)| {
            if at == 4 || at == 7 {
                *byte == b'-'
            } else {
                byte.is_ascii_digit()
            }
        })
        && (bytes.len() == 10 || matches!(bytes[10], b'T' | b't' | b' '))
}

/// Words that YAML 1.1 took for booleans, or a merge.
fn reads_as_an_old_type(text: &str) -> bool {
    matches!(
        text.to_ascii_lowercase().as_str(),
        "y" | "n" | "yes" | "no" | "on" | "off" | "<<"
    )
}

/// `1:30` was a number in YAML 1.1, and so is the hardware address of a loopback link.
fn is_base_60(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let mut parts = text.split(':');
    let first = parts.next().is_some_and(digits);
    let rest: Vec<&str> = parts.collect();
    first
        && !rest.is_empty()
        && rest
            .iter()
            .all(|part| digits(part) && part.parse::<u32>().is_ok_and(|part| part < 60))
}

fn needs_quotes(text: &str) -> bool {
    let first = text.chars().next().unwrap_or(' ');
    let rest_is_plain = |text: &str| text.chars().nth(1).is_some_and(|c| c != ' ');
    let indicator = match first {
        '-' | '?' | ':' => !rest_is_plain(text),
        ',' | '[' | ']' | '{' | '}' | '#' | '&' | '*' | '!' | '|' | '>' | '\'' | '"' | '%' | '@' | '`' => true,
        _ => false,
    };
    indicator || text.starts_with(' ') || text.ends_with([' ', ':']) || text.contains(": ") || text.contains(" #")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn documents_know_the_line_they_begin_on() {
        let documents = split("version: v1alpha1\n---\n# a comment\napiVersion: v1alpha1\nkind: X\n---\n\n");
        let lines: Vec<usize> = documents.iter().map(|(line, _)| *line).collect();
        assert_eq!(lines, [1, 4]);
    }

    #[test]
    fn blocks_are_written_as_talos_writes_them() {
        let value = json!({"a": {"list": [{"name": "services", "reason": "etcd not running"}], "none": [], "map": {}}, "on": "off", "n": "1"});
        let expected = "a:\n    list:\n        - name: services\n          reason: etcd not running\n    none: []\n    map: {}\n'on': 'off'\n'n': \"1\"\n";
        assert_eq!(emit(&value), expected);
    }

    #[test]
    fn what_was_written_reads_back_as_the_same_value() {
        let value = json!({"text": "a\nb\n", "odd": ["- x", "@a", "a: b", "1:30", "2024-01-01", "", " x"], "deep": {"list": [[1, 2], {"k": true}]}});
        assert_eq!(parse(&emit(&value)).expect("our own output parses"), value);
    }
}
