//! Forms, JSON and what comes before them.

use pve_sim::http::Request;

use super::{Client, ZERO, as_token, raw, request, told};

const CONFIG: &str = "/api2/json/nodes/pve1/qemu/101/config";
const JSON: (&str, &str) = ("Content-Type", "application/json");

async fn with_vm() -> Client {
    let root = Client::root();
    root.expect(&[("POST", "/nodes/pve1/qemu", "vmid=101&name=a", "task: OK")])
        .await;
    root
}

async fn json(client: &Client, body: &str) -> String {
    told(client, request(client, "PUT", CONFIG, &[JSON], body)).await
}

#[tokio::test(start_paused = true)]
async fn json_values_are_taken_as_perl_takes_them() {
    let root = with_vm().await;
    let ok = "200 OK|{\"data\":null}";
    for (body, key, kept) in [
        (r#"{"cores":2.0}"#, "cores", "2"),
        (r#"{"cores":1e0}"#, "cores", "1"),
        (r#"{"cores":"3"}"#, "cores", "3"),
        (r#"{"onboot":true}"#, "onboot", "1"),
        (r#"{"onboot":false}"#, "onboot", "0"),
        (r#"{"tags":["b","a"]}"#, "tags", "a;b"),
        (r#"{"cpulimit":0.50}"#, "cpulimit", "0.5"),
        (r#"{"name":"x","name":"y"}"#, "name", "y"),
        (r#"{"name":12}"#, "name", "12"),
        ("{\"description\":\"\\u00e4\\n\"}", "description", "ä"),
    ] {
        assert_eq!(json(&root, body).await, ok, "{body}");
        let config = super::data(&root, "GET", "/nodes/pve1/qemu/101/config", "").await;
        let shown = config[key].as_str().map_or_else(|| config[key].to_string(), str::to_string);
        assert_eq!(shown, kept, "{body}");
    }
}

#[tokio::test(start_paused = true)]
async fn json_of_the_wrong_kind_is_told_by_its_perl_type() {
    let root = with_vm().await;
    for (body, error) in [
        (
            r#"{"name":true}"#,
            "\"name\":\"type check ('string') failed - got JSON::PP::Boolean\"",
        ),
        (r#"{"cores":[1]}"#, "\"cores\":\"type check ('integer') failed - got ARRAY\""),
        (r#"{"cores":{}}"#, "\"cores\":\"type check ('integer') failed - got HASH\""),
        (
            r#"{"onboot":"true"}"#,
            "\"onboot\":\"type check ('boolean') failed - got 'true'\"",
        ),
        (r#"{"cores":1.5}"#, "\"cores\":\"type check ('integer') failed - got '1.5'\""),
        (
            r#"{"nope":1}"#,
            "\"nope\":\"property is not defined in schema and the schema does not allow additional properties\"",
        ),
        (
            r#"{"vmid":[101]}"#,
            "\"vmid\":\"duplicate parameter (already defined in URI) with conflicting values!\"",
        ),
        (
            r#"{"vmid":null}"#,
            "\"vmid\":\"duplicate parameter (already defined in URI) with conflicting values!\"",
        ),
    ] {
        let answer = json(&root, body).await;
        assert!(
            answer.starts_with("400 Parameter verification failed.|") && answer.contains(error),
            "{body}: {answer}"
        );
    }
    assert_eq!(
        json(&root, r#"{"vmid":101,"node":"pve1","cores":1}"#).await,
        "200 OK|{\"data\":null}"
    );
    let undefined = json(&root, r#"{"cores":null}"#).await;
    assert!(
        undefined.starts_with("500 unable to parse value of 'cores' - got undefined value|"),
        "{undefined}"
    );
}

#[tokio::test(start_paused = true)]
async fn broken_json_is_answered_in_plain_text_and_before_the_route_is_looked_for() {
    let root = with_vm().await;
    let at = "at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 934.";
    let malformed = "malformed JSON string, neither tag, array, object, number, string or atom";
    for (body, text) in [
        (
            "cores=2",
            format!("{malformed}, at character offset 0 (before \"cores=2\") {at}"),
        ),
        (
            "",
            format!("{malformed}, at character offset 0 (before \"(end of string)\") {at}"),
        ),
        (
            "{\"a\":1",
            format!(", or }} expected while parsing object/hash, at character offset 6 (before \"(end of string)\") {at}"),
        ),
        (
            "[]",
            "Not a HASH reference at /usr/share/perl5/PVE/APIServer/AnyEvent.pm line 978.".into(),
        ),
    ] {
        assert_eq!(json(&root, body).await, format!("500 {text}|{text}\n"), "{body}");
        let nowhere = request(&root, "POST", "/api2/json/nowhere", &[JSON], body);
        assert_eq!(told(&root, nowhere).await, format!("500 {text}|{text}\n"), "{body}");
    }
    assert!(json(&root, "null").await.starts_with("500 no options specified|"));
    assert!(
        json(&root, "0")
            .await
            .contains("\"message\":\"Can't use string (\\\"0\\\") as a HASH ref")
    );
}

#[tokio::test(start_paused = true)]
async fn the_query_wins_over_the_body_and_empty_pairs_in_it_are_an_empty_key() {
    let root = with_vm().await;
    let put = |target: &str, body: &str| request(&root, "PUT", &format!("{CONFIG}{target}"), &[], body);
    assert!(told(&root, put("?name=q", "name=b")).await.starts_with("200"));
    assert_eq!(
        super::data(&root, "GET", "/nodes/pve1/qemu/101/config", "").await["name"],
        "q"
    );
    let get = |query: &str| request(&root, "GET", &format!("/api2/json/cluster/nextid{query}"), &[], "");
    assert!(
        told(&root, get("?&vmid=500"))
            .await
            .contains("\"_root\":\"property is not defined")
    );
    assert!(told(&root, get("?vmid=500&&")).await.starts_with("200 OK|"));
    assert!(told(&root, get("?")).await.starts_with("200 OK|"));
}

#[tokio::test(start_paused = true)]
async fn who_is_asked_comes_before_what_the_body_is() {
    let root = with_vm().await;
    let mut anonymous = request(&root, "DELETE", CONFIG, &[], "a=b");
    anonymous.headers.clear();
    assert_eq!(told(&root, anonymous).await, "401 No ticket|");
    let mut large = request(&root, "POST", "/api2/json/pools", &[("Content-Length", "600000")], "");
    assert_eq!(told(&root, large.clone()).await, "501 for data too large|for data too large");
    large.headers.remove(0);
    assert_eq!(told(&root, large).await, "401 No ticket|");
    let text = "upload 'Content-Type 'multipart/form-data; boundary=B' not implemented";
    let form = request(
        &root,
        "POST",
        "/api2/json/pools",
        &[("Content-Type", "multipart/form-data; boundary=B")],
        "x",
    );
    assert_eq!(told(&root, form).await, format!("506 {text}|{text}"));
    let cased = request(
        &root,
        "POST",
        "/api2/json/pools",
        &[("Content-Type", "Application/JSON")],
        "{}",
    );
    assert!(
        told(&root, cased)
            .await
            .starts_with("506 upload 'Content-Type 'Application/JSON' not implemented|")
    );
}

#[tokio::test(start_paused = true)]
async fn paths_are_shown_as_they_were_sent() {
    let root = Client::root();
    for (target, expected) in [
        ("/api2", "501 no such uri|no such uri"),
        ("/api2/", "501 no such uri|no such uri"),
        ("/api2/JSON/version", "501 no such uri|no such uri"),
        ("/api2/j/version", "501 no such uri|no such uri"),
        (
            "/api2/xml/version",
            "501 no formatter for uri /version, xml|no formatter for uri /version, xml",
        ),
        ("/nope", "500 no such file '/nope'|no such file '/nope'\n"),
    ] {
        assert_eq!(
            told(&root, request(&root, "GET", target, &[], "")).await,
            expected,
            "{target}"
        );
    }
    let doubled = told(&root, request(&root, "GET", "/api2/json//nope//x/", &[], "")).await;
    assert!(
        doubled.starts_with("501 Method 'GET //nope//x/' not implemented|"),
        "{doubled}"
    );
    assert!(
        told(&root, request(&root, "GET", "/api2//json//version/", &[], ""))
            .await
            .starts_with("200 OK|")
    );
}

#[tokio::test(start_paused = true)]
async fn a_login_with_a_token_is_refused_whatever_the_token_is_worth() {
    let root = Client::root();
    let form = "username=root%40pam&password=secret123";
    for token in ["root@pam!full=a0000000-0000-4000-8000-000000000001", "no@pve!one=x"] {
        let mut login = request(&root, "POST", "/api2/json/access/ticket", &[], form);
        login.headers = vec![("Authorization".into(), format!("PVEAPIToken={token}"))];
        let answer = told(&root, login).await;
        assert!(
            answer.starts_with("403 Permission check failed (URI '/access/ticket' not available"),
            "{answer}"
        );
    }
    let mut open = request(&root, "GET", "/api2/json/access/domains", &[], "");
    open.headers = vec![("Authorization".into(), "PVEAPIToken=no@pve!one=x".into())];
    assert!(told(&root, open).await.starts_with("200 OK|"));
}

#[tokio::test(start_paused = true)]
async fn a_ticket_in_the_authorization_header_wins_over_a_token() {
    let root = Client::root();
    let ticket = super::data(&root, "POST", "/access/ticket", "username=ops%40pve&password=Scen-pass1").await;
    // The client always sends its token, with which no one logs in.
    assert!(ticket.is_null());
    let login = Request {
        verb: "POST".into(),
        target: "/api2/json/access/ticket".into(),
        body: "username=ops%40pve&password=Scen-pass1".into(),
        ..Request::default()
    };
    let answer = raw(&root, login).await.expect("an answer");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).expect("JSON");
    let ticket = body["data"]["ticket"].as_str().expect("a ticket");
    let zero = as_token(&root, ZERO);
    let header = format!("PVEAuthCookie={ticket} PVEAPIToken={}", zero.token);
    let mut asked = request(&root, "GET", "/api2/json/access/permissions", &[], "");
    asked.headers = vec![("Authorization".into(), header.replace(' ', "; "))];
    let seen = told(&root, asked).await;
    assert!(seen.contains("/sdn/zones/localnetwork/vmbr0"), "{seen}");
}
