//! Rendering a chart and writing its objects.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::super::control::{Round, condition, text};
use super::super::{eviction, kinds, patch};
use super::invocation::Invocation;
use super::{release, values};

pub(super) struct Rendered {
    pub manifest: String,
    pub hooks: Vec<Value>,
}

/// Values judged by the schema, then every template.
pub(super) fn render(invocation: &Invocation) -> Result<Rendered, String> {
    let chart = invocation.chart.as_ref().map_err(Clone::clone)?;
    let mut all = chart.values.clone();
    values::merge(&mut all, &invocation.values);
    let found = if chart.schema.is_null() {
        Vec::new()
    } else {
        values::judge(&chart.schema, &all, "")
    };
    if !found.is_empty() {
        return Err(format!(
            "values don't meet the specifications of the schema(s) in the following chart(s):\n{}:\n{}",
            chart.name(),
            found.join("\n")
        ));
    }
    let digest = hex::encode(&<sha2::Sha256 as sha2::Digest>::digest(all.to_string())[..8]);
    let context = json!({
        "Values": all, "Chart": {"Name": chart.name(), "Version": chart.version()},
        "Release": {"Name": invocation.name, "Namespace": invocation.namespace, "Service": "Helm", "Values": digest},
    });
    let mut manifest = String::new();
    let mut hooks = Vec::new();
    for (file, template) in &chart.templates {
        let path = format!("{}/templates/{file}", chart.name());
        let rendered = crate::charts::render(&path, template, &context)?;
        for (_, document) in crate::yaml::split(&rendered) {
            let object = crate::yaml::parse(&document).map_err(|error| format!("YAML parse error on {path}: {error}"))?;
            if object.is_null() {
                continue;
            }
            if object["metadata"]["annotations"]["helm.sh/hook"].is_null() {
                manifest.push_str(&format!("---\n# Source: {path}\n{}\n", document.trim()));
            } else {
                hooks.push(object);
            }
        }
    }
    Ok(Rendered { manifest, hooks })
}

/// Creates missing definitions; whether all are established. Existing ones are never changed.
pub(super) fn crds(round: &Round<'_>, invocation: &Invocation) -> Result<bool, String> {
    let chart = invocation.chart.as_ref().map_err(Clone::clone)?;
    let mut all = true;
    for text_of in &chart.crds {
        let object = crate::yaml::parse(text_of).map_err(|error| format!("failed to parse crds: {error}"))?;
        let name = text(&object["metadata"]["name"]).to_owned();
        round.create(&kinds::CRDS, object);
        all &= round
            .get(&kinds::CRDS, "", &name)
            .is_some_and(|crd| condition(&crd, "Established"));
    }
    Ok(all)
}

/// Applies the objects of a release with the manager `helm`, and deletes those that it no longer has.
pub(super) fn objects(round: &Round<'_>, invocation: &Invocation, record: &Value, before: Option<&Value>) -> Result<(), String> {
    let new = release::objects(record);
    let old = before.map(release::objects).unwrap_or_default();
    let same = |a: &Value, b: &Value| a["kind"] == b["kind"] && a["metadata"]["name"] == b["metadata"]["name"];
    for object in &new {
        if release::key_of(round.store, object, &invocation.namespace).is_none() {
            return Err(format!(
                "unable to build kubernetes objects from release manifest: resource mapping not found for name: \"{}\": no matches for kind \"{}\" in version \"{}\"\nensure CRDs are installed first",
                text(&object["metadata"]["name"]),
                text(&object["kind"]),
                text(&object["apiVersion"])
            ));
        }
    }
    for object in &new {
        one(round, invocation, object, old.iter().any(|known| same(known, object)))?;
    }
    for gone in old.iter().filter(|known| !new.iter().any(|object| same(known, object))) {
        delete(round, gone, &invocation.namespace);
    }
    Ok(())
}

fn one(round: &Round<'_>, invocation: &Invocation, object: &Value, is_known: bool) -> Result<(), String> {
    let Some(key) = release::key_of(round.store, object, &invocation.namespace) else {
        return Ok(());
    };
    let mut object = object.clone();
    let metadata = &mut object["metadata"];
    metadata["labels"]["app.kubernetes.io/managed-by"] = json!("Helm");
    metadata["annotations"]["meta.helm.sh/release-name"] = json!(invocation.name);
    metadata["annotations"]["meta.helm.sh/release-namespace"] = json!(invocation.namespace);
    for (name, value) in object["stringData"].as_object().cloned().into_iter().flatten() {
        object["data"][name] = json!(STANDARD.encode(text(&value)));
    }
    object.as_object_mut().map(|map| map.shift_remove("stringData"));
    let Some(live) = round.store.get(&key) else {
        if key.kind.namespaced && round.get(&kinds::NAMESPACES, "", &key.namespace).is_none() {
            return Err(format!("namespaces \"{}\" not found", key.namespace));
        }
        let mut fresh = json!({"metadata": {"name": key.name}});
        let _ = patch::apply(&mut fresh, &object, "helm", true);
        if key.kind.namespaced {
            fresh["metadata"]["namespace"] = json!(key.namespace);
        }
        round.create(key.kind, fresh);
        return Ok(());
    };
    let is_own = live["metadata"]["annotations"]["meta.helm.sh/release-name"] == invocation.name.as_str();
    if !is_own && !is_known && !invocation.take_ownership {
        return Err(format!(
            "unable to continue with install: {} \"{}\" in namespace \"{}\" exists and cannot be imported into the current release: invalid ownership metadata; label validation error: missing key \"app.kubernetes.io/managed-by\": must be set to \"Helm\"",
            key.kind.kind, key.name, key.namespace
        ));
    }
    let mut conflicts = Vec::new();
    let _ = round.store.update(&key, |live| {
        conflicts = patch::apply(live, &object, "helm", invocation.force_conflicts)
            .err()
            .unwrap_or_default();
        Ok(())
    });
    if conflicts.is_empty() {
        return Ok(());
    }
    Err(format!(
        "conflict occurred while applying object {}/{} {}: Apply failed with {} conflict(s): conflicts with another manager: {}",
        key.namespace,
        key.name,
        key.kind.kind,
        conflicts.len(),
        conflicts.join(", ").replace('/', ".")
    ))
}

/// Hook objects begin after the others; those of the last run are removed first.
pub(super) fn hooks(round: &Round<'_>, record: &Value, hooks: &[Value]) {
    for hook in hooks {
        let events = text(&hook["metadata"]["annotations"]["helm.sh/hook"]);
        let wanted = if record["version"] == 1 {
            "post-install"
        } else {
            "post-upgrade"
        };
        let Some(key) = release::key_of(round.store, hook, text(&record["namespace"])).filter(|_| events.contains(wanted)) else {
            continue;
        };
        let _ = round.store.delete(&key);
        let mut object = hook.clone();
        object["metadata"]["namespace"] = json!(key.namespace);
        round.create(key.kind, object);
    }
}

fn delete(round: &Round<'_>, object: &Value, namespace: &str) {
    if let Some(key) = release::key_of(round.store, object, namespace) {
        let _ = eviction::delete(
            round.store,
            &key,
            &eviction::DeleteOptions::default(),
            &round.now,
            round.wall.now(),
        );
    }
}

/// Deletes what a release made, in reverse order.
pub(super) fn remove(round: &Round<'_>, record: &Value) {
    for object in release::objects(record).iter().rev() {
        delete(round, object, text(&record["namespace"]));
    }
}
