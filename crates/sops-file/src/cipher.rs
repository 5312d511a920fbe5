//! One value: AES-256-GCM with a nonce of 32 bytes, the path as additional data.

use std::fmt;
use std::str::FromStr;

use aes_gcm::aead::consts::U32;
use aes_gcm::aead::{AeadInPlace, KeyInit};
use aes_gcm::aes::Aes256;
use aes_gcm::{AesGcm, Nonce, Tag};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use rand::CryptoRng;
use zeroize::Zeroizing;

type Cipher = AesGcm<Aes256, U32>;

/// The key of all values of one file.
pub struct DataKey(Zeroizing<[u8; 32]>);

impl DataKey {
    pub fn random(rng: &mut impl CryptoRng) -> Self {
        let mut key = Zeroizing::new([0; 32]);
        rng.fill_bytes(&mut *key);
        Self(key)
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        bytes.try_into().ok().map(|key| Self(Zeroizing::new(key)))
    }

    pub fn bytes(&self) -> &[u8] {
        &*self.0
    }

    pub fn seal(&self, plain: &[u8], aad: &str, kind: Kind, rng: &mut impl CryptoRng) -> Sealed {
        let mut iv = [0; 32];
        rng.fill_bytes(&mut iv);
        let mut data = plain.to_vec();
        let tag = self
            .cipher()
            .encrypt_in_place_detached(&Nonce::from(iv), aad.as_bytes(), &mut data);
        let tag = tag.expect("a value is far below the limit of the cipher");
        Sealed {
            data,
            iv: iv.to_vec(),
            tag: tag.to_vec(),
            kind,
        }
    }

    /// `None` when value, path or key are not those it was sealed with.
    pub fn open(&self, sealed: &Sealed, aad: &str) -> Option<Zeroizing<String>> {
        let iv: [u8; 32] = sealed.iv.as_slice().try_into().ok()?;
        let tag: [u8; 16] = sealed.tag.as_slice().try_into().ok()?;
        let mut data = Zeroizing::new(sealed.data.clone());
        self.cipher()
            .decrypt_in_place_detached(&Nonce::from(iv), aad.as_bytes(), &mut data, &Tag::from(tag))
            .ok()?;
        String::from_utf8(std::mem::take(&mut *data)).ok().map(Zeroizing::new)
    }

    fn cipher(&self) -> Cipher {
        Cipher::new((&*self.0).into())
    }
}

/// The type that a value has in YAML.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Int,
    Float,
    Bool,
    Time,
    Bytes,
    Comment,
}

const KINDS: [(Kind, &str); 7] = [
    (Kind::Text, "str"),
    (Kind::Int, "int"),
    (Kind::Float, "float"),
    (Kind::Bool, "bool"),
    (Kind::Time, "time"),
    (Kind::Bytes, "bytes"),
    (Kind::Comment, "comment"),
];

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = KINDS.iter().find(|(kind, _)| kind == self).map_or("", |(_, name)| name);
        f.write_str(name)
    }
}

/// An encrypted value as it stands in the file.
pub struct Sealed {
    data: Vec<u8>,
    iv: Vec<u8>,
    tag: Vec<u8>,
    pub kind: Kind,
}

impl Sealed {
    pub fn looks_like(text: &str) -> bool {
        text.starts_with("ENC[AES256_GCM,")
    }
}

impl fmt::Display for Sealed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [data, iv, tag] = [&self.data, &self.iv, &self.tag].map(|bytes| BASE64_STANDARD.encode(bytes));
        write!(f, "ENC[AES256_GCM,data:{data},iv:{iv},tag:{tag},type:{}]", self.kind)
    }
}

impl FromStr for Sealed {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let inside = text
            .strip_prefix("ENC[AES256_GCM,")
            .and_then(|rest| rest.strip_suffix(']'))
            .ok_or(())?;
        let mut parts = inside.split(',');
        let mut part = |name: &str| parts.next().and_then(|part| part.strip_prefix(name)).ok_or(());
        let bytes = |text: &str| BASE64_STANDARD.decode(text).map_err(drop);
        let (data, iv, tag) = (bytes(part("data:")?)?, bytes(part("iv:")?)?, bytes(part("tag:")?)?);
        let kind = part("type:")?;
        let kind = KINDS
            .iter()
            .find(|(_, name)| *name == kind)
            .map(|(kind, _)| *kind)
            .ok_or(())?;
        Ok(Self { data, iv, tag, kind })
    }
}
