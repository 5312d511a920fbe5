//! Validation of parameters, in PVE's order and with its texts.

use indexmap::IndexMap;
use serde_json::Value;

use super::format::check_format;
use super::{Format, Kind, Method, Property};
use crate::die::Die;

const UNKNOWN: &str = "property is not defined in schema and the schema does not allow additional properties";
const MISSING: &str = "property is missing and it is not optional";

/// A parameter as it arrived.
#[derive(Clone, Debug, PartialEq)]
pub enum Param {
    Text(String),
    /// JSON `true` or `false`.
    Bool(bool),
    List(Vec<Param>),
    Hash,
    /// JSON `null`, or a key without `=`.
    Undefined,
}

impl From<&str> for Param {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<Value> for Param {
    fn from(value: Value) -> Self {
        match value {
            Value::Null => Self::Undefined,
            Value::Bool(b) => Self::Bool(b),
            Value::Number(n) => Self::Text(n.to_string()),
            Value::String(s) => Self::Text(s),
            Value::Array(items) => Self::List(items.into_iter().map(Self::from).collect()),
            Value::Object(_) => Self::Hash,
        }
    }
}

impl Param {
    fn reference(&self) -> Option<&'static str> {
        match self {
            Self::List(_) => Some("ARRAY"),
            Self::Hash => Some("HASH"),
            Self::Bool(_) => Some("JSON::PP::Boolean"),
            Self::Text(_) | Self::Undefined => None,
        }
    }

    fn as_text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Bool(true) => Some("1"),
            Self::Bool(false) => Some("0"),
            _ => None,
        }
    }
}

/// Parameters of one call, in the order they arrived.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Params(pub IndexMap<String, Param>);

impl Params {
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name)?.as_text()
    }

    /// A parameter that the schema demands, so that it is there after validation.
    pub fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub fn flag(&self, name: &str) -> bool {
        self.get(name) == Some("1")
    }

    pub fn int(&self, name: &str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }

    pub fn vmid(&self) -> u32 {
        self.int("vmid").unwrap_or_default() as u32
    }

    pub fn has(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }

    /// The elements of an array parameter.
    pub fn list(&self, name: &str) -> Vec<String> {
        match self.0.get(name) {
            Some(Param::List(items)) => items.iter().filter_map(|i| i.as_text().map(Into::into)).collect(),
            Some(other) => other.as_text().map(Into::into).into_iter().collect(),
            None => Vec::new(),
        }
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        self.0.shift_remove(name).and_then(|p| p.as_text().map(Into::into))
    }

    pub fn set(&mut self, name: &str, value: impl Into<String>) {
        self.0.insert(name.into(), Param::Text(value.into()));
    }

    /// Everything that is plain text; what is undefined stays `None`.
    pub fn texts(&self) -> impl Iterator<Item = (&str, Option<&str>)> {
        self.0.iter().map(|(name, param)| (name.as_str(), param.as_text()))
    }
}

/// Checks all parameters of a call; lists are joined where PVE joins them.
pub fn check_parameters(method: &Method, params: &mut Params) -> Result<(), Die> {
    let mut errors = IndexMap::new();
    for (name, param) in &mut params.0 {
        if let Some(property) = method.property(name) {
            reshape(property, param);
        }
    }
    for (name, property) in &method.params {
        match params.0.get(name) {
            None | Some(Param::Undefined) if !property.optional => add(&mut errors, name, MISSING.into()),
            _ => {}
        }
    }
    for (name, param) in &params.0 {
        match method.property(name) {
            Some(property) => check_property(property, param, name, &mut errors),
            None if method.additional => {}
            None => add(&mut errors, name, UNKNOWN.into()),
        }
    }
    for name in params.0.keys() {
        let required = method.property(name).and_then(|p| p.requires.as_deref());
        let given = |name: &str| params.0.get(name).is_some_and(|p| *p != Param::Undefined);
        if let Some(required) = required.filter(|r| !given(r)) {
            add(&mut errors, required, format!("missing property required by '{name}'"));
        }
    }
    if errors.is_empty() {
        Ok(())
    } else {
        Err(Die::parameters(errors))
    }
}

/// A repeated key of a list is joined, a single value of an array becomes one.
fn reshape(property: &Property, param: &mut Param) {
    let is_list = matches!(&property.format, Some(Format::Named(name)) if name.ends_with("-list"));
    match param {
        Param::List(items) if is_list && property.kind == Kind::String => {
            let texts: Vec<&str> = items.iter().filter_map(Param::as_text).collect();
            *param = Param::Text(texts.join(","));
        }
        // What counts as false in Perl is not promoted.
        Param::Text(text) if property.kind == Kind::Array && !matches!(text.as_str(), "" | "0") => {
            *param = Param::List(vec![param.clone()]);
        }
        _ => {}
    }
}

pub(super) fn add(errors: &mut IndexMap<String, String>, path: &str, text: String) {
    let path = if path.is_empty() { "_root" } else { path };
    match errors.get_mut(path) {
        Some(present) => {
            present.push_str("\\n");
            present.push_str(&text);
        }
        None => drop(errors.insert(path.into(), text)),
    }
}

fn check_property(property: &Property, param: &Param, path: &str, errors: &mut IndexMap<String, String>) {
    if *param == Param::Undefined {
        return;
    }
    if property.kind == Kind::Array {
        return check_array(property, param, path, errors);
    }
    if let Some(kind) = param.reference() {
        if !(property.kind == Kind::Boolean && matches!(param, Param::Bool(_))) {
            add(
                errors,
                path,
                format!("type check ('{}') failed - got {kind}", property.kind.name()),
            );
        }
        return;
    }
    if let Param::Text(value) = param
        && let Err(text) = check_value(property, value, path)
    {
        add(errors, path, text);
    }
}

fn check_array(property: &Property, param: &Param, path: &str, errors: &mut IndexMap<String, String>) {
    let Param::List(items) = param else {
        return add(errors, path, "type check ('array') failed".into());
    };
    for (index, item) in items.iter().enumerate() {
        if let Some(inner) = &property.items {
            let path = format!("{path}[{index}]");
            if *item == Param::Undefined && !inner.optional {
                add(errors, &path, MISSING.into());
            }
            check_property(inner, item, &path, errors);
        }
    }
}

/// Type, format, pattern, lengths, range, choices: the first that fails is told.
pub(super) fn check_value(property: &Property, value: &str, path: &str) -> Result<(), String> {
    check_kind(property.kind, value)?;
    // Perl's `$` also matches before a last line feed.
    let line = value.strip_suffix('\n').unwrap_or(value);
    match &property.format {
        Some(format @ Format::Grammar(_)) => check_format(format, value, path),
        Some(format) => check_format(format, line, path),
        None => Ok(()),
    }
    .map_err(|why| format!("invalid format - {why}"))?;
    if !property.matches_pattern(value) {
        return Err("value does not match the regex pattern".into());
    }
    check_length(property, value)?;
    check_range(property, value)?;
    if !property.choices.is_empty() && !property.choices.iter().any(|c| c == value) {
        return Err(format!(
            "value '{value}' does not have a value in the enumeration '{}'",
            property.choices.join(", ")
        ));
    }
    Ok(())
}

fn check_kind(kind: Kind, value: &str) -> Result<(), String> {
    let fits = match kind {
        Kind::Boolean => value == "1" || value == "0",
        Kind::Integer => is_integer(value),
        Kind::Number => is_number(value),
        Kind::String | Kind::Array | Kind::Other => true,
    };
    if fits {
        Ok(())
    } else {
        Err(format!("type check ('{}') failed - got '{value}'", kind.name()))
    }
}

fn check_length(property: &Property, value: &str) -> Result<(), String> {
    let length = value.chars().count();
    if let Some(max) = property.max_length.filter(|max| length > *max) {
        return Err(format!("value may only be {max} characters long"));
    }
    if let Some(min) = property.min_length.filter(|min| length < *min) {
        return Err(format!("value must be at least {min} characters long"));
    }
    Ok(())
}

fn check_range(property: &Property, value: &str) -> Result<(), String> {
    let Some(number) = value.trim_end().parse::<f64>().ok().filter(|_| is_number(value)) else {
        return Ok(());
    };
    if let Some(max) = property.maximum.filter(|max| number > *max) {
        return Err(format!("value must have a maximum value of {max}"));
    }
    if let Some(min) = property.minimum.filter(|min| number < *min) {
        return Err(format!("value must have a minimum value of {min}"));
    }
    Ok(())
}

pub(super) fn is_integer(value: &str) -> bool {
    let value = value.strip_suffix('\n').unwrap_or(value);
    let digits = value.strip_prefix(['+', '-']).unwrap_or(value);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

pub(super) fn is_number(value: &str) -> bool {
    let value = value.strip_suffix('\n').unwrap_or(value);
    let rest = value.strip_prefix(['+', '-']).unwrap_or(value);
    let (mantissa, exponent) = match rest.find(['e', 'E']) {
        Some(at) => (&rest[..at], Some(&rest[at + 1..])),
        None => (rest, None),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let some = !whole.is_empty() || !fraction.is_empty();
    some && digits(whole) && digits(fraction) && exponent.is_none_or(is_integer)
}

#[cfg(test)]
mod tests {
    use super::{Param, Params, check_parameters};
    use crate::schema::schema;

    fn refused(verb: &str, template: &str, given: &[(&str, Param)]) -> Vec<(String, String)> {
        let mut params = Params(given.iter().map(|(n, p)| ((*n).into(), p.clone())).collect());
        let method = schema().method(verb, template).expect("known");
        check_parameters(method, &mut params)
            .err()
            .map(|d| d.errors.into_iter().collect())
            .unwrap_or_default()
    }

    fn create(name: &str, value: &str) -> String {
        let given = [("vmid", Param::from("100")), ("node", "pve1".into()), (name, value.into())];
        refused("POST", "/nodes/{node}/qemu", &given)
            .into_iter()
            .map(|(n, t)| format!("{n}={t}"))
            .collect()
    }

    #[test]
    fn texts_are_those_of_pve() {
        for (name, value, expected) in [
            ("cores", "x", "cores=type check ('integer') failed - got 'x'"),
            ("onboot", "yes", "onboot=type check ('boolean') failed - got 'yes'"),
            ("cores", "0", "cores=value must have a minimum value of 1"),
            ("vmid", "99", "vmid=invalid format - value does not look like a valid VM ID\n"),
            (
                "memory",
                "y",
                "memory=invalid format - format error\nmemory.current: type check ('integer') failed - got 'y'\n",
            ),
            (
                "ipconfig0",
                "gw=10.0.0.1",
                "ipconfig0=invalid format - format error\nipconfig0.ip: missing property required by 'ipconfig0.gw'\n",
            ),
            (
                "boot",
                "scsi0",
                "boot=invalid format - format error\nboot.legacy: value does not match the regex pattern\n",
            ),
            ("net0", "virtio,bridge=vmbr0", ""),
            (
                "net0",
                "virtio,bridge=vmbr0,tag=5000",
                "net0=invalid format - format error\nnet0.tag: value must have a maximum value of 4094\n",
            ),
        ] {
            assert_eq!(create(name, value), expected, "{name}={value}");
        }
    }

    #[test]
    fn a_value_may_end_in_a_line_feed_where_a_pattern_looks_at_it() {
        assert_eq!(create("cores", "2\n"), "");
        assert_eq!(create("name", "a.b\n"), "");
        assert_eq!(create("onboot", "1\n"), "onboot=type check ('boolean') failed - got '1\n'");
    }

    #[test]
    fn numbers_may_lack_digits_on_one_side_of_the_point() {
        for value in ["1.", ".5", "1e2", "+2.5E-1"] {
            assert_eq!(create("cpulimit", value), "", "{value}");
        }
        for value in [".", "e1", "1e", "1.5.2", ""] {
            assert_eq!(
                create("cpulimit", value),
                format!("cpulimit=type check ('number') failed - got '{value}'")
            );
        }
    }

    #[test]
    fn json_values_of_the_wrong_kind_are_told_by_their_perl_type() {
        let path = [("vmid", Param::from("100")), ("node", "pve1".into())];
        for (name, value, text) in [
            (
                "name",
                Param::Bool(true),
                "type check ('string') failed - got JSON::PP::Boolean",
            ),
            (
                "cores",
                Param::Bool(true),
                "type check ('integer') failed - got JSON::PP::Boolean",
            ),
            ("cores", Param::List(vec![]), "type check ('integer') failed - got ARRAY"),
            ("tags", Param::Hash, "type check ('string') failed - got HASH"),
            (
                "onboot",
                Param::List(vec!["1".into()]),
                "type check ('boolean') failed - got ARRAY",
            ),
        ] {
            let given = [path[0].clone(), path[1].clone(), (name, value)];
            let expected = [(name.to_string(), text.to_string())];
            assert_eq!(refused("PUT", "/nodes/{node}/qemu/{vmid}/config", &given), expected);
        }
        let given = [path[0].clone(), path[1].clone(), ("onboot", Param::Bool(false))];
        assert!(refused("PUT", "/nodes/{node}/qemu/{vmid}/config", &given).is_empty());
    }

    #[test]
    fn elements_of_an_array_are_checked_one_by_one() {
        let exec = |command: Param| {
            let given = [("vmid", Param::from("100")), ("node", "pve1".into()), ("command", command)];
            refused("POST", "/nodes/{node}/qemu/{vmid}/agent/exec", &given)
        };
        assert!(exec("ls".into()).is_empty());
        assert_eq!(exec("0".into())[0].1, "type check ('array') failed");
        assert_eq!(exec(Param::Bool(true))[0].1, "type check ('array') failed");
        let undefined = exec(Param::List(vec!["a".into(), Param::Undefined]));
        assert_eq!(undefined[0].0, "command[1]");
    }

    #[test]
    fn a_property_that_is_required_must_have_a_value() {
        let given = [
            ("vmid", Param::from("100")),
            ("node", "pve1".into()),
            ("force", "1".into()),
            ("archive", Param::Undefined),
        ];
        let errors = refused("POST", "/nodes/{node}/qemu", &given);
        assert!(
            errors
                .iter()
                .any(|(n, t)| n == "archive" && t == "missing property required by 'force'"),
            "{errors:?}"
        );
    }

    #[test]
    fn a_repeated_key_is_joined_only_for_lists() {
        let twice = Param::List(vec!["a".into(), "b".into()]);
        let path = [("vmid", Param::from("100")), ("node", "pve1".into())];
        let with = |name| [path[0].clone(), path[1].clone(), (name, twice.clone())];
        assert!(refused("PUT", "/nodes/{node}/qemu/{vmid}/config", &with("tags")).is_empty());
        assert_eq!(
            refused("PUT", "/nodes/{node}/qemu/{vmid}/config", &with("name")),
            [("name".to_string(), "type check ('string') failed - got ARRAY".to_string())]
        );
    }
}
