// What must hold for any bytes: nothing panics, and what was read is read again from what it prints. Shared with the fuzz targets.

use std::fmt::{Debug, Display};
use std::str::FromStr;

use pve_api::{
    Agent, Boot, Class, Description, Digest, DiskSize, Drive, Error, Host, IpConfig, Mac, Net, PoolId, PveVersion, Slot, Smbios,
    StorageId, Tags, Upid, Vmid, Volid, access, cluster, host, pool, qemu, storage, task,
};

fn round<T: FromStr + Display + PartialEq + Debug>(text: &str)
where
    T::Err: Display,
{
    match text.parse::<T>() {
        Ok(value) => {
            let printed = value.to_string();
            match printed.parse::<T>() {
                Ok(again) => assert_eq!(again, value, "{printed:?} of {text:?} says something else"),
                Err(error) => panic!("{printed:?} of {text:?} cannot be read again: {error}"),
            }
        }
        Err(error) => assert!(!error.to_string().is_empty(), "refused without a word: {text:?}"),
    }
}

/// Every value that PVE writes as text.
pub fn values(bytes: &[u8]) {
    let text = &*String::from_utf8_lossy(bytes);
    round::<Upid>(text);
    round::<Drive>(text);
    round::<Net>(text);
    round::<IpConfig>(text);
    round::<Smbios>(text);
    round::<Boot>(text);
    round::<Description>(text);
    round::<Agent>(text);
    round::<Tags>(text);
    round::<Volid>(text);
    round::<DiskSize>(text);
    round::<Slot>(text);
    round::<Mac>(text);
    round::<Vmid>(text);
    round::<Digest>(text);
    round::<Host>(text);
    round::<StorageId>(text);
    round::<PoolId>(text);
    let _ = text.parse::<PveVersion>();
    let _ = Class::of_task(text);
}

fn decoded<T>(call: &pve_api::Call<T>, status: u16, reason: &str, body: &[u8]) {
    match call.decode(status, reason, body) {
        Ok(_) => assert_eq!(status, 200, "only 200 is a success"),
        Err(error) => told(&error),
    }
}

/// An error can be told in one line, with its causes.
fn told(error: &Error) {
    assert!(!error.to_string().is_empty());
    let _ = (error.class(), error.privilege(), error.message(), format!("{error:?}"));
}

/// An answer: status as two bytes, the reason phrase up to a line feed, then the body.
pub fn answers(bytes: &[u8]) {
    let (status, rest) = bytes.split_at(bytes.len().min(2));
    let status = match status {
        [a, b] => u16::from_be_bytes([*a, *b]),
        _ => 200,
    };
    let end = rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    let reason = String::from_utf8_lossy(&rest[..end]);
    let body = rest.get(end + 1..).unwrap_or_default();
    for status in [status, 200] {
        every_call(status, &reason, body);
    }
}

fn every_call(status: u16, reason: &str, body: &[u8]) {
    let (pve, vm): (Host, Vmid) = ("pve1".parse().expect("a host"), Vmid::MIN);
    let store: StorageId = "local".parse().expect("a storage");
    let upid = "UPID:pve1:0000059A:0002B4C3:6AFA1359:qmconfig:101:root@pam:";
    let upid: Upid = upid.parse().expect("a task");
    decoded(&cluster::version(), status, reason, body);
    decoded(&cluster::status(), status, reason, body);
    decoded(&cluster::resources(None), status, reason, body);
    decoded(&cluster::next_id(), status, reason, body);
    decoded(&cluster::options(), status, reason, body);
    decoded(&host::list(), status, reason, body);
    decoded(&host::status(&pve), status, reason, body);
    decoded(&host::bridges(&pve), status, reason, body);
    decoded(&access::permissions(), status, reason, body);
    decoded(&access::users(), status, reason, body);
    decoded(&access::roles(), status, reason, body);
    decoded(&access::acl(), status, reason, body);
    decoded(&pool::list(), status, reason, body);
    decoded(&qemu::config(&pve, vm), status, reason, body);
    decoded(&qemu::pending(&pve, vm), status, reason, body);
    decoded(&qemu::status(&pve, vm), status, reason, body);
    decoded(&qemu::list(&pve), status, reason, body);
    decoded(&qemu::start(&pve, vm), status, reason, body);
    decoded(&qemu::agent_interfaces(&pve, vm), status, reason, body);
    decoded(&storage::list(&pve), status, reason, body);
    decoded(&storage::definitions(), status, reason, body);
    decoded(
        &storage::content(&pve, &store, &storage::ContentFilter::default()),
        status,
        reason,
        body,
    );
    decoded(&task::status(&upid), status, reason, body);
    decoded(&task::log(&upid, 0, 50), status, reason, body);
    decoded(&task::active(&pve), status, reason, body);
}
