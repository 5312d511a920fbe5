//! Cloud controllers: they remove the `uninitialized` taint that every node registers with.

use mainstay_spec::{Addon, Distro};
use serde_json::{Value, json};

use super::{
    CatalogueEntry, CrdDelivery, Delivery, EntrySource, Expect, InUse, LateInstall, Layer, MachineNeeds, ReadyCheck,
    RemovalPolicy, Workload, WorkloadKind, job_or_helm_chart, no_crds, no_warnings,
};
use crate::addon::accounts::{CONFIG_KEY, CONFIG_SECRET_CCM, ca_volume};
use crate::addon::facts::AddonFacts;

/// Nodes register with the taint `uninitialized` until a cloud controller removes it.
pub fn has_external_cloud_provider(facts: &AddonFacts) -> bool {
    facts.wants(Addon::ProxmoxCcm) || facts.wants(Addon::TalosCcm)
}

/// A kubelet asks for an external cloud provider only when its Node registers.
const NODES_REGISTERED: LateInstall = LateInstall::Refused {
    why: "Nodes take their cloud provider when they register, and these Nodes have registered without one",
    manual: "set the kubelet flag `cloud-provider: external` on every machine, install the add-on, then for one node at a time: drain it, \
             delete its Node object and restart its kubelet",
};

const UNINITIALIZED: ReadyCheck = ReadyCheck::NoTaint("node.cloudprovider.kubernetes.io/uninitialized");

pub(super) static PROXMOX_CCM: CatalogueEntry = CatalogueEntry {
    name: "proxmox-ccm",
    release: "proxmox-cloud-controller-manager",
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Cloud,
    source: EntrySource::Oci("oci://ghcr.io/sergelogvinov/charts/proxmox-cloud-controller-manager"),
    versions: &["0.2.27"],
    crds: CrdDelivery::None,
    secret: None,
    hooks: &[],
    workloads: &[Workload {
        kind: WorkloadKind::Deployment,
        name: "proxmox-cloud-controller-manager",
        expect: Expect::AtLeastOne,
    }],
    checks: &[UNINITIALIZED, ReadyCheck::ProviderId("proxmox://")],
    late: NODES_REGISTERED,
    removal: RemovalPolicy::WhileUnused(&[InUse::Nodes]),
    machine: MachineNeeds {
        kubelet_args: &[("cloud-provider", "external")],
        ..MachineNeeds::NONE
    },
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: proxmox_values,
    judge: no_warnings,
};

fn proxmox_values(facts: &AddonFacts) -> Value {
    // Exactly one cloud controller may initialise nodes.
    let controllers = if facts.wants(Addon::TalosCcm) {
        json!(["cloud-node-lifecycle"])
    } else {
        json!(["cloud-node", "cloud-node-lifecycle"])
    };
    let mut values = json!({
        "existingConfigSecret": CONFIG_SECRET_CCM,
        "existingConfigSecretKey": CONFIG_KEY,
        "enabledControllers": controllers,
        // Before the first worker has joined only tainted nodes exist.
        "tolerations": [{ "operator": "Exists" }],
    });
    if facts.pve.has_own_ca {
        let (volume, mount) = ca_volume(CONFIG_SECRET_CCM);
        values["extraVolumes"] = json!([volume]);
        values["extraVolumeMounts"] = json!([mount]);
    }
    values
}

pub(super) static TALOS_CCM: CatalogueEntry = CatalogueEntry {
    name: "talos-ccm",
    release: "talos-cloud-controller-manager",
    namespace: "kube-system",
    pod_security: None,
    layer: Layer::Cloud,
    source: EntrySource::Oci("oci://ghcr.io/siderolabs/charts/talos-cloud-controller-manager"),
    versions: &["0.5.4"],
    crds: CrdDelivery::None,
    secret: None,
    hooks: &[],
    workloads: &[Workload {
        kind: WorkloadKind::Deployment,
        name: "talos-cloud-controller-manager",
        expect: Expect::AtLeastOne,
    }],
    checks: &[UNINITIALIZED],
    late: NODES_REGISTERED,
    removal: RemovalPolicy::WhileUnused(&[InUse::Nodes]),
    machine: MachineNeeds {
        kubelet_args: &[("cloud-provider", "external"), ("rotate-server-certificates", "true")],
        machine_api: Some(("kube-system", "os:reader")),
        ..MachineNeeds::NONE
    },
    delivery: talos_only,
    probes_crds: no_crds,
    values: talos_values,
    judge: no_warnings,
};

fn talos_only(distro: Distro) -> Delivery {
    match distro {
        Distro::Talos => Delivery::Job,
        Distro::Rke2 | Distro::K3s => Delivery::Refused("talos-ccm reads the Talos API, which other distributions do not have"),
    }
}

fn talos_values(_: &AddonFacts) -> Value {
    json!({
        "enabledControllers": ["cloud-node", "node-csr-approval"],
        "tolerations": [{ "operator": "Exists" }],
    })
}
