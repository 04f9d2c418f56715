//! Several processes: every kind of call gives what it must, whatever connects the ranks.

use oxccl_tests::process::Launch;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");

/// Joins, checks, leaves, and finds nothing left.
const STEPS: &str = "join check drop tidy";

#[test]
fn two_to_four_processes_over_shared_memory() {
    for nranks in 2..=4 {
        let mut job = Launch::new(RANK, nranks).env("OXCCL_TRANSPORT", "shm").start(STEPS);
        job.all_succeed();
        job.assert_no_files_left();
    }
}

#[test]
fn two_to_four_processes_over_tcp() {
    for nranks in 2..=4 {
        Launch::new(RANK, nranks).env("OXCCL_TRANSPORT", "tcp").start(STEPS).all_succeed();
    }
}

#[test]
fn two_to_four_processes_over_a_network() {
    for nranks in 2..=4 {
        let launch = Launch::new(RANK, nranks).env("OXCCL_TRANSPORT", "net").env("NCCL_NET", "socket");
        launch.start(STEPS).all_succeed();
    }
}

/// Every call gives what it must where all data is encrypted, over streams and over sockets.
#[test]
fn two_to_four_processes_over_encrypted_connections() {
    for nranks in 2..=4 {
        let launch = Launch::new(RANK, nranks).env("OXCCL_ENCRYPT", "1");
        launch.clone().env("OXCCL_TRANSPORT", "tcp").start(STEPS).all_succeed();
        let id = oxccl_tests::process::fresh_id(oxccl_tests::process::SOON).to_string();
        let launch = launch.id(&id).env("OXCCL_TRANSPORT", "net").env("NCCL_NET", "socket");
        launch.env("NCCL_SOCKET_NTHREADS", "2").start(STEPS).all_succeed();
    }
}

/// The variable asks for threads and gets sockets: a log line says so, once in each process however many
/// communicators it creates.
#[test]
fn whoever_asks_for_threads_of_sockets_is_told_that_there_are_none() {
    let lines_with = |threads: &str| {
        let launch = Launch::new(RANK, 2).env("OXCCL_TRANSPORT", "net").env("NCCL_NET", "Socket");
        let launch = launch.env("NCCL_SOCKET_NTHREADS", threads).env("NCCL_NSOCKS_PERTHREAD", "2");
        let mut job = launch.start("join check");
        job.all_succeed();
        let lines =
            |errors: &str| errors.lines().filter(|line| line.contains("NCCL_SOCKET_NTHREADS")).count();
        let errors = job.ranks.iter().map(|rank| rank.errors());
        errors.map(|errors| (lines(errors), errors.contains("4 data sockets"))).collect::<Vec<_>>()
    };
    assert_eq!(lines_with("2"), [(1, true), (1, true)]);
    assert_eq!(lines_with("0"), [(0, false), (0, false)]);
}

#[test]
fn two_hosts_of_two_processes() {
    let launch = Launch::new(RANK, 4);
    let mut job = oxccl_tests::process::Job::new();
    for rank in 0..4 {
        let host = if rank < 2 { "one" } else { "other" };
        job.ranks.push(launch.clone().env("NCCL_HOSTID", host).spawn(rank, STEPS));
    }
    job.all_succeed();
    job.assert_no_files_left();
}

#[test]
fn every_protocol_and_algorithm_between_processes() {
    for protocol in ["LL", "LL128", "Simple"] {
        for algorithm in ["ring", "tree", "direct"] {
            let launch = Launch::new(RANK, 3).env("NCCL_PROTO", protocol).env("NCCL_ALGO", algorithm);
            launch.start(STEPS).all_succeed();
        }
    }
}

/// Over every transport, and on two hosts.
#[test]
fn the_bits_of_a_deterministic_job_are_those_of_a_reduction_by_rank() {
    let launch = Launch::new(RANK, 3).env("OXCCL_DETERMINISTIC", "1");
    for (transport, network) in [("shm", ""), ("tcp", ""), ("net", "socket")] {
        let launch = launch.clone().env("OXCCL_TRANSPORT", transport).env("NCCL_NET", network);
        let launch = launch.id(&oxccl_tests::process::fresh_id(oxccl_tests::process::SOON).to_string());
        let mut job = launch.start("join bits check drop tidy");
        job.all_print("bits are right");
        job.all_succeed();
    }
    let launch = Launch::new(RANK, 4).env("OXCCL_DETERMINISTIC", "1");
    let mut job = oxccl_tests::process::Job::new();
    for rank in 0..4 {
        let host = if rank < 2 { "one" } else { "other" };
        job.ranks.push(launch.clone().env("NCCL_HOSTID", host).spawn(rank, "join bits drop tidy"));
    }
    job.all_print("bits are right");
    job.all_succeed();
}
