//! Rust source as tokens, for rules that must tell code, string literals and comments apart.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ra_ap_rustc_lexer::{FrontmatterAllowed, LiteralKind, TokenKind, tokenize};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// An identifier or a keyword.
    Name,
    /// A string literal, quotes included.
    Text,
    Comment,
    /// One character of punctuation.
    Mark,
    /// Numbers, characters and lifetimes: no rule reads them.
    Other,
}

#[derive(Debug, Clone, Copy)]
pub struct Token<'a> {
    pub class: Class,
    pub text: &'a str,
    pub line: usize,
}

impl Token<'_> {
    pub fn is(&self, text: &str) -> bool {
        matches!(self.class, Class::Name | Class::Mark) && self.text == text
    }
}

/// The tokens of a file, white space apart.
pub fn tokens(text: &str) -> Vec<Token<'_>> {
    let (mut at, mut line) = (0, 1);
    let mut found = Vec::new();
    for token in tokenize(text, FrontmatterAllowed::No) {
        let end = at + token.len as usize;
        let text = &text[at..end];
        if let Some(class) = class(token.kind) {
            found.push(Token { class, text, line });
        }
        line += text.matches('\n').count();
        at = end;
    }
    found
}

fn class(kind: TokenKind) -> Option<Class> {
    Some(match kind {
        TokenKind::Whitespace => return None,
        TokenKind::LineComment { .. } | TokenKind::BlockComment { .. } => Class::Comment,
        TokenKind::Ident | TokenKind::RawIdent => Class::Name,
        TokenKind::Literal { kind, .. } => match kind {
            LiteralKind::Int { .. } | LiteralKind::Float { .. } | LiteralKind::Char { .. } | LiteralKind::Byte { .. } => {
                Class::Other
            }
            _ => Class::Text,
        },
        TokenKind::Lifetime { .. } | TokenKind::RawLifetime => Class::Other,
        _ => Class::Mark,
    })
}

/// The tokens of a file without items behind `#[cfg(test)]`.
pub fn shipped(text: &str) -> Vec<Token<'_>> {
    let all = tokens(text);
    let mut kept = Vec::new();
    let mut at = 0;
    while at < all.len() {
        if is_test_attribute(&all[at..]) {
            at += item_length(&all[at..]);
        } else {
            kept.push(all[at]);
            at += 1;
        }
    }
    kept
}

fn is_test_attribute(tokens: &[Token<'_>]) -> bool {
    let wanted = ["#", "[", "cfg", "(", "test", ")", "]"];
    tokens.len() > wanted.len() && tokens.iter().zip(wanted).all(|(token, text)| token.is(text))
}

/// The length of an item with its attributes: up to the `;` outside of brackets, or the end of its block (`use a::{b};` has both).
fn item_length(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for (at, token) in tokens.iter().enumerate() {
        match token.text {
            "{" | "(" | "[" if token.class == Class::Mark => depth += 1,
            "}" | ")" | "]" if token.class == Class::Mark => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token.text == "}" {
                    let closed = tokens.get(at + 1).is_some_and(|next| next.is(";"));
                    return at + 1 + usize::from(closed);
                }
            }
            ";" if depth == 0 && token.class == Class::Mark => return at + 1,
            _ => {}
        }
    }
    tokens.len()
}

/// The crates that are mainstay itself, rather than a mechanism or a simulator.
pub const PRODUCT: &[&str] = &[
    "mainstay",
    "mainstay-engine",
    "mainstay-kube",
    "mainstay-net",
    "mainstay-plan",
    "mainstay-spec",
];

/// A Rust file of a crate, its path relative to the root of the workspace.
pub struct SourceFile {
    pub path: String,
    pub text: String,
}

/// The shipped files of a crate, sorted by path. A file that a module declares behind `#[cfg(test)]` is called `tests.rs` or
/// `.._tests.rs` here, so the name tells it.
pub fn files(root: &Path, crate_name: &str) -> Result<Vec<SourceFile>> {
    let mut found = Vec::new();
    collect(root, &root.join("crates").join(crate_name).join("src"), &mut found)?;
    found.retain(|file| !file.path.ends_with("tests.rs") && !file.path.contains("/src/tests/"));
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

fn collect(root: &Path, folder: &Path, found: &mut Vec<SourceFile>) -> Result<()> {
    for entry in fs::read_dir(folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if path.is_dir() {
            collect(root, &path, found)?;
        } else if name.ends_with(".rs") {
            let text = fs::read_to_string(&path)?;
            let path = path.strip_prefix(root).unwrap_or(&path).display().to_string();
            found.push(SourceFile { path, text });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_comments_and_names_are_told_apart() {
        let text = "/// doc\nlet a = r#\"x \" y\"#; // end\n'c' 'life";
        let found: Vec<_> = tokens(text).iter().map(|token| (token.class, token.line)).collect();
        use Class::{Comment, Mark, Name, Other, Text};
        assert_eq!(
            found,
            [
                (Comment, 1),
                (Name, 2),
                (Name, 2),
                (Mark, 2),
                (Text, 2),
                (Mark, 2),
                (Comment, 2),
                (Other, 3),
                (Other, 3)
            ]
        );
    }

    #[test]
    fn items_behind_cfg_test_are_not_shipped() {
        let text = "struct A;\n#[cfg(test)]\nmod tests { struct B { c: [u8; 2] } }\n#[cfg(test)] use x::{D, E};\nstruct F;";
        let names: Vec<_> = shipped(text).iter().map(|token| token.text).collect();
        assert_eq!(names, ["struct", "A", ";", "struct", "F", ";"]);
    }
}
