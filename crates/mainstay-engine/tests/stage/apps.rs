//! What people run in the cluster on the stage: deployments, budgets, pods of their own.

use mainstay_engine::Clients;
use mainstay_kube::{OnConflict, Pod};
use serde_json::{Value, json};

use super::Stage;

/// kubectl in front of the cluster on the stage.
pub struct Apps {
    clients: Clients,
}

impl Apps {
    pub fn of(stage: &Stage, file: &str) -> Self {
        Self {
            clients: stage.site(&stage.spec(file)),
        }
    }

    pub fn server(&self) -> mainstay_kube::Cluster {
        let first = "10.0.0.11".parse().expect("an address");
        self.clients.kube.server(first).expect("a client")
    }

    pub async fn put(&self, object: Value) {
        self.server().apply(&object, OnConflict::Force).await.expect("is applied");
    }

    /// A deployment, and its budget of pods that must stay.
    pub async fn deploy(&self, name: &str, replicas: u32, keeps: Option<u32>) {
        let labels = json!({ "app": name });
        let containers = json!([{ "name": "app", "image": "registry.example/app:1" }]);
        let meta = json!({ "name": name, "namespace": "default" });
        self.put(
            json!({ "apiVersion": "apps/v1", "kind": "Deployment", "metadata": meta, "spec": {
            "replicas": replicas, "selector": { "matchLabels": labels },
            "template": { "metadata": { "labels": labels }, "spec": { "containers": containers } } } }),
        )
        .await;
        if let Some(keeps) = keeps {
            self.put(
                json!({ "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": meta, "spec": {
                "minAvailable": keeps, "selector": { "matchLabels": labels } } }),
            )
            .await;
        }
        self.until_ready(name, replicas).await;
    }

    /// A pod that nothing makes again.
    pub async fn lone_pod(&self, name: &str, node: &str) {
        let containers = json!([{ "name": "app", "image": "registry.example/app:1" }]);
        self.put(
            json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": "default" },
            "spec": { "nodeName": node, "containers": containers } }),
        )
        .await;
    }

    pub async fn pods(&self, app: &str) -> Vec<Pod> {
        self.server()
            .pods(Some("default"), &format!("app={app}"))
            .await
            .expect("answers")
    }

    pub async fn until_ready(&self, app: &str, count: u32) {
        for _ in 0..600 {
            let pods = self.pods(app).await;
            if u32::try_from(pods.iter().filter(|pod| pod.is_ready).count()) == Ok(count) {
                return;
            }
            tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        }
        panic!("{app} is not ready: {:#?}", self.pods(app).await);
    }

    /// Nodes that take no new pods, with what mainstay recorded on them.
    pub async fn cordoned(&self) -> Vec<(String, Option<String>)> {
        let nodes = self.server().nodes().await.expect("answers");
        let cordoned = nodes
            .into_iter()
            .filter(|node| node.cordoned || node.cordon_record().is_some());
        cordoned
            .map(|node| (node.name.clone(), node.cordon_record().map(str::to_owned)))
            .collect()
    }
}
