//! A rank whose process runs out of file descriptors, at any point: it reports that itself, with the limit and the
//! remedy, and the others name that rank, soon.

use super::mp_launch::free_port;
use oxccl_tests::process::{Job, Launch, SOON};
use std::time::Duration;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const NRANKS: u32 = 3;
const POOR: u32 = 1;
/// More than any transport here needs.
const ENOUGH: u64 = 200;
/// How long the root waits for a rank that does not even reach it.
const PATIENCE: Duration = Duration::from_secs(4);

fn start(transport: &str, free: u64) -> Job {
    let launch = Launch::impatient(RANK, NRANKS, PATIENCE)
        .env("OXCCL_TRANSPORT", transport)
        .env("NCCL_NET", "Socket")
        .env("OXCCL_BOOTSTRAP_TIMEOUT", "20");
    launch.start_each(|rank| {
        let limit = if rank == POOR { format!("limit-descriptors={free}") } else { "sleep=0".to_owned() };
        // What a rank lacks for an operation it may lack when another rank's part is done: that rank hears of it in the next.
        format!("{limit} join barrier barrier after")
    })
}

/// Whether all joined; otherwise checks every rank's error.
fn joins_or_says_why(transport: &str, free: u64) -> bool {
    let mut job = start(transport, free);
    let failures: Vec<_> = job.ranks.iter_mut().map(|rank| rank.maybe_failure(SOON)).collect();
    for (rank, failure) in (0..).zip(&failures) {
        println!("{transport} {free} rank {rank}: {failure:?}");
    }
    for process in &mut job.ranks {
        assert!(process.end(SOON).success(), "{}", process.transcript());
    }
    job.assert_no_files_left();
    if failures.iter().all(Option::is_none) {
        return true;
    }
    for (rank, failure) in (0..).zip(&failures) {
        let failure = failure.as_ref().expect("where one rank fails, all do");
        if rank == POOR {
            let parts = ["rank 1", "RLIMIT_NOFILE", "ulimit -n"];
            assert!(parts.iter().all(|part| failure.text.contains(part)), "{transport} {free}: {failure:?}");
        } else {
            assert_eq!(failure.guilty, [POOR], "{transport} {free}: {failure:?}");
        }
    }
    false
}

/// With every number of descriptors from none to enough.
fn sweep(transport: &str) {
    let enough = (0..ENOUGH).find(|free| joins_or_says_why(transport, *free));
    assert!(enough.is_some_and(|free| free > 4), "{enough:?}");
}

/// All ranks have the limit of one `ulimit -n`, rank 0 with the root too: they said that no root answered at its address.
#[test]
fn a_limit_that_all_ranks_have_is_blamed_before_the_roots_address() {
    for free in 1..=3 {
        let launch = Launch::without_id(RANK, 99).id("env");
        let launch = launch.env("OXCCL_NRANKS", "5").env("OXCCL_BOOTSTRAP_TIMEOUT", "1.5");
        let meeting = format!("127.0.0.1:{}", free_port());
        let mut job = Job::new();
        for rank in 0..5 {
            let launch = launch.clone().env("OXCCL_COMM_ID", &meeting).env("OXCCL_RANK", &rank.to_string());
            job.ranks.push(launch.spawn(rank, &format!("limit-descriptors={free} join")));
        }
        for process in &mut job.ranks {
            let failure = process.failure(SOON);
            assert_eq!(failure.kind, "NoDescriptor", "{free} rank {}: {failure:?}", process.rank);
            assert!(failure.text.contains("ulimit -n"), "{failure:?}");
        }
    }
}

#[test]
fn over_shared_memory() {
    sweep("shm");
}

#[test]
fn over_streams() {
    sweep("tcp");
}

#[test]
fn over_a_network() {
    sweep("net");
}
