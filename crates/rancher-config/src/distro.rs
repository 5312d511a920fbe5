//! The two distributions and what differs between them: names, paths, ports.

use std::fmt;

/// RKE2 or k3s. Both run the same supervisor code; they differ in names, ports and in how the control plane runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distro {
    Rke2,
    K3s,
}

/// What a machine does in the cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Runs etcd, the API server and the supervisor.
    Server,
    /// A worker.
    Agent,
}

impl Distro {
    pub const ALL: [Self; 2] = [Self::Rke2, Self::K3s];

    /// The name that paths, groups, annotations and units are made of.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rke2 => "rke2",
            Self::K3s => "k3s",
        }
    }

    /// Holds `config.yaml`, `registries.yaml` and `resolv.conf`.
    pub fn config_dir(self) -> String {
        format!("/etc/rancher/{}", self.name())
    }

    /// Holds the datastore, certificates and images.
    pub fn data_dir(self) -> String {
        format!("/var/lib/rancher/{}", self.name())
    }

    /// The directory whose files a server applies to the cluster.
    pub fn manifests_dir(self) -> String {
        format!("{}/server/manifests", self.data_dir())
    }

    /// Archives in this directory are imported into containerd at every start.
    pub fn images_dir(self) -> String {
        format!("{}/agent/images", self.data_dir())
    }

    pub fn binary(self) -> String {
        format!("/usr/local/bin/{}", self.name())
    }

    /// The administrator's kubeconfig that a server writes for itself. It points at the local API server.
    pub fn local_kubeconfig(self) -> String {
        format!("{}/{}.yaml", self.config_dir(), self.name())
    }

    pub const fn unit(self, role: Role) -> &'static str {
        match (self, role) {
            (Self::Rke2, Role::Server) => "rke2-server.service",
            (Self::Rke2, Role::Agent) => "rke2-agent.service",
            (Self::K3s, Role::Server) => "k3s.service",
            (Self::K3s, Role::Agent) => "k3s-agent.service",
        }
    }

    /// Where servers listen for joining machines. k3s serves the supervisor and the Kubernetes API on one port.
    pub const fn supervisor_port(self) -> u16 {
        match self {
            Self::Rke2 => 9345,
            Self::K3s => 6443,
        }
    }

    /// The prefix of the supervisor's paths: `/v1-rke2`, `/v1-k3s`.
    pub fn supervisor_path(self) -> String {
        format!("/v1-{}", self.name())
    }

    /// Host and port of an API server that answers on every machine, before any VIP or CNI works.
    ///
    /// RKE2 agents balance 6443 locally. On k3s the API server of a server and the balancer of an agent are both on loopback port 6444.
    pub const fn local_api(self) -> (&'static str, u16) {
        match self {
            Self::Rke2 => ("127.0.0.1", 6443),
            Self::K3s => ("127.0.0.1", 6444),
        }
    }

    /// Groups that open every path of the supervisor and of the Kubernetes API. Supervisor roles are exact, not nested: each is needed.
    pub fn supervisor_groups(self) -> [String; 3] {
        let name = self.name();
        [format!("{name}:server"), format!("{name}:agent"), "system:masters".to_owned()]
    }

    /// Set to `true` on a Node to ask for the removal of its etcd member.
    pub fn remove_annotation(self) -> String {
        format!("etcd.{}.cattle.io/remove", self.name())
    }

    /// The etcd member that was removed. Success is only: its value equals the member name seen before the request.
    pub fn removed_annotation(self) -> String {
        format!("etcd.{}.cattle.io/removed-node-name", self.name())
    }

    /// The name of the etcd member that runs on a Node.
    pub fn member_annotation(self) -> String {
        format!("etcd.{}.cattle.io/node-name", self.name())
    }

    /// The Secret in kube-system that binds a node name to the password in the guest. It goes away with the Node.
    pub fn node_password_secret(self, node: &str) -> String {
        format!("{node}.node-password.{}", self.name())
    }
}

impl fmt::Display for Distro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
