//! SOPS YAML with age recipients: bytes in, bytes out, readable and writable by the real `sops`.
//!
//! A file is edited in place: every scalar is replaced by its encrypted form and back, and nothing else moves. So comments, key
//! order and layout stay as they are, without a YAML emitter whose layout would have to agree with that of sops.
//!
//! Not done, and refused by name: several documents in one file, anchors, keys other than age's X25519 (files that *also* have such
//! keys are read, but not rewritten, since their owners would be locked out).

mod cipher;
mod error;
mod keys;
mod leaves;
mod meta;
mod rules;
mod scalar;

use jiff::Timestamp;
use rand::CryptoRng;
use zeroize::Zeroizing;

pub use error::Error;
pub use keys::{Identity, Recipient};
pub use rules::{CreationRules, Filter, Rule};

use cipher::{DataKey, Sealed};
use leaves::{Edit, Leaf, Source};
use meta::Meta;

/// A file that was decrypted and whose MAC was right.
pub struct Opened {
    text: Zeroizing<String>,
    key: DataKey,
    meta: Meta,
    /// What is stored of each value, by its place and meaning: an unchanged value keeps its ciphertext, so that diffs stay small.
    kept: Vec<Kept>,
}

struct Kept {
    aad: String,
    plain: Zeroizing<String>,
    sealed: String,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened")
            .field("recipients", &self.recipients())
            .finish_non_exhaustive()
    }
}

impl Opened {
    /// The document in clear, without its `sops` block.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Everybody who can read the file by an age key.
    pub fn recipients(&self) -> Vec<&str> {
        self.meta.age.iter().map(|entry| entry.recipient.as_str()).collect()
    }

    /// Another document for the same readers. Values that did not change keep their ciphertext.
    pub fn rewrite(&self, text: &str, now: Timestamp, rng: &mut impl CryptoRng) -> Result<String, Error> {
        self.meta.only_age()?;
        seal(text, &self.key, self.meta.clone(), &self.kept, now, rng)
    }
}

/// Whether this is a SOPS file at all.
pub fn is_encrypted(file: &[u8]) -> bool {
    std::str::from_utf8(file).is_ok_and(|text| Meta::read(text).is_ok())
}

/// Who can read a file, without reading it.
pub fn recipients(file: &[u8]) -> Result<Vec<String>, Error> {
    let meta = Meta::read(utf8(file)?)?;
    Ok(meta.age.into_iter().map(|entry| entry.recipient).collect())
}

/// Encrypts a YAML document for `recipients`.
pub fn encrypt(
    text: &str,
    recipients: &[Recipient],
    filter: &Filter,
    now: Timestamp,
    rng: &mut impl CryptoRng,
) -> Result<String, Error> {
    if recipients.is_empty() {
        return Err(Error::NoRecipient);
    }
    let key = DataKey::random(rng);
    let meta = Meta::for_recipients(recipients, &key, filter)?;
    seal(text, &key, meta, &[], now, rng)
}

/// Decrypts a file and checks its MAC.
pub fn decrypt(file: &[u8], identities: &[Identity]) -> Result<Opened, Error> {
    let text = utf8(file)?;
    let meta = Meta::read(text)?;
    let key = meta.data_key(identities)?;
    let source = Source::parse(text)?;
    let filter = meta.filter()?;
    let mut edits = Vec::new();
    let mut kept = Vec::new();
    let mut mac = meta.mac_hasher();
    for leaf in source.leaves() {
        let encrypted = filter.encrypts(&leaf.path);
        if leaf.is_blank() {
            continue;
        }
        if !encrypted {
            if !leaf.is_comment() {
                mac.unencrypted(&leaf.plain_bytes());
            }
            continue;
        }
        if leaf.is_comment() && !Sealed::looks_like(&leaf.value) {
            // Comments that were added to the encrypted file by hand are in clear, and sops leaves them so.
            continue;
        }
        let sealed: Sealed = leaf
            .value
            .parse()
            .map_err(|()| Error::NotEncrypted { path: leaf.shown_path() })?;
        let plain = key
            .open(&sealed, &leaf.aad())
            .ok_or_else(|| Error::Tampered { path: leaf.shown_path() })?;
        if !leaf.is_comment() {
            mac.encrypted(plain.as_bytes());
        }
        edits.push(Edit::clear(leaf, &plain, sealed.kind));
        kept.push(Kept {
            aad: leaf.aad(),
            plain,
            sealed: leaf.value.clone(),
        });
    }
    if !meta.mac_is(&key, &mac.finish()) {
        return Err(Error::Mac);
    }
    let text = Zeroizing::new(source.edited(edits, None));
    Ok(Opened { text, key, meta, kept })
}

fn seal(text: &str, key: &DataKey, meta: Meta, kept: &[Kept], now: Timestamp, rng: &mut impl CryptoRng) -> Result<String, Error> {
    let source = Source::parse(text)?;
    if source.has_sops_block() {
        return Err(Error::AlreadyEncrypted);
    }
    let filter = meta.filter()?;
    let mut edits = Vec::new();
    let mut mac = meta.mac_hasher();
    for leaf in source.leaves().iter().filter(|leaf| !leaf.is_blank()) {
        let plain = leaf.plain_bytes();
        if !filter.encrypts(&leaf.path) {
            if !leaf.is_comment() {
                mac.unencrypted(&plain);
            }
            continue;
        }
        if !leaf.is_comment() {
            mac.encrypted(&plain);
        }
        edits.push(Edit::sealed(leaf, &stored(leaf, &plain, key, kept, rng)));
    }
    let block = meta.block(key, &mac.finish(), now, rng);
    Ok(source.edited(edits, Some(&block)))
}

/// The ciphertext that is there already, else a fresh one.
fn stored(leaf: &Leaf, plain: &[u8], key: &DataKey, kept: &[Kept], rng: &mut impl CryptoRng) -> String {
    let aad = leaf.aad();
    let same = kept.iter().find(|kept| kept.aad == aad && kept.plain.as_bytes() == plain);
    same.map_or_else(
        || key.seal(plain, &aad, leaf.kind(), rng).to_string(),
        |kept| kept.sealed.clone(),
    )
}

fn utf8(file: &[u8]) -> Result<&str, Error> {
    std::str::from_utf8(file).map_err(|_| Error::NotText)
}
