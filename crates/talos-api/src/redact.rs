//! What machines say may quote the config they were sent. None of it may be shown.

/// The text up to the first quotation of a machine config.
///
/// A change that is refused, or that needs a reboot, comes with a diff of the whole config around it, keys included; and unknown keys
/// are printed with their values. The first line says what is wrong; of the unknown keys their names are kept.
pub(crate) fn without_secrets(text: &str) -> String {
    let head = match text.find("\ndiff:").or_else(|| text.find("Config diff:")) {
        Some(at) => text[..at].trim_end(),
        None => text,
    };
    match head.split_once("unknown keys found during decoding:") {
        Some((before, quoted)) => format!("{before}unknown keys found during decoding: {}", keys(quoted).join(", ")),
        None => head.to_owned(),
    }
}

/// The keys of quoted YAML, without their values; the text of a block scalar is a value too, whatever it looks like.
fn keys(yaml: &str) -> Vec<&str> {
    let mut scalar_below: Option<usize> = None;
    let mut found = Vec::new();
    for line in yaml.lines().filter(|line| !line.trim().is_empty()) {
        let indent = line.len() - line.trim_start().len();
        if scalar_below.is_some_and(|above| indent > above) {
            continue;
        }
        scalar_below = None;
        let Some((key, value)) = line.trim_start().trim_start_matches("- ").split_once(':') else {
            continue;
        };
        if value.trim_start().starts_with(['|', '>']) {
            scalar_below = Some(indent);
        }
        if is_key(key) {
            found.push(key);
        }
    }
    found
}

fn is_key(text: &str) -> bool {
    !text.is_empty() && text.len() <= 64 && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_./".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_diff_of_the_config_is_cut_off() {
        let said = "this config change can't be applied in immediate mode\ndiff:\n--- a\n+++ b\n+    token: CANARY\n";
        assert_eq!(without_secrets(said), "this config change can't be applied in immediate mode");
        let dry = "Dry run summary:\nApplied configuration without a reboot (skipped in dry-run).\nConfig diff:\n\n+ key: CANARY";
        assert!(!without_secrets(dry).contains("CANARY"));
    }

    #[test]
    fn unknown_keys_are_named_without_their_values() {
        let said = "error decoding document /v1alpha1/ (line 1): unknown keys found during decoding:\nmachine:\n    tokn: CANARY\n    pem: |\n        CANARY: x y\n";
        let shown = without_secrets(said);
        assert_eq!(
            shown,
            "error decoding document /v1alpha1/ (line 1): unknown keys found during decoding: machine, tokn, pem"
        );
    }

    #[test]
    fn other_texts_stay_whole() {
        let said = "1 error occurred:\n\t* v1alpha1.Config: 1 error occurred:\n\t* unknown machine type \"x\"";
        assert_eq!(without_secrets(said), said);
    }
}
