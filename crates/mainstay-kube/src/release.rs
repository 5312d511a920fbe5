//! Helm releases, as Helm itself stores them.

use std::collections::BTreeMap;
use std::io::Read;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{Api, ListParams};
use mainstay_net::Secret;
use serde_json::Value;

use crate::{Cluster, Error};

/// A release cannot be larger than its Secret (1 MiB); this bounds what a crafted one unpacks to.
const PAYLOAD_MAX: u64 = 64 * 1024 * 1024;

/// One revision of a release. Its values may hold secrets, so the payload is not printed.
#[derive(Debug, Clone)]
pub struct ReleaseRevision {
    pub namespace: String,
    pub release: String,
    pub revision: u64,
    /// `deployed`, `failed`, `pending-upgrade`, ...
    pub status: String,
    pub labels: BTreeMap<String, String>,
    payload: Secret<Vec<u8>>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("revision {revision} of release {release} cannot be read: {why}")]
pub struct ReleaseUnreadable {
    pub release: String,
    pub revision: u64,
    pub why: String,
}

impl ReleaseRevision {
    /// The release as Helm wrote it: `info`, `chart`, `config`, `manifest`, `hooks`.
    pub fn decode(&self) -> Result<Value, ReleaseUnreadable> {
        let unreadable = |why: &str| ReleaseUnreadable {
            release: self.release.clone(),
            revision: self.revision,
            why: why.to_owned(),
        };
        let packed = STANDARD
            .decode(self.payload.expose())
            .map_err(|_| unreadable("it is not base64"))?;
        let bytes = if packed.starts_with(&[0x1f, 0x8b, 0x08]) {
            let mut bytes = Vec::new();
            let mut unpacked = GzDecoder::new(packed.as_slice()).take(PAYLOAD_MAX + 1);
            unpacked.read_to_end(&mut bytes).map_err(|_| unreadable("it is not gzip"))?;
            bytes
        } else {
            packed
        };
        if bytes.len() as u64 > PAYLOAD_MAX {
            return Err(unreadable("it is too large"));
        }
        // The parser's message could quote the values.
        serde_json::from_slice(&bytes).map_err(|_| unreadable("it is not JSON"))
    }
}

impl Cluster {
    /// All revisions of all releases, or of one namespace, by namespace, name and revision.
    pub async fn release_revisions(&self, namespace: Option<&str>) -> Result<Vec<ReleaseRevision>, Error> {
        let api: Api<KubeSecret> = match namespace {
            Some(namespace) => Api::namespaced(self.client.clone(), namespace),
            None => Api::all(self.client.clone()),
        };
        let mut params = ListParams::default()
            .labels("owner=helm")
            .fields("type=helm.sh/release.v1")
            .limit(50);
        let mut found = Vec::new();
        loop {
            let page = self.within("releases", api.list(&params)).await?;
            found.extend(page.items.into_iter().filter_map(revision));
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params = params.continue_token(&token),
                None => break,
            }
        }
        found.sort_by(|a, b| (&a.namespace, &a.release, a.revision).cmp(&(&b.namespace, &b.release, b.revision)));
        Ok(found)
    }
}

/// Newest revision of each release. `revisions` are in the order of [`Cluster::release_revisions`].
pub fn newest_revisions(revisions: Vec<ReleaseRevision>) -> Vec<ReleaseRevision> {
    let mut newest: BTreeMap<(String, String), ReleaseRevision> = BTreeMap::new();
    for revision in revisions {
        let key = (revision.namespace.clone(), revision.release.clone());
        match newest.get(&key) {
            Some(known) if known.revision > revision.revision => {}
            _ => drop(newest.insert(key, revision)),
        }
    }
    newest.into_values().collect()
}

/// `None` for a Secret that only looks like a release.
fn revision(secret: KubeSecret) -> Option<ReleaseRevision> {
    let labels = secret.metadata.labels.unwrap_or_default();
    let name = secret.metadata.name?;
    // The name is what Helm reads by; labels may be missing.
    let (release, revision) = name.strip_prefix("sh.helm.release.v1.")?.rsplit_once(".v")?;
    Some(ReleaseRevision {
        namespace: secret.metadata.namespace.unwrap_or_default(),
        release: release.to_owned(),
        revision: revision.parse().ok()?,
        status: labels.get("status").cloned().unwrap_or_default(),
        payload: Secret::new(secret.data?.remove("release")?.0),
        labels,
    })
}
