//! One run of `up` or `down`: events to every reader, the approval prompt, signals, and the report at the end.

use std::io::{BufRead, Write};
use std::time::Duration;

use jiff::Timestamp;
use mainstay_engine::{ApprovalRequest, EventRecord, EventSink, Run, RunError, RunReport, converge};
use mainstay_plan::{Observed, Plan};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::error::CommandError;
use crate::exit;
use crate::output::Output;
use crate::run_log::RunLog;
use crate::session::Session;
use crate::signals::Signals;
use crate::view::EventReader;
use crate::view::plan_page::PlanPage;
use crate::wire::{EventEncoder, EventLine, NodeCounts, ReportEvent, RunHeader, WireEvent};

/// How often views are redrawn while nothing happens.
const TICK: Duration = Duration::from_millis(250);

/// How the plan of a run is approved.
pub struct Prompt<'a> {
    /// Approve without asking: `--yes`.
    pub yes: bool,
    pub question: String,
    /// Whether this line of input is a yes.
    pub accepts: &'a dyn Fn(&str) -> bool,
    /// What to do where there is no terminal to ask on.
    pub help: String,
    /// Called after the yes and before the first step. An error ends the run.
    pub approved: &'a mut dyn FnMut() -> Result<(), CommandError>,
}

/// Every reader of one event stream.
pub struct Readers(Vec<Box<dyn EventReader>>);

impl Readers {
    pub fn new(readers: Vec<Box<dyn EventReader>>) -> Self {
        Self(readers)
    }

    pub fn line(&mut self, line: &EventLine) {
        self.0.iter_mut().for_each(|reader| reader.line(line));
    }

    pub fn tick(&mut self, now: Duration) {
        self.0.iter_mut().for_each(|reader| reader.tick(now));
    }

    pub fn finish(&mut self) {
        self.0.iter_mut().for_each(|reader| reader.finish());
    }
}

/// A run that has ended, before its report is written.
pub struct EndedRun {
    pub outcome: Result<RunReport, CommandError>,
    pub took: Duration,
    pub report: ReportEvent,
    readers: Readers,
    file: String,
}

/// Runs until the engine is done. The first Ctrl-C starts no new step and waits for the running ones, the second leaves at once.
pub async fn run_with_views(
    session: &Session,
    command: &str,
    mut run: Run<'_>,
    log: RunLog,
    mut prompt: Prompt<'_>,
    output: Output,
) -> EndedRun {
    let (sender, mut events) = mpsc::unbounded_channel::<EventRecord>();
    run.events = EventSink::new(move |record| drop(sender.send(record)));
    let (ask, mut requests) = mpsc::unbounded_channel();
    let mut encoder = EventEncoder::new(prompt.question.clone(), session.spec());
    let mut readers = Readers::new(vec![crate::view::reader(output), Box::new(log)]);
    readers.line(&EventLine::at(Duration::ZERO, header(session, command)));
    let mut signals = Signals::listen();
    let mut question: Option<OpenQuestion> = None;
    let mut refused = None;
    let began = Instant::now();
    let mut handler = |request| drop(ask.send(request));
    let mut work = std::pin::pin!(converge(&run, &mut handler));
    let outcome = loop {
        tokio::select! {
            biased;
            Some(record) = events.recv() => readers.line(&encoder.encode(&record)),
            Some(request) = requests.recv() => match prompt.open(request, session, output) {
                Ok(open) => question = open,
                Err(error) => refused = Some(error),
            },
            answer = answered(&mut question) => {
                refused = prompt.answer(answer);
                question = None;
            }
            outcome = &mut work => break outcome,
            () = signals.next() => {
                // The terminal shows `^C` on the line of the question; what follows begins on a line of its own.
                if question.is_some() {
                    output.status("");
                }
                if run.stop.is_cancelled() {
                    break Err(RunError::Aborted);
                }
                run.stop.cancel();
            }
            // A view that redraws itself would overwrite an open question.
            () = tokio::time::sleep(TICK), if question.is_none() => readers.tick(began.elapsed()),
        }
    };
    while let Ok(record) = events.try_recv() {
        readers.line(&encoder.encode(&record));
    }
    let took = began.elapsed();
    let report = report(outcome.as_ref(), session.spec().machines.len());
    let outcome = match refused {
        Some(error) => Err(error),
        None => outcome.map_err(CommandError::from),
    };
    let file = session.file.display().to_string();
    EndedRun {
        outcome,
        took,
        report,
        readers,
        file,
    }
}

impl EndedRun {
    /// Writes errors and the report to every reader. What is left for the caller is the exit code.
    pub fn close(mut self, result: Result<Vec<String>, CommandError>) -> Result<(), CommandError> {
        let code = result.as_ref().map_or_else(exit::code, |_| 0);
        if let Err(error) = &result {
            for error in error.events(&self.file) {
                self.readers.line(&EventLine::at(self.took, WireEvent::Error(error)));
            }
        }
        self.report.settled = result.is_ok();
        self.report.exit = code;
        let unfinished = matches!(&result, Err(CommandError::Run(error)) if is_unfinished(error)) || code == exit::HELD;
        self.report.summary.extend(result.unwrap_or_default());
        if unfinished {
            let file = file_flag(&self.file);
            self.report
                .summary
                .push(format!("Every step, wait and error of this run: mainstay {file}logs --last"));
        }
        self.readers.line(&EventLine::at(self.took, WireEvent::Report(self.report)));
        self.readers.finish();
        if code == 0 {
            Ok(())
        } else {
            Err(CommandError::ExitOnly(code))
        }
    }
}

fn header(session: &Session, command: &str) -> WireEvent {
    WireEvent::Run(RunHeader {
        command: command.to_owned(),
        cluster: session.spec().name.to_string(),
        datacenter: session.datacenter().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started: format!("{:.0}", session.env.wall.now()),
    })
}

/// Whether steps were begun whose log says more than the error.
fn is_unfinished(error: &RunError) -> bool {
    matches!(error, RunError::StepsFailed { .. } | RunError::NotSettled { .. })
}

/// The option that names a file other than the default, for commands to paste.
pub fn file_flag(file: &str) -> String {
    if file == "cluster.yaml" {
        String::new()
    } else {
        format!("-f {file} ")
    }
}

/// The report of a run, without the parts that depend on the command.
pub fn report(outcome: Result<&RunReport, &RunError>, wanted: usize) -> ReportEvent {
    match outcome {
        Ok(report) => ReportEvent {
            done: report.done,
            held: report.held.len(),
            nodes: report.nodes.as_ref().map(|kubernetes| NodeCounts {
                ready: kubernetes.nodes.values().filter(|node| node.ready).count(),
                wanted,
            }),
            ..ReportEvent::default()
        },
        Err(RunError::StepsFailed { done, .. }) => ReportEvent {
            done: *done,
            summary: vec![kept(*done)],
            ..ReportEvent::default()
        },
        Err(RunError::Stopped { done, .. }) => ReportEvent {
            done: *done,
            ..ReportEvent::default()
        },
        Err(_) => ReportEvent::default(),
    }
}

fn kept(done: usize) -> String {
    let verb = if done == 1 { "is" } else { "are" };
    let steps = crate::view::count(done, "step");
    format!("{steps} {verb} done and kept. Run the same command again to continue.")
}

/// A question that a person has not answered yet.
struct OpenQuestion {
    request: ApprovalRequest,
    answer: oneshot::Receiver<String>,
}

/// The answer to the open question, as soon as it is there.
async fn answered(question: &mut Option<OpenQuestion>) -> (ApprovalRequest, String) {
    let text = match question {
        Some(open) => (&mut open.answer).await.unwrap_or_default(),
        None => std::future::pending().await,
    };
    let open = question.take().expect("it was awaited above");
    (open.request, text)
}

impl Prompt<'_> {
    /// Shows the plan and asks. `Ok(None)`: nothing is left to wait for.
    fn open(
        &mut self,
        request: ApprovalRequest,
        session: &Session,
        output: Output,
    ) -> Result<Option<OpenQuestion>, CommandError> {
        if !output.json {
            output.status(plan_text(&request.plan, &request.observed, session, output));
        }
        if self.yes {
            (self.approved)()?;
            request.approve();
            return Ok(None);
        }
        if !output.can_ask() {
            return Err(CommandError::refused("cannot ask for confirmation: stdin is not a terminal")
                .help(&self.help)
                .help("nothing was changed"));
        }
        let answer = read_line(&self.question);
        Ok(Some(OpenQuestion { request, answer }))
    }

    /// An error ends the run: the request is dropped, which declines it.
    fn answer(&mut self, (request, text): (ApprovalRequest, String)) -> Option<CommandError> {
        if !(self.accepts)(&text) {
            request.decline();
            return None;
        }
        if let Err(error) = (self.approved)() {
            return Some(error);
        }
        request.approve();
        None
    }
}

/// Reads one line from stdin on a thread of its own, so that signals and events are still handled. A thread of the runtime's pool would
/// not do: the runtime waits for those when it ends, and this one waits for a person.
pub fn read_line(question: &str) -> oneshot::Receiver<String> {
    let mut err = std::io::stderr().lock();
    let _ = write!(err, "{question} ").and_then(|()| err.flush());
    let (sender, answer) = oneshot::channel();
    std::thread::spawn(move || {
        let mut line = String::new();
        let _ = std::io::stdin().lock().read_line(&mut line);
        let _ = sender.send(line.trim().to_owned());
    });
    answer
}

/// The plan as a page, and with `-v` every step.
pub fn plan_text(plan: &Plan, observed: &Observed, session: &Session, output: Output) -> String {
    let width = terminal_size::terminal_size().map_or(100, |(width, _)| usize::from(width.0));
    let file = session.file.display().to_string();
    let page = PlanPage {
        datacenter: session.datacenter(),
        hosts: observed.hosts.len(),
        file: &file,
        width,
    };
    let mut text = page.text(plan).trim_end().to_owned();
    if output.verbose {
        text.push_str(&format!("\n\n{}", plan.trace()));
    }
    text
}

/// The name of a new run log: it sorts by time.
pub fn log_name(started: Timestamp) -> String {
    started.strftime("%Y%m%dT%H%M%S%.3fZ").to_string()
}
