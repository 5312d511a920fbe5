//! What a node simulator must do, row by row, on raw gRPC.
//!
//! Transport: identity (`api::a_refused_certificate_gets_the_recorded_alert`, `api::a_node_in_maintenance_is_a_stranger_to_the_clusters_authority`),
//! closing connections (`life::streams_of_the_maintenance_api_outlive_it_by_ten_seconds`, `media::a_port_is_closed_while_a_machine_boots`),
//! routing (`api::control_planes_forward_and_workers_do_not`), versions (`versions`, `maintenance`).
//!
//! State: media, install, boot order, addresses (`media`), wipes (`life::wiping_…`), stages and conditions (`stages`), bootstrap gates
//! (`methods::a_bootstrap_is_checked_in_order`, `etcd::two_bootstraps_at_once_…`), self-reboot (`life::an_unbootstrapped_…`), trustd and
//! extensions (`faults`).
//!
//! etcd: membership, quorum, leaving, removal, same-name rejoin, snapshots and recovery (`etcd`), upgrades (`upgrade`).
//!
//! Semantics: asynchronous calls and LOCKED (`life::what_cannot_take_over_is_locked_out`), events and watches (`api::watches_…`, `recorded`),
//! kubeconfig and VIP (`api::the_kubeconfig_…`, `etcd::the_vip_…`), certificates and clock (`faults`, `api::server_certificates_…`), ACPI
//! (`datacenter`), validation (`life::broken_configs_…`, `versions`), every fault switch (`faults`, `life::a_lost_answer_…`, `lost`).

mod errors;
mod faults;
mod maintenance;
mod media;
mod methods;
mod stages;
mod upgrade;
mod versions;

const CP: &str = "10.10.0.11";
const CP2: &str = "10.10.0.12";
const CP3: &str = "10.10.0.13";
const WORKER: &str = "10.10.0.21";
