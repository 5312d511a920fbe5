//! `demo`: builds a cluster in a simulated datacenter in memory and shows it. No network, no files.
//!
//! The simulated world runs at full speed in its own thread; only the view is slowed down.

mod world;

use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use mainstay_engine::{
    Clients, ClusterHealth, EventRecord, EventSink, Journal, LeaseHolder, MemoryFiles, ObserveScope, Run, RunError, RunGoal,
    RunReport, converge, health, observe,
};
use mainstay_net::{Entropy, Env, Trust, Wall, simulate};
use mainstay_plan::{ClusterSecrets, Observed, ServiceAccountKeyKind, derive};
use mainstay_sim::{Mode, World};
use mainstay_spec::{DistroSpec, Environment, Spec};
use pve_api::{Client, ClientOptions, Endpoint};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::args::DemoArgs;
use crate::error::CommandError;
use crate::exit;
use crate::output::Output;
use crate::run::{self, Readers};
use crate::view;
use crate::view::status::StatusFacts;
use crate::wire::{EventEncoder, EventLine, WireEvent};

/// The cluster of a demo without `-f`.
const CLUSTER: &str = include_str!("demo.yaml");

/// A frame of the live view.
const FRAME: Duration = Duration::from_millis(100);
/// More virtual time than any demo takes.
const DEADLINE: Duration = Duration::from_secs(6 * 3600);

/// What the simulated run sends to the view.
enum DemoMessage {
    Event(EventRecord),
    End(Box<DemoResult>),
}

struct DemoResult {
    outcome: Result<RunReport, RunError>,
    /// The last observation, for the status page.
    observed: Option<Observed>,
    health: Option<ClusterHealth>,
    spec: Spec,
    secrets: ClusterSecrets,
    took: Duration,
    now: jiff::Timestamp,
}

pub async fn run(file: &Path, args: &DemoArgs, output: Output) -> Result<(), CommandError> {
    let given = file.as_os_str() != "cluster.yaml";
    let text = if given {
        std::fs::read_to_string(file).map_err(|error| CommandError::unreadable(file, &error))?
    } else {
        CLUSTER.to_owned()
    };
    let folder = file.parent().map(Path::to_path_buf).unwrap_or_default();
    let name = if given {
        file.display().to_string()
    } else {
        "demo.yaml".to_owned()
    };
    if !output.json {
        output.status(format!(
            "Simulating Proxmox VE in this process, {} times faster than real time.",
            args.speed
        ));
    }
    let (sender, messages) = mpsc::channel();
    let seed = args.faults.unwrap_or(1);
    let story = DemoRun {
        text,
        name,
        folder,
        faults: args.faults,
        sender,
    };
    let spec = story.spec(None)?;
    let thread = std::thread::spawn(move || simulate(seed, DEADLINE, |entropy| story.play(entropy)));
    let mut readers = Readers::new(vec![view::reader(output)]);
    let end = watch(&messages, args.speed, &spec, &mut readers).await;
    match thread.join() {
        Ok(Ok(Ok(()))) => {}
        Ok(Ok(Err(problem))) => return Err(problem),
        Ok(Err(error)) => return Err(CommandError::new("the simulated run did not finish").caused_by(error)),
        Err(_) => return Err(CommandError::new("the simulated run panicked")),
    }
    end.map_or(Ok(()), |end| close(*end, &mut readers, output))
}

/// Shows the events at the pace that was asked for.
async fn watch(
    messages: &mpsc::Receiver<DemoMessage>,
    speed: f64,
    spec: &Spec,
    readers: &mut Readers,
) -> Option<Box<DemoResult>> {
    // Nothing is asked in a demo, so the question is never shown.
    let mut encoder = EventEncoder::new("", spec);
    let began = Instant::now();
    let at = |virtually: Duration| began + virtually.div_f64(speed);
    let now = || began.elapsed().mul_f64(speed);
    loop {
        let record = match messages.try_recv() {
            Ok(DemoMessage::Event(record)) => record,
            Ok(DemoMessage::End(end)) => return Some(end),
            Err(mpsc::TryRecvError::Empty) => {
                tokio::time::sleep(FRAME).await;
                continue;
            }
            Err(mpsc::TryRecvError::Disconnected) => return None,
        };
        while Instant::now() + FRAME < at(record.at) {
            tokio::time::sleep(FRAME).await;
            readers.tick(now().min(record.at));
        }
        sleep_until(at(record.at)).await;
        readers.line(&encoder.encode(&record));
    }
}

fn close(end: DemoResult, readers: &mut Readers, output: Output) -> Result<(), CommandError> {
    let machines = end.spec.machines.len();
    let mut report = run::report(end.outcome.as_ref(), machines);
    let ready = report.nodes.map_or(0, |nodes| nodes.ready);
    report.settled = end.outcome.is_ok();
    if report.settled {
        report.summary = vec![format!(
            "{} is settled: {ready} of {} ready. {} in {} of simulated time.",
            end.spec.name,
            view::count(machines, "node"),
            view::count(report.done, "step"),
            view::clock(end.took)
        )];
    }
    let error = end.outcome.err().map(CommandError::from);
    report.exit = error.as_ref().map_or(0, exit::code);
    for error in error.iter().flat_map(|error| error.events("demo.yaml")) {
        readers.line(&EventLine::at(end.took, WireEvent::Error(error)));
    }
    let exit = report.exit;
    readers.line(&EventLine::at(end.took, WireEvent::Report(report)));
    readers.finish();
    if exit != 0 {
        return Err(CommandError::ExitOnly(exit));
    }
    if output.json {
        return Ok(());
    }
    if let Some(observed) = &end.observed {
        output.status("");
        let facts = StatusFacts {
            secrets: Some(&end.secrets),
            observed,
            health: end.health.as_ref(),
            recipients: 2,
            now: end.now,
        };
        output.print(view::status::page(&end.spec, &facts).text(output.width()));
    }
    output.status("\nAll of this was simulated; nothing is left of it. On your own Proxmox VE: mainstay setup");
    Ok(())
}

/// One simulated run.
struct DemoRun {
    text: String,
    name: String,
    folder: std::path::PathBuf,
    faults: Option<u64>,
    sender: mpsc::Sender<DemoMessage>,
}

impl DemoRun {
    async fn play(self, entropy: Entropy) -> Result<(), CommandError> {
        let wall = Wall::at("2026-01-01T08:00:00Z".parse().unwrap_or(jiff::Timestamp::UNIX_EPOCH));
        let wanted = world::world_for(&self.spec(None)?);
        let world = World::start(wanted, Mode::Simulated, wall, entropy.fork("world")).await;
        let world = world.map_err(|error| CommandError::new("cannot create the simulated world").caused_by(error))?;
        if self.faults.is_some() {
            world.net().set_faults(bad_network());
        }
        let env = Env {
            dialer: world.dialer(),
            wall,
            entropy: entropy.fork("mainstay"),
        };
        let spec = self.spec(Some(&world))?;
        let secrets = secrets(&env, &spec)?;
        let events = self.events();
        let clients = clients(&world, &env, &spec, &secrets, &events)?;
        let run = Run {
            spec: &spec,
            clients: &clients,
            secrets: Some(&secrets),
            goal: RunGoal::Up,
            holder: LeaseHolder::new("you", "here", "demo"),
            despite_lease: false,
            with_disks: std::collections::BTreeSet::new(),
            policy: mainstay_plan::TurnPolicy::default(),
            addons: mainstay_plan::addon::wanted::AddonRequests::default(),
            events,
            stop: CancellationToken::new(),
        };
        let began = Instant::now();
        let outcome = converge(&run, &mut |request| request.approve()).await;
        let took = began.elapsed();
        let observed = observe(&clients, &ObserveScope::of(&spec, Some(secrets.id())))
            .await
            .ok()
            .map(|sight| sight.observed);
        let health = health(&clients, &spec, true).await;
        let now = wall.now();
        let _ = self.sender.send(DemoMessage::End(Box::new(DemoResult {
            outcome,
            observed,
            health,
            spec: spec.clone(),
            secrets: secrets.clone(),
            took,
            now,
        })));
        Ok(())
    }

    fn events(&self) -> EventSink {
        let sender = std::sync::Mutex::new(self.sender.clone());
        EventSink::new(move |record| {
            if let Ok(sender) = sender.lock() {
                let _ = sender.send(DemoMessage::Event(record));
            }
        })
    }

    /// The file, with the simulated datacenter in place of its own.
    fn spec(&self, world: Option<&World>) -> Result<Spec, CommandError> {
        let folder = self.folder.clone();
        let environment = Environment {
            // Before the world exists any address will do; the file may have none.
            endpoint: Some(world.map_or_else(|| "https://pve.lan:8006".to_owned(), World::endpoint)),
        };
        let checked = mainstay_spec::load(&self.text, &self.name, &environment, &|name| {
            std::fs::read(folder.join(name)).ok()
        })
        .map_err(CommandError::Spec)?;
        let mut spec = checked.spec;
        spec.datacenter.jump = None;
        if let (Some(world), DistroSpec::Talos(talos)) = (world, &mut spec.distro) {
            let url = world.factory_url().parse();
            talos.factory = url.map_err(|error| CommandError::new("the simulated factory has no address").caused_by(error))?;
        }
        Ok(spec)
    }
}

/// A network that refuses one connection in thirty and resets as many.
fn bad_network() -> mainstay_net::NetFaults {
    let milliseconds = Duration::from_millis;
    mainstay_net::NetFaults {
        refuse: 0.03,
        reset: 0.03,
        reset_after: milliseconds(50)..=milliseconds(5000),
        ..mainstay_net::NetFaults::latency(milliseconds(1)..=milliseconds(40))
    }
}

fn secrets(env: &Env, spec: &Spec) -> Result<ClusterSecrets, CommandError> {
    let versions = derive::versions(spec, None, None)?;
    let mut key_rng = env.entropy.fork("service account key").rng();
    let mut rng = env.entropy.fork("secrets").rng();
    let kind = ServiceAccountKeyKind::EcP256;
    ClusterSecrets::generate(&spec.distro, &versions.release, kind, &mut key_rng, &mut rng, env.wall.now())
        .map_err(|error| CommandError::new("cannot create secrets").caused_by(error))
}

fn clients(world: &World, env: &Env, spec: &Spec, secrets: &ClusterSecrets, events: &EventSink) -> Result<Clients, CommandError> {
    let broken = |what: &'static str| move || CommandError::new(format!("the simulated datacenter has no {what}"));
    let address = world.endpoint();
    let target = address
        .trim_start_matches("https://")
        .parse()
        .map_err(|_| broken("address")())?;
    let pin = world
        .fingerprint()
        .and_then(|text| text.parse().ok())
        .ok_or_else(broken("certificate"))?;
    let login = world.token().and_then(|text| text.parse().ok()).ok_or_else(broken("token"))?;
    let endpoint = Endpoint {
        target,
        trust: Trust::Pin(pin),
        host: None,
    };
    let pve = Client::new(env, vec![endpoint], login, ClientOptions::default()).map_err(|_| broken("certificate")())?;
    let journal = Journal::open(
        Arc::new(MemoryFiles::default()),
        Path::new("demo"),
        secrets.id(),
        events.clone(),
    );
    Ok(Clients::new(
        env.clone(),
        pve,
        spec,
        Some(secrets),
        journal,
        Some(world.web_ca()),
    )?)
}
