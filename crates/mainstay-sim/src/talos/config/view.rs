//! What follows from a config: role, names, addresses, authorities.

use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use serde_json::Value;

use super::decode::Config;
use crate::pki::{Authority, PkiError};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MachineType {
    ControlPlane,
    Worker,
}

impl MachineType {
    pub fn word(self) -> &'static str {
        match self {
            Self::ControlPlane => "controlplane",
            Self::Worker => "worker",
        }
    }
}

/// A network card as selectors see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Nic {
    pub name: String,
    /// Lower case.
    pub mac: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkAddress {
    pub link: String,
    pub address: IpNet,
}

static NOTHING: Value = Value::Null;

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

impl Config {
    pub fn machine(&self) -> &Value {
        self.v1alpha1().map_or(&NOTHING, |config| &config["machine"])
    }

    pub fn cluster(&self) -> &Value {
        self.v1alpha1().map_or(&NOTHING, |config| &config["cluster"])
    }

    pub fn machine_type(&self) -> MachineType {
        match self.machine()["type"].as_str() {
            Some("controlplane" | "init") => MachineType::ControlPlane,
            _ => MachineType::Worker,
        }
    }

    pub fn is_control_plane(&self) -> bool {
        self.machine_type() == MachineType::ControlPlane
    }

    pub fn cluster_name(&self) -> String {
        let named = self.cluster()["clusterName"].as_str().or_else(|| {
            self.of_kind("KubeClusterConfig")
                .find_map(|config| config["clusterName"].as_str())
        });
        named.unwrap_or_default().to_owned()
    }

    pub fn cluster_id(&self) -> String {
        self.cluster()["id"].as_str().unwrap_or_default().to_owned()
    }

    pub fn endpoint(&self) -> String {
        let own = self.cluster()["controlPlane"]["endpoint"].as_str();
        own.or_else(|| {
            self.of_kind("KubeClusterConfig")
                .find_map(|config| config["endpoint"].as_str())
        })
        .unwrap_or_default()
        .to_owned()
    }

    pub fn endpoint_host(&self) -> Option<String> {
        let url = url::Url::parse(&self.endpoint()).ok()?;
        Some(url.host_str()?.trim_matches(['[', ']']).to_owned())
    }

    pub fn discovery_enabled(&self) -> bool {
        let discovery = &self.cluster()["discovery"];
        let service = discovery["registries"]["service"]["disabled"] != true;
        discovery["enabled"] == true && service
    }

    /// The name this config gives; `None` leaves it to the platform.
    pub fn hostname(&self) -> Option<String> {
        let classic = self.machine()["network"]["hostname"].as_str();
        let named = classic.or_else(|| self.of_kind("HostnameConfig").find_map(|config| config["hostname"].as_str()));
        named.filter(|name| !name.is_empty()).map(str::to_owned)
    }

    pub fn uses_flannel(&self) -> bool {
        matches!(self.cluster()["network"]["cni"]["name"].as_str(), None | Some("flannel" | ""))
    }

    pub fn cni(&self) -> &str {
        self.cluster()["network"]["cni"]["name"]
            .as_str()
            .filter(|name| !name.is_empty())
            .unwrap_or("flannel")
    }

    pub fn pod_subnets(&self) -> Vec<IpNet> {
        nets(&self.cluster()["network"]["podSubnets"])
    }

    pub fn service_subnets(&self) -> Vec<IpNet> {
        nets(&self.cluster()["network"]["serviceSubnets"])
    }

    pub fn kubelet_image(&self) -> &str {
        self.machine()["kubelet"]["image"]
            .as_str()
            .unwrap_or("ghcr.io/siderolabs/kubelet:v1.36.4")
    }

    pub fn component_image(&self, section: &str, name: &str) -> String {
        let own = self.cluster()[section]["image"].as_str();
        own.map_or_else(|| format!("registry.k8s.io/{name}:{}", self.kubelet_tag()), str::to_owned)
    }

    /// `v1.36.4`
    /// The image of etcd: the config's, or what this Talos brings.
    pub fn etcd_image(&self) -> String {
        let own = self.cluster()["etcd"]["image"].as_str();
        own.unwrap_or("registry.k8s.io/etcd:v3.6.12").to_owned()
    }

    pub fn kubelet_tag(&self) -> String {
        self.kubelet_image()
            .rsplit_once(':')
            .map_or("v1.36.4", |(_, tag)| tag)
            .to_owned()
    }

    pub fn apiserver_tag(&self) -> String {
        self.component_image("apiServer", "kube-apiserver")
            .rsplit_once(':')
            .map_or("v1.36.4", |(_, tag)| tag)
            .to_owned()
    }

    pub fn node_labels(&self) -> &Value {
        &self.machine()["nodeLabels"]
    }

    pub fn node_taints(&self) -> &Value {
        &self.machine()["nodeTaints"]
    }

    /// `registerWithTaints` of the kubelet.
    pub fn registered_taints(&self) -> Vec<Value> {
        list(&self.machine()["kubelet"]["extraConfig"]["registerWithTaints"])
            .cloned()
            .collect()
    }

    pub fn schedules_on_control_planes(&self) -> bool {
        self.cluster()["allowSchedulingOnControlPlanes"] == true
    }

    pub fn time_disabled(&self) -> bool {
        self.machine()["time"]["disabled"] == true || self.of_kind("TimeSyncConfig").any(|config| config["enabled"] == false)
    }

    pub fn cert_sans(&self) -> Vec<String> {
        list(&self.machine()["certSANs"])
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect()
    }

    pub fn apiserver_cert_sans(&self) -> Vec<String> {
        list(&self.cluster()["apiServer"]["certSANs"])
            .filter_map(|name| Some(name.as_str()?.to_owned()))
            .collect()
    }

    /// Addresses this config gives to the machine's own cards.
    pub fn addresses(&self, nics: &[Nic]) -> Vec<LinkAddress> {
        let mut found = Vec::new();
        for interface in list(&self.machine()["network"]["interfaces"]) {
            let Some(link) = nics.iter().find(|nic| selects(interface, nic)) else {
                continue;
            };
            let own = list(&interface["addresses"])
                .filter_map(Value::as_str)
                .chain(interface["cidr"].as_str());
            found.extend(own.filter_map(|text| {
                Some(LinkAddress {
                    link: link.name.clone(),
                    address: text.parse().ok()?,
                })
            }));
        }
        for document in self.of_kind("LinkConfig") {
            let Some(link) = document["name"].as_str().and_then(|name| self.link_by_name(name, nics)) else {
                continue;
            };
            let own = list(&document["addresses"]).filter_map(|entry| entry["address"].as_str());
            found.extend(own.filter_map(|text| {
                Some(LinkAddress {
                    link: link.name.clone(),
                    address: text.parse().ok()?,
                })
            }));
        }
        found
    }

    /// A card by its own name or by an alias whose selector names its MAC.
    fn link_by_name<'a>(&self, name: &str, nics: &'a [Nic]) -> Option<&'a Nic> {
        let alias = self.of_kind("LinkAliasConfig").find(|document| document["name"] == name);
        match alias.and_then(|alias| alias["selector"]["match"].as_str()) {
            Some(selector) => nics.iter().find(|nic| selector.to_ascii_lowercase().contains(&nic.mac)),
            None => nics.iter().find(|nic| nic.name == name),
        }
    }

    /// Shared addresses that control planes elect an owner for, with their links.
    pub fn vips(&self, nics: &[Nic]) -> Vec<(IpAddr, String)> {
        let mut found = Vec::new();
        for interface in list(&self.machine()["network"]["interfaces"]) {
            if let (Some(ip), Some(link)) = (
                interface["vip"]["ip"].as_str(),
                nics.iter().find(|nic| selects(interface, nic)),
            ) {
                found.extend(ip.parse().ok().map(|ip| (ip, link.name.clone())));
            }
        }
        for document in self.of_kind("Layer2VIPConfig") {
            let link = document["link"].as_str().and_then(|link| self.link_by_name(link, nics));
            if let (Some(ip), Some(link)) = (document["name"].as_str().and_then(|name| name.parse().ok()), link) {
                found.push((ip, link.name.clone()));
            }
        }
        found
    }

    /// The PEM text of a certificate or key, which configs carry in base64.
    fn pem(section: &Value, field: &str) -> Option<String> {
        let bytes = STANDARD
            .decode(section[field].as_str().filter(|text| !text.is_empty())?)
            .ok()?;
        String::from_utf8(bytes).ok()
    }

    pub fn os_ca(&self) -> Option<String> {
        Self::pem(&self.machine()["ca"], "crt")
    }

    pub fn kubernetes_ca(&self) -> Option<String> {
        Self::pem(&self.cluster()["ca"], "crt")
    }

    /// OS authorities that client certificates may come from.
    pub fn accepted_cas(&self) -> Vec<String> {
        let further = list(&self.machine()["acceptedCAs"]).filter_map(|ca| Self::pem(ca, "crt"));
        self.os_ca().into_iter().chain(further).collect()
    }

    pub fn os_authority(&self) -> Result<Authority, PkiError> {
        let section = &self.machine()["ca"];
        Authority::read(
            &Self::pem(section, "crt").ok_or(PkiError::Certificate)?,
            &Self::pem(section, "key").ok_or(PkiError::Key)?,
        )
    }

    pub fn kubernetes_authority(&self) -> Result<Authority, PkiError> {
        let section = &self.cluster()["ca"];
        Authority::read(
            &Self::pem(section, "crt").ok_or(PkiError::Certificate)?,
            &Self::pem(section, "key").ok_or(PkiError::Key)?,
        )
    }

    pub fn machine_token(&self) -> &str {
        self.machine()["token"].as_str().unwrap_or_default()
    }
}

fn selects(interface: &Value, nic: &Nic) -> bool {
    if let Some(name) = interface["interface"].as_str() {
        return name == nic.name;
    }
    let selector = &interface["deviceSelector"];
    let mac = selector["hardwareAddr"]
        .as_str()
        .or_else(|| selector["permanentAddr"].as_str());
    match mac {
        Some(mac) => mac.eq_ignore_ascii_case(&nic.mac),
        None => selector["physical"] == true || !selector["driver"].is_null() || !selector["busPath"].is_null(),
    }
}

fn nets(value: &Value) -> Vec<IpNet> {
    list(value).filter_map(|net| net.as_str()?.parse().ok()).collect()
}
