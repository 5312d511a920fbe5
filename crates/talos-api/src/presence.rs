//! Which machine answers at an address: our configured one, one without a config, a foreign one, or none.

use mainstay_net::{Env, Target};

use crate::error::{Error, Next};
use crate::maintenance::Maintenance;
use crate::node::{Access, Node};
use crate::release::Release;

/// What one look at an address gave.
pub enum Presence {
    /// A configured machine of this cluster.
    Configured { node: Node, release: Release },
    /// A machine in maintenance mode; whose, it has yet to prove.
    Unconfigured(Maintenance),
    /// A configured machine whose authority is not ours.
    Foreign,
    /// No answer now: off, booting, rebooting, or out of reach.
    Absent(Error),
    /// Something answers and cannot be made sense of: see the error.
    Odd(Error),
}

/// Asks as the cluster's owner first. Only where the machine is not signed by our authority is it asked without any proof.
pub async fn presence(env: &Env, access: &Access, at: &Target) -> Result<Presence, Error> {
    let node = access.node(at)?;
    let error = match node.release().await {
        Ok(release) => return Ok(Presence::Configured { node, release }),
        Err(error) => error,
    };
    if !error.is_unknown_issuer() {
        return Ok(if matches!(error.next(), Next::Retry) {
            Presence::Absent(error)
        } else {
            Presence::Odd(error)
        });
    }
    let met = match Maintenance::meet(env, at).await {
        Ok(met) => met,
        // A configured machine asks for a client certificate, and `Trust::Nothing` has none to offer.
        Err(error) if error.is_client_refused() => return Ok(Presence::Foreign),
        Err(error) => return Ok(Presence::Absent(error)),
    };
    match met.status().await {
        Ok(_) => Ok(Presence::Unconfigured(met)),
        Err(error) if error.is_client_refused() => Ok(Presence::Foreign),
        Err(error) => Ok(Presence::Absent(error)),
    }
}
