//! The services of the machine API.

mod apply;
mod cosi;
mod etcd;
mod files;
mod health;
mod images;
mod lifecycle;
mod machine;
mod stats;
mod storage;

use std::sync::Arc;

use axum::Router;
use talos_proto::cluster::cluster_service_server::ClusterServiceServer;
use talos_proto::cosi::resource::state_server::StateServer;
use talos_proto::machine::image_service_server::ImageServiceServer;
use talos_proto::machine::lifecycle_service_server::LifecycleServiceServer;
use talos_proto::machine::machine_service_server::MachineServiceServer;
use talos_proto::storage::storage_service_server::StorageServiceServer;
use talos_proto::time::time_service_server::TimeServiceServer;
use tonic::Status;
use tonic::service::Routes;

use super::node::Node;

/// The largest message apid and machined take.
const MESSAGE_LIMIT: usize = 32 * 1024 * 1024;

/// One node's answers, without any check of who asks.
#[derive(Clone)]
pub(crate) struct Api(pub(crate) Arc<Node>);

pub(crate) fn routes(node: &Arc<Node>) -> Router {
    let api = Arc::new(Api(Arc::clone(node)));
    let mut routes = Routes::new(MachineServiceServer::from_arc(Arc::clone(&api)).max_decoding_message_size(MESSAGE_LIMIT))
        .add_service(StorageServiceServer::from_arc(Arc::clone(&api)))
        .add_service(TimeServiceServer::from_arc(Arc::clone(&api)))
        .add_service(ClusterServiceServer::from_arc(Arc::clone(&api)))
        .add_service(StateServer::from_arc(Arc::clone(&api)));
    // Services that came with 1.13.
    if node.minor() >= 13 {
        routes = routes
            .add_service(ImageServiceServer::from_arc(Arc::clone(&api)))
            .add_service(LifecycleServiceServer::from_arc(api));
    }
    routes.into_axum_router()
}

type Answer<T> = Result<tonic::Response<T>, Status>;
type Stream<T> = tonic::codegen::BoxStream<T>;

/// Items that are at hand, as a stream.
fn stream<T: Send + 'static>(items: Vec<T>) -> tonic::Response<Stream<T>> {
    tonic::Response::new(Box::pin(futures::stream::iter(items.into_iter().map(Ok))))
}

/// A call that the real node leaves without an answer: it ends with the caller's deadline.
async fn hang<T>() -> Answer<T> {
    std::future::pending().await
}
