//! `test` and `[`.

use crate::cloud::fs::Kind;
use crate::cloud::shell::Process;

pub(super) fn test(process: &Process, name: &str, mut words: Vec<String>) -> i32 {
    if name == "[" && words.pop().as_deref() != Some("]") {
        process.complain("[: missing `]'");
        return 2;
    }
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match either(process, &words) {
        Ok(holds) => i32::from(!holds),
        Err(what) => {
            process.complain(format!("{name}: {what}"));
            2
        }
    }
}

type Verdict = Result<bool, String>;

fn either(process: &Process, words: &[&str]) -> Verdict {
    if words.len() <= 3 {
        return basic(process, words);
    }
    for (sign, and) in [("-o", false), ("-a", true)] {
        if let Some(at) = words.iter().skip(1).position(|word| *word == sign).map(|at| at + 1) {
            let (left, right) = (either(process, &words[..at])?, either(process, &words[at + 1..])?);
            return Ok(if and { left && right } else { left || right });
        }
    }
    basic(process, words)
}

fn basic(process: &Process, words: &[&str]) -> Verdict {
    match words {
        [] => Ok(false),
        [text] => Ok(!text.is_empty()),
        ["!", rest @ ..] if rest.len() != 2 || !BINARY.contains(&rest[0]) => Ok(!either(process, rest)?),
        ["(", inner @ .., ")"] => either(process, inner),
        [sign, operand] => unary(process, sign, operand),
        [left, sign, right] => binary(process, left, sign, right),
        _ => Err("too many arguments".to_owned()),
    }
}

const BINARY: [&str; 11] = ["=", "==", "!=", "-eq", "-ne", "-lt", "-le", "-gt", "-ge", "-nt", "-ot"];

fn unary(process: &Process, sign: &str, operand: &str) -> Verdict {
    let inode = || process.stat(operand).ok();
    let fs = &process.host.fs;
    Ok(match sign {
        "-n" => !operand.is_empty(),
        "-z" => operand.is_empty(),
        "-e" => inode().is_some() || operand.starts_with("/dev/"),
        "-f" => inode().is_some_and(|inode| matches!(inode.kind, Kind::File { .. })),
        "-d" => inode().is_some_and(|inode| inode.is_directory()),
        "-s" => inode().is_some_and(|inode| inode.size() > 0),
        "-L" | "-h" => process.lstat(operand).is_ok_and(|inode| matches!(inode.kind, Kind::Link(_))),
        "-r" => inode().is_some_and(|inode| fs.may_read(process.who(), &inode)),
        "-w" => inode().is_some_and(|inode| fs.may_write(process.who(), &inode)),
        "-x" => inode().is_some_and(|inode| fs.may_execute(process.who(), &inode)),
        "-b" => operand.starts_with("/dev/") && process.host.block_device(operand).is_some(),
        "-S" | "-p" | "-c" | "-t" | "-u" => false,
        _ => return Err(format!("{sign}: unary operator expected")),
    })
}

fn binary(process: &Process, left: &str, sign: &str, right: &str) -> Verdict {
    let number = |text: &str| {
        text.trim()
            .parse::<i64>()
            .map_err(|_| format!("{text}: integer expression expected"))
    };
    Ok(match sign {
        "=" | "==" => left == right,
        "!=" => left != right,
        "-eq" => number(left)? == number(right)?,
        "-ne" => number(left)? != number(right)?,
        "-lt" => number(left)? < number(right)?,
        "-le" => number(left)? <= number(right)?,
        "-gt" => number(left)? > number(right)?,
        "-ge" => number(left)? >= number(right)?,
        "-nt" | "-ot" => {
            let time = |path: &str| process.stat(path).map(|inode| inode.mtime).ok();
            if sign == "-nt" {
                time(left) > time(right)
            } else {
                time(left) < time(right)
            }
        }
        "-a" => !left.is_empty() && !right.is_empty(),
        "-o" => !left.is_empty() || !right.is_empty(),
        _ => return Err(format!("{sign}: binary operator expected")),
    })
}
