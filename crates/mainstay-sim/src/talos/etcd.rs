//! An etcd cluster: members, leader, quorum. Its objects are shared by all members; what a member may do with them depends on
//! whether it sees a leader, and that depends on who runs and who reaches whom.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use mainstay_net::Entropy;
use rand::Rng;
use tokio::sync::watch;
use tokio::time::Instant;

use super::heartbeat::Heartbeats;
use super::site::Site;
use crate::kube::store::Store;

/// How often members notice that a network has changed although no member started or stopped.
const HEARTBEAT: Duration = Duration::from_secs(5);

pub(crate) struct EtcdCluster {
    state: Mutex<State>,
    pub store: Arc<Store>,
    pub heartbeats: Heartbeats,
    pulse: watch::Sender<u64>,
    site: Weak<Site>,
    entropy: Entropy,
    /// How long an election takes, where it is not as on Talos.
    election: Mutex<Option<Duration>>,
}

struct State {
    members: BTreeMap<u64, Member>,
    leader: Option<u64>,
    term: u64,
    index: u64,
    serial: u64,
    /// An election is on its way.
    electing: bool,
    beating: bool,
    leases: BTreeMap<IpAddr, Lease>,
    alarms: Vec<Alarm>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Member {
    pub id: u64,
    /// Empty until it has started for the first time.
    pub name: String,
    pub address: IpAddr,
    pub learner: bool,
    pub running: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Alarm {
    pub member: u64,
    /// 1 NOSPACE, 2 CORRUPT
    pub kind: i32,
}

/// Who owns a shared address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Lease {
    member: u64,
    /// Set when the owner is gone without saying so.
    expires: Option<Instant>,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EtcdError {
    #[error("etcdserver: no leader")]
    NoLeader,
    #[error("etcdserver: member not found")]
    MemberNotFound,
    #[error("etcdserver: too many learner members in cluster")]
    TooManyLearners,
    #[error("etcdserver: Peer URLs already exists")]
    PeerUrlExists,
    #[error("etcdserver: re-configuration failed due to not enough started members")]
    NotEnoughStarted,
}

/// What EtcdStatus tells about a member.
#[derive(Clone, Debug)]
pub(crate) struct MemberStatus {
    pub member: Member,
    /// 0 without a leader.
    pub leader: u64,
    pub term: u64,
    pub index: u64,
}

impl EtcdCluster {
    /// A new cluster of one member, which is not running yet.
    pub fn found(site: &Arc<Site>, name: &str, address: IpAddr, store: Store) -> (Arc<Self>, u64) {
        site.count_founding();
        let entropy = site.entropy.fork(&format!("etcd {name} {address} {}", site.next_serial()));
        let state = State {
            members: BTreeMap::new(),
            leader: None,
            term: 1,
            index: 4,
            serial: 0,
            electing: false,
            beating: false,
            leases: BTreeMap::new(),
            alarms: Vec::new(),
        };
        let cluster = Arc::new(Self {
            state: Mutex::new(state),
            store: Arc::new(store),
            heartbeats: Heartbeats::default(),
            pulse: watch::Sender::new(0),
            site: Arc::downgrade(site),
            entropy,
            election: Mutex::default(),
        });
        let mut state = cluster.lock();
        let id = cluster.new_id(&mut state);
        state.members.insert(
            id,
            Member {
                id,
                name: name.to_owned(),
                address,
                learner: false,
                running: false,
            },
        );
        drop(state);
        (cluster, id)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no member panics while it holds the cluster")
    }

    fn new_id(&self, state: &mut State) -> u64 {
        state.serial += 1;
        self.entropy.fork(&format!("member {}", state.serial)).rng().next_u64()
    }

    /// Wakes on every change of membership, leadership or leases.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.pulse.subscribe()
    }

    fn beat(&self) {
        self.pulse.send_modify(|count| *count += 1);
    }

    /// Members by id.
    pub fn members(&self) -> Vec<Member> {
        self.lock().members.values().cloned().collect()
    }

    pub fn member(&self, id: u64) -> Option<Member> {
        self.lock().members.get(&id).cloned()
    }

    fn reaches(&self, from: IpAddr, to: IpAddr) -> bool {
        self.site.upgrade().is_some_and(|site| site.reaches(from, to))
    }

    /// Whether `candidate` runs and sees a majority of the voters.
    fn leads(&self, state: &State, candidate: u64) -> bool {
        let Some(own) = state
            .members
            .get(&candidate)
            .filter(|member| member.running && !member.learner)
        else {
            return false;
        };
        let voters: Vec<&Member> = state.members.values().filter(|member| !member.learner).collect();
        let seen = voters
            .iter()
            .filter(|voter| voter.running && (voter.id == candidate || self.reaches(own.address, voter.address)))
            .count();
        seen * 2 > voters.len()
    }

    /// The leader that this member follows right now.
    pub fn leader_of(self: &Arc<Self>, member: u64) -> Option<u64> {
        self.review();
        let state = self.lock();
        let own = state.members.get(&member).filter(|own| own.running)?;
        let leader = state.members.get(&state.leader?)?;
        (leader.id == member || self.reaches(own.address, leader.address)).then_some(leader.id)
    }

    pub fn status(self: &Arc<Self>, member: u64) -> Option<MemberStatus> {
        let leader = self.leader_of(member).unwrap_or(0);
        let state = self.lock();
        Some(MemberStatus {
            member: state.members.get(&member)?.clone(),
            leader,
            term: state.term,
            index: state.index + self.store.revision(),
        })
    }

    /// Deposes a leader that lost its majority and calls an election.
    pub fn review(self: &Arc<Self>) {
        let mut state = self.lock();
        let valid = state.leader.is_some_and(|leader| self.leads(&state, leader));
        if valid {
            return;
        }
        let deposed = state.leader.take().is_some();
        let possible = state.members.keys().any(|id| self.leads(&state, *id));
        if possible && !state.electing {
            state.electing = true;
            self.elect();
        }
        drop(state);
        if deposed {
            self.beat();
        }
    }

    fn elect(self: &Arc<Self>) {
        let Some(site) = self.site.upgrade() else { return };
        // The first election of a one-member cluster is over before a client can ask.
        let wait = if self.pulse_count() == 0 {
            Duration::ZERO
        } else {
            let own = *self.election.lock().expect("plain data");
            site.pace.scale(own.unwrap_or(site.timing.etcd_election))
        };
        let cluster = Arc::downgrade(self);
        spawn(async move {
            tokio::time::sleep(wait).await;
            if let Some(cluster) = cluster.upgrade() {
                cluster.finish_election();
            }
        });
    }

    fn pulse_count(&self) -> u64 {
        *self.pulse.borrow()
    }

    fn finish_election(&self) {
        let mut state = self.lock();
        state.electing = false;
        if state.leader.is_none() {
            let ids: Vec<u64> = state.members.keys().copied().collect();
            state.leader = ids.into_iter().find(|id| self.leads(&state, *id));
            state.term += u64::from(state.leader.is_some());
        }
        drop(state);
        self.beat();
    }

    /// The member's process runs. A cluster of several members then checks its network now and then, as long as one member runs.
    pub fn start(self: &Arc<Self>, id: u64, name: &str, address: IpAddr) {
        let mut state = self.lock();
        let Some(member) = state.members.get_mut(&id) else { return };
        member.running = true;
        member.name = name.to_owned();
        member.address = address;
        // A lone member is its own majority at once.
        if state.members.len() == 1 && state.leader.is_none() {
            state.leader = Some(id);
            state.term += 1;
        }
        let begin = state.members.len() > 1 && !std::mem::replace(&mut state.beating, true);
        drop(state);
        if begin {
            self.look_around();
        }
        self.review();
        self.beat();
    }

    fn look_around(self: &Arc<Self>) {
        let cluster = Arc::downgrade(self);
        spawn(async move {
            loop {
                tokio::time::sleep(HEARTBEAT).await;
                let Some(cluster) = cluster.upgrade() else { return };
                cluster.review();
                let mut state = cluster.lock();
                if state.members.len() < 2 || state.members.values().all(|member| !member.running) {
                    state.beating = false;
                    return;
                }
            }
        });
    }

    /// The member's process is gone. Its leases run out by themselves unless they were given back.
    pub fn stop(self: &Arc<Self>, id: u64) {
        let life = self
            .site
            .upgrade()
            .map_or(Duration::from_secs(60), |site| site.pace.scale(site.timing.vip_lease));
        let mut state = self.lock();
        if let Some(member) = state.members.get_mut(&id) {
            member.running = false;
        }
        for lease in state
            .leases
            .values_mut()
            .filter(|lease| lease.member == id && lease.expires.is_none())
        {
            lease.expires = Some(Instant::now() + life);
        }
        drop(state);
        self.review();
        self.beat();
    }

    /// Adds a member that has not started yet; `by` is the running member that was asked. A stale member of the same name goes first, and
    /// from Talos 1.14 on (`by_address`) one of the same address too, which has no name if it never started.
    pub fn add_learner(self: &Arc<Self>, by: u64, name: &str, address: IpAddr, by_address: bool) -> Result<u64, EtcdError> {
        self.leader_of(by).ok_or(EtcdError::NoLeader)?;
        let stale: Vec<u64> = self
            .members()
            .into_iter()
            .filter(|member| !member.running && (member.name == name || by_address && member.address == address))
            .map(|member| member.id)
            .collect();
        for id in stale {
            self.remove(by, id)?;
        }
        let mut state = self.lock();
        if state.members.values().any(|member| member.address == address) {
            return Err(EtcdError::PeerUrlExists);
        }
        if state.members.values().any(|member| member.learner) {
            return Err(EtcdError::TooManyLearners);
        }
        let id = self.new_id(&mut state);
        state.members.insert(
            id,
            Member {
                id,
                name: String::new(),
                address,
                learner: true,
                running: false,
            },
        );
        state.index += 1;
        drop(state);
        self.beat();
        Ok(id)
    }

    pub fn set_election(&self, takes: Duration) {
        *self.election.lock().expect("plain data") = Some(takes);
    }

    pub fn promote(self: &Arc<Self>, id: u64) -> Result<(), EtcdError> {
        self.promote_by(id, id)
    }

    /// Makes a voter of a learner; `by` is the running member that was asked. etcd does not look whether the learner runs.
    pub fn promote_by(self: &Arc<Self>, by: u64, id: u64) -> Result<(), EtcdError> {
        self.leader_of(by).ok_or(EtcdError::NoLeader)?;
        let mut state = self.lock();
        state.members.get_mut(&id).ok_or(EtcdError::MemberNotFound)?.learner = false;
        state.index += 1;
        let begin = !std::mem::replace(&mut state.beating, true);
        drop(state);
        if begin {
            self.look_around();
        }
        self.review();
        self.beat();
        Ok(())
    }

    /// Removes a member; `by` is the running member that was asked. etcd refuses what would leave it without a started majority.
    pub fn remove(self: &Arc<Self>, by: u64, id: u64) -> Result<(), EtcdError> {
        self.leader_of(by).ok_or(EtcdError::NoLeader)?;
        let mut state = self.lock();
        let victim = state.members.get(&id).ok_or(EtcdError::MemberNotFound)?.clone();
        let left: Vec<&Member> = state
            .members
            .values()
            .filter(|member| member.id != id && !member.learner)
            .collect();
        let started = left.iter().filter(|member| member.running).count();
        if !victim.learner && started * 2 <= left.len() {
            return Err(EtcdError::NotEnoughStarted);
        }
        state.members.remove(&id);
        state.index += 1;
        if state.leader == Some(id) {
            state.leader = None;
        }
        drop(state);
        self.review();
        self.beat();
        Ok(())
    }

    /// Hands leadership to the next voter; its name, or nothing if `by` was not the leader.
    pub fn forfeit(self: &Arc<Self>, by: u64) -> Result<Option<String>, EtcdError> {
        let leader = self.leader_of(by).ok_or(EtcdError::NoLeader)?;
        let mut state = self.lock();
        if leader != by {
            return Ok(None);
        }
        let heirs: Vec<u64> = state.members.keys().copied().filter(|id| *id != by).collect();
        let heir = heirs.into_iter().find(|id| self.leads(&state, *id));
        let Some(heir) = heir else { return Ok(None) };
        state.leader = Some(heir);
        state.term += 1;
        let name = state.members.get(&heir).map(|member| member.name.clone());
        drop(state);
        self.beat();
        Ok(name)
    }

    pub fn alarms(&self) -> Vec<Alarm> {
        self.lock().alarms.clone()
    }

    pub fn disarm(&self) -> Vec<Alarm> {
        std::mem::take(&mut self.lock().alarms)
    }

    pub fn raise_alarm(&self, alarm: Alarm) {
        self.lock().alarms.push(alarm);
    }

    /// Tries to own a shared address; `Err` says until when another member owns it, if that is known.
    pub fn acquire(self: &Arc<Self>, vip: IpAddr, member: u64) -> Result<(), Option<Instant>> {
        if self.leader_of(member).is_none() {
            return Err(None);
        }
        let mut state = self.lock();
        match state.leases.get(&vip) {
            Some(lease) if lease.member != member && lease.expires.is_none_or(|expires| expires > Instant::now()) => {
                Err(lease.expires)
            }
            _ => {
                state.leases.insert(vip, Lease { member, expires: None });
                Ok(())
            }
        }
    }

    /// Gives a shared address back, so that another member takes it at once.
    pub fn release(&self, vip: IpAddr, member: u64) {
        let mut state = self.lock();
        if state.leases.get(&vip).is_some_and(|lease| lease.member == member) {
            state.leases.remove(&vip);
        }
        drop(state);
        self.beat();
    }
}

/// A cluster outlives its nodes, so its own tasks belong to none of them. When the world itself ends there is no runtime to run on.
pub(crate) fn spawn(task: impl Future<Output = ()> + Send + 'static) {
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(task);
    }
}
