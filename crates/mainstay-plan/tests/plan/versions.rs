//! Which versions a cluster gets.

use mainstay_plan::{Power, Seen, Talos, Versions, resolve, running};
use semver::Version;

use crate::world::{ID, ONE, THREE_AND_TWO, settled, spec};

fn pick(extra: &str, running: Option<&Versions>) -> String {
    let spec = spec(&format!("{extra}{ONE}"));
    match resolve(&spec, running) {
        Ok(versions) => format!("{} {}", versions.talos, versions.kubernetes),
        Err(error) => error.to_string(),
    }
}

fn old() -> Versions {
    Versions {
        talos: Version::new(1, 12, 3),
        kubernetes: Version::new(1, 34, 1),
    }
}

#[test]
fn a_new_cluster_gets_the_newest_pair_that_fits() {
    assert_eq!(pick("", None), "1.14.1 1.37.0");
    assert_eq!(pick("talos: { version: 1.12 }\n", None), "1.12.11 1.35.4");
    assert_eq!(pick("talos: { version: 1.12.1 }\n", None), "1.12.1 1.35.4");
    assert_eq!(pick("kubernetes: 1.36\n", None), "1.14.1 1.36.3");
}

#[test]
fn a_running_cluster_keeps_what_it_runs() {
    assert_eq!(pick("", Some(&old())), "1.12.3 1.34.1");
    assert_eq!(pick("talos: { version: 1.12 }\n", Some(&old())), "1.12.3 1.34.1");
}

#[test]
fn the_oldest_of_what_runs_is_what_runs() {
    let world = settled(THREE_AND_TWO);
    let mut observed = world.look();
    if let Some(Talos::Running(node)) = observed.talos.get_mut("prod-w-1") {
        node.version = Version::new(1, 14, 0);
    }
    assert_eq!(running(&observed, ID).unwrap().talos, Version::new(1, 14, 0));
}

#[test]
fn marks_tell_what_silent_machines_run() {
    let mut world = settled(THREE_AND_TWO);
    world.vms().values_mut().for_each(|vm| vm.power = Power::Stopped);
    assert_eq!(running(&world.look(), ID).unwrap().talos, Version::new(1, 14, 1));
    assert_eq!(running(&world.look(), uuid::Uuid::nil()), None);
    world.observed.vms = Seen::Unknown("403".to_owned());
    assert_eq!(running(&world.observed, ID), None);
}
