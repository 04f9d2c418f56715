//! Ranks that finalize while others wait for them, or after other calls than theirs.

use oxccl::{Communicator, Error, Fault, Rank, ReduceOp, TransportKind};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::harness::{Settings, World, on_threads};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
/// How soon who waits hears of it. Tests run beside each other.
const SOON: Duration = Duration::from_secs(5);
const TRANSPORTS: [TransportKind; 4] =
    [TransportKind::InProcess, TransportKind::Shm, TransportKind::Tcp, TransportKind::Net];

fn ranks(nranks: u32, transport: TransportKind) -> Vec<Communicator> {
    World::new(nranks, Settings { transport: Some(transport), ..Settings::default() }).ranks
}

/// What each rank has of `part` and then of its finalize.
fn end_by(
    ranks: Vec<Communicator>,
    part: impl Fn(&Communicator) -> Result<(), Error> + Sync,
) -> Vec<Option<Error>> {
    let started = Instant::now();
    let errors = on_threads(ranks.into_iter(), |rank| part(&rank).and_then(|()| rank.finalize()).err());
    assert!(started.elapsed() < SOON, "{:?}: {errors:?}", started.elapsed());
    errors
}

/// Rank `guilty` finalizes, rank `waiter` is in an operation: every rank names the first, and that one the other.
fn expect_named(errors: &[Option<Error>], guilty: u32, waiter: u32) {
    for (rank, error) in (0..).zip(errors) {
        let error = error.as_ref().unwrap_or_else(|| panic!("rank {rank} heard nothing: {errors:?}"));
        let is_right = match error.fault() {
            Some(Fault::FinalizedEarly { rank: by }) => rank == guilty && by == Rank(waiter),
            Some(Fault::PeerFinalized { rank: by, .. }) => rank != guilty && by == Rank(guilty),
            _ => false,
        };
        assert!(is_right, "rank {rank}: {error}");
        assert!(error.to_string().contains(&format!("is process {} of ", std::process::id())), "{error}");
    }
}

/// The receiver waited until the timeout of the rank that had finalized (600 s by default), and its error said that this rank had closed.
#[test]
fn a_receive_from_a_rank_that_has_finalized_ends() {
    let _deadline = Deadline::start("a_receive_from_a_rank_that_has_finalized_ends", LIMIT);
    for transport in TRANSPORTS {
        for late in [0, 900] {
            let errors = end_by(ranks(3, transport), |rank| match rank.rank() {
                0 => rank.recv(&mut [0f32; 8], 1),
                1 => {
                    std::thread::sleep(Duration::from_millis(late));
                    Ok(())
                }
                _ => Ok(()),
            });
            expect_named(&errors, 1, 0);
            let text = errors[0].as_ref().unwrap().to_string();
            assert!(text.contains("outstanding here: receive of 8 float from rank 1"), "{text}");
            let text = errors[1].as_ref().unwrap().to_string();
            assert!(text.contains("outstanding there: receive of 8 float from rank 1"), "{text}");
        }
    }
}

#[test]
fn a_collective_that_one_rank_leaves_out_before_it_finalizes_ends() {
    let _deadline = Deadline::start("a_collective_that_one_rank_leaves_out", LIMIT);
    for transport in TRANSPORTS {
        for count in [3, 100_000] {
            let errors = end_by(ranks(2, transport), |rank| {
                rank.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::SUM)?;
                match rank.rank() {
                    0 => rank.all_reduce_in_place(&mut vec![1f32; count], ReduceOp::SUM),
                    _ => Ok(()),
                }
            });
            expect_named(&errors, 1, 0);
            let text = errors[0].as_ref().unwrap().to_string();
            assert!(text.contains("after 1 collectives") && text.contains("(operation 1)"), "{text}");
        }
    }
}

/// Ranks that wait for a rank that waits for the one that has finalized name the last.
#[test]
fn who_waits_for_a_waiting_rank_names_the_one_that_has_finalized() {
    let _deadline = Deadline::start("who_waits_for_a_waiting_rank_names", LIMIT);
    for transport in TRANSPORTS {
        let errors = end_by(ranks(4, transport), |rank| match rank.rank() {
            3 => Ok(()),
            me => rank.recv(&mut [0u8; 4], me + 1),
        });
        expect_named(&errors, 3, 2);
    }
}

/// A long message that nobody takes: its sender waits for room.
#[test]
fn a_send_to_a_rank_that_has_finalized_ends() {
    let _deadline = Deadline::start("a_send_to_a_rank_that_has_finalized_ends", LIMIT);
    for transport in TRANSPORTS {
        // Over a network buffers of the kernel take megabytes, and the send is done then.
        let errors = end_by(ranks(2, transport), |rank| match rank.rank() {
            0 => rank.send(&vec![1u8; 64 << 20], 1),
            _ => Ok(()),
        });
        expect_named(&errors, 1, 0);
    }
}

/// A message that was sent and not taken keeps the numbers of slots apart: a collective's own number tells.
#[test]
fn a_message_that_nobody_took_hides_nothing() {
    let _deadline = Deadline::start("a_message_that_nobody_took_hides_nothing", LIMIT);
    for transport in TRANSPORTS {
        let errors = end_by(ranks(2, transport), |rank| match rank.rank() {
            0 => rank.barrier(),
            _ => rank.send(&[1u8; 4], 0),
        });
        assert!(errors.iter().all(Option::is_some), "{transport:?}: {errors:?}");
        let faults: Vec<_> = errors.iter().flatten().map(Error::fault).collect();
        let is_named = matches!(
            faults[0],
            Some(Fault::PeerFinalized { rank: Rank(1), .. } | Fault::Mismatch { rank: Rank(1), .. })
        );
        assert!(is_named, "{transport:?}: {errors:?}");
    }
}

/// What a rank sent before it finalized arrives, however late the others take it.
#[test]
fn who_takes_late_what_was_sent_before_a_finalize_gets_it() {
    let _deadline = Deadline::start("who_takes_late_what_was_sent_before_a_finalize_gets_it", LIMIT);
    for transport in TRANSPORTS {
        let errors = end_by(ranks(3, transport), |rank| {
            let mut all = vec![rank.rank(); 5_000];
            rank.all_reduce_in_place(&mut all, ReduceOp::SUM)?;
            match rank.rank() {
                1 => rank.send(&[7u32; 9], 0),
                0 => {
                    std::thread::sleep(Duration::from_millis(1_200));
                    let mut got = [0u32; 9];
                    rank.recv(&mut got, 1)?;
                    assert_eq!(got, [7; 9]);
                    Ok(())
                }
                _ => Ok(()),
            }
        });
        assert!(errors.iter().all(Option::is_none), "{transport:?}: {errors:?}");
    }
}

/// Others finalize while two ranks go on for longer than any of them is asked.
#[test]
fn ranks_that_have_finalized_do_not_end_what_others_do_without_them() {
    let _deadline = Deadline::start("ranks_that_have_finalized_do_not_end", LIMIT);
    for transport in TRANSPORTS {
        let errors = end_by(ranks(4, transport), |rank| {
            rank.barrier()?;
            match rank.rank() {
                2 => rank.recv(&mut [0u8; 9], 3),
                3 => {
                    std::thread::sleep(Duration::from_millis(1_500));
                    rank.send(&[0u8; 9], 2)
                }
                _ => Ok(()),
            }
        });
        assert!(errors.iter().all(Option::is_none), "{transport:?}: {errors:?}");
    }
}

/// Every rank takes another for the root, so each only sends, and nothing follows that would show it.
#[test]
fn roots_that_differ_in_the_last_call_are_named_at_finalize() {
    let _deadline = Deadline::start("roots_that_differ_in_the_last_call", LIMIT);
    for transport in TRANSPORTS {
        let errors = end_by(ranks(4, transport), |rank| {
            rank.barrier()?;
            let (mine, mut sum) = ([1f32; 8], [0f32; 8]);
            rank.reduce(&mine, &mut sum, ReduceOp::SUM, (rank.rank() + 3) % 4)
        });
        let first_other = |me: u32| Rank(u32::from(me == 0));
        for (me, error) in (0..).zip(&errors) {
            let error = error.as_ref().unwrap_or_else(|| panic!("rank {me} noticed nothing, {transport:?}"));
            match error.fault() {
                Some(Fault::CallsDiffer { rank, more: 2, theirs: Some(theirs) }) => {
                    assert_eq!((rank, theirs.seq), (first_other(me), 1), "{error}");
                    assert_eq!(theirs.call.root.0, (rank.0 + 3) % 4, "{error}");
                }
                _ => panic!("{transport:?}: {error}"),
            }
        }
    }
}

/// The two meet in one all-gather, and what each sends says which call it is of.
#[test]
fn a_split_while_another_finalizes_ends() {
    let _deadline = Deadline::start("a_split_while_another_finalizes_ends", LIMIT);
    let errors = end_by(ranks(2, TransportKind::Shm), |rank| match rank.rank() {
        0 => rank.split(Some(0), 0).map(drop),
        _ => Ok(()),
    });
    let texts: Vec<_> = errors.iter().flatten().map(ToString::to_string).collect();
    assert_eq!(texts.len(), 2, "{errors:?}");
    assert!(texts[0].contains("rank 1 calls finalize, and this rank calls split"), "{texts:?}");
    assert!(texts[1].contains("rank 0 calls split, and this rank calls finalize"), "{texts:?}");
}

/// The root of a broadcast does not wait for those that leave it out.
#[test]
fn a_last_call_that_one_rank_leaves_out_is_named_at_finalize() {
    let _deadline = Deadline::start("a_last_call_that_one_rank_leaves_out", LIMIT);
    for transport in TRANSPORTS {
        let errors = end_by(ranks(2, transport), |rank| match rank.rank() {
            0 => rank.broadcast_in_place(&mut [1u8; 8], 0),
            _ => Ok(()),
        });
        let texts: Vec<_> = errors.iter().flatten().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 2, "{transport:?}: {texts:?}");
        assert!(
            texts[0].contains("rank 1 did not call broadcast of 8 uint8, root 0 (operation 0)"),
            "{texts:?}"
        );
        assert!(texts[1].contains("this rank did not call broadcast of 8 uint8"), "{texts:?}");
    }
}
