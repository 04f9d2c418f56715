//! Scopes: several operations in flight, asked for in any order; calls that wait beside them; progress in any call.

use oxccl::{ArgumentError, Blocks, Communicator, Error, ReduceOp, ScopedRequest};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World, on_threads};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(100);

/// Every function once, all in flight, then waited for from the last to the first.
fn all_at_once(comm: &Communicator, count: usize) -> Result<(), Error> {
    let (me, n) = (comm.rank(), comm.size());
    let (next, previous) = ((me + 1) % n, (me + n - 1) % n);
    let mine = vec![me; count];
    let blocks: Vec<u32> = (0..n).flat_map(|to| vec![me * 10 + to; count]).collect();
    let (counts, displs) = (vec![count; n as usize], (0..n as usize).map(|r| r * count).collect::<Vec<_>>());
    let even = Blocks { counts: &counts, displs: &displs };
    let one = || vec![u32::MAX; count];
    let all = || vec![u32::MAX; count * n as usize];
    let mut ones: [Vec<u32>; 11] = std::array::from_fn(|_| one());
    let mut alls: [Vec<u32>; 7] = std::array::from_fn(|_| all());
    ones[7..10].iter_mut().for_each(|buffer| buffer.fill(me));
    alls[5][me as usize * count..][..count].fill(me);
    alls[6].copy_from_slice(&blocks);
    {
        let [sum, scattered, cast, reduced, part, received, part_v, sum_in, cast_in, reduced_in, _] =
            &mut ones;
        let [gathered, exchanged, rooted, exchanged_v, gathered_v, gathered_in, scattered_in] = &mut alls;
        comm.overlap(|scope| {
            let mut requests = vec![
                scope.all_reduce(&mine, sum, ReduceOp::SUM)?,
                scope.all_gather(&mine, gathered)?,
                scope.reduce_scatter(&blocks, scattered, ReduceOp::MAX)?,
                scope.broadcast(&mine, cast, n - 1)?,
                scope.reduce(&mine, reduced, ReduceOp::MAX, 0)?,
                scope.all_to_all(&blocks, exchanged)?,
                scope.gather(&mine, rooted, n - 1)?,
                scope.scatter(&blocks, part, 0)?,
                scope.all_to_all_v(&blocks, even, exchanged_v, even)?,
                scope.all_gather_v(&mine, gathered_v, even)?,
                scope.reduce_scatter_v(&blocks, part_v, even, ReduceOp::MIN)?,
                scope.all_reduce_in_place(sum_in, ReduceOp::SUM)?,
                scope.broadcast_in_place(cast_in, 0)?,
                scope.reduce_in_place(reduced_in, ReduceOp::SUM, 0)?,
                scope.all_gather_in_place(gathered_in)?,
                scope.reduce_scatter_in_place(scattered_in, ReduceOp::MAX)?,
            ];
            let barrier = scope.barrier()?;
            if n > 1 {
                requests.push(scope.recv(received, previous)?);
                scope.send(&mine, next)?.wait()?;
            } else {
                received.fill(previous);
            }
            barrier.wait()?;
            while let Some(request) = requests.pop() {
                request.wait()?;
            }
            Ok(())
        })?;
    }
    let total = n * (n - 1) / 2;
    let by_block =
        |of: &dyn Fn(u32) -> u32| -> Vec<u32> { (0..n).flat_map(|r| vec![of(r); count]).collect() };
    let expected_ones = [
        total,
        (n - 1) * 10 + me,
        n - 1,
        if me == 0 { n - 1 } else { u32::MAX },
        me,
        previous,
        me,
        total,
        0,
        if me == 0 { total } else { me },
    ];
    for (at, (found, expected)) in ones.iter().zip(expected_ones).enumerate() {
        assert_eq!(*found, vec![expected; count], "output {at} of rank {me}");
    }
    let exchanged = by_block(&|from| from * 10 + me);
    let gathered = by_block(&|from| from);
    let rooted = if me == n - 1 { gathered.clone() } else { all() };
    for (at, (found, expected)) in
        alls.iter().zip([&gathered, &exchanged, &rooted, &exchanged, &gathered, &gathered]).enumerate()
    {
        assert_eq!(found, expected, "blocks {at} of rank {me}");
    }
    assert_eq!(alls[6][me as usize * count..][..count], vec![(n - 1) * 10 + me; count]);
    Ok(())
}

#[test]
fn every_function_is_in_flight_at_once() {
    let _deadline = Deadline::start("every_function_is_in_flight_at_once", LIMIT);
    use oxccl::TransportKind::{InProcess, Net, Shm, Tcp};
    for transport in [InProcess, Shm, Tcp, Net] {
        for nranks in [1, 2, 3] {
            let mut world =
                World::new(nranks, Settings { transport: Some(transport), ..Settings::default() });
            for count in [0, 1, 20_011] {
                world.each(|comm| {
                    all_at_once(comm, count).unwrap_or_else(|error| panic!("{transport:?} {count}: {error}"))
                });
            }
        }
    }
}

/// The first test already finds the small ones done that all ranks have started, whatever was asked for before.
#[test]
fn tests_make_progress_without_a_wait() {
    let _deadline = Deadline::start("tests_make_progress_without_a_wait", LIMIT);
    World::new(3, Settings::default()).each(|comm| {
        let (mut a, mut b) = (vec![comm.rank(); 50_000], vec![1u64; 3]);
        comm.overlap(|scope| {
            let long = scope.all_reduce_in_place(&mut a, ReduceOp::SUM)?;
            let short = scope.all_reduce_in_place(&mut b, ReduceOp::SUM)?;
            while !short.test()? {}
            assert!(long.test()?, "operations run in the order in which they were started");
            assert_eq!(ScopedRequest::test_any(&[long])?, Some(0));
            assert_eq!(short.wait()?, [3; 3]);
            Ok(())
        })
        .unwrap();
        assert!(a.iter().all(|x| *x == 3));
    });
}

/// Without requests that anybody waits for, the end of the scope does; and calls that wait come behind what is in flight.
#[test]
fn the_end_of_a_scope_waits_and_calls_come_in_order() {
    let _deadline = Deadline::start("the_end_of_a_scope_waits_and_calls_come_in_order", LIMIT);
    World::new(4, Settings::default()).each(|comm| {
        let (mut a, mut b, mut c) = (vec![1u32; 30_000], vec![2u32; 5], vec![3u32; 5]);
        comm.overlap(|scope| {
            drop(scope.all_reduce_in_place(&mut a, ReduceOp::SUM)?);
            drop(scope.all_reduce_in_place(&mut b, ReduceOp::SUM)?);
            // As others call it.
            comm.all_reduce_in_place(&mut c, ReduceOp::SUM)?;
            oxccl::group(|group| group.barrier(comm))?;
            scope.wait_all()
        })
        .unwrap();
        assert!(a.iter().all(|x| *x == 4) && b == [8; 5] && c == [12; 5]);
        comm.overlap(|_| comm.barrier()).unwrap();
    });
}

/// As MPI programs do it: receives are posted before sends, which may wait, and more of them than a connection has slots.
#[test]
fn receives_that_come_first_do_not_stop_sends() {
    let _deadline = Deadline::start("receives_that_come_first_do_not_stop_sends", LIMIT);
    use oxccl::TransportKind::{InProcess, Net, Shm, Tcp};
    for transport in [InProcess, Shm, Tcp, Net] {
        World::new(3, Settings { transport: Some(transport), ..Settings::default() }).each(|comm| {
            let me = comm.rank();
            let peers = [(me + 1) % 3, (me + 2) % 3];
            for len in [0, 7, 20_000] {
                let mut received = vec![vec![u32::MAX; len]; 2 * 40];
                let sent: Vec<Vec<u32>> = (0..40).map(|k| vec![me * 100 + k; len]).collect();
                comm.overlap(|scope| {
                    let mut requests = Vec::new();
                    for (at, buffer) in received.iter_mut().enumerate() {
                        requests.push(scope.recv(buffer, peers[at % 2])?);
                    }
                    for (k, data) in sent.iter().enumerate() {
                        // One peer's first, by a call that waits, where the other's is in flight.
                        let to_other = scope.send(data, peers[1])?;
                        if k % 3 == 0 {
                            comm.send(data, peers[0])?
                        } else {
                            scope.send(data, peers[0])?.wait()?
                        }
                        to_other.wait()?;
                    }
                    ScopedRequest::wait_all(requests.into_iter().rev()).map(drop)
                })
                .unwrap_or_else(|error| panic!("{transport:?} {len}: {error}"));
                for (at, buffer) in received.iter().enumerate() {
                    let expected = peers[at % 2] * 100 + at as u32 / 2;
                    assert!(buffer.iter().all(|x| *x == expected), "{transport:?} {len}: message {at}");
                }
            }
        });
    }
}

/// Two communicators over the same ranks: what is in flight on the one goes on while the thread waits for the other.
#[test]
fn any_call_advances_what_is_in_flight() {
    let _deadline = Deadline::start("any_call_advances_what_is_in_flight", LIMIT);
    let worlds = || (World::new(2, Settings::default()), World::new(2, Settings::default()));
    let (mut a, mut b) = worlds();
    on_threads(a.ranks.iter_mut().zip(b.ranks.iter_mut()), |(a, b)| {
        let (first, second) = if a.rank() == 0 { (&*a, &*b) } else { (&*b, &*a) };
        let (mut x, mut y) = (vec![1u64; 50_000], vec![2u64; 50_000]);
        first
            .overlap(|scope| {
                let request = scope.all_reduce_in_place(&mut x, ReduceOp::SUM)?;
                second.all_reduce_in_place(&mut y, ReduceOp::SUM)?;
                oxccl::group(|group| {
                    group.barrier(a)?;
                    group.barrier(b)
                })?;
                request.wait().map(drop)
            })
            .unwrap();
        // What the one rank started the other one called.
        assert!(x.iter().chain(&y).all(|sum| *sum == 3));
    });
}

/// Rank 1 waits for rank 0's part, which is in flight while that rank splits.
#[test]
fn a_split_advances_what_is_in_flight() {
    let _deadline = Deadline::start("a_split_advances_what_is_in_flight", LIMIT);
    let (mut a, mut b) = (World::new(2, Settings::default()), World::new(2, Settings::default()));
    on_threads(a.ranks.iter_mut().zip(b.ranks.iter_mut()), |(a, b)| {
        let split = || b.split(Some(0), 0).unwrap().expect("a color of its own").barrier().unwrap();
        // More than slots hold: it needs rank 0 to go on.
        let mut sum = vec![1u32; 200_000];
        if a.rank() == 0 {
            let add = a.start(sum, |calls, sum| calls.all_reduce_in_place(sum, ReduceOp::SUM));
            split();
            sum = add.unwrap().wait(a).unwrap();
        } else {
            a.all_reduce_in_place(&mut sum, ReduceOp::SUM).unwrap();
            split();
        }
        assert!(sum.iter().all(|sum| *sum == 2));
    });
}

/// One thread is all ranks, with operations of each in flight: nobody else advances them.
#[test]
fn one_thread_may_be_all_ranks() {
    let _deadline = Deadline::start("one_thread_may_be_all_ranks", LIMIT);
    let world = World::new(4, Settings::default());
    let requests: Vec<_> = (world.ranks.iter())
        .map(|comm| {
            let buffer = vec![comm.rank(); 30_000];
            comm.start(buffer, |calls, buffer| calls.all_reduce_in_place(buffer, ReduceOp::SUM)).unwrap()
        })
        .collect();
    oxccl::group(|group| world.ranks.iter().try_for_each(|comm| group.barrier(comm))).unwrap();
    for (comm, request) in world.ranks.iter().zip(requests).rev() {
        assert!(request.test(comm).unwrap());
        assert!(request.wait(comm).unwrap().iter().all(|x| *x == 6));
    }
}

#[test]
fn there_is_a_limit_and_arguments_are_checked() {
    let _deadline = Deadline::start("there_is_a_limit_and_arguments_are_checked", LIMIT);
    let world = World::new(1, Settings::default());
    let comm = &world.ranks[0];
    let max = oxccl::api::IN_FLIGHT_MAX;
    let refused = comm.overlap(|scope| {
        let requests: Result<Vec<_>, Error> = (0..max).map(|_| scope.barrier()).collect();
        assert!(matches!(scope.barrier(), Err(Error::Argument(ArgumentError::InFlight { .. }))));
        requests?.pop().expect("so many").wait()?;
        // There is room for another.
        scope.barrier()?.wait()?;
        scope.send(&[1], 3).map(drop)
    });
    assert!(matches!(refused, Err(Error::Argument(ArgumentError::NoSuchRank { .. }))), "{refused:?}");
    let uneven = comm.start(([1; 2], [0; 3]), |calls, (a, b)| calls.all_reduce(a, b, ReduceOp::SUM));
    assert!(matches!(uneven.map(drop), Err(Error::Argument(ArgumentError::BufferLength { .. }))));
    comm.barrier().unwrap();
}

/// A wait without end would be seen: a test returns at once when the others have not started.
#[test]
fn a_test_does_not_wait() {
    let _deadline = Deadline::start("a_test_does_not_wait", LIMIT);
    let late = Duration::from_millis(700);
    World::new(2, Settings::default()).each(|comm| {
        let started = Instant::now();
        if comm.rank() == 1 {
            std::thread::sleep(late);
        }
        comm.overlap(|scope| {
            let barrier = scope.barrier()?;
            let mut tests = 0u64;
            while !barrier.test()? {
                tests += 1;
            }
            if comm.rank() == 0 {
                assert!(tests > 1000 && started.elapsed() >= late / 2, "{tests} in {:?}", started.elapsed());
            }
            barrier.wait()
        })
        .unwrap();
    });
}
