//! What is run in a guest, and the shell text that runs it.
//!
//! Command lines are public: sudo logs them and every process of the guest can read them. So a script is fixed text with public
//! arguments, and everything secret goes through stdin.

use std::fmt;
use std::time::Duration;

use crate::secret::Secret;

/// Printed before the script's own output. Shell start files of the user may print before it.
const MARKER: &str = "mainstay-output-begins";

const OUTPUT_MAX: usize = 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(60);

/// A POSIX shell script with its arguments (`$1`, `$2`, ...).
#[derive(Clone, Debug)]
pub struct SshCommand {
    /// What it is called in errors.
    pub name: String,
    /// Run by `/bin/sh -c`. Contains no secret: it is visible in the guest's process list and in sudo's log.
    pub script: String,
    /// No secrets either.
    pub arguments: Vec<String>,
    pub user: RunAs,
    pub timeout: Duration,
    /// Bytes of stdout and of stderr, each.
    pub output_max: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RunAs {
    /// The user that logged in.
    LoginUser,
    /// Through `sudo -n`.
    Root,
}

impl SshCommand {
    /// A script that runs as root, for at most a minute and with at most 1 MiB of output.
    pub fn root(name: impl Into<String>, script: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            script: script.into(),
            arguments: Vec::new(),
            user: RunAs::Root,
            timeout: TIMEOUT,
            output_max: OUTPUT_MAX,
        }
    }

    /// The same as the user that logged in.
    pub fn login_user(name: impl Into<String>, script: impl Into<String>) -> Self {
        Self {
            user: RunAs::LoginUser,
            ..Self::root(name, script)
        }
    }

    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// What sshd hands to the user's login shell. Only quoting that every shell understands, absolute paths, and a fixed locale, so
    /// that messages can be compared.
    pub(super) fn line(&self) -> String {
        let sudo = match self.user {
            RunAs::LoginUser => "",
            RunAs::Root => "/usr/bin/sudo -n /usr/bin/env LC_ALL=C ",
        };
        let script = format!("printf '%s\\n' {MARKER}\n{}", self.script);
        let mut line = format!("/usr/bin/env LC_ALL=C {sudo}/bin/sh -c {} sh", quoted(&script));
        for argument in &self.arguments {
            line.push(' ');
            line.push_str(&quoted(argument));
        }
        line
    }
}

/// In single quotes, for any POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What follows the marker line; `None` if the script never began.
pub(super) fn after_marker(stdout: &[u8]) -> Option<&[u8]> {
    let marker = format!("{MARKER}\n").into_bytes();
    // At the start of a line, or after text that a start file printed without a line end.
    let at = stdout.windows(marker.len()).position(|window| window == marker)?;
    Some(&stdout[at + marker.len()..])
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SshExit {
    Code(u32),
    Signal(String),
}

impl fmt::Display for SshExit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(name) => write!(f, "signal {name}"),
        }
    }
}

/// What came of a command that ran to its end. Its bytes may be secret (a file that was read), so `Debug` prints lengths only.
#[derive(Clone, PartialEq, Eq)]
pub struct SshOutput {
    pub exit: SshExit,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

impl SshOutput {
    pub fn is_success(&self) -> bool {
        self.exit == SshExit::Code(0)
    }

    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }
}

impl fmt::Debug for SshOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (out, err) = (self.stdout.len(), self.stderr.len());
        write!(f, "SshOutput({}, {out} bytes of stdout, {err} bytes of stderr)", self.exit)
    }
}

/// A file of the guest, written whole or not at all.
#[derive(Clone, Debug)]
pub struct RemoteFile {
    /// Absolute. Its directory is made (0755, root) if it is missing.
    pub path: String,
    pub mode: u32,
    /// `root:root`.
    pub owner: String,
    pub content: Secret<Vec<u8>>,
}

impl RemoteFile {
    /// A file of root.
    pub fn new(path: impl Into<String>, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        Self {
            path: path.into(),
            mode,
            owner: "root:root".into(),
            content: Secret::new(content.into()),
        }
    }

    /// The content is not part of it: it goes through stdin.
    pub(super) fn command(&self) -> SshCommand {
        SshCommand::root(format!("write {}", self.path), WRITE_FILE)
            .argument(&self.path)
            .argument(format!("{:04o}", self.mode))
            .argument(&self.owner)
            .argument(self.content.expose().len().to_string())
    }
}

/// A connection that breaks looks like the end of the content to the guest, so the length decides whether the file is complete. The
/// temporary file lies in the same directory, because a rename is atomic only within one file system.
pub(super) const WRITE_FILE: &str = r#"set -eu
umask 077
path=$1 mode=$2 owner=$3 length=$4
directory=${path%/*}
[ -n "$directory" ] || directory=/
[ -d "$directory" ] || (umask 022 && mkdir -p "$directory")
temporary=$(mktemp "$directory/.mainstay.XXXXXXXX")
trap 'rm -f "$temporary"' EXIT
cat > "$temporary"
received=$(wc -c < "$temporary")
if [ "$received" -ne "$length" ]; then
  echo "received $received of $length bytes" >&2
  exit 74
fi
chown "$owner" "$temporary"
chmod "$mode" "$temporary"
sync "$temporary"
mv -fT "$temporary" "$path"
trap - EXIT
sync "$directory"
"#;

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::unix::fs::PermissionsExt;
    use std::path::{Path, PathBuf};
    use std::process::{Output, Stdio};

    use super::*;

    #[test]
    fn only_what_follows_the_marker_is_output() {
        let noisy = format!("Welcome!\nno newline{MARKER}\nout\n{MARKER}\n");
        assert_eq!(after_marker(noisy.as_bytes()).unwrap(), format!("out\n{MARKER}\n").as_bytes());
        assert!(after_marker(b"Welcome!\n").is_none());
    }

    #[test]
    fn the_content_of_a_file_is_not_in_its_command() {
        let file = RemoteFile::new("/etc/rancher/rke2/config.yaml", 0o600, "token: CANARY");
        let line = file.command().line();
        assert!(!line.contains("CANARY") && !format!("{file:?}").contains("CANARY"), "{line}");
        assert!(
            line.ends_with(" sh '/etc/rancher/rke2/config.yaml' '0600' 'root:root' '13'"),
            "{line}"
        );
        assert!(
            line.starts_with("/usr/bin/env LC_ALL=C /usr/bin/sudo -n /usr/bin/env LC_ALL=C /bin/sh -c '"),
            "{line}"
        );
    }

    /// The line as a login shell runs it, without sudo.
    #[expect(clippy::disallowed_methods, reason = "the script is for a real shell")]
    fn in_shell(command: &SshCommand, stdin: &[u8]) -> Output {
        let line = command.line().replace("/usr/bin/sudo -n ", "");
        let mut child = std::process::Command::new("/bin/sh")
            .args(["-c", &line])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(stdin).unwrap();
        child.wait_with_output().unwrap()
    }

    #[test]
    fn arguments_reach_the_script_as_they_are() {
        let command = SshCommand::login_user("echo", "printf '%s|' \"$@\"; cat")
            .argument("a 'b' $c")
            .argument("");
        let output = in_shell(&command, b"in");
        assert_eq!(after_marker(&output.stdout).unwrap(), b"a 'b' $c||in");
    }

    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("mainstay-net-{name}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn names(&self) -> Vec<String> {
            let entries = std::fs::read_dir(&self.0).unwrap();
            entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect()
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn file_at(path: &Path, content: &str) -> RemoteFile {
        use std::os::unix::fs::MetadataExt;
        let own = std::fs::metadata(path.ancestors().find(|dir| dir.exists()).unwrap()).unwrap();
        RemoteFile {
            owner: format!("{}:{}", own.uid(), own.gid()),
            ..RemoteFile::new(path.to_str().unwrap(), 0o640, content)
        }
    }

    #[test]
    fn a_file_is_written_with_its_mode_and_its_directory_is_made() {
        let scratch = Scratch::new("write");
        let path = scratch.0.join("deep/er/file");
        let file = file_at(&path, "one\0two");
        let output = in_shell(&file.command(), file.content.expose());
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(std::fs::read(&path).unwrap(), b"one\0two");
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777, 0o640);
    }

    #[test]
    fn content_that_was_cut_off_leaves_the_old_file_and_nothing_else() {
        let scratch = Scratch::new("cut");
        let path = scratch.0.join("config.yaml");
        std::fs::write(&path, "old").unwrap();
        let file = file_at(&path, "the new content");
        let output = in_shell(&file.command(), b"the new");
        assert_eq!(output.status.code(), Some(74));
        assert!(String::from_utf8_lossy(&output.stderr).contains("received 7 of 15 bytes"));
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        assert_eq!(scratch.names(), ["config.yaml"], "the temporary file is gone");
    }
}
