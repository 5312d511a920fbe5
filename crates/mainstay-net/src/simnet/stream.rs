//! One simulated TCP connection: two directions with delay, back pressure, walls and reset.

use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf, Bytes};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep_until};

/// Bytes that may be on their way in one direction before the writer has to wait, about what Linux buffers.
const WINDOW: usize = 256 * 1024;

/// What both ends share.
pub(super) struct Link {
    ends: [IpAddr; 2],
    latency: Duration,
    state: Mutex<LinkState>,
}

struct LinkState {
    /// Indexed by the end that writes.
    ways: [Way; 2],
    reset: bool,
}

/// One direction.
#[derive(Default)]
struct Way {
    chunks: VecDeque<(Instant, Bytes)>,
    queued: usize,
    /// The writer is done; the reader sees the end at this instant, after all data.
    ended: Option<Instant>,
    /// The reader is gone: writing is pointless.
    deaf: bool,
    blocked: bool,
    reader: Option<Waker>,
    writer: Option<Waker>,
}

impl Way {
    fn wake(&mut self) {
        for waker in [self.reader.take(), self.writer.take()].into_iter().flatten() {
            waker.wake();
        }
    }
}

impl Link {
    pub(super) fn new(from: IpAddr, to: IpAddr, latency: Duration) -> Self {
        let state = LinkState {
            ways: [Way::default(), Way::default()],
            reset: false,
        };
        Self {
            ends: [from, to],
            latency,
            state: Mutex::new(state),
        }
    }

    pub(super) fn ends(&self) -> (IpAddr, IpAddr) {
        (self.ends[0], self.ends[1])
    }

    pub(super) fn touches(&self, members: &BTreeSet<IpAddr>) -> bool {
        self.ends.iter().any(|end| members.contains(end))
    }

    pub(super) fn is_open(&self) -> bool {
        let state = self.lock();
        !state.reset && state.ways.iter().any(|way| way.ended.is_none())
    }

    /// Stops or resumes delivery in each direction; what is on its way waits.
    pub(super) fn block(&self, forth: bool, back: bool) {
        let mut state = self.lock();
        for (way, blocked) in state.ways.iter_mut().zip([forth, back]) {
            if way.blocked != blocked {
                way.blocked = blocked;
                way.wake();
            }
        }
    }

    pub(super) fn reset(&self) {
        let mut state = self.lock();
        state.reset = true;
        for way in &mut state.ways {
            way.chunks.clear();
            way.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, LinkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn arrival(&self) -> Instant {
        Instant::now() + self.latency
    }
}

/// One end of a connection.
pub(super) struct SimStream {
    link: Arc<Link>,
    end: usize,
    /// Set while the next chunk is still travelling.
    travelling: Option<Pin<Box<Sleep>>>,
    reset: Option<Pin<Box<Sleep>>>,
}

impl SimStream {
    pub(super) fn pair(link: &Arc<Link>, reset_at: Option<Instant>) -> (Self, Self) {
        let end = |end| Self {
            link: Arc::clone(link),
            end,
            travelling: None,
            reset: reset_at.map(|at| Box::pin(sleep_until(at))),
        };
        (end(0), end(1))
    }

    /// Fails once the connection is reset, be it by order or because its instant has come.
    fn alive(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        if let Some(reset) = &mut self.reset
            && reset.as_mut().poll(cx).is_ready()
        {
            self.reset = None;
            self.link.reset();
        }
        if self.link.lock().reset {
            Err(io::ErrorKind::ConnectionReset.into())
        } else {
            Ok(())
        }
    }

    /// Takes what has arrived, or says when the next piece will.
    fn take(&self, buf: &mut ReadBuf<'_>, waker: &Waker) -> Taken {
        let mut state = self.link.lock();
        let way = &mut state.ways[1 - self.end];
        let now = Instant::now();
        let before = buf.remaining();
        while !way.blocked
            && buf.remaining() > 0
            && let Some((at, data)) = way.chunks.front_mut()
            && *at <= now
        {
            let count = data.len().min(buf.remaining());
            buf.put_slice(&data[..count]);
            data.advance(count);
            if data.is_empty() {
                way.chunks.pop_front();
            }
        }
        let count = before - buf.remaining();
        way.queued -= count;
        if count > 0 {
            if let Some(writer) = way.writer.take() {
                writer.wake();
            }
            return Taken::Done;
        }
        let next = way.chunks.front().map(|(at, _)| *at).or(way.ended);
        match next {
            Some(at) if !way.blocked && at <= now => Taken::Done,
            Some(at) if !way.blocked => Taken::At(at),
            _ => {
                way.reader = Some(waker.clone());
                Taken::Nothing
            }
        }
    }

    fn put(&self, bufs: &[io::IoSlice<'_>], waker: &Waker) -> Poll<io::Result<usize>> {
        let mut state = self.link.lock();
        let way = &mut state.ways[self.end];
        if way.deaf || way.ended.is_some() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let room = WINDOW - way.queued;
        let wanted: usize = bufs.iter().map(|buf| buf.len()).sum();
        if wanted == 0 {
            return Poll::Ready(Ok(0));
        }
        if room == 0 {
            way.writer = Some(waker.clone());
            return Poll::Pending;
        }
        let data = gather(bufs, room.min(wanted));
        let count = data.len();
        way.queued += count;
        way.chunks.push_back((self.link.arrival(), data));
        if let Some(reader) = way.reader.take() {
            reader.wake();
        }
        Poll::Ready(Ok(count))
    }

    fn end(&self) {
        let arrival = self.link.arrival();
        let mut state = self.link.lock();
        let way = &mut state.ways[self.end];
        way.ended.get_or_insert(arrival);
        if let Some(reader) = way.reader.take() {
            reader.wake();
        }
    }
}

fn gather(bufs: &[io::IoSlice<'_>], limit: usize) -> Bytes {
    if let [one] = bufs {
        return Bytes::copy_from_slice(&one[..limit]);
    }
    let mut data = Vec::with_capacity(limit);
    for buf in bufs {
        let room = limit - data.len();
        data.extend_from_slice(&buf[..buf.len().min(room)]);
    }
    data.into()
}

enum Taken {
    Done,
    At(Instant),
    Nothing,
}

impl AsyncRead for SimStream {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        if buf.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        loop {
            match self.take(buf, cx.waker()) {
                Taken::Done => return Poll::Ready(Ok(())),
                Taken::Nothing => return Poll::Pending,
                Taken::At(arrival) => {
                    let mut travel = self.travelling.take().unwrap_or_else(|| Box::pin(sleep_until(arrival)));
                    travel.as_mut().reset(arrival);
                    let arrived = travel.as_mut().poll(cx).is_ready();
                    self.travelling = Some(travel);
                    if !arrived {
                        // A wall or a reset may come before the data does.
                        self.link.lock().ways[1 - self.end].reader = Some(cx.waker().clone());
                        return Poll::Pending;
                    }
                }
            }
        }
    }
}

impl AsyncWrite for SimStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[io::IoSlice::new(buf)])
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bufs: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        self.alive(cx)?;
        self.put(bufs, cx.waker())
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(self.alive(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.alive(cx)?;
        self.end();
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimStream {
    fn drop(&mut self) {
        self.end();
        let mut state = self.link.lock();
        let incoming = &mut state.ways[1 - self.end];
        incoming.deaf = true;
        incoming.wake();
    }
}
