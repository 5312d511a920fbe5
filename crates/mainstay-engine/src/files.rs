//! The few files that mainstay keeps: the encrypted secrets, the journal, the age key.
//!
//! Two disks earn the trait: the real one, and the one of simulated runs, which can be full.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

pub trait FileStore: Send + Sync + 'static {
    /// `None` when there is no such file.
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>>;

    /// Replaces the file whole or not at all, readable by its owner only.
    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// Like [`Disk::write`], but never over a file that is there.
    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()>;

    /// One line at the end of the file, on the platter when this returns.
    fn append(&self, path: &Path, line: &str) -> io::Result<()>;

    /// Fine when there is no such file.
    fn remove(&self, path: &Path) -> io::Result<()>;
}

/// The file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsFiles;

impl OsFiles {
    /// The content next to its place, synced and 0600 from its first byte.
    fn stage(path: &Path, content: &[u8]) -> io::Result<(PathBuf, tempfile::NamedTempFile)> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
            _ => PathBuf::from("."),
        };
        std::fs::create_dir_all(&folder)?;
        let mut file = tempfile::Builder::new().prefix(".mainstay-").tempfile_in(&folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        Ok((folder, file))
    }

    /// A rename is only lasting once its folder is.
    fn sync_folder(folder: &Path) -> io::Result<()> {
        std::fs::File::open(folder)?.sync_all()
    }
}

impl FileStore for OsFiles {
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        match std::fs::read(path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let (folder, file) = Self::stage(path, content)?;
        file.persist(path).map_err(|error| error.error)?;
        Self::sync_folder(&folder)
    }

    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        let (folder, file) = Self::stage(path, content)?;
        file.persist_noclobber(path).map_err(|error| error.error)?;
        Self::sync_folder(&folder)
    }

    fn append(&self, path: &Path, line: &str) -> io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut file = std::fs::OpenOptions::new().create(true).append(true).open(path)?;
        file.write_all(format!("{line}\n").as_bytes())?;
        file.sync_data()
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// A disk in memory, which survives the runs that use it and can be full.
#[derive(Debug, Default)]
pub struct MemoryFiles {
    files: Mutex<BTreeMap<PathBuf, Vec<u8>>>,
    full: std::sync::atomic::AtomicBool,
}

impl MemoryFiles {
    pub fn set_full(&self, full: bool) {
        self.full.store(full, std::sync::atomic::Ordering::Relaxed);
    }

    /// All files, for tests that look for secrets in them.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        self.lock().clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, Vec<u8>>> {
        self.files.lock().expect("nothing panics while it writes")
    }

    fn room(&self) -> io::Result<()> {
        if self.full.load(std::sync::atomic::Ordering::Relaxed) {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }
}

impl FileStore for MemoryFiles {
    fn read(&self, path: &Path) -> io::Result<Option<Vec<u8>>> {
        Ok(self.lock().get(path).cloned())
    }

    fn write(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.room()?;
        self.lock().insert(path.to_path_buf(), content.to_vec());
        Ok(())
    }

    fn create(&self, path: &Path, content: &[u8]) -> io::Result<()> {
        self.room()?;
        match self.lock().entry(path.to_path_buf()) {
            std::collections::btree_map::Entry::Occupied(_) => Err(io::ErrorKind::AlreadyExists.into()),
            std::collections::btree_map::Entry::Vacant(place) => {
                place.insert(content.to_vec());
                Ok(())
            }
        }
    }

    fn append(&self, path: &Path, line: &str) -> io::Result<()> {
        self.room()?;
        self.lock()
            .entry(path.to_path_buf())
            .or_default()
            .extend_from_slice(format!("{line}\n").as_bytes());
        Ok(())
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.lock().remove(path);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(check: impl Fn(&dyn FileStore, &Path)) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        check(&OsFiles, &folder.path().join("deep/file"));
        check(&MemoryFiles::default(), Path::new("deep/file"));
    }

    #[test]
    fn what_was_written_is_read_and_what_was_not_is_absent() {
        both(|disk, path| {
            assert_eq!(disk.read(path).expect("reads"), None);
            disk.write(path, b"one").expect("writes");
            disk.write(path, b"two").expect("writes over");
            disk.append(path, "three").expect("appends");
            assert_eq!(disk.read(path).expect("reads").as_deref(), Some(&b"twothree\n"[..]));
            disk.remove(path).expect("removes");
            disk.remove(path).expect("removes what is not there");
            assert_eq!(disk.read(path).expect("reads"), None);
        });
    }

    #[test]
    fn create_never_writes_over_a_file() {
        both(|disk, path| {
            disk.create(path, b"first").expect("creates");
            let refused = disk.create(path, b"second").expect_err("a file is there");
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists);
            assert_eq!(disk.read(path).expect("reads").as_deref(), Some(&b"first"[..]));
        });
    }

    #[cfg(unix)]
    #[test]
    fn files_are_for_their_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("secrets.yaml");
        OsFiles.write(&path, b"x").expect("writes");
        assert_eq!(
            std::fs::metadata(&path).expect("is there").permissions().mode() & 0o777,
            0o600
        );
    }

    #[test]
    fn a_full_disk_keeps_what_it_has() {
        let disk = MemoryFiles::default();
        disk.write(Path::new("a"), b"old").expect("writes");
        disk.set_full(true);
        assert_eq!(
            disk.write(Path::new("a"), b"new").expect_err("full").kind(),
            io::ErrorKind::StorageFull
        );
        assert_eq!(disk.read(Path::new("a")).expect("reads").as_deref(), Some(&b"old"[..]));
    }
}
