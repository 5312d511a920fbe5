//! `doctor` and `grant`: checks of everything that `up` needs, and the privileges as commands to paste.

use mainstay_engine::{
    EventSink, ObserveScope, PlannedRound, Run, RunError, RunGoal, check_image_source, observe, observe_and_plan, preflight,
    pve_version,
};
use mainstay_plan::{ClusterSecrets, Observed, RefusalKind, Versions, derive};
use pve_api::PveVersion;
use tokio_util::sync::CancellationToken;

use crate::args::GrantArgs;
use crate::error::CommandError;
use crate::exit;
use crate::output::Output;
use crate::session::Session;

/// One check and its result.
struct DoctorCheck {
    name: &'static str,
    fault: Option<String>,
    detail: String,
    help: Vec<String>,
}

impl DoctorCheck {
    fn fine(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            fault: None,
            detail: detail.into(),
            help: Vec::new(),
        }
    }

    fn failing(name: &'static str, fault: impl Into<String>, help: Vec<String>) -> Self {
        Self {
            name,
            fault: Some(fault.into()),
            detail: String::new(),
            help,
        }
    }
}

pub async fn run(session: &Session, output: Output) -> Result<(), CommandError> {
    let mut checks = vec![DoctorCheck::fine("file", format!("{} is valid", session.file.display()))];
    let jump = jump_check(session).await;
    let reached = jump.as_ref().is_none_or(|jump| jump.fault.is_none());
    checks.extend(jump);
    checks.push(secrets_check(session));
    let secrets = session.secrets().ok().flatten();
    let site = session.clients(secrets.as_ref(), &EventSink::discard())?;
    let scope = ObserveScope::of(session.spec(), secrets.as_ref().map(ClusterSecrets::id));
    let mut versions = derive::versions(session.spec(), None, None)?;
    match observe(&site, &scope).await {
        Err(failure) => checks.push(DoctorCheck::failing(
            "proxmox",
            failure.what.clone(),
            failure.causes().into_iter().chain(failure.help).collect(),
        )),
        Ok(sight) => {
            let observed = &sight.observed;
            versions = derive::versions(session.spec(), Some(observed), secrets.as_ref())?;
            checks.push(DoctorCheck::fine(
                "proxmox",
                format!(
                    "{} answers with version {}",
                    session.spec().datacenter.endpoint.host_str().unwrap_or("?"),
                    observed.pve
                ),
            ));
            let missing = preflight::missing(session.spec(), observed, pve_version(&observed.pve), &sight.permissions);
            checks.push(rights_check(session, observed, &missing)?);
            let run = Run {
                spec: session.spec(),
                clients: &site,
                secrets: secrets.as_ref(),
                goal: RunGoal::Up,
                holder: session.process_env.holder.clone(),
                despite_lease: true,
                with_disks: std::collections::BTreeSet::new(),
                policy: mainstay_plan::TurnPolicy::default(),
                addons: mainstay_plan::addon::wanted::AddonRequests::default(),
                events: EventSink::discard(),
                stop: CancellationToken::new(),
            };
            checks.extend(plan_checks(observe_and_plan(&run).await, reached));
        }
    }
    checks.push(factory_check(session, &site, &versions).await);
    show(&checks, output);
    if checks.iter().all(|check| check.fault.is_none()) {
        Ok(())
    } else {
        Err(CommandError::ExitOnly(exit::UNHEALTHY))
    }
}

/// Login and forwarding of the jump host, if there is one.
async fn jump_check(session: &Session) -> Option<DoctorCheck> {
    let jump = session.spec().datacenter.jump.as_ref()?;
    Some(match session.check_jump_host().await {
        Ok(()) => DoctorCheck::fine("jump", format!("{jump} accepts the login and forwards")),
        Err(failure) => DoctorCheck::failing("jump", failure.what, failure.why.into_iter().chain(failure.help).collect()),
    })
}

fn secrets_check(session: &Session) -> DoctorCheck {
    match session.secrets() {
        Ok(Some(_)) => DoctorCheck::fine("secrets", "can be decrypted"),
        Ok(None) => DoctorCheck::fine("secrets", "not created yet; `mainstay up` creates them"),
        Err(CommandError::Message(plain)) => DoctorCheck::failing(
            "secrets",
            plain.what.clone(),
            plain.causes.iter().chain(&plain.help).cloned().collect(),
        ),
        Err(_) => DoctorCheck::failing("secrets", "cannot read them", Vec::new()),
    }
}

fn rights_check(
    session: &Session,
    observed: &Observed,
    missing: &[pve_api::privileges::Grant],
) -> Result<DoctorCheck, CommandError> {
    let login = session.login()?;
    if missing.is_empty() {
        return Ok(DoctorCheck::fine(
            "rights",
            format!("{} has all privileges that this file needs", login.principal()),
        ));
    }
    let lacks = missing.iter().map(crate::text::format_grant);
    let all = preflight::grants(session.spec(), Some(observed), pve_version(&observed.pve));
    let paths = missing.iter().map(|grant| grant.path.clone()).collect();
    let commands = preflight::commands(&all, Some(&paths), login.principal());
    Ok(DoctorCheck::failing(
        "rights",
        format!("{} lacks these privileges; the commands below grant them", login.principal()),
        lacks.chain(commands).collect(),
    ))
}

/// Every other reason to refuse is found by the planner: storages, capacity, bridges, foreign machines, versions.
///
/// Whether an address is free is known only if it could be dialled.
fn plan_checks(planned: Result<PlannedRound, RunError>, reached: bool) -> Vec<DoctorCheck> {
    let plan = match planned {
        Ok(round) => round.plan,
        // The check of privileges reports it.
        Err(RunError::MissingPrivileges(_)) => return Vec::new(),
        Err(RunError::ObserveFailed(failure)) => return vec![DoctorCheck::failing("plan", failure.what.clone(), failure.help)],
        Err(_) => return vec![DoctorCheck::failing("plan", "cannot make a plan", Vec::new())],
    };
    if plan.refusals.is_empty() {
        let held = plan.held.iter().filter(|held| held.blocks()).map(|held| {
            DoctorCheck::failing(
                "held",
                format!("{} of {}: {}", held.what, held.subject, held.reason),
                Vec::new(),
            )
        });
        let fits = if reached {
            "storages, capacity, bridges and addresses are suitable"
        } else {
            "storages, capacity and bridges are suitable; addresses could not be checked"
        };
        return std::iter::once(DoctorCheck::fine("datacenter", fits)).chain(held).collect();
    }
    let name = |kind: RefusalKind| match kind {
        RefusalKind::Conflict => "conflict",
        RefusalKind::Insufficient => "datacenter",
        RefusalKind::Gate => "gate",
    };
    plan.refusals
        .into_iter()
        .map(|refusal| DoctorCheck::failing(name(refusal.kind), format!("{}: {}", refusal.what, refusal.why), refusal.help))
        .collect()
}

async fn factory_check(session: &Session, site: &mainstay_engine::Clients, versions: &Versions) -> DoctorCheck {
    match check_image_source(&site.guests, session.spec(), versions).await {
        Ok(answer) => DoctorCheck::fine("factory", answer),
        Err(failure) => DoctorCheck::failing("factory", failure.to_string(), failure.help),
    }
}

fn show(checks: &[DoctorCheck], output: Output) {
    for check in checks {
        if output.json {
            output.print_json(&serde_json::json!({"v": 1, "type": "check", "name": check.name, "ok": check.fault.is_none(), "detail": check.fault.as_ref().unwrap_or(&check.detail), "help": check.help}));
            continue;
        }
        let verdict = if check.fault.is_none() { "ok" } else { "failing" };
        output.print(format!(
            "{:<11} {verdict:<8} {}",
            check.name,
            check.fault.as_ref().unwrap_or(&check.detail)
        ));
        check
            .help
            .iter()
            .flat_map(|text| text.lines())
            .for_each(|line| output.print(format!("                       {line}")));
    }
}

/// The role and the ACL commands, for this file and this version of Proxmox VE.
pub async fn grant(session: &Session, args: &GrantArgs, output: Output) -> Result<(), CommandError> {
    let given = args.pve.as_ref().map(|text| text.parse::<PveVersion>()).transpose();
    let given = given.map_err(|error| CommandError::usage("not a version of Proxmox VE").caused_by(error))?;
    let seen = look(session).await;
    let version = match (given, &seen) {
        (Some(version), _) => version,
        (None, Ok(observed)) => pve_version(&observed.pve),
        (None, Err(_)) => {
            output.status("cannot read Proxmox VE with this token; assuming version 9 (--pve 8.4 sets another)");
            PveVersion::new(9, 0)
        }
    };
    let observed = seen.as_ref().ok();
    let storage = &session.spec().datacenter.storage;
    if observed.is_none() && (storage.images.is_none() || storage.disks.is_none()) {
        output.status("the file names no storages and they cannot be listed: set `datacenter.storage`, or add the ACL commands for them yourself");
    }
    let grants = preflight::grants(session.spec(), observed, version);
    let user = args.to.split('!').next().unwrap_or(&args.to);
    let mut lines = vec![preflight::user_command(user)];
    let token = args.to.split_once('!').map(|(_, token)| token);
    lines.extend(token.map(|token| preflight::token_command(user, token)));
    let pool = session.spec().datacenter.pool.as_ref();
    lines.extend(pool.into_iter().flat_map(|pool| preflight::pool_commands(pool.as_str())));
    lines.extend(preflight::commands(&grants, None, &args.to));
    if output.json {
        output.print_json(&serde_json::json!({"v": 1, "type": "grant", "to": args.to, "commands": lines}));
        return Ok(());
    }
    for line in &lines {
        output.print(line);
    }
    output.status(if token.is_some() {
        "run these on a Proxmox VE host as root; the second command prints the token's secret, once"
    } else {
        "run these on a Proxmox VE host as root"
    });
    Ok(())
}

async fn look(session: &Session) -> Result<Observed, CommandError> {
    let site = session.clients(None, &EventSink::discard())?;
    Ok(observe(&site, &ObserveScope::of(session.spec(), None)).await?.observed)
}
