//! Every call against PVE's own schema: an unknown parameter, a wrong type or a forgotten one fails here.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::storage::{Checksum, ChecksumAlgorithm, ContentFilter, Contents, Download};
use super::{access, cluster, host, pool, qemu, storage, task};
use crate::config::{Bios, VmConfig};
use crate::privileges::{Check, Privilege, check_of};
use crate::request::Request;
use crate::value::{
    Agent, Boot, Bus, Cache, Content, Digest, DiskSize, Drive, Host, Media, Net, NetModel, PoolId, Slot, Smbios, Source,
    StorageId, Upid, Vmid, Volid,
};

#[derive(Deserialize)]
struct Method {
    method: String,
    path: String,
    params: BTreeMap<String, Schema>,
    permissions: Option<Value>,
    #[serde(default)]
    protected: u8,
}

#[derive(Deserialize)]
struct Schema {
    #[serde(rename = "type", default)]
    kind: Option<String>,
    #[serde(default)]
    optional: Option<Value>,
    #[serde(rename = "enum", default)]
    choices: Option<Vec<String>>,
    #[serde(default)]
    minimum: Option<f64>,
    #[serde(default)]
    maximum: Option<f64>,
    #[serde(default, rename = "maxLength")]
    max_length: Option<usize>,
    #[serde(default)]
    format: Option<BTreeMap<String, Schema>>,
    #[serde(default)]
    default_key: Option<Value>,
}

fn schema() -> Vec<Method> {
    serde_json::from_str(include_str!("../../tests/data/schema.json")).unwrap()
}

/// One of each call, with every parameter it can have.
fn every_call() -> Vec<Request> {
    let host: Host = "pve1".parse().unwrap();
    let store: StorageId = "local".parse().unwrap();
    let vmid = Vmid::new(100).unwrap();
    let pool: PoolId = "k8s".parse().unwrap();
    let volid: Volid = "local:import/talos.qcow2".parse().unwrap();
    let upid: Upid = "UPID:pve1:00000E70:000501E4:6AFA193D:qmcreate:440:ms@pve!full2:"
        .parse()
        .unwrap();
    let entry = |kind| access::AclEntry {
        path: "/vms".to_owned(),
        roleid: "Role".to_owned(),
        ugid: "a@pve!b".to_owned(),
        kind,
        propagate: true,
    };
    let filter = task::TaskFilter {
        vmid: Some(vmid),
        kind: Some("qmcreate".to_owned()),
        since: Some(1),
        limit: Some(5),
    };
    vec![
        cluster::version().request,
        cluster::status().request,
        cluster::resources(Some(cluster::ResourceKind::Vm)).request,
        cluster::resources(Some(cluster::ResourceKind::Storage)).request,
        cluster::resources(Some(cluster::ResourceKind::Host)).request,
        cluster::next_id().request,
        cluster::is_free(vmid).request,
        cluster::options().request,
        host::list().request,
        host::status(&host).request,
        host::version(&host).request,
        host::bridges(&host).request,
        host::url_metadata(&host, "https://factory/x").request,
        access::permissions().request,
        access::permissions_on("/vms/100").request,
        access::ticket("root@pam", "p").request,
        access::ticket_with_code("root@pam", &"c".into(), &"123456".into()).request,
        access::users().request,
        access::create_user("a@pve", "text").request,
        access::delete_user("a@pve").request,
        access::tokens("a@pve").request,
        access::create_token("a@pve", "tok", true, "text").request,
        access::delete_token("a@pve", "tok").request,
        access::roles().request,
        access::create_role("Role", ["VM.Audit", "VM.Clone"]).request,
        access::set_role("Role", [Privilege::VmAudit]).request,
        access::delete_role("Role").request,
        access::acl().request,
        access::grant(&entry(access::Principal::Token)).request,
        access::grant(&entry(access::Principal::User)).request,
        access::revoke(&entry(access::Principal::Group)).request,
        pool::list().request,
        pool::members(&pool).request,
        pool::create(&pool, Some("text")).request,
        pool::add_guests(&pool, &[vmid]).request,
        pool::remove_guests(&pool, &[vmid]).request,
        pool::delete(&pool).request,
        storage::list(&host).request,
        storage::definitions().request,
        storage::set_content(&store, &Contents::from([Content::Iso, Content::Import]), None).request,
        storage::content(
            &host,
            &store,
            &ContentFilter {
                content: Some(Content::Import),
                vmid: Some(vmid),
            },
        )
        .request,
        storage::volume(&host, &volid).request,
        storage::delete(&host, &volid).request,
        storage::download(&host, &store, &download()).request,
        qemu::create(
            &host,
            vmid,
            &full_config(),
            &qemu::CreateOptions {
                pool: Some(pool.clone()),
                start: true,
            },
        )
        .request,
        qemu::config(&host, vmid).request,
        qemu::current_config(&host, vmid).request,
        qemu::set(&host, vmid, &change()).request,
        qemu::change(&host, vmid, &change()).request,
        qemu::pending(&host, vmid).request,
        qemu::cloud_init(&host, vmid, qemu::CloudInitPart::Network).request,
        qemu::regenerate_cloud_init(&host, vmid).request,
        qemu::resize(&host, vmid, Slot::Disk(Bus::Scsi, 0), DiskSize::from_gib(40), None).request,
        qemu::clone(
            &host,
            vmid,
            &clone(qemu::CopyMode::Full {
                storage: Some(store.clone()),
            }),
        )
        .request,
        qemu::clone(&host, vmid, &clone(qemu::CopyMode::Linked)).request,
        qemu::make_template(&host, vmid).request,
        qemu::start(&host, vmid).request,
        qemu::stop(&host, vmid, true).request,
        qemu::shutdown(&host, vmid, Duration::from_secs(60), true).request,
        qemu::reboot(&host, vmid, Duration::from_secs(60)).request,
        qemu::reset(&host, vmid).request,
        qemu::status(&host, vmid).request,
        qemu::list(&host).request,
        qemu::delete(
            &host,
            vmid,
            qemu::DeleteOptions {
                purge: true,
                destroy_unreferenced_disks: true,
            },
        )
        .request,
        qemu::agent_interfaces(&host, vmid).request,
        qemu::agent_ping(&host, vmid).request,
        task::status(&upid).request,
        task::log(&upid, 10, 20).request,
        task::active(&host).request,
        task::list(&host, &filter).request,
        task::stop(&upid).request,
    ]
}

fn download() -> Download {
    Download {
        content: Content::Import,
        filename: "talos.qcow2".to_owned(),
        url: "https://factory/x.qcow2".to_owned(),
        checksum: Some(Checksum {
            algorithm: ChecksumAlgorithm::Sha256,
            hex: "00".repeat(32),
        }),
        verify_certificates: false,
    }
}

fn clone(copy: qemu::CopyMode) -> qemu::CloneOptions {
    qemu::CloneOptions {
        vmid: Vmid::new(101).unwrap(),
        name: Some("a".to_owned()),
        description: Some("text".to_owned()),
        pool: Some("k8s".parse().unwrap()),
        target: Some("pve2".parse().unwrap()),
        copy,
    }
}

fn change() -> qemu::Change {
    let digest: Digest = "e1c801337117c174491290aa5ff946f7be618ba0".parse().unwrap();
    qemu::Change {
        set: full_config(),
        delete: vec!["ide3".to_owned(), "net1".to_owned()],
        revert: vec!["cores".to_owned()],
        digest: Some(digest),
        force: true,
    }
}

/// Every option of the type, with every key its property strings can have.
fn full_config() -> VmConfig {
    let store: StorageId = "local-lvm".parse().unwrap();
    let disk = Drive {
        media: Some(Media::Disk),
        size: Some(DiskSize::from_gib(1)),
        cache: Some(Cache::None),
        discard: Some(true),
        iothread: Some(true),
        ssd: Some(true),
        backup: Some(false),
        serial: Some("disk 1".to_owned()),
        ..Drive::new(Source::Import {
            storage: store.clone(),
            from: "local:import/talos.qcow2".parse().unwrap(),
        })
    };
    let efi = Drive {
        efitype: Some("4m".to_owned()),
        pre_enrolled_keys: Some(false),
        ..Drive::new(Source::Allocate {
            storage: store.clone(),
            gib: 1,
        })
    };
    let net = Net {
        model: NetModel::Virtio,
        mac: Some("BC:24:11:00:00:01".parse().unwrap()),
        bridge: Some("vmbr0".to_owned()),
        vlan: Some(20),
        mtu: Some(1500),
        queues: Some(2),
        firewall: Some(true),
        link_down: Some(false),
        ..Net::default()
    };
    VmConfig {
        name: Some("a".to_owned()),
        description: Some("one\ntwo".parse().unwrap()),
        tags: Some("a;b".parse().unwrap()),
        cores: Some(4),
        sockets: Some(1),
        cpu: Some("x86-64-v2-AES".to_owned()),
        memory: Some(2048),
        balloon: Some(0),
        machine: Some("q35".to_owned()),
        bios: Some(Bios::Ovmf),
        scsihw: Some("virtio-scsi-pci".to_owned()),
        ostype: Some("l26".to_owned()),
        onboot: Some(true),
        protection: Some(false),
        agent: Some(Agent {
            enabled: true,
            ..Agent::default()
        }),
        boot: Some(Boot::from_devices(["scsi0"])),
        smbios: Some(Smbios {
            serial: Some("x".to_owned()),
            ..Smbios::default()
        }),
        drives: BTreeMap::from([
            (Slot::Disk(Bus::Scsi, 0), disk),
            (Slot::Efi, efi),
            (Slot::Disk(Bus::Ide, 2), Drive::cdrom(Source::CloudInit { storage: store })),
        ]),
        nets: BTreeMap::from([(0, net)]),
        ipconfigs: BTreeMap::from([(0, "ip=10.0.0.5/24,gw=10.0.0.1".parse().unwrap())]),
        nameservers: Some(vec!["1.1.1.1".to_owned()]),
        searchdomain: Some("lan".to_owned()),
        ciuser: Some("admin".to_owned()),
        cipassword: Some("secret".into()),
        sshkeys: Some(vec!["ssh-ed25519 AAAA x".to_owned()]),
        other: BTreeMap::from([
            ("serial0".to_owned(), "socket".to_owned()),
            ("rng0".to_owned(), "source=/dev/urandom".to_owned()),
        ]),
        ..VmConfig::default()
    }
}

fn find<'a>(schema: &'a [Method], request: &Request) -> &'a Method {
    let matches = |method: &&Method| method.method == request.method().as_str() && method.path == request.template();
    schema
        .iter()
        .find(matches)
        .unwrap_or_else(|| panic!("PVE has no {} {}", request.method(), request.template()))
}

/// `scsi0` is described as `scsi[n]`.
fn param<'a>(method: &'a Method, name: &str) -> Option<&'a Schema> {
    let indexed = format!("{}[n]", name.trim_end_matches(|c: char| c.is_ascii_digit()));
    method.params.get(name).or_else(|| method.params.get(&indexed))
}

#[test]
fn every_call_has_the_parameters_that_pve_describes() {
    let schema = schema();
    for request in every_call() {
        let method = find(&schema, &request);
        let in_path = |name: &str| method.path.contains(&format!("{{{name}}}"));
        for name in request.param_names() {
            assert!(!in_path(name), "{}: `{name}` is in the path already", request.name());
            let schema = param(method, name).unwrap_or_else(|| panic!("{}: PVE does not know `{name}`", request.name()));
            let value = request.value_of(name).unwrap();
            check(schema, &value).unwrap_or_else(|why| panic!("{}: {name}={value}: {why}", request.name()));
        }
        for (name, schema) in &method.params {
            let given = in_path(name) || request.param_names().any(|given| given == name) || name.ends_with("[n]");
            assert!(given || schema.optional.is_some(), "{}: `{name}` is missing", request.name());
        }
        let placeholders = method.path.matches('{').count();
        let filled = request.path().split('/').count() == method.path.split('/').count() && !request.path().contains("//");
        assert!(filled, "{}: {placeholders} values expected", request.name());
    }
}

#[test]
fn every_call_to_a_host_knows_whether_the_root_daemon_carries_it_out() {
    let schema = schema();
    for request in every_call().iter().filter(|request| request.host().is_some()) {
        let protected = find(&schema, request).protected == 1;
        assert_eq!(request.is_protected(), protected, "{}", request.name());
    }
}

#[test]
fn every_described_call_is_tried_here() {
    // The upload's parameters stand in its multipart body, which the client's tests look at.
    let tried: BTreeSet<(String, &str)> = every_call()
        .iter()
        .map(|request| (request.method().to_string(), request.template()))
        .collect();
    for method in schema() {
        let upload = method.path.ends_with("/upload");
        assert!(
            upload || tried.contains(&(method.method.clone(), method.path.as_str())),
            "{} {}",
            method.method,
            method.path
        );
    }
}

/// The part of PVE's validation that can be told from the value alone.
fn check(schema: &Schema, value: &str) -> Result<(), String> {
    match schema.kind.as_deref() {
        Some("boolean") if !["0", "1"].contains(&value) => return Err("not a boolean".to_owned()),
        Some("integer" | "number") => {
            let number: f64 = value.parse().map_err(|_| "not a number".to_owned())?;
            if schema.minimum.is_some_and(|min| number < min) || schema.maximum.is_some_and(|max| number > max) {
                return Err("out of range".to_owned());
            }
        }
        _ => {}
    }
    if schema
        .choices
        .as_ref()
        .is_some_and(|choices| !choices.iter().any(|choice| choice == value))
    {
        return Err("not one of the choices".to_owned());
    }
    if schema.max_length.is_some_and(|max| value.chars().count() > max) {
        return Err("too long".to_owned());
    }
    let Some(format) = &schema.format else { return Ok(()) };
    value.split(',').try_for_each(|piece| check_property(format, piece))
}

fn check_property(format: &BTreeMap<String, Schema>, piece: &str) -> Result<(), String> {
    match piece.split_once('=') {
        Some((key, value)) => {
            let schema = format.get(key).ok_or_else(|| format!("`{key}` is not in the format"))?;
            // Inside property strings `on` and `ignore` are words of an enum, flags are 0 and 1.
            check(schema, value).map_err(|why| format!("{key}: {why}"))
        }
        None => {
            let (_, schema) = format
                .iter()
                .find(|(_, schema)| schema.default_key.is_some())
                .ok_or("no default key")?;
            check(schema, piece)
        }
    }
}

#[test]
fn the_privileges_of_each_call_are_those_that_pve_describes() {
    for method in schema() {
        let known = check_of(&method.method.parse().unwrap(), &method.path);
        let known = known.unwrap_or_else(|| panic!("no entry for {} {}", method.method, method.path));
        // Where PVE describes no privileges it checks them in code, or shows less; those entries are ours.
        let Some(described) = method.permissions.as_ref().and_then(|permissions| permissions.get("check")) else {
            continue;
        };
        if method
            .permissions
            .as_ref()
            .is_some_and(|permissions| permissions.get("user").is_some())
        {
            continue;
        }
        let (ours, theirs) = (demands(&known), described_demands(described));
        assert_eq!(ours, theirs, "{} {}", method.method, method.path);
    }
}

/// Every (path, privilege) pair an expression speaks of, and how they are combined, as sorted text.
fn demands(check: &Check) -> String {
    let names = |privileges: &[Privilege]| {
        let mut names: Vec<&str> = privileges
            .iter()
            .filter(|p| **p != Privilege::VmMonitor)
            .map(|p| p.name())
            .collect();
        names.sort_unstable();
        names.join(" ")
    };
    match check {
        Check::Anyone => String::new(),
        Check::AllOf(path, privileges) => format!("all {path} {}", names(privileges)),
        Check::AnyOf(path, privileges) => format!("any {path} {}", names(privileges)),
        Check::Both(checks) => combined("and", checks.iter().map(demands).collect()),
        Check::Either(checks) => combined("or", checks.iter().map(demands).collect()),
    }
}

fn combined(word: &str, mut parts: Vec<String>) -> String {
    parts.sort();
    format!("{word}({})", parts.join("; "))
}

fn described_demands(check: &Value) -> String {
    let list = check.as_array().unwrap();
    let text = |n: usize| list[n].as_str().unwrap_or_default();
    let rest = || list[1..].iter().map(described_demands).collect::<Vec<_>>();
    match text(0) {
        "and" => combined("and", rest()),
        // A user may always read the own tokens; the second branch is the check for tokens of another user.
        "or" if list[1][0] == "userid-param" && list[1][1] == "self" => described_demands(&list[2]),
        "or" => combined("or", rest()),
        "perm" => {
            let mut names: Vec<&str> = list[2]
                .as_array()
                .unwrap()
                .iter()
                .map(|name| name.as_str().unwrap())
                .collect();
            names.sort_unstable();
            let any = list.get(3).is_some_and(|word| word == "any");
            format!("{} {} {}", if any { "any" } else { "all" }, text(1), names.join(" "))
        }
        "perm-modify" => format!("all {} Permissions.Modify", text(1)),
        "userid-param" => format!("all /access/realm/{{realm}} {}", text(1)),
        "userid-group" => format!("all /access/groups {}", list[1][0].as_str().unwrap()),
        other => panic!("unknown check {other}"),
    }
}
