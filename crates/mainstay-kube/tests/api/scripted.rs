//! An API server that answers by a script: one closure decides over every request.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use http_body_util::BodyExt;
use mainstay_kube::Cluster;
use mainstay_net::{Binder, Entropy, Env, ServeOptions, SimNet, Target, Trust, Wall, serve, simulate};
use serde_json::{Value, json};

const AT: &str = "10.0.0.12:6443";

/// A request as the server saw it.
#[derive(Clone, Debug)]
pub struct Call {
    pub method: String,
    pub path: String,
    pub query: String,
    pub content_type: String,
    pub body: Value,
}

#[derive(Clone, Default)]
pub struct Calls(Arc<Mutex<Vec<Call>>>);

impl Calls {
    /// The requests that are not discovery.
    pub fn all(&self) -> Vec<Call> {
        let calls = self.0.lock().unwrap().clone();
        calls.into_iter().filter(|call| !is_discovery(call)).collect()
    }

    pub fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

fn is_discovery(call: &Call) -> bool {
    call.path == "/apis" || call.path == "/api/v1" || (call.path.starts_with("/apis/") && call.path.split('/').count() == 4)
}

pub fn ok(body: Value) -> Response {
    axum::Json(body).into_response()
}

/// A Status as the API server writes it.
pub fn refused(code: u16, reason: &str, message: &str, details: Value) -> Response {
    let mut status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "code": code, "details": details});
    if !reason.is_empty() {
        status["reason"] = reason.into();
    }
    (StatusCode::from_u16(code).unwrap(), axum::Json(status)).into_response()
}

/// Lines of a watch that ends afterwards.
pub fn watch_lines(events: &[Value]) -> Response {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    lines.into_response()
}

/// Lines of a watch that stays open.
pub fn open_watch(events: &[Value]) -> Response {
    let lines: String = events.iter().map(|event| format!("{event}\n")).collect();
    let first = futures::stream::once(async move { Ok::<_, std::io::Error>(Bytes::from(lines)) });
    Body::from_stream(futures::StreamExt::chain(first, futures::stream::pending())).into_response()
}

/// Runs a test against a server whose answers `script` gives.
pub fn run<F: Future<Output = ()>>(
    script: impl Fn(&Call) -> Response + Clone + Send + Sync + 'static,
    test: impl FnOnce(Cluster, Calls) -> F + Send,
) {
    simulate(3, Duration::from_secs(3600), |entropy: Entropy| async move {
        let net = SimNet::new(entropy.fork("net"));
        let calls = Calls::default();
        let seen = calls.clone();
        let app = Router::new().fallback(move |request: Request| {
            let (script, seen) = (script.clone(), seen.clone());
            async move {
                let (parts, body) = request.into_parts();
                let bytes = body.collect().await.unwrap().to_bytes();
                let content_type = parts
                    .headers
                    .get("content-type")
                    .map(|value| value.to_str().unwrap().to_owned());
                let call = Call {
                    method: parts.method.to_string(),
                    path: parts.uri.path().to_owned(),
                    query: parts.uri.query().unwrap_or_default().to_owned(),
                    content_type: content_type.unwrap_or_default(),
                    body: serde_json::from_slice(&bytes).unwrap_or_default(),
                };
                seen.0.lock().unwrap().push(call.clone());
                script(&call)
            }
        });
        let listener = net.bind(AT.parse().unwrap()).await.unwrap();
        tokio::spawn(serve(listener, app, ServeOptions::plain()));
        let env = Env {
            dialer: Arc::new(net),
            wall: Wall::at("2026-11-15T00:00:00Z".parse().unwrap()),
            entropy,
        };
        let at: Target = AT.parse().unwrap();
        let cluster = Cluster::connect(&env, &at, &Trust::Plain, Duration::from_secs(5)).unwrap();
        test(cluster, calls).await;
    })
    .unwrap();
}
