//! Schematic ids against those of the Image Factory's own code.

use crate::support::raw;
use talos_config::Schematic;

#[test]
fn ids_and_canonical_bytes_equal_the_factorys() {
    let mut seen = 0;
    for line in raw("schematic/ids-rc6.txt").lines() {
        let (id, file) = line.split_once(' ').unwrap();
        if !file.ends_with(".in.yaml") {
            continue;
        }
        let schematic = Schematic::parse(&raw(format!("schematic/{file}"))).unwrap();
        let canonical = file.replace(".in.yaml", ".canonical-rc6.yaml");
        assert_eq!(schematic.canonical(), raw(format!("schematic/{canonical}")), "{file}");
        assert_eq!(schematic.id(), id, "{file}");
        seen += 1;
    }
    assert_eq!(seen, 16);
}

#[test]
fn what_the_factory_refuses_is_refused_with_its_words() {
    for line in raw("schematic/ids-rc6.txt").lines().filter(|line| line.contains(" ERROR ")) {
        let (file, error) = line.split_once(" ERROR ").unwrap();
        let ours = Schematic::parse(&raw(format!("schematic/{file}"))).unwrap_err().to_string();
        assert!(error.ends_with(&ours), "{file}: {ours:?} instead of {error:?}");
    }
}

#[test]
fn scalars_are_quoted_as_the_factory_quotes_them() {
    for line in raw("schematic/SCALAR-QUOTING.txt").lines() {
        let Some((input, outputs)) = line.split_once("]}}   rc4=[") else {
            continue;
        };
        let expected = outputs.split_once("] rc6=[").unwrap().1.strip_suffix(']').unwrap();
        let argument: String = serde_json::from_str(input).unwrap();
        let mut schematic = Schematic::default();
        schematic.customization.extra_kernel_args = vec![argument];
        let line = schematic.canonical().lines().last().unwrap().trim_start().to_owned();
        assert_eq!(line, expected);
    }
}

#[test]
fn extensions_may_be_named_short_and_in_any_order() {
    let schematic = Schematic::with_extensions([
        "util-linux-tools",
        "siderolabs/iscsi-tools",
        "qemu-guest-agent",
        "iscsi-tools",
    ]);
    assert_eq!(
        schematic.id(),
        "88d1f7a5c4f1d3aba7df787c448c1d3d008ed29cfb34af53fa0df4336a56040b"
    );
}
