//! The calls that were recorded on a real cluster of Talos 1.13.9, asked again in the same stage: codes, texts and bodies must be equal.
//!
//! `known.rs` holds where they may differ, and why; `every_recorded_call_is_asked_again_or_says_why_not` keeps count.

mod configs;
mod events;
mod known;
mod stages;
mod tape;
mod times;

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lab::{Lab, Node, Vm, until};
use tape::Call;

const CP1: &str = "10.5.0.2";
const CP2: &str = "10.5.0.3";
const CP3: &str = "10.5.0.4";
const WORKER: &str = "10.5.0.10";

/// A session with the simulated cluster, and what it found.
struct Session {
    lab: Arc<Lab>,
    /// Stands in for the member that a recorded request names.
    member: Mutex<u64>,
    wrong: Mutex<Vec<String>>,
}

impl Session {
    fn new(lab: Arc<Lab>) -> Self {
        Self {
            lab,
            member: Mutex::new(0),
            wrong: Mutex::default(),
        }
    }

    /// A machine of the recorded network.
    fn vm(&self, name: &str, address: &str) -> Vm {
        let mut vm = self.lab.vm(name, address);
        if let Some(files) = vm.hardware.cloud_init.as_mut() {
            files.network_config = files
                .network_config
                .replace("255.255.0.0", "255.255.255.0")
                .replace("10.10.0.1", "10.5.0.1");
        }
        vm.on();
        vm
    }

    /// The lab's nodes got their network by hand, under `cni: none`; here flannel brings it.
    async fn configured(&self, name: &str, address: &str) -> Vm {
        let vm = self.vm(name, address);
        self.lab.configure(address, &configs::text("controlplane")).await;
        vm
    }

    async fn first(&self) -> Vm {
        self.found("cp1", CP1).await
    }

    /// The node that is bootstrapped, which is the first to hold the VIP.
    async fn found(&self, name: &str, address: &str) -> Vm {
        let vm = self.configured(name, address).await;
        until(|| async { self.lab.admin(address).bootstrap().await.is_ok() }).await;
        until(|| async { self.lab.admin(address).service_up("etcd").await }).await;
        vm
    }

    async fn join(&self, name: &str, address: &str) -> Vm {
        let vm = self.configured(name, address).await;
        until(|| async { self.lab.admin(address).service_up("etcd").await }).await;
        vm
    }

    async fn worker(&self) -> Vm {
        let vm = self.vm("wk1", WORKER);
        self.lab.configure(WORKER, &configs::worker()).await;
        vm
    }

    async fn ready(&self, address: &str) {
        until(|| async {
            self.lab
                .admin(address)
                .machine_status()
                .await
                .contains("stage: running\nstatus:\n    ready: true")
        })
        .await;
    }

    /// The id of a member, by name.
    async fn member_of(&self, at: &str, name: &str) -> u64 {
        let members = self.lab.admin(at).members().await.unwrap();
        let id = members.iter().find(|member| member.hostname == name).unwrap().id;
        *self.member.lock().unwrap() = id;
        id
    }

    /// Asks every call of a stage, each to the node it was recorded on.
    async fn play(&self, stage: &str, client: impl Fn(&Lab, &str) -> Node) {
        for call in stages::calls(stage) {
            let node = client(&self.lab, &call.addr);
            self.check(call, &node).await;
        }
    }

    async fn admin(&self, stage: &str) {
        self.play(stage, Lab::admin).await;
    }

    async fn insecure(&self, stage: &str) {
        self.play(stage, Lab::insecure).await;
    }

    async fn check(&self, call: &Call, node: &Node) {
        let member = *self.member.lock().unwrap();
        let answer = call.ask(node, member).await;
        let differences = call.differences(&answer);
        if !differences.is_empty() {
            self.wrong.lock().unwrap().push(format!(
                "#{} {} {}\n   {}",
                call.n,
                call.method,
                call.request,
                differences.join("\n   ")
            ));
        }
    }

    fn end(self) {
        let wrong = self.wrong.into_inner().unwrap();
        assert!(wrong.is_empty(), "{} answers differ:\n{}", wrong.len(), wrong.join("\n"));
    }
}

fn session<F: Future<Output = Session>>(run: impl FnOnce(Session) -> F + Send) {
    crate::lab::in_world(|lab| async move {
        run(Session::new(lab)).await.end();
    });
}

async fn pause(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

/// Of applies at once some are taken and the others find one in progress; which, is chance.
fn one_of_two(answers: &[tape::Answer]) {
    let refused = answers.iter().filter(|answer| answer.code == tonic::Code::FailedPrecondition);
    let texts: BTreeSet<&str> = refused.map(|answer| answer.message.as_str()).collect();
    assert_eq!(texts, BTreeSet::from(["another apply configuration is already in progress"]));
    assert!(answers.iter().any(|answer| answer.code == tonic::Code::Ok));
}

#[test]
fn every_recorded_call_is_asked_again_or_says_why_not() {
    let played: BTreeSet<usize> = stages::STAGES
        .iter()
        .flat_map(|(stage, _)| stages::calls(stage))
        .map(|call| call.n)
        .collect();
    let excused: BTreeSet<usize> = stages::EXCUSED.iter().flat_map(|(calls, _)| calls.clone()).collect();
    for call in tape::all() {
        assert!(
            played.contains(&call.n) != excused.contains(&call.n),
            "#{} {} {}: asked again {}, excused {}",
            call.n,
            call.note,
            call.method,
            played.contains(&call.n),
            excused.contains(&call.n)
        );
    }
    assert_eq!(played.len() + excused.len(), 416);
}

#[test]
fn a_node_in_maintenance() {
    session(|session| async move {
        let _vm = session.vm("cp1", CP1);
        session.lab.maintenance(CP1).await;
        pause(30.0).await;
        session.insecure("maintenance").await;
        session.insecure("apply in maintenance").await;
        session
    });
}

#[test]
fn from_maintenance_to_the_clusters_certificate() {
    session(|session| async move {
        let _vm = session.vm("cp1", CP1);
        session.lab.maintenance(CP1).await;
        session.insecure("apply").await;
        // The first two were asked at once: the old certificate answers for a moment more, the cluster's a little later.
        for (index, call) in stages::calls("after apply").enumerate() {
            let insecure = call.note.contains("insecure");
            session
                .check(
                    call,
                    &if insecure {
                        session.lab.insecure(CP1)
                    } else {
                        session.lab.admin(CP1)
                    },
                )
                .await;
            if index == 0 {
                pause(0.8).await;
            }
        }
        until(|| async { session.lab.admin(CP1).service_up("kubelet").await }).await;
        session.admin("not bootstrapped").await;
        session.lab.admin(CP1).bootstrap().await.unwrap();
        pause(0.2).await;
        session.admin("second bootstrap").await;
        until(|| async { session.lab.admin(CP1).service_up("etcd").await }).await;
        session.admin("bootstrap after etcd").await;
        session.admin("recover while etcd runs").await;
        session
    });
}

#[test]
fn a_config_that_was_staged_or_tried_in_maintenance() {
    session(|session| async move {
        let _first = session.first().await;
        let _vm = session.vm("cp2", CP2);
        session.lab.maintenance(CP2).await;
        session.insecure("staged in maintenance").await;
        session.insecure("tried in maintenance").await;
        pause(3.0).await;
        let calls: Vec<&Call> = stages::calls("after the try").collect();
        session.check(calls[0], &session.lab.insecure(CP2)).await;
        for call in &calls[1..] {
            session.check(call, &session.lab.admin(CP2)).await;
        }
        pause(10.0).await;
        session.admin("after the revert").await;
        session
    });
}

#[test]
fn two_voters_of_which_one_is_dead() {
    session(|session| async move {
        let _first = session.first().await;
        let second = session.join("cp2", CP2).await;
        session.member_of(CP1, "cp2").await;
        second.off();
        pause(10.0).await;
        session.admin("no quorum").await;
        pause(60.0).await;
        session.admin("no quorum for a minute").await;
        session
    });
}

#[test]
fn a_bootstrap_from_a_snapshot_that_was_never_sent() {
    session(|session| async move {
        let _vm = session.configured("cp1", CP1).await;
        until(|| async { session.lab.admin(CP1).service_up("kubelet").await }).await;
        session.admin("recover without a snapshot").await;
        session
    });
}

#[test]
fn configs_on_a_configured_node() {
    session(|session| async move {
        let _first = session.first().await;
        let _second = session.join("cp2", CP2).await;
        session.admin("applies").await;
        session
    });
}

#[test]
fn three_voters_through_their_lives() {
    session(|session| async move {
        let first = session.first().await;
        let _second = session.join("cp2", CP2).await;
        let _third = session.join("cp3", CP3).await;
        session.ready(CP3).await;
        first.off();
        pause(10.0).await;
        session.admin("one of three is dead").await;
        first.on();
        until(|| async { session.lab.admin(CP1).service_up("etcd").await }).await;
        session.admin("three voters").await;
        session.admin("forfeit").await;
        let leave = stages::calls("leave").next().unwrap();
        session.check(leave, &session.lab.admin(CP3)).await;
        session.admin("after the leave").await;
        session
    });
}

#[test]
fn a_member_that_was_removed_while_it_ran() {
    session(|session| async move {
        let _first = session.first().await;
        let _second = session.join("cp2", CP2).await;
        let _third = session.join("cp3", CP3).await;
        let id = session.member_of(CP1, "cp3").await;
        let request = talos_proto::machine::EtcdRemoveMemberByIdRequest { member_id: id };
        session
            .lab
            .admin(CP1)
            .machine
            .clone()
            .etcd_remove_member_by_id(request)
            .await
            .unwrap();
        pause(20.0).await;
        session.admin("removed").await;
        session
    });
}

#[test]
fn each_role() {
    session(|session| async move {
        let _second = session.found("cp2", CP2).await;
        let _first = session.join("cp1", CP1).await;
        session.ready(CP1).await;
        for role in ["os:reader", "os:operator", "os:etcd:backup"] {
            session
                .play(&format!("role {role}"), |lab, address| lab.with_roles(address, &[role]))
                .await;
        }
        session
    });
}

#[test]
fn each_client_certificate() {
    use rcgen::ExtendedKeyUsagePurpose::{ClientAuth, ServerAuth};
    session(|session| async move {
        let _first = session.first().await;
        let with = |pair: Option<(String, String)>| session.lab.with_trust(CP1, &crate::lab::os_trust(CP1, pair));
        for (stage, pair) in [
            (
                "certificate ok",
                Some(crate::lab::client_certificate(&["os:admin"], &[ClientAuth])),
            ),
            ("certificate noeku", Some(crate::lab::client_certificate(&["os:admin"], &[]))),
            (
                "certificate server",
                Some(crate::lab::client_certificate(&["os:admin"], &[ServerAuth])),
            ),
            (
                "certificate both",
                Some(crate::lab::client_certificate(&["os:admin"], &[ClientAuth, ServerAuth])),
            ),
            (
                "certificate norole",
                Some(crate::lab::client_certificate(&["os:nope"], &[ClientAuth])),
            ),
            ("certificate exp", Some(crate::lab::expired_certificate())),
            ("certificate none", None),
            ("certificate foreign", Some(crate::lab::foreign_certificate())),
        ] {
            for call in stages::calls(stage) {
                session.check(call, &with(pair.clone())).await;
            }
        }
        session
    });
}

#[test]
fn a_cluster_of_three_and_a_worker() {
    session(|session| async move {
        let _vms = (
            session.first().await,
            session.join("cp2", CP2).await,
            session.join("cp3", CP3).await,
            session.worker().await,
        );
        session.ready(CP1).await;
        session.admin("three and a worker").await;
        session.admin("images").await;
        let applies: Vec<(&Call, Node)> = stages::calls("parallel applies")
            .map(|call| (call, session.lab.admin(CP1)))
            .collect();
        let asked = applies.iter().map(|(call, node)| async { call.ask(node, 0).await });
        one_of_two(&futures::future::join_all(asked).await);
        session.admin("config as stored").await;
        session
    });
}

#[test]
fn a_node_after_its_reboot() {
    session(|session| async move {
        let _first = session.first().await;
        session.ready(CP1).await;
        let second = session.join("cp2", CP2).await;
        session.ready(CP2).await;
        second.off();
        second.on();
        session.ready(CP2).await;
        pause(120.0).await;
        session.admin("events").await;
        session.admin("resources").await;
        session.admin("writes").await;
        session
    });
}

#[test]
fn a_service_that_is_restarted_under_a_watch() {
    session(|session| async move {
        let _first = session.first().await;
        let second = session.join("cp2", CP2).await;
        session.ready(CP2).await;
        second.off();
        second.on();
        session.ready(CP2).await;
        let calls: Vec<&Call> = stages::calls("watch a restart").collect();
        let (watcher, operator) = (session.lab.admin(CP2), session.lab.admin(CP2));
        tokio::join!(session.check(calls[1], &watcher), async {
            pause(0.5).await;
            session.check(calls[0], &operator).await;
        });
        session
    });
}

#[test]
fn forfeiting_with_two_voters_and_with_one() {
    session(|session| async move {
        let _first = session.first().await;
        let _second = session.join("cp2", CP2).await;
        session.admin("two voters").await;
        session
            .lab
            .admin(CP2)
            .machine
            .clone()
            .etcd_leave_cluster(talos_proto::machine::EtcdLeaveClusterRequest {})
            .await
            .unwrap();
        pause(5.0).await;
        session.member_of(CP1, "cp1").await;
        session.admin("one voter").await;
        session
    });
}

#[test]
fn a_node_that_reboots_by_an_apply() {
    session(|session| async move {
        let _first = session.first().await;
        let _second = session.join("cp2", CP2).await;
        let third = session.join("cp3", CP3).await;
        session.ready(CP3).await;
        third.off();
        third.on();
        session.ready(CP3).await;
        let streams: Vec<&Call> = stages::calls("events while rebooting").collect();
        let (watcher, operator) = (session.lab.admin(CP3), session.lab.admin(CP3));
        tokio::join!(session.check(streams[0], &watcher), async {
            pause(0.5).await;
            for call in stages::calls("while rebooting") {
                session.check(call, &operator).await;
            }
        });
        session
    });
}

#[test]
fn an_apply_that_reboots_a_node_without_pods() {
    session(|session| async move {
        let _first = session.first().await;
        let _third = session.join("cp3", CP3).await;
        let stream = stages::calls("events over an apply that reboots").next().unwrap();
        let watcher = session.lab.admin(CP3);
        tokio::join!(session.check(stream, &watcher), async {
            pause(0.5).await;
            session.admin("apply that reboots").await;
            pause(1.0).await;
            session.admin("after an apply that reboots").await;
        });
        session
    });
}

#[test]
fn a_machine_api_that_crashes() {
    session(|session| async move {
        let _first = session.first().await;
        let _second = session.join("cp2", CP2).await;
        let streams: Vec<(&Call, Node)> = stages::calls("apid dies under streams")
            .map(|call| (call, session.lab.admin(&call.addr)))
            .collect();
        let watching = futures::future::join_all(streams.iter().map(|(call, node)| session.check(call, node)));
        tokio::join!(watching, async {
            pause(1.0).await;
            assert!(session.lab.world.crash_apid(CP2.parse().unwrap()));
        });
        for call in stages::calls("apid restarts") {
            session.check(call, &session.lab.admin(CP2)).await;
            pause(0.25).await;
        }
        session
    });
}

#[test]
fn bootstraps_right_after_the_apply() {
    session(|session| async move {
        let mode = talos_proto::machine::apply_configuration_request::Mode::Auto;
        for (name, address) in [("x1", "10.5.0.21"), ("x2", "10.5.0.22")] {
            let vm = session.vm(name, address);
            session.lab.maintenance(address).await;
            session
                .lab
                .insecure(address)
                .apply(&configs::text("controlplane"), mode)
                .await
                .unwrap();
            let mine = stages::calls("bootstrap right after apply").filter(|call| call.addr == address);
            for call in mine {
                // The recorded polls ended with the first answer that counts.
                let wait = if call.note.contains("x1") {
                    continue;
                } else if call.note.starts_with("Bootstrap ~1") {
                    3.0
                } else {
                    0.6
                };
                pause(if call.n == 331 { 0.1 } else { wait }).await;
                session.check(call, &session.lab.admin(address)).await;
            }
            vm.off();
        }
        session
    });
}

#[test]
fn a_node_without_its_container_runtime() {
    let mut spec = mainstay_sim::WorldSpec::default();
    spec.guests.timing.cri = Duration::from_secs(3600);
    crate::lab::in_world_of(spec, |lab| async move {
        let session = Session::new(lab);
        let _vm = session.configured("x1", "10.5.0.21").await;
        session.admin("runtime down").await;
        session.end();
    });
}

#[test]
fn events_over_the_reboot_of_the_vips_holder() {
    session(|session| async move {
        let _second = session.found("cp2", CP2).await;
        let _first = session.join("cp1", CP1).await;
        session.ready(CP2).await;
        let stream = stages::calls("events over a reboot").next().unwrap();
        let watcher = session.lab.admin(CP2);
        tokio::join!(session.check(stream, &watcher), async {
            pause(0.5).await;
            let mode = talos_proto::machine::apply_configuration_request::Mode::Reboot;
            session
                .lab
                .admin(CP2)
                .apply(&configs::text("controlplane"), mode)
                .await
                .unwrap();
        });
        session
    });
}

#[test]
fn a_graceful_reset() {
    session(|session| async move {
        let _first = session.first().await;
        let _second = session.join("cp2", CP2).await;
        let _third = session.join("cp3", CP3).await;
        let stream = stages::calls("events while resetting").next().unwrap();
        let (watcher, operator) = (session.lab.admin(CP3), session.lab.admin(CP3));
        tokio::join!(session.check(stream, &watcher), async {
            pause(0.5).await;
            for call in stages::calls("reset") {
                session.check(call, &operator).await;
            }
        });
        session
    });
}

#[test]
fn a_worker_that_reaches_no_trustd() {
    session(|session| async move {
        let vm = session.vm("x2", "10.5.0.22");
        session.lab.maintenance("10.5.0.22").await;
        let mode = talos_proto::machine::apply_configuration_request::Mode::Auto;
        session
            .lab
            .insecure("10.5.0.22")
            .apply(&configs::worker(), mode)
            .await
            .unwrap();
        pause(11.0).await;
        for call in stages::calls("no trustd") {
            let insecure = call.note.ends_with("insecure");
            let node = if insecure {
                session.lab.insecure(&call.addr)
            } else {
                session.lab.admin(&call.addr)
            };
            session.check(call, &node).await;
        }
        drop(vm);
        session
    });
}

#[test]
fn streams_that_are_open_when_a_config_comes() {
    session(|session| async move {
        let _vm = session.vm("x2", "10.5.0.22");
        until(|| async { session.lab.insecure("10.5.0.22").disks().await.is_ok() }).await;
        let node = || session.lab.insecure("10.5.0.22");
        let streams: Vec<(&Call, Node)> = stages::calls("open streams").map(|call| (call, node())).collect();
        let apply = (stages::calls("apply over open streams").next().unwrap(), node());
        let watching = futures::future::join_all(streams.iter().map(|(call, node)| session.check(call, node)));
        tokio::join!(watching, async {
            pause(1.0).await;
            session.check(apply.0, &apply.1).await;
        });
        session
    });
}
