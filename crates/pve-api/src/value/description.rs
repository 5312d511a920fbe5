//! The notes of a guest.

use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose::deserialize_from_text;

/// A description: the only option with line feeds, at most 8192 characters, without white space at its end (PVE drops it, so a value that
/// kept it would differ for ever from what is read back).
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Description(String);

impl Description {
    pub const MAX_CHARS: usize = 8192;

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Description {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for Description {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let text = text.trim_end();
        if text.chars().count() > Self::MAX_CHARS {
            let start: String = text.chars().take(40).collect();
            return Err(ValueError::new("a description (at most 8192 characters)", start + "..."));
        }
        Ok(Self(text.to_owned()))
    }
}

deserialize_from_text!(Description);

#[cfg(test)]
mod tests {
    use super::Description;

    #[test]
    fn line_feeds_at_the_end_do_not_count() {
        let description: Description = "line1\nline2\n\n".parse().unwrap();
        assert_eq!(description.as_str(), "line1\nline2");
        assert_eq!("x\r\ny".parse::<Description>().unwrap().as_str(), "x\r\ny");
    }

    #[test]
    fn characters_are_counted_not_bytes() {
        assert!("ü".repeat(8192).parse::<Description>().is_ok());
        assert!("y".repeat(8193).parse::<Description>().is_err());
    }
}
