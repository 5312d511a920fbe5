//! Secrets and certificates, checked by other readers than the code that wrote them.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use rancher_config::access::{DEFAULT_LIFETIME, kubernetes_admin, supervisor_client};
use rancher_config::{ClientIdentity, Distro, MintTime, Secrets, ServiceKey};
use rand::SeedableRng;
use rand_chacha::ChaCha20Rng;
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

const NOW: &str = "2026-11-18T12:00:00Z";

fn rng(seed: u64) -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(seed)
}

fn at(text: &str) -> MintTime {
    let now: Timestamp = text.parse().expect(text);
    MintTime::new(now, "2026-01-01T00:00:00Z".parse().expect("a time")).expect("a credible clock")
}

fn secrets(distro: Distro) -> Secrets {
    let mut rng = rng(7);
    let service = ServiceKey::ec(&mut rng).expect("a key");
    Secrets::generate(distro, &mut rng, at(NOW), service, "mainstay").expect("secrets")
}

fn file(secrets: &Secrets, name: &str) -> String {
    let files = secrets.tls_files();
    let found = files.iter().find(|file| file.name == name);
    found.unwrap_or_else(|| panic!("no {name}")).content.to_string()
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).expect("a certificate")
}

/// Whether a TLS server that trusts `ca` accepts the certificate at that time.
fn accepts(ca: &str, identity: &ClientIdentity, time: &str) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(der(ca)).expect("an authority");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .expect("a verifier");
    let time: Timestamp = time.parse().expect(time);
    let seconds = u64::try_from(time.as_second()).expect("after 1970");
    let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
    verifier.verify_client_cert(&der(&identity.certificate), &[], now).is_ok()
}

fn groups(pem: &str) -> Vec<String> {
    let der = der(pem);
    let (_, parsed) = X509Certificate::from_der(&der).expect("a certificate");
    let names = parsed.subject().iter_organization();
    let mut groups: Vec<String> = names.map(|name| name.as_str().expect("text").to_owned()).collect();
    groups.sort();
    groups
}

#[test]
fn the_same_stream_and_time_give_the_same_secrets() {
    for distro in Distro::ALL {
        assert_eq!(secrets(distro), secrets(distro));
    }
    let mut other = rng(8);
    let service = ServiceKey::ec(&mut other).expect("a key");
    let other = Secrets::generate(Distro::K3s, &mut other, at(NOW), service, "mainstay").expect("secrets");
    assert_ne!(secrets(Distro::K3s), other);
}

#[test]
fn the_ca_set_is_the_documented_eleven_files() {
    let files = secrets(Distro::Rke2).tls_files();
    let names: Vec<&str> = files.iter().map(|file| file.name).collect();
    assert_eq!(
        names,
        [
            "server-ca.crt",
            "server-ca.key",
            "client-ca.crt",
            "client-ca.key",
            "request-header-ca.crt",
            "request-header-ca.key",
            "etcd/server-ca.crt",
            "etcd/server-ca.key",
            "etcd/peer-ca.crt",
            "etcd/peer-ca.key",
            "service.key",
        ]
    );
    for file in &files {
        let is_certificate = file.name.ends_with(".crt");
        assert_eq!(file.content.starts_with("-----BEGIN CERTIFICATE-----\n"), is_certificate);
        assert!(file.content.ends_with("-----\n"), "{}", file.name);
    }
}

#[test]
fn authorities_may_sign_begin_two_days_early_and_last_ten_years() {
    let secrets = secrets(Distro::K3s);
    for name in [
        "server-ca.crt",
        "client-ca.crt",
        "request-header-ca.crt",
        "etcd/server-ca.crt",
        "etcd/peer-ca.crt",
    ] {
        let certificate = der(&file(&secrets, name));
        let (_, parsed) = X509Certificate::from_der(&certificate).expect(name);
        assert!(parsed.is_ca(), "{name}");
        let usage = parsed.key_usage().expect("parsed").expect("present").value;
        assert!(usage.key_cert_sign() && usage.digital_signature(), "{name}");
        let minted: Timestamp = NOW.parse().expect("a time");
        let validity = parsed.validity();
        assert_eq!(minted.as_second() - validity.not_before.timestamp(), 48 * 3600, "{name}");
        assert_eq!(
            validity.not_after.timestamp() - minted.as_second(),
            3650 * 24 * 3600,
            "{name}"
        );
        PrivateKeyDer::from_pem_slice(file(&secrets, &name.replace(".crt", ".key")).as_bytes()).expect(name);
    }
}

#[test]
fn an_rsa_service_key_is_written_in_the_traditional_form() {
    let mut rng = rng(3);
    let service = ServiceKey::rsa(&mut rng).expect("a key");
    let secrets = Secrets::generate(Distro::K3s, &mut rng, at(NOW), service, "mainstay").expect("secrets");
    let text = file(&secrets, "service.key");
    assert!(text.starts_with("-----BEGIN RSA PRIVATE KEY-----\n"));
    PrivateKeyDer::from_pem_slice(text.as_bytes()).expect("a key");
    assert_eq!(Secrets::from_value(&secrets.to_value()).expect("readable"), secrets);
}

#[test]
fn both_tokens_pin_the_server_ca_file_byte_for_byte() {
    let secrets = secrets(Distro::K3s);
    let hash = hex::encode(Sha256::digest(file(&secrets, "server-ca.crt")));
    let (server, agent) = (secrets.server_token(), secrets.agent_token());
    let password = |token: &str, user: &str| token.strip_prefix(&format!("K10{hash}::{user}:")).map(str::to_owned);
    let (server, agent) = (password(server.expose(), "server"), password(agent.expose(), "node"));
    assert!(server.is_some() && agent.is_some() && server != agent);
}

#[test]
fn the_supervisor_certificate_carries_all_three_groups_of_its_distribution() {
    for (distro, server, agent) in [
        (Distro::Rke2, "rke2:server", "rke2:agent"),
        (Distro::K3s, "k3s:server", "k3s:agent"),
    ] {
        let secrets = secrets(distro);
        let identity = supervisor_client(&secrets, DEFAULT_LIFETIME, at(NOW), &mut rng(1)).expect("a certificate");
        assert_eq!(groups(&identity.certificate), [agent, server, "system:masters"]);
        assert!(accepts(&file(&secrets, "client-ca.crt"), &identity, NOW));
        assert!(
            !accepts(&file(&secrets, "server-ca.crt"), &identity, NOW),
            "another authority"
        );
    }
}

#[test]
fn a_client_certificate_is_valid_from_two_days_ago_until_its_lifetime_ends() {
    let secrets = secrets(Distro::Rke2);
    let ca = file(&secrets, "client-ca.crt");
    let identity = kubernetes_admin(&secrets, SignedDuration::from_hours(24), at(NOW), &mut rng(1)).expect("a certificate");
    assert_eq!(groups(&identity.certificate), ["system:masters"]);
    assert!(accepts(&ca, &identity, "2026-11-16T13:00:00Z"));
    assert!(!accepts(&ca, &identity, "2026-11-16T11:00:00Z"));
    assert!(accepts(&ca, &identity, "2026-11-19T11:00:00Z"));
    assert!(!accepts(&ca, &identity, "2026-11-19T13:00:00Z"));
}

#[test]
fn a_certificate_does_not_outlive_its_authority() {
    let secrets = secrets(Distro::Rke2);
    let late = at("2036-11-01T00:00:00Z");
    let identity = kubernetes_admin(&secrets, DEFAULT_LIFETIME, late, &mut rng(1)).expect("a certificate");
    assert_eq!(identity.expires.to_string(), "2036-11-15T12:00:00Z");
}

#[test]
fn a_clock_before_the_build_date_makes_no_certificate() {
    let now: Timestamp = "2025-12-31T23:59:59Z".parse().expect("a time");
    let built: Timestamp = "2026-01-01T00:00:00Z".parse().expect("a time");
    assert!(MintTime::new(now, built).is_err());
}

#[test]
fn the_bundle_is_read_back_and_a_wrong_part_is_named_without_its_text() {
    let secrets = secrets(Distro::Rke2);
    let value = secrets.to_value();
    assert_eq!(Secrets::from_value(&value).expect("readable"), secrets);

    let mut swapped = value.clone();
    swapped["client-ca"]["key"] = value["server-ca"]["key"].clone();
    let problem = Secrets::from_value(&swapped)
        .expect_err("a key of another authority")
        .to_string();
    assert_eq!(
        problem,
        "the secrets are not usable: client-ca: the key does not belong to the certificate"
    );

    for part in value.as_object().expect("a map").keys() {
        let mut broken = value.clone();
        broken.as_object_mut().expect("a map").remove(part);
        Secrets::from_value(&broken).expect_err(part);
        let mut broken = value.clone();
        broken[part.as_str()] = "canary-5ca1ab1e:".into();
        let problem = Secrets::from_value(&broken).expect_err(part);
        assert!(!format!("{problem}{problem:?}").contains("canary"), "{problem}");
    }
}

#[test]
fn printing_for_debugging_shows_nothing_secret() {
    let secrets = secrets(Distro::K3s);
    let identity = kubernetes_admin(&secrets, DEFAULT_LIFETIME, at(NOW), &mut rng(1)).expect("a certificate");
    let shown = format!(
        "{secrets:?} {identity:?} {:?} {:?} {:?}",
        secrets.tls_files(),
        secrets.ssh(),
        secrets.server_token()
    );
    assert!(!shown.contains("PRIVATE") && !shown.contains("K10"), "{shown}");
}
