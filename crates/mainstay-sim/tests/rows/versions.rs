//! What differs from version to version on a configured node.

use std::sync::Arc;
use std::time::Duration;

use talos_proto::machine;
use talos_proto::machine::apply_configuration_request::Mode;
use tokio::time::sleep;
use tonic::Code;

use crate::lab::{Lab, Node, control_plane, in_world, refusal, until, worker};
use crate::rows::CP;

/// The control plane's config with a Kubernetes that this Talos takes.
fn config(kubernetes: &str) -> String {
    control_plane("cp-1").replace("v1.36.3", kubernetes)
}

async fn configured(lab: &Lab, talos: &str, kubernetes: &str) -> (crate::lab::Vm, Node) {
    let vm = lab.vm_of("cp-1", CP, talos, &[]);
    vm.on();
    lab.configure(CP, &config(kubernetes)).await;
    (vm, lab.admin(CP))
}

#[test]
fn every_version_takes_its_own_range_of_kubernetes() {
    for (talos, fits, too_new, too_old) in [
        ("1.11.6", "v1.34.1", "v1.35.0", "v1.28.0"),
        ("1.12.11", "v1.35.2", "v1.36.3", "v1.29.0"),
        ("1.13.9", "v1.36.3", "v1.37.0", "v1.30.0"),
        ("1.14.1", "v1.37.0", "v1.38.0", "v1.31.0"),
    ] {
        in_world(move |lab: Arc<Lab>| async move {
            let vm = lab.vm_of("cp-1", CP, talos, &[]);
            vm.on();
            lab.maintenance(CP).await;
            for (kubernetes, what) in [(too_new, "new"), (too_old, "old")] {
                let (code, text) = refusal(lab.insecure(CP).apply(&config(kubernetes), Mode::Auto).await);
                assert_eq!(code, Code::InvalidArgument);
                let says = format!(
                    "version of Kubernetes {} is too {what} to be used with Talos {talos}",
                    &kubernetes[1..]
                );
                assert!(text.contains(&says), "{talos}: {text}");
            }
            lab.configure(CP, &config(fits)).await;
            assert_eq!(
                lab.admin(CP).version().await.unwrap().version.unwrap().tag,
                format!("v{talos}")
            );
        });
    }
}

#[test]
fn from_1_14_on_an_apply_never_reboots() {
    in_world(|lab: Arc<Lab>| async move {
        let (vm, node) = configured(&lab, "1.14.1", "v1.37.0").await;
        let changed = config("v1.37.0").replace("    features:\n", "    env:\n        FOO: bar\n    features:\n");
        assert_eq!(
            refusal(node.apply(&changed, Mode::Reboot).await),
            (
                Code::Unimplemented,
                "the REBOOT mode is not supported, please use AUTO or NO_REBOOT modes instead".to_owned()
            )
        );
        let answer = node.apply(&changed, Mode::Auto).await.unwrap();
        assert_eq!(answer.mode(), Mode::NoReboot);
        sleep(Duration::from_secs(60)).await;
        assert!(vm.events().is_empty());
    });
}

#[test]
fn in_1_14_what_a_document_says_may_not_stand_in_the_classic_part_too() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm_of("cp-1", CP, "1.14.1", &[]);
        vm.on();
        lab.maintenance(CP).await;
        let twice = config("v1.37.0") + "---\napiVersion: v1alpha1\nkind: UnattendedInstallConfig\n";
        let (code, text) = refusal(lab.insecure(CP).apply(&twice, Mode::Auto).await);
        assert_eq!(code, Code::InvalidArgument);
        assert!(
            text.contains("UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)"),
            "{text}"
        );
    });
}

#[test]
fn up_to_1_13_an_apply_that_needs_it_reboots() {
    for (talos, kubernetes) in [("1.11.6", "v1.34.1"), ("1.12.11", "v1.35.2"), ("1.13.9", "v1.36.3")] {
        in_world(move |lab: Arc<Lab>| async move {
            let (vm, node) = configured(&lab, talos, kubernetes).await;
            let changed = config(kubernetes).replace("    features:\n", "    env:\n        FOO: bar\n    features:\n");
            assert_eq!(
                node.apply(&changed, Mode::Auto).await.unwrap().mode(),
                Mode::Reboot,
                "{talos}"
            );
            until(|| async { vm.events().len() == 1 }).await;
            until(|| async { lab.admin(CP).version().await.is_ok() }).await;
        });
    }
}

#[test]
fn the_guards_against_two_applies_came_with_late_patches() {
    for (talos, kubernetes, guarded) in [
        ("1.12.4", "v1.35.2", false),
        ("1.12.11", "v1.35.2", true),
        ("1.13.2", "v1.36.3", false),
        ("1.13.9", "v1.36.3", true),
        ("1.14.1", "v1.37.0", true),
    ] {
        in_world(move |lab: Arc<Lab>| async move {
            let (_vm, node) = configured(&lab, talos, kubernetes).await;
            let text = config(kubernetes);
            let (one, other) = tokio::join!(node.apply(&text, Mode::NoReboot), node.apply(&text, Mode::NoReboot));
            let refused = [one, other].into_iter().filter(Result::is_err).count();
            assert_eq!(refused, usize::from(guarded), "{talos}");
        });
    }
}

#[test]
fn a_bootstrap_on_a_worker_is_refused_in_the_words_of_the_version() {
    for (talos, kubernetes, expected) in [
        (
            "1.12.11",
            "v1.35.2",
            (
                Code::FailedPrecondition,
                "bootstrap can only be performed on a control plane node",
            ),
        ),
        (
            "1.13.9",
            "v1.36.3",
            (Code::Unimplemented, "bootstrap is only available on control plane nodes"),
        ),
    ] {
        in_world(move |lab: Arc<Lab>| async move {
            let (_vm, _node) = configured(&lab, talos, kubernetes).await;
            let vm = lab.vm_of("w-1", crate::rows::WORKER, talos, &[]);
            vm.on();
            lab.configure(crate::rows::WORKER, &worker("w-1").replace("v1.36.3", kubernetes))
                .await;
            until(|| async { lab.admin(crate::rows::WORKER).service_up("cri").await }).await;
            let (code, text) = refusal(lab.admin(crate::rows::WORKER).bootstrap().await);
            assert_eq!((code, text.as_str()), expected, "{talos}");
        });
    }
}

#[test]
fn services_that_came_with_1_13_are_unknown_before() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, node) = configured(&lab, "1.12.11", "v1.35.2").await;
        let images = machine::image_service_client::ImageServiceClient::new(node.channel.clone())
            .list(machine::ImageServiceListRequest::default())
            .await;
        assert_eq!(refusal(images).0, Code::Unimplemented);
    });
}
