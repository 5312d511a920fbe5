//! One resource of one machine, followed over lost connections and reboots.

use std::time::Duration;

use mainstay_net::Target;
use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::limits::{FIRST_PAUSE, LONGEST_PAUSE, PROBE, SILENCE};
use crate::node::{Access, Node};
use crate::resource::{MachineStatus, Resource, Spec};
use crate::state::{Change, Told, Watch};

/// Follows a resource. Every connection tells the state at its start, so nothing is missed for good; what changed and changed back while
/// the machine was out of reach is not told.
pub struct Follow<S> {
    access: Access,
    at: Target,
    id: String,
    open: Option<(Node, Watch<S>)>,
    pause: Duration,
    /// No new connection before.
    next_attempt: Instant,
}

/// What came of waiting.
#[derive(Debug)]
pub enum Followed<S> {
    /// The state now: new, changed, or told again after a reconnect.
    Is(Resource<S>),
    /// There is no such resource now.
    Absent,
    /// The machine cannot be asked. `None`: it ended the stream, as before a reboot. The next call tries again, after a pause.
    Lost(Option<Error>),
    /// The time is up. While connected, the last state told still holds.
    Nothing,
}

impl Access {
    /// Nothing is dialled before the first [`Follow::next`].
    pub fn follow<S: Spec>(&self, at: &Target, id: &str) -> Follow<S> {
        Follow {
            access: self.clone(),
            at: at.clone(),
            id: id.to_owned(),
            open: None,
            pause: FIRST_PAUSE,
            next_attempt: Instant::now(),
        }
    }

    /// Stage and readiness of a machine.
    pub fn follow_status(&self, at: &Target) -> Follow<MachineStatus> {
        self.follow(at, MachineStatus::ID)
    }
}

impl<S: Spec> Follow<S> {
    /// The next state, or loss, within `patience`. May be dropped at any point and called again.
    pub async fn next(&mut self, patience: Duration) -> Followed<S> {
        let until = Instant::now() + patience;
        loop {
            if self.open.is_none() {
                if self.next_attempt >= until {
                    sleep_until(until).await;
                    return Followed::Nothing;
                }
                sleep_until(self.next_attempt).await;
                if let Err(error) = self.connect().await {
                    return self.lost(Some(error));
                }
            }
            if let Some(told) = self.listen(until).await {
                return told;
            }
        }
    }

    async fn connect(&mut self) -> Result<(), Error> {
        let node = self.access.node(&self.at)?;
        let watch = node.watch(Some(&self.id)).await?;
        self.open = Some((node, watch));
        Ok(())
    }

    /// `None`: go on, the machine is silent and there.
    async fn listen(&mut self, until: Instant) -> Option<Followed<S>> {
        let (node, watch) = self.open.as_mut()?;
        let quiet = until.saturating_duration_since(Instant::now());
        let told = watch.next(quiet.min(SILENCE)).await;
        match told {
            Ok(Told::Change(change)) => {
                self.pause = FIRST_PAUSE;
                match change {
                    Change::Is(resource) => Some(Followed::Is(resource)),
                    Change::Gone { .. } => Some(Followed::Absent),
                    Change::Listed => None,
                }
            }
            Ok(Told::Nothing) if Instant::now() >= until => Some(Followed::Nothing),
            Ok(Told::Nothing) => match node.answers(PROBE).await {
                Ok(()) => None,
                Err(error) => Some(self.lost(Some(error))),
            },
            Ok(Told::Ended) => Some(self.lost(None)),
            Err(error) => Some(self.lost(Some(error))),
        }
    }

    fn lost(&mut self, why: Option<Error>) -> Followed<S> {
        self.open = None;
        self.next_attempt = Instant::now() + self.pause;
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        Followed::Lost(why)
    }

    /// Whether the last state told still holds.
    pub fn is_connected(&self) -> bool {
        self.open.is_some()
    }
}

impl<S> std::fmt::Debug for Follow<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Follow")
            .field("at", &self.at)
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
