//! What runs inside a simulated VM.
//!
//! The datacenter powers a guest on and off, hands it the hardware that the VM config describes, and asks its agent. All else
//! (what answers on the network, what is written to the disks) is the guest's own life. This crate knows no operating system.

use std::any::Any;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;

/// Makes the guest of a VM at the moment it is powered on.
pub trait Guests: Send + Sync + 'static {
    fn power_on(&self, hardware: Hardware) -> Box<dyn Guest>;
}

/// A guest that is powered on. Dropping it is pulling the plug.
pub trait Guest: Send + 'static {
    /// ACPI power button. A guest that runs an operating system ends with [`PowerSwitch::off`]; the others ignore it.
    fn press_power_button(&mut self) {}

    /// Hardware reset: the guest begins anew with the hardware it was powered on with.
    fn reset(&mut self);

    /// A QEMU guest agent call; `None` while no agent answers.
    fn agent(&mut self, _command: &str, _arguments: &serde_json::Value) -> Option<Result<serde_json::Value, String>> {
        None
    }

    /// Whether devices can be unplugged while it runs: an operating system lets them go, firmware does not.
    fn releases_devices(&self) -> bool {
        false
    }

    /// Devices were plugged or unplugged; this is what there is now.
    fn hardware_changed(&mut self, _hardware: &Hardware) {}
}

/// The VM as the guest sees it, fixed when it was powered on.
#[derive(Clone)]
pub struct Hardware {
    pub vmid: u32,
    /// The PVE node the VM runs on.
    pub host: String,
    pub name: String,
    /// SMBIOS type 1 UUID, lower case.
    pub uuid: String,
    /// SMBIOS type 1 serial number, decoded; empty without one.
    pub serial: String,
    pub cores: u32,
    /// Bytes.
    pub memory: u64,
    pub nics: Vec<Nic>,
    /// In boot order first, then by bus and index.
    pub disks: Vec<Disk>,
    /// The files of the cloud-init drive, if one is attached.
    pub cloud_init: Option<CloudInitFiles>,
    /// Whether the QEMU guest agent channel exists (`agent=1` at start).
    pub agent_channel: bool,
    pub power: PowerSwitch,
    pub pace: Pace,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nic {
    /// Upper case, colon separated.
    pub mac: String,
    pub bridge: String,
    pub vlan: Option<u16>,
    pub link_down: bool,
}

/// The files that PVE writes to a cloud-init drive, byte for byte.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CloudInitFiles {
    pub user_data: String,
    pub meta_data: String,
    pub network_config: String,
    pub vendor_data: String,
}

/// A block device: its place on the bus, and what is written on it.
#[derive(Clone)]
pub struct Disk {
    /// `scsi0`, `virtio1`, …
    pub key: String,
    pub serial: Option<String>,
    pub size: u64,
    pub content: Platter,
}

/// What is written on a volume. Shared by the volume and the guest that has it attached; it survives power cycles, and clones copy it.
#[derive(Clone, Default)]
pub struct Platter(Arc<Mutex<Content>>);

/// Content of a volume, immutable: a write replaces it.
#[derive(Clone, Default)]
pub enum Content {
    #[default]
    Blank,
    /// As imported or uploaded: the bytes of the image file.
    Image(Bytes),
    /// What a guest has made of it.
    Written(Arc<dyn Any + Send + Sync>),
}

impl Platter {
    pub fn new(content: Content) -> Self {
        Self(Arc::new(Mutex::new(content)))
    }

    pub fn read(&self) -> Content {
        self.0.lock().expect("no guest panics while it holds its disk").clone()
    }

    pub fn write(&self, content: Content) {
        *self.0.lock().expect("no guest panics while it holds its disk") = content;
    }

    /// The same content on another volume (full clone, import).
    pub fn copy(&self) -> Self {
        Self::new(self.read())
    }
}

/// How a guest ends or restarts its own VM.
#[derive(Clone)]
pub struct PowerSwitch(Arc<dyn Fn(PowerEvent) + Send + Sync>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerEvent {
    /// The guest has shut down: QEMU exits.
    Off,
    /// The guest has rebooted: QEMU stays, pending changes are not applied. The guest goes on living in the same object.
    Rebooted,
}

impl PowerSwitch {
    pub fn new(act: impl Fn(PowerEvent) + Send + Sync + 'static) -> Self {
        Self(Arc::new(act))
    }

    pub fn off(&self) {
        (self.0)(PowerEvent::Off);
    }

    pub fn rebooted(&self) {
        (self.0)(PowerEvent::Rebooted);
    }
}

/// How fast the world lives: scales what tasks and guests take, never protocol timeouts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace(f64);

impl Pace {
    /// `speed` 1 is life-like, 10 is ten times faster.
    ///
    /// # Panics
    /// When `speed` is not a positive number.
    pub fn new(speed: f64) -> Self {
        assert!(speed.is_finite() && speed > 0.0, "speed must be a positive number");
        Self(speed)
    }

    pub fn scale(self, duration: Duration) -> Duration {
        duration.div_f64(self.0)
    }

    pub async fn pass(self, duration: Duration) {
        tokio::time::sleep(self.scale(duration)).await;
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self(1.0)
    }
}
