//! Two jobs that were started by hand with one address: an error on every rank of a job that cannot run, which says so, and no job has ranks
//! of the other.

use oxccl_tests::process::{Failure, Job, Launch, Process, SOON};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const NRANKS: u32 = 3;
/// Ranks that come one after the other.
const APART: Duration = Duration::from_millis(50);

/// A rank of a job that meets at that port. No other rank has its parent, so that the root waits longer for others than tests may take.
fn rank(port: u16, rank: u32, secret: &str) -> Process {
    rank_of(port, (rank, NRANKS), secret)
}

fn rank_of(port: u16, (rank, nranks): (u32, u32), secret: &str) -> Process {
    let launch = Launch::without_id(RANK, 99)
        .id("env")
        .under(["timeout", "60"].map(str::to_owned))
        .env("OXCCL_RANK", &rank.to_string())
        .env("OXCCL_NRANKS", &nranks.to_string())
        .env("OXCCL_COMM_ID", &format!("127.0.0.1:{port}"))
        .env("OXCCL_BOOTSTRAP_TIMEOUT", "8")
        .env("OXCCL_COMM_SECRET", secret);
    launch.spawn(rank, "join check drop tidy")
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has ports");
    listener.local_addr().expect("it is bound").port()
}

fn refused(process: &mut Process) -> Failure {
    let failure = process.failure(SOON);
    assert_eq!(process.end(SOON).code(), Some(1), "{}", process.transcript());
    failure
}

/// In every order in which the first three ranks come, so that a root is about to have another job's rank, or has it.
#[test]
fn both_fail_and_say_why() {
    for first in [[0, 0, 1], [0, 1, 0], [0, 1, 1], [1, 0, 0]] {
        let port = free_port();
        let mut jobs = [Job::new(), Job::new()];
        let others = first.map(|job| 1 - job);
        for (job, number) in first.into_iter().chain(others).zip((0..NRANKS).cycle()) {
            jobs[job].ranks.push(rank(port, number, ""));
            std::thread::sleep(APART);
        }
        let begun = Instant::now();
        for process in jobs.iter_mut().flat_map(|job| &mut job.ranks) {
            let failure = refused(process);
            assert_eq!(failure.kind, "DuplicateRank", "{first:?}: {failure:?}");
            assert!(failure.text.contains("every job its own address"), "{failure:?}");
        }
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        jobs.iter().for_each(Job::assert_no_files_left);
    }
}

/// The error named neither process, and a rank 0 that found the address taken waited for its ranks until the timeout.
#[test]
fn jobs_of_different_sizes_fail_and_say_why() {
    for order in [[(0, 0), (1, 1), (1, 0), (0, 1), (0, 2)], [(1, 0), (0, 2), (0, 1), (0, 0), (1, 1)]] {
        let port = free_port();
        let mut processes: Vec<Process> = Vec::new();
        for (job, number) in order {
            processes.push(rank_of(port, (number, [3, 2][job]), ""));
            std::thread::sleep(APART);
        }
        let begun = Instant::now();
        for process in &mut processes {
            let failure = refused(process);
            assert!(
                ["WorldSizeMismatch", "DuplicateRank"].contains(&&*failure.kind),
                "{order:?}: {failure:?}"
            );
            for part in ["every job its own address", "process ", "at 127.0.0.1"] {
                assert!(failure.text.contains(part), "{failure:?}");
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    }
}

/// The other job has another secret: it goes on, and this one hears whose address that is.
#[test]
fn a_job_with_another_secret_goes_on() {
    let port = free_port();
    let (mut first, mut second) = (Job::new(), Job::new());
    first.ranks = (0..2).map(|number| rank(port, number, "one")).collect();
    first.ranks[0].line("step join", SOON);
    std::thread::sleep(Duration::from_millis(300));
    second.ranks = (0..NRANKS).map(|number| rank(port, number, "another")).collect();
    for process in &mut second.ranks[1..] {
        assert!(refused(process).text.contains("another secret"));
    }
    first.ranks.push(rank(port, 2, "one"));
    first.all_print("joined");
    first.all_succeed();
    // The root's address is free now.
    assert_eq!(refused(&mut second.ranks[0]).kind, "MissingRanks");
}

#[test]
fn who_has_the_address_is_named() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback has ports");
    let port = listener.local_addr().expect("it is bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            use std::io::Write;
            let _ = (&stream).write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n");
        }
    });
    let failure = refused(&mut rank(port, 0, ""));
    assert_eq!(failure.kind, "RootAddrTaken", "{failure:?}");
    for part in [&format!("127.0.0.1:{port}"), "another program", "OXCCL_COMM_ID"] {
        assert!(failure.text.contains(part), "{failure:?}");
    }
}
