//! What can befall connections: drawn by chance, or ordered.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::time::Duration;

use rand::RngExt;

/// Chances and ranges for every new connection. Probabilities are from 0 to 1.
#[derive(Clone, Debug, PartialEq)]
pub struct NetFaults {
    /// One-way delay of everything that travels, drawn once per connection. Whole milliseconds: tokio's timers are no finer.
    pub latency: RangeInclusive<Duration>,
    pub refuse: f64,
    pub black_hole: f64,
    pub reset: f64,
    /// How long after it was opened an unlucky connection is reset.
    pub reset_after: RangeInclusive<Duration>,
}

impl NetFaults {
    pub const NONE: Self = Self {
        latency: Duration::ZERO..=Duration::ZERO,
        refuse: 0.0,
        black_hole: 0.0,
        reset: 0.0,
        reset_after: Duration::ZERO..=Duration::ZERO,
    };

    /// Delay and nothing else.
    pub fn latency(range: RangeInclusive<Duration>) -> Self {
        Self {
            latency: range,
            ..Self::NONE
        }
    }

    pub(super) fn is_none(&self) -> bool {
        *self == Self::NONE
    }

    /// Always draws the same count of numbers, so that changing one chance does not change the others' outcome.
    pub(super) fn draw(&self, rng: &mut impl rand::Rng) -> Fate {
        let (latency, refuse, black_hole) = (within(&self.latency, rng), self.refuse, self.black_hole);
        let mut happens = |chance: f64| rng.random::<f64>() < chance;
        let (refuse, black_hole, reset) = (happens(refuse), happens(black_hole), happens(self.reset));
        let reset_after = within(&self.reset_after, rng);
        Fate {
            latency,
            refuse,
            black_hole,
            reset_after: reset.then_some(reset_after),
        }
    }
}

fn within(range: &RangeInclusive<Duration>, rng: &mut impl rand::Rng) -> Duration {
    let (low, high) = (millis(*range.start()), millis(*range.end()));
    Duration::from_millis(rng.random_range(low..=high.max(low)))
}

fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// What was drawn for one connection.
#[derive(Clone, Debug)]
pub(super) struct Fate {
    pub(super) latency: Duration,
    pub(super) refuse: bool,
    pub(super) black_hole: bool,
    pub(super) reset_after: Option<Duration>,
}

impl Fate {
    pub(super) const CALM: Self = Self {
        latency: Duration::ZERO,
        refuse: false,
        black_hole: false,
        reset_after: None,
    };
}

/// Some machines, by address or by name (which is looked up when the order is given).
#[derive(Clone, Debug)]
pub enum Group {
    Addresses(BTreeSet<IpAddr>),
    Name(String),
}

impl From<IpAddr> for Group {
    fn from(address: IpAddr) -> Self {
        Self::Addresses([address].into())
    }
}

impl From<&[IpAddr]> for Group {
    fn from(addresses: &[IpAddr]) -> Self {
        Self::Addresses(addresses.iter().copied().collect())
    }
}

impl From<Vec<IpAddr>> for Group {
    fn from(addresses: Vec<IpAddr>) -> Self {
        Self::Addresses(addresses.into_iter().collect())
    }
}

impl From<BTreeSet<IpAddr>> for Group {
    fn from(addresses: BTreeSet<IpAddr>) -> Self {
        Self::Addresses(addresses)
    }
}

impl From<&str> for Group {
    fn from(name: &str) -> Self {
        Self::Name(name.to_owned())
    }
}

/// Directed partitions.
#[derive(Default)]
pub(super) struct Walls(Vec<(BTreeSet<IpAddr>, BTreeSet<IpAddr>)>);

impl Walls {
    pub(super) fn raise(&mut self, from: BTreeSet<IpAddr>, to: BTreeSet<IpAddr>) {
        self.0.push((from, to));
    }

    /// Opens every pair between the two sets, and only those: a wall that also stands elsewhere is split.
    pub(super) fn lower(&mut self, one: &BTreeSet<IpAddr>, other: &BTreeSet<IpAddr>) {
        self.open(one, other);
        self.open(other, one);
    }

    fn open(&mut self, from: &BTreeSet<IpAddr>, to: &BTreeSet<IpAddr>) {
        let mut left = Vec::new();
        for (wall_from, wall_to) in std::mem::take(&mut self.0) {
            let outside: BTreeSet<_> = wall_from.difference(from).copied().collect();
            let inside: BTreeSet<_> = wall_from.intersection(from).copied().collect();
            let beyond: BTreeSet<_> = wall_to.difference(to).copied().collect();
            left.push((outside, wall_to));
            left.push((inside, beyond));
        }
        left.retain(|(from, to)| !from.is_empty() && !to.is_empty());
        self.0 = left;
    }

    pub(super) fn stand(&self, from: IpAddr, to: IpAddr) -> bool {
        self.0
            .iter()
            .any(|(sources, targets)| sources.contains(&from) && targets.contains(&to))
    }
}
