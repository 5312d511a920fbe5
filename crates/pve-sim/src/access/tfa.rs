//! Second factors: time-based one-time passwords.

use data_encoding::BASE32_NOPAD;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;

/// Seconds that a code is shown.
const STEP: i64 = 30;
/// After so many wrong codes no code is taken until an administrator unlocks the user.
const MAX_FAILURES: u32 = 8;

/// The second factors of a user.
#[derive(Clone, Default)]
pub struct Tfa {
    keys: Vec<Vec<u8>>,
    /// The last step whose code was used: a code is good for one login.
    used: Option<i64>,
    failures: u32,
}

impl std::fmt::Debug for Tfa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tfa({} keys, ***)", self.keys.len())
    }
}

impl Tfa {
    /// Keys in base32; what is none is left out.
    pub fn new(keys: &[String]) -> Self {
        let decode = |key: &String| {
            BASE32_NOPAD
                .decode(key.trim_end_matches('=').to_ascii_uppercase().as_bytes())
                .ok()
        };
        Self {
            keys: keys.iter().filter_map(decode).collect(),
            ..Self::default()
        }
    }

    pub fn is_set(&self) -> bool {
        !self.keys.is_empty()
    }

    /// What the user is asked for.
    pub fn challenge(&self) -> String {
        r#"{"totp":true,"recovery":{"available":[]}}"#.into()
    }

    /// Whether an answer (`totp:123456`) is right: the code of this step, the last or the next, and not used yet.
    pub fn verify(&mut self, answer: &str, now: i64) -> bool {
        let Some(code) = answer.strip_prefix("totp:") else {
            return false;
        };
        if self.failures >= MAX_FAILURES {
            return false;
        }
        let step = now / STEP;
        let fits = |at: &i64| self.keys.iter().any(|key| totp(key, *at) == code);
        let found = (step - 1..=step + 1)
            .find(fits)
            .filter(|at| self.used.is_none_or(|used| *at > used));
        match found {
            Some(at) => {
                self.used = Some(at);
                self.failures = 0;
            }
            None => self.failures += 1,
        }
        found.is_some()
    }
}

/// The code that a key in base32 shows in a step of thirty seconds since 1970.
pub fn totp_code(key: &str, step: i64) -> Option<String> {
    let tfa = Tfa::new(&[key.to_string()]);
    tfa.keys.first().map(|key| totp(key, step))
}

/// The six digits of a step.
fn totp(key: &[u8], step: i64) -> String {
    let Ok(mut mac) = Hmac::<Sha1>::new_from_slice(key) else {
        return String::new();
    };
    mac.update(&step.to_be_bytes());
    let sum = mac.finalize().into_bytes();
    let at = usize::from(sum[19] & 15);
    let number = u32::from_be_bytes([sum[at] & 0x7f, sum[at + 1], sum[at + 2], sum[at + 3]]);
    format!("{:06}", number % 1_000_000)
}

#[cfg(test)]
mod tests {
    use super::{Tfa, totp};

    /// The key and the codes of RFC 6238, cut to six digits.
    const KEY: &str = "GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ";

    fn tfa() -> Tfa {
        Tfa::new(&[KEY.to_string()])
    }

    #[test]
    fn codes_are_those_of_the_standard() {
        for (at, code) in [(59, "287082"), (1_111_111_109, "081804"), (2_000_000_000, "279037")] {
            assert_eq!(totp(b"12345678901234567890", at / 30), code);
        }
    }

    #[test]
    fn a_code_is_good_one_step_before_and_after_and_only_once() {
        let code = "totp:081804";
        for (shift, good) in [(-60, false), (-30, true), (0, true), (30, true), (60, false)] {
            assert_eq!(tfa().verify(code, 1_111_111_109 + shift), good, "{shift}");
        }
        let mut used = tfa();
        assert!(used.verify(code, 1_111_111_109) && !used.verify(code, 1_111_111_109));
    }

    #[test]
    fn answers_without_a_kind_and_wrong_codes_are_refused_and_eight_of_them_lock() {
        let mut tfa = tfa();
        assert!(!tfa.verify("081804", 1_111_111_109));
        for _ in 0..8 {
            assert!(!tfa.verify("totp:000000", 1_111_111_109));
        }
        assert!(!tfa.verify("totp:081804", 1_111_111_109));
    }

    #[test]
    fn keys_are_not_shown() {
        assert_eq!(format!("{:?}", tfa()), "Tfa(1 keys, ***)");
    }
}
