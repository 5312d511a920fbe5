//! Streams a file into a storage.

use std::io;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use futures::stream::{self, Stream, StreamExt as _};
use http::header::{CONTENT_TYPE, HeaderValue};
use mainstay_net::http::Body;
use rand::Rng as _;

use super::Client;
use crate::calls::storage::Checksum;
use crate::calls::{host, storage};
use crate::error::Error;
use crate::value::{Content, Host, StorageId, Upid};

/// A file to upload, without its content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upload {
    pub host: Host,
    pub storage: StorageId,
    pub content: Content,
    /// A file of that name is overwritten silently.
    pub filename: String,
    pub checksum: Option<Checksum>,
    /// In bytes; the stream must give exactly as many.
    pub length: u64,
}

impl Client {
    /// Uploads a file, never holding more of it than one chunk. The task that moves it into place is still to be waited for.
    ///
    /// Sent once: a stream cannot be sent again, and PVE spools it on the host that is contacted, so that host's own endpoint is best.
    pub async fn upload(
        &self,
        upload: &Upload,
        file: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<Upid, Error> {
        // Finds the door that is open for this host, and renews a ticket, before the stream is spent.
        self.call(host::version(&upload.host)).await?;
        let door = &self.0.doors[self.0.open_door.load(Ordering::Relaxed)];
        let call = storage::upload(&upload.host, &upload.storage);
        let _turn = self.0.limits.turn(&call.request).await;
        let boundary = self.boundary();
        let kind = format!("multipart/form-data; boundary={boundary}");
        let mut request = http::Request::new(multipart(upload, &boundary, file));
        *request.method_mut() = call.request.method();
        *request.uri_mut() = door.uri(&call.request.target());
        *request.headers_mut() = self.0.session.headers(self).await?.headers;
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::try_from(kind).expect("hex digits make a header"));
        let deadline = self.0.options.deadline + self.time_for(upload.length);
        let answer = door
            .http
            .send(request, deadline)
            .await
            .map_err(|error| Error::from_http(&call.request, error))?;
        call.decode(answer.status.as_u16(), &answer.reason, &answer.body)
    }

    fn time_for(&self, length: u64) -> std::time::Duration {
        let mebibytes = u32::try_from(length >> 20).unwrap_or(u32::MAX);
        self.0.options.upload_time_per_mib.saturating_mul(mebibytes)
    }

    /// Not to be found in the file by chance.
    fn boundary(&self) -> String {
        let n = self.0.uploads.fetch_add(1, Ordering::Relaxed);
        let mut rng = self.0.entropy.fork(&format!("upload {n}")).rng();
        format!("{:016x}{:016x}", rng.next_u64(), rng.next_u64())
    }
}

/// PVE reads this with a parser of its own: parts in this order, the file last and named `filename`, `Content-Disposition` first in each
/// part and spelled like this, and the length of the whole known beforehand.
fn multipart(upload: &Upload, boundary: &str, file: impl Stream<Item = io::Result<Bytes>> + Send + 'static) -> Body {
    let mut fields = vec![("content", upload.content.to_string())];
    if let Some(checksum) = &upload.checksum {
        fields.push(("checksum-algorithm", checksum.algorithm.to_string()));
        fields.push(("checksum", checksum.hex.clone()));
    }
    let mut head = String::new();
    for (name, value) in fields {
        head += &format!("--{boundary}\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n");
    }
    let filename = storage::stored_name(&upload.filename);
    head += &format!("--{boundary}\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"{filename}\"\r\n");
    head += "Content-Type: application/octet-stream\r\n\r\n";
    let tail = format!("\r\n--{boundary}--\r\n");
    let length = head.len() as u64 + upload.length + tail.len() as u64;
    let text = |text: String| stream::iter([Ok(Bytes::from(text))]);
    Body::stream(length, text(head).chain(file).chain(text(tail)))
}
