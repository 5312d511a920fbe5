//! `up`: from cluster.yaml to Ready nodes.

use std::io::{BufRead, Write};
use std::time::Duration;

use mainstay_engine::{Events, Report, Run, RunError, Told, Wanted, converge, derive};
use mainstay_plan::{Observed, Page, Plan};
use sops_file::Identity;
use talos_config::{Secrets, ServiceAccountKey};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::args::Up;
use crate::output::Output;
use crate::problem::Problem;
use crate::session::Session;
use crate::view::{self, View};

/// How often a view is redrawn while nothing happens.
const TICK: Duration = Duration::from_millis(250);

pub async fn run(session: &Session, args: &Up, output: Output) -> Result<(), Problem> {
    warnings(session, output);
    let secrets = secrets(session, output).await?;
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
    let ask = |plan: &Plan, seen: &Observed| approve(plan, seen, session, args.yes, output);
    let began = Instant::now();
    let outcome = watched(wanted, ask, output).await;
    finish(session, outcome, began.elapsed(), output)
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

/// The secrets of the cluster. They are made once, before the first request, and never again.
async fn secrets(session: &Session, output: Output) -> Result<Secrets, Problem> {
    let file = session.secrets_file()?;
    if let Some(secrets) = file.load()? {
        return Ok(secrets);
    }
    refuse_if_cluster_exists(session).await?;
    let mut identities = session.identities()?;
    let mut readers = session.readers(&identities)?;
    if readers.recipients.is_empty() {
        identities.push(new_identity(session, output)?);
        readers = session.readers(&identities)?;
    }
    output.tell("making the cluster's secrets (a key of 4096 bits takes a few seconds)");
    let entropy = session.env.entropy.fork("service account key");
    let key = tokio::task::spawn_blocking(move || ServiceAccountKey::rsa4096(&mut entropy.rng())).await;
    let key = key.map_err(|error| Problem::plain("the service account key could not be made").caused_by(error))?;
    let key = key.map_err(|error| Problem::plain("the service account key could not be made").caused_by(error))?;
    let versions = derive::versions(session.spec(), None, None)?;
    let secrets = file.mint(
        &session.env,
        talos_config::versions::Contract::of(&versions.talos),
        key,
        &readers,
    )?;
    output.tell(format!(
        "wrote {}, encrypted for {}; keep it in git",
        file.path().display(),
        view::count(readers.recipients.len(), "age key")
    ));
    Ok(secrets)
}

/// Machines of this name without the secrets: a fresh set of secrets could never open them.
async fn refuse_if_cluster_exists(session: &Session) -> Result<(), Problem> {
    use pve_api::cluster::{Resource, ResourceKind, resources};
    let name = session.spec().name.as_str();
    let guests = session.pve()?.call(resources(Some(ResourceKind::Vm))).await?;
    let tagged = guests.into_iter().filter_map(|resource| {
        if let Resource::Guest(guest) = resource {
            Some(guest)
        } else {
            None
        }
    });
    let pve = session.pve()?;
    for guest in tagged.filter(|guest| guest.tags.contains(mainstay_plan::TAG)) {
        let config = pve.call(pve_api::qemu::config(&guest.host, guest.vmid)).await?;
        let mark = config
            .description
            .as_ref()
            .and_then(|text| mainstay_plan::Mark::parse(text.as_str()));
        if let Some(mark) = mark.filter(|mark| mark.cluster == name) {
            let path = mainstay_engine::SecretsFile::beside(&session.file);
            return Err(
                Problem::refused(format!("the cluster {name} exists, but its secrets are not here"))
                    .why(format!(
                        "VM {} on {} is its machine {}, and {} is missing",
                        guest.vmid,
                        guest.host,
                        mark.machine,
                        path.display()
                    ))
                    .help("take the secrets file from git or from your backup; new secrets could never open these machines")
                    .help("if the machines are to go: delete their VMs in Proxmox VE, or name another cluster"),
            );
        }
    }
    Ok(())
}

/// The first key of somebody who has none, at the place where sops looks for it.
fn new_identity(session: &Session, output: Output) -> Result<Identity, Problem> {
    let path = session.around.default_age_keys();
    let identity = Identity::generate();
    let text = identity.to_file(session.env.wall.now());
    session
        .disk
        .create(&path, text.as_bytes())
        .map_err(|error| Problem::plain(format!("{} cannot be written", path.display())).caused_by(error))?;
    output.tell(format!(
        "made an age key at {}: back it up, without it nobody can open this cluster's secrets",
        path.display()
    ));
    output.tell(format!("  its public half is {}", identity.recipient()));
    Ok(identity)
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
    let began = Instant::now();
    let mut work = std::pin::pin!(converge(&run, &mut ask));
    let outcome = loop {
        tokio::select! {
            biased;
            Some(told) = told.recv() => view.show(&told),
            outcome = &mut work => break outcome,
            _ = tokio::signal::ctrl_c() => {
                if stop.is_cancelled() {
                    output.tell("left at once; what was begun goes on in Proxmox VE, and `mainstay up` finds it");
                    break Err(RunError::Stopped { done: 0, left: 0 });
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
    question(&format!("{}.  Go ahead? [y/N] ", view::summary(plan))).eq_ignore_ascii_case("y")
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
    if !output.json {
        output.tell(settled(session, &report, took));
    }
    Ok(())
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
        mainstay_spec::Cni::Flannel => format!("{ready} of {} ready", view::count(wanted, "node")),
        mainstay_spec::Cni::None => format!(
            "{}, not ready by choice: `cni: none` leaves the network to you",
            view::count(wanted, "node")
        ),
    };
    let steps = if report.done == 0 {
        "nothing to do".to_owned()
    } else {
        format!("{} in {}", view::count(report.done, "step"), view::clock(took))
    };
    let mut text = format!("{} is settled: {nodes}. {steps}.", spec.name);
    for held in &report.held {
        text.push_str(&format!("\nheld: {} of {}: {}", held.what, held.subject, held.reason));
    }
    let file = if session.file.as_os_str() == "cluster.yaml" {
        String::new()
    } else {
        format!("-f {} ", session.file.display())
    };
    text.push_str(&format!("\nNext: mainstay {file}kubeconfig --merge && kubectl get nodes"));
    text
}
