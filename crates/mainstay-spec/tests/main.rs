//! cluster.yaml: reading, faults, schema and reference page. One binary: linking is what costs.

mod corpus;
mod examples;
mod invalid;
mod meaning;
mod properties;
