use super::Fault;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Token {
    Int,
    Uint,
    Float,
    Text,
    Bytes,
    Name(String),
    /// Operators and brackets.
    Sign(&'static str),
    End,
}

/// A token, the character it begins at and its text.
#[derive(Debug, Clone)]
pub struct Spanned {
    pub token: Token,
    pub at: usize,
    pub text: String,
}

/// Longer signs first.
const SIGNS: [&str; 24] = [
    "&&", "||", "==", "!=", "<=", ">=", "<", ">", "+", "-", "*", "/", "%", "!", "?", ":", ".", ",", "(", ")", "[", "]", "{", "}",
];

pub fn tokens(source: &str) -> Result<Vec<Spanned>, Fault> {
    let characters: Vec<char> = source.chars().collect();
    let mut found = Vec::new();
    let mut at = 0;
    while let Some(c) = characters.get(at) {
        if c.is_whitespace() {
            at += 1;
            continue;
        }
        let (token, length) = next(&characters, at)?;
        let text = characters[at..at + length].iter().collect();
        found.push(Spanned { token, at, text });
        at += length;
    }
    found.push(Spanned {
        token: Token::End,
        at: characters.len(),
        text: "<EOF>".to_owned(),
    });
    Ok(found)
}

fn next(characters: &[char], at: usize) -> Result<(Token, usize), Fault> {
    let rest = &characters[at..];
    let is_quote = |c: Option<&char>| matches!(c, Some('"' | '\''));
    match rest[0] {
        '"' | '\'' => Ok((Token::Text, quoted(rest, at, 0)?)),
        'b' | 'B' if is_quote(rest.get(1)) => Ok((Token::Bytes, quoted(rest, at, 1)?)),
        'r' | 'R' if is_quote(rest.get(1)) => Ok((Token::Text, quoted(rest, at, 1)?)),
        c if c.is_ascii_digit() => Ok(number(rest)),
        c if c.is_alphabetic() || c == '_' => {
            let name: String = rest.iter().take_while(|c| c.is_alphanumeric() || **c == '_').collect();
            let length = name.chars().count();
            Ok((Token::Name(name), length))
        }
        _ => sign(rest).ok_or_else(|| unknown(rest, at)),
    }
}

fn sign(rest: &[char]) -> Option<(Token, usize)> {
    let matches = |sign: &&&str| sign.chars().eq(rest.iter().take(sign.len()).copied());
    SIGNS.iter().find(matches).map(|sign| (Token::Sign(sign), sign.len()))
}

fn unknown(rest: &[char], at: usize) -> Fault {
    let shown: String = rest.iter().take(2).collect();
    Fault::new(at, format!("Syntax error: token recognition error at: '{shown}'"))
}

/// The length of a quoted text with its prefix.
fn quoted(rest: &[char], at: usize, prefix: usize) -> Result<usize, Fault> {
    let quote = rest[prefix];
    let mut index = prefix + 1;
    while let Some(c) = rest.get(index) {
        match c {
            '\\' => index += 1,
            c if *c == quote => return Ok(index + 1),
            _ => {}
        }
        index += 1;
    }
    let shown: String = rest.iter().collect();
    Err(Fault::new(at, format!("Syntax error: token recognition error at: '{shown}'")))
}

fn number(rest: &[char]) -> (Token, usize) {
    let is_hex = rest.starts_with(&['0', 'x']);
    let digits = rest
        .iter()
        .take_while(|c| c.is_ascii_digit() || is_hex && c.is_ascii_hexdigit() || is_hex && **c == 'x')
        .count();
    let after = |index: usize| rest.get(index).copied().unwrap_or(' ');
    if !is_hex && after(digits) == '.' && after(digits + 1).is_ascii_digit() {
        let fraction = rest[digits + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
        return (Token::Float, digits + 1 + fraction);
    }
    if matches!(after(digits), 'u' | 'U') {
        (Token::Uint, digits + 1)
    } else {
        (Token::Int, digits)
    }
}
