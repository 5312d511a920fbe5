//! Property strings: `value,key=value,...`.

use std::collections::BTreeMap;

use super::ValueError;
use super::loose::parse_flag;

/// A parsed property string. A reader takes out the keys that it knows and keeps the rest.
pub(crate) struct Properties {
    /// The value without a key: it belongs to the option's default key.
    pub(crate) bare: Option<String>,
    pub(crate) pairs: BTreeMap<String, String>,
}

impl Properties {
    /// Empty pieces are skipped: PVE accepts a trailing comma.
    pub(crate) fn parse(text: &str, expected: &'static str) -> Result<Self, ValueError> {
        let error = || ValueError::new(expected, text);
        let mut properties = Self {
            bare: None,
            pairs: BTreeMap::new(),
        };
        for piece in text.split(',').map(str::trim).filter(|piece| !piece.is_empty()) {
            let twice = match piece.split_once('=') {
                Some(("", _)) => return Err(error()),
                Some((key, value)) => properties.pairs.insert(key.to_owned(), value.to_owned()).is_some(),
                None => properties.bare.replace(piece.to_owned()).is_some(),
            };
            if twice {
                return Err(error());
            }
        }
        Ok(properties)
    }

    /// The value of the default key, however it was written.
    pub(crate) fn take_default(&mut self, key: &str) -> Option<String> {
        self.bare.take().or_else(|| self.pairs.remove(key))
    }

    pub(crate) fn take(&mut self, key: &str) -> Option<String> {
        self.pairs.remove(key)
    }

    /// A value that the type reads; one it does not read stays among the others.
    pub(crate) fn take_as<T>(&mut self, key: &str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let value = read(self.pairs.get(key)?)?;
        self.pairs.remove(key);
        Some(value)
    }

    pub(crate) fn take_parsed<T: std::str::FromStr>(&mut self, key: &str) -> Option<T> {
        self.take_as(key, |text| text.parse().ok())
    }

    pub(crate) fn take_flag(&mut self, key: &str) -> Option<bool> {
        self.take_as(key, parse_flag)
    }
}

/// Writes a property string the way PVE does: the default key's value first, the rest sorted by key.
pub(crate) fn print(first: &str, pairs: &BTreeMap<String, String>) -> String {
    let mut text = first.to_owned();
    for (key, value) in pairs {
        if !text.is_empty() {
            text.push(',');
        }
        text.push_str(key);
        text.push('=');
        text.push_str(value);
    }
    text
}

/// A flag as PVE prints it.
pub(crate) fn flag(value: bool) -> String {
    u8::from(value).to_string()
}
