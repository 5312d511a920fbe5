//! A small world: a datacenter that a plan can be carried out in, without time and without faults.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;

use mainstay_plan::guest::RancherFiles;
use mainstay_plan::{
    Action, Desired, DesiredInputs, EtcdMember, EtcdState, Guest, GuestConfig, Host, HostStorage, Image, ImageFile, Kubernetes,
    KubernetesPart, LeftoverVolume, Mark, MemberRemoval, Memory, NodeCordon, NodeRecord, NodeStatus, Observed, OpenPorts, Plan,
    PowerState, Publisher, RunningGuest, SchematicRef, Seen, Setting, Step, StepId, StorageAt, StorageKind, Subject, SystemGoal,
    TaintOnNode, TokenScope, TurnPolicy, UpgradeOrder, UpgradeRecord, Versions, Vm, VmDisk, VmJobs, VmNic, VmSettings,
    VolumeIdentity, derive, lint, plan, running,
};
use mainstay_spec::{Environment, Gib, Spec};
use semver::Version;
use uuid::Uuid;

pub const ID: Uuid = Uuid::from_u128(0x5eed_0000_0000_4000_8000_0000_0000_0001);
pub const IMAGE_SIZE: u64 = 1_200_000_000;

/// Three control planes and two workers on three hosts.
pub const THREE_AND_TWO: &str = "
name: prod
datacenter: { endpoint: https://pve.lan:8006 }
network: { cidr: 10.10.0.0/16, gateway: 10.10.0.1, vip: 10.10.0.20, dns: [1.1.1.1] }
pools:
  control-plane: { count: 3, cpu: 4, memory: 8GiB, disk: 40GiB, addresses: 10.10.0.11+, vmids: 2001+, names: 'prod-cp-{n}' }
  worker: { count: 2, cpu: 4, memory: 8GiB, disk: 60GiB, addresses: 10.10.0.21+, vmids: 3001+, names: 'prod-w-{n}' }
";

pub const ONE: &str = "
name: lab
datacenter: { endpoint: https://pve.lan:8006 }
network: { cidr: 10.10.0.0/16, gateway: 10.10.0.1, dns: [1.1.1.1] }
pools:
  control-plane: { count: 1, addresses: 10.10.0.11+, vmids: 2001+, names: 'lab-cp-{n}' }
";

pub fn spec(yaml: &str) -> Spec {
    let patch = |_: &str| Some(b"machine: {}\n".to_vec());
    match mainstay_spec::load(yaml, "cluster.yaml", &Environment::default(), &patch) {
        Ok(checked) => checked.spec,
        Err(faults) => panic!("{faults:?}"),
    }
}

/// What runs inside a VM.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TestGuest {
    pub config: Option<GuestConfig>,
    /// Has etcd data, of a member or of one that was removed.
    pub etcd: bool,
    /// Its etcd left the cluster and stays away until a restart.
    pub left: bool,
    /// Does not answer, although it runs.
    pub silent: bool,
    /// What it boots and with which extensions. `None`: what its mark says.
    pub system: Option<(Version, String)>,
    /// How often it booted.
    pub boots: u32,
    /// The Kubernetes that it was configured with.
    pub kubernetes: Option<Version>,
    /// Parts of Kubernetes that were changed since it was configured.
    pub parts: BTreeMap<KubernetesPart, Version>,
    /// The system that was loaded.
    pub pulled: Option<String>,
    /// Has a certificate for its API. A worker gets it from a control plane that is configured, whether bootstrapped or not.
    pub certified: bool,
}

#[derive(Debug, Clone, Default)]
pub struct NodeSettings {
    pub labels: BTreeMap<String, String>,
    pub taints: BTreeSet<TaintOnNode>,
    pub applied: Option<NodeRecord>,
}

#[derive(Debug, Clone)]
pub struct World {
    pub yaml: String,
    pub cluster_id: Option<Uuid>,
    /// PVE's side. Talos, etcd and Kubernetes are made from the guests by [`World::look`].
    pub observed: Observed,
    pub guests: BTreeMap<u32, TestGuest>,
    pub members: Vec<(u64, String)>,
    pub nodes: BTreeSet<String>,
    /// Labels and taints of Nodes, and what is recorded of them.
    pub node_settings: BTreeMap<String, NodeSettings>,
    /// Every machine that was ever claimed.
    pub names: BTreeSet<String>,
    pub down: bool,
    /// Volumes that may go although mainstay did not make them.
    pub with_disks: BTreeSet<String>,
    pub policy: TurnPolicy,
    /// Who cordoned which node.
    pub cordons: BTreeMap<String, NodeCordon>,
    /// The machine whose etcd leads.
    pub leader: Option<String>,
    /// Machines that come back from an upgrade with what they ran before.
    pub unbootable: BTreeSet<String>,
    /// Changes what is seen last of all.
    pub blur: fn(&mut Observed),
}

pub fn gib(size: u64) -> u64 {
    size << 30
}

pub fn storage(kind: StorageKind, content: &[&str], total: u64) -> HostStorage {
    let content = content.iter().map(|kind| (*kind).to_owned()).collect();
    HostStorage {
        kind,
        content,
        active: true,
        shared: false,
        total: gib(total),
        free: gib(total),
    }
}

pub fn host() -> Host {
    let storages = BTreeMap::from([
        (
            "local".to_owned(),
            storage(StorageKind::Dir, &["iso", "vztmpl", "backup", "import"], 100),
        ),
        (
            "local-lvm".to_owned(),
            storage(StorageKind::LvmThin, &["images", "rootdir"], 800),
        ),
    ]);
    Host {
        online: true,
        cpus: 32,
        memory: Memory {
            total: gib(128),
            free: gib(100),
        },
        bridges: Seen::Yes(BTreeSet::from(["vmbr0".to_owned(), "vmbr1".to_owned()])),
        storages: Seen::Yes(storages),
    }
}

/// What a generated config depends on, as far as this world cares.
fn config_of(spec: &Spec, machine: &mainstay_spec::Machine) -> GuestConfig {
    let kind = if machine.role == mainstay_spec::Role::Worker {
        "worker"
    } else {
        "controlplane"
    };
    let labels: String = machine
        .labels
        .iter()
        .map(|(key, value)| format!("    {key}: {value}\n"))
        .collect();
    let labels = if labels.is_empty() {
        labels
    } else {
        format!("  nodeLabels:\n{labels}")
    };
    // Patches stand for keys that need a restart.
    let patched = |path: &str| machine.patches.iter().any(|patch| patch.path == path);
    let env = if patched("proxy.yaml") {
        "  env:\n    HTTP_PROXY: p\n"
    } else {
        ""
    };
    let etcd = if patched("etcd.yaml") {
        "  etcd:\n    extraArgs:\n      quota-backend-bytes: '1'\n"
    } else {
        ""
    };
    let extensions = spec.distro.talos().map_or(0, |talos| talos.extensions.len());
    let installer = format!("  install:\n    image: factory/nocloud-installer/{extensions:064}:v1\n");
    let text =
        format!("version: v1alpha1\nmachine:\n  type: {kind}\n{installer}{labels}{env}cluster:\n  clusterName: prod\n{etcd}");
    GuestConfig::new(text)
}

/// A datacenter of three hosts with nothing in it, and a file.
pub fn empty(yaml: &str) -> World {
    World {
        yaml: yaml.to_owned(),
        cluster_id: Some(ID),
        observed: Observed {
            pve: Version::new(9, 1, 9),
            quorate: Seen::Yes(true),
            token: TokenScope::default(),
            hosts: (1..=3).map(|n| (format!("pve{n}"), host())).collect(),
            zone: None,
            resource_pool: Seen::Yes("k8s".to_owned()),
            vms: Seen::Yes(BTreeMap::new()),
            leftovers: Seen::Yes(Vec::new()),
            lost: BTreeSet::new(),
            images: BTreeMap::new(),
            publisher: Publisher::NotAsked,
            guests: BTreeMap::new(),
            etcd: Seen::No,
            kubernetes: Seen::No,
            answers: BTreeMap::new(),
            tasks: Vec::new(),
            addons: mainstay_plan::addon::seen::ObservedAddons::default(),
        },
        guests: BTreeMap::new(),
        members: Vec::new(),
        nodes: BTreeSet::new(),
        node_settings: BTreeMap::new(),
        names: BTreeSet::new(),
        down: false,
        with_disks: BTreeSet::new(),
        policy: TurnPolicy::default(),
        cordons: BTreeMap::new(),
        leader: None,
        unbootable: BTreeSet::new(),
        blur: |_| {},
    }
}

/// The same after `up`.
pub fn settled(yaml: &str) -> World {
    let mut world = empty(yaml);
    world.settle();
    world
}

impl World {
    pub fn desired(&self) -> Desired {
        let spec = spec(&self.yaml);
        if self.down {
            return Desired::nothing(&spec, self.cluster_id, Vec::new());
        }
        let observed = self.look();
        let versions = derive::resolve(&spec, self.cluster_id.and_then(|id| running(&observed, id)).as_ref()).unwrap();
        let course = derive::course(&spec, &observed, self.cluster_id, &versions);
        let configs = spec
            .machines
            .iter()
            .map(|machine| (machine.name.to_string(), config_of(&spec, machine)));
        let image = Image {
            schematic: Some(SchematicRef {
                id: "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba".to_owned(),
                text: "{}".to_owned(),
            }),
            url: "https://factory.talos.dev/image/x".to_owned(),
            file: format!("talos-{}-376567988ad3-nocloud-amd64.qcow2", course.joins.release),
            checksum: None,
            size: Some(IMAGE_SIZE),
        };
        let release = course.hop(&versions).release;
        let system = (!self.is_rancher()).then(|| SystemGoal {
            image: format!("factory.talos.dev/nocloud-installer/{}:v{release}", self.schematic()),
            release,
            schematic: Some(SchematicRef {
                id: self.schematic(),
                text: "{}".to_owned(),
            }),
        });
        let configs = configs.collect();
        Desired::cluster(
            &spec,
            DesiredInputs {
                first_user: None,
                cluster_id: self.cluster_id,
                versions,
                course,
                system,
                image,
                configs,
                addons: mainstay_plan::addon::wanted::DesiredAddons::default(),
            },
        )
    }

    /// What an image with the extensions of the file is called by its factory.
    fn schematic(&self) -> String {
        let id = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";
        if self.yaml.contains("extensions:") {
            id.replace('3', "4")
        } else {
            id.to_owned()
        }
    }

    pub fn file(&self) -> String {
        self.desired().cluster_goal().unwrap().machines[0].image.file.clone()
    }

    /// The plan for this world. Every plan in every test is linted.
    pub fn plan(&self) -> Plan {
        let (mut desired, observed) = (self.desired(), self.look());
        desired.with_disks.clone_from(&self.with_disks);
        desired.policy.clone_from(&self.policy);
        let plan = plan(&desired, &observed);
        let broken: Vec<String> = lint(&plan, &desired, &observed).iter().map(ToString::to_string).collect();
        assert!(broken.is_empty(), "{broken:#?}\n{}", plan.trace());
        plan
    }

    /// Plans and applies until nothing is left to do.
    pub fn settle(&mut self) -> usize {
        for round in 0..20 {
            let plan = self.plan();
            if plan.steps.is_empty() {
                return round;
            }
            self.apply(&plan);
        }
        panic!("not settled:\n{}", self.plan().trace());
    }

    /// Carries a plan out, but for what needs a step that failed.
    pub fn apply(&mut self, plan: &Plan) {
        let mut failed: BTreeSet<StepId> = BTreeSet::new();
        for step in &plan.steps {
            if step.needs.iter().any(|need| failed.contains(need)) || !self.step(step) {
                failed.insert(step.id);
            }
        }
    }

    /// Applies some steps, and whatever they need.
    pub fn apply_some(&mut self, plan: &Plan, pick: impl Fn(&Step) -> bool) {
        let mut wanted: BTreeSet<StepId> = plan.steps.iter().filter(|step| pick(step)).map(|step| step.id).collect();
        for step in plan.steps.iter().rev() {
            if wanted.contains(&step.id) {
                wanted.extend(&step.needs);
            }
        }
        let mut failed: BTreeSet<StepId> = BTreeSet::new();
        for step in plan.steps.iter().filter(|step| wanted.contains(&step.id)) {
            if step.needs.iter().any(|need| failed.contains(need)) || !self.step(step) {
                failed.insert(step.id);
            }
        }
    }

    pub fn edit(mut self, from: &str, to: &str) -> Self {
        assert!(self.yaml.contains(from), "{from} is not in the file");
        self.yaml = self.yaml.replace(from, to);
        self
    }

    pub fn vms(&mut self) -> &mut BTreeMap<u32, Vm> {
        match &mut self.observed.vms {
            Seen::Yes(vms) => vms,
            _ => panic!("VMs are not seen"),
        }
    }

    pub fn vmid(&self, name: &str) -> u32 {
        let vms = self.observed.vms.yes().unwrap();
        let is = |vm: &&Vm| Mark::parse(&vm.config.yes().unwrap().description).is_some_and(|mark| mark.machine == name);
        vms.values()
            .filter(|vm| vm.config.yes().is_some())
            .find(is)
            .unwrap_or_else(|| panic!("no {name}"))
            .vmid
    }

    pub fn vm(&mut self, name: &str) -> &mut Vm {
        let vmid = self.vmid(name);
        self.vms().get_mut(&vmid).unwrap()
    }

    pub fn config(&mut self, name: &str) -> &mut VmSettings {
        match &mut self.vm(name).config {
            Seen::Yes(config) => config,
            _ => panic!("the config is not seen"),
        }
    }

    pub fn guest(&mut self, name: &str) -> &mut TestGuest {
        let vmid = self.vmid(name);
        self.guests.get_mut(&vmid).unwrap()
    }

    /// An administrator deletes a machine.
    pub fn without(mut self, name: &str) -> Self {
        let vmid = self.vmid(name);
        self.vms().remove(&vmid);
        self.guests.remove(&vmid);
        self
    }

    /// An administrator stops a machine.
    pub fn stopped(mut self, name: &str) -> Self {
        self.vm(name).power = PowerState::Stopped;
        self
    }

    pub fn silent(mut self, name: &str) -> Self {
        self.guest(name).silent = true;
        self
    }

    pub fn changed(mut self, change: impl FnOnce(&mut Self)) -> Self {
        change(&mut self);
        self
    }

    pub fn blurred(mut self, blur: fn(&mut Observed)) -> Self {
        self.blur = blur;
        self
    }

    pub fn down(mut self) -> Self {
        self.down = true;
        self
    }

    pub fn answers(&mut self, address: [u8; 4], port: u16) {
        self.observed.answers.insert(
            Ipv4Addr::from(address),
            Seen::Yes(OpenPorts {
                ports: vec![port],
                ..OpenPorts::default()
            }),
        );
    }

    /// A foreign VM.
    pub fn stranger(&mut self, vmid: u32, name: &str) {
        let config = VmSettings {
            description: "precious".to_owned(),
            ..blank_config(name)
        };
        let vm = Vm {
            vmid,
            host: "pve2".to_owned(),
            name: Some(name.to_owned()),
            power: PowerState::Running,
            tags: BTreeSet::new(),
            pool: None,
            template: false,
            ha: false,
            jobs: VmJobs::default(),
            config: Seen::Yes(config),
        };
        self.vms().insert(vmid, vm);
    }

    pub fn leftover(&mut self, vmid: u32, proved: bool) {
        self.leftover_named(vmid, &format!("vm-{vmid}-disk-9"), proved);
    }

    pub fn leftover_named(&mut self, vmid: u32, name: &str, proved: bool) {
        let at = StorageAt {
            host: "pve1".to_owned(),
            storage: "local-lvm".to_owned(),
        };
        let left = LeftoverVolume {
            at,
            volume: format!("local-lvm:{name}"),
            vmid,
            identity: VolumeIdentity::default(),
            proved,
            doubt: None,
            busy: None,
            may_free: true,
        };
        match &mut self.observed.leftovers {
            Seen::Yes(all) => all.push(left),
            _ => panic!("leftovers are not seen"),
        }
    }

    /// No VM refers to its volumes any more.
    pub fn forget_lost(&mut self, vmid: u32) {
        let own = format!("vm-{vmid}-");
        self.observed.lost.retain(|volume| !volume.contains(&own));
    }

    /// PVE breaks a destruction off when the system disk is gone.
    pub fn half_destroy(&mut self, name: &str) {
        let config = self.config(name);
        let mark = Mark::parse(&config.description).unwrap();
        config.description = Mark { going: true, ..mark }.write_into(&config.description);
        let system = config.disks.get("scsi0").map(|disk| disk.volume.clone());
        self.observed.lost.extend(system);
    }

    /// The operator makes a control plane leave etcd, if etcd lets it.
    pub fn leave_etcd(&mut self, vmid: u32) {
        let machines = self.machines();
        let Some((name, _)) = machines.into_iter().find(|(_, vm)| vm.vmid == vmid) else {
            return;
        };
        let others = self.members.iter().filter(|(_, member)| *member != name);
        let (count, well) = (
            others.clone().count(),
            others.filter(|(_, member)| self.answering(member)).count(),
        );
        if self.members.len() > count && self.answering(&name) && well > count / 2 {
            self.members.retain(|(_, member)| *member != name);
            let guest = self.guest(&name);
            (guest.etcd, guest.left) = (false, true);
        }
    }

    /// What an observer would report.
    pub fn look(&self) -> Observed {
        let mut observed = self.observed.clone();
        let machines = self.machines();
        observed.images = self.images();
        observed.guests = machines
            .iter()
            .filter_map(|(name, vm)| Some((name.clone(), self.talos(name, vm)?)))
            .collect();
        observed.etcd = self.etcd(&machines);
        observed.kubernetes = self.kubernetes(&machines);
        (self.blur)(&mut observed);
        observed
    }

    fn images(&self) -> BTreeMap<StorageAt, Seen<Vec<ImageFile>>> {
        let mut images = self.observed.images.clone();
        for (host, seen) in &self.observed.hosts {
            for storage in seen
                .storages
                .yes()
                .into_iter()
                .flatten()
                .filter(|(_, storage)| storage.allows("import"))
            {
                let at = StorageAt {
                    host: host.clone(),
                    storage: storage.0.clone(),
                };
                images.entry(at).or_insert(Seen::Yes(Vec::new()));
            }
        }
        images
    }

    /// Guests are asked on the addresses of their machines, whatever PVE says about them.
    fn machines(&self) -> Vec<(String, &Vm)> {
        let vms = self.observed.vms.yes().unwrap();
        let names: BTreeMap<Uuid, String> = self
            .names
            .iter()
            .map(|name| (mainstay_spec::smbios_uuid(ID, name), name.clone()))
            .collect();
        let asked = |vm: &&Vm| self.guests.contains_key(&vm.vmid);
        vms.values()
            .filter(asked)
            .filter_map(|vm| Some((names.get(&vm.config.yes()?.uuid?)?.clone(), vm)))
            .collect()
    }

    fn talos(&self, name: &str, vm: &Vm) -> Option<Guest> {
        let guest = self.guests.get(&vm.vmid).filter(|_| vm.power == PowerState::Running)?;
        let uuid = mainstay_spec::smbios_uuid(ID, name);
        if guest.silent || (guest.config.is_some() && !guest.certified) {
            return Some(Guest::Silent("connection refused".to_owned()));
        }
        let versions = self.versions();
        Some(match &guest.config {
            None => Guest::AwaitingConfig {
                uuid: Seen::Yes(uuid),
                release: Some(versions.release),
            },
            Some(config) => Guest::Running(Box::new(RunningGuest {
                holds_vip: false,
                uuid,
                release: Some(guest.system.clone().map_or(versions.release, |(release, _)| release)),
                kubernetes: guest
                    .parts
                    .get(&KubernetesPart::Kubelet)
                    .or(guest.kubernetes.as_ref())
                    .cloned(),
                boot_id: Some(format!("boot-{}", guest.boots)),
                schematic: guest.system.clone().map_or(Seen::No, |(_, schematic)| Seen::Yes(schematic)),
                leads_etcd: self.leader.as_deref() == Some(name),
                stage: "running".to_owned(),
                unmet: Vec::new(),
                config: Seen::Yes(self.seen_config(name, config)),
                etcd: match (guest.etcd, guest.left) {
                    (true, _) if self.members.iter().any(|(_, member)| member == name) => Seen::Yes(EtcdState::Healthy),
                    (true, _) => Seen::Yes(EtcdState::Unhealthy),
                    (false, true) => Seen::Yes(EtcdState::Left),
                    (false, false) => Seen::No,
                },
            })),
        })
    }

    /// The config with the images that a generated one has, where the test is about them.
    fn with_images(&self, name: &str, config: &GuestConfig) -> GuestConfig {
        if !self.yaml.contains("kubernetes:") {
            return config.clone();
        }
        let guest = &self.guests[&self.vmid(name)];
        let version = |part: KubernetesPart| guest.parts.get(&part).or(guest.kubernetes.as_ref()).unwrap();
        let image = |part: KubernetesPart, key: &str| format!("  {key}:\n    image: registry.k8s.io/{part}:v{}\n", version(part));
        let kubelet = image(KubernetesPart::Kubelet, "kubelet");
        let mut text = config.expose().replace("machine:\n", &format!("machine:\n{kubelet}"));
        if name.contains("-cp-") {
            let keys = ["apiServer", "controllerManager", "scheduler", "proxy"];
            text.extend(KubernetesPart::ALL.into_iter().zip(keys).map(|(part, key)| image(part, key)));
        }
        GuestConfig::new(text)
    }

    /// Talos returns its config. RKE2 and k3s tell which files are not as wanted.
    fn seen_config(&self, name: &str, config: &GuestConfig) -> GuestConfig {
        if !self.is_rancher() {
            return self.with_images(name, config);
        }
        let spec = spec(&self.yaml);
        let machine = spec.machines.iter().find(|machine| machine.name.as_ref() == name);
        let wanted = machine.map(|machine| config_of(&spec, machine));
        let outdated = if wanted.is_none_or(|wanted| wanted == *config) {
            Vec::new()
        } else {
            vec!["/etc/rancher/rke2/config.yaml".to_owned()]
        };
        RancherFiles {
            outdated,
            live: Vec::new(),
            restart_pending: false,
            vip_off: false,
        }
        .config()
    }

    pub fn is_rancher(&self) -> bool {
        self.yaml.contains("rke2:") || self.yaml.contains("k3s:")
    }

    fn answering(&self, name: &str) -> bool {
        let answers =
            |(machine, vm): (String, &Vm)| machine == name && matches!(self.talos(&machine, vm), Some(Guest::Running(_)));
        self.machines().into_iter().any(answers)
    }

    fn etcd(&self, machines: &[(String, &Vm)]) -> Seen<Vec<EtcdMember>> {
        let member = |(id, name): &(u64, String)| EtcdMember {
            id: *id,
            name: name.clone(),
            learner: false,
            healthy: self.answering(name),
        };
        let members: Vec<EtcdMember> = self.members.iter().map(member).collect();
        let healthy = members.iter().filter(|member| member.healthy).count();
        let dark = machines
            .iter()
            .any(|(_, vm)| self.guests.contains_key(&vm.vmid) && vm.power != PowerState::Running);
        match members.len() {
            0 if dark => Seen::Unknown("a control plane does not run".to_owned()),
            0 => Seen::No,
            _ if healthy == 0 => Seen::Unknown("no control plane answers".to_owned()),
            _ => Seen::Yes(members),
        }
    }

    fn kubernetes(&self, _: &[(String, &Vm)]) -> Seen<Kubernetes> {
        let healthy = self.members.iter().filter(|(_, name)| self.answering(name)).count();
        if self.members.is_empty() {
            return Seen::No;
        }
        if healthy <= self.members.len() / 2 {
            return Seen::Unknown("connection refused".to_owned());
        }
        let ready = !self.yaml.contains("cni: none");
        let node = |name: &String| {
            let up = self.answering(name);
            let why = if up { "no CNI" } else { "kubelet stopped posting status" };
            let settings = self.node_settings.get(name).cloned().unwrap_or_default();
            (
                name.clone(),
                NodeStatus {
                    ready: ready && up,
                    why: why.to_owned(),
                    cordon: self.cordons.get(name).copied().unwrap_or_default(),
                    accepts_pods: !self.cordons.contains_key(name) && !name.contains("-cp-"),
                    stale: false,
                    labels: settings.labels,
                    taints: settings.taints,
                    applied: settings.applied,
                },
            )
        };
        Seen::Yes(Kubernetes {
            version: self.versions().kubernetes,
            nodes: self.nodes.iter().map(node).collect(),
        })
    }

    fn versions(&self) -> Versions {
        let mut marks = self
            .machines()
            .into_iter()
            .filter_map(|(_, vm)| Mark::parse(&vm.config.yes()?.description)?.versions);
        marks.next().unwrap()
    }

    fn at(&mut self, vmid: u32) -> &mut Vm {
        self.vms().get_mut(&vmid).unwrap_or_else(|| panic!("VM {vmid} is not there"))
    }

    fn config_at(&mut self, vmid: u32) -> &mut VmSettings {
        match &mut self.at(vmid).config {
            Seen::Yes(config) => config,
            _ => panic!("the config of {vmid} is not seen"),
        }
    }

    fn find(&self, subject: &Subject) -> u32 {
        match subject {
            Subject::Machine(name) => self.vmid(name),
            other => panic!("{other} is no machine"),
        }
    }

    /// Carries out one step. It fails where a run is told at once that it waits in vain: who left etcd joins again only by a restart.
    pub fn step(&mut self, step: &Step) -> bool {
        if let (Action::EtcdJoin { .. }, Subject::Machine(name)) = (&step.action, &step.subject)
            && self.guest(name).left
        {
            return false;
        }
        if let Action::GuestUpgrade(upgrade) = &step.action
            && !self.upgrade(&step.subject.to_string(), upgrade)
        {
            return false;
        }
        self.carry_out(step);
        let is_control_plane = |name: &str| name.contains("-cp-");
        let machines: Vec<(String, u32)> = self.machines().into_iter().map(|(name, vm)| (name, vm.vmid)).collect();
        let trusted = machines
            .iter()
            .any(|(name, vmid)| is_control_plane(name) && self.guests[vmid].config.is_some());
        for (name, vmid) in machines {
            let guest = self.guests.get_mut(&vmid).unwrap();
            guest.certified |= guest.config.is_some() && (trusted || is_control_plane(&name));
        }
        true
    }

    /// What a machine runs.
    pub fn release(&self, name: &str) -> String {
        let vmid = self.vmid(name);
        self.guests[&vmid]
            .system
            .as_ref()
            .map(|(release, _)| release.to_string())
            .unwrap_or_default()
    }

    /// The record of an upgrade in the mark of a machine, as the engine writes it.
    pub fn record(&mut self, name: &str, record: UpgradeRecord) {
        let config = self.config(name);
        let mark = Mark::parse(&config.description).unwrap();
        let upgrade = Some(record);
        config.description = Mark { upgrade, ..mark }.write_into(&config.description);
    }

    pub fn recorded(&self, name: &str) -> Mark {
        let vm = &self.observed.vms.yes().unwrap()[&self.vmid(name)];
        Mark::parse(&vm.config.yes().unwrap().description).unwrap()
    }

    /// `false`: it came back with what it ran before, which a run is told at once.
    fn upgrade(&mut self, name: &str, upgrade: &UpgradeOrder) -> bool {
        self.assert_quorum_without(name);
        let fails = self.unbootable.contains(name);
        let schematic = upgrade.schematic.clone().unwrap_or_default();
        let guest = self.guest(name);
        assert_eq!(
            guest.pulled.as_ref(),
            Some(&upgrade.image),
            "{name} restarts before the system is there"
        );
        assert!(upgrade.from <= upgrade.to, "{name} goes back");
        guest.boots += 1;
        if fails {
            let to = upgrade.to.clone();
            self.record(name, UpgradeRecord::RolledBack { to, schematic });
            return false;
        }
        guest.system = Some((upgrade.to.clone(), schematic));
        self.record(name, UpgradeRecord::Over);
        let config = self.config(name);
        let mark = Mark::parse(&config.description).unwrap();
        let versions = mark.versions.clone().map(|versions| Versions {
            release: upgrade.to.clone(),
            ..versions
        });
        config.description = Mark { versions, ..mark }.write_into(&config.description);
        true
    }

    /// Fails if the other members have no majority without this one.
    fn assert_quorum_without(&self, name: &str) {
        let is_member = self.members.iter().any(|(_, member)| member == name);
        if self.down || !is_member || self.members.len() == 1 {
            return;
        }
        let others = self
            .members
            .iter()
            .filter(|(_, member)| member != name && self.answering(member))
            .count();
        assert!(others > self.members.len() / 2, "{name} goes down, and etcd with it");
    }

    fn carry_out(&mut self, step: &Step) {
        let name = step.subject.to_string();
        match &step.action {
            Action::SchematicRegister { .. } => {}
            Action::ImageFetch { at, image } => self.put_image(at, &image.file),
            Action::ImageDiscard { at, file } | Action::ImageDelete { at, file } => self.drop_image(at, file),
            Action::MachineClaim(claim) => {
                self.names.insert(name);
                let tags = if claim.tags_follow {
                    BTreeSet::new()
                } else {
                    claim.tags.clone()
                };
                let nic = VmNic {
                    mac: claim.nic.mac,
                    bridge: claim.nic.bridge.clone(),
                    vlan: claim.nic.vlan,
                };
                let config = VmSettings {
                    description: claim.mark.write_into(""),
                    uuid: Some(claim.vm.uuid),
                    cores: claim.shape.cpu,
                    cpu_type: claim.shape.cpu_type.clone(),
                    memory: claim.shape.memory,
                    onboot: claim.shape.onboot,
                    startup_order: claim.shape.startup_order,
                    agent: claim.agent,
                    scsi: claim.shape.scsi.as_str().to_owned(),
                    firmware: claim.shape.firmware.as_str().to_owned(),
                    nic: Some(nic),
                    ..blank_config(&claim.name)
                };
                let vm = Vm {
                    vmid: claim.vm.vmid,
                    host: claim.vm.host.clone(),
                    name: Some(claim.name.clone()),
                    power: PowerState::Stopped,
                    tags,
                    pool: claim.pool.clone(),
                    template: false,
                    ha: false,
                    jobs: VmJobs::default(),
                    config: Seen::Yes(config),
                };
                assert!(
                    self.vms().insert(claim.vm.vmid, vm).is_none(),
                    "VMID {} is taken",
                    claim.vm.vmid
                );
            }
            Action::MachineMark(remark) => {
                let config = self.config_at(remark.vm.vmid);
                config.description = remark.mark.write_into(&config.description);
                self.at(remark.vm.vmid).tags.extend(remark.tags.iter().cloned());
            }
            Action::MachineFill(fill) => {
                let vmid = fill.vm.vmid;
                let at = StorageAt {
                    host: fill.vm.host.clone(),
                    storage: fill.image.storage.clone(),
                };
                let there = self
                    .images()
                    .get(&at)
                    .and_then(|seen| seen.yes().cloned())
                    .unwrap_or_default();
                assert!(
                    fill.system.is_none() || there.iter().any(|image| image.size == IMAGE_SIZE),
                    "no image on {at}"
                );
                let config = self.config_at(vmid);
                let mut add = |disk: &mainstay_plan::NewDisk, size: Gib| {
                    let volume = format!("{}:vm-{vmid}-{}", disk.storage, disk.slot);
                    let new = VmDisk {
                        volume,
                        size,
                        serial: Some(disk.serial.clone()),
                        options: disk.options,
                    };
                    assert!(
                        config.disks.insert(disk.slot.clone(), new).is_none(),
                        "{} is taken",
                        disk.slot
                    );
                };
                fill.system.iter().for_each(|disk| add(disk, Gib(2)));
                fill.extra.iter().for_each(|disk| add(disk, disk.size));
                if let Some(storage) = &fill.efi {
                    let options = config.disks["scsi0"].options;
                    let volume = format!("{storage}:vm-{vmid}-efi");
                    config.disks.insert(
                        "efidisk0".to_owned(),
                        VmDisk {
                            volume,
                            size: Gib(0),
                            serial: None,
                            options,
                        },
                    );
                }
                if let Some(storage) = &fill.seed_on {
                    config.seed = Some(format!("{storage}:vm-{vmid}-cloudinit"));
                }
                config.address = Some(fill.seed.address);
                config.gateway = Some(fill.seed.gateway);
                config.dns.clone_from(&fill.seed.dns);
                config.boot.clone_from(&fill.boot);
                list_disks(config);
                let Versions { release, kubernetes, .. } = Mark::parse(&config.description).unwrap().versions.unwrap();
                let schematic = self.schematic();
                let guest = self.guests.entry(vmid).or_default();
                guest.kubernetes = Some(kubernetes);
                if fill.system.is_some() && fill.seed.user.is_none() {
                    guest.system = Some((release, schematic));
                }
            }
            Action::MachineGrow { vm, slot, to } => self.config_at(vm.vmid).disks.get_mut(slot).unwrap().size = *to,
            Action::MachineStart { vm } => {
                let lost = self.observed.lost.clone();
                let mut disks = self.config_at(vm.vmid).disks.values();
                assert!(!disks.any(|disk| lost.contains(&disk.volume)), "{vm} lacks a volume");
                self.at(vm.vmid).power = PowerState::Running;
                self.guests.entry(vm.vmid).or_default().left = false;
            }
            Action::MachineChange { vm, settings, mark } => {
                settings.iter().for_each(|setting| self.set(vm.vmid, setting));
                let config = self.config_at(vm.vmid);
                config.description = mark.write_into(&config.description);
                list_disks(config);
            }
            Action::MachinePool { vm, from, to } => {
                let there = &mut self.at(vm.vmid).pool;
                assert_eq!(there, from, "{vm} is in another pool");
                there.clone_from(to);
            }
            Action::MachineReboot { vm, .. } => {
                self.assert_quorum_without(&name);
                self.config_at(vm.vmid).pending.clear();
                self.guests.entry(vm.vmid).or_default().left = false;
            }
            Action::MachineStop { vm, .. } => {
                self.assert_quorum_without(&name);
                self.at(vm.vmid).power = PowerState::Stopped;
            }
            Action::MachineDelete { vm, .. } => {
                assert_eq!(self.at(vm.vmid).power, PowerState::Stopped, "{vm} runs");
                self.vms().remove(&vm.vmid);
                self.guests.remove(&vm.vmid);
                self.forget_lost(vm.vmid);
            }
            Action::VolumeDelete { volume, .. } => match &mut self.observed.leftovers {
                Seen::Yes(all) => all.retain(|left| left.volume != *volume),
                _ => panic!("leftovers are not seen"),
            },
            Action::GuestProve { .. } | Action::GuestPrepare { .. } => {}
            Action::GuestConfigure { config, .. } => {
                let vmid = self.find(&step.subject);
                let is_new = self.guests[&vmid].config.is_none();
                let is_taken = self.nodes.contains(&name) || self.members.iter().any(|(_, member)| *member == name);
                assert!(
                    !(is_new && is_taken && self.is_rancher()),
                    "{name} is refused: its name is taken"
                );
                let guest = self.guests.get_mut(&vmid).unwrap();
                guest.silent = false;
                guest.config.get_or_insert_with(|| config.clone());
                if !self.members.is_empty() {
                    self.nodes.insert(name);
                }
            }
            Action::GuestAwait { .. } => self.guest(&name).silent = false,
            Action::GuestReconfigure { config, .. } => self.guest(&name).config = Some(config.clone()),
            Action::EtcdBootstrap { config, .. } => {
                assert!(self.members.is_empty(), "a second bootstrap");
                let is_rancher = self.is_rancher();
                let guest = self.guest(&name);
                guest.etcd = true;
                if is_rancher {
                    guest.config = Some(config.clone());
                    guest.certified = true;
                }
                self.members.push((1, name));
                let machines = self.machines().into_iter().map(|(name, _)| name);
                let configured: Vec<String> = machines.filter(|name| self.answering(name)).collect();
                self.nodes.extend(configured);
            }
            Action::EtcdJoin { .. } => {
                assert!(!self.members.is_empty(), "joins nothing");
                let is_member = self.members.iter().any(|(_, member)| *member == name);
                let guest = self.guest(&name);
                assert!(
                    !guest.etcd || is_member,
                    "the data of {name} is that of a member that was removed"
                );
                let id = self.members.iter().map(|(id, _)| id + 1).max().unwrap_or(1);
                if !self.guest(&name).etcd {
                    // A machine made anew replaces the member of its name.
                    self.members.retain(|(_, member)| *member != name);
                    self.members.push((id, name.clone()));
                    self.guest(&name).etcd = true;
                }
            }
            Action::EtcdLeave { member, by, .. } => {
                let healthy = self.members.iter().filter(|(_, name)| self.answering(name)).count();
                assert!(
                    healthy > self.members.len() / 2,
                    "etcd without a majority cannot change its members"
                );
                assert!(
                    !self.is_rancher() || self.nodes.contains(&member.name),
                    "{} is removed through its Node",
                    member.name
                );
                if let MemberRemoval::Leave = by {
                    assert!(!self.is_rancher(), "it leaves through its Node");
                    let guest = self.guest(&member.name);
                    (guest.etcd, guest.left) = (false, true);
                }
                self.members.retain(|(id, _)| *id != member.id);
            }
            Action::NodeAwait { .. } => {
                let vmid = self.find(&step.subject);
                let runs =
                    self.at(vmid).power == PowerState::Running && self.guests[&vmid].certified && !self.guests[&vmid].silent;
                assert!(runs && !self.members.is_empty(), "{name} never becomes a node");
                self.nodes.insert(name);
            }
            Action::NodeChange { change, .. } => {
                assert!(self.nodes.contains(&name), "{name} is no node");
                let there = self.node_settings.entry(name).or_default();
                there.labels.retain(|key, _| !change.remove_labels.contains(key));
                there.labels.extend(change.set_labels.clone());
                let replaced = |taint: &TaintOnNode| {
                    let same = |other: &TaintOnNode| (&other.key, &other.effect) == (&taint.key, &taint.effect);
                    change.set_taints.iter().any(same) || change.remove_taints.iter().any(same)
                };
                there.taints.retain(|taint| !replaced(taint));
                there.taints.extend(change.set_taints.iter().cloned());
                there.applied = change.record_text().map(|text| NodeRecord::parse(&text));
            }
            Action::NodeDelete { .. } => {
                let is_member = self.members.iter().any(|(_, member)| *member == name);
                assert!(
                    !(is_member && self.is_rancher()),
                    "the Node of a member takes the member along without a check"
                );
                self.nodes.remove(&name);
                self.cordons.remove(&name);
                self.node_settings.remove(&name);
            }
            Action::GuestPull { image, .. } => self.guest(&name).pulled = Some(image.clone()),
            Action::GuestUpgrade(_) | Action::KubernetesPull { .. } => {}
            Action::KubernetesChange { part, to, .. } => {
                let guest = self.guest(&name);
                guest.parts.insert(*part, to.clone());
            }
            Action::NodeCordon { .. } => drop(self.cordons.entry(name).or_insert(NodeCordon::Ours)),
            Action::NodeDrain { .. } => {
                assert!(self.cordons.contains_key(&name), "{name} is drained and takes new pods");
                assert!(self.answering(&name), "{name} is drained and is silent");
            }
            Action::NodeUncordon { .. } => self.cordons.retain(|node, by| *node != name || *by == NodeCordon::Foreign),
            Action::ChartFetch { .. }
            | Action::ReleaseStart(_)
            | Action::ReleaseAwait(_)
            | Action::ReleaseClean(_)
            | Action::AddonAwait { .. } => panic!("this world has no add-ons: {name}"),
        }
    }

    fn shared_with(&self, at: &StorageAt) -> Vec<StorageAt> {
        let shared = |host: &Host| {
            host.storages
                .yes()
                .and_then(|all| all.get(&at.storage))
                .is_some_and(|storage| storage.shared)
        };
        let hosts = self
            .observed
            .hosts
            .iter()
            .filter(|(name, host)| **name == at.host || shared(host));
        hosts
            .map(|(host, _)| StorageAt {
                host: host.clone(),
                storage: at.storage.clone(),
            })
            .collect()
    }

    pub fn put_image(&mut self, at: &StorageAt, file: &str) {
        for at in self.shared_with(at) {
            let files = self.observed.images.entry(at).or_insert(Seen::Yes(Vec::new()));
            if let Seen::Yes(files) = files {
                assert!(
                    files.iter().all(|there| there.file != file),
                    "refusing to override existing file {file}"
                );
                files.push(ImageFile {
                    file: file.to_owned(),
                    size: IMAGE_SIZE,
                    may_delete: true,
                });
            }
        }
    }

    fn drop_image(&mut self, at: &StorageAt, file: &str) {
        for at in self.shared_with(at) {
            if let Some(Seen::Yes(files)) = self.observed.images.get_mut(&at) {
                files.retain(|there| there.file != file);
            }
        }
    }

    fn set(&mut self, vmid: u32, setting: &Setting) {
        let runs = self.at(vmid).power == PowerState::Running;
        let config = self.config_at(vmid);
        let mut key = None;
        match setting {
            Setting::Name(name) => config.name = Some(name.clone()),
            Setting::Cores(cores) => (config.cores, key) = (*cores, Some("cores")),
            Setting::CpuType(kind) => (config.cpu_type, key) = (kind.clone(), Some("cpu")),
            Setting::Memory(size) => (config.memory, key) = (*size, Some("memory")),
            Setting::ScsiController(kind) => (config.scsi, key) = ((*kind).to_owned(), Some("scsihw")),
            Setting::Agent(on) => (config.agent, key) = (*on, Some("agent")),
            Setting::Onboot(on) => config.onboot = *on,
            Setting::StartupOrder(order) => config.startup_order = *order,
            Setting::Boot(boot) => config.boot.clone_from(boot),
            Setting::Nic(nic) => {
                config.nic = Some(VmNic {
                    mac: nic.mac,
                    bridge: nic.bridge.clone(),
                    vlan: nic.vlan,
                });
            }
            Setting::Seed(seed) => {
                config.address = Some(seed.address);
                config.gateway = Some(seed.gateway);
                config.dns.clone_from(&seed.dns);
            }
            Setting::Attach(disk) => {
                let volume = format!("{}:vm-{vmid}-{}", disk.storage, disk.slot);
                let new = VmDisk {
                    volume,
                    size: disk.size,
                    serial: Some(disk.serial.clone()),
                    options: disk.options,
                };
                assert!(config.disks.insert(disk.slot.clone(), new).is_none());
            }
            Setting::DiskOptions { slot, options } => {
                config.disks.get_mut(slot).unwrap().options = *options;
                key = Some("scsi0");
            }
            Setting::Tags { .. } => {}
        }
        config.pending.extend(key.filter(|_| runs).map(str::to_owned));
        if let Setting::Tags { add, remove } = setting {
            let tags = &mut self.at(vmid).tags;
            tags.retain(|tag| !remove.contains(tag));
            tags.extend(add.iter().cloned());
        }
        if let Setting::Name(name) = setting {
            self.at(vmid).name = Some(name.clone());
        }
    }
}

/// Reads back which volumes the disks became that were asked for.
fn list_disks(config: &mut VmSettings) {
    let Some(mark) = Mark::parse(&config.description) else {
        return;
    };
    let mut disks = mark.disks.clone().unwrap_or_default();
    for (slot, made) in disks.iter_mut().filter(|(_, made)| made.volume.is_none()) {
        made.volume = config.disks.get(slot).map(|disk| disk.volume.clone());
    }
    let disks = Some(disks);
    config.description = Mark { disks, ..mark }.write_into(&config.description);
}

pub fn blank_config(name: &str) -> VmSettings {
    VmSettings {
        serial: None,
        digest: "d".to_owned(),
        name: Some(name.to_owned()),
        description: String::new(),
        uuid: None,
        lock: None,
        cores: 1,
        cpu_type: "kvm64".to_owned(),
        memory: mainstay_spec::Mib(512),
        onboot: false,
        startup_order: None,
        agent: false,
        scsi: "lsi".to_owned(),
        firmware: "seabios".to_owned(),
        protection: false,
        disks: BTreeMap::new(),
        seed: None,
        aside: Vec::new(),
        snapshots: Seen::No,
        nic: None,
        address: None,
        gateway: None,
        dns: Vec::new(),
        boot: Vec::new(),
        pending: BTreeSet::new(),
    }
}
