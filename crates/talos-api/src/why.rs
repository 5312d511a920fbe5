//! Why a machine is not ready: the one condition that holds up the others, in one sentence.

use mainstay_net::DialFault;

use crate::error::{Class, Error, Unsent};
use crate::node::Node;
use crate::resource::{
    Diagnostic, MachineStatus, NetworkStatus, Resource, Stage, StaticPodStatus, TimeServers, TimeStatus, Unmet, VolumeStatus,
};
use crate::service::{Health, Service, ServiceState};

/// Conditions of a machine's readiness, in the order in which one holds up the next.
const CONDITIONS: [&str; 5] = ["time", "network", "services", "staticPods", "nodeReady"];

/// What one look at a machine showed. A part that could not be read, or holds up nothing, is empty: the sentence then says less.
#[derive(Clone, Debug, Default)]
pub struct Snapshot {
    pub machine: Option<MachineStatus>,
    pub services: Vec<Service>,
    pub static_pods: Vec<Resource<StaticPodStatus>>,
    pub time: Option<TimeStatus>,
    pub time_servers: Vec<String>,
    pub network: Option<NetworkStatus>,
    pub volumes: Vec<Resource<VolumeStatus>>,
    pub diagnostics: Vec<Diagnostic>,
}

impl Node {
    /// Looks at what holds up a machine now: its status says where to look. Fails only where that cannot be read.
    pub async fn look(&self) -> Result<Snapshot, Error> {
        let machine = self.status().await?;
        let asked = machine.as_ref().map(Asked::by).unwrap_or_default();
        let (services, static_pods, time, servers, network, volumes, diagnostics) = futures::join!(
            answer(asked.services, self.services()),
            answer(asked.static_pods, self.list::<StaticPodStatus>()),
            answer(asked.clock, self.get::<TimeStatus>(TimeStatus::ID)),
            answer(asked.clock, self.get::<TimeServers>(TimeServers::ID)),
            answer(asked.network, self.get::<NetworkStatus>(NetworkStatus::ID)),
            answer(asked.volumes, self.list::<VolumeStatus>()),
            answer(asked.diagnostics, self.list::<Diagnostic>()),
        );
        Ok(Snapshot {
            machine,
            services,
            static_pods,
            time: time.map(|found| found.spec),
            time_servers: servers.map(|found| found.spec.time_servers).unwrap_or_default(),
            network: network.map(|found| found.spec),
            volumes,
            diagnostics: diagnostics.into_iter().map(|found| found.spec).collect(),
        })
    }
}

/// A part that is not asked for, or could not be read, is empty.
async fn answer<T: Default>(is_asked: bool, asking: impl Future<Output = Result<T, Error>>) -> T {
    if is_asked {
        asking.await.unwrap_or_default()
    } else {
        T::default()
    }
}

/// What the sentence about a machine is made of: of many machines that wait, each is asked for little.
#[derive(Default)]
struct Asked {
    services: bool,
    static_pods: bool,
    clock: bool,
    network: bool,
    volumes: bool,
    diagnostics: bool,
}

impl Asked {
    fn by(machine: &MachineStatus) -> Self {
        let is_booting = machine.stage == Stage::Booting;
        if !is_booting && machine.stage != Stage::Running {
            return Self::default();
        }
        let unmet = |name: &&&str| machine.status.unmet_conditions.iter().any(|unmet| unmet.name == **name);
        let first = CONDITIONS.iter().find(unmet).copied();
        let services = first == Some("services") || is_booting && machine.status.unmet_conditions.is_empty();
        Self {
            services,
            static_pods: first == Some("staticPods"),
            clock: services || first == Some("time"),
            network: first == Some("network"),
            volumes: services || is_booting,
            diagnostics: first == Some("nodeReady"),
        }
    }
}

/// What holds up the machine; `None` when it is ready.
pub fn why_not_ready(seen: &Snapshot) -> Option<String> {
    let Some(machine) = &seen.machine else {
        return Some("it does not tell its state yet".into());
    };
    let stage = match machine.stage {
        Stage::Booting | Stage::Running => return why_held_up(seen, machine),
        Stage::Unknown => "it has only begun to boot",
        Stage::Maintenance => "it waits in maintenance mode: no config has reached it, or it did not keep the one it got",
        Stage::Installing => "Talos is being installed on its disk",
        Stage::Rebooting => "it reboots",
        Stage::ShuttingDown => "it shuts down",
        Stage::Resetting => "it is being reset",
        Stage::Upgrading => "it is being upgraded",
    };
    Some(stage.into())
}

fn why_held_up(seen: &Snapshot, machine: &MachineStatus) -> Option<String> {
    if let Some(volume) = seen.volumes.iter().find(|volume| volume.spec.phase == "failed") {
        return Some(format!("volume {} cannot be used: {}", volume.id, volume.spec.error_message));
    }
    let unmet = &machine.status.unmet_conditions;
    let known = CONDITIONS
        .iter()
        .find_map(|name| unmet.iter().find(|unmet| unmet.name == *name));
    let first = known.or(unmet.first()).map(|unmet| match unmet.name.as_str() {
        "time" => clock(seen),
        "network" => network(seen, unmet),
        "services" => services(seen, unmet),
        "staticPods" => static_pods(seen, unmet),
        "nodeReady" => node_ready(seen, unmet),
        name => format!("{name}: {}", unmet.reason),
    });
    match first {
        Some(reason) => Some(reason),
        None if machine.stage == Stage::Booting => Some(still_booting(seen)),
        None if !machine.status.ready => Some("it says that it is not ready, and not why".into()),
        None => None,
    }
}

fn clock(seen: &Snapshot) -> String {
    match seen.time_servers.as_slice() {
        [] => "its clock is not in sync yet: no time server has answered".into(),
        servers => format!("its clock is not in sync yet: no answer from {}", servers.join(", ")),
    }
}

fn network(seen: &Snapshot, unmet: &Unmet) -> String {
    let Some(status) = &seen.network else {
        return format!("its network is not up: {}", unmet.reason);
    };
    let parts = [
        (status.address_ready, "address"),
        (status.connectivity_ready, "way out"),
        (status.hostname_ready, "hostname"),
        (status.etc_files_ready, "hosts file"),
    ];
    let missing: Vec<_> = parts.into_iter().filter(|(ready, _)| !ready).map(|(_, part)| part).collect();
    if missing.is_empty() {
        format!("its network is not up: {}", unmet.reason)
    } else {
        format!("its network has no {}", missing.join(", no "))
    }
}

fn services(seen: &Snapshot, unmet: &Unmet) -> String {
    match blocking_service(seen) {
        Some(service) => service_sentence(service, seen),
        // The list is a moment older or younger than the conditions.
        None => format!("not all services are up: {}", unmet.reason),
    }
}

/// The service the others wait for: from any that is not up, along "waiting for service X", to one that waits for no other.
fn blocking_service(seen: &Snapshot) -> Option<&Service> {
    let down = |id: &str| seen.services.iter().find(|service| service.id == id && !service.is_healthy());
    let mut at = seen
        .services
        .iter()
        .filter(|service| !service.is_up())
        .max_by_key(|service| urgency(service))?;
    for _ in 0..seen.services.len() {
        match awaited(at).and_then(down) {
            Some(other) => at = other,
            None => break,
        }
    }
    Some(at)
}

/// What is broken comes before what is only slow.
fn urgency(service: &Service) -> u8 {
    match service.state {
        ServiceState::Failed => 4,
        ServiceState::Running | ServiceState::Finished => 3,
        ServiceState::Waiting => 2,
        _ => 1,
    }
}

/// The other service in `Waiting for service "cri" to be "up"`.
fn awaited(service: &Service) -> Option<&str> {
    let message = service.last_message().filter(|_| service.state == ServiceState::Waiting)?;
    message.split_once("service \"")?.1.split('"').next()
}

fn service_sentence(service: &Service, seen: &Snapshot) -> String {
    let id = &service.id;
    let last = service.last_message().map(first_line).unwrap_or_default();
    match (&service.state, &service.health) {
        (ServiceState::Preparing, _) if id == "etcd" => "etcd waits for a cluster to join, or to be bootstrapped".into(),
        (ServiceState::Finished, _) if id == "etcd" => "etcd has left its cluster; it joins again at the next boot".into(),
        (ServiceState::Waiting, _) if waits_for_clock(&last, seen) => format!("{id} waits for the clock: {}", clock(seen)),
        (ServiceState::Waiting, _) if last.starts_with("Waiting for ") => {
            format!("{id} waits for {}", &last["Waiting for ".len()..])
        }
        (ServiceState::Running, Health::Bad { why }) if why.contains("rpc not supported for learner") => {
            "etcd is still a learner: it gets its vote once it has caught up".into()
        }
        (ServiceState::Running, Health::Bad { why }) if why.is_empty() => format!("{id} is not healthy: {last}"),
        (ServiceState::Running, Health::Bad { why }) => format!("{id} is not healthy: {}", first_line(why)),
        (ServiceState::Running, _) => format!("{id} has only just started"),
        (ServiceState::Failed | ServiceState::Waiting, _) => format!("{id} keeps failing: {last}"),
        (ServiceState::Finished, _) => format!("{id} has ended: {last}"),
        _ => match service.last_failure() {
            Some(failure) => format!("{id} starts again after it failed: {}", first_line(failure)),
            None => format!("{id} is being started: {last}"),
        },
    }
}

/// Its list of conditions names the clock among others; the clock's own resource says whether that is the one.
fn waits_for_clock(message: &str, seen: &Snapshot) -> bool {
    message.contains("time sync") && seen.time.as_ref().is_some_and(|time| !time.synced)
}

/// Failures quote the service's last log line in brackets, at length.
fn first_line(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    line.split(" (last log ").next().unwrap_or(line).trim().to_owned()
}

fn static_pods(seen: &Snapshot, unmet: &Unmet) -> String {
    let waiting = seen.static_pods.iter().filter(|pod| !pod.spec.is_ready()).find_map(|pod| {
        let container = pod.spec.container_statuses.iter().find(|container| !container.ready)?;
        let waiting = container.state.waiting.as_ref()?;
        Some(format!(
            "{} is not ready: {}",
            container.name,
            container_reason(&waiting.reason, &waiting.message)
        ))
    });
    waiting.unwrap_or_else(|| {
        format!(
            "the control plane's pods are not ready: {}",
            unmet.reason.replace("kube-system/", "")
        )
    })
}

fn container_reason(reason: &str, message: &str) -> String {
    match (reason, message) {
        // Without the machine's own load balancer, scheduler and controller manager fail until that sees the API server.
        ("CrashLoopBackOff", _) => "it fails and is started again, as it does in the first two minutes".into(),
        (reason, "") => reason.into(),
        (reason, message) => format!("{reason}, {}", first_line(message)),
    }
}

fn node_ready(seen: &Snapshot, unmet: &Unmet) -> String {
    let name = unmet.reason.split('"').nth(1).unwrap_or("it");
    let sentence = if unmet.reason.ends_with("is not ready") {
        format!("Kubernetes node {name} is not Ready: its network plugin is missing or still starting")
    } else {
        format!("node {name} is not registered yet")
    };
    match seen.diagnostics.first() {
        Some(diagnostic) => format!("{sentence} ({})", first_line(&diagnostic.message)),
        None => sentence,
    }
}

/// Every condition met, and the boot sequence still waits for a service to come up.
fn still_booting(seen: &Snapshot) -> String {
    match blocking_service(seen) {
        Some(service) => service_sentence(service, seen),
        None => "it is still booting".into(),
    }
}

/// Why a machine gives no answer, for the time it gives none.
pub fn why_no_answer(error: &Error) -> String {
    if let Some(dial) = error.dial() {
        return match dial.fault() {
            // A worker gets the certificate of its API from a control plane, which it waits for here too.
            DialFault::Refused | DialFault::TimedOut { .. } | DialFault::Unreachable => {
                "booting: the Talos API is not up yet".into()
            }
            DialFault::UnknownIssuer { .. } => "it has no config yet, or belongs to another cluster".into(),
            DialFault::WrongName { .. } => format!("another machine of this cluster answers at {}", dial.target().host),
            DialFault::Closed => "it hangs up while its API restarts".into(),
            fault => fault.to_string(),
        };
    }
    match error {
        Error::NotSent {
            source: Unsent::ClientRefused(_),
            ..
        } => "it does not accept our certificate".into(),
        Error::NotSent { .. } | Error::Lost { .. } => "its API is restarting".into(),
        Error::NoAnswer { deadline, .. } => format!("it takes connections, but answered nothing in {} s", deadline.as_secs()),
        Error::Refused {
            class: Class::Unconfigured | Class::NotAuthorized,
            ..
        } => "it has no config yet".into(),
        other => other.to_string(),
    }
}
