//! What the operator said on the command line about work that disturbs running machines.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// How long a drain may take, unless the operator says otherwise.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(300);

/// Consent and limits for turns. Names are names of machines.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TurnPolicy {
    pub drain_timeout: Duration,
    /// These restart without a drain.
    pub skip_drain: BTreeSet<String>,
    /// On these a drain also deletes pods that no controller makes again.
    pub force_drain: BTreeSet<String>,
    /// These are unavailable and count for no budget.
    pub despite: BTreeSet<String>,
    /// A new system is tried again on these, although they came back with the one before.
    pub retry_upgrade: BTreeSet<String>,
    /// Machines whose turn or removal was tried in this run, and what outside of mainstay holds it.
    pub held: BTreeMap<String, String>,
    /// The run ends: nothing is begun, and what was cordoned is released.
    pub ends: bool,
}

impl Default for TurnPolicy {
    fn default() -> Self {
        Self {
            drain_timeout: DRAIN_TIMEOUT,
            skip_drain: BTreeSet::new(),
            force_drain: BTreeSet::new(),
            despite: BTreeSet::new(),
            retry_upgrade: BTreeSet::new(),
            held: BTreeMap::new(),
            ends: false,
        }
    }
}
