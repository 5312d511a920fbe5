//! RKE2 and k3s guests in a simulated datacenter, driven step by step without a plan.

mod clusters;
mod first_boot;
mod lab;
mod rules;
