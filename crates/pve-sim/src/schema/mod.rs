//! PVE's own API schema: which calls exist, what they take, who may use them.
//!
//! The facts are embedded compressed and parsed once per process; `overlay.json` adds what PVE 9.2 has beyond the 9.1 schema and the
//! grammars that the schema only names.

mod check;
mod format;
mod property;

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::OnceLock;

use flate2::read::GzDecoder;
use regex::Regex;
use serde_json::Value;

pub use check::{Param, Params, check_parameters};
pub(crate) use format::is_storage_id;
pub use format::{check_named, split_list};
pub use property::{Properties, parse_properties, print_properties};

static COMPRESSED: &[u8] = include_bytes!("../../data/pve-schema.json.gz");
static OVERLAY: &str = include_str!("../../data/overlay.json");

/// The schema of this process.
pub fn schema() -> &'static Schema {
    static SCHEMA: OnceLock<Schema> = OnceLock::new();
    SCHEMA.get_or_init(Schema::load)
}

pub struct Schema {
    methods: Vec<Method>,
    root: Level,
    /// Property-string grammars that the schema only names.
    grammars: BTreeMap<String, Grammar>,
}

/// One call.
pub struct Method {
    pub verb: String,
    /// With `{param}` segments.
    pub template: String,
    pub params: BTreeMap<String, Property>,
    /// `scsi[n]` and its like, by prefix: how many there are, and what each takes.
    pub indexed: BTreeMap<String, (u32, Property)>,
    pub permission: Permission,
    pub protected: bool,
    pub proxied_to_node: bool,
    pub token_allowed: bool,
    pub additional: bool,
}

pub type Grammar = BTreeMap<String, Property>;

#[derive(Default)]
pub struct Property {
    pub kind: Kind,
    pub optional: bool,
    pub format: Option<Format>,
    pattern: Option<Pattern>,
    pub max_length: Option<usize>,
    pub min_length: Option<usize>,
    pub minimum: Option<f64>,
    pub maximum: Option<f64>,
    pub choices: Vec<String>,
    pub requires: Option<String>,
    pub default_key: bool,
    pub alias: Option<String>,
    pub key_alias: Option<String>,
    pub items: Option<Box<Property>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Kind {
    #[default]
    String,
    Integer,
    Number,
    Boolean,
    Array,
    Other,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
            Self::Array => "array",
            Self::Other => "object",
        }
    }
}

pub enum Format {
    Named(String),
    Grammar(Grammar),
}

/// A Perl pattern, compiled when first used.
struct Pattern {
    text: String,
    compiled: OnceLock<Option<Regex>>,
}

impl Pattern {
    fn matches(&self, value: &str) -> bool {
        let compiled = self.compiled.get_or_init(|| Regex::new(&translate(&self.text)).ok());
        compiled
            .as_ref()
            .is_none_or(|regex| regex.is_match(value.strip_suffix('\n').unwrap_or(value)))
    }
}

/// Perl writes `(?^:…)` and `{,n}`; the meaning is the same.
fn translate(perl: &str) -> String {
    let inner = perl.replace("(?^:", "(?:").replace("(?^i:", "(?i:").replace("{,", "{0,");
    format!("^(?:{inner})$")
}

/// Who may call.
#[derive(Debug, Clone)]
pub enum Permission {
    World,
    Everyone,
    RootOnly,
    Check(Check),
}

#[derive(Debug, Clone)]
pub enum Check {
    And(Vec<Check>),
    Or(Vec<Check>),
    Perm {
        path: String,
        privileges: Vec<String>,
        any: bool,
        require: Option<String>,
    },
    UserSelf,
    UserRealm,
    UserGroup {
        privileges: Vec<String>,
        groups_param: Option<String>,
    },
    Modify,
}

#[derive(Default)]
struct Level {
    fixed: BTreeMap<String, Level>,
    param: Option<(String, Box<Level>)>,
    methods: BTreeMap<String, usize>,
    /// `{volume}` takes the rest of the path, slashes included.
    greedy: bool,
}

/// A call found for a path, with the values of its path parameters.
pub struct Route {
    pub method: &'static Method,
    pub path: Vec<(String, String)>,
}

impl Schema {
    fn load() -> Self {
        let mut text = String::new();
        GzDecoder::new(COMPRESSED)
            .read_to_string(&mut text)
            .expect("the embedded schema is gzip");
        let facts: Vec<Value> = serde_json::from_str(&text).expect("the embedded schema is JSON");
        let overlay: Value = serde_json::from_str(OVERLAY).expect("the overlay is JSON");
        let counts = &overlay["indexed"];
        let mut schema = Self {
            methods: Vec::new(),
            root: Level::default(),
            grammars: BTreeMap::new(),
        };
        for (name, grammar) in object(&overlay["formats"]) {
            schema.grammars.insert(name.clone(), read_grammar(grammar));
        }
        for fact in facts.iter().chain(overlay["methods"].as_array().into_iter().flatten()) {
            let mut method = read_method(fact, counts);
            let name = format!("{} {}", method.verb, method.template);
            for (param, property) in object(&overlay["params"][&name]) {
                method.params.insert(param.clone(), read_property(property));
            }
            extend_properties(&mut method, &overlay["properties"]);
            schema.add(method);
        }
        schema
    }

    fn add(&mut self, method: Method) {
        let index = self.methods.len();
        let mut level = &mut self.root;
        for segment in method.template.split('/').filter(|s| !s.is_empty()) {
            level = match segment.strip_prefix('{').and_then(|s| s.strip_suffix('}')) {
                Some(name) => {
                    let (_, next) = level.param.get_or_insert_with(|| (name.into(), Box::default()));
                    next.greedy |= name == "volume";
                    next
                }
                None => level.fixed.entry(segment.into()).or_default(),
            };
        }
        level.methods.insert(method.verb.clone(), index);
        self.methods.push(method);
    }

    /// The call behind a decoded path; `None` where PVE says `not implemented`.
    pub fn route(&'static self, verb: &str, path: &str) -> Option<Route> {
        let segments: Vec<&str> = path.split('/').filter(|s| !s.is_empty()).collect();
        let mut level = &self.root;
        let mut values = Vec::new();
        let mut rest = segments.as_slice();
        while let Some((first, others)) = rest.split_first() {
            rest = others;
            if let Some(next) = level.fixed.get(*first) {
                level = next;
                continue;
            }
            let (name, next) = level.param.as_ref()?;
            let value = if next.greedy {
                std::mem::take(&mut rest)
                    .iter()
                    .fold((*first).to_string(), |a, s| a + "/" + s)
            } else {
                (*first).into()
            };
            if value.contains(char::is_whitespace) {
                return None;
            }
            values.push((name.clone(), value));
            level = next;
        }
        let index = *level.methods.get(verb)?;
        Some(Route {
            method: &self.methods[index],
            path: values,
        })
    }

    /// Names one level below a path template, for index answers.
    pub fn children(&self, template: &str) -> Vec<&str> {
        let mut level = &self.root;
        for segment in template.split('/').filter(|s| !s.is_empty()) {
            let next = if segment.starts_with('{') {
                level.param.as_ref().map(|(_, l)| &**l)
            } else {
                level.fixed.get(segment)
            };
            match next {
                Some(next) => level = next,
                None => return Vec::new(),
            }
        }
        level.fixed.keys().map(String::as_str).collect()
    }

    pub fn grammar(&self, name: &str) -> Option<&Grammar> {
        self.grammars.get(name)
    }

    pub fn method(&self, verb: &str, template: &str) -> Option<&Method> {
        self.methods.iter().find(|m| m.verb == verb && m.template == template)
    }

    pub fn methods(&self) -> impl Iterator<Item = &Method> {
        self.methods.iter()
    }
}

impl Method {
    /// What a parameter takes; indexed options are known by prefix and number.
    pub fn property(&self, name: &str) -> Option<&Property> {
        if let Some(property) = self.params.get(name) {
            return Some(property);
        }
        let digits = name.find(|c: char| c.is_ascii_digit())?;
        let (prefix, number) = name.split_at(digits);
        let (count, property) = self.indexed.get(prefix)?;
        let canonical = number == "0" || !number.starts_with('0');
        (canonical && number.parse::<u32>().is_ok_and(|n| n < *count)).then_some(property)
    }
}

impl Property {
    pub fn is_boolean(&self) -> bool {
        self.kind == Kind::Boolean
    }

    pub fn matches_pattern(&self, value: &str) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.matches(value))
    }

    /// The grammar of a property string, written out or named.
    pub fn grammar(&self) -> Option<&Grammar> {
        match self.format.as_ref()? {
            Format::Grammar(grammar) => Some(grammar),
            Format::Named(name) => schema().grammar(name),
        }
    }
}

fn extend_properties(method: &mut Method, extra: &Value) {
    for (name, properties) in object(extra) {
        let Some(prefix) = name.strip_suffix("[n]") else { continue };
        if let Some((
            _,
            Property {
                format: Some(Format::Grammar(grammar)),
                ..
            },
        )) = method.indexed.get_mut(prefix)
        {
            for (key, property) in object(properties) {
                grammar.insert(key.clone(), read_property(property));
            }
        }
    }
}

fn object(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
    value.as_object().into_iter().flatten()
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        _ => None,
    }
}

fn number(value: &Value) -> Option<f64> {
    value.as_f64().or_else(|| value.as_str()?.parse().ok())
}

fn flag(value: &Value) -> bool {
    number(value).is_some_and(|n| n != 0.0)
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(text).collect()
}

fn read_method(fact: &Value, counts: &Value) -> Method {
    let mut params = BTreeMap::new();
    let mut indexed = BTreeMap::new();
    for (name, property) in object(&fact["params"]) {
        match name.strip_suffix("[n]") {
            Some(prefix) => {
                let count = counts[prefix].as_u64().unwrap_or(32) as u32;
                indexed.insert(prefix.into(), (count, read_property(property)));
            }
            None => drop(params.insert(name.clone(), read_property(property))),
        }
    }
    Method {
        verb: text(&fact["method"]).unwrap_or_default(),
        template: text(&fact["path"]).unwrap_or_default(),
        params,
        indexed,
        permission: read_permission(&fact["permissions"]),
        protected: flag(&fact["protected"]),
        proxied_to_node: fact["proxyto"] == "node",
        token_allowed: fact["allowtoken"].is_null() || flag(&fact["allowtoken"]),
        additional: flag(&fact["additional"]),
    }
}

fn read_grammar(value: &Value) -> Grammar {
    object(value)
        .map(|(name, property)| (name.clone(), read_property(property)))
        .collect()
}

fn read_property(fact: &Value) -> Property {
    Property {
        kind: match fact["type"].as_str() {
            Some("integer") => Kind::Integer,
            Some("number") => Kind::Number,
            Some("boolean") => Kind::Boolean,
            Some("array") => Kind::Array,
            Some("string") | None => Kind::String,
            Some(_) => Kind::Other,
        },
        optional: flag(&fact["optional"]),
        format: match &fact["format"] {
            Value::String(name) => Some(Format::Named(name.clone())),
            Value::Object(_) => Some(Format::Grammar(read_grammar(&fact["format"]))),
            _ => None,
        },
        pattern: text(&fact["pattern"]).map(|text| Pattern {
            text,
            compiled: OnceLock::new(),
        }),
        max_length: number(&fact["maxLength"]).map(|n| n as usize),
        min_length: number(&fact["minLength"]).map(|n| n as usize),
        minimum: number(&fact["minimum"]),
        maximum: number(&fact["maximum"]),
        choices: texts(&fact["enum"]),
        requires: text(&fact["requires"]),
        default_key: flag(&fact["default_key"]),
        alias: text(&fact["alias"]),
        key_alias: text(&fact["keyAlias"]),
        items: fact["items"].is_object().then(|| Box::new(read_property(&fact["items"]))),
    }
}

fn read_permission(fact: &Value) -> Permission {
    if fact["user"] == "world" {
        return Permission::World;
    }
    if fact["user"] == "all" {
        return Permission::Everyone;
    }
    match read_check(&fact["check"]) {
        Some(check) => Permission::Check(check),
        None => Permission::RootOnly,
    }
}

fn read_check(fact: &Value) -> Option<Check> {
    let parts = fact.as_array()?;
    let option = |name: &str| parts.iter().position(|p| p == name).and_then(|at| parts.get(at + 1));
    Some(match parts.first()?.as_str()? {
        "and" => Check::And(parts[1..].iter().filter_map(read_check).collect()),
        "or" => Check::Or(parts[1..].iter().filter_map(read_check).collect()),
        "perm" => Check::Perm {
            path: text(parts.get(1)?)?,
            privileges: texts(parts.get(2)?),
            any: option("any").is_some_and(flag),
            require: option("require_param").and_then(text),
        },
        "userid-param" if parts.get(1)? == "self" => Check::UserSelf,
        "userid-param" => Check::UserRealm,
        "userid-group" => Check::UserGroup {
            privileges: texts(parts.get(1)?),
            groups_param: option("groups_param").and_then(text),
        },
        "perm-modify" => Check::Modify,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::schema;

    #[test]
    fn empty_segments_are_ignored_and_a_volume_takes_the_rest() {
        let route = schema()
            .route("DELETE", "/nodes//n1/storage/local/content/local:import/x.qcow2/")
            .expect("routed");
        assert_eq!(route.method.template, "/nodes/{node}/storage/{storage}/content/{volume}");
        assert_eq!(route.path[2], ("volume".into(), "local:import/x.qcow2".into()));
    }

    #[test]
    fn unknown_paths_and_methods_have_no_route() {
        assert!(schema().route("GET", "/nope").is_none());
        assert!(schema().route("POST", "/version").is_none());
        assert!(schema().route("GET", "/nodes/pve1/qemu/ ").is_none());
    }

    #[test]
    fn indexed_options_are_known_within_their_range() {
        let create = schema().method("POST", "/nodes/{node}/qemu").expect("known");
        assert!(create.property("scsi30").is_some() && create.property("scsi31").is_none());
        assert!(create.property("net0").is_some() && create.property("net00").is_none());
    }
}
