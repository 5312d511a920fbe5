//! The JSON Schema of cluster.yaml, for editors. It knows what this version carries out; keys of later versions are not in it.

use serde_json::{Map, Value, json};

use crate::keys::{Choice, FILE, Key, Kind, Numbers, Section, When, Word};
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
    let now = || section.keys.iter().filter(|key| key.when == When::Now);
    let properties: Map<String, Value> = now().map(|key| (key.name.to_owned(), property(key))).collect();
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

fn property(key: &Key) -> Value {
    let mut schema = Map::new();
    let default = if key.default.is_empty() {
        String::new()
    } else {
        format!(" Default: {}.", key.default)
    };
    schema.insert("description".to_owned(), json!(format!("{}{default}", key.doc)));
    schema.append(&mut kind(&key.kind));
    Value::Object(schema)
}

fn kind(kind_of: &Kind) -> Map<String, Value> {
    let schema = match kind_of {
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Int { min, max } => json!({ "type": "integer", "minimum": min, "maximum": max }),
        Kind::Word(word) => self::word(word),
        Kind::Name(naming) => name(naming),
        Kind::Choice(choices) => json!({ "type": "string", "enum": values(choices) }),
        Kind::List(item) => json!({ "type": "array", "items": kind(item) }),
        Kind::Section(inner) => Value::Object(section(inner)),
        Kind::Named(naming, inner) => json!({
            "type": "object", "propertyNames": { "pattern": naming.pattern }, "additionalProperties": section(inner),
        }),
        Kind::Labels => json!({
            "type": "object",
            "additionalProperties": { "type": ["string", "number", "boolean", "null"] },
        }),
        Kind::Either(one, other) => json!({ "anyOf": [kind(one), kind(other)] }),
        Kind::Anything => json!({}),
    };
    if let Value::Object(map) = schema { map } else { Map::new() }
}

fn word(word: &Word) -> Value {
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

fn values(choices: &[Choice]) -> Vec<&'static str> {
    choices
        .iter()
        .filter(|choice| choice.when == When::Now)
        .map(|choice| choice.value)
        .collect()
}
