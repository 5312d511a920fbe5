//! The reference page of cluster.yaml, made from the tables of keys.

use crate::key::{KeyInfo, Support, ValueType};
use crate::keys::{self, FILE};
use crate::type_check::expectation;

const HEAD: &str = "\
# cluster.yaml

Every key, made from the same declarations as the reader (`mainstay schema` prints them as a JSON Schema for editors). Put this line on top
of a file to get completion and checks while typing:

    # yaml-language-server: $schema=cluster.schema.json

`*` stands for a name of yours, `[]` for each item of a list. Keys without a default are required where the table says so, and have no
effect when left out otherwise. Unknown keys are refused. Anchors, aliases, tags and merge keys are not used.

- Sizes are `8GiB`, `8G` or `8192MiB`: powers of two, as everywhere in PVE.
- Addresses and VMIDs of a pool are `10.0.0.11+` (as many as needed), `10.0.0.11-13`, or a list of these. Ordinal 1 gets the start of
  the range. What a machine has depends on cluster name, pool and ordinal alone: adding, removing or moving pools, machines or hosts
  renumbers nothing.
- Versions are exact (`1.13.9`), a minor (`1.13`: what the cluster runs if it is of that minor, else its newest known patch), or left
  out (what the cluster runs, else the newest known).
- Files are named relative to cluster.yaml.
- `machines` says more about a single machine than its pool does: `disks` and `taints` replace those of the pool; `labels`, `tags` and
  `patches` are added to them.

Credentials are never in this file: `PROXMOX_VE_API_TOKEN` (or `PROXMOX_VE_API_TOKEN_FILE`), or `PROXMOX_VE_USERNAME` and
`PROXMOX_VE_PASSWORD`. `PROXMOX_VE_ENDPOINT` is used where the file has no `datacenter.endpoint`.

## Keys

| key | takes | default | what it is |
|---|---|---|---|
";

const LATER: &str = "
## Not supported by this version

These are read, checked and refused by name, never ignored.

| key | takes | what it will be |
|---|---|---|
";

/// Markdown.
pub fn page() -> String {
    let (mut now, mut later) = (String::new(), String::new());
    let mut skip: Option<String> = None;
    keys::walk(&FILE, "", &mut |path, key| {
        // What is inside a later section says little before the section itself does something.
        let inside = |outer: &str| path.strip_prefix(outer).is_some_and(|rest| rest.starts_with(['.', '[']));
        match key.support {
            _ if skip.as_deref().is_some_and(inside) => {}
            Support::Never { .. } => {}
            Support::Now => now.push_str(&row(path, &key)),
            Support::Later => {
                later.push_str(&format!(
                    "| `{path}` | {} | {} |\n",
                    cell(&expectation(key.value_type)),
                    cell(key.doc)
                ));
                skip = Some(path.to_owned());
            }
        }
    });
    later.push_str(&later_values());
    format!("{HEAD}{now}{LATER}{later}")
}

fn row(path: &str, key: &KeyInfo) -> String {
    let default = if key.required {
        "**required**".to_owned()
    } else {
        cell(key.default)
    };
    format!(
        "| `{path}` | {} | {default} | {} |\n",
        cell(&expectation(key.value_type)),
        cell(key.doc)
    )
}

fn later_values() -> String {
    let mut rows = String::new();
    keys::walk(&FILE, "", &mut |path, key| {
        if let ValueType::Choice(choices) = key.value_type {
            for choice in choices.words().iter().filter(|choice| choice.support == Support::Later) {
                rows.push_str(&format!("| `{path}: {}` | | {} |\n", choice.word, cell(key.doc)));
            }
        }
    });
    rows
}

fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
