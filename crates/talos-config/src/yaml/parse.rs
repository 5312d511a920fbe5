//! Text to trees.

use granit_parser::{Event, Parser, ScalarStyle, Span};

use super::{Map, Node, Scalar, ScalarKind, Value};

/// Aliases multiply what a few lines of text can mean; a config has some thousand nodes.
const MAX_NODES: usize = 1_000_000;

/// One YAML document and the line of its first content.
#[derive(Debug, Clone)]
pub struct Document {
    pub line: usize,
    pub root: Node,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct SyntaxError {
    pub line: usize,
    pub problem: String,
}

/// The single document of a text; a text without any is null.
pub fn parse(text: &str) -> Result<Node, SyntaxError> {
    let mut documents = parse_documents(text)?;
    match documents.len() {
        0 => Ok(Node::null()),
        1 => Ok(documents.remove(0).root),
        _ => Err(SyntaxError {
            line: documents[1].line,
            problem: "more than one document".to_owned(),
        }),
    }
}

pub fn parse_documents(text: &str) -> Result<Vec<Document>, SyntaxError> {
    let mut reader = Reader {
        events: Parser::new_from_str_with_options(text, granit_parser::options! { emit_comments: false }),
        anchors: Vec::new(),
        nodes: 0,
    };
    let mut documents = Vec::new();
    while let Some((event, _)) = reader.next()? {
        if matches!(event, Event::DocumentStart(..)) {
            reader.anchors.clear();
            let root = reader.node()?;
            documents.push(Document { line: root.line, root });
        }
    }
    Ok(documents)
}

struct Reader<'input> {
    events: Parser<'input, granit_parser::StrInput<'input>>,
    anchors: Vec<(usize, Node)>,
    nodes: usize,
}

impl<'input> Reader<'input> {
    fn next(&mut self) -> Result<Option<(Event<'input>, Span)>, SyntaxError> {
        let next = self.events.next().transpose();
        next.map_err(|error| SyntaxError {
            line: error.marker().line(),
            problem: error.to_string(),
        })
    }

    fn node(&mut self) -> Result<Node, SyntaxError> {
        match self.next()? {
            Some((event, span)) => self.node_from(event, span.start.line()),
            None => Ok(Node::null()),
        }
    }

    fn node_from(&mut self, event: Event<'input>, line: usize) -> Result<Node, SyntaxError> {
        let (value, anchor) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let is_text = style != ScalarStyle::Plain || tag.is_some_and(|tag| tag.is_yaml_core_schema_tag("str"));
                let scalar = if is_text { Scalar::text(text) } else { Scalar::plain(&text) };
                (Value::Scalar(scalar), anchor)
            }
            Event::SequenceStart(_, anchor, _) => (self.list()?, anchor),
            Event::MappingStart(_, anchor, _) => (self.map()?, anchor),
            Event::Alias(id) => (self.alias(id, line)?, 0),
            _ => (Value::Scalar(Scalar::null()), 0),
        };
        self.nodes += 1;
        let node = Node::at(line, value);
        if anchor != 0 {
            self.anchors.push((anchor, node.clone()));
        }
        Ok(node)
    }

    fn alias(&mut self, id: usize, line: usize) -> Result<Value, SyntaxError> {
        let target = self
            .anchors
            .iter()
            .rev()
            .find(|(anchor, _)| *anchor == id)
            .map(|(_, node)| node.clone());
        let Some(target) = target else {
            return Err(SyntaxError {
                line,
                problem: "anchor contains itself".to_owned(),
            });
        };
        self.nodes += count(&target);
        if self.nodes > MAX_NODES {
            return Err(SyntaxError {
                line,
                problem: "document contains excessive aliasing".to_owned(),
            });
        }
        Ok(target.value)
    }

    fn list(&mut self) -> Result<Value, SyntaxError> {
        let mut items = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::SequenceEnd) {
                break;
            }
            items.push(self.node_from(event, span.start.line())?);
        }
        Ok(Value::List(items))
    }

    fn map(&mut self) -> Result<Value, SyntaxError> {
        let mut entries = Map::new();
        let mut merged = Vec::new();
        while let Some((event, span)) = self.next()? {
            if matches!(event, Event::MappingEnd) {
                break;
            }
            let line = span.start.line();
            let is_merge = matches!(&event, Event::Scalar(text, ScalarStyle::Plain, ..) if text == "<<");
            let key = self.node_from(event, line)?;
            let value = self.node()?;
            if is_merge {
                merged.push(value);
                continue;
            }
            insert(&mut entries, &key, value)?;
        }
        merged.into_iter().for_each(|source| merge_into(&mut entries, source));
        Ok(Value::Map(entries))
    }
}

fn insert(entries: &mut Map, key: &Node, mut value: Node) -> Result<(), SyntaxError> {
    let Some(scalar) = key.as_scalar() else {
        return Err(SyntaxError {
            line: key.line,
            problem: "a mapping key must be a scalar".to_owned(),
        });
    };
    if let Some(earlier) = entries.get(&scalar.text) {
        let problem = format!("mapping key {:?} already defined at line {}", scalar.text, earlier.key_line);
        return Err(SyntaxError { line: key.line, problem });
    }
    value.key_line = key.line;
    let text = if scalar.kind == ScalarKind::Null {
        String::new()
    } else {
        scalar.text.clone()
    };
    entries.insert(text, value);
    Ok(())
}

/// `<<` brings the entries of one mapping, or of several, that are not there yet.
fn merge_into(entries: &mut Map, source: Node) {
    match source.value {
        Value::Map(inherited) => {
            for (key, value) in inherited {
                entries.entry(key).or_insert(value);
            }
        }
        Value::List(sources) => sources.into_iter().for_each(|source| merge_into(entries, source)),
        Value::Scalar(_) => {}
    }
}

fn count(node: &Node) -> usize {
    1 + match &node.value {
        Value::Scalar(_) => 0,
        Value::List(items) => items.iter().map(count).sum(),
        Value::Map(entries) => entries.values().map(count).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_remember_the_line_of_their_key() {
        let root = parse("a: 1\nb:\n  c:\n    - x\n").unwrap();
        assert_eq!(root.get("b").unwrap().key_line, 2);
        assert_eq!(root.at_path("b.c").unwrap().key_line, 3);
        assert_eq!(root.at_path("b.c").unwrap().line, 4);
        assert_eq!(root.at_path("b.c").unwrap().as_list().unwrap()[0].line, 4);
    }

    #[test]
    fn a_key_given_twice_is_an_error_that_names_both_lines() {
        let error = parse("a: 1\nb: 2\na: 3\n").unwrap_err();
        assert_eq!(error.to_string(), "line 3: mapping key \"a\" already defined at line 1");
    }

    #[test]
    fn aliases_and_merge_keys_are_expanded() {
        let root = parse("base: &b {x: 1, y: 2}\nuse:\n  <<: *b\n  y: 3\n").unwrap();
        assert_eq!(root.at_path("use.x").unwrap().as_int(), Some(1));
        assert_eq!(root.at_path("use.y").unwrap().as_int(), Some(3));
    }

    #[test]
    fn an_alias_bomb_is_refused() {
        let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
        for level in 1..12 {
            let inner = format!("*a{},", level - 1).repeat(10);
            text.push_str(&format!("a{level}: &a{level} [{inner}]\n"));
        }
        assert!(parse(&text).unwrap_err().problem.contains("excessive aliasing"));
    }
}
