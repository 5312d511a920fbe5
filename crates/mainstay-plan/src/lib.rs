//! What is wanted and what was seen, turned into steps.
//!
//! [`plan`] is a pure function: everything is decided here (host, storages, disks, order, gates), and whoever executes chooses nothing.

mod cluster;
mod config;
mod desired;
mod gate;
mod image;
mod lint;
mod machine;
mod mark;
mod observed;
mod place;
mod plan;
mod refuse;
mod remove;
mod shape;
mod step;
mod summary;
mod survey;
mod talos;
mod volume;

pub use desired::{Claimant, Desired, Facts, Goal, Image, Wanted, Wish, resolve, running};
pub use lint::{Broken, lint};
pub use mark::{Lease, MadeDisk, Mark, Ownership, Proof, ShapeDigest, TAG, Versions, ownership, with_lease};
pub use observed::{
    Answer, Config, EtcdState, Host, ImageFile, Kubernetes, Leftover, Member, Memory, Node, Observed, Power, Running, Seen,
    Storage, StorageAt, StorageKind, Talos, Task, Token, Vm, VmConfig, VmDisk, VmNic, VolumeUse,
};
pub use place::largest_storage;
pub use plan::{Drift, Held, Lasts, Plan, Refusal, RefusalKind, Unchanged, plan};
pub use shape::SYSTEM_SERIAL;
pub use step::{
    Action, Apply, Claim, EtcdMember, Fill, ImageSource, Impact, LeaveBy, NewDisk, Nic, NodeState, Peer, Remark, Seed, Setting,
    Spare, Step, StepId, Subject, VmRef,
};
pub use summary::{PlanRow, PlanSummary, RowSign};
pub use volume::{is_cloud_init_volume, volume_owner};
