//! Proxmox VE that cannot be reached, trusted or used, and what it takes to be.

use std::net::TcpListener;

use crate::stage::{AGE_KEY, Sim, Stage, TOKEN, closed_port, cluster, cluster_at};

#[test]
fn without_a_token_the_way_to_one_is_told() {
    let stage = Stage::new().file("cluster.yaml", cluster());
    stage.run(&["plan"]).golden("token-missing");
    stage.run(&["plan", "--json"]).golden("token-missing-json");
    let stage = stage.with("PROXMOX_VE_API_TOKEN", "not-a-token");
    stage.run(&["plan"]).golden("token-bad");
    let stage = stage
        .without("PROXMOX_VE_API_TOKEN")
        .with("PROXMOX_VE_API_TOKEN_FILE", "token.txt");
    stage.run(&["plan"]).golden("token-file-missing");
}

#[test]
fn a_closed_endpoint_is_named() {
    let port = closed_port();
    let stage = Stage::new()
        .file(
            "cluster.yaml",
            cluster_at(&format!("https://127.0.0.1:{port}")) + &format!("talos: {{ factory: 'http://127.0.0.1:{port}' }}\n"),
        )
        .with("PROXMOX_VE_API_TOKEN", TOKEN)
        .with("SOPS_AGE_KEY", AGE_KEY)
        .volatile(format!("127.0.0.1:{port}"), "127.0.0.1:<CLOSED>")
        .volatile(format!("port {port}"), "port <CLOSED>");
    stage.run(&["plan"]).golden("unreachable-plan");
    stage.run(&["plan", "--json"]).golden("unreachable-plan-json");
    stage.run(&["status"]).golden("unreachable-status");
    stage.run(&["doctor"]).golden("unreachable-doctor");
    stage.run(&["trust"]).golden("unreachable-trust");
    stage.run(&["up", "--yes"]).golden("unreachable-up");
    assert!(
        !stage.path("cluster.secrets.yaml").exists(),
        "secrets were created for a datacenter that was never reached"
    );
}

#[test]
fn a_server_that_is_no_proxmox_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    // Takes every connection, and closes it at once.
    std::thread::spawn(move || listener.incoming().for_each(drop));
    let stage = Stage::new()
        .file("cluster.yaml", cluster_at(&format!("https://127.0.0.1:{port}")))
        .with("PROXMOX_VE_API_TOKEN", TOKEN)
        .volatile(format!("127.0.0.1:{port}"), "127.0.0.1:<OTHER>");
    stage.run(&["plan"]).golden("no-proxmox");
}

#[test]
fn an_untrusted_certificate_is_refused_until_it_is_trusted() {
    let sim = Sim::start();
    let file = sim.cluster(61);
    let unpinned: String = file
        .lines()
        .filter(|line| !line.contains("fingerprint:"))
        .map(|line| format!("{line}\n"))
        .collect();
    let stage = sim.stage().file("cluster.yaml", unpinned);
    stage.run(&["plan"]).golden("certificate-unknown");
    stage.run(&["trust"]).golden("trust");
    stage.run(&["trust", "--json"]).golden("trust-json");
    stage.run(&["trust", "--write"]).golden("trust-write");
    stage.run(&["plan"]).golden("plan");
    let other = ["00"; 32].join(":");
    stage.change("cluster.yaml", |text| text.replace(&sim.fingerprint, &other));
    stage.run(&["plan"]).golden("certificate-other");
}

#[test]
fn a_token_that_proxmox_does_not_know_is_refused() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .file("cluster.yaml", sim.cluster(62))
        .with("PROXMOX_VE_API_TOKEN", TOKEN);
    stage.run(&["plan"]).golden("token-refused");
}

#[test]
fn a_plan_needs_no_secrets_and_makes_none() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(63));
    stage.run(&["plan", "--check"]).golden("plan-check");
    stage.run(&["plan", "--json"]).golden("plan-json");
    stage.run(&["plan", "-v"]).golden("plan-verbose");
    stage.run(&["doctor"]).golden("doctor");
    stage.run(&["doctor", "--json"]).golden("doctor-json");
    stage.run(&["status"]).golden("status-nothing");
    assert!(!stage.path("cluster.secrets.yaml").exists());
    assert_eq!(
        std::fs::read_dir(stage.path("home")).expect("a folder").count(),
        0,
        "something was left at home"
    );
}

#[test]
fn without_a_terminal_or_yes_nothing_is_done() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .file("cluster.yaml", sim.cluster(64))
        .with_secrets()
        .with("CI", "true");
    stage.run(&["up"]).golden("up-without-terminal");
    stage.run(&["up", "--json"]).golden("up-without-terminal-json");
    assert_eq!(stage.run(&["plan", "--check"]).code, Some(3), "something was done");
}

#[test]
fn a_protected_cluster_does_not_go_down() {
    let stage = Stage::new()
        .file("cluster.yaml", cluster() + "protect: true\n")
        .with("PROXMOX_VE_API_TOKEN", TOKEN);
    stage.run(&["down", "--yes", "--name", "box"]).golden("down-protected");
}

#[test]
fn a_wrong_name_takes_nothing_down() {
    let stage = Stage::new()
        .file("cluster.yaml", cluster())
        .with("PROXMOX_VE_API_TOKEN", TOKEN);
    stage.run(&["down", "--yes", "--name", "prod"]).golden("down-wrong-name");
    stage
        .run(&["down", "--yes", "--name", "prod", "--json"])
        .golden("down-wrong-name-json");
}

/// A user who sees everything and may change nothing.
const AUDITOR: &str = "users:\n  ops@pve: { enable: 1, expire: 0 }\n\
    tokens:\n  ops@pve!weak: { privsep: 0, expire: 0, secret: 00000000-0000-4000-8000-000000000002 }\n\
    acl:\n  - { path: /, ugid: ops@pve, type: user, roleid: PVEAuditor }\n";

#[test]
fn a_token_that_may_not_is_told_what_it_lacks() {
    let sim = Sim::of(AUDITOR);
    let stage = sim
        .stage()
        .file("cluster.yaml", sim.cluster(65))
        .with_secrets()
        .with("PROXMOX_VE_API_TOKEN", "ops@pve!weak=00000000-0000-4000-8000-000000000002");
    stage.run(&["doctor"]).golden("doctor-rights");
    stage.run(&["up", "--yes"]).golden("up-rights");
    stage.run(&["up", "--yes", "--json"]).golden("up-rights-json");
}

/// As Proxmox VE is installed: no storage may hold images to import.
const STOCK: &str = "storages:\n\
    \x20 local: { type: dir, path: /var/lib/vz, content: 'iso,vztmpl,backup', shared: 0, capacity: 107374182400 }\n\
    \x20 local-lvm: { type: lvmthin, content: 'images,rootdir', shared: 0, capacity: 1099511627776, vgname: pve, thinpool: data }\n";

#[test]
fn a_stock_proxmox_gets_the_line_that_mends_it() {
    let sim = Sim::of(STOCK);
    let stage = sim.stage().file("cluster.yaml", sim.cluster(66));
    stage.run(&["doctor"]).golden("doctor-stock");
    stage.run(&["plan"]).golden("plan-stock");
    let stage = stage.with("PROXMOX_VE_ENDPOINT", &sim.endpoint);
    stage.run(&["-f", "new.yaml", "init"]).golden("init-stock");
}

/// A host whose bridge lies in a network of loopback addresses, so that no other machine is dialled to check addresses.
const ON_LOOPBACK: &str = "nodes:\n\
    \x20 pve1: { nodeid: 1, ip: 127.0.0.1, maxcpu: 16, maxmem: 68719476736, \
    bridges: { vmbr0: { cidr: 127.68.0.2/24, ports: eno1, active: 1 } } }\n";

#[test]
fn init_writes_a_file_that_can_be_planned() {
    let stage = Stage::new();
    stage.run(&["init"]).golden("init-no-endpoint");
    let stage = stage.file("cluster.yaml", "mine: true\n");
    stage.run(&["init"]).golden("init-exists");
    assert_eq!(stage.read("cluster.yaml"), "mine: true\n");
    let sim = Sim::of(ON_LOOPBACK);
    let stage = sim.stage().with("PROXMOX_VE_ENDPOINT", &sim.endpoint);
    stage.run(&["init", "--name", "home"]).golden("init");
    let text = stage.steady(&stage.read("cluster.yaml"));
    expect_test::expect_file!["golden/init-cluster.yaml"].assert_eq(&text);
    // The public factory is not asked by a test.
    stage.change("cluster.yaml", |text| {
        format!("{text}talos: {{ factory: {} }}\n", sim.factory)
    });
    stage.run(&["plan"]).golden("init-plan");
}

#[test]
fn rights_are_printed_as_commands_to_paste() {
    let sim = Sim::start();
    let stage = sim.stage().file("cluster.yaml", sim.cluster(67));
    stage.run(&["grant"]).golden("grant");
    stage.run(&["grant", "--pve", "8.4", "--to", "ops@pam"]).golden("grant-8");
    stage.run(&["grant", "--pve", "nine"]).golden("grant-no-version");
    let stage = stage.without("PROXMOX_VE_API_TOKEN");
    stage.run(&["grant"]).golden("grant-blind");
}

#[test]
fn a_stopped_machine_is_not_ready_and_the_endpoint_is_asked() {
    let sim = Sim::start();
    let stage = sim
        .stage()
        .file("cluster.yaml", sim.cluster(91))
        .with("SOPS_AGE_KEY", AGE_KEY);
    assert_eq!(stage.run(&["up", "--yes"]).code, Some(0));
    let said = stage.run(&["status"]);
    assert_eq!(said.code, Some(0), "{}", said.stdout);
    for line in [
        "endpoint     ok       https://127.91.0.11:6443 answers, ",
        "dns          ok ",
        "system       ok ",
    ] {
        assert!(said.stdout.contains(line), "{line}\n{}", said.stdout);
    }
    sim.stop("box-worker-1");
    let said = stage.run(&["status"]);
    assert_eq!(said.code, Some(1), "{}", said.stdout);
    assert!(
        said.stdout
            .contains("nodes        failing  box-worker-1: its machine does not run"),
        "{}",
        said.stdout
    );
    sim.stop("box-control-plane-1");
    let said = stage.run(&["status"]);
    assert!(
        said.stdout
            .contains("endpoint     failing  https://127.91.0.11:6443 does not answer"),
        "{}",
        said.stdout
    );
    assert!(
        said.stdout
            .contains("etcd         failing  no control plane runs that could be asked"),
        "{}",
        said.stdout
    );
}
