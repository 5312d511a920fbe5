//! The way of a call through apid: who calls, may they, and on which node is it answered.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use futures::StreamExt;
use http_body_util::BodyExt;
use mainstay_net::Peer;
use prost::Message;
use talos_proto::{common, google};
use tonic::{Code, Status};
use tower::ServiceExt;

use super::api;
use super::node::Node;
use super::rbac::{Role, Roles};
use crate::pki;

type Request = axum::extract::Request;

/// The machine API of a node. In maintenance everybody is a reader and headers route nowhere.
pub(crate) fn router(node: &Arc<Node>, maintenance: bool) -> Router {
    let weak = Arc::downgrade(node);
    let local = api::routes(node);
    Router::new().fallback(move |request: Request| {
        let (weak, local) = (weak.clone(), local.clone());
        async move {
            let Some(node) = weak.upgrade() else {
                return refuse(&Status::unavailable("error reading from server: EOF"));
            };
            let door = Door {
                node,
                local,
                maintenance,
            };
            door.handle(request).await.unwrap_or_else(|status| refuse(&status))
        }
    })
}

fn refuse(status: &Status) -> Response {
    status.clone().into_http::<Body>()
}

/// How long an address stays silent before it counts as unreachable.
const NO_ROUTE: Duration = Duration::from_secs(3);
const CONNECT: Duration = Duration::from_secs(20);

struct Door {
    node: Arc<Node>,
    local: Router,
    maintenance: bool,
}

enum Target {
    Local,
    One(String),
    Many(Vec<String>),
}

impl Door {
    async fn handle(&self, request: Request) -> Result<Response, Status> {
        let path = request.uri().path().to_owned();
        if self.maintenance {
            check_maintenance(&path, self.node.minor())?;
            return self.answer(request, Roles::reader()).await;
        }
        let roles = caller(&request);
        match target(&request)? {
            Target::Local => self.answer(request, roles).await,
            Target::One(name) => self.forward(&name, request, roles).await,
            Target::Many(names) => self.fan_out(&path, &names, request, roles).await,
        }
    }

    async fn answer(&self, request: Request, roles: Roles) -> Result<Response, Status> {
        let method = request.uri().path().rsplit('/').next().unwrap_or_default().to_owned();
        let response = answer(&self.local, request, roles).await;
        let node = &self.node;
        if node.site.loses_answer(&node.hardware.name, &method) {
            // The work is done, and the caller cannot know.
            node.site.sim.reset(node.addresses());
            return std::future::pending().await;
        }
        response
    }

    /// A node that is asked under one of its own names answers itself; any other is asked by a control plane only.
    fn find(&self, name: &str) -> Result<Arc<Node>, Status> {
        if name.is_empty() || name.parse::<IpAddr>().is_err() && name.contains(':') {
            return Err(Status::internal(format!("invalid target \"{name}\"")));
        }
        let own = self.node.addresses().iter().any(|address| address.to_string() == name) || self.node.hostname() == name;
        if own {
            return Ok(Arc::clone(&self.node));
        }
        if !self.node.is_control_plane() {
            return Err(Status::permission_denied("no request forwarding"));
        }
        let lost = |why: &str| {
            Status::unavailable(format!(
                "connection error: desc = \"transport: Error while dialing: dial tcp {name}:50000: connect: {why}\""
            ))
        };
        let Ok(address) = name.parse::<IpAddr>() else {
            return Err(Status::unavailable(format!(
                "dns: A record lookup error: lookup {name}: no such host"
            )));
        };
        let site = &self.node.site;
        let from = self.node.address().ok_or_else(|| lost("network is unreachable"))?;
        let other = site
            .node_at(address)
            .filter(|_| site.reaches(from, address))
            .ok_or_else(|| lost("no route to host"))?;
        // It must believe our certificate: the same cluster, and no maintenance.
        let same = other.config().and_then(|config| config.os_ca()) == self.node.config().and_then(|config| config.os_ca());
        if !other.api.is_serving() {
            return Err(lost("connection refused"));
        }
        if !same {
            return Err(Status::unavailable(
                "connection error: desc = \"transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate signed by unknown authority\"",
            ));
        }
        Ok(other)
    }

    async fn forward(&self, name: &str, request: Request, roles: Roles) -> Result<Response, Status> {
        let other = match self.find(name) {
            Ok(other) => other,
            Err(status) => return Err(self.after_a_while(name, status).await),
        };
        let response = answer(&api::routes(&other), request, roles).await?;
        Ok(until_gone(&other, response))
    }

    /// An unused address is reported as unreachable after a while; one that was in use until now takes longer.
    async fn after_a_while(&self, name: &str, status: Status) -> Status {
        if !status.message().contains("no route to host") {
            return status;
        }
        if name.parse().is_ok_and(|address| self.node.site.is_remembered(address)) {
            tokio::time::sleep(CONNECT).await;
            return Status::unavailable(format!(
                "connection error: desc = \"transport: Error while dialing: dial tcp {name}:50000: i/o timeout\""
            ));
        }
        tokio::time::sleep(NO_ROUTE).await;
        status
    }

    /// One answer per node, merged into one; a node that fails is a message with its error.
    async fn fan_out(&self, path: &str, names: &[String], request: Request, roles: Roles) -> Result<Response, Status> {
        if ![
            "machine.MachineService",
            "cluster.ClusterService",
            "inspect.InspectService",
            "storage.StorageService",
            "time.TimeService",
        ]
        .iter()
        .any(|service| path.starts_with(&format!("/{service}/")))
        {
            return Err(Status::invalid_argument(format!(
                "one-2-many proxying is not supported for method {path}"
            )));
        }
        if !self.node.is_control_plane() && names.iter().any(|name| self.find(name).is_err()) {
            return Err(Status::permission_denied("no request forwarding"));
        }
        let (parts, body) = request.into_parts();
        let body = body
            .collect()
            .await
            .map_err(|_| Status::internal("broken request"))?
            .to_bytes();
        let streams = is_stream(path);
        let mut answers = Vec::new();
        for name in names {
            let request = Request::from_parts(parts.clone(), Body::from(body.clone()));
            answers.push((name.clone(), self.forward(name, request, roles.clone()).await));
        }
        // Who could not be asked is told first.
        answers.sort_by_key(|(_, answer)| answer.is_ok());
        if streams {
            Ok(merge_streams(answers))
        } else {
            merge_unary(answers).await
        }
    }
}

fn caller(request: &Request) -> Roles {
    let names = |list: &[String]| Roles::parse(list.iter().map(String::as_str));
    let certificate = request
        .extensions()
        .get::<Peer>()
        .and_then(|peer| peer.certificates.first().cloned());
    let subject = certificate
        .and_then(|certificate| pki::subject(&certificate))
        .unwrap_or_default();
    let roles = names(&subject.organizations);
    if roles.has(Role::Impersonator) {
        let forwarded: Vec<String> = values(request, "talos-role");
        return names(&forwarded);
    }
    roles
}

fn values(request: &Request, name: &str) -> Vec<String> {
    request
        .headers()
        .get_all(name)
        .iter()
        .filter_map(|value| Some(value.to_str().ok()?.to_owned()))
        .collect()
}

fn target(request: &Request) -> Result<Target, Status> {
    if request.headers().contains_key("proxyfrom") {
        return Ok(Target::Local);
    }
    let one = values(request, "node");
    match one.as_slice() {
        [] => {}
        [name] => return Ok(Target::One(name.clone())),
        _ => return Err(Status::invalid_argument("node metadata must be single-valued")),
    }
    let many = values(request, "nodes");
    Ok(if many.is_empty() { Target::Local } else { Target::Many(many) })
}

async fn answer(local: &Router, mut request: Request, roles: Roles) -> Result<Response, Status> {
    if !roles.may_call(request.uri().path()) {
        return Err(Status::permission_denied("not authorized"));
    }
    request.extensions_mut().insert(roles);
    match local.clone().oneshot(request).await {
        Ok(response) => Ok(response),
        Err(never) => match never {},
    }
}

/// What the small server of 1.12 and before answers in maintenance.
fn check_maintenance(path: &str, minor: u64) -> Result<(), Status> {
    if minor >= 13 {
        return Ok(());
    }
    let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
    match (service, method) {
        ("machine.MachineService", "ApplyConfiguration" | "GenerateConfiguration")
        | ("storage.StorageService", "Disks")
        | ("cosi.resource.State", _) => Ok(()),
        ("storage.StorageService", "BlockDeviceWipe") if minor >= 11 => Ok(()),
        ("machine.MachineService", "Version" | "Reset" | "Upgrade" | "MetaWrite" | "MetaDelete") => {
            Err(Status::unimplemented("API is not implemented in maintenance mode"))
        }
        ("machine.MachineService", _) => Err(Status::unimplemented(format!("method {method} not implemented"))),
        _ => Err(Status::unimplemented(format!("unknown service {service}"))),
    }
}

/// The stream breaks when the node that answers is gone, or its API.
fn until_gone(node: &Arc<Node>, response: Response) -> Response {
    let gone = node.api.closing().unwrap_or_else(|| node.alive.clone());
    response.map(|body| {
        let frames = futures::stream::unfold(Some((body, gone)), |state| async move {
            let (mut body, gone) = state?;
            tokio::select! {
                biased;
                () = gone.cancelled() => Some((Ok(http_body::Frame::trailers(broken())), None)),
                frame = body.frame() => frame.map(|frame| (frame, Some((body, gone)))),
            }
        });
        Body::new(http_body_util::StreamBody::new(frames))
    })
}

fn broken() -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    // A header of a valid name and value: this cannot fail.
    let _ = Status::unavailable("error reading from server: EOF").add_header(&mut trailers);
    trailers
}

fn is_stream(path: &str) -> bool {
    let method = path.rsplit('/').next().unwrap_or_default();
    [
        "Copy",
        "Dmesg",
        "Events",
        "EtcdSnapshot",
        "Kubeconfig",
        "List",
        "DiskUsage",
        "Logs",
        "Read",
        "PacketCapture",
        "ImageList",
        "HealthCheck",
    ]
    .contains(&method)
}

type Answers = Vec<(String, Result<Response, Status>)>;

fn metadata(name: &str, status: Option<&Status>) -> Vec<u8> {
    let status = status.map(|status| google::rpc::Status {
        code: status.code().into(),
        message: status.message().to_owned(),
        details: Vec::new(),
    });
    let error = status
        .as_ref()
        .map(|status| format!("rpc error: code = {:?} desc = {}", Code::from(status.code), status.message))
        .unwrap_or_default();
    common::Metadata {
        hostname: name.to_owned(),
        error,
        status,
    }
    .encode_to_vec()
}

/// Field 1, length-delimited: both `metadata` of a message and `messages` of an answer.
fn field_one(content: &[u8]) -> Vec<u8> {
    let mut out = vec![0x0a];
    prost::encoding::encode_varint(content.len() as u64, &mut out);
    out.extend_from_slice(content);
    out
}

/// The frames of a gRPC body that is at hand as a whole, and the status behind it.
async fn unary(response: Response) -> Result<Bytes, Status> {
    if let Some(status) = Status::from_header_map(response.headers()) {
        return Err(status);
    }
    let collected = response
        .into_body()
        .collect()
        .await
        .map_err(|_| Status::unavailable("error reading from server: EOF"))?;
    if let Some(status) = collected
        .trailers()
        .and_then(Status::from_header_map)
        .filter(|status| status.code() != Code::Ok)
    {
        return Err(status);
    }
    let mut body = collected.to_bytes();
    body.advance(5.min(body.len()));
    Ok(body)
}

async fn merge_unary(answers: Answers) -> Result<Response, Status> {
    let mut messages = Vec::new();
    for (name, answer) in answers {
        let answer = match answer {
            Ok(response) => unary(response).await,
            Err(status) => Err(status),
        };
        match answer {
            // Every message of an answer begins again with its own tag, so adding a field to the inner message means re-framing it.
            Ok(body) => split_messages(&body).into_iter().for_each(|inner| {
                let mut whole = field_one(&metadata(&name, None));
                whole.extend_from_slice(&inner);
                messages.extend(field_one(&whole));
            }),
            Err(status) => messages.extend(field_one(&field_one(&metadata(&name, Some(&status))))),
        }
    }
    Ok(grpc(Body::new(http_body_util::StreamBody::new(futures::stream::iter([
        Ok::<_, std::io::Error>(http_body::Frame::data(frame(&messages))),
        Ok(http_body::Frame::trailers(trailers())),
    ])))))
}

fn split_messages(mut body: &[u8]) -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    while body.first() == Some(&0x0a) {
        body.advance(1);
        let Ok(length) = prost::encoding::decode_varint(&mut body) else {
            break;
        };
        let length = usize::try_from(length).unwrap_or(0).min(body.len());
        out.push(body[..length].to_vec());
        body.advance(length);
    }
    out
}

fn frame(message: &[u8]) -> Bytes {
    let mut out = BytesMut::with_capacity(message.len() + 5);
    out.put_u8(0);
    out.put_u32(u32::try_from(message.len()).unwrap_or(0));
    out.put_slice(message);
    out.freeze()
}

fn trailers() -> http::HeaderMap {
    let mut trailers = http::HeaderMap::new();
    trailers.insert("grpc-status", http::HeaderValue::from_static("0"));
    trailers
}

fn grpc(body: Body) -> Response {
    let mut response = Response::new(body);
    response
        .headers_mut()
        .insert("content-type", http::HeaderValue::from_static("application/grpc"));
    response
}

/// Items of all nodes as they come, each with the name of its node.
fn merge_streams(answers: Answers) -> Response {
    let streams = answers.into_iter().map(|(name, answer)| match answer {
        Ok(response) => items(name, response).boxed(),
        Err(status) => futures::stream::iter([frame(&field_one(&metadata(&name, Some(&status))))]).boxed(),
    });
    let data = futures::stream::select_all(streams).map(|frame| Ok::<_, std::io::Error>(http_body::Frame::data(frame)));
    let end = futures::stream::iter([Ok(http_body::Frame::trailers(trailers()))]);
    grpc(Body::new(http_body_util::StreamBody::new(data.chain(end))))
}

fn items(name: String, response: Response) -> impl futures::Stream<Item = Bytes> + Send {
    let early = Status::from_header_map(response.headers()).filter(|status| status.code() != Code::Ok);
    let failed = early.map(|status| frame(&field_one(&metadata(&name, Some(&status)))));
    let state = (response.into_body(), BytesMut::new(), name, false);
    let rest = futures::stream::unfold(state, |(mut body, mut buffer, name, ended)| async move {
        loop {
            if let Some(message) = next_message(&mut buffer) {
                let mut whole = field_one(&metadata(&name, None));
                whole.extend_from_slice(&message);
                return Some((frame(&whole), (body, buffer, name, ended)));
            }
            if ended {
                return None;
            }
            match body.frame().await {
                Some(Ok(part)) if part.is_data() => buffer.extend_from_slice(&part.into_data().unwrap_or_default()),
                Some(Ok(part)) => {
                    let status = part
                        .into_trailers()
                        .ok()
                        .as_ref()
                        .and_then(Status::from_header_map)
                        .filter(|status| status.code() != Code::Ok)?;
                    return Some((frame(&field_one(&metadata(&name, Some(&status)))), (body, buffer, name, true)));
                }
                Some(Err(_)) | None => return None,
            }
        }
    });
    futures::stream::iter(failed).chain(rest)
}

fn next_message(buffer: &mut BytesMut) -> Option<Vec<u8>> {
    let length = usize::try_from(u32::from_be_bytes(buffer.get(1..5)?.try_into().ok()?)).ok()?;
    if buffer.len() < 5 + length {
        return None;
    }
    buffer.advance(5);
    Some(buffer.split_to(length).to_vec())
}
