//! Being told to stop: Ctrl-C, or SIGTERM from whoever started the program.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Hears every signal from the moment it was made, also one that came while nobody waited for it.
pub struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
}

impl Signals {
    /// From now on these signals do not end the program by themselves.
    pub fn listen() -> Self {
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
        }
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            biased;
            () = recv(self.interrupt.as_mut()) => {}
            () = recv(self.terminate.as_mut()) => {}
        }
    }
}

/// A system without such a signal never sends it.
async fn recv(signal: Option<&mut Signal>) {
    let told = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if told.is_none() {
        std::future::pending::<()>().await;
    }
}
