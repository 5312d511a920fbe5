//! Objects of any kind: apply, read, list, delete.
//!
//! Everything is sent as JSON that the caller made; the kind is looked up in the API server's own discovery, so that kinds of CRDs
//! work like built-in ones.

use std::collections::BTreeMap;

use http::{Method, Request};
use serde_json::{Value, json};

use crate::error::{Class, Error};
use crate::{Cluster, MANAGER, absent_is_none};

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef {
    /// `v1`, `apps/v1`.
    pub api_version: String,
    pub kind: String,
    /// `None` for kinds without namespaces.
    pub namespace: Option<String>,
    pub name: String,
}

impl ObjectRef {
    pub fn new(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Self {
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace: namespace.map(str::to_owned),
            name: name.to_owned(),
        }
    }

    /// The object that a manifest describes.
    pub fn of(object: &Value) -> Result<Self, Error> {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .filter(|text| !text.is_empty())
        };
        let missing = |what: &str| Error::BadObject(format!("{what} is missing"));
        Ok(Self {
            api_version: text("/apiVersion").ok_or_else(|| missing("apiVersion"))?.to_owned(),
            kind: text("/kind").ok_or_else(|| missing("kind"))?.to_owned(),
            namespace: text("/metadata/namespace").map(str::to_owned),
            name: text("/metadata/name").ok_or_else(|| missing("metadata.name"))?.to_owned(),
        })
    }
}

impl std::fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// How the API server serves a kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KindInfo {
    pub api_version: String,
    pub kind: String,
    /// `deployments`.
    pub plural: String,
    pub is_namespaced: bool,
    pub verbs: Vec<String>,
}

impl KindInfo {
    fn path(&self, namespace: Option<&str>) -> String {
        let group = group_path(&self.api_version);
        match namespace.filter(|_| self.is_namespaced) {
            Some(namespace) => format!("{group}/namespaces/{namespace}/{}", self.plural),
            None => format!("{group}/{}", self.plural),
        }
    }
}

/// What server-side apply does with fields of other managers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnConflict {
    /// Nothing is changed; the error names managers and fields ([`ApiStatus::field_conflicts`](crate::ApiStatus::field_conflicts)).
    Report,
    /// The fields become ours.
    Force,
}

/// What becomes of objects that belong to a deleted one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted first; the object stays visible until they are gone.
    Foreground,
    /// They are deleted afterwards.
    Background,
    /// They stay.
    Orphan,
}

impl Propagation {
    fn name(self) -> &'static str {
        match self {
            Self::Foreground => "Foreground",
            Self::Background => "Background",
            Self::Orphan => "Orphan",
        }
    }
}

/// What came of a deletion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deletion {
    /// Accepted. The object may still be there: finalizers, foreground propagation, a pod's grace period.
    Started,
    /// It was not there, or has another UID than the given one.
    Absent,
}

impl Cluster {
    /// How a kind is served, asked once. `None` if the API server does not know it now.
    pub async fn kind(&self, api_version: &str, kind: &str) -> Result<Option<KindInfo>, Error> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.kinds.lock().await.get(&key) {
            return Ok(Some(known.clone()));
        }
        let served = self.kinds_of(api_version).await?;
        let mut kinds = self.kinds.lock().await;
        for info in served {
            kinds.insert((info.api_version.clone(), info.kind.clone()), info);
        }
        Ok(kinds.get(&key).cloned())
    }

    /// Every kind that can be listed and deleted, in each group's preferred version.
    pub async fn deletable_kinds(&self) -> Result<Vec<KindInfo>, Error> {
        let groups = self.call("api groups", Method::GET, "/apis", None).await?;
        let preferred = groups["groups"].as_array().into_iter().flatten();
        let versions = preferred.filter_map(|group| group["preferredVersion"]["groupVersion"].as_str());
        let mut kinds = Vec::new();
        for version in std::iter::once("v1").chain(versions) {
            // An aggregated API whose server is down must not hide all others; its objects cannot be ours then.
            match self.kinds_of(version).await {
                Ok(served) => kinds.extend(served),
                Err(error) if error.class() == Class::Unavailable && error.status().is_some() => {}
                Err(error) => return Err(error),
            }
        }
        let has = |info: &KindInfo, verb: &str| info.verbs.iter().any(|known| known == verb);
        kinds.retain(|info| has(info, "list") && has(info, "delete"));
        Ok(kinds)
    }

    async fn kinds_of(&self, api_version: &str) -> Result<Vec<KindInfo>, Error> {
        let listed = self.call("discovery", Method::GET, &group_path(api_version), None).await;
        let Some(listed) = absent_is_none(listed)? else {
            return Ok(Vec::new());
        };
        let resources = listed["resources"].as_array().cloned().unwrap_or_default();
        let info = |resource: &Value| {
            let plural = resource["name"].as_str().filter(|name| !name.contains('/'))?;
            let verbs = resource["verbs"].as_array().into_iter().flatten();
            Some(KindInfo {
                api_version: api_version.to_owned(),
                kind: resource["kind"].as_str()?.to_owned(),
                plural: plural.to_owned(),
                is_namespaced: resource["namespaced"].as_bool().unwrap_or_default(),
                verbs: verbs.filter_map(Value::as_str).map(str::to_owned).collect(),
            })
        };
        Ok(resources.iter().filter_map(info).collect())
    }

    /// Applies a whole object as field manager `mainstay`. Fields that an earlier apply set and this one leaves out go away.
    pub async fn apply(&self, object: &Value, on_conflict: OnConflict) -> Result<Value, Error> {
        let path = self.path_of(&ObjectRef::of(object)?).await?;
        let force = on_conflict == OnConflict::Force;
        let path = format!("{path}?fieldManager={MANAGER}&force={force}&fieldValidation=Strict");
        self.send("apply", Method::PATCH, &path, Some(("application/apply-patch+yaml", object)))
            .await
    }

    /// Creates an object; one that exists is a [`Class::Conflict`].
    pub async fn create(&self, object: &Value) -> Result<Value, Error> {
        let reference = ObjectRef::of(object)?;
        let path = self.path_of(&reference).await?;
        let collection = path.rsplit_once('/').map_or(path.as_str(), |(collection, _)| collection);
        let path = format!("{collection}?fieldManager={MANAGER}&fieldValidation=Strict");
        self.call("create", Method::POST, &path, Some(object)).await
    }

    /// A JSON merge patch. With `metadata.resourceVersion` in it a change by others in between is a [`Class::Conflict`].
    pub async fn merge(&self, object: &ObjectRef, patch: &Value) -> Result<Value, Error> {
        let path = format!("{}?fieldManager={MANAGER}", self.path_of(object).await?);
        self.send("patch", Method::PATCH, &path, Some(("application/merge-patch+json", patch)))
            .await
    }

    /// `None` if it is not there, or if its kind is unknown.
    pub async fn get(&self, object: &ObjectRef) -> Result<Option<Value>, Error> {
        let got = async { self.call("get", Method::GET, &self.path_of(object).await?, None).await };
        absent_is_none(got.await)
    }

    /// All objects of a kind, of one namespace or of all. An unknown kind has none.
    pub async fn list(&self, api_version: &str, kind: &str, scope: &ListScope) -> Result<Vec<Value>, Error> {
        let Some(info) = self.kind(api_version, kind).await? else {
            return Ok(Vec::new());
        };
        let mut items = Vec::new();
        let mut next = String::new();
        loop {
            let path = format!("{}?limit=500{}{next}", info.path(scope.namespace.as_deref()), scope.query());
            let page = self.call("list", Method::GET, &path, None).await?;
            items.extend(page["items"].as_array().cloned().unwrap_or_default());
            match page.pointer("/metadata/continue").and_then(Value::as_str) {
                Some(token) if !token.is_empty() => next = format!("&continue={}", encoded(token)),
                _ => break,
            }
        }
        // Items of a list carry neither.
        for item in &mut items {
            item["apiVersion"] = api_version.into();
            item["kind"] = kind.into();
        }
        Ok(items)
    }

    /// Everything of the given kinds that carries a label, for pruning.
    pub async fn labelled(&self, kinds: &[KindInfo], selector: &str) -> Result<Vec<Value>, Error> {
        let scope = ListScope::labels(selector);
        let mut found = Vec::new();
        for info in kinds {
            found.extend(self.list(&info.api_version, &info.kind, &scope).await?);
        }
        Ok(found)
    }

    /// Deletes an object; with `uid` only the one that was seen.
    pub async fn delete(&self, object: &ObjectRef, propagation: Propagation, uid: Option<&str>) -> Result<Deletion, Error> {
        let mut options = json!({ "apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation.name() });
        if let Some(uid) = uid {
            options["preconditions"] = json!({ "uid": uid });
        }
        let sent = async {
            let path = self.path_of(object).await?;
            self.call("delete", Method::DELETE, &path, Some(&options)).await
        };
        match sent.await {
            Ok(_) => Ok(Deletion::Started),
            Err(error) if error.class() == Class::NotFound => Ok(Deletion::Absent),
            // The precondition: the name belongs to another object now.
            Err(error) if error.class() == Class::Conflict && uid.is_some() => Ok(Deletion::Absent),
            Err(error) => Err(error),
        }
    }

    /// Makes a namespace have these labels (PodSecurity among them). Labels of other managers are not taken over.
    pub async fn ensure_namespace(&self, name: &str, labels: &BTreeMap<String, String>) -> Result<(), Error> {
        let namespace = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        self.apply(&namespace, OnConflict::Report).await.map(drop)
    }

    async fn path_of(&self, object: &ObjectRef) -> Result<String, Error> {
        for part in [Some(&object.name), object.namespace.as_ref()].into_iter().flatten() {
            if part.is_empty() || part.contains(['/', '?', '#', '%']) || part.contains(char::is_whitespace) {
                return Err(Error::BadObject(format!("`{part}` is not a name")));
            }
        }
        let unknown = || Error::UnknownKind {
            at: self.at.clone(),
            api_version: object.api_version.clone(),
            kind: object.kind.clone(),
        };
        let info = self.kind(&object.api_version, &object.kind).await?.ok_or_else(unknown)?;
        if info.is_namespaced && object.namespace.is_none() {
            return Err(Error::BadObject(format!("{object} needs a namespace")));
        }
        Ok(format!("{}/{}", info.path(object.namespace.as_deref()), object.name))
    }

    pub(crate) async fn call(
        &self,
        call: &'static str,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Value, Error> {
        self.send(call, method, path, body.map(|body| ("application/json", body)))
            .await
    }

    async fn send(&self, call: &'static str, method: Method, path: &str, body: Option<(&str, &Value)>) -> Result<Value, Error> {
        let mut request = Request::builder().method(method).uri(path);
        let bytes = match body {
            Some((content_type, body)) => {
                request = request.header(http::header::CONTENT_TYPE, content_type);
                body.to_string().into_bytes()
            }
            None => Vec::new(),
        };
        let request = request
            .body(bytes)
            .map_err(|_| Error::BadObject(format!("`{path}` is not a path")))?;
        self.within(call, self.client.request::<Value>(request)).await
    }
}

/// Which objects of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ListScope {
    /// `None`: all namespaces.
    pub namespace: Option<String>,
    /// `app=web,tier!=edge`.
    pub labels: Option<String>,
    /// `spec.nodeName=w1`.
    pub fields: Option<String>,
}

impl ListScope {
    pub fn labels(selector: &str) -> Self {
        Self {
            labels: Some(selector.to_owned()),
            ..Self::default()
        }
    }

    pub fn fields(selector: &str) -> Self {
        Self {
            fields: Some(selector.to_owned()),
            ..Self::default()
        }
    }

    pub fn in_namespace(mut self, namespace: &str) -> Self {
        self.namespace = Some(namespace.to_owned());
        self
    }

    fn query(&self) -> String {
        let part = |name: &str, value: &Option<String>| value.as_ref().map(|value| format!("&{name}={}", encoded(value)));
        [part("labelSelector", &self.labels), part("fieldSelector", &self.fields)]
            .into_iter()
            .flatten()
            .collect()
    }
}

fn group_path(api_version: &str) -> String {
    if api_version.contains('/') {
        format!("/apis/{api_version}")
    } else {
        format!("/api/{api_version}")
    }
}

/// Percent-encoding of a query value.
fn encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let letter = |byte: u8| {
        if plain(byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_object_is_named_by_its_manifest() {
        let deployment =
            json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": "web", "name": "front"}});
        assert_eq!(ObjectRef::of(&deployment).unwrap().to_string(), "Deployment web/front");
        let nameless = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {}});
        assert_eq!(
            ObjectRef::of(&nameless).unwrap_err().to_string(),
            "not an object that can be sent: metadata.name is missing"
        );
    }

    #[test]
    fn selectors_are_encoded() {
        let scope = ListScope::labels("owner=helm,name=a b").in_namespace("x");
        assert_eq!(scope.query(), "&labelSelector=owner%3Dhelm%2Cname%3Da%20b");
    }
}
