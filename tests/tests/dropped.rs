//! What other ranks hear of a rank that drops a `Pending` at once: that it aborted, and never that it died.

use oxccl::{Communicator, Error, Pending, ReduceOp, UniqueId};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::failed::describe;
use oxccl_tests::harness::on_threads;
use oxccl_tests::patient::{builders, new_id, world_of};
use oxccl_tests::random::Random;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(250);
/// Far less than any timeout of the tests' settings.
const BOUND: Duration = Duration::from_secs(10);
const NRANKS: u32 = 4;
const ROUNDS: u64 = 24;

/// A round's rank that drops what it started, and when.
fn plan(seed: u64) -> (u32, Duration) {
    let mut random = Random(seed);
    random.below(99);
    let after_us = random.of(&[0, 0, 0, 100, 1000, 5000, 20_000]);
    (random.below(NRANKS.into()) as u32, Duration::from_micros(random.below(after_us + 1)))
}

/// What becomes of it on the ranks that do not drop it.
fn drop_or_outcome<T>(me: u32, seed: u64, pending: Pending<T>) -> Option<Result<T, Error>> {
    let (dropper, after) = plan(seed);
    if me != dropper {
        return Some(pending.wait());
    }
    std::thread::sleep(after);
    drop(pending);
    None
}

/// The error is that of a rank which aborted or left, and of the one that did.
fn names_the_dropper(error: &Error, seed: u64, what: &str) {
    let (said, (dropper, _)) = (describe(error), plan(seed));
    let kinds = ["PeerAborted", "PeerLeft"].map(|kind| format!("{kind} {dropper} "));
    assert!(kinds.iter().any(|kind| said.starts_with(kind)), "{what} {seed}: {said}");
}

/// Drops it at once on one rank; the others learn that this one aborted, in whatever they do next with what they have got.
fn drop_or_wait(me: u32, seed: u64, pending: Pending<Communicator>, what: &str) {
    let begun = Instant::now();
    let error = match drop_or_outcome(me, seed, pending) {
        None => return,
        Some(Err(error)) => error,
        // It came too late for this rank; an operation sees it.
        Some(Ok(comm)) => comm.barrier().expect_err("a rank has dropped it"),
    };
    let took = begun.elapsed();
    names_the_dropper(&error, seed, what);
    assert!(took < BOUND, "{what} {seed}, rank {me}: {took:?}");
}

fn check(comm: &Communicator) {
    let mut sum = vec![1u32; 1000];
    comm.all_reduce_in_place(&mut sum, ReduceOp::SUM).unwrap();
    assert!(sum.iter().all(|sum| *sum == comm.size()));
}

#[test]
fn a_build_that_a_rank_drops_is_aborted_by_that_rank() {
    let _deadline = Deadline::start("a_build_that_a_rank_drops_is_aborted_by_that_rank", LIMIT);
    for seed in 0..ROUNDS {
        doing(|| format!("seed {seed}: {:?}", plan(seed)));
        on_threads((0..).zip(builders(NRANKS)), |(me, rank)| {
            drop_or_wait(me, seed, rank.start().unwrap(), "build");
        });
    }
}

/// A communicator of all ranks made of another, which goes on whatever becomes of that.
fn drops_of(
    what: &'static str,
    start: impl Fn(&Communicator, UniqueId) -> Result<Pending<Communicator>, Error> + Sync,
) {
    let ids: Vec<UniqueId> = (0..ROUNDS).map(|_| new_id()).collect();
    on_threads(world_of(NRANKS).into_iter(), |comm| {
        for (seed, id) in (0..).zip(&ids) {
            doing(|| format!("{what} {seed}: {:?}", plan(seed)));
            drop_or_wait(comm.rank(), seed, start(&comm, *id).unwrap(), what);
            check(&comm);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn a_shrink_that_a_rank_drops_is_aborted_by_that_rank() {
    let _deadline = Deadline::start("a_shrink_that_a_rank_drops_is_aborted_by_that_rank", LIMIT);
    drops_of("shrink", |comm, _| comm.start_shrink(&[]));
}

/// The others' numbers in the child are not those here.
#[test]
fn a_shrink_without_rank_0_that_a_rank_drops_is_aborted_by_that_rank() {
    let _deadline =
        Deadline::start("a_shrink_without_rank_0_that_a_rank_drops_is_aborted_by_that_rank", LIMIT);
    on_threads(world_of(NRANKS).into_iter(), |comm| {
        for seed in (0..ROUNDS).filter(|seed| plan(*seed).0 != 0) {
            doing(|| format!("shrink without rank 0, {seed}: {:?}", plan(seed)));
            if comm.rank() != 0 {
                // What it succeeds to make has numbers of its own.
                if let Some(Err(error)) = drop_or_outcome(comm.rank(), seed, comm.start_shrink(&[0]).unwrap())
                {
                    names_the_dropper(&error, seed, "shrink without rank 0");
                }
            }
            check(&comm);
        }
        comm.finalize().unwrap();
    });
}

#[test]
fn a_grow_that_a_rank_drops_is_aborted_by_that_rank() {
    let _deadline = Deadline::start("a_grow_that_a_rank_drops_is_aborted_by_that_rank", LIMIT);
    drops_of("grow", |comm, id| comm.start_grow((comm.rank() == 0).then_some(id), NRANKS));
}

#[test]
fn a_split_that_a_rank_drops_is_aborted_by_that_rank() {
    let _deadline = Deadline::start("a_split_that_a_rank_drops_is_aborted_by_that_rank", LIMIT);
    on_threads(world_of(NRANKS).into_iter(), |comm| {
        for seed in 0..ROUNDS {
            let error = match drop_or_outcome(comm.rank(), seed, comm.start_split(Some(0), 0).unwrap()) {
                None => None,
                Some(Err(error)) => Some(error),
                Some(Ok(child)) => {
                    let child = child.expect("it has a color");
                    Some(child.barrier().expect_err("a rank has dropped it"))
                }
            };
            error.iter().for_each(|error| names_the_dropper(error, seed, "split"));
            check(&comm);
        }
        comm.finalize().unwrap();
    });
}

/// Ranks took the finalize's meeting for that of a split which was under way.
#[test]
fn a_finalize_comes_behind_the_splits_before_it() {
    let _deadline = Deadline::start("a_finalize_comes_behind_the_splits_before_it", LIMIT);
    for _ in 0..4 {
        on_threads(world_of(NRANKS).into_iter(), |comm| {
            let started: Vec<_> = (0..8).map(|_| comm.start_split(Some(0), 0).unwrap()).collect();
            comm.finalize().unwrap();
            let children = started.into_iter().map(|child| child.wait().unwrap().expect("it has a color"));
            Communicator::finalize_all(children).unwrap();
        });
    }
}

#[test]
fn a_finalize_that_a_rank_drops_is_aborted_by_that_rank() {
    let _deadline = Deadline::start("a_finalize_that_a_rank_drops_is_aborted_by_that_rank", LIMIT);
    for seed in 0..ROUNDS / 2 {
        let (dropper, after) = plan(seed);
        on_threads(world_of(NRANKS).into_iter(), |comm| {
            let me = comm.rank();
            check(&comm);
            if me == dropper {
                let pending = comm.start_finalize().unwrap();
                std::thread::sleep(after);
                return drop(pending);
            }
            // All may have met before it was dropped.
            if let Err(error) = comm.finalize() {
                let said = describe(&error);
                assert!(said.starts_with(&format!("PeerAborted {dropper} ")), "finalize {seed}: {said}");
            }
        });
    }
}
