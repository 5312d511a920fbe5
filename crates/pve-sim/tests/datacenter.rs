//! Faults, observers, connections and block storages.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_net::{Dialer, Entropy, SimNet, Target, Wall};
use pve_sim::faults::{Fault, Rule};
use pve_sim::guest::{Guest, Guests, Hardware, Pace};
use pve_sim::http::Request;
use pve_sim::{Datacenter, Effect, NoOs, Observer, Seen, SimEnv, Verdict, World};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;

const TOKEN: &str = "PVEAPIToken=root@pam!mainstay=00000000-0000-4000-8000-000000000001";

fn world() -> (Datacenter, SimNet) {
    world_of(Arc::new(NoOs))
}

fn world_of(guests: Arc<dyn Guests>) -> (Datacenter, SimNet) {
    let net = SimNet::new(Entropy::from_seed(1));
    let env = SimEnv {
        network: Arc::new(net.clone()),
        dialer: Arc::new(net.clone()),
        wall: Wall::at("2026-01-01T00:00:00Z".parse().expect("a timestamp")),
        entropy: Entropy::from_seed(1),
        pace: Pace::default(),
        tls: false,
    };
    (Datacenter::new(World::default(), env, guests), net)
}

async fn send(dc: &Datacenter, verb: &str, path: &str, form: &str) -> Option<(u16, Value)> {
    let headers = vec![("Authorization".to_string(), TOKEN.to_string())];
    let request = Request {
        verb: verb.into(),
        target: format!("/api2/json{path}"),
        headers,
        body: form.to_string().into(),
        old: false,
    };
    match dc.answer("pve1", &request).await {
        Verdict::Answer(response) => Some((response.status, serde_json::from_slice(&response.body).unwrap_or(Value::Null))),
        Verdict::HangUp => None,
    }
}

/// Does it and waits until all tasks have ended.
async fn done(dc: &Datacenter, verb: &str, path: &str, form: &str) -> Vec<String> {
    send(dc, verb, path, form).await;
    while dc.inspect().tasks.iter().any(|t| t.exit.is_none()) {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    dc.inspect().tasks.iter().take(1).filter_map(|t| t.exit.clone()).collect()
}

fn rule(call: &str, then: Fault) -> Rule {
    Rule {
        call: call.into(),
        path: None,
        from: 1,
        times: Some(1),
        chance: 1.0,
        then,
    }
}

#[tokio::test(start_paused = true)]
async fn a_lost_answer_does_not_undo_the_call() {
    let (dc, _) = world();
    let number = dc.faults().add(rule("POST /nodes/{node}/qemu", Fault::CutAfter));
    assert!(send(&dc, "POST", "/nodes/pve1/qemu", "vmid=100").await.is_none());
    assert_eq!((dc.inspect().vms.len(), dc.faults().struck(number)), (1, 1));
    assert_eq!(
        send(&dc, "POST", "/nodes/pve1/qemu", "vmid=101")
            .await
            .map(|(status, _)| status),
        Some(200)
    );
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_refused_first_changes_nothing() {
    let (dc, _) = world();
    dc.faults().add(rule(
        "* /nodes/{node}/qemu",
        Fault::Refuse {
            status: 596,
            reason: "Broken pipe".into(),
        },
    ));
    assert_eq!(
        send(&dc, "POST", "/nodes/pve1/qemu", "vmid=100")
            .await
            .map(|(status, _)| status),
        Some(596)
    );
    assert!(dc.inspect().vms.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_killed_worker_leaves_its_lock_behind() {
    let (dc, _) = world();
    dc.faults().add(rule("task qmcreate", Fault::KillTask { seconds: 0.05 }));
    assert_eq!(
        done(&dc, "POST", "/nodes/pve1/qemu", "vmid=100&scsi0=local-lvm:1").await,
        ["unexpected status"]
    );
    assert_eq!(dc.inspect().vms[&100].config.get("lock").map(String::as_str), Some("create"));
    assert_eq!(
        done(&dc, "DELETE", "/nodes/pve1/qemu/100", "").await,
        ["VM is locked (create)"]
    );
}

#[derive(Default)]
struct Notes(Mutex<Vec<String>>);

impl Observer for Notes {
    fn request(&self, seen: &Seen) {
        self.0
            .lock()
            .expect("not poisoned")
            .push(format!("{} {} {:?}", seen.verb, seen.path, seen.status));
    }

    fn effect(&self, by: &str, effect: &Effect) {
        let what = match effect {
            Effect::VmCreated { .. } => "created",
            Effect::VmRemoved { .. } => "removed",
            Effect::VmStopped { .. } => "stopped",
            _ => return,
        };
        self.0.lock().expect("not poisoned").push(format!("{by} {what}"));
    }
}

/// A guest keeps its hardware, and with it the switch that ends its VM.
struct Keeper {
    _hardware: Hardware,
}

impl Guest for Keeper {
    fn reset(&mut self) {}
}

struct Keepers;

impl Guests for Keepers {
    fn power_on(&self, hardware: Hardware) -> Box<dyn Guest> {
        Box::new(Keeper { _hardware: hardware })
    }
}

#[tokio::test(start_paused = true)]
async fn a_datacenter_without_an_owner_is_gone_with_its_running_vms() {
    let (dc, _) = world_of(Arc::new(Keepers));
    let notes = Arc::new(Notes::default());
    dc.observe(Arc::clone(&notes) as Arc<dyn Observer>);
    done(&dc, "POST", "/nodes/pve1/qemu", "vmid=100").await;
    assert_eq!(done(&dc, "POST", "/nodes/pve1/qemu/100/status/start", "").await, ["OK"]);
    drop(dc);
    assert_eq!(Arc::strong_count(&notes), 1, "the datacenter still has its observer");
}

#[tokio::test(start_paused = true)]
async fn observers_see_who_did_what() {
    let (dc, _) = world();
    let notes = Arc::new(Notes::default());
    dc.observe(Arc::clone(&notes) as Arc<dyn Observer>);
    done(&dc, "POST", "/nodes/pve2/qemu", "vmid=100").await;
    done(&dc, "POST", "/nodes/pve2/qemu/100/status/start", "").await;
    done(&dc, "POST", "/nodes/pve2/qemu/100/status/stop", "").await;
    done(&dc, "POST", "/nodes/pve2/qemu/100/status/start", "").await;
    dc.lab().kill_vm(100);
    done(&dc, "DELETE", "/nodes/pve2/qemu/100", "").await;
    let mut seen = notes.0.lock().expect("not poisoned").clone();
    seen.retain(|line| !line.contains("/status/"));
    let expected = [
        "root@pam!mainstay created",
        "POST /nodes/pve2/qemu Some(200)",
        "root@pam!mainstay stopped",
        "root@pam stopped",
        "DELETE /nodes/pve2/qemu/100 Some(200)",
        "root@pam!mainstay removed",
    ];
    assert_eq!(seen, expected);
    assert_eq!(dc.stats().calls()["POST /nodes/{node}/qemu"], 1);
}

#[tokio::test(start_paused = true)]
async fn linked_clones_on_a_thin_pool_have_no_parent_in_their_name() {
    let (dc, _) = world();
    done(
        &dc,
        "POST",
        "/nodes/pve1/qemu",
        "vmid=9000&scsi0=local-lvm:1&ide2=local-lvm:cloudinit",
    )
    .await;
    done(&dc, "POST", "/nodes/pve1/qemu/9000/template", "").await;
    assert_eq!(done(&dc, "POST", "/nodes/pve1/qemu/9000/clone", "newid=100").await, ["OK"]);
    let seen = dc.inspect();
    assert_eq!(seen.vms[&9000].config["scsi0"], "local-lvm:base-9000-disk-0,size=1G");
    assert_eq!(seen.vms[&100].config["scsi0"], "local-lvm:vm-100-disk-0,size=1G");
    assert_eq!(
        seen.vms[&100].config["ide2"],
        "local-lvm:vm-100-cloudinit,media=cdrom,size=4M"
    );
    assert_eq!(
        done(&dc, "DELETE", "/nodes/pve1/qemu/9000", "").await,
        ["OK"],
        "a thin clone stands on its own"
    );
}

/// Sends bytes over one connection and reads until it is closed or silent.
async fn converse(net: &SimNet, requests: usize, path: &str, token: &str) -> String {
    let mut stream = net.dial(&Target::new("10.1.0.1", 8006)).await.expect("it listens");
    let one = format!("GET /api2/json{path} HTTP/1.1\r\nHost: h\r\nAuthorization: {token}\r\n\r\n");
    let mut text = Vec::new();
    for _ in 0..requests {
        if stream.write_all(one.as_bytes()).await.is_err() {
            break;
        }
    }
    let _ = tokio::time::timeout(Duration::from_secs(60), stream.read_to_end(&mut text)).await;
    String::from_utf8_lossy(&text).into_owned()
}

#[tokio::test(start_paused = true)]
async fn a_connection_carries_a_hundred_requests_and_none_after_an_error() {
    let (dc, net) = world();
    let at = [("pve1".to_string(), "10.1.0.1:8006".parse().expect("an address"))].into();
    let _serving = dc.serve(at).await.expect("the address is free");
    let many = converse(&net, 120, "/version", TOKEN).await;
    assert_eq!(
        (
            many.matches("HTTP/1.1 200 OK").count(),
            many.matches("Connection: close").count()
        ),
        (100, 1)
    );
    let wrong = converse(&net, 3, "/nope", TOKEN).await;
    assert_eq!(
        (
            wrong.matches("HTTP/1.1 501").count(),
            wrong.matches("Connection: close").count()
        ),
        (1, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn a_failed_login_costs_three_seconds() {
    let (dc, net) = world();
    let at = [("pve1".to_string(), "10.1.0.1:8006".parse().expect("an address"))].into();
    let _serving = dc.serve(at).await.expect("the address is free");
    let began = Instant::now();
    let answer = converse(&net, 1, "/version", "PVEAPIToken=root@pam!nope=x").await;
    assert!(
        answer.starts_with("HTTP/1.1 401 Authentication failed!\r\n") && !answer.contains("Content-Length"),
        "{answer}"
    );
    assert!(began.elapsed() >= Duration::from_secs(3));
}

#[test]
fn a_world_is_yaml_too() {
    let text = "nodes:\n  a: { nodeid: 1, ip: 10.0.0.1 }\nstorages:\n  local: { type: dir, path: /x, content: 'images,import', capacity: 1000 }\nfaults:\n  - { call: \"task qmcreate\", then: { kill-task: { seconds: 1 } } }\n  - { call: \"*\", chance: 0.5, then: cut-after }\n";
    let world = World::parse(text).expect("valid");
    assert_eq!(
        (world.nodes.len(), world.faults.len(), world.storages["local"].capacity),
        (1, 2, 1000)
    );
    assert_eq!(world.faults[1].then, Fault::CutAfter);
}
