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
            hangup: (!ignores_hangup()).then(|| signal(SignalKind::hangup()).ok()).flatten(),
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

/// `nohup mainstay up` goes on when its terminal is closed: the signal was ignored before the program began, and stays so. The kernel lists
/// ignored signals as a mask in which SIGHUP, number 1, is the lowest bit.
fn ignores_hangup() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 == 1)
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
