//! What the head of an image file tells, as `qemu-img info` would.

/// The size a guest would see.
pub(super) fn virtual_size(format: &str, bytes: &[u8]) -> u64 {
    match format {
        "qcow2" if bytes.len() >= 32 => read_u64(bytes, 24),
        "vmdk" if bytes.len() >= 20 && bytes.starts_with(b"KDMV") => {
            u64::from_le_bytes(bytes[12..20].try_into().unwrap_or_default()) * 512
        }
        _ => bytes.len() as u64,
    }
}

fn read_u64(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..at + 8)
        .and_then(|b| b.try_into().ok())
        .map_or(0, u64::from_be_bytes)
}

/// Why an image from outside is not taken.
pub(super) fn refuse(format: &str, bytes: &[u8], path: &str) -> Result<(), Untrusted> {
    if format != "qcow2" {
        return Ok(());
    }
    if !bytes.starts_with(b"QFI\xfb") {
        return Err(Untrusted::NotQcow2 { path: path.into() });
    }
    if read_u64(bytes, 8) != 0 {
        return Err(Untrusted::Backed { path: path.into() });
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Untrusted {
    NotQcow2 { path: String },
    Backed { path: String },
}

#[cfg(test)]
mod tests {
    use super::{Untrusted, refuse, virtual_size};

    fn qcow2(size: u64, backing: u64) -> Vec<u8> {
        let mut head = b"QFI\xfb".to_vec();
        head.extend(3_u32.to_be_bytes());
        head.extend(backing.to_be_bytes());
        head.extend([0; 8]);
        head.extend(size.to_be_bytes());
        head
    }

    #[test]
    fn a_qcow2_tells_its_size_and_its_backing_file() {
        assert_eq!(virtual_size("qcow2", &qcow2(10 << 20, 0)), 10 << 20);
        assert_eq!(refuse("qcow2", &qcow2(1, 0), "p"), Ok(()));
        assert_eq!(
            refuse("qcow2", &qcow2(1, 512), "p"),
            Err(Untrusted::Backed { path: "p".into() })
        );
        assert_eq!(
            refuse("qcow2", b"not one", "p"),
            Err(Untrusted::NotQcow2 { path: "p".into() })
        );
    }
}
