//! What is wanted and what was seen, turned into steps.
//!
//! [`plan`] is a pure function: everything is decided here (host, storages, disks, order, gates), and whoever executes chooses nothing.

mod desired;
mod mark;
mod observed;
mod plan;
mod shape;
mod step;

pub use desired::{Desired, Facts, Goal, Image, Wanted, Wish, resolve, running};
pub use mark::{Lease, Mark, Ownership, Proof, ShapeDigest, TAG, Versions, ownership, with_lease};
pub use observed::{
    Answer, Config, EtcdState, Host, ImageFile, Kubernetes, Leftover, Member, Memory, Node, Observed, Power, Running, Seen,
    Storage, StorageAt, StorageKind, Talos, Task, Token, Vm, VmConfig, VmDisk, VmNic,
};
pub use plan::{Drift, Held, Plan, Refusal, RefusalKind, Unchanged};
pub use step::{
    Action, Claim, EtcdMember, Fill, ImageSource, Impact, LeaveBy, NewDisk, Nic, NodeState, Peer, Remark, Seed, Setting, Step,
    StepId, Subject, VmRef,
};
