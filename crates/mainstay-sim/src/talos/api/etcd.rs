//! The etcd calls.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use talos_proto::{common, machine};
use tonic::{Response, Status};

use super::machine::control_plane_only;
use super::{Answer, Api, Stream, hang, stream};
use crate::talos::etcd::{EtcdCluster, EtcdError};
use crate::talos::node::EtcdState;
use crate::talos::{sequence, snapshot};

/// Snapshots arrive in pieces of this size.
const CHUNK: usize = 1024;
/// How long a member without a leader thinks before it says so.
const NO_LEADER_AFTER: Duration = Duration::from_millis(1300);

async fn no_leader<T>() -> Result<T, Status> {
    tokio::time::sleep(NO_LEADER_AFTER).await;
    Err(Status::unknown(EtcdError::NoLeader.to_string()))
}

impl Api {
    /// The running etcd; without one these calls wait for it, and end with the caller's deadline.
    pub(super) async fn local(&self, api: &str) -> Result<(Arc<EtcdCluster>, u64), Status> {
        control_plane_only(&self.0, api)?;
        match self.0.etcd() {
            Some(found) => Ok(found),
            None => std::future::pending().await,
        }
    }

    /// Another control plane's etcd, for a node that has none of its own any more.
    fn elsewhere(&self) -> Option<(Arc<EtcdCluster>, u64)> {
        let (room, own) = (self.0.room()?, self.0.address()?);
        let others = room
            .control_planes()
            .into_iter()
            .filter(|other| other.address().is_some_and(|address| self.0.site.reaches(own, address)));
        others
            .filter(|other| other.node_id != self.0.node_id)
            .find_map(|other| other.etcd())
    }

    pub(super) async fn member_list(&self, local: bool) -> Answer<machine::EtcdMemberListResponse> {
        control_plane_only(&self.0, "member list")?;
        let gone = matches!(self.0.etcd_state(), EtcdState::Left | EtcdState::Removed);
        let found = if gone && !local { self.elsewhere() } else { self.0.etcd() };
        let Some((cluster, member)) = found else { return hang().await };
        if cluster.leader_of(member).is_none() {
            return no_leader().await;
        }
        let members = cluster.members();
        let legacy_members = members.iter().map(|member| member.name.clone()).collect();
        let url = |member: &crate::talos::etcd::Member, port: u16| {
            format!("https://{}", std::net::SocketAddr::new(member.address, port))
        };
        let members = members.iter().map(|member| machine::EtcdMember {
            id: member.id,
            hostname: member.name.clone(),
            peer_urls: vec![url(member, 2380)],
            client_urls: if member.name.is_empty() {
                Vec::new()
            } else {
                vec![url(member, 2379)]
            },
            is_learner: member.learner,
        });
        let message = machine::EtcdMembers {
            metadata: None,
            legacy_members,
            members: members.collect(),
        };
        Ok(Response::new(machine::EtcdMemberListResponse { messages: vec![message] }))
    }

    pub(super) async fn member_status(&self) -> Answer<machine::EtcdStatusResponse> {
        let (cluster, member) = self.local("etcd status").await?;
        let status = cluster
            .status(member)
            .ok_or_else(|| Status::unknown(EtcdError::MemberNotFound.to_string()))?;
        let errors = if status.leader == 0 {
            vec![EtcdError::NoLeader.to_string()]
        } else {
            Vec::new()
        };
        let size = i64::try_from(cluster.store.dump().to_string().len()).unwrap_or(0);
        let member_status = machine::EtcdMemberStatus {
            storage_version: self.storage_version(),
            member_id: member,
            protocol_version: self.etcd_version(),
            db_size: size + 24_576,
            db_size_in_use: size,
            leader: status.leader,
            raft_index: status.index,
            raft_term: status.term,
            raft_applied_index: status.index,
            errors,
            is_learner: status.member.learner,
        };
        Ok(Response::new(machine::EtcdStatusResponse {
            messages: vec![machine::EtcdStatus {
                metadata: None,
                member_status: Some(member_status),
            }],
        }))
    }

    /// `3.6.16`
    fn etcd_version(&self) -> String {
        let image = self.0.config().map(|config| config.etcd_image()).unwrap_or_default();
        let tag = image.rsplit_once(':').map_or("", |(_, tag)| tag);
        tag.trim_start_matches('v').to_owned()
    }

    /// `3.6.0`: data of this minor can be read by any patch of it.
    fn storage_version(&self) -> String {
        let version = self.etcd_version();
        version
            .rsplit_once('.')
            .map_or(String::new(), |(minor, _)| format!("{minor}.0"))
    }

    /// Only one minor version back may be asked for.
    pub(super) async fn downgrade(&self, what: &str, version: &str) -> Result<machine::EtcdClusterDowngrade, Status> {
        self.local(&format!("etcd downgrade {what}")).await?;
        let minor = |text: &str| text.split('.').nth(1).and_then(|minor| minor.parse::<u64>().ok());
        let (now, wanted) = (self.etcd_version(), minor(version));
        if wanted.is_none() || wanted != minor(&now).and_then(|minor| minor.checked_sub(1)) {
            return Err(Status::unknown("etcdserver: invalid downgrade target version"));
        }
        Ok(machine::EtcdClusterDowngrade {
            cluster_version: now.rsplit_once('.').map_or(String::new(), |(line, _)| format!("{line}.0")),
        })
    }

    pub(super) async fn alarm_list(&self) -> Answer<machine::EtcdAlarmListResponse> {
        let (cluster, member) = self.local("etcd alarm list").await?;
        if cluster.leader_of(member).is_none() {
            return hang().await;
        }
        let member_alarms = cluster
            .alarms()
            .iter()
            .map(|alarm| machine::EtcdMemberAlarm {
                member_id: alarm.member,
                alarm: alarm.kind,
            })
            .collect();
        Ok(Response::new(machine::EtcdAlarmListResponse {
            messages: vec![machine::EtcdAlarm {
                metadata: None,
                member_alarms,
            }],
        }))
    }

    pub(super) async fn alarm_disarm(&self) -> Answer<machine::EtcdAlarmDisarmResponse> {
        let (cluster, member) = self.local("etcd alarm disarm").await?;
        if cluster.leader_of(member).is_none() {
            return no_leader().await;
        }
        let member_alarms = cluster
            .disarm()
            .iter()
            .map(|alarm| machine::EtcdMemberAlarm {
                member_id: alarm.member,
                alarm: alarm.kind,
            })
            .collect();
        Ok(Response::new(machine::EtcdAlarmDisarmResponse {
            messages: vec![machine::EtcdAlarmDisarm {
                metadata: None,
                member_alarms,
            }],
        }))
    }

    pub(super) async fn defragment(&self) -> Answer<machine::EtcdDefragmentResponse> {
        self.local("etcd defragment").await?;
        Ok(Response::new(machine::EtcdDefragmentResponse {
            messages: vec![machine::EtcdDefragment { metadata: None }],
        }))
    }

    pub(super) async fn remove_member(&self, id: u64) -> Answer<machine::EtcdRemoveMemberByIdResponse> {
        let (cluster, member) = self.local("etcd remove member").await?;
        match cluster.remove(member, id) {
            Ok(()) => Ok(Response::new(machine::EtcdRemoveMemberByIdResponse {
                messages: vec![machine::EtcdRemoveMemberById { metadata: None }],
            })),
            Err(error @ EtcdError::MemberNotFound) => Err(Status::not_found(format!("failed to remove member {id}: {error}"))),
            Err(error) => Err(Status::unknown(format!(
                "failed to remove member: failed to remove member {id}: {error}"
            ))),
        }
    }

    pub(super) async fn leave_cluster(&self) -> Answer<machine::EtcdLeaveClusterResponse> {
        let (cluster, member) = self.local("etcd leave").await?;
        // Mark it before the members change, so that the service knows a removal from a leave.
        self.0.lock().etcd = EtcdState::Left;
        if let Err(error) = cluster.remove(member, member) {
            self.0.lock().etcd = EtcdState::Running { cluster, member };
            return Err(Status::unknown(sequence::leave_error(member, &error)));
        }
        cluster.stop(member);
        self.0.announce();
        Ok(Response::new(machine::EtcdLeaveClusterResponse {
            messages: vec![machine::EtcdLeaveCluster { metadata: None }],
        }))
    }

    pub(super) async fn forfeit(&self) -> Answer<machine::EtcdForfeitLeadershipResponse> {
        let (cluster, member) = self.local("etcd forfeit leadership").await?;
        let failed = |why: &str| Status::unknown(format!("failed to forfeit leadership: {why}"));
        if cluster.leader_of(member).is_none() {
            return Err(failed("failed to list etcd members: etcdserver: no leader"));
        }
        if cluster.members().len() == 1 {
            return Err(failed("cannot forfeit leadership, only one member"));
        }
        let heir = cluster.forfeit(member).map_err(|error| failed(&error.to_string()))?;
        let message = machine::EtcdForfeitLeadership {
            metadata: None,
            member: heir.unwrap_or_default(),
        };
        Ok(Response::new(machine::EtcdForfeitLeadershipResponse {
            messages: vec![message],
        }))
    }

    /// Works without a quorum too: it reads the local database.
    pub(super) async fn snapshot(&self) -> Answer<Stream<common::Data>> {
        let (cluster, _) = self.local("etcd snapshot").await?;
        let mut rest: Bytes = snapshot::write(&cluster.store);
        let mut chunks = Vec::new();
        while !rest.is_empty() {
            let piece = rest.split_to(CHUNK.min(rest.len()));
            chunks.push(common::Data {
                metadata: None,
                bytes: piece.to_vec(),
            });
        }
        Ok(stream(chunks))
    }

    /// Only stores the file; a bootstrap reads it.
    pub(super) async fn recover(&self, mut upload: tonic::Streaming<common::Data>) -> Answer<machine::EtcdRecoverResponse> {
        control_plane_only(&self.0, "etcd recover")?;
        let mut snapshot = BytesMut::new();
        while let Some(chunk) = upload.next().await {
            snapshot.extend_from_slice(&chunk?.bytes);
        }
        self.0
            .disk
            .change(|installed| installed.ephemeral.snapshot = Some(snapshot.freeze()));
        Ok(Response::new(machine::EtcdRecoverResponse {
            messages: vec![machine::EtcdRecover { metadata: None }],
        }))
    }
}
