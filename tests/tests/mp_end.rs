//! Ranks that stop, abort or leave while others wait for them: every other rank ends in time with an error that names them.

use oxccl_tests::process::{Job, Launch, SOON};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
/// The steps of a rank after the end.
const LEAVE: &str = "after drop tidy";

/// Expects an error of `kind` that names `guilty` on every rank but those of `except`, at most `within` after `since`.
fn expect_all(job: &mut Job, except: &[u32], kind: &str, guilty: u32, since: Instant, within: Duration) {
    let mut longest = Duration::ZERO;
    for rank in job.without(except) {
        let failure = rank.failure(SOON);
        let named = (failure.kind.as_str(), failure.guilty.as_slice());
        assert_eq!(named, (kind, &[guilty][..]), "rank {}: {failure:?}", rank.rank);
        longest = longest.max(failure.at.saturating_duration_since(since));
    }
    println!("{kind} of rank {guilty}: named everywhere within {:.1} ms", longest.as_secs_f64() * 1e3);
    assert!(longest < within, "{longest:?}");
}

fn all_end_well(job: &mut Job, except: &[u32]) {
    for rank in job.without(except) {
        let status = rank.end(SOON);
        assert!(status.success(), "{}", rank.transcript());
    }
    job.assert_no_files_left();
}

fn stop_in_loop(launch: Launch, call: &str, stopped: u32) {
    let mut job = launch.env("OXCCL_TIMEOUT", "2").start(&format!("join forever={call} {LEAVE}"));
    job.all_print("looping");
    let since = job.ranks[stopped as usize].signal(Signal::STOP);
    expect_all(&mut job, &[stopped], "Timeout", stopped, since, Duration::from_secs(8));
    all_end_well(&mut job, &[stopped]);
    // When it continues, it learns that the others have continued without it.
    job.ranks[stopped as usize].signal(Signal::CONT);
    let failure = job.ranks[stopped as usize].failure(SOON);
    assert!(["PeerAborted", "PeerLeft", "Timeout"].contains(&failure.kind.as_str()), "{failure:?}");
    assert!(job.ranks[stopped as usize].end(SOON).success());
}

#[test]
fn a_stopped_process_is_named_when_the_time_is_up() {
    for stopped in 0..3 {
        stop_in_loop(Launch::new(RANK, 3), "all-reduce:100000", stopped);
    }
}

#[test]
fn a_stopped_process_is_named_over_tcp() {
    stop_in_loop(Launch::new(RANK, 3).env("OXCCL_TRANSPORT", "tcp"), "all-reduce:100000", 1);
}

#[test]
fn a_stopped_process_is_named_in_send_and_receive() {
    stop_in_loop(Launch::new(RANK, 3), "send-recv:100000", 1);
}

/// Rank 0 makes no call, so that ranks 1 and 2 wait, and a second thread of rank 1 aborts.
#[test]
fn an_abort_from_another_thread_ends_every_wait() {
    for transport in ["shm", "tcp"] {
        let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport);
        let mut job = launch.start_each(|rank| {
            let wait = ["idle", "abort-in=300 barrier", "barrier"][rank as usize];
            format!("join {wait} {LEAVE}")
        });
        let aborted_at = job.ranks[1].line("aborting", SOON).at;
        let failure = job.ranks[1].failure(SOON);
        assert_eq!(failure.kind, "Aborted", "{failure:?}");
        expect_all(&mut job, &[1], "PeerAborted", 1, aborted_at, Duration::from_secs(1));
        all_end_well(&mut job, &[]);
    }
}

#[test]
fn a_rank_that_leaves_is_named_by_those_who_wait_for_it() {
    for transport in ["shm", "tcp"] {
        for leaver in 0..3 {
            for call in ["barrier", "all-reduce=1000000"] {
                let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport);
                let mut job = launch.start_each(|rank| {
                    let what = if rank == leaver { "drop tidy" } else { call };
                    format!("join barrier {what} {LEAVE}")
                });
                let left_at = job.ranks[leaver as usize].line("dropped", SOON).at;
                expect_all(&mut job, &[leaver], "PeerLeft", leaver, left_at, Duration::from_secs(2));
                all_end_well(&mut job, &[]);
            }
        }
    }
}

/// The process of rank 1 ends because rank 2 has left, while rank 0 waits for the reason why that one left: rank 0 named rank 1.
#[test]
fn who_ends_because_a_rank_left_before_the_end_is_not_named_for_it() {
    for transport in ["shm", "tcp"] {
        let mut job = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport).start_each(|rank| {
            let steps = [
                "join barrier sleep=100 finalize after drop",
                "exit-at-once join barrier recv=10:2",
                "join barrier drop",
            ];
            steps[rank as usize].to_owned()
        });
        let left_at = job.ranks[2].line("dropped", SOON).at;
        expect_all(&mut job, &[2], "PeerLeft", 2, left_at, Duration::from_secs(3));
    }
}

/// One rank waits in a call that another, which finalizes, never makes.
fn one_finalizes(launch: Launch, call: &str) {
    let mut job = launch.start_each(|rank| {
        let what = ["finalize", call, "idle"][rank as usize];
        format!("join barrier {what} {LEAVE}")
    });
    let finalized_at = job.ranks[0].line("finalizes", SOON).at;
    expect_all(&mut job, &[0], "PeerFinalized", 0, finalized_at, Duration::from_secs(3));
    let (pid, text) = (job.ranks[0].pid(), job.ranks[1].seen("failed ").expect("it failed").text);
    assert!(text.contains(&format!("(rank 0 is process {pid} of ")), "{text}");
    let failure = job.ranks[0].failure(SOON);
    assert_eq!((failure.kind.as_str(), &failure.guilty[..]), ("FinalizedEarly", &[1][..]), "{failure:?}");
    all_end_well(&mut job, &[]);
}

#[test]
fn a_rank_that_finalizes_is_named_by_those_who_wait_for_it() {
    for transport in ["shm", "tcp"] {
        for call in ["recv=100:0", "all-reduce=100000", "send=60000000:0"] {
            one_finalizes(Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport), call);
        }
    }
}

#[test]
fn a_rank_that_finalizes_is_named_over_networks() {
    one_finalizes(Launch::new(RANK, 3).env("OXCCL_TRANSPORT", "net").env("NCCL_NET", "Socket"), "recv=100:0");
}

/// Every rank sends to another root, and none waits for anything.
#[test]
fn roots_that_differ_are_named_at_the_end() {
    for transport in ["shm", "tcp"] {
        let launch = Launch::new(RANK, 4).env("OXCCL_TRANSPORT", transport);
        let mut job = launch.start_each(|rank| format!("join reduce=8:{} finalize {LEAVE}", (rank + 3) % 4));
        for rank in &mut job.ranks {
            let failure = rank.failure(SOON);
            let other = u32::from(rank.rank == 0);
            assert_eq!(
                (failure.kind.as_str(), &failure.guilty[..]),
                ("CallsDiffer", &[other][..]),
                "{failure:?}"
            );
        }
        all_end_well(&mut job, &[]);
    }
}

/// A short message leaves with its send, and was lost without a word if nothing came behind it.
#[test]
fn a_message_that_nobody_receives_is_named_at_the_end() {
    for transport in ["shm", "tcp", "net"] {
        let launch = Launch::new(RANK, 4).env("OXCCL_TRANSPORT", transport).env("NCCL_NET", "Socket");
        let mut job = launch.start_each(|rank| {
            let calls = match rank {
                1 => "send=7:2 send=8:2 send=9:2 recv=3:2",
                2 => "recv=7:1 send=3:1",
                _ => "",
            };
            format!("join all-reduce=100000 {calls} finalize {LEAVE}")
        });
        for rank in &mut job.ranks {
            let failure = rank.failure(SOON);
            let named = (failure.kind.as_str(), &failure.guilty[..]);
            assert_eq!(
                named,
                ("MessagesDiffer", &[1, 2][..]),
                "{transport}, rank {}: {failure:?}",
                rank.rank
            );
            let what = "rank 1 had made 3 sends to rank 2, and that one 1 receive from it; the first without the other half is rank 1's send of 8 float to rank 2";
            assert!(failure.text.contains(what), "{transport}: {}", failure.text);
        }
        all_end_well(&mut job, &[]);
    }
}

/// Messages of every kind, to the end: that they match is found too.
#[test]
fn messages_that_match_end_well() {
    for transport in ["shm", "tcp"] {
        let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport);
        let mut job = launch.start("join check random=7:60 finalize tidy");
        all_end_well(&mut job, &[]);
    }
}

/// A rank that dropped what it had begun was said to have died. The communicator that it was made of goes on.
#[test]
fn who_drops_what_it_began_has_aborted_it_and_not_died() {
    for what in ["split", "shrink"] {
        for after_us in [0, 300, 3000] {
            let mut job = Launch::new(RANK, 4).start_each(|rank| match rank {
                2 => format!("join begin={what}:{after_us} check barrier finalize"),
                _ => format!("join all-{what} after check barrier finalize"),
            });
            for rank in job.without(&[2]) {
                // Once they have met it comes too late, and the child is dropped on all ranks.
                let line = rank.line_of(&["failed ", "step after"], SOON).text;
                let is_right = line == "step after" || line.starts_with("failed PeerAborted 2 ");
                assert!(is_right, "{what} {after_us}: {line}");
            }
            job.all_succeed();
        }
    }
}

/// The same while the ranks join: the process of the one that dropped it ends at once, and no other takes that for its death.
#[test]
fn who_drops_its_join_and_ends_has_not_died() {
    for after_us in [0, 1000, 5000] {
        let mut job = Launch::new(RANK, 4).start_each(|rank| match rank {
            1 => format!("begin=join:{after_us}"),
            _ => "join barrier".to_owned(),
        });
        for rank in job.without(&[1]) {
            let failure = rank.failure(SOON);
            let is_right = ["PeerAborted", "PeerLeft"].contains(&failure.kind.as_str());
            assert!(is_right && failure.guilty == [1], "{after_us}: {failure:?}");
        }
        assert!(job.ranks[1].end(SOON).success());
    }
}

/// Others' last data may still be in flight: leaving at once after the last call breaks nothing. Models a data
/// loader's workers: the child has the communicator's memory and descriptors, but none of its threads.
#[test]
fn a_child_may_drop_what_it_inherited_and_nobody_notices() {
    for transport in ["shm", "tcp"] {
        let launch = Launch::new(RANK, 2).env("OXCCL_TRANSPORT", transport);
        launch.start("join fork-drop check drop tidy").all_succeed();
    }
}

/// A child took part in its parent's place, and finalize and split hung there.
#[test]
fn a_child_that_uses_what_it_inherited_is_refused_and_the_parent_goes_on() {
    for (transport, fork) in
        [("shm", "fork-use"), ("tcp", "fork-use"), ("shm", "fork-in-flight"), ("tcp", "fork-in-flight")]
    {
        let launch = Launch::new(RANK, 2).env("OXCCL_TRANSPORT", transport);
        launch.start(&format!("join {fork} check drop tidy")).all_succeed();
    }
}

/// Forked processes are processes of their own, whatever was set up before they parted.
#[test]
fn children_of_a_process_that_was_a_rank_are_ranks_of_their_own() {
    Launch::new(RANK, 1).start("join drop fork-join").all_succeed();
}

#[test]
fn leaving_right_after_the_last_call_harms_nobody() {
    for transport in ["shm", "tcp"] {
        for _ in 0..10 {
            let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport);
            let mut job = launch.start("join all-reduce=1000 all-reduce=1000000 drop tidy");
            job.all_succeed();
            // Ranks that close the ring behind a leaver and leave themselves meanwhile are no strangers.
            for rank in &job.ranks {
                assert!(!rank.errors().contains("WARN"), "{}", rank.transcript());
            }
        }
    }
}
