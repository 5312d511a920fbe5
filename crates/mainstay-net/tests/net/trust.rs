//! Whom the connector believes, and what it says when it does not.

use std::sync::Arc;

use mainstay_net::{
    Connector, DialError, DialFault, Dialer, Fingerprint, Identity, Operation, Secret, ServeOptions, SimNet, Target, Trust,
    TrustError, presented_chain, presented_fingerprint, simulate,
};

use rustls::ServerConfig;

use crate::world::{HOUR, Leaf, Pki, SECOND, client, connector, get_from, http1_client, ip, start, text, wall};

/// Runs a test against a server at 10.0.0.1:8006 with this certificate.
fn against<T: Send>(server: &Leaf, test: impl AsyncFnOnce(Arc<dyn Dialer>) -> T + Send) -> T {
    against_config(server.server(), test)
}

fn against_config<T: Send>(config: Arc<ServerConfig>, test: impl AsyncFnOnce(Arc<dyn Dialer>) -> T + Send) -> T {
    let run = simulate(2, HOUR * 24 * 400, |entropy| async move {
        let net = SimNet::new(entropy);
        start(&net, "10.0.0.1:8006", ServeOptions::tls(config)).await;
        test(Arc::new(net)).await
    });
    run.unwrap()
}

fn to() -> Target {
    Target::new("10.0.0.1", 8006)
}

fn fault_of(server: &Leaf, trust: &Trust) -> DialError {
    against(server, async |dialer| {
        connector(&dialer, trust)
            .connect(&to())
            .await
            .err()
            .expect("the handshake fails")
    })
}

#[test]
fn the_pinned_certificate_is_believed_and_no_other() {
    let pki = Pki::new();
    let (server, other) = (pki.leaf(&["whatever.lan"]), pki.leaf(&["10.0.0.1"]));
    against(&server, async |dialer| {
        let pinned = Trust::Pin(server.fingerprint());
        get_from(&client(&dialer, &pinned), "10.0.0.1:8006".parse().unwrap())
            .await
            .unwrap();
    });
    let error = fault_of(&server, &Trust::Pin(other.fingerprint()));
    let DialFault::WrongPin { expected, seen } = error.fault() else {
        panic!("{error:?}")
    };
    assert_eq!((*expected, *seen), (other.fingerprint(), server.fingerprint()));
    assert_eq!(*error.operation(), Operation::TlsHandshake);
    assert_eq!(*error.target(), to());
    assert!(error.remedy().unwrap().contains("mainstay trust"));
    assert!(!error.is_transient());
}

/// Who copies a certificate but has not its key must fail, pin or no pin.
#[test]
fn a_copied_certificate_without_its_key_is_refused() {
    let pki = Pki::new();
    let (server, thief) = (pki.leaf(&["10.0.0.1"]), pki.leaf(&["10.0.0.1"]));
    for trust in [Trust::Pin(server.fingerprint()), Trust::Nothing, pki.trust()] {
        let error = against_config(server.impostor(&thief), async |dialer| {
            connector(&dialer, &trust)
                .connect(&to())
                .await
                .err()
                .expect("the handshake fails")
        });
        assert!(matches!(error.fault(), DialFault::Tls(_)), "{error:?}");
    }
}

#[test]
fn an_expired_certificate_says_since_when() {
    let pki = Pki::new();
    let server = pki.leaf(&["10.0.0.1"]);
    let (before, after) = against(&server, async |dialer| {
        let connector = connector(&dialer, &pki.trust());
        let before = connector.connect(&to()).await.map(drop);
        // The wall clock follows virtual time: a year passes.
        tokio::time::sleep(HOUR * 24 * 366).await;
        (before, connector.connect(&to()).await.map(drop))
    });
    before.unwrap();
    let error = after.unwrap_err();
    assert!(
        matches!(error.fault(), DialFault::Expired { seen, .. } if *seen == server.fingerprint()),
        "{error:?}"
    );
    assert_eq!(
        error.to_string(),
        "TLS handshake with 10.0.0.1:8006: the certificate expired at 2028-01-01T00:00:00Z"
    );
    assert!(error.remedy().unwrap().contains("renew"));
}

#[test]
fn a_certificate_from_the_future_is_not_valid_yet() {
    let pki = Pki::new();
    let server = pki.leaf(&["10.0.0.1"]);
    let error = against(&server, async |dialer| {
        let past = mainstay_net::Wall::at("2025-06-01T00:00:00Z".parse().unwrap());
        Connector::new(dialer, &pki.trust(), past, SECOND)
            .unwrap()
            .connect(&to())
            .await
            .err()
            .unwrap()
    });
    assert!(
        matches!(error.fault(), DialFault::NotYetValid { until: Some(_), .. }),
        "{error:?}"
    );
}

#[test]
fn an_unknown_authority_shows_the_fingerprint_to_compare() {
    let server = Pki::named("one").leaf(&["10.0.0.1"]);
    // The second has the same name as the right one, and another key.
    for stranger in [Pki::named("two"), Pki::named("one")] {
        let error = fault_of(&server, &stranger.trust());
        assert!(
            matches!(error.fault(), DialFault::UnknownIssuer { seen } if *seen == server.fingerprint()),
            "{error:?}"
        );
        assert!(error.remedy().unwrap().contains(&server.fingerprint().to_string()));
    }
}

#[test]
fn a_certificate_for_another_name_lists_its_names() {
    let pki = Pki::new();
    let server = pki.leaf(&["pve.lan", "10.0.0.9"]);
    let error = fault_of(&server, &pki.trust());
    let DialFault::WrongName { presented, .. } = error.fault() else {
        panic!("{error:?}")
    };
    assert!(presented.iter().any(|name| name.contains("pve.lan")), "{presented:?}");
}

#[test]
fn the_expected_name_can_differ_from_the_dialled_one() {
    let pki = Pki::new();
    let server = pki.leaf(&["kubernetes"]);
    let trust = |name: &str| Trust::Ca {
        ca_pem: pki.ca_pem(),
        identity: None,
        server_name: Some(name.into()),
    };
    against(&server, async |dialer| {
        connector(&dialer, &trust("kubernetes"))
            .connect(&to())
            .await
            .map(drop)
            .unwrap();
        let error = connector(&dialer, &trust("other")).connect(&to()).await.err().unwrap();
        assert!(matches!(error.fault(), DialFault::WrongName { .. }), "{error:?}");
    });
    assert!(matches!(new(&trust("not a name")), TrustError::ServerName(_)));
}

fn new(trust: &Trust) -> TrustError {
    let net = || -> Arc<dyn Dialer> { Arc::new(SimNet::new(mainstay_net::Entropy::from_seed(1))) };
    Connector::new(net(), trust, wall(), SECOND)
        .err()
        .expect("the trust is not usable")
}

#[test]
fn an_extra_authority_is_believed_next_to_the_systems() {
    let pki = Pki::new();
    let server = pki.leaf(&["10.0.0.1"]);
    against(&server, async |dialer| {
        let trust = Trust::Roots {
            extra_ca_pem: Some(pki.ca_pem()),
        };
        connector(&dialer, &trust).connect(&to()).await.map(drop).unwrap();
    });
}

#[test]
fn what_a_server_presents_can_be_shown_before_it_is_believed() {
    let server = Pki::new().leaf(&["pve.lan"]);
    let (chain, print) = against(&server, async |dialer| {
        let chain = presented_chain(Arc::clone(&dialer), &to(), wall(), SECOND).await.unwrap();
        (chain, presented_fingerprint(dialer, &to(), wall(), SECOND).await.unwrap())
    });
    assert_eq!(chain, std::slice::from_ref(&server.certificate));
    assert_eq!(print, server.fingerprint());
}

#[test]
fn a_server_without_tls_is_recognised() {
    let run = simulate(2, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let at = start(&net, "10.0.0.1:80", ServeOptions::plain()).await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        connector(&dialer, &Trust::Nothing).connect(&at.into()).await.err().unwrap()
    });
    let error = run.unwrap();
    assert!(matches!(error.fault(), DialFault::NotTls), "{error:?}");
    assert!(error.remedy().unwrap().contains("HTTPS port"));
}

#[test]
fn dial_and_handshake_share_one_deadline() {
    let run = simulate(2, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        // Accepts and then says nothing: the handshake can only wait.
        let mut listener = mainstay_net::Binder::bind(&net, "10.0.0.1:8006".parse().unwrap())
            .await
            .unwrap();
        let silent = tokio::spawn(async move { listener.accept().await.map(|held| (held, std::future::pending::<()>())) });
        net.set_faults_towards(ip("10.0.0.1"), Some(mainstay_net::NetFaults::latency(SECOND..=SECOND)));
        let dialer: Arc<dyn Dialer> = Arc::new(net.clone());
        let begun = tokio::time::Instant::now();
        let error = connector(&dialer, &Trust::Nothing).connect(&to()).await.err().unwrap();
        silent.abort();
        (error, begun.elapsed())
    });
    let (error, took) = run.unwrap();
    assert_eq!(error.to_string(), "TLS handshake with 10.0.0.1:8006: no answer within 5s");
    assert_eq!(took, SECOND * 5);
}

#[test]
fn client_keys_of_every_label_are_read() {
    let pki = Pki::new();
    let server = pki.leaf(&["10.0.0.1"]);
    let pairs = [
        (
            include_str!("../data/ed25519.crt"),
            include_str!("../data/ed25519.key"),
            "BEGIN ED25519 PRIVATE KEY",
        ),
        (
            include_str!("../data/ec.crt"),
            include_str!("../data/ec.key"),
            "BEGIN EC PRIVATE KEY",
        ),
        (
            include_str!("../data/rsa.crt"),
            include_str!("../data/rsa.key"),
            "BEGIN RSA PRIVATE KEY",
        ),
        (
            include_str!("../data/pkcs8.crt"),
            include_str!("../data/pkcs8.key"),
            "BEGIN PRIVATE KEY",
        ),
    ];
    let config = server.mutual_server(include_str!("../data/client-ca.crt"));
    let run = simulate(2, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let at = start(&net, "10.0.0.1:50000", ServeOptions::tls(config)).await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        for (cert, key, label) in pairs {
            assert!(key.contains(label));
            let identity = Identity {
                cert_pem: cert.into(),
                key_pem: Secret::from(key),
            };
            let trust = Trust::Ca {
                ca_pem: pki.ca_pem(),
                identity: Some(identity),
                server_name: None,
            };
            let answer = get_from(&http1_client(&dialer, &trust), at).await.unwrap();
            assert!(text(&answer).ends_with("with 1 certificates"), "{label}: {answer:?}");
        }
    });
    run.unwrap();
}

#[test]
fn a_missing_or_foreign_client_certificate_is_turned_away() {
    let pki = Pki::new();
    let server = pki.leaf(&["10.0.0.1"]);
    let strangers = [Pki::new().leaf(&["stranger"]), Pki::named("other").leaf(&["stranger"])];
    let config = server.mutual_server(&pki.ca_pem());
    let run = simulate(2, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let at = start(&net, "10.0.0.1:50000", ServeOptions::tls(config)).await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        let mut errors = Vec::new();
        for trust in [pki.trust(), pki.trust_as(&strangers[0]), pki.trust_as(&strangers[1])] {
            errors.push(get_from(&http1_client(&dialer, &trust), at).await.unwrap_err());
        }
        errors
    });
    for error in run.unwrap() {
        assert!(error.remedy().is_some_and(|text| text.contains("secrets file")), "{error:?}");
        assert_eq!(error.outcome(), mainstay_net::http::RequestOutcome::NotSent);
    }
}

#[test]
fn unusable_pem_says_what_it_is_and_never_quotes_it() {
    let ca = |ca_pem: &str| Trust::Ca {
        ca_pem: ca_pem.into(),
        identity: None,
        server_name: None,
    };
    assert_eq!(new(&ca("")).to_string(), "the CA certificate cannot be read");
    assert_eq!(
        new(&ca("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")).to_string(),
        "the CA certificate is not usable"
    );
    let leaf = Pki::new().leaf(&["x"]);
    let broken = leaf.key_pem.replace("-----END", "----END");
    let identity = Identity {
        cert_pem: leaf.cert_pem.clone(),
        key_pem: Secret::new(broken.clone()),
    };
    let trust = Trust::Ca {
        ca_pem: leaf.cert_pem.clone(),
        identity: Some(identity),
        server_name: None,
    };
    let error = new(&trust);
    assert_eq!(error.to_string(), "the client key cannot be read");
    let secret = broken.lines().nth(1).unwrap();
    assert!(!format!("{error:?} {trust:?}").contains(secret));
}

#[test]
fn a_fingerprint_is_what_openssl_prints() {
    let certificate = mainstay_net::pem::certificates(include_str!("../data/ec.crt"))
        .unwrap()
        .remove(0);
    let printed = Fingerprint::of(&certificate).to_string();
    assert_eq!(printed, include_str!("../data/ec.sha256").trim());
}
