//! The secret of the login appears in nothing that is ever printed.

use std::io::Write;
use std::sync::{Arc, Mutex};

use pve_api::{Error, Login, VmConfig, Vmid, cluster, qemu};

use crate::client::pve::{ONE, Reply, TWO, answer, ok, world};

#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Printed {
    fn all(&self, error: &Error) {
        let mut text = format!("{error} {error:?} {error:#?}\n");
        let mut cause = std::error::Error::source(error);
        while let Some(error) = cause {
            text += &format!("{error} {error:?}\n");
            cause = error.source();
        }
        self.clone().write_all(text.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

/// Every way a call can end, with every log line of every library on.
fn everything_printed(login: fn() -> Login) -> String {
    let printed = Printed::default();
    let writer = printed.clone();
    let told = printed.clone();
    world(move |pve| async move {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .finish();
        let _guard = tracing::subscriber::set_default(subscriber);
        pve.listen(ONE, |asked| match asked.target.as_str() {
            target if target.ends_with("/access/ticket") => {
                ok(r#"{"ticket":"PVE:canary-ticket","CSRFPreventionToken":"canary-csrf"}"#)
            }
            target if target.ends_with("/version") => ok("[]"),
            target if target.ends_with("/start") => Reply::HangUp,
            target if target.ends_with("/reset") => answer(596, "Broken pipe", ""),
            _ => answer(401, "Authentication failed!", ""),
        })
        .await;
        let (host, vmid) = ("pve1".parse().unwrap(), Vmid::new(100).unwrap());
        let client = pve.client_as(login(), &[ONE]);
        told.clone()
            .write_all(format!("{client:?} {:?}", login()).as_bytes())
            .unwrap();
        told.all(&client.call(cluster::version()).await.unwrap_err());
        told.all(&client.call(qemu::start(&host, vmid)).await.unwrap_err());
        told.all(&client.call(qemu::reset(&host, vmid)).await.unwrap_err());
        told.all(&client.call(qemu::status(&host, vmid)).await.unwrap_err());
        let config = VmConfig {
            cipassword: Some("canary-guest".into()),
            ..VmConfig::default()
        };
        let create = qemu::create(&host, vmid, &config, &qemu::CreateOptions::default());
        told.clone().write_all(format!("{create:?} {config:?}").as_bytes()).unwrap();
        told.all(&client.call(create).await.unwrap_err());
        let nowhere = pve.client_as(login(), &[TWO]);
        told.all(&nowhere.call(cluster::version()).await.unwrap_err());
    });
    printed.text()
}

#[test]
fn a_token_is_never_printed() {
    let text = everything_printed(|| crate::client::pve::TOKEN.parse().unwrap());
    assert!(text.contains("POST /nodes/pve1/qemu"), "nothing was printed at all");
    assert!(!text.contains("canary"), "{}", around(&text));
}

#[test]
fn neither_password_nor_ticket_is_ever_printed() {
    let login = || Login::Password {
        user: "ops@pve".to_owned(),
        password: "canary-pass".into(),
        code: None,
    };
    let text = everything_printed(login);
    assert!(!text.contains("canary"), "{}", around(&text));
}

fn around(text: &str) -> String {
    text.lines()
        .find(|line| line.contains("canary"))
        .unwrap_or_default()
        .to_owned()
}
