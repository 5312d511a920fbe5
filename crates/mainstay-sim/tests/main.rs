//! Simulated guests, Kubernetes and the world around them. One binary: linking is what costs.

mod api;
mod client;
mod cloud;
mod datacenter;
mod etcd;
mod happy_path;
mod kubernetes;
mod lab;
mod life;
mod recorded;
mod rows;
