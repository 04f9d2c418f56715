//! Collectives by copy engines, on buffers in symmetric windows: between threads and between processes, out of place and in place, in
//! graphs; and what becomes of them when a rank does not come.

use oxccl::cuda::{Allocation, Capture, Device, DeviceMemory, Mapping, Stream};
use oxccl::{CtaPolicy, DataType, DeviceCommunicator, Error, Fault, Func, Rank, UniqueId, Untyped};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{device_config, ordinal_of, ordinals, ranks_max};
use oxccl_tests::harness::{Settings, on_threads};
use oxccl_tests::process::fresh_id;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(200);
/// Bytes of a rank's block.
const LENS: [usize; 5] = [1, 4099, 70_000, 1 << 20, (6 << 20) + 4];
/// Where the buffers begin in their windows.
const PLACE: usize = 8192;
const FUNCS: [Func; 5] = [Func::AllGather, Func::AllToAll, Func::Broadcast, Func::Scatter, Func::Gather];
/// Tells a child its rank, the number of ranks, what it does, the kind of memory and the id.
const CHILD: &str = "OXCCL_TEST_COPY_ENGINES";

/// The memory of a window.
enum Memory {
    Plain(DeviceMemory),
    Shareable(Mapping),
}

impl Memory {
    fn new(device: &Device, bytes: usize, is_shareable: bool) -> Memory {
        if is_shareable {
            return Memory::Shareable(
                Allocation::new(device, bytes).and_then(|made| made.map(&[])).expect("memory"),
            );
        }
        Memory::Plain(DeviceMemory::uninitialised(device, bytes).expect("memory"))
    }

    fn address(&self) -> u64 {
        match self {
            Memory::Plain(memory) => memory.address(),
            Memory::Shareable(mapping) => mapping.address(),
        }
    }
}

fn byte(rank: u32, round: u32, at: usize) -> u8 {
    (at / 3) as u8 ^ (at >> 9) as u8 ^ (rank * 67 + round * 13) as u8
}

/// What a rank receives of blocks of `len` bytes; nothing where it receives nothing.
fn expected(func: Func, root: u32, n: u32, rank: u32, round: u32, len: usize) -> Vec<u8> {
    let block = |from: u32, block: usize| (0..len).map(move |at| byte(from, round, block * len + at));
    match func {
        Func::AllGather => (0..n).flat_map(|from| block(from, 0)).collect(),
        Func::AllToAll => (0..n).flat_map(|from| block(from, rank as usize)).collect(),
        Func::Broadcast => block(root, 0).collect(),
        Func::Scatter => block(root, rank as usize).collect(),
        Func::Gather if rank == root => (0..n).flat_map(|from| block(from, 0)).collect(),
        _ => Vec::new(),
    }
}

/// A rank with its buffers.
struct Seat<'a> {
    comm: &'a DeviceCommunicator,
    stream: Stream,
    /// Of a window and of none.
    places: [u64; 2],
}

impl Seat<'_> {
    fn upload(&self, to: u64, bytes: &[u8]) {
        // SAFETY: within a buffer that nobody uses; the driver reads pageable memory before it returns.
        unsafe { self.stream.by_ref().copy_to_device(to, bytes.as_ptr().cast(), bytes.len()) }
            .expect("a copy");
        self.stream.synchronize().expect("a stream");
    }

    fn download(&self, from: u64, len: usize) -> Vec<u8> {
        // A copy to pageable memory waits for all before it within the driver's lock, which ranks that share a GPU need.
        self.stream.synchronize().expect("a stream");
        let mut found = vec![0u8; len];
        // SAFETY: the host's memory lives until the stream was waited for.
        unsafe { self.stream.by_ref().copy_to_host(found.as_mut_ptr().cast(), from, len) }.expect("a copy");
        self.stream.synchronize().expect("a stream");
        found
    }

    fn call(&self, func: Func, root: u32, len: usize, in_place: bool) -> Untyped {
        let [window, plain] = self.places;
        let block = if func == Func::AllGather { self.comm.rank() as usize * len } else { 0 };
        let (send, recv) = match func {
            Func::Gather => (window, plain),
            _ if in_place => (window + block as u64, window),
            _ => (plain, window),
        };
        let pointer = |address: u64| std::ptr::without_provenance_mut::<u8>(address as usize);
        let (send, recv) = (pointer(send).cast_const(), pointer(recv));
        Untyped { send, recv, count: len, peer: root, ..Untyped::new(func, DataType::U8) }
    }

    fn enqueue(&self, call: &Untyped) -> Result<(), Error> {
        // SAFETY: the buffers live until the stream was waited for, and are long enough.
        unsafe { self.comm.enqueue_untyped(call, self.stream.by_ref()) }
    }

    /// Fills the buffers, runs a call as `run` does, compares.
    fn check(
        &self,
        func: Func,
        root: u32,
        (round, len): (u32, usize),
        in_place: bool,
        run: impl Fn(&Untyped),
    ) {
        let (rank, n) = (self.comm.rank(), self.comm.size());
        doing(|| {
            format!("rank {rank}, round {round}: {func} of {len} bytes, root {root}, in place {in_place}")
        });
        let call = self.call(func, root, len, in_place);
        let sent = if [Func::AllToAll, Func::Scatter].contains(&func) { len * n as usize } else { len };
        let sent: Vec<u8> = (0..sent).map(|at| byte(rank, round, at)).collect();
        self.upload(call.recv.addr() as u64, &vec![0xa5; len * n as usize]);
        self.upload(call.send.addr() as u64, &sent);
        // What the others copy must not come before the poison.
        self.comm.barrier(self.stream.by_ref()).expect("a barrier");
        run(&call);
        let expected = expected(func, root, n, rank, round, len);
        let found = self.download(call.recv.addr() as u64, expected.len());
        self.comm.async_error().map_or(Ok(()), Err).expect("a healthy communicator");
        let wrong = (0..expected.len()).find(|at| found[*at] != expected[*at]);
        assert_eq!(wrong, None, "rank {rank}, {func} of {len} bytes, root {root}, in place {in_place}");
    }
}

fn policy() -> oxccl::Config {
    oxccl::Config { cta_policy: Some(CtaPolicy::Zero), ..device_config(&Settings::default(), None) }
}

/// Runs `part` with buffers in a symmetric window and beside it.
fn with_buffers(comm: &DeviceCommunicator, is_shareable: bool, part: impl FnOnce(&Seat<'_>)) {
    let bytes = PLACE + LENS[LENS.len() - 1] * comm.size() as usize;
    let (memory, plain) =
        (Memory::new(comm.device(), bytes, is_shareable), Memory::new(comm.device(), bytes, false));
    // Before ranks meet for the window: on a GPU that ranks share the driver may let this wait for kernels that wait for this rank.
    let stream = Stream::new(comm.device()).expect("a stream");
    // SAFETY: (1, 2) dropped below, after every rank has said that it is done; (3) all ranks pass the same places; (4) as they say.
    let window = unsafe { comm.register_symmetric_window(memory.address(), bytes as u64) }.expect("a window");
    let places = [memory.address() + PLACE as u64, plain.address()];
    let seat = Seat { comm, stream, places };
    part(&seat);
    seat.stream.synchronize().expect("a stream");
    if comm.async_error().is_none() {
        comm.barrier(seat.stream.by_ref()).expect("a barrier");
        comm.synchronize(seat.stream.by_ref()).expect("the end");
        drop(window);
        comm.barrier(seat.stream.by_ref()).expect("a barrier");
        comm.synchronize(seat.stream.by_ref()).expect("every window is dropped");
    } else {
        // The others may still have it mapped.
        std::mem::forget((window, memory));
    }
}

fn all_functions(seat: &Seat<'_>) {
    let mut round = 0;
    for func in FUNCS {
        let roots = if func.is_rooted() { seat.comm.size() } else { 1 };
        for (root, len) in (0..roots).flat_map(|root| LENS.map(|len| (root, len))) {
            for in_place in [false, true] {
                if in_place && ![Func::AllGather, Func::Broadcast].contains(&func) {
                    continue;
                }
                round += 1;
                seat.check(func, root, (round, len), in_place, |call| seat.enqueue(call).expect("a call"));
            }
        }
    }
    // A graph with two operations, launched several times.
    let len = LENS[3];
    let capture = Capture::begin(seat.stream.by_ref(), false).expect("a capture");
    seat.enqueue(&seat.call(Func::AllGather, 0, len, false)).expect("a call");
    seat.enqueue(&seat.call(Func::AllToAll, 0, len, false)).expect("a call");
    let graph = capture.end().and_then(|graph| graph.instantiate()).expect("a graph");
    for round in 1000..1020 {
        // SAFETY: its buffers live until the stream was waited for.
        let launch = |_: &Untyped| unsafe { graph.launch(seat.stream.by_ref()) }.expect("a launch");
        seat.check(Func::AllToAll, 0, (round, len), false, launch);
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_copy_engines_between_threads() {
    let _deadline = Deadline::start("needs_gpu_copy_engines_between_threads", LIMIT);
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for is_shareable in [false, true] {
        let ordinals = ordinals(ranks_max().min(8));
        let comms = DeviceCommunicator::init_all_with(&ordinals, &policy()).expect("a communicator");
        on_threads(comms.into_iter(), |comm| with_buffers(&comm, is_shareable, all_functions));
    }
}

/// A rank of the tests below.
#[test]
#[ignore = "a process of another test"]
fn needs_gpu_copy_engines_child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let _deadline = Deadline::start("needs_gpu_copy_engines_child", LIMIT / 2);
    let words: Vec<&str> = what.split(' ').collect();
    let [rank, nranks, task, is_shareable, id] = words[..] else { panic!("{what}") };
    let (rank, nranks): (u32, u32) = (rank.parse().expect("a rank"), nranks.parse().expect("a number"));
    let id: UniqueId = id.parse().expect("an id");
    let builder =
        DeviceCommunicator::builder().unique_id(id).rank(rank).ranks(nranks).device(ordinal_of(rank));
    let comm = builder.config(policy()).build().expect("a communicator");
    with_buffers(&comm, is_shareable == "true", |seat| match task {
        "all" => all_functions(seat),
        _ => a_death(seat),
    });
}

/// The last rank dies while the others' streams wait for it.
fn a_death(seat: &Seat<'_>) {
    let (rank, last) = (seat.comm.rank(), seat.comm.size() - 1);
    seat.check(Func::AllGather, 0, (0, 4096), false, |call| seat.enqueue(call).expect("a call"));
    if rank == last {
        std::thread::sleep(Duration::from_secs(1));
        std::process::exit(0);
    }
    for _ in 0..3 {
        seat.enqueue(&seat.call(Func::AllGather, 0, LENS[3], false)).expect("a call");
    }
    assert!(!seat.stream.by_ref().is_done().expect("a stream"));
    let start = Instant::now();
    seat.stream.synchronize().expect("the waits have ended");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let fault = seat.comm.async_error().and_then(|error| error.fault());
    let names_it = |fault: &Fault| matches!(fault, Fault::PeerDied { rank } | Fault::PeerLeft { rank } if *rank == Rank(last));
    assert!(fault.as_ref().is_some_and(names_it), "{fault:?}");
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_copy_engines_between_processes() {
    let _deadline = Deadline::start("needs_gpu_copy_engines_between_processes", LIMIT);
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    let nranks = ranks_max().min(8);
    for (task, is_shareable) in [("all", false), ("all", true), ("death", true)] {
        let id = fresh_id(Duration::from_secs(30)).to_string();
        let child = |rank: u32| -> Child {
            let mut command = Command::new(std::env::current_exe().expect("a running program has a file"));
            command.args([
                "--exact",
                "copy_engines::needs_gpu_copy_engines_child",
                "--ignored",
                "--nocapture",
            ]);
            command
                .env(CHILD, format!("{rank} {nranks} {task} {is_shareable} {id}"))
                .spawn()
                .expect("a process")
        };
        let children: Vec<Child> = (0..nranks).map(child).collect();
        for (rank, mut child) in children.into_iter().enumerate() {
            let status = child.wait().expect("a child");
            assert!(status.success(), "rank {rank}, {task}, shareable {is_shareable}: {status}");
        }
    }
}

/// Ranks that pass other places, a rank that does not come, an abort.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_copy_engines_without_a_partner() {
    let _deadline = Deadline::start("needs_gpu_copy_engines_without_a_partner", LIMIT);
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for turn in 0..3 {
        let timeout = Duration::from_secs(if turn == 1 { 1 } else { 60 });
        let config = oxccl::Config { timeout, ..policy() };
        let comms = DeviceCommunicator::init_all_with(&ordinals(2), &config).expect("a communicator");
        on_threads(comms.into_iter(), |comm| {
            with_buffers(&comm, true, |seat| {
                let me = seat.comm.rank();
                let mut call = seat.call(Func::AllGather, 0, LENS[2], false);
                call.recv = call.recv.wrapping_add(if turn == 0 { me as usize * 256 } else { 0 });
                let called = if turn == 0 || me == 0 { seat.enqueue(&call) } else { Ok(()) };
                if turn == 2 && me == 0 {
                    std::thread::sleep(Duration::from_millis(200));
                    assert!(!seat.stream.by_ref().is_done().expect("a stream"), "rank 1 has not called");
                    seat.comm.abort();
                }
                seat.stream.synchronize().expect("the waits have ended");
                while seat.comm.async_error().is_none() {
                    std::thread::sleep(Duration::from_millis(5));
                }
                let fault = seat.comm.async_error().and_then(|error| error.fault());
                match (turn, called) {
                    (0, Err(error)) => {
                        assert!(matches!(error.fault(), Some(Fault::Placement { .. })), "{error}")
                    }
                    (0, Ok(())) => assert!(fault.is_some()),
                    (1, _) if me == 0 => {
                        assert!(matches!(fault, Some(Fault::Timeout { rank: Rank(1), .. })), "{fault:?}");
                    }
                    (2, _) if me == 0 => assert_eq!(fault, Some(Fault::Aborted)),
                    _ => {}
                }
            });
        });
    }
}
