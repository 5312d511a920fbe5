//! The values and comments of a document, each with its path and the bytes it occupies.

use std::ops::Range;

use granit_parser::{Event, Parser, ScalarStyle, StructureStyle};

use crate::cipher::Kind;
use crate::error::Error;
use crate::scalar;

/// The top-level key that holds the metadata.
const SOPS: &str = "sops";

/// A document and where its values are.
pub struct Source<'a> {
    text: &'a str,
    leaves: Vec<Leaf>,
    /// The bytes of the `sops` block.
    block: Option<Range<usize>>,
}

/// A value or a comment.
pub struct Leaf {
    /// Keys from the top. Positions in lists are no part of it.
    pub path: Vec<String>,
    /// The scalar without its quotes, the comment without its `#`.
    pub value: String,
    kind: Option<Kind>,
    at: Range<usize>,
    /// The bytes end with a line break, as those of a block scalar do.
    whole_lines: bool,
    /// Inside `[...]` or `{...}`, where a comma ends a value.
    in_flow: bool,
}

impl Leaf {
    /// Null, and text without a letter: sops leaves both as they are.
    pub fn is_blank(&self) -> bool {
        self.kind.is_none() || self.value.is_empty()
    }

    pub fn is_comment(&self) -> bool {
        self.kind == Some(Kind::Comment)
    }

    pub fn kind(&self) -> Kind {
        self.kind.unwrap_or(Kind::Text)
    }

    pub fn plain_bytes(&self) -> Vec<u8> {
        scalar::plain_bytes(&self.value, self.kind()).into_bytes()
    }

    /// What binds a ciphertext to its place.
    pub fn aad(&self) -> String {
        let mut aad = self.path.join(":");
        aad.push(':');
        aad
    }

    pub fn shown_path(&self) -> String {
        self.path.join(".")
    }
}

/// Other bytes for a leaf.
pub struct Edit {
    at: Range<usize>,
    text: String,
}

impl Edit {
    pub fn sealed(leaf: &Leaf, sealed: &str) -> Self {
        let quotes = if leaf.in_flow && !leaf.is_comment() { "\"" } else { "" };
        Self::new(leaf, format!("{quotes}{sealed}{quotes}"))
    }

    pub fn clear(leaf: &Leaf, plain: &str, kind: Kind) -> Self {
        Self::new(leaf, scalar::spelt(plain, kind))
    }

    fn new(leaf: &Leaf, mut text: String) -> Self {
        if leaf.is_comment() {
            text.insert(0, '#');
        }
        if leaf.whole_lines {
            text.push('\n');
        }
        Self {
            at: leaf.at.clone(),
            text,
        }
    }
}

impl<'a> Source<'a> {
    pub fn parse(text: &'a str) -> Result<Self, Error> {
        let mut reader = Reader {
            text,
            open: Vec::new(),
            leaves: Vec::new(),
            block: None,
            end: 0,
            documents: 0,
            flows: 0,
        };
        for event in Parser::new_from_str_with_options(text, granit_parser::options! { emit_comments: true }) {
            let (event, span) = event.map_err(|error| Error::Syntax {
                line: error.marker().line(),
                what: error.info().clone(),
            })?;
            let at = span.start.byte_offset().unwrap_or(0)..span.end.byte_offset().unwrap_or(0);
            reader.event(event, at, span.start.line())?;
        }
        let block = reader.block.map(|begin| begin..text.len().max(begin));
        Ok(Self {
            text,
            leaves: reader.leaves,
            block,
        })
    }

    pub fn leaves(&self) -> &[Leaf] {
        &self.leaves
    }

    pub fn has_sops_block(&self) -> bool {
        self.block.is_some()
    }

    /// The text with other values, and with another `sops` block or none.
    pub fn edited(&self, edits: Vec<Edit>, block: Option<&str>) -> String {
        let end = self.block.as_ref().map_or(self.text.len(), |block| block.start);
        let mut out = String::with_capacity(self.text.len() * 2);
        let mut from = 0;
        for edit in edits {
            out.push_str(&self.text[from..edit.at.start]);
            out.push_str(&edit.text);
            from = edit.at.end;
        }
        out.push_str(&self.text[from.min(end)..end]);
        if let Some(block) = block {
            if !out.is_empty() && !out.ends_with('\n') {
                out.push('\n');
            }
            out.push_str(block);
        }
        out
    }
}

struct Reader<'a> {
    text: &'a str,
    /// Collections that are open.
    open: Vec<Open>,
    leaves: Vec<Leaf>,
    /// Where the `sops` block begins.
    block: Option<usize>,
    /// Where the last event ended.
    end: usize,
    documents: usize,
    /// Collections in brackets or braces that are open.
    flows: usize,
}

enum Open {
    List,
    /// The key whose value comes next.
    Map(Option<String>),
}

impl Reader<'_> {
    fn event(&mut self, event: Event<'_>, at: Range<usize>, line: usize) -> Result<(), Error> {
        let refuse = |what| Err(Error::Unsupported { line, what });
        match event {
            Event::DocumentStart(..) => {
                self.documents += 1;
                if self.documents > 1 {
                    return refuse("a second document");
                }
            }
            Event::Alias(_) | Event::UnresolvedAlias(_) => return refuse("an alias"),
            Event::Comment(text, _) => self.comment(&text, at.clone()),
            Event::Scalar(text, style, anchor, tag) => {
                if anchor != 0 {
                    return refuse("an anchor");
                }
                if tag.is_some() {
                    return refuse("a tag");
                }
                self.scalar(&text, style, at.clone(), line)?;
            }
            Event::SequenceStart(_, anchor, _) | Event::MappingStart(_, anchor, _) if anchor != 0 => return refuse("an anchor"),
            Event::SequenceStart(style, ..) => {
                if self.open.is_empty() {
                    return refuse("a document that is no mapping");
                }
                self.expect_value(line)?;
                self.open(Open::List, style);
            }
            Event::MappingStart(style, ..) => {
                self.expect_value(line)?;
                self.open(Open::Map(None), style);
            }
            Event::SequenceEnd | Event::MappingEnd => {
                self.open.pop();
                self.flows = self.flows.saturating_sub(1);
                self.value_ended();
            }
            _ => {}
        }
        self.end = self.end.max(at.end);
        Ok(())
    }

    /// Once inside brackets, everything is.
    fn open(&mut self, collection: Open, style: StructureStyle) {
        self.open.push(collection);
        if self.flows > 0 || style == StructureStyle::Flow {
            self.flows += 1;
        }
    }

    /// A collection can be a value, not a key; and a document is a mapping.
    fn expect_value(&self, line: usize) -> Result<(), Error> {
        match self.open.last() {
            Some(Open::Map(None)) => Err(Error::Unsupported {
                line,
                what: "a key that is no text",
            }),
            _ => Ok(()),
        }
    }

    fn scalar(&mut self, text: &str, style: ScalarStyle, at: Range<usize>, line: usize) -> Result<(), Error> {
        match self.open.last_mut() {
            Some(Open::Map(key @ None)) => {
                *key = Some(text.to_owned());
                if self.open.len() == 1 && text == SOPS {
                    self.block = Some(at.start);
                } else if self.open.len() == 1 && self.block.is_some() {
                    return Err(Error::Unsupported {
                        line,
                        what: "a key after the `sops` block",
                    });
                }
                return Ok(());
            }
            Some(_) => {}
            None => {
                return Err(Error::Unsupported {
                    line,
                    what: "a document that is no mapping",
                });
            }
        }
        let kind = if style == ScalarStyle::Plain {
            scalar::resolve(if at.is_empty() { "" } else { text })
        } else {
            Some(Kind::Text)
        };
        let (at, whole_lines) = self.occupied(style, at);
        self.push(Leaf {
            path: self.path(),
            value: text.to_owned(),
            kind,
            at,
            whole_lines,
            in_flow: self.flows > 0,
        });
        self.value_ended();
        Ok(())
    }

    /// The parser's span of a block scalar begins after its `|` or `>` and ends after its last line break.
    fn occupied(&self, style: ScalarStyle, at: Range<usize>) -> (Range<usize>, bool) {
        if !matches!(style, ScalarStyle::Literal | ScalarStyle::Folded) {
            return (at, false);
        }
        let header = self.text[self.end..at.start]
            .find(['|', '>'])
            .map_or(at.start, |offset| self.end + offset);
        // The span may run into the indentation of the next line.
        let end = self.text[..at.end].trim_end_matches([' ', '\t']).len();
        let whole_lines = self.text[..end].ends_with('\n');
        (header..if whole_lines { end } else { at.end }, whole_lines)
    }

    fn comment(&mut self, text: &str, at: Range<usize>) {
        self.push(Leaf {
            path: self.path(),
            value: text.to_owned(),
            kind: Some(Kind::Comment),
            at,
            whole_lines: false,
            in_flow: self.flows > 0,
        });
    }

    /// What belongs to the `sops` block is no value of the document.
    fn push(&mut self, leaf: Leaf) {
        if self.block.is_none() {
            self.leaves.push(leaf);
        }
    }

    fn value_ended(&mut self) {
        if let Some(Open::Map(key)) = self.open.last_mut() {
            *key = None;
        }
    }

    fn path(&self) -> Vec<String> {
        let key = |open: &Open| {
            if let Open::Map(Some(key)) = open {
                Some(key.clone())
            } else {
                None
            }
        };
        self.open.iter().filter_map(key).collect()
    }
}
