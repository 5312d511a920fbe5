//! Volumes: on PVE storages, or replicated over the machines' own disks.

use mainstay_spec::{Addon, Distro};
use serde_json::{Value, json};

use super::{
    CatalogueEntry, ChartHook, CrdDelivery, EntrySource, Expect, HookMoment, InUse, LateInstall, Layer, MachineNeeds,
    PodSecurity, ReadyCheck, RemovalPolicy, Workload, WorkloadKind, job_or_helm_chart, no_crds, no_warnings,
};
use crate::addon::accounts::{CONFIG_KEY, CONFIG_SECRET_CSI, ca_volume};
use crate::addon::facts::AddonFacts;
use crate::addon::values::{ValueWarning, at};

const CSI_DRIVER: &str = "csi.proxmox.sinextra.dev";
const LONGHORN_DRIVER: &str = "driver.longhorn.io";

/// Where a user volume of the name `longhorn` is mounted.
const LONGHORN_VOLUME: &str = "/var/mnt/longhorn";
/// Longhorn's own default, on the system disk.
const LONGHORN_DEFAULT: &str = "/var/lib/longhorn";

pub(super) static PROXMOX_CSI: CatalogueEntry = CatalogueEntry {
    name: "proxmox-csi",
    release: "proxmox-csi-plugin",
    namespace: "csi-proxmox",
    pod_security: Some(PodSecurity::Privileged),
    layer: Layer::Storage,
    source: EntrySource::Oci("oci://ghcr.io/sergelogvinov/charts/proxmox-csi-plugin"),
    versions: &["0.5.9"],
    crds: CrdDelivery::None,
    secret: None,
    hooks: &[],
    workloads: &[
        Workload {
            kind: WorkloadKind::Deployment,
            name: "proxmox-csi-plugin-controller",
            expect: Expect::AtLeastOne,
        },
        Workload {
            kind: WorkloadKind::DaemonSet,
            name: "proxmox-csi-plugin-node",
            expect: Expect::EveryNode,
        },
    ],
    checks: &[ReadyCheck::CsiDriver(CSI_DRIVER), ReadyCheck::StorageCapacity(CSI_DRIVER)],
    late: LateInstall::Allowed,
    removal: RemovalPolicy::WhileUnused(&[InUse::Volumes(CSI_DRIVER)]),
    machine: MachineNeeds::NONE,
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: csi_values,
    judge: no_warnings,
};

/// The chart's own values for Talos select nodes by a label that only talos-ccm sets, so they are not used.
fn csi_values(facts: &AddonFacts) -> Value {
    let binding = if facts.pve.is_shared {
        "Immediate"
    } else {
        // A volume on local storage must be created on the host where its first pod runs.
        "WaitForFirstConsumer"
    };
    let mut values = json!({
        "clusterID": facts.cluster,
        "existingConfigSecret": CONFIG_SECRET_CSI,
        "existingConfigSecretKey": CONFIG_KEY,
        "storageClass": [{
            "name": "proxmox",
            "storage": facts.pve.storage,
            "reclaimPolicy": "Delete",
            "fstype": "ext4",
            "volumeBindingMode": binding,
            "annotations": { "storageclass.kubernetes.io/is-default-class": (!facts.wants(Addon::Longhorn)).to_string() },
        }],
        // Pods with volumes may run on tainted nodes too.
        "node": { "tolerations": [{ "operator": "Exists" }] },
        "tolerations": [{ "key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule" }],
    });
    if facts.pve.has_own_ca {
        let (volume, mount) = ca_volume(CONFIG_SECRET_CSI);
        values["extraVolumes"] = json!([volume]);
        values["extraVolumeMounts"] = json!([mount]);
    }
    values
}

pub(super) static LONGHORN: CatalogueEntry = CatalogueEntry {
    name: "longhorn",
    release: "longhorn",
    namespace: "longhorn-system",
    pod_security: Some(PodSecurity::Privileged),
    layer: Layer::Storage,
    source: EntrySource::Repository {
        url: "https://charts.longhorn.io",
        chart: "longhorn",
    },
    versions: &["1.12.1"],
    crds: CrdDelivery::Template,
    secret: None,
    hooks: &[
        ChartHook {
            job: "longhorn-post-upgrade",
            on: HookMoment::Upgrade,
            tolerations: "longhornManager.tolerations",
            minors: None,
        },
        ChartHook {
            job: "longhorn-uninstall",
            on: HookMoment::Delete,
            tolerations: "longhornManager.tolerations",
            minors: None,
        },
    ],
    workloads: &[
        Workload {
            kind: WorkloadKind::DaemonSet,
            name: "longhorn-manager",
            expect: Expect::EveryWorker,
        },
        Workload {
            kind: WorkloadKind::Deployment,
            name: "longhorn-driver-deployer",
            expect: Expect::AtLeastOne,
        },
    ],
    checks: &[ReadyCheck::CsiDriver(LONGHORN_DRIVER)],
    late: LateInstall::Allowed,
    // The uninstall Job refuses to run before this is confirmed; deleting the namespace instead would block on finalizers.
    removal: RemovalPolicy::WhileUnused(&[InUse::Volumes(LONGHORN_DRIVER), InUse::CustomResources("longhorn.io")]),
    machine: MachineNeeds {
        extensions: &["siderolabs/iscsi-tools", "siderolabs/util-linux-tools"],
        user_volume: Some("longhorn"),
        kubelet_mount: Some(LONGHORN_DEFAULT),
        packages: &["open-iscsi", "nfs-common"],
        ..MachineNeeds::NONE
    },
    delivery: job_or_helm_chart,
    probes_crds: no_crds,
    values: longhorn_values,
    judge: longhorn_warnings,
};

/// Data goes to the disk named `longhorn` where a pool has one.
fn data_path(facts: &AddonFacts) -> &'static str {
    if facts.has_longhorn_disk {
        LONGHORN_VOLUME
    } else {
        LONGHORN_DEFAULT
    }
}

fn longhorn_values(facts: &AddonFacts) -> Value {
    let data_nodes = if facts.workers.is_empty() {
        facts.control_planes.len()
    } else {
        facts.workers.len()
    };
    json!({
        "defaultSettings": { "defaultDataPath": data_path(facts) },
        // More replicas than nodes would leave every volume degraded.
        "persistence": { "defaultClassReplicaCount": data_nodes.clamp(1, 3) },
        // The hook compares versions before an upgrade; mainstay's own gate does that, and the hook fails under GitOps.
        "preUpgradeChecker": { "jobEnabled": false },
    })
}

fn longhorn_warnings(facts: &AddonFacts, values: &Value) -> Vec<ValueWarning> {
    let path = at(values, "defaultSettings.defaultDataPath").and_then(Value::as_str);
    let is_writable = |path: &str| path.starts_with("/var/");
    if facts.distro == Distro::Talos && !path.is_some_and(is_writable) {
        let why = "only paths below /var are writable on Talos";
        return vec![ValueWarning::new("defaultSettings.defaultDataPath", why)];
    }
    Vec::new()
}
