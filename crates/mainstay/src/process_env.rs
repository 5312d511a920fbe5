//! Environment variables and well-known paths, read once at the start.

use std::io::BufRead;
use std::path::{Path, PathBuf};

use etcetera::BaseStrategy;
use mainstay_engine::LeaseHolder;
use mainstay_net::{Entropy, Secret};
use mainstay_plan::LeaseProcess;
use rand::Rng;

use crate::error::CommandError;

/// Environment variables and paths. An empty variable counts as unset.
#[derive(Debug, Clone)]
pub struct ProcessEnv {
    pub endpoint: Option<String>,
    pub token: Option<Secret<String>>,
    pub token_file: Option<PathBuf>,
    pub username: Option<String>,
    password: Option<Secret<String>>,
    password_file: Option<PathBuf>,
    /// The current code of the user's second factor.
    otp: Option<Secret<String>>,
    otp_file: Option<PathBuf>,
    pub age_key: Option<Secret<String>>,
    pub age_key_file: Option<PathBuf>,
    pub kubeconfig: Option<PathBuf>,
    pub talosconfig: Option<PathBuf>,
    pub ssh_agent: Option<PathBuf>,
    pub no_color: bool,
    /// A terminal that can neither move its cursor nor show colours, or an unknown one.
    pub dumb_terminal: bool,
    /// The locale is one of UTF-8.
    pub unicode: bool,
    pub ci: bool,
    pub home: PathBuf,
    config: PathBuf,
    state: PathBuf,
    pub holder: LeaseHolder,
}

impl ProcessEnv {
    pub fn read() -> Self {
        let base = etcetera::choose_base_strategy().ok();
        let home = base
            .as_ref()
            .map_or_else(|| PathBuf::from("."), |base| base.home_dir().to_path_buf());
        let user = variable("USER")
            .or_else(|| variable("LOGNAME"))
            .unwrap_or_else(|| "unknown".into());
        let machine = variable("HOSTNAME").or_else(hostname).unwrap_or_else(|| "unknown".into());
        Self {
            endpoint: variable("PROXMOX_VE_ENDPOINT"),
            token: variable("PROXMOX_VE_API_TOKEN").map(Secret::new),
            token_file: variable("PROXMOX_VE_API_TOKEN_FILE").map(PathBuf::from),
            username: variable("PROXMOX_VE_USERNAME"),
            password: variable("PROXMOX_VE_PASSWORD").map(Secret::new),
            password_file: variable("PROXMOX_VE_PASSWORD_FILE").map(PathBuf::from),
            otp: variable("PROXMOX_VE_OTP").map(Secret::new),
            otp_file: variable("PROXMOX_VE_OTP_FILE").map(PathBuf::from),
            age_key: variable("SOPS_AGE_KEY").map(Secret::new),
            age_key_file: variable("SOPS_AGE_KEY_FILE").map(PathBuf::from),
            kubeconfig: variable("KUBECONFIG").map(PathBuf::from),
            talosconfig: variable("TALOSCONFIG").map(PathBuf::from),
            ssh_agent: variable("SSH_AUTH_SOCK").map(PathBuf::from),
            no_color: variable("NO_COLOR").is_some(),
            dumb_terminal: variable("TERM").is_none_or(|term| term == "dumb"),
            unicode: is_utf8_locale(),
            ci: variable("CI").is_some(),
            config: base.as_ref().map_or_else(|| home.join(".config"), BaseStrategy::config_dir),
            state: base
                .as_ref()
                .and_then(BaseStrategy::state_dir)
                .unwrap_or_else(|| home.join(".local/state")),
            holder: holder(&user, &machine),
            home,
        }
    }

    /// From the environment, or the first line of the file that it names.
    pub fn password(&self) -> Result<Option<Secret<String>>, CommandError> {
        value_or_file(self.password.as_ref(), self.password_file.as_deref())
    }

    /// From the environment, or the first line of the file that it names.
    pub fn otp(&self) -> Result<Option<Secret<String>>, CommandError> {
        value_or_file(self.otp.as_ref(), self.otp_file.as_deref())
    }

    /// Where sops looks for age keys.
    pub fn default_age_keys(&self) -> PathBuf {
        self.config.join("sops/age/keys.txt")
    }

    pub fn journals(&self) -> PathBuf {
        self.state.join("mainstay")
    }

    /// Where chart archives are kept, by digest.
    pub fn charts(&self) -> PathBuf {
        self.state.join("mainstay/charts")
    }

    /// Where run logs are kept, in one folder per cluster.
    pub fn runs(&self) -> PathBuf {
        self.state.join("mainstay/runs")
    }

    pub fn known_hosts(&self) -> PathBuf {
        self.home.join(".ssh/known_hosts")
    }

    /// The keys that ssh itself would try.
    pub fn ssh_keys(&self) -> Vec<PathBuf> {
        ["id_ed25519", "id_ecdsa", "id_rsa"]
            .iter()
            .map(|name| self.home.join(".ssh").join(name))
            .collect()
    }

    pub fn default_kubeconfig(&self) -> PathBuf {
        // KUBECONFIG may be a list of files. Like kubectl, write to the first one.
        let listed = self.kubeconfig.as_ref().and_then(|list| std::env::split_paths(list).next());
        listed.unwrap_or_else(|| self.home.join(".kube/config"))
    }
}

fn value_or_file(value: Option<&Secret<String>>, file: Option<&Path>) -> Result<Option<Secret<String>>, CommandError> {
    match (value, file) {
        (None, Some(file)) => read_secret(file).map(Some),
        _ => Ok(value.cloned()),
    }
}

/// The first line of a file. `-` is the next line of stdin, so that a password and a code can both come from there.
pub fn read_secret(file: &Path) -> Result<Secret<String>, CommandError> {
    let read = if file == Path::new("-") {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map(|_| line)
    } else {
        std::fs::read_to_string(file)
    };
    let text = read.map_err(|error| CommandError::unreadable(file, &error))?;
    Ok(Secret::new(text.lines().next().unwrap_or_default().trim_end().to_owned()))
}

/// The text of a file; `-` is stdin.
pub fn read_text(path: &Path) -> std::io::Result<String> {
    if path == Path::new("-") {
        return std::io::read_to_string(std::io::stdin().lock());
    }
    std::fs::read_to_string(path)
}

/// The token in the text of a token file: the first line that is neither empty nor a comment.
pub fn token_of(text: &str) -> Option<&str> {
    text.lines()
        .map(str::trim)
        .find(|line| !line.is_empty() && !line.starts_with('#'))
}

#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// The first of these variables that is set decides, as for every program that asks the C library.
fn is_utf8_locale() -> bool {
    let locale = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable);
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// This run, as the lease names it.
fn holder(user: &str, machine: &str) -> LeaseHolder {
    let mut id = [0; 16];
    Entropy::from_os().fork("run").rng().fill_bytes(&mut id);
    let holder = LeaseHolder::new(user, machine, &uuid::Builder::from_random_bytes(id).into_uuid().to_string());
    match process() {
        Some(process) => holder.of_process(process, process_began),
        None => holder,
    }
}

/// This process, where the system tells it (Linux).
fn process() -> Option<LeaseProcess> {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let namespace = std::fs::read_link("/proc/self/ns/pid").ok()?;
    // `pid:[4026531836]`
    let namespace = namespace.to_str()?.strip_prefix("pid:[")?.strip_suffix(']')?;
    let pid = std::process::id();
    Some(LeaseProcess {
        boot: boot.trim().to_owned(),
        namespace: namespace.parse().ok()?,
        pid,
        began: process_began(pid)?,
    })
}

/// When a process began, in ticks since the boot. One that has ended and was not waited for yet is gone.
fn process_began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name of the program stands in parentheses and may have any character. State and begin are fields 3 and 22.
    let (_, after_name) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let is_over = matches!(fields.first(), Some(&("Z" | "X")));
    fields.get(19).filter(|_| !is_over)?.parse().ok()
}

fn hostname() -> Option<String> {
    let name = std::fs::read_to_string(Path::new("/etc/hostname")).ok()?;
    Some(name.trim().to_owned()).filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::{process, process_began, token_of};

    #[cfg(target_os = "linux")]
    #[test]
    fn a_process_is_known_by_its_boot_its_namespace_and_its_begin() {
        let own = process().expect("Linux tells");
        assert_eq!(process_began(own.pid), Some(own.began));
        assert_eq!(process().as_ref(), Some(&own));
        assert_eq!(process_began(u32::MAX), None);
    }

    #[test]
    fn the_token_is_the_first_line_that_is_no_comment() {
        assert_eq!(token_of("# mainstay setup x\na@pve!b=c\n"), Some("a@pve!b=c"));
        assert_eq!(token_of("  a@pve!b=c"), Some("a@pve!b=c"));
        assert_eq!(token_of("# mainstay setup x\n\n"), None);
    }
}
