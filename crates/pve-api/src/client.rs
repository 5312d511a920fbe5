//! Sends calls: one client for all hosts of a PVE cluster.

mod forecast;
mod limit;
mod login;
mod poll;
mod progress;
mod upload;
mod watch;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Uri;
use http::header::{CONTENT_TYPE, DATE, HeaderMap, HeaderValue};
use http::uri::{Authority, Scheme};
use mainstay_net::http::{Body, HttpClient, HttpOptions, HttpResponse};
use mainstay_net::{Connector, Entropy, Env, Target, Trust, TrustError};
use tokio::time::Instant;

pub use login::Login;
pub use progress::Progress;
pub use upload::Upload;
pub use watch::TaskDone;

use crate::error::Error;
use crate::request::{Call, Request};
use crate::value::{Host, Upid};
use limit::Limits;
use login::Session;
use watch::Watch;

/// An address the API answers on.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub target: Target,
    pub trust: Trust,
    /// Which host that is, if it is known: calls for that host then go there without a detour.
    pub host: Option<Host>,
}

/// How the client behaves.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// For dial and TLS handshake.
    pub dial_timeout: Duration,
    /// For a whole call. A host gives up on another host after 30 s, and waits up to 10 s for a lock.
    pub deadline: Duration,
    /// Calls in flight for the three blocking workers of one host: more would only wait there. As many again that its web server answers
    /// itself.
    pub calls_per_host: usize,
    /// Calls in flight that concern no single host.
    pub calls_elsewhere: usize,
    /// How often a read, or anything that was certainly not sent, is tried in all.
    pub attempts: u32,
    /// How long a host may be silent before the tasks on it are given up as unknown.
    pub task_patience: Duration,
    /// An upload may take the deadline and this much per mebibyte.
    pub upload_time_per_mib: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            dial_timeout: Duration::from_secs(10),
            deadline: Duration::from_secs(40),
            calls_per_host: 4,
            calls_elsewhere: 8,
            attempts: 3,
            task_patience: Duration::from_secs(60),
            upload_time_per_mib: Duration::from_secs(2),
        }
    }
}

/// A connection to PVE. Clones share everything.
#[derive(Clone)]
pub struct Client(Arc<Inner>);

struct Inner {
    doors: Vec<Door>,
    /// The door that answered last.
    open_door: AtomicUsize,
    session: Session,
    limits: Limits,
    watch: Watch,
    entropy: Entropy,
    uploads: AtomicUsize,
    /// The date of the last answer as its host wrote it, and when it came.
    date: Mutex<Option<(String, Instant)>>,
    options: ClientOptions,
}

/// An endpoint with its connections.
struct Door {
    target: Target,
    scheme: Scheme,
    authority: Authority,
    host: Option<Host>,
    http: HttpClient,
}

impl Client {
    /// Create it inside the runtime that uses it. Nothing is sent yet.
    pub fn new(env: &Env, endpoints: Vec<Endpoint>, login: Login, options: ClientOptions) -> Result<Self, TrustError> {
        assert!(!endpoints.is_empty(), "a client needs an endpoint");
        let doors = endpoints
            .into_iter()
            .map(|endpoint| Door::new(env, endpoint, &options))
            .collect::<Result<_, _>>()?;
        Ok(Self(Arc::new(Inner {
            doors,
            open_door: AtomicUsize::new(0),
            session: Session::new(login),
            limits: Limits::new(options.calls_per_host, options.calls_elsewhere),
            watch: Watch::default(),
            entropy: env.entropy.fork("pve-api"),
            uploads: AtomicUsize::new(0),
            date: Mutex::default(),
            options,
        })))
    }

    /// The `Date` of the last answer, as its host wrote it (RFC 9110), and when it came.
    pub fn date(&self) -> Option<(String, Instant)> {
        self.0.date.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn keep_date(&self, answer: &HttpResponse) {
        let date = answer.headers.get(DATE).and_then(|date| date.to_str().ok());
        if let Some(date) = date {
            *self.0.date.lock().unwrap_or_else(PoisonError::into_inner) = Some((date.to_owned(), Instant::now()));
        }
    }

    /// Whose rights count: `user@realm!token` or `user@realm`.
    pub fn principal(&self) -> &str {
        self.0.session.principal()
    }

    /// Sends a call and reads its answer.
    ///
    /// A read is tried again when its answer is lost. Anything else is tried again only when it was certainly not sent.
    pub async fn call<T>(&self, call: Call<T>) -> Result<T, Error> {
        let _turn = self.0.limits.turn(&call.request).await;
        let answer = self.send(&call.request).await?;
        call.decode(answer.status.as_u16(), &answer.reason, &answer.body)
    }

    /// Sends a call that begins a task, and waits for the task's end. `None` when PVE was done before it answered.
    pub async fn run<T: Into<Option<Upid>>>(&self, call: Call<T>) -> Result<Option<TaskDone>, Error> {
        match self.call(call).await?.into() {
            Some(upid) => self.wait(&upid).await.map(Some),
            None => Ok(None),
        }
    }

    async fn send(&self, request: &Request) -> Result<HttpResponse, Error> {
        let authorised = self.0.session.headers(self).await?;
        let answer = self.exchange(request, &authorised.headers, request.is_read()).await?;
        // An expired ticket is renewed once. A token that is not accepted stays so, and each try costs three seconds.
        if answer.status != 401 || !self.0.session.expire(&authorised).await {
            return Ok(answer);
        }
        let authorised = self.0.session.headers(self).await?;
        self.exchange(request, &authorised.headers, request.is_read()).await
    }

    /// Brings a request to any door that answers.
    async fn exchange(&self, request: &Request, headers: &HeaderMap, repeatable: bool) -> Result<HttpResponse, Error> {
        let mut attempt = 1;
        loop {
            match self.try_doors(request, headers, repeatable).await {
                Err(error) if attempt < self.0.options.attempts && is_worth_repeating(&error, repeatable) => {
                    tracing::debug!(call = %request.name(), attempt, %error, "trying again");
                    tokio::time::sleep(PAUSE * attempt * attempt).await;
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    async fn try_doors(&self, request: &Request, headers: &HeaderMap, repeatable: bool) -> Result<HttpResponse, Error> {
        let mut order = self.doors_for(request.host());
        let last = order.pop().expect("a client has an endpoint");
        for n in order {
            match self.knock(n, request, headers).await {
                Err(Error::NotSent { .. }) => {}
                Err(Error::Unknown { .. }) if repeatable => {}
                outcome => return outcome,
            }
        }
        self.knock(last, request, headers).await
    }

    /// The host's own door first, then the one that answered last, then the others in turn.
    fn doors_for(&self, host: Option<&Host>) -> Vec<usize> {
        let (doors, open) = (&self.0.doors, self.0.open_door.load(Ordering::Relaxed));
        let mut order: Vec<usize> = (0..doors.len()).map(|n| (open + n) % doors.len()).collect();
        order.sort_by_key(|n| host.is_none() || doors[*n].host.as_ref() != host);
        order
    }

    /// One request to one door. A gateway's failure to reach the host behind it counts as a failure of this door.
    async fn knock(&self, n: usize, request: &Request, headers: &HeaderMap) -> Result<HttpResponse, Error> {
        let door = &self.0.doors[n];
        let mut sent = http::Request::new(Body::empty());
        *sent.method_mut() = request.method();
        *sent.uri_mut() = door.uri(&request.target());
        sent.headers_mut().clone_from(headers);
        if let Some(form) = request.form().filter(|form| !form.is_empty()) {
            sent.headers_mut()
                .insert(CONTENT_TYPE, HeaderValue::from_static("application/x-www-form-urlencoded"));
            *sent.body_mut() = Body::from(form);
        }
        tracing::trace!(call = %request.name(), to = %door.target, "send");
        let answer = door
            .http
            .send(sent, self.0.options.deadline)
            .await
            .map_err(|error| Error::from_http(request, error))?;
        match answer.status.as_u16() {
            status @ 595..=599 => Err(Error::from_answer(request, status, &answer.reason, &answer.body)),
            _ => {
                self.0.open_door.store(n, Ordering::Relaxed);
                self.keep_date(&answer);
                Ok(answer)
            }
        }
    }
}

/// Grows with the square of the attempts.
const PAUSE: Duration = Duration::from_millis(200);

fn is_worth_repeating(error: &Error, repeatable: bool) -> bool {
    match error {
        // A wrong certificate does not become right.
        Error::NotSent { source, .. } => source.dial().is_none_or(mainstay_net::DialError::is_transient),
        Error::Unknown { .. } => repeatable,
        _ => false,
    }
}

impl Door {
    fn new(env: &Env, endpoint: Endpoint, options: &ClientOptions) -> Result<Self, TrustError> {
        let Endpoint { target, trust, host } = endpoint;
        let authority = Authority::try_from(target.to_string()).map_err(|_| TrustError::ServerName(target.host.clone()))?;
        let scheme = if matches!(trust, Trust::Plain) {
            Scheme::HTTP
        } else {
            Scheme::HTTPS
        };
        let connector = Connector::new(Arc::clone(&env.dialer), &trust, env.wall, options.dial_timeout)?;
        let http = HttpClient::new(
            connector,
            HttpOptions {
                http1_only: true,
                ..HttpOptions::default()
            },
        );
        Ok(Self {
            target,
            scheme,
            authority,
            host,
            http,
        })
    }

    fn uri(&self, path_and_query: &str) -> Uri {
        let uri = Uri::builder()
            .scheme(self.scheme.clone())
            .authority(self.authority.clone())
            .path_and_query(path_and_query);
        uri.build().expect("an encoded path makes a URI")
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let targets: Vec<String> = self.0.doors.iter().map(|door| door.target.to_string()).collect();
        f.debug_tuple("Client").field(&targets).finish()
    }
}
