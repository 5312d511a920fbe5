//! From nothing to a cluster, as a new user goes: every answer is typed on a terminal.

use std::io::Read;

use pve_api::access::{self, AclEntry, Principal};

use crate::stage::{AGE_KEY, OnTerminal, Said, Sim, Stage, mode};

/// One host on a network of loopback addresses.
fn world(network: u8) -> Sim {
    Sim::of(&format!(
        "pve: {{ version: 9.2.1, release: '9.2', repoid: 14a22df35955d97d }}\n\
         cluster: null\n\
         nodes:\n  pve1: {{ nodeid: 1, ip: 127.0.0.1, maxcpu: 16, maxmem: 68719476736, \
         bridges: {{ vmbr0: {{ cidr: 127.{network}.0.2/24, ports: eno1, active: 1 }} }} }}\n\
         storages:\n  local: {{ type: dir, path: /var/lib/vz, content: 'iso,vztmpl,backup', shared: 0, capacity: 107374182400 }}\n  \
         local-lvm: {{ type: lvmthin, content: 'images,rootdir', shared: 0, capacity: 1099511627776, vgname: pve, thinpool: data }}\n\
         totp: {{ second@pam: [{TOTP_KEY}] }}\n\
         users: {{ root@pam: {{}}, second@pam: {{}} }}\npasswords: {{ root@pam: proxmox, second@pam: proxmox }}\n\
         acl:\n  - {{ path: /, ugid: second@pam, type: user, roleid: Administrator }}\n"
    ))
}

const TOTP_KEY: &str = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";

fn code() -> String {
    let now = mainstay_net::Wall::real().now().as_second();
    pve_sim::access::totp_code(TOTP_KEY, now / 30).expect("a key")
}

/// A terminal of a new user, with an age key so that none has to be made.
fn stage_of(sim: &Sim) -> Stage {
    sim.stage()
        .without("PROXMOX_VE_API_TOKEN")
        .with("SOPS_AGE_KEY", AGE_KEY)
        .with("TERM", "xterm-256color")
        .with("LANG", "C.UTF-8")
        .file("password", "proxmox\n")
}

fn answer(mut typed: OnTerminal<'_>, answers: &[(&str, &str)]) -> Said {
    for (question, answer) in answers {
        typed.screen.until(&[question]);
        typed.type_line(answer);
    }
    let said = typed.finish();
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    said
}

/// By root's password, without a question.
fn setup(sim: &Sim, stage: &Stage, more: &[&str]) -> Said {
    let place = ["--endpoint", &sim.endpoint, "--fingerprint", &sim.fingerprint];
    stage.run(
        &[
            &["setup", "--user", "root@pam", "--password-file", "password"],
            &place[..],
            more,
        ]
        .concat(),
    )
}

fn users(sim: &Sim) -> Vec<String> {
    let users = sim.ask(async |pve| pve.call(access::users()).await.expect("users"));
    let made = users
        .into_iter()
        .map(|user| user.userid)
        .filter(|id| id.starts_with("mainstay-"));
    made.collect()
}

#[test]
fn setup_init_up_and_kubeconfig_make_a_cluster_from_nothing() {
    let sim = world(101);
    let stage = stage_of(&sim);
    let said = answer(
        stage.on_terminal(&["setup", "--name", "home"]),
        &[
            ("Proxmox VE address", &sim.endpoint),
            ("Is this the right certificate?", "y"),
            ("Administrator [root@pam]:", "second@pam"),
            ("Password of second@pam", "proxmox"),
            ("Code of the second factor", &code()),
            ("Apply these changes?", "y"),
            ("Add `import` to storage local?", "y"),
        ],
    );
    assert!(said.stderr.contains("mainstay init --force"), "{}", said.stderr);
    assert_eq!(mode(&stage.path("cluster.token")), "600");

    let said = answer(
        stage.on_terminal(&["init", "--name", "home", "--force"]),
        &[
            ("Distribution (talos, rke2, k3s) [talos]:", "nixos"),
            ("`nixos` is not one of talos, rke2, k3s", "talos"),
            ("Control planes + workers [1+1]:", "2+1"),
            ("an even number survives no more failures", ""),
            ("First of 11 unused addresses", "10.0.0.1"),
            ("are not all in 127.101.0.0/24", "127.101.0.31"),
        ],
    );
    assert!(said.stderr.contains("1 host found"), "{}", said.stderr);
    let file = stage.read("cluster.yaml");
    assert!(
        file.starts_with("# yaml-language-server: $schema=cluster.schema.json\n"),
        "{file}"
    );
    assert!(
        file.contains("token-file: cluster.token") && file.contains("fingerprint:"),
        "{file}"
    );
    assert!(
        file.contains("addresses: 127.101.0.31+") && file.contains("addresses: 127.101.0.41+"),
        "{file}"
    );
    assert_eq!(stage.read("cluster.schema.json"), stage.run(&["schema"]).stdout);

    stage.change("cluster.yaml", |text| format!("{text}talos:\n  factory: {}\n", sim.factory));
    let said = answer(stage.on_terminal(&["up"]), &[("Apply this plan? [y/N]", "y")]);
    assert!(
        said.stderr.contains("home is settled: 2 of 2 nodes ready."),
        "{}",
        said.stderr
    );
    // The live view was drawn: it moved its cursor, and its bar is full.
    assert!(
        said.stderr.contains("\x1b[J") && said.stderr.contains("17 of 17 steps"),
        "{}",
        said.stderr
    );

    let kubeconfig = stage.run(&["kubeconfig", "--merge"]);
    assert_eq!(kubeconfig.code, Some(0), "{}", kubeconfig.stderr);
    assert!(stage.read("home/.kube/config").contains("server: https://127.101.0.31:6443"));

    // The run can be seen again, in the same view, as fast as one likes.
    let mut again = stage.on_terminal(&["logs", "--last", "--speed", "100000"]);
    again.screen.until(&["\x1b[J", "home is settled: 2 of 2 nodes ready."]);
    assert_eq!(again.finish().code, Some(0));

    // What was made, as commands for a host, without an administrator.
    let shown = stage.run(&["setup", "--show"]).stdout;
    for begin in [
        "pveum role add ",
        "pveum user add ",
        "pveum user token add ",
        "pveum acl modify ",
    ] {
        assert!(
            shown.lines().any(|line| line.starts_with(begin)),
            "{begin} is missing:\n{shown}"
        );
    }
}

#[test]
fn without_a_terminal_init_writes_the_defaults_and_asks_nothing() {
    let sim = world(102);
    let stage = sim.stage().with("PROXMOX_VE_ENDPOINT", &sim.endpoint);
    let said = stage.run(&["init"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert!(!said.stderr.contains('['), "{}", said.stderr);
    assert!(stage.read("cluster.yaml").contains("control-plane: { count: 1,"));
}

#[test]
fn the_third_wrong_answer_ends_init_and_writes_nothing() {
    let sim = world(103);
    let stage = sim.stage().with("PROXMOX_VE_ENDPOINT", &sim.endpoint).with("TERM", "dumb");
    let mut typed = stage.on_terminal(&["init"]);
    for _ in 0..3 {
        typed.screen.until(&["Distribution (talos, rke2, k3s) [talos]:"]);
        typed.type_line("kubeadm");
    }
    let said = typed.finish();
    assert_eq!(said.code, Some(2), "{}", said.stderr);
    assert!(said.stderr.contains("no usable answer to: Distribution"), "{}", said.stderr);
    assert!(!stage.path("cluster.yaml").exists() && !stage.path("cluster.schema.json").exists());
}

#[test]
fn a_password_and_a_code_come_from_stdin_for_every_command() {
    let sim = world(104);
    let stage = stage_of(&sim);
    let place = ["--endpoint", &sim.endpoint, "--fingerprint", &sim.fingerprint];
    let login = ["--user", "second@pam", "--password-file", "-", "--totp-file", "-"];
    let arguments = [&["setup", "--yes", "--enable-import"], &place[..], &login[..]].concat();
    let said = stage.run_with_stdin(&arguments, &format!("proxmox\n{}\n", code()));
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let token = stage.read("cluster.token");
    // The token from stdin, with its comment.
    let stage = stage.with("PROXMOX_VE_API_TOKEN_FILE", "-");
    let said = stage.run_with_stdin(&["plan"], &token);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let stage = stage
        .without("PROXMOX_VE_API_TOKEN_FILE")
        .with("PROXMOX_VE_USERNAME", "second@pam")
        .with("PROXMOX_VE_PASSWORD_FILE", "-")
        .with("PROXMOX_VE_OTP_FILE", "code")
        .file("code", "000000\n");
    let wrong = stage.run_with_stdin(&["plan"], "wrong\n");
    assert_eq!(wrong.code, Some(1), "{}", wrong.stderr);
    // A code is good for one login: the next one.
    let now = mainstay_net::Wall::real().now().as_second();
    let next = pve_sim::access::totp_code(TOTP_KEY, now / 30 + 1).expect("a key");
    let stage = stage.file("code", next + "\n");
    let said = stage.run_with_stdin(&["plan"], "proxmox\n");
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}

#[test]
fn a_terminal_that_closes_at_a_question_leaves_nothing_behind() {
    let sim = world(105);
    let stage = stage_of(&sim);
    let arguments = ["setup", "--endpoint", &sim.endpoint, "--fingerprint", &sim.fingerprint];
    let more = ["--user", "root@pam", "--password-file", "password"];
    let code = stage.close_terminal_at(&[&arguments[..], &more[..]].concat(), "Apply these changes?");
    assert_ne!(code, Some(0));
    // At the hidden password, too.
    let code = stage.close_terminal_at(&[&arguments[..], &["--user", "root@pam"]].concat(), "Password of root@pam");
    assert_ne!(code, Some(0));
    assert_eq!(users(&sim), Vec::<String>::new());
    assert!(!stage.path("cluster.yaml").exists() && !stage.path("cluster.token").exists());
}

#[test]
fn a_terminal_that_hangs_up_during_a_run_stops_it_in_order() {
    // Programs inherit that a signal is ignored, and the program rightly goes on then.
    if ignores_hangup() {
        println!("skipped: the tests run under nohup");
        return;
    }
    let sim = Sim::slow();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(106)).with_secrets();
    let mut run = stage.spawn(&["up", "--yes", "-v"]);
    run.stderr.until(&["begin  image.fetch pve1:local"]);
    run.signal("HUP");
    let said = run.finish();
    assert_eq!(said.code, Some(130), "{}", said.stderr);
    assert!(
        said.stderr.contains("Run the same command again to continue."),
        "{}",
        said.stderr
    );
}

#[test]
fn a_lost_token_file_gets_a_second_user_and_the_first_one_is_named() {
    let sim = world(107);
    let stage = stage_of(&sim);
    assert_eq!(setup(&sim, &stage, &["--yes"]).code, Some(0));
    let first = users(&sim).remove(0);
    std::fs::remove_file(stage.path("cluster.token")).expect("was there");
    let said = setup(&sim, &stage, &["--yes"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    assert_eq!(users(&sim).len(), 2);
    assert!(
        said.stderr.contains(&format!("pveum user delete '{first}'")),
        "{}",
        said.stderr
    );
    // Undo takes the second one only: the first one does not carry this setup's id.
    assert_eq!(setup(&sim, &stage, &["--undo", "--yes"]).code, Some(0));
    assert_eq!(users(&sim), [first]);
}

#[test]
fn rights_and_tokens_that_others_gave_our_user_are_named_and_stay() {
    let sim = world(108);
    let stage = stage_of(&sim);
    assert_eq!(setup(&sim, &stage, &["--yes"]).code, Some(0));
    let user = users(&sim).remove(0);
    let entry = AclEntry {
        path: "/vms/100".into(),
        roleid: "PVEVMAdmin".into(),
        ugid: user.clone(),
        kind: Principal::User,
        propagate: true,
    };
    sim.ask(async |pve| {
        pve.call(access::grant(&entry)).await.expect("is granted");
        pve.call(access::create_token(&user, "mine", true, "by hand"))
            .await
            .expect("is made");
    });
    let again = setup(&sim, &stage, &["--yes"]);
    assert_eq!(again.code, Some(0), "{}", again.stderr);
    assert!(
        again.stderr.contains(&format!(
            "note: {user} has PVEVMAdmin on /vms/100 too, which setup did not give"
        )),
        "{}",
        again.stderr
    );
    let undone = setup(&sim, &stage, &["--undo", "--yes"]);
    assert_eq!(undone.code, Some(0), "{}", undone.stderr);
    assert!(
        undone
            .stderr
            .contains(&format!("kept: user {user}: it has another token, mine")),
        "{}",
        undone.stderr
    );
    assert_eq!(users(&sim), [user]);
}

#[test]
fn a_token_that_cannot_be_kept_is_not_made() {
    let sim = world(109);
    let stage = stage_of(&sim);
    let place = ["--endpoint", &sim.endpoint, "--fingerprint", &sim.fingerprint];
    let login = ["setup", "--yes", "--user", "root@pam", "--password-file", "password"];
    let full = stage.run_on_full_disk(&[&login[..], &place[..]].concat());
    assert_eq!(full.code, Some(1), "{}", full.stderr);
    assert!(
        full.stderr.contains("cannot write") && full.stderr.contains("nothing was changed on Proxmox VE"),
        "{}",
        full.stderr
    );
    assert_eq!(users(&sim), Vec::<String>::new());
    // A link could lead anywhere.
    std::fs::remove_file(stage.path("cluster.token")).ok();
    std::os::unix::fs::symlink(stage.path("elsewhere"), stage.path("cluster.token")).expect("a link");
    let linked = setup(&sim, &stage, &["--yes"]);
    assert_eq!(linked.code, Some(1), "{}", linked.stderr);
    assert!(!stage.path("elsewhere").exists());
    assert_eq!(users(&sim), Vec::<String>::new());
}

#[test]
fn a_terminal_without_cursor_movements_gets_plain_lines() {
    let demo = ["demo", "--speed", "5000"];
    let dumb = Stage::new().with("TERM", "dumb").on_terminal(&demo).finish();
    assert_eq!(dumb.code, Some(0), "{}", dumb.stderr);
    assert!(
        !dumb.stderr.contains('\x1b') && dumb.stderr.contains(" done   demo-worker-1 ("),
        "{}",
        dumb.stderr
    );
    let ascii = Stage::new()
        .with("TERM", "xterm")
        .with("LANG", "C")
        .on_terminal(&demo)
        .finish();
    assert!(ascii.stderr.is_ascii() && ascii.stderr.contains("\x1b[J"), "{}", ascii.stderr);
    let blocks = Stage::new()
        .with("TERM", "xterm")
        .with("LANG", "de_DE.UTF-8")
        .on_terminal(&demo)
        .finish();
    assert!(blocks.stderr.contains('█'), "{}", blocks.stderr);
    let ci = Stage::new()
        .with("TERM", "xterm")
        .with("CI", "true")
        .on_terminal(&demo)
        .finish();
    assert!(!ci.stderr.contains("\x1b[J"), "{}", ci.stderr);
}

#[test]
fn output_that_goes_to_head_ends_the_program_quietly() {
    let sim = world(110);
    let stage = stage_of(&sim);
    assert_eq!(setup(&sim, &stage, &["--yes", "--enable-import"]).code, Some(0));
    for arguments in [&["plan"][..], &["setup", "--show"], &["logs"], &["status"]] {
        let mut child = stage
            .command(arguments)
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .spawn()
            .expect("the program runs");
        drop(child.stdout.take());
        let mut told = String::new();
        let mut stderr = child.stderr.take().expect("is piped");
        stderr.read_to_string(&mut told).expect("text");
        child.wait().expect("ends");
        assert!(!told.contains("error") && !told.contains("panic"), "{arguments:?}: {told}");
    }
}

/// A datacenter in which no VM can be created.
const WITHOUT_ROOM: &str = "faults:\n\
    \x20 - { call: 'POST /nodes/{node}/qemu', then: { refuse: { status: 500, reason: 'no such volume group' } } }\n";

#[test]
fn a_step_that_fails_stays_visible_and_says_how_to_see_more() {
    let sim = Sim::of(WITHOUT_ROOM);
    let stage = sim
        .stage()
        .with("TERM", "xterm-256color")
        .file("cluster.yaml", sim.cluster(111))
        .with_secrets();
    let plain = stage.run(&["up", "--yes"]);
    assert_eq!(plain.code, Some(1), "{}", plain.stderr);
    for told in [
        " failed box-control-plane-1: claim: ",
        "no such volume group",
        "Every step, wait and error of this run: mainstay logs --last",
    ] {
        assert!(plain.stderr.contains(told), "{told:?} is missing:\n{}", plain.stderr);
    }
    let live = stage.on_terminal(&["up", "--yes"]).finish();
    let last_frame = live.stderr.rsplit("\x1b[J").next().expect("a frame").to_owned();
    assert!(
        last_frame.contains("failed: ") && last_frame.contains("mainstay logs --last"),
        "{last_frame}"
    );
    let again = stage.run(&["logs", "--last", "-v"]);
    assert!(
        again.stderr.contains("failed machine.claim box-control-plane-1"),
        "{}",
        again.stderr
    );
}

#[test]
fn show_lists_what_setup_would_make_and_changes_nothing() {
    let sim = world(112);
    let stage = stage_of(&sim);
    let said = setup(&sim, &stage, &["--show"]);
    assert_eq!(said.code, Some(0), "{}", said.stderr);
    let lines: Vec<&str> = said.stdout.lines().collect();
    let position = |begin: &str| {
        lines
            .iter()
            .position(|line| line.starts_with(begin))
            .unwrap_or_else(|| panic!("{begin}: {lines:#?}"))
    };
    // In an order that works: roles and user before the access list, the token before its own entries.
    assert!(
        position("pveum role add ") < position("pveum user add ") && position("pveum user add ") < position("pveum acl modify ")
    );
    assert!(position("pveum user token add ") < lines.iter().rposition(|line| line.contains("--tokens")).expect("an entry"));
    assert!(
        lines.contains(&"pvesm set local --content backup,iso,vztmpl,import   # with --enable-import"),
        "{lines:#?}"
    );
    assert!(!stage.path("cluster.yaml").exists() && !stage.path("cluster.token").exists());
    assert_eq!(users(&sim), Vec::<String>::new());
}

fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
}

#[test]
fn a_run_under_nohup_goes_on_when_the_terminal_hangs_up() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(113)).with_secrets();
    let mut run = stage.spawn_without_hangup(&["up", "--yes", "-v"]);
    run.stderr.until(&["begin  image.fetch pve1:local"]);
    run.signal("HUP");
    let said = run.finish();
    assert_eq!(said.code, Some(0), "{}", said.stderr);
}
