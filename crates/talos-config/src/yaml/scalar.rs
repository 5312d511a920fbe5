//! What a scalar means, and when it needs quotes to keep meaning that.

/// A scalar with the type it has to its readers. The text of everything but a string is in canonical form when we made it,
/// and as found when we read it.
#[derive(Clone, PartialEq, Eq)]
pub struct Scalar {
    pub text: String,
    pub kind: ScalarKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScalarKind {
    Null,
    Bool,
    Int,
    Float,
    Timestamp,
    Text,
}

impl Scalar {
    pub fn text(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            kind: ScalarKind::Text,
        }
    }

    pub fn null() -> Self {
        Self {
            text: "null".to_owned(),
            kind: ScalarKind::Null,
        }
    }

    pub fn bool(flag: bool) -> Self {
        Self {
            text: flag.to_string(),
            kind: ScalarKind::Bool,
        }
    }

    pub fn int(number: i128) -> Self {
        Self {
            text: number.to_string(),
            kind: ScalarKind::Int,
        }
    }

    /// A scalar written without quotes.
    pub fn plain(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            kind: resolve(text),
        }
    }

    pub fn as_bool(&self) -> Option<bool> {
        (self.kind == ScalarKind::Bool).then(|| self.text.eq_ignore_ascii_case("true"))
    }

    pub fn as_int(&self) -> Option<i128> {
        if self.kind == ScalarKind::Int {
            parse_int(&self.text)
        } else {
            None
        }
    }

    pub fn is_zero(&self) -> bool {
        match self.kind {
            ScalarKind::Null => true,
            ScalarKind::Bool => self.as_bool() == Some(false),
            ScalarKind::Int => self.as_int() == Some(0),
            ScalarKind::Float => self.text.parse::<f64>().is_ok_and(|number| number == 0.0),
            ScalarKind::Timestamp => false,
            ScalarKind::Text => self.text.is_empty(),
        }
    }
}

/// The type of an unquoted scalar.
pub fn resolve(text: &str) -> ScalarKind {
    match text {
        "" | "~" | "null" | "Null" | "NULL" => ScalarKind::Null,
        "true" | "True" | "TRUE" | "false" | "False" | "FALSE" => ScalarKind::Bool,
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF" | "-.inf" | "-.Inf" | "-.INF" => {
            ScalarKind::Float
        }
        _ => resolve_number(text),
    }
}

fn resolve_number(text: &str) -> ScalarKind {
    let numeric_start = text.starts_with(|first: char| first.is_ascii_digit() || matches!(first, '+' | '-' | '.'));
    if !numeric_start {
        ScalarKind::Text
    } else if is_timestamp(text) {
        ScalarKind::Timestamp
    } else if parse_int(text).is_some() {
        ScalarKind::Int
    } else if is_float(&text.replace('_', "")) {
        ScalarKind::Float
    } else {
        ScalarKind::Text
    }
}

/// Decimal, 0b, 0o, 0x and the old leading-zero octal, with underscores anywhere.
pub fn parse_int(text: &str) -> Option<i128> {
    let plain = text.replace('_', "");
    let (negative, digits) = match plain.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, plain.strip_prefix('+').unwrap_or(&plain)),
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
    let magnitude = i128::from(u64::from_str_radix(body, radix).ok()?);
    Some(if negative { -magnitude } else { magnitude })
}

fn is_float(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let digits = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_fits = exponent.is_none_or(|part| {
        let part = part.strip_prefix(['+', '-']).unwrap_or(part);
        !part.is_empty() && digits(part)
    });
    digits(whole) && digits(fraction) && !(whole.is_empty() && fraction.is_empty()) && exponent_fits
}

/// `2024-01-01`, optionally with a time. Month and day may have one digit.
fn is_timestamp(text: &str) -> bool {
    let date_end = text.find(['T', 't', ' ']).unwrap_or(text.len());
    let mut parts = text[..date_end].splitn(3, '-');
    let mut number = |widths: std::ops::RangeInclusive<usize>| {
        parts
            .next()
            .filter(|part| widths.contains(&part.len()))
            .and_then(|part| part.parse::<u32>().ok())
    };
    let (Some(_), Some(month), Some(day)) = (number(4..=4), number(1..=2), number(1..=2)) else {
        return false;
    };
    let time = text[date_end..].trim_start_matches(['T', 't', ' ']);
    let has_time = time.is_empty() || time.split(':').count() >= 3;
    (1..=12).contains(&month) && (1..=31).contains(&day) && has_time
}

/// Words that YAML 1.1 readers take for booleans, base-60 numbers or merges. They are written in single quotes.
pub fn is_legacy_word(text: &str) -> bool {
    let lower = text.to_ascii_lowercase();
    let bool_word = matches!(lower.as_str(), "y" | "yes" | "on" | "n" | "no" | "off") && is_uniform_case(text);
    bool_word || text == "<<" || is_base60(text)
}

/// `on`, `On`, `ON`, but not `oN`.
fn is_uniform_case(text: &str) -> bool {
    let rest = text.get(1..).unwrap_or_default();
    let first_is_lower = text.starts_with(|first: char| first.is_ascii_lowercase());
    rest.bytes().all(|byte| byte.is_ascii_lowercase()) || (!first_is_lower && rest.bytes().all(|byte| byte.is_ascii_uppercase()))
}

/// Sexagesimal numbers such as `1:30`.
fn is_base60(text: &str) -> bool {
    let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
    let mut groups = unsigned.split(':');
    let head = groups.next().unwrap_or_default();
    let head_fits =
        head.starts_with(|first: char| first.is_ascii_digit()) && head.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    let mut count = 0;
    let groups_fit = groups.all(|group| {
        count += 1;
        let whole = group.split('.').next().unwrap_or_default();
        let fraction_fits = group[whole.len()..]
            .trim_start_matches('.')
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'_');
        let fits = match whole.as_bytes() {
            [digit] => digit.is_ascii_digit(),
            [tens, digit] => (b'0'..=b'5').contains(tens) && digit.is_ascii_digit(),
            _ => false,
        };
        fits && fraction_fits
    });
    head_fits && groups_fit && count > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unquoted_scalars_get_the_type_that_talos_gives_them() {
        let cases = [
            ("", ScalarKind::Null),
            ("~", ScalarKind::Null),
            ("True", ScalarKind::Bool),
            ("on", ScalarKind::Text),
            ("1_000", ScalarKind::Int),
            ("0x1f", ScalarKind::Int),
            ("0o17", ScalarKind::Int),
            ("1.5", ScalarKind::Float),
            ("1e3", ScalarKind::Float),
            (".inf", ScalarKind::Float),
            ("2024-01-01", ScalarKind::Timestamp),
            ("10.0.0.1", ScalarKind::Text),
            ("10.0.0.1/24", ScalarKind::Text),
            ("1:30", ScalarKind::Text),
            ("-", ScalarKind::Text),
            (".", ScalarKind::Text),
            ("bc:24:11:00:00:01", ScalarKind::Text),
        ];
        for (text, kind) in cases {
            assert_eq!(resolve(text), kind, "{text:?}");
        }
    }

    #[test]
    fn words_of_older_yaml_are_recognised() {
        for word in ["on", "Off", "YES", "n", "N", "1:30", "<<"] {
            assert!(is_legacy_word(word), "{word}");
        }
        for word in ["oN", "one", "1:77", "a:30", "10.0.0.1", ":"] {
            assert!(!is_legacy_word(word), "{word}");
        }
    }
}
