use super::lexer::{Spanned, Token};
use super::{Fault, Kind};

/// An expression and the character that CEL points at when its type is wrong.
#[derive(Debug, Clone)]
pub struct Tree {
    pub at: usize,
    pub node: Node,
}

#[derive(Debug, Clone)]
pub enum Node {
    Literal(Kind),
    Name(String),
    Field(Box<Tree>, String),
    Index(Box<Tree>, Box<Tree>),
    Call {
        target: Option<Box<Tree>>,
        name: String,
        arguments: Vec<Tree>,
    },
    Unary(&'static str, Box<Tree>),
    Binary(&'static str, Box<Tree>, Box<Tree>),
    Choice(Box<Tree>, Box<Tree>, Box<Tree>),
    Collection(Kind, Vec<Tree>),
}

const STARTS: &str =
    "{'[', '{', '(', '.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, IDENTIFIER}";

/// Nesting beyond this is not a selector.
const MAX_DEPTH: usize = 100;

pub fn parse(tokens: &[Spanned]) -> Result<Tree, Fault> {
    let mut parser = Parser {
        tokens,
        next: 0,
        depth: 0,
    };
    let tree = parser.choice()?;
    let rest = parser.peek();
    if rest.token != Token::End {
        return Err(Fault::new(
            rest.at,
            format!("Syntax error: extraneous input '{}' expecting <EOF>", rest.text),
        ));
    }
    Ok(tree)
}

struct Parser<'a> {
    tokens: &'a [Spanned],
    next: usize,
    depth: usize,
}

impl Parser<'_> {
    fn peek(&self) -> &Spanned {
        &self.tokens[self.next.min(self.tokens.len() - 1)]
    }

    fn take(&mut self, sign: &str) -> Option<usize> {
        let found = self.peek();
        let at = found.at;
        let matches = match &found.token {
            Token::Sign(found) => *found == sign,
            Token::Name(found) => found == sign && sign == "in",
            _ => false,
        };
        if matches {
            self.next += 1;
        }
        matches.then_some(at)
    }

    fn expect(&mut self, sign: &str) -> Result<(), Fault> {
        if self.take(sign).is_some() {
            return Ok(());
        }
        let found = self.peek();
        Err(Fault::new(
            found.at,
            format!("Syntax error: missing '{sign}' at '{}'", found.text),
        ))
    }

    fn choice(&mut self) -> Result<Tree, Fault> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(Fault::new(self.peek().at, "expression recursion limit exceeded"));
        }
        let condition = self.binary(0)?;
        let tree = match self.take("?") {
            None => condition,
            Some(at) => {
                let yes = self.binary(0)?;
                self.expect(":")?;
                let no = self.choice()?;
                Tree {
                    at,
                    node: Node::Choice(Box::new(condition), Box::new(yes), Box::new(no)),
                }
            }
        };
        self.depth -= 1;
        Ok(tree)
    }

    fn binary(&mut self, level: usize) -> Result<Tree, Fault> {
        const LEVELS: [&[&str]; 5] = [
            &["||"],
            &["&&"],
            &["==", "!=", "<", "<=", ">", ">=", "in"],
            &["+", "-"],
            &["*", "/", "%"],
        ];
        let Some(signs) = LEVELS.get(level) else { return self.unary() };
        let mut left = self.binary(level + 1)?;
        while let Some((sign, at)) = signs.iter().find_map(|sign| self.take(sign).map(|at| (*sign, at))) {
            let right = self.binary(level + 1)?;
            left = Tree {
                at,
                node: Node::Binary(sign, Box::new(left), Box::new(right)),
            };
        }
        Ok(left)
    }

    fn unary(&mut self) -> Result<Tree, Fault> {
        for sign in ["!", "-"] {
            if let Some(at) = self.take(sign) {
                self.depth += 1;
                if self.depth > MAX_DEPTH {
                    return Err(Fault::new(at, "expression recursion limit exceeded"));
                }
                let operand = self.unary()?;
                self.depth -= 1;
                return Ok(Tree {
                    at,
                    node: Node::Unary(sign, Box::new(operand)),
                });
            }
        }
        let start = self.primary()?;
        self.members(start)
    }

    fn members(&mut self, mut tree: Tree) -> Result<Tree, Fault> {
        loop {
            if let Some(at) = self.take(".") {
                let found = self.peek().clone();
                let Token::Name(name) = found.token else {
                    return Err(self.unexpected(&found));
                };
                self.next += 1;
                tree = match self.take("(") {
                    Some(at) => {
                        let arguments = self.list(")")?;
                        Tree {
                            at,
                            node: Node::Call {
                                target: Some(Box::new(tree)),
                                name,
                                arguments,
                            },
                        }
                    }
                    None => Tree {
                        at,
                        node: Node::Field(Box::new(tree), name),
                    },
                };
            } else if let Some(at) = self.take("[") {
                let index = self.choice()?;
                self.expect("]")?;
                tree = Tree {
                    at,
                    node: Node::Index(Box::new(tree), Box::new(index)),
                };
            } else {
                return Ok(tree);
            }
        }
    }

    fn primary(&mut self) -> Result<Tree, Fault> {
        let found = self.peek().clone();
        let at = found.at;
        self.next += 1;
        let node = match &found.token {
            Token::Int => Node::Literal(Kind::Int),
            Token::Uint => Node::Literal(Kind::Uint),
            Token::Float => Node::Literal(Kind::Double),
            Token::Text => Node::Literal(Kind::Text),
            Token::Bytes => Node::Literal(Kind::Bytes),
            Token::Name(name) => return self.named(name, at),
            Token::Sign("(") => {
                let inner = self.choice()?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("[") => Node::Collection(Kind::List, self.list("]")?),
            Token::Sign("{") => Node::Collection(Kind::Map, self.entries()?),
            Token::Sign(_) | Token::End => return Err(self.unexpected(&found)),
        };
        Ok(Tree { at, node })
    }

    fn named(&mut self, name: &str, at: usize) -> Result<Tree, Fault> {
        let node = match name {
            "true" | "false" => Node::Literal(Kind::Bool),
            "null" => Node::Literal(Kind::Null),
            _ => match self.take("(") {
                Some(at) => {
                    let call = Node::Call {
                        target: None,
                        name: name.to_owned(),
                        arguments: self.list(")")?,
                    };
                    return Ok(Tree { at, node: call });
                }
                None => Node::Name(name.to_owned()),
            },
        };
        Ok(Tree { at, node })
    }

    fn list(&mut self, end: &str) -> Result<Vec<Tree>, Fault> {
        let mut items = Vec::new();
        while self.take(end).is_none() {
            items.push(self.choice()?);
            if self.take(",").is_none() {
                self.expect(end)?;
                break;
            }
        }
        Ok(items)
    }

    fn entries(&mut self) -> Result<Vec<Tree>, Fault> {
        let mut items = Vec::new();
        while self.take("}").is_none() {
            items.push(self.choice()?);
            self.expect(":")?;
            items.push(self.choice()?);
            if self.take(",").is_none() {
                self.expect("}")?;
                break;
            }
        }
        Ok(items)
    }

    fn unexpected(&self, found: &Spanned) -> Fault {
        let verb = if found.token == Token::End {
            "mismatched"
        } else {
            "extraneous"
        };
        Fault::new(
            found.at,
            format!("Syntax error: {verb} input '{}' expecting {STARTS}", found.text),
        )
    }
}
