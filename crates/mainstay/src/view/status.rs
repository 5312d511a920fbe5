//! Machines, etcd, Kubernetes and certificates on one page.

use jiff::Timestamp;
use mainstay_plan::{EtcdState, Observed, Power, Seen, Talos, Vm};
use mainstay_spec::{Cni, Machine, Role, Spec};
use serde_json::{Value, json};
use talos_config::Secrets;

/// Everything that `status` says.
pub struct Page {
    machines: Vec<Row>,
    findings: Vec<Finding>,
}

struct Row {
    machine: String,
    vmid: u32,
    host: String,
    address: String,
    vm: String,
    talos: String,
    etcd: String,
    node: String,
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

pub fn page(spec: &Spec, secrets: Option<&Secrets>, observed: &Observed, recipients: usize, now: Timestamp) -> Page {
    let machines = spec.machines.iter().map(|machine| row(machine, observed, spec)).collect();
    let mut findings = vec![
        vms(spec, observed),
        etcd(observed),
        kubernetes(spec, observed),
        nodes(spec, observed),
        keys(secrets, recipients, now),
    ];
    findings.sort_by_key(|finding| finding.verdict);
    Page { machines, findings }
}

fn row(machine: &Machine, observed: &Observed, spec: &Spec) -> Row {
    let vm = observed.vms.yes().and_then(|vms| vms.get(&machine.vmid));
    let name = machine.name.as_str();
    let talos = observed.talos.get(name);
    let node = observed.kubernetes.yes().and_then(|kubernetes| kubernetes.nodes.get(name));
    Row {
        machine: name.to_owned(),
        vmid: machine.vmid,
        host: vm.map_or_else(|| "-".into(), |vm| vm.host.clone()),
        address: machine.address.to_string(),
        vm: power(vm),
        talos: talos.map_or_else(|| "-".into(), stage),
        etcd: if machine.role == Role::ControlPlane {
            member(name, observed, talos)
        } else {
            "-".into()
        },
        node: match node {
            None => "-".into(),
            Some(node) if node.ready => "ready".into(),
            Some(_) if spec.cni == Cni::None => "no cni".into(),
            Some(_) => "not ready".into(),
        },
    }
}

fn power(vm: Option<&Vm>) -> String {
    match vm.map(|vm| &vm.power) {
        None => "absent".into(),
        Some(Power::Running) => "running".into(),
        Some(Power::Stopped) => "stopped".into(),
        Some(Power::Stuck(word)) => word.clone(),
        Some(Power::Unknown(_)) => "unknown".into(),
    }
}

fn stage(talos: &Talos) -> String {
    match talos {
        Talos::Silent(_) => "silent".into(),
        Talos::Maintenance { .. } => "maintenance".into(),
        Talos::Foreign(_) => "foreign".into(),
        Talos::Running(node) => node.version.to_string(),
    }
}

fn member(name: &str, observed: &Observed, talos: Option<&Talos>) -> String {
    let listed = observed
        .etcd
        .yes()
        .and_then(|members| members.iter().find(|member| member.name == name));
    match (listed, talos) {
        (Some(member), _) if member.learner => "learner".into(),
        (Some(member), _) if member.healthy => "member".into(),
        (Some(_), _) => "unwell".into(),
        (None, Some(Talos::Running(node))) if node.etcd == Seen::Yes(EtcdState::Unwell) => "unwell".into(),
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

fn vms(spec: &Spec, observed: &Observed) -> Finding {
    let Some(vms) = observed.vms.yes() else {
        return finding(
            "machines",
            Verdict::Failing,
            observed.vms.unknown().unwrap_or("cannot be listed"),
        );
    };
    let missing: Vec<&str> = spec
        .machines
        .iter()
        .filter(|machine| !vms.get(&machine.vmid).is_some_and(|vm| vm.power == Power::Running))
        .map(|machine| machine.name.as_str())
        .collect();
    if missing.is_empty() {
        finding(
            "machines",
            Verdict::Ok,
            format!("{} of {} run", spec.machines.len(), spec.machines.len()),
        )
    } else {
        finding(
            "machines",
            Verdict::Failing,
            format!("{} do not run: {}", missing.len(), missing.join(", ")),
        )
    }
}

fn etcd(observed: &Observed) -> Finding {
    match &observed.etcd {
        Seen::No => finding("etcd", Verdict::Due, "has not begun"),
        Seen::Unknown(why) => finding("etcd", Verdict::Failing, why.clone()),
        Seen::Yes(members) => {
            let voters = members.iter().filter(|member| member.votes()).count();
            let healthy = members.iter().filter(|member| member.votes() && member.healthy).count();
            let quorum = voters / 2 + 1;
            let verdict = if healthy == voters { Verdict::Ok } else { Verdict::Failing };
            finding(
                "etcd",
                verdict,
                format!("{healthy} of {}, quorum {quorum}", super::count(voters, "member")),
            )
        }
    }
}

fn kubernetes(spec: &Spec, observed: &Observed) -> Finding {
    match &observed.kubernetes {
        Seen::Yes(kubernetes) => finding(
            "kubernetes",
            Verdict::Ok,
            format!("{} answers, {}", spec.endpoint.url(), kubernetes.version),
        ),
        Seen::No => finding("kubernetes", Verdict::Due, "is not there yet"),
        Seen::Unknown(why) => finding("kubernetes", Verdict::Failing, why.clone()),
    }
}

fn nodes(spec: &Spec, observed: &Observed) -> Finding {
    let Some(kubernetes) = observed.kubernetes.yes() else {
        return finding("nodes", Verdict::Due, "unknown");
    };
    if spec.cni == Cni::None {
        return finding(
            "nodes",
            Verdict::Ok,
            format!("{} registered; not ready by choice (cni: none)", kubernetes.nodes.len()),
        );
    }
    let unready: Vec<String> = kubernetes
        .nodes
        .iter()
        .filter(|(_, node)| !node.ready)
        .map(|(name, node)| format!("{name}: {}", node.why))
        .collect();
    let ready = kubernetes.nodes.len() - unready.len();
    if unready.is_empty() && ready == spec.machines.len() {
        finding("nodes", Verdict::Ok, format!("{ready} of {ready} ready"))
    } else if unready.is_empty() {
        finding(
            "nodes",
            Verdict::Failing,
            format!("{ready} of {} registered", spec.machines.len()),
        )
    } else {
        finding("nodes", Verdict::Failing, unready.join("; "))
    }
}

/// The first authority that expires, and whether one lost key would lose the cluster.
fn keys(secrets: Option<&Secrets>, recipients: usize, now: Timestamp) -> Finding {
    let Some(secrets) = secrets else {
        return finding("secrets", Verdict::Due, "not made yet: mainstay up makes them");
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
            format!("{expiry}; only one age key opens them, so back it up"),
        ),
        _ => finding("secrets", Verdict::Ok, expiry),
    }
}

impl Page {
    pub fn is_well(&self) -> bool {
        self.findings.iter().all(|finding| finding.verdict == Verdict::Ok)
    }

    pub fn text(&self) -> String {
        let mut table = vec![["MACHINE", "VMID", "HOST", "ADDRESS", "VM", "TALOS", "ETCD", "NODE"].map(str::to_owned)];
        table.extend(self.machines.iter().map(|row| {
            [
                &row.machine,
                &row.vmid.to_string(),
                &row.host,
                &row.address,
                &row.vm,
                &row.talos,
                &row.etcd,
                &row.node,
            ]
            .map(Clone::clone)
        }));
        let widths: Vec<usize> = (0..8)
            .map(|column| table.iter().map(|row| row[column].chars().count()).max().unwrap_or(0))
            .collect();
        let mut lines: Vec<String> = table
            .iter()
            .map(|row| {
                let cells: Vec<String> = row
                    .iter()
                    .zip(&widths)
                    .map(|(cell, width)| format!("{cell:<width$}"))
                    .collect();
                cells.join("  ").trim_end().to_owned()
            })
            .collect();
        lines.push(String::new());
        lines.extend(
            self.findings
                .iter()
                .map(|finding| format!("{:<12} {:<8} {}", finding.about, finding.verdict.as_str(), finding.what)),
        );
        lines.join("\n")
    }

    pub fn object(&self) -> Value {
        let machines: Vec<Value> = self.machines.iter().map(|row| json!({"machine": row.machine, "vmid": row.vmid, "host": row.host, "address": row.address, "vm": row.vm, "talos": row.talos, "etcd": row.etcd, "node": row.node})).collect();
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| json!({"about": finding.about, "verdict": finding.verdict.as_str(), "what": finding.what}))
            .collect();
        json!({"v": 1, "type": "status", "well": self.is_well(), "machines": machines, "findings": findings})
    }
}
