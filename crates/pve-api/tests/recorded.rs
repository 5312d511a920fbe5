//! Answers of the real PVE 9.2.11 code.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;

use proptest::prelude::{any, prop, proptest};
use pve_api::{Call, Class, Error, Host, StorageId, Upid, Vmid, Volid, access, cluster, host, pool, qemu, storage, task};
use serde::Deserialize;
use serde_json::Value;

fn rows<T: for<'de> Deserialize<'de>>(text: &str) -> Vec<T> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[derive(Deserialize)]
struct Recorded {
    method: String,
    path: String,
    body: Value,
}

type Decoded = Result<Box<dyn Debug>, Error>;

fn decode<T: Debug + 'static>(call: &Call<T>, status: u16, reason: &str, body: &[u8]) -> Decoded {
    call.decode(status, reason, body)
        .map(|value| Box::new(value) as Box<dyn Debug>)
}

/// Reads an answer as the call it belongs to would.
fn read(method: &str, path: &str, status: u16, reason: &str, body: &[u8]) -> Option<Decoded> {
    let (pve, local, vmid) = (host_name(), "local".parse::<StorageId>().unwrap(), Vmid::new(100).unwrap());
    let volid: Volid = "local:import/x.qcow2".parse().unwrap();
    let upid: Upid = "UPID:pve1:00000E70:000501E4:6AFA193D:qmcreate:440:ms@pve!full2:"
        .parse()
        .unwrap();
    macro_rules! by {
        ($call:expr) => {
            decode(&$call, status, reason, body)
        };
    }
    Some(match (method, path) {
        ("GET", "/version") => by!(cluster::version()),
        ("GET", "/cluster/status") => by!(cluster::status()),
        ("GET", "/cluster/resources") => by!(cluster::resources(None)),
        ("GET", "/cluster/nextid") => by!(cluster::next_id()),
        ("GET", "/cluster/options") => by!(cluster::options()),
        ("GET", "/nodes") => by!(host::list()),
        ("GET", "/nodes/{node}/status") => by!(host::status(&pve)),
        ("GET", "/nodes/{node}/version") => by!(host::version(&pve)),
        ("GET", "/nodes/{node}/network") => by!(host::bridges(&pve)),
        ("GET", "/nodes/{node}/query-url-metadata") => by!(host::url_metadata(&pve, "")),
        ("GET", "/access/permissions") => by!(access::permissions()),
        ("GET", "/access/users") => by!(access::users()),
        ("GET", "/access/users/{userid}/token") => by!(access::tokens("a@pve")),
        ("POST", "/access/users/{userid}/token/{tokenid}") => by!(access::create_token("a@pve", "b", true, "")),
        ("GET", "/access/acl") => by!(access::acl()),
        ("GET", "/pools") => by!(pool::list()),
        ("GET", "/storage") => by!(storage::definitions()),
        ("PUT", "/storage/{storage}") => by!(storage::set_content(&local, &BTreeSet::new(), None)),
        ("GET", "/nodes/{node}/storage") => by!(storage::list(&pve)),
        ("GET", "/nodes/{node}/storage/{storage}/content") => {
            by!(storage::content(&pve, &local, &storage::ContentFilter::default()))
        }
        ("GET", "/nodes/{node}/storage/{storage}/content/{volume}") => by!(storage::volume(&pve, &volid)),
        ("DELETE", "/nodes/{node}/storage/{storage}/content/{volume}") => by!(storage::delete(&pve, &volid)),
        ("GET", "/nodes/{node}/qemu") => by!(qemu::list(&pve)),
        ("GET", "/nodes/{node}/qemu/{vmid}/config") => by!(qemu::config(&pve, vmid)),
        ("POST", "/nodes/{node}/qemu/{vmid}/config") => by!(qemu::change(&pve, vmid, &qemu::Change::default())),
        ("GET", "/nodes/{node}/qemu/{vmid}/pending") => by!(qemu::pending(&pve, vmid)),
        ("GET", "/nodes/{node}/qemu/{vmid}/cloudinit/dump") => by!(qemu::cloud_init(&pve, vmid, qemu::CloudInitPart::User)),
        ("GET", "/nodes/{node}/qemu/{vmid}/status/current") => by!(qemu::status(&pve, vmid)),
        ("GET", "/nodes/{node}/qemu/{vmid}/agent/network-get-interfaces") => by!(qemu::agent_interfaces(&pve, vmid)),
        ("GET", "/nodes/{node}/tasks") => by!(task::active(&pve)),
        ("GET", "/nodes/{node}/tasks/{upid}/status") => by!(task::status(&upid)),
        ("GET", "/nodes/{node}/tasks/{upid}/log") => by!(task::log(&upid, 0, 50)),
        ("DELETE", "/nodes/{node}/tasks/{upid}") => by!(task::stop(&upid)),
        ("POST", "/nodes/{node}/storage/{storage}/upload" | "/nodes/{node}/storage/{storage}/download-url") => {
            by!(qemu::start(&pve, vmid))
        }
        ("POST" | "DELETE" | "PUT", path) if path.starts_with("/nodes/{node}/qemu") && !path.ends_with("/cloudinit") => {
            by!(qemu::delete(&pve, vmid, qemu::DeleteOptions::default()))
        }
        ("POST" | "DELETE" | "PUT", _) => by!(pool::create(&"p".parse().unwrap(), None)),
        _ => return None,
    })
}

fn host_name() -> Host {
    "pve1".parse().unwrap()
}

#[test]
fn every_recorded_answer_is_read() {
    let answers: Vec<Recorded> = rows(include_str!("data/answers.jsonl"));
    assert!(answers.len() > 150);
    for Recorded { method, path, body } in answers {
        // Logins and pings are looked at where the client is tested.
        if path == "/access/ticket" || path.ends_with("/agent/ping") {
            continue;
        }
        let text = body.to_string();
        let decoded = read(&method, &path, 200, "OK", text.as_bytes()).unwrap_or_else(|| panic!("no call for {method} {path}"));
        if let Err(error) = decoded {
            let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
            panic!("{method} {path}: {error}: {cause}\n{text}");
        }
    }
}

#[test]
fn recorded_configs_lose_nothing() {
    let answers: Vec<Recorded> = rows(include_str!("data/answers.jsonl"));
    for row in answers
        .iter()
        .filter(|row| row.path == "/nodes/{node}/qemu/{vmid}/config" && row.method == "GET")
    {
        let data = row.body["data"].as_object().unwrap();
        let config: pve_api::VmConfig = serde_json::from_value(row.body["data"].clone()).unwrap();
        let entries = config.to_entries();
        let keys: BTreeSet<&String> = data.keys().collect();
        assert_eq!(keys, entries.keys().collect::<BTreeSet<_>>());
        // PVE spells drives and NICs itself, and so do we; other texts it keeps as they were sent.
        for (key, value) in data {
            let spelled_by_pve = key.parse::<pve_api::Slot>().is_ok() || key.starts_with("net");
            if let (true, Some(text)) = (spelled_by_pve, value.as_str()) {
                assert_eq!(entries[key], text, "{key}");
            }
        }
        assert_eq!(pve_api::VmConfig::from_entries(entries), config);
    }
}

#[derive(Deserialize)]
struct Refused {
    #[serde(default)]
    status: u16,
    #[serde(default)]
    reason: String,
    #[serde(default)]
    message: Option<String>,
    #[serde(default)]
    errors: Option<BTreeMap<String, String>>,
    #[serde(default)]
    text: Option<String>,
    #[serde(default)]
    task: Option<String>,
    class: String,
}

impl Refused {
    fn body(&self) -> String {
        match &self.text {
            Some(text) => text.clone(),
            None => serde_json::json!({"data": null, "message": self.message, "errors": self.errors}).to_string(),
        }
    }
}

#[test]
fn every_recorded_refusal_has_its_class() {
    let refusals: Vec<Refused> = rows(include_str!("data/refusals.jsonl"));
    assert!(refusals.len() > 300);
    for row in refusals {
        let class = match &row.task {
            Some(exitstatus) => Class::of_task(exitstatus),
            None => {
                let call = qemu::start(&host_name(), Vmid::new(100).unwrap());
                let error = call.decode(row.status, &row.reason, row.body().as_bytes()).unwrap_err();
                error.class().cloned().unwrap()
            }
        };
        let text = row.task.as_deref().unwrap_or(&row.reason);
        assert_eq!(format!("{class:?}"), row.class, "{} {text} {:?}", row.status, row.errors);
    }
}

#[test]
fn a_refusal_is_classed_alike_with_and_without_a_body() {
    let refusals: Vec<Refused> = rows(include_str!("data/refusals.jsonl"));
    let call = qemu::start(&host_name(), Vmid::new(100).unwrap());
    for row in refusals.iter().filter(|row| row.task.is_none() && row.errors.is_none()) {
        let bare = call.decode(row.status, &row.reason, b"").unwrap_err();
        assert_eq!(format!("{:?}", bare.class().unwrap()), row.class, "{}", row.reason);
    }
}

#[test]
fn a_refusal_names_the_missing_privilege() {
    let call = qemu::config(&host_name(), Vmid::new(100).unwrap());
    let error = call
        .decode(403, "Permission check failed (/vms/100, VM.Audit)", b"")
        .unwrap_err();
    let missing = error.privilege().unwrap();
    assert_eq!(
        (missing.path.as_str(), missing.any_of.as_slice()),
        ("/vms/100", &["VM.Audit".to_owned()][..])
    );
    assert_eq!(
        error.to_string(),
        "GET /nodes/pve1/qemu/100/config was refused: 403 Permission check failed (/vms/100, VM.Audit)"
    );
}

fn json() -> impl proptest::strategy::Strategy<Value = Value> {
    use proptest::prelude::{Just, Strategy as _, prop_oneof};
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,20}".prop_map(Value::from),
    ];
    let key = prop::sample::select(vec![
        "data",
        "total",
        "errors",
        "message",
        "vmid",
        "type",
        "node",
        "status",
        "upid",
        "storage",
        "content",
        "id",
        "tags",
        "result",
        "exitstatus",
        "net0",
        "scsi0",
        "volid",
        "name",
        "n",
        "t",
        "poolid",
        "members",
        "cpuinfo",
        "memory",
        "version",
    ]);
    leaf.prop_recursive(4, 40, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..6)
                .prop_map(|map| Value::Object(map.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())),
        ]
    })
}

proptest! {
    #[test]
    fn no_answer_makes_a_reader_panic(
        status in prop::sample::select(vec![200u16, 200, 200, 400, 401, 403, 500, 501, 595, 0, 65535]),
        reason in ".{0,80}",
        body in json(),
    ) {
        let calls: Vec<Recorded> = rows(include_str!("data/answers.jsonl"));
        let bodies = [body.to_string(), serde_json::json!({ "data": body }).to_string()];
        let kinds: BTreeSet<(String, String)> = calls.into_iter().map(|row| (row.method, row.path)).collect();
        for (method, path) in &kinds {
            for body in &bodies {
                if let Some(Err(error)) = read(method, path, status, &reason, body.as_bytes()) {
                    let _ = format!("{error} {error:?} {:?} {:?}", error.class(), error.privilege());
                }
            }
        }
    }

    #[test]
    fn no_bytes_make_a_reader_panic(status in any::<u16>(), reason in ".{0,40}", body in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = qemu::config(&host_name(), Vmid::new(100).unwrap()).decode(status, &reason, &body);
        let _ = cluster::resources(None).decode(status, &reason, &body);
        let _ = Class::of_task(&reason);
    }
}
