//! Every privilege that `grant` prints is needed: without it something cannot be seen, made or removed.

use mainstay_engine::{Event, FailureKind, RunGoal, StepEvent, converge, preflight};
use mainstay_plan::Observed;
use mainstay_sim::WorldSpec;
use pve_api::privileges::Grant;

use crate::stage::{Stage, on_stage, settled};

const FILE: &str = "\
name: small
network: { cidr: 10.0.0.0/16, gateway: 10.0.0.1, dns: [1.1.1.1] }
talos: { version: 1.13.9 }
pools:
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+, startup-order: 1 }
";

const OPERATOR: [(&str, &str); 2] = [("user", "ops@pve"), ("token", "ops@pve!least")];

fn grants() -> Vec<Grant> {
    on_stage(1, WorldSpec::default(), async |stage| {
        let observed = stage.observed(FILE).await;
        preflight::grants(&stage.spec(FILE), Some(&observed), pve_api::PveVersion::new(9, 2))
    })
}

/// The role of a grant with all of its privileges, or without one of them.
fn role(grant: usize, without: Option<usize>) -> String {
    without.map_or_else(|| format!("Whole{grant}"), |privilege| format!("Lacks{grant}x{privilege}"))
}

/// A world in which the token has all of the grants, and roles that lack one privilege each.
fn world(grants: &[Grant]) -> WorldSpec {
    let (mut roles, mut acl) = (String::new(), String::new());
    for (number, grant) in grants.iter().enumerate() {
        let all: Vec<String> = grant.privileges.iter().map(ToString::to_string).collect();
        roles += &format!("  {}: [{}]\n", role(number, None), all.join(", "));
        for lacking in 0..all.len() {
            let rest: Vec<&str> = (0..all.len())
                .filter(|at| *at != lacking)
                .map(|at| all[at].as_str())
                .collect();
            roles += &format!("  {}: [{}]\n", role(number, Some(lacking)), rest.join(", "));
        }
        for (kind, who) in OPERATOR {
            let (path, name, propagate) = (&grant.path, role(number, None), u8::from(grant.propagate));
            acl += &format!("  - {{ path: {path}, ugid: \"{who}\", type: {kind}, roleid: {name}, propagate: {propagate} }}\n");
        }
    }
    let text = format!(
        "users: {{ \"root@pam\": {{}}, \"ops@pve\": {{}} }}\n\
         tokens: {{ \"ops@pve!least\": {{ privsep: 1, secret: 00000000-0000-4000-8000-000000000009 }} }}\n\
         roles:\n{roles}acl:\n{acl}"
    );
    WorldSpec::parse(&text).expect("a world")
}

/// Takes one privilege away, from user and token.
fn take_away(stage: &Stage, path: &str, role: &str) {
    for (kind, who) in OPERATOR {
        stage.world.datacenter().lab().set_acl(path, kind, who, Some(role));
    }
}

/// What of Proxmox VE a plan is made of.
fn seen(observed: &Observed) -> String {
    format!(
        "{:?} {:?} {:?} {:?} {:?} {:?}",
        observed.quorate, observed.hosts, observed.vms, observed.images, observed.leftovers, observed.tasks
    )
}

async fn look(stage: &Stage) -> String {
    let spec = stage.spec(FILE);
    let clients = stage.site(&spec);
    let scope = mainstay_engine::ObserveScope::of(&spec, None);
    match mainstay_engine::observe(&clients, &scope).await {
        Ok(sight) => seen(&sight.observed),
        Err(failure) => failure.to_string(),
    }
}

fn was_denied(stage: &Stage) -> bool {
    let told = stage.told.lock().expect("reads");
    told.iter().any(|record| {
        let Event::Step {
            now: StepEvent::Failed { why, .. },
            ..
        } = &record.event
        else {
            return false;
        };
        why.kind == FailureKind::Denied
    })
}

/// Whether something fails without this privilege: the look, an `up` that loses it after its check, or a `down`.
fn is_needed(grants: &[Grant], path: &str, role: &str) -> bool {
    let whole = on_stage(2, world(grants), async |stage| look(stage).await);
    let lacking = on_stage(2, world(grants), async |stage| {
        take_away(stage, path, role);
        look(stage).await
    });
    if whole != lacking {
        return true;
    }
    let in_up = on_stage(2, world(grants), async |stage| {
        let spec = stage.spec(FILE);
        let clients = stage.site(&spec);
        let run = stage.run(&spec, &clients, RunGoal::Up);
        let _ = converge(&run, &mut |request| {
            take_away(stage, path, role);
            if stage.keep_secrets() {
                request.approve();
            }
        })
        .await;
        was_denied(stage)
    });
    in_up
        || on_stage(2, world(grants), async |stage| {
            settled(stage, stage.up(FILE).await);
            take_away(stage, path, role);
            let _ = stage.down(FILE).await;
            was_denied(stage)
        })
}

#[test]
fn without_any_single_privilege_of_grant_something_fails() {
    let grants = grants();
    let is_enough = on_stage(2, world(&grants), async |stage| {
        settled(stage, stage.up(FILE).await);
        settled(stage, stage.down(FILE).await);
        !was_denied(stage)
    });
    assert!(is_enough, "with all of them nothing is denied");
    let mut unneeded = Vec::new();
    for (number, grant) in grants.iter().enumerate() {
        // Hosts are alike, and the one machine is on the first of them.
        if grant.path.starts_with("/nodes/") && grant.path != "/nodes/pve1" {
            continue;
        }
        for (at, privilege) in grant.privileges.iter().enumerate() {
            if !is_needed(&grants, &grant.path, &role(number, Some(at))) {
                unneeded.push(format!("{privilege} on {}", grant.path));
            }
        }
    }
    assert_eq!(unneeded, Vec::<String>::new());
}
