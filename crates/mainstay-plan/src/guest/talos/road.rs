//! The way from the versions that a cluster runs to those of the file: one minor at a time, of Talos or of Kubernetes.

use std::collections::BTreeSet;

use semver::Version;
use talos_config::versions::{Contract, RELEASES, Release};

use crate::versions::Versions;

/// Minors of Talos and of Kubernetes.
type Pair = (u64, u64);

/// The versions after each hop; the last is the target. Every pair on the way is one that Talos runs. Empty where nothing is to change.
pub(in crate::guest) fn road(from: &Versions, to: &Versions) -> Result<Vec<Versions>, String> {
    let mut hops = Vec::new();
    let mut at = from.clone();
    // Another patch of the same minor comes first, so that the minors that follow begin with its fixes.
    if Contract::of(&at.release) == Contract::of(&to.release) && at.release < to.release {
        at.release = to.release.clone();
        hops.push(at.clone());
    }
    let goal = (to.release.minor, to.kubernetes.minor);
    let mut dead = BTreeSet::new();
    let steps =
        walk((at.release.minor, at.kubernetes.minor), goal, &mut dead).ok_or_else(|| missing_edge(&at, dead.last().copied()))?;
    for (talos, kubernetes) in steps {
        if at.release.minor == talos {
            at.kubernetes = kubernetes_of(kubernetes, to);
        } else {
            at.release = release_of(talos, to);
        }
        hops.push(at.clone());
    }
    if at.kubernetes < to.kubernetes && at.kubernetes.minor == to.kubernetes.minor {
        at.kubernetes = to.kubernetes.clone();
        hops.push(at);
    }
    Ok(hops)
}

/// The steps from one pair to another, Talos first where both are possible. `dead`: pairs from which the goal cannot be reached.
fn walk(at: Pair, goal: Pair, dead: &mut BTreeSet<Pair>) -> Option<Vec<Pair>> {
    if at == goal {
        return Some(Vec::new());
    }
    let next = [(at.0 + 1, at.1), (at.0, at.1 + 1)];
    let allowed = next.into_iter().filter(|(talos, kubernetes)| {
        *talos <= goal.0
            && *kubernetes <= goal.1
            && row(*talos).is_some_and(|release| release.runs(&Version::new(1, *kubernetes, 0)))
    });
    for pair in allowed {
        if dead.contains(&pair) {
            continue;
        }
        if let Some(mut rest) = walk(pair, goal, dead) {
            rest.insert(0, pair);
            return Some(rest);
        }
    }
    dead.insert(at);
    None
}

fn row(minor: u64) -> Option<&'static Release> {
    RELEASES.iter().find(|release| release.contract.minor == minor)
}

fn release_of(minor: u64, to: &Versions) -> Version {
    let newest = row(minor).map(|release| release.newest.clone());
    newest
        .filter(|_| minor != to.release.minor)
        .unwrap_or_else(|| to.release.clone())
}

/// The patch that a Talos release ships with, else the first one of the minor, which always exists.
fn kubernetes_of(minor: u64, to: &Versions) -> Version {
    if minor == to.kubernetes.minor {
        return to.kubernetes.clone();
    }
    let shipped = RELEASES.iter().find(|release| release.kubernetes.minor == minor);
    shipped.map_or_else(|| Version::new(1, minor, 0), |release| release.kubernetes.clone())
}

fn missing_edge(from: &Versions, dead: Option<Pair>) -> String {
    let (talos, kubernetes) = dead.unwrap_or((from.release.minor, from.kubernetes.minor));
    format!("no supported step leads on from Talos 1.{talos} with Kubernetes 1.{kubernetes}")
}

#[cfg(test)]
mod tests {
    use mainstay_spec::Distro;

    use super::*;

    fn versions(release: &str, kubernetes: &str) -> Versions {
        Versions {
            distro: Distro::Talos,
            release: release.parse().unwrap(),
            kubernetes: kubernetes.parse().unwrap(),
        }
    }

    fn way(from: (&str, &str), to: (&str, &str)) -> String {
        match road(&versions(from.0, from.1), &versions(to.0, to.1)) {
            Ok(hops) => hops
                .iter()
                .map(|hop| format!("{}/{}", hop.release, hop.kubernetes))
                .collect::<Vec<_>>()
                .join(" "),
            Err(why) => why,
        }
    }

    #[test]
    fn talos_goes_first_and_every_pair_on_the_way_is_supported() {
        assert_eq!(
            way(("1.12.3", "1.34.1"), ("1.14.1", "1.36.3")),
            "1.13.10/1.34.1 1.14.1/1.34.1 1.14.1/1.35.4 1.14.1/1.36.3"
        );
        // Talos 1.14 runs no Kubernetes 1.31, so Kubernetes rises in between.
        assert_eq!(
            way(("1.12.3", "1.31.0"), ("1.14.1", "1.32.0")),
            "1.13.10/1.31.0 1.13.10/1.32.0 1.14.1/1.32.0"
        );
    }

    #[test]
    fn patches_are_hops_of_their_own() {
        assert_eq!(way(("1.13.8", "1.36.1"), ("1.13.9", "1.36.2")), "1.13.9/1.36.1 1.13.9/1.36.2");
        assert_eq!(way(("1.13.9", "1.36.2"), ("1.13.9", "1.36.2")), "");
    }

    #[test]
    fn a_way_that_does_not_exist_names_where_it_ends() {
        assert_eq!(
            way(("1.12.3", "1.38.0"), ("1.14.1", "1.39.0")),
            "no supported step leads on from Talos 1.12 with Kubernetes 1.38"
        );
    }
}
