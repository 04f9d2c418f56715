//! Random faults in random places: the report names the rank, the operation and what is wrong with it. And clean runs report nothing.
//!
//! `OXCCL_TEST_FAULTS=N` makes it N faults, `OXCCL_TEST_SEED=S` begins with that seed.

use oxccl::status::ask::processes;
use oxccl_tests::process::{Job, Launch, SOON};
use rustix::process::Signal;
use std::fmt;
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const WARN: &str = "0.5";
const FAULTS: u64 = 20;
const CLEAN_CALLS: u64 = 10_000;

/// Knuth's multiplier for 64 bits.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Kill,
    Stop,
    MissingCall,
    OtherCall,
    OtherSize,
}

/// One fault: what `rank` does instead of its part of the last of `calls`.
#[derive(Debug)]
struct Fault {
    what: What,
    transport: &'static str,
    nranks: u32,
    rank: u32,
    calls: Vec<String>,
}

fn call(random: &mut Random) -> String {
    match random.below(4) {
        0 => "barrier".to_owned(),
        _ => format!("all-reduce={}", 1 + random.of(&[0, 300, 20_000, 400_000]) + random.below(50)),
    }
}

impl Fault {
    fn new(random: &mut Random) -> Fault {
        let all = [What::Kill, What::Stop, What::MissingCall, What::OtherCall, What::OtherSize];
        let (what, nranks) = (random.of(&all), 2 + random.below(3) as u32);
        let mut calls: Vec<String> = (0..=random.below(5)).map(|_| call(random)).collect();
        if what == What::OtherSize {
            calls.push(format!("all-reduce={}", 1 + random.below(100_000)));
        }
        let rank = random.below(u64::from(nranks)) as u32;
        Fault { what, transport: random.of(&["shm", "tcp"]), nranks, rank, calls }
    }

    /// What a rank does; the one at fault is asked before the last call.
    fn steps(&self, rank: u32) -> String {
        let (last, before) = self.calls.split_last().expect("there is a call");
        let mut own = last.clone();
        if rank == self.rank {
            own = match (self.what, last.strip_prefix("all-reduce=")) {
                (What::OtherCall, Some(_)) => "barrier".to_owned(),
                (What::OtherCall, None) => "all-reduce=77".to_owned(),
                (What::OtherSize, Some(count)) => format!("all-reduce={count}1"),
                _ => format!("ask {last}"),
            };
        }
        format!("join watch-stall {} {own} drop", before.join(" "))
    }

    fn function(&self) -> &str {
        if self.calls.last().is_some_and(|call| call == "barrier") { "barrier" } else { "all_reduce" }
    }

    /// Whether what the ranks say of it is right.
    fn run(&self) -> Result<(), String> {
        let launch = Launch::new(RANK, self.nranks).env("OXCCL_TRANSPORT", self.transport);
        let mut job = launch.env("OXCCL_STALL_WARN", WARN).start_each(|rank| self.steps(rank));
        match self.what {
            What::OtherCall | What::OtherSize => self.mismatch(&mut job),
            What::Kill => {
                self.await_ask(&mut job);
                job.ranks[self.rank as usize].kill();
                self.death(&mut job)
            }
            What::Stop | What::MissingCall => {
                self.await_ask(&mut job);
                if self.what == What::Stop {
                    job.ranks[self.rank as usize].signal(Signal::STOP);
                }
                self.stall(&mut job)
            }
        }
    }

    fn await_ask(&self, job: &mut Job) {
        job.ranks[self.rank as usize].line("step ask", SOON);
        // A death between two operations leaves none that an error could name.
        let deadline = Instant::now() + SOON;
        for rank in job.without(&[self.rank]) {
            while begun(rank.pid()) < self.calls.len() as u64 {
                assert!(Instant::now() < deadline, "rank {} does not come to the call", rank.rank);
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Every other rank learns the class, the rank, the number and the function, and goes on when the rank does.
    fn stall(&self, job: &mut Job) -> Result<(), String> {
        let class = if self.what == What::Stop { "NoAnswer" } else { "MissingEnter" };
        for rank in job.without(&[self.rank]) {
            let line = rank.line("stall ", SOON).text;
            let words: Vec<&str> = line.split(' ').collect();
            let (number, guilty) = ((self.calls.len() - 1).to_string(), self.rank.to_string());
            if [words[1], words[2], words[4], words[5]] != [class, &guilty, &number, self.function()] {
                return Err(format!("rank {} heard {line:?}", rank.rank));
            }
        }
        job.ranks[self.rank as usize].signal(Signal::CONT);
        job.ranks[self.rank as usize].say("");
        job.all_succeed();
        let errors: String = job.ranks.iter().map(|rank| rank.errors()).collect();
        let reports = errors.lines().filter(|line| line.contains("WARN") && line.contains("stall [")).count();
        if reports == 2 { Ok(()) } else { Err(format!("{reports} lines of a stall and its end: {errors}")) }
    }

    fn death(&self, job: &mut Job) -> Result<(), String> {
        for rank in job.without(&[self.rank]) {
            let failure = rank.failure(SOON);
            let number = format!("(operation {})", self.calls.len() - 1);
            let is_right = failure.kind == "PeerDied" && failure.guilty == [self.rank];
            if !is_right || !failure.text.contains(&number) || !failure.text.contains(self.function()) {
                return Err(format!("rank {} failed with {failure:?}", rank.rank));
            }
        }
        Ok(())
    }

    /// All fail, and somebody says which rank called something else. With two ranks each is the other's.
    fn mismatch(&self, job: &mut Job) -> Result<(), String> {
        let failures: Vec<_> = job.ranks.iter_mut().map(|rank| (rank.rank, rank.failure(SOON))).collect();
        let number = format!("(operation {})", self.calls.len() - 1);
        let names = |(rank, failure): &&(u32, oxccl_tests::process::Failure)| {
            failure.kind == "Mismatch"
                && failure.text.contains(&number)
                && (*rank == self.rank || failure.guilty == [self.rank])
        };
        let kinds = ["Mismatch", "PeerAborted", "PeerLeft"];
        let is_right = failures.iter().all(|(_, failure)| kinds.contains(&failure.kind.as_str()));
        if is_right && failures.iter().any(|failure| names(&failure)) {
            Ok(())
        } else {
            Err(format!("{failures:#?}"))
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { what, transport, nranks, rank, calls } = self;
        write!(f, "{what:?} of rank {rank} of {nranks} over {transport} in {}", calls.join(" "))
    }
}

/// Calls that a rank's process has begun, as it says itself.
fn begun(pid: u32) -> u64 {
    let found = processes().unwrap().into_iter().find(|found| found.pid == pid);
    let report = found.and_then(|found| found.status(0, Duration::ZERO, SOON).ok());
    report.and_then(|report| report.communicators.first().map(|comm| comm.begun)).unwrap_or(0)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn random_faults_are_named() {
    let first = number("OXCCL_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let faults = number("OXCCL_TEST_FAULTS").unwrap_or(FAULTS);
    println!("OXCCL_TEST_SEED={first}");
    let (began, mut wrong, mut kinds) = (Instant::now(), Vec::new(), [0; 5]);
    for seed in first..first + faults {
        let fault = Fault::new(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        kinds[fault.what as usize] += 1;
        if let Err(error) = fault.run() {
            println!("OXCCL_TEST_SEED={seed}: {fault}: {error}");
            wrong.push((seed, fault.to_string()));
        }
    }
    let took = began.elapsed().as_secs_f64();
    println!("{faults} faults in {took:.1} s (kill, stop, missing call, other call, other size: {kinds:?})");
    assert!(wrong.is_empty(), "{} of {faults} were not named as they are: {wrong:#?}", wrong.len());
}

#[test]
fn clean_calls_of_all_kinds_report_nothing() {
    for transport in ["shm", "tcp"] {
        // Half of it: two processors may well leave a rank without one for a tenth of a second.
        let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport).env("OXCCL_STALL_WARN", "1");
        let mut job = launch.start(&format!("join watch-stall random=7:{} drop", CLEAN_CALLS / 2));
        for rank in &mut job.ranks {
            rank.line("did ", SOON * 4);
        }
        job.all_succeed();
        for rank in &job.ranks {
            assert!(!rank.errors().contains("WARN"), "{}", rank.transcript());
        }
    }
}
