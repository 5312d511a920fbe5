//! The kubeconfig of every distribution: minted offline, with the same names.

use jiff::{SignedDuration, Timestamp};
use mainstay_plan::{ClusterSecrets, DistroSecrets, Kubeconfig};
use rancher_config::{Distro, ServiceKey};
use rand::SeedableRng;
use rand::rngs::StdRng;

fn now() -> Timestamp {
    "2026-11-18T12:00:00Z".parse().expect("a time")
}

fn kubeconfig(secrets: &ClusterSecrets) -> Kubeconfig {
    let endpoint = "https://10.0.0.20:6443".parse().expect("a URL");
    let day = SignedDuration::from_hours(24);
    let minted = secrets.kubeconfig("lab", &endpoint, day, now(), &mut StdRng::seed_from_u64(1));
    minted.expect("a kubeconfig")
}

#[test]
fn the_kubeconfig_of_an_rke2_cluster_holds_its_endpoint_and_its_own_authority() {
    let mut rng = StdRng::seed_from_u64(7);
    let key = ServiceKey::ec(&mut rng).expect("a key");
    let secrets = ClusterSecrets::generate_rancher(Distro::Rke2, &mut rng, now(), key).expect("secrets");
    let config = kubeconfig(&secrets);
    assert_eq!(config.current_context(), Some("admin@lab"));
    assert_eq!(config.expires("admin@lab"), Some(now() + SignedDuration::from_hours(24)));
    let file: serde_json::Value = serde_saphyr::from_str(&config.to_yaml()).expect("YAML");
    let cluster = &file["clusters"][0]["cluster"];
    assert_eq!(cluster["server"], "https://10.0.0.20:6443");
    let authority = cluster["certificate-authority-data"].as_str().expect("a certificate");
    let DistroSecrets::Rancher(bundle) = &secrets.distro else {
        panic!("a bundle of RKE2");
    };
    use base64::Engine;
    let decoded = base64::engine::general_purpose::STANDARD.decode(authority).expect("base64");
    assert_eq!(std::str::from_utf8(&decoded).expect("PEM"), bundle.server_ca());
}
