//! Perl's loose scalars: `1`, `"1"`, `true`, `2048`, `"2048"`, `0.4`, `"0.4"`, `""` and `null` all occur for one and the same field,
//! depending on the PVE version and on what the field went through. They are absorbed here, and nowhere else.

use std::fmt;
use std::str::FromStr;

use serde::de::{Deserializer, Error as _, Visitor};

use super::ValueError;

/// Any JSON scalar.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Scalar {
    Null,
    Integer(i64),
    Float(f64),
    Text(String),
}

impl Scalar {
    /// The scalar as PVE would print it, `None` for null.
    pub(crate) fn text(self) -> Option<String> {
        match self {
            Self::Null => None,
            Self::Integer(n) => Some(n.to_string()),
            Self::Float(f) => Some(f.to_string()),
            Self::Text(text) => Some(text),
        }
    }

    fn unsigned(self) -> Result<Option<u64>, ValueError> {
        const EXPECTED: &str = "an unsigned number";
        match self {
            Self::Null => Ok(None),
            Self::Integer(n) => u64::try_from(n)
                .map(Some)
                .map_err(|_| ValueError::new(EXPECTED, n.to_string())),
            Self::Float(f) => whole(f).map(Some).ok_or_else(|| ValueError::new(EXPECTED, f.to_string())),
            Self::Text(text) if text.trim().is_empty() => Ok(None),
            Self::Text(text) => match text.trim().parse::<u64>() {
                Ok(n) => Ok(Some(n)),
                Err(_) => text
                    .trim()
                    .parse()
                    .ok()
                    .and_then(whole)
                    .map(Some)
                    .ok_or_else(|| ValueError::new(EXPECTED, text)),
            },
        }
    }

    fn float(self) -> Result<Option<f64>, ValueError> {
        match self {
            Self::Null => Ok(None),
            #[expect(
                clippy::cast_precision_loss,
                reason = "gauges: a rounded last digit of 2^53 bytes does not matter"
            )]
            Self::Integer(n) => Ok(Some(n as f64)),
            Self::Float(f) => Ok(Some(f)),
            Self::Text(text) if text.trim().is_empty() => Ok(None),
            Self::Text(text) => text.trim().parse().map(Some).map_err(|_| ValueError::new("a number", text)),
        }
    }

    fn flag(self) -> Result<Option<bool>, ValueError> {
        match self {
            Self::Null => Ok(None),
            Self::Integer(n) => Ok(Some(n != 0)),
            Self::Float(f) => Ok(Some(f != 0.0)),
            Self::Text(text) if text.is_empty() => Ok(None),
            Self::Text(text) => parse_flag(&text).map(Some).ok_or_else(|| ValueError::new("a flag", text)),
        }
    }
}

/// A boolean inside a property string: PVE accepts more spellings there than at the top level.
pub(crate) fn parse_flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "on" | "yes" | "true" => Some(true),
        "0" | "off" | "no" | "false" => Some(false),
        _ => None,
    }
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "checked to be whole and in range"
)]
fn whole(f: f64) -> Option<u64> {
    (f.fract() == 0.0 && f >= 0.0 && f < u64::MAX as f64).then_some(f as u64)
}

impl<'de> serde::Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ScalarVisitor)
    }
}

struct ScalarVisitor;

impl Visitor<'_> for ScalarVisitor {
    type Value = Scalar;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a scalar")
    }

    fn visit_unit<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_none<E>(self) -> Result<Scalar, E> {
        Ok(Scalar::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Scalar, E> {
        Ok(Scalar::Integer(i64::from(value)))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Scalar, E> {
        Ok(Scalar::Integer(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Scalar, E> {
        #[expect(clippy::cast_precision_loss, reason = "beyond 2^63 nothing PVE counts is exact")]
        Ok(i64::try_from(value).map_or(Scalar::Float(value as f64), Scalar::Integer))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Scalar, E> {
        Ok(Scalar::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Scalar, E> {
        Ok(Scalar::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Scalar, E> {
        Ok(Scalar::Text(value))
    }
}

fn scalar<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scalar, D::Error> {
    serde::Deserialize::deserialize(deserializer)
}

/// An absent, null or empty number is 0.
pub(crate) fn unsigned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    Ok(opt_unsigned(deserializer)?.unwrap_or_default())
}

pub(crate) fn opt_unsigned<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<u64>, D::Error> {
    scalar(deserializer)?.unsigned().map_err(D::Error::custom)
}

pub(crate) fn opt_float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    scalar(deserializer)?.float().map_err(D::Error::custom)
}

/// An absent, null or empty flag is false.
pub(crate) fn flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    Ok(opt_flag(deserializer)?.unwrap_or_default())
}

pub(crate) fn opt_flag<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<bool>, D::Error> {
    scalar(deserializer)?.flag().map_err(D::Error::custom)
}

/// An absent or null text is empty.
pub(crate) fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(scalar(deserializer)?.text().unwrap_or_default())
}

pub(crate) fn opt_text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(scalar(deserializer)?.text())
}

/// A value with a parser of its own. Null and blank are none: PVE stores one blank where a list was emptied.
pub(crate) fn opt_value<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err = ValueError>,
    D: Deserializer<'de>,
{
    match scalar(deserializer)?.text() {
        Some(text) if !text.trim().is_empty() => text.parse().map(Some).map_err(D::Error::custom),
        _ => Ok(None),
    }
}

/// `Deserialize` of a value from any scalar through its `FromStr`.
macro_rules! deserialize_from_text {
    ($($name:ty),+) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                $crate::value::loose::text(deserializer)?.parse().map_err(serde::de::Error::custom)
            }
        }
    )+};
}
pub(crate) use deserialize_from_text;

#[cfg(test)]
mod tests {
    use super::{flag, opt_float, opt_unsigned, text, unsigned};

    #[derive(serde::Deserialize)]
    struct Sample {
        #[serde(default, deserialize_with = "flag")]
        f: bool,
        #[serde(default, deserialize_with = "unsigned")]
        n: u64,
        #[serde(default, deserialize_with = "opt_unsigned")]
        o: Option<u64>,
        #[serde(default, deserialize_with = "opt_float")]
        x: Option<f64>,
        #[serde(default, deserialize_with = "text")]
        t: String,
    }

    fn sample(json: &str) -> Sample {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn perl_booleans_are_read() {
        for yes in ["1", "\"1\"", "true", "\"on\"", "2"] {
            assert!(sample(&format!("{{\"f\":{yes}}}")).f, "{yes}");
        }
        for no in ["0", "\"0\"", "false", "null", "\"\""] {
            assert!(!sample(&format!("{{\"f\":{no}}}")).f, "{no}");
        }
        assert!(!sample("{}").f);
    }

    #[test]
    fn numbers_come_as_numbers_or_as_text() {
        for json in ["2048", "\"2048\"", "2048.0", "\"2048.0\"", "\" 2048 \""] {
            assert_eq!(sample(&format!("{{\"n\":{json}}}")).n, 2048, "{json}");
        }
        assert_eq!(sample("{\"o\":null}").o, None);
        assert_eq!(sample("{\"o\":\"\"}").o, None);
        assert_eq!(sample("{\"x\":\"0.4\"}").x, Some(0.4));
        assert_eq!(sample("{\"x\":1}").x, Some(1.0));
    }

    #[test]
    fn a_number_is_a_text_where_a_text_is_expected() {
        assert_eq!(sample("{\"t\":101}").t, "101");
        assert_eq!(sample("{\"t\":null}").t, "");
    }

    #[test]
    fn what_is_no_number_is_refused() {
        for json in ["-1", "\"x\"", "1.5", "\"1e999\"", "[]", "{}"] {
            assert!(
                serde_json::from_str::<Sample>(&format!("{{\"n\":{json}}}")).is_err(),
                "{json}"
            );
        }
    }
}
