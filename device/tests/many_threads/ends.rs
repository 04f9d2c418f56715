//! Operations that do not succeed: all threads of all ranks end, and say why.

use super::block::{Odd, Quitter, Reason, Shape, Slow};
use super::case::{Case, Way, run_each};
use super::world::World;
use oxccl_shared::abi::{Func, Protocol};
use proptest::prelude::*;
use std::time::Duration;

const WAYS: [(Func, Way); 14] = [
    (Func::AllReduce, Way::Ring),
    (Func::AllReduce, Way::Direct),
    (Func::AllReduce, Way::OneHop),
    (Func::AllReduce, Way::TwoHops),
    (Func::AllReduce, Way::FanIn),
    (Func::AllReduce, Way::Tree(0)),
    (Func::AllGather, Way::Ring),
    (Func::ReduceScatter, Way::OneHop),
    (Func::Broadcast, Way::Ring),
    (Func::AllGather, Way::OneHop),
    (Func::AllReduce, Way::LineHops),
    (Func::AllGather, Way::LineHops),
    (Func::AllReduce, Way::Symmetric),
    (Func::AllToAll, Way::Symmetric),
];

/// None and long enough for everybody to go as far as can be without who has stopped.
const DELAYS: [Duration; 2] = [Duration::ZERO, Duration::from_millis(5)];

fn any_case() -> impl Strategy<Value = Case> {
    let what =
        (prop::sample::select(&WAYS[..]), prop::sample::select(Protocol::ALL), 1usize..400, any::<bool>());
    what.prop_map(|((func, way), protocol, count, tiles)| match way {
        Way::OneHop | Way::TwoHops | Way::FanIn => Case::new(func, way, Protocol::LL, count),
        Way::LineHops => Case::new(func, way, Protocol::LL128, count),
        Way::Symmetric => Case::new(func, way, Protocol::Simple, count),
        _ => Case { tiles, ..Case::new(func, way, protocol, count) },
    })
}

fn shape_of(case: &Case, workers: usize) -> Shape {
    Shape { workers, poster: case.protocol == Protocol::Simple }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    /// One thread of one rank gives up, at some look. Whoever succeeds all the same has the right result.
    #[test]
    #[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
    fn everybody_ends_when_one_thread_gives_up(
        n in 2usize..5,
        workers in prop::sample::select(&[1usize, 2, 5, 8][..]),
        rank in 0usize..4,
        thread in 0usize..8,
        patience in 0u32..200,
        abort_delay in prop::sample::select(&DELAYS[..]),
        case in any_case(),
    ) {
        let quitter = (rank % n, Quitter { thread: thread % workers, patience });
        let mut world = World::new(n);
        let ran = run_each(&mut world, shape_of(&case, workers), &vec![case.clone(); n], Odd { quitter: Some(quitter), abort_delay, ..Odd::default() });
        for (rank, (ended, buffers)) in ran.iter().enumerate() {
            // What follows from a stop is no reason: whoever goes on without the first worker may find anything (`KernelStop::write`).
            let first = ended.reasons.first();
            prop_assert!(first.is_none_or(|reason| *reason == Reason::Aborted), "rank {rank}: {ended:?}");
            if ended.is_ok() {
                case.check(n, rank, buffers);
            } else if case.protocol == Protocol::Simple {
                prop_assert!(ended.results.iter().all(Result::is_err), "one leads, all follow: {ended:?}");
            }
        }
    }

    /// One rank calls something else: another operation, or the same with another length.
    #[test]
    #[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
    fn a_peer_in_another_operation_is_refused_by_name(
        n in 2usize..5,
        workers in prop::sample::select(&[1usize, 2, 5, 8][..]),
        stranger in 0usize..4,
        shorter: bool,
        abort_delay in prop::sample::select(&DELAYS[..]),
        case in any_case(),
    ) {
        let stranger = stranger % n;
        let other = if shorter {
            // Every slice differs, and there are no fewer than one for each block.
            Case { count: case.count + 2 * n, ..case.clone() }
        } else {
            Case { tag: case.tag + 1, ..case.clone() }
        };
        let case = if shorter { Case { count: n, ..case } } else { case };
        let mut cases = vec![case.clone(); n];
        cases[stranger] = other;
        let mut world = World::new(n);
        let ran = run_each(&mut world, shape_of(&case, workers), &cases, Odd { abort_delay, ..Odd::default() });
        let mut refusals = 0;
        for (rank, (ended, _)) in ran.iter().enumerate() {
            // As above.
            if let Some(reason) = ended.reasons.first() {
                match *reason {
                    Reason::Aborted => {}
                    Reason::Late(_) => prop_assert!(false, "rank {rank}: {ended:?}"),
                    Reason::Refused { on, expected, found } => {
                        refusals += 1;
                        prop_assert!((rank == stranger) != (on.peer.index() == stranger), "rank {rank}: {ended:?}");
                        prop_assert_eq!(expected.tag, cases[rank].tag);
                        prop_assert_eq!(found.tag, cases[on.peer.index()].tag);
                        prop_assert_ne!(expected, found);
                    }
                }
            }
        }
        prop_assert!(refusals > 0, "{ran:?}", ran = ran.iter().map(|(ended, _)| ended).collect::<Vec<_>>());
    }
}

/// The threads of a rank hear of an abort one after the other: one has stopped, and the others go on without it. What they send then is cut
/// short, but no message may stand in the place of another: a peer would take it for one of another operation. Once the thread that sent
/// headers was not the one that counted the connection, and innocent ranks were named in jobs that were being aborted.
#[test]
#[cfg_attr(miri, ignore = "sleeps")]
fn no_message_stands_in_the_place_of_another_when_threads_stop_one_by_one() {
    let long = Duration::from_millis(10);
    for n in 3usize..6 {
        for (peer, from_behind) in (1..n).flat_map(|peer| [(peer, 0), (peer, peer - 1)]) {
            let case = Case::new(Func::AllGather, Way::LineHops, Protocol::LL128, 1);
            let case = Case { count: case.slice_elems() + 38, ..case };
            let shape = shape_of(&case, 5);
            // The peer is slow to send its header. If the quitter waits for that, it stops; the peer comes to its check of our header
            // when the others of our block are in the next message.
            let thread = shape.workers - 1 - from_behind;
            let quitter = Quitter { thread, patience: 0 };
            let slow = Slow { rank: peer, thread: shape.workers - 1, before_and_after_a_line: long };
            let mut world = World::new(n);
            let odd = Odd { quitter: Some((0, quitter)), slow: Some(slow), abort_delay: 8 * long };
            let ran = run_each(&mut world, shape, &vec![case.clone(); n], odd);
            for (rank, (ended, _)) in ran.iter().enumerate() {
                let first = ended.reasons.first();
                assert!(
                    first.is_none_or(|reason| *reason == Reason::Aborted),
                    "{n} ranks, {rank}: {ended:?}"
                );
            }
        }
    }
}

/// A thread that refuses a message is one of those that write a line together: the others did not stop with it, and published lines without its
/// words. The peer then took a header of no operation for the next message.
#[test]
#[cfg_attr(miri, ignore = "sleeps")]
fn no_line_is_published_without_the_words_of_a_thread_that_stopped() {
    for (func, way) in
        [(Func::Broadcast, Way::Ring), (Func::AllReduce, Way::Ring), (Func::AllReduce, Way::Tree(0))]
    {
        for stranger in 0..4 {
            let case = Case::new(func, way, Protocol::LL128, 1);
            let case = Case { count: 12 * case.slice_elems(), root: stranger, ..case };
            let mut cases = vec![case.clone(); 4];
            cases[stranger].tag += 1;
            let odd = Odd { abort_delay: Duration::from_millis(20), ..Odd::default() };
            let mut world = World::new(4);
            let ran = run_each(&mut world, shape_of(&case, 8), &cases, odd);
            for (rank, (ended, _)) in ran.iter().enumerate() {
                if let Some(Reason::Refused { on, found, .. }) = ended.reasons.first() {
                    assert_eq!(found.tag, cases[on.peer.index()].tag, "rank {rank}: {ended:?}");
                }
            }
        }
    }
}

/// The thread that counts a connection stops in the first of two hops, and has no words itself. Nobody else of its block may go on: the words of the
/// second hop would lie where those of the first are, and a peer that reads later would reduce them, and send what is wrong to a rank that ends
/// well. One in forty of such launches did.
#[test]
#[cfg_attr(miri, ignore = "too much for miri; see `tiny`")]
fn no_hop_begins_without_a_thread_that_stopped() {
    const WORKERS: usize = 8;
    for round in 0..400 {
        for n in [3, 4] {
            let thread = WORKERS - 1 - round % (n - 1);
            let case = Case::new(Func::AllReduce, Way::TwoHops, Protocol::LL, [8, 16, 64, 161][round % 4]);
            let quitter = Quitter { thread, patience: round as u32 % 7 };
            let odd = Odd {
                quitter: Some((n - 1, quitter)),
                abort_delay: Duration::from_millis(5),
                ..Odd::default()
            };
            let mut world = World::new(n);
            let ran = run_each(&mut world, shape_of(&case, WORKERS), &vec![case.clone(); n], odd);
            for (rank, (ended, buffers)) in ran.iter().enumerate() {
                if ended.is_ok() {
                    case.check(n, rank, buffers);
                }
            }
        }
    }
}
