//! Which calls belong to which stage, and which cannot be asked again.

use std::ops::Range;

use crate::recorded::tape::{self, Call};

/// Stages and the recorded calls of each, by number.
pub const STAGES: &[(&str, Range<usize>)] = &[
    ("maintenance", 0..14),
    ("maintenance", 15..21),
    ("maintenance", 22..40),
    ("apply in maintenance", 40..44),
    ("apply", 44..45),
    ("after apply", 45..61),
    ("not bootstrapped", 61..69),
    ("second bootstrap", 69..70),
    ("bootstrap after etcd", 70..71),
    ("staged in maintenance", 71..74),
    ("tried in maintenance", 74..75),
    ("after the try", 75..79),
    ("after the revert", 79..84),
    ("no quorum", 84..91),
    ("no quorum for a minute", 91..93),
    ("recover without a snapshot", 93..94),
    ("recover while etcd runs", 94..96),
    ("applies", 96..124),
    ("one of three is dead", 124..129),
    ("three voters", 129..139),
    ("forfeit", 139..141),
    ("leave", 141..142),
    ("after the leave", 142..145),
    ("removed", 145..150),
    ("removed", 289..290),
    ("role os:reader", 150..173),
    ("role os:reader", 174..184),
    ("role os:operator", 184..205),
    ("role os:operator", 206..216),
    ("role os:etcd:backup", 216..250),
    ("certificate ok", 250..251),
    ("certificate noeku", 251..252),
    ("certificate server", 252..253),
    ("certificate both", 253..254),
    ("certificate norole", 254..255),
    ("certificate exp", 255..256),
    ("certificate none", 256..260),
    ("certificate foreign", 260..263),
    ("three and a worker", 268..289),
    ("apid dies under streams", 290..292),
    ("apid restarts", 292..315),
    ("apply that reboots", 315..316),
    ("after an apply that reboots", 316..318),
    ("events over an apply that reboots", 318..319),
    ("reset", 321..322),
    ("events while resetting", 322..323),
    ("two voters", 323..325),
    ("one voter", 325..328),
    ("bootstrap right after apply", 328..330),
    ("bootstrap right after apply", 331..334),
    ("events over a reboot", 330..331),
    ("runtime down", 334..338),
    ("images", 338..342),
    ("no trustd", 344..356),
    ("events", 356..360),
    ("resources", 360..380),
    ("watch a restart", 380..382),
    ("writes", 382..387),
    ("parallel applies", 387..399),
    ("while rebooting", 399..410),
    ("events while rebooting", 410..411),
    ("config as stored", 411..412),
    ("apply over open streams", 412..413),
    ("open streams", 413..416),
];

/// Calls of a container, or of a client, that say nothing about a machine.
pub const EXCUSED: &[(Range<usize>, &str)] = &[
    (
        14..15,
        "the kernel log of a container is its host's: a million lines that Talos cannot read",
    ),
    (173..174, "the same"),
    (205..206, "the same"),
    (21..22, "the lab had no NTP server; a simulated machine has one"),
    (
        263..268,
        "a container refuses power control and META and has no EPHEMERAL partition",
    ),
    (319..321, "a container refuses power control"),
    (342..344, "a container refuses the lifecycle calls"),
];

pub fn calls(stage: &str) -> impl Iterator<Item = &'static Call> {
    let ranges: Vec<Range<usize>> = STAGES
        .iter()
        .filter(|(name, _)| *name == stage)
        .map(|(_, range)| range.clone())
        .collect();
    assert!(!ranges.is_empty(), "{stage}");
    tape::all()
        .iter()
        .filter(move |call| ranges.iter().any(|range| range.contains(&call.n)))
}
