//! Watches what a server sends before SSH begins.
//!
//! sshd drops connections before its identification line when it limits a source address (`PerSourcePenalties`, `MaxStartups`), and
//! with `ssh.socket` the port opens before sshd runs. Only the first bytes of the stream tell these cases from a failed key exchange.

use std::io;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

use crate::dial::BoxIo;

/// How much text before the identification line is kept.
const KEPT_MAX: usize = 512;

/// A stream that records the text before the line that begins with `SSH-`.
pub(super) struct BannerProbe {
    stream: BoxIo,
    seen: Arc<Preamble>,
}

/// What was sent so far, shared with the task that waits for it.
#[derive(Default)]
pub(super) struct Preamble {
    text: Mutex<Received>,
    identified: Notify,
}

#[derive(Default)]
struct Received {
    bytes: Vec<u8>,
    identified: bool,
}

impl BannerProbe {
    pub fn new(stream: BoxIo) -> (Self, Arc<Preamble>) {
        let seen = Arc::<Preamble>::default();
        (
            Self {
                stream,
                seen: Arc::clone(&seen),
            },
            seen,
        )
    }
}

impl Preamble {
    /// Returns once the server has sent its identification line.
    pub async fn identified(&self) {
        self.identified.notified().await;
    }

    pub fn is_identified(&self) -> bool {
        self.text.lock().unwrap_or_else(PoisonError::into_inner).identified
    }

    /// What the server said instead of identifying itself, in one printable line.
    pub fn said(&self) -> Option<String> {
        let received = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        let text = printable(&String::from_utf8_lossy(&received.bytes));
        (!received.identified && !text.is_empty()).then_some(text)
    }

    fn record(&self, bytes: &[u8]) {
        let mut received = self.text.lock().unwrap_or_else(PoisonError::into_inner);
        if received.identified || received.bytes.len() >= KEPT_MAX {
            return;
        }
        received.bytes.extend_from_slice(bytes);
        if received.bytes.starts_with(b"SSH-") || received.bytes.windows(5).any(|window| window == b"\nSSH-") {
            received.identified = true;
            self.identified.notify_one();
        }
    }
}

/// Text of a remote side on one line, without control characters, so that it cannot change the terminal.
pub(super) fn printable(text: &str) -> String {
    let words: Vec<&str> = text
        .split(|letter: char| letter.is_whitespace() || letter.is_control())
        .collect();
    let line = words
        .into_iter()
        .filter(|word| !word.is_empty())
        .collect::<Vec<_>>()
        .join(" ");
    line.chars().take(KEPT_MAX).collect()
}

impl AsyncRead for BannerProbe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if matches!(polled, Poll::Ready(Ok(()))) {
            self.seen.record(&buffer.filled()[before..]);
        }
        polled
    }
}

impl AsyncWrite for BannerProbe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_identification_line_is_found_across_reads_and_after_other_lines() {
        let seen = Preamble::default();
        seen.record(b"welcome\r");
        seen.record(b"\nSS");
        assert_eq!(seen.said().unwrap(), "welcome SS");
        seen.record(b"H-2.0-OpenSSH_9.9\r\n");
        assert!(seen.is_identified() && seen.said().is_none());
    }

    #[test]
    fn text_of_the_server_cannot_control_the_terminal() {
        assert_eq!(
            printable("Not allowed\r\n\u{1b}[31mat this time"),
            "Not allowed [31mat this time"
        );
        assert_eq!(printable(&"x".repeat(9000)).len(), KEPT_MAX);
    }
}
