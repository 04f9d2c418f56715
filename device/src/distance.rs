//! How far the consumer of a connection is, and so how its producer fills slots.
//!
//! A slot that has been read lies in its reader's cache. Two processors that share a cache pass its lines on fast. Where
//! they do not (another complex of a package, another package), each line that is stored to is first fetched from over there, some 15
//! at a time. Non-temporal stores fetch nothing: they take the line from whoever has it and leave the bytes in memory. Measured in
//! docs/measurements/2026-11-23-cpu-near-far.md: far apart they are three to five times as fast, near they take up to twice as long.
//!
//! Nobody tells us which it is: ranks may be unpinned, and virtual processors move. So a producer takes the time of some of its copies into
//! slots. A line takes 3 to 7 ns where stores go on as they should, and 25 to 40 where each waits for the other end. The round trip of a
//! single line does not tell: it is the same 300 ns between two cores of one large Xeon, where plain stores are the faster ones, as between
//! two complexes of an EPYC.

/// How slots of [`crate::prims::Simple`] in memory are filled (`OXCCL_SLOT_STORES`). Only x86-64 has non-temporal stores; elsewhere
/// all of these are [`SlotStores::Cached`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SlotStores {
    /// By non-temporal stores where the consumer is found to be far.
    #[default]
    Measured,
    /// Through the caches.
    Cached,
    /// Long ones by non-temporal stores.
    Streamed,
}

impl SlotStores {
    /// Its name in `OXCCL_SLOT_STORES`.
    pub fn name(self) -> &'static str {
        match self {
            SlotStores::Measured => "measured",
            SlotStores::Cached => "cached",
            SlotStores::Streamed => "streamed",
        }
    }

    /// The one of this name.
    pub fn from_name(name: &str) -> Option<SlotStores> {
        [SlotStores::Measured, SlotStores::Cached, SlotStores::Streamed]
            .into_iter()
            .find(|s| s.name() == name)
    }
}

/// Shortest slot whose filling is worth the choice. Far apart, non-temporal stores win from here on.
pub const LONG_SLOT_BYTES: usize = 2 << 10;

#[cfg(all(feature = "cpu", target_arch = "x86_64", not(miri)))]
pub(crate) use measured::Distance;
#[cfg(not(all(feature = "cpu", target_arch = "x86_64", not(miri))))]
pub(crate) use unknown::Distance;

#[cfg(all(feature = "cpu", target_arch = "x86_64", not(miri)))]
mod measured {
    use super::{LONG_SLOT_BYTES, SlotStores};
    use core::arch::x86_64::{_mm_lfence, _rdtsc};
    use core::cell::Cell;

    /// A line that takes longer to copy into a slot goes far. Cycles of the time-stamp counter, which counts 2 to 4 in a nanosecond.
    const FAR_LINE_TICKS: u64 = 40;
    const LINE_BYTES: u64 = 64;
    /// Shortest slot of which the time is taken. Of shorter ones most lines are still in the store buffer when the copy returns.
    const TIMED_BYTES: usize = 8 << 10;
    /// One in so many slots of a near consumer is timed.
    const NEAR_PERIOD: u32 = 8;
    /// One in so many slots of a far consumer goes through the caches, and is timed. It takes some four times as long as the others.
    const FAR_PERIOD: u32 = 256;
    /// So many slots are not timed at first: messages of [`TIMED_BYTES`] have then been everywhere in slots of 128 KiB
    /// (`proto::simple::spread_offset`). The first stores to a page fault, and a near consumer looked far for a thousand messages.
    const UNTOUCHED: u32 = 128;
    /// So many slots outweigh all that came before.
    const MEMORY: i8 = 4;

    /// What the producer has seen so far.
    #[derive(Default)]
    pub(crate) struct Distance {
        stores: Cell<SlotStores>,
        /// Slow slots less fast ones, within [`MEMORY`]. An interrupt makes a fast one look slow, now and then.
        balance: Cell<i8>,
        /// Slots since one was timed.
        untimed: Cell<u32>,
        /// Slots that could have been timed, of the first [`UNTOUCHED`].
        touched: Cell<u32>,
    }

    impl Distance {
        /// Whether a slot takes so many bytes best by non-temporal stores. Of far consumers some go through the caches if they are timed.
        #[inline(always)]
        pub(crate) fn streams(&self, len_bytes: usize, is_timed: bool) -> bool {
            let streams = match self.stores.get() {
                SlotStores::Measured => self.balance.get() > 0 && !(is_timed && self.is_probe(len_bytes)),
                SlotStores::Cached => false,
                SlotStores::Streamed => true,
            };
            streams && len_bytes >= LONG_SLOT_BYTES
        }

        /// Whether a slot of a far consumer is one that is timed.
        fn is_probe(&self, len_bytes: usize) -> bool {
            if len_bytes < TIMED_BYTES {
                return false;
            }
            let untimed = self.untimed.get();
            self.untimed.set(untimed.saturating_add(1));
            untimed >= FAR_PERIOD
        }

        pub(crate) fn set(&self, stores: SlotStores) {
            self.stores.set(stores);
        }

        /// The time, before a slot is filled through the caches, if it is taken.
        #[inline]
        pub(crate) fn filling(&self, len_bytes: usize) -> Option<u64> {
            if len_bytes < TIMED_BYTES || self.stores.get() != SlotStores::Measured {
                return None;
            }
            if self.touched.get() < UNTOUCHED {
                self.touched.set(self.touched.get() + 1);
                return None;
            }
            let untimed = self.untimed.get();
            self.untimed.set(untimed.saturating_add(1));
            (untimed >= NEAR_PERIOD).then(now)
        }

        /// It is filled.
        #[inline]
        pub(crate) fn filled(&self, began: u64, len_bytes: usize) {
            self.note(now().wrapping_sub(began), len_bytes as u64 / LINE_BYTES);
        }

        pub(super) fn note(&self, ticks: u64, lines: u64) {
            let vote = if ticks > lines * FAR_LINE_TICKS { 1 } else { -1 };
            self.balance.set((self.balance.get() + vote).clamp(-MEMORY, MEMORY));
            self.untimed.set(0);
        }
    }

    /// The time-stamp counter, between what comes before it in the program and what comes after.
    #[inline(always)]
    fn now() -> u64 {
        // SAFETY: every x86-64 CPU has both. LFENCE waits until all earlier instructions are done, and no later one begins before it is.
        unsafe { _mm_lfence() };
        // SAFETY: as above.
        let now = unsafe { _rdtsc() };
        // SAFETY: as above.
        unsafe { _mm_lfence() };
        now
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        const SLOT: usize = 64 << 10;
        const LINES: u64 = SLOT as u64 / LINE_BYTES;
        const SLOW: u64 = LINES * FAR_LINE_TICKS + 1;

        #[test]
        fn the_latest_slots_decide_and_a_stray_one_does_not() {
            let distance = Distance::default();
            assert!(!distance.streams(SLOT, true), "near until measured");
            distance.note(SLOW, LINES);
            assert!(distance.streams(LONG_SLOT_BYTES, true) && !distance.streams(LONG_SLOT_BYTES - 1, true));
            (0..100).for_each(|_| distance.note(SLOW - 1, LINES));
            assert!(!distance.streams(SLOT, true));
            distance.note(1 << 30, LINES);
            assert!(!distance.streams(SLOT, true), "an interrupt");
            (0..MEMORY).for_each(|_| distance.note(SLOW, LINES));
            assert!(distance.streams(SLOT, true), "the rank has moved");
        }

        #[test]
        fn some_slots_are_timed_of_near_consumers_and_fewer_of_far_ones() {
            let distance = Distance::default();
            let timed = |slots: u32| {
                let through_caches = (0..slots).filter(|_| !distance.streams(SLOT, true));
                let timed = through_caches.filter_map(|_| distance.filling(SLOT));
                timed.map(|_| distance.note(if distance.balance.get() > 0 { SLOW } else { 0 }, LINES)).count()
            };
            assert_eq!(timed(UNTOUCHED), 0, "their pages may be touched for the first time");
            assert_eq!(timed(9 * NEAR_PERIOD + 9), 9);
            assert!(distance.filling(TIMED_BYTES - 1).is_none());
            (0..9).for_each(|_| distance.note(SLOW, LINES));
            assert!(
                (0..2 * FAR_PERIOD).all(|_| distance.streams(SLOT, false)),
                "what cannot be timed is no probe"
            );
            assert_eq!(timed(4 * FAR_PERIOD + 4), 4);
        }

        #[test]
        fn the_user_has_the_last_word() {
            let distance = Distance::default();
            distance.set(SlotStores::Streamed);
            assert!(distance.streams(LONG_SLOT_BYTES, true));
            distance.note(1 << 30, 1);
            distance.set(SlotStores::Cached);
            assert!(!distance.streams(SLOT, true) && distance.filling(SLOT).is_none());
        }
    }
}

#[cfg(not(all(feature = "cpu", target_arch = "x86_64", not(miri))))]
mod unknown {
    use super::SlotStores;

    /// Nothing: there is one way to store.
    #[derive(Default)]
    pub(crate) struct Distance;

    impl Distance {
        #[inline(always)]
        pub(crate) fn streams(&self, _len_bytes: usize, _is_timed: bool) -> bool {
            false
        }

        #[allow(dead_code, reason = "kernels of GPUs have nobody who asks for it")]
        pub(crate) fn set(&self, _stores: SlotStores) {}

        #[inline(always)]
        pub(crate) fn filling(&self, _len_bytes: usize) -> Option<u64> {
            None
        }

        #[inline(always)]
        pub(crate) fn filled(&self, _began: u64, _len_bytes: usize) {}
    }
}
