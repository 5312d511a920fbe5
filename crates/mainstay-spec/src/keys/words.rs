//! Scalars with a grammar of their own, as keys use them.

use std::net::{IpAddr, Ipv4Addr};

use ipnet::Ipv4Net;
use rancher_config::{Checksum, VersionRequest};
use url::Url;

use crate::key::{List, Numbers, Ranges, Word};
use crate::spec::{Jump, NamePattern, Taint, VersionWish};
use crate::value::{self, Gib, Mac, Mib, Range};

const SIZE: &str = "^[0-9]+ ?([MGT]i?B?)$";

pub(crate) static MEMORY: Word<Mib> = Word::new("a size", value::memory, SIZE, "8GiB");
pub(crate) static DISK_SIZE: Word<Gib> = Word::new("a size", value::disk_size, SIZE, "40GiB");
pub(crate) static VERSION: Word<VersionWish> = Word::new(
    "a version",
    value::version,
    "^v?[0-9]+\\.[0-9]+(\\.[0-9]+(-[0-9A-Za-z.-]+)?)?$",
    "1.13.9",
)
.numbers(Numbers::All);
pub(crate) static RKE2_VERSION: Word<VersionRequest> = Word::new(
    "a release",
    value::rke2_version,
    "^(stable|latest|v?1\\.[0-9]+(\\.[0-9]+\\+rke2r[0-9]+)?)$",
    "1.36.3+rke2r1",
)
.numbers(Numbers::All);
pub(crate) static K3S_VERSION: Word<VersionRequest> = Word::new(
    "a release",
    value::k3s_version,
    "^(stable|latest|v?1\\.[0-9]+(\\.[0-9]+\\+k3s[0-9]+)?)$",
    "1.36.3+k3s1",
)
.numbers(Numbers::All);
pub(crate) static MIRROR: Word<Url> = Word::new("a URL", value::mirror, "^[hH][tT][tT][pP][sS]?:", "https://mirror.lan/rke2");
pub(crate) static IMAGE_URL: Word<Url> = Word::new(
    "a URL",
    value::image_url,
    "^[hH][tT][tT][pP][sS]?:",
    "https://mirror.lan/noble-server-cloudimg-amd64.img",
);
pub(crate) static CHECKSUM: Word<Checksum> = Word::new(
    "a checksum",
    value::checksum,
    "^((sha256:)?[0-9a-fA-F]{64}|(sha512:)?[0-9a-fA-F]{128})$",
    "sha256:…",
);
pub(crate) static SSH_KEY: Word<String> = Word::new(
    "an SSH public key",
    value::ssh_key,
    "^ *[a-z0-9@.-]+ +AAAA",
    "ssh-ed25519 AAAA…",
);
pub(crate) static IPV4: Word<Ipv4Addr> = Word::new("an IPv4 address", value::ipv4, "^[0-9]+(\\.[0-9]+){3}$", "10.0.0.1");
pub(crate) static IP: Word<IpAddr> = Word::new("an IP address", value::ip, "^[0-9a-fA-F.:]+$", "1.1.1.1");
pub(crate) static CIDR: Word<Ipv4Net> = Word::new("a network", value::cidr, "^[0-9]+(\\.[0-9]+){3}/[0-9]+$", "10.0.0.0/16");
pub(crate) static MAC: Word<Mac> = Word::new(
    "a MAC address",
    value::mac,
    "^[0-9a-fA-F]{2}([:-][0-9a-fA-F]{2}){5}$",
    "BC:24:11:00:00:17",
);
pub(crate) static PVE_ENDPOINT: Word<Url> =
    Word::new("a URL", value::pve_endpoint, "^[hH][tT][tT][pP][sS]:", "https://pve.lan:8006");
pub(crate) static API_ENDPOINT: Word<Url> = Word::new(
    "a URL",
    value::api_endpoint,
    "^[hH][tT][tT][pP][sS]:",
    "https://k8s.example:6443",
);
pub(crate) static HTTPS: Word<Url> = Word::new(
    "a URL",
    value::factory,
    "^[hH][tT][tT][pP][sS]?:",
    "https://factory.talos.dev",
);
pub(crate) static FINGERPRINT: Word<[u8; 32]> = Word::new(
    "a fingerprint",
    value::fingerprint,
    "^[0-9a-fA-F]{2}(:[0-9a-fA-F]{2}){31}$",
    "9A:…",
);
pub(crate) static JUMP: Word<Jump> = Word::new("user@host", value::jump, "@", "ops@pve.lan");
pub(crate) static NAMES: Word<NamePattern> =
    Word::new("a name pattern", value::name_pattern, "\\{n0?\\}", "{cluster}-{pool}-{n}");
pub(crate) static TAINT: Word<Taint> = Word::new(
    "a taint",
    value::taint,
    ":(NoSchedule|PreferNoSchedule|NoExecute)$",
    "dedicated=gpu:NoSchedule",
);

pub(crate) static ADDRESS_SPAN: Word<(Ipv4Addr, Ipv4Addr)> = Word::new(
    "a range of addresses",
    value::address_span,
    "^ *[0-9]+(\\.[0-9]+){3} *(- *[0-9]+(\\.[0-9]+){0,3})? *$",
    "10.0.0.240-10.0.0.250",
);
pub(crate) static GIT_URL: Word<Url> = Word::new("a repository", value::git_url, ":", "ssh://git@git.example/infra.git");

static ADDRESS_RANGE: Word<Range> = Word::new(
    "addresses",
    value::addresses,
    "^ *[0-9]+(\\.[0-9]+){3} *(\\+|- *[0-9]+(\\.[0-9]+){0,3})? *$",
    "10.0.0.11+",
);
pub(crate) static ADDRESSES: Ranges = Ranges {
    one: &ADDRESS_RANGE,
    list: &List(&ADDRESS_RANGE),
};
pub(crate) static VMID_RANGE: Word<Range> =
    Word::new("VMIDs", value::vmids, "^ *[0-9]+ *(\\+|- *[0-9]+)? *$", "2000+").numbers(Numbers::Integers);
pub(crate) static VMIDS: Ranges = Ranges {
    one: &VMID_RANGE,
    list: &List(&VMID_RANGE),
};
