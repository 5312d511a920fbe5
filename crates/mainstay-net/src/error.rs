//! What can go wrong before a byte of the request is sent, each with its target, the operation and a remedy.

use std::error::Error;
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::fingerprint::Fingerprint;
use crate::target::Target;

/// A connection that did not come about. Nothing of the request was sent.
#[derive(Clone, Debug)]
pub struct DialError(Box<Inner>);

#[derive(Clone, Debug)]
struct Inner {
    target: Target,
    operation: Operation,
    fault: DialFault,
}

/// What was being done when it failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    Resolve,
    Connect,
    TlsHandshake,
    /// Connecting to the jump host itself.
    SshConnect,
    SshHandshake,
    SshLogin {
        user: String,
    },
    /// Opening a connection from the jump host to the target.
    SshForward {
        jump: Target,
    },
}

/// Why it failed.
#[derive(Clone, Debug)]
pub enum DialFault {
    /// No process listens on the port.
    Refused,
    /// No answer at all within the limit.
    TimedOut {
        after: Duration,
    },
    UnknownName(Arc<io::Error>),
    /// The network says there is no way to that address.
    Unreachable,
    /// The other side hung up while the connection was being set up.
    Closed,
    Io(Arc<io::Error>),

    /// The server's certificate is not the pinned one.
    WrongPin {
        expected: Fingerprint,
        seen: Fingerprint,
    },
    Expired {
        seen: Fingerprint,
        since: Option<Timestamp>,
    },
    NotYetValid {
        seen: Fingerprint,
        until: Option<Timestamp>,
    },
    /// Signed by no CA that we trust.
    UnknownIssuer {
        seen: Fingerprint,
    },
    /// Valid, but for other names.
    WrongName {
        seen: Fingerprint,
        presented: Vec<String>,
    },
    /// Any other fault of the server's certificate.
    BadCertificate {
        seen: Fingerprint,
        cause: rustls::Error,
    },
    /// The server wants a client certificate, or another one than ours.
    ClientRefused(rustls::AlertDescription),
    /// The other side does not speak TLS (plain HTTP on that port, most often).
    NotTls,
    Tls(rustls::Error),

    /// No known_hosts line for this host; `line` is the one to add once the fingerprint is checked.
    HostKeyUnknown {
        fingerprint: String,
        line: String,
    },
    /// The known_hosts file says another key, or that this one is revoked.
    HostKeyChanged {
        fingerprint: String,
        recorded_at_line: usize,
        line: String,
    },
    /// The jump host accepts none of our keys.
    LoginRefused {
        tried: Vec<String>,
    },
    /// The private key cannot be used: unreadable, or its passphrase is missing or wrong.
    KeyUnusable(Arc<russh::keys::Error>),
    /// The agent cannot be asked or has no keys.
    AgentUnusable(Arc<dyn Error + Send + Sync>),
    /// The jump host does not let this user forward.
    ForwardingProhibited,
    Ssh(Arc<russh::Error>),
}

impl DialError {
    pub fn new(target: Target, operation: Operation, fault: DialFault) -> Self {
        Self(Box::new(Inner {
            target,
            operation,
            fault,
        }))
    }

    pub fn target(&self) -> &Target {
        &self.0.target
    }

    pub fn operation(&self) -> &Operation {
        &self.0.operation
    }

    pub fn fault(&self) -> &DialFault {
        &self.0.fault
    }

    /// Finds it in the chain of another error: tonic and kube wrap what the connector said.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        let mut at = Some(error);
        while let Some(error) = at {
            if let Some(found) = error.downcast_ref::<Self>() {
                return Some(found);
            }
            at = error.source();
        }
        None
    }

    /// Whether dialling again could help without a change of configuration on either side.
    pub fn is_transient(&self) -> bool {
        matches!(
            self.0.fault,
            DialFault::Refused | DialFault::TimedOut { .. } | DialFault::Unreachable | DialFault::Closed | DialFault::Io(_)
        )
    }

    /// Whether the jump host itself refuses. Then no host behind it can be reached until the user fixes that, so waiting is useless.
    pub fn is_of_the_jump_host(&self) -> bool {
        matches!(
            self.0.fault,
            DialFault::HostKeyUnknown { .. }
                | DialFault::HostKeyChanged { .. }
                | DialFault::LoginRefused { .. }
                | DialFault::KeyUnusable(_)
                | DialFault::AgentUnusable(_)
                | DialFault::ForwardingProhibited
        )
    }

    /// What the user can do about it.
    pub fn remedy(&self) -> Option<String> {
        let Inner {
            target,
            operation,
            fault,
        } = &*self.0;
        fault.remedy(target, operation)
    }
}

impl fmt::Display for DialError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Inner {
            target,
            operation,
            fault,
        } = &*self.0;
        match operation {
            Operation::Resolve => write!(f, "look up {}", target.host)?,
            Operation::Connect => write!(f, "connect to {target}")?,
            Operation::TlsHandshake => write!(f, "TLS handshake with {target}")?,
            Operation::SshConnect => write!(f, "connect to jump host {target}")?,
            Operation::SshHandshake => write!(f, "SSH handshake with jump host {target}")?,
            Operation::SshLogin { user } => write!(f, "log in to jump host {target} as {user}")?,
            Operation::SshForward { jump } => write!(f, "connect to {target} through jump host {jump}")?,
        }
        write!(f, ": {fault}")
    }
}

impl Error for DialError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match &self.0.fault {
            DialFault::UnknownName(cause) | DialFault::Io(cause) => Some(&**cause),
            DialFault::BadCertificate { cause, .. } | DialFault::Tls(cause) => Some(cause),
            DialFault::KeyUnusable(cause) => Some(&**cause),
            DialFault::AgentUnusable(cause) => Some(&**cause),
            DialFault::Ssh(cause) => Some(&**cause),
            _ => None,
        }
    }
}

impl fmt::Display for DialFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => f.write_str("connection refused"),
            Self::TimedOut { after } => write!(f, "no answer within {after:?}"),
            Self::UnknownName(_) => f.write_str("unknown name"),
            Self::Unreachable => f.write_str("no route to host"),
            Self::Closed => f.write_str("the other side closed the connection"),
            Self::Io(_) => f.write_str("the network failed"),
            Self::WrongPin { expected, seen } => write!(f, "the certificate is {seen}, not the pinned {expected}"),
            Self::Expired { since: Some(since), .. } => write!(f, "the certificate expired at {since}"),
            Self::Expired { since: None, .. } => f.write_str("the certificate has expired"),
            Self::NotYetValid { until: Some(until), .. } => write!(f, "the certificate is not valid before {until}"),
            Self::NotYetValid { until: None, .. } => f.write_str("the certificate is not valid yet"),
            Self::UnknownIssuer { seen } => write!(f, "the certificate {seen} is signed by an authority that is not trusted"),
            Self::WrongName { presented, .. } if presented.is_empty() => f.write_str("the certificate is for no name at all"),
            Self::WrongName { presented, .. } => write!(f, "the certificate is for {}", presented.join(", ")),
            Self::BadCertificate { seen, .. } => write!(f, "the certificate {seen} is not acceptable"),
            Self::ClientRefused(alert) => write!(f, "the server refused our client certificate ({alert:?})"),
            Self::NotTls => f.write_str("the other side does not speak TLS"),
            Self::Tls(_) => f.write_str("TLS failed"),
            Self::HostKeyUnknown { fingerprint, .. } => write!(f, "its host key {fingerprint} is not known"),
            Self::HostKeyChanged {
                fingerprint,
                recorded_at_line,
                ..
            } => {
                write!(
                    f,
                    "its host key {fingerprint} is not the one in line {recorded_at_line} of known_hosts"
                )
            }
            Self::LoginRefused { tried } if tried.is_empty() => f.write_str("there was no key to offer"),
            Self::LoginRefused { tried } => write!(f, "none of our keys is accepted ({})", tried.join(", ")),
            Self::KeyUnusable(_) => f.write_str("the private key cannot be used"),
            Self::AgentUnusable(_) => f.write_str("the SSH agent cannot be used"),
            Self::ForwardingProhibited => f.write_str("the jump host forbids forwarding"),
            Self::Ssh(_) => f.write_str("SSH failed"),
        }
    }
}

impl DialFault {
    /// Sorts an error of the operating system.
    pub(crate) fn from_io(cause: io::Error) -> Self {
        use io::ErrorKind as Kind;
        match cause.kind() {
            Kind::ConnectionRefused => Self::Refused,
            Kind::HostUnreachable | Kind::NetworkUnreachable => Self::Unreachable,
            Kind::ConnectionReset | Kind::ConnectionAborted | Kind::BrokenPipe | Kind::UnexpectedEof => Self::Closed,
            _ => Self::Io(Arc::new(cause)),
        }
    }

    fn remedy(&self, target: &Target, operation: &Operation) -> Option<String> {
        Some(match self {
            Self::Refused if *operation == Operation::SshConnect => {
                format!("check that sshd listens on port {} of {}", target.port, target.host)
            }
            Self::Refused => format!(
                "check that the service listens on port {} and that nothing in between rejects it",
                target.port
            ),
            Self::TimedOut { .. } | Self::Unreachable => match operation {
                Operation::SshForward { jump } => format!("check that {} is up and that {} can reach it", target.host, jump.host),
                Operation::SshConnect | Operation::SshHandshake => {
                    format!(
                        "check that {} is up and reachable from here, and its name and port in `datacenter.jump`",
                        target.host
                    )
                }
                _ => format!(
                    "check that {} is up and reachable from here; if only a Proxmox host can reach it, set `datacenter.jump`",
                    target.host
                ),
            },
            Self::UnknownName(_) => format!("check the spelling of `{}`, or write its address", target.host),
            Self::WrongPin { seen, .. } => format!(
                "compare {seen} with what the server's console shows; if it was renewed, `mainstay trust --write` pins the new one"
            ),
            Self::Expired { .. } => {
                "renew the server's certificate (on Proxmox VE: `pvecm updatecerts --force`), or check this machine's clock"
                    .into()
            }
            Self::NotYetValid { .. } => "check the clocks of this machine and of the server".into(),
            Self::UnknownIssuer { seen } => {
                format!("if {seen} is your server, `mainstay trust --write` pins it; or name the CA file that signed it")
            }
            Self::WrongName { .. } => {
                "use one of those names in the endpoint, or pin the certificate with `mainstay trust --write`".into()
            }
            Self::ClientRefused(_) => "check that the secrets file belongs to this cluster".into(),
            Self::NotTls => format!("check that port {} of {} is the HTTPS port", target.port, target.host),
            Self::HostKeyUnknown { line, .. } => {
                format!("compare the fingerprint on the jump host's console, then add this line to ~/.ssh/known_hosts:\n{line}")
            }
            Self::HostKeyChanged {
                recorded_at_line, line, ..
            } => format!(
                "the connection may be intercepted. If the host was reinstalled, replace known_hosts line {recorded_at_line} by:\n{line}"
            ),
            Self::LoginRefused { .. } => {
                format!(
                    "add your public key to the user's ~/.ssh/authorized_keys on {}, or load the right key into the agent",
                    target.host
                )
            }
            Self::KeyUnusable(_) => "check the key file and its passphrase, or load the key into an SSH agent".into(),
            Self::AgentUnusable(_) => "start an SSH agent and `ssh-add` your key, or name a key file".into(),
            Self::ForwardingProhibited => {
                let jump = if let Operation::SshForward { jump } = operation {
                    &jump.host
                } else {
                    &target.host
                };
                format!("on {jump}, set `AllowTcpForwarding yes` for this user in /etc/ssh/sshd_config and reload sshd")
            }
            Self::Closed | Self::Io(_) | Self::BadCertificate { .. } | Self::Tls(_) | Self::Ssh(_) => return None,
        })
    }
}
