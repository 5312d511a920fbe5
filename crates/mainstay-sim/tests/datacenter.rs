//! The whole way through the datacenter's own API: image, VM, boot, cluster.

use std::sync::Arc;
use std::time::Duration;

use crate::lab::{Lab, control_plane, in_world, until};
use mainstay_net::http::{Body, HttpClient, HttpOptions};
use mainstay_net::{Connector, Fingerprint, Trust};
use mainstay_sim::Shape;
use serde_json::Value;

struct Pve {
    client: HttpClient,
    endpoint: String,
    token: String,
}

impl Pve {
    fn new(lab: &Lab) -> Self {
        let pin: Fingerprint = lab.world.fingerprint().expect("TLS is on").parse().expect("a fingerprint");
        let connector =
            Connector::new(lab.world.dialer(), &Trust::Pin(pin), lab.world.wall(), Duration::from_secs(5)).expect("a connector");
        let client = HttpClient::new(
            connector,
            HttpOptions {
                http1_only: true,
                ..HttpOptions::default()
            },
        );
        Self {
            client,
            endpoint: lab.world.endpoint(),
            token: lab.world.token().expect("the default world has a token"),
        }
    }

    async fn call(&self, method: &str, path: &str, form: &[(&str, &str)]) -> Value {
        let body = url::form_urlencoded::Serializer::new(String::new())
            .extend_pairs(form)
            .finish();
        let request = http::Request::builder()
            .method(method)
            .uri(format!("{}/api2/json{path}", self.endpoint))
            .header("authorization", format!("PVEAPIToken={}", self.token))
            .header("content-type", "application/x-www-form-urlencoded")
            .body(if form.is_empty() { Body::empty() } else { Body::from(body) })
            .expect("a request");
        let answer = self.client.send(request, Duration::from_secs(60)).await.expect("an answer");
        assert!(
            answer.status.is_success(),
            "{method} {path}: {} {}",
            answer.reason,
            String::from_utf8_lossy(&answer.body)
        );
        serde_json::from_slice::<Value>(&answer.body).expect("json")["data"].clone()
    }

    /// A call that starts a task, and the task's end.
    async fn run(&self, method: &str, path: &str, form: &[(&str, &str)]) {
        let upid = self.call(method, path, form).await.as_str().expect("a UPID").to_owned();
        let escaped: String = url::form_urlencoded::byte_serialize(upid.as_bytes()).collect();
        loop {
            let status = self.call("GET", &format!("/nodes/pve1/tasks/{escaped}/status"), &[]).await;
            if status["status"] == "stopped" {
                assert_eq!(status["exitstatus"], "OK", "{path}");
                return;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
    }
}

#[test]
fn a_vm_made_over_the_pve_api_boots_talos_and_becomes_ready_in_the_time_the_world_takes() {
    in_world(|lab: Arc<Lab>| async move {
        let began = tokio::time::Instant::now();
        let pve = Pve::new(&lab);
        let plain = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba";
        let url = format!("{}/image/{plain}/v1.13.9/nocloud-amd64.qcow2", lab.world.factory_url());
        pve.run(
            "POST",
            "/nodes/pve1/storage/local/download-url",
            &[("content", "import"), ("filename", "talos.qcow2"), ("url", &url)],
        )
        .await;
        let vm = [
            ("vmid", "2000"),
            ("name", "cp-1"),
            ("cores", "4"),
            ("memory", "8192"),
            ("scsihw", "virtio-scsi-pci"),
            ("scsi0", "local-lvm:0,import-from=local:import/talos.qcow2,serial=mainstay0"),
            ("ide2", "local-lvm:cloudinit"),
            ("net0", "virtio=BC:24:11:00:00:01,bridge=vmbr0"),
            ("ipconfig0", "ip=10.10.0.11/16,gw=10.10.0.1"),
            ("nameserver", "1.1.1.1"),
            ("smbios1", "uuid=11111111-2222-4333-8444-555555555555"),
            ("boot", "order=scsi0"),
        ];
        pve.run("POST", "/nodes/pve1/qemu", &vm).await;
        pve.run("PUT", "/nodes/pve1/qemu/2000/resize", &[("disk", "scsi0"), ("size", "40G")])
            .await;
        pve.run("POST", "/nodes/pve1/qemu/2000/status/start", &[]).await;
        lab.maintenance("10.10.0.11").await;
        let node = lab.insecure("10.10.0.11");
        let hardware = node
            .yaml("hardware", "SystemInformations.hardware.talos.dev", "systeminformation")
            .await
            .expect("readable in maintenance");
        assert!(hardware.contains("uuid: 11111111-2222-4333-8444-555555555555"), "{hardware}");
        let disk = &node.disks().await.expect("readable in maintenance").disks[0];
        assert_eq!(
            (disk.device_name.as_str(), disk.serial.as_str(), disk.size),
            ("/dev/sda", "mainstay0", 40 << 30)
        );
        lab.configure("10.10.0.11", &control_plane("cp-1")).await;
        until(|| async { lab.admin("10.10.0.11").bootstrap().await.is_ok() }).await;
        until(|| async {
            lab.admin("10.10.0.11")
                .yaml("k8s", "NodeStatuses.kubernetes.talos.dev", "cp-1")
                .await
                .is_ok_and(|yaml| yaml.contains("nodeReady: true"))
        })
        .await;
        let (taken, bound) = (
            began.elapsed(),
            lab.world
                .critical_path(&Shape {
                    volumes: 2,
                    ..Shape::default()
                })
                .total(),
        );
        assert!(taken >= bound, "no client is faster than the world: {taken:?} < {bound:?}");
        assert!(
            taken.as_secs_f64() < bound.as_secs_f64() * 1.05,
            "{taken:?} against {bound:?}"
        );
    });
}

#[test]
fn a_guest_with_the_agent_shuts_down_when_the_agent_is_told_to() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm_of("cp-1", "10.10.0.11", "1.13.9", &["qemu-guest-agent"]);
        vm.on();
        lab.configure("10.10.0.11", &control_plane("cp-1")).await;
        until(|| async { vm.agent("ping").is_some() }).await;
        assert!(vm.agent("shutdown").is_some_and(|answer| answer.is_ok()));
        until(|| async { vm.events() == [pve_sim::guest::PowerEvent::Off] }).await;
    });
}

#[test]
fn a_powered_off_guest_is_gone_and_an_acpi_shutdown_stops_the_vm() {
    in_world(|lab: Arc<Lab>| async move {
        let vm = lab.vm("cp-1", "10.10.0.11");
        vm.on();
        lab.configure("10.10.0.11", &control_plane("cp-1")).await;
        vm.press_power_button();
        until(|| async { vm.events() == [pve_sim::guest::PowerEvent::Off] }).await;
        assert!(lab.admin("10.10.0.11").version().await.is_err());
    });
}
