//! storage.cfg, and the refusals of downloads.

use super::{Client, OPS, as_token, data};

#[tokio::test(start_paused = true)]
async fn a_change_with_the_digest_of_the_file_is_made_and_with_another_refused() {
    let root = Client::root();
    let digest = data(&root, "GET", "/storage/local", "").await["digest"]
        .as_str()
        .expect("a digest")
        .to_string();
    assert_eq!(data(&root, "GET", "/storage/vmstore", "").await["digest"], digest.as_str());
    let form = |content: &str, digest: &str| format!("content={content}&digest={digest}");
    assert_eq!(root.outcome("PUT", "/storage/local", &form("iso", &digest)).await, "200 OK");
    // The digest is that of the whole file, so that a change of one storage is seen at all.
    let stale = "500 update storage failed: detected modified configuration - file changed by other user? Try again.";
    assert_eq!(root.outcome("PUT", "/storage/vmstore", &form("images", &digest)).await, stale);
    assert_eq!(root.outcome("PUT", "/storage/nope", &form("images", &digest)).await, stale);
}

#[tokio::test(start_paused = true)]
async fn options_belong_to_a_kind_of_storage() {
    let root = Client::root();
    root.expect(&[
        ("PUT", "/storage/local", "path=/x", "400 Parameter verification failed. path: property is not defined in schema and the schema does not allow additional properties"),
        ("PUT", "/storage/local", "snapshot-as-volume-chain=1", "500 update storage failed: can't change value of fixed parameter 'snapshot-as-volume-chain'"),
        ("PUT", "/storage/local", "delete=path", "500 update storage failed: unable to delete required option 'path'"),
        ("PUT", "/storage/local", "delete=nope", "500 update storage failed: no such option 'nope'"),
        ("PUT", "/storage/local", "delete=shared&shared=1", "500 update storage failed: cannot set and delete property 'shared' at the same time!"),
        ("PUT", "/storage/local", "sparse=1", "500 update storage failed: unexpected property 'sparse'"),
        ("PUT", "/storage/nope", "content=iso", "500 update storage failed: storage 'nope' does not exist"),
        ("PUT", "/storage/local", "content=none,iso", "500 update storage failed: unable to combine 'none' with other content types"),
        ("POST", "/storage", "storage=d1&type=dir", "500 missing value for required option 'path'"),
        ("POST", "/storage", "storage=t1&type=lvmthin&vgname=vg&thinpool=tp&shared=1", "500 unexpected property 'shared'"),
        ("POST", "/storage", "storage=local&type=dir&path=/x", "500 create storage failed: storage ID 'local' already defined"),
        ("POST", "/storage", "storage=t1&type=lvmthin&vgname=vg&thinpool=tp&content=images,iso", "200 OK"),
        ("DELETE", "/storage/nope", "", "500 delete storage failed: storage 'nope' does not exist"),
    ])
    .await;
    assert_eq!(data(&root, "GET", "/storage/t1", "").await["content"], "images");
}

#[tokio::test(start_paused = true)]
async fn a_storage_takes_its_rights_and_its_places_in_pools_along() {
    let root = Client::root();
    root.expect(&[
        ("PUT", "/pools", "poolid=team&storage=vmstore", "200 OK"),
        ("DELETE", "/storage/vmstore", "", "200 OK"),
        ("POST", "/storage", "storage=vmstore&type=dir&path=/var/lib/vmstore", "200 OK"),
    ])
    .await;
    let rights = data(&as_token(&root, OPS), "GET", "/access/permissions", "").await;
    assert!(rights.get("/storage/vmstore").is_none(), "{rights}");
    assert_eq!(
        data(&root, "GET", "/pools?poolid=team", "").await[0]["members"],
        serde_json::json!([])
    );
}

#[tokio::test(start_paused = true)]
async fn downloads_are_refused_by_storage_then_content_then_name() {
    let root = Client::root();
    root.expect(&[(
        "POST",
        "/storage",
        "storage=thin&type=lvmthin&vgname=vg&thinpool=tp",
        "200 OK",
    )])
    .await;
    let ask = |storage: &str, content: &str, name: &str| {
        (
            format!("/nodes/pve1/storage/{storage}/download-url"),
            format!("url=http%3A%2F%2F127.0.0.1%3A9000%2Fx&content={content}&filename={name}"),
        )
    };
    for (storage, content, name, expected) in [
        ("off", "iso", "x", "500 storage 'off' is disabled"),
        (
            "thin",
            "iso",
            "x",
            "500 can't upload to storage type 'lvmthin', not a file based storage!",
        ),
        (
            "vmstore",
            "iso",
            "x",
            "500 storage 'vmstore' is not configured for content-type 'iso'",
        ),
        (
            "local",
            "iso",
            "x.txt",
            "400 Parameter verification failed. filename: wrong file extension",
        ),
        (
            "local",
            "import",
            "x.QCOW2",
            "400 Parameter verification failed. filename: invalid filename or wrong extension",
        ),
    ] {
        let (path, form) = ask(storage, content, name);
        assert_eq!(root.outcome("POST", &path, &form).await, expected);
    }
}
