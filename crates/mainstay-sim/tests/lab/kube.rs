//! A client of a simulated Kubernetes, by raw HTTP.

use std::time::Duration;

use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Trust};
use serde_json::{Value, json};

use super::{Lab, kubernetes_ca, kubernetes_certificate, to_identity};

pub struct Kube {
    client: HttpClient,
    address: String,
}

impl Kube {
    pub fn new(lab: &Lab, address: &str, identity: Option<(&str, &str)>) -> Self {
        let identity = identity.map(|(name, group)| to_identity(kubernetes_certificate(name, group)));
        let trust = Trust::Ca {
            ca_pem: kubernetes_ca(),
            identity,
            server_name: None,
        };
        let connector = Connector::new(lab.world.dialer(), &trust, lab.world.wall(), Duration::from_secs(5)).unwrap();
        Self {
            client: HttpClient::new(connector, HttpOptions::default()),
            address: address.to_owned(),
        }
    }

    pub fn admin(lab: &Lab, address: &str) -> Self {
        Self::new(lab, address, Some(("admin", "system:masters")))
    }

    pub async fn try_call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> Option<(u16, Value)> {
        let mut request = http::Request::builder()
            .method(method)
            .uri(format!("https://{}:6443{path}", self.address));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_empty() {
            Body::empty()
        } else {
            Body::from(body.to_owned())
        };
        let answer = self
            .client
            .send(request.body(body).unwrap(), Duration::from_secs(20))
            .await
            .ok()?;
        let value = serde_json::from_slice(&answer.body).unwrap_or_else(|_| json!(String::from_utf8_lossy(&answer.body)));
        Some((answer.status.as_u16(), value))
    }

    pub async fn call(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> (u16, Value) {
        self.try_call(method, path, headers, body).await.expect("an answer")
    }

    pub async fn get(&self, path: &str) -> (u16, Value) {
        self.call("GET", path, &[], "").await
    }
}

/// Whether a Node is Ready.
pub fn ready(node: &Value) -> bool {
    node["status"]["conditions"]
        .as_array()
        .is_some_and(|list| list.iter().any(|one| one["type"] == "Ready" && one["status"] == "True"))
}
