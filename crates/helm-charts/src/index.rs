//! `index.yaml` of an HTTP repository.

use serde::Deserialize;

/// One version of a chart in an index.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(crate) struct Entry {
    pub version: String,
    #[serde(default)]
    pub urls: Vec<String>,
    /// SHA-256 of the archive, without prefix. Some repositories leave it out.
    #[serde(default)]
    pub digest: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IndexError {
    #[error("the index cannot be read")]
    Malformed,
    #[error("the index has no chart of that name")]
    NoChart,
}

/// The versions of one chart.
///
/// Some indexes are tens of megabytes. So the block of this chart is cut out by its indentation, as Helm writes it, and only that is
/// parsed; an index in another form (JSON) is parsed as a whole.
pub(crate) fn entries(index: &str, chart: &str) -> Result<Vec<Entry>, IndexError> {
    if let Some(block) = block(index, chart) {
        let parsed: Result<Vec<Entry>, _> = serde_saphyr::from_str(&block);
        return parsed.map_err(|_| IndexError::Malformed);
    }
    #[derive(Deserialize)]
    struct Index {
        entries: std::collections::BTreeMap<String, Vec<Entry>>,
    }
    let mut whole: Index = serde_saphyr::from_str(index).map_err(|_| IndexError::Malformed)?;
    whole.entries.remove(chart).ok_or(IndexError::NoChart)
}

/// The lines below `entries:` and `<chart>:`, up to the next key of the same depth.
fn block(index: &str, chart: &str) -> Option<String> {
    let mut lines = index.lines().skip_while(|line| line.trim_end() != "entries:").skip(1);
    let is_key = |line: &str| {
        let trimmed = line.trim();
        trimmed == format!("{chart}:") || trimmed == format!("\"{chart}\":")
    };
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut depth = None;
    let head = lines.find(|line| {
        let first = *depth.get_or_insert_with(|| indent(line));
        indent(line) == first && is_key(line)
    })?;
    let depth = indent(head);
    if depth == 0 {
        return None;
    }
    let belongs = |line: &&str| {
        let blank = line.trim().is_empty();
        blank || indent(line) > depth || (indent(line) == depth && line.trim_start().starts_with('-'))
    };
    let block: String = lines.take_while(belongs).map(|line| format!("{line}\n")).collect();
    (!block.trim().is_empty()).then_some(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = "\
apiVersion: v1
entries:
  alpha:
  - version: 1.0.0
    urls: [alpha-1.0.0.tgz]
    description: |
      not a chart:
        beta:
  beta:
  - version: 2.0.0
    digest: abc
    urls:
    - https://charts.example/beta-2.0.0.tgz
  - version: 1.9.0
    urls:
    - beta-1.9.0.tgz
generated: \"2026-01-01T00:00:00Z\"
";

    #[test]
    fn only_the_block_of_the_chart_is_read() {
        let beta = entries(INDEX, "beta").expect("entries");
        assert_eq!(
            beta.iter().map(|entry| entry.version.as_str()).collect::<Vec<_>>(),
            ["2.0.0", "1.9.0"]
        );
        assert_eq!(beta[0].digest.as_deref(), Some("abc"));
        assert_eq!(entries(INDEX, "alpha").expect("entries").len(), 1);
        assert_eq!(entries(INDEX, "gamma"), Err(IndexError::NoChart));
    }

    #[test]
    fn an_index_in_json_is_read_as_a_whole() {
        let json = r#"{"apiVersion": "v1", "entries": {"beta": [{"version": "2.0.0", "urls": ["b.tgz"]}]}}"#;
        assert_eq!(entries(json, "beta").expect("entries")[0].version, "2.0.0");
        assert_eq!(entries("<html>", "beta"), Err(IndexError::Malformed));
    }
}
