//! Machines that are held while the others are worked on: planned again as soon as what holds them has passed.

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_plan::{Held, Plan};
use tokio::time::Instant;

use crate::jitter::Jitter;

/// The first pause between two observations. Proxmox VE renews its inventory every ten seconds, its tasks and locks are always current.
const PAUSE: Duration = Duration::from_secs(5);
/// An observation of many machines takes longer, and this many times as long nothing is asked.
const PAUSES: u32 = 5;

/// Ends as soon as something that may pass by itself does not hold a machine of this plan any more, and says what it was. `plan_now`:
/// the plan for what is seen now; `None` where that could not be made.
pub async fn until_a_hold_ends(jitter: &Jitter, plan: &Plan, plan_now: impl AsyncFn() -> Option<Plan>) -> String {
    let held: Vec<&Held> = plan.held.iter().filter(|held| held.is_transient()).collect();
    if held.is_empty() {
        return std::future::pending().await;
    }
    let mut pause = PAUSE;
    loop {
        tokio::time::sleep(jitter.pause(pause)).await;
        let began = Instant::now();
        // What cannot be observed now, or is refused, is judged when the round is over.
        if let Some(now) = plan_now().await.filter(|now| now.refusals.is_empty()) {
            let still: BTreeSet<String> = now.held.iter().map(name).collect();
            if let Some(passed) = held.iter().find(|held| !still.contains(&name(held))) {
                return name(passed);
            }
        }
        pause = PAUSE.max(began.elapsed() * PAUSES);
    }
}

/// `change of prod-w-1`.
pub fn name(held: &Held) -> String {
    format!("{} of {}", held.what, held.subject)
}
