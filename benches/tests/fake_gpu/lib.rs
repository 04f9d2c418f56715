//! A CUDA driver and an NCCL in one shared library, whose device memory is the host's: for tests on machines without a GPU, of
//! `oxccl perf --backend cuda` and of the C interface. With the driver communicators can be made, split and ended; it runs no kernel.
//! With its NCCL ranks are threads of one process. An operation runs, on whichever thread comes last, as soon as all ranks
//! have put it on their streams; until then the streams are busy. Sums are of f32. Kernels can be loaded, and launches do nothing.
//!
//! `FAKE_LOG=file` gets a line for each use of memory and each wait, record and free that streams are given, and for each wait of the host.
//! `FAKE_WRONG=1` spoils every reduction, `FAKE_HANG=1` never ends an operation, `FAKE_GPUS=n` is the number of GPUs (4), `FAKE_OLD=1` refuses machine
//! code, as a driver does that is older than the assembler. `FAKE_REFUSE=file` has a letter for each of the next launches, which is taken from it: `x` is refused.

mod graph;
mod memory;
mod nccl;

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

type Handle = *mut c_void;

const NOT_READY: c_int = 600;
const INVALID: c_int = 1;
const NO_BINARY: c_int = 209;
const OUT_OF_RESOURCES: c_int = 701;
const CAPTURE_UNSUPPORTED: c_int = 900;
/// The mode of a thread that may do anything while streams are captured.
const RELAXED: c_uint = 2;
/// What every GPU pretends to have.
const MEMORY_BYTES: usize = 1 << 30;
/// What a communicator pretends to take.
const COMM_BYTES: usize = 3 << 20;

thread_local!(static CURRENT: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) });

thread_local!(static CAPTURE_MODE: std::cell::Cell<c_uint> = const { std::cell::Cell::new(0) });
/// Captures that have begun and not ended.
static CAPTURES: AtomicU64 = AtomicU64::new(0);

/// A stream: operations put on it and not done yet, and the capture that it is part of.
struct Stream {
    pending: AtomicU64,
    /// What waits for a word or an event, and all that is behind it.
    queue: Mutex<VecDeque<Work>>,
    capture: Mutex<Option<Arc<Captured>>>,
}

/// What streams do in order. Addresses as numbers.
#[derive(Clone, Debug)]
enum Work {
    WaitWord {
        address: u64,
        value: u64,
    },
    WriteWord {
        address: u64,
        value: u64,
    },
    WaitHalf {
        address: u64,
        value: u32,
    },
    WriteHalf {
        address: u64,
        value: u32,
    },
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Upload {
        to: usize,
        bytes: Vec<u8>,
    },
    Fill {
        to: usize,
        value: u8,
        bytes: usize,
    },
    /// The event has been recorded so often.
    Record {
        event: usize,
        times: u64,
    },
    WaitEvent {
        event: usize,
        times: u64,
    },
}

/// What a capture has seen, on all streams that have joined it, in the order of the calls.
struct Captured {
    items: Mutex<Vec<Item>>,
    is_open: AtomicBool,
}

#[derive(Clone, Debug)]
enum Item {
    Nccl(Op),
    Driver(Work),
}

struct Event {
    /// Recorded so often, and so often reached.
    asked: AtomicU64,
    reached: AtomicU64,
    at: Mutex<Instant>,
    capture: Mutex<Option<Arc<Captured>>>,
}

/// `CUlaunchConfig`.
#[repr(C)]
struct LaunchConfig {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const LaunchAttribute,
    count: c_uint,
}

/// `CUlaunchAttribute`, whose value begins here.
#[repr(C)]
struct LaunchAttribute {
    id: c_uint,
    padding: c_uint,
    value: c_int,
}

static STREAMS: Mutex<Vec<usize>> = Mutex::new(Vec::new());

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    AllReduce,
    ReduceScatter,
    Reduce,
    Broadcast,
    AllGather,
    Send,
    Recv,
}

/// One rank's part of an operation. Addresses as numbers: the threads hand them to each other.
#[derive(Clone, Copy, Debug)]
struct Op {
    kind: Kind,
    send: usize,
    recv: usize,
    count: usize,
    size: usize,
    peer: usize,
    world: u64,
    rank: usize,
    stream: usize,
}

struct World {
    ranks: usize,
    joined: usize,
    /// Collectives of each rank, in order.
    queues: Vec<VecDeque<Op>>,
    /// Sends and receives by (from, to).
    sends: HashMap<(usize, usize), VecDeque<Op>>,
    recvs: HashMap<(usize, usize), VecDeque<Op>>,
}

struct Comm {
    world: u64,
    rank: usize,
    device: usize,
}

static WORLDS: Mutex<Option<HashMap<u64, World>>> = Mutex::new(None);
static USED: Mutex<[usize; 16]> = Mutex::new([0; 16]);
static ALLOCATIONS: Mutex<Option<HashMap<usize, (usize, usize)>>> = Mutex::new(None);
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gpus() -> usize {
    std::env::var("FAKE_GPUS").ok().and_then(|text| text.parse().ok()).unwrap_or(4)
}

unsafe fn stream<'a>(handle: usize) -> &'a Stream {
    unsafe { &*(handle as *const Stream) }
}

/// The capture that a stream is part of.
fn capture_of(handle: usize) -> Option<Arc<Captured>> {
    if handle < 16 {
        return None;
    }
    let captured = lock(&unsafe { stream(handle) }.capture).clone();
    captured.filter(|captured| captured.is_open.load(Ordering::SeqCst))
}

/// Puts work on a stream, behind what is there.
fn submit(handle: usize, work: Work) {
    if let Some(captured) = capture_of(handle) {
        lock(&captured.items).push(Item::Driver(work));
        return;
    }
    if handle < 16 {
        assert!(unsafe { perform(&work) }, "the default streams wait for nothing here");
    } else {
        lock(&unsafe { stream(handle) }.queue).push_back(work);
    }
    go_on();
}

/// Does what streams can do by now.
fn go_on() {
    let streams = lock(&STREAMS).clone();
    let mut has_moved = true;
    while has_moved {
        has_moved = false;
        for one in &streams {
            let mut queue = lock(&unsafe { stream(*one) }.queue);
            while queue.front().is_some_and(|work| unsafe { perform(work) }) {
                queue.pop_front();
                has_moved = true;
            }
        }
    }
}

/// Does it, unless it has to wait.
unsafe fn perform(work: &Work) -> bool {
    match *work {
        Work::WaitWord { address, value } => {
            return (unsafe { word(address) }.load(Ordering::SeqCst).wrapping_sub(value) as i64) >= 0;
        }
        Work::WriteWord { address, value } => unsafe { word(address) }.store(value, Ordering::SeqCst),
        Work::WaitHalf { address, value } => {
            return (unsafe { half(address) }.load(Ordering::SeqCst).wrapping_sub(value) as i32) >= 0;
        }
        Work::WriteHalf { address, value } => unsafe { half(address) }.store(value, Ordering::SeqCst),
        Work::Copy { to, from, bytes } => unsafe { copy(from, to, bytes) },
        Work::Upload { to, ref bytes } => unsafe { copy(bytes.as_ptr() as usize, to, bytes.len()) },
        Work::Fill { to, value, bytes } => unsafe { std::ptr::write_bytes(to as *mut u8, value, bytes) },
        Work::Record { event, times } => {
            let event = unsafe { event_of(event as Handle) };
            *lock(&event.at) = Instant::now();
            event.reached.store(times, Ordering::SeqCst);
        }
        Work::WaitEvent { event, times } => {
            return unsafe { event_of(event as Handle) }.reached.load(Ordering::SeqCst) >= times;
        }
    }
    true
}

unsafe fn event_of<'a>(event: Handle) -> &'a Event {
    unsafe { &*event.cast::<Event>() }
}

fn put(op: Op) {
    if let Some(captured) = capture_of(op.stream) {
        lock(&captured.items).push(Item::Nccl(op));
        return;
    }
    unsafe { stream(op.stream) }.pending.fetch_add(1, Ordering::SeqCst);
    if std::env::var_os("FAKE_HANG").is_some() {
        return;
    }
    let mut worlds = lock(&WORLDS);
    let Some(world) = worlds.get_or_insert_default().get_mut(&op.world) else { return };
    match op.kind {
        Kind::Send => world.sends.entry((op.rank, op.peer)).or_default().push_back(op),
        Kind::Recv => world.recvs.entry((op.peer, op.rank)).or_default().push_back(op),
        _ => world.queues[op.rank].push_back(op),
    }
    let pair = if op.kind == Kind::Send { (op.rank, op.peer) } else { (op.peer, op.rank) };
    if matches!(op.kind, Kind::Send | Kind::Recv) {
        let (sends, recvs) = (world.sends.entry(pair).or_default(), world.recvs.entry(pair).or_default());
        if let (Some(send), Some(recv)) = (sends.front().copied(), recvs.front().copied()) {
            (sends.pop_front(), recvs.pop_front());
            unsafe { copy(send.send, recv.recv, send.count * send.size) };
            finish(&[send, recv]);
        }
    } else if world.queues.iter().all(|queue| !queue.is_empty()) {
        let ops: Vec<Op> = world.queues.iter_mut().filter_map(VecDeque::pop_front).collect();
        unsafe { collective(&ops) };
        finish(&ops);
    }
}

fn finish(ops: &[Op]) {
    for op in ops {
        unsafe { stream(op.stream) }.pending.fetch_sub(1, Ordering::SeqCst);
    }
}

unsafe fn copy(from: usize, to: usize, bytes: usize) {
    if from != to {
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
    }
}

unsafe fn collective(ops: &[Op]) {
    let Op { kind, count, size, peer: root, .. } = ops[0];
    let n = ops.len();
    assert!(
        ops.iter().all(|op| (op.kind, op.count, op.peer) == (kind, count, root)),
        "ranks differ: {ops:?}"
    );
    match kind {
        Kind::Broadcast => ops.iter().for_each(|op| unsafe { copy(ops[root].send, op.recv, count * size) }),
        Kind::AllGather => {
            for op in ops {
                for (block, from) in ops.iter().enumerate() {
                    unsafe { copy(from.send, op.recv + block * count * size, count * size) };
                }
            }
        }
        _ => {
            let elems = if kind == Kind::ReduceScatter { count * n } else { count };
            let mut sums = vec![0f32; elems];
            for op in ops {
                let input = unsafe { std::slice::from_raw_parts(op.send as *const f32, elems) };
                sums.iter_mut().zip(input).for_each(|(sum, x)| *sum += x);
            }
            if std::env::var_os("FAKE_WRONG").is_some() && elems > 0 {
                sums[elems - 1] += 1.0;
            }
            for op in ops {
                let from = match kind {
                    Kind::ReduceScatter => op.rank * count,
                    Kind::Reduce if op.rank != root => continue,
                    _ => 0,
                };
                unsafe { copy(sums[from..].as_ptr() as usize, op.recv, count * size) };
            }
        }
    }
}

/// Writes down what a stream was asked for.
fn log(verb: &str, stream: Handle, what: u64) {
    use std::io::Write;
    static PATH: std::sync::OnceLock<Option<std::ffi::OsString>> = std::sync::OnceLock::new();
    let Some(path) = PATH.get_or_init(|| std::env::var_os("FAKE_LOG")) else { return };
    let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).expect("a log");
    let line = format!("{verb} {:x} {what:x}\n", stream as usize);
    file.write_all(line.as_bytes()).expect("a log");
}

// The driver.

#[unsafe(no_mangle)]
extern "C" fn cuInit(_: c_uint) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> c_int {
    unsafe { *count = gpus() as c_int };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> c_int {
    unsafe { *device = ordinal };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, _: c_int) -> c_int {
    let text = b"Fake GPU\0";
    assert!(len as usize >= text.len());
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr().cast(), name, text.len()) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut Handle, device: c_int) -> c_int {
    unsafe { *context = (device as usize + 1) as Handle };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuDevicePrimaryCtxRelease_v2(_: c_int) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = 12_080 };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) -> c_int {
    unsafe { *uuid = [device as u8; 16] };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _: c_int) -> c_int {
    unsafe { *bytes = MEMORY_BYTES };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: c_int) -> c_int {
    // By the numbers of `CUdevice_attribute`: a GPU each on its bus, whose memory only this process can use.
    let found = match attribute {
        16 => 132,
        33 => device + 1,
        34 | 50 | 76 => 0,
        75 => 9,
        102 | 103 => 0,
        _ => 1,
    };
    unsafe { *value = found };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuDeviceCanAccessPeer(can: *mut c_int, _: c_int, _: c_int) -> c_int {
    unsafe { *can = 1 };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuCtxEnablePeerAccess(_: Handle, _: c_uint) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetDevice(out: *mut c_int) -> c_int {
    unsafe { *out = device() as c_int };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxGetCurrent(context: *mut Handle) -> c_int {
    unsafe { *context = CURRENT.with_borrow(|stack| stack.last().copied().unwrap_or(0)) as Handle };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuCtxPushCurrent_v2(context: Handle) -> c_int {
    CURRENT.with_borrow_mut(|stack| stack.push(context as usize));
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuCtxPopCurrent_v2(context: *mut Handle) -> c_int {
    let Some(popped) = CURRENT.with_borrow_mut(Vec::pop) else { return INVALID };
    unsafe { *context = popped as Handle };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuCtxSynchronize() -> c_int {
    log("sync-all", std::ptr::null_mut(), 0);
    0
}
fn device() -> usize {
    // No context is current: what the real driver would refuse too.
    CURRENT.with_borrow(|stack| *stack.last().expect("a current context")) - 1
}
#[unsafe(no_mangle)]
extern "C" fn cuCtxSetCurrent(context: Handle) -> c_int {
    CURRENT.with_borrow_mut(|stack| {
        stack.pop();
        if !context.is_null() {
            stack.push(context as usize);
        }
    });
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> c_int {
    unsafe { *mode = CAPTURE_MODE.replace(*mode) };
    0
}
/// Counts as one module of one file: PTX or machine code. The log gets a line with the first byte.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadDataEx(
    module: *mut Handle,
    image: *const u8,
    _: c_uint,
    _: *mut c_uint,
    _: *mut Handle,
) -> c_int {
    device();
    if CAPTURES.load(Ordering::SeqCst) > 0 && CAPTURE_MODE.get() != RELAXED {
        return CAPTURE_UNSUPPORTED;
    }
    let first = unsafe { *image };
    if first == 0x7f && std::env::var_os("FAKE_OLD").is_some() {
        log("refuse", std::ptr::null_mut(), first.into());
        return NO_BINARY;
    }
    log("load", std::ptr::null_mut(), first.into());
    unsafe { *module = 1 as Handle };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuModuleUnload(_: Handle) -> c_int {
    log("unload", std::ptr::null_mut(), 0);
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(function: *mut Handle, _: Handle, _: *const c_char) -> c_int {
    unsafe { *function = 1 as Handle };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuFuncGetAttribute(value: *mut c_int, _: c_uint, _: Handle) -> c_int {
    device();
    unsafe { *value = 1024 };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(_: Handle, _: c_uint, _: c_int) -> c_int {
    0
}
/// Runs nothing. The log gets the number of blocks.
#[unsafe(no_mangle)]
extern "C" fn cuLaunchKernel(
    _: Handle,
    blocks: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    _: c_uint,
    on: Handle,
    _: *mut Handle,
    _: *mut Handle,
) -> c_int {
    if is_refused() {
        return OUT_OF_RESOURCES;
    }
    log("launch", on, blocks.into());
    0
}
/// Whether the next launch is refused.
fn is_refused() -> bool {
    let Some(path) = std::env::var_os("FAKE_REFUSE") else { return false };
    let letters = std::fs::read_to_string(&path).unwrap_or_default();
    let Some((first, others)) = letters.split_at_checked(1) else { return false };
    std::fs::write(&path, others).expect("letters");
    first == "x"
}
/// The same, with attributes. The log says which launches may start early. `FAKE_NO_EARLY=1` refuses attributes, as a driver does that does
/// not know them.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    config: *const LaunchConfig,
    _: Handle,
    _: *mut Handle,
    _: *mut Handle,
) -> c_int {
    const PROGRAMMATIC_STREAM_SERIALIZATION: c_uint = 6;
    let config = unsafe { &*config };
    if config.count > 0 && std::env::var_os("FAKE_NO_EARLY").is_some() {
        return INVALID;
    }
    if is_refused() {
        return OUT_OF_RESOURCES;
    }
    let first = (config.count > 0).then(|| unsafe { &*config.attributes });
    let is_early = first.is_some_and(|first| (first.id, first.value) == (PROGRAMMATIC_STREAM_SERIALIZATION, 1));
    log(if is_early { "early" } else { "launch" }, config.stream, config.grid[0].into());
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamSynchronize(handle: Handle) -> c_int {
    while cuStreamQuery(handle) == NOT_READY {
        std::thread::yield_now();
    }
    log("sync", handle, 0);
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamCreate(out: *mut Handle, _: c_uint) -> c_int {
    device();
    let (queue, capture) = (Mutex::default(), Mutex::default());
    let made = Box::into_raw(Box::new(Stream { pending: AtomicU64::new(0), queue, capture }));
    lock(&STREAMS).push(made as usize);
    log("stream", made.cast(), 0);
    unsafe { *out = made.cast() };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamDestroy_v2(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamQuery(handle: Handle) -> c_int {
    // The default streams.
    if (handle as usize) < 16 {
        return 0;
    }
    go_on();
    let Stream { pending, queue, .. } = unsafe { stream(handle as usize) };
    if pending.load(Ordering::SeqCst) == 0 && lock(queue).is_empty() { 0 } else { NOT_READY }
}
/// Aligned words of the host's memory, which is the GPUs'.
unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}
unsafe fn half<'a>(address: u64) -> &'a AtomicU32 {
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamWriteValue64_v2(on: Handle, address: u64, value: u64, flags: c_uint) -> c_int {
    assert!(flags == 0 && address.is_multiple_of(8));
    submit(on as usize, Work::WriteWord { address, value });
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitValue64_v2(on: Handle, address: u64, value: u64, flags: c_uint) -> c_int {
    assert!(flags == 0 && address.is_multiple_of(8));
    submit(on as usize, Work::WaitWord { address, value });
    0
}
/// `CUstreamBatchMemOpParams` of the operations on words.
#[repr(C)]
struct WordOp {
    operation: c_uint,
    address: u64,
    value: u64,
    flags: c_uint,
    _rest: [u64; 2],
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamBatchMemOp_v2(
    on: Handle,
    count: c_uint,
    ops: *const WordOp,
    flags: c_uint,
) -> c_int {
    assert!(flags == 0 && (1..256).contains(&count));
    for op in unsafe { std::slice::from_raw_parts(ops, count as usize) } {
        let (address, value) = (op.address, op.value as u32);
        match op.operation {
            1 | 2 => {
                assert!(op.flags == 0 && address.is_multiple_of(4));
                let is_wait = op.operation == 1;
                let work = if is_wait { Work::WaitHalf { address, value } } else { Work::WriteHalf { address, value } };
                submit(on as usize, work);
                0
            }
            4 => cuStreamWaitValue64_v2(on, op.address, op.value, op.flags),
            5 => cuStreamWriteValue64_v2(on, op.address, op.value, op.flags),
            _ => return INVALID,
        };
    }
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitEvent(on: Handle, event: Handle, _: c_uint) -> c_int {
    log("wait", on, event as u64);
    let Event { asked, capture, .. } = unsafe { event_of(event) };
    if let Some(captured) = lock(capture).clone().filter(|captured| captured.is_open.load(Ordering::SeqCst)) {
        // The stream joins the capture.
        *lock(&unsafe { stream(on as usize) }.capture) = Some(captured);
        return 0;
    }
    let times = asked.load(Ordering::SeqCst);
    if capture_of(on as usize).is_none() {
        submit(on as usize, Work::WaitEvent { event: event as usize, times });
    }
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut Handle, _: c_uint) -> c_int {
    let [asked, reached] = [(); 2].map(|()| AtomicU64::new(0));
    let made = Event { asked, reached, at: Mutex::new(Instant::now()), capture: Mutex::default() };
    unsafe { *event = Box::into_raw(Box::new(made)).cast() };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: Handle, on: Handle) -> c_int {
    log("record", on, event as u64);
    let of = unsafe { event_of(event) };
    let captured = capture_of(on as usize);
    *lock(&of.capture) = captured.clone();
    if captured.is_none() {
        let times = of.asked.fetch_add(1, Ordering::SeqCst) + 1;
        submit(on as usize, Work::Record { event: event as usize, times });
    }
    0
}
/// Not done while its stream waits. Operations of this file's NCCL do not count.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: Handle) -> c_int {
    go_on();
    let Event { asked, reached, .. } = unsafe { event_of(event) };
    if reached.load(Ordering::SeqCst) >= asked.load(Ordering::SeqCst) { 0 } else { NOT_READY }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventSynchronize(event: Handle) -> c_int {
    while unsafe { cuEventQuery(event) } == NOT_READY {
        std::thread::yield_now();
    }
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: Handle, end: Handle) -> c_int {
    let at = |event: Handle| *lock(&unsafe { event_of(event) }.at);
    unsafe { *ms = (at(end) - at(start)).as_secs_f32() * 1e3 };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGetErrorName(code: c_int, text: *mut *const c_char) -> c_int {
    let name = if code == 2 { c"CUDA_ERROR_OUT_OF_MEMORY" } else { c"CUDA_ERROR_INVALID_VALUE" };
    unsafe { *text = name.as_ptr() };
    0
}

/// Functions that must be there and that no test calls.
macro_rules! unused {
    ($($name:ident)*) => {
        $(#[unsafe(no_mangle)]
        extern "C" fn $name() -> c_int {
            panic!("the fake driver has no {}", stringify!($name));
        })*
    };
}

unused! {
    cuMemCreate
    cuMemRelease cuMemGetAllocationGranularity cuMemAddressReserve cuMemAddressFree cuMemMap cuMemUnmap cuMemSetAccess
    cuMemExportToShareableHandle cuMemImportFromShareableHandle cuIpcGetMemHandle cuIpcOpenMemHandle_v2
    cuIpcCloseMemHandle cuStreamUpdateCaptureDependencies
    cuGraphAddHostNode cuGraphRetainUserObject cuUserObjectCreate cuUserObjectRelease cuLaunchHostFunc
    cuMemGetHandleForAddressRange cuPointerSetAttribute
}
