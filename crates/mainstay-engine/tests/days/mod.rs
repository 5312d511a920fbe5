//! Bad days from a seed: faults and kills while `up` runs again and again, then calm, in which everything must come right.

pub mod admin;
pub mod disks;
pub mod once;
pub mod shape;
pub mod watch;
pub mod weather;

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::Entropy;
use mainstay_plan::NodeCordon;
use mainstay_spec::{Role, smbios_uuid};
use rand::{Rng, RngExt};
use sha2::{Digest, Sha256};

use self::shape::{Change, Shape};
use self::watch::Watch;
use self::weather::{Field, Guest, brew, calm, trouble};
use crate::stage::{Stage, on_stage};

/// Runs that calm may need: the first may still meet what a storm left behind (a task, a lock, a machine that restarts).
const CALM_RUNS: u32 = 3;
/// No run in calm weather takes longer than this.
const CALM_RUN: Duration = Duration::from_secs(3600);

/// A request is not under way for longer than this.
const UNDER_WAY: Duration = Duration::from_secs(60);

const TWO: &str = ", two at once";
/// After this the lease of a killed run is over.
const LEASE: Duration = Duration::from_secs(120);

/// How one seed went.
#[derive(Debug)]
pub struct Tale {
    pub wrong: Vec<String>,
    pub calm_runs: u32,
    /// What happened, for a reader.
    pub text: String,
    /// Of every event and of every request, texts for people apart: equal digests mean that the same was done at the same time.
    pub digest: String,
}

/// Handshakes cost more than all else, so that from a million on only each tenth seed has them with Proxmox VE.
fn is_plain(seed: u64) -> bool {
    seed >= 1_000_000 && !seed.is_multiple_of(10)
}

/// From here on every world is quick or slow in its own way. Those below stay as they were when they were bad.
const PACED: u64 = 2_000_000;

/// From here on people change their minds before all is done that they wanted, also about control planes.
const FICKLE: u64 = 3_000_000;

/// From here on people also upgrade, before or after all is done that they wanted. The gate draws smaller seeds, because some of these lives
/// do not settle yet: `--start 300000000` shows them.
const UPGRADES: u64 = 300_000_000;

/// From here on disks of other people turn up, on our machines and beside them.
const CROWDED: u64 = 5_000_000;

/// Lives through one seed.
pub fn live(seed: u64) -> Tale {
    let mut rng = Entropy::from_seed(seed).fork("hardship").rng();
    let mut shape = Shape::draw(&mut rng);
    shape.world.plain = is_plain(seed);
    if seed >= PACED {
        shape.draw_paces(&mut Entropy::from_seed(seed).fork("paces").rng());
    }
    shape.fickle = seed >= FICKLE;
    shape.upgrades = seed >= UPGRADES;
    if seed >= CROWDED {
        shape.hide_a_storage();
    }
    on_stage(seed, shape.world.clone(), async |stage| {
        let mut life = Life::new(stage, &shape);
        life.field.disks = seed >= CROWDED;
        life.live(shape.clone(), rng).await
    })
}

/// One stage, watched.
pub struct Life<'a> {
    stage: &'a Stage,
    pub file: String,
    field: Field,
    pub watch: Arc<Watch>,
    text: String,
}

impl<'a> Life<'a> {
    pub fn new(stage: &'a Stage, shape: &Shape) -> Self {
        // Its machines, and those that it may get one day.
        let machines = stage.spec(&shape.largest().file()).machines;
        let id = stage.secrets.id();
        let ours = machines.iter().map(|machine| {
            let uuid = smbios_uuid(id, machine.name.as_ref()).to_string();
            (machine.vmid, (machine.address.into(), uuid))
        });
        let guests: BTreeMap<u32, Guest> = machines
            .iter()
            .map(|machine| {
                let control_plane = machine.role == Role::ControlPlane;
                let (name, address) = (machine.name.to_string(), machine.address.into());
                let guest = Guest {
                    name,
                    address,
                    control_plane,
                };
                (machine.vmid, guest)
            })
            .collect();
        let own = (1..=shape.hosts).map(|number| format!("127.0.0.{number}").parse().expect("an address"));
        let field = Field {
            addresses: own.chain(guests.values().map(|guest| guest.address)).collect(),
            guests,
            hosts: (1..=shape.hosts).map(|number| format!("pve{number}")).collect(),
            vip: "10.0.0.20".parse().expect("an address"),
            disks: false,
        };
        Self {
            stage,
            file: shape.file(),
            field,
            watch: Watch::set(stage, ours.collect()),
            text: String::new(),
        }
    }

    async fn live(mut self, mut shape: Shape, mut rng: impl Rng) -> Tale {
        for _ in 0..rng.random_range(1..=4) {
            self.storm(&mut rng, true).await;
        }
        let mut calm_runs = self.settle().await;
        if self.watch.all_wrong().is_empty() {
            if shape.fickle {
                self.change_minds(&mut shape, &mut rng).await;
            } else {
                self.change(&mut shape, &mut rng);
                for _ in 0..rng.random_range(0..=2) {
                    self.storm(&mut rng, true).await;
                }
            }
            calm_runs = calm_runs.max(self.settle().await);
        }
        self.watch.may_remove();
        if rng.random_bool(0.5) {
            self.storm(&mut rng, false).await;
        }
        self.clear().await;
        let events = watch::hex(&Sha256::new_with_prefix(self.stage.outline()));
        Tale {
            digest: format!("{events} {}", self.watch.requests()),
            wrong: self.watch.all_wrong(),
            calm_runs,
            text: format!(
                "{}\nthe busiest minute had {} requests\n{}",
                self.text,
                self.watch.busiest_minute(),
                self.stage.story()
            ),
        }
    }

    /// The file changes again and again, however far the last run came.
    async fn change_minds(&mut self, shape: &mut Shape, rng: &mut impl Rng) {
        for _ in 0..rng.random_range(1..=3) {
            // What was begun under the last file is no deed under the next, so it ends first.
            tokio::time::sleep(UNDER_WAY).await;
            if tokio::time::timeout(CALM_RUN, self.tasks_end()).await.is_err() {
                return;
            }
            let newer = (shape.upgrades && rng.random_bool(0.6))
                .then(|| shape.newer_talos())
                .flatten();
            let change = newer.unwrap_or_else(|| shape.change_mind(rng));
            self.changed(shape, change);
            for _ in 0..rng.random_range(0..=2) {
                self.storm(rng, true).await;
            }
        }
    }

    async fn tasks_end(&self) {
        let runs = || {
            let now = self.stage.world.datacenter().inspect();
            now.tasks.iter().any(|task| task.exit.is_none())
        };
        while runs() {
            tokio::time::sleep(Duration::from_secs(5)).await;
        }
    }

    /// The file changes, or the world does.
    fn change(&mut self, shape: &mut Shape, rng: &mut impl Rng) {
        let change = shape.change(rng);
        self.changed(shape, change);
    }

    fn changed(&mut self, shape: &Shape, change: Change) {
        let _ = writeln!(self.text, "change: {change:?}");
        self.file = shape.file();
        if change == Change::NewerTalos {
            self.watch.is_upgraded();
        }
        let stays: Vec<u32> = self
            .stage
            .spec(&self.file)
            .machines
            .iter()
            .map(|machine| machine.vmid)
            .collect();
        match change {
            Change::WorkerLess | Change::ControlPlanesLess => {
                let gone = self.field.guests.keys().filter(|vmid| !stays.contains(vmid));
                gone.for_each(|vmid| self.watch.leaves(*vmid));
            }
            Change::WorkerMore | Change::ControlPlanesMore => {
                for vmid in stays {
                    let was_leaving = self.watch.stays(vmid, self.field.is_control_plane(vmid));
                    if was_leaving && admin::is_half_destroyed(self.stage, vmid) {
                        let _ = writeln!(self.text, "{vmid} is half destroyed");
                        self.watch.may_end(vmid);
                    }
                }
            }
            Change::MoreMemory | Change::NewerTalos => stays.iter().for_each(|vmid| self.watch.may_restart(*vmid)),
            Change::Loss => {
                let mut workers = stays.iter().filter(|vmid| !self.field.is_control_plane(**vmid));
                let lost = if shape.control_planes > 1 {
                    &stays[0]
                } else {
                    workers.next_back().expect("is there")
                };
                admin::lose(self.stage, &self.watch, *lost);
            }
            Change::Nothing => {}
        }
    }

    /// A run in bad weather, killed at some instant. Sometimes a colleague runs the same at the same time.
    async fn storm(&mut self, rng: &mut impl Rng, up: bool) {
        let brewed = brew(self.stage, &self.field, &self.watch, rng);
        let lasts = Duration::from_millis(rng.random_range(200..240_000));
        let colleague = rng.random_bool(0.15).then(|| self.stage.with_a_colleague());
        let (stage, file) = (self.stage, self.file.clone());
        let run = async |stage: &Stage| if up { stage.up(&file).await } else { stage.down(&file).await };
        let work = async {
            match &colleague {
                Some(colleague) => futures::future::join(run(stage), run(colleague)).await.0,
                None => run(stage).await,
            }
        };
        let mut told = Vec::new();
        let end = tokio::select! {
            biased;
            outcome = work => match outcome {
                Ok(report) => format!("settled in {} rounds", report.rounds),
                Err(error) => format!("{error:?}").chars().take(300).collect(),
            },
            () = trouble(stage, &self.field, &self.watch, rng, lasts, &mut told) => "killed".to_owned(),
        };
        let two = if colleague.is_some() { TWO } else { "" };
        let _ = writeln!(self.text, "storm of {lasts:?}{two}: {brewed}: {}: {end}", told.join(", "));
        self.watch.look(stage);
    }

    /// One `up` that must do, whatever befalls it.
    pub async fn must_up(&self) {
        match self.stage.up(&self.file).await {
            Ok(_) => self.nothing_to_do().await,
            Err(error) => self.watch.wrong(format!("up: {error:?}")),
        }
    }

    /// One `down` that must do.
    pub async fn must_down(&self) {
        self.watch.may_remove();
        let held = match self.stage.down(&self.file).await {
            Ok(report) => report.held,
            Err(error) => {
                self.watch.wrong(format!("down: {error:?}"));
                Vec::new()
            }
        };
        self.watch.look(self.stage);
        self.watch.nothing_of_ours(self.stage, &held);
    }

    async fn nothing_to_do(&self) {
        // The node of a machine that was destroyed by hand is only named.
        let lost: Vec<String> = self
            .watch
            .lost()
            .iter()
            .map(|vmid| format!("node {} is no machine of ours; ", self.field.guests[vmid].name))
            .collect();
        let mut plan = self.stage.plan(&self.file).await;
        // A volume that a dead worker left, and that nothing proves to be ours, is only named, as are those of others.
        plan.held
            .retain(|held| !held.reason.contains("; if it is not needed: pvesm free"));
        if plan.held.iter().any(|held| self.watch.is_held_by_disks(held)) {
            // A control plane that cannot go may keep the others from restarting.
            plan.held.retain(|held| !held.reason.starts_with("etcd would have"));
        }
        plan.held.retain(|held| !self.watch.is_held_by_disks(held));
        plan.notes.retain(|note| !lost.iter().any(|lost| note.starts_with(lost)));
        self.nothing_cordoned().await;
        if plan.render() != "nothing to do" {
            self.watch
                .wrong(format!("settled, and yet there is a plan: {}", plan.render()));
        }
        self.watch.look(self.stage);
    }

    /// No machine of the file stays cordoned by mainstay once a run is over. One whose removal is held never gets pods again.
    async fn nothing_cordoned(&self) {
        let nodes = self
            .stage
            .observed(&self.file)
            .await
            .kubernetes
            .yes()
            .map(|kubernetes| kubernetes.nodes.clone());
        let machines = self.stage.spec(&self.file).machines;
        let is_wanted = |name: &str| machines.iter().any(|machine| machine.name.as_str() == name);
        for (name, node) in nodes.unwrap_or_default() {
            if is_wanted(&name) && matches!(node.cordon, NodeCordon::Ours | NodeCordon::Ended) {
                self.watch
                    .wrong(format!("{name} is still cordoned by mainstay: {:?}", node.cordon));
            }
        }
    }

    /// The storm is over. A colleague who was killed still holds his lease; people would wait, as the refusal tells them.
    async fn calm(&self) {
        calm(self.stage, &self.field, &self.watch);
        if self.text.contains(TWO) {
            tokio::time::sleep(LEASE).await;
        }
    }

    /// Calm: `up` settles, and then there is nothing left to do.
    async fn settle(&mut self) -> u32 {
        self.calm().await;
        for run in 1..=CALM_RUNS {
            let began = tokio::time::Instant::now();
            let outcome = self.stage.up(&self.file).await;
            if began.elapsed() > CALM_RUN {
                self.watch.wrong(format!("a run in calm weather took {:?}", began.elapsed()));
            }
            match outcome {
                Ok(_) => {
                    self.nothing_to_do().await;
                    return run;
                }
                Err(error) => {
                    let _ = writeln!(self.text, "calm run {run}: {error:?}");
                }
            }
        }
        self.watch.wrong(format!("up did not settle in {CALM_RUNS} calm runs"));
        self.watch.look(self.stage);
        CALM_RUNS + 1
    }

    /// Calm: `down` leaves nothing of ours, and everything of others. A machine with a disk of others stays until they take it away.
    async fn clear(&mut self) {
        self.calm().await;
        if self.watch.holds_any() {
            match self.stage.down(&self.file).await {
                Ok(report) => self.watch.holding_stays(self.stage, &report.held),
                Err(error) => {
                    let _ = writeln!(self.text, "down with disks of others: {error:?}");
                }
            }
            self.watch.look(self.stage);
            disks::taken_away(self.stage, &self.watch);
        }
        for run in 1..=CALM_RUNS {
            match self.stage.down(&self.file).await {
                Ok(report) => {
                    self.watch.look(self.stage);
                    return self.watch.nothing_of_ours(self.stage, &report.held);
                }
                Err(error) => {
                    let _ = writeln!(self.text, "calm down {run}: {error:?}");
                }
            }
        }
        self.watch.wrong(format!("down did not end in {CALM_RUNS} calm runs"));
    }
}
