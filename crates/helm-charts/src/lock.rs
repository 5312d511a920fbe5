//! `cluster.lock.yaml`: exact versions and digests of everything that is downloaded. Pure: texts in, texts out.

use std::collections::BTreeMap;
use std::fmt::Write;

use serde::Deserialize;
use serde_json::Value;

use crate::digest::Sha256Digest;

const FORMAT: u32 = 1;

const HEAD: &str = "\
# Written by mainstay. Keep it in version control beside the cluster's file: it pins what is downloaded.
# Charts move with `mainstay addons update`; everything else moves with the versions in the cluster's file.
";

/// What is pinned. Every part is optional: a file without a part pins nothing there.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct LockFile {
    /// By release name.
    pub charts: BTreeMap<String, ChartPin>,
    /// Release files of RKE2 or k3s, by version, then by file name.
    pub artifacts: BTreeMap<String, ArtifactPin>,
    /// Cloud images, by the name in the cluster's file.
    pub images: BTreeMap<String, ImagePin>,
    /// Host keys of Git servers, by host: one line each, as in `known_hosts` without the host.
    pub known_hosts: BTreeMap<String, Vec<String>>,
    /// The VMID under which the CSI driver's volumes are kept.
    pub csi_controller_vmid: Option<u32>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ChartPin {
    pub source: String,
    pub version: String,
    /// The digest of the OCI manifest; absent for HTTP repositories.
    #[serde(default)]
    pub manifest: Option<Sha256Digest>,
    pub archive: Sha256Digest,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct ArtifactPin {
    pub files: BTreeMap<String, Sha256Digest>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct ImagePin {
    /// A dated address.
    pub url: String,
    /// `sha256:<hex>` or `sha512:<hex>`.
    pub checksum: String,
}

/// What became of asking for a pin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pin<'a> {
    /// Pull exactly this.
    Exact(&'a ChartPin),
    /// The file asks for another version or source than the lock: resolve and write a new pin.
    Stale,
    Absent,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LockError {
    #[error("the lock file has a merge conflict between `{ours}` and `{theirs}` at line {line}")]
    Conflict { line: usize, ours: String, theirs: String },
    #[error("the lock file has the format {0}; this program reads {FORMAT}")]
    Format(u64),
    #[error("the lock file cannot be read: {0}")]
    Malformed(String),
    #[error("the chart {release} {version} has another digest than the one that was pinned")]
    ChangedChart { release: String, version: String },
}

impl LockFile {
    /// An empty text is an empty lock.
    pub fn parse(text: &str) -> Result<Self, LockError> {
        if let Some(conflict) = conflict(text) {
            return Err(conflict);
        }
        let malformed = |problem: String| LockError::Malformed(problem.lines().next().unwrap_or_default().to_owned());
        let root: Option<Value> = serde_saphyr::from_str(text).map_err(|problem| malformed(problem.to_string()))?;
        let Some(mut root) = root.filter(|root| !root.is_null()) else {
            return Ok(Self::default());
        };
        let map = root.as_object_mut().ok_or_else(|| malformed("it is not a map".to_owned()))?;
        match map.shift_remove("version").and_then(|version| version.as_u64()) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => return Err(LockError::Format(format)),
            None => return Err(malformed("it has no `version`".to_owned())),
        }
        Self::deserialize(root).map_err(|problem| malformed(problem.to_string()))
    }

    /// Sorted, one block per entry, so that changes of two branches rarely touch the same lines.
    pub fn to_yaml(&self) -> String {
        let mut text = format!("{HEAD}version: {FORMAT}\n");
        section(&mut text, "charts", &self.charts, |text, pin| {
            line(text, 4, "source", &pin.source);
            line(text, 4, "version", &pin.version);
            if let Some(manifest) = pin.manifest {
                line(text, 4, "manifest", &manifest.to_string());
            }
            line(text, 4, "archive", &pin.archive.to_string());
        });
        section(&mut text, "artifacts", &self.artifacts, |text, pin| {
            for (file, digest) in &pin.files {
                line(text, 4, &quoted(file), &digest.to_string());
            }
        });
        section(&mut text, "images", &self.images, |text, pin| {
            line(text, 4, "url", &pin.url);
            line(text, 4, "checksum", &pin.checksum);
        });
        section(&mut text, "known-hosts", &self.known_hosts, |text, keys| {
            for key in keys {
                let _ = writeln!(text, "    - {}", quoted(key));
            }
        });
        if let Some(vmid) = self.csi_controller_vmid {
            let _ = writeln!(text, "csi-controller-vmid: {vmid}");
        }
        text
    }

    /// The pin of a chart at the wanted source and version.
    pub fn chart(&self, release: &str, source: &str, version: &str) -> Pin<'_> {
        match self.charts.get(release) {
            None => Pin::Absent,
            Some(pin) if pin.source == source && pin.version == version => Pin::Exact(pin),
            Some(_) => Pin::Stale,
        }
    }

    /// Records a chart that was pulled. The same version with another digest is refused: the published chart was replaced.
    pub fn pin_chart(&mut self, release: &str, pin: ChartPin) -> Result<(), LockError> {
        let known = self.charts.get(release);
        let same_version = known.filter(|known| known.source == pin.source && known.version == pin.version);
        if same_version.is_some_and(|known| known.archive != pin.archive) {
            return Err(LockError::ChangedChart {
                release: release.to_owned(),
                version: pin.version,
            });
        }
        self.charts.insert(release.to_owned(), pin);
        Ok(())
    }
}

fn conflict(text: &str) -> Option<LockError> {
    let name = |line: &str| line.trim_start_matches(['<', '>']).trim().to_owned();
    let mut lines = text.lines().enumerate();
    let (number, ours) = lines.find(|(_, line)| line.starts_with("<<<<<<<"))?;
    let theirs = lines.find(|(_, line)| line.starts_with(">>>>>>>"));
    Some(LockError::Conflict {
        line: number + 1,
        ours: name(ours),
        theirs: theirs.map(|(_, line)| name(line)).unwrap_or_default(),
    })
}

fn section<T>(text: &mut String, name: &str, entries: &BTreeMap<String, T>, write: impl Fn(&mut String, &T)) {
    if entries.is_empty() {
        return;
    }
    let _ = writeln!(text, "{name}:");
    for (key, entry) in entries {
        let mut body = String::new();
        write(&mut body, entry);
        let empty = if body.is_empty() { " {}" } else { "" };
        let _ = write!(text, "  {}:{empty}\n{body}", quoted(key));
    }
}

fn line(text: &mut String, indent: usize, key: &str, value: &str) {
    let _ = writeln!(text, "{:indent$}{key}: {}", "", quoted(value));
}

/// JSON's quotes are YAML's double quotes.
fn quoted(text: &str) -> String {
    Value::String(text.to_owned()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(text: &str) -> Sha256Digest {
        Sha256Digest::of(text.as_bytes())
    }

    fn pin(version: &str, content: &str) -> ChartPin {
        ChartPin {
            source: "oci://quay.io/cilium/charts/cilium".into(),
            version: version.into(),
            manifest: Some(digest("manifest")),
            archive: digest(content),
        }
    }

    fn full() -> LockFile {
        let artifacts = ArtifactPin {
            files: [("rke2.linux-amd64.tar.gz".to_owned(), digest("rke2"))].into(),
        };
        let image = ImagePin {
            url: "https://cloud-images.ubuntu.com/noble/20260810/noble-server-cloudimg-amd64.img".into(),
            checksum: digest("image").to_string(),
        };
        LockFile {
            charts: [("cilium".to_owned(), pin("1.18.3", "chart"))].into(),
            artifacts: [("v1.36.3+rke2r1".to_owned(), artifacts)].into(),
            images: [("ubuntu-24.04".to_owned(), image)].into(),
            known_hosts: [("github.com".to_owned(), vec!["ssh-ed25519 AAAA".to_owned()])].into(),
            csi_controller_vmid: Some(99_123),
        }
    }

    #[test]
    fn the_file_is_read_back_and_is_stable() {
        let text = full().to_yaml();
        assert_eq!(LockFile::parse(&text), Ok(full()));
        assert!(text.starts_with(HEAD));
        let body = &text[HEAD.len()..];
        let expected = format!(
            "version: 1\ncharts:\n  \"cilium\":\n    source: \"oci://quay.io/cilium/charts/cilium\"\n    version: \"1.18.3\"\n    \
             manifest: \"{}\"\n    archive: \"{}\"\nartifacts:\n  \"v1.36.3+rke2r1\":\n    \"rke2.linux-amd64.tar.gz\": \"{}\"\nimages:\n  \
             \"ubuntu-24.04\":\n    url: \"https://cloud-images.ubuntu.com/noble/20260810/noble-server-cloudimg-amd64.img\"\n    \
             checksum: \"{}\"\nknown-hosts:\n  \"github.com\":\n    - \"ssh-ed25519 AAAA\"\ncsi-controller-vmid: 99123\n",
            digest("manifest"),
            digest("chart"),
            digest("rke2"),
            digest("image"),
        );
        assert_eq!(body, expected);
        assert_eq!(LockFile::parse(""), Ok(LockFile::default()));
        assert_eq!(LockFile::parse(&LockFile::default().to_yaml()), Ok(LockFile::default()));
    }

    #[test]
    fn a_merge_conflict_is_named_with_both_sides() {
        let text = "version: 1\n<<<<<<< HEAD\ncharts: {}\n=======\nimages: {}\n>>>>>>> feature\n";
        assert_eq!(
            LockFile::parse(text),
            Err(LockError::Conflict {
                line: 2,
                ours: "HEAD".into(),
                theirs: "feature".into()
            })
        );
    }

    #[test]
    fn another_format_and_unknown_keys_are_refused() {
        assert_eq!(LockFile::parse("version: 2\n"), Err(LockError::Format(2)));
        assert!(matches!(LockFile::parse("charts: {}\n"), Err(LockError::Malformed(_))));
        assert!(matches!(
            LockFile::parse("version: 1\nchart: {}\n"),
            Err(LockError::Malformed(_))
        ));
        assert!(matches!(LockFile::parse("- 1\n"), Err(LockError::Malformed(_))));
    }

    #[test]
    fn a_pin_holds_for_its_source_and_version_only() {
        let lock = full();
        let source = "oci://quay.io/cilium/charts/cilium";
        assert!(matches!(lock.chart("cilium", source, "1.18.3"), Pin::Exact(_)));
        assert_eq!(lock.chart("cilium", source, "1.18.4"), Pin::Stale);
        assert_eq!(lock.chart("cilium", "oci://elsewhere.example/cilium", "1.18.3"), Pin::Stale);
        assert_eq!(lock.chart("longhorn", source, "1.18.3"), Pin::Absent);
    }

    #[test]
    fn a_published_chart_that_changed_is_refused_and_a_new_version_is_not() {
        let mut lock = full();
        assert!(matches!(
            lock.pin_chart("cilium", pin("1.18.3", "tampered")),
            Err(LockError::ChangedChart { .. })
        ));
        assert_eq!(lock, full(), "unchanged");
        lock.pin_chart("cilium", pin("1.18.3", "chart")).expect("the same");
        lock.pin_chart("cilium", pin("1.18.4", "new")).expect("another version");
        assert_eq!(lock.charts["cilium"].version, "1.18.4");
    }
}
