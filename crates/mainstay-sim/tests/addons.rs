//! Helm in a pod, chart servers, Flux and Argo CD of a simulated cluster.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Trust};
use mainstay_sim::ChartFaults;
use serde_json::{Value, json};
use sha2::Digest;

use crate::lab::kube::{Kube, ready};
use crate::lab::{Lab, Vm, in_world, until};

async fn cluster(lab: &Lab) -> (Vm, Kube) {
    let vm = lab.first_control_plane("cp-1", "10.10.0.11").await;
    let kube = Kube::admin(lab, "10.10.0.11");
    until(|| async {
        kube.try_call("GET", "/api/v1/nodes/cp-1", &[], "")
            .await
            .is_some_and(|(_, node)| ready(&node))
    })
    .await;
    let merge = [("content-type", "application/merge-patch+json")];
    kube.call("PATCH", "/api/v1/nodes/cp-1", &merge, r#"{"spec":{"taints":null}}"#)
        .await;
    (vm, kube)
}

async fn post(kube: &Kube, path: &str, object: &Value) -> Value {
    let (code, answer) = kube
        .call("POST", path, &[("content-type", "application/json")], &object.to_string())
        .await;
    assert_eq!(code, 201, "{answer}");
    answer
}

/// A client of the public hosts.
struct Web(HttpClient);

impl Web {
    fn new(lab: &Lab) -> Self {
        let trust = Trust::Ca {
            ca_pem: lab.world.web_ca(),
            identity: None,
            server_name: None,
        };
        let connector = Connector::new(lab.world.dialer(), &trust, lab.world.wall(), Duration::from_secs(5)).unwrap();
        Self(HttpClient::new(connector, HttpOptions::default()))
    }

    async fn get(&self, url: &str, token: Option<&str>) -> (u16, http::HeaderMap, Vec<u8>) {
        let mut request = http::Request::get(url);
        if let Some(token) = token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = self
            .0
            .send(request.body(Body::empty()).unwrap(), Duration::from_secs(20))
            .await
            .unwrap();
        (answer.status.as_u16(), answer.headers.clone(), answer.body.to_vec())
    }

    /// The archive of a chart, by the registry's token flow.
    async fn pull(&self, host: &str, repository: &str, tag: &str) -> Vec<u8> {
        let url = format!("https://{host}/v2/{repository}/manifests/{tag}");
        let (code, headers, _) = self.get(&url, None).await;
        assert_eq!(code, 401);
        assert!(
            headers["www-authenticate"]
                .to_str()
                .unwrap()
                .starts_with("Bearer realm=\"https://")
        );
        let (_, _, token) = self
            .get(&format!("https://{host}/token?scope=repository:{repository}:pull"), None)
            .await;
        let token: Value = serde_json::from_slice(&token).unwrap();
        let token = token["token"].as_str();
        let (code, _, manifest) = self.get(&url, token).await;
        assert_eq!(code, 200);
        let manifest: Value = serde_json::from_slice(&manifest).unwrap();
        let layer = &manifest["layers"][0];
        assert_eq!(layer["mediaType"], "application/vnd.cncf.helm.chart.content.v1.tar+gzip");
        self.get(
            &format!("https://{host}/v2/{repository}/blobs/{}", layer["digest"].as_str().unwrap()),
            token,
        )
        .await
        .2
    }
}

/// The objects of a klipper-helm Job.
async fn run_helm(kube: &Kube, job: &str, release: &str, chart: &[u8], values: &str, arguments: Value) {
    let names = json!({"name": job, "namespace": "kube-system"});
    post(
        kube,
        "/api/v1/namespaces/kube-system/serviceaccounts",
        &json!({"metadata": names}),
    )
    .await;
    post(kube, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &json!({"metadata": {"name": job}, "roleRef": {"kind": "ClusterRole", "name": "cluster-admin"}, "subjects": [{"kind": "ServiceAccount", "name": job, "namespace": "kube-system"}]})).await;
    post(
        kube,
        "/api/v1/namespaces/kube-system/secrets",
        &json!({"metadata": names, "data": {"values.yaml": STANDARD.encode(values)}}),
    )
    .await;
    let archive = STANDARD.encode(chart);
    post(
        kube,
        "/api/v1/namespaces/kube-system/configmaps",
        &json!({"metadata": names, "data": {format!("{release}.tgz.base64"): archive}}),
    )
    .await;
    let env = json!([{"name": "NAME", "value": release}, {"name": "TARGET_NAMESPACE", "value": "kube-system"}, {"name": "FAILURE_POLICY", "value": "abort"}]);
    post(kube, "/apis/batch/v1/namespaces/kube-system/jobs", &json!({"metadata": names, "spec": {"backoffLimit": 0, "template": {"spec": {
        "serviceAccountName": job, "restartPolicy": "Never", "hostNetwork": true, "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 330,
        "containers": [{"name": "helm", "image": "rancher/klipper-helm:v0.13.3", "args": arguments, "env": env, "volumeMounts": [{"name": "values", "mountPath": "/config"}, {"name": "chart", "mountPath": "/chart"}]}],
        "volumes": [{"name": "values", "secret": {"secretName": job}}, {"name": "chart", "configMap": {"name": job}}],
    }}}})).await;
}

/// Revisions of a release: status and record.
async fn releases(kube: &Kube, name: &str) -> Vec<(String, Value)> {
    let (_, list) = kube
        .get(&format!(
            "/api/v1/namespaces/kube-system/secrets?labelSelector=owner=helm,name={name}&fieldSelector=type=helm.sh/release.v1"
        ))
        .await;
    let mut all: Vec<(String, Value)> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|secret| {
            let helm = STANDARD.decode(secret["data"]["release"].as_str().unwrap()).unwrap();
            let packed = STANDARD.decode(helm).unwrap();
            let mut json = String::new();
            flate2::read::GzDecoder::new(&packed[..]).read_to_string(&mut json).unwrap();
            (
                secret["metadata"]["labels"]["status"].as_str().unwrap().to_owned(),
                serde_json::from_str(&json).unwrap(),
            )
        })
        .collect();
    all.sort_by_key(|(_, record)| record["version"].as_u64());
    all
}

async fn ended(kube: &Kube, job: &str, word: &str) {
    until(|| async {
        let (_, object) = kube.get(&format!("/apis/batch/v1/namespaces/kube-system/jobs/{job}")).await;
        object["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .any(|one| one["type"] == word && one["status"] == "True")
    })
    .await;
}

#[test]
fn a_helm_job_installs_upgrades_and_uninstalls_a_chart_from_a_registry() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        let chart = Web::new(&lab).pull("quay.io", "cilium/charts/cilium", "1.18.13").await;
        let install = json!(["install", "--namespace", "kube-system", "--description", "mainstay 01"]);
        run_helm(&kube, "one", "cilium", &chart, "operator: {replicas: 1}\n", install.clone()).await;
        ended(&kube, "one", "Complete").await;
        let all = releases(&kube, "cilium").await;
        assert_eq!((all.len(), all[0].0.as_str()), (1, "deployed"));
        assert_eq!(
            (&all[0].1["info"]["description"], &all[0].1["config"]),
            (&json!("mainstay 01"), &json!({"operator": {"replicas": 1}}))
        );
        until(|| async {
            kube.get("/apis/apps/v1/namespaces/kube-system/daemonsets/cilium").await.1["status"]["numberReady"] == 1
        })
        .await;
        let (_, operator) = kube
            .get("/apis/apps/v1/namespaces/kube-system/deployments/cilium-operator")
            .await;
        assert_eq!(operator["metadata"]["annotations"]["meta.helm.sh/release-name"], "cilium");
        run_helm(
            &kube,
            "two",
            "cilium",
            &chart,
            "operator: {replicas: 1}\nenvoy: {enabled: false}\n",
            install,
        )
        .await;
        ended(&kube, "two", "Complete").await;
        let states: Vec<String> = releases(&kube, "cilium")
            .await
            .into_iter()
            .map(|(status, _)| status)
            .collect();
        assert_eq!(states, ["superseded", "deployed"]);
        assert_eq!(
            kube.get("/apis/apps/v1/namespaces/kube-system/daemonsets/cilium-envoy")
                .await
                .0,
            404
        );
        run_helm(&kube, "three", "cilium", &chart, "", json!(["delete"])).await;
        ended(&kube, "three", "Complete").await;
        assert!(releases(&kube, "cilium").await.is_empty());
        assert_eq!(
            kube.get("/apis/apps/v1/namespaces/kube-system/daemonsets/cilium").await.0,
            404
        );
    });
}

#[test]
fn values_that_the_schema_refuses_fail_the_job_and_write_no_release() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        let chart = Web::new(&lab).pull("quay.io", "cilium/charts/cilium", "1.18.13").await;
        run_helm(
            &kube,
            "bad",
            "cilium",
            &chart,
            "operator: {replicas: many}\n",
            json!(["install", "--namespace", "kube-system"]),
        )
        .await;
        ended(&kube, "bad", "Failed").await;
        assert!(releases(&kube, "cilium").await.is_empty());
        let (_, pods) = kube
            .get("/api/v1/namespaces/kube-system/pods?labelSelector=job-name=bad")
            .await;
        let pod = &pods["items"][0];
        let message = pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"]
            .as_str()
            .unwrap();
        assert!(
            message.contains("at '/operator/replicas': got string, want integer"),
            "{message}"
        );
        let (_, log) = kube
            .get(&format!(
                "/api/v1/namespaces/kube-system/pods/{}/log",
                pod["metadata"]["name"].as_str().unwrap()
            ))
            .await;
        assert!(log.as_str().unwrap().contains("INSTALLATION FAILED"));
    });
}

#[test]
fn a_helm_job_killed_in_the_middle_leaves_a_pending_release_that_the_next_one_marks_failed() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        lab.world.set_chart_faults(ChartFaults {
            helm_step: Some(20),
            ..ChartFaults::default()
        });
        let chart = Web::new(&lab).pull("ghcr.io", "traefik/helm/traefik", "41.3.0").await;
        let install = json!(["install", "--namespace", "kube-system"]);
        run_helm(&kube, "one", "traefik", &chart, "", install.clone()).await;
        until(|| async {
            releases(&kube, "traefik")
                .await
                .first()
                .is_some_and(|(status, _)| status == "pending-install")
        })
        .await;
        let (_, pods) = kube
            .get("/api/v1/namespaces/kube-system/pods?labelSelector=job-name=one")
            .await;
        let pod = pods["items"][0]["metadata"]["name"].as_str().unwrap().to_owned();
        kube.call(
            "DELETE",
            "/apis/batch/v1/namespaces/kube-system/jobs/one?propagationPolicy=Orphan",
            &[],
            "",
        )
        .await;
        kube.call(
            "DELETE",
            &format!("/api/v1/namespaces/kube-system/pods/{pod}?gracePeriodSeconds=0"),
            &[],
            "",
        )
        .await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(releases(&kube, "traefik").await[0].0, "pending-install");
        run_helm(&kube, "two", "traefik", &chart, "", install).await;
        ended(&kube, "two", "Failed").await;
        assert_eq!(
            releases(&kube, "traefik").await[0].0,
            "failed",
            "abort only resets the status"
        );
    });
}

#[test]
fn chart_servers_have_an_index_bad_days_and_digests() {
    in_world(|lab: Arc<Lab>| async move {
        let web = Web::new(&lab);
        let (code, _, index) = web
            .get("https://kubernetes-sigs.github.io/metrics-server/index.yaml", None)
            .await;
        let index = String::from_utf8(index).unwrap();
        assert_eq!(code, 200);
        let (_, _, archive) = web
            .get(
                "https://kubernetes-sigs.github.io/metrics-server/metrics-server-3.13.1.tgz",
                None,
            )
            .await;
        let digest = hex::encode(sha2::Sha256::digest(&archive));
        assert!(
            index.contains(&digest) && index.contains("metrics-server-3.13.1.tgz"),
            "{index}"
        );
        let faults = ChartFaults {
            outage: ["quay.io".to_owned()].into(),
            corrupt: ["metrics-server".to_owned()].into(),
            ..ChartFaults::default()
        };
        lab.world.set_chart_faults(faults);
        assert_eq!(
            web.get("https://quay.io/v2/cilium/charts/cilium/manifests/1.18.13", None)
                .await
                .0,
            503
        );
        let (_, _, corrupt) = web
            .get(
                "https://kubernetes-sigs.github.io/metrics-server/metrics-server-3.13.1.tgz",
                None,
            )
            .await;
        assert_ne!(hex::encode(sha2::Sha256::digest(&corrupt)), digest);
    });
}

#[test]
fn flux_syncs_a_repository_with_its_own_error_and_takes_a_release_over() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        let web = Web::new(&lab);
        let operator = web
            .pull("ghcr.io", "controlplaneio-fluxcd/charts/flux-operator", "0.58.1")
            .await;
        run_helm(
            &kube,
            "flux",
            "flux-operator",
            &operator,
            "",
            json!(["install", "--namespace", "kube-system"]),
        )
        .await;
        ended(&kube, "flux", "Complete").await;
        let url = "https://git.example/fleet.git";
        lab.world.set_chart_faults(ChartFaults {
            unreadable: vec![(url.into(), "authentication required".into())],
            ..ChartFaults::default()
        });
        post(&kube, "/apis/fluxcd.controlplane.io/v1/namespaces/kube-system/fluxinstances", &json!({"metadata": {"name": "flux"}, "spec": {"sync": {"url": url, "ref": "refs/heads/main", "path": "clusters/x"}}})).await;
        let repository = "/apis/source.toolkit.fluxcd.io/v1/namespaces/kube-system/gitrepositories/kube-system";
        until(|| async {
            kube.get(repository).await.1["status"]["conditions"][0]["message"]
                .as_str()
                .unwrap_or_default()
                .contains("authentication required")
        })
        .await;
        lab.world.set_chart_faults(ChartFaults::default());
        until(|| async { kube.get(repository).await.1["status"]["conditions"][0]["status"] == "True" }).await;
        let kustomization = "/apis/kustomize.toolkit.fluxcd.io/v1/namespaces/kube-system/kustomizations/kube-system";
        until(|| async { kube.get(kustomization).await.1["status"]["conditions"][0]["status"] == "True" }).await;
        let traefik = web.pull("ghcr.io", "traefik/helm/traefik", "41.3.0").await;
        run_helm(
            &kube,
            "traefik",
            "traefik",
            &traefik,
            "",
            json!(["install", "--namespace", "kube-system"]),
        )
        .await;
        ended(&kube, "traefik", "Complete").await;
        post(
            &kube,
            "/apis/helm.toolkit.fluxcd.io/v2/namespaces/kube-system/helmreleases",
            &json!({"metadata": {"name": "traefik"}, "spec": {}}),
        )
        .await;
        until(|| async { releases(&kube, "traefik").await.len() == 2 }).await;
        let (_, deployment) = kube.get("/apis/apps/v1/namespaces/kube-system/deployments/traefik").await;
        assert_eq!(deployment["metadata"]["labels"]["helm.toolkit.fluxcd.io/name"], "traefik");
    });
}

#[test]
fn argo_cd_marks_what_it_takes_over_and_reports_what_it_cannot_read() {
    in_world(|lab: Arc<Lab>| async move {
        let (_vm, kube) = cluster(&lab).await;
        let web = Web::new(&lab);
        let argo = web.pull("ghcr.io", "argoproj/argo-helm/argo-cd", "10.1.1").await;
        run_helm(
            &kube,
            "argo",
            "argo-cd",
            &argo,
            "",
            json!(["install", "--namespace", "kube-system"]),
        )
        .await;
        ended(&kube, "argo", "Complete").await;
        lab.world.set_chart_faults(ChartFaults {
            unreadable: vec![("https://git.example/no.git".into(), "repository not found".into())],
            ..ChartFaults::default()
        });
        let applications = "/apis/argoproj.io/v1alpha1/namespaces/kube-system/applications";
        post(
            &kube,
            applications,
            &json!({"metadata": {"name": "root"}, "spec": {"source": {"repoURL": "https://git.example/no.git"}}}),
        )
        .await;
        post(&kube, applications, &json!({"metadata": {"name": "own"}, "spec": {"source": {"repoURL": "https://git.example/yes.git", "helm": {"releaseName": "argo-cd"}}, "destination": {"namespace": "kube-system"}}})).await;
        until(|| async { kube.get(&format!("{applications}/own")).await.1["status"]["sync"]["status"] == "Synced" }).await;
        until(|| async {
            kube.get(&format!("{applications}/root")).await.1["status"]["conditions"][0]["message"]
                .as_str()
                .unwrap_or_default()
                .contains("repository not found")
        })
        .await;
        let (_, server) = kube
            .get("/apis/apps/v1/namespaces/kube-system/deployments/argocd-server")
            .await;
        assert_eq!(
            server["metadata"]["annotations"]["argocd.argoproj.io/tracking-id"],
            "own:apps/Deployment:kube-system/argocd-server"
        );
    });
}
