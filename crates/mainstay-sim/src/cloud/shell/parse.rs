//! Shell scripts as trees. The language is POSIX sh with the few extensions of bash that scripts for cloud guests use.

use std::sync::Arc;

#[derive(Debug, PartialEq)]
pub(crate) enum Node {
    Simple {
        assigns: Vec<(String, Word)>,
        words: Vec<Word>,
        redirects: Vec<Redirect>,
    },
    Pipe(Vec<Node>),
    Not(Box<Node>),
    And(Box<Node>, Box<Node>),
    Or(Box<Node>, Box<Node>),
    /// Commands one after the other; `true` is in the background.
    Sequence(Vec<(Arc<Node>, bool)>),
    If(Vec<(Node, Node)>, Option<Box<Node>>),
    While {
        condition: Box<Node>,
        body: Box<Node>,
        until: bool,
    },
    For {
        name: String,
        words: Option<Vec<Word>>,
        body: Box<Node>,
    },
    Case(Word, Vec<(Vec<Word>, Node)>),
    Subshell(Arc<Node>),
    Redirected(Box<Node>, Vec<Redirect>),
    Function(String, Arc<Node>),
}

pub(crate) type Word = Vec<Part>;

#[derive(Debug, PartialEq)]
pub(crate) enum Part {
    Text(String),
    Quoted(String),
    Parameter { name: String, op: Op, quoted: bool },
    Command { script: Arc<Node>, quoted: bool },
    Arithmetic { expression: Word, quoted: bool },
}

#[derive(Debug, PartialEq)]
pub(crate) enum Op {
    Plain,
    Length,
    /// `-`, `=`, `+` and `?`, with a colon or without.
    Unset {
        what: char,
        or_empty: bool,
        word: Word,
    },
    Strip {
        prefix: bool,
        longest: bool,
        pattern: Word,
    },
}

#[derive(Debug, PartialEq)]
pub(crate) struct Redirect {
    pub fd: u32,
    pub how: How,
    pub target: Word,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum How {
    Read,
    Write,
    Append,
    Duplicate,
    /// The target is the text itself.
    Here,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
pub(crate) struct SyntaxError {
    line: usize,
    what: String,
}

pub(crate) fn parse(text: &str) -> Result<Arc<Node>, SyntaxError> {
    let mut parser = Parser {
        text: text.chars().collect(),
        at: 0,
    };
    let node = parser.sequence(&[])?;
    if parser.at < parser.text.len() {
        return Err(parser.unexpected());
    }
    Ok(Arc::new(node))
}

struct Parser {
    text: Vec<char>,
    at: usize,
}

type Parsed<T> = Result<T, SyntaxError>;

const SPECIAL: &str = " \t\n;&|<>()";

impl Parser {
    fn peek(&self) -> Option<char> {
        self.text.get(self.at).copied()
    }

    fn ahead(&self, text: &str) -> bool {
        text.chars()
            .enumerate()
            .all(|(index, c)| self.text.get(self.at + index) == Some(&c))
    }

    fn error(&self, what: impl Into<String>) -> SyntaxError {
        let line = self.text[..self.at.min(self.text.len())]
            .iter()
            .filter(|c| **c == '\n')
            .count()
            + 1;
        SyntaxError { line, what: what.into() }
    }

    fn unexpected(&self) -> SyntaxError {
        let near: String = self.text[self.at.min(self.text.len())..].iter().take(12).collect();
        let near = near.lines().next().unwrap_or_default().to_owned();
        self.error(format!("syntax error near unexpected token `{near}'"))
    }

    fn blanks(&mut self) {
        loop {
            match self.peek() {
                Some(' ' | '\t') => self.at += 1,
                Some('\\') if self.text.get(self.at + 1) == Some(&'\n') => self.at += 2,
                Some('#') => {
                    while self.peek().is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                _ => return,
            }
        }
    }

    fn newlines(&mut self) {
        loop {
            self.blanks();
            if self.peek() != Some('\n') {
                return;
            }
            self.at += 1;
        }
    }

    /// A reserved word, only where a command may begin.
    fn keyword(&mut self, word: &str) -> bool {
        let end = self.at + word.chars().count();
        let ends = self.text.get(end).is_none_or(|c| SPECIAL.contains(*c));
        if self.ahead(word) && ends {
            self.at = end;
            return true;
        }
        false
    }

    fn sees_keyword(&mut self, words: &[&str]) -> bool {
        let at = self.at;
        let seen = words.iter().any(|word| self.keyword(word));
        self.at = at;
        seen
    }

    fn expect(&mut self, word: &str) -> Parsed<()> {
        self.newlines();
        if self.keyword(word) { Ok(()) } else { Err(self.unexpected()) }
    }

    /// Commands until one of the closing words, a `)` or the end of the text.
    fn sequence(&mut self, closing: &[&str]) -> Parsed<Node> {
        let mut commands = Vec::new();
        loop {
            self.newlines();
            let closed = self.ahead(")") || self.ahead(";;") || self.sees_keyword(closing);
            if self.peek().is_none() || closed {
                break;
            }
            let node = self.and_or()?;
            self.blanks();
            let background = self.peek() == Some('&') && !self.ahead("&&");
            commands.push((Arc::new(node), background));
            if background || self.peek() == Some(';') && !self.ahead(";;") {
                self.at += 1;
            } else if self.peek().is_some_and(|c| c != '\n' && c != ')') && !self.ahead(";;") {
                return Err(self.unexpected());
            }
        }
        Ok(Node::Sequence(commands))
    }

    fn and_or(&mut self) -> Parsed<Node> {
        let mut left = self.pipeline()?;
        loop {
            self.blanks();
            let and = self.ahead("&&");
            if !and && !self.ahead("||") {
                return Ok(left);
            }
            self.at += 2;
            self.newlines();
            let (one, other) = (Box::new(left), Box::new(self.pipeline()?));
            left = if and { Node::And(one, other) } else { Node::Or(one, other) };
        }
    }

    fn pipeline(&mut self) -> Parsed<Node> {
        self.blanks();
        if self.keyword("!") {
            return Ok(Node::Not(Box::new(self.pipeline()?)));
        }
        let mut stages = vec![self.command()?];
        loop {
            self.blanks();
            if !self.ahead("|") || self.ahead("||") {
                break;
            }
            self.at += 1;
            self.newlines();
            stages.push(self.command()?);
        }
        Ok(if stages.len() == 1 {
            stages.remove(0)
        } else {
            Node::Pipe(stages)
        })
    }

    fn command(&mut self) -> Parsed<Node> {
        self.blanks();
        let compound = if self.keyword("if") {
            self.if_clause()?
        } else if self.keyword("while") {
            self.loop_clause(false)?
        } else if self.keyword("until") {
            self.loop_clause(true)?
        } else if self.keyword("for") {
            self.for_clause()?
        } else if self.keyword("case") {
            self.case_clause()?
        } else if self.keyword("{") {
            let body = self.sequence(&["}"])?;
            self.expect("}")?;
            body
        } else if self.ahead("(") {
            self.at += 1;
            let body = self.sequence(&[])?;
            if !self.ahead(")") {
                return Err(self.unexpected());
            }
            self.at += 1;
            Node::Subshell(Arc::new(body))
        } else {
            return self.simple();
        };
        let redirects = self.redirects()?;
        Ok(if redirects.is_empty() {
            compound
        } else {
            Node::Redirected(Box::new(compound), redirects)
        })
    }

    fn if_clause(&mut self) -> Parsed<Node> {
        let mut branches = Vec::new();
        let mut otherwise = None;
        loop {
            let condition = self.sequence(&["then"])?;
            self.expect("then")?;
            branches.push((condition, self.sequence(&["elif", "else", "fi"])?));
            self.newlines();
            if self.keyword("elif") {
                continue;
            }
            if self.keyword("else") {
                otherwise = Some(Box::new(self.sequence(&["fi"])?));
            }
            self.expect("fi")?;
            return Ok(Node::If(branches, otherwise));
        }
    }

    fn loop_clause(&mut self, until: bool) -> Parsed<Node> {
        let condition = Box::new(self.sequence(&["do"])?);
        let body = Box::new(self.do_group()?);
        Ok(Node::While { condition, body, until })
    }

    fn do_group(&mut self) -> Parsed<Node> {
        self.expect("do")?;
        let body = self.sequence(&["done"])?;
        self.expect("done")?;
        Ok(body)
    }

    fn for_clause(&mut self) -> Parsed<Node> {
        self.blanks();
        let name = self.name();
        self.newlines();
        let mut words = None;
        if self.keyword("in") {
            let mut list = Vec::new();
            loop {
                self.blanks();
                match self.peek() {
                    Some('\n' | ';') | None => break,
                    _ => list.push(self.word()?),
                }
            }
            words = Some(list);
        }
        self.blanks();
        if self.peek() == Some(';') {
            self.at += 1;
        }
        let body = Box::new(self.do_group()?);
        Ok(Node::For { name, words, body })
    }

    fn case_clause(&mut self) -> Parsed<Node> {
        self.blanks();
        let subject = self.word()?;
        self.expect("in")?;
        let mut arms = Vec::new();
        loop {
            self.newlines();
            if self.keyword("esac") {
                return Ok(Node::Case(subject, arms));
            }
            if self.peek() == Some('(') {
                self.at += 1;
            }
            let mut patterns = Vec::new();
            loop {
                self.blanks();
                patterns.push(self.word()?);
                self.blanks();
                match self.peek() {
                    Some('|') => self.at += 1,
                    Some(')') => break,
                    _ => return Err(self.unexpected()),
                }
            }
            self.at += 1;
            let body = self.sequence(&["esac"])?;
            self.newlines();
            if self.ahead(";;") {
                self.at += 2;
            }
            arms.push((patterns, body));
        }
    }

    fn name(&mut self) -> String {
        let begin = self.at;
        while self.peek().is_some_and(|c| c.is_ascii_alphanumeric() || c == '_') {
            self.at += 1;
        }
        self.text[begin..self.at].iter().collect()
    }

    fn simple(&mut self) -> Parsed<Node> {
        let (mut assigns, mut words, mut redirects) = (Vec::new(), Vec::new(), Vec::new());
        loop {
            self.blanks();
            if let Some(redirect) = self.redirect()? {
                redirects.push(redirect);
                continue;
            }
            match self.peek() {
                None | Some('\n' | ';' | '&' | '|' | ')') => break,
                Some('(') if words.len() == 1 && assigns.is_empty() => return self.function(&words),
                Some('(') => return Err(self.unexpected()),
                Some(_) => {}
            }
            // After the command's name, `a=b` is an argument.
            let assigned = if words.is_empty() { self.assignment() } else { None };
            match assigned {
                Some(name) => {
                    let ends = self.peek().is_none_or(|c| SPECIAL.contains(c));
                    let value = if ends { Vec::new() } else { self.word()? };
                    assigns.push((name, value));
                }
                None => words.push(self.word()?),
            }
        }
        if assigns.is_empty() && words.is_empty() && redirects.is_empty() {
            return Err(self.unexpected());
        }
        Ok(Node::Simple {
            assigns,
            words,
            redirects,
        })
    }

    /// `name=`, behind which the cursor then stands.
    fn assignment(&mut self) -> Option<String> {
        let begin = self.at;
        let name = self.name();
        let named = name.chars().next().is_some_and(|c| !c.is_ascii_digit());
        if named && self.peek() == Some('=') {
            self.at += 1;
            return Some(name);
        }
        self.at = begin;
        None
    }

    fn function(&mut self, words: &[Word]) -> Parsed<Node> {
        let [Part::Text(name)] = words[0].as_slice() else {
            return Err(self.unexpected());
        };
        self.at += 1;
        self.blanks();
        if self.peek() != Some(')') {
            return Err(self.unexpected());
        }
        self.at += 1;
        self.newlines();
        let body = self.command()?;
        Ok(Node::Function(name.clone(), Arc::new(body)))
    }

    fn redirects(&mut self) -> Parsed<Vec<Redirect>> {
        let mut list = Vec::new();
        loop {
            self.blanks();
            match self.redirect()? {
                Some(redirect) => list.push(redirect),
                None => return Ok(list),
            }
        }
    }

    fn redirect(&mut self) -> Parsed<Option<Redirect>> {
        let begin = self.at;
        let mut digits = String::new();
        while let Some(c) = self.peek().filter(char::is_ascii_digit) {
            digits.push(c);
            self.at += 1;
        }
        // `&>` writes both; the error stream then follows the output.
        if digits.is_empty() && self.ahead("&>") {
            self.at += 2;
            self.blanks();
            let target = self.word()?;
            return Ok(Some(Redirect {
                fd: u32::MAX,
                how: How::Write,
                target,
            }));
        }
        let signs = [
            ("<<<", 3),
            ("<<-", 4),
            ("<<", 2),
            ("<&", 5),
            ("<>", 0),
            ("<", 0),
            (">>", 1),
            (">&", 5),
            (">|", 6),
            (">", 6),
        ];
        let Some((sign, code)) = signs.into_iter().find(|(sign, _)| self.ahead(sign)) else {
            self.at = begin;
            return Ok(None);
        };
        self.at += sign.len();
        self.blanks();
        let fd = digits.parse().unwrap_or(u32::from(sign.starts_with('>')));
        let (how, target) = match code {
            2 | 4 => (How::Here, self.here_document(code == 4)?),
            3 => {
                let mut word = self.word()?;
                word.push(Part::Quoted("\n".to_owned()));
                (How::Here, word)
            }
            0 => (How::Read, self.word()?),
            1 => (How::Append, self.word()?),
            5 => (How::Duplicate, self.word()?),
            _ => (How::Write, self.word()?),
        };
        Ok(Some(Redirect { fd, how, target }))
    }

    /// Takes the lines of a here-document out of the text: they begin behind the current line.
    fn here_document(&mut self, strip_tabs: bool) -> Parsed<Word> {
        let delimiter = self.word()?;
        let quoted = delimiter.iter().any(|part| matches!(part, Part::Quoted(_)));
        let wanted: String = delimiter
            .iter()
            .map(|part| match part {
                Part::Text(text) | Part::Quoted(text) => text.as_str(),
                _ => "",
            })
            .collect();
        let line_end = self.text[self.at..]
            .iter()
            .position(|c| *c == '\n')
            .map(|index| self.at + index + 1);
        let begin = line_end.ok_or_else(|| self.error("here-document without a body"))?;
        let (mut body, mut at) = (String::new(), begin);
        loop {
            if at >= self.text.len() {
                return Err(self.error(format!("here-document delimited by end-of-file (wanted `{wanted}')")));
            }
            let end = self.text[at..]
                .iter()
                .position(|c| *c == '\n')
                .map_or(self.text.len(), |index| at + index);
            let line: String = self.text[at..end].iter().collect();
            let line = if strip_tabs {
                line.trim_start_matches('\t').to_owned()
            } else {
                line
            };
            at = (end + 1).min(self.text.len());
            if line == wanted {
                break;
            }
            body.push_str(&line);
            body.push('\n');
        }
        self.text.drain(begin..at);
        if quoted {
            return Ok(vec![Part::Quoted(body)]);
        }
        let mut inner = Parser {
            text: body.chars().collect(),
            at: 0,
        };
        let mut parts = Vec::new();
        inner.double_quoted(&mut parts, None)?;
        Ok(parts)
    }

    fn word(&mut self) -> Parsed<Word> {
        let mut parts: Word = Vec::new();
        let mut text = String::new();
        fn flush(text: &mut String, parts: &mut Word) {
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(text)));
            }
        }
        while let Some(c) = self.peek() {
            match c {
                _ if SPECIAL.contains(c) => break,
                '\\' => {
                    self.at += 2;
                    let next = self.text.get(self.at - 1).copied();
                    if next == Some('\n') {
                        continue;
                    }
                    flush(&mut text, &mut parts);
                    parts.push(Part::Quoted(next.map(String::from).unwrap_or_default()));
                }
                '\'' => {
                    flush(&mut text, &mut parts);
                    self.at += 1;
                    let begin = self.at;
                    while self.peek().is_some_and(|c| c != '\'') {
                        self.at += 1;
                    }
                    if self.peek().is_none() {
                        return Err(self.error("unexpected EOF while looking for matching `''"));
                    }
                    parts.push(Part::Quoted(self.text[begin..self.at].iter().collect()));
                    self.at += 1;
                }
                '"' => {
                    flush(&mut text, &mut parts);
                    self.at += 1;
                    parts.push(Part::Quoted(String::new()));
                    self.double_quoted(&mut parts, Some('"'))?;
                }
                '$' | '`' => {
                    flush(&mut text, &mut parts);
                    match self.dollar(false)? {
                        Some(part) => parts.push(part),
                        None => text.push('$'),
                    }
                }
                _ => {
                    text.push(c);
                    self.at += 1;
                }
            }
        }
        flush(&mut text, &mut parts);
        if parts.is_empty() {
            return Err(self.unexpected());
        }
        Ok(parts)
    }

    /// Text with expansions, until the closing sign or the end.
    fn double_quoted(&mut self, parts: &mut Word, closing: Option<char>) -> Parsed<()> {
        let mut text = String::new();
        loop {
            match self.peek() {
                None if closing.is_none() => break,
                None => return Err(self.error("unexpected EOF while looking for matching `\"'")),
                Some(c) if Some(c) == closing => {
                    self.at += 1;
                    break;
                }
                Some('\\') => {
                    let next = self.text.get(self.at + 1).copied();
                    match next {
                        Some('\n') => {}
                        Some(c) if "$`\\".contains(c) || closing == Some('"') && c == '"' => text.push(c),
                        Some(c) => text.extend(['\\', c]),
                        None => text.push('\\'),
                    }
                    self.at += 2;
                }
                Some('$' | '`') => {
                    if let Some(part) = self.dollar(true)? {
                        parts.push(Part::Quoted(std::mem::take(&mut text)));
                        parts.push(part);
                    } else {
                        text.push('$');
                    }
                }
                Some(c) => {
                    text.push(c);
                    self.at += 1;
                }
            }
        }
        parts.push(Part::Quoted(text));
        Ok(())
    }

    /// An expansion; `None` is a dollar sign that stands for itself.
    fn dollar(&mut self, quoted: bool) -> Parsed<Option<Part>> {
        if self.ahead("`") {
            return self.backquoted(quoted).map(Some);
        }
        if self.ahead("$((") {
            self.at += 3;
            return self.arithmetic(quoted).map(Some);
        }
        if self.ahead("$(") {
            self.at += 2;
            let script = Arc::new(self.sequence(&[])?);
            if self.peek() != Some(')') {
                return Err(self.unexpected());
            }
            self.at += 1;
            return Ok(Some(Part::Command { script, quoted }));
        }
        if self.ahead("${") {
            self.at += 2;
            return self.braced(quoted).map(Some);
        }
        self.at += 1;
        let name = match self.peek() {
            Some(c) if "@*#?$!-".contains(c) || c.is_ascii_digit() => {
                self.at += 1;
                c.to_string()
            }
            _ => self.name(),
        };
        Ok((!name.is_empty()).then_some(Part::Parameter {
            name,
            op: Op::Plain,
            quoted,
        }))
    }

    fn backquoted(&mut self, quoted: bool) -> Parsed<Part> {
        self.at += 1;
        let mut inner = String::new();
        loop {
            match self.peek() {
                None => return Err(self.error("unexpected EOF while looking for matching ``'")),
                Some('`') => break,
                Some('\\') if self.text.get(self.at + 1).is_some_and(|c| "`$\\".contains(*c)) => {
                    inner.push(self.text[self.at + 1]);
                    self.at += 2;
                }
                Some(c) => {
                    inner.push(c);
                    self.at += 1;
                }
            }
        }
        self.at += 1;
        Ok(Part::Command {
            script: parse(&inner)?,
            quoted,
        })
    }

    fn arithmetic(&mut self, quoted: bool) -> Parsed<Part> {
        let (begin, mut depth) = (self.at, 0);
        loop {
            match self.peek() {
                None => return Err(self.error("unexpected EOF in arithmetic expression")),
                Some('(') => depth += 1,
                Some(')') if depth == 0 => break,
                Some(')') => depth -= 1,
                Some(_) => {}
            }
            self.at += 1;
        }
        let inner: Vec<char> = self.text[begin..self.at].to_vec();
        if !self.ahead("))") {
            return Err(self.unexpected());
        }
        self.at += 2;
        let mut expression = Vec::new();
        Parser { text: inner, at: 0 }.double_quoted(&mut expression, None)?;
        Ok(Part::Arithmetic { expression, quoted })
    }

    /// Behind `${`.
    fn braced(&mut self, quoted: bool) -> Parsed<Part> {
        if self.peek() == Some('#') && self.text.get(self.at + 1) != Some(&'}') {
            self.at += 1;
            let name = self.parameter_name();
            self.close_brace()?;
            return Ok(Part::Parameter {
                name,
                op: Op::Length,
                quoted,
            });
        }
        let name = self.parameter_name();
        let colon = self.peek() == Some(':');
        if colon {
            self.at += 1;
        }
        let op = match self.peek() {
            Some('}') if !colon => Op::Plain,
            Some(what @ ('-' | '=' | '+' | '?')) => {
                self.at += 1;
                Op::Unset {
                    what,
                    or_empty: colon,
                    word: self.brace_word()?,
                }
            }
            Some(sign @ ('%' | '#')) if !colon => {
                self.at += 1;
                let longest = self.peek() == Some(sign);
                self.at += usize::from(longest);
                Op::Strip {
                    prefix: sign == '#',
                    longest,
                    pattern: self.brace_word()?,
                }
            }
            _ => return Err(self.error("bad substitution")),
        };
        self.close_brace()?;
        Ok(Part::Parameter { name, op, quoted })
    }

    fn parameter_name(&mut self) -> String {
        match self.peek() {
            Some(c) if "@*#?$!-".contains(c) => {
                self.at += 1;
                c.to_string()
            }
            _ => self.name(),
        }
    }

    fn close_brace(&mut self) -> Parsed<()> {
        if self.peek() == Some('}') {
            self.at += 1;
            return Ok(());
        }
        Err(self.error("bad substitution"))
    }

    /// The word behind an operator, up to the closing brace.
    fn brace_word(&mut self) -> Parsed<Word> {
        let mut parts = Vec::new();
        loop {
            match self.peek() {
                None => return Err(self.error("unexpected EOF while looking for matching `}'")),
                Some('}') => return Ok(parts),
                Some('"' | '\'' | '\\') => {
                    // One quoted piece, as in a word of its own.
                    let end = self.quoted_piece(&mut parts)?;
                    self.at = end;
                }
                Some('$' | '`') => match self.dollar(false)? {
                    Some(part) => parts.push(part),
                    None => parts.push(Part::Text("$".to_owned())),
                },
                Some(c) => {
                    parts.push(Part::Text(c.to_string()));
                    self.at += 1;
                }
            }
        }
    }

    fn quoted_piece(&mut self, parts: &mut Word) -> Parsed<usize> {
        match self.peek() {
            Some('"') => {
                self.at += 1;
                self.double_quoted(parts, Some('"'))?;
            }
            Some('\\') => {
                let next = self.text.get(self.at + 1).copied();
                parts.push(Part::Quoted(next.map(String::from).unwrap_or_default()));
                self.at += 2;
            }
            _ => {
                self.at += 1;
                let begin = self.at;
                while self.peek().is_some_and(|c| c != '\'') {
                    self.at += 1;
                }
                parts.push(Part::Quoted(self.text[begin..self.at.min(self.text.len())].iter().collect()));
                self.at += 1;
            }
        }
        Ok(self.at)
    }
}
