//! Aggregators and their ranks as processes: servers that are killed, stopped and started again, and ranks that are killed. Every rank ends
//! in time with an error that says why, nothing is left, and other jobs of the server go on.

use oxccl::status::ask::processes;
use oxccl_tests::hosts::{Hosts, INTERFACE};
use oxccl_tests::process::{Failure, Job, Launch, Process, SOON};
use rustix::process::Signal;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
/// The steps of a rank after an error: it leaves, and finds nothing left.
const LEAVE: &str = "after drop tidy";
/// Long enough to be taken as it is.
pub(crate) const SECRET: &str = "5f0c3b7f7d2e4c0d9a61e8a4b3c2d1e05f0c3b7f7d2e4c0d9a61e8a4b3c2d1e0";
/// How soon the end of a process must be known.
const BOUND: Duration = Duration::from_secs(5);

/// A server.
pub(crate) struct Aggregator {
    pub(crate) process: Process,
    pub(crate) addr: String,
}

impl Aggregator {
    /// With so many MiB, at a port; 0 is any.
    pub(crate) fn start(port: &str, mib: u32) -> Aggregator {
        Aggregator::start_by(&Launch::without_id(RANK, 1), &format!("127.0.0.1:{port}:{mib}"))
    }

    /// By this launch, at an address and a port, with so many MiB.
    fn start_by(launch: &Launch, at: &str) -> Aggregator {
        let launch = launch.clone().env("OXCCL_COMM_SECRET", SECRET);
        let mut process = launch.spawn(0, &format!("serve={at}"));
        let addr = process.line("serving ", SOON).text["serving ".len()..].to_owned();
        Aggregator { process, addr }
    }

    fn port(&self) -> &str {
        self.addr.rsplit(':').next().unwrap()
    }

    /// So many ranks that reduce through it, on hosts of `per_host` ranks.
    fn launch(&self, nranks: u32, per_host: u32) -> Launch {
        // The arguments are the program and the rank.
        let host_of_rank = format!("export NCCL_HOSTID=host$(($2 / {per_host})); exec \"$@\"");
        self.used_by(Launch::new(RANK, nranks).under(["sh", "-c", &host_of_rank, "sh"].map(str::to_owned)))
    }

    /// The same ranks, which reduce through it.
    fn used_by(&self, launch: Launch) -> Launch {
        launch
            .env("OXCCL_COMM_SECRET", SECRET)
            .env("OXCCL_AGGREGATOR", &self.addr)
            .env("NCCL_COLLNET_ENABLE", "1")
            .env("NCCL_NET_PLUGIN", "none")
            .env("NCCL_ALGO", "CollnetChain")
    }

    /// A job of its own can use it.
    fn serves(&self, nranks: u32) {
        let mut job = self.launch(nranks, 1).start("join check drop tidy");
        job.all_succeed();
        job.assert_no_files_left();
    }
}

/// All ranks have failed within that time, and name the server: heads that found it out by an error of their own, all others by what such a head
/// said when it gave up.
fn all_name(job: &mut Job, server: &Aggregator, since: Instant, within: Duration) {
    let failures: Vec<Failure> = job.ranks.iter_mut().map(|rank| rank.failure(within + SOON)).collect();
    for (rank, failure) in failures.iter().enumerate() {
        let is_told = failure.kind == "PeerAborted" && failure.text.contains("; it said: ");
        assert!(failure.kind == "Link" || is_told, "rank {rank}: {failures:?}");
        assert!(failure.text.contains(&server.addr), "rank {rank}: {failures:?}");
        let took = failure.at.saturating_duration_since(since);
        assert!(took < within, "rank {rank} after {took:?}: {failure:?}");
    }
}

fn all_end_well(job: &mut Job) {
    job.all_succeed();
    job.assert_no_files_left();
}

#[test]
fn a_server_that_is_killed_is_named() {
    for (nranks, per_host, count, encrypt) in [(3, 1, 100, "0"), (4, 2, 1_000_000, "0"), (3, 1, 200_000, "1")]
    {
        let server = Aggregator::start("0", 1024);
        let launch = server.launch(nranks, per_host).env("OXCCL_ENCRYPT", encrypt);
        let mut job = launch.start(&format!("join forever=all-reduce:{count} {LEAVE}"));
        job.all_print("looping");
        std::thread::sleep(Duration::from_millis(30));
        let killed_at = server.process.kill();
        all_name(&mut job, &server, killed_at, BOUND);
        all_end_well(&mut job);
    }
}

/// The ranks of a killed server end, and those that come after it was started again have a new one.
#[test]
fn a_server_that_comes_back_serves_new_jobs() {
    let mut server = Aggregator::start("0", 1024);
    let mut job = server.launch(2, 1).start(&format!("join forever=all-reduce:100000 {LEAVE}"));
    job.all_print("looping");
    let killed_at = server.process.kill();
    server.process.end(SOON);
    let again = Aggregator::start(server.port(), 1024);
    assert_eq!(again.addr, server.addr);
    // Those of the old one hold connections that it had.
    again.serves(2);
    all_name(&mut job, &server, killed_at, SOON);
    all_end_well(&mut job);
    again.serves(3);
}

#[test]
fn operations_wait_for_a_server_that_stands_still() {
    let server = Aggregator::start("0", 1024);
    let mut job = server.launch(3, 1).start("join check ask check drop tidy");
    job.all_print("step ask");
    server.process.signal(Signal::STOP);
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    std::thread::sleep(Duration::from_millis(700));
    let went_on_at = server.process.signal(Signal::CONT);
    for rank in &mut job.ranks {
        let checked_at = rank.line("checked", SOON).at;
        assert!(checked_at >= went_on_at, "{}", rank.transcript());
    }
    all_end_well(&mut job);
}

/// The heads seemed to wait for each other in a circle, and to send each other what went to the server.
#[test]
fn a_status_shows_a_server_as_what_it_is() {
    let server = Aggregator::start("0", 1024);
    let mut job = server.launch(4, 2).start("join all-reduce=100000 ask all-reduce=100000 drop");
    job.all_print("step ask");
    server.process.signal(Signal::STOP);
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    let deadline = Instant::now() + SOON;
    let comm = loop {
        let found = processes().unwrap().into_iter().find(|found| found.pid == job.ranks[0].pid()).unwrap();
        let comm = found.status(0, Duration::from_secs(1), SOON).unwrap().communicators.remove(0);
        if [0, 2].iter().all(|head| comm.ranks[*head as usize].waits_for_network.is_some()) {
            break comm;
        }
        assert!(Instant::now() < deadline, "{comm:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    for head in [0, 2] {
        let said = &comm.ranks[head];
        assert_eq!(said.waits_for, None, "{said:?}");
        assert!(said.waits_for_network.as_ref().is_some_and(|name| name.contains(&server.addr)), "{said:?}");
    }
    let network = comm.network.as_ref().expect("rank 0 is a head");
    assert!(network.name.contains(&server.addr), "{network:?}");
    // Of the second operation it may have sent some.
    assert!(network.sent_bytes >= 400_000 && network.received_bytes >= 400_000, "{network:?}");
    assert!(network.operations >= 1 && network.waited_ns > 0, "{network:?}");
    let next = comm.peers.iter().find(|peer| peer.rank == 2).unwrap();
    let counted = [next.operations, next.sent_bytes, next.received_bytes, next.waited_ns];
    assert_eq!(counted, [0; 4], "{next:?}");
    server.process.signal(Signal::CONT);
    all_end_well(&mut job);
}

#[test]
fn a_server_that_stays_stopped_is_named_when_the_time_is_up() {
    for (nranks, per_host, count) in [(3, 1, 1_000_000), (4, 2, 100)] {
        let server = Aggregator::start("0", 1024);
        let launch = server.launch(nranks, per_host).env("OXCCL_TIMEOUT", "6").env("OXCCL_STALL_WARN", "1");
        let mut job = launch.start(&format!("join forever=all-reduce:{count} {LEAVE}"));
        job.all_print("looping");
        let stopped_at = server.process.signal(Signal::STOP);
        all_name(&mut job, &server, stopped_at, Duration::from_secs(13));
        all_end_well(&mut job);
        let errors: String = job.ranks.iter().map(|rank| rank.errors()).collect();
        let owes =
            format!("the ranks have no result of aggregators {} (OXCCL_AGGREGATOR). rank ", server.addr);
        assert!(errors.contains("stall [network]: all_reduce") && errors.contains(&owes), "{errors}");
        assert!(!errors.contains("stall [missing"), "no rank is at fault: {errors}");
        server.process.signal(Signal::CONT);
        server.serves(2);
    }
}

/// Nothing reaches the server's host any more, nor leaves it, while every head has bytes on their way to it: the kernel goes on sending them for
/// a quarter of an hour, and heads waited for the timeout of the operation.
#[test]
fn a_server_whose_host_is_cut_off_is_named() {
    const SERVER_HOST: u32 = 2;
    let outage = ("OXCCL_OUTAGE", "5");
    let hosts = match Hosts::new("agg", 3) {
        Ok(hosts) => hosts,
        Err(why) => return println!("skipped: no network namespaces here: {why}"),
    };
    let there = Launch::without_id(RANK, 1).env(outage.0, outage.1).under(hosts.on(SERVER_HOST));
    let server = Aggregator::start_by(&there, &format!("{}:0:1024", hosts.address(SERVER_HOST)));
    let mut launch = server.used_by(Launch::without_id(RANK, SERVER_HOST)).env(outage.0, outage.1);
    let mut job = Job::new();
    for rank in 0..SERVER_HOST {
        let there = launch.clone().under(hosts.on(rank)).env("NCCL_SOCKET_IFNAME", INTERFACE);
        let there = there.env("NCCL_HOSTID", &format!("host{rank}"));
        job.ranks.push(there.spawn(rank, &format!("join forever=all-reduce:1000000 {LEAVE}")));
        if rank == 0 {
            let id = job.ranks[0].line("id ", SOON).text["id ".len()..].to_owned();
            launch = launch.id(&id);
        }
    }
    job.all_print("looping");
    std::thread::sleep(Duration::from_millis(100));
    let since = Instant::now();
    hosts.cut_off(SERVER_HOST);
    all_name(&mut job, &server, since, Duration::from_secs(12));
    all_end_well(&mut job);
}

/// It was not if the bootstrap had less than 60 s: the heads gave up on each other first.
#[test]
fn a_server_that_is_stopped_when_ranks_come_is_named() {
    let [server, stopped] = [(); 2].map(|()| Aggregator::start("0", 1024));
    stopped.process.signal(Signal::STOP);
    let both = format!("{},{}", server.addr, stopped.addr);
    let launch = server.launch(3, 1).env("OXCCL_AGGREGATOR", &both).env("OXCCL_BOOTSTRAP_TIMEOUT", "10");
    let mut job = launch.start("join");
    let expected = format!("with {}: no answer within 5s", stopped.addr);
    for rank in &mut job.ranks {
        let failure = rank.failure(SOON);
        assert!(failure.text.contains(&expected), "{failure:?}");
        rank.end(SOON);
    }
    stopped.process.signal(Signal::CONT);
    server.serves(2);
    stopped.serves(2);
}

/// Another job of the server does not notice, and the memory of the dead one's is free for the next.
#[test]
fn a_job_whose_rank_is_killed_ends_alone() {
    // 2 MiB for each head: room for a job of three and one of two.
    let server = Aggregator::start("0", 10);
    let mut doomed = server.launch(3, 1).start(&format!("join forever=all-reduce:300000 {LEAVE}"));
    let mut other = server.launch(2, 1).start("join check ask check check ask check drop tidy");
    doomed.all_print("looping");
    other.all_print("step ask");
    let mut refused = server.launch(3, 1).start("join");
    for rank in &mut refused.ranks {
        let failure = rank.failure(SOON);
        assert!(failure.text.contains("--memory") && failure.text.contains("10 of 10 MiB"), "{failure:?}");
        rank.end(SOON);
    }
    other.ranks.iter_mut().for_each(|rank| rank.say(""));
    let killed_at = doomed.ranks[1].kill();
    for rank in doomed.without(&[1]) {
        let failure = rank.failure(BOUND);
        assert_eq!((failure.kind.as_str(), &failure.guilty[..]), ("PeerDied", &[1][..]), "{failure:?}");
        assert!(failure.at.saturating_duration_since(killed_at) < BOUND, "{failure:?}");
        assert!(rank.end(SOON).success(), "{}", rank.transcript());
    }
    doomed.assert_no_files_left();
    // As many as the dead had.
    server.serves(3);
    other.ranks.iter_mut().for_each(|rank| rank.say(""));
    all_end_well(&mut other);
}
