//! `storage.StorageService` and `time.TimeService`.

use std::time::Duration;

use talos_proto::{storage, time};
use tonic::{Request, Response, Status};

use super::{Answer, Api};
use crate::talos::cosi::stamp;
use crate::talos::disk;

#[tonic::async_trait]
impl storage::storage_service_server::StorageService for Api {
    async fn disks(&self, _request: Request<()>) -> Answer<storage::DisksResponse> {
        let hardware = &self.0.hardware;
        let disks = hardware.disks.iter().enumerate().map(|(index, own)| {
            let name = disk::device_name(&hardware.disks, index);
            storage::Disk {
                size: own.size,
                model: if own.key.starts_with("virtio") {
                    String::new()
                } else {
                    "QEMU HARDDISK".to_owned()
                },
                device_name: format!("/dev/{name}"),
                name,
                serial: own.serial.clone().unwrap_or_default(),
                r#type: storage::disk::DiskType::Hdd.into(),
                bus_path: "/pci0000:00/0000:00:05.0/virtio2/".to_owned(),
                system_disk: self.0.from_disk && index == self.0.disk.index,
                subsystem: "/sys/class/block".to_owned(),
                ..storage::Disk::default()
            }
        });
        Ok(Response::new(storage::DisksResponse {
            messages: vec![storage::Disks {
                metadata: None,
                disks: disks.collect(),
            }],
        }))
    }

    async fn block_device_wipe(
        &self,
        request: Request<storage::BlockDeviceWipeRequest>,
    ) -> Answer<storage::BlockDeviceWipeResponse> {
        let hardware = &self.0.hardware;
        for device in request.into_inner().devices {
            let name = device.device;
            let index = (0..hardware.disks.len()).find(|index| disk::device_name(&hardware.disks, *index) == name);
            let index = index.ok_or_else(|| Status::not_found(format!("blockdevice \"{name}\" not found")))?;
            if index == self.0.disk.index && !device.skip_volume_check {
                return Err(Status::failed_precondition(format!(
                    "blockdevice \"{name}\" is in use by disk \"{name}\""
                )));
            }
            hardware.disks[index].content.write(pve_sim::guest::Content::Blank);
        }
        Ok(Response::new(storage::BlockDeviceWipeResponse {
            messages: vec![storage::BlockDeviceWipe { metadata: None }],
        }))
    }
}

#[tonic::async_trait]
impl time::time_service_server::TimeService for Api {
    async fn time(&self, _request: Request<()>) -> Answer<time::TimeResponse> {
        self.ask("time.cloudflare.com").await
    }

    async fn time_check(&self, request: Request<time::TimeRequest>) -> Answer<time::TimeResponse> {
        self.ask(&request.into_inner().server).await
    }
}

impl Api {
    async fn ask(&self, server: &str) -> Answer<time::TimeResponse> {
        let faults = self.0.faults();
        if faults.no_time_sync {
            tokio::time::sleep(Duration::from_secs(5)).await;
            return Err(Status::unknown(format!(
                "error querying NTP server \"{server}\": read udp: i/o timeout"
            )));
        }
        let now = self.0.site.wall.now();
        let synced = self.0.time_is_synced();
        let skew = jiff::SignedDuration::from_secs(if synced { 0 } else { faults.clock_skew });
        let local = now.checked_add(skew).unwrap_or(now);
        let message = time::Time {
            metadata: None,
            server: server.to_owned(),
            localtime: Some(stamp(local)),
            remotetime: Some(stamp(now)),
        };
        Ok(Response::new(time::TimeResponse { messages: vec![message] }))
    }
}
