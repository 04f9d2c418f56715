//! The same with the least of everything, for miri: it sees a data race wherever two accesses are not ordered by a barrier or
//! a released word, whichever came first in this run.

use super::block::{Odd, Quitter, Shape};
use super::case::{Case, Way, run_each};
use super::collectives::check_one;
use super::messages::{self, Message};
use super::world::World;
use oxccl_shared::abi::{DataType, Func, Protocol, RedOp, Step};

/// Two workers and, under Simple, a poster; as few elements as give `slices` slices, the last of them ragged.
fn check(n: usize, func: Func, way: Way, protocol: Protocol, slices: usize) {
    let mut case = Case {
        dtype: DataType::U64,
        op: RedOp::Sum,
        misaligned: [8, 4],
        slices_per_chunk: 1,
        ..Case::new(func, way, protocol, 0)
    };
    case.count = (slices - 1) * case.slice_elems() + 3;
    let mut world = World::at(n, Step(6));
    let shape = Shape { workers: 2, poster: protocol == Protocol::Simple };
    check_one(&mut world, shape, &case);
    check_one(&mut world, shape, &Case { tag: 8, count: 1, ..case.clone() });
    if protocol == Protocol::Simple {
        check_one(&mut world, shape, &Case { tag: 9, tiles: true, ..case.clone() });
        check_one(&mut world, shape, &Case { tag: 10, tiles: true, count: 1, ..case });
    }
}

macro_rules! tiny {
    ($($name:ident = $n:literal ranks, $func:ident, $way:expr, $protocol:ident, $slices:literal slices;)+) => { $(
        #[test]
        fn $name() {
            check($n, Func::$func, $way, Protocol::$protocol, $slices);
        }
    )+ };
}

tiny! {
    ring_ll = 2 ranks, AllReduce, Way::Ring, LL, 2 slices;
    ring_ll128 = 2 ranks, AllReduce, Way::Ring, LL128, 2 slices;
    ring_simple = 2 ranks, AllReduce, Way::Ring, Simple, 2 slices;
    chain_simple = 2 ranks, Broadcast, Way::Ring, Simple, 3 slices;
    tree_simple = 3 ranks, AllReduce, Way::Tree(0), Simple, 1 slices;
    direct_simple = 4 ranks, AllReduce, Way::Direct, Simple, 1 slices;
    direct_ll = 3 ranks, AllReduce, Way::Direct, LL, 1 slices;
    direct_gather = 3 ranks, AllGather, Way::Direct, Simple, 1 slices;
    direct_twice = 3 ranks, AllReduce, Way::DirectTwice, Simple, 2 slices;
    levels_ll = 4 ranks, AllReduce, Way::Levels(2), LL, 1 slices;
    levels_ll128 = 4 ranks, AllReduce, Way::Levels(2), LL128, 1 slices;
    levels_simple = 4 ranks, AllReduce, Way::Levels(2), Simple, 2 slices;
    fan_in_ll = 3 ranks, AllReduce, Way::FanIn, LL, 1 slices;
    one_hop = 3 ranks, AllReduce, Way::OneHop, LL, 2 slices;
    two_hops = 3 ranks, AllReduce, Way::TwoHops, LL, 2 slices;
    line_hops = 3 ranks, AllReduce, Way::LineHops, LL128, 2 slices;
    line_hops_gather = 2 ranks, AllGather, Way::LineHops, LL128, 1 slices;
    one_hop_scatter = 2 ranks, ReduceScatter, Way::OneHop, LL, 1 slices;
    symmetric_gather = 2 ranks, AllGather, Way::Symmetric, Simple, 2 slices;
    symmetric_exchange = 2 ranks, AllToAll, Way::Symmetric, Simple, 1 slices;
}

/// The step at which LL writes slots to their ends, from the one before it on.
#[test]
fn cleaning() {
    for way in [Way::Ring, Way::OneHop] {
        let mut world = World::at(2, Step((1 << 30) - 1));
        let case = Case { dtype: DataType::U64, ..Case::new(Func::AllReduce, way, Protocol::LL, 1) };
        check_one(&mut world, Shape { workers: 2, poster: false }, &case);
        check_one(&mut world, Shape { workers: 2, poster: false }, &Case { tag: 8, ..case });
    }
}

#[test]
fn messages() {
    let (no, yes) = ([false; 2], [true; 2]);
    for (protocol, tiles, direct) in [
        (Protocol::LL, no, no),
        (Protocol::Simple, no, no),
        (Protocol::Simple, [true, false], no),
        (Protocol::Simple, no, yes),
        (Protocol::Simple, no, [true, false]),
    ] {
        let message =
            |from, to| Message { from, to, len_bytes: 260, part: 0..260, misaligned: [1, 2], tiles, direct };
        let shape = Shape { workers: 2, poster: protocol == Protocol::Simple };
        messages::check(&mut World::new(2), shape, protocol, 3, &[message(0, 1), message(1, 0)]);
    }
}

#[test]
fn giving_up() {
    for (protocol, tiles) in [(Protocol::LL, false), (Protocol::Simple, false), (Protocol::Simple, true)] {
        let case = Case { tiles, ..Case::new(Func::AllReduce, Way::Ring, protocol, 3) };
        let shape = Shape { workers: 2, poster: protocol == Protocol::Simple };
        let quitter = (1, Quitter { thread: 0, patience: 0 });
        run_each(
            &mut World::new(2),
            shape,
            &[case.clone(), case],
            Odd { quitter: Some(quitter), ..Odd::default() },
        );
    }
}
