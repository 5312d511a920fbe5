//! What becomes of calls: answered, refused, lost, never sent.

use std::time::Duration;

use mainstay_net::{DialFault, Secret};
use talos_api::{Applied, Bootstrapped, Class, Effect, Error, Health, Mode, Next, Node, Outcome, ServiceState, Wipe};
use talos_proto::machine::{self as wire, FileInfo};
use tokio::time::Instant;
use tonic::Code;

use crate::world::{Authority, Machine, Reply, World, run, target};

const HOST: &str = "10.0.0.11";

async fn one_machine(world: &World) -> (Node, Machine) {
    let authority = Authority::new("cluster");
    let machine = world.configured(HOST, &authority).await;
    (authority.access(&world.env).node(&target(&machine)).unwrap(), machine)
}

fn config() -> Secret<String> {
    Secret::from("machine: {token: CANARY}")
}

#[test]
fn a_configured_machine_tells_its_release() {
    run(|world| async move {
        let (node, _machine) = one_machine(&world).await;
        assert_eq!(node.release().await.unwrap().to_string(), "1.13.9");
    });
}

#[test]
fn where_no_machine_listens_nothing_was_sent() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.machine(HOST);
        world.net.attach(machine.at.ip());
        let error = authority
            .access(&world.env)
            .node(&target(&machine))
            .unwrap()
            .bootstrap()
            .await
            .unwrap_err();
        assert_eq!((error.outcome(), error.next()), (Outcome::NotSent, Next::Retry));
        assert!(matches!(error.dial().unwrap().fault(), DialFault::Refused));
        assert_eq!(error.to_string(), "Bootstrap of 10.0.0.11:50000 was not sent");
    });
}

#[test]
fn a_black_hole_ends_with_the_dial() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        world.net.black_hole(machine.at.ip());
        let start = Instant::now();
        let error = node.bootstrap().await.unwrap_err();
        assert_eq!((error.outcome(), error.next()), (Outcome::NotSent, Next::Retry));
        assert_eq!(start.elapsed().as_secs(), 5);
    });
}

#[test]
fn a_machine_that_never_answers_is_given_up_on_and_may_have_acted() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        machine.next("Bootstrap", Reply::Silence);
        let start = Instant::now();
        let error = node.bootstrap().await.unwrap_err();
        assert!(matches!(error, Error::NoAnswer { .. }), "{error:?}");
        assert_eq!((error.outcome(), error.next()), (Outcome::Unknown, Next::Look));
        assert_eq!(start.elapsed().as_secs(), 15);
    });
}

#[test]
fn a_connection_that_breaks_under_a_call_leaves_its_outcome_unknown() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        machine.next("Bootstrap", Reply::HangUp);
        let error = node.bootstrap().await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        assert_eq!((error.outcome(), error.next()), (Outcome::Unknown, Next::Look));
        assert_eq!(
            node.bootstrap().await.unwrap(),
            Bootstrapped::Started,
            "the channel must dial again"
        );
    });
}

#[test]
fn a_broken_pipe_behind_the_machine_leaves_the_outcome_unknown_too() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        machine.next(
            "Bootstrap",
            Reply::Refuse(Code::Unavailable, "error reading from server: EOF"),
        );
        assert_eq!(node.bootstrap().await.unwrap_err().outcome(), Outcome::Unknown);
        machine.next("Bootstrap", Reply::Refuse(Code::Cancelled, "context canceled"));
        assert_eq!(node.bootstrap().await.unwrap_err().outcome(), Outcome::Unknown);
    });
}

#[test]
fn an_endpoint_that_cannot_dial_the_machine_has_not_passed_the_call_on() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let said =
            "connection error: desc = \"transport: Error while dialing: dial tcp 10.0.0.12:50000: connect: no route to host\"";
        machine.next("Bootstrap", Reply::RefuseWith(Code::Unavailable, said.into()));
        let error = node.bootstrap().await.unwrap_err();
        assert_eq!((error.outcome(), error.next()), (Outcome::NotSent, Next::Retry));
    });
}

#[test]
fn calls_through_an_endpoint_name_the_machine() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.configured(HOST, &authority).await;
        let access = authority.access(&world.env);
        access.node(&target(&machine)).unwrap().release().await.unwrap();
        assert!(machine.onward().is_empty());
        access
            .node_through(&target(&machine), "10.0.0.12")
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_eq!(machine.onward(), ["10.0.0.12"]);
    });
}

#[test]
fn a_second_bootstrap_is_no_error() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        machine.next(
            "Bootstrap",
            Reply::Refuse(Code::AlreadyExists, "etcd data directory is not empty"),
        );
        assert_eq!(node.bootstrap().await.unwrap(), Bootstrapped::Already);
        // The race with etcd's start loses the code.
        machine.next("Bootstrap", Reply::Refuse(Code::Unknown, "etcd data directory is not empty"));
        assert_eq!(node.bootstrap().await.unwrap(), Bootstrapped::Already);
    });
}

#[test]
fn a_bootstrap_that_comes_too_early_is_to_be_repeated() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        for (text, class) in [
            ("bootstrap is not available yet", Class::NotYet),
            ("time is not in sync yet", Class::ClockNotSynced),
        ] {
            machine.next("Bootstrap", Reply::Refuse(Code::FailedPrecondition, text));
            let error = node.bootstrap().await.unwrap_err();
            assert_eq!((error.class(), error.next()), (Some(class), Next::Retry));
        }
    });
}

#[test]
fn an_answer_that_is_lost_on_apply_means_maybe() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        for reply in [
            Reply::HangUp,
            Reply::Silence,
            Reply::Refuse(Code::Cancelled, "grpc: the client connection is closing"),
        ] {
            machine.next("ApplyConfiguration", reply);
            let applied = node.apply(&config(), Mode::Auto).await.unwrap();
            assert!(matches!(applied, Applied::Maybe(_)), "{applied:?}");
        }
    });
}

#[test]
fn the_effect_of_a_config_is_what_the_machine_says() {
    use wire::apply_configuration_request::Mode as Wire;
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        for (said, effect) in [
            (Wire::NoReboot, Effect::Now),
            (Wire::Reboot, Effect::Reboots),
            (Wire::Staged, Effect::Staged),
            (Wire::Try, Effect::Tried),
        ] {
            let warnings = vec!["use of deprecated field".to_owned()];
            machine.answering_apply(wire::ApplyConfiguration {
                mode: said.into(),
                warnings,
                ..Default::default()
            });
            let applied = node.apply(&config(), Mode::Auto).await.unwrap();
            let Applied::Taken { effect: seen, warnings } = applied else {
                panic!("{applied:?}")
            };
            assert_eq!((seen, warnings.len()), (effect, 1));
        }
    });
}

#[test]
fn a_config_that_is_refused_is_not_a_maybe_and_is_not_quoted() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let said = "this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n+    token: CANARY\n";
        machine.next("ApplyConfiguration", Reply::RefuseWith(Code::InvalidArgument, said.into()));
        let error = node.apply(&config(), Mode::NoReboot).await.unwrap_err();
        assert_eq!((error.class(), error.outcome()), (Some(Class::NeedsReboot), Outcome::Refused));
        assert!(!format!("{error} {error:?}").contains("CANARY"), "{error:?}");
    });
}

#[test]
fn a_reset_wipes_what_was_asked_for() {
    run(|world| async move {
        let (node, _machine) = one_machine(&world).await;
        assert_eq!(
            node.reset(Wipe::Settings, true).await.unwrap(),
            "graceful=true reboot=true STATE+EPHEMERAL"
        );
        assert_eq!(
            node.reset(Wipe::Ephemeral, false).await.unwrap(),
            "graceful=false reboot=true EPHEMERAL"
        );
        assert_eq!(
            node.reset(Wipe::Everything, false).await.unwrap(),
            "graceful=false reboot=true "
        );
        assert_eq!(node.reboot().await.unwrap(), "an-actor");
    });
}

#[test]
fn an_empty_etcd_directory_is_no_data() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        assert!(
            !node.has_etcd_data().await.unwrap(),
            "a directory that is not there holds none"
        );
        let root = FileInfo {
            name: "/var/lib/etcd".into(),
            relative_name: ".".into(),
            is_dir: true,
            ..Default::default()
        };
        machine.with_files("/var/lib/etcd", vec![root.clone()]);
        assert!(!node.has_etcd_data().await.unwrap());
        let member = FileInfo {
            name: "/var/lib/etcd/member".into(),
            relative_name: "member".into(),
            ..Default::default()
        };
        machine.with_files("/var/lib/etcd", vec![root, member]);
        assert!(node.has_etcd_data().await.unwrap());
    });
}

/// Its disk is unmounted before its API goes.
#[test]
fn a_machine_on_its_way_down_does_not_tell_that_it_has_no_data() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        for stage in ["rebooting", "shutting down", "resetting", "upgrading"] {
            let status = format!("stage: {stage}\nstatus:\n    ready: false\n    unmetConditions: []\n");
            machine.resource("MachineStatuses.runtime.talos.dev", "machine", &status);
            let error = node.has_etcd_data().await.unwrap_err();
            assert_eq!(error.next(), Next::Look);
            assert!(error.to_string().ends_with(&format!("the machine is {stage}")), "{error}");
        }
    });
}

#[test]
fn etcd_calls_on_a_machine_without_etcd_end() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        machine.always("EtcdMemberList", Reply::Silence);
        let start = Instant::now();
        assert!(node.etcd_members().await.is_err());
        assert_eq!(start.elapsed(), Duration::from_secs(10));
    });
}

#[test]
fn members_are_told_with_their_votes() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let learner = wire::EtcdMember {
            id: 7,
            is_learner: true,
            ..Default::default()
        };
        let voter = wire::EtcdMember {
            id: 0x072a_b97c_332e_62d9,
            hostname: "cp-1".into(),
            ..Default::default()
        };
        machine.with_members(vec![voter, learner]);
        let members = node.etcd_members().await.unwrap();
        assert_eq!(
            members
                .iter()
                .map(|it| (it.id, it.name.as_str(), it.learner))
                .collect::<Vec<_>>(),
            [(0x072a_b97c_332e_62d9, "cp-1", false), (7, "", true)]
        );
    });
}

#[test]
fn a_member_that_is_gone_counts_as_removed() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let said = "failed to remove member 12345: etcdserver: member not found";
        machine.next("EtcdRemoveMemberByID", Reply::Refuse(Code::NotFound, said));
        node.etcd_remove(12345).await.unwrap();
        machine.next(
            "EtcdRemoveMemberByID",
            Reply::Refuse(Code::Unknown, "failed to remove member: x: etcdserver: no leader"),
        );
        assert_eq!(node.etcd_remove(12345).await.unwrap_err().class(), Some(Class::NoQuorum));
    });
}

#[test]
fn services_tell_what_they_last_said() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        let event = |state: &str, msg: &str| wire::ServiceEvent {
            state: state.into(),
            msg: msg.into(),
            ts: None,
        };
        let events = vec![event("Failed", "exit code 1"), event("Preparing", "Running pre state")];
        let etcd = wire::ServiceInfo {
            id: "etcd".into(),
            state: "Preparing".into(),
            events: Some(wire::ServiceEvents { events }),
            health: Some(wire::ServiceHealth {
                unknown: true,
                ..Default::default()
            }),
        };
        machine.with_services(vec![etcd]);
        let services = node.services().await.unwrap();
        assert_eq!(
            (services[0].state, &services[0].health),
            (ServiceState::Preparing, &Health::Unknown)
        );
        assert_eq!(
            (services[0].last_message(), services[0].last_failure()),
            (Some("Running pre state"), Some("exit code 1"))
        );
        assert!(!services[0].is_up());
    });
}

#[test]
fn a_log_is_put_together_from_its_chunks() {
    run(|world| async move {
        let (node, machine) = one_machine(&world).await;
        assert_eq!(node.log_tail("kubelet", 2).await.unwrap(), "one\ntwo\n");
        machine.next("Logs", Reply::Refuse(Code::Unknown, "log \"nope\" was not registered"));
        assert_eq!(node.log_tail("nope", 2).await.unwrap_err().class(), Some(Class::NotFound));
    });
}
