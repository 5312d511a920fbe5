//! `datacenter`: the Proxmox VE that carries the machines.

use url::Url;

use super::words;
use crate::key::{Anything, Inside, Items, Key, List, Section, Unread};
use crate::naming;
use crate::spec::Jump;

pub(crate) static ENDPOINT: Key<Url> = Key::new(
    "endpoint",
    &words::PVE_ENDPOINT,
    "The PVE API, on any host of the datacenter.",
)
.default("PROXMOX_VE_ENDPOINT")
.also(&["url", "api", "address"]);
pub(crate) static FINGERPRINT: Key<[u8; 32]> = Key::new(
    "fingerprint",
    &words::FINGERPRINT,
    "SHA-256 fingerprint of the PVE certificate. `mainstay trust` shows and writes it.",
);
pub(crate) static CA: Key<String> = Key::new(
    "ca",
    &naming::PATH,
    "File with the CA that signed the PVE certificate, instead of a fingerprint.",
)
.also(&["ca-file", "cacert"]);
pub(crate) static TOKEN_FILE: Key<String> = Key::new(
    "token-file",
    &naming::PATH,
    "File with the API token, as `mainstay setup` writes it. PROXMOX_VE_API_TOKEN and PROXMOX_VE_API_TOKEN_FILE go before it.",
);
pub(crate) static JUMP: Key<Jump> = Key::new(
    "jump",
    &words::JUMP,
    "SSH host through which the machines are reached, if they are not reachable from here; Proxmox VE, too, if it is not.",
)
.also(&["ssh", "bastion", "proxy"]);
pub(crate) static STORAGE: Key<Inside> =
    Key::new("storage", &STORAGE_SECTION, "Where things go on PVE.").also(&["storages", "datastore"]);
pub(crate) static POOL: Key<String> = Key::new("pool", &naming::RESOURCE_POOL, "PVE resource pool that all machines join.");
pub(crate) static TAGS: Key<Items<String>> = Key::new(
    "tags",
    &List(&naming::TAG),
    "PVE tags of all machines, besides mainstay's own.",
);
static TOKEN: Key<Unread> = Key::new("token", &Anything, "")
    .never(
        "cluster.yaml is meant for git, and a token gives its rights on PVE to everyone who can read it.",
        "take it out, revoke it if the file was shared, and set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_API_TOKEN_FILE to a file that holds it.",
    )
    .also(&["api-token", "api_token", "token_id", "token_secret", "api-key"]);
static USERNAME: Key<Unread> = Key::new("username", &Anything, "")
    .never(
        "the login belongs to the person who runs mainstay, not to the cluster.",
        "set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_USERNAME and PROXMOX_VE_PASSWORD.",
    )
    .also(&["user"]);
static PASSWORD: Key<Unread> = Key::new("password", &Anything, "").never(
    "cluster.yaml is meant for git, and a password gives its rights on PVE to everyone who can read it.",
    "take it out, change it if the file was shared, and set PROXMOX_VE_API_TOKEN, or PROXMOX_VE_USERNAME and PROXMOX_VE_PASSWORD.",
);
static INSECURE: Key<Unread> = Key::new("insecure", &Anything, "")
    .never(
        "without a checked certificate another host could read the token.",
        "take it out and run `mainstay trust`: it shows the certificate's fingerprint and writes it here.",
    )
    .also(&["verify", "verify_ssl", "skip-tls-verify", "tls"]);

pub(crate) static SECTION: Section = Section {
    keys: &[
        &ENDPOINT,
        &TOKEN_FILE,
        &FINGERPRINT,
        &CA,
        &JUMP,
        &STORAGE,
        &POOL,
        &TAGS,
        &TOKEN,
        &USERNAME,
        &PASSWORD,
        &INSECURE,
    ],
};

pub(crate) static IMAGES: Key<String> = Key::new(
    "images",
    &naming::STORAGE_ID,
    "Storage for downloaded images; it must allow `import`.",
)
.default("the one that allows `import`");
pub(crate) static DISKS: Key<String> = Key::new("disks", &naming::STORAGE_ID, "Storage for disks; it must allow `images`.")
    .default("the largest that allows `images`");
pub(crate) static SEEDS: Key<String> =
    Key::new("seeds", &naming::STORAGE_ID, "Storage for first-boot drives.").default("where the disks go");
pub(crate) static TEMPLATES: Key<String> = Key::new("templates", &naming::STORAGE_ID, "Storage for templates.").later();

static STORAGE_SECTION: Section = Section {
    keys: &[&IMAGES, &DISKS, &SEEDS, &TEMPLATES],
};
