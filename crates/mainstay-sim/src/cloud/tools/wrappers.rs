//! Programs that run other programs.

use std::time::Duration;

use super::execute;
use crate::cloud::shell::{Input, Process, User, interpret};

/// `sh -c script name arguments…`, `sh file arguments…`, or a script on the standard input.
pub(super) async fn shell(mut process: Process, arguments: Vec<String>) -> i32 {
    let mut options = String::new();
    let mut rest = arguments.into_iter().peekable();
    let mut inline = false;
    while let Some(argument) = rest.next_if(|argument| argument.starts_with(['-', '+']) && argument.len() > 1) {
        match argument.as_str() {
            "--" => break,
            "-o" | "+o" => options.push_str(&format!("set {argument} {}\n", rest.next().unwrap_or_default())),
            "-l" | "--login" | "--noprofile" | "--norc" => {}
            _ => {
                let letters: String = argument[1..].chars().filter(|c| !"cls".contains(*c)).collect();
                inline |= argument[1..].contains('c');
                if let Some(letters) = Some(letters).filter(|letters| !letters.is_empty()) {
                    let words: Vec<String> = if letters.contains('o') {
                        rest.next().into_iter().collect()
                    } else {
                        Vec::new()
                    };
                    options.push_str(&format!("set {}{letters} {}\n", &argument[..1], words.join(" ")));
                }
            }
        }
    }
    if inline {
        let script = rest.next().unwrap_or_default();
        let mut names: Vec<String> = rest.collect();
        if names.is_empty() {
            names.push("bash: line 1".to_owned());
        }
        return interpret(process, &format!("{options}{script}"), names).await;
    }
    let names: Vec<String> = rest.collect();
    let Some(path) = names.first() else {
        // The script comes first on the standard input; the commands in it would read on from there.
        let script = process.stdin.read_to_end().await;
        process.stdin = Input::default();
        return interpret(
            process,
            &format!("{options}{}", String::from_utf8_lossy(&script)),
            vec!["bash".to_owned()],
        )
        .await;
    };
    match process.read(path) {
        Ok(script) => interpret(process, &format!("{options}{}", String::from_utf8_lossy(&script)), names).await,
        Err(error) => {
            process.complain(format!("sh: 0: cannot open {path}: {error}"));
            2
        }
    }
}

pub(super) async fn sudo(mut process: Process, arguments: Vec<String>) -> i32 {
    let mut rest = arguments.into_iter().peekable();
    let (mut user, mut quiet) = ("root".to_owned(), false);
    while let Some(argument) = rest.next_if(|argument| argument.starts_with('-')) {
        match argument.as_str() {
            "-u" | "--user" => user = rest.next().unwrap_or_default(),
            "-n" | "--non-interactive" => quiet = true,
            "--" => break,
            _ => {}
        }
    }
    let command: Vec<String> = rest.collect();
    if process.user.uid != 0 && !process.host.may_sudo(&process.user.name) {
        let text = if quiet {
            "sudo: a password is required"
        } else {
            "sudo: a terminal is required to read the password"
        };
        process.complain(text);
        return 1;
    }
    let Some(target) = User::find(&process.host, &user) else {
        return process.fail(format!("sudo: unknown user {user}"));
    };
    // sudo writes the whole command line to the journal.
    let line = format!(
        "{} : PWD={} ; USER={user} ; COMMAND={}",
        process.user.name,
        process.cwd,
        command.join(" ")
    );
    process.host.journal.write(&process.host, None, "sudo", &line);
    let mut env = Process::new(&process.host, target.clone()).env;
    for kept in ["LANG", "LC_ALL", "TERM"] {
        if let Some(value) = process.env.get(kept) {
            env.insert(kept.to_owned(), value.clone());
        }
    }
    env.insert("SUDO_USER".to_owned(), process.user.name.clone());
    (process.user, process.env) = (target, env);
    let assigned = command.iter().take_while(|word| word.contains('=')).count();
    process.env.extend(command[..assigned].iter().filter_map(|word| {
        let (name, value) = word.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    }));
    execute(process, command[assigned..].to_vec()).await
}

pub(super) async fn env(mut process: Process, arguments: Vec<String>) -> i32 {
    let mut rest = arguments.into_iter().peekable();
    while let Some(argument) = rest.next_if(|argument| argument.starts_with('-') || argument.contains('=')) {
        match argument.split_once('=') {
            Some((name, value)) if !name.starts_with('-') => drop(process.env.insert(name.to_owned(), value.to_owned())),
            _ if argument == "-i" => process.env.clear(),
            _ if argument == "-u" => drop(rest.next().and_then(|name| process.env.remove(&name))),
            _ => {}
        }
    }
    let command: Vec<String> = rest.collect();
    if command.is_empty() {
        process
            .env
            .iter()
            .for_each(|(name, value)| process.line(format!("{name}={value}")));
        return 0;
    }
    execute(process, command).await
}

/// `30`, `1.5`, `2m`, `infinity`.
pub(super) fn duration(text: &str) -> Option<Duration> {
    let (number, unit) = match text.find(|c: char| c.is_ascii_alphabetic()) {
        Some(at) => text.split_at(at),
        None => (text, "s"),
    };
    let scale = match unit {
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        "d" => 86400.0,
        _ => return None,
    };
    Duration::try_from_secs_f64(number.parse::<f64>().ok()? * scale).ok()
}

pub(super) async fn sleep(process: &Process, arguments: &[String]) -> i32 {
    let mut total = Duration::ZERO;
    for argument in arguments {
        let Some(length) = duration(argument) else {
            return process.fail(format!("sleep: invalid time interval '{argument}'"));
        };
        total += length;
    }
    // A guest waits as long as it says, at any pace of the world.
    tokio::time::sleep(total).await;
    0
}

pub(super) async fn timeout(process: Process, arguments: Vec<String>) -> i32 {
    let mut rest = arguments.into_iter().peekable();
    while let Some(option) = rest.next_if(|argument| argument.starts_with('-')) {
        if ["-k", "-s", "--kill-after", "--signal"].contains(&option.as_str()) {
            rest.next();
        }
    }
    let limit = rest.next().unwrap_or_default();
    let Some(limit) = duration(&limit) else {
        process.complain(format!("timeout: invalid time interval '{limit}'"));
        return 125;
    };
    let run = execute(process, rest.collect());
    if limit.is_zero() {
        return run.await;
    }
    tokio::time::timeout(limit, run).await.unwrap_or(124)
}

/// Locks by path, or by the file that a descriptor was opened on.
pub(super) async fn flock(process: Process, arguments: Vec<String>) -> i32 {
    let mut rest = arguments.into_iter().peekable();
    let (mut wait, mut command_text, mut conflict) = (None, None, 1);
    let mut operands = Vec::new();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "-n" | "--nonblock" => wait = Some(Duration::ZERO),
            "-w" | "--timeout" | "--wait" => wait = rest.next().as_deref().and_then(duration),
            "-c" => command_text = rest.next(),
            "-E" | "--conflict-exit-code" => conflict = rest.next().and_then(|text| text.parse().ok()).unwrap_or(1),
            "-u" | "-x" | "-e" | "-s" | "-o" | "--exclusive" | "--close" => {}
            _ => {
                operands.push(argument);
                operands.extend(rest.by_ref());
            }
        }
    }
    let Some(target) = operands.first().cloned() else { return 64 };
    let by_descriptor = target
        .parse::<u32>()
        .ok()
        .filter(|_| operands.len() == 1 && command_text.is_none());
    let path = match by_descriptor.and_then(|fd| process.outputs.get(&fd)) {
        Some(crate::cloud::shell::Output::File(path)) => path.clone(),
        _ => {
            if process.lstat(&target).is_err()
                && let Err(error) = process.store(&target, "")
            {
                process.complain(format!("flock: cannot open lock file {target}: {error}"));
                return 66;
            }
            process.path(&target)
        }
    };
    let lock = process.host.lock_of(&path);
    let guard = match wait {
        Some(limit) => match tokio::time::timeout(limit.max(Duration::from_millis(1)), lock.lock_owned()).await {
            Ok(guard) => guard,
            Err(_) => return conflict,
        },
        None => lock.lock_owned().await,
    };
    if by_descriptor.is_some() {
        // Held until the shell that opened the descriptor ends.
        process.locks.lock().expect("plain data").push(guard);
        return 0;
    }
    let status = match command_text {
        Some(text) => interpret(process, &text, vec!["sh".to_owned()]).await,
        None => execute(process, operands[1..].to_vec()).await,
    };
    drop(guard);
    status
}

pub(super) async fn xargs(process: Process, arguments: Vec<String>) -> i32 {
    let valued = ["-n", "-L", "-I", "-P", "-d"];
    let mut rest = arguments.into_iter().peekable();
    let (mut batch, mut placeholder, mut skip_empty, mut zero) = (usize::MAX, None, false, false);
    while let Some(option) = rest.next_if(|argument| argument.starts_with('-')) {
        let value = if valued.contains(&option.as_str()) {
            rest.next()
        } else {
            None
        };
        match option.as_str() {
            "-n" | "-L" => batch = value.and_then(|text| text.parse().ok()).unwrap_or(1),
            "-I" => (placeholder, batch) = (value, 1),
            "-r" => skip_empty = true,
            "-0" => zero = true,
            _ => {}
        }
    }
    let mut command: Vec<String> = rest.collect();
    if command.is_empty() {
        command.push("echo".to_owned());
    }
    let input = process.stdin.read_to_end().await;
    let text = String::from_utf8_lossy(&input).into_owned();
    let items: Vec<String> = if zero {
        text.split('\0').filter(|item| !item.is_empty()).map(str::to_owned).collect()
    } else if placeholder.is_some() {
        text.lines().map(str::to_owned).collect()
    } else {
        text.split_whitespace().map(str::to_owned).collect()
    };
    if items.is_empty() && (skip_empty || placeholder.is_some()) {
        return 0;
    }
    let mut status = 0;
    let batches: Vec<&[String]> = if items.is_empty() {
        vec![&[]]
    } else {
        items.chunks(batch.min(items.len())).collect()
    };
    for items in batches {
        let line = match &placeholder {
            Some(sign) => command.iter().map(|word| word.replace(sign.as_str(), &items[0])).collect(),
            None => [command.clone(), items.to_vec()].concat(),
        };
        if execute(process.clone(), line).await != 0 {
            status = 123;
        }
    }
    status
}
