//! Requests and answers as bytes. pveproxy reads and writes them with its own code, so does the simulator.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// No more header lines and bytes than this, else pveproxy falls silent.
const MAX_HEADER_LINES: usize = 64;
const MAX_HEADER_BYTES: usize = 8 * 1024;
/// What pveproxy waits for the next byte of a request.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);

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

    /// The older version closes unless the request says something else.
    pub fn wants_close(&self) -> bool {
        match self.header("connection").filter(|c| !c.is_empty()) {
            Some(connection) => connection.to_ascii_lowercase().contains("close"),
            None => self.old,
        }
    }

    /// How long the body is said to be.
    pub fn length(&self) -> usize {
        let said = self.header("content-length").and_then(|l| l.trim().parse().ok());
        said.unwrap_or(self.body.len())
    }

    /// The decoded path and the query as it was sent.
    pub fn path_and_query(&self) -> (String, &str) {
        let target = self.target.split_once("://").map_or(self.target.as_str(), |(_, rest)| {
            &rest[rest.find('/').unwrap_or(rest.len())..]
        });
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        (super::unescape(path), query)
    }

    /// Whether it goes to the one call that takes files.
    pub fn is_upload(&self) -> bool {
        let (path, _) = self.path_and_query();
        let below = path
            .strip_prefix("/api2")
            .and_then(|rest| rest.trim_start_matches('/').split_once('/'));
        let segments: Vec<&str> = below.map(|(_, rest)| rest.split('/').collect()).unwrap_or_default();
        self.verb == "POST"
            && matches!(segments[..], ["nodes", node, "storage", storage, "upload"] if !node.is_empty() && !storage.is_empty())
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
    let mut request = match read_head(stream, left).await? {
        Head::Request(request) => request,
        Head::Refused(request, response) => return Ok(Incoming::Refused(request, response)),
        Head::TooLong => {
            // pveproxy gives the request up without a word and lets the connection run into its timeout.
            tokio::time::sleep(READ_TIMEOUT).await;
            return Ok(Incoming::Gone);
        }
        Head::Gone => return Ok(Incoming::Gone),
    };
    if let Some(refusal) = refuse_early(&request) {
        return Ok(Incoming::Refused(request, refusal));
    }
    let length = request.length();
    // What is too long is refused by its length alone.
    if length <= limit || request.is_upload() {
        match read_exactly(stream, left, length).await? {
            Some(body) => request.body = body,
            None => return Ok(Incoming::Gone),
        }
    }
    Ok(Incoming::Request(request))
}

enum Head {
    Request(Request),
    Refused(Request, Response),
    TooLong,
    Gone,
}

async fn fill<S: AsyncRead + Unpin>(stream: &mut S, buffer: &mut BytesMut) -> io::Result<bool> {
    match tokio::time::timeout(READ_TIMEOUT, stream.read_buf(buffer)).await {
        Ok(Ok(0)) | Err(_) => Ok(false),
        Ok(Ok(_)) => Ok(true),
        Ok(Err(e)) => Err(e),
    }
}

/// The next line, which a bare line feed ends as well.
async fn read_line<S: AsyncRead + Unpin>(stream: &mut S, left: &mut BytesMut) -> io::Result<Option<String>> {
    let mut searched = 0;
    loop {
        if let Some(at) = left[searched..].iter().position(|b| *b == b'\n').map(|at| at + searched) {
            let line = left.split_to(at + 1);
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            return Ok(Some(String::from_utf8_lossy(text).into_owned()));
        }
        searched = left.len();
        if left.len() > 64 * 1024 || !fill(stream, left).await? {
            return Ok(None);
        }
    }
}

async fn read_head<S: AsyncRead + Unpin>(stream: &mut S, left: &mut BytesMut) -> io::Result<Head> {
    let first = loop {
        match read_line(stream, left).await? {
            Some(line) if line.is_empty() => {}
            Some(line) => break line,
            None => return Ok(Head::Gone),
        }
    };
    let mut request = match parse_request_line(&first) {
        Ok(request) => request,
        Err(response) => {
            let request = Request {
                old: true,
                ..Request::default()
            };
            return Ok(Head::Refused(request, response));
        }
    };
    let (mut lines, mut bytes) = (0, 0);
    loop {
        let Some(line) = read_line(stream, left).await? else {
            return Ok(Head::Gone);
        };
        lines += 1;
        bytes += line.len();
        if lines >= MAX_HEADER_LINES || bytes >= MAX_HEADER_BYTES {
            return Ok(Head::TooLong);
        }
        if line.is_empty() {
            return Ok(Head::Request(request));
        }
        if !take_header(&mut request.headers, &line) {
            let response = Response::plain(506, "unable to parse request header", "unable to parse request header");
            return Ok(Head::Refused(request, response));
        }
    }
}

/// A header, or the continuation of the last one.
fn take_header(headers: &mut Vec<(String, String)>, line: &str) -> bool {
    if line.starts_with(char::is_whitespace) {
        if let Some((_, value)) = headers.last_mut() {
            value.push(' ');
            value.push_str(line.trim_start());
        }
        return true;
    }
    match line.split_once(':') {
        Some((name, value)) if !name.trim_end().is_empty() && !name.trim_end().contains(char::is_whitespace) => {
            headers.push((name.trim_end().into(), value.trim().into()));
            true
        }
        _ => false,
    }
}

async fn read_exactly<S: AsyncRead + Unpin>(stream: &mut S, left: &mut BytesMut, length: usize) -> io::Result<Option<Bytes>> {
    while left.len() < length {
        if !fill(stream, left).await? {
            return Ok(None);
        }
    }
    Ok(Some(left.split_to(length).freeze()))
}

/// `VERB TARGET HTTP/1.x`, with whatever stands around it.
fn parse_request_line(line: &str) -> Result<Request, Response> {
    let refuse = |status, text: String| Err(Response::plain(status, &text, text.clone()));
    let words: Vec<&str> = line.split(' ').collect();
    let found = words.windows(3).find_map(|w| {
        let (major, minor) = w[2].strip_prefix("HTTP/")?.split_once('.')?;
        let digits = |t: &str| !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
        (!w[0].is_empty() && !w[1].is_empty() && digits(major) && digits(minor)).then_some((w[0], w[1], major, minor))
    });
    let Some((verb, target, major, minor)) = found else {
        return refuse(400, "bad request".into());
    };
    if major != "1" {
        return refuse(506, format!("http protocol version {major}.{minor} not supported"));
    }
    let authority = target.split('/').next().unwrap_or_default();
    if authority.contains('@') {
        return refuse(400, "invalid url".into());
    }
    Ok(Request {
        verb: verb.into(),
        target: target.into(),
        headers: Vec::new(),
        body: Bytes::new(),
        old: minor == "0",
    })
}

/// What is refused before authentication.
fn refuse_early(request: &Request) -> Option<Response> {
    if !matches!(request.verb.as_str(), "GET" | "POST" | "PUT" | "DELETE") {
        return Some(Response::plain(501, &format!("method '{}' not available", request.verb), ""));
    }
    let encoding = request.header("transfer-encoding").filter(|t| !t.is_empty())?;
    let text = if encoding.eq_ignore_ascii_case("chunked") {
        "chunked transfer encoding not supported".to_string()
    } else {
        format!("Unknown transfer encoding '{encoding}'")
    };
    Some(Response::plain(501, &text, text.clone()))
}

/// Where an answer goes: the protocol of its request, the time, and whether another may follow.
pub struct Manner {
    pub old: bool,
    pub close: bool,
    pub date: String,
}

/// Writes an answer.
pub async fn write_response<S: AsyncWrite + Unpin>(stream: &mut S, response: &Response, manner: &Manner) -> io::Result<()> {
    let version = if manner.old { "HTTP/1.0" } else { "HTTP/1.1" };
    let mut head = format!("{version} {} {}\r\n", response.status, response.reason);
    let connection = if manner.close { "close" } else { "Keep-Alive" };
    let date = &manner.date;
    head.push_str(&format!(
        "Cache-Control: max-age=0\r\nConnection: {connection}\r\nDate: {date}\r\nPragma: no-cache\r\nServer: pve-api-daemon/3.0\r\n"
    ));
    for (name, value) in &response.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    if !response.bare {
        head.push_str(&format!("Content-Length: {}\r\n", response.body.len()));
    }
    head.push_str(&format!("Expires: {date}\r\n\r\n"));
    let mut bytes = BytesMut::with_capacity(head.len() + response.body.len());
    bytes.extend_from_slice(head.as_bytes());
    bytes.extend_from_slice(&response.body);
    stream.write_all(&bytes).await?;
    stream.flush().await
}

#[cfg(test)]
mod tests {
    use bytes::BytesMut;

    use super::{Incoming, Manner, Request, Response, read_request, write_response};

    async fn read(text: &str) -> Incoming {
        read_request(&mut text.as_bytes(), &mut BytesMut::new(), 512 * 1024)
            .await
            .expect("read")
    }

    async fn refused(text: &str) -> String {
        match read(text).await {
            Incoming::Refused(_, response) => format!("{} {}", response.status, response.reason),
            Incoming::Request(_) => "read".into(),
            Incoming::Gone => "gone".into(),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn request_lines_that_pveproxy_does_not_take() {
        for (text, expected) in [
            ("GET\r\n\r\n", "400 bad request"),
            ("GET / HTTP/2.0\r\n\r\n", "506 http protocol version 2.0 not supported"),
            ("GET a@b/c HTTP/1.1\r\n\r\n", "400 invalid url"),
            ("HEAD / HTTP/1.1\r\n\r\n", "501 method 'HEAD' not available"),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n",
                "501 chunked transfer encoding not supported",
            ),
            (
                "POST / HTTP/1.1\r\nTransfer-Encoding: gzip\r\n\r\n",
                "501 Unknown transfer encoding 'gzip'",
            ),
            ("GET / HTTP/1.1\r\nno header\r\n\r\n", "506 unable to parse request header"),
            ("\r\nGET / HTTP/1.1\nHost: a\n\n", "read"),
        ] {
            assert_eq!(refused(text).await, expected, "{text:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn sixty_two_headers_are_read_and_one_more_is_not_answered() {
        let head = |count: usize| format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(count));
        assert_eq!(refused(&head(62)).await, "read");
        let began = tokio::time::Instant::now();
        assert_eq!(refused(&head(63)).await, "gone");
        assert_eq!(began.elapsed().as_secs(), 5);
        let long = |length: usize| format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "x".repeat(length));
        assert_eq!(refused(&long(8188)).await, "read");
        assert_eq!(refused(&long(8189)).await, "gone");
    }

    #[tokio::test(start_paused = true)]
    async fn a_folded_header_and_an_old_version_are_understood() {
        let Incoming::Request(request) = read("GET / HTTP/1.0\r\nA: b\r\n  c\r\n\r\n").await else {
            panic!("not read");
        };
        assert_eq!(request.header("a"), Some("b c"));
        assert!(request.old && request.wants_close());
    }

    #[tokio::test]
    async fn an_answer_carries_its_date_and_the_protocol_of_its_request() {
        let mut out = Vec::new();
        let manner = Manner {
            old: true,
            close: true,
            date: "Sun, 15 Nov 2026 20:00:00 GMT".into(),
        };
        let response = Response::plain(501, "no such uri", "no such uri");
        write_response(&mut out, &response, &manner).await.expect("written");
        let text = String::from_utf8(out).expect("text");
        assert!(text.starts_with("HTTP/1.0 501 no such uri\r\n"));
        for line in [
            "Date: Sun, 15 Nov 2026 20:00:00 GMT",
            "Expires: Sun, 15 Nov 2026 20:00:00 GMT",
            "Connection: close",
            "Content-Length: 11",
        ] {
            assert!(text.contains(&format!("\r\n{line}\r\n")), "{line}");
        }
    }

    #[test]
    fn only_the_upload_of_a_storage_takes_files() {
        let of = |verb: &str, target: &str| Request {
            verb: verb.into(),
            target: target.into(),
            ..Request::default()
        };
        assert!(of("POST", "/api2/json/nodes/n/storage/s/upload?a=b").is_upload());
        assert!(of("POST", "/api2/json/nodes/n/storage/a%2Eb/upload").is_upload());
        assert!(!of("PUT", "/api2/json/nodes/n/storage/s/upload").is_upload());
        assert!(!of("POST", "/api2/json/nodes/n//storage/s/upload").is_upload());
        assert!(!of("POST", "/api2/json/nodes/n/storage/s/upload/").is_upload());
    }
}
