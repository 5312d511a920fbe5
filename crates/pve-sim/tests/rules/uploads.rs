//! Upload forms and what they are refused for.

use std::time::Duration;

use super::{Client, OPS, ZERO, as_token, request, told};

const TARGET: &str = "/api2/json/nodes/pve1/storage/local/upload";
const MULTIPART: (&str, &str) = ("Content-Type", "multipart/form-data; boundary=B");

/// A form as browsers send it: fields, then the file.
fn form(fields: &[(&str, &str)], filename: &str, file: &str) -> String {
    let fields: String = fields
        .iter()
        .map(|(name, value)| format!("--B\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n{value}\r\n"))
        .collect();
    format!(
        "{fields}--B\r\nContent-Disposition: form-data; name=\"filename\"; filename=\"{filename}\"\r\nContent-Type: application/octet-stream\r\n\r\n{file}\r\n--B--\r\n"
    )
}

async fn upload(client: &Client, target: &str, body: &str) -> String {
    told(client, request(client, "POST", target, &[MULTIPART], body)).await
}

/// Sends an upload and waits for its task.
async fn outcome(client: &Client, body: &str) -> String {
    let answer = upload(client, TARGET, body).await;
    let Some(upid) = answer.split('"').find(|part| part.starts_with("UPID:")).map(str::to_string) else {
        return answer;
    };
    for _ in 0..100 {
        let tasks = client.dc.inspect().tasks;
        if let Some(exit) = tasks.iter().find(|t| t.upid == upid).and_then(|t| t.exit.clone()) {
            return exit;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    "still running".into()
}

#[tokio::test(start_paused = true)]
async fn a_form_in_the_right_order_is_taken() {
    let root = Client::root();
    assert_eq!(outcome(&root, &form(&[("content", "iso")], "a.iso", "x")).await, "OK");
    let sum = "9dd4e461268c8034f5c8564e155c67a6";
    let checked = [("content", "iso"), ("checksum-algorithm", "md5"), ("checksum", sum)];
    assert_eq!(outcome(&root, &form(&checked, "b.iso", "x")).await, "OK");
    let wrong = [("content", "iso"), ("checksum-algorithm", "md5"), ("checksum", "00")];
    assert_eq!(
        outcome(&root, &form(&wrong, "c.iso", "x")).await,
        format!("checksum mismatch: got '{sum}' != expect '00'")
    );
}

#[tokio::test(start_paused = true)]
async fn fields_out_of_order_twice_or_unknown_are_a_bad_request_without_a_word() {
    let root = Client::root();
    for fields in [
        &[("checksum", "00"), ("content", "iso")][..],
        &[("content", "iso"), ("checksum", "00"), ("checksum-algorithm", "md5")],
        &[("content", "iso"), ("content", "iso")],
        &[("content", "iso"), ("extra", "1")],
        &[("extra", "1"), ("content", "iso")],
    ] {
        assert_eq!(
            upload(&root, TARGET, &form(fields, "a.iso", "x")).await,
            "400 Bad Request|",
            "{fields:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn what_the_form_lacks_is_told_like_any_parameter() {
    let root = Client::root();
    for (fields, error) in [
        (&[][..], "\"content\":\"property is missing and it is not optional\""),
        (
            &[("content", "")],
            "\"content\":\"invalid format - invalid content type ''\\n\"",
        ),
        (
            &[("content", "snippets")],
            "\"content\":\"value 'snippets' does not have a value in the enumeration 'iso, vztmpl, import'\"",
        ),
        (
            &[("content", "iso"), ("checksum-algorithm", "md5")],
            "\"checksum\":\"missing property required by 'checksum-algorithm'\"",
        ),
        (
            &[("content", "iso"), ("checksum", "00")],
            "\"checksum-algorithm\":\"missing property required by 'checksum'\"",
        ),
        (
            &[("content", "iso"), ("checksum-algorithm", "crc"), ("checksum", "00")],
            "value 'crc' does not have a value in the enumeration 'md5, sha1, sha224, sha256, sha384, sha512'",
        ),
    ] {
        let answer = upload(&root, TARGET, &form(fields, "a.iso", "x")).await;
        assert!(
            answer.starts_with("400 Parameter verification failed.|") && answer.contains(error),
            "{fields:?}: {answer}"
        );
    }
    let long = format!("{}.iso", "a".repeat(252));
    let answer = upload(&root, TARGET, &form(&[("content", "iso")], &long, "x")).await;
    assert!(
        answer.contains("\"filename\":\"value may only be 255 characters long\""),
        "{answer}"
    );
}

#[tokio::test(start_paused = true)]
async fn names_are_cut_to_their_last_part_and_extensions_belong_to_the_content() {
    let root = Client::root();
    for (content, name, kept) in [
        ("iso", "a b(c).ISO", Some("local:iso/a_b_c_.ISO")),
        ("iso", "..\\x\\y.img", Some("local:iso/y.img")),
        ("vztmpl", "t.tar.zst", Some("local:vztmpl/t.tar.zst")),
        ("import", "r.raw", Some("local:import/r.raw")),
        ("import", "r.RAW", None),
        ("import", "r.img", None),
        ("iso", ".iso", None),
        ("vztmpl", "t.tgz", None),
    ] {
        let answer = outcome(&root, &form(&[("content", content)], name, "x")).await;
        match kept {
            Some(volid) => {
                assert_eq!(answer, "OK", "{name}");
                let inventory = root.dc.inspect();
                assert!(inventory.volumes.iter().any(|v| v.volid == volid), "{name}");
            }
            None => assert!(answer.starts_with("400 Parameter verification failed.|"), "{name}: {answer}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_no_form_gets_no_answer() {
    let root = Client::root();
    let body = form(&[("content", "iso")], "a.iso", "x");
    let began = tokio::time::Instant::now();
    for header in [
        "multipart/form-data",
        "Multipart/Form-Data; boundary=B",
        "multipart/mixed; boundary=B",
        "application/json",
    ] {
        let sent = request(&root, "POST", TARGET, &[("Content-Type", header)], &body);
        assert_eq!(told(&root, sent).await, "closed", "{header}");
    }
    assert!(began.elapsed() >= Duration::from_secs(20));
    let named = format!("{TARGET}?tmpfilename=/var/tmp/pveupload-00");
    assert_eq!(upload(&root, &named, &body).await, "closed");
    let quoted = request(
        &root,
        "POST",
        TARGET,
        &[("Content-Type", "multipart/form-data; boundary=\"B\"")],
        &body,
    );
    let failed = "upload failed at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 1370.";
    assert_eq!(told(&root, quoted).await, format!("500 {failed}|{failed}\n"));
}

#[tokio::test(start_paused = true)]
async fn an_upload_without_a_body_is_an_ordinary_call() {
    let root = Client::root();
    let empty = |query: &str| request(&root, "POST", &format!("{TARGET}{query}"), &[], "");
    let missing = told(&root, empty("")).await;
    assert!(missing.contains("\"content\":\"property is missing") && missing.contains("\"filename\":\"property is missing"));
    let given = told(&root, empty("?content=iso&filename=a.iso")).await;
    assert!(given.starts_with("500 missing temporary file name|"), "{given}");
    let named = told(&root, empty("?content=iso&filename=a.iso&tmpfilename=/var/tmp/pveupload-0a")).await;
    assert!(
        named.starts_with("500 temporary file '/var/tmp/pveupload-0a' does not exist|"),
        "{named}"
    );
}

#[tokio::test(start_paused = true)]
async fn the_right_to_upload_is_asked_for_before_the_form_is_read() {
    let root = Client::root();
    let zero = as_token(&root, ZERO);
    let began = tokio::time::Instant::now();
    let answer = upload(&zero, TARGET, "no form").await;
    assert_eq!(
        answer,
        "403 Permission check failed (/storage/local, Datastore.AllocateTemplate)|"
    );
    assert_eq!(began.elapsed().as_secs(), 3);
    assert_eq!(
        outcome(&as_token(&root, OPS), &form(&[("content", "iso")], "o.iso", "x")).await,
        "OK"
    );
}

#[tokio::test(start_paused = true)]
async fn an_upload_overwrites_silently_and_one_that_does_not_fit_leaves_nothing() {
    let root = Client::root();
    let tiny = "/api2/json/nodes/pve1/storage/tiny/upload";
    let size = |volid: &str| {
        root.dc
            .inspect()
            .volumes
            .into_iter()
            .find(|v| v.volid == volid)
            .map(|v| v.size)
    };
    assert!(
        upload(&root, tiny, &form(&[("content", "iso")], "a.iso", "x"))
            .await
            .starts_with("200")
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(size("tiny:iso/a.iso"), Some(1));
    assert!(
        upload(&root, tiny, &form(&[("content", "iso")], "a.iso", "xyz"))
            .await
            .starts_with("200")
    );
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(size("tiny:iso/a.iso"), Some(3));
    let large = "x".repeat(50 << 20);
    assert!(
        upload(&root, tiny, &form(&[("content", "iso")], "a.iso", &large))
            .await
            .starts_with("200")
    );
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert_eq!(size("tiny:iso/a.iso"), None);
}
