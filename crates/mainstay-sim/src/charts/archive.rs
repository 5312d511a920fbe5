//! A chart archive, written and read.

use std::collections::BTreeMap;
use std::io::{Read, Write};

use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

/// What Helm loads from an archive.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chart {
    /// `Chart.yaml`
    pub metadata: Value,
    pub values: Value,
    /// `values.schema.json`, or null.
    pub schema: Value,
    /// Name and text.
    pub templates: Vec<(String, String)>,
    pub crds: Vec<String>,
}

const BLOCK: usize = 512;

impl Chart {
    pub fn name(&self) -> &str {
        self.metadata["name"].as_str().unwrap_or_default()
    }

    pub fn version(&self) -> &str {
        self.metadata["version"].as_str().unwrap_or_default()
    }

    /// The same chart gives the same bytes.
    pub fn pack(&self) -> Vec<u8> {
        let name = self.name();
        let mut files: Vec<(String, String)> = vec![
            (format!("{name}/Chart.yaml"), self.metadata.to_string()),
            (format!("{name}/values.yaml"), self.values.to_string()),
        ];
        if !self.schema.is_null() {
            files.push((format!("{name}/values.schema.json"), self.schema.to_string()));
        }
        files.extend(
            self.templates
                .iter()
                .map(|(file, text)| (format!("{name}/templates/{file}"), text.clone())),
        );
        files.extend(
            self.crds
                .iter()
                .enumerate()
                .map(|(index, text)| (format!("{name}/crds/crd-{index}.yaml"), text.clone())),
        );
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        for (path, text) in &files {
            encoder.write_all(&header(path, text.len())).expect("writing to memory");
            encoder.write_all(text.as_bytes()).expect("writing to memory");
            encoder
                .write_all(&vec![0; text.len().next_multiple_of(BLOCK) - text.len()])
                .expect("writing to memory");
        }
        encoder.write_all(&[0; 2 * BLOCK]).expect("writing to memory");
        encoder.finish().expect("writing to memory")
    }

    /// Helm's words for what is no chart.
    pub fn unpack(bytes: &[u8]) -> Result<Self, String> {
        let mut tar = Vec::new();
        GzDecoder::new(bytes)
            .read_to_end(&mut tar)
            .map_err(|_| "gzip: invalid header".to_owned())?;
        let files = entries(&tar)?;
        let text = |name: &str| {
            files
                .iter()
                .find(|(path, _)| path.split_once('/').is_some_and(|(_, rest)| rest == name))
                .map(|(_, text)| text.as_str())
        };
        let yaml = |name: &str| -> Result<Value, String> {
            text(name).map_or(Ok(json!({})), |text| {
                crate::yaml::parse(text).map_err(|error| format!("cannot load {name}: {error}"))
            })
        };
        let metadata = yaml("Chart.yaml")?;
        if metadata["name"].is_null() {
            return Err("Chart.yaml file is missing".to_owned());
        }
        let below = |folder: &str| {
            let folder = folder.to_owned();
            files.iter().filter_map(move |(path, text)| {
                let (_, rest) = path.split_once('/')?;
                Some((rest.strip_prefix(folder.as_str())?.to_owned(), text.clone()))
            })
        };
        Ok(Self {
            metadata,
            values: Some(yaml("values.yaml")?)
                .filter(|values| !values.is_null())
                .unwrap_or_else(|| json!({})),
            schema: text("values.schema.json")
                .and_then(|text| serde_json::from_str(text).ok())
                .unwrap_or_default(),
            templates: below("templates/").filter(|(file, _)| file.ends_with(".yaml")).collect(),
            crds: below("crds/").map(|(_, text)| text).collect(),
        })
    }
}

fn header(path: &str, size: usize) -> [u8; BLOCK] {
    let mut block = [0; BLOCK];
    let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &path.as_bytes()[..path.len().min(100)]);
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    block
}

fn entries(tar: &[u8]) -> Result<BTreeMap<String, String>, String> {
    let mut files = BTreeMap::new();
    let mut at = 0;
    while let Some(block) = tar.get(at..at + BLOCK) {
        if block.iter().all(|byte| *byte == 0) {
            break;
        }
        let field = |range: std::ops::Range<usize>| {
            String::from_utf8_lossy(&block[range])
                .trim_end_matches('\0')
                .trim()
                .to_owned()
        };
        let size = usize::from_str_radix(field(124..136).trim(), 8).map_err(|_| "archive/tar: invalid tar header".to_owned())?;
        let prefix = field(345..500);
        let name = if prefix.is_empty() || &block[257..262] != b"ustar" {
            field(0..100)
        } else {
            format!("{prefix}/{}", field(0..100))
        };
        let content = tar.get(at + BLOCK..at + BLOCK + size).ok_or("unexpected EOF")?;
        if block[156] == b'0' || block[156] == 0 {
            files.insert(name, String::from_utf8_lossy(content).into_owned());
        }
        at += BLOCK + size.next_multiple_of(BLOCK);
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_read_back_and_always_the_same() {
        let chart = Chart {
            metadata: json!({"apiVersion": "v2", "name": "x", "version": "1.0.0"}),
            values: json!({"a": 1}),
            schema: json!({"type": "object"}),
            templates: vec![("a.yaml".into(), "kind: ConfigMap\n".into())],
            crds: vec!["kind: CustomResourceDefinition\n".into()],
        };
        let bytes = chart.pack();
        assert_eq!(bytes, chart.pack());
        let read = Chart::unpack(&bytes).expect("a chart");
        assert_eq!((read.name(), read.version(), &read.values), ("x", "1.0.0", &json!({"a": 1})));
        assert_eq!((read.templates, read.crds), (chart.templates, chart.crds));
        assert!(Chart::unpack(b"no").is_err());
    }
}
