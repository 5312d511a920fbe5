//! Runs scripts.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures::future::BoxFuture;

use super::builtins;
use super::io::{Input, Output};
use super::parse::{self, How, Node, Redirect};
use super::pattern;
use super::process::Process;
use crate::cloud::fs::FsError;
use crate::cloud::tools;

/// How a command ended, as far as its surroundings must know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flow {
    Next(i32),
    Exit(i32),
    Return(i32),
    Break(u32),
    Continue(u32),
}

#[derive(Clone, Copy, Default)]
pub(super) struct Options {
    pub errexit: bool,
    pub nounset: bool,
    pub pipefail: bool,
    pub noclobber: bool,
}

pub(crate) struct Shell {
    pub process: Process,
    /// Variables that are not exported; those that are stand in the environment of the process.
    pub(super) variables: BTreeMap<String, String>,
    pub(super) functions: BTreeMap<String, Arc<Node>>,
    pub(super) positional: Vec<String>,
    pub(super) name: String,
    pub(super) options: Options,
    pub(super) status: i32,
    /// How the last command substitution of the current command ended.
    pub(super) substituted: Option<i32>,
    pub(super) on_exit: Option<String>,
    /// Inside a condition, where a failure ends nothing.
    tested: u32,
    /// Values that `local` hides, per function call.
    pub(super) hidden: Vec<Vec<(String, Option<String>)>>,
    background: Vec<tokio::task::JoinHandle<i32>>,
}

const MAX_DEPTH: u32 = 60;

/// Runs a script to its end, as `sh` does. The arguments begin with its name.
pub(crate) async fn interpret(mut process: Process, script: &str, arguments: Vec<String>) -> i32 {
    if process.depth > MAX_DEPTH {
        process.complain("sh: fork: Resource temporarily unavailable");
        return 254;
    }
    process.locks = Arc::default();
    let mut shell = Shell::new(process, arguments);
    match parse::parse(script) {
        Ok(node) => shell.run_to_status(&node).await,
        Err(error) => {
            let name = shell.name.clone();
            shell.process.complain(format!("{name}: {error}"));
            2
        }
    }
}

impl Shell {
    pub fn new(process: Process, mut arguments: Vec<String>) -> Self {
        let name = if arguments.is_empty() {
            "sh".to_owned()
        } else {
            arguments.remove(0)
        };
        Self {
            process,
            variables: BTreeMap::new(),
            functions: BTreeMap::new(),
            positional: arguments,
            name,
            options: Options::default(),
            status: 0,
            substituted: None,
            on_exit: None,
            tested: 0,
            hidden: Vec::new(),
            background: Vec::new(),
        }
    }

    /// A subshell: what it changes stays inside.
    pub(super) fn fork(&self) -> Self {
        let mut process = self.process.clone();
        process.locks = Arc::default();
        Self {
            process,
            variables: self.variables.clone(),
            functions: self.functions.clone(),
            positional: self.positional.clone(),
            name: self.name.clone(),
            options: self.options,
            status: self.status,
            substituted: None,
            on_exit: None,
            tested: self.tested,
            hidden: Vec::new(),
            background: Vec::new(),
        }
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        match name {
            "?" => return Some(self.status.to_string()),
            "#" => return Some(self.positional.len().to_string()),
            "@" | "*" => return Some(self.positional.join(" ")),
            "$" => return Some("4242".to_owned()),
            "0" => return Some(self.name.clone()),
            "-" => return Some(if self.options.errexit { "e" } else { "" }.to_owned()),
            "PWD" => return Some(self.process.cwd.clone()),
            _ => {}
        }
        if let Ok(index) = name.parse::<usize>() {
            return self.positional.get(index - 1).cloned();
        }
        self.variables.get(name).or_else(|| self.process.env.get(name)).cloned()
    }

    pub(super) fn set(&mut self, name: &str, value: &str) {
        if let Some(exported) = self.process.env.get_mut(name) {
            *exported = value.to_owned();
        } else {
            self.variables.insert(name.to_owned(), value.to_owned());
        }
    }

    /// An error that ends the script.
    pub(super) fn fatal(&mut self, text: &str) -> Flow {
        self.process.complain(format!("{}: {text}", self.name));
        Flow::Exit(1)
    }

    pub async fn run_to_status(&mut self, node: &Node) -> i32 {
        let status = match self.run(node).await {
            Flow::Next(status) | Flow::Exit(status) | Flow::Return(status) => status,
            Flow::Break(_) | Flow::Continue(_) => 0,
        };
        self.status = status;
        if let Some(script) = self.on_exit.take()
            && let Ok(node) = parse::parse(&script)
            && let Flow::Exit(changed) = self.run(&node).await
        {
            return changed;
        }
        status
    }

    pub(super) fn run<'a>(&'a mut self, node: &'a Node) -> BoxFuture<'a, Flow> {
        Box::pin(async move {
            let flow = self.step(node).await;
            if let Flow::Next(status) = flow {
                self.status = status;
                // A pipeline or a simple command that fails ends the script, unless it is a condition.
                let checked = matches!(node, Node::Simple { .. } | Node::Pipe(_) | Node::Subshell(_));
                if status != 0 && checked && self.options.errexit && self.tested == 0 {
                    return Flow::Exit(status);
                }
            }
            flow
        })
    }

    async fn step(&mut self, node: &Node) -> Flow {
        match node {
            Node::Simple {
                assigns,
                words,
                redirects,
            } => self.simple(assigns, words, redirects).await,
            Node::Pipe(stages) => self.pipe(stages).await,
            Node::Not(inner) => match self.test(inner).await {
                Flow::Next(status) => Flow::Next(i32::from(status == 0)),
                other => other,
            },
            Node::And(left, right) => match self.test(left).await {
                Flow::Next(0) => self.run(right).await,
                other => other,
            },
            Node::Or(left, right) => match self.test(left).await {
                Flow::Next(status) if status != 0 => self.run(right).await,
                other => other,
            },
            Node::Sequence(commands) => self.sequence(commands).await,
            Node::If(branches, otherwise) => {
                for (condition, body) in branches {
                    match self.test(condition).await {
                        Flow::Next(0) => return self.run(body).await,
                        Flow::Next(_) => {}
                        other => return other,
                    }
                }
                match otherwise {
                    Some(body) => self.run(body).await,
                    None => Flow::Next(0),
                }
            }
            Node::While { condition, body, until } => self.repeat(condition, body, *until).await,
            Node::For { name, words, body } => self.for_each(name, words.as_deref(), body).await,
            Node::Case(subject, arms) => self.case(subject, arms).await,
            Node::Subshell(body) => {
                let mut inner = self.fork();
                Flow::Next(inner.run_to_status(body).await)
            }
            Node::Redirected(inner, redirects) => {
                let kept = (self.process.stdin.clone(), self.process.outputs.clone());
                let flow = match self.redirect(redirects).await {
                    Ok(()) => self.run(inner).await,
                    Err(flow) => flow,
                };
                (self.process.stdin, self.process.outputs) = kept;
                flow
            }
            Node::Function(name, body) => {
                self.functions.insert(name.clone(), Arc::clone(body));
                Flow::Next(0)
            }
        }
    }

    async fn test(&mut self, node: &Node) -> Flow {
        self.tested += 1;
        let flow = self.run(node).await;
        self.tested -= 1;
        flow
    }

    async fn sequence(&mut self, commands: &[(Arc<Node>, bool)]) -> Flow {
        let mut last = Flow::Next(0);
        for (command, background) in commands {
            if *background {
                let (mut inner, node) = (self.fork(), Arc::clone(command));
                self.background
                    .push(self.process.host.spawn(async move { inner.run_to_status(&node).await }));
                last = Flow::Next(0);
                continue;
            }
            last = self.run(command).await;
            if !matches!(last, Flow::Next(_)) {
                return last;
            }
        }
        last
    }

    pub(super) async fn wait(&mut self) -> i32 {
        let mut status = 0;
        for job in std::mem::take(&mut self.background) {
            status = job.await.unwrap_or(137);
        }
        status
    }

    /// Left to right, each with what the one before has written.
    async fn pipe(&mut self, stages: &[Node]) -> Flow {
        let mut input = self.process.stdin.clone();
        let (mut status, mut failed) = (0, 0);
        for (index, stage) in stages.iter().enumerate() {
            let mut inner = self.fork();
            inner.process.stdin = input.clone();
            let (output, buffer) = Output::buffer();
            let last = index + 1 == stages.len();
            if !last {
                inner.process.outputs.insert(1, output);
            }
            status = inner.run_to_status(stage).await;
            failed = if status == 0 { failed } else { status };
            input = Input::of(std::mem::take(&mut *buffer.lock().expect("plain data")));
        }
        Flow::Next(if self.options.pipefail { failed } else { status })
    }

    async fn repeat(&mut self, condition: &Node, body: &Node, until: bool) -> Flow {
        let mut status = 0;
        loop {
            match self.test(condition).await {
                Flow::Next(tested) if (tested == 0) != until => {}
                Flow::Next(_) => return Flow::Next(status),
                other => return other,
            }
            match self.run(body).await {
                Flow::Next(last) => status = last,
                Flow::Break(level) if level > 1 => return Flow::Break(level - 1),
                Flow::Break(_) => return Flow::Next(0),
                Flow::Continue(level) if level > 1 => return Flow::Continue(level - 1),
                Flow::Continue(_) => {}
                other => return other,
            }
            // A loop that only computes must not keep the world from turning.
            tokio::task::yield_now().await;
        }
    }

    async fn for_each(&mut self, name: &str, words: Option<&[parse::Word]>, body: &Node) -> Flow {
        let values = match words {
            None => self.positional.clone(),
            Some(words) => match self.fields(words).await {
                Ok(values) => values,
                Err(flow) => return flow,
            },
        };
        let mut status = 0;
        for value in values {
            self.set(name, &value);
            match self.run(body).await {
                Flow::Next(last) => status = last,
                Flow::Break(level) if level > 1 => return Flow::Break(level - 1),
                Flow::Break(_) => return Flow::Next(0),
                Flow::Continue(level) if level > 1 => return Flow::Continue(level - 1),
                Flow::Continue(_) => {}
                other => return other,
            }
        }
        Flow::Next(status)
    }

    async fn case(&mut self, subject: &parse::Word, arms: &[(Vec<parse::Word>, Node)]) -> Flow {
        let text = match self.text(subject).await {
            Ok(text) => text,
            Err(flow) => return flow,
        };
        for (patterns, body) in arms {
            for wanted in patterns {
                match self.signs(wanted).await {
                    Ok(signs) if pattern::matches(&signs, &text) => return self.run(body).await,
                    Ok(_) => {}
                    Err(flow) => return flow,
                }
            }
        }
        Flow::Next(0)
    }

    async fn simple(&mut self, assigns: &[(String, parse::Word)], words: &[parse::Word], redirects: &[Redirect]) -> Flow {
        // `$?` in the words is still that of the command before.
        self.substituted = None;
        let fields = match self.fields(words).await {
            Ok(fields) => fields,
            Err(flow) => return flow,
        };
        let mut values = Vec::new();
        for (name, word) in assigns {
            match self.text(word).await {
                Ok(value) => values.push((name.clone(), value)),
                Err(flow) => return flow,
            }
        }
        let substituted = self.substituted.take().unwrap_or(0);
        let kept = (self.process.stdin.clone(), self.process.outputs.clone());
        if let Err(flow) = self.redirect(redirects).await {
            (self.process.stdin, self.process.outputs) = kept;
            return flow;
        }
        let Some(name) = fields.first().cloned() else {
            values.iter().for_each(|(name, value)| self.set(name, value));
            (self.process.stdin, self.process.outputs) = kept;
            // An assignment's status is that of its command substitution.
            return Flow::Next(substituted);
        };
        let flow = self.call(&name, fields, values).await;
        // `exec 9>file` keeps its redirections.
        if !(name == "exec" && matches!(flow, Flow::Next(_))) {
            (self.process.stdin, self.process.outputs) = kept;
        }
        flow
    }

    async fn call(&mut self, name: &str, fields: Vec<String>, values: Vec<(String, String)>) -> Flow {
        if let Some(body) = self.functions.get(name).cloned() {
            return self.call_function(&body, fields, values).await;
        }
        if builtins::is_builtin(name) {
            values.iter().for_each(|(name, value)| self.set(name, value));
            return builtins::run(self, fields).await;
        }
        let mut process = self.process.clone();
        process.env.extend(values);
        Flow::Next(tools::execute(process, fields).await)
    }

    async fn call_function(&mut self, body: &Node, mut fields: Vec<String>, values: Vec<(String, String)>) -> Flow {
        self.process.depth += 1;
        if self.process.depth > MAX_DEPTH {
            return self.fatal("maximum function nesting level exceeded");
        }
        values.iter().for_each(|(name, value)| self.set(name, value));
        fields.remove(0);
        let outer = std::mem::replace(&mut self.positional, fields);
        self.hidden.push(Vec::new());
        let flow = self.run(body).await;
        for (name, value) in self.hidden.pop().into_iter().flatten().rev() {
            match value {
                Some(value) => self.set(&name, &value),
                None => drop(self.variables.remove(&name)),
            }
        }
        self.positional = outer;
        self.process.depth -= 1;
        match flow {
            Flow::Return(status) => Flow::Next(status),
            other => other,
        }
    }

    async fn redirect(&mut self, redirects: &[Redirect]) -> Result<(), Flow> {
        for redirect in redirects {
            let target = self.text(&redirect.target).await?;
            if let Err((path, error)) = self.open(redirect, &target) {
                let name = self.name.clone();
                self.process.complain(format!("{name}: {path}: {error}"));
                return Err(Flow::Next(1));
            }
        }
        Ok(())
    }

    fn open(&mut self, redirect: &Redirect, target: &str) -> Result<(), (String, FsError)> {
        let failed = |error| (target.to_owned(), error);
        match redirect.how {
            How::Here => self.process.stdin = Input::of(target),
            How::Read => {
                let bytes = self.process.read(target).map_err(failed)?;
                self.process.stdin = Input::of(bytes);
            }
            How::Duplicate => {
                let output = match target {
                    "-" => Output::Null,
                    fd => {
                        let fd = fd.parse().unwrap_or(1);
                        self.process.outputs.get(&fd).cloned().unwrap_or(Output::Null)
                    }
                };
                if redirect.fd != 0 {
                    self.process.outputs.insert(redirect.fd, output);
                }
            }
            How::Write | How::Append => {
                let output = self.open_file(redirect, target).map_err(failed)?;
                if redirect.fd == u32::MAX {
                    self.process.outputs.insert(1, output.clone());
                    self.process.outputs.insert(2, output);
                } else {
                    self.process.outputs.insert(redirect.fd, output);
                }
            }
        }
        Ok(())
    }

    fn open_file(&self, redirect: &Redirect, target: &str) -> Result<Output, FsError> {
        let process = &self.process;
        match target {
            "/dev/null" => return Ok(Output::Null),
            "/dev/stdout" => return Ok(process.outputs.get(&1).cloned().unwrap_or(Output::Null)),
            "/dev/stderr" => return Ok(process.outputs.get(&2).cloned().unwrap_or(Output::Null)),
            _ => {}
        }
        let path = process.path(target);
        if redirect.how == How::Write {
            if self.options.noclobber && process.lstat(target).is_ok() {
                return Err(FsError::Exists);
            }
            process.store(target, "")?;
        } else {
            let (host, mode) = (&process.host, 0o666 & !process.umask);
            host.fs.append(process.who(), &path, b"", mode, host.now())?;
        }
        Ok(Output::File(path))
    }
}
