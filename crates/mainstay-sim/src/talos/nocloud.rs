//! The cloud-init drive as Talos' `nocloud` platform reads it.

use std::net::IpAddr;

use ipnet::IpNet;
use pve_sim::guest::CloudInitFiles;
use serde_json::Value;

use super::config::{LinkAddress, Nic};
use crate::yaml;

/// What the platform says about the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Platform {
    pub hostname: String,
    pub instance: String,
    pub addresses: Vec<LinkAddress>,
    pub resolvers: Vec<IpAddr>,
    pub gateway: Option<IpAddr>,
    /// Cards that wait for a DHCP server.
    pub dhcp: Vec<String>,
    /// A machine config in the user data.
    pub config: Option<String>,
}

impl Platform {
    /// Reads the drive; cards that it does not mention ask for a lease.
    pub fn read(files: Option<&CloudInitFiles>, nics: &[Nic]) -> Result<Self, String> {
        let mut platform = Self::default();
        if let Some(files) = files {
            platform.read_names(files);
            platform.read_network(&files.network_config, nics)?;
        }
        let mentioned: Vec<String> = platform
            .addresses
            .iter()
            .map(|address| address.link.clone())
            .chain(platform.dhcp.clone())
            .collect();
        platform.dhcp.extend(
            nics.iter()
                .map(|nic| nic.name.clone())
                .filter(|name| !mentioned.contains(name)),
        );
        Ok(platform)
    }

    fn read_names(&mut self, files: &CloudInitFiles) {
        let parse = |text: &str| yaml::parse(text).unwrap_or_default();
        let (meta, user) = (parse(&files.meta_data), parse(&files.user_data));
        let text = |value: &Value, key: &str| value[key].as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let named = [
            (&meta, "hostname"),
            (&meta, "local-hostname"),
            (&user, "hostname"),
            (&user, "local-hostname"),
        ];
        self.hostname = named
            .into_iter()
            .find_map(|(value, key)| text(value, key))
            .unwrap_or_default();
        self.instance = text(&meta, "instance-id").unwrap_or_default();
        let user_data = files.user_data.trim_start();
        if !user_data.is_empty() && !user_data.starts_with("#cloud-config") && !user_data.starts_with("#include") {
            self.config = Some(files.user_data.clone());
        }
    }

    fn read_network(&mut self, text: &str, nics: &[Nic]) -> Result<(), String> {
        if text.trim().is_empty() {
            return Ok(());
        }
        let whole = yaml::parse(text).map_err(|error| error.to_string())?;
        let network = if whole["network"].is_object() {
            &whole["network"]
        } else {
            &whole
        };
        match network["version"].as_u64().unwrap_or(0) {
            1 => self.read_v1(network, nics),
            2 => self.read_v2(network, nics),
            other => return Err(format!("network-config metadata version={other} is not supported")),
        }
        Ok(())
    }

    fn read_v1(&mut self, network: &Value, nics: &[Nic]) {
        for entry in list(&network["config"]) {
            match entry["type"].as_str() {
                Some("nameserver") => {
                    let servers = list(&entry["address"])
                        .filter_map(Value::as_str)
                        .chain(entry["address"].as_str());
                    self.resolvers
                        .extend(servers.filter_map(|server| server.parse::<IpAddr>().ok()));
                }
                Some("physical") => {
                    let Some(link) = find(nics, entry["mac_address"].as_str(), entry["name"].as_str()) else {
                        continue;
                    };
                    list(&entry["subnets"]).for_each(|subnet| self.read_subnet(subnet, &link.name));
                }
                _ => {}
            }
        }
    }

    fn read_subnet(&mut self, subnet: &Value, link: &str) {
        match subnet["type"].as_str() {
            Some("dhcp" | "dhcp4") => self.dhcp.push(link.to_owned()),
            Some("static" | "static6") => {
                let address = subnet["address"].as_str().unwrap_or_default();
                self.gateway = self.gateway.or_else(|| subnet["gateway"].as_str()?.parse().ok());
                if let Some(address) = with_mask(address, subnet["netmask"].as_str()) {
                    self.addresses.push(LinkAddress {
                        link: link.to_owned(),
                        address,
                    });
                }
            }
            // Talos reads neither `dhcp6` nor `ipv6_slaac`.
            _ => {}
        }
    }

    fn read_v2(&mut self, network: &Value, nics: &[Nic]) {
        for (key, entry) in network["ethernets"].as_object().into_iter().flatten() {
            let Some(link) = find(nics, entry["match"]["macaddress"].as_str(), Some(key)) else {
                continue;
            };
            if entry["dhcp4"] == true {
                self.dhcp.push(link.name.clone());
            }
            self.gateway = self.gateway.or_else(|| entry["gateway4"].as_str()?.parse().ok());
            let addresses = list(&entry["addresses"]).filter_map(|text| text.as_str()?.parse().ok());
            self.addresses.extend(addresses.map(|address| LinkAddress {
                link: link.name.clone(),
                address,
            }));
            let servers = list(&entry["nameservers"]["addresses"]).filter_map(|text| text.as_str()?.parse::<IpAddr>().ok());
            self.resolvers.extend(servers);
        }
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// By MAC, whatever its case; by name where no card has that MAC.
fn find<'a>(nics: &'a [Nic], mac: Option<&str>, name: Option<&str>) -> Option<&'a Nic> {
    let by_mac = mac.and_then(|mac| nics.iter().find(|nic| nic.mac.eq_ignore_ascii_case(mac)));
    by_mac.or_else(|| name.and_then(|name| nics.iter().find(|nic| nic.name == name)))
}

/// `10.0.0.11/24`, or an address and a netmask apart.
fn with_mask(address: &str, netmask: Option<&str>) -> Option<IpNet> {
    if address.contains('/') {
        return address.parse().ok();
    }
    let ip: IpAddr = address.parse().ok()?;
    let prefix = match netmask {
        Some(mask) if mask.contains(['.', ':']) => ipnet::ip_mask_to_prefix(mask.parse().ok()?).ok()?,
        Some(mask) => mask.parse().ok()?,
        None => {
            if ip.is_ipv4() {
                32
            } else {
                128
            }
        }
    };
    IpNet::new(ip, prefix).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nics() -> Vec<Nic> {
        vec![Nic {
            name: "eth0".to_owned(),
            mac: "bc:24:11:00:00:01".to_owned(),
        }]
    }

    /// As PVE 9 writes it.
    fn drive() -> CloudInitFiles {
        CloudInitFiles {
            user_data: "#cloud-config\nhostname: homelab-control-plane-1\nmanage_etc_hosts: true\nfqdn: homelab-control-plane-1\nuser: debian\n".to_owned(),
            meta_data: "instance-id: 3b5d7f0c\n".to_owned(),
            network_config: "version: 1\nconfig:\n    - type: physical\n      name: eth0\n      mac_address: 'bc:24:11:00:00:01'\n      subnets:\n      - type: static\n        address: '10.0.0.11'\n        netmask: '255.255.0.0'\n        gateway: '10.0.0.1'\n    - type: nameserver\n      address:\n      - '1.1.1.1'\n      - '8.8.8.8'\n      search:\n      - 'lan'\n".to_owned(),
            vendor_data: String::new(),
        }
    }

    #[test]
    fn the_drive_gives_address_name_and_resolvers() {
        let platform = Platform::read(Some(&drive()), &nics()).expect("a drive");
        assert_eq!(platform.hostname, "homelab-control-plane-1");
        assert_eq!(
            platform.addresses,
            [LinkAddress {
                link: "eth0".to_owned(),
                address: "10.0.0.11/16".parse().expect("a net")
            }]
        );
        assert_eq!(platform.resolvers.len(), 2);
        assert_eq!((platform.config, platform.dhcp.len()), (None, 0));
    }

    #[test]
    fn a_card_without_an_entry_asks_for_a_lease() {
        assert_eq!(Platform::read(None, &nics()).expect("no drive").dhcp, ["eth0"]);
    }

    #[test]
    fn other_versions_are_refused() {
        let files = CloudInitFiles {
            network_config: "ethernets: {}\n".to_owned(),
            ..drive()
        };
        assert_eq!(
            Platform::read(Some(&files), &nics()),
            Err("network-config metadata version=0 is not supported".to_owned())
        );
    }
}
