//! `cluster.lock.yaml` on the disk: what was downloaded once, so that it is downloaded again and nothing else.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use helm_charts::LockFile;

use crate::failure::{Failure, FailureKind};
use crate::files::FileStore;

/// The lock file of one cluster, which lies beside its file. It holds nothing secret.
#[derive(Clone)]
pub struct LockStore {
    files: Arc<dyn FileStore>,
    path: PathBuf,
}

impl LockStore {
    /// `cluster.yaml` has `cluster.lock.yaml`.
    pub fn beside(files: Arc<dyn FileStore>, cluster_file: &Path) -> Self {
        let stem = cluster_file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let path = cluster_file.with_file_name(format!("{stem}.lock.yaml"));
        Self { files, path }
    }

    /// What is pinned. A file that is not there pins nothing.
    pub fn read(&self) -> Result<LockFile, Failure> {
        let unreadable = || Failure::new(FailureKind::Refused, format!("{} cannot be read", self.path.display()));
        let bytes = self.files.read(&self.path).map_err(|error| unreadable().caused_by(error))?;
        let text = String::from_utf8(bytes.unwrap_or_default()).map_err(|_| unreadable().why("it is not UTF-8 text"))?;
        LockFile::parse(&text).map_err(|error| unreadable().why(error.to_string()))
    }

    /// Reads the file again, changes it, and writes it if that made a difference. Returns whether it did.
    pub fn change(&self, change: impl FnOnce(&mut LockFile)) -> Result<bool, Failure> {
        let before = self.read()?;
        let mut after = before.clone();
        change(&mut after);
        if after == before {
            return Ok(false);
        }
        let written = self.files.write(&self.path, after.to_yaml().as_bytes());
        written.map_err(|error| {
            Failure::new(FailureKind::Failed, format!("cannot write {}", self.path.display())).caused_by(error)
        })?;
        Ok(true)
    }

    pub fn path(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::MemoryFiles;

    #[test]
    fn a_lock_is_written_beside_the_file_and_only_if_it_changed() {
        let disk = Arc::new(MemoryFiles::default());
        let lock = LockStore::beside(disk.clone(), Path::new("clusters/prod.yaml"));
        assert_eq!(lock.path(), Path::new("clusters/prod.lock.yaml"));
        assert_eq!(lock.read().expect("absent is empty"), LockFile::default());
        assert!(lock.change(|lock| lock.csi_controller_vmid = Some(9000)).expect("written"));
        assert!(!lock.change(|lock| lock.csi_controller_vmid = Some(9000)).expect("the same"));
        disk.set_full(true);
        assert!(lock.change(|lock| lock.csi_controller_vmid = None).is_err());
        assert_eq!(lock.read().expect("as it was").csi_controller_vmid, Some(9000));
    }

    #[test]
    fn a_lock_with_a_merge_conflict_is_refused_and_not_overwritten() {
        let disk = Arc::new(MemoryFiles::default());
        let text = b"version: 1\n<<<<<<< ours\n=======\n>>>>>>> theirs\n";
        disk.write("cluster.lock.yaml".as_ref(), text).expect("written");
        let lock = LockStore::beside(disk.clone(), Path::new("cluster.yaml"));
        let failure = lock.change(|lock| lock.csi_controller_vmid = None).expect_err("a conflict");
        assert!(failure.why.as_ref().is_some_and(|why| why.contains("conflict")), "{failure}");
        assert_eq!(
            disk.read("cluster.lock.yaml".as_ref()).expect("there").as_deref(),
            Some(text.as_slice())
        );
    }
}
