//! One meaning per name: a type or macro name is defined once in the product crates. API crates and simulators may repeat a name that
//! mirrors a wire format.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Result;

use crate::source::{Class, PRODUCT, Token, files, shipped};

pub fn repeated(root: &Path) -> Result<Vec<String>> {
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in PRODUCT {
        for file in files(root, name)? {
            for (name, line) in defined(&shipped(&file.text)) {
                places.entry(name).or_default().push(format!("{}:{line}", file.path));
            }
        }
    }
    let repeated = places.into_iter().filter(|(_, places)| places.len() > 1);
    Ok(repeated
        .map(|(name, places)| format!("`{name}` is defined more than once: {}", places.join(", ")))
        .collect())
}

/// Types and macros that a file defines, with their lines. A `type` inside of an `impl` or a `trait` gives a meaning to a name of the
/// trait, so it defines none.
fn defined(tokens: &[Token<'_>]) -> Vec<(String, usize)> {
    let tokens: Vec<_> = tokens.iter().filter(|token| token.class != Class::Comment).collect();
    let mut found = Vec::new();
    // For each open block, whether it belongs to an `impl` or a `trait`.
    let mut blocks = Vec::new();
    let mut associated = false;
    for (at, token) in tokens.iter().enumerate() {
        let next = tokens.get(at + 1).filter(|next| next.class == Class::Name);
        let begins_item = at == 0 || !tokens[at - 1].is(".") && !tokens[at - 1].is(":");
        match token.text {
            "{" if token.class == Class::Mark => blocks.push(std::mem::take(&mut associated)),
            "}" if token.class == Class::Mark => drop(blocks.pop()),
            ";" if token.class == Class::Mark => associated = false,
            "impl" if token.class == Class::Name => associated = true,
            "struct" | "enum" | "trait" | "union" | "type" if token.class == Class::Name && begins_item => {
                let is_associated = token.text == "type" && blocks.last() == Some(&true);
                if let Some(name) = next.filter(|name| !is_associated && name.text.starts_with(char::is_uppercase)) {
                    found.push((name.text.to_owned(), name.line));
                }
                associated = token.text == "trait";
            }
            "macro_rules" => {
                if let Some(name) = tokens.get(at + 2) {
                    found.push((format!("{}!", name.text), name.line));
                }
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_macros_are_definitions_and_associated_types_are_not() {
        let text = "
            pub struct A<'a>(&'a str);
            pub(crate) enum B { Type, C }
            trait D: Send { type Error; fn f(&self) -> impl Sized { 0 } }
            impl FromStr for A<'_> { type Err = String; }
            type E = Vec<u8>;
            fn g() { struct F; }
            macro_rules! h { () => {} }
            // struct InAComment;
            const S: &str = \"struct InAString\";";
        let names: Vec<_> = defined(&shipped(text)).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["A", "B", "D", "E", "F", "h!"]);
    }
}
