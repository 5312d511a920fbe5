//! The API server's HTTP side.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http_body_util::BodyExt;
use mainstay_net::Wall;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::control::is_deleting;
use super::kinds::{self, Kind};
use super::request::{Options, ResourcePath};
use super::store::{ChangeType, Key, Store, StoreError};
use super::{admission, discovery, eviction, patch, table};

/// etcd gives up a request after this time; the API server then answers an error.
const ETCD_TIMEOUT: Duration = Duration::from_secs(7);
const BODY_LIMIT: usize = 3 * 1024 * 1024;

/// Who calls, from the client certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub groups: Vec<String>,
}

/// The leases of kubelets, which are written when a client reads them.
pub(crate) struct Leases {
    pub write: Box<dyn Fn() + Send + Sync>,
    /// How often they are written for a client that watches them.
    pub glance: Duration,
}

/// One API server: it lives on a control plane and reads its objects from that node's etcd.
pub(crate) struct ApiServer {
    /// `None` while the local etcd has no quorum.
    pub store: Box<dyn Fn() -> Option<Arc<Store>> + Send + Sync>,
    pub leases: Arc<Leases>,
    /// `v1.36.4`
    pub version: String,
    pub address: String,
    pub wall: Wall,
}

impl ApiServer {
    pub async fn handle(&self, user: Option<User>, request: axum::extract::Request) -> Response {
        let Some(user) = user else {
            return status(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized", json!({}));
        };
        let path = request.uri().path().to_owned();
        if let Some(answer) = self.health(&path) {
            return answer;
        }
        if path == "/version" {
            return axum::Json(version(&self.version)).into_response();
        }
        let accept = text(&request, &header::ACCEPT);
        if let Some(document) = discovery::document(&path, &accept, &self.address, (self.store)().as_deref()) {
            return discovered(&document, &accept);
        }
        let store = (self.store)();
        let Some(resource) = ResourcePath::parse(&path, store.as_deref()) else {
            return status(
                StatusCode::NOT_FOUND,
                "NotFound",
                "the server could not find the requested resource",
                json!({}),
            );
        };
        if !user.groups.iter().any(|group| group == "system:masters") {
            return forbidden(&user, &resource, request.method());
        }
        let Some(store) = store else {
            tokio::time::sleep(ETCD_TIMEOUT).await;
            return status(
                StatusCode::INTERNAL_SERVER_ERROR,
                "",
                "etcdserver: request timed out",
                json!({}),
            );
        };
        self.serve(&store, resource, &accept, request).await
    }

    fn health(&self, path: &str) -> Option<Response> {
        let name = path
            .strip_prefix('/')
            .filter(|name| ["readyz", "livez", "healthz"].contains(name))?;
        if (self.store)().is_some() {
            return Some("ok".into_response());
        }
        let text = format!("[+]ping ok\n[+]log ok\n[-]etcd failed: reason withheld\n{name} check failed\n");
        Some((StatusCode::INTERNAL_SERVER_ERROR, text).into_response())
    }

    async fn serve(&self, store: &Arc<Store>, at: ResourcePath, accept: &str, request: axum::extract::Request) -> Response {
        let options = Options::parse(request.uri().query().unwrap_or_default());
        let method = request.method().clone();
        let content_type = text(&request, &header::CONTENT_TYPE);
        let body = match http_body_util::Limited::new(request.into_body(), BODY_LIMIT).collect().await {
            Ok(body) => body.to_bytes(),
            Err(_) => {
                return status(
                    StatusCode::PAYLOAD_TOO_LARGE,
                    "RequestEntityTooLarge",
                    "limit is 3145728",
                    json!({}),
                );
            }
        };
        if shows_leases(&at) {
            (self.leases.write)();
        }
        let call = Call {
            server: self,
            store,
            options: &options,
            accept,
        };
        match (method, at.name.is_some()) {
            (Method::GET, _) if options.watch => call.watch(&at),
            (Method::GET, true) if at.sub.as_deref() == Some("log") => call.log(&at),
            (Method::GET, true) => call.get(&at),
            (Method::GET, false) => call.list(&at),
            (Method::POST, true) if at.sub.as_deref() == Some("eviction") => call.evict(&at, &body),
            (Method::POST, false) => call.create(&at, &body),
            (Method::PUT, true) => call.replace(&at, &body),
            (Method::PATCH, true) => call.patch(&at, &content_type, &body),
            (Method::DELETE, true) => call.delete(&at, &body),
            (Method::DELETE, false) => call.delete_all(&at),
            _ => status(
                StatusCode::METHOD_NOT_ALLOWED,
                "MethodNotAllowed",
                "the server does not allow this method on the requested resource",
                json!({}),
            ),
        }
    }
}

/// Leases of kubelets and of leaders are written when they are read.
fn shows_leases(at: &ResourcePath) -> bool {
    *at.kind == kinds::LEASES
        && at
            .namespace
            .as_deref()
            .is_none_or(|namespace| namespace == kinds::NODE_LEASES || namespace == "kube-system")
}

fn text(request: &axum::extract::Request, name: &header::HeaderName) -> String {
    request
        .headers()
        .get(name)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default()
        .to_owned()
}

/// A `Status` object with its HTTP code.
pub(crate) fn status(code: StatusCode, reason: &str, message: &str, details: Value) -> Response {
    let mut body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": reason, "details": details,
        "code": code.as_u16(),
    });
    // Some answers have a text only.
    if reason.is_empty()
        && let Some(map) = body.as_object_mut()
    {
        map.shift_remove("reason");
    }
    (code, axum::Json(body)).into_response()
}

fn forbidden(user: &User, at: &ResourcePath, method: &Method) -> Response {
    let verb = match (method.as_str(), at.name.is_some()) {
        ("GET", true) => "get",
        ("GET", false) => "list",
        ("POST", _) => "create",
        ("PUT", _) => "update",
        ("PATCH", _) => "patch",
        _ => "delete",
    };
    let place = at.namespace.as_ref().map_or_else(
        || "at the cluster scope".to_owned(),
        |namespace| format!("in the namespace \"{namespace}\""),
    );
    let name = at.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
    let kind = at.kind;
    let message = format!(
        "{}{name} is forbidden: User \"{}\" cannot {verb} resource \"{}\" in API group \"{}\" {place}",
        kind.qualified(),
        user.name,
        kind.plural,
        kind.group
    );
    status(
        StatusCode::FORBIDDEN,
        "Forbidden",
        &message,
        json!({"name": at.name, "group": kind.group, "kind": kind.plural}),
    )
}

fn version(tag: &str) -> Value {
    let numbers: Vec<&str> = tag.trim_start_matches('v').split('.').collect();
    json!({
        "major": numbers.first(), "minor": numbers.get(1), "gitVersion": tag, "gitCommit": "0000000000000000000000000000000000000000",
        "gitTreeState": "clean", "buildDate": "2026-08-12T00:00:00Z", "goVersion": "go1.26.8", "compiler": "gc", "platform": "linux/amd64",
    })
}

fn discovered(document: &Value, accept: &str) -> Response {
    let aggregated = accept.contains("as=APIGroupDiscoveryList") && document["kind"] == "APIGroupDiscoveryList";
    let kind = if aggregated {
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    } else {
        "application/json"
    };
    ([(header::CONTENT_TYPE, kind)], document.to_string()).into_response()
}

struct Call<'a> {
    server: &'a ApiServer,
    store: &'a Arc<Store>,
    options: &'a Options,
    accept: &'a str,
}

impl Call<'_> {
    fn now(&self) -> String {
        let now = self.server.wall.now();
        jiff::Timestamp::from_second(now.as_second()).unwrap_or(now).to_string()
    }

    fn wants_table(&self) -> bool {
        self.accept.contains("as=Table")
    }

    fn key(at: &ResourcePath) -> Key {
        Key::new(
            at.kind,
            at.namespace.as_deref().unwrap_or_default(),
            at.name.as_deref().unwrap_or_default(),
        )
    }

    fn refuse(&self, at: &Key, error: &StoreError) -> Response {
        let name = &at.name;
        let kind = at.kind.qualified();
        let details = json!({"name": name, "group": at.kind.group, "kind": at.kind.plural});
        match error {
            StoreError::NotFound => status(
                StatusCode::NOT_FOUND,
                "NotFound",
                &format!("{kind} \"{name}\" not found"),
                details,
            ),
            StoreError::AlreadyExists => status(
                StatusCode::CONFLICT,
                "AlreadyExists",
                &format!("{kind} \"{name}\" already exists"),
                details,
            ),
            StoreError::Conflict => {
                let why = "the object has been modified; please apply your changes to the latest version and try again";
                status(
                    StatusCode::CONFLICT,
                    "Conflict",
                    &format!("Operation cannot be fulfilled on {kind} \"{name}\": {why}"),
                    details,
                )
            }
            StoreError::Expired => {
                let now = self.store.revision();
                let asked = self.options.resource_version.clone().unwrap_or_default();
                status(
                    StatusCode::GONE,
                    "Expired",
                    &format!("too old resource version: {asked} ({now})"),
                    json!({}),
                )
            }
        }
    }

    fn answer(&self, code: StatusCode, kind: &'static Kind, object: &Value) -> Response {
        if !self.wants_table() {
            return (code, axum::Json(object)).into_response();
        }
        let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
        (
            code,
            axum::Json(table::table(kind, &metadata, &[object], self.server.wall.now())),
        )
            .into_response()
    }

    fn get(&self, at: &ResourcePath) -> Response {
        let key = Self::key(at);
        match self.store.get(&key) {
            Some(object) => self.answer(StatusCode::OK, at.kind, &object),
            None => self.refuse(&key, &StoreError::NotFound),
        }
    }

    fn list(&self, at: &ResourcePath) -> Response {
        let (revision, mut items) = self.store.list(at.kind, at.namespace.as_deref());
        items.retain(|item| self.options.selector.matches(item));
        let rest = items.split_off(self.options.resume_at.min(items.len()));
        let shown = self.options.limit.unwrap_or(rest.len()).min(rest.len());
        let mut metadata = json!({"resourceVersion": revision.to_string()});
        if shown < rest.len() {
            metadata["continue"] = json!((self.options.resume_at + shown).to_string());
            metadata["remainingItemCount"] = json!(rest.len() - shown);
        }
        let items: Vec<&Value> = rest.iter().take(shown).map(|item| &**item).collect();
        if self.wants_table() {
            return axum::Json(table::table(at.kind, &metadata, &items, self.server.wall.now())).into_response();
        }
        let kind = format!("{}List", at.kind.kind);
        axum::Json(json!({"kind": kind, "apiVersion": at.kind.api_version(), "metadata": metadata, "items": items}))
            .into_response()
    }

    fn create(&self, at: &ResourcePath, body: &[u8]) -> Response {
        let mut object: Value = match parse(body) {
            Ok(object) => object,
            Err(refusal) => return *refusal,
        };
        if object["metadata"]["name"].is_null()
            && let Some(prefix) = object["metadata"]["generateName"].as_str()
        {
            object["metadata"]["name"] = json!(format!("{prefix}{:05x}", self.store.revision()));
        }
        let Some(name) = object["metadata"]["name"].as_str().map(str::to_owned) else {
            let message = format!(
                "{} \"\" is invalid: metadata.name: Required value: name or generateName is required",
                at.kind.kind
            );
            return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message, json!({}));
        };
        let key = Key::new(at.kind, at.namespace.as_deref().unwrap_or_default(), &name);
        if let Some(refusal) = self.missing_namespace(&key) {
            return refusal;
        }
        complete(&mut object, &key);
        if let Some(refusal) = self.refused_by_admission(&mut object, &key) {
            return refusal;
        }
        if self.options.dry_run {
            return self.answer(StatusCode::CREATED, at.kind, &object);
        }
        match self.store.create(&key, object, &self.now()) {
            Ok(object) => self.answer(StatusCode::CREATED, at.kind, &object),
            Err(error) => self.refuse(&key, &error),
        }
    }

    fn missing_namespace(&self, key: &Key) -> Option<Response> {
        let namespace = Key::new(&kinds::NAMESPACES, "", &key.namespace);
        if !key.kind.namespaced {
            return None;
        }
        match self.store.get(&namespace) {
            None => Some(self.refuse(&namespace, &StoreError::NotFound)),
            // Only new objects are refused.
            Some(object) if is_deleting(&object) && self.store.get(key).is_none() => Some(eviction::terminating(key)),
            Some(_) => None,
        }
    }

    /// What admission says about a new object; it may also change it.
    fn refused_by_admission(&self, object: &mut Value, key: &Key) -> Option<Response> {
        if let Some(why) = admission::too_large(key, object) {
            return Some(status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &why, json!({})));
        }
        if *key.kind != kinds::PODS {
            return None;
        }
        if let Some(why) = admission::refuse_pod(self.store, &key.namespace, &key.name, &object["spec"]) {
            let details = json!({"name": key.name, "kind": "pods"});
            return Some(status(StatusCode::FORBIDDEN, "Forbidden", &why, details));
        }
        admission::default_pod(object);
        None
    }

    fn log(&self, at: &ResourcePath) -> Response {
        let key = Self::key(at);
        match self.store.get(&key) {
            Some(_) => self.store.log(&key).into_response(),
            None => self.refuse(&key, &StoreError::NotFound),
        }
    }

    fn replace(&self, at: &ResourcePath, body: &[u8]) -> Response {
        let new = match parse(body) {
            Ok(object) => object,
            Err(refusal) => return *refusal,
        };
        self.change(at, |object| {
            let version = &new["metadata"]["resourceVersion"];
            if !version.is_null() && *version != object["metadata"]["resourceVersion"] {
                return Err(StoreError::Conflict);
            }
            let mut new = new.clone();
            // `status` is written through its subresource alone, and only there.
            if at.kind.status {
                let (kept, from) = if at.sub.is_some() {
                    ("spec", &*object)
                } else {
                    ("status", &*object)
                };
                new[kept] = from[kept].clone();
            }
            complete(&mut new, &Self::key(at));
            *object = new;
            Ok(())
        })
    }

    fn change(&self, at: &ResourcePath, change: impl FnOnce(&mut Value) -> Result<(), StoreError>) -> Response {
        let key = Self::key(at);
        match self.store.update(&key, change) {
            Ok(object) => self.answer(StatusCode::OK, at.kind, &object),
            Err(error) => self.refuse(&key, &error),
        }
    }

    fn patch(&self, at: &ResourcePath, content_type: &str, body: &[u8]) -> Response {
        let how = content_type.split(';').next().unwrap_or_default().trim();
        if how == "application/apply-patch+yaml" {
            return self.apply(at, body);
        }
        let patch = match parse(body) {
            Ok(patch) => patch,
            Err(refusal) => return *refusal,
        };
        let mut failed = None;
        let answer = self.change(at, |object| {
            let before = object["metadata"]["resourceVersion"].clone();
            match how {
                "application/json-patch+json" => failed = patch::json_patch(object, &patch).err(),
                "application/strategic-merge-patch+json" => patch::strategic(object, &patch),
                _ => patch::merge(object, &patch),
            }
            let asked = &object["metadata"]["resourceVersion"];
            if failed.is_some() || *asked != before {
                Err(StoreError::Conflict)
            } else {
                Ok(())
            }
        });
        match failed {
            Some(why) => status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &why, json!({})),
            None => answer,
        }
    }

    fn apply(&self, at: &ResourcePath, body: &[u8]) -> Response {
        if self.options.field_manager.is_empty() {
            let message = "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch";
            return status(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message, json!({}));
        }
        let applied: Value = match std::str::from_utf8(body).ok().and_then(|text| crate::yaml::parse(text).ok()) {
            Some(applied) => applied,
            None => return status(StatusCode::BAD_REQUEST, "BadRequest", "error decoding YAML", json!({})),
        };
        let key = Self::key(at);
        if let Some(refusal) = self.missing_namespace(&key) {
            return refusal;
        }
        if self.store.get(&key).is_none() {
            return self.apply_new(at, &key, &applied);
        }
        let mut conflicts = Vec::new();
        let answer = self.change(at, |object| {
            patch::apply(object, &applied, &self.options.field_manager, self.options.force).map_err(|paths| {
                conflicts = paths;
                StoreError::Conflict
            })
        });
        if conflicts.is_empty() {
            answer
        } else {
            self.apply_conflict(&conflicts)
        }
    }

    fn apply_new(&self, at: &ResourcePath, key: &Key, applied: &Value) -> Response {
        let mut object = json!({"apiVersion": at.kind.api_version(), "kind": at.kind.kind, "metadata": {"name": key.name}});
        // A new object has no other manager to be in conflict with.
        let _ = patch::apply(&mut object, applied, &self.options.field_manager, true);
        complete(&mut object, key);
        if let Some(refusal) = self.refused_by_admission(&mut object, key) {
            return refusal;
        }
        if self.options.dry_run {
            return self.answer(StatusCode::CREATED, at.kind, &object);
        }
        match self.store.create(key, object, &self.now()) {
            Ok(object) => self.answer(StatusCode::CREATED, at.kind, &object),
            Err(error) => self.refuse(key, &error),
        }
    }

    fn apply_conflict(&self, paths: &[String]) -> Response {
        let field = |path: &String| path.replace('/', ".").replace("~1", "/");
        let causes: Vec<Value> = paths
            .iter()
            .map(|path| json!({"reason": "FieldManagerConflict", "field": field(path)}))
            .collect();
        let list: Vec<String> = paths.iter().map(|path| format!("- {}", field(path))).collect();
        let (count, s) = (paths.len(), if paths.len() == 1 { "" } else { "s" });
        let message = format!(
            "Apply failed with {count} conflict{s}: conflicts with another manager:\n{}",
            list.join("\n")
        );
        status(StatusCode::CONFLICT, "Conflict", &message, json!({"causes": causes}))
    }

    fn delete(&self, at: &ResourcePath, body: &[u8]) -> Response {
        let key = Self::key(at);
        let options = eviction::DeleteOptions::parse(body, self.options);
        let Some(object) = self.store.get(&key) else {
            return self.refuse(&key, &StoreError::NotFound);
        };
        if let Some(refusal) = options.unmet(&key, &object) {
            return refusal;
        }
        if options.dry_run {
            return self.answer(StatusCode::OK, at.kind, &object);
        }
        match eviction::delete(self.store, &key, &options, &self.now(), self.server.wall.now()) {
            // An object that stays for a while is the answer itself.
            Ok(object) if self.store.get(&key).is_some() => self.answer(StatusCode::OK, at.kind, &object),
            Ok(object) => {
                let details =
                    json!({"name": key.name, "group": key.kind.group, "kind": key.kind.plural, "uid": object["metadata"]["uid"]});
                axum::Json(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}))
                    .into_response()
            }
            Err(error) => self.refuse(&key, &error),
        }
    }

    fn delete_all(&self, at: &ResourcePath) -> Response {
        let (_, mut items) = self.store.list(at.kind, at.namespace.as_deref());
        items.retain(|item| self.options.selector.matches(item));
        for item in &items {
            let metadata = &item["metadata"];
            let key = Key::new(
                at.kind,
                metadata["namespace"].as_str().unwrap_or_default(),
                metadata["name"].as_str().unwrap_or_default(),
            );
            let options = eviction::DeleteOptions::default();
            let _ = eviction::delete(self.store, &key, &options, &self.now(), self.server.wall.now());
        }
        axum::Json(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})).into_response()
    }

    fn evict(&self, at: &ResourcePath, body: &[u8]) -> Response {
        let key = Self::key(at);
        let options = match eviction::DeleteOptions::of_eviction(body, &key) {
            Ok(options) => options,
            Err(why) => return status(StatusCode::BAD_REQUEST, "BadRequest", &why, json!({})),
        };
        if self.store.get(&key).is_none() {
            return self.refuse(&key, &StoreError::NotFound);
        }
        let namespace = self.store.get(&Key::new(&kinds::NAMESPACES, "", &key.namespace));
        if namespace.is_some_and(|namespace| is_deleting(&namespace)) {
            return eviction::terminating(&key);
        }
        eviction::evict(self.store, &key, &options, &self.now(), self.server.wall.now())
    }

    fn watch(&self, at: &ResourcePath) -> Response {
        let from = self
            .options
            .resource_version
            .as_deref()
            .and_then(|version| version.parse::<u64>().ok())
            .filter(|version| *version > 0);
        let (revision, items) = self.store.list(at.kind, at.namespace.as_deref());
        let begin = from.filter(|_| !self.options.initial_events);
        if let Some(from) = begin
            && let Err(error) = self.store.changes(at.kind, at.namespace.as_deref(), from)
        {
            return self.refuse(&Self::key(at), &error);
        }
        let events = WatchEvents {
            kind: at.kind,
            namespace: at.namespace.clone(),
            name: at.name.clone(),
            options: self.options.clone(),
            table: self.wants_table(),
            wall: self.server.wall,
            leases: shows_leases(at).then(|| Arc::clone(&self.server.leases)),
        };
        let mut first = String::new();
        if begin.is_none() {
            items
                .iter()
                .filter(|item| events.wants(item))
                .for_each(|item| first.push_str(&events.line("ADDED", item)));
            if self.options.initial_events {
                first.push_str(&events.bookmark(revision, true));
            }
        }
        let content = if self.wants_table() {
            "application/json;as=Table;v=v1;g=meta.k8s.io"
        } else {
            "application/json"
        };
        let body = Body::from_stream(events.stream(Arc::clone(self.store), first, begin.unwrap_or(revision)));
        ([(header::CONTENT_TYPE, content)], body).into_response()
    }
}

fn parse(body: &[u8]) -> Result<Value, Box<Response>> {
    serde_json::from_slice(body).map_err(|error| {
        let message = format!("the object provided is unrecognized (must be of type JSON): {error}");
        Box::new(status(StatusCode::BAD_REQUEST, "BadRequest", &message, json!({})))
    })
}

/// What every stored object has.
fn complete(object: &mut Value, key: &Key) {
    object["apiVersion"] = json!(key.kind.api_version());
    object["kind"] = json!(key.kind.kind);
    object["metadata"]["name"] = json!(key.name);
    if key.kind.namespaced {
        object["metadata"]["namespace"] = json!(key.namespace);
    }
    if key.kind.plural == "namespaces" && object["status"].is_null() {
        object["status"] = json!({"phase": "Active"});
        object["spec"]["finalizers"] = json!(["kubernetes"]);
        object["metadata"]["labels"]["kubernetes.io/metadata.name"] = json!(key.name);
    }
}

struct WatchEvents {
    kind: &'static Kind,
    namespace: Option<String>,
    name: Option<String>,
    options: Options,
    table: bool,
    wall: Wall,
    /// For those who watch the leases of kubelets.
    leases: Option<Arc<Leases>>,
}

impl WatchEvents {
    fn wants(&self, object: &Value) -> bool {
        self.options.selector.matches(object) && self.name.as_deref().is_none_or(|name| object["metadata"]["name"] == name)
    }

    fn line(&self, what: &str, object: &Value) -> String {
        if self.table {
            let metadata = json!({"resourceVersion": object["metadata"]["resourceVersion"]});
            let table = table::table(self.kind, &metadata, &[object], self.wall.now());
            return format!("{}\n", json!({"type": what, "object": table}));
        }
        format!("{}\n", json!({"type": what, "object": object}))
    }

    fn bookmark(&self, revision: u64, end_of_initial: bool) -> String {
        let mut metadata = json!({"resourceVersion": revision.to_string(), "creationTimestamp": null});
        if end_of_initial {
            metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
        }
        let object = json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata});
        format!("{}\n", json!({"type": "BOOKMARK", "object": object}))
    }

    /// First what exists, then every change, until the client or its timeout ends it.
    fn stream(self, store: Arc<Store>, first: String, from: u64) -> impl futures::Stream<Item = Result<Bytes, std::io::Error>> {
        let deadline = self
            .options
            .timeout_seconds
            .map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let moved = store.watch_revision();
        futures::stream::unfold(
            (self, store, moved, Some(first), from),
            move |(events, store, mut moved, first, from)| async move {
                if let Some(first) = first.filter(|first| !first.is_empty()) {
                    return Some((Ok(Bytes::from(first)), (events, store, moved, None, from)));
                }
                let mut from = from;
                loop {
                    moved.mark_unchanged();
                    if let Some(leases) = &events.leases {
                        (leases.write)();
                    }
                    let (revision, changes) = store.changes(events.kind, events.namespace.as_deref(), from).ok()?;
                    from = revision;
                    let lines: String = changes
                        .iter()
                        .filter(|change| events.wants(&change.object))
                        .map(|change| events.line(word(change.what), &change.object))
                        .collect();
                    if !lines.is_empty() {
                        return Some((Ok(Bytes::from(lines)), (events, store, moved, None, from)));
                    }
                    let glance = events.leases.as_ref().map(|leases| Instant::now() + leases.glance);
                    tokio::select! {
                        biased;
                        changed = moved.changed() => changed.ok()?,
                        () = reached(deadline) => return None,
                        () = reached(glance) => {}
                    }
                }
            },
        )
    }
}

async fn reached(when: Option<Instant>) {
    match when {
        Some(when) => tokio::time::sleep_until(when).await,
        None => std::future::pending().await,
    }
}

fn word(what: ChangeType) -> &'static str {
    match what {
        ChangeType::Added => "ADDED",
        ChangeType::Modified => "MODIFIED",
        ChangeType::Deleted => "DELETED",
    }
}
