//! What has gone over the connections with one peer: counted by the thread that moves it, read by any thread at any time.

use oxccl_shared::sync::{Sys, Word};

/// One peer's words, all of one writer: the thread that runs the rank's operations.
#[derive(Default)]
#[repr(align(128))]
pub struct Traffic {
    sent: Flow,
    received: Flow,
    /// Slots both ways when the present operation began.
    slots_before: Word<u64, Sys>,
    /// Operations before the present one in which a slot went either way.
    operations: Word<u64, Sys>,
    /// How long was waited for the peer, in ticks of the host's choice.
    waited: Word<u64, Sys>,
}

#[derive(Default)]
struct Flow {
    bytes: Word<u64, Sys>,
    slots: Word<u64, Sys>,
    /// Bytes when the present operation began.
    before: Word<u64, Sys>,
}

/// What a peer's words say.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counted {
    /// Bytes sent and received.
    pub bytes: [u64; 2],
    /// Slots sent and received.
    pub slots: [u64; 2],
    /// Bytes sent and received in the present operation, or the latest.
    pub now: [u64; 2],
    /// Operations in which a slot was sent or received.
    pub operations: u64,
    /// How long was waited for the peer, in ticks of the host's choice.
    pub waited: u64,
}

/// One writer: no other thread adds.
#[inline(always)]
fn add(word: &Word<u64, Sys>, more: u64) {
    word.store_relaxed(word.load_relaxed().wrapping_add(more));
}

impl Flow {
    #[inline(always)]
    fn count(&self, len_bytes: u32) {
        add(&self.bytes, u64::from(len_bytes));
        add(&self.slots, 1);
    }

    fn now(&self) -> u64 {
        // A reader beside the writer may see the newer mark with the older bytes.
        let before = self.before.load_relaxed();
        self.bytes.load_relaxed().saturating_sub(before)
    }
}

impl Traffic {
    /// A slot of so many bytes is sent.
    #[inline(always)]
    pub(crate) fn sent(&self, len_bytes: u32) {
        self.sent.count(len_bytes);
    }

    /// A slot of so many bytes has been received and used.
    #[inline(always)]
    pub(crate) fn received(&self, len_bytes: u32) {
        self.received.count(len_bytes);
    }

    /// An operation begins.
    #[inline]
    pub fn begin(&self) {
        let slots = self.slots();
        if slots != self.slots_before.load_relaxed() {
            add(&self.operations, 1);
            self.slots_before.store_relaxed(slots);
            self.sent.before.store_relaxed(self.sent.bytes.load_relaxed());
            self.received.before.store_relaxed(self.received.bytes.load_relaxed());
        }
    }

    /// The rank has waited for the peer for so long.
    #[inline]
    pub fn waited(&self, ticks: u64) {
        add(&self.waited, ticks);
    }

    #[inline]
    fn slots(&self) -> u64 {
        self.sent.slots.load_relaxed().wrapping_add(self.received.slots.load_relaxed())
    }

    /// What is counted by now. The numbers are of different moments if the writer goes on meanwhile.
    pub fn read(&self) -> Counted {
        let is_under_way = self.slots() != self.slots_before.load_relaxed();
        Counted {
            bytes: [self.sent.bytes.load_relaxed(), self.received.bytes.load_relaxed()],
            slots: [self.sent.slots.load_relaxed(), self.received.slots.load_relaxed()],
            now: [self.sent.now(), self.received.now()],
            operations: self.operations.load_relaxed() + u64::from(is_under_way),
            waited: self.waited.load_relaxed(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_counted_once_for_each_peer_that_has_a_part_in_it() {
        let traffic = Traffic::default();
        traffic.begin();
        assert_eq!(traffic.read(), Counted::default());
        traffic.sent(100);
        traffic.sent(20);
        traffic.received(7);
        let first = traffic.read();
        assert_eq!((first.bytes, first.slots, first.now, first.operations), ([120, 7], [2, 1], [120, 7], 1));
        traffic.begin();
        traffic.begin();
        assert_eq!((traffic.read().now, traffic.read().operations), ([0, 0], 1));
        // A barrier's slots are empty.
        traffic.received(0);
        assert_eq!((traffic.read().now, traffic.read().operations), ([0, 0], 2));
        traffic.begin();
        traffic.sent(5);
        traffic.waited(9);
        let last = traffic.read();
        assert_eq!((last.bytes, last.now, last.operations, last.waited), ([125, 7], [5, 0], 3, 9));
    }
}
