//! Options and operands of a command line.

use std::collections::{BTreeMap, BTreeSet};

#[derive(Default)]
pub(super) struct Arguments {
    flags: BTreeSet<String>,
    values: BTreeMap<String, Vec<String>>,
    pub operands: Vec<String>,
}

impl Arguments {
    /// `valued` names the options that take a value: letters, and words without their dashes.
    pub fn parse(arguments: &[String], valued: &[&str]) -> Self {
        let mut parsed = Self::default();
        let mut rest = arguments.iter();
        while let Some(argument) = rest.next() {
            if argument == "--" {
                parsed.operands.extend(rest.cloned());
                break;
            } else if let Some(long) = argument.strip_prefix("--") {
                match long.split_once('=') {
                    Some((name, value)) => parsed.keep(name, value),
                    None if valued.contains(&long) => parsed.keep(long, rest.next().map(String::as_str).unwrap_or_default()),
                    None => drop(parsed.flags.insert(long.to_owned())),
                }
            } else if argument.len() > 1 && argument.starts_with('-') {
                parsed.letters(&argument[1..], valued, &mut rest);
            } else {
                parsed.operands.push(argument.clone());
            }
        }
        parsed
    }

    fn letters<'a>(&mut self, letters: &str, valued: &[&str], rest: &mut impl Iterator<Item = &'a String>) {
        for (index, letter) in letters.char_indices() {
            let name = letter.to_string();
            if !valued.contains(&name.as_str()) {
                self.flags.insert(name);
                continue;
            }
            let inline = &letters[index + letter.len_utf8()..];
            let value = if inline.is_empty() {
                rest.next().map(String::as_str).unwrap_or_default()
            } else {
                inline
            };
            return self.keep(&name, value);
        }
    }

    fn keep(&mut self, name: &str, value: &str) {
        self.values.entry(name.to_owned()).or_default().push(value.to_owned());
    }

    pub fn has(&self, names: &[&str]) -> bool {
        names
            .iter()
            .any(|name| self.flags.contains(*name) || self.values.contains_key(*name))
    }

    pub fn value(&self, names: &[&str]) -> Option<&str> {
        names
            .iter()
            .find_map(|name| self.values.get(*name)?.last())
            .map(String::as_str)
    }

    pub fn values(&self, names: &[&str]) -> Vec<String> {
        names
            .iter()
            .filter_map(|name| self.values.get(*name))
            .flatten()
            .cloned()
            .collect()
    }
}
