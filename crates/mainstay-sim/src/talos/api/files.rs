//! Files and logs, as far as clients look at them.

use talos_proto::{common, machine};
use tonic::Status;

use super::{Answer, Api, Stream, stream};

const DIRECTORY: u32 = 0x8000_0000;
/// What is at the root of a machine's file system.
const ROOT: [&str; 17] = [
    ".extra", "bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "root", "run", "sbin", "sys", "system", "tmp", "usr",
    "var",
];

/// etcd runs as a user of its own.
fn owner(path: &str) -> u32 {
    if path.starts_with("/var/lib/etcd") { 60 } else { 0 }
}

fn data(bytes: impl Into<Vec<u8>>) -> common::Data {
    common::Data {
        metadata: None,
        bytes: bytes.into(),
    }
}

impl Api {
    fn directory(&self, name: &str, relative: &str, mode: u32) -> machine::FileInfo {
        machine::FileInfo {
            name: name.to_owned(),
            relative_name: relative.to_owned(),
            is_dir: true,
            mode: DIRECTORY | mode,
            uid: owner(name),
            gid: owner(name),
            size: 40,
            modified: self.0.booted_at.as_second(),
            ..machine::FileInfo::default()
        }
    }

    pub(super) fn list_files(&self, request: &machine::ListRequest) -> Answer<Stream<machine::FileInfo>> {
        let root = match request.root.trim_end_matches('/') {
            "" => "/",
            root => root,
        };
        let below = self.below(root);
        let below = below.ok_or_else(|| Status::unknown(format!("lstat {root}: no such file or directory")))?;
        let mode = if root.starts_with("/var/lib/etcd") { 0o700 } else { 0o755 };
        let mut found = vec![self.directory(root, ".", mode)];
        let prefix = root.trim_end_matches('/');
        found.extend(
            below
                .iter()
                .map(|name| self.directory(&format!("{prefix}/{name}"), name, mode)),
        );
        Ok(stream(found))
    }

    /// Sizes of what is there, the deepest first, as `du` tells them.
    pub(super) fn usage(&self, request: &machine::DiskUsageRequest) -> Answer<Stream<machine::DiskUsageInfo>> {
        let mut found = Vec::new();
        for path in &request.paths {
            let one = |name: &str, relative: &str, size: i64| machine::DiskUsageInfo {
                name: name.to_owned(),
                relative_name: relative.to_owned(),
                size,
                ..machine::DiskUsageInfo::default()
            };
            match self.below(path.trim_end_matches('/')) {
                Some(below) => {
                    let children = below.iter().map(|name| one(&format!("{path}/{name}"), name, 4096));
                    let total = 4096 * i64::try_from(below.len() + 1).unwrap_or(1);
                    found.extend(children.chain([one(path, ".", total)]));
                }
                None => found.push(machine::DiskUsageInfo {
                    error: format!("lstat {path}: no such file or directory"),
                    ..one(path, path, 0)
                }),
            }
        }
        Ok(stream(found))
    }

    /// What a directory holds; `None` if it is not there.
    fn below(&self, root: &str) -> Option<&'static [&'static str]> {
        let configured = self.0.config().is_some();
        Some(match root {
            "" | "/" => &ROOT,
            other if other.starts_with("/var/") && self.0.lock().unmounted => return None,
            "/var" if configured => &["lib", "log", "mnt", "run"],
            "/var/lib" if configured => &["cni", "containerd", "etcd", "kubelet"],
            "/var/lib/etcd" if self.0.is_control_plane() && self.0.has_etcd_data() => &["member"],
            "/var/lib/etcd" if self.0.is_control_plane() => &[],
            "/var/lib/etcd/member" if self.0.has_etcd_data() => &["snap", "wal"],
            other if other.strip_prefix('/').is_some_and(|name| ROOT.contains(&name)) => &[],
            _ => return None,
        })
    }

    pub(super) fn read_file(&self, path: &str) -> Answer<Stream<common::Data>> {
        let node = &self.0;
        let content = match path {
            "/proc/sys/kernel/random/boot_id" => format!("{}\n", node.boot_id),
            "/etc/hostname" => format!("{}\n", node.hostname()),
            "/etc/os-release" => format!("NAME=\"Talos\"\nID=talos\nVERSION_ID=v{}\n", node.image.version),
            "/sys/class/dmi/id/product_uuid" => format!("{}\n", node.hardware.uuid),
            "/etc" | "/var" | "/proc" | "/" => return Err(Status::unknown("path must be a regular file")),
            other => return Err(Status::not_found(format!("stat {other}: no such file or directory"))),
        };
        Ok(stream(vec![data(content)]))
    }

    pub(super) fn service_logs(&self, request: &machine::LogsRequest) -> Answer<Stream<common::Data>> {
        let id = &request.id;
        if request.namespace == "k8s.io" && id != "kubelet" {
            return Err(Status::unknown(format!("container \"{id}\" not found")));
        }
        let service = self.0.services.get(id);
        // A log exists once the service has run.
        let runs = service
            .as_ref()
            .is_some_and(|service| service.state == crate::talos::services::ServiceState::Running);
        if !runs && id != "kernel" {
            return Err(Status::unknown(format!("log \"{id}\" was not registered")));
        }
        let events = service
            .map(|service| service.to_proto(id).events.unwrap_or_default().events)
            .unwrap_or_default();
        let lines: Vec<String> = events
            .iter()
            .map(|event| format!("service[{id}]({}): {}\n", event.state, event.msg))
            .collect();
        let skip = usize::try_from(request.tail_lines).map_or(0, |count| lines.len().saturating_sub(count));
        let text: String = lines.into_iter().skip(skip).collect();
        if request.follow {
            let text = futures::stream::iter([Ok(data(text))]);
            return Ok(tonic::Response::new(Box::pin(futures::StreamExt::chain(
                text,
                futures::stream::pending(),
            ))));
        }
        Ok(stream(vec![data(text)]))
    }

    pub(super) fn kernel_log(&self, request: &machine::DmesgRequest) -> Answer<Stream<common::Data>> {
        let at = self.0.booted_at;
        let lines = [
            format!("Linux version 6.18.22-talos ({})", self.0.image.arch),
            format!("[talos] Talos v{}", self.0.image.version),
        ];
        let lines: Vec<common::Data> = lines
            .into_iter()
            .map(|line| data(format!("kern: {:>7}: [{at}]: {line}\n", "info")))
            .collect();
        if request.follow {
            let lines = futures::stream::iter(lines.into_iter().map(Ok));
            return Ok(tonic::Response::new(Box::pin(futures::StreamExt::chain(
                lines,
                futures::stream::pending(),
            ))));
        }
        Ok(stream(lines))
    }
}
