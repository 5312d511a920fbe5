//! A simulated Kubernetes API server, as far as a cluster's first life needs it: real HTTP, real watches, objects of any kind.
//!
//! What runs behind it (kubelets, controllers) is played by the guests; this is the API and its store.

pub(crate) mod discovery;
pub(crate) mod kinds;
pub(crate) mod patch;
pub(crate) mod request;
pub(crate) mod select;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod table;
