//! Label and field selectors.

use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Selector {
    terms: Vec<Term>,
}

#[derive(Clone, Debug, PartialEq)]
struct Term {
    place: Place,
    test: Test,
}

#[derive(Clone, Debug, PartialEq)]
enum Place {
    Label(String),
    Field(String),
}

#[derive(Clone, Debug, PartialEq)]
enum Test {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Absent,
}

impl Selector {
    pub fn new(labels: &str, fields: &str) -> Self {
        let labels = split(labels).into_iter().map(|term| parse(&term, Place::Label));
        let fields = split(fields).into_iter().map(|term| parse(&term, Place::Field));
        Self {
            terms: labels.chain(fields).collect(),
        }
    }

    pub fn matches(&self, object: &Value) -> bool {
        self.terms.iter().all(|term| {
            let value = match &term.place {
                Place::Label(key) => object["metadata"]["labels"]
                    .get(key)
                    .and_then(Value::as_str)
                    .map(str::to_owned),
                Place::Field(path) => Some(field(object, path)),
            };
            match &term.test {
                Test::In(values) => value.is_some_and(|value| values.contains(&value)),
                Test::NotIn(values) => value.is_none_or(|value| !values.contains(&value)),
                Test::Exists => value.is_some(),
                Test::Absent => value.is_none(),
            }
        })
    }
}

fn field(object: &Value, path: &str) -> String {
    let found = path.split('.').fold(object, |at, part| &at[part]);
    match found {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// At commas, but not inside `in (a,b)`.
fn split(text: &str) -> Vec<String> {
    let mut terms = vec![String::new()];
    let mut depth = 0;
    for letter in text.chars() {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        match (letter, depth, terms.last_mut()) {
            (',', 0, _) => terms.push(String::new()),
            (letter, _, Some(term)) => term.push(letter),
            _ => {}
        }
    }
    terms
        .into_iter()
        .map(|term| term.trim().to_owned())
        .filter(|term| !term.is_empty())
        .collect()
}

fn parse(term: &str, place: impl Fn(String) -> Place) -> Term {
    let one = |value: &str| vec![value.trim().to_owned()];
    let (key, test) = if let Some((key, value)) = term.split_once("!=") {
        (key, Test::NotIn(one(value)))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key, Test::In(one(value)))
    } else if let Some((key, values)) = set(term, " notin ") {
        (key, Test::NotIn(values))
    } else if let Some((key, values)) = set(term, " in ") {
        (key, Test::In(values))
    } else if let Some(key) = term.strip_prefix('!') {
        (key, Test::Absent)
    } else {
        (term, Test::Exists)
    };
    Term {
        place: place(key.trim().to_owned()),
        test,
    }
}

fn set<'a>(term: &'a str, word: &str) -> Option<(&'a str, Vec<String>)> {
    let (key, values) = term.split_once(word)?;
    let values = values.trim().trim_start_matches('(').trim_end_matches(')');
    Some((key, values.split(',').map(|value| value.trim().to_owned()).collect()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn terms_are_read_as_kubernetes_reads_them() {
        let pod =
            json!({"metadata": {"name": "a", "labels": {"k8s-app": "kube-apiserver", "x": "1"}}, "spec": {"nodeName": "cp1"}});
        let matches = |labels: &str, fields: &str| Selector::new(labels, fields).matches(&pod);
        assert!(matches("k8s-app in (kube-apiserver, kube-scheduler),x", "spec.nodeName=cp1"));
        assert!(matches("!y,x!=2", "metadata.name==a,status.phase!=Failed"));
        assert!(!matches("k8s-app notin (kube-apiserver)", ""));
        assert!(!matches("", "spec.nodeName=cp2"));
    }
}
