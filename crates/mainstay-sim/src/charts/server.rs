//! The servers that publish charts: OCI registries with a token flow, and repositories with an `index.yaml`.

use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::ChartWorld;
use super::catalogue::{self, Place};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.cncf.helm.config.v1+json";
const CONTENT: &str = "application/vnd.cncf.helm.chart.content.v1.tar+gzip";
/// What the token service gives; registries take no other.
const TOKEN: &str = "simulated-registry-token";

/// Answers for every chart host, by the name in the request.
pub(crate) fn router(world: &Arc<ChartWorld>) -> Router {
    let world = Arc::clone(world);
    Router::new().fallback(move |request: Request| {
        let world = Arc::clone(&world);
        async move {
            let named = request.headers().get(header::HOST).and_then(|value| value.to_str().ok());
            let host = named.or(request.uri().host()).unwrap_or_default();
            let host = host.split(':').next().unwrap_or_default().to_owned();
            answer(&world, &host, &request)
        }
    })
}

fn answer(world: &ChartWorld, host: &str, request: &Request) -> Response {
    if world.faults().outage.contains(host) {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    }
    let path = request.uri().path();
    if path == "/token" || path == "/v2/auth" {
        return axum::Json(json!({"token": TOKEN, "expires_in": 300})).into_response();
    }
    if let Some(rest) = path.strip_prefix("/v2/") {
        return registry(world, host, rest, request);
    }
    repository(world, host, path)
}

fn registry(world: &ChartWorld, host: &str, rest: &str, request: &Request) -> Response {
    let found = ["/manifests/", "/blobs/"].into_iter().find_map(|word| {
        rest.split_once(word)
            .map(|(repository, reference)| (word, repository, reference))
    });
    let Some((word, repository, reference)) = found else {
        return refuse(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "repository name not known to registry");
    };
    let authorized = request
        .headers()
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        == Some(&format!("Bearer {TOKEN}"));
    if !authorized {
        let challenge =
            format!("Bearer realm=\"https://{host}/token\",service=\"{host}\",scope=\"repository:{repository}:pull\"");
        let mut refusal = refuse(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", "authentication required");
        if let Ok(value) = challenge.parse() {
            refusal.headers_mut().insert(header::WWW_AUTHENTICATE, value);
        }
        return refusal;
    }
    let known = catalogue::published().find(|(place, _, _)| *place == Place::Oci(leaked(host), leaked_repository(repository)));
    let Some((_, name, versions)) = known else {
        return refuse(StatusCode::NOT_FOUND, "NAME_UNKNOWN", "repository name not known to registry");
    };
    if word == "/manifests/" {
        manifest(name, versions, reference)
    } else {
        blob(world, name, versions, reference)
    }
}

/// The catalogue's own text that equals a name, so that places compare by value.
fn leaked(host: &str) -> &'static str {
    catalogue::HOSTS.into_iter().find(|known| *known == host).unwrap_or_default()
}

fn leaked_repository(repository: &str) -> &'static str {
    let mut all = catalogue::published();
    let found = all.find_map(|(place, _, _)| match place {
        Place::Oci(_, known) if known == repository => Some(known),
        _ => None,
    });
    found.unwrap_or_default()
}

fn refuse(code: StatusCode, word: &str, message: &str) -> Response {
    (code, axum::Json(json!({"errors": [{"code": word, "message": message}]}))).into_response()
}

fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(Sha256::digest(bytes)))
}

struct Packed {
    manifest: Vec<u8>,
    config: Vec<u8>,
    archive: Vec<u8>,
}

fn packed(name: &str, version: &str) -> Option<Packed> {
    let chart = catalogue::chart(name, version)?;
    let archive = chart.pack();
    let config = chart.metadata.to_string().into_bytes();
    let manifest = json!({
        "schemaVersion": 2, "mediaType": MANIFEST,
        "config": {"mediaType": CONFIG, "digest": digest(&config), "size": config.len()},
        "layers": [{"mediaType": CONTENT, "digest": digest(&archive), "size": archive.len()}],
        "annotations": {"org.opencontainers.image.title": name, "org.opencontainers.image.version": version},
    });
    Some(Packed {
        manifest: manifest.to_string().into_bytes(),
        config,
        archive,
    })
}

fn manifest(name: &str, versions: &[&str], reference: &str) -> Response {
    let wanted = |version: &&&str| {
        let tag = version.replace('+', "_");
        tag == reference || packed(name, version).is_some_and(|packed| digest(&packed.manifest) == reference)
    };
    match versions.iter().find(wanted).and_then(|version| packed(name, version)) {
        Some(packed) => {
            let headers = [
                (header::CONTENT_TYPE.as_str(), MANIFEST.to_owned()),
                ("docker-content-digest", digest(&packed.manifest)),
            ];
            (headers, packed.manifest).into_response()
        }
        None => refuse(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", "manifest unknown"),
    }
}

fn blob(world: &ChartWorld, name: &str, versions: &[&str], wanted: &str) -> Response {
    for version in versions {
        let Some(packed) = packed(name, version) else { continue };
        if digest(&packed.config) == wanted {
            return packed.config.into_response();
        }
        if digest(&packed.archive) == wanted {
            return archive(world, name, packed.archive).into_response();
        }
    }
    refuse(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", "blob unknown to registry")
}

/// The archive, or one that differs from its digest.
fn archive(world: &ChartWorld, name: &str, mut bytes: Vec<u8>) -> Vec<u8> {
    if world.faults().corrupt.contains(name)
        && let Some(last) = bytes.last_mut()
    {
        *last ^= 0xff;
    }
    bytes
}

fn repository(world: &ChartWorld, host: &str, path: &str) -> Response {
    let here: Vec<_> = catalogue::published()
        .filter_map(|(place, name, versions)| match place {
            Place::Http(known, folder) if known == host => Some((folder, name, versions)),
            _ => None,
        })
        .collect();
    let path = path.trim_start_matches('/');
    for (folder, name, versions) in &here {
        let rest = if folder.is_empty() {
            Some(path)
        } else {
            path.strip_prefix(folder).map(|rest| rest.trim_start_matches('/'))
        };
        let Some(rest) = rest else { continue };
        if rest == "index.yaml" {
            let same: Vec<_> = here.iter().filter(|(other, _, _)| other == folder).collect();
            let entries: serde_json::Map<String, Value> = same
                .iter()
                .map(|(_, name, versions)| ((*name).to_owned(), index(name, versions)))
                .collect();
            let index = json!({"apiVersion": "v1", "entries": entries, "generated": "2026-08-12T00:00:00Z"});
            return ([(header::CONTENT_TYPE, "text/yaml")], crate::yaml::emit(&index)).into_response();
        }
        let version = versions.iter().find(|version| rest == format!("{name}-{version}.tgz"));
        if let Some(packed) = version.and_then(|version| packed(name, version)) {
            return archive(world, name, packed.archive).into_response();
        }
    }
    StatusCode::NOT_FOUND.into_response()
}

/// Newest first; the address is relative to the index.
fn index(name: &str, versions: &[&str]) -> Value {
    let entry = |version: &&str| {
        let archive = packed(name, version).map(|packed| packed.archive).unwrap_or_default();
        json!({"apiVersion": "v2", "name": name, "version": version, "appVersion": version, "urls": [format!("{name}-{version}.tgz")], "digest": hex::encode(Sha256::digest(&archive))})
    };
    versions.iter().rev().map(entry).collect()
}
