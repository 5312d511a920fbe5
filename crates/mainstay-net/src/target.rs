//! Where a connection goes, as it was written: a name stays a name until the dialer that reaches it resolves it.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

/// A name or address literal, and a port.
///
/// Never resolved beforehand: behind a jump host names mean what the jump host's resolver says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    pub host: String,
    pub port: u16,
}

impl Target {
    pub fn new(host: impl Into<String>, port: u16) -> Self {
        Self { host: host.into(), port }
    }

    /// The address, if the host is a literal.
    pub fn ip(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Where a URI points. Without a port: 443 for `https`, else 80.
    pub fn of_uri(uri: &::http::Uri) -> Option<Self> {
        let host = uri.host()?;
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
        let default = if uri.scheme_str() == Some("https") { 443 } else { 80 };
        Some(Self::new(bare, uri.port_u16().unwrap_or(default)))
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.parse::<Ipv6Addr>() {
            Ok(v6) => write!(f, "[{v6}]:{}", self.port),
            Err(_) => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

impl From<SocketAddr> for Target {
    fn from(at: SocketAddr) -> Self {
        Self::new(at.ip().to_string(), at.port())
    }
}

/// Why a text is not a target.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("`{0}` has no port: write host:port")]
    NoPort(String),
    #[error("`{0}` has no host before the port")]
    NoHost(String),
    #[error("`{0}` has a port that is not a number from 1 to 65535")]
    BadPort(String),
}

impl FromStr for Target {
    type Err = TargetError;

    fn from_str(text: &str) -> Result<Self, TargetError> {
        if let Ok(at) = text.parse::<SocketAddr>() {
            return Ok(at.into());
        }
        let (host, port) = text.rsplit_once(':').ok_or_else(|| TargetError::NoPort(text.into()))?;
        if host.is_empty() {
            return Err(TargetError::NoHost(text.into()));
        }
        // More colons mean an IPv6 literal without brackets, whose last group would pass for a port.
        if host.contains(':') {
            return Err(TargetError::NoPort(text.into()));
        }
        match port.parse::<u16>() {
            Ok(port) if port > 0 => Ok(Self::new(host, port)),
            _ => Err(TargetError::BadPort(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_literals_and_brackets_are_read_and_printed_back() {
        for text in ["pve.lan:8006", "10.0.0.1:50000", "[fd00::1]:6443"] {
            assert_eq!(text.parse::<Target>().unwrap().to_string(), text);
        }
        assert_eq!("[fd00::1]:6443".parse::<Target>().unwrap().host, "fd00::1");
    }

    #[test]
    fn what_is_not_a_target_says_why() {
        let fault = |text: &str| text.parse::<Target>().unwrap_err();
        assert_eq!(fault("pve.lan"), TargetError::NoPort("pve.lan".into()));
        assert_eq!(fault("fd00::1"), TargetError::NoPort("fd00::1".into()));
        assert_eq!(fault(":22"), TargetError::NoHost(":22".into()));
        assert_eq!(fault("a:0"), TargetError::BadPort("a:0".into()));
        assert_eq!(fault("a:99999"), TargetError::BadPort("a:99999".into()));
    }

    #[test]
    fn a_uri_gives_its_default_port() {
        let of = |text: &'static str| Target::of_uri(&::http::Uri::from_static(text)).unwrap().to_string();
        assert_eq!(of("https://factory.talos.dev/x"), "factory.talos.dev:443");
        assert_eq!(of("http://a/"), "a:80");
        assert_eq!(of("https://[fd00::1]:8006/"), "[fd00::1]:8006");
    }
}
