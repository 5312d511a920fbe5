//! Who manages an object, read from the object itself.

use serde_json::Value;

/// A program that says on an object that the object is its own.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectOwner {
    /// Rendered by a HelmRelease of Flux.
    FluxHelmRelease {
        namespace: String,
        name: String,
    },
    /// Applied by a Kustomization of Flux.
    FluxKustomization {
        namespace: String,
        name: String,
    },
    ArgoCd {
        application: String,
    },
    /// A Helm release, installed by any tool.
    Helm {
        namespace: String,
        release: String,
    },
}

/// Managers in `managedFields` whose objects are never applied with force.
const GITOPS_MANAGERS: [&str; 3] = ["kustomize-controller", "helm-controller", "argocd-controller"];

/// Every owner that an object names. More than one is normal: Flux runs Helm.
pub fn owners(object: &Value) -> Vec<ObjectOwner> {
    let label = |key: &str| object["metadata"]["labels"][key].as_str().map(str::to_owned);
    let annotation = |key: &str| object["metadata"]["annotations"][key].as_str().map(str::to_owned);
    let mut owners = Vec::new();
    if let Some(name) = label("helm.toolkit.fluxcd.io/name") {
        let namespace = label("helm.toolkit.fluxcd.io/namespace").unwrap_or_default();
        owners.push(ObjectOwner::FluxHelmRelease { namespace, name });
    }
    if let Some(name) = label("kustomize.toolkit.fluxcd.io/name") {
        let namespace = label("kustomize.toolkit.fluxcd.io/namespace").unwrap_or_default();
        owners.push(ObjectOwner::FluxKustomization { namespace, name });
    }
    // `application:group/kind:namespace/name`
    let tracked = annotation("argocd.argoproj.io/tracking-id").and_then(|id| id.split(':').next().map(str::to_owned));
    if let Some(application) = tracked.or_else(|| label("argocd.argoproj.io/instance")) {
        owners.push(ObjectOwner::ArgoCd { application });
    }
    if let Some(release) = annotation("meta.helm.sh/release-name")
        && label("app.kubernetes.io/managed-by").as_deref() == Some("Helm")
    {
        let namespace = annotation("meta.helm.sh/release-namespace").unwrap_or_default();
        owners.push(ObjectOwner::Helm { namespace, release });
    }
    owners
}

/// GitOps controllers among the field managers of an object.
pub fn gitops_managers(object: &Value) -> Vec<String> {
    let managed = object.pointer("/metadata/managedFields").and_then(Value::as_array);
    let names = managed.into_iter().flatten().filter_map(|entry| entry["manager"].as_str());
    let mut found: Vec<String> = names
        .filter(|name| GITOPS_MANAGERS.contains(name))
        .map(str::to_owned)
        .collect();
    found.sort();
    found.dedup();
    found
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn owners_are_read_from_labels_and_annotations() {
        let flux = json!({"metadata": {"labels": {"helm.toolkit.fluxcd.io/name": "cilium", "helm.toolkit.fluxcd.io/namespace": "kube-system",
            "app.kubernetes.io/managed-by": "Helm"}, "annotations": {"meta.helm.sh/release-name": "cilium", "meta.helm.sh/release-namespace": "kube-system"}}});
        assert_eq!(
            owners(&flux),
            [
                ObjectOwner::FluxHelmRelease {
                    namespace: "kube-system".into(),
                    name: "cilium".into()
                },
                ObjectOwner::Helm {
                    namespace: "kube-system".into(),
                    release: "cilium".into()
                },
            ]
        );
        let argo =
            json!({"metadata": {"annotations": {"argocd.argoproj.io/tracking-id": "cni:apps/DaemonSet:kube-system/cilium"}}});
        assert_eq!(
            owners(&argo),
            [ObjectOwner::ArgoCd {
                application: "cni".into()
            }]
        );
        let kustomization = json!({"metadata": {"labels": {"kustomize.toolkit.fluxcd.io/name": "apps", "kustomize.toolkit.fluxcd.io/namespace": "flux-system"}}});
        assert_eq!(
            owners(&kustomization),
            [ObjectOwner::FluxKustomization {
                namespace: "flux-system".into(),
                name: "apps".into()
            }]
        );
        assert!(
            owners(&json!({"metadata": {"annotations": {"meta.helm.sh/release-name": "x"}}})).is_empty(),
            "Helm itself wants the label too"
        );
        assert!(owners(&json!({"metadata": {}})).is_empty());
    }

    #[test]
    fn field_managers_of_gitops_are_found() {
        let object = json!({"metadata": {"managedFields": [{"manager": "kubectl"}, {"manager": "argocd-controller"}, {"manager": "argocd-controller"}]}});
        assert_eq!(gitops_managers(&object), ["argocd-controller"]);
        assert!(gitops_managers(&json!({"metadata": {}})).is_empty());
    }
}
