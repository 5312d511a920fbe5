//! Network interfaces.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose::deserialize_from_text;
use super::property::{self, Properties};

/// A MAC address, printed in capitals as PVE does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mac([u8; 6]);

impl Mac {
    pub fn new(octets: [u8; 6]) -> Self {
        Self(octets)
    }

    pub fn octets(self) -> [u8; 6] {
        self.0
    }

    /// PVE refuses any other for a guest.
    pub fn is_unicast(self) -> bool {
        self.0[0] & 1 == 0
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02X}:{b:02X}:{c:02X}:{d:02X}:{e:02X}:{g:02X}")
    }
}

impl FromStr for Mac {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        let error = || ValueError::new("a MAC address", text);
        let mut octets = [0; 6];
        let mut parts = text.split(':');
        for octet in &mut octets {
            let part = parts
                .next()
                .filter(|part| part.len() == 2 && !part.starts_with('+'))
                .ok_or_else(error)?;
            *octet = u8::from_str_radix(part, 16).map_err(|_| error())?;
        }
        if parts.next().is_some() {
            Err(error())
        } else {
            Ok(Self(octets))
        }
    }
}

/// The emulated card.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum NetModel {
    #[default]
    Virtio,
    E1000,
    E1000Em82540,
    E1000Gc82544,
    E1000Em82545,
    E1000e,
    I82551,
    I82557b,
    I82559er,
    Ne2kIsa,
    Ne2kPci,
    Pcnet,
    Rtl8139,
    Vmxnet3,
}

impl NetModel {
    pub(crate) const ALL: [(Self, &str); 14] = [
        (Self::Virtio, "virtio"),
        (Self::E1000, "e1000"),
        (Self::E1000Em82540, "e1000-82540em"),
        (Self::E1000Gc82544, "e1000-82544gc"),
        (Self::E1000Em82545, "e1000-82545em"),
        (Self::E1000e, "e1000e"),
        (Self::I82551, "i82551"),
        (Self::I82557b, "i82557b"),
        (Self::I82559er, "i82559er"),
        (Self::Ne2kIsa, "ne2k_isa"),
        (Self::Ne2kPci, "ne2k_pci"),
        (Self::Pcnet, "pcnet"),
        (Self::Rtl8139, "rtl8139"),
        (Self::Vmxnet3, "vmxnet3"),
    ];

    fn name(self) -> &'static str {
        Self::ALL
            .into_iter()
            .find_map(|(model, name)| (model == self).then_some(name))
            .unwrap_or("virtio")
    }

    fn parse(text: &str) -> Option<Self> {
        Self::ALL
            .into_iter()
            .find_map(|(model, name)| (name == text).then_some(model))
    }
}

/// A NIC. A change must carry the MAC: without it PVE makes up a new one.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Net {
    pub model: NetModel,
    pub mac: Option<Mac>,
    /// Without a bridge the guest gets user-mode NAT.
    pub bridge: Option<String>,
    pub vlan: Option<u16>,
    pub mtu: Option<u16>,
    pub queues: Option<u8>,
    pub firewall: Option<bool>,
    pub link_down: Option<bool>,
    /// Options this type does not know.
    pub other: BTreeMap<String, String>,
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut pairs = self.other.clone();
        let mut put = |key: &str, value: Option<String>| value.map(|value| pairs.insert(key.to_owned(), value));
        put("bridge", self.bridge.clone());
        put("tag", self.vlan.map(|vlan| vlan.to_string()));
        put("mtu", self.mtu.map(|mtu| mtu.to_string()));
        put("queues", self.queues.map(|queues| queues.to_string()));
        put("firewall", self.firewall.map(property::flag));
        put("link_down", self.link_down.map(property::flag));
        let model = self.model.name();
        let first = self.mac.map_or_else(|| model.to_owned(), |mac| format!("{model}={mac}"));
        f.write_str(&property::print(&first, &pairs))
    }
}

impl FromStr for Net {
    type Err = ValueError;

    /// Reads `virtio=MAC,...` as PVE prints it, and `model=virtio,macaddr=MAC,...`, which means the same.
    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "a network interface";
        let error = || ValueError::new(EXPECTED, text);
        let mut properties = Properties::parse(text, EXPECTED)?;
        let keyed = properties
            .pairs
            .keys()
            .find_map(|key| NetModel::parse(key).map(|model| (model, key.clone())));
        let (model, mac) = match (properties.take_default("model"), keyed) {
            (Some(model), None) => (NetModel::parse(&model).ok_or_else(error)?, properties.take("macaddr")),
            (None, Some((model, key))) => (model, properties.take(&key)),
            _ => return Err(error()),
        };
        let net = Self {
            model,
            mac: mac.map(|mac| mac.parse()).transpose().map_err(|_| error())?,
            bridge: properties.take("bridge"),
            vlan: properties.take_parsed("tag"),
            mtu: properties.take_parsed("mtu"),
            queues: properties.take_parsed("queues"),
            firewall: properties.take_flag("firewall"),
            link_down: properties.take_flag("link_down"),
            other: BTreeMap::new(),
        };
        Ok(Self {
            other: properties.pairs,
            ..net
        })
    }
}

deserialize_from_text!(Mac, Net);

#[cfg(test)]
mod tests {
    use super::{Mac, Net};

    #[test]
    fn a_nic_as_pve_prints_it_is_read_and_printed_the_same() {
        for text in [
            "virtio=BC:24:11:77:6E:5F,bridge=vmbr0",
            "e1000=BC:24:11:77:6E:5F,bridge=vmbr1,firewall=1,link_down=1,mtu=1,queues=4,rate=10.5,tag=20,trunks=10;20-30",
            "virtio,bridge=vmbr0",
        ] {
            assert_eq!(text.parse::<Net>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn both_spellings_mean_the_same_nic() {
        let long: Net = "model=virtio,macaddr=bc:24:11:77:6e:5f,bridge=vmbr0".parse().unwrap();
        assert_eq!(long, "virtio=BC:24:11:77:6E:5F,bridge=vmbr0".parse().unwrap());
    }

    #[test]
    fn what_is_no_nic_is_refused() {
        for text in [
            "",
            "bridge=vmbr0",
            "virtio=xx",
            "virtio,e1000=BC:24:11:77:6E:5F",
            "bogus=BC:24:11:77:6E:5F",
        ] {
            assert!(text.parse::<Net>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_lowest_bit_of_the_first_octet_marks_a_group() {
        assert!("BC:24:11:00:00:01".parse::<Mac>().unwrap().is_unicast());
        assert!(!"01:00:5E:00:00:01".parse::<Mac>().unwrap().is_unicast());
        for text in [
            "BC:24:11:00:00",
            "BC:24:11:00:00:01:02",
            "BC-24-11-00-00-01",
            "BC:24:11:00:00:+1",
        ] {
            assert!(text.parse::<Mac>().is_err(), "{text}");
        }
    }
}
