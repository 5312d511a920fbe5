//! What is inside a chart archive.

use std::collections::BTreeMap;
use std::io::Read;

use flate2::read::GzDecoder;
use serde::Deserialize;
use serde_json::Value;

use crate::digest::Sha256Digest;

/// The largest archive whose base64 text still fits into a ConfigMap beside its metadata.
pub const CONFIG_MAP_MAX: usize = 760 * 1024;

/// Bounds for archives that were not made by Helm: a small archive can unpack to terabytes.
const UNPACKED_MAX: u64 = 64 << 20;
const ENTRIES_MAX: usize = 10_000;
/// Subcharts inside of subcharts.
const DEPTH_MAX: usize = 4;

/// A chart archive, looked into.
#[derive(Debug, Clone, PartialEq)]
pub struct ChartArchive {
    pub name: String,
    pub version: String,
    pub app_version: Option<String>,
    /// The chart's default values.
    pub values: Value,
    /// CRD files of the chart and its subcharts, by path. Helm installs them once and never updates them.
    pub crds: BTreeMap<String, String>,
    pub sha256: Sha256Digest,
    pub size: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchiveError {
    #[error("the chart archive cannot be unpacked: {0}")]
    Unpack(String),
    #[error("the chart archive unpacks to more than {} MiB or {ENTRIES_MAX} files", UNPACKED_MAX >> 20)]
    TooLarge,
    #[error("the chart archive is {size} bytes; at most {CONFIG_MAP_MAX} fit into the cluster")]
    NotPlaceable { size: usize },
    #[error("the chart archive has no {0}")]
    Missing(&'static str),
    #[error("the chart's {0} cannot be read")]
    Yaml(&'static str),
    #[error("the archive holds the chart `{name}` {version}, not `{wanted_name}` {wanted_version}")]
    Other {
        name: String,
        version: String,
        wanted_name: String,
        wanted_version: String,
    },
}

impl ChartArchive {
    pub fn read(bytes: &[u8]) -> Result<Self, ArchiveError> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            name: String,
            version: String,
            app_version: Option<Scalar>,
        }
        let files = unpack(bytes, 0, &mut Budget::default())?;
        let text = |name: &str| files.get(name).map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        let metadata = text("Chart.yaml").ok_or(ArchiveError::Missing("Chart.yaml"))?;
        let metadata: Metadata = serde_saphyr::from_str(&metadata).map_err(|_| ArchiveError::Yaml("Chart.yaml"))?;
        let values = match text("values.yaml") {
            Some(text) if !text.trim().is_empty() => {
                serde_saphyr::from_str(&text).map_err(|_| ArchiveError::Yaml("values.yaml"))?
            }
            _ => Value::Null,
        };
        let is_crd = |path: &str| {
            let in_directory = path.starts_with("crds/") || path.contains("/crds/");
            in_directory && (path.ends_with(".yaml") || path.ends_with(".yml"))
        };
        let crds = files.iter().filter(|(path, _)| is_crd(path));
        Ok(Self {
            name: metadata.name,
            version: metadata.version,
            app_version: metadata.app_version.map(|version| version.0),
            // A file of comments only is null.
            values: if values.is_null() {
                Value::Object(serde_json::Map::new())
            } else {
                values
            },
            crds: crds
                .map(|(path, bytes)| (path.clone(), String::from_utf8_lossy(bytes).into_owned()))
                .collect(),
            sha256: Sha256Digest::of(bytes),
            size: bytes.len(),
        })
    }

    /// Refuses an archive that is not the chart that was asked for. Versions compare as texts, apart from a leading `v`.
    pub fn expect(self, name: &str, version: &str) -> Result<Self, ArchiveError> {
        let bare = |text: &str| text.strip_prefix('v').unwrap_or(text).to_owned();
        if self.name == name && bare(&self.version) == bare(version) {
            return Ok(self);
        }
        Err(ArchiveError::Other {
            name: self.name,
            version: self.version,
            wanted_name: name.to_owned(),
            wanted_version: version.to_owned(),
        })
    }

    /// Whether the archive can be handed to the cluster.
    pub fn check_placeable(&self) -> Result<(), ArchiveError> {
        if self.size > CONFIG_MAP_MAX {
            return Err(ArchiveError::NotPlaceable { size: self.size });
        }
        Ok(())
    }

    /// The first level of the chart's values: what a user may set.
    pub fn value_keys(&self) -> Vec<&str> {
        let map = self.values.as_object();
        map.into_iter().flat_map(|map| map.keys().map(String::as_str)).collect()
    }
}

/// `appVersion: 1.30` without quotes is a number to YAML.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::String(text) => Ok(Self(text)),
            other => Ok(Self(other.to_string())),
        }
    }
}

/// What is left to unpack, over all nested archives.
struct Budget {
    bytes: u64,
    entries: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: UNPACKED_MAX,
            entries: ENTRIES_MAX,
        }
    }
}

/// The files of an archive by path below the chart's directory. Archives of subcharts are unpacked too.
fn unpack(bytes: &[u8], depth: usize, budget: &mut Budget) -> Result<BTreeMap<String, Vec<u8>>, ArchiveError> {
    let broken = |error: std::io::Error| ArchiveError::Unpack(error.to_string());
    if depth > DEPTH_MAX {
        return Err(ArchiveError::TooLarge);
    }
    let mut files = BTreeMap::new();
    let mut archive = tar::Archive::new(GzDecoder::new(bytes));
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().map_err(broken)?.to_string_lossy().into_owned();
        // Everything lies below one directory, whose name is not always the chart's.
        let Some((_, path)) = path.trim_start_matches("./").split_once('/') else {
            continue;
        };
        let path = path.to_owned();
        let content = take(&mut entry, budget)?;
        if path.starts_with("charts/") && path.ends_with(".tgz") {
            let directory = path.trim_end_matches(".tgz").to_owned();
            let nested = unpack(&content, depth + 1, budget)?;
            files.extend(
                nested
                    .into_iter()
                    .map(|(name, content)| (format!("{directory}/{name}"), content)),
            );
        } else {
            files.insert(path, content);
        }
    }
    Ok(files)
}

fn take(entry: &mut impl Read, budget: &mut Budget) -> Result<Vec<u8>, ArchiveError> {
    budget.entries = budget.entries.checked_sub(1).ok_or(ArchiveError::TooLarge)?;
    let mut content = Vec::new();
    let mut limited = entry.take(budget.bytes + 1);
    limited
        .read_to_end(&mut content)
        .map_err(|error| ArchiveError::Unpack(error.to_string()))?;
    let read = content.len() as u64;
    budget.bytes = budget.bytes.checked_sub(read).ok_or(ArchiveError::TooLarge)?;
    Ok(content)
}
