//! What other ranks hear of a rank that drops a `Pending` at once: that it aborted, and never that it died.

use oxccl::bootstrap::BootstrapConfig;
use oxccl::{Communicator, Config, Error, Pending, ReduceOp, UniqueId};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::failed::describe;
use oxccl_tests::harness::{Settings, on_threads};
use oxccl_tests::random::Random;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(250);
/// Far less than any timeout of the tests' settings.
const BOUND: Duration = Duration::from_secs(10);
const NRANKS: u32 = 4;
const ROUNDS: u64 = 24;

fn config() -> Config {
    let config = Settings::default().config();
    // Silence would last longer than a test may.
    let bootstrap = BootstrapConfig { timeout: LIMIT * 2, ..config.bootstrap.clone() };
    Config { bootstrap, ..config }
}

fn new_id() -> UniqueId {
    UniqueId::create_by(&config().bootstrap).expect("a root on the loopback")
}

/// Ranks of one id, not yet built.
fn builders() -> impl Iterator<Item = oxccl::CommunicatorBuilder> {
    let id = new_id();
    (0..NRANKS)
        .map(move |rank| Communicator::builder().unique_id(id).rank(rank).ranks(NRANKS).config(config()))
}

fn world() -> Vec<Communicator> {
    oxccl::CommunicatorBuilder::build_all(builders()).unwrap()
}

/// A round's rank that drops what it started, and when.
fn plan(seed: u64) -> (u32, Duration) {
    let mut random = Random(seed);
    random.below(99);
    let after_us = random.of(&[0, 0, 0, 100, 1000, 5000, 20_000]);
    (random.below(NRANKS.into()) as u32, Duration::from_micros(random.below(after_us + 1)))
}

/// Drops it at once on one rank; the others learn that this one aborted, in whatever they do next with what they have got.
fn drop_or_wait(me: u32, seed: u64, pending: Pending<Communicator>, what: &str) {
    let (dropper, after) = plan(seed);
    if me == dropper {
        std::thread::sleep(after);
        return drop(pending);
    }
    let begun = Instant::now();
    let error = match pending.wait() {
        Err(error) => error,
        // It came too late for this rank; an operation sees it.
        Ok(comm) => comm.barrier().expect_err("a rank has dropped it"),
    };
    let (said, took) = (describe(&error), begun.elapsed());
    let kinds = ["PeerAborted", "PeerLeft"].map(|kind| format!("{kind} {dropper} "));
    assert!(kinds.iter().any(|kind| said.starts_with(kind)), "{what} {seed}, rank {me}: {said}");
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
        on_threads((0..).zip(builders()), |(me, rank)| {
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
    on_threads(world().into_iter(), |comm| {
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
    on_threads(world().into_iter(), |comm| {
        for seed in (0..ROUNDS).filter(|seed| plan(*seed).0 != 0) {
            doing(|| format!("shrink without rank 0, {seed}: {:?}", plan(seed)));
            if comm.rank() != 0 {
                let pending = comm.start_shrink(&[0]).unwrap();
                let (dropper, after) = plan(seed);
                if comm.rank() == dropper {
                    std::thread::sleep(after);
                    drop(pending);
                } else if let Err(error) = pending.wait() {
                    // What it succeeds to make has numbers of its own.
                    let said = describe(&error);
                    let kinds = ["PeerAborted", "PeerLeft"].map(|kind| format!("{kind} {dropper} "));
                    assert!(kinds.iter().any(|kind| said.starts_with(kind)), "shrink {seed}: {said}");
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
    on_threads(world().into_iter(), |comm| {
        for seed in 0..ROUNDS {
            let (dropper, after) = plan(seed);
            let pending = comm.start_split(Some(0), 0).unwrap();
            if comm.rank() == dropper {
                std::thread::sleep(after);
                drop(pending);
            } else {
                let error = match pending.wait() {
                    Err(error) => error,
                    Ok(child) => child.expect("it has a color").barrier().expect_err("a rank has dropped it"),
                };
                let said = describe(&error);
                let kinds = ["PeerAborted", "PeerLeft"].map(|kind| format!("{kind} {dropper} "));
                assert!(kinds.iter().any(|kind| said.starts_with(kind)), "split {seed}: {said}");
            }
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
        on_threads(world().into_iter(), |comm| {
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
        on_threads(world().into_iter(), |comm| {
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
                let kinds = ["PeerAborted", "PeerLeft"].map(|kind| format!("{kind} {dropper} "));
                assert!(kinds.iter().any(|kind| said.starts_with(kind)), "finalize {seed}: {said}");
            }
        });
    }
}
