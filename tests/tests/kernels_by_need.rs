//! When kernels are loaded: machine code at init, PTX when a call needs it, once for each GPU and never while an operation runs there.
//!
//! Each program runs over a driver without a GPU, in a process of its own. The driver writes down what it loads and launches, and
//! refuses to load while this thread may not, because a stream is captured.

use oxccl::cuda::{Capture, DeviceMemory, Stream};
use oxccl::{Config, DeviceCommunicator, DeviceSliceMut, Error, ReduceOp, device_group};
use oxccl_tests::fake_driver::FakeDriver;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

const CHILD: &str = "OXCCL_TEST_KERNELS";
/// Bytes of a rank's buffer.
const BYTES: usize = 64 << 20;

/// A rank with a stream and a buffer.
struct Rank {
    comm: DeviceCommunicator,
    stream: Stream,
    memory: DeviceMemory,
}

fn try_ranks(ordinals: &[u32], config: &Config) -> Result<Vec<Rank>, Error> {
    let comms = DeviceCommunicator::init_all_with(ordinals, config)?;
    let rank = |comm: DeviceCommunicator| {
        let stream = Stream::new(comm.device()).expect("a stream");
        let memory = DeviceMemory::zeroed(comm.device(), BYTES).expect("memory");
        Rank { comm, stream, memory }
    };
    Ok(comms.into_iter().map(rank).collect())
}

fn ranks(ordinals: &[u32], config: &Config) -> Vec<Rank> {
    try_ranks(ordinals, config).unwrap_or_else(|error| panic!("{error}"))
}

fn config() -> Config {
    Config::from_env().expect("a valid environment")
}

/// An all-reduce of f32 by all ranks, in a group.
fn all_reduce(ranks: &[Rank], count: usize) {
    let added = device_group(|group| {
        ranks.iter().try_for_each(|rank| {
            // SAFETY: (1) the memory is longer, and is not touched before the streams have been waited for.
            let buffer = unsafe { DeviceSliceMut::<f32>::from_raw(rank.memory.address(), count) };
            // SAFETY: (1, 2) as above.
            unsafe { group.all_reduce_in_place(&rank.comm, buffer, ReduceOp::SUM, rank.stream.by_ref()) }
        })
    });
    added.unwrap_or_else(|error| panic!("{error}"));
}

fn barrier(ranks: &[Rank]) {
    device_group(|group| ranks.iter().try_for_each(|rank| group.barrier(&rank.comm, rank.stream.by_ref())))
        .unwrap_or_else(|error| panic!("{error}"));
}

/// Lines of the driver's log that begin with these words: `load 0 2e` is PTX, `load 0 7f` machine code.
fn lines(start: &str) -> Vec<String> {
    let log = std::fs::read_to_string(std::env::var_os("FAKE_LOG").expect("a log")).unwrap_or_default();
    log.lines().filter(|line| line.starts_with(start)).map(str::to_owned).collect()
}

fn ptx() -> usize {
    lines("load 0 2e").len()
}

fn code() -> usize {
    lines("load 0 7f").len()
}

fn by_need() {
    let two = ranks(&[0, 1], &config());
    assert_eq!((ptx(), code()), (0, 0), "init loads nothing");
    all_reduce(&two, 8);
    assert_eq!(ptx(), 2, "a module for each GPU");
    all_reduce(&two, 8);
    all_reduce(&two, 16);
    assert_eq!(ptx(), 2, "the kernel is there");
    all_reduce(&two, BYTES / 4);
    assert_eq!(ptx(), 4, "a long one takes another kernel");
    // Another communicator of the same GPUs.
    let again = ranks(&[0, 1], &config());
    all_reduce(&again, 8);
    assert_eq!(ptx(), 4);
    // Into a graph, in the strict mode, in which the driver refuses to load without more.
    let capture = Capture::begin(two[0].stream.by_ref(), true).expect("a capture");
    let second = Capture::begin(two[1].stream.by_ref(), true).expect("a capture");
    barrier(&two);
    assert_eq!(ptx(), 6);
    drop((capture, second));
    assert_eq!(code(), 0);
}

/// The driver's memory is the host's.
fn word(memory: &DeviceMemory) -> &AtomicU64 {
    let word: *mut u64 = std::ptr::with_exposed_provenance_mut(memory.address() as usize);
    // SAFETY: the memory is longer, aligned, and lives as long as the reference; the driver uses it as an atomic.
    unsafe { AtomicU64::from_ptr(word) }
}

/// Nothing is loaded while an operation waits on the GPU.
fn beside_operations() {
    let (two, others) = (ranks(&[0, 1], &config()), ranks(&[0, 1], &config()));
    all_reduce(&two, 8);
    let flag = DeviceMemory::zeroed(two[0].comm.device(), 8).expect("memory");
    // What comes after this on the stream waits, as behind a kernel whose peer has not come.
    // SAFETY: (1) the word lives to the end.
    unsafe { two[0].stream.by_ref().wait_for_word(flag.address(), 1) }.expect("a wait");
    all_reduce(&two, 8);
    let before = ptx();
    let started = Instant::now();
    let loads = std::thread::spawn(move || {
        barrier(&others);
        (others, started.elapsed())
    });
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(ptx(), before, "an operation of this GPU is not done");
    // Operations whose kernels are there go on meanwhile, or this one would never end.
    all_reduce(&two, 8);
    word(&flag).store(1, Ordering::SeqCst);
    let (others, took) = loads.join().expect("a barrier");
    assert!(took >= Duration::from_millis(300) && took < Duration::from_secs(5), "{took:?}");
    assert_eq!(ptx(), before + 2);
    // One that waits for a call which comes later does not keep the load for ever.
    // SAFETY: (1) as above.
    unsafe { two[0].stream.by_ref().wait_for_word(flag.address(), 2) }.expect("a wait");
    all_reduce(&two, 8);
    let started = Instant::now();
    all_reduce(&others, BYTES / 4);
    assert!((9..20).contains(&started.elapsed().as_secs()), "{:?}", started.elapsed());
    assert_eq!(ptx(), before + 4);
    word(&flag).store(2, Ordering::SeqCst);
}

fn machine_code_at_init() {
    let two = ranks(&[0, 1], &config());
    let at_init = code();
    assert!(at_init > 100, "{at_init}");
    all_reduce(&two, 8);
    all_reduce(&two, BYTES / 4);
    barrier(&two);
    assert_eq!((ptx(), code()), (0, at_init));
}

/// Making a stream may wait for kernels that wait for this rank, so connections that are made at first use make none.
fn connected_without_a_stream() {
    let streams = || lines("stream").len();
    let two = ranks(&[0, 1], &config());
    let (at_init, connections) = (streams(), two[0].comm.memory().total_bytes());
    assert!(at_init > 0, "the driver says which streams it makes");
    all_reduce(&two, 8);
    all_reduce(&two, BYTES / 4);
    assert!(two[0].comm.memory().total_bytes() > connections, "connections were made at first use");
    assert_eq!(streams(), at_init);
}

/// The driver knows no machine code of so late an assembler.
fn refused_machine_code() {
    let two = ranks(&[0, 1], &config());
    assert_eq!((ptx(), code(), lines("refuse").len()), (0, 0, 2));
    all_reduce(&two, 8);
    assert_eq!((ptx(), code()), (2, 0));
}

fn all_at_init() {
    let two = ranks(&[0, 1], &config());
    let at_init = ptx();
    assert!(at_init > 100, "{at_init}");
    all_reduce(&two, 8);
    barrier(&two);
    assert_eq!(ptx(), at_init);
}

/// Ranks that share a GPU: refused, or with blocks so few that all run at once, and with one load for all.
fn shared_gpu() {
    let mut config = config();
    config.p2p.shares_gpus = false;
    let refused = try_ranks(&[0, 1, 1], &config).err().expect("a refusal").to_string();
    assert!(refused.contains("ranks 1 and 2") && refused.contains("OXCCL_DUPLICATE_GPUS=1"), "{refused}");
    config.p2p.shares_gpus = true;
    // As many as there may be.
    config.channels.min = Some(64);
    for (ordinals, blocks_max) in [(&[0, 0][..], 33), (&[0, 0, 0, 0], 16), (&[0, 1, 1], 33)] {
        let (before, loaded) = (lines("launch").len(), ptx());
        let ranks = ranks(ordinals, &config);
        for count in [8, 100_000, BYTES / 4] {
            all_reduce(&ranks, count);
        }
        let launched = lines("launch");
        let blocks: Vec<u32> = launched[before..]
            .iter()
            .map(|line| u32::from_str_radix(line.rsplit(' ').next().expect("blocks"), 16).expect("a number"))
            .collect();
        assert!(blocks.len() >= 3 * ordinals.len(), "{launched:?}");
        assert!(blocks.iter().all(|blocks| *blocks <= blocks_max), "{ordinals:?}: {blocks:?}");
        assert_eq!(blocks.iter().max(), Some(&blocks_max), "{ordinals:?}");
        assert!((1..=3 * 2).contains(&(ptx() - loaded)), "{ordinals:?}: {}", ptx() - loaded);
    }
}

/// Kernels that wait by themselves are launched to start early, unless somebody is against it; nobody is told if the driver is.
fn early_launches() {
    let expects_early =
        std::env::var_os("OXCCL_PDL").is_none() && std::env::var_os("FAKE_NO_EARLY").is_none();
    let two = ranks(&[0, 1], &config());
    let counts = || (lines("early").len(), lines("launch").len());
    for (count, may_be_early) in [(8, true), (8, true), (BYTES / 4, false), (8, true)] {
        let before = counts();
        all_reduce(&two, count);
        let (early, launched) = counts();
        let wanted = if may_be_early && expects_early { (2, 0) } else { (0, 2) };
        assert_eq!((early - before.0, launched - before.1), wanted, "{count} elements");
    }
}

const PROGRAMS: [(&str, fn()); 8] = [
    ("connected_without_a_stream", connected_without_a_stream),
    ("by_need", by_need),
    ("beside_operations", beside_operations),
    ("machine_code_at_init", machine_code_at_init),
    ("refused_machine_code", refused_machine_code),
    ("all_at_init", all_at_init),
    ("shared_gpu", shared_gpu),
    ("early_launches", early_launches),
];

/// Runs a program of the list in a process of its own, with a bundle with machine code or without it.
fn run(name: &str, has_code: bool, variables: &[(&str, &str)]) {
    run_as(&format!("{name}_of"), name, has_code, variables);
}

/// The same, for one of several tests of a program.
fn run_as(test: &str, name: &str, has_code: bool, variables: &[(&str, &str)]) {
    if let Some(wanted) = std::env::var_os(CHILD) {
        let (_, program) = PROGRAMS.iter().find(|(name, _)| wanted == **name).expect("a program");
        return program();
    }
    let folder = tempfile::tempdir().unwrap();
    let driver = FakeDriver::make(folder.path());
    let bundle: PathBuf = driver.kernels(has_code);
    let mut child = Command::new(std::env::current_exe().unwrap());
    let test = format!("kernels_by_need::{test}_a_fake_driver");
    child.args(["--exact", &test, "--nocapture"]).env(CHILD, name);
    driver.under(&mut child).env("OXCCL_PTX_PATH", bundle).envs(variables.iter().copied());
    let output = child.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{said}");
}

#[test]
fn by_need_of_a_fake_driver() {
    run("by_need", false, &[]);
}

#[test]
fn beside_operations_of_a_fake_driver() {
    run("beside_operations", false, &[]);
}

#[test]
fn machine_code_at_init_of_a_fake_driver() {
    run("machine_code_at_init", true, &[]);
}

#[test]
fn connected_without_a_stream_of_a_fake_driver() {
    run("connected_without_a_stream", true, &[]);
}

#[test]
fn refused_machine_code_of_a_fake_driver() {
    run("refused_machine_code", true, &[("FAKE_OLD", "1")]);
}

#[test]
fn all_at_init_of_a_fake_driver() {
    run("all_at_init", false, &[("NCCL_RUNTIME_CONNECT", "0")]);
}

#[test]
fn shared_gpu_of_a_fake_driver() {
    run("shared_gpu", false, &[]);
}

#[test]
fn early_launches_of_a_fake_driver() {
    run("early_launches", true, &[]);
}

#[test]
fn early_launches_refused_by_a_fake_driver() {
    run_as("early_launches_refused_by", "early_launches", true, &[("FAKE_NO_EARLY", "1")]);
}

#[test]
fn early_launches_off_of_a_fake_driver() {
    run_as("early_launches_off_of", "early_launches", false, &[("OXCCL_PDL", "0")]);
}
