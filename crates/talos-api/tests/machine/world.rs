//! A network in memory with scripted machines on it.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{StreamExt, stream};
use mainstay_net::{Binder, Entropy, Env, Identity, Secret, ServeOptions, SimNet, Target, Wall, serve, server_config, simulate};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, PKCS_ED25519};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use talos_api::Access;
use talos_proto::cosi::resource as cosi;
use talos_proto::cosi::resource::state_server::{State, StateServer};
use talos_proto::machine as wire;
use talos_proto::machine::machine_service_server::{MachineService, MachineServiceServer};
use tokio::task::JoinHandle;
use tonic::service::Routes;
use tonic::{Code, Request, Response, Status};

type Streamed<T> = tonic::codegen::BoxStream<T>;

/// Runs a test on virtual time.
pub fn run<F: Future<Output = ()>>(test: impl FnOnce(World) -> F + Send) {
    simulate(7, Duration::from_secs(3600), |entropy| async move {
        test(World::new(&entropy)).await;
    })
    .unwrap();
}

pub struct World {
    pub net: SimNet,
    pub env: Env,
}

/// A certificate authority and what it signs.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// How a machine answers the next call.
#[derive(Clone, Debug)]
pub enum Reply {
    Refuse(Code, &'static str),
    RefuseWith(Code, String),
    /// Never.
    Silence,
    /// The connection breaks after the call has arrived.
    HangUp,
}

/// A machine that answers by script, and well where the script says nothing.
#[derive(Clone)]
pub struct Machine {
    pub at: SocketAddr,
    net: SimNet,
    script: Arc<Mutex<Script>>,
}

#[derive(Default)]
struct Script {
    replies: BTreeMap<&'static str, VecDeque<Reply>>,
    always: BTreeMap<&'static str, Reply>,
    heard: Vec<String>,
    onward: Vec<String>,
    pub resources: BTreeMap<(String, String), String>,
    watch: Vec<cosi::WatchResponse>,
    events: Vec<wire::Event>,
    files: BTreeMap<String, Vec<wire::FileInfo>>,
    services: Vec<wire::ServiceInfo>,
    apply: wire::ApplyConfiguration,
    tag: String,
    members: Vec<wire::EtcdMember>,
}

impl World {
    fn new(entropy: &Entropy) -> Self {
        let net = SimNet::new(entropy.fork("net"));
        let wall = Wall::at("2026-11-15T00:00:00Z".parse().unwrap());
        let env = Env {
            dialer: Arc::new(net.clone()),
            wall,
            entropy: entropy.clone(),
        };
        Self { net, env }
    }

    pub fn machine(&self, host: &str) -> Machine {
        let at = SocketAddr::new(host.parse().unwrap(), 50000);
        let script = Script {
            tag: "v1.13.9".into(),
            apply: applied(),
            ..Default::default()
        };
        Machine {
            at,
            net: self.net.clone(),
            script: Arc::new(Mutex::new(script)),
        }
    }

    pub async fn serve(&self, machine: &Machine, tls: ServerConfig) -> JoinHandle<std::io::Error> {
        let routes = Routes::new(MachineServiceServer::new(machine.clone())).add_service(StateServer::new(machine.clone()));
        self.serve_router(machine, tls, routes.into_axum_router()).await
    }

    /// Anything at all in the machine's place.
    pub async fn serve_router(&self, machine: &Machine, tls: ServerConfig, router: axum::Router) -> JoinHandle<std::io::Error> {
        let listener = self.net.bind(machine.at).await.unwrap();
        tokio::spawn(serve(listener, router, ServeOptions::tls(Arc::new(tls))))
    }

    /// A configured machine of `authority`, for clients of the same authority.
    pub async fn configured(&self, host: &str, authority: &Authority) -> Machine {
        let machine = self.machine(host);
        self.serve(&machine, authority.mutual_tls(self.env.wall, host, authority))
            .await;
        machine
    }

    /// A machine in maintenance mode: self-signed, asking for no certificate.
    pub async fn unconfigured(&self, host: &str) -> Machine {
        let machine = self.machine(host);
        let boot = Authority::new("maintenance");
        self.serve(&machine, boot.one_sided_tls(self.env.wall, host)).await;
        machine
    }
}

/// What 1.13 says to a config that it took.
fn applied() -> wire::ApplyConfiguration {
    let mode = wire::apply_configuration_request::Mode::NoReboot.into();
    wire::ApplyConfiguration {
        mode,
        mode_details: "Applied configuration without a reboot".into(),
        ..Default::default()
    }
}

pub fn target(machine: &Machine) -> Target {
    Target::new(machine.at.ip().to_string(), machine.at.port())
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self {
            issuer: CertifiedIssuer::self_signed(params, KeyPair::generate_for(&PKCS_ED25519).unwrap()).unwrap(),
        }
    }

    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Opens machines of this authority, as this authority's admin.
    pub fn access(&self, env: &Env) -> Access {
        Access::new(env, self.pem(), self.admin())
    }

    pub fn admin(&self) -> Identity {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::OrganizationName, "os:admin");
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        Identity {
            cert_pem: cert.pem(),
            key_pem: Secret::new(key.serialize_pem()),
        }
    }

    fn server(&self, host: &str) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let key = KeyPair::generate_for(&PKCS_ED25519).unwrap();
        let mut params = CertificateParams::new(vec![host.to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        (
            vec![cert.der().clone()],
            PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
        )
    }

    pub fn one_sided_tls(&self, wall: Wall, host: &str) -> ServerConfig {
        let (chain, key) = self.server(host);
        with_h2(
            server_config(wall)
                .with_no_client_auth()
                .with_single_cert(chain, key)
                .unwrap(),
        )
    }

    pub fn mutual_tls(&self, wall: Wall, host: &str, clients: &Self) -> ServerConfig {
        let (chain, key) = self.server(host);
        let mut roots = RootCertStore::empty();
        roots.add(clients.issuer.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), mainstay_net::crypto_provider())
            .build()
            .unwrap();
        with_h2(
            server_config(wall)
                .with_client_cert_verifier(verifier)
                .with_single_cert(chain, key)
                .unwrap(),
        )
    }
}

fn with_h2(mut config: ServerConfig) -> ServerConfig {
    config.alpn_protocols = vec![b"h2".to_vec()];
    config
}

impl Machine {
    fn script<T>(&self, with: impl FnOnce(&mut Script) -> T) -> T {
        with(&mut self.script.lock().unwrap())
    }

    /// Says this to the next call of that name.
    pub fn next(&self, call: &'static str, reply: Reply) -> &Self {
        self.script(|script| script.replies.entry(call).or_default().push_back(reply));
        self
    }

    /// Says this to every call of that name.
    pub fn always(&self, call: &'static str, reply: Reply) -> &Self {
        self.script(|script| script.always.insert(call, reply));
        self
    }

    pub fn resource(&self, kind: &str, id: &str, yaml: &str) -> &Self {
        self.script(|script| script.resources.insert((kind.into(), id.into()), yaml.into()));
        self
    }

    pub fn with_uuid(&self, uuid: &str) -> &Self {
        self.resource(
            "SystemInformations.hardware.talos.dev",
            "systeminformation",
            &format!("manufacturer: QEMU\nuuid: {uuid}\n"),
        )
    }

    pub fn with_watch(&self, answers: Vec<cosi::WatchResponse>) -> &Self {
        self.script(|script| script.watch = answers);
        self
    }

    pub fn with_events(&self, events: Vec<wire::Event>) -> &Self {
        self.script(|script| script.events = events);
        self
    }

    pub fn with_files(&self, root: &str, files: Vec<wire::FileInfo>) -> &Self {
        self.script(|script| script.files.insert(root.into(), files));
        self
    }

    pub fn with_services(&self, services: Vec<wire::ServiceInfo>) -> &Self {
        self.script(|script| script.services = services);
        self
    }

    pub fn with_members(&self, members: Vec<wire::EtcdMember>) -> &Self {
        self.script(|script| script.members = members);
        self
    }

    pub fn answering_apply(&self, answer: wire::ApplyConfiguration) -> &Self {
        self.script(|script| script.apply = answer);
        self
    }

    /// The calls that arrived, in order.
    pub fn heard(&self) -> Vec<String> {
        self.script(|script| script.heard.clone())
    }

    /// The `node` headers that arrived, in order.
    pub fn onward(&self) -> Vec<String> {
        self.script(|script| script.onward.clone())
    }

    async fn hear<T>(&self, call: &'static str, request: &Request<T>) -> Result<(), Status> {
        let node = request.metadata().get("node").map(|value| value.to_str().unwrap().to_owned());
        let reply = self.script(|script| {
            script.heard.push(call.to_owned());
            script.onward.extend(node);
            script
                .replies
                .get_mut(call)
                .and_then(VecDeque::pop_front)
                .or_else(|| script.always.get(call).cloned())
        });
        match reply {
            None => Ok(()),
            Some(Reply::Refuse(code, text)) => Err(Status::new(code, text)),
            Some(Reply::RefuseWith(code, text)) => Err(Status::new(code, text)),
            Some(Reply::Silence) => std::future::pending().await,
            Some(Reply::HangUp) => {
                let address: IpAddr = self.at.ip();
                self.net.reset(address);
                std::future::pending().await
            }
        }
    }
}

fn streamed<T: Send + 'static>(items: Vec<T>) -> Response<Streamed<T>> {
    Response::new(stream::iter(items.into_iter().map(Ok)).boxed())
}

#[tonic::async_trait]
impl MachineService for Machine {
    async fn version(&self, request: Request<()>) -> Result<Response<wire::VersionResponse>, Status> {
        self.hear("Version", &request).await?;
        let version = wire::VersionInfo {
            tag: self.script(|script| script.tag.clone()),
            ..Default::default()
        };
        Ok(Response::new(wire::VersionResponse {
            messages: vec![wire::Version {
                version: Some(version),
                ..Default::default()
            }],
        }))
    }

    async fn apply_configuration(
        &self,
        request: Request<wire::ApplyConfigurationRequest>,
    ) -> Result<Response<wire::ApplyConfigurationResponse>, Status> {
        self.hear("ApplyConfiguration", &request).await?;
        let answer = self.script(|script| script.apply.clone());
        Ok(Response::new(wire::ApplyConfigurationResponse { messages: vec![answer] }))
    }

    async fn bootstrap(&self, request: Request<wire::BootstrapRequest>) -> Result<Response<wire::BootstrapResponse>, Status> {
        self.hear("Bootstrap", &request).await?;
        Ok(Response::new(wire::BootstrapResponse {
            messages: vec![wire::Bootstrap::default()],
        }))
    }

    async fn reboot(&self, request: Request<wire::RebootRequest>) -> Result<Response<wire::RebootResponse>, Status> {
        self.hear("Reboot", &request).await?;
        let reboot = wire::Reboot {
            actor_id: "an-actor".into(),
            ..Default::default()
        };
        Ok(Response::new(wire::RebootResponse { messages: vec![reboot] }))
    }

    async fn reset(&self, request: Request<wire::ResetRequest>) -> Result<Response<wire::ResetResponse>, Status> {
        self.hear("Reset", &request).await?;
        let request = request.into_inner();
        let labels: Vec<_> = request
            .system_partitions_to_wipe
            .iter()
            .map(|partition| partition.label.as_str())
            .collect();
        let actor_id = format!("graceful={} reboot={} {}", request.graceful, request.reboot, labels.join("+"));
        Ok(Response::new(wire::ResetResponse {
            messages: vec![wire::Reset {
                actor_id,
                ..Default::default()
            }],
        }))
    }

    async fn service_list(&self, request: Request<()>) -> Result<Response<wire::ServiceListResponse>, Status> {
        self.hear("ServiceList", &request).await?;
        let services = self.script(|script| script.services.clone());
        Ok(Response::new(wire::ServiceListResponse {
            messages: vec![wire::ServiceList {
                services,
                ..Default::default()
            }],
        }))
    }

    async fn list(&self, request: Request<wire::ListRequest>) -> Result<Response<Streamed<wire::FileInfo>>, Status> {
        self.hear("List", &request).await?;
        let root = request.into_inner().root;
        let files = self.script(|script| script.files.get(&root).cloned());
        files
            .map(streamed)
            .ok_or_else(|| Status::unknown(format!("lstat {root}: no such file or directory")))
    }

    async fn logs(&self, request: Request<wire::LogsRequest>) -> Result<Response<Streamed<talos_proto::common::Data>>, Status> {
        self.hear("Logs", &request).await?;
        let chunk = |text: &str| talos_proto::common::Data {
            bytes: text.as_bytes().to_vec(),
            metadata: None,
        };
        Ok(streamed(vec![chunk("one\ntw"), chunk("o\n")]))
    }

    async fn events(&self, request: Request<wire::EventsRequest>) -> Result<Response<Streamed<wire::Event>>, Status> {
        self.hear("Events", &request).await?;
        Ok(streamed(self.script(|script| script.events.clone())))
    }

    async fn etcd_member_list(
        &self,
        request: Request<wire::EtcdMemberListRequest>,
    ) -> Result<Response<wire::EtcdMemberListResponse>, Status> {
        self.hear("EtcdMemberList", &request).await?;
        let members = wire::EtcdMembers {
            members: self.script(|script| script.members.clone()),
            ..Default::default()
        };
        Ok(Response::new(wire::EtcdMemberListResponse { messages: vec![members] }))
    }

    async fn etcd_remove_member_by_id(
        &self,
        request: Request<wire::EtcdRemoveMemberByIdRequest>,
    ) -> Result<Response<wire::EtcdRemoveMemberByIdResponse>, Status> {
        self.hear("EtcdRemoveMemberByID", &request).await?;
        Ok(Response::new(wire::EtcdRemoveMemberByIdResponse {
            messages: vec![wire::EtcdRemoveMemberById::default()],
        }))
    }
}

#[tonic::async_trait]
impl State for Machine {
    async fn get(&self, request: Request<cosi::GetRequest>) -> Result<Response<cosi::GetResponse>, Status> {
        self.hear("Get", &request).await?;
        let cosi::GetRequest {
            namespace,
            r#type: kind,
            id,
            ..
        } = request.into_inner();
        let yaml = self.script(|script| script.resources.get(&(kind.clone(), id.clone())).cloned());
        let Some(yaml) = yaml else {
            return Err(Status::not_found(format!(
                "resource {kind}({namespace}/{id}@undefined) doesn't exist"
            )));
        };
        Ok(Response::new(cosi::GetResponse {
            resource: Some(resource(&kind, &id, &yaml)),
        }))
    }

    async fn list(&self, request: Request<cosi::ListRequest>) -> Result<Response<Streamed<cosi::ListResponse>>, Status> {
        self.hear("ListResources", &request).await?;
        let kind = request.into_inner().r#type;
        let found = self.script(|script| {
            let all = script.resources.iter().filter(|((of, _), _)| *of == kind);
            all.map(|((_, id), yaml)| cosi::ListResponse {
                resource: Some(resource(&kind, id, yaml)),
            })
            .collect()
        });
        Ok(streamed(found))
    }

    async fn watch(&self, request: Request<cosi::WatchRequest>) -> Result<Response<Streamed<cosi::WatchResponse>>, Status> {
        self.hear("Watch", &request).await?;
        Ok(streamed(self.script(|script| script.watch.clone())))
    }
}

pub fn resource(kind: &str, id: &str, yaml: &str) -> cosi::Resource {
    let metadata = cosi::Metadata {
        r#type: kind.into(),
        id: id.into(),
        version: "3".into(),
        ..Default::default()
    };
    let spec = cosi::Spec {
        yaml_spec: yaml.into(),
        proto_spec: Vec::new(),
    };
    cosi::Resource {
        metadata: Some(metadata),
        spec: Some(spec),
    }
}
