//! What a request asks for, read from its path and query.

use std::collections::BTreeMap;

use super::kinds::{self, Kind};
use super::select::Selector;
use super::store::Store;

/// A path under `/api/v1` or `/apis/<group>/<version>`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ResourcePath {
    pub kind: &'static Kind,
    pub namespace: Option<String>,
    pub name: Option<String>,
    pub sub: Option<String>,
}

impl ResourcePath {
    pub fn parse(path: &str, store: Option<&Store>) -> Option<Self> {
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", *version, rest),
            ["apis", group, version, rest @ ..] => (*group, *version, rest),
            _ => return None,
        };
        // `/namespaces/x` names a namespace, `/namespaces/x/pods` a resource inside it.
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() && rest != ["status"] && rest != ["finalize"] => {
                (Some(*namespace), rest)
            }
            rest => (None, rest),
        };
        let (plural, name, sub) = match rest {
            [plural] => (*plural, None, None),
            [plural, name] => (*plural, Some(*name), None),
            [plural, name, sub] => (*plural, Some(*name), Some(*sub)),
            _ => return None,
        };
        let kind = kinds::find_in(store, group, version, plural)?;
        let own = |text: Option<&str>| text.map(str::to_owned);
        Some(Self {
            kind,
            namespace: own(namespace),
            name: own(name),
            sub: own(sub),
        })
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Options {
    pub watch: bool,
    pub selector: Selector,
    pub resource_version: Option<String>,
    pub limit: Option<usize>,
    pub resume_at: usize,
    pub timeout_seconds: Option<u64>,
    pub initial_events: bool,
    pub field_manager: String,
    pub force: bool,
    pub dry_run: bool,
    pub grace_period: Option<u64>,
    pub propagation: Option<String>,
}

impl Options {
    pub fn parse(query: &str) -> Self {
        let pairs: BTreeMap<String, String> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let text = |key: &str| pairs.get(key).cloned().unwrap_or_default();
        let set = |key: &str| matches!(text(key).as_str(), "true" | "1");
        Self {
            watch: set("watch"),
            selector: Selector::new(&text("labelSelector"), &text("fieldSelector")),
            resource_version: pairs.get("resourceVersion").filter(|version| !version.is_empty()).cloned(),
            limit: text("limit").parse().ok().filter(|limit| *limit > 0),
            resume_at: text("continue").parse().unwrap_or(0),
            timeout_seconds: text("timeoutSeconds").parse().ok(),
            initial_events: set("sendInitialEvents"),
            field_manager: text("fieldManager"),
            force: set("force"),
            dry_run: text("dryRun") == "All",
            grace_period: text("gracePeriodSeconds").parse().ok(),
            propagation: pairs.get("propagationPolicy").cloned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_name_kind_namespace_name_and_subresource() {
        let path =
            ResourcePath::parse("/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/cp1", None).expect("a lease");
        assert_eq!(
            (path.kind.kind, path.namespace.as_deref(), path.name.as_deref()),
            ("Lease", Some("kube-node-lease"), Some("cp1"))
        );
        let path = ResourcePath::parse("/api/v1/namespaces/default", None).expect("a namespace");
        assert_eq!(
            (path.kind.kind, path.namespace, path.name.as_deref()),
            ("Namespace", None, Some("default"))
        );
        let path = ResourcePath::parse("/api/v1/nodes/cp1/status", None).expect("a status");
        assert_eq!((path.kind.kind, path.sub.as_deref()), ("Node", Some("status")));
        assert_eq!(ResourcePath::parse("/api/v1/nopes", None), None);
    }
}
