//! Checksum files: `SHA256SUMS`, `SHA512SUMS`, `sha256sum-amd64.txt`.

use std::collections::BTreeMap;
use std::fmt;

/// A SHA-256 or SHA-512 digest in lower-case hex.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Checksum {
    hex: String,
}

/// Why a checksum or a checksum file cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChecksumError {
    #[error("`{0}` is neither a SHA-256 nor a SHA-512 digest in hex")]
    Digest(String),
    #[error("line {line} of the checksum file is not `<digest>  <file>`")]
    Line { line: usize },
    #[error("the checksum file names `{file}` twice, with different digests")]
    Ambiguous { file: String },
    #[error("the checksum file does not name `{file}`")]
    Missing { file: String },
}

impl Checksum {
    pub fn parse(text: &str) -> Result<Self, ChecksumError> {
        let hex = text.trim().to_ascii_lowercase();
        let is_hex = hex.bytes().all(|byte| byte.is_ascii_hexdigit());
        if is_hex && (hex.len() == 64 || hex.len() == 128) {
            Ok(Self { hex })
        } else {
            Err(ChecksumError::Digest(text.to_owned()))
        }
    }

    /// The name that Proxmox VE and Python's hashlib use: `sha256` or `sha512`.
    pub fn algorithm(&self) -> &'static str {
        if self.hex.len() == 64 { "sha256" } else { "sha512" }
    }

    pub fn hex(&self) -> &str {
        &self.hex
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm(), self.hex)
    }
}

/// The digests of a checksum file by file name. `*` before a name only says that the file was read as binary.
pub fn parse_checksums(text: &str) -> Result<BTreeMap<String, Checksum>, ChecksumError> {
    let mut found: BTreeMap<String, Checksum> = BTreeMap::new();
    for (number, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let malformed = || ChecksumError::Line { line: number + 1 };
        let (digest, rest) = line.split_once(char::is_whitespace).ok_or_else(malformed)?;
        let name = rest.trim_start().trim_start_matches('*').trim_end();
        let digest = Checksum::parse(digest).map_err(|_| malformed())?;
        if name.is_empty() {
            return Err(malformed());
        }
        let file = name.trim_start_matches("./").to_owned();
        match found.insert(file.clone(), digest.clone()) {
            Some(other) if other != digest => return Err(ChecksumError::Ambiguous { file }),
            _ => {}
        }
    }
    Ok(found)
}

/// The digest of one file.
pub fn checksum_of(text: &str, file: &str) -> Result<Checksum, ChecksumError> {
    let mut all = parse_checksums(text)?;
    all.remove(file)
        .ok_or_else(|| ChecksumError::Missing { file: file.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    #[test]
    fn both_separators_and_both_lengths_are_read() {
        let long = A.repeat(2);
        let text =
            format!("{A}  k3s\n{A} *noble-server-cloudimg-amd64.img\n{long}  debian-13-generic-amd64-20260801-2183.qcow2\n\n");
        let all = parse_checksums(&text).expect("a checksum file");
        assert_eq!(all["k3s"].to_string(), format!("sha256:{A}"));
        assert_eq!(all["noble-server-cloudimg-amd64.img"].algorithm(), "sha256");
        assert_eq!(all["debian-13-generic-amd64-20260801-2183.qcow2"].algorithm(), "sha512");
    }

    #[test]
    fn a_missing_file_a_short_digest_and_an_ambiguous_name_are_errors() {
        assert_eq!(
            checksum_of(&format!("{A}  k3s\n"), "k3s-arm64"),
            Err(ChecksumError::Missing {
                file: "k3s-arm64".into()
            })
        );
        assert_eq!(
            parse_checksums(&format!("{A}  k3s\nabc  x\n")),
            Err(ChecksumError::Line { line: 2 })
        );
        let other = "b".repeat(64);
        assert!(matches!(
            parse_checksums(&format!("{A}  k3s\n{other}  k3s\n")),
            Err(ChecksumError::Ambiguous { .. })
        ));
        assert_eq!(
            parse_checksums("<html>not found</html>\n"),
            Err(ChecksumError::Line { line: 1 })
        );
    }
}
