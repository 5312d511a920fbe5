//! Addresses that the cloud-init drive hands to a guest.

use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use ipnet::{Ipv4Net, Ipv6Net};

use super::ValueError;
use super::loose::deserialize_from_text;
use super::property::Properties;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv4 {
    Dhcp,
    Manual,
    Static(Ipv4Net),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ipv6 {
    Auto,
    Dhcp,
    Manual,
    Static(Ipv6Net),
}

/// `ip=10.0.0.5/24,gw=10.0.0.1`. PVE takes a gateway only along with a static address of its family.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IpConfig {
    pub ip: Option<Ipv4>,
    pub gw: Option<Ipv4Addr>,
    pub ip6: Option<Ipv6>,
    pub gw6: Option<Ipv6Addr>,
}

impl fmt::Display for Ipv4 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dhcp => f.write_str("dhcp"),
            Self::Manual => f.write_str("manual"),
            Self::Static(address) => address.fmt(f),
        }
    }
}

impl fmt::Display for Ipv6 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Dhcp => f.write_str("dhcp"),
            Self::Manual => f.write_str("manual"),
            Self::Static(address) => address.fmt(f),
        }
    }
}

impl FromStr for Ipv4 {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "dhcp" => Ok(Self::Dhcp),
            "manual" => Ok(Self::Manual),
            _ => text
                .parse()
                .map(Self::Static)
                .map_err(|_| ValueError::new("an IPv4 address with prefix", text)),
        }
    }
}

impl FromStr for Ipv6 {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        match text {
            "auto" => Ok(Self::Auto),
            "dhcp" => Ok(Self::Dhcp),
            "manual" => Ok(Self::Manual),
            _ => text
                .parse()
                .map(Self::Static)
                .map_err(|_| ValueError::new("an IPv6 address with prefix", text)),
        }
    }
}

impl fmt::Display for IpConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.ip.map(|ip| format!("ip={ip}")),
            self.gw.map(|gw| format!("gw={gw}")),
            self.ip6.map(|ip6| format!("ip6={ip6}")),
            self.gw6.map(|gw6| format!("gw6={gw6}")),
        ];
        f.write_str(&parts.into_iter().flatten().collect::<Vec<_>>().join(","))
    }
}

impl FromStr for IpConfig {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        const EXPECTED: &str = "an ipconfig";
        let mut properties = Properties::parse(text, EXPECTED)?;
        let config = Self {
            ip: properties.take_parsed("ip"),
            gw: properties.take_parsed("gw"),
            ip6: properties.take_parsed("ip6"),
            gw6: properties.take_parsed("gw6"),
        };
        let all_read = properties.pairs.is_empty() && properties.bare.is_none();
        if all_read {
            Ok(config)
        } else {
            Err(ValueError::new(EXPECTED, text))
        }
    }
}

deserialize_from_text!(IpConfig);

#[cfg(test)]
mod tests {
    use super::IpConfig;

    #[test]
    fn ipconfigs_are_read_and_printed() {
        for text in [
            "ip=10.0.0.5/24,gw=10.0.0.1",
            "ip6=2001:db8::5/64,gw6=2001:db8::1",
            "ip=dhcp,ip6=auto",
            "ip=manual",
            "ip=10.0.0.5/24,gw=10.0.0.1,ip6=dhcp",
            "",
        ] {
            assert_eq!(text.parse::<IpConfig>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_ipconfig_is_refused() {
        for text in [
            "10.0.0.5/24",
            "ip=10.0.0.5",
            "ip=10.0.0.5/33",
            "gw=x",
            "ip=dhcp,ip=dhcp",
            "foo=1",
        ] {
            assert!(text.parse::<IpConfig>().is_err(), "{text}");
        }
    }
}
