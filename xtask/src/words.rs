//! Words that hide who acts. A message or comment says which run, person or machine it means.

use std::collections::BTreeMap;

use crate::exceptions;
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

/// Files that still use such a word.
const STILL_VAGUE: &[&str] = &[];

/// Collects the places of such words, file by file.
#[derive(Default)]
pub struct VagueWords {
    hits: BTreeMap<String, Vec<String>>,
}

impl VagueWords {
    /// Reads Rust files (names, string literals and comments) and pages.
    pub fn read(&mut self, path: &str, text: &str) {
        let found: Vec<(usize, &str)> = if path.ends_with(".rs") {
            let read = tokens(text);
            let words = read.iter().filter(|token| token.class != Class::Other);
            words.filter_map(|token| Some((token.line, word_in(token.text)?))).collect()
        } else if path.ends_with(".md") {
            let lines = text.lines().enumerate();
            lines.filter_map(|(at, line)| Some((at + 1, word_in(line)?))).collect()
        } else {
            return;
        };
        if !found.is_empty() {
            let lines = found
                .iter()
                .map(|(line, word)| format!("{path}:{line}: \"{word}\" hides who is meant"));
            self.hits.insert(path.to_owned(), lines.collect());
        }
    }

    pub fn broken(&self) -> Vec<String> {
        exceptions::judge("STILL_VAGUE in xtask/src/words.rs", STILL_VAGUE, &self.hits)
    }
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

    fn found(words: &VagueWords) -> Vec<String> {
        exceptions::judge("", &[], &words.hits)
    }

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
            let mut words = VagueWords::default();
            words.read("crates/x/src/lib.rs", &text);
            assert_eq!(
                found(&words),
                [format!("crates/x/src/lib.rs:1: \"{word}\" hides who is meant")],
                "{text}"
            );
        }
        let mut words = VagueWords::default();
        words.read("docs/a.md", &format!("fine\n{word}'s"));
        words.read("golden.txt", word);
        words.read("crates/x/src/passwd.rs", &format!("const P: &str = \"{ACCOUNT}x:65534:\";"));
        words.read(
            "crates/x/src/lib.rs",
            &format!("fn {word}_s{word}() {{}} fn has_no_body() {{}}").replace(&format!("{word}_"), ""),
        );
        assert_eq!(found(&words), [format!("docs/a.md:2: \"{word}\" hides who is meant")]);
    }
}
