//! What `verify` asks the API server: readiness, warnings, DNS.

use http::{Method, Request};
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use kube::client::Body;
use serde_json::Value;

use crate::object::ListScope;
use crate::pod::Pod;
use crate::{Cluster, Error};

/// The list of checks is short.
const READYZ_MAX: usize = 64 * 1024;

/// What the API server says about its own readiness.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ApiReadiness {
    pub is_ready: bool,
    /// Checks that fail, by name.
    pub failing: Vec<String>,
}

/// A Warning event, newest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WarningEvent {
    pub namespace: String,
    /// Kind and name of the object it is about.
    pub kind: String,
    pub name: String,
    pub reason: String,
    pub message: String,
    pub last_seen: Option<Timestamp>,
}

impl WarningEvent {
    /// A pod that PodSecurity did not let be created.
    pub fn is_pod_security_refusal(&self) -> bool {
        self.reason == "FailedCreate" && self.message.contains("violates PodSecurity")
    }
}

/// The pods that answer DNS queries of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DnsPods {
    pub ready: Vec<Pod>,
    pub not_ready: Vec<Pod>,
}

impl Cluster {
    /// Asks `/readyz` for every check. An API server that answers is a result, also when it is not ready.
    pub async fn readiness(&self) -> Result<ApiReadiness, Error> {
        let request = Request::builder().method(Method::GET).uri("/readyz?verbose");
        let request = request.body(Body::empty()).map_err(|_| Error::Address(self.at.to_string()))?;
        let answer = async {
            let response = self.client.send(request).await?;
            let status = response.status();
            let body = Limited::new(response.into_body(), READYZ_MAX).collect().await;
            // A body that breaks off names no failing check; the status is enough.
            let bytes = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
            Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
        };
        let (status, text) = self.within("readyz", answer).await?;
        if status == http::StatusCode::UNAUTHORIZED || status == http::StatusCode::FORBIDDEN {
            return Err(Error::Refused {
                call: "readyz",
                at: self.at.clone(),
                status: Box::new(crate::ApiStatus {
                    code: status.as_u16(),
                    message: "readyz is not allowed".into(),
                    ..crate::ApiStatus::default()
                }),
            });
        }
        Ok(ApiReadiness {
            is_ready: status.is_success(),
            failing: failing_checks(&text),
        })
    }

    /// Warnings of one namespace, or of all, newest first.
    pub async fn warnings(&self, namespace: Option<&str>) -> Result<Vec<WarningEvent>, Error> {
        let scope = ListScope {
            namespace: namespace.map(str::to_owned),
            ..ListScope::fields("type=Warning")
        };
        let events = self.list("v1", "Event", &scope).await?;
        let mut warnings: Vec<WarningEvent> = events
            .iter()
            .filter(|event| event["type"] == "Warning")
            .map(warning)
            .collect();
        warnings.sort_by_key(|warning| std::cmp::Reverse(warning.last_seen));
        Ok(warnings)
    }

    /// CoreDNS keeps the label of its predecessor on every distribution.
    pub async fn dns_pods(&self) -> Result<DnsPods, Error> {
        let pods = self.pods(Some("kube-system"), "k8s-app=kube-dns").await?;
        let (ready, not_ready) = pods.into_iter().partition(|pod| pod.is_ready && pod.deleted.is_none());
        Ok(DnsPods { ready, not_ready })
    }
}

fn failing_checks(text: &str) -> Vec<String> {
    let failing = text.lines().filter_map(|line| line.strip_prefix("[-]"));
    failing
        .map(|line| line.split_whitespace().next().unwrap_or_default().to_owned())
        .collect()
}

fn warning(event: &Value) -> WarningEvent {
    let text = |pointer: &str| event.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let times = ["/lastTimestamp", "/eventTime", "/metadata/creationTimestamp"];
    let time = times.into_iter().find_map(|pointer| text(pointer).parse().ok());
    WarningEvent {
        namespace: text("/metadata/namespace"),
        kind: text("/involvedObject/kind"),
        name: text("/involvedObject/name"),
        reason: text("/reason"),
        message: text("/message"),
        last_seen: time,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failing_checks_are_named() {
        let text = "[+]ping ok\n[-]etcd failed: reason withheld\n[+]log ok\n[-]poststarthook/rbac/bootstrap-roles failed: x\nreadyz check failed\n";
        assert_eq!(failing_checks(text), ["etcd", "poststarthook/rbac/bootstrap-roles"]);
        assert!(failing_checks("ok").is_empty());
    }
}
