//! World in, printed plan out.

mod changes;
mod half;
mod new;
mod places;
mod properties;
mod removal;
mod strangers;
mod unknown;
mod world;
