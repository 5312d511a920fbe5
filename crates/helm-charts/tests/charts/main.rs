//! Charts pulled from registries and repositories that run on the in-memory network.

mod archive;
mod pull;
mod world;
