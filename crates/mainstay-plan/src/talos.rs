//! Talos in the machines: configure, bootstrap once, join one by one, change one by one.

use std::collections::BTreeMap;

use mainstay_spec::Cni;
use talos_config::versions::Contract;

use crate::cluster::{Brought, ConfigChange, Course, Turn};
use crate::config;
use crate::desired::Wanted;
use crate::gate;
use crate::machine::is_control_plane;
use crate::observed::{EtcdState, Member, Running, Seen, Talos};
use crate::plan::Hold;
use crate::remove;
use crate::step::{Action, Apply, Impact, LeaveBy, NodeState, Peer, StepId, Subject, VmRef};
use crate::survey::{Machine, Owned};

/// What is known about etcd.
#[derive(Debug, Clone)]
pub(crate) enum Etcd {
    /// Every control plane that has a disk was read, and none has data.
    Blank,
    Exists,
    /// A control plane that could have data cannot be read.
    Unknown(String),
}

/// A machine's node.
enum Node<'a> {
    Configured(&'a Running),
    /// Waits for its config, or will answer soon, and why we think so. `joins`: it will be a new etcd member.
    Configure {
        why: String,
        joins: bool,
    },
    Held,
}

/// Steps that others need, by machine.
#[derive(Default)]
struct Done<'a> {
    configured: BTreeMap<&'a str, StepId>,
    /// The last steps that concern etcd: whatever concerns it next waits for them.
    etcd: Vec<StepId>,
    /// The members of etcd after these steps.
    members: Vec<Member>,
    bootstrap: Option<StepId>,
    /// Machines whose node is awaited already.
    awaited: BTreeMap<&'a str, StepId>,
}

impl<'a> Course<'_, 'a> {
    /// Plans everything inside the machines. Returns the last steps that concern etcd.
    pub fn talos(&mut self, brought: &BTreeMap<&str, Brought>) -> Vec<StepId> {
        let wish = self.wish;
        let nodes: Vec<(&'a Wanted, Node<'a>)> = wish
            .machines
            .iter()
            .map(|wanted| {
                let node = self.node(wanted, brought[wanted.name()]);
                (wanted, self.unless_alone(wanted, node, brought))
            })
            .collect();
        let etcd = self.etcd();
        let mut done = Done {
            members: self.survey.observed.etcd.yes().cloned().unwrap_or_default(),
            ..Done::default()
        };
        for (wanted, node) in &nodes {
            match node {
                Node::Configured(running) => {
                    self.compare_config(wanted, running);
                    if has_left(running) {
                        self.turn(wanted, |turn| turn.left = true);
                    }
                }
                Node::Configure { why, joins } => self.configure(wanted, why, *joins, brought[wanted.name()], &etcd, &mut done),
                Node::Held => {}
            }
        }
        match &etcd {
            Etcd::Blank => {
                self.take_turns(&etcd, &mut done);
                self.bootstrap(&nodes, brought, &mut done);
                self.join(&nodes, &mut done);
            }
            Etcd::Exists => {
                self.join(&nodes, &mut done);
                self.take_turns(&etcd, &mut done);
            }
            Etcd::Unknown(_) => self.take_turns(&etcd, &mut done),
        }
        self.await_nodes(&nodes, &etcd, &mut done);
        done.etcd
    }

    /// What is known about a machine's node.
    fn node(&mut self, wanted: &'a Wanted, brought: Brought) -> Node<'a> {
        let (after, fresh) = match brought {
            Brought::Held => return Node::Held,
            Brought::Runs { after, fresh } => (after, fresh),
        };
        if after.is_some() {
            return Node::Configure {
                why: if fresh { "it is new" } else { "it was stopped" }.to_owned(),
                joins: fresh,
            };
        }
        let ours = self.survey.desired.uuid(wanted.name());
        let held = match self.survey.talos(wanted.name()) {
            Some(Talos::Running(node)) if node.uuid == ours && self.was_removed(wanted) => {
                let vmid = self.where_is(wanted).vmid;
                let reason = format!(
                    "its member was taken out of etcd, and its data can never join again; to have it made anew: qm stop {vmid} && qm destroy {vmid} --purge"
                );
                self.hold(wanted, "join", Hold::for_now(reason));
                return Node::Held;
            }
            Some(Talos::Running(node)) if node.uuid == ours => return Node::Configured(node),
            Some(Talos::Maintenance {
                uuid: Seen::Yes(uuid), ..
            }) if *uuid == ours => {
                return Node::Configure {
                    why: "it waits for its config".to_owned(),
                    joins: true,
                };
            }
            Some(Talos::Silent(why)) if !self.is_ready(wanted) => {
                return Node::Configure {
                    why: format!("its Talos API does not answer: {why}"),
                    joins: false,
                };
            }
            None if !self.is_ready(wanted) => {
                return Node::Configure {
                    why: "its Talos API was not asked".to_owned(),
                    joins: false,
                };
            }
            Some(Talos::Silent(why)) => {
                let reason = format!("its node is well but its Talos API does not answer: {why}");
                self.hold(wanted, "configure", Hold::for_now(reason));
                return Node::Held;
            }
            None => "its Talos API was not asked".to_owned(),
            Some(Talos::Running(_)) => format!("another machine of this cluster answers on {}", wanted.address()),
            Some(Talos::Maintenance { .. }) => format!("who waits for a config on {} could not be proved", wanted.address()),
            Some(Talos::Foreign(why)) => format!("who answers on {} does not believe our secrets: {why}", wanted.address()),
        };
        self.hold(wanted, "configure", held);
        Node::Held
    }

    /// A worker speaks with a certificate that a control plane gives it. Where none is, nobody waits for it.
    fn unless_alone(&mut self, wanted: &'a Wanted, node: Node<'a>, brought: &BTreeMap<&str, Brought>) -> Node<'a> {
        let is_brought = |wanted: &Wanted| matches!(brought[wanted.name()], Brought::Runs { .. });
        let waits = matches!(node, Node::Configure { .. }) && !wanted.is_control_plane();
        if !waits || self.wish.control_planes().any(is_brought) {
            return node;
        }
        let reason = "no control plane is there yet that could give it a certificate".to_owned();
        self.hold(wanted, "configure", Hold::for_now(reason));
        Node::Held
    }

    fn node_state(&self) -> NodeState {
        match self.wish.cni {
            Cni::None => NodeState::Registered,
            Cni::Flannel | Cni::Canal | Cni::Cilium => NodeState::Ready,
        }
    }

    /// The kubelet reports that all is well, so the machine lives, whoever else cannot reach it.
    pub fn is_ready(&self, wanted: &Wanted) -> bool {
        let kubernetes = self.survey.observed.kubernetes.yes();
        kubernetes
            .and_then(|kubernetes| kubernetes.nodes.get(wanted.name()))
            .is_some_and(|node| node.ready)
    }

    /// The Kubernetes Node is as it should be.
    fn is_node_well(&self, wanted: &Wanted) -> bool {
        let kubernetes = self.survey.observed.kubernetes.yes();
        let node = kubernetes.and_then(|kubernetes| kubernetes.nodes.get(wanted.name()));
        node.is_some_and(|node| node.ready || (self.node_state() == NodeState::Registered && !node.stale))
    }

    /// Whether there is an etcd cluster. On a doubt there may be one.
    pub fn etcd(&self) -> Etcd {
        let observed = self.survey.observed;
        let has_data = |talos: &Talos| matches!(talos, Talos::Running(node) if node.has_etcd_data());
        let members = observed.etcd.yes().is_some_and(|members| !members.is_empty());
        if members || observed.kubernetes.yes().is_some() || observed.talos.values().any(has_data) {
            return Etcd::Exists;
        }
        let wanted =
            self.wish
                .control_planes()
                .find_map(|wanted| match self.survey.machine(wanted.name(), wanted.machine.vmid) {
                    Machine::Unknown(why) => Some(format!("{}: {why}", wanted.name())),
                    Machine::Absent | Machine::There(_) => None,
                });
        let ours = self
            .survey
            .ours
            .iter()
            .filter(|(name, owned)| is_control_plane(owned, self.survey.wanted.get(name.as_str()).copied()));
        let unread = || {
            ours.filter(|(_, owned)| owned.may_hold_data(observed))
                .find_map(|(name, owned)| self.unread(name, owned))
        };
        wanted.or_else(unread).map_or(Etcd::Blank, Etcd::Unknown)
    }

    /// Why it cannot be told whether a control plane has etcd data.
    pub fn unread(&self, name: &str, owned: &Owned<'_>) -> Option<String> {
        if !owned.runs() {
            return Some(format!("{name} does not run"));
        }
        let ours = self.survey.desired.uuid(name);
        match self.survey.talos(name) {
            // A machine that waits for its config has no state partition, so it never was a member.
            Some(Talos::Maintenance {
                uuid: Seen::Yes(uuid), ..
            }) if *uuid == ours => None,
            Some(Talos::Running(node)) if node.uuid == ours => node.etcd.unknown().map(|why| format!("{name}: {why}")),
            Some(Talos::Silent(why) | Talos::Foreign(why)) => Some(format!("{name}: {why}")),
            _ => Some(format!("{name} was not read")),
        }
    }

    fn configure(&mut self, wanted: &'a Wanted, why: &str, joins: bool, brought: Brought, etcd: &Etcd, done: &mut Done<'a>) {
        let Brought::Runs { after, .. } = brought else { return };
        let uuid = self.survey.desired.uuid(wanted.name());
        let action = Action::TalosConfigure {
            address: wanted.address(),
            uuid,
            config: wanted.config.clone(),
        };
        // A cluster that runs takes new members one by one; one that is about to begin takes them as they come.
        let chained = wanted.is_control_plane() && joins && !matches!(etcd, Etcd::Blank);
        let mut before = if chained { done.etcd.clone() } else { Vec::new() };
        if chained {
            before.extend(self.forget_learner(wanted, &before, done));
        }
        // One whose disk is not grown yet was never configured, and the plan relies on that.
        let touched = self.touched.get(wanted.name()).copied();
        let adding = self.step(wanted, action).because(why).needs(after).needs(touched);
        let configured = adding.needs(before).add();
        done.configured.insert(wanted.name(), configured);
        if chained && matches!(etcd, Etcd::Exists) {
            done.etcd = vec![self.etcd_join(wanted, "a new member", [configured], done)];
        }
    }

    /// A learner of a machine that has no data yet is its predecessor's: until it is gone etcd takes neither this machine nor any other.
    fn forget_learner(&mut self, wanted: &Wanted, after: &[StepId], done: &mut Done<'_>) -> Option<StepId> {
        let learner = done
            .members
            .iter()
            .find(|member| member.learner && member.name == wanted.name())?
            .clone();
        let by = remove::survivor(self, &done.members).ok()?;
        done.members.retain(|member| member.id != learner.id);
        Some(remove::leave(
            self,
            &learner,
            LeaveBy::Survivor(by),
            "it never started",
            after.to_vec(),
        ))
    }

    fn compare_config(&mut self, wanted: &'a Wanted, running: &Running) {
        if self.survey.desired.cluster_id.is_none() {
            return;
        }
        let current = match &running.config {
            Seen::Yes(config) => config,
            Seen::No => return,
            Seen::Unknown(why) => {
                self.hold(
                    wanted,
                    "configure",
                    Hold::for_now(format!("its config could not be read: {why}")),
                );
                return;
            }
        };
        let contract = Contract::of(&self.wish.versions.talos);
        let change = match config::compare(current, &wanted.config, contract) {
            Ok(Some(change)) => change,
            Ok(None) => return,
            Err(why) => {
                self.hold(wanted, "configure", format!("its config cannot be compared: {why}"));
                return;
            }
        };
        self.turn(wanted, |turn| turn.config = Some(change));
    }

    /// Gives a machine a turn, or adds to the one that it has.
    fn turn(&mut self, wanted: &'a Wanted, set: impl FnOnce(&mut Turn<'a>)) {
        if let Some(turn) = self.turns.iter_mut().find(|turn| turn.wanted.name() == wanted.name()) {
            return set(turn);
        }
        let Some(owned) = self.survey.ours.get(wanted.name()) else {
            return;
        };
        let mut turn = Turn {
            wanted,
            owned: owned.clone(),
            difference: None,
            config: None,
            left: false,
            after: self.touched.get(wanted.name()).copied(),
        };
        set(&mut turn);
        self.turns.push(turn);
    }

    /// Machines change one at a time, control planes first. What a worker takes live needs no turn.
    fn take_turns(&mut self, etcd: &Etcd, done: &mut Done<'a>) {
        let mut turns = std::mem::take(&mut self.turns);
        turns.sort_by_cached_key(|turn| {
            self.wish
                .machines
                .iter()
                .position(|wanted| wanted.name() == turn.wanted.name())
        });
        let mut last = done.etcd.clone();
        for turn in turns {
            if let Err(reason) = self.may_take(&turn, etcd, &done.members) {
                self.hold(turn.wanted, "change", reason);
                continue;
            }
            let alone = turn.restarts() || turn.wanted.is_control_plane();
            let before = if alone { last.as_slice() } else { &[] };
            // A machine that does not speak yet is heard first.
            let heard = done.configured.get(turn.wanted.name()).copied();
            let needs: Vec<StepId> = turn.after.into_iter().chain(heard).chain(before.iter().copied()).collect();
            let end = self.take_turn(&turn, needs, etcd, done);
            if alone {
                last = end.into_iter().collect();
            }
            if turn.wanted.is_control_plane() {
                done.etcd.clone_from(&last);
            }
        }
    }

    fn may_take(&self, turn: &Turn<'a>, etcd: &Etcd, members: &[Member]) -> Result<(), Hold> {
        if !turn.restarts() {
            return Ok(());
        }
        // A restart that Talos does by itself asks nothing of PVE.
        let by_pve = turn.is_restarted() || turn.is_staged();
        if let Some(blocked) = turn.owned.blocked(self.survey.observed).filter(|_| by_pve) {
            return Err(blocked);
        }
        self.may_restart(turn, etcd, members).map_err(Hold::for_now)
    }

    fn may_restart(&self, turn: &Turn<'a>, etcd: &Etcd, members: &[Member]) -> Result<(), String> {
        if self.was_removed(turn.wanted) {
            return Err("it could not join etcd again".to_owned());
        }
        match (etcd, &self.survey.observed.etcd) {
            (Etcd::Blank, _) => Ok(()),
            (Etcd::Unknown(why), _) => Err(format!("how the cluster is cannot be seen: {why}")),
            (Etcd::Exists, _) if !turn.wanted.is_control_plane() => Ok(()),
            (Etcd::Exists, Seen::Yes(_)) => gate::may_restart(members, turn.wanted.name()),
            (Etcd::Exists, Seen::No) => Err("whether etcd survives its restart is unknown".to_owned()),
            (Etcd::Exists, Seen::Unknown(why)) => Err(format!("whether etcd survives its restart is unknown: {why}")),
        }
    }

    fn take_turn(&mut self, turn: &Turn<'a>, needs: Vec<StepId>, etcd: &Etcd, done: &mut Done<'a>) -> Option<StepId> {
        let wanted = turn.wanted;
        let configured = turn.config.as_ref().map(|change| self.reconfigure(turn, change, &needs));
        let ended = if turn.is_restarted() || turn.is_staged() {
            Some(self.change_and_reboot(turn, configured, needs))
        } else {
            configured
        };
        match etcd {
            Etcd::Exists if turn.restarts() => Some(self.come_back(wanted, ended, done)),
            Etcd::Exists | Etcd::Unknown(_) => ended,
            Etcd::Blank => {
                done.configured.extend(ended.map(|step| (wanted.name(), step)));
                ended
            }
        }
    }

    /// Waits until a machine that restarted is what it was.
    fn come_back(&mut self, wanted: &'a Wanted, restarted: Option<StepId>, done: &mut Done<'a>) -> StepId {
        let joined = wanted
            .is_control_plane()
            .then(|| self.etcd_join(wanted, "it restarted", restarted, done));
        let action = Action::NodeAwait {
            until: self.node_state(),
        };
        let awaited = self
            .step(wanted, action)
            .because("it restarted")
            .needs(restarted)
            .needs(joined)
            .add();
        done.awaited.insert(wanted.name(), awaited);
        awaited
    }

    fn reconfigure(&mut self, turn: &Turn<'a>, change: &ConfigChange, needs: &[StepId]) -> StepId {
        let wanted = turn.wanted;
        let how = if turn.is_restarted() && change.how == Apply::Reboot {
            Apply::Staged
        } else {
            change.how
        };
        let impact = if how == Apply::Reboot { Impact::Reboot } else { Impact::Live };
        let uuid = self.survey.desired.uuid(wanted.name());
        let action = Action::TalosReconfigure {
            address: wanted.address(),
            uuid,
            config: wanted.config.clone(),
            how,
        };
        self.step(wanted, action)
            .because(&change.text)
            .impact(impact)
            .needs(needs.iter().copied())
            .add()
    }

    /// Begins etcd, on the machine that was meant to, else on the first.
    fn bootstrap(&mut self, nodes: &[(&'a Wanted, Node<'a>)], brought: &BTreeMap<&str, Brought>, done: &mut Done<'a>) {
        let meant = |wanted: &Wanted| {
            self.survey
                .ours
                .get(wanted.name())
                .and_then(|owned| owned.mark.as_ref())
                .is_some_and(|mark| mark.bootstrap)
        };
        let stray = self.survey.ours.iter().find(|(name, owned)| {
            !self.survey.wanted.contains_key(name.as_str()) && owned.mark.as_ref().is_some_and(|mark| mark.bootstrap)
        });
        if let Some((name, _)) = stray {
            let reason = format!("{name}, where etcd was to begin, is not in the file any more and goes first");
            return self.draft.hold(Subject::Cluster, "bootstrap", reason);
        }
        let control_planes = || nodes.iter().filter(|(wanted, _)| wanted.is_control_plane());
        let Some((wanted, node)) = control_planes()
            .find(|(wanted, _)| meant(wanted))
            .or_else(|| control_planes().next())
        else {
            return;
        };
        if let Node::Held = node {
            return self
                .draft
                .hold(Subject::Cluster, "bootstrap", format!("{} is held", wanted.name()));
        }
        let after = match brought[wanted.name()] {
            Brought::Runs { after, .. } => after,
            Brought::Held => None,
        };
        let intended = (!meant(wanted)).then(|| self.intend(wanted, self.where_is(wanted), after));
        let prove = self.could_have_data();
        let configured = done.configured.get(wanted.name()).copied();
        let action = Action::TalosBootstrap {
            address: wanted.address(),
            prove,
        };
        let adding = self.step(wanted, action).because("no control plane has etcd data");
        let step = adding.needs(configured).needs(intended).add();
        done.bootstrap = Some(step);
        done.etcd = vec![step];
    }

    fn where_is(&self, wanted: &Wanted) -> VmRef {
        let placed = || VmRef {
            host: self.places.hosts.get(wanted.name()).cloned().unwrap_or_default(),
            vmid: wanted.machine.vmid,
            uuid: self.survey.desired.uuid(wanted.name()),
        };
        self.survey.ours.get(wanted.name()).map_or_else(placed, Owned::at)
    }

    /// Control planes whose disk is older than this plan, wanted or not.
    fn could_have_data(&self) -> Vec<Peer> {
        let is_old = |(name, owned): &(&String, &Owned<'_>)| {
            owned.may_hold_data(self.survey.observed) && is_control_plane(owned, self.survey.wanted.get(name.as_str()).copied())
        };
        let peer = |(name, owned): (&String, &Owned<'_>)| {
            let address = owned.config.address.map(|address| address.addr());
            let address = self
                .survey
                .wanted
                .get(name.as_str())
                .map(|wanted| wanted.address())
                .or(address)?;
            Some(Peer {
                machine: name.clone(),
                address,
            })
        };
        self.survey.ours.iter().filter(is_old).filter_map(peer).collect()
    }

    /// Waits for control planes that are configured but not yet healthy voters.
    fn join(&mut self, nodes: &[(&'a Wanted, Node<'a>)], done: &mut Done<'a>) {
        let mut joins = Vec::new();
        for (wanted, node) in nodes.iter().filter(|(wanted, _)| wanted.is_control_plane()) {
            let configured = done.configured.get(wanted.name()).copied();
            let why = match node {
                Node::Configured(_) if self.is_voter(wanted) => continue,
                Node::Held => continue,
                // Its turn restarts it first.
                Node::Configured(running) if has_left(running) && done.bootstrap.is_none() => continue,
                Node::Configure { joins: true, .. } if done.bootstrap.is_none() => continue,
                Node::Configured(running) => not_voting(running),
                Node::Configure { joins: false, .. } => "it was away".to_owned(),
                Node::Configure { .. } => "a member of the new cluster".to_owned(),
            };
            let needs = configured.into_iter().chain(done.bootstrap).collect::<Vec<_>>();
            joins.push(self.etcd_join(wanted, &why, needs, done));
        }
        done.etcd.extend(joins);
    }

    fn etcd_join(&mut self, wanted: &Wanted, why: &str, needs: impl IntoIterator<Item = StepId>, done: &mut Done<'_>) -> StepId {
        gate::join(&mut done.members, wanted.name());
        let action = Action::EtcdJoin {
            address: wanted.address(),
        };
        self.step(wanted, action).because(why).needs(needs).add()
    }

    /// Somebody took its member out of etcd while it was away or alive. Etcd refuses such data for ever.
    fn was_removed(&self, wanted: &Wanted) -> bool {
        let unwell =
            matches!(self.survey.talos(wanted.name()), Some(Talos::Running(node)) if node.etcd == Seen::Yes(EtcdState::Unwell));
        // A member that never started has no name yet.
        let is = |member: &Member| member.name == wanted.name() || member.name.is_empty();
        let members = self.survey.observed.etcd.yes();
        unwell && members.is_some_and(|members| !members.iter().any(is))
    }

    fn is_voter(&self, wanted: &Wanted) -> bool {
        let is = |member: &Member| member.name == wanted.name() && member.votes() && member.healthy;
        self.survey.observed.etcd.yes().is_some_and(|members| members.iter().any(is))
    }

    /// Waits for the Kubernetes Nodes that are not yet as they should be.
    fn await_nodes(&mut self, nodes: &[(&'a Wanted, Node<'a>)], etcd: &Etcd, done: &mut Done<'a>) {
        if let Etcd::Unknown(why) = etcd {
            return self.draft.hold(
                Subject::Cluster,
                "bootstrap",
                Hold::for_now(format!("a control plane could have etcd data: {why}")),
            );
        }
        if matches!(etcd, Etcd::Blank) && done.bootstrap.is_none() {
            return;
        }
        for (wanted, node) in nodes {
            let configured = done.configured.get(wanted.name()).copied();
            let settled = configured.is_none() && done.bootstrap.is_none() && self.is_node_well(wanted);
            if matches!(node, Node::Held) || settled || done.awaited.contains_key(wanted.name()) {
                continue;
            }
            let action = Action::NodeAwait {
                until: self.node_state(),
            };
            let why = self.why_await(wanted);
            let step = self
                .step(wanted, action)
                .because(why)
                .needs(configured)
                .needs(done.bootstrap)
                .add();
            done.awaited.insert(wanted.name(), step);
        }
    }

    fn why_await(&self, wanted: &Wanted) -> String {
        match &self.survey.observed.kubernetes {
            Seen::Yes(kubernetes) => match kubernetes.nodes.get(wanted.name()) {
                Some(node) if node.ready => "it changes".to_owned(),
                Some(node) => format!("not ready: {}", node.why),
                None => "not a node yet".to_owned(),
            },
            Seen::No => "not a node yet".to_owned(),
            Seen::Unknown(why) => format!("Kubernetes does not answer: {why}"),
        }
    }
}

impl Turn<'_> {
    /// The machine goes down for a moment.
    fn restarts(&self) -> bool {
        self.is_restarted() || self.config.as_ref().is_some_and(|change| change.how != Apply::Live)
    }

    /// We restart it, whatever its config does.
    fn is_restarted(&self) -> bool {
        self.difference.is_some() || self.left
    }

    /// The config takes effect at a restart that the node does not do by itself.
    fn is_staged(&self) -> bool {
        self.config.as_ref().is_some_and(|change| change.how == Apply::Staged)
    }
}

fn has_left(running: &Running) -> bool {
    running.etcd == Seen::Yes(EtcdState::Left)
}

fn not_voting(running: &Running) -> String {
    match running.etcd {
        Seen::Yes(EtcdState::Healthy) => "not yet a voter".to_owned(),
        Seen::Yes(EtcdState::Unwell) => "its etcd is not healthy".to_owned(),
        Seen::Yes(EtcdState::Left) => "it left etcd".to_owned(),
        Seen::No => "not yet a member".to_owned(),
        Seen::Unknown(ref why) => format!("its etcd is unknown: {why}"),
    }
}
