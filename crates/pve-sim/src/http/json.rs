//! JSON bodies, read as JSON::XS reads them: its numbers, its refusals and where it says they are.

use indexmap::IndexMap;

use crate::schema::Param;

/// Deeper nesting is refused.
const MAX_DEPTH: usize = 512;

/// What stands at the top of a body.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Top {
    Object(IndexMap<String, Param>),
    /// An array, or `true`: a reference that is no hash. `false` is one that counts as nothing.
    Reference {
        truthy: bool,
    },
    Text(String),
    Null,
}

/// Reads a whole body. The error has no source line yet.
pub(super) fn decode(body: &[u8]) -> Result<Top, String> {
    let mut reader = Reader {
        bytes: body,
        at: 0,
        depth: 0,
    };
    reader.blanks();
    let top = reader.top().map_err(|text| reader.fail(text))?;
    reader.blanks();
    match reader.peek() {
        0 => Ok(top),
        _ => Err(reader.fail("garbage after JSON object")),
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    depth: usize,
}

type Read<T> = Result<T, &'static str>;

impl Reader<'_> {
    /// The next byte; 0 at the end, as in a C string.
    fn peek(&self) -> u8 {
        self.bytes.get(self.at).copied().unwrap_or(0)
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), b' ' | b'\t' | b'\n' | b'\r') {
            self.at += 1;
        }
    }

    fn fail(&self, text: &str) -> String {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let before = if rest.is_empty() {
            "(end of string)".to_string()
        } else {
            display(rest)
        };
        format!("{text}, at character offset {} (before \"{before}\")", self.at)
    }

    fn top(&mut self) -> Read<Top> {
        Ok(match self.peek() {
            b'{' => Top::Object(self.object()?),
            _ => match self.value()? {
                Param::List(_) | Param::Bool(true) | Param::Hash => Top::Reference { truthy: true },
                Param::Bool(false) => Top::Reference { truthy: false },
                Param::Text(text) => Top::Text(text),
                Param::Undefined => Top::Null,
            },
        })
    }

    fn value(&mut self) -> Read<Param> {
        self.blanks();
        match self.peek() {
            b'"' => {
                self.at += 1;
                self.string().map(Param::Text)
            }
            b'[' => self.array().map(Param::List),
            b'{' => self.object().map(|_| Param::Hash),
            b'-' | b'0'..=b'9' => self.number().map(Param::Text),
            b't' => self.word("true", "'true' expected").map(|()| Param::Bool(true)),
            b'f' => self.word("false", "'false' expected").map(|()| Param::Bool(false)),
            b'n' => self.word("null", "'null' expected").map(|()| Param::Undefined),
            _ => Err("malformed JSON string, neither tag, array, object, number, string or atom"),
        }
    }

    fn word(&mut self, word: &str, expected: &'static str) -> Read<()> {
        if !self.bytes[self.at..].starts_with(word.as_bytes()) {
            return Err(expected);
        }
        self.at += word.len();
        Ok(())
    }

    fn deeper(&mut self) -> Read<()> {
        self.at += 1;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err("json text or perl structure exceeds maximum nesting level (max_depth set too low?)");
        }
        self.blanks();
        Ok(())
    }

    fn array(&mut self) -> Read<Vec<Param>> {
        self.deeper()?;
        let mut items = Vec::new();
        if self.peek() != b']' {
            loop {
                items.push(self.value()?);
                self.blanks();
                match self.peek() {
                    b']' => break,
                    b',' => self.at += 1,
                    _ => return Err(", or ] expected while parsing array"),
                }
                self.blanks();
            }
        }
        self.at += 1;
        self.depth -= 1;
        Ok(items)
    }

    /// A name that comes twice has its last value.
    fn object(&mut self) -> Read<IndexMap<String, Param>> {
        self.deeper()?;
        let mut members = IndexMap::new();
        if self.peek() != b'}' {
            loop {
                self.expect(b'"', "'\"' expected")?;
                let name = self.string()?;
                self.blanks();
                self.expect(b':', "':' expected")?;
                let value = self.value()?;
                members.insert(name, value);
                self.blanks();
                match self.peek() {
                    b'}' => break,
                    b',' => self.at += 1,
                    _ => return Err(", or } expected while parsing object/hash"),
                }
                self.blanks();
            }
        }
        self.at += 1;
        self.depth -= 1;
        Ok(members)
    }

    fn expect(&mut self, byte: u8, text: &'static str) -> Read<()> {
        if self.peek() != byte {
            return Err(text);
        }
        self.at += 1;
        Ok(())
    }

    /// What follows an opening quote.
    fn string(&mut self) -> Read<String> {
        let mut out = String::new();
        loop {
            let byte = self.peek();
            match byte {
                b'"' => {
                    self.at += 1;
                    return Ok(out);
                }
                b'\\' => {
                    self.at += 1;
                    self.escape(&mut out)?;
                }
                0x20..=0x7f => {
                    out.push(byte as char);
                    self.at += 1;
                }
                0 => return Err("unexpected end of string while parsing JSON string"),
                0x80.. => self.unicode(&mut out)?,
                _ => return Err("invalid character encountered while parsing JSON string"),
            }
        }
    }

    fn unicode(&mut self, out: &mut String) -> Read<()> {
        let rest = &self.bytes[self.at..];
        let end = rest.len().min(4);
        let valid = (2..=end).find_map(|n| std::str::from_utf8(&rest[..n]).ok());
        let text = valid.ok_or("malformed UTF-8 character in JSON string")?;
        out.push_str(text);
        self.at += text.len();
        Ok(())
    }

    fn escape(&mut self, out: &mut String) -> Read<()> {
        let plain = match self.peek() {
            byte @ (b'\\' | b'/' | b'"') => byte as char,
            b'b' => '\u{8}',
            b't' => '\t',
            b'n' => '\n',
            b'f' => '\u{c}',
            b'r' => '\r',
            b'u' => {
                self.at += 1;
                return self.code_point(out);
            }
            _ => return Err("illegal backslash escape sequence in string"),
        };
        out.push(plain);
        self.at += 1;
        Ok(())
    }

    fn code_point(&mut self, out: &mut String) -> Read<()> {
        let first = self.hex4()?;
        let point = match first {
            0xd800..0xdc00 => {
                if !self.bytes[self.at..].starts_with(b"\\u") {
                    return Err("missing low surrogate character in surrogate pair");
                }
                self.at += 2;
                let second = self.hex4()?;
                if !(0xdc00..0xe000).contains(&second) {
                    return Err("surrogate pair expected");
                }
                0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00)
            }
            0xdc00..0xe000 => return Err("missing high surrogate character in surrogate pair"),
            other => other,
        };
        out.push(char::from_u32(point).unwrap_or('\u{fffd}'));
        Ok(())
    }

    fn hex4(&mut self) -> Read<u32> {
        let mut value = 0;
        for _ in 0..4 {
            let digit = (self.peek() as char).to_digit(16);
            value = value * 16 + digit.ok_or("malformed \\uXXXX character in JSON string")?;
            self.at += 1;
        }
        Ok(value)
    }

    fn digits(&mut self) -> bool {
        let start = self.at;
        while self.peek().is_ascii_digit() {
            self.at += 1;
        }
        self.at > start
    }

    /// A number, as Perl would write it again.
    fn number(&mut self) -> Read<String> {
        let start = self.at;
        if self.peek() == b'-' {
            self.at += 1;
        }
        if self.peek() == b'0' {
            self.at += 1;
            if self.peek().is_ascii_digit() {
                return Err("malformed number (leading zero must not be followed by another digit)");
            }
        } else if !self.digits() {
            return Err("malformed number (no digits after initial minus)");
        }
        let whole = self.at;
        if self.peek() == b'.' {
            self.at += 1;
            if !self.digits() {
                return Err("malformed number (no digits after decimal point)");
            }
        }
        if matches!(self.peek(), b'e' | b'E') {
            self.at += 1;
            if matches!(self.peek(), b'-' | b'+') {
                self.at += 1;
            }
            if !self.digits() {
                return Err("malformed number (no digits after exp sign)");
            }
        }
        let text = String::from_utf8_lossy(&self.bytes[start..self.at]).into_owned();
        if self.at == whole {
            return Ok(integer(text));
        }
        Ok(text.parse().map_or(text, print_float))
    }
}

/// Whole numbers stay as they are, however long; only minus zero is none.
fn integer(text: String) -> String {
    if text == "-0" { "0".into() } else { text }
}

/// Perl's `%.15g`.
fn print_float(number: f64) -> String {
    if number == 0.0 {
        return "0".into();
    }
    let scientific = format!("{number:.14e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if (-5..15).contains(&exponent) {
        let places = usize::try_from(14 - exponent).unwrap_or(0);
        return trim(&format!("{number:.places$}"));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
}

/// The next twenty characters, odd ones escaped.
fn display(rest: &[u8]) -> String {
    let mut out = String::new();
    for c in String::from_utf8_lossy(rest).chars() {
        if out.len() >= 20 {
            out.push_str("...");
            break;
        }
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{c}' => out.push_str("\\f"),
            '\u{7}' => out.push_str("\\a"),
            '\u{1b}' => out.push_str("\\e"),
            '\\' => out.push_str("\\\\"),
            ' '..='~' => out.push(c),
            _ => out.push_str(&format!("\\x{{{:x}}}", u32::from(c))),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::{Top, decode, print_float};
    use crate::schema::Param;

    fn member(text: &str) -> Param {
        match decode(format!("{{\"k\":{text}}}").as_bytes()) {
            Ok(Top::Object(mut members)) => members.shift_remove("k").expect("a member"),
            other => panic!("{text}: {other:?}"),
        }
    }

    #[test]
    fn a_number_is_written_as_perl_writes_it() {
        for (given, text) in [
            ("2", "2"),
            ("2.0", "2"),
            ("1e3", "1000"),
            ("1.10", "1.1"),
            ("-0", "0"),
            ("-7", "-7"),
            ("0.1", "0.1"),
            ("1E-7", "1e-07"),
            ("1e20", "1e+20"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
            ("0.30000000000000004", "0.3"),
        ] {
            assert_eq!(member(given), Param::Text(text.into()), "{given}");
        }
        assert_eq!(print_float(1.5e15), "1.5e+15");
    }

    #[test]
    fn strings_keep_what_their_escapes_say() {
        for (given, text) in [
            (r#""a\/b\n\u00e4""#, "a/b\nä"),
            (r#""\ud83d\ude00""#, "😀"),
            ("\"ü\"", "ü"),
            (r#""""#, ""),
        ] {
            assert_eq!(member(given), Param::Text(text.into()), "{given}");
        }
    }

    #[test]
    fn references_words_and_doubles() {
        assert_eq!(member("true"), Param::Bool(true));
        assert_eq!(member("null"), Param::Undefined);
        assert_eq!(member("{\"a\":[{}]}"), Param::Hash);
        assert_eq!(
            member("[1,\"b\" , null]"),
            Param::List(vec!["1".into(), "b".into(), Param::Undefined])
        );
        assert_eq!(member("1,\"k\":2"), Param::Text("2".into()));
    }

    #[test]
    fn what_is_no_object_is_told_apart() {
        assert_eq!(decode(b"[]"), Ok(Top::Reference { truthy: true }));
        assert_eq!(decode(b"true"), Ok(Top::Reference { truthy: true }));
        assert_eq!(decode(b"false"), Ok(Top::Reference { truthy: false }));
        assert_eq!(decode(b" 5 "), Ok(Top::Text("5".into())));
        assert_eq!(decode(b"\"x\""), Ok(Top::Text("x".into())));
        assert_eq!(decode(b"null"), Ok(Top::Null));
    }

    #[test]
    fn refusals_name_the_place_and_what_stands_there() {
        let malformed = "malformed JSON string, neither tag, array, object, number, string or atom";
        for (given, text) in [
            ("", format!("{malformed}, at character offset 0 (before \"(end of string)\")")),
            ("cores=2", format!("{malformed}, at character offset 0 (before \"cores=2\")")),
            ("{\"a\":}", format!("{malformed}, at character offset 5 (before \"}}\")")),
            ("[1,]", format!("{malformed}, at character offset 3 (before \"]\")")),
            (
                "{",
                "'\"' expected, at character offset 1 (before \"(end of string)\")".into(),
            ),
            ("{a:1}", "'\"' expected, at character offset 1 (before \"a:1}\")".into()),
            ("{\"a\":1,}", "'\"' expected, at character offset 7 (before \"}\")".into()),
            ("{\"a\" 1}", "':' expected, at character offset 5 (before \"1}\")".into()),
            (
                "{\"cores\":2",
                ", or } expected while parsing object/hash, at character offset 10 (before \"(end of string)\")".into(),
            ),
            (
                "[1 2]",
                ", or ] expected while parsing array, at character offset 3 (before \"2]\")".into(),
            ),
            (
                "{} x",
                "garbage after JSON object, at character offset 3 (before \"x\")".into(),
            ),
            (
                "{\"a\":01}",
                "malformed number (leading zero must not be followed by another digit), at character offset 6 (before \"1}\")"
                    .into(),
            ),
            (
                "{\"a\":-}",
                "malformed number (no digits after initial minus), at character offset 6 (before \"}\")".into(),
            ),
            (
                "{\"a\":1.}",
                "malformed number (no digits after decimal point), at character offset 7 (before \"}\")".into(),
            ),
            (
                "{\"a\":nul}",
                "'null' expected, at character offset 5 (before \"nul}\")".into(),
            ),
            (
                "{\"a\":\"b",
                "unexpected end of string while parsing JSON string, at character offset 7 (before \"(end of string)\")".into(),
            ),
            (
                "{\"a\":\"\\x\"}",
                "illegal backslash escape sequence in string, at character offset 7 (before \"x\"}\")".into(),
            ),
            (
                "this is a body that is no JSON\n",
                "'true' expected, at character offset 0 (before \"this is a body that ...\")".into(),
            ),
        ] {
            assert_eq!(decode(given.as_bytes()), Err(text), "{given}");
        }
    }
}
