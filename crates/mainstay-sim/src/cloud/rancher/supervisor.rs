//! The supervisor's HTTP API, and on k3s the Kubernetes API beside it.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http_body_util::BodyExt;
use mainstay_net::Peer;
use serde_json::{Value, json};

use super::config::Config;
use super::tls::Authorities;
use super::{Binary, Distro};
use crate::cloud::host::Host;
use crate::kube::server::{ApiServer, Leases, User};
use crate::kube::store::Store;
use crate::pki;

/// How far a server is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    Starting,
    Listening,
    Etcd,
    Api,
    ApiReady,
    Ready,
}

/// A server as others see it.
pub(crate) struct View {
    pub host: Weak<Host>,
    pub binary: Binary,
    pub config: Config,
    pub state: Mutex<ViewState>,
    /// scrypt occupies the server while it checks a password.
    basic: tokio::sync::Mutex<()>,
}

#[derive(Clone)]
pub(crate) struct ViewState {
    pub phase: Phase,
    pub authorities: Option<Authorities>,
    pub server_password: String,
    /// Equal to the server's where no `agent-token` is configured.
    pub agent_password: String,
    pub node_name: String,
}

/// What one Basic request costs the server, and one with a certificate.
const BASIC_COST: Duration = Duration::from_millis(110);

impl View {
    pub fn new(host: &Arc<Host>, binary: &Binary, config: &Config) -> Arc<Self> {
        Arc::new(Self {
            host: Arc::downgrade(host),
            binary: binary.clone(),
            config: config.clone(),
            state: Mutex::new(ViewState {
                phase: Phase::Starting,
                authorities: None,
                server_password: String::new(),
                agent_password: String::new(),
                node_name: config.node_name(host),
            }),
            basic: tokio::sync::Mutex::default(),
        })
    }

    pub fn state(&self) -> ViewState {
        self.state.lock().expect("plain data").clone()
    }

    pub fn phase(&self) -> Phase {
        self.state.lock().expect("plain data").phase
    }

    pub fn reach(&self, phase: Phase) {
        self.state.lock().expect("plain data").phase = phase;
    }

    fn distro(&self) -> Distro {
        self.binary.distro
    }

    pub fn router(self: &Arc<Self>, api: Option<Arc<ApiServer>>) -> Router {
        let view = Arc::clone(self);
        Router::new().fallback(move |request: Request| {
            let (view, api) = (Arc::clone(&view), api.clone());
            async move { view.handle(request, api.as_deref()).await }
        })
    }

    /// RKE2's API server has a port of its own.
    pub fn api_router(self: &Arc<Self>, api: Arc<ApiServer>) -> Router {
        let view = Arc::clone(self);
        Router::new().fallback(move |request: Request| {
            let (view, api) = (Arc::clone(&view), Arc::clone(&api));
            async move { view.kubernetes(request, &api).await }
        })
    }

    async fn handle(&self, request: Request, api: Option<&ApiServer>) -> Response {
        let path = request.uri().path().to_owned();
        let prefix = format!("/v1-{}/", self.distro().name());
        if self.phase() == Phase::Starting {
            // The database handler has no authenticator yet, and says so instead of 503.
            return if path.starts_with("/db/") {
                not_authorized()
            } else {
                unavailable("starting")
            };
        }
        match path.as_str() {
            "/cacerts" => {
                return self
                    .state()
                    .authorities
                    .map(|files| files["server-ca.crt"].clone())
                    .unwrap_or_default()
                    .into_response();
            }
            "/ping" => return "pong".into_response(),
            _ => {}
        }
        let agent = path
            .strip_prefix(&prefix)
            .filter(|name| ["readyz", "config", "apiservers"].contains(name));
        let server = path.starts_with("/db/")
            || path
                .strip_prefix(&prefix)
                .is_some_and(|name| ["server-bootstrap", "token"].contains(&name));
        if agent.is_none() && !server {
            return match api {
                Some(api) => self.kubernetes(request, api).await,
                None => status(StatusCode::NOT_FOUND, "NotFound", "404 page not found"),
            };
        }
        let groups = match self.authenticate(Credentials::of(&request)).await {
            Ok(groups) => groups,
            Err(refusal) => return *refusal,
        };
        let name = self.distro().name();
        let allowed: Vec<String> = if server {
            vec![format!("{name}:server")]
        } else {
            vec![format!("{name}:agent"), "system:nodes".to_owned()]
        };
        if !groups.iter().any(|group| allowed.contains(group)) {
            return status(StatusCode::FORBIDDEN, "Forbidden", "forbidden");
        }
        match (path.as_str(), agent) {
            (_, Some("readyz")) if self.phase() < Phase::Ready => unavailable("runtime core not ready"),
            (_, Some("readyz")) => "ok".into_response(),
            (_, Some("apiservers")) => self.api_servers().await,
            (_, Some(_)) => axum::Json(self.shown_config()).into_response(),
            ("/db/info", _) => self.members(),
            ("/db/snapshot", _) => self.snapshot(request).await,
            _ => self.bootstrap(),
        }
    }

    /// The groups of the caller, by certificate or by Basic authentication.
    async fn authenticate(&self, shown: Credentials) -> Result<Vec<String>, Box<Response>> {
        let encoded = match shown {
            Credentials::Certificate(groups) => return Ok(groups),
            Credentials::None => return Ok(Vec::new()),
            Credentials::Basic(encoded) => encoded,
        };
        {
            let _busy = self.basic.lock().await;
            tokio::time::sleep(BASIC_COST).await;
        }
        let decoded = STANDARD
            .decode(encoded)
            .ok()
            .and_then(|bytes| String::from_utf8(bytes).ok())
            .unwrap_or_default();
        let (user, password) = decoded.split_once(':').unwrap_or_default();
        let state = self.state();
        let name = self.distro().name();
        match user {
            "server" if password == state.server_password => Ok(vec![format!("{name}:server")]),
            "node" if password == state.agent_password => Ok(vec![format!("{name}:agent")]),
            _ => Err(Box::new(not_authorized())),
        }
    }

    fn members(&self) -> Response {
        let failed = |text: &str| {
            let message = format!("Internal error occurred: failed to get etcd MemberList: {text}");
            status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", &message)
        };
        let data = self.host.upgrade().and_then(|host| host.runtime.etcd());
        match data {
            Some(data) if data.cluster.is_sqlite => failed("etcd not started"),
            Some(data) => match data.cluster.members(data.member) {
                Ok(members) => axum::Json(members).into_response(),
                Err(text) => failed(&text),
            },
            None => failed("etcd not started"),
        }
    }

    async fn api_servers(&self) -> Response {
        let Some(host) = self.host.upgrade() else {
            return unavailable("starting");
        };
        if self.phase() < Phase::Etcd {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
        let own = host.runtime.etcd();
        let all = host.site.cloud.all();
        let mut list: Vec<String> = all
            .iter()
            .filter(|other| other.runtime.view().is_some_and(|view| view.phase() >= Phase::Ready))
            .filter(|other| matches!((&own, other.runtime.etcd()), (Some(own), Some(other)) if Arc::ptr_eq(&own.cluster, &other.cluster)))
            .filter_map(|other| Some(format!("{}:6443", other.address()?)))
            .collect();
        list.sort();
        list.dedup();
        axum::Json(list).into_response()
    }

    fn shown_config(&self) -> Value {
        let critical = self.config.critical(self.distro());
        let value = |key: &str| {
            critical
                .iter()
                .find(|(known, _)| *known == key)
                .map(|(_, value)| value.clone())
                .unwrap_or_default()
        };
        json!({
            "ClusterDNS": value("cluster-dns"), "ClusterDomain": value("cluster-domain"), "ClusterIPRange": value("cluster-cidr"),
            "ServiceIPRange": value("service-cidr"), "FlannelBackend": value("flannel-backend"), "ClusterInit": self.config.is_set("cluster-init"),
            "JoinURL": self.config.or("server", ""), "EgressSelectorMode": value("egress-selector-mode"),
        })
    }

    fn bootstrap(&self) -> Response {
        let Some(files) = self.state().authorities else {
            return unavailable("starting");
        };
        let content: serde_json::Map<String, Value> = files
            .iter()
            .map(|(name, text)| (name.clone(), json!({"Content": STANDARD.encode(text)})))
            .collect();
        axum::Json(content).into_response()
    }

    async fn snapshot(&self, request: Request) -> Response {
        if request.method() != Method::POST {
            let mut answer = Response::default();
            answer.extensions_mut().insert(mainstay_net::HangUp);
            return answer;
        }
        let body = request
            .into_body()
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .unwrap_or_default();
        let asked: Value = serde_json::from_slice(&body).unwrap_or_default();
        let Some((host, data)) = self
            .host
            .upgrade()
            .and_then(|host| Some((Arc::clone(&host), host.runtime.etcd()?)))
        else {
            return status(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "etcd datastore is not started",
            );
        };
        if data.cluster.etcd.leader_of(data.member).is_none() {
            return status(
                StatusCode::INTERNAL_SERVER_ERROR,
                "InternalError",
                "context deadline exceeded",
            );
        }
        super::controllers::snapshot(&host, &data.cluster, &self.state().node_name, &asked).await
    }

    /// A request to the Kubernetes API server.
    async fn kubernetes(&self, request: Request, api: &ApiServer) -> Response {
        if self.phase() < Phase::Api {
            return unavailable("apiserver not ready");
        }
        let user = request
            .extensions()
            .get::<Peer>()
            .and_then(|peer| pki::subject(peer.certificates.first()?));
        let user = user.map(|subject| User {
            name: subject.common_name,
            groups: subject.organizations,
        });
        let health = ["/readyz", "/livez", "/healthz"].contains(&request.uri().path());
        if health && user.is_some() && self.phase() < Phase::ApiReady {
            let text = "[+]ping ok\n[+]log ok\n[+]etcd ok\n[-]poststarthook/rbac/bootstrap-roles failed: reason withheld\n";
            return (StatusCode::INTERNAL_SERVER_ERROR, text).into_response();
        }
        api.handle(user, request).await
    }
}

/// What a client shows of itself.
enum Credentials {
    /// The groups of its certificate.
    Certificate(Vec<String>),
    Basic(String),
    None,
}

impl Credentials {
    fn of(request: &Request) -> Self {
        let subject = request
            .extensions()
            .get::<Peer>()
            .and_then(|peer| pki::subject(peer.certificates.first()?));
        if let Some(subject) = subject {
            return Self::Certificate(subject.organizations);
        }
        let text = request
            .headers()
            .get(header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok());
        match text.and_then(|text| text.strip_prefix("Basic ")) {
            Some(encoded) => Self::Basic(encoded.to_owned()),
            None => Self::None,
        }
    }
}

pub(crate) fn status(code: StatusCode, reason: &str, message: &str) -> Response {
    let body = json!({"kind": "Status", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "code": code.as_u16()});
    (code, [(header::CONTENT_TYPE, "application/json")], format!("{body}\n")).into_response()
}

fn unavailable(message: &str) -> Response {
    status(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
}

fn not_authorized() -> Response {
    status(StatusCode::UNAUTHORIZED, "Unauthorized", "not authorized")
}

/// The Kubernetes API server of a machine: it reads what the local etcd has, while that sees a leader.
pub(crate) fn api_server(host: &Arc<Host>, binary: &Binary) -> Arc<ApiServer> {
    let weak = Arc::downgrade(host);
    let store = move || -> Option<Arc<Store>> {
        let data = weak.upgrade()?.runtime.etcd()?;
        data.cluster.etcd.leader_of(data.member)?;
        Some(Arc::clone(data.cluster.store()))
    };
    let weak = Arc::downgrade(host);
    let write = move || {
        if let Some((host, data)) = weak
            .upgrade()
            .and_then(|host| Some((Arc::clone(&host), host.runtime.etcd()?)))
        {
            super::node::write_leases(&host.site, &data.cluster);
        }
    };
    Arc::new(ApiServer {
        store: Box::new(store),
        leases: Arc::new(Leases {
            write: Box::new(write),
            glance: Duration::from_secs(1),
        }),
        version: binary.version.clone(),
        address: host.address().map(|address| format!("{address}:6443")).unwrap_or_default(),
        wall: host.site.wall,
    })
}
