//! A problem as people read it: what, where, why, what to do, and what state the world is in.

use anstyle::{AnsiColor, Style};
use mainstay_engine::{Failure, RunError};
use mainstay_plan::{Plan, Refusal};
use mainstay_spec::Diagnostics;
use mainstay_spec::report::{self, Paint};
use serde_json::{Value, json};

use crate::output::Output;
use crate::problem::{Plain, Problem};

/// Tells a problem on stderr, or as objects on stdout.
pub fn tell(output: Output, problem: &Problem, file: &str) {
    if output.json {
        objects(problem, file).iter().for_each(|object| output.object(object));
        return;
    }
    match problem {
        Problem::Spec(faults) => output.tell(spec(output, faults).trim_end()),
        Problem::Plain(plain) => output.tell(plainly(output, plain)),
        Problem::Run(error) => run(output, error, file),
        Problem::Said(_) => {}
    }
}

fn spec(output: Output, faults: &Diagnostics) -> String {
    report::terminal(
        &faults.source,
        &faults.faults,
        if output.color_err { Paint::Colour } else { Paint::Plain },
    )
}

fn plainly(output: Output, plain: &Plain) -> String {
    let mut text = Text::new(output, &plain.what);
    text.field("why", plain.why.iter().chain(&plain.causes));
    text.field("help", &plain.help);
    text.done()
}

fn run(output: Output, error: &RunError, file: &str) {
    match error {
        RunError::Blind(failure) => output.tell(failed(output, failure, None, &[])),
        RunError::Refused(plan) => plan
            .refusals
            .iter()
            .for_each(|refusal| output.tell(refused(output, refusal, file))),
        RunError::Lacking(missing) => {
            let mut text = Text::new(output, "the token may not do all that this file asks for");
            text.field("why", missing.iter().map(crate::commands::lack));
            text.field("help", ["`mainstay grant` prints the role and the ACL lines; `mainstay doctor` those that are missing. Nothing was changed."]);
            output.tell(text.done());
        }
        RunError::Leased(lease) => {
            let mut text = Text::new(output, &format!("{} is at work on this cluster", lease.who));
            text.field(
                "why",
                [format!(
                    "the lease was taken at {:.0} and holds until {:.0}; it is renewed while that run goes on",
                    lease.since, lease.until
                )],
            );
            text.field(
                "help",
                ["wait for that run to end, or, if you know that it is dead: add --take-lease"],
            );
            output.tell(text.done());
        }
        RunError::NotApproved(_) => output.tell("Nothing was changed."),
        RunError::Failed {
            plan,
            failed: steps,
            done,
        } => {
            for (id, failure) in steps {
                let at = plan.step(*id).map(|step| {
                    (
                        format!("step {id} of {}, {} {}", plan.steps.len(), step.action.name(), step.subject),
                        step.at.map(|at| at.line),
                    )
                });
                let place = at.as_ref().and_then(|(_, line)| line.map(|line| format!("{file}:{line}")));
                output.tell(failed(
                    output,
                    failure,
                    place,
                    at.iter().map(|(at, _)| at.clone()).collect::<Vec<_>>().as_slice(),
                ));
            }
            let kept = if *done == 1 { "is" } else { "are" };
            output.tell(format!(
                "{} {kept} done and kept: the same command goes on from here.",
                crate::view::count(*done, "step")
            ));
        }
        RunError::Stopped { done, left } => output.tell(stopped(*done, *left)),
        RunError::Left => {
            output.tell("Left at once. What was begun goes on in Proxmox VE; the same command finds it and goes on from there.");
        }
        RunError::Unsound(rules) => {
            let mut text = Text::new(
                output,
                "mainstay made a plan that breaks its own rules, and did not carry it out",
            );
            text.field("why", rules);
            text.field(
                "help",
                ["this is a bug of mainstay: please report it with the output of `mainstay plan -v`"],
            );
            output.tell(text.done());
        }
        RunError::NotSettled { rounds } => output.tell(format!(
            "error: not settled after {rounds} rounds; `mainstay plan -v` shows what is left"
        )),
    }
}

fn stopped(done: usize, left: usize) -> String {
    let left = match left {
        0 => String::new(),
        left => format!(", {left} not begun"),
    };
    let done = crate::view::count(done, "step");
    format!("Stopped after {done}{left}. Nothing runs on; the same command goes on from here.")
}

fn failed(output: Output, failure: &Failure, place: Option<String>, at: &[String]) -> String {
    let mut text = Text::new(output, &failure.what);
    text.place(place);
    text.field("at", at);
    text.field(
        "why",
        failure
            .why
            .iter()
            .cloned()
            .chain(failure.causes().into_iter().filter(|cause| *cause != failure.what)),
    );
    text.field("help", &failure.help);
    text.done()
}

fn refused(output: Output, refusal: &Refusal, file: &str) -> String {
    let mut text = Text::new(output, &refusal.what);
    text.place(refusal.at.map(|at| format!("{file}:{}", at.line)));
    text.field("why", [&refusal.why].into_iter().filter(|why| !why.is_empty()));
    text.field("help", &refusal.help);
    text.done()
}

/// The form that all problems have.
struct Text {
    lines: Vec<String>,
    color: bool,
}

impl Text {
    fn new(output: Output, what: &str) -> Self {
        let style = AnsiColor::Red.on_default().bold();
        let head = if output.color_err {
            format!("{style}error:{style:#} {what}")
        } else {
            format!("error: {what}")
        };
        Self {
            lines: vec![head],
            color: output.color_err,
        }
    }

    fn place(&mut self, place: Option<String>) {
        self.lines.extend(place.map(|place| format!("  --> {place}")));
    }

    fn field<T: AsRef<str>>(&mut self, name: &str, texts: impl IntoIterator<Item = T>) {
        for (number, text) in texts.into_iter().enumerate() {
            let label = if number == 0 { format!("{name}:") } else { String::new() };
            let style = if self.color { Style::new().bold() } else { Style::new() };
            for (line, part) in text.as_ref().lines().enumerate() {
                let label = if line == 0 { label.as_str() } else { "" };
                self.lines.push(format!("  {style}{label:<5}{style:#} {part}"));
            }
        }
    }

    fn done(self) -> String {
        self.lines.join("\n")
    }
}

fn objects(problem: &Problem, file: &str) -> Vec<Value> {
    match problem {
        Problem::Spec(faults) => report::json(&faults.source, &faults.faults),
        Problem::Plain(plain) => {
            let why: Vec<&String> = plain.why.iter().chain(&plain.causes).collect();
            let kind = if plain.exit == 2 { "usage" } else { plain.kind.as_str() };
            vec![json!({"v": 1, "type": "error", "kind": kind, "summary": plain.what, "why": why, "help": plain.help})]
        }
        Problem::Run(error) => run_objects(error, file),
        Problem::Said(_) => Vec::new(),
    }
}

fn run_objects(error: &RunError, file: &str) -> Vec<Value> {
    let one = |failure: &Failure, step: Option<&mainstay_plan::Step>| {
        let why: Vec<String> = failure.why.iter().cloned().chain(failure.causes()).collect();
        json!({"v": 1, "type": "error", "kind": failure.kind.as_str(), "summary": failure.what, "id": step.map(|step| step.id.0), "on": step.map(|step| step.subject.to_string()), "file": file, "line": step.and_then(|step| step.at).map(|at| at.line), "why": why, "help": failure.help})
    };
    match error {
        RunError::Blind(failure) => vec![one(failure, None)],
        RunError::Failed { plan, failed, .. } => failed.iter().map(|(id, failure)| one(failure, plan.step(*id))).collect(),
        RunError::Refused(plan) => plan
            .refusals
            .iter()
            .map(|refusal| refusal_object(plan, refusal, file))
            .collect(),
        RunError::Lacking(missing) => vec![
            json!({"v": 1, "type": "error", "kind": "denied", "summary": "the token may not do all that this file asks for", "why": missing.iter().map(crate::commands::lack).collect::<Vec<_>>()}),
        ],
        RunError::Leased(lease) => vec![
            json!({"v": 1, "type": "error", "kind": "refused", "summary": format!("{} is at work on this cluster", lease.who), "until": lease.until.to_string()}),
        ],
        RunError::NotApproved(_) => vec![
            json!({"v": 1, "type": "error", "kind": "refused", "summary": "not approved", "help": ["say --yes where nobody can be asked"]}),
        ],
        RunError::Stopped { left, .. } => {
            vec![json!({"v": 1, "type": "error", "kind": "interrupted", "summary": "stopped", "left": left})]
        }
        RunError::Left => {
            vec![
                json!({"v": 1, "type": "error", "kind": "interrupted", "summary": "left at once; what was begun goes on in Proxmox VE"}),
            ]
        }
        RunError::Unsound(rules) => {
            vec![json!({"v": 1, "type": "error", "kind": "bug", "summary": "a plan that breaks our own rules", "why": rules})]
        }
        RunError::NotSettled { rounds } => {
            vec![json!({"v": 1, "type": "error", "kind": "unsettled", "summary": format!("not settled after {rounds} rounds")})]
        }
    }
}

fn refusal_object(plan: &Plan, refusal: &Refusal, file: &str) -> Value {
    json!({"v": 1, "type": "error", "kind": if refusal.kind.exit_code() == 4 { "refused" } else { "conflict" }, "cluster": plan.cluster, "summary": refusal.what, "on": refusal.subject.to_string(), "file": file, "line": refusal.at.map(|at| at.line), "why": refusal.why, "help": refusal.help})
}
