//! Add-ons from cluster.yaml to pods that run.

mod charts;
mod cilium;
