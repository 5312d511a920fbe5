//! `trust`: shows the certificate that Proxmox VE presents, and writes its fingerprint into the file.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainstay_net::{Dialer, Target, Tcp, Wall, presented_fingerprint};

use crate::args::TrustArgs;
use crate::error::CommandError;
use crate::output::Output;
use crate::process_env::ProcessEnv;
use crate::session::Session;

const LOOK: Duration = Duration::from_secs(10);

/// The file need not be valid yet: it may lack just this fingerprint.
pub async fn run(file: &Path, args: &TrustArgs, process_env: ProcessEnv, output: Output) -> Result<(), CommandError> {
    let text = match std::fs::read_to_string(file) {
        Ok(text) => Some(text),
        Err(_) if process_env.endpoint.is_some() => None,
        Err(error) => return Err(CommandError::no_cluster_file(file, &error)),
    };
    let endpoint = text
        .as_deref()
        .and_then(endpoint_of)
        .or(process_env.endpoint.clone())
        .ok_or_else(|| {
            CommandError::usage("no endpoint is configured").help("set `datacenter.endpoint` in the file, or PROXMOX_VE_ENDPOINT")
        })?;
    let target = target_of(&endpoint)?;
    // A file that is valid apart from the fingerprint may name a jump host, and Proxmox VE may be behind it.
    let dialer = Session::open(file, process_env).map_or_else(|_| Arc::new(Tcp) as Arc<dyn Dialer>, |session| session.env.dialer);
    let seen = presented_fingerprint(dialer, &target, Wall::real(), LOOK).await;
    let seen = seen.map_err(|error| {
        let problem = CommandError::new(format!("{target} presents no certificate"));
        let remedy = error.remedy();
        remedy.into_iter().fold(problem.caused_by(error), CommandError::help)
    })?;
    if output.json {
        output.print_json(&serde_json::json!({"v": 1, "type": "trust", "endpoint": endpoint, "fingerprint": seen.to_string()}));
    } else {
        output.print(seen.to_string());
        output.status(format!("compare it on {}: pvenode cert info", target.host));
    }
    if args.write {
        let text = text.ok_or_else(|| CommandError::usage(format!("{} does not exist", file.display())))?;
        let written = with_fingerprint(&text, &seen.to_string())
            .ok_or_else(|| CommandError::usage(format!("{} has no `datacenter:` section", file.display())))?;
        std::fs::write(file, written)
            .map_err(|error| CommandError::new(format!("cannot write {}", file.display())).caused_by(error))?;
        output.status(format!("wrote the fingerprint into {}", file.display()));
    }
    Ok(())
}

fn endpoint_of(text: &str) -> Option<String> {
    let value = value_of(text, "endpoint")?;
    let value = text[value].trim_matches(['"', '\'']);
    Some(value.to_owned()).filter(|value| !value.is_empty())
}

/// Where the value of the first key of this name stands, in block or flow style, with its quotes. The file may be unfinished, so it is
/// not parsed as a whole.
fn value_of(text: &str, key: &str) -> Option<Range<usize>> {
    let mut line_start = 0;
    for line in text.split_inclusive('\n') {
        let begins_comment = |at: &usize| line[..*at].ends_with(char::is_whitespace) || *at == 0;
        let comment = line.match_indices('#').map(|(at, _)| at).find(begins_comment);
        let code = &line[..comment.unwrap_or(line.len())];
        for (at, _) in code.match_indices(key) {
            let is_begin = code[..at]
                .chars()
                .next_back()
                .is_none_or(|before| before.is_whitespace() || "{,".contains(before));
            if let (true, Some(rest)) = (is_begin, code[at + key.len()..].strip_prefix(':')) {
                let blank = rest.len() - rest.trim_start().len();
                let from = at + key.len() + 1 + blank;
                return Some(line_start + from..line_start + from + value_length(&code[from..]));
            }
        }
        line_start += line.len();
    }
    None
}

/// How long the scalar at the beginning of a text is.
fn value_length(text: &str) -> usize {
    let quote = text.chars().next().filter(|first| "\"'".contains(*first));
    match quote {
        Some(quote) => text[1..].find(quote).map_or(text.len(), |end| end + 2),
        None => text
            .find([',', '}', '\n'])
            .map_or(text.trim_end().len(), |end| text[..end].trim_end().len()),
    }
}

pub(super) fn target_of(endpoint: &str) -> Result<Target, CommandError> {
    let text = if endpoint.contains("://") {
        endpoint.to_owned()
    } else {
        format!("https://{endpoint}")
    };
    let url =
        url::Url::parse(&text).map_err(|error| CommandError::usage(format!("`{endpoint}` is not a URL")).caused_by(error))?;
    let host = url
        .host_str()
        .ok_or_else(|| CommandError::usage(format!("`{endpoint}` has no host")))?;
    Ok(Target {
        host: host.trim_matches(['[', ']']).to_owned(),
        port: url.port().unwrap_or(8006),
    })
}

/// The file with this fingerprint: in place of the one that is there, else as the first entry of `datacenter`.
fn with_fingerprint(text: &str, fingerprint: &str) -> Option<String> {
    if let Some(there) = value_of(text, "fingerprint") {
        return Some(format!("{}\"{fingerprint}\"{}", &text[..there.start], &text[there.end..]));
    }
    let entry = format!("fingerprint: \"{fingerprint}\"");
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let at = lines.iter().position(|line| line.starts_with("datacenter:"))?;
    let rest = lines[at]["datacenter:".len()..].trim_start().to_owned();
    if let Some(inside) = rest.strip_prefix('{') {
        let separator = if inside.trim_start().starts_with('}') { " " } else { ", " };
        lines[at] = format!("datacenter: {{ {entry}{separator}{}", inside.trim_start());
    } else {
        let next = lines.get(at + 1).map_or(2, |line| line.len() - line.trim_start().len());
        lines.insert(at + 1, format!("{}{entry}", " ".repeat(next.max(1))));
    }
    Some(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_replaces_the_old_one_or_begins_the_section() {
        let before = "name: x\ndatacenter:\n    endpoint: https://pve:8006\n";
        let once = with_fingerprint(before, "AA").expect("has a section");
        assert_eq!(
            once,
            "name: x\ndatacenter:\n    fingerprint: \"AA\"\n    endpoint: https://pve:8006\n"
        );
        assert_eq!(with_fingerprint(&once, "BB").expect("has one"), once.replace("AA", "BB"));
        assert_eq!(with_fingerprint("name: x\n", "AA"), None);
    }

    #[test]
    fn an_endpoint_is_read_from_a_file_that_is_not_finished() {
        assert_eq!(
            endpoint_of("datacenter:\n  endpoint: https://pve.lan:8006   # mine\n"),
            Some("https://pve.lan:8006".into())
        );
        assert_eq!(
            target_of("pve.lan").map(|target| target.to_string()).ok(),
            Some("pve.lan:8006".into())
        );
    }

    #[test]
    fn a_file_in_flow_style_is_read_and_written() {
        let before = "name: x\ndatacenter: { endpoint: https://pve.lan:8006, pool: k8s }   # ours\n";
        assert_eq!(endpoint_of(before), Some("https://pve.lan:8006".into()));
        let once = with_fingerprint(before, "AA").expect("has a section");
        assert_eq!(
            once,
            "name: x\ndatacenter: { fingerprint: \"AA\", endpoint: https://pve.lan:8006, pool: k8s }   # ours\n"
        );
        assert_eq!(with_fingerprint(&once, "BB").expect("has one"), once.replace("AA", "BB"));
        assert_eq!(
            endpoint_of("{ name: x, datacenter: {endpoint: \"https://pve:8006\"} }\n"),
            Some("https://pve:8006".into())
        );
        assert_eq!(endpoint_of("# endpoint: https://old\nname: x\n"), None);
    }
}
