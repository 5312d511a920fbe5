use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rand::CryptoRng;
use serde_json::json;
use zeroize::Zeroizing;

use super::{AccessError, encoded, expiry_of, kubernetes_admin};
use crate::pki::PkiError;
use crate::secrets::Secrets;
use crate::yaml::{self, Node, Value};

/// The lists of a kubeconfig whose items are known by name.
const NAMED_LISTS: [&str; 3] = ["clusters", "contexts", "users"];

/// A kubeconfig file. What it holds beside our entries is kept as it was.
#[derive(Clone, PartialEq)]
pub struct Kubeconfig {
    root: Node,
}

/// A cluster and the certificate of its administrator, all PEM.
#[derive(Clone, Copy)]
pub struct KubeconfigEntry<'a> {
    pub cluster: &'a str,
    pub endpoint: &'a url::Url,
    pub authority: &'a str,
    pub certificate: &'a str,
    pub key: &'a str,
}

impl Kubeconfig {
    /// A file for the administrator, named as Talos names it: `admin@<cluster>`. Clusters of other distributions get the same names.
    pub fn new(entry: &KubeconfigEntry<'_>) -> Self {
        let (cluster, user) = (entry.cluster, format!("admin@{}", entry.cluster));
        let mut root = Node::from(json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": cluster, "cluster": { "server": crate::generate::bare_url(entry.endpoint) } }],
            "contexts": [{ "name": user, "context": { "cluster": cluster, "namespace": "default", "user": user } }],
            "current-context": user,
            "users": [{ "name": user, "user": {} }],
        }));
        for (list, section, field, pem) in [
            ("clusters", "cluster", "certificate-authority-data", entry.authority),
            ("users", "user", "client-certificate-data", entry.certificate),
            ("users", "user", "client-key-data", entry.key),
        ] {
            set(&mut root, list, section, field, encoded(pem));
        }
        Self { root }
    }

    /// A file for the administrator of a Talos cluster.
    pub fn mint(
        secrets: &Secrets,
        cluster: &str,
        endpoint: &url::Url,
        lifetime: SignedDuration,
        now: Timestamp,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, PkiError> {
        let identity = kubernetes_admin(secrets, lifetime, now, rng)?;
        Ok(Self::new(&KubeconfigEntry {
            cluster,
            endpoint,
            authority: secrets.kubernetes_ca(),
            certificate: &identity.certificate,
            key: &identity.key,
        }))
    }

    /// An empty file is an empty kubeconfig.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let root = yaml::parse(text).map_err(AccessError::Syntax)?;
        let root = if root.is_null() {
            Node::from(json!({ "apiVersion": "v1", "kind": "Config" }))
        } else {
            root
        };
        let list_fits = |key: &&str| root.get(key).is_none_or(|list| list.is_null() || list.as_list().is_some());
        if root.as_map().is_none() || !NAMED_LISTS.iter().all(list_fits) {
            return Err(AccessError::Shape("kubeconfig"));
        }
        Ok(Self { root })
    }

    pub fn to_yaml(&self) -> Zeroizing<String> {
        Zeroizing::new(yaml::emit(&self.root))
    }

    /// Takes over the entries of another file, replacing those of the same name, and makes its current context ours.
    pub fn merge(&mut self, other: &Self) {
        let Some(entries) = self.root.as_map_mut() else { return };
        for key in NAMED_LISTS {
            let theirs = other.root.get(key).and_then(Node::as_list).unwrap_or_default();
            let ours = entries
                .entry(key.to_owned())
                .or_insert_with(|| Value::List(Vec::new()).into());
            if ours.is_null() {
                ours.value = Value::List(Vec::new());
            }
            if let Value::List(items) = &mut ours.value {
                theirs.iter().for_each(|theirs| put_by_name(items, theirs));
            }
        }
        if let Some(current) = other.root.get("current-context") {
            entries.insert("current-context".to_owned(), current.clone());
        }
    }

    pub fn current_context(&self) -> Option<&str> {
        self.root.get("current-context").and_then(Node::as_str)
    }

    pub fn users(&self) -> impl Iterator<Item = &str> {
        let users = self.root.get("users").and_then(Node::as_list).unwrap_or_default();
        users.iter().filter_map(|user| user.get("name").and_then(Node::as_str))
    }

    /// When the certificate of a user stops being accepted.
    pub fn expires(&self, user: &str) -> Option<Timestamp> {
        let users = self.root.get("users").and_then(Node::as_list)?;
        let found = users
            .iter()
            .find(|entry| entry.get("name").and_then(Node::as_str) == Some(user))?;
        expiry_of(found.get("user")?.get("client-certificate-data"))
    }
}

/// Sets a field of the only entry of a list.
fn set(root: &mut Node, list: &str, section: &str, field: &str, value: Node) {
    let Some(Value::List(items)) = root
        .as_map_mut()
        .and_then(|entries| entries.get_mut(list))
        .map(|node| &mut node.value)
    else {
        return;
    };
    let section = items
        .first_mut()
        .and_then(Node::as_map_mut)
        .and_then(|entry| entry.get_mut(section));
    if let Some(fields) = section.and_then(Node::as_map_mut) {
        fields.insert(field.to_owned(), value);
    }
}

fn put_by_name(items: &mut Vec<Node>, theirs: &Node) {
    let name = theirs.get("name");
    match items.iter_mut().find(|ours| ours.get("name") == name) {
        Some(ours) => *ours = theirs.clone(),
        None => items.push(theirs.clone()),
    }
}

impl fmt::Debug for Kubeconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kubeconfig")
            .field("users", &self.users().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
