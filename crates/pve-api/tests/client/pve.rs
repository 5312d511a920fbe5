//! A server that says what it is told to say, byte for byte.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mainstay_net::{Binder as _, BoxIo, Entropy, Env, SimNet, Target, Trust, Wall, simulate};
use pve_api::{Client, ClientOptions, Endpoint, Login};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::Instant;

pub const TOKEN: &str = "ops@pve!ms=canary-0af1-4c11";

/// A request as it came in.
#[derive(Debug, Clone)]
pub struct Asked {
    pub method: String,
    pub target: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
    /// Which connection it came on.
    pub connection: usize,
    pub at: Duration,
}

impl Asked {
    pub fn form(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }

    pub fn is(&self, method: &str, path: &str) -> bool {
        self.method == method && self.target.strip_prefix("/api2/json").unwrap().split('?').next() == Some(path)
    }
}

pub enum Reply {
    Answer {
        status: u16,
        reason: String,
        body: String,
        after: Duration,
    },
    /// Hangs up without a word.
    HangUp,
    /// Never answers.
    Silence,
}

pub fn ok(data: &str) -> Reply {
    answer(200, "OK", &format!("{{\"data\":{data}}}"))
}

pub fn answer(status: u16, reason: &str, body: &str) -> Reply {
    Reply::Answer {
        status,
        reason: reason.to_owned(),
        body: body.to_owned(),
        after: Duration::ZERO,
    }
}

pub fn slowly(data: &str, after: Duration) -> Reply {
    Reply::Answer {
        status: 200,
        reason: "OK".to_owned(),
        body: format!("{{\"data\":{data}}}"),
        after,
    }
}

type Answers = Arc<dyn Fn(&Asked) -> Reply + Send + Sync>;

#[derive(Clone)]
pub struct Pve {
    pub net: SimNet,
    pub asked: Arc<Mutex<Vec<Asked>>>,
    entropy: Entropy,
    pub start: Instant,
}

impl Pve {
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    /// How many requests were like this.
    pub fn count(&self, method: &str, path: &str) -> usize {
        self.asked().iter().filter(|asked| asked.is(method, path)).count()
    }

    /// Answers on an address.
    pub async fn listen(&self, at: &str, answers: impl Fn(&Asked) -> Reply + Send + Sync + 'static) {
        let mut listener = self.net.bind(at.parse::<SocketAddr>().unwrap()).await.unwrap();
        let (pve, answers) = (self.clone(), Arc::new(answers) as Answers);
        tokio::spawn(async move {
            let mut connection = 0;
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(pve.clone().converse(stream, connection, Arc::clone(&answers)));
                connection += 1;
            }
        });
    }

    /// As PVE: hangs up after an error, after 100 requests and after 5 s of silence.
    async fn converse(self, mut stream: BoxIo, connection: usize, answers: Answers) {
        for n in 1..=100 {
            let head = tokio::time::timeout(Duration::from_secs(5), read(&mut stream, connection)).await;
            let Ok(Some(mut asked)) = head else { return };
            asked.at = self.start.elapsed();
            self.asked.lock().unwrap().push(asked.clone());
            let (status, reason, body) = match answers(&asked) {
                Reply::Answer {
                    status,
                    reason,
                    body,
                    after,
                } => {
                    tokio::time::sleep(after).await;
                    (status, reason, body)
                }
                Reply::HangUp => return,
                Reply::Silence => std::future::pending().await,
            };
            let close = status >= 400 || n == 100;
            let connection = if close { "close" } else { "Keep-Alive" };
            // Errors without a body carry no length either.
            let length = if body.is_empty() {
                String::new()
            } else {
                format!("Content-Length: {}\r\n", body.len())
            };
            let text = format!("HTTP/1.1 {status} {reason}\r\nConnection: {connection}\r\n{length}\r\n{body}");
            if stream.write_all(text.as_bytes()).await.is_err() || close {
                return;
            }
        }
    }

    pub fn env(&self) -> Env {
        let wall = Wall::at("2026-01-01T00:00:00Z".parse().unwrap());
        Env {
            dialer: Arc::new(self.net.clone()),
            wall,
            entropy: self.entropy.fork("client"),
        }
    }

    pub fn client(&self, at: &[&str]) -> Client {
        self.client_as(TOKEN.parse().unwrap(), at)
    }

    pub fn client_as(&self, login: Login, at: &[&str]) -> Client {
        let endpoint = |at: &&str| Endpoint {
            target: at.parse::<Target>().unwrap(),
            trust: Trust::Plain,
            host: None,
        };
        Client::new(
            &self.env(),
            at.iter().map(endpoint).collect(),
            login,
            ClientOptions::default(),
        )
        .unwrap()
    }
}

async fn read(stream: &mut BoxIo, connection: usize) -> Option<Asked> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.ok()?);
    }
    let head = String::from_utf8(head).unwrap();
    let mut lines = head.lines();
    let mut first = lines.next().unwrap().split(' ');
    let (method, target) = (first.next().unwrap().to_owned(), first.next().unwrap().to_owned());
    let pair = |line: &str| {
        line.split_once(": ")
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
    };
    let headers: BTreeMap<String, String> = lines.filter_map(pair).collect();
    assert!(!headers.contains_key("transfer-encoding"), "PVE takes no chunked bodies");
    let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(Asked {
        method,
        target,
        headers,
        body,
        connection,
        at: Duration::ZERO,
    })
}

/// A world with one server address, `10.0.0.1:8006`, and room for more.
pub fn world<T: Send, F: Future<Output = T>>(test: impl FnOnce(Pve) -> F + Send) -> T {
    let run = |entropy: Entropy| async move {
        let net = SimNet::new(entropy.fork("net"));
        for last in 1..=3 {
            net.attach(IpAddr::from([10, 0, 0, last]));
        }
        test(Pve {
            net,
            asked: Arc::default(),
            entropy,
            start: Instant::now(),
        })
        .await
    };
    simulate(7, Duration::from_secs(6 * 3600), run).unwrap()
}

pub const ONE: &str = "10.0.0.1:8006";
pub const TWO: &str = "10.0.0.2:8006";
