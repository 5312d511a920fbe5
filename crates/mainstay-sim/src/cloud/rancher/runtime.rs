//! What of RKE2 or k3s runs on a machine at this moment.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};

use axum::Router;
use mainstay_net::ServeOptions;
use tokio::task::AbortHandle;

use super::Distro;
use super::cluster::{Cluster, EtcdData};
use super::supervisor::View;
use crate::cloud::host::Host;

#[derive(Default)]
pub(crate) struct Runtime(Mutex<Inner>);

#[derive(Default)]
struct Inner {
    view: Option<Arc<View>>,
    etcd: Option<EtcdData>,
    api: bool,
    kubelet: Option<(Arc<Cluster>, String)>,
    sockets: Vec<Socket>,
    /// Listeners by address and port.
    listeners: BTreeMap<SocketAddr, AbortHandle>,
}

struct Socket {
    port: u16,
    app: Router,
    options: ServeOptions,
}

impl Runtime {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().expect("plain data")
    }

    pub fn view(&self) -> Option<Arc<View>> {
        self.lock().view.clone()
    }

    pub fn set_view(&self, view: Option<Arc<View>>) {
        self.lock().view = view;
    }

    pub fn etcd(&self) -> Option<EtcdData> {
        self.lock().etcd.clone()
    }

    pub fn serves_api(&self) -> bool {
        self.lock().api
    }

    pub fn set_api(&self, serves: bool) {
        self.lock().api = serves;
    }

    pub fn kubelet(&self) -> Option<(Arc<Cluster>, String)> {
        self.lock().kubelet.clone()
    }

    pub fn set_kubelet(&self, kubelet: Option<(Arc<Cluster>, String)>) {
        self.lock().kubelet = kubelet;
    }

    /// The process of etcd runs.
    pub fn start_etcd(&self, host: &Arc<Host>, data: &EtcdData, name: &str) {
        self.lock().etcd = Some(data.clone());
        if let Some(address) = host.address() {
            data.cluster.etcd.start(data.member, name, address);
        }
    }

    pub fn stop_etcd(&self) {
        let data = {
            let mut inner = self.lock();
            inner.api = false;
            inner.etcd.take()
        };
        if let Some(data) = data {
            data.cluster.etcd.stop(data.member);
            let mut state = data.cluster.lock();
            if state.lease_holder == Some(data.member) {
                state.lease_holder = None;
            }
        }
    }

    /// Serves on a port of every address of the machine, also on those that come later.
    pub async fn listen(&self, host: &Arc<Host>, port: u16, app: Router, options: ServeOptions) {
        self.lock().sockets.push(Socket { port, app, options });
        for address in host.addresses() {
            self.listen_on(host, address).await;
        }
    }

    pub async fn listen_on(&self, host: &Arc<Host>, address: IpAddr) {
        let sockets: Vec<(SocketAddr, Router, ServeOptions)> = {
            let inner = self.lock();
            let wanted = inner
                .sockets
                .iter()
                .map(|socket| (SocketAddr::new(address, socket.port), socket));
            let missing = wanted.filter(|(at, _)| !inner.listeners.contains_key(at));
            missing
                .map(|(at, socket)| (at, socket.app.clone(), socket.options.clone()))
                .collect()
        };
        for (at, app, options) in sockets {
            let Ok(listener) = host.site.network.bind(at).await else {
                continue;
            };
            let task = host.spawn(async move { drop(mainstay_net::serve(listener, app, options).await) });
            self.lock().listeners.insert(at, task.abort_handle());
        }
    }

    pub fn close_address(&self, address: IpAddr) {
        self.close(|at| at.ip() == address);
    }

    fn close(&self, which: impl Fn(&SocketAddr) -> bool) {
        self.lock().listeners.retain(|at, task| {
            let closed = which(at);
            if closed {
                task.abort();
            }
            !closed
        });
    }

    /// The main process is gone. On RKE2 etcd and API server are static pods, which stay.
    pub fn process_ended(&self, host: &Arc<Host>, distro: Distro) {
        {
            let mut inner = self.lock();
            inner.view = None;
            inner.kubelet = None;
            let gone = |port: u16| distro == Distro::K3s || port == Distro::Rke2.supervisor_port();
            inner.sockets.retain(|socket| !gone(socket.port));
        }
        self.close(|at| distro == Distro::K3s || at.port() == Distro::Rke2.supervisor_port());
        if distro == Distro::K3s {
            self.stop_etcd();
        }
        host.site
            .cloud
            .clusters
            .all()
            .iter()
            .for_each(|cluster| cluster.etcd.review());
    }

    /// `rke2-killall.sh`, or the end of the machine.
    pub fn kill_all(&self) {
        self.lock().sockets.clear();
        self.close(|_| true);
        self.stop_etcd();
        let mut inner = self.lock();
        (inner.view, inner.kubelet) = (None, None);
    }

    pub fn power_lost(&self, _host: &Arc<Host>) {
        self.kill_all();
    }

    pub fn open_ports(&self) -> Vec<u16> {
        let inner = self.lock();
        let mut ports: Vec<u16> = inner.listeners.keys().map(SocketAddr::port).collect();
        if inner.etcd.is_some() {
            ports.extend([2379, 2380]);
        }
        if inner.kubelet.is_some() {
            ports.push(10250);
        }
        ports.sort_unstable();
        ports.dedup();
        ports
    }

    /// Components that run as processes of their own.
    pub fn processes(&self) -> Vec<String> {
        let inner = self.lock();
        let separate = inner.etcd.as_ref().is_some_and(|data| data.cluster.distro == Distro::Rke2);
        let mut list = Vec::new();
        if separate {
            list.push("etcd --config-file=/var/lib/rancher/rke2/server/db/etcd/config".to_owned());
            if inner.api {
                list.push("kube-apiserver --advertise-port=6443".to_owned());
            }
        }
        list
    }
}
