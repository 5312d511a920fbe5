//! Helm releases, as Helm itself stores them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::Secret as KubeSecret;
use kube::api::{Api, ListParams};
use mainstay_net::Secret;

use crate::{Cluster, Error};

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

impl ReleaseRevision {
    /// `data.release` as Helm wrote it, the Secret's own base64 taken off. `helm-charts` decodes it.
    pub fn payload(&self) -> &Secret<Vec<u8>> {
        &self.payload
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
