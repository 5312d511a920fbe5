//! `setup` as a new user meets it: an administrator's login becomes a user, a token and two files.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;

use pve_api::access::{self, AclEntry, Principal};
use pve_api::{Client, Content, storage};

use crate::stage::{Said, Sim, Stage, mode};

const TOTP_KEY: &str = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";

/// One host on a network of loopback addresses, in this release, with more keys.
fn world(release: &str, images: &str, more: &str) -> Sim {
    Sim::of(&format!(
        "pve: {{ version: {release}.1, release: '{release}', repoid: 14a22df35955d97d }}\n\
         cluster: null\n\
         nodes:\n  pve1: {{ nodeid: 1, ip: 127.0.0.1, maxcpu: 16, maxmem: 68719476736, \
         bridges: {{ vmbr0: {{ cidr: 127.83.0.2/24, ports: eno1, active: 1 }} }} }}\n\
         storages:\n  local: {{ type: dir, path: /var/lib/vz, content: '{images}', shared: 0, capacity: 107374182400 }}\n  \
         local-lvm: {{ type: lvmthin, content: 'images,rootdir', shared: 0, capacity: 1099511627776, vgname: pve, thinpool: data }}\n{more}"
    ))
}

fn stage_of(sim: &Sim) -> Stage {
    sim.stage().without("PROXMOX_VE_API_TOKEN").file("password", "proxmox\n")
}

/// Without a question, by root's password.
fn setup(sim: &Sim, stage: &Stage, more: &[&str]) -> Said {
    setup_as(sim, stage, "root@pam", more)
}

fn setup_as(sim: &Sim, stage: &Stage, user: &str, more: &[&str]) -> Said {
    let place = ["--endpoint", &sim.endpoint, "--fingerprint", &sim.fingerprint];
    let login = ["--user", user, "--password-file", "password"];
    stage.run(&[&["setup"], &place[..], &login[..], more].concat())
}

fn good(said: &Said) {
    assert_eq!(said.code, Some(0), "{}\n{}", said.stdout, said.stderr);
}

fn refused(said: &Said, words: &[&str]) {
    assert_ne!(said.code, Some(0), "{}", said.stderr);
    for word in words {
        assert!(said.stderr.contains(word), "{word:?} is missing:\n{}", said.stderr);
    }
    assert!(!said.stderr.contains("proxmox\n"), "the password was shown:\n{}", said.stderr);
}

/// Users and roles that setup made.
fn made(sim: &Sim) -> (Vec<String>, Vec<String>) {
    sim.ask(async |pve| {
        let users = pve.call(access::users()).await.expect("users");
        let roles = pve.call(access::roles()).await.expect("roles");
        (
            users
                .into_iter()
                .map(|user| user.userid)
                .filter(|id| id.starts_with("mainstay-"))
                .collect(),
            roles
                .into_iter()
                .map(|role| role.roleid)
                .filter(|id| id.starts_with("Mainstay-"))
                .collect(),
        )
    })
}

async fn entries(pve: &Client) -> Vec<AclEntry> {
    pve.call(access::acl()).await.expect("the access list")
}

fn nothing_was_made(sim: &Sim, stage: &Stage) {
    assert_eq!(made(sim), (Vec::new(), Vec::new()));
    for name in ["cluster.yaml", "cluster.token", ".gitignore"] {
        assert!(!stage.path(name).exists(), "{name} was written");
    }
}

/// The code that an authenticator shows so many steps of thirty seconds from now.
fn code(steps: i64) -> String {
    let now = mainstay_net::Wall::real().now().as_second();
    pve_sim::access::totp_code(TOTP_KEY, now / 30 + steps).expect("a key")
}

#[test]
fn typed_answers_become_a_token_a_file_and_a_plan_and_undo_takes_them_back() {
    let sim = world("9.2", "iso,vztmpl,backup", "");
    let stage = stage_of(&sim);
    let mut typed = stage.on_terminal(&["setup", "--name", "box"]);
    for (question, answer) in [
        ("Proxmox VE address", sim.endpoint.as_str()),
        ("Is this the right certificate?", "y"),
        ("Administrator [root@pam]:", ""),
        ("Password of root@pam", "proxmox"),
        ("Apply these changes?", "y"),
        ("Add `import` to storage local?", "yes"),
    ] {
        typed.screen.until(&[question]);
        typed.type_line(answer);
    }
    let said = typed.finish();
    good(&said);
    assert!(said.stderr.contains("<FINGERPRINT>"), "{}", said.stderr);
    assert!(!said.stderr.contains("\nproxmox"), "the password was shown:\n{}", said.stderr);
    assert_eq!(mode(&stage.path("cluster.token")), "600");
    assert_eq!(stage.read(".gitignore"), "/cluster.token\n");
    assert!(stage.read("cluster.yaml").contains("token-file: cluster.token"));
    let contents = sim.ask(async |pve| {
        let local = pve.call(storage::definition(&"local".parse().expect("an id"))).await;
        local.expect("a storage").content
    });
    assert!(
        contents.contains(&Content::Import) && contents.contains(&Content::Backup),
        "{contents:?}"
    );

    stage.change("cluster.yaml", |text| format!("{text}talos:\n  factory: {}\n", sim.factory));
    let plan = stage.run(&["plan"]);
    good(&plan);
    assert!(plan.stdout.contains("box-control-plane-1"), "{}", plan.stdout);

    // Again: nothing is left to do, and the token stays.
    let token = stage.read("cluster.token");
    let again = stage.run(&["setup", "--user", "root@pam", "--password-file", "password", "--yes"]);
    good(&again);
    assert!(again.stderr.contains("everything is set up already"), "{}", again.stderr);
    assert_eq!((made(&sim).0.len(), stage.read("cluster.token")), (1, token));

    // What was done, as commands, without an administrator.
    let shown = stage.run(&["setup", "--show"]);
    good(&shown);
    let (users, roles) = made(&sim);
    for name in users.iter().chain(&roles) {
        assert!(shown.stdout.contains(name), "{name} is missing:\n{}", shown.stdout);
    }

    let undone = stage.run(&[
        "setup",
        "--undo",
        "--yes",
        "--user",
        "root@pam",
        "--password-file",
        "password",
    ]);
    good(&undone);
    assert_eq!(made(&sim), (Vec::new(), Vec::new()));
    assert!(!stage.path("cluster.token").exists() && stage.path("cluster.yaml").exists());
    assert_eq!(sim.ask(async |pve| entries(&pve).await), []);
}

#[test]
fn nothing_is_changed_by_a_wrong_password_or_without_a_yes() {
    let sim = world("9.2", "iso,import", "");
    let stage = stage_of(&sim).file("wrong", "hunter2\n");
    let place = ["--endpoint", &sim.endpoint, "--fingerprint", &sim.fingerprint];
    let wrong = stage.run(
        &[
            &["setup", "--yes", "--user", "root@pam", "--password-file", "wrong"],
            &place[..],
        ]
        .concat(),
    );
    refused(&wrong, &["does not accept the password of root@pam"]);
    assert!(!wrong.stderr.contains("hunter2"));
    refused(&setup(&sim, &stage, &[]), &["Apply these changes?", "pass --yes"]);
    let unseen = stage.run(&[
        "setup",
        "--yes",
        "--endpoint",
        &sim.endpoint,
        "--user",
        "root@pam",
        "--password-file",
        "password",
    ]);
    refused(&unseen, &["Is this the right certificate?", "--fingerprint"]);
    nothing_was_made(&sim, &stage);
}

#[test]
fn a_second_factor_is_asked_for_and_an_expired_code_is_refused() {
    let sim = world("9.2", "iso,import", &format!("totp: {{ root@pam: [{TOTP_KEY}] }}\n"));
    let stage = stage_of(&sim);
    refused(&setup(&sim, &stage, &["--yes"]), &["second factor", "--totp-file"]);
    let stage = stage.file("code", code(-4));
    let expired = setup(&sim, &stage, &["--yes", "--totp-file", "code"]);
    refused(&expired, &["does not accept the code of root@pam", "wait for the next one"]);
    nothing_was_made(&sim, &stage);
    let stage = stage.file("code", code(0));
    good(&setup(&sim, &stage, &["--yes", "--totp-file", "code"]));
    // Other commands that log in by password say and take the same.
    let stage = stage
        .with("PROXMOX_VE_USERNAME", "root@pam")
        .with("PROXMOX_VE_PASSWORD_FILE", "password");
    refused(&stage.run(&["plan"]), &["the user has a second factor", "PROXMOX_VE_OTP"]);
    let stage = stage.with("PROXMOX_VE_OTP", code(1));
    good(&stage.run(&["plan"]));
}

#[test]
fn a_user_who_may_not_create_users_changes_nothing() {
    let sim = world(
        "9.2",
        "iso,import",
        "users: { root@pam: {}, ops@pve: {} }\npasswords: { root@pam: proxmox, ops@pve: proxmox }\n\
         acl:\n  - { path: /, ugid: ops@pve, type: user, roleid: PVEAdmin }\n",
    );
    let stage = stage_of(&sim);
    let said = setup_as(&sim, &stage, "ops@pve", &["--yes"]);
    refused(
        &said,
        &[
            "ops@pve may not create users",
            "Permissions.Modify on /",
            "nothing was changed",
        ],
    );
    nothing_was_made(&sim, &stage);
}

#[test]
fn a_role_that_others_have_is_not_changed_and_a_foreign_user_is_not_used() {
    let sim = world("9.2", "iso,import", "users: { root@pam: {}, ops@pve: {} }\n");
    let stage = stage_of(&sim);
    good(&setup(&sim, &stage, &["--yes"]));
    let (users, roles) = made(&sim);
    let (user, role) = (users[0].clone(), roles[0].clone());
    let shared = AclEntry {
        path: "/vms/100".into(),
        roleid: role.clone(),
        ugid: "ops@pve".into(),
        kind: Principal::User,
        propagate: true,
    };
    // Changed by an administrator: put back, since only this cluster has it.
    sim.ask(async |pve| pve.call(access::set_role(&role, ["VM.Console"])).await.expect("is set"));
    let repaired = setup(&sim, &stage, &["--yes"]);
    good(&repaired);
    assert!(repaired.stderr.contains("remove [VM.Console]"), "{}", repaired.stderr);
    sim.ask(async |pve| {
        pve.call(access::set_role(&role, ["VM.Console"])).await.expect("is set");
        pve.call(access::grant(&shared)).await.expect("is granted");
    });
    refused(
        &setup(&sim, &stage, &["--yes"]),
        &["has other privileges", "ops@pve has it too"],
    );
    // Undo keeps it, and says so.
    let undone = setup(&sim, &stage, &["--undo", "--yes"]);
    good(&undone);
    assert!(
        undone.stderr.contains(&format!("kept: role {role}: ops@pve has it")),
        "{}",
        undone.stderr
    );
    assert_eq!(made(&sim), (Vec::new(), vec![role]));
    // A user of that name that another hand made.
    let id = format!(
        "{}-0000-4000-8000-000000000000",
        &user["mainstay-homelab-".len()..user.len() - "@pve".len()]
    );
    let stage = stage.file("cluster.token", format!("# mainstay setup {id}\n"));
    sim.ask(async |pve| pve.call(access::create_user(&user, "mine")).await.expect("is made"));
    refused(&setup(&sim, &stage, &["--yes"]), &["was not made by this setup"]);
}

#[test]
fn an_interrupted_setup_is_continued_with_the_id_of_its_file() {
    let sim = world("9.2", "iso,import", "");
    let stage = stage_of(&sim);
    good(&setup(&sim, &stage, &["--yes"]));
    let first = stage.read("cluster.token");
    // The token was made, and the file did not get it.
    stage.change("cluster.token", |text| text.lines().next().expect("an id").to_owned() + "\n");
    good(&setup(&sim, &stage, &["--yes"]));
    let second = stage.read("cluster.token");
    assert_eq!(first.lines().next(), second.lines().next());
    assert_ne!(first, second, "the lost token was replaced");
    assert_eq!(made(&sim).0.len(), 1);
}

#[test]
fn both_releases_take_the_roles_that_setup_makes() {
    for release in ["8.4", "9.2"] {
        let sim = world(release, "iso,import", "");
        let stage = stage_of(&sim);
        good(&setup(&sim, &stage, &["--yes"]));
        let shown = stage.run(&["setup", "--show"]);
        good(&shown);
        let newer = ["VM.GuestAgent", "VM.Replicate"]
            .iter()
            .any(|name| shown.stdout.contains(name));
        assert!(release == "9.2" || !newer, "{}", shown.stdout);
        assert!(release == "8.4" || !shown.stdout.contains("VM.Monitor"), "{}", shown.stdout);
    }
}

#[test]
fn a_storage_is_changed_only_when_that_is_asked_for() {
    let sim = world("9.2", "iso,backup", "");
    let content = || {
        sim.ask(async |pve| {
            let local = pve.call(storage::definition(&"local".parse().expect("an id"))).await;
            local.expect("a storage").content
        })
    };
    let stage = stage_of(&sim);
    let without = setup(&sim, &stage, &["--yes"]);
    good(&without);
    assert!(
        without.stderr.contains("mainstay setup --enable-import"),
        "{}",
        without.stderr
    );
    assert_eq!(content(), [Content::Iso, Content::Backup].into());
    good(&setup(&sim, &stage, &["--yes", "--enable-import"]));
    assert_eq!(content(), [Content::Iso, Content::Backup, Content::Import].into());
    // A storage of blocks can never hold a file.
    stage.change("cluster.yaml", |text| text.replace("images: local,", "images: local-lvm,"));
    let blocks = setup(&sim, &stage, &["--yes", "--enable-import"]);
    refused(&blocks, &["storage local-lvm cannot hold images"]);
}

/// Copies bytes in both directions until one side ends.
fn pipe(from: TcpStream, to: TcpStream) {
    let copy = |mut from: TcpStream, mut to: TcpStream| {
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length @ 1..) = from.read(&mut buffer) {
                if to.write_all(&buffer[..length]).is_err() {
                    return;
                }
            }
            let _ = to.shutdown(std::net::Shutdown::Write);
        });
    };
    copy(from.try_clone().expect("a copy"), to.try_clone().expect("a copy"));
    copy(to, from);
}

#[test]
fn a_certificate_that_changes_after_it_was_shown_gets_no_password() {
    let (shown, other) = (world("9.2", "iso,import", ""), world("9.2", "iso,import", ""));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let front = format!("https://{}", listener.local_addr().expect("an address"));
    let targets = [&shown, &other].map(|sim| sim.endpoint.trim_start_matches("https://").to_owned());
    std::thread::spawn(move || {
        for (n, client) in listener.incoming().flatten().enumerate() {
            #[expect(
                clippy::disallowed_methods,
                reason = "this is the network between the program and two servers"
            )]
            let server = TcpStream::connect(&targets[n.min(1)]);
            pipe(client, server.expect("answers"));
        }
    });
    let stage = stage_of(&shown);
    let mut typed = stage.on_terminal(&[
        "setup",
        "--endpoint",
        &front,
        "--user",
        "root@pam",
        "--password-file",
        "password",
    ]);
    typed.screen.until(&["Is this the right certificate?"]);
    typed.type_line("y");
    refused(&typed.finish(), &["the certificate of Proxmox VE is not the trusted one"]);
    nothing_was_made(&shown, &stage);
    nothing_was_made(&other, &stage);
}

#[test]
fn a_reader_that_goes_away_leaves_nothing_half_done() {
    let sim = world("9.2", "iso,import", "");
    let stage = stage_of(&sim);
    let place = ["--endpoint", &sim.endpoint, "--fingerprint", &sim.fingerprint];
    let arguments = [
        &["setup", "--yes", "--user", "root@pam", "--password-file", "password"],
        &place[..],
    ]
    .concat();
    let mut command = stage.command(&arguments);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop((child.stdout.take(), child.stderr.take()));
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    nothing_was_made(&sim, &stage);
    // `--show | head` ends quietly too.
    good(&setup(&sim, &stage, &["--yes"]));
    let mut child = stage
        .command(&["setup", "--show"])
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program runs");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

#[test]
fn a_token_in_the_environment_goes_before_the_file() {
    let sim = world("9.2", "iso,import", "");
    let stage = stage_of(&sim);
    good(&setup(&sim, &stage, &["--yes"]));
    good(&stage.run(&["plan"]));
    let stage = stage.with("PROXMOX_VE_API_TOKEN", crate::stage::TOKEN);
    refused(&stage.run(&["plan"]), &["does not accept the token"]);
}

#[test]
fn undo_is_refused_while_machines_exist() {
    let sim = world("9.2", "iso,import", "");
    let stage = stage_of(&sim).with("SOPS_AGE_KEY", crate::stage::AGE_KEY);
    good(&setup(&sim, &stage, &["--yes"]));
    stage.change("cluster.yaml", |text| format!("{text}talos:\n  factory: {}\n", sim.factory));
    good(&stage.run(&["up", "--yes"]));
    refused(
        &setup(&sim, &stage, &["--undo", "--yes"]),
        &["machines of homelab exist", "mainstay down"],
    );
    good(&stage.run(&["down", "--yes", "--name", "homelab"]));
    good(&setup(&sim, &stage, &["--undo", "--yes"]));
}
