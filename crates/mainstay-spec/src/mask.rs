//! Hides what looks like a secret before a line of the file is shown.

/// Parts of keys whose values are never shown.
const SECRET: [&str; 9] = [
    "token",
    "password",
    "passwd",
    "passphrase",
    "secret",
    "auth",
    "private",
    "credential",
    "key",
];

/// Keys that only look secret.
const HARMLESS: [&str; 3] = ["keyboard", "author", "monkey"];

pub(crate) const STARS: &str = "***";

pub(crate) fn is_secret_key(key: &str) -> bool {
    let key = key.to_ascii_lowercase();
    SECRET.iter().any(|part| key.contains(part)) && !HARMLESS.iter().any(|part| key.contains(part))
}

/// The lines of a file as they may be shown.
pub(crate) fn masked_lines(text: &str) -> Vec<String> {
    let mut hidden_below = None;
    text.lines()
        .map(|line| {
            let indent = line.len() - line.trim_start().len();
            if let Some(above) = hidden_below {
                if line.trim().is_empty() || indent > above {
                    return format!("{}{STARS}", &line[..indent]);
                }
                hidden_below = None;
            }
            let (masked, open) = mask_line(line);
            hidden_below = open.then_some(indent);
            masked
        })
        .collect()
}

/// The masked line, and whether the secret goes on below it (a block of text, a quote or a bracket that is not closed).
fn mask_line(line: &str) -> (String, bool) {
    let mut out = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, value)) = next_secret(rest) {
        out.push_str(before);
        let (length, open) = value_extent(value);
        if length > 0 {
            out.push_str(STARS);
        }
        if open {
            return (out, true);
        }
        rest = &value[length..];
    }
    out.push_str(rest);
    (mask_words(&out), false)
}

/// Splits a line behind the colon of the first secret key.
fn next_secret(text: &str) -> Option<(&str, &str)> {
    let mut from = 0;
    while let Some(colon) = text[from..].find([':', '=']).map(|at| from + at) {
        let key = text[..colon].trim_end_matches([' ', '"', '\'']);
        let key = &key[key
            .rfind(|c: char| !(c.is_alphanumeric() || "-_.".contains(c)))
            .map_or(0, |at| at + char_len(key, at))..];
        let value = &text[colon + 1..];
        if is_secret_key(key) && !is_url(value) {
            let blanks = value.len() - value.trim_start().len();
            return Some(text.split_at(colon + 1 + blanks));
        }
        from = colon + 1;
    }
    None
}

fn char_len(text: &str, at: usize) -> usize {
    text[at..].chars().next().map_or(1, char::len_utf8)
}

/// The rest of `scheme://`.
fn is_url(value: &str) -> bool {
    value.starts_with("//")
}

/// How long the value at the beginning of `text` is, and whether it goes on in the next line.
fn value_extent(text: &str) -> (usize, bool) {
    let Some(first) = text.chars().next() else { return (0, true) };
    match first {
        '|' | '>' | '#' | '&' | '!' => (text.len(), true),
        '"' | '\'' => text[1..].find(first).map_or((text.len(), true), |end| (end + 2, false)),
        '{' | '[' => closing(text).map_or((text.len(), true), |end| (end, false)),
        // A plain value may go on in deeper lines, so those are hidden as well.
        _ => {
            let end = text.find([',', '}', ']']).unwrap_or(text.len());
            (text[..end].trim_end().len(), end == text.len())
        }
    }
}

fn closing(text: &str) -> Option<usize> {
    let mut depth = 0usize;
    for (at, c) in text.char_indices() {
        match c {
            '{' | '[' => depth += 1,
            '}' | ']' => depth = depth.saturating_sub(1),
            _ => {}
        }
        if depth == 0 {
            return Some(at + c.len_utf8());
        }
    }
    None
}

/// Secrets that are known by their looks, whatever the key: credentials in a URL, PVE tokens, long-lived keys.
pub(crate) fn mask_words(text: &str) -> String {
    text.split_inclusive([' ', '\t', ',', '"', '\'']).map(mask_word).collect()
}

fn mask_word(word: &str) -> String {
    let body = word.trim_end_matches([' ', '\t', ',', '"', '\'']);
    let tail = &word[body.len()..];
    if let Some((scheme, rest)) = body.split_once("://")
        && let Some((_, host)) = rest.split('/').next().and_then(|authority| authority.rsplit_once('@'))
        && let Some(at) = rest.find(host)
    {
        return format!("{scheme}://{STARS}@{}{tail}", &rest[at..]);
    }
    let pve_token = body
        .split_once('!')
        .is_some_and(|(user, token)| user.contains('@') && token.contains('='));
    let known = ["AGE-SECRET-KEY-", "tskey-", "ghp_", "glpat-", "PVEAPIToken"]
        .iter()
        .any(|prefix| body.contains(prefix));
    if pve_token || known {
        format!("{STARS}{tail}")
    } else {
        word.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn masked(text: &str) -> String {
        masked_lines(text).join("\n")
    }

    #[test]
    fn values_of_secret_keys_are_hidden() {
        assert_eq!(masked("token: abc"), "token: ***");
        assert_eq!(masked("  api-token: \"a b\" # no"), "  api-token: *** # no");
        assert_eq!(
            masked("x: { password: p1, cpu: 4, authKey: 'k' }"),
            "x: { password: ***, cpu: 4, authKey: *** }"
        );
        assert_eq!(masked("\"password\": p"), "\"password\": ***");
        assert_eq!(masked("- TS_AUTHKEY=abc"), "- TS_AUTHKEY=***");
        assert_eq!(masked("cpu: 4"), "cpu: 4");
    }

    #[test]
    fn a_secret_over_several_lines_is_hidden_whole() {
        assert_eq!(
            masked("key: |\n  one\n\n  two\ncpu: 4"),
            "key: ***\n  ***\n***\n  ***\ncpu: 4"
        );
        assert_eq!(masked("a:\n  token:\n    deep\n  cpu: 4"), "a:\n  token:\n    ***\n  cpu: 4");
        assert_eq!(masked("auth: { user: a,\n  word: b }\nx: 1"), "auth: ***\n  ***\nx: 1");
    }

    #[test]
    fn secrets_are_known_by_their_looks() {
        assert_eq!(
            masked("endpoint: https://root:pw@pve.lan:8006/x"),
            "endpoint: https://***@pve.lan:8006/x"
        );
        assert_eq!(masked("x: root@pam!ci=0000-1111 # y"), "x: *** # y");
        assert_eq!(masked("x: [AGE-SECRET-KEY-1ABC, a]"), "x: ***, a]");
        assert_eq!(masked("endpoint: https://pve.lan:8006"), "endpoint: https://pve.lan:8006");
    }
}
