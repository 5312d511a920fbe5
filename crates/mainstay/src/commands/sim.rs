//! `sim`: the simulated world as a server on loopback, for mainstay and for any other client.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::{Arc, Mutex};

use mainstay_net::{Entropy, Wall};
use mainstay_sim::{Mode, Places, World, WorldSpec};
use pve_sim::{Observer, Seen};

use crate::args::SimArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::signals::Signals;

pub async fn run(args: &SimArgs, output: Output) -> Result<(), CommandError> {
    if !args.listen.ip().is_loopback() {
        return Err(CommandError::usage(format!("{} is not a loopback address", args.listen.ip()))
            .why("the simulated datacenter must not be reachable from a network")
            .help("use an address of 127.0.0.0/8"));
    }
    let spec = match &args.world {
        Some(path) => {
            let text = std::fs::read_to_string(path).map_err(|error| CommandError::unreadable(path, &error))?;
            WorldSpec::parse(&text).map_err(|error| {
                CommandError::usage(format!("{} does not describe a datacenter", path.display())).caused_by(error)
            })?
        }
        None => WorldSpec::default(),
    };
    let any = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let places = Places {
        pve: args.listen,
        factory: any,
        jump: any,
        speed: args.speed,
    };
    let world = World::start(spec, Mode::Loopback(places), Wall::real(), Entropy::from_os()).await;
    let world = world.map_err(|error| CommandError::new("cannot serve the simulated datacenter").caused_by(error))?;
    if let Some(path) = &args.record {
        world.datacenter().observe(Arc::new(Recorder::open(path)?));
    }
    announce(&world, output);
    Signals::listen().next().await;
    if args.stats {
        for (call, count) in world.datacenter().stats().calls() {
            output.print(format!("{count:>8}  {call}"));
        }
        output.print(format!("{:>8}  in total", world.datacenter().stats().total()));
    }
    Ok(())
}

fn announce(world: &World, output: Output) {
    let (endpoint, token, fingerprint) = (
        world.endpoint(),
        world.token().unwrap_or_default(),
        world.fingerprint().unwrap_or_default(),
    );
    let jump = world.jump();
    if output.json {
        output.print_json(&serde_json::json!({
            "v": 1, "type": "sim", "endpoint": endpoint, "token": token, "fingerprint": fingerprint, "factory": world.factory_url(),
            "jump": {"address": jump.address.to_string(), "user": jump.user, "key": jump.private_key, "host_key": jump.host_key},
        }));
        return;
    }
    output.print(format!("export PROXMOX_VE_ENDPOINT={endpoint}"));
    output.print(format!("export PROXMOX_VE_API_TOKEN='{token}'"));
    output.status(format!("fingerprint  {fingerprint}"));
    output.status(format!("factory      {}  (talos.factory)", world.factory_url()));
    output.status(format!(
        "jump         {}@{}  (key and host key: --json)",
        jump.user, jump.address
    ));
    output.status(
        "Machines answer on their own addresses if their network is in 127.0.0.0/8, e.g. cidr: 127.10.0.0/16. Ctrl-C stops.",
    );
}

/// Every request and its answer, as JSON lines.
struct Recorder(Mutex<std::fs::File>);

impl Recorder {
    fn open(path: &Path) -> Result<Self, CommandError> {
        let file = std::fs::File::create(path)
            .map_err(|error| CommandError::new(format!("cannot write {}", path.display())).caused_by(error))?;
        Ok(Self(Mutex::new(file)))
    }
}

impl Observer for Recorder {
    fn request(&self, seen: &Seen) {
        let line = serde_json::json!({
            "host": seen.host, "by": seen.by, "method": seen.verb, "path": seen.path, "params": seen.params,
            "status": seen.status, "reason": seen.reason, "answer": seen.answer,
        });
        if let Ok(mut file) = self.0.lock() {
            // A full disk must not stop the datacenter.
            let _ = writeln!(file, "{line}");
        }
    }
}
