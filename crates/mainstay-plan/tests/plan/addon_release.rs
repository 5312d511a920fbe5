//! Releases: owner, decision table, Jobs, objects, pins.

use std::collections::BTreeSet;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstay_plan::addon::catalogue::{HELM_IMAGE, PodSecurity, job_endpoint};
use mainstay_plan::addon::job::{
    JobBinding, JobBlocker, JobNode, JobPreconditions, LeaseVerdict, LiveJobs, StuckPod, StuckVerdict, job_blocker, job_nodes,
    judge_lease, judge_stuck_pod, stale_bindings,
};
use mainstay_plan::addon::objects::{ARCHIVE_LIMIT, HelmRun, HelmVerb, TooLarge, namespace};
use mainstay_plan::addon::pins::{
    CrdVerdict, InstalledCrd, PinVerdict, PinnedArchive, VersionSources, choose_version, judge_crd, judge_pin,
};
use mainstay_plan::addon::release::{
    DesiredRelease, GitOpsTool, HelmStatus, JobFailure, JobFailureKind, JobPhase, ObservedRelease, ReleaseDecision, ReleaseHold,
    ReleaseJob, ReleaseOwner, ReleaseRequest, Revision, WaitReason, decide, decide_removal, is_equal, owner,
};
use mainstay_spec::Distro;
use semver::Version;
use serde_json::{Value, json};

const HASH: &str = "0123456789abcdef0123456789abcdef";

fn wanted() -> DesiredRelease {
    DesiredRelease {
        name: "cilium".to_owned(),
        namespace: "kube-system".to_owned(),
        chart: "cilium".to_owned(),
        version: "1.20.1".to_owned(),
        hash: HASH.to_owned(),
        values: json!({ "a": { "b": 1 }, "token": { "$secret": "t" } }),
    }
}

fn revision(status: HelmStatus) -> Revision {
    Revision {
        number: 1,
        status,
        chart: "cilium".to_owned(),
        version: "1.20.1".to_owned(),
        config: json!({ "a": { "b": 1 }, "token": "hidden" }),
        description: if status == HelmStatus::Deployed {
            format!("mainstay {HASH}")
        } else {
            "Preparing upgrade".to_owned()
        },
        age: 900,
    }
}

fn with(status: HelmStatus) -> ObservedRelease {
    ObservedRelease {
        newest: Some(revision(status)),
        has_objects: true,
        ..ObservedRelease::default()
    }
}

fn failure(kind: JobFailureKind) -> JobFailure {
    JobFailure {
        kind,
        text: "Error".to_owned(),
    }
}

fn job(hash: &str, attempt: u32, phase: JobPhase) -> ReleaseJob {
    ReleaseJob {
        name: format!("job-{attempt}"),
        uid: "u".to_owned(),
        hash: hash.to_owned(),
        attempt,
        phase,
        creator: "ops@laptop".to_owned(),
        wrote_newest: true,
    }
}

fn active() -> JobPhase {
    JobPhase::Active {
        problem: None,
        has_live_pod: true,
    }
}

fn now(observed: &ObservedRelease) -> ReleaseDecision {
    decide(&wanted(), observed, ReleaseRequest::default())
}

const TAKE: ReleaseRequest = ReleaseRequest {
    take: true,
    retry: false,
};
const RETRY: ReleaseRequest = ReleaseRequest {
    take: false,
    retry: true,
};

#[test]
fn an_absent_release_is_installed_and_an_equal_one_is_done() {
    assert_eq!(now(&ObservedRelease::default()), ReleaseDecision::Install { attempt: 1 });
    assert_eq!(now(&with(HelmStatus::Deployed)), ReleaseDecision::Done { finished: vec![] });
    assert_eq!(now(&with(HelmStatus::Uninstalled)), ReleaseDecision::Install { attempt: 1 });
}

/// R2.
#[test]
fn a_complete_job_without_the_wanted_release_is_a_failure() {
    let mut observed = with(HelmStatus::Failed);
    observed.jobs = vec![job(HASH, 1, JobPhase::Complete(failure(JobFailureKind::Template)))];
    assert!(matches!(
        now(&observed),
        ReleaseDecision::Hold(ReleaseHold::Failed { attempt: 1, .. })
    ));
    observed.newest = None;
    assert!(matches!(now(&observed), ReleaseDecision::Hold(ReleaseHold::Failed { .. })));
    let removed = ObservedRelease {
        jobs: vec![job(HASH, 1, JobPhase::Complete(failure(JobFailureKind::Other)))],
        ..ObservedRelease::default()
    };
    let done = decide_removal(&wanted(), &removed, ReleaseRequest::default());
    assert_eq!(
        done,
        ReleaseDecision::Done {
            finished: vec!["job-1".to_owned()]
        }
    );
    let mut stays = with(HelmStatus::Deployed);
    stays.jobs = removed.jobs;
    let held = decide_removal(&wanted(), &stays, ReleaseRequest::default());
    assert!(matches!(held, ReleaseDecision::Hold(ReleaseHold::Failed { .. })));
}

/// R5.
#[test]
fn content_decides_and_not_a_label() {
    let mut changed = revision(HelmStatus::Deployed);
    assert!(is_equal(&wanted(), &changed));
    changed.config["a"]["b"] = json!(2);
    assert!(!is_equal(&wanted(), &changed));
    let mut older = revision(HelmStatus::Deployed);
    older.version = "1.19.7".to_owned();
    assert!(!is_equal(&wanted(), &older));
}

/// R5.
#[test]
fn a_revision_by_another_author_belongs_to_a_user_until_it_is_taken() {
    let mut observed = with(HelmStatus::Deployed);
    let newest = observed.newest.as_mut().unwrap();
    newest.description = "Upgrade complete".to_owned();
    newest.config["a"]["c"] = json!(true);
    let differs = vec!["a.c".to_owned()];
    assert_eq!(owner(&wanted(), &observed), ReleaseOwner::User(differs.clone()));
    assert_eq!(
        now(&observed),
        ReleaseDecision::Hold(ReleaseHold::User {
            differs: differs.clone()
        })
    );
    let taken = decide(&wanted(), &observed, TAKE);
    assert_eq!(
        taken,
        ReleaseDecision::Upgrade {
            attempt: 1,
            differs,
            takes: true
        }
    );
}

/// R5.
#[test]
fn our_own_older_content_is_upgraded() {
    let mut observed = with(HelmStatus::Deployed);
    let newest = observed.newest.as_mut().unwrap();
    newest.description = "mainstay ffff".to_owned();
    newest.config["a"]["b"] = json!(0);
    let upgrade = ReleaseDecision::Upgrade {
        attempt: 1,
        differs: vec!["a.b".to_owned()],
        takes: false,
    };
    assert_eq!(now(&observed), upgrade);
}

/// R6.
#[test]
fn the_owner_is_decided_first_and_needs_no_release() {
    let objects = ObservedRelease {
        has_objects: true,
        ..ObservedRelease::default()
    };
    assert_eq!(owner(&wanted(), &objects), ReleaseOwner::User(vec![]));
    assert!(matches!(now(&objects), ReleaseDecision::Hold(ReleaseHold::User { .. })));
    let mut flux = with(HelmStatus::Failed);
    flux.helm_release = Some("kube-system/cilium".to_owned());
    flux.jobs = vec![job("other", 1, JobPhase::Failed(failure(JobFailureKind::Other)))];
    assert!(matches!(now(&flux), ReleaseDecision::Leave(ReleaseOwner::Flux(_))));
    assert!(matches!(decide(&wanted(), &flux, TAKE), ReleaseDecision::Leave(_)));
    let argo = ObservedRelease {
        application: Some("argocd/cilium".to_owned()),
        ..ObservedRelease::default()
    };
    assert!(matches!(now(&argo), ReleaseDecision::Leave(ReleaseOwner::ArgoCd(_))));
    let mut orphan = with(HelmStatus::Deployed);
    orphan.mark = Some(GitOpsTool::Flux);
    assert_eq!(now(&orphan), ReleaseDecision::Hold(ReleaseHold::Orphaned(GitOpsTool::Flux)));
    assert!(matches!(
        decide(&wanted(), &orphan, TAKE),
        ReleaseDecision::Upgrade { takes: true, .. }
    ));
    let unread = ObservedRelease {
        unread: Some("403".to_owned()),
        ..ObservedRelease::default()
    };
    assert!(matches!(now(&unread), ReleaseDecision::Hold(ReleaseHold::OwnerUnknown(_))));
    assert!(matches!(decide(&wanted(), &unread, TAKE), ReleaseDecision::Hold(_)));
}

/// R7.
#[test]
fn an_interrupted_release_is_healed_at_once_if_our_job_left_it() {
    for status in [
        HelmStatus::PendingInstall,
        HelmStatus::PendingUpgrade,
        HelmStatus::Uninstalling,
    ] {
        let mut observed = with(status);
        assert_eq!(
            now(&observed),
            ReleaseDecision::Hold(ReleaseHold::Interrupted { status, age: 900 })
        );
        observed.jobs = vec![job(HASH, 1, JobPhase::Failed(failure(JobFailureKind::PodLost)))];
        assert_eq!(now(&observed), ReleaseDecision::Recover { attempt: 2, status });
        // A Job of other content that was killed is a reason to heal too.
        observed.jobs = vec![job("other", 3, JobPhase::Failed(failure(JobFailureKind::Template)))];
        assert_eq!(now(&observed), ReleaseDecision::Recover { attempt: 1, status });
    }
}

/// R7.
#[test]
fn an_interrupted_release_of_another_program_is_not_uninstalled() {
    for status in [
        HelmStatus::PendingInstall,
        HelmStatus::PendingUpgrade,
        HelmStatus::Uninstalling,
    ] {
        let mut observed = with(status);
        let held = ReleaseDecision::Hold(ReleaseHold::Interrupted { status, age: 900 });
        assert_eq!(decide_removal(&wanted(), &observed, ReleaseRequest::default()), held);
        let taken = decide_removal(&wanted(), &observed, TAKE);
        assert_eq!(taken, ReleaseDecision::Uninstall { attempt: 1 });
        observed.jobs = vec![job("other", 1, JobPhase::Failed(failure(JobFailureKind::PodLost)))];
        let ours = decide_removal(&wanted(), &observed, ReleaseRequest::default());
        assert_eq!(ours, ReleaseDecision::Uninstall { attempt: 1 });
    }
}

/// R7.
#[test]
fn one_retry_is_automatic_for_reasons_that_pass_and_none_for_others() {
    let failed = |kind, attempt| {
        let mut observed = with(HelmStatus::Failed);
        observed.jobs = vec![job(HASH, attempt, JobPhase::Failed(failure(kind)))];
        observed
    };
    for kind in [JobFailureKind::Transport, JobFailureKind::ImagePull, JobFailureKind::PodLost] {
        assert!(matches!(now(&failed(kind, 1)), ReleaseDecision::Upgrade { attempt: 2, .. }));
        assert!(matches!(
            now(&failed(kind, 2)),
            ReleaseDecision::Hold(ReleaseHold::Failed { attempt: 2, .. })
        ));
    }
    for kind in [
        JobFailureKind::Schema,
        JobFailureKind::Template,
        JobFailureKind::Ownership,
        JobFailureKind::Conflict,
    ] {
        assert!(matches!(
            now(&failed(kind, 1)),
            ReleaseDecision::Hold(ReleaseHold::Failed { .. })
        ));
        assert!(matches!(
            decide(&wanted(), &failed(kind, 1), RETRY),
            ReleaseDecision::Upgrade { attempt: 2, .. }
        ));
    }
    let mut other = failed(JobFailureKind::Schema, 1);
    other.jobs[0].hash = "other".to_owned();
    assert!(matches!(now(&other), ReleaseDecision::Upgrade { attempt: 1, .. }));
}

/// R4.
#[test]
fn a_suspended_job_is_completed_or_deleted_and_a_running_one_of_other_content_is_kept() {
    let of = |hash: &str, phase| ObservedRelease {
        jobs: vec![job(hash, 1, phase)],
        ..ObservedRelease::default()
    };
    assert!(matches!(now(&of(HASH, JobPhase::Suspended)), ReleaseDecision::Resume { .. }));
    assert!(matches!(
        now(&of("other", JobPhase::Suspended)),
        ReleaseDecision::DeleteJob { .. }
    ));
    assert!(matches!(
        now(&of(HASH, active())),
        ReleaseDecision::Wait(WaitReason::Running { .. })
    ));
    let held = ReleaseDecision::Hold(ReleaseHold::OtherJob {
        job: "job-1".to_owned(),
        creator: "ops@laptop".to_owned(),
    });
    assert_eq!(now(&of("other", active())), held);
    let stuck = JobPhase::Active {
        problem: Some("ErrImagePull".to_owned()),
        has_live_pod: true,
    };
    assert!(matches!(
        now(&of(HASH, stuck)),
        ReleaseDecision::Wait(WaitReason::Problem { .. })
    ));
    // The active one decides, whatever else was left over.
    let mut both = of("other", JobPhase::Suspended);
    both.jobs.push(job(HASH, 2, active()));
    assert!(matches!(now(&both), ReleaseDecision::Wait(_)));
}

/// R7: every combination has a decision, and the ones that matter most hold everywhere.
#[test]
fn the_table_is_total() {
    let phases = [
        None,
        Some(JobPhase::Suspended),
        Some(active()),
        Some(JobPhase::Complete(failure(JobFailureKind::Other))),
        Some(JobPhase::Failed(failure(JobFailureKind::Transport))),
        Some(JobPhase::Failed(failure(JobFailureKind::Template))),
    ];
    let owners: [fn(&mut ObservedRelease); 5] = [
        |_| {},
        |seen| seen.helm_release = Some("x/y".to_owned()),
        |seen| seen.application = Some("x/y".to_owned()),
        |seen| seen.mark = Some(GitOpsTool::ArgoCd),
        |seen| seen.unread = Some("403".to_owned()),
    ];
    let statuses = HelmStatus::ALL.into_iter().map(Some).chain([None]);
    let mut count = 0;
    for status in statuses {
        for equal in [true, false] {
            for phase in &phases {
                for hash in [HASH, "other"] {
                    for (index, own) in owners.iter().enumerate() {
                        let mut seen = status.map(with).unwrap_or_default();
                        if let Some(newest) = seen.newest.as_mut().filter(|_| !equal) {
                            newest.version = "1.19.7".to_owned();
                        }
                        seen.jobs = phase.iter().map(|phase| job(hash, 1, phase.clone())).collect();
                        own(&mut seen);
                        let decision = now(&seen);
                        count += 1;
                        if index != 0 {
                            let is_left = matches!(decision, ReleaseDecision::Leave(_) | ReleaseDecision::Hold(_));
                            assert!(is_left, "another owner's release would be changed: {seen:?}");
                        }
                        let starts_helm = matches!(
                            decision,
                            ReleaseDecision::Install { .. } | ReleaseDecision::Upgrade { .. } | ReleaseDecision::Recover { .. }
                        );
                        let runs = phase == &Some(active());
                        assert!(!(starts_helm && runs), "a second Helm beside a running one: {seen:?}");
                        if let ReleaseDecision::Done { .. } = decision {
                            assert!(status == Some(HelmStatus::Deployed) && equal, "{seen:?}");
                        }
                    }
                }
            }
        }
    }
    assert_eq!(count, 10 * 2 * 6 * 2 * 5);
}

#[test]
fn failures_are_told_apart_by_what_helm_says() {
    let table = [
        (
            "dial tcp 127.0.0.1:7445: connect: connection refused",
            JobFailureKind::Transport,
        ),
        ("Back-off pulling image: ImagePullBackOff", JobFailureKind::ImagePull),
        (
            "Error: values don't meet the specifications of the schema(s)",
            JobFailureKind::Schema,
        ),
        (
            "Error: execution error at (cilium/templates/validate.yaml:1:2): no",
            JobFailureKind::Template,
        ),
        (
            "invalid ownership metadata; label validation error",
            JobFailureKind::Ownership,
        ),
        (
            "Apply failed with 1 conflict: conflict with \"kubectl\"",
            JobFailureKind::Conflict,
        ),
        ("secrets is forbidden: User \"x\" cannot list", JobFailureKind::Forbidden),
        ("  \n", JobFailureKind::PodLost),
        ("something new", JobFailureKind::Other),
    ];
    for (text, kind) in table {
        assert_eq!(JobFailureKind::classify(text), kind, "{text}");
    }
}

fn run(nodes: &[String]) -> HelmRun<'_> {
    HelmRun {
        release: "cilium",
        namespace: "kube-system",
        hash: HASH,
        attempt: 1,
        verb: HelmVerb::Install {
            skip_crds: true,
            take_ownership: false,
            force_conflicts: false,
        },
        cluster_id: "c0ffee",
        creator: "ops@laptop",
        image: HELM_IMAGE,
        nodes,
        before_network: Some(job_endpoint(Distro::Talos)),
    }
}

/// R4, R8, R9.
#[test]
fn the_job_is_created_suspended_on_named_nodes_without_a_deadline() {
    let nodes = ["prod-cp-1".to_owned(), "prod-cp-2".to_owned()];
    let job = run(&nodes).job();
    let (spec, pod) = (&job["spec"], &job["spec"]["template"]["spec"]);
    assert_eq!(job["metadata"]["name"], "mainstay-helm-cilium-01234567-1");
    assert_eq!(spec["suspend"], true);
    assert!(spec.get("activeDeadlineSeconds").is_none() && spec.get("ttlSecondsAfterFinished").is_none());
    assert_eq!(
        (&pod["hostNetwork"], &pod["terminationGracePeriodSeconds"]),
        (&json!(true), &json!(330))
    );
    let affinity = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"];
    assert_eq!(affinity.as_array().unwrap().len(), 2);
    assert_eq!(affinity[1]["matchFields"][0]["values"], json!(["prod-cp-2"]));
    assert_eq!(affinity[0]["matchExpressions"][0]["operator"], "Exists");
    let container = &pod["containers"][0];
    assert_eq!(container["terminationMessagePolicy"], "FallbackToLogsOnError");
    let env = container["env"].as_array().unwrap();
    for (name, value) in [
        ("FAILURE_POLICY", "retry"),
        ("TIMEOUT", "300s"),
        ("KUBERNETES_SERVICE_PORT", "7445"),
    ] {
        assert!(env.contains(&json!({ "name": name, "value": value })), "{name}");
    }
    assert_eq!(
        container["args"],
        json!([
            "install",
            "--namespace",
            "kube-system",
            "--description",
            format!("mainstay {HASH}"),
            "--skip-crds"
        ])
    );
}

/// R2.
#[test]
fn scratch_directories_do_not_hide_the_plugins_of_helm() {
    let nodes = ["prod-cp-1".to_owned()];
    let job = run(&nodes).job();
    let mounts = job["spec"]["template"]["spec"]["containers"][0]["volumeMounts"]
        .as_array()
        .unwrap()
        .clone();
    let paths: Vec<&str> = mounts.iter().map(|mount| mount["mountPath"].as_str().unwrap()).collect();
    let home = ["", "home", "klipper-helm"].join("/");
    assert!(paths.contains(&"/tmp") && paths.contains(&format!("{home}/.cache").as_str()));
    assert!(!paths.contains(&home.as_str()) && !paths.iter().any(|path| path.starts_with(&format!("{home}/.local"))));
}

/// R3, R4.
#[test]
fn inputs_are_immutable_and_owned_by_the_job_and_rights_are_the_jobs_own() {
    let nodes = ["prod-cp-1".to_owned()];
    let run = run(&nodes);
    let owned = run.owned_objects("uid-1", b"tgz", &json!({ "a": 1 })).unwrap();
    assert_eq!(owned.len(), 3);
    for object in &owned {
        assert_eq!(object["metadata"]["ownerReferences"][0]["uid"], "uid-1");
        assert_eq!(object["metadata"]["labels"]["mainstay.dev/cluster"], "c0ffee");
    }
    assert_eq!(owned[0]["metadata"]["name"], run.job_name());
    for input in &owned[1..] {
        assert_eq!(
            (&input["immutable"], &input["metadata"]["name"]),
            (&json!(true), &json!("cilium-0123456789abcdef"))
        );
    }
    let values = STANDARD.decode(owned[1]["data"]["values.yaml"].as_str().unwrap()).unwrap();
    let values: Value = serde_json::from_slice(&values).unwrap();
    assert_eq!(values, json!({ "a": 1 }));
    assert_eq!(owned[2]["data"]["cilium.tgz.base64"], "dGd6");
    let binding = run.binding();
    assert_eq!(
        (&binding["metadata"]["name"], &binding["subjects"][0]["name"]),
        (&json!(run.job_name()), &json!(run.job_name()))
    );
    assert!(binding["metadata"].get("namespace").is_none());
    assert_eq!(run.lease_name(), "mainstay-helm-kube-system-cilium");
}

#[test]
fn names_fit_into_a_label() {
    let nodes = [];
    let long = "a".repeat(53);
    let run = HelmRun {
        release: &long,
        attempt: 12,
        ..run(&nodes)
    };
    assert!(run.job_name().len() <= 63 && run.job_name().ends_with("-01234567-12"));
    assert!(run.input_name().len() <= 63);
}

#[test]
fn uninstalling_needs_neither_chart_nor_values() {
    let nodes = [];
    let run = HelmRun {
        verb: HelmVerb::Uninstall,
        before_network: None,
        ..run(&nodes)
    };
    assert_eq!(run.arguments(), ["delete"]);
    assert_eq!(run.owned_objects("u", b"", &json!({})).unwrap().len(), 1);
    assert!(run.job()["spec"]["template"]["spec"].get("hostNetwork").is_none());
}

/// R14.
#[test]
fn an_archive_that_does_not_fit_is_refused_with_its_size() {
    let nodes = [];
    let archive = vec![0; ARCHIVE_LIMIT + 1];
    let refused = run(&nodes).owned_objects("u", &archive, &json!({})).unwrap_err();
    let (bytes, limit) = (ARCHIVE_LIMIT + 1, ARCHIVE_LIMIT);
    assert_eq!(refused, TooLarge::Archive { bytes, limit });
    assert!(ARCHIVE_LIMIT.div_ceil(3) * 4 < 1_048_576);
    let values = json!({ "a": "x".repeat(1_000_000) });
    assert!(matches!(
        run(&nodes).owned_objects("u", b"", &values),
        Err(TooLarge::Values { .. })
    ));
}

#[test]
fn namespaces_carry_their_security_level() {
    let labels = &namespace("longhorn-system", Some(PodSecurity::Privileged))["metadata"]["labels"];
    assert_eq!(labels["pod-security.kubernetes.io/enforce"], "privileged");
    assert!(namespace("argocd", None)["metadata"].get("labels").is_none());
}

fn node() -> JobNode {
    JobNode {
        name: "prod-cp-1".to_owned(),
        guest_answers: true,
        lease_age_seconds: Some(10),
        is_cordoned: false,
        in_turn: false,
        has_control_plane_label: true,
    }
}

/// R8.
#[test]
fn jobs_run_on_nodes_that_answer_and_stay() {
    assert_eq!(job_nodes(&[node()]), ["prod-cp-1"]);
    let unfit: [fn(&mut JobNode); 6] = [
        |node| node.guest_answers = false,
        |node| node.lease_age_seconds = Some(40),
        |node| node.lease_age_seconds = None,
        |node| node.is_cordoned = true,
        |node| node.in_turn = true,
        |node| node.has_control_plane_label = false,
    ];
    for change in unfit {
        let mut node = node();
        change(&mut node);
        assert!(job_nodes(&[node]).is_empty());
    }
    let mut seen = JobPreconditions {
        scheduler_lease_held: true,
        controller_manager_lease_held: true,
        root_ca_published: true,
        nodes: vec!["prod-cp-1".to_owned()],
    };
    assert_eq!(job_blocker(&seen), None);
    seen.nodes.clear();
    assert_eq!(job_blocker(&seen), Some(JobBlocker::NoNode));
    assert_eq!(job_blocker(&JobPreconditions::default()), Some(JobBlocker::ControllerManager));
}

/// R8.
#[test]
fn a_stuck_pod_is_deleted_by_force_only_from_a_stopped_vm() {
    let pod = |seconds_without_status, lease_age_seconds, vm_is_stopped| StuckPod {
        seconds_without_status,
        lease_age_seconds,
        vm_is_stopped,
    };
    assert_eq!(judge_stuck_pod(pod(29, 90, true)), StuckVerdict::Wait);
    assert_eq!(judge_stuck_pod(pod(30, 10, true)), StuckVerdict::Wait);
    assert_eq!(judge_stuck_pod(pod(30, 90, true)), StuckVerdict::ForceDelete);
    assert_eq!(judge_stuck_pod(pod(30, 90, false)), StuckVerdict::Hold);
}

/// R3.
#[test]
fn rights_go_when_no_helm_needs_them_and_a_lease_is_taken_from_finished_jobs() {
    let binding = |name: &str| JobBinding {
        name: name.to_owned(),
        job: name.to_owned(),
    };
    let bindings = [binding("running"), binding("dying"), binding("gone")];
    let live = LiveJobs {
        unfinished: ["running".to_owned()].into(),
        with_running_pod: ["dying".to_owned()].into(),
    };
    let stale: Vec<&str> = stale_bindings(&bindings, &live)
        .iter()
        .map(|binding| binding.name.as_str())
        .collect();
    assert_eq!(stale, ["gone"]);
    let unfinished: BTreeSet<String> = ["a".to_owned()].into();
    assert_eq!(judge_lease(None, "b", &unfinished), LeaseVerdict::Take);
    assert_eq!(judge_lease(Some("old"), "b", &unfinished), LeaseVerdict::Take);
    assert_eq!(judge_lease(Some("a"), "a", &unfinished), LeaseVerdict::Take);
    assert_eq!(
        judge_lease(Some("a"), "b", &unfinished),
        LeaseVerdict::Held { by: "a".to_owned() }
    );
}

/// R14.
#[test]
fn a_lost_lock_file_never_upgrades() {
    let sources = VersionSources {
        catalogue: "4",
        ..VersionSources::default()
    };
    assert_eq!(choose_version(sources), "4");
    let installed = VersionSources {
        installed: Some("3"),
        ..sources
    };
    assert_eq!(choose_version(installed), "3");
    let locked = VersionSources {
        lock: Some("2"),
        ..installed
    };
    assert_eq!(choose_version(locked), "2");
    let file = VersionSources {
        file: Some("1"),
        ..locked
    };
    assert_eq!(choose_version(file), "1");
}

/// R14.
#[test]
fn the_same_version_with_another_digest_is_refused() {
    let pin = |version: &str, archive: &str| PinnedArchive {
        version: version.to_owned(),
        archive: archive.to_owned(),
    };
    assert_eq!(judge_pin(None, &pin("1", "a")), PinVerdict::Write);
    assert_eq!(judge_pin(Some(&pin("1", "a")), &pin("1", "a")), PinVerdict::Matches);
    assert_eq!(judge_pin(Some(&pin("1", "a")), &pin("2", "b")), PinVerdict::Write);
    assert!(matches!(
        judge_pin(Some(&pin("1", "a")), &pin("1", "b")),
        PinVerdict::Refuse { .. }
    ));
}

/// R15.
#[test]
fn a_crd_never_drops_a_stored_version_and_never_goes_back() {
    let versions = |list: &[&str]| -> BTreeSet<String> { list.iter().map(ToString::to_string).collect() };
    let installed = InstalledCrd {
        stored: versions(&["v1alpha1", "v1"]),
        chart_version: Some(Version::new(2, 0, 0)),
    };
    let judge = |offered: &[&str], major| judge_crd(Some(&installed), &versions(offered), &Version::new(major, 0, 0));
    assert_eq!(judge(&["v1alpha1", "v1", "v2"], 3), CrdVerdict::Apply);
    let dropped = vec!["v1alpha1".to_owned()];
    assert_eq!(judge(&["v1"], 3), CrdVerdict::Refuse { dropped });
    assert_eq!(judge(&["v1alpha1", "v1"], 1), CrdVerdict::KeepNewer);
    assert_eq!(judge_crd(None, &versions(&["v1"]), &Version::new(1, 0, 0)), CrdVerdict::Apply);
}
