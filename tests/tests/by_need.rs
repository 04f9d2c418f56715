//! Ranks on CPUs over networks connect as operations need it: any operation may be the first, of all ranks at once or of a pair, and
//! what it needs is all that a rank has.

use oxccl::{Communicator, Config, DataType, ReduceOp, TransportKind};
use oxccl_tests::case::{By, Case, FUNCS, Placement, ops};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::harness::{Settings, World};
use proptest::prelude::*;
use proptest::test_runner::{Config as Runs, TestRunner};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(240);

fn far(transport: TransportKind) -> Settings {
    Settings { transport: Some(transport), ..Settings::default() }
}

/// How many peers have memory of a rank, and its bytes.
fn taken(rank: &Communicator) -> (usize, usize) {
    let memory = rank.memory();
    let has = memory.peers.iter().filter(|peer| peer.inbound_bytes + peer.outbound_bytes > 0);
    (has.count(), memory.total_bytes())
}

/// Fibers of one thread have no thread to spare for a step of their own: what connects must not wait for what the others call.
#[test]
fn operations_in_any_order_find_or_make_what_they_need() {
    let _deadline = Deadline::start("operations_in_any_order", LIMIT);
    let case = (prop::sample::select(&FUNCS[..]), 0u32..4, 0u64..3000, any::<u64>());
    let cases = prop::collection::vec((case, any::<bool>()), 1..6);
    let transports = prop::sample::select(vec![TransportKind::Tcp, TransportKind::Net]);
    let runs = Runs { cases: 12, failure_persistence: None, ..Runs::default() };
    let strategy = (transports, 2u32..6, cases);
    let outcome = TestRunner::new(runs).run(&strategy, |(transport, nranks, cases)| {
        let mut world = World::new(nranks, far(transport));
        for ((func, root, count, seed), by_fibers) in cases {
            let by = if by_fibers { By::Fibers } else { By::Threads };
            let (dtype, op, placement) = (DataType::I32, ops(func)[0], Placement::Apart);
            let count = count as usize;
            let case = Case { func, dtype, op, root: root % nranks, count, placement, seed };
            doing(|| format!("{case:?} by {by:?} of {nranks} ranks over {transport}"));
            case.check(&mut world, by).map_err(TestCaseError::fail)?;
        }
        Ok(())
    });
    outcome.unwrap();
}

/// Of 64 ranks, which are more than go to all peers at once, a rank has the neighbours of its ring and its trees.
#[test]
fn a_rank_of_many_has_neighbours_alone() {
    let _deadline = Deadline::start("a_rank_of_many", LIMIT);
    const RANKS: u32 = 64;
    let mut world = World::with(RANKS, far(TransportKind::Tcp), |_, config| {
        config.buffer_bytes = Config::default().buffer_bytes;
    });
    let at_init = world.each(taken);
    assert!(at_init.iter().all(|(peers, _)| *peers == 2), "{at_init:?}");
    world.each(|rank| {
        let mut sum = [0u32; 3];
        rank.all_reduce(&[rank.rank(), 1, 7], &mut sum, ReduceOp::SUM).unwrap();
        assert_eq!(sum, [RANKS * (RANKS - 1) / 2, RANKS, 7 * RANKS]);
        rank.barrier().unwrap();
    });
    let after = world.each(taken);
    eprintln!("at init {:?}, after an all-reduce and a barrier at most {:?}", at_init[0], after.iter().max());
    assert!(after.iter().all(|(peers, bytes)| *peers <= 8 && *bytes <= 64 << 20), "{after:?}");
}

/// A barrier of ranks that have none of its own orders them: nobody leaves before the last has come.
#[test]
fn a_barrier_of_many_waits_for_the_last() {
    let _deadline = Deadline::start("a_barrier_of_many", LIMIT);
    let mut world = World::new(20, far(TransportKind::Tcp));
    let begun = Instant::now();
    let late = Duration::from_millis(300);
    let left = world.each(|rank| {
        if rank.rank() == 13 {
            std::thread::sleep(late);
        }
        rank.barrier().unwrap();
        begun.elapsed()
    });
    assert!(left.iter().all(|left| *left >= late), "{left:?}");
}

/// A send makes its pair's connection, one way, before the receiver thinks of it.
#[test]
fn a_message_makes_one_connection() {
    let _deadline = Deadline::start("a_message_makes_one_connection", LIMIT);
    for transport in [TransportKind::Tcp, TransportKind::Net] {
        let mut world = World::new(6, far(transport));
        let before = world.each(taken);
        world.each(|rank| match rank.rank() {
            0 => rank.send(&[4u64, 2], 3).unwrap(),
            3 => {
                std::thread::sleep(Duration::from_millis(100));
                let mut got = [0u64; 2];
                rank.recv(&mut got, 0).unwrap();
                assert_eq!(got, [4, 2]);
            }
            _ => {}
        });
        let after = world.each(taken);
        for (rank, (before, after)) in before.iter().zip(&after).enumerate() {
            let added = usize::from(rank == 0 || rank == 3);
            assert_eq!(after.0, before.0 + added, "rank {rank} over {transport}");
        }
    }
}

#[test]
fn all_at_init_is_all_there_ever_is() {
    let _deadline = Deadline::start("all_at_init", LIMIT);
    let mut world = World::with(4, far(TransportKind::Tcp), |_, config| config.runtime_connect = false);
    let before = world.each(taken);
    assert!(before.iter().all(|(peers, _)| *peers == 3));
    world.each(|rank| {
        let mut all = [0u8; 4];
        rank.all_to_all(&[rank.rank() as u8; 4], &mut all).unwrap();
        rank.barrier().unwrap();
    });
    assert_eq!(world.each(taken), before);
}

/// A rank that has left does not answer: the error names it, soon.
#[test]
fn a_rank_that_has_left_is_named_by_who_needs_it() {
    let _deadline = Deadline::start("a_rank_that_has_left", LIMIT);
    for transport in [TransportKind::Tcp, TransportKind::Net] {
        let mut world = World::new(5, far(transport));
        drop(world.ranks.pop());
        let begun = Instant::now();
        let errors = world.each(|rank| match rank.rank() {
            1 => rank.send(&[1u8; 9], 4).unwrap_err().to_string(),
            2 => rank.recv(&mut [0u8; 9], 4).unwrap_err().to_string(),
            _ => String::new(),
        });
        assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        assert!(errors[1].contains("rank 4") && errors[2].contains("rank 4"), "{errors:?}");
    }
}
