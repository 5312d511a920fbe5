//! What datacenter.cfg says about tags: which ones users may set, and how they are written down.

use std::collections::BTreeSet;

use crate::access::Auth;
use crate::options;
use crate::schema::split_list;
use crate::state::State;

/// `user-tag-access` and `registered-tags`.
pub(crate) struct Policy {
    mode: String,
    listed: Vec<String>,
    registered: Vec<String>,
}

fn by_semicolon(text: &str) -> Vec<String> {
    text.split(';').filter(|t| !t.is_empty()).map(str::to_string).collect()
}

impl Policy {
    pub fn of(state: &State) -> Self {
        let access = options::properties(&state.options, "user-tag-access");
        let text = |key: &str| access.get(key).cloned().unwrap_or_default();
        let registered = state.options.get("registered-tags");
        Self {
            mode: Some(text("user-allow"))
                .filter(|m| !m.is_empty())
                .unwrap_or_else(|| "free".into()),
            listed: by_semicolon(&text("user-allow-list")),
            registered: registered.map(|t| by_semicolon(t)).unwrap_or_default(),
        }
    }

    pub fn is_free(&self) -> bool {
        self.mode == "free"
    }

    /// Tags that only an administrator sets, listed or not.
    pub fn is_registered(&self, tag: &str) -> bool {
        self.registered.iter().any(|t| t == tag)
    }

    /// The tags that a caller may set, as far as they can be named.
    pub fn allowed(&self, state: &State, auth: &Auth) -> BTreeSet<String> {
        let privileged = state.access.may(auth, "/", &["Sys.Modify"]);
        let mut allowed = BTreeSet::new();
        if privileged || self.mode != "none" {
            allowed.extend(self.listed.iter().cloned());
        }
        if privileged || matches!(self.mode.as_str(), "free" | "existing") {
            let seen = |vmid: u32| privileged || state.access.may(auth, &format!("/vms/{vmid}"), &["VM.Audit"]);
            for vm in state.vms.values().filter(|vm| seen(vm.vmid)) {
                allowed.extend(split_list(vm.conf.get("tags").unwrap_or_default()).map(str::to_string));
            }
        }
        if privileged {
            allowed.extend(self.registered.iter().cloned());
        } else {
            allowed.retain(|tag| !self.is_registered(tag));
        }
        allowed
    }
}

/// Tags as a VM's config keeps them: `tag-style` decides over case and order.
pub(crate) fn unique(state: &State, tags: &str) -> String {
    let style = options::properties(&state.options, "tag-style");
    let is = |key: &str, value: &str| style.get(key).is_some_and(|v| v == value);
    let cased = is("case-sensitive", "1");
    let mut unique: Vec<String> = Vec::new();
    for tag in split_list(tags) {
        let tag = if cased { tag.to_string() } else { tag.to_lowercase() };
        if !unique.contains(&tag) {
            unique.push(tag);
        }
    }
    if !is("ordering", "config") {
        unique.sort();
    }
    unique.join(";")
}
