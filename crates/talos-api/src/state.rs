//! Reading and following a machine's state.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use talos_proto::cosi::resource as cosi;
use talos_proto::cosi::resource::EventType;
use tokio::time::timeout;
use tonic::Streaming;

use crate::error::{Call, Class, Error};
use crate::limits::READ;
use crate::link::{Link, Pending};
use crate::resource::{Resource, Spec};

/// Below it, the machine leaves out the events that end the first listing and that report an error.
const WATCH_API: i32 = 1;

impl Link {
    /// `None` when there is no such resource, or when this release knows no such type.
    pub(crate) async fn get<S: Spec>(&self, id: &str) -> Result<Option<Resource<S>>, Error> {
        let pending = self.call("Get", READ);
        let request = cosi::GetRequest {
            namespace: S::NAMESPACE.into(),
            r#type: S::TYPE.into(),
            id: id.into(),
            options: None,
        };
        let got = pending.answer(self.state().get(pending.request(request))).await;
        match absent_is_none(got)?.and_then(|answer| answer.resource) {
            None => Ok(None),
            Some(resource) => read(&pending, resource).map(Some),
        }
    }

    pub(crate) async fn list<S: Spec>(&self) -> Result<Vec<Resource<S>>, Error> {
        let pending = self.call("List", READ);
        let request = cosi::ListRequest {
            namespace: S::NAMESPACE.into(),
            r#type: S::TYPE.into(),
            options: None,
        };
        let listed = async {
            let stream = pending.answer(self.state().list(pending.request(request))).await?;
            pending.collect(stream).await
        };
        let items = absent_is_none(listed.await)?.unwrap_or_default();
        items
            .into_iter()
            .filter_map(|item| item.resource)
            .map(|resource| read(&pending, resource))
            .collect()
    }

    /// With an id: what it is now, then every change. Without: all there are, [`Change::Listed`], then every change.
    pub(crate) async fn watch<S: Spec>(&self, id: Option<&str>) -> Result<Watch<S>, Error> {
        let pending = self.call("Watch", READ);
        let request = cosi::WatchRequest {
            namespace: S::NAMESPACE.into(),
            r#type: S::TYPE.into(),
            id: id.map(str::to_owned),
            options: Some(cosi::WatchOptions {
                bootstrap_contents: id.is_none(),
                ..Default::default()
            }),
            api_version: WATCH_API,
        };
        let stream = pending.answer(self.state().watch(pending.stream_request(request))).await?;
        Ok(Watch {
            pending,
            stream,
            ready: VecDeque::new(),
            spec: PhantomData,
        })
    }

    /// A resource in its binary form, which for a few types says more than the YAML one.
    pub(crate) async fn get_encoded<M: prost::Message + Default>(
        &self,
        namespace: &str,
        kind: &str,
        id: &str,
    ) -> Result<Option<(Option<u64>, M)>, Error> {
        let pending = self.call("Get", READ);
        let request = cosi::GetRequest {
            namespace: namespace.into(),
            r#type: kind.into(),
            id: id.into(),
            options: None,
        };
        let got = pending.answer(self.state().get(pending.request(request))).await;
        let Some(resource) = absent_is_none(got)?.and_then(|answer| answer.resource) else {
            return Ok(None);
        };
        let version = resource.metadata.as_ref().and_then(|metadata| metadata.version.parse().ok());
        let spec = resource.spec.unwrap_or_default().proto_spec;
        let spec = M::decode(spec.as_slice()).map_err(|_| pending.misread(format!("a {kind} that cannot be decoded")))?;
        Ok(Some((version, spec)))
    }
}

fn absent_is_none<T>(got: Result<T, Error>) -> Result<Option<T>, Error> {
    match got {
        Ok(answer) => Ok(Some(answer)),
        Err(error) if matches!(error.class(), Some(Class::NotFound | Class::Unsupported)) => Ok(None),
        Err(error) => Err(error),
    }
}

fn read<S: Spec>(pending: &Pending, resource: cosi::Resource) -> Result<Resource<S>, Error> {
    let metadata = resource.metadata.unwrap_or_default();
    let forms = resource.spec.unwrap_or_default();
    let spec = decode(&forms).ok_or_else(|| pending.misread(format!("{} `{}` cannot be read", S::TYPE, metadata.id)))?;
    Ok(Resource {
        version: metadata.version.parse().ok(),
        id: metadata.id,
        spec,
    })
}

/// The binary form where it is filled. A spec whose every field has its default value is encoded as nothing, so YAML decides then.
fn decode<S: Spec>(forms: &cosi::Spec) -> Option<S> {
    if !forms.proto_spec.is_empty()
        && let Some(decoded) = S::of_proto(&forms.proto_spec)
    {
        return decoded.ok();
    }
    // The parser's own error would quote the text.
    serde_saphyr::from_str(&forms.yaml_spec).ok()
}

/// Changes of one resource, or of all of a type.
pub struct Watch<S> {
    pending: Pending,
    stream: Streaming<cosi::WatchResponse>,
    ready: VecDeque<Result<Change<S>, Error>>,
    spec: PhantomData<S>,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Change<S> {
    /// New, or changed, or there from the start.
    Is(Resource<S>),
    /// No longer there, or not there from the start.
    Gone { id: String },
    /// Everything there was at the start has been told.
    Listed,
}

/// What came of waiting for a change.
#[derive(Clone, Debug, PartialEq)]
pub enum Told<S> {
    Change(Change<S>),
    /// Nothing happened in the given time.
    Nothing,
    /// The machine ended the stream: it reboots, or its API restarts.
    Ended,
}

impl<S: Spec> Watch<S> {
    /// The next change, or [`Told::Nothing`] when none comes in `quiet`: only the caller knows how long silence is good news.
    pub async fn next(&mut self, quiet: Duration) -> Result<Told<S>, Error> {
        loop {
            if let Some(change) = self.ready.pop_front() {
                return change.map(Told::Change);
            }
            match timeout(quiet, self.stream.message()).await {
                Err(_) => return Ok(Told::Nothing),
                Ok(Ok(None)) => return Ok(Told::Ended),
                Ok(Ok(Some(answer))) => self
                    .ready
                    .extend(answer.event.into_iter().filter_map(|event| change(&self.pending, event))),
                Ok(Err(status)) => {
                    let error = Error::of_status(self.pending.name(), quiet, status);
                    if !matches!(error, Error::Refused { .. }) {
                        self.pending.give_up_link();
                    }
                    return Err(error);
                }
            }
        }
    }
}

fn change<S: Spec>(pending: &Pending, event: cosi::Event) -> Option<Result<Change<S>, Error>> {
    let kind = event.event_type();
    let id = |resource: Option<cosi::Resource>| {
        resource
            .and_then(|it| it.metadata)
            .map(|metadata| metadata.id)
            .unwrap_or_default()
    };
    match kind {
        EventType::Created | EventType::Updated => Some(read(pending, event.resource?).map(Change::Is)),
        EventType::Destroyed => Some(Ok(Change::Gone { id: id(event.resource) })),
        EventType::Bootstrapped => Some(Ok(Change::Listed)),
        EventType::Errored => Some(Err(
            pending.misread(event.error.unwrap_or_else(|| "a watch that failed".into()))
        )),
        EventType::Noop => None,
    }
}

impl<S> std::fmt::Debug for Watch<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Call { at, .. } = self.pending.name();
        f.debug_struct("Watch").field("at", &at).finish_non_exhaustive()
    }
}
