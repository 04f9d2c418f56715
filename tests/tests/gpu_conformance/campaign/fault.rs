//! One random fault of a job of ranks on GPUs, and whether what the ranks say of it is right.

use super::super::launch::launch;
use super::what::What;
use oxccl_tests::devices::ranks_max;
use oxccl_tests::hosts::{Hosts, INTERFACE};
use oxccl_tests::process::{Failure, Job, Launch, SOON};
use oxccl_tests::random::Random;
use oxccl_tests::slowed::Slowed;
use rustix::process::Signal;
use std::fmt;
use std::time::{Duration, Instant};

const WARN: Duration = Duration::from_secs(1);
/// Long enough for a process to be stopped in it, over sockets.
const LONG: u64 = 32_000_000;
/// Long enough for a process that runs for 3 % of the time not to end it before the warn time.
const LONG_IF_SLOW: u64 = 4 * LONG;

/// One fault: what `rank` does instead of its part of the last of `calls`.
#[derive(Debug)]
pub struct Fault {
    pub what: What,
    /// Each rank passes for a host of its own.
    is_net: bool,
    nranks: u32,
    rank: u32,
    calls: Vec<String>,
    /// What carries the calls out, if not what the library chooses.
    forced: Option<(&'static str, &'static str)>,
}

/// Elements of an all-reduce in which something happens.
fn long(what: What) -> u64 {
    if what == What::Slow { LONG_IF_SLOW } else { LONG }
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
    pub fn new(random: &mut Random, classes: &[What]) -> Fault {
        let what = random.of(classes);
        let nranks = 2 + random.below(u64::from(ranks_max().min(4) - 1)) as u32;
        // Of two hosts each would be the other's.
        let nranks = if what == What::LinkSlow { 3 } else { nranks };
        let mut calls: Vec<String> = (0..=random.below(4)).map(|_| call(random)).collect();
        // Every rank waits for every other.
        let last = 1 + random.of(&[0, 300, 20_000, 400_000, 4_000_000]) + random.below(50);
        calls.push(format!("all-reduce={}", if what.is_within() { long(what) } else { last }));
        let rank = random.below(u64::from(nranks)) as u32;
        let is_net = what.is_within() || random.below(4) == 0;
        Fault { what, is_net, nranks, rank, calls, forced: None }
    }

    /// The last of two ranks leaves out the second of two all-reduces, which an algorithm and a protocol carry out.
    pub fn missing_call(algorithm: &'static str, protocol: &'static str) -> Fault {
        let calls = vec!["all-reduce=400000".to_owned(); 2];
        let forced = Some((algorithm, protocol));
        Fault { what: What::MissingCall, is_net: false, nranks: 2, rank: 1, calls, forced }
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
            What::LinkSlow => format!("ask {last}"),
            What::StopWithin | What::Slow | What::OtherCall | What::OtherSize => last.clone(),
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
        let launch = launch(self.nranks).env("OXCCL_STALL_WARN", &warn).env("OXCCL_TIMEOUT", "20");
        let launch = if self.is_net { launch.env("NCCL_NET", "Socket") } else { launch };
        match self.forced {
            Some((algorithm, protocol)) => launch.env("NCCL_ALGO", algorithm).env("NCCL_PROTO", protocol),
            // A rank that runs for a moment comes no further than its peers' slots let it.
            None if self.what == What::Slow => launch.env("NCCL_ALGO", "ring").env("NCCL_BUFFSIZE", "262144"),
            None => launch,
        }
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
    pub fn run(&self) -> Result<Duration, String> {
        if self.what == What::LinkSlow {
            return self.slow_link();
        }
        let mut job = self.start();
        let since = self.begin(&mut job);
        // Slow until its peers have heard of it.
        let slowed = (self.what == What::Slow).then(|| Slowed::start(&job.ranks[self.rank as usize]));
        match self.what.class() {
            Some(class) => self.stall(&mut job, class, since, || drop(slowed)),
            None if self.what == What::Kill => self.death(&mut job, since),
            None => self.mismatch(&mut job, since),
        }
    }

    /// Each rank is a host, and what that of the rank at fault sends is slow.
    fn slow_link(&self) -> Result<Duration, String> {
        let hosts = Hosts::new("gpus", self.nranks)?;
        let (mut launch, mut job) = (self.launch().env("NCCL_SOCKET_IFNAME", INTERFACE), Job::new());
        launch = launch.id("create");
        for rank in 0..self.nranks {
            let there = launch.clone().under(hosts.on(rank)).env("NCCL_HOSTID", &format!("host {rank}"));
            job.ranks.push(there.spawn(rank, &self.steps(rank)));
            if rank == 0 {
                launch = launch.id(job.ranks[0].line("id ", SOON).text["id ".len()..].trim());
            }
        }
        job.all_print("step ask");
        hosts.slow_down(self.rank, 50)?;
        job.ranks.iter_mut().for_each(|rank| rank.say("go on"));
        let speed_up = || hosts.speed_up(self.rank).expect("it was slowed down");
        self.stall(&mut job, "SlowLink", Instant::now(), speed_up)
    }

    /// Brings the fault about. Returns when.
    fn begin(&self, job: &mut Job) -> Instant {
        let guilty = self.rank as usize;
        let step = format!("step all-reduce={}", long(self.what));
        match self.what {
            What::OtherCall | What::OtherSize => {
                let steps: Vec<Instant> =
                    job.ranks.iter_mut().map(|rank| rank.line("step watch-stall", SOON).at).collect();
                steps.into_iter().max().expect("there are ranks")
            }
            What::StopWithin => {
                for rank in &mut job.ranks {
                    rank.line(&step, SOON);
                }
                std::thread::sleep(Duration::from_millis(15));
                job.ranks[guilty].signal(Signal::STOP)
            }
            What::Slow => {
                let begun = job.ranks.iter_mut().map(|rank| rank.line(&step, SOON).at);
                let since = begun.max().expect("there are ranks");
                std::thread::sleep(Duration::from_millis(15));
                since
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
    fn stall(
        &self,
        job: &mut Job,
        class: &str,
        since: Instant,
        end: impl FnOnce(),
    ) -> Result<Duration, String> {
        let mut last = Duration::ZERO;
        let (number, guilty) = (self.number().to_string(), self.rank.to_string());
        for rank in job.without(&[self.rank]) {
            // A rank that loads its kernels for longer than the warn time stalls the call before.
            let line = loop {
                let line = rank.line("stall ", SOON);
                if line.text.split(' ').nth(4) == Some(&number) {
                    break line;
                }
            };
            let words: Vec<&str> = line.text.split(' ').collect();
            if [words[1], words[2], words[4], words[5]] != [class, &guilty, &number, "all_reduce"] {
                return Err(format!("rank {} heard {:?}", rank.rank, line.text));
            }
            last = last.max(line.at.saturating_duration_since(since).saturating_sub(WARN));
        }
        end();
        let guilty = &mut job.ranks[self.rank as usize];
        guilty.signal(Signal::CONT);
        guilty.say("go on");
        job.all_succeed();
        let errors: String = job.ranks.iter().map(|rank| rank.errors()).collect();
        let operation = format!("(operation {number})");
        let is_report = |line: &&str| line.contains("stall [") && line.contains(&operation);
        let reports = errors.lines().filter(is_report).filter(|line| line.contains("WARN")).count();
        if let Some(line) = errors.lines().find(is_report) {
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
        let Fault { what, is_net, nranks, rank, calls, forced } = self;
        let over = if *is_net { "sockets" } else { "the host" };
        write!(f, "{what:?} of rank {rank} of {nranks} over {over} in {}", calls.join(" "))?;
        forced.map_or(Ok(()), |(algorithm, protocol)| write!(f, " by {algorithm}/{protocol}"))
    }
}
