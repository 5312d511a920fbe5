//! What is wanted and what was seen, turned into steps.
//!
//! [`plan`] is a pure function: everything is decided here (host, storages, disks, order, gates), and whoever executes chooses nothing.

mod action;
mod builder;
mod cluster;
mod conflicts;
mod context;
mod counts;
mod desired;
mod digest;
mod etcd;
mod guest;
mod images;
mod join;
mod lint;
mod mark;
mod node;
mod observed;
mod ownership;
mod placement;
mod plan;
mod removal;
mod settings;
mod step;
mod summary;
mod turns;
mod vm;
mod vm_diff;
mod volumes;

pub use action::{Action, ActionInfo, EtcdEffect, SubjectFate};
pub use cluster::plan;
pub use desired::{Desired, DesiredCluster, DesiredMachine, ExpectedMachine, Facts, Goal, Image, resolve, running};
pub use digest::{digest as shape_digest, matches as matches_shape};
pub use lint::{Broken, lint};
pub use mark::{Lease, MadeDisk, Mark, ShapeDigest, TAG, Versions, with_lease};
pub use observed::{
    Answer, Config, EtcdState, Host, ImageFile, Kubernetes, Leftover, Member, Memory, Node, Observed, Power, Running, Seen,
    Storage, StorageAt, StorageKind, Talos, Task, Token, Vm, VmConfig, VmDisk, VmNic, VolumeUse,
};
pub use ownership::{Ownership, Proof, ownership};
pub use placement::largest_storage;
pub use plan::{Drift, Held, Lasts, Plan, Refusal, RefusalKind, Step, Unchanged};
pub use settings::{Setting, SettingInfo};
pub use step::{
    Apply, Claim, EtcdMember, Fill, ImageSource, Impact, LeaveBy, NewDisk, Nic, NodeState, Peer, Remark, Seed, Spare, StepId,
    Subject, VmRef,
};
pub use summary::{PlanRow, PlanSummary, RowSign};
pub use vm_diff::SYSTEM_SERIAL;
pub use volumes::{is_cloud_init_volume, volume_owner};
