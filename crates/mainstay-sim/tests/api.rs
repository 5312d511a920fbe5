//! Doors of the machine API: certificates, routing, streams, and the files it hands out.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use crate::lab::{Lab, control_plane, in_world, os_ca, os_trust, until, worker};
use mainstay_net::{Target, Trust, crypto_provider};
use prost::Message;
use rcgen::ExtendedKeyUsagePurpose as Use;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName};
use rustls::{AlertDescription, ClientConfig, RootCertStore};
use serde_json::json;
use talos_proto::cosi::resource::{self as cosi, EventType};
use talos_proto::machine;
use tokio::io::AsyncReadExt;
use tonic::Code;

const CP: &str = "10.10.0.11";

/// What a TLS client with this certificate is told after the handshake.
async fn alert(lab: &Lab, identity: Option<(String, String)>) -> Option<AlertDescription> {
    let mut roots = RootCertStore::empty();
    roots
        .add(CertificateDer::from(pem::parse(os_ca()).unwrap().into_contents()))
        .unwrap();
    let builder = ClientConfig::builder_with_details(crypto_provider(), Arc::new(lab.world.wall()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match identity {
        None => builder.with_no_client_auth(),
        Some((cert, key)) => {
            let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pem::parse(key).unwrap().into_contents()));
            builder
                .with_client_auth_cert(vec![CertificateDer::from(pem::parse(cert).unwrap().into_contents())], key)
                .unwrap()
        }
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    let stream = lab.world.dialer().dial(&Target::new(CP, 50000)).await.unwrap();
    let name = ServerName::try_from(CP).unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(config))
        .connect(name, stream)
        .await
        .unwrap();
    let mut byte = [0];
    let told = tokio::time::timeout(Duration::from_secs(1), stream.read(&mut byte))
        .await
        .ok()?
        .err()?;
    match told.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => Some(*alert),
        _ => None,
    }
}

#[test]
fn a_refused_certificate_gets_the_recorded_alert() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        assert_eq!(alert(&lab, None).await, Some(AlertDescription::CertificateRequired));
        assert_eq!(
            alert(&lab, Some(crate::lab::foreign_certificate())).await,
            Some(AlertDescription::UnknownCA)
        );
        assert_eq!(
            alert(&lab, Some(crate::lab::expired_certificate())).await,
            Some(AlertDescription::CertificateExpired)
        );
        for uses in [&[][..], &[Use::ServerAuth], &[Use::ClientAuth, Use::ServerAuth]] {
            assert_eq!(
                alert(&lab, Some(crate::lab::client_certificate(&["os:admin"], uses))).await,
                Some(AlertDescription::BadCertificate),
                "{uses:?}"
            );
        }
        assert_eq!(
            alert(&lab, Some(crate::lab::client_certificate(&["os:admin"], &[Use::ClientAuth]))).await,
            None
        );
    });
}

#[test]
fn a_node_in_maintenance_is_a_stranger_to_the_clusters_authority() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.maintenance(CP).await;
        let status = lab.admin(CP).version().await.unwrap_err();
        assert_eq!(status.code(), Code::Unavailable);
        assert!(lab.with_trust(CP, &Trust::Nothing).version().await.is_ok());
    });
}

#[test]
fn server_certificates_are_renewed_before_they_expire() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        for _ in 0..5 {
            tokio::time::sleep(Duration::from_secs(8 * 3600)).await;
            assert!(lab.admin(CP).version().await.is_ok());
        }
        assert!(
            lab.with_trust(CP, &os_trust("10.10.0.99", None)).version().await.is_err(),
            "no certificate for another address"
        );
    });
}

#[test]
fn control_planes_forward_and_workers_do_not() {
    in_world(|lab: Arc<Lab>| async move {
        let _first = lab.first_control_plane("cp-1", CP).await;
        let second = lab.join_control_plane("cp-2", "10.10.0.12").await;
        let other = lab.vm("w-1", "10.10.0.21");
        other.on();
        lab.configure("10.10.0.21", &worker("w-1")).await;
        let node = lab.admin(CP);
        let hostname = "machine.MachineService/Hostname";
        let ask = |headers: &'static [(&'static str, &'static str)]| {
            let node = node.clone();
            async move { node.raw_with(hostname, &json!({}), headers).await }
        };
        let one = ask(&[("node", "10.10.0.21")]).await;
        let answer = machine::HostnameResponse::decode(one.answers[0].as_slice()).unwrap();
        assert_eq!(
            (answer.messages[0].hostname.as_str(), answer.messages[0].metadata.is_none()),
            ("w-1", true)
        );
        let many = ask(&[("nodes", "10.10.0.12"), ("nodes", "10.10.0.21"), ("nodes", "10.10.0.99")]).await;
        let answer = machine::HostnameResponse::decode(many.answers[0].as_slice()).unwrap();
        let seen: Vec<(String, String, bool)> = answer
            .messages
            .iter()
            .map(|message| {
                (
                    message.metadata.clone().unwrap().hostname,
                    message.hostname.clone(),
                    message.metadata.clone().unwrap().error.is_empty(),
                )
            })
            .collect();
        let row = |node: &str, name: &str, fine: bool| (node.to_owned(), name.to_owned(), fine);
        assert_eq!(
            seen,
            [
                row("10.10.0.99", "", false),
                row("10.10.0.12", "cp-2", true),
                row("10.10.0.21", "w-1", true),
            ],
            "who could not be asked comes first"
        );
        let port = ask(&[("node", "10.10.0.12:50000")]).await;
        assert_eq!(
            (port.code, port.message.as_str()),
            (Code::Internal, "invalid target \"10.10.0.12:50000\"")
        );
        let two = ask(&[("node", "10.10.0.12"), ("node", "10.10.0.21")]).await;
        assert_eq!(
            (two.code, two.message.as_str()),
            (Code::InvalidArgument, "node metadata must be single-valued")
        );
        let get = json!({"namespace": "runtime", "type": "MachineStatuses.runtime.talos.dev", "id": "machine"});
        let resources = node
            .raw_with("cosi.resource.State/Get", &get, &[("nodes", "10.10.0.12")])
            .await;
        assert_eq!(
            (resources.code, resources.message.as_str()),
            (
                Code::InvalidArgument,
                "one-2-many proxying is not supported for method /cosi.resource.State/Get"
            )
        );
        let from_worker = lab.admin("10.10.0.21").raw_with(hostname, &json!({}), &[("node", CP)]).await;
        assert_eq!(
            (from_worker.code, from_worker.message.as_str()),
            (Code::PermissionDenied, "no request forwarding")
        );
        let itself = lab
            .admin("10.10.0.21")
            .raw_with(hostname, &json!({}), &[("node", "10.10.0.21")])
            .await;
        assert_eq!(itself.code, Code::Ok);
        second.off();
        let void = ask(&[("node", "10.10.0.12")]).await;
        assert_eq!(void.code, Code::DeadlineExceeded, "who has just gone is still sent to");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let gone = ask(&[("node", "10.10.0.12")]).await;
        assert_eq!(
            (gone.code, gone.message.as_str()),
            (
                Code::Unavailable,
                "connection error: desc = \"transport: Error while dialing: dial tcp 10.10.0.12:50000: connect: no route to host\""
            )
        );
    });
}

#[test]
fn the_kubeconfig_is_a_tar_that_is_never_closed_and_new_each_time() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let read = || async {
            let mut stream = lab.admin(CP).machine.clone().kubeconfig(()).await.unwrap().into_inner();
            let data = stream.message().await.unwrap().unwrap().bytes;
            let mut tar = Vec::new();
            flate2::read::GzDecoder::new(data.as_slice()).read_to_end(&mut tar).unwrap();
            let size = usize::from_str_radix(std::str::from_utf8(&tar[124..135]).unwrap(), 8).unwrap();
            assert_eq!(
                (tar.len(), &tar[..10]),
                (512 + size, &b"kubeconfig"[..]),
                "no padding and no end blocks"
            );
            String::from_utf8(tar[512..].to_vec()).unwrap()
        };
        let (one, other) = (read().await, read().await);
        assert_ne!(one, other);
        assert!(
            one.contains("server: https://10.10.0.10:6443") && one.contains("current-context: admin@demo"),
            "{one}"
        );
    });
}

#[test]
fn watches_begin_with_an_empty_answer_and_tell_what_is_absent() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", CP);
        vm.on();
        lab.maintenance(CP).await;
        // Until the API itself has passed its first check.
        tokio::time::sleep(Duration::from_secs(2)).await;
        let node = lab.insecure(CP);
        let watch = |id: Option<&str>, bootstrap: bool, api_version: i32| {
            let options = cosi::WatchOptions {
                bootstrap_contents: bootstrap,
                ..Default::default()
            };
            let request = cosi::WatchRequest {
                namespace: "runtime".to_owned(),
                r#type: "Services.v1alpha1.talos.dev".to_owned(),
                id: id.map(str::to_owned),
                options: Some(options),
                api_version,
            };
            let mut client = node.state.clone();
            async move { client.watch(request).await.unwrap().into_inner() }
        };
        let mut stream = watch(Some("nope"), false, 1).await;
        assert!(stream.message().await.unwrap().unwrap().event.is_empty());
        let event = stream.message().await.unwrap().unwrap().event.remove(0);
        assert_eq!(event.event_type(), EventType::Destroyed);
        let kinds = |api_version: i32| {
            let watch = &watch;
            async move {
                let mut stream = watch(None, true, api_version).await;
                let mut kinds = Vec::new();
                while let Ok(Ok(Some(answer))) = tokio::time::timeout(Duration::from_secs(1), stream.message()).await {
                    kinds.extend(answer.event.iter().map(cosi::Event::event_type));
                }
                kinds
            }
        };
        assert_eq!(kinds(1).await.last(), Some(&EventType::Bootstrapped));
        assert!(
            !kinds(0).await.contains(&EventType::Bootstrapped),
            "old clients are spared it"
        );
        let mut stream = watch(Some("cri"), false, 1).await;
        lab.configure(CP, &control_plane("cp-1")).await;
        drop(stream.message().await);
        let node = lab.admin(CP);
        until(|| async { node.service_up("cri").await }).await;
        let versions = node
            .get("runtime", "Services.v1alpha1.talos.dev", "cri")
            .await
            .unwrap()
            .metadata
            .unwrap()
            .version;
        assert_eq!(versions, "2", "one per change");
    });
}

#[test]
fn health_is_told_step_by_step() {
    in_world(|lab: Arc<Lab>| async move {
        let _vm = lab.first_control_plane("cp-1", CP).await;
        let node = lab.admin(CP);
        until(|| async {
            node.machine_status()
                .await
                .contains("stage: running\nstatus:\n    ready: true")
        })
        .await;
        let mut client = talos_proto::cluster::cluster_service_client::ClusterServiceClient::new(node.channel.clone());
        let request = talos_proto::cluster::HealthCheckRequest {
            wait_timeout: Some(prost_types::Duration { seconds: 30, nanos: 0 }),
            cluster_info: None,
        };
        let mut stream = client.health_check(request).await.unwrap().into_inner();
        let mut lines = Vec::new();
        while let Some(progress) = stream.message().await.unwrap() {
            lines.push(progress.message);
        }
        assert_eq!(lines[0], "discovered nodes: [\"10.10.0.11\"]");
        assert_eq!(lines.iter().filter(|line| line.ends_with(": OK")).count(), 16, "{lines:?}");
    });
}
