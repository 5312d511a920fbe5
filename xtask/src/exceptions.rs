//! Rules that the code does not meet everywhere yet. Such a rule has a list of exceptions, and the list can only shrink: an exception
//! that is not needed any more is itself a broken rule.

use std::collections::{BTreeMap, BTreeSet};

/// `hits` are the places that break a rule, by the key that the list of exceptions uses (a file or a name).
pub fn judge(list: &str, exceptions: &[&str], hits: &BTreeMap<String, Vec<String>>) -> Vec<String> {
    let excepted: BTreeSet<&str> = exceptions.iter().copied().collect();
    let broken = hits.iter().filter(|(key, _)| !excepted.contains(key.as_str()));
    let needless = excepted.iter().filter(|key| !hits.contains_key(**key));
    broken
        .flat_map(|(_, lines)| lines.iter().cloned())
        .chain(needless.map(|key| format!("{key} needs no exception any more: remove it from {list}")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exception_silences_its_key_alone_and_must_be_needed() {
        let hits = [("a.rs", "a.rs:1: wrong"), ("b.rs", "b.rs:2: wrong")];
        let hits = hits.map(|(key, line)| (key.to_owned(), vec![line.to_owned()])).into();
        assert_eq!(judge("LIST", &["a.rs"], &hits), ["b.rs:2: wrong"]);
        assert_eq!(
            judge("LIST", &["a.rs", "b.rs", "c.rs"], &hits),
            ["c.rs needs no exception any more: remove it from LIST"]
        );
    }
}
