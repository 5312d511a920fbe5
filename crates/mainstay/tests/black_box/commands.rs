//! Every `pveum` line that is printed, translated into the call that the program makes, and sent twice.

use std::collections::BTreeSet;

use pve_api::access::{self, AclEntry, Principal};
use pve_api::{Client, Error, pool};

use crate::stage::{AGE_KEY, Sim, Stage, cluster};

/// Words of a shell line; single quotes keep blanks.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for letter in line.trim().chars() {
        match letter {
            '\'' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            other => words.last_mut().expect("a word").push(other),
        }
    }
    assert!(!quoted, "{line}");
    words.into_iter().filter(|word| !word.is_empty()).collect()
}

/// The value of an option, as `--privs 'A B'`.
fn option<'w>(words: &'w [String], name: &str) -> Option<&'w str> {
    let at = words.iter().position(|word| word == name)?;
    words.get(at + 1).map(String::as_str)
}

/// What `pveum` sends for one command, after `PVE/CLI/pveum.pm` of pve-access-control: each command is one call of the API with the same
/// parameters. `pool add` is `POST /pools`, `user token add` is `POST /access/users/{userid}/token/{tokenid}`.
async fn send(pve: &Client, command: &str) -> Result<(), Error> {
    let words = words(command);
    let privileges = || -> BTreeSet<String> {
        let list = option(&words, "--privs").expect("privileges");
        list.split_whitespace().map(str::to_owned).collect()
    };
    let names: Vec<&str> = words.iter().map(String::as_str).collect();
    match names.as_slice() {
        ["true"] => Ok(()),
        ["pveum", "role", "add", role, ..] => pve.call(access::create_role(role, privileges())).await.map(drop),
        ["pveum", "role", "modify", role, ..] => {
            assert_eq!(
                option(&words, "--append"),
                Some("1"),
                "it would take away what others gave: {command}"
            );
            pve.call(access::extend_role(role, privileges())).await.map(drop)
        }
        ["pveum", "user", "add", user, ..] => {
            let comment = option(&words, "--comment").expect("a comment");
            pve.call(access::create_user(user, comment)).await.map(drop)
        }
        ["pveum", "user", "token", "add", user, token, ..] => {
            assert_eq!(option(&words, "--privsep"), Some("1"));
            let comment = option(&words, "--comment").unwrap_or_default();
            pve.call(access::create_token(user, token, true, comment)).await.map(drop)
        }
        ["pveum", "user", "token", "modify", user, token, ..] => {
            assert_eq!(option(&words, "--privsep"), Some("1"));
            pve.call(access::set_token(user, token, true)).await.map(drop)
        }
        ["pveum", "pool", "add", pool, ..] => {
            let comment = option(&words, "--comment");
            pve.call(pool::create(&pool.parse().expect("a pool"), comment))
                .await
                .map(drop)
        }
        ["pveum", "acl", "modify", path, ..] => {
            let user = option(&words, "--users").map(|user| (Principal::User, user));
            let token = option(&words, "--tokens").map(|token| (Principal::Token, token));
            let (kind, ugid) = user.or(token).expect("for whom");
            let entry = AclEntry {
                path: (*path).to_owned(),
                roleid: option(&words, "--roles").expect("a role").to_owned(),
                ugid: ugid.to_owned(),
                kind,
                propagate: option(&words, "--propagate") != Some("0"),
            };
            pve.call(access::grant(&entry)).await.map(drop)
        }
        _ => panic!("no command of pveum is known as {command}"),
    }
}

/// As a shell does it: what follows `||` is done where what stands before it failed.
async fn run(pve: &Client, line: &str) {
    let mut last = None;
    for command in line.split(" || ") {
        match send(pve, command).await {
            Ok(()) => return,
            Err(error) => last = Some(error),
        }
    }
    panic!("{line}: {last:?}");
}

fn pveum_lines(text: &str) -> Vec<String> {
    let lines = text.lines().map(str::trim).filter(|line| line.starts_with("pveum "));
    lines.map(str::to_owned).collect()
}

fn run_twice(sim: &Sim, lines: &[String]) {
    assert!(!lines.is_empty());
    sim.ask(async |pve| {
        for line in lines.iter().chain(lines) {
            run(&pve, line).await;
        }
    });
}

#[test]
fn the_commands_of_grant_can_be_run_twice_and_are_enough() {
    let sim = Sim::start();
    let file = sim.cluster(92).replace("datacenter:\n", "datacenter:\n  pool: team/k8s\n");
    let stage = sim.stage().file("cluster.yaml", file).with("SOPS_AGE_KEY", AGE_KEY);
    let said = stage.run(&["doctor"]);
    assert!(
        said.stdout.contains("there is no resource pool team/k8s") && said.stdout.contains("pveum pool add team "),
        "{}",
        said.stdout
    );
    let lines = pveum_lines(&stage.run(&["grant", "--to", "ops@pve!up"]).stdout);
    assert!(
        lines.iter().any(|line| line.starts_with("pveum pool add team/k8s ")),
        "{lines:#?}"
    );
    run_twice(&sim, &lines);
    let secret = sim.ask(async |pve| {
        pve.call(access::delete_token("ops@pve", "up")).await.expect("is deleted");
        pve.call(access::create_token("ops@pve", "up", true, ""))
            .await
            .expect("a token")
            .value
    });
    // Proxmox VE deletes the entries of a token with it.
    run_twice(&sim, &lines);
    let stage = stage.with("PROXMOX_VE_API_TOKEN", format!("ops@pve!up={}", secret.expose()));
    let said = stage.run(&["doctor"]);
    assert_eq!(said.code, Some(0), "{}", said.stdout);
}

#[test]
fn the_remedy_of_doctor_works_on_a_role_that_exists() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(93));
    let lines = pveum_lines(&stage.run(&["grant", "--to", "ops@pve!up"]).stdout);
    run_twice(&sim, &lines);
    let secret = sim.ask(async |pve| {
        pve.call(access::delete_token("ops@pve", "up")).await.expect("is deleted");
        pve.call(access::create_token("ops@pve", "up", true, ""))
            .await
            .expect("a token")
            .value
    });
    run_twice(&sim, &lines);
    // An administrator took some of it away, and added something of his own.
    sim.ask(async |pve| {
        let kept = ["Datastore.Audit", "Datastore.Allocate"];
        pve.call(access::set_role("Mainstay-storage-local", kept))
            .await
            .expect("is set");
    });
    let stage = stage.with("PROXMOX_VE_API_TOKEN", format!("ops@pve!up={}", secret.expose()));
    let said = stage.run(&["doctor"]);
    assert_eq!(said.code, Some(1), "{}", said.stdout);
    run_twice(&sim, &pveum_lines(&said.stdout));
    let said = stage.run(&["doctor"]);
    assert_eq!(said.code, Some(0), "{}", said.stdout);
    let roles = sim.ask(async |pve| pve.call(access::roles()).await.expect("roles"));
    let role = roles
        .iter()
        .find(|role| role.roleid == "Mainstay-storage-local")
        .expect("is there");
    assert!(role.privs.contains("Datastore.Allocate"), "{:?}", role.privs);
}

#[test]
fn the_commands_that_setup_shows_can_be_run_twice() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .without("PROXMOX_VE_API_TOKEN")
        .file("password", "proxmox\n")
        .file("cluster.yaml", sim.cluster(94));
    let said = stage.run(&["setup", "--show", "--user", "root@pam", "--password-file", "password"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    run_twice(&sim, &pveum_lines(&said.stdout));
}

#[test]
fn json_is_honoured_or_refused_by_name() {
    let stage = Stage::new().file("cluster.yaml", cluster());
    for arguments in [
        &["init"][..],
        &["setup"],
        &["kubeconfig"],
        &["talosconfig"],
        &["config"],
        &["secrets", "import", "x"],
        &["completions", "bash"],
        &["man"],
    ] {
        let said = stage.run(&[&["--json"], arguments].concat());
        assert_eq!(said.code, Some(2), "{arguments:?}: {}", said.stdout);
        let name = arguments[..if arguments[0] == "secrets" { 2 } else { 1 }].join(" ");
        assert!(
            said.stdout.contains(&format!("`{name}` has no JSON output")),
            "{}",
            said.stdout
        );
    }
}

#[test]
fn commands_that_connect_to_nothing_need_no_ssh_key() {
    let stage = Stage::new()
        .file(
            "cluster.yaml",
            cluster().replace("datacenter:\n", "datacenter:\n  jump: ops@pve.lan\n"),
        )
        .with_secrets();
    for arguments in [&["config"][..], &["kubeconfig"], &["talosconfig"], &["secrets", "show"]] {
        let said = stage.run(arguments);
        assert_eq!(said.code, Some(0), "{arguments:?}: {}", said.stderr);
    }
    let said = stage.with("PROXMOX_VE_API_TOKEN", "a@pve!b=c").run(&["plan"]);
    assert!(
        said.stderr.contains("no SSH key was found for the jump host"),
        "{}",
        said.stderr
    );
}
