//! Tools for files.

use super::args::Arguments;
use crate::cloud::fs::{self, Credentials, FsError, Kind};
use crate::cloud::shell::{Process, Sign, matches};

pub(super) async fn run(p: &Process, name: &str, a: &[String]) -> Option<i32> {
    Some(match name {
        "cat" => cat(p, a).await,
        "tee" => tee(p, a).await,
        "mkdir" => mkdir(p, a),
        "rmdir" => each(p, "rmdir", "failed to remove", a, |path| {
            p.host.fs.remove(p.who(), &p.path(path))
        }),
        "rm" => rm(p, a),
        "mv" => mv(p, a),
        "cp" => cp(p, a),
        "ln" => ln(p, a),
        "install" => install(p, a).await,
        "chmod" => chmod(p, a),
        "chown" => chown(p, a),
        "touch" => touch(p, a),
        "stat" => stat(p, a),
        "readlink" | "realpath" => readlink(p, name, a),
        "ls" => ls(p, a),
        "mktemp" => mktemp(p, a),
        "find" => find(p, a),
        "cmp" => cmp(p, a),
        _ => return None,
    })
}

async fn cat(p: &Process, a: &[String]) -> i32 {
    let files: Vec<String> = a
        .iter()
        .filter(|word| !word.starts_with('-') || *word == "-")
        .cloned()
        .collect();
    let mut status = 0;
    for (name, content) in p.inputs(&files).await {
        match content {
            Ok(bytes) => p.write(1, &bytes),
            Err(error) => status = p.fail(format!("cat: {name}: {error}")),
        }
    }
    status
}

async fn tee(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let bytes = p.stdin.read_to_end().await;
    p.write(1, &bytes);
    let mut status = 0;
    for file in &arguments.operands {
        let written = if arguments.has(&["a", "append"]) {
            p.host
                .fs
                .append(p.who(), &p.path(file), &bytes, 0o666 & !p.umask, p.host.now())
        } else {
            p.store(file, bytes.clone())
        };
        if let Err(error) = written {
            status = p.fail(format!("tee: {file}: {error}"));
        }
    }
    status
}

fn each(p: &Process, tool: &str, failed: &str, paths: &[String], act: impl Fn(&str) -> Result<(), FsError>) -> i32 {
    let mut status = 0;
    for path in paths.iter().filter(|path| !path.starts_with('-')) {
        if let Err(error) = act(path) {
            status = p.fail(format!("{tool}: {failed} '{path}': {error}"));
        }
    }
    status
}

fn mkdir(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["m", "mode"]);
    let mode = arguments
        .value(&["m", "mode"])
        .and_then(|text| u32::from_str_radix(text, 8).ok());
    let plain = 0o777 & !p.umask;
    each(p, "mkdir", "cannot create directory", &arguments.operands, |path| {
        let (fs, who, now, full) = (&p.host.fs, p.who(), p.host.now(), p.path(path));
        let existed = fs.stat(who, &full).is_ok();
        if arguments.has(&["p", "parents"]) {
            fs.make_directories(who, &full, plain, now)?;
        } else {
            fs.make_directory(who, &full, plain, now)?;
        }
        match mode.filter(|_| !existed) {
            Some(mode) => fs.alter(who, &full, |inode| inode.mode = mode),
            None => Ok(()),
        }
    })
}

fn rm(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let (force, recursive) = (arguments.has(&["f", "force"]), arguments.has(&["r", "R", "recursive"]));
    each(p, "rm", "cannot remove", &arguments.operands, |path| {
        let full = p.path(path);
        match p.lstat(path) {
            Err(FsError::NotFound | FsError::NotDirectory) if force => Ok(()),
            Err(error) => Err(error),
            Ok(inode) if inode.is_directory() && recursive => p.host.fs.remove_all(p.who(), &full),
            Ok(inode) if inode.is_directory() => Err(FsError::IsDirectory),
            Ok(_) => p.host.fs.remove(p.who(), &full),
        }
    })
}

/// Where each source goes: into a directory, or to a name.
fn goals(p: &Process, arguments: &Arguments) -> Vec<(String, String)> {
    let mut sources = arguments.operands.clone();
    let into = arguments.value(&["t", "target-directory"]).map(str::to_owned);
    let Some(goal) = into.or_else(|| sources.pop()) else {
        return Vec::new();
    };
    let is_directory = !arguments.has(&["T"]) && p.stat(&goal).is_ok_and(|inode| inode.is_directory());
    let place = |source: &String| {
        if is_directory {
            format!("{}/{}", goal.trim_end_matches('/'), fs::name(source.trim_end_matches('/')))
        } else {
            goal.clone()
        }
    };
    sources.iter().map(|source| (source.clone(), place(source))).collect()
}

fn mv(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["t", "target-directory"]);
    let mut status = 0;
    for (source, goal) in goals(p, &arguments) {
        if arguments.has(&["n", "no-clobber"]) && p.lstat(&goal).is_ok() {
            continue;
        }
        if let Err(error) = p.host.fs.rename(p.who(), &p.path(&source), &p.path(&goal)) {
            status = p.fail(format!("mv: cannot move '{source}' to '{goal}': {error}"));
        }
    }
    status
}

fn cp(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["t", "target-directory"]);
    let recursive = arguments.has(&["r", "R", "a", "recursive", "archive"]);
    let keep = arguments.has(&["a", "p", "archive"]);
    let mut status = 0;
    for (source, goal) in goals(p, &arguments) {
        if let Err(error) = copy(p, &source, &goal, recursive, keep) {
            status = p.fail(format!("cp: cannot copy '{source}' to '{goal}': {error}"));
        }
    }
    status
}

fn copy(p: &Process, source: &str, goal: &str, recursive: bool, keep: bool) -> Result<(), FsError> {
    let inode = if recursive { p.lstat(source)? } else { p.stat(source)? };
    let (fs, who, now, to) = (&p.host.fs, p.who(), p.host.now(), p.path(goal));
    match &inode.kind {
        Kind::File { bytes, attached } => {
            p.read(source)?;
            fs.write(who, &to, bytes.clone(), inode.mode & !p.umask, now)?;
            if let Some(attached) = attached {
                fs.alter(who, &to, |copy| {
                    copy.kind = Kind::File {
                        bytes: bytes.clone(),
                        attached: Some(attached.clone()),
                    }
                })?;
            }
        }
        Kind::Link(target) => fs.link(who, target, &to, now)?,
        Kind::Directory if !recursive => return Err(FsError::IsDirectory),
        Kind::Directory => {
            fs.make_directories(who, &to, inode.mode, now)?;
            for name in fs.list(who, &p.path(source))? {
                copy(p, &format!("{source}/{name}"), &format!("{goal}/{name}"), true, keep)?;
            }
        }
    }
    if keep {
        let _ = fs.alter(who, &to, |copy| {
            (copy.mode, copy.uid, copy.gid) = (inode.mode, inode.uid, inode.gid);
        });
    }
    Ok(())
}

fn ln(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["t", "target-directory"]);
    let [target, path] = arguments.operands.as_slice() else {
        return p.fail("ln: missing file operand");
    };
    let plain = arguments.has(&["n", "T", "no-dereference"]);
    let into = !plain && p.stat(path).is_ok_and(|inode| inode.is_directory());
    let path = if into {
        format!("{path}/{}", fs::name(target))
    } else {
        path.clone()
    };
    if arguments.has(&["f", "force"]) && p.lstat(&path).is_ok() {
        let _ = p.host.fs.remove(p.who(), &p.path(&path));
    }
    let made = if arguments.has(&["s", "symbolic"]) {
        p.host.fs.link(p.who(), target, &p.path(&path), p.host.now())
    } else if p.lstat(&path).is_ok() {
        // link(2) never replaces: scripts rely on that to be the first.
        Err(FsError::Exists)
    } else {
        copy(p, target, &path, false, true)
    };
    match made {
        Ok(()) => 0,
        Err(error) => p.fail(format!("ln: failed to create link '{path}': {error}")),
    }
}

async fn install(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["m", "mode", "o", "owner", "g", "group", "t", "target-directory", "S"]);
    let (fs, who, now) = (&p.host.fs, p.who(), p.host.now());
    let mode = arguments
        .value(&["m", "mode"])
        .map_or(Some(0o755), |text| u32::from_str_radix(text, 8).ok());
    let Some(mode) = mode else {
        return p.fail("install: invalid mode");
    };
    let finish = |path: &str| -> Result<(), FsError> {
        fs.alter(who, path, |inode| inode.mode = mode)?;
        let owner = arguments.value(&["o", "owner"]).map(|name| id_of(p, name, "/etc/passwd"));
        let group = arguments.value(&["g", "group"]).map(|name| id_of(p, name, "/etc/group"));
        change_owner(p, path, owner.flatten(), group.flatten())
    };
    if arguments.has(&["d", "directory"]) {
        return each(p, "install", "cannot create directory", &arguments.operands, |path| {
            fs.make_directories(who, &p.path(path), 0o755, now)?;
            finish(&p.path(path))
        });
    }
    let mut status = 0;
    for (source, goal) in goals(p, &arguments) {
        let to = p.path(&goal);
        let content = if source == "/dev/stdin" {
            Ok(p.stdin.read_to_end().await)
        } else {
            p.read(&source)
        };
        let made = (|| {
            let bytes = content?;
            if arguments.has(&["D"]) {
                fs.make_directories(who, fs::parent(&to), 0o755, now)?;
            }
            let _ = fs.remove(who, &to);
            fs.write(who, &to, bytes, mode, now)?;
            finish(&to)
        })();
        if let Err(error) = made {
            status = p.fail(format!("install: cannot create regular file '{goal}': {error}"));
        }
    }
    status
}

fn id_of(p: &Process, name: &str, file: &str) -> Option<u32> {
    name.parse().ok().or_else(|| {
        p.host.fs.text(file)?.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            fields.nth(1)?.parse().ok()
        })
    })
}

fn change_owner(p: &Process, path: &str, uid: Option<u32>, gid: Option<u32>) -> Result<(), FsError> {
    if uid.is_none() && gid.is_none() {
        return Ok(());
    }
    if p.who().uid != 0 {
        return Err(FsError::Denied);
    }
    p.host.fs.alter(p.who(), path, |inode| {
        inode.uid = uid.unwrap_or(inode.uid);
        inode.gid = gid.unwrap_or(inode.gid);
    })
}

/// `0644`, or `u+x,go-rwx`.
fn new_mode(spec: &str, old: u32) -> Option<u32> {
    if let Ok(mode) = u32::from_str_radix(spec, 8) {
        return Some(mode);
    }
    let mut mode = old;
    for clause in spec.split(',') {
        let at = clause.find(['+', '-', '='])?;
        let (whom, sign, what) = (&clause[..at], &clause[at..=at], &clause[at + 1..]);
        let mut bits = 0;
        for letter in what.chars() {
            bits |= match letter {
                'r' => 4,
                'w' => 2,
                'x' => 1,
                'X' => u32::from(old & 0o111 != 0),
                _ => return None,
            };
        }
        for (letter, shift) in [('u', 6), ('g', 3), ('o', 0)] {
            if whom.is_empty() || whom.contains(letter) || whom.contains('a') {
                match sign {
                    "+" => mode |= bits << shift,
                    "-" => mode &= !(bits << shift),
                    _ => mode = mode & !(7 << shift) | bits << shift,
                }
            }
        }
    }
    Some(mode)
}

/// The paths themselves, and all below them where the option says so.
fn with_below(p: &Process, arguments: &Arguments, paths: &[String]) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    for path in paths {
        all.push(p.path(path));
        if arguments.has(&["R", "recursive"]) {
            all.extend(p.host.fs.walk(p.who(), &p.path(path)).unwrap_or_default());
        }
    }
    all
}

fn chmod(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let Some((spec, paths)) = arguments.operands.split_first() else {
        return p.fail("chmod: missing operand");
    };
    let paths = with_below(p, &arguments, paths);
    each(p, "chmod", "cannot access", &paths, |path| {
        let old = p.host.fs.stat(p.who(), path)?.mode;
        let mode = new_mode(spec, old).ok_or(FsError::Denied)?;
        p.host.fs.alter(p.who(), path, |inode| inode.mode = mode)
    })
}

fn chown(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let Some((spec, paths)) = arguments.operands.split_first() else {
        return p.fail("chown: missing operand");
    };
    let (owner, group) = spec.split_once(':').unwrap_or((spec, ""));
    let uid = id_of(p, owner, "/etc/passwd");
    if !owner.is_empty() && uid.is_none() {
        return p.fail(format!("chown: invalid user: '{spec}'"));
    }
    let gid = id_of(p, group, "/etc/group");
    let paths = with_below(p, &arguments, paths);
    each(p, "chown", "changing ownership of", &paths, |path| {
        change_owner(p, path, uid, gid)
    })
}

fn touch(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["d", "r", "t"]);
    each(p, "touch", "cannot touch", &arguments.operands, |path| match p.stat(path) {
        Ok(_) => p.host.fs.alter(p.who(), &p.path(path), |inode| inode.mtime = p.host.now()),
        Err(FsError::NotFound) => p.store(path, ""),
        Err(error) => Err(error),
    })
}

fn user_name(p: &Process, id: u32, file: &str) -> String {
    let text = p.host.fs.text(file).unwrap_or_default();
    let found = text.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        (fields.get(2)?.parse() == Ok(id)).then(|| fields[0].to_owned())
    });
    found.unwrap_or_else(|| id.to_string())
}

fn stat(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["c", "format", "printf"]);
    let format = arguments.value(&["c", "format", "printf"]).unwrap_or("%n %s %a").to_owned();
    let mut status = 0;
    for path in &arguments.operands {
        let found = if arguments.has(&["L", "dereference"]) {
            p.stat(path)
        } else {
            p.lstat(path)
        };
        let inode = match found {
            Ok(inode) => inode,
            Err(error) => {
                status = p.fail(format!("stat: cannot statx '{path}': {error}"));
                continue;
            }
        };
        let kind = match inode.kind {
            Kind::Directory => "directory",
            Kind::Link(_) => "symbolic link",
            Kind::File { .. } if inode.size() == 0 => "regular empty file",
            Kind::File { .. } => "regular file",
        };
        let text = format
            .replace("%n", path)
            .replace("%s", &inode.size().to_string())
            .replace("%a", &format!("{:o}", inode.mode))
            .replace("%U", &user_name(p, inode.uid, "/etc/passwd"))
            .replace("%G", &user_name(p, inode.gid, "/etc/group"))
            .replace("%u", &inode.uid.to_string())
            .replace("%g", &inode.gid.to_string())
            .replace("%Y", &inode.mtime.to_string())
            .replace("%F", kind);
        p.line(text);
    }
    status
}

fn readlink(p: &Process, name: &str, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let resolve = name == "realpath" || arguments.has(&["f", "e", "m"]);
    let mut status = 0;
    for path in &arguments.operands {
        let found = if resolve {
            let full = p.host.fs.resolve(p.who(), &p.path(path), true);
            full.and_then(|full| {
                if arguments.has(&["e"]) {
                    p.stat(&full).map(|_| full)
                } else {
                    Ok(full)
                }
            })
        } else {
            p.lstat(path).and_then(|inode| match &inode.kind {
                Kind::Link(target) => Ok(target.clone()),
                Kind::File { .. } | Kind::Directory => Err(FsError::NotFound),
            })
        };
        match found {
            Ok(target) => p.line(target),
            Err(error) if name == "realpath" => status = p.fail(format!("realpath: {path}: {error}")),
            Err(_) => status = 1,
        }
    }
    status
}

fn ls(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let operands = if arguments.operands.is_empty() {
        vec![".".to_owned()]
    } else {
        arguments.operands.clone()
    };
    let (long, hidden) = (arguments.has(&["l"]), arguments.has(&["a", "A"]));
    let show = |name: &str, path: &str| {
        if !long {
            return p.line(name);
        }
        let Ok(inode) = p.lstat(path) else { return };
        let kind = match inode.kind {
            Kind::Directory => 'd',
            Kind::Link(_) => 'l',
            Kind::File { .. } => '-',
        };
        let bits: String = (0..9)
            .rev()
            .map(|bit| {
                if inode.mode >> bit & 1 == 1 {
                    ["x", "w", "r"][bit % 3]
                } else {
                    "-"
                }
            })
            .collect();
        let (user, group) = (user_name(p, inode.uid, "/etc/passwd"), user_name(p, inode.gid, "/etc/group"));
        p.line(format!(
            "{kind}{bits} 1 {user} {group} {} {} {name}",
            inode.size(),
            inode.mtime
        ));
    };
    let mut status = 0;
    for path in &operands {
        match p.stat(path) {
            Ok(inode) if inode.is_directory() && !arguments.has(&["d"]) => match p.host.fs.list(p.who(), &p.path(path)) {
                Ok(names) => names
                    .iter()
                    .filter(|name| hidden || !name.starts_with('.'))
                    .for_each(|name| show(name, &format!("{path}/{name}"))),
                Err(error) => status = p.fail(format!("ls: cannot open directory '{path}': {error}")),
            },
            Ok(_) => show(path, path),
            Err(error) => {
                p.complain(format!("ls: cannot access '{path}': {error}"));
                status = 2;
            }
        }
    }
    status
}

fn mktemp(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["p", "tmpdir", "suffix"]);
    let template = arguments
        .operands
        .first()
        .cloned()
        .unwrap_or_else(|| "tmp.XXXXXXXXXX".to_owned());
    let base = arguments.value(&["p", "tmpdir"]).unwrap_or("/tmp");
    let unplaced = arguments.operands.is_empty() || arguments.has(&["p", "t", "tmpdir"]);
    let template = if unplaced && !template.starts_with('/') {
        format!("{base}/{template}")
    } else {
        template
    };
    let signs = template.chars().rev().take_while(|c| *c == 'X').count();
    let unique = format!("{:0>width$x}", p.host.site.next_serial(), width = signs);
    let path = format!("{}{unique}", &template[..template.len() - signs]);
    let made = if arguments.has(&["d", "directory"]) {
        p.host.fs.make_directory(p.who(), &p.path(&path), 0o700, p.host.now())
    } else {
        p.host.fs.write(p.who(), &p.path(&path), "", 0o600, p.host.now())
    };
    match made {
        Ok(()) => {
            p.line(path);
            0
        }
        Err(error) => p.fail(format!("mktemp: failed to create file via template '{template}': {error}")),
    }
}

fn find(p: &Process, a: &[String]) -> i32 {
    let paths: Vec<&String> = a.iter().take_while(|word| !word.starts_with(['-', '(', '!'])).collect();
    let tests = &a[paths.len()..];
    let value = |name: &str| tests.iter().position(|word| word == name).and_then(|at| tests.get(at + 1));
    let depth = |name: &str| value(name).and_then(|text| text.parse::<usize>().ok());
    let mut status = 0;
    for path in paths {
        let full = fs::absolute(&p.cwd, path);
        let below = match p.host.fs.walk(p.who(), &full) {
            Ok(below) => below,
            Err(error) => {
                status = p.fail(format!("find: '{path}': {error}"));
                continue;
            }
        };
        for at in [full.clone()].into_iter().chain(below) {
            let Ok(inode) = p.host.fs.lstat(Credentials::ROOT, &at) else {
                continue;
            };
            let level = at[full.len().min(at.len())..].matches('/').count();
            let kind = match inode.kind {
                Kind::Directory => "d",
                Kind::Link(_) => "l",
                Kind::File { .. } => "f",
            };
            let fits = value("-type").is_none_or(|wanted| wanted == kind)
                && value("-name").is_none_or(|wanted| matches(&Sign::plain(wanted), fs::name(&at)))
                && depth("-maxdepth").is_none_or(|most| level <= most)
                && depth("-mindepth").is_none_or(|least| level >= least);
            if fits {
                p.line(format!("{path}{}", &at[full.len()..]));
            }
        }
    }
    status
}

fn cmp(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &[]);
    let [one, other] = arguments.operands.as_slice() else {
        return 2;
    };
    match (p.read(one), p.read(other)) {
        (Ok(one), Ok(other)) => i32::from(one != other),
        _ => 2,
    }
}
