//! `talos`, `rke2`, `k3s`: the distribution that the machines run.

use rancher_config::{Checksum, VersionRequest};
use url::Url;

use super::words;
use crate::key::{Choice, Choices, Flag, Items, Key, List, OrSection, Section, SettingList, Settings, ShortOrLong};
use crate::naming;
use crate::provisioning::FirstBoot;
use crate::spec::{ArtifactDelivery, CloudImage, VersionWish};

pub(crate) static VERSION: Key<VersionWish> = Key::new(
    "version",
    &words::VERSION,
    "The Talos version: exact, or a minor for its newest known patch.",
)
.default("what the cluster runs, else the newest known");
pub(crate) static EXTENSIONS: Key<Items<String>> = Key::new(
    "extensions",
    &List(&naming::EXTENSION),
    "Official system extensions in the image, with or without `siderolabs/`.",
)
.default("[]");
pub(crate) static PATCHES: Key<Items<String>> = Key::new(
    "patches",
    &List(&naming::PATH),
    "Strategic-merge patches for the config of every machine, in order: files beside cluster.yaml.",
)
.default("[]");
pub(crate) static FACTORY: Key<Url> =
    Key::new("factory", &words::HTTPS, "The Image Factory.").default("https://factory.talos.dev");
pub(crate) static FIRST_BOOT: Key<FirstBoot> = Key::new(
    "first-boot",
    &Choices(&[
        Choice::now("cloud-init", FirstBoot::CloudInit),
        Choice::later("meta", FirstBoot::Meta),
    ]),
    "How a machine learns its address at first boot.",
)
.default("cloud-init");

pub(crate) static TALOS: Section = Section {
    keys: &[&VERSION, &EXTENSIONS, &PATCHES, &FACTORY, &FIRST_BOOT],
};

pub(crate) static RKE2_VERSION: Key<VersionRequest> = Key::new(
    "version",
    &words::RKE2_VERSION,
    "The RKE2 release: exact, a minor for its newest known release, `stable` or `latest`.",
)
.default("what the cluster runs, else the newest known");
pub(crate) static K3S_VERSION: Key<VersionRequest> = Key::new(
    "version",
    &words::K3S_VERSION,
    "The k3s release: exact, a minor for its newest known release, `stable` or `latest`.",
)
.default("what the cluster runs, else the newest known");
pub(crate) static IMAGE: Key<ShortOrLong<CloudImage>> = Key::new(
    "image",
    &OrSection {
        value: &Choices(&[
            Choice::now("ubuntu-22.04", CloudImage::Ubuntu2204),
            Choice::now("ubuntu-24.04", CloudImage::Ubuntu2404),
            Choice::now("debian-12", CloudImage::Debian12),
            Choice::now("debian-13", CloudImage::Debian13),
        ]),
        section: &IMAGE_FILE,
    },
    "The cloud image: a known one, or a file with its checksum.",
)
.default("ubuntu-24.04");
pub(crate) static IMAGE_URL: Key<Url> = Key::new(
    "url",
    &words::IMAGE_URL,
    "Where PVE downloads the image: an Ubuntu or Debian cloud image.",
)
.required();
pub(crate) static IMAGE_CHECKSUM: Key<Checksum> =
    Key::new("checksum", &words::CHECKSUM, "SHA-256 or SHA-512 of the file.").required();
pub(crate) static IMAGE_UNCHECKED: Key<bool> = Key::new(
    "unchecked",
    &Flag,
    "Allows an image of another system: nothing says that cloud-init, sudo and the network work in it.",
)
.default("false");
pub(crate) static MIRROR: Key<Url> = Key::new(
    "mirror",
    &words::MIRROR,
    "Where machines fetch the release: files are looked for as on GitHub, `<mirror>/<release>/<file>`.",
)
.default("the releases on GitHub");
pub(crate) static ARTIFACT: Key<ArtifactDelivery> = Key::new(
    "artifact",
    &Choices(&[
        Choice::now("fetch", ArtifactDelivery::Fetch),
        Choice::later("push", ArtifactDelivery::Push),
    ]),
    "How the release gets into a machine: fetched by the machine, or pushed by mainstay over SSH, for machines without internet.",
)
.default("fetch");
pub(crate) static CONFIG: Key<SettingList> = Key::new(
    "config",
    &Settings,
    "Further keys of the distribution's config.yaml, for all machines. Keys that mainstay sets are refused.",
)
.default("{}");
pub(crate) static SSH_KEYS: Key<Items<String>> = Key::new(
    "ssh-keys",
    &List(&words::SSH_KEY),
    "Public keys of administrators, who may log in to every machine as `mainstay`.",
)
.default("[]")
.also(&["ssh_authorized_keys", "sshkeys"])
.later();

static IMAGE_FILE: Section = Section {
    keys: &[&IMAGE_URL, &IMAGE_CHECKSUM, &IMAGE_UNCHECKED],
};

pub(crate) static RKE2: Section = Section {
    keys: &[&RKE2_VERSION, &IMAGE, &MIRROR, &ARTIFACT, &CONFIG, &SSH_KEYS],
};

pub(crate) static K3S: Section = Section {
    keys: &[&K3S_VERSION, &IMAGE, &MIRROR, &ARTIFACT, &CONFIG, &SSH_KEYS],
};
