//! A network in memory, on virtual time: the third [`Dialer`], and a [`Binder`] for the servers behind it.
//!
//! It knows addresses, not machines: a machine is the set of addresses it holds. Everything random is drawn from one
//! [`Entropy`], per connection and by label, so that one more dial somewhere changes no other connection's fate.

mod fault;
mod stream;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};

use self::fault::{Fate, Walls};
pub use self::fault::{Group, NetFaults};
use self::stream::{Link, SimStream};
use crate::dial::{BoxIo, Dial, Dialer};
use crate::env::Entropy;
use crate::error::{DialError, DialFault, Operation};
use crate::listen::{Binder, Listener};
use crate::target::Target;

/// How long the neighbours of an absent machine look for it before they say "no route to host" (Linux: three ARP probes).
const ABSENT_AFTER: Duration = Duration::from_secs(3);

/// From where a dial comes unless [`SimNet::from`] says otherwise.
const OUTSIDE: IpAddr = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));

/// The network. Clones are handles to the same one.
#[derive(Clone)]
pub struct SimNet {
    state: Arc<Mutex<NetState>>,
    /// Wakes dials that wait for a wall to fall.
    changed: Arc<Notify>,
}

struct NetState {
    entropy: Entropy,
    faults: NetFaults,
    faults_towards: BTreeMap<IpAddr, NetFaults>,
    names: BTreeMap<String, Vec<IpAddr>>,
    /// Machines that answer "refused" on closed ports; an address with an open port is there too.
    present: BTreeSet<IpAddr>,
    listeners: BTreeMap<SocketAddr, Listening>,
    refusing: BTreeSet<SocketAddr>,
    silent: BTreeSet<IpAddr>,
    walls: Walls,
    links: Vec<Weak<Link>>,
    /// Length of `links` at which the dead ones are swept out.
    sweep_at: usize,
    dials: BTreeMap<(IpAddr, SocketAddr), u64>,
    next_listener: u64,
    next_port: u16,
}

struct Listening {
    id: u64,
    arrivals: mpsc::UnboundedSender<(SimStream, SocketAddr)>,
}

impl SimNet {
    /// A calm network: no latency, no faults.
    pub fn new(entropy: Entropy) -> Self {
        let state = NetState {
            entropy,
            faults: NetFaults::NONE,
            faults_towards: BTreeMap::new(),
            names: BTreeMap::new(),
            present: BTreeSet::new(),
            listeners: BTreeMap::new(),
            refusing: BTreeSet::new(),
            silent: BTreeSet::new(),
            walls: Walls::default(),
            links: Vec::new(),
            sweep_at: 64,
            dials: BTreeMap::new(),
            next_listener: 0,
            next_port: 32768,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: Arc::new(Notify::new()),
        }
    }

    /// A dialer whose connections come from `source`, so that walls can tell it from others.
    pub fn from(&self, source: IpAddr) -> SimDialer {
        SimDialer {
            net: self.clone(),
            source,
        }
    }

    /// Lets `name` resolve to `addresses`. Without addresses the name is forgotten.
    pub fn name(&self, name: &str, addresses: impl IntoIterator<Item = IpAddr>) {
        let addresses: Vec<_> = addresses.into_iter().collect();
        let names = &mut self.lock().names;
        if addresses.is_empty() {
            names.remove(name)
        } else {
            names.insert(name.to_owned(), addresses)
        };
    }

    /// A machine is there even while nothing listens: closed ports refuse instead of staying silent.
    pub fn attach(&self, address: IpAddr) {
        self.lock().present.insert(address);
    }

    pub fn detach(&self, address: IpAddr) {
        self.lock().present.remove(&address);
    }

    /// What befalls every connection from now on.
    pub fn set_faults(&self, faults: NetFaults) {
        self.lock().faults = faults;
    }

    /// What befalls connections to `whom`, instead of the general rule. `None` brings the general rule back.
    pub fn set_faults_towards(&self, whom: impl Into<Group>, faults: Option<NetFaults>) {
        let mut state = self.lock();
        for address in state.members(&whom.into()) {
            match faults.clone() {
                Some(faults) => state.faults_towards.insert(address, faults),
                None => state.faults_towards.remove(&address),
            };
        }
    }

    /// New connections to this port are refused although a listener is bound to it.
    pub fn refuse(&self, at: SocketAddr) {
        self.lock().refusing.insert(at);
    }

    pub fn stop_refusing(&self, at: SocketAddr) {
        self.lock().refusing.remove(&at);
    }

    /// Packets to `whom` vanish: new connections hang, old ones fall silent.
    pub fn black_hole(&self, whom: impl Into<Group>) {
        let mut state = self.lock();
        let members = state.members(&whom.into());
        state.silent.extend(members);
        state.review_links();
    }

    pub fn end_black_hole(&self, whom: impl Into<Group>) {
        let mut state = self.lock();
        for member in state.members(&whom.into()) {
            state.silent.remove(&member);
        }
        state.review_links();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Nothing passes between the two groups, in either direction.
    pub fn partition(&self, one: impl Into<Group>, other: impl Into<Group>) {
        let (one, other) = (one.into(), other.into());
        self.block(&one, &other);
        self.block(&other, &one);
    }

    /// Nothing passes from the first group to the second; the way back stays open. (A connection needs both ways to come about.)
    pub fn partition_one_way(&self, from: impl Into<Group>, to: impl Into<Group>) {
        self.block(&from.into(), &to.into());
    }

    fn block(&self, from: &Group, to: &Group) {
        let mut state = self.lock();
        let (from, to) = (state.members(from), state.members(to));
        state.walls.raise(from, to);
        state.review_links();
    }

    /// All partitions are over; what was on its way arrives.
    pub fn repair(&self) {
        let mut state = self.lock();
        state.walls = Walls::default();
        state.review_links();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Partitions between these two groups are over, those with others stay.
    pub fn repair_between(&self, one: impl Into<Group>, other: impl Into<Group>) {
        let mut state = self.lock();
        let (one, other) = (state.members(&one.into()), state.members(&other.into()));
        state.walls.lower(&one, &other);
        state.review_links();
        drop(state);
        self.changed.notify_waiters();
    }

    /// Resets every connection from or to `whom`, now.
    pub fn reset(&self, whom: impl Into<Group>) {
        let state = self.lock();
        let members = state.members(&whom.into());
        let links = state.live_links();
        drop(state);
        for link in links.iter().filter(|link| link.touches(&members)) {
            link.reset();
        }
    }

    /// Resets every connection from or to `whom` at an instant. Needs a running tokio runtime.
    pub fn reset_at(&self, when: Instant, whom: impl Into<Group>) {
        let (net, whom) = (self.clone(), whom.into());
        tokio::spawn(async move {
            tokio::time::sleep_until(when).await;
            net.reset(whom);
        });
    }

    /// The machine is gone: its listeners fail, its connections are reset, its addresses are absent until something is bound or
    /// attached there.
    pub fn crash(&self, whom: impl Into<Group>) {
        let whom = whom.into();
        let mut state = self.lock();
        let members = state.members(&whom);
        state.listeners.retain(|at, _| !members.contains(&at.ip()));
        state.present.retain(|address| !members.contains(address));
        drop(state);
        self.reset(whom);
    }

    /// Whether what is sent from one address to another arrives: no wall and no black hole is between them.
    pub fn is_open(&self, from: IpAddr, to: IpAddr) -> bool {
        !self.lock().is_blocked(from, to)
    }

    /// Connections that are open at this moment, from and to anywhere.
    pub fn open_connections(&self) -> usize {
        self.lock().live_links().iter().filter(|link| link.is_open()).count()
    }

    async fn dial_from(&self, source: IpAddr, to: &Target) -> Result<BoxIo, DialError> {
        let address = self.resolve(to)?;
        let failed = |fault| DialError::new(to.clone(), Operation::Connect, fault);
        let fate = self.lock().draw_fate(source, address);
        pause(fate.latency).await;
        if fate.black_hole {
            std::future::pending::<()>().await;
        }
        self.passage(source, address.ip()).await;
        if !self.lock().is_present(address.ip()) {
            sleep(ABSENT_AFTER).await;
            // It may have come up while its neighbours were looking for it.
            if !self.lock().is_present(address.ip()) {
                return Err(failed(DialFault::Unreachable));
            }
        }
        let stream = if fate.refuse {
            None
        } else {
            self.lock().connect(source, address, &fate)
        };
        // The answer travels back, be it yes or no.
        pause(fate.latency).await;
        stream
            .map(|stream| Box::new(stream) as BoxIo)
            .ok_or_else(|| failed(DialFault::Refused))
    }

    fn resolve(&self, to: &Target) -> Result<SocketAddr, DialError> {
        let known = || self.lock().names.get(&to.host).and_then(|found| found.first().copied());
        let unknown = || {
            let cause = io::Error::new(io::ErrorKind::NotFound, "no such name in the simulated network");
            DialError::new(to.clone(), Operation::Resolve, DialFault::UnknownName(Arc::new(cause)))
        };
        Ok(SocketAddr::new(to.ip().or_else(known).ok_or_else(unknown)?, to.port))
    }

    /// Waits while a wall stands in either direction, as repeated connection attempts would.
    async fn passage(&self, source: IpAddr, to: IpAddr) {
        loop {
            let fallen = self.changed.notified();
            if !self.lock().is_blocked(source, to) && !self.lock().is_blocked(to, source) {
                return;
            }
            fallen.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, NetState> {
        // A panic elsewhere cannot leave the tables half changed: every change is one statement.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn pause(length: Duration) {
    if !length.is_zero() {
        sleep(length).await;
    }
}

impl NetState {
    fn members(&self, group: &Group) -> BTreeSet<IpAddr> {
        match group {
            Group::Addresses(addresses) => addresses.clone(),
            Group::Name(name) => self.names.get(name).into_iter().flatten().copied().collect(),
        }
    }

    fn is_present(&self, address: IpAddr) -> bool {
        let ports = SocketAddr::new(address, 0)..=SocketAddr::new(address, u16::MAX);
        self.present.contains(&address) || self.listeners.range(ports).next().is_some()
    }

    fn is_blocked(&self, from: IpAddr, to: IpAddr) -> bool {
        self.silent.contains(&from) || self.silent.contains(&to) || self.walls.stand(from, to)
    }

    fn draw_fate(&mut self, source: IpAddr, to: SocketAddr) -> Fate {
        let faults = self.faults_towards.get(&to.ip()).unwrap_or(&self.faults);
        if faults.is_none() {
            return Fate::CALM;
        }
        let count = self.dials.entry((source, to)).or_default();
        *count += 1;
        faults.draw(&mut self.entropy.fork(&format!("dial {source} {to} {count}")).rng())
    }

    fn connect(&mut self, source: IpAddr, to: SocketAddr, fate: &Fate) -> Option<SimStream> {
        if self.refusing.contains(&to) {
            return None;
        }
        let peer = SocketAddr::new(source, self.next_port());
        let arrivals = self.listeners.get(&to)?.arrivals.clone();
        let link = Arc::new(Link::new(source, to.ip(), fate.latency));
        link.block(self.is_blocked(source, to.ip()), self.is_blocked(to.ip(), source));
        let reset_at = fate.reset_after.map(|after| Instant::now() + after);
        let (near, far) = SimStream::pair(&link, reset_at);
        arrivals.send((far, peer)).ok()?;
        self.remember(&link);
        Some(near)
    }

    fn remember(&mut self, link: &Arc<Link>) {
        if self.links.len() >= self.sweep_at {
            self.links.retain(|link| link.strong_count() > 0);
            self.sweep_at = (self.links.len() * 2).max(64);
        }
        self.links.push(Arc::downgrade(link));
    }

    fn live_links(&self) -> Vec<Arc<Link>> {
        self.links.iter().filter_map(Weak::upgrade).collect()
    }

    fn review_links(&self) {
        for link in self.live_links() {
            let (a, b) = link.ends();
            link.block(self.is_blocked(a, b), self.is_blocked(b, a));
        }
    }

    fn next_port(&mut self) -> u16 {
        self.next_port = if self.next_port == u16::MAX {
            32768
        } else {
            self.next_port + 1
        };
        self.next_port
    }

    fn bind(
        &mut self,
        mut at: SocketAddr,
        arrivals: mpsc::UnboundedSender<(SimStream, SocketAddr)>,
    ) -> io::Result<(SocketAddr, u64)> {
        while at.port() == 0 {
            let port = self.next_port();
            let free = !self.listeners.contains_key(&SocketAddr::new(at.ip(), port));
            at.set_port(if free { port } else { 0 });
        }
        if self.listeners.contains_key(&at) {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, format!("{at} is taken")));
        }
        self.next_listener += 1;
        let id = self.next_listener;
        self.listeners.insert(at, Listening { id, arrivals });
        Ok((at, id))
    }
}

impl Dialer for SimNet {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        Box::pin(self.dial_from(OUTSIDE, to))
    }
}

/// The network as one machine sees it.
#[derive(Clone)]
pub struct SimDialer {
    net: SimNet,
    source: IpAddr,
}

impl Dialer for SimDialer {
    fn dial<'a>(&'a self, to: &'a Target) -> Dial<'a> {
        Box::pin(self.net.dial_from(self.source, to))
    }
}

impl Binder for SimNet {
    fn bind(&self, at: SocketAddr) -> BoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let (arrivals, arriving) = mpsc::unbounded_channel();
            let (address, id) = self.lock().bind(at, arrivals)?;
            Ok(Box::new(SimListener {
                net: self.clone(),
                address,
                id,
                arriving,
            }) as Box<dyn Listener>)
        })
    }
}

struct SimListener {
    net: SimNet,
    address: SocketAddr,
    id: u64,
    arriving: mpsc::UnboundedReceiver<(SimStream, SocketAddr)>,
}

impl Listener for SimListener {
    fn accept(&mut self) -> BoxFuture<'_, io::Result<(BoxIo, SocketAddr)>> {
        Box::pin(async move {
            let gone = || io::Error::new(io::ErrorKind::NotConnected, "the simulated machine crashed");
            let (stream, peer) = self.arriving.recv().await.ok_or_else(gone)?;
            Ok((Box::new(stream) as BoxIo, peer))
        })
    }

    fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for SimListener {
    fn drop(&mut self) {
        let mut state = self.net.lock();
        // After a crash the address may already belong to a new listener.
        if state
            .listeners
            .get(&self.address)
            .is_some_and(|listening| listening.id == self.id)
        {
            state.listeners.remove(&self.address);
        }
    }
}
