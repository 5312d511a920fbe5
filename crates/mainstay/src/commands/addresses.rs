//! Looks for addresses on which no machine answers.

use std::net::Ipv4Addr;
use std::time::Duration;

use mainstay_net::{DialFault, Env, Target, dial_within};
use tokio::task::JoinSet;

/// How long a machine on the same network needs at most to answer.
const PATIENCE: Duration = Duration::from_millis(500);
/// Ten for control planes, ten for workers.
const BLOCK: u32 = 20;
/// Where blocks are looked for, best first: routers seldom hand out the upper addresses.
const STARTS: [u32; 5] = [211, 191, 171, 151, 131];

/// The number of the first address of a block in which none answers; the first choice if there is no such block, or no network to look at.
pub async fn free_block(env: &Env, network: Option<ipnet::Ipv4Net>) -> u8 {
    let fallback = u8::try_from(STARTS[0]).unwrap_or(u8::MAX);
    let Some(network) = network.filter(|network| network.prefix_len() <= 24) else {
        return fallback;
    };
    for start in STARTS {
        let base = u32::from(network.network());
        let mut dials = JoinSet::new();
        for number in start..start + BLOCK {
            let (env, address) = (env.clone(), Ipv4Addr::from(base + number));
            dials.spawn(async move { answers(&env, address).await });
        }
        if !dials.join_all().await.contains(&true) {
            return u8::try_from(start).unwrap_or(fallback);
        }
    }
    fallback
}

/// A machine that refuses a connection is there too. Only loopback addresses refuse without one.
async fn answers(env: &Env, address: Ipv4Addr) -> bool {
    let dialled = dial_within(&*env.dialer, &Target::new(address.to_string(), 22), PATIENCE).await;
    match dialled {
        Ok(_) => true,
        Err(error) => !address.is_loopback() && matches!(error.fault(), DialFault::Refused),
    }
}
