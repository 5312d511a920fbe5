//! Who sits in front of a cluster in the simulator: the programs, and a folder with their files.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};

use super::sim::Sim;
use super::tools::{Said, call, command};

pub const LIMIT: Duration = Duration::from_secs(120);
/// A machine that boots, or restarts, is asked again once a second for this long.
const TRIES: usize = 90;

pub struct Desk<'a> {
    pub talosctl: &'a Path,
    pub sim: &'a Sim,
    pub folder: PathBuf,
    /// The age key that secrets are sealed with.
    pub key: &'a Path,
}

impl Desk<'_> {
    pub fn mainstay(&self, words: &[&str]) -> Result<Said> {
        let mut mainstay = self.at_home(&self.sim.mainstay);
        mainstay.args(words).env("SOPS_AGE_KEY_FILE", self.key);
        mainstay
            .env("PROXMOX_VE_ENDPOINT", &self.sim.endpoint)
            .env("PROXMOX_VE_API_TOKEN", &self.sim.token);
        call(&mut mainstay, LIMIT, &self.folder)
    }

    /// Builds the cluster of the folder's `cluster.yaml`, and lays out what the other programs need.
    pub fn build(&self) -> Result<()> {
        self.mainstay(&["up", "--yes", "--plain"])?.good("mainstay up")?;
        let plan = self.mainstay(&["plan", "--check"])?;
        ensure!(plan.code == Some(0), "a plan after up is not empty: {}", plan.out.trim());
        self.mainstay(&["talosconfig", "--out", "talosconfig"])?
            .good("mainstay talosconfig")?;
        self.mainstay(&["kubeconfig", "--out", "kubeconfig"])?
            .good("mainstay kubeconfig")?;
        self.mainstay(&["config", "--out", "configs"])?.good("mainstay config")?;
        Ok(())
    }

    pub fn talosctl(&self, node: &str, words: &[&str]) -> Result<Said> {
        let mut talosctl = self.at_home(self.talosctl);
        talosctl.args(["--talosconfig", "talosconfig", "--nodes", node]).args(words);
        call(&mut talosctl, LIMIT, &self.folder)
    }

    pub fn kubectl(&self, kubeconfig: &str, words: &[&str]) -> Result<Said> {
        let mut kubectl = self.at_home(Path::new("kubectl"));
        kubectl.args(["--kubeconfig", kubeconfig]).args(words);
        call(&mut kubectl, LIMIT, &self.folder)
    }

    /// Caches and settings of the user who runs this stay out of it.
    pub fn at_home(&self, program: &Path) -> Command {
        let mut command = command(program);
        command
            .current_dir(&self.folder)
            .env("HOME", &self.folder)
            .env_remove("KUBECONFIG")
            .env_remove("TALOSCONFIG");
        command
    }

    /// Wipes a machine: it comes back without a config, and without what it had on its disk.
    pub fn reset(&self, node: &str) -> Result<()> {
        let wipe = ["--system-labels-to-wipe", "STATE", "--system-labels-to-wipe", "EPHEMERAL"];
        let words = [&["reset", "--graceful=false", "--reboot", "--wait=false"][..], &wipe].concat();
        self.talosctl(node, &words)?.good("talosctl reset")?;
        Ok(())
    }

    /// Gives a machine in maintenance mode its config. Refused while it still runs as before, and while it boots.
    pub fn apply(&self, node: &str, file: &str) -> Result<()> {
        self.persist(node, &["apply-config", "--insecure", "--file", file], |_| true)
    }

    /// Bootstraps etcd, as often as the machine says that it is too early. An answer that etcd was bootstrapped already means that this call was sent twice.
    pub fn bootstrap(&self, node: &str) -> Result<()> {
        self.persist(node, &["bootstrap"], |refusal| !refusal.contains("AlreadyExists"))
    }

    pub fn second_bootstrap_is_refused(&self, node: &str) -> Result<()> {
        let again = self.talosctl(node, &["bootstrap"])?;
        ensure!(
            again.err.contains("AlreadyExists"),
            "talosctl bootstrap: {}",
            again.err.trim()
        );
        Ok(())
    }

    /// The checks run in talosctl itself, with the machine API and Kubernetes, not in the node that it asks.
    pub fn health(&self, node: &str, when: &str) -> Result<()> {
        self.talosctl(node, &["health", "--server=false", "--wait-timeout", "90s"])?
            .good(&format!("talosctl health {when}"))?;
        Ok(())
    }

    #[expect(clippy::disallowed_methods, reason = "nothing else runs in here meanwhile")]
    fn persist(&self, node: &str, words: &[&str], may_pass: impl Fn(&str) -> bool) -> Result<()> {
        let what = format!("talosctl {}", words.join(" "));
        for _ in 0..TRIES {
            let said = self.talosctl(node, words)?;
            if said.code == Some(0) {
                return Ok(());
            }
            ensure!(may_pass(&said.err), "{what}: {}", said.err.trim());
            std::thread::sleep(Duration::from_secs(1));
        }
        bail!(
            "{what} was refused for {TRIES} seconds: {}",
            self.talosctl(node, words)?.err.trim()
        )
    }
}
