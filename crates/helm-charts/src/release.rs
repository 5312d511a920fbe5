//! The Secret in which Helm keeps one revision of a release.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Map, Value};

/// The Secret's type. Helm ignores Secrets of another type when it counts revisions.
pub const SECRET_TYPE: &str = "helm.sh/release.v1";

/// Selects the Secrets of all releases.
pub const LABEL_SELECTOR: &str = "owner=helm";

/// A record that unpacks to more is not one that Helm wrote: a Secret holds at most 1 MiB.
const UNPACKED_MAX: u64 = 64 << 20;

/// One revision of a release. What is not named here is kept in `rest`, so that writing loses nothing.
#[derive(Clone, PartialEq)]
pub struct Release {
    pub name: String,
    pub namespace: String,
    pub revision: u64,
    pub status: ReleaseStatus,
    /// Free text of the last operation. Not inherited by the next revision, unlike labels.
    pub description: String,
    pub chart: String,
    pub chart_version: String,
    /// The user's values, without the chart's defaults.
    pub config: Value,
    rest: Map<String, Value>,
}

/// Values and manifest may hold secrets, so they are not printed.
impl std::fmt::Debug for Release {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Release")
            .field("name", &self.name)
            .field("namespace", &self.namespace)
            .field("revision", &self.revision)
            .field("status", &self.status)
            .field("description", &self.description)
            .field("chart", &self.chart)
            .field("chart_version", &self.chart_version)
            .finish_non_exhaustive()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReleaseStatus {
    Unknown,
    Deployed,
    Uninstalled,
    Superseded,
    Failed,
    Uninstalling,
    PendingInstall,
    PendingUpgrade,
    PendingRollback,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReleaseError {
    #[error("the release record is not base64")]
    Base64,
    #[error("the release record cannot be unpacked")]
    Gzip,
    #[error("the release record is not JSON")]
    Json,
    #[error("the release record has no `{0}`")]
    Missing(&'static str),
}

impl ReleaseStatus {
    pub const ALL: [Self; 9] = [
        Self::Unknown,
        Self::Deployed,
        Self::Uninstalled,
        Self::Superseded,
        Self::Failed,
        Self::Uninstalling,
        Self::PendingInstall,
        Self::PendingUpgrade,
        Self::PendingRollback,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Deployed => "deployed",
            Self::Uninstalled => "uninstalled",
            Self::Superseded => "superseded",
            Self::Failed => "failed",
            Self::Uninstalling => "uninstalling",
            Self::PendingInstall => "pending-install",
            Self::PendingUpgrade => "pending-upgrade",
            Self::PendingRollback => "pending-rollback",
        }
    }

    /// A status that this program does not know reads as unknown.
    pub fn parse(text: &str) -> Self {
        let known = Self::ALL.into_iter().find(|status| status.as_str() == text);
        known.unwrap_or(Self::Unknown)
    }

    /// Helm refuses every operation while a release is in one of these.
    pub const fn is_pending(self) -> bool {
        matches!(self, Self::PendingInstall | Self::PendingUpgrade | Self::PendingRollback)
    }
}

impl Release {
    /// A first revision, as another program writes it: Helm lists and upgrades such a release.
    pub fn new(name: &str, namespace: &str, chart: &str, chart_version: &str, config: Value) -> Self {
        Self {
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            revision: 1,
            status: ReleaseStatus::Deployed,
            description: String::new(),
            chart: chart.to_owned(),
            chart_version: chart_version.to_owned(),
            config,
            rest: Map::new(),
        }
    }

    /// Decodes `data.release`, the Secret's own base64 already taken off.
    pub fn decode(data: &[u8]) -> Result<Self, ReleaseError> {
        let packed = STANDARD.decode(data.trim_ascii()).map_err(|_| ReleaseError::Base64)?;
        // Helm also reads records that were never compressed.
        let json = if packed.starts_with(&[0x1f, 0x8b, 0x08]) {
            let mut json = Vec::new();
            let mut reader = GzDecoder::new(&packed[..]).take(UNPACKED_MAX);
            reader.read_to_end(&mut json).map_err(|_| ReleaseError::Gzip)?;
            json
        } else {
            packed
        };
        let record: Map<String, Value> = serde_json::from_slice(&json).map_err(|_| ReleaseError::Json)?;
        Self::from_record(record)
    }

    fn from_record(mut record: Map<String, Value>) -> Result<Self, ReleaseError> {
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap_or_default().to_owned();
        let name = text(record.get("name"));
        if name.is_empty() {
            return Err(ReleaseError::Missing("name"));
        }
        let revision = record
            .get("version")
            .and_then(Value::as_u64)
            .ok_or(ReleaseError::Missing("version"))?;
        let info = record.get("info").cloned().unwrap_or_default();
        let metadata = record
            .get("chart")
            .and_then(|chart| chart.get("metadata"))
            .cloned()
            .unwrap_or_default();
        // Helm writes null where the user gave no values.
        let config = match record.shift_remove("config") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(config) => config,
        };
        Ok(Self {
            name,
            namespace: text(record.get("namespace")),
            revision,
            status: ReleaseStatus::parse(&text(info.get("status"))),
            description: text(info.get("description")),
            chart: text(metadata.get("name")),
            chart_version: text(metadata.get("version")),
            config,
            rest: record,
        })
    }

    /// Encodes for `data.release`, before the Secret's own base64. The same release gives the same bytes.
    pub fn encode(&self) -> Vec<u8> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        let json = serde_json::to_vec(&self.record()).expect("values are JSON");
        encoder.write_all(&json).expect("writing to memory");
        let packed = encoder.finish().expect("writing to memory");
        STANDARD.encode(packed).into_bytes()
    }

    fn record(&self) -> Value {
        let mut record = Value::Object(self.rest.clone());
        record["name"] = self.name.clone().into();
        record["namespace"] = self.namespace.clone().into();
        record["version"] = self.revision.into();
        record["config"] = self.config.clone();
        // `helm list` panics on a record without `info`.
        set(&mut record, &["info", "status"], self.status.as_str());
        set(&mut record, &["info", "description"], &self.description);
        set(&mut record, &["chart", "metadata", "name"], &self.chart);
        set(&mut record, &["chart", "metadata", "version"], &self.chart_version);
        if record["chart"]["metadata"].get("apiVersion").is_none() {
            record["chart"]["metadata"]["apiVersion"] = "v2".into();
        }
        if record.get("manifest").is_none() {
            record["manifest"] = "".into();
        }
        record
    }

    /// `sh.helm.release.v1.<name>.v<revision>`.
    pub fn secret_name(&self) -> String {
        format!("sh.helm.release.v1.{}.v{}", self.name, self.revision)
    }

    /// Labels without which Helm does not see the Secret.
    pub fn labels(&self) -> BTreeMap<String, String> {
        [
            ("owner", "helm".to_owned()),
            ("name", self.name.clone()),
            ("version", self.revision.to_string()),
            ("status", self.status.as_str().to_owned()),
        ]
        .into_iter()
        .map(|(key, value)| (key.to_owned(), value))
        .collect()
    }

    /// The rendered manifest, if Helm kept one.
    pub fn manifest(&self) -> &str {
        self.rest.get("manifest").and_then(Value::as_str).unwrap_or_default()
    }
}

fn set(record: &mut Value, path: &[&str], text: &str) {
    let mut at = record;
    for key in path {
        if !at.is_object() {
            *at = Value::Object(Map::new());
        }
        at = &mut at[*key];
    }
    *at = text.into();
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn release() -> Release {
        let mut release = Release::new("cilium", "kube-system", "cilium", "1.18.3", json!({"a": {"b": 1}}));
        release.description = "mainstay 0123".into();
        release
    }

    fn raw(value: &Value) -> Vec<u8> {
        STANDARD.encode(serde_json::to_vec(value).expect("JSON")).into_bytes()
    }

    #[test]
    fn a_release_is_read_back_and_written_the_same_way_each_time() {
        let release = release();
        let read = Release::decode(&release.encode()).expect("a release");
        assert_eq!((&read.config, &read.description), (&release.config, &release.description));
        assert_eq!((read.chart.as_str(), read.chart_version.as_str()), ("cilium", "1.18.3"));
        assert_eq!(release.encode(), release.encode());
        assert_eq!(release.secret_name(), "sh.helm.release.v1.cilium.v1");
        assert_eq!(release.labels()["owner"], "helm");
    }

    #[test]
    fn fields_that_are_not_ours_survive() {
        let record = json!({
            "name": "x", "namespace": "n", "version": 3, "apply_method": "ssa", "hooks": [{"name": "h"}], "config": null, "manifest": "---\n",
            "info": {"status": "pending-upgrade", "first_deployed": "2026-01-01T00:00:00Z", "deleted": ""},
            "chart": {"metadata": {"name": "x", "version": "1", "apiVersion": "v1"}, "templates": [{"name": "t", "data": "eA=="}]},
        });
        let read = Release::decode(&raw(&record)).expect("a record without gzip");
        assert!(read.status.is_pending());
        assert_eq!(read.config, json!({}));
        let again = Release::decode(&read.encode()).expect("a release");
        let mut expected = record;
        expected["config"] = json!({});
        expected["info"]["description"] = json!("");
        assert_eq!(again.record(), expected);
        assert_eq!(again.manifest(), "---\n");
    }

    #[test]
    fn values_are_not_printed() {
        let secret = Release::new("x", "n", "x", "1", json!({"password": "CANARY"}));
        assert!(!format!("{secret:?}").contains("CANARY"));
    }

    #[test]
    fn a_record_is_never_written_without_info() {
        assert_eq!(release().record()["info"]["status"], "deployed");
    }

    #[test]
    fn what_is_no_record_is_an_error() {
        assert_eq!(Release::decode(b"%%%"), Err(ReleaseError::Base64));
        assert_eq!(
            Release::decode(&STANDARD.encode([0x1f, 0x8b, 8, 0]).into_bytes()),
            Err(ReleaseError::Gzip)
        );
        assert_eq!(
            Release::decode(&STANDARD.encode("text").into_bytes()),
            Err(ReleaseError::Json)
        );
        assert_eq!(
            Release::decode(&raw(&json!({"version": 1}))),
            Err(ReleaseError::Missing("name"))
        );
        assert_eq!(
            Release::decode(&raw(&json!({"name": "x"}))),
            Err(ReleaseError::Missing("version"))
        );
    }

    #[test]
    fn every_status_has_its_own_word() {
        for status in ReleaseStatus::ALL {
            assert_eq!(ReleaseStatus::parse(status.as_str()), status);
        }
        assert_eq!(ReleaseStatus::parse("new-in-helm-5"), ReleaseStatus::Unknown);
    }
}
