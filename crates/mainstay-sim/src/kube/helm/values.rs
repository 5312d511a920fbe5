//! Values: merged as Helm merges them, and judged by a chart's schema.

use serde_json::Value;

/// `over` wins; maps are merged, null removes.
pub(crate) fn merge(base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    base.shift_remove(key);
                } else {
                    merge(base.entry(key.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (base, over) => *base = over.clone(),
    }
}

/// What a JSON Schema says against values: `type`, `properties`, `required`, `enum`, `additionalProperties: false`, `items`.
pub(crate) fn judge(schema: &Value, value: &Value, path: &str) -> Vec<String> {
    let mut found = Vec::new();
    let at = if path.is_empty() { "(root)" } else { path };
    if let Some(wanted) = schema["type"].as_str()
        && !is_type(wanted, value)
    {
        found.push(format!(
            "- at '/{}': got {}, want {wanted}",
            path.replace('.', "/"),
            type_of(value)
        ));
        return found;
    }
    if schema["enum"].as_array().is_some_and(|allowed| !allowed.contains(value)) {
        found.push(format!(
            "- at '/{}': value must be one of the allowed",
            path.replace('.', "/")
        ));
    }
    for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        if value[key].is_null() {
            found.push(format!("- at '{at}': missing property '{key}'"));
        }
    }
    for (key, value) in value.as_object().into_iter().flatten() {
        let below = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        match schema["properties"].get(key) {
            Some(schema) => found.extend(judge(schema, value, &below)),
            None if schema["additionalProperties"] == false => {
                found.push(format!("- at '{at}': additional properties '{key}' not allowed"));
            }
            None => {}
        }
    }
    for (index, item) in value.as_array().into_iter().flatten().enumerate() {
        found.extend(judge(&schema["items"], item, &format!("{path}.{index}")));
    }
    found
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

fn is_type(wanted: &str, value: &Value) -> bool {
    type_of(value) == wanted || (wanted == "number" && value.is_number())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn values_are_merged_and_judged() {
        let mut values = json!({"a": {"b": 1, "c": 2}, "l": [1]});
        merge(&mut values, &json!({"a": {"b": 3, "c": null}, "l": [2]}));
        assert_eq!(values, json!({"a": {"b": 3}, "l": [2]}));
        let schema = json!({"type": "object", "required": ["x"], "properties": {"a": {"type": "object", "properties": {"b": {"type": "string"}}}}});
        assert_eq!(
            judge(&schema, &values, ""),
            ["- at '(root)': missing property 'x'", "- at '/a/b': got integer, want string"]
        );
    }
}
