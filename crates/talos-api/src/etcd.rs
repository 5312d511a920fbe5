//! etcd, as a control plane sees it.

use std::net::{IpAddr, SocketAddr};

use talos_proto::machine::{
    EtcdForfeitLeadershipRequest, EtcdLeaveClusterRequest, EtcdMemberListRequest, EtcdMemberStatus, EtcdRemoveMemberByIdRequest,
    etcd_member_alarm,
};

use crate::error::{Class, Error};
use crate::limits::{ETCD, LEAVE, READ};
use crate::node::Node;

/// A member as etcd lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdMember {
    pub id: u64,
    /// The machine's hostname. Empty for a member that was added and has never started.
    pub name: String,
    pub peer_urls: Vec<String>,
    /// It has no vote yet.
    pub learner: bool,
}

impl EtcdMember {
    /// Where its peers find it: `https://10.0.0.11:2380`.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.peer_urls
            .iter()
            .filter_map(|url| Some(url.strip_prefix("https://")?.parse::<SocketAddr>().ok()?.ip()))
    }
}

/// The state of the machine's own member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdStatus {
    pub member: u64,
    /// Zero: there is none.
    pub leader: u64,
    pub learner: bool,
    pub raft_index: u64,
    pub raft_applied_index: u64,
    pub db_size: i64,
    /// What of it is not free again.
    pub db_size_in_use: i64,
    pub raft_term: u64,
    /// The release of etcd: `3.6.12`.
    pub version: String,
    /// The oldest etcd minor that can read the data: `3.6.0`. `None` before Talos 1.11.
    pub storage_version: Option<String>,
    pub errors: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EtcdAlarm {
    pub member: u64,
    pub kind: AlarmKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AlarmKind {
    NoSpace,
    Corrupt,
    Other,
}

impl EtcdStatus {
    pub fn is_leader(&self) -> bool {
        self.leader != 0 && self.leader == self.member
    }
}

impl From<EtcdMemberStatus> for EtcdStatus {
    fn from(status: EtcdMemberStatus) -> Self {
        Self {
            member: status.member_id,
            leader: status.leader,
            learner: status.is_learner,
            raft_index: status.raft_index,
            raft_applied_index: status.raft_applied_index,
            db_size: status.db_size,
            db_size_in_use: status.db_size_in_use,
            raft_term: status.raft_term,
            version: status.protocol_version,
            storage_version: Some(status.storage_version).filter(|version| !version.is_empty()),
            errors: status.errors,
        }
    }
}

/// All of these hang to their deadline on a machine whose etcd has never run: ask [`Node::services`] first.
impl Node {
    /// The members, as this machine's own etcd knows them.
    pub async fn etcd_members(&self) -> Result<Vec<EtcdMember>, Error> {
        let pending = self.link.call("EtcdMemberList", READ);
        let request = pending.request(EtcdMemberListRequest { query_local: true });
        let answer = pending.answer(self.link.machine().etcd_member_list(request)).await?;
        let members = pending.only(answer.messages)?.members.into_iter();
        Ok(members
            .map(|it| EtcdMember {
                id: it.id,
                name: it.hostname,
                peer_urls: it.peer_urls,
                learner: it.is_learner,
            })
            .collect())
    }

    pub async fn etcd_status(&self) -> Result<EtcdStatus, Error> {
        let pending = self.link.call("EtcdStatus", READ);
        let answer = pending.answer(self.link.machine().etcd_status(pending.request(()))).await?;
        let status = pending.only(answer.messages)?.member_status;
        status
            .map(EtcdStatus::from)
            .ok_or_else(|| pending.misread("an etcd status without a member"))
    }

    pub async fn etcd_alarms(&self) -> Result<Vec<EtcdAlarm>, Error> {
        let pending = self.link.call("EtcdAlarmList", READ);
        let answer = pending
            .answer(self.link.machine().etcd_alarm_list(pending.request(())))
            .await?;
        // One message per machine asked, none where nothing is wrong.
        let alarms = answer.messages.into_iter().flat_map(|message| message.member_alarms);
        let kind = |alarm: etcd_member_alarm::AlarmType| match alarm {
            etcd_member_alarm::AlarmType::Nospace => AlarmKind::NoSpace,
            etcd_member_alarm::AlarmType::Corrupt => AlarmKind::Corrupt,
            etcd_member_alarm::AlarmType::None => AlarmKind::Other,
        };
        Ok(alarms
            .map(|alarm| EtcdAlarm {
                member: alarm.member_id,
                kind: kind(alarm.alarm()),
            })
            .collect())
    }

    /// Hands the leadership to another member. The name of the new leader, or `None` when this one did not lead.
    pub async fn etcd_forfeit_leadership(&self) -> Result<Option<String>, Error> {
        let pending = self.link.call("EtcdForfeitLeadership", ETCD);
        let request = pending.request(EtcdForfeitLeadershipRequest {});
        let answer = pending.answer(self.link.machine().etcd_forfeit_leadership(request)).await?;
        Ok(Some(pending.only(answer.messages)?.member).filter(|member| !member.is_empty()))
    }

    /// Takes this machine out of etcd and wipes its data. It comes back as a new member at its next boot, so stop it afterwards.
    pub async fn etcd_leave(&self) -> Result<(), Error> {
        let pending = self.link.call("EtcdLeaveCluster", LEAVE);
        let request = pending.request(EtcdLeaveClusterRequest {});
        pending
            .answer(self.link.machine().etcd_leave_cluster(request))
            .await
            .map(drop)
    }

    /// Takes a dead member out; to be asked of a surviving machine. A member that is not there counts as taken out.
    pub async fn etcd_remove(&self, member: u64) -> Result<(), Error> {
        let pending = self.link.call("EtcdRemoveMemberByID", ETCD);
        let request = pending.request(EtcdRemoveMemberByIdRequest { member_id: member });
        match pending.answer(self.link.machine().etcd_remove_member_by_id(request)).await {
            Err(error) if error.class() == Some(Class::NotFound) => Ok(()),
            outcome => outcome.map(drop),
        }
    }
}
