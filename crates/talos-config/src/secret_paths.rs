//! Which parts of a config must never be shown.

use crate::yaml::{Node, Value};

/// What is shown instead.
pub const MASK: &str = "***";

/// Keys whose whole content is secret, wherever they stand.
const SECRET_KEYS: [&str; 29] = [
    "key",
    "token",
    "secret",
    "password",
    "passphrase",
    "auth",
    "identityToken",
    "apiToken",
    "uniqueToken",
    "privateKey",
    "presharedKey",
    "aescbcEncryptionSecret",
    "secretboxEncryptionSecret",
    "clusterSecret",
    "environment",
    "env",
    "variables",
    "content",
    "contents",
    "manifest",
    "configuration",
    "extraManifestHeaders",
    "headers",
    "credentialProviderConfig",
    "webhook",
    "apiUrl",
    "pod",
    "pods",
    "secretbox",
];

pub fn is_secret_key(key: &str) -> bool {
    SECRET_KEYS.contains(&key)
}

/// The same tree with every secret masked.
pub fn masked(node: &Node) -> Node {
    let value = match &node.value {
        Value::Map(entries) => {
            let entry = |(key, value): (&String, &Node)| {
                // An absent or empty secret is no secret, and shows that it is missing.
                let hide = is_secret_key(key) && !value.is_zero();
                (key.clone(), if hide { Node::text(MASK) } else { masked(value) })
            };
            Value::Map(entries.iter().map(entry).collect())
        }
        Value::List(items) => Value::List(items.iter().map(masked).collect()),
        Value::Scalar(_) => return node.clone(),
    };
    Node::at(node.line, value)
}

/// An unknown key may be a misspelt secret: its value is shown only when it is too small to matter.
pub fn masked_unknown(node: &Node) -> Node {
    let value = match &node.value {
        Value::Map(entries) => {
            let entry = |(key, value): (&String, &Node)| {
                let value = if is_secret_key(key) {
                    Node::text(MASK)
                } else {
                    masked_unknown(value)
                };
                (key.clone(), value)
            };
            Value::Map(entries.iter().map(entry).collect())
        }
        Value::List(items) => Value::List(items.iter().map(masked_unknown).collect()),
        Value::Scalar(scalar) if scalar.text.len() > 8 => return Node::text(MASK),
        Value::Scalar(_) => node.value.clone(),
    };
    value.into()
}

/// A URL without the user and password in it.
pub fn without_login(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    match authority.rsplit_once('@') {
        Some((_, host)) => format!("{scheme}://{MASK}@{host}{path}"),
        None => text.to_owned(),
    }
}
