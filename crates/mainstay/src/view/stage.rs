//! The stages of a subject's way through a run, as its bar shows them.

use crate::wire::PlanStep;

/// In the order of a new machine; the stages of other work stand where they happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    Claim,
    Image,
    Disk,
    Drain,
    Upgrade,
    Change,
    Stop,
    Boot,
    Config,
    Etcd,
    Ready,
    Remove,
    /// What belongs to no machine, such as a Helm release.
    Work,
}

impl Stage {
    /// By the action's name. The part before the dot is the noun, so that an action that a later version adds has a stage too, also when
    /// an earlier version shows its run log.
    pub fn of(step: &PlanStep) -> Self {
        let (noun, verb) = step.action.split_once('.').unwrap_or((&step.action, ""));
        match (noun, verb) {
            // The only mark with a detail is the intent to begin etcd.
            ("machine", "mark") if step.detail.is_some() => Self::Etcd,
            ("machine", "claim" | "mark") => Self::Claim,
            ("machine", "fill" | "grow" | "clone") => Self::Disk,
            (_, "drain" | "cordon") => Self::Drain,
            (_, "upgrade") => Self::Upgrade,
            (_, "delete" | "discard" | "leave") => Self::Remove,
            ("machine", "change") | ("guest", "reconfigure") => Self::Change,
            ("machine", "stop") => Self::Stop,
            ("machine", _) | ("guest", "prove") => Self::Boot,
            ("image" | "template" | "schematic", _) => Self::Image,
            ("guest", _) => Self::Config,
            ("etcd", _) => Self::Etcd,
            ("node", _) => Self::Ready,
            _ => Self::Work,
        }
    }

    /// Whether a text does well to name the stage. The others have subjects of their own.
    pub fn is_of_machine(self) -> bool {
        !matches!(self, Self::Image | Self::Work)
    }

    pub fn word(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Image => "image",
            Self::Disk => "disk",
            Self::Drain => "drain",
            Self::Upgrade => "upgrade",
            Self::Change => "change",
            Self::Stop => "stop",
            Self::Boot => "boot",
            Self::Config => "config",
            Self::Etcd => "etcd",
            Self::Ready => "node",
            Self::Remove => "remove",
            Self::Work => "work",
        }
    }

    /// What a machine in this stage does, for counts of machines.
    pub fn doing(self) -> &'static str {
        match self {
            Self::Image => "waiting for an image",
            Self::Etcd => "joining etcd",
            Self::Ready => "becoming ready",
            Self::Work => "working",
            Self::Claim
            | Self::Disk
            | Self::Drain
            | Self::Upgrade
            | Self::Change
            | Self::Stop
            | Self::Boot
            | Self::Config
            | Self::Remove => self.verb(),
        }
    }

    /// How a text begins that says the stage itself.
    pub fn verb(self) -> &'static str {
        match self {
            Self::Claim => "creating",
            Self::Disk => "importing",
            Self::Drain => "draining",
            Self::Upgrade => "upgrading",
            Self::Change => "changing",
            Self::Stop => "stopping",
            Self::Boot => "booting",
            Self::Config => "configuring",
            Self::Remove => "deleting",
            Self::Image | Self::Etcd | Self::Ready | Self::Work => self.word(),
        }
    }
}
