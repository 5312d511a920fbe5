//! Where a chart comes from.

use std::fmt;

use url::Url;

/// A registry or repository, and the chart in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum ChartSource {
    /// `oci://quay.io/cilium/charts/cilium`. The URL names the chart itself and has the scheme http or https here.
    Oci { base: Url, repository: String },
    /// An HTTP repository with an `index.yaml`.
    Http { repository: Url, chart: String },
}

/// A chart at an exact version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ChartRequest {
    pub source: ChartSource,
    /// Exact, as the chart itself writes it. No ranges: a version never changes by itself.
    pub version: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    #[error("`{0}` is not the address of a chart: oci://HOST/PATH/CHART, or https://REPOSITORY with a chart's name")]
    Malformed(String),
    #[error("`{0}` uses plain http; that is allowed on loopback only")]
    PlainHttp(String),
    #[error("the address carries a user or a password; credentials belong to `registries:`")]
    Credentials,
}

impl ChartSource {
    /// Reads `oci://…/chart`, or an http(s) repository together with the chart's name.
    pub fn parse(address: &str, chart: Option<&str>) -> Result<Self, SourceError> {
        let malformed = || SourceError::Malformed(address.to_owned());
        if let Some(rest) = address.strip_prefix("oci://") {
            let host = rest.split('/').next().unwrap_or_default();
            let scheme = if is_loopback(host) { "http" } else { "https" };
            let mut base = checked(&format!("{scheme}://{rest}"), address)?;
            let path = base.path().trim_matches('/').to_owned();
            let repository = match chart {
                Some(chart) if path.is_empty() => chart.to_owned(),
                Some(chart) => format!("{path}/{chart}"),
                None => path,
            };
            if !is_repository(&repository) {
                return Err(malformed());
            }
            base.set_path("/");
            return Ok(Self::Oci { base, repository });
        }
        let mut repository = checked(address, address)?;
        if !repository.path().ends_with('/') {
            repository.set_path(&format!("{}/", repository.path()));
        }
        let chart = chart
            .filter(|name| !name.is_empty() && !name.contains('/'))
            .ok_or_else(malformed)?;
        Ok(Self::Http {
            repository,
            chart: chart.to_owned(),
        })
    }

    /// The chart's name.
    pub fn chart(&self) -> &str {
        match self {
            Self::Oci { repository, .. } => repository.rsplit('/').next().unwrap_or_default(),
            Self::Http { chart, .. } => chart,
        }
    }

    /// Host and port, as mirrors and credentials name them.
    pub fn host(&self) -> String {
        match self {
            Self::Oci { base, .. } => host_of(base),
            Self::Http { repository, .. } => host_of(repository),
        }
    }
}

impl fmt::Display for ChartSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Oci { base, repository } => write!(f, "oci://{}/{repository}", host_of(base)),
            Self::Http { repository, chart } => write!(f, "{repository}#{chart}"),
        }
    }
}

pub(crate) fn host_of(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// Plain http is for registries on the operator's own machine.
pub(crate) fn is_allowed(url: &Url) -> bool {
    match url.scheme() {
        "https" => true,
        "http" => is_loopback(url.host_str().unwrap_or_default()),
        _ => false,
    }
}

fn checked(address: &str, shown: &str) -> Result<Url, SourceError> {
    let url = Url::parse(address).map_err(|_| SourceError::Malformed(shown.to_owned()))?;
    if !url.username().is_empty() || url.password().is_some() {
        return Err(SourceError::Credentials);
    }
    if url.host_str().is_none() || url.query().is_some() || url.fragment().is_some() {
        return Err(SourceError::Malformed(shown.to_owned()));
    }
    if url.scheme() == "http" && !is_allowed(&url) {
        return Err(SourceError::PlainHttp(shown.to_owned()));
    }
    if !matches!(url.scheme(), "http" | "https") {
        return Err(SourceError::Malformed(shown.to_owned()));
    }
    Ok(url)
}

fn is_loopback(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    let address = host.parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// The grammar of OCI repository names.
fn is_repository(name: &str) -> bool {
    let is_part = |part: &str| {
        let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        part.bytes().all(inner) && edge(part.bytes().next()) && edge(part.bytes().last())
    };
    !name.is_empty() && name.split('/').all(is_part)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_of_address_are_read() {
        let oci = ChartSource::parse("oci://quay.io/cilium/charts/cilium", None).expect("a source");
        assert_eq!((oci.chart(), oci.host().as_str()), ("cilium", "quay.io"));
        assert_eq!(oci.to_string(), "oci://quay.io/cilium/charts/cilium");
        let joined = ChartSource::parse("oci://quay.io/cilium/charts", Some("cilium")).expect("a source");
        assert_eq!(joined, oci);
        let http = ChartSource::parse("https://charts.longhorn.io", Some("longhorn")).expect("a source");
        assert_eq!(http.to_string(), "https://charts.longhorn.io/#longhorn");
    }

    #[test]
    fn plain_http_is_for_loopback_only() {
        assert!(ChartSource::parse("http://127.0.0.1:8080/charts", Some("x")).is_ok());
        assert!(matches!(
            ChartSource::parse("http://charts.example", Some("x")),
            Err(SourceError::PlainHttp(_))
        ));
        let ChartSource::Oci { base, .. } = ChartSource::parse("oci://localhost:5000/x", None).expect("a source") else {
            panic!("an OCI source")
        };
        assert_eq!(base.scheme(), "http");
        let ChartSource::Oci { base, .. } = ChartSource::parse("oci://localhost.example/x", None).expect("a source") else {
            panic!("an OCI source")
        };
        assert_eq!(base.scheme(), "https");
    }

    #[test]
    fn passwords_and_malformed_names_are_refused() {
        assert_eq!(
            ChartSource::parse("https://me:pw@charts.example", Some("x")),
            Err(SourceError::Credentials)
        );
        for address in ["oci://quay.io/", "oci://quay.io/Upper", "ftp://x/y", "charts"] {
            assert!(ChartSource::parse(address, None).is_err(), "{address}");
        }
        assert!(ChartSource::parse("https://charts.example", None).is_err());
        assert!(ChartSource::parse("https://charts.example", Some("a/b")).is_err());
    }
}
