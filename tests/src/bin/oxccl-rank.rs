//! Layer: tests, a program beside them.
//! Takes: `RANK NRANKS ID STEP...`, where ID is 256 hexadecimal digits, `create` (this rank makes the id and prints it) or
//! `env` (the launcher's environment), and each STEP one of those of [`Program::step`].
//! Gives: a line before each step, lines for results, and for a failed step the line `failed KIND GUILTY TEXT`; then it goes
//! on behind the step `after`, or ends with status 1.
//! Never: outlives the process that started it.

use oxccl::bootstrap::{Cancel, UniqueIdError};
use oxccl::net::aggregate::{Server, ServerConfig};
use oxccl::{Communicator, Error, RedOp, ReduceOp, UniqueId, group};
use oxccl_tests::failed::{describe, watch_stall};
use oxccl_tests::oracle::{by_rank, noise};
use oxccl_tests::random::Random;
use oxccl_tests::tidy::Footprint;
use std::error::Error as StdError;
use std::io::BufRead;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long the library's threads and sockets may live once they are unused.
const TIDY_WITHIN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let parent = rustix::process::getppid();
    if rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_err()
        || rustix::process::getppid() != parent
    {
        return ExitCode::from(3);
    }
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rank, nranks, id, steps @ ..] = args.as_slice() else {
        eprintln!("usage: oxccl-rank RANK NRANKS ID STEP...");
        return ExitCode::from(2);
    };
    let mut program = Program::new(rank, nranks, id);
    program.run(steps)
}

type StepResult = Result<(), Box<dyn StdError>>;

struct Program {
    rank: u32,
    nranks: u32,
    id: String,
    communicator: Option<Communicator>,
    /// Those from which it was made.
    parents: Vec<Communicator>,
    before: Footprint,
    /// Whether a failure ends the process where it is.
    exits_at_once: bool,
}

impl Program {
    fn new(rank: &str, nranks: &str, id: &str) -> Program {
        let number = |text: &str| text.parse().expect("ranks are numbers");
        let (rank, nranks) = (number(rank), number(nranks));
        let (id, parents) = (id.to_owned(), Vec::new());
        let before = Footprint::take();
        Program { rank, nranks, id, communicator: None, parents, before, exits_at_once: false }
    }

    fn run(&mut self, steps: &[String]) -> ExitCode {
        let mut steps = steps.iter();
        while let Some(step) = steps.next() {
            println!("step {step}");
            let Err(error) = self.step(step) else { continue };
            println!("failed {}", describe(error.as_ref()));
            if self.exits_at_once {
                std::process::exit(1);
            }
            if !steps.any(|step| step == "after") {
                return ExitCode::FAILURE;
            }
        }
        println!("end");
        ExitCode::SUCCESS
    }

    fn step(&mut self, step: &str) -> StepResult {
        let (name, arg) = step.split_once('=').unwrap_or((step, ""));
        match name {
            // Joins with the id of the command line.
            "join" => self.join(),
            // Waits for a line from the test.
            "ask" => read_line().map(drop),
            // Waits for `RANK NRANKS ID` and joins with that.
            "rejoin" => self.rejoin(),
            // `failed` continues here.
            "after" => Ok(()),
            // From now on a failed step ends the process without dropping its communicator, as a call of `exit` does.
            "exit-at-once" => {
                self.exits_at_once = true;
                Ok(())
            }
            // Compares the result of every kind of call with what it must be.
            "check" => Ok(self.communicator().map(check)??),
            // Compares the bits of reductions with those of a reduction by rank.
            "bits" => check_bits(self.communicator()?),
            "barrier" => Ok(self.communicator()?.barrier()?),
            "all-reduce" => Ok(all_reduce(self.communicator()?, arg.parse()?)?),
            // One call after the other until one fails: `forever=CALL:COUNT`.
            "forever" => self.forever(arg),
            // From now on another thread prints each stall that the handle knows of, and when it is over.
            "watch-stall" => self.watch_stall(),
            // SEED:CALLS: random calls, the same on all ranks, at least so many.
            "random" => self.random(arg),
            // Calls from now on have this number of the caller's.
            "tag" => {
                self.communicator()?.handle().tag(arg.parse()?);
                Ok(())
            }
            // The same, in memory that is there before: waits for a line from the test between the two.
            "all-reduce-told" => {
                let mut buffer = vec![1f32; arg.parse()?];
                println!("ready");
                read_line()?;
                Ok(self.communicator()?.all_reduce_in_place(&mut buffer, ReduceOp::SUM)?)
            }
            // Makes no call and waits until the library reports an error by itself.
            "idle" => self.idle(),
            // Goes on with the ranks that live, in place of the communicator that failed.
            "shrink" => self.shrink(),
            // The same without these ranks, whether they live or not: `RANK,RANK...`.
            "shrink-without" => self.shrink_without(arg),
            // Begins to join, `split`, `shrink` or `grow` with all ranks, and drops what it began after so many microseconds: `WHAT:MICROSECONDS`.
            "begin" => self.begin(arg),
            // The same to the end.
            "all-split" => Ok(self.communicator()?.split(Some(0), 0).map(drop)?),
            // Goes on if it fails.
            "failing-split" => match self.communicator()?.split(Some(0), 0) {
                Ok(_) => Err("the split has not failed".into()),
                Err(_) => Ok(()),
            },
            "all-shrink" => Ok(self.communicator()?.start_shrink(&[])?.wait().map(drop)?),
            // Goes on with a split in which the ranks stand the other way round.
            "reverse" => self.reverse(),
            // Goes on with the communicator that this one was made from; the next time with this one again.
            "swap" => {
                let (parent, this) =
                    (self.parents.pop().ok_or("it has no parent")?, self.communicator.take());
                self.communicator = Some(parent);
                self.parents.extend(this);
                Ok(())
            }
            // Goes on with as many new ranks as it takes to be so many; rank 0 prints their id.
            "grow" => self.grow(arg.parse()?),
            // Aborts from another thread in so many milliseconds.
            "abort-in" => self.abort_in(Duration::from_millis(arg.parse()?)),
            // What has happened to the connections with each other rank.
            "counters" => counters(),
            "finalize" => self.finalize(),
            // COUNT:PEER: one message alone.
            "send" => {
                let (count, peer) = message(arg)?;
                Ok(self.communicator()?.send(&vec![1f32; count], peer)?)
            }
            "recv" => {
                let (count, peer) = message(arg)?;
                Ok(self.communicator()?.recv(&mut vec![0f32; count], peer)?)
            }
            // COUNT:ROOT: a reduction alone.
            "reduce" => {
                let (count, root) = message(arg)?;
                let (send, mut recv) = (vec![1f32; count], vec![0f32; count]);
                Ok(self.communicator()?.reduce(&send, &mut recv, ReduceOp::SUM, root)?)
            }
            "drop" => self.drop_communicator(),
            // A child that uses what belongs to its parent is refused, whatever it calls, and the parent does not notice.
            "fork-use" => self.fork_use(),
            // The same with an operation in flight, which a child does not advance.
            "fork-in-flight" => self.fork_in_flight(),
            // A child process drops the communicator that it inherited, and ends.
            "fork-drop" => in_fork(|| self.communicator = None, || Ok(())),
            // A child process and this one meet as ranks of a communicator of their own.
            "fork-join" => self.fork_join(),
            "sleep" => {
                std::thread::sleep(Duration::from_millis(arg.parse()?));
                Ok(())
            }
            // Fails if threads, descriptors or mappings of the library are left.
            "tidy" => Ok(self.before.await_return(TIDY_WITHIN)?),
            // Serves as an aggregator, `PORT:MIB`, as `oxccl aggregate` does, until the process is ended.
            "serve" => serve(arg),
            // From now on no file of this process can be longer than so many bytes: the kernel kills it if it tries.
            "limit-files" => limit_files(arg.parse()?),
            // From now on this process can open so many more descriptors.
            "limit-descriptors" => limit_descriptors(arg.parse()?),
            _ => Err(format!("there is no step {step}").into()),
        }
    }

    fn communicator(&self) -> Result<&Communicator, &'static str> {
        self.communicator.as_ref().ok_or("there is no communicator")
    }

    fn join(&mut self) -> StepResult {
        let start = Instant::now();
        let communicator = match self.id.as_str() {
            "env" => Communicator::from_env()?,
            "create" => {
                let id = UniqueId::create_by(&oxccl::Config::from_env()?.bootstrap)?;
                println!("id {id}");
                Communicator::init(&id, self.rank, self.nranks)?
            }
            text => {
                let id: UniqueId = text.parse().map_err(|error: UniqueIdError| error.to_string())?;
                Communicator::init(&id, self.rank, self.nranks)?
            }
        };
        println!("joined {} {} {}", communicator.rank(), communicator.size(), start.elapsed().as_micros());
        self.communicator = Some(communicator);
        Ok(())
    }

    fn rejoin(&mut self) -> StepResult {
        let line = read_line()?;
        let mut words = line.split_whitespace();
        let mut word = || words.next().ok_or("three words were expected");
        (self.rank, self.nranks, self.id) = (word()?.parse()?, word()?.parse()?, word()?.to_owned());
        self.join()
    }

    fn forever(&self, arg: &str) -> StepResult {
        let (call, count) = arg.split_once(':').ok_or("CALL:COUNT was expected")?;
        let (communicator, count) = (self.communicator()?, count.parse()?);
        for round in 0u64.. {
            match call {
                "all-reduce" => all_reduce(communicator, count)?,
                "send-recv" => send_recv(communicator, count)?,
                "in-flight" => in_flight(communicator, count)?,
                _ => return Err(format!("there is no call {call}").into()),
            }
            if round == 0 {
                println!("looping");
            }
        }
        Ok(())
    }

    fn idle(&self) -> StepResult {
        loop {
            if let Some(error) = self.communicator()?.async_error() {
                return Err(error.into());
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    fn random(&self, arg: &str) -> StepResult {
        let (seed, calls) = arg.split_once(':').ok_or("SEED:CALLS was expected")?;
        let (mut random, calls) = (Random(seed.parse()?), calls.parse::<u64>()?);
        let communicator = self.communicator()?;
        let handle = communicator.handle();
        while handle.progress().begun < calls {
            let count = [1, 100, 5_000, 70_000][random.below(4) as usize] + random.below(100) as usize;
            match random.below(8) {
                0 => communicator.barrier()?,
                1 => send_recv(communicator, count)?,
                2 => in_flight(communicator, count.min(5_000))?,
                3 => check_copies(communicator, count)?,
                4 => check_reductions(communicator, count)?,
                _ => all_reduce(communicator, count)?,
            }
        }
        println!("did {}", handle.progress().begun);
        Ok(())
    }

    fn watch_stall(&self) -> StepResult {
        watch_stall(self.communicator()?.handle());
        Ok(())
    }

    fn shrink(&mut self) -> StepResult {
        let start = Instant::now();
        let child = self.communicator()?.shrink_to_living()?;
        println!("shrunk {} {} {}", child.rank(), child.size(), start.elapsed().as_micros());
        self.parents.extend(self.communicator.replace(child));
        Ok(())
    }

    fn shrink_without(&mut self, arg: &str) -> StepResult {
        let start = Instant::now();
        let excluded = arg.split(',').map(str::parse).collect::<Result<Vec<u32>, _>>()?;
        let child = self.communicator()?.start_shrink(&excluded)?.wait()?;
        println!("shrunk {} {} {}", child.rank(), child.size(), start.elapsed().as_micros());
        self.parents.extend(self.communicator.replace(child));
        Ok(())
    }

    fn reverse(&mut self) -> StepResult {
        let key = i32::try_from(self.nranks - self.rank)?;
        let child = self.communicator()?.split(Some(0), key)?.ok_or("it is in no part")?;
        println!("reversed {} {}", child.rank(), child.size());
        self.parents.extend(self.communicator.replace(child));
        Ok(())
    }

    fn begin(&self, arg: &str) -> StepResult {
        let (what, after) = arg.split_once(':').ok_or("WHAT:MICROSECONDS was expected")?;
        let sleep = Duration::from_micros(after.parse()?);
        let waits = || std::thread::sleep(sleep);
        match what {
            "join" => {
                let id: UniqueId = self.id.parse().map_err(|error: UniqueIdError| error.to_string())?;
                let builder = Communicator::builder().unique_id(id).rank(self.rank).ranks(self.nranks);
                let begun = builder.start()?;
                waits();
                drop(begun);
            }
            "split" => {
                let begun = self.communicator()?.start_split(Some(0), 0)?;
                waits();
                drop(begun);
            }
            "shrink" => {
                let begun = self.communicator()?.start_shrink(&[])?;
                waits();
                drop(begun);
            }
            _ => return Err(format!("nobody begins {what}").into()),
        }
        println!("dropped what it began");
        Ok(())
    }

    fn grow(&mut self, nranks: u32) -> StepResult {
        let communicator = self.communicator()?;
        let id = match communicator.rank() {
            0 => Some(UniqueId::create_by(&oxccl::Config::from_env()?.bootstrap)?),
            _ => None,
        };
        if let Some(id) = &id {
            println!("id {id}");
        }
        let grown = communicator.start_grow(id, nranks)?.wait()?;
        println!("grown {} {}", grown.rank(), grown.size());
        self.parents.extend(self.communicator.replace(grown));
        Ok(())
    }

    fn abort_in(&self, delay: Duration) -> StepResult {
        let handle = self.communicator()?.handle();
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            println!("aborting");
            handle.abort();
        });
        Ok(())
    }

    fn fork_use(&mut self) -> StepResult {
        let parent = format!("created by process {},", std::process::id());
        let misuse = || {
            let begun = Instant::now();
            let comm = self.communicator.take().expect("it has joined");
            let is_refused = |result: Result<(), oxccl::Error>| {
                let text = result.expect_err("it belongs to the parent").to_string();
                assert!(text.contains(&parent) && text.contains("after the fork"), "{text}");
            };
            is_refused(comm.barrier());
            is_refused(comm.all_reduce(&[1f32; 4], &mut [0f32; 4], oxccl::ReduceOp::SUM));
            is_refused(comm.split(Some(0), 0).map(drop));
            is_refused(comm.start_shrink(&[]).map(drop));
            let handle = comm.handle();
            comm.abort();
            handle.abort();
            handle.revoke();
            is_refused(handle.async_error().map_or(Ok(()), Err));
            assert_eq!((handle.state(), handle.rank()), (oxccl::CommState::Failed, self.rank));
            is_refused(comm.finalize());
            assert!(begun.elapsed() < TIDY_WITHIN, "{:?}", begun.elapsed());
        };
        in_fork(misuse, || Ok(()))
    }

    fn fork_in_flight(&mut self) -> StepResult {
        let comm = self.communicator.take().ok_or("there is no communicator")?;
        // Those after the first come late, so that it waits for them while it forks.
        std::thread::sleep(Duration::from_millis(200) * comm.rank().min(1));
        let sum = vec![1f32; 70_001];
        let request = comm.start(sum, |calls, sum| calls.all_reduce_in_place(sum, ReduceOp::SUM))?;
        let child = || {
            let text = request.test(&comm).expect_err("it belongs to the parent").to_string();
            assert!(text.contains("after the fork"), "{text}");
            let config = oxccl::Config::from_env().expect("a good environment");
            let id = UniqueId::create_by(&config.bootstrap).expect("a root");
            let rank = move |rank| {
                let own = Communicator::init(&id, rank, 2).expect("a thread of the child each");
                // The other waits for so long, and meanwhile advances all that this process has in flight.
                std::thread::sleep(Duration::from_millis(400) * rank);
                check(&own).expect("its own work");
            };
            let other = std::thread::spawn(move || rank(1));
            rank(0);
            other.join().expect("its own work");
        };
        in_fork(child, || Ok(()))?;
        let sum = request.wait(&comm)?;
        assert!(sum.iter().all(|sum| *sum == comm.size() as f32));
        self.communicator = Some(comm);
        Ok(())
    }

    fn fork_join(&self) -> StepResult {
        let id = UniqueId::create_by(&oxccl::Config::from_env()?.bootstrap)?;
        let rank = |rank| -> StepResult { check(&Communicator::init(&id, rank, 2)?) };
        in_fork(|| rank(1).expect("the child is a rank like any other"), || rank(0))
    }

    fn finalize(&mut self) -> StepResult {
        println!("finalizes");
        Ok(self.communicator.take().ok_or("there is no communicator")?.finalize()?)
    }

    fn drop_communicator(&mut self) -> StepResult {
        let start = Instant::now();
        self.communicator = None;
        self.parents.clear();
        println!("dropped {}", start.elapsed().as_micros());
        Ok(())
    }
}

/// `COUNT:RANK`.
fn message(arg: &str) -> Result<(usize, u32), Box<dyn StdError>> {
    let (count, rank) = arg.split_once(':').ok_or("COUNT:RANK was expected")?;
    Ok((count.parse()?, rank.parse()?))
}

fn counters() -> StepResult {
    let found = oxccl::status::ask::processes()?;
    let me = found.iter().find(|found| found.pid == std::process::id()).ok_or("this process is not asked")?;
    let report = me.status(0, Duration::ZERO, Duration::from_secs(10))?;
    for peer in report.communicators.iter().flat_map(|communicator| &communicator.peers) {
        let lasted_ms = peer.unreachable_ns / 1_000_000;
        println!("peer {} outages {} {lasted_ms}", peer.rank, peer.outages);
    }
    Ok(())
}

fn serve(arg: &str) -> StepResult {
    let (addr, mib) = arg.rsplit_once(':').ok_or("ADDRESS:PORT:MIB was expected")?;
    let addr: SocketAddr = addr.parse()?;
    let config = ServerConfig::new(addr, oxccl::Config::aggregator_secret()?);
    let peer_dead_after = oxccl::Config::from_env()?.net.socket.peer_dead_after;
    let memory_max_bytes = mib.parse::<u64>()? << 20;
    let server = Server::bind(ServerConfig { memory_max_bytes, peer_dead_after, ..config })?;
    println!("serving {}", server.local_addr());
    Ok(server.serve(&Cancel::default())?)
}

fn read_line() -> Result<String, Box<dyn StdError>> {
    let mut line = String::new();
    match std::io::stdin().lock().read_line(&mut line)? {
        0 => Err("the test closed its end".into()),
        _ => Ok(line),
    }
}

/// Runs `child` in a fork of this process and `parent` here; fails unless both end well.
fn in_fork(child: impl FnOnce(), parent: impl FnOnce() -> StepResult) -> StepResult {
    // SAFETY: the child has one thread, this one; no other thread of this program holds a lock that the child needs.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends this process; what it inherited is for the parent to tidy.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    let result = parent();
    let pid = rustix::process::Pid::from_raw(pid).ok_or("fork failed")?;
    let ended = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())?;
    match ended.and_then(|(_, status)| status.exit_status()) {
        Some(0) => result,
        _ => Err(format!("the child ended badly: {ended:?}").into()),
    }
}

fn limit_files(bytes: u64) -> StepResult {
    let limit = rustix::process::Rlimit { current: Some(bytes), maximum: Some(bytes) };
    Ok(rustix::process::setrlimit(rustix::process::Resource::Fsize, limit)?)
}

fn limit_descriptors(free: usize) -> StepResult {
    // SAFETY: queries the flags of a descriptor; an unused number is an error.
    let is_free = |number: &i32| unsafe { libc::fcntl(*number, libc::F_GETFD) } < 0;
    // The limit is on the numbers of descriptors, not on how many there are.
    let limit = (0..).filter(is_free).nth(free).map(|first_forbidden| first_forbidden as u64);
    let limit = rustix::process::Rlimit { current: limit, maximum: limit };
    Ok(rustix::process::setrlimit(rustix::process::Resource::Nofile, limit)?)
}

fn all_reduce(communicator: &Communicator, count: usize) -> Result<(), Error> {
    let mut buffer = vec![1f32; count];
    communicator.all_reduce_in_place(&mut buffer, ReduceOp::SUM)
}

/// Every rank sends to the next and receives from the previous rank.
fn send_recv(communicator: &Communicator, count: usize) -> Result<(), Error> {
    let (me, n) = (communicator.rank(), communicator.size());
    let (send, mut recv) = (vec![1f32; count], vec![0f32; count]);
    group(|g| {
        g.send(communicator, &send, (me + 1) % n)?;
        g.recv(communicator, &mut recv, (me + n - 1) % n)
    })
}

/// An all-reduce and messages around the ring in flight together, tested until they are done.
fn in_flight(communicator: &Communicator, count: usize) -> Result<(), Error> {
    let (me, n) = (communicator.rank(), communicator.size());
    let (send, mut recv, mut sum) = (vec![1f32; count], vec![0f32; count], vec![1f32; count]);
    communicator.overlap(|scope| {
        let received = scope.recv(&mut recv, (me + n - 1) % n)?;
        scope.send(&send, (me + 1) % n)?.wait()?;
        let reduced = scope.all_reduce_in_place(&mut sum, ReduceOp::SUM)?;
        while !reduced.test()? {
            std::hint::spin_loop();
        }
        received.wait().map(drop)
    })
}

/// The counts of [`check`]: none, one, odd, more than a slot, more than all slots.
const COUNTS: [usize; 5] = [0, 1, 1_003, 70_001, 1_000_003];

fn check(communicator: &Communicator) -> Result<(), Box<dyn StdError>> {
    for count in COUNTS {
        check_reductions(communicator, count)?;
        check_copies(communicator, count)?;
        check_in_flight(communicator, count.min(IN_FLIGHT_COUNT_MAX))?;
    }
    communicator.barrier()?;
    println!("checked");
    Ok(())
}

/// Sums that round, of lengths for one hop and for two, in place and not.
fn check_bits(communicator: &Communicator) -> StepResult {
    let (me, n) = (communicator.rank() as usize, communicator.size() as usize);
    for count in [1, 1_003, 70_001] {
        let inputs: Vec<Vec<f32>> = (0..n).map(|rank| noise(count as u64, rank, count)).collect();
        let sends: Vec<&[f32]> = inputs.iter().map(Vec::as_slice).collect();
        let expected = by_rank(RedOp::Sum, &sends, 1.0);
        let mut sum = inputs[me].clone();
        communicator.all_reduce_in_place(&mut sum, ReduceOp::SUM)?;
        let is_equal = |found: &[f32]| found.iter().zip(&expected).all(|(a, b)| a.to_bits() == b.to_bits());
        if !is_equal(&sum) {
            return Err(format!("an all-reduce of {count} elements has other bits").into());
        }
        let root = count as u32 % communicator.size();
        communicator.reduce(&inputs[me], &mut sum, ReduceOp::SUM, root)?;
        if root == communicator.rank() && !is_equal(&sum) {
            return Err(format!("a reduce of {count} elements has other bits").into());
        }
    }
    println!("bits are right");
    Ok(())
}

/// What rank `rank` contributes at `index`: small, so that float sums are exact in any order.
fn element(rank: u32, index: usize) -> f32 {
    ((rank as usize * 31 + index * 7) % 61) as f32
}

fn input(rank: u32, count: usize) -> Vec<f32> {
    (0..count).map(|index| element(rank, index)).collect()
}

fn expect(what: &str, found: &[f32], expected: impl Fn(usize) -> f32) -> Result<(), String> {
    match found.iter().enumerate().find(|&(index, value)| *value != expected(index)) {
        None => Ok(()),
        Some((at, value)) => {
            Err(format!("{what} of {} elements: element {at} is {value}, not {}", found.len(), expected(at)))
        }
    }
}

fn check_reductions(communicator: &Communicator, count: usize) -> Result<(), Box<dyn StdError>> {
    let (me, n) = (communicator.rank(), communicator.size());
    let sum = |index| (0..n).map(|rank| element(rank, index)).sum::<f32>();
    let (send, mut recv) = (input(me, count), vec![-1.0; count]);
    communicator.all_reduce(&send, &mut recv, ReduceOp::SUM)?;
    expect("all-reduce", &recv, sum)?;
    let mut own = vec![-1.0; count / n as usize];
    let (shared, start) = (own.len() * n as usize, own.len() * me as usize);
    communicator.reduce_scatter(&send[..shared], &mut own, ReduceOp::SUM)?;
    expect("reduce-scatter", &own, |index| sum(start + index))?;
    for root in 0..n {
        recv.fill(-1.0);
        communicator.reduce(&send, &mut recv, ReduceOp::SUM, root)?;
        expect("reduce", &recv, |index| if me == root { sum(index) } else { -1.0 })?;
    }
    Ok(())
}

fn check_copies(communicator: &Communicator, count: usize) -> Result<(), Box<dyn StdError>> {
    let (me, n) = (communicator.rank(), communicator.size());
    let send = input(me, count);
    let mut all = vec![-1.0; count * n as usize];
    communicator.all_gather(&send, &mut all)?;
    let block = |index: usize| element((index / count) as u32, index % count);
    expect("all-gather", &all, block)?;
    let mut one = vec![-1.0; count];
    communicator.broadcast(&send, &mut one, n - 1)?;
    expect("broadcast", &one, |index| element(n - 1, index))?;
    let previous = (me + n - 1) % n;
    group(|g| {
        g.send(communicator, &send, (me + 1) % n)?;
        g.recv(communicator, &mut one, previous)
    })?;
    expect("send and receive", &one, |index| element(previous, index))?;
    let mine = std::mem::replace(&mut all, vec![-1.0; count * n as usize]);
    communicator.all_to_all(&mine, &mut all)?;
    // All ranks hold the same blocks, so every rank sends us the block of our number.
    expect("all-to-all", &all, |index| element(me, index % count))?;
    Ok(())
}

/// Most elements of operations in flight: with the longest, the check would take half as long again.
const IN_FLIGHT_COUNT_MAX: usize = 70_001;

/// Operations in flight, waited for in another order than they were started, beside one that is waited for at once.
fn check_in_flight(communicator: &Communicator, count: usize) -> Result<(), Box<dyn StdError>> {
    let (me, n) = (communicator.rank(), communicator.size());
    let (previous, send) = ((me + n - 1) % n, input(me, count));
    let (mut sum, mut largest, mut from_previous) = (send.clone(), vec![-1.0; count], vec![-1.0; count]);
    let mut all = vec![-1.0; count * n as usize];
    communicator.overlap(|scope| {
        let reduced = scope.all_reduce_in_place(&mut sum, ReduceOp::SUM)?;
        let gathered = scope.all_gather(&send, &mut all)?;
        communicator.all_reduce(&send, &mut largest, ReduceOp::MAX)?;
        if n > 1 {
            let received = scope.recv(&mut from_previous, previous)?;
            communicator.send(&send, (me + 1) % n)?;
            received.wait()?;
        } else {
            from_previous.copy_from_slice(&send);
        }
        gathered.wait()?;
        reduced.wait().map(drop)
    })?;
    expect("all-reduce in flight", &sum, |index| (0..n).map(|rank| element(rank, index)).sum())?;
    expect("all-gather in flight", &all, |index| element((index / count) as u32, index % count))?;
    expect("all-reduce beside", &largest, |index| {
        (0..n).map(|rank| element(rank, index)).fold(0.0, f32::max)
    })?;
    expect("receive in flight", &from_previous, |index| element(previous, index))?;
    Ok(())
}
