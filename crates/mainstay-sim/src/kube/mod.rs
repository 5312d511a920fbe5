//! A simulated Kubernetes API server, as far as a cluster's first life needs it: real HTTP, real watches, objects of any kind.
//!
//! Nodes and static pods are written by the guests; `control` has the controllers and kubelets that run everything else.

pub(crate) mod admission;
pub(crate) mod control;
pub(crate) mod discovery;
mod eviction;
pub(crate) mod gitops;
pub(crate) mod helm;
pub(crate) mod kinds;
pub(crate) mod patch;
pub(crate) mod request;
pub(crate) mod select;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod table;
