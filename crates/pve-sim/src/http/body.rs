//! Parameters from queries, forms and JSON, decoded as pveproxy decodes them.

use serde_json::Value;

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
pub fn decode_form(text: &str, params: &mut Params) {
    for pair in text.split(['&', ';']).filter(|p| !p.is_empty()) {
        let mut parts = pair.split('=');
        let key = unescape(&parts.next().unwrap_or_default().replace('+', " "));
        let value = parts.next().map(|v| Param::Text(unescape(&v.replace('+', " "))));
        merge(params, key, value.unwrap_or(Param::Undefined));
    }
}

/// A repeated key becomes a list.
fn merge(params: &mut Params, key: String, value: Param) {
    match params.0.get_mut(&key) {
        Some(Param::List(items)) => items.push(value),
        Some(present) => *present = Param::List(vec![std::mem::replace(present, Param::Undefined), value]),
        None => drop(params.0.insert(key, value)),
    }
}

/// A JSON object's members.
pub fn decode_json(body: &[u8], params: &mut Params) -> Result<(), Die> {
    let malformed = |what: &str| Die::bare(500, format!("malformed JSON string, {what}"));
    match serde_json::from_slice::<Value>(body) {
        Ok(Value::Object(members)) => {
            params
                .0
                .extend(members.into_iter().map(|(name, value)| (name, Param::from(value))));
            Ok(())
        }
        Ok(_) => Err(malformed("object expected")),
        Err(_) => {
            let at = String::from_utf8_lossy(body).chars().take(20).collect::<String>();
            Err(malformed(&format!(
                "neither tag, array, object, number, string or atom, at character offset 0 (before \"{at}\")"
            )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{decode_form, unescape};
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
}
