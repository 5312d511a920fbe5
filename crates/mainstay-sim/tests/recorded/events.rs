//! Events of a boot come from many parts of a node at once, in an order that is another in every run. What is the same is the order
//! within each part: a service, the sequences with their phases and tasks, the stages, the addresses.

use serde_json::Value;

use crate::recorded::known;
use crate::recorded::tape::stable;

/// The part an event belongs to, and what it says. The conditions of a machine status pass through moments that differ.
fn lane(event: &Value) -> Option<(String, String)> {
    let data = &event["data"];
    let text = |key: &str| data[key].as_str().unwrap_or_default().to_owned();
    let actor = if event["actor_id"].is_string() { " by an actor" } else { "" };
    let kind = text("@type");
    Some(match kind.rsplit('.').next()? {
        "" => ("hello".to_owned(), String::new()),
        "ServiceStateEvent" => {
            let health = &data["health"];
            let said = format!(
                "{} {} healthy {} unknown {}",
                text("action"),
                stable(&text("message")),
                health["healthy"],
                health["unknown"]
            );
            (text("service"), said)
        }
        "MachineStatusEvent" => ("stage".to_owned(), text("stage")),
        "AddressEvent" => ("addresses".to_owned(), format!("{} {}", data["hostname"], data["addresses"])),
        "TaskEvent" => (format!("task {}", text("task")), format!("{}{actor}", text("action"))),
        other => {
            let said = format!(
                "{other} {}{} {}{actor} {}",
                text("sequence"),
                text("phase"),
                text("action"),
                data["error"]
            );
            ("sequence".to_owned(), said)
        }
    })
}

/// A health check may come before its service answers, or before a learner is promoted.
pub fn is_chance(message: &str) -> bool {
    message.starts_with("Health check failed") && (message.ends_with("connection refused") || message.ends_with("for learner"))
}

/// What one part said, in order; what it repeats counts once.
fn said(events: &[Value], part: &str) -> Vec<String> {
    let mut all: Vec<String> = events
        .iter()
        .filter_map(lane)
        .filter(|(name, said)| {
            name == part
                && !said
                    .split_once(' ')
                    .is_some_and(|(_, said)| said.split(" healthy ").next().is_some_and(is_chance))
        })
        .map(|(_, said)| said)
        .collect();
    all.dedup();
    all
}

pub fn compare(recorded: &[Value], answered: &[Value], cut: bool, found: &mut Vec<String>) {
    let mut parts: Vec<String> = recorded
        .iter()
        .chain(answered)
        .filter_map(lane)
        .map(|(name, _)| name)
        .collect();
    parts.sort();
    parts.dedup();
    for part in parts.iter().filter(|part| !known::MACHINE_ONLY.contains(&part.as_str())) {
        let (mut one, mut other) = (said(recorded, part), said(answered, part));
        // Only the last state of the addresses is the same everywhere: they are found one by one.
        if part == "addresses" {
            one = one.pop().into_iter().collect();
            other = other.pop().into_iter().collect();
        }
        // Who holds the VIP is a matter of luck as well.
        if part == "addresses" && (cut || one.is_empty() || other.is_empty()) {
            continue;
        }
        if cut {
            other.truncate(one.len());
        }
        if one != other {
            found.push(format!(
                "{part}\n      {}\n      {}",
                one.join("\n      "),
                other.join("\n    > ")
            ));
        }
    }
}
