//! Requests that own their buffers.

use oxccl::{ArgumentError, Communicator, Error, ReduceOp, Request};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World};
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(100);

/// What an application has: a communicator and what is in flight on it, moved about together.
struct Solver {
    comm: Communicator,
    pending: Vec<Request<(Vec<u32>, Vec<u32>)>>,
}

impl Solver {
    fn begin(&mut self, value: u32) -> Result<(), Error> {
        let buffers = (vec![value; 20_000], vec![0; 20_000]);
        let add = self.comm.start(buffers, |calls, (send, recv)| calls.all_reduce(send, recv, ReduceOp::SUM));
        self.pending.push(add?);
        Ok(())
    }

    fn end(&mut self) -> Result<Vec<u32>, Error> {
        let (_, sum) = self.pending.remove(0).wait(&self.comm)?;
        Ok(sum)
    }
}

#[test]
fn a_structure_has_requests_beside_its_communicator() {
    let _deadline = Deadline::start("a_structure_has_requests_beside_its_communicator", LIMIT);
    let World { ranks, .. } = World::new(3, Settings::default());
    oxccl_tests::harness::on_threads(ranks.into_iter(), |comm| {
        let mut solver = Solver { comm, pending: Vec::new() };
        solver.begin(1).unwrap();
        // Moved while in flight.
        let mut solver = Box::new(solver);
        solver.begin(10).unwrap();
        assert!(solver.end().unwrap().iter().all(|x| *x == 3));
        solver.begin(100).unwrap();
        assert!(solver.end().unwrap().iter().all(|x| *x == 30));
        // The communicator goes, and what is in flight with it: in order, since all ranks do so.
        solver.pending.clear();
        let Solver { comm, .. } = *solver;
        comm.finalize().unwrap();
    });
}

/// Dropped or forgotten, an operation is over some time, and its buffers are freed by a later call.
#[test]
fn dropped_requests_go_on_and_free_their_buffers() {
    let _deadline = Deadline::start("dropped_requests_go_on_and_free_their_buffers", LIMIT);
    World::new(2, Settings::default()).each(|comm| {
        let kept = Arc::new(());
        for _ in 0..3 {
            let buffers = (vec![1u8; 300_000], kept.clone());
            let add =
                comm.start(buffers, |calls, (buffer, _)| calls.all_reduce_in_place(buffer, ReduceOp::SUM));
            drop(add.unwrap());
        }
        comm.barrier().unwrap();
        comm.barrier().unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
        std::mem::forget(comm.start(kept.clone(), |calls, _| calls.barrier()).unwrap());
        comm.barrier().unwrap();
        // What is forgotten is lost, as it is everywhere.
        assert_eq!(Arc::strong_count(&kept), 2);
    });
}

/// The next operation that is started finds those that were dropped when theirs was over.
#[test]
fn requests_that_are_dropped_late_free_their_buffers() {
    let _deadline = Deadline::start("requests_that_are_dropped_late_free_their_buffers", LIMIT);
    World::new(2, Settings::default()).each(|comm| {
        let kept = Arc::new(());
        for _ in 0..3 {
            let over = comm.start(kept.clone(), |calls, _| calls.barrier()).unwrap();
            while !over.test(comm).unwrap() {}
            drop(over);
        }
        comm.start((), |calls, _| calls.barrier()).unwrap().wait(comm).unwrap();
        assert_eq!(Arc::strong_count(&kept), 1);
    });
}

#[test]
fn requests_belong_to_a_communicator_and_to_a_thread() {
    let _deadline = Deadline::start("requests_belong_to_a_communicator_and_to_a_thread", LIMIT);
    let (mut a, b) = (World::new(2, Settings::default()), World::new(1, Settings::default()));
    let other = &b.ranks[0];
    let request = a.ranks[0].start((), |calls, ()| calls.barrier()).unwrap();
    let foreign = request.test(other);
    assert_eq!(foreign, Err(ArgumentError::OtherRequest { rank: oxccl::Rank(0) }.into()));
    let rank = &mut a.ranks[0];
    let refused = std::thread::scope(|scope| {
        let elsewhere = scope.spawn(move || {
            let wait = rank.barrier();
            let start = rank.overlap(|_| Ok(()));
            [wait, start]
        });
        elsewhere.join().unwrap()
    });
    let expected = Err(Error::Argument(ArgumentError::OtherThread { rank: oxccl::Rank(0) }));
    assert_eq!(refused, [expected.clone(), expected]);
    // Here it goes on.
    let second = a.ranks[1].start((), |calls, ()| calls.barrier()).unwrap();
    request.wait(&a.ranks[0]).unwrap();
    second.wait(&a.ranks[1]).unwrap();
    std::thread::scope(|scope| {
        let ranks = a.ranks.iter_mut();
        ranks.for_each(|rank| drop(scope.spawn(move || rank.barrier().unwrap())));
    });
}

/// What a thread leaves in flight ends with it, and with an error: nobody else may go on with it.
#[test]
fn a_thread_that_ends_gives_up_what_it_has_in_flight() {
    let _deadline = Deadline::start("a_thread_that_ends_gives_up_what_it_has_in_flight", LIMIT);
    let mut world = World::new(2, Settings::default());
    let rank = &mut world.ranks[0];
    std::thread::scope(|scope| {
        let start = scope.spawn(move || drop(rank.start(vec![0u8; 9], |calls, b| calls.recv(b, 1)).unwrap()));
        start.join().unwrap();
    });
    while matches!(world.ranks[0].barrier(), Err(Error::Argument(_))) {
        std::thread::yield_now();
    }
    assert_eq!(world.ranks[0].barrier().unwrap_err().fault(), Some(oxccl::Fault::Aborted));
}
