//! Ranks that come wrongly, or not at all, or with settings that cannot be used: a clear error on every rank, soon.

use oxccl_tests::process::{Failure, Job, Launch, Process, SOON};
use proptest::prelude::Rng;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");

/// The failure of a rank that then ends with status 1.
fn refused(process: &mut Process) -> Failure {
    let failure = process.failure(SOON);
    assert_eq!(process.end(SOON).code(), Some(1), "{}", process.transcript());
    failure
}

/// Every rank fails alike.
fn all_refused(job: &mut Job, kind: &str, guilty: &[u32]) {
    for process in &mut job.ranks {
        let failure = refused(process);
        assert_eq!((failure.kind.as_str(), failure.guilty.as_slice()), (kind, guilty), "{failure:?}");
    }
    job.assert_no_files_left();
}

#[test]
fn a_rank_that_is_too_high() {
    let launch = Launch::new(RANK, 2);
    let mut job = Job::new();
    job.ranks = vec![launch.spawn(0, "join"), launch.spawn(2, "join")];
    all_refused(&mut job, "RankOutOfRange", &[2]);
}

#[test]
fn a_rank_that_comes_twice() {
    let launch = Launch::new(RANK, 3);
    let mut job = Job::new();
    job.ranks = [0, 1, 1].map(|rank| launch.spawn(rank, "join")).into();
    all_refused(&mut job, "DuplicateRank", &[1]);
}

#[test]
fn ranks_that_disagree_on_their_number() {
    let launch = Launch::new(RANK, 2);
    let mut job = Job::new();
    let mut first = launch.spawn(0, "join");
    first.line("step join", SOON);
    std::thread::sleep(Duration::from_millis(300));
    let text = first.transcript();
    assert!(!text.contains("failed"), "{text}");
    job.ranks.push(first);
    job.ranks.push(launch.clone().ranks(3).spawn(1, "join"));
    all_refused(&mut job, "WorldSizeMismatch", &[1, 0]);
}

/// Runs a rank in a network of its own, after what sets that up. `None`: this machine does not let a test make one.
fn in_network(set_up: &str, env: &[(&str, &str)], id: &str, steps: &str) -> Option<Failure> {
    if !std::process::Command::new("unshare").args(["-rn", "true"]).status().is_ok_and(|done| done.success())
    {
        println!("skipped: no network of one's own can be made here");
        return None;
    }
    let script = format!("{set_up} exec \"$0\" \"$@\"");
    let under = ["unshare", "-rn", "sh", "-c", &script].map(str::to_owned);
    let mut launch = Launch::without_id(RANK, 1).id(id).under(under).env("NCCL_SOCKET_IFNAME", "");
    for (name, value) in env {
        launch = launch.env(name, value);
    }
    let mut rank = launch.spawn(0, steps);
    let begun = std::time::Instant::now();
    let failure = rank.failure(SOON);
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(rank.end(SOON).code(), Some(1), "{}", rank.transcript());
    Some(failure)
}

/// The errors were `Cannot assign requested address`, `Network is unreachable`, and "fits the address family".
#[test]
fn networks_that_cannot_be_used_are_named_with_what_there_is() {
    let only_v6 = "ip link set lo up; ip address del 127.0.0.1/8 dev lo;";
    let v4: &[_] = &[("NCCL_SOCKET_FAMILY", "AF_INET")];
    let at_v4: &[_] = &[("OXCCL_RANK", "0"), ("OXCCL_NRANKS", "2"), ("OXCCL_COMM_ID", "127.0.0.1:45671")];
    let down = "its loopback is down (ip link set lo up)";
    for (set_up, env, id, parts) in [
        (
            only_v6,
            v4,
            "create",
            ["no network interface that is up", "NCCL_SOCKET_FAMILY=AF_INET: this host has ::1 on lo"],
        ),
        (
            only_v6,
            at_v4,
            "env",
            ["NoAddress", "127.0.0.1, which is no address of this host: it has ::1 on lo"],
        ),
        ("", &[], "create", ["no network interface that is up", down]),
        ("", at_v4, "env", ["LoopbackDown", down]),
    ] {
        let Some(failure) = in_network(set_up, env, id, "join") else { return };
        let said = format!("{} {}", failure.kind, failure.text);
        assert!(parts.iter().all(|part| said.contains(part)), "{set_up:?} {env:?}: {said}");
    }
}

#[test]
fn a_rank_that_never_comes() {
    let launch = Launch::without_id(RANK, 3).env("OXCCL_BOOTSTRAP_TIMEOUT", "2");
    let mut job = Job::new();
    job.ranks.push(launch.spawn(0, "join"));
    let line = job.ranks[0].line("id ", SOON);
    job.ranks.push(launch.clone().id(&line.text["id ".len()..]).spawn(2, "join"));
    all_refused(&mut job, "MissingRanks", &[1]);
    let took = line.at.elapsed();
    assert!(took > Duration::from_millis(1900) && took < Duration::from_secs(4), "{took:?}");
}

/// The root waits for longer than the ranks do. They gave up first, and named nobody.
#[test]
fn a_rank_that_never_comes_is_named_within_the_ranks_own_time() {
    let launch = Launch::impatient(RANK, 3, SOON).env("OXCCL_BOOTSTRAP_TIMEOUT", "2");
    let mut job = Job::new();
    job.ranks = [0, 2].map(|rank| launch.spawn(rank, "join")).into();
    job.all_print("step join");
    let begun = Instant::now();
    all_refused(&mut job, "MissingRanks", &[1]);
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// At random moments between the first connection and the last. The errors named healthy ranks, which waited for the stopped one too.
#[test]
fn a_rank_that_is_stopped_while_it_joins_is_named_alone() {
    let mut rng = TestRng::from_seed(RngAlgorithm::ChaCha, b"a rank is stopped while it joins");
    let (mut found, nranks) = (0, 7);
    for _ in 0..8 {
        let stopped = 1 + rng.next_u32() % (nranks - 1);
        let launch = Launch::new(RANK, nranks).env("OXCCL_BOOTSTRAP_TIMEOUT", "2").env("OXCCL_TIMEOUT", "2");
        let mut job = launch.start("join barrier");
        std::thread::sleep(Duration::from_micros(u64::from(rng.next_u32() % 100_000)));
        job.ranks[stopped as usize].signal(rustix::process::Signal::STOP);
        for process in job.without(&[stopped]) {
            // It may have been stopped before its process said what it does, or after all was done.
            let Some(failure) = process.maybe_failure(SOON) else { continue };
            assert_eq!(failure.guilty, [stopped], "rank {}: {failure:?}", process.rank);
            found += 1;
        }
    }
    assert!(found > 0, "no rank was stopped while it joined");
}

/// The others waited until the time of the bootstrap was over, and heard only that it never came.
#[test]
fn a_rank_with_settings_that_cannot_be_used_ends_the_wait_of_all() {
    for (wrong, variable, value, kind) in [
        (0, "NCCL_ALGO", "butterfly", "Config"),
        (2, "NCCL_ALGO", "butterfly", "Config"),
        // Without NCCL_COLLNET_ENABLE nothing can carry that out.
        (1, "NCCL_ALGO", "collnetchain", "Other"),
        (0, "OXCCL_TUNE_FILE", "/nonexistent/tuning.toml", "Other"),
        (2, "OXCCL_TUNE_FILE", "/dev", "Other"),
    ] {
        let launch = Launch::new(RANK, 3);
        let mut job = Job::new();
        for rank in 0..3 {
            let launch = launch.clone();
            let launch = if rank == wrong { launch.env(variable, value) } else { launch };
            job.ranks.push(launch.spawn(rank, "join"));
        }
        for (rank, process) in (0..).zip(&mut job.ranks) {
            let failure = refused(process);
            match rank == wrong {
                true => assert_eq!(failure.kind, kind, "{failure:?}"),
                false => {
                    assert_eq!((failure.kind.as_str(), &failure.guilty[..]), ("PeerAborted", &[wrong][..]))
                }
            }
        }
        job.assert_no_files_left();
    }
}

#[test]
fn an_id_whose_root_is_gone() {
    let joined = || {
        let launch = Launch::without_id(RANK, 2);
        let mut root = launch.spawn(0, "join");
        let id = root.line("id ", SOON).text["id ".len()..].to_owned();
        root.kill();
        root.end(SOON);
        let started = Instant::now();
        let failure = refused(&mut launch.id(&id).spawn(1, "join"));
        assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
        failure
    };
    // Another test's root may have taken the port by then.
    let is_another = |failure: &Failure| failure.text.contains("was not trusted");
    let failure = std::iter::repeat_with(joined).take(5).find(|failure| !is_another(failure));
    let failure = failure.expect("a port that nobody else takes");
    assert_eq!(failure.kind, "RootGone", "{failure:?}");
}

#[test]
fn settings_that_differ_between_ranks() {
    for (variable, one, other) in [
        ("NCCL_BUFFSIZE", "1048576", "524288"),
        ("NCCL_ALGO", "ring", "tree"),
        ("NCCL_PROTO", "LL", "Simple"),
        ("NCCL_SHM_DISABLE", "0", "1"),
        ("OXCCL_TRANSPORT", "shm", "tcp"),
        ("NCCL_NET", "", "nosuch"),
    ] {
        let launch = Launch::new(RANK, 3);
        let mut job = Job::new();
        for rank in 0..3 {
            let value = if rank == 1 { other } else { one };
            job.ranks.push(launch.clone().env(variable, value).spawn(rank, "join"));
        }
        for process in &mut job.ranks {
            let failure = refused(process);
            assert_eq!(
                (failure.kind.as_str(), failure.guilty.as_slice()),
                ("Settings", &[1][..]),
                "{failure:?}"
            );
            assert!(failure.text.contains(variable), "{failure:?}");
            let is_said = failure.text.contains("rank 1 has no network of the name 'nosuch'");
            assert_eq!(is_said, variable == "NCCL_NET", "{failure:?}");
            assert!(!failure.text.contains("GPU"), "of what does not matter here: {failure:?}");
        }
        job.assert_no_files_left();
    }
}

/// It is named by itself, not among all that must agree.
#[test]
fn a_rank_that_does_not_encrypt_as_the_others_do() {
    for (one, other) in [("1", "0"), ("0", "1")] {
        let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", "tcp");
        let mut job = Job::new();
        for rank in 0..3 {
            let value = if rank == 2 { other } else { one };
            job.ranks.push(launch.clone().env("OXCCL_ENCRYPT", value).spawn(rank, "join"));
        }
        for process in &mut job.ranks {
            let failure = refused(process);
            assert_eq!(
                (failure.kind.as_str(), failure.guilty.as_slice()),
                ("Encryption", &[2][..]),
                "{failure:?}"
            );
            let said = format!("rank 2 has OXCCL_ENCRYPT={other} and rank 0 has not");
            assert!(failure.text.contains(&said), "{failure:?}");
        }
    }
}

#[test]
fn no_transport_that_is_allowed() {
    let launch = Launch::new(RANK, 2).env("OXCCL_TRANSPORT", "shm");
    let mut job = Job::new();
    for (rank, host) in [(0, "one"), (1, "other")] {
        job.ranks.push(launch.clone().env("NCCL_HOSTID", host).spawn(rank, "join"));
    }
    for process in &mut job.ranks {
        let failure = refused(process);
        assert_eq!(failure.kind, "NoTransport", "{failure:?}");
    }
}

#[test]
fn values_that_cannot_be_used() {
    for (variable, value) in [
        ("OXCCL_TIMEOUT", "soon"),
        ("OXCCL_TIMEOUT", "0"),
        ("OXCCL_TIMEOUT", "1e-9"),
        ("OXCCL_TIMEOUT", "nan"),
        ("OXCCL_TIMEOUT", "inf"),
        ("OXCCL_BOOTSTRAP_TIMEOUT", "-3"),
        ("OXCCL_BOOTSTRAP_TIMEOUT", "1e400"),
        ("NCCL_SOCKET_FAMILY", "IPv4"),
        ("NCCL_ALGO", "butterfly"),
        ("NCCL_PROTO", "LL256"),
        ("OXCCL_TRANSPORT", "pigeon"),
        ("NCCL_P2P_DISABLE", "maybe"),
        ("NCCL_SHM_DISABLE", "2"),
        ("NCCL_BUFFSIZE", "1"),
        ("NCCL_BUFFSIZE", "1M"),
        ("NCCL_BUFFSIZE", "18446744073709551616"),
    ] {
        let failure = refused(&mut Launch::new(RANK, 1).env(variable, value).spawn(0, "join"));
        assert_eq!(failure.kind, "Config", "{failure:?}");
        for part in [variable, value, "expected"] {
            assert!(failure.text.contains(part), "{variable}={value}: {failure:?}");
        }
    }
}

#[test]
fn an_interface_that_does_not_exist() {
    let mut process = Launch::without_id(RANK, 2).env("NCCL_SOCKET_IFNAME", "nosuch").spawn(0, "join");
    let failure = refused(&mut process);
    assert!(failure.text.contains("nosuch"), "{failure:?}");
}

#[test]
fn an_id_that_is_none() {
    for id in ["", "ab", &"0".repeat(256), &"f".repeat(256)] {
        let failure = refused(&mut Launch::without_id(RANK, 1).id(id).spawn(0, "join"));
        assert!(failure.text.contains("unique id"), "{id}: {failure:?}");
    }
}

/// One rank cannot allocate its shared memory, for a limit on the length of its files (a full /dev/shm would harm others). A process
/// that exceeds the limit is killed, unless it asks before.
#[test]
fn shared_memory_that_one_rank_may_not_have() {
    for (poor, limit_bytes) in [(0, 65_536), (1, 0), (2, 65_536)] {
        let mut job = Launch::new(RANK, 3).start_each(|rank| {
            let limit =
                if rank == poor { format!("limit-files={limit_bytes}") } else { "sleep=0".to_owned() };
            format!("{limit} join after tidy")
        });
        for process in &mut job.ranks {
            let failure = process.failure(SOON);
            let kind = if process.rank == poor { "Memory" } else { "PeerFailed" };
            assert_eq!(
                (failure.kind.as_str(), failure.guilty.as_slice()),
                (kind, &[poor][..]),
                "{failure:?}"
            );
            for part in ["ulimit -f", "/dev/shm/oxccl-", "NCCL_BUFFSIZE"] {
                assert!(failure.text.contains(part), "{failure:?}");
            }
            assert!(process.end(SOON).success(), "{}", process.transcript());
        }
        job.assert_no_files_left();
    }
}

/// Where ranks need no network nobody looked for it, and the job failed on its first day with two hosts.
#[test]
fn a_network_that_does_not_exist_is_a_warning_where_none_is_needed() {
    for (name, value) in [("NCCL_NET", "nope"), ("NCCL_NET_PLUGIN", "nope")] {
        let mut job = Launch::new(RANK, 2).env(name, value).start("join barrier drop tidy");
        job.all_succeed();
        for rank in &job.ranks {
            let said: Vec<&str> = rank.errors().lines().filter(|line| line.contains("WARN")).collect();
            assert!(said.len() == 1 && said[0].contains(name) && said[0].contains("nope"), "{said:?}");
        }
    }
}
