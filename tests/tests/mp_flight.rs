//! Flight records of real jobs have PyTorch's format, and its analyser, where PyTorch is installed, says of each job what is wrong with it.

use oxccl::status::ask::processes;
use oxccl_tests::flight::{Verdict, analyse, check};
use oxccl_tests::process::{Job, Launch, Process, SOON};
use std::path::Path;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const PATIENCE: Duration = Duration::from_secs(10);

/// Writes the records of a live process once it has begun so many calls. The format is checked, whether there is an analyser or not.
fn dump(process: &Process, begun: u64, folder: &Path) {
    let deadline = Instant::now() + SOON;
    loop {
        assert!(Instant::now() < deadline, "it does not begin {begun} calls");
        std::thread::sleep(Duration::from_millis(5));
        let Some(asked) = processes().unwrap().into_iter().find(|found| found.pid == process.pid()) else {
            continue;
        };
        let files = asked.flight(PATIENCE).unwrap();
        let [file] = &files[..] else { panic!("{files:?}") };
        if file.record["entries"].as_array().unwrap().len() as u64 >= begun {
            check(&file.record);
            let path = folder.join(format!("oxccl_flight_rank_{}", file.rank));
            return std::fs::write(path, file.record.to_string()).unwrap();
        }
    }
}

/// What the analyser says of calls that are not as they should be, and what it logged.
fn faults(folder: &TempDir, options: &[&str]) -> Option<(Vec<Verdict>, String)> {
    let Some((mut verdicts, log)) = analyse(folder.path(), options) else {
        println!("skipped: python3 has no torch.distributed.flight_recorder");
        return None;
    };
    assert!(!verdicts.is_empty(), "{log}");
    verdicts.retain(|found| found.is_unmatched || !found.missing.is_empty() || !found.culprits.is_empty());
    Some((verdicts, log))
}

fn folder() -> TempDir {
    tempfile::Builder::new().prefix("flight").tempdir().unwrap()
}

fn end(mut job: Job) {
    job.ranks.iter_mut().for_each(|rank| rank.say(""));
    job.all_succeed();
}

#[test]
fn a_healthy_job_has_no_fault() {
    let launch = Launch::new(RANK, 3);
    let mut job = launch.start("join barrier check all-reduce=1000 ask drop");
    job.all_print("step ask");
    let folder = folder();
    job.ranks.iter().for_each(|rank| dump(rank, 40, folder.path()));
    end(job);
    let Some((faults, log)) = faults(&folder, &[]) else { return };
    assert_eq!(faults, [], "{log}");
}

/// More calls than are kept: messages keep their numbers, and the files begin at the same call.
#[test]
fn a_healthy_job_that_has_forgotten_calls_has_no_fault() {
    let mut job = Launch::new(RANK, 3).start("join random=7:6000 ask drop");
    job.all_print("step ask");
    let folder = folder();
    job.ranks.iter().for_each(|rank| dump(rank, 4096, folder.path()));
    end(job);
    let Some((faults, log)) = faults(&folder, &[]) else { return };
    assert_eq!(faults, [], "{log}");
}

/// Two ranks have a communicator that is older than the one of all three.
#[test]
fn a_healthy_job_with_two_communicators_has_no_fault() {
    let launch = Launch::new(RANK, 2);
    let mut job = launch.start("join check grow=3 all-reduce=10 barrier ask drop");
    let id = job.ranks[0].line("id ", SOON).text["id ".len()..].to_owned();
    job.ranks.push(launch.id(&id).ranks(3).spawn(2, "join all-reduce=10 barrier ask drop"));
    job.all_print("step ask");
    let folder = folder();
    job.ranks.iter().for_each(|rank| dump(rank, 2, folder.path()));
    end(job);
    let Some((verdicts, log)) = analyse(folder.path(), &[]) else { return };
    let is_right =
        |found: &Verdict| !found.is_unmatched && found.missing.is_empty() && found.culprits.is_empty();
    assert!(verdicts.iter().all(is_right), "{verdicts:?} {log}");
    let groups: std::collections::BTreeSet<&str> = verdicts.iter().map(|found| &found.group[..16]).collect();
    assert_eq!(groups.len(), 2, "{log}");
}

#[test]
fn a_rank_that_has_not_come_is_missing() {
    let mut job = Launch::new(RANK, 3).start_each(|rank| {
        let late = if rank == 2 { "ask " } else { "" };
        format!("join all-reduce=10 {late}all-reduce=20 ask drop")
    });
    job.ranks[2].line("step ask", SOON);
    let folder = folder();
    job.ranks.iter().for_each(|rank| dump(rank, if rank.rank == 2 { 1 } else { 2 }, folder.path()));
    job.ranks[2].say("");
    end(job);
    let Some((faults, log)) = faults(&folder, &[]) else { return };
    let [fault] = &faults[..] else { panic!("{faults:?} {log}") };
    assert_eq!(
        (fault.name.as_str(), fault.seq, &fault.missing[..]),
        ("nccl:all_reduce", 2, &[2][..]),
        "{log}"
    );
    assert!(log.contains("Not all ranks joining collective, sequence number: 2"), "{log}");
}

/// Which calls differ: the records that ranks write when they fail. Of two ranks, which find it when both have called.
#[test]
fn calls_that_differ_are_named() {
    for (wrong, state) in
        [("all-reduce=20", "SIZE_OR_SYNTAX_MISMATCH"), ("barrier", "COLLECTIVE_TYPE_MISMATCH")]
    {
        let (folder, prefix) = (folder(), "oxccl_flight_rank_");
        let path = folder.path().join(prefix);
        let launch = Launch::new(RANK, 2).env("OXCCL_FLIGHT_FILE", path.to_str().unwrap());
        let mut job = launch.start_each(|rank| {
            let call = if rank == 1 { wrong } else { "all-reduce=2000" };
            // Both have left the barrier before one finds the difference.
            format!("join all-reduce=10 barrier sleep=300 {call}")
        });
        for rank in &mut job.ranks {
            rank.failure(SOON);
            assert!(!rank.end(SOON).success());
            let file = folder.path().join(format!("{prefix}{}", rank.rank));
            check(&serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap());
        }
        let Some((faults, log)) = faults(&folder, &["-p", prefix]) else { return };
        let [fault] = &faults[..] else { panic!("{faults:?} {log}") };
        // It accuses the one whose file it reads last.
        let [(culprit, found)] = &fault.culprits[..] else { panic!("{faults:?} {log}") };
        assert_eq!((fault.seq, found.as_str(), *culprit < 2), (3, state, true), "{log}");
    }
}

/// Messages around the ring, of which rank 2 takes and gives none.
#[test]
fn a_message_whose_other_end_is_missing_is_named() {
    let mut job = Launch::new(RANK, 3).start_each(|rank| {
        let late = if rank == 2 { "ask " } else { "" };
        format!("join barrier {late}forever=send-recv:10")
    });
    job.ranks[2].line("step ask", SOON);
    let folder = folder();
    job.ranks.iter().for_each(|rank| dump(rank, if rank.rank == 2 { 1 } else { 3 }, folder.path()));
    let Some((faults, log)) = faults(&folder, &[]) else { return };
    let found: Vec<_> = faults
        .iter()
        .map(|fault| (fault.group.split_once(':').unwrap().1, fault.name.as_str(), &fault.missing[..]))
        .collect();
    // Rank 1 may be a round ahead: rank 0 waits for rank 2 and has not sent again.
    let true_ones = [
        ("1->2", "nccl:send 0->1", &[2][..]),
        ("2->0", "nccl:recv 0<-1", &[2]),
        ("0->1", "nccl:recv 1<-0", &[0]),
    ];
    assert!(true_ones[..2].iter().all(|fault| found.contains(fault)), "{log}");
    assert!(found.iter().all(|fault| true_ones.contains(fault)), "{log}");
}

/// Nobody has the record of a rank that was killed: the analyser says so, and not that another is at fault.
#[test]
fn without_the_record_of_a_dead_rank_nobody_is_accused() {
    let folder = folder();
    let prefix = folder.path().join("oxccl_flight_rank_");
    let launch = Launch::new(RANK, 3).env("OXCCL_FLIGHT_FILE", prefix.to_str().unwrap());
    let mut job = launch.start_each(|rank| {
        let late = if rank == 2 { "ask " } else { "" };
        format!("join all-reduce=1000 {late}barrier")
    });
    job.ranks[2].line("step ask", SOON);
    let scratch = self::folder();
    job.ranks[..2].iter().for_each(|rank| dump(rank, 2, scratch.path()));
    job.ranks[2].kill();
    for rank in &mut job.ranks[..2] {
        rank.failure(SOON);
        assert!(!rank.end(SOON).success());
    }
    let Some((faults, log)) = faults(&folder, &["--allow-incomplete-ranks"]) else { return };
    // The first call is not known to be whole either.
    assert!(
        faults.iter().all(|fault| fault.missing.is_empty() && fault.culprits.is_empty()),
        "{faults:?} {log}"
    );
    assert!(log.contains("we missed FR dumps from ranks ({2})"), "{log}");
}
