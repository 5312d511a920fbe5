//! A VM's config file: values, pending changes, snapshots; how it is written and read back.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use indexmap::IndexMap;
use serde_json::{Map, Value, json};
use sha1::{Digest, Sha1};

use crate::die::Die;
use crate::schema::{Kind, Method, schema};

pub type Section = BTreeMap<String, String>;

#[derive(Clone, Debug, Default)]
pub struct Conf {
    pub now: Section,
    pub pending: Section,
    /// Keys to be deleted; `true` frees the volume, too.
    pub delete: BTreeMap<String, bool>,
    /// Cloud-init values as the drive has them, where the config has moved on; `added` lists what the drive does not have yet.
    pub cloudinit: Section,
    pub snapshots: IndexMap<String, Section>,
    digest: OnceLock<String>,
}

/// Options of a VM, by the schema of the call that changes them.
pub(super) fn options() -> &'static Method {
    static METHOD: OnceLock<&'static Method> = OnceLock::new();
    METHOD.get_or_init(|| {
        schema()
            .method("PUT", "/nodes/{node}/qemu/{vmid}/config")
            .expect("the schema has the config call")
    })
}

/// Parameters of the config call that are no options.
const NO_OPTIONS: &[&str] = &[
    "node",
    "vmid",
    "digest",
    "delete",
    "revert",
    "force",
    "skiplock",
    "background_delay",
    "import-working-storage",
];

pub fn option_exists(key: &str) -> bool {
    !NO_OPTIONS.contains(&key) && options().property(key).is_some() || matches!(key, "meta" | "parent" | "vmstate" | "snaptime")
}

impl Conf {
    pub fn new(now: Section) -> Self {
        Self { now, ..Self::default() }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.now.get(key).map(String::as_str)
    }

    pub fn is_template(&self) -> bool {
        self.get("template") == Some("1")
    }

    pub fn lock(&self) -> Option<&str> {
        self.get("lock")
    }

    pub fn check_lock(&self) -> Result<(), Die> {
        match self.lock() {
            Some(lock) => Err(Die::new(format!("VM is locked ({lock})"))),
            None => Ok(()),
        }
    }

    pub fn check_protection(&self, what: &str) -> Result<(), Die> {
        if self.get("protection") == Some("1") {
            Err(Die::new(format!("{what} - protection mode enabled")))
        } else {
            Ok(())
        }
    }

    /// With pending changes applied, as `GET config` shows it.
    pub fn with_pending(&self) -> Section {
        let mut merged = self.now.clone();
        merged.extend(self.pending.clone());
        merged.retain(|key, _| !self.delete.contains_key(key) || self.pending.contains_key(key));
        merged
    }

    /// Drops pending entries that change nothing; says whether there were any.
    pub fn cleanup_pending(&mut self) {
        let now = &self.now;
        self.pending.retain(|key, value| now.get(key) != Some(value));
        self.delete.retain(|key, _| now.contains_key(key));
    }

    /// What writing the file and reading it back makes of the values.
    pub fn settle(&mut self) -> Result<(), Die> {
        settle_section(&mut self.now)?;
        // A pending description that is empty keeps its line, else it could not clear the present one.
        let cleared = self.pending.get("description").is_some_and(String::is_empty);
        settle_section(&mut self.pending)?;
        if cleared {
            self.pending.insert("description".into(), String::new());
        }
        let used: Vec<String> = self
            .now
            .iter()
            .filter(|(key, _)| super::is_drive(key))
            .map(|(_, value)| file_of(value))
            .collect();
        self.now
            .retain(|key, value| !key.starts_with("unused") || !used.contains(&file_of(value)));
        self.digest = OnceLock::new();
        Ok(())
    }

    /// SHA-1 of the file.
    pub fn digest(&self) -> &str {
        self.digest
            .get_or_init(|| hex::encode(Sha1::digest(self.render().as_bytes())))
    }

    pub fn check_digest(&self, expected: Option<&str>) -> Result<(), Die> {
        match expected {
            Some(expected) if expected != self.digest() => Err(Die::new("checksum mismatch (file change by other user?)")),
            _ => Ok(()),
        }
    }

    /// The file's text.
    pub fn render(&self) -> String {
        let mut text = render_section(&self.now, None);
        if !self.pending.is_empty() || !self.delete.is_empty() {
            let deletes: Vec<String> = self
                .delete
                .iter()
                .map(|(key, force)| format!("{}{key}", if *force { "!" } else { "" }))
                .collect();
            let mut pending = self.pending.clone();
            if !deletes.is_empty() {
                pending.insert("delete".into(), deletes.join(","));
            }
            text.push_str(&render_section(&pending, Some("PENDING")));
        }
        if !self.cloudinit.is_empty() {
            text.push_str(&render_section(&self.cloudinit, Some("special:cloudinit")));
        }
        for (name, section) in &self.snapshots {
            text.push_str(&render_section(section, Some(name)));
        }
        text
    }
}

fn file_of(drive: &str) -> String {
    drive
        .split(',')
        .next()
        .unwrap_or_default()
        .trim_start_matches("file=")
        .to_string()
}

fn settle_section(section: &mut Section) -> Result<(), Die> {
    for (key, value) in section.iter_mut() {
        if key == "description" {
            let lines: Vec<&str> = value.split('\n').collect();
            *value = lines.join("\n").trim_end().to_string();
            continue;
        }
        if value.contains('\n') {
            return Err(Die::new(format!(
                "unable to parse value of '{key}' - property contains a line feed"
            )));
        }
        let trimmed = value.trim();
        if trimmed.len() != value.len() || trimmed.is_empty() {
            // An empty value is read back as the blank that separated it from its key.
            *value = if trimmed.is_empty() { " ".into() } else { trimmed.into() };
        }
    }
    if section.get("description").is_some_and(String::is_empty) {
        section.remove("description");
    }
    Ok(())
}

fn render_section(section: &Section, title: Option<&str>) -> String {
    let mut text = title.map(|t| format!("\n[{t}]\n")).unwrap_or_default();
    if let Some(description) = section.get("description") {
        description
            .split('\n')
            .for_each(|line| text.push_str(&format!("#{}\n", escape(line))));
    }
    for (key, value) in section.iter().filter(|(key, _)| *key != "description") {
        text.push_str(&format!("{key}: {value}\n"));
    }
    text
}

/// Control characters, colons and all beyond ASCII are percent-encoded.
fn escape(line: &str) -> String {
    let plain = |b: u8| (0x20..=0x7e).contains(&b) && b != b':' && b != b'%';
    line.bytes()
        .map(|b| {
            if plain(b) {
                char::from(b).to_string()
            } else {
                format!("%{b:02X}")
            }
        })
        .collect()
}

/// Integers and booleans are numbers, all else is text.
pub fn typed(key: &str, value: &str) -> Value {
    let kind = match key {
        "snaptime" => Kind::Integer,
        "lock" | "meta" | "parent" | "digest" => Kind::String,
        _ => options().property(key).map_or(Kind::String, |p| p.kind),
    };
    match kind {
        Kind::Integer | Kind::Boolean => value.parse::<i64>().map_or_else(|_| json!(value), |n| json!(n)),
        _ => json!(value),
    }
}

/// A section as the API shows it: passwords hidden, the digest of the whole file with it.
pub fn show(section: &Section, digest: &str) -> Value {
    let mut shown = Map::new();
    for (key, value) in section {
        let value = if key == "cipassword" {
            json!("**********")
        } else {
            typed(key, value)
        };
        shown.insert(key.clone(), value);
    }
    shown.insert("digest".into(), json!(digest));
    Value::Object(shown)
}

#[cfg(test)]
mod tests {
    use super::Conf;

    fn settled(key: &str, value: &str) -> Option<String> {
        let mut conf = Conf::new([(key.to_string(), value.to_string())].into());
        conf.settle().ok()?;
        conf.get(key).map(Into::into)
    }

    #[test]
    fn values_change_on_their_way_through_the_file() {
        for (key, value, expected) in [
            ("tags", "", Some(" ")),
            ("boot", "", Some(" ")),
            ("description", "line1\nline2\n\n", Some("line1\nline2")),
            ("description", "", None),
            ("description", " x", Some(" x")),
            ("name", "a", Some("a")),
        ] {
            assert_eq!(settled(key, value).as_deref(), expected, "{key}={value:?}");
        }
        let mut broken = Conf::new([("ciuser".to_string(), "a\nb".to_string())].into());
        assert_eq!(
            broken.settle().unwrap_err().message,
            "unable to parse value of 'ciuser' - property contains a line feed"
        );
    }

    #[test]
    fn the_digest_follows_the_text() {
        let mut conf = Conf::new([("name".to_string(), "a".to_string())].into());
        let before = conf.digest().to_string();
        conf.now.insert("name".into(), "b".into());
        conf.settle().expect("valid");
        assert_ne!(before, conf.digest());
    }
}
