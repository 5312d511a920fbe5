//! Sizes of disks.

use std::fmt;
use std::str::FromStr;

use super::ValueError;
use super::loose::deserialize_from_text;

/// A disk size in bytes, printed with the largest unit that is exact (`10M`, `38250K`, `1536M`), as PVE does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DiskSize(u64);

impl DiskSize {
    pub fn from_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    /// Saturates at what 64 bit hold.
    pub fn from_gib(gib: u64) -> Self {
        Self(gib.saturating_mul(1 << 30))
    }

    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for DiskSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut value, mut unit) = (self.0, "");
        for larger in ["K", "M", "G", "T"] {
            if value == 0 || value % 1024 != 0 {
                break;
            }
            (value, unit) = (value / 1024, larger);
        }
        write!(f, "{value}{unit}")
    }
}

impl FromStr for DiskSize {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        parse(text).map(Self).ok_or_else(|| ValueError::new("a disk size", text))
    }
}

deserialize_from_text!(DiskSize);

fn parse(text: &str) -> Option<u64> {
    let shift = match text.bytes().last()? {
        b'K' => 10,
        b'M' => 20,
        b'G' => 30,
        b'T' => 40,
        _ => 0,
    };
    let number = if shift == 0 { text } else { &text[..text.len() - 1] };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let bytes = whole.parse::<u64>().ok()?.checked_mul(1 << shift)?;
    bytes.checked_add(fraction_of(fraction, shift)?)
}

/// Rounded down to whole bytes.
fn fraction_of(fraction: &str, shift: u32) -> Option<u64> {
    let digits = &fraction[..fraction.len().min(12)];
    let scale = 10u128.checked_pow(u32::try_from(digits.len()).ok()?)?;
    u64::try_from((digits.parse::<u128>().ok()? << shift) / scale).ok()
}

#[cfg(test)]
mod tests {
    use super::DiskSize;

    #[test]
    fn sizes_print_with_the_largest_exact_unit() {
        for (bytes, text) in [
            (0, "0"),
            (1, "1"),
            (1025, "1025"),
            (39_168_000, "38250K"),
            (10 << 20, "10M"),
            (1536 << 20, "1536M"),
            (40 << 30, "40G"),
            (2 << 40, "2T"),
        ] {
            assert_eq!(DiskSize::from_bytes(bytes).to_string(), text);
            assert_eq!(text.parse::<DiskSize>().unwrap().bytes(), bytes);
        }
    }

    #[test]
    fn fractions_are_read() {
        assert_eq!("1.5G".parse::<DiskSize>().unwrap().bytes(), 3 << 29);
        assert_eq!("0.001K".parse::<DiskSize>().unwrap().bytes(), 1);
        for text in ["", "G", "1.G", ".5G", "-1G", "1g", "1.5.5", "99999999999999T"] {
            assert!(text.parse::<DiskSize>().is_err(), "{text}");
        }
    }
}
