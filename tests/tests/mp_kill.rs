//! kill -9 at every stage of a rank's life: every other rank ends with an error that names the dead one, soon; nothing is
//! left behind; and the survivors can go on among themselves.

use oxccl_tests::net::{PluginFile, Tables};
use oxccl_tests::process::{Job, Launch, Process, SOON, fresh_id};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::path::Path;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
/// The survivors' steps: leave, find nothing left, and form a communicator of the survivors.
const SURVIVE: &str = "after drop tidy rejoin check drop tidy";
/// The default time after which a silent peer counts as dead. A killed process is not silent: its kernel closes its
/// connections at once.
const DEAD_PEER_DEADLINE: Duration = Duration::from_secs(5);

/// Waits for the survivors' errors, which must name one of `dead`, and has the survivors go on. Returns the longest time
/// from the kill to an error.
fn survive(job: &mut Job, dead: &[u32], killed_at: Instant) -> Duration {
    let mut longest = Duration::ZERO;
    for rank in job.without(dead) {
        let failure = rank.failure(DEAD_PEER_DEADLINE);
        assert_eq!(failure.kind, "PeerDied", "{}", rank.transcript());
        assert!(failure.guilty.iter().all(|rank| dead.contains(rank)), "{failure:?}");
        assert!(failure.text.contains(&format!("rank {}", failure.guilty[0])), "{failure:?}");
        longest = longest.max(failure.at.saturating_duration_since(killed_at));
    }
    regroup(job, dead);
    longest
}

/// Gives the survivors, all of which wait for it, a new communicator, and waits for their end.
fn regroup(job: &mut Job, dead: &[u32]) {
    job.without(dead).for_each(|process| drop(process.line("step rejoin", SOON)));
    // Now, since the next communicator would remove what this one has left.
    job.assert_no_files_left();
    let id = fresh_id(SOON);
    let nranks = job.without(dead).count();
    for (rank, process) in job.without(dead).enumerate() {
        process.say(&format!("{rank} {nranks} {id}"));
    }
    for process in job.without(dead) {
        let status = process.end(SOON);
        assert!(status.success(), "{}", process.transcript());
    }
    job.assert_no_files_left();
}

fn kill_in_loop(name: &str, launch: Launch, call: &str, dead: &[u32]) {
    let mut job = launch.start(&format!("join forever={call} {SURVIVE}"));
    job.all_print("looping");
    std::thread::sleep(Duration::from_millis(20));
    let killed_at = dead.iter().map(|&rank| job.ranks[rank as usize].kill()).next().expect("one is killed");
    let took = survive(&mut job, dead, killed_at);
    println!("{name}: {dead:?} killed in {call}: named everywhere within {:.1} ms", took.as_secs_f64() * 1e3);
}

#[test]
fn in_the_middle_of_collectives() {
    for dead in 0..3 {
        for call in ["all-reduce:100", "all-reduce:4000000"] {
            kill_in_loop("shm", Launch::new(RANK, 3), call, &[dead]);
        }
    }
}

#[test]
fn in_the_middle_of_send_and_receive() {
    kill_in_loop("shm", Launch::new(RANK, 3), "send-recv:10", &[1]);
    kill_in_loop("shm", Launch::new(RANK, 3), "send-recv:2000000", &[2]);
}

#[test]
fn with_operations_in_flight() {
    kill_in_loop("shm", Launch::new(RANK, 3), "in-flight:100", &[1]);
    kill_in_loop("shm", Launch::new(RANK, 3), "in-flight:1000000", &[2]);
    let tcp = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", "tcp");
    kill_in_loop("tcp", tcp, "in-flight:1000000", &[0]);
}

#[test]
fn two_at_once() {
    kill_in_loop("shm", Launch::new(RANK, 4), "all-reduce:10000", &[1, 2]);
    kill_in_loop("shm", Launch::new(RANK, 4), "all-reduce:10000", &[0, 2]);
}

#[test]
fn over_tcp() {
    let launch = || Launch::new(RANK, 3).env("OXCCL_TRANSPORT", "tcp");
    kill_in_loop("tcp", launch(), "all-reduce:100", &[1]);
    kill_in_loop("tcp", launch(), "all-reduce:4000000", &[0]);
    kill_in_loop("tcp", launch(), "send-recv:2000000", &[2]);
    kill_in_loop("tcp", launch().clone(), "all-reduce:1000", &[0, 1]);
}

#[test]
fn over_a_network() {
    let launch = || Launch::new(RANK, 3).env("OXCCL_TRANSPORT", "net").env("NCCL_NET", "Socket");
    kill_in_loop("net", launch(), "all-reduce:100", &[1]);
    kill_in_loop("net", launch().env("NCCL_SOCKET_NTHREADS", "2"), "all-reduce:4000000", &[0]);
    kill_in_loop("net", launch(), "send-recv:2000000", &[2]);
    kill_in_loop("net", launch(), "all-reduce:1000", &[0, 1]);
}

/// The first ranks of two hosts are heads, and head 0 plays the network; the others are reached through them only.
#[test]
fn through_a_network_that_reduces() {
    let plugin = PluginFile::build(Tables::Both, 12, "", &[]);
    // The arguments are the program and the rank.
    let host_of_rank = "export NCCL_HOSTID=host$(($2 / 2)); exec \"$@\"";
    let launch = || {
        Launch::new(RANK, 4)
            .under(["sh", "-c", host_of_rank, "sh"].map(str::to_owned))
            .env("NCCL_COLLNET_ENABLE", "1")
            .env("NCCL_NET_PLUGIN", plugin.name())
            .env("NCCL_ALGO", "CollnetChain")
    };
    for dead in 0..4 {
        kill_in_loop("collnet", launch(), "all-reduce:100", &[dead]);
    }
    kill_in_loop("collnet", launch(), "all-reduce:1000000", &[2]);
}

#[test]
fn while_idle() {
    for dead in [0, 2] {
        let mut job = Launch::new(RANK, 3).start(&format!("join idle {SURVIVE}"));
        job.all_print("step idle");
        let killed_at = job.ranks[dead as usize].kill();
        let took = survive(&mut job, &[dead], killed_at);
        println!(
            "{dead} killed while all were idle: named everywhere within {:.1} ms",
            took.as_secs_f64() * 1e3
        );
    }
}

#[test]
fn before_it_connects() {
    let patience = Duration::from_secs(2);
    let launch = Launch::impatient(RANK, 3, patience);
    let steps = |rank| if rank == 1 { "ask join".to_owned() } else { format!("join {SURVIVE}") };
    let mut job = launch.start_each(steps);
    job.ranks[1].line("step ask", SOON);
    let killed_at = job.ranks[1].kill();
    for rank in job.without(&[1]) {
        let failure = rank.failure(SOON);
        assert_eq!(
            (failure.kind.as_str(), failure.guilty.as_slice()),
            ("MissingRanks", &[1][..]),
            "{failure:?}"
        );
        let took = failure.at.saturating_duration_since(killed_at);
        assert!(took < patience + Duration::from_secs(1), "{took:?}");
    }
    regroup(&mut job, &[1]);
}

/// It has registered with the root and waits for a rank that has not come yet.
#[test]
fn while_it_waits_for_others_to_come() {
    let steps = |rank| if rank == 2 { format!("ask join {SURVIVE}") } else { format!("join {SURVIVE}") };
    let mut job = Launch::new(RANK, 3).start_each(steps);
    job.ranks[1].line("step join", SOON);
    std::thread::sleep(Duration::from_millis(300));
    let killed_at = job.ranks[1].kill();
    let failure = job.ranks[0].failure(DEAD_PEER_DEADLINE);
    let took = failure.at.saturating_duration_since(killed_at);
    println!("killed in the rendezvous: named within {:.1} ms", took.as_secs_f64() * 1e3);
    assert_eq!((failure.kind.as_str(), failure.guilty.as_slice()), ("PeerDied", &[1][..]), "{failure:?}");
    // The late rank gets the same error.
    job.ranks[2].say("");
    let failure = job.ranks[2].failure(DEAD_PEER_DEADLINE);
    assert_eq!((failure.kind.as_str(), failure.guilty.as_slice()), ("PeerDied", &[1][..]), "{failure:?}");
    regroup(&mut job, &[1]);
}

/// Rank 0 runs the root and dies before all have joined: the others can only report that the root is gone.
#[test]
fn the_root_before_all_have_come() {
    let launch = Launch::without_id(RANK, 3);
    let mut job = Job::new();
    job.ranks.push(launch.spawn(0, "join"));
    let id = job.ranks[0].line("id ", SOON).text["id ".len()..].to_owned();
    job.ranks.push(launch.clone().id(&id).spawn(1, &format!("join {SURVIVE}")));
    job.ranks[1].line("step join", SOON);
    std::thread::sleep(Duration::from_millis(200));
    let killed_at = job.ranks[0].kill();
    let failure = job.ranks[1].failure(DEAD_PEER_DEADLINE);
    assert_eq!(failure.kind, "RootGone", "{failure:?}");
    let took = failure.at.saturating_duration_since(killed_at);
    println!("root killed in the rendezvous: said within {:.1} ms", took.as_secs_f64() * 1e3);
    job.ranks.push(launch.id(&id).spawn(2, &format!("join {SURVIVE}")));
    let failure = job.ranks[2].failure(DEAD_PEER_DEADLINE);
    assert_eq!(failure.kind, "RootGone", "{failure:?}");
    regroup(&mut job, &[0]);
}

/// The moment a rank's file appears in /dev/shm, some rank dies: others have yet to map the file, or it has yet to map theirs.
#[test]
fn between_making_and_removing_the_shared_files() {
    let (mut in_time, mut rounds) = (0, 0);
    // A busy machine may run the ranks and not this thread while they have files: such a round shows nothing here.
    while rounds < 12 || (in_time < 3 && rounds < 36) {
        let (dead, round) = (rounds % 3, rounds);
        rounds += 1;
        // The first rank's big file takes the kernel a while to fill with pages; meanwhile the others have made theirs.
        let launch = Launch::new(RANK, 3).env("NCCL_BUFFSIZE", "8388608");
        let mut job = launch.start(&format!("join idle {SURVIVE}"));
        let pid = job.ranks[dead as usize].pid();
        let deadline = Instant::now() + Duration::from_secs(2);
        while !has_shared_file(pid) && Instant::now() < deadline {}
        std::thread::sleep(Duration::from_micros(u64::from(round / 3) * 1500));
        let killed_at = job.ranks[dead as usize].kill();
        job.ranks[dead as usize].end(SOON);
        in_time += u32::from(!job.ranks[dead as usize].transcript().contains("joined"));
        survive(&mut job, &[dead], killed_at);
    }
    println!("{in_time} of {rounds} were killed while they had files");
    assert!(in_time >= 3, "only {in_time} of {rounds} ranks died while they had files");
}

/// One rank knows that all have mapped all files and has removed its own; another may not be there yet.
#[test]
fn before_it_removes_its_file_when_others_have() {
    for round in 0..20 {
        let mut job = Launch::new(RANK, 3).start(&format!("join idle {SURVIVE}"));
        let pids = [job.ranks[0].pid(), job.ranks[1].pid(), job.ranks[2].pid()];
        let (dead, watched) = (round % 3, (round + 1) % 3);
        // It exists for a millisecond or so: a test that misses it does not wait for another.
        let deadline = Instant::now() + Duration::from_millis(100);
        while !has_shared_file(pids[watched]) && Instant::now() < deadline {}
        while has_shared_file(pids[watched]) && Instant::now() < deadline {}
        let killed_at = job.ranks[dead].kill();
        job.ranks[dead].end(SOON);
        survive(&mut job, &[dead as u32], killed_at);
    }
}

/// Whether a process has a file of the library's open.
fn has_shared_file(pid: u32) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    let mut targets = entries.flatten().filter_map(|entry| std::fs::read_link(entry.path()).ok());
    targets.any(|target| target.starts_with(Path::new("/dev/shm")))
}

/// A job that is killed as a whole cannot clean up; the next communicator on this host does.
#[test]
fn the_next_communicator_sweeps_after_a_job_that_was_killed_as_a_whole() {
    let mut job = Launch::new(RANK, 2).env("NCCL_BUFFSIZE", "8388608").start("join idle");
    let pid = job.ranks[0].pid();
    let deadline = Instant::now() + SOON;
    while !has_shared_file(pid) && Instant::now() < deadline {}
    for rank in &mut job.ranks {
        rank.kill();
        rank.end(SOON);
    }
    Launch::new(RANK, 2).env("OXCCL_TRANSPORT", "shm").start("join drop").all_succeed();
    job.assert_no_files_left();
}

/// Within how long every survivor of a kill knows of it, wherever the dead one's kernel has closed a connection.
const NAMED_WITHIN: Duration = Duration::from_secs(1);

/// Any rank at any time: rounds with random victims and moments, from before the first connection to long after the last.
#[test]
fn any_rank_at_any_time() {
    kill_at_random(36, b"kill -9, seeded: 32 bytes of it.");
}

/// The same for longer: `cargo nextest run -p oxccl-tests --run-ignored only two_hundred_kills --no-capture`.
#[test]
#[ignore = "takes minutes"]
fn two_hundred_kills() {
    kill_at_random(200, b"two hundred kills, all of them -9");
}

/// How long survivors took to know, by how far the dead one had come.
#[derive(Default)]
struct Delays(std::collections::BTreeMap<&'static str, Vec<Duration>>);

impl Delays {
    fn add(&mut self, stage: &'static str, took: Duration) {
        self.0.entry(stage).or_default().push(took);
    }

    fn print(&mut self) {
        for (stage, delays) in &mut self.0 {
            delays.sort_unstable();
            let at = |percent: usize| delays[(delays.len() - 1) * percent / 100].as_secs_f64() * 1e3;
            let (count, half, most, all) = (delays.len(), at(50), at(95), at(100));
            println!(
                "killed when {stage}: {count} errors of survivors after {half:.1} ms (median), {most:.1} (95 %), {all:.1} (longest)"
            );
        }
    }
}

/// Kills a random rank at a random moment, `rounds` times.
fn kill_at_random(rounds: u32, seed: &[u8]) {
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, &seed[..32]);
    let (mut delays, mut unseen) = (Delays::default(), 0);
    for round in 0..rounds {
        let nranks = 2 + rng.next_u32() % 3;
        let dead = rng.next_u32() % nranks;
        // Joining takes some ten milliseconds; every other victim dies within it.
        let delay_max_us = if round % 2 == 0 { 15_000 } else { 80_000 };
        let delay = Duration::from_micros(u64::from(rng.next_u32() % delay_max_us));
        let call = ["all-reduce:1", "all-reduce:20000", "all-reduce:2000000", "send-recv:5000"];
        let call = call[rng.next_u32() as usize % call.len()];
        let mut launch = Launch::impatient(RANK, nranks, Duration::from_secs(2));
        if round % 4 == 3 {
            launch = launch.env("OXCCL_TRANSPORT", "tcp");
        }
        let mut job = launch.start(&format!("join forever={call} {SURVIVE}"));
        std::thread::sleep(delay);
        let killed_at = job.ranks[dead as usize].kill();
        let stage = stage(&mut job.ranks[dead as usize]);
        for rank in job.without(&[dead]) {
            let failure = rank.failure(DEAD_PEER_DEADLINE);
            let took = failure.at.saturating_duration_since(killed_at);
            let is_missing = failure.kind == "MissingRanks" && stage == "joining";
            let context = || format!("round {round}, {dead} of {nranks} killed when {stage}: {failure:?}");
            assert!(failure.kind == "PeerDied" || is_missing, "{}", context());
            assert_eq!(failure.guilty, [dead], "{}", context());
            // A rank that never proved who it is is found missing when the root's patience ends, two seconds here.
            if is_missing {
                unseen += 1;
            } else {
                assert!(took < NAMED_WITHIN, "{took:?} {}", context());
                delays.add(stage, took);
            }
        }
        regroup(&mut job, &[dead]);
    }
    delays.print();
    println!("{rounds} kills; {unseen} survivors waited for one that had never come");
    assert!(delays.0.len() >= 2, "the moments do not spread over a rank's life: {:?}", delays.0.keys());
}

/// How far the process had come when it was killed.
fn stage(process: &mut Process) -> &'static str {
    process.end(SOON);
    let transcript = process.transcript();
    if transcript.contains("looping") {
        "calling"
    } else if transcript.contains("joined") {
        "joined"
    } else {
        "joining"
    }
}
