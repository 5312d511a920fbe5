//! Streams between programs. A pipe carries what its left side has written when that side has ended.

use std::sync::{Arc, Mutex};

use bytes::{Bytes, BytesMut};
use tokio::sync::mpsc;

use super::process::Process;

/// What a program reads. Clones read on where the other stopped.
#[derive(Clone, Default)]
pub(crate) struct Input(Arc<tokio::sync::Mutex<Source>>);

#[derive(Default)]
struct Source {
    buffer: BytesMut,
    more: Option<mpsc::UnboundedReceiver<Bytes>>,
}

impl Source {
    /// Waits for more; `false` at the end.
    async fn fill(&mut self) -> bool {
        let Some(more) = &mut self.more else { return false };
        match more.recv().await {
            Some(bytes) => {
                self.buffer.extend_from_slice(&bytes);
                true
            }
            None => {
                self.more = None;
                false
            }
        }
    }
}

impl Input {
    pub fn of(bytes: impl AsRef<[u8]>) -> Self {
        let buffer = BytesMut::from(bytes.as_ref());
        Self(Arc::new(tokio::sync::Mutex::new(Source { buffer, more: None })))
    }

    pub fn from_channel(more: mpsc::UnboundedReceiver<Bytes>) -> Self {
        let source = Source {
            buffer: BytesMut::new(),
            more: Some(more),
        };
        Self(Arc::new(tokio::sync::Mutex::new(source)))
    }

    pub async fn read_to_end(&self) -> Bytes {
        let mut source = self.0.lock().await;
        while source.fill().await {}
        source.buffer.split().freeze()
    }

    /// A line with its end; `None` where nothing is left.
    pub async fn read_line(&self) -> Option<Bytes> {
        let mut source = self.0.lock().await;
        loop {
            if let Some(end) = source.buffer.iter().position(|byte| *byte == b'\n') {
                return Some(source.buffer.split_to(end + 1).freeze());
            }
            if !source.fill().await {
                return (!source.buffer.is_empty()).then(|| source.buffer.split().freeze());
            }
        }
    }

    pub async fn read_up_to(&self, count: usize) -> Bytes {
        let mut source = self.0.lock().await;
        while source.buffer.len() < count && source.fill().await {}
        let count = count.min(source.buffer.len());
        source.buffer.split_to(count).freeze()
    }
}

/// Where a program writes.
#[derive(Clone)]
pub(crate) enum Output {
    Null,
    Buffer(Arc<Mutex<Vec<u8>>>),
    /// To the one who waits elsewhere: an SSH client, or the journal.
    Channel(mpsc::UnboundedSender<Bytes>),
    /// A file, opened before; writes go to its end.
    File(String),
    /// The journal, under this identifier.
    Journal(String),
}

impl Output {
    pub fn buffer() -> (Self, Arc<Mutex<Vec<u8>>>) {
        let buffer = Arc::new(Mutex::new(Vec::new()));
        (Self::Buffer(Arc::clone(&buffer)), buffer)
    }

    pub fn write(&self, process: &Process, bytes: &[u8]) {
        match self {
            Self::Null => {}
            Self::Buffer(buffer) => buffer.lock().expect("plain data").extend_from_slice(bytes),
            Self::Channel(to) => {
                let _ = to.send(Bytes::copy_from_slice(bytes));
            }
            Self::Journal(identifier) => {
                let text = String::from_utf8_lossy(bytes);
                process
                    .host
                    .journal
                    .write(&process.host, process.unit.as_deref(), identifier, &text);
            }
            Self::File(path) => {
                let _ = process
                    .host
                    .fs
                    .append(process.user.credentials(), path, bytes, 0o644, process.host.now());
            }
        }
    }
}
