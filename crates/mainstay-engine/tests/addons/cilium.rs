//! The pod network as an add-on.

use std::sync::Arc;

use helm_charts::LockFile;
use mainstay_engine::{Event, FileStore, RunError, RunGoal};
use mainstay_kube::{Cluster, ListScope, OnConflict};
use mainstay_plan::{HoldKind, Plan, RefusalKind};
use mainstay_sim::{ChartFaults, WorldSpec};
use serde_json::{Value, json};

use crate::stage::{self, LOCK, Stage, on_stage, settled};

pub const SMALL: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1] }
talos: { version: 1.13.9 }
cni: cilium
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
";

/// The same with a worker and settings of Cilium.
fn with(settings: &str) -> String {
    format!("{SMALL}addons: {{ cilium: {{ {settings} }} }}\n")
}

pub fn lock(stage: &Stage) -> LockFile {
    let content = stage.folder.read(LOCK.as_ref()).expect("reads").unwrap_or_default();
    LockFile::parse(&String::from_utf8(content).expect("text")).expect("a lock file")
}

/// The API server of the first control plane, as an administrator sees it.
pub fn api(stage: &Stage) -> Cluster {
    let spec = stage.spec(SMALL);
    stage.site(&spec).kube.server("10.0.0.11".parse().unwrap()).expect("a client")
}

/// Status and description of each revision, oldest first.
pub async fn revisions(stage: &Stage, name: &str) -> Vec<(String, String)> {
    let all = api(stage).release_revisions(None).await.expect("a list");
    let own = all.iter().filter(|one| one.release == name);
    own.map(|one| {
        let release = helm_charts::Release::decode(one.payload().expose()).expect("a release");
        (release.status.as_str().to_owned(), release.description)
    })
    .collect()
}

/// Jobs and role bindings of ours that are still there.
async fn left_behind(stage: &Stage) -> Vec<String> {
    let api = api(stage);
    let ours = ListScope::labels("mainstay.dev/cluster");
    let mut left = Vec::new();
    for (version, kind) in [
        ("batch/v1", "Job"),
        ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding"),
        ("v1", "Secret"),
        ("v1", "ConfigMap"),
        ("v1", "ServiceAccount"),
    ] {
        let objects = api.list(version, kind, &ours).await.expect("a list");
        left.extend(objects.iter().map(|object| {
            format!(
                "{kind} {} {}",
                object["metadata"]["name"], object["metadata"]["ownerReferences"]
            )
        }));
    }
    left
}

async fn is_settled(stage: &Stage, file: &str) {
    let report = settled(stage, stage.up(file).await);
    assert!(report.is_settled(), "{:?}\n{}", report.held, stage.story());
    assert_eq!(stage.plan(file).await.render(), "nothing to do", "{}", stage.story());
}

#[test]
fn a_new_cluster_with_cilium_is_ready_and_settled_in_one_round() {
    let worker = "  worker: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }\n";
    let file = format!("{SMALL}{worker}");
    on_stage(801, WorldSpec::default(), async |stage| {
        let report = settled(stage, stage.up(&file).await);
        assert!(report.is_settled(), "{:?}\n{}", report.held, stage.story());
        let nodes = report.nodes.as_ref().expect("answers");
        assert!(nodes.nodes.len() == 2 && nodes.nodes.values().all(|node| node.ready));
        assert_eq!(report.rounds, 2, "{}", stage.story());
        assert_eq!(lock(stage).charts["cilium"].version, "1.20.1");
        assert_eq!(stage.plan(&file).await.render(), "nothing to do", "{}", stage.story());
        let [(status, description)] = &revisions(stage, "cilium").await[..] else {
            panic!("one revision");
        };
        assert!(status == "deployed" && description.starts_with("mainstay "), "{description}");
        assert_eq!(left_behind(stage).await, Vec::<String>::new());
    });
}

/// Events of the steps on charts and releases, by their number in the stream.
fn words_of_add_ons(stage: &Stage) -> Vec<usize> {
    let mut plan: Option<Arc<Plan>> = None;
    let mut words = Vec::new();
    for (told, nth) in stage.told.lock().unwrap().iter().zip(1..) {
        match &told.event {
            Event::Planned(next) => plan = Some(next.clone()),
            Event::Step { id, .. } => {
                let name = plan.as_ref().and_then(|plan| plan.step(*id)).map(|step| step.action.name());
                let is_ours = |name: &str| ["chart.", "release.", "addon."].iter().any(|part| name.starts_with(part));
                words.extend(name.filter(|name| is_ours(name)).map(|_| nth));
            }
            _ => {}
        }
    }
    words
}

#[test]
fn an_up_killed_at_any_word_about_an_add_on_is_finished_by_the_next() {
    let words = on_stage(802, WorldSpec::default(), async |stage| {
        is_settled(stage, SMALL).await;
        words_of_add_ons(stage)
    });
    assert!(words.len() >= 10, "{words:?}");
    for nth in words {
        on_stage(802, WorldSpec::default(), async |stage| {
            let heard = async || {
                while stage.told.lock().unwrap().len() < nth {
                    stage.beat.notified().await;
                }
            };
            tokio::select! {
                biased;
                () = heard() => {}
                _ = stage.up(SMALL) => panic!("there is no event {nth}"),
            }
            is_settled(stage, SMALL).await;
            assert_eq!(left_behind(stage).await, Vec::<String>::new(), "killed at word {nth}");
            assert_eq!(
                revisions(stage, "cilium").await.len(),
                1,
                "killed at word {nth}\n{}",
                stage.story()
            );
        });
    }
}

#[test]
fn a_registry_that_does_not_answer_stops_a_new_cluster_before_its_first_vm() {
    on_stage(803, WorldSpec::default(), async |stage| {
        let faults = ChartFaults {
            outage: ["quay.io".to_owned()].into(),
            ..ChartFaults::default()
        };
        stage.world.set_chart_faults(faults);
        let Err(RunError::Refused(plan)) = stage.up(SMALL).await else {
            panic!("{}", stage.story());
        };
        let refusal = &plan.refusals[0];
        assert_eq!(refusal.kind, RefusalKind::Insufficient);
        assert!(refusal.what.contains("cilium") && refusal.why.contains("503"), "{refusal:?}");
        assert!(!stage.world.datacenter().inspect().vms.contains_key(&2000));
        stage.world.set_chart_faults(ChartFaults::default());
        is_settled(stage, SMALL).await;
        // Installed and equal: the registry is not asked again.
        let faults = ChartFaults {
            outage: ["quay.io".to_owned()].into(),
            ..ChartFaults::default()
        };
        stage.world.set_chart_faults(faults);
        assert_eq!(stage.plan(SMALL).await.render(), "nothing to do");
    });
}

#[test]
fn an_archive_that_differs_from_its_digest_is_never_installed() {
    on_stage(804, WorldSpec::default(), async |stage| {
        let faults = ChartFaults {
            corrupt: ["cilium".to_owned()].into(),
            ..ChartFaults::default()
        };
        stage.world.set_chart_faults(faults);
        let Err(RunError::Refused(plan)) = stage.up(SMALL).await else {
            panic!("{}", stage.story());
        };
        assert!(plan.refusals[0].why.contains("digest"), "{:?}", plan.refusals);
        assert!(stage.folder.read(LOCK.as_ref()).expect("reads").is_none());
    });
}

#[test]
fn changed_values_upgrade_the_release_and_name_the_paths() {
    on_stage(805, WorldSpec::default(), async |stage| {
        is_settled(stage, SMALL).await;
        let changed = with("values: { operator: { replicas: 1 }, envoy: { enabled: false } }");
        let plan = stage.plan(&changed).await;
        assert!(
            plan.render().contains("~ add-on cilium upgrade: values differ at envoy"),
            "{}",
            plan.render()
        );
        is_settled(stage, &changed).await;
        let statuses: Vec<String> = revisions(stage, "cilium").await.into_iter().map(|one| one.0).collect();
        assert_eq!(statuses, ["superseded", "deployed"]);
    });
}

#[test]
fn values_that_the_chart_refuses_are_told_in_its_words_and_tried_once() {
    let file = with("values: { envoy: { enabled: maybe } }");
    on_stage(806, WorldSpec::default(), async |stage| {
        let report = settled(stage, stage.up(&file).await);
        let held: Vec<_> = report
            .held
            .iter()
            .filter(|held| held.lasts == HoldKind::NeedsOperator)
            .collect();
        assert!(held[0].reason.contains("/envoy/enabled"), "{held:?}\n{}", stage.story());
        assert!(revisions(stage, "cilium").await.is_empty());
        // The right values are other content: the failure does not stand in their way.
        is_settled(stage, SMALL).await;
    });
}

#[test]
fn an_image_that_cannot_be_pulled_is_named_at_once_and_pulled_when_it_is_there() {
    on_stage(807, WorldSpec::default(), async |stage| {
        let faults = ChartFaults {
            unpullable: vec!["docker.io/rancher/klipper-helm".to_owned()],
            ..ChartFaults::default()
        };
        stage.world.set_chart_faults(faults);
        let report = settled(stage, stage.up(SMALL).await);
        assert!(
            report.held.iter().any(|held| held.reason.contains("klipper-helm")),
            "{:?}\n{}",
            report.held,
            stage.story()
        );
        assert!(stage.env.wall.now() < stage::NEW_YEAR.parse::<jiff::Timestamp>().unwrap() + std::time::Duration::from_secs(600));
        stage.world.set_chart_faults(ChartFaults::default());
        // The kubelet pauses for up to five minutes between two pulls.
        tokio::time::sleep(std::time::Duration::from_secs(300)).await;
        is_settled(stage, SMALL).await;
    });
}

#[test]
fn a_cluster_with_another_network_is_refused_by_name() {
    let flannel = SMALL.replace("cni: cilium\n", "");
    on_stage(808, WorldSpec::default(), async |stage| {
        is_settled(stage, &flannel).await;
        let Err(RunError::Refused(plan)) = stage.up(SMALL).await else {
            panic!("{}", stage.story());
        };
        let refusal = &plan.refusals[0];
        assert!(refusal.what.contains("cilium cannot be added"), "{refusal:?}");
        assert!(refusal.help[0].contains("restart the nodes"), "{refusal:?}");
    });
}

#[test]
fn a_release_that_flux_took_over_is_left_and_named() {
    on_stage(809, WorldSpec::default(), async |stage| {
        is_settled(stage, SMALL).await;
        let api = api(stage);
        let crd = json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "helmreleases.helm.toolkit.fluxcd.io" },
            "spec": {
                "group": "helm.toolkit.fluxcd.io", "scope": "Namespaced",
                "names": { "plural": "helmreleases", "singular": "helmrelease", "kind": "HelmRelease", "listKind": "HelmReleaseList" },
                "versions": [{ "name": "v2", "served": true, "storage": true, "subresources": { "status": {} },
                    "schema": { "openAPIV3Schema": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } } }],
            },
        });
        api.apply(&crd, OnConflict::Force).await.expect("a CRD");
        tokio::time::sleep(std::time::Duration::from_secs(5)).await;
        let object = json!({
            "apiVersion": "helm.toolkit.fluxcd.io/v2", "kind": "HelmRelease",
            "metadata": { "name": "cilium", "namespace": "kube-system" }, "spec": { "suspend": true },
        });
        self::api(stage)
            .apply(&object, OnConflict::Force)
            .await
            .expect("a HelmRelease");
        let changed = with("values: { envoy: { enabled: false } }");
        let report = settled(stage, stage.up(&changed).await);
        assert!(report.is_settled(), "{:?}", report.held);
        assert!(
            report
                .held
                .iter()
                .any(|held| held.reason.contains("HelmRelease kube-system/cilium")),
            "{:?}\n{}",
            report.held,
            stage.story()
        );
        assert_eq!(revisions(stage, "cilium").await.len(), 1);
    });
}

#[test]
fn a_lost_lock_file_is_made_anew_and_upgrades_nothing() {
    let old = with("version: 1.18.13");
    on_stage(810, WorldSpec::default(), async |stage| {
        is_settled(stage, &old).await;
        stage.folder.remove(LOCK.as_ref()).expect("removes");
        let plan = stage.plan(SMALL).await;
        assert_eq!(
            plan.trace(),
            "1 chart.fetch cilium cilium 1.18.13: not yet pinned in the lock file"
        );
        is_settled(stage, SMALL).await;
        assert_eq!(lock(stage).charts["cilium"].version, "1.18.13");
        assert_eq!(revisions(stage, "cilium").await.len(), 1);
    });
}

#[test]
fn a_lock_file_with_a_merge_conflict_ends_the_run_with_both_sides() {
    on_stage(811, WorldSpec::default(), async |stage| {
        let text = "version: 1\n<<<<<<< main\ncharts: {}\n=======\n>>>>>>> feature\n";
        stage.folder.write(LOCK.as_ref(), text.as_bytes()).expect("writes");
        let Err(RunError::ObserveFailed(failure)) = stage.up(SMALL).await else {
            panic!("{}", stage.story());
        };
        let why = failure.why.unwrap_or_default();
        assert!(why.contains("`main`") && why.contains("`feature`"), "{why}");
    });
}

#[test]
fn helm_that_is_killed_in_the_middle_is_healed() {
    on_stage(812, WorldSpec::default(), async |stage| {
        let faults = ChartFaults {
            helm_step: Some(20),
            ..ChartFaults::default()
        };
        stage.world.set_chart_faults(faults);
        let kill = async {
            stage.ended(|step| step.action.name() == "release.start").await;
            loop {
                let seen = revisions(stage, "cilium").await;
                if seen.first().is_some_and(|one| one.0 == "pending-install") {
                    break;
                }
                tokio::time::sleep(std::time::Duration::from_secs(1)).await;
            }
            let pods = api(stage)
                .pods(Some("kube-system"), "mainstay.dev/release=cilium")
                .await
                .expect("pods");
            let pod = mainstay_kube::ObjectRef::new("v1", "Pod", Some("kube-system"), &pods[0].name);
            api(stage)
                .delete(&pod, mainstay_kube::Propagation::Background, None)
                .await
                .expect("deletes");
            stage.world.set_chart_faults(ChartFaults::default());
        };
        let (report, ()) = tokio::join!(stage.up(SMALL), kill);
        assert!(settled(stage, report).is_settled(), "{}", stage.story());
        assert_eq!(left_behind(stage).await, Vec::<String>::new());
        assert_eq!(stage.plan(SMALL).await.render(), "nothing to do");
    });
}

#[test]
fn a_release_changed_by_hand_is_kept_and_the_difference_is_named() {
    on_stage(813, WorldSpec::default(), async |stage| {
        is_settled(stage, SMALL).await;
        let api = api(stage);
        let all = api.release_revisions(None).await.expect("a list");
        let mut release = helm_charts::Release::decode(all[0].payload().expose()).expect("a release");
        release.revision = 2;
        release.description = "Upgrade complete".to_owned();
        release.config["debug"] = json!({ "enabled": true });
        let data = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, release.encode());
        let secret: Value = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "helm.sh/release.v1",
            "metadata": { "name": release.secret_name(), "namespace": "kube-system", "labels": release.labels() },
            "data": { "release": data },
        });
        api.create(&secret).await.expect("a revision");
        let report = settled(stage, stage.converge(SMALL, RunGoal::Up).await);
        let held = report.held.iter().find(|held| held.what == "install").expect("held");
        assert!(
            held.reason.contains("debug") && held.reason.contains("by hand"),
            "{}",
            held.reason
        );
        let mut asked = stage.with_a_colleague();
        asked.addons.take.insert("cilium".to_owned());
        assert!(settled(&asked, asked.up(SMALL).await).is_settled(), "{}", stage.story());
        assert_eq!(asked.plan(SMALL).await.render(), "nothing to do");
    });
}

#[test]
fn a_failed_release_is_tried_again_when_the_operator_asks_for_it() {
    let file = with("values: { envoy: { enabled: maybe } }");
    on_stage(814, WorldSpec::default(), async |stage| {
        settled(stage, stage.up(&file).await);
        let before = stage.plan(&file).await;
        assert!(before.steps.is_empty(), "{}", before.trace());
        let mut asked = stage.with_a_colleague();
        asked.addons.retry.insert("cilium".to_owned());
        assert!(asked.plan(&file).await.trace().contains("release.start cilium"));
    });
}

#[test]
fn nodes_are_ready_with_cilium_as_soon_as_the_world_allows() {
    on_stage(815, WorldSpec::default(), async |stage| {
        let now = || stage.env.wall.now();
        let watch = async {
            stage.ended(|step| step.action.name() == "guest.configure").await;
            let api = api(stage);
            let tick = async || tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            while !api.is_ready().await.unwrap_or(false) {
                tick().await;
            }
            let served = now();
            let all_ready = |nodes: &[mainstay_kube::Node]| !nodes.is_empty() && nodes.iter().all(mainstay_kube::Node::is_ready);
            while !api.nodes().await.is_ok_and(|nodes| all_ready(&nodes)) {
                tick().await;
            }
            now().duration_since(served).as_secs_f64()
        };
        let (report, took) = tokio::join!(stage.up(SMALL), watch);
        settled(stage, report);
        let path = stage.world.network_path();
        let ratio = took / path.total().as_secs_f64();
        assert!((0.99..=1.05).contains(&ratio), "{took} s of {:?}: {ratio}", path.steps);
    });
}

#[test]
fn a_value_that_refers_to_a_secret_is_refused_and_never_passed_on() {
    let file = with("values: { encryption: { key: { $secret: ipsec } } }");
    on_stage(816, WorldSpec::default(), async |stage| {
        let Err(RunError::Refused(plan)) = stage.up(&file).await else {
            panic!("{}", stage.story());
        };
        assert!(plan.refusals[0].what.contains("secret `ipsec`"), "{:?}", plan.refusals);
        assert!(!stage.world.datacenter().inspect().vms.contains_key(&2000));
    });
}

#[test]
fn cilium_goes_one_minor_at_a_time_and_never_back() {
    let at = |version: &str| with(&format!("version: {version}"));
    on_stage(817, WorldSpec::default(), async |stage| {
        is_settled(stage, &at("1.18.13")).await;
        for (version, help) in [("1.20.1", "version: 1.19.7"), ("1.16.19", "1.18.13")] {
            let Err(RunError::Refused(plan)) = stage.up(&at(version)).await else {
                panic!("{}", stage.story());
            };
            assert!(plan.refusals[0].help[0].contains(help), "{:?}", plan.refusals);
        }
        is_settled(stage, &at("1.19.7")).await;
        assert_eq!(revisions(stage, "cilium").await.len(), 2);
        let api = api(stage);
        let newest = mainstay_kube::newest_revisions(api.release_revisions(None).await.expect("a list"));
        let release = helm_charts::Release::decode(newest[0].payload().expose()).expect("a release");
        assert_eq!(
            release.config["upgradeCompatibility"], "1.18",
            "the minor that was installed first is kept"
        );
    });
}
