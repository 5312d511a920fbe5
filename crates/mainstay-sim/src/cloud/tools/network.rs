//! `curl` and `wget`: real requests over the world's network.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Dialer, Trust};

use super::args::Arguments;
use super::wrappers::duration;
use crate::cloud::host::Host;
use crate::cloud::shell::Process;

/// Why a download failed, in the words of curl.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FetchError {
    #[error("Could not resolve host: {0}")]
    Name(String),
    #[error("Failed to connect to {0}: Couldn't connect to server")]
    Connect(String),
    #[error("Operation timed out")]
    Timeout,
    #[error("URL rejected: Bad URL")]
    Url,
    #[error("Maximum (50) redirects followed")]
    Redirects,
}

impl FetchError {
    fn code(&self) -> i32 {
        match self {
            Self::Name(_) => 6,
            Self::Connect(_) => 7,
            Self::Timeout => 28,
            Self::Url => 3,
            Self::Redirects => 47,
        }
    }
}

pub(crate) struct Fetched {
    pub status: u16,
    pub body: Bytes,
}

/// One GET, redirects followed where asked for.
pub(crate) async fn fetch(host: &Arc<Host>, url: &str, follow: bool, limit: Duration) -> Result<Fetched, FetchError> {
    tokio::time::timeout(limit, follow_redirects(host, url, follow))
        .await
        .unwrap_or(Err(FetchError::Timeout))
}

async fn follow_redirects(host: &Arc<Host>, url: &str, follow: bool) -> Result<Fetched, FetchError> {
    let mut url = url::Url::parse(url).map_err(|_| FetchError::Url)?;
    for _ in 0..50 {
        let name = url.host_str().ok_or(FetchError::Url)?.to_owned();
        let trust = match url.scheme() {
            "https" => host.site.cloud.trust(),
            _ => Trust::Plain,
        };
        let source = host.address().ok_or_else(|| FetchError::Connect(name.clone()))?;
        let dialer: Arc<dyn Dialer> = host.site.dialer(source);
        let refused = |_| FetchError::Connect(name.clone());
        let connector = Connector::new(dialer, &trust, host.site.wall, Duration::from_secs(130)).map_err(refused)?;
        let client = HttpClient::new(
            connector,
            HttpOptions {
                http1_only: true,
                max_body: usize::MAX,
                ..HttpOptions::default()
            },
        );
        let request = http::Request::get(url.as_str())
            .header("host", name.as_str())
            .body(Body::empty())
            .map_err(|_| FetchError::Url)?;
        let answer = client.send(request, Duration::from_secs(3600)).await.map_err(|error| {
            if format!("{error:?}").contains("UnknownName") {
                FetchError::Name(name.clone())
            } else {
                FetchError::Connect(name.clone())
            }
        })?;
        let location = answer
            .headers
            .get("location")
            .and_then(|value| value.to_str().ok())
            .filter(|_| answer.status.is_redirection() && follow);
        match location.map(|next| url.join(next)) {
            Some(Ok(next)) => url = next,
            _ => {
                return Ok(Fetched {
                    status: answer.status.as_u16(),
                    body: answer.body,
                });
            }
        }
    }
    Err(FetchError::Redirects)
}

pub(super) async fn curl(p: &Process, a: &[String]) -> i32 {
    let valued = [
        "o",
        "output",
        "m",
        "max-time",
        "retry",
        "retry-delay",
        "connect-timeout",
        "H",
        "header",
        "w",
        "write-out",
        "C",
        "proto",
        "A",
        "cacert",
        "retry-max-time",
        "y",
        "Y",
    ];
    let arguments = Arguments::parse(a, &valued);
    let Some(url) = arguments.operands.first() else {
        p.complain("curl: (2) no URL specified");
        return 2;
    };
    let limit = arguments
        .value(&["m", "max-time"])
        .and_then(duration)
        .unwrap_or(Duration::from_secs(3600));
    let tries = 1 + arguments
        .value(&["retry"])
        .and_then(|text| text.parse::<u32>().ok())
        .unwrap_or(0);
    let pause = arguments
        .value(&["retry-delay"])
        .and_then(duration)
        .unwrap_or(Duration::from_secs(1));
    let mut status = 0;
    for attempt in 0..tries {
        if attempt > 0 {
            tokio::time::sleep(pause).await;
        }
        match fetch(&p.host, url, arguments.has(&["L", "location"]), limit).await {
            Ok(fetched) => {
                let failed = fetched.status >= 400 && arguments.has(&["f", "fail", "fail-with-body"]);
                if failed {
                    p.complain(format!("curl: (22) The requested URL returned error: {}", fetched.status));
                    status = 22;
                    if fetched.status >= 500 || fetched.status == 429 || fetched.status == 408 {
                        continue;
                    }
                    return status;
                }
                return save(
                    p,
                    arguments.value(&["o", "output"]),
                    fetched.body,
                    "curl",
                    arguments.value(&["w", "write-out"]),
                    fetched.status,
                );
            }
            Err(error) => {
                status = error.code();
                p.complain(format!("curl: ({status}) {error}"));
            }
        }
    }
    status
}

fn save(p: &Process, output: Option<&str>, body: Bytes, tool: &str, write_out: Option<&str>, code: u16) -> i32 {
    let saved = match output {
        None | Some("-") => {
            p.write(1, &body);
            0
        }
        Some(path) => match p.store(path, body) {
            Ok(()) => 0,
            Err(error) => {
                p.complain(format!("{tool}: (23) {path}: {error}"));
                23
            }
        },
    };
    if let Some(format) = write_out {
        p.say(format.replace("%{http_code}", &code.to_string()).replace("\\n", "\n"));
    }
    saved
}

pub(super) async fn wget(p: &Process, a: &[String]) -> i32 {
    let arguments = Arguments::parse(a, &["O", "output-document", "T", "timeout", "t", "tries", "P", "waitretry"]);
    let Some(url) = arguments.operands.first() else { return 1 };
    let tries: u32 = arguments
        .value(&["t", "tries"])
        .and_then(|text| text.parse().ok())
        .unwrap_or(20);
    let limit = arguments
        .value(&["T", "timeout"])
        .and_then(duration)
        .unwrap_or(Duration::from_secs(900));
    let name = url.rsplit('/').next().filter(|name| !name.is_empty()).unwrap_or("index.html");
    let output = arguments.value(&["O", "output-document"]).unwrap_or(name).to_owned();
    for attempt in 1..=tries.max(1) {
        match fetch(&p.host, url, true, limit).await {
            Ok(fetched) if fetched.status >= 400 => {
                p.complain(format!("ERROR {}.", fetched.status));
                return 8;
            }
            Ok(fetched) => return save(p, Some(&output), fetched.body, "wget", None, fetched.status).min(3),
            // wget does not try again where no host is.
            Err(FetchError::Name(_)) => {
                p.complain(format!("wget: unable to resolve host address '{url}'"));
                return 4;
            }
            Err(error) => {
                p.complain(format!("wget: {error}. Retrying."));
                tokio::time::sleep(Duration::from_secs(u64::from(attempt.min(10)))).await;
            }
        }
    }
    4
}
