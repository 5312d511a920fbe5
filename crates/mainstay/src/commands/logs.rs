//! `logs`: the kept runs of a cluster.

use crate::args::LogsArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::run_log::{KeptRun, kept_runs};
use crate::session::Session;
use crate::view::{self, EventReader, JsonView, PlainView};
use crate::wire::{ReportEvent, WireEvent};

pub fn run(session: &Session, args: &LogsArgs, output: Output) -> Result<(), CommandError> {
    let folder = session.process_env.runs();
    let unreadable = |error: std::io::Error| CommandError::unreadable(&folder, &error);
    let runs = kept_runs(&folder, session.spec().name.as_str(), session.datacenter()).map_err(unreadable)?;
    let number = args.number.or(args.last.then_some(1));
    let Some(number) = number else {
        return list(&runs, output).map_err(unreadable);
    };
    let kept = usize::try_from(number)
        .ok()
        .and_then(|number| runs.get(number - 1))
        .ok_or_else(|| {
            CommandError::usage(format!("there is no run {number}"))
                .why(format!("{} of this cluster are kept", view::count(runs.len(), "run")))
                .help("`mainstay logs` lists them")
        })?;
    replay(kept, output).map_err(unreadable)
}

/// In the views of a running run. A finished run is read, not watched, so it is shown as plain lines on terminals too.
fn replay(run: &KeptRun, output: Output) -> std::io::Result<()> {
    let mut reader: Box<dyn EventReader> = if output.json {
        Box::new(JsonView::new(output))
    } else {
        Box::new(PlainView::new(output))
    };
    run.lines()?.iter().for_each(|line| reader.line(line));
    Ok(())
}

fn list(runs: &[KeptRun], output: Output) -> std::io::Result<()> {
    for (number, run) in runs.iter().enumerate() {
        if output.json {
            run.lines()?.iter().take(1).for_each(|line| output.print(line.to_json()));
            continue;
        }
        let report = run.lines()?.into_iter().rev().find_map(|line| match line.event {
            WireEvent::Report(report) => Some(report),
            _ => None,
        });
        let header = &run.header;
        output.print(format!(
            "{:>3}  {}  {:<5} {}",
            number + 1,
            header.started,
            header.command,
            result(report)
        ));
    }
    if !output.json {
        output.status(if runs.is_empty() {
            "No runs of this cluster are kept."
        } else {
            "To see one: mainstay logs N"
        });
    }
    Ok(())
}

fn result(report: Option<ReportEvent>) -> String {
    match report {
        // Killed, or still running.
        None => "no end was recorded".to_owned(),
        Some(report) if report.settled => format!("done, {}", view::count(report.done, "step")),
        Some(report) => format!("exit {}, {} done", report.exit, view::count(report.done, "step")),
    }
}
