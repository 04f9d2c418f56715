//! Layer: tests.
//! Takes: the path of `oxccl-rank` and what each rank is to do.
//! Gives: [`Job`]: ranks as processes, their lines as they come, and how they end.
//! Never: waits without a bound, or leaves a process behind.

use oxccl::{BootstrapConfig, UniqueId};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

/// How long a step that should take milliseconds may take on a busy machine.
pub const SOON: Duration = Duration::from_secs(20);

/// How ranks of a [`Job`] are started.
#[derive(Clone, Debug)]
pub struct Launch {
    program: &'static str,
    nranks: u32,
    id: String,
    env: Vec<(String, String)>,
    under: Vec<String>,
}

impl Launch {
    /// `nranks` ranks that meet at a root in this process. `program` is `env!("CARGO_BIN_EXE_oxccl-rank")`.
    pub fn new(program: &'static str, nranks: u32) -> Launch {
        Launch { id: fresh_id(Duration::from_secs(30)).to_string(), ..Launch::without_id(program, nranks) }
    }

    /// The same with a root that waits only `patience` for the ranks that are missing.
    pub fn impatient(program: &'static str, nranks: u32, patience: Duration) -> Launch {
        Launch { id: fresh_id(patience).to_string(), ..Launch::without_id(program, nranks) }
    }

    /// Ranks that make or find their id themselves: `create` or `env`.
    pub fn without_id(program: &'static str, nranks: u32) -> Launch {
        Launch { program, nranks, id: "create".to_owned(), env: Vec::new(), under: Vec::new() }
            .env("NCCL_SOCKET_IFNAME", "lo")
            .env("OXCCL_BOOTSTRAP_TIMEOUT", "30")
            // Also where it is not faster.
            .env("OXCCL_CMA", "1")
            .env("OXCCL_PING_PONG", "1")
            .env("OXCCL_OUTBOX", "1")
            // Tests count ports, and jobs beside each other would share that one.
            .env("NCCL_RAS_ENABLE", "0")
    }

    /// With another id.
    pub fn id(mut self, id: &str) -> Launch {
        id.clone_into(&mut self.id);
        self
    }

    /// The id, for ranks that are started in another way.
    pub fn id_text(&self) -> &str {
        &self.id
    }

    /// With another number of ranks.
    pub fn ranks(self, nranks: u32) -> Launch {
        Launch { nranks, ..self }
    }

    /// With a variable in the environment of every rank started from now on. There are no others but PATH.
    pub fn env(mut self, name: &str, value: &str) -> Launch {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// With this command before the program's name: it ends by becoming what follows it.
    pub fn under(self, command: impl Into<Vec<String>>) -> Launch {
        Launch { under: command.into(), ..self }
    }

    /// Starts every rank with the same steps.
    pub fn start(&self, steps: &str) -> Job {
        self.start_each(|_| steps.to_owned())
    }

    /// Starts every rank with steps of its own.
    pub fn start_each(&self, steps: impl Fn(u32) -> String) -> Job {
        let mut job = Job::new();
        for rank in 0..self.nranks {
            job.ranks.push(self.spawn(rank, &steps(rank)));
        }
        job
    }

    /// Starts one rank.
    pub fn spawn(&self, rank: u32, steps: &str) -> Process {
        let mut words = self.under.iter().map(String::as_str).chain([self.program]);
        let mut command = Command::new(words.next().unwrap_or(self.program));
        command
            .args(words)
            .args([&rank.to_string(), &self.nranks.to_string(), &self.id])
            .args(steps.split_whitespace())
            .env_clear()
            .envs(std::env::var_os("PATH").map(|path| ("PATH", path)))
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        Process::start(rank, command)
    }
}

/// Has the caller's thread, and all processes and threads that it starts from now on, go before other programs of this machine, where the
/// system lets it: for tests of what is slow.
pub fn go_before_others() {
    const FIRST: i32 = -20;
    // Who is not root is as fast as all others.
    let _ = rustix::process::setpriority_process(None, FIRST);
}

/// An id whose root runs in this process and waits `patience` after the first rank.
pub fn fresh_id(patience: Duration) -> UniqueId {
    let bind_addr = Some(Ipv4Addr::LOCALHOST.into());
    let config = BootstrapConfig { bind_addr, timeout: patience, ..BootstrapConfig::default() };
    UniqueId::create_by(&config).expect("a root on the loopback")
}

/// Ranks that run at the same time.
pub struct Job {
    /// By rank, unless the test has added others.
    pub ranks: Vec<Process>,
    /// When it began.
    pub started: SystemTime,
}

impl Job {
    /// No rank yet.
    #[expect(clippy::new_without_default, reason = "the time of its making matters")]
    pub fn new() -> Job {
        Job { ranks: Vec::new(), started: SystemTime::now() }
    }

    /// Waits until every rank has printed a line that begins so.
    pub fn all_print(&mut self, prefix: &str) {
        self.ranks.iter_mut().for_each(|rank| drop(rank.line(prefix, SOON)));
    }

    /// Sends a signal to these ranks.
    pub fn signal(&self, ranks: &[u32], signal: rustix::process::Signal) {
        for rank in ranks {
            let _ = self.ranks[*rank as usize].signal(signal);
        }
    }

    /// Waits until all ranks have ended well.
    pub fn all_succeed(&mut self) {
        for rank in &mut self.ranks {
            let status = rank.end(SOON);
            assert!(status.success(), "{status}: {}", rank.transcript());
        }
    }

    /// The ranks without those of these numbers.
    pub fn without(&mut self, dead: &[u32]) -> impl Iterator<Item = &mut Process> {
        self.ranks.iter_mut().filter(|rank| !dead.contains(&rank.rank))
    }

    /// Fails if a file in /dev/shm made since the job began has no owner any more.
    pub fn assert_no_files_left(&self) {
        crate::tidy::assert_no_files_left(self.started, Duration::from_secs(2));
    }
}

/// A line that a rank printed, and when it came.
#[derive(Clone, Debug)]
pub struct Line {
    /// Without its end.
    pub text: String,
    /// When it came.
    pub at: Instant,
}

/// A rank's report of a failed step.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The kind of error, as `oxccl-rank` names it.
    pub kind: String,
    /// The ranks that the error names as guilty.
    pub guilty: Vec<u32>,
    /// What a user reads.
    pub text: String,
    /// The time of the report.
    pub at: Instant,
}

impl Failure {
    /// What a line says that reports one.
    pub fn parse(line: &Line) -> Option<Failure> {
        let mut words = line.text.strip_prefix("failed ")?.splitn(3, ' ');
        let (kind, guilty, text) = (words.next()?, words.next()?, words.next()?);
        let guilty = guilty.split(',').filter_map(|rank| rank.parse().ok()).collect();
        Some(Failure { kind: kind.to_owned(), guilty, text: text.to_owned(), at: line.at })
    }
}

/// One rank.
pub struct Process {
    /// Its rank at first.
    pub rank: u32,
    child: Child,
    lines: Receiver<Line>,
    /// What has come so far, for messages.
    seen: Vec<Line>,
    errors: Option<JoinHandle<String>>,
    error_text: String,
    status: Option<ExitStatus>,
}

impl Process {
    fn start(rank: u32, mut command: Command) -> Process {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("a rank starts");
        let stdout = child.stdout.take().expect("it is piped");
        let mut stderr = child.stderr.take().expect("it is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for text in BufReader::new(stdout).lines().map_while(Result::ok) {
                // The test may have lost interest; the rank must not block on a full pipe.
                let _ = sender.send(Line { text, at: Instant::now() });
            }
        });
        let errors = std::thread::spawn(move || {
            let mut bytes = Vec::new();
            let _ = stderr.read_to_end(&mut bytes);
            String::from_utf8_lossy(&bytes).into_owned()
        });
        Process {
            rank,
            child,
            lines,
            seen: Vec::new(),
            errors: Some(errors),
            error_text: String::new(),
            status: None,
        }
    }

    /// Calls that the process has begun in its first communicator, as it says itself; 0 where it says nothing.
    pub fn begun(&self) -> u64 {
        let processes = oxccl::status::ask::processes().unwrap_or_default();
        let found = processes.into_iter().find(|found| found.pid == self.pid());
        let report = found.and_then(|found| found.status(0, Duration::ZERO, SOON).ok());
        report.and_then(|report| report.communicators.first().map(|comm| comm.begun)).unwrap_or(0)
    }

    /// Waits until the process has begun so many calls.
    ///
    /// # Panics
    /// If it does not come so far.
    pub fn await_begun(&self, calls: u64) {
        let deadline = Instant::now() + SOON;
        while self.begun() < calls {
            assert!(Instant::now() < deadline, "rank {} does not come to call {calls}", self.rank);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that begins so.
    ///
    /// # Panics
    /// If it does not come in time or the process ends before it.
    pub fn line(&mut self, prefix: &str, within: Duration) -> Line {
        self.line_of(&[prefix], within)
    }

    /// The latest line seen so far that begins so.
    pub fn seen(&self, prefix: &str) -> Option<Line> {
        self.seen.iter().rfind(|line| line.text.starts_with(prefix)).cloned()
    }

    /// The next line that begins with any of these.
    ///
    /// # Panics
    /// As [`Self::line`].
    pub fn line_of(&mut self, prefixes: &[&str], within: Duration) -> Line {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let why = match self.lines.recv_timeout(left) {
                Ok(line) => {
                    self.seen.push(line.clone());
                    if prefixes.iter().any(|prefix| line.text.starts_with(prefix)) {
                        return line;
                    }
                    continue;
                }
                Err(RecvTimeoutError::Timeout) => "in time",
                Err(RecvTimeoutError::Disconnected) => "before its end",
            };
            self.signal(rustix::process::Signal::KILL);
            self.reap(Instant::now() + SOON);
            panic!("rank {} did not print {prefixes:?} {why} ({within:?}): {}", self.rank, self.transcript());
        }
    }

    /// The failure that is expected next.
    ///
    /// # Panics
    /// As [`Self::line`].
    pub fn failure(&mut self, within: Duration) -> Failure {
        let line = self.line("failed ", within);
        Failure::parse(&line).unwrap_or_else(|| panic!("cannot read {line:?}"))
    }

    /// Whether a failure has been printed, by the time it ended or for as long as `within`.
    pub fn maybe_failure(&mut self, within: Duration) -> Option<Failure> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.lines.recv_timeout(left).ok()?;
            self.seen.push(line.clone());
            if let Some(failure) = Failure::parse(&line) {
                return Some(failure);
            }
        }
    }

    /// Gives it a line to read.
    pub fn say(&mut self, line: &str) {
        let stdin = self.child.stdin.as_mut().expect("it is piped");
        // A rank that has died cannot read; the test finds out by what it expects next.
        let _ = writeln!(stdin, "{line}");
    }

    /// Sends a signal; when (the receiver may act on it before this returns).
    pub fn signal(&self, signal: rustix::process::Signal) -> Instant {
        let at = Instant::now();
        // A process that has ended already needs none. Its number is ours until it is reaped.
        if self.status.is_none() {
            let _ = rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal);
        }
        at
    }

    /// kill -9; when.
    pub fn kill(&self) -> Instant {
        self.signal(rustix::process::Signal::KILL)
    }

    /// Waits for the process to end.
    ///
    /// # Panics
    /// If it does not within that time, or if anything in it panicked.
    pub fn end(&mut self, within: Duration) -> ExitStatus {
        let status = self.reap(Instant::now() + within);
        let Some(status) = status else {
            self.signal(rustix::process::Signal::KILL);
            self.reap(Instant::now() + SOON);
            panic!("rank {} did not end within {within:?}: {}", self.rank, self.transcript());
        };
        assert!(!self.error_text.contains("panicked"), "{}", self.transcript());
        assert!(
            status.signal().is_none_or(|signal| signal == rustix::process::Signal::KILL.as_raw()),
            "rank {} ended by {status}: {}",
            self.rank,
            self.transcript()
        );
        status
    }

    /// What it has written to standard error, once it has ended.
    pub fn errors(&self) -> &str {
        &self.error_text
    }

    /// Everything it printed, for messages.
    pub fn transcript(&self) -> String {
        let mut text = format!("rank {}", self.rank);
        for line in &self.seen {
            text.push_str("\n    ");
            text.push_str(&line.text);
        }
        text.push_str("\n  stderr:\n");
        text.push_str(&self.error_text);
        text
    }

    fn reap(&mut self, deadline: Instant) -> Option<ExitStatus> {
        while self.status.is_none() {
            self.status = self.child.try_wait().expect("it is our child");
            if self.status.is_none() {
                if Instant::now() > deadline {
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        while let Ok(line) = self.lines.recv_timeout(Duration::from_millis(200)) {
            self.seen.push(line);
        }
        if let Some(errors) = self.errors.take() {
            self.error_text = errors.join().unwrap_or_default();
        }
        self.status
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.status.is_none() {
            let _ = self.child.kill();
        }
        if std::thread::panicking() {
            // The reason may be any rank's.
            self.reap(Instant::now() + SOON);
            eprintln!("{}", self.transcript());
        } else if self.status.is_none() {
            let _ = self.child.wait();
        }
    }
}
