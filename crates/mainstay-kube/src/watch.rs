//! Following the nodes.

use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::runtime::watcher::{self, Event};
use mainstay_net::Target;
use tokio::time::timeout;

use crate::Cluster;
use crate::error::Error;
use crate::node::Node;

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeChange {
    /// New, or changed, or there from the start.
    Is(Node),
    Gone {
        name: String,
    },
    /// Everything there is has been told. After a broken connection it is all told again: what is missing then is gone.
    Listed,
}

/// What came of waiting for a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    Change(NodeChange),
    /// Nothing happened in the given time.
    Nothing,
}

/// The nodes, for as long as it is asked. It connects again by itself when asked again after an error.
pub struct NodeWatch {
    at: Target,
    stream: BoxStream<'static, watcher::Result<Event<KubeNode>>>,
}

impl Cluster {
    pub fn watch_nodes(&self) -> NodeWatch {
        NodeWatch {
            at: self.at.clone(),
            stream: watcher::watcher(self.node_api(), watcher::Config::default()).boxed(),
        }
    }
}

impl NodeWatch {
    /// The next change, or [`Told::Nothing`] when none comes in `quiet`. After an error pause before asking again.
    pub async fn next(&mut self, quiet: Duration) -> Result<Told, Error> {
        loop {
            let event = match timeout(quiet, self.stream.next()).await {
                Err(_) | Ok(None) => return Ok(Told::Nothing),
                Ok(Some(event)) => event.map_err(|error| self.sort(error))?,
            };
            let change = match event {
                Event::Init => continue,
                Event::Apply(node) | Event::InitApply(node) => NodeChange::Is(node.into()),
                Event::Delete(node) => NodeChange::Gone {
                    name: node.metadata.name.unwrap_or_default(),
                },
                Event::InitDone => NodeChange::Listed,
            };
            return Ok(Told::Change(change));
        }
    }

    fn sort(&self, error: watcher::Error) -> Error {
        const CALL: &str = "watch nodes";
        use watcher::Error as Watch;
        match error {
            Watch::InitialListFailed(cause) | Watch::WatchStartFailed(cause) | Watch::WatchFailed(cause) => {
                Error::of(CALL, &self.at, cause)
            }
            Watch::WatchError(status) => Error::Refused {
                call: CALL,
                at: self.at.clone(),
                code: status.code,
                message: status.message.clone(),
            },
            other @ Watch::NoResourceVersion => Error::Misread {
                at: self.at.clone(),
                what: other.to_string(),
            },
        }
    }
}

impl std::fmt::Debug for NodeWatch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NodeWatch({})", self.at)
    }
}
