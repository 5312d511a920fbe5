//! What opens the machines of one RKE2 or k3s cluster.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use mainstay_kube::Cluster;
use mainstay_net::{Env, Identity, Secret, Target, Trust};
use rancher_config::{ClientIdentity, Distro, MintTime, PkiError, Secrets, access};
use tokio::sync::Semaphore;

use super::ssh::{GuestSession, MachineAccess};
use super::supervisor::{CONNECT, Supervisor, unusable};
use crate::failure::Failure;

const KUBERNETES_PORT: u16 = 6443;

/// Pushes at once: each is limited by the operator's own uplink.
const PUSHES: usize = 3;

/// Everything that opens the machines of one cluster. Clones share their connections: one SSH connection per guest and run.
#[derive(Clone)]
pub struct RancherAccess {
    pub env: Env,
    pub(super) distro: Distro,
    /// PEM of the authority that every server must serve byte for byte.
    pub(super) server_ca: Arc<str>,
    ssh_key: Secret<String>,
    supervisor_identity: Identity,
    kubernetes_identity: Identity,
    pub(super) pushes: Arc<Semaphore>,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    sessions: Mutex<BTreeMap<(IpAddr, String), GuestSession>>,
    supervisors: Mutex<BTreeMap<IpAddr, Supervisor>>,
    clusters: Mutex<BTreeMap<IpAddr, Cluster>>,
}

impl RancherAccess {
    /// Mints the client certificates of this run.
    pub fn new(env: &Env, secrets: &Secrets, at: MintTime) -> Result<Self, PkiError> {
        let lifetime = access::DEFAULT_LIFETIME;
        let mut rng = env.entropy.fork("supervisor client certificate").rng();
        let supervisor = access::supervisor_client(secrets, lifetime, at, &mut rng)?;
        let mut rng = env.entropy.fork("kubernetes client certificate").rng();
        let kubernetes = access::kubernetes_admin(secrets, lifetime, at, &mut rng)?;
        Ok(Self {
            env: env.clone(),
            distro: secrets.distro(),
            server_ca: secrets.server_ca().into(),
            ssh_key: Secret::new(secrets.ssh().private().to_owned()),
            supervisor_identity: identity(&supervisor),
            kubernetes_identity: identity(&kubernetes),
            pushes: Arc::new(Semaphore::new(PUSHES)),
            shared: Arc::default(),
        })
    }

    /// The administrator's certificate for Kubernetes.
    pub fn kubernetes_identity(&self) -> Identity {
        self.kubernetes_identity.clone()
    }

    pub const fn distro(&self) -> Distro {
        self.distro
    }

    /// The session of a machine. It is made once per run and life of the VM, and opened by its first use.
    pub(super) fn session(&self, machine: &MachineAccess) -> GuestSession {
        let key = (machine.address, machine.serial.clone());
        let mut sessions = self.shared.sessions.lock().expect("nothing panics while it holds the map");
        let known = sessions.get(&key).filter(|session| session.accepts(machine));
        if let Some(session) = known {
            return session.clone();
        }
        let session = GuestSession::new(&self.env, machine, self.ssh_key.clone());
        sessions.insert(key, session.clone());
        session
    }

    /// Drops the connection to a machine that did not prove to be ours: the host key that it showed must not be expected again.
    pub(super) fn forget_session(&self, machine: &MachineAccess) {
        let key = (machine.address, machine.serial.clone());
        let mut sessions = self.shared.sessions.lock().expect("nothing panics while it holds the map");
        sessions.remove(&key);
    }

    /// The supervisor of one server, with our client certificate.
    pub fn supervisor(&self, address: IpAddr) -> Result<Supervisor, Failure> {
        let mut supervisors = self.shared.supervisors.lock().expect("nothing panics while it holds the map");
        if let Some(supervisor) = supervisors.get(&address) {
            return Ok(supervisor.clone());
        }
        let supervisor = Supervisor::new(
            &self.env,
            self.distro,
            &self.server_ca,
            address,
            &self.trust(&self.supervisor_identity),
        )?;
        supervisors.insert(address, supervisor.clone());
        Ok(supervisor)
    }

    /// The Kubernetes API of one server. Its certificate names its own address, so the VIP is not needed.
    pub fn kubernetes(&self, address: IpAddr) -> Result<Cluster, Failure> {
        let mut clusters = self.shared.clusters.lock().expect("nothing panics while it holds the map");
        if let Some(cluster) = clusters.get(&address) {
            return Ok(cluster.clone());
        }
        let target = Target::new(address.to_string(), KUBERNETES_PORT);
        let cluster = Cluster::connect(&self.env, &target, &self.trust(&self.kubernetes_identity), CONNECT)
            .map_err(|error| unusable("Kubernetes client certificate", error))?;
        clusters.insert(address, cluster.clone());
        Ok(cluster)
    }

    fn trust(&self, identity: &Identity) -> Trust {
        Trust::Ca {
            ca_pem: self.server_ca.to_string(),
            identity: Some(identity.clone()),
            server_name: None,
        }
    }
}

fn identity(minted: &ClientIdentity) -> Identity {
    Identity {
        cert_pem: minted.certificate.clone(),
        key_pem: Secret::new(minted.key.to_string()),
    }
}

impl std::fmt::Debug for RancherAccess {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RancherAccess")
            .field("distro", &self.distro)
            .finish_non_exhaustive()
    }
}
