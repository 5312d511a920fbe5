//! `up`: from cluster.yaml to Ready nodes.

mod secrets;

use std::collections::BTreeSet;
use std::time::Duration;

use mainstay_engine::{EventSink, Run, RunGoal, RunReport};
use mainstay_plan::Held;
use mainstay_plan::addon::wanted::{AddonRequests, chart_wishes};
use mainstay_spec::report::{self, Paint};
use tokio_util::sync::CancellationToken;

use crate::args::UpArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::run::{Prompt, file_flag, log_name, run_with_views};
use crate::run_log::RunLog;
use crate::session::Session;
use crate::view;
use crate::wire::{self, EventLine};

pub async fn run(session: &Session, args: &UpArgs, output: Output) -> Result<(), CommandError> {
    warnings(session, output);
    session.check_jump_host().await?;
    let (secrets, mut pending) = secrets::open_or_make(session, output).await?;
    let run = Run {
        spec: session.spec(),
        clients: &session.clients(Some(&secrets), &EventSink::discard())?,
        secrets: Some(&secrets),
        goal: RunGoal::Up,
        holder: session.process_env.holder.clone(),
        despite_lease: args.take_lease,
        with_disks: args.with_disk.iter().cloned().collect(),
        policy: args.turns.policy(),
        addons: requests(session, args)?,
        events: EventSink::discard(),
        stop: CancellationToken::new(),
    };
    let log = RunLog::new(
        &session.process_env.runs(),
        secrets.id(),
        log_name(session.env.wall.now()),
        pending.is_some(),
        output,
    );
    let prompt = Prompt {
        yes: args.yes,
        question: "Apply this plan? [y/N]".into(),
        accepts: &|line| line.eq_ignore_ascii_case("y") || line.eq_ignore_ascii_case("yes"),
        help: "pass --yes to apply the plan without asking".into(),
        // The secrets are written after the yes, and before any machine that needs them exists.
        approved: &mut || {
            pending
                .take()
                .map_or(Ok(()), |pending| pending.write(&secrets, session, output))
        },
    };
    let mut ended = run_with_views(session, "up", run, log, prompt, output).await;
    let outcome = std::mem::replace(&mut ended.outcome, Err(CommandError::ExitOnly(0)));
    let result = outcome.and_then(|report| closing(session, &report, ended.took));
    ended.close(result)
}

/// What is asked for about single add-ons: each must be in the file.
fn requests(session: &Session, args: &UpArgs) -> Result<AddonRequests, CommandError> {
    let known: BTreeSet<String> = chart_wishes(session.spec()).into_iter().map(|wish| wish.name).collect();
    for name in args.take.iter().chain(&args.retry) {
        if !known.contains(name) {
            let names: Vec<&str> = known.iter().map(String::as_str).collect();
            return Err(
                CommandError::new(format!("the cluster file has no add-on `{name}`")).why(match names.as_slice() {
                    [] => "it has no add-ons.".to_owned(),
                    names => format!("it has {}.", names.join(", ")),
                }),
            );
        }
    }
    Ok(AddonRequests {
        take: args.take.iter().cloned().collect(),
        retry: args.retry.iter().cloned().collect(),
    })
}

/// Shows the warnings about a file that can be used all the same.
pub fn warnings(session: &Session, output: Output) {
    let checked = &session.checked;
    if output.json {
        for warning in wire::diagnostics(&checked.source, &checked.warnings) {
            output.print(EventLine::untimed(warning).to_json());
        }
    } else if !checked.warnings.is_empty() {
        let paint = if output.color_err { Paint::Colour } else { Paint::Plain };
        output.status(report::terminal(&checked.source, &checked.warnings, paint).trim_end());
    }
}

/// The last lines of a run that did all it could.
fn closing(session: &Session, report: &RunReport, took: Duration) -> Result<Vec<String>, CommandError> {
    if report.is_settled() {
        Ok(settled(session, report, took))
    } else {
        Err(held_up(session.spec().name.as_str(), "settled", report))
    }
}

/// Everything else is done; what is held waits for something outside of mainstay.
pub fn held_up(name: &str, end: &str, report: &RunReport) -> CommandError {
    let held: Vec<String> = report.held.iter().filter(|held| held.blocks()).map(held_line).collect();
    let done = match report.done {
        0 => "no step could be done".to_owned(),
        done => format!("{} done", view::count(done, "step")),
    };
    CommandError::held(format!(
        "{name} is not {end}: {done}, {} held",
        view::count(held.len(), "thing")
    ))
    .because(held)
    .help("fix the cause or wait, then run the same command again; it continues from here")
}

pub fn held_line(held: &Held) -> String {
    format!("{} of {}: {}", held.what, held.subject, held.reason)
}

/// The result, what is kept as it is, and the next useful command.
fn settled(session: &Session, report: &RunReport, took: Duration) -> Vec<String> {
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
            "{}, not ready because of `cni: none`: install a network plugin",
            view::count(wanted, "node")
        ),
    };
    let steps = if report.done == 0 {
        "Nothing to do".to_owned()
    } else {
        format!("{} in {}", view::count(report.done, "step"), view::clock(took))
    };
    let mut lines = vec![format!("{} is settled: {nodes}. {steps}.", spec.name)];
    lines.extend(report.held.iter().map(|held| format!("unchanged: {}", held_line(held))));
    let file = file_flag(&session.file.display().to_string());
    lines.push(format!("Next: mainstay {file}kubeconfig --merge && kubectl get nodes"));
    lines
}
