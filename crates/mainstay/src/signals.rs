//! The signals that stop a run: SIGINT (Ctrl-C), SIGTERM, and SIGHUP, which a terminal sends when it is closed.

use tokio::signal::unix::{Signal, SignalKind, signal};

/// Receives every signal from its creation on, also those that arrive while nothing awaits them.
pub struct Signals {
    interrupt: Option<Signal>,
    terminate: Option<Signal>,
    hangup: Option<Signal>,
}

impl Signals {
    /// From now on these signals do not end the process.
    pub fn listen() -> Self {
        Self {
            interrupt: signal(SignalKind::interrupt()).ok(),
            terminate: signal(SignalKind::terminate()).ok(),
            hangup: signal(SignalKind::hangup()).ok(),
        }
    }

    /// Waits for the next signal.
    pub async fn next(&mut self) {
        tokio::select! {
            biased;
            () = recv(self.interrupt.as_mut()) => {}
            () = recv(self.terminate.as_mut()) => {}
            () = recv(self.hangup.as_mut()) => {}
        }
    }
}

/// Where a handler cannot be installed, the signal is never received.
async fn recv(signal: Option<&mut Signal>) {
    let told = match signal {
        Some(signal) => signal.recv().await,
        None => None,
    };
    if told.is_none() {
        std::future::pending::<()>().await;
    }
}
