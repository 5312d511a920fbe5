//! Bad days from a seed: faults and kills while `up` runs again and again, then calm, in which everything must come right.

pub mod once;
pub mod shape;
pub mod watch;
pub mod weather;

use std::collections::BTreeSet;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::Entropy;
use rand::{Rng, RngExt};

use self::shape::Shape;
use self::watch::Watch;
use self::weather::{Field, brew, calm, trouble};
use crate::stage::{Stage, on_stage};

/// Runs that calm may need: the first may still meet what a storm left behind (a task, a lock, a machine that restarts).
const CALM_RUNS: u32 = 3;

/// How one seed went.
#[derive(Debug)]
pub struct Tale {
    pub wrong: Vec<String>,
    pub calm_runs: u32,
    /// What happened, for a reader.
    pub text: String,
}

/// Lives through one seed.
pub fn live(seed: u64) -> Tale {
    let mut rng = Entropy::from_seed(seed).fork("hardship").rng();
    let mut shape = Shape::draw(&mut rng);
    let world = std::mem::take(&mut shape.world);
    on_stage(seed, world, async |stage| Life::new(stage, &shape).live(rng).await)
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
        let file = shape.file();
        let machines = stage.spec(&file).machines;
        let vmids: BTreeSet<u32> = machines.iter().map(|machine| machine.vmid).collect();
        let hosts: Vec<String> = (1..=shape.hosts).map(|number| format!("pve{number}")).collect();
        let own = (1..=shape.hosts).map(|number| format!("127.0.0.{number}").parse().expect("an address"));
        let field = Field {
            addresses: own.chain(machines.iter().map(|machine| machine.address.into())).collect(),
            machines: machines.iter().map(|machine| machine.name.to_string()).collect(),
            vmids: vmids.clone(),
            hosts,
        };
        Self {
            stage,
            file,
            field,
            watch: Watch::set(stage, vmids),
            text: String::new(),
        }
    }

    async fn live(mut self, mut rng: impl Rng) -> Tale {
        for _ in 0..rng.random_range(1..=5) {
            self.storm(&mut rng, true).await;
        }
        let calm_runs = self.settle().await;
        self.watch.may_remove();
        if rng.random_bool(0.5) {
            self.storm(&mut rng, false).await;
        }
        self.clear().await;
        Tale {
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

    /// A run in bad weather, killed at some instant.
    async fn storm(&mut self, rng: &mut impl Rng, up: bool) {
        let brewed = brew(self.stage, &self.field, rng);
        let lasts = Duration::from_millis(rng.random_range(200..240_000));
        let (stage, file) = (self.stage, self.file.clone());
        let work = async { if up { stage.up(&file).await } else { stage.down(&file).await } };
        let end = tokio::select! {
            biased;
            outcome = work => match outcome {
                Ok(report) => format!("settled in {} rounds", report.rounds),
                Err(error) => format!("{error:?}").chars().take(300).collect(),
            },
            told = trouble(stage, &self.field, rng, lasts) => format!("killed; {}", told.join(", ")),
        };
        let _ = writeln!(self.text, "storm of {lasts:?}: {brewed}: {end}");
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
        if let Err(error) = self.stage.down(&self.file).await {
            self.watch.wrong(format!("down: {error:?}"));
        }
        self.watch.look(self.stage);
        self.watch.nothing_of_ours(self.stage);
    }

    async fn nothing_to_do(&self) {
        let plan = self.stage.plan(&self.file).await.render();
        if plan != "nothing to do" {
            self.watch.wrong(format!("settled, and yet there is a plan: {plan}"));
        }
        self.watch.look(self.stage);
    }

    /// Calm: `up` settles, and then there is nothing left to do.
    async fn settle(&mut self) -> u32 {
        calm(self.stage, &self.field);
        for run in 1..=CALM_RUNS {
            match self.stage.up(&self.file).await {
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

    /// Calm: `down` leaves nothing of ours, and everything of others.
    async fn clear(&mut self) {
        calm(self.stage, &self.field);
        for run in 1..=CALM_RUNS {
            match self.stage.down(&self.file).await {
                Ok(_) => {
                    self.watch.look(self.stage);
                    return self.watch.nothing_of_ours(self.stage);
                }
                Err(error) => {
                    let _ = writeln!(self.text, "calm down {run}: {error:?}");
                }
            }
        }
        self.watch.wrong(format!("down did not end in {CALM_RUNS} calm runs"));
    }
}
