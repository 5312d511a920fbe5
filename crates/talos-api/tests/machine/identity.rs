//! Who is at the other end: proofs in both directions, and what is told to whom.

use mainstay_net::{DialFault, Secret};
use talos_api::{Applied, Class, Effect, Error, Maintenance, Next, Outcome, Presence, presence};
use talos_proto::machine as wire;
use tonic::Code;

use crate::world::{Authority, Machine, Reply, World, run, target};

const HOST: &str = "10.0.0.11";
const OURS: &str = "6c5b0b1e-8f3e-5b6a-9d2f-0d8f3a1c2b4d";

fn config() -> Secret<String> {
    Secret::from("machine: {token: CANARY}")
}

fn was_sent_a_config(machine: &Machine) -> bool {
    machine.heard().iter().any(|call| call == "ApplyConfiguration")
}

#[test]
fn our_machine_takes_its_config_after_it_has_proven_itself() {
    run(|world| async move {
        let machine = world.unconfigured(HOST).await;
        machine.with_uuid(&OURS.to_uppercase());
        let met = Maintenance::meet(&world.env, &target(&machine)).await.unwrap();
        assert_eq!(met.release().await.unwrap().unwrap().to_string(), "1.13.9");
        let proven = met.prove(OURS.parse().unwrap()).await.unwrap();
        let applied = proven.apply(&config()).await.unwrap();
        assert!(matches!(applied, Applied::Taken { effect: Effect::Now, .. }), "{applied:?}");
    });
}

#[test]
fn maintenance_mode_before_1_13_tells_neither_release_nor_effect() {
    run(|world| async move {
        let machine = world.unconfigured(HOST).await;
        machine.with_uuid(OURS).answering_apply(wire::ApplyConfiguration::default());
        machine.always(
            "Version",
            Reply::Refuse(Code::Unimplemented, "API is not implemented in maintenance mode"),
        );
        let met = Maintenance::meet(&world.env, &target(&machine)).await.unwrap();
        assert_eq!(met.release().await.unwrap(), None);
        let applied = met
            .prove(OURS.parse().unwrap())
            .await
            .unwrap()
            .apply(&config())
            .await
            .unwrap();
        assert!(
            matches!(
                applied,
                Applied::Taken {
                    effect: Effect::Unsaid,
                    ..
                }
            ),
            "{applied:?}"
        );
    });
}

#[test]
fn a_stranger_gets_nothing() {
    run(|world| async move {
        let machine = world.unconfigured(HOST).await;
        machine.with_uuid("11111111-2222-3333-4444-555555555555");
        let met = Maintenance::meet(&world.env, &target(&machine)).await.unwrap();
        let error = met.prove(OURS.parse().unwrap()).await.err().unwrap();
        assert!(matches!(error, Error::Stranger { .. }), "{error:?}");
        assert_eq!((error.outcome(), error.next()), (Outcome::NotSent, Next::Stop));
        assert!(!was_sent_a_config(&machine));
    });
}

#[test]
fn a_machine_that_does_not_say_who_it_is_gets_nothing() {
    run(|world| async move {
        let machine = world.unconfigured(HOST).await;
        let met = Maintenance::meet(&world.env, &target(&machine)).await.unwrap();
        assert!(matches!(met.prove(OURS.parse().unwrap()).await, Err(Error::Stranger { .. })));
        machine.with_uuid("not-a-uuid");
        let met = Maintenance::meet(&world.env, &target(&machine)).await.unwrap();
        assert!(matches!(met.prove(OURS.parse().unwrap()).await, Err(Error::Stranger { .. })));
        assert!(!was_sent_a_config(&machine));
    });
}

#[test]
fn a_machine_that_takes_the_address_after_the_proof_gets_nothing() {
    run(|world| async move {
        let ours = world.machine(HOST);
        ours.with_uuid(OURS);
        let serving = world
            .serve(&ours, Authority::new("one boot").one_sided_tls(world.env.wall, HOST))
            .await;
        let proven = Maintenance::meet(&world.env, &target(&ours))
            .await
            .unwrap()
            .prove(OURS.parse().unwrap())
            .await
            .unwrap();

        serving.abort();
        let _ = serving.await;
        world.net.reset(ours.at.ip());
        let other = world.machine(HOST);
        other.with_uuid(OURS);
        world
            .serve(&other, Authority::new("another boot").one_sided_tls(world.env.wall, HOST))
            .await;

        let error = proven.apply(&config()).await.err().unwrap();
        assert_eq!(error.outcome(), Outcome::NotSent, "{error:?}");
        assert!(
            matches!(error.dial().unwrap().fault(), DialFault::WrongPin { .. }),
            "{error:?}"
        );
        assert!(!was_sent_a_config(&other));
    });
}

#[test]
fn a_machine_of_another_cluster_is_not_believed() {
    run(|world| async move {
        let machine = world.configured(HOST, &Authority::new("theirs")).await;
        let node = Authority::new("ours").access(&world.env).node(&target(&machine)).unwrap();
        let error = node.bootstrap().await.unwrap_err();
        assert!(error.is_unknown_issuer(), "{error:?}");
        assert_eq!((error.outcome(), error.next()), (Outcome::NotSent, Next::Look));
        assert!(machine.heard().is_empty());
    });
}

#[test]
fn another_machine_of_our_own_cluster_on_the_address_is_not_believed() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.machine(HOST);
        world
            .serve(&machine, authority.mutual_tls(world.env.wall, "10.0.0.12", &authority))
            .await;
        let access = authority.access(&world.env);
        let error = access.node(&target(&machine)).unwrap().bootstrap().await.unwrap_err();
        assert!(
            matches!(error.dial().unwrap().fault(), DialFault::WrongName { .. }),
            "{error:?}"
        );
        access
            .node_known_as(&target(&machine), "10.0.0.12")
            .unwrap()
            .bootstrap()
            .await
            .unwrap();
    });
}

#[test]
fn a_refused_client_certificate_means_that_nothing_was_sent() {
    run(|world| async move {
        let (authority, others) = (Authority::new("cluster"), Authority::new("others"));
        let machine = world.machine(HOST);
        world
            .serve(&machine, authority.mutual_tls(world.env.wall, HOST, &others))
            .await;
        let error = authority
            .access(&world.env)
            .node(&target(&machine))
            .unwrap()
            .bootstrap()
            .await
            .unwrap_err();
        assert!(error.is_client_refused(), "{error:?}");
        assert_eq!(error.outcome(), Outcome::NotSent);
        assert!(machine.heard().is_empty());
    });
}

#[test]
fn a_look_at_an_address_tells_who_is_there() {
    async fn seen(world: &World, authority: &Authority, machine: &Machine) -> &'static str {
        match presence(&world.env, &authority.access(&world.env), &target(machine))
            .await
            .unwrap()
        {
            Presence::Configured { .. } => "configured",
            Presence::Unconfigured(_) => "unconfigured",
            Presence::Foreign => "foreign",
            Presence::Absent(_) => "absent",
            Presence::Odd(_) => "odd",
        }
    }
    run(|world| async move {
        let authority = Authority::new("ours");
        let configured = world.configured("10.0.0.11", &authority).await;
        let unconfigured = world.unconfigured("10.0.0.12").await;
        let foreign = world.configured("10.0.0.13", &Authority::new("theirs")).await;
        let absent = world.machine("10.0.0.14");
        let mut told = Vec::new();
        for machine in [&configured, &unconfigured, &foreign, &absent] {
            told.push(seen(&world, &authority, machine).await);
        }
        assert_eq!(told, ["configured", "unconfigured", "foreign", "absent"]);
        configured.always("Version", Reply::Refuse(Code::PermissionDenied, "not authorized"));
        assert_eq!(seen(&world, &authority, &configured).await, "odd");
    });
}

#[test]
fn a_role_that_is_too_small_is_a_reason_to_look_not_to_repeat() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let machine = world.configured(HOST, &authority).await;
        machine.always("Bootstrap", Reply::Refuse(Code::PermissionDenied, "not authorized"));
        let error = authority
            .access(&world.env)
            .node(&target(&machine))
            .unwrap()
            .bootstrap()
            .await
            .unwrap_err();
        assert_eq!((error.class(), error.next()), (Some(Class::NotAuthorized), Next::Look));
    });
}

#[test]
fn keys_are_never_printed() {
    run(|world| async move {
        let authority = Authority::new("cluster");
        let access = authority.access(&world.env);
        let key = authority.admin().key_pem;
        assert!(key.expose().contains("PRIVATE KEY"));
        assert!(!format!("{access:?}").contains("PRIVATE KEY"));
        let broken = mainstay_net::Identity {
            key_pem: Secret::from("CANARY-not-a-key"),
            ..authority.admin()
        };
        let machine = world.machine(HOST);
        let error = talos_api::Access::new(&world.env, authority.pem(), broken)
            .node(&target(&machine))
            .err()
            .unwrap();
        assert!(matches!(error, Error::Credentials { .. }), "{error:?}");
        assert!(!format!("{error:?}").contains("CANARY"), "{error:?}");
    });
}
