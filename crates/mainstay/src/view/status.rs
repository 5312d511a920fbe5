//! Machines, etcd, Kubernetes and certificates on one page.

use jiff::Timestamp;
use mainstay_engine::ClusterHealth;
use mainstay_plan::addon::release::HelmStatus;
use mainstay_plan::addon::wanted::{ChartWish, chart_wishes};
use mainstay_plan::{ClusterSecrets, EtcdState, Guest, Mark, Observed, PowerState, Seen, Vm};
use mainstay_spec::{Cni, Machine, Role, Spec};
use serde_json::{Value, json};
use uuid::Uuid;

/// Everything that `status` says.
pub struct StatusPage {
    machines: Vec<StatusRow>,
    findings: Vec<Finding>,
}

struct StatusRow {
    machine: String,
    vmid: u32,
    host: String,
    address: String,
    vm: String,
    guest: String,
    etcd: String,
    node: String,
}

impl StatusRow {
    fn cells(&self) -> [String; 8] {
        let vmid = self.vmid.to_string();
        [
            &self.machine,
            &vmid,
            &self.host,
            &self.address,
            &self.vm,
            &self.guest,
            &self.etcd,
            &self.node,
        ]
        .map(Clone::clone)
    }
}

struct Finding {
    about: &'static str,
    verdict: Verdict,
    what: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Ok,
    Due,
    Failing,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Due => "due",
            Self::Failing => "failing",
        }
    }
}

/// Breaks a text at blanks into lines of at most `width` characters.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// What is known of a cluster beside its file.
pub struct StatusFacts<'a> {
    pub secrets: Option<&'a ClusterSecrets>,
    pub observed: &'a Observed,
    /// `None`: nothing was asked, since there are no secrets.
    pub health: Option<&'a ClusterHealth>,
    pub recipients: usize,
    pub now: Timestamp,
}

pub fn page(spec: &Spec, facts: &StatusFacts<'_>) -> StatusPage {
    let StatusFacts {
        secrets,
        observed,
        health,
        recipients,
        now,
    } = *facts;
    let id = secrets.map(ClusterSecrets::id);
    let machines = spec.machines.iter().map(|machine| row(machine, observed, spec, id)).collect();
    // Control planes that exist and do not run cannot be asked whether there is an etcd.
    let is_off = observed.etcd == Seen::No
        && spec
            .control_planes()
            .filter_map(|machine| vm_of(machine, observed, id))
            .any(|vm| vm.power != PowerState::Running);
    let mut findings = vec![
        vms(spec, observed, id),
        etcd(spec, observed, is_off),
        kubernetes(observed, is_off),
        nodes(spec, observed),
        keys(secrets, recipients, now),
    ];
    findings.extend(addons(spec, observed));
    findings.extend(endpoint(spec, observed, secrets.is_some(), health, is_off));
    findings.extend(workloads(spec, observed, health));
    findings.sort_by_key(|finding| finding.verdict);
    StatusPage { machines, findings }
}

/// The VM of this machine, found by its mark: an existing machine keeps its VMID. Else the VM that has the VMID of the file.
fn vm_of<'a>(machine: &Machine, observed: &'a Observed, id: Option<Uuid>) -> Option<&'a Vm> {
    let vms = observed.vms.yes()?;
    let is_it = |vm: &&Vm| {
        let mark = vm.config.yes().and_then(|config| Mark::parse(&config.description));
        mark.is_some_and(|mark| Some(mark.cluster_id) == id && mark.machine == machine.name.as_str())
    };
    vms.values().find(is_it).or_else(|| vms.get(&machine.vmid))
}

fn row(machine: &Machine, observed: &Observed, spec: &Spec, id: Option<Uuid>) -> StatusRow {
    let vm = vm_of(machine, observed, id);
    let name = machine.name.as_str();
    let guest = observed.guests.get(name);
    let node = observed.kubernetes.yes().and_then(|kubernetes| kubernetes.nodes.get(name));
    StatusRow {
        machine: name.to_owned(),
        vmid: vm.map_or(machine.vmid, |vm| vm.vmid),
        host: vm.map_or_else(|| "-".into(), |vm| vm.host.clone()),
        address: machine.address.to_string(),
        vm: power(vm),
        guest: guest.map_or_else(|| "-".into(), stage),
        etcd: if machine.role == Role::ControlPlane {
            member(name, observed, guest)
        } else {
            "-".into()
        },
        node: match node {
            None => "-".into(),
            Some(node) if node.ready => "ready".into(),
            Some(node) if node.stale => "down".into(),
            Some(_) if spec.cni == Cni::None => "no cni".into(),
            Some(_) => "not ready".into(),
        },
    }
}

fn power(vm: Option<&Vm>) -> String {
    match vm.map(|vm| &vm.power) {
        None => "absent".into(),
        Some(PowerState::Running) => "running".into(),
        Some(PowerState::Stopped) => "stopped".into(),
        Some(PowerState::Other(word)) => word.clone(),
        Some(PowerState::Unknown(_)) => "unknown".into(),
    }
}

fn stage(guest: &Guest) -> String {
    match guest {
        Guest::Silent(_) => "silent".into(),
        Guest::AwaitingConfig { .. } => "maintenance".into(),
        Guest::Foreign(_) => "foreign".into(),
        Guest::Running(node) => node.release.as_ref().map_or_else(|| node.stage.clone(), ToString::to_string),
    }
}

fn member(name: &str, observed: &Observed, guest: Option<&Guest>) -> String {
    let listed = observed
        .etcd
        .yes()
        .and_then(|members| members.iter().find(|member| member.name == name));
    match (listed, guest) {
        (Some(member), _) if member.learner => "learner".into(),
        (Some(member), _) if member.healthy => "member".into(),
        (Some(_), _) => "unhealthy".into(),
        (None, Some(Guest::Running(node))) => match node.etcd {
            Seen::Yes(EtcdState::Unhealthy) => "unhealthy".into(),
            Seen::Yes(EtcdState::Left) => "left".into(),
            Seen::Yes(EtcdState::Stillborn) => "never started".into(),
            _ => "-".into(),
        },
        (None, _) => "-".into(),
    }
}

fn finding(about: &'static str, verdict: Verdict, what: impl Into<String>) -> Finding {
    Finding {
        about,
        verdict,
        what: what.into(),
    }
}

fn vms(spec: &Spec, observed: &Observed, id: Option<Uuid>) -> Finding {
    if observed.vms.yes().is_none() {
        return finding(
            "machines",
            Verdict::Failing,
            observed.vms.unknown().unwrap_or("cannot be listed"),
        );
    }
    let missing: Vec<&str> = spec
        .machines
        .iter()
        .filter(|machine| !vm_of(machine, observed, id).is_some_and(|vm| vm.power == PowerState::Running))
        .map(|machine| machine.name.as_str())
        .collect();
    if missing.is_empty() {
        finding(
            "machines",
            Verdict::Ok,
            format!("{} of {} running", spec.machines.len(), spec.machines.len()),
        )
    } else {
        finding(
            "machines",
            Verdict::Failing,
            format!("{} not running: {}", missing.len(), missing.join(", ")),
        )
    }
}

const OFF: &str = "no control plane runs that could be asked";

fn etcd(spec: &Spec, observed: &Observed, is_off: bool) -> Finding {
    match &observed.etcd {
        Seen::No if is_off => finding("etcd", Verdict::Failing, OFF),
        Seen::No => finding("etcd", Verdict::Due, "not bootstrapped"),
        Seen::Unknown(why) => finding("etcd", Verdict::Failing, why.clone()),
        Seen::Yes(members) => {
            let wanted = spec.control_planes().count();
            let voters = members.iter().filter(|member| member.votes()).count();
            let healthy = members.iter().filter(|member| member.votes() && member.healthy).count();
            let quorum = voters / 2 + 1;
            let is_complete = healthy == voters && voters == wanted && members.len() == voters;
            let verdict = if is_complete { Verdict::Ok } else { Verdict::Failing };
            let mut what = format!("{healthy} of {} healthy, quorum {quorum}", super::count(voters, "voter"));
            if voters != wanted {
                what.push_str(&format!("; the file wants {}", super::count(wanted, "control plane")));
            }
            finding("etcd", verdict, what)
        }
    }
}

/// What a control plane says. Whether users reach it is asked at the endpoint.
fn kubernetes(observed: &Observed, is_off: bool) -> Finding {
    match &observed.kubernetes {
        Seen::No if is_off => finding("kubernetes", Verdict::Failing, OFF),
        Seen::Yes(kubernetes) => finding(
            "kubernetes",
            Verdict::Ok,
            format!("a control plane answers, {}", kubernetes.version),
        ),
        Seen::No => finding("kubernetes", Verdict::Due, "not running yet"),
        Seen::Unknown(why) => finding("kubernetes", Verdict::Failing, why.clone()),
    }
}

/// The address that kubeconfig names. Nothing is said where it was not asked although it could have been.
fn endpoint(
    spec: &Spec,
    observed: &Observed,
    has_secrets: bool,
    health: Option<&ClusterHealth>,
    is_off: bool,
) -> Option<Finding> {
    let url = spec.endpoint.url();
    let found = match health.map(|health| &health.endpoint) {
        None if has_secrets => return None,
        None => finding(
            "endpoint",
            Verdict::Due,
            format!("{url} was not asked: there are no secrets yet"),
        ),
        Some(Ok(version)) => finding("endpoint", Verdict::Ok, format!("{url} answers, {version}")),
        Some(Err(_)) if observed.kubernetes == Seen::No && !is_off => {
            finding("endpoint", Verdict::Due, format!("{url}: not running yet"))
        }
        Some(Err(why)) => finding("endpoint", Verdict::Failing, format!("{url} does not answer: {why}")),
    };
    Some(found)
}

/// DNS of the cluster, and what else the distribution runs.
fn workloads(spec: &Spec, observed: &Observed, health: Option<&ClusterHealth>) -> Vec<Finding> {
    let Some(health) = health.filter(|_| observed.kubernetes != Seen::No) else {
        return Vec::new();
    };
    // Without a network plugin no pod of a pod network can start.
    let bad = if spec.cni == Cni::None {
        Verdict::Due
    } else {
        Verdict::Failing
    };
    let dns = match &health.dns {
        Err(why) => finding("dns", Verdict::Failing, why.clone()),
        Ok(state) if state.wanted == 0 => finding("dns", bad, "the cluster has no DNS pods"),
        Ok(state) => {
            let verdict = if state.ready == state.wanted { Verdict::Ok } else { bad };
            finding(
                "dns",
                verdict,
                format!("{} of {} ready", state.ready, super::count(state.wanted, "pod")),
            )
        }
    };
    let system = match &health.system {
        Err(why) => finding("system", Verdict::Failing, why.clone()),
        Ok(state) if state.not_ready.is_empty() => finding(
            "system",
            Verdict::Ok,
            format!("{} of kube-system ready", super::count(state.workloads, "workload")),
        ),
        Ok(state) => finding("system", bad, state.not_ready.join("; ")),
    };
    vec![dns, system]
}

/// Nodes of the file's machines. One that is missing, or whose machine does not run, is not ready.
fn nodes(spec: &Spec, observed: &Observed) -> Finding {
    let Some(kubernetes) = observed.kubernetes.yes() else {
        return finding("nodes", Verdict::Due, "unknown");
    };
    let wanted = spec.machines.len();
    let mut faults = Vec::new();
    let mut ready = 0;
    for machine in &spec.machines {
        match kubernetes.nodes.get(machine.name.as_str()) {
            None => faults.push(format!("{}: not registered", machine.name)),
            Some(node) if node.ready => ready += 1,
            Some(node) if spec.cni == Cni::None && !node.stale => {}
            Some(node) => faults.push(format!("{}: {}", machine.name, node.why)),
        }
    }
    if !faults.is_empty() {
        return finding("nodes", Verdict::Failing, faults.join("; "));
    }
    if spec.cni == Cni::None && ready < wanted {
        return finding(
            "nodes",
            Verdict::Ok,
            format!("{wanted} of {wanted} registered; not ready because of `cni: none`"),
        );
    }
    finding("nodes", Verdict::Ok, format!("{ready} of {wanted} ready"))
}

/// Releases that are missing or not well. `None` for a file without add-ons.
fn addons(spec: &Spec, observed: &Observed) -> Option<Finding> {
    let wishes = chart_wishes(spec);
    if wishes.is_empty() {
        return None;
    }
    let cluster = match &observed.addons.cluster {
        Seen::Yes(cluster) => cluster,
        Seen::No => return Some(finding("add-ons", Verdict::Due, "not installed yet")),
        Seen::Unknown(why) => return Some(finding("add-ons", Verdict::Failing, why.clone())),
    };
    let problem = |wish: &ChartWish| {
        let newest = cluster.releases.get(&wish.key).and_then(|release| release.newest.as_ref());
        let problem = match newest {
            None => "not installed".to_owned(),
            Some(revision) if revision.status != HelmStatus::Deployed => revision.status.as_str().to_owned(),
            Some(_) => wish.workloads.iter().find_map(|workload| {
                let seen = cluster.workloads.iter().find(|(key, _)| {
                    key.kind == workload.kind.as_str() && key.namespace == wish.key.namespace && key.name == workload.name
                });
                Some(format!("{}: {}", workload.name, seen?.1.missing.clone()?))
            })?,
        };
        Some(format!("{}: {problem}", wish.name))
    };
    let problems: Vec<String> = wishes.iter().filter_map(problem).collect();
    Some(if problems.is_empty() {
        finding("add-ons", Verdict::Ok, format!("{} installed", wishes.len()))
    } else {
        finding("add-ons", Verdict::Failing, problems.join("; "))
    })
}

/// The CA that expires first, and whether losing one age key would lose the cluster.
fn keys(secrets: Option<&ClusterSecrets>, recipients: usize, now: Timestamp) -> Finding {
    let Some(secrets) = secrets else {
        return finding("secrets", Verdict::Due, "not created yet: mainstay up creates them");
    };
    let first = secrets.contents().into_iter().filter_map(|(_, expires)| expires).min();
    let days = first.map(|at| at.duration_since(now).as_hours() / 24);
    let expiry = days.map_or_else(
        || "no expiry".to_owned(),
        |days| format!("first certificate expires in {days} days"),
    );
    match (days, recipients) {
        (Some(days), _) if days < 30 => finding("secrets", Verdict::Failing, expiry),
        (_, 0 | 1) => finding(
            "secrets",
            Verdict::Ok,
            format!("{expiry}; only one age key decrypts them: back it up"),
        ),
        _ => finding("secrets", Verdict::Ok, expiry),
    }
}

impl StatusPage {
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict == Verdict::Ok)
    }

    /// The page as text of at most `width` columns.
    pub fn text(&self, width: usize) -> String {
        let mut lines = self.table(width);
        lines.push(String::new());
        for finding in &self.findings {
            let label = format!("{:<12} {:<8} ", finding.about, finding.verdict.as_str());
            for (number, part) in wrapped(&finding.what, width.saturating_sub(label.len())).iter().enumerate() {
                let label = if number == 0 { label.as_str() } else { "" };
                lines.push(format!("{label:<22}{part}"));
            }
        }
        lines.join("\n")
    }

    /// Where not all columns fit, gaps are narrowed first, then VMIDs and hosts are left out: `plan` and Proxmox VE show them too.
    fn table(&self, width: usize) -> Vec<String> {
        let ways = [("  ", &[][..]), (" ", &[]), ("  ", &["VMID"]), ("  ", &["VMID", "HOST"])];
        let tables = ways.map(|(gap, without)| self.columns(gap, without));
        let widest = |table: &Vec<String>| table.iter().map(|line| line.chars().count()).max().unwrap_or(0);
        let fits = tables.iter().position(|table| widest(table) <= width);
        let [.., narrowest] = &tables;
        fits.map_or(narrowest, |at| &tables[at]).clone()
    }

    fn columns(&self, gap: &str, without: &[&str]) -> Vec<String> {
        let titles = ["MACHINE", "VMID", "HOST", "ADDRESS", "VM", "GUEST", "ETCD", "NODE"];
        let mut table = vec![titles.map(str::to_owned)];
        table.extend(self.machines.iter().map(StatusRow::cells));
        let widest = |column: usize| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let columns: Vec<(usize, usize)> = (0..titles.len())
            .filter(|column| !without.contains(&titles[*column]))
            .map(|column| (column, widest(column)))
            .collect();
        let line = |row: &[String; 8]| {
            let cells = columns.iter().map(|(column, width)| format!("{:<width$}", row[*column]));
            cells.collect::<Vec<_>>().join(gap).trim_end().to_owned()
        };
        table.iter().map(line).collect()
    }

    pub fn to_json(&self) -> Value {
        let machines: Vec<Value> = self.machines.iter().map(|row| json!({"machine": row.machine, "vmid": row.vmid, "host": row.host, "address": row.address, "vm": row.vm, "guest": row.guest, "etcd": row.etcd, "node": row.node})).collect();
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| json!({"about": finding.about, "verdict": finding.verdict.as_str(), "what": finding.what}))
            .collect();
        json!({"v": 1, "type": "status", "well": self.is_well(), "machines": machines, "findings": findings})
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> StatusPage {
        let row = |machine: &str| StatusRow {
            machine: machine.into(),
            vmid: 7_344_001,
            host: "pve1".into(),
            address: "127.90.0.11".into(),
            vm: "running".into(),
            guest: "1.14.1".into(),
            etcd: "member".into(),
            node: "not ready".into(),
        };
        StatusPage {
            machines: vec![row("homelab-control-plane-1"), row("homelab-worker-1")],
            findings: vec![finding(
                "secrets",
                Verdict::Ok,
                "first certificate expires in 3649 days; ".repeat(3),
            )],
        }
    }

    #[test]
    fn no_line_is_wider_than_the_screen() {
        for width in [72, 80, 100, 120] {
            let text = page().text(width);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}\n{text}");
        }
    }

    #[test]
    fn what_there_is_room_for_is_shown() {
        assert!(page().text(100).contains("7344001  pve1  127.90.0.11"));
        assert!(page().text(80).contains("7344001 pve1 127.90.0.11"));
        let narrow = page().text(78);
        assert!(!narrow.contains("7344001") && narrow.contains("pve1"), "{narrow}");
    }
}
