//! Every collective, algorithm and protocol against a naive oracle.

use super::block::Shape;
use super::case::{Case, Way};
use super::world::World;
use oxccl_shared::abi::{DataType, Func, Protocol, RedOp};
use oxccl_shared::algo::{ring, symmetric};
use proptest::prelude::*;

/// Runs one case after another over the same connections, and checks each.
pub fn check_all(n: usize, shape: Shape, cases: &[Case]) {
    let mut world = World::new(n);
    for case in cases {
        check_one(&mut world, shape, case);
    }
}

pub fn check_one(world: &mut World, shape: Shape, case: &Case) {
    let n = world.n;
    // Line protocols have no poster.
    let shape = Shape { poster: shape.poster && case.protocol == Protocol::Simple, ..shape };
    let ran = case.run(world, shape);
    for (rank, (ended, buffers)) in ran.iter().enumerate() {
        assert!(ended.is_ok(), "rank {rank} of {n}: {ended:?}; {shape:?}; {case:?}");
        case.check(n, rank, buffers);
    }
    if case.func == Func::AllReduce {
        let result = |buffers| case.result(buffers);
        assert!(ran.iter().all(|(_, b)| result(b) == result(&ran[0].1)), "ranks differ: {case:?}");
    }
}

fn functions(way: Way) -> Vec<Func> {
    match way {
        Way::Ring => {
            vec![Func::AllReduce, Func::ReduceScatter, Func::AllGather, Func::Broadcast, Func::Reduce]
        }
        Way::OneHop | Way::Direct => vec![
            Func::AllReduce,
            Func::ReduceScatter,
            Func::AllGather,
            Func::Broadcast,
            Func::Reduce,
            Func::AllToAll,
            Func::Barrier,
        ],
        Way::Symmetric => symmetric::FUNCS.to_vec(),
        Way::LineHops => vec![Func::AllReduce, Func::ReduceScatter, Func::AllGather, Func::AllToAll],
        Way::Tree(_) | Way::Levels(_) | Way::DirectTwice | Way::TwoHops | Way::FanIn => vec![Func::AllReduce],
    }
}

fn protocols(way: Way) -> &'static [Protocol] {
    match way {
        Way::OneHop | Way::TwoHops | Way::FanIn => &[Protocol::LL],
        Way::LineHops => &[Protocol::LL128],
        // Blocks with a poster, whose last thread stores; connections serve the meetings alone.
        Way::Symmetric => &[Protocol::Simple],
        _ => Protocol::ALL,
    }
}

const WAYS: [Way; 10] = [
    Way::Ring,
    Way::Tree(0),
    Way::Tree(1),
    Way::Direct,
    Way::DirectTwice,
    Way::OneHop,
    Way::TwoHops,
    Way::LineHops,
    Way::FanIn,
    Way::Symmetric,
];

/// Every algorithm, protocol and function once, for one number of ranks and one shape.
fn every_way(n: usize, shape: Shape) {
    let mut cases = Vec::new();
    for way in WAYS {
        for (protocol, func) in
            protocols(way).iter().flat_map(|p| functions(way).into_iter().map(move |f| (*p, f)))
        {
            let slice = Case::new(func, way, protocol, 0).slice_elems();
            let counts = if func == Func::Barrier { vec![0] } else { vec![1, 3 * slice + 1] };
            for count in counts {
                let root = n / 2;
                let tag = cases.len() as u32 + 1;
                let op = [RedOp::Sum, RedOp::PreMulSum, RedOp::Avg][cases.len() % 3];
                let misaligned = [[0, 0], [4, 0], [0, 12]][cases.len() / 3 % 3];
                let in_place = cases.len() % 2 == 1;
                let case =
                    Case { root, tag, op, misaligned, in_place, ..Case::new(func, way, protocol, count) };
                let case = case.nearest_offered();
                if protocol == Protocol::Simple {
                    cases.push(Case { tiles: true, tag: tag + (1 << 16), ..case.clone() });
                }
                cases.push(case);
            }
        }
    }
    check_all(n, shape, &cases);
}

macro_rules! every_way {
    ($($name:ident = $n:literal x $workers:literal, $poster:literal;)+) => { $(
        #[test]
        #[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
        fn $name() {
            every_way($n, Shape { workers: $workers, poster: $poster });
        }
    )+ };
}

every_way! {
    one_rank = 1 x 3, true;
    two_ranks_of_one_thread = 2 x 1, false;
    two_ranks_of_one_worker_and_a_poster = 2 x 1, true;
    three_ranks_of_two_threads = 3 x 2, false;
    three_ranks_of_eight_threads = 3 x 8, false;
    two_ranks_of_sixteen_threads = 2 x 16, false;
    three_ranks_of_five_workers_and_a_poster = 3 x 5, true;
    four_ranks_of_two_workers_and_a_poster = 4 x 2, true;
    five_ranks_of_two_threads = 5 x 2, false;
    five_ranks_of_five_workers_and_a_poster = 5 x 5, true;
}

fn any_case() -> impl Strategy<Value = Case> {
    let what = (prop::sample::select(&WAYS[..]), any::<prop::sample::Index>(), any::<prop::sample::Index>());
    let data = (prop::sample::select(DataType::ALL), prop::sample::select(RedOp::ALL));
    let count = (0usize..5, 0usize..4, any::<bool>());
    let shape = (
        1usize..5,
        1usize..4,
        any::<prop::sample::Index>(),
        any::<(bool, bool, bool)>(),
        0usize..20,
        0usize..20,
    );
    (what, data, count, shape, 1u32..u32::MAX).prop_map(|(what, (dtype, op), count, shape, tag)| {
        let (way, protocol, func) = what;
        let (protocol, func) = (*protocol.get(protocols(way)), *func.get(&functions(way)));
        let (slices_per_chunk, grain_elems, root, (in_place, tiles, is_direct), src, dst) = shape;
        let mut case = Case {
            dtype,
            op,
            tag,
            tiles,
            is_direct,
            // More would deadlock, and nobody asks for more; nor for as many after exchanges whose last slots were not given back: rings of GPUs have
            // connections of their own.
            slices_per_chunk: slices_per_chunk.min(ring::slices_max(protocol.slots()) - 1),
            grain_elems,
            ..Case::new(func, way, protocol, 0)
        };
        let (slices, around, skips) = count;
        // Around whole numbers of slots: one less, equal, one more, or a few elements more.
        case.count = (slices * case.slice_elems() + [0, 1, 2, 7][around]).saturating_sub(1);
        case.skip = if skips { case.count / 3 } else { 0 };
        if func == Func::Barrier {
            (case.count, case.skip) = (0, 0);
        }
        (case.root, case.in_place, case.misaligned) = (root.index(60), in_place, [src, dst]);
        case.nearest_offered()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several operations in a row over the same connections: steps wrap the slots, credits run out.
    #[test]
    #[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
    fn any_operations_in_a_row(
        n in 1usize..6,
        workers in prop::sample::select(&[1usize, 2, 5, 8][..]),
        poster: bool,
        cases in prop::collection::vec(any_case(), 1..6),
    ) {
        let cases: Vec<_> = cases.into_iter().map(|case| Case { root: case.root % n, ..case }).collect();
        check_all(n, Shape { workers, poster }, &cases);
    }
}
