//! The seam from outside: real TLS, HTTP, gRPC and SSH bytes over every way a byte can go.

mod determinism;
mod http;
mod jump;
mod serve;
mod simnet;
mod ssh;
mod trust;
mod ways;
mod world;
