//! Seeds per second of a trivial world: one server, one client, a few requests in rough weather. Kept for comparison over time.
//!
//! `cargo bench -p mainstay-net`; items per second are seeds per second.

use std::sync::Arc;
use std::time::Duration;

use divan::Bencher;
use divan::counter::ItemsCount;
use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Binder, Connector, Dialer, NetFaults, ServeOptions, SimNet, Trust, Wall, serve, server_config, simulate};
use rustls::ServerConfig;

const SEEDS: u64 = 50;
const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 20)]
fn plain(bencher: Bencher) {
    bencher
        .counter(ItemsCount::new(SEEDS))
        .bench(|| (0..SEEDS).for_each(|seed| run(seed, &Trust::Plain, None)));
}

#[divan::bench(sample_count = 20)]
fn tls(bencher: Bencher) {
    let (trust, server) = pki();
    bencher
        .counter(ItemsCount::new(SEEDS))
        .bench(|| (0..SEEDS).for_each(|seed| run(seed, &trust, Some(&server))));
}

fn pki() -> (Trust, Arc<ServerConfig>) {
    let pair = rcgen::generate_simple_self_signed(["10.0.0.1".to_owned()]).expect("a certificate");
    let key = mainstay_net::pem::private_key(&pair.signing_key.serialize_pem()).expect("a key");
    let certificate = pair.cert.der().clone();
    let trust = Trust::Pin(mainstay_net::Fingerprint::of(&certificate));
    let config = server_config(Wall::real())
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .expect("a pair");
    (trust, Arc::new(config))
}

fn run(seed: u64, trust: &Trust, tls: Option<&Arc<ServerConfig>>) {
    let answered = simulate(seed, SECOND * 3600, |entropy| async move {
        let net = SimNet::new(entropy.fork("net"));
        net.set_faults(NetFaults {
            latency: MILLI..=MILLI * 40,
            refuse: 0.1,
            black_hole: 0.03,
            reset: 0.1,
            reset_after: MILLI..=SECOND,
        });
        let listener = net
            .bind("10.0.0.1:8006".parse().expect("an address"))
            .await
            .expect("a free address");
        let app = axum::Router::new().route("/", axum::routing::get(|| async { "ok" }));
        let options = tls.map_or_else(ServeOptions::plain, |config| ServeOptions::tls(Arc::clone(config)));
        tokio::spawn(serve(listener, app, options));
        let dialer: Arc<dyn Dialer> = Arc::new(net);
        let connector = Connector::new(dialer, trust, Wall::real(), SECOND * 5).expect("usable trust");
        let client = HttpClient::new(
            connector,
            HttpOptions {
                http1_only: true,
                ..HttpOptions::default()
            },
        );
        let mut answered = 0;
        while answered < 20 {
            let request = http::Request::get("http://10.0.0.1:8006/")
                .body(Body::empty())
                .expect("a request");
            answered += u32::from(client.send(request, SECOND * 10).await.is_ok());
            tokio::time::sleep(SECOND).await;
        }
        answered
    });
    assert_eq!(answered, Ok(20));
}
