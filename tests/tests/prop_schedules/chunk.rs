//! Division of buffers: nothing lost, nothing twice, borders on grains.

use oxccl_shared::algo::chunk::{Loops, channel_part, chunks, grain_elems, slices};
use proptest::prelude::*;

/// Counts small enough to meet every edge and large enough to meet overflow.
fn any_count() -> impl Strategy<Value = usize> {
    prop_oneof![0usize..50, 0usize..100_000, 0usize..1 << 45]
}

proptest! {
    #[test]
    fn channel_parts_follow_each_other_and_balance(count in any_count(), nchannels in 1u32..65, grain in 1usize..5000) {
        let parts: Vec<_> = (0..nchannels).map(|c| channel_part(count, nchannels, c, grain)).collect();
        prop_assert_eq!(parts[0].start, 0);
        prop_assert_eq!(parts[parts.len() - 1].end, count);
        for pair in parts.windows(2) {
            prop_assert_eq!(pair[0].end, pair[1].start);
            prop_assert!(pair[0].end % grain == 0 || pair[0].end == count);
        }
        let grains = parts.iter().map(|part| part.len().div_ceil(grain));
        prop_assert!(grains.clone().max().unwrap() - grains.min().unwrap() <= 1, "unbalanced: {:?}", parts);
    }

    #[test]
    fn loops_cover_the_part_once(
        start in 0usize..1000, len in 0usize..50_000, nblocks in 1u32..20, grain in 1usize..65, grains in 1usize..100,
    ) {
        let (end, chunk_max) = (start + len, grain * grains);
        let mut covered = start;
        for one in Loops::new(start..end, nblocks, chunk_max, grain) {
            prop_assert_eq!(one.base, covered);
            prop_assert!(one.chunk <= chunk_max && one.chunk % grain == 0 && one.chunk > 0);
            let is_last = one.base + nblocks as usize * one.chunk >= end;
            prop_assert!(is_last || one.chunk == chunk_max, "only the last loop may shrink its chunk");
            prop_assert!(
                one.chunk == grain || (one.chunk - grain) * (nblocks as usize) < end - one.base,
                "a chunk one grain smaller would do"
            );
            for block in 0..nblocks {
                let range = one.block_range(block);
                prop_assert!(range.start <= range.end && range.len() <= one.chunk);
                prop_assert_eq!(range.start, covered);
                covered = range.end;
            }
            prop_assert!(one.block_range(nblocks + 3).end <= end);
        }
        prop_assert_eq!(covered, end);
    }

    #[test]
    fn slices_cover_the_range_once(start in 0usize..1000, len in 0usize..5000, max in 1usize..300) {
        let mut covered = start;
        for slice in slices(start..start + len, max) {
            prop_assert_eq!(slice.start, covered);
            prop_assert!(!slice.is_empty() && slice.len() <= max);
            prop_assert!(slice.len() == max || slice.end == start + len, "only the last slice may be short");
            covered = slice.end;
        }
        prop_assert_eq!(covered, start + len);
        prop_assert!(chunks(len, max).eq(slices(0..len, max)));
    }
}

#[test]
fn shapes_of_zero_end_instead_of_dividing_by_zero() {
    assert_eq!(channel_part(10, 0, 0, 0), 0..10);
    assert_eq!(Loops::new(0..3, 0, 0, 0).count(), 3);
    assert_eq!(slices(0..3, 0).count(), 3);
    assert_eq!(chunks(0, 8).count(), 0);
    assert_eq!(Loops::new(5..5, 4, 8, 1).count(), 0);
    assert_eq!(
        (grain_elems(512, 4), grain_elems(16, 8), grain_elems(4, 8), grain_elems(16, 0)),
        (128, 2, 1, 16)
    );
}

#[test]
fn the_end_of_the_address_space_does_not_overflow() {
    let part = channel_part(usize::MAX, 64, 63, 512);
    assert_eq!(part.end, usize::MAX);
    assert!(part.len() >= usize::MAX / 64 - 512);
    let last = Loops::new(usize::MAX - 10..usize::MAX, 3, 1 << 20, 8).last().unwrap();
    assert_eq!(last.block_range(2).end, usize::MAX);
    assert_eq!(slices(usize::MAX - 3..usize::MAX, 2).last(), Some(usize::MAX - 1..usize::MAX));
}
