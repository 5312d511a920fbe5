//! Simulated guests, Kubernetes and the world around them. One binary: linking is what costs.

mod addons;
mod api;
mod client;
mod cloud;
mod datacenter;
mod day_two;
mod drain;
mod etcd;
mod happy_path;
mod kubernetes;
mod lab;
mod life;
mod recorded;
mod rows;
mod upgrades;
