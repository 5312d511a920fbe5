//! The fields of a machine config that carry a version: only a step that changes a version writes them.

use std::collections::BTreeMap;

use semver::Version;
use talos_config::versions::Contract;
use talos_config::{Config, Patch};

use crate::observed::GuestConfig;
use crate::step::KubernetesPart;

/// Fields whose version is not a part of Kubernetes.
const OTHERS: [&str; 2] = ["machine.install.image", "cluster.etcd.image"];

fn place(part: KubernetesPart) -> &'static str {
    match part {
        KubernetesPart::ApiServer => "cluster.apiServer.image",
        KubernetesPart::ControllerManager => "cluster.controllerManager.image",
        KubernetesPart::Scheduler => "cluster.scheduler.image",
        KubernetesPart::Proxy => "cluster.proxy.image",
        KubernetesPart::Kubelet => "machine.kubelet.image",
    }
}

/// The field names an image, and by it a version.
pub(in crate::guest) fn carries_version(path: &str) -> bool {
    KubernetesPart::ALL
        .into_iter()
        .map(place)
        .chain(OTHERS)
        .any(|place| place == path)
}

/// The config with the images of the one that the node has.
pub(in crate::guest) fn keep(current: &Config, desired: Config, contract: Contract) -> Option<Config> {
    let places = KubernetesPart::ALL.into_iter().map(place).chain(OTHERS);
    let differs = |place: &&str| current.text_at(place) != desired.text_at(place);
    let kept = places
        .filter(differs)
        .filter_map(|place| Some(patch(place, current.text_at(place)?)));
    let patches: Option<Vec<Patch>> = kept.map(|text| Patch::parse("images", &text, contract).ok()).collect();
    let patches = patches?;
    if patches.is_empty() {
        return Some(desired);
    }
    desired.patched(&patches, contract).ok()
}

/// The same config with another version of one part.
pub(in crate::guest) fn with_version(config: &str, release: &Version, part: KubernetesPart, to: &Version) -> Option<GuestConfig> {
    let contract = Contract::of(release);
    let image = image_of(config, part, to)?;
    let patch = Patch::parse("version", &patch(place(part), &image), contract).ok()?;
    let config = Config::parse(config, contract).ok()?.patched([&patch], contract).ok()?;
    Some(GuestConfig::new(config.to_yaml().as_str()))
}

/// The image of another version from the same place. A digest belongs to one version, so it is not kept.
pub(in crate::guest) fn image_of(config: &str, part: KubernetesPart, to: &Version) -> Option<String> {
    let (_, image, version) = found(config).find(|(found, ..)| *found == part)?;
    let (repository, tag) = image.split_once(":v")?;
    let tag = tag.split('@').next()?;
    let suffix = tag.strip_prefix(&version.to_string()).unwrap_or_default();
    Some(format!("{repository}:v{to}{suffix}"))
}

/// A patch that sets one field.
fn patch(place: &str, value: &str) -> String {
    let lines = place.split('.').enumerate();
    let lines = lines.map(|(depth, key)| format!("{}{key}:", "  ".repeat(depth)));
    format!("{} {value:?}\n", lines.collect::<Vec<_>>().join("\n"))
}

/// The versions of the parts of Kubernetes that a config asks for.
pub(in crate::guest) fn parts(config: &str) -> BTreeMap<KubernetesPart, Version> {
    found(config).map(|(part, _, version)| (part, version)).collect()
}

/// Read as text, because a config of any release must tell.
fn found(config: &str) -> impl Iterator<Item = (KubernetesPart, &str, Version)> {
    let images = config.lines().filter_map(|line| line.trim().strip_prefix("image: "));
    images.filter_map(|image| {
        let image = image.trim_matches('"');
        let (repository, tag) = image.split_once(":v")?;
        let name = repository.rsplit('/').next()?;
        let part = KubernetesPart::ALL.into_iter().find(|part| part.as_str() == name)?;
        Some((part, image, tag.split(['@', '-']).next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const CONFIG: &str = "version: v1alpha1\nmachine:\n  kubelet:\n    image: ghcr.io/siderolabs/kubelet:v1.35.2-slim\ncluster:\n  apiServer:\n    image: \"registry.k8s.io/kube-apiserver:v1.36.0@sha256:00\"\n  etcd:\n    image: registry.k8s.io/etcd:v3.6.0\n";

    #[test]
    fn parts_are_read_from_their_images() {
        let found: Vec<String> = parts(CONFIG)
            .iter()
            .map(|(part, version)| format!("{part} {version}"))
            .collect();
        assert_eq!(found, ["kube-apiserver 1.36.0", "kubelet 1.35.2"]);
    }

    #[test]
    fn another_version_comes_from_the_same_place() {
        let to = Version::new(1, 36, 3);
        let image = |part| image_of(CONFIG, part, &to);
        assert_eq!(
            image(KubernetesPart::Kubelet).unwrap(),
            "ghcr.io/siderolabs/kubelet:v1.36.3-slim"
        );
        assert_eq!(
            image(KubernetesPart::ApiServer).unwrap(),
            "registry.k8s.io/kube-apiserver:v1.36.3"
        );
        assert_eq!(image(KubernetesPart::Proxy), None);
    }

    #[test]
    fn only_the_image_of_the_part_changes() {
        let to = Version::new(1, 36, 3);
        let changed = with_version(CONFIG, &Version::new(1, 13, 9), KubernetesPart::Kubelet, &to).unwrap();
        let found: Vec<String> = parts(changed.expose())
            .iter()
            .map(|(part, version)| format!("{part} {version}"))
            .collect();
        assert_eq!(found, ["kube-apiserver 1.36.0", "kubelet 1.36.3"]);
    }
}
