//! Patterns of file names and of `case`: `*`, `?` and `[…]`.

/// One place of a pattern. A quoted character stands for itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sign {
    pub c: char,
    pub quoted: bool,
}

impl Sign {
    pub fn plain(text: &str) -> Vec<Self> {
        text.chars().map(|c| Self { c, quoted: false }).collect()
    }

    fn is(self, c: char) -> bool {
        !self.quoted && self.c == c
    }
}

pub(crate) fn is_pattern(signs: &[Sign]) -> bool {
    signs.iter().any(|sign| sign.is('*') || sign.is('?') || sign.is('['))
}

pub(crate) fn matches(pattern: &[Sign], text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    matches_from(pattern, &text)
}

fn matches_from(pattern: &[Sign], text: &[char]) -> bool {
    let Some((sign, rest)) = pattern.split_first() else {
        return text.is_empty();
    };
    if sign.is('*') {
        return (0..=text.len()).any(|skipped| matches_from(rest, &text[skipped..]));
    }
    let Some((c, tail)) = text.split_first() else { return false };
    if sign.is('?') {
        return matches_from(rest, tail);
    }
    if sign.is('[')
        && let Some(end) = rest.iter().skip(1).position(|sign| sign.is(']')).map(|at| at + 1)
    {
        return in_set(&rest[..end], *c) && matches_from(&rest[end + 1..], tail);
    }
    sign.c == *c && matches_from(rest, tail)
}

fn in_set(set: &[Sign], c: char) -> bool {
    let negated = set.first().is_some_and(|sign| sign.is('!') || sign.is('^'));
    let set = &set[usize::from(negated)..];
    let mut found = false;
    let mut at = 0;
    while at < set.len() {
        if set.get(at + 1).is_some_and(|sign| sign.is('-')) && at + 2 < set.len() {
            found |= (set[at].c..=set[at + 2].c).contains(&c);
            at += 3;
        } else {
            found |= set[at].c == c;
            at += 1;
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use super::{Sign, matches};

    #[test]
    fn signs_match_as_the_shell_does() {
        let on = |pattern: &str, text: &str| matches(&Sign::plain(pattern), text);
        assert!(on("*.yaml", "10-role.yaml") && on("v1.[0-9]*", "v1.35") && on("?b", "ab") && on("[!a]b", "cb"));
        assert!(!on("*.yaml", "a.yml") && !on("[!a]b", "ab") && !on("?", ""));
    }
}
