//! Cordon, drain and uncordon: what surrounds the disruption of a machine in Kubernetes.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures::future::join_all;
use mainstay_kube::{Class, Cordon, DrainPlan, Error, Eviction, Pod, budgets_of};
use mainstay_plan::{Drain, PoolBudget};
use tokio::time::Instant;

use super::servers::Servers;
use crate::clients::Clients;
use crate::failure::{Failure, FailureKind};
use crate::in_flight;
use crate::known::{Controller, ReadyBefore};

/// Between two attempts to evict a pod that a budget protects.
const RETRY: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_secs(1);
/// Volumes that are not detached by then are left to their driver.
const DETACHES: Duration = Duration::from_secs(120);
/// What was evicted must run elsewhere by then, before the next machine goes down.
const REPLACED: Duration = Duration::from_secs(300);
/// A pod is an owner's word for many; this many are named.
const NAMED: usize = 3;

/// Keeps new pods away, if the budget of the pool allows it now.
pub(super) async fn cordon(
    clients: &Clients,
    servers: Servers<'_>,
    machine: &str,
    turn: &str,
    budget: Option<&PoolBudget>,
) -> Result<(), Failure> {
    if let Some(budget) = budget {
        check_budget(servers, machine, budget).await?;
    }
    let now = clients.env.wall.now();
    let record = format!("{} {turn} {now:.0}", clients.run_name);
    let cordoned = servers
        .call(&format!("{machine} could not be cordoned"), async |server| {
            match in_flight::send(server.cordon(machine, &record)).await {
                // Without a Node there are no pods to keep away.
                Err(error) if error.class() == Class::NotFound => Ok(None),
                cordoned => cordoned.map(Some),
            }
        })
        .await?;
    if matches!(cordoned, Some(Cordon::Done | Cordon::AlreadyOurs { .. })) {
        clients.cordoned.lock().expect("plain data").insert(machine.to_owned());
    }
    Ok(())
}

/// The plan counted who is unavailable, but that may be minutes old.
async fn check_budget(servers: Servers<'_>, machine: &str, budget: &PoolBudget) -> Result<(), Failure> {
    let nodes = servers
        .call("the nodes could not be read", async |server| server.nodes().await)
        .await?;
    let is_away = |name: &&String| {
        let node = nodes.iter().find(|node| node.name == **name);
        node.is_none_or(|node| node.cordoned || budget.needs_ready && !node.is_ready())
    };
    let away: Vec<&str> = budget.others.iter().filter(is_away).map(String::as_str).collect();
    if away.len() < budget.max_unavailable {
        return Ok(());
    }
    Err(
        Failure::stale_plan(format!("{machine} stays up: {} is unavailable", away.join(", "))).why(format!(
            "at most {} of its pool may be unavailable at once",
            budget.max_unavailable
        )),
    )
}

/// Ends our cordon, and waits until what was evicted runs again elsewhere.
pub(super) async fn uncordon(clients: &Clients, servers: Servers<'_>, machine: &str) -> Result<(), Failure> {
    servers
        .call(
            &format!("{machine} could not be uncordoned"),
            async |server| match in_flight::send(server.uncordon(machine)).await {
                Err(error) if error.class() == Class::NotFound => Ok(()),
                ended => ended.map(drop),
            },
        )
        .await?;
    clients.cordoned.lock().expect("plain data").remove(machine);
    let before = clients
        .evicted
        .lock()
        .expect("plain data")
        .remove(machine)
        .unwrap_or_default();
    if before.is_empty() {
        return Ok(());
    }
    let began = Instant::now();
    loop {
        let missing = missing_pods(servers, &before).await?;
        if missing.is_empty() {
            return Ok(());
        }
        let named = missing.join(", ");
        if began.elapsed() >= REPLACED {
            return Err(held(
                format!("not all pods that left {machine} run again"),
                format!("not ready as before: {named}"),
                "look at these pods with kubectl; the next `mainstay up` goes on".to_owned(),
            ));
        }
        servers.ctx.progress.wait(format!("pods become ready: {named}"), REPLACED);
        tokio::time::sleep(servers.ctx.jitter.pause(LOOK * 2)).await;
    }
}

/// Controllers that have fewer ready pods than before the drain. One that has no pod at all any more was removed or scaled to nothing.
async fn missing_pods(servers: Servers<'_>, before: &ReadyBefore) -> Result<Vec<String>, Failure> {
    let pods = pods_of(servers, before.keys()).await?;
    let mut missing = Vec::new();
    for (controller, count) in before {
        let own: Vec<&Pod> = pods
            .iter()
            .filter(|pod| controller_of(pod).as_ref() == Some(controller))
            .collect();
        let ready = own.iter().filter(|pod| pod.is_ready && pod.deleted.is_none()).count();
        if !own.is_empty() && ready < *count {
            missing.push(format!("{}/{} has {ready} of {count}", controller.0, controller.2));
        }
    }
    Ok(missing)
}

/// All pods in the namespaces of these controllers.
async fn pods_of(servers: Servers<'_>, controllers: impl Iterator<Item = &Controller>) -> Result<Vec<Pod>, Failure> {
    let namespaces: BTreeSet<&String> = controllers.map(|(namespace, ..)| namespace).collect();
    let mut pods = Vec::new();
    for namespace in namespaces {
        let list = async |server: &mainstay_kube::Cluster| server.pods(Some(namespace), "").await;
        pods.extend(servers.call("the pods could not be read", list).await?);
    }
    Ok(pods)
}

fn controller_of(pod: &Pod) -> Option<Controller> {
    let (kind, name) = pod.controller.clone()?;
    Some((pod.namespace.clone(), kind, name))
}

/// Evicts what may leave, within its budgets, and waits until it is gone and its volumes are detached.
pub(super) async fn drain(clients: &Clients, servers: Servers<'_>, machine: &str, drain: &Drain) -> Result<(), Failure> {
    let first = look(servers, machine, drain).await?;
    note_ready(clients, servers, machine, &first).await?;
    let mut drain = DrainRun {
        servers,
        machine,
        order: drain,
        began: Instant::now(),
        refused: BTreeMap::new(),
    };
    drain.move_dns(&first).await?;
    while !drain.round().await? {
        tokio::time::sleep(servers.ctx.jitter.pause(LOOK)).await;
    }
    await_detached(servers, machine).await
}

/// What a drain does with the pods of the machine.
async fn look(servers: Servers<'_>, machine: &str, drain: &Drain) -> Result<Vec<Pod>, Failure> {
    let plan = servers
        .call(&format!("the pods of {machine} could not be read"), async |server| {
            let (pods, sets) = futures::try_join!(server.pods_on(machine), server.daemon_sets())?;
            Ok(DrainPlan::new(pods, &sets))
        })
        .await?;
    if plan.unmanaged.is_empty() || drain.deletes_unmanaged {
        return Ok(plan.evict.into_iter().chain(plan.unmanaged).collect());
    }
    Err(held(
        format!("{machine} has pods that no controller would make again"),
        format!("they would be gone for good: {}", names(&plan.unmanaged)),
        format!("delete them, or let the drain do so: --force-drain {machine}"),
    ))
}

/// Remembers how many ready pods the controllers have, until the machine takes pods again.
async fn note_ready(clients: &Clients, servers: Servers<'_>, machine: &str, evicted: &[Pod]) -> Result<(), Failure> {
    let counts = |pod: &&Pod| {
        pod.is_ready
            && pod
                .controller
                .as_ref()
                .is_some_and(|(kind, _)| kind != "Job" && kind != "DaemonSet")
    };
    let controllers: BTreeSet<Controller> = evicted.iter().filter(counts).filter_map(controller_of).collect();
    // A second attempt finds fewer pods than there were.
    if controllers.is_empty() || clients.evicted.lock().expect("plain data").contains_key(machine) {
        return Ok(());
    }
    let pods = pods_of(servers, controllers.iter()).await?;
    let ready = |controller: &Controller| {
        let own = pods.iter().filter(|pod| controller_of(pod).as_ref() == Some(controller));
        own.filter(|pod| pod.is_ready).count()
    };
    let before = controllers
        .iter()
        .map(|controller| (controller.clone(), ready(controller)))
        .collect();
    clients.evicted.lock().expect("plain data").insert(machine.to_owned(), before);
    Ok(())
}

/// One drain, from its first eviction on.
struct DrainRun<'a> {
    servers: Servers<'a>,
    machine: &'a str,
    order: &'a Drain,
    began: Instant,
    /// By UID: why a pod was not evicted the last time, and when to try again.
    refused: BTreeMap<String, (Instant, String)>,
}

impl DrainRun<'_> {
    /// Where all DNS servers of the cluster are on this machine, one leaves and is ready elsewhere before the others follow.
    async fn move_dns(&mut self, pods: &[Pod]) -> Result<(), Failure> {
        let dns = self
            .servers
            .call("the DNS pods could not be read", async |server| server.dns_pods().await)
            .await?;
        let Some(first) = pods.iter().find(|pod| dns.ready.iter().any(|ready| ready.uid == pod.uid)) else {
            return Ok(());
        };
        if dns.ready.iter().any(|pod| pod.node != self.machine) {
            return Ok(());
        }
        loop {
            self.evict_all(std::slice::from_ref(first)).await?;
            let dns = self
                .servers
                .call("the DNS pods could not be read", async |server| server.dns_pods().await)
                .await?;
            if dns.ready.iter().any(|pod| pod.node != self.machine) {
                return Ok(());
            }
            self.check_time(&[], "DNS is not ready on another machine yet").await?;
            tokio::time::sleep(self.servers.ctx.jitter.pause(LOOK)).await;
        }
    }

    /// Whether all pods are gone.
    async fn round(&mut self) -> Result<bool, Failure> {
        let left = look(self.servers, self.machine, self.order).await?;
        if left.is_empty() {
            return Ok(true);
        }
        self.evict_all(&left).await?;
        let blocked: Vec<&Pod> = left.iter().filter(|pod| self.refused.contains_key(&pod.uid)).collect();
        let told = match blocked.first() {
            Some(pod) => format!("{} waits for its disruption budget", pod.full_name()),
            None => format!("{} end", names(&left)),
        };
        self.check_time(&left, &told).await?;
        Ok(false)
    }

    /// Asks for every eviction that is due.
    async fn evict_all(&mut self, pods: &[Pod]) -> Result<(), Failure> {
        let now = Instant::now();
        let is_due = |pod: &&Pod| pod.deleted.is_none() && self.refused.get(&pod.uid).is_none_or(|(again, _)| *again <= now);
        let due: Vec<&Pod> = pods.iter().filter(is_due).collect();
        let asked = due.iter().map(|pod| async {
            let evict = async |server: &mainstay_kube::Cluster| in_flight::send(server.evict(pod)).await;
            (
                *pod,
                self.servers
                    .call(&format!("{} could not be evicted", pod.full_name()), evict)
                    .await,
            )
        });
        for (pod, answer) in join_all(asked).await {
            self.hear(pod, answer?)?;
        }
        Ok(())
    }

    fn hear(&mut self, pod: &Pod, eviction: Eviction) -> Result<(), Failure> {
        match eviction {
            Eviction::Accepted | Eviction::Gone | Eviction::NamespaceTerminating => drop(self.refused.remove(&pod.uid)),
            Eviction::Blocked { message, retry_after } => {
                let again = Instant::now() + retry_after.unwrap_or(RETRY);
                self.refused.insert(pod.uid.clone(), (again, message));
            }
            Eviction::TwoBudgets { message } => {
                return Err(held(
                    format!("{} cannot be evicted from {}", pod.full_name(), self.machine),
                    message,
                    format!(
                        "change one of its disruption budgets, or restart without a drain: --skip-drain {}",
                        self.machine
                    ),
                ));
            }
        }
        Ok(())
    }

    /// Says what is waited for, or that it took too long.
    async fn check_time(&self, left: &[Pod], told: &str) -> Result<(), Failure> {
        let limit = self.order.timeout;
        if self.began.elapsed() < limit {
            self.servers.ctx.progress.wait(told.to_owned(), limit);
            return Ok(());
        }
        let what = format!("{} is not drained within {} s", self.machine, limit.as_secs());
        let help = format!(
            "make room in the budget, wait longer with --drain-timeout, or restart without a drain: --skip-drain {}",
            self.machine
        );
        Err(held(what, self.blockers(left).await.unwrap_or_else(|| told.to_owned()), help))
    }

    /// Pods and the budgets that keep them.
    async fn blockers(&self, left: &[Pod]) -> Option<String> {
        let budgets = async |server: &mainstay_kube::Cluster| server.disruption_budgets().await;
        let budgets = self.servers.call("the budgets could not be read", budgets).await.ok()?;
        let blocked = left.iter().filter(|pod| self.refused.contains_key(&pod.uid));
        let line = |pod: &Pod| {
            let own: Vec<String> = budgets_of(pod, &budgets).iter().map(|budget| budget.full_name()).collect();
            match own.as_slice() {
                [] => format!("pod {}: {}", pod.full_name(), self.refused[&pod.uid].1),
                own => format!("pod {} is kept by disruption budget {}", pod.full_name(), own.join(" and ")),
            }
        };
        let lines: Vec<String> = blocked.take(NAMED).map(line).collect();
        if lines.is_empty() {
            return (!left.is_empty()).then(|| format!("still ending: {}", names(left)));
        }
        Some(lines.join("; "))
    }
}

/// A volume that is still attached would be written to by nothing, but its driver may need the machine to let go of it.
async fn await_detached(servers: Servers<'_>, machine: &str) -> Result<(), Failure> {
    let began = Instant::now();
    loop {
        let list = async |server: &mainstay_kube::Cluster| -> Result<_, Error> { server.volume_attachments(machine).await };
        let attached = servers.call("the volumes could not be read", list).await?;
        if attached.is_empty() || began.elapsed() >= DETACHES {
            return Ok(());
        }
        let told = format!("{} volumes are being detached", attached.len());
        servers.ctx.progress.wait(told, DETACHES);
        tokio::time::sleep(servers.ctx.jitter.pause(LOOK)).await;
    }
}

fn held(what: String, why: String, help: String) -> Failure {
    Failure::new(FailureKind::Held, what).why(why).help(help)
}

fn names(pods: &[Pod]) -> String {
    let mut named: Vec<String> = pods.iter().take(NAMED).map(Pod::full_name).collect();
    if pods.len() > NAMED {
        named.push(format!("{} more", pods.len() - NAMED));
    }
    named.join(", ")
}
