//! Parameters from queries, forms and JSON, decoded as pveproxy decodes them.

use super::json;
use crate::die::Die;
use crate::schema::{Param, Params};

/// Percent-decodes; broken escapes stay as they are.
pub fn unescape(text: &str) -> String {
    String::from_utf8_lossy(&unescape_bytes(text)).into_owned()
}

fn unescape_bytes(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = |i: usize| bytes.get(i).and_then(|b| (*b as char).to_digit(16));
        match (bytes[at], hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            (byte, _, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    out
}

/// `key=value` pairs split at `&` and `;`. A pair is split at every `=`, so what follows a second one is lost.
/// Empty pairs name an empty key, but for those at the end.
pub fn decode_form(text: &str, params: &mut Params) {
    let text = text.trim_end_matches(['&', ';']);
    if text.is_empty() {
        return;
    }
    for pair in text.split(['&', ';']) {
        let mut parts = pair.split('=');
        let key = unescape(&parts.next().unwrap_or_default().replace('+', " "));
        let value = parts.next().map(|v| unescape(&v.replace('+', " ")));
        merge(params, key, value);
    }
}

/// A repeated key becomes a list; without a value it forgets what came before.
fn merge(params: &mut Params, key: String, value: Option<String>) {
    let Some(value) = value.map(Param::Text) else {
        params.0.insert(key, Param::Undefined);
        return;
    };
    match params.0.get_mut(&key) {
        Some(Param::List(items)) => items.push(value),
        Some(Param::Undefined) | None => drop(params.0.insert(key, value)),
        Some(present) => *present = Param::List(vec![std::mem::replace(present, Param::Undefined), value]),
    }
}

/// The source that pveproxy names when its own code dies.
const SERVER: &str = "/usr/share/perl5/PVE/APIServer/AnyEvent.pm";
const HANDLER: &str = "/usr/share/perl5/PVE/HTTPServer.pm";

/// A JSON object's members. `query` are the parameters that are put over them.
pub fn decode_json(body: &[u8], query: Params) -> Result<Params, Die> {
    let line = if query.0.is_empty() { 978 } else { 943 };
    let bare = |text: String| Die::bare(500, text);
    match json::decode(body).map_err(|text| bare(format!("{text} at {SERVER} line 934.")))? {
        json::Top::Object(members) => {
            let mut params = Params(members);
            params.0.extend(query.0);
            Ok(params)
        }
        json::Top::Null => Ok(query),
        // What counts as nothing is looked into one step later, where the answer is an envelope.
        json::Top::Reference { truthy: false } if query.0.is_empty() => {
            Err(Die::new(format!("Not a HASH reference at {HANDLER} line 160.")))
        }
        json::Top::Reference { .. } => Err(bare(format!("Not a HASH reference at {SERVER} line {line}."))),
        json::Top::Text(text) => {
            let shown: String = text.chars().take(32).collect();
            let more = if text.chars().count() > 32 { "\"..." } else { "\"" };
            let words = format!("Can't use string (\"{shown}{more}) as a HASH ref while \"strict refs\" in use at");
            if query.0.is_empty() && matches!(text.as_str(), "" | "0") {
                return Err(Die::new(format!("{words} {HANDLER} line 160.")));
            }
            Err(bare(format!("{words} {SERVER} line {line}.")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{decode_form, decode_json, unescape};
    use crate::schema::{Param, Params};

    fn form(text: &str) -> Params {
        let mut params = Params::default();
        decode_form(text, &mut params);
        params
    }

    #[test]
    fn pairs_are_cut_at_semicolons_and_at_a_second_equals_sign() {
        assert_eq!(form("a=1;b=2").get("b"), Some("2"));
        assert_eq!(form("net0=virtio,bridge=vmbr0").get("net0"), Some("virtio,bridge"));
    }

    #[test]
    fn a_plus_is_a_space_and_a_key_alone_is_undefined() {
        assert_eq!(form("d=a+b%2Bc").get("d"), Some("a b+c"));
        assert_eq!(form("name").0["name"], Param::Undefined);
        assert_eq!(form("x=1&x=2").0["x"], Param::List(vec!["1".into(), "2".into()]));
    }

    #[test]
    fn broken_escapes_stay() {
        assert_eq!(unescape("100%"), "100%");
        assert_eq!(unescape("%zz"), "%zz");
    }

    #[test]
    fn a_key_without_a_value_forgets_what_came_before_it() {
        assert_eq!(form("x=1&x").0["x"], Param::Undefined);
        assert_eq!(form("x&x=1").get("x"), Some("1"));
        assert_eq!(form("x=").get("x"), Some(""));
    }

    #[test]
    fn empty_pairs_at_the_end_are_nothing_and_others_are_an_empty_key() {
        assert!(form("").0.is_empty() && form("&&").0.is_empty());
        assert_eq!(form("a=1&&").0.len(), 1);
        assert_eq!(form("&a=1").0[""], Param::Undefined);
    }

    #[test]
    fn bodies_that_are_no_object_are_refused_where_perl_would_use_them_as_one() {
        let refused = |body: &str, query: &str| decode_json(body.as_bytes(), form(query)).expect_err(body);
        let server = "/usr/share/perl5/PVE/APIServer/AnyEvent.pm";
        assert_eq!(
            refused("[1]", "").message,
            format!("Not a HASH reference at {server} line 978.")
        );
        assert_eq!(
            refused("[1]", "a=1").message,
            format!("Not a HASH reference at {server} line 943.")
        );
        assert_eq!(
            refused("\"abc\"", "").message,
            format!("Can't use string (\"abc\") as a HASH ref while \"strict refs\" in use at {server} line 978.")
        );
        assert!(refused("0", "").message.contains("HTTPServer.pm") && !refused("0", "").bare);
        assert!(decode_json(b"null", form("")).is_ok_and(|p| p.0.is_empty()));
        assert!(decode_json(b"null", form("a=1")).is_ok_and(|p| p.get("a") == Some("1")));
        assert!(decode_json(b"{\"a\":2}", form("a=1")).is_ok_and(|p| p.get("a") == Some("1")));
    }
}
