//! Layer: tests, a program beside them.
//! Takes: `RANK NRANKS ID STEP...` as `oxccl-rank` does (`create` makes an ID and prints it), with the steps of [`Program::step`]. Its GPU is the one of its rank's number, or
//! they take turns. `OXCCL_TEST_LOG`: the log's level.
//! Gives: the same lines.
//! Never: outlives the process that started it.

use oxccl::bootstrap::UniqueIdError;
use oxccl::cuda::{Capture, CudaError, DeviceMemory, Driver, GraphExec, Module, PinnedMemory, Shape, Stream};
use oxccl::{DataType, DeviceCommunicator, Func, UniqueId, Untyped, device_group};
use oxccl_shared::sync::{Sys, Word};
use oxccl_tests::failed::{describe, watch_stall};
use std::error::Error as StdError;
use std::ffi::c_void;
use std::io::BufRead;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

type StepResult = Result<(), Box<dyn StdError>>;

/// Bytes of a rank's memory, which all its calls use.
const MEMORY_BYTES: usize = 512 << 20;

/// A kernel that ends when the word is not 0.
const HANG: &[u8] = b"
.version 7.0
.target sm_70
.address_size 64
.visible .entry hang(.param .u64 word)
{
    .reg .b64 %at;
    .reg .b32 %value;
    .reg .pred %again;
    ld.param.u64 %at, [word];
poll:
    ld.volatile.u32 %value, [%at];
    setp.eq.u32 %again, %value, 0;
    @%again bra poll;
    ret;
}
";

fn main() -> ExitCode {
    let parent = rustix::process::getppid();
    if rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).is_err()
        || rustix::process::getppid() != parent
    {
        return ExitCode::from(3);
    }
    let level = std::env::var("OXCCL_TEST_LOG").ok().and_then(|level| level.parse().ok());
    let log = tracing_subscriber::fmt()
        .with_max_level(level.unwrap_or(tracing_subscriber::filter::LevelFilter::INFO));
    log.with_writer(std::io::stderr).with_ansi(false).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [rank, nranks, id, steps @ ..] = args.as_slice() else {
        eprintln!("usage: oxccl-gpu-rank RANK NRANKS ID STEP...");
        return ExitCode::from(2);
    };
    let mut program = Program::default();
    let mut steps = steps.iter();
    if let Err(error) = program.join(rank, nranks, id) {
        println!("failed {}", describe(error.as_ref()));
        return ExitCode::FAILURE;
    }
    while let Some(step) = steps.next() {
        println!("step {step}");
        let Err(error) = program.step(step) else { continue };
        println!("failed {}", describe(error.as_ref()));
        if !steps.any(|step| step == "after") {
            return ExitCode::FAILURE;
        }
    }
    println!("end");
    ExitCode::SUCCESS
}

/// What a rank has, in the order in which it goes.
#[derive(Default)]
struct Program {
    hang: Option<Hang>,
    graph: Option<GraphExec>,
    joined: Option<Joined>,
}

struct Joined {
    comm: DeviceCommunicator,
    stream: Stream,
    memory: DeviceMemory,
}

/// A kernel that hangs, and what ends it.
struct Hang {
    word: Arc<PinnedMemory>,
    _module: Module,
}

fn word(memory: &PinnedMemory) -> &Word<u32, Sys> {
    // SAFETY: zeroed memory of at least four bytes, aligned to a page, which lives as long; any thread or device may access a word.
    unsafe { &*memory.host().cast::<Word<u32, Sys>>() }
}

impl Program {
    fn join(&mut self, rank: &str, nranks: &str, id: &str) -> StepResult {
        let start = Instant::now();
        let (rank, nranks): (u32, u32) = (rank.parse()?, nranks.parse()?);
        let id = if id == "create" { create_id()? } else { parse_id(id)? };
        let device = rank % Driver::get()?.device_count().max(1);
        let builder = DeviceCommunicator::builder().unique_id(id).rank(rank).ranks(nranks);
        let comm = builder.device(device).config(oxccl::Config::from_env()?).build()?;
        let stream = Stream::new(comm.device())?;
        let memory = DeviceMemory::zeroed(comm.device(), MEMORY_BYTES)?;
        println!("joined {} {} {}", comm.rank(), comm.size(), start.elapsed().as_micros());
        self.joined = Some(Joined { comm, stream, memory });
        Ok(())
    }

    fn step(&mut self, step: &str) -> StepResult {
        let (name, arg) = step.split_once('=').unwrap_or((step, ""));
        let joined = self.joined.as_ref().ok_or("there is no communicator")?;
        match name {
            "ask" => {
                let mut line = String::new();
                std::io::stdin().lock().read_line(&mut line)?;
                Ok(())
            }
            "after" => Ok(()),
            "watch-stall" => {
                watch_stall(joined.comm.handle());
                Ok(())
            }
            "sleep" => {
                std::thread::sleep(Duration::from_millis(arg.parse()?));
                Ok(())
            }
            // Calls and waits.
            "barrier" | "all-reduce" | "broadcast" | "shift" => {
                joined.enqueue(step)?;
                joined.wait()
            }
            // Calls, and does not wait: `enqueue=CALL:COUNT`.
            "enqueue" => joined.enqueue(&arg.replace(':', "=")),
            "wait" => joined.wait(),
            // Captures a call into a graph: `capture=CALL:COUNT`.
            "capture" => {
                self.graph = Some(joined.capture(&arg.replace(':', "="))?);
                Ok(())
            }
            // Launches the graph and waits.
            "replay" => joined.replay(self.graph.as_ref().ok_or("there is no graph")?),
            // A kernel of this program occupies the stream until a line is read.
            "hang" => {
                self.hang = Some(joined.hang()?);
                Ok(())
            }
            // One call after the other until one fails: `forever=CALL:COUNT`.
            "forever" => joined.forever(&arg.replace(':', "=")),
            // Calls whose results are looked at.
            "check" => joined.check(),
            // Goes on with the ranks that live.
            "shrink" => self.shrink(),
            "drop" => {
                self.graph = None;
                self.joined = None;
                Ok(())
            }
            _ => Err(format!("there is no step {step}").into()),
        }
    }
}

impl Program {
    fn shrink(&mut self) -> StepResult {
        let start = Instant::now();
        let joined = self.joined.as_mut().ok_or("there is no communicator")?;
        joined.comm = joined.comm.shrink_to_living()?;
        println!("shrunk {} {} {}", joined.comm.rank(), joined.comm.size(), start.elapsed().as_micros());
        Ok(())
    }
}

/// A new one, which others are to be given.
fn create_id() -> Result<UniqueId, Box<dyn StdError>> {
    let id = UniqueId::create()?;
    println!("id {id}");
    Ok(id)
}

fn parse_id(id: &str) -> Result<UniqueId, Box<dyn StdError>> {
    Ok(id.parse().map_err(|error: UniqueIdError| error.to_string())?)
}

impl Joined {
    fn enqueue(&self, step: &str) -> StepResult {
        let (name, arg) = step.split_once('=').unwrap_or((step, "0"));
        let count = arg.parse()?;
        let buffer: *mut u8 = std::ptr::without_provenance_mut(self.memory.address() as usize);
        let half: *mut u8 = buffer.wrapping_add(MEMORY_BYTES / 2);
        let call = |func| Untyped { send: buffer, recv: buffer, count, ..Untyped::new(func, DataType::F32) };
        let (me, n, stream) = (self.comm.rank(), self.comm.size(), self.stream.by_ref());
        // Two buffers, where calls are not in place.
        let most = MEMORY_BYTES / size_of::<f32>() / if name == "shift" { 2 } else { 1 };
        if count > most {
            return Err(format!("{count} floats are too many").into());
        }
        match name {
            "barrier" => self.comm.barrier(stream)?,
            // SAFETY: in place, within the memory, which lives until the stream has been waited for.
            "all-reduce" => unsafe { self.comm.enqueue_untyped(&call(Func::AllReduce), stream)? },
            // SAFETY: as above.
            "broadcast" => unsafe { self.comm.enqueue_untyped(&call(Func::Broadcast), stream)? },
            "shift" => device_group(|group| {
                let send = Untyped { peer: (me + 1) % n, ..call(Func::Send) };
                let recv = Untyped { recv: half, peer: (me + n - 1) % n, ..call(Func::Recv) };
                // SAFETY: apart, within the memory, which lives until the stream has been waited for.
                unsafe { group.add_untyped(&self.comm, &send, stream)? };
                // SAFETY: as above.
                unsafe { group.add_untyped(&self.comm, &recv, stream) }
            })?,
            _ => return Err(format!("there is no call {step}").into()),
        }
        Ok(())
    }

    fn forever(&self, call: &str) -> StepResult {
        for round in 0u64.. {
            self.enqueue(call)?;
            self.wait()?;
            if round == 0 {
                println!("looping");
            }
        }
        Ok(())
    }

    /// Sums of ranks' numbers, which are exact: of few elements and of many.
    fn check(&self) -> StepResult {
        let (me, n) = (self.comm.rank(), self.comm.size());
        let expected = (n * (n + 1) / 2) as f32;
        for count in [5, 3_000, 700_001] {
            let mut host = vec![(me + 1) as f32; count];
            let (at, bytes) = (self.memory.address(), size_of_val(&host[..]));
            // SAFETY: as long as the memory's beginning, and both live until the stream has been waited for.
            unsafe { self.stream.by_ref().copy_to_device(at, host.as_ptr().cast(), bytes)? };
            self.enqueue(&format!("all-reduce={count}"))?;
            // SAFETY: as above.
            unsafe { self.stream.by_ref().copy_to_host(host.as_mut_ptr().cast(), at, bytes)? };
            self.wait()?;
            if let Some(wrong) = host.iter().find(|value| **value != expected) {
                return Err(format!("an all-reduce of {count} has {wrong} instead of {expected}").into());
            }
        }
        println!("checked");
        Ok(())
    }

    fn wait(&self) -> StepResult {
        Ok(self.comm.synchronize(self.stream.by_ref())?)
    }

    fn capture(&self, step: &str) -> Result<GraphExec, Box<dyn StdError>> {
        let capture = Capture::begin(self.stream.by_ref(), true)?;
        self.enqueue(step)?;
        Ok(capture.end()?.instantiate()?)
    }

    fn replay(&self, graph: &GraphExec) -> StepResult {
        // SAFETY: the communicator and its memory live, and the stream is waited for before anything is dropped.
        unsafe { graph.launch(self.stream.by_ref())? };
        self.wait()
    }

    fn hang(&self) -> Result<Hang, CudaError> {
        let device = self.comm.device();
        let module = Module::load(device, HANG)?;
        let word_memory = Arc::new(PinnedMemory::zeroed(device, size_of::<u32>())?);
        let mut address = word_memory.address();
        let mut params = [(&raw mut address).cast::<c_void>()];
        // SAFETY: the kernel takes one address; the memory lives until the stream has been waited for.
        unsafe { module.function("hang")?.launch(Shape::new(1, 1), self.stream.by_ref(), &mut params)? };
        let ended_by = word_memory.clone();
        std::thread::spawn(move || {
            let mut line = String::new();
            // Whatever has become of the test, the kernel ends.
            let _ = std::io::stdin().lock().read_line(&mut line);
            word(&ended_by).store_relaxed(1);
        });
        println!("hangs");
        Ok(Hang { word: word_memory, _module: module })
    }
}

impl Drop for Hang {
    fn drop(&mut self) {
        word(&self.word).store_relaxed(1);
    }
}
