//! What the token must be allowed to do, compared with what it is, before the first change.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_plan::{Action, Mark, Observed, Plan, default_disks, largest_storage};
use mainstay_spec::{Hosts, Spec};
use pve_api::PveVersion;
use pve_api::access::Permissions;
use pve_api::privileges::{Grant, LOCAL_ZONE, Purpose, Scope, needed};

/// Everything that this file asks of Proxmox VE, as least rights.
///
/// Storages that the file does not name are taken from what was seen; without a look they cannot be told, and are left out.
pub fn grants(spec: &Spec, observed: Option<&Observed>, version: PveVersion) -> Vec<Grant> {
    needed(&purposes(spec, observed), version)
}

/// The rights that are lacking.
pub fn missing(spec: &Spec, observed: &Observed, version: PveVersion, held: &Permissions) -> Vec<Grant> {
    grants(spec, Some(observed), version)
        .iter()
        .filter_map(|grant| grant.missing(held))
        .collect()
}

/// The rights that the steps of a plan need besides those of every run.
pub fn missing_for(plan: &Plan, version: PveVersion, held: &Permissions) -> Vec<Grant> {
    let pools = plan.steps.iter().filter_map(|step| match &step.action {
        Action::MachinePool { from, to, .. } => Some(from.iter().chain(to)),
        _ => None,
    });
    let names: BTreeSet<&String> = pools.flatten().collect();
    let purposes: Vec<Purpose> = names
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .map(Purpose::Pool)
        .collect();
    needed(&purposes, version)
        .iter()
        .filter_map(|grant| grant.missing(held))
        .collect()
}

fn purposes(spec: &Spec, observed: Option<&Observed>) -> Vec<Purpose> {
    let pool = spec.datacenter.pool.as_ref().and_then(|pool| pool.as_str().parse().ok());
    let scope = pool.map_or(Scope::All, Scope::Pool);
    let mut purposes = vec![Purpose::Inventory, Purpose::Machines(scope)];
    if spec.machines.iter().any(|machine| machine.shape.startup_order.is_some()) {
        purposes.push(Purpose::StartupOrder);
    }
    let disks = disk_storages(spec, observed);
    purposes.extend(disks.iter().filter_map(|name| name.parse().ok()).map(Purpose::Disks));
    let images = image_storages(spec, observed);
    purposes.extend(
        images
            .iter()
            .filter_map(|name| name.parse().ok())
            .map(|storage| Purpose::Images {
                storage,
                hosts: hosts(spec, observed),
            }),
    );
    let network = &spec.network;
    purposes.push(Purpose::Bridge {
        zone: observed
            .and_then(|observed| observed.zone.clone())
            .unwrap_or_else(|| LOCAL_ZONE.into()),
        bridge: network.bridge.to_string(),
        vlan: network.vlan,
    });
    purposes
}

/// Storages that disks and seeds go to.
fn disk_storages(spec: &Spec, observed: Option<&Observed>) -> BTreeSet<String> {
    let named = &spec.datacenter.storage;
    let mut names: BTreeSet<String> = named.disks.iter().chain(&named.seeds).map(ToString::to_string).collect();
    let own = spec
        .machines
        .iter()
        .flat_map(|machine| std::iter::once(&machine.shape.disk).chain(machine.shape.disks.iter().map(|extra| &extra.disk)));
    names.extend(own.filter_map(|disk| disk.storage.as_ref()).map(ToString::to_string));
    if named.disks.is_none() {
        names.extend(default_disk_storages(spec, observed));
    }
    names
}

/// As the plan chooses them: where the machines of the cluster have their system disks, else the best of each host.
fn default_disk_storages(spec: &Spec, observed: Option<&Observed>) -> BTreeSet<String> {
    let Some(observed) = observed else { return BTreeSet::new() };
    let configs = observed.vms.yes().into_iter().flatten().filter_map(|(_, vm)| vm.config.yes());
    let ours = configs.filter(|config| Mark::parse(&config.description).is_some_and(|mark| mark.cluster == spec.name.as_str()));
    let used: Vec<&str> = ours.filter_map(|config| Some(config.disks.get("scsi0")?.storage())).collect();
    let names = host_names(spec, Some(observed));
    let hosts = names.iter().filter_map(|name| observed.hosts.get(name));
    hosts
        .filter_map(|host| default_disks(host.storages.yes()?, used.iter().copied()))
        .map(str::to_owned)
        .collect()
}

fn image_storages(spec: &Spec, observed: Option<&Observed>) -> BTreeSet<String> {
    match &spec.datacenter.storage.images {
        Some(images) => [images.to_string()].into(),
        None => chosen(spec, observed, "import"),
    }
}

/// What the plan chooses on each host that a machine may come to.
fn chosen(spec: &Spec, observed: Option<&Observed>, content: &str) -> BTreeSet<String> {
    let names = host_names(spec, observed);
    let hosts = names.iter().filter_map(|name| observed?.hosts.get(name));
    hosts
        .filter_map(|host| largest_storage(host.storages.yes()?, content))
        .map(str::to_owned)
        .collect()
}

/// Hosts that may have to fetch the image: those that the file names, else all.
fn hosts(spec: &Spec, observed: Option<&Observed>) -> Vec<pve_api::Host> {
    let names = host_names(spec, observed);
    names.iter().filter_map(|name| name.parse().ok()).collect()
}

fn host_names(spec: &Spec, observed: Option<&Observed>) -> BTreeSet<String> {
    let mut named: BTreeSet<String> = BTreeSet::new();
    for machine in &spec.machines {
        match &machine.hosts {
            Hosts::Any => named.extend(observed.into_iter().flat_map(|observed| observed.hosts.keys().cloned())),
            Hosts::OneOf(list) => named.extend(list.iter().map(ToString::to_string)),
            Hosts::Pinned(host) => drop(named.insert(host.to_string())),
        }
    }
    named
}

/// The pveum commands that grant this to a user or token: `user@realm`, or `user@realm!token`. Each may be run again. `only`: the paths
/// for which they are printed; a role that paths share is the same whichever of them are printed.
pub fn commands(grants: &[Grant], only: Option<&BTreeSet<String>>, to: &str) -> Vec<String> {
    let mut roles: BTreeMap<BTreeSet<String>, String> = BTreeMap::new();
    let mut printed: BTreeSet<String> = BTreeSet::new();
    let mut lines = Vec::new();
    for grant in grants {
        let privileges: BTreeSet<String> = grant.privileges.iter().map(ToString::to_string).collect();
        let role = roles
            .entry(privileges.clone())
            .or_insert_with(|| role_name(&grant.path))
            .clone();
        if only.is_some_and(|only| !only.contains(&grant.path)) {
            continue;
        }
        if printed.insert(role.clone()) {
            lines.push(role_command(&role, &privileges));
        }
        lines.extend(acl_lines(grant, to, &role));
    }
    lines
}

/// A role that is there gets what it lacks, and keeps what others gave it.
pub fn role_command(role: &str, privileges: &BTreeSet<String>) -> String {
    let list = privileges.iter().cloned().collect::<Vec<_>>().join(" ");
    format!("pveum role add {role} --privs '{list}' || pveum role modify {role} --append 1 --privs '{list}'")
}

/// The pools that a nested pool lies in come first. One that is there is no error.
pub fn pool_commands(pool: &str) -> Vec<String> {
    let ends = pool.match_indices('/').map(|(at, _)| at).chain([pool.len()]);
    ends.map(|end| format!("pveum pool add {} --comment 'mainstay' || true", &pool[..end]))
        .collect()
}

/// A user that is there stays as it is.
pub fn user_command(user: &str) -> String {
    format!("pveum user add '{user}' --comment 'mainstay' || true")
}

/// A token that is there keeps its secret, which is shown when it is made and never again.
pub fn token_command(user: &str, token: &str) -> String {
    format!("pveum user token add '{user}' '{token}' --privsep 1 || pveum user token modify '{user}' '{token}' --privsep 1")
}

/// A token has at most the rights of its user, so both need the entry.
fn acl_lines(grant: &Grant, to: &str, role: &str) -> Vec<String> {
    let propagate = u8::from(grant.propagate);
    let line = |who: &str| format!("pveum acl modify {} {who} --roles {role} --propagate {propagate}", grant.path);
    match to.split_once('!') {
        Some((user, _)) => vec![line(&format!("--users '{user}'")), line(&format!("--tokens '{to}'"))],
        None => vec![line(&format!("--users '{to}'"))],
    }
}

fn role_name(path: &str) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty());
    let name: String = parts
        .map(|part| part.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-"))
        .collect::<Vec<_>>()
        .join("-");
    if name.is_empty() {
        "Mainstay".into()
    } else {
        format!("Mainstay-{name}")
    }
}
