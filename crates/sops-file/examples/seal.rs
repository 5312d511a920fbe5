//! Encrypts or decrypts a file, for comparison with the real `sops`:
//! `seal encrypt AGE_RECIPIENT < plain.yaml`, `seal decrypt KEY_FILE < sealed.yaml`.

use std::error::Error;
use std::io::{Read, Write};

use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use sops_file::{Filter, Identity, decrypt, encrypt};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut input = String::new();
    std::io::stdin().read_to_string(&mut input)?;
    let output = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["encrypt", recipient] => {
            let now = "2026-11-15T12:00:00Z".parse()?;
            encrypt(
                &input,
                &[recipient.parse()?],
                &Filter::default(),
                now,
                &mut ChaCha20Rng::seed_from_u64(1),
            )?
        }
        ["decrypt", keys] => {
            let identities = Identity::parse_file(&std::fs::read_to_string(keys)?)?;
            decrypt(input.as_bytes(), &identities)?.text().to_owned()
        }
        _ => return Err("encrypt RECIPIENT or decrypt KEY_FILE".into()),
    };
    std::io::stdout().write_all(output.as_bytes())?;
    Ok(())
}
