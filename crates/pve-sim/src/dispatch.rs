//! From a request to its answer, in pveproxy's order: route, authenticate, authorise, forward, validate, do.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::access::{self, Auth, Login};
use crate::datacenter::{Answer, Datacenter, Reply, Verdict};
use crate::die::Die;
use crate::http::{self, Form, Format, Request, Response, decode_form, decode_json};
use crate::observe::Seen;
use crate::schema::{Method, Param, Params, Route, check_parameters, schema};
use crate::tasks::Job;
use crate::{cluster, nodes, qemu, storage};

/// Failed logins and forbidden uploads are answered late.
const PENALTY: Duration = Duration::from_secs(3);

/// So long a host waits for another that says nothing.
const PROXY_PATIENCE: Duration = Duration::from_secs(30);

/// One call, ready to be carried out.
pub(crate) struct Call {
    pub job: Job,
    pub params: Params,
    pub method: &'static Method,
    /// The host that was contacted; `job.host` is the one that does it.
    pub contacted: String,
    /// The file that came with an upload.
    pub file: Option<Bytes>,
}

impl Call {
    /// Where it goes: `("POST", "/nodes/{node}/qemu")`.
    pub fn what(&self) -> (&str, &str) {
        (&self.method.verb, &self.method.template)
    }

    pub fn not_simulated(&self) -> Answer {
        Err(Die::bare(
            501,
            format!("'{} {}' is not simulated", self.method.verb, self.method.template),
        ))
    }
}

/// A request, taken apart.
struct Asked<'a> {
    request: &'a Request,
    /// `json` and its like, known or not.
    format: String,
    /// As pveproxy shows it.
    uri: String,
    /// Without empty segments.
    path: String,
    query: &'a str,
}

/// Everything that decides over a call before its parameters are checked.
struct Asking {
    route: Route,
    auth: Option<Auth>,
    params: Params,
    file: Option<Bytes>,
}

impl Datacenter {
    /// Answers one request that reached a host.
    pub async fn answer(&self, contacted: &str, request: &Request) -> Verdict {
        let mut seen = Seen {
            host: contacted.into(),
            by: None,
            verb: request.verb.clone(),
            path: String::new(),
            template: None,
            params: Value::Null,
            status: None,
            reason: String::new(),
            answer: String::new(),
        };
        let verdict = self.decide(contacted, request, &mut seen).await;
        let call = format!("{} {}", seen.verb, seen.template.unwrap_or(&seen.path));
        self.stats().count(call);
        let observers = self.observers();
        if !observers.is_empty() {
            if let Verdict::Answer(response) = &verdict {
                seen.status = Some(response.status);
                seen.reason.clone_from(&response.reason);
                seen.answer = String::from_utf8_lossy(&response.body).into_owned();
            }
            observers.iter().for_each(|o| o.request(&seen));
        }
        verdict
    }

    async fn decide(&self, contacted: &str, request: &Request, seen: &mut Seen) -> Verdict {
        let asked = match take_apart(request) {
            Ok(asked) => asked,
            Err(refusal) => return Verdict::Answer(refusal),
        };
        seen.path.clone_from(&asked.path);
        let route = schema().route(&request.verb, &asked.path);
        seen.template = route.as_ref().map(|r| r.method.template.as_str());
        let call = format!("{} {}", request.verb, seen.template.unwrap_or(&asked.path));
        let fate = self.faults().fate(&call, &asked.path);
        tokio::time::sleep(self.pace().scale(self.timing().request) + fate.delay).await;
        if fate.cut_before {
            return Verdict::HangUp;
        }
        if let Some(refusal) = fate.refuse {
            return Verdict::Answer(refusal);
        }
        let response = self.respond(contacted, &asked, route, seen).await;
        if fate.cut_after {
            return Verdict::HangUp;
        }
        match fate.replace {
            Some(other) => Verdict::Answer(other),
            None => response.map_or(Verdict::HangUp, Verdict::Answer),
        }
    }

    async fn respond(&self, contacted: &str, asked: &Asked<'_>, route: Option<Route>, seen: &mut Seen) -> Option<Response> {
        let auth = match self.authenticate(asked) {
            Ok(auth) => auth,
            Err(die) => {
                tokio::time::sleep(PENALTY).await;
                return Some(Response::plain(die.status(), &die.message, ""));
            }
        };
        seen.by = auth.as_ref().map(Auth::full);
        let form = match self.read_body(asked) {
            Body::Plain => None,
            Body::Form(form) => Some(form),
            Body::Refused(response) => return Some(response),
            Body::Silent => {
                // Its code died before it could answer; the connection runs into its timeout.
                tokio::time::sleep(http::READ_TIMEOUT).await;
                return None;
            }
        };
        let Some(format) = Format::parse(&asked.format) else {
            let text = format!("no formatter for uri {}, {}", asked.uri, asked.format);
            return Some(Response::plain(501, &text, text.clone()));
        };
        let answer = self.answer_call(contacted, asked, (route, auth, form), seen).await;
        if let Err(die) = &answer {
            if die.status() == 401 {
                tokio::time::sleep(PENALTY).await;
            }
            // What the connection to another host says has no body.
            if (595..=599).contains(&die.status()) {
                return Some(Response::plain(die.status(), &die.message, ""));
            }
            if die.message == "proxy loop detected" {
                return Some(Response::plain(500, &die.message, die.message.clone()));
            }
        }
        Some(self.wrap(format, answer))
    }

    async fn answer_call(
        &self,
        contacted: &str,
        asked: &Asked<'_>,
        (route, auth, form): (Option<Route>, Option<Auth>, Option<Form>),
        seen: &mut Seen,
    ) -> Answer {
        let params = decode(asked, form.as_ref())?;
        let Some(route) = route else {
            let text = format!("Method '{} {}' not implemented", asked.request.verb, asked.uri);
            return Err(Die::bare(501, text));
        };
        let asking = Asking {
            route,
            auth,
            params,
            file: form.map(|f| f.file),
        };
        self.carry_out(contacted, asked, asking, seen).await
    }

    /// What the body is, judged by its length and type. This comes after the login.
    fn read_body(&self, asked: &Asked<'_>) -> Body {
        let request = asked.request;
        let length = request.length();
        let refuse = |status, text: String| Body::Refused(Response::plain(status, &text, text.clone()));
        if length == 0 {
            return Body::Plain;
        }
        if !matches!(request.verb.as_str(), "POST" | "PUT") {
            return refuse(501, format!("Unexpected content for method '{}'", request.verb));
        }
        let (media, boundary) = http::content_type(request);
        if request.is_upload() {
            let mut query = Params::default();
            decode_form(asked.query, &mut query);
            return match boundary {
                Some(boundary) if media == Some("multipart/form-data") && !query.has("tmpfilename") => {
                    http::parse_upload(&request.body, boundary).map_or_else(Body::Refused, Body::Form)
                }
                _ => Body::Silent,
            };
        }
        if length > self.body_limit() {
            return refuse(501, "for data too large".into());
        }
        match media.unwrap_or_default() {
            "" | "application/x-www-form-urlencoded" | "application/json" => Body::Plain,
            _ => {
                let kind = request.header("content-type").unwrap_or_default();
                refuse(506, format!("upload 'Content-Type '{kind}' not implemented"))
            }
        }
    }

    fn wrap(&self, format: Format, answer: Answer) -> Response {
        http::render(format, answer, self.release().number() >= (8, 4))
    }

    /// Who is it? `None` where no login is needed; nothing that proves one is looked at there.
    fn authenticate(&self, asked: &Asked<'_>) -> Result<Option<Auth>, Die> {
        let now = self.epoch();
        let verb = asked.request.verb.as_str();
        if is_open(verb, &asked.uri) {
            return Ok(None);
        }
        let upload = asked.request.is_upload();
        let state = self.state();
        let auth = match Login::of(asked.request) {
            Login::Nothing => return Err(Die::with_code(401, "No ticket")),
            Login::Token(token) => state.access.verify_token(&token, now)?,
            Login::Ticket(ticket) => {
                let auth = state.access.verify_ticket(self.signer(), &ticket, now)?;
                if verb != "GET" && !upload {
                    let csrf = asked.request.header("csrfpreventiontoken");
                    state.access.verify_csrf(self.signer(), &auth, csrf, now)?;
                }
                auth
            }
        };
        if upload && !auth.is_root() {
            // Uploads skip the CSRF check, so the right to upload is asked for at once.
            let storage = asked.uri.split('/').nth(4).unwrap_or_default();
            state
                .access
                .check(&auth, &format!("/storage/{storage}"), &["Datastore.AllocateTemplate"])?;
        }
        Ok(Some(auth))
    }

    async fn carry_out(&self, contacted: &str, asked: &Asked<'_>, asking: Asking, seen: &mut Seen) -> Answer {
        let Asking {
            route,
            auth,
            mut params,
            file,
        } = asking;
        let method = route.method;
        put_path_values(&mut params, &route)?;
        seen.params = visible(&params);
        if !method.token_allowed && matches!(Login::of(asked.request), Login::Token(_)) {
            let text = format!("URI '{}' not available with API token, need proper ticket.\n", asked.uri);
            return Err(Die::permission(&text));
        }
        let auth = auth.unwrap_or_else(|| Auth::user(""));
        access::permit(&self.state().access, &auth, method, &params)?;
        let host = self.forward(contacted, asked.request, method, &params)?;
        if host != contacted && self.state().nodes.get(&host).is_some_and(|n| n.frozen) {
            tokio::time::sleep(PROXY_PATIENCE).await;
            return Err(Die::bare(596, "Connection timed out"));
        }
        check_parameters(method, &mut params)?;
        let job = Job::request(self, &host, &auth);
        handle(Call {
            job,
            params,
            method,
            contacted: contacted.into(),
            file,
        })
        .await
    }

    /// The host that has to do it, if it can be reached.
    fn forward(&self, contacted: &str, request: &Request, method: &Method, params: &Params) -> Result<String, Die> {
        let node = params.get("node").unwrap_or(contacted);
        if !method.proxied_to_node || node == "localhost" || node == contacted {
            return Ok(contacted.into());
        }
        let state = self.state();
        let Some(target) = state.nodes.get(node) else {
            let why = if node.contains("..") {
                "Name or service not known"
            } else {
                "Temporary failure in name resolution"
            };
            let text = format!("hostname lookup '{node}' failed - failed to get address info for: {node}: {why}");
            return Err(Die::new(text));
        };
        if request.header("pvedisableproxy").is_some() {
            return Err(Die::new("proxy loop detected"));
        }
        if !state.sees(contacted, node) {
            return Err(Die::bare(595, "No route to host"));
        }
        if !target.proxy {
            return Err(Die::bare(595, "Connection refused"));
        }
        Ok(node.into())
    }
}

/// A body, after its length and type were looked at.
enum Body {
    Plain,
    Form(Form),
    Refused(Response),
    /// pveproxy's code dies and sends nothing.
    Silent,
}

/// Calls that need no login, by their exact path.
fn is_open(verb: &str, uri: &str) -> bool {
    match uri {
        "/access/domains" => verb == "GET",
        "/access/ticket" => matches!(verb, "GET" | "POST"),
        "/access/vncticket" | "/access/openid/login" | "/access/openid/auth-url" => verb == "POST",
        _ => false,
    }
}

/// Everything the caller sent, for the recorder; passwords are not.
fn visible(params: &Params) -> Value {
    let hidden = |name: &str| name.contains("password");
    let text = |name: &str, param: &Param| match param {
        _ if hidden(name) => json!("***"),
        Param::Text(text) => json!(text),
        Param::Bool(b) => json!(b),
        Param::List(items) => json!(items.iter().map(|i| format!("{i:?}")).collect::<Vec<_>>()),
        Param::Hash | Param::Undefined => Value::Null,
    };
    Value::Object(
        params
            .0
            .iter()
            .map(|(name, param)| (name.clone(), text(name, param)))
            .collect(),
    )
}

fn take_apart(request: &Request) -> Result<Asked<'_>, Response> {
    let (path, query) = request.path_and_query();
    let Some(rest) = path.strip_prefix("/api2") else {
        let text = format!("no such file '{path}'");
        return Err(Response::plain(500, &text, format!("{text}\n")));
    };
    let below = rest.trim_start_matches('/');
    let (format, uri) = match below.find('/') {
        Some(at) if rest != below => (&below[..at], &below[at..]),
        None if rest != below => (below, "/"),
        _ => ("", "/"),
    };
    let mut letters = format.bytes();
    let known = letters.next().is_some_and(|b| b.is_ascii_lowercase())
        && format.len() > 1
        && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    if !known {
        return Err(Response::plain(501, "no such uri", "no such uri"));
    }
    Ok(Asked {
        request,
        format: format.into(),
        uri: uri.into(),
        path: clean(uri),
        query,
    })
}

/// Empty segments do not count.
fn clean(path: &str) -> String {
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    format!("/{}", segments.join("/"))
}

/// The parameters of body and query; those of the query win, but for an upload's form.
fn decode(asked: &Asked<'_>, form: Option<&Form>) -> Result<Params, Die> {
    let request = asked.request;
    let mut query = Params::default();
    decode_form(asked.query, &mut query);
    let mut params = if let Some(form) = form {
        for (name, value) in &form.fields {
            query.set(name, value.as_str());
        }
        query.set("filename", form.filename.as_str());
        query
    } else if !matches!(request.verb.as_str(), "POST" | "PUT") {
        query
    } else if http::content_type(request).0 == Some("application/json") {
        decode_json(&request.body, query)?
    } else {
        let mut body = Params::default();
        decode_form(&String::from_utf8_lossy(&request.body), &mut body);
        // On its way to pvedaemon an empty pair of a body may be dropped or not.
        body.0.retain(|name, value| !name.is_empty() || *value != Param::Undefined);
        body.0.extend(query.0);
        body
    };
    params.0.shift_remove("_dc");
    Ok(params)
}

/// Path parameters may be repeated, but not with another value.
fn put_path_values(params: &mut Params, route: &Route) -> Result<(), Die> {
    let mut path: Vec<&(String, String)> = route.path.iter().collect();
    path.sort();
    for (name, value) in path {
        if params.has(name) && params.get(name) != Some(value) {
            return Err(Die::parameter(
                name,
                "duplicate parameter (already defined in URI) with conflicting values!",
            ));
        }
        params.set(name, value.clone());
    }
    Ok(())
}

async fn handle(call: Call) -> Answer {
    let template = call.method.template.as_str();
    if call.method.verb == "GET"
        && let Some(index) = index_of(template)
    {
        return Ok(index);
    }
    let below = |prefix: &str| template == prefix || template.strip_prefix(prefix).is_some_and(|rest| rest.starts_with('/'));
    if below("/access") {
        return access::handle(call).await;
    }
    if below("/pools") {
        return access::handle_pools(call).await;
    }
    if below("/storage") {
        return storage::handle_definitions(call).await;
    }
    if below("/nodes/{node}/qemu") {
        return qemu::handle(call).await;
    }
    if template == "/nodes/{node}/storage/{storage}/upload" {
        return storage::upload(call);
    }
    if below("/nodes/{node}/storage") {
        return storage::handle(call).await;
    }
    if below("/cluster") || template == "/version" {
        return cluster::handle(call).await;
    }
    nodes::handle(call).await
}

/// Directories of the API: what they list, and under which name.
const INDEXES: &[(&str, &str, &[&str])] = &[
    ("/", "subdir", &[]),
    ("/access", "subdir", &["permissions", "vncticket"]),
    ("/cluster", "name", &[]),
    ("/nodes/{node}", "name", &["execute", "vncwebsocket"]),
    ("/nodes/{node}/qemu/{vmid}", "subdir", &[]),
    ("/nodes/{node}/qemu/{vmid}/status", "subdir", &["resume"]),
    ("/nodes/{node}/tasks/{upid}", "name", &[]),
    ("/nodes/{node}/storage/{storage}", "subdir", &[]),
    ("/nodes/{node}/capabilities", "name", &[]),
    ("/nodes/{node}/capabilities/qemu", "name", &[]),
    ("/cluster/ha", "id", &[]),
    ("/cluster/ha/status", "name", &[]),
    ("/cluster/mapping", "name", &["cpu"]),
    (
        "/cluster/sdn",
        "id",
        &["lock", "rollback", "dry-run", "route-maps", "prefix-lists"],
    ),
    ("/nodes/{node}/qemu/{vmid}/agent", "name", &[]),
    ("/cluster/config", "name", &[]),
];

fn index_of(template: &str) -> Option<Reply> {
    let (_, key, hidden) = INDEXES.iter().find(|(path, ..)| *path == template)?;
    let names = schema().children(template);
    let entries: Vec<Value> = names
        .iter()
        .filter(|n| !hidden.contains(n))
        .map(|n| json!({ *key: n }))
        .collect();
    Some(Value::Array(entries).into())
}
