//! Sends raw requests to a datacenter in the recorded laboratory's world.

use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{Entropy, SimNet, Wall};
use pve_sim::guest::Pace;
use pve_sim::http::Request;
use pve_sim::{Datacenter, NoOs, SimEnv, Verdict, World};
use serde_json::Value;

/// The recorded laboratory: two hosts, six storages, users of all kinds.
fn laboratory() -> Datacenter {
    let world = crate::recorded::scenarios().world;
    datacenter(World::parse(&world.to_string()).expect("a world"))
}

pub fn datacenter(world: World) -> Datacenter {
    let net = SimNet::new(Entropy::from_seed(1));
    let env = SimEnv {
        network: Arc::new(net.clone()),
        dialer: Arc::new(net),
        wall: Wall::at("2026-11-15T20:00:00Z".parse().expect("a timestamp")),
        entropy: Entropy::from_seed(2),
        pace: Pace::default(),
        tls: false,
    };
    Datacenter::new(world, env, Arc::new(NoOs))
}

pub struct Client {
    pub dc: Datacenter,
    pub token: &'static str,
}

impl Client {
    pub fn root() -> Self {
        Self {
            dc: laboratory(),
            token: "root@pam!full=a0000000-0000-4000-8000-000000000001",
        }
    }

    pub async fn send(&self, verb: &str, path: &str, form: &str) -> (u16, String, Value) {
        let mut headers = vec![("Authorization".to_string(), format!("PVEAPIToken={}", self.token))];
        if !form.is_empty() {
            headers.push(("Content-Type".into(), "application/x-www-form-urlencoded".into()));
        }
        let request = Request {
            verb: verb.into(),
            target: format!("/api2/json{path}"),
            headers,
            body: form.to_string().into(),
            old: false,
        };
        match self.dc.answer("pve1", &request).await {
            Verdict::Answer(response) => {
                let body = serde_json::from_slice(&response.body).unwrap_or(Value::Null);
                (response.status, response.reason, body)
            }
            Verdict::HangUp => (0, String::new(), Value::Null),
        }
    }

    /// Sends and, if a task begins, waits for its end: `task: …` or `500 …`.
    pub async fn outcome(&self, verb: &str, path: &str, form: &str) -> String {
        let (status, reason, body) = self.send(verb, path, form).await;
        let Some(upid) = body["data"].as_str().filter(|d| d.starts_with("UPID:")).map(str::to_string) else {
            let errors = body["errors"]
                .as_object()
                .into_iter()
                .flatten()
                .map(|(k, v)| format!(" {k}: {}", v.as_str().unwrap_or_default()));
            return format!("{status} {reason}{}", errors.collect::<String>());
        };
        for _ in 0..600 {
            let tasks = self.dc.inspect().tasks;
            if let Some(exit) = tasks.iter().find(|t| t.upid == upid).and_then(|t| t.exit.clone()) {
                return format!("task: {exit}");
            }
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        "task: still running".into()
    }

    pub async fn expect(&self, rows: &[(&str, &str, &str, &str)]) {
        for (verb, path, form, expected) in rows {
            assert_eq!(self.outcome(verb, path, form).await, *expected, "{verb} {path} {form}");
        }
    }
}
