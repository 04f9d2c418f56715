//! Several hosts, two ranks each: every collective over the network between them, and a host that is cut off in the
//! middle.
//!
//! The hosts are network namespaces, which need root's privileges; without them, the tests print that they were
//! skipped.

use oxccl_tests::hosts::{Hosts, INTERFACE, SECOND_INTERFACE};
use oxccl_tests::process::{Job, Launch, SOON};
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const RANKS_PER_HOST: u32 = 2;
/// How long a silent host is waited for where that is what a test waits for.
const OUTAGE: (&str, &str) = ("OXCCL_OUTAGE", "5");
const DEAD_HOST_DEADLINE: Duration = Duration::from_secs(15);
/// What `check` sends at least from a host's second rank, by which its rings leave it: some fifty megabytes; acknowledgements are a
/// hundredth of that. The first rank sends to other hosts what goes from each rank to each.
const RING_BYTES: u64 = 20 << 20;
const MESH_BYTES: u64 = 2 << 20;
/// For eight ranks on a machine with two processors that does other things.
const PATIENCE: Duration = Duration::from_secs(120);

/// The hosts; without privileges, prints a line and returns none.
fn hosts(tag: &str, count: u32) -> Option<Hosts> {
    Hosts::new(tag, count).inspect_err(|why| println!("skipped: no network namespaces here: {why}")).ok()
}

/// Starts two ranks on every host, rank 0 on the first. Each host's ranks believe that no other process is on it.
fn start(hosts: &Hosts, env: &[(&str, &str)], steps: &str) -> Job {
    let nranks = hosts.count() * RANKS_PER_HOST;
    let mut launch = Launch::without_id(RANK, nranks).env("NCCL_SOCKET_IFNAME", INTERFACE);
    for (name, value) in env {
        launch = launch.env(name, value);
    }
    let mut job = Job::new();
    for rank in 0..nranks {
        let host = rank / RANKS_PER_HOST;
        let there = launch.clone().under(hosts.on(host)).env("NCCL_HOSTID", &format!("host {host}"));
        job.ranks.push(there.spawn(rank, steps));
        if rank == 0 {
            let id = job.ranks[0].line("id ", SOON).text["id ".len()..].to_owned();
            launch = launch.id(&id);
        }
    }
    job
}

fn do_everything(tag: &str, count: u32, env: &[(&str, &str)]) {
    let Some(hosts) = hosts(tag, count) else { return };
    let mut job = start(&hosts, env, "join check drop tidy");
    for rank in &mut job.ranks {
        rank.line("checked", PATIENCE);
        let status = rank.end(PATIENCE);
        assert!(status.success(), "{status}: {}", rank.transcript());
    }
}

/// Cuts a host off while all ranks call `call` in a loop: every rank, on either side of the cut, names a rank of the other.
fn cut_off(tag: &str, count: u32, cut: u32, call: &str, env: &[(&str, &str)]) {
    let Some(hosts) = hosts(tag, count) else { return };
    let env = [env, &[OUTAGE]].concat();
    let mut job = start(&hosts, &env, &format!("join forever={call} after"));
    job.ranks.iter_mut().for_each(|rank| drop(rank.line("looping", PATIENCE)));
    std::thread::sleep(Duration::from_millis(100));
    let begin = Instant::now();
    hosts.cut_off(cut);
    let is_cut = |rank: u32| rank / RANKS_PER_HOST == cut;
    for rank in &mut job.ranks {
        let failure = rank.failure(DEAD_HOST_DEADLINE);
        let text = &failure.text;
        let names_other_side = failure.guilty.iter().any(|guilty| is_cut(*guilty) != is_cut(rank.rank));
        // A link's failure names the rank at its other end in words.
        assert!(
            names_other_side || failure.kind == "Link" && text.contains("rank"),
            "rank {}: {failure:?}",
            rank.rank
        );
    }
    println!(
        "{tag}: host {cut} of {count} cut off in {call}: named everywhere within {:.1} s",
        begin.elapsed().as_secs_f64()
    );
}

#[test]
fn two_hosts_do_everything() {
    do_everything("two", 2, &[]);
}

#[test]
fn three_hosts_do_everything_over_tcp_alone() {
    do_everything("three", 3, &[("OXCCL_TRANSPORT", "tcp")]);
}

#[test]
fn four_hosts_do_everything() {
    do_everything("four", 4, &[]);
}

/// Where a network is named, hosts are connected by it; ranks of one host still share memory.
const SOCKETS: [(&str, &str); 2] = [("NCCL_NET", "Socket"), ("NCCL_SOCKET_NTHREADS", "2")];

#[test]
fn two_hosts_do_everything_over_a_network() {
    do_everything("net2", 2, &SOCKETS);
}

#[test]
fn three_hosts_do_everything_over_a_network_and_ipv6() {
    do_everything("net3", 3, &[("NCCL_NET", "Socket"), ("NCCL_SOCKET_FAMILY", "AF_INET6")]);
}

/// The second rank of a host has the second device. What it sends has that device's address, and so leaves by it, though the route
/// to every peer is by the first.
#[test]
fn ranks_of_a_host_send_by_the_devices_that_they_were_given() {
    let hosts = Hosts::new("rails", 2).and_then(Hosts::with_second_interface);
    let Some(hosts) = hosts.inspect_err(|why| println!("skipped: no network namespaces here: {why}")).ok()
    else {
        return;
    };
    let by_all = [("NCCL_NET", "Socket"), ("NCCL_SOCKET_IFNAME", "eth")];
    let mut job = start(&hosts, &by_all, "join check drop tidy");
    for rank in &mut job.ranks {
        let status = rank.end(PATIENCE);
        assert!(status.success(), "{status}: {}", rank.transcript());
    }
    for host in 0..hosts.count() {
        let [first, second] =
            [INTERFACE, SECOND_INTERFACE].map(|interface| hosts.sent_bytes(host, interface));
        println!("host {host} sent {first} bytes by its first interface, {second} by its second");
        assert!(first > MESH_BYTES && second > RING_BYTES, "host {host}: {first}, {second}");
    }
}

/// The errors said that a living rank was gone, and nothing of the interface.
#[test]
fn a_rank_that_names_its_loopback_to_other_hosts_is_named() {
    let Some(hosts) = hosts("lo", 3) else { return };
    let meeting = format!("{}:29401", hosts.address(0));
    for (on_loopback, texts) in [(1, "would listen at 127.0.0.1"), (0, "only its own host reaches that")] {
        let mut job = Job::new();
        for rank in 0..hosts.count() {
            let interface = if rank == on_loopback { "lo" } else { INTERFACE };
            let launch = Launch::without_id(RANK, hosts.count()).id("env").under(hosts.on(rank));
            let launch = launch.env("OXCCL_RANK", &rank.to_string()).env("OXCCL_NRANKS", "3");
            let launch = launch.env("OXCCL_COMM_ID", &meeting).env("OXCCL_COMM_SECRET", "of this test");
            // Rank 0 runs the root, which tells those that come late.
            job.ranks.push(launch.env("NCCL_SOCKET_IFNAME", interface).spawn(rank, "join after sleep=3000"));
        }
        let said: Vec<String> = job.ranks.iter_mut().map(|rank| rank.failure(SOON).text).collect();
        assert!(said.iter().any(|text| text.contains(texts)), "{said:?}");
        assert!(said.iter().all(|text| text.contains(&format!("rank {on_loopback}"))), "{said:?}");
    }
}

#[test]
fn a_host_is_cut_off() {
    cut_off("cut3", 3, 1, "all-reduce:300000", &[]);
}

#[test]
fn a_host_is_cut_off_from_a_network() {
    cut_off("cutnet", 3, 2, "all-reduce:300000", &SOCKETS);
}

#[test]
fn the_host_of_the_root_is_cut_off() {
    cut_off("cut2", 2, 0, "send-recv:100000", &[]);
}

/// Nothing reaches a host for a while, nor leaves it, in the middle of an operation: a silent network is not a death. All go on, and
/// results are right.
fn survive_an_outage(tag: &str, outage: Duration, env: &[(&str, &str)]) {
    let Some(hosts) = hosts(tag, 2) else { return };
    // The ring's connections come back by themselves, some seconds after the others perhaps.
    let sleep = outage.as_millis() / 2 + 1000;
    let mut job = start(&hosts, env, &format!("join ask check check sleep={sleep} counters drop tidy"));
    job.all_print("step ask");
    job.ranks.iter_mut().for_each(|rank| rank.say("go"));
    job.all_print("step check");
    std::thread::sleep(Duration::from_millis(30));
    hosts.cut_off(1);
    std::thread::sleep(outage);
    hosts.reconnect(1);
    let back = Instant::now();
    for rank in &mut job.ranks {
        rank.line("checked", PATIENCE);
        rank.line("checked", PATIENCE);
        let status = rank.end(PATIENCE);
        assert!(status.success(), "{status}: {}", rank.transcript());
    }
    println!(
        "{tag}: an outage of {outage:?}, and all was done {:.1} s after it",
        back.elapsed().as_secs_f64()
    );
    if outage < Duration::from_secs(5) {
        return;
    }
    // Ranks 1 and 2, and 3 and 0, are neighbours on different hosts: each says that the other's does not answer, and that it is back.
    for (rank, neighbour) in [(0, 3), (1, 2), (2, 1), (3, 0)] {
        let errors = job.ranks[rank].errors();
        let lines = |what: &str| {
            let is_it = |line: &&str| line.contains(&format!("rank {neighbour} (")) && line.contains(what);
            errors.lines().filter(is_it).count()
        };
        assert_eq!((lines(") is unreachable since"), lines(") answers again")), (1, 1), "{errors}");
        // Counted by neighbours, and by them alone.
        let transcript = job.ranks[rank].transcript();
        let counted: Vec<&str> =
            transcript.split("outages ").skip(1).filter_map(|rest| rest.lines().next()).collect();
        println!("{tag}: rank {rank} counts {counted:?}");
        assert_eq!(counted.iter().filter(|found| !found.starts_with("0 ")).count(), 1, "{transcript}");
        let lasted = counted.iter().find_map(|found| found.strip_prefix("1 ")?.parse::<u128>().ok());
        assert!(
            lasted.is_some_and(|lasted| (2000..outage.as_millis() + 10_000).contains(&lasted)),
            "{transcript}"
        );
    }
}

/// What is wrong for a while.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    /// A host is cut off, and has to find its peers anew.
    CutOff,
    /// A host's interface is down.
    Down,
}

impl Trouble {
    fn begin(self, hosts: &Hosts) {
        match self {
            Trouble::CutOff => {
                hosts.cut_off(1);
                (0..2).for_each(|host| hosts.forget_neighbours(host));
            }
            Trouble::Down => hosts.set_interface(1, false),
        }
    }

    fn end(self, hosts: &Hosts) {
        match self {
            Trouble::CutOff => hosts.reconnect(1),
            Trouble::Down => hosts.set_interface(1, true),
        }
    }
}

/// It begins before the first operation connects the hosts.
fn survive_at_first_use(tag: &str, trouble: Trouble, lasts: Duration, env: &[(&str, &str)]) {
    let Some(hosts) = hosts(tag, 2) else { return };
    let mut job = start(&hosts, env, "join ask check drop tidy");
    job.all_print("step ask");
    trouble.begin(&hosts);
    job.ranks.iter_mut().for_each(|rank| rank.say("go"));
    std::thread::sleep(lasts);
    trouble.end(&hosts);
    all_check(&mut job);
}

fn all_check(job: &mut Job) {
    for rank in &mut job.ranks {
        rank.line("checked", PATIENCE);
        let status = rank.end(PATIENCE);
        assert!(status.success(), "{status}: {}", rank.transcript());
    }
}

/// The job ended with "cannot connect: No route to host" after 3 s.
#[test]
fn an_outage_is_survived_by_streams_that_connect_in_it() {
    survive_at_first_use("first", Trouble::CutOff, Duration::from_secs(8), &[]);
}

#[test]
fn an_outage_is_survived_by_a_network_that_connects_in_it() {
    survive_at_first_use("firstnet", Trouble::CutOff, Duration::from_secs(8), &SOCKETS);
}

/// Who connected to a host to which no way led failed at once.
#[test]
fn an_interface_may_be_down_while_the_first_operation_connects() {
    survive_at_first_use("down", Trouble::Down, Duration::from_secs(3), &[]);
    survive_at_first_use("downnet", Trouble::Down, Duration::from_secs(3), &SOCKETS);
}

/// A rank gave the root up after 3 s of silence.
#[test]
fn an_outage_is_survived_by_ranks_that_look_for_the_root() {
    let Some(hosts) = hosts("root", 2) else { return };
    hosts.cut_off(1);
    let mut job = start(&hosts, &[], "join check drop tidy");
    std::thread::sleep(Duration::from_secs(5));
    hosts.reconnect(1);
    all_check(&mut job);
}

/// A connection on which nothing had gone for a while counted that while as silence: with 30 s, and 15 of them idle, an outage of 18 s
/// was a death.
#[test]
fn an_idle_job_survives_an_outage_that_is_shorter_than_said() {
    let Some(hosts) = hosts("idle", 2) else { return };
    let mut job = start(&hosts, &[("OXCCL_OUTAGE", "8")], "join check sleep=12000 check drop tidy");
    job.all_print("checked");
    std::thread::sleep(Duration::from_millis(3800));
    hosts.cut_off(1);
    std::thread::sleep(Duration::from_millis(6500));
    hosts.reconnect(1);
    all_check(&mut job);
}

#[test]
fn outages_of_streams_are_survived() {
    survive_an_outage("out1", Duration::from_secs(1), &[]);
    survive_an_outage("out10", Duration::from_secs(10), &[]);
}

#[test]
fn outages_of_a_network_are_survived() {
    survive_an_outage("outnet", Duration::from_secs(8), &SOCKETS);
}

/// A little less than `OXCCL_OUTAGE` is by itself: `cargo nextest run -p oxccl-tests --run-ignored only outages_of_25 --no-capture`.
#[test]
#[ignore = "takes minutes"]
fn outages_of_25_s_are_survived_by_streams_and_by_a_network() {
    for round in 0..3 {
        survive_an_outage(&format!("out25s{round}"), Duration::from_secs(25), &[]);
        survive_an_outage(&format!("out25n{round}"), Duration::from_secs(25), &SOCKETS);
    }
}
