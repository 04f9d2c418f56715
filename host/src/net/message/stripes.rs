//! The division of a long message into stripes. Both ends compute the same.

use std::ops::Range;

/// Shorter pieces are not worth a stream: a system call and a wake-up cost as much as copying some tens of kilobytes.
const STRIPE_MIN_BYTES: usize = 64 << 10;
/// Stripes start on cache lines of the buffer.
const ALIGN_BYTES: usize = 64;

/// The stripes of one message over the data streams.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stripes {
    lanes: usize,
    number: u64,
    len_bytes: usize,
    stripe_bytes: usize,
}

impl Stripes {
    /// The stripes of a message with this number, over `lanes` > 0 data streams.
    pub(super) fn new(lanes: usize, number: u64, len_bytes: usize) -> Stripes {
        let stripe_bytes = len_bytes.div_ceil(lanes).next_multiple_of(ALIGN_BYTES).max(STRIPE_MIN_BYTES);
        Stripes { lanes, number, len_bytes, stripe_bytes }
    }

    /// Whether a message is worth striping.
    pub(super) fn pay(lanes: usize, len_bytes: usize) -> bool {
        lanes > 0 && len_bytes >= STRIPE_MIN_BYTES
    }

    /// The stripe of data stream `lane`, possibly empty. The first stripe rotates from message to message, so that
    /// messages of fewer stripes than streams use all in turn.
    pub(super) fn of_lane(&self, lane: usize) -> Range<usize> {
        let first = (self.number % self.lanes as u64) as usize;
        let start = (lane + self.lanes - first) % self.lanes * self.stripe_bytes;
        start.min(self.len_bytes)..(start + self.stripe_bytes).min(self.len_bytes)
    }

    /// Number of streams with a stripe.
    pub(super) fn count(&self) -> u32 {
        self.len_bytes.div_ceil(self.stripe_bytes) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn stripes_cover_the_message_once(lanes in 1usize..=64, number: u64, len_bytes in 0usize..20_000_000) {
            let stripes = Stripes::new(lanes, number, len_bytes);
            let mut ranges: Vec<_> =
                (0..lanes).map(|lane| stripes.of_lane(lane)).filter(|range| !range.is_empty()).collect();
            prop_assert_eq!(ranges.len(), stripes.count() as usize);
            ranges.sort_by_key(|range| range.start);
            let mut end = 0;
            for range in ranges {
                prop_assert_eq!(range.start, end);
                end = range.end;
            }
            prop_assert_eq!(end, len_bytes);
        }
    }

    #[test]
    fn messages_of_one_stripe_go_round() {
        let lane_of = |number| (0..4).find(|lane| !Stripes::new(4, number, 65_536).of_lane(*lane).is_empty());
        assert_eq!([0, 1, 2, 3, 4].map(lane_of), [Some(0), Some(1), Some(2), Some(3), Some(0)]);
    }
}
