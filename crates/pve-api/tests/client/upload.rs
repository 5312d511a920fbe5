use std::io;

use bytes::Bytes;
use futures::stream;
use pve_api::storage::{Checksum, ChecksumAlgorithm};
use pve_api::{Content, Error, Upload};

use crate::client::pve::{ONE, Reply, answer, ok, world};

const UPID: &str = r#""UPID:pve1:00000D35:0004C2BE:6AFA189B:imgcopy::ops@pve!ms:""#;
const VERSION: &str = r#"{"version":"9.2.11","release":"9.2"}"#;

fn upload(length: u64) -> Upload {
    Upload {
        host: "pve1".parse().unwrap(),
        storage: "local".parse().unwrap(),
        content: Content::Iso,
        filename: "seed (1).iso".to_owned(),
        checksum: Some(Checksum {
            algorithm: ChecksumAlgorithm::Sha256,
            hex: "ab12".to_owned(),
        }),
        length,
    }
}

fn chunks(sizes: &[usize]) -> impl futures::Stream<Item = io::Result<Bytes>> + Send + 'static {
    let chunks: Vec<io::Result<Bytes>> = sizes.iter().map(|size| Ok(Bytes::from(vec![b'x'; *size]))).collect();
    stream::iter(chunks)
}

#[test]
fn an_upload_is_streamed_with_its_exact_length_in_the_form_pve_reads() {
    world(|pve| async move {
        pve.listen(ONE, |asked| if asked.method == "POST" { ok(UPID) } else { ok(VERSION) })
            .await;
        let upid = pve.client(&[ONE]).upload(&upload(5), chunks(&[3, 2])).await.unwrap();
        assert_eq!(upid.kind(), "imgcopy");
        let sent = pve.asked().pop().unwrap();
        assert!(sent.is("POST", "/nodes/pve1/storage/local/upload"));
        assert_eq!(sent.headers["content-length"], sent.body.len().to_string());
        let boundary = sent.headers["content-type"]
            .strip_prefix("multipart/form-data; boundary=")
            .unwrap();
        let expected = [
            "--B\r\nContent-Disposition: form-data; name=\"content\"\r\n\r\niso\r\n",
            "--B\r\nContent-Disposition: form-data; name=\"checksum-algorithm\"\r\n\r\nsha256\r\n",
            "--B\r\nContent-Disposition: form-data; name=\"checksum\"\r\n\r\nab12\r\n",
            "--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"seed__1_.iso\"\r\n",
            "Content-Type: application/octet-stream\r\n\r\nxxxxx\r\n--B--\r\n",
        ];
        assert_eq!(sent.form(), expected.concat().replace("--B", &format!("--{boundary}")));
    });
}

#[test]
fn a_large_upload_goes_through() {
    world(|pve| async move {
        pve.listen(ONE, |asked| if asked.method == "POST" { ok(UPID) } else { ok(VERSION) })
            .await;
        let size = 64 << 10;
        pve.client(&[ONE])
            .upload(&upload(100 * size as u64), chunks(&[size; 100]))
            .await
            .unwrap();
        assert!(pve.asked().pop().unwrap().body.len() > 100 * size);
    });
}

#[test]
fn a_file_of_another_length_than_announced_is_never_taken_for_whole() {
    world(|pve| async move {
        pve.listen(ONE, |asked| if asked.method == "POST" { ok(UPID) } else { ok(VERSION) })
            .await;
        for length in [4, 6] {
            let error = pve.client(&[ONE]).upload(&upload(length), chunks(&[5])).await.unwrap_err();
            assert!(error.is_unknown() || error.is_not_sent(), "{error:?}");
        }
        assert_eq!(pve.count("POST", "/nodes/pve1/storage/local/upload"), 0);
    });
}

#[test]
fn an_upload_is_sent_once() {
    world(|pve| async move {
        pve.listen(ONE, |asked| if asked.method == "POST" { Reply::HangUp } else { ok(VERSION) })
            .await;
        let error = pve.client(&[ONE]).upload(&upload(5), chunks(&[5])).await.unwrap_err();
        assert!(error.is_unknown());
        assert_eq!(pve.count("POST", "/nodes/pve1/storage/local/upload"), 1);
    });
}

#[test]
fn an_upload_without_the_right_is_refused_by_a_reason_phrase_alone() {
    world(|pve| async move {
        pve.listen(ONE, |asked| {
            if asked.method == "POST" {
                answer(
                    403,
                    "Permission check failed (/storage/local, Datastore.AllocateTemplate)",
                    "",
                )
            } else {
                ok(VERSION)
            }
        })
        .await;
        let error = pve.client(&[ONE]).upload(&upload(5), chunks(&[5])).await.unwrap_err();
        assert!(matches!(error, Error::Refused(_)));
        assert_eq!(error.privilege().unwrap().path, "/storage/local");
    });
}
