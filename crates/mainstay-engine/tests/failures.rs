//! The failures that people of this field meet most, each by its name: what happens, and what the user reads.
//!
//! `docs/reference/failures.md` lists all of them with the test that shows each; those that need a whole world are here.

use crate::days::once::{Then, befalls_once, on_small_stage};
use crate::days::shape::Shape;
use crate::stage::{Stage, on_stage, settled};
use mainstay_engine::{Event, EventRecord, FileStore, RunError, StepEvent};
use mainstay_sim::WorldSpec;
use pve_sim::faults::{Fault, Rule};
use pve_sim::{Observer, Seen};
use std::sync::{Arc, Mutex};

const CREATE: &str = "POST /nodes/{node}/qemu";
const FILL: &str = "POST /nodes/{node}/qemu/{vmid}/config";
const START: &str = "POST /nodes/{node}/qemu/{vmid}/status/start";
const DELETE: &str = "DELETE /nodes/{node}/qemu/{vmid}";

fn refuse(status: u16, reason: &str) -> Fault {
    let reason = reason.into();
    Fault::Refuse { status, reason }
}

fn fail(error: &str) -> Fault {
    let error = error.into();
    Fault::FailTask { seconds: 1.0, error }
}

/// One run of `up` and one of `down` live with it.
#[track_caller]
fn passes(call: &str, fault: &Fault) {
    assert_eq!(befalls_once(call, fault, Then::Nothing), Vec::<String>::new(), "{call}");
}

fn always(call: &str, then: Fault) -> Rule {
    Rule {
        call: call.into(),
        path: None,
        from: 1,
        times: None,
        chance: 1.0,
        then,
    }
}

/// What the user reads when this befalls every such call of an `up`.
fn reads(call: &str, fault: Fault) -> String {
    on_small_stage(async |stage, life| {
        stage.world.datacenter().faults().add(always(call, fault));
        let error = stage.up(&life.file).await.expect_err("it cannot go well");
        assert_eq!(life.watch.all_wrong(), Vec::<String>::new());
        told(&error)
    })
}

/// The failures of a run as the report prints them: what, why, causes and remedy.
fn told(error: &RunError) -> String {
    let RunError::StepsFailed { failed, .. } = error else {
        return format!("{error:?}");
    };
    let one = |failure: &mainstay_engine::Failure| {
        let why = failure.why.iter().cloned();
        let help = failure.help.iter().cloned();
        let parts: Vec<String> = std::iter::once(failure.to_string())
            .chain(why)
            .chain(failure.causes())
            .chain(help)
            .collect();
        parts.join("\n")
    };
    failed.iter().map(|(_, failure)| one(failure)).collect::<Vec<_>>().join("\n")
}

#[test]
fn the_lock_of_a_storage_that_many_want_is_waited_for() {
    passes(
        "task qmcreate",
        &fail("can't lock file '/var/lock/pve-manager/pve-storage-local-lvm' - got timeout"),
    );
    passes(
        "task qmconfig",
        &fail("cfs-lock 'storage-nfs' error: got lock request timeout"),
    );
}

#[test]
fn a_stranger_who_takes_our_vmid_at_the_last_moment_keeps_it() {
    on_small_stage(async |stage, life| {
        // Between our look and our claim.
        let intruder = Arc::new(Intruder::default());
        stage.world.datacenter().observe(intruder.clone());
        let (up, ()) = tokio::join!(stage.up(&life.file), async {
            intruder.asked.notified().await;
            let config = [("name".to_owned(), "theirs".to_owned())];
            life.watch.intrudes(3000);
            stage.world.datacenter().lab().create_vm(3000, "pve2", config.into());
        });
        let error = up.expect_err("the VMID is taken");
        assert!(format!("{error:?}").contains("3000"), "{error:?}");
        assert_eq!(life.watch.all_wrong(), Vec::<String>::new());
        let now = stage.world.datacenter().inspect();
        assert_eq!(now.vms[&3000].config["name"], "theirs");
    });
}

/// Notifies when free VMIDs were looked for.
#[derive(Default)]
struct Intruder {
    asked: tokio::sync::Notify,
}

impl Observer for Intruder {
    fn request(&self, seen: &Seen) {
        if seen.path.ends_with("/cluster/resources") {
            self.asked.notify_one();
        }
    }
}

#[test]
fn a_connection_that_was_reused_between_hosts_is_tried_again() {
    passes(CREATE, &refuse(599, "Too many redirections"));
    passes(START, &refuse(599, "Too many redirections"));
}

#[test]
fn a_machine_that_already_runs_is_started() {
    passes("task qmstart", &fail("VM 2000 already running"));
}

#[test]
fn a_stop_that_is_not_over_yet_is_waited_for_before_the_deletion() {
    passes("task qmdestroy", &fail("VM 2000 is running - destroy failed"));
    passes(DELETE, &refuse(500, "VM 2000 is running - destroy failed"));
}

#[test]
fn a_host_that_cannot_start_a_worker_is_asked_again() {
    passes(FILL, &refuse(500, "got no worker upid - start worker failed"));
    passes(CREATE, &refuse(500, "starting worker failed: unable to fork"));
}

#[test]
fn a_worker_that_was_killed_is_looked_after() {
    for task in ["qmstart", "download", "qmdestroy", "resize"] {
        passes(&format!("task {task}"), &Fault::KillTask { seconds: 0.1 });
    }
}

#[test]
fn an_import_of_twenty_five_minutes_is_waited_for_and_told_of() {
    let slow = "faults:\n  - { call: task qmconfig, then: { slow-task: { seconds: 1500 } } }\n";
    let file = Shape::small().file();
    on_stage(9, WorldSpec::parse(slow).expect("a world"), async |stage| {
        let all = Arc::new(All::default());
        stage.world.datacenter().observe(all.clone());
        let begun = tokio::time::Instant::now();
        settled(stage, stage.up(&file).await);
        let took = begun.elapsed().as_secs();
        assert!((1500..2100).contains(&took), "{took} s");
        let imports: Vec<String> = all
            .0
            .lock()
            .expect("reads")
            .iter()
            .filter(|seen| imports(seen))
            .map(|seen| seen.path.clone())
            .collect();
        let machines: std::collections::BTreeSet<&String> = imports.iter().collect();
        assert_eq!(
            (imports.len(), machines.len()),
            (2, 2),
            "one request for each machine: {imports:?}"
        );
        let told = waits(stage);
        assert!(
            told.iter()
                .any(|what| what.starts_with("copied 22") && what.ends_with(" of 4403 MB, 8 MB/s")),
            "{told:?}"
        );
        assert!(stage.plan(&file).await.steps.is_empty());
    });
}

fn imports(seen: &Seen) -> bool {
    seen.verb == "POST" && text(&seen.params, "scsi0").contains("import-from")
}

/// What was waited for, in the order in which it was told.
fn waits(stage: &Stage) -> Vec<String> {
    let told = stage.told.lock().expect("reads");
    let wait = |told: &EventRecord| match &told.event {
        Event::Step {
            now: StepEvent::Wait { what, .. },
            ..
        } => Some(what.clone()),
        _ => None,
    };
    told.iter().filter_map(wait).collect()
}

#[test]
fn a_processor_that_the_host_cannot_give_is_told_with_the_words_of_qemu() {
    let read = reads("task qmstart", fail("start failed: QEMU exited with code 1"));
    assert!(read.contains("QEMU exited with code 1"), "{read}");
}

#[test]
fn a_full_storage_is_told_with_the_words_of_the_task() {
    let read = reads(
        "task qmconfig",
        fail("unable to create image: lvcreate 'pve/vm-2000-disk-0' error: not enough free space in volume group"),
    );
    assert!(read.contains("not enough free space"), "{read}");
}

#[test]
fn a_missing_right_is_told_with_its_path_and_its_privilege() {
    let read = reads(
        CREATE,
        refuse(403, "Permission check failed (/sdn/zones/localnetwork/vmbr0, SDN.Use)"),
    );
    assert!(
        read.contains("SDN.Use") && read.contains("/sdn/zones/localnetwork/vmbr0"),
        "{read}"
    );
}

#[test]
fn a_download_that_is_an_error_page_is_refused_before_a_machine_is_made_of_it() {
    let read = reads("task download", fail("checksum mismatch: got '00' != expect '11'"));
    assert!(read.contains("checksum mismatch"), "{read}");
}

/// Options that only root may set never work with a token, and every version has more of them.
#[test]
fn no_request_has_an_option_that_only_root_may_set() {
    let asked = Arc::new(Asked::default());
    on_small_stage(async |stage, life| {
        stage.world.datacenter().observe(asked.clone());
        life.must_up().await;
        life.must_down().await;
    });
    let asked = asked.0.lock().expect("reads");
    assert!(asked.len() >= 5, "{asked:?}");
    let root_only = [
        "args",
        "hookscript",
        "hugepages",
        "affinity",
        "arch",
        "skiplock",
        "migratedfrom",
    ];
    let found: Vec<&String> = asked.iter().filter(|key| root_only.contains(&key.as_str())).collect();
    assert!(found.is_empty(), "{found:?}");
}

/// The parameters of all requests that change something.
#[derive(Default)]
struct Asked(Mutex<std::collections::BTreeSet<String>>);

impl Observer for Asked {
    fn request(&self, seen: &Seen) {
        if let (true, Some(params)) = (seen.verb != "GET", seen.params.as_object()) {
            self.0.lock().expect("writes").extend(params.keys().cloned());
        }
    }
}

/// A world in which the token may do exactly what `grant` says.
async fn least(root: &Stage, file: &str, pve: &str) -> WorldSpec {
    let spec = root.spec(file);
    let observed = root.observed(file).await;
    let version = mainstay_engine::pve_version(&pve.parse().expect("a version"));
    let grants = mainstay_engine::preflight::grants(&spec, Some(&observed), version);
    let (mut roles, mut acl) = (String::new(), String::new());
    for (number, grant) in grants.iter().enumerate() {
        let privileges: Vec<String> = grant.privileges.iter().map(ToString::to_string).collect();
        roles += &format!("  Least{number}: [{}]\n", privileges.join(", "));
        for (kind, who) in [("user", "ops@pve"), ("token", "ops@pve!least")] {
            let propagate = u8::from(grant.propagate);
            acl += &format!(
                "  - {{ path: {}, ugid: \"{who}\", type: {kind}, roleid: Least{number}, propagate: {propagate} }}\n",
                grant.path
            );
        }
    }
    let world = format!(
        "pve: {{ version: {pve}, release: \"{}\" }}\n\
         users: {{ \"root@pam\": {{}}, \"ops@pve\": {{}} }}\n\
         tokens: {{ \"ops@pve!least\": {{ privsep: 1, secret: 00000000-0000-4000-8000-000000000009 }} }}\n\
         roles:\n{roles}acl:\n{acl}",
        &pve[..3]
    );
    WorldSpec::parse(&world).expect("a world")
}

#[test]
fn exactly_the_rights_that_grant_prints_are_enough() {
    let file = Shape::small().file();
    for pve in ["9.2.11", "8.4.14"] {
        let world = on_stage(1, WorldSpec::default(), async |stage| least(stage, &file, pve).await);
        on_stage(2, world, async |stage| {
            settled(stage, stage.up(&file).await);
            settled(stage, stage.down(&file).await);
            let left = stage.world.datacenter().inspect().vms;
            assert!(left.is_empty(), "{:?}", left.keys());
            assert!(stage.disk.read("state".as_ref()).expect("reads").is_none());
        });
    }
}

/// What one `up` and one `down` send to this call, by parameter.
fn sent(verb: &str, end: &str) -> Vec<serde_json::Value> {
    let all = Arc::new(All::default());
    on_small_stage(async |stage, life| {
        stage.world.datacenter().observe(all.clone());
        life.must_up().await;
        life.must_down().await;
    });
    let all = all.0.lock().expect("reads");
    let fits = |seen: &&Seen| seen.verb == verb && seen.template.is_some_and(|template| template.ends_with(end));
    all.iter().filter(fits).map(|seen| seen.params.clone()).collect()
}

#[derive(Default)]
struct All(Mutex<Vec<Seen>>);

impl Observer for All {
    fn request(&self, seen: &Seen) {
        self.0.lock().expect("writes").push(seen.clone());
    }
}

fn text<'a>(params: &'a serde_json::Value, key: &str) -> &'a str {
    params.get(key).and_then(serde_json::Value::as_str).unwrap_or_default()
}

#[test]
fn a_machine_has_its_own_mac_its_boot_order_and_no_foreign_secure_boot_keys() {
    let claims = sent("POST", "/qemu");
    assert_eq!(claims.len(), 2);
    let fills = sent("POST", "/{vmid}/config");
    for params in claims.iter().chain(&fills) {
        let net = text(params, "net0");
        assert!(
            net.is_empty() || net.starts_with("virtio="),
            "a net string without its MAC gives a new one: {net}"
        );
        let efi = text(params, "efidisk0");
        assert!(efi.is_empty() || efi.contains("pre-enrolled-keys=0"), "{efi}");
    }
    let whole = |key: &str, part: &str| {
        claims
            .iter()
            .chain(&fills)
            .filter(|params| text(params, key).contains(part))
            .count()
    };
    assert_eq!(whole("net0", "virtio="), 2);
    assert_eq!(whole("boot", "order=scsi0"), 2);
}

#[test]
fn a_machine_goes_with_what_it_names_and_is_taken_out_of_nothing() {
    let deletions = sent("DELETE", "/{vmid}");
    assert_eq!(deletions.len(), 2);
    for params in deletions {
        let is_off = |key: &str| params.get(key).is_none_or(|value| value.to_string().trim_matches('"') == "0");
        assert!(is_off("purge") && is_off("destroy-unreferenced-disks"), "{params}");
    }
}

#[test]
fn image_and_installer_are_of_one_schematic_and_addresses_are_the_files_own() {
    on_small_stage(async |stage, life| {
        let spec = stage.spec(&life.file);
        let versions = mainstay_plan::derive::versions(&spec, None, None).expect("versions");
        let image = mainstay_plan::derive::image(&spec, &versions, &mainstay_plan::Pins::default()).expect("an image");
        assert!(
            image.file.contains("nocloud") && image.url.contains(&image.schematic.as_ref().expect("a schematic").id),
            "{image:?}"
        );
        let configs =
            mainstay_plan::derive::configs(&spec, &stage.secrets, &versions, &mainstay_plan::Pins::default()).expect("configs");
        for config in configs.values() {
            let config = config.expose();
            assert!(config.contains(&format!(
                "nocloud-installer/{}:v1.13.9",
                image.schematic.as_ref().expect("a schematic").id
            )));
            assert!(config.contains("validSubnets") && !config.contains("dhcp: true"));
        }
    });
}

#[test]
fn an_agent_that_is_never_there_is_never_waited_for() {
    let asked = Arc::new(Paths::default());
    on_small_stage(async |stage, life| {
        stage.world.datacenter().observe(asked.clone());
        life.must_up().await;
        life.must_down().await;
    });
    let asked = asked.0.lock().expect("reads");
    assert!(!asked.iter().any(|path| path.contains("/agent")), "{asked:?}");
    assert!(!asked.iter().any(|path| path.ends_with("/status/shutdown")), "{asked:?}");
}

#[derive(Default)]
struct Paths(Mutex<Vec<String>>);

impl Observer for Paths {
    fn request(&self, seen: &Seen) {
        self.0.lock().expect("writes").push(seen.path.clone());
    }
}
