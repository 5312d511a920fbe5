//! Charts that are not in the catalogue.

use mainstay_sim::WorldSpec;

use super::cilium::{SMALL, lock, revisions};
use crate::stage::{on_stage, settled};

const BACKUP: &str = "name: backup, chart: velero, repo: \"https://vmware-tanzu.github.io/helm-charts\", namespace: velero";

fn file(more: &str) -> String {
    format!("{SMALL}charts: [{{ {BACKUP}{more} }}]\n")
}

#[test]
fn a_chart_of_the_users_own_is_installed_changed_and_kept_when_it_leaves_the_file() {
    on_stage(821, WorldSpec::default(), async |stage| {
        let report = settled(stage, stage.up(&file("")).await);
        assert!(report.is_settled(), "{:?}\n{}", report.held, stage.story());
        // Without a version the newest that is published is pinned.
        assert_eq!(lock(stage).charts["backup"].version, "12.1.0");
        assert_eq!(stage.plan(&file("")).await.render(), "nothing to do", "{}", stage.story());
        let changed = file(", values: { replicas: 2 }");
        let plan = stage.plan(&changed).await;
        assert!(
            plan.render().contains("~ add-on backup upgrade: values differ at replicas"),
            "{}",
            plan.render()
        );
        assert!(settled(stage, stage.up(&changed).await).is_settled(), "{}", stage.story());
        assert_eq!(revisions(stage, "backup").await.len(), 2);
        let report = settled(stage, stage.up(SMALL).await);
        assert!(report.is_settled(), "{:?}", report.held);
        let kept = report.held.iter().find(|held| held.what == "remove").expect("it is told");
        assert!(kept.reason.contains("backup") && kept.reason.contains("velero"), "{kept:?}");
        assert_eq!(revisions(stage, "backup").await.len(), 2);
    });
}

#[test]
fn two_releases_of_one_chart_and_name_in_two_namespaces_do_not_meet() {
    let two = format!(
        "{SMALL}charts:\n  - {{ {BACKUP} }}\n  - {{ {} }}\n",
        BACKUP.replace("namespace: velero", "namespace: other")
    );
    on_stage(822, WorldSpec::default(), async |stage| {
        let report = settled(stage, stage.up(&two).await);
        assert!(report.is_settled(), "{:?}\n{}", report.held, stage.story());
        assert_eq!(revisions(stage, "backup").await.len(), 2);
        assert_eq!(
            lock(stage).charts.keys().collect::<Vec<_>>(),
            ["cilium", "other/backup", "velero/backup"]
        );
        assert_eq!(stage.plan(&two).await.render(), "nothing to do", "{}", stage.story());
    });
}
