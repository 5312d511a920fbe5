//! `$(( … ))`, after its parameters are expanded.

/// Evaluates an expression; names of variables are looked up by `value`.
pub(crate) fn evaluate(text: &str, value: &dyn Fn(&str) -> i64) -> Result<i64, String> {
    let mut cursor = Cursor {
        text: text.chars().filter(|c| !c.is_whitespace()).collect(),
        at: 0,
        value,
    };
    if cursor.text.is_empty() {
        return Ok(0);
    }
    let result = cursor.level(0)?;
    if cursor.at < cursor.text.len() {
        return Err(format!("arithmetic syntax error in `{text}'"));
    }
    Ok(result)
}

struct Cursor<'a> {
    text: Vec<char>,
    at: usize,
    value: &'a dyn Fn(&str) -> i64,
}

/// Operators from weak to strong; longer ones first within a level.
const LEVELS: [&[&str]; 7] = [
    &["||"],
    &["&&"],
    &["==", "!="],
    &["<=", ">=", "<", ">"],
    &["+", "-"],
    &["*", "/", "%"],
    &[],
];

impl Cursor<'_> {
    fn ahead(&self, sign: &str) -> bool {
        sign.chars()
            .enumerate()
            .all(|(index, c)| self.text.get(self.at + index) == Some(&c))
    }

    fn level(&mut self, level: usize) -> Result<i64, String> {
        let Some(signs) = LEVELS.get(level).filter(|signs| !signs.is_empty()) else {
            return self.unary();
        };
        let mut left = self.level(level + 1)?;
        while let Some(sign) = signs.iter().find(|sign| self.ahead(sign)) {
            self.at += sign.len();
            let right = self.level(level + 1)?;
            left = apply(sign, left, right)?;
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<i64, String> {
        match self.text.get(self.at) {
            Some('-') => {
                self.at += 1;
                Ok(self.unary()?.wrapping_neg())
            }
            Some('!') => {
                self.at += 1;
                Ok(i64::from(self.unary()? == 0))
            }
            Some('(') => {
                self.at += 1;
                let inner = self.level(0)?;
                if self.text.get(self.at) != Some(&')') {
                    return Err("arithmetic expression: missing `)'".to_owned());
                }
                self.at += 1;
                Ok(inner)
            }
            _ => self.operand(),
        }
    }

    fn operand(&mut self) -> Result<i64, String> {
        let begin = self.at;
        while self.text.get(self.at).is_some_and(|c| c.is_ascii_alphanumeric() || *c == '_') {
            self.at += 1;
        }
        let text: String = self.text[begin..self.at].iter().collect();
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return text.parse().map_err(|_| format!("{text}: value too great for base"));
        }
        if text.is_empty() {
            return Err("arithmetic expression: operand expected".to_owned());
        }
        Ok((self.value)(&text))
    }
}

fn apply(sign: &str, left: i64, right: i64) -> Result<i64, String> {
    Ok(match sign {
        "||" => i64::from(left != 0 || right != 0),
        "&&" => i64::from(left != 0 && right != 0),
        "==" => i64::from(left == right),
        "!=" => i64::from(left != right),
        "<=" => i64::from(left <= right),
        ">=" => i64::from(left >= right),
        "<" => i64::from(left < right),
        ">" => i64::from(left > right),
        "+" => left.wrapping_add(right),
        "-" => left.wrapping_sub(right),
        "*" => left.wrapping_mul(right),
        _ if right == 0 => return Err("division by 0".to_owned()),
        "/" => left.wrapping_div(right),
        _ => left.wrapping_rem(right),
    })
}

#[cfg(test)]
mod tests {
    use super::evaluate;

    #[test]
    fn operators_bind_as_in_c() {
        let value = |name: &str| if name == "n" { 5 } else { 0 };
        assert_eq!(evaluate("1 + 2 * (n - 3)", &value), Ok(5));
        assert_eq!(evaluate("n >= 5 && !missing", &value), Ok(1));
        assert_eq!(evaluate("-n % 3", &value), Ok(-2));
        assert!(evaluate("1 / 0", &value).is_err());
        assert!(evaluate("1 +", &value).is_err());
    }
}
