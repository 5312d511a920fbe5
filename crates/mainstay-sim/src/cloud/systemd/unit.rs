//! Unit files and drop-ins.

use crate::cloud::fs::{Credentials, FileSystem, Kind, name as last_part};

/// Where unit files lie, most important first.
const PLACES: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// A unit file with its drop-ins, as one list of assignments.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Definition {
    pub path: String,
    /// `("Service.ExecStart", "/bin/true")`
    assignments: Vec<(String, String)>,
    pub masked: bool,
    pub text: String,
}

/// `foo` is `foo.service`.
pub(crate) fn full_name(name: &str) -> String {
    let known = [".service", ".target", ".timer", ".socket", ".mount", ".path", ".slice"];
    if known.iter().any(|suffix| name.ends_with(suffix)) {
        name.to_owned()
    } else {
        format!("{name}.service")
    }
}

impl Definition {
    pub fn read(fs: &FileSystem, name: &str) -> Option<Self> {
        let path = PLACES
            .iter()
            .map(|place| format!("{place}/{name}"))
            .find(|path| fs.lstat(Credentials::ROOT, path).is_ok())?;
        let target = fs.lstat(Credentials::ROOT, &path).ok()?;
        let masked = matches!(&target.kind, Kind::Link(to) if to == "/dev/null");
        let text = if masked { String::new() } else { fs.text(&path)? };
        let mut definition = Self {
            path,
            masked,
            ..Self::default()
        };
        definition.add(&text);
        // Drop-ins apply in the order of their names, wherever they lie.
        let mut drop_ins: Vec<(String, String)> = Vec::new();
        for place in PLACES {
            let directory = format!("{place}/{name}.d");
            for file in fs.list(Credentials::ROOT, &directory).unwrap_or_default() {
                if file.ends_with(".conf") && !drop_ins.iter().any(|(known, _)| *known == file) {
                    drop_ins.push((file.clone(), format!("{directory}/{file}")));
                }
            }
        }
        drop_ins.sort();
        for (_, path) in drop_ins {
            definition.add(&fs.text(&path).unwrap_or_default());
        }
        Some(definition)
    }

    fn add(&mut self, text: &str) {
        self.text.push_str(text);
        let joined = text.replace("\\\n", " ");
        let mut section = String::new();
        for line in joined.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = name.to_owned();
            } else if let Some((key, value)) = line.split_once('=') {
                self.assignments
                    .push((format!("{section}.{}", key.trim()), value.trim().to_owned()));
            }
        }
    }

    /// All values of a key; an empty assignment forgets those before it.
    pub fn values(&self, key: &str) -> Vec<String> {
        let mut values = Vec::new();
        for (_, value) in self.assignments.iter().filter(|(known, _)| known == key) {
            if value.is_empty() {
                values.clear();
            } else {
                values.push(value.clone());
            }
        }
        values
    }

    pub fn value(&self, key: &str) -> Option<String> {
        self.values(key).pop()
    }

    pub fn words(&self, key: &str) -> Vec<String> {
        self.values(key)
            .iter()
            .flat_map(|value| value.split_whitespace())
            .map(str::to_owned)
            .collect()
    }

    pub fn kind(&self) -> String {
        self.value("Service.Type").unwrap_or_else(|| "simple".to_owned())
    }
}

/// Where `enable` puts its links.
pub(crate) fn wanted_by(definition: &Definition, unit: &str) -> Vec<String> {
    let wants = definition
        .words("Install.WantedBy")
        .into_iter()
        .map(|target| format!("{target}.wants"));
    let requires = definition
        .words("Install.RequiredBy")
        .into_iter()
        .map(|target| format!("{target}.requires"));
    wants
        .chain(requires)
        .map(|directory| format!("{}/{directory}/{unit}", PLACES[0]))
        .collect()
}

/// Units that the targets of a normal boot want.
pub(crate) fn enabled(fs: &FileSystem) -> Vec<String> {
    let mut units = Vec::new();
    for target in [
        "sysinit.target",
        "basic.target",
        "multi-user.target",
        "network-online.target",
        "timers.target",
        "default.target",
    ] {
        let directory = format!("{}/{target}.wants", PLACES[0]);
        units.extend(fs.list(Credentials::ROOT, &directory).unwrap_or_default());
    }
    units.dedup();
    units
}

pub(crate) fn is_enabled(fs: &FileSystem, unit: &str) -> bool {
    let links = fs.walk(Credentials::ROOT, PLACES[0]).unwrap_or_default();
    links
        .iter()
        .any(|path| last_part(path) == unit && (path.contains(".wants/") || path.contains(".requires/")))
}

/// A command line of systemd: quotes, and a prefix that changes what its failure means.
pub(crate) fn command_line(text: &str) -> (Vec<String>, bool) {
    let ignored = text.starts_with('-');
    let text = text.trim_start_matches(['-', '@', '+', '!', ':']);
    let mut words = Vec::new();
    let (mut word, mut quote, mut open) = (String::new(), None, false);
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match (c, quote) {
            ('\\', quote) if quote != Some('\'') => word.push(match chars.next() {
                Some('n') => '\n',
                Some('t') => '\t',
                Some(other) => other,
                None => '\\',
            }),
            (c, Some(end)) if c == end => quote = None,
            ('"' | '\'', None) => (quote, open) = (Some(c), true),
            (c, None) if c.is_whitespace() => {
                if open || !word.is_empty() {
                    words.push(std::mem::take(&mut word));
                }
                open = false;
            }
            // `$$` is a dollar sign, `%%` a percent sign.
            ('$' | '%', _) if chars.peek() == Some(&c) => {
                chars.next();
                word.push(c);
            }
            (c, _) => word.push(c),
        }
    }
    if open || !word.is_empty() {
        words.push(word);
    }
    (words, ignored)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_assignment_in_a_drop_in_forgets_what_was_before() {
        let mut definition = Definition::default();
        definition.add("[Service]\nExecStart=/bin/one\nExecCondition=/bin/own\n");
        definition.add("[Service]\nExecStart=\nExecStart=/bin/two \\\n  --long\nExecCondition=/bin/more\n");
        assert_eq!(definition.values("Service.ExecStart"), ["/bin/two    --long"]);
        assert_eq!(definition.values("Service.ExecCondition"), ["/bin/own", "/bin/more"]);
    }

    #[test]
    fn command_lines_keep_their_quotes_together() {
        let (words, ignored) = command_line("-/bin/sh -xc '! /usr/bin/systemctl is-enabled \"a b\"' $$x");
        assert!(ignored);
        assert_eq!(words, ["/bin/sh", "-xc", "! /usr/bin/systemctl is-enabled \"a b\"", "$x"]);
    }
}
