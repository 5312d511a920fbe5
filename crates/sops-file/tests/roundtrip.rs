//! Encrypt and decrypt, and everything that must not be believed.

use proptest::prelude::*;
use rand_chacha::ChaCha20Rng;
use rand_chacha::rand_core::SeedableRng;
use sops_file::{CreationRules, Error, Filter, Identity, decrypt, encrypt, is_encrypted, recipients};

const DOCUMENT: &str = "\
# The secrets of a cluster.
cluster:
    id: 4f1c # not a number
    secret: |
        two
        lines
    # between
numbers: [1, 2.50, 0x1F]
flags: {on: true, off: False}
when: 2026-11-15T12:00:00Z
empty: \"\"
nothing:
folded: >-
    one
    line

note_unencrypted: plain
list:
    - name: a
      key: 'it''s'
    - \"tab\\there\"
last: ünïcode ✓
";

fn rng() -> ChaCha20Rng {
    ChaCha20Rng::seed_from_u64(7)
}

fn now() -> jiff::Timestamp {
    "2026-11-15T12:00:00Z".parse().unwrap()
}

fn sealed(text: &str, identity: &Identity) -> String {
    encrypt(text, &[identity.recipient()], &Filter::default(), now(), &mut rng()).unwrap()
}

#[test]
fn comments_key_order_and_every_type_of_value_come_back() {
    let identity = Identity::generate();
    let file = sealed(DOCUMENT, &identity);
    let opened = decrypt(file.as_bytes(), std::slice::from_ref(&identity)).unwrap();
    expect_test::expect![[r##"
        # The secrets of a cluster.
        cluster:
            id: "4f1c" # not a number
            secret: "two\nlines\n"
            # between
        numbers: [1, 2.5, 31]
        flags: {on: true, off: false}
        when: 2026-11-15T12:00:00Z
        empty: ""
        nothing:
        folded: "one line"
        note_unencrypted: plain
        list:
            - name: a
              key: "it's"
            - "tab\there"
        last: "ünïcode ✓"
    "##]]
    .assert_eq(opened.text());
    assert_eq!(opened.recipients(), [identity.recipient().to_string()]);
}

/// The document without its `sops` block and without the content of `ENC[…]`. Both are random
/// base64 text, which contains a short word such as "one" by chance in one of a hundred runs.
fn without_ciphertext(file: &str) -> String {
    let (document, _) = file.split_once("\nsops:\n").unwrap();
    let mut parts = document.split("ENC[AES256_GCM,data:");
    let mut clear = parts.next().unwrap().to_owned();
    for part in parts {
        let (ciphertext, rest) = part.split_once(']').unwrap();
        assert!(ciphertext.contains(",iv:") && ciphertext.contains(",tag:"), "{ciphertext}");
        clear.push_str(rest);
    }
    clear
}

#[test]
fn nothing_that_is_secret_stays_in_clear() {
    let file = sealed(DOCUMENT, &Identity::generate());
    let clear = without_ciphertext(&file);
    for secret in [
        "4f1c",
        "two",
        "lines",
        "0x1F",
        "secrets of a cluster",
        "between",
        "it''s",
        "one",
        "2026-11-15T12:00:00Z\nempty",
    ] {
        assert!(!clear.contains(secret), "{secret} in\n{clear}");
    }
    assert!(file.contains("note_unencrypted: plain\n"));
    assert!(file.contains("empty: \"\"\n"));
    assert!(is_encrypted(file.as_bytes()));
    assert!(!is_encrypted(DOCUMENT.as_bytes()));
}

#[test]
fn any_one_of_several_recipients_opens_it_and_no_other_key_does() {
    let (one, two, stranger) = (Identity::generate(), Identity::generate(), Identity::generate());
    let file = encrypt(
        "a: b\n",
        &[one.recipient(), two.recipient()],
        &Filter::default(),
        now(),
        &mut rng(),
    )
    .unwrap();
    for reader in [&one, &two] {
        assert_eq!(
            decrypt(file.as_bytes(), std::slice::from_ref(reader)).unwrap().text(),
            "a: b\n"
        );
    }
    let refused = decrypt(file.as_bytes(), &[stranger]).unwrap_err();
    assert!(matches!(refused, Error::NoIdentity { tried: 1, .. }), "{refused}");
    assert_eq!(
        recipients(file.as_bytes()).unwrap(),
        [one.recipient().to_string(), two.recipient().to_string()]
    );
}

/// Every way to change a file behind its readers' back.
#[test]
fn a_changed_file_is_refused() {
    let identity = Identity::generate();
    let text = "a: first\nb:\n    c: second\nopen_unencrypted: third\n";
    let file = sealed(text, &identity);
    let line = |begin: &str| {
        file.lines()
            .find(|line| line.trim_start().starts_with(begin))
            .unwrap()
            .to_owned()
    };
    let (a, c) = (line("a:"), line("c:"));
    let swapped = file.replace(&a, &format!("a: {}", c.trim().trim_start_matches("c: ")));
    let in_clear = file.replace(&a, "a: first");
    let edited = file.replace("open_unencrypted: third", "open_unencrypted: fourth");
    let removed = file.replace(&format!("{a}\n"), "");
    let moved = file
        .replace(&format!("{a}\n"), "")
        .replace("open_unencrypted", &format!("{a}\nopen_unencrypted"));
    let older = file.replace("2026-11-15T12:00:00Z", "2026-11-14T12:00:00Z");
    for (what, changed) in [
        ("swapped", swapped),
        ("edited", edited),
        ("removed", removed),
        ("moved", moved),
        ("older", older),
        ("in clear", in_clear),
    ] {
        assert_ne!(changed, file, "{what}");
        let refused = decrypt(changed.as_bytes(), std::slice::from_ref(&identity)).expect_err(what);
        assert!(
            matches!(refused, Error::Mac | Error::Tampered { .. } | Error::NotEncrypted { .. }),
            "{what}: {refused}"
        );
    }
}

#[test]
fn a_file_cut_anywhere_is_refused_and_never_half_read() {
    let identity = Identity::generate();
    let file = sealed("a: first\nb: second\n", &identity);
    // What follows the MAC says nothing about the values.
    let mac_ends = file.find(",type:str]\n    unencrypted_suffix").unwrap() + ",type:str]".len();
    for end in 0..mac_ends {
        assert!(
            decrypt(&file.as_bytes()[..end], std::slice::from_ref(&identity)).is_err(),
            "cut at {end}"
        );
    }
}

#[test]
fn a_rewrite_keeps_the_ciphertext_of_what_did_not_change() {
    let identity = Identity::generate();
    let file = sealed("a: first\nb: second\n", &identity);
    let opened = decrypt(file.as_bytes(), std::slice::from_ref(&identity)).unwrap();
    let again = opened
        .rewrite("a: first\nb: other\nc: new\n", now(), &mut ChaCha20Rng::seed_from_u64(8))
        .unwrap();
    let line = |text: &str, begin: &str| text.lines().find(|line| line.starts_with(begin)).unwrap().to_owned();
    assert_eq!(line(&file, "a:"), line(&again, "a:"));
    assert_ne!(line(&file, "b:"), line(&again, "b:"));
    assert_eq!(
        decrypt(again.as_bytes(), &[identity]).unwrap().text(),
        "a: first\nb: other\nc: new\n"
    );
}

#[test]
fn what_cannot_be_kept_is_refused_by_name() {
    let identity = Identity::generate();
    for (text, what) in [
        ("a: 1\n---\nb: 2\n", "a second document"),
        ("a: &x 1\nb: *x\n", "an anchor"),
        ("- a\n- b\n", "a document that is no mapping"),
        ("a: !!binary aGk=\n", "a tag"),
    ] {
        let refused = encrypt(text, &[identity.recipient()], &Filter::default(), now(), &mut rng()).unwrap_err();
        assert!(refused.to_string().contains(what), "{refused}");
    }
    let twice = encrypt(
        &sealed("a: b\n", &identity),
        &[identity.recipient()],
        &Filter::default(),
        now(),
        &mut rng(),
    )
    .unwrap_err();
    assert!(matches!(twice, Error::AlreadyEncrypted));
    assert!(matches!(
        encrypt("a: b\n", &[], &Filter::default(), now(), &mut rng()).unwrap_err(),
        Error::NoRecipient
    ));
}

#[test]
fn keys_of_another_kind_are_read_over_but_never_written_away() {
    let identity = Identity::generate();
    let file = sealed("a: b\n", &identity).replace("sops:\n", "sops:\n    pgp:\n        - fp: ABCD\n          enc: x\n");
    let opened = decrypt(file.as_bytes(), std::slice::from_ref(&identity)).unwrap();
    assert_eq!(opened.text(), "a: b\n");
    assert!(matches!(opened.rewrite("a: c\n", now(), &mut rng()).unwrap_err(), Error::OtherKeys(who) if who == "PGP"));
}

#[test]
fn creation_rules_choose_by_path() {
    let (one, two) = (Identity::generate().recipient(), Identity::generate().recipient());
    let text = format!(
        "creation_rules:\n  - path_regex: talos/.*\\.sops\\.ya?ml\n    mac_only_encrypted: true\n    age: >-\n      {one},\n      {two}\n  \
         - path_regex: kubernetes/.*\n    encrypted_regex: ^(data|stringData)$\n    key_groups:\n      - age:\n          - {two}\n"
    );
    let rules = CreationRules::parse(&text).unwrap();
    let talos = rules.rule_for("talos/secrets.sops.yaml").unwrap().unwrap();
    assert_eq!(talos.recipients, [one, two.clone()]);
    assert!(talos.filter.mac_only_encrypted);
    let kubernetes = rules.rule_for("kubernetes/x.yaml").unwrap().unwrap();
    assert_eq!(kubernetes.recipients, [two]);
    assert_eq!(kubernetes.filter.unencrypted_suffix, None);
    assert_eq!(rules.rule_for("elsewhere.yaml").unwrap(), None);
    assert!(
        CreationRules::parse("creation_rules:\n  - age: nonsense\n")
            .unwrap()
            .rule_for("x")
            .is_err()
    );
}

#[test]
fn a_filter_chooses_by_any_key_on_the_path_and_the_mac_may_cover_encrypted_values_only() {
    let identity = Identity::generate();
    let filter = Filter {
        unencrypted_suffix: None,
        encrypted_regex: Some("^data$".into()),
        mac_only_encrypted: true,
        ..Filter::default()
    };
    let file = encrypt(
        "kind: Secret\ndata:\n    deep:\n        key: hidden\n",
        &[identity.recipient()],
        &filter,
        now(),
        &mut rng(),
    )
    .unwrap();
    assert!(file.contains("kind: Secret\n") && !file.contains("hidden"));
    let edited = file.replace("kind: Secret", "kind: Sealed");
    assert!(
        decrypt(edited.as_bytes(), std::slice::from_ref(&identity))
            .unwrap()
            .text()
            .contains("kind: Sealed")
    );
}

#[test]
fn no_secret_is_printed() {
    let identity = Identity::generate();
    let opened = decrypt(
        sealed("a: canary-8f2\n", &identity).as_bytes(),
        std::slice::from_ref(&identity),
    )
    .unwrap();
    let key = identity.to_file(now());
    let secret = key.lines().last().unwrap();
    let printed = format!("{opened:?} {identity:?}");
    assert!(!printed.contains("canary") && !printed.contains(secret), "{printed}");
    assert_eq!(Identity::parse_file(&key).unwrap()[0].recipient(), identity.recipient());
    assert!(matches!(
        Identity::parse_file("# c\n\nnonsense\n").unwrap_err(),
        Error::BadIdentity { line: 3 }
    ));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_comes_back_as_it_was(values in proptest::collection::vec("[ -~\\n\\täß✓\\u{0}-\\u{1f}]{0,24}", 1..6)) {
        use serde::Serialize;
        #[derive(Serialize)]
        struct Doc<'a> { values: &'a [String] }
        let text = serde_saphyr::to_string(&Doc { values: &values }).unwrap();
        let identity = Identity::generate();
        let file = sealed(&text, &identity);
        let opened = decrypt(file.as_bytes(), &[identity]).unwrap();
        #[derive(serde::Deserialize)]
        struct Back { values: Vec<String> }
        let before: Back = serde_saphyr::from_str(&text).unwrap();
        let after: Back = serde_saphyr::from_str(opened.text()).unwrap();
        prop_assert_eq!(before.values, after.values);
    }

    #[test]
    fn arbitrary_bytes_are_an_error_and_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = decrypt(&bytes, &[]);
        let _ = CreationRules::parse(&String::from_utf8_lossy(&bytes));
        if let Ok(text) = std::str::from_utf8(&bytes) {
            let _ = encrypt(text, &[Identity::generate().recipient()], &Filter::default(), now(), &mut rng());
        }
    }
}

/// `tests/data` was encrypted by the real program, for a key made for this purpose.
#[test]
fn a_file_of_the_real_sops_is_read_and_a_changed_byte_of_it_refused() {
    let identities = Identity::parse_file(include_str!("data/key.txt")).unwrap();
    let theirs = include_str!("data/by-sops-3.13.3.yaml");
    let opened = decrypt(theirs.as_bytes(), &identities).unwrap();
    for line in [
        "    secret: \"two\\nlines\\n\"",
        "    - 31",
        "when: 2026-11-15T12:00:00Z",
        "last: \"ünïcode ✓\"",
        "    # between",
        "nothing: null",
    ] {
        assert!(
            opened.text().lines().any(|found| found == line),
            "{line} in\n{}",
            opened.text()
        );
    }
    let at = theirs.find("data:").unwrap() + 5;
    let other = if &theirs[at..=at] == "A" { "B" } else { "A" };
    let changed = format!("{}{other}{}", &theirs[..at], &theirs[at + 1..]);
    assert!(decrypt(changed.as_bytes(), &identities).is_err());
}

/// The values of a document in their order. The MAC of sops covers these: neither comments, nor the names of keys, nor what is empty.
fn values(text: &str) -> Vec<&str> {
    let lines = text.lines().map(|line| line.split(" #").next().unwrap_or_default());
    let lines = lines.filter(|line| !line.trim_start().starts_with('#'));
    let value =
        |line: &'_ str| -> Option<usize> { line.find(": ").map(|at| at + 2).or_else(|| line.find("- ").map(|at| at + 2)) };
    lines
        .filter_map(|line| Some(line[value(line)?..].trim()))
        .filter(|value| !["", "null", "\"\""].contains(value))
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Cut, repeated and overwritten at any place: either what stood there, or nothing.
    #[test]
    fn a_damaged_file_gives_what_was_written_or_nothing(
        at in any::<proptest::sample::Index>(), length in 0..60_usize, to in any::<proptest::sample::Index>(), byte in any::<Option<u8>>(),
    ) {
        let identities = Identity::parse_file(include_str!("data/key.txt")).unwrap();
        let whole = include_str!("data/by-sops-3.13.3.yaml").as_bytes();
        let good = decrypt(whole, &identities).unwrap();
        let mut damaged = whole.to_vec();
        let (at, to) = (at.index(whole.len()), to.index(whole.len()));
        let end = (at + length).min(whole.len());
        match byte {
            Some(byte) => damaged[at] = byte,
            None => drop(damaged.splice(at..end, whole[to..(to + length).min(whole.len())].iter().copied())),
        }
        let _ = (is_encrypted(&damaged), recipients(&damaged));
        if let Ok(opened) = decrypt(&damaged, &identities) {
            prop_assert_eq!(values(opened.text()), values(good.text()));
        }
    }
}
