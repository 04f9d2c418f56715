//! How far the consumer of a connection is, and so how its producer fills slots.
//!
//! A slot that has been read lies in its reader's cache. Two processors that share a cache pass its lines on fast. Where
//! they do not (another complex of a package, another package), each line that is stored to is first fetched from over there, some 15
//! at a time. Non-temporal stores fetch nothing: they take the line from whoever has it and leave the bytes in memory. Measured in
//! docs/measurements/2026-11-23-cpu-near-far.md: far apart they are three to five times as fast, near they take up to twice as long.
//!
//! Nobody tells us which it is: ranks may be unpinned, and virtual processors move. So a producer takes the time of some of its copies into
//! slots. A line takes 3 to 9 ns where stores go on as they should, and 25 to 40 where each waits for the other end. The round trip of a
//! single line does not tell: it is the same 300 ns between two cores of one large Xeon, where plain stores are the faster ones, as between
//! two complexes of an EPYC.
//!
//! The time ends when the lines have left the store buffer. That holds 4 KiB: without waiting for it messages of 2 to 16 KiB look near
//! (docs/measurements/2026-11-29-cpu-zen4.md).

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

/// How one slot is filled.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fill {
    /// Through the caches.
    Cached,
    /// By non-temporal stores.
    Streamed,
    /// Through the caches, and the time is taken.
    Timed,
}

/// Shortest slot whose filling is worth the choice. Far apart, non-temporal stores win from here on.
pub const LONG_SLOT_BYTES: usize = 2 << 10;

#[cfg(all(feature = "cpu", target_arch = "x86_64", not(miri)))]
pub(crate) use measured::Distance;
#[cfg(not(all(feature = "cpu", target_arch = "x86_64", not(miri))))]
pub(crate) use unknown::Distance;

#[cfg(all(feature = "cpu", target_arch = "x86_64", not(miri)))]
mod measured {
    use super::{Fill, LONG_SLOT_BYTES, SlotStores};
    use core::arch::x86_64::{_mm_lfence, _mm_mfence, _rdtsc};
    use core::cell::Cell;

    /// A line that takes longer to copy into a slot goes far. Cycles of the time-stamp counter, which counts 2 to 4 in a nanosecond. On a Zen 4
    /// near ones take 13 to 26. Far ones take 65 to 75, and 33 to 45 where slots are so long that the reader's caches have lost them: there
    /// non-temporal stores are four times as fast.
    const FAR_LINE_TICKS: u64 = 30;
    const LINE_BYTES: u64 = 64;
    /// Ticks that the last lines may take more to leave the store buffer: a round trip between two processors of a large Xeon.
    const DRAIN_TICKS: u64 = 512;
    /// A slot of so many bytes and more counts for several: waiting for the store buffer costs it little.
    const CHEAP_BYTES: usize = 8 << 10;
    const CHEAP_COUNTS: u32 = 4;
    /// One in so many slots of a near consumer is timed.
    const NEAR_PERIOD: u32 = 64;
    /// One in so many slots of a far consumer goes through the caches, and is timed. It takes some four times as long as the others.
    const FAR_PERIOD: u32 = 2048;
    /// Slots of so many bytes are not timed at first: they have then been everywhere in eight of 128 KiB (`proto::simple::spread_offset`). The
    /// first stores to a page fault, and a near consumer looked far for a thousand messages.
    const UNTOUCHED_BYTES: usize = 1 << 20;
    /// So many slots outweigh all that came before.
    const MEMORY: i8 = 4;

    /// What the producer has seen so far.
    #[derive(Default)]
    pub(crate) struct Distance {
        stores: Cell<SlotStores>,
        /// Slow slots less fast ones, within [`MEMORY`]. An interrupt makes a fast one look slow, now and then.
        balance: Cell<i8>,
        /// Slots since one was timed, as they count.
        untimed: Cell<u32>,
        /// Bytes of slots of lengths up to [`Self::reached`], of the first [`UNTOUCHED_BYTES`].
        touched: Cell<usize>,
        /// A power of two. Longer ones reach pages that no slot has touched yet.
        reached: Cell<usize>,
    }

    impl Distance {
        /// How the next slot takes so many bytes best. Some are timed, if they may be: then [`Self::time`] fills it.
        #[inline(always)]
        pub(crate) fn fill(&self, len_bytes: usize, may_time: bool) -> Fill {
            if len_bytes < LONG_SLOT_BYTES {
                return Fill::Cached;
            }
            let (usual, period) = match self.stores.get() {
                SlotStores::Cached => return Fill::Cached,
                SlotStores::Streamed => return Fill::Streamed,
                SlotStores::Measured if self.balance.get() > 0 => (Fill::Streamed, FAR_PERIOD),
                SlotStores::Measured => (Fill::Cached, NEAR_PERIOD),
            };
            if may_time && self.is_due(len_bytes, period) { Fill::Timed } else { usual }
        }

        /// Counts a slot, and says whether its time is to be taken.
        fn is_due(&self, len_bytes: usize, period: u32) -> bool {
            if len_bytes > self.reached.get() {
                self.reached.set(len_bytes.next_power_of_two());
                self.touched.set(0);
            }
            if self.touched.get() < UNTOUCHED_BYTES {
                self.touched.set(self.touched.get() + len_bytes.max(CHEAP_BYTES));
                return false;
            }
            let untimed = self.untimed.get();
            let counts = if len_bytes < CHEAP_BYTES { 1 } else { CHEAP_COUNTS };
            self.untimed.set(untimed.saturating_add(counts));
            untimed >= period
        }

        pub(crate) fn set(&self, stores: SlotStores) {
            self.stores.set(stores);
        }

        /// Fills a slot through the caches and takes the time until its lines have left the store buffer, which holds 4 KiB. What is in there
        /// before leaves it first.
        #[inline(never)]
        pub(crate) fn time(&self, len_bytes: usize, fill: impl FnOnce()) {
            // SAFETY: every x86-64 CPU has it.
            unsafe { _mm_mfence() };
            let began = now();
            fill();
            // SAFETY: as above.
            unsafe { _mm_mfence() };
            self.note(is_slow(now().wrapping_sub(began), len_bytes));
        }

        /// A slot was slow, or fast.
        fn note(&self, is_slow: bool) {
            let vote = if is_slow { 1 } else { -1 };
            self.balance.set((self.balance.get() + vote).clamp(-MEMORY, MEMORY));
            self.untimed.set(0);
        }
    }

    /// Whether so many ticks are long for so many bytes.
    fn is_slow(ticks: u64, len_bytes: usize) -> bool {
        ticks > len_bytes as u64 / LINE_BYTES * FAR_LINE_TICKS + DRAIN_TICKS
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

        #[test]
        fn the_latest_slots_decide_and_a_stray_one_does_not() {
            let distance = Distance::default();
            assert_eq!(distance.fill(SLOT, false), Fill::Cached, "near until measured");
            distance.note(true);
            assert_eq!(distance.fill(LONG_SLOT_BYTES, false), Fill::Streamed);
            assert_eq!(distance.fill(LONG_SLOT_BYTES - 1, false), Fill::Cached);
            (0..100).for_each(|_| distance.note(false));
            assert_eq!(distance.fill(SLOT, false), Fill::Cached);
            distance.note(true);
            assert_eq!(distance.fill(SLOT, false), Fill::Cached, "an interrupt");
            (0..MEMORY).for_each(|_| distance.note(true));
            assert_eq!(distance.fill(SLOT, false), Fill::Streamed, "the rank has moved");
        }

        #[test]
        fn some_slots_are_timed_of_near_consumers_and_fewer_of_far_ones() {
            for (len_bytes, counts) in [(SLOT, CHEAP_COUNTS), (LONG_SLOT_BYTES, 1)] {
                let (near, far) = (NEAR_PERIOD / counts, FAR_PERIOD / counts);
                let distance = Distance::default();
                let timed = |slots: u32, are_slow: bool| {
                    let timed = (0..slots).filter(|_| distance.fill(len_bytes, true) == Fill::Timed);
                    timed.map(|_| distance.note(are_slow)).count()
                };
                let untouched = (UNTOUCHED_BYTES / len_bytes.max(CHEAP_BYTES)) as u32;
                assert_eq!(timed(untouched, false), 0, "their pages may be touched for the first time");
                assert_eq!(timed(9 * near + 9, false), 9);
                (0..9).for_each(|_| distance.note(true));
                assert!(
                    (0..2 * far).all(|_| distance.fill(len_bytes, false) == Fill::Streamed),
                    "what may not be timed is not"
                );
                assert_eq!(timed(4 * far + 4, true), 4);
                assert!((0..2 * far).all(|_| distance.fill(LONG_SLOT_BYTES - 1, true) == Fill::Cached));
                (0..9).for_each(|_| distance.note(false));
                assert_eq!(timed(2 * near + 2, false), 2);
                let longer = |_: u32| distance.fill(2 * len_bytes, true);
                let untouched = (UNTOUCHED_BYTES / (2 * len_bytes).max(CHEAP_BYTES)) as u32;
                assert!((0..untouched).map(longer).all(|fill| fill == Fill::Cached), "these reach further");
                assert!((0..=NEAR_PERIOD).map(longer).any(|fill| fill == Fill::Timed));
            }
        }

        #[test]
        fn lines_and_the_last_ones_have_their_ticks() {
            for (len_bytes, ticks) in [(2 << 10, 1472), (8 << 10, 4352), (128 << 10, 61_952)] {
                assert!(!is_slow(ticks, len_bytes) && is_slow(ticks + 1, len_bytes), "{len_bytes} bytes");
            }
        }

        #[test]
        fn what_takes_long_is_found_far() {
            for len_bytes in [LONG_SLOT_BYTES, SLOT] {
                let distance = Distance::default();
                distance.time(len_bytes, || std::thread::sleep(std::time::Duration::from_millis(1)));
                assert_eq!(distance.fill(SLOT, false), Fill::Streamed);
                // One that an interrupt lengthened would be taken for slow.
                (0..9).for_each(|_| distance.time(len_bytes, || ()));
                assert_eq!(distance.fill(SLOT, false), Fill::Cached);
            }
        }

        #[test]
        fn the_user_has_the_last_word() {
            let distance = Distance::default();
            distance.set(SlotStores::Streamed);
            assert!((0..9 * FAR_PERIOD).all(|_| distance.fill(LONG_SLOT_BYTES, true) == Fill::Streamed));
            distance.note(true);
            distance.set(SlotStores::Cached);
            assert!((0..9 * FAR_PERIOD).all(|_| distance.fill(SLOT, true) == Fill::Cached));
        }
    }
}

#[cfg(not(all(feature = "cpu", target_arch = "x86_64", not(miri))))]
mod unknown {
    use super::{Fill, SlotStores};

    /// Nothing: there is one way to store.
    #[derive(Default)]
    pub(crate) struct Distance;

    impl Distance {
        #[inline(always)]
        pub(crate) fn fill(&self, _len_bytes: usize, _may_time: bool) -> Fill {
            Fill::Cached
        }

        #[allow(dead_code, reason = "kernels of GPUs have nobody who asks for it")]
        pub(crate) fn set(&self, _stores: SlotStores) {}

        #[allow(dead_code, reason = "as `set`")]
        #[inline(always)]
        pub(crate) fn time(&self, _len_bytes: usize, fill: impl FnOnce()) {
            fill();
        }
    }
}
