//! Request bodies of exactly known length.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::stream::{BoxStream, Stream, StreamExt};
use http_body::{Frame, SizeHint};

/// What a request carries. Its length is always known, so HTTP/1.1 sends `Content-Length` and never chunks.
pub struct Body(Content);

enum Content {
    Whole(Bytes),
    Stream {
        left: u64,
        chunks: BoxStream<'static, io::Result<Bytes>>,
    },
}

impl Body {
    pub fn empty() -> Self {
        Self(Content::Whole(Bytes::new()))
    }

    /// Streams exactly `length` bytes; a stream that gives more or less fails the request.
    pub fn stream(length: u64, chunks: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Self {
        Self(Content::Stream {
            left: length,
            chunks: chunks.boxed(),
        })
    }

    /// A second copy, where that is possible.
    pub(super) fn repeatable(&self) -> Option<Self> {
        match &self.0 {
            Content::Whole(bytes) => Some(Self(Content::Whole(bytes.clone()))),
            Content::Stream { .. } => None,
        }
    }
}

impl<T: Into<Bytes>> From<T> for Body {
    fn from(bytes: T) -> Self {
        Self(Content::Whole(bytes.into()))
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut self.0 {
            Content::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Content::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Content::Stream { left, chunks } => chunks.poll_next_unpin(cx).map(|next| take(left, next)),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.0 {
            Content::Whole(bytes) => bytes.is_empty(),
            Content::Stream { left, .. } => *left == 0,
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.0 {
            Content::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Content::Stream { left, .. } => SizeHint::with_exact(*left),
        }
    }
}

fn take(left: &mut u64, next: Option<io::Result<Bytes>>) -> Option<io::Result<Frame<Bytes>>> {
    let wrong = |text| Some(Err(io::Error::new(io::ErrorKind::InvalidData, text)));
    match next {
        None if *left == 0 => None,
        None => wrong(format!("the body ended {left} bytes early")),
        Some(Err(cause)) => Some(Err(cause)),
        Some(Ok(data)) if data.len() as u64 > *left => wrong("the body is longer than announced".to_owned()),
        Some(Ok(data)) => {
            *left -= data.len() as u64;
            Some(Ok(Frame::data(data)))
        }
    }
}
