//! Talos and Kubernetes versions that belong together, from the table in `talos-config`.

use semver::Version;
use talos_config::versions::{Contract, RELEASES, Release, newest};

use crate::diagnostic::Diagnostic;
use crate::draft::Draft;
use crate::keys::{self, distro};
use crate::source::Spanned;
use crate::spec::{Distro, VersionWish};
use crate::type_check::closest;

pub(crate) fn check(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    one_distro(draft, faults);
    if draft.distro() == Distro::Talos {
        let talos = draft
            .talos
            .spanned(&distro::VERSION)
            .and_then(|version| talos(&version, faults));
        if let Some(kubernetes) = draft.file.spanned(&keys::KUBERNETES) {
            match talos {
                Some(release) => pair(release, &kubernetes, faults),
                None if draft.talos.is_absent(&distro::VERSION) => any_pair(&kubernetes, faults),
                None => {}
            }
        }
        extensions(draft, faults);
    } else if let (Some(kubernetes), Some(distro)) = (draft.file.spanned(&keys::KUBERNETES), draft.distros.first()) {
        let name = distro.value;
        faults.push(
            Diagnostic::error(
                "kubernetes-version",
                kubernetes.span,
                format!("`kubernetes` has no effect with {name}"),
            )
            .label("said twice")
            .why(format!(
                "a release of {name} is a release of Kubernetes: `{name}.version` names both."
            ))
            .help("take it out."),
        );
    }
}

fn one_distro(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    if let [first, second, ..] = draft.distros.as_slice() {
        faults.push(
            Diagnostic::error(
                "two-distros",
                second.span,
                format!("`{}` and `{}` exclude each other", first.value, second.value),
            )
            .label("a second distribution")
            .why("all machines of a cluster run the same distribution.")
            .help("keep one of them."),
        );
    }
}

fn talos(version: &Spanned<VersionWish>, faults: &mut Vec<Diagnostic>) -> Option<&'static Release> {
    let contract = match &version.value {
        VersionWish::Any => return None,
        VersionWish::Minor(major, minor) => Contract::new(*major, *minor),
        VersionWish::Exact(exact) => Contract::of(exact),
    };
    let release = RELEASES.iter().find(|known| known.contract == contract);
    match release {
        None => faults.push(unknown_talos(version, contract)),
        Some(known) if !known.maintained => faults.push(
            Diagnostic::warning(
                "talos-unmaintained",
                version.span,
                format!("Talos {contract} gets no more patches"),
            )
            .label("out of support")
            .why("security fixes go to newer minors only.")
            .help(format!("write {} for a new cluster.", newest().contract)),
        ),
        Some(_) => {}
    }
    release
}

fn unknown_talos(version: &Spanned<VersionWish>, contract: Contract) -> Diagnostic {
    let (oldest, newest) = (&RELEASES[0], newest());
    let (label, why, near) = if contract < oldest.contract {
        (
            "too old",
            format!("the oldest Talos that mainstay runs is {}.", oldest.contract),
            oldest,
        )
    } else {
        (
            "not known yet",
            format!(
                "this version of mainstay knows Talos up to {}; what a newer one expects in its config is unknown.",
                newest.contract
            ),
            newest,
        )
    };
    Diagnostic::error(
        "talos-version",
        version.span,
        format!("Talos {} is not supported", version.value),
    )
    .label(label)
    .why(why)
    .help(format!(
        "write {}, or a patch release of {} to {}.",
        near.newest, oldest.contract, newest.contract
    ))
}

fn pair(talos: &Release, kubernetes: &Spanned<VersionWish>, faults: &mut Vec<Diagnostic>) {
    let Some(version) = lowest(&kubernetes.value) else { return };
    if talos.runs(&version) {
        known_patch(kubernetes, faults);
        return;
    }
    let window = talos.window();
    let too_new = version.minor > window.newest || version.major > 1;
    let (label, near, fits) = if too_new {
        (
            "too new for this Talos",
            talos.kubernetes.to_string(),
            RELEASES.iter().find(|release| release.runs(&version)),
        )
    } else {
        let near = format!("a version from 1.{}.0 to {}", window.oldest, talos.kubernetes);
        (
            "too old for this Talos",
            near,
            RELEASES.iter().rev().find(|release| release.runs(&version)),
        )
    };
    let other = fits.map_or(String::new(), |release| {
        format!(", or set `talos.version` to {}", release.newest)
    });
    faults.push(
        Diagnostic::error(
            "kubernetes-version",
            kubernetes.span,
            format!("Talos {} does not run Kubernetes {}", talos.contract, kubernetes.value),
        )
        .label(label)
        .why(format!(
            "Talos {} runs Kubernetes {window}; a node refuses a config with any other.",
            talos.contract
        ))
        .help(format!("write {near}{other}.")),
    );
}

/// The Talos version is left to the plan: some supported one must run it.
fn any_pair(kubernetes: &Spanned<VersionWish>, faults: &mut Vec<Diagnostic>) {
    let Some(version) = lowest(&kubernetes.value) else { return };
    if RELEASES.iter().any(|release| release.runs(&version)) {
        known_patch(kubernetes, faults);
        return;
    }
    let (oldest, newest) = (RELEASES[0].window().oldest, newest().window().newest);
    faults.push(
        Diagnostic::error(
            "kubernetes-version",
            kubernetes.span,
            format!("no supported Talos runs Kubernetes {}", kubernetes.value),
        )
        .label("out of every window")
        .why(format!(
            "Talos {} to {} run Kubernetes 1.{oldest} to 1.{newest}.",
            RELEASES[0].contract,
            self::newest().contract
        ))
        .help(format!("write {}.", self::newest().kubernetes)),
    );
}

/// `1.33` needs a patch that is known, since there is no way to ask for the newest one offline.
fn known_patch(kubernetes: &Spanned<VersionWish>, faults: &mut Vec<Diagnostic>) {
    let VersionWish::Minor(major, minor) = kubernetes.value else {
        return;
    };
    if RELEASES
        .iter()
        .any(|release| (release.kubernetes.major, release.kubernetes.minor) == (major, minor))
    {
        return;
    }
    faults.push(
        Diagnostic::error(
            "kubernetes-version",
            kubernetes.span,
            format!("Kubernetes {major}.{minor} needs a patch version"),
        )
        .label("the patch is missing")
        .why("only for the minors that a supported Talos ships with is the newest patch known here.")
        .help(format!(
            "write the release in full, for example {major}.{minor}.0 or a later patch of it."
        )),
    );
}

fn lowest(wish: &VersionWish) -> Option<Version> {
    match wish {
        VersionWish::Any => None,
        VersionWish::Minor(major, minor) => Some(Version::new(*major, *minor, 0)),
        VersionWish::Exact(version) => Some(version.clone()),
    }
}

fn extensions(draft: &Draft<'_>, faults: &mut Vec<Diagnostic>) {
    let mut seen: Vec<&str> = Vec::new();
    let named = draft.talos.items(&distro::EXTENSIONS);
    for extension in &named {
        let (owner, name) = extension.value.split_once('/').unwrap_or(("siderolabs", &extension.value));
        if seen.contains(&name) {
            faults.push(
                Diagnostic::error("extension", extension.span, format!("extension `{name}` is named twice"))
                    .label("again")
                    .why("an image holds an extension once.")
                    .help("keep one of them."),
            );
        } else if owner != "siderolabs" || !EXTENSIONS.contains(&name) {
            let help = closest(name, EXTENSIONS).map_or_else(
                || "look it up at the Image Factory; `plan` asks the factory before anything is made.".to_owned(),
                |near| format!("did you mean `{near}`?"),
            );
            faults.push(
                Diagnostic::warning(
                    "extension",
                    extension.span,
                    format!("extension `{}` is not known to this version", extension.value),
                )
                .label("not in the list of official extensions")
                .why("it may be newer than this version of mainstay, or a typo; the Image Factory decides.")
                .help(help),
            );
        }
        seen.push(name);
    }
}

/// The official extensions, as published for Talos 1.11 to 1.14.
pub(crate) static EXTENSIONS: [&str; 93] = [
    "amazon-ena",
    "amd-ucode",
    "amdgpu",
    "binfmt-misc",
    "bird2",
    "bnx2-bnx2x",
    "btrfs",
    "cachefilesd",
    "chelsio-drivers",
    "chelsio-firmware",
    "cloudflared",
    "crun",
    "ctr",
    "drbd",
    "dvb-cx23885",
    "dvb-m88ds3103",
    "dvb-pt3",
    "ecr-credential-provider",
    "fuse3",
    "gasket-driver",
    "glibc",
    "gpio-pinctrl",
    "gvisor",
    "gvisor-debug",
    "hailort",
    "harbor-credential-provider",
    "hello-world-service",
    "hyperv-guest-agent",
    "i915",
    "intel-hd-audio",
    "intel-ice-firmware",
    "intel-npu",
    "intel-ucode",
    "iscsi-tools",
    "joydev",
    "kata-containers",
    "kata-containers-nvidia-gpu-snp",
    "kata-containers-snp",
    "libvirtd",
    "lldpd",
    "mdadm",
    "mei",
    "mellanox-mstflint",
    "metal-agent",
    "multipath-tools",
    "nebula",
    "netbird",
    "newt",
    "nfs-server",
    "nfs-utils",
    "nfsd",
    "nfsrahead",
    "nonfree-kmod-nvidia-lts",
    "nonfree-kmod-nvidia-production",
    "nut-client",
    "nvidia-container-toolkit-lts",
    "nvidia-container-toolkit-production",
    "nvidia-fabricmanager-lts",
    "nvidia-fabricmanager-production",
    "nvidia-gdrdrv-device",
    "nvidia-open-gpu-kernel-modules-lts",
    "nvidia-open-gpu-kernel-modules-production",
    "nvme-cli",
    "panfrost",
    "px-fuse",
    "qemu-guest-agent",
    "qlogic-firmware",
    "realtek-firmware",
    "revpi-firmware",
    "rockchip-rknn",
    "soci-snapshotter",
    "spin",
    "stargz-snapshotter",
    "tailscale",
    "tenstorrent",
    "thunderbolt",
    "trident-iscsi-tools",
    "uhid",
    "uinput",
    "urunc",
    "usb-audio-drivers",
    "usb-modem-drivers",
    "util-linux-tools",
    "v4l-uvc-drivers",
    "vc4",
    "vmtoolsd-guest-agent",
    "wasmedge",
    "xdma-driver",
    "xe",
    "xen-guest-agent",
    "youki",
    "zerotier",
    "zfs",
];
