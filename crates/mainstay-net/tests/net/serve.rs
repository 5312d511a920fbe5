//! The accept loop.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::response::{IntoResponse, Response};
use axum::routing::get;
use mainstay_net::{Binder, DialFault};
use mainstay_net::{
    Dialer, HttpVersions, ServeOptions, ServerTls, SimNet, Target, Trust, dial_within, serve, set_reason, simulate,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{HOUR, Pki, SECOND, app, client, connector, get_url, http1_client, start, start_app, text};

async fn raw(dialer: &dyn Dialer, to: &str, request: &str) -> String {
    let to: Target = to.parse().unwrap();
    let mut stream = dial_within(dialer, &to, SECOND).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer
}

#[test]
fn a_reason_phrase_arrives_as_it_was_sent() {
    async fn denied() -> Response {
        let mut response = (http::StatusCode::FORBIDDEN, "{\"data\":null}").into_response();
        set_reason(&mut response, "Permission check failed\n(/vms/100, VM.Audit)");
        response
    }
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let app = axum::Router::new().route("/", get(denied));
        start_app(&net, "10.0.0.1:80", app, ServeOptions::plain().http1_only()).await;
        let wire = raw(&net, "10.0.0.1:80", "GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        (
            wire,
            get_url(&client(&dialer, &Trust::Plain), "http://10.0.0.1/").await.unwrap(),
        )
    });
    let (wire, answer) = run.unwrap();
    assert!(
        wire.starts_with("HTTP/1.1 403 Permission check failed (/vms/100, VM.Audit)\r\n"),
        "{wire}"
    );
    assert!(!wire.contains("date:"), "the real clock does not leak: {wire}");
    assert_eq!(
        (answer.status.as_u16(), answer.reason.as_str()),
        (403, "Permission check failed (/vms/100, VM.Audit)")
    );
}

#[test]
fn an_idle_connection_is_closed_by_the_server() {
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let options = ServeOptions {
            idle: Some(SECOND * 5),
            ..ServeOptions::plain().http1_only()
        };
        start(&net, "10.0.0.1:80", options).await;
        let begun = tokio::time::Instant::now();
        // Keep-alive: the server waits for a second request before it hangs up.
        let answer = raw(&net, "10.0.0.1:80", "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
        (answer, begun.elapsed())
    });
    let (answer, took) = run.unwrap();
    assert!(answer.ends_with("with 0 certificates"), "{answer}");
    assert_eq!(took, SECOND * 5);
}

#[test]
fn a_handler_can_hang_up_after_its_answer() {
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let app = axum::Router::new().route("/", get(|| async { ([("connection", "close")], "bye") }));
        start_app(&net, "10.0.0.1:80", app, ServeOptions::plain()).await;
        raw(&net, "10.0.0.1:80", "GET / HTTP/1.1\r\nhost: x\r\n\r\n").await
    });
    assert!(run.unwrap().ends_with("bye"));
}

#[test]
fn http1_only_offers_no_http2() {
    let pki = Pki::new();
    let server = pki.leaf(&["10.0.0.1"]);
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let mut config = (*server.server()).clone();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        start(&net, "10.0.0.1:443", ServeOptions::tls(Arc::new(config)).http1_only()).await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        let wire = connector(&dialer, &pki.trust())
            .connect(&Target::new("10.0.0.1", 443))
            .await
            .unwrap();
        let answer = get_url(&client(&dialer, &pki.trust()), "https://10.0.0.1/").await.unwrap();
        (wire.is_h2(), text(&answer))
    });
    let (h2, answer) = run.unwrap();
    assert!(!h2 && answer.starts_with("HTTP/1.1"), "{answer}");
}

#[test]
fn the_certificate_can_change_between_connections() {
    let pki = Pki::new();
    let configs = [pki.leaf(&["10.0.0.1"]).server(), pki.leaf(&["elsewhere.lan"]).server()];
    let count = Arc::new(AtomicUsize::new(0));
    let tls = ServerTls::PerConnection(Arc::new({
        let count = Arc::clone(&count);
        move || Arc::clone(&configs[count.fetch_add(1, Ordering::Relaxed).min(1)])
    }));
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        start(
            &net,
            "10.0.0.1:443",
            ServeOptions {
                tls: Some(tls),
                versions: HttpVersions::Auto,
                idle: None,
            },
        )
        .await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        let connector = connector(&dialer, &pki.trust());
        let to = Target::new("10.0.0.1", 443);
        (connector.connect(&to).await.map(drop), connector.connect(&to).await.map(drop))
    });
    let (first, second) = run.unwrap();
    first.unwrap();
    assert!(matches!(second.unwrap_err().fault(), DialFault::WrongName { .. }));
}

#[test]
fn dropping_the_server_drops_its_connections_and_frees_its_address() {
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let at = "10.0.0.1:80".parse().unwrap();
        let listener = net.bind(at).await.unwrap();
        let server = tokio::spawn(serve(listener, app(), ServeOptions::plain()));
        assert_eq!(net.bind(at).await.err().unwrap().kind(), std::io::ErrorKind::AddrInUse);
        let mut held = net.dial(&at.into()).await.unwrap();
        held.write_all(b"GET / HTTP/1.1\r\n").await.unwrap();
        server.abort();
        let mut left = Vec::new();
        held.read_to_end(&mut left).await.unwrap();
        assert!(left.is_empty());
        start(&net, "10.0.0.1:80", ServeOptions::plain()).await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        text(
            &get_url(&http1_client(&dialer, &Trust::Plain), "http://10.0.0.1/")
                .await
                .unwrap(),
        )
    });
    assert_eq!(run.unwrap(), "HTTP/1.1 from 192.0.2.1 with 0 certificates");
}
