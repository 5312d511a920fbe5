//! Guests that boot from a cloud image: Ubuntu and Debian with cloud-init, sshd, systemd, and RKE2 or k3s on them.

mod archive;
mod boot;
mod cloudinit;
mod disk;
mod fs;
mod guest;
mod host;
mod image;
mod journal;
mod netdev;
mod rancher;
mod shell;
mod sshd;
mod systemd;
mod tools;
pub(crate) mod web;

pub use self::image::CloudImage;
pub use self::web::WebFaults;

pub(crate) use self::guest::power_on;
pub(crate) use self::host::Town;

/// What apt and dpkg exclude each other by.
const DPKG_LOCK: &str = "/var/lib/dpkg/lock-frontend";
