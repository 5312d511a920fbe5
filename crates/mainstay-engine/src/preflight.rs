//! What the token must be allowed to do, compared with what it is, before the first change.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_plan::{Observed, largest_storage};
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

fn purposes(spec: &Spec, observed: Option<&Observed>) -> Vec<Purpose> {
    let pool = spec.datacenter.pool.as_ref().and_then(|pool| pool.as_str().parse().ok());
    let scope = pool.map_or(Scope::All, Scope::Pool);
    let mut purposes = vec![Purpose::Inventory, Purpose::Machines(scope.clone())];
    if spec.distro.has_guest_agent() {
        purposes.push(Purpose::AgentAddresses(scope));
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
        zone: LOCAL_ZONE.into(),
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
        names.extend(chosen(spec, observed, "images"));
    }
    names
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

/// The pveum commands that grant this to a user or token: `user@realm`, or `user@realm!token`.
pub fn commands(grants: &[Grant], to: &str) -> Vec<String> {
    let mut roles: BTreeMap<BTreeSet<String>, String> = BTreeMap::new();
    let mut lines = Vec::new();
    for grant in grants {
        let privileges: BTreeSet<String> = grant.privileges.iter().map(ToString::to_string).collect();
        let role = roles.entry(privileges.clone()).or_insert_with(|| {
            let role = role_name(&grant.path);
            let list: Vec<String> = privileges.into_iter().collect();
            lines.push(format!("pveum role add {role} --privs '{}'", list.join(" ")));
            role
        });
        let role = role.clone();
        lines.extend(acl_lines(grant, to, &role));
    }
    lines
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
