//! One boot of a cloud guest: its file system, its processes, and what it has on the network.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use ipnet::IpNet;
use mainstay_net::{Entropy, Trust};
use pve_sim::guest::{Disk, Hardware};
use rand::Rng;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

use super::disk::SystemDisk;
use super::fs::FileSystem;
use super::image::CloudImage;
use super::journal::Journal;
use super::rancher::Runtime;
use super::systemd::Manager;
use crate::talos::{NodeFaults, Site};
use crate::timing::CloudTiming;

pub(crate) struct Host {
    pub site: Arc<Site>,
    pub hardware: Hardware,
    pub image: CloudImage,
    pub fs: FileSystem,
    pub boot_id: String,
    pub entropy: Entropy,
    pub journal: Journal,
    pub systemd: Manager,
    /// RKE2 or k3s on this machine.
    pub runtime: Runtime,
    state: Mutex<State>,
    tasks: Mutex<Vec<AbortHandle>>,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
    ending: watch::Sender<Option<Ending>>,
}

#[derive(Default)]
pub(crate) struct State {
    pub hostname: String,
    pub addresses: Vec<(String, IpNet)>,
    /// Addresses that a program has put on a card, such as a virtual IP.
    pub extra: BTreeSet<IpAddr>,
    pub gateway: Option<IpAddr>,
    /// pam_nologin: the system is still booting.
    pub booting: bool,
    pub cloud_init: Stage,
    pub sysctl: BTreeMap<String, String>,
    pub modules: BTreeSet<String>,
    /// Packages that were installed in this boot.
    pub packages: BTreeSet<String>,
}

/// How far cloud-init is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Stage {
    #[default]
    NotStarted,
    Running,
    Done,
    Disabled,
}

/// How a boot ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Off,
    Reboot,
}

impl Host {
    pub fn new(site: &Arc<Site>, hardware: &Hardware, disk: SystemDisk) -> Option<Arc<Self>> {
        let image = disk.read()?.image;
        let entropy = site.entropy.fork(&format!("guest {} {}", hardware.uuid, site.next_serial()));
        let mut random = [0; 16];
        entropy.fork("boot id").rng().fill_bytes(&mut random);
        let host = Arc::new(Self {
            site: Arc::clone(site),
            hardware: hardware.clone(),
            image,
            fs: FileSystem::new(disk),
            boot_id: uuid::Builder::from_random_bytes(random).into_uuid().to_string(),
            entropy,
            journal: Journal::default(),
            systemd: Manager::default(),
            runtime: Runtime::default(),
            state: Mutex::new(State {
                booting: true,
                ..State::default()
            }),
            tasks: Mutex::default(),
            locks: Mutex::default(),
            ending: watch::Sender::new(None),
        });
        Some(host)
    }

    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("plain data")
    }

    pub fn timing(&self) -> &CloudTiming {
        &self.site.timing.cloud
    }

    pub async fn pass(&self, duration: Duration) {
        self.site.pace.pass(duration).await;
    }

    /// Seconds since the epoch, by the guest's own clock.
    pub fn now(&self) -> i64 {
        self.timestamp().as_second()
    }

    pub fn timestamp(&self) -> jiff::Timestamp {
        let skew = jiff::SignedDuration::from_secs(self.faults().clock_skew);
        let now = self.site.wall.now();
        now.checked_add(skew).unwrap_or(now)
    }

    pub fn faults(&self) -> NodeFaults {
        self.site.faults(&self.hardware.name)
    }

    pub fn hostname(&self) -> String {
        self.lock().hostname.clone()
    }

    /// The first address of its own.
    pub fn address(&self) -> Option<IpAddr> {
        self.lock().addresses.first().map(|(_, net)| net.addr())
    }

    /// All addresses that it answers on.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let state = self.lock();
        let own = state.addresses.iter().map(|(_, net)| net.addr());
        own.chain(state.extra.iter().copied()).collect()
    }

    /// Runs something for as long as this boot lives.
    pub fn spawn<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> JoinHandle<T> {
        let handle = tokio::spawn(task);
        let mut tasks = self.tasks.lock().expect("plain data");
        tasks.retain(|task| !task.is_finished());
        tasks.push(handle.abort_handle());
        handle
    }

    pub fn lock_of(&self, path: &str) -> Arc<tokio::sync::Mutex<()>> {
        Arc::clone(self.locks.lock().expect("plain data").entry(path.to_owned()).or_default())
    }

    pub fn note_command(&self, user: &str, arguments: &[String]) {
        self.site.cloud.note_command(self, user, arguments);
    }

    /// Whether a user may become root without a password.
    pub fn may_sudo(&self, user: &str) -> bool {
        let directory = self
            .fs
            .list(super::fs::Credentials::ROOT, "/etc/sudoers.d")
            .unwrap_or_default();
        let rule = format!("{user} ALL=(ALL) NOPASSWD:ALL");
        let allows = |name: &String| {
            self.fs
                .text(&format!("/etc/sudoers.d/{name}"))
                .is_some_and(|text| text.contains(&rule))
        };
        directory.iter().any(allows)
    }

    /// The disk behind `/dev/sda` or a link of udev; the system disk comes first.
    pub fn block_device(&self, path: &str) -> Option<&Disk> {
        let name = super::fs::name(path);
        self.hardware.disks.iter().enumerate().find_map(|(index, disk)| {
            let letter = char::from(b'a' + u8::try_from(index).ok()?);
            let by_id = disk
                .serial
                .as_ref()
                .map(|serial| format!("scsi-0QEMU_QEMU_HARDDISK_{serial}"));
            (name == format!("sd{letter}") || by_id.as_deref() == Some(name)).then_some(disk)
        })
    }

    pub fn end(&self, ending: Ending) {
        self.ending.send_if_modified(|known| {
            let first = known.is_none();
            known.get_or_insert(ending);
            first
        });
    }

    pub async fn ended(&self) -> Ending {
        let mut changed = self.ending.subscribe();
        loop {
            if let Some(ending) = *changed.borrow_and_update() {
                return ending;
            }
            if changed.changed().await.is_err() {
                return Ending::Off;
            }
        }
    }

    pub fn is_ending(&self) -> bool {
        self.ending.borrow().is_some()
    }

    // --- the network ---

    /// Puts an address on a card.
    pub fn add_address(self: &Arc<Self>, address: IpAddr) {
        self.site.cloud.enter(address, self);
        self.site.sim.attach(address);
    }

    pub fn drop_extra(&self, address: IpAddr) {
        if self.lock().extra.remove(&address) {
            self.site.cloud.leave(address, self);
        }
    }

    /// The power is gone: every task ends at once, and its addresses answer nothing.
    pub fn die(self: &Arc<Self>) {
        for task in self.tasks.lock().expect("plain data").drain(..) {
            task.abort();
        }
        self.runtime.power_lost(self);
        for address in self.addresses() {
            self.site.cloud.leave(address, self);
        }
    }
}

/// Cloud guests of a world, by address.
#[derive(Default)]
pub(crate) struct Town {
    hosts: Mutex<BTreeMap<IpAddr, Weak<Host>>>,
    commands: Mutex<BTreeMap<String, Vec<String>>>,
    pub clusters: super::rancher::Clusters,
    /// Where the guests download from.
    pub web: Mutex<Option<Arc<super::web::Web>>>,
}

impl Town {
    fn hosts(&self) -> MutexGuard<'_, BTreeMap<IpAddr, Weak<Host>>> {
        self.hosts.lock().expect("plain data")
    }

    /// Whom guests believe on the public network.
    pub fn trust(&self) -> Trust {
        let web = self.web.lock().expect("plain data").clone();
        let ca_pem = web.map(|web| web.ca_pem.clone()).unwrap_or_default();
        Trust::Ca {
            ca_pem,
            identity: None,
            server_name: None,
        }
    }

    pub fn at(&self, address: IpAddr) -> Option<Arc<Host>> {
        self.hosts().get(&address).and_then(Weak::upgrade)
    }

    pub fn all(&self) -> Vec<Arc<Host>> {
        let mut all: Vec<Arc<Host>> = self.hosts().values().filter_map(Weak::upgrade).collect();
        all.dedup_by(|one, other| Arc::ptr_eq(one, other));
        all
    }

    fn enter(&self, address: IpAddr, host: &Arc<Host>) {
        self.hosts().insert(address, Arc::downgrade(host));
    }

    fn leave(&self, address: IpAddr, host: &Host) {
        let mut hosts = self.hosts();
        let own = hosts.get(&address).is_some_and(|other| std::ptr::eq(other.as_ptr(), host));
        if own {
            hosts.remove(&address);
            host.site.sim.detach(address);
        }
    }

    /// What was started on a machine, by VM name: what a process list or an audit log would have shown.
    pub fn commands(&self, machine: &str) -> Vec<String> {
        self.commands
            .lock()
            .expect("plain data")
            .get(machine)
            .cloned()
            .unwrap_or_default()
    }

    fn note_command(&self, host: &Host, user: &str, arguments: &[String]) {
        let line = format!("{user}: {}", arguments.join(" "));
        let mut commands = self.commands.lock().expect("plain data");
        commands.entry(host.hardware.name.clone()).or_default().push(line);
    }
}
