//! Everything the datacenter knows, behind one lock.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use rand::{Rng, RngExt};
use rand_chacha::ChaCha20Rng;
use serde_json::Value;
use tokio::time::Instant;

use crate::access::{Access, Entry, Group, Pool, Tfa, Token, User};
use crate::datacenter::SimEnv;
use crate::die::Die;
use crate::firewall::Firewall;
use crate::ha::Ha;
use crate::jobs::Jobs;
use crate::qemu::Vm;
use crate::sdn::Sdn;
use crate::storage::{Storage, Volumes};
use crate::tasks::Tasks;
use crate::world::{BridgeSpec, ClusterSpec, Resolv, World};

pub struct State {
    pub cluster: Option<ClusterSpec>,
    pub nodes: IndexMap<String, Node>,
    pub storages: IndexMap<String, Storage>,
    pub volumes: Volumes,
    pub access: Access,
    /// datacenter.cfg
    pub options: BTreeMap<String, String>,
    pub(crate) vms: BTreeMap<u32, Vm>,
    pub tasks: Tasks,
    pub ha: Ha,
    /// replication.cfg and jobs.cfg
    pub jobs: Jobs,
    pub sdn: Sdn,
    /// `/etc/pve/firewall/<vmid>.fw`
    pub firewalls: BTreeMap<u32, Firewall>,
    rng: ChaCha20Rng,
    pid: u32,
}

/// A PVE host.
#[derive(Clone, Debug)]
pub struct Node {
    pub id: u32,
    pub ip: String,
    pub maxcpu: u32,
    pub maxmem: u64,
    pub bridges: IndexMap<String, BridgeSpec>,
    pub resolv: Resolv,
    pub online: bool,
    /// pveproxy runs.
    pub proxy: bool,
    /// Its API accepts connections and never answers.
    pub frozen: bool,
    /// Hosts in different islands do not see each other.
    pub island: u32,
    pub gone_since: Option<Instant>,
    pub fingerprint: String,
}

impl State {
    pub fn new(world: &World, env: &SimEnv) -> Self {
        let mut state = Self {
            cluster: (world.nodes.len() > 1).then(|| world.cluster.clone().unwrap_or_default()),
            nodes: IndexMap::new(),
            storages: IndexMap::new(),
            volumes: Volumes::default(),
            access: read_access(world),
            options: world.datacenter.iter().map(|(k, v)| (k.clone(), plain(v))).collect(),
            vms: BTreeMap::new(),
            tasks: Tasks::default(),
            ha: Ha::default(),
            jobs: Jobs::default(),
            sdn: Sdn::new(&world.vnets),
            firewalls: BTreeMap::new(),
            rng: env.entropy.fork("pve-sim").rng(),
            pid: 1000,
        };
        for (name, spec) in &world.nodes {
            state.nodes.insert(
                name.clone(),
                Node {
                    id: spec.nodeid,
                    ip: spec.ip.clone(),
                    maxcpu: spec.maxcpu,
                    maxmem: spec.maxmem,
                    bridges: spec.bridges.clone(),
                    resolv: spec.resolv.clone(),
                    online: spec.online != 0,
                    proxy: true,
                    frozen: false,
                    island: 0,
                    gone_since: None,
                    fingerprint: String::new(),
                },
            );
        }
        for (name, spec) in &world.storages {
            state.storages.insert(name.clone(), Storage::from_spec(spec));
        }
        state.volumes.load(world, env.wall.now().as_second());
        for (vmid, spec) in &world.vms {
            let config = spec.config.iter().map(|(k, v)| (k.clone(), plain(v))).collect();
            state.vms.insert(*vmid, Vm::existing(*vmid, &spec.node, config));
        }
        state
    }

    pub fn next_pid(&mut self) -> u32 {
        self.pid += self.rng.random_range(1..20);
        self.pid
    }

    pub fn random_uuid(&mut self) -> String {
        let mut bytes = [0; 16];
        self.rng.fill_bytes(&mut bytes);
        uuid::Builder::from_random_bytes(bytes).into_uuid().to_string()
    }

    /// A random address below the datacenter's prefix.
    pub fn random_mac(&mut self) -> String {
        let prefix = self.options.get("mac_prefix").cloned().unwrap_or_else(|| "BC:24:11".into());
        let mut octets: Vec<String> = prefix.split(':').map(str::to_uppercase).collect();
        while octets.len() < 6 {
            octets.push(format!("{:02X}", self.rng.random_range(0..256_u32)));
        }
        octets.join(":")
    }

    pub fn random_hex(&mut self, length: usize) -> String {
        (0..length)
            .map(|_| char::from_digit(self.rng.random_range(0..16), 16).unwrap_or('0'))
            .collect()
    }

    /// A VM's config as the host sees it.
    pub fn vm(&self, host: &str, vmid: u32) -> Result<&Vm, Die> {
        self.vms
            .get(&vmid)
            .filter(|vm| vm.node == host)
            .ok_or_else(|| no_config(host, vmid))
    }

    /// To change a VM. What `pvestatd` broadcast before is kept for `/cluster/resources`.
    pub fn vm_mut(&mut self, vmid: u32, round: u64) -> Option<&mut Vm> {
        let vm = self.vms.get_mut(&vmid)?;
        vm.settle(round);
        Some(vm)
    }

    /// Whether one host reaches another.
    pub fn sees(&self, from: &str, to: &str) -> bool {
        match (self.nodes.get(from), self.nodes.get(to)) {
            (Some(a), Some(b)) => a.online && b.online && a.island == b.island,
            _ => false,
        }
    }

    /// Whether a host's side of the cluster has more than half of the votes.
    pub fn quorate(&self, host: &str) -> bool {
        let votes = self.nodes.keys().filter(|other| self.sees(host, other)).count();
        votes * 2 > self.nodes.len()
    }

    pub fn require_quorum(&self, host: &str) -> Result<(), Die> {
        if self.quorate(host) {
            Ok(())
        } else {
            Err(Die::new("cluster not ready - no quorum?"))
        }
    }

    pub fn require_node(&self, name: &str) -> Result<&Node, Die> {
        self.nodes
            .get(name)
            .ok_or_else(|| Die::new(format!("no such cluster node '{name}'")))
    }
}

pub fn no_config(host: &str, vmid: u32) -> Die {
    Die::new(format!(
        "Configuration file 'nodes/{host}/qemu-server/{vmid}.conf' does not exist"
    ))
}

/// A scalar of a world file as PVE would have written it.
fn plain(value: &Value) -> String {
    match value {
        Value::String(s) => s.clone(),
        Value::Bool(b) => u8::from(*b).to_string(),
        other => other.to_string(),
    }
}

fn read_access(world: &World) -> Access {
    let mut access = Access::new(world.pve.number().0);
    for (name, spec) in &world.users {
        access.users.insert(
            name.clone(),
            User {
                enable: spec.enable != 0,
                expire: spec.expire,
                comment: spec.comment.clone(),
                email: spec.email.clone(),
                password: world.passwords.get(name).cloned(),
                ..User::default()
            },
        );
    }
    for (name, keys) in &world.totp {
        access.tfa.insert(name.clone(), Tfa::new(keys));
    }
    for (id, spec) in &world.tokens {
        if let Some((user, token)) = id.split_once('!')
            && let Some(owner) = access.users.get_mut(user)
        {
            let info = Token {
                privsep: spec.privsep != 0,
                expire: spec.expire,
                comment: None,
                secret: spec.secret.clone(),
            };
            owner.tokens.insert(token.into(), info);
        }
    }
    for (name, privileges) in &world.roles {
        access.roles.insert(name.clone(), privileges.iter().cloned().collect());
    }
    for (name, spec) in &world.groups {
        let group = Group {
            comment: spec.comment.clone(),
            members: spec.users.iter().cloned().collect(),
        };
        access.groups.insert(name.clone(), group);
    }
    for spec in &world.acl {
        access.acl.entry(spec.path.clone()).or_default().push(Entry::new(
            &spec.kind,
            &spec.ugid,
            &spec.roleid,
            spec.propagate != 0,
        ));
    }
    for (name, spec) in &world.pools {
        access.pools.insert(
            name.clone(),
            Pool {
                comment: Some(spec.comment.clone()).filter(|c| !c.is_empty()),
                vms: spec.vms.iter().copied().collect(),
                storages: spec.storage.iter().cloned().collect(),
            },
        );
    }
    access
}
