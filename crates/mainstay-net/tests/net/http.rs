//! The HTTP client: lengths, limits, deadlines, and what is known about a request that got no answer.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::body::Bytes;
use axum::routing::{get, post};
use futures::stream;
use http::Request;
use mainstay_net::http::{Body, HttpClient, HttpError, HttpOptions, HttpResponse, RequestOutcome, Unsent};
use mainstay_net::{Binder, DialFault, Dialer, HangUp, NetFaults, ServeOptions, SimNet, Trust, simulate};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::world::{HOUR, SECOND, client, connector, get_url, http1_client, ip, start, start_app, text};

const URL: &str = "http://10.0.0.1/";

fn in_world<T: Send>(test: impl AsyncFnOnce(SimNet, HttpClient) -> T + Send) -> T {
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let dialer: Arc<dyn Dialer> = Arc::new(net.clone());
        test(net, http1_client(&dialer, &Trust::Plain)).await
    });
    run.unwrap()
}

async fn post_body(client: &HttpClient, body: Body) -> Result<HttpResponse, HttpError> {
    client
        .send(Request::post("http://10.0.0.1/len").body(body).unwrap(), SECOND * 10)
        .await
}

fn chunks(count: usize) -> impl futures::Stream<Item = io::Result<Bytes>> + Send + 'static {
    stream::iter((0..count).map(|_| Ok(Bytes::from(vec![7; 1000]))))
}

#[test]
fn bodies_carry_their_exact_length_and_are_never_chunked() {
    in_world(async |net: SimNet, client: HttpClient| {
        start(&net, "10.0.0.1:80", ServeOptions::plain()).await;
        let of = async |body: Body| text(&post_body(&client, body).await.unwrap());
        assert_eq!(of(Body::empty()).await, "content-length 0, transfer-encoding none, got 0");
        assert_eq!(of(Body::from("abc")).await, "content-length 3, transfer-encoding none, got 3");
        assert_eq!(
            of(Body::stream(5000, chunks(5))).await,
            "content-length 5000, transfer-encoding none, got 5000"
        );
        for wrong in [Body::stream(4999, chunks(5)), Body::stream(5001, chunks(5))] {
            let error = post_body(&client, wrong).await.unwrap_err();
            assert!(!matches!(error.outcome(), RequestOutcome::Answered(_)), "{error:?}");
            assert!(format!("{error:?}").contains("the body"), "{error:?}");
        }
    });
}

#[test]
fn connections_are_reused_until_they_have_been_idle() {
    in_world(async |net: SimNet, client: HttpClient| {
        start(&net, "10.0.0.1:80", ServeOptions::plain()).await;
        for _ in 0..3 {
            get_url(&client, URL).await.unwrap();
        }
        assert_eq!(net.open_connections(), 1);
        tokio::time::sleep(SECOND * 10).await;
        assert_eq!(net.open_connections(), 0);
    });
}

#[test]
fn an_answer_longer_than_the_limit_is_refused() {
    let error = in_world(async |net: SimNet, _| {
        let app = axum::Router::new().route("/", get(|| async { vec![b'x'; 2000] }));
        start_app(&net, "10.0.0.1:80", app, ServeOptions::plain()).await;
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        let client = HttpClient::new(
            connector(&dialer, &Trust::Plain),
            HttpOptions {
                max_body: 1999,
                ..HttpOptions::default()
            },
        );
        get_url(&client, URL).await.unwrap_err()
    });
    assert!(matches!(error, HttpError::TooLong { limit: 1999, .. }), "{error:?}");
    assert!(matches!(error.outcome(), RequestOutcome::Answered(status) if status == 200));
}

#[test]
fn a_body_can_be_read_while_it_arrives() {
    in_world(async |net: SimNet, client: HttpClient| {
        let app = axum::Router::new().route("/", get(|| async { axum::body::Body::from_stream(chunks(3)) }));
        start_app(&net, "10.0.0.1:80", app, ServeOptions::plain()).await;
        let request = Request::get(URL).body(Body::empty()).unwrap();
        let opened = client.open(request, SECOND).await.unwrap();
        assert_eq!((opened.status.as_u16(), opened.reason.as_str()), (200, "OK"));
        let whole = axum::body::to_bytes(axum::body::Body::new(opened.body), 10_000)
            .await
            .unwrap();
        assert_eq!(whole.len(), 3000);
    });
}

#[test]
fn a_refused_connection_is_certainly_not_sent() {
    let error = in_world(async |net: SimNet, client: HttpClient| {
        net.attach(ip("10.0.0.1"));
        post_body(&client, Body::from("x")).await.unwrap_err()
    });
    assert_eq!(error.outcome(), RequestOutcome::NotSent);
    assert!(matches!(error.dial().unwrap().fault(), DialFault::Refused));
    assert_eq!(error.to_string(), "POST http://10.0.0.1:80/len was not sent");
    assert!(error.remedy().is_some());
}

#[test]
fn a_deadline_during_the_dial_is_certainly_not_sent() {
    let error = in_world(async |net: SimNet, client: HttpClient| {
        net.black_hole(ip("10.0.0.1"));
        let request = Request::post(URL).body(Body::empty()).unwrap();
        client.send(request, SECOND * 2).await.unwrap_err()
    });
    assert!(
        matches!(
            error,
            HttpError::NotSent {
                cause: Unsent::Deadline(_),
                ..
            }
        ),
        "{error:?}"
    );
}

#[test]
fn a_deadline_after_the_request_left_is_unknown() {
    let (error, took, seen) = in_world(async |net: SimNet, client: HttpClient| {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        let slow = post(async move || {
            counted.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(SECOND * 60).await;
        });
        start_app(
            &net,
            "10.0.0.1:80",
            axum::Router::new().route("/len", slow),
            ServeOptions::plain(),
        )
        .await;
        let begun = tokio::time::Instant::now();
        let error = post_body(&client, Body::from("x")).await.unwrap_err();
        (error, begun.elapsed(), seen.load(Ordering::Relaxed))
    });
    assert!(matches!(error, HttpError::NoAnswer { .. }), "{error:?}");
    assert_eq!((error.outcome(), took, seen), (RequestOutcome::Unknown, SECOND * 10, 1));
}

#[test]
fn a_reset_after_the_request_left_is_unknown() {
    let error = in_world(async |net: SimNet, client: HttpClient| {
        let killer = net.clone();
        let slow = post(async move || {
            killer.reset(ip("10.0.0.1"));
            tokio::time::sleep(SECOND * 60).await;
        });
        start_app(
            &net,
            "10.0.0.1:80",
            axum::Router::new().route("/len", slow),
            ServeOptions::plain(),
        )
        .await;
        post_body(&client, Body::from("x")).await.unwrap_err()
    });
    assert!(matches!(error, HttpError::Lost { .. }), "{error:?}");
    assert_eq!(error.outcome(), RequestOutcome::Unknown);
}

/// The server takes the request on a kept-alive connection and hangs up without an answer.
#[test]
fn a_reused_connection_that_took_the_request_is_unknown_and_not_repeated() {
    let (error, requests) = in_world(async |net: SimNet, client: HttpClient| {
        let mut listener = net.bind("10.0.0.1:80".parse().unwrap()).await.unwrap();
        let server = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
                .await
                .unwrap();
            let second = read_head(&mut stream).await;
            drop(stream);
            let repeated = tokio::time::timeout(SECOND * 5, listener.accept()).await.is_ok();
            (second, repeated)
        });
        get_url(&client, URL).await.unwrap();
        tokio::time::sleep(SECOND).await;
        let error = post_body(&client, Body::from("x")).await.unwrap_err();
        (error, server.await.unwrap())
    });
    assert_eq!(error.outcome(), RequestOutcome::Unknown, "{error:?}");
    assert!(requests.0.starts_with("POST /len"));
    assert!(!requests.1, "the request was sent twice");
}

/// The server closes an idle connection: requests go over a new one, whenever the close is noticed.
#[test]
fn a_closed_idle_connection_costs_no_request() {
    for wait in [0u64, 1, 2, 5, 10] {
        let counts = in_world(async |net: SimNet, client: HttpClient| {
            net.set_faults(NetFaults::latency(Duration::from_millis(5)..=Duration::from_millis(5)));
            let options = ServeOptions {
                idle: Some(Duration::from_millis(100)),
                ..ServeOptions::plain()
            };
            start(&net, "10.0.0.1:80", options).await;
            get_url(&client, URL).await.unwrap();
            // Around the instant at which the close arrives.
            tokio::time::sleep(Duration::from_millis(95 + wait)).await;
            let second = get_url(&client, URL).await;
            // Either it worked, or it is honest about what it knows.
            second.map(|_| ()).map_err(|error| error.outcome())
        });
        assert!(matches!(counts, Ok(()) | Err(RequestOutcome::Unknown)), "{wait}: {counts:?}");
        if wait == 0 || wait == 10 {
            assert_eq!(counts, Ok(()), "{wait}");
        }
    }
}

/// The connection breaks while it is idle, unnoticed until the request wants to use it.
#[test]
fn a_request_that_found_its_connection_broken_goes_over_a_new_one_once() {
    in_world(async |net: SimNet, client: HttpClient| {
        let seen = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&seen);
        let count = post(async move || counted.fetch_add(1, Ordering::Relaxed).to_string());
        start_app(
            &net,
            "10.0.0.1:80",
            axum::Router::new().route("/len", count),
            ServeOptions::plain(),
        )
        .await;
        post_body(&client, Body::from("x")).await.unwrap();
        tokio::time::sleep(SECOND).await;
        net.reset(ip("10.0.0.1"));
        post_body(&client, Body::from("x")).await.unwrap();
        assert_eq!(seen.load(Ordering::Relaxed), 2);
        tokio::time::sleep(SECOND).await;
        net.reset(ip("10.0.0.1"));
        // A stream cannot be sent twice: its owner decides.
        let error = post_body(&client, Body::stream(1000, chunks(1))).await.unwrap_err();
        assert!(
            matches!(
                error,
                HttpError::NotSent {
                    cause: Unsent::Broken(_),
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(seen.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_handler_that_hangs_up_leaves_the_outcome_unknown() {
    let error = in_world(async |net: SimNet, client: HttpClient| {
        let lost = post(async || axum::Extension(HangUp));
        start_app(
            &net,
            "10.0.0.1:80",
            axum::Router::new().route("/len", lost),
            ServeOptions::plain(),
        )
        .await;
        post_body(&client, Body::from("x")).await.unwrap_err()
    });
    assert!(matches!(error, HttpError::Lost { .. }), "{error:?}");
}

async fn read_head(stream: &mut (impl AsyncReadExt + Unpin)) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn an_answer_that_breaks_off_keeps_its_status() {
    let error = in_world(async |net: SimNet, client: HttpClient| {
        let mut listener = net.bind("10.0.0.1:80".parse().unwrap()).await.unwrap();
        tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            read_head(&mut stream).await;
            stream
                .write_all(b"HTTP/1.1 500 got timeout\r\ncontent-length: 20\r\n\r\nhalf")
                .await
                .unwrap();
        });
        get_url(&client, URL).await.unwrap_err()
    });
    assert!(matches!(error, HttpError::Cut { .. }), "{error:?}");
    assert!(matches!(error.outcome(), RequestOutcome::Answered(status) if status == 500));
}

#[test]
fn nothing_secret_of_a_url_is_printed() {
    let error = in_world(async |_, client: HttpClient| {
        get_url(&client, "http://user:hunter2@10.0.0.1/api?password=hunter2")
            .await
            .unwrap_err()
    });
    let mut printed = format!("{error} {error:?}");
    let mut cause = std::error::Error::source(&error);
    while let Some(at) = cause {
        printed += &format!(" {at} {at:?}");
        cause = at.source();
    }
    assert!(!printed.contains("hunter2"), "{printed}");
}

#[test]
fn a_url_without_a_host_is_an_error_and_no_panic() {
    in_world(async |_, client: HttpClient| {
        let error = client
            .send(Request::get("/relative").body(Body::empty()).unwrap(), SECOND)
            .await
            .unwrap_err();
        assert_eq!(error.outcome(), RequestOutcome::NotSent, "{error:?}");
    });
}

#[test]
fn many_requests_at_once_share_one_http2_connection() {
    let run = simulate(1, HOUR, |entropy| async move {
        let net = SimNet::new(entropy);
        let pki = crate::world::Pki::new();
        let server = pki.leaf(&["10.0.0.1"]);
        start(&net, "10.0.0.1:443", ServeOptions::tls(server.server())).await;
        let dialer: Arc<dyn Dialer> = Arc::new(net.clone());
        let client = client(&dialer, &pki.trust());
        get_url(&client, "https://10.0.0.1/").await.unwrap();
        let all = (0..50).map(|_| get_url(&client, "https://10.0.0.1/"));
        assert!(futures::future::join_all(all).await.iter().all(Result::is_ok));
        net.open_connections()
    });
    assert_eq!(run.unwrap(), 1);
}
