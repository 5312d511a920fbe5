//! Addresses of services of type LoadBalancer: the pool of `loadbalancer:` and its announcement.

use std::net::Ipv4Addr;

use mainstay_spec::AddressSpan;
use serde_json::{Value, json};

use super::facts::AddonFacts;

/// An address of the pool that is in use otherwise. Two machines that answer for one address make it unreachable at random.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PoolConflict {
    Vip(Ipv4Addr),
    Machine { name: String, address: Ipv4Addr },
}

/// Addresses of the pool that belong to the VIP or to a machine.
pub fn pool_conflicts(facts: &AddonFacts) -> Vec<PoolConflict> {
    let Some(pool) = facts.loadbalancer else {
        return Vec::new();
    };
    let is_inside = |address: &Ipv4Addr| (pool.first..=pool.last).contains(address);
    let vip = facts.vip.filter(is_inside).map(PoolConflict::Vip);
    let machines = facts.control_planes.iter().chain(&facts.workers);
    let taken = machines.filter_map(|(name, address)| {
        let address = address.filter(is_inside)?;
        let name = name.clone();
        Some(PoolConflict::Machine { name, address })
    });
    vip.into_iter().chain(taken).collect()
}

/// Pool and announcement policy for Cilium. Their CRDs are registered by Cilium's operator, so they are applied after it runs.
///
/// Control planes announce only if there is no worker: the VIP and the services then share machines.
pub fn cilium_objects(facts: &AddonFacts, pool: AddressSpan, cilium: &str) -> Vec<Value> {
    let selector = if facts.workers.is_empty() {
        json!({})
    } else {
        json!({ "matchExpressions": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "DoesNotExist" }] })
    };
    vec![
        json!({
            "apiVersion": pool_api_version(cilium),
            "kind": "CiliumLoadBalancerIPPool",
            "metadata": { "name": "mainstay" },
            "spec": { "blocks": [{ "start": pool.first, "stop": pool.last }] },
        }),
        json!({
            "apiVersion": "cilium.io/v2alpha1",
            "kind": "CiliumL2AnnouncementPolicy",
            "metadata": { "name": "mainstay" },
            // Without one of the two address flags a policy announces nothing.
            "spec": { "loadBalancerIPs": true, "externalIPs": false, "nodeSelector": selector },
        }),
    ]
}

/// The pool is served as v2 from 1.18 on; the announcement policy is v2alpha1 in every known version.
fn pool_api_version(cilium: &str) -> &'static str {
    let mut parts = cilium.split('.').map(|part| part.parse::<u64>().unwrap_or(0));
    let minor = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if minor >= (1, 18) {
        "cilium.io/v2"
    } else {
        "cilium.io/v2alpha1"
    }
}
