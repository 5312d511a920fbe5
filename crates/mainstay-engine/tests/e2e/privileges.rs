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
  control-plane: { count: 1, cpu: 2, memory: 4GiB, disk: 20GiB, addresses: 10.0.0.11+, vmids: 2000+ }
";

/// The right that a startup order takes includes the right to reach the network from any host, so the two are judged with files of their own.
fn with_startup_order() -> String {
    FILE.replace("vmids: 2000+", "vmids: 2000+, startup-order: 1")
}

const OPERATOR: [(&str, &str); 2] = [("user", "ops@pve"), ("token", "ops@pve!least")];

fn grants(file: &str) -> Vec<Grant> {
    on_stage(1, WorldSpec::default(), async |stage| {
        let observed = stage.observed(file).await;
        preflight::grants(&stage.spec(file), Some(&observed), pve_api::PveVersion::new(9, 2))
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

/// Beside a volume that a VM of the cluster left behind: whether it is there must be seen before its VMID is used.
async fn look(stage: &Stage, file: &str) -> String {
    let leftover = "local-lvm:vm-2000-disk-7";
    stage.world.datacenter().lab().add_volume("pve1", leftover, 1 << 30);
    let spec = stage.spec(file);
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
fn is_needed(file: &str, grants: &[Grant], path: &str, role: &str) -> bool {
    let whole = on_stage(2, world(grants), async |stage| look(stage, file).await);
    let lacking = on_stage(2, world(grants), async |stage| {
        take_away(stage, path, role);
        look(stage, file).await
    });
    if whole != lacking {
        return true;
    }
    let in_up = on_stage(2, world(grants), async |stage| {
        let spec = stage.spec(file);
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
            settled(stage, stage.up(file).await);
            take_away(stage, path, role);
            let _ = stage.down(file).await;
            was_denied(stage)
        })
}

/// The privileges of the grants for this file without which nothing fails.
fn unneeded(file: &str, grants: &[Grant], concerns: impl Fn(&str, &str) -> bool) -> Vec<String> {
    let is_enough = on_stage(2, world(grants), async |stage| {
        settled(stage, stage.up(file).await);
        settled(stage, stage.down(file).await);
        !was_denied(stage)
    });
    assert!(is_enough, "with all of them nothing is denied");
    let mut unneeded = Vec::new();
    for (number, grant) in grants.iter().enumerate() {
        for (at, privilege) in grant.privileges.iter().enumerate() {
            let name = privilege.to_string();
            if concerns(&grant.path, &name) && !is_needed(file, grants, &grant.path, &role(number, Some(at))) {
                unneeded.push(format!("{name} on {}", grant.path));
            }
        }
    }
    unneeded
}

#[test]
fn without_any_single_privilege_of_grant_something_fails() {
    // Hosts are alike, and the one machine is on the first of them. Its own entry hides that of `/nodes`, which is for hosts without images.
    let concerns = |path: &str, _: &str| path == "/nodes/pve1" || !path.starts_with("/nodes");
    assert_eq!(unneeded(FILE, &grants(FILE), concerns), Vec::<String>::new());
    let ordered = with_startup_order();
    let is_of_order = |path: &str, name: &str| path == "/" && name == "Sys.Modify";
    assert_eq!(unneeded(&ordered, &grants(&ordered), is_of_order), Vec::<String>::new());
}
