//! `registries.yaml`: mirrors and credentials of container registries.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::{Map, Value, json};
use url::Url;
use zeroize::Zeroizing;

/// How containerd reaches registries. The file must exist before the first start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Registries {
    /// By the registry's name in image references; `*` stands for every registry.
    pub mirrors: BTreeMap<String, Mirror>,
    /// By the host and port of an endpoint.
    pub credentials: BTreeMap<String, RegistryAccess>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mirror {
    /// Tried in this order; the registry itself comes last.
    pub endpoints: Vec<Url>,
}

/// How one endpoint is entered.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct RegistryAccess {
    pub username: Option<String>,
    pub password: Option<Zeroizing<String>>,
    /// The file of the endpoint's certificate authority in the guest.
    pub ca_file: Option<String>,
    pub insecure_skip_verify: bool,
}

impl fmt::Debug for RegistryAccess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegistryAccess")
            .field("username", &self.username)
            .field("ca_file", &self.ca_file)
            .field("insecure_skip_verify", &self.insecure_skip_verify)
            .finish_non_exhaustive()
    }
}

impl Registries {
    pub fn is_empty(&self) -> bool {
        self.mirrors.is_empty() && self.credentials.is_empty()
    }

    /// Secret: it may carry passwords.
    pub fn to_value(&self) -> Value {
        let mut file = Map::new();
        if !self.mirrors.is_empty() {
            let mirrors = self.mirrors.iter().map(|(name, mirror)| {
                let endpoints: Vec<&str> = mirror
                    .endpoints
                    .iter()
                    .map(|url| url.as_str().trim_end_matches('/'))
                    .collect();
                (name.clone(), json!({ "endpoint": endpoints }))
            });
            file.insert("mirrors".into(), Value::Object(mirrors.collect()));
        }
        if !self.credentials.is_empty() {
            let configs = self
                .credentials
                .iter()
                .map(|(host, access)| (host.clone(), access.to_value()));
            file.insert("configs".into(), Value::Object(configs.collect()));
        }
        Value::Object(file)
    }
}

impl RegistryAccess {
    fn to_value(&self) -> Value {
        let mut access = Map::new();
        if self.username.is_some() || self.password.is_some() {
            let password = self.password.as_ref().map(|password| password.as_str());
            access.insert(
                "auth".into(),
                json!({ "username": self.username.as_deref().unwrap_or_default(), "password": password.unwrap_or_default() }),
            );
        }
        let mut tls = Map::new();
        if let Some(file) = &self.ca_file {
            tls.insert("ca_file".into(), json!(file));
        }
        if self.insecure_skip_verify {
            tls.insert("insecure_skip_verify".into(), json!(true));
        }
        if !tls.is_empty() {
            access.insert("tls".into(), Value::Object(tls));
        }
        Value::Object(access)
    }
}
