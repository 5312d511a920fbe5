//! Which values are encrypted, and what `.sops.yaml` says about new files.

use regex::Regex;
use serde::Deserialize;

use crate::error::Error;
use crate::keys::Recipient;

/// Which values are encrypted. At most one of the four is set; none means all values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Filter {
    pub unencrypted_suffix: Option<String>,
    pub encrypted_suffix: Option<String>,
    pub unencrypted_regex: Option<String>,
    pub encrypted_regex: Option<String>,
    pub mac_only_encrypted: bool,
}

/// The filter that sops uses without a rule.
impl Default for Filter {
    fn default() -> Self {
        Self {
            unencrypted_suffix: Some("_unencrypted".into()),
            encrypted_suffix: None,
            unencrypted_regex: None,
            encrypted_regex: None,
            mac_only_encrypted: false,
        }
    }
}

impl Filter {
    pub(crate) fn compile(&self) -> Result<Compiled, Error> {
        let regex = |pattern: &Option<String>| -> Result<Option<Regex>, Error> {
            pattern
                .as_ref()
                .map(|pattern| Regex::new(pattern).map_err(|_| Error::BadRegex(pattern.clone())))
                .transpose()
        };
        let suffix = |suffix: &Option<String>| suffix.clone().filter(|suffix| !suffix.is_empty());
        Ok(Compiled {
            unencrypted_suffix: suffix(&self.unencrypted_suffix),
            encrypted_suffix: suffix(&self.encrypted_suffix),
            unencrypted_regex: regex(&self.unencrypted_regex)?,
            encrypted_regex: regex(&self.encrypted_regex)?,
        })
    }
}

#[derive(Debug)]
pub struct Compiled {
    unencrypted_suffix: Option<String>,
    encrypted_suffix: Option<String>,
    unencrypted_regex: Option<Regex>,
    encrypted_regex: Option<Regex>,
}

impl Compiled {
    /// A key anywhere on the path decides for everything below it.
    pub fn encrypts(&self, path: &[String]) -> bool {
        let any = |fits: &dyn Fn(&String) -> bool| path.iter().any(fits);
        let mut encrypted = true;
        if let Some(suffix) = &self.unencrypted_suffix {
            encrypted = !any(&|key| key.ends_with(suffix.as_str()));
        }
        if let Some(suffix) = &self.encrypted_suffix {
            encrypted = any(&|key| key.ends_with(suffix.as_str()));
        }
        if let Some(regex) = &self.unencrypted_regex {
            encrypted = !any(&|key| regex.is_match(key));
        }
        if let Some(regex) = &self.encrypted_regex {
            encrypted = any(&|key| regex.is_match(key));
        }
        encrypted
    }
}

/// `.sops.yaml`.
#[derive(Debug)]
pub struct CreationRules(Vec<RawRule>);

/// What a rule says about a new file.
#[derive(Debug, PartialEq, Eq)]
pub struct Rule {
    pub recipients: Vec<Recipient>,
    pub filter: Filter,
}

#[derive(Debug, Deserialize)]
struct RawRule {
    path_regex: Option<String>,
    #[serde(default)]
    age: Names,
    #[serde(default)]
    key_groups: Vec<Group>,
    unencrypted_suffix: Option<String>,
    encrypted_suffix: Option<String>,
    unencrypted_regex: Option<String>,
    encrypted_regex: Option<String>,
    #[serde(default)]
    mac_only_encrypted: bool,
}

#[derive(Debug, Deserialize)]
struct Group {
    #[serde(default)]
    age: Names,
}

/// A list, or a text with commas.
#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Names {
    #[default]
    None,
    Text(String),
    List(Vec<String>),
}

impl Names {
    fn recipients(&self) -> Result<Vec<Recipient>, Error> {
        let joined = match self {
            Self::None => String::new(),
            Self::Text(text) => text.clone(),
            Self::List(list) => list.join(","),
        };
        joined
            .split(',')
            .map(str::trim)
            .filter(|name| !name.is_empty())
            .map(str::parse)
            .collect()
    }
}

impl CreationRules {
    pub fn parse(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct File {
            #[serde(default)]
            creation_rules: Vec<RawRule>,
        }
        let file: File = serde_saphyr::from_str(text)
            .map_err(|error| Error::Metadata(error.to_string().lines().next().unwrap_or_default().to_owned()))?;
        Ok(Self(file.creation_rules))
    }

    /// The first rule that fits a file, by its path relative to the `.sops.yaml`.
    pub fn rule_for(&self, path: &str) -> Result<Option<Rule>, Error> {
        for raw in &self.0 {
            let fits = match &raw.path_regex {
                None => true,
                Some(pattern) => Regex::new(pattern)
                    .map_err(|_| Error::BadRegex(pattern.clone()))?
                    .is_match(path),
            };
            if fits {
                return raw.rule().map(Some);
            }
        }
        Ok(None)
    }
}

impl RawRule {
    fn rule(&self) -> Result<Rule, Error> {
        let mut recipients = self.age.recipients()?;
        for group in &self.key_groups {
            recipients.extend(group.age.recipients()?);
        }
        let says = [
            &self.unencrypted_suffix,
            &self.encrypted_suffix,
            &self.unencrypted_regex,
            &self.encrypted_regex,
        ];
        let default = Filter::default();
        let filter = Filter {
            unencrypted_suffix: if says.iter().any(|said| said.is_some()) {
                self.unencrypted_suffix.clone()
            } else {
                default.unencrypted_suffix
            },
            encrypted_suffix: self.encrypted_suffix.clone(),
            unencrypted_regex: self.unencrypted_regex.clone(),
            encrypted_regex: self.encrypted_regex.clone(),
            mac_only_encrypted: self.mac_only_encrypted,
        };
        Ok(Rule { recipients, filter })
    }
}
