//! Values: merge, secrets, hash, load-balancer pool.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use mainstay_plan::addon::balancer::{PoolConflict, cilium_objects, pool_conflicts};
use mainstay_plan::addon::values::{
    ReleaseContent, content_hash, differing_keys, merge, plain_secrets, referenced_secrets, secret_reference,
};
use mainstay_spec::{AddressSpan, Distro};
use serde_json::{Value, json};

use crate::addon_catalogue::facts;

#[test]
fn user_values_go_over_ours_and_null_deletes() {
    let ours = json!({ "a": { "b": 1, "c": [1, 2] }, "d": "x" });
    let user = json!({ "a": { "c": [3] }, "d": null, "e": { "f": null, "g": 2 } });
    assert_eq!(merge(&ours, &user), json!({ "a": { "b": 1, "c": [3] }, "e": { "g": 2 } }));
    assert_eq!(merge(&ours, &json!({})), ours);
}

/// R11.
#[test]
fn plain_secrets_warn_and_references_do_not() {
    let values = json!({
        "admin": { "password": "hunter2", "existingSecret": "name", "tokenTtl": 5 },
        "oauth": { "clientSecret": secret_reference("client-secret") },
        "list": [{ "apiKey": "x" }], "empty": { "token": "" },
    });
    let warnings = plain_secrets(&values);
    let paths: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(paths, ["admin.password", "list.apiKey"]);
    assert!(warnings.iter().all(|warning| !warning.why.contains("hunter2")));
    assert_eq!(referenced_secrets(&values), ["client-secret"]);
}

#[test]
fn differences_are_named_by_path_without_their_values() {
    let wanted = json!({ "a": { "b": 1, "s": secret_reference("x") }, "l": [1, { "k": 2 }], "n": 2 });
    let installed = json!({ "a": { "b": 2, "s": "hidden", "extra": 1 }, "l": [1, { "k": 2.0 }], "n": 2.0 });
    assert_eq!(differing_keys(&wanted, &installed), ["a.b", "a.extra"]);
    assert_eq!(differing_keys(&wanted, &json!({ "l": [1], "n": 2 })), ["a", "l"]);
    assert_eq!(differing_keys(&wanted, &wanted), Vec::<String>::new());
}

fn hash(key: u8, archive: &str, values: &Value, label: &str, secret: &str) -> String {
    let labels = BTreeMap::from([("l".to_owned(), label.to_owned())]);
    let secrets = BTreeMap::from([("s".to_owned(), secret.to_owned())]);
    let content = ReleaseContent {
        release: "kube-system/cilium",
        archive,
        values,
        namespace_labels: &labels,
        secrets: &secrets,
    };
    content_hash(&[key; 32], &content)
}

/// R5. The literal is the golden value of format 1: descriptions of installed releases contain it.
#[test]
fn the_hash_depends_on_all_content_and_on_nothing_else() {
    let values = json!({ "b": { "y": 1, "x": 2 }, "a": 1 });
    let golden = hash(7, "archive", &values, "v", "f");
    assert_eq!(golden, GOLDEN);
    let reordered = json!({ "a": 1, "b": { "x": 2, "y": 1 } });
    assert_eq!(hash(7, "archive", &reordered, "v", "f"), golden);
    let changed = [
        hash(8, "archive", &values, "v", "f"),
        hash(7, "other", &values, "v", "f"),
        hash(7, "archive", &json!({ "a": 1 }), "v", "f"),
        hash(7, "archive", &values, "w", "f"),
        hash(7, "archive", &values, "v", "g"),
    ];
    assert!(changed.iter().all(|other| *other != golden));
}

const GOLDEN: &str = "5d6db7ae7eaa968b8c1e34e1a152035bbb84952070bc441f17190adb290bdb54";

#[test]
fn a_pool_that_covers_the_vip_or_a_machine_is_a_conflict() {
    let span = |first, last| AddressSpan {
        first: Ipv4Addr::new(10, 0, 0, first),
        last: Ipv4Addr::new(10, 0, 0, last),
    };
    let mut facts = facts(Distro::Talos);
    assert_eq!(pool_conflicts(&facts), []);
    facts.loadbalancer = Some(span(240, 250));
    assert_eq!(pool_conflicts(&facts), []);
    facts.loadbalancer = Some(span(20, 21));
    let machine = PoolConflict::Machine {
        name: "prod-w-1".to_owned(),
        address: Ipv4Addr::new(10, 0, 0, 21),
    };
    assert_eq!(
        pool_conflicts(&facts),
        [PoolConflict::Vip(Ipv4Addr::new(10, 0, 0, 20)), machine]
    );
}

#[test]
fn the_pool_is_announced_by_workers_at_the_api_version_of_the_installed_cilium() {
    let mut facts = facts(Distro::Talos);
    let pool = AddressSpan {
        first: Ipv4Addr::new(10, 0, 0, 240),
        last: Ipv4Addr::new(10, 0, 0, 250),
    };
    let objects = cilium_objects(&facts, pool, "1.20.1");
    assert_eq!(objects[0]["apiVersion"], "cilium.io/v2");
    assert_eq!(
        objects[0]["spec"]["blocks"],
        json!([{ "start": "10.0.0.240", "stop": "10.0.0.250" }])
    );
    assert_eq!(
        (&objects[1]["apiVersion"], &objects[1]["spec"]["loadBalancerIPs"]),
        (&json!("cilium.io/v2alpha1"), &json!(true))
    );
    assert_eq!(
        objects[1]["spec"]["nodeSelector"]["matchExpressions"][0]["operator"],
        "DoesNotExist"
    );
    assert_eq!(cilium_objects(&facts, pool, "1.17.18")[0]["apiVersion"], "cilium.io/v2alpha1");
    facts.workers.clear();
    assert_eq!(cilium_objects(&facts, pool, "1.9.0")[1]["spec"]["nodeSelector"], json!({}));
}
