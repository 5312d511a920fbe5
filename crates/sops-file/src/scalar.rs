//! What a scalar means to sops (that is: to its YAML library), and how it is spelt in clear.

use crate::cipher::Kind;

/// The type of an unquoted scalar; `None` is null.
pub fn resolve(text: &str) -> Option<Kind> {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => None,
        "true" | "True" | "TRUE" | "false" | "False" | "FALSE" => Some(Kind::Bool),
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" => {
            Some(Kind::Float)
        }
        _ if !text.starts_with(|first: char| first.is_ascii_digit() || "+-.".contains(first)) => Some(Kind::Text),
        _ if time(text).is_some() => Some(Kind::Time),
        _ if int(text).is_some() => Some(Kind::Int),
        _ if float(text).is_some() => Some(Kind::Float),
        _ => Some(Kind::Text),
    }
}

/// The bytes that are encrypted and go into the MAC.
pub fn plain_bytes(text: &str, kind: Kind) -> String {
    let canonical = match kind {
        Kind::Bool => Some(if text.eq_ignore_ascii_case("true") {
            "True".to_owned()
        } else {
            "False".to_owned()
        }),
        Kind::Int => int(text),
        Kind::Float => float(text),
        Kind::Time => time(text),
        Kind::Text | Kind::Bytes | Kind::Comment => None,
    };
    canonical.unwrap_or_else(|| text.to_owned())
}

/// Decimal, 0b, 0o, 0x and the old leading-zero octal, underscores anywhere.
fn int(text: &str) -> Option<String> {
    let plain = text.replace('_', "");
    let (sign, digits) = match plain.strip_prefix('-') {
        Some(rest) => ("-", rest),
        None => ("", plain.strip_prefix('+').unwrap_or(&plain)),
    };
    if !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return None;
    }
    let (radix, body) = match digits.get(..2) {
        Some("0b") => (2, &digits[2..]),
        Some("0o") => (8, &digits[2..]),
        Some("0x") => (16, &digits[2..]),
        Some(_) if digits.starts_with('0') => (8, &digits[1..]),
        _ => (10, digits),
    };
    if body.starts_with(['+', '-']) {
        return None;
    }
    u64::from_str_radix(body, radix).ok().map(|number| {
        if number == 0 {
            "0".to_owned()
        } else {
            format!("{sign}{number}")
        }
    })
}

/// The shortest decimal without exponent.
fn float(text: &str) -> Option<String> {
    let lower = text.to_ascii_lowercase();
    match lower.as_str() {
        ".nan" => return Some("NaN".into()),
        ".inf" | "+.inf" => return Some("+Inf".into()),
        "-.inf" => return Some("-Inf".into()),
        _ => {}
    }
    let plain = text.replace('_', "");
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let unsigned = plain.strip_prefix(['+', '-']).unwrap_or(&plain);
    let (mantissa, exponent) = unsigned
        .split_once(['e', 'E'])
        .map_or((unsigned, None), |(mantissa, exponent)| (mantissa, Some(exponent)));
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_fits = exponent.is_none_or(|part| {
        let part = part.strip_prefix(['+', '-']).unwrap_or(part);
        !part.is_empty() && digits(part)
    });
    let fits = digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()) && exponent_fits;
    plain
        .parse::<f64>()
        .ok()
        .filter(|number| fits && number.is_finite())
        .map(|number| number.to_string())
}

/// `2026-11-15`, optionally with a time and a zone, as RFC 3339.
fn time(text: &str) -> Option<String> {
    let (date, rest) = text.split_at(text.find(['T', 't', ' ']).unwrap_or(text.len()));
    let date: jiff::civil::Date = padded_date(date)?.parse().ok()?;
    let rest = rest.trim_start_matches(['T', 't', ' ']);
    if rest.is_empty() {
        return Some(format!("{date}T00:00:00Z"));
    }
    let at = rest.find(['Z', 'z', '+', '-', ' ']).unwrap_or(rest.len());
    let (clock, zone) = rest.split_at(at);
    let clock: jiff::civil::Time = clock.parse().ok().filter(|_| clock.split(':').count() == 3)?;
    let zone = match zone.trim() {
        "" | "Z" | "z" => "Z".to_owned(),
        zone if zone.len() == 3 => format!("{zone}:00"),
        zone => zone.to_owned(),
    };
    Some(format!("{date}T{clock}{zone}"))
}

fn padded_date(date: &str) -> Option<String> {
    let parts: Vec<&str> = date.split('-').collect();
    let [year, month, day] = parts.as_slice() else { return None };
    let number = |part: &str| part.parse::<u32>().ok();
    (year.len() == 4).then_some(())?;
    Some(format!("{year}-{:02}-{:02}", number(month)?, number(day)?))
}

/// How a decrypted value is written so that it is read back as what it was.
pub fn spelt(plain: &str, kind: Kind) -> String {
    match kind {
        Kind::Bool => plain.to_ascii_lowercase(),
        Kind::Int | Kind::Time => plain.to_owned(),
        Kind::Float => match plain {
            "NaN" => ".nan".into(),
            "+Inf" => ".inf".into(),
            "-Inf" => "-.inf".into(),
            // A float without a point would come back as an integer.
            _ if plain.contains('.') => plain.to_owned(),
            _ => format!("{plain}.0"),
        },
        Kind::Comment => plain.to_owned(),
        Kind::Text | Kind::Bytes if is_safe(plain) => plain.to_owned(),
        Kind::Text | Kind::Bytes => quoted(plain),
    }
}

/// A text that means itself without quotes, wherever it stands.
fn is_safe(text: &str) -> bool {
    let word = |letter: char| letter.is_ascii_alphanumeric() || "_-./+=".contains(letter);
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.chars().all(word)
        && resolve(text) == Some(Kind::Text)
        && !is_legacy(text)
}

/// Words that readers of YAML 1.1 take for booleans.
fn is_legacy(text: &str) -> bool {
    matches!(text.to_ascii_lowercase().as_str(), "y" | "n" | "yes" | "no" | "on" | "off")
}

fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for letter in text.chars() {
        match letter {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if control.is_control() || matches!(control, '\u{85}' | '\u{2028}' | '\u{2029}' | '\u{feff}') => {
                out.push_str(&format!("\\U{:08X}", u32::from(control)));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_booleans_and_times_have_one_canonical_form() {
        for (text, kind, plain) in [
            ("true", Kind::Bool, "True"),
            ("FALSE", Kind::Bool, "False"),
            ("42", Kind::Int, "42"),
            ("0x1F", Kind::Int, "31"),
            ("0o17", Kind::Int, "15"),
            ("-7", Kind::Int, "-7"),
            ("1.0", Kind::Float, "1"),
            ("1.50", Kind::Float, "1.5"),
            ("1e3", Kind::Float, "1000"),
            (".inf", Kind::Float, "+Inf"),
            ("2026-11-15", Kind::Time, "2026-11-15T00:00:00Z"),
            ("2026-11-15T12:00:00Z", Kind::Time, "2026-11-15T12:00:00Z"),
            ("yes", Kind::Text, "yes"),
            ("1.2.3", Kind::Text, "1.2.3"),
            ("-", Kind::Text, "-"),
        ] {
            assert_eq!(resolve(text), Some(kind), "{text}");
            assert_eq!(plain_bytes(text, kind), plain, "{text}");
        }
        assert_eq!(resolve("~"), None);
    }
}
