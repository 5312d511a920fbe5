//! The error that ends a command: what happened, why, and what to do.

use std::error::Error;
use std::path::Path;

use mainstay_engine::{Failure, RunError, SecretsError};
use mainstay_spec::Diagnostics;

use crate::wire::{self, ErrorEvent, ErrorKind, WireEvent};

/// Why a command ended.
#[derive(Debug)]
pub enum CommandError {
    /// cluster.yaml is wrong.
    Spec(Diagnostics),
    /// A run failed, was refused or was stopped.
    Run(Box<RunError>),
    Message(Box<ErrorMessage>),
    /// Everything is shown already; only the exit code is left.
    ExitOnly(u8),
}

/// An error of the binary itself, or one that was translated into words.
#[derive(Debug)]
pub struct ErrorMessage {
    pub what: String,
    pub why: Option<String>,
    pub help: Vec<String>,
    pub causes: Vec<String>,
    pub kind: ErrorKind,
}

impl CommandError {
    pub fn new(what: impl Into<String>) -> Self {
        Self::Message(Box::new(ErrorMessage {
            what: what.into(),
            why: None,
            help: Vec::new(),
            causes: Vec::new(),
            kind: ErrorKind::Failed,
        }))
    }

    /// Wrong arguments or a missing file.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::new(what).edit(|message| message.kind = ErrorKind::Usage)
    }

    pub fn refused(what: impl Into<String>) -> Self {
        Self::new(what).edit(|message| message.kind = ErrorKind::Refused)
    }

    /// What is left waits for something outside of mainstay.
    pub fn held(what: impl Into<String>) -> Self {
        Self::new(what).edit(|message| message.kind = ErrorKind::Held)
    }

    pub fn unreadable(path: &Path, error: &std::io::Error) -> Self {
        if error.kind() == std::io::ErrorKind::NotFound {
            return Self::usage(format!("{} does not exist", path.display()));
        }
        Self::usage(format!("cannot read {}", path.display())).why(error.to_string())
    }

    /// As [`CommandError::unreadable`], for the cluster file.
    pub fn no_cluster_file(path: &Path, error: &std::io::Error) -> Self {
        let problem = Self::unreadable(path, error);
        if error.kind() == std::io::ErrorKind::NotFound {
            return problem
                .help("to create one, with a user and a token on your Proxmox VE: mainstay setup")
                .help("to create one with a token that you have: mainstay init")
                .help("to use another file: mainstay -f FILE ...");
        }
        problem
    }

    /// The command needs secrets, and none were created yet.
    pub fn no_secrets(path: &Path) -> Self {
        Self::new("the cluster has no secrets yet")
            .why(format!("{} does not exist", path.display()))
            .help("`mainstay up` creates them, `mainstay secrets import` imports existing ones")
    }

    pub fn why(self, why: impl Into<String>) -> Self {
        self.edit(|message| message.why = Some(why.into()))
    }

    pub fn help(self, line: impl Into<String>) -> Self {
        self.edit(|message| message.help.push(line.into()))
    }

    pub fn because(self, lines: Vec<String>) -> Self {
        self.edit(|message| message.causes = lines)
    }

    pub fn caused_by(self, error: impl Error) -> Self {
        self.edit(|message| message.causes = chain(&error))
    }

    /// The errors that the command ended with, as the event stream tells them. `file` is the cluster file.
    pub fn events(&self, file: &str) -> Vec<ErrorEvent> {
        match self {
            Self::Spec(found) => {
                let events = wire::diagnostics(&found.source, &found.faults);
                let error = |event| match event {
                    WireEvent::Error(error) => Some(error),
                    _ => None,
                };
                events.into_iter().filter_map(error).collect()
            }
            Self::Message(message) => vec![ErrorEvent {
                kind: message.kind,
                summary: message.what.clone(),
                why: message.why.iter().chain(&message.causes).cloned().collect(),
                help: message.help.clone(),
                ..ErrorEvent::default()
            }],
            Self::Run(error) => wire::run_errors(error, file),
            Self::ExitOnly(_) => Vec::new(),
        }
    }

    fn edit(mut self, change: impl FnOnce(&mut ErrorMessage)) -> Self {
        if let Self::Message(message) = &mut self {
            change(message);
        }
        self
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

impl From<RunError> for CommandError {
    fn from(error: RunError) -> Self {
        Self::Run(Box::new(error))
    }
}

impl From<mainstay_plan::DeriveError> for CommandError {
    fn from(error: mainstay_plan::DeriveError) -> Self {
        Failure::from(error).into()
    }
}

impl From<Failure> for CommandError {
    fn from(failure: Failure) -> Self {
        let causes = failure.causes();
        Self::Message(Box::new(ErrorMessage {
            what: failure.what,
            why: failure.why,
            help: failure.help,
            causes,
            kind: failure.kind.into(),
        }))
    }
}

impl From<pve_api::Error> for CommandError {
    fn from(error: pve_api::Error) -> Self {
        Failure::from(error).into()
    }
}

impl From<SecretsError> for CommandError {
    fn from(error: SecretsError) -> Self {
        let problem = Self::refused(error.to_string());
        let SecretsError::Sops { source, .. } = &error else {
            let problem = match &error {
                SecretsError::Write { .. } => {
                    Self::new(error.to_string()).help("nothing was changed; free some disk space, then run the command again")
                }
                SecretsError::Exists { .. } => {
                    problem.help("mainstay never overwrites it; move it away if it is not needed any more")
                }
                _ => problem,
            };
            return problem.edit(|message| message.causes = error.source().map(chain).unwrap_or_default());
        };
        let problem = match source {
            sops_file::Error::NoIdentity { tried, recipients } => problem
                .why(format!("{} for {recipients}", keys_tried(*tried)))
                .help("set SOPS_AGE_KEY_FILE to the file with the right age key"),
            _ => problem
                .because(chain(source))
                .help("restore the file from git or a backup; mainstay never creates new secrets for a cluster that may exist"),
        };
        problem.help("nothing was changed")
    }
}

fn keys_tried(tried: usize) -> &'static str {
    match tried {
        0 => "no age key was found, and the file is encrypted",
        1 => "the age key that was found does not decrypt it; the file is encrypted",
        _ => "none of the age keys that were found decrypts it; the file is encrypted",
    }
}
