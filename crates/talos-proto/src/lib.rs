//! The part of Talos' gRPC interface that is spoken here: clients, server traits and messages.
//!
//! The `.proto` files under `proto/` are our own and hold only what is called or served. Packages, names and field numbers are
//! those of Talos, since they are the wire format; a field that is missing here is skipped on decoding.
//!
//! Messages that may carry keys print `***` instead of their contents.

mod generated {
    #![expect(unused_qualifications, reason = "written by prost and tonic")]
    include!(concat!(env!("OUT_DIR"), "/talos_proto.rs"));
}
mod redacted;

pub use generated::{cluster, common, cosi, google, inspect, machine, securityapi, storage, time};

/// How the specs of resources are encoded, by package.
pub mod spec {
    pub use crate::generated::talos::resource::config;
    pub use crate::generated::talos::resource::definitions::{
        block, cluster, enums, etcd, extensions, hardware, k8s, network, runtime, time, v1alpha1,
    };
}
