//! `talos`, `rke2`, `k3s`: the distribution that the machines run.

use semver::Version;
use url::Url;

use super::words;
use crate::key::{Choice, Choices, Items, Key, List, Section};
use crate::naming;
use crate::spec::VersionWish;

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
static FIRST_BOOT: Key<()> = Key::new(
    "first-boot",
    &Choices(&[Choice::now("cloud-init", ()), Choice::later("meta", ())]),
    "How a machine learns its address at first boot.",
)
.default("cloud-init");

pub(crate) static TALOS: Section = Section {
    keys: &[&VERSION, &EXTENSIONS, &PATCHES, &FACTORY, &FIRST_BOOT],
};

static RELEASE: Key<Version> = Key::new("version", &words::RANCHER_VERSION, "The release.");
static IMAGE: Key<()> = Key::new(
    "image",
    &Choices(&[
        Choice::now("ubuntu-22.04", ()),
        Choice::now("ubuntu-24.04", ()),
        Choice::now("ubuntu-26.04", ()),
        Choice::now("debian-12", ()),
        Choice::now("debian-13", ()),
    ]),
    "The cloud image.",
)
.default("ubuntu-24.04");

pub(crate) static RANCHER: Section = Section {
    keys: &[&RELEASE, &IMAGE],
};
