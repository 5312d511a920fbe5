//! From words to fields: parameters, command substitution, arithmetic, splitting and file names.

use super::arith;
use super::io::Output;
use super::parse::{Op, Part, Word};
use super::pattern::{self, Sign};
use super::run::{Flow, Shell};
use crate::cloud::fs;

/// A character, and where it came from.
#[derive(Clone, Copy)]
enum Piece {
    /// Written in the script without quotes: a sign of a pattern, but not split.
    Bare(char),
    Quoted(char),
    /// From an expansion without quotes: split and a sign of a pattern.
    Expanded(char),
    /// Quotes were here: the field exists even if it is empty.
    Mark,
    /// `"$@"` begins another field.
    Break,
}

pub(super) type Expanded<T> = Result<T, Flow>;

impl Shell {
    /// The fields of several words.
    pub(super) async fn fields(&mut self, words: &[Word]) -> Expanded<Vec<String>> {
        let mut fields = Vec::new();
        for word in words {
            let pieces = self.pieces(word).await?;
            for signs in self.split(&pieces) {
                fields.extend(self.file_names(&signs));
            }
        }
        Ok(fields)
    }

    /// One string: the value of an assignment, the target of a redirection, a here-document.
    pub(super) async fn text(&mut self, word: &Word) -> Expanded<String> {
        let signs = self.signs(word).await?;
        Ok(signs.iter().map(|sign| sign.c).collect())
    }

    /// One pattern: of `case`, or of a parameter that is stripped.
    pub(super) async fn signs(&mut self, word: &Word) -> Expanded<Vec<Sign>> {
        let pieces = self.pieces(word).await?;
        Ok(pieces
            .into_iter()
            .filter_map(|piece| match piece {
                Piece::Bare(c) | Piece::Expanded(c) => Some(Sign { c, quoted: false }),
                Piece::Quoted(c) => Some(Sign { c, quoted: true }),
                Piece::Break => Some(Sign { c: ' ', quoted: true }),
                Piece::Mark => None,
            })
            .collect())
    }

    async fn pieces(&mut self, word: &Word) -> Expanded<Vec<Piece>> {
        let mut pieces = Vec::new();
        if self.positional.is_empty() && is_all_arguments(word) {
            return Ok(pieces);
        }
        for (index, part) in word.iter().enumerate() {
            match part {
                Part::Text(text) => self.literal(text, index == 0, &mut pieces),
                Part::Quoted(text) => {
                    pieces.push(Piece::Mark);
                    pieces.extend(text.chars().map(Piece::Quoted));
                }
                Part::Parameter { name, op, quoted } => {
                    if *quoted && name == "@" && *op == Op::Plain {
                        self.positional_pieces(&mut pieces);
                    } else {
                        let value = Box::pin(self.parameter(name, op)).await?;
                        push(&mut pieces, &value, *quoted);
                    }
                }
                Part::Command { script, quoted } => {
                    let (output, buffer) = Output::buffer();
                    let mut inner = self.fork();
                    inner.process.outputs.insert(1, output);
                    self.status = inner.run_to_status(script).await;
                    self.substituted = Some(self.status);
                    let bytes = std::mem::take(&mut *buffer.lock().expect("plain data"));
                    let text = String::from_utf8_lossy(&bytes);
                    push(&mut pieces, text.trim_end_matches('\n'), *quoted);
                }
                Part::Arithmetic { expression, quoted } => {
                    let text = Box::pin(self.text(expression)).await?;
                    let value = |name: &str| self.get(name).and_then(|text| text.parse().ok()).unwrap_or(0);
                    match arith::evaluate(&text, &value) {
                        Ok(value) => push(&mut pieces, &value.to_string(), *quoted),
                        Err(error) => return Err(self.fatal(&error)),
                    }
                }
            }
        }
        Ok(pieces)
    }

    fn literal(&self, text: &str, first: bool, pieces: &mut Vec<Piece>) {
        let rest = text
            .strip_prefix('~')
            .filter(|rest| first && (rest.is_empty() || rest.starts_with('/')));
        if let Some(rest) = rest {
            let home = self.get("HOME").unwrap_or_default();
            pieces.extend(home.chars().map(Piece::Quoted));
            pieces.extend(rest.chars().map(Piece::Bare));
        } else {
            pieces.extend(text.chars().map(Piece::Bare));
        }
    }

    fn positional_pieces(&self, pieces: &mut Vec<Piece>) {
        for (index, value) in self.positional.iter().enumerate() {
            if index > 0 {
                pieces.push(Piece::Break);
            }
            pieces.push(Piece::Mark);
            pieces.extend(value.chars().map(Piece::Quoted));
        }
    }

    async fn parameter(&mut self, name: &str, op: &Op) -> Expanded<String> {
        let value = self.get(name);
        match op {
            Op::Plain | Op::Length => {
                let special = matches!(name, "@" | "*");
                if value.is_none() && self.options.nounset && !special {
                    return Err(self.fatal(&format!("{name}: unbound variable")));
                }
                let value = value.unwrap_or_default();
                Ok(if *op == Op::Length {
                    value.chars().count().to_string()
                } else {
                    value
                })
            }
            Op::Unset { what, or_empty, word } => {
                let set = value.as_ref().is_some_and(|value| !*or_empty || !value.is_empty());
                match (what, set) {
                    ('+', true) => self.text(word).await,
                    ('+', false) => Ok(String::new()),
                    (_, true) => Ok(value.unwrap_or_default()),
                    ('-', false) => self.text(word).await,
                    ('=', false) => {
                        let text = self.text(word).await?;
                        self.set(name, &text);
                        Ok(text)
                    }
                    _ => {
                        let text = self.text(word).await?;
                        let text = if text.is_empty() {
                            "parameter null or not set".to_owned()
                        } else {
                            text
                        };
                        Err(self.fatal(&format!("{name}: {text}")))
                    }
                }
            }
            Op::Strip {
                prefix,
                longest,
                pattern,
            } => {
                let signs = self.signs(pattern).await?;
                Ok(strip(&value.unwrap_or_default(), &signs, *prefix, *longest))
            }
        }
    }

    /// Splits where expansions brought blanks.
    fn split(&self, pieces: &[Piece]) -> Vec<Vec<Sign>> {
        let separators = self.get("IFS").unwrap_or_else(|| " \t\n".to_owned());
        let mut fields = Vec::new();
        let (mut field, mut exists) = (Vec::new(), false);
        for piece in pieces {
            match *piece {
                Piece::Expanded(c) if separators.contains(c) => {
                    if exists {
                        fields.push(std::mem::take(&mut field));
                        exists = false;
                    }
                    continue;
                }
                Piece::Break => {
                    fields.push(std::mem::take(&mut field));
                    exists = false;
                    continue;
                }
                Piece::Mark => {}
                Piece::Bare(c) | Piece::Expanded(c) => field.push(Sign { c, quoted: false }),
                Piece::Quoted(c) => field.push(Sign { c, quoted: true }),
            }
            exists = true;
        }
        if exists {
            fields.push(field);
        }
        fields
    }

    /// A pattern stands for the names that it matches, or for itself.
    fn file_names(&self, signs: &[Sign]) -> Vec<String> {
        let plain: String = signs.iter().map(|sign| sign.c).collect();
        if !pattern::is_pattern(signs) {
            return vec![plain];
        }
        let rooted = plain.starts_with('/');
        let mut found = vec![if rooted { "/".to_owned() } else { String::new() }];
        for part in signs.split(|sign| sign.c == '/').filter(|part| !part.is_empty()) {
            found = found.iter().flat_map(|base| self.matching(base, part)).collect();
        }
        if found.is_empty() { vec![plain] } else { found }
    }

    fn matching(&self, base: &str, part: &[Sign]) -> Vec<String> {
        let join = |name: &str| match base {
            "" => name.to_owned(),
            _ if base.ends_with('/') => format!("{base}{name}"),
            _ => format!("{base}/{name}"),
        };
        let (process, plain) = (&self.process, part.iter().map(|sign| sign.c).collect::<String>());
        if !pattern::is_pattern(part) {
            let path = join(&plain);
            return if process.lstat(&path).is_ok() {
                vec![path]
            } else {
                Vec::new()
            };
        }
        let directory = fs::absolute(&process.cwd, base);
        let names = process.host.fs.list(process.who(), &directory).unwrap_or_default();
        let hidden = plain.starts_with('.');
        let fits = |name: &String| (hidden || !name.starts_with('.')) && pattern::matches(part, name);
        names.iter().filter(|name| fits(name)).map(|name| join(name)).collect()
    }
}

/// `"$@"` and nothing beside it: without arguments it is no field at all, although quotes are there.
fn is_all_arguments(word: &Word) -> bool {
    let is_parameter = |part: &Part| matches!(part, Part::Parameter { name, op: Op::Plain, quoted: true } if name == "@");
    let is_empty = |part: &Part| matches!(part, Part::Quoted(text) if text.is_empty());
    word.iter().any(is_parameter) && word.iter().all(|part| is_parameter(part) || is_empty(part))
}

fn push(pieces: &mut Vec<Piece>, text: &str, quoted: bool) {
    if quoted {
        pieces.push(Piece::Mark);
        pieces.extend(text.chars().map(Piece::Quoted));
    } else {
        pieces.extend(text.chars().map(Piece::Expanded));
    }
}

fn strip(value: &str, signs: &[Sign], prefix: bool, longest: bool) -> String {
    let mut cuts: Vec<usize> = value.char_indices().map(|(at, _)| at).chain([value.len()]).collect();
    // The shortest match of a prefix ends first, that of a suffix begins last.
    if prefix == longest {
        cuts.reverse();
    }
    for at in cuts {
        let (head, tail) = value.split_at(at);
        if pattern::matches(signs, if prefix { head } else { tail }) {
            return (if prefix { tail } else { head }).to_owned();
        }
    }
    value.to_owned()
}
