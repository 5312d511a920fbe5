//! What is wanted and what was seen, turned into steps.
//!
//! [`plan`] is a pure function: everything is decided here (host, storages, disks, order, gates), and the engine chooses nothing.

mod action;
pub mod addon;
mod builder;
mod cluster;
mod conflicts;
mod context;
mod counts;
mod course;
pub mod derive;
mod derive_error;
mod desired;
mod digest;
mod drain;
mod etcd;
pub mod guest;
mod images;
mod join;
mod kubernetes;
mod lint;
mod mark;
mod node;
mod node_change;
mod node_settings;
mod observed;
mod ownership;
mod placement;
mod plan;
mod policy;
mod releases;
mod removal;
mod secrets;
mod seen;
mod settings;
mod step;
mod summary;
mod turns;
mod upgrade;
mod versions;
mod vm;
mod vm_diff;
mod volumes;

pub use action::{Action, ActionInfo, EtcdEffect, SubjectFate};
pub use cluster::plan;
pub use derive_error::DeriveError;
pub use desired::{
    Desired, DesiredCluster, DesiredInputs, DesiredMachine, ExpectedMachine, Goal, Image, ImageChecksum, SchematicRef,
    SystemGoal, running,
};
pub use digest::{digest as shape_digest, matches as matches_shape};
pub use guest::{PinnedImage, Pins};
pub use lint::{Violation, lint};
pub use mark::{
    BegunUpgrade, Lease, LeaseProcess, LeaseRun, MadeDisk, Mark, PinnedHostKey, ShapeDigest, TAG, UpgradeRecord, with_lease,
};
pub use node_change::{NodeChange, NodeRecord, TaintOnNode};
pub use observed::{
    EtcdMember, EtcdState, Guest, GuestConfig, Host, HostStorage, ImageFile, Kubernetes, LeftoverVolume, Memory, NodeCordon,
    NodeStatus, Observed, OpenPorts, PowerState, Publisher, PveTask, RunningGuest, Seen, StorageAt, StorageKind, TokenScope, Vm,
    VmDisk, VmJobs, VmNic, VmSettings, VolumeIdentity, VolumeUse,
};
pub use ownership::{MarkPart, Ownership, ownership};
pub use placement::{default_disks, largest_storage};
pub use plan::{Drift, Held, HoldKind, ImageUse, Plan, Refusal, RefusalKind, Step, Unchanged};
pub use policy::TurnPolicy;
pub use secrets::{
    AccessError, BundleError, ClusterSecrets, DistroSecrets, Kubeconfig, MintError, ServiceAccountKeyKind, mint_time,
};
pub use settings::{Setting, SettingInfo};
pub use step::{
    ApplyMode, Ask, Claim, Drain, Fill, FirstUser, GuestRef, Impact, KubernetesPart, MarkUpdate, MemberRef, MemberRemoval,
    NewDisk, NicConfig, NodeState, PoolBudget, QuorumCheck, Seed, StepId, StoredImage, Subject, UpgradeOrder, VmRef,
};
pub use summary::{PlanRow, PlanSummary, RowSign};
pub use versions::{Course, Versions};
pub use vm_diff::SYSTEM_SERIAL;
pub use volumes::{is_cloud_init_volume, volume_owner};
