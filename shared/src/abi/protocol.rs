//! What follows from a protocol's name: how arrival is seen, and what a route must keep whole.

use super::types::Protocol;
use crate::fifo::STEPS;

impl Protocol {
    /// Whether the lines of a slot carry its header and its flags, by which their arrival is seen. If so, what a network receives must be
    /// unpacked, and the header travels with it. Otherwise the bytes may be received in place in any order, and the header travels
    /// separately.
    #[inline]
    pub const fn is_flagged(self) -> bool {
        !self.is_counted()
    }

    /// Whether a counter says how many slots are full: somebody posts it when all bytes of a slot are there.
    #[inline]
    pub const fn is_counted(self) -> bool {
        matches!(self, Protocol::Simple)
    }

    /// Slots of a connection's buffer. Step `s` uses slot `s % slots`, and a producer is at most so many steps ahead of its consumer, under
    /// whichever protocol those steps were.
    ///
    /// LL128 has half of the others': a slot holds what a block sends in an operation of up to 4 MiB, so that all but the longest
    /// operations take one, and four let as many operations follow each other without a wait. Its slots are the longest between pairs of
    /// GPUs, and most of a communicator's memory.
    #[inline]
    pub const fn slots(self) -> usize {
        match self {
            Protocol::LL | Protocol::Simple => STEPS,
            Protocol::LL128 => STEPS / 2,
        }
    }

    /// Whether the 128 bytes of a line, which have one flag, must be seen together.
    pub const fn needs_whole_lines(self) -> bool {
        matches!(self, Protocol::LL128)
    }

    /// This, or the next one that takes no less of a slot's bytes, or else the last: of those that `has` allows. Nothing if it allows none.
    pub fn nearest(self, has: impl Fn(Protocol) -> bool) -> Option<Protocol> {
        let allowed = || Protocol::ALL.iter().copied().filter(|protocol| has(*protocol));
        let mut no_shorter = allowed().filter(|protocol| *protocol as u8 >= self as u8);
        no_shorter.next().or_else(|| allowed().next_back())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_wastes_no_more_if_it_can() {
        use Protocol::{LL, LL128, Simple};
        let nearest = |wanted: Protocol, has: &[Protocol]| wanted.nearest(|protocol| has.contains(&protocol));
        assert_eq!(nearest(LL128, &[LL, LL128, Simple]), Some(LL128));
        assert_eq!(nearest(LL128, &[LL, Simple]), Some(Simple));
        assert_eq!(nearest(Simple, &[LL, LL128]), Some(LL128));
        assert_eq!(nearest(LL, &[]), None);
        assert!(LL.is_flagged() && LL128.is_flagged() && Simple.is_counted());
    }
}
