//! What the tests share: machines without a datacenter around them, their configs, and raw clients.

pub mod kube;
pub mod raw;
pub mod reflect;

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstay_net::{Connector, Entropy, Identity, Secret, Trust, Wall, simulate};
use mainstay_sim::{Mode, TalosImage, World, WorldSpec};
use pve_sim::guest::{CloudInitFiles, Content, Disk, Guest, Guests, Hardware, Nic, Pace, Platter, PowerEvent, PowerSwitch};
use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, Issuer, KeyPair, KeyUsagePurpose};
use talos_proto::cosi::resource as cosi;
use talos_proto::cosi::resource::state_client::StateClient;
use talos_proto::machine;
use talos_proto::machine::machine_service_client::MachineServiceClient;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

pub const CONTROL_PLANE: &str = include_str!("../data/controlplane.yaml");
pub const WORKER: &str = include_str!("../data/worker.yaml");
pub const VIP: &str = "10.10.0.10";

/// Runs a test in a world of its own, on virtual time.
pub fn in_world<F: Future<Output = ()>>(run: impl FnOnce(Arc<Lab>) -> F + Send) {
    in_world_of(WorldSpec::default(), run);
}

pub fn in_world_of<F: Future<Output = ()>>(spec: WorldSpec, run: impl FnOnce(Arc<Lab>) -> F + Send) {
    let ended = simulate(7, Duration::from_secs(72 * 3600), |entropy| async move {
        let lab = Lab::start(spec, entropy).await;
        run(lab).await;
    });
    ended.expect("the test ends in time");
}

pub struct Lab {
    pub world: World,
    pub entropy: Entropy,
    guests: Arc<dyn Guests>,
}

/// A VM: its hardware and, while it is on, its guest.
pub struct Vm {
    pub hardware: Hardware,
    pub address: IpAddr,
    guest: Mutex<Option<Box<dyn Guest>>>,
    guests: Arc<dyn Guests>,
    pub power: Arc<Mutex<Vec<PowerEvent>>>,
}

impl Vm {
    pub fn on(&self) {
        *self.guest.lock().unwrap() = Some(self.guests.power_on(self.hardware.clone()));
    }

    /// Pulls the plug.
    pub fn off(&self) {
        self.guest.lock().unwrap().take();
    }

    pub fn press_power_button(&self) {
        if let Some(guest) = self.guest.lock().unwrap().as_mut() {
            guest.press_power_button();
        }
    }

    pub fn agent(&self, command: &str) -> Option<Result<serde_json::Value, String>> {
        self.guest.lock().unwrap().as_mut()?.agent(command, &serde_json::Value::Null)
    }

    pub fn events(&self) -> Vec<PowerEvent> {
        self.power.lock().unwrap().clone()
    }
}

pub fn version(text: &str) -> semver::Version {
    text.parse().unwrap()
}

impl Lab {
    pub async fn start(spec: WorldSpec, entropy: Entropy) -> Arc<Self> {
        let wall = Wall::at("2026-11-16T00:00:00Z".parse().unwrap());
        let world = World::start(spec, Mode::Simulated, wall, entropy.clone()).await.unwrap();
        let guests = world.guests();
        Arc::new(Self { world, entropy, guests })
    }

    /// A VM with a nocloud image of 1.13.9, addressed by its cloud-init drive.
    pub fn vm(&self, name: &str, address: &str) -> Vm {
        self.vm_of(name, address, "1.13.9", &[])
    }

    pub fn vm_of(&self, name: &str, address: &str, talos: &str, extensions: &[&str]) -> Vm {
        let extensions = extensions.iter().map(|name| format!("siderolabs/{name}")).collect();
        let image = TalosImage {
            version: version(talos),
            schematic: "0".repeat(64),
            extensions,
            platform: "nocloud".to_owned(),
            arch: "amd64".to_owned(),
        };
        let last: IpAddr = address.parse().unwrap();
        let mac = format!(
            "BC:24:11:00:00:{:02X}",
            address.rsplit('.').next().unwrap().parse::<u8>().unwrap()
        );
        let network = format!(
            "version: 1\nconfig:\n    - type: physical\n      name: eth0\n      mac_address: '{}'\n      subnets:\n      - type: static\n        address: '{address}'\n        netmask: '255.255.0.0'\n        gateway: '10.10.0.1'\n    - type: nameserver\n      address:\n      - '1.1.1.1'\n",
            mac.to_ascii_lowercase()
        );
        let cloud_init = CloudInitFiles {
            user_data: format!("#cloud-config\nhostname: {name}\nfqdn: {name}\n"),
            meta_data: "instance-id: 0123\n".to_owned(),
            network_config: network,
            vendor_data: String::new(),
        };
        let power = Arc::new(Mutex::new(Vec::new()));
        let heard = Arc::clone(&power);
        let hardware = Hardware {
            vmid: 2000,
            host: "pve1".to_owned(),
            name: name.to_owned(),
            uuid: format!("00000000-0000-4000-8000-{:0>12}", address.replace('.', "")),
            serial: String::new(),
            cores: 4,
            memory: 8 << 30,
            nics: vec![Nic {
                mac,
                bridge: "vmbr0".to_owned(),
                vlan: None,
                link_down: false,
            }],
            disks: vec![Disk {
                key: "scsi0".to_owned(),
                serial: Some("mainstay0".to_owned()),
                size: 40 << 30,
                content: Platter::new(Content::Image(image.to_qcow2())),
            }],
            cloud_init: Some(cloud_init),
            agent_channel: true,
            power: PowerSwitch::new(move |event| heard.lock().unwrap().push(event)),
            pace: Pace::default(),
        };
        Vm {
            hardware,
            address: last,
            guest: Mutex::new(None),
            guests: Arc::clone(&self.guests),
            power,
        }
    }

    /// A VM with an empty disk and a boot medium of the `metal` platform, in this boot order.
    pub fn medium_vm(&self, name: &str, address: &str, medium_first: bool) -> Vm {
        let mut vm = self.vm(name, address);
        let image = TalosImage {
            version: version("1.13.9"),
            schematic: "0".repeat(64),
            extensions: Vec::new(),
            platform: "metal".to_owned(),
            arch: "amd64".to_owned(),
        };
        vm.hardware.disks[0].content.write(Content::Blank);
        let medium = Disk {
            key: "ide2".to_owned(),
            serial: None,
            size: 200 << 20,
            content: Platter::new(Content::Image(image.to_iso())),
        };
        let at = if medium_first { 0 } else { 1 };
        vm.hardware.disks.insert(at, medium);
        vm
    }

    fn channel(&self, address: &str, trust: &Trust) -> Channel {
        let connector = Connector::new(self.world.dialer(), trust, self.world.wall(), Duration::from_secs(5)).unwrap();
        let uri = format!("http://{address}:50000");
        Endpoint::from_shared(uri)
            .unwrap()
            .timeout(Duration::from_secs(30))
            .connect_with_connector_lazy(connector)
    }

    /// Without a client certificate, believing any server.
    pub fn insecure(&self, address: &str) -> Node {
        Node::new(self.channel(address, &Trust::Nothing))
    }

    /// With an admin certificate of the cluster, believing only its authority.
    pub fn admin(&self, address: &str) -> Node {
        self.with_roles(address, &["os:admin"])
    }

    pub fn with_roles(&self, address: &str, roles: &[&str]) -> Node {
        let (cert, key) = client_certificate(roles, &[ExtendedKeyUsagePurpose::ClientAuth]);
        Node::new(self.channel(address, &os_trust(address, Some((cert, key)))))
    }

    pub fn with_trust(&self, address: &str, trust: &Trust) -> Node {
        Node::new(self.channel(address, trust))
    }

    /// Waits until the machine API answers a call without credentials.
    pub async fn maintenance(&self, address: &str) {
        until(|| async { self.insecure(address).disks().await.is_ok() }).await;
    }

    /// Applies a config in maintenance and waits for the API of the configured node.
    pub async fn configure(&self, address: &str, config: &str) {
        self.maintenance(address).await;
        self.insecure(address)
            .apply(config, machine::apply_configuration_request::Mode::Auto)
            .await
            .unwrap();
        until(|| async { self.admin(address).version().await.is_ok() }).await;
    }

    /// Powers a control plane on and brings it to a healthy etcd.
    pub async fn first_control_plane(&self, name: &str, address: &str) -> Vm {
        let vm = self.vm(name, address);
        vm.on();
        self.configure(address, &control_plane(name)).await;
        until(|| async { self.admin(address).bootstrap().await.is_ok() }).await;
        until(|| async { self.admin(address).service_up("etcd").await }).await;
        vm
    }

    pub async fn join_control_plane(&self, name: &str, address: &str) -> Vm {
        let vm = self.vm(name, address);
        vm.on();
        self.configure(address, &control_plane(name)).await;
        until(|| async { self.admin(address).service_up("etcd").await }).await;
        vm
    }
}

/// Polls, ten times a second at first and then once a second; gives up after ten minutes of virtual time.
#[track_caller]
pub fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        for poll in 0..700u32 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_millis(if poll < 100 { 100 } else { 1000 })).await;
        }
        panic!("still not so after ten minutes: {place}");
    }
}

/// A control-plane config with this hostname and the VIP.
pub fn control_plane(name: &str) -> String {
    let vip = format!("---\napiVersion: v1alpha1\nkind: Layer2VIPConfig\nname: {VIP}\nlink: eth0\n");
    CONTROL_PLANE.replace("auto: stable", &format!("auto: off\nhostname: {name}")) + &vip
}

pub fn worker(name: &str) -> String {
    WORKER.replace("auto: stable", &format!("auto: off\nhostname: {name}"))
}

fn from_config(path: &[&str]) -> String {
    let whole: serde_json::Value = serde_saphyr::from_multiple::<serde_json::Value>(CONTROL_PLANE)
        .unwrap()
        .remove(0);
    let text = path.iter().fold(&whole, |at, key| &at[*key]).as_str().unwrap().to_owned();
    String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
}

pub fn os_ca() -> String {
    from_config(&["machine", "ca", "crt"])
}

/// As it stands in the config.
pub fn os_ca_base64() -> String {
    STANDARD.encode(os_ca())
}

pub fn kubernetes_ca() -> String {
    from_config(&["cluster", "ca", "crt"])
}

/// Go writes the curve into the key as well; it is twelve bytes between the scalar and the point.
fn without_curve(sec1: &[u8]) -> Vec<u8> {
    let (scalar, point) = (&sec1[5..39], &sec1[51..]);
    [&[0x30, 0x6b, 0x02, 0x01, 0x01], scalar, point].concat()
}

fn key_pair(pem_text: &str) -> KeyPair {
    let parsed = pem::parse(pem_text).unwrap();
    if parsed.tag() == "EC PRIVATE KEY" {
        // PKCS#8 around a SEC 1 key of the curve P-256; the lengths of such keys are fixed.
        let head = hex::decode("308187020100301306072a8648ce3d020106082a8648ce3d030107046d").unwrap();
        let bare = without_curve(parsed.contents());
        return KeyPair::try_from([head, bare].concat()).unwrap();
    }
    KeyPair::try_from(parsed.into_contents()).unwrap()
}

fn mint(
    ca: &str,
    ca_key: &str,
    subject: DistinguishedName,
    uses: &[ExtendedKeyUsagePurpose],
    days: (i64, i64),
) -> (String, String) {
    let issuer = Issuer::from_ca_cert_pem(ca, key_pair(ca_key)).unwrap();
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name = subject;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = uses.to_vec();
    params.not_before = time::OffsetDateTime::from_unix_timestamp(1_794_700_000 + days.0 * 86400).unwrap();
    params.not_after = time::OffsetDateTime::from_unix_timestamp(1_794_700_000 + days.1 * 86400).unwrap();
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let certificate = params.signed_by(&key, &issuer).unwrap();
    (certificate.pem(), key.serialize_pem())
}

fn organization(names: &[&str]) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    if let Some(name) = names.first() {
        subject.push(DnType::OrganizationName, *name);
    }
    subject
}

/// A Talos client certificate of the test cluster, valid for 300 days.
pub fn client_certificate(roles: &[&str], uses: &[ExtendedKeyUsagePurpose]) -> (String, String) {
    mint(
        &os_ca(),
        &from_config(&["machine", "ca", "key"]),
        organization(roles),
        uses,
        (-1, 300),
    )
}

pub fn expired_certificate() -> (String, String) {
    mint(
        &os_ca(),
        &from_config(&["machine", "ca", "key"]),
        organization(&["os:admin"]),
        &[ExtendedKeyUsagePurpose::ClientAuth],
        (-20, -10),
    )
}

/// A certificate of an authority that the cluster does not know.
pub fn foreign_certificate() -> (String, String) {
    let (ca, key) = (
        KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap(),
        KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap(),
    );
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let issuer = Issuer::new(params, ca);
    let mut leaf = CertificateParams::new(Vec::new()).unwrap();
    leaf.distinguished_name = organization(&["os:admin"]);
    leaf.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    (leaf.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
}

/// A Kubernetes client certificate.
pub fn kubernetes_certificate(name: &str, group: &str) -> (String, String) {
    let mut subject = organization(&[group]);
    subject.push(DnType::CommonName, name);
    mint(
        &kubernetes_ca(),
        &from_config(&["cluster", "ca", "key"]),
        subject,
        &[ExtendedKeyUsagePurpose::ClientAuth],
        (-1, 300),
    )
}

pub fn os_trust(server: &str, identity: Option<(String, String)>) -> Trust {
    Trust::Ca {
        ca_pem: os_ca(),
        identity: identity.map(to_identity),
        server_name: Some(server.to_owned()),
    }
}

pub fn to_identity((cert, key): (String, String)) -> Identity {
    Identity {
        cert_pem: cert,
        key_pem: Secret::new(key),
    }
}

/// Raw clients of one node.
#[derive(Clone)]
pub struct Node {
    pub machine: MachineServiceClient<Channel>,
    pub state: StateClient<Channel>,
    pub channel: Channel,
}

impl Node {
    fn new(channel: Channel) -> Self {
        Self {
            machine: MachineServiceClient::new(channel.clone()),
            state: StateClient::new(channel.clone()),
            channel,
        }
    }

    pub async fn version(&self) -> Result<machine::Version, Status> {
        Ok(self.machine.clone().version(()).await?.into_inner().messages.remove(0))
    }

    pub async fn disks(&self) -> Result<talos_proto::storage::Disks, Status> {
        let mut client = talos_proto::storage::storage_service_client::StorageServiceClient::new(self.channel.clone());
        Ok(client.disks(()).await?.into_inner().messages.remove(0))
    }

    pub async fn apply(
        &self,
        config: &str,
        mode: machine::apply_configuration_request::Mode,
    ) -> Result<machine::ApplyConfiguration, Status> {
        let request = machine::ApplyConfigurationRequest {
            data: config.as_bytes().to_vec(),
            mode: mode.into(),
            ..Default::default()
        };
        Ok(self
            .machine
            .clone()
            .apply_configuration(request)
            .await?
            .into_inner()
            .messages
            .remove(0))
    }

    pub async fn bootstrap(&self) -> Result<(), Status> {
        self.machine
            .clone()
            .bootstrap(machine::BootstrapRequest::default())
            .await
            .map(|_| ())
    }

    pub async fn services(&self) -> Result<Vec<machine::ServiceInfo>, Status> {
        Ok(self
            .machine
            .clone()
            .service_list(())
            .await?
            .into_inner()
            .messages
            .remove(0)
            .services)
    }

    pub async fn service_up(&self, id: &str) -> bool {
        let services = self.services().await.unwrap_or_default();
        services.iter().any(|service| {
            service.id == id && service.state == "Running" && service.health.as_ref().is_some_and(|health| health.healthy)
        })
    }

    pub async fn members(&self) -> Result<Vec<machine::EtcdMember>, Status> {
        let request = machine::EtcdMemberListRequest { query_local: false };
        Ok(self
            .machine
            .clone()
            .etcd_member_list(request)
            .await?
            .into_inner()
            .messages
            .remove(0)
            .members)
    }

    pub async fn get(&self, namespace: &str, kind: &str, id: &str) -> Result<cosi::Resource, Status> {
        let request = cosi::GetRequest {
            namespace: namespace.to_owned(),
            r#type: kind.to_owned(),
            id: id.to_owned(),
            options: None,
        };
        Ok(self.state.clone().get(request).await?.into_inner().resource.unwrap())
    }

    pub async fn yaml(&self, namespace: &str, kind: &str, id: &str) -> Result<String, Status> {
        Ok(self.get(namespace, kind, id).await?.spec.unwrap().yaml_spec)
    }

    pub async fn machine_status(&self) -> String {
        self.yaml("runtime", "MachineStatuses.runtime.talos.dev", "machine")
            .await
            .unwrap_or_default()
    }

    pub async fn list(&self, namespace: &str, kind: &str) -> Result<Vec<cosi::Resource>, Status> {
        let request = cosi::ListRequest {
            namespace: namespace.to_owned(),
            r#type: kind.to_owned(),
            options: None,
        };
        let mut stream = self.state.clone().list(request).await?.into_inner();
        let mut found = Vec::new();
        while let Some(item) = stream.message().await? {
            found.extend(item.resource);
        }
        Ok(found)
    }
}

pub fn refusal<T>(answer: Result<T, Status>) -> (Code, String) {
    let status = answer.err().expect("a refusal");
    (status.code(), status.message().to_owned())
}
