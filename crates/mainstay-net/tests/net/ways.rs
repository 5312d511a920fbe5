//! TLS 1.3 with HTTP/1.1, HTTP/2 and gRPC over each way.

use std::sync::Arc;

use mainstay_net::{Binder, Dialer, Entropy, Loopback, ServeOptions, SimNet, Tcp, simulate};

use crate::jump::{Site, openssh};
use crate::world::{HOUR, Pki, client, connector, get_from, http1_client, shout, start, text};

/// All protocols, once with a server certificate alone and once with client certificates too.
async fn speak_everything(network: &dyn Binder, dialer: Arc<dyn Dialer>, host: &str) {
    let pki = Pki::new();
    let server = pki.leaf(&[host]);
    let one_sided = start(network, &format!("{host}:0"), ServeOptions::tls(server.server())).await;
    let answer = get_from(&http1_client(&dialer, &pki.trust()), one_sided).await.unwrap();
    assert!(
        text(&answer).starts_with("HTTP/1.1 from ") && text(&answer).ends_with(" with 0 certificates"),
        "{answer:?}"
    );
    let answer = get_from(&client(&dialer, &pki.trust()), one_sided).await.unwrap();
    assert!(text(&answer).starts_with("HTTP/2.0 from "), "{answer:?}");
    let heard = shout(connector(&dialer, &pki.trust()), one_sided, "settled").await.unwrap();
    assert_eq!(heard, "SETTLED with 0 certificates");

    let trust = pki.trust_as(&pki.leaf(&["operator"]));
    let mutual = start(
        network,
        &format!("{host}:0"),
        ServeOptions::tls(server.mutual_server(&pki.ca_pem())),
    )
    .await;
    let answer = get_from(&http1_client(&dialer, &trust), mutual).await.unwrap();
    assert!(text(&answer).ends_with("with 1 certificates"), "{answer:?}");
    let heard = shout(connector(&dialer, &trust), mutual, "held").await.unwrap();
    assert_eq!(heard, "HELD with 1 certificates");
}

#[test]
fn everything_is_spoken_in_memory() {
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        speak_everything(&net, Arc::new(net.clone()), "10.0.0.1").await;
    });
    run.unwrap();
}

#[tokio::test]
async fn everything_is_spoken_over_loopback_tcp() {
    speak_everything(&Loopback, Arc::new(Tcp), "127.0.0.1").await;
}

#[test]
fn everything_is_spoken_through_a_simulated_jump_host() {
    let run = simulate(1, HOUR, |entropy| async move {
        let site = Site::start(&entropy).await;
        speak_everything(&site.net, Arc::new(site.jump()), "10.10.0.11").await;
    });
    run.unwrap();
}

#[tokio::test]
async fn everything_is_spoken_through_a_simulated_jump_host_on_loopback() {
    let (jump, _sshd) = crate::jump::loopback_site(&Entropy::from_seed(1)).await;
    speak_everything(&Loopback, Arc::new(jump), "127.10.0.11").await;
}

#[tokio::test]
async fn everything_is_spoken_through_openssh() {
    let Some(sshd) = openssh::start().await else { return };
    speak_everything(&Loopback, Arc::new(sshd.jump()), "127.0.0.1").await;
}
