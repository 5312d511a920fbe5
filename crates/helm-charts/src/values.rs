//! Merging values as Helm does.

use serde_json::{Map, Value};

/// `over` merged into `base`. Maps are merged key by key; everything else, lists too, is replaced; a null deletes the key.
pub fn merge(base: &Value, over: &Value) -> Value {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            let mut merged = base.clone();
            for (key, value) in over {
                match (merged.get(key), value) {
                    (_, Value::Null) => {
                        merged.shift_remove(key);
                    }
                    (Some(ours), value) => {
                        let both = merge(ours, value);
                        merged.insert(key.clone(), both);
                    }
                    (None, value) => {
                        merged.insert(key.clone(), without_nulls(value));
                    }
                }
            }
            Value::Object(merged)
        }
        (_, over) => without_nulls(over),
    }
}

/// A null that has nothing to delete is not a value.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(key, value)| (key.clone(), without_nulls(value))).collect())
        }
        other => other.clone(),
    }
}

/// Paths in `over` (dotted) that `defaults`, a chart's own values, do not know. A misspelt key is silently ignored by charts.
///
/// Below an empty map of the defaults everything is allowed: that is how charts declare free maps such as annotations.
pub fn unknown_keys(defaults: &Value, over: &Value) -> Vec<String> {
    let mut found = Vec::new();
    walk(defaults, over, "", &mut found);
    found
}

fn walk(defaults: &Value, over: &Value, path: &str, found: &mut Vec<String>) {
    let (Value::Object(known), Value::Object(given)) = (defaults, over) else {
        return;
    };
    if known.is_empty() && !path.is_empty() {
        return;
    }
    for (key, value) in given {
        let at = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match known.get(key) {
            Some(default) => walk(default, value, &at, found),
            // Every chart accepts `global`, for its subcharts.
            None if path.is_empty() && key == "global" => {}
            None => found.push(at),
        }
    }
}

/// Key order does not matter for equality, so comparisons go through this form.
pub fn canonical(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let mut sorted: Vec<(&String, &Value)> = map.iter().collect();
            sorted.sort_by_key(|(key, _)| *key);
            let entries = sorted.into_iter().map(|(key, value)| (key.clone(), canonical(value)));
            Value::Object(entries.collect::<Map<_, _>>())
        }
        Value::Array(items) => Value::Array(items.iter().map(canonical).collect()),
        other => other.clone(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn maps_merge_lists_replace_and_null_deletes() {
        let base = json!({"a": {"b": 1, "c": [1, 2]}, "d": "x", "e": {"f": 1}});
        let over = json!({"a": {"c": [3], "g": null}, "d": null, "e": "text", "h": {"i": null, "j": 2}});
        assert_eq!(
            merge(&base, &over),
            json!({"a": {"b": 1, "c": [3]}, "e": "text", "h": {"j": 2}})
        );
    }

    #[test]
    fn misspelt_keys_are_found_and_free_maps_are_not_searched() {
        let defaults = json!({"image": {"tag": "1"}, "annotations": {}, "replicas": 1, "extra": null});
        let over =
            json!({"image": {"tga": "2"}, "annotations": {"a/b": "c"}, "replica": 2, "global": {"x": 1}, "extra": {"y": 1}});
        assert_eq!(unknown_keys(&defaults, &over), ["image.tga", "replica"]);
    }

    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<i8>().prop_map(Value::from),
            "[a-c]{0,2}".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn merging_the_same_values_twice_changes_nothing(base in any_value(), over in any_value()) {
            let once = merge(&base, &over);
            prop_assert_eq!(merge(&once, &over), once);
        }

        #[test]
        fn an_empty_map_over_a_map_changes_nothing(base in any_value()) {
            prop_assume!(base.is_object());
            prop_assert_eq!(merge(&base, &json!({})), base);
        }
    }
}
