//! Which versions a cluster gets.

use mainstay_plan::{Guest, PowerState, Seen, Versions, derive, running};
use mainstay_spec::Distro;
use semver::Version;

use crate::world::{ID, ONE, THREE_AND_TWO, settled, spec};

fn pick(extra: &str, running: Option<&Versions>) -> String {
    let spec = spec(&format!("{extra}{ONE}"));
    match derive::resolve(&spec, running) {
        Ok(versions) => format!("{} {}", versions.release, versions.kubernetes),
        Err(error) => error.to_string(),
    }
}

fn old() -> Versions {
    Versions {
        distro: Distro::Talos,
        release: Version::new(1, 12, 3),
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
fn the_newest_that_a_control_plane_runs_is_what_runs() {
    let mut world = settled(THREE_AND_TWO);
    world.guest("prod-cp-2").system.as_mut().unwrap().0 = Version::new(1, 14, 0);
    assert_eq!(running(&world.look(), ID).unwrap().release, Version::new(1, 14, 1));
    world.guest("prod-cp-2").system.as_mut().unwrap().0 = Version::new(1, 14, 2);
    world.guest("prod-w-1").system.as_mut().unwrap().0 = Version::new(1, 14, 3);
    assert_eq!(running(&world.look(), ID).unwrap().release, Version::new(1, 14, 2));
}

#[test]
fn a_machine_that_does_not_tell_its_release_yet_runs_no_older_one() {
    let world = settled(THREE_AND_TWO);
    let mut observed = world.look();
    for name in ["prod-w-1", "prod-cp-1"] {
        if let Some(Guest::Running(node)) = observed.guests.get_mut(name) {
            (node.release, node.kubernetes) = (None, None);
        }
    }
    assert_eq!(running(&observed, ID), running(&world.look(), ID));
}

#[test]
fn marks_tell_what_silent_machines_run() {
    let mut world = settled(THREE_AND_TWO);
    world.vms().values_mut().for_each(|vm| vm.power = PowerState::Stopped);
    assert_eq!(running(&world.look(), ID).unwrap().release, Version::new(1, 14, 1));
    assert_eq!(running(&world.look(), uuid::Uuid::nil()), None);
    world.observed.vms = Seen::Unknown("403".to_owned());
    assert_eq!(running(&world.observed, ID), None);
}
