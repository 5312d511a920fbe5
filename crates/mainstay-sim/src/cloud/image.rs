//! Cloud images: a small body with a true qcow2 header, and behind it which system it holds.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::fs::{Inode, Kind, Tree, directory};
use crate::factory::qcow2;

const GIB: u64 = 1 << 30;

/// The system on a cloud image.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
pub struct CloudImage {
    /// `ubuntu` or `debian`.
    pub os: String,
    /// `24.04`, `13`.
    pub release: String,
    /// `20260801`
    pub serial: String,
    pub arch: String,
}

impl CloudImage {
    /// The size a VM sees, before its disk is enlarged.
    pub fn virtual_size(&self) -> u64 {
        match (self.os.as_str(), self.release.as_str()) {
            ("ubuntu", "22.04") => 11 * GIB / 5,
            ("ubuntu", _) => 7 * GIB / 2,
            _ => 3 * GIB,
        }
    }

    pub fn to_qcow2(&self) -> Bytes {
        qcow2::write(self, self.virtual_size())
    }

    pub fn from_qcow2(bytes: &[u8]) -> Option<Self> {
        qcow2::read(bytes)
    }

    /// The user that the image makes unless it is told another name.
    pub fn default_user(&self) -> &str {
        &self.os
    }

    /// `Ubuntu 24.04.3 LTS`
    pub fn pretty_name(&self) -> String {
        match self.os.as_str() {
            "ubuntu" => format!("Ubuntu {} LTS", self.release),
            _ => format!("Debian GNU/Linux {}", self.release),
        }
    }

    pub fn kernel(&self) -> &'static str {
        match (self.os.as_str(), self.release.as_str()) {
            ("ubuntu", "22.04") => "5.15.0-157-generic",
            ("ubuntu", _) => "6.8.0-85-generic",
            (_, "12") => "6.1.0-40-amd64",
            _ => "6.12.48+deb13-amd64",
        }
    }

    /// `SSH-2.0-…` of the sshd in the image. From OpenSSH 9.8 on it punishes sources of failed logins.
    pub fn ssh_version(&self) -> (&'static str, (u32, u32)) {
        match (self.os.as_str(), self.release.as_str()) {
            ("ubuntu", "22.04") => ("SSH-2.0-OpenSSH_8.9p1 Ubuntu-3ubuntu0.13", (8, 9)),
            ("ubuntu", "24.04") => ("SSH-2.0-OpenSSH_9.6p1 Ubuntu-3ubuntu13.14", (9, 6)),
            ("ubuntu", _) => ("SSH-2.0-OpenSSH_10.2p1 Ubuntu-2ubuntu3", (10, 2)),
            (_, "12") => ("SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u7", (9, 2)),
            _ => ("SSH-2.0-OpenSSH_10.0p2 Debian-7", (10, 0)),
        }
    }

    /// Files of the image that programs of a cluster read.
    pub(crate) fn root_tree(&self) -> Tree {
        let mut tree = Tree::default();
        for path in DIRECTORIES {
            tree.put(path, directory(0o755, 0));
        }
        for (path, mode) in [("/root", 0o700), ("/tmp", 0o1777), ("/var/tmp", 0o1777)] {
            tree.put(path, directory(mode, 0));
        }
        let file = |tree: &mut Tree, path: &str, text: String, mode: u32| {
            tree.put(
                path,
                Inode {
                    kind: Kind::File {
                        bytes: text.into(),
                        attached: None,
                    },
                    mode,
                    uid: 0,
                    gid: 0,
                    mtime: 0,
                },
            );
        };
        let id = &self.os;
        let os_release = format!(
            "PRETTY_NAME=\"{}\"\nNAME=\"{}\"\nVERSION_ID=\"{}\"\nID={id}\n",
            self.pretty_name(),
            if id == "ubuntu" { "Ubuntu" } else { "Debian GNU/Linux" },
            self.release
        );
        file(&mut tree, "/etc/os-release", os_release, 0o644);
        file(&mut tree, "/etc/hostname", format!("{id}\n"), 0o644);
        file(&mut tree, "/etc/hosts", "127.0.0.1 localhost\n".to_owned(), 0o644);
        file(&mut tree, "/etc/passwd", PASSWD.to_owned(), 0o644);
        file(
            &mut tree,
            "/etc/group",
            "root:x:0:\nsudo:x:27:\nnogroup:x:65534:\n".to_owned(),
            0o644,
        );
        file(
            &mut tree,
            "/etc/fstab",
            "LABEL=cloudimg-rootfs / ext4 defaults 0 1\n".to_owned(),
            0o644,
        );
        file(&mut tree, "/etc/machine-id", String::new(), 0o444);
        file(
            &mut tree,
            "/etc/ssh/sshd_config",
            "UsePAM yes\nPasswordAuthentication no\n".to_owned(),
            0o644,
        );
        tree.put("/etc/resolv.conf", link("/run/systemd/resolve/stub-resolv.conf"));
        for (short, long) in [("/bin", "usr/bin"), ("/sbin", "usr/sbin"), ("/lib", "usr/lib")] {
            tree.put(short, link(long));
        }
        tree
    }
}

fn link(target: &str) -> Inode {
    Inode {
        kind: Kind::Link(target.to_owned()),
        mode: 0o777,
        uid: 0,
        gid: 0,
        mtime: 0,
    }
}

const PASSWD: &str = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";

const DIRECTORIES: [&str; 46] = [
    "/boot",
    "/etc",
    "/etc/apt",
    "/etc/apt/apt.conf.d",
    "/etc/cloud",
    "/etc/cloud/cloud.cfg.d",
    "/etc/default",
    "/etc/modules-load.d",
    "/etc/netplan",
    "/etc/ssh",
    "/etc/ssh/sshd_config.d",
    "/etc/sudoers.d",
    "/etc/sysctl.d",
    "/etc/systemd",
    "/etc/systemd/network",
    "/etc/systemd/system",
    "/etc/systemd/system/multi-user.target.wants",
    "/etc/udev",
    "/etc/udev/rules.d",
    "/home",
    "/media",
    "/mnt",
    "/opt",
    "/srv",
    "/usr",
    "/usr/bin",
    "/usr/lib",
    "/usr/lib/modules-load.d",
    "/usr/lib/systemd",
    "/usr/lib/systemd/system",
    "/usr/local",
    "/usr/local/bin",
    "/usr/local/lib",
    "/usr/local/sbin",
    "/usr/local/share",
    "/usr/sbin",
    "/usr/share",
    "/var",
    "/var/cache",
    "/var/lib",
    "/var/lib/cloud",
    "/var/lib/dpkg",
    "/var/log",
    "/var/log/journal",
    "/var/spool",
    "/var/lib/systemd",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::factory::TalosImage;

    #[test]
    fn an_image_holds_the_system_it_was_made_with_and_no_other() {
        let image = CloudImage {
            os: "ubuntu".to_owned(),
            release: "24.04".to_owned(),
            serial: "20260801".to_owned(),
            arch: "amd64".to_owned(),
        };
        let body = image.to_qcow2();
        assert_eq!(CloudImage::from_qcow2(&body), Some(image));
        assert_eq!(TalosImage::from_qcow2(&body), None);
    }
}
