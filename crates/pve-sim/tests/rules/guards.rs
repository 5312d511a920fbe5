//! Firewall aliases and HA rules.

use serde_json::json;

use super::{Client, data};

#[tokio::test(start_paused = true)]
async fn aliases_are_kept_without_regard_to_case_and_rules_may_name_them() {
    let root = Client::root();
    let firewall = "/nodes/pve1/qemu/101/firewall";
    let aliases = format!("{firewall}/aliases");
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101", "task: OK"),
        (
            "POST",
            &format!("{firewall}/rules"),
            "type=in&action=ACCEPT&source=Gate",
            "400 Parameter verification failed. source: no such alias 'Gate'",
        ),
        ("POST", &aliases, "name=Gate&cidr=10.0.0.1/32&comment=c", "200 OK"),
        (
            "POST",
            &aliases,
            "name=gate&cidr=10.0.0.2",
            "400 Parameter verification failed. name: alias 'gate' already exists",
        ),
        (
            "POST",
            &format!("{firewall}/rules"),
            "type=in&action=ACCEPT&source=gate",
            "200 OK",
        ),
        ("PUT", &format!("{aliases}/gate"), "cidr=10.0.0.3&rename=door", "200 OK"),
        (
            "PUT",
            &format!("{aliases}/gate"),
            "cidr=10.0.0.3",
            "400 Parameter verification failed. name: no such alias",
        ),
        ("POST", &format!("{firewall}/ipset"), "name=friends", "200 OK"),
    ])
    .await;
    let door = data(&root, "GET", &format!("{aliases}/DOOR"), "").await;
    assert_eq!(door, json!({ "name": "door", "cidr": "10.0.0.3", "ipversion": 4 }));
    let refs = data(&root, "GET", &format!("{firewall}/refs"), "").await;
    assert_eq!(
        refs,
        json!([
            { "type": "ipset", "name": "friends", "ref": "+friends", "scope": "guest" },
            { "type": "alias", "name": "door", "ref": "door", "scope": "guest" },
        ])
    );
    root.expect(&[
        ("DELETE", &format!("{aliases}/door"), "", "200 OK"),
        ("DELETE", &format!("{aliases}/door"), "", "200 OK"),
    ])
    .await;
}

#[tokio::test(start_paused = true)]
async fn ha_rules_are_changed_listed_by_what_they_concern_and_groups_are_gone() {
    let root = Client::root();
    let rule = "/cluster/ha/rules/r1";
    root.expect(&[
        ("POST", "/nodes/pve1/qemu", "vmid=101", "task: OK"),
        ("POST", "/cluster/ha/resources", "sid=vm:101", "200 OK"),
        (
            "PUT",
            rule,
            "type=node-affinity&nodes=pve1",
            "500 update HA rules failed: HA rule 'r1' does not exist",
        ),
        (
            "POST",
            "/cluster/ha/rules",
            "rule=r1&type=node-affinity&resources=vm:101&nodes=pve1&comment=c",
            "200 OK",
        ),
        (
            "PUT",
            rule,
            "type=node-affinity&resources=vm:102",
            "500 update HA rules failed: cannot use unmanaged resource(s) vm:102.",
        ),
        (
            "PUT",
            rule,
            "type=node-affinity&nodes=pve9",
            "500 update HA rules failed: cannot use non-existent node(s) pve9.",
        ),
        ("PUT", rule, "type=node-affinity&nodes=pve2&delete=comment", "200 OK"),
        (
            "DELETE",
            "/cluster/ha/groups/g1",
            "",
            "500 cannot delete group: ha groups have been migrated to rules",
        ),
    ])
    .await;
    let changed = data(&root, "GET", rule, "").await;
    assert_eq!((&changed["nodes"], changed.get("comment")), (&json!("pve2"), None));
    for (query, count) in [
        ("type=node-affinity", 1),
        ("type=resource-affinity", 0),
        ("resource=vm:101", 1),
        ("resource=vm:102", 0),
    ] {
        let list = data(&root, "GET", &format!("/cluster/ha/rules?{query}"), "").await;
        assert_eq!(list.as_array().map(Vec::len), Some(count), "{query}");
    }
}
