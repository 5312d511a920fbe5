//! What a pod asks Helm to do, read from its command, environment and mounted files.

use std::collections::BTreeMap;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::control::{Round, text};
use super::super::kinds;
use super::values;
use crate::charts::Chart;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Install,
    Uninstall,
}

pub(super) struct Invocation {
    pub verb: Verb,
    pub is_klipper: bool,
    pub name: String,
    pub namespace: String,
    pub chart: Result<Chart, String>,
    /// The user's values, all files merged.
    pub values: Value,
    pub description: Option<String>,
    pub labels: Value,
    pub failure_policy: String,
    pub expected_revision: Option<String>,
    pub take_ownership: bool,
    pub force_conflicts: bool,
    pub skip_crds: bool,
    pub always_zero: bool,
}

type Files = BTreeMap<String, Vec<u8>>;

impl Invocation {
    pub fn of_pod(round: &Round<'_>, pod: &Value) -> Option<Self> {
        let container = &pod["spec"]["containers"][0];
        let list = |field: &str| -> Vec<String> {
            container[field]
                .as_array()
                .into_iter()
                .flatten()
                .map(|one| text(one).to_owned())
                .collect()
        };
        let (command, arguments) = (list("command"), list("args"));
        let files = mounted(round, pod, container);
        let is_helm = |word: &String| word == "helm" || word.ends_with("/helm");
        if command.first().is_some_and(is_helm) {
            let words: Vec<String> = command.into_iter().skip(1).chain(arguments).collect();
            return Some(Self::command(&words, &files));
        }
        let is_klipper = text(&container["image"]).contains("klipper-helm");
        (is_klipper && command.is_empty()).then(|| Self::klipper(&arguments, &environment(container), &files))
    }

    fn empty(name: &str, namespace: &str) -> Self {
        Self {
            verb: Verb::Install,
            is_klipper: false,
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            chart: Err("chart not found".to_owned()),
            values: json!({}),
            description: None,
            labels: json!({}),
            failure_policy: "reinstall".to_owned(),
            expected_revision: None,
            take_ownership: false,
            force_conflicts: false,
            skip_crds: false,
            always_zero: false,
        }
    }

    fn klipper(arguments: &[String], environment: &BTreeMap<String, String>, files: &Files) -> Self {
        let get = |name: &str| environment.get(name).cloned();
        let name = get("NAME").unwrap_or_default();
        let mut own = Self::empty(&name, &get("TARGET_NAMESPACE").unwrap_or_else(|| "default".to_owned()));
        own.is_klipper = true;
        own.failure_policy = get("FAILURE_POLICY")
            .filter(|policy| !policy.is_empty())
            .unwrap_or_else(|| "reinstall".to_owned());
        own.expected_revision = get("EXPECTED_RELEASE_REVISION").filter(|revision| !revision.is_empty());
        own.force_conflicts = get("FORCE_CONFLICTS").as_deref() == Some("true");
        if let Some(hash) = get("CONFIG_HASH").filter(|hash| !hash.is_empty()) {
            own.labels["helmcharts.helm.cattle.io/configHash"] = json!(hash);
        }
        let content = files.get(&format!("/chart/{name}.tgz.base64"));
        own.chart = match content {
            Some(content) => STANDARD
                .decode(content.trim_ascii())
                .map_err(|_| "base64: invalid input".to_owned())
                .and_then(|bytes| Chart::unpack(&bytes)),
            None => Err(format!("path \"{}\" not found", get("CHART").unwrap_or_default())),
        };
        for (path, content) in files {
            if path.starts_with("/config/") && path.ends_with(".yaml") {
                own.add_values(content);
            }
        }
        own.verb = if arguments.first().is_some_and(|word| word == "delete") {
            Verb::Uninstall
        } else {
            Verb::Install
        };
        // The script ends with 0 after an uninstall, whatever came of it.
        own.always_zero = own.verb == Verb::Uninstall;
        own.flags(arguments.get(1..).unwrap_or_default(), files);
        own
    }

    fn command(words: &[String], files: &Files) -> Self {
        let mut own = Self::empty("", "default");
        let verb = words.first().map(String::as_str).unwrap_or_default();
        own.verb = if matches!(verb, "uninstall" | "delete") {
            Verb::Uninstall
        } else {
            Verb::Install
        };
        let plain = own.flags(words.get(1..).unwrap_or_default(), files);
        own.name = plain.first().cloned().unwrap_or_default();
        if let Some(path) = plain.get(1) {
            own.chart = files
                .get(path)
                .ok_or_else(|| format!("path \"{path}\" not found"))
                .and_then(|bytes| Chart::unpack(bytes));
        }
        own
    }

    fn add_values(&mut self, content: &[u8]) {
        let parsed = std::str::from_utf8(content)
            .ok()
            .and_then(|text| crate::yaml::parse(text).ok());
        match parsed {
            Some(new) if new.is_object() => values::merge(&mut self.values, &new),
            Some(Value::Null) => {}
            _ => self.chart = Err("failed to parse values: error converting YAML to JSON".to_owned()),
        }
    }

    /// Reads flags; the words that are none are returned.
    fn flags(&mut self, words: &[String], files: &Files) -> Vec<String> {
        const SWITCHES: [&str; 10] = [
            "--install",
            "--take-ownership",
            "--skip-crds",
            "--force-conflicts",
            "--wait",
            "--atomic",
            "--create-namespace",
            "--debug",
            "--reset-values",
            "--no-hooks",
        ];
        let mut plain = Vec::new();
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            if !word.starts_with('-') {
                plain.push(word.clone());
                continue;
            }
            let (flag, inline) = word
                .split_once('=')
                .map_or((word.as_str(), None), |(flag, value)| (flag, Some(value.to_owned())));
            if SWITCHES.contains(&flag) {
                self.take_ownership |= flag == "--take-ownership";
                self.skip_crds |= flag == "--skip-crds";
                self.force_conflicts |= flag == "--force-conflicts" && inline.as_deref() != Some("false");
                continue;
            }
            let value = inline.or_else(|| rest.next().cloned()).unwrap_or_default();
            match flag {
                "-n" | "--namespace" => self.namespace = value,
                "--description" => self.description = Some(value),
                "-f" | "--values" => match files.get(&value) {
                    Some(content) => self.add_values(&content.clone()),
                    None => self.chart = Err(format!("open {value}: no such file or directory")),
                },
                "--labels" => {
                    for pair in value.split(',').filter_map(|pair| pair.split_once('=')) {
                        self.labels[pair.0] = json!(pair.1);
                    }
                }
                _ => {}
            }
        }
        plain
    }
}

fn environment(container: &Value) -> BTreeMap<String, String> {
    let list = container["env"].as_array().into_iter().flatten();
    list.map(|one| (text(&one["name"]).to_owned(), text(&one["value"]).to_owned()))
        .collect()
}

/// Files from Secrets and ConfigMaps, by their path in the container.
fn mounted(round: &Round<'_>, pod: &Value, container: &Value) -> Files {
    let namespace = text(&pod["metadata"]["namespace"]);
    let mut files = Files::new();
    for mount in container["volumeMounts"].as_array().into_iter().flatten() {
        let volume = pod["spec"]["volumes"]
            .as_array()
            .into_iter()
            .flatten()
            .find(|volume| volume["name"] == mount["name"]);
        let Some(volume) = volume else { continue };
        let single = [volume.clone()];
        let sources = volume["projected"]["sources"].as_array().map_or(&single[..], Vec::as_slice);
        for (name, content) in sources.iter().flat_map(|source| contents(round, namespace, source)) {
            let base = text(&mount["mountPath"]).trim_end_matches('/');
            match mount["subPath"].as_str() {
                Some(part) if part == name => drop(files.insert(base.to_owned(), content)),
                Some(_) => {}
                None => drop(files.insert(format!("{base}/{name}"), content)),
            }
        }
    }
    files
}

fn contents(round: &Round<'_>, namespace: &str, source: &Value) -> Vec<(String, Vec<u8>)> {
    let secret = source["secret"]["secretName"].as_str().or(source["secret"]["name"].as_str());
    let (spec, object) = if let Some(name) = secret {
        (&source["secret"], round.get(&kinds::SECRETS, namespace, name))
    } else if let Some(name) = source["configMap"]["name"].as_str() {
        (&source["configMap"], round.get(&kinds::CONFIG_MAPS, namespace, name))
    } else {
        return Vec::new();
    };
    let Some(object) = object else { return Vec::new() };
    let decode = |value: &Value| STANDARD.decode(text(value)).unwrap_or_default();
    let is_secret = secret.is_some();
    let mut all: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for (key, value) in object["data"].as_object().into_iter().flatten() {
        all.insert(
            key.clone(),
            if is_secret {
                decode(value)
            } else {
                text(value).as_bytes().to_vec()
            },
        );
    }
    for (key, value) in object["binaryData"].as_object().into_iter().flatten() {
        all.insert(key.clone(), decode(value));
    }
    match spec["items"].as_array() {
        Some(items) => items
            .iter()
            .filter_map(|item| Some((text(&item["path"]).to_owned(), all.get(text(&item["key"]))?.clone())))
            .collect(),
        None => all.into_iter().collect(),
    }
}
