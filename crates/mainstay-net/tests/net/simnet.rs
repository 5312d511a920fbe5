//! The network in memory: what it can do to connections.

use std::time::Duration;

use mainstay_net::{
    Binder, BoxIo, DialError, DialFault, Dialer, Entropy, Listener, NetFaults, SimNet, Target, dial_within, simulate,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep, timeout};

use crate::world::{HOUR, SECOND, ip};

const MILLI: Duration = Duration::from_millis(1);

/// An echo server on 10.0.0.1:7.
async fn echo(net: &SimNet) {
    let mut listener = net.bind("10.0.0.1:7".parse().unwrap()).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(copy_back(stream));
        }
    });
}

async fn copy_back(stream: BoxIo) {
    let (mut read, mut write) = tokio::io::split(stream);
    let _ = tokio::io::copy(&mut read, &mut write).await;
    let _ = write.shutdown().await;
}

fn to() -> Target {
    Target::new("10.0.0.1", 7)
}

async fn dial(net: &SimNet) -> Result<BoxIo, DialError> {
    dial_within(net, &to(), SECOND * 30).await
}

async fn answers(stream: &mut BoxIo) -> bool {
    let mut back = [0; 4];
    let talk = async {
        stream.write_all(b"ping").await.ok()?;
        stream.read_exact(&mut back).await.ok()
    };
    matches!(timeout(SECOND * 30, talk).await, Ok(Some(_)))
}

fn in_world<T: Send>(seed: u64, test: impl AsyncFnOnce(SimNet) -> T + Send) -> T {
    let run = simulate(seed, HOUR * 24, |entropy| async move {
        let net = SimNet::new(entropy);
        echo(&net).await;
        test(net).await
    });
    run.unwrap()
}

#[test]
fn what_is_sent_arrives_whole_and_in_order() {
    in_world(1, async |net: SimNet| {
        let sent: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
        let (mut read, mut write) = tokio::io::split(dial(&net).await.unwrap());
        let expected = sent.clone();
        let writer = tokio::spawn(async move {
            write.write_all(&sent).await.unwrap();
            write.shutdown().await.unwrap();
        });
        let mut got = Vec::new();
        read.read_to_end(&mut got).await.unwrap();
        writer.await.unwrap();
        assert!(got == expected);
    });
}

#[test]
fn latency_delays_the_handshake_and_every_message() {
    let (dialled, answered) = in_world(1, async |net: SimNet| {
        net.set_faults(NetFaults::latency(20 * MILLI..=20 * MILLI));
        let begun = Instant::now();
        let mut stream = dial(&net).await.unwrap();
        let dialled = begun.elapsed();
        assert!(answers(&mut stream).await);
        (dialled, begun.elapsed() - dialled)
    });
    assert_eq!((dialled, answered), (40 * MILLI, 40 * MILLI));
}

#[test]
fn a_closed_port_is_refused_and_an_absent_machine_unreachable() {
    in_world(1, async |net: SimNet| {
        let refused = net.dial(&Target::new("10.0.0.1", 8)).await.err().unwrap();
        assert!(matches!(refused.fault(), DialFault::Refused), "{refused:?}");
        let begun = Instant::now();
        let absent = net.dial(&Target::new("10.0.0.99", 7)).await.err().unwrap();
        assert!(matches!(absent.fault(), DialFault::Unreachable), "{absent:?}");
        assert_eq!(begun.elapsed(), SECOND * 3);
        net.attach(ip("10.0.0.99"));
        let attached = net.dial(&Target::new("10.0.0.99", 7)).await.err().unwrap();
        assert!(matches!(attached.fault(), DialFault::Refused), "{attached:?}");
    });
}

#[test]
fn names_are_looked_up_when_dialled() {
    in_world(1, async |net: SimNet| {
        let named = Target::new("echo.lan", 7);
        let unknown = net.dial(&named).await.err().unwrap();
        assert!(matches!(unknown.fault(), DialFault::UnknownName(_)), "{unknown:?}");
        assert!(unknown.remedy().unwrap().contains("echo.lan"));
        net.name("echo.lan", [ip("10.0.0.1")]);
        assert!(answers(&mut net.dial(&named).await.unwrap()).await);
        net.name("echo.lan", []);
        assert!(net.dial(&named).await.is_err());
    });
}

#[test]
fn refusal_can_be_ordered_and_ended() {
    in_world(1, async |net: SimNet| {
        let at = "10.0.0.1:7".parse().unwrap();
        net.refuse(at);
        assert!(matches!(dial(&net).await.err().unwrap().fault(), DialFault::Refused));
        net.stop_refusing(at);
        dial(&net).await.map(drop).unwrap();
    });
}

#[test]
fn a_black_hole_swallows_dials_until_it_ends() {
    in_world(1, async |net: SimNet| {
        let mut open = dial(&net).await.unwrap();
        net.black_hole(ip("10.0.0.1"));
        let begun = Instant::now();
        let error = dial(&net).await.err().unwrap();
        assert!(matches!(error.fault(), DialFault::TimedOut { .. }), "{error:?}");
        assert_eq!(begun.elapsed(), SECOND * 30);
        assert!(error.remedy().unwrap().contains("10.0.0.1"));
        assert!(!answers(&mut open).await);
        // A dial that waits meanwhile gets through, like a repeated connection attempt.
        let (dialled, ()) = tokio::join!(dial(&net), async {
            sleep(SECOND * 10).await;
            net.end_black_hole(ip("10.0.0.1"));
        });
        assert!(answers(&mut dialled.unwrap()).await);
    });
}

#[test]
fn what_was_under_way_arrives_after_the_repair() {
    in_world(1, async |net: SimNet| {
        let mut stream = net.from(ip("10.0.0.2")).dial(&to()).await.unwrap();
        net.partition(ip("10.0.0.1"), ip("10.0.0.2"));
        stream.write_all(b"ping").await.unwrap();
        let mut back = [0; 4];
        assert!(timeout(SECOND * 60, stream.read_exact(&mut back)).await.is_err());
        // Others are not concerned.
        assert!(answers(&mut dial(&net).await.unwrap()).await);
        net.repair_between(ip("10.0.0.2"), ip("10.0.0.1"));
        timeout(SECOND, stream.read_exact(&mut back)).await.unwrap().unwrap();
        assert_eq!(&back, b"ping");
    });
}

#[test]
fn a_partition_has_a_direction_and_names() {
    in_world(1, async |net: SimNet| {
        net.name("west", [ip("10.0.0.2"), ip("10.0.0.3")]);
        net.name("east", [ip("10.0.0.1")]);
        let west = net.from(ip("10.0.0.2"));
        let mut stream = west.dial(&to()).await.unwrap();
        // Questions arrive, answers do not.
        net.partition_one_way("east", "west");
        assert!(!answers(&mut stream).await);
        assert!(dial_within(&west, &to(), SECOND).await.is_err());
        // Repairing one machine leaves the wall to the other.
        net.repair_between(ip("10.0.0.3"), "east");
        assert!(dial_within(&net.from(ip("10.0.0.3")), &to(), SECOND).await.is_ok());
        assert!(dial_within(&west, &to(), SECOND).await.is_err());
        net.repair();
        assert!(dial_within(&west, &to(), SECOND).await.is_ok());
    });
}

#[test]
fn connections_are_reset_at_the_ordered_instant() {
    in_world(1, async |net: SimNet| {
        let mut stream = dial(&net).await.unwrap();
        let begun = Instant::now();
        net.reset_at(begun + SECOND * 7, ip("10.0.0.1"));
        let fault = stream.read_u8().await.unwrap_err();
        assert_eq!(fault.kind(), std::io::ErrorKind::ConnectionReset);
        assert_eq!(begun.elapsed(), SECOND * 7);
        assert!(answers(&mut dial(&net).await.unwrap()).await);
    });
}

#[test]
fn a_crash_takes_listeners_and_connections_with_it() {
    in_world(1, async |net: SimNet| {
        let mut stream = dial(&net).await.unwrap();
        let mut elsewhere = net.bind("10.0.0.5:7".parse().unwrap()).await.unwrap();
        net.crash(ip("10.0.0.1"));
        assert_eq!(
            stream.read_u8().await.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionReset
        );
        assert!(matches!(dial(&net).await.err().unwrap().fault(), DialFault::Unreachable));
        assert_eq!(net.open_connections(), 0);
        let other = elsewhere.address().into();
        let (dialled, accepted) = tokio::join!(net.dial(&other), accept(&mut *elsewhere));
        assert!(dialled.is_ok() && accepted);
        // The same address can be used again.
        echo(&net).await;
        assert!(answers(&mut dial(&net).await.unwrap()).await);
    });
}

async fn accept(listener: &mut dyn Listener) -> bool {
    listener.accept().await.is_ok()
}

#[test]
fn a_listener_that_crashed_says_so() {
    in_world(1, async |net: SimNet| {
        let mut listener = net.bind("10.0.0.5:7".parse().unwrap()).await.unwrap();
        net.crash(ip("10.0.0.5"));
        assert!(!accept(&mut *listener).await);
        let successor = net.bind("10.0.0.5:7".parse().unwrap()).await.unwrap();
        drop(listener);
        // The old listener's end does not unbind the new one.
        net.dial(&successor.address().into()).await.map(drop).unwrap();
    });
}

#[test]
fn chance_hits_about_as_often_as_asked() {
    let faults = NetFaults {
        refuse: 0.1,
        black_hole: 0.05,
        reset: 0.2,
        reset_after: SECOND..=SECOND * 2,
        ..NetFaults::NONE
    };
    let (refused, lost, reset) = in_world(5, async |net: SimNet| {
        net.set_faults(faults);
        let (mut refused, mut lost, mut reset) = (0, 0, 0);
        for _ in 0..1000 {
            match dial_within(&net, &to(), SECOND).await {
                Ok(mut stream) => reset += usize::from(timeout(SECOND * 5, stream.read_u8()).await.is_ok()),
                Err(error) if matches!(error.fault(), DialFault::Refused) => refused += 1,
                Err(_) => lost += 1,
            }
        }
        (refused, lost, reset)
    });
    assert!(
        (70..130).contains(&refused) && (30..75).contains(&lost) && (130..220).contains(&reset),
        "{refused} {lost} {reset}"
    );
}

#[test]
fn another_dial_does_not_change_a_connections_fate() {
    let faults = NetFaults {
        latency: MILLI..=MILLI * 1000,
        refuse: 0.3,
        ..NetFaults::NONE
    };
    let fate = |disturbed: bool| {
        let faults = faults.clone();
        in_world(9, async move |net: SimNet| {
            net.bind("10.0.0.2:9".parse().unwrap()).await.map(Box::leak).unwrap();
            net.set_faults(faults);
            let mut fates = Vec::new();
            for _ in 0..20 {
                if disturbed {
                    let _ = net.dial(&Target::new("10.0.0.2", 9)).await;
                }
                let begun = Instant::now();
                let outcome = dial(&net).await.is_ok();
                fates.push((outcome, begun.elapsed()));
            }
            fates
        })
    };
    assert_eq!(fate(false), fate(true));
}

#[test]
fn faults_can_be_limited_to_one_machine_and_ended() {
    in_world(1, async |net: SimNet| {
        let always = NetFaults {
            refuse: 1.0,
            ..NetFaults::NONE
        };
        net.set_faults_towards(ip("10.0.0.1"), Some(always.clone()));
        assert!(dial(&net).await.is_err());
        net.set_faults_towards(ip("10.0.0.1"), None);
        assert!(dial(&net).await.is_ok());
        net.set_faults(always);
        assert!(dial(&net).await.is_err());
        net.set_faults(NetFaults::NONE);
        assert!(dial(&net).await.is_ok());
    });
}

#[test]
fn five_hundred_machines_are_cheap() {
    let run = simulate(1, HOUR, |entropy: Entropy| async move {
        let net = SimNet::new(entropy);
        net.set_faults(NetFaults::latency(MILLI..=40 * MILLI));
        for n in 0..500u32 {
            let mut listener = net
                .bind(std::net::SocketAddr::new(std::net::Ipv4Addr::from(0x0a00_0000 + n).into(), 7))
                .await
                .unwrap();
            tokio::spawn(async move {
                while let Ok((stream, _)) = listener.accept().await {
                    tokio::spawn(copy_back(stream));
                }
            });
        }
        let talks = (0..500u32).map(|n| {
            let net = net.clone();
            async move {
                let to = Target::new(std::net::Ipv4Addr::from(0x0a00_0000 + n).to_string(), 7);
                for _ in 0..4 {
                    assert!(answers(&mut net.dial(&to).await.unwrap()).await);
                }
            }
        });
        futures::future::join_all(talks).await;
        sleep(SECOND).await;
        net.open_connections()
    });
    assert_eq!(run.unwrap(), 0);
}
