//! From a request to its answer, in pveproxy's order: route, authenticate, authorise, forward, validate, do.

use std::time::Duration;

use serde_json::{Value, json};

use crate::access::{self, Auth, Login};
use crate::datacenter::{Answer, Datacenter, Reply, Verdict};
use crate::die::Die;
use crate::http::{self, Format, Request, Response, decode_form, decode_json, unescape};
use crate::observe::Seen;
use crate::schema::{Method, Param, Params, Permission, Route, check_parameters, schema};
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
    format: Format,
    path: String,
    query: &'a str,
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
        let auth = match self.authenticate(asked, route.as_ref()) {
            Ok(auth) => auth,
            Err(die) => {
                tokio::time::sleep(PENALTY).await;
                return Some(Response::plain(die.status(), &die.message, ""));
            }
        };
        seen.by = auth.as_ref().map(Auth::full);
        let Some(route) = route else {
            let text = format!("Method '{} {}' not implemented", asked.request.verb, asked.path);
            return Some(self.wrap(asked, Err(Die::bare(501, text))));
        };
        if route.method.template.ends_with("/upload") {
            return self.respond_upload(contacted, asked, route, auth).await;
        }
        let answer = self.carry_out(contacted, asked, route, auth, seen).await;
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
        Some(self.wrap(asked, answer))
    }

    fn wrap(&self, asked: &Asked<'_>, answer: Answer) -> Response {
        http::render(asked.format, answer, self.release().number() >= (8, 4))
    }

    /// Who is it? `None` where nobody needs to be.
    fn authenticate(&self, asked: &Asked<'_>, route: Option<&Route>) -> Result<Option<Auth>, Die> {
        let now = self.epoch();
        let open = route.is_some_and(|r| matches!(r.method.permission, Permission::World));
        let state = self.state();
        match Login::of(asked.request) {
            Login::Token(token) => state.access.verify_token(&token, now).map(Some),
            _ if open => Ok(None),
            Login::Nothing => Err(Die::with_code(401, "No ticket")),
            Login::Ticket(ticket) => {
                let writes = asked.request.verb != "GET" && !asked.path.ends_with("/upload");
                let csrf = asked.request.header("csrfpreventiontoken");
                state
                    .access
                    .verify_session(self.signer(), &ticket, csrf, writes, now)
                    .map(Some)
            }
        }
    }

    async fn carry_out(&self, contacted: &str, asked: &Asked<'_>, route: Route, auth: Option<Auth>, seen: &mut Seen) -> Answer {
        let method = route.method;
        if auth.as_ref().is_some_and(|a| a.token.is_some()) && !method.token_allowed {
            let text = format!("URI '{}' not available with API token, need proper ticket.\n", asked.path);
            return Err(Die::permission(&text));
        }
        let mut params = decode(asked)?;
        put_path_values(&mut params, &route)?;
        seen.params = visible(&params);
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

    /// Uploads have a path of their own: no forwarding, no CSRF check, and a refusal without a word.
    async fn respond_upload(&self, contacted: &str, asked: &Asked<'_>, route: Route, auth: Option<Auth>) -> Option<Response> {
        let auth = auth?;
        let mut params = Params::default();
        let _ = put_path_values(&mut params, &route);
        let forbidden = access::permit(&self.state().access, &auth, route.method, &params).err();
        if let Some(die) = forbidden {
            tokio::time::sleep(PENALTY).await;
            return Some(Response::plain(die.status(), &die.message, ""));
        }
        let job = Job::request(self, contacted, &auth);
        let answer = storage::upload(&job, asked.request, route.method, params).await?;
        Some(self.wrap(asked, answer))
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
    let target = request.target.split_once("://").map_or(request.target.as_str(), |(_, rest)| {
        &rest[rest.find('/').unwrap_or(rest.len())..]
    });
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let decoded = unescape(path);
    let Some(rest) = decoded.strip_prefix("/api2") else {
        let text = format!("no such file '{decoded}'");
        return Err(Response::plain(500, &text, format!("{text}\n")));
    };
    let mut parts = rest.splitn(3, '/');
    let _ = parts.next();
    let Some(name) = parts.next().filter(|n| !n.is_empty()) else {
        return Err(Response::plain(501, "no such uri", "no such uri"));
    };
    let path = format!("/{}", parts.next().unwrap_or_default());
    match Format::parse(name) {
        Some(format) => Ok(Asked {
            request,
            format,
            path: clean(&path),
            query,
        }),
        None => {
            let text = format!("no formatter for uri {}, {name}", clean(&path));
            Err(Response::plain(501, &text, text.clone()))
        }
    }
}

/// Empty segments do not count.
fn clean(path: &str) -> String {
    let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
    format!("/{}", segments.join("/"))
}

fn decode(asked: &Asked<'_>) -> Result<Params, Die> {
    let mut params = Params::default();
    let media = asked
        .request
        .header("content-type")
        .and_then(|c| c.split(';').next())
        .unwrap_or_default()
        .trim();
    if media == "application/json" && !asked.request.body.is_empty() {
        decode_json(&asked.request.body, &mut params)?;
    } else {
        decode_form(&String::from_utf8_lossy(&asked.request.body), &mut params);
    }
    let mut query = Params::default();
    decode_form(asked.query, &mut query);
    params.0.extend(query.0);
    params.0.shift_remove("_dc");
    Ok(params)
}

fn put_path_values(params: &mut Params, route: &Route) -> Result<(), Die> {
    for (name, value) in &route.path {
        if params.get(name).is_some_and(|given| given != value) {
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
