//! The real `sops` opens what we seal, we open what it seals, and neither opens a file that was changed.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::Verdict;
use super::tools::{Tools, built, call, command, without};

const LIMIT: Duration = Duration::from_secs(60);

/// Every kind of scalar, comments, and what YAML likes to misread.
const PLAIN: &str = "\
# a comment
cluster:
    id: aGVsbG8=
    empty: \"\"
    number: 42
    negative: -7
    fraction: 1.5
    flag: true
    octal: \"0123\"
    text: 'two: parts # no comment'
list:
    - one
    - two: |
        a
        block
unicode: Grüße
";

pub fn check(tools: &Tools) -> Result<Verdict> {
    let sops = tools.go_install("sops", "github.com/getsops/sops/v3/cmd/sops@v3.13.3")?;
    let keygen = tools.go_install("age-keygen", "filippo.io/age/cmd/age-keygen@v1.3.2")?;
    let (Some(sops), Some(keygen)) = (sops, keygen) else {
        return without("sops");
    };
    let seal = built(&["--package", "sops-file", "--example", "seal"])?;
    let folder = tools.empty("sops")?;
    let key = folder.join("key.txt");
    call(command(&keygen).arg("-o").arg(&key), LIMIT, &folder)?.good("age-keygen")?;
    let recipient = call(command(&keygen).arg("-y").arg(&key), LIMIT, &folder)?.good("age-keygen -y")?;
    let programs = Programs {
        sops: &sops,
        seal: &seal,
        key: &key,
        folder: &folder,
    };
    std::fs::write(folder.join("plain.yaml"), PLAIN)?;

    let wanted = programs.values(PLAIN, recipient.trim())?;
    let ours = programs.seal("encrypt", recipient.trim(), "plain.yaml")?;
    let theirs = programs.sops(&["--encrypt", "--age", recipient.trim()], "plain.yaml")?;
    for (name, sealed) in [("ours.yaml", &ours), ("theirs.yaml", &theirs)] {
        std::fs::write(folder.join(name), sealed)?;
        ensure!(!sealed.contains("aGVsbG8="), "{name} has a value in clear");
        let opened = programs.sops(&["--decrypt"], name)?;
        ensure!(opened == PLAIN, "sops --decrypt {name} gives another text:\n{opened}");
        let opened = programs.open(name)?;
        ensure!(
            programs.values(&opened, recipient.trim())? == wanted,
            "seal decrypt {name} gives other values:\n{opened}"
        );
        let changed = format!("changed-{name}");
        std::fs::write(
            folder.join(&changed),
            one_byte_changed(sealed).with_context(|| format!("{name} has no value"))?,
        )?;
        ensure!(programs.sops(&["--decrypt"], &changed).is_err(), "sops opens {changed}");
        ensure!(programs.open(&changed).is_err(), "seal opens {changed}");
    }
    Ok(Verdict::Passed)
}

/// The value of `id`, with its first byte changed.
fn one_byte_changed(sealed: &str) -> Option<String> {
    let mark = "id: ENC[AES256_GCM,data:"; // Not the comment: sops leaves one that it cannot open as it is.
    let at = sealed.find(mark)? + mark.len();
    let other = if sealed[at..].starts_with('A') { "B" } else { "A" };
    Some(format!("{}{other}{}", &sealed[..at], &sealed[at + 1..]))
}

struct Programs<'a> {
    sops: &'a Path,
    seal: &'a Path,
    key: &'a Path,
    folder: &'a Path,
}

impl Programs<'_> {
    fn sops(&self, words: &[&str], file: &str) -> Result<String> {
        let mut sops = command(self.sops);
        sops.args(words)
            .arg(file)
            .current_dir(self.folder)
            .env("SOPS_AGE_KEY_FILE", self.key);
        call(&mut sops, LIMIT, self.folder)?.good("sops")
    }

    fn open(&self, file: &str) -> Result<String> {
        self.seal("decrypt", &self.key.display().to_string(), file)
    }

    /// What a text means, by the real program: we keep values, not the style of quotes.
    fn values(&self, text: &str, recipient: &str) -> Result<Value> {
        std::fs::write(self.folder.join("text.yaml"), text)?;
        let sealed = self.sops(&["--encrypt", "--age", recipient], "text.yaml")?;
        std::fs::write(self.folder.join("text.yaml"), sealed)?;
        let json = self.sops(&["--decrypt", "--output-type", "json"], "text.yaml")?;
        Ok(serde_json::from_str(&json)?)
    }

    /// Our side reads its input from stdin.
    fn seal(&self, verb: &str, with: &str, file: &str) -> Result<String> {
        let output = command(self.seal)
            .args([verb, with])
            .stdin(std::fs::File::open(self.folder.join(file))?)
            .output()?;
        ensure!(
            output.status.success(),
            "seal {verb}: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        );
        Ok(String::from_utf8(output.stdout)?)
    }
}
