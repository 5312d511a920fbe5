//! List and watch: everything there is, then every change, for as long as it is asked.

use std::collections::VecDeque;
use std::fmt::Debug;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::BoxStream;
use k8s_openapi::api::core::v1::Node as KubeNode;
use kube::api::{Api, ApiResource, DynamicObject, ListParams, WatchEvent as KubeEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout_at};

use crate::error::{ApiStatus, Class, Error};
use crate::object::ListScope;
use crate::{Cluster, Node};

/// A server that ends every watch at once is asked again no faster than this.
const PAUSE: Duration = Duration::from_secs(1);

/// How often in a row the whole list is read because its version is too old already, before that is an error.
const RELISTS_MAX: usize = 3;

/// One change, or the lack of it.
#[derive(Clone, Debug, PartialEq)]
pub enum WatchEvent<T> {
    /// New, or changed, or there from the start.
    Is(T),
    Gone {
        /// Empty for kinds without namespaces.
        namespace: String,
        name: String,
    },
    /// Everything there is has been told. It is all told again when the server no longer has the changes in between: what is missing
    /// then is gone.
    Listed,
    /// Nothing happened in the given time.
    Quiet,
}

/// Follows the objects of one kind. It continues by itself where a connection ended, and reads the whole list again where the server
/// no longer keeps the changes since.
struct Follower<K> {
    cluster: Cluster,
    api: Api<K>,
    labels: Option<String>,
    fields: Option<String>,
    /// What was received and not told yet.
    pending: VecDeque<WatchEvent<K>>,
    /// The version that the next watch continues from; `None` before the list was read.
    version: Option<String>,
    stream: Option<BoxStream<'static, Result<KubeEvent<K>, kube::Error>>>,
    /// Whether the current stream has told anything.
    has_heard: bool,
    relists: usize,
}

/// Follows the nodes.
#[derive(Debug)]
pub struct NodeWatch(Follower<KubeNode>);

/// Follows the objects of any kind.
#[derive(Debug)]
pub struct ObjectWatch {
    follower: Follower<DynamicObject>,
    api_version: String,
    kind: String,
}

impl Cluster {
    pub fn watch_nodes(&self) -> NodeWatch {
        NodeWatch(self.follow(self.node_api(), None, None))
    }

    /// Follows the objects of a kind.
    pub async fn watch_objects(&self, api_version: &str, kind: &str, scope: &ListScope) -> Result<ObjectWatch, Error> {
        let unknown = || Error::UnknownKind {
            at: self.at.clone(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        };
        let info = self.kind(api_version, kind).await?.ok_or_else(unknown)?;
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let resource = ApiResource {
            group: group.to_owned(),
            version: version.to_owned(),
            api_version: api_version.to_owned(),
            kind: info.kind,
            plural: info.plural,
        };
        let api = match &scope.namespace {
            Some(namespace) => Api::namespaced_with(self.client.clone(), namespace, &resource),
            None => Api::all_with(self.client.clone(), &resource),
        };
        Ok(ObjectWatch {
            follower: self.follow(api, scope.labels.clone(), scope.fields.clone()),
            api_version: resource.api_version,
            kind: resource.kind,
        })
    }

    fn follow<K>(&self, api: Api<K>, labels: Option<String>, fields: Option<String>) -> Follower<K> {
        Follower {
            cluster: self.clone(),
            api,
            labels,
            fields,
            pending: VecDeque::new(),
            version: None,
            stream: None,
            has_heard: false,
            relists: 0,
        }
    }
}

impl NodeWatch {
    /// The next change, or [`WatchEvent::Quiet`] when none comes in `quiet`. After an error pause, then ask again: it goes on where it
    /// was.
    pub async fn next(&mut self, quiet: Duration) -> Result<WatchEvent<Node>, Error> {
        Ok(self.0.next(quiet).await?.map(Node::from))
    }
}

impl ObjectWatch {
    /// As [`NodeWatch::next`]. Objects are told as JSON, with `apiVersion` and `kind`.
    pub async fn next(&mut self, quiet: Duration) -> Result<WatchEvent<Value>, Error> {
        let event = self.follower.next(quiet).await?;
        Ok(event.map(|object| {
            // An object that was read from JSON can be written as JSON.
            let mut object = serde_json::to_value(object).unwrap_or_default();
            // Items of a list carry neither.
            object["apiVersion"] = self.api_version.clone().into();
            object["kind"] = self.kind.clone().into();
            object
        }))
    }
}

impl<T> WatchEvent<T> {
    fn map<U>(self, change: impl FnOnce(T) -> U) -> WatchEvent<U> {
        match self {
            Self::Is(object) => WatchEvent::Is(change(object)),
            Self::Gone { namespace, name } => WatchEvent::Gone { namespace, name },
            Self::Listed => WatchEvent::Listed,
            Self::Quiet => WatchEvent::Quiet,
        }
    }
}

impl<K> Follower<K>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
{
    async fn next(&mut self, quiet: Duration) -> Result<WatchEvent<K>, Error> {
        let deadline = Instant::now() + quiet;
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Ok(event);
            }
            let Some(version) = self.version.clone() else {
                self.read_list().await?;
                continue;
            };
            let Some(stream) = self.stream.as_mut() else {
                self.start(&version).await?;
                continue;
            };
            match timeout_at(deadline, stream.next()).await {
                Err(_) => return Ok(WatchEvent::Quiet),
                Ok(Some(Ok(event))) => self.take(event)?,
                Ok(Some(Err(error))) => {
                    self.stream = None;
                    self.relist_if_gone(self.cluster.watch_failed(error))?;
                }
                Ok(None) => {
                    self.stream = None;
                    if !self.has_heard && timeout_at(deadline, sleep(PAUSE)).await.is_err() {
                        return Ok(WatchEvent::Quiet);
                    }
                }
            }
        }
    }

    async fn read_list(&mut self) -> Result<(), Error> {
        let params = ListParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            ..ListParams::default()
        };
        let list = self.cluster.within("list to watch", self.api.list(&params)).await?;
        let version = list.metadata.resource_version.filter(|version| !version.is_empty());
        let version = version.ok_or_else(|| Error::Misread {
            at: self.cluster.at.clone(),
            what: "a list without a resource version".into(),
        })?;
        self.pending.extend(list.items.into_iter().map(WatchEvent::Is));
        self.pending.push_back(WatchEvent::Listed);
        self.version = Some(version);
        self.stream = None;
        Ok(())
    }

    async fn start(&mut self, version: &str) -> Result<(), Error> {
        let params = WatchParams {
            label_selector: self.labels.clone(),
            field_selector: self.fields.clone(),
            bookmarks: true,
            ..WatchParams::default()
        };
        match self.cluster.within("watch", self.api.watch(&params, version)).await {
            Ok(stream) => {
                self.stream = Some(stream.boxed());
                self.has_heard = false;
                Ok(())
            }
            Err(error) => self.relist_if_gone(error),
        }
    }

    fn take(&mut self, event: KubeEvent<K>) -> Result<(), Error> {
        self.has_heard = true;
        match event {
            KubeEvent::Added(object) | KubeEvent::Modified(object) => {
                self.advance(object.resource_version());
                self.pending.push_back(WatchEvent::Is(object));
            }
            KubeEvent::Deleted(object) => {
                self.advance(object.resource_version());
                let namespace = object.namespace().unwrap_or_default();
                let name = object.name_any();
                self.pending.push_back(WatchEvent::Gone { namespace, name });
            }
            KubeEvent::Bookmark(bookmark) => self.advance(Some(bookmark.metadata.resource_version)),
            KubeEvent::Error(status) => {
                self.stream = None;
                let error = Error::Refused {
                    call: "watch",
                    at: self.cluster.at.clone(),
                    status: Box::new(ApiStatus::from(*status)),
                };
                self.relist_if_gone(error)?;
            }
        }
        Ok(())
    }

    fn advance(&mut self, version: Option<String>) {
        if let Some(version) = version.filter(|version| !version.is_empty()) {
            self.version = Some(version);
            self.relists = 0;
        }
    }

    /// 410: the server has forgotten the changes since our version. Only the whole list helps then.
    fn relist_if_gone(&mut self, error: Error) -> Result<(), Error> {
        if error.class() != Class::Gone || self.relists >= RELISTS_MAX {
            self.relists = 0;
            return Err(error);
        }
        self.relists += 1;
        self.version = None;
        Ok(())
    }
}

impl<K> Debug for Follower<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Follower({}, from version {:?})", self.cluster.at, self.version)
    }
}
