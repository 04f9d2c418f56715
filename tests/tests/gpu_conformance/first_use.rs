//! Connections that are made when an operation first needs them: by whichever thread, in whichever order, beside kernels that wait.

use super::net::no_memory;
use oxccl::cuda::{DeviceMemory, Stream, StreamRef};
use oxccl::{
    Config, DataType, DeviceCommunicator, DeviceSlice, DeviceSliceMut, Error, Func, RedOp, ReduceOp,
};
use oxccl_tests::case::{Case, Placement};
use oxccl_tests::deadline::Deadline;
use oxccl_tests::devices::{DeviceWorld, Launch, device_config, ordinals, ranks_max};
use oxccl_tests::harness::{Settings, on_threads};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

/// A name, and what it changes.
type Setting = (&'static str, fn(&mut Config));

/// Ranks that share memory, and ranks of which each is a host.
const WORLDS: [Setting; 2] = [("one host", |_| ()), ("a host each", no_memory)];

/// A rank with a stream and a buffer.
struct Rank {
    comm: DeviceCommunicator,
    stream: Stream,
    memory: DeviceMemory,
}

fn ranks(nranks: u32, adjust: impl Fn(&mut Config)) -> Vec<Rank> {
    let mut config = device_config(&Settings::default(), None);
    adjust(&mut config);
    let comms = DeviceCommunicator::init_all_with(&ordinals(nranks), &config)
        .unwrap_or_else(|error| panic!("{error}"));
    let rank = |comm: DeviceCommunicator| {
        let (stream, memory) = (Stream::new(comm.device()), DeviceMemory::zeroed(comm.device(), 64 * MIB));
        Rank { comm, stream: stream.expect("a stream"), memory: memory.expect("memory") }
    };
    comms.into_iter().map(rank).collect()
}

impl Rank {
    fn on(&self) -> StreamRef<'_> {
        self.stream.by_ref()
    }

    /// Fills the first bytes with ones, so that a sum counts ranks.
    fn fill(&self, count: usize) {
        let ones = vec![1.0f32; count];
        // SAFETY: (1, 2) the memory is longer, and the ones outlive the wait.
        unsafe { self.on().copy_to_device(self.memory.address(), ones.as_ptr().cast(), count * 4) }.unwrap();
        self.stream.synchronize().unwrap();
    }

    fn all_reduce(&self, count: usize) -> Result<(), Error> {
        // SAFETY: (1) the memory is longer, and is not touched before the stream has been waited for.
        let buffer = unsafe { DeviceSliceMut::<f32>::from_raw(self.memory.address(), count) };
        // SAFETY: (1, 2) as above.
        unsafe { self.comm.all_reduce_in_place(buffer, ReduceOp::SUM, self.on()) }
    }

    fn send(&self, count: usize, to: u32) -> Result<(), Error> {
        // SAFETY: (1) as above.
        let buffer = unsafe { DeviceSlice::<f32>::from_raw(self.memory.address(), count) };
        // SAFETY: (1, 2) as above.
        unsafe { self.comm.send(buffer, to, self.on()) }
    }

    fn recv(&self, count: usize, from: u32) -> Result<(), Error> {
        // SAFETY: (1) as above.
        let buffer = unsafe { DeviceSliceMut::<f32>::from_raw(self.memory.address(), count) };
        // SAFETY: (1, 2) as above.
        unsafe { self.comm.recv(buffer, from, self.on()) }
    }

    fn check(&self, count: usize, expected: f32) {
        let mut found = vec![0.0f32; count];
        // SAFETY: (1, 2) as above.
        unsafe { self.on().copy_to_host(found.as_mut_ptr().cast(), self.memory.address(), count * 4) }
            .unwrap();
        self.comm.synchronize(self.on()).unwrap_or_else(|error| panic!("{error}"));
        assert!(found.iter().all(|x| *x == expected), "rank {}: {}", self.comm.rank(), found[0]);
    }

    fn bytes(&self) -> usize {
        self.comm.memory().total_bytes()
    }
}

/// One thread enqueues for its ranks one after the other, without a group: no call waits for another rank's.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_first_calls_of_one_thread_need_no_group() {
    let _deadline = Deadline::start("needs_gpu_first_calls_of_one_thread_need_no_group", LIMIT);
    let nranks = ranks_max().min(4);
    if nranks < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for (name, adjust) in WORLDS {
        let begun = Instant::now();
        let ranks = ranks(nranks, adjust);
        let idle = ranks[0].bytes();
        println!("{name}: init {:?}; idle: {idle} bytes", begun.elapsed());
        assert!(idle <= 8 * MIB);
        let mut before = idle;
        for count in [100, 30_000, 1 << 20, 16 << 20] {
            let took = [(); 2].map(|()| all_reduce_takes(&ranks, count));
            let bytes = ranks[0].bytes();
            println!("after two all-reduces of {} bytes, {took:?}: {bytes} bytes", 4 * count);
            assert!(bytes >= before);
            before = bytes;
        }
        for count in [10, 1 << 20] {
            ranks.iter().for_each(|rank| rank.fill(count));
            // The sender first.
            ranks[1]
                .send(count, 0)
                .and_then(|()| ranks[0].recv(count, 1))
                .unwrap_or_else(|error| panic!("{error}"));
            ranks.iter().for_each(|rank| rank.check(count, 1.0));
            println!("after a message of {} bytes: {} bytes", 4 * count, ranks[0].bytes());
        }
        assert!(ranks[0].bytes() > before);
    }
}

/// How long an all-reduce takes that one thread enqueues for all ranks.
fn all_reduce_takes(ranks: &[Rank], count: usize) -> Duration {
    ranks.iter().for_each(|rank| rank.fill(count));
    let begun = Instant::now();
    ranks.iter().try_for_each(|rank| rank.all_reduce(count)).unwrap_or_else(|error| panic!("{error}"));
    ranks.iter().for_each(|rank| rank.comm.synchronize(rank.on()).unwrap_or_else(|error| panic!("{error}")));
    let took = begun.elapsed();
    ranks.iter().for_each(|rank| rank.check(count, ranks.len() as f32));
    took
}

/// A kernel of one communicator waits for its peer while all of another's connections are made, and only then the peer comes.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_connections_are_made_beside_kernels_that_wait() {
    let _deadline = Deadline::start("needs_gpu_connections_are_made_beside_kernels_that_wait", LIMIT);
    if ranks_max() < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    let worlds = WORLDS.into_iter().flat_map(|(_, adjust)| [(adjust, true), (adjust, false)]);
    for (adjust, cumem) in worlds {
        let (waiting, other) = (
            ranks(2, adjust),
            ranks(2, |config| {
                adjust(config);
                config.p2p.cumem = cumem;
            }),
        );
        waiting.iter().chain(&other).for_each(|rank| rank.fill(1 << 20));
        waiting[0].all_reduce(100).unwrap_or_else(|error| panic!("{error}"));
        for count in [1000, 100_000, 1 << 20] {
            other
                .iter()
                .try_for_each(|rank| rank.all_reduce(count))
                .unwrap_or_else(|error| panic!("{error}"));
        }
        other[0].send(100, 1).and_then(|()| other[1].recv(100, 0)).unwrap_or_else(|error| panic!("{error}"));
        other
            .iter()
            .for_each(|rank| rank.comm.synchronize(rank.on()).unwrap_or_else(|error| panic!("{error}")));
        waiting[1].all_reduce(100).unwrap_or_else(|error| panic!("{error}"));
        waiting.iter().for_each(|rank| rank.check(100, 2.0));
    }
}

/// First calls within captures, whose graphs then run.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_first_calls_may_be_captured() {
    let _deadline = Deadline::start("needs_gpu_first_calls_may_be_captured", LIMIT);
    let nranks = ranks_max().min(4);
    if nranks < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for (launch, (_, adjust)) in
        Launch::ALL.into_iter().flat_map(|launch| WORLDS.map(|world| (launch, world)))
    {
        for (func, count) in [(Func::AllReduce, 1 << 18), (Func::Broadcast, 3000), (Func::AllToAll, 40_000)] {
            let (dtype, op, root) = (DataType::F32, RedOp::Sum, 0);
            let case = Case { func, dtype, op, root, count, placement: Placement::Apart, seed: 1 };
            let mut world = DeviceWorld::with(nranks, Settings::default(), None, adjust);
            world.check(&case, launch).unwrap_or_else(|error| panic!("{error}"));
        }
    }
}

/// Everything at init, by ranks that are threads; what follows takes no more memory.
#[test]
#[ignore = "needs GPUs"]
fn needs_gpu_all_connections_may_be_made_at_init() {
    let _deadline = Deadline::start("needs_gpu_all_connections_may_be_made_at_init", LIMIT);
    let nranks = ranks_max().min(4);
    if nranks < 2 {
        return println!("skipped: this machine has one GPU, and OXCCL_DUPLICATE_GPUS=1 is not set");
    }
    for (name, adjust) in WORLDS {
        let begun = Instant::now();
        let mut ranks = ranks(nranks, |config| {
            adjust(config);
            config.runtime_connect = false;
        });
        let bytes = ranks[0].bytes();
        println!("{name}: init {:?}; all: {bytes} bytes", begun.elapsed());
        ranks.iter().for_each(|rank| rank.fill(1 << 20));
        for count in [100, 1 << 20] {
            on_threads(ranks.iter_mut(), |rank| {
                rank.all_reduce(count).unwrap_or_else(|error| panic!("{error}"))
            });
        }
        ranks
            .iter()
            .for_each(|rank| rank.comm.synchronize(rank.on()).unwrap_or_else(|error| panic!("{error}")));
        for count in [10, 1 << 20] {
            ranks[1]
                .send(count, 0)
                .and_then(|()| ranks[0].recv(count, 1))
                .unwrap_or_else(|error| panic!("{error}"));
        }
        ranks
            .iter()
            .for_each(|rank| rank.comm.synchronize(rank.on()).unwrap_or_else(|error| panic!("{error}")));
        assert_eq!(ranks[0].bytes(), bytes);
    }
}
