//! VMs made over the PVE API, and the inputs that a plan would give to the steps.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use mainstay_engine::Failure;
use mainstay_engine::guest::rancher::session::OpenGuest;
use mainstay_engine::guest::rancher::{
    ArtifactFiles, ExpectedFacts, Founding, Join, MachineAccess, Preparation, RancherAccess, WaitReporter, found, join_agent,
    join_server, prepare, recover_founder,
};
use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Entropy, Env, Trust, Wall, simulate};
use mainstay_sim::{Mode, World, WorldSpec};
use pve_api::{Client, ClientOptions, Endpoint, VmConfig, qemu, storage};
use rancher_config::config::join_url;
use rancher_config::guest::{ArtifactKind, ArtifactOrigin, GuestFile, GuestInput, PinnedArtifact, authority_files, guest_files};
use rancher_config::manifests::{KubeVip, ManifestFile};
use rancher_config::{
    ArtifactSource, ClusterInput, Cni, Distro, MachineInput, MintTime, Place, Registries, ReleaseVersion, Role, Secrets,
    ServiceKey, checksum_of,
};
use tokio::time::Instant;

pub const INTENT: &str = "intent-1";
const VIP: &str = "10.0.0.100";

pub fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

/// Runs on virtual time.
pub fn in_lab(distro: Distro, run: impl AsyncFnOnce(&Lab) + Send) {
    in_lab_of(distro, WorldSpec::default(), run);
}

pub fn in_lab_of(distro: Distro, spec: WorldSpec, run: impl AsyncFnOnce(&Lab) + Send) {
    let ended = simulate(7, Duration::from_secs(24 * 3600), async move |entropy: Entropy| {
        let lab = Lab::build(distro, spec, entropy).await;
        run(&lab).await;
    });
    ended.expect("the test ends in time");
}

pub struct Lab {
    pub world: World,
    pub env: Env,
    pub pve: Client,
    pub secrets: Secrets,
    pub access: RancherAccess,
    pub distro: Distro,
    pub version: ReleaseVersion,
    pub reasons: Reasons,
}

/// Every reason that a step waited for.
#[derive(Default)]
pub struct Reasons(Mutex<Vec<String>>);

impl WaitReporter for Reasons {
    fn wait(&self, reason: &str, _limit: Duration) {
        let mut reasons = self.0.lock().expect("a list");
        if reasons.last().is_none_or(|last| last != reason) {
            reasons.push(reason.to_owned());
        }
    }
}

impl Reasons {
    pub fn any(&self, part: &str) -> bool {
        self.0.lock().expect("a list").iter().any(|reason| reason.contains(part))
    }

    pub fn all(&self) -> String {
        self.0.lock().expect("a list").join("\n")
    }
}

/// A machine of the test.
#[derive(Clone)]
pub struct Machine {
    pub name: String,
    pub address: IpAddr,
    pub vmid: u32,
    pub role: Role,
    pub mac: String,
    pub uuid: String,
    pub serial: String,
}

impl Machine {
    /// `cp-1` at 10.0.0.11, `w-1` at 10.0.0.21.
    pub fn new(name: &str) -> Self {
        let number: u32 = name[name.len() - 1..].parse().expect("a number");
        let role = if name.starts_with("cp") { Role::Server } else { Role::Agent };
        let last = if role == Role::Server { 10 + number } else { 20 + number };
        Self {
            name: name.to_owned(),
            address: ip(&format!("10.0.0.{last}")),
            vmid: 2000 + last,
            role,
            mac: format!("BC:24:11:00:00:{last:02X}"),
            uuid: format!("11111111-2222-4333-8444-0000000000{last}"),
            serial: format!("serial of {name}, random bits"),
        }
    }

    pub fn expected(&self) -> ExpectedFacts {
        ExpectedFacts {
            hostname: self.name.clone(),
            address: self.address,
            mac: self.mac.clone(),
        }
    }

    pub fn unproved(&self) -> MachineAccess {
        MachineAccess {
            name: self.name.clone(),
            address: self.address,
            uuid: self.uuid.clone(),
            serial: self.serial.clone(),
            pin: None,
            started: Some(Instant::now()),
        }
    }
}

impl Lab {
    async fn build(distro: Distro, spec: WorldSpec, entropy: Entropy) -> Self {
        let now = "2026-11-18T12:00:00Z".parse().expect("a time");
        let wall = Wall::at(now);
        let world = World::start(spec, Mode::Simulated, wall, entropy.fork("world"))
            .await
            .expect("a world");
        let env = Env {
            dialer: world.dialer(),
            wall,
            entropy: entropy.fork("mainstay"),
        };
        let mut rng = env.entropy.fork("secrets").rng();
        let service = ServiceKey::ec(&mut rng).expect("a key");
        let at = MintTime::new(now, now).expect("a credible clock");
        let secrets = Secrets::generate(distro, &mut rng, at, service, "mainstay").expect("secrets");
        let access = RancherAccess::new(&env, &secrets, at).expect("access");
        let pve = pve_client(&world, &env);
        let version = match distro {
            Distro::Rke2 => "v1.35.7+rke2r1",
            Distro::K3s => "v1.36.3+k3s1",
        };
        let lab = Self {
            world,
            env,
            pve,
            secrets,
            access,
            distro,
            version: ReleaseVersion::parse(distro, version).expect("a version"),
            reasons: Reasons::default(),
        };
        lab.download_image().await;
        lab
    }

    async fn download_image(&self) {
        let download = storage::Download {
            content: "import".into(),
            filename: "noble.qcow2".into(),
            url: "https://cloud-images.ubuntu.com/noble/20260801/noble-server-cloudimg-amd64.img".into(),
            checksum: None,
            verify_certificates: true,
        };
        let (host, local) = ("pve1".parse().expect("a host"), "local".parse().expect("a storage"));
        self.pve
            .run(storage::download(&host, &local, &download))
            .await
            .expect("an image");
    }

    /// Creates the VM of a machine and starts it.
    pub async fn boot(&self, machine: &Machine) {
        let host = "pve1".parse().expect("a host");
        let vmid = machine.vmid.to_string().parse().expect("a VMID");
        let serial = base64::Engine::encode(&base64::engine::general_purpose::STANDARD, &machine.serial);
        let entries = [
            ("name", machine.name.clone()),
            ("cores", "4".into()),
            ("memory", "8192".into()),
            ("scsihw", "virtio-scsi-pci".into()),
            (
                "scsi0",
                "local-lvm:0,import-from=local:import/noble.qcow2,serial=mainstay0".into(),
            ),
            ("scsi1", "local-lvm:cloudinit".into()),
            ("net0", format!("virtio={},bridge=vmbr0", machine.mac)),
            ("ipconfig0", format!("ip={}/16,gw=10.0.0.1", machine.address)),
            ("nameserver", "1.1.1.1".into()),
            ("searchdomain", "lab.internal".into()),
            ("ciuser", "mainstay".into()),
            ("ciupgrade", "0".into()),
            ("smbios1", format!("uuid={},serial={serial},base64=1", machine.uuid)),
            ("agent", "1".into()),
            ("boot", "order=scsi0".into()),
        ];
        let mut config = VmConfig::from_entries(entries.map(|(key, value)| (key.to_owned(), value)));
        config.sshkeys = Some(vec![self.secrets.ssh().public().to_owned()]);
        let create = qemu::create(&host, vmid, &config, &qemu::CreateOptions::default());
        self.pve.run(create).await.expect("a VM");
        let resize = qemu::resize(
            &host,
            vmid,
            "scsi0".parse().expect("a slot"),
            "40G".parse().expect("a size"),
            None,
        );
        self.pve.run(resize).await.expect("a grown disk");
        self.pve.run(qemu::start(&host, vmid)).await.expect("a start");
    }

    pub async fn stop(&self, machine: &Machine) {
        let host = "pve1".parse().expect("a host");
        let vmid = machine.vmid.to_string().parse().expect("a VMID");
        self.pve.run(qemu::stop(&host, vmid, false)).await.expect("a stop");
    }

    pub async fn power_cycle(&self, machine: &Machine) {
        let host = "pve1".parse().expect("a host");
        let vmid = machine.vmid.to_string().parse().expect("a VMID");
        self.pve.run(qemu::stop(&host, vmid, false)).await.expect("a stop");
        self.pve.run(qemu::start(&host, vmid)).await.expect("a start");
    }

    /// The VM's config as PVE stores it.
    pub async fn config_text(&self, machine: &Machine) -> String {
        let host = "pve1".parse().expect("a host");
        let vmid = machine.vmid.to_string().parse().expect("a VMID");
        let config = self.pve.call(qemu::config(&host, vmid)).await.expect("a config");
        let mut text = format!("{:?}", config.to_entries());
        for part in [
            qemu::CloudInitPart::User,
            qemu::CloudInitPart::Network,
            qemu::CloudInitPart::Meta,
        ] {
            let drive: String = self.pve.call(qemu::cloud_init(&host, vmid, part)).await.expect("a drive");
            text += &drive;
        }
        text
    }

    /// Proves the machine and opens it under the key that it showed, as the plan does with a step in between.
    pub async fn open(&self, machine: &Machine) -> OpenGuest {
        self.try_open(&machine.unproved())
            .await
            .unwrap_or_else(|failure| self.fail(&failure))
    }

    pub async fn try_open(&self, unproved: &MachineAccess) -> Result<OpenGuest, Failure> {
        let key = self.access.prove(unproved, &self.reasons).await?;
        let pinned = MachineAccess {
            pin: Some(key),
            ..unproved.clone()
        };
        self.access.open(&pinned, &self.reasons).await
    }

    pub fn fail(&self, failure: &Failure) -> ! {
        panic!("{failure}: {:?} {:?}\n{}", failure.why, failure.causes(), self.reasons.all());
    }

    pub async fn artifacts(&self, version: ReleaseVersion) -> Vec<PinnedArtifact> {
        let program = ArtifactSource::github(self.distro).program(version);
        let sums = self.checksums(version).await;
        vec![PinnedArtifact {
            kind: ArtifactKind::Program,
            sha256: checksum_of(&sums, &program.file).expect("a checksum"),
            file: program.file,
            origin: ArtifactOrigin::Download(program.url),
        }]
    }

    async fn checksums(&self, version: ReleaseVersion) -> String {
        String::from_utf8(self.asset(version, "sha256sum-amd64.txt").await).expect("text")
    }

    /// A file of a release, read by the operator.
    pub async fn asset(&self, version: ReleaseVersion, file: &str) -> Vec<u8> {
        let url = format!(
            "{}/release-assets.githubusercontent.com/{}/{}/{file}",
            self.world.mirror_url(),
            self.distro,
            version.to_string().replace('+', "%2B")
        );
        let connector =
            Connector::new(self.env.dialer.clone(), &Trust::Plain, self.env.wall, Duration::from_secs(5)).expect("a connector");
        let client = HttpClient::new(connector, HttpOptions::default());
        let request = http::Request::get(url).body(Body::empty()).expect("a request");
        let answer = client.send(request, Duration::from_secs(600)).await.expect("an answer");
        assert!(answer.status.is_success(), "{}", answer.reason);
        answer.body.to_vec()
    }

    pub fn files(
        &self,
        machine: &Machine,
        place: Place,
        version: ReleaseVersion,
        artifacts: &[PinnedArtifact],
    ) -> Vec<GuestFile> {
        self.files_with(machine, place, version, artifacts, BTreeSet::new())
    }

    pub fn files_with(
        &self,
        machine: &Machine,
        place: Place,
        version: ReleaseVersion,
        artifacts: &[PinnedArtifact],
        extra_sans: BTreeSet<String>,
    ) -> Vec<GuestFile> {
        let cni = match self.distro {
            Distro::Rke2 => Cni::Canal,
            Distro::K3s => Cni::Flannel,
        };
        let sans = [VIP, "10.0.0.11", "10.0.0.12", "10.0.0.13"].map(str::to_owned);
        let cluster = ClusterInput {
            distro: self.distro,
            cni,
            sans: sans.into_iter().chain(extra_sans).collect(),
            dns: vec![ip("1.1.1.1")],
            search: Vec::new(),
            disable: BTreeSet::new(),
            external_cloud_provider: false,
            system_registry: None,
            extra: serde_json::Map::new(),
        };
        let input = MachineInput {
            name: machine.name.clone(),
            address: machine.address,
            place,
            labels: BTreeMap::new(),
            taints: Vec::new(),
            interface: None,
        };
        let vip = KubeVip {
            distro: self.distro,
            address: ip(VIP),
            interface: None,
            image: None,
        };
        let files = guest_files(&GuestInput {
            cluster: &cluster,
            machine: &input,
            secrets: &self.secrets,
            vip: Some(ip(VIP)),
            registries: &Registries::default(),
            manifests: &[ManifestFile::new("kube-vip", &vip.objects())],
            version,
            artifacts,
            ordinal: 1,
            disks: &[],
            longhorn: false,
        });
        files.expect("files")
    }

    /// The place of a machine that joins through the first server.
    pub fn joins(&self, machine: &Machine) -> Place {
        let server = join_url(self.distro, ip("10.0.0.11"));
        match machine.role {
            Role::Server => Place::Server { server },
            Role::Agent => Place::Agent { server },
        }
    }

    pub async fn prepare(&self, guest: &OpenGuest, machine: &Machine, place: Place) -> Result<Vec<GuestFile>, Failure> {
        let artifacts = self.artifacts(self.version).await;
        self.prepare_with(guest, machine, place, &artifacts, None).await
    }

    pub async fn prepare_with(
        &self,
        guest: &OpenGuest,
        machine: &Machine,
        place: Place,
        artifacts: &[PinnedArtifact],
        pushed: Option<&dyn ArtifactFiles>,
    ) -> Result<Vec<GuestFile>, Failure> {
        self.prepare_version(guest, machine, place, self.version, artifacts, pushed)
            .await
    }

    async fn prepare_version(
        &self,
        guest: &OpenGuest,
        machine: &Machine,
        place: Place,
        version: ReleaseVersion,
        artifacts: &[PinnedArtifact],
        pushed: Option<&dyn ArtifactFiles>,
    ) -> Result<Vec<GuestFile>, Failure> {
        let files = self.files(machine, place, version, artifacts);
        let preparation = Preparation {
            role: machine.role,
            files: &files,
            version,
            artifacts,
            pushed,
            expected: &machine.expected(),
        };
        prepare(guest, &preparation, &self.reasons).await?;
        Ok(files)
    }

    pub async fn try_recover(
        &self,
        guest: &OpenGuest,
        machine: &Machine,
        files: &[GuestFile],
        others: &[OpenGuest],
    ) -> Result<(), Failure> {
        let founding = Founding {
            files,
            authority: &[],
            intent: INTENT,
            expected: &machine.expected(),
            others,
        };
        recover_founder(guest, &founding, &self.reasons).await
    }

    pub async fn try_found(
        &self,
        guest: &OpenGuest,
        machine: &Machine,
        files: &[GuestFile],
        others: &[OpenGuest],
    ) -> Result<(), Failure> {
        let founding = Founding {
            files,
            authority: &authority_files(&self.secrets),
            intent: INTENT,
            expected: &machine.expected(),
            others,
        };
        found(guest, &founding, &self.reasons).await
    }

    /// Boots and founds the first server.
    pub async fn first_server(&self) -> (Machine, OpenGuest) {
        self.first_server_of(self.version).await
    }

    pub async fn first_server_of(&self, version: ReleaseVersion) -> (Machine, OpenGuest) {
        let machine = Machine::new("cp-1");
        self.boot(&machine).await;
        let guest = self.open(&machine).await;
        let artifacts = self.artifacts(version).await;
        let files = self
            .prepare_version(&guest, &machine, Place::Founder, version, &artifacts, None)
            .await;
        let files = files.unwrap_or_else(|failure| self.fail(&failure));
        let founded = self.try_found(&guest, &machine, &files, &[]).await;
        founded.unwrap_or_else(|failure| self.fail(&failure));
        (machine, guest)
    }

    /// Boots a machine and joins it through the first server.
    pub async fn join(&self, name: &str, servers: &[&str]) -> (Machine, OpenGuest) {
        let machine = Machine::new(name);
        self.boot(&machine).await;
        let guest = self.open(&machine).await;
        let files = self.prepare(&guest, &machine, self.joins(&machine)).await;
        let files = files.unwrap_or_else(|failure| self.fail(&failure));
        let joined = self.try_join(&guest, &machine, &files, servers).await;
        joined.unwrap_or_else(|failure| self.fail(&failure));
        (machine, guest)
    }

    pub async fn try_join(
        &self,
        guest: &OpenGuest,
        machine: &Machine,
        files: &[GuestFile],
        servers: &[&str],
    ) -> Result<(), Failure> {
        let servers: Vec<IpAddr> = servers.iter().map(|server| ip(server)).collect();
        let join = Join {
            files,
            expected: &machine.expected(),
            through: ip("10.0.0.11"),
            servers: &servers,
        };
        match machine.role {
            Role::Server => join_server(guest, &join, &self.reasons).await,
            Role::Agent => join_agent(guest, &join, &self.reasons).await,
        }
    }

    /// Waits until a node is Ready.
    pub async fn node_ready(&self, name: &str) {
        let cluster = self.access.kubernetes(ip("10.0.0.11")).expect("a client");
        for _ in 0..600 {
            if cluster
                .node(name)
                .await
                .is_ok_and(|node| node.is_some_and(|node| node.is_ready()))
            {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("{name} is not ready");
    }
}

fn pve_client(world: &World, env: &Env) -> Client {
    let url: url::Url = world.endpoint().parse().expect("a URL");
    let target = format!("{}:{}", url.host_str().expect("a host"), url.port().expect("a port"));
    let trust = Trust::Pin(world.fingerprint().expect("TLS").parse().expect("a fingerprint"));
    let endpoint = Endpoint {
        target: target.parse().expect("a target"),
        trust,
        host: None,
    };
    let login = world.token().expect("a token").parse().expect("a login");
    Client::new(env, vec![endpoint], login, ClientOptions::default()).expect("a client")
}

/// An operator's own files, to push.
pub struct LocalFiles(pub BTreeMap<String, Vec<u8>>);

impl ArtifactFiles for LocalFiles {
    fn open<'a>(
        &'a self,
        file: &'a str,
        offset: u64,
    ) -> futures::future::BoxFuture<'a, std::io::Result<mainstay_engine::guest::rancher::ArtifactFile>> {
        Box::pin(async move {
            let content = self.0.get(file).ok_or(std::io::ErrorKind::NotFound)?;
            let skipped = usize::try_from(offset).map_err(std::io::Error::other)?;
            Ok(mainstay_engine::guest::rancher::ArtifactFile {
                length: content.len() as u64,
                content: Box::new(std::io::Cursor::new(content[skipped..].to_vec())),
            })
        })
    }
}
