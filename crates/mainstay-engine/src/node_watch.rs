//! The Nodes of a cluster, followed: one list-and-watch for all steps that wait for one, and each is woken by changes of its own Node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use mainstay_kube::{Cluster, Error, Node, WatchEvent};
use tokio::sync::Notify;
use tokio_util::task::AbortOnDropHandle;

use crate::jitter::Jitter;

/// Pauses between two attempts to reach an API server: short while it may be about to answer, longer later.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A server that says nothing for so long is asked whether it is still there: a connection that was cut off shows nothing.
const SILENCE: Duration = Duration::from_secs(10);

/// What is known of the Nodes now.
struct Known<N> {
    /// From the first control plane that answers, or why none does.
    nodes: Result<BTreeMap<String, N>, String>,
    waiters: BTreeMap<String, Arc<Notify>>,
}

/// The client of the API server at an address.
pub trait ServerAt: Fn(Ipv4Addr) -> Result<Cluster, Error> + Send + Sync + 'static {}

impl<F: Fn(Ipv4Addr) -> Result<Cluster, Error> + Send + Sync + 'static> ServerAt for F {}

/// One list-and-watch, as long as a step has a view of it.
pub struct NodeFollower {
    known: Arc<Mutex<Known<Node>>>,
    _task: AbortOnDropHandle<()>,
}

/// What one step sees of its Node.
pub struct NodeView {
    follower: Arc<NodeFollower>,
    name: String,
    changed: Arc<Notify>,
}

impl NodeFollower {
    /// Asks the API servers at these addresses, one after the other, until one answers.
    pub fn start(server: impl ServerAt, addresses: Vec<Ipv4Addr>, jitter: Arc<Jitter>) -> Arc<Self> {
        let known = Arc::new(Mutex::new(Known {
            nodes: Err("no control plane was asked yet".to_owned()),
            waiters: BTreeMap::new(),
        }));
        let task = tokio::spawn(follow(server, addresses, jitter, known.clone()));
        Arc::new(Self {
            known,
            _task: AbortOnDropHandle::new(task),
        })
    }

    pub fn view(self: Arc<Self>, name: &str) -> NodeView {
        let changed = locked(&self.known).waiters.entry(name.to_owned()).or_default().clone();
        NodeView {
            follower: self,
            name: name.to_owned(),
            changed,
        }
    }
}

impl NodeView {
    /// The Node as it is now, `None` where there is none; or why no control plane answers.
    pub fn now(&self) -> Result<Option<Node>, String> {
        let known = locked(&self.follower.known);
        let nodes = known.nodes.as_ref().map_err(Clone::clone)?;
        Ok(nodes.get(&self.name).cloned())
    }

    /// Waits until it may be another than at the last call.
    pub async fn changed(&self) {
        self.changed.notified().await;
    }
}

impl Drop for NodeView {
    fn drop(&mut self) {
        locked(&self.follower.known).waiters.remove(&self.name);
    }
}

fn locked<N>(known: &Mutex<Known<N>>) -> MutexGuard<'_, Known<N>> {
    known.lock().expect("nothing panics while it holds the nodes")
}

async fn follow(server: impl ServerAt, addresses: Vec<Ipv4Addr>, jitter: Arc<Jitter>, known: Arc<Mutex<Known<Node>>>) {
    let mut pause = PAUSE_FIRST;
    loop {
        let mut why = "no control plane is there to ask".to_owned();
        for address in &addresses {
            let error = follow_at(&server, *address, &known).await;
            if locked(&known).nodes.is_ok() {
                pause = PAUSE_FIRST;
            }
            why = format!("the Kubernetes API at {address} does not answer: {error}");
            locked(&known).nodes = Err(why.clone());
        }
        locked(&known).nodes = Err(why);
        tokio::time::sleep(jitter.pause(pause)).await;
        pause = (pause * 5 / 4).min(PAUSE_MAX);
    }
}

/// Follows the Nodes as one API server tells them. Ends when it does not answer any more.
async fn follow_at(server: &impl ServerAt, address: Ipv4Addr, known: &Mutex<Known<Node>>) -> Error {
    let server = match server(address) {
        Ok(server) => server,
        Err(error) => return error,
    };
    let mut watch = server.watch_nodes();
    let mut changes = Changes::new();
    loop {
        // What is there already is taken at once, so that a list of a thousand Nodes is one change.
        let event = match watch.next(Duration::ZERO).await {
            Ok(WatchEvent::Quiet) => {
                changes.tell(known);
                watch.next(SILENCE).await
            }
            event => event,
        };
        match event {
            Ok(WatchEvent::Is(node)) => changes.is(node.name.clone(), node),
            Ok(WatchEvent::Gone { name, .. }) => changes.gone(name),
            Ok(WatchEvent::Listed) => changes.listed(),
            Ok(WatchEvent::Quiet) => {
                if let Err(error) = server.version().await {
                    return error;
                }
            }
            Err(error) => return error,
        }
    }
}

/// What was told since the server was last silent.
struct Changes<N> {
    nodes: BTreeMap<String, N>,
    told: BTreeSet<String>,
    /// The first list is complete.
    is_whole: bool,
    /// A list ended since: whatever it does not name is gone.
    was_listed: bool,
}

impl<N: Clone> Changes<N> {
    fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            told: BTreeSet::new(),
            is_whole: false,
            was_listed: false,
        }
    }

    fn is(&mut self, name: String, node: N) {
        self.told.insert(name.clone());
        self.nodes.insert(name, node);
    }

    fn gone(&mut self, name: String) {
        self.nodes.remove(&name);
        self.told.insert(name);
    }

    /// A list comes in one piece, so what was not told since the last silence is not in it.
    fn listed(&mut self) {
        let told = &self.told;
        self.nodes.retain(|name, _| told.contains(name));
        (self.is_whole, self.was_listed) = (true, true);
    }

    /// Shows what changed to those who wait for it, and to no others.
    fn tell(&mut self, known: &Mutex<Known<N>>) {
        if !self.is_whole {
            return;
        }
        let told = std::mem::take(&mut self.told);
        let mut known = locked(known);
        let all = std::mem::take(&mut self.was_listed) || known.nodes.is_err();
        match &mut known.nodes {
            Ok(nodes) if !all => {
                for name in &told {
                    match self.nodes.get(name) {
                        Some(node) => nodes.insert(name.clone(), node.clone()),
                        None => nodes.remove(name),
                    };
                }
            }
            nodes => *nodes = Ok(self.nodes.clone()),
        }
        let waits = |(name, _): &(&String, &Arc<Notify>)| all || told.contains(*name);
        known.waiters.iter().filter(waits).for_each(|(_, waiter)| waiter.notify_one());
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn unknown() -> Mutex<Known<u32>> {
        Mutex::new(Known {
            nodes: Err("not asked yet".into()),
            waiters: ["a", "b"].map(|name| (name.to_owned(), Arc::default())).into(),
        })
    }

    fn woken(known: &Mutex<Known<u32>>, name: &str) -> bool {
        let waiter = locked(known).waiters[name].clone();
        waiter.notified().now_or_never().is_some()
    }

    fn names(known: &Mutex<Known<u32>>) -> Vec<String> {
        locked(known).nodes.as_ref().unwrap().keys().cloned().collect()
    }

    #[test]
    fn a_change_of_a_node_wakes_those_who_wait_for_it_and_no_others() {
        let (known, mut changes) = (unknown(), Changes::new());
        changes.is("a".into(), 1);
        changes.tell(&known);
        assert!(locked(&known).nodes.is_err(), "half a list is no list");
        changes.listed();
        changes.tell(&known);
        assert!(woken(&known, "a") && woken(&known, "b"));
        changes.is("a".into(), 2);
        changes.tell(&known);
        assert!(woken(&known, "a") && !woken(&known, "b"));
        assert_eq!(locked(&known).nodes.as_ref().unwrap()["a"], 2);
        changes.gone("a".into());
        changes.tell(&known);
        assert!(woken(&known, "a") && names(&known).is_empty());
    }

    #[test]
    fn a_node_that_a_second_list_does_not_name_is_gone() {
        let (known, mut changes) = (unknown(), Changes::new());
        for list in [vec!["a", "b"], vec!["b"]] {
            list.iter().for_each(|name| changes.is((*name).into(), 1));
            changes.listed();
            changes.tell(&known);
            assert_eq!(names(&known), list);
        }
    }
}
