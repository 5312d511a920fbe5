//! Requests and answers as bytes. pveproxy reads and writes them with its own code, so does the simulator.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// No more header lines and bytes than this, else pveproxy falls silent.
const MAX_HEADER_LINES: usize = 64;
const MAX_HEADER_BYTES: usize = 8 * 1024;
/// What pveproxy waits for the next byte of a request.
const READ_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Clone, Debug, Default)]
pub struct Request {
    pub verb: String,
    /// As sent: path and query, perhaps with scheme and host in front.
    pub target: String,
    pub headers: Vec<(String, String)>,
    pub body: Bytes,
    /// HTTP/1.0 closes by default.
    pub old: bool,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    pub fn wants_close(&self) -> bool {
        let connection = self.header("connection").unwrap_or_default().to_ascii_lowercase();
        connection.contains("close") || self.old && !connection.contains("keep-alive")
    }
}

#[derive(Clone, Debug)]
pub struct Response {
    pub status: u16,
    pub reason: String,
    pub headers: Vec<(&'static str, String)>,
    pub body: Bytes,
    /// pveproxy sends no length with an empty error and closes.
    pub bare: bool,
}

impl Response {
    /// The answer of the proxy itself: a line of text, or nothing at all.
    pub fn plain(status: u16, reason: &str, body: impl Into<Bytes>) -> Self {
        let body = body.into();
        let bare = body.is_empty();
        Self {
            status,
            reason: reason.into(),
            headers: Vec::new(),
            body,
            bare,
        }
    }
}

/// What came over a connection.
pub enum Incoming {
    Request(Request),
    /// To be answered without looking at the rest.
    Refused(Request, Response),
    /// The peer closed, was silent too long, or sent what pveproxy does not answer.
    Gone,
}

/// Reads one request, within pveproxy's limits.
pub async fn read_request<S: AsyncRead + Unpin>(stream: &mut S, left: &mut BytesMut, limit: usize) -> io::Result<Incoming> {
    let Some(head) = read_head(stream, left).await? else {
        return Ok(Incoming::Gone);
    };
    let Some(mut request) = parse_head(&head) else {
        return Ok(Incoming::Refused(
            Request::default(),
            Response::plain(400, "bad request", "bad request"),
        ));
    };
    if let Some(refusal) = refuse_early(&request, limit) {
        return Ok(Incoming::Refused(request, refusal));
    }
    let length = request
        .header("content-length")
        .and_then(|l| l.trim().parse().ok())
        .unwrap_or(0);
    match read_exactly(stream, left, length).await? {
        Some(body) => request.body = body,
        None => return Ok(Incoming::Gone),
    }
    Ok(Incoming::Request(request))
}

async fn fill<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut BytesMut) -> io::Result<bool> {
    match tokio::time::timeout(READ_TIMEOUT, stream.read_buf(buffer)).await {
        Ok(Ok(0)) | Err(_) => Ok(false),
        Ok(Ok(_)) => Ok(true),
        Ok(Err(e)) => Err(e),
    }
}

async fn read_head<S: AsyncRead + Unpin>(stream: &mut S, left: &mut BytesMut) -> io::Result<Option<Bytes>> {
    let mut searched = 0;
    loop {
        if let Some(at) = find(&left[searched..], b"\r\n\r\n").map(|at| at + searched) {
            let head = left.split_to(at + 4).freeze();
            let lines = head.split(|b| *b == b'\n').count();
            return Ok((lines <= MAX_HEADER_LINES + 3 && head.len() <= MAX_HEADER_BYTES + 1024).then_some(head));
        }
        searched = left.len().saturating_sub(3);
        if left.len() > 64 * 1024 || !fill(stream, left).await? {
            return Ok(None);
        }
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|w| w == needle)
}

async fn read_exactly<S: AsyncRead + Unpin>(stream: &mut S, left: &mut BytesMut, length: usize) -> io::Result<Option<Bytes>> {
    while left.len() < length {
        if !fill(stream, left).await? {
            return Ok(None);
        }
    }
    Ok(Some(left.split_to(length).freeze()))
}

fn parse_head(head: &[u8]) -> Option<Request> {
    let text = String::from_utf8_lossy(head);
    let mut lines = text.split("\r\n");
    let mut first = lines.next()?.split(' ');
    let (verb, target, version) = (first.next()?, first.next()?, first.next()?);
    let headers = lines
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.trim().to_string(), value.trim().to_string()))
        .collect();
    Some(Request {
        verb: verb.into(),
        target: target.into(),
        headers,
        body: Bytes::new(),
        old: version == "HTTP/1.0",
    })
}

fn refuse_early(request: &Request, limit: usize) -> Option<Response> {
    let text = |status, text: &str| Some(Response::plain(status, text, text.to_string()));
    if !matches!(request.verb.as_str(), "GET" | "POST" | "PUT" | "DELETE") {
        return Some(Response::plain(501, &format!("method '{}' not available", request.verb), ""));
    }
    if request
        .header("transfer-encoding")
        .is_some_and(|t| t.to_ascii_lowercase().contains("chunked"))
    {
        return text(501, "chunked transfer encoding not supported");
    }
    let length: usize = request
        .header("content-length")
        .and_then(|l| l.trim().parse().ok())
        .unwrap_or(0);
    let kind = request.header("content-type").unwrap_or_default();
    if length > 0 && !matches!(request.verb.as_str(), "POST" | "PUT") {
        return text(501, &format!("Unexpected content for method '{}'", request.verb));
    }
    if kind.starts_with("multipart/form-data") {
        return None;
    }
    if length > limit {
        return text(501, "for data too large");
    }
    let media = kind.split(';').next().unwrap_or_default().trim();
    if length > 0 && !matches!(media, "" | "application/x-www-form-urlencoded" | "application/json") {
        return text(506, &format!("upload 'Content-Type '{kind}' not implemented"));
    }
    None
}

/// Writes an answer; says whether the connection may carry another request.
pub async fn write_response<S: AsyncWrite + Unpin>(stream: &mut S, response: &Response, close: bool) -> io::Result<()> {
    let mut head = format!("HTTP/1.1 {} {}\r\n", response.status, response.reason);
    let connection = if close { "close" } else { "Keep-Alive" };
    head.push_str(&format!(
        "Cache-Control: max-age=0\r\nConnection: {connection}\r\nPragma: no-cache\r\nServer: pve-api-daemon/3.0\r\n"
    ));
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !response.bare {
        head.push_str(&format!("Content-Length: {}\r\n", response.body.len()));
    }
    head.push_str("\r\n");
    let mut bytes = BytesMut::with_capacity(head.len() + response.body.len());
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(&response.body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}
