//! The file system of a cloud guest: paths, owners and modes. The root disk survives power cycles, what is under `/run` and the
//! kernel's own trees does not.

use std::any::Any;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;

use super::disk::SystemDisk;

/// What a program keeps in a file that no tool of the guest reads, such as the database of etcd. It goes where the file goes.
pub(crate) type Attached = Arc<dyn Any + Send + Sync>;

#[derive(Clone)]
pub(crate) enum Kind {
    File { bytes: Bytes, attached: Option<Attached> },
    Directory,
    Link(String),
}

#[derive(Clone)]
pub(crate) struct Inode {
    pub kind: Kind,
    pub mode: u32,
    pub uid: u32,
    pub gid: u32,
    /// Seconds since the epoch.
    pub mtime: i64,
}

impl Inode {
    pub fn is_directory(&self) -> bool {
        matches!(self.kind, Kind::Directory)
    }

    pub fn size(&self) -> usize {
        match &self.kind {
            Kind::File { bytes, .. } => bytes.len(),
            Kind::Directory => 4096,
            Kind::Link(target) => target.len(),
        }
    }
}

/// Why the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FsError {
    #[error("No such file or directory")]
    NotFound,
    #[error("Not a directory")]
    NotDirectory,
    #[error("Is a directory")]
    IsDirectory,
    #[error("File exists")]
    Exists,
    #[error("Permission denied")]
    Denied,
    #[error("Directory not empty")]
    NotEmpty,
    #[error("Too many levels of symbolic links")]
    Loop,
    #[error("No space left on device")]
    NoSpace,
}

/// Absolute paths without `.`, `..` and double slashes, in order; the root itself is not listed.
#[derive(Clone, Default)]
pub(crate) struct Tree {
    entries: BTreeMap<Arc<str>, Arc<Inode>>,
}

impl Tree {
    pub fn get(&self, path: &str) -> Option<&Arc<Inode>> {
        self.entries.get(path)
    }

    pub fn put(&mut self, path: &str, inode: Inode) {
        self.entries.insert(path.into(), Arc::new(inode));
    }

    pub fn remove(&mut self, path: &str) -> Option<Arc<Inode>> {
        self.entries.remove(path)
    }

    /// Everything below a directory, in order.
    pub fn below(&self, path: &str) -> impl Iterator<Item = (&Arc<str>, &Arc<Inode>)> {
        let prefix = if path == "/" { "/".to_owned() } else { format!("{path}/") };
        let from: Arc<str> = prefix.as_str().into();
        self.entries.range(from..).take_while(move |(at, _)| at.starts_with(&prefix))
    }

    /// Bytes of all files.
    pub fn used(&self) -> u64 {
        self.entries.values().map(|inode| inode.size() as u64).sum()
    }
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Credentials {
    pub uid: u32,
    pub gid: u32,
}

impl Credentials {
    pub const ROOT: Self = Self { uid: 0, gid: 0 };

    fn may(self, inode: &Inode, bit: u32) -> bool {
        let class = if self.uid == inode.uid {
            6
        } else if self.gid == inode.gid {
            3
        } else {
            0
        };
        self.uid == 0 || inode.mode >> class & bit != 0
    }
}

const READ: u32 = 4;
const WRITE: u32 = 2;
const SEARCH: u32 = 1;
const MAX_LINKS: usize = 40;

/// Trees that the kernel makes anew at every boot.
const VOLATILE: [&str; 4] = ["/run", "/proc", "/sys", "/dev"];

pub(crate) struct FileSystem {
    disk: SystemDisk,
    volatile: Mutex<Tree>,
}

/// Joins and cleans a path; `..` of a link's target is resolved later, by [`FileSystem::resolve`].
pub(crate) fn absolute(cwd: &str, path: &str) -> String {
    let whole = if path.starts_with('/') {
        path.to_owned()
    } else {
        format!("{cwd}/{path}")
    };
    let mut parts: Vec<&str> = Vec::new();
    for part in whole.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            other => parts.push(other),
        }
    }
    format!("/{}", parts.join("/"))
}

pub(crate) fn parent(path: &str) -> &str {
    match path.rsplit_once('/') {
        Some(("", _)) | None => "/",
        Some((parent, _)) => parent,
    }
}

pub(crate) fn name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

fn is_volatile(path: &str) -> bool {
    VOLATILE.iter().any(|top| {
        path.strip_prefix(top)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

impl FileSystem {
    pub fn new(disk: SystemDisk) -> Self {
        Self {
            disk,
            volatile: Mutex::default(),
        }
    }

    pub fn disk(&self) -> &SystemDisk {
        &self.disk
    }

    fn volatile(&self) -> MutexGuard<'_, Tree> {
        self.volatile.lock().expect("plain data")
    }

    /// The inode at a path whose parents are resolved already.
    fn at(&self, path: &str) -> Option<Arc<Inode>> {
        if path == "/" {
            return Some(Arc::new(directory(0o755, 0)));
        }
        if is_volatile(path) {
            self.volatile().get(path).cloned()
        } else {
            self.disk.tree().get(path).cloned()
        }
    }

    fn change<T>(&self, path: &str, change: impl FnOnce(&mut Tree) -> T) -> T {
        if is_volatile(path) {
            change(&mut self.volatile())
        } else {
            self.disk.change_tree(change)
        }
    }

    /// The path without links in its parents, and at its end only if `follow` is false. Every parent must exist and be searchable.
    pub fn resolve(&self, who: Credentials, path: &str, follow: bool) -> Result<String, FsError> {
        let mut pending: Vec<String> = split(path);
        pending.reverse();
        let mut at = String::from("/");
        let mut links = 0;
        while let Some(part) = pending.pop() {
            if part == ".." {
                at = parent(&at).to_owned();
                continue;
            }
            let here = self.at(&at).ok_or(FsError::NotFound)?;
            if !here.is_directory() {
                return Err(FsError::NotDirectory);
            }
            if !who.may(&here, SEARCH) {
                return Err(FsError::Denied);
            }
            let next = if at == "/" {
                format!("/{part}")
            } else {
                format!("{at}/{part}")
            };
            match self.at(&next).map(|inode| inode.kind.clone()) {
                Some(Kind::Link(target)) if follow || !pending.is_empty() => {
                    links += 1;
                    if links > MAX_LINKS {
                        return Err(FsError::Loop);
                    }
                    if target.starts_with('/') {
                        at = "/".to_owned();
                    }
                    pending.extend(split(&target).into_iter().rev());
                }
                Some(_) => at = next,
                None if pending.is_empty() => at = next,
                None => return Err(FsError::NotFound),
            }
        }
        Ok(at)
    }

    /// Follows links.
    pub fn stat(&self, who: Credentials, path: &str) -> Result<Arc<Inode>, FsError> {
        let path = self.resolve(who, path, true)?;
        self.at(&path).ok_or(FsError::NotFound)
    }

    pub fn lstat(&self, who: Credentials, path: &str) -> Result<Arc<Inode>, FsError> {
        let path = self.resolve(who, path, false)?;
        self.at(&path).ok_or(FsError::NotFound)
    }

    pub fn read(&self, who: Credentials, path: &str) -> Result<Bytes, FsError> {
        let inode = self.stat(who, path)?;
        match &inode.kind {
            Kind::Directory => Err(FsError::IsDirectory),
            _ if !who.may(&inode, READ) => Err(FsError::Denied),
            Kind::File { bytes, .. } => Ok(bytes.clone()),
            Kind::Link(_) => Err(FsError::Loop),
        }
    }

    pub fn may_execute(&self, who: Credentials, inode: &Inode) -> bool {
        // Even root needs one execute bit.
        inode.mode & 0o111 != 0 && who.may(inode, SEARCH)
    }

    pub fn may_read(&self, who: Credentials, inode: &Inode) -> bool {
        who.may(inode, READ)
    }

    pub fn may_write(&self, who: Credentials, inode: &Inode) -> bool {
        who.may(inode, WRITE)
    }

    /// Names in a directory, in order.
    pub fn list(&self, who: Credentials, path: &str) -> Result<Vec<String>, FsError> {
        let path = self.resolve(who, path, true)?;
        let inode = self.at(&path).ok_or(FsError::NotFound)?;
        if !inode.is_directory() {
            return Err(FsError::NotDirectory);
        }
        if !who.may(&inode, READ) {
            return Err(FsError::Denied);
        }
        let children = |tree: &Tree| -> Vec<String> {
            tree.below(&path)
                .filter(|(at, _)| parent(at) == path)
                .map(|(at, _)| name(at).to_owned())
                .collect()
        };
        let mut names = if is_volatile(&path) {
            children(&self.volatile())
        } else {
            children(&self.disk.tree())
        };
        if path == "/" {
            names.extend(VOLATILE.map(|top| name(top).to_owned()));
            names.sort();
            names.dedup();
        }
        Ok(names)
    }

    /// Paths of everything below a directory, parents first.
    pub fn walk(&self, who: Credentials, path: &str) -> Result<Vec<String>, FsError> {
        let path = self.resolve(who, path, true)?;
        let all = |tree: &Tree| tree.below(&path).map(|(at, _)| at.to_string()).collect();
        Ok(if is_volatile(&path) {
            all(&self.volatile())
        } else {
            all(&self.disk.tree())
        })
    }

    /// The directory that an entry is to be made in, which must be writable.
    fn writable_parent(&self, who: Credentials, path: &str) -> Result<(), FsError> {
        let above = self.at(parent(path)).ok_or(FsError::NotFound)?;
        if !above.is_directory() {
            return Err(FsError::NotDirectory);
        }
        if !who.may(&above, WRITE) {
            return Err(FsError::Denied);
        }
        Ok(())
    }

    /// Writes a file; a new one gets `mode`.
    pub fn write(&self, who: Credentials, path: &str, bytes: impl Into<Bytes>, mode: u32, now: i64) -> Result<(), FsError> {
        let path = self.resolve(who, path, true)?;
        let bytes = bytes.into();
        if path == "/dev/null" {
            return Ok(());
        }
        let old = self.at(&path);
        if let Some(old) = &old {
            if old.is_directory() {
                return Err(FsError::IsDirectory);
            }
            if !who.may(old, WRITE) {
                return Err(FsError::Denied);
            }
        } else {
            self.writable_parent(who, &path)?;
        }
        if !is_volatile(&path) && !self.disk.has_room(bytes.len()) {
            return Err(FsError::NoSpace);
        }
        let kind = Kind::File { bytes, attached: None };
        let inode = match old {
            Some(old) => Inode {
                kind,
                mtime: now,
                ..(*old).clone()
            },
            None => Inode {
                kind,
                mode,
                uid: who.uid,
                gid: who.gid,
                mtime: now,
            },
        };
        self.change(&path, |tree| tree.put(&path, inode));
        Ok(())
    }

    pub fn append(&self, who: Credentials, path: &str, more: &[u8], mode: u32, now: i64) -> Result<(), FsError> {
        let mut bytes = match self.read(who, path) {
            Ok(bytes) => bytes.to_vec(),
            Err(FsError::NotFound) => Vec::new(),
            Err(error) => return Err(error),
        };
        bytes.extend_from_slice(more);
        self.write(who, path, bytes, mode, now)
    }

    pub fn make_directory(&self, who: Credentials, path: &str, mode: u32, now: i64) -> Result<(), FsError> {
        let path = self.resolve(who, path, false)?;
        if self.at(&path).is_some() {
            return Err(FsError::Exists);
        }
        self.writable_parent(who, &path)?;
        let inode = Inode {
            kind: Kind::Directory,
            mode,
            uid: who.uid,
            gid: who.gid,
            mtime: now,
        };
        self.change(&path, |tree| tree.put(&path, inode));
        Ok(())
    }

    /// `mkdir -p`.
    pub fn make_directories(&self, who: Credentials, path: &str, mode: u32, now: i64) -> Result<(), FsError> {
        let mut at = String::new();
        for part in split(path) {
            at = format!("{at}/{part}");
            match self.stat(who, &at) {
                Ok(inode) if inode.is_directory() => {}
                Ok(_) => return Err(FsError::Exists),
                Err(FsError::NotFound) => self.make_directory(who, &at, mode, now)?,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub fn link(&self, who: Credentials, target: &str, path: &str, now: i64) -> Result<(), FsError> {
        let path = self.resolve(who, path, false)?;
        if self.at(&path).is_some() {
            return Err(FsError::Exists);
        }
        self.writable_parent(who, &path)?;
        let inode = Inode {
            kind: Kind::Link(target.to_owned()),
            mode: 0o777,
            uid: who.uid,
            gid: who.gid,
            mtime: now,
        };
        self.change(&path, |tree| tree.put(&path, inode));
        Ok(())
    }

    /// Removes a file, a link or an empty directory.
    pub fn remove(&self, who: Credentials, path: &str) -> Result<(), FsError> {
        let path = self.resolve(who, path, false)?;
        let inode = self.at(&path).ok_or(FsError::NotFound)?;
        self.writable_parent(who, &path)?;
        if inode.is_directory() && !self.walk(who, &path)?.is_empty() {
            return Err(FsError::NotEmpty);
        }
        self.change(&path, |tree| tree.remove(&path));
        Ok(())
    }

    /// `rm -r`.
    pub fn remove_all(&self, who: Credentials, path: &str) -> Result<(), FsError> {
        let path = self.resolve(who, path, false)?;
        let inode = self.at(&path).ok_or(FsError::NotFound)?;
        self.writable_parent(who, &path)?;
        let below = if inode.is_directory() {
            self.walk(who, &path)?
        } else {
            Vec::new()
        };
        self.change(&path, |tree| {
            below.iter().rev().for_each(|at| drop(tree.remove(at)));
            tree.remove(&path);
        });
        Ok(())
    }

    /// rename(2): replaces a file, and an empty directory by a directory.
    pub fn rename(&self, who: Credentials, from: &str, to: &str) -> Result<(), FsError> {
        let (from, to) = (self.resolve(who, from, false)?, self.resolve(who, to, false)?);
        let inode = self.at(&from).ok_or(FsError::NotFound)?;
        self.writable_parent(who, &from)?;
        self.writable_parent(who, &to)?;
        if let Some(old) = self.at(&to) {
            match (inode.is_directory(), old.is_directory()) {
                (true, false) => return Err(FsError::NotDirectory),
                (false, true) => return Err(FsError::IsDirectory),
                (true, true) if !self.walk(who, &to)?.is_empty() => return Err(FsError::NotEmpty),
                _ => {}
            }
        }
        let below = if inode.is_directory() {
            self.walk(who, &from)?
        } else {
            Vec::new()
        };
        let mut moved = vec![(to.clone(), inode)];
        for at in below.iter().chain([&from]) {
            if let (Some(rest), Some(inode)) = (at.strip_prefix(&from).filter(|rest| !rest.is_empty()), self.at(at)) {
                moved.push((format!("{to}{rest}"), inode));
            }
        }
        self.change(&from, |tree| {
            below.iter().for_each(|at| drop(tree.remove(at)));
            tree.remove(&from);
        });
        self.change(&to, |tree| {
            moved.iter().for_each(|(at, inode)| tree.put(at, (**inode).clone()));
        });
        Ok(())
    }

    /// Changes mode, owner or content in place; only the owner and root may.
    pub fn alter(&self, who: Credentials, path: &str, change: impl FnOnce(&mut Inode)) -> Result<(), FsError> {
        let path = self.resolve(who, path, true)?;
        let mut inode = (*self.at(&path).ok_or(FsError::NotFound)?).clone();
        if who.uid != 0 && who.uid != inode.uid {
            return Err(FsError::Denied);
        }
        change(&mut inode);
        self.change(&path, |tree| tree.put(&path, inode));
        Ok(())
    }

    // --- what the system itself does, as root ---

    /// Writes a file of the system, with its directories.
    pub fn install(&self, path: &str, text: impl Into<Bytes>, mode: u32, now: i64) {
        let made = self.make_directories(Credentials::ROOT, parent(path), 0o755, now);
        let written = made.and_then(|()| self.write(Credentials::ROOT, path, text, mode, now));
        if written.is_ok() {
            let _ = self.alter(Credentials::ROOT, path, |inode| inode.mode = mode);
        }
    }

    /// A file of root as text, `None` if it is not there.
    pub fn text(&self, path: &str) -> Option<String> {
        let bytes = self.read(Credentials::ROOT, path).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    pub fn exists(&self, path: &str) -> bool {
        self.stat(Credentials::ROOT, path).is_ok()
    }

    /// Keeps something with a file that no tool reads.
    pub fn attach(&self, path: &str, attached: Attached, now: i64) {
        self.install(path, Bytes::new(), 0o600, now);
        let _ = self.alter(Credentials::ROOT, path, |inode| {
            inode.kind = Kind::File {
                bytes: Bytes::new(),
                attached: Some(attached),
            };
        });
    }

    pub fn attached<T: Any + Send + Sync>(&self, path: &str) -> Option<Arc<T>> {
        match &self.stat(Credentials::ROOT, path).ok()?.kind {
            Kind::File { attached, .. } => attached.clone()?.downcast().ok(),
            Kind::Directory | Kind::Link(_) => None,
        }
    }
}

fn split(path: &str) -> Vec<String> {
    path.split('/')
        .filter(|part| !part.is_empty() && *part != ".")
        .map(str::to_owned)
        .collect()
}

pub(crate) fn directory(mode: u32, now: i64) -> Inode {
    Inode {
        kind: Kind::Directory,
        mode,
        uid: 0,
        gid: 0,
        mtime: now,
    }
}
