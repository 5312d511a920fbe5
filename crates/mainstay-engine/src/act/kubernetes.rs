//! Another version of one part of Kubernetes on one machine.

use std::time::Duration;

use mainstay_kube::{Class, Cluster, Error, ObjectRef};
use mainstay_plan::{GuestRef, KubernetesPart};
use semver::Version;
use serde_json::{Value, json};

use super::servers::Servers;
use crate::failure::Failure;
use crate::guest;
use crate::wait::{self, Debounce, WaitStatus};

/// The mirror pod of a static pod follows its config by minutes.
const RUNS: Duration = Duration::from_secs(600);
/// Readiness comes and goes while a part starts.
const HOLDS: Duration = Duration::from_secs(3);
const PROXY: &str = "kube-proxy";

/// Writes the version into the config of the machine, and waits until the part runs it.
pub(super) async fn change(servers: Servers<'_>, guest: &GuestRef, part: KubernetesPart, to: &Version) -> Result<(), Failure> {
    guest::set_kubernetes(servers.ctx, guest, part, to).await?;
    match part {
        KubernetesPart::ApiServer | KubernetesPart::ControllerManager | KubernetesPart::Scheduler => {
            let pod = format!("{part}-{}", guest.machine);
            await_running(servers, guest, part, to, async |server| static_pod(server, &pod, to).await).await
        }
        KubernetesPart::Kubelet => {
            await_running(servers, guest, part, to, async |server| {
                kubelet(server, &guest.machine, to).await
            })
            .await
        }
        // The DaemonSet is not made from the config of a machine once the cluster is there.
        KubernetesPart::Proxy => set_proxy(servers, to).await,
    }
}

/// Waits until `look` finds no reason any more, and that holds.
async fn await_running(
    servers: Servers<'_>,
    guest: &GuestRef,
    part: KubernetesPart,
    to: &Version,
    look: impl AsyncFn(&Cluster) -> Result<Option<String>, Error>,
) -> Result<(), Failure> {
    let ctx = servers.ctx;
    let mut steady = Debounce::new(HOLDS);
    let what = format!("{part} {to} did not run on {}", guest.machine);
    wait::until(ctx.jitter, ctx.progress, &what, RUNS, async || {
        let pending = match servers.call("Kubernetes does not answer", &look).await {
            Ok(pending) => pending,
            Err(failure) => Some(failure.why.unwrap_or(failure.what)),
        };
        Ok(match (steady.seen(pending.is_none()), pending) {
            (true, _) => WaitStatus::Done(()),
            (false, Some(why)) => WaitStatus::Waiting(why),
            (false, None) => WaitStatus::Waiting("ready; watching that it stays so".into()),
        })
    })
    .await
}

/// Why it does not run, if it does not.
async fn static_pod(server: &Cluster, name: &str, to: &Version) -> Result<Option<String>, Error> {
    let pod = server.get(&ObjectRef::new("v1", "Pod", Some("kube-system"), name)).await?;
    let Some(pod) = pod else {
        return Ok(Some(format!("the API server does not show {name}")));
    };
    let image = pod
        .pointer("/spec/containers/0/image")
        .and_then(Value::as_str)
        .unwrap_or_default();
    if !is_version(image, to) {
        return Ok(Some(format!("{name} still runs {image}")));
    }
    let conditions = pod.pointer("/status/conditions").and_then(Value::as_array);
    let is_ready = conditions
        .into_iter()
        .flatten()
        .any(|one| one["type"] == "Ready" && one["status"] == "True");
    Ok((!is_ready).then(|| format!("{name} is not ready")))
}

/// Why it does not run, if it does not.
async fn kubelet(server: &Cluster, machine: &str, to: &Version) -> Result<Option<String>, Error> {
    let Some(node) = server.node(machine).await? else {
        return Ok(Some("its Node is not there".to_owned()));
    };
    if node.kubelet.trim_start_matches('v') != to.to_string() {
        return Ok(Some(format!("the kubelet still runs {}", node.kubelet)));
    }
    Ok((!node.is_ready()).then(|| node.why_not_ready()))
}

/// A tag, with or without a digest behind it.
fn is_version(image: &str, to: &Version) -> bool {
    let tag = image
        .split_once(":v")
        .map(|(_, tag)| tag.split('@').next().unwrap_or_default());
    tag.is_some_and(|tag| tag == to.to_string() || tag.starts_with(&format!("{to}-")))
}

/// A cluster without kube-proxy, or with one of its own, keeps what it has.
async fn set_proxy(servers: Servers<'_>, to: &Version) -> Result<(), Failure> {
    let set = ObjectRef::new("apps/v1", "DaemonSet", Some("kube-system"), PROXY);
    servers
        .call("kube-proxy could not be changed", async |server| {
            let Some(there) = server.get(&set).await? else { return Ok(()) };
            let containers = there.pointer("/spec/template/spec/containers").and_then(Value::as_array);
            let mut containers = containers.cloned().unwrap_or_default();
            let own = containers.iter_mut().find(|container| container["name"] == PROXY);
            let Some(own) = own else { return Ok(()) };
            let image = own["image"].as_str().unwrap_or_default().to_owned();
            let Some((repository, _)) = image.split_once(":v").filter(|_| !is_version(&image, to)) else {
                return Ok(());
            };
            own["image"] = json!(format!("{repository}:v{to}"));
            let patch = json!({ "spec": { "template": { "spec": { "containers": containers } } } });
            match server.merge(&set, &patch).await {
                Err(error) if error.class() == Class::NotFound => Ok(()),
                merged => merged.map(drop),
            }
        })
        .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_is_told_by_its_tag() {
        let to = Version::new(1, 36, 3);
        for (image, is) in [
            ("registry.k8s.io/kube-apiserver:v1.36.3", true),
            ("registry.k8s.io/kube-apiserver:v1.36.3@sha256:00", true),
            ("ghcr.io/siderolabs/kubelet:v1.36.3-slim", true),
            ("registry.k8s.io/kube-apiserver:v1.36.30", false),
            ("registry.k8s.io/kube-apiserver", false),
        ] {
            assert_eq!(is_version(image, &to), is, "{image}");
        }
    }
}
