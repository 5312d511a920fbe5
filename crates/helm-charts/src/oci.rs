//! What an OCI registry says: manifests and the token challenge.

use serde::Deserialize;
use url::Url;

use crate::digest::Sha256Digest;

pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CHART_LAYER: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ManifestError {
    #[error("the manifest cannot be read")]
    Malformed,
    #[error("the manifest is not one of a Helm chart")]
    NotAChart,
}

/// The layer that holds the chart. A provenance layer may come before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChartLayer {
    pub digest: Sha256Digest,
    pub size: u64,
}

pub(crate) fn chart_layer(manifest: &[u8]) -> Result<ChartLayer, ManifestError> {
    #[derive(Deserialize)]
    struct Manifest {
        layers: Vec<Layer>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Layer {
        media_type: String,
        digest: String,
        size: u64,
    }
    let manifest: Manifest = serde_json::from_slice(manifest).map_err(|_| ManifestError::Malformed)?;
    let layer = manifest.layers.into_iter().find(|layer| layer.media_type == CHART_LAYER);
    let layer = layer.ok_or(ManifestError::NotAChart)?;
    Ok(ChartLayer {
        digest: layer.digest.parse().map_err(|_| ManifestError::Malformed)?,
        size: layer.size,
    })
}

/// A tag cannot hold `+`, so Helm writes `_`.
pub(crate) fn tag(version: &str) -> String {
    version.replace('+', "_")
}

/// What `WWW-Authenticate: Bearer …` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Challenge {
    pub realm: Url,
    pub service: Option<String>,
    pub scope: Option<String>,
}

impl Challenge {
    /// `None` if it is not a bearer challenge.
    pub fn parse(header: &str) -> Option<Self> {
        let rest = header.trim();
        let (scheme, rest) = rest.split_once(' ')?;
        if !scheme.eq_ignore_ascii_case("bearer") {
            return None;
        }
        let parameters = parameters(rest);
        let get = |name: &str| {
            let found = parameters.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.clone())
        };
        Some(Self {
            realm: Url::parse(&get("realm")?).ok()?,
            service: get("service"),
            scope: get("scope"),
        })
    }

    /// The address that gives a token for reading `repository`.
    pub fn token_url(&self, repository: &str) -> Url {
        let mut url = self.realm.clone();
        let scope = self.scope.clone().unwrap_or_else(|| format!("repository:{repository}:pull"));
        let mut query = url.query_pairs_mut();
        if let Some(service) = &self.service {
            query.append_pair("service", service);
        }
        query.append_pair("scope", &scope);
        drop(query);
        url
    }
}

/// `key="value",key=value`. A comma inside of quotes belongs to the value (`scope="repository:x:pull,push"`).
fn parameters(text: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut rest = text.trim();
    while let Some((key, after)) = rest.split_once('=') {
        let (value, remaining) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"').unwrap_or((quoted, "")),
            None => after.split_once(',').unwrap_or((after, "")),
        };
        found.push((key.trim().to_owned(), value.to_owned()));
        rest = remaining.trim_start_matches([',', ' ']);
    }
    found
}

/// The token in a token server's answer: either name is in use.
pub(crate) fn token(answer: &[u8]) -> Option<String> {
    #[derive(Deserialize)]
    struct Answer {
        token: Option<String>,
        access_token: Option<String>,
    }
    let answer: Answer = serde_json::from_slice(answer).ok()?;
    let token = answer.token.or(answer.access_token)?;
    // It goes into a header.
    (!token.is_empty() && token.bytes().all(|byte| byte.is_ascii_graphic())).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_challenge_is_read_also_with_commas_in_its_scope() {
        let header =
            r#"Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push""#;
        let challenge = Challenge::parse(header).expect("a challenge");
        assert_eq!(challenge.service.as_deref(), Some("registry.docker.io"));
        assert_eq!(challenge.scope.as_deref(), Some("repository:a/b:pull,push"));
        assert_eq!(
            challenge.token_url("a/b").as_str(),
            "https://auth.docker.io/token?service=registry.docker.io&scope=repository%3Aa%2Fb%3Apull%2Cpush"
        );
        assert_eq!(Challenge::parse(r#"Basic realm="x""#), None);
        assert_eq!(Challenge::parse("Bearer"), None);
    }

    #[test]
    fn the_chart_layer_is_found_behind_a_provenance_layer() {
        let digest = format!("sha256:{}", "a".repeat(64));
        let manifest = serde_json::json!({"schemaVersion": 2, "layers": [
            {"mediaType": "application/vnd.cncf.helm.chart.provenance.v1.prov", "digest": format!("sha256:{}", "b".repeat(64)), "size": 1},
            {"mediaType": CHART_LAYER, "digest": digest, "size": 7},
        ]});
        let layer = chart_layer(manifest.to_string().as_bytes()).expect("a layer");
        assert_eq!((layer.digest.to_string(), layer.size), (digest, 7));
        let image = serde_json::json!({"layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar+gzip", "digest": "sha256:0", "size": 1}]});
        assert_eq!(chart_layer(image.to_string().as_bytes()), Err(ManifestError::NotAChart));
        assert_eq!(chart_layer(b"{}"), Err(ManifestError::Malformed));
    }

    #[test]
    fn a_plus_in_a_version_becomes_an_underscore_in_the_tag() {
        assert_eq!(tag("1.2.3+up1"), "1.2.3_up1");
    }

    #[test]
    fn a_token_that_could_break_out_of_its_header_is_refused() {
        assert_eq!(token(br#"{"token": "abc"}"#).as_deref(), Some("abc"));
        assert_eq!(token(br#"{"access_token": "abc"}"#).as_deref(), Some("abc"));
        assert_eq!(token(b"{\"token\": \"a\\r\\nX: y\"}"), None);
        assert_eq!(token(b"{}"), None);
    }
}
