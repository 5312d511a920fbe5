//! Every certificate property that Talos gives or expects.

use std::collections::BTreeSet;

use crate::support::{raw, rng, secrets};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE};
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;
use talos_config::access::{DEFAULT_LIFETIME, kubernetes_admin, talos_identity};
use talos_config::versions::Contract;
use talos_config::{ClientIdentity, Kubeconfig, Secrets, ServiceAccountKey, TalosRole, Talosconfig};
use x509_parser::prelude::{FromDer, ParsedExtension, X509Certificate};

fn now() -> Timestamp {
    "2026-11-15T20:18:03Z".parse().unwrap()
}

fn fresh(seed: u64) -> Secrets {
    let mut rng = rng(seed);
    let key = ServiceAccountKey::ec_p256(&mut rng).unwrap();
    Secrets::generate(&mut rng, now(), Contract::new(1, 13), key).unwrap()
}

/// What a test asks of a certificate, in one comparable line each.
fn describe(pem: &str) -> Vec<String> {
    let block = pem::parse(pem).unwrap();
    assert_eq!(block.tag(), "CERTIFICATE");
    let (rest, cert) = X509Certificate::from_der(block.contents()).unwrap();
    assert!(rest.is_empty());
    let mut lines = vec![
        format!("version {}", cert.version().0 + 1),
        format!("subject {}", cert.subject()),
        format!("issuer {}", cert.issuer()),
        format!("signature {}", cert.signature_algorithm.algorithm),
        format!("key {}", cert.public_key().algorithm.algorithm),
    ];
    for extension in cert.extensions() {
        let critical = if extension.critical { " critical" } else { "" };
        lines.push(match extension.parsed_extension() {
            ParsedExtension::KeyUsage(usage) => format!("usage{critical} {usage}"),
            ParsedExtension::ExtendedKeyUsage(usage) => {
                format!(
                    "extended{critical} server={} client={} any={}",
                    usage.server_auth, usage.client_auth, usage.any
                )
            }
            ParsedExtension::BasicConstraints(basic) => {
                format!("basic{critical} ca={} path={:?}", basic.ca, basic.path_len_constraint)
            }
            ParsedExtension::SubjectKeyIdentifier(id) => format!("subject id{critical} of {} bytes", id.0.len()),
            ParsedExtension::AuthorityKeyIdentifier(id) => {
                format!(
                    "authority id{critical} of {} bytes",
                    id.key_identifier.as_ref().unwrap().0.len()
                )
            }
            other => format!("{other:?}"),
        });
    }
    lines
}

fn field(bundle: &Value, name: &str, field: &str) -> String {
    let encoded = bundle["certs"][name][field].as_str().unwrap();
    String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
}

fn as_json(secrets: &Secrets) -> Value {
    serde_saphyr::from_str(&secrets.to_talosctl_yaml()).unwrap()
}

#[test]
fn our_authorities_have_the_properties_of_the_real_ones() {
    let ours = as_json(&fresh(1));
    let theirs: Value = serde_saphyr::from_str(&raw("secrets.yaml")).unwrap();
    for name in ["os", "etcd", "k8s", "k8saggregator"] {
        assert_eq!(
            describe(&field(&ours, name, "crt")),
            describe(&field(&theirs, name, "crt")),
            "{name}"
        );
    }
}

#[test]
fn authorities_last_ten_years_from_the_given_second_and_sign_themselves() {
    let bundle = as_json(&fresh(2));
    for name in ["os", "etcd", "k8s", "k8saggregator"] {
        let pem = pem::parse(field(&bundle, name, "crt")).unwrap();
        let (_, cert) = X509Certificate::from_der(pem.contents()).unwrap();
        assert_eq!(cert.validity().not_before.timestamp(), now().as_second());
        assert_eq!(cert.validity().not_after.timestamp(), now().as_second() + 87_600 * 3600);
        assert!(verifies(&cert, cert.public_key()), "{name}");
        assert!(cert.raw_serial().len() <= 17 && cert.raw_serial().len() > 8, "{name}");
    }
}

fn verifies(cert: &X509Certificate<'_>, issuer: &x509_parser::x509::SubjectPublicKeyInfo<'_>) -> bool {
    let algorithm: &dyn ring::signature::VerificationAlgorithm =
        if cert.signature_algorithm.algorithm.to_id_string() == "1.3.101.112" {
            &ring::signature::ED25519
        } else {
            &ring::signature::ECDSA_P256_SHA256_ASN1
        };
    let key = ring::signature::UnparsedPublicKey::new(algorithm, &issuer.subject_public_key.data);
    key.verify(cert.tbs_certificate.as_ref(), &cert.signature_value.data).is_ok()
}

#[test]
fn keys_carry_the_labels_and_encodings_that_talos_dispatches_on() {
    let ours = as_json(&fresh(3));
    let theirs: Value = serde_saphyr::from_str(&raw("secrets.yaml")).unwrap();
    for name in ["os", "etcd", "k8s", "k8saggregator"] {
        let (ours, theirs) = (field(&ours, name, "key"), field(&theirs, name, "key"));
        let (our_block, their_block) = (pem::parse(&ours).unwrap(), pem::parse(&theirs).unwrap());
        assert_eq!(our_block.tag(), their_block.tag(), "{name}");
        assert_eq!(our_block.contents().len(), their_block.contents().len(), "{name}");
        assert!(ours.ends_with("-----\n"), "{name}");
    }
    assert_eq!(
        pem::parse(field(&ours, "os", "key")).unwrap().contents().len(),
        48,
        "PKCS#8 version 1"
    );
}

#[test]
fn a_bundle_is_a_function_of_its_seed_and_time() {
    assert_eq!(fresh(4).to_talosctl_yaml(), fresh(4).to_talosctl_yaml());
    assert_ne!(fresh(4).to_talosctl_yaml(), fresh(5).to_talosctl_yaml());
}

#[test]
fn the_real_bundle_is_written_back_byte_by_byte() {
    assert_eq!(*secrets().to_talosctl_yaml(), raw("secrets.yaml"));
}

#[test]
fn tokens_and_keys_have_upstreams_shape() {
    let bundle = as_json(&fresh(6));
    for token in [&bundle["secrets"]["bootstraptoken"], &bundle["trustdinfo"]["token"]] {
        let (id, secret) = token.as_str().unwrap().split_once('.').unwrap();
        assert_eq!((id.len(), secret.len()), (6, 16));
        assert!(
            format!("{id}{secret}")
                .bytes()
                .all(|byte| byte.is_ascii_digit() || byte.is_ascii_lowercase())
        );
    }
    assert_eq!(URL_SAFE.decode(bundle["cluster"]["id"].as_str().unwrap()).unwrap().len(), 32);
    assert_eq!(
        STANDARD.decode(bundle["cluster"]["secret"].as_str().unwrap()).unwrap().len(),
        32
    );
    assert_eq!(
        STANDARD
            .decode(bundle["secrets"]["secretboxencryptionsecret"].as_str().unwrap())
            .unwrap()
            .len(),
        32
    );
}

#[test]
fn an_rsa_service_account_key_is_4096_bits_of_pkcs1() {
    let key = ServiceAccountKey::rsa4096(&mut rng(7)).unwrap();
    let secrets = Secrets::generate(&mut rng(7), now(), Contract::new(1, 13), key).unwrap();
    let pem = pem::parse(field(&as_json(&secrets), "k8sserviceaccount", "key")).unwrap();
    assert_eq!(pem.tag(), "RSA PRIVATE KEY");
    assert!((2340..=2360).contains(&pem.contents().len()), "{}", pem.contents().len());
    Secrets::from_talosctl_yaml(&secrets.to_talosctl_yaml()).unwrap();
}

fn admin() -> BTreeSet<TalosRole> {
    BTreeSet::from([TalosRole::Admin])
}

fn check_leaf(identity: &ClientIdentity, ca: &str, expected: &str) {
    let mut theirs = describe(&raw(expected));
    let ours = describe(&identity.certificate);
    theirs.retain(|line| !line.starts_with("issuer"));
    assert!(
        theirs.iter().all(|line| ours.contains(line)),
        "{ours:#?} lacks something of {theirs:#?}"
    );
    let (ca_pem, leaf_pem) = (pem::parse(ca).unwrap(), pem::parse(&identity.certificate).unwrap());
    let (_, ca) = X509Certificate::from_der(ca_pem.contents()).unwrap();
    let (_, leaf) = X509Certificate::from_der(leaf_pem.contents()).unwrap();
    assert!(verifies(&leaf, ca.public_key()));
    assert_eq!(leaf.issuer().as_raw(), ca.subject().as_raw());
    assert_eq!(leaf.validity().not_before.timestamp(), now().as_second() - 300);
    assert_eq!(leaf.validity().not_after.timestamp(), now().as_second() + 8760 * 3600);
    assert_eq!(identity.expires.as_second(), leaf.validity().not_after.timestamp());
}

#[test]
fn client_certificates_have_the_properties_of_the_real_ones() {
    let secrets = fresh(8);
    let talos = talos_identity(&secrets, &admin(), DEFAULT_LIFETIME, now(), &mut rng(9)).unwrap();
    check_leaf(&talos, secrets.os_ca(), "certs/talosconfig.crt");
    let kubernetes = kubernetes_admin(&secrets, DEFAULT_LIFETIME, now(), &mut rng(9)).unwrap();
    check_leaf(&kubernetes, secrets.kubernetes_ca(), "certs/kubeadmin.crt");
}

#[test]
fn several_roles_share_one_sorted_set() {
    let roles = BTreeSet::from([TalosRole::Reader, TalosRole::EtcdBackup, TalosRole::Operator]);
    let identity = talos_identity(&fresh(10), &roles, DEFAULT_LIFETIME, now(), &mut rng(10)).unwrap();
    let pem = pem::parse(&identity.certificate).unwrap();
    let (_, cert) = X509Certificate::from_der(pem.contents()).unwrap();
    let organizations: BTreeSet<&str> = cert
        .subject()
        .iter_organization()
        .map(|name| name.as_str().unwrap())
        .collect();
    assert_eq!(organizations, BTreeSet::from(["os:etcd:backup", "os:operator", "os:reader"]));
    assert_eq!(cert.subject().iter_rdn().count(), 1);
}

#[test]
fn a_key_of_another_authority_is_noticed() {
    let text = raw("secrets.yaml");
    let value = |text: &str, name: &str| {
        let bundle: Value = serde_saphyr::from_str(text).unwrap();
        bundle["certs"][name]["key"].as_str().unwrap().to_owned()
    };
    let swapped = text.replace(&value(&text, "etcd"), &value(&text, "k8s"));
    let error = Secrets::from_talosctl_yaml(&swapped).unwrap_err();
    assert_eq!(
        error.problems,
        ["certs.etcd is invalid: the key does not belong to the certificate"]
    );
}

#[test]
fn what_is_missing_is_named_all_at_once_in_upstreams_words() {
    let error = Secrets::from_talosctl_yaml("cluster: {secret: x}\nsecrets: {}\n").unwrap_err();
    let expected = [
        "cluster.id is required",
        "secrets.bootstraptoken is required",
        "one of [secrets.secretboxencryptionsecret, secrets.aescbcencryptionsecret] is required",
        "trustdinfo is required",
        "certs is required",
    ];
    assert_eq!(error.problems, expected);
}

#[test]
fn a_truncated_file_is_an_error_and_never_a_bundle() {
    let text = raw("secrets.yaml");
    for length in (0..text.len() - 2).step_by(97) {
        assert!(
            Secrets::from_talosctl_yaml(&text[..length]).is_err(),
            "the first {length} bytes were accepted"
        );
    }
}

#[test]
fn both_ways_of_encrypting_etcd_at_once_are_refused() {
    let text = raw("secrets.yaml").replace("    secretboxenc", "    aescbcencryptionsecret: eA==\n    secretboxenc");
    let error = Secrets::from_talosctl_yaml(&text).unwrap_err();
    let expected = "only one of [secrets.secretboxencryptionsecret, secrets.aescbcencryptionsecret] is allowed";
    assert_eq!(error.problems, [expected]);
}

fn talosconfig(secrets: &Secrets, context: &str) -> Talosconfig {
    let endpoints = ["10.0.0.11".to_owned()];
    Talosconfig::mint(
        secrets,
        context,
        &admin(),
        &endpoints,
        &[],
        DEFAULT_LIFETIME,
        now(),
        &mut rng(11),
    )
    .unwrap()
}

#[test]
fn a_talosconfig_has_the_real_layout_and_tells_its_expiry() {
    let config = talosconfig(&fresh(12), "demo");
    let root: Value = serde_saphyr::from_str(&config.to_yaml()).unwrap();
    assert_eq!(root["context"], "demo");
    let keys: Vec<&String> = root["contexts"]["demo"].as_object().unwrap().keys().collect();
    assert_eq!(keys, ["endpoints", "ca", "crt", "key"]);
    assert_eq!(config.expires("demo"), Some(now() + SignedDuration::from_hours(8760)));
    assert_eq!(config.expires("other"), None);
}

#[test]
fn merging_keeps_what_a_talosconfig_held_before() {
    let text = "context: old\ncontexts:\n    old:\n        endpoints: [1.2.3.4]\n        unknown: kept\nextra: 1\n";
    let mut merged = Talosconfig::parse(text).unwrap();
    merged.merge(&talosconfig(&fresh(13), "demo"));
    let root: Value = serde_saphyr::from_str(&merged.to_yaml()).unwrap();
    assert_eq!(root["contexts"]["old"]["unknown"], "kept");
    assert_eq!(root["extra"], 1);
    assert_eq!(merged.current_context(), Some("demo"));
    assert_eq!(merged.contexts().collect::<Vec<_>>(), ["old", "demo"]);
}

fn kubeconfig(secrets: &Secrets) -> Kubeconfig {
    let endpoint = "https://10.0.0.10:6443".parse().unwrap();
    Kubeconfig::mint(secrets, "demo", &endpoint, DEFAULT_LIFETIME, now(), &mut rng(14)).unwrap()
}

#[test]
fn a_kubeconfig_has_the_names_that_talos_gives() {
    let config = kubeconfig(&fresh(15));
    let root: Value = serde_saphyr::from_str(&config.to_yaml()).unwrap();
    assert_eq!(root["current-context"], "admin@demo");
    assert_eq!(root["clusters"][0]["name"], "demo");
    assert_eq!(root["clusters"][0]["cluster"]["server"], "https://10.0.0.10:6443");
    assert_eq!(root["contexts"][0]["context"]["namespace"], "default");
    assert_eq!(config.expires("admin@demo"), Some(now() + SignedDuration::from_hours(8760)));
}

#[test]
fn merging_a_kubeconfig_twice_changes_nothing_more_and_keeps_strangers() {
    let text = "apiVersion: v1\nkind: Config\npreferences: {x: 1}\nusers:\n- name: bob\n  user: {exec: {command: login}}\n";
    let mut merged = Kubeconfig::parse(text).unwrap();
    merged.merge(&kubeconfig(&fresh(16)));
    let once = merged.to_yaml();
    merged.merge(&kubeconfig(&fresh(16)));
    assert_eq!(merged.to_yaml(), once);
    assert_eq!(merged.users().collect::<Vec<_>>(), ["bob", "admin@demo"]);
    let root: Value = serde_saphyr::from_str(&once).unwrap();
    assert_eq!(root["preferences"]["x"], 1);
    assert_eq!(root["users"][0]["user"]["exec"]["command"], "login");
}

#[test]
fn files_that_are_something_else_are_not_overwritten_by_a_merge() {
    assert!(Kubeconfig::parse("users: {a: b}").is_err());
    assert!(Talosconfig::parse("- a\n").is_err());
    assert!(Talosconfig::parse("").is_ok());
}
