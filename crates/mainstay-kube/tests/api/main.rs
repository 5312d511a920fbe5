//! The calls against a small API server in memory, as bytes.

mod drain;
mod object;
mod scripted;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::{Path, Query, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get};
use axum::{Json, Router};
use mainstay_kube::{Class, Cluster, Cordon, Error, Node, NodeEdit, NodeTaint, Uncordon, Unfit};
use mainstay_net::{
    Binder, Entropy, Env, Identity, Secret, ServeOptions, SimNet, Target, Trust, Wall, serve, server_config, simulate,
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, SanType};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tokio::time::Instant;

const AT: &str = "10.0.0.11:6443";
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Clone, Default)]
struct Api(Arc<Mutex<World>>);

#[derive(Default)]
struct World {
    nodes: BTreeMap<String, Value>,
    csrs: Vec<Value>,
    /// What every call is answered with instead.
    failing: Option<(u16, &'static str)>,
    /// How many changes of taints conflict with a concurrent change.
    conflicts: usize,
    heard: Vec<(String, Value)>,
}

fn run<F: Future<Output = ()>>(test: impl FnOnce(SimNet, Env) -> F + Send) {
    simulate(3, Duration::from_secs(3600), |entropy: Entropy| async move {
        let net = SimNet::new(entropy.fork("net"));
        let wall = Wall::at("2026-11-15T00:00:00Z".parse().unwrap());
        let env = Env {
            dialer: Arc::new(net.clone()),
            wall,
            entropy,
        };
        test(net, env).await;
    })
    .unwrap();
}

fn at() -> Target {
    AT.parse().unwrap()
}

async fn plain(net: &SimNet, env: &Env, api: &Api) -> Cluster {
    let listener = net.bind(AT.parse().unwrap()).await.unwrap();
    tokio::spawn(serve(listener, app(api.clone()), ServeOptions::plain()));
    Cluster::connect(env, &at(), &Trust::Plain, CONNECT).unwrap()
}

fn failure(code: u16, message: &str) -> Response {
    let status =
        json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": "X", "code": code});
    (StatusCode::from_u16(code).unwrap(), Json(status)).into_response()
}

fn app(api: Api) -> Router {
    let nodes = get(|State(api): State<Api>| async move {
        let items: Vec<_> = api.0.lock().unwrap().nodes.values().cloned().collect();
        Json(json!({"kind": "NodeList", "apiVersion": "v1", "metadata": {"resourceVersion": "7"}, "items": items}))
            .into_response()
    });
    let csrs = get(
        |State(api): State<Api>, Query(query): Query<BTreeMap<String, String>>| async move {
            assert_eq!(query["fieldSelector"], "spec.signerName=kubernetes.io/kubelet-serving");
            Json(json!({"kind": "List", "apiVersion": "v1", "metadata": {}, "items": api.0.lock().unwrap().csrs}))
        },
    );
    let lease = get(|Path((namespace, name)): Path<(String, String)>| async move {
        match (namespace.as_str(), name.as_str()) {
            ("kube-node-lease", "w1") => {
                Json(json!({"spec": {"holderIdentity": "w1", "renewTime": "2026-11-15T00:00:07.000000Z"}})).into_response()
            }
            _ => failure(404, "leases not found"),
        }
    });
    let version = get(|| async {
        Json(
            json!({"major": "1", "minor": "36", "gitVersion": "v1.36.4", "gitCommit": "", "gitTreeState": "",
        "buildDate": "", "goVersion": "", "compiler": "", "platform": ""}),
        )
    });
    Router::new()
        .route("/version", version)
        .route("/readyz", get(|| async { "ok" }))
        .route("/api/v1/nodes", nodes)
        .route("/api/v1/nodes/{name}", any(one_node))
        .route("/apis/certificates.k8s.io/v1/certificatesigningrequests", csrs)
        .route(
            "/apis/certificates.k8s.io/v1/certificatesigningrequests/{name}/approval",
            any(approval),
        )
        .route("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}", lease)
        .layer(axum::middleware::from_fn_with_state(api.clone(), fail))
        .with_state(api)
}

async fn fail(State(api): State<Api>, request: axum::extract::Request, next: axum::middleware::Next) -> Response {
    let failing = api.0.lock().unwrap().failing;
    match failing {
        Some((0, _)) => std::future::pending().await,
        Some((code, message)) => failure(code, message),
        None => next.run(request).await,
    }
}

async fn one_node(State(api): State<Api>, Path(name): Path<String>, method: Method, headers: HeaderMap, body: Bytes) -> Response {
    let mut world = api.0.lock().unwrap();
    let Some(node) = world.nodes.get(&name).cloned() else {
        return failure(404, "nodes not found");
    };
    let content = headers
        .get("content-type")
        .map(|value| value.to_str().unwrap().to_owned())
        .unwrap_or_default();
    match method {
        Method::GET => Json(node).into_response(),
        Method::DELETE => Json(world.nodes.remove(&name)).into_response(),
        _ => {
            let patch: Value = serde_json::from_slice(&body).unwrap();
            world.heard.push((content, patch.clone()));
            if world.conflicts > 0 && patch["spec"].get("taints").is_some() {
                world.conflicts -= 1;
                return failure(409, "the object has been modified");
            }
            Json(node).into_response()
        }
    }
}

async fn approval(State(api): State<Api>, Path(name): Path<String>, body: Bytes) -> Response {
    let mut world = api.0.lock().unwrap();
    world.heard.push((name.clone(), serde_json::from_slice(&body).unwrap()));
    let csr = world.csrs.iter().find(|csr| csr["metadata"]["name"] == *name).cloned();
    csr.map_or_else(|| failure(404, "not found"), |csr| Json(csr).into_response())
}

fn node(name: &str, ready: &str) -> Value {
    json!({
        "kind": "Node", "apiVersion": "v1",
        "metadata": {"name": name, "resourceVersion": "5", "labels": {"kubernetes.io/hostname": name}},
        "spec": {"unschedulable": true, "taints": [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "10.0.0.21"}, {"type": "Hostname", "address": name}],
            "conditions": [{"type": "Ready", "status": ready, "message": "cni plugin not initialized", "lastHeartbeatTime": null}],
            "nodeInfo": {"kubeletVersion": "v1.36.4", "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "", "kernelVersion": "",
                "kubeProxyVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "Talos", "systemUUID": ""},
        },
    })
}

fn with_nodes(nodes: &[(&str, &str)]) -> Api {
    let api = Api::default();
    api.0.lock().unwrap().nodes = nodes
        .iter()
        .map(|(name, ready)| ((*name).to_owned(), node(name, ready)))
        .collect();
    api
}

#[test]
fn readiness_version_and_nodes_are_told() {
    run(|net, env| async move {
        let cluster = plain(&net, &env, &with_nodes(&[("w2", "True"), ("w1", "False")])).await;
        assert!(cluster.is_ready().await.unwrap());
        assert_eq!(cluster.version().await.unwrap().to_string(), "1.36.4");
        let nodes = cluster.nodes().await.unwrap();
        assert_eq!(
            nodes
                .iter()
                .map(|node| (node.name.as_str(), node.is_ready()))
                .collect::<Vec<_>>(),
            [("w1", false), ("w2", true)]
        );
        assert_eq!(nodes[0].why_not_ready(), "cni plugin not initialized");
        assert_eq!(
            (nodes[0].kubelet.as_str(), nodes[0].cordoned, nodes[0].taints.len()),
            ("v1.36.4", true, 1)
        );
        assert_eq!(nodes[0].addresses, ["10.0.0.21", "w1"]);
        assert!(cluster.node("nope").await.unwrap().is_none());
    });
}

#[test]
fn failures_are_told_apart() {
    run(|net, env| async move {
        net.attach("10.0.0.11".parse().unwrap());
        let cluster = Cluster::connect(&env, &at(), &Trust::Plain, CONNECT).unwrap();
        let error = cluster.nodes().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert_eq!(error.class(), Class::Unavailable);
        assert!(!cluster.is_ready().await.unwrap(), "who cannot be reached is not ready");

        let api = with_nodes(&[]);
        let cluster = plain(&net, &env, &api).await;
        for (code, class) in [
            (401, Class::Denied),
            (403, Class::Denied),
            (404, Class::NotFound),
            (409, Class::Conflict),
            (500, Class::Unavailable),
            (503, Class::Unavailable),
            (429, Class::Unavailable),
            (422, Class::Other),
        ] {
            api.0.lock().unwrap().failing = Some((code, "etcdserver: no leader"));
            assert_eq!(cluster.nodes().await.unwrap_err().class(), class, "{code}");
        }
        api.0.lock().unwrap().failing = Some((503, "not ready"));
        assert!(!cluster.is_ready().await.unwrap());
        api.0.lock().unwrap().failing = Some((403, "forbidden"));
        assert!(cluster.is_ready().await.is_err(), "a refusal says nothing about readiness");
    });
}

#[test]
fn a_server_that_never_answers_is_given_up_on() {
    run(|net, env| async move {
        let api = with_nodes(&[]);
        let cluster = plain(&net, &env, &api).await;
        api.0.lock().unwrap().failing = Some((0, ""));
        let start = Instant::now();
        assert!(matches!(cluster.nodes().await.unwrap_err(), Error::NoAnswer { .. }));
        assert_eq!(start.elapsed().as_secs(), 10);
    });
}

#[test]
fn a_node_that_is_gone_is_deleted() {
    run(|net, env| async move {
        let api = with_nodes(&[("w1", "True")]);
        let cluster = plain(&net, &env, &api).await;
        cluster.delete_node("w1").await.unwrap();
        cluster.delete_node("w1").await.unwrap();
        assert!(api.0.lock().unwrap().nodes.is_empty());
    });
}

#[test]
fn labels_and_taints_change_in_one_request_with_the_record_of_what_is_ours() {
    run(|net, env| async move {
        let api = with_nodes(&[("w1", "True")]);
        let cluster = plain(&net, &env, &api).await;
        let edit = NodeEdit {
            set_labels: [("tier".to_owned(), "edge".to_owned())].into(),
            remove_labels: ["old".to_owned()].into(),
            set_taints: vec![NodeTaint {
                key: "gpu".into(),
                value: String::new(),
                effect: "NoSchedule".into(),
            }],
            record: Some("labels tier".to_owned()),
            ..NodeEdit::default()
        };
        cluster.edit_node("w1", &edit).await.unwrap();
        let (content, patch) = api.0.lock().unwrap().heard[0].clone();
        assert_eq!(content, "application/merge-patch+json");
        assert_eq!(patch["metadata"]["labels"], json!({"tier": "edge", "old": null}));
        assert_eq!(patch["metadata"]["annotations"], json!({"mainstay/applied": "labels tier"}));
        assert_eq!(
            patch["spec"]["taints"],
            json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}, {"key": "gpu", "effect": "NoSchedule"}])
        );
        assert_eq!(cluster.edit_node("w9", &edit).await.unwrap_err().class(), Class::NotFound);
        assert_eq!(api.0.lock().unwrap().heard.len(), 1);
    });
}

#[test]
fn taints_are_added_to_those_of_others_even_in_a_race() {
    run(|net, env| async move {
        let api = with_nodes(&[("w1", "True")]);
        api.0.lock().unwrap().conflicts = 2;
        let cluster = plain(&net, &env, &api).await;
        let ours = [NodeTaint {
            key: "gpu".into(),
            value: "yes".into(),
            effect: "NoSchedule".into(),
        }];
        cluster.add_taints("w1", &ours).await.unwrap();
        let heard = api.0.lock().unwrap().heard.clone();
        assert_eq!(heard.len(), 3);
        let patch = &heard[2].1;
        assert_eq!(
            patch["metadata"]["resourceVersion"], "5",
            "without it the patch would overwrite"
        );
        assert_eq!(
            patch["spec"]["taints"],
            json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
            {"key": "gpu", "value": "yes", "effect": "NoSchedule"}])
        );
    });
}

#[test]
fn taints_that_are_there_are_not_written_again() {
    run(|net, env| async move {
        let api = with_nodes(&[("w1", "True")]);
        let cluster = plain(&net, &env, &api).await;
        let there = [NodeTaint {
            key: "node.kubernetes.io/not-ready".into(),
            value: String::new(),
            effect: "NoSchedule".into(),
        }];
        cluster.add_taints("w1", &there).await.unwrap();
        assert!(api.0.lock().unwrap().heard.is_empty());
        api.0.lock().unwrap().conflicts = 100;
        let more = [NodeTaint {
            key: "gpu".into(),
            value: String::new(),
            effect: "NoExecute".into(),
        }];
        assert_eq!(cluster.add_taints("w1", &more).await.unwrap_err().class(), Class::Conflict);
    });
}

#[test]
fn a_cordon_is_recorded_and_only_our_own_is_ended() {
    run(|net, env| async move {
        let api = with_nodes(&[("w1", "True")]);
        let cluster = plain(&net, &env, &api).await;
        assert_eq!(
            cluster.cordon("w1", "run-1").await.unwrap(),
            Cordon::ByOthers,
            "it is cordoned already"
        );
        assert_eq!(cluster.uncordon("w1").await.unwrap(), Uncordon::NotOurs);
        assert!(api.0.lock().unwrap().heard.is_empty());

        api.0.lock().unwrap().nodes.get_mut("w1").unwrap()["spec"]["unschedulable"] = json!(false);
        assert_eq!(cluster.cordon("w1", "run-1").await.unwrap(), Cordon::Done);
        let patch = api.0.lock().unwrap().heard[0].1.clone();
        assert_eq!(patch["spec"]["unschedulable"], json!(true));
        assert_eq!(
            patch["metadata"],
            json!({"resourceVersion": "5", "annotations": {"mainstay/cordoned": "run-1"}})
        );

        {
            let node = &mut api.0.lock().unwrap().nodes;
            let node = node.get_mut("w1").unwrap();
            node["spec"]["unschedulable"] = json!(true);
            node["metadata"]["annotations"] = json!({"mainstay/cordoned": "run-1"});
        }
        let again = cluster.cordon("w1", "run-2").await.unwrap();
        assert_eq!(again, Cordon::AlreadyOurs { record: "run-1".into() });
        assert_eq!(cluster.node("w1").await.unwrap().unwrap().cordon_record(), Some("run-1"));
        assert_eq!(cluster.uncordon("w1").await.unwrap(), Uncordon::Done);
        let patch = api.0.lock().unwrap().heard[1].1.clone();
        assert_eq!(patch["spec"], json!({"unschedulable": null}));
        assert_eq!(patch["metadata"]["annotations"], json!({"mainstay/cordoned": null}));

        api.0.lock().unwrap().nodes.get_mut("w1").unwrap()["spec"]["unschedulable"] = json!(false);
        assert_eq!(
            cluster.uncordon("w1").await.unwrap(),
            Uncordon::AlreadyOpen,
            "a person ended it"
        );
    });
}

#[test]
fn taints_are_removed_and_others_stay() {
    run(|net, env| async move {
        let api = with_nodes(&[("w1", "True")]);
        let cluster = plain(&net, &env, &api).await;
        cluster.set_out_of_service("w1").await.unwrap();
        let taint = json!({"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"});
        let patch = api.0.lock().unwrap().heard[0].1.clone();
        assert_eq!(patch["spec"]["taints"][1], taint);
        api.0.lock().unwrap().nodes.get_mut("w1").unwrap()["spec"]["taints"] = patch["spec"]["taints"].clone();
        cluster.clear_out_of_service("w1").await.unwrap();
        let patch = api.0.lock().unwrap().heard[1].1.clone();
        assert_eq!(
            patch["spec"]["taints"],
            json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}])
        );
    });
}

#[test]
fn a_lease_says_when_a_kubelet_was_last_heard_of() {
    run(|net, env| async move {
        let cluster = plain(&net, &env, &with_nodes(&[])).await;
        let lease = cluster.node_lease("w1").await.unwrap().unwrap();
        assert_eq!(
            (lease.holder.as_str(), lease.renewed.unwrap().to_string().as_str()),
            ("w1", "2026-11-15T00:00:07Z")
        );
        assert!(cluster.node_lease("w2").await.unwrap().is_none());
    });
}

/// A request as a kubelet of Talos makes it, changed by `change`.
fn csr(name: &str, node: &str, change: impl FnOnce(&mut CertificateParams, &mut Value)) -> Value {
    use base64::Engine;
    let mut params = CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params
        .distinguished_name
        .push(DnType::CommonName, format!("system:node:{node}"));
    params.subject_alt_names = vec![
        SanType::DnsName(node.try_into().unwrap()),
        SanType::IpAddress("10.0.0.21".parse().unwrap()),
    ];
    let mut spec = json!({"signerName": "kubernetes.io/kubelet-serving", "username": format!("system:node:{node}"),
        "usages": ["digital signature", "server auth"]});
    change(&mut params, &mut spec);
    let pem = params
        .serialize_request(&KeyPair::generate().unwrap())
        .unwrap()
        .pem()
        .unwrap();
    spec["request"] = base64::prelude::BASE64_STANDARD.encode(pem).into();
    json!({"kind": "CertificateSigningRequest", "apiVersion": "certificates.k8s.io/v1", "metadata": {"name": name}, "spec": spec, "status": {}})
}

fn san(text: &str) -> SanType {
    SanType::IpAddress(text.parse().unwrap())
}

#[test]
fn a_kubelets_request_is_approved_only_for_what_is_its_own() {
    run(|net, env| async move {
        let api = with_nodes(&[("w1", "True"), ("w2", "True")]);
        let mut decided = csr("decided", "w1", |_, _| {});
        decided["status"] = json!({"conditions": [{"type": "Denied", "status": "True"}]});
        let usage = |_: &mut CertificateParams, spec: &mut Value| {
            spec["usages"] = json!(["digital signature", "server auth", "client auth"]);
        };
        api.0.lock().unwrap().csrs = vec![
            csr("a-good", "w1", |_, _| {}),
            csr("b-foreign", "stranger", |_, _| {}),
            csr("c-address", "w1", |params, _| params.subject_alt_names.push(san("10.0.0.99"))),
            csr("d-usage", "w1", usage),
            csr("e-another", "w1", |_, spec| spec["username"] = "system:node:w2".into()),
            csr("f-group", "w1", |params, _| {
                params.distinguished_name.push(DnType::OrganizationName, "system:masters");
            }),
            csr("g-nothing", "w1", |params, _| params.subject_alt_names.clear()),
            csr("h-uri", "w1", |params, _| {
                params.subject_alt_names.push(SanType::URI("spiffe://x".try_into().unwrap()));
            }),
            csr("i-signer", "w1", |_, spec| {
                spec["signerName"] = "kubernetes.io/kube-apiserver-client".into();
            }),
            csr("j-person", "w1", |_, spec| spec["username"] = "admin".into()),
            decided,
        ];
        let cluster = plain(&net, &env, &api).await;
        let ours: Vec<Node> = cluster.nodes().await.unwrap();
        let left = cluster.approve_kubelet_csrs(&ours).await.unwrap();
        let approved: Vec<_> = api.0.lock().unwrap().heard.iter().map(|(name, _)| name.clone()).collect();
        assert_eq!(approved, ["a-good"]);
        let told: Vec<_> = left.iter().map(|(csr, unfit)| (csr.name.as_str(), unfit)).collect();
        assert_eq!(
            told.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
            [
                "b-foreign",
                "c-address",
                "d-usage",
                "e-another",
                "f-group",
                "g-nothing",
                "h-uri"
            ]
        );
        assert_eq!(told[0].1, &Unfit::Foreign("stranger".into()));
        assert_eq!(told[1].1, &Unfit::NotItsOwn("10.0.0.99".into()));
        assert_eq!(told[2].1, &Unfit::Usage("client auth".into()));
        assert!(matches!(told[3].1, Unfit::AnotherName { .. }));
        assert_eq!(
            [told[4].1, told[5].1, told[6].1],
            [&Unfit::Group, &Unfit::NoNames, &Unfit::OtherNames]
        );
        let condition = api.0.lock().unwrap().heard[0].1["status"]["conditions"][0].clone();
        assert_eq!(
            (condition["type"].as_str(), condition["status"].as_str()),
            (Some("Approved"), Some("True"))
        );
    });
}

#[test]
fn both_sides_prove_themselves() {
    let issue = || {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
    };
    let admin = |issuer: &CertifiedIssuer<'static, KeyPair>| {
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::default().signed_by(&key, issuer).unwrap();
        Identity {
            cert_pem: cert.pem(),
            key_pem: Secret::new(key.serialize_pem()),
        }
    };
    run(|net, env| async move {
        let (ours, theirs) = (issue(), issue());
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["10.0.0.11".to_owned()])
            .unwrap()
            .signed_by(&key, &ours)
            .unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(ours.der().clone()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), mainstay_net::crypto_provider())
            .build()
            .unwrap();
        let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
        let mut tls = server_config(env.wall)
            .with_client_cert_verifier(verifier)
            .with_single_cert(vec![cert.der().clone()], key)
            .unwrap();
        tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        let listener = net.bind(AT.parse().unwrap()).await.unwrap();
        tokio::spawn(serve(listener, app(with_nodes(&[])), ServeOptions::tls(Arc::new(tls))));

        let trust = |ca: &CertifiedIssuer<'static, KeyPair>, identity: Identity| Trust::Ca {
            ca_pem: ca.pem(),
            identity: Some(identity),
            server_name: None,
        };
        let connect = |trust: &Trust| Cluster::connect(&env, &at(), trust, CONNECT).unwrap();
        connect(&trust(&ours, admin(&ours))).version().await.unwrap();
        let error = connect(&trust(&theirs, admin(&ours))).version().await.unwrap_err();
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        let refused = admin(&theirs);
        let error = connect(&trust(&ours, refused)).version().await.unwrap_err();
        assert!(matches!(error, Error::ClientRefused { .. }), "{error:?}");
        assert!(!format!("{error:?}").contains("PRIVATE KEY"));
        let broken = Identity {
            key_pem: Secret::from("CANARY"),
            ..admin(&ours)
        };
        let error = Cluster::connect(&env, &at(), &trust(&ours, broken), CONNECT).unwrap_err();
        assert!(!format!("{error:?}").contains("CANARY"), "{error:?}");
    });
}
