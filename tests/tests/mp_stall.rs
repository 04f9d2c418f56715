//! Operations that stand still: one rank says which rank they wait for, what that does, and when it goes on.

use oxccl_tests::hosts::{Hosts, INTERFACE};
use oxccl_tests::process::{Job, Launch, Line, SOON, go_before_others};
use oxccl_tests::slowed::Slowed;
use rustix::process::Signal;
use std::panic::catch_unwind;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const WARN: Duration = Duration::from_secs(1);
/// How long after the warn time the report may come; the aim is 1 s, and other tests use the same processors.
const LATE_MAX: Duration = Duration::from_secs(3);
/// Of a test that other programs disturb.
const TRIES: u32 = 4;
const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

fn launch(nranks: u32, transport: &str) -> Launch {
    let launch = Launch::new(RANK, nranks).env("OXCCL_TRANSPORT", transport);
    launch.env("OXCCL_STALL_WARN", &WARN.as_secs_f64().to_string())
}

/// Expects the same stall on all ranks but one: class, the rank at fault, the operation's number and function.
fn expect_stall(job: &mut Job, except: u32, expected: (&str, u32, u64, &str), since: Instant) {
    for rank in job.without(&[except]) {
        let Line { text, at } = rank.line("stall ", SOON);
        let words: Vec<&str> = text.split(' ').collect();
        let [_, class, guilty, _, seq, func] = words[..] else { panic!("{text}") };
        let (want_class, want_rank, want_seq, want_func) = expected;
        assert_eq!((class, guilty, func), (want_class, &*want_rank.to_string(), want_func), "{text}");
        // Of a loop nobody knows which turn it was in.
        assert!(want_seq == u64::MAX || seq == want_seq.to_string(), "{text}");
        let after = at.saturating_duration_since(since);
        println!("{text}: after {:.2} s", after.as_secs_f64());
        assert!(after > WARN / 2 && after < WARN + LATE_MAX, "{after:?}");
    }
}

fn expect_over(job: &mut Job, except: u32) {
    job.without(&[except]).for_each(|rank| drop(rank.line("moves", SOON)));
}

/// All ranks' warnings about stalls. Ends the job.
fn warnings(job: &mut Job) -> Vec<String> {
    for rank in &job.ranks {
        rank.kill();
    }
    let errors = job.ranks.iter_mut().map(|rank| {
        rank.end(SOON);
        rank.errors().to_owned()
    });
    let lines: Vec<String> =
        errors.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>()).collect();
    lines.into_iter().filter(|line| line.contains("WARN") && line.contains("stall")).collect()
}

/// A program that ends at its first error, without dropping its communicator, was taken for the one at fault: its last words were not
/// written yet.
#[test]
fn who_ends_at_once_because_of_another_is_not_named_for_it() {
    for round in 0..12 {
        let launch = Launch::new(RANK, 5).env("OXCCL_TRANSPORT", ["shm", "tcp"][round % 2]);
        let mut job = Job::new();
        let hasty = [0, 2, 3, 4][round % 4];
        for rank in 0..5 {
            let launch = launch.clone().env("OXCCL_TIMEOUT", if rank == hasty { "1" } else { "20" });
            job.ranks.push(launch.spawn(rank, "exit-at-once join forever=all-reduce:1000"));
        }
        job.all_print("looping");
        job.ranks[1].signal(Signal::STOP);
        for process in job.without(&[1]) {
            let failure = process.failure(SOON);
            assert_eq!(failure.guilty, [1], "round {round}, {hasty} ends first: {failure:?}");
        }
    }
}

#[test]
fn a_stopped_process_is_named_once_and_forgotten_when_it_continues() {
    for transport in TRANSPORTS {
        for stopped in 0..3 {
            let mut job = launch(3, transport).start("join watch-stall forever=all-reduce:100000");
            job.all_print("looping");
            let since = job.ranks[stopped as usize].signal(Signal::STOP);
            expect_stall(&mut job, stopped, ("NoAnswer", stopped, u64::MAX, "all_reduce"), since);
            let pid = job.ranks[stopped as usize].pid();
            job.ranks[stopped as usize].signal(Signal::CONT);
            expect_over(&mut job, stopped);
            let warnings = warnings(&mut job);
            let [report, over] = &warnings[..] else { panic!("{warnings:#?}") };
            assert!(report.contains("[no answer]: all_reduce of 100000 float, sum (operation "), "{report}");
            assert!(
                report.contains(&format!("rank {stopped} (")) && report.contains(&format!("pid {pid})")),
                "{report}"
            );
            assert!(report.contains(" waits for it"), "{report}");
            assert!(over.contains("is over"), "{over}");
        }
    }
}

/// The other ranks give up after their timeout: then the operation that stood still does not go on.
#[test]
fn an_operation_that_fails_is_not_said_to_go_on() {
    for transport in TRANSPORTS {
        let launch = launch(3, transport).env("OXCCL_TIMEOUT", "3");
        let mut job = launch.start("join watch-stall forever=all-reduce:100000 after sleep=2000");
        job.all_print("looping");
        job.ranks[2].signal(Signal::STOP);
        for rank in job.without(&[2]) {
            rank.failure(SOON);
            rank.line("step sleep", SOON);
        }
        std::thread::sleep(Duration::from_secs(1));
        let warnings = warnings(&mut job);
        assert!(warnings.iter().any(|line| line.contains("[no answer]: all_reduce")), "{warnings:#?}");
        assert!(!warnings.iter().any(|line| line.contains("goes on")), "{warnings:#?}");
        assert!(warnings.iter().any(|line| line.contains("has failed")), "{warnings:#?}");
    }
}

/// One operation, which lasts as long as it takes: a rank is stopped in it, continued, and stopped again.
#[test]
fn a_process_that_is_stopped_twice_within_one_operation_is_named_twice() {
    // Small slots, all ranks on one processor: it runs for seconds, of which the test needs one.
    let launch = launch(8, "tcp").env("NCCL_BUFFSIZE", "8192").env("NCCL_ALGO", "ring");
    let launch = launch.under(["taskset", "-c", "0"].map(str::to_owned));
    let mut job = launch.start("join watch-stall barrier all-reduce=20000000 sleep=300 drop");
    job.all_print("step all-reduce");
    // Both are in it: the barrier is behind them.
    std::thread::sleep(Duration::from_millis(20));
    for _ in 0..2 {
        let since = job.ranks[1].signal(Signal::STOP);
        expect_stall(&mut job, 1, ("NoAnswer", 1, 1, "all_reduce"), since);
        job.ranks[1].signal(Signal::CONT);
        expect_over(&mut job, 1);
    }
    let warnings = warnings(&mut job);
    let is_over: Vec<bool> = warnings.iter().map(|line| line.contains("is over")).collect();
    assert_eq!(is_over, [false, true, false, true], "{warnings:#?}");
}

/// Rank 1 comes to the third operation only when it is asked to.
#[test]
fn a_rank_that_never_enters_is_named_with_what_it_did_last() {
    for transport in TRANSPORTS {
        for calls in ["all-reduce=1000", "all-reduce=1000000", "barrier"] {
            let mut job = launch(3, transport).start_each(|rank| {
                let late = if rank == 1 { "ask " } else { "" };
                format!("join watch-stall {calls} {calls} {late}{calls} sleep=300 drop")
            });
            job.ranks[1].line("step ask", SOON);
            let func = calls.split('=').next().unwrap_or(calls).replace('-', "_");
            expect_stall(&mut job, 1, ("MissingEnter", 1, 2, func.as_str()), Instant::now());
            job.ranks[1].say("go on");
            expect_over(&mut job, 1);
            job.all_succeed();
            let texts: Vec<String> = job.ranks.iter().map(|rank| rank.errors().to_owned()).collect();
            let texts = texts.concat();
            assert_eq!(texts.matches("WARN").count(), 2, "{texts}");
            assert!(
                texts.contains("rank 1 (") && texts.contains("has not entered it; its latest was"),
                "{texts}"
            );
        }
    }
}

/// Which of a program's many calls of one kind it is, the number that the program gave it says.
#[test]
fn the_callers_tag_is_in_the_report_and_in_the_status() {
    let mut job = launch(3, "shm").start_each(|rank| {
        let late = if rank == 1 { "ask " } else { "" };
        format!(
            "join watch-stall tag=41 all-reduce=10 tag={} {late}all-reduce=10 sleep=300 drop",
            7000 + rank
        )
    });
    job.ranks[1].line("step ask", SOON);
    expect_stall(&mut job, 1, ("MissingEnter", 1, 1, "all_reduce"), Instant::now());
    for rank in [0, 2] {
        let all = oxccl::status::ask::processes().unwrap();
        let process = all.into_iter().find(|found| found.pid == job.ranks[rank].pid()).expect("it listens");
        let report = process.status(8, Duration::ZERO, SOON).unwrap();
        let communicator = &report.communicators[0];
        let tag = communicator.during.as_ref().and_then(|during| during.tag);
        assert_eq!(tag, Some(7000 + rank as u64), "{communicator:?}");
        let recent: Vec<_> = communicator.recent.iter().map(|record| record.operation.tag).collect();
        assert_eq!(recent, [Some(41), tag]);
    }
    job.ranks[1].say("go on");
    expect_over(&mut job, 1);
    job.all_succeed();
    let texts: Vec<String> = job.ranks.iter().map(|rank| rank.errors().to_owned()).collect();
    let texts = texts.concat();
    let named = ["(operation 1) [tag 7000]", "(operation 1) [tag 7002]"];
    assert!(named.iter().any(|tag| texts.contains(tag)), "{texts}");
}

/// It ends its loop early, and then waits for something else.
#[test]
fn a_rank_that_makes_no_call_at_all_is_named() {
    let mut job = launch(4, "shm").start_each(|rank| {
        let calls = if rank == 3 { "ask all-reduce=10" } else { "all-reduce=10" };
        format!("join watch-stall {calls} sleep=300 drop")
    });
    job.ranks[3].line("step ask", SOON);
    expect_stall(&mut job, 9, ("MissingEnter", 3, 0, "all_reduce"), Instant::now());
    job.ranks[3].say("go on");
    expect_over(&mut job, 9);
    job.all_succeed();
}

/// Another operation or another size is an error long before the warn time.
#[test]
fn other_calls_are_errors_before_they_are_stalls() {
    for transport in TRANSPORTS {
        for other in ["barrier", "all-reduce=2000"] {
            let mut job = launch(3, transport).start_each(|rank| {
                let call = if rank == 2 { other } else { "all-reduce=1000" };
                format!("join watch-stall barrier {call} after drop")
            });
            for rank in &mut job.ranks {
                let failure = rank.failure(SOON);
                assert!(
                    ["Mismatch", "PeerAborted", "PeerLeft"].contains(&failure.kind.as_str()),
                    "{failure:?}"
                );
            }
            assert_eq!(warnings(&mut job), [""; 0]);
        }
    }
}

/// It was said to be in no call, though it waits for the others.
#[test]
fn a_rank_that_waits_in_a_split_is_said_to_be_in_it() {
    let mut job = launch(3, "shm").start_each(|rank| {
        let call = if rank == 2 { "all-reduce=10" } else { "all-split" };
        format!("join watch-stall barrier {call} sleep=300")
    });
    job.ranks[2].line("step all-reduce", SOON);
    job.ranks[2].line("stall ", SOON);
    let asked = oxccl::status::ask::processes().unwrap();
    let process = asked.into_iter().find(|found| found.pid == job.ranks[0].pid()).expect("it listens");
    let report = process.status(8, Duration::from_secs(1), SOON).unwrap();
    let communicator = &report.communicators[0];
    let calls: Vec<_> = communicator.ranks.iter().map(|rank| rank.in_comm_call.as_deref()).collect();
    assert_eq!(calls, [Some("split"), Some("split"), None], "{communicator:?}");
    assert_eq!(communicator.in_comm_call.as_deref(), Some("split"));
    std::thread::sleep(WARN);
    let warnings = warnings(&mut job);
    let has = |text: &str| warnings.iter().any(|line| line.contains(text));
    let says = "has not entered it; its latest was barrier (operation 0), and it is in split";
    assert!(has("[missing enter]: all_reduce of 10 float") && has(says), "{warnings:#?}");
    assert!(!has("it is in no call"), "{warnings:#?}");
}

/// Such waits were silent until the bootstrap's time was over.
#[test]
fn a_rank_that_does_not_come_to_a_split_or_to_the_end_is_named_once() {
    for (call, name) in [("all-split", "split"), ("all-shrink", "shrink"), ("finalize", "finalize")] {
        let mut job = launch(3, "shm").start_each(|rank| {
            let late = if rank == 2 { "ask " } else { "" };
            format!("join barrier {late}{call}")
        });
        job.ranks[2].line("step ask", SOON);
        std::thread::sleep(WARN * 3);
        job.ranks[2].say("go on");
        job.all_succeed();
        let late = job.ranks[2].pid();
        let texts: String = job.ranks.iter().map(|rank| rank.errors()).collect();
        let stalls: Vec<&str> = texts.lines().filter(|line| line.contains("stall [")).collect();
        let [report, over] = &stalls[..] else { panic!("{call}: {stalls:#?}") };
        assert!(report.contains(&format!("stall [missing enter]: {name} of communicator ")), "{report}");
        assert!(report.contains("(3 ranks) has made no progress for 1."), "{report}");
        assert!(
            report.contains("rank 2 (") && report.contains(&format!("pid {late}) has not entered it")),
            "{report}"
        );
        assert!(
            report.contains("; its latest was barrier (operation 0), and it is in no call. rank "),
            "{report}"
        );
        assert!(report.ends_with(") waits for it"), "{report}");
        assert!(over.contains(&format!("is over: {name} of communicator")), "{over}");
    }
}

#[test]
fn a_process_that_is_stopped_before_a_split_is_named() {
    let mut job = launch(4, "tcp").start_each(|rank| {
        let late = if rank == 1 { "ask " } else { "" };
        format!("join barrier {late}all-split sleep=300")
    });
    job.ranks[1].line("step ask", SOON);
    job.ranks[1].signal(Signal::STOP);
    std::thread::sleep(WARN * 3);
    let warnings = warnings(&mut job);
    let [report] = &warnings[..] else { panic!("{warnings:#?}") };
    assert!(report.contains("[no answer]: split of communicator"), "{report}");
    assert!(
        report.contains("rank 1 (") && report.contains(") does not answer: its process is stopped"),
        "{report}"
    );
}

/// Who waited heard neither in which call, nor what sets the time.
#[test]
fn the_time_out_of_a_split_names_the_call_and_the_variable() {
    for (call, name) in [("all-split", "split"), ("finalize", "finalize")] {
        let launch = launch(3, "shm").env("OXCCL_BOOTSTRAP_TIMEOUT", "2");
        let mut job = launch.start_each(|rank| {
            let late = if rank == 2 { "ask " } else { "" };
            format!("join barrier {late}{call}")
        });
        let mut texts = Vec::new();
        for rank in job.without(&[2]) {
            let failure = rank.failure(SOON);
            assert_eq!((failure.kind.as_str(), &failure.guilty[..]), ("Timeout", &[2][..]), "{failure:?}");
            assert!(failure.text.contains(&format!("{name}: ")), "{failure:?}");
            texts.push(failure.text);
        }
        let says = "an all-gather of the bootstrap took longer than 2 s (OXCCL_BOOTSTRAP_TIMEOUT), still waiting for rank 2";
        let is_whole = |text: &String| text.contains(&format!("{name}: {says}"));
        assert!(texts.iter().any(is_whole), "{texts:?}");
    }
}

/// The first one that gave up did not know that its communicator had failed: its next call waited for `OXCCL_TIMEOUT`, though the other rank had
/// ended.
#[test]
fn a_rank_whose_split_timed_out_goes_no_further() {
    let launch = launch(3, "shm").env("OXCCL_BOOTSTRAP_TIMEOUT", "2").env("OXCCL_TIMEOUT", "600");
    let mut job = launch.start_each(|rank| match rank {
        2 => "join barrier ask barrier".to_owned(),
        _ => "join barrier failing-split all-reduce=8".to_owned(),
    });
    for rank in job.without(&[2]) {
        let failure = rank.failure(SOON);
        let is_of_a_wait = ["Timeout", "PeerTimeout"].contains(&failure.kind.as_str());
        assert!(is_of_a_wait && failure.guilty == [2], "{failure:?}");
    }
}

/// Those that split heard that the other one's message was malformed.
#[test]
fn ranks_that_make_different_calls_together_hear_which() {
    for (calls, names) in [
        (["all-split", "finalize"], ["split", "finalize"]),
        (["finalize", "all-split"], ["finalize", "split"]),
        (["all-split", "grow=3"], ["split", "grow"]),
    ] {
        let mut job =
            launch(3, "shm").start_each(|rank| format!("join barrier {}", calls[usize::from(rank == 2)]));
        for rank in &mut job.ranks {
            let failure = rank.failure(SOON);
            let is_odd = usize::from(rank.rank == 2);
            let other = [2, 0][is_odd];
            let says =
                format!("rank {other} calls {}, and this rank calls {}:", names[1 - is_odd], names[is_odd]);
            assert_eq!(
                (failure.kind.as_str(), &failure.guilty[..]),
                ("CallsDiffer", &[other][..]),
                "{failure:?}"
            );
            assert!(failure.text.contains(&says), "{failure:?}");
        }
    }
}

/// They meet in different ways, and a program may make both at a time: only the time is up. It said which ranks had not come, and not to what.
#[test]
fn the_time_out_of_a_split_against_a_shrink_names_both() {
    for (calls, names) in [
        (["all-split", "all-shrink"], ["split", "shrink"]),
        (["all-shrink", "all-split"], ["shrink", "split"]),
    ] {
        let launch = launch(3, "shm").env("OXCCL_BOOTSTRAP_TIMEOUT", "3");
        let mut job =
            launch.start_each(|rank| format!("join barrier {} after ask", calls[usize::from(rank == 2)]));
        let texts: Vec<String> = job.ranks.iter_mut().map(|rank| rank.failure(SOON).text).collect();
        println!("{texts:#?}");
        for [ours, theirs] in [names, [names[1], names[0]]] {
            let names_both = |text: &&String| {
                text.contains(ours) && text.contains(&format!(" said that it was in {theirs}"))
            };
            assert!(texts.iter().any(|text| names_both(&text)), "{ours}, {theirs}: {texts:#?}");
        }
    }
}

/// Each was said to be late, and the report said of neither where it was.
#[test]
fn ranks_that_call_two_communicators_in_different_orders_hear_so() {
    for transport in TRANSPORTS {
        // A rank may be asked before it has come to its call, where other programs take the processors.
        let mut tries = (0..TRIES).map(|_| catch_unwind(|| where_the_other_waits_is_named(transport)));
        assert!(tries.any(|tried| tried.is_ok()), "{transport}, {TRIES} times");
    }
}

/// Process 1 is rank 1 of the first communicator and rank 0 of the other one, in which process 0 waits for it: in both a rank 1 waits.
fn where_the_other_waits_is_named(transport: &str) {
    let mut job = launch(2, transport).env("OXCCL_TIMEOUT", "3").start_each(|rank| {
        let order = if rank == 0 { "" } else { "swap " };
        format!("join barrier reverse barrier {order}all-reduce=1000 after ask")
    });
    let says = "its process is in all_reduce of another communicator and waits there for rank 1; perhaps the two wait for each other, as \
                processes do that call their communicators in different orders";
    let failures: Vec<_> = job.ranks.iter_mut().map(|process| process.failure(SOON)).collect();
    for (process, failure) in job.ranks.iter_mut().zip(failures) {
        assert_eq!((failure.kind.as_str(), &failure.guilty[..]), ("Timeout", &[0][..]), "{failure:?}");
        assert!(failure.text.contains(says), "{failure:?}");
        process.kill();
        process.end(SOON);
        let errors = process.errors();
        let stalls: Vec<&str> =
            errors.lines().filter(|line| line.contains("stall [missing enter]: ")).collect();
        let [report] = &stalls[..] else { panic!("{stalls:#?}") };
        assert!(report.contains(&format!("and it is in no call; {says}. rank 1 (")), "{report}");
    }
}

#[test]
fn a_clean_run_warns_of_nothing() {
    for transport in TRANSPORTS {
        let mut job = launch(3, transport).start("join watch-stall check sleep=1500 check drop");
        job.all_succeed();
        for rank in &job.ranks {
            assert!(!rank.errors().contains("WARN"), "{}", rank.transcript());
        }
    }
}

#[test]
fn who_wants_no_warning_gets_none() {
    let launch = Launch::new(RANK, 2).env("OXCCL_STALL_WARN", "0");
    let steps =
        |rank| format!("join watch-stall barrier {}barrier drop", if rank == 1 { "sleep=2000 " } else { "" });
    let mut job = launch.start_each(steps);
    job.all_succeed();
    assert_eq!(warnings(&mut job), [""; 0]);
}

/// Three hosts in a ring, of which these send 40 Mbit/s. Returns the job, in an operation that lasts.
fn on_slow_hosts(hosts: &Hosts, slow: &[u32]) -> Result<Job, String> {
    let launch = Launch::without_id(RANK, 3).env("NCCL_SOCKET_IFNAME", INTERFACE).env("NCCL_ALGO", "ring");
    let mut launch = launch.env("OXCCL_STALL_WARN", &WARN.as_secs_f64().to_string());
    let mut job = Job::new();
    for rank in 0..3 {
        let there = launch.clone().under(hosts.on(rank)).env("NCCL_HOSTID", &format!("host {rank}"));
        let steps = "join watch-stall barrier ask all-reduce=20000000 sleep=300 drop";
        job.ranks.push(there.spawn(rank, steps));
        if rank == 0 {
            launch = launch.id(job.ranks[0].line("id ", SOON).text["id ".len()..].trim());
        }
    }
    job.all_print("step ask");
    slow.iter().try_for_each(|host| hosts.slow_down(*host, 40))?;
    job.ranks.iter_mut().for_each(|rank| rank.say("go on"));
    Ok(job)
}

/// Both of its ends wait; the kernel knows on which link bytes are under way all the time.
#[test]
fn a_slow_link_is_named_and_a_network_that_is_slow_as_a_whole_is_not() {
    // As below: where other programs take the processors, another link may be as slow for a while.
    let mut tries = (0..TRIES).map(|_| catch_unwind(slow_link_is_named));
    assert!(tries.any(|tried| tried.is_ok()), "{TRIES} times");
}

fn slow_link_is_named() {
    let hosts = match Hosts::new("slowlink", 3) {
        Ok(hosts) => hosts,
        Err(why) => return println!("skipped: no network namespaces here: {why}"),
    };
    let mut job = match on_slow_hosts(&hosts, &[1]) {
        Ok(job) => job,
        Err(why) => return println!("skipped: {why}"),
    };
    expect_stall(&mut job, 9, ("SlowLink", 1, 1, "all_reduce"), Instant::now());
    hosts.speed_up(1).expect("it was slow");
    job.all_succeed();
    let errors: String = job.ranks.iter().map(|rank| rank.errors()).collect();
    assert!(
        errors.contains("[slow link]: all_reduce of 20000000 float")
            && errors.contains(") has a slow link to rank 2: "),
        "{errors}"
    );

    let job = on_slow_hosts(&hosts, &[0, 1, 2]).expect("as before");
    std::thread::sleep(WARN * 4);
    assert_eq!(warnings(&mut { job }), [""; 0]);
}

/// It runs for some milliseconds of each tenth of a second, and so each wait for it is far shorter than the warn time.
#[test]
fn a_rank_that_is_slow_is_named_while_the_operation_goes_on() {
    // Ranks that wait must have a processor when their turn comes, or the slow one waits for them.
    go_before_others();
    for transport in TRANSPORTS {
        for slow in [0, 2] {
            // Where other programs take the processors, another rank may be as slow for a while.
            let mut tries = (0..TRIES).map(|_| catch_unwind(|| slow_rank_is_named(transport, slow)));
            assert!(tries.any(|tried| tried.is_ok()), "rank {slow} over {transport}, {TRIES} times");
        }
    }
}

fn slow_rank_is_named(transport: &str, slow: u32) {
    let mut job =
        launch(3, transport).start("join watch-stall barrier all-reduce-told=40000000 sleep=300 drop");
    job.all_print("ready");
    // It is slow from the start: where other programs take the processors, the operation was over before a test that waited for its begin saw
    // it.
    let slowed = Slowed::start(&job.ranks[slow as usize]);
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    expect_stall(&mut job, slow, ("Slow", slow, 1, "all_reduce"), Instant::now());
    drop(slowed);
    expect_over(&mut job, slow);
    job.all_succeed();
    let errors: String = job.ranks.iter().map(|rank| rank.errors()).collect();
    let warnings: Vec<&str> = errors.lines().filter(|line| line.contains("WARN")).collect();
    let [report, over] = &warnings[..] else { panic!("{warnings:#?}") };
    assert!(report.contains("[slow]: all_reduce of 40000000 float, sum (operation 1)"), "{report}");
    assert!(report.contains(" has lasted for ") && report.contains(") is slow; it has sent "), "{report}");
    assert!(over.contains("has ended"), "{over}");
}
