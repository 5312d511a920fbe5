//! The file with the API token: the setup id as a comment, then the token.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use mainstay_engine::FileStore;
use mainstay_net::Secret;
use uuid::Uuid;

use crate::error::CommandError;
use crate::process_env::token_of;

const HEAD: &str = "# mainstay setup ";

/// What is in the file. Without a token, a setup was interrupted before it had one.
pub struct TokenFile {
    pub path: PathBuf,
    pub id: Uuid,
    pub token: Option<Secret<String>>,
}

impl TokenFile {
    /// `None`: there is no such file. A file without a setup id was not written by `setup`, and is refused.
    pub fn read(disk: &dyn FileStore, path: &Path) -> Result<Option<Self>, CommandError> {
        let Some(bytes) = disk.read(path).map_err(|error| CommandError::unreadable(path, &error))? else {
            return Ok(None);
        };
        let text = String::from_utf8_lossy(&bytes);
        let id = text.lines().find_map(|line| line.strip_prefix(HEAD)?.trim().parse().ok());
        let id = id.ok_or_else(|| {
            CommandError::refused(format!("{} has no setup id", path.display()))
                .why("it was not written by `mainstay setup`, so that setup cannot know what belongs to it")
                .help("move the file away to set up a new user and token")
        })?;
        Ok(Some(Self {
            path: path.to_path_buf(),
            id,
            token: token_of(&text).map(|token| Secret::new(token.to_owned())),
        }))
    }

    /// Written before the token is made: what cannot be kept must not be made. Never over a file that is there, nor through a link.
    pub fn create(disk: &dyn FileStore, path: &Path, id: Uuid) -> Result<(), CommandError> {
        disk.create(path, format!("{HEAD}{id}\n").as_bytes()).map_err(|error| {
            let problem = CommandError::new(format!("cannot write {}", path.display())).help("nothing was changed on Proxmox VE");
            if error.kind() == ErrorKind::AlreadyExists {
                return problem.why("it appeared while setup ran");
            }
            problem.caused_by(error)
        })
    }

    pub fn fill(disk: &dyn FileStore, path: &Path, id: Uuid, token: &Secret<String>) -> std::io::Result<()> {
        disk.write(path, format!("{HEAD}{id}\n{}\n", token.expose()).as_bytes())
    }
}

/// Keeps the token out of git. What git ignores already stays as it is.
pub fn ignore_in_git(token_file: &Path) -> std::io::Result<bool> {
    let Some(name) = token_file.file_name().and_then(|name| name.to_str()) else {
        return Ok(false);
    };
    let path = token_file.with_file_name(".gitignore");
    let before = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error),
    };
    if before.lines().any(|line| [name, &format!("/{name}")].contains(&line.trim())) {
        return Ok(false);
    }
    let gap = if before.is_empty() || before.ends_with('\n') {
        ""
    } else {
        "\n"
    };
    let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
    file.write_all(format!("{gap}/{name}\n").as_bytes())?;
    Ok(true)
}
