//! The recordings that lie in the repository, as the player wants them.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use flate2::read::GzDecoder;
use pve_sim::conformance::Folder;
use serde_json::Value;

pub fn unpack(packed: &[u8]) -> Value {
    let mut text = String::new();
    GzDecoder::new(packed).read_to_string(&mut text).expect("the fixture is gzip");
    serde_json::from_str(&text).expect("the fixture is JSON")
}

/// Sequences of requests that begin in a known world.
pub fn scenarios() -> Folder {
    let fixture = unpack(include_bytes!("../data/pve-scenarios.json.gz"));
    let decode = |(name, data): (&String, &Value)| {
        let bytes = STANDARD.decode(data.as_str().unwrap_or_default()).expect("files are base64");
        (name.clone(), Bytes::from(bytes))
    };
    let files: BTreeMap<String, Bytes> = fixture["files"].as_object().into_iter().flatten().map(decode).collect();
    Folder {
        world: fixture["world"].clone(),
        scenarios: fixture["scenarios"].as_array().cloned().unwrap_or_default(),
        files: Arc::new(files),
    }
}
