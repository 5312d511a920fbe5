//! A simulated world with one cluster file in front of it.

pub mod apps;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_engine::{
    Clients, Event, EventRecord, EventSink, FileStore, Journal, LeaseHolder, LockStore, MemoryFiles, Run, RunError, RunGoal,
    RunReport, SecretsFile, StepEvent, converge, observe_and_plan, recipients,
};
use mainstay_net::{Entropy, Env, SimulateError, Trust, Wall, simulate};
use mainstay_plan::addon::wanted::AddonRequests;
use mainstay_plan::{ClusterSecrets, DistroSecrets, LeaseProcess, Observed, Plan, Step, StepId, TurnPolicy};
use mainstay_sim::{Mode, World, WorldSpec};
use mainstay_spec::{DistroSpec, Environment, Spec};
use pve_api::{Client, ClientOptions, Endpoint};
use sops_file::Identity;
use talos_config::versions::Contract;
use talos_config::{Secrets, ServiceAccountKey};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub const NEW_YEAR: &str = "2026-01-01T00:00:00Z";

/// Three control planes and two workers on the default datacenter.
pub const THREE_AND_TWO: &str = "\
name: demo
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1], vip: 10.0.0.20 }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 3, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
  worker: { count: 2, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.21+, vmids: 3000+ }
";

/// Machines that boot in no time.
pub const QUICK: &str =
    "guests: { timing: { firmware: 0.1, kernel: 0.1, initialize: 0.1, apid-restart: 0.1, apid-start: 0.1 } }\n";

const SECRETS: &str = "cluster.secrets.yaml";
pub const LOCK: &str = "cluster.lock.yaml";

/// What stands on the stage.
pub struct Stage {
    pub world: Arc<World>,
    pub env: Env,
    pub disk: Arc<MemoryFiles>,
    /// Where the cluster's file and its secrets lie, for all who work on it.
    pub folder: Arc<MemoryFiles>,
    pub secrets: ClusterSecrets,
    pub told: Arc<Mutex<Vec<EventRecord>>>,
    /// Moves with every event.
    pub beat: Arc<Notify>,
    /// Who sits in front of it.
    who: &'static str,
    /// Volumes that may go with their VM.
    pub with_disks: BTreeSet<String>,
    /// What is asked for about single add-ons.
    pub addons: AddonRequests,
    pub policy: TurnPolicy,
    processes: Arc<Processes>,
}

/// The processes of one desk.
#[derive(Default)]
struct Processes {
    last: AtomicU32,
    alive: Mutex<BTreeSet<u32>>,
}

/// A process that ends with its run, however that ends.
struct Process(Arc<Processes>, u32);

impl Drop for Process {
    fn drop(&mut self) {
        self.0.alive.lock().expect("plain data").remove(&self.1);
    }
}

/// Runs on virtual time; a day of it is far more than anything takes, and costs nothing.
pub fn on_stage<T: Send>(seed: u64, spec: WorldSpec, act: impl AsyncFnOnce(&Stage) -> T + Send) -> T {
    let run = async move |entropy: Entropy| {
        let stage = Stage::build(spec, entropy).await;
        act(&stage).await
    };
    let outcome: Result<T, SimulateError> = simulate(seed, Duration::from_secs(24 * 3600), run);
    outcome.expect("the run ends in time")
}

impl Stage {
    async fn build(spec: WorldSpec, entropy: Entropy) -> Self {
        let wall = Wall::at(NEW_YEAR.parse().expect("a time"));
        let world = World::start(spec, Mode::Simulated, wall, entropy.fork("world"))
            .await
            .expect("a world");
        let env = Env {
            dialer: world.dialer(),
            wall,
            entropy: entropy.fork("mainstay"),
        };
        let mut rng = env.entropy.fork("secrets").rng();
        let key = ServiceAccountKey::ec_p256(&mut rng).expect("a key");
        let secrets = Secrets::generate(&mut rng, wall.now(), Contract::new(1, 13), key).expect("secrets");
        let secrets = ClusterSecrets::talos(secrets);
        Self {
            world: Arc::new(world),
            env,
            disk: Arc::default(),
            folder: Arc::default(),
            secrets,
            told: Arc::default(),
            beat: Arc::default(),
            who: "ops",
            with_disks: BTreeSet::new(),
            addons: AddonRequests::default(),
            policy: TurnPolicy::default(),
            processes: Arc::default(),
        }
    }

    /// The same operator with a cluster of RKE2 or k3s.
    pub fn with_rancher(&self, distro: rancher_config::Distro) -> Self {
        let mut rng = self.env.entropy.fork("rancher secrets").rng();
        let key = rancher_config::ServiceKey::ec(&mut rng).expect("a key");
        let secrets = ClusterSecrets::generate_rancher(distro, &mut rng, self.env.wall.now(), key);
        Self {
            secrets: secrets.expect("secrets"),
            ..self.with_other_secrets()
        }
    }

    /// Another operator in front of the same world, with a cluster of the same name.
    pub fn with_other_secrets(&self) -> Self {
        let mut rng = self.env.entropy.fork("other secrets").rng();
        let key = ServiceAccountKey::ec_p256(&mut rng).expect("a key");
        let secrets = Secrets::generate(&mut rng, self.env.wall.now(), Contract::new(1, 13), key).expect("secrets");
        let secrets = ClusterSecrets::talos(secrets);
        Self {
            world: self.world.clone(),
            env: self.env.clone(),
            disk: Arc::default(),
            folder: Arc::default(),
            secrets,
            told: Arc::default(),
            beat: Arc::default(),
            who: "ops",
            with_disks: BTreeSet::new(),
            addons: AddonRequests::default(),
            policy: TurnPolicy::default(),
            processes: Arc::default(),
        }
    }

    /// A colleague with the same file and the same secrets, at a desk of his own.
    pub fn with_a_colleague(&self) -> Self {
        Self {
            world: self.world.clone(),
            env: self.env.clone(),
            disk: Arc::default(),
            folder: self.folder.clone(),
            secrets: self.secrets.clone(),
            told: self.told.clone(),
            beat: self.beat.clone(),
            who: "colleague",
            with_disks: BTreeSet::new(),
            addons: AddonRequests::default(),
            policy: TurnPolicy::default(),
            processes: Arc::default(),
        }
    }

    pub fn spec(&self, text: &str) -> Spec {
        let environment = Environment {
            endpoint: Some(self.world.endpoint()),
        };
        match mainstay_spec::load(text, "cluster.yaml", &environment, &|_| None) {
            Ok(checked) => {
                let mut spec = checked.spec;
                if let DistroSpec::Talos(talos) = &mut spec.distro {
                    talos.factory = self.world.factory_url().parse().expect("a URL");
                }
                spec
            }
            Err(faults) => panic!(
                "{}",
                mainstay_spec::report::terminal(&faults.source, &faults.faults, mainstay_spec::report::Paint::Plain)
            ),
        }
    }

    pub fn pve(&self) -> Client {
        let url: url::Url = self.world.endpoint().parse().expect("a URL");
        let target = format!("{}:{}", url.host_str().expect("a host"), url.port().expect("a port"))
            .parse()
            .expect("a target");
        let trust = match self.world.fingerprint() {
            Some(fingerprint) => Trust::Pin(fingerprint.parse().expect("reads")),
            None => Trust::Plain,
        };
        let login = self.world.token().expect("a token").parse().expect("reads");
        Client::new(
            &self.env,
            vec![Endpoint {
                target,
                trust,
                host: None,
            }],
            login,
            ClientOptions::default(),
        )
        .expect("a client")
    }

    fn events(&self) -> EventSink {
        let (told, beat) = (self.told.clone(), self.beat.clone());
        EventSink::new(move |event| {
            told.lock().expect("writes").push(event);
            beat.notify_one();
        })
    }

    pub fn site(&self, spec: &Spec) -> Clients {
        let disk: Arc<dyn FileStore> = self.disk.clone();
        let journal = Journal::open(disk, "state".as_ref(), self.secrets.id(), EventSink::discard());
        Clients::new(
            self.env.clone(),
            self.pve(),
            spec,
            Some(&self.secrets),
            journal,
            Some(self.world.web_ca()),
        )
        .expect("clients")
        .keeping_charts(self.folder.clone(), "charts".into(), LOCK.into(), self.who.to_owned())
        .with_lock(LockStore::beside(self.folder.clone(), "cluster.yaml".as_ref()))
    }

    /// The Talos API of a machine, for what people do with talosctl.
    pub fn talos_node(&self, address: &str) -> talos_api::Node {
        let mut rng = self.env.entropy.fork("talosctl").rng();
        let DistroSecrets::Talos(secrets) = &self.secrets.distro else {
            panic!("a Talos cluster")
        };
        let roles = [talos_config::TalosRole::Admin].into();
        let lifetime = talos_config::access::DEFAULT_LIFETIME;
        let minted = talos_config::access::talos_identity(secrets, &roles, lifetime, self.env.wall.now(), &mut rng);
        let minted = minted.expect("a certificate");
        let identity = mainstay_net::Identity {
            cert_pem: minted.certificate,
            key_pem: mainstay_net::Secret::new(minted.pkcs8_key.to_string()),
        };
        let access = talos_api::Access::new(&self.env, secrets.os_ca().to_owned(), identity);
        let target = mainstay_net::Target {
            host: address.to_owned(),
            port: 50000,
        };
        access.node(&target).expect("a client")
    }

    fn begin_process(&self) -> Process {
        let pid = 1 + self.processes.last.fetch_add(1, Ordering::Relaxed);
        self.processes.alive.lock().expect("plain data").insert(pid);
        Process(self.processes.clone(), pid)
    }

    /// A run in a process that never ends.
    pub fn run<'a>(&'a self, spec: &'a Spec, clients: &'a Clients, goal: RunGoal) -> Run<'a> {
        let process = self.begin_process();
        let run = self.run_in(&process, spec, clients, goal);
        std::mem::forget(process);
        run
    }

    /// The run with this number of a desk: its boot and its PID namespace are named after it.
    pub fn holder(&self, pid: u32, desk: &str) -> LeaseHolder {
        let process = LeaseProcess {
            boot: format!("boot-of-{desk}"),
            namespace: 1,
            pid,
            began: 1,
        };
        let processes = self.processes.clone();
        let is_alive = move |pid: u32| processes.alive.lock().expect("plain data").contains(&pid).then_some(1);
        LeaseHolder::new(self.who, "desk", &format!("{}-{desk}-{pid}", self.who)).of_process(process, is_alive)
    }

    fn run_in<'a>(&'a self, process: &Process, spec: &'a Spec, clients: &'a Clients, goal: RunGoal) -> Run<'a> {
        Run {
            spec,
            clients,
            secrets: Some(&self.secrets),
            goal,
            holder: self.holder(process.1, "desk"),
            despite_lease: false,
            with_disks: self.with_disks.clone(),
            policy: self.policy.clone(),
            addons: self.addons.clone(),
            events: self.events(),
            stop: CancellationToken::new(),
        }
    }

    pub async fn converge(&self, file: &str, wanted: RunGoal) -> Result<RunReport, RunError> {
        let spec = self.spec(file);
        let site = self.site(&spec);
        let process = self.begin_process();
        let run = self.run_in(&process, &spec, &site, wanted);
        converge(&run, &mut |request| {
            if self.keep_secrets() {
                request.approve();
            }
        })
        .await
    }

    /// As `up` has it: a yes comes first, and the secrets before anything that needs them.
    pub fn keep_secrets(&self) -> bool {
        if self.are_secrets_kept() {
            return true;
        }
        let key = Identity::generate();
        let file = SecretsFile::new(self.folder.clone(), SECRETS.into(), Vec::new());
        let recipients = recipients(None, &[key]).expect("a reader");
        file.store(&self.secrets, &recipients, self.env.wall.now(), &self.env.entropy)
            .is_ok()
    }

    pub fn are_secrets_kept(&self) -> bool {
        self.folder.read(SECRETS.as_ref()).is_ok_and(|file| file.is_some())
    }

    /// Everything that we write to is full, or has room again.
    pub fn set_full(&self, full: bool) {
        self.disk.set_full(full);
        self.folder.set_full(full);
    }

    pub async fn up(&self, file: &str) -> Result<RunReport, RunError> {
        self.converge(file, RunGoal::Up).await
    }

    pub async fn down(&self, file: &str) -> Result<RunReport, RunError> {
        self.converge(file, RunGoal::Down { images: Vec::new() }).await
    }

    pub async fn plan(&self, file: &str) -> Plan {
        let spec = self.spec(file);
        let site = self.site(&spec);
        observe_and_plan(&self.run(&spec, &site, RunGoal::Up))
            .await
            .expect("a plan")
            .plan
    }

    /// What is seen now.
    pub async fn observed(&self, file: &str) -> Observed {
        let spec = self.spec(file);
        let site = self.site(&spec);
        observe_and_plan(&self.run(&spec, &site, RunGoal::Up))
            .await
            .expect("a plan")
            .observed
    }

    /// Waits for the end of a step.
    pub async fn ended(&self, is_it: impl Fn(&Step) -> bool) {
        while !self.has_ended(&is_it) {
            self.beat.notified().await;
        }
    }

    /// Waits for the begin of a step.
    pub async fn began(&self, is_it: impl Fn(&Step) -> bool) {
        let began = |event: &StepEvent| matches!(event, StepEvent::Begin);
        while !self.was_told(&is_it, began) {
            self.beat.notified().await;
        }
    }

    fn has_ended(&self, is_it: impl Fn(&Step) -> bool) -> bool {
        self.was_told(is_it, |event| matches!(event, StepEvent::Done { .. }))
    }

    fn was_told(&self, is_it: impl Fn(&Step) -> bool, what: impl Fn(&StepEvent) -> bool) -> bool {
        let mut plan: Option<Arc<Plan>> = None;
        self.told.lock().expect("reads").iter().any(|told| match &told.event {
            Event::Planned(next) => {
                plan = Some(next.clone());
                false
            }
            Event::Step { id, now } if what(now) => plan.as_ref().and_then(|plan| plan.step(*id)).is_some_and(&is_it),
            _ => false,
        })
    }

    /// What no step may say.
    pub fn tell_a_wait_without_a_reason(&self) {
        let wait = StepEvent::Wait {
            what: String::new(),
            limit: Duration::ZERO,
            transfer: None,
        };
        let id = StepId(0);
        self.events().emit(Event::Step { id, now: wait });
    }

    /// Every event so far, one a line, without its texts for people: what a change of words does not change.
    pub fn outline(&self) -> String {
        let mut plan: Option<Arc<Plan>> = None;
        let mut lines = String::new();
        for told in self.told.lock().expect("reads").iter() {
            let text = match &told.event {
                Event::Observing { round } => format!("look {round}"),
                Event::Planned(next) => {
                    plan = Some(next.clone());
                    let step = |step: &Step| format!("{} {} {} {:?}", step.action.name(), step.subject, step.impact, step.needs);
                    format!("plan\n{}", next.steps.iter().map(step).collect::<Vec<_>>().join("\n"))
                }
                Event::Step { id, now } => {
                    let step = plan.as_ref().and_then(|plan| plan.step(*id));
                    let name = step.map(|step| format!("{} {}", step.action.name(), step.subject));
                    let what = match now {
                        StepEvent::Begin => "begin",
                        StepEvent::Wait { .. } => "wait",
                        StepEvent::Retry { .. } => "retry",
                        StepEvent::Done { .. } => "done",
                        StepEvent::Failed { .. } => "failed",
                    };
                    format!("{} {what}", name.unwrap_or_default())
                }
                Event::Note(_) => "note".to_owned(),
                Event::Stopping { running } => format!("stopping {}", running.len()),
                // Asking takes no time here and changes nothing.
                Event::Approval { .. } | Event::Answered { .. } => continue,
            };
            lines.push_str(&format!("{:?} {text}\n", told.at));
        }
        lines
    }

    /// The story so far, for a test that failed.
    pub fn story(&self) -> String {
        let mut plan: Option<Arc<Plan>> = None;
        let mut lines = Vec::new();
        for told in self.told.lock().expect("reads").iter() {
            let at = told.at.as_secs_f64();
            match &told.event {
                Event::Planned(next) => {
                    lines.push(format!("{at:8.1} plan\n{}", next.trace()));
                    plan = Some(next.clone());
                }
                Event::Step { id, now } => {
                    let name = plan
                        .as_ref()
                        .and_then(|plan| plan.step(*id))
                        .map(|step| format!("{} {}", step.action.name(), step.subject))
                        .unwrap_or_default();
                    let now = match now {
                        StepEvent::Failed { why, .. } => format!("FAILED {why} {:?} {:?}", why.why, why.causes()),
                        other => format!("{other:?}"),
                    };
                    lines.push(format!("{at:8.1} {name}: {now}"));
                }
                other => lines.push(format!("{at:8.1} {other:?}")),
            }
        }
        lines.join("\n")
    }
}

/// The good end, or the whole story.
pub fn settled(stage: &Stage, outcome: Result<RunReport, RunError>) -> RunReport {
    match outcome {
        Ok(report) => report,
        Err(error) => panic!("{error:#?}\n{}", stage.story()),
    }
}
