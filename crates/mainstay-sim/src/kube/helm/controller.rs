//! The helm controller of RKE2 and k3s: a `HelmChart` becomes a Job that runs klipper-helm.

use serde_json::{Value, json};

use super::super::control::{Round, condition, is_deleting, key_of, set_condition, text};
use super::super::kinds;
use super::super::store::Key;

const FINALIZER: &str = "wrangler.cattle.io/on-helm-chart-remove";
const HASH: &str = "helmcharts.helm.cattle.io/configHash";
const IMAGE: &str = "rancher/klipper-helm:v0.13.3-build20260727";

pub(crate) fn run(round: &mut Round<'_>) {
    if !round.hooks.is_rancher {
        return;
    }
    for chart in round.list(&kinds::HELM_CHARTS) {
        // Packaged charts are part of the server; their workloads are there without a Job.
        if chart["spec"]["chartContent"].is_string() {
            if is_deleting(&chart) {
                uninstall(round, &chart);
            } else {
                install(round, &chart);
            }
        }
    }
}

fn names(chart: &Value) -> (String, String) {
    (
        text(&chart["metadata"]["namespace"]).to_owned(),
        text(&chart["metadata"]["name"]).to_owned(),
    )
}

/// Values of the chart and of the `HelmChartConfig` with its name, in the order of their files.
fn values(round: &Round<'_>, chart: &Value) -> Value {
    let (namespace, name) = names(chart);
    let mut data = json!({});
    let mut put = |order: u8, spec: &Value| {
        let content = if spec["valuesContent"].is_string() {
            text(&spec["valuesContent"]).to_owned()
        } else if spec["values"].is_object() {
            spec["values"].to_string()
        } else {
            return;
        };
        data[format!("values-{order:02}.yaml")] = json!(content);
    };
    put(1, &chart["spec"]);
    if let Some(config) = round.get(&kinds::HELM_CHART_CONFIGS, &namespace, &name) {
        put(10, &config["spec"]);
    }
    data
}

fn install(round: &mut Round<'_>, chart: &Value) {
    let (namespace, name) = names(chart);
    let values = values(round, chart);
    let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(format!("{}{values}", chart["spec"]))).to_uppercase();
    let job_name = format!("helm-install-{name}");
    if let Some(job) = round.get(&kinds::JOBS, &namespace, &job_name) {
        if job["spec"]["template"]["metadata"]["annotations"][HASH] == hash.as_str() {
            report(round, chart, &job);
            return;
        }
        // A changed chart gets a new Job; the old one goes first.
        let _ = round.store.delete(&key_of(&job, &kinds::JOBS));
        for pod in round.pods_of(&job["metadata"]["uid"]) {
            round.delete_pod(&pod);
        }
    }
    inputs(round, chart, &values);
    let target = chart["spec"]["targetNamespace"].as_str().unwrap_or(&namespace).to_owned();
    if chart["spec"]["createNamespace"] == true {
        round.create(
            &kinds::NAMESPACES,
            json!({"metadata": {"name": target}, "spec": {"finalizers": ["kubernetes"]}, "status": {"phase": "Active"}}),
        );
    }
    round.create(&kinds::JOBS, job(chart, &job_name, "install", &hash));
    round.change(chart, &kinds::HELM_CHARTS, |chart| {
        if !chart["metadata"]["finalizers"]
            .as_array()
            .is_some_and(|list| list.contains(&json!(FINALIZER)))
        {
            chart["metadata"]["finalizers"] = json!([FINALIZER]);
        }
        chart["status"]["jobName"] = json!(job_name);
    });
}

fn report(round: &Round<'_>, chart: &Value, job: &Value) {
    let now = round.now.clone();
    let failed = condition(job, "Failed") && chart["spec"]["failurePolicy"] == "abort";
    round.change(chart, &kinds::HELM_CHARTS, |chart| {
        set_condition(chart, "JobCreated", "True", "Job created", "", &now);
        let (word, reason) = if failed { ("True", "Job failed") } else { ("False", "") };
        set_condition(chart, "Failed", word, reason, "", &now);
    });
}

/// What the Job mounts, and the account that it runs with.
fn inputs(round: &Round<'_>, chart: &Value, values: &Value) {
    let (namespace, name) = names(chart);
    let encode = |text: &str| base64::Engine::encode(&base64::engine::general_purpose::STANDARD, text);
    let data: Value = values
        .as_object()
        .into_iter()
        .flatten()
        .map(|(file, content)| (file.clone(), json!(encode(text(content)))))
        .collect();
    let put = |kind, object: Value| {
        let key = key_of(&object, kind);
        let _ = round.store.delete(&key);
        round.create(kind, object);
    };
    put(
        &kinds::SECRETS,
        json!({"metadata": {"name": format!("chart-values-{name}"), "namespace": namespace}, "type": "Opaque", "data": data}),
    );
    put(
        &kinds::CONFIG_MAPS,
        json!({"metadata": {"name": format!("chart-content-{name}"), "namespace": namespace}, "data": {format!("{name}.tgz.base64"): chart["spec"]["chartContent"]}}),
    );
    round.create(
        &kinds::SERVICE_ACCOUNTS,
        json!({"metadata": {"name": format!("helm-{name}"), "namespace": namespace}}),
    );
    round.create(&kinds::CLUSTER_ROLE_BINDINGS, json!({
        "metadata": {"name": format!("helm-{namespace}-{name}")}, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
        "subjects": [{"kind": "ServiceAccount", "name": format!("helm-{name}"), "namespace": namespace}],
    }));
}

fn job(chart: &Value, job_name: &str, verb: &str, hash: &str) -> Value {
    let (namespace, name) = names(chart);
    let spec = &chart["spec"];
    let target = spec["targetNamespace"].as_str().unwrap_or(&namespace);
    let env = |name: &str, value: &str| json!({"name": name, "value": value});
    let policy = spec["failurePolicy"].as_str().unwrap_or("reinstall");
    let image = spec["jobImage"].as_str().unwrap_or(IMAGE);
    let is_first = spec["bootstrap"] == true;
    let mut pod = json!({
        "restartPolicy": "OnFailure", "serviceAccountName": format!("helm-{name}"), "hostNetwork": is_first,
        "containers": [{
            "name": "helm", "image": image, "args": [verb, "--namespace", target],
            "env": [env("NAME", &name), env("TARGET_NAMESPACE", target), env("CHART", text(&spec["chart"])), env("FAILURE_POLICY", policy), env("HELM_DRIVER", "secret"), env("CONFIG_HASH", &hash[..hash.len().min(63)])],
            "volumeMounts": [{"name": "values", "mountPath": "/config"}, {"name": "content", "mountPath": "/chart"}],
        }],
        "volumes": [{"name": "values", "secret": {"secretName": format!("chart-values-{name}")}}, {"name": "content", "configMap": {"name": format!("chart-content-{name}")}}],
    });
    if spec["takeOwnership"] == true
        && let Some(list) = pod["containers"][0]["args"].as_array_mut()
    {
        list.push(json!("--take-ownership"));
    }
    if is_first {
        pod["nodeSelector"] = json!({"node-role.kubernetes.io/control-plane": "true"});
        pod["tolerations"] = json!([
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoSchedule"}, {"key": "node.cloudprovider.kubernetes.io/uninitialized", "operator": "Equal", "value": "true", "effect": "NoSchedule"},
            {"key": "CriticalAddonsOnly", "operator": "Exists"}, {"key": "node-role.kubernetes.io/etcd", "operator": "Exists", "effect": "NoExecute"}, {"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"},
        ]);
    }
    json!({
        "metadata": {"name": job_name, "namespace": namespace, "labels": {"helmcharts.helm.cattle.io/chart": name}},
        "spec": {"backoffLimit": spec["backOffLimit"].as_u64().unwrap_or(1000), "template": {"metadata": {"annotations": {HASH: hash}, "labels": {"helmcharts.helm.cattle.io/chart": name}}, "spec": pod}},
    })
}

/// A deleted chart is uninstalled by another Job before it goes.
fn uninstall(round: &mut Round<'_>, chart: &Value) {
    let (namespace, name) = names(chart);
    let job_name = format!("helm-delete-{name}");
    let deletion = job(chart, &job_name, "delete", "");
    let Some(job) = round.get(&kinds::JOBS, &namespace, &job_name) else {
        round.create(&kinds::JOBS, deletion);
        return;
    };
    if !condition(&job, "Complete") {
        return;
    }
    for (kind, name) in [
        (&kinds::JOBS, job_name),
        (&kinds::JOBS, format!("helm-install-{name}")),
        (&kinds::SECRETS, format!("chart-values-{name}")),
        (&kinds::CONFIG_MAPS, format!("chart-content-{name}")),
        (&kinds::SERVICE_ACCOUNTS, format!("helm-{name}")),
    ] {
        let _ = round.store.delete(&Key::new(kind, &namespace, &name));
    }
    let _ = round.store.delete(&Key::new(
        &kinds::CLUSTER_ROLE_BINDINGS,
        "",
        &format!("helm-{namespace}-{name}"),
    ));
    round.change(chart, &kinds::HELM_CHARTS, |chart| {
        chart["metadata"]["finalizers"] = Value::Null;
    });
}
