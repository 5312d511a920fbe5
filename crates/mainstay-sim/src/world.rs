//! The world: a datacenter and what is around it (network, Image Factory, jump host), and the machines that boot in it.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use mainstay_net::{Dialer, Entropy, ServeOptions, SimNet, Wall, serve, sshd};
use pve_sim::guest::{Guests, Pace};
use pve_sim::{Datacenter, Serving, SimEnv};
use tokio::task::JoinSet;

use crate::charts::{self, ChartFaults};
use crate::cloud::WebFaults;
use crate::cloud::web::{self, Web};
use crate::factory::{Factory, Settings};
use crate::ground::Ground;
use crate::path::{CriticalPath, Shape};
use crate::spec::WorldSpec;
use crate::talos::{Alarm, Machines, NodeFaults, Site, crash_apid, standing};
use crate::witness::{Standing, Witness};

/// Where a world lives.
#[derive(Clone, Debug)]
pub enum Mode {
    /// In this process, on whatever clock tokio has: virtual time in tests.
    Simulated,
    /// On loopback TCP and real time, `speed` times faster than life.
    Loopback(Places),
}

/// Where the services of a loopback world listen; port 0 lets the system choose.
#[derive(Clone, Debug)]
pub struct Places {
    pub pve: SocketAddr,
    pub factory: SocketAddr,
    pub jump: SocketAddr,
    pub speed: f64,
}

/// A running world. Dropping it ends everything in it.
pub struct World {
    site: Arc<Site>,
    datacenter: Datacenter,
    hosts: Serving,
    first_host: String,
    factory: Arc<Factory>,
    factory_at: SocketAddr,
    jump: JumpHost,
    dialer: Arc<dyn Dialer>,
    spec: WorldSpec,
    _servers: JoinSet<()>,
}

/// How to log in to the simulated jump host.
#[derive(Clone)]
pub struct JumpHost {
    pub address: SocketAddr,
    pub user: String,
    /// OpenSSH format, made for this world alone.
    pub private_key: String,
    /// `ssh-ed25519 …`
    pub host_key: String,
}

#[derive(Debug, thiserror::Error)]
pub enum WorldError {
    #[error("the {what} cannot listen on {at}")]
    Bind {
        what: &'static str,
        at: SocketAddr,
        #[source]
        cause: io::Error,
    },
    #[error("the keys of the jump host cannot be written")]
    Keys(#[source] russh::keys::ssh_key::Error),
    #[error("the certificates of the public hosts cannot be made")]
    Web,
    #[error("a world needs at least one host")]
    NoHost,
}

/// The factory's address in a world in memory (a documentation network: no guest is there).
const FACTORY: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(198, 51, 100, 80)), 80);
/// Image servers, release downloads and package mirrors.
const WEB: IpAddr = IpAddr::V4(Ipv4Addr::new(198, 51, 100, 81));
const PVE_PORT: u16 = 8006;
const SSH_PORT: u16 = 22;
const JUMP_USER: &str = "ops";

impl World {
    pub async fn start(spec: WorldSpec, mode: Mode, wall: Wall, entropy: Entropy) -> Result<Self, WorldError> {
        let net = SimNet::new(entropy.fork("network"));
        let (ground, pace) = match &mode {
            Mode::Simulated => (Ground::memory(net), Pace::default()),
            Mode::Loopback(places) => (Ground::loopback(net), Pace::new(places.speed)),
        };
        let site = Site::new(
            ground.network(),
            ground.net().clone(),
            wall,
            entropy.fork("guests"),
            pace,
            spec.guests.timing.clone(),
            matches!(mode, Mode::Loopback(_)),
        );
        let web = Web::new(spec.guests.timing.cloud.artifact_download, pace, wall, &entropy.fork("web"))
            .map_err(|_| WorldError::Web)?;
        web.set_faults(spec.web.clone());
        *site.cloud.web.lock().expect("plain data") = Some(Arc::clone(&web));
        for (machine, faults) in &spec.guests.faults {
            site.set_faults(machine, faults.clone());
        }
        let mut servers = JoinSet::new();
        let (factory, factory_at) = start_factory(&spec, &mode, &ground, pace, &web, &mut servers).await?;
        site.charts.set_faults(spec.charts.clone());
        start_web(&web, &site, &ground, &mut servers).await?;
        let env = SimEnv {
            network: ground.network(),
            dialer: ground.inside(),
            wall,
            entropy: entropy.fork("datacenter"),
            pace,
            tls: !spec.plain,
        };
        let datacenter = Datacenter::new(spec.datacenter.clone(), env, Arc::new(Machines { site: Arc::clone(&site) }));
        datacenter.trust_web(web.ca_pem.clone());
        let places = places(&spec, &mode);
        let first_host = spec.datacenter.nodes.keys().next().cloned().ok_or(WorldError::NoHost)?;
        let at = places.get(&first_host).copied().unwrap_or(FACTORY);
        let hosts = datacenter.serve(places).await.map_err(|cause| WorldError::Bind {
            what: "PVE API",
            at,
            cause,
        })?;
        for (host, address) in hosts.addresses() {
            ground.net().name(host, [address.ip()]);
        }
        let jump = start_jump(&mode, &ground, at.ip(), &entropy.fork("jump"), &mut servers).await?;
        let dialer = ground.outside();
        Ok(Self {
            site,
            datacenter,
            hosts,
            first_host,
            factory,
            factory_at,
            jump,
            dialer,
            spec,
            _servers: servers,
        })
    }

    /// How a program in front of this world reaches it.
    pub fn dialer(&self) -> Arc<dyn Dialer> {
        Arc::clone(&self.dialer)
    }

    /// The network in memory, to break it. On loopback it carries only what has no loopback address.
    pub fn net(&self) -> &SimNet {
        &self.site.sim
    }

    pub fn wall(&self) -> Wall {
        self.site.wall
    }

    pub fn datacenter(&self) -> &Datacenter {
        &self.datacenter
    }

    /// `https://127.0.0.1:8006`
    pub fn endpoint(&self) -> String {
        let at = self.hosts.addresses().get(&self.first_host);
        at.map(|at| format!("https://{at}")).unwrap_or_default()
    }

    /// SHA-256 of the certificate that the endpoint shows. `None` without TLS.
    pub fn fingerprint(&self) -> Option<String> {
        let shown = self.datacenter.fingerprint(&self.first_host);
        shown.filter(|_| !self.spec.plain)
    }

    /// `user@realm!name=secret` of the world's first token.
    pub fn token(&self) -> Option<String> {
        self.spec
            .datacenter
            .tokens
            .iter()
            .next()
            .map(|(id, token)| format!("{id}={}", token.secret))
    }

    pub fn factory(&self) -> &Factory {
        &self.factory
    }

    pub fn factory_url(&self) -> String {
        format!("http://{}", self.factory_at)
    }

    /// A mirror of the public hosts: `<mirror>/<host>/<path>` is `https://<host>/<path>`.
    pub fn mirror_url(&self) -> String {
        format!("{}/mirror", self.factory_url())
    }

    /// PEM of the authority behind the public hosts' certificates.
    pub fn web_ca(&self) -> String {
        let web = self.site.cloud.web.lock().expect("plain data").clone();
        web.map(|web| web.ca_pem.clone()).unwrap_or_default()
    }

    /// Gives the public hosts a bad day, from now on.
    pub fn set_web_faults(&self, faults: WebFaults) {
        if let Some(web) = &*self.site.cloud.web.lock().expect("plain data") {
            web.set_faults(faults);
        }
    }

    /// Gives chart servers, container registries and git repositories a bad day, from now on.
    pub fn set_chart_faults(&self, faults: ChartFaults) {
        self.site.charts.set_faults(faults);
    }

    /// Every command line that was run in a cloud guest, by VM name: `user: words…`.
    pub fn guest_commands(&self, machine: &str) -> Vec<String> {
        self.site.cloud.commands(machine)
    }

    /// The journal of the cloud guest at an address, of its current boot.
    pub fn guest_journal(&self, address: IpAddr) -> Vec<String> {
        let host = self.site.cloud.at(address);
        let entries = host.map(|host| host.journal.entries()).unwrap_or_default();
        entries
            .iter()
            .map(|entry| format!("{}: {}", entry.identifier, entry.message))
            .collect()
    }

    pub fn jump(&self) -> &JumpHost {
        &self.jump
    }

    /// What boots in VMs, for a test that has no need of a datacenter around them.
    pub fn guests(&self) -> Arc<dyn Guests> {
        Arc::new(Machines {
            site: Arc::clone(&self.site),
        })
    }

    /// Gives a machine a bad day, by its VM name, from now on.
    pub fn set_node_faults(&self, machine: &str, faults: NodeFaults) {
        self.site.set_faults(machine, faults);
    }

    /// Raises the NOSPACE alarm of the etcd that runs at an address; whether there was one.
    pub fn raise_etcd_alarm(&self, address: IpAddr) -> bool {
        let Some((cluster, member)) = self.site.node_at(address).and_then(|node| node.etcd()) else {
            return false;
        };
        cluster.raise_alarm(Alarm { member, kind: 1 });
        true
    }

    /// Kills the process of the machine API at an address; whether there was one. It comes back by itself.
    pub fn crash_apid(&self, address: IpAddr) -> bool {
        self.site.node_at(address).is_some_and(|node| crash_apid(&node))
    }

    /// How many etcd clusters were ever founded, by all bootstraps together. More than one is more than any cluster survives.
    pub fn etcd_foundings(&self) -> u64 {
        self.site.foundings()
    }

    /// From now on this witness, and not the one before, is told what is done to the nodes.
    pub fn set_witness(&self, witness: Arc<dyn Witness>) {
        self.site.set_witness(witness);
    }

    /// Where the machine of an address stands in the first etcd cluster of this world, whether or not it runs itself.
    pub fn etcd_standing(&self, address: IpAddr) -> Option<Standing> {
        let nodes = self.site.all();
        let (cluster, _) = nodes.iter().find_map(|node| node.etcd())?;
        let members = cluster.members();
        let own = members.iter().find(|member| member.address == address)?.id;
        Some(standing(&members, own))
    }

    /// What this world itself takes from the first API server to a node with a pod network from a chart, independent of the client.
    pub fn network_path(&self) -> CriticalPath {
        CriticalPath::network(&self.spec, self.site.pace, self.site.charts.helm_step())
    }

    /// What this world itself takes to bring a new cluster of a shape to Ready nodes, independent of the client.
    pub fn critical_path(&self, shape: &Shape) -> CriticalPath {
        CriticalPath::new(&self.spec, self.site.pace, shape)
    }
}

fn places(spec: &WorldSpec, mode: &Mode) -> BTreeMap<String, SocketAddr> {
    let hosts = spec.datacenter.nodes.iter();
    let own = |ip: &str| ip.parse().unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST));
    match mode {
        Mode::Simulated => hosts
            .map(|(name, host)| (name.clone(), SocketAddr::new(own(&host.ip), PVE_PORT)))
            .collect(),
        // One endpoint is enough: it proxies to the others.
        Mode::Loopback(places) => hosts.take(1).map(|(name, _)| (name.clone(), places.pve)).collect(),
    }
}

async fn start_factory(
    spec: &WorldSpec,
    mode: &Mode,
    ground: &Ground,
    pace: Pace,
    web: &Arc<Web>,
    servers: &mut JoinSet<()>,
) -> Result<(Arc<Factory>, SocketAddr), WorldError> {
    let timing = &spec.guests.timing;
    let factory = Factory::new(Settings {
        build: timing.image_build,
        download: timing.image_download,
        pace,
    });
    factory.set_faults(spec.factory.clone());
    let at = match mode {
        Mode::Simulated => FACTORY,
        Mode::Loopback(places) => places.factory,
    };
    let listener = ground.network().bind(at).await.map_err(|cause| WorldError::Bind {
        what: "Image Factory",
        at,
        cause,
    })?;
    let bound = listener.address();
    ground.net().name("factory.talos.dev", [bound.ip()]);
    let app = factory.router().merge(web.mirror());
    servers.spawn(async move {
        serve(listener, app, ServeOptions::plain()).await;
    });
    Ok((factory, bound))
}

/// The public hosts are in memory in every world: only guests and hosts reach them.
async fn start_web(web: &Arc<Web>, site: &Site, ground: &Ground, servers: &mut JoinSet<()>) -> Result<(), WorldError> {
    for (port, options) in [(80, ServeOptions::plain()), (443, ServeOptions::tls(web.tls()))] {
        let at = SocketAddr::new(WEB, port);
        let listener = ground.network().bind(at).await.map_err(|cause| WorldError::Bind {
            what: "public hosts",
            at,
            cause,
        })?;
        let app = by_host(web.router(), charts::router(&site.charts));
        servers.spawn(async move {
            serve(listener, app, options).await;
        });
    }
    for name in web::HOSTS.into_iter().chain(charts::HOSTS) {
        ground.net().name(name, [WEB]);
    }
    Ok(())
}

/// Chart hosts have servers of their own behind the same address.
fn by_host(web: axum::Router, charts: axum::Router) -> axum::Router {
    axum::Router::new().fallback(move |request: axum::extract::Request| {
        let named = request
            .headers()
            .get(http::header::HOST)
            .and_then(|value| value.to_str().ok());
        let host = named.or(request.uri().host()).unwrap_or_default();
        let is_chart_host = charts::HOSTS.contains(&host.split(':').next().unwrap_or_default());
        let app = if is_chart_host { charts.clone() } else { web.clone() };
        tower::ServiceExt::oneshot(app, request)
    })
}

async fn start_jump(
    mode: &Mode,
    ground: &Ground,
    host: IpAddr,
    entropy: &Entropy,
    servers: &mut JoinSet<()>,
) -> Result<JumpHost, WorldError> {
    let at = match mode {
        Mode::Simulated => SocketAddr::new(host, SSH_PORT),
        Mode::Loopback(places) => places.jump,
    };
    let listener = ground.network().bind(at).await.map_err(|cause| WorldError::Bind {
        what: "jump host",
        at,
        cause,
    })?;
    let address = listener.address();
    let (host_key, user_key) = (
        sshd::ed25519_key(&entropy.fork("host key")),
        sshd::ed25519_key(&entropy.fork("user key")),
    );
    let private_key = user_key
        .to_openssh(russh::keys::ssh_key::LineEnding::LF)
        .map_err(WorldError::Keys)?
        .to_string();
    let public = host_key.public_key().to_openssh().map_err(WorldError::Keys)?;
    let user = sshd::User {
        name: JUMP_USER.to_owned(),
        authorized_keys: vec![user_key.public_key().clone()],
    };
    let server = sshd::Sshd {
        host_key,
        users: vec![user],
        forwarding: true,
        dialer: ground.inside(),
    };
    servers.spawn(async move {
        server.serve(listener).await;
    });
    Ok(JumpHost {
        address,
        user: JUMP_USER.to_owned(),
        private_key,
        host_key: public,
    })
}

impl std::fmt::Debug for JumpHost {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JumpHost")
            .field("address", &self.address)
            .field("user", &self.user)
            .field("private_key", &"***")
            .finish_non_exhaustive()
    }
}
