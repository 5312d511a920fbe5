//! One machine's gRPC channel: every call has a deadline, and every failure is sorted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_net::{Alpn, Connector, Target};
use talos_proto::cosi::resource::state_client::StateClient;
use talos_proto::machine::image_service_client::ImageServiceClient;
use talos_proto::machine::lifecycle_service_client::LifecycleServiceClient;
use talos_proto::machine::machine_service_client::MachineServiceClient;
use talos_proto::storage::storage_service_client::StorageServiceClient;
use tokio::time::{Instant, timeout_at};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{IntoRequest, Request, Response, Status, Streaming};

use crate::error::{Call, Error, Unsent};

/// The most a machine accepts and sends in one message.
const MESSAGE_MAX: usize = 32 << 20;

/// A channel to one machine, straight or through another one.
#[derive(Clone)]
pub(crate) struct Link {
    at: Target,
    /// The machine meant, where `at` only passes calls on.
    onward: Option<MetadataValue<Ascii>>,
    connector: Connector,
    channel: Channel,
    /// A call on it was lost, or got no answer.
    broken: Arc<AtomicBool>,
}

/// One call under way: its name for errors, its end for waiting.
pub(crate) struct Pending {
    link: Link,
    call: Call,
    deadline: Duration,
    until: Instant,
}

impl Link {
    /// Nothing is dialled before the first call. Create it inside the runtime that uses it.
    pub(crate) fn new(at: &Target, connector: Connector) -> Result<Self, Error> {
        let unusable = |_| Error::Address { text: at.to_string() };
        // The connector brings TLS, so tonic must not ask for it by the scheme.
        let endpoint = Endpoint::from_shared(format!("http://{at}")).map_err(unusable)?;
        // No HTTP/2 pings: the machine answers frequent ones by hanging up. Every call has a deadline instead.
        let connector = connector.with_alpn(Alpn::Http2);
        let channel = endpoint.connect_with_connector_lazy(connector.clone());
        Ok(Self {
            at: at.clone(),
            onward: None,
            connector,
            channel,
            broken: Arc::default(),
        })
    }

    /// The same channel, for calls that `at` passes on to `node`.
    pub(crate) fn onward(&self, node: &str) -> Result<Self, Error> {
        let unusable = |_| Error::Address { text: node.to_owned() };
        Ok(Self {
            onward: Some(node.parse().map_err(unusable)?),
            ..self.clone()
        })
    }

    /// Whether every call so far was answered.
    pub(crate) fn is_sound(&self) -> bool {
        !self.broken.load(Ordering::Relaxed)
    }

    pub(crate) fn at(&self) -> &Target {
        &self.at
    }

    pub(crate) fn call(&self, name: &'static str, deadline: Duration) -> Pending {
        let call = Call {
            name,
            at: self.at.clone(),
        };
        Pending {
            link: self.clone(),
            call,
            deadline,
            until: Instant::now() + deadline,
        }
    }

    pub(crate) fn machine(&self) -> MachineServiceClient<Channel> {
        MachineServiceClient::new(self.channel.clone())
            .max_decoding_message_size(MESSAGE_MAX)
            .max_encoding_message_size(MESSAGE_MAX)
    }

    pub(crate) fn state(&self) -> StateClient<Channel> {
        StateClient::new(self.channel.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    pub(crate) fn images(&self) -> ImageServiceClient<Channel> {
        ImageServiceClient::new(self.channel.clone())
    }

    pub(crate) fn lifecycle(&self) -> LifecycleServiceClient<Channel> {
        LifecycleServiceClient::new(self.channel.clone())
    }

    pub(crate) fn storage(&self) -> StorageServiceClient<Channel> {
        StorageServiceClient::new(self.channel.clone())
    }
}

impl Pending {
    /// The message with routing and, so that the machine gives up when we do, the time limit.
    pub(crate) fn request<M>(&self, message: M) -> Request<M> {
        let mut request = self.stream_request(message);
        request.set_timeout(self.deadline);
        request
    }

    /// As [`Self::request`], for a stream that lives on after its first answer.
    pub(crate) fn stream_request<M>(&self, message: M) -> Request<M> {
        let mut request = message.into_request();
        if let Some(node) = &self.link.onward {
            request.metadata_mut().insert("node", node.clone());
        }
        request
    }

    pub(crate) async fn answer<T>(&self, sent: impl Future<Output = Result<Response<T>, Status>>) -> Result<T, Error> {
        Ok(self.within(sent).await?.into_inner())
    }

    /// The only message of an answer that could hold one for each of several machines.
    pub(crate) fn only<M>(&self, messages: Vec<M>) -> Result<M, Error> {
        messages
            .into_iter()
            .next()
            .ok_or_else(|| self.misread("an answer without a message"))
    }

    /// Reads a stream to its end.
    pub(crate) async fn collect<T>(&self, mut stream: Streaming<T>) -> Result<Vec<T>, Error> {
        let mut items = Vec::new();
        while let Some(item) = self.within(stream.message()).await? {
            items.push(item);
        }
        Ok(items)
    }

    pub(crate) async fn within<T>(&self, work: impl Future<Output = Result<T, Status>>) -> Result<T, Error> {
        let error = match timeout_at(self.until, work).await {
            Ok(Ok(done)) => return Ok(done),
            Ok(Err(status)) => Error::of_status(self.call.clone(), self.deadline, status),
            Err(_) => Error::NoAnswer {
                call: self.call.clone(),
                deadline: self.deadline,
            },
        };
        if !matches!(error, Error::Refused { .. }) {
            self.give_up_link();
        }
        Err(self.explained(error).await)
    }

    /// The next caller of [`crate::Access::node`] gets a new connection.
    pub(crate) fn give_up_link(&self) {
        self.link.broken.store(true, Ordering::Relaxed);
    }

    async fn explained(&self, error: Error) -> Error {
        if !matches!(
            error,
            Error::NotSent {
                source: Unsent::Closing(_),
                ..
            }
        ) {
            return error;
        }
        match self
            .link
            .connector
            .refusal(&self.link.at)
            .await
            .map(|alert| format!("{alert:?}"))
        {
            Some(alert) => Error::NotSent {
                call: self.call.clone(),
                source: Unsent::ClientRefused(alert),
            },
            None => error,
        }
    }

    pub(crate) fn misread(&self, what: impl Into<String>) -> Error {
        Error::Misread {
            call: self.call.clone(),
            what: what.into(),
        }
    }

    pub(crate) fn name(&self) -> Call {
        self.call.clone()
    }
}
