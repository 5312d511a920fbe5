//! Our own client against simulated machines of every version, with each answer lost once: what it says then, and what a look tells.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::lab::{Lab, Vm, client_certificate, control_plane, in_world, os_ca, to_identity, until, worker};
use mainstay_net::{Env, Secret, Target};
use mainstay_sim::NodeFaults;
use pve_sim::guest::PowerEvent;
use rcgen::ExtendedKeyUsagePurpose::ClientAuth;
use talos_api::resource::{NetworkStatus, SystemInformation};
use talos_api::{
    Access, Applied, Bootstrapped, Error, Maintenance, Mode, Next, Node, Outcome, Presence, ServiceState, Wipe, presence,
    why_no_answer, why_not_ready,
};
use tokio::time::sleep;
use uuid::Uuid;

const CP: &str = "10.10.0.11";
const CP2: &str = "10.10.0.12";
const VERSIONS: [(&str, &str); 3] = [("1.11.6", "v1.34.1"), ("1.12.11", "v1.35.2"), ("1.13.9", "v1.36.3")];

struct Client {
    lab: Arc<Lab>,
    env: Env,
    access: Access,
    talos: &'static str,
    kubernetes: &'static str,
}

impl Client {
    fn new(lab: Arc<Lab>, (talos, kubernetes): (&'static str, &'static str)) -> Self {
        let env = Env {
            dialer: lab.world.dialer(),
            wall: lab.world.wall(),
            entropy: lab.entropy.clone(),
        };
        let identity = to_identity(client_certificate(&["os:admin"], &[ClientAuth]));
        Self {
            access: Access::new(&env, os_ca(), identity),
            lab,
            env,
            talos,
            kubernetes,
        }
    }

    fn config(&self, name: &str) -> Secret<String> {
        Secret::new(control_plane(name).replace("v1.36.3", self.kubernetes))
    }

    fn vm(&self, name: &str, address: &str) -> Vm {
        let vm = self.lab.vm_of(name, address, self.talos, &[]);
        vm.on();
        vm
    }

    fn node(&self, address: &str) -> Node {
        self.access.node(&target(address)).unwrap()
    }

    /// The next answer to this method is lost, after the work is done.
    fn lose(&self, machine: &str, method: &str) {
        let faults = NodeFaults {
            lose_answers: BTreeMap::from([(method.to_owned(), 1)]),
            ..NodeFaults::default()
        };
        self.lab.world.set_node_faults(machine, faults);
    }

    async fn maintenance(&self, address: &str) -> Maintenance {
        self.lab.maintenance(address).await;
        Maintenance::meet(&self.env, &target(address)).await.unwrap()
    }

    async fn configured(&self, name: &str, address: &str) -> Vm {
        let vm = self.vm(name, address);
        let proven = self.maintenance(address).await.prove(uuid(&vm)).await.unwrap();
        proven.apply(&self.config(name)).await.unwrap();
        until(|| async { self.node(address).release().await.is_ok() }).await;
        vm
    }

    async fn first(&self) -> Vm {
        let vm = self.configured("cp-1", CP).await;
        until(|| async { self.node(CP).bootstrap().await.is_ok() }).await;
        until(|| async { etcd_is(&self.node(CP), &ServiceState::Running).await }).await;
        vm
    }
}

async fn etcd_is(node: &Node, state: &ServiceState) -> bool {
    let services = node.services().await.unwrap_or_default();
    services.iter().any(|service| service.id == "etcd" && service.state == *state)
}

fn target(address: &str) -> Target {
    Target::new(address, 50000)
}

fn uuid(vm: &Vm) -> Uuid {
    vm.hardware.uuid.parse().unwrap()
}

fn in_each_version<F: Future<Output = ()>>(run: impl Fn(Client) -> F + Send + Sync + Copy) {
    for version in VERSIONS {
        in_world(move |lab| async move { run(Client::new(lab, version)).await });
    }
}

/// A lost answer is never taken for a refusal, nor for a call that was not sent.
#[track_caller]
fn is_unknown<T: std::fmt::Debug>(answer: Result<T, Error>, call: &str) {
    let error = answer.expect_err(call);
    assert_eq!(
        (error.outcome(), error.next()),
        (Outcome::Unknown, Next::Look),
        "{call}: {error:?}"
    );
}

#[test]
fn a_look_whose_answer_is_lost_is_simply_taken_again() {
    in_each_version(|client| async move {
        let _vm = client.first().await;
        let node = client.node(CP);
        macro_rules! lost_once {
            ($method:literal, $call:expr) => {
                client.lose("cp-1", $method);
                is_unknown($call.await, $method);
                if let Err(error) = $call.await {
                    panic!("{} again: {error:?}", $method);
                }
            };
        }
        lost_once!("Version", node.release());
        lost_once!("Get", node.status());
        lost_once!("Get", node.config());
        lost_once!("List", node.list::<NetworkStatus>());
        lost_once!("ServiceList", node.services());
        lost_once!("List", node.has_etcd_data());
        lost_once!("Read", node.boot_id());
        lost_once!("Logs", node.log_tail("etcd", 3));
        lost_once!("EtcdMemberList", node.etcd_members());
        lost_once!("EtcdStatus", node.etcd_status());
        lost_once!("EtcdAlarmList", node.etcd_alarms());
        lost_once!("ApplyConfiguration", node.judge(&client.config("cp-1")));
    });
}

#[test]
fn a_config_whose_answer_is_lost_in_maintenance_is_found_on_the_machine() {
    in_each_version(|client| async move {
        let vm = client.vm("cp-1", CP);
        let machine = client.maintenance(CP).await;
        client.lose("cp-1", "Get");
        is_unknown(machine.get::<SystemInformation>(SystemInformation::ID).await, "Get");
        let proven = machine.prove(uuid(&vm)).await.unwrap();
        client.lose("cp-1", "ApplyConfiguration");
        let applied = proven.apply(&client.config("cp-1")).await.unwrap();
        assert!(matches!(applied, Applied::Maybe(_)), "{applied:?}");
        until(|| async {
            match presence(&client.env, &client.access, &target(CP)).await.unwrap() {
                Presence::Configured { .. } => true,
                Presence::Unconfigured(_) | Presence::Absent(_) => false,
                Presence::Foreign => panic!("our own machine is no stranger"),
                Presence::Odd(error) => panic!("{error:?}"),
            }
        })
        .await;
        let stored = client.node(CP).config().await.unwrap().unwrap().1;
        assert_eq!(stored.expose(), client.config("cp-1").expose());
    });
}

#[test]
fn a_config_whose_answer_is_lost_on_a_configured_machine_is_found_there() {
    in_each_version(|client| async move {
        let _vm = client.first().await;
        let changed = Secret::new(client.config("cp-1").expose().replace("debug: false", "debug: true"));
        client.lose("cp-1", "ApplyConfiguration");
        let applied = client.node(CP).apply(&changed, Mode::NoReboot).await.unwrap();
        assert!(matches!(applied, Applied::Maybe(_)), "{applied:?}");
        let stored = client.node(CP).config().await.unwrap().unwrap().1;
        assert_eq!(stored.expose(), changed.expose());
    });
}

#[test]
fn a_bootstrap_whose_answer_is_lost_is_seen_before_a_second_one() {
    in_each_version(|client| async move {
        let _vm = client.configured("cp-1", CP).await;
        let node = client.node(CP);
        until(|| async {
            let services = node.services().await.unwrap_or_default();
            services
                .iter()
                .any(|service| service.id == "kubelet" && service.state == ServiceState::Running)
        })
        .await;
        assert!(!node.has_etcd_data().await.unwrap());
        client.lose("cp-1", "Bootstrap");
        is_unknown(node.bootstrap().await, "Bootstrap");
        // The machine is looked at until it tells; nothing is sent meanwhile.
        until(|| async { node.has_etcd_data().await.unwrap_or(false) }).await;
        assert_eq!(node.bootstrap().await.unwrap(), Bootstrapped::Already);
        sleep(Duration::from_secs(60)).await;
        assert_eq!(client.lab.world.etcd_foundings(), 1);
    });
}

#[test]
fn a_reboot_whose_answer_is_lost_shows_in_the_boot_id() {
    in_each_version(|client| async move {
        let _vm = client.first().await;
        let before = client.node(CP).boot_id().await.unwrap();
        client.lose("cp-1", "Reboot");
        is_unknown(client.node(CP).reboot().await, "Reboot");
        until(|| async { client.node(CP).boot_id().await.is_ok_and(|now| now != before) }).await;
        let before = client.node(CP).boot_id().await.unwrap();
        client.lose("cp-1", "Reboot");
        is_unknown(client.node(CP).power_cycle().await, "Reboot");
        until(|| async { client.node(CP).boot_id().await.is_ok_and(|now| now != before) }).await;
    });
}

#[test]
fn a_shutdown_whose_answer_is_lost_ends_in_the_dark() {
    in_each_version(|client| async move {
        let vm = client.first().await;
        client.lose("cp-1", "Shutdown");
        is_unknown(client.node(CP).shutdown(true).await, "Shutdown");
        until(|| async { vm.events() == [PowerEvent::Off] }).await;
        let error = client.node(CP).release().await.unwrap_err();
        assert_eq!((error.outcome(), error.next()), (Outcome::NotSent, Next::Retry));
        assert!(!why_no_answer(&error).is_empty());
    });
}

#[test]
fn a_reset_whose_answer_is_lost_ends_in_maintenance() {
    in_each_version(|client| async move {
        let vm = client.first().await;
        client.lose("cp-1", "Reset");
        is_unknown(client.node(CP).reset(Wipe::Settings, false).await, "Reset");
        until(|| async {
            matches!(
                presence(&client.env, &client.access, &target(CP)).await.unwrap(),
                Presence::Unconfigured(_)
            )
        })
        .await;
        client.maintenance(CP).await.prove(uuid(&vm)).await.unwrap();
    });
}

#[test]
fn changes_of_etcd_whose_answers_are_lost_are_seen_by_the_others() {
    in_each_version(|client| async move {
        let _first = client.first().await;
        let _second = client.configured("cp-2", CP2).await;
        until(|| async {
            client
                .node(CP)
                .etcd_members()
                .await
                .is_ok_and(|members| members.len() == 2 && members.iter().all(|one| !one.learner))
        })
        .await;
        let leader = client.node(CP).etcd_status().await.unwrap().leader;
        let (name, at) = if client.node(CP).etcd_status().await.unwrap().is_leader() {
            ("cp-1", CP)
        } else {
            ("cp-2", CP2)
        };
        client.lose(name, "EtcdForfeitLeadership");
        is_unknown(client.node(at).etcd_forfeit_leadership().await, "EtcdForfeitLeadership");
        until(|| async {
            client
                .node(CP)
                .etcd_status()
                .await
                .is_ok_and(|status| status.leader != 0 && status.leader != leader)
        })
        .await;
        assert_eq!(
            client.node(at).etcd_forfeit_leadership().await.unwrap(),
            None,
            "it leads no more"
        );
        client.lose("cp-2", "EtcdLeaveCluster");
        is_unknown(client.node(CP2).etcd_leave().await, "EtcdLeaveCluster");
        until(|| async { client.node(CP).etcd_members().await.is_ok_and(|members| members.len() == 1) }).await;
        until(|| async { etcd_is(&client.node(CP2), &ServiceState::Finished).await }).await;
    });
}

#[test]
fn a_removal_whose_answer_is_lost_may_be_asked_for_again() {
    in_each_version(|client| async move {
        let _first = client.first().await;
        let second = client.configured("cp-2", CP2).await;
        let third = client.configured("cp-3", "10.10.0.13").await;
        until(|| async {
            client
                .node(CP)
                .etcd_members()
                .await
                .is_ok_and(|members| members.len() == 3 && members.iter().all(|one| !one.learner))
        })
        .await;
        third.off();
        sleep(Duration::from_secs(5)).await;
        let members = client.node(CP).etcd_members().await.unwrap();
        let dead = members.iter().find(|member| member.name == "cp-3").unwrap().id;
        client.lose("cp-1", "EtcdRemoveMemberByID");
        is_unknown(client.node(CP).etcd_remove(dead).await, "EtcdRemoveMemberByID");
        client.node(CP).etcd_remove(dead).await.unwrap();
        assert_eq!(client.node(CP).etcd_members().await.unwrap().len(), 2);
        drop(second);
    });
}

#[test]
fn no_config_reaches_a_foreign_machine() {
    in_each_version(|client| async move {
        let mut stranger = client.lab.vm_of("stranger", CP, client.talos, &[]);
        stranger.hardware.uuid = "11111111-2222-4333-8444-555555555555".to_owned();
        let own = client.vm("cp-1", CP);
        let expected = uuid(&own);
        // It proves itself, and another machine takes its address before the config is sent.
        let proven = client.maintenance(CP).await.prove(expected).await.unwrap();
        own.off();
        stranger.on();
        client.lab.maintenance(CP).await;
        let error = proven.apply(&client.config("cp-1")).await.unwrap_err();
        assert_eq!(error.outcome(), Outcome::NotSent, "{error:?}");
        let error = client.maintenance(CP).await.prove(expected).await.err().unwrap();
        assert!(
            matches!(error, Error::Stranger { .. }) && error.next() == Next::Stop,
            "{error:?}"
        );
        sleep(Duration::from_secs(60)).await;
        let status = client.maintenance(CP).await.status().await.unwrap().unwrap();
        assert_eq!(
            status.stage,
            talos_api::resource::Stage::Maintenance,
            "the stranger was told nothing"
        );
    });
}

#[test]
fn every_wait_has_a_reason() {
    in_each_version(|client| async move {
        let _vm = client.vm("cp-1", CP);
        let (mut sent, mut asked, mut reasons) = (false, false, Vec::new());
        for _ in 0..240 {
            sleep(Duration::from_secs(1)).await;
            let reason = match presence(&client.env, &client.access, &target(CP)).await.unwrap() {
                Presence::Configured { node, .. } => {
                    if !asked {
                        asked = node.bootstrap().await.is_ok();
                    }
                    match node.look().await {
                        Ok(seen) => why_not_ready(&seen),
                        Err(error) => Some(why_no_answer(&error)),
                    }
                }
                Presence::Unconfigured(machine) => {
                    let status = machine.status().await.unwrap();
                    if !sent && let Ok(proven) = machine.prove(uuid_of(CP)).await {
                        sent = proven.apply(&client.config("cp-1")).await.is_ok();
                    }
                    status.map(|status| format!("{:?}", status.stage))
                }
                Presence::Absent(error) | Presence::Odd(error) => Some(why_no_answer(&error)),
                Presence::Foreign => panic!("it is ours"),
            };
            let Some(reason) = reason else { break };
            assert!(!reason.is_empty() && !reason.contains("not why"), "{reasons:?}");
            reasons.push(reason);
        }
        reasons.dedup();
        assert!(reasons.len() > 3 && reasons.len() < 40, "{reasons:#?}");
        assert!(
            why_not_ready(&client.node(CP).look().await.unwrap()).is_none(),
            "{reasons:#?}"
        );
    });
}

fn uuid_of(address: &str) -> Uuid {
    format!("00000000-0000-4000-8000-{:0>12}", address.replace('.', ""))
        .parse()
        .unwrap()
}

#[test]
fn a_worker_without_a_control_plane_is_absent_and_says_why() {
    in_each_version(|client| async move {
        let vm = client.vm("w-1", "10.10.0.21");
        let proven = client.maintenance("10.10.0.21").await.prove(uuid(&vm)).await.unwrap();
        let config = Secret::new(worker("w-1").replace("v1.36.3", client.kubernetes));
        proven.apply(&config).await.unwrap();
        sleep(Duration::from_secs(30)).await;
        let Presence::Absent(error) = presence(&client.env, &client.access, &target("10.10.0.21")).await.unwrap() else {
            panic!("no machine can answer there yet");
        };
        assert!(!why_no_answer(&error).is_empty());
    });
}
