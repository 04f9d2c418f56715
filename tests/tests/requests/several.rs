//! Requests of several communicators, in one wait.

use oxccl::{Error, ScopedRequest};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World, on_threads};
use std::sync::Barrier;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// How long a wait lasts that waits for the wrong operation.
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long rank 1 lets rank 0 wait.
const LATE: Duration = Duration::from_millis(300);

fn worlds() -> [World; 2] {
    [(); 2].map(|()| World::new(2, Settings { timeout: TIMEOUT, ..Settings::default() }))
}

/// All were looked for among the first one's communicator's. If there was none like the other's, the wait was over at once, with nothing;
/// if there was one, which has the same number when both communicators have started as many, it waited for the wrong one.
#[test]
fn a_wait_for_any_is_over_when_one_of_either_communicator_is() {
    let _deadline = Deadline::start("a_wait_for_any_is_over_when_one_of_either_communicator_is", LIMIT);
    for started_before in [0, 1] {
        let [mut a, mut b] = worlds();
        let seen = Barrier::new(2);
        let over = on_threads(a.ranks.iter_mut().zip(b.ranks.iter_mut()), |(a, b)| {
            for _ in 0..started_before {
                b.overlap(|scope| scope.barrier()?.wait()).unwrap();
            }
            if a.rank() == 1 {
                std::thread::sleep(LATE);
                let called = b.barrier();
                // The first one's is still under way when the wait ends.
                seen.wait();
                return called.and_then(|()| a.barrier()).map(|()| None);
            }
            let mut over = Ok(None);
            let ended = a.overlap(|in_a| {
                b.overlap(|in_b| {
                    let requests = [in_a.barrier()?, in_b.barrier()?];
                    over = ScopedRequest::wait_any(&requests);
                    seen.wait();
                    let [first, second] = requests;
                    second.wait()?;
                    first.wait()
                })
            });
            over.and_then(|over| ended.map(|()| over))
        });
        let over: Result<Vec<Option<usize>>, Error> = over.into_iter().collect();
        assert_eq!(over, Ok(vec![Some(1), None]), "{started_before}");
    }
}

/// One thread is all ranks of both: what it waits for goes on by itself.
#[test]
fn one_thread_waits_for_any_of_two_communicators() {
    let _deadline = Deadline::start("one_thread_waits_for_any_of_two_communicators", LIMIT);
    for soon in [0, 1] {
        let worlds = worlds();
        let [mine, others] = [0, 1].map(|rank| worlds.each_ref().map(|world| &world.ranks[rank]));
        let barrier = |at: usize| others[at].start((), |calls, ()| calls.barrier());
        let ended = mine[0].overlap(|in_a| {
            mine[1].overlap(|in_b| {
                let requests = [in_a.barrier()?, in_b.barrier()?];
                assert_eq!(ScopedRequest::test_any(&requests), Ok(None));
                let first = barrier(soon)?;
                assert_eq!(ScopedRequest::wait_any(&requests), Ok(Some(soon)));
                assert_eq!(ScopedRequest::test_any(&requests), Ok(Some(soon)));
                let second = barrier(1 - soon)?;
                assert_eq!(ScopedRequest::wait_all(requests)?.len(), 2);
                first.wait(others[soon])?;
                second.wait(others[1 - soon])
            })
        });
        assert_eq!(ended, Ok(()), "{soon}");
    }
}
