//! The API servers that a step asks, one after another until one answers.

use mainstay_kube::{Class, Cluster, Error};

use crate::failure::{Failure, FailureKind};
use crate::guest::StepContext;

/// Control planes in the order in which they are asked: the one that goes down comes last.
#[derive(Clone, Copy)]
pub(super) struct Servers<'a> {
    pub ctx: StepContext<'a>,
    pub ask: &'a [String],
}

impl Servers<'_> {
    /// The first answer. A call may have been carried out by a server whose answer was lost, so it must be safe to repeat.
    pub async fn call<T>(&self, what: &str, call: impl AsyncFn(&Cluster) -> Result<T, Error>) -> Result<T, Failure> {
        let mut last: Option<Error> = None;
        for address in self.ask.iter().filter_map(|machine| self.ctx.addresses.get(machine)) {
            let answer = match self.ctx.kube.server(address) {
                Ok(server) => call(&server).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(value) => return Ok(value),
                Err(error) if error.class() == Class::Unavailable => last = Some(error),
                Err(error) => return Err(failure(what, &error)),
            }
        }
        Err(match last {
            Some(error) => failure(what, &error),
            None => Failure::new(FailureKind::Unreachable, what).why("no control plane is left to ask"),
        })
    }
}

fn failure(what: &str, error: &Error) -> Failure {
    let kind = match error.class() {
        Class::Unavailable => FailureKind::Unreachable,
        Class::Denied => FailureKind::Denied,
        Class::NotFound | Class::Conflict | Class::Gone => FailureKind::StalePlan,
        Class::Other => FailureKind::Failed,
    };
    let mut failure = Failure::new(kind, what).why(error.to_string());
    failure.help.extend(error.remedy());
    failure
}
