//! What other threads have of a communicator: they watch it and abort it, while it is built, used, split and ended.

use oxccl::bootstrap::BootstrapError;
use oxccl::{CommHandle, CommState, Communicator, Config, Error, Fault, ReduceOp, UniqueId};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World, on_threads};
use oxccl_tests::patient::{builders, config, new_id, world_of};
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(100);
/// Far less than any timeout of the tests' settings.
const BOUND: Duration = Duration::from_secs(5);

fn aborted_soon(started: Instant, error: &Error) {
    assert_eq!(error.fault(), Some(Fault::Aborted), "{error}");
    assert!(error.to_string().contains("aborted"), "{error}");
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
}

#[test]
fn a_rank_that_waits_for_others_to_come_is_aborted() {
    let _deadline = Deadline::start("a_rank_that_waits_for_others_to_come_is_aborted", LIMIT);
    // Of three ranks the last never comes.
    let mut pending: Vec<_> = builders(3).take(2).map(|rank| rank.start().unwrap()).collect();
    assert!(pending.iter_mut().all(|rank| rank.wait_for(Duration::from_millis(100)).is_pending()));
    assert!(pending.iter().all(|rank| rank.state() == CommState::InProgress));
    let started = Instant::now();
    let other = pending.pop().expect("two ranks");
    let rank = pending.pop().expect("two ranks");
    let handle = rank.handle();
    std::thread::spawn(move || handle.abort());
    let handle = rank.handle();
    aborted_soon(started, &rank.wait().expect_err("aborted"));
    assert_eq!(handle.state(), CommState::Failed);
    assert_eq!(handle.async_error().and_then(|error| error.fault()), Some(Fault::Aborted));
    // The one that waits with it learns that it is gone.
    assert!(other.wait().expect_err("a rank is gone").to_string().contains("rank 0"));
    assert!(started.elapsed() < BOUND, "{:?}", started.elapsed());
}

#[test]
fn a_rank_that_looks_for_its_root_is_aborted() {
    let _deadline = Deadline::start("a_rank_that_looks_for_its_root_is_aborted", LIMIT);
    // Rank 0 would run the root there. The second address answers nothing at all.
    for addr in ["127.0.0.1:9", "192.0.2.1:9"] {
        let id = UniqueId::from_address(addr.parse().unwrap(), b"nobody");
        let rank = Communicator::builder().unique_id(id).rank(1).ranks(2).config(config()).start().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let started = Instant::now();
        rank.abort();
        aborted_soon(started, &rank.wait().expect_err("aborted"));
    }
}

/// All ranks are past the rendezvous when one is aborted at any moment of its init: the others end too.
#[test]
fn an_abort_at_any_moment_of_init_ends_all_ranks() {
    let _deadline = Deadline::start("an_abort_at_any_moment_of_init_ends_all_ranks", LIMIT);
    for after_us in [0, 200, 500, 1000, 2000, 4000, 8000, 16_000] {
        let pending: Vec<_> = builders(3).map(|rank| rank.start().unwrap()).collect();
        let handle = pending[1].handle();
        std::thread::sleep(Duration::from_micros(after_us));
        let started = Instant::now();
        handle.abort();
        let faults = on_threads(pending.into_iter(), |rank| match rank.wait() {
            // It came too late for init; an operation sees it.
            Ok(comm) => comm.barrier().expect_err("aborted"),
            Err(error) => error,
        });
        // A root that still waits for the aborted rank would name it after its timeout; here it learns at once that the rank is gone.
        assert!(started.elapsed() < BOUND, "after {after_us} us: {:?}, {faults:?}", started.elapsed());
        assert_eq!(faults[1].fault(), Some(Fault::Aborted), "{faults:?}");
    }
}

#[test]
fn one_thread_builds_splits_uses_and_ends_all_ranks() {
    let _deadline = Deadline::start("one_thread_builds_splits_uses_and_ends_all_ranks", LIMIT);
    let world = world_of(4);
    let color = |comm: &Communicator| (comm.rank() != 3).then_some(comm.rank() % 2);
    let halves = Communicator::split_all(world.iter().map(|comm| (comm, color(comm), 0))).unwrap();
    assert_eq!(halves.iter().map(Option::is_some).collect::<Vec<_>>(), [true, true, true, false]);
    let halves: Vec<_> = halves.into_iter().flatten().collect();
    let mut sums = [1u32; 3];
    oxccl::group(|group| {
        for (comm, sum) in halves.iter().zip(&mut sums) {
            group.all_reduce_in_place(comm, std::slice::from_mut(sum), ReduceOp::SUM)?;
        }
        Ok(())
    })
    .unwrap();
    assert_eq!(sums, [2, 1, 2]);
    let handles: Vec<CommHandle> = halves.iter().map(Communicator::handle).collect();
    Communicator::finalize_all(halves).unwrap();
    for handle in handles {
        assert_eq!((handle.state(), handle.async_error()), (CommState::Ended, None));
        assert_eq!((handle.progress().begun, handle.progress().done), (1, 1));
    }
    Communicator::finalize_all(world).unwrap();
}

#[test]
fn a_split_that_others_do_not_come_to_is_aborted_and_spares_the_parent() {
    let _deadline =
        Deadline::start("a_split_that_others_do_not_come_to_is_aborted_and_spares_the_parent", LIMIT);
    let mut world = world_of(4);
    let pending = world[0].start_split(Some(0), 0).unwrap();
    let started = Instant::now();
    pending.abort();
    aborted_soon(started, &pending.wait().expect_err("aborted"));
    // The others split as well, and learn that one of them gave up; all stay in the parent.
    let late: Vec<_> = world[1..].iter().map(|comm| comm.start_split(Some(0), 0).unwrap()).collect();
    assert!(late.into_iter().all(|child| child.wait().is_err()));
    let again = Communicator::split_all(world.iter().map(|comm| (comm, Some(0), 0))).unwrap();
    assert!(again.into_iter().all(|child| child.is_some_and(|child| child.size() == 4)));
    world.truncate(0);
}

#[test]
fn a_finalize_that_others_do_not_come_to_is_aborted() {
    let _deadline = Deadline::start("a_finalize_that_others_do_not_come_to_is_aborted", LIMIT);
    let mut world = world_of(4);
    let mut ending = world.remove(0).start_finalize().unwrap();
    assert_eq!(ending.wait_for(Duration::from_millis(50)), Poll::Pending);
    let started = Instant::now();
    ending.abort();
    aborted_soon(started, &ending.wait().expect_err("aborted"));
    // The others have heard of it.
    assert!(Communicator::finalize_all(world).is_err());
}

#[test]
fn ranks_go_on_without_others_after_a_revoke() {
    let _deadline = Deadline::start("ranks_go_on_without_others_after_a_revoke", LIMIT);
    let mut world = world_of(4);
    // One rank waits in an operation that the others never enter. Their revokes do not reach it.
    let handle = world[1].handle();
    let waiting = world.remove(1);
    let waits = std::thread::spawn(move || {
        let error = waiting.all_reduce_in_place(&mut [1u8; 8], ReduceOp::SUM).expect_err("revoked");
        (waiting, error)
    });
    while handle.progress().begun == 0 {
        std::thread::yield_now();
    }
    world.iter().for_each(|rank| rank.handle().revoke());
    assert!(!waits.is_finished());
    handle.revoke();
    let (waiting, error) = waits.join().unwrap();
    assert_eq!(error.fault(), Some(Fault::Revoked), "{error}");
    world.insert(1, waiting);
    assert!(world.iter().all(|rank| rank.handle().is_revoked()));
    let pending = [1, 3].map(|rank: usize| world[rank].start_shrink(&[0, 2]).unwrap());
    let rest: Vec<Communicator> = pending.into_iter().map(|rank| rank.wait().unwrap()).collect();
    assert_eq!(rest.iter().map(|rank| (rank.rank(), rank.size())).collect::<Vec<_>>(), [(0, 2), (1, 2)]);
    assert!(world[0].start_shrink(&[0]).is_err() && world[0].start_shrink(&[4]).is_err());
    // The revoked parent's ranks can still split, too.
    let whole = Communicator::split_all(world.iter().map(|comm| (comm, Some(0), 0))).unwrap();
    assert!(whole.into_iter().all(|child| child.is_some_and(|child| child.size() == 4)));
    Communicator::finalize_all(rest).unwrap();
}

#[test]
fn a_communicator_grows_by_new_ranks() {
    let _deadline = Deadline::start("a_communicator_grows_by_new_ranks", LIMIT);
    let (world, id) = (world_of(2), new_id());
    let new = Communicator::builder().unique_id(id).rank(2).ranks(3).config(config()).start().unwrap();
    let mut pending = vec![world[0].start_grow(None, 3).unwrap(), world[1].start_grow(Some(id), 3).unwrap()];
    pending.push(new);
    let grown: Vec<Communicator> = pending.into_iter().map(|rank| rank.wait().unwrap()).collect();
    let places: Vec<_> = grown.iter().map(|rank| (rank.rank(), rank.size())).collect();
    assert_eq!(places, [(0, 3), (1, 3), (2, 3)]);
    let nobody: Vec<_> = world.iter().map(|rank| rank.start_grow(None, 3).unwrap()).collect();
    assert!(nobody.into_iter().all(|rank| matches!(rank.wait(), Err(Error::Config(_)))));
    // Rank 0 had a communicator of its own then, and rank 1 an error.
    let smaller = BootstrapError::GrowsSmaller { nranks: 1, parent: 2 };
    for rank in &world {
        assert_eq!(rank.start_grow(Some(new_id()), 1).err(), Some(smaller.clone().into()));
    }
    Communicator::finalize_all(grown).unwrap();
}

/// A watchdog asks all the time while another thread runs operations; what it reads never goes back.
#[test]
fn a_watchdog_asks_while_operations_run() {
    let _deadline = Deadline::start("a_watchdog_asks_while_operations_run", LIMIT);
    let mut world = World::new(2, Settings::default());
    let handles: Vec<CommHandle> = world.ranks.iter().map(Communicator::handle).collect();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for handle in &handles {
            let over = &over;
            scope.spawn(move || {
                let (mut begun, mut done) = (0, 0);
                while !over.load(Ordering::Relaxed) {
                    assert_eq!((handle.state(), handle.async_error()), (CommState::Ready, None));
                    let now = handle.progress();
                    assert!(now.begun >= begun && now.done >= done, "{now:?}");
                    (begun, done) = (now.begun, now.done);
                    std::thread::yield_now();
                }
            });
        }
        world.each(|rank| {
            for _ in 0..200 {
                rank.all_reduce_in_place(&mut [1u8; 100], ReduceOp::SUM).unwrap();
            }
        });
        over.store(true, Ordering::Relaxed);
    });
    for handle in &handles {
        let now = handle.progress();
        assert_eq!((now.begun, now.done, now.latest.map(|latest| latest.seq)), (200, 200, Some(199)));
    }
}

/// What `oxccl status` would tell, also of a communicator that is not asked about, and when it has ended.
#[test]
fn a_handle_reports_what_its_rank_has_done() {
    let _deadline = Deadline::start("a_handle_reports_what_its_rank_has_done", LIMIT);
    let config = Config { status: false, ..config() };
    let id = new_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let builder = Communicator::builder().unique_id(id).rank(rank).ranks(2).config(config.clone());
            scope.spawn(move || {
                let world = builder.build().unwrap();
                let mut data = [1f32; 1000];
                world.all_reduce_in_place(&mut data, ReduceOp::SUM).unwrap();
                world.barrier().unwrap();
                let handle = world.handle();
                let report = handle.report(1);
                assert_eq!((report.rank, report.size, report.begun, report.done), (rank, 2, 2, 2));
                let [last] = &report.recent[..] else { panic!("{report:?}") };
                assert_eq!((last.operation.function.as_str(), report.totals.len()), ("barrier", 2));
                assert!(report.began_ns > 0 && last.began_ns >= report.began_ns, "{report:?}");
                let [peer] = &report.peers[..] else { panic!("{report:?}") };
                assert!(peer.rank == 1 - rank && peer.sent_bytes > 0 && peer.received_bytes > 0, "{peer:?}");
                assert_eq!(
                    (peer.stalls, peer.outages, peer.reconnects, peer.retries, report.refusals),
                    (0, 0, 0, 0, 0)
                );
                let again = handle.report(0);
                assert_eq!((again.began_ns, again.recent.len()), (report.began_ns, 0));
            });
        }
    });
}
