//! What a connection carries from one operation to the next: steps, credits, lines of long ago.

use super::block::Shape;
use super::case::{Case, Way, run_in_a_row};
use super::collectives::check_one;
use super::world::{LAYOUT, World};
use oxccl_shared::abi::{DataType, Func, Protocol, RedOp, Step};
use oxccl_shared::fifo::STEPS;
use oxccl_shared::proto::ll;

/// A CPU keeps its connections from call to call. After a call over lines, whose slots nobody is told of, the next one that
/// publishes whole slots announced them at steps gone by, and its peer waited for ever.
#[test]
fn protocols_take_turns_on_connections_that_stay() {
    let protocols = [Protocol::LL, Protocol::Simple, Protocol::LL128, Protocol::Simple, Protocol::LL];
    for way in [Way::Ring, Way::Tree(0), Way::Direct] {
        let case = |(tag, protocol): (u32, Protocol)| Case {
            tag,
            ..Case::new(Func::AllReduce, way, protocol, 5 + tag as usize)
        };
        let mut cases: Vec<Case> = (1..).zip(protocols).map(case).collect();
        cases.push(case((6, Protocol::Simple)));
        cases.push(Case { way: Way::OneHop, ..case((7, Protocol::LL)) });
        cases.push(case((8, Protocol::Simple)));
        cases.push(Case { way: Way::LineHops, ..case((9, Protocol::LL128)) });
        cases.push(case((10, Protocol::Simple)));
        let mut world = World::new(3);
        for (rank, (ended, buffers)) in run_in_a_row(&mut world, &cases).iter().enumerate() {
            assert!(ended.is_ok(), "rank {rank}: {ended:?}");
            cases.iter().zip(buffers).for_each(|(case, buffers)| case.check(3, rank, buffers));
        }
    }
}

/// Every 2^30 steps the slots of LL are written to their ends, lest a line of 2^31 steps ago pass for a new one.
#[test]
fn lines_of_long_ago_are_overwritten_in_time() {
    const PERIOD: u64 = 1 << 30;
    for (way, workers, count) in
        [(Way::Ring, 3, 1), (Way::Ring, 1, 2), (Way::Direct, 5, 3), (Way::OneHop, 2, 1)]
    {
        let shape = Shape { workers, poster: false };
        let case = |count, tag| Case { tag, ..Case::new(Func::AllReduce, way, Protocol::LL, count) };
        let full = case(100, 1).slice_elems();
        // Long messages leave lines in every slot; long after, short ones pass the border.
        let mut world = World::new(2);
        (0..9).for_each(|i| check_one(&mut world, shape, &case(2 * full, 1 + i)));
        world.go_to(Step(PERIOD - 3));
        (0..12).for_each(|i| check_one(&mut world, shape, &case(count, 20 + i)));
        for (from, to) in [(0, 1), (1, 0)] {
            let lines = world.slots(from, to)[..STEPS * LAYOUT.ll_slot_bytes as usize].chunks(ll::LINE_BYTES);
            for (i, line) in lines.enumerate() {
                let slot = i / (LAYOUT.ll_slot_bytes as usize / ll::LINE_BYTES);
                let cleaned = ll::flag(Step(PERIOD + slot as u64));
                for half in [&line[4..8], &line[12..16]] {
                    let flag = u32::from_le_bytes(half.try_into().expect("four bytes"));
                    assert!(flag >= cleaned, "{way:?}: line {i} of {from} to {to} has flag {flag:#x}");
                }
            }
        }
        // Where flags begin again, long messages.
        world.go_to(Step(2 * PERIOD - 4));
        (0..9).for_each(|i| check_one(&mut world, shape, &case(2 * full, 40 + i)));
    }
}

/// More slices than slots, for every protocol, over one connection after another.
#[test]
#[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
fn steps_wrap_the_slots() {
    for protocol in Protocol::ALL {
        for (func, way) in [
            (Func::Broadcast, Way::Ring),
            (Func::Reduce, Way::Ring),
            (Func::AllReduce, Way::Ring),
            (Func::AllReduce, Way::Direct),
            (Func::AllGather, Way::Direct),
            (Func::Broadcast, Way::Direct),
            (Func::Reduce, Way::Direct),
            (Func::AllToAll, Way::Direct),
            (Func::AllReduce, Way::DirectTwice),
            (Func::AllReduce, Way::Levels(2)),
            (Func::AllReduce, Way::Tree(1)),
        ] {
            let mut case = Case {
                dtype: DataType::U8,
                op: RedOp::Avg,
                slices_per_chunk: 3,
                misaligned: [3, 5],
                ..Case::new(func, way, *protocol, 0)
            };
            case.count = 29 * case.slice_elems() + 13;
            let mut world = World::at(4, Step(5));
            check_one(&mut world, Shape { workers: 3, poster: true }, &case);
            check_one(&mut world, Shape { workers: 2, poster: false }, &Case { tag: 8, ..case });
        }
    }
}

/// A root that only sends, or ranks that do, run ahead of who receives until no slot is empty.
#[test]
#[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
fn one_hop_waits_for_credits() {
    for (func, way, protocol) in [
        (Func::Broadcast, Way::OneHop, Protocol::LL),
        (Func::Reduce, Way::OneHop, Protocol::LL),
        (Func::AllReduce, Way::OneHop, Protocol::LL),
        (Func::AllReduce, Way::LineHops, Protocol::LL128),
        (Func::AllToAll, Way::LineHops, Protocol::LL128),
    ] {
        let mut case = Case { dtype: DataType::U8, ..Case::new(func, way, protocol, 0) };
        case.count = 60 * case.slice_elems() + 13;
        let mut world = World::at(3, Step(5));
        check_one(&mut world, Shape { workers: 1, poster: false }, &case);
        check_one(&mut world, Shape { workers: 4, poster: false }, &Case { tag: 8, ..case });
    }
}

/// A root of a chain is up to eight slots ahead of who comes after it when it begins the next operation.
#[test]
#[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
fn an_exchange_waits_for_those_who_are_behind() {
    // Whoever comes after finds the slots full in eighths of the cases; which, depends on how the threads take turns.
    for slices in 48..72 {
        let mut chain = Case::new(Func::Broadcast, Way::Ring, Protocol::LL128, 0);
        (chain.count, chain.root) = (slices * chain.slice_elems(), slices % 3);
        let exchange = Case { tag: 8, ..Case::new(Func::AllReduce, Way::LineHops, Protocol::LL128, 50) };
        let cases = [chain, exchange];
        for (rank, (ended, buffers)) in run_in_a_row(&mut World::new(3), &cases).iter().enumerate() {
            assert!(ended.is_ok(), "rank {rank}: {ended:?}");
            cases.iter().zip(buffers).for_each(|(case, buffers)| case.check(3, rank, buffers));
        }
    }
}
