//! What a command works with: the checked cluster file, clients and secrets.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use mainstay_engine::{ChartStore, Clients, EventSink, Failure, FileStore, Journal, LockStore, OsFiles, SecretsFile, recipients};
use mainstay_net::{
    Detour, Dialer, Entropy, Env, Fingerprint, JumpAddress, JumpDialer, KnownHosts, Login as SshLogin, Routes, Secret, Target,
    Tcp, Trust, Wall, dial_within,
};
use mainstay_plan::ClusterSecrets;
use mainstay_spec::{Checked, Environment, PveTrust, Spec};
use pve_api::{Client, ClientOptions, Endpoint, Login};
use sops_file::{CreationRules, Identity, Rule};
use uuid::Uuid;

use crate::error::CommandError;
use crate::process_env::{ProcessEnv, read_text, token_of};

const SSH_TIMEOUT: Duration = Duration::from_secs(20);
/// How long a direct connection is tried before the jump host is used.
const STRAIGHT_PATIENCE: Duration = Duration::from_secs(3);
/// A jump host that forbids forwarding answers within one round trip.
const FORWARD_PATIENCE: Duration = Duration::from_millis(500);

/// The cluster file, and the environment in which it is used.
pub struct Session {
    pub file: PathBuf,
    pub checked: Checked,
    pub env: Env,
    pub disk: Arc<dyn FileStore>,
    pub process_env: ProcessEnv,
    jump: Option<Arc<JumpDialer>>,
    login: OnceLock<Login>,
}

impl Session {
    /// Reads and checks the file. All its errors are reported in one run.
    pub fn open(file: &Path, process_env: ProcessEnv) -> Result<Self, CommandError> {
        let mut session = Self::open_offline(file, process_env)?;
        session.jump = session.jump_host()?.map(Arc::new);
        session.env.dialer = session.dialer();
        Ok(session)
    }

    /// For commands that connect to nothing, so that they need no SSH key for the jump host.
    pub fn open_offline(file: &Path, process_env: ProcessEnv) -> Result<Self, CommandError> {
        let text = std::fs::read(file).map_err(|error| CommandError::no_cluster_file(file, &error))?;
        let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
        let named = |name: &str| std::fs::read(folder.join(name)).ok();
        let environment = Environment {
            endpoint: process_env.endpoint.clone(),
        };
        let checked =
            mainstay_spec::load_bytes(&text, &file.display().to_string(), &environment, &named).map_err(CommandError::Spec)?;
        let env = Env {
            dialer: Arc::new(Tcp),
            wall: Wall::real(),
            entropy: Entropy::from_os(),
        };
        Ok(Self {
            file: file.to_path_buf(),
            checked,
            env,
            disk: Arc::new(OsFiles),
            process_env,
            jump: None,
            login: OnceLock::new(),
        })
    }

    pub fn spec(&self) -> &Spec {
        &self.checked.spec
    }

    /// The host name of the Proxmox VE endpoint.
    pub fn datacenter(&self) -> &str {
        self.spec().datacenter.endpoint.host_str().unwrap_or("?")
    }

    /// Machines are dialled through the jump host. Everything else is dialled directly first, then through it: Proxmox VE may be behind it too.
    fn dialer(&self) -> Arc<dyn Dialer> {
        let Some(jump) = &self.jump else {
            return Arc::new(Tcp);
        };
        let rest = Detour::new(Arc::new(Tcp), jump.clone(), STRAIGHT_PATIENCE);
        Arc::new(Routes::new(Arc::new(rest)).via(self.spec().network.cidr.into(), jump.clone()))
    }

    /// Checks login and forwarding of the jump host, if there is one, so that a refusal comes before the first change.
    pub async fn check_jump_host(&self) -> Result<(), Failure> {
        let Some(jump) = &self.jump else { return Ok(()) };
        jump.check().await?;
        let Some(machine) = self.spec().machines.first() else {
            return Ok(());
        };
        // The machine itself need not answer: the jump host decides by address and port whether it forwards.
        let port = Target::new(machine.address.to_string(), mainstay_engine::guest_port(&self.spec().distro));
        match dial_within(&**jump, &port, FORWARD_PATIENCE).await {
            Err(error) if error.is_of_the_jump_host() => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn jump_host(&self) -> Result<Option<JumpDialer>, CommandError> {
        let Some(jump) = &self.spec().datacenter.jump else {
            return Ok(None);
        };
        let address = JumpAddress {
            user: jump.user.clone(),
            target: Target {
                host: jump.host.clone(),
                port: jump.port,
            },
        };
        let known_hosts = std::fs::read_to_string(self.process_env.known_hosts()).unwrap_or_default();
        let mut logins: Vec<SshLogin> = self
            .process_env
            .ssh_agent
            .iter()
            .map(|socket| SshLogin::Agent { socket: socket.clone() })
            .collect();
        let keys = self
            .process_env
            .ssh_keys()
            .into_iter()
            .filter_map(|path| std::fs::read_to_string(path).ok());
        logins.extend(keys.map(|text| SshLogin::Key {
            text: Secret::new(text),
            passphrase: None,
        }));
        if logins.is_empty() {
            return Err(CommandError::new("no SSH key was found for the jump host")
                .why(format!("`datacenter.jump` is {jump}"))
                .help("start an SSH agent, or create a key: ssh-keygen -t ed25519"));
        }
        Ok(Some(JumpDialer::new(
            Arc::new(Tcp),
            address,
            KnownHosts::parse(&known_hosts),
            logins,
            SSH_TIMEOUT,
        )))
    }

    /// A client for Proxmox VE, by token or by password.
    pub fn pve(&self) -> Result<Client, CommandError> {
        let endpoint = &self.spec().datacenter.endpoint;
        let target = Target {
            host: endpoint.host_str().unwrap_or_default().to_owned(),
            port: endpoint.port_or_known_default().unwrap_or(8006),
        };
        let endpoint = Endpoint {
            target,
            trust: self.pve_trust(),
            host: None,
        };
        Client::new(&self.env, vec![endpoint], self.login()?, ClientOptions::default())
            .map_err(|error| CommandError::new("the certificate settings in `datacenter` are not valid").caused_by(error))
    }

    pub fn pve_trust(&self) -> Trust {
        match &self.spec().datacenter.trust {
            PveTrust::Roots => Trust::Roots { extra_ca_pem: None },
            PveTrust::Ca(file) => Trust::Ca {
                ca_pem: file.text.to_string(),
                identity: None,
                server_name: None,
            },
            PveTrust::Fingerprint(bytes) => Trust::Pin(Fingerprint::from_bytes(*bytes)),
        }
    }

    /// Read once: stdin has it once.
    pub fn login(&self) -> Result<Login, CommandError> {
        if let Some(login) = self.login.get() {
            return Ok(login.clone());
        }
        let named = self
            .spec()
            .datacenter
            .token_file
            .as_ref()
            .map(|name| self.file.with_file_name(name));
        let login = login(&self.process_env, named.as_deref())?;
        Ok(self.login.get_or_init(|| login).clone())
    }

    /// Every age identity that sops would find too.
    pub fn identities(&self) -> Result<Vec<Identity>, CommandError> {
        let mut texts = Vec::new();
        texts.extend(
            self.process_env
                .age_key
                .as_ref()
                .map(|key| ("SOPS_AGE_KEY".to_owned(), key.expose().clone())),
        );
        for path in self
            .process_env
            .age_key_file
            .iter()
            .cloned()
            .chain([self.process_env.default_age_keys()])
        {
            if let Ok(text) = std::fs::read_to_string(&path) {
                texts.push((path.display().to_string(), text));
            }
        }
        let mut identities = Vec::new();
        for (place, text) in texts {
            let found = Identity::parse_file(&text)
                .map_err(|error| CommandError::new(format!("cannot parse the age keys in {place}")).caused_by(error))?;
            identities.extend(found);
        }
        Ok(identities)
    }

    pub fn secrets_file(&self) -> Result<SecretsFile, CommandError> {
        Ok(SecretsFile::new(
            self.disk.clone(),
            SecretsFile::secrets_path(&self.file),
            self.identities()?,
        ))
    }

    /// The recipients of a new secrets file: from the nearest `.sops.yaml`, else the public keys of the identities.
    pub fn recipients(&self, identities: &[Identity]) -> Result<Rule, CommandError> {
        let path = SecretsFile::secrets_path(&self.file);
        let absolute = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        for folder in absolute.ancestors().skip(1) {
            let Ok(text) = std::fs::read_to_string(folder.join(".sops.yaml")) else {
                continue;
            };
            let relative = absolute.strip_prefix(folder).unwrap_or(&absolute).display().to_string();
            let problem = |error: sops_file::Error| {
                CommandError::new(format!("{} is not valid", folder.join(".sops.yaml").display())).caused_by(error)
            };
            let rules = CreationRules::parse(&text).map_err(problem)?;
            return recipients(Some((&rules, &relative)), identities).map_err(problem);
        }
        recipients(None, identities)
            .map_err(|error| CommandError::new("cannot determine the recipients of the secrets").caused_by(error))
    }

    pub fn secrets(&self) -> Result<Option<ClusterSecrets>, CommandError> {
        self.secrets_file()?.load().map_err(CommandError::from)
    }

    /// The clients of a run.
    pub fn clients(&self, secrets: Option<&ClusterSecrets>, events: &EventSink) -> Result<Clients, CommandError> {
        let id = secrets.map_or(Uuid::nil(), ClusterSecrets::id);
        let journal = Journal::open(self.disk.clone(), &self.process_env.journals(), id, events.clone());
        let clients = Clients::new(self.env.clone(), self.pve()?, self.spec(), secrets, journal, None)?.keeping_charts(
            self.disk.clone(),
            self.process_env.charts(),
            ChartStore::lock_beside(&self.file),
            self.process_env.holder.to_string(),
        );
        Ok(clients.with_lock(LockStore::beside(self.disk.clone(), &self.file)))
    }
}

/// By token from the environment or a file, else by user and password, else by the token file that the cluster file names.
pub fn login(process_env: &ProcessEnv, named: Option<&Path>) -> Result<Login, CommandError> {
    if let Some(token) = &process_env.token {
        return parse_token(token.expose());
    }
    if let Some(path) = &process_env.token_file {
        return token_from(path);
    }
    if let (Some(user), Some(password)) = (&process_env.username, process_env.password()?) {
        return Ok(Login::Password {
            user: user.clone(),
            password,
            code: process_env.otp()?,
        });
    }
    match named {
        Some(path) => {
            token_from(path).map_err(|error| error.help("`datacenter.token-file` names it; `mainstay setup` writes it"))
        }
        None => Err(CommandError::new("no API token for Proxmox VE")
            .why("neither PROXMOX_VE_API_TOKEN nor PROXMOX_VE_API_TOKEN_FILE is set")
            .help("to create one with exactly the privileges it needs: mainstay grant")
            .help("then: export PROXMOX_VE_API_TOKEN='user@realm!name=secret'")),
    }
}

/// The token in a file, which may have comments; `-` is stdin.
pub fn token_from(path: &Path) -> Result<Login, CommandError> {
    let text = read_text(path).map_err(|error| CommandError::unreadable(path, &error))?;
    parse_token(token_of(&text).unwrap_or_default())
}

/// The parser's error would quote the token.
fn parse_token(text: &str) -> Result<Login, CommandError> {
    text.trim().parse().map_err(|_: pve_api::ValueError| {
        CommandError::new("the API token is not valid").why("it must have the form user@realm!name=secret")
    })
}
