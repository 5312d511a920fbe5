//! The guest agent option.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose::{deserialize_from_text, parse_flag};
use super::property::{self, Properties};

/// Whether the VM has the port a guest agent talks through. It says nothing about an agent running.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Agent {
    pub enabled: bool,
    /// Options this type does not know.
    pub other: BTreeMap<String, String>,
}

impl fmt::Display for Agent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&property::print(&property::flag(self.enabled), &self.other))
    }
}

impl FromStr for Agent {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "a guest agent option";
        let mut properties = Properties::parse(text, EXPECTED)?;
        let enabled = properties.take_default("enabled").as_deref().and_then(parse_flag);
        Ok(Self {
            enabled: enabled.ok_or_else(|| ValueError::new(EXPECTED, text))?,
            other: properties.pairs,
        })
    }
}

deserialize_from_text!(Agent);

#[cfg(test)]
mod tests {
    use super::Agent;

    #[test]
    fn both_spellings_of_an_enabled_agent_are_read() {
        assert!("1".parse::<Agent>().unwrap().enabled);
        let agent: Agent = "enabled=1,type=virtio".parse().unwrap();
        assert_eq!(agent.to_string(), "1,type=virtio");
        assert!("type=virtio".parse::<Agent>().is_err());
    }
}
