//! What ends a command, and how it is told: the first line is the whole story, then why, then what to do.

use std::error::Error;
use std::path::Path;

use mainstay_engine::{Failure, Kind, RunError, SecretsError};
use mainstay_spec::Diagnostics;

/// Why a command ended.
#[derive(Debug)]
pub enum Problem {
    /// cluster.yaml is wrong.
    Spec(Diagnostics),
    /// A run ended badly.
    Run(Box<RunError>),
    Plain(Box<Plain>),
    /// The result itself says no, and was shown already: only the exit code is left.
    Said(u8),
}

/// A problem in words.
#[derive(Debug)]
pub struct Plain {
    pub what: String,
    pub why: Option<String>,
    pub help: Vec<String>,
    pub causes: Vec<String>,
    pub kind: Kind,
    pub exit: u8,
}

impl Problem {
    pub fn plain(what: impl Into<String>) -> Self {
        Self::Plain(Box::new(Plain {
            what: what.into(),
            why: None,
            help: Vec::new(),
            causes: Vec::new(),
            kind: Kind::Failed,
            exit: 1,
        }))
    }

    /// Wrong use: exit code 2.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::plain(what).edit(|plain| plain.exit = 2)
    }

    pub fn refused(what: impl Into<String>) -> Self {
        Self::plain(what).edit(|plain| (plain.kind, plain.exit) = (Kind::Refused, 4))
    }

    /// What is left waits for something that mainstay does not do.
    pub fn held(what: impl Into<String>) -> Self {
        Self::plain(what).edit(|plain| (plain.kind, plain.exit) = (Kind::Held, Kind::Held.exit_code()))
    }

    pub fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound {
            return Self::usage(format!("{} is not there", path.display()));
        }
        Self::usage(format!("{} cannot be read", path.display())).why(error.to_string())
    }

    /// As [`Problem::unreadable`], for the file that a cluster begins with.
    pub fn no_cluster_file(path: &Path, error: &std::io::Error) -> Self {
        let problem = Self::unreadable(path, error);
        if error.kind() == std::io::ErrorKind::NotFound {
            return problem
                .help("write one by looking at your Proxmox VE: mainstay init")
                .help("or name another file: mainstay -f FILE ...");
        }
        problem
    }

    /// What needs secrets that nobody has made yet.
    pub fn no_secrets(path: &Path) -> Self {
        Self::plain("the cluster has no secrets yet")
            .why(format!("{} is not there", path.display()))
            .help("`mainstay up` makes them, `mainstay secrets import` takes them over")
    }

    pub fn why(self, why: impl Into<String>) -> Self {
        self.edit(|plain| plain.why = Some(why.into()))
    }

    pub fn help(self, line: impl Into<String>) -> Self {
        self.edit(|plain| plain.help.push(line.into()))
    }

    pub fn because(self, lines: Vec<String>) -> Self {
        self.edit(|plain| plain.causes = lines)
    }

    pub fn caused_by(self, error: impl Error) -> Self {
        self.edit(|plain| plain.causes = chain(&error))
    }

    fn edit(mut self, change: impl FnOnce(&mut Plain)) -> Self {
        if let Self::Plain(plain) = &mut self {
            change(plain);
        }
        self
    }

    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Spec(_) => 2,
            Self::Run(error) => error.exit_code(),
            Self::Plain(plain) => plain.exit,
            Self::Said(code) => *code,
        }
    }
}

/// An error and its causes, outermost first, each once.
fn chain(error: &dyn Error) -> Vec<String> {
    let mut texts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        next = error.source();
    }
    texts
}

impl From<RunError> for Problem {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Self {
        let (causes, exit) = (failure.causes(), failure.kind.exit_code());
        Self::Plain(Box::new(Plain {
            what: failure.what,
            why: failure.why,
            help: failure.help,
            causes,
            kind: failure.kind,
            exit,
        }))
    }
}

impl From<pve_api::Error> for Problem {
    fn from(error: pve_api::Error) -> Self {
        Failure::from(error).into()
    }
}

impl From<SecretsError> for Problem {
    fn from(error: SecretsError) -> Self {
        let problem = Self::refused(error.to_string());
        let SecretsError::Sops { source, .. } = &error else {
            let problem = match &error {
                SecretsError::Write { .. } => {
                    Self::plain(error.to_string()).help("nothing was changed; make room for it, and run it again")
                }
                SecretsError::Exists { .. } => problem.help("it is never written over; move it away if it is of no use any more"),
                _ => problem,
            };
            return problem.edit(|plain| plain.causes = error.source().map(chain).unwrap_or_default());
        };
        let problem = match source {
            sops_file::Error::NoIdentity { tried, recipients } => problem
                .why(format!("{} for {recipients}", keys_tried(*tried)))
                .help("set SOPS_AGE_KEY_FILE to the file with the age key that opens it"),
            _ => problem.because(chain(source)).help(
                "take the file from your backup or from git; mainstay never makes new secrets for a cluster that may exist",
            ),
        };
        problem.help("nothing was changed")
    }
}

fn keys_tried(tried: usize) -> &'static str {
    match tried {
        0 => "there is no age key here, and it is encrypted",
        1 => "the age key that is here does not open it; it is encrypted",
        _ => "none of the age keys that are here opens it; it is encrypted",
    }
}
