//! `/cluster/options`: datacenter.cfg.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::datacenter::{Answer, Reply};
use crate::die::Die;
use crate::dispatch::Call;
use crate::observe::Effect;
use crate::schema::{Grammar, Properties, parse_properties, print_properties, schema, split_list};
use crate::tags::Policy;

const OUI: &str = "BC:24:11";

/// Options that are read into their parts. Limits of bandwidth are not.
const TAKEN_APART: [&str; 11] = [
    "crs",
    "migration",
    "replication",
    "next-id",
    "ha",
    "notify",
    "u2f",
    "webauthn",
    "tag-style",
    "user-tag-access",
    "location",
];

fn grammar(name: &str) -> Option<&'static Grammar> {
    let method = schema().method("PUT", "/cluster/options")?;
    method.property(name).filter(|_| TAKEN_APART.contains(&name))?.grammar()
}

/// The parts of an option; none if it is not set.
pub(crate) fn properties(options: &BTreeMap<String, String>, name: &str) -> Properties {
    let parsed = options
        .get(name)
        .zip(grammar(name))
        .and_then(|(text, grammar)| parse_properties(grammar, text, "").ok());
    parsed.unwrap_or_default()
}

/// Without Sys.Audit on `/` only what the browser needs.
pub(crate) fn get(call: &Call) -> Reply {
    let state = call.job.dc.state();
    let mut shown = Map::new();
    let audit = state.access.may(&call.job.auth, "/", &["Sys.Audit"]);
    for (name, value) in &state.options {
        if audit || matches!(name.as_str(), "console" | "tag-style") {
            shown.insert(name.clone(), show(name, value));
        }
    }
    if audit {
        shown.entry("mac_prefix").or_insert(json!(OUI));
        // The description is kept as a comment, which ends in a line feed.
        let description = state.options.get("description").filter(|d| !d.is_empty());
        let text = description
            .map(|d| format!("{}\n", d.trim_end_matches('\n')))
            .unwrap_or_default();
        shown.insert("description".into(), json!(text));
    }
    let allowed = Policy::of(&state).allowed(&state, &call.job.auth);
    shown.insert("allowed-tags".into(), json!(allowed));
    Value::Object(shown).into()
}

fn show(name: &str, value: &str) -> Value {
    let by_semicolon = |text: &str| json!(text.split(';').collect::<Vec<_>>());
    if name == "registered-tags" {
        return by_semicolon(value);
    }
    let Some(grammar) = grammar(name) else {
        return typed(name, value);
    };
    let Ok(parts) = parse_properties(grammar, value, "") else {
        return json!(value);
    };
    let part = |(key, value): (String, String)| match key.as_str() {
        "user-allow-list" => (key, by_semicolon(&value)),
        _ if value == "0" || value == "1" => {
            let flag = grammar.get(&key).is_some_and(crate::schema::Property::is_boolean);
            let shown = if flag { json!(u8::from(value == "1")) } else { json!(value) };
            (key, shown)
        }
        _ => (key, json!(value)),
    };
    Value::Object(parts.into_iter().map(part).collect())
}

/// Numbers of the file are numbers.
fn typed(name: &str, value: &str) -> Value {
    match (name, value.parse::<i64>()) {
        ("max_workers" | "migration_unsecure", Ok(number)) => json!(number),
        _ => json!(value),
    }
}

pub(crate) async fn set(call: &Call) -> Answer {
    let locks = call.job.dc.locks();
    let _held = locks.take_cluster(&call.job, &call.contacted, "file-datacenter_cfg").await?;
    let mut state = call.job.dc.state();
    let mut options = state.options.clone();
    for (name, value) in call.params.texts().filter(|(name, _)| *name != "delete") {
        match value {
            Some(value) => drop(options.insert(name.into(), value.into())),
            None => drop(options.remove(name)),
        }
    }
    for key in split_list(call.params.get("delete").unwrap_or_default()) {
        options.remove(key);
    }
    state.options = write(options)?;
    drop(state);
    call.job.dc.tell(&call.job, &Effect::OptionsChanged);
    Ok(Reply::default())
}

/// What the file keeps of the options, in its own spelling.
fn write(mut options: BTreeMap<String, String>) -> Result<BTreeMap<String, String>, Die> {
    let bound = |range: &Properties, name: &str, default: i64| range.get(name).and_then(|v| v.parse().ok()).unwrap_or(default);
    if options.contains_key("next-id") {
        let range = properties(&options, "next-id");
        let (lower, upper) = (bound(&range, "lower", 100), bound(&range, "upper", 1_000_000));
        if lower > upper {
            return Err(Die::new(format!("lower ({lower}) <= upper ({upper}) boundary rule broken")));
        }
    }
    if options.get("console").is_some_and(|c| c == "applet") {
        options.insert("console".into(), "html5".into());
    }
    options.retain(|name, value| !(name == "mac_prefix" && value.eq_ignore_ascii_case(OUI)));
    options.retain(|name, value| !(value.is_empty() && matches!(name.as_str(), "crs" | "description")));
    for (name, value) in &mut options {
        let Some(grammar) = grammar(name) else { continue };
        if let Ok(parts) = parse_properties(grammar, value, "") {
            *value = print_properties(grammar, &parts, &[]);
        }
    }
    Ok(options)
}
