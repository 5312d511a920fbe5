//! The examples, the schema and the reference page, held against each other.
//!
//! `UPDATE_EXPECT=1 cargo test -p mainstay-spec examples` writes schema and page anew.

use std::fs;
use std::path::{Path, PathBuf};

use expect_test::expect_file;
use mainstay_spec::{Checked, Environment, load, reference, schema};
use serde_json::Value;

const MODELINE: &str = "# yaml-language-server: $schema=../docs/reference/cluster.schema.json";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn examples() -> Vec<(PathBuf, String)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(root().join("examples"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    paths.retain(|path| path.extension().is_some_and(|ext| ext == "yaml"));
    paths.sort();
    paths
        .into_iter()
        .map(|path| (path.clone(), fs::read_to_string(path).unwrap()))
        .collect()
}

fn checked(path: &Path, text: &str) -> Checked {
    let files = |name: &str| fs::read(path.parent().unwrap().join(name)).ok();
    load(text, &path.to_string_lossy(), &Environment::default(), &files)
        .unwrap_or_else(|faults| panic!("{}: {:#?}", path.display(), faults.faults))
}

fn as_json(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

#[test]
fn the_examples_are_there() {
    let names: Vec<String> = examples()
        .iter()
        .map(|(path, _)| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    assert_eq!(names, ["homelab", "internal-bridge", "k3s", "minimal", "multi-host", "rke2"]);
}

#[test]
fn every_example_is_accepted_without_a_warning() {
    for (path, text) in examples() {
        assert_eq!(checked(&path, &text).warnings, [], "{}", path.display());
    }
}

#[test]
fn every_example_begins_with_a_line_for_editors_that_leads_to_the_schema() {
    for (path, text) in examples() {
        assert_eq!(text.lines().next(), Some(MODELINE), "{}", path.display());
        let (_, relative) = MODELINE.split_once('=').unwrap();
        assert!(path.parent().unwrap().join(relative).is_file());
    }
}

#[test]
fn every_example_validates_against_the_schema_by_another_program() {
    let validator = jsonschema::draft202012::new(&schema::schema()).unwrap();
    for (path, text) in examples() {
        let errors: Vec<String> = validator
            .iter_errors(&as_json(&text))
            .map(|error| format!("{}: {error}", error.instance_path()))
            .collect();
        assert!(errors.is_empty(), "{}: {errors:?}", path.display());
    }
}

#[test]
fn an_example_written_out_in_full_validates_too_and_means_the_same() {
    let validator = jsonschema::draft202012::new(&schema::schema()).unwrap();
    for (path, text) in examples() {
        let spec = checked(&path, &text).spec;
        let full = spec.to_yaml();
        assert!(validator.is_valid(&as_json(&full)), "{full}");
        assert_eq!(checked(&path, &full).spec.to_yaml(), full);
    }
}

#[test]
fn the_schema_is_the_committed_one_and_is_itself_valid() {
    assert!(jsonschema::meta::is_valid(&schema::schema()));
    expect_file![root().join("docs/reference/cluster.schema.json")].assert_eq(&schema::schema_text());
}

#[test]
fn the_reference_page_is_the_committed_one() {
    expect_file![root().join("docs/reference/cluster-yaml.md")].assert_eq(&reference::page());
}

/// A file with every key that this version carries out, from which one value at a time is replaced by one of another kind.
#[test]
fn schema_and_reader_agree_about_every_key_and_kind() {
    let full = as_json(EVERY_KEY);
    let validator = jsonschema::draft202012::new(&schema::schema()).unwrap();
    assert!(validator.is_valid(&full) && accepted(&full));
    let mut paths = Vec::new();
    pointers(&full, String::new(), &mut paths);
    let others = ["true", "7", "1.5", "[]", "[[]]", "{}", "{\"zzz\": 1}", "\"?\"", "[\"?\"]"]
        .map(|text| serde_json::from_str::<Value>(text).unwrap());
    let (mut both, mut neither) = (0, 0);
    for path in &paths {
        for other in &others {
            let mut changed = full.clone();
            *changed.pointer_mut(path).unwrap() = other.clone();
            let valid = validator.is_valid(&changed);
            match reading(&changed) {
                Reading::Fits => assert!(valid, "{path} = {other} is read, but not in the schema"),
                Reading::WrongShape => assert!(!valid, "{path} = {other} is not read, but in the schema"),
                // A schema cannot know the whole grammar of a value.
                Reading::WrongValue => {}
            }
            *(if valid { &mut both } else { &mut neither }) += 1;
        }
    }
    assert!(both > 20 && neither > 300, "{both} accepted by both, {neither} by neither");
}

fn pointers(value: &Value, path: String, out: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, inner) in map {
                pointers(inner, format!("{path}/{}", key.replace('~', "~0").replace('/', "~1")), out);
            }
        }
        Value::Array(items) => {
            for (index, inner) in items.iter().enumerate() {
                pointers(inner, format!("{path}/{index}"), out);
            }
        }
        _ => {}
    }
    if !path.is_empty() {
        out.push(path);
    }
}

fn read(value: &Value) -> Result<Checked, mainstay_spec::Diagnostics> {
    let files = |name: &str| match name {
        "ca.pem" => Some(b"-----BEGIN CERTIFICATE-----".to_vec()),
        _ => Some(b"machine: {}".to_vec()),
    };
    load(&value.to_string(), "cluster.yaml", &Environment::default(), &files)
}

fn accepted(value: &Value) -> bool {
    read(value).is_ok()
}

enum Reading {
    Fits,
    WrongShape,
    WrongValue,
}

/// What values mean together is not the schema's business.
fn reading(value: &Value) -> Reading {
    let faults = read(value).err().map(|faults| faults.faults).unwrap_or_default();
    let has = |codes: &[&str]| faults.iter().any(|fault| codes.contains(&fault.code));
    if has(&[
        "unknown-key",
        "missing-key",
        "wrong-kind",
        "no-value",
        "unknown-value",
        "out-of-bounds",
        "integer",
    ]) {
        Reading::WrongShape
    } else if has(&["value", "name", "label"]) {
        Reading::WrongValue
    } else {
        Reading::Fits
    }
}

const EVERY_KEY: &str = r#"
name: every
datacenter:
  endpoint: https://pve.lan:8006
  ca: ca.pem
  jump: ops@pve.lan
  storage: { images: local, disks: local-lvm, seeds: local-lvm }
  pool: k8s
  tags: [team-a]
network:
  cidr: 10.0.0.0/16
  gateway: 10.0.0.1
  bridge: vmbr0
  vlan: 20
  dns: [1.1.1.1]
  vip: 10.0.0.20
  pods: 10.244.0.0/16
  services: 10.96.0.0/12
  addressing: static
  hostnames: static
endpoint: https://k8s.example:6443
talos: { version: 1.13.9, extensions: [zfs], patches: [a.yaml], factory: "https://factory.talos.dev", first-boot: cloud-init }
kubernetes: 1.36.3
cni: flannel
provision: import
protect: true
names: "{cluster}-{pool}-{n}"
control-plane-workloads: false
arch: amd64
pools:
  control-plane:
    role: control-plane
    count: 3
    addresses: 10.0.0.11+
    vmids: 2000+
    names: "cp-{n0}"
  worker:
    count: 2
    addresses: [10.0.0.21, 10.0.0.23-24]
    vmids: [3000, 3002-3004]
    cpu: 4
    cpu-type: host
    memory: 8GiB
    disk: { size: 60GiB, storage: fast, cache: none, discard: true, ssd: true, iothread: false }
    disks: [{ name: data, size: 10GiB, storage: fast, cache: writeback, discard: false, ssd: false, iothread: false }]
    scsi: virtio-scsi-pci
    firmware: ovmf
    onboot: true
    startup-order: 2
    hosts: [pve1]
    tags: [edge]
    labels: { rack: a }
    taints: ["a=b:NoSchedule"]
    patches: [b.yaml]
machines:
  every-worker-2:
    host: pve1
    address: 10.0.0.77
    vmid: 3999
    mac: "BC:24:11:00:00:17"
    cpu: 8
    cpu-type: host
    memory: 16GiB
    disk: 80GiB
    disks: []
    scsi: virtio-scsi-single
    firmware: seabios
    onboot: false
    startup-order: 3
    tags: [big]
    labels: { rack: b }
    taints: []
    patches: [c.yaml]
"#;
