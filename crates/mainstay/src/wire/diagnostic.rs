//! Errors and warnings about cluster.yaml, as lines of the event stream.

use mainstay_spec::{Diagnostic, Source};

use super::event::WireEvent;

/// Errors and warnings about cluster.yaml. The spec crate writes the objects itself; its `why` is one text.
pub fn diagnostics(source: &Source, found: &[Diagnostic]) -> Vec<WireEvent> {
    let read = |mut object: serde_json::Value| {
        let why = object["why"].as_str().filter(|why| !why.is_empty()).map(str::to_owned);
        object["why"] = why.into_iter().collect();
        serde_json::from_value(object).expect("the spec crate writes the fields of an error")
    };
    mainstay_spec::report::json(source, found).into_iter().map(read).collect()
}
