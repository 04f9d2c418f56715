//! What a host with GPUs has to show of `oxccl::cuda` and `oxccl::transport::p2p`: one function per claim, each of which
//! says in a line what it saw, or fails. Used by the example and by the tests that need a GPU.

use oxccl::cuda::{
    Allocation, Capture, CudaError, Device, DeviceMemory, Driver, Event, Function, HostMapping, HostWork,
    Module, PinnedMemory, Shape, Stream, StreamRef,
};
use oxccl::mem::Segment;
use std::ffi::c_void;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a check says.
pub type Said = Result<String, Box<dyn std::error::Error>>;

/// A check and its name.
pub type Check = (&'static str, fn() -> Said);

/// Those of one device.
pub const DEVICE: &[Check] = &[
    ("devices", devices),
    ("contexts are restored", contexts),
    ("device memory", device_memory),
    ("out of memory", out_of_memory),
    ("host memory", host_memory),
    ("events tell the time", events),
    ("kernel from PTX", kernel),
    ("bad images", bad_images),
    ("graphs", graphs),
    ("host work", host_work),
    ("shareable memory", shareable),
];

/// Words that a check writes.
pub const WORDS: u32 = 10_000;

const PTX: &[u8] = include_bytes!("kernels.ptx");

/// Fails with a text unless something holds.
macro_rules! ensure {
    ($holds:expr, $($text:tt)+) => {
        if !$holds {
            return Err(format!($($text)+).into());
        }
    };
}
pub(crate) use ensure;

/// A device with a stream and the kernels.
pub struct Bench {
    pub device: Device,
    pub stream: Stream,
    module: Module,
}

impl Bench {
    pub fn new(ordinal: u32) -> Result<Bench, CudaError> {
        let device = Device::open(ordinal)?;
        let (stream, module) = (Stream::new(&device)?, Module::load(&device, PTX)?);
        Ok(Bench { device, stream, module })
    }

    pub fn function(&self, name: &str) -> Result<Function, CudaError> {
        self.module.function(name)
    }

    /// Enqueues a kernel over `WORDS` words at `to`.
    pub fn launch(&self, name: &str, stream: StreamRef<'_>, to: u64, value: u32) -> Result<(), CudaError> {
        launch(&self.function(name)?, stream, to, value)
    }

    /// The `WORDS` words at `from`.
    pub fn read(&self, from: u64) -> Result<Vec<u32>, CudaError> {
        let mut words = vec![0; WORDS as usize];
        let bytes = size_of_val(&words[..]);
        // SAFETY: checks read only what they have allocated, and wait for it.
        unsafe { self.stream.by_ref().copy_to_host(words.as_mut_ptr().cast(), from, bytes) }?;
        self.stream.synchronize()?;
        Ok(words)
    }
}

/// Enqueues a kernel of the module over `WORDS` words at `to`.
pub fn launch(function: &Function, stream: StreamRef<'_>, to: u64, value: u32) -> Result<(), CudaError> {
    let (mut to, mut value, mut count) = (to, value, WORDS);
    let mut params: [*mut c_void; 3] =
        [(&raw mut to).cast(), (&raw mut value).cast(), (&raw mut count).cast()];
    // SAFETY: the kernels take these three parameters; checks give addresses of `WORDS` words (or want the fault).
    unsafe { function.launch(Shape::new(WORDS.div_ceil(256), 256), stream, &mut params) }
}

/// Whether `words` are what `put` writes for `value`.
pub fn is_put(words: &[u32], value: u32) -> bool {
    words.iter().enumerate().all(|(i, word)| *word == value + i as u32)
}

fn devices() -> Said {
    let driver = Driver::get()?;
    let mut said = format!("CUDA {}", driver.version());
    let devices = (0..driver.device_count()).map(Device::open).collect::<Result<Vec<_>, _>>()?;
    for device in &devices {
        ensure!(
            Device::ordinal_of(&device.uuid())? == Some(device.ordinal()),
            "{device:?} is not found again"
        );
        let row = devices.iter().map(|other| device.can_access(other)).collect::<Result<Vec<_>, _>>()?;
        let row: String = row.into_iter().map(|can| if can { '+' } else { '-' }).collect();
        let (sm, sms, gib) = (device.sm(), device.sm_count(), device.memory_bytes() >> 30);
        said +=
            &format!("; {device:?} sm_{sm}, {sms} SMs, {gib} GiB, fds {}, p2p {row}", device.exports_fds()?);
    }
    let missing = Device::open(driver.device_count());
    ensure!(matches!(missing, Err(CudaError::NoSuchDevice { .. })), "one device too many could be opened");
    Ok(said)
}

/// The context that is current on this thread, as another library sees it.
fn current() -> Result<usize, Box<dyn std::error::Error>> {
    let mut context = std::ptr::null_mut();
    // SAFETY: `context` is valid for a write, and the driver has been loaded.
    let code = unsafe { cudarc::driver::sys::cuCtxGetCurrent(&mut context) };
    ensure!(code == cudarc::driver::sys::CUresult::CUDA_SUCCESS, "{code:?}");
    Ok(context.addr())
}

fn contexts() -> Said {
    let count = Driver::get()?.device_count();
    let (first, last) = (Device::open(0)?, Device::open(count - 1)?);
    let before = current()?;
    let outer = last.bind()?;
    ensure!(current()? == last.context().addr(), "another context is current than was bound");
    let stream = Stream::new(&first)?;
    let inner = first.bind()?;
    ensure!(current()? == first.context().addr(), "another context is current than was bound inside");
    drop(inner);
    stream.synchronize()?;
    drop(stream);
    ensure!(current()? == last.context().addr(), "the outer context was not restored");
    drop(outer);
    ensure!(current()? == before, "the caller's context was not restored");
    let (free, total) = last.memory_info()?;
    Ok(format!("{} of {} MiB free on {}", free >> 20, total >> 20, last.id()))
}

fn device_memory() -> Said {
    let bench = Bench::new(0)?;
    let bytes = 4 * WORDS as usize;
    let (a, b) = (DeviceMemory::zeroed(&bench.device, bytes)?, DeviceMemory::zeroed(&bench.device, bytes)?);
    ensure!(bench.read(a.address())?.iter().all(|word| *word == 0), "memory is not zeroed");
    let words: Vec<u32> = (7..7 + WORDS).collect();
    let stream = bench.stream.by_ref();
    // SAFETY: all are `bytes` long, and `words` lives until the read has waited.
    unsafe {
        stream.copy_to_device(a.address(), words.as_ptr().cast(), bytes)?;
        stream.copy_on_device(b.address(), a.address(), bytes)?;
        stream.fill(a.address(), 0xff, bytes)?;
    }
    ensure!(is_put(&bench.read(b.address())?, 7), "copied words differ");
    ensure!(bench.read(a.address())?.iter().all(|word| *word == u32::MAX), "filled words differ");
    Ok(format!("{bytes} bytes to the device, on it, and back"))
}

fn out_of_memory() -> Said {
    let device = Device::open(0)?;
    let wanted = 2 * device.memory_bytes();
    match DeviceMemory::zeroed(&device, wanted) {
        Err(error @ CudaError::OutOfMemory { wanted_bytes, .. }) if wanted_bytes == wanted => {
            Ok(error.to_string())
        }
        other => Err(format!("{other:?}").into()),
    }
}

fn host_memory() -> Said {
    let bench = Bench::new(0)?;
    let pinned = PinnedMemory::zeroed(&bench.device, 4 * WORDS as usize)?;
    let segment = Segment::private(4 * WORDS as usize)?;
    let base = NonNull::new(segment.base()).ok_or("null")?;
    // SAFETY: the segment is dropped after its mapping.
    let mapping = unsafe { HostMapping::register(&bench.device, base, segment.len()) }?;
    for (host, address, value) in
        [(pinned.host(), pinned.address(), 3), (segment.base(), mapping.address(), 5)]
    {
        bench.launch("put", bench.stream.by_ref(), address, value)?;
        bench.stream.synchronize()?;
        // SAFETY: `WORDS` words, page aligned, and the kernel that wrote them has ended.
        let words = unsafe { std::slice::from_raw_parts(host.cast::<u32>(), WORDS as usize) };
        ensure!(is_put(words, value), "a kernel's words in host memory differ");
    }
    drop(mapping);
    Ok("kernels write pinned and registered memory".to_owned())
}

fn events() -> Said {
    let bench = Bench::new(0)?;
    let memory = DeviceMemory::zeroed(&bench.device, 256 << 20)?;
    let (start, end, plain) =
        (Event::timed(&bench.device)?, Event::timed(&bench.device)?, Event::new(&bench.device)?);
    let (stream, other) = (bench.stream.by_ref(), Stream::new(&bench.device)?);
    stream.record(&start)?;
    // SAFETY: the memory lives until the end of the check, which waits.
    unsafe { stream.fill(memory.address(), 1, memory.len()) }?;
    stream.record(&end)?;
    other.by_ref().wait(&end)?;
    other.by_ref().record(&plain)?;
    plain.synchronize()?;
    ensure!(end.is_done()? && plain.is_done()? && stream.is_done()?, "a stream did not wait for the event");
    let us = end.elapsed_us(&start)?;
    ensure!(us > 1.0 && us < 1e6, "256 MiB were filled in {us} us");
    Ok(format!("256 MiB filled in {us:.0} us"))
}

fn kernel() -> Said {
    let bench = Bench::new(0)?;
    let memory = DeviceMemory::zeroed(&bench.device, 4 * WORDS as usize)?;
    bench.launch("put", bench.stream.by_ref(), memory.address(), 100)?;
    ensure!(is_put(&bench.read(memory.address())?, 100), "the kernel's words differ");
    let put = bench.function("put")?;
    // SAFETY: null is the default stream of every device.
    let default = unsafe { StreamRef::from_raw(&bench.device, std::ptr::null_mut()) };
    launch(&put, default, memory.address(), 200)?;
    default.synchronize()?;
    ensure!(is_put(&bench.read(memory.address())?, 200), "words written on the default stream differ");
    let (threads, registers) = (put.threads_max()?, put.registers()?);
    Ok(format!("{threads} threads, {registers} registers"))
}

fn bad_images() -> Said {
    let bench = Bench::new(0)?;
    let text = String::from_utf8_lossy(PTX).replace("st.global", "st.nowhere");
    let error = match Module::load(&bench.device, text.as_bytes()) {
        Err(error @ CudaError::Module { .. }) => error.to_string(),
        other => return Err(format!("{other:?}").into()),
    };
    ensure!(error.contains("nowhere"), "the compiler's log is missing: {error}");
    let missing = bench.function("no_such_kernel").err().ok_or("a kernel that is not there was found")?;
    ensure!(matches!(missing, CudaError::NoFunction { .. }), "{missing}");
    Ok(error.replace('\n', " "))
}

fn graphs() -> Said {
    let bench = Bench::new(0)?;
    let memory = DeviceMemory::zeroed(&bench.device, 4 * WORDS as usize)?;
    let stream = bench.stream.by_ref();
    ensure!(!stream.is_capturing()?, "captures before it began");
    let capture = Capture::begin(stream, true)?;
    ensure!(stream.is_capturing()?, "does not capture");
    // As when a communicator is first used inside a capture: modules and memory are made meanwhile.
    let late = Bench::new(0)?;
    let late_memory = DeviceMemory::zeroed(&bench.device, 1 << 20)?;
    late.launch("add", stream, memory.address(), 2)?;
    bench.launch("add", stream, memory.address(), 1)?;
    let graph = capture.end()?;
    drop(late_memory);
    let exec = graph.instantiate()?;
    drop(graph);
    ensure!(bench.read(memory.address())?[0] == 0, "work ran while it was captured");
    for _ in 0..10 {
        // SAFETY: the memory lives until the read has waited.
        unsafe { exec.launch(stream) }?;
    }
    ensure!(bench.read(memory.address())?.iter().all(|word| *word == 30), "replayed sums differ");
    drop(Capture::begin(stream, true)?);
    ensure!(!stream.is_capturing()?, "a capture that was dropped goes on");
    Ok("captured strictly, module loaded meanwhile, replayed 10 times".to_owned())
}

/// Says that it was done.
struct Note(u32, Arc<Mutex<Vec<u32>>>);

impl HostWork for Note {
    fn run(&self) {
        self.1.lock().unwrap_or_else(PoisonError::into_inner).push(self.0);
    }
}

fn host_work() -> Said {
    let bench = Bench::new(0)?;
    let memory = DeviceMemory::zeroed(&bench.device, 4 * WORDS as usize)?;
    let stream = bench.stream.by_ref();
    let notes = Arc::new(Mutex::new(Vec::new()));
    let said = || notes.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for number in 0..3 {
        bench.launch("add", stream, memory.address(), 1)?;
        // SAFETY: (1) nobody captures it.
        unsafe { stream.run_once(Arc::new(Note(number, notes.clone()))) }?;
    }
    stream.synchronize()?;
    ensure!(said() == [0, 1, 2], "{:?}", said());
    let capture = Capture::begin(stream, true)?;
    bench.launch("add", stream, memory.address(), 1)?;
    let mut last = None;
    for number in 3..6 {
        let capturing = stream.capturing()?.ok_or("does not capture")?;
        last = capturing.run_each_time(Box::new(Note(number, notes.clone())), last)?;
        ensure!(last.is_some(), "the place of note {number} is not known");
        bench.launch("add", stream, memory.address(), 1)?;
    }
    let graph = capture.end()?;
    let (first, second) = (graph.instantiate()?, graph.instantiate()?);
    drop(graph);
    ensure!(said() == [0, 1, 2], "was done when it was captured: {:?}", said());
    for exec in [&first, &second, &first] {
        // SAFETY: the memory lives until the read has waited.
        unsafe { exec.launch(stream) }?;
    }
    drop((first, second));
    ensure!(bench.read(memory.address())?.iter().all(|word| *word == 3 + 3 * 4), "replayed sums differ");
    ensure!(said() == [0, 1, 2, 3, 4, 5, 3, 4, 5, 3, 4, 5], "{:?}", said());
    let asked = Instant::now();
    while Arc::strong_count(&notes) > 1 {
        ensure!(asked.elapsed() < Duration::from_secs(10), "work outlives its graphs");
        std::thread::yield_now();
    }
    Ok("in a stream 3 times, in 3 launches of 2 graphs, dropped with the last of them".to_owned())
}

fn shareable() -> Said {
    let bench = Bench::new(0)?;
    let count = Driver::get()?.device_count();
    let mine = Allocation::new(&bench.device, 4 * WORDS as usize)?.map(&[])?;
    mine.zero()?;
    let fd = mine.allocation().export()?;
    let other = Bench::new(count - 1)?;
    let theirs = Allocation::import(&other.device, fd.as_fd(), mine.len())?.map(&[])?;
    drop(fd);
    other.launch("put", other.stream.by_ref(), theirs.address(), 9)?;
    other.stream.synchronize()?;
    ensure!(is_put(&bench.read(mine.address())?, 9), "words written through the other mapping differ");
    let len = mine.len();
    drop(mine);
    ensure!(is_put(&other.read(theirs.address())?, 9), "memory went away with its first mapping");
    Ok(format!("{len} bytes of {} seen from {}", bench.device.id(), other.device.id()))
}
