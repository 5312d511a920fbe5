//! `sshconfig`: what `ssh` needs to log in to the machines of an RKE2 or k3s cluster: key, host keys and one entry per machine.

use std::fmt::Write;
use std::path::Path;

use mainstay_engine::{EventSink, ObserveScope, observe};
use mainstay_plan::{ClusterSecrets, DistroSecrets};
use mainstay_spec::Spec;

use super::access::secrets;
use crate::args::SshconfigArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::session::Session;

const USER: &str = "mainstay";

/// A machine whose host key is known.
struct SshHost {
    name: String,
    address: String,
    /// `ssh-ed25519 AAAA...`.
    key: String,
}

pub async fn run(session: &Session, args: &SshconfigArgs, output: Output) -> Result<(), CommandError> {
    let secrets = secrets(session)?;
    let DistroSecrets::Rancher(bundle) = &secrets.distro else {
        return Err(CommandError::usage("sshconfig is for RKE2 and k3s clusters")
            .why("Talos has no SSH")
            .help("for the machines of this cluster: mainstay talosconfig"));
    };
    let (hosts, unknown) = hosts(session, &secrets).await?;
    if hosts.is_empty() {
        return Err(CommandError::new("no machine of this cluster has a recorded host key")
            .why("a host key is recorded when a machine proved to be ours")
            .help("create the machines first: mainstay up"));
    }
    for name in unknown {
        output.status(format!("{name} is left out: its host key is not recorded yet"));
    }
    let spec = session.spec();
    let ssh = session.process_env.home.join(".ssh");
    let folder = args
        .out
        .clone()
        .unwrap_or_else(|| ssh.join("mainstay").join(spec.name.as_str()));
    let folder = std::path::absolute(&folder).unwrap_or(folder);
    let config = config(spec, &hosts, &folder)?;
    if args.out.is_none() && !args.merge {
        output.print_raw(&config);
        output.status("nothing was written; --out or --merge writes the key and the host keys that this refers to");
        return Ok(());
    }
    // The key first: an entry that refers to a missing key would make ssh ask for a password.
    write(session, &folder.join("id_ed25519"), bundle.ssh().private())?;
    write(session, &folder.join("known_hosts"), &known_hosts(spec, &hosts))?;
    write(session, &folder.join("config"), &config)?;
    output.status(format!("wrote config, known_hosts and id_ed25519 into {}", folder.display()));
    if args.merge {
        include(session, &ssh.join("config"), &folder.join("config"), output)?;
    } else {
        output.status(format!(
            "log in with: ssh -F {} {}",
            folder.join("config").display(),
            hosts[0].name
        ));
    }
    Ok(())
}

/// The machines whose mark has a host key, and the names of the others.
async fn hosts(session: &Session, secrets: &ClusterSecrets) -> Result<(Vec<SshHost>, Vec<String>), CommandError> {
    session.check_jump_host().await?;
    let clients = session.clients(None, &EventSink::discard())?;
    let scope = ObserveScope::of(session.spec(), Some(secrets.id()));
    let addresses = observe(&clients, &scope).await?.addresses;
    let (mut hosts, mut unknown) = (Vec::new(), Vec::new());
    for machine in &session.spec().machines {
        let name = machine.name.to_string();
        let key = addresses.identity(&name).and_then(|identity| identity.host_key.clone());
        match key.zip(addresses.get(&name)) {
            Some((key, address)) => hosts.push(SshHost {
                name,
                address: address.to_string(),
                key,
            }),
            None => unknown.push(name),
        }
    }
    Ok((hosts, unknown))
}

/// Addresses may be used again by another cluster, so the host keys are kept under the names of this one.
fn alias(spec: &Spec, host: &SshHost) -> String {
    format!("{}.{}.mainstay", host.name, spec.name)
}

fn known_hosts(spec: &Spec, hosts: &[SshHost]) -> String {
    let line = |host: &SshHost| format!("{} {}\n", alias(spec, host), host.key);
    hosts.iter().map(line).collect()
}

fn config(spec: &Spec, hosts: &[SshHost], folder: &Path) -> Result<String, CommandError> {
    let folder = folder.display().to_string();
    if folder.contains(['"', '\n']) {
        return Err(CommandError::usage(format!("{folder} cannot be written into an SSH config")));
    }
    let mut text = format!(
        "# The machines of the cluster {}, written by mainstay sshconfig.\n",
        spec.name
    );
    for host in hosts {
        let _ = write!(
            text,
            "\nHost {}\n  HostName {}\n  User {USER}\n  IdentityFile \"{folder}/id_ed25519\"\n  IdentitiesOnly yes\n  \
             HostKeyAlias {}\n  HostKeyAlgorithms ssh-ed25519\n  UserKnownHostsFile \"{folder}/known_hosts\"\n  \
             StrictHostKeyChecking yes\n",
            host.name,
            host.address,
            alias(spec, host),
        );
        if let Some(jump) = &spec.datacenter.jump {
            let _ = writeln!(text, "  ProxyJump {}@{}:{}", jump.user, jump.host, jump.port);
        }
    }
    Ok(text)
}

/// An `Include` counts for all hosts only above the first `Host`, so it becomes the first line.
fn include(session: &Session, config: &Path, included: &Path, output: Output) -> Result<(), CommandError> {
    let line = format!("Include \"{}\"", included.display());
    let there = session
        .disk
        .read(config)
        .map_err(|error| CommandError::unreadable(config, &error))?;
    let there = String::from_utf8(there.unwrap_or_default())
        .map_err(|_| CommandError::new(format!("{} is not UTF-8 text", config.display())))?;
    if there.lines().any(|known| known.trim() == line) {
        return Ok(());
    }
    write(session, config, &format!("{line}\n{there}"))?;
    output.status(format!("{} includes it now", config.display()));
    Ok(())
}

fn write(session: &Session, path: &Path, text: &str) -> Result<(), CommandError> {
    let written = session.disk.write(path, text.as_bytes());
    written.map_err(|error| CommandError::new(format!("cannot write {}", path.display())).caused_by(error))
}
