//! A CUDA driver and an NCCL in one shared library, whose device memory is the host's: for tests on machines without a GPU, of
//! `oxccl perf --backend cuda` and of the C interface. With the driver communicators can be made, split and ended; it runs no kernel.
//! With its NCCL ranks are threads of one process. An operation runs, on whichever thread comes last, as soon as all ranks
//! have put it on their streams; until then the streams are busy. Sums are of f32.
//!
//! `FAKE_LOG=file` gets a line for each use of memory and each wait, record and free that streams are given, and for each wait of the host.
//! `FAKE_WRONG=1` spoils every reduction, `FAKE_HANG=1` never ends an operation, `FAKE_GPUS=n` is the number of GPUs (4).

use std::collections::{HashMap, VecDeque};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

type Handle = *mut c_void;

const NOT_READY: c_int = 600;
const INVALID: c_int = 1;
/// What every GPU pretends to have.
const MEMORY_BYTES: usize = 1 << 30;
/// What a communicator pretends to take.
const COMM_BYTES: usize = 3 << 20;

thread_local!(static CURRENT: std::cell::RefCell<Vec<usize>> = const { std::cell::RefCell::new(Vec::new()) });

/// A stream: operations put on it and not done yet, and those of an open capture.
struct Stream {
    pending: AtomicU64,
    /// Waits for words that are not over.
    waits: AtomicU64,
    capture: Mutex<Option<Vec<Op>>>,
}

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

fn put(op: Op) {
    if let Some(captured) = lock(&unsafe { stream(op.stream) }.capture).as_mut() {
        captured.push(op);
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
    assert!(ops.iter().all(|op| (op.kind, op.count, op.peer) == (kind, count, root)), "ranks differ: {ops:?}");
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
/// Zeros that begin where a page does, as the driver's memory does. Never freed.
fn pages(bytes: usize) -> Handle {
    let layout = std::alloc::Layout::from_size_align(bytes.max(1), 4096).expect("a size that memory can have");
    unsafe { std::alloc::alloc_zeroed(layout) }.cast()
}
fn device() -> usize {
    // No context is current: what the real driver would refuse too.
    CURRENT.with_borrow(|stack| *stack.last().expect("a current context")) - 1
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> c_int {
    unsafe { (*free, *total) = (MEMORY_BYTES - lock(&USED)[device()], MEMORY_BYTES) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAlloc_v2(address: *mut u64, bytes: usize) -> c_int {
    if lock(&USED)[device()] + bytes > MEMORY_BYTES {
        return 2;
    }
    let memory = pages(bytes) as usize;
    lock(&USED)[device()] += bytes;
    lock(&ALLOCATIONS).get_or_insert_default().insert(memory, (bytes, device()));
    unsafe { *address = memory as u64 };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemFree_v2(address: u64) -> c_int {
    let Some((bytes, device)) = lock(&ALLOCATIONS).get_or_insert_default().remove(&(address as usize)) else {
        return INVALID;
    };
    lock(&USED)[device] -= bytes;
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemAllocAsync(address: *mut u64, bytes: usize, on: Handle) -> c_int {
    let code = unsafe { cuMemAlloc_v2(address, bytes) };
    if code == 0 {
        log("alloc", on, unsafe { *address });
    }
    code
}
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeAsync(address: u64, on: Handle) -> c_int {
    log("free", on, address);
    cuMemFree_v2(address)
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
unsafe extern "C" fn cuMemsetD8Async(address: u64, value: u8, bytes: usize, on: Handle) -> c_int {
    log("write", on, address);
    unsafe { std::ptr::write_bytes(address as *mut u8, value, bytes) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, on: Handle) -> c_int {
    log("write", on, to);
    unsafe { copy(from as usize, to as usize, bytes) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, on: Handle) -> c_int {
    log("read", on, from);
    unsafe { copy(from as usize, to as usize, bytes) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, on: Handle) -> c_int {
    log("read", on, from);
    log("write", on, to);
    unsafe { copy(from as usize, to as usize, bytes) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostAlloc(memory: *mut Handle, bytes: usize, _: c_uint) -> c_int {
    unsafe { *memory = pages(bytes) };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemFreeHost(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemHostRegister_v2(_: Handle, _: usize, _: c_uint) -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuMemHostUnregister(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemGetAddressRange_v2(base: *mut u64, len: *mut usize, address: u64) -> c_int {
    let allocations = lock(&ALLOCATIONS);
    let mut all = allocations.iter().flatten();
    let around = all.find(|(start, (bytes, _))| (**start..**start + bytes).contains(&(address as usize)));
    let Some((start, (bytes, _))) = around else { return INVALID };
    unsafe { (*base, *len) = (*start as u64, *bytes) };
    0
}
/// None of its memory is of `cuMemCreate`.
#[unsafe(no_mangle)]
extern "C" fn cuMemRetainAllocationHandle(_: *mut u64, _: Handle) -> c_int {
    INVALID
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuMemHostGetDevicePointer_v2(address: *mut u64, memory: Handle, _: c_uint) -> c_int {
    unsafe { *address = memory as u64 };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> c_int {
    unsafe { *mode = 1 };
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
    let stream = Stream { pending: AtomicU64::new(0), waits: AtomicU64::new(0), capture: Mutex::new(None) };
    unsafe { *out = Box::into_raw(Box::new(stream)).cast() };
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
    let Stream { pending, waits, .. } = unsafe { stream(handle as usize) };
    if pending.load(Ordering::SeqCst) + waits.load(Ordering::SeqCst) == 0 { 0 } else { NOT_READY }
}
/// Aligned words of the host's memory, which is the GPUs'.
unsafe fn word<'a>(address: u64) -> &'a AtomicU64 {
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWriteValue64_v2(_: Handle, address: u64, value: u64, flags: c_uint) -> c_int {
    assert!(flags == 0 && address.is_multiple_of(8));
    unsafe { word(address) }.store(value, Ordering::SeqCst);
    0
}
/// The stream is busy meanwhile; what is put on it later happens at once nevertheless.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamWaitValue64_v2(handle: Handle, address: u64, value: u64, flags: c_uint) -> c_int {
    assert!(flags == 0 && address.is_multiple_of(8));
    let (at, of) = (unsafe { word(address) }, handle as usize);
    let is_over = move || (at.load(Ordering::SeqCst).wrapping_sub(value) as i64) >= 0;
    if is_over() {
        return 0;
    }
    // A program that ends before does not wait for the thread.
    assert!(of >= 16, "the default streams wait for nothing here");
    unsafe { stream(of) }.waits.fetch_add(1, Ordering::SeqCst);
    std::thread::spawn(move || {
        while !is_over() {
            std::thread::yield_now();
        }
        unsafe { stream(of) }.waits.fetch_sub(1, Ordering::SeqCst);
    });
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamWaitEvent(on: Handle, event: Handle, _: c_uint) -> c_int {
    log("wait", on, event as u64);
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamIsCapturing(_: Handle, status: *mut c_uint) -> c_int {
    unsafe { *status = 0 };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamGetCaptureInfo_v2(
    _: Handle,
    status: *mut c_uint,
    _: *mut u64,
    _: *mut Handle,
    _: *mut Handle,
    _: *mut usize,
) -> c_int {
    unsafe { *status = 0 };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuStreamBeginCapture_v2(handle: Handle, mode: c_int) -> c_int {
    if mode != 1 {
        return INVALID;
    }
    *lock(&unsafe { stream(handle as usize) }.capture) = Some(Vec::new());
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuStreamEndCapture(handle: Handle, graph: *mut Handle) -> c_int {
    let Some(ops) = lock(&unsafe { stream(handle as usize) }.capture).take() else { return INVALID };
    unsafe { *graph = Box::into_raw(Box::new(ops)).cast() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphInstantiateWithFlags(executable: *mut Handle, graph: Handle, _: u64) -> c_int {
    let ops = unsafe { &*graph.cast::<Vec<Op>>() };
    unsafe { *executable = Box::into_raw(Box::new(ops.clone())).cast() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphDestroy(graph: Handle) -> c_int {
    drop(unsafe { Box::from_raw(graph.cast::<Vec<Op>>()) });
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphExecDestroy(executable: Handle) -> c_int {
    unsafe { cuGraphDestroy(executable) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuGraphLaunch(executable: Handle, _: Handle) -> c_int {
    unsafe { &*executable.cast::<Vec<Op>>() }.iter().for_each(|op| put(*op));
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventCreate(event: *mut Handle, _: c_uint) -> c_int {
    unsafe { *event = Box::into_raw(Box::new(Mutex::new((Instant::now(), 0usize)))).cast() };
    0
}
#[unsafe(no_mangle)]
extern "C" fn cuEventDestroy_v2(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventRecord(event: Handle, on: Handle) -> c_int {
    log("record", on, event as u64);
    *lock(unsafe { &*event.cast::<Mutex<(Instant, usize)>>() }) = (Instant::now(), on as usize);
    0
}
/// Not done while its stream waits for a word. Operations of this file's NCCL do not count.
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventQuery(event: Handle) -> c_int {
    let (_, on) = *lock(unsafe { &*event.cast::<Mutex<(Instant, usize)>>() });
    if on < 16 || unsafe { stream(on) }.waits.load(Ordering::SeqCst) == 0 { 0 } else { NOT_READY }
}
#[unsafe(no_mangle)]
extern "C" fn cuEventSynchronize(_: Handle) -> c_int {
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: Handle, end: Handle) -> c_int {
    let at = |event: Handle| lock(unsafe { &*event.cast::<Mutex<(Instant, usize)>>() }).0;
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
    cuGraphAddHostNode cuGraphRetainUserObject cuUserObjectCreate cuUserObjectRelease cuLaunchHostFunc cuModuleLoadDataEx
    cuMemGetHandleForAddressRange cuPointerSetAttribute
    cuModuleUnload cuModuleGetFunction cuFuncGetAttribute cuFuncSetAttribute
    cuLaunchKernel
}

// NCCL.

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = 22_809 };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    let mut bytes = [7u8; 128];
    bytes[120..].copy_from_slice(&NEXT_ID.fetch_add(1, Ordering::SeqCst).to_le_bytes());
    unsafe { *id = UniqueId(bytes) };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommInitRank(comm: *mut Handle, ranks: c_int, id: UniqueId, rank: c_int) -> c_int {
    // Every byte must have come through, in its place.
    if id.0[..120] != [7; 120] || !(0..ranks).contains(&rank) {
        return 4;
    }
    let world = u64::from_le_bytes(std::array::from_fn(|i| id.0[120 + i]));
    let ranks = ranks as usize;
    let new = || World {
        ranks,
        joined: 0,
        queues: vec![VecDeque::new(); ranks],
        sends: HashMap::new(),
        recvs: HashMap::new(),
    };
    let mut worlds = lock(&WORLDS);
    let made = worlds.get_or_insert_default().entry(world).or_insert_with(new);
    made.joined += 1;
    if made.ranks != ranks || made.joined > ranks {
        return 5;
    }
    lock(&USED)[device()] += COMM_BYTES;
    let new = Comm { world, rank: rank as usize, device: device() };
    unsafe { *comm = Box::into_raw(Box::new(new)).cast() };
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommDestroy(comm: Handle) -> c_int {
    let comm = unsafe { Box::from_raw(comm.cast::<Comm>()) };
    lock(&USED)[comm.device] -= COMM_BYTES;
    0
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommAbort(comm: Handle) -> c_int {
    unsafe { ncclCommDestroy(comm) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclCommGetAsyncError(_: Handle, code: *mut c_int) -> c_int {
    unsafe { *code = 0 };
    0
}
#[unsafe(no_mangle)]
extern "C" fn ncclGetErrorString(_: c_int) -> *const c_char {
    c"a fake error".as_ptr()
}
#[unsafe(no_mangle)]
extern "C" fn ncclGetLastError(_: Handle) -> *const c_char {
    CStr::from_bytes_with_nul(b"\0").unwrap_or_default().as_ptr()
}
#[unsafe(no_mangle)]
extern "C" fn ncclGroupStart() -> c_int {
    0
}
#[unsafe(no_mangle)]
extern "C" fn ncclGroupEnd() -> c_int {
    0
}

#[allow(clippy::too_many_arguments)]
unsafe fn enqueue(
    kind: Kind,
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    let comm = unsafe { &*comm.cast::<Comm>() };
    let Some(size) = [1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1].get(dtype as usize).copied() else { return 4 };
    let reduces = matches!(kind, Kind::AllReduce | Kind::ReduceScatter | Kind::Reduce);
    if comm.device != device() || (reduces && dtype != 7) {
        return 4;
    }
    let (send, recv, stream) = (send as usize, recv as usize, stream as usize);
    put(Op { kind, send, recv, count, size, peer: peer as usize, world: comm.world, rank: comm.rank, stream });
    0
}

#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    _: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::AllReduce, send, recv, count, dtype, 0, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduceScatter(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    _: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::ReduceScatter, send, recv, count, dtype, 0, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclReduce(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    _: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Reduce, send, recv, count, dtype, root, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclBroadcast(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    root: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Broadcast, send, recv, count, dtype, root, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclAllGather(
    send: *const c_void,
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::AllGather, send, recv, count, dtype, 0, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclSend(
    send: *const c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Send, send, std::ptr::null_mut(), count, dtype, peer, comm, stream) }
}
#[unsafe(no_mangle)]
unsafe extern "C" fn ncclRecv(
    recv: *mut c_void,
    count: usize,
    dtype: c_int,
    peer: c_int,
    comm: Handle,
    stream: Handle,
) -> c_int {
    unsafe { enqueue(Kind::Recv, std::ptr::null(), recv, count, dtype, peer, comm, stream) }
}
