//! `cosi.resource.State`: resources, read only.

use std::collections::VecDeque;
use std::sync::Arc;

use talos_proto::cosi::resource::state_server::State;
use talos_proto::cosi::resource::{
    CreateRequest, CreateResponse, DestroyRequest, DestroyResponse, Event, EventType, GetRequest, GetResponse, LabelQuery,
    LabelTerm, ListRequest, ListResponse, UpdateRequest, UpdateResponse, WatchRequest, WatchResponse,
};
use tonic::{Request, Status};

use super::{Answer, Api, Stream, stream};
use crate::talos::boot;
use crate::talos::cosi::{Change, Resource, tombstone};
use crate::talos::node::Node;
use crate::talos::rbac::{Role, Roles};
use crate::talos::resources::{self, Kind};

fn refused() -> Status {
    Status::permission_denied("write access is not allowed")
}

/// The kind, if this node has it and the caller may read it.
fn readable(roles: Option<&Roles>, namespace: &str, name: &str) -> Result<&'static Kind, Status> {
    let kind =
        resources::find(name).ok_or_else(|| Status::permission_denied(format!("resource type \"{name}\" is not supported")))?;
    if !resources::NAMESPACES.contains(&namespace) {
        return Err(Status::permission_denied(format!(
            "namespace \"{namespace}\" is not supported"
        )));
    }
    if kind.sensitive && !roles.is_some_and(|roles| roles.has(Role::Admin)) {
        return Err(Status::permission_denied("not authorized"));
    }
    Ok(kind)
}

/// What discovery knows is looked up when a client asks.
fn bring_up_to_date(node: &Node, kind: &Kind) {
    if std::ptr::eq(kind, &resources::MEMBER) {
        boot::show_members(node);
    } else if std::ptr::eq(kind, &resources::ENDPOINT) || std::ptr::eq(kind, &resources::KUBEPRISM_ENDPOINTS) {
        boot::show_endpoints(node);
    }
}

#[tonic::async_trait]
impl State for Api {
    async fn get(&self, request: Request<GetRequest>) -> Answer<GetResponse> {
        let roles = request.extensions().get::<Roles>().cloned();
        let request = request.into_inner();
        let kind = readable(roles.as_ref(), &request.namespace, &request.r#type)?;
        bring_up_to_date(&self.0, kind);
        let found = self
            .0
            .resources
            .get(kind, &request.id)
            .filter(|_| kind.namespace == request.namespace);
        let missing = || {
            Status::not_found(format!(
                "resource {}({}/{}@undefined) doesn't exist",
                request.r#type, request.namespace, request.id
            ))
        };
        let resource = found.ok_or_else(missing)?;
        Ok(tonic::Response::new(GetResponse {
            resource: Some(resource.to_proto()),
        }))
    }

    async fn list(&self, request: Request<ListRequest>) -> Answer<Stream<ListResponse>> {
        let roles = request.extensions().get::<Roles>().cloned();
        let request = request.into_inner();
        let kind = readable(roles.as_ref(), &request.namespace, &request.r#type)?;
        bring_up_to_date(&self.0, kind);
        let options = request.options.unwrap_or_default();
        let id = options.id_query.map(|query| query.regexp).unwrap_or_default();
        let wanted = |resource: &Resource| {
            kind.namespace == request.namespace
                && matches_id(&resource.id, &id)
                && options.label_query.iter().all(matches_no_labels)
        };
        let items = self
            .0
            .resources
            .list(kind)
            .into_iter()
            .filter(wanted)
            .map(|resource| ListResponse {
                resource: Some(resource.to_proto()),
            });
        Ok(stream(items.collect()))
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Answer<Stream<WatchResponse>> {
        let roles = request.extensions().get::<Roles>().cloned();
        let request = request.into_inner();
        let kind = readable(roles.as_ref(), &request.namespace, &request.r#type)?;
        bring_up_to_date(&self.0, kind);
        let watch = Watch::begin(&self.0, kind, request)?;
        Ok(tonic::Response::new(Box::pin(watch.stream())))
    }

    async fn create(&self, _request: Request<CreateRequest>) -> Answer<CreateResponse> {
        Err(refused())
    }

    async fn update(&self, _request: Request<UpdateRequest>) -> Answer<UpdateResponse> {
        Err(refused())
    }

    async fn destroy(&self, _request: Request<DestroyRequest>) -> Answer<DestroyResponse> {
        Err(refused())
    }
}

/// Ids are asked for by plain patterns: anchors and letters. Anything more general is taken as "contains".
fn matches_id(id: &str, pattern: &str) -> bool {
    match (pattern.strip_prefix('^'), pattern.strip_suffix('$')) {
        (Some(rest), Some(_)) => id == rest.trim_end_matches('$'),
        (Some(rest), None) => id.starts_with(rest),
        (None, Some(rest)) => id.ends_with(rest),
        (None, None) => id.contains(pattern),
    }
}

/// No resource here carries labels.
fn matches_no_labels(query: &LabelQuery) -> bool {
    use talos_proto::cosi::resource::label_term::Operation;
    query
        .terms
        .iter()
        .all(|term: &LabelTerm| (term.op() == Operation::NotExists) != term.invert)
}

struct Watch {
    node: Arc<Node>,
    kind: &'static Kind,
    id: Option<String>,
    /// Clients that do not know the newer event types are spared them.
    modern: bool,
    aggregated: bool,
    position: u64,
    ready: VecDeque<WatchResponse>,
}

impl Watch {
    fn begin(node: &Arc<Node>, kind: &'static Kind, request: WatchRequest) -> Result<Self, Status> {
        let options = request.options.unwrap_or_default();
        let id = request.id.filter(|id| !id.is_empty());
        if id.is_some() && options.bootstrap_contents {
            return Err(Status::unimplemented(
                "bootstrap contents is not implemented for resource watch",
            ));
        }
        let mut position = node.resources.position();
        if let Some(bookmark) = options.start_from_bookmark.as_ref().filter(|bookmark| !bookmark.is_empty()) {
            position = read_bookmark(node, bookmark).ok_or_else(|| Status::failed_precondition("invalid watch bookmark"))?;
        }
        let mut watch = Self {
            node: Arc::clone(node),
            kind,
            id,
            modern: request.api_version >= 1,
            aggregated: options.aggregated,
            position,
            ready: VecDeque::new(),
        };
        watch.ready.push_back(WatchResponse::default());
        watch.push(watch.initial(options.bootstrap_contents));
        Ok(watch)
    }

    fn initial(&self, contents: bool) -> Vec<Event> {
        let created = |resource: &Resource| Event {
            resource: Some(resource.to_proto()),
            event_type: EventType::Created.into(),
            ..Event::default()
        };
        let now = self.node.site.wall.now();
        match &self.id {
            Some(id) => {
                let event = match self.node.resources.get(self.kind, id) {
                    Some(resource) => created(&resource),
                    None => Event {
                        resource: Some(tombstone(self.kind, id, now)),
                        event_type: EventType::Destroyed.into(),
                        ..Event::default()
                    },
                };
                vec![event]
            }
            None if contents => {
                let mut events: Vec<Event> = self.node.resources.list(self.kind).iter().map(created).collect();
                events.push(Event {
                    resource: Some(tombstone(self.kind, "", now)),
                    event_type: EventType::Bootstrapped.into(),
                    bookmark: Some(self.bookmark(self.position)),
                    ..Event::default()
                });
                events
            }
            None => Vec::new(),
        }
    }

    fn push(&mut self, events: Vec<Event>) {
        let known = |event: &Event| self.modern || !matches!(event.event_type(), EventType::Bootstrapped | EventType::Errored);
        let events: Vec<Event> = events.into_iter().filter(known).collect();
        if self.aggregated && !events.is_empty() {
            self.ready.push_back(WatchResponse { event: events });
        } else {
            self.ready
                .extend(events.into_iter().map(|event| WatchResponse { event: vec![event] }));
        }
    }

    fn bookmark(&self, position: u64) -> Vec<u8> {
        self.node
            .resources
            .epoch
            .iter()
            .copied()
            .chain(position.to_be_bytes())
            .collect()
    }

    fn event(&self, change: &Change) -> Event {
        Event {
            resource: Some(change.resource.to_proto()),
            event_type: change.what.into(),
            old: change.old.as_ref().map(Resource::to_proto),
            error: None,
            bookmark: Some(self.bookmark(change.position)),
        }
    }

    fn stream(self) -> impl futures::Stream<Item = Result<WatchResponse, Status>> + Send {
        let moved = self.node.resources.watch();
        futures::stream::unfold((self, moved), |(mut watch, mut moved)| async move {
            loop {
                if let Some(response) = watch.ready.pop_front() {
                    return Some((Ok(response), (watch, moved)));
                }
                moved.mark_unchanged();
                let (position, changes) = watch.node.resources.changes(watch.position)?;
                watch.position = position;
                let wanted = |change: &&Arc<Change>| {
                    std::ptr::eq(change.resource.kind, watch.kind) && watch.id.as_ref().is_none_or(|id| *id == change.resource.id)
                };
                let events: Vec<Event> = changes.iter().filter(wanted).map(|change| watch.event(change)).collect();
                if !events.is_empty() {
                    watch.push(events);
                    continue;
                }
                tokio::select! {
                    biased;
                    () = watch.node.alive.cancelled() => return None,
                    changed = moved.changed() => changed.ok()?,
                }
            }
        })
    }
}

fn read_bookmark(node: &Node, bookmark: &[u8]) -> Option<u64> {
    let (epoch, position) = bookmark.split_at_checked(8)?;
    (epoch == node.resources.epoch).then_some(())?;
    Some(u64::from_be_bytes(position.try_into().ok()?))
}
