//! Founding once, killed founders, removal, maintenance, secrets.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_engine::FailureKind;
use mainstay_engine::guest::rancher::{
    ChangedFiles, ObservedMachine, RancherGuest, ServerRemoval, Upgrade, observe, reconfigure, remove_member, snapshot, upgrade,
};
use mainstay_plan::ApplyMode;
use rancher_config::guest::{GuestFile, authority_files};
use rancher_config::{Distro, Place, ReleaseVersion, Role};

use super::lab::{Lab, Machine, in_lab, ip};

/// Kills the founder so long after its unit was started, and brings the cluster up all the same. Tells how often it was recovered.
async fn killed_after(lab: &Lab, seconds: u64) -> u32 {
    let machine = Machine::new("cp-1");
    lab.boot(&machine).await;
    let guest = lab.open(&machine).await;
    let files = lab.prepare(&guest, &machine, Place::Founder).await;
    let files = files.unwrap_or_else(|failure| lab.fail(&failure));
    let killed = async {
        tokio::time::sleep(Duration::from_millis(900) + Duration::from_secs(seconds)).await;
        lab.power_cycle(&machine).await;
    };
    let (first, ()) = tokio::join!(lab.try_found(&guest, &machine, &files, &[]), killed);
    let (mut outcome, mut recoveries) = (first, 0);
    for _ in 0..5 {
        let Err(failure) = &outcome else { break };
        assert!(failure.kind.is_retryable(), "{failure}: {:?}", failure.why);
        let guest = lab.open(&machine).await;
        let asked = ObservedMachine {
            machine: guest.machine(),
            role: Role::Server,
            files: &files,
            servers: &[],
        };
        if let RancherGuest::Running(facts) = observe(&lab.access, &asked).await.guest
            && facts.founder_failed
        {
            let recovered = lab.try_recover(&guest, &machine, &files, &[]).await;
            recovered.unwrap_or_else(|failure| lab.fail(&failure));
            recoveries += 1;
        }
        outcome = lab.try_found(&guest, &machine, &files, &[]).await;
    }
    outcome.unwrap_or_else(|failure| lab.fail(&failure));
    lab.node_ready("cp-1").await;
    recoveries
}

#[test]
fn a_founder_that_was_killed_in_its_first_seconds_is_recovered() {
    let recoveries = std::sync::atomic::AtomicU32::new(0);
    for seconds in 0..6 {
        in_lab(Distro::K3s, async |lab| {
            let count = killed_after(lab, seconds).await;
            recoveries.fetch_add(count, std::sync::atomic::Ordering::Relaxed);
        });
    }
    assert!(recoveries.into_inner() > 0, "no kill met the first seconds");
}

#[test]
fn a_datastore_is_deleted_only_if_its_etcd_is_silent_and_no_other_server_has_one() {
    in_lab(Distro::K3s, async |lab| {
        let (machine, first) = lab.first_server().await;
        let failure = lab.try_recover(&first, &machine, &[], &[]).await.expect_err("it lives");
        assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
        let other = Machine::new("cp-2");
        lab.boot(&other).await;
        let guest = lab.open(&other).await;
        let failure = lab
            .try_recover(&guest, &other, &[], &[first])
            .await
            .expect_err("a cluster is there");
        assert_eq!(failure.kind, FailureKind::StalePlan, "{failure}");
        let supervisor = lab.access.supervisor(ip("10.0.0.11")).expect("a client");
        supervisor.readyz().await.expect("ready");
    });
}

#[test]
fn no_server_founds_while_another_one_has_a_datastore() {
    in_lab(Distro::K3s, async |lab| {
        let (_, first) = lab.first_server().await;
        let machine = Machine::new("cp-2");
        lab.boot(&machine).await;
        let guest = lab.open(&machine).await;
        let files = lab.prepare(&guest, &machine, Place::Founder).await;
        let files = files.unwrap_or_else(|failure| lab.fail(&failure));
        let failure = lab
            .try_found(&guest, &machine, &files, &[first])
            .await
            .expect_err("a second cluster");
        assert_eq!(failure.kind, FailureKind::StalePlan, "{failure}");
        assert!(
            failure.why.as_ref().is_some_and(|why| why.contains("cp-1 has a datastore")),
            "{:?}",
            failure.why
        );
        assert_eq!(lab.world.etcd_foundings(), 1);
    });
}

#[test]
fn no_server_starts_by_itself_before_its_turn() {
    in_lab(Distro::Rke2, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        let guest = lab.open(&machine).await;
        lab.prepare(&guest, &machine, Place::Founder).await.expect("prepared");
        lab.power_cycle(&machine).await;
        let guest = lab.open(&machine).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        let asked = ObservedMachine {
            machine: guest.machine(),
            role: Role::Server,
            files: &[],
            servers: &[],
        };
        let seen = observe(&lab.access, &asked).await;
        assert!(
            matches!(seen.guest, RancherGuest::WaitingForConfig { proved: true }),
            "{seen:?}"
        );
        assert_eq!(lab.world.etcd_foundings(), 0);
    });
}

#[test]
fn a_machine_is_observed_by_both_channels() {
    in_lab(Distro::K3s, async |lab| {
        let cp = Machine::new("cp-1");
        let silent = cp.unproved();
        let asked = ObservedMachine {
            machine: &silent,
            role: Role::Server,
            files: &[],
            servers: &[],
        };
        let seen = observe(&lab.access, &asked).await;
        assert!(matches!(seen.guest, RancherGuest::Silent { .. }), "{seen:?}");
        let (_, guest) = lab.first_server().await;
        let asked = ObservedMachine {
            machine: guest.machine(),
            ..asked
        };
        let seen = observe(&lab.access, &asked).await;
        let RancherGuest::Running(facts) = &seen.guest else {
            panic!("{seen:?}")
        };
        assert!(
            facts.ready && facts.version == Some(lab.version) && facts.boot_id.is_some(),
            "{facts:?}"
        );
        let members = facts.members.as_ref().expect("a server").as_ref().expect("members");
        assert!(members[0].is_of("cp-1"));
        let (_, worker) = lab.join("w-1", &[]).await;
        let asked = ObservedMachine {
            machine: worker.machine(),
            role: Role::Agent,
            files: &[],
            servers: &[],
        };
        let seen = observe(&lab.access, &asked).await;
        let RancherGuest::Running(facts) = &seen.guest else {
            panic!("{seen:?}")
        };
        assert!(
            facts.ready && facts.members.is_none() && facts.version == Some(lab.version),
            "{facts:?}"
        );
        let mut stranger = worker.machine().clone();
        stranger.serial = "another life".into();
        stranger.pin = None;
        let asked = ObservedMachine {
            machine: &stranger,
            ..asked
        };
        let seen = observe(&lab.access, &asked).await;
        assert!(matches!(seen.guest, RancherGuest::Foreign { .. }), "{seen:?}");
    });
}

#[test]
fn a_changed_config_restarts_the_unit_once_and_other_files_do_not() {
    in_lab(Distro::K3s, async |lab| {
        let (machine, guest) = lab.first_server().await;
        let artifacts = lab.artifacts(lab.version).await;
        let apply = async |files: &[GuestFile], mode: ApplyMode| {
            let change = ChangedFiles {
                role: Role::Server,
                files,
                servers: &["https://10.0.0.12:6443".to_owned()],
                mode,
            };
            reconfigure(&guest, &change, &lab.reasons).await
        };
        let same = lab.files(&machine, Place::Founder, lab.version, &artifacts);
        assert!(!apply(&same, ApplyMode::Reboot).await.expect("nothing to do"));
        // How a machine joins counts at its first start only.
        let server = "https://10.0.0.12:6443".parse().expect("a URL");
        let joins = lab.files(&machine, Place::Server { server }, lab.version, &artifacts);
        assert!(!apply(&joins, ApplyMode::Live).await.expect("nothing to do"));
        let mut live = same.clone();
        let sysctls = live.iter_mut().find(|file| file.path == "/etc/sysctl.d/90-mainstay.conf");
        sysctls.expect("a file").content.push_str("vm.max_map_count = 262144\n");
        assert!(
            !apply(&live, ApplyMode::Live)
                .await
                .unwrap_or_else(|failure| lab.fail(&failure))
        );
        let sans = BTreeSet::from(["k8s.example".to_owned()]);
        let changed = lab.files_with(&machine, Place::Founder, lab.version, &artifacts, sans);
        let refused = apply(&changed, ApplyMode::Live)
            .await
            .expect_err("a restart that was not planned");
        assert_eq!(refused.kind, FailureKind::StalePlan, "{refused}");
        // A run that ends between the files and the restart leaves a note of it.
        assert!(
            !apply(&changed, ApplyMode::Staged)
                .await
                .unwrap_or_else(|failure| lab.fail(&failure))
        );
        let asked = ObservedMachine {
            machine: guest.machine(),
            role: Role::Server,
            files: &changed,
            servers: &[],
        };
        let RancherGuest::Running(facts) = observe(&lab.access, &asked).await.guest else {
            panic!("it runs")
        };
        let files = facts.files.expect("SSH answers");
        assert!(files.outdated.is_empty() && files.restart_pending);
        assert!(
            apply(&changed, ApplyMode::Reboot)
                .await
                .unwrap_or_else(|failure| lab.fail(&failure))
        );
        assert!(!apply(&changed, ApplyMode::Reboot).await.expect("done"));
        assert_eq!(lab.world.etcd_foundings(), 1);
    });
}

#[test]
fn an_upgrade_replaces_the_running_version() {
    in_lab(Distro::K3s, async |lab| {
        let old = ReleaseVersion::parse(Distro::K3s, "v1.35.7+k3s1").expect("a version");
        let (machine, guest) = lab.first_server_of(old).await;
        let saved = snapshot(&lab.access, machine.address, "before-upgrade", &lab.reasons).await;
        let saved = saved.unwrap_or_else(|failure| lab.fail(&failure));
        assert!(saved.starts_with("before-upgrade-cp-1-"), "{saved}");
        let again = snapshot(&lab.access, machine.address, "before-upgrade", &())
            .await
            .expect("the same");
        assert_eq!(again, saved);
        let artifacts = lab.artifacts(lab.version).await;
        let files = lab.files(&machine, Place::Founder, lab.version, &artifacts);
        let step = Upgrade {
            role: Role::Server,
            files: &files,
            version: lab.version,
            artifacts: &artifacts,
            pushed: None,
        };
        for _ in 0..2 {
            let upgraded = upgrade(&guest, &step, &lab.reasons).await;
            upgraded.unwrap_or_else(|failure| lab.fail(&failure));
        }
        let asked = ObservedMachine {
            machine: guest.machine(),
            role: Role::Server,
            files: &files,
            servers: &[],
        };
        let seen = observe(&lab.access, &asked).await;
        let RancherGuest::Running(facts) = &seen.guest else {
            panic!("{seen:?}")
        };
        assert_eq!(facts.version, Some(lab.version), "{facts:?}");
        let files = facts.files.as_ref().expect("SSH answers");
        assert!(files.outdated.is_empty() && files.live.is_empty() && !files.restart_pending);
    });
}

#[test]
fn a_member_is_removed_by_its_node_and_the_only_voter_never() {
    in_lab(Distro::Rke2, async |lab| {
        lab.first_server().await;
        let only = ServerRemoval {
            node: "cp-1",
            is_it: &|member| member.is_of("cp-1"),
            others: &[ip("10.0.0.11")],
        };
        let failure = remove_member(&lab.access, &only, &()).await.expect_err("the only voter");
        assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
        lab.join("cp-2", &["10.0.0.11"]).await;
        lab.join("cp-3", &["10.0.0.11", "10.0.0.12"]).await;
        lab.node_ready("cp-3").await;
        lab.stop(&Machine::new("cp-3")).await;
        let removal = ServerRemoval {
            node: "cp-3",
            is_it: &|member| member.is_of("cp-3"),
            others: &[ip("10.0.0.11"), ip("10.0.0.12")],
        };
        for _ in 0..2 {
            let removed = remove_member(&lab.access, &removal, &lab.reasons).await;
            removed.unwrap_or_else(|failure| lab.fail(&failure));
        }
        let members = lab
            .access
            .supervisor(ip("10.0.0.11"))
            .expect("a client")
            .members()
            .await
            .expect("members");
        assert_eq!(members.len(), 2, "{members:?}");
    });
}

/// A Node keeps the name of the member of an earlier life, and the controller then takes the next request back without effect.
#[test]
fn a_removal_request_that_is_eaten_is_repeated() {
    in_lab(Distro::K3s, async |lab| {
        lab.first_server().await;
        lab.join("cp-2", &["10.0.0.11"]).await;
        lab.join("cp-3", &["10.0.0.11", "10.0.0.12"]).await;
        lab.node_ready("cp-3").await;
        let cluster = lab.access.kubernetes(ip("10.0.0.11")).expect("a client");
        let earlier =
            serde_json::json!({ "metadata": { "annotations": { "etcd.k3s.cattle.io/removed-node-name": "cp-3-00000000" } } });
        let node = mainstay_kube::ObjectRef::new("v1", "Node", None, "cp-3");
        cluster.merge(&node, &earlier).await.expect("annotated");
        lab.stop(&Machine::new("cp-3")).await;
        let removal = ServerRemoval {
            node: "cp-3",
            is_it: &|member| member.is_of("cp-3"),
            others: &[ip("10.0.0.11"), ip("10.0.0.12")],
        };
        let removed = remove_member(&lab.access, &removal, &lab.reasons).await;
        removed.unwrap_or_else(|failure| lab.fail(&failure));
        assert!(lab.reasons.any("cleared without effect"), "{}", lab.reasons.all());
        let members = lab.access.supervisor(ip("10.0.0.11")).expect("a client").members().await;
        assert_eq!(members.expect("members").len(), 2);
    });
}

#[test]
fn no_secret_is_in_the_vm_config_the_drive_the_journal_or_a_command_line() {
    in_lab(Distro::Rke2, async |lab| {
        lab.first_server().await;
        lab.join("cp-2", &["10.0.0.11"]).await;
        lab.join("w-1", &[]).await;
        let mut secrets: Vec<String> = authority_files(&lab.secrets)
            .iter()
            .filter(|file| file.path.ends_with(".key"))
            .map(|file| file.content.lines().nth(1).expect("a line of the key").to_owned())
            .collect();
        for token in [lab.secrets.server_token(), lab.secrets.agent_token()] {
            secrets.push(token.expose().rsplit(':').next().expect("a password").to_owned());
        }
        secrets.push(
            lab.secrets
                .ssh()
                .private()
                .lines()
                .nth(2)
                .expect("a line of the key")
                .to_owned(),
        );
        for name in ["cp-1", "cp-2", "w-1"] {
            let machine = Machine::new(name);
            let mut text = lab.config_text(&machine).await;
            text += &lab.world.guest_journal(machine.address).join("\n");
            text += &lab.world.guest_commands(name).join("\n");
            assert!(
                text.contains("COMMAND=") && text.contains("ciuser"),
                "the text is what it should be"
            );
            for secret in &secrets {
                assert!(!text.contains(secret.as_str()), "{name}: a secret is visible");
            }
        }
    });
}
