use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pve_api::{Class, Login, Vmid, cluster, qemu};

use crate::client::pve::{Asked, ONE, Pve, Reply, answer, ok, world};

const VERSION: &str = r#"{"version":"9.2.11","release":"9.2"}"#;
const UPID: &str = r#""UPID:pve1:00000E70:000501E4:6AFA193D:qmstart:100:ops@pve:""#;

fn password() -> Login {
    Login::Password {
        user: "ops@pve".to_owned(),
        password: "canary-pass".into(),
        code: None,
    }
}

fn ticket(n: usize) -> Reply {
    ok(&format!(
        r#"{{"ticket":"PVE:ops@pve:{n}::sig+/=","CSRFPreventionToken":"csrf{n}","username":"ops@pve"}}"#
    ))
}

fn logins(pve: &Pve) -> Vec<String> {
    pve.asked()
        .iter()
        .filter(|asked| asked.is("POST", "/access/ticket"))
        .map(Asked::form)
        .collect()
}

#[test]
fn a_login_is_made_once_and_its_ticket_and_csrf_token_are_sent() {
    world(|pve| async move {
        pve.listen(ONE, |asked| {
            if asked.is("POST", "/access/ticket") {
                ticket(1)
            } else {
                ok(UPID)
            }
        })
        .await;
        let client = pve.client_as(password(), &[ONE]);
        for _ in 0..3 {
            client
                .call(qemu::start(&"pve1".parse().unwrap(), Vmid::new(100).unwrap()))
                .await
                .unwrap();
        }
        assert_eq!(logins(&pve), ["username=ops%40pve&password=canary-pass"]);
        let sent = pve.asked().pop().unwrap();
        assert_eq!(sent.headers["cookie"], "PVEAuthCookie=PVE%3Aops%40pve%3A1%3A%3Asig%2B%2F%3D");
        assert_eq!(sent.headers["csrfpreventiontoken"], "csrf1");
        assert!(!sent.headers.contains_key("authorization"));
    });
}

#[test]
fn a_ticket_is_renewed_with_itself_after_an_hour() {
    world(|pve| async move {
        let n = AtomicUsize::new(0);
        pve.listen(ONE, move |asked| {
            if asked.is("POST", "/access/ticket") {
                ticket(n.fetch_add(1, Ordering::Relaxed))
            } else {
                ok(VERSION)
            }
        })
        .await;
        let client = pve.client_as(password(), &[ONE]);
        client.call(cluster::version()).await.unwrap();
        tokio::time::sleep(Duration::from_secs(3700)).await;
        client.call(cluster::version()).await.unwrap();
        // Beyond two hours the ticket is dead: only the password helps.
        tokio::time::sleep(Duration::from_secs(7300)).await;
        client.call(cluster::version()).await.unwrap();
        let passwords: Vec<String> = logins(&pve)
            .iter()
            .map(|form| form.split("password=").nth(1).unwrap().to_owned())
            .collect();
        assert_eq!(
            passwords,
            ["canary-pass", "PVE%3Aops%40pve%3A0%3A%3Asig%2B%2F%3D", "canary-pass"]
        );
    });
}

#[test]
fn a_ticket_that_is_refused_is_replaced_once() {
    world(|pve| async move {
        let n = AtomicUsize::new(0);
        pve.listen(ONE, move |asked| {
            if asked.is("POST", "/access/ticket") {
                return ticket(n.fetch_add(1, Ordering::Relaxed));
            }
            let fresh = asked.headers["csrfpreventiontoken"] == "csrf1";
            if fresh {
                ok(UPID)
            } else {
                answer(401, "Authentication failed!", "")
            }
        })
        .await;
        let client = pve.client_as(password(), &[ONE]);
        client
            .call(qemu::start(&"pve1".parse().unwrap(), Vmid::new(100).unwrap()))
            .await
            .unwrap();
        assert_eq!(logins(&pve).len(), 2);
    });
}

#[test]
fn a_401_never_loops() {
    world(|pve| async move {
        pve.listen(ONE, |asked| {
            if asked.is("POST", "/access/ticket") {
                ticket(1)
            } else {
                answer(401, "Permission denied - invalid csrf token", "")
            }
        })
        .await;
        let error = pve.client_as(password(), &[ONE]).call(cluster::version()).await.unwrap_err();
        assert_eq!(error.class(), Some(&Class::Unauthenticated));
        assert_eq!(pve.asked().len(), 4);
    });
}

#[test]
fn a_wrong_password_is_tried_once() {
    world(|pve| async move {
        pve.listen(ONE, |_| answer(401, "authentication failure", "")).await;
        let error = pve.client_as(password(), &[ONE]).call(cluster::version()).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "POST /access/ticket was refused: 401 authentication failure"
        );
        assert_eq!(pve.asked().len(), 1);
    });
}

#[test]
fn a_second_factor_is_given_when_it_is_asked_for() {
    world(|pve| async move {
        pve.listen(ONE, |asked| match asked.form() {
            form if form.contains("tfa-challenge=") => ticket(2),
            _ if asked.is("POST", "/access/ticket") => ok(r#"{"ticket":"PVE:!tfa!x","NeedTFA":1,"CSRFPreventionToken":"c"}"#),
            _ => ok(VERSION),
        })
        .await;
        let login = Login::Password {
            user: "ops@pve".to_owned(),
            password: "p".into(),
            code: Some("123456".into()),
        };
        pve.client_as(login, &[ONE]).call(cluster::version()).await.unwrap();
        assert_eq!(
            logins(&pve)[1],
            "username=ops%40pve&password=totp%3A123456&tfa-challenge=PVE%3A%21tfa%21x"
        );
    });
}
