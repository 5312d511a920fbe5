//! Archives, looked into.

use helm_charts::archive::CONFIG_MAP_MAX;
use helm_charts::{ArchiveError, ChartArchive, Sha256Digest};
use serde_json::json;

use crate::world::{archive, bomb, demo};

#[test]
fn name_versions_values_and_digest_are_read() {
    let bytes = demo("1.2.3");
    let chart = ChartArchive::read(&bytes).expect("a chart");
    assert_eq!((chart.name.as_str(), chart.version.as_str()), ("demo", "1.2.3"));
    assert!(
        chart.app_version.as_deref().is_some_and(|version| version.starts_with("1.3")),
        "also without quotes"
    );
    assert_eq!(chart.values, json!({"replicas": 1, "image": {"tag": "x"}}));
    assert_eq!(chart.value_keys(), ["replicas", "image"]);
    assert_eq!(chart.sha256, Sha256Digest::of(&bytes));
    chart.check_placeable().expect("small");
}

#[test]
fn crds_of_the_chart_and_its_subcharts_are_found() {
    let nested = archive(&[("Chart.yaml", b"name: sub\nversion: 1\n"), ("crds/b.yaml", b"kind: B\n")]);
    let bytes = archive(&[
        ("Chart.yaml", b"name: demo\nversion: 1.0.0\n"),
        ("crds/a.yaml", b"kind: A\n"),
        ("charts/plain/crds/c.yaml", b"kind: C\n"),
        ("charts/sub-1.tgz", &nested),
        ("templates/crds.yaml", b"not a CRD file"),
    ]);
    let chart = ChartArchive::read(&bytes).expect("a chart");
    let paths: Vec<&str> = chart.crds.keys().map(String::as_str).collect();
    assert_eq!(paths, ["charts/plain/crds/c.yaml", "charts/sub-1/crds/b.yaml", "crds/a.yaml"]);
    assert_eq!(chart.values, json!({}), "no values file");
}

#[test]
fn another_chart_than_the_one_asked_for_is_refused() {
    let read = || ChartArchive::read(&demo("1.2.3")).expect("a chart");
    read().expect("demo", "1.2.3").expect("the same");
    read().expect("demo", "v1.2.3").expect("a leading v is no difference");
    assert!(matches!(read().expect("demo", "1.2.4"), Err(ArchiveError::Other { .. })));
    assert!(matches!(read().expect("other", "1.2.3"), Err(ArchiveError::Other { .. })));
}

#[test]
fn an_archive_that_unpacks_without_end_is_refused() {
    let bytes = bomb(80 << 20);
    assert!(bytes.len() < 1 << 20, "small on the wire");
    assert_eq!(ChartArchive::read(&bytes), Err(ArchiveError::TooLarge));
}

#[test]
fn what_is_no_chart_is_an_error() {
    assert!(matches!(ChartArchive::read(b"not gzip"), Err(ArchiveError::Unpack(_))));
    let empty = archive(&[("README.md", b"x")]);
    assert_eq!(ChartArchive::read(&empty), Err(ArchiveError::Missing("Chart.yaml")));
    let broken = archive(&[("Chart.yaml", b"name: [\n")]);
    assert_eq!(ChartArchive::read(&broken), Err(ArchiveError::Yaml("Chart.yaml")));
    let whole = demo("1.0.0");
    assert!(ChartArchive::read(&whole[..whole.len() / 2]).is_err(), "cut off");
}

#[test]
fn an_archive_that_does_not_fit_into_the_cluster_is_refused_with_its_size() {
    let mut chart = ChartArchive::read(&demo("1.0.0")).expect("a chart");
    chart.size = CONFIG_MAP_MAX + 1;
    assert_eq!(
        chart.check_placeable(),
        Err(ArchiveError::NotPlaceable {
            size: CONFIG_MAP_MAX + 1
        })
    );
}
