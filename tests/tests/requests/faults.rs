//! Ranks that do something else, nothing, or abort, while operations are in flight.

use oxccl::{Error, Fault, Rank, ReduceOp, TransportKind};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World};
use std::sync::Barrier;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
const BOUND: Duration = Duration::from_secs(5);

/// It is named at the timeout, by those who wait and by those who only test.
#[test]
fn a_rank_that_never_starts_is_named() {
    let _deadline = Deadline::start("a_rank_that_never_starts_is_named", LIMIT);
    let timeout = Duration::from_secs(2);
    for tests in [false, true] {
        let mut world = World::new(3, Settings { timeout, ..Settings::default() });
        let over = Barrier::new(3);
        let started = Instant::now();
        let errors = world.each(|comm| {
            let mut buffer = [1u8; 3];
            let result = comm.overlap(|scope| {
                if comm.rank() != 1 {
                    let request = scope.all_reduce_in_place(&mut buffer, ReduceOp::SUM)?;
                    while tests && !request.test()? {}
                }
                Ok(())
            });
            over.wait();
            result.err()
        });
        assert!(started.elapsed() >= timeout && started.elapsed() < timeout + BOUND);
        let faults: Vec<_> = errors.iter().map(|error| error.as_ref().and_then(Error::fault)).collect();
        let blamed = |fault: &Option<Fault>| matches!(fault, Some(Fault::Timeout { rank: Rank(1), .. }));
        assert!(blamed(&faults[0]) || blamed(&faults[2]), "{faults:?}");
        assert!(faults[0].is_some() && faults[2].is_some() && errors[1].is_none(), "{faults:?}");
    }
}

/// A thread that computes for longer than the timeout, between two tests, blames nobody.
#[test]
fn the_time_between_tests_is_nobodys_fault() {
    let _deadline = Deadline::start("the_time_between_tests_is_nobodys_fault", LIMIT);
    let timeout = Duration::from_secs(2);
    let met = Barrier::new(2);
    World::new(2, Settings { timeout, ..Settings::default() }).each(|comm| {
        comm.overlap(|scope| {
            met.wait();
            let request = (comm.rank() == 0).then(|| scope.barrier()).transpose()?;
            request.iter().try_for_each(|request| request.test().map(drop))?;
            std::thread::sleep(timeout + timeout / 2);
            request.iter().try_for_each(|request| request.test().map(drop))?;
            if comm.rank() == 1 { scope.barrier()?.wait() } else { Ok(()) }
        })
        .unwrap();
    });
}

/// Another operation is found within moments, and both ranks are told what the other called: in every request and every call after it.
#[test]
fn another_operation_is_a_mismatch_that_names_the_rank() {
    let _deadline = Deadline::start("another_operation_is_a_mismatch_that_names_the_rank", LIMIT);
    for transport in [TransportKind::InProcess, TransportKind::Tcp] {
        let mut world = World::new(2, Settings { transport: Some(transport), ..Settings::default() });
        let started = Instant::now();
        let faults = world.each(|comm| {
            let (mut a, mut b) = (vec![1f32; 10], vec![1f32; 10]);
            let mut faults = Vec::new();
            let scope = comm.overlap(|scope| {
                let first = match comm.rank() {
                    0 => scope.all_reduce_in_place(&mut a, ReduceOp::SUM)?,
                    _ => scope.broadcast_in_place(&mut a, 0)?,
                };
                let second = scope.all_reduce_in_place(&mut b, ReduceOp::SUM)?;
                faults.push(second.wait().expect_err("the first fails").fault());
                faults.push(comm.barrier().expect_err("and all after it").fault());
                drop(first);
                Ok(())
            });
            faults.push(scope.expect_err("nobody took the error of the first").fault());
            faults
        });
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
        for (me, faults) in faults.iter().enumerate() {
            let names = |fault: &Option<Fault>| match fault {
                Some(Fault::Mismatch { rank, theirs }) => *rank == Rank(1 - me as u32) && theirs.is_some(),
                _ => false,
            };
            assert!(faults.iter().all(names), "{transport:?}, rank {me}: {faults:?}");
        }
    }
}

#[test]
fn abort_from_another_thread_ends_what_is_in_flight_on_every_rank() {
    let _deadline = Deadline::start("abort_from_another_thread_ends_what_is_in_flight_on_every_rank", LIMIT);
    for transport in [TransportKind::Shm, TransportKind::Net] {
        let mut world = World::new(3, Settings { transport: Some(transport), ..Settings::default() });
        let handle = world.ranks[1].handle();
        let started = Instant::now();
        let aborter = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            handle.abort();
        });
        let faults = world.each(|comm| {
            let (mut a, mut b) = (vec![1u64; 100_000], [0u8; 4]);
            // Rank 2 starts the first only, and nobody sends.
            let ended = comm.overlap(|scope| {
                scope.all_reduce_in_place(&mut a, ReduceOp::SUM)?.wait()?;
                if comm.rank() == 2 {
                    while comm.async_error().is_none() && started.elapsed() < BOUND {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                    return Ok(());
                }
                let request = scope.recv(&mut b, 2)?;
                let barrier = scope.barrier()?;
                assert!(!barrier.test()?);
                request.wait().map(drop)
            });
            assert!(ended.is_err() || comm.rank() == 2, "{ended:?}");
            comm.barrier().expect_err("it stays aborted").fault()
        });
        aborter.join().unwrap();
        assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
        let from_1 = Some(Fault::PeerAborted { rank: Rank(1) });
        assert_eq!(faults, [from_1, Some(Fault::Aborted), from_1]);
    }
}

/// The others wait for what a rank that panics does not call any more: it aborts, and its buffers outlive what is in flight.
#[test]
fn a_panic_in_a_scope_aborts() {
    let _deadline = Deadline::start("a_panic_in_a_scope_aborts", LIMIT);
    let started = Instant::now();
    let faults = World::new(2, Settings::default()).each(|comm| {
        let mut buffer = vec![0u8; 1 << 20];
        let work = || {
            comm.overlap(|scope| {
                let request = scope.recv(&mut buffer, 1 - comm.rank())?;
                assert!(comm.rank() == 0, "a mistake of rank 1's");
                request.wait().map(drop)
            })
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        assert_eq!(ended.is_err(), comm.rank() == 1);
        comm.async_error().and_then(|error| error.fault())
    });
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
    assert_eq!(faults, [Some(Fault::PeerAborted { rank: Rank(1) }), Some(Fault::Aborted)]);
}
