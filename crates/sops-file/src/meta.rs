//! The `sops` block: who can read the file, what is encrypted, and the MAC over everything.

use std::io::{Read, Write};

use age::armor::{ArmoredReader, ArmoredWriter, Format};
use jiff::Timestamp;
use rand::CryptoRng;
use serde::Deserialize;
use sha2::{Digest, Sha512};
use zeroize::Zeroizing;

use crate::cipher::{DataKey, Kind, Sealed};
use crate::error::Error;
use crate::keys::{Identity, Recipient};
use crate::rules::Filter;

/// The version of sops whose rules are followed here.
const VERSION: &str = "3.9.4";

/// Begins the MAC when only encrypted values are in it: the SHA-256 of the word `sops`.
const ONLY_ENCRYPTED: [u8; 32] = [
    0x8a, 0x3f, 0xd2, 0xad, 0x54, 0xce, 0x66, 0x52, 0x7b, 0x10, 0x34, 0xf3, 0xd1, 0x47, 0xbe, 0x0b, 0x0b, 0x97, 0x5b, 0x3b, 0xf4,
    0x4f, 0x72, 0xc6, 0xfd, 0xad, 0xec, 0x81, 0x76, 0xf2, 0x7d, 0x69,
];

#[derive(Debug, Clone, Default, Deserialize)]
pub struct Meta {
    #[serde(default)]
    pub age: Vec<AgeKey>,
    #[serde(default)]
    lastmodified: String,
    #[serde(default)]
    mac: String,
    unencrypted_suffix: Option<String>,
    encrypted_suffix: Option<String>,
    unencrypted_regex: Option<String>,
    encrypted_regex: Option<String>,
    unencrypted_comment_regex: Option<String>,
    encrypted_comment_regex: Option<String>,
    #[serde(default)]
    mac_only_encrypted: bool,
    #[serde(default)]
    kms: Vec<Other>,
    #[serde(default)]
    gcp_kms: Vec<Other>,
    #[serde(default)]
    azure_kv: Vec<Other>,
    #[serde(default)]
    hc_vault: Vec<Other>,
    #[serde(default)]
    hckms: Vec<Other>,
    #[serde(default)]
    pgp: Vec<Other>,
    #[serde(default)]
    key_groups: Vec<Other>,
}

/// The data key, encrypted for one reader.
#[derive(Debug, Clone, Deserialize)]
pub struct AgeKey {
    pub recipient: String,
    enc: String,
}

/// A key of a kind that is not handled here.
#[derive(Debug, Clone, Deserialize)]
struct Other {}

impl Meta {
    pub fn read(text: &str) -> Result<Self, Error> {
        #[derive(Deserialize)]
        struct File {
            sops: Option<Meta>,
        }
        let file: File = serde_saphyr::from_str(text).map_err(|error| Error::Metadata(first_line(&error.to_string())))?;
        file.sops.ok_or(Error::NotSops)
    }

    pub fn for_recipients(recipients: &[Recipient], key: &DataKey, filter: &Filter) -> Result<Self, Error> {
        let wrapped = recipients.iter().map(|recipient| wrap(key, recipient));
        Ok(Self {
            age: wrapped.collect::<Result<_, _>>()?,
            unencrypted_suffix: filter.unencrypted_suffix.clone(),
            encrypted_suffix: filter.encrypted_suffix.clone(),
            unencrypted_regex: filter.unencrypted_regex.clone(),
            encrypted_regex: filter.encrypted_regex.clone(),
            mac_only_encrypted: filter.mac_only_encrypted,
            ..Self::default()
        })
    }

    /// The key that opens the values.
    pub fn data_key(&self, identities: &[Identity]) -> Result<DataKey, Error> {
        if self.age.is_empty() {
            return Err(Error::NoAge(self.other_keys().unwrap_or_else(|| "no key at all".into())));
        }
        let opened = self.age.iter().find_map(|entry| unwrap(&entry.enc, identities));
        opened.ok_or_else(|| {
            let recipients: Vec<&str> = self.age.iter().map(|entry| entry.recipient.as_str()).collect();
            Error::NoIdentity {
                tried: identities.len(),
                recipients: recipients.join(", "),
            }
        })
    }

    pub fn filter(&self) -> Result<crate::rules::Compiled, Error> {
        if self.encrypted_comment_regex.is_some() || self.unencrypted_comment_regex.is_some() {
            return Err(Error::Metadata("choosing values by their comments is not supported".into()));
        }
        let filter = Filter {
            unencrypted_suffix: self.unencrypted_suffix.clone(),
            encrypted_suffix: self.encrypted_suffix.clone(),
            unencrypted_regex: self.unencrypted_regex.clone(),
            encrypted_regex: self.encrypted_regex.clone(),
            mac_only_encrypted: self.mac_only_encrypted,
        };
        filter.compile()
    }

    /// Writing knows only age's keys.
    pub fn only_age(&self) -> Result<(), Error> {
        self.other_keys().map_or(Ok(()), |others| Err(Error::OtherKeys(others)))
    }

    fn other_keys(&self) -> Option<String> {
        let lists = [
            ("AWS KMS", &self.kms),
            ("GCP KMS", &self.gcp_kms),
            ("Azure Key Vault", &self.azure_kv),
            ("HashiCorp Vault", &self.hc_vault),
            ("Huawei KMS", &self.hckms),
            ("PGP", &self.pgp),
            ("key groups", &self.key_groups),
        ];
        let named: Vec<&str> = lists
            .iter()
            .filter(|(_, keys)| !keys.is_empty())
            .map(|(name, _)| *name)
            .collect();
        (!named.is_empty()).then(|| named.join(", "))
    }

    pub fn mac_hasher(&self) -> Mac {
        let mut hash = Sha512::new();
        if self.mac_only_encrypted {
            hash.update(ONLY_ENCRYPTED);
        }
        Mac {
            hash,
            only_encrypted: self.mac_only_encrypted,
        }
    }

    pub fn mac_is(&self, key: &DataKey, mac: &str) -> bool {
        let sealed: Option<Sealed> = self.mac.parse().ok();
        let stored = sealed.and_then(|sealed| key.open(&sealed, &self.lastmodified));
        stored.is_some_and(|stored| stored.eq_ignore_ascii_case(mac))
    }

    /// The block as it stands in the file.
    pub fn block(&self, key: &DataKey, mac: &str, now: Timestamp, rng: &mut impl CryptoRng) -> String {
        let lastmodified = format!("{now:.0}");
        let mac = key.seal(mac.as_bytes(), &lastmodified, Kind::Text, rng);
        let mut out = String::from("sops:\n    age:\n");
        for entry in &self.age {
            out.push_str(&format!("        - recipient: {}\n          enc: |\n", entry.recipient));
            for line in entry.enc.lines() {
                out.push_str(&format!("            {line}\n"));
            }
        }
        out.push_str(&format!("    lastmodified: \"{lastmodified}\"\n    mac: {mac}\n"));
        for (name, value) in [
            ("unencrypted_suffix", &self.unencrypted_suffix),
            ("encrypted_suffix", &self.encrypted_suffix),
            ("unencrypted_regex", &self.unencrypted_regex),
            ("encrypted_regex", &self.encrypted_regex),
        ] {
            if let Some(value) = value {
                out.push_str(&format!("    {name}: {}\n", crate::scalar::spelt(value, Kind::Text)));
            }
        }
        if self.mac_only_encrypted {
            out.push_str("    mac_only_encrypted: true\n");
        }
        out.push_str(&format!("    version: {VERSION}\n"));
        out
    }
}

/// The MAC while values are read in their order.
pub struct Mac {
    hash: Sha512,
    only_encrypted: bool,
}

impl Mac {
    pub fn encrypted(&mut self, plain: &[u8]) {
        self.hash.update(plain);
    }

    pub fn unencrypted(&mut self, plain: &[u8]) {
        if !self.only_encrypted {
            self.hash.update(plain);
        }
    }

    pub fn finish(self) -> String {
        self.hash.finalize().iter().map(|byte| format!("{byte:02X}")).collect()
    }
}

fn wrap(key: &DataKey, recipient: &Recipient) -> Result<AgeKey, Error> {
    let age_error = |error: &dyn std::fmt::Display| Error::Age(error.to_string());
    let recipients = std::iter::once(&recipient.0 as &dyn age::Recipient);
    let encryptor = age::Encryptor::with_recipients(recipients).map_err(|error| age_error(&error))?;
    let mut enc = Vec::new();
    let armored = ArmoredWriter::wrap_output(&mut enc, Format::AsciiArmor).map_err(|error| age_error(&error))?;
    let mut writer = encryptor.wrap_output(armored).map_err(|error| age_error(&error))?;
    writer.write_all(key.bytes()).map_err(|error| age_error(&error))?;
    writer
        .finish()
        .and_then(ArmoredWriter::finish)
        .map_err(|error| age_error(&error))?;
    let enc = String::from_utf8(enc).map_err(|error| age_error(&error))?;
    Ok(AgeKey {
        recipient: recipient.to_string(),
        enc,
    })
}

fn unwrap(enc: &str, identities: &[Identity]) -> Option<DataKey> {
    let decryptor = age::Decryptor::new(ArmoredReader::new(enc.trim().as_bytes())).ok()?;
    let mut reader = decryptor
        .decrypt(identities.iter().map(|identity| &identity.0 as &dyn age::Identity))
        .ok()?;
    let mut key = Zeroizing::new(Vec::new());
    reader.read_to_end(&mut key).ok()?;
    DataKey::from_bytes(&key)
}

/// The parser's own message quotes lines of the file below the first one.
fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use sha2::{Digest, Sha256};

    #[test]
    fn the_mac_of_encrypted_values_begins_with_the_hash_of_a_word() {
        assert_eq!(super::ONLY_ENCRYPTED[..], Sha256::digest(b"sops")[..]);
    }
}
