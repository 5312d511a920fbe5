//! The PVE client against the simulated PVE under every kind of fault: the right kind of error, nothing sent twice that may not be, and
//! the token's secret in nothing that is ever printed.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_net::{Entropy, Env, Secret, SimNet, Target, Trust, Wall, simulate};
use pve_api::{
    Class, Client, ClientOptions, Content, Endpoint, Error, Host, Lock, Login, StorageId, Tags, TaskDone, Unknown, VmConfig,
    Vmid, cluster, qemu, storage,
};
use pve_sim::faults::{Fault, Rule};
use pve_sim::guest::Pace;
use pve_sim::{Datacenter, NoOs, Observer, Seen, SimEnv, World};

/// Everything that was ever printed is searched for these.
const CANARIES: [&str; 2] = ["canary-0af1-4c11", "canary-pass-77"];

const WORLD: &str = r#"{
  "cluster": { "name": "lab", "config_version": 2 },
  "nodes": {
    "pve1": { "nodeid": 1, "ip": "10.0.0.1", "bridges": { "vmbr0": { "active": 1 } } },
    "pve2": { "nodeid": 2, "ip": "10.0.0.2", "bridges": { "vmbr0": { "active": 1 } } }
  },
  "storages": {
    "local": { "type": "dir", "path": "/var/lib/vz", "content": "iso,import,images", "capacity": 1073741824 },
    "nfs": { "type": "nfs", "path": "/mnt/pve/nfs", "content": "images", "shared": 1, "capacity": 1073741824 }
  },
  "volumes": { "pve1": { "local": [
    { "volid": "local:import/big.qcow2", "content": "import", "format": "qcow2", "size": 104857600, "virtual_size": 104857600 }
  ] } },
  "users": { "root@pam": { "enable": 1, "expire": 0 }, "ops@pve": { "enable": 1, "expire": 0 } },
  "passwords": { "ops@pve": "canary-pass-77" },
  "tokens": { "ops@pve!ms": { "privsep": 0, "expire": 0, "secret": "canary-0af1-4c11" } },
  "roles": { "Net": ["Sys.Audit", "Sys.AccessNetwork"] },
  "acl": [
    { "path": "/", "type": "user", "ugid": "ops@pve", "roleid": "PVEAdmin", "propagate": 1 },
    { "path": "/nodes", "type": "user", "ugid": "ops@pve", "roleid": "Net", "propagate": 1 }
  ]
}"#;

/// Collects everything that is printed.
#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0
            .lock()
            .expect("no thread panics while printing")
            .extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Printed {
    fn add(&self, text: &str) {
        self.clone().write_all(text.as_bytes()).expect("memory can be written");
    }

    fn error(&self, error: &Error) {
        self.add(&format!("{error} {error:?}\n"));
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            self.add(&format!("{error} {error:?}\n"));
            cause = error.source();
        }
    }
}

/// What the server saw, as `--record` would write it.
#[derive(Clone, Default)]
struct Record(Arc<Mutex<Vec<(String, String)>>>, Printed);

impl Observer for Record {
    fn request(&self, seen: &Seen) {
        let call = format!("{} {}", seen.verb, seen.path);
        let who = seen.by.clone().unwrap_or_default();
        self.0.lock().expect("no thread panics while recording").push((call, who));
        let (params, answer) = (&seen.params, &seen.answer);
        self.1.add(&format!("{:?} {params} {:?} {answer}\n", seen.by, seen.reason));
    }
}

struct Lab {
    dc: Datacenter,
    env: Env,
    record: Record,
    printed: Printed,
}

impl Lab {
    fn client(&self, login: Login) -> Client {
        let endpoint = Endpoint {
            target: "10.0.0.1:8006".parse::<Target>().expect("a target"),
            trust: Trust::Plain,
            host: None,
        };
        let client = Client::new(&self.env, vec![endpoint], login, ClientOptions::default()).expect("a client");
        self.printed.add(&format!("{client:?}"));
        client
    }

    fn token(&self) -> Client {
        let login: Login = "ops@pve!ms=canary-0af1-4c11".parse().expect("a token");
        self.printed.add(&format!("{login:?}"));
        self.client(login)
    }

    fn sent(&self, call: &str) -> usize {
        let all = self.record.0.lock().expect("no thread panics while recording");
        all.iter().filter(|(seen, _)| seen == call).count()
    }

    fn fault(&self, call: &str, then: Fault) {
        self.dc.faults().add(Rule {
            call: call.into(),
            path: None,
            from: 1,
            times: Some(1),
            chance: 1.0,
            then,
        });
    }

    fn machine(&self, vmid: u32, config: &[(&str, &str)]) {
        let config: BTreeMap<String, String> = config.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        self.dc.lab().create_vm(vmid, "pve1", config);
    }

    /// The error of a call that must not succeed, printed in every way there is.
    fn failed<T: std::fmt::Debug>(&self, outcome: Result<T, Error>) -> Error {
        let error = outcome.expect_err("a fault was set");
        self.printed.error(&error);
        error
    }
}

/// A fresh laboratory on virtual time; at its end, nothing printed holds a secret.
fn laboratory<F: Future<Output = ()>>(test: impl FnOnce(Arc<Lab>) -> F + Send) {
    let printed = Printed::default();
    let (writer, kept) = (printed.clone(), printed.clone());
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(move || writer.clone())
        .with_ansi(false)
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let run = |entropy: Entropy| async move {
        let net = SimNet::new(entropy.fork("net"));
        let wall = Wall::at("2026-11-15T20:00:00Z".parse().expect("a timestamp"));
        let dialer: Arc<SimNet> = Arc::new(net.clone());
        let sim = SimEnv {
            network: Arc::clone(&dialer) as _,
            dialer: Arc::clone(&dialer) as _,
            wall,
            entropy: entropy.fork("sim"),
            pace: Pace::default(),
            tls: false,
        };
        let dc = Datacenter::new(World::parse(WORLD).expect("a world"), sim, Arc::new(NoOs));
        let record = Record(Arc::default(), printed.clone());
        dc.observe(Arc::new(record.clone()));
        let at = ["pve1", "pve2"].map(|host| {
            let ip = if host == "pve1" { "10.0.0.1:8006" } else { "10.0.0.2:8006" };
            (host.to_string(), ip.parse().expect("an address"))
        });
        let serving = dc.serve(at.into_iter().collect()).await.expect("free addresses");
        let env = Env { dialer, wall, entropy };
        let lab = Lab {
            dc,
            env,
            record,
            printed,
        };
        test(Arc::new(lab)).await;
        drop(serving);
    };
    simulate(7, Duration::from_secs(4 * 3600), run).expect("the simulation ends");
    let text = String::from_utf8_lossy(&kept.0.lock().expect("no thread panics while printing")).into_owned();
    assert!(text.contains("ops@pve!ms"), "what is searched holds the token's name");
    for canary in CANARIES {
        assert!(!text.contains(canary), "{canary} was printed");
    }
}

fn pve1() -> Host {
    "pve1".parse().expect("a host")
}

fn id(number: u32) -> Vmid {
    Vmid::new(number).expect("a VM id")
}

fn create(vmid: u32) -> pve_api::Call<pve_api::Upid> {
    let config = VmConfig {
        name: Some("m".into()),
        ..VmConfig::default()
    };
    qemu::create(&pve1(), id(vmid), &config, &qemu::CreateOptions::default())
}

fn cores() -> qemu::Change {
    qemu::Change {
        set: VmConfig {
            cores: Some(2),
            ..VmConfig::default()
        },
        ..qemu::Change::default()
    }
}

fn is_lost(error: &Error) -> bool {
    matches!(
        error,
        Error::Unknown {
            source: Unknown::Lost(_),
            ..
        }
    )
}

#[test]
fn an_answer_that_is_lost_after_the_call_leaves_the_outcome_open_and_nothing_is_sent_twice() {
    laboratory(|lab| async move {
        lab.fault("POST /nodes/{node}/qemu", Fault::CutAfter);
        let error = lab.failed(lab.token().call(create(101)).await);
        assert!(is_lost(&error), "{error:?}");
        assert_eq!(lab.sent("POST /nodes/pve1/qemu"), 1);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let looked = lab.token().call(qemu::config(&pve1(), id(101))).await;
        assert_eq!(looked.expect("it was carried out").name.as_deref(), Some("m"));
    });
}

#[test]
fn a_connection_cut_before_the_call_is_not_distinguished_from_one_cut_after() {
    laboratory(|lab| async move {
        lab.fault("POST /nodes/{node}/qemu", Fault::CutBefore);
        let error = lab.failed(lab.token().call(create(101)).await);
        assert!(is_lost(&error), "{error:?}");
        assert_eq!(lab.sent("POST /nodes/pve1/qemu"), 1);
        let looked = lab.failed(lab.token().call(qemu::config(&pve1(), id(101))).await);
        assert!(looked.is_missing(), "{looked:?}");
    });
}

#[test]
fn what_a_gateway_says_leaves_a_write_open_and_a_read_is_tried_again() {
    for (status, reason) in [
        (595, "No route to host"),
        (596, "Connection timed out"),
        (597, "Broken pipe"),
        (599, "Too many redirections"),
    ] {
        laboratory(|lab| async move {
            let reason = reason.to_string();
            lab.fault(
                "POST /nodes/{node}/qemu",
                Fault::ReplaceAnswer {
                    status,
                    reason: reason.clone(),
                },
            );
            let error = lab.failed(lab.token().call(create(101)).await);
            assert!(
                error.is_unknown() && error.class() == Some(&Class::HostUnreachable),
                "{error:?}"
            );
            assert_eq!(lab.sent("POST /nodes/pve1/qemu"), 1);
            lab.fault("GET /cluster/resources", Fault::Refuse { status, reason });
            lab.token()
                .call(cluster::resources(None))
                .await
                .expect("the second try is answered");
            assert_eq!(lab.sent("GET /cluster/resources"), 2);
        });
    }
}

#[test]
fn a_token_that_is_no_longer_taken_is_tried_once_and_a_ticket_is_renewed_once() {
    laboratory(|lab| async move {
        let refuse = || Fault::Refuse {
            status: 401,
            reason: "Authentication failed!".into(),
        };
        lab.fault("GET /cluster/resources", refuse());
        let error = lab.failed(lab.token().call(cluster::resources(None)).await);
        assert_eq!(error.class(), Some(&Class::Unauthenticated));
        assert_eq!(lab.sent("GET /cluster/resources"), 1);
        let login = Login::Password {
            user: "ops@pve".into(),
            password: Secret::new("canary-pass-77".to_string()),
            code: None,
        };
        lab.printed.add(&format!("{login:?}"));
        let client = lab.client(login);
        lab.fault("GET /version", refuse());
        client.call(cluster::version()).await.expect("a new ticket is taken");
        assert_eq!(lab.sent("POST /access/ticket"), 2);
    });
}

#[test]
fn hosts_that_are_gone_and_clusters_without_quorum_are_told_apart() {
    laboratory(|lab| async move {
        lab.machine(101, &[]);
        lab.dc.lab().set_online("pve2", false);
        let there: Host = "pve2".parse().expect("a host");
        let error = lab.failed(lab.token().call(qemu::list(&there)).await);
        assert!(
            error.is_unknown() && error.class() == Some(&Class::HostUnreachable),
            "{error:?}"
        );
        // One of two votes is no majority.
        let error = lab.failed(lab.token().call(create(102)).await);
        assert_eq!(error.class(), Some(&Class::NoQuorum));
        let error = lab.failed(lab.token().call(qemu::set(&pve1(), id(101), &cores())).await);
        assert_eq!(error.class(), Some(&Class::NoQuorum));
        assert_eq!(lab.sent("POST /nodes/pve1/qemu"), 1);
    });
}

#[test]
fn locks_that_are_held_and_locks_that_were_left_behind_are_told_apart() {
    laboratory(|lab| async move {
        lab.machine(101, &[]);
        lab.dc.lab().hold_vm_lock(101, Duration::from_secs(60)).await;
        let error = lab.failed(lab.token().call(qemu::set(&pve1(), id(101), &cores())).await);
        assert!(
            matches!(error, Error::Refused(_)) && error.class() == Some(&Class::LockTimeout),
            "{error:?}"
        );
        let error = lab.failed(lab.token().run(qemu::start(&pve1(), id(101))).await);
        assert!(
            matches!(error, Error::TaskFailed(_)) && error.class() == Some(&Class::LockTimeout),
            "{error:?}"
        );
        tokio::time::sleep(Duration::from_secs(60)).await;
        lab.dc.lab().set_lock(101, Some("clone"));
        let error = lab.failed(lab.token().call(qemu::set(&pve1(), id(101), &cores())).await);
        assert_eq!(error.class(), Some(&Class::Locked(Lock::from("clone"))));
        assert_eq!(lab.sent("PUT /nodes/pve1/qemu/101/config"), 2);
        assert_eq!(lab.sent("POST /nodes/pve1/qemu/101/status/start"), 1);
    });
}

#[test]
fn a_task_that_is_killed_or_fails_says_so_and_warnings_are_a_success() {
    laboratory(|lab| async move {
        lab.fault("task qmcreate", Fault::KillTask { seconds: 0.0 });
        let error = lab.failed(lab.token().run(create(101)).await);
        assert_eq!(error.class(), Some(&Class::Interrupted));
        let text = "got no worker upid - start worker failed".to_string();
        lab.fault(
            "task qmcreate",
            Fault::FailTask {
                seconds: 0.0,
                error: text,
            },
        );
        let error = lab.failed(lab.token().run(create(102)).await);
        assert_eq!(error.class(), Some(&Class::Busy));
        assert_eq!(lab.sent("POST /nodes/pve1/qemu"), 2);
        let config = VmConfig {
            other: [("scsi0".to_string(), "nfs:1".to_string())].into(),
            ..VmConfig::default()
        };
        let made = qemu::create(&pve1(), id(103), &config, &qemu::CreateOptions::default());
        lab.token().run(made).await.expect("nothing is in the way");
        lab.dc.lab().hold_storage_lock("pve1", "nfs", Duration::from_secs(60)).await;
        let gone = lab
            .token()
            .run(qemu::delete(&pve1(), id(103), qemu::DeleteOptions::default()))
            .await;
        let TaskDone { warnings, .. } = gone.expect("a volume that stays is a warning").expect("a task");
        assert_eq!(warnings, 1);
    });
}

#[test]
fn what_others_did_meanwhile_is_found_out() {
    laboratory(|lab| async move {
        lab.machine(101, &[]);
        lab.dc.lab().move_vm(101, "pve2");
        let error = lab.failed(lab.token().call(qemu::config(&pve1(), id(101))).await);
        assert!(error.is_missing(), "moved by HA: {error:?}");
        let free = lab.token().call(cluster::next_id()).await.expect("an id");
        lab.machine(free.get(), &[]);
        let error = lab.failed(lab.token().call(create(free.get())).await);
        assert_eq!(error.class(), Some(&Class::Exists), "taken by a foreign VM");
        lab.dc.lab().set_acl("/vms", "user", "ops@pve", Some("PVEAuditor"));
        let error = lab.failed(lab.token().call(qemu::set(&pve1(), free, &cores())).await);
        assert_eq!(error.class(), Some(&Class::Denied));
        assert_eq!(lab.sent("POST /nodes/pve1/qemu"), 1);
    });
}

#[test]
fn full_storages_and_wrong_images_end_their_tasks() {
    laboratory(|lab| async move {
        lab.dc.lab().take_space("local", 1 << 30);
        let config = VmConfig {
            other: [("scsi0".to_string(), "local:0,import-from=local:import/big.qcow2".to_string())].into(),
            ..VmConfig::default()
        };
        let full = qemu::create(&pve1(), id(101), &config, &qemu::CreateOptions::default());
        let error = lab.failed(lab.token().run(full).await);
        assert!(
            matches!(error, Error::TaskFailed(_)) && error.class() == Some(&Class::StorageFull),
            "{error:?}"
        );
        let text = "checksum mismatch: got '0' != expect '1'".to_string();
        lab.fault(
            "task download",
            Fault::FailTask {
                seconds: 1.0,
                error: text,
            },
        );
        let wanted = storage::Download {
            content: Content::Import,
            filename: "x.qcow2".into(),
            url: "http://10.0.0.9/x.qcow2".into(),
            checksum: None,
            verify_certificates: true,
        };
        let local: StorageId = "local".parse().expect("a storage");
        let error = lab.failed(lab.token().run(storage::download(&pve1(), &local, &wanted)).await);
        assert_eq!(error.class(), Some(&Class::Corrupt));
    });
}

#[test]
fn a_host_that_hangs_is_given_up_and_a_guest_without_agent_is_told() {
    laboratory(|lab| async move {
        lab.dc.faults().add(Rule {
            call: "GET /nodes/{node}/storage".into(),
            path: None,
            from: 1,
            times: None,
            chance: 1.0,
            then: Fault::Delay { seconds: 90.0 },
        });
        let error = lab.failed(lab.token().call(storage::list(&pve1())).await);
        assert!(is_lost(&error), "{error:?}");
        lab.machine(101, &[("agent", "1"), ("memory", "64")]);
        lab.token().run(qemu::start(&pve1(), id(101))).await.expect("it starts");
        let error = lab.failed(lab.token().call(qemu::agent_ping(&pve1(), id(101))).await);
        assert_eq!(error.class(), Some(&Class::AgentSilent));
        assert_eq!(lab.sent("POST /nodes/pve1/qemu/101/agent/ping"), 1);
    });
}

#[test]
fn a_tag_policy_is_a_matter_of_rights() {
    laboratory(|lab| async move {
        lab.machine(101, &[]);
        lab.dc.lab().set_option("user-tag-access", "user-allow=none");
        let change = qemu::Change {
            set: VmConfig {
                tags: Some("mainstay".parse::<Tags>().expect("a tag")),
                ..VmConfig::default()
            },
            ..qemu::Change::default()
        };
        let error = lab.failed(lab.token().call(qemu::set(&pve1(), id(101), &change)).await);
        assert_eq!(error.class(), Some(&Class::Denied));
    });
}

#[test]
fn a_slow_import_is_one_task_that_tells_how_far_it_is() {
    laboratory(|lab| async move {
        lab.fault("task qmcreate", Fault::SlowTask { seconds: 1500.0 });
        let config = VmConfig {
            other: [("scsi0".to_string(), "local:0,import-from=local:import/big.qcow2".to_string())].into(),
            ..VmConfig::default()
        };
        let client = lab.token();
        let begun = tokio::time::Instant::now();
        let made = qemu::create(&pve1(), id(101), &config, &qemu::CreateOptions::default());
        let upid = client.call(made).await.expect("it begins at once");
        assert!(
            begun.elapsed() < Duration::from_secs(5),
            "the answer does not wait for the copy"
        );
        let mut shares = Vec::new();
        let every = Duration::from_secs(60);
        let done = client
            .wait_reporting(&upid, every, |progress| shares.extend(progress.percent))
            .await;
        assert_eq!(done.expect("it ends well").warnings, 0);
        assert!(begun.elapsed() >= Duration::from_secs(1500), "{:?}", begun.elapsed());
        assert!(shares.len() >= 20 && shares.is_sorted(), "{shares:?}");
        assert!(shares.iter().any(|share| (40.0..60.0).contains(share)), "{shares:?}");
        assert_eq!(lab.sent("POST /nodes/pve1/qemu"), 1);
    });
}
