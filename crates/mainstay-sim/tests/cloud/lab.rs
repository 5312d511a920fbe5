//! What the tests share: machines without a datacenter around them, an SSH client, and a client of the supervisor.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Entropy, Identity, Secret, Target, Trust, Wall, simulate, sshd};
use mainstay_sim::{CloudImage, Mode, World, WorldSpec};
use pve_sim::guest::{CloudInitFiles, Content, Disk, Guest, Guests, Hardware, Nic, Pace, Platter, PowerSwitch};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use russh::ChannelMsg;
use russh::client;
use russh::keys::{PrivateKey, PrivateKeyWithHashAlg, PublicKey, PublicKeyOrCertificate};
use serde_json::Value;

pub const PASSWORD: &str = "server-passphrase";
pub const AGENT_PASSWORD: &str = "agent-passphrase";

pub fn in_world<F: Future<Output = ()>>(run: impl FnOnce(Arc<Lab>) -> F + Send) {
    in_world_of(WorldSpec::default(), run);
}

pub fn in_world_of<F: Future<Output = ()>>(spec: WorldSpec, run: impl FnOnce(Arc<Lab>) -> F + Send) {
    let ended = simulate(7, Duration::from_secs(24 * 3600), |entropy| async move {
        let lab = Lab::start(spec, entropy).await;
        run(lab).await;
    });
    ended.expect("the test ends in time");
}

pub struct Lab {
    pub world: World,
    pub key: PrivateKey,
    guests: Arc<dyn Guests>,
    pub authorities: Vec<(String, String)>,
}

/// A VM: its hardware and, while it is on, its guest.
pub struct Vm {
    pub hardware: Hardware,
    guest: Mutex<Option<Box<dyn Guest>>>,
    guests: Arc<dyn Guests>,
}

impl Vm {
    pub fn on(&self) {
        *self.guest.lock().unwrap() = Some(self.guests.power_on(self.hardware.clone()));
    }

    /// Pulls the plug.
    pub fn off(&self) {
        self.guest.lock().unwrap().take();
    }

    pub fn agent(&self, command: &str) -> Option<Result<Value, String>> {
        self.guest.lock().unwrap().as_mut()?.agent(command, &Value::Null)
    }
}

pub fn image(os: &str, release: &str) -> CloudImage {
    CloudImage {
        os: os.to_owned(),
        release: release.to_owned(),
        serial: "20260801".to_owned(),
        arch: "amd64".to_owned(),
    }
}

/// PVE's drive for a machine.
pub fn drive(name: &str, address: &str, mac: &str, key: &PublicKey) -> CloudInitFiles {
    let user_data = format!(
        "#cloud-config\nhostname: {name}\nmanage_etc_hosts: true\nfqdn: {name}.lab.internal\nuser: admin\nssh_authorized_keys:\n  - {}\nchpasswd:\n  expire: False\nusers:\n  - default\n",
        key.to_openssh().unwrap()
    );
    let network_config = format!(
        "version: 1\nconfig:\n    - type: physical\n      name: eth0\n      mac_address: '{}'\n      subnets:\n      - type: static\n        address: '{address}'\n        netmask: '255.255.0.0'\n        gateway: '10.10.0.1'\n    - type: nameserver\n      address:\n      - '1.1.1.1'\n      search:\n      - 'lab.internal'\n",
        mac.to_ascii_lowercase()
    );
    let meta_data = format!(
        "instance-id: {}\n",
        hex::encode(<sha2::Sha256 as sha2::Digest>::digest(format!("{user_data}{network_config}")))
    );
    CloudInitFiles {
        user_data,
        meta_data,
        network_config,
        vendor_data: String::new(),
    }
}

impl Lab {
    pub async fn start(spec: WorldSpec, entropy: Entropy) -> Arc<Self> {
        let wall = Wall::at("2026-11-17T00:00:00Z".parse().unwrap());
        let world = World::start(spec, Mode::Simulated, wall, entropy.clone()).await.unwrap();
        let guests = world.guests();
        let names = [
            "server-ca",
            "client-ca",
            "request-header-ca",
            "etcd/peer-ca",
            "etcd/server-ca",
        ];
        let authorities = names.iter().flat_map(|name| authority(name)).collect();
        Arc::new(Self {
            world,
            key: sshd::ed25519_key(&entropy.fork("operator")),
            guests,
            authorities,
        })
    }

    pub fn vm(&self, name: &str, address: &str) -> Vm {
        self.vm_of(name, address, &image("ubuntu", "24.04"))
    }

    pub fn vm_of(&self, name: &str, address: &str, image: &CloudImage) -> Vm {
        let last: u8 = address.rsplit('.').next().unwrap().parse().unwrap();
        let mac = format!("BC:24:11:00:00:{last:02X}");
        let hardware = Hardware {
            vmid: 2000 + u32::from(last),
            host: "pve1".to_owned(),
            name: name.to_owned(),
            uuid: format!("00000000-0000-4000-8000-{:0>12}", address.replace('.', "")),
            serial: format!("serial-of-{name}"),
            cores: 4,
            memory: 8 << 30,
            nics: vec![Nic {
                mac: mac.clone(),
                bridge: "vmbr0".to_owned(),
                vlan: None,
                link_down: false,
            }],
            disks: vec![Disk {
                key: "scsi0".to_owned(),
                serial: Some("system".to_owned()),
                size: 40 << 30,
                content: Platter::new(Content::Image(image.to_qcow2())),
            }],
            cloud_init: Some(drive(name, address, &mac, self.key.public_key())),
            agent_channel: true,
            power: PowerSwitch::new(|_| {}),
            pace: Pace::default(),
        };
        Vm {
            hardware,
            guest: Mutex::default(),
            guests: Arc::clone(&self.guests),
        }
    }

    pub async fn try_ssh(&self, address: &str) -> Result<Ssh, String> {
        self.try_ssh_as(address, "admin", &self.key).await
    }

    pub async fn try_ssh_as(&self, address: &str, user: &str, key: &PrivateKey) -> Result<Ssh, String> {
        let target = Target::new(address, 22);
        let dialer = self.world.dialer();
        let stream = dialer.dial(&target).await.map_err(|error| error.to_string())?;
        let seen = Arc::new(Mutex::new(None));
        let handler = Seen(Arc::clone(&seen));
        let config = Arc::new(client::Config::default());
        let connecting = client::connect_stream(config, stream, handler);
        let mut session = tokio::time::timeout(Duration::from_secs(10), connecting)
            .await
            .map_err(|_| "no banner".to_owned())?
            .map_err(|error| error.to_string())?;
        let key = PrivateKeyWithHashAlg::new(Arc::new(key.clone()), None);
        let answer = session
            .authenticate_publickey(user, key)
            .await
            .map_err(|error| error.to_string())?;
        let host_key = seen.lock().unwrap().clone().ok_or("no host key")?;
        answer
            .success()
            .then_some(Ssh { session, host_key })
            .ok_or_else(|| "permission denied".to_owned())
    }

    /// Waits until the guest lets us in.
    pub async fn ssh(&self, address: &str) -> Ssh {
        for _ in 0..120 {
            if let Ok(ssh) = self.try_ssh(address).await {
                return ssh;
            }
            tokio::time::sleep(Duration::from_secs(6)).await;
        }
        panic!("{address} refuses the login");
    }

    /// A machine that is on, logged in to, and done with cloud-init.
    pub async fn ready_vm(&self, name: &str, address: &str) -> (Vm, Ssh) {
        let vm = self.vm(name, address);
        vm.on();
        let ssh = self.ssh(address).await;
        ssh.ok("cloud-init status --wait").await;
        (vm, ssh)
    }

    pub fn ca(&self, name: &str) -> &str {
        &self.authorities.iter().find(|(file, _)| file == name).unwrap().1
    }

    pub fn token(&self, user: &str, password: &str) -> String {
        let hash = hex::encode(<sha2::Sha256 as sha2::Digest>::digest(self.ca("server-ca.crt")));
        format!("K10{hash}::{user}:{password}")
    }

    /// A client certificate of the cluster.
    pub fn identity(&self, name: &str, groups: &[&str]) -> Identity {
        let issuer =
            Issuer::from_ca_cert_pem(self.ca("client-ca.crt"), KeyPair::from_pem(self.ca("client-ca.key")).unwrap()).unwrap();
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        let mut subject = DistinguishedName::new();
        for (index, group) in groups.iter().enumerate() {
            let kind = if index == 0 {
                DnType::OrganizationName
            } else {
                DnType::CustomDnType(vec![2, 5, 4, 10])
            };
            subject.push(kind, *group);
        }
        subject.push(DnType::CommonName, name);
        params.distinguished_name = subject;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        (params.not_before, params.not_after) = validity();
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let certificate = params.signed_by(&key, &issuer).unwrap();
        Identity {
            cert_pem: certificate.pem(),
            key_pem: Secret::new(key.serialize_pem()),
        }
    }

    /// A client that the supervisor and the API let do everything. (One certificate of rcgen holds two groups at most.)
    pub fn client(&self, distro: &str) -> Web {
        let groups = [format!("{distro}:server"), format!("{distro}:agent")];
        let supervisor = self.client_as(Some(self.identity("operator", &groups.each_ref().map(String::as_str))));
        let api = self.client_as(Some(self.identity("operator", &["system:masters"])));
        Web {
            supervisor: supervisor.supervisor,
            api: api.api,
        }
    }

    pub fn client_as(&self, identity: Option<Identity>) -> Web {
        let trust = Trust::Ca {
            ca_pem: self.ca("server-ca.crt").to_owned(),
            identity,
            server_name: None,
        };
        let connector = Connector::new(self.world.dialer(), &trust, self.world.wall(), Duration::from_secs(5)).unwrap();
        let client = || HttpClient::new(connector.clone(), HttpOptions::default());
        Web {
            supervisor: client(),
            api: client(),
        }
    }
}

fn validity() -> (time::OffsetDateTime, time::OffsetDateTime) {
    let begin = time::OffsetDateTime::from_unix_timestamp(1_794_700_000).unwrap();
    (begin, begin + time::Duration::days(3000))
}

fn authority(name: &str) -> [(String, String); 2] {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    params.distinguished_name = subject;
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
    (params.not_before, params.not_after) = validity();
    let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let certificate = params.self_signed(&key).unwrap();
    [
        (format!("{name}.crt"), certificate.pem()),
        (format!("{name}.key"), key.serialize_pem()),
    ]
}

/// The client for a path: the supervisor's paths, and all others.
pub struct Web {
    supervisor: HttpClient,
    api: HttpClient,
}

impl Web {
    pub async fn send(&self, method: &str, url: &str, headers: &[(&str, &str)], body: &str) -> Option<(u16, String)> {
        let mut request = http::Request::builder().method(method).uri(url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_empty() {
            Body::empty()
        } else {
            Body::from(body.to_owned())
        };
        let client = if url.contains("/v1-") || url.contains("/db/") {
            &self.supervisor
        } else {
            &self.api
        };
        let answer = client.send(request.body(body).unwrap(), Duration::from_secs(20)).await.ok()?;
        Some((answer.status.as_u16(), String::from_utf8_lossy(&answer.body).into_owned()))
    }

    pub async fn get(&self, url: &str) -> Option<(u16, String)> {
        self.send("GET", url, &[], "").await
    }

    pub async fn basic(&self, url: &str, login: &str) -> Option<(u16, String)> {
        let value = format!("Basic {}", STANDARD.encode(login));
        self.send("GET", url, &[("authorization", &value)], "").await
    }

    pub async fn status(&self, url: &str) -> Option<u16> {
        self.get(url).await.map(|(status, _)| status)
    }

    pub async fn json(&self, url: &str) -> Option<Value> {
        let (status, body) = self.get(url).await?;
        (status == 200).then(|| serde_json::from_str(&body).ok()).flatten()
    }

    /// Names of etcd members, as `name|voter` or `name|learner`.
    pub async fn members(&self, supervisor: &str) -> Vec<String> {
        let info = self.json(&format!("{supervisor}/db/info")).await.unwrap_or_default();
        let members = info["members"].as_array().cloned().unwrap_or_default();
        let mut names: Vec<String> = members
            .iter()
            .map(|member| {
                let kind = if member["isLearner"] == true { "learner" } else { "voter" };
                format!("{}|{kind}", member["name"].as_str().unwrap_or_default())
            })
            .collect();
        names.sort();
        names
    }

    pub async fn node(&self, api: &str, name: &str) -> Value {
        self.json(&format!("{api}/api/v1/nodes/{name}")).await.unwrap_or_default()
    }

    pub async fn annotate(&self, api: &str, node: &str, annotation: &str, value: &str) {
        let patch = serde_json::json!({"metadata": {"annotations": {annotation: value}}}).to_string();
        let headers = [("content-type", "application/merge-patch+json")];
        let answer = self
            .send("PATCH", &format!("{api}/api/v1/nodes/{node}"), &headers, &patch)
            .await;
        assert_eq!(answer.map(|(status, _)| status), Some(200));
    }
}

pub fn is_ready(node: &Value) -> bool {
    condition(node, "Ready").as_deref() == Some("True")
}

pub fn condition(node: &Value, kind: &str) -> Option<String> {
    let conditions = node["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    found["status"].as_str().map(str::to_owned)
}

pub struct Seen(Arc<Mutex<Option<PublicKey>>>);

impl client::Handler for Seen {
    type Error = russh::Error;

    async fn check_server_key(&mut self, offered: &PublicKeyOrCertificate) -> Result<bool, russh::Error> {
        if let PublicKeyOrCertificate::PublicKey { key, .. } = offered {
            *self.0.lock().unwrap() = Some(key.clone());
        }
        Ok(true)
    }
}

pub struct Ssh {
    pub session: client::Handle<Seen>,
    pub host_key: PublicKey,
}

#[derive(Debug)]
pub struct Output {
    pub status: u32,
    pub stdout: String,
    pub stderr: String,
}

impl Ssh {
    pub async fn run(&self, command: &str, stdin: &[u8]) -> Output {
        let mut channel = self.session.channel_open_session().await.expect("a session");
        channel.exec(true, command).await.expect("an exec");
        channel.data(stdin).await.expect("input");
        channel.eof().await.expect("the end of the input");
        let (mut status, mut stdout, mut stderr) = (255, Vec::new(), Vec::new());
        while let Some(message) = channel.wait().await {
            match message {
                ChannelMsg::Data { data } => stdout.extend_from_slice(&data),
                ChannelMsg::ExtendedData { data, .. } => stderr.extend_from_slice(&data),
                ChannelMsg::ExitStatus { exit_status } => status = exit_status,
                _ => {}
            }
        }
        Output {
            status,
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        }
    }

    /// What a command prints; it must succeed.
    #[track_caller]
    pub fn ok(&self, command: &str) -> impl Future<Output = String> {
        let place = std::panic::Location::caller();
        async move {
            let output = self.run(command, b"").await;
            assert_eq!(output.status, 0, "{place}: {command}: {output:?}");
            output.stdout
        }
    }

    /// Writes a file of root as a client would: by the standard input, under a temporary name, then renamed.
    pub async fn write(&self, path: &str, mode: &str, content: &str) {
        let directory = path.rsplit_once('/').map_or("/", |(directory, _)| directory);
        let script = format!(
            "set -eu; umask 077; mkdir -p {directory}; t=$(mktemp {directory}/.new.XXXXXX); cat > $t; chmod {mode} $t; sync; mv $t {path}"
        );
        let output = self.run(&format!("sudo -n sh -c '{script}'"), content.as_bytes()).await;
        assert_eq!(output.status, 0, "{path}: {output:?}");
    }
}

/// Polls once a second; gives up after ten minutes of virtual time.
#[track_caller]
pub fn until<F: Future<Output = bool>>(mut holds: impl FnMut() -> F) -> impl Future<Output = ()> {
    let place = std::panic::Location::caller();
    async move {
        for _ in 0..600 {
            if holds().await {
                return;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        panic!("still not so after ten minutes: {place}");
    }
}

pub fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
