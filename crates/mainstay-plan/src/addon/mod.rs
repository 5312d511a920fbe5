//! Add-ons: what is installed on top of the bare cluster, decided from values alone.
//!
//! | module | what |
//! |---|---|
//! | [`facts`] | what the catalogue must know about the cluster |
//! | [`catalogue`] | every add-on by name: source, values, order, readiness, what a distribution packages itself |
//! | [`values`] | the user's values over ours, their warnings, the content hash |
//! | [`release`] | from a wanted and an observed release to one decision |
//! | [`job`] | where and when a Job of Helm may run, and what it leaves behind |
//! | [`pins`] | versions, the lock file, CRDs |
//! | [`objects`] | the Kubernetes objects of the installing Job |
//! | [`balancer`] | addresses of services of type LoadBalancer |
//! | [`seen`] | what was observed of all this |
//! | [`wanted`] | from the file to charts, versions, values and hashes |
//! | [`ready`] | whether an add-on does its work |
//! | [`run`] | what the steps carry |
//! | [`accounts`] | PVE roles, users, tokens and ACLs of cloud controller and CSI driver |
//!
//! Nothing here reads a file, a clock or the network. Secrets are references (`{ $secret: name }`) until the executor resolves them.

pub mod accounts;
pub mod balancer;
pub mod catalogue;
pub mod facts;
pub mod job;
pub mod objects;
pub mod pins;
pub mod ready;
pub mod release;
pub mod run;
pub mod seen;
pub mod values;
pub mod wanted;
