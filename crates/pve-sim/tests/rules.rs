//! Rules of PVE's own sources, area by area. `docs/reference/simulator-rules.md` names the source of each.

mod access;
mod bodies;
mod clones;
mod definitions;
mod guards;
mod jobs;
mod machines;
mod snapshots;
mod tags;
mod uploads;
mod volumes;

use pve_sim::Verdict;
use pve_sim::http::{Request, Response};

use crate::client::Client;

const OPS: &str = "ops@pve!ms=a0000000-0000-4000-8000-000000000003";
const AUDIT: &str = "audit@pve!at=a0000000-0000-4000-8000-000000000005";
const ZERO: &str = "zero@pve!zt=a0000000-0000-4000-8000-000000000006";

/// The same datacenter, seen by another token.
fn as_token(client: &Client, token: &'static str) -> Client {
    Client {
        dc: client.dc.clone(),
        token,
    }
}

/// One request as it stands; `None` if the connection is closed without an answer.
async fn raw(client: &Client, request: Request) -> Option<Response> {
    match client.dc.answer("pve1", &request).await {
        Verdict::Answer(response) => Some(response),
        Verdict::HangUp => None,
    }
}

fn request(client: &Client, verb: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Request {
    let mut all = vec![("Authorization".to_string(), format!("PVEAPIToken={}", client.token))];
    all.extend(headers.iter().map(|(n, v)| ((*n).to_string(), (*v).to_string())));
    Request {
        verb: verb.into(),
        target: target.into(),
        headers: all,
        body: body.to_string().into(),
        old: false,
    }
}

/// Status, reason and body of one request.
async fn told(client: &Client, request: Request) -> String {
    match raw(client, request).await {
        None => "closed".into(),
        Some(response) => {
            let body = String::from_utf8_lossy(&response.body).into_owned();
            format!("{} {}|{body}", response.status, response.reason)
        }
    }
}

/// What a call sees, as data.
async fn data(client: &Client, verb: &str, path: &str, form: &str) -> serde_json::Value {
    client.send(verb, path, form).await.2["data"].clone()
}
