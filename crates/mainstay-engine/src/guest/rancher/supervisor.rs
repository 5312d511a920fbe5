//! The supervisor of a server: HTTPS with our client certificate.
//!
//! A request with a password costs the server about forty times the computing time of one with a certificate, so a password is never sent.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use mainstay_net::http::{Body, HttpClient, HttpError, HttpOptions};
use mainstay_net::{Again, Backoff, Connector, DialFault, Entropy, Env, Trust, retry};
use rancher_config::Distro;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::failure::{Failure, FailureKind};

/// How long dial and handshake with an API server or a supervisor may take.
pub(super) const CONNECT: Duration = Duration::from_secs(5);

/// One request. `/db/info` without quorum answers after its own limit of several seconds.
const CALL: Duration = Duration::from_secs(15);
/// A snapshot reads the whole datastore.
const SNAPSHOT: Duration = Duration::from_secs(120);

/// In its first half second a supervisor answers 401, 503 or a TLS alert to requests that it accepts a moment later.
const FIRST_ANSWERS: Backoff = Backoff {
    first: Duration::from_millis(250),
    longest: Duration::from_millis(500),
    give_up_after: Duration::from_millis(1500),
};

/// The supervisor of one server. Clones share connections.
#[derive(Clone)]
pub struct Supervisor {
    client: HttpClient,
    distro: Distro,
    base: String,
    our_ca: Arc<str>,
    entropy: Entropy,
}

/// A member as `/db/info` lists it.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct SupervisorMember {
    /// `<node name>-<8 hex digits>`, new at every join. Empty until the member has started.
    #[serde(default)]
    pub name: String,
    #[serde(default, rename = "peerURLs")]
    pub peers: Vec<String>,
    #[serde(default, rename = "isLearner")]
    pub learner: bool,
}

impl SupervisorMember {
    /// Whether this is the member that runs on a node.
    pub fn is_of(&self, node: &str) -> bool {
        self.node() == Some(node)
    }

    /// Where its etcd speaks to the others.
    pub fn address(&self) -> Option<IpAddr> {
        self.peers.iter().find_map(|peer| {
            let url: url::Url = peer.parse().ok()?;
            url.host_str()?.trim_matches(['[', ']']).parse().ok()
        })
    }

    /// The node that it runs on. `None`: it has not started yet.
    pub fn node(&self) -> Option<&str> {
        let (node, hash) = self.name.rsplit_once('-')?;
        (hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(node)
    }
}

/// Why a supervisor gave no usable answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SupervisorError {
    /// No connection or no answer.
    #[error("{0}")]
    Silent(String),
    /// It serves a certificate of another authority.
    #[error("the supervisor's certificate was not issued by this cluster's CA: {0}")]
    Foreign(String),
    /// It answers, and is not as far yet.
    #[error("{0}")]
    NotReady(String),
    /// etcd behind it does not answer: not started, no quorum, a learner, or a member that was removed.
    #[error("{0}")]
    Etcd(String),
    /// Anything else.
    #[error("the supervisor answered {status}: {message}")]
    Refused { status: u16, message: String },
}

pub(super) fn unusable(what: &str, error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::new(FailureKind::Bug, format!("the {what} cannot be used")).caused_by(error)
}

impl Supervisor {
    pub(super) fn new(env: &Env, distro: Distro, our_ca: &Arc<str>, address: IpAddr, trust: &Trust) -> Result<Self, Failure> {
        let connector = Connector::new(env.dialer.clone(), trust, env.wall, CONNECT)
            .map_err(|error| unusable("supervisor client certificate", error))?;
        let port = distro.supervisor_port();
        let host = match address {
            IpAddr::V4(v4) => v4.to_string(),
            IpAddr::V6(v6) => format!("[{v6}]"),
        };
        Ok(Self {
            client: HttpClient::new(connector, HttpOptions::default()),
            distro,
            base: format!("https://{host}:{port}"),
            our_ca: Arc::clone(our_ca),
            entropy: env.entropy.fork("supervisor").fork(&host),
        })
    }

    /// Whether `/cacerts` is our authority byte for byte. A server that lost its CA files makes its own and would sign with it.
    pub async fn serves_our_authority(&self) -> Result<(), SupervisorError> {
        let body = self.get("/cacerts").await?;
        if body == self.our_ca.as_bytes() {
            return Ok(());
        }
        Err(SupervisorError::Foreign("/cacerts differs from it".into()))
    }

    /// Whether the server says that it is ready.
    pub async fn readyz(&self) -> Result<(), SupervisorError> {
        self.get(&format!("{}/readyz", self.distro.supervisor_path())).await.map(drop)
    }

    /// The members of the etcd cluster that this server belongs to.
    pub async fn members(&self) -> Result<Vec<SupervisorMember>, SupervisorError> {
        #[derive(Deserialize)]
        struct Info {
            #[serde(default)]
            members: Vec<SupervisorMember>,
        }
        let body = self.get("/db/info").await.map_err(etcd_error)?;
        let info: Info = serde_json::from_slice(&body).map_err(|_| unreadable("/db/info"))?;
        Ok(info.members)
    }

    /// Saves a snapshot on the server's disk and returns its file name, `<name>-<node>-<unix time>`.
    pub async fn save_snapshot(&self, name: &str) -> Result<String, SupervisorError> {
        let asked = json!({ "operation": "save", "name": [name] });
        let answer = self.snapshot_request(&asked).await?;
        let created = answer["created"].as_array().and_then(|files| files.first());
        created
            .and_then(Value::as_str)
            .map(str::to_owned)
            .ok_or_else(|| unreadable("/db/snapshot"))
    }

    /// The names of the snapshots that the server knows.
    pub async fn snapshots(&self) -> Result<Vec<String>, SupervisorError> {
        let answer = self.snapshot_request(&json!({ "operation": "list" })).await?;
        let items = answer["items"].as_array().cloned().unwrap_or_default();
        let name = |item: &Value| item.pointer("/spec/snapshotName").and_then(Value::as_str).map(str::to_owned);
        Ok(items.iter().filter_map(name).collect())
    }

    async fn snapshot_request(&self, asked: &Value) -> Result<Value, SupervisorError> {
        let body = self.send(Method::POST, "/db/snapshot", asked.to_string(), SNAPSHOT).await;
        serde_json::from_slice(&body.map_err(etcd_error)?).map_err(|_| unreadable("/db/snapshot"))
    }

    /// Repeats what the first half second of a supervisor may answer.
    async fn get(&self, path: &str) -> Result<Bytes, SupervisorError> {
        let again = |error: &SupervisorError| match error {
            SupervisorError::Refused { status: 401, .. } => Again::Yes,
            SupervisorError::NotReady(message) if message.contains("starting") => Again::Yes,
            _ => Again::No,
        };
        let answer = retry(FIRST_ANSWERS, &self.entropy, again, || {
            self.send(Method::GET, path, String::new(), CALL)
        });
        answer.await
    }

    async fn send(&self, method: Method, path: &str, body: String, limit: Duration) -> Result<Bytes, SupervisorError> {
        let body = if body.is_empty() { Body::empty() } else { Body::from(body) };
        let request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base))
            .header("content-type", "application/json")
            .body(body);
        let request = request.map_err(|_| SupervisorError::Silent(format!("{} is no address", self.base)))?;
        let answer = self.client.send(request, limit).await.map_err(|error| unanswered(&error))?;
        if answer.status == StatusCode::OK {
            return Ok(answer.body);
        }
        let message = status_message(&answer.body);
        Err(match answer.status {
            StatusCode::SERVICE_UNAVAILABLE => SupervisorError::NotReady(message),
            StatusCode::INTERNAL_SERVER_ERROR => SupervisorError::Etcd(message),
            status => SupervisorError::Refused {
                status: status.as_u16(),
                message,
            },
        })
    }
}

impl std::fmt::Debug for Supervisor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Supervisor({})", self.base)
    }
}

impl SupervisorError {
    pub(super) fn into_failure(self, what: impl Into<String>) -> Failure {
        let kind = match &self {
            Self::Silent(_) => FailureKind::Unreachable,
            Self::Foreign(_) => FailureKind::Conflict,
            Self::NotReady(_) | Self::Etcd(_) | Self::Refused { .. } => FailureKind::Failed,
        };
        Failure::new(kind, what).why(self.to_string())
    }
}

fn unanswered(error: &HttpError) -> SupervisorError {
    let Some(dial) = error.dial() else {
        return SupervisorError::Silent(error.to_string());
    };
    match dial.fault() {
        DialFault::UnknownIssuer { .. } | DialFault::BadCertificate { .. } => SupervisorError::Foreign(dial.to_string()),
        // `unrecognized_name` in the first half second.
        DialFault::Tls(_) => SupervisorError::NotReady(format!("starting: {dial}")),
        _ => SupervisorError::Silent(dial.to_string()),
    }
}

/// `Internal error occurred: failed to get etcd MemberList: etcd not started` without its two introductions.
fn etcd_error(error: SupervisorError) -> SupervisorError {
    match error {
        SupervisorError::Etcd(message) => {
            let text = message.rsplit("MemberList: ").next().unwrap_or(&message);
            SupervisorError::Etcd(format!("etcd: {text}"))
        }
        other => other,
    }
}

fn unreadable(path: &str) -> SupervisorError {
    SupervisorError::Refused {
        status: 200,
        message: format!("the answer of {path} cannot be read"),
    }
}

/// Errors are Kubernetes Status objects.
fn status_message(body: &[u8]) -> String {
    let status: Value = serde_json::from_slice(body).unwrap_or_default();
    let message = status["message"].as_str().map(str::to_owned);
    message.unwrap_or_else(|| String::from_utf8_lossy(body).chars().take(200).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_of_its_node_and_not_of_one_with_a_longer_name() {
        let member = |name: &str| SupervisorMember {
            name: name.to_owned(),
            peers: Vec::new(),
            learner: false,
        };
        assert!(member("cp-1-0a1b2c3d").is_of("cp-1"));
        assert!(!member("cp-1-0a1b2c3d").is_of("cp"));
        assert!(!member("cp-11-0a1b2c3d").is_of("cp-1"));
        assert!(!member("").is_of("cp-1"));
    }

    #[test]
    fn an_answer_of_a_recorded_server_is_read() {
        let text = r#"{"members":[{"ID":12345678901234567890,"name":"cp1-0a1b2c3d","peerURLs":["https://10.0.0.11:2380"],"clientURLs":[]},
            {"ID":1,"peerURLs":["https://10.0.0.12:2380"],"isLearner":true}]}"#;
        let value: Value = serde_json::from_str(text).expect("JSON");
        let members: Vec<SupervisorMember> = serde_json::from_value(value["members"].clone()).expect("members");
        assert!(members[0].is_of("cp1") && !members[0].learner);
        assert!(members[1].name.is_empty() && members[1].learner);
    }
}
