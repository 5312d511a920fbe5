//! The laboratory's web server, inside the world.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use mainstay_net::{BoxIo, Listener};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

pub(super) async fn serve(mut listener: Box<dyn Listener>, files: Arc<BTreeMap<String, Bytes>>) {
    while let Ok((stream, _)) = listener.accept().await {
        tokio::spawn(answer(stream, Arc::clone(&files)));
    }
}

async fn answer(mut stream: BoxIo, files: Arc<BTreeMap<String, Bytes>>) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let text = String::from_utf8_lossy(&head).into_owned();
    let mut words = text.split(' ');
    let (verb, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let file = files.get(path.trim_start_matches('/'));
    let (status, kind, body) = match file {
        Some(bytes) => ("200 OK", kind_of(path), bytes.clone()),
        None => (
            "404 File not found",
            "text/html;charset=utf-8",
            Bytes::from_static(b"<p>File not found.</p>"),
        ),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    if verb != "HEAD" {
        stream.write_all(&body).await?;
    }
    stream.shutdown().await
}

fn kind_of(path: &str) -> &'static str {
    match path.rsplit('.').next() {
        Some("iso") => "application/x-iso9660-image",
        Some("gz") => "application/gzip",
        _ => "application/octet-stream",
    }
}
