//! Resource pools.

use serde::Deserialize;

use crate::request::{Call, Done, Request};
use crate::value::{PoolId, Vmid, loose};

/// The pools the caller may see, without their members.
pub fn list() -> Call<Vec<Pool>> {
    Call::new(Request::get("/pools", &[]))
}

/// One pool with its members, as a list of one; refused as [`crate::Class::Missing`] when there is none.
pub fn members(pool: &PoolId) -> Call<Vec<Pool>> {
    Call::new(Request::get("/pools", &[]).with("poolid", pool))
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Pool {
    pub poolid: PoolId,
    #[serde(default, deserialize_with = "loose::opt_text")]
    pub comment: Option<String>,
    #[serde(default)]
    pub members: Vec<PoolMember>,
}

/// A guest or a storage.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct PoolMember {
    pub id: String,
    #[serde(default)]
    pub vmid: Option<Vmid>,
}

pub fn create(pool: &PoolId, comment: Option<&str>) -> Call<Done> {
    Call::new(Request::post("/pools", &[]).with("poolid", pool).with_opt("comment", comment))
}

/// A guest is in one pool at most; one that is in another is refused as [`crate::Class::InUse`].
pub fn add_guests(pool: &PoolId, guests: &[Vmid]) -> Call<Done> {
    Call::new(Request::put("/pools", &[]).with("poolid", pool).with_list("vms", guests))
}

/// As [`add_guests`], and takes them out of the pool that they are in, which needs `Pool.Allocate` there too.
pub fn move_guests(pool: &PoolId, guests: &[Vmid]) -> Call<Done> {
    Call::new(
        Request::put("/pools", &[])
            .with("poolid", pool)
            .with_list("vms", guests)
            .with("allow-move", 1),
    )
}

pub fn remove_guests(pool: &PoolId, guests: &[Vmid]) -> Call<Done> {
    Call::new(
        Request::put("/pools", &[])
            .with("poolid", pool)
            .with_list("vms", guests)
            .with("delete", 1),
    )
}

/// The pool must be empty.
pub fn delete(pool: &PoolId) -> Call<Done> {
    Call::new(Request::delete("/pools", &[]).with("poolid", pool))
}
