//! The name of a task.

use std::fmt;
use std::str::FromStr;

use super::loose::deserialize_from_text;
use super::{Host, ValueError, Vmid};

/// `UPID:<host>:<pid>:<pstart>:<starttime>:<type>:<id>:<user>:`, the last three free of colons, blanks and slashes.
///
/// The text is kept as PVE sent it: PVE finds the task's log by exactly these bytes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Upid {
    text: String,
    host: Host,
    starttime: u32,
}

impl Upid {
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// The host the task runs on: its status is read there.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// When the task began, in seconds since 1970.
    pub fn starttime(&self) -> u32 {
        self.starttime
    }

    /// What the task does: `qmcreate`, `qmclone`, `imgdel`, ...
    pub fn kind(&self) -> &str {
        self.field(5)
    }

    /// What the task works on: mostly a VM id. It is the source of a clone, and empty for an upload.
    pub fn subject(&self) -> &str {
        self.field(6)
    }

    /// The VM that it works on. The end of a volume names its owner and its storage: `101@local-lvm`.
    pub fn vmid(&self) -> Option<Vmid> {
        let (owner, _) = self.subject().split_once('@').unwrap_or((self.subject(), ""));
        owner.parse().ok()
    }

    /// Who started it: `user@realm` or `user@realm!token`.
    pub fn user(&self) -> &str {
        self.field(7)
    }

    fn field(&self, n: usize) -> &str {
        self.text.split(':').nth(n).unwrap_or_default()
    }
}

impl fmt::Display for Upid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Upid {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse(text).ok_or_else(|| ValueError::new("a task id (UPID)", text))
    }
}

deserialize_from_text!(Upid);

fn parse(text: &str) -> Option<Upid> {
    let fields: Vec<&str> = text.split(':').collect();
    let ["UPID", host, pid, pstart, starttime, kind, id, user, ""] = fields.as_slice() else {
        return None;
    };
    let is_hex = |field: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&field.len()) && field.bytes().all(|b| b.is_ascii_hexdigit())
    };
    let is_plain = |field: &str| !field.contains(|c: char| c.is_whitespace() || c.is_control() || c == '/');
    let well_formed = is_hex(pid, 8..=8)
        && is_hex(pstart, 8..=9)
        && is_hex(starttime, 8..=8)
        && [kind, id, user].iter().all(|field| is_plain(field))
        && !kind.is_empty()
        && !user.is_empty();
    if !well_formed {
        return None;
    }
    Some(Upid {
        text: text.to_owned(),
        host: host.parse().ok()?,
        starttime: u32::from_str_radix(starttime, 16).ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::Upid;

    #[test]
    fn a_upid_tells_host_kind_subject_and_user() {
        let upid: Upid = "UPID:pve1:00000E70:000501E4:6AFA193D:qmcreate:440:ms@pve!full2:"
            .parse()
            .unwrap();
        assert_eq!(
            (upid.host().as_str(), upid.kind(), upid.user()),
            ("pve1", "qmcreate", "ms@pve!full2")
        );
        assert_eq!(upid.vmid().unwrap().get(), 440);
        assert_eq!(upid.starttime(), 0x6AFA_193D);
    }

    #[test]
    fn an_upload_has_no_subject_and_a_long_uptime_nine_digits() {
        let upid: Upid = "UPID:pve1:00000D35:10004C2BE:6AFA189B:imgcopy::root@pam!rt:".parse().unwrap();
        assert_eq!((upid.subject(), upid.vmid()), ("", None));
    }

    #[test]
    fn the_end_of_a_volume_is_work_on_its_vm() {
        let vmid = |subject: &str| {
            let text = format!("UPID:pve1:00000E70:000501E4:6AFA193D:imgdel:{subject}:root@pam:");
            text.parse::<Upid>().unwrap().vmid().map(crate::Vmid::get)
        };
        assert_eq!((vmid("101@vmstore"), vmid("local")), (Some(101), None));
    }

    #[test]
    fn what_is_no_upid_is_refused() {
        for text in [
            "",
            "UPID:",
            "UPID:pve1:00000E70:000501E4:6AFA193D:qmcreate:440:ms@pve",
            "UPID:pve1:0E70:000501E4:6AFA193D:qmcreate:440:ms@pve:",
            "UPID:pve1:00000E70:000501E4:6AFA193D::440:ms@pve:",
            "UPID:pve1:00000E70:000501E4:6AFA193D:qm/../x:440:ms@pve:",
            "UPID:pve1:00000E70:000501E4:6AFA193D:a:b:c:d:",
        ] {
            assert!(text.parse::<Upid>().is_err(), "{text}");
        }
    }
}
