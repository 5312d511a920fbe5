//! Serves a world on loopback, in real time: `cargo run -p pve-sim --example serve -- world.json 127.0.0.1:8006`.
//! The first host listens there, the others on the following addresses of the network.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{Entropy, Loopback, Tcp, Wall};
use pve_sim::guest::{Content, Hardware, Pace};
use pve_sim::{AgentOs, Datacenter, SimEnv, World};

/// An image called `guest` in the world carries an agent: its marker is its checksum.
fn agent_marker(world: &World) -> String {
    let volumes = world.volumes.values().flat_map(|storages| storages.values().flatten());
    let guest = volumes.into_iter().find(|v| v.volid.ends_with("/guest.qcow2"));
    guest.and_then(|v| v.sha256.clone()).unwrap_or_default()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let world = match words.first() {
        Some(path) => World::parse(&std::fs::read_to_string(path)?)?,
        None => World::default(),
    };
    let first: SocketAddr = words.get(1).map_or("127.0.0.1:8006", String::as_str).parse()?;
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?
        .block_on(serve(world, first))
}

async fn serve(world: World, first: SocketAddr) -> Result<(), Box<dyn std::error::Error>> {
    let IpAddr::V4(base) = first.ip() else {
        return Err("an IPv4 address is needed".into());
    };
    let place = |n: usize| SocketAddr::new(Ipv4Addr::from(u32::from(base) + n as u32).into(), first.port());
    let at: BTreeMap<String, SocketAddr> = world
        .nodes
        .keys()
        .enumerate()
        .map(|(n, name)| (name.clone(), place(n)))
        .collect();
    let env = SimEnv {
        network: Arc::new(Loopback),
        dialer: Arc::new(Tcp),
        wall: Wall::real(),
        entropy: Entropy::from_os(),
        pace: Pace::default(),
        tls: true,
    };
    let marker = agent_marker(&world);
    let knows = move |hardware: &Hardware| {
        let first = hardware.disks.first().map(|d| d.content.read());
        matches!(first, Some(Content::Image(bytes)) if bytes == marker.as_bytes())
    };
    let dc = Datacenter::new(
        world,
        env,
        Arc::new(AgentOs {
            knows,
            boot: Duration::from_secs(20),
        }),
    );
    let serving = dc.serve(at).await?;
    for (host, address) in serving.addresses() {
        writeln!(
            std::io::stdout(),
            "{host} https://{address} {}",
            dc.fingerprint(host).unwrap_or_default()
        )?;
    }
    std::future::pending().await
}
