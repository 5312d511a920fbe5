//! An HTTP client that says what became of a request: answered, certainly not sent, or unknown.

mod body;
mod error;

use std::time::Duration;

use ::http::header::CONTENT_LENGTH;
use ::http::request::Parts;
use ::http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::ext::ReasonPhrase;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::{CaptureConnection, capture_connection};
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tokio::time::Instant;

pub use self::body::Body;
pub use self::error::{HttpError, RequestInfo, RequestOutcome, Unsent, client_alert};
use crate::connector::{Alpn, Connector, Traffic};

/// How the client behaves.
#[derive(Clone, Copy, Debug)]
pub struct HttpOptions {
    /// Offer and speak HTTP/1.1 only.
    pub http1_only: bool,
    /// Connections unused for this long are closed. Proxmox VE hangs up after 5 s: stay below.
    pub idle: Duration,
    /// The longest answer body [`HttpClient::send`] collects.
    pub max_body: usize,
}

impl Default for HttpOptions {
    fn default() -> Self {
        Self {
            http1_only: false,
            idle: Duration::from_secs(4),
            max_body: 32 << 20,
        }
    }
}

/// Sends requests over pooled connections. Clones share the pool. Create it inside the runtime that uses it.
#[derive(Clone)]
pub struct HttpClient {
    client: Client<Connector, Body>,
    max_body: usize,
}

/// An answer with its whole body.
#[derive(Clone, Debug)]
pub struct HttpResponse {
    pub status: StatusCode,
    /// The reason phrase as sent (HTTP/1.1), else the standard one. Proxmox VE puts its error message there.
    pub reason: String,
    pub headers: HeaderMap,
    pub body: Bytes,
}

/// An answer whose body is still to be read.
#[derive(Debug)]
pub struct Opened {
    pub status: StatusCode,
    pub reason: String,
    pub headers: HeaderMap,
    pub body: Incoming,
}

impl HttpClient {
    pub fn new(connector: Connector, options: HttpOptions) -> Self {
        let connector = if options.http1_only {
            connector.with_alpn(Alpn::Http1)
        } else {
            connector
        };
        let client = Client::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            // Without it idle connections would age by the real clock even in virtual time.
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(options.idle)
            // A dead connection is noticed even while an answer is awaited.
            .http2_keep_alive_interval(Duration::from_secs(10))
            .http2_keep_alive_timeout(Duration::from_secs(5))
            // Whether to repeat a request is decided here, where it is known whether it was sent.
            .retry_canceled_requests(false)
            .build(connector);
        Self {
            client,
            max_body: options.max_body,
        }
    }

    /// Sends and collects the answer; everything within `deadline`.
    pub async fn send(&self, request: Request<Body>, deadline: Duration) -> Result<HttpResponse, HttpError> {
        let until = Instant::now() + deadline;
        let asked = RequestInfo::of(&request);
        let opened = self.open_until(request, &asked, until, deadline).await?;
        let Opened {
            status,
            reason,
            headers,
            body,
        } = opened;
        let collected = tokio::time::timeout_at(until, collect(body, self.max_body));
        let body = match collected.await {
            Ok(Ok(body)) => body,
            Ok(Err(Short::TooLong)) => {
                return Err(HttpError::TooLong {
                    asked,
                    status,
                    limit: self.max_body,
                });
            }
            Ok(Err(Short::Cut(cause))) => return Err(HttpError::Cut { asked, status, cause }),
            Err(_) => return Err(HttpError::Slow { asked, status, deadline }),
        };
        Ok(HttpResponse {
            status,
            reason,
            headers,
            body,
        })
    }

    /// Sends and returns as soon as the answer's head is there; `deadline` bounds that, the body is read at the caller's pace.
    pub async fn open(&self, request: Request<Body>, deadline: Duration) -> Result<Opened, HttpError> {
        let asked = RequestInfo::of(&request);
        self.open_until(request, &asked, Instant::now() + deadline, deadline).await
    }

    async fn open_until(
        &self,
        request: Request<Body>,
        asked: &RequestInfo,
        until: Instant,
        deadline: Duration,
    ) -> Result<Opened, HttpError> {
        let (mut parts, body) = request.into_parts();
        state_empty_length(&mut parts, &body);
        let spare = body.repeatable().map(|body| Request::from_parts(parts.clone(), body));
        let first = self.attempt(Request::from_parts(parts, body), asked, until, deadline).await;
        match (first, spare) {
            // A pooled connection that the server closed just before we wrote to it: a new one is as good as the first try.
            (
                Err(HttpError::NotSent {
                    cause: Unsent::Broken(_),
                    ..
                }),
                Some(spare),
            ) => self.attempt(spare, asked, until, deadline).await,
            (outcome, _) => outcome,
        }
    }

    async fn attempt(
        &self,
        mut request: Request<Body>,
        asked: &RequestInfo,
        until: Instant,
        deadline: Duration,
    ) -> Result<Opened, HttpError> {
        let connection = capture_connection(&mut request);
        match tokio::time::timeout_at(until, self.client.request(request)).await {
            Ok(Ok(response)) => {
                if let Some(traffic) = traffic(&connection) {
                    traffic.answered();
                }
                Ok(opened(response))
            }
            Ok(Err(cause)) => Err(HttpError::of_failure(asked, cause, is_untouched(&connection))),
            Err(_) if is_untouched(&connection) => Err(HttpError::NotSent {
                asked: asked.clone(),
                cause: Unsent::Deadline(deadline),
            }),
            Err(_) => Err(HttpError::NoAnswer {
                asked: asked.clone(),
                deadline,
            }),
        }
    }
}

/// Servers that insist on a length get one for an empty body too; hyper leaves it out.
fn state_empty_length(parts: &mut Parts, body: &Body) {
    let carries_body = matches!(parts.method, Method::POST | Method::PUT | Method::PATCH);
    if carries_body && http_body::Body::is_end_stream(body) {
        parts.headers.insert(CONTENT_LENGTH, HeaderValue::from_static("0"));
    }
}

/// Whether certainly nothing of the request left: it got no connection, or its connection took no byte since the last answer.
fn is_untouched(connection: &CaptureConnection) -> bool {
    traffic(connection).is_none_or(|traffic| traffic.is_untouched())
}

fn traffic(connection: &CaptureConnection) -> Option<Traffic> {
    let mut extras = Extensions::new();
    connection.connection_metadata().as_ref()?.get_extras(&mut extras);
    extras.remove()
}

fn opened(response: Response<Incoming>) -> Opened {
    let (parts, body) = response.into_parts();
    let reason = match parts.extensions.get::<ReasonPhrase>() {
        Some(phrase) => String::from_utf8_lossy(phrase.as_bytes()).into_owned(),
        None => parts.status.canonical_reason().unwrap_or_default().to_owned(),
    };
    Opened {
        status: parts.status,
        reason,
        headers: parts.headers,
        body,
    }
}

enum Short {
    TooLong,
    Cut(hyper::Error),
}

async fn collect(mut body: Incoming, limit: usize) -> Result<Bytes, Short> {
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(Short::Cut)?.into_data() else {
            continue;
        };
        if whole.len() + data.len() > limit {
            return Err(Short::TooLong);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}
