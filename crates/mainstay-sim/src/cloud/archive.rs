//! ustar archives: enough to pack a release, and to unpack it as `tar` does.

const BLOCK: usize = 512;

/// A file or a directory in an archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub path: String,
    pub mode: u32,
    pub is_directory: bool,
    pub content: Vec<u8>,
}

pub(crate) fn pack(entries: &[Entry]) -> Vec<u8> {
    let mut out = Vec::new();
    for entry in entries {
        let mut head = [0u8; BLOCK];
        put(&mut head, 0, &entry.path);
        put(&mut head, 100, &format!("{:07o}", entry.mode));
        put(&mut head, 108, "0000000");
        put(&mut head, 116, "0000000");
        put(&mut head, 124, &format!("{:011o}", entry.content.len()));
        put(&mut head, 136, "00000000000");
        put(&mut head, 148, "        ");
        head[156] = if entry.is_directory { b'5' } else { b'0' };
        put(&mut head, 257, "ustar\u{0}00");
        let sum = checksum(&head);
        put(&mut head, 148, &format!("{sum:06o}\u{0} "));
        out.extend_from_slice(&head);
        out.extend_from_slice(&entry.content);
        out.resize(out.len().next_multiple_of(BLOCK), 0);
    }
    out.resize(out.len() + 2 * BLOCK, 0);
    out
}

fn put(head: &mut [u8; BLOCK], at: usize, text: &str) {
    head[at..at + text.len()].copy_from_slice(text.as_bytes());
}

/// The sum of the header with blanks in the place of the sum.
fn checksum(head: &[u8]) -> u32 {
    let byte = |(at, byte): (usize, &u8)| u32::from(if (148..156).contains(&at) { b' ' } else { *byte });
    head.iter().enumerate().map(byte).sum()
}

/// `None` where the bytes are no archive, or one that was cut off.
pub(crate) fn unpack(bytes: &[u8]) -> Option<Vec<Entry>> {
    let mut entries = Vec::new();
    let mut rest = bytes;
    loop {
        let (head, tail) = rest.split_at_checked(BLOCK)?;
        if head.iter().all(|byte| *byte == 0) {
            return Some(entries);
        }
        let field = |from: usize, to: usize| {
            let text = &head[from..to];
            let end = text.iter().position(|byte| *byte == 0).unwrap_or(text.len());
            String::from_utf8_lossy(&text[..end]).trim().to_owned()
        };
        let octal = |from: usize, to: usize| u64::from_str_radix(&field(from, to), 8).ok();
        if octal(148, 156)? != u64::from(checksum(head)) {
            return None;
        }
        let size = usize::try_from(octal(124, 136)?).ok()?;
        let content = tail.get(..size)?.to_vec();
        let mode = u32::try_from(octal(100, 108)?).ok()?;
        entries.push(Entry {
            path: field(0, 100),
            mode,
            is_directory: head[156] == b'5',
            content,
        });
        rest = tail.get(size.next_multiple_of(BLOCK)..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_unpacked_and_what_is_cut_off_is_not() {
        let file = |path: &str, content: &[u8]| Entry {
            path: path.to_owned(),
            mode: 0o755,
            is_directory: false,
            content: content.to_vec(),
        };
        let entries = vec![file("bin/a", b"hello"), file("lib/b", &[7; 700])];
        let packed = pack(&entries);
        assert_eq!(unpack(&packed), Some(entries));
        assert_eq!(unpack(&packed[..1000]), None);
        assert_eq!(unpack(b"no archive at all"), None);
    }
}
