//! Random faults of ranks that are processes on GPUs: the report names the rank, the operation and what is wrong with it, in time.
//!
//! `OXCCL_TEST_FAULTS=N` makes it N faults, `OXCCL_TEST_SEED=S` begins with that seed. It ends in a table: of each class how many there
//! were, how many were named as they are, and how long after the warn time (a fault that is an error: after it happened) the last rank knew.

use oxccl_tests::devices::{gpus, ranks_max};
use oxccl_tests::process::{Failure, Job, Launch, SOON};
use rustix::process::Signal;
use std::fmt;
use std::panic::catch_unwind;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const WARN: Duration = Duration::from_secs(1);
const FAULTS: u64 = 20;
/// Long enough for a process to be stopped in it, over sockets.
const LONG: u64 = 32_000_000;

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
    /// Its process is stopped before it calls.
    Stop,
    /// Its process is stopped within an operation over sockets, which its proxy carries.
    StopWithin,
    MissingCall,
    OtherCall,
    OtherSize,
    /// A kernel before its call never ends.
    Hang,
    /// All have captured the call, and it does not launch its graph.
    MissingReplay,
}

impl What {
    const ALL: [What; 8] = [
        What::Kill,
        What::Stop,
        What::StopWithin,
        What::MissingCall,
        What::OtherCall,
        What::OtherSize,
        What::Hang,
        What::MissingReplay,
    ];

    /// What ranks hear of a stall; nothing where the fault is an error.
    fn class(self) -> Option<&'static str> {
        match self {
            What::Kill | What::OtherCall | What::OtherSize => None,
            What::Stop | What::StopWithin => Some("NoAnswer"),
            What::MissingCall => Some("MissingEnter"),
            What::Hang | What::MissingReplay => Some("MissingStart"),
        }
    }
}

/// One fault: what `rank` does instead of its part of the last of `calls`.
#[derive(Debug)]
struct Fault {
    what: What,
    /// Each rank passes for a host of its own.
    is_net: bool,
    nranks: u32,
    rank: u32,
    calls: Vec<String>,
}

fn call(random: &mut Random) -> String {
    let count = 1 + random.of(&[0, 300, 20_000, 400_000, 4_000_000]) + random.below(50);
    match random.below(6) {
        0 => "barrier".to_owned(),
        1 => format!("broadcast={count}"),
        _ => format!("all-reduce={count}"),
    }
}

impl Fault {
    fn new(random: &mut Random) -> Fault {
        let what = random.of(&What::ALL);
        let nranks = 2 + random.below(u64::from(ranks_max().min(4) - 1)) as u32;
        let mut calls: Vec<String> = (0..=random.below(4)).map(|_| call(random)).collect();
        // Every rank waits for every other.
        let last = 1 + random.of(&[0, 300, 20_000, 400_000, 4_000_000]) + random.below(50);
        calls.push(format!("all-reduce={}", if what == What::StopWithin { LONG } else { last }));
        let rank = random.below(u64::from(nranks)) as u32;
        let is_net = what == What::StopWithin || random.below(4) == 0;
        Fault { what, is_net, nranks, rank, calls }
    }

    fn number(&self) -> usize {
        self.calls.len() - 1
    }

    /// What a rank does; the one at fault is asked before the last call.
    fn steps(&self, rank: u32) -> String {
        let (last, before) = self.calls.split_last().expect("there is a call");
        let count = last.trim_start_matches("all-reduce=");
        let is_own = rank == self.rank;
        let end = match self.what {
            What::OtherCall if is_own => "barrier".to_owned(),
            What::OtherSize if is_own => {
                format!("all-reduce={}", count.parse::<u64>().map_or(7, |count| count * 2 + 1))
            }
            What::Hang if is_own => format!("ask hang {last}"),
            What::MissingReplay if is_own => format!("capture=all-reduce:{count} ask replay"),
            What::MissingReplay => format!("capture=all-reduce:{count} replay"),
            What::StopWithin | What::OtherCall | What::OtherSize => last.clone(),
            _ if is_own => format!("ask {last}"),
            _ => last.clone(),
        };
        // Who reported a stall looks a few times a second whether it is over.
        let rest = if self.what.class().is_some() { "sleep=800 drop" } else { "drop" };
        format!("watch-stall {} {end} {rest}", before.join(" "))
    }

    fn launch(&self) -> Launch {
        let warn = WARN.as_secs_f64().to_string();
        // What must fail in the end fails soon.
        let launch =
            Launch::new(program(), self.nranks).env("OXCCL_STALL_WARN", &warn).env("OXCCL_TIMEOUT", "20");
        let from_here = ["OXCCL_PTX_PATH", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "OXCCL_DUPLICATE_GPUS"];
        let launch = from_here.iter().fold(launch, |launch, name| match std::env::var(name) {
            Ok(value) => launch.env(name, &value),
            Err(_) => launch,
        });
        let launch = if self.is_net { launch.env("NCCL_NET", "Socket") } else { launch };
        if self.nranks > gpus() { launch.env("OXCCL_DUPLICATE_GPUS", "1") } else { launch }
    }

    fn start(&self) -> Job {
        let (launch, mut job) = (self.launch(), Job::new());
        for rank in 0..self.nranks {
            let host = format!("host {rank}");
            let one = launch.clone();
            let one = if self.is_net { one.env("NCCL_HOSTID", &host) } else { one };
            job.ranks.push(one.spawn(rank, &self.steps(rank)));
        }
        job
    }

    /// Whether what the ranks say of it is right; how long after the warn time, or the fault, the last of them knew.
    fn run(&self) -> Result<Duration, String> {
        let mut job = self.start();
        let since = self.begin(&mut job);
        match self.what.class() {
            Some(class) => self.stall(&mut job, class, since),
            None if self.what == What::Kill => self.death(&mut job, since),
            None => self.mismatch(&mut job, since),
        }
    }

    /// Brings the fault about. Returns when.
    fn begin(&self, job: &mut Job) -> Instant {
        let guilty = self.rank as usize;
        match self.what {
            What::OtherCall | What::OtherSize => {
                let steps: Vec<Instant> =
                    job.ranks.iter_mut().map(|rank| rank.line("step watch-stall", SOON).at).collect();
                steps.into_iter().max().expect("there are ranks")
            }
            What::StopWithin => {
                for rank in &mut job.ranks {
                    rank.line(&format!("step all-reduce={LONG}"), SOON);
                }
                std::thread::sleep(Duration::from_millis(15));
                job.ranks[guilty].signal(Signal::STOP)
            }
            _ => {
                job.ranks[guilty].line("step ask", SOON);
                let step = if self.what == What::MissingReplay {
                    "step replay".to_owned()
                } else {
                    format!("step {}", self.calls[self.number()])
                };
                let began = job.without(&[self.rank]).map(|rank| rank.line(&step, SOON).at).max();
                match self.what {
                    What::Kill => {
                        // A death between two operations leaves none that an error could name.
                        std::thread::sleep(Duration::from_millis(200));
                        job.ranks[guilty].kill()
                    }
                    What::Stop => job.ranks[guilty].signal(Signal::STOP),
                    What::Hang => {
                        job.ranks[guilty].say("hang");
                        job.ranks[guilty].line("hangs", SOON).at
                    }
                    _ => began.expect("there are others"),
                }
            }
        }
    }

    /// Every rank that does not stand still learns the class, the rank, the number and the function, and goes on when the rank does.
    fn stall(&self, job: &mut Job, class: &str, since: Instant) -> Result<Duration, String> {
        let mut last = Duration::ZERO;
        for rank in job.without(&[self.rank]) {
            let line = rank.line("stall ", SOON);
            let words: Vec<&str> = line.text.split(' ').collect();
            let (number, guilty) = (self.number().to_string(), self.rank.to_string());
            if [words[1], words[2], words[4], words[5]] != [class, &guilty, &number, "all_reduce"] {
                return Err(format!("rank {} heard {:?}", rank.rank, line.text));
            }
            last = last.max(line.at.saturating_duration_since(since).saturating_sub(WARN));
        }
        let guilty = &mut job.ranks[self.rank as usize];
        guilty.signal(Signal::CONT);
        guilty.say("go on");
        job.all_succeed();
        let errors: String = job.ranks.iter().map(|rank| rank.errors()).collect();
        let reports = errors.lines().filter(|line| line.contains("WARN") && line.contains("stall [")).count();
        if let Some(line) = errors.lines().find(|line| line.contains("stall [")) {
            println!("  {line}");
        }
        if reports == 2 { Ok(last) } else { Err(format!("{reports} lines of a stall and its end: {errors}")) }
    }

    /// One rank has heard of it; every one has, or hears of it now.
    fn mismatch_as_stall(&self, job: &mut Job, since: Instant) -> Result<Duration, String> {
        let mut last = Duration::ZERO;
        for rank in &mut job.ranks {
            let line = rank.seen("stall Mismatch ").unwrap_or_else(|| rank.line("stall Mismatch ", SOON));
            let words: Vec<&str> = line.text.split(' ').collect();
            let either = words[2] == self.rank.to_string() || self.nranks == 2;
            if !either || words[4] != self.number().to_string() {
                return Err(format!("rank {} heard {:?}", rank.rank, line.text));
            }
            last = last.max(line.at.saturating_duration_since(since).saturating_sub(WARN));
        }
        Ok(last)
    }

    fn death(&self, job: &mut Job, since: Instant) -> Result<Duration, String> {
        let mut last = Duration::ZERO;
        for rank in job.without(&[self.rank]) {
            let failure = rank.failure(SOON);
            // The error says no operation: which of those enqueued are done nobody knows at that moment.
            let is_right = failure.kind == "PeerDied" && failure.guilty == [self.rank];
            if !is_right {
                return Err(format!("rank {} failed with {failure:?}", rank.rank));
            }
            last = last.max(failure.at.saturating_duration_since(since));
        }
        Ok(last)
    }

    fn is_named_in(&self, failure: &Failure) -> bool {
        failure.text.contains(&format!("(operation {})", self.number()))
    }

    /// All fail, and somebody says which rank called something else. With two ranks each is the other's. Calls whose kernels wait on
    /// connections of their own are a stall of that class instead.
    fn mismatch(&self, job: &mut Job, since: Instant) -> Result<Duration, String> {
        let mut failures: Vec<(u32, Failure)> = Vec::new();
        for rank in &mut job.ranks {
            let line = rank.line_of(&["failed ", "stall Mismatch "], SOON);
            match Failure::parse(&line) {
                Some(failure) => failures.push((rank.rank, failure)),
                None => return self.mismatch_as_stall(job, since),
            }
        }
        let names = |(rank, failure): &(u32, Failure)| {
            failure.kind == "Mismatch"
                && self.is_named_in(failure)
                && (*rank == self.rank || failure.guilty == [self.rank])
        };
        let kinds = ["Mismatch", "PeerAborted", "PeerLeft"];
        let is_right = failures.iter().all(|(_, failure)| kinds.contains(&failure.kind.as_str()));
        if !is_right || !failures.iter().any(names) {
            return Err(format!("{failures:#?}"));
        }
        let last = failures.iter().map(|(_, failure)| failure.at).max();
        Ok(last.map_or(Duration::ZERO, |last| last.saturating_duration_since(since)))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { what, is_net, nranks, rank, calls } = self;
        let over = if *is_net { "sockets" } else { "the host" };
        write!(f, "{what:?} of rank {rank} of {nranks} over {over} in {}", calls.join(" "))
    }
}

/// The program that is a rank: beside this one, where both were copied, else where it was built.
fn program() -> &'static str {
    let name = "oxccl-gpu-rank";
    let beside = std::env::current_exe().ok().and_then(|exe| exe.parent().map(|folder| folder.join(name)));
    let found = beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| PathBuf::from(env!("CARGO_BIN_EXE_oxccl-gpu-rank")));
    Box::leak(found.to_string_lossy().into_owned().into_boxed_str())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

/// `class injected right: seconds least, median, most`.
fn print_table(results: &[(What, Option<Duration>)]) {
    println!("{:<14} injected  right  s after the warn time, or the fault: least median most", "class");
    for what in What::ALL {
        let of_class: Vec<Option<Duration>> =
            results.iter().filter(|(found, _)| *found == what).map(|(_, time)| *time).collect();
        let mut times: Vec<f64> = of_class.iter().flatten().map(Duration::as_secs_f64).collect();
        times.sort_by(f64::total_cmp);
        let at = |share: usize| {
            times.get((times.len().saturating_sub(1)) * share / 2).copied().unwrap_or(f64::NAN)
        };
        println!(
            "{:<14} {:>8} {:>6}  {:.2} {:.2} {:.2}",
            format!("{what:?}"),
            of_class.len(),
            times.len(),
            at(0),
            at(1),
            at(2),
        );
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_random_faults_are_named() {
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    let first = number("OXCCL_TEST_SEED").unwrap_or_else(|| u64::from(std::process::id()));
    let faults = number("OXCCL_TEST_FAULTS").unwrap_or(FAULTS);
    println!("OXCCL_TEST_SEED={first}");
    let (began, mut results) = (Instant::now(), Vec::new());
    for seed in first..first + faults {
        let fault = Fault::new(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        // What does not come in time is a panic, which has said what.
        let result = catch_unwind(|| fault.run()).unwrap_or_else(|_| Err("not in time".to_owned()));
        match &result {
            Ok(after) => println!("seed {seed}: {fault}: named, {:.2} s", after.as_secs_f64()),
            Err(error) => println!("OXCCL_TEST_SEED={seed}: {fault}: WRONG: {error}"),
        }
        results.push((fault.what, result.ok()));
    }
    println!("{faults} faults in {:.1} s", began.elapsed().as_secs_f64());
    print_table(&results);
    let wrong = results.iter().filter(|(_, time)| time.is_none()).count();
    assert_eq!(wrong, 0, "of {faults} were not named as they are");
}
