//! Random faults in random places: the report names the rank, the operation and what is wrong with it. And clean runs report nothing.
//!
//! `OXCCL_TEST_FAULTS=N` makes it N faults, `OXCCL_TEST_SEED=S` begins with that seed, `OXCCL_TEST_CALLS=N` makes it N clean calls.

use oxccl_tests::hosts::{Hosts, INTERFACE};
use oxccl_tests::process::{Job, Launch, SOON, fresh_id};
use oxccl_tests::random::Random;
use oxccl_tests::slowed::Slowed;
use rustix::process::Signal;
use std::cell::Cell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

const RANK: &str = env!("CARGO_BIN_EXE_oxccl-rank");
const WARN: &str = "0.5";
const FAULTS: u64 = 20;
/// How often a slow rank may be missed, where nobody asked for so many faults.
const TRIES: u32 = 4;
const CLEAN_CALLS: u64 = 10_000;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Kill,
    Stop,
    MissingCall,
    OtherCall,
    OtherSize,
    /// It runs for 3 of 100 ms.
    Slow,
    /// Its host is cut off.
    LinkCut,
    /// Its host sends a hundredth as fast as the others.
    LinkSlow,
    WrongSecret,
}

impl What {
    const ALL: [What; 9] = [
        What::Kill,
        What::Stop,
        What::MissingCall,
        What::OtherCall,
        What::OtherSize,
        What::Slow,
        What::LinkCut,
        What::LinkSlow,
        What::WrongSecret,
    ];
}

/// Long enough for a slow rank to be found before it ends.
const LONG: u64 = 30_000_000;
/// How long a silent host is waited for.
const OUTAGE: &str = "2";
/// How long a rank that is not let in is waited for.
const PATIENCE: Duration = Duration::from_secs(2);
/// A digit of an id that belongs to its secret.
const SECRET_DIGIT: usize = 80;

/// One fault: what `rank` does instead of its part of the last of `calls`.
#[derive(Debug)]
struct Fault {
    what: What,
    transport: &'static str,
    nranks: u32,
    rank: u32,
    calls: Vec<String>,
    /// How long after the fault the last rank knew of it, where that was looked at.
    known_after: Cell<Option<Duration>>,
}

fn call(random: &mut Random) -> String {
    match random.below(4) {
        0 => "barrier".to_owned(),
        _ => format!("all-reduce={}", 1 + random.of(&[0, 300, 20_000, 400_000]) + random.below(50)),
    }
}

impl Fault {
    fn new(random: &mut Random) -> Fault {
        let (what, mut nranks) = (random.of(&What::ALL), 2 + random.below(3) as u32);
        if [What::LinkCut, What::LinkSlow].contains(&what) {
            // Of two hosts each would be the other's.
            nranks = 3;
        }
        let mut calls: Vec<String> = (0..=random.below(5)).map(|_| call(random)).collect();
        if what == What::OtherSize {
            calls.push(format!("all-reduce={}", 1 + random.below(100_000)));
        }
        if [What::Slow, What::LinkSlow].contains(&what) {
            calls.push(format!("all-reduce={}", LONG + random.below(1000)));
        }
        let rank = random.below(u64::from(nranks)) as u32;
        let transport = random.of(&["shm", "tcp"]);
        let is_between = [What::LinkCut, What::LinkSlow].contains(&what);
        let transport = if is_between && transport == "shm" { "net" } else { transport };
        Fault { what, transport, nranks, rank, calls, known_after: Cell::new(None) }
    }

    /// What a rank does; the one at fault is asked before the last call.
    fn steps(&self, rank: u32) -> String {
        let (last, before) = self.calls.split_last().expect("there is a call");
        let mut own = if self.what == What::LinkSlow { format!("ask {last}") } else { last.clone() };
        let is_slow = [What::Slow, What::LinkSlow].contains(&self.what);
        if rank == self.rank && !is_slow {
            own = match (self.what, last.strip_prefix("all-reduce=")) {
                (What::OtherCall, Some(_)) => "barrier".to_owned(),
                (What::OtherCall, None) => "all-reduce=77".to_owned(),
                (What::OtherSize, Some(count)) => format!("all-reduce={count}1"),
                _ => format!("ask {last}"),
            };
        }
        // Nobody may have looked since the end of a stall: it is said when the communicator goes.
        format!("join watch-stall {} {own} drop", before.join(" "))
    }

    fn function(&self) -> &str {
        if self.calls.last().is_some_and(|call| call == "barrier") { "barrier" } else { "all_reduce" }
    }

    /// Whether what the ranks say of it is right.
    fn run(&self) -> Result<(), String> {
        if self.what == What::LinkCut {
            return self.cut();
        }
        if self.what == What::LinkSlow {
            return self.slow_down();
        }
        if self.what == What::WrongSecret {
            return self.lock_out();
        }
        let launch = Launch::new(RANK, self.nranks).env("OXCCL_TRANSPORT", self.transport);
        let mut launch = launch.env("OXCCL_STALL_WARN", WARN);
        if self.what == What::Slow {
            // Short slots: a rank that runs for a moment comes no further than its peers' slots let it.
            launch = launch.env("NCCL_ALGO", "ring").env("NCCL_BUFFSIZE", "16384");
        }
        let mut job = launch.start_each(|rank| self.steps(rank));
        match self.what {
            What::OtherCall | What::OtherSize => self.mismatch(&mut job),
            What::Kill => {
                self.await_ask(&mut job);
                job.ranks[self.rank as usize].kill();
                self.death(&mut job)
            }
            What::Slow => {
                job.ranks.iter().for_each(|rank| rank.await_begun(self.calls.len() as u64));
                let slowed = Slowed::start(&job.ranks[self.rank as usize]);
                self.expect_stall(&mut job, Instant::now())?;
                drop(slowed);
                self.expect_two_lines(&mut job)
            }
            What::LinkCut | What::LinkSlow | What::WrongSecret => unreachable!("they have jobs of their own"),
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
        job.without(&[self.rank]).for_each(|rank| rank.await_begun(self.calls.len() as u64));
    }

    /// Every other rank learns the class, the rank, the number and the function, and goes on when the rank does.
    fn stall(&self, job: &mut Job) -> Result<(), String> {
        self.expect_stall(job, Instant::now())?;
        job.ranks[self.rank as usize].signal(Signal::CONT);
        job.ranks[self.rank as usize].say("");
        self.expect_two_lines(job)
    }

    fn expect_stall(&self, job: &mut Job, since: Instant) -> Result<(), String> {
        let class = match self.what {
            What::Stop => "NoAnswer",
            What::Slow => "Slow",
            What::LinkSlow => "SlowLink",
            _ => "MissingEnter",
        };
        let hears_too = self.what == What::LinkSlow;
        let silent = [self.rank];
        for rank in job.without(if hears_too { &[] } else { &silent }) {
            let heard = rank.line("stall ", SOON);
            self.knew(heard.at, since);
            let line = heard.text;
            let words: Vec<&str> = line.split(' ').collect();
            let (number, guilty) = ((self.calls.len() - 1).to_string(), self.rank.to_string());
            if [words[1], words[2], words[4], words[5]] != [class, &guilty, &number, self.function()] {
                return Err(format!("rank {} heard {line:?}", rank.rank));
            }
        }
        Ok(())
    }

    /// The last rank counts.
    fn knew(&self, at: Instant, since: Instant) {
        let after = at.saturating_duration_since(since);
        self.known_after.set(Some(self.known_after.get().map_or(after, |before| before.max(after))));
    }

    fn expect_two_lines(&self, job: &mut Job) -> Result<(), String> {
        job.all_succeed();
        let errors: String = job.ranks.iter().map(|rank| rank.errors()).collect();
        let reports = errors.lines().filter(|line| line.contains("WARN") && line.contains("stall [")).count();
        if reports == 2 { Ok(()) } else { Err(format!("{reports} lines of a stall and its end: {errors}")) }
    }

    /// Each rank is a host.
    fn start_on(&self, hosts: &Hosts, launch: Launch) -> Job {
        let launch = launch.env("NCCL_SOCKET_IFNAME", INTERFACE).env("OXCCL_STALL_WARN", WARN);
        let (mut launch, mut job) = (launch, Job::new());
        for rank in 0..self.nranks {
            let there = launch.clone().under(hosts.on(rank)).env("NCCL_HOSTID", &format!("host {rank}"));
            job.ranks.push(there.spawn(rank, &self.steps(rank)));
            if rank == 0 {
                launch = launch.id(job.ranks[0].line("id ", SOON).text["id ".len()..].trim());
            }
        }
        job
    }

    /// What the host of the rank at fault sends is slow, and the link to the next rank is named.
    fn slow_down(&self) -> Result<(), String> {
        let Some(hosts) = hosts(self.nranks) else { return Ok(()) };
        let launch = Launch::without_id(RANK, self.nranks).env("OXCCL_TRANSPORT", self.transport);
        let launch = launch.env("NCCL_ALGO", "ring");
        let mut job = self.start_on(&hosts, launch);
        job.all_print("step ask");
        if let Err(why) = hosts.slow_down(self.rank, 50) {
            println!("skipped: {why}");
            return Ok(());
        }
        job.ranks.iter_mut().for_each(|rank| rank.say("go on"));
        self.expect_stall(&mut job, Instant::now())?;
        hosts.speed_up(self.rank)?;
        self.expect_two_lines(&mut job)
    }

    /// The host of the rank at fault is cut off: the others name it once it has been silent for the time of an outage.
    fn cut(&self) -> Result<(), String> {
        let Some(hosts) = hosts(self.nranks) else { return Ok(()) };
        let launch = Launch::without_id(RANK, self.nranks).env("OXCCL_TRANSPORT", self.transport);
        let launch = launch.env("OXCCL_OUTAGE", OUTAGE);
        let mut job = self.start_on(&hosts, launch);
        // The others have the time of the outage to come to the call.
        job.ranks[self.rank as usize].line("step ask", SOON);
        hosts.cut_off(self.rank);
        let since = Instant::now();
        for rank in job.without(&[self.rank]) {
            let failure = rank.failure(SOON);
            self.knew(failure.at, since);
            let number = format!("(operation {})", self.calls.len() - 1);
            let is_right = failure.guilty == [self.rank] && failure.text.contains(self.function());
            if !is_right || !failure.text.contains(&number) {
                return Err(format!("rank {} failed with {failure:?}", rank.rank));
            }
        }
        Ok(())
    }

    /// A rank with another secret is told so, and the others learn who has not come.
    fn lock_out(&self) -> Result<(), String> {
        let id = fresh_id(PATIENCE).to_string();
        let mut wrong = id.clone().into_bytes();
        wrong[SECRET_DIGIT] = if wrong[SECRET_DIGIT] == b'0' { b'1' } else { b'0' };
        let wrong = String::from_utf8(wrong).expect("digits");
        let launch = Launch::without_id(RANK, self.nranks).env("OXCCL_TRANSPORT", self.transport);
        let mut job = Job::new();
        for rank in 0..self.nranks {
            let id = if rank == self.rank { &wrong } else { &id };
            job.ranks.push(launch.clone().id(id).spawn(rank, &self.steps(rank)));
        }
        for rank in &mut job.ranks {
            let failure = rank.failure(SOON);
            let is_right = match rank.rank == self.rank {
                true => failure.text.contains("secret"),
                false => failure.guilty == [self.rank] && failure.kind == "MissingRanks",
            };
            if !is_right {
                return Err(format!("rank {} failed with {failure:?}", rank.rank));
            }
        }
        Ok(())
    }

    fn death(&self, job: &mut Job) -> Result<(), String> {
        let since = Instant::now();
        for rank in job.without(&[self.rank]) {
            let failure = rank.failure(SOON);
            self.knew(failure.at, since);
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
        let Fault { what, transport, nranks, rank, calls, .. } = self;
        write!(f, "{what:?} of rank {rank} of {nranks} over {transport} in {}", calls.join(" "))
    }
}

/// The hosts; without privileges, prints a line and returns none.
fn hosts(count: u32) -> Option<Hosts> {
    Hosts::new("campaign", count)
        .inspect_err(|why| println!("skipped: no network namespaces here: {why}"))
        .ok()
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[test]
fn random_faults_are_named() {
    let first = number("OXCCL_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let (asked, mut wrong) = (number("OXCCL_TEST_FAULTS"), Vec::new());
    let (is_asked, faults) = (asked.is_some(), asked.unwrap_or(FAULTS));
    println!("OXCCL_TEST_SEED={first}");
    let (began, mut kinds) = (Instant::now(), [0; What::ALL.len()]);
    for seed in first..first + faults {
        let fault = Fault::new(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        kinds[fault.what as usize] += 1;
        let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
        // What does not come in time is a panic, which has said what.
        let run = || {
            catch_unwind(AssertUnwindSafe(|| fault.run())).unwrap_or_else(|_| Err("not in time".to_owned()))
        };
        let mut result = run();
        // Where other programs take the processors, another rank may be as slow for a while. Who asks for faults hears of each.
        for _ in 1..if fault.what == What::Slow && !is_asked { TRIES } else { 1 } {
            result = result.or_else(|_| run());
        }
        if is_asked {
            let (after, load) =
                (fault.known_after.get().unwrap_or_default().as_secs_f64(), &load[..4.min(load.len())]);
            println!(
                "fault {seed} {:?} {} after {after:.2} load {load}",
                fault.what,
                if result.is_ok() { "right" } else { "WRONG" }
            );
        }
        if let Err(error) = result {
            println!("OXCCL_TEST_SEED={seed}: {fault}: {error}");
            wrong.push((seed, fault.to_string()));
        }
    }
    let took = began.elapsed().as_secs_f64();
    let kinds: Vec<String> = What::ALL.iter().zip(kinds).map(|(what, n)| format!("{what:?} {n}")).collect();
    println!("{faults} faults in {took:.1} s: {}", kinds.join(", "));
    assert!(wrong.is_empty(), "{} of {faults} were not named as they are: {wrong:#?}", wrong.len());
}

#[test]
fn clean_calls_of_all_kinds_report_nothing() {
    let calls = number("OXCCL_TEST_CALLS").unwrap_or(CLEAN_CALLS);
    let time = SOON * 4 * (1 + calls / CLEAN_CALLS) as u32;
    for transport in ["shm", "tcp"] {
        // Half of it: two processors may well leave a rank without one for a tenth of a second.
        let launch = Launch::new(RANK, 3).env("OXCCL_TRANSPORT", transport).env("OXCCL_STALL_WARN", "1");
        let mut job = launch.start(&format!("join watch-stall random=7:{} drop", calls / 2));
        for rank in &mut job.ranks {
            let did = rank.line("did ", time).text;
            println!("{transport}: rank {} {did}", rank.rank);
        }
        job.all_succeed();
        for rank in &job.ranks {
            assert!(!rank.errors().contains("WARN"), "{}", rank.transcript());
        }
    }
}
