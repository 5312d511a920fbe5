//! Login, proof, pin, preparation.

use std::collections::BTreeMap;

use mainstay_engine::FailureKind;
use mainstay_engine::guest::rancher::MachineAccess;
use mainstay_sim::WebFaults;
use rancher_config::guest::{ArtifactOrigin, PinnedArtifact};
use rancher_config::{Distro, Place};

use super::lab::{LocalFiles, Machine, in_lab};

#[test]
fn another_machine_on_the_address_receives_nothing() {
    in_lab(Distro::K3s, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        for wrong in ["uuid", "serial"] {
            let mut asked = machine.unproved();
            match wrong {
                "uuid" => asked.uuid = Machine::new("cp-2").uuid,
                _ => asked.serial = "the serial of an earlier life".into(),
            }
            let failure = lab.try_open(&asked).await.expect_err("another machine");
            assert_eq!(failure.kind, FailureKind::Conflict, "{failure}");
            assert!(
                failure.why.as_ref().is_some_and(|why| why.to_lowercase().contains(wrong)),
                "{:?}",
                failure.why
            );
        }
        let commands = lab.world.guest_commands("cp-1");
        assert!(commands.iter().any(|line| line.contains("product_uuid")), "{commands:?}");
        assert!(
            !commands.iter().any(|line| line.contains("mktemp")),
            "no file was written: {commands:?}"
        );
        // The machine itself is accepted afterwards, in the same run.
        lab.open(&machine).await;
    });
}

#[test]
fn an_empty_serial_proves_nothing() {
    in_lab(Distro::K3s, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        let mut asked = machine.unproved();
        asked.serial = String::new();
        let failure = lab.try_open(&asked).await.expect_err("no serial");
        assert_eq!(failure.kind, FailureKind::Conflict, "{failure}");
    });
}

#[test]
fn a_machine_with_another_host_key_than_the_recorded_one_is_not_logged_in_to() {
    in_lab(Distro::K3s, async |lab| {
        let (first, second) = (Machine::new("cp-1"), Machine::new("cp-2"));
        lab.boot(&first).await;
        lab.boot(&second).await;
        let other_key = lab.access.prove(&second.unproved(), &()).await.expect("a key");
        let before = lab.world.guest_commands("cp-1").len();
        let pinned = MachineAccess {
            pin: Some(other_key),
            ..first.unproved()
        };
        let failure = loop {
            match lab.access.open(&pinned, &()).await {
                Err(failure) if failure.kind == FailureKind::Conflict => break failure,
                Err(failure) if failure.kind == FailureKind::Unreachable => {}
                other => panic!("{other:?}"),
            }
        };
        assert!(failure.to_string().contains("host key"), "{failure}");
        assert!(
            failure.help.iter().any(|line| line.contains("mainstay trust")),
            "{:?}",
            failure.help
        );
        assert_eq!(lab.world.guest_commands("cp-1").len(), before);
    });
}

#[test]
fn nothing_is_written_before_the_host_key_is_recorded() {
    in_lab(Distro::K3s, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        let failure = lab.access.open(&machine.unproved(), &()).await.expect_err("no pin");
        assert_eq!(failure.kind, FailureKind::Bug, "{failure}");
    });
}

#[test]
fn a_reboot_keeps_the_host_key_and_the_proof() {
    in_lab(Distro::K3s, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        let guest = lab.open(&machine).await;
        lab.prepare(&guest, &machine, Place::Founder).await.expect("prepared");
        let key = guest.machine().pin.clone();
        lab.power_cycle(&machine).await;
        let again = lab.open(&machine).await;
        assert_eq!(again.machine().pin, key);
    });
}

#[test]
fn a_guest_that_never_gets_an_address_ends_with_a_hint_at_its_console() {
    in_lab(Distro::K3s, async |lab| {
        let machine = Machine::new("cp-1");
        let failure = lab.try_open(&machine.unproved()).await.expect_err("no machine");
        assert_eq!(failure.kind, FailureKind::Unsettled, "{failure}");
        assert!(
            failure.help.iter().any(|line| line.contains("qm terminal")),
            "{:?}",
            failure.help
        );
    });
}

#[test]
fn an_artifact_with_another_checksum_is_not_installed() {
    in_lab(Distro::Rke2, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        let guest = lab.open(&machine).await;
        let artifacts = lab.artifacts(lab.version).await;
        lab.world.set_web_faults(WebFaults {
            corrupt: true,
            ..WebFaults::default()
        });
        let prepared = lab.prepare_with(&guest, &machine, Place::Founder, &artifacts, None).await;
        let failure = prepared.expect_err("a wrong checksum");
        assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
        assert!(
            failure.why.as_ref().is_some_and(|why| why.contains("checksum")),
            "{:?}",
            failure.why
        );
        // The same step succeeds once the download is right.
        lab.world.set_web_faults(WebFaults::default());
        let prepared = lab.prepare_with(&guest, &machine, Place::Founder, &artifacts, None).await;
        prepared.unwrap_or_else(|failure| lab.fail(&failure));
    });
}

#[test]
fn an_unreachable_release_host_is_a_failure_that_may_pass() {
    in_lab(Distro::K3s, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        let guest = lab.open(&machine).await;
        let artifacts = lab.artifacts(lab.version).await;
        lab.world.set_web_faults(WebFaults {
            outage: ["github.com".to_owned()].into(),
            ..WebFaults::default()
        });
        let prepared = lab.prepare_with(&guest, &machine, Place::Founder, &artifacts, None).await;
        let failure = prepared.expect_err("no download");
        assert_eq!(
            failure.kind,
            FailureKind::Failed,
            "{failure}: {:?}\n{}",
            failure.why,
            lab.reasons.all()
        );
        assert!(
            failure.help.iter().any(|line| line.contains("artifact: push")),
            "{:?}",
            failure.help
        );
        lab.world.set_web_faults(WebFaults::default());
        let prepared = lab.prepare_with(&guest, &machine, Place::Founder, &artifacts, None).await;
        prepared.unwrap_or_else(|failure| lab.fail(&failure));
    });
}

#[test]
fn a_pushed_artifact_needs_no_download() {
    in_lab(Distro::K3s, async |lab| {
        let machine = Machine::new("cp-1");
        lab.boot(&machine).await;
        let guest = lab.open(&machine).await;
        let artifacts: Vec<PinnedArtifact> = lab
            .artifacts(lab.version)
            .await
            .into_iter()
            .map(|artifact| PinnedArtifact {
                origin: ArtifactOrigin::Pushed,
                ..artifact
            })
            .collect();
        let content = lab.asset(lab.version, &artifacts[0].file).await;
        lab.world.set_web_faults(WebFaults {
            outage: ["github.com".to_owned()].into(),
            ..WebFaults::default()
        });
        let mut wrong = content.clone();
        wrong.push(0);
        let files = LocalFiles(BTreeMap::from([(artifacts[0].file.clone(), wrong)]));
        let prepared = lab
            .prepare_with(&guest, &machine, Place::Founder, &artifacts, Some(&files))
            .await;
        assert_eq!(prepared.expect_err("a wrong file").kind, FailureKind::Refused);
        let files = LocalFiles(BTreeMap::from([(artifacts[0].file.clone(), content)]));
        let prepared = lab
            .prepare_with(&guest, &machine, Place::Founder, &artifacts, Some(&files))
            .await;
        let files = prepared.unwrap_or_else(|failure| lab.fail(&failure));
        let founded = lab.try_found(&guest, &machine, &files, &[]).await;
        founded.unwrap_or_else(|failure| lab.fail(&failure));
    });
}
