//! Ranks that do nothing, leave or abort.

use oxccl::{Error, Fault, Rank, ReduceOp, TransportKind};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World, on_threads};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const BOUND: Duration = Duration::from_secs(5);

#[test]
fn a_rank_that_does_nothing_is_named_at_the_timeout() {
    let _deadline = Deadline::start("a_rank_that_does_nothing_is_named_at_the_timeout", LIMIT);
    let timeout = Duration::from_secs(2);
    let mut world = World::new(3, Settings { timeout, ..Settings::default() });
    let over = Barrier::new(3);
    let started = Instant::now();
    let errors = world.each(|rank| {
        let result = match rank.rank() {
            1 => Ok(()),
            _ => rank.all_reduce_in_place(&mut [1u8; 3], ReduceOp::SUM),
        };
        over.wait();
        result.err()
    });
    assert!(started.elapsed() >= timeout && started.elapsed() < timeout + BOUND);
    let faults: Vec<_> = errors.iter().map(|error| error.as_ref().and_then(Error::fault)).collect();
    let blamed = |fault: &Option<Fault>| matches!(fault, Some(Fault::Timeout { rank: Rank(1), .. }));
    assert!(blamed(&faults[0]) || blamed(&faults[2]), "{faults:?}");
    assert!(faults[0].is_some() && faults[2].is_some() && errors[1].is_none(), "{faults:?}");
}

#[test]
fn a_receive_that_nobody_answers_ends_at_the_timeout() {
    let _deadline = Deadline::start("a_receive_that_nobody_answers_ends_at_the_timeout", LIMIT);
    let timeout = Duration::from_secs(1);
    let errors = World::new(2, Settings { timeout, ..Settings::default() }).each(|rank| {
        // Each waits for the other's message.
        rank.recv(&mut [0u8], 1 - rank.rank()).expect_err("nobody sends").fault()
    });
    let named = |me: usize| match errors[me] {
        Some(Fault::Timeout { rank, .. } | Fault::PeerAborted { rank }) => rank == Rank(1 - me as u32),
        _ => false,
    };
    assert!(named(0) && named(1), "{errors:?}");
}

#[test]
fn a_rank_that_left_is_named() {
    let _deadline = Deadline::start("a_rank_that_left_is_named", LIMIT);
    let World { ranks, .. } = World::new(3, Settings::default());
    let started = Instant::now();
    let faults = on_threads(ranks.into_iter(), |rank| {
        if rank.rank() == 2 {
            return None;
        }
        rank.barrier().expect_err("one rank is gone").fault()
    });
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    for fault in &faults[..2] {
        let by_name = matches!(fault, Some(Fault::PeerLeft { rank: Rank(2) } | Fault::PeerAborted { .. }));
        // A rank that waits for an earlier leaver learns of rank 2 from the one that waited for it.
        assert!(by_name || matches!(fault, Some(Fault::PeerLeft { .. })), "{faults:?}");
    }
    assert!(faults.contains(&Some(Fault::PeerLeft { rank: Rank(2) })), "{faults:?}");
}

/// A rank's last call may find the others waiting for it: closing at once afterwards breaks nothing, however long
/// they waited.
#[test]
fn a_late_rank_may_close_right_after_its_last_call() {
    let _deadline = Deadline::start("a_late_rank_may_close_right_after_its_last_call", LIMIT);
    for transport in [TransportKind::InProcess, TransportKind::Shm, TransportKind::Tcp, TransportKind::Net] {
        // Many at once, since the scheduler decides when a waiting rank polls next.
        let worlds =
            (0..8).map(|_| World::new(3, Settings { transport: Some(transport), ..Settings::default() }));
        let ranks: Vec<_> = worlds.flat_map(|world| world.ranks).collect();
        let failures: Vec<_> = on_threads(ranks.into_iter(), |rank| {
            if rank.rank() == 1 {
                std::thread::sleep(Duration::from_millis(900));
            }
            rank.all_reduce_in_place(&mut [1u8; 3], ReduceOp::SUM).err()
        });
        assert_eq!(failures.into_iter().flatten().next(), None, "{transport:?}");
    }
}

#[test]
fn abort_from_another_thread_ends_a_wait_on_every_rank() {
    let _deadline = Deadline::start("abort_from_another_thread_ends_a_wait_on_every_rank", LIMIT);
    let mut world = World::new(3, Settings::default());
    let handle = world.ranks[1].handle();
    let started = Instant::now();
    let aborter = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        handle.abort();
    });
    let faults = world.each(|rank| {
        // Rank 2 never comes.
        while rank.rank() == 2 && rank.async_error().is_none() && started.elapsed() < BOUND {
            std::thread::sleep(Duration::from_millis(5));
        }
        rank.barrier().expect_err("aborted").fault()
    });
    aborter.join().unwrap();
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    let from_1 = Some(Fault::PeerAborted { rank: Rank(1) });
    assert_eq!(faults, [from_1, Some(Fault::Aborted), from_1]);
    // Nothing runs on it any more.
    world.each(|rank| rank.barrier().expect_err("it stays aborted"));
}
