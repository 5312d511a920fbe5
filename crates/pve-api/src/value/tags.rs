//! Tags of a guest.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose;

/// A set of tags as PVE keeps it: lower case, sorted, each once.
///
/// A datacenter may be set to keep case and order; compared as such a set, both mean the same.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tags(BTreeSet<String>);

impl Tags {
    pub fn insert(&mut self, tag: &str) -> Result<(), ValueError> {
        if !is_tag(tag) {
            return Err(ValueError::new("a tag", tag));
        }
        self.0.insert(tag.to_ascii_lowercase());
        Ok(())
    }

    pub fn contains(&self, tag: &str) -> bool {
        self.0.contains(&tag.to_ascii_lowercase())
    }

    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn is_tag(tag: &str) -> bool {
    let first = |b: u8| b.is_ascii_alphanumeric() || b == b'_';
    let inner = |b: u8| first(b) || b"-+.".contains(&b);
    tag.bytes().next().is_some_and(first) && tag.bytes().all(inner)
}

impl fmt::Display for Tags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, tag) in self.0.iter().enumerate() {
            if n > 0 {
                f.write_str(";")?;
            }
            f.write_str(tag)?;
        }
        Ok(())
    }
}

impl FromStr for Tags {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let mut tags = Self::default();
        for tag in split(text) {
            tags.insert(tag)?;
        }
        Ok(tags)
    }
}

/// Whatever PVE has is taken: an odd tag, written into a file by hand, must not hide a guest.
impl<'de> serde::Deserialize<'de> for Tags {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Self(
            split(&loose::text(deserializer)?).map(str::to_ascii_lowercase).collect(),
        ))
    }
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| c.is_ascii_whitespace() || ",;\0".contains(c))
        .filter(|tag| !tag.is_empty())
}

#[cfg(test)]
mod tests {
    use super::Tags;

    #[test]
    fn tags_are_compared_as_a_lower_case_set() {
        let tags: Tags = "Zeta,alpha;Beta alpha".parse().unwrap();
        assert_eq!(tags.to_string(), "alpha;beta;zeta");
        assert_eq!(tags, "beta;zeta;ALPHA".parse().unwrap());
        assert!(tags.contains("Beta"));
    }

    #[test]
    fn an_emptied_list_is_one_blank() {
        assert!(" ".parse::<Tags>().unwrap().is_empty());
        assert_eq!(";;a;;b,,".parse::<Tags>().unwrap().to_string(), "a;b");
    }

    #[test]
    fn a_tag_outside_the_character_set_is_refused() {
        for tag in ["-bad", "ü", "+a", "a/b"] {
            assert!(tag.parse::<Tags>().is_err(), "{tag}");
        }
    }
}
