//! All-gather-v and reduce-scatter-v: blocks of every length, also none, in any order and with gaps.

use oxccl::{ArgumentError, Blocks, BlocksError, Error, Fault, ReduceOp, TransportKind};
use oxccl_shared::abi::Rank;
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(200);
/// What lies between blocks and stays as it is.
const GAP: i64 = -7;

/// Counts and displacements: rank r's block has `r * r * scale` elements, blocks lie in reverse order, with a gap before each.
fn layout(nranks: u32, scale: usize) -> (Vec<usize>, Vec<usize>, usize) {
    let counts: Vec<usize> = (0..nranks as usize).map(|rank| rank * rank * scale).collect();
    let mut displs = vec![0; counts.len()];
    let mut at = 0;
    for rank in (0..counts.len()).rev() {
        at += 3;
        displs[rank] = at;
        at += counts[rank];
    }
    (counts, displs, at + 2)
}

fn element(rank: usize, i: usize) -> i64 {
    (rank * 1_000_003 + i) as i64
}

#[test]
fn every_rank_gets_every_block_where_it_belongs() {
    let _deadline = Deadline::start("every_rank_gets_every_block_where_it_belongs", LIMIT);
    for (nranks, scale, transport) in [
        (1, 5, None),
        (2, 1, None),
        (3, 700, None),
        (4, 3000, Some(TransportKind::Tcp)),
        (5, 1, Some(TransportKind::Shm)),
    ] {
        let (counts, displs, len) = layout(nranks, scale);
        let blocks = Blocks { counts: &counts, displs: &displs };
        World::new(nranks, Settings { transport, ..Settings::default() }).each(|comm| {
            let me = comm.rank() as usize;
            let mine: Vec<i64> = (0..counts[me]).map(|i| element(me, i)).collect();
            let mut expected = vec![GAP; len];
            for rank in 0..counts.len() {
                (0..counts[rank]).for_each(|i| expected[displs[rank] + i] = element(rank, i));
            }
            let mut all = vec![GAP; len];
            comm.all_gather_v(&mine, &mut all, blocks).unwrap();
            assert_eq!(all, expected);
            let mut all = vec![GAP; len];
            oxccl::group(|group| group.all_gather_v(comm, &mine, &mut all, blocks)).unwrap();
            assert_eq!(all, expected);
        });
    }
}

#[test]
fn every_rank_gets_its_block_of_the_sum() {
    let _deadline = Deadline::start("every_rank_gets_its_block_of_the_sum", LIMIT);
    for (nranks, scale, transport) in
        [(1, 5, None), (2, 1, None), (3, 700, None), (4, 3000, Some(TransportKind::Tcp))]
    {
        let (counts, displs, len) = layout(nranks, scale);
        let blocks = Blocks { counts: &counts, displs: &displs };
        World::new(nranks, Settings { transport, ..Settings::default() }).each(|comm| {
            let me = comm.rank() as usize;
            let send: Vec<i64> = (0..len).map(|i| element(me, i)).collect();
            let sum = |i: usize| (0..nranks as usize).map(|rank| element(rank, displs[me] + i)).sum::<i64>();
            let expected: Vec<i64> = (0..counts[me]).map(sum).collect();
            let mut mine = vec![GAP; counts[me]];
            comm.reduce_scatter_v(&send, &mut mine, blocks, ReduceOp::SUM).unwrap();
            assert_eq!(mine, expected);
            let mut mine = vec![GAP; counts[me]];
            oxccl::group(|group| group.reduce_scatter_v(comm, &send, &mut mine, blocks, ReduceOp::SUM))
                .unwrap();
            assert_eq!(mine, expected);
        });
    }
}

#[test]
fn blocks_that_do_not_fit_are_refused_and_leave_the_communicator_usable() {
    let _deadline =
        Deadline::start("blocks_that_do_not_fit_are_refused_and_leave_the_communicator_usable", LIMIT);
    World::new(2, Settings::default()).each(|comm| {
        let refused = |mine: usize, counts: &[usize], displs: &[usize]| {
            let (send, mut all, blocks) = (vec![0u8; mine], [0u8; 4], Blocks { counts, displs });
            let gathered = comm.all_gather_v(&send, &mut all, blocks).unwrap_err();
            let (all, mut mine) = ([0u8; 4], send);
            let scattered = comm.reduce_scatter_v(&all, &mut mine, blocks, ReduceOp::SUM).unwrap_err();
            [gathered, scattered].map(|error| match error {
                Error::Argument(ArgumentError::Blocks(why)) => why,
                other => panic!("{other}"),
            })
        };
        let all = |found: [BlocksError; 2], is: fn(&BlocksError) -> bool| {
            assert!(found.iter().all(is), "{found:?}")
        };
        all(refused(2, &[2], &[0]), |why| matches!(why, BlocksError::Ranks { counts: 1, .. }));
        all(refused(2, &[2, 2], &[0, 3]), |why| matches!(why, BlocksError::Range { rank: Rank(1), .. }));
        all(refused(2, &[2, 2], &[0, 1]), |why| matches!(why, BlocksError::Overlap { .. }));
        all(refused(1, &[2, 2], &[0, 2]), |why| matches!(why, BlocksError::Own { .. }));
        comm.barrier().unwrap();
    });
}

#[test]
fn ranks_that_disagree_on_a_block_are_told() {
    let _deadline = Deadline::start("ranks_that_disagree_on_a_block_are_told", LIMIT);
    let faults = World::new(2, Settings::default()).each(|comm| {
        let counts = if comm.rank() == 0 { [3, 1] } else { [2, 1] };
        let mut mine = vec![0i32; counts[comm.rank() as usize]];
        let blocks = Blocks { counts: &counts, displs: &[0, 4] };
        comm.reduce_scatter_v(&[1i32; 5], &mut mine, blocks, ReduceOp::SUM).expect_err("3 is not 2").fault()
    });
    assert!(faults.iter().any(|fault| matches!(fault, Some(Fault::Mismatch { .. }))), "{faults:?}");
}
