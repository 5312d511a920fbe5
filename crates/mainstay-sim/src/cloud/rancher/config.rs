//! `config.yaml`, its fragments and the flags of the command line.

use serde_json::{Map, Value};

use super::Distro;
use crate::cloud::fs::Credentials;
use crate::cloud::host::Host;
use crate::yaml;

#[derive(Clone, Debug, Default)]
pub(crate) struct Config {
    values: Map<String, Value>,
}

/// A join token, taken apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    /// SHA-256 of the server CA, of a token in K10 form.
    pub ca_hash: Option<String>,
    pub password: String,
}

impl Token {
    pub fn parse(text: &str) -> Self {
        let full = text.strip_prefix("K10").and_then(|rest| rest.split_once("::"));
        match full {
            Some((hash, rest)) => Self {
                ca_hash: Some(hash.to_owned()),
                password: rest.split_once(':').map_or(rest, |(_, password)| password).to_owned(),
            },
            None => Self {
                ca_hash: None,
                password: text.to_owned(),
            },
        }
    }
}

impl Config {
    /// Files first, in order; flags win. A key that ends with `+` appends.
    pub fn read(host: &Host, distro: Distro, flags: &[String]) -> Result<Self, String> {
        let base = format!("/etc/rancher/{}", distro.name());
        let mut files = vec![format!("{base}/config.yaml")];
        let fragments = host
            .fs
            .list(Credentials::ROOT, &format!("{base}/config.yaml.d"))
            .unwrap_or_default();
        files.extend(
            fragments
                .iter()
                .filter(|name| name.ends_with(".yaml"))
                .map(|name| format!("{base}/config.yaml.d/{name}")),
        );
        let mut config = Self::default();
        for file in files {
            let Some(text) = host.fs.text(&file).filter(|text| !text.trim().is_empty()) else {
                continue;
            };
            let parsed = yaml::parse(&text).map_err(|error| format!("failed to parse config file {file}: {error}"))?;
            for (key, value) in parsed.as_object().into_iter().flatten() {
                config.put(key, value.clone());
            }
        }
        let mut rest = flags.iter();
        while let Some(flag) = rest.next() {
            let Some(name) = flag.strip_prefix("--") else { continue };
            match name.split_once('=') {
                Some((name, value)) => config.put(name, Value::String(value.to_owned())),
                None if ["cluster-init", "cluster-reset", "disable-agent", "disable-kube-proxy"].contains(&name) => {
                    config.put(name, Value::Bool(true));
                }
                None => config.put(name, Value::String(rest.next().cloned().unwrap_or_default())),
            }
        }
        Ok(config)
    }

    fn put(&mut self, key: &str, value: Value) {
        match key.strip_suffix('+') {
            Some(key) => {
                let mut list = self.list(key);
                list.extend(strings(&value));
                self.values.insert(key.to_owned(), Value::from(list));
            }
            None => drop(self.values.insert(key.to_owned(), value)),
        }
    }

    pub fn text(&self, key: &str) -> Option<String> {
        match self.values.get(key)? {
            Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
            Value::Array(list) => list.first()?.as_str().map(str::to_owned),
            Value::Null => None,
            other => Some(other.to_string()),
        }
    }

    pub fn list(&self, key: &str) -> Vec<String> {
        self.values.get(key).map(strings).unwrap_or_default()
    }

    pub fn is_set(&self, key: &str) -> bool {
        self.values.get(key).is_some_and(|value| *value == true || value == "true")
    }

    pub fn or(&self, key: &str, default: &str) -> String {
        self.text(key).unwrap_or_else(|| default.to_owned())
    }

    /// `token`, or the content of `token-file`.
    pub fn token(&self, host: &Host) -> Option<Token> {
        let from_file = || host.fs.text(&self.text("token-file")?).map(|text| text.trim().to_owned());
        self.text("token").or_else(from_file).map(|text| Token::parse(&text))
    }

    pub fn node_name(&self, host: &Host) -> String {
        self.text("node-name").unwrap_or_else(|| host.hostname()).to_lowercase()
    }

    /// Values that must be equal on all servers.
    pub fn critical(&self, distro: Distro) -> Vec<(&'static str, String)> {
        let backend = if distro == Distro::K3s { "vxlan" } else { "" };
        [
            ("cluster-cidr", "10.42.0.0/16"),
            ("service-cidr", "10.43.0.0/16"),
            ("cluster-dns", "10.43.0.10"),
            ("cluster-domain", "cluster.local"),
            ("disable-cloud-controller", "false"),
            ("disable-helm-controller", "false"),
            ("disable-network-policy", "false"),
            ("egress-selector-mode", "agent"),
            ("embedded-registry", "false"),
            ("flannel-backend", backend),
            ("secrets-encryption", "false"),
            ("supervisor-metrics", "false"),
        ]
        .into_iter()
        .map(|(key, default)| (key, self.or(key, default)))
        .collect()
    }
}

fn strings(value: &Value) -> Vec<String> {
    match value {
        Value::Array(list) => list
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned))
            .collect(),
        Value::String(text) => text.split(',').map(str::to_owned).collect(),
        Value::Null => Vec::new(),
        other => vec![other.to_string()],
    }
}

#[cfg(test)]
mod tests {
    use super::Token;

    #[test]
    fn a_token_may_carry_the_hash_of_the_authority() {
        let full = Token::parse("K10abcd::server:secret");
        assert_eq!((full.ca_hash.as_deref(), full.password.as_str()), (Some("abcd"), "secret"));
        let short = Token::parse("secret");
        assert_eq!((short.ca_hash, short.password.as_str()), (None, "secret"));
    }
}
