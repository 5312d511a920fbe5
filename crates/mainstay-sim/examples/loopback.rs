//! A world on loopback for unmodified clients: `cargo run -p mainstay-sim --example loopback -- [speed] [world.yaml]`.
//!
//! Guests with an address in 127.0.0.0/8 answer there; the others are reached through the jump host.
#![expect(clippy::print_stdout, reason = "an example tells where it listens")]

use std::error::Error;

use mainstay_net::{Entropy, Wall};
use mainstay_sim::{Mode, Places, World, WorldSpec};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let speed = arguments.next().map_or(Ok(10.0), |text| text.parse())?;
    let spec = match arguments.next() {
        Some(path) => WorldSpec::parse(&std::fs::read_to_string(path)?)?,
        None => WorldSpec::default(),
    };
    let places = Places {
        pve: "127.0.0.1:8006".parse()?,
        factory: "127.0.0.1:8080".parse()?,
        jump: "127.0.0.1:2222".parse()?,
        speed,
    };
    let world = World::start(spec, Mode::Loopback(places), Wall::real(), Entropy::from_os()).await?;
    println!("endpoint     {}", world.endpoint());
    println!("token        {}", world.token().unwrap_or_default());
    println!("fingerprint  {}", world.fingerprint().unwrap_or_default());
    println!("factory      {}", world.factory_url());
    println!("jump         {}@{}", world.jump().user, world.jump().address);
    println!("{}", world.jump().private_key);
    tokio::signal::ctrl_c().await?;
    Ok(())
}
