//! The tag policy of datacenter.cfg, and how tags are written down.

use serde_json::json;

use super::{AUDIT, Client, OPS, ZERO, as_token, data};

/// A VM of the operator with one tag, and one that the operator cannot see.
async fn world(options: &str) -> (Client, Client) {
    let root = Client::root();
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101&tags=old", "task: OK"),
        ("POST", "/nodes/pve1/qemu", "vmid=102&tags=seen", "task: OK"),
    ])
    .await;
    if !options.is_empty() {
        root.expect(&[("PUT", "/cluster/options", options, "200 OK")]).await;
    }
    let ops = as_token(&root, OPS);
    (root, ops)
}

async fn set(client: &Client, tags: &str) -> String {
    client
        .outcome("PUT", "/nodes/pve1/qemu/101/config", &format!("tags={tags}"))
        .await
}

fn refused(tag: &str) -> String {
    format!("403 Permission check failed (/, Sys.Modify for modifying tag '{tag}')")
}

#[tokio::test(start_paused = true)]
async fn a_user_may_set_what_the_mode_allows() {
    for (options, tag, allowed) in [
        ("", "new", true),
        ("user-tag-access=user-allow%3Dfree", "new", true),
        ("user-tag-access=user-allow%3Dnone", "new", false),
        ("user-tag-access=user-allow%3Dnone%2Cuser-allow-list%3Dnew", "new", false),
        (
            "user-tag-access=user-allow%3Dlist%2Cuser-allow-list%3Dnew%3Bother",
            "new",
            true,
        ),
        ("user-tag-access=user-allow%3Dlist%2Cuser-allow-list%3Dother", "new", false),
        ("user-tag-access=user-allow%3Dlist", "seen", false),
        ("user-tag-access=user-allow%3Dexisting", "seen", true),
        ("user-tag-access=user-allow%3Dexisting", "new", false),
        ("user-tag-access=user-allow%3Dexisting%2Cuser-allow-list%3Dnew", "new", true),
        ("registered-tags=new%3Bother", "new", false),
        ("registered-tags=other", "new", true),
        (
            "registered-tags=new&user-tag-access=user-allow%3Dlist%2Cuser-allow-list%3Dnew",
            "new",
            false,
        ),
        ("registered-tags=seen&user-tag-access=user-allow%3Dexisting", "seen", false),
    ] {
        let (root, ops) = world(options).await;
        let expected = if allowed { "200 OK".into() } else { refused(tag) };
        assert_eq!(set(&ops, &format!("old%3B{tag}")).await, expected, "{options} {tag}");
        assert_eq!(
            set(&root, &format!("old%3B{tag}")).await,
            "200 OK",
            "an administrator: {options}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn taking_a_tag_away_needs_the_same_right_as_setting_it() {
    let (_, ops) = world("user-tag-access=user-allow%3Dnone").await;
    let config = "/nodes/pve1/qemu/101/config";
    assert_eq!(ops.outcome("PUT", config, "delete=tags").await, refused("old"));
    assert_eq!(set(&ops, "").await, refused("old"));
    // What stays is not looked at, and case is part of a tag here.
    assert_eq!(set(&ops, "old").await, "200 OK");
    assert!(
        set(&ops, "OLD")
            .await
            .starts_with("403 Permission check failed (/, Sys.Modify for modifying tag")
    );
    assert_eq!(set(&ops, "old%3Bold").await, refused("old"));
}

#[tokio::test(start_paused = true)]
async fn a_create_is_refused_by_its_worker() {
    let (_, ops) = world("user-tag-access=user-allow%3Dnone").await;
    assert_eq!(
        ops.outcome("POST", "/nodes/pve1/qemu", "vmid=110&tags=x").await,
        "task: unable to create VM 110 - 403 Permission check failed (/, Sys.Modify for modifying tag 'x')"
    );
}

#[tokio::test(start_paused = true)]
async fn existing_tags_are_those_of_vms_that_the_caller_sees() {
    let (root, ops) = world("user-tag-access=user-allow%3Dexisting").await;
    root.expect(&[("PUT", "/access/acl", "path=/vms/102&users=ops%40pve&roles=NoAccess", "200 OK")])
        .await;
    assert_eq!(set(&ops, "old%3Bseen").await, refused("seen"));
}

#[tokio::test(start_paused = true)]
async fn tags_are_written_as_the_style_says() {
    for (style, given, kept) in [
        ("", "B%3Ba%2Cb", "a;b"),
        ("tag-style=case-sensitive%3D1", "b%3BB%3Ba", "B;a;b"),
        ("tag-style=case-sensitive%3Dyes", "b%3BB", "B;b"),
        ("tag-style=ordering%3Dconfig", "b%3BA%3Bb", "b;a"),
        ("tag-style=ordering%3Dconfig%2Ccase-sensitive%3D1", "b%3BA%3BB%3Bb", "b;A;B"),
        ("tag-style=ordering%3Dalphabetical%2Cshape%3Dfull", "b%3BA", "a;b"),
    ] {
        let (root, _) = world(style).await;
        assert_eq!(set(&root, given).await, "200 OK");
        let config = data(&root, "GET", "/nodes/pve1/qemu/101/config", "").await;
        assert_eq!(config["tags"], kept, "{style} {given}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_options_list_the_tags_that_the_caller_may_use() {
    let (root, ops) = world("registered-tags=adm%3Bseen&user-tag-access=user-allow%3Dlist%2Cuser-allow-list%3Db%3Ba").await;
    let allowed = |options: serde_json::Value| options["allowed-tags"].clone();
    assert_eq!(
        allowed(data(&root, "GET", "/cluster/options", "").await),
        json!(["a", "adm", "b", "old", "seen"])
    );
    assert_eq!(allowed(data(&ops, "GET", "/cluster/options", "").await), json!(["a", "b"]));
    root.expect(&[("PUT", "/cluster/options", "delete=user-tag-access", "200 OK")])
        .await;
    assert_eq!(allowed(data(&ops, "GET", "/cluster/options", "").await), json!(["old"]));
    assert_eq!(
        allowed(data(&as_token(&root, ZERO), "GET", "/cluster/options", "").await),
        json!([])
    );
}

#[tokio::test(start_paused = true)]
async fn options_are_shown_in_their_parts() {
    let (root, _) = world("registered-tags=b%3Ba&user-tag-access=user-allow%3Dlist%2Cuser-allow-list%3Dx%3By").await;
    let style =
        "tag-style=case-sensitive%3Don%2Cordering%3Dconfig%2Cshape%3Ddense&max_workers=4&description=a%0Ab&console=applet";
    root.expect(&[("PUT", "/cluster/options", style, "200 OK")]).await;
    let shown = data(&as_token(&root, AUDIT), "GET", "/cluster/options", "").await;
    assert_eq!(shown["registered-tags"], json!(["b", "a"]));
    assert_eq!(
        shown["user-tag-access"],
        json!({ "user-allow": "list", "user-allow-list": ["x", "y"] })
    );
    assert_eq!(
        shown["tag-style"],
        json!({ "case-sensitive": 1, "ordering": "config", "shape": "dense" })
    );
    assert_eq!(shown["max_workers"], 4);
    assert_eq!(shown["description"], "a\nb\n");
    assert_eq!(shown["console"], "html5");
    let few = data(&as_token(&root, ZERO), "GET", "/cluster/options", "").await;
    let keys: std::collections::BTreeSet<&String> = few.as_object().expect("an object").keys().collect();
    assert!(keys.into_iter().eq(["allowed-tags", "console", "tag-style"]));
}

#[tokio::test(start_paused = true)]
async fn options_that_are_none_are_refused_in_the_words_of_the_schema() {
    let root = Client::root();
    root.expect(&[
        (
            "PUT",
            "/cluster/options",
            "user-tag-access=user-allow%3Dsome",
            "400 Parameter verification failed. user-tag-access: invalid format - format error\nuser-tag-access.user-allow: value 'some' does not have a value in the enumeration 'none, list, existing, free'\n",
        ),
        (
            "PUT",
            "/cluster/options",
            "user-tag-access=user-allow-list%3Da%20b",
            "400 Parameter verification failed. user-tag-access: invalid format - format error\nuser-tag-access.user-allow-list: value does not match the regex pattern\n",
        ),
        (
            "PUT",
            "/cluster/options",
            "registered-tags=a%2Cb",
            "400 Parameter verification failed. registered-tags: value does not match the regex pattern",
        ),
        (
            "PUT",
            "/cluster/options",
            "next-id=lower%3D500%2Cupper%3D400",
            "500 lower (500) <= upper (400) boundary rule broken",
        ),
        (
            "PUT",
            "/cluster/options",
            "next-id=lower",
            "400 Parameter verification failed. next-id: invalid format - value without key, but schema does not define a default key\n",
        ),
    ])
    .await;
    as_token(&root, AUDIT)
        .expect(&[(
            "PUT",
            "/cluster/options",
            "registered-tags=a",
            "403 Permission check failed (/, Sys.Modify)",
        )])
        .await;
}
