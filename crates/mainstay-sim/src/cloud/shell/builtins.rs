//! Commands that the shell itself carries out.

use super::parse;
use super::run::{Flow, Shell};
use crate::cloud::tools;

const NAMES: [&str; 27] = [
    ":", ".", "source", "break", "cd", "command", "continue", "eval", "exec", "exit", "export", "local", "pwd", "read",
    "readonly", "return", "set", "shift", "trap", "type", "umask", "unset", "wait", "true", "false", "hash", "declare",
];

pub(super) fn is_builtin(name: &str) -> bool {
    NAMES.contains(&name)
}

fn number(arguments: &[String], default: i32) -> i32 {
    arguments.first().and_then(|text| text.parse().ok()).unwrap_or(default)
}

pub(super) async fn run(shell: &mut Shell, mut fields: Vec<String>) -> Flow {
    let name = fields.remove(0);
    let arguments = fields;
    let level = || u32::try_from(number(&arguments, 1)).unwrap_or(1).max(1);
    match name.as_str() {
        "true" | ":" | "hash" => Flow::Next(0),
        "false" => Flow::Next(1),
        "break" => Flow::Break(level()),
        "continue" => Flow::Continue(level()),
        "exit" => Flow::Exit(number(&arguments, shell.status) & 0xff),
        "return" => Flow::Return(number(&arguments, shell.status) & 0xff),
        "shift" => {
            let count = usize::try_from(number(&arguments, 1)).unwrap_or(0);
            if count > shell.positional.len() {
                return Flow::Next(1);
            }
            shell.positional.drain(..count);
            Flow::Next(0)
        }
        "pwd" => {
            shell.process.line(&shell.process.cwd);
            Flow::Next(0)
        }
        "cd" => change_directory(shell, &arguments),
        "export" | "readonly" | "declare" => export(shell, &name, &arguments),
        "local" => local(shell, &arguments),
        "unset" => {
            for name in arguments.iter().filter(|name| !name.starts_with('-')) {
                shell.variables.remove(name);
                shell.process.env.remove(name);
                shell.functions.remove(name);
            }
            Flow::Next(0)
        }
        "set" => set(shell, arguments),
        "umask" => {
            match arguments.first().and_then(|text| u32::from_str_radix(text, 8).ok()) {
                Some(mask) => shell.process.umask = mask,
                None => shell.process.line(format!("{:04o}", shell.process.umask)),
            }
            Flow::Next(0)
        }
        "trap" => {
            if let [script, signals @ ..] = arguments.as_slice()
                && signals.iter().any(|signal| signal == "EXIT" || signal == "0")
            {
                shell.on_exit = (script != "-").then(|| script.clone());
            }
            Flow::Next(0)
        }
        "read" => read(shell, &arguments).await,
        "wait" => Flow::Next(shell.wait().await),
        "eval" => eval(shell, &arguments.join(" ")).await,
        "." | "source" => source(shell, &arguments).await,
        "exec" => exec(shell, arguments).await,
        _ => command(shell, &name, arguments).await,
    }
}

fn change_directory(shell: &mut Shell, arguments: &[String]) -> Flow {
    let goal = arguments.first().cloned().or_else(|| shell.get("HOME")).unwrap_or_default();
    match shell.process.change_directory(&goal) {
        Ok(()) => Flow::Next(0),
        Err(error) => Flow::Next(shell.process.fail(format!("{}: cd: {goal}: {error}", shell.name))),
    }
}

fn export(shell: &mut Shell, name: &str, arguments: &[String]) -> Flow {
    for argument in arguments.iter().filter(|argument| !argument.starts_with('-')) {
        let (variable, value) = match argument.split_once('=') {
            Some((variable, value)) => (variable, value.to_owned()),
            None => (argument.as_str(), shell.get(argument).unwrap_or_default()),
        };
        if name == "export" {
            shell.variables.remove(variable);
            shell.process.env.insert(variable.to_owned(), value);
        } else {
            shell.set(variable, &value);
        }
    }
    Flow::Next(0)
}

fn local(shell: &mut Shell, arguments: &[String]) -> Flow {
    for argument in arguments {
        let (name, value) = argument.split_once('=').unwrap_or((argument, ""));
        let before = shell.get(name);
        if let Some(frame) = shell.hidden.last_mut() {
            frame.push((name.to_owned(), before));
        }
        shell.set(name, value);
    }
    Flow::Next(0)
}

fn set(shell: &mut Shell, arguments: Vec<String>) -> Flow {
    let mut rest = arguments.into_iter();
    while let Some(argument) = rest.next() {
        let Some(on) = argument.chars().next().filter(|c| "+-".contains(*c)).map(|c| c == '-') else {
            shell.positional = [argument].into_iter().chain(rest).collect();
            return Flow::Next(0);
        };
        if argument == "--" {
            shell.positional = rest.collect();
            return Flow::Next(0);
        }
        for letter in argument.chars().skip(1) {
            match letter {
                'e' => shell.options.errexit = on,
                'u' => shell.options.nounset = on,
                'C' => shell.options.noclobber = on,
                'o' => match rest.next().as_deref() {
                    Some("pipefail") => shell.options.pipefail = on,
                    Some("errexit") => shell.options.errexit = on,
                    Some("nounset") => shell.options.nounset = on,
                    Some("noclobber") => shell.options.noclobber = on,
                    _ => {}
                },
                _ => {}
            }
        }
    }
    Flow::Next(0)
}

async fn read(shell: &mut Shell, arguments: &[String]) -> Flow {
    let names: Vec<&String> = arguments.iter().filter(|argument| !argument.starts_with('-')).collect();
    let line = shell.process.stdin.read_line().await;
    let ended = line.as_ref().is_none_or(|line| !line.ends_with(b"\n"));
    let text = String::from_utf8_lossy(&line.unwrap_or_default())
        .trim_end_matches('\n')
        .to_owned();
    let separators = shell.get("IFS").unwrap_or_else(|| " \t\n".to_owned());
    let mut rest = text
        .trim_matches(|c: char| c.is_whitespace() && separators.contains(c))
        .to_owned();
    let count = names.len();
    for (index, name) in names.into_iter().enumerate() {
        let cut = rest.find(|c: char| separators.contains(c)).filter(|_| index + 1 < count);
        let value = match cut {
            Some(at) => {
                let value = rest[..at].to_owned();
                rest = rest[at + 1..]
                    .trim_start_matches(|c: char| c.is_whitespace() && separators.contains(c))
                    .to_owned();
                value
            }
            None => std::mem::take(&mut rest),
        };
        shell.set(name, &value);
    }
    Flow::Next(i32::from(ended))
}

async fn eval(shell: &mut Shell, text: &str) -> Flow {
    match parse::parse(text) {
        Ok(node) => shell.run(&node).await,
        Err(error) => {
            shell.process.complain(format!("{}: eval: {error}", shell.name));
            Flow::Next(2)
        }
    }
}

async fn source(shell: &mut Shell, arguments: &[String]) -> Flow {
    let Some(path) = arguments.first() else { return Flow::Next(2) };
    match shell.process.read(path) {
        Ok(text) => eval(shell, &String::from_utf8_lossy(&text)).await,
        Err(error) => {
            shell.process.complain(format!("{}: {path}: {error}", shell.name));
            // A script without the file that it needs does not go on.
            Flow::Exit(1)
        }
    }
}

async fn exec(shell: &mut Shell, arguments: Vec<String>) -> Flow {
    if arguments.is_empty() {
        return Flow::Next(0);
    }
    Flow::Exit(tools::execute(shell.process.clone(), arguments).await)
}

async fn command(shell: &mut Shell, name: &str, arguments: Vec<String>) -> Flow {
    let looked_up = name == "type" || arguments.first().is_some_and(|first| first == "-v" || first == "-V");
    if !looked_up {
        return Flow::Next(tools::execute(shell.process.clone(), arguments).await);
    }
    let mut status = 0;
    for wanted in arguments.iter().filter(|argument| !argument.starts_with('-')) {
        let found = if shell.functions.contains_key(wanted) || is_builtin(wanted) {
            Some(wanted.clone())
        } else {
            tools::which(&shell.process, wanted)
        };
        match found {
            Some(path) => shell.process.line(path),
            None => status = if name == "type" { 1 } else { 127 },
        }
    }
    Flow::Next(status)
}
