//! `machine.MachineService`.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use futures::StreamExt;
use prost_types::Duration as ProtoDuration;
use talos_proto::{common, machine};
use tonic::{Request, Status};

use super::{Answer, Api, Stream, stream};
use crate::pki::{self, Request as CertificateRequest};
use crate::talos::events::{Tail, is_xid};
use crate::talos::node::{BootstrapRequest, Ending, Node, Sequence, uuid_of};
use crate::talos::sequence::{self, Order, Wipe};
use crate::talos::services::ServiceState;
use crate::talos::{boot, kubelet};

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

pub(super) fn actor(node: &Node) -> String {
    uuid_of(&node.entropy.fork(&format!("actor {}", node.site.next_serial())))
}

/// `<api> is only available on control plane nodes`
pub(super) fn control_plane_only(node: &Node, api: &str) -> Result<(), Status> {
    if node.is_control_plane() {
        Ok(())
    } else {
        Err(Status::unimplemented(format!(
            "{api} is only available on control plane nodes"
        )))
    }
}

/// A simulated broken connection after the work was done: the caller cannot know.
pub(super) async fn lose_answer<T>(node: &Arc<Node>) -> Answer<T> {
    node.site.sim.reset(node.addresses());
    tokio::task::yield_now().await;
    Err(Status::unavailable("error reading from server: EOF"))
}

#[tonic::async_trait]
impl machine::machine_service_server::MachineService for Api {
    async fn apply_configuration(
        &self,
        request: Request<machine::ApplyConfigurationRequest>,
    ) -> Answer<machine::ApplyConfigurationResponse> {
        self.apply(request).await
    }

    async fn version(&self, _request: Request<()>) -> Answer<machine::VersionResponse> {
        let image = &self.0.image;
        let version = machine::VersionInfo {
            tag: format!("v{}", image.version),
            sha: "undefined".to_owned(),
            built: String::new(),
            go_version: "go1.26.8".to_owned(),
            os: "linux".to_owned(),
            arch: image.arch.clone(),
        };
        let mode = if image.platform == "metal" { "metal" } else { "cloud" };
        let platform = machine::PlatformInfo {
            name: image.platform.clone(),
            mode: mode.to_owned(),
        };
        let features = self.0.config().map(|_| machine::FeaturesInfo { rbac: true });
        let message = machine::Version {
            metadata: None,
            version: Some(version),
            platform: Some(platform),
            features,
        };
        Ok(tonic::Response::new(machine::VersionResponse { messages: vec![message] }))
    }

    async fn hostname(&self, _request: Request<()>) -> Answer<machine::HostnameResponse> {
        let message = machine::Hostname {
            metadata: None,
            hostname: self.0.hostname(),
        };
        Ok(tonic::Response::new(machine::HostnameResponse { messages: vec![message] }))
    }

    async fn service_list(&self, _request: Request<()>) -> Answer<machine::ServiceListResponse> {
        let services = self
            .0
            .services
            .all()
            .iter()
            .map(|(id, service)| service.to_proto(id))
            .collect();
        Ok(tonic::Response::new(machine::ServiceListResponse {
            messages: vec![machine::ServiceList {
                metadata: None,
                services,
            }],
        }))
    }

    async fn service_restart(&self, request: Request<machine::ServiceRestartRequest>) -> Answer<machine::ServiceRestartResponse> {
        let id = request.into_inner().id;
        self.service_operation(&id, "restart", id == "kubelet" || id.starts_with("ext-"))?;
        let node = Arc::clone(&self.0);
        node.set_service(&id, ServiceState::Stopping, "Sending SIGTERM to task");
        node.set_service(&id, ServiceState::Finished, "Service finished successfully");
        if id == "kubelet" {
            let own = Arc::clone(&node);
            node.spawn(async move { kubelet::start(&own).await });
        } else {
            boot::start(&node, &id, &format!("Started task {id} (PID 512) for container {id}"));
        }
        let message = machine::ServiceRestart {
            metadata: None,
            resp: format!("Service \"{id}\" restarted"),
        };
        Ok(tonic::Response::new(machine::ServiceRestartResponse {
            messages: vec![message],
        }))
    }

    async fn service_start(&self, request: Request<machine::ServiceStartRequest>) -> Answer<machine::ServiceStartResponse> {
        let id = request.into_inner().id;
        self.service_operation(&id, "start", id == "kubelet" || id.starts_with("ext-"))?;
        let runs = self.0.services.get(&id).is_some_and(|own| own.state == ServiceState::Running);
        if !runs && id.starts_with("ext-") {
            boot::start(&self.0, &id, &format!("Started task {id} (PID 512) for container {id}"));
        }
        let message = machine::ServiceStart {
            metadata: None,
            resp: format!("Service \"{id}\" started"),
        };
        Ok(tonic::Response::new(machine::ServiceStartResponse {
            messages: vec![message],
        }))
    }

    async fn service_stop(&self, request: Request<machine::ServiceStopRequest>) -> Answer<machine::ServiceStopResponse> {
        let id = request.into_inner().id;
        self.service_operation(&id, "stop", id.starts_with("ext-"))?;
        self.0
            .set_service(&id, ServiceState::Finished, "Service finished successfully");
        let message = machine::ServiceStop {
            metadata: None,
            resp: format!("Service \"{id}\" stopped"),
        };
        Ok(tonic::Response::new(machine::ServiceStopResponse { messages: vec![message] }))
    }

    async fn bootstrap(&self, request: Request<machine::BootstrapRequest>) -> Answer<machine::BootstrapResponse> {
        let request = request.into_inner();
        let node = &self.0;
        if node.minor() >= 13 {
            control_plane_only(node, "bootstrap")?;
        }
        let cri = tokio::time::timeout(Duration::from_secs(1), node.until(|node| node.is_up("cri"))).await;
        cri.map_err(|_| Status::failed_precondition("bootstrap is not available yet"))?;
        if !node.is_control_plane() {
            return Err(Status::failed_precondition(
                "bootstrap can only be performed on a control plane node",
            ));
        }
        let time = tokio::time::timeout(Duration::from_secs(5), node.until(Node::time_is_synced)).await;
        time.map_err(|_| Status::failed_precondition("time is not in sync yet"))?;
        if node.has_etcd_data() {
            return Err(Status::already_exists("etcd data directory is not empty"));
        }
        node.lock().bootstrap = Some(BootstrapRequest {
            recover: request.recover_etcd,
            skip_hash_check: request.recover_skip_hash_check,
        });
        node.beat();
        if self.loses(|faults| &mut faults.lose_bootstrap_answers) {
            return lose_answer(node).await;
        }
        Ok(tonic::Response::new(machine::BootstrapResponse {
            messages: vec![machine::Bootstrap { metadata: None }],
        }))
    }

    async fn reboot(&self, request: Request<machine::RebootRequest>) -> Answer<machine::RebootResponse> {
        use machine::reboot_request::Mode;
        let mode = request.into_inner().mode();
        let actor_id = actor(&self.0);
        let ending = if mode == Mode::Powercycle {
            Ending::PowerCycle
        } else {
            Ending::Reboot
        };
        let order = Order {
            abrupt: mode == Mode::Force,
            ..Order::reboot(actor_id.clone(), ending)
        };
        sequence::begin(&self.0, order);
        Ok(tonic::Response::new(machine::RebootResponse {
            messages: vec![machine::Reboot {
                metadata: None,
                actor_id,
            }],
        }))
    }

    async fn shutdown(&self, request: Request<machine::ShutdownRequest>) -> Answer<machine::ShutdownResponse> {
        let actor_id = actor(&self.0);
        sequence::begin(&self.0, Order::shutdown(actor_id.clone(), request.into_inner().force));
        Ok(tonic::Response::new(machine::ShutdownResponse {
            messages: vec![machine::Shutdown {
                metadata: None,
                actor_id,
            }],
        }))
    }

    async fn reset(&self, request: Request<machine::ResetRequest>) -> Answer<machine::ResetResponse> {
        let request = request.into_inner();
        let wipe = wipe_of(&request)?;
        let actor_id = actor(&self.0);
        let ending = if request.reboot { Ending::Reboot } else { Ending::Off };
        let order = Order {
            sequence: Sequence::Reset,
            actor: actor_id.clone(),
            ending,
            graceful: request.graceful,
            leaves_etcd: request.graceful && self.0.is_control_plane(),
            wipe,
            force: false,
            abrupt: !request.graceful,
            upgrade: None,
        };
        sequence::begin(&self.0, order);
        Ok(tonic::Response::new(machine::ResetResponse {
            messages: vec![machine::Reset {
                metadata: None,
                actor_id,
            }],
        }))
    }

    async fn events(&self, request: Request<machine::EventsRequest>) -> Answer<Stream<machine::Event>> {
        let request = request.into_inner();
        let node = Arc::clone(&self.0);
        let hello = machine::Event {
            metadata: None,
            data: Some(prost_types::Any::default()),
            id: node.events.hello(),
            actor_id: String::new(),
        };
        // A request that cannot be met is refused behind the greeting.
        let tail = match tail_of(&request, node.site.wall.now()) {
            Ok(tail) => tail,
            Err(refusal) => {
                return Ok(tonic::Response::new(Box::pin(futures::stream::iter([
                    Ok(hello),
                    Err(refusal),
                ]))));
            }
        };
        let (position, past) = node.events.begin(&tail);
        let wanted = request.with_actor_id;
        let closed = node.events.closed();
        let moved = node.events.watch();
        let state = (node, position, std::collections::VecDeque::from(past), moved, closed);
        let events = futures::stream::unfold(state, move |(node, mut position, mut ready, mut moved, closed)| {
            let wanted = wanted.clone();
            async move {
                loop {
                    while let Some(event) = ready.pop_front() {
                        if wanted.is_empty() || event.actor == wanted {
                            return Some((Ok(event.to_proto()), (node, position, ready, moved, closed)));
                        }
                    }
                    moved.mark_unchanged();
                    // A reader that fell behind is cut off.
                    let new = node.events.after(position)?;
                    if let Some(last) = new.last() {
                        position = last.position;
                        ready.extend(new);
                        continue;
                    }
                    if closed.is_cancelled() {
                        return None;
                    }
                    tokio::select! {
                        biased;
                        () = closed.cancelled() => {}
                        () = node.alive.cancelled() => return None,
                        changed = moved.changed() => changed.ok()?,
                    }
                }
            }
        });
        Ok(tonic::Response::new(Box::pin(
            futures::stream::iter([Ok(hello)]).chain(events),
        )))
    }

    async fn kubeconfig(&self, _request: Request<()>) -> Answer<Stream<common::Data>> {
        let node = &self.0;
        control_plane_only(node, "kubeconfig")?;
        let text = kubeconfig(node).ok_or_else(|| Status::unknown("failed to generate kubeconfig"))?;
        let bytes = tar_gz("kubeconfig", text.as_bytes()).map_err(|error| Status::unknown(error.to_string()))?;
        Ok(stream(vec![common::Data { metadata: None, bytes }]))
    }

    async fn generate_client_configuration(
        &self,
        request: Request<machine::GenerateClientConfigurationRequest>,
    ) -> Answer<machine::GenerateClientConfigurationResponse> {
        let node = &self.0;
        control_plane_only(node, "generate client configuration")?;
        let request = request.into_inner();
        let ttl = request.crt_ttl.map_or(0, |ttl: ProtoDuration| ttl.seconds);
        let life = u64::try_from(ttl)
            .ok()
            .filter(|ttl| *ttl > 0)
            .ok_or_else(|| Status::invalid_argument("crt_ttl should be positive"))?;
        let message = client_configuration(node, &request.roles, Duration::from_secs(life))
            .ok_or_else(|| Status::unknown("failed to generate"))?;
        Ok(tonic::Response::new(machine::GenerateClientConfigurationResponse {
            messages: vec![message],
        }))
    }

    async fn memory(&self, _request: Request<()>) -> Answer<machine::MemoryResponse> {
        let meminfo = super::stats::memory(self.0.hardware.memory / 1024);
        Ok(tonic::Response::new(machine::MemoryResponse {
            messages: vec![machine::Memory {
                metadata: None,
                meminfo: Some(meminfo),
            }],
        }))
    }

    async fn processes(&self, _request: Request<()>) -> Answer<machine::ProcessesResponse> {
        let processes = self.process_list();
        Ok(tonic::Response::new(machine::ProcessesResponse {
            messages: vec![machine::Process {
                metadata: None,
                processes,
            }],
        }))
    }

    async fn containers(&self, request: Request<machine::ContainersRequest>) -> Answer<machine::ContainersResponse> {
        let request = request.into_inner();
        let containers = self.container_list(&request.namespace, request.driver());
        Ok(tonic::Response::new(machine::ContainersResponse {
            messages: vec![machine::Container {
                metadata: None,
                containers,
            }],
        }))
    }

    async fn stats(&self, request: Request<machine::StatsRequest>) -> Answer<machine::StatsResponse> {
        let request = request.into_inner();
        let stats = self.stat_list(&request.namespace, request.driver());
        Ok(tonic::Response::new(machine::StatsResponse {
            messages: vec![machine::Stats { metadata: None, stats }],
        }))
    }

    async fn restart(&self, request: Request<machine::RestartRequest>) -> Answer<machine::RestartResponse> {
        let request = request.into_inner();
        let known = self.container_list(&request.namespace, request.driver());
        if !known.iter().any(|container| container.id == request.id) {
            return Err(Status::unknown(format!("container \"{}\" not found", request.id)));
        }
        Ok(tonic::Response::new(machine::RestartResponse {
            messages: vec![machine::Restart { metadata: None }],
        }))
    }

    async fn cpu_info(&self, _request: Request<()>) -> Answer<machine::CpuInfoResponse> {
        let cpu_info = self.processors();
        Ok(tonic::Response::new(machine::CpuInfoResponse {
            messages: vec![machine::CpUsInfo {
                metadata: None,
                cpu_info,
            }],
        }))
    }

    async fn disk_stats(&self, _request: Request<()>) -> Answer<machine::DiskStatsResponse> {
        let devices = self.disk_counters();
        Ok(tonic::Response::new(machine::DiskStatsResponse {
            messages: vec![machine::DiskStats {
                metadata: None,
                total: devices.first().cloned(),
                devices,
            }],
        }))
    }

    async fn network_device_stats(&self, _request: Request<()>) -> Answer<machine::NetworkDeviceStatsResponse> {
        let devices = self.link_counters();
        Ok(tonic::Response::new(machine::NetworkDeviceStatsResponse {
            messages: vec![machine::NetworkDeviceStats {
                metadata: None,
                total: devices.last().cloned(),
                devices,
            }],
        }))
    }

    async fn logs_containers(&self, _request: Request<()>) -> Answer<machine::LogsContainersResponse> {
        let running = self.0.services.all().into_keys();
        Ok(tonic::Response::new(machine::LogsContainersResponse {
            messages: vec![machine::LogsContainer {
                metadata: None,
                ids: running.collect(),
            }],
        }))
    }

    async fn disk_usage(&self, request: Request<machine::DiskUsageRequest>) -> Answer<Stream<machine::DiskUsageInfo>> {
        self.usage(&request.into_inner())
    }

    async fn etcd_downgrade_validate(
        &self,
        request: Request<machine::EtcdDowngradeValidateRequest>,
    ) -> Answer<machine::EtcdDowngradeValidateResponse> {
        let cluster_downgrade = Some(self.downgrade("validate", &request.into_inner().version).await?);
        Ok(tonic::Response::new(machine::EtcdDowngradeValidateResponse {
            messages: vec![machine::EtcdDowngradeValidate {
                metadata: None,
                cluster_downgrade,
            }],
        }))
    }

    async fn etcd_downgrade_enable(
        &self,
        request: Request<machine::EtcdDowngradeEnableRequest>,
    ) -> Answer<machine::EtcdDowngradeEnableResponse> {
        let cluster_downgrade = Some(self.downgrade("enable", &request.into_inner().version).await?);
        Ok(tonic::Response::new(machine::EtcdDowngradeEnableResponse {
            messages: vec![machine::EtcdDowngradeEnable {
                metadata: None,
                cluster_downgrade,
            }],
        }))
    }

    async fn etcd_downgrade_cancel(&self, _request: Request<()>) -> Answer<machine::EtcdDowngradeCancelResponse> {
        self.local("etcd downgrade cancel").await?;
        Err(Status::unknown("etcdserver: no inflight downgrade job"))
    }

    async fn system_stat(&self, _request: Request<()>) -> Answer<machine::SystemStatResponse> {
        let boot_time = u64::try_from(self.0.booted_at.as_second()).unwrap_or(0);
        let message = machine::SystemStat {
            boot_time,
            ..machine::SystemStat::default()
        };
        Ok(tonic::Response::new(machine::SystemStatResponse { messages: vec![message] }))
    }

    async fn load_avg(&self, _request: Request<()>) -> Answer<machine::LoadAvgResponse> {
        let message = machine::LoadAvg {
            metadata: None,
            load1: 0.5,
            load5: 0.4,
            load15: 0.3,
        };
        Ok(tonic::Response::new(machine::LoadAvgResponse { messages: vec![message] }))
    }

    async fn mounts(&self, _request: Request<()>) -> Answer<machine::MountsResponse> {
        let size = self.0.hardware.disks.get(self.0.disk.index).map_or(0, |disk| disk.size);
        let stats = vec![machine::MountStat {
            filesystem: "/dev/sda6".to_owned(),
            size,
            available: size / 2,
            mounted_on: "/var".to_owned(),
        }];
        Ok(tonic::Response::new(machine::MountsResponse {
            messages: vec![machine::Mounts { metadata: None, stats }],
        }))
    }

    async fn rollback(&self, _request: Request<machine::RollbackRequest>) -> Answer<machine::RollbackResponse> {
        self.roll_back()
    }

    async fn image_list(&self, request: Request<machine::ImageListRequest>) -> Answer<Stream<machine::ImageListResponse>> {
        self.image_list_before_1_13(request.into_inner()).await
    }

    async fn image_pull(&self, request: Request<machine::ImagePullRequest>) -> Answer<machine::ImagePullResponse> {
        self.image_pull_before_1_13(request.into_inner()).await
    }

    async fn upgrade(&self, request: Request<machine::UpgradeRequest>) -> Answer<machine::UpgradeResponse> {
        self.legacy_upgrade(request.into_inner()).await
    }

    async fn meta_write(&self, request: Request<machine::MetaWriteRequest>) -> Answer<machine::MetaWriteResponse> {
        let request = request.into_inner();
        let key = u8::try_from(request.key).map_err(|_| Status::invalid_argument("key must be a uint8"))?;
        let value = String::from_utf8_lossy(&request.value).into_owned();
        self.0.resources.put(
            &crate::talos::resources::META_KEY,
            &format!("{key:#04x}"),
            crate::talos::resources::meta_key(&value),
        );
        self.0.disk.change(|installed| {
            installed.meta.insert(key, value);
        });
        Ok(tonic::Response::new(machine::MetaWriteResponse {
            messages: vec![machine::MetaWrite { metadata: None }],
        }))
    }

    async fn meta_delete(&self, request: Request<machine::MetaDeleteRequest>) -> Answer<machine::MetaDeleteResponse> {
        let key = u8::try_from(request.into_inner().key).map_err(|_| Status::invalid_argument("key must be a uint8"))?;
        let known = self.0.disk.read().is_some_and(|installed| installed.meta.contains_key(&key));
        if !known {
            return Err(Status::not_found("meta key not found"));
        }
        self.0
            .resources
            .remove(&crate::talos::resources::META_KEY, &format!("{key:#04x}"));
        self.0.disk.change(|installed| {
            installed.meta.remove(&key);
        });
        Ok(tonic::Response::new(machine::MetaDeleteResponse {
            messages: vec![machine::MetaDelete { metadata: None }],
        }))
    }

    async fn etcd_member_list(
        &self,
        request: Request<machine::EtcdMemberListRequest>,
    ) -> Answer<machine::EtcdMemberListResponse> {
        self.member_list(request.into_inner().query_local).await
    }

    async fn etcd_status(&self, _request: Request<()>) -> Answer<machine::EtcdStatusResponse> {
        self.member_status().await
    }

    async fn etcd_alarm_list(&self, _request: Request<()>) -> Answer<machine::EtcdAlarmListResponse> {
        self.alarm_list().await
    }

    async fn etcd_alarm_disarm(&self, _request: Request<()>) -> Answer<machine::EtcdAlarmDisarmResponse> {
        self.alarm_disarm().await
    }

    async fn etcd_defragment(&self, _request: Request<()>) -> Answer<machine::EtcdDefragmentResponse> {
        self.defragment().await
    }

    async fn etcd_remove_member_by_id(
        &self,
        request: Request<machine::EtcdRemoveMemberByIdRequest>,
    ) -> Answer<machine::EtcdRemoveMemberByIdResponse> {
        self.remove_member(request.into_inner().member_id).await
    }

    async fn etcd_leave_cluster(
        &self,
        _request: Request<machine::EtcdLeaveClusterRequest>,
    ) -> Answer<machine::EtcdLeaveClusterResponse> {
        self.leave_cluster().await
    }

    async fn etcd_forfeit_leadership(
        &self,
        _request: Request<machine::EtcdForfeitLeadershipRequest>,
    ) -> Answer<machine::EtcdForfeitLeadershipResponse> {
        self.forfeit().await
    }

    async fn etcd_snapshot(&self, _request: Request<machine::EtcdSnapshotRequest>) -> Answer<Stream<common::Data>> {
        self.snapshot().await
    }

    async fn etcd_recover(&self, request: Request<tonic::Streaming<common::Data>>) -> Answer<machine::EtcdRecoverResponse> {
        self.recover(request.into_inner()).await
    }

    async fn list(&self, request: Request<machine::ListRequest>) -> Answer<Stream<machine::FileInfo>> {
        self.list_files(&request.into_inner())
    }

    async fn read(&self, request: Request<machine::ReadRequest>) -> Answer<Stream<common::Data>> {
        self.read_file(&request.into_inner().path)
    }

    async fn logs(&self, request: Request<machine::LogsRequest>) -> Answer<Stream<common::Data>> {
        self.service_logs(&request.into_inner())
    }

    async fn dmesg(&self, request: Request<machine::DmesgRequest>) -> Answer<Stream<common::Data>> {
        self.kernel_log(&request.into_inner())
    }
}

impl Api {
    fn service_operation(&self, id: &str, operation: &str, supported: bool) -> Result<(), Status> {
        if self.0.services.get(id).is_none() {
            return Err(Status::unknown(format!("service \"{id}\" not defined")));
        }
        if supported {
            Ok(())
        } else {
            Err(Status::unknown(format!(
                "service \"{id}\" doesn't support {operation} operation via API"
            )))
        }
    }

    /// Takes one of the answers that are to be lost.
    pub(super) fn loses(&self, count: impl FnOnce(&mut crate::talos::site::NodeFaults) -> &mut u32) -> bool {
        self.0.site.change_faults(&self.0.hardware.name, |faults| {
            let left = count(faults);
            let loses = *left > 0;
            *left = left.saturating_sub(1);
            loses
        })
    }
}

fn tail_of(request: &machine::EventsRequest, now: jiff::Timestamp) -> Result<Tail, Status> {
    let asked = [
        request.tail_events != 0,
        !request.tail_id.is_empty(),
        request.tail_seconds != 0,
    ]
    .iter()
    .filter(|set| **set)
    .count();
    if asked > 1 {
        let what = if request.tail_seconds != 0 {
            "WithTailDuration can't be specified at the same time with WithTailEvents or WithTailID"
        } else {
            "WithTailEvents can't be specified at the same time with WithTailID"
        };
        return Err(Status::unknown(what));
    }
    if !request.tail_id.is_empty() {
        if !is_xid(&request.tail_id) {
            return Err(Status::unknown("error parsing tail_id: xid: invalid ID"));
        }
        return Ok(Tail::After(request.tail_id.clone()));
    }
    if request.tail_seconds != 0 {
        let past = Duration::from_secs(u64::try_from(request.tail_seconds).unwrap_or(0));
        return Ok(Tail::Since(now.checked_sub(past).unwrap_or(now)));
    }
    Ok(match usize::try_from(request.tail_events) {
        Ok(0) => Tail::New,
        Ok(count) => Tail::Last(count),
        Err(_) => Tail::All,
    })
}

fn wipe_of(request: &machine::ResetRequest) -> Result<Wipe, Status> {
    use machine::reset_request::WipeMode;
    let labels: Vec<&str> = request
        .system_partitions_to_wipe
        .iter()
        .filter(|spec| spec.wipe)
        .map(|spec| spec.label.as_str())
        .collect();
    match request.mode() {
        WipeMode::UserDisks if !labels.is_empty() => {
            return Err(Status::unknown(
                "reset failed: invalid input, wipe mode USER_DISKS doesn't support SystemPartitionsToWipe parameter",
            ));
        }
        WipeMode::SystemDisk if !request.user_disks_to_wipe.is_empty() => {
            return Err(Status::unknown(
                "reset failed: invalid input, wipe mode SYSTEM_DISK doesn't support UserDisksToWipe parameter",
            ));
        }
        WipeMode::UserDisks => return Ok(Wipe::default()),
        WipeMode::All | WipeMode::SystemDisk => {}
    }
    for label in &labels {
        if !["STATE", "EPHEMERAL", "META", "EFI", "BIOS", "BOOT"].contains(label) {
            return Err(Status::unknown(format!(
                "failed to get volume status with label \"{label}\": resource VolumeStatuses.block.talos.dev(runtime/{label}@undefined) doesn't exist"
            )));
        }
    }
    Ok(Wipe {
        state: labels.contains(&"STATE"),
        ephemeral: labels.contains(&"EPHEMERAL"),
        disk: request.system_partitions_to_wipe.is_empty(),
    })
}

/// A fresh admin certificate at every call.
fn kubeconfig(node: &Node) -> Option<String> {
    let config = node.config()?;
    let name = config.cluster_name();
    let groups = ["system:masters".to_owned()];
    let from = node.site.wall.now().checked_sub(Duration::from_secs(10)).ok()?;
    let request = CertificateRequest::client("admin", &groups, from, YEAR);
    let pair = config.kubernetes_authority().ok()?.issue_p256(&request).ok()?;
    let text = serde_json::json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": config.endpoint(), "certificate-authority-data": STANDARD.encode(config.kubernetes_ca()?)}}],
        "users": [{"name": format!("admin@{name}"), "user": {
            "client-certificate-data": STANDARD.encode(pair.certificate_pem()),
            "client-key-data": STANDARD.encode(pair.key_pem()),
        }}],
        "contexts": [{"context": {"cluster": name, "namespace": "default", "user": format!("admin@{name}")}, "name": format!("admin@{name}")}],
        "current-context": format!("admin@{name}"),
    });
    Some(crate::yaml::emit(&text))
}

/// A gzip'd tar of one file. The archive is never closed: neither padding nor end blocks follow.
fn tar_gz(name: &str, content: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut header = [0u8; 512];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, name.as_bytes());
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"00000000000\0");
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gzip.write_all(&header)?;
    gzip.write_all(content)?;
    gzip.finish()
}

fn client_configuration(node: &Node, roles: &[String], life: Duration) -> Option<machine::GenerateClientConfiguration> {
    let config = node.config()?;
    let authority = config.os_authority().ok()?;
    let request = CertificateRequest::client("", roles, node.site.wall.now(), life);
    let pair = authority
        .issue(&request, &node.entropy.fork(&format!("client {}", node.site.next_serial())))
        .ok()?;
    let (ca, crt, key) = (pki::pem_of(&authority.certificate), pair.certificate_pem(), pair.key_pem());
    let name = match roles {
        [role] => format!("{}@{}", role.trim_start_matches("os:"), config.cluster_name()),
        _ => config.cluster_name(),
    };
    let context = serde_json::json!({"endpoints": [], "ca": STANDARD.encode(&ca), "crt": STANDARD.encode(&crt), "key": STANDARD.encode(&key)});
    let talosconfig = crate::yaml::emit(&serde_json::json!({"context": name, "contexts": {name.clone(): context}}));
    Some(machine::GenerateClientConfiguration {
        metadata: None,
        ca: ca.into_bytes(),
        crt: crt.into_bytes(),
        key: key.into_bytes(),
        talosconfig: talosconfig.into_bytes(),
    })
}
