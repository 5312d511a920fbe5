//! Refusals by class. The texts are Talos' own; where one code means several things, the text decides.

use tonic::Code;

use crate::error::Next;

/// What a refusal means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A precondition that comes by itself: CRI, another apply under way, `/var`.
    NotYet,
    /// The clock is not in sync; comes by itself where a time server answers.
    ClockNotSynced,
    /// A config that needs a reboot was taken; nothing more until then.
    AwaitingReboot,
    /// The machine has no config: it is (still, or again) in maintenance mode.
    Unconfigured,
    /// A disk image for bare-metal agents, which no config ever reaches.
    WrongImage,
    /// The role is too small. A machine in maintenance mode says the same.
    NotAuthorized,
    /// A worker was asked to pass the call on.
    NoForwarding,
    /// This release knows no such call or resource.
    Unsupported,
    /// Only control planes have it. A machine without a config says the same.
    NotControlPlane,
    /// The machine config is not acceptable.
    BadConfig,
    /// The change needs a reboot, which the mode forbids.
    NeedsReboot,
    /// The argument is wrong in another way.
    BadRequest,
    /// Already so.
    AlreadyDone,
    NotFound,
    /// etcd has no leader: quorum is lost, or about to be found.
    NoQuorum,
    /// etcd would not survive it: the last member, or too few started ones.
    WouldLoseQuorum,
    /// The machine runs from memory, nothing is installed.
    NotInstalled,
    /// Containers have no power switch, no boot loader and no META.
    ContainerMode,
    /// Anything else.
    Other,
}

/// Begins of texts, by code. The first that fits wins.
const BY_TEXT: &[(Code, &str, Class)] = &[
    (Code::FailedPrecondition, "bootstrap is not available yet", Class::NotYet),
    (Code::FailedPrecondition, "time is not in sync yet", Class::ClockNotSynced),
    (
        Code::FailedPrecondition,
        "bootstrap can only be performed on a control plane node",
        Class::NotControlPlane,
    ),
    (
        Code::FailedPrecondition,
        "etcd service is not ready for recovery yet",
        Class::NotYet,
    ),
    (
        Code::FailedPrecondition,
        "another apply configuration is already in progress",
        Class::NotYet,
    ),
    (
        Code::FailedPrecondition,
        "another installation/upgrade is already in progress",
        Class::NotYet,
    ),
    (
        Code::FailedPrecondition,
        "configuration was already applied and node is rebooting",
        Class::AwaitingReboot,
    ),
    (Code::FailedPrecondition, "Talos is not installed", Class::NotInstalled),
    (Code::FailedPrecondition, "machine is not installed", Class::NotInstalled),
    (
        Code::FailedPrecondition,
        "method is not supported in container mode",
        Class::ContainerMode,
    ),
    (Code::PermissionDenied, "not authorized", Class::NotAuthorized),
    (Code::PermissionDenied, "no request forwarding", Class::NoForwarding),
    (Code::PermissionDenied, "resource type ", Class::Unsupported),
    (Code::PermissionDenied, "namespace ", Class::Unsupported),
    (
        Code::Unimplemented,
        "API is not implemented in maintenance mode",
        Class::Unconfigured,
    ),
    (Code::Unimplemented, "API is not implemented in agent mode", Class::WrongImage),
    (Code::Unimplemented, "machine type is not set", Class::Unconfigured),
    (
        Code::InvalidArgument,
        "this config change can't be applied in immediate mode",
        Class::NeedsReboot,
    ),
    (Code::InvalidArgument, "etcd is not configured", Class::BadConfig),
    (
        Code::InvalidArgument,
        "one-2-many proxying is not supported",
        Class::BadRequest,
    ),
    (
        Code::InvalidArgument,
        "node metadata must be single-valued",
        Class::BadRequest,
    ),
    (Code::InvalidArgument, "crt_ttl should be positive", Class::BadRequest),
    (Code::InvalidArgument, "key must be a uint8", Class::BadRequest),
    (Code::InvalidArgument, "invalid containerd namespace", Class::BadRequest),
    (Code::InvalidArgument, "cannot use CRI namespace", Class::BadRequest),
    (Code::InvalidArgument, "installer image name is required", Class::BadRequest),
    (Code::InvalidArgument, "destination disk is required", Class::BadRequest),
    (Code::InvalidArgument, "invalid disk path", Class::BadRequest),
    (Code::Internal, "invalid target", Class::BadRequest),
    // An installer that was not pulled into the same store before.
    (Code::Internal, "upgrade failed: installer image", Class::NotFound),
    (Code::Unknown, "failed to parse config", Class::BadConfig),
];

impl Class {
    pub(crate) fn of(code: Code, message: &str) -> Self {
        let by_text = BY_TEXT.iter().find(|(of, text, _)| *of == code && message.starts_with(text));
        by_text.map_or_else(|| Self::by_code(code, message), |(_, _, class)| *class)
    }

    fn by_code(code: Code, message: &str) -> Self {
        match code {
            Code::AlreadyExists => Self::AlreadyDone,
            Code::NotFound => Self::NotFound,
            Code::PermissionDenied => Self::NotAuthorized,
            // What is left of this code are the judgements on a machine config, in many words.
            Code::InvalidArgument => Self::BadConfig,
            Code::Unimplemented => Self::unimplemented(message),
            Code::Unknown => Self::unknown(message),
            _ => Self::Other,
        }
    }

    /// Maintenance mode up to 1.12 has stubs that say `method Bootstrap not implemented`; a missing service says `unknown service …`.
    fn unimplemented(message: &str) -> Self {
        let stub = message.starts_with("method ") && message.ends_with(" not implemented");
        match message {
            _ if message.contains("is only available on control plane nodes") => Self::NotControlPlane,
            _ if stub => Self::Unconfigured,
            _ => Self::Unsupported,
        }
    }

    /// Errors that Talos passes on without sorting them.
    fn unknown(message: &str) -> Self {
        match message {
            // Bootstrap loses this code in a race with etcd's start.
            _ if message.contains("etcd data directory is not empty") => Self::AlreadyDone,
            _ if message.contains("etcdserver: no leader") => Self::NoQuorum,
            _ if message.contains("not enough started members") || message.contains("only one member") => Self::WouldLoseQuorum,
            _ if message.contains("is insufficient to maintain quorum") => Self::WouldLoseQuorum,
            // The older upgrade call looks at every member first, under a lock that it gives back when it answers.
            _ if message.contains("to perform an upgrade") => Self::WouldLoseQuorum,
            _ if message.starts_with("failed to acquire upgrade mutex") => Self::NotYet,
            _ if message.starts_with("error validating installer image") && message.contains("not found") => Self::NotFound,
            _ if message.contains("etcdserver: member not found") => Self::NotFound,
            _ if message.contains("no such file or directory") || message.contains("was not registered") => Self::NotFound,
            _ if message.starts_with("container ") && message.ends_with(" not found") => Self::NotFound,
            _ if message.starts_with("service ") && message.ends_with(" not defined") => Self::NotFound,
            _ if message.contains("operation via API") => Self::Unsupported,
            _ => Self::Other,
        }
    }

    pub fn next(self) -> Next {
        match self {
            Self::NotYet | Self::ClockNotSynced | Self::NoQuorum => Next::Retry,
            Self::AwaitingReboot => Next::AwaitReboot,
            Self::AlreadyDone => Next::Done,
            Self::Unsupported => Next::DoWithout,
            Self::Unconfigured | Self::NotAuthorized | Self::NotControlPlane | Self::NotFound | Self::Other => Next::Look,
            Self::WrongImage
            | Self::NoForwarding
            | Self::BadConfig
            | Self::NeedsReboot
            | Self::BadRequest
            | Self::WouldLoseQuorum
            | Self::NotInstalled
            | Self::ContainerMode => Next::Stop,
        }
    }

    pub fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::ClockNotSynced => {
                "check that the machine reaches its time servers (UDP 123), or name others in a machine config patch"
            }
            Self::Unconfigured => "the machine runs without a config: look at its console for why it did not keep the one it got",
            Self::WrongImage => "the VM boots an agent image; import the nocloud image instead",
            Self::NotAuthorized => "check that the machine is configured and that the client certificate has the role os:admin",
            Self::NoForwarding => "use the address of a control plane as the endpoint",
            Self::NoQuorum => "bring back the missing control planes: etcd needs more than half of its members",
            Self::WouldLoseQuorum => "add a control plane first, or bring back the ones that are down",
            _ => return None,
        })
    }
}
