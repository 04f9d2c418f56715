//! Ranks that die, and the others, who go on: with a communicator of those that live, and with new ones in the places of the dead.

use oxccl_tests::process::{Job, Launch, SOON};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
/// The steps of a survivor.
const SURVIVE: &str = "after shrink check";

/// Every rank but the dead ones names one of them, and has a communicator of the others.
fn expect_shrunk(job: &mut Job, dead: &[u32]) {
    let (left, mut longest) = (job.ranks.len() - dead.len(), Duration::ZERO);
    for rank in job.without(dead) {
        let failure = rank.failure(SOON);
        let is_right =
            failure.kind == "PeerDied" && failure.guilty.iter().all(|guilty| dead.contains(guilty));
        assert!(is_right, "rank {}: {failure:?}", rank.rank);
    }
    for (place, rank) in job.without(dead).enumerate() {
        let line = rank.line("shrunk", SOON).text;
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = [place.to_string(), left.to_string()];
        assert_eq!(words[1..3], expected.each_ref().map(String::as_str), "rank {}: {line}", rank.rank);
        longest = longest.max(Duration::from_micros(words[3].parse().unwrap()));
    }
    println!("{dead:?} dead, {left} ranks left: shrunk within {:.1} ms", longest.as_secs_f64() * 1e3);
}

fn all_end_well(job: &mut Job, dead: &[u32]) {
    for rank in job.without(dead) {
        rank.line("checked", SOON);
        let status = rank.end(SOON);
        assert!(status.success(), "{}", rank.transcript());
    }
    job.assert_no_files_left();
}

/// Leaves nothing behind.
const TIDY: &str = "drop tidy";
/// The same where ranks have met in vain: their root answers late comers for a while.
const TIDY_LATER: &str = "drop sleep=7000 tidy";

/// Kills ranks in the middle of operations.
fn survive(launch: &Launch, call: &str, dead: &[u32]) {
    let tidy = if dead.len() == 1 { TIDY } else { TIDY_LATER };
    let mut job = launch.start(&format!("join forever={call} {SURVIVE} {tidy}"));
    job.all_print("looping");
    for rank in dead {
        job.ranks[*rank as usize].kill();
    }
    expect_shrunk(&mut job, dead);
    all_end_well(&mut job, dead);
}

#[test]
fn survivors_of_a_death_go_on_over_shared_memory() {
    for dead in 0..4 {
        survive(&Launch::new(RANK, 4).env("OXCCL_TRANSPORT", "shm"), "all-reduce:100000", &[dead]);
    }
}

#[test]
fn survivors_of_a_death_go_on_over_tcp_and_a_network() {
    survive(&Launch::new(RANK, 4).env("OXCCL_TRANSPORT", "tcp"), "all-reduce:100000", &[0]);
    survive(&Launch::new(RANK, 3).env("OXCCL_TRANSPORT", "tcp"), "send-recv:100000", &[2]);
    let network = Launch::new(RANK, 4).env("OXCCL_TRANSPORT", "net").env("NCCL_NET", "socket");
    survive(&network, "all-reduce:100000", &[1]);
}

#[test]
fn several_die_at_once() {
    for dead in [&[0, 1][..], &[1, 3], &[0, 2, 4], &[1, 2, 3, 4]] {
        survive(&Launch::new(RANK, 6), "all-reduce:10000", dead);
    }
}

/// The second rank dies while the others make a communicator without the first.
#[test]
fn another_rank_dies_meanwhile() {
    for (first, second) in [(1, 0), (0, 3), (4, 2)] {
        let mut job =
            Launch::new(RANK, 5).start(&format!("join forever=all-reduce:10000 {SURVIVE} {TIDY_LATER}"));
        job.all_print("looping");
        job.ranks[first as usize].kill();
        job.ranks[second as usize].line("step shrink", SOON);
        job.ranks[second as usize].kill();
        expect_shrunk(&mut job, &[first, second]);
        all_end_well(&mut job, &[first, second]);
    }
}

/// The second rank dies at random moments of the shrink, so that some may have finished it when others have not: every survivor soon has
/// a communicator or an error, and whoever has one with the dead learns of that by its next call.
#[test]
fn another_rank_dies_at_random_moments_of_the_shrink() {
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, b"deaths amid a shrink: 32 letters");
    let (mut slowest, mut outcomes) = (Duration::ZERO, std::collections::BTreeMap::<String, u32>::new());
    for round in 0..24 {
        let mut job = Launch::new(RANK, 5).start("join idle after shrink barrier after drop");
        job.all_print("step idle");
        let (first, second) = (round % 5, (round + 1 + rng.next_u32() % 4) % 5);
        job.ranks[first as usize].kill();
        job.ranks[second as usize].line("step shrink", SOON);
        std::thread::sleep(Duration::from_micros(u64::from(rng.next_u32() % 25_000)));
        let killed_at = job.ranks[second as usize].kill();
        for rank in job.without(&[first, second]) {
            let over = rank.line("step drop", SOON).at.saturating_duration_since(killed_at);
            let transcript = rank.transcript();
            let outcome = match transcript.split_once("step shrink") {
                Some((_, after)) if !after.contains("failed") => "a communicator of the living",
                Some((_, after)) if after.contains("shrunk") => "a communicator with the dead",
                Some((_, after)) if after.contains("failed PeerWentOn") => "the others went on",
                _ => panic!("round {round}: {first}, then {second} killed: {transcript}"),
            };
            *outcomes.entry(outcome.to_owned()).or_default() += 1;
            // Half a second by itself; the bootstrap's timeout would be 30 s.
            assert!(over < SOON / 2, "round {round}: {over:?} after the death: {transcript}");
            slowest = slowest.max(over);
        }
    }
    println!(
        "{outcomes:?}; the slowest was done {:.1} ms after the second death",
        slowest.as_secs_f64() * 1e3
    );
}

/// A rank is stopped, another dies: the first was named by some, and those for whom the stopped one had news by others, in three timeouts
/// one after the other. Where nobody dies, the operation's timeout is the reason.
#[test]
fn a_stopped_rank_is_named_by_all_survivors_and_nobody_else_is() {
    for (stopped, killed) in [(3, Some(1)), (0, Some(1)), (2, None)] {
        let launch = Launch::new(RANK, 5).env("OXCCL_BOOTSTRAP_TIMEOUT", "3").env("OXCCL_TIMEOUT", "2");
        let mut job = launch.start("join forever=all-reduce:10000 after exit-at-once shrink");
        job.all_print("looping");
        job.ranks[stopped as usize].signal(Signal::STOP);
        if let Some(rank) = killed {
            job.ranks[rank as usize].kill();
        }
        let others: Vec<u32> = killed.into_iter().chain([stopped]).collect();
        for rank in job.without(&others) {
            rank.line("step shrink", SOON);
        }
        let begun = Instant::now();
        for rank in job.without(&others) {
            let failure = rank.failure(SOON);
            let found = (failure.kind.as_str(), failure.guilty.as_slice());
            assert_eq!(found, ("MissingRanks", &[stopped][..]), "rank {}: {failure:?}", rank.rank);
        }
        assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
    }
}

/// How the ranks are, of which some are stopped and some die.
struct Stopped {
    transport: &'static str,
    nranks: u32,
    stopped: &'static [u32],
    killed: &'static [u32],
    /// Whether the stopped ranks go on while the others make their communicator, and not afterwards.
    goes_on_early: bool,
}

/// The first member told the others where they meet at once and after an eighth of the timeout, and never again: who was stopped then
/// heard nothing, and all waited out the timeout and named another rank.
#[test]
fn a_member_that_is_stopped_for_a_while_at_the_beginning_of_a_shrink_comes_later() {
    for nranks in [2, 3] {
        let launch = Launch::new(RANK, nranks).env("OXCCL_BOOTSTRAP_TIMEOUT", "16");
        let mut job = launch.start("join check ask all-shrink check finalize");
        job.all_print("step ask");
        job.signal(&[1], Signal::STOP);
        job.ranks.iter_mut().for_each(|rank| rank.say("go"));
        std::thread::sleep(Duration::from_secs(4));
        job.signal(&[1], Signal::CONT);
        let back = Instant::now();
        for rank in &mut job.ranks {
            rank.line("checked", SOON);
            let status = rank.end(SOON);
            assert!(status.success(), "{status}: {}", rank.transcript());
        }
        assert!(back.elapsed() < Duration::from_secs(8), "{:?}", back.elapsed());
    }
}

/// The survivors learn whom they miss, and leave that one out. It goes on later, gets an error soon, and disturbs nobody.
fn leave_out(case: &Stopped) {
    let Stopped { transport, nranks, stopped, killed, goes_on_early } = *case;
    let all_out = [stopped, killed].concat();
    let listed = all_out.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let launch = Launch::new(RANK, nranks).env("OXCCL_TRANSPORT", transport);
    let launch = launch.env("OXCCL_BOOTSTRAP_TIMEOUT", "3").env("OXCCL_TIMEOUT", "2");
    let mut job = launch.start_each(|rank| match stopped.contains(&rank) {
        true => "join forever=all-reduce:10000 after shrink after drop".to_owned(),
        false => format!(
            "join forever=all-reduce:10000 after shrink after shrink-without={listed} check ask check drop"
        ),
    });
    job.all_print("looping");
    job.signal(stopped, Signal::STOP);
    job.signal(killed, Signal::KILL);
    for rank in job.without(&all_out) {
        // Whom they have lost in the operation, then whom they miss in the first meeting.
        rank.failure(SOON);
        let failure = rank.failure(SOON);
        assert_eq!(failure.kind, "MissingRanks", "rank {}: {failure:?}", rank.rank);
        assert!(failure.guilty.iter().all(|guilty| stopped.contains(guilty)), "{failure:?}");
        rank.line("step shrink-without", SOON);
    }
    let begun = Instant::now();
    if goes_on_early {
        job.signal(stopped, Signal::CONT);
    }
    expect_left(&mut job, &all_out);
    assert!(
        begun.elapsed() < Duration::from_secs(4),
        "{case_text}: {:?}",
        begun.elapsed(),
        case_text = listed
    );
    job.without(&all_out).for_each(|rank| drop(rank.line("checked", SOON)));
    let went_on = Instant::now();
    job.signal(stopped, Signal::CONT);
    for rank in stopped {
        let rank = &mut job.ranks[*rank as usize];
        // Of the operation, and of the shrink that the others have left it out of.
        rank.failure(SOON);
        rank.failure(SOON);
        assert!(rank.end(SOON).success(), "{}", rank.transcript());
    }
    assert!(went_on.elapsed() < Duration::from_secs(10), "{:?}", went_on.elapsed());
    job.without(&all_out).for_each(|rank| rank.say("go on"));
    all_end_well(&mut job, &all_out);
}

/// Every rank but these has a communicator of the others.
fn expect_left(job: &mut Job, out: &[u32]) {
    let left = job.ranks.len() - out.len();
    for (place, rank) in job.without(out).enumerate() {
        let line = rank.line("shrunk", SOON).text;
        assert!(line.starts_with(&format!("shrunk {place} {left} ")), "rank {}: {line}", rank.rank);
    }
}

#[test]
fn a_stopped_rank_is_left_out_and_gets_an_error_when_it_goes_on() {
    for (nranks, transport, stopped, killed) in [
        (4, "shm", &[3][..], &[][..]),
        (4, "tcp", &[0], &[]),
        (5, "shm", &[1], &[3]),
        // The ring of the others is in two parts.
        (6, "shm", &[1, 4], &[]),
    ] {
        leave_out(&Stopped { transport, nranks, stopped, killed, goes_on_early: false });
    }
}

#[test]
fn a_stopped_rank_that_goes_on_while_the_others_leave_it_out_disturbs_nobody() {
    for stopped in [&[0][..], &[2], &[3]] {
        leave_out(&Stopped { transport: "shm", nranks: 4, stopped, killed: &[], goes_on_early: true });
    }
}

/// What `shrink_to_living` warns of: the late rank has a communicator without an error, and only its size shows that the others are elsewhere.
#[test]
fn a_rank_that_comes_when_the_others_have_gone_on_and_left_is_alone() {
    let mut job = Launch::new(RANK, 3).start_each(|rank| match rank {
        2 => "join ask shrink drop".to_owned(),
        _ => "join shrink-without=2 check drop tidy".to_owned(),
    });
    for rank in job.without(&[2]) {
        rank.line("dropped", SOON);
    }
    let late = &mut job.ranks[2];
    late.say("go on");
    let line = late.line("shrunk", SOON).text;
    assert!(line.starts_with("shrunk 0 1 "), "{line}");
    for rank in &mut job.ranks {
        assert!(rank.end(SOON).success(), "{}", rank.transcript());
    }
}

/// Figures, for docs/measurements: `cargo nextest run -p oxccl-tests --run-ignored only how_long_a_shrink --no-capture`.
#[test]
#[ignore = "measures"]
fn how_long_a_shrink_takes() {
    for nranks in [64, 32, 16, 8, 4] {
        for _ in 0..5 {
            // Without operations, for which so many processes take turns on few processors.
            let mut job = Launch::new(RANK, nranks).start("join idle after shrink idle");
            job.all_print("step idle");
            job.ranks[1].kill();
            expect_shrunk(&mut job, &[1]);
        }
    }
}

/// A new process takes the place of the one that died, and again after another death.
#[test]
fn a_new_rank_takes_the_place_of_the_dead() {
    let launch = Launch::new(RANK, 3);
    let steps = "join forever=all-reduce:10000 after shrink grow=3 forever=all-reduce:10000 after shrink check drop tidy";
    let mut job = launch.start(steps);
    job.all_print("looping");
    job.ranks[1].kill();
    let id = job.ranks[0].line("id ", SOON).text["id ".len()..].to_owned();
    let newcomer = launch.id(&id).spawn(2, "join forever=all-reduce:10000 after shrink check drop tidy");
    job.ranks.push(newcomer);
    for rank in job.without(&[1]) {
        rank.line("looping", SOON);
    }
    job.ranks[2].kill();
    for at in [0, 3] {
        job.ranks[at].line("shrunk", SOON);
        job.ranks[at].line("checked", SOON);
        let status = job.ranks[at].end(SOON);
        assert!(status.success(), "{}", job.ranks[at].transcript());
    }
    job.assert_no_files_left();
}
