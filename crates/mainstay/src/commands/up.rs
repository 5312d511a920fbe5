//! `up`: from cluster.yaml to Ready nodes.

mod secrets;

use std::io::{BufRead, Write};
use std::time::Duration;

use mainstay_engine::{Event, Events, Report, Run, RunError, Told, Wanted, converge};
use mainstay_plan::{Held, Observed, Page, Plan};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::Up;
use crate::interrupts::Interrupts;
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;
use crate::view::{self, View};

/// How often a view is redrawn while nothing happens.
const TICK: Duration = Duration::from_millis(250);

pub async fn run(session: &Session, args: &Up, output: Output) -> Result<(), Problem> {
    warnings(session, output);
    session.reach().await?;
    let (secrets, mut unwritten) = secrets::open_or_make(session, output).await?;
    let wanted = Run {
        spec: session.spec(),
        site: &session.site(Some(&secrets), &Events::unheard())?,
        secrets: Some(&secrets),
        wanted: Wanted::Cluster,
        holder: session.around.holder.clone(),
        despite_lease: args.take_lease,
        events: Events::unheard(),
        stop: CancellationToken::new(),
    };
    let mut not_written = None;
    let ask = |plan: &Plan, seen: &Observed| {
        if !approve(plan, seen, session, args.yes, output) {
            return false;
        }
        // A yes comes first, and the secrets before anything that needs them.
        let written = unwritten.take().map(|new| new.write(&secrets, session, output));
        not_written = written.and_then(Result::err);
        not_written.is_none()
    };
    let began = Instant::now();
    let outcome = watched(wanted, ask, output).await;
    match not_written {
        Some(problem) => Err(problem),
        None => finish(session, outcome, began.elapsed(), output),
    }
}

/// What is worth a second look in a file that can be carried out.
pub fn warnings(session: &Session, output: Output) {
    let checked = &session.checked;
    if !checked.warnings.is_empty() && !output.json {
        let paint = if output.color_err {
            mainstay_spec::report::Paint::Colour
        } else {
            mainstay_spec::report::Paint::Plain
        };
        output.tell(mainstay_spec::report::terminal(&checked.source, &checked.warnings, paint).trim_end());
    }
}

/// Runs with a view, and with Ctrl-C: once stops beginning, twice leaves at once.
pub async fn watched(
    mut run: Run<'_>,
    mut ask: impl FnMut(&Plan, &Observed) -> bool,
    output: Output,
) -> Result<Report, RunError> {
    let (sender, mut told) = mpsc::unbounded_channel::<Told>();
    run.events = Events::new(move |told| drop(sender.send(told)));
    let stop = run.stop.clone();
    let mut view = View::new(output);
    let mut interrupts = None;
    let began = Instant::now();
    let mut work = std::pin::pin!(converge(&run, &mut ask));
    let outcome = loop {
        tokio::select! {
            biased;
            Some(told) = told.recv() => {
                // Before anything is begun, while a question may be open, a signal ends the program as it ends any other.
                if matches!(told.event, Event::Planned(_)) {
                    interrupts.get_or_insert_with(Interrupts::listen);
                }
                view.show(&told);
            }
            outcome = &mut work => break outcome,
            () = interrupted(&mut interrupts) => {
                if stop.is_cancelled() {
                    break Err(RunError::Left);
                }
                stop.cancel();
            }
            () = tokio::time::sleep(TICK) => view.tick(began.elapsed()),
        }
    };
    while let Ok(told) = told.try_recv() {
        view.show(&told);
    }
    view.finish();
    outcome
}

async fn interrupted(interrupts: &mut Option<Interrupts>) {
    match interrupts {
        Some(interrupts) => interrupts.next().await,
        None => std::future::pending().await,
    }
}

/// Shows the plan and asks. Where nobody can be asked, `--yes` must have been said.
pub fn approve(plan: &Plan, seen: &Observed, session: &Session, yes: bool, output: Output) -> bool {
    if !output.json {
        output.tell(plan_text(plan, seen, session, output));
    }
    if yes {
        return true;
    }
    if !output.can_ask() {
        output.tell("error: nobody to ask here; say --yes to go ahead");
        return false;
    }
    question("Go ahead? [y/N] ").eq_ignore_ascii_case("y")
}

pub fn plan_text(plan: &Plan, seen: &Observed, session: &Session, output: Output) -> String {
    let endpoint = &session.spec().datacenter.endpoint;
    let width = terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0));
    let file = session.file.display().to_string();
    let page = Page {
        datacenter: endpoint.host_str().unwrap_or("?"),
        hosts: seen.hosts.len(),
        file: &file,
        width,
    };
    let mut text = plan.page(&page).trim_end().to_owned();
    if output.verbose {
        text.push_str(&format!("\n\n{}", plan.trace()));
    }
    text
}

pub fn question(text: &str) -> String {
    let mut err = std::io::stderr().lock();
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    let mut answer = String::new();
    let _ = std::io::stdin().lock().read_line(&mut answer);
    answer.trim().to_owned()
}

fn finish(session: &Session, outcome: Result<Report, RunError>, took: Duration, output: Output) -> Result<(), Problem> {
    let wanted = session.spec().machines.len();
    if output.json {
        output.object(&view::json_report(outcome.as_ref(), took, wanted));
    }
    let report = outcome?;
    if !report.is_settled() {
        return Err(held_up(session.spec().name.as_str(), "settled", &report));
    }
    if !output.json {
        output.tell(settled(session, &report, took));
    }
    Ok(())
}

/// Everything else is done, and this waits for something that mainstay does not do.
pub fn held_up(name: &str, end: &str, report: &Report) -> Problem {
    let held: Vec<String> = report.held.iter().filter(|held| held.holds_up()).map(held_line).collect();
    let done = match report.done {
        0 => "nothing could be done".to_owned(),
        done => format!("{} done", view::count(done, "step")),
    };
    Problem::held(format!(
        "{name} is not {end}: {done}, {} held",
        view::count(held.len(), "thing")
    ))
    .because(held)
    .help("when that has passed or is mended, run the same again: it goes on from here")
}

fn held_line(held: &Held) -> String {
    format!("{} of {}: {}", held.what, held.subject, held.reason)
}

/// The last words of a run that went well: how it is, how long it took, what next.
pub fn settled(session: &Session, report: &Report, took: Duration) -> String {
    let spec = session.spec();
    let ready = report
        .nodes
        .as_ref()
        .map_or(0, |nodes| nodes.nodes.values().filter(|node| node.ready).count());
    let wanted = spec.machines.len();
    let nodes = match spec.cni {
        mainstay_spec::Cni::Flannel | mainstay_spec::Cni::Canal | mainstay_spec::Cni::Cilium => {
            format!("{ready} of {} ready", view::count(wanted, "node"))
        }
        mainstay_spec::Cni::None => format!(
            "{}, not ready by choice: `cni: none` leaves the network to you",
            view::count(wanted, "node")
        ),
    };
    let steps = if report.done == 0 {
        "Nothing had to be done".to_owned()
    } else {
        format!("{} in {}", view::count(report.done, "step"), view::clock(took))
    };
    let mut text = format!("{} is settled: {nodes}. {steps}.", spec.name);
    for held in &report.held {
        text.push_str(&format!("\nkept as it is: {}", held_line(held)));
    }
    let file = if session.file.as_os_str() == "cluster.yaml" {
        String::new()
    } else {
        format!("-f {} ", session.file.display())
    };
    text.push_str(&format!("\nNext: mainstay {file}kubeconfig --merge && kubectl get nodes"));
    text
}
