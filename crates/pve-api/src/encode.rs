//! Percent-encoding.

use std::fmt::Write as _;

/// Encodes all but `A-Za-z0-9-_.~`.
///
/// PVE splits form bodies at `;` too and cuts a value at a second `=`, and takes `+` for a blank, so nothing else may stay as it is.
pub(crate) fn component(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            // Writing into a String cannot fail.
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// `None` when a `%` is not followed by two hex digits or the bytes are not UTF-8.
pub(crate) fn decode_component(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'%' {
            let pair = [rest.next()?, rest.next()?];
            bytes.extend(hex::decode(pair).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::{component, decode_component};

    #[test]
    fn everything_pve_splits_at_is_encoded() {
        assert_eq!(component("order=scsi0;net0,a+b c&d"), "order%3Dscsi0%3Bnet0%2Ca%2Bb%20c%26d");
        assert_eq!(component("grüße~"), "gr%C3%BC%C3%9Fe~");
    }

    #[test]
    fn a_broken_escape_is_no_text() {
        assert_eq!(decode_component("a%20b").as_deref(), Some("a b"));
        for text in ["%", "%2", "%zz", "%ff"] {
            assert_eq!(decode_component(text), None, "{text}");
        }
    }
}
