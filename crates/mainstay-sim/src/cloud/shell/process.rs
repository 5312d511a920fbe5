//! A running program: who runs it, where, and with what around it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedMutexGuard, watch};

use super::io::{Input, Output};
use crate::cloud::fs::{self, Credentials, FsError, Inode};
use crate::cloud::host::Host;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: String,
}

impl User {
    pub fn root() -> Self {
        Self {
            name: "root".to_owned(),
            uid: 0,
            gid: 0,
            home: "/root".to_owned(),
        }
    }

    /// From `/etc/passwd`.
    pub fn find(host: &Host, name: &str) -> Option<Self> {
        host.fs.text("/etc/passwd")?.lines().find_map(|line| {
            let mut fields = line.split(':');
            (fields.next()? == name).then_some(())?;
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            let home = fields.nth(1)?.to_owned();
            Some(Self {
                name: name.to_owned(),
                uid,
                gid,
                home,
            })
        })
    }

    pub fn credentials(&self) -> Credentials {
        Credentials {
            uid: self.uid,
            gid: self.gid,
        }
    }
}

#[derive(Clone)]
pub(crate) struct Process {
    pub host: Arc<Host>,
    pub user: User,
    pub env: BTreeMap<String, String>,
    pub cwd: String,
    pub umask: u32,
    pub stdin: Input,
    /// By file descriptor; 1 and 2 are always there.
    pub outputs: BTreeMap<u32, Output>,
    /// The unit this process belongs to.
    pub unit: Option<String>,
    /// `sd_notify(READY=1)`, for the main process of a unit that waits for it.
    pub ready: Option<Arc<watch::Sender<bool>>>,
    /// What the shell around this process has locked by descriptors.
    pub locks: Arc<Mutex<Vec<OwnedMutexGuard<()>>>>,
    /// A script that calls itself for ever ends here.
    pub depth: u32,
}

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

impl Process {
    pub fn new(host: &Arc<Host>, user: User) -> Self {
        let mut env = BTreeMap::new();
        env.insert("PATH".to_owned(), PATH.to_owned());
        env.insert("HOME".to_owned(), user.home.clone());
        env.insert("USER".to_owned(), user.name.clone());
        env.insert("LOGNAME".to_owned(), user.name.clone());
        Self {
            host: Arc::clone(host),
            cwd: user.home.clone(),
            user,
            env,
            umask: 0o022,
            stdin: Input::default(),
            outputs: BTreeMap::from([(1, Output::Null), (2, Output::Null)]),
            unit: None,
            ready: None,
            locks: Arc::default(),
            depth: 0,
        }
    }

    pub fn who(&self) -> Credentials {
        self.user.credentials()
    }

    pub fn write(&self, fd: u32, bytes: impl AsRef<[u8]>) {
        if let Some(output) = self.outputs.get(&fd) {
            output.write(self, bytes.as_ref());
        }
    }

    pub fn say(&self, text: impl AsRef<str>) {
        self.write(1, text.as_ref());
    }

    pub fn line(&self, text: impl AsRef<str>) {
        self.write(1, format!("{}\n", text.as_ref()));
    }

    /// Complains and fails: `return p.fail("cat: …")`.
    pub fn fail(&self, text: impl AsRef<str>) -> i32 {
        self.complain(text);
        1
    }

    pub fn complain(&self, text: impl AsRef<str>) {
        self.write(2, format!("{}\n", text.as_ref()));
    }

    pub fn path(&self, path: &str) -> String {
        // Links to directories need `..` untouched; only the beginning is made absolute.
        if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("{}/{path}", self.cwd)
        }
    }

    pub fn read(&self, path: &str) -> Result<bytes::Bytes, FsError> {
        match path {
            "/dev/null" => Ok(bytes::Bytes::new()),
            _ => self.host.fs.read(self.who(), &self.path(path)),
        }
    }

    pub fn stat(&self, path: &str) -> Result<Arc<Inode>, FsError> {
        self.host.fs.stat(self.who(), &self.path(path))
    }

    pub fn lstat(&self, path: &str) -> Result<Arc<Inode>, FsError> {
        self.host.fs.lstat(self.who(), &self.path(path))
    }

    pub fn store(&self, path: &str, bytes: impl Into<bytes::Bytes>) -> Result<(), FsError> {
        self.host
            .fs
            .write(self.who(), &self.path(path), bytes, 0o666 & !self.umask, self.host.now())
    }

    pub fn change_directory(&mut self, path: &str) -> Result<(), FsError> {
        let goal = fs::absolute(&self.cwd, path);
        if !self.host.fs.stat(self.who(), &goal)?.is_directory() {
            return Err(FsError::NotDirectory);
        }
        self.cwd = goal;
        Ok(())
    }

    /// The operands of a tool: named files, or the standard input where there are none.
    pub async fn inputs(&self, files: &[String]) -> Vec<(String, Result<bytes::Bytes, FsError>)> {
        if files.is_empty() {
            return vec![("-".to_owned(), Ok(self.stdin.read_to_end().await))];
        }
        let mut read = Vec::new();
        for file in files {
            let content = if file == "-" || file == "/dev/stdin" {
                Ok(self.stdin.read_to_end().await)
            } else {
                self.read(file)
            };
            read.push((file.clone(), content));
        }
        read
    }
}
