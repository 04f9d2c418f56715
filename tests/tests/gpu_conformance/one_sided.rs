//! Puts and signals between GPUs: between threads and between processes, into memory of both kinds that the driver has.

use oxccl::cuda::{Allocation, Capture, Device, DeviceMemory, Mapping, Stream};
use oxccl::{DeviceCommunicator, Error, OneSidedError, Put, Signal, UniqueId};
use oxccl_tests::deadline::{Deadline, doing};
use oxccl_tests::devices::{device_config, ordinal_of, ordinals, ranks_max};
use oxccl_tests::harness::{Settings, on_threads};
use oxccl_tests::process::fresh_id;
use std::process::{Child, Command};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(200);
/// Bytes of a rank's window.
const BYTES: usize = 8 << 20;
/// Puts of these many bytes, by turns.
const LENS: [usize; 5] = [1, 4096, 70_000, 1 << 20, BYTES];
const ROUNDS: u32 = 40;
/// Tells a child its rank, the number of ranks, the kind of memory and the id.
const CHILD: &str = "OXCCL_TEST_ONE_SIDED";

/// The memory of a window.
enum Memory {
    Plain(DeviceMemory),
    Shareable(Mapping),
}

impl Memory {
    fn new(device: &Device, is_shareable: bool) -> Memory {
        if is_shareable {
            let mapping = Allocation::new(device, BYTES).and_then(|made| made.map(&[])).expect("8 MiB");
            return Memory::Shareable(mapping);
        }
        Memory::Plain(DeviceMemory::uninitialised(device, BYTES).expect("8 MiB"))
    }

    fn address(&self) -> u64 {
        match self {
            Memory::Plain(memory) => memory.address(),
            Memory::Shareable(mapping) => mapping.address(),
        }
    }
}

fn byte(rank: u32, round: u32, at: usize) -> u8 {
    (at / 7) as u8 ^ (rank * 67 + round * 13) as u8
}

/// Each rank puts to the next what it has from the host, waits for what the one before puts, reads that, and tells the one before that
/// it may go on. Nothing but the host's copies waits on the host.
fn ring_of_puts(comm: &DeviceCommunicator, is_shareable: bool) {
    let (rank, n) = (comm.rank(), comm.size());
    let (next, before) = ((rank + 1) % n, (rank + n - 1) % n);
    let memory = Memory::new(comm.device(), is_shareable);
    // Before ranks meet for the window: on a GPU that ranks share the driver may let this wait for kernels that wait for this rank.
    let stream = Stream::new(comm.device()).expect("a stream");
    // SAFETY: (1) it is freed after every rank has said that it is done with it.
    let window = unsafe { comm.register_window(memory.address(), BYTES as u64) }.expect("a window");
    let on = stream.by_ref();
    let data = DeviceMemory::uninitialised(comm.device(), BYTES).expect("8 MiB");
    let (there, go_on) = (3, 200);
    for round in 0..ROUNDS {
        let len = LENS[round as usize % LENS.len()];
        doing(|| format!("rank {rank}, round {round}: {len} bytes"));
        let offset = (BYTES - len).min(round as usize * 3);
        let sent: Vec<u8> = (0..len).map(|at| byte(rank, round, at)).collect();
        // A copy from or to pageable memory waits for all before it within the driver's lock, which ranks that share a GPU need.
        stream.synchronize().expect("a stream");
        // SAFETY: the driver reads pageable memory before it returns; the data was read by the put before, on the same stream.
        unsafe { on.copy_to_device(data.address(), sent.as_ptr().cast(), len) }.expect("a copy");
        let to = Put { window: &window, offset: offset as u64, signal: Signal { peer: next, kind: there } };
        // SAFETY: (1, 3) all live to the end of this function; (2) its reader has said that it may be overwritten.
        unsafe { comm.put_signal(data.address(), len as u64, to, on) }.expect("a put");
        comm.wait_signals(&[(Signal { peer: before, kind: there }, 1)], on).expect("a wait");
        stream.synchronize().expect("a stream");
        let mut found = vec![0u8; len];
        let from = memory.address() + offset as u64;
        // SAFETY: the host's memory lives until the stream was waited for; the rank before writes again once it is told.
        unsafe { on.copy_to_host(found.as_mut_ptr().cast(), from, len) }.expect("a copy");
        stream.synchronize().expect("a stream");
        comm.async_error().map_or(Ok(()), Err).expect("a healthy communicator");
        let wrong = (0..len).find(|at| found[*at] != byte(before, round, *at));
        assert_eq!(wrong, None, "rank {rank}, round {round}: {len} bytes from rank {before}");
        comm.signal(Signal { peer: before, kind: go_on }, on).expect("a signal");
        comm.wait_signals(&[(Signal { peer: next, kind: go_on }, 1)], on).expect("a wait");
    }
    // To itself, and past its end.
    let signal = Signal { peer: rank, kind: 0 };
    // SAFETY: as above.
    unsafe { comm.put_signal(data.address(), 16, Put { window: &window, offset: 0, signal }, on) }
        .expect("own");
    comm.wait_signals(&[(signal, 1)], on).expect("a wait");
    let past = Put { window: &window, offset: BYTES as u64 - 3, signal };
    // SAFETY: as above.
    let refused = unsafe { comm.put_signal(data.address(), 4, past, on) };
    assert!(matches!(refused, Err(Error::OneSided(OneSidedError::OutOfBounds { .. }))), "{refused:?}");
    comm.barrier(on).expect("a barrier");
    comm.synchronize(on).expect("the end");
    drop(window);
    comm.barrier(on).expect("a barrier");
    comm.synchronize(on).expect("every window is dropped");
}

fn threads(is_shareable: bool) {
    let config = device_config(&Settings::default(), None);
    let ordinals = ordinals(ranks_max().min(8));
    let comms = DeviceCommunicator::init_all_with(&ordinals, &config).expect("a communicator");
    on_threads(comms.into_iter(), |comm| ring_of_puts(&comm, is_shareable));
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_puts_between_threads() {
    let _deadline = Deadline::start("needs_gpu_puts_between_threads", LIMIT);
    [false, true].into_iter().for_each(threads);
}

/// A rank of the test below.
#[test]
#[ignore = "a process of another test"]
fn needs_gpu_puts_child() {
    let Ok(what) = std::env::var(CHILD) else { return };
    let _deadline = Deadline::start("needs_gpu_puts_child", LIMIT / 2);
    let words: Vec<&str> = what.split(' ').collect();
    let [rank, nranks, is_shareable, id] = words[..] else { panic!("{what}") };
    let (rank, nranks): (u32, u32) = (rank.parse().expect("a rank"), nranks.parse().expect("a number"));
    let id: UniqueId = id.parse().expect("an id");
    let builder =
        DeviceCommunicator::builder().unique_id(id).rank(rank).ranks(nranks).device(ordinal_of(rank));
    let comm = builder.config(device_config(&Settings::default(), None)).build().expect("a communicator");
    ring_of_puts(&comm, is_shareable == "true");
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_puts_between_processes() {
    let _deadline = Deadline::start("needs_gpu_puts_between_processes", LIMIT);
    let nranks = ranks_max().min(8);
    for is_shareable in [false, true] {
        let id = fresh_id(Duration::from_secs(30)).to_string();
        let child = |rank: u32| -> Child {
            let mut command = Command::new(std::env::current_exe().expect("a running program has a file"));
            command.args(["--exact", "one_sided::needs_gpu_puts_child", "--ignored", "--nocapture"]);
            command.env(CHILD, format!("{rank} {nranks} {is_shareable} {id}")).spawn().expect("a process")
        };
        let children: Vec<Child> = (0..nranks).map(child).collect();
        for (rank, mut child) in children.into_iter().enumerate() {
            let status = child.wait().expect("a child");
            assert!(status.success(), "rank {rank}, shareable {is_shareable}: {status}");
        }
    }
}

#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_an_abort_ends_a_wait_for_signals() {
    let _deadline = Deadline::start("needs_gpu_an_abort_ends_a_wait_for_signals", LIMIT);
    let config = device_config(&Settings::default(), None);
    let ordinals = ordinals(ranks_max().min(2));
    let comms = DeviceCommunicator::init_all_with(&ordinals, &config).expect("a communicator");
    let comms = on_threads(comms.into_iter(), |comm| {
        comm.connect_signals().expect("signals");
        comm
    });
    let comm = &comms[0];
    let stream = Stream::new(comm.device()).expect("a stream");
    let on = stream.by_ref();
    comm.wait_signals(&[(Signal { peer: comm.size() - 1, kind: 0 }, 5)], on).expect("a wait");
    std::thread::sleep(Duration::from_millis(100));
    assert!(!on.is_done().expect("a stream"), "nobody has signalled");
    // A capture would give each replay the same number.
    let captured = Stream::new(comm.device()).expect("a stream");
    let capture = Capture::begin(captured.by_ref(), false).expect("a capture");
    let refused = comm.signal(Signal { peer: 0, kind: 0 }, captured.by_ref());
    assert!(matches!(refused, Err(Error::OneSided(OneSidedError::Capturing))), "{refused:?}");
    drop(capture);
    comm.abort();
    stream.synchronize().expect("the wait has ended");
    assert!(comm.async_error().is_some());
}
