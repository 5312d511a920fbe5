//! When a kubelet was last heard of.

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease as KubeLease;
use kube::api::Api;

use crate::{Cluster, Error, absent_is_none};

/// Where kubelets renew their leases, one for each node, by its name.
const NODE_LEASES: &str = "kube-node-lease";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeLease {
    pub holder: String,
    pub renewed: Option<Timestamp>,
}

impl Cluster {
    /// The lease by which a kubelet says that it lives. `None` when it has none.
    pub async fn node_lease(&self, node: &str) -> Result<Option<NodeLease>, Error> {
        self.lease(NODE_LEASES, node).await
    }

    pub async fn lease(&self, namespace: &str, name: &str) -> Result<Option<NodeLease>, Error> {
        let api: Api<KubeLease> = Api::namespaced(self.client.clone(), namespace);
        let found = absent_is_none(self.within("lease", api.get(name)).await)?;
        Ok(found.and_then(|lease| lease.spec).map(|spec| NodeLease {
            holder: spec.holder_identity.unwrap_or_default(),
            renewed: spec.renew_time.map(|time| time.0),
        }))
    }
}
