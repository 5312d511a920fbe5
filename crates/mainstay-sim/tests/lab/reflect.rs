//! Any gRPC message as JSON and back, by the `.proto` files themselves: names as in Talos, 64-bit numbers as text, bytes in base64,
//! defaults left out. This is the form the recordings are in.

use std::path::PathBuf;
use std::sync::OnceLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use protox::prost::Message;
use protox::prost_reflect::{
    DescriptorPool, DynamicMessage, FieldDescriptor, Kind, MapKey, MessageDescriptor, MethodDescriptor, ReflectMessage,
    Value as Field,
};
use serde_json::{Map, Value, json};

const FILES: [&str; 8] = [
    "cluster/cluster.proto",
    "cosi/state.proto",
    "inspect/inspect.proto",
    "machine/image.proto",
    "machine/lifecycle.proto",
    "machine/machine.proto",
    "storage/storage.proto",
    "time/time.proto",
];

fn pool() -> &'static DescriptorPool {
    static POOL: OnceLock<DescriptorPool> = OnceLock::new();
    POOL.get_or_init(|| {
        let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../talos-proto/proto");
        let mut compiler = protox::Compiler::new([root]).unwrap();
        compiler.include_imports(true).open_files(FILES).unwrap();
        compiler.descriptor_pool()
    })
}

/// `/machine.MachineService/Version`; `None` for a method that our `.proto` files leave out.
fn method(path: &str) -> Option<MethodDescriptor> {
    let (service, name) = path.trim_start_matches('/').split_once('/').unwrap();
    let service = pool().get_service_by_name(service)?;
    service.methods().find(|method| method.name() == name)
}

pub fn encode(path: &str, request: &Value) -> Vec<u8> {
    let Some(method) = method(path) else { return Vec::new() };
    to_message(&method.input(), request).encode_to_vec()
}

pub fn decode(path: &str, answer: &[u8]) -> Value {
    let method = method(path).unwrap_or_else(|| panic!("{path} has an answer and no descriptor"));
    from_message(&DynamicMessage::decode(method.output(), answer).unwrap())
}

fn to_message(descriptor: &MessageDescriptor, value: &Value) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor.clone());
    if descriptor.full_name() == "google.protobuf.Duration" {
        let seconds: i64 = value.as_str().unwrap().trim_end_matches('s').parse().unwrap();
        message.set_field_by_name("seconds", Field::I64(seconds));
        return message;
    }
    for (name, value) in value.as_object().into_iter().flatten() {
        let field = descriptor
            .get_field_by_name(name)
            .unwrap_or_else(|| panic!("{descriptor:?} has no {name}"));
        let set = match value {
            Value::Array(items) if field.is_list() => Field::List(items.iter().map(|item| to_field(&field, item)).collect()),
            other => to_field(&field, other),
        };
        message.set_field(&field, set);
    }
    message
}

fn to_field(field: &FieldDescriptor, value: &Value) -> Field {
    let number = || value.as_i64().unwrap_or_else(|| value.as_str().unwrap().parse().unwrap());
    match field.kind() {
        Kind::Bool => Field::Bool(value.as_bool().unwrap()),
        Kind::String => Field::String(value.as_str().unwrap().to_owned()),
        Kind::Bytes => Field::Bytes(STANDARD.decode(value.as_str().unwrap()).unwrap().into()),
        Kind::Int32 => Field::I32(number().try_into().unwrap()),
        Kind::Uint32 => Field::U32(number().try_into().unwrap()),
        Kind::Int64 => Field::I64(number()),
        Kind::Uint64 => Field::U64(
            value
                .as_str()
                .map_or_else(|| value.as_u64().unwrap(), |text| text.parse().unwrap()),
        ),
        Kind::Enum(kinds) => Field::EnumNumber(kinds.get_value_by_name(value.as_str().unwrap()).unwrap().number()),
        Kind::Message(descriptor) => Field::Message(to_message(&descriptor, value)),
        other => panic!("{other:?}"),
    }
}

fn from_message(message: &DynamicMessage) -> Value {
    let number = |name: &str| message.get_field_by_name(name).and_then(|field| field.as_i64()).unwrap_or(0);
    match message.descriptor().full_name() {
        "google.protobuf.Timestamp" => {
            let nanos = message
                .get_field_by_name("nanos")
                .and_then(|field| field.as_i32())
                .unwrap_or(0);
            let at = jiff::Timestamp::new(number("seconds"), nanos).unwrap();
            json!(at.to_string())
        }
        "google.protobuf.Duration" => json!(format!("{}s", number("seconds"))),
        "google.protobuf.Any" => any(message),
        _ => {
            let fields = message
                .fields()
                .map(|(field, value)| (field.name().to_owned(), from_field(&field, value)));
            Value::Object(fields.collect())
        }
    }
}

/// Talos names the payloads of events in its own way, hence the last part decides.
fn any(message: &DynamicMessage) -> Value {
    let kind = message.get_field_by_name("type_url").unwrap().as_str().unwrap().to_owned();
    let Some(name) = kind.rsplit('/').next().filter(|name| !name.is_empty()) else {
        return json!({});
    };
    let descriptor = pool().get_message_by_name(name).unwrap_or_else(|| panic!("{name}"));
    let bytes = message.get_field_by_name("value").unwrap().as_bytes().unwrap().clone();
    let mut value = from_message(&DynamicMessage::decode(descriptor, bytes).unwrap());
    value["@type"] = json!(kind);
    value
}

fn from_field(field: &FieldDescriptor, value: &Field) -> Value {
    match value {
        Field::Bool(value) => json!(value),
        Field::I32(value) => json!(value),
        Field::U32(value) => json!(value),
        Field::I64(value) => json!(value.to_string()),
        Field::U64(value) => json!(value.to_string()),
        Field::F32(value) => json!(value),
        Field::F64(value) => json!(value),
        Field::String(value) => json!(value),
        Field::Bytes(value) => json!(STANDARD.encode(value)),
        Field::EnumNumber(number) => {
            let Kind::Enum(kinds) = field.kind() else {
                panic!("{field:?}")
            };
            kinds.get_value(*number).map_or(json!(number), |value| json!(value.name()))
        }
        Field::Message(message) => from_message(message),
        Field::List(items) => items.iter().map(|item| from_field(field, item)).collect(),
        Field::Map(entries) => {
            let entries = entries.iter().map(|(key, value)| (map_key(key), from_field(field, value)));
            Value::Object(entries.collect::<Map<String, Value>>())
        }
    }
}

fn map_key(key: &MapKey) -> String {
    key.as_str().map_or_else(|| format!("{key:?}"), str::to_owned)
}
