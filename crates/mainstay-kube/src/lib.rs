//! The Kubernetes calls that mainstay needs, over the seam, and pure rules about what they tell.

mod drain;
mod error;
mod health;
mod kubelet_csr;
mod lease;
mod node;
mod object;
mod owner;
mod pod;
mod readiness;
mod release;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use http::Uri;
use hyper_util::client::legacy::Client as HyperClient;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams};
use kube::client::middleware::BaseUriLayer;
use mainstay_net::{Connector, Env, Target, Trust};
use semver::Version;
use serde_json::json;
use tower::ServiceBuilder;

pub use drain::{
    AttachedVolume, CORDONED, Cordon, DisruptionBudget, DrainClass, DrainPlan, Eviction, Uncordon, budgets_of, drain_class,
};
pub use error::{ApiCause, ApiStatus, Class, Error, FieldConflict};
pub use health::{ApiReadiness, DnsPods, WarningEvent};
pub use kubelet_csr::{KubeletCsr, Unfit};
pub use lease::NodeLease;
pub use node::{APPLIED, Node, NodeEdit, NodeTaint};
pub use object::{Deletion, KindInfo, ListScope, ObjectRef, OnConflict, Propagation};
pub use owner::{ObjectOwner, gitops_managers, owners};
pub use pod::{Pod, PodProblem, PodProblemKind};
pub use readiness::{Readiness, readiness};
pub use release::{ReleaseRevision, newest_revisions};
pub use watch::{NodeWatch, ObjectWatch, WatchEvent};

/// How long one call may take.
const CALL: Duration = Duration::from_secs(10);

/// Who we are to server-side apply.
const MANAGER: &str = "mainstay";

/// A control plane that dies without a word leaves its connection open here: without pings every later call would hang on it.
const PING_EVERY: Duration = Duration::from_secs(10);
const PING_ANSWERED_WITHIN: Duration = Duration::from_secs(5);

/// How often a change is tried that meets a change of others.
const CONFLICTS_MAX: usize = 5;

/// The Kubernetes API of one cluster, at one address.
/// What became of a Node that was deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeDeletion {
    Gone,
    /// Its finalizers are not done yet.
    Begun,
}

#[derive(Clone)]
pub struct Cluster {
    client: kube::Client,
    connector: Connector,
    at: Target,
    /// Kinds that discovery told of, by version and kind.
    kinds: Arc<tokio::sync::Mutex<BTreeMap<(String, String), KindInfo>>>,
}

impl Cluster {
    /// Create it inside the runtime that uses it. Nothing is sent yet.
    pub fn connect(env: &Env, at: &Target, trust: &Trust, timeout: Duration) -> Result<Self, Error> {
        let connector = Connector::new(env.dialer.clone(), trust, env.wall, timeout);
        let connector = connector.map_err(|source| Error::Credentials { at: at.clone(), source })?;
        let scheme = if matches!(trust, Trust::Plain) { "http" } else { "https" };
        let base: Uri = format!("{scheme}://{at}")
            .parse()
            .map_err(|_| Error::Address(at.to_string()))?;
        let http = HyperClient::builder(TokioExecutor::new())
            .timer(TokioTimer::new())
            .pool_timer(TokioTimer::new())
            .http2_keep_alive_interval(PING_EVERY)
            .http2_keep_alive_timeout(PING_ANSWERED_WITHIN)
            .build(connector.clone());
        let service = ServiceBuilder::new().layer(BaseUriLayer::new(base)).service(http);
        Ok(Self {
            client: kube::Client::new(service, "default"),
            connector,
            at: at.clone(),
            kinds: Arc::default(),
        })
    }

    pub async fn version(&self) -> Result<Version, Error> {
        let info = self.within("version", self.client.apiserver_version()).await?;
        let tag = info.git_version.trim_start_matches('v');
        tag.parse().map_err(|_| Error::Misread {
            at: self.at.clone(),
            what: format!("version `{tag}`"),
        })
    }

    /// Whether the API server says that it is ready.
    pub async fn is_ready(&self) -> Result<bool, Error> {
        let request = http::Request::get("/readyz")
            .body(Vec::new())
            .map_err(|_| Error::Address(self.at.to_string()))?;
        match self.within("readyz", self.client.request_text(request)).await {
            Ok(_) => Ok(true),
            Err(error) if error.class() == Class::Unavailable => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Every node, by name.
    pub async fn nodes(&self) -> Result<Vec<Node>, Error> {
        let list = self.within("nodes", self.node_api().list(&ListParams::default())).await?;
        let mut nodes: Vec<Node> = list.items.into_iter().map(Node::from).collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(nodes)
    }

    /// `None` when there is no such node.
    pub async fn node(&self, name: &str) -> Result<Option<Node>, Error> {
        Ok(absent_is_none(self.within("node", self.node_api().get(name)).await)?.map(Node::from))
    }

    /// Removes a node. One that is gone is gone.
    pub async fn delete_node(&self, name: &str) -> Result<NodeDeletion, Error> {
        match self
            .within("delete node", self.node_api().delete(name, &DeleteParams::default()))
            .await
        {
            Ok(answer) => {
                let node = answer.left();
                let waits = node.is_some_and(|node| node.metadata.finalizers.is_some_and(|list| !list.is_empty()));
                Ok(if waits { NodeDeletion::Begun } else { NodeDeletion::Gone })
            }
            Err(error) if error.class() == Class::NotFound => Ok(NodeDeletion::Gone),
            Err(error) => Err(error),
        }
    }

    /// Changes labels and taints of a node in one request, together with the record of which of them are ours. All others stay.
    pub async fn edit_node(&self, name: &str, edit: &NodeEdit) -> Result<(), Error> {
        self.retrying_conflicts(async || {
            let api = self.node_api();
            let node = self.within("edit node", api.get(name)).await?;
            let version = node.metadata.resource_version.clone();
            let patch = edit.patch(&Node::from(node), version.as_deref());
            self.within("edit node", api.patch(name, &PatchParams::default(), &Patch::Merge(patch)))
                .await
                .map(drop)
        })
        .await
    }

    /// Puts these taints on a node and leaves all others as they are.
    ///
    /// Not by server-side apply: the list of taints has one owner as a whole, and the control plane adds and removes taints of its own.
    pub async fn add_taints(&self, name: &str, taints: &[NodeTaint]) -> Result<(), Error> {
        self.change_taints(name, |seen| node::with_taints(seen, taints)).await
    }

    /// Takes these taints off a node, whatever their value, and leaves all others as they are.
    pub async fn remove_taints(&self, name: &str, taints: &[NodeTaint]) -> Result<(), Error> {
        self.change_taints(name, |seen| node::without_taints(seen, taints)).await
    }

    async fn change_taints(&self, name: &str, change: impl Fn(&[NodeTaint]) -> Vec<NodeTaint>) -> Result<(), Error> {
        self.retrying_conflicts(async || {
            let api = self.node_api();
            let node = self.within("taints", api.get(name)).await?;
            // The version makes it a conflict, not an overwrite, when another change came first.
            let version = node.metadata.resource_version.clone();
            let seen = Node::from(node);
            let wanted = change(&seen.taints);
            if wanted == seen.taints {
                return Ok(());
            }
            let patch = json!({ "metadata": { "resourceVersion": version }, "spec": { "taints": node::taints_json(&wanted) } });
            self.within("taints", api.patch(name, &PatchParams::default(), &Patch::Merge(patch)))
                .await
                .map(drop)
        })
        .await
    }

    pub(crate) fn watch_failed(&self, error: kube::Error) -> Error {
        Error::of("watch", &self.at, error)
    }

    /// A connection that breaks is also what a refused client certificate looks like.
    async fn explained(&self, error: Error) -> Error {
        if !matches!(error, Error::Broken { .. }) {
            return error;
        }
        match self.connector.refusal(&self.at).await {
            Some(alert) => Error::ClientRefused {
                at: self.at.clone(),
                alert: format!("{alert:?}"),
            },
            None => error,
        }
    }

    pub(crate) fn node_api(&self) -> Api<KubeNode> {
        Api::all(self.client.clone())
    }

    async fn within<T>(&self, call: &'static str, work: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
        match tokio::time::timeout(CALL, work).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(source)) => Err(self.explained(Error::of(call, &self.at, source)).await),
            Err(_) => Err(Error::NoAnswer {
                call,
                at: self.at.clone(),
                limit: CALL,
            }),
        }
    }
}

fn absent_is_none<T>(got: Result<T, Error>) -> Result<Option<T>, Error> {
    match got {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.class() == Class::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Cluster({})", self.at)
    }
}
