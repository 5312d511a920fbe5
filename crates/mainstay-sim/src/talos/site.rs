//! What all guests of a world share: network, clock, randomness, and who is there.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use mainstay_net::{Binder, Dial, Dialer, Entropy, SimDialer, SimNet, Target, Tcp, Wall};
use pve_sim::guest::Pace;
use serde::Deserialize;
use tokio::sync::watch;

use super::etcd::Member;
use super::node::Node;
use crate::charts::ChartWorld;
use crate::cloud::Town;
use crate::timing::Timing;
use crate::witness::{Deed, Standing, Struck, Witness};

pub(crate) struct Site {
    pub network: Arc<dyn Binder>,
    /// The network in memory. On loopback it still says who reaches whom.
    pub sim: SimNet,
    pub wall: Wall,
    pub entropy: Entropy,
    pub pace: Pace,
    pub timing: Timing,
    rooms: Mutex<BTreeMap<String, Arc<Room>>>,
    nodes: Mutex<BTreeMap<IpAddr, Weak<Node>>>,
    /// When an address was answered for the last time.
    departed: Mutex<BTreeMap<IpAddr, tokio::time::Instant>>,
    faults: Mutex<BTreeMap<String, NodeFaults>>,
    serial: AtomicU64,
    founded: AtomicU64,
    witness: Mutex<Option<Arc<dyn Witness>>>,
    /// Guests that boot from cloud images.
    pub cloud: Town,
    /// Chart servers and container registries.
    pub charts: Arc<ChartWorld>,
    loopback: bool,
}

/// In a world on loopback TCP, what has a loopback address is reached there.
struct LoopbackFirst(SimDialer);

impl Dialer for LoopbackFirst {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        if to.ip().is_some_and(|ip| ip.is_loopback()) {
            Tcp.dial(to)
        } else {
            self.0.dial(to)
        }
    }
}

const REMEMBERED: Duration = Duration::from_secs(60);

/// Bad days of one machine, by VM name; changed while it runs.
#[derive(Clone, Debug, Default, Deserialize, PartialEq)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct NodeFaults {
    /// NTP never answers.
    pub no_time_sync: bool,
    /// Workers cannot reach port 50001 of this control plane.
    pub trustd_blocked: bool,
    /// The learner that runs here is never promoted.
    pub no_promotion: bool,
    /// The next so many answers to ApplyConfiguration are lost: the config is taken, the connection breaks.
    pub lose_apply_answers: u32,
    pub lose_bootstrap_answers: u32,
    /// The same for any other call of the machine API, by the name of its method.
    pub lose_answers: BTreeMap<String, u32>,
    /// An extension service that never starts.
    pub broken_extension: bool,
    /// Reboots by kexec never come back; only a power cycle helps.
    pub kexec_hangs: bool,
    /// The system clock is off by so many seconds until time is synced.
    pub clock_skew: i64,
    /// Image pulls fail with "not found".
    pub image_not_found: bool,
    /// Only these references are not found.
    pub missing_images: BTreeSet<String>,
    /// Image pulls take so many times as long.
    pub slow_images: Option<u32>,
    /// Versions of Talos whose boot fails on this machine: it boots what was installed before.
    pub unbootable: BTreeSet<String>,
    /// Installers end with exit code 1 and change nothing.
    pub installer_fails: bool,
}

/// Nodes that share an OS certificate authority find each other here.
#[derive(Default)]
pub(crate) struct Room {
    nodes: Mutex<BTreeMap<IpAddr, Weak<Node>>>,
    control_planes: Mutex<BTreeMap<IpAddr, Weak<Node>>>,
    pulse: watch::Sender<u64>,
}

/// How often a node asks again what it could not reach.
const ASKED_AGAIN: Duration = Duration::from_secs(10);

impl Room {
    /// Wakes when a node of this cluster has changed in a way that others wait for.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }

    /// Waits for a change, or for the time to ask again: a repaired network or a newly opened port sends no notification.
    pub async fn stirs(changed: &mut watch::Receiver<u64>, pace: Pace) {
        let _ = tokio::time::timeout(pace.scale(ASKED_AGAIN), changed.changed()).await;
    }

    pub fn beat(&self) {
        self.pulse.send_modify(|count| *count += 1);
    }

    pub fn nodes(&self) -> Vec<Arc<Node>> {
        self.nodes
            .lock()
            .expect("plain data")
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    pub fn control_planes(&self) -> Vec<Arc<Node>> {
        self.control_planes
            .lock()
            .expect("plain data")
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }

    /// Wakes no task: tasks wait for what a new node will offer, not for the node itself.
    pub fn enter(&self, node: &Arc<Node>, address: IpAddr, control_plane: bool) {
        self.nodes.lock().expect("plain data").insert(address, Arc::downgrade(node));
        let mut control_planes = self.control_planes.lock().expect("plain data");
        if control_plane {
            control_planes.insert(address, Arc::downgrade(node));
        } else {
            control_planes.remove(&address);
        }
    }

    pub fn leave(&self, node: &Node) {
        let other =
            |_: &IpAddr, other: &mut Weak<Node>| other.upgrade().is_some_and(|other| !std::ptr::eq(&raw const *other, node));
        self.nodes.lock().expect("plain data").retain(other);
        self.control_planes.lock().expect("plain data").retain(other);
    }
}

impl Site {
    pub fn new(
        network: Arc<dyn Binder>,
        sim: SimNet,
        wall: Wall,
        entropy: Entropy,
        pace: Pace,
        timing: Timing,
        loopback: bool,
    ) -> Arc<Self> {
        let charts = ChartWorld::new(timing.image_pull);
        Arc::new(Self {
            network,
            sim,
            wall,
            entropy,
            pace,
            timing,
            rooms: Mutex::default(),
            nodes: Mutex::default(),
            departed: Mutex::default(),
            faults: Mutex::default(),
            serial: AtomicU64::new(0),
            founded: AtomicU64::new(0),
            witness: Mutex::default(),
            cloud: Town::default(),
            charts,
            loopback,
        })
    }

    /// How a guest at `source` reaches others.
    pub fn dialer(&self, source: IpAddr) -> Arc<dyn Dialer> {
        let inside = self.sim.from(source);
        if self.loopback {
            Arc::new(LoopbackFirst(inside))
        } else {
            Arc::new(inside)
        }
    }

    pub fn next_serial(&self) -> u64 {
        self.serial.fetch_add(1, Ordering::Relaxed)
    }

    /// An etcd cluster came into being.
    pub fn count_founding(&self) {
        self.founded.fetch_add(1, Ordering::Relaxed);
    }

    pub fn foundings(&self) -> u64 {
        self.founded.load(Ordering::Relaxed)
    }

    pub fn set_witness(&self, witness: Arc<dyn Witness>) {
        *self.witness.lock().expect("plain data") = Some(witness);
    }

    /// A client of the node's API did something to it.
    pub fn tell(&self, node: &Node, deed: Deed) {
        let witness = self.witness.lock().expect("plain data").clone();
        if let Some(witness) = witness {
            let struck = Struck {
                vmid: node.hardware.vmid,
                uuid: node.hardware.uuid.clone(),
                etcd: node.etcd().map(|(cluster, own)| standing(&cluster.members(), own)),
            };
            witness.deed(&struck, deed);
        }
    }

    /// Every node that is on the network.
    pub fn all(&self) -> Vec<Arc<Node>> {
        self.directory().values().filter_map(Weak::upgrade).collect()
    }

    /// The room of a cluster, by its OS authority.
    pub fn room(&self, authority: &str) -> Arc<Room> {
        Arc::clone(
            self.rooms
                .lock()
                .expect("plain data")
                .entry(authority.to_owned())
                .or_default(),
        )
    }

    fn directory(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Weak<Node>>> {
        self.nodes.lock().expect("plain data")
    }

    pub fn node_at(&self, address: IpAddr) -> Option<Arc<Node>> {
        self.directory().get(&address).and_then(Weak::upgrade)
    }

    pub fn register(&self, node: &Arc<Node>, address: IpAddr) {
        self.directory().insert(address, Arc::downgrade(node));
        self.sim.attach(address);
    }

    /// The node is gone from the network: its addresses answer nothing at all.
    pub fn forget(&self, node: &Node) {
        let mut gone = BTreeSet::new();
        self.directory().retain(|address, other| {
            let own = other.upgrade().is_none_or(|other| std::ptr::eq(&raw const *other, node));
            if own {
                gone.insert(*address);
            }
            !own
        });
        gone.into_iter().for_each(|address| self.depart(address));
    }

    fn depart(&self, address: IpAddr) {
        self.sim.detach(address);
        let mut departed = self.departed.lock().expect("plain data");
        departed.insert(address, tokio::time::Instant::now());
    }

    /// Whether neighbours still believe an address to be there: for a minute they send into the void.
    pub fn is_remembered(&self, address: IpAddr) -> bool {
        let departed = self.departed.lock().expect("plain data");
        departed.get(&address).is_some_and(|at| at.elapsed() < REMEMBERED)
    }

    pub fn forget_address(&self, address: IpAddr) {
        self.directory().remove(&address);
        self.depart(address);
    }

    /// Whether packets pass between two addresses of this world.
    pub fn reaches(&self, from: IpAddr, to: IpAddr) -> bool {
        from == to || self.sim.is_open(from, to) && self.sim.is_open(to, from)
    }

    pub fn faults(&self, machine: &str) -> NodeFaults {
        self.faults
            .lock()
            .expect("plain data")
            .get(machine)
            .cloned()
            .unwrap_or_default()
    }

    pub fn set_faults(&self, machine: &str, faults: NodeFaults) {
        self.faults.lock().expect("plain data").insert(machine.to_owned(), faults);
    }

    /// Takes one of the answers to a method that are to be lost.
    pub fn loses_answer(&self, machine: &str, method: &str) -> bool {
        let mut faults = self.faults.lock().expect("plain data");
        let left = faults.get_mut(machine).and_then(|faults| faults.lose_answers.get_mut(method));
        left.filter(|left| **left > 0).is_some_and(|left| {
            *left -= 1;
            true
        })
    }

    /// Changes the faults of a machine in place; what it returns is handed through.
    pub fn change_faults<T>(&self, machine: &str, change: impl FnOnce(&mut NodeFaults) -> T) -> T {
        change(self.faults.lock().expect("plain data").entry(machine.to_owned()).or_default())
    }
}

pub(crate) fn standing(members: &[Member], own: u64) -> Standing {
    let mut voters = members.iter().filter(|member| !member.learner);
    Standing {
        voters: voters.clone().count(),
        others: voters.clone().filter(|member| member.running && member.id != own).count(),
        votes: voters.any(|member| member.id == own),
    }
}
