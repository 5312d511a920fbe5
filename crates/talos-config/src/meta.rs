//! META: small values that an image or a node keeps outside its machine config.

use std::io::Write;
use std::net::IpAddr;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ipnet::IpNet;
use serde_json::{Value, json};

use crate::yaml::{self, Node};

/// The network configuration of a metal image, read before any machine config.
pub const NETWORK_KEY: u8 = 10;

/// Values longer than this are compressed on the kernel command line.
const COMPRESS_ABOVE: usize = 256;

const IPV4_PRIORITY: u32 = 1024;
const IPV6_PRIORITY: u32 = 2048;

/// The static network of one machine's first boot.
#[derive(Debug, Clone, PartialEq)]
pub struct MetaNetwork {
    pub link: String,
    pub addresses: Vec<IpNet>,
    pub gateways: Vec<IpAddr>,
    pub nameservers: Vec<IpAddr>,
    pub time_servers: Vec<String>,
    pub hostname: Option<String>,
}

impl MetaNetwork {
    /// The value of META key 10.
    pub fn to_yaml(&self) -> String {
        let mut root = json!({
            "addresses": self.addresses.iter().map(|address| self.address(address)).collect::<Vec<_>>(),
            // Without its own entry the link would keep its default DHCP beside the static address.
            "links": [{ "name": self.link, "logical": false, "up": true, "mtu": 0, "layer": "platform" }],
            "routes": self.gateways.iter().map(|gateway| self.route(gateway)).collect::<Vec<_>>(),
        });
        if let Some(hostname) = &self.hostname {
            root["hostnames"] = json!([{ "hostname": hostname, "domainname": "", "layer": "platform" }]);
        }
        if !self.nameservers.is_empty() {
            root["resolvers"] = json!([{ "dnsServers": self.nameservers, "layer": "platform" }]);
        }
        if !self.time_servers.is_empty() {
            root["timeServers"] = json!([{ "timeServers": self.time_servers, "layer": "platform" }]);
        }
        yaml::emit(&Node::from(root))
    }

    fn address(&self, address: &IpNet) -> Value {
        json!({
            "address": address.to_string(),
            "linkName": self.link,
            "family": family(address.addr()),
            "scope": "global",
            "flags": "permanent",
            "layer": "platform",
        })
    }

    fn route(&self, gateway: &IpAddr) -> Value {
        json!({
            "family": family(*gateway),
            "dst": "",
            "src": "",
            "gateway": gateway.to_string(),
            "outLinkName": self.link,
            "table": "main",
            "priority": if gateway.is_ipv4() { IPV4_PRIORITY } else { IPV6_PRIORITY },
            "scope": "global",
            "type": "unicast",
            "flags": "",
            "protocol": "static",
            "layer": "platform",
        })
    }
}

fn family(address: IpAddr) -> &'static str {
    if address.is_ipv4() { "inet4" } else { "inet6" }
}

/// Why values cannot travel on a kernel command line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the value of META key {key} holds a semicolon, which separates values on the kernel command line")]
pub struct MetaError {
    pub key: u8,
}

/// The kernel argument that carries META values into an ISO or a network boot.
pub fn kernel_argument(values: &[(u8, &str)]) -> Result<String, MetaError> {
    if let Some((key, _)) = values.iter().find(|(_, value)| value.contains(';')) {
        return Err(MetaError { key: *key });
    }
    let entries: Vec<String> = values.iter().map(|(key, value)| format!("0x{key:x}={value}")).collect();
    let joined = entries.join(";");
    let bytes = if joined.len() > COMPRESS_ABOVE {
        gzip(joined.as_bytes())
    } else {
        joined.into_bytes()
    };
    Ok(format!("talos.environment=INSTALLER_META_BASE64={}", STANDARD.encode(bytes)))
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::GzBuilder::new()
        .mtime(0)
        .write(Vec::new(), flate2::Compression::best());
    encoder
        .write_all(bytes)
        .and_then(|()| encoder.finish())
        .expect("writing to memory does not fail")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_values_travel_as_they_are() {
        let argument = kernel_argument(&[(10, "a: b"), (12, "x")]).unwrap();
        let encoded = argument.strip_prefix("talos.environment=INSTALLER_META_BASE64=").unwrap();
        assert_eq!(STANDARD.decode(encoded).unwrap(), b"0xa=a: b;0xc=x");
    }

    #[test]
    fn long_values_travel_compressed_and_always_the_same_way() {
        let value = "x".repeat(1000);
        let argument = kernel_argument(&[(10, &value)]).unwrap();
        let bytes = STANDARD.decode(argument.split_once("BASE64=").unwrap().1).unwrap();
        assert_eq!(bytes[..2], [0x1f, 0x8b]);
        let mut text = String::new();
        std::io::Read::read_to_string(&mut flate2::read::GzDecoder::new(&bytes[..]), &mut text).unwrap();
        assert_eq!(text, format!("0xa={value}"));
        assert_eq!(kernel_argument(&[(10, &value)]).unwrap(), argument);
    }

    #[test]
    fn a_semicolon_cannot_travel() {
        assert_eq!(kernel_argument(&[(12, "a;b")]), Err(MetaError { key: 12 }));
    }

    #[test]
    fn the_network_value_names_its_link_so_that_dhcp_stays_off() {
        let network = MetaNetwork {
            link: "eth0".to_owned(),
            addresses: vec!["10.0.0.11/24".parse().unwrap()],
            gateways: vec!["10.0.0.1".parse().unwrap()],
            nameservers: vec!["1.1.1.1".parse().unwrap()],
            time_servers: vec![],
            hostname: Some("cp-0".to_owned()),
        };
        let root = yaml::parse(&network.to_yaml()).unwrap();
        let first = |section: &str| root.get(section).unwrap().as_list().unwrap()[0].clone();
        assert_eq!(first("links").get("name").unwrap().as_str(), Some("eth0"));
        assert_eq!(first("addresses").get("address").unwrap().as_str(), Some("10.0.0.11/24"));
        assert_eq!(first("routes").get("priority").unwrap().as_int(), Some(1024));
        assert_eq!(first("hostnames").get("hostname").unwrap().as_str(), Some("cp-0"));
    }
}
