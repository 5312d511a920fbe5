//! Words that hide who acts. A message or comment says which run, person or machine it means.

use crate::source::{Class, tokens};

/// Written in two halves so that this file does not break its own rule.
const WORDS: &[&str] = &[
    concat!("who", "ever"),
    concat!("no", "body"),
    concat!("some", "body"),
    concat!("any", "body"),
];

/// An entry of /etc/passwd: the name of an account, not of an actor.
const ACCOUNT: &str = concat!("no", "body:");

/// The places of such words in a file: in names, string literals and comments of Rust, anywhere in pages and settings.
pub fn vague(path: &str, text: &str) -> Vec<String> {
    let found: Vec<(usize, &str)> = if path.ends_with(".rs") {
        let read = tokens(text);
        let words = read.iter().filter(|token| token.class != Class::Other);
        words.filter_map(|token| Some((token.line, word_in(token.text)?))).collect()
    } else if is_read_whole(path) {
        let lines = text.lines().enumerate();
        lines.filter_map(|(at, line)| Some((at + 1, word_in(line)?))).collect()
    } else {
        return Vec::new();
    };
    let told = |(line, word): &(usize, &str)| format!("{path}:{line}: \"{word}\" hides who is meant");
    found.iter().map(told).collect()
}

/// Pages, the files of `docs/` in any format, and settings of the workspace. Recorded answers of other programs are theirs.
fn is_read_whole(path: &str) -> bool {
    path.ends_with(".md") || path.ends_with(".toml") || path.starts_with("docs/") || path.starts_with("examples/")
}

/// The first such word in a text. `_` separates words of a name.
fn word_in(text: &str) -> Option<&'static str> {
    let lower = text.to_lowercase().replace(ACCOUNT, "");
    let parts = lower.split(|letter: char| !letter.is_alphanumeric());
    let singular = |part: &str| {
        WORDS
            .iter()
            .copied()
            .find(|word| part == *word || part.strip_suffix('s') == Some(word))
    };
    parts.filter_map(singular).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vague_word_is_found_in_names_strings_comments_and_pages() {
        let word = WORDS[1];
        let capital = word[..1].to_uppercase() + &word[1..];
        for text in [
            format!("/// {capital} knows."),
            format!("let a = \"ask {word}, then\";"),
            format!("fn {word}_waits() {{}}"),
            format!("fn it_is_{word}s_business() {{}}"),
        ] {
            assert_eq!(
                vague("crates/x/src/lib.rs", &text),
                [format!("crates/x/src/lib.rs:1: \"{word}\" hides who is meant")],
                "{text}"
            );
        }
        for page in ["docs/a.md", "docs/captures/up.txt", "clippy.toml"] {
            let told = vague(page, &format!("fine\n{word}'s"));
            assert_eq!(told, [format!("{page}:2: \"{word}\" hides who is meant")]);
        }
        assert!(vague("golden.txt", word).is_empty(), "the answer of another program");
        assert!(vague("crates/x/src/passwd.rs", &format!("const P: &str = \"{ACCOUNT}x:65534:\";")).is_empty());
        assert!(vague("crates/x/src/lib.rs", "fn has_no_body() {}").is_empty());
    }
}
