//! The life of `rke2 server` and `k3s server`.

use std::sync::Arc;
use std::time::Duration;

use rand::Rng;
use tokio::time::Instant;

use super::cluster::{Bootstrap, Cluster, EtcdData, spawn_tick};
use super::config::{Config, Token};
use super::supervisor::{Phase, View, api_server};
use super::{Binary, Distro, agent, controllers, node, tls};
use crate::cloud::fs::Credentials;
use crate::cloud::host::Host;
use crate::cloud::shell::Process;
use crate::talos::etcd::EtcdError;
use crate::talos::objects;

/// When things happen on a first server, from the start of its process. Seen on k3s; RKE2 pulls and starts pods before.
const LISTENS: Duration = Duration::from_millis(600);
const STARTING: Duration = Duration::from_millis(300);
const ETCD_STARTS: Duration = Duration::from_millis(1200);
const DATA_READABLE: Duration = Duration::from_millis(2800);
const BOOTSTRAP_SAVED: Duration = Duration::from_millis(4300);
const ETCD_ANSWERS: Duration = Duration::from_millis(5200);
/// From an etcd that answers.
const API_ANSWERS: Duration = Duration::from_millis(1400);
const NAMESPACES: Duration = Duration::from_millis(1500);
const API_READY: Duration = Duration::from_millis(4300);
const NOTIFIES: Duration = Duration::from_millis(300);
const SUPERVISOR_READY: Duration = Duration::from_millis(900);
/// A controller that lost its lease ends the process.
const EXITS_WITHOUT_QUORUM: Duration = Duration::from_secs(11);
const EXITS_WHEN_REMOVED: Duration = Duration::from_secs(12);

pub(super) struct Server {
    host: Arc<Host>,
    process: Process,
    binary: Binary,
    config: Config,
    view: Arc<View>,
    began: Instant,
}

/// Ends what belongs to the process, however it ends.
struct Guard(Arc<Host>, Distro);

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.runtime.process_ended(&self.0, self.1);
    }
}

pub(super) async fn run(process: Process, binary: Binary, flags: &[String]) -> i32 {
    let host = Arc::clone(&process.host);
    let config = match Config::read(&host, binary.distro, flags) {
        Ok(config) => config,
        Err(error) => return fatal(&process, &error),
    };
    let view = View::new(&host, &binary, &config);
    let _guard = Guard(Arc::clone(&host), binary.distro);
    let server = Server {
        host,
        process: process.clone(),
        binary,
        config,
        view,
        began: Instant::now(),
    };
    match server.live().await {
        Ok(status) => status,
        Err(error) => fatal(&process, &error),
    }
}

pub(super) fn fatal(process: &Process, error: &str) -> i32 {
    process.complain(format!("level=fatal msg=\"Error: {error}\""));
    1
}

type Outcome<T> = Result<T, String>;

impl Server {
    fn log(&self, text: &str) {
        self.process.complain(format!("level=info msg=\"{text}\""));
    }

    fn path(&self, rest: &str) -> String {
        format!("{}/server/{rest}", self.binary.distro.data())
    }

    /// Until a moment of this process's life.
    async fn reach(&self, moment: Duration) {
        let since = self.host.site.pace.scale(moment);
        tokio::time::sleep_until(self.began + since).await;
    }

    async fn live(&self) -> Outcome<i32> {
        let distro = self.binary.distro;
        if self.config.is_set("cluster-reset") && self.config.text("server").is_some() {
            return Err(
                "cannot perform cluster-reset while server URL is set - remove server from configuration before resetting"
                    .to_owned(),
            );
        }
        self.log(&format!("Starting {} {} (5aed4d7b)", distro.name(), self.binary.version));
        if distro == Distro::Rke2 {
            self.host.pass(self.host.timing().runtime_image).await;
        }
        let begin = Self {
            began: Instant::now(),
            ..self.again()
        };
        begin.after_images().await
    }

    fn again(&self) -> Self {
        Self {
            host: Arc::clone(&self.host),
            process: self.process.clone(),
            binary: self.binary.clone(),
            config: self.config.clone(),
            view: Arc::clone(&self.view),
            began: self.began,
        }
    }

    async fn after_images(&self) -> Outcome<i32> {
        self.remove_by_tombstone()?;
        let data = self
            .host
            .fs
            .attached::<EtcdData>(&self.path("db/etcd/member/snap/db"))
            .map(|data| (*data).clone());
        let data = match data {
            Some(data) => self.restart(data).await?,
            None => match self.config.text("server") {
                Some(url) if self.config.token(&self.host).is_some() => self.join(&url).await?,
                Some(_) if self.binary.distro == Distro::Rke2 => return Err("token is required to join a cluster".to_owned()),
                // k3s takes `server` without a token for a new cluster of its own.
                Some(_) => self.found(true).await?,
                None => {
                    let sqlite = self.binary.distro == Distro::K3s && !self.config.is_set("cluster-init");
                    self.found(sqlite).await?
                }
            },
        };
        self.serve(data).await
    }

    /// A member that was removed while it ran begins anew, if it knows whom to ask.
    fn remove_by_tombstone(&self) -> Outcome<()> {
        if !self.host.fs.exists(&self.path("db/etcd/tombstone")) {
            return Ok(());
        }
        if self.config.text("server").is_none() {
            return Err(
                "tombstone file has been detected but --server is empty: remove ${datadir}/server/db manually".to_owned(),
            );
        }
        self.log("tombstone file has been detected, removing ${datadir}/server/db to rejoin the cluster");
        let _ = self.host.fs.remove_all(Credentials::ROOT, &self.path("db"));
        Ok(())
    }

    /// The supervisor answers, with the authorities it will serve by.
    async fn open(&self, bootstrap: &Bootstrap) -> Outcome<()> {
        self.write_files(bootstrap);
        {
            let mut state = self.view.state.lock().expect("plain data");
            state.authorities = Some(bootstrap.authorities.clone());
            state.server_password = bootstrap.server_password.clone();
            state.agent_password = bootstrap.agent_password.clone();
        }
        self.reach(LISTENS).await;
        let distro = self.binary.distro;
        let options =
            tls::serving(&self.host, distro, &self.config, &bootstrap.authorities).ok_or("failed to generate certificates")?;
        let api = (distro == Distro::K3s).then(|| api_server(&self.host, &self.binary));
        self.host.runtime.set_view(Some(Arc::clone(&self.view)));
        self.host
            .runtime
            .listen(&self.host, distro.supervisor_port(), self.view.router(api), options)
            .await;
        let view = Arc::clone(&self.view);
        let pause = self.host.site.pace.scale(STARTING);
        self.host.spawn(async move {
            tokio::time::sleep(pause).await;
            if view.phase() == Phase::Starting {
                view.reach(Phase::Listening);
            }
        });
        Ok(())
    }

    fn write_files(&self, bootstrap: &Bootstrap) {
        let (host, distro, now) = (&self.host, self.binary.distro, self.host.now());
        tls::write(host, distro, &bootstrap.authorities);
        let hash = tls::hash(&bootstrap.authorities);
        host.fs.install(
            &self.path("token"),
            format!("K10{hash}::server:{}\n", bootstrap.server_password),
            0o600,
            now,
        );
        let name = distro.name();
        let passwd = format!(
            "{},node,node,{name}:agent\n{},server,server,{name}:server\n",
            bootstrap.agent_password, bootstrap.server_password
        );
        host.fs.install(&self.path("cred/passwd"), passwd, 0o600, now);
        let kubeconfig =
            "apiVersion: v1\nkind: Config\nclusters:\n- cluster:\n    server: https://127.0.0.1:6443\n  name: default\n";
        host.fs
            .install(&format!("/etc/rancher/{name}/{name}.yaml"), kubeconfig, 0o600, now);
        host.fs.install(&self.path("manifests/.keep"), "", 0o600, now);
    }

    fn random_hex(&self, what: &str, bytes: usize) -> String {
        let mut random = vec![0; bytes];
        let serial = self.host.site.next_serial();
        self.host
            .entropy
            .fork(&format!("{what} {serial}"))
            .rng()
            .fill_bytes(&mut random);
        hex::encode(random)
    }

    fn member_name(&self) -> String {
        format!("{}-{}", self.config.node_name(&self.host), self.random_hex("member", 4))
    }

    fn own_bootstrap(&self) -> Bootstrap {
        let token = self.config.token(&self.host).unwrap_or_else(|| Token {
            ca_hash: None,
            password: self.random_hex("token", 16),
        });
        let agent = self.config.text("agent-token").map(|text| Token::parse(&text).password);
        Bootstrap {
            authorities: tls::complete(&self.host, self.binary.distro),
            agent_password: agent.unwrap_or_else(|| token.password.clone()),
            server_password: token.password,
        }
    }

    async fn found(&self, is_sqlite: bool) -> Outcome<EtcdData> {
        let bootstrap = self.own_bootstrap();
        self.open(&bootstrap).await?;
        self.reach(ETCD_STARTS).await;
        let address = self.host.address().ok_or("no default routes found in \"/proc/net/route\"")?;
        let name = self.member_name();
        let (cluster, member) = Cluster::found(&self.host.site, self.binary.distro, &name, address, is_sqlite);
        let data = EtcdData { cluster, member };
        self.keep(&data, &name);
        self.reach(DATA_READABLE).await;
        self.host.runtime.start_etcd(&self.host, &data, &name);
        data.cluster.lock().is_readable = true;
        self.reach(BOOTSTRAP_SAVED).await;
        // From here on a kill leaves a server that can start again.
        self.log("Saving cluster bootstrap data to datastore");
        data.cluster.lock().bootstrap = Some(bootstrap);
        spawn_tick(&data.cluster);
        self.reach(ETCD_ANSWERS).await;
        Ok(data)
    }

    fn keep(&self, data: &EtcdData, name: &str) {
        let now = self.host.now();
        self.host
            .fs
            .attach(&self.path("db/etcd/member/snap/db"), Arc::new(data.clone()), now);
        self.host.fs.install(&self.path("db/etcd/name"), name.to_owned(), 0o600, now);
        if data.cluster.is_sqlite {
            self.host.fs.install(&self.path("db/state.db"), "", 0o600, now);
        }
    }

    async fn restart(&self, data: EtcdData) -> Outcome<EtcdData> {
        let saved = data.cluster.lock().bootstrap.clone();
        let Some(saved) = saved else {
            self.reach(LISTENS).await;
            let text = if data.cluster.lock().is_readable {
                "no bootstrap data found in datastore - check server token value and verify datastore integrity"
            } else {
                "failed to reconcile with local datastore: failed to create temporary datastore client: failed to read consistent index"
            };
            return Err(format!("preparing server: {text}"));
        };
        if self
            .config
            .token(&self.host)
            .is_some_and(|token| token.password != saved.server_password)
        {
            self.reach(LISTENS).await;
            return Err("preparing server: failed to bootstrap cluster data: bootstrap data already found and encrypted with different token".to_owned());
        }
        self.log("Managed etcd cluster bootstrap already complete and initialized");
        self.open(&saved).await?;
        let name = self.host.fs.text(&self.path("db/etcd/name")).unwrap_or_default();
        self.reach(ETCD_STARTS).await;
        if data.cluster.etcd.member(data.member).is_none() {
            self.log("the member has been permanently removed from the cluster");
            self.host.runtime.start_etcd(&self.host, &data, &name);
            return std::future::pending().await;
        }
        self.host.runtime.start_etcd(&self.host, &data, &name);
        self.reach(DATA_READABLE).await;
        self.wait_for_vote(&data).await;
        Ok(data)
    }

    async fn join(&self, url: &str) -> Outcome<EtcdData> {
        let token = self.config.token(&self.host).ok_or("token is required to join a cluster")?;
        let target = agent::find_server(&self.host, self.binary.distro, url)
            .ok_or_else(|| format!("failed to validate token: failed to get CA certs: Get \\\"{url}/cacerts\\\": dial tcp: connect: connection refused"))?;
        let known = target.state();
        let authorities = known
            .authorities
            .clone()
            .ok_or("failed to bootstrap cluster data: 503 Service Unavailable: starting")?;
        agent::check_ca(&token, &authorities)?;
        self.reach(Duration::from_millis(300)).await;
        if token.password != known.server_password {
            return Err("preparing server: failed to bootstrap cluster data: not authorized".to_owned());
        }
        let own = self.own_bootstrap();
        // The values are compared as user `node`: with another agent token nothing can be compared.
        if own.agent_password == known.agent_password {
            self.compare(&target.config.critical(self.binary.distro))?;
        } else {
            self.log("Skipping cluster configuration validation: not authorized");
        }
        let bootstrap = Bootstrap { authorities, ..own };
        self.open(&bootstrap).await?;
        self.reach(Duration::from_secs(3)).await;
        let data = self.become_learner(&target).await?;
        self.wait_for_vote(&data).await;
        Ok(data)
    }

    fn compare(&self, theirs: &[(&'static str, String)]) -> Outcome<()> {
        let own = self.config.critical(self.binary.distro);
        let differing: Vec<&str> = own
            .iter()
            .zip(theirs)
            .filter(|(own, theirs)| own.1 != theirs.1)
            .map(|(own, _)| own.0)
            .collect();
        if differing.is_empty() {
            return Ok(());
        }
        differing.iter().for_each(|key| {
            self.process
                .complain(format!("level=error msg=\"critical configuration mismatched: {key}\""));
        });
        Err(
            "preparing server: failed to validate server configuration: critical configuration value mismatch between servers"
                .to_owned(),
        )
    }

    async fn become_learner(&self, target: &View) -> Outcome<EtcdData> {
        let address = self.host.address().ok_or("no address")?;
        let prefix = format!("{}-", self.config.node_name(&self.host));
        loop {
            tokio::time::sleep(self.host.site.pace.scale(Duration::from_secs(1))).await;
            let Some(other) = target.host.upgrade().and_then(|host| host.runtime.etcd()) else {
                continue;
            };
            let cluster = other.cluster;
            let duplicate = |name: &str| {
                name.strip_prefix(&prefix)
                    .is_some_and(|rest| rest.len() == 8 && !rest.contains('-'))
            };
            if cluster.etcd.members().iter().any(|member| duplicate(&member.name)) {
                return Err("Shutdown request received: \\\"etcd cluster join failed: duplicate node name found, please use a unique name for this node\\\"".to_owned());
            }
            let name = self.member_name();
            match cluster.etcd.add_learner(other.member, &name, address, false) {
                Ok(member) => {
                    self.log(&format!("Adding member {name}=https://{address}:2380 to etcd cluster"));
                    let data = EtcdData { cluster, member };
                    data.cluster.lock().added.insert(member, Instant::now());
                    self.keep(&data, &name);
                    self.host.runtime.start_etcd(&self.host, &data, &name);
                    return Ok(data);
                }
                Err(error @ (EtcdError::TooManyLearners | EtcdError::NoLeader)) => {
                    self.log(&format!("Waiting for other members to finish joining etcd cluster: {error}"));
                }
                Err(error) => self.log(&format!("Failed to join etcd cluster: {error}")),
            }
        }
    }

    /// Catches up with the leader, and waits for its vote and for a majority.
    async fn wait_for_vote(&self, data: &EtcdData) {
        let mut changed = data.cluster.etcd.watch();
        tokio::time::sleep(self.host.site.pace.scale(Duration::from_secs(1))).await;
        loop {
            changed.mark_unchanged();
            let member = data.cluster.etcd.member(data.member);
            let leader = data.cluster.etcd.leader_of(data.member);
            if member.is_some_and(|member| member.learner) && leader.is_some() {
                data.cluster.lock().caught_up.insert(data.member);
            } else if leader.is_some() {
                return;
            }
            let again = Duration::from_secs(1);
            let _ = tokio::time::timeout(again, changed.changed()).await;
        }
    }

    /// From an etcd with a leader to the end of the process.
    async fn serve(&self, data: EtcdData) -> Outcome<i32> {
        let (host, distro) = (&self.host, self.binary.distro);
        self.view.reach(Phase::Etcd);
        host.pass(API_ANSWERS).await;
        if distro == Distro::Rke2 && !host.runtime.serves_api() {
            host.pass(host.timing().static_pods).await;
            let authorities = self.view.state().authorities.unwrap_or_default();
            let options = tls::serving(host, distro, &self.config, &authorities).ok_or("failed to generate certificates")?;
            let app = self.view.api_router(api_server(host, &self.binary));
            host.runtime.listen(host, 6443, app, options).await;
        }
        host.runtime.set_api(true);
        self.view.reach(Phase::Api);
        host.pass(NAMESPACES).await;
        objects::found_cluster(data.cluster.store(), &objects::now(host.site.wall));
        controllers::watch_over(&host.site, &data.cluster);
        host.pass(API_READY).await;
        self.view.reach(Phase::ApiReady);
        host.pass(NOTIFIES).await;
        if let Some(ready) = &self.process.ready {
            ready.send_replace(true);
        }
        let settle = async {
            host.pass(SUPERVISOR_READY).await;
            self.view.reach(Phase::Ready);
            controllers::deploy_packaged(host, distro, &self.config, &data.cluster);
            if !self.config.is_set("disable-agent") {
                node::run(host, &self.binary, &self.config, &data.cluster, Some(&data)).await;
            }
            std::future::pending::<i32>().await
        };
        tokio::select! {
            biased;
            status = self.until_lost(&data) => Ok(status),
            status = settle => Ok(status),
        }
    }

    /// Waits for the loss that ends this process.
    async fn until_lost(&self, data: &EtcdData) -> i32 {
        let etcd = &data.cluster.etcd;
        let mut changed = etcd.watch();
        let mut alone_since: Option<Instant> = None;
        loop {
            changed.mark_unchanged();
            if etcd.member(data.member).is_none() {
                tokio::time::sleep(EXITS_WHEN_REMOVED).await;
                if self.binary.distro == Distro::K3s {
                    self.host
                        .fs
                        .install(&self.path("db/etcd/tombstone"), "", 0o600, self.host.now());
                }
                self.process.complain(
                    "level=fatal msg=\"this node has been removed from the cluster please restart k3s to rejoin the cluster\"",
                );
                return 1;
            }
            if etcd.leader_of(data.member).is_some() {
                alone_since = None;
                let mut state = data.cluster.lock();
                state.lease_holder.get_or_insert(data.member);
            } else {
                let since = *alone_since.get_or_insert_with(Instant::now);
                let holder = data.cluster.lock().lease_holder == Some(data.member);
                if holder && self.binary.distro == Distro::K3s && since.elapsed() >= EXITS_WITHOUT_QUORUM {
                    self.process.complain("level=fatal msg=\"leaderelection lost for k3s\"");
                    return 1;
                }
            }
            let _ = tokio::time::timeout(Duration::from_secs(1), changed.changed()).await;
        }
    }
}
