use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pve_api::{Class, Client, ClientOptions, Endpoint, Error, Host, Unknown, VmConfig, Vmid, cluster, host, qemu, task};

use crate::client::pve::{ONE, Reply, TWO, answer, ok, slowly, world};

const VERSION: &str = r#"{"version":"9.2.11","release":"9.2","repoid":"14a2"}"#;
const UPID: &str = r#""UPID:pve1:00000E70:000501E4:6AFA193D:qmstart:100:ops@pve!ms:""#;

fn pve1() -> Host {
    "pve1".parse().unwrap()
}

fn vmid() -> Vmid {
    Vmid::new(100).unwrap()
}

#[test]
fn a_call_carries_the_token_and_an_encoded_form() {
    world(|pve| async move {
        pve.listen(ONE, |_| ok(UPID)).await;
        let config = VmConfig {
            boot: Some("order=scsi0;net0".parse().unwrap()),
            ..VmConfig::default()
        };
        let client = pve.client(&[ONE]);
        let upid = client
            .call(qemu::create(&pve1(), vmid(), &config, &qemu::CreateOptions::default()))
            .await
            .unwrap();
        assert_eq!(upid.kind(), "qmstart");
        let asked = &pve.asked()[0];
        assert!(asked.is("POST", "/nodes/pve1/qemu"));
        assert_eq!(asked.headers["authorization"], "PVEAPIToken=ops@pve!ms=canary-0af1-4c11");
        assert_eq!(asked.headers["content-type"], "application/x-www-form-urlencoded");
        assert_eq!(asked.form(), "vmid=100&boot=order%3Dscsi0%3Bnet0");
    });
}

#[test]
fn a_post_without_parameters_says_so() {
    world(|pve| async move {
        pve.listen(ONE, |_| ok(UPID)).await;
        pve.client(&[ONE]).call(qemu::start(&pve1(), vmid())).await.unwrap();
        assert_eq!(pve.asked()[0].headers["content-length"], "0");
    });
}

#[test]
fn a_token_that_is_not_accepted_is_tried_once() {
    world(|pve| async move {
        pve.listen(ONE, |_| answer(401, "Authentication failed!", "")).await;
        let error = pve.client(&[ONE, TWO]).call(cluster::version()).await.unwrap_err();
        assert_eq!(error.class(), Some(&Class::Unauthenticated));
        assert_eq!(error.to_string(), "GET /version was refused: 401 Authentication failed!");
        assert_eq!(pve.asked().len(), 1);
    });
}

#[test]
fn the_reason_phrase_is_read_where_there_is_no_body() {
    world(|pve| async move {
        pve.listen(ONE, |_| {
            answer(500, "Configuration file 'nodes/pve1/qemu-server/100.conf' does not exist", "")
        })
        .await;
        let error = pve.client(&[ONE]).call(qemu::config(&pve1(), vmid())).await.unwrap_err();
        assert!(error.is_missing(), "{error}");
        assert_eq!(pve.asked().len(), 1);
    });
}

#[test]
fn a_read_through_a_lost_gateway_is_tried_again() {
    world(|pve| async move {
        let n = AtomicUsize::new(0);
        pve.listen(ONE, move |_| match n.fetch_add(1, Ordering::Relaxed) {
            0 => answer(596, "Connection timed out", ""),
            1 => answer(595, "No route to host", ""),
            _ => ok(VERSION),
        })
        .await;
        let version = pve.client(&[ONE]).call(host::version(&pve1())).await.unwrap();
        assert_eq!(version.version.to_string(), "9.2.11");
        assert_eq!(pve.asked().len(), 3);
    });
}

#[test]
fn a_change_through_a_lost_gateway_is_not_repeated() {
    world(|pve| async move {
        pve.listen(ONE, |_| answer(596, "Broken pipe", "")).await;
        pve.listen(TWO, |_| ok(UPID)).await;
        let error = pve.client(&[ONE, TWO]).call(qemu::start(&pve1(), vmid())).await.unwrap_err();
        let Error::Unknown {
            source: Unknown::Gateway { status: 596, .. },
            ..
        } = &error
        else {
            panic!("{error:?}")
        };
        assert_eq!(error.class(), Some(&Class::HostUnreachable));
        assert_eq!(pve.asked().len(), 1);
    });
}

#[test]
fn a_change_whose_answer_is_lost_is_not_repeated() {
    world(|pve| async move {
        pve.listen(ONE, |_| Reply::HangUp).await;
        pve.listen(TWO, |_| ok(UPID)).await;
        for call in [qemu::start(&pve1(), vmid()), qemu::stop(&pve1(), vmid(), false)] {
            let error = pve.client(&[ONE, TWO]).call(call).await.unwrap_err();
            assert!(
                matches!(
                    error,
                    Error::Unknown {
                        source: Unknown::Lost(_),
                        ..
                    }
                ),
                "{error:?}"
            );
        }
        assert_eq!(pve.asked().len(), 2);
    });
}

#[test]
fn a_change_that_gets_no_answer_in_time_is_not_repeated() {
    world(|pve| async move {
        pve.listen(ONE, |_| Reply::Silence).await;
        let error = pve.client(&[ONE]).call(qemu::start(&pve1(), vmid())).await.unwrap_err();
        assert!(error.is_unknown(), "{error:?}");
        assert_eq!(pve.asked().len(), 1);
    });
}

#[test]
fn a_read_whose_answer_is_lost_is_asked_elsewhere() {
    world(|pve| async move {
        pve.listen(ONE, |_| Reply::HangUp).await;
        pve.listen(TWO, |_| ok(VERSION)).await;
        pve.client(&[ONE, TWO]).call(cluster::version()).await.unwrap();
        assert_eq!(pve.asked().len(), 2);
    });
}

#[test]
fn what_was_not_sent_goes_to_the_next_address_even_when_it_changes_things() {
    world(|pve| async move {
        pve.net.refuse(ONE.parse().unwrap());
        pve.listen(TWO, |_| ok(UPID)).await;
        let client = pve.client(&[ONE, TWO]);
        client.call(qemu::start(&pve1(), vmid())).await.unwrap();
        client.call(qemu::start(&pve1(), vmid())).await.unwrap();
        // The address that answered is asked first from then on, on the same connection.
        assert_eq!(pve.asked().iter().map(|asked| asked.connection).collect::<Vec<_>>(), [0, 0]);
    });
}

#[test]
fn what_cannot_be_sent_anywhere_says_so() {
    world(|pve| async move {
        pve.net.refuse(ONE.parse().unwrap());
        let error = pve.client(&[ONE]).call(qemu::start(&pve1(), vmid())).await.unwrap_err();
        assert!(error.is_not_sent(), "{error:?}");
        assert_eq!(error.to_string(), "POST /nodes/pve1/qemu/100/status/start was not sent");
        let cause = std::error::Error::source(&error).unwrap();
        assert!(std::error::Error::source(cause).unwrap().to_string().contains("refused"));
    });
}

#[test]
fn a_call_for_a_host_goes_to_its_own_address_when_that_is_known() {
    world(|pve| async move {
        for at in [ONE, TWO] {
            pve.listen(at, |_| ok(VERSION)).await;
        }
        let named = |at: &str, host: &str| Endpoint {
            target: at.parse().unwrap(),
            trust: mainstay_net::Trust::Plain,
            host: Some(host.parse().unwrap()),
        };
        let login = crate::client::pve::TOKEN.parse().unwrap();
        let endpoints = vec![named(ONE, "pve1"), named(TWO, "pve2")];
        let client = Client::new(&pve.env(), endpoints, login, ClientOptions::default()).unwrap();
        client.call(host::version(&"pve2".parse().unwrap())).await.unwrap();
        client.call(host::version(&pve1())).await.unwrap();
        let to: Vec<String> = pve.asked().into_iter().map(|asked| asked.headers["host"].clone()).collect();
        assert_eq!(to, [TWO, ONE]);
    });
}

#[test]
fn a_connection_is_used_a_hundred_times_and_not_after_five_idle_seconds() {
    world(|pve| async move {
        pve.listen(ONE, |_| ok(VERSION)).await;
        let client = pve.client(&[ONE]);
        for _ in 0..250 {
            client.call(cluster::version()).await.unwrap();
        }
        let last = pve.asked().last().unwrap().connection;
        assert_eq!(last, 2);
        tokio::time::sleep(Duration::from_millis(4500)).await;
        client.call(cluster::version()).await.unwrap();
        assert_eq!(pve.asked().last().unwrap().connection, 3);
        assert_eq!(pve.asked().len(), 251);
    });
}

#[test]
fn calls_for_one_host_wait_for_their_turn_and_do_not_delay_other_hosts() {
    world(|pve| async move {
        let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (in_flight, peak) = (Arc::clone(&now), Arc::clone(&most));
        pve.listen(ONE, move |asked| {
            if asked.target.contains("/nodes/") {
                peak.fetch_max(in_flight.fetch_add(1, Ordering::Relaxed) + 1, Ordering::Relaxed);
            }
            slowly(VERSION, Duration::from_secs(1))
        })
        .await;
        let client = pve.client(&[ONE]);
        let busy = futures::future::join_all((0..12).map(|_| async {
            client.call(host::version(&pve1())).await.unwrap();
            now.fetch_sub(1, Ordering::Relaxed);
        }));
        let other = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let began = tokio::time::Instant::now();
            client.call(cluster::version()).await.unwrap();
            assert!(began.elapsed() < Duration::from_millis(1500));
        };
        tokio::join!(busy, other);
        assert_eq!(most.load(Ordering::Relaxed), ClientOptions::default().calls_per_host);
    });
}

#[test]
fn what_the_web_server_answers_itself_does_not_wait_behind_the_root_daemon() {
    world(|pve| async move {
        pve.listen(ONE, |asked| {
            if asked.target.contains("/status/current") {
                return slowly(r#"{"status":"running"}"#, Duration::from_secs(9));
            }
            ok("[]")
        })
        .await;
        let client = pve.client(&[ONE]);
        let host = pve1();
        let busy = futures::future::join_all((0..8).map(|_| client.call(qemu::status(&host, vmid()))));
        let list = async {
            tokio::time::sleep(Duration::from_millis(100)).await;
            let began = tokio::time::Instant::now();
            client.call(task::active(&host)).await.unwrap();
            assert!(began.elapsed() < Duration::from_millis(100), "{:?}", began.elapsed());
        };
        let (_, ()) = tokio::join!(busy, list);
    });
}
