//! The command line. Help texts are the doc comments.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use mainstay_plan::TurnPolicy;

/// Turns Proxmox VE and one YAML file into a production Kubernetes cluster, keeps it that way, and takes it down again.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, max_term_width = 100, disable_help_subcommand = true)]
#[command(after_help = crate::exit::HELP)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Clone, Args)]
pub struct Global {
    /// The cluster file
    #[arg(short, long, global = true, default_value = "cluster.yaml", value_name = "FILE")]
    pub file: PathBuf,
    /// One JSON object per line on stdout instead of text
    #[arg(long, global = true)]
    pub json: bool,
    /// Plain lines instead of a live view, as in CI
    #[arg(long, global = true)]
    pub plain: bool,
    /// When to use colour; NO_COLOR is respected
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub color: Color,
    /// Show every step with its reason, and every retry
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Color {
    Auto,
    Always,
    Never,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create a user and API token for a cluster on Proxmox VE, and write a commented cluster.yaml
    Setup(SetupArgs),
    /// Read Proxmox VE through the API token and write a commented cluster.yaml
    Init(InitArgs),
    /// Create or change the cluster until it is as cluster.yaml says; run again to resume, repair or scale
    Up(UpArgs),
    /// Show what `up` would do, without changing anything
    Plan(PlanArgs),
    /// Delete everything that mainstay created for this cluster, and nothing else
    Down(DownArgs),
    /// Put the marks back on a VM of this cluster that lost some of them
    Adopt(AdoptArgs),
    /// Show the state of machines, etcd, Kubernetes and certificates
    Status(StatusArgs),
    /// Check everything that `up` needs, one line per check
    Doctor,
    /// Print the pveum commands for a role with exactly the privileges that this file needs
    Grant(GrantArgs),
    /// Show the certificate that Proxmox VE presents, and write its fingerprint into the file
    Trust(TrustArgs),
    /// Print, write or merge a kubeconfig for the cluster's administrator
    Kubeconfig(Credentials),
    /// Print, write or merge a talosconfig for the cluster's administrator
    Talosconfig(Credentials),
    /// Print, write or merge an SSH config with the key and the host keys of RKE2 and k3s machines
    Sshconfig(SshconfigArgs),
    /// Print the machine configs that would be applied, without any connection
    Config(ConfigArgs),
    /// Show or import the cluster's secrets
    #[command(subcommand)]
    Secrets(SecretsArgs),
    /// List the kept runs of this cluster, or show one of them again as it was seen
    Logs(LogsArgs),
    /// Print the JSON Schema of cluster.yaml for editors, or that of the event stream
    Schema {
        /// The schema of the lines that `--json` and run logs have
        #[arg(long)]
        events: bool,
    },
    /// Build a cluster on simulated machines and show it; no hardware, no network, no files
    Demo(DemoArgs),
    /// Serve a simulated Proxmox VE datacenter on loopback, for mainstay and other clients
    Sim(SimArgs),
    /// Print completions for a shell
    Completions { shell: clap_complete::Shell },
    /// Print the manual page, or write one per command into a directory
    Man {
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        /// All commands and options on one page of Markdown
        #[arg(long, conflicts_with = "out")]
        markdown: bool,
    },
}

#[derive(Debug, Args)]
pub struct SetupArgs {
    /// The name of the cluster in a new file
    #[arg(long, default_value = "homelab")]
    pub name: String,
    /// Proxmox VE, if there is no file yet, e.g. https://pve.lan:8006
    #[arg(long, value_name = "URL")]
    pub endpoint: Option<String>,
    /// SHA-256 fingerprint of the certificate of Proxmox VE, instead of the question
    #[arg(long, value_name = "SHA256")]
    pub fingerprint: Option<String>,
    /// The administrator, e.g. root@pam
    #[arg(long, value_name = "USER")]
    pub user: Option<String>,
    /// File with the administrator's password; - is stdin
    #[arg(long, value_name = "FILE")]
    pub password_file: Option<PathBuf>,
    /// File with the current code of the administrator's second factor; - is stdin
    #[arg(long, value_name = "FILE")]
    pub totp_file: Option<PathBuf>,
    /// Apply the changes without asking; does not include --enable-import
    #[arg(short, long)]
    pub yes: bool,
    /// Add the content type `import` to the storage for images, if it lacks it
    #[arg(long)]
    pub enable_import: bool,
    /// Print the pveum commands for what setup makes, and change nothing
    #[arg(long, conflicts_with_all = ["undo", "yes", "enable_import"])]
    pub show: bool,
    /// Delete what setup made for this cluster, and nothing else
    #[arg(long, conflicts_with = "enable_import")]
    pub undo: bool,
}

#[derive(Debug, Args)]
pub struct InitArgs {
    /// The name of the cluster
    #[arg(long, default_value = "homelab")]
    pub name: String,
    /// Overwrite an existing file
    #[arg(long)]
    pub force: bool,
}

#[derive(Debug, Args)]
pub struct UpArgs {
    /// Apply the plan without asking
    #[arg(short, long)]
    pub yes: bool,
    /// Take over the lease of another run
    #[arg(long)]
    pub take_lease: bool,
    /// Destroy this volume with its VM although mainstay did not make it; may be given more than once
    #[arg(long, value_name = "VOLID")]
    pub with_disk: Vec<String>,
    #[command(flatten)]
    pub turns: TurnArgs,
    /// Make this add-on as the file says although it was installed or changed by hand; may be given more than once
    #[arg(long, value_name = "ADD-ON")]
    pub take: Vec<String>,
    /// Try again to install this add-on, whose last attempt failed; may be given more than once
    #[arg(long, value_name = "ADD-ON")]
    pub retry: Vec<String>,
}

/// Consent and limits for work that disturbs running machines.
#[derive(Debug, Args)]
pub struct TurnArgs {
    /// How long moving the pods of a machine away may take, e.g. 90s, 10m
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = duration)]
    pub drain_timeout: Duration,
    /// Restart or remove this machine without moving its pods away first; may be given more than once
    #[arg(long, value_name = "MACHINE")]
    pub skip_drain: Vec<String>,
    /// Delete also pods of this machine that no controller makes again; may be given more than once
    #[arg(long, value_name = "MACHINE")]
    pub force_drain: Vec<String>,
    /// Go on although this machine is unavailable; may be given more than once
    #[arg(long, value_name = "MACHINE")]
    pub despite: Vec<String>,
    /// Try a new system again on this machine, which came back with the old one; may be given more than once
    #[arg(long, value_name = "MACHINE")]
    pub retry_upgrade: Vec<String>,
}

impl TurnArgs {
    pub fn policy(&self) -> TurnPolicy {
        TurnPolicy {
            drain_timeout: self.drain_timeout,
            skip_drain: self.skip_drain.iter().cloned().collect(),
            force_drain: self.force_drain.iter().cloned().collect(),
            despite: self.despite.iter().cloned().collect(),
            retry_upgrade: self.retry_upgrade.iter().cloned().collect(),
            ..TurnPolicy::default()
        }
    }
}

#[derive(Debug, Args)]
pub struct PlanArgs {
    /// Exit with 3 if there is something to do
    #[arg(long)]
    pub check: bool,
    #[command(flatten)]
    pub turns: TurnArgs,
}

#[derive(Debug, Args)]
pub struct DownArgs {
    /// Delete without asking; needs --name
    #[arg(short, long, requires = "name")]
    pub yes: bool,
    /// Cluster name, to confirm the deletion
    #[arg(long)]
    pub name: Option<String>,
    /// Delete the downloaded images too
    #[arg(long)]
    pub images: bool,
    /// Delete the secrets file too; it cannot be restored
    #[arg(long)]
    pub forget: bool,
    /// Take over the lease of another run
    #[arg(long)]
    pub take_lease: bool,
    /// Destroy this volume with its VM although mainstay did not make it; may be given more than once
    #[arg(long, value_name = "VOLID")]
    pub with_disk: Vec<String>,
}

#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// The VM to adopt; its SMBIOS UUID must be that of a machine of this cluster
    #[arg(value_name = "VMID")]
    pub vmid: u32,
    /// Adopt without asking
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct StatusArgs {
    /// Keep running and show changes
    #[arg(short, long)]
    pub watch: bool,
}

#[derive(Debug, Args)]
pub struct LogsArgs {
    /// The number of the run in the list: 1 is the last one
    #[arg(value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub number: Option<u32>,
    /// Show the last run
    #[arg(long, conflicts_with = "number")]
    pub last: bool,
    /// On a terminal: how many times faster than it was the run is shown; by default it takes ten seconds
    #[arg(long, value_parser = positive)]
    pub speed: Option<f64>,
}

#[derive(Debug, Args)]
pub struct GrantArgs {
    /// User or API token that gets the privileges: user@realm, or user@realm!token
    #[arg(long = "to", value_name = "WHO", default_value = "mainstay@pve!up")]
    pub to: String,
    /// Version of Proxmox VE, instead of the one that answers, e.g. 9.1
    #[arg(long, value_name = "VERSION")]
    pub pve: Option<String>,
}

#[derive(Debug, Args)]
pub struct TrustArgs {
    /// Write the fingerprint into the cluster file
    #[arg(long)]
    pub write: bool,
}

#[derive(Debug, Args)]
pub struct Credentials {
    /// Write to this file instead of stdout
    #[arg(short, long, value_name = "FILE", conflicts_with = "merge")]
    pub out: Option<PathBuf>,
    /// Merge into KUBECONFIG or TALOSCONFIG (or the default file) and make it the current context
    #[arg(short, long)]
    pub merge: bool,
    /// How long the certificate is valid, in hours
    #[arg(long, value_name = "HOURS", default_value_t = 8760, value_parser = clap::value_parser!(i64).range(1..=87_600))]
    pub hours: i64,
}

#[derive(Debug, Args)]
pub struct SshconfigArgs {
    /// Write config, known_hosts and key into this directory
    #[arg(short, long, value_name = "DIR", conflicts_with = "merge")]
    pub out: Option<PathBuf>,
    /// Write them below ~/.ssh/mainstay and include them in ~/.ssh/config
    #[arg(short, long)]
    pub merge: bool,
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    /// Only this machine
    pub machine: Option<String>,
    /// Show secrets in plain text; without this flag they are masked
    #[arg(long)]
    pub show_secrets: bool,
    /// Write one file per machine, with secrets in plain text, readable by you only
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
}

#[derive(Debug, Subcommand)]
pub enum SecretsArgs {
    /// List the contents and recipients of the secrets file, without any secret
    Show,
    /// Import the secrets of an existing cluster: talosctl's secrets.yaml, plain or encrypted by sops
    Import {
        #[arg(value_name = "FILE")]
        from: PathBuf,
    },
}

#[derive(Debug, Args)]
pub struct DemoArgs {
    /// How many times faster than real time the simulated world runs
    #[arg(long, default_value_t = 30.0, value_parser = positive)]
    pub speed: f64,
    /// Inject network faults with this random seed
    #[arg(long, value_name = "SEED")]
    pub faults: Option<u64>,
}

#[derive(Debug, Args)]
pub struct SimArgs {
    /// Address of the simulated Proxmox VE API
    #[arg(long, default_value = "127.0.0.1:8006", value_name = "ADDR:PORT")]
    pub listen: std::net::SocketAddr,
    /// Description of the datacenter: hosts, storages, users, faults
    #[arg(long, value_name = "FILE")]
    pub world: Option<PathBuf>,
    /// How many times faster than real time tasks and guests run; protocol timeouts are not scaled
    #[arg(long, default_value_t = 1.0, value_parser = positive)]
    pub speed: f64,
    /// Record every request and response as JSON lines
    #[arg(long, value_name = "FILE")]
    pub record: Option<PathBuf>,
    /// Count requests by call, and print the counts at the end
    #[arg(long)]
    pub stats: bool,
}

/// Seconds, or a number with a unit.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => return Err("must be a number with s, m or h, e.g. 90s or 10m".into()),
    };
    let seconds: u64 = number.parse().map_err(|_| "must begin with a number, e.g. 90s or 10m")?;
    Ok(Duration::from_secs(seconds.saturating_mul(factor)))
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && number > 0.0 => Ok(number),
        _ => Err("must be a positive number".into()),
    }
}
