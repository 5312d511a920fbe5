//! Users, groups, roles, tokens, ACLs, pools, permissions and logins.

use pve_sim::http::Request;
use pve_sim::{Datacenter, World};
use serde_json::json;

use super::{AUDIT, Client, OPS, ZERO, as_token, data, told};
use crate::client::datacenter;

/// Root by password: permission checks are skipped, so refusals come from the code behind them.
struct Session {
    dc: Datacenter,
    ticket: String,
    csrf: String,
}

async fn login(dc: &Datacenter, form: &str) -> (u16, serde_json::Value) {
    let request = Request {
        verb: "POST".into(),
        target: "/api2/json/access/ticket".into(),
        body: form.to_string().into(),
        ..Request::default()
    };
    match dc.answer("pve1", &request).await {
        pve_sim::Verdict::Answer(response) => {
            let body: serde_json::Value = serde_json::from_slice(&response.body).unwrap_or_default();
            (response.status, body["data"].clone())
        }
        pve_sim::Verdict::HangUp => (0, json!(null)),
    }
}

impl Session {
    async fn open(dc: &Datacenter, form: &str) -> Self {
        let (status, data) = login(dc, form).await;
        assert_eq!(status, 200, "{form}");
        let text = |key: &str| data[key].as_str().unwrap_or_default().to_string();
        Self {
            dc: dc.clone(),
            ticket: text("ticket"),
            csrf: text("CSRFPreventionToken"),
        }
    }

    async fn told(&self, verb: &str, path: &str, form: &str) -> String {
        let request = Request {
            verb: verb.into(),
            target: format!("/api2/json{path}"),
            headers: vec![
                ("Cookie".into(), format!("PVEAuthCookie={}", self.ticket.replace('+', "%2B"))),
                ("CSRFPreventionToken".into(), self.csrf.clone()),
            ],
            body: form.to_string().into(),
            old: false,
        };
        let client = Client {
            dc: self.dc.clone(),
            token: "",
        };
        let answer = told(&client, request).await;
        answer.split('|').next().unwrap_or_default().to_string()
    }
}

const ROOT: &str = "username=root%40pam&password=secret123";

#[tokio::test(start_paused = true)]
async fn changes_of_users_are_refused_in_the_words_of_their_call() {
    let root = Client::root();
    let session = Session::open(&root.dc, ROOT).await;
    for (verb, path, form, expected) in [
        (
            "POST",
            "/access/users",
            "userid=ops%40pve",
            "500 create user failed: user 'ops@pve' already exists",
        ),
        (
            "POST",
            "/access/users",
            "userid=a%40pve&groups=no",
            "500 create user failed: no such group 'no'",
        ),
        (
            "POST",
            "/access/users",
            "userid=a%40no&password=12345678",
            "500 create user failed: auth domain 'no' does not exist",
        ),
        (
            "PUT",
            "/access/users/no%40pve",
            "comment=x",
            "500 update user failed: no such user ('no@pve')",
        ),
        ("DELETE", "/access/users/no%40pve", "", "200 OK"),
        ("GET", "/access/users/no%40pve", "", "500 no such user ('no@pve')"),
        ("GET", "/access/users/no%40pve/token", "", "500 no such user ('no@pve')"),
        ("POST", "/access/users/no%40pve/token/abc", "", "500 no such user ('no@pve')"),
        (
            "POST",
            "/access/users/ops%40pve/token/ms",
            "",
            "400 Parameter verification failed.",
        ),
        (
            "PUT",
            "/access/users/ops%40pve/token/no",
            "comment=x",
            "500 no such token 'no' for user 'ops@pve'",
        ),
        (
            "PUT",
            "/access/users/ops%40pve/token/ms",
            "delete=expire",
            "500 updating token info failed: 400 Parameter verification failed.",
        ),
        (
            "DELETE",
            "/access/users/ops%40pve/token/no",
            "",
            "500 no such token 'no' for user 'ops@pve'",
        ),
    ] {
        assert_eq!(session.told(verb, path, form).await, expected, "{verb} {path} {form}");
    }
    // A token is asked for its rights first, and these need the user.
    let full = "500 no such user ('no@pve')";
    root.expect(&[
        ("PUT", "/access/users/no%40pve", "comment=x", full),
        ("DELETE", "/access/users/no%40pve", "", full),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn roles_of_pve_are_refused_before_the_file_is_locked() {
    let root = Client::root();
    root.expect(&[
        (
            "POST",
            "/access/roles",
            "roleid=pveX",
            "400 Parameter verification failed. roleid: cannot use role ID starting with the (case-insensitive) 'PVE' namespace",
        ),
        (
            "POST",
            "/access/roles",
            "roleid=MsOps",
            "500 create role failed: role 'MsOps' already exists",
        ),
        (
            "PUT",
            "/access/roles/PVEAdmin",
            "privs=VM.Audit",
            "500 auto-generated role 'PVEAdmin' cannot be modified",
        ),
        (
            "DELETE",
            "/access/roles/NoAccess",
            "",
            "500 auto-generated role 'NoAccess' cannot be deleted",
        ),
        (
            "PUT",
            "/access/roles/Nope",
            "privs=VM.Audit",
            "500 update role failed: role 'Nope' does not exist",
        ),
        (
            "DELETE",
            "/access/roles/Nope",
            "",
            "500 delete role failed: role 'Nope' does not exist",
        ),
        (
            "POST",
            "/access/roles",
            "roleid=R&privs=VM.Nope",
            "400 Parameter verification failed. privs: invalid format - invalid privilege 'VM.Nope'\n",
        ),
        ("POST", "/access/roles", "roleid=R&privs=VM.Audit", "200 OK"),
        ("PUT", "/access/roles/R", "privs=VM.Clone&append=1", "200 OK"),
    ])
    .await;
    assert_eq!(
        data(&root, "GET", "/access/roles/R", "").await,
        json!({ "VM.Audit": 1, "VM.Clone": 1 })
    );
    root.expect(&[("PUT", "/access/roles/R", "privs=VM.Clone", "200 OK")]).await;
    assert_eq!(data(&root, "GET", "/access/roles/R", "").await, json!({ "VM.Clone": 1 }));
}

#[tokio::test(start_paused = true)]
async fn groups_are_made_changed_and_removed() {
    let root = Client::root();
    root.expect(&[
        ("POST", "/access/groups", "groupid=g1&comment=", "200 OK"),
        (
            "POST",
            "/access/groups",
            "groupid=g1",
            "500 create group failed: group 'g1' already exists",
        ),
        (
            "PUT",
            "/access/groups/no",
            "comment=x",
            "500 update group failed: group 'no' does not exist",
        ),
        ("GET", "/access/groups/no", "", "500 group 'no' does not exist"),
        ("PUT", "/access/users/zero%40pve", "groups=g1", "200 OK"),
        ("PUT", "/access/acl", "path=/vms&groups=g1&roles=PVEAuditor", "200 OK"),
    ])
    .await;
    assert_eq!(
        data(&root, "GET", "/access/groups", "").await,
        json!([{ "groupid": "g1", "users": "zero@pve" }])
    );
    assert!(data(&as_token(&root, ZERO), "GET", "/access/permissions", "").await["/vms"].is_object());
    root.expect(&[
        ("DELETE", "/access/groups/g1", "", "200 OK"),
        (
            "DELETE",
            "/access/groups/g1",
            "",
            "500 delete group failed: group 'g1' does not exist",
        ),
    ])
    .await;
    assert_eq!(
        data(&as_token(&root, ZERO), "GET", "/access/permissions", "").await,
        json!({})
    );
}

#[tokio::test(start_paused = true)]
async fn members_of_a_group_are_seen_by_those_who_may_see_the_group() {
    let root = Client::root();
    root.expect(&[
        ("POST", "/access/groups", "groupid=g1", "200 OK"),
        ("PUT", "/access/users/ops%40pve", "groups=g1", "200 OK"),
        ("POST", "/access/roles", "roleid=Look&privs=Sys.Audit", "200 OK"),
        (
            "PUT",
            "/access/acl",
            "path=/access/groups/g1&users=zero%40pve&roles=Look",
            "200 OK",
        ),
    ])
    .await;
    let seen = data(&as_token(&root, ZERO), "GET", "/access/users", "").await;
    let names: Vec<&str> = seen
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|u| u["userid"].as_str())
        .collect();
    assert_eq!(names, ["ops@pve"]);
    let full = data(&root, "GET", "/access/users", "").await;
    assert!(full.as_array().expect("a list").iter().all(|u| u.get("tokens").is_none()));
    let all = data(&root, "GET", "/access/users?full=1", "").await;
    let var = all
        .as_array()
        .expect("a list")
        .iter()
        .find(|u| u["userid"] == "root@pam")
        .expect("root");
    assert_eq!(var["groups"], "");
    assert!(var["tokens"].is_array());
}

#[tokio::test(start_paused = true)]
async fn a_token_tells_what_was_given_and_forgets_an_empty_comment() {
    let root = Client::root();
    let made = data(
        &root,
        "POST",
        "/access/users/zero%40pve/token/t1",
        "comment=&expire=0&privsep=0",
    )
    .await;
    assert_eq!(made["info"], json!({ "expire": "0", "privsep": "0" }));
    assert_eq!(made["full-tokenid"], "zero@pve!t1");
    let changed = data(&root, "PUT", "/access/users/zero%40pve/token/t1", "comment=x").await;
    assert_eq!(changed, json!({ "comment": "x", "expire": 0, "privsep": 0 }));
    let cleared = data(&root, "PUT", "/access/users/zero%40pve/token/t1", "delete=comment").await;
    assert_eq!(cleared, json!({ "expire": 0, "privsep": 0 }));
}

#[tokio::test(start_paused = true)]
async fn acl_paths_have_a_grammar_and_removal_does_not_ask_for_it() {
    let root = Client::root();
    for path in [
        "/",
        "/vms/100",
        "vms//100/",
        "/pool/a/b/c",
        "/sdn/zones/z/v/4094",
        "/mapping/pci/x",
        "/access/realm/pve",
    ] {
        let form = format!("path={path}&users=ops%40pve&roles=PVEAuditor");
        assert_eq!(root.outcome("PUT", "/access/acl", &form).await, "200 OK", "{path}");
    }
    for path in [
        "/nope",
        "/vms/9",
        "/vms/010",
        "/sdn/zones/z/v/01",
        "/sdn/dns/a-b",
        "/pool/a/b/c/d",
        "/access/x",
    ] {
        let form = format!("path={path}&users=ops%40pve&roles=PVEAuditor");
        let refused = format!("400 Parameter verification failed. path: invalid ACL path '{path}'");
        assert_eq!(root.outcome("PUT", "/access/acl", &form).await, refused);
        assert_eq!(
            root.outcome("PUT", "/access/acl", &format!("{form}&delete=1")).await,
            "200 OK",
            "{path}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_change_of_acls_is_made_whole_or_not_at_all() {
    let root = Client::root();
    let before = data(&root, "GET", "/access/acl", "").await;
    root.expect(&[
        ("PUT", "/access/acl", "path=/vms&users=zero%40pve,no%40pve&roles=PVEAuditor", "500 ACL update failed: user 'no@pve' does not exist"),
        ("PUT", "/access/acl", "path=/vms&users=zero%40pve&roles=PVEAuditor,Nope", "500 ACL update failed: role 'Nope' does not exist"),
        ("PUT", "/access/acl", "path=/vms&groups=no&roles=PVEAuditor", "500 ACL update failed: group 'no' does not exist"),
        ("PUT", "/access/acl", "path=/vms&tokens=zero%40pve!no&roles=PVEAuditor", "500 ACL update failed: no such token 'no' for user 'zero@pve'"),
        ("PUT", "/access/acl", "path=/vms&users=&roles=PVEAuditor", "400 Parameter verification failed. groups: either 'users', 'groups' or 'tokens' is required. users: either 'users', 'groups' or 'tokens' is required. tokens: either 'users', 'groups' or 'tokens' is required."),
    ])
    .await;
    assert_eq!(data(&root, "GET", "/access/acl", "").await, before);
}

#[tokio::test(start_paused = true)]
async fn only_rights_that_one_holds_can_be_given_without_permissions_modify() {
    let root = Client::root();
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101", "task: OK"),
        ("POST", "/access/roles", "roleid=Own&privs=VM.Audit", "200 OK"),
        ("POST", "/access/roles", "roleid=More&privs=VM.Audit,VM.Backup", "200 OK"),
        ("POST", "/access/roles", "roleid=Alloc&privs=VM.Allocate,VM.Audit", "200 OK"),
        (
            "PUT",
            "/access/acl",
            "path=/vms/101&users=var%40pve&roles=Alloc&propagate=0",
            "200 OK",
        ),
    ])
    .await;
    let ops = as_token(&root, OPS);
    let grant = |role: &str, more: &str| format!("path=/vms/101&users=zero%40pve&roles={role}{more}");
    for (role, more, expected) in [
        ("Own", "", "200 OK"),
        ("Own", "&delete=1", "200 OK"),
        ("More", "", "500 ACL update failed: 400 Parameter verification failed."),
        ("NoAccess", "", "500 ACL update failed: 400 Parameter verification failed."),
    ] {
        assert_eq!(
            ops.outcome("PUT", "/access/acl", &grant(role, more)).await,
            expected,
            "{role}"
        );
    }
    let message = |client: &Client, form: String| {
        let client = as_token(client, client.token);
        async move {
            let (_, _, body) = client.send("PUT", "/access/acl", &form).await;
            body["message"]
                .as_str()
                .unwrap_or_default()
                .lines()
                .nth(1)
                .unwrap_or_default()
                .to_string()
        }
    };
    assert_eq!(
        message(&ops, grant("More", "")).await,
        "role: Cannot add role 'More' - requires 'Permissions.Modify' or superset of privileges."
    );
    assert_eq!(
        message(&ops, grant("More", "&delete=1")).await,
        "role: Cannot remove role 'More' - requires 'Permissions.Modify' or superset of privileges."
    );
    assert_eq!(
        message(&ops, grant("NoAccess", "")).await,
        "role: Cannot add role 'NoAccess' - requires 'Permissions.Modify'"
    );
    let var = as_token(&root, "var@pve!vt=a0000000-0000-4000-8000-000000000008");
    assert_eq!(
        message(&var, grant("Own", "")).await,
        "role: Cannot add role 'Own' with propagation - requires 'Permissions.Modify' or propagated superset of privileges."
    );
    assert_eq!(
        var.outcome("PUT", "/access/acl", &grant("Own", "&propagate=0")).await,
        "200 OK"
    );
}

#[tokio::test(start_paused = true)]
async fn permissions_list_every_node_of_the_tree_above_an_entry() {
    let root = Client::root();
    let seen = data(&as_token(&root, AUDIT), "GET", "/access/permissions", "").await;
    for path in [
        "/",
        "/access",
        "/sdn",
        "/sdn/zones",
        "/sdn/zones/localnetwork",
        "/sdn/zones/localnetwork/vmbr0",
        "/pool/team",
    ] {
        assert!(seen[path].is_object(), "{path}: {seen}");
    }
    assert!(seen.get("/sdn/dns").is_none() && seen.get("/mapping").is_none());
    // Without a right above them the nodes stay empty and are not shown.
    let ops = data(&as_token(&root, OPS), "GET", "/access/permissions", "").await;
    assert!(ops["/sdn/zones/localnetwork/vmbr0"].is_object() && ops.get("/sdn/zones").is_none());
    let odd = data(&as_token(&root, AUDIT), "GET", "/access/permissions?path=vms//7", "").await;
    assert!(odd["vms//7"]["VM.Audit"] == 1, "{odd}");
}

#[tokio::test(start_paused = true)]
async fn a_password_is_confirmed_by_everyone_but_root() {
    let root = Client::root();
    let zero = Session::open(&root.dc, "username=zero%40pve&password=Scen-pass1").await;
    let change = |more: &str| format!("userid=zero%40pve&password=new-secret{more}");
    assert_eq!(
        zero.told("PUT", "/access/password", &change("")).await,
        "400 Parameter verification failed."
    );
    let wrong = change("&confirmation-password=no-such-one");
    assert_eq!(zero.told("PUT", "/access/password", &wrong).await, "500 invalid credentials");
    let right = change("&confirmation-password=Scen-pass1");
    assert_eq!(zero.told("PUT", "/access/password", &right).await, "200 OK");
    assert_eq!(login(&root.dc, "username=zero%40pve&password=new-secret").await.0, 200);
    let session = Session::open(&root.dc, ROOT).await;
    assert_eq!(session.told("PUT", "/access/password", &change("2")).await, "200 OK");
    assert!(
        zero.told("PUT", "/access/password", "userid=root%40pam&password=12345678")
            .await
            .starts_with("403 ")
    );
}

#[tokio::test(start_paused = true)]
async fn a_realm_is_put_behind_the_name_whatever_the_name_is() {
    let dc = Client::root().dc;
    assert_eq!(login(&dc, "username=root&realm=pam&password=secret123").await.0, 200);
    assert_eq!(login(&dc, "username=root%40pam&realm=pam&password=secret123").await.0, 401);
    assert_eq!(login(&dc, "username=root&password=secret123").await.0, 401);
}

/// An operator with the key of RFC 6238.
fn with_second_factor() -> Datacenter {
    let mut world = crate::recorded::scenarios().world;
    world["totp"] = json!({ "ops@pve": ["GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ"] });
    datacenter(World::parse(&world.to_string()).expect("a world"))
}

/// Logs in with the password and gets the ticket that asks for a code, ready for a form.
async fn challenge(dc: &Datacenter) -> String {
    let (status, data) = login(dc, "username=ops%40pve&password=Scen-pass1").await;
    assert_eq!((status, &data["NeedTFA"]), (200, &json!(1)));
    assert!(data.get("cap").is_none());
    data["ticket"]
        .as_str()
        .expect("a ticket")
        .replace('+', "%2B")
        .replace('=', "%3D")
}

#[tokio::test(start_paused = true)]
async fn a_second_factor_is_asked_for_and_its_challenge_opens_nothing() {
    let dc = with_second_factor();
    let ticket = challenge(&dc).await;
    assert!(ticket.starts_with("PVE:!tfa!"));
    let asked = Request {
        verb: "GET".into(),
        target: "/api2/json/version".into(),
        headers: vec![("Cookie".into(), format!("PVEAuthCookie={ticket}"))],
        ..Request::default()
    };
    let client = Client {
        dc: dc.clone(),
        token: "",
    };
    assert_eq!(told(&client, asked).await, "401 Authentication failed!|");
    for answer in ["totp:000000", "000000", "recovery:1", "yubico:1"] {
        let form = format!("username=ops%40pve&tfa-challenge={ticket}&password={answer}");
        assert_eq!(login(&dc, &form).await.0, 401, "{answer}");
    }
    let other = format!("username=zero%40pve&tfa-challenge={ticket}&password=totp:000000");
    assert_eq!(login(&dc, &other).await.0, 401);
    assert_eq!(login(&dc, "username=ops%40pve&password=wrong").await.0, 401);
    // Tokens know no second factor.
    let token = Client { dc, token: OPS };
    assert_eq!(token.outcome("GET", "/version", "").await, "200 OK");
}

#[tokio::test(start_paused = true)]
async fn the_right_code_opens_once_and_an_old_one_never() {
    let dc = with_second_factor();
    let now = 1_794_772_800 / 30;
    let code = |step: i64| pve_sim::access::totp_code("GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ", step).expect("a code");
    let answer = |ticket: &str, step: i64| format!("username=ops%40pve&tfa-challenge={ticket}&password=totp:{}", code(step));
    let ticket = challenge(&dc).await;
    assert_eq!(login(&dc, &answer(&ticket, now - 3)).await.0, 401);
    let (status, data) = login(&dc, &answer(&ticket, now)).await;
    assert_eq!(status, 200);
    assert!(data["ticket"].as_str().is_some_and(|t| t.starts_with("PVE:ops@pve:")) && data["cap"].is_object());
    assert_eq!(login(&dc, &answer(&ticket, now)).await.0, 401);
    // A code beside the password does in one call.
    let form = format!("username=ops%40pve&password=Scen-pass1&otp=totp:{}", code(now + 1));
    assert_eq!(login(&dc, &form).await.0, 200);
}

#[tokio::test(start_paused = true)]
async fn pools_are_checked_in_the_order_of_their_call() {
    let root = Client::root();
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101", "task: OK"),
        (
            "POST",
            "/pools",
            "poolid=1a",
            "500 create pool failed: pool name must start with a letter",
        ),
        (
            "POST",
            "/pools",
            "poolid=no/b",
            "500 create pool failed: parent 'no' of pool 'no/b' does not exist",
        ),
        ("POST", "/pools", "poolid=a", "200 OK"),
        (
            "POST",
            "/pools",
            "poolid=a/9",
            "500 create pool failed: pool name must start with a letter",
        ),
        ("POST", "/pools", "poolid=a/b", "200 OK"),
        ("PUT", "/pools", "poolid=a&vms=101&storage=local", "200 OK"),
        (
            "PUT",
            "/pools",
            "poolid=a&vms=101",
            "500 update pools failed: VM 101 is already a pool member",
        ),
        (
            "PUT",
            "/pools",
            "poolid=a/b&vms=101",
            "500 update pools failed: VM 101 belongs already to pool 'a' and 'allow-move' is not set",
        ),
        (
            "PUT",
            "/pools",
            "poolid=a/b&vms=102&delete=1",
            "500 update pools failed: VM 102 is not a pool member",
        ),
        (
            "PUT",
            "/pools",
            "poolid=a&storage=local",
            "500 update pools failed: Storage 'local' is already a pool member",
        ),
        (
            "PUT",
            "/pools",
            "poolid=no&comment=x",
            "500 update pools failed: pool 'no' does not exist",
        ),
        (
            "DELETE",
            "/pools?poolid=a",
            "",
            "500 delete pool failed: pool 'a' is not empty (contains pool 'a/b')",
        ),
        ("DELETE", "/pools?poolid=a/b", "", "200 OK"),
        (
            "DELETE",
            "/pools?poolid=a",
            "",
            "500 delete pool failed: pool 'a' is not empty (contains VM 101)",
        ),
        ("PUT", "/pools", "poolid=a&vms=101&delete=1", "200 OK"),
        (
            "DELETE",
            "/pools?poolid=a",
            "",
            "500 delete pool failed: pool 'a' is not empty (contains storage 'local')",
        ),
    ])
    .await;
    // A pool that is named is shown to everyone; lists are filtered.
    let zero = as_token(&root, ZERO);
    assert_eq!(data(&zero, "GET", "/pools?poolid=team", "").await[0]["poolid"], "team");
    assert_eq!(data(&zero, "GET", "/pools", "").await, json!([]));
}
