//! The file of `talosctl gen secrets`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use super::{Authority, BundleError, EtcdEncryption, Secrets, ServiceAccountKey};
use crate::yaml::{self, Map, Node, Value};

impl Secrets {
    /// Reads and validates a bundle. Keys that are not part of a bundle are ignored, as talosctl ignores them.
    pub fn from_talosctl_yaml(text: &str) -> Result<Self, BundleError> {
        let root = yaml::parse(text).map_err(|problem| BundleError::one(format!("not YAML: {problem}")))?;
        if root.as_map().is_none() {
            return Err(BundleError::one("the file holds no bundle"));
        }
        let mut reader = Reader {
            root: &root,
            problems: Vec::new(),
        };
        let secrets = Self {
            cluster_id: reader.required("cluster", "id").to_string(),
            cluster_secret: reader.required("cluster", "secret"),
            bootstrap_token: reader.required("secrets", "bootstraptoken"),
            etcd_encryption: reader.encryption(),
            trustd_token: reader.required("trustdinfo", "token"),
            etcd: reader.authority("etcd"),
            kubernetes: reader.authority("k8s"),
            aggregator: reader.authority("k8saggregator"),
            service_account: ServiceAccountKey {
                key: reader.pem("k8sserviceaccount", "key"),
            },
            os: reader.authority("os"),
        };
        let Reader { problems, .. } = reader;
        if !problems.is_empty() {
            return Err(BundleError { problems });
        }
        secrets.validate()?;
        Ok(secrets)
    }

    pub fn to_talosctl_yaml(&self) -> Zeroizing<String> {
        let encryption = match &self.etcd_encryption {
            EtcdEncryption::Secretbox(key) => ("secretboxencryptionsecret", text(key)),
            EtcdEncryption::AesCbc(key) => ("aescbcencryptionsecret", text(key)),
        };
        let certs = map([
            ("etcd", pair(&self.etcd)),
            ("k8s", pair(&self.kubernetes)),
            ("k8saggregator", pair(&self.aggregator)),
            ("k8sserviceaccount", map([("key", pem_value(&self.service_account.key))])),
            ("os", pair(&self.os)),
        ]);
        let root = map([
            (
                "cluster",
                map([("id", text(&self.cluster_id)), ("secret", text(&self.cluster_secret))]),
            ),
            ("secrets", map([("bootstraptoken", text(&self.bootstrap_token)), encryption])),
            ("trustdinfo", map([("token", text(&self.trustd_token))])),
            ("certs", certs),
        ]);
        Zeroizing::new(yaml::emit(&root))
    }
}

/// Collects everything that is wrong before giving up.
struct Reader<'a> {
    root: &'a Node,
    problems: Vec<String>,
}

impl Reader<'_> {
    fn section(&mut self, name: &str) -> Option<&Node> {
        let found = self.root.at_path(name);
        let problem = format!("{name} is required");
        if found.is_none() && !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
        found
    }

    fn required(&mut self, section: &str, key: &str) -> Zeroizing<String> {
        let value = match self.section(section) {
            Some(found) => found.get(key).and_then(Node::as_str).unwrap_or_default().to_owned(),
            None => return Zeroizing::default(),
        };
        if value.is_empty() {
            self.problems.push(format!("{section}.{key} is required"));
        }
        Zeroizing::new(value)
    }

    fn encryption(&mut self) -> EtcdEncryption {
        let Some(section) = self.section("secrets") else {
            return EtcdEncryption::Secretbox(Zeroizing::default());
        };
        let read = |key| section.get(key).and_then(Node::as_str).unwrap_or_default().to_owned();
        let (secretbox, aescbc) = (read("secretboxencryptionsecret"), read("aescbcencryptionsecret"));
        let choice = "of [secrets.secretboxencryptionsecret, secrets.aescbcencryptionsecret] is";
        match (secretbox.is_empty(), aescbc.is_empty()) {
            (true, true) => self.problems.push(format!("one {choice} required")),
            (false, false) => self.problems.push(format!("only one {choice} allowed")),
            (true, false) => return EtcdEncryption::AesCbc(Zeroizing::new(aescbc)),
            (false, true) => {}
        }
        EtcdEncryption::Secretbox(Zeroizing::new(secretbox))
    }

    fn authority(&mut self, name: &str) -> Authority {
        Authority {
            certificate: self.pem(name, "crt").to_string(),
            key: self.pem(name, "key"),
        }
    }

    /// A base64 text around a PEM text.
    fn pem(&mut self, name: &str, field: &str) -> Zeroizing<String> {
        let Some(certs) = self.section("certs") else {
            return Zeroizing::default();
        };
        let required = format!("certs.{name} is required");
        let Some(entry) = certs.at_path(name) else {
            if !self.problems.contains(&required) {
                self.problems.push(required);
            }
            return Zeroizing::default();
        };
        let (line, encoded) = match entry.get(field) {
            Some(node) => (node.line, node.as_str().unwrap_or_default().to_owned()),
            None => (entry.line, String::new()),
        };
        let decoded = STANDARD
            .decode(encoded.trim())
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok());
        let Some(pem) = decoded else {
            self.problems
                .push(format!("certs.{name}.{field} is not base64 of a PEM text (line {line})"));
            return Zeroizing::default();
        };
        Zeroizing::new(pem)
    }
}

fn pair(authority: &Authority) -> Node {
    map([("crt", pem_value(&authority.certificate)), ("key", pem_value(&authority.key))])
}

fn pem_value(pem: &str) -> Node {
    Node::text(STANDARD.encode(pem))
}

fn text(value: &str) -> Node {
    Node::text(value)
}

fn map<const N: usize>(entries: [(&str, Node); N]) -> Node {
    let entries: Map = entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    Value::Map(entries).into()
}
