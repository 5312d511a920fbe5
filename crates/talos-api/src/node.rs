//! A configured machine: both sides prove who they are.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_net::{Alpn, Connector, Env, Identity, Secret, Target, Trust};
use talos_proto::machine::{
    BootstrapRequest, FileInfo, ListRequest, LogsRequest, ReadRequest, RebootRequest, ResetPartitionSpec, ResetRequest,
    ShutdownRequest, reboot_request,
};
use talos_proto::spec::config::MachineConfigSpec;

use crate::apply::{Applied, Mode};
use crate::error::{Class, Error};
use crate::limits::{BOOTSTRAP, CONNECT, POWER, READ};
use crate::link::Link;
use crate::release::Release;
use crate::resource::{MachineStatus, Resource, Spec};
use crate::service::Service;
use crate::state::Watch;

/// The most of a file or a log that is read.
const READ_MAX: usize = 4 << 20;

/// What opens the machines of one cluster: its authority, and a client certificate that it signed.
#[derive(Clone)]
pub struct Access {
    env: Env,
    ca_pem: String,
    identity: Identity,
    /// What all machines are reached with: keys and certificates are parsed once, not for each of them.
    connector: Arc<Mutex<Option<Connector>>>,
    /// Machines that were asked before: a handshake costs more than all that is asked afterwards.
    known: Arc<Mutex<BTreeMap<Target, Node>>>,
}

/// One configured machine.
#[derive(Clone)]
pub struct Node {
    pub(crate) link: Link,
}

/// What came of a bootstrap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bootstrapped {
    /// etcd starts now. The call returns before it is healthy.
    Started,
    /// This machine has etcd data already.
    Already,
}

/// Which partitions a reset wipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wipe {
    /// The config and everything that runs: back to maintenance mode.
    Settings,
    /// Everything that runs, etcd's data included. The config stays.
    Ephemeral,
    /// The whole system disk. The machine needs another boot medium afterwards.
    Everything,
}

impl Access {
    /// `identity` needs the role os:admin. The key never leaves this value.
    pub fn new(env: &Env, ca_pem: String, identity: Identity) -> Self {
        Self {
            env: env.clone(),
            ca_pem,
            identity,
            connector: Arc::default(),
            known: Arc::default(),
        }
    }

    /// The machine at this address. Its certificate must be for exactly this host: every machine of the cluster has one from the
    /// same authority, so the name is what tells them apart.
    ///
    /// Callers that ask for the same machine share one connection, until it fails once. Ask again for each attempt: a machine that
    /// lost its power leaves a connection behind on which nothing ever comes.
    pub fn node(&self, at: &Target) -> Result<Node, Error> {
        let mut known = self.known.lock().expect("nothing panics while it holds the map");
        if let Some(node) = known.get(at).filter(|node| node.link.is_sound()) {
            return Ok(node.clone());
        }
        let node = self.named(at, None)?;
        known.insert(at.clone(), node.clone());
        Ok(node)
    }

    /// As [`Self::node`], where the address dialled is not the machine's own, as behind a forwarded port.
    pub fn node_known_as(&self, at: &Target, name: &str) -> Result<Node, Error> {
        self.named(at, Some(name.to_owned()))
    }

    /// The machine `node`, through the control plane at `endpoint`, from whose place in the network it is dialled.
    pub fn node_through(&self, endpoint: &Target, node: &str) -> Result<Node, Error> {
        Ok(Node {
            link: self.named(endpoint, None)?.link.onward(node)?,
        })
    }

    fn named(&self, at: &Target, server_name: Option<String>) -> Result<Node, Error> {
        let connector = match server_name {
            None => self.shared_connector(at)?,
            server_name => self.connector(at, server_name)?,
        };
        Ok(Node {
            link: Link::new(at, connector)?,
        })
    }

    fn shared_connector(&self, at: &Target) -> Result<Connector, Error> {
        let mut shared = self.connector.lock().expect("nothing panics while it holds the connector");
        if let Some(connector) = &*shared {
            return Ok(connector.clone());
        }
        Ok(shared.insert(self.connector(at, None)?).clone())
    }

    fn connector(&self, at: &Target, server_name: Option<String>) -> Result<Connector, Error> {
        let trust = Trust::Ca {
            ca_pem: self.ca_pem.clone(),
            identity: Some(self.identity.clone()),
            server_name,
        };
        let connector = Connector::new(self.env.dialer.clone(), &trust, self.env.wall, CONNECT);
        let connector = connector.map_err(|source| Error::Credentials { at: at.clone(), source })?;
        Ok(connector.with_alpn(Alpn::Http2))
    }
}

impl std::fmt::Debug for Access {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Access").finish_non_exhaustive()
    }
}

impl Link {
    pub(crate) async fn release(&self) -> Result<Release, Error> {
        let pending = self.call("Version", READ);
        let answer = pending.answer(self.machine().version(pending.request(()))).await?;
        let tag = pending.only(answer.messages)?.version.unwrap_or_default().tag;
        Release::of_tag(&tag).ok_or_else(|| pending.misread(format!("release `{tag}`")))
    }
}

impl Node {
    /// The address it is reached at.
    pub fn at(&self) -> &Target {
        self.link.at()
    }

    pub async fn release(&self) -> Result<Release, Error> {
        self.link.release().await
    }

    pub async fn get<S: Spec>(&self, id: &str) -> Result<Option<Resource<S>>, Error> {
        self.link.get(id).await
    }

    pub async fn list<S: Spec>(&self) -> Result<Vec<Resource<S>>, Error> {
        self.link.list().await
    }

    pub async fn watch<S: Spec>(&self, id: Option<&str>) -> Result<Watch<S>, Error> {
        self.link.watch(id).await
    }

    pub async fn status(&self) -> Result<Option<MachineStatus>, Error> {
        Ok(self.get::<MachineStatus>(MachineStatus::ID).await?.map(|found| found.spec))
    }

    /// The config in force, exactly as it was sent, with its version. `None` before the machine has one.
    pub async fn config(&self) -> Result<Option<(Option<u64>, Secret<String>)>, Error> {
        let got = self
            .link
            .get_encoded::<MachineConfigSpec>("config", "MachineConfigs.config.talos.dev", "v1alpha1")
            .await?;
        let Some((version, spec)) = got else { return Ok(None) };
        let text = String::from_utf8(spec.yaml_marshalled);
        let text = text.map_err(|_| self.link.call("Get", READ).misread("a machine config that is no text"))?;
        Ok(Some((version, Secret::new(text))))
    }

    pub async fn apply(&self, config: &Secret<String>, mode: Mode) -> Result<Applied, Error> {
        self.link.apply(config, mode, false).await
    }

    /// Has the machine judge a config without taking it.
    pub async fn judge(&self, config: &Secret<String>) -> Result<Vec<String>, Error> {
        self.link.judge(config).await
    }

    /// Starts etcd as a new cluster of one.
    ///
    /// Once in a cluster's life, on one machine. A second call on another machine makes a second cluster, and for a moment the same
    /// machine takes it twice: after an error whose outcome is unknown, look at the machine and never just call again.
    pub async fn bootstrap(&self) -> Result<Bootstrapped, Error> {
        let pending = self.link.call("Bootstrap", BOOTSTRAP);
        let answer = pending
            .answer(self.link.machine().bootstrap(pending.request(BootstrapRequest::default())))
            .await;
        match answer {
            Ok(_) => Ok(Bootstrapped::Started),
            Err(error) if error.class() == Some(Class::AlreadyDone) => Ok(Bootstrapped::Already),
            Err(error) => Err(error),
        }
    }

    /// Reboots without cordon or drain. The answer names the sequence in the events that follow.
    pub async fn reboot(&self) -> Result<String, Error> {
        self.reboot_as(reboot_request::Mode::Default).await
    }

    /// Reboots through the firmware, where the faster way hangs.
    pub async fn power_cycle(&self) -> Result<String, Error> {
        self.reboot_as(reboot_request::Mode::Powercycle).await
    }

    async fn reboot_as(&self, mode: reboot_request::Mode) -> Result<String, Error> {
        let pending = self.link.call("Reboot", POWER);
        let request = pending.request(RebootRequest { mode: mode.into() });
        let answer = pending.answer(self.link.machine().reboot(request)).await?;
        Ok(pending.only(answer.messages)?.actor_id)
    }

    /// Powers off; `force` without cordon and drain.
    pub async fn shutdown(&self, force: bool) -> Result<String, Error> {
        let pending = self.link.call("Shutdown", POWER);
        let answer = pending
            .answer(self.link.machine().shutdown(pending.request(ShutdownRequest { force })))
            .await?;
        Ok(pending.only(answer.messages)?.actor_id)
    }

    /// Wipes and reboots. `graceful` drains and leaves etcd first; where etcd does not let it go, nothing is wiped.
    pub async fn reset(&self, wipe: Wipe, graceful: bool) -> Result<String, Error> {
        let pending = self.link.call("Reset", POWER);
        let labels: &[&str] = match wipe {
            Wipe::Settings => &["STATE", "EPHEMERAL"],
            Wipe::Ephemeral => &["EPHEMERAL"],
            Wipe::Everything => &[],
        };
        let partitions = labels.iter().map(|label| ResetPartitionSpec {
            label: (*label).to_owned(),
            wipe: true,
        });
        let request = ResetRequest {
            graceful,
            reboot: true,
            system_partitions_to_wipe: partitions.collect(),
            ..Default::default()
        };
        let answer = pending.answer(self.link.machine().reset(pending.request(request))).await?;
        Ok(pending.only(answer.messages)?.actor_id)
    }

    pub async fn services(&self) -> Result<Vec<Service>, Error> {
        let pending = self.link.call("ServiceList", READ);
        let answer = pending.answer(self.link.machine().service_list(pending.request(()))).await?;
        Ok(pending
            .only(answer.messages)?
            .services
            .into_iter()
            .map(Service::from)
            .collect())
    }

    /// What is under a path, the path itself left out. `None` when there is no such path.
    pub async fn files(&self, path: &str) -> Result<Option<Vec<FileInfo>>, Error> {
        let pending = self.link.call("List", READ);
        let request = ListRequest {
            root: path.to_owned(),
            ..Default::default()
        };
        let listed = async {
            let stream = pending.answer(self.link.machine().list(pending.request(request))).await?;
            pending.collect(stream).await
        };
        match listed.await {
            Ok(files) => Ok(Some(files.into_iter().filter(|file| file.relative_name != ".").collect())),
            Err(error) if error.class() == Some(Class::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether etcd has ever run here: the question before a bootstrap. Its own calls would hang where it has not. A machine on its way
    /// down has its disk unmounted before its API goes, so what is not there then says nothing.
    pub async fn has_etcd_data(&self) -> Result<bool, Error> {
        if self.files("/var/lib/etcd").await?.is_some_and(|files| !files.is_empty()) {
            return Ok(true);
        }
        match self.status().await? {
            Some(status) if status.stage.is_going_down() => Err(Error::GoingDown {
                call: self.link.call("List", READ).name(),
                stage: status.stage,
            }),
            _ => Ok(false),
        }
    }

    /// Different after every boot: how a reboot is proven.
    pub async fn boot_id(&self) -> Result<String, Error> {
        let pending = self.link.call("Read", READ);
        let request = ReadRequest {
            path: "/proc/sys/kernel/random/boot_id".to_owned(),
        };
        let stream = pending.answer(self.link.machine().read(pending.request(request))).await?;
        Ok(text_of(pending.collect(stream).await?).trim().to_owned())
    }

    /// The last lines of a service's log.
    pub async fn log_tail(&self, service: &str, lines: u16) -> Result<String, Error> {
        let pending = self.link.call("Logs", READ);
        let request = LogsRequest {
            namespace: "system".to_owned(),
            id: service.to_owned(),
            tail_lines: i32::from(lines),
            ..Default::default()
        };
        let stream = pending.answer(self.link.machine().logs(pending.request(request))).await?;
        Ok(text_of(pending.collect(stream).await?))
    }

    /// Whether it answers at all, with a limit of the caller's.
    pub async fn answers_within(&self, limit: Duration) -> bool {
        self.answers(limit).await.is_ok()
    }

    pub(crate) async fn answers(&self, limit: Duration) -> Result<(), Error> {
        let pending = self.link.call("Version", limit);
        pending
            .answer(self.link.machine().version(pending.request(())))
            .await
            .map(drop)
    }
}

fn text_of(chunks: Vec<talos_proto::common::Data>) -> String {
    let mut bytes: Vec<u8> = chunks.into_iter().flat_map(|chunk| chunk.bytes).take(READ_MAX).collect();
    bytes.shrink_to_fit();
    String::from_utf8_lossy(&bytes).into_owned()
}
