//! `logs`: the kept runs of a cluster.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::args::LogsArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::run_log::{KeptRun, kept_runs};
use crate::session::Session;
use crate::view;
use crate::wire::{EventLine, ReportEvent, WireEvent};

/// How long a run is shown on a terminal, unless another speed is asked for.
const SHOWN_FOR: Duration = Duration::from_secs(10);
/// The time between two frames.
const FRAME: Duration = Duration::from_millis(100);

pub async fn run(session: &Session, args: &LogsArgs, output: Output) -> Result<(), CommandError> {
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
    replay(&kept.lines().map_err(unreadable)?, args.speed, output).await;
    Ok(())
}

/// In the view of a running run. Where that is drawn on a terminal, time passes as it did, only faster.
async fn replay(lines: &[EventLine], speed: Option<f64>, output: Output) {
    let mut reader = view::reader(output);
    let took = lines.iter().map(EventLine::time).max().unwrap_or_default();
    let speed = speed.unwrap_or_else(|| took.div_duration_f64(SHOWN_FOR).max(1.0));
    let began = Instant::now();
    for line in lines {
        loop {
            let left = line.time().saturating_sub(began.elapsed().mul_f64(speed));
            if !output.live || left.is_zero() {
                break;
            }
            sleep(left.div_f64(speed).min(FRAME)).await;
            reader.tick(began.elapsed().mul_f64(speed).min(line.time()));
        }
        reader.line(line);
    }
    reader.finish();
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
