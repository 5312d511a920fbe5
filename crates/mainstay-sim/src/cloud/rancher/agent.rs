//! `rke2 agent` and `k3s agent`, and how any node finds a server.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::config::{Config, Token};
use super::supervisor::{Phase, View};
use super::tls::{self, Authorities};
use super::{Binary, Distro, node};
use crate::cloud::host::Host;
use crate::cloud::shell::Process;

/// The server behind a URL, if it listens and can be reached from here.
pub(super) fn find_server(host: &Arc<Host>, distro: Distro, url: &str) -> Option<Arc<View>> {
    let url = url::Url::parse(url).ok()?;
    let address: IpAddr = url.host_str()?.trim_matches(['[', ']']).parse().ok()?;
    if url.port_or_known_default() != Some(distro.supervisor_port()) {
        return None;
    }
    let own = host.address()?;
    let target = host.site.cloud.at(address)?;
    let view = target
        .runtime
        .view()
        .filter(|view| view.binary.distro == distro && view.phase() > Phase::Starting);
    view.filter(|_| host.site.reaches(own, address))
}

/// The hash of a full token is compared with the authority that the server shows.
pub(super) fn check_ca(token: &Token, authorities: &Authorities) -> Result<(), String> {
    let Some(wanted) = &token.ca_hash else { return Ok(()) };
    if wanted.len() != 64 {
        return Err("failed to validate token: invalid token CA hash length".to_owned());
    }
    let shown = tls::hash(authorities);
    if *wanted != shown {
        return Err(format!(
            "failed to validate token: token CA hash does not match the Cluster CA certificate hash: {wanted} != {shown}"
        ));
    }
    Ok(())
}

struct Guard(Arc<Host>);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.runtime.set_kubelet(None);
    }
}

/// An agent never gives up: it asks again.
pub(super) async fn run(process: Process, binary: Binary, flags: &[String]) -> i32 {
    let host = Arc::clone(&process.host);
    let config = match Config::read(&host, binary.distro, flags) {
        Ok(config) => config,
        Err(error) => return super::server::fatal(&process, &error),
    };
    let (Some(url), Some(token)) = (config.text("server"), config.token(&host)) else {
        return super::server::fatal(&process, "--server and --token are required");
    };
    process.complain(format!(
        "level=info msg=\"Starting {} agent {} (5aed4d7b)\"",
        binary.distro.name(),
        binary.version
    ));
    if binary.distro == Distro::Rke2 {
        host.pass(host.timing().runtime_image).await;
    }
    let _guard = Guard(Arc::clone(&host));
    let cluster = loop {
        match join(&host, &binary, &config, &url, &token) {
            Ok(cluster) => break cluster,
            Err((text, pause)) => {
                process.complain(format!("level=error msg=\"{text}\""));
                tokio::time::sleep(Duration::from_secs(pause)).await;
            }
        }
    };
    host.pass(Duration::from_secs(4)).await;
    if let Some(ready) = &process.ready {
        ready.send_replace(true);
    }
    node::run(&host, &binary, &config, &cluster, None).await;
    0
}

/// One attempt; an error says what is logged, and for how many seconds the agent waits.
fn join(
    host: &Arc<Host>,
    binary: &Binary,
    config: &Config,
    url: &str,
    token: &Token,
) -> Result<Arc<super::cluster::Cluster>, (String, u64)> {
    let unreachable = || {
        (
            format!("Failed to validate connection to cluster at {url}: failed to get CA certs: connection refused"),
            2,
        )
    };
    let waits = |text: &str| {
        (
            format!("Waiting to retrieve agent configuration; server is not ready: {text}"),
            10,
        )
    };
    let server = find_server(host, binary.distro, url).ok_or_else(unreachable)?;
    let known = server.state();
    let authorities = known.authorities.as_ref().ok_or_else(unreachable)?;
    check_ca(token, authorities).map_err(|error| (format!("Failed to validate connection to cluster at {url}: {error}"), 2))?;
    if token.password != known.agent_password {
        return Err(waits("not authorized"));
    }
    if server.phase() < Phase::ApiReady {
        return Err(waits("failed to retrieve configuration from server: 503 Service Unavailable"));
    }
    let data = server
        .host
        .upgrade()
        .and_then(|host| host.runtime.etcd())
        .ok_or_else(|| waits("runtime core not ready"))?;
    node::check_password(host, binary.distro, &data.cluster, &config.node_name(host)).map_err(|error| waits(&error))?;
    Ok(data.cluster)
}
