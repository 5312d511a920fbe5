use std::collections::BTreeSet;
use std::fmt;

use jiff::{SignedDuration, Timestamp};
use rand::CryptoRng;
use zeroize::Zeroizing;

use super::{AccessError, TalosRole, encoded, expiry_of, talos_identity};
use crate::pki::PkiError;
use crate::secrets::Secrets;
use crate::yaml::{self, Map, Node, Value};

/// A talosconfig file. What it holds beside our contexts is kept as it was.
#[derive(Clone, PartialEq)]
pub struct Talosconfig {
    root: Node,
}

impl Talosconfig {
    /// A file with one context. Endpoints are the control planes' own addresses: a shared address needs a running etcd.
    #[expect(
        clippy::too_many_arguments,
        reason = "who, with what rights, from when, for how long, reaching what"
    )]
    pub fn mint(
        secrets: &Secrets,
        context: &str,
        roles: &BTreeSet<TalosRole>,
        endpoints: &[String],
        nodes: &[String],
        lifetime: SignedDuration,
        now: Timestamp,
        rng: &mut impl CryptoRng,
    ) -> Result<Self, PkiError> {
        let identity = talos_identity(secrets, roles, lifetime, now, rng)?;
        let texts = |items: &[String]| Node::from(Value::List(items.iter().map(Node::text).collect()));
        let mut entry = Map::new();
        entry.insert("endpoints".to_owned(), texts(endpoints));
        if !nodes.is_empty() {
            entry.insert("nodes".to_owned(), texts(nodes));
        }
        entry.insert("ca".to_owned(), encoded(secrets.os_ca()));
        entry.insert("crt".to_owned(), encoded(&identity.certificate));
        entry.insert("key".to_owned(), encoded(&identity.key));
        let contexts = Map::from_iter([(context.to_owned(), Value::Map(entry).into())]);
        let root = Map::from_iter([
            ("context".to_owned(), Node::text(context)),
            ("contexts".to_owned(), Value::Map(contexts).into()),
        ]);
        Ok(Self {
            root: Value::Map(root).into(),
        })
    }

    /// An empty file is an empty talosconfig.
    pub fn parse(text: &str) -> Result<Self, AccessError> {
        let root = yaml::parse(text).map_err(AccessError::Syntax)?;
        let root = if root.is_null() { Node::empty_map() } else { root };
        let contexts_fit = root
            .get("contexts")
            .is_none_or(|contexts| contexts.is_null() || contexts.as_map().is_some());
        if root.as_map().is_none() || !contexts_fit {
            return Err(AccessError::Shape("talosconfig"));
        }
        Ok(Self { root })
    }

    pub fn to_yaml(&self) -> Zeroizing<String> {
        Zeroizing::new(yaml::emit(&self.root))
    }

    /// Takes over the contexts of another file, replacing those of the same name, and makes its current context ours.
    pub fn merge(&mut self, other: &Self) {
        let Some(entries) = self.root.as_map_mut() else { return };
        if let Some(current) = other.root.get("context") {
            entries.insert("context".to_owned(), current.clone());
        }
        let theirs = other.root.get("contexts").and_then(Node::as_map).cloned().unwrap_or_default();
        let ours = entries.entry("contexts".to_owned()).or_insert_with(Node::empty_map);
        if ours.is_null() {
            *ours = Node::empty_map();
        }
        if let Some(contexts) = ours.as_map_mut() {
            contexts.extend(theirs);
        }
    }

    pub fn contexts(&self) -> impl Iterator<Item = &str> {
        self.root
            .get("contexts")
            .and_then(Node::as_map)
            .into_iter()
            .flat_map(|contexts| contexts.keys().map(String::as_str))
    }

    pub fn current_context(&self) -> Option<&str> {
        self.root.get("context").and_then(Node::as_str)
    }

    /// When the certificate of a context stops being accepted.
    pub fn expires(&self, context: &str) -> Option<Timestamp> {
        expiry_of(self.root.get("contexts")?.get(context)?.get("crt"))
    }
}

impl fmt::Debug for Talosconfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Talosconfig")
            .field("contexts", &self.contexts().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
