//! A live job is asked: what its ranks do, when one is stopped, by strangers and by another user; flight records by signal and by error.

use oxccl::status::ask::{AskError, Process as Asked, Remote, processes};
use oxccl::status::{CommunicatorReport, Question, State};
use oxccl_tests::flight;
use oxccl_tests::process::{Launch, Process, SOON};
use rustix::process::Signal;
use std::io::{Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const PATIENCE: Duration = Duration::from_secs(10);
/// How long other ranks have to answer.
const OTHERS: Duration = Duration::from_secs(1);

/// The process, once it can be asked.
fn asked(process: &Process) -> Asked {
    let deadline = Instant::now() + SOON;
    loop {
        if let Some(found) = processes().unwrap().into_iter().find(|found| found.pid == process.pid()) {
            return found;
        }
        assert!(Instant::now() < deadline, "it does not listen");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn only(process: &Process, others: Duration) -> CommunicatorReport {
    let report = asked(process).status(8, others, PATIENCE).unwrap();
    assert_eq!((report.pid, report.format), (process.pid(), 1));
    let [communicator] = &report.communicators[..] else { panic!("{report:?}") };
    communicator.clone()
}

/// Names of status sockets of a process.
fn names(pid: u32) -> Vec<String> {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap();
    let prefix = format!("oxccl-status-{pid}-");
    let names =
        table.lines().filter_map(|line| line.split('@').nth(1)).filter(|name| name.starts_with(&prefix));
    let mut names: Vec<String> = names.map(str::to_owned).collect();
    names.dedup();
    names
}

fn connect(pid: u32) -> UnixStream {
    let names = names(pid);
    let stream = UnixStream::connect_addr(&SocketAddr::from_abstract_name(&names[0]).unwrap()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

#[test]
fn a_live_job_says_what_its_ranks_do() {
    for transport in ["shm", "tcp"] {
        let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport);
        let mut job = launch.start_each(|rank| {
            let late = if rank == 2 { "ask " } else { "" };
            format!("join barrier all-reduce=1000 {late}all-reduce=2000 ask drop tidy")
        });
        job.ranks[2].line("step ask", SOON);
        let deadline = Instant::now() + SOON;
        // Rank 2 has not come to the third call yet, and the others wait for it.
        let report = loop {
            let report = only(&job.ranks[0], OTHERS);
            if report.waited_ms > 600 {
                break report;
            }
            assert!(Instant::now() < deadline, "{report:?}");
        };
        assert_eq!(
            (report.rank, report.size, report.state, report.error.as_deref()),
            (0, 3, State::Ready, None)
        );
        assert_eq!((report.begun, report.done), (3, 2));
        let during = report.during.as_ref().unwrap();
        assert_eq!(
            (during.function.as_str(), during.count, during.seq, during.op.as_deref()),
            ("all_reduce", 2000, 2, Some("sum"))
        );
        assert!(report.during_ms.is_some_and(|ms| ms >= 500) && report.waits_for.is_some(), "{report:?}");
        let recent: Vec<_> = report
            .recent
            .iter()
            .map(|found| (found.operation.function.as_str(), found.ended_ns.is_some()))
            .collect();
        assert_eq!(recent, [("barrier", true), ("all_reduce", true), ("all_reduce", false)]);
        assert_eq!(report.ranks.len(), 3);
        for (rank, process) in report.ranks.iter().zip(&job.ranks) {
            assert_eq!(
                (rank.pid, rank.answers, rank.has_left),
                (process.pid(), Some(true), false),
                "{rank:?}"
            );
        }
        let late = &report.ranks[2];
        assert_eq!(
            (late.begun, late.during.is_none(), late.link.as_deref()),
            (Some(2), true, Some(transport))
        );
        assert_eq!(late.latest.as_ref().map(|latest| latest.seq), Some(1));
        // Nobody else is asked if there is no time for it.
        assert!(
            only(&job.ranks[1], Duration::ZERO)
                .ranks
                .iter()
                .all(|rank| rank.answers.is_none() || rank.rank == 1)
        );
        job.ranks[2].say("");
        job.ranks.iter_mut().for_each(|rank| rank.say(""));
        job.all_succeed();
    }
}

/// Of two ranks that died one was said not to answer.
#[test]
fn ranks_that_died_are_said_to_have_died() {
    let mut job = Launch::new(RANK, 4).start("join barrier ask drop tidy");
    job.ranks.iter_mut().for_each(|rank| drop(rank.line("step ask", SOON)));
    for rank in [1, 3] {
        job.ranks[rank].kill();
    }
    let deadline = Instant::now() + SOON;
    loop {
        let report = only(&job.ranks[0], OTHERS);
        let dead: Vec<bool> = report.ranks.iter().map(|rank| rank.has_died).collect();
        if dead == [false, true, false, true] {
            break;
        }
        assert!(Instant::now() < deadline && dead.len() == 4 && !dead[0] && !dead[2], "{report:?}");
    }
    for rank in [0, 2] {
        job.ranks[rank].kill();
    }
}

/// `oxccl status HOST:PORT` hears the same as on the job's own host.
#[test]
fn a_live_job_is_asked_at_its_port() {
    let address = format!("127.0.0.1:{}", free_port());
    let launch = Launch::new(RANK, 2).env("NCCL_RAS_ENABLE", "1").env("NCCL_RAS_ADDR", &address);
    let mut job = launch.start("join all-reduce=1000 ask drop tidy");
    job.ranks.iter_mut().for_each(|rank| drop(rank.line("step ask", SOON)));
    let remote = Remote::new(&address);
    let deadline = Instant::now() + SOON;
    let report = loop {
        match remote.status(8, OTHERS, PATIENCE) {
            Ok(report) => break report,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
    };
    assert!(job.ranks.iter().any(|rank| rank.pid() == report.pid), "{report:?}");
    let [communicator] = &report.communicators[..] else { panic!("{report:?}") };
    assert_eq!((communicator.size, communicator.begun, communicator.done), (2, 1, 1));
    assert_eq!(communicator.recent.len(), 1);
    assert!(communicator.ranks.iter().all(|rank| rank.answers == Some(true)), "{communicator:?}");
    // Flight records are for the process's own user, which a port does not know.
    let mut stream = std::net::TcpStream::connect(&address).unwrap();
    stream.write_all(Question::Flight.to_string().as_bytes()).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("ERROR: Unknown command"), "{answer}");
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
}

#[test]
fn a_port_where_nobody_or_another_program_listens_is_named() {
    let address = format!("127.0.0.1:{}", free_port());
    let error = Remote::new(&address).status(0, Duration::ZERO, PATIENCE).unwrap_err();
    assert!(matches!(error, AskError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address) && error.to_string().contains("NCCL_RAS_ADDR"), "{error}");
    for answer in
        ["ERROR: Unknown command oxccl-status 1 status 0 0\n", "HTTP/1.1 400 Bad Request\r\n\r\n", ""]
    {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let other = std::thread::spawn(move || {
            let mut stream = listener.accept().unwrap().0;
            let mut line = Vec::new();
            stream.read_to_end(&mut line).unwrap();
            stream.write_all(answer.as_bytes()).unwrap();
        });
        let error = Remote::new(&address).status(0, Duration::ZERO, PATIENCE).unwrap_err();
        assert!(matches!(error, AskError::Stranger { .. }), "{error}");
        assert!(error.to_string().contains(&address), "{error}");
        other.join().unwrap();
    }
    let error = Remote::new("no host").status(0, Duration::ZERO, PATIENCE).unwrap_err();
    assert!(matches!(error, AskError::Address { .. }), "{error}");
}

/// The counters of both ends of every pair say the same.
#[test]
fn what_one_rank_has_sent_the_other_has_received() {
    for transport in ["shm", "tcp"] {
        let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport);
        let mut job = launch.start("join barrier all-reduce=1000 all-reduce=500000 ask drop");
        job.all_print("step ask");
        let reports: Vec<_> = job.ranks.iter().map(|rank| only(rank, Duration::ZERO)).collect();
        for (me, report) in reports.iter().enumerate() {
            assert_eq!((report.peers.len(), report.stalls, report.moved), (2, 0, None), "{report:?}");
            for peer in &report.peers {
                let mut others = reports[peer.rank as usize].peers.iter();
                let theirs = others.find(|other| other.rank as usize == me).unwrap();
                assert_eq!(
                    (peer.sent_bytes, peer.sent_slots),
                    (theirs.received_bytes, theirs.received_slots),
                    "rank {me} to {}",
                    peer.rank
                );
                assert_eq!(peer.transport.as_deref(), Some(transport));
                assert!((1..=3).contains(&peer.operations) && peer.waited_ns < 60_000_000_000, "{peer:?}");
            }
            let sent: u64 = report.peers.iter().map(|peer| peer.sent_bytes).sum();
            // In a ring each rank sends two thirds of the input twice; in one hop all of it to each other.
            assert!((4 * 500_000 * 4 / 3..4 * 501_000 * 3).contains(&sent), "{sent}");
        }
        job.ranks.iter_mut().for_each(|rank| rank.say(""));
        job.all_succeed();
    }
}

/// Rank 0 loses its neighbour, tries the next one, which is stopped and does not prove itself, and takes the one behind it.
#[test]
fn searches_for_a_new_neighbour_are_counted() {
    let mut job = Launch::new(RANK, 5).start("join idle after ask drop");
    job.all_print("step idle");
    let before = only(&job.ranks[0], Duration::ZERO);
    assert!(before.peers.iter().all(|peer| peer.reconnects + peer.retries + peer.outages == 0), "{before:?}");
    job.ranks[2].signal(Signal::STOP);
    await_stopped(job.ranks[2].pid());
    job.ranks[1].kill();
    let deadline = Instant::now() + SOON * 2;
    let counted = loop {
        let report = only(&job.ranks[0], Duration::ZERO);
        let counted: Vec<_> =
            report.peers.iter().map(|peer| (peer.rank, peer.reconnects, peer.retries)).collect();
        if counted.iter().any(|(_, reconnects, _)| *reconnects > 0) {
            break counted;
        }
        assert!(Instant::now() < deadline, "{counted:?}");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(counted, [(1, 0, 0), (2, 0, 1), (3, 1, 0), (4, 0, 0)]);
}

/// A send that joins a receive under way is in the flight record too, and ends before it.
#[test]
fn messages_that_join_others_in_flight_are_recorded() {
    let mut job = Launch::new(RANK, 2)
        .start_each(|rank| format!("join {}forever=in-flight:10", if rank == 1 { "ask " } else { "" }));
    job.ranks[1].line("step ask", SOON);
    let deadline = Instant::now() + SOON;
    loop {
        let report = only(&job.ranks[0], Duration::ZERO);
        let recent: Vec<_> = report
            .recent
            .iter()
            .map(|found| (found.operation.function.as_str(), found.ended_ns.is_some()))
            .collect();
        if recent == [("recv", false), ("send", true)] {
            break;
        }
        assert!(Instant::now() < deadline, "{recent:?}");
    }
    job.ranks[1].say("");
    job.all_print("looping");
}

/// Which rank it is that stands still, and how far it came: of the rank itself nobody hears any more.
#[test]
fn a_rank_that_is_stopped_within_an_operation_is_named_with_its_bytes() {
    const COUNT: u64 = 20_000_000;
    // One that was stopped between two operations has sent nothing of the next one: then once more.
    let bytes =
        (0..8).find_map(|_| bytes_of_a_stopped_rank(COUNT)).expect("it was stopped within an operation");
    // A ring sends two thirds of the input twice.
    assert!(bytes > 0 && bytes <= COUNT * 4 * 4 / 3 + 1024, "{bytes}");
}

/// Stops a rank once another has moved some of an all-reduce. The bytes that the report names, if any of its part has arrived.
fn bytes_of_a_stopped_rank(count: u64) -> Option<u64> {
    let launch = Launch::new(RANK, 3).env("OXCCL_STALL_WARN", "0.5");
    let mut job = launch.start(&format!("join forever=all-reduce:{count}"));
    job.all_print("looping");
    let deadline = Instant::now() + SOON;
    let ask = || {
        assert!(Instant::now() < deadline, "it does not come");
        only(&job.ranks[0], Duration::ZERO)
    };
    while ask().moved.is_none_or(|[sent, _]| sent < 1 << 20) {}
    job.ranks[1].signal(Signal::STOP);
    let stall = loop {
        if let Some(stall) = ask().stall {
            break stall;
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    println!("{stall}");
    assert!(stall.contains(&format!("[no answer]: all_reduce of {count} float")), "{stall}");
    assert!(stall.contains(": rank 1 ("), "{stall}");
    let (bytes, _) = stall.split_once("stopped after ")?.1.split_once(" bytes")?;
    Some(bytes.parse().unwrap())
}

#[test]
fn a_rank_that_waits_for_others_to_join_is_asked_too() {
    let launch = Launch::new(RANK, 2);
    let mut first = launch.spawn(0, "join barrier drop tidy");
    let report = only(&first, OTHERS);
    assert_eq!((report.state, report.rank, report.size, report.ranks.len()), (State::Joining, 0, 2, 0));
    let mut second = launch.spawn(1, "join barrier drop tidy");
    for rank in [&mut first, &mut second] {
        assert!(rank.end(SOON).success(), "{}", rank.transcript());
        assert_eq!(names(rank.pid()), [""; 0]);
    }
}

/// Waits until all threads of the process are stopped: the signal takes a while on a busy machine.
fn await_stopped(pid: u32) {
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        stat.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T'))
    };
    let deadline = Instant::now() + SOON;
    while !std::fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().all(is_stopped) {
        assert!(Instant::now() < deadline, "it does not stop");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn a_stopped_rank_is_named_by_those_that_live() {
    let mut job = Launch::new(RANK, 3).start("join forever=all-reduce:100000");
    job.all_print("looping");
    let stopped = asked(&job.ranks[1]);
    job.ranks[1].signal(Signal::STOP);
    await_stopped(job.ranks[1].pid());
    let answer = stopped.status(0, Duration::ZERO, Duration::from_millis(300));
    assert!(matches!(answer, Err(AskError::Silent { pid, .. }) if pid == job.ranks[1].pid()), "{answer:?}");
    for asked in [0, 2] {
        let since = Instant::now();
        let report = only(&job.ranks[asked], OTHERS);
        assert!(since.elapsed() >= OTHERS, "it waits for the one that is stopped");
        let answers: Vec<_> = report.ranks.iter().map(|rank| rank.answers).collect();
        assert_eq!(answers, [Some(true), Some(false), Some(true)], "{report:?}");
    }
    job.ranks[1].signal(Signal::CONT);
    let report = only(&job.ranks[0], PATIENCE);
    assert!(report.ranks.iter().all(|rank| rank.answers == Some(true)), "{report:?}");
}

#[test]
fn who_does_not_want_to_be_asked_is_not() {
    let mut job = Launch::new(RANK, 2).env("OXCCL_STATUS", "0").start("join barrier ask drop tidy");
    job.all_print("step ask");
    for rank in &job.ranks {
        assert_eq!(names(rank.pid()), [""; 0]);
    }
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
}

#[test]
fn strangers_bytes_and_open_connections_keep_nobody_from_an_answer() {
    let mut job = Launch::new(RANK, 2).start("join barrier ask check drop tidy");
    job.all_print("step ask");
    asked(&job.ranks[0]);
    let pid = job.ranks[0].pid();
    let noise: Vec<u8> = (0..1 << 16).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for bytes in [&b"GET / HTTP/1.1\r\n\r\n"[..], b"\n", b"oxccl-status 9 status\n", &[0; 4096], &noise] {
        let mut stream = connect(pid);
        // A refusal may come in the middle of what we write.
        let _ = stream.write_all(bytes);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        assert_eq!(answer, b"");
    }
    // Silent ones, and one that does not read: a few more than may be open. They are closed in time.
    let silent: Vec<UnixStream> = (0..24).map(|_| connect(pid)).collect();
    let mut lazy = connect(pid);
    lazy.write_all(Question::Flight.to_string().as_bytes()).unwrap();
    let report = asked(&job.ranks[0]).status(0, OTHERS, PATIENCE * 2).unwrap();
    assert_eq!(report.communicators.len(), 1);
    drop((silent, lazy));
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
}

/// Only where this runs as root.
#[test]
fn another_user_is_not_answered() {
    use std::os::unix::process::CommandExt;
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mut job = Launch::new(RANK, 2).start("join barrier ask drop tidy");
    job.all_print("step ask");
    asked(&job.ranks[0]);
    let name = names(job.ranks[0].pid()).remove(0);
    let ask = format!(
        "import socket;s=socket.socket(socket.AF_UNIX);s.settimeout(10);s.connect(chr(0)+'{name}');s.send(b'oxccl-status 1 status 0 0'+bytes([10]));print(len(s.recv(99)))"
    );
    let run = |uid: u32| {
        let mut command = std::process::Command::new("python3");
        command.args(["-c", &ask]).current_dir("/").uid(uid).gid(uid).stderr(std::process::Stdio::piped());
        let out = command.output().expect("python3 is there");
        (String::from_utf8_lossy(&out.stdout).into_owned(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert_eq!(run(0).0, "99\n");
    let (answer, error) = run(65_534);
    // The end comes before or behind what it sends.
    assert!(answer == "0\n" || error.contains("reset") || error.contains("Broken pipe"), "{answer} {error}");
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
    assert!(job.ranks[0].errors().contains("another user"), "{}", job.ranks[0].transcript());
}

/// Reads a flight record, once it is there, and checks what PyTorch's analyser reads of it.
fn flight_record(path: &Path) -> serde_json::Value {
    let deadline = Instant::now() + SOON;
    let text = loop {
        if let Ok(text) = std::fs::read_to_string(path) {
            break text;
        }
        assert!(Instant::now() < deadline, "{} is not written", path.display());
        std::thread::sleep(Duration::from_millis(5));
    };
    let record = serde_json::from_str(&text).unwrap();
    flight::check(&record);
    record
}

fn states(record: &serde_json::Value) -> Vec<(String, String)> {
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    let entries = record["entries"].as_array().unwrap().iter();
    entries.map(|entry| (text(&entry["profiling_name"]), text(&entry["state"]))).collect()
}

#[test]
fn a_signal_writes_the_flight_records_of_a_job_that_hangs() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("rank_");
    let launch = Launch::new(RANK, 2).env("OXCCL_FLIGHT_SIGNAL", "1");
    let launch = launch.env("OXCCL_FLIGHT_FILE", prefix.to_str().unwrap());
    let mut job = launch.start_each(|rank| {
        let late = if rank == 1 { "ask " } else { "" };
        format!("join all-reduce=10 {late}barrier ask drop")
    });
    job.ranks[1].line("step ask", SOON);
    job.ranks[0].line("step barrier", SOON);
    let deadline = Instant::now() + SOON;
    while only(&job.ranks[0], Duration::ZERO).begun < 2 {
        assert!(Instant::now() < deadline);
    }
    for rank in &job.ranks {
        rank.signal(Signal::USR2);
    }
    let path = |rank: u32| folder.path().join(format!("rank_{rank}"));
    let done = ("nccl:all_reduce".to_owned(), "completed".to_owned());
    let hangs = ("nccl:all_reduce_barrier".to_owned(), "started".to_owned());
    let record = flight_record(&path(0));
    assert_eq!(states(&record), [done.clone(), hangs]);
    assert_eq!(record["rank"], 0);
    let status = record["pg_status"].as_object().unwrap().values().next().unwrap();
    assert_eq!(
        (&status["last_started_collective"], &status["last_completed_collective"]),
        (&2.into(), &1.into())
    );
    assert_eq!(states(&flight_record(&path(1))), [done]);
    job.ranks[1].say("");
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
}

#[test]
fn an_error_writes_the_flight_records_of_the_survivors() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("rank_");
    let launch = Launch::new(RANK, 3).env("OXCCL_FLIGHT_FILE", prefix.to_str().unwrap());
    // Rank 2 dies while the others wait for it: a death that is noticed between two operations leaves none under way.
    let mut job = launch.start_each(|rank| {
        let late = if rank == 2 { "ask " } else { "" };
        format!("join all-reduce=1000 {late}barrier")
    });
    job.ranks[2].line("step ask", SOON);
    let deadline = Instant::now() + SOON;
    while (0..2).any(|rank| only(&job.ranks[rank], Duration::ZERO).begun < 2) {
        assert!(Instant::now() < deadline);
    }
    job.ranks[2].kill();
    let done = ("nccl:all_reduce".to_owned(), "completed".to_owned());
    let cut_off = ("nccl:all_reduce_barrier".to_owned(), "started".to_owned());
    for rank in &mut job.ranks[..2] {
        rank.failure(SOON);
        assert!(!rank.end(SOON).success());
        let record = flight_record(&folder.path().join(format!("rank_{}", rank.rank)));
        assert_eq!(states(&record), [done.clone(), cut_off.clone()]);
    }
    assert!(!folder.path().join("rank_2").exists());
}

/// The record was lost where a program called `exit` at once, as most do: its thread ended before it had written.
#[test]
fn a_program_that_exits_at_its_first_error_leaves_its_flight_record() {
    for _ in 0..6 {
        let folder = tempfile::tempdir().unwrap();
        let prefix = folder.path().join("rank_");
        let launch = Launch::new(RANK, 2).env("OXCCL_FLIGHT_FILE", prefix.to_str().unwrap());
        let mut job = launch.start("exit-at-once join random=7:2000 forever=all-reduce:1000");
        job.all_print("looping");
        job.ranks[1].kill();
        let rank = &mut job.ranks[0];
        rank.failure(SOON);
        rank.end(SOON);
        // Not one that comes later: nobody writes any more.
        assert!(folder.path().join("rank_0").exists(), "{}", rank.transcript());
        flight_record(&folder.path().join("rank_0"));
    }
}

/// It died by SIGXFSZ.
#[test]
fn a_flight_record_beyond_the_limit_on_files_is_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path().join("rank_");
    let launch = Launch::new(RANK, 2).env("OXCCL_FLIGHT_FILE", prefix.to_str().unwrap());
    let mut job = launch.start_each(|rank| match rank {
        0 => "join limit-files=64 all-reduce=1000 barrier".to_owned(),
        _ => "join all-reduce=1000 ask".to_owned(),
    });
    job.ranks[1].line("step ask", SOON);
    job.ranks[0].line("step barrier", SOON);
    job.ranks[1].kill();
    let rank = &mut job.ranks[0];
    rank.failure(SOON);
    assert_eq!(rank.end(SOON).code(), Some(1), "{}", rank.transcript());
    let said = rank.errors();
    for part in ["cannot be written", "rank_0", "may have 64 bytes", "ulimit -f"] {
        assert!(said.contains(part), "{said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// A port that nobody has now. Another may take it before it is used; the ranks then say nothing, and the test fails.
fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Says this at the RAS port, as `ncclras` does, and gives all that is answered.
fn ras(port: u16, commands: &str) -> String {
    let deadline = Instant::now() + SOON;
    let mut stream = loop {
        match std::net::TcpStream::connect(("127.0.0.1", port)) {
            Ok(stream) => break stream,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(commands.as_bytes()).unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}

/// It was said to who asked for the level debug.
#[test]
fn an_address_of_another_host_for_the_port_is_a_warning() {
    let launch = Launch::new(RANK, 2).env("NCCL_RAS_ENABLE", "1").env("NCCL_RAS_ADDR", "192.0.2.1:28028");
    let mut job = launch.start("join barrier ask drop tidy");
    job.all_print("step ask");
    // Who answers has tried the port too.
    job.ranks.iter().for_each(|rank| drop(only(rank, Duration::ZERO)));
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
    for rank in &job.ranks {
        let said: Vec<&str> = rank.errors().lines().filter(|line| line.contains("WARN")).collect();
        assert!(said.len() == 1 && said[0].contains("NCCL_RAS_ADDR=192.0.2.1:28028: "), "{said:?}");
    }
}

#[test]
fn ncclras_is_answered_and_a_stopped_rank_is_missing() {
    let port = free_port();
    let launch = Launch::new(RANK, 3).env("NCCL_RAS_ENABLE", "1");
    let launch = launch.env("NCCL_RAS_ADDR", &format!("localhost:{port}"));
    let mut job = launch.start("join all-reduce=10 barrier ask all-reduce=20 drop tidy");
    job.all_print("step ask");
    let text = ras(port, "CLIENT PROTOCOL 2\nTIMEOUT 5\nVERBOSE STATUS\n");
    assert!(text.starts_with("SERVER PROTOCOL 2\nOK\nNCCL version 2."), "{text}");
    for heading in ["Job summary\n===========", "Communicators...", "Errors\n======", "Warnings\n========"] {
        assert!(text.contains(heading), "{heading}: {text}");
    }
    let line = text.lines().find(|line| line.contains("RUNNING")).unwrap();
    let columns: Vec<&str> = line.split_whitespace().collect();
    assert_eq!(columns, ["0", "1", "1", "3", "3", "3", "RUNNING", "OK"]);
    for garbage in ["\0\0\0\n", "GET / HTTP/1.1\r\n", "what\n"] {
        let answer = ras(port, &format!("{garbage}STATUS\n"));
        assert!(answer.starts_with("ERROR: Unknown command") && answer.contains("Job summary"), "{answer}");
    }
    // The first two processes leave the port to the third; what it tells of them it learns from the ring.
    for rank in [0, 1] {
        job.ranks[rank].signal(Signal::STOP);
        await_stopped(job.ranks[rank].pid());
    }
    // Answers are shared for a moment.
    std::thread::sleep(Duration::from_millis(300));
    let json = (0..50).find_map(|_| {
        // A connection that the kernel gives to a process that is stopped is not answered: ncclras tries again.
        let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
        stream.write_all(b"CLIENT PROTOCOL 2\n").unwrap();
        let mut bytes = [0; 18];
        stream.read_exact(&mut bytes).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(b"TIMEOUT 1\nSET FORMAT JSON\nSTATUS\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        Some(text)
    });
    let json = json.expect("one of the processes answers");
    let json: serde_json::Value = serde_json::from_str(json.strip_prefix("OK\nOK\n").unwrap()).unwrap();
    assert_eq!(json["communicators_count"], 1);
    let communicator = &json["communicators"][0];
    assert_eq!((&communicator["size"], &communicator["ranks_count"]), (&3.into(), &1.into()), "{json}");
    assert_eq!(communicator["missing_ranks_count"], 2);
    let live = &communicator["ranks"][0];
    assert_eq!((&live["rank"], &live["pid"]), (&2.into(), &job.ranks[2].pid().into()));
    assert_eq!(live["collective_counts"]["AllReduce"], 1);
    assert_eq!((&live["status"]["init_state"], &live["status"]["async_error"]), (&0.into(), &0.into()));
    let missing = &communicator["missing_ranks"][1];
    assert_eq!((&missing["rank"], &missing["status"]["unresponsive"]), (&1.into(), &true.into()));
    assert!(json["timestamp"].is_string() && json["ras"]["collection_time_sec"].is_number());
    for rank in &mut job.ranks {
        rank.signal(Signal::CONT);
        rank.say("");
    }
    job.all_succeed();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens behind the end");
}
