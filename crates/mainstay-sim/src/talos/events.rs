//! The event stream of a node: a ring of the last thousand.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use jiff::Timestamp;
use mainstay_net::{Entropy, Wall};
use prost::Message;
use rand::Rng;
use talos_proto::machine;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

const RING: usize = 1000;
/// So many of the ring can be replayed; the rest is a margin for slow readers.
const REPLAY: usize = 990;

#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub position: u64,
    pub at: Timestamp,
    pub id: String,
    pub actor: String,
    name: &'static str,
    value: Vec<u8>,
}

impl Event {
    pub fn to_proto(&self) -> machine::Event {
        let data = prost_types::Any {
            type_url: format!("talos/runtime/machine.{}", self.name),
            value: self.value.clone(),
        };
        machine::Event {
            metadata: None,
            data: Some(data),
            id: self.id.clone(),
            actor_id: self.actor.clone(),
        }
    }
}

pub(crate) struct Events {
    inner: Mutex<Inner>,
    moved: watch::Sender<u64>,
    closed: CancellationToken,
    wall: Wall,
    machine: [u8; 5],
}

#[derive(Default)]
struct Inner {
    ring: VecDeque<Event>,
    position: u64,
    counter: u32,
    /// The last event that streams are told of, once they are closed.
    last: Option<u64>,
}

/// Which of the past events a stream begins with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Tail {
    New,
    Last(usize),
    All,
    After(String),
    Since(Timestamp),
}

impl Events {
    pub fn new(wall: Wall, entropy: &Entropy) -> Self {
        let mut machine = [0; 5];
        let mut rng = entropy.rng();
        rng.fill_bytes(&mut machine);
        let inner = Inner {
            counter: rng.next_u32() & 0x00ff_0000,
            ..Inner::default()
        };
        Self {
            inner: Mutex::new(inner),
            moved: watch::Sender::new(0),
            closed: CancellationToken::new(),
            wall,
            machine,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().expect("no publisher panics")
    }

    pub fn watch(&self) -> watch::Receiver<u64> {
        self.moved.subscribe()
    }

    /// Ends all streams, in good order: what was published before still reaches them.
    pub fn close(&self) {
        let mut inner = self.lock();
        let position = inner.position;
        inner.last.get_or_insert(position);
        self.closed.cancel();
    }

    pub fn closed(&self) -> CancellationToken {
        self.closed.clone()
    }

    pub fn publish(&self, name: &'static str, message: &impl Message) {
        self.publish_for(name, message, "");
    }

    pub fn publish_for(&self, name: &'static str, message: &impl Message, actor: &str) {
        let mut inner = self.lock();
        let at = self.wall.now();
        let id = self.xid(&mut inner, at);
        inner.position += 1;
        let event = Event {
            position: inner.position,
            at,
            id,
            actor: actor.to_owned(),
            name,
            value: message.encode_to_vec(),
        };
        inner.ring.push_back(event);
        if inner.ring.len() > RING {
            inner.ring.pop_front();
        }
        self.moved.send_replace(inner.position);
    }

    /// The id of the empty message that opens every stream.
    pub fn hello(&self) -> String {
        let at = self.wall.now();
        let mut inner = self.lock();
        self.xid(&mut inner, at)
    }

    /// Twelve bytes (seconds, machine, counter) in lower-case base32hex: sortable, twenty letters.
    fn xid(&self, inner: &mut Inner, at: Timestamp) -> String {
        inner.counter = inner.counter.wrapping_add(1);
        let seconds = u32::try_from(at.as_second()).unwrap_or(0).to_be_bytes();
        let counter = inner.counter.to_be_bytes();
        let bytes: Vec<u8> = seconds.iter().chain(&self.machine).chain(&counter[1..]).copied().collect();
        base32hex(&bytes)
    }

    /// The events a stream begins with, and the position it goes on from.
    pub fn begin(&self, tail: &Tail) -> (u64, Vec<Event>) {
        let inner = self.lock();
        let skip = match tail {
            Tail::New => inner.ring.len(),
            Tail::Last(count) => inner.ring.len().saturating_sub((*count).min(REPLAY)),
            Tail::All => inner.ring.len().saturating_sub(REPLAY),
            Tail::After(id) => inner.ring.partition_point(|event| event.id <= *id),
            Tail::Since(at) => inner.ring.partition_point(|event| event.at < *at),
        };
        (inner.position, inner.ring.iter().skip(skip).cloned().collect())
    }

    /// Events after a position; `None` when the ring has lost some of them.
    pub fn after(&self, position: u64) -> Option<Vec<Event>> {
        let inner = self.lock();
        let oldest = inner.ring.front().map_or(inner.position, |event| event.position - 1);
        let last = inner.last.unwrap_or(u64::MAX);
        let begin = inner.ring.partition_point(|event| event.position <= position);
        let wanted = inner.ring.range(begin..).take_while(|event| event.position <= last);
        (position >= oldest).then(|| wanted.cloned().collect())
    }
}

pub(crate) fn base32hex(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 32] = b"0123456789abcdefghijklmnopqrstuv";
    let mut out = String::new();
    let (mut bits, mut count) = (0u32, 0);
    for byte in bytes {
        bits = (bits << 8) | u32::from(*byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            out.push(char::from(LETTERS[(bits >> count) as usize & 31]));
        }
        bits &= (1 << count) - 1;
    }
    if count > 0 {
        out.push(char::from(LETTERS[(bits << (5 - count)) as usize & 31]));
    }
    out
}

/// Whether a text is an id at all.
pub(crate) fn is_xid(text: &str) -> bool {
    text.len() == 20 && text.chars().all(|c| c.is_ascii_digit() || ('a'..='v').contains(&c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn ids_sort_by_time_and_streams_begin_where_asked() {
        let wall = Wall::at("2026-01-01T00:00:00Z".parse().expect("a time"));
        let events = Events::new(wall, &Entropy::from_seed(1));
        for count in 0..1200i64 {
            events.publish("RestartEvent", &machine::RestartEvent { cmd: count });
            tokio::time::advance(std::time::Duration::from_millis(7)).await;
        }
        let (position, all) = events.begin(&Tail::All);
        assert_eq!((position, all.len()), (1200, REPLAY));
        assert!(all.windows(2).all(|pair| pair[0].id < pair[1].id));
        assert!(all.iter().all(|event| is_xid(&event.id)));
        let (_, after) = events.begin(&Tail::After(all[985].id.clone()));
        assert_eq!(after.len(), 4);
        assert_eq!(events.begin(&Tail::Last(3)).1.len(), 3);
        assert!(events.after(10).is_none(), "a slow reader is cut off");
    }
}
