//! Tools for text.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use regex::Regex;
use sha2::{Digest, Sha256, Sha512};

use super::args::Arguments;
use crate::cloud::fs;
use crate::cloud::shell::Process;

pub(super) async fn run(p: &Process, name: &str, a: &[String]) -> Option<i32> {
    Some(match name {
        "echo" => echo(p, a),
        "printf" => printf(p, a),
        "head" | "tail" => ends(p, name, a).await,
        "wc" => wc(p, a).await,
        "grep" => grep(p, a).await,
        "sed" => sed(p, a).await,
        "awk" => awk(p, a).await,
        "cut" => cut(p, a).await,
        "tr" => tr(p, a).await,
        "sort" | "uniq" => sorted(p, name, a).await,
        "base64" => base64(p, a).await,
        "sha256sum" | "sha512sum" => checksum(p, name, a).await,
        "seq" => seq(p, a),
        "dirname" => {
            a.iter()
                .for_each(|path| p.line(if path.contains('/') { fs::parent(path) } else { "." }));
            0
        }
        "basename" => {
            let last = fs::name(a.first().map(|path| path.trim_end_matches('/')).unwrap_or_default());
            p.line(a.get(1).and_then(|suffix| last.strip_suffix(suffix.as_str())).unwrap_or(last));
            0
        }
        _ => return None,
    })
}

fn unescape(text: &str) -> String {
    let mut out = String::new();
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c != '\\' {
            out.push(c);
            continue;
        }
        match chars.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('0') => out.push('\0'),
            Some('\\') => out.push('\\'),
            Some(other) => out.extend(['\\', other]),
            None => out.push('\\'),
        }
    }
    out
}

fn echo(p: &Process, a: &[String]) -> i32 {
    let options = a
        .iter()
        .take_while(|word| ["-n", "-e", "-ne", "-en"].contains(&word.as_str()))
        .count();
    let (flags, words) = a.split_at(options);
    let mut text = words.join(" ");
    if flags.iter().any(|flag| flag.contains('e')) {
        text = unescape(&text);
    }
    if !flags.iter().any(|flag| flag.contains('n')) {
        text.push('\n');
    }
    p.say(text);
    0
}

fn printf(p: &Process, a: &[String]) -> i32 {
    let Some((format, values)) = a.split_first() else { return 2 };
    let mut values = values.iter();
    loop {
        let before = values.len();
        let mut out = String::new();
        let mut chars = unescape(format).chars().collect::<Vec<_>>().into_iter().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let mut width = String::new();
            while let Some(digit) = chars.next_if(|c| c.is_ascii_digit() || "-.".contains(*c)) {
                width.push(digit);
            }
            let mut value = || values.next().cloned().unwrap_or_default();
            let text = match chars.next() {
                Some('%') => "%".to_owned(),
                Some('d' | 'i' | 'u') => value().parse::<i64>().unwrap_or(0).to_string(),
                Some('x') => format!("{:x}", value().parse::<i64>().unwrap_or(0)),
                Some('o') => format!("{:o}", value().parse::<i64>().unwrap_or(0)),
                Some('b') => unescape(&value()),
                Some('q') => format!("'{}'", value().replace('\'', "'\\''")),
                _ => value(),
            };
            let zeros = width.starts_with('0');
            let left = width.starts_with('-');
            let length: usize = width
                .trim_start_matches(['-', '0'])
                .split('.')
                .next()
                .and_then(|text| text.parse().ok())
                .unwrap_or(0);
            out.push_str(&match (zeros, left) {
                (true, _) => format!("{text:0>length$}"),
                (_, true) => format!("{text:<length$}"),
                _ => format!("{text:>length$}"),
            });
        }
        p.say(out);
        if values.len() == 0 || values.len() == before {
            return 0;
        }
    }
}

/// Content as text, or a complaint.
async fn texts(p: &Process, tool: &str, files: &[String]) -> (Vec<(String, String)>, i32) {
    let mut status = 0;
    let mut texts = Vec::new();
    for (name, content) in p.inputs(files).await {
        match content {
            Ok(bytes) => texts.push((name, String::from_utf8_lossy(&bytes).into_owned())),
            Err(error) => {
                p.complain(format!("{tool}: {name}: {error}"));
                status = if tool == "grep" || tool == "sed" { 2 } else { 1 };
            }
        }
    }
    (texts, status)
}

async fn ends(p: &Process, name: &str, a: &[String]) -> i32 {
    // `head -3` is `head -n 3`.
    let a: Vec<String> = a
        .iter()
        .map(|word| {
            match word
                .strip_prefix('-')
                .filter(|rest| !rest.is_empty() && rest.chars().all(|c| c.is_ascii_digit()))
            {
                Some(count) => format!("-n{count}"),
                None => word.clone(),
            }
        })
        .collect();
    let arguments = Arguments::parse(&a, &["n", "lines", "c", "bytes"]);
    if let Some(count) = arguments.value(&["c", "bytes"]).and_then(|text| text.parse::<usize>().ok()) {
        if arguments.operands.is_empty() && name == "head" {
            p.write(1, p.stdin.read_up_to(count).await);
            return 0;
        }
        for (_, content) in p.inputs(&arguments.operands).await {
            let Ok(bytes) = content else { return 1 };
            let cut = count.min(bytes.len());
            p.write(
                1,
                if name == "head" {
                    &bytes[..cut]
                } else {
                    &bytes[bytes.len() - cut..]
                },
            );
        }
        return 0;
    }
    let spec = arguments.value(&["n", "lines"]).unwrap_or("10").to_owned();
    let count: usize = spec.trim_start_matches(['+', '-']).parse().unwrap_or(10);
    if arguments.operands.is_empty() && name == "head" && !spec.starts_with('-') {
        for _ in 0..count {
            match p.stdin.read_line().await {
                Some(line) => p.write(1, &line),
                None => break,
            }
        }
        return 0;
    }
    let (texts, status) = texts(p, name, &arguments.operands).await;
    for (_, text) in texts {
        let lines: Vec<&str> = text.split_inclusive('\n').collect();
        let shown = match (name, spec.chars().next()) {
            ("head", Some('-')) => &lines[..lines.len().saturating_sub(count)],
            ("head", _) => &lines[..count.min(lines.len())],
            (_, Some('+')) => &lines[count.saturating_sub(1).min(lines.len())..],
            _ => &lines[lines.len().saturating_sub(count)..],
        };
        p.say(shown.concat());
    }
    status
}

async fn wc(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let mut status = 0;
    for (name, content) in p.inputs(&arguments.operands).await {
        let Ok(bytes) = content else {
            status = p.fail(format!("wc: {name}: No such file or directory"));
            continue;
        };
        let text = String::from_utf8_lossy(&bytes);
        let counts = [
            ("l", text.matches('\n').count()),
            ("w", text.split_whitespace().count()),
            ("c", bytes.len()),
        ];
        let all = !arguments.has(&["l", "w", "c"]);
        let mut words: Vec<String> = counts
            .iter()
            .filter(|(flag, _)| all || arguments.has(&[*flag]))
            .map(|(_, count)| count.to_string())
            .collect();
        if name != "-" {
            words.push(name);
        }
        p.line(words.join(" "));
    }
    status
}

/// A basic regular expression as an extended one: there the plain signs are the special ones.
fn basic(pattern: &str) -> String {
    let mut out = String::new();
    let mut chars = pattern.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(sign) if "(){}|+?".contains(sign) => out.push(sign),
                Some(other) => out.extend(['\\', other]),
                None => out.push_str("\\\\"),
            },
            '(' | ')' | '{' | '}' | '|' | '+' | '?' => out.extend(['\\', c]),
            _ => out.push(c),
        }
    }
    out
}

fn regex(pattern: &str, extended: bool, fixed: bool, ignore_case: bool) -> Option<Regex> {
    let body = match (fixed, extended) {
        (true, _) => regex::escape(pattern),
        (_, true) => pattern.to_owned(),
        _ => basic(pattern),
    };
    let body = body
        .replace("[[:space:]]", "\\s")
        .replace("[[:digit:]]", "[0-9]")
        .replace("[:space:]", "\\s")
        .replace("[:alnum:]", "0-9A-Za-z");
    Regex::new(&format!("{}{body}", if ignore_case { "(?i)" } else { "" })).ok()
}

async fn grep(p: &Process, a: &[String]) -> i32 {
    let mut arguments = Arguments::parse(a, &["e", "regexp", "m", "A", "B"]);
    let mut patterns = arguments.values(&["e", "regexp"]);
    if patterns.is_empty() {
        if arguments.operands.is_empty() {
            return 2;
        }
        patterns.push(arguments.operands.remove(0));
    }
    let (extended, fixed) = (arguments.has(&["E", "P"]), arguments.has(&["F"]));
    let compiled: Option<Vec<Regex>> = patterns
        .iter()
        .map(|pattern| {
            let whole = if arguments.has(&["x"]) && !fixed {
                format!("^{pattern}$")
            } else {
                pattern.clone()
            };
            regex(&whole, extended, fixed, arguments.has(&["i"]))
        })
        .collect();
    let Some(compiled) = compiled else {
        p.complain("grep: Invalid regular expression");
        return 2;
    };
    let whole_fixed = |line: &str| !(arguments.has(&["x"]) && fixed) || patterns.iter().any(|pattern| pattern == line);
    let (texts, failed) = texts(p, "grep", &arguments.operands).await;
    let mut found = false;
    for (name, text) in &texts {
        let matching: Vec<&str> = text
            .lines()
            .filter(|line| (compiled.iter().any(|regex| regex.is_match(line)) && whole_fixed(line)) != arguments.has(&["v"]))
            .collect();
        found |= !matching.is_empty();
        if arguments.has(&["q"]) {
            continue;
        }
        if arguments.has(&["c"]) {
            p.line(matching.len().to_string());
        } else if arguments.has(&["l"]) {
            matching.first().into_iter().for_each(|_| p.line(name));
        } else if arguments.has(&["o"]) {
            for line in matching {
                compiled
                    .iter()
                    .flat_map(|regex| regex.find_iter(line))
                    .for_each(|part| p.line(part.as_str()));
            }
        } else {
            let prefix = if texts.len() > 1 && !arguments.has(&["h"]) {
                format!("{name}:")
            } else {
                String::new()
            };
            matching.iter().for_each(|line| p.line(format!("{prefix}{line}")));
        }
    }
    if found { 0 } else { failed.max(1) }
}

/// `s`, `d`, `p` with an optional address.
async fn sed(p: &Process, a: &[String]) -> i32 {
    let a: Vec<String> = a
        .iter()
        .map(|word| {
            if word.starts_with("-i") {
                "--in-place".to_owned()
            } else {
                word.clone()
            }
        })
        .collect();
    let mut arguments = Arguments::parse(&a, &["e", "expression"]);
    let mut scripts = arguments.values(&["e", "expression"]);
    if scripts.is_empty() {
        if arguments.operands.is_empty() {
            return 1;
        }
        scripts.push(arguments.operands.remove(0));
    }
    let extended = arguments.has(&["E", "r"]);
    let edits: Option<Vec<Edit>> = scripts
        .iter()
        .flat_map(|script| script.split('\n'))
        .map(|script| Edit::parse(script.trim(), extended))
        .collect();
    let Some(edits) = edits else {
        return p.fail("sed: -e expression #1, char 1: unknown command");
    };
    let (texts, status) = texts(p, "sed", &arguments.operands).await;
    for (name, text) in texts {
        let mut out = String::new();
        let count = text.lines().count();
        for (index, line) in text.lines().enumerate() {
            let (mut line, mut shown, mut printed) = (line.to_owned(), !arguments.has(&["n", "quiet"]), false);
            for edit in &edits {
                if edit.applies(&line, index + 1, index + 1 == count) {
                    edit.apply(&mut line, &mut shown, &mut printed);
                }
            }
            if printed {
                out.push_str(&format!("{line}\n"));
            }
            if shown {
                out.push_str(&format!("{line}\n"));
            }
        }
        if arguments.has(&["in-place"]) {
            if let Err(error) = p.store(&name, out) {
                return p.fail(format!("sed: couldn't open file {name}: {error}"));
            }
        } else {
            p.say(out);
        }
    }
    status
}

struct Edit {
    address: Option<Address>,
    action: Action,
}

enum Address {
    Line(usize),
    Last,
    Matching(Regex),
}

enum Action {
    Substitute {
        what: Regex,
        with: String,
        all: bool,
        print: bool,
    },
    Delete,
    Print,
}

impl Edit {
    fn parse(script: &str, extended: bool) -> Option<Self> {
        let (address, rest) = if let Some(rest) = script.strip_prefix('/') {
            let end = rest.find('/')?;
            (
                Some(Address::Matching(regex(&rest[..end], extended, false, false)?)),
                &rest[end + 1..],
            )
        } else if let Some(rest) = script.strip_prefix('$') {
            (Some(Address::Last), rest)
        } else {
            let digits = script.len() - script.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let line = script[..digits].parse().ok().map(Address::Line);
            (line, &script[digits..])
        };
        let rest = rest.trim_start();
        let action = match rest.chars().next()? {
            'd' => Action::Delete,
            'p' => Action::Print,
            's' => {
                let separator = rest.chars().nth(1)?;
                let parts = split_unescaped(&rest[2..], separator);
                let [what, with, flags] = parts.as_slice() else { return None };
                let with = with.replace('$', "$$").replace("\\/", "/");
                let with = Regex::new(r"\\([0-9])")
                    .ok()?
                    .replace_all(&with, "$${$1}")
                    .replace('&', "${0}");
                Action::Substitute {
                    what: regex(what, extended, false, flags.contains('I'))?,
                    with,
                    all: flags.contains('g'),
                    print: flags.contains('p'),
                }
            }
            _ => return None,
        };
        Some(Self { address, action })
    }

    fn applies(&self, line: &str, number: usize, last: bool) -> bool {
        match &self.address {
            None => true,
            Some(Address::Line(wanted)) => *wanted == number,
            Some(Address::Last) => last,
            Some(Address::Matching(regex)) => regex.is_match(line),
        }
    }

    fn apply(&self, line: &mut String, shown: &mut bool, printed: &mut bool) {
        match &self.action {
            Action::Delete => *shown = false,
            Action::Print => *printed = true,
            Action::Substitute { what, with, all, print } => {
                let changed = if *all {
                    what.replace_all(line, with.as_str())
                } else {
                    what.replace(line, with.as_str())
                };
                let changed = changed.into_owned();
                *printed |= *print && changed != *line;
                *line = changed;
            }
        }
    }
}

fn split_unescaped(text: &str, separator: char) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\\' {
            let next = chars.next().unwrap_or('\\');
            if next != separator {
                parts.last_mut().expect("never empty").push('\\');
            }
            parts.last_mut().expect("never empty").push(next);
        } else if c == separator {
            parts.push(String::new());
        } else {
            parts.last_mut().expect("never empty").push(c);
        }
    }
    parts
}

/// `awk [-F c] '[/re/] {print $1, $2}'`: the form that scripts use to pick a column.
async fn awk(p: &Process, a: &[String]) -> i32 {
    let mut arguments = Arguments::parse(a, &["F", "v"]);
    if arguments.operands.is_empty() {
        return 2;
    }
    let program = arguments.operands.remove(0);
    let shape = Regex::new(r#"^\s*(?:/(?P<re>[^/]*)/|(?P<field>\$\d+)\s*==\s*"(?P<value>[^"]*)"|NR\s*==\s*(?P<nr>\d+))?\s*(?:\{\s*print\s*(?P<what>[^}]*?)\s*;?\s*\})?\s*$"#)
        .expect("a regular expression");
    let Some(found) = shape.captures(&program) else {
        p.complain(format!("awk: program not simulated: {program}"));
        return 2;
    };
    let separator = arguments.value(&["F"]).map(str::to_owned);
    let named = |name: &str| found.name(name).map(|part| part.as_str().to_owned());
    let filter = named("re").and_then(|text| regex(&text, true, false, false));
    let what = named("what")
        .filter(|what| !what.is_empty())
        .unwrap_or_else(|| "$0".to_owned());
    let (texts, status) = texts(p, "awk", &arguments.operands).await;
    for (number, line) in texts.iter().flat_map(|(_, text)| text.lines()).enumerate() {
        let fields: Vec<&str> = match &separator {
            Some(separator) => line.split(separator.as_str()).collect(),
            None => line.split_whitespace().collect(),
        };
        let column = |text: &str| match text.trim_start_matches('$') {
            "0" => line,
            "NF" => fields.last().copied().unwrap_or_default(),
            index => index
                .parse::<usize>()
                .ok()
                .and_then(|index| fields.get(index.wrapping_sub(1)).copied())
                .unwrap_or_default(),
        };
        let wanted = filter.as_ref().is_none_or(|regex| regex.is_match(line))
            && named("field").is_none_or(|field| Some(column(&field).to_owned()) == named("value"))
            && named("nr").is_none_or(|wanted| wanted == (number + 1).to_string());
        if wanted {
            let parts: Vec<&str> = what
                .split(',')
                .map(str::trim)
                .map(|part| {
                    if part.starts_with('"') {
                        part.trim_matches('"')
                    } else {
                        column(part)
                    }
                })
                .collect();
            p.line(parts.join(" "));
        }
    }
    status
}

async fn cut(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["d", "f", "c", "delimiter", "fields"]);
    let delimiter = arguments.value(&["d", "delimiter"]).unwrap_or("\t").to_owned();
    let spec = arguments.value(&["f", "fields", "c"]).unwrap_or("1").to_owned();
    let ranges: Vec<(usize, usize)> = spec
        .split(',')
        .map(|range| match range.split_once('-') {
            Some((from, to)) => (from.parse().unwrap_or(1), to.parse().unwrap_or(usize::MAX)),
            None => (range.parse().unwrap_or(1), range.parse().unwrap_or(1)),
        })
        .collect();
    let wanted = |index: usize| ranges.iter().any(|(from, to)| (*from..=*to).contains(&(index + 1)));
    let (texts, status) = texts(p, "cut", &arguments.operands).await;
    for line in texts.iter().flat_map(|(_, text)| text.lines()) {
        if arguments.has(&["c"]) {
            p.line(
                line.chars()
                    .enumerate()
                    .filter(|(index, _)| wanted(*index))
                    .map(|(_, c)| c)
                    .collect::<String>(),
            );
            continue;
        }
        if !line.contains(&delimiter) {
            p.line(line);
            continue;
        }
        let parts: Vec<&str> = line
            .split(&delimiter)
            .enumerate()
            .filter(|(index, _)| wanted(*index))
            .map(|(_, part)| part)
            .collect();
        p.line(parts.join(&delimiter));
    }
    status
}

/// `a-z`, `[:upper:]`, `\n`
fn character_set(text: &str) -> Vec<char> {
    let text = unescape(text)
        .replace("[:upper:]", "A-Z")
        .replace("[:lower:]", "a-z")
        .replace("[:digit:]", "0-9")
        .replace("[:space:]", " \t\n\r")
        .replace("[:alnum:]", "A-Za-z0-9");
    let chars: Vec<char> = text.chars().collect();
    let mut set = Vec::new();
    let mut at = 0;
    while at < chars.len() {
        if chars.get(at + 1) == Some(&'-') && at + 2 < chars.len() {
            set.extend(chars[at]..=chars[at + 2]);
            at += 3;
        } else {
            set.push(chars[at]);
            at += 1;
        }
    }
    set
}

async fn tr(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let sets: Vec<Vec<char>> = arguments.operands.iter().map(|text| character_set(text)).collect();
    let bytes = p.stdin.read_to_end().await;
    let text = String::from_utf8_lossy(&bytes);
    let first = sets.first().cloned().unwrap_or_default();
    let listed = |c: char| first.contains(&c) != arguments.has(&["c", "C"]);
    if arguments.has(&["d"]) {
        p.say(text.chars().filter(|c| !listed(*c)).collect::<String>());
        return 0;
    }
    let second = sets.get(1).cloned().unwrap_or_default();
    let replaced = |c: char| {
        if !listed(c) {
            return c;
        }
        let index = first.iter().position(|known| *known == c).unwrap_or(usize::MAX);
        second.get(index).or(second.last()).copied().unwrap_or(c)
    };
    let mut out = String::new();
    for c in text.chars().map(replaced) {
        if !(arguments.has(&["s"]) && out.ends_with(c)) {
            out.push(c);
        }
    }
    p.say(out);
    0
}

async fn sorted(p: &Process, name: &str, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["k", "t"]);
    let (texts, status) = texts(p, name, &arguments.operands).await;
    let mut lines: Vec<&str> = texts.iter().flat_map(|(_, text)| text.lines()).collect();
    if name == "sort" {
        if arguments.has(&["n"]) {
            let number = |line: &&str| {
                line.trim()
                    .split(|c: char| !c.is_ascii_digit())
                    .next()
                    .and_then(|text| text.parse::<i64>().ok())
                    .unwrap_or(0)
            };
            lines.sort_by_key(number);
        } else {
            lines.sort_unstable();
        }
        if arguments.has(&["r"]) {
            lines.reverse();
        }
    }
    if name == "uniq" || arguments.has(&["u"]) {
        lines.dedup();
    }
    lines.iter().for_each(|line| p.line(line));
    status
}

async fn base64(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["w", "wrap"]);
    let Some((_, Ok(bytes))) = p.inputs(&arguments.operands).await.pop() else {
        return p.fail("base64: No such file or directory");
    };
    if arguments.has(&["d", "D", "decode"]) {
        let text: Vec<u8> = bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect();
        return match STANDARD.decode(text) {
            Ok(decoded) => {
                p.write(1, decoded);
                0
            }
            Err(_) => p.fail("base64: invalid input"),
        };
    }
    let text = STANDARD.encode(bytes);
    match arguments
        .value(&["w", "wrap"])
        .and_then(|text| text.parse::<usize>().ok())
        .unwrap_or(76)
    {
        0 => p.say(text),
        width => text
            .as_bytes()
            .chunks(width)
            .for_each(|line| p.line(String::from_utf8_lossy(line))),
    }
    0
}

fn digest(name: &str, bytes: &[u8]) -> String {
    if name == "sha256sum" {
        hex::encode(Sha256::digest(bytes))
    } else {
        hex::encode(Sha512::digest(bytes))
    }
}

async fn checksum(p: &Process, name: &str, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let mut status = 0;
    if !arguments.has(&["c", "check"]) {
        for (file, content) in p.inputs(&arguments.operands).await {
            match content {
                Ok(bytes) => p.line(format!("{}  {file}", digest(name, &bytes))),
                Err(error) => status = p.fail(format!("{name}: {file}: {error}")),
            }
        }
        return status;
    }
    let (texts, _) = texts(p, name, &arguments.operands).await;
    let quiet = arguments.has(&["status", "quiet"]);
    let mut checked = 0;
    for line in texts.iter().flat_map(|(_, text)| text.lines()) {
        let Some((wanted, file)) = line.split_once([' ', '\t']) else {
            continue;
        };
        let file = file.trim_start_matches([' ', '*']);
        let content = p.read(file);
        if content.is_err() && arguments.has(&["ignore-missing"]) {
            continue;
        }
        checked += 1;
        let fine = content.is_ok_and(|bytes| digest(name, &bytes).eq_ignore_ascii_case(wanted));
        if !fine {
            p.line(format!("{file}: FAILED"));
            status = 1;
        } else if !quiet {
            p.line(format!("{file}: OK"));
        }
    }
    if status != 0 {
        p.complain(format!("{name}: WARNING: 1 computed checksum did NOT match"));
    } else if checked == 0 {
        return p.fail(format!("{name}: no properly formatted checksum lines found"));
    }
    status
}

fn seq(p: &Process, a: &[String]) -> i32 {
    let numbers: Vec<i64> = a.iter().filter_map(|text| text.parse().ok()).collect();
    let (from, step, to) = match numbers.as_slice() {
        [to] => (1, 1, *to),
        [from, to] => (*from, 1, *to),
        [from, step, to] if *step != 0 => (*from, *step, *to),
        _ => return p.fail("seq: invalid argument"),
    };
    let mut at = from;
    while if step > 0 { at <= to } else { at >= to } {
        p.line(at.to_string());
        at += step;
    }
    0
}
