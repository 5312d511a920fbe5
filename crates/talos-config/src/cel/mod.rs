//! Selectors of disks and links are CEL expressions. A node compiles them before it accepts a config, so we read them too:
//! grammar and types, no evaluation. What is not known here passes; what is known to be wrong is told in CEL's own words.

mod check;
mod lexer;
mod parser;

/// What names mean in an expression.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    Disk,
    Link,
    /// Names are not checked.
    Any,
}

/// Checks that an expression compiles to a boolean.
pub fn check_bool(source: &str, scope: Scope) -> Result<(), String> {
    let tree = lexer::tokens(source).and_then(|tokens| parser::parse(&tokens));
    let found = tree
        .and_then(|tree| check::type_of(&tree, scope))
        .map_err(|fault| fault.show(source))?;
    match found {
        Kind::Bool | Kind::Unknown => Ok(()),
        other => Err(format!("expression output type is {}, expected bool", other.name())),
    }
}

/// What went wrong, at which character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    at: usize,
    problem: String,
}

impl Fault {
    fn new(at: usize, problem: impl Into<String>) -> Self {
        Self {
            at,
            problem: problem.into(),
        }
    }

    /// The message, the line it is about, and a pointer under it.
    fn show(&self, source: &str) -> String {
        let before: String = source.chars().take(self.at).collect();
        let row = before.matches('\n').count();
        let column = before.chars().rev().take_while(|c| *c != '\n').count();
        let line = source.lines().nth(row).unwrap_or_default();
        let dots = ".".repeat(column);
        format!(
            "ERROR: <input>:{}:{}: {}\n | {line}\n | {dots}^",
            row + 1,
            column + 1,
            self.problem
        )
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Bool,
    Int,
    Uint,
    Double,
    Text,
    Bytes,
    List,
    Map,
    Null,
    Unknown,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Bool => "bool",
            Self::Int => "int",
            Self::Uint => "uint",
            Self::Double => "double",
            Self::Text => "string",
            Self::Bytes => "bytes",
            Self::List => "list",
            Self::Map => "map",
            Self::Null => "null_type",
            Self::Unknown => "dyn",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_in_use_compile() {
        let disks = [
            "!system_disk && !disk.cdrom",
            "disk.size > 10u * GiB",
            r#"disk.serial == "longhorn""#,
            r#"glob("a*", disk.model)"#,
            r#"disk.serial.startsWith("a")"#,
            r#"disk.serial in ["a", 'b']"#,
            r#"disk.symlinks.exists(s, s == "x")"#,
            "disk.rotational || disk.size > 5u ? true : false",
        ];
        for expression in disks {
            assert_eq!(check_bool(expression, Scope::Disk), Ok(()), "{expression}");
        }
        assert_eq!(
            check_bool(r#"mac(link.permanent_addr) == "bc:24:11:00:00:01""#, Scope::Link),
            Ok(())
        );
    }

    #[test]
    fn faults_are_told_in_the_words_of_cel() {
        let expecting =
            "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";
        let cases = [
            (
                "disk.size > 10",
                "1:11: found no matching overload for '_>_' applied to '(uint, int)'".to_owned(),
            ),
            (
                "disk.size > 10 * GiB",
                "1:16: found no matching overload for '_*_' applied to '(int, uint)'".to_owned(),
            ),
            ("disk.nope == \"x\"", "1:5: undefined field 'nope'".to_owned()),
            ("foo", "1:1: undeclared reference to 'foo' (in container '')".to_owned()),
            ("nope(1)", "1:5: undeclared reference to 'nope' (in container '')".to_owned()),
            (
                "glob(\"a*\")",
                "1:5: found no matching overload for 'glob' applied to '(string)'".to_owned(),
            ),
            (
                "disk.serial == ",
                format!("1:16: Syntax error: mismatched input '<EOF>' expecting {expecting}"),
            ),
            ("(system_disk", "1:13: Syntax error: missing ')' at '<EOF>'".to_owned()),
            (
                "system_disk)",
                "1:12: Syntax error: extraneous input ')' expecting <EOF>".to_owned(),
            ),
            (
                "disk.serial == \"x",
                "1:16: Syntax error: token recognition error at: '\"x'".to_owned(),
            ),
            (
                "&& true",
                format!("1:1: Syntax error: extraneous input '&&' expecting {expecting}"),
            ),
        ];
        for (expression, expected) in cases {
            let error = check_bool(expression, Scope::Disk).unwrap_err();
            let first = error.lines().next().unwrap_or_default();
            assert_eq!(first, format!("ERROR: <input>:{expected}"), "{expression}");
        }
        assert_eq!(
            check_bool("disk.size", Scope::Disk).unwrap_err(),
            "expression output type is uint, expected bool"
        );
    }

    #[test]
    fn the_pointer_stands_under_the_fault() {
        let error = check_bool("mac(link.nope) == ", Scope::Link).unwrap_err();
        assert!(error.ends_with("\n | mac(link.nope) == \n | ..................^"), "{error}");
    }
}
