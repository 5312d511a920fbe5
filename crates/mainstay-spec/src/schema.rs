//! The JSON Schema of cluster.yaml, for editors. It has the keys that this version supports; keys of later versions are not in it.

use serde_json::{Map, Value, json};

use crate::key::{AnyWord, ChoiceInfo, KeyInfo, Numbers, Section, Support, ValueType};
use crate::keys::FILE;
use crate::naming::Naming;

/// Draft 2020-12.
pub fn schema() -> Value {
    let mut root = section(&FILE);
    let mut schema = Map::new();
    schema.insert("$schema".to_owned(), json!("https://json-schema.org/draft/2020-12/schema"));
    schema.insert("title".to_owned(), json!("mainstay cluster.yaml"));
    schema.insert("description".to_owned(), json!("One Kubernetes cluster on Proxmox VE."));
    schema.append(&mut root);
    Value::Object(schema)
}

/// What `mainstay schema` prints.
pub fn schema_text() -> String {
    // A map of strings and numbers always prints.
    let mut text = serde_json::to_string_pretty(&schema()).unwrap_or_default();
    text.push('\n');
    text
}

fn section(section: &Section) -> Map<String, Value> {
    let now = || section.keys().filter(|key| key.support == Support::Now);
    let properties: Map<String, Value> = now().map(|key| (key.name.to_owned(), property(&key))).collect();
    let required: Vec<&str> = now().filter(|key| key.required).map(|key| key.name).collect();
    let mut schema = Map::new();
    schema.insert("type".to_owned(), json!("object"));
    schema.insert("additionalProperties".to_owned(), json!(false));
    if !required.is_empty() {
        schema.insert("required".to_owned(), json!(required));
    }
    schema.insert("properties".to_owned(), Value::Object(properties));
    schema
}

fn property(key: &KeyInfo) -> Value {
    let mut schema = Map::new();
    let default = if key.default.is_empty() {
        String::new()
    } else {
        format!(" Default: {}.", key.default)
    };
    schema.insert("description".to_owned(), json!(format!("{}{default}", key.doc)));
    schema.append(&mut type_schema(key.value_type));
    Value::Object(schema)
}

fn type_schema(value_type: ValueType) -> Map<String, Value> {
    let schema = match value_type {
        ValueType::Flag => json!({ "type": "boolean" }),
        ValueType::Int { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        ValueType::Word(word) => self::word(word),
        ValueType::Name(naming) => name(naming),
        ValueType::Choice(choices) => json!({ "type": "string", "enum": words(&choices.words()) }),
        ValueType::List(item) => json!({ "type": "array", "items": type_schema(item.value_type()) }),
        ValueType::Section(inner) => Value::Object(section(inner)),
        ValueType::Named(naming, inner) => json!({
            "type": "object", "propertyNames": { "pattern": naming.pattern }, "additionalProperties": section(inner),
        }),
        ValueType::Labels => json!({
            "type": "object",
            "additionalProperties": { "type": ["string", "number", "boolean", "null"] },
        }),
        ValueType::Either(one, other) => json!({ "anyOf": [type_schema(one.value_type()), type_schema(other.value_type())] }),
        ValueType::Settings => json!({ "type": "object" }),
        ValueType::Anything => json!({}),
    };
    if let Value::Object(map) = schema { map } else { Map::new() }
}

fn word(word: &dyn AnyWord) -> Value {
    let word = word.info();
    let types = match word.numbers {
        Numbers::None => json!("string"),
        Numbers::Integers => json!(["string", "integer"]),
        Numbers::All => json!(["string", "number"]),
    };
    // An example that is cut short for people is of no use to an editor.
    let examples: Vec<&str> = [word.example].into_iter().filter(|example| !example.contains('…')).collect();
    json!({ "type": types, "pattern": word.pattern, "examples": examples })
}

fn name(naming: &Naming) -> Value {
    let examples: Vec<&str> = [naming.example].into_iter().filter(|example| !example.is_empty()).collect();
    json!({ "type": "string", "pattern": naming.pattern, "examples": examples })
}

fn words(choices: &[ChoiceInfo]) -> Vec<&'static str> {
    choices
        .iter()
        .filter(|choice| choice.support == Support::Now)
        .map(|choice| choice.word)
        .collect()
}
