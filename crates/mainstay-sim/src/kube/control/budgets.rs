//! The disruption controller: what a PodDisruptionBudget allows now.

use std::time::Duration;

use serde_json::{Value, json};

use super::super::kinds;
use super::{Round, condition, controller_of, is_deleting, selects, text};

/// The controller counts a new budget a moment after it was made; until then evictions are refused with `Retry-After`.
const FIRST_COUNT: Duration = Duration::from_secs(1);

pub(super) fn run(round: &mut Round<'_>) {
    for budget in round.list(&kinds::DISRUPTION_BUDGETS) {
        let uid = text(&budget["metadata"]["uid"]).to_owned();
        if budget["status"]["observedGeneration"].is_null() && !round.after(&format!("budget {uid}"), FIRST_COUNT) {
            continue;
        }
        let namespace = text(&budget["metadata"]["namespace"]);
        let pods = round.store.list(&kinds::PODS, Some(namespace)).1;
        let covered: Vec<_> = pods
            .iter()
            .filter(|pod| selects(&budget["spec"]["selector"], &pod["metadata"]["labels"]))
            .collect();
        let healthy = covered
            .iter()
            .filter(|pod| condition(pod, "Ready") && !is_deleting(pod))
            .count();
        let expected = expected(round, &covered);
        let desired = desired(&budget["spec"], expected);
        let healthy = i64::try_from(healthy).unwrap_or(i64::MAX);
        let allowed = (healthy - desired).max(0);
        let (word, reason) = if allowed > 0 {
            ("True", "SufficientPods")
        } else {
            ("False", "InsufficientPods")
        };
        let (now, generation) = (round.now.clone(), budget["metadata"]["generation"].as_i64().unwrap_or(1));
        round.change(&budget, &kinds::DISRUPTION_BUDGETS, |budget| {
            let conditions = budget["status"]["conditions"].clone();
            budget["status"] = json!({
                "observedGeneration": generation, "disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": desired, "expectedPods": expected, "conditions": conditions,
            });
            super::set_condition(budget, "DisruptionAllowed", word, reason, "", &now);
        });
    }
}

/// What the controllers of these pods want together; a pod without one counts for itself.
fn expected(round: &Round<'_>, pods: &[&std::sync::Arc<Value>]) -> i64 {
    let mut owners: Vec<&Value> = pods.iter().filter_map(|pod| controller_of(pod)).collect();
    owners.sort_by_key(|uid| text(uid));
    owners.dedup();
    let alone = pods.iter().filter(|pod| controller_of(pod).is_none()).count();
    let mut count = i64::try_from(alone).unwrap_or_default();
    for uid in owners {
        let owned = || i64::try_from(pods.iter().filter(|pod| controller_of(pod) == Some(uid)).count()).unwrap_or_default();
        let scaled = [&kinds::REPLICA_SETS, &kinds::STATEFUL_SETS, &kinds::DEPLOYMENTS]
            .into_iter()
            .find_map(|kind| round.list(kind).into_iter().find(|set| set["metadata"]["uid"] == *uid));
        count += scaled.map_or_else(owned, |set| set["spec"]["replicas"].as_i64().unwrap_or(1));
    }
    count
}

/// Numbers, or percentages that are rounded up.
fn desired(spec: &Value, expected: i64) -> i64 {
    let scaled = |value: &Value| match value {
        Value::String(text) => text
            .trim_end_matches('%')
            .parse::<i64>()
            .map_or(0, |percent| (expected * percent + 99) / 100),
        other => other.as_i64().unwrap_or_default(),
    };
    if spec["maxUnavailable"].is_null() {
        scaled(&spec["minAvailable"])
    } else {
        (expected - scaled(&spec["maxUnavailable"])).max(0)
    }
}
