//! A proxy's latest events, in a ring of fixed size, to explain why it makes no progress.

use super::counters::Counters;
use super::error::EndId;
use std::fmt;

/// Capacity of the ring.
const EVENTS: usize = 512;

/// An event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Event {
    /// An unused entry.
    None,
    /// The proxy took an order.
    Taken { ticket: u64, tag: u32 },
    /// A connection began a sub-operation.
    Began { end: u16, tag: u32, steps: u64 },
    /// Steps of a connection passed stages.
    Moved { end: u16, received: u32, transmitted: u32, done: u32 },
    /// A connection ended a sub-operation.
    Ended { end: u16, ticket: u64 },
    /// A connection failed.
    Failed { end: u16 },
    /// Milliseconds since the proxy began.
    Clock { ms: u64 },
}

/// The ring.
pub(super) struct Trace {
    events: Box<[(u64, Event); EVENTS]>,
    count: u64,
}

impl Trace {
    pub(super) fn new() -> Trace {
        Trace { events: Box::new([(0, Event::None); EVENTS]), count: 0 }
    }

    /// Records an event of a turn.
    #[inline]
    pub(super) fn note(&mut self, turn: u64, event: Event) {
        self.events[self.count as usize % EVENTS] = (turn, event);
        self.count += 1;
    }

    /// Records a connection's progress.
    #[inline]
    pub(super) fn note_moved(&mut self, turn: u64, end: u16, counters: &Counters) {
        let Counters { received, transmitted, done, .. } = *counters;
        let (received, transmitted, done) = (received as u32, transmitted as u32, done as u32);
        self.note(turn, Event::Moved { end, received, transmitted, done });
    }

    /// Number of events so far.
    pub(super) fn count(&self) -> u64 {
        self.count
    }

    /// Writes the recorded events, oldest first.
    pub(super) fn tell(&self, places: &dyn Fn(u16) -> EndId, f: &mut dyn fmt::Write) -> fmt::Result {
        let first = self.count.saturating_sub(EVENTS as u64);
        if first > 0 {
            writeln!(f, "  ({first} earlier events are forgotten)")?;
        }
        for (turn, event) in (first..self.count).map(|index| self.events[index as usize % EVENTS]) {
            write!(f, "  turn {turn}: ")?;
            match event {
                Event::None => writeln!(f, "nothing"),
                Event::Taken { ticket, tag } => writeln!(f, "order {ticket} taken: operation {tag:#010x}"),
                Event::Began { end, tag, steps } => {
                    writeln!(f, "{}: began {steps} steps of operation {tag:#010x}", places(end))
                }
                Event::Moved { end, received, transmitted, done } => writeln!(
                    f,
                    "{}: received {received}, transmitted {transmitted}, done {done}",
                    places(end)
                ),
                Event::Ended { end, ticket } => {
                    writeln!(f, "{}: its part of order {ticket} is over", places(end))
                }
                Event::Failed { end } => writeln!(f, "{}: failed", places(end)),
                Event::Clock { ms } => writeln!(f, "{ms} ms after the start"),
            }?;
        }
        Ok(())
    }
}
