//! How objects are deleted and pods evicted.

use std::sync::Arc;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::control::{condition, is_deleting, selects, text};
use super::kinds;
use super::request::Options;
use super::server::status;
use super::store::{Key, Store, StoreError};

const MULTIPLE: &str = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
const BLOCKED: &str = "Cannot evict pod as it would violate the pod's disruption budget.";
/// Kinds whose dependents outlive a deletion that does not say otherwise.
const FOREGROUND: &str = "foregroundDeletion";

/// `DeleteOptions` of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct DeleteOptions {
    pub grace: Option<u64>,
    pub uid: Option<String>,
    pub resource_version: Option<String>,
    pub propagation: Option<String>,
    pub dry_run: bool,
}

impl DeleteOptions {
    /// From the body, or from the query where there is none.
    pub fn parse(body: &[u8], query: &Options) -> Self {
        let value: Value = serde_json::from_slice(body).unwrap_or_default();
        let mut options = Self::of(&value);
        options.dry_run |= query.dry_run;
        options.grace = options.grace.or(query.grace_period);
        options.propagation = options.propagation.or_else(|| query.propagation.clone());
        options
    }

    fn of(value: &Value) -> Self {
        let own = |value: &Value| value.as_str().map(str::to_owned);
        Self {
            grace: value["gracePeriodSeconds"].as_u64(),
            uid: own(&value["preconditions"]["uid"]),
            resource_version: own(&value["preconditions"]["resourceVersion"]),
            propagation: own(&value["propagationPolicy"]),
            dry_run: value["dryRun"].as_array().is_some_and(|list| !list.is_empty()),
        }
    }

    pub fn of_eviction(body: &[u8], key: &Key) -> Result<Self, String> {
        let value: Value = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if value["kind"] != "Eviction" {
            return Err("the object provided is not an Eviction".to_owned());
        }
        let name = text(&value["metadata"]["name"]);
        if !name.is_empty() && name != key.name {
            return Err("name in URL does not match name in Eviction object".to_owned());
        }
        Ok(Self::of(&value["deleteOptions"]))
    }

    /// The refusal of a precondition that the object does not meet.
    pub fn unmet(&self, key: &Key, object: &Value) -> Option<Response> {
        let metadata = &object["metadata"];
        let differs =
            |wanted: &Option<String>, field: &str| wanted.as_ref().is_some_and(|wanted| metadata[field] != wanted.as_str());
        let why = if differs(&self.uid, "uid") {
            format!(
                "Precondition failed: UID in precondition: {}, UID in object meta: {}",
                self.uid.as_deref().unwrap_or_default(),
                text(&metadata["uid"])
            )
        } else if differs(&self.resource_version, "resourceVersion") {
            format!(
                "Precondition failed: ResourceVersion in precondition: {}, ResourceVersion in object meta: {}",
                self.resource_version.as_deref().unwrap_or_default(),
                text(&metadata["resourceVersion"])
            )
        } else {
            return None;
        };
        let message = format!(
            "Operation cannot be fulfilled on {} \"{}\": {why}",
            key.kind.qualified(),
            key.name
        );
        Some(status(
            StatusCode::CONFLICT,
            "Conflict",
            &message,
            json!({"name": key.name, "group": key.kind.group, "kind": key.kind.plural}),
        ))
    }
}

/// The refusal of a new object in a namespace that is being deleted.
pub(crate) fn terminating(key: &Key) -> Response {
    let namespace = &key.namespace;
    let message = format!(
        "{} \"{}\" is forbidden: unable to create new content in namespace {namespace} because it is being terminated",
        key.kind.qualified(),
        key.name
    );
    let cause = json!({"reason": "NamespaceTerminating", "message": format!("namespace {namespace} is being terminated"), "field": "metadata.namespace"});
    status(
        StatusCode::FORBIDDEN,
        "Forbidden",
        &message,
        json!({"name": key.name, "group": key.kind.group, "kind": key.kind.plural, "causes": [cause]}),
    )
}

pub(crate) fn delete(
    store: &Store,
    key: &Key,
    options: &DeleteOptions,
    now: &str,
    at: jiff::Timestamp,
) -> Result<Arc<Value>, StoreError> {
    if *key.kind == kinds::PODS {
        return store.end_pod(key, options.grace, now, at);
    }
    let uid = store
        .get(key)
        .map(|object| object["metadata"]["uid"].clone())
        .ok_or(StoreError::NotFound)?;
    match options.propagation.as_deref() {
        Some("Foreground") => {
            store.update(key, |object| {
                let mut finalizers = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
                if !finalizers.contains(&json!(FOREGROUND)) {
                    finalizers.push(json!(FOREGROUND));
                }
                object["metadata"]["finalizers"] = json!(finalizers);
                Ok(())
            })?;
        }
        Some("Orphan") => orphan(store, &uid),
        _ => {}
    }
    let deleted = store.mark_deleted(key, now)?;
    if *key.kind == kinds::NAMESPACES && store.get(key).is_some() {
        return store.update(key, |namespace| {
            namespace["status"]["phase"] = json!("Terminating");
            Ok(())
        });
    }
    Ok(deleted)
}

fn orphan(store: &Store, uid: &Value) {
    let mut all = kinds::ALL.to_vec();
    all.extend(kinds::custom(store));
    for kind in all {
        for object in store.list(kind, None).1 {
            let owned = object["metadata"]["ownerReferences"]
                .as_array()
                .is_some_and(|owners| owners.iter().any(|owner| owner["uid"] == *uid));
            if owned {
                let _ = store.update(&super::control::key_of(&object, kind), |object| {
                    if let Some(list) = object["metadata"]["ownerReferences"].as_array_mut() {
                        list.retain(|owner| owner["uid"] != *uid);
                    }
                    Ok(())
                });
            }
        }
    }
}

fn blocked(cause: &str, retry_after: bool) -> Response {
    let causes = json!({"causes": [{"reason": "DisruptionBudget", "message": cause}]});
    let mut details = causes;
    if retry_after {
        details["retryAfterSeconds"] = json!(10);
    }
    let mut response = status(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", BLOCKED, details);
    if retry_after {
        response
            .headers_mut()
            .insert(header::RETRY_AFTER, HeaderValue::from_static("10"));
    }
    response
}

/// The eviction subresource of a pod that exists, in a namespace that stays.
pub(crate) fn evict(store: &Store, key: &Key, options: &DeleteOptions, now: &str, at: jiff::Timestamp) -> Response {
    let Some(pod) = store.get(key) else {
        return status(
            StatusCode::NOT_FOUND,
            "NotFound",
            &format!("pods \"{}\" not found", key.name),
            json!({}),
        );
    };
    if let Some(refusal) = options.unmet(key, &pod) {
        return refusal;
    }
    // Pods that do not run are no disruption.
    let idle = matches!(text(&pod["status"]["phase"]), "Succeeded" | "Failed" | "Pending") || is_deleting(&pod);
    if !idle {
        let budgets = store.list(&kinds::DISRUPTION_BUDGETS, Some(&key.namespace)).1;
        let covering: Vec<&Arc<Value>> = budgets
            .iter()
            .filter(|budget| selects(&budget["spec"]["selector"], &pod["metadata"]["labels"]))
            .collect();
        match covering.as_slice() {
            [] => {}
            [budget] => {
                if let Some(refusal) = charge(store, budget, &pod, options.dry_run, now) {
                    return refusal;
                }
            }
            _ => return status(StatusCode::INTERNAL_SERVER_ERROR, "", MULTIPLE, json!({})),
        }
    }
    if !options.dry_run {
        let _ = store.end_pod(key, options.grace, now, at);
    }
    (
        StatusCode::CREATED,
        axum::Json(json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201})),
    )
        .into_response()
}

/// Takes one disruption from a budget, or refuses.
fn charge(store: &Store, budget: &Value, pod: &Value, dry_run: bool, now: &str) -> Option<Response> {
    let (status, name) = (&budget["status"], text(&budget["metadata"]["name"]));
    let number = |field: &str| status[field].as_i64().unwrap_or_default();
    if number("observedGeneration") < budget["metadata"]["generation"].as_i64().unwrap_or_default() {
        return Some(blocked(
            &format!("The disruption budget {name} is still being processed by the server."),
            true,
        ));
    }
    let is_ready = condition(pod, "Ready");
    let lenient = budget["spec"]["unhealthyPodEvictionPolicy"] == "AlwaysAllow"
        || (number("currentHealthy") >= number("desiredHealthy") && number("desiredHealthy") > 0);
    if !is_ready && lenient {
        return None;
    }
    if number("disruptionsAllowed") <= 0 {
        let cause = format!(
            "The disruption budget {name} needs {} healthy pods and has {} currently",
            number("desiredHealthy"),
            number("currentHealthy")
        );
        return Some(blocked(&cause, false));
    }
    if !dry_run {
        let _ = store.update(&super::control::key_of(budget, &kinds::DISRUPTION_BUDGETS), |budget| {
            let left = budget["status"]["disruptionsAllowed"].as_i64().unwrap_or_default() - 1;
            budget["status"]["disruptionsAllowed"] = json!(left);
            budget["status"]["disruptedPods"][text(&pod["metadata"]["name"])] = json!(now);
            Ok(())
        });
    }
    None
}
