//! A function fits a screen, and a file can be read in one sitting.

use std::path::Path;

use anyhow::Result;

use crate::source::{Class, PRODUCT, Token, files, tokens};

const FUNCTION_MAX: usize = 80;
const FILE_MAX: usize = 900;

/// Functions and files of the product crates that are too long.
pub fn too_long(root: &Path) -> Result<Vec<String>> {
    let mut broken = Vec::new();
    for name in PRODUCT {
        for file in files(root, name)? {
            let lines = file.text.lines().count();
            if lines > FILE_MAX {
                broken.push(format!("{} has {lines} lines, at most {FILE_MAX} are allowed", file.path));
            }
            let long = functions(&file.text)
                .into_iter()
                .filter(|function| function.lines > FUNCTION_MAX);
            broken.extend(long.map(|Function { name, at, lines }| {
                format!(
                    "{}:{at}: {name} has {lines} lines, at most {FUNCTION_MAX} are allowed",
                    file.path
                )
            }));
        }
    }
    Ok(broken)
}

struct Function {
    name: String,
    at: usize,
    lines: usize,
}

/// The functions of a file, from `fn` to the closing brace. A declaration without a body has one line.
fn functions(text: &str) -> Vec<Function> {
    let all: Vec<Token<'_>> = tokens(text)
        .into_iter()
        .filter(|token| token.class != Class::Comment)
        .collect();
    let begins = |at: usize| all[at].is("fn") && all.get(at + 1).is_some_and(|next| next.class == Class::Name);
    let function = |at: usize| Function {
        name: all[at + 1].text.to_owned(),
        at: all[at].line,
        lines: last_line(&all[at..]) - all[at].line + 1,
    };
    (0..all.len()).filter(|at| begins(*at)).map(function).collect()
}

/// The line on which the item ends that begins with these tokens.
fn last_line(tokens: &[Token<'_>]) -> usize {
    let mut depth = 0_usize;
    for token in tokens.iter().filter(|token| token.class == Class::Mark) {
        match token.text {
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth = depth.saturating_sub(1);
                if depth == 0 && token.text == "}" {
                    return token.line;
                }
            }
            ";" if depth == 0 => return token.line,
            _ => {}
        }
    }
    tokens.last().map_or(0, |token| token.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_counted_from_its_name_to_its_closing_brace() {
        let text = "// fn a\nfn b(c: [u8; 2]) -> u8 {\n    if c { \"}\" } else { 1 }\n}\ntrait D { fn e(f: fn(u8) -> u8); }\nfn g<const N: usize>(\n) {}\n";
        let found: Vec<(String, usize, usize)> = functions(text).into_iter().map(|f| (f.name, f.at, f.lines)).collect();
        assert_eq!(
            found,
            [("b".to_owned(), 2, 3), ("e".to_owned(), 5, 1), ("g".to_owned(), 6, 2)]
        );
    }
}
