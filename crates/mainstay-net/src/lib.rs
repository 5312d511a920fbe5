//! The seam: every byte, every instant and every random bit enters and leaves here.
//!
//! | outside | here |
//! |---|---|
//! | connections out | [`Dialer`]: [`Tcp`], [`JumpDialer`] (SSH), [`Routes`] among them, [`Detour`], [`SimNet`] in memory |
//! | commands and files in guests | [`SshClient`], over any dialer |
//! | connections in | [`Binder`] and [`Listener`]: [`Loopback`] TCP, [`SimNet`]; [`serve`] runs axum and tonic on them |
//! | whom to believe | [`Trust`]; [`Connector`] dials and shakes hands for hyper, tonic and kube; [`presented_chain`] |
//! | HTTP | [`http::HttpClient`]: reason phrases, exact lengths, errors that say whether a request was carried out |
//! | time, randomness | [`Wall`], [`Entropy`], tokio's clock |
//! | trying again | [`retry`] |
//! | a whole run from one number | [`simulate`] |
//!
//! ```
//! use std::{sync::Arc, time::Duration};
//! use mainstay_net::http::{Body, HttpClient, HttpOptions};
//! use mainstay_net::*;
//!
//! let text = simulate(7, Duration::from_secs(60), |entropy| async move {
//!     let net = SimNet::new(entropy.fork("net"));
//!     net.set_faults(NetFaults::latency(Duration::from_millis(1)..=Duration::from_millis(40)));
//!     let listener = net.bind("10.0.0.1:8006".parse().unwrap()).await.unwrap();
//!     let app = axum::Router::new().route("/", axum::routing::get(|| async { "hello" }));
//!     tokio::spawn(serve(listener, app, ServeOptions::plain()));
//!
//!     let wall = Wall::at("2026-01-01T00:00:00Z".parse().unwrap());
//!     let env = Env { dialer: Arc::new(net), wall, entropy };
//!     let connector = Connector::new(env.dialer.clone(), &Trust::Plain, env.wall, Duration::from_secs(5)).unwrap();
//!     let client = HttpClient::new(connector, HttpOptions::default());
//!     let request = ::http::Request::get("http://10.0.0.1:8006/").body(Body::empty()).unwrap();
//!     client.send(request, Duration::from_secs(10)).await.unwrap().body
//! });
//! assert_eq!(text.unwrap(), "hello");
//! ```

mod connector;
mod detour;
mod dial;
mod env;
mod error;
mod fingerprint;
pub mod http;
mod listen;
pub mod pem;
mod retry;
mod routes;
mod secret;
mod serve;
mod simnet;
mod simulate;
mod ssh;
mod target;
mod trust;

pub use self::connector::{Alpn, Connector, Wire, presented_chain, presented_fingerprint};
pub use self::detour::Detour;
pub use self::dial::{BoxIo, Dial, Dialer, Io, Tcp, dial_within};
pub use self::env::{Entropy, Env, Wall};
pub use self::error::{DialError, DialFault, Operation};
pub use self::fingerprint::{Fingerprint, FingerprintError};
pub use self::listen::{Binder, Listener, Loopback};
pub use self::retry::{Again, Backoff, retry};
pub use self::routes::Routes;
pub use self::secret::Secret;
pub use self::serve::{HangUp, HttpVersions, Peer, ServeOptions, ServerTls, serve, set_reason};
pub use self::simnet::{Group, NetFaults, SimDialer, SimNet};
pub use self::simulate::{SimulateError, simulate};
pub use self::ssh::{
    HostKey, HostKeyPolicy, JumpAddress, JumpAddressError, JumpDialer, KnownHosts, Login, RemoteFile, RunAs, SshClient,
    SshCommand, SshEndpoint, SshError, SshErrorClass, SshExit, SshHostKey, SshHostKeyError, SshLimits, SshOutput, sshd,
};
pub use self::target::{Target, TargetError};
pub use self::trust::{Identity, Trust, TrustError, crypto_provider, server_config};
